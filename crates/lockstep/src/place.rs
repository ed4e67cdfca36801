//! The folder of a cluster of `lockstep up`. It is made by `up` and carries a mark; any other that exists is left as it is,
//! because its files belong to the servers' account, and may be removed to start afresh.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lockstep_lab::{Account, Installation};

/// The file by which a folder is recognised.
const MARK: &str = "lockstep.up";
/// The longest name of a Unix socket, without the zero after it.
const SOCKET_NAME_MAX: usize = 107;
/// The longest path of a socket below the folder.
const LONGEST: &str = "/n1/lockstep.sock";

/// The absolute path: servers run in other folders, and files name it.
pub(crate) fn absolute(dir: &Path) -> Result<PathBuf, String> {
    let whole = std::path::absolute(dir).map_err(|e| format!("--dir {}: {e}", dir.display()))?;
    Ok(whole.components().collect())
}

/// Whether `up` has made this folder. Versions without the mark are recognised by the first server's file.
pub(crate) fn is_ours(dir: &Path) -> bool {
    if dir.join(MARK).is_file() {
        return true;
    }
    let cnf = std::fs::read_to_string(dir.join("n1.cnf")).unwrap_or_default();
    let datadir = format!("datadir={}", dir.join("n1").display());
    ["wsrep_cluster_name=up", &datadir].iter().all(|due| cnf.lines().any(|line| line == *due))
}

/// Whether a cluster can be here, before anything is made.
pub(crate) fn check(dir: &Path, account: Option<&Account>) -> Result<(), String> {
    let name = dir.display();
    // The server's scripts and files take other characters for something else.
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@,".contains(c);
    if !dir.to_str().is_some_and(|text| text.chars().all(plain)) {
        return Err(format!(
            "--dir {name}: the scripts that make a database cannot work there: name a folder with letters, digits and \
             . _ - + @ , in its path only"
        ));
    }
    let length = dir.as_os_str().as_bytes().len() + LONGEST.len();
    if length > SOCKET_NAME_MAX {
        return Err(format!(
            "--dir {name}: its path is too long by {} characters: Unix sockets are to be in it",
            length - SOCKET_NAME_MAX
        ));
    }
    // A symbolic link that leads nowhere is something, too.
    if dir.symlink_metadata().is_ok() && !is_ours(dir) {
        return Err(format!(
            "{name} exists, and `up` has not made it: nothing was changed. Name a folder that does not exist yet; `up` makes \
             it, and gives it to the servers' account"
        ));
    }
    let there = dir.ancestors().find(|path| path.exists()).unwrap_or(dir);
    match account.and_then(|account| closed(there, account)) {
        Some((path, account)) => Err(format!(
            "--dir {name}: the servers run as the account {account}, which may not enter {}: name a folder elsewhere",
            path.display()
        )),
        None => Ok(()),
    }
}

/// The first folder on the way there that the account may not enter, and the account's name.
fn closed<'a>(path: &'a Path, account: &'a Account) -> Option<(&'a Path, &'a str)> {
    let enters = |path: &Path| {
        let mut command = Command::new("test");
        command.arg("-x").arg(path).uid(account.uid).gid(account.gid).current_dir("/").stdin(Stdio::null());
        // If the check is impossible, the servers will find out.
        command.status().map_or(true, |status| status.success())
    };
    if enters(path) {
        return None;
    }
    let mut way: Vec<&Path> = path.ancestors().collect();
    way.reverse();
    let first = way.into_iter().find(|path| !enters(path)).unwrap_or(path);
    Some((first, &account.name))
}

/// Makes the folder, with those above it, and marks it. [`check`] has been passed.
pub(crate) fn make(dir: &Path, install: &Installation) -> Result<(), String> {
    let failed =
        |what: &str, path: &Path, e: std::io::Error| format!("cannot {what} {}: {e}", path.display());
    let mut above: Vec<&Path> = dir.ancestors().skip(1).take_while(|path| !path.exists()).collect();
    above.reverse();
    for path in above {
        std::fs::create_dir(path).map_err(|e| failed("create", path, e))?;
        // Whatever the umask: the servers' account must come through.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
            .map_err(|e| failed("set the mode of", path, e))?;
    }
    if !dir.exists() {
        std::fs::create_dir(dir).map_err(|e| failed("create", dir, e))?;
    }
    let mark = dir.join(MARK);
    if !mark.exists() {
        std::fs::write(
            &mark,
            "`lockstep up` has made this folder, and takes all that is in it for its own.\n",
        )
        .map_err(|e| failed("write", &mark, e))?;
    }
    install.make_dir(dir, 0o755).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("lockstep-place-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn only_what_up_has_made_is_taken() {
        let dir = folder("taken");
        assert_eq!(check(&dir, None), Ok(()), "it does not exist yet");
        std::fs::create_dir_all(&dir).unwrap();
        assert!(check(&dir, None).unwrap_err().contains("exists, and `up` has not made it"));
        // As a version wrote it that made no marks; another server's file of this name is none of them.
        std::fs::write(dir.join("n1.cnf"), "[mysqld]\nwsrep_cluster_name=up\ndatadir=/srv/n1\n").unwrap();
        assert!(!is_ours(&dir));
        let cnf = format!("[mysqld]\ndatadir={}\nwsrep_cluster_name=up\n", dir.join("n1").display());
        std::fs::write(dir.join("n1.cnf"), cnf).unwrap();
        assert_eq!(check(&dir, None), Ok(()));
        std::fs::remove_file(dir.join("n1.cnf")).unwrap();
        std::fs::write(dir.join(MARK), "").unwrap();
        assert_eq!(check(&dir, None), Ok(()));
        std::fs::remove_dir_all(&dir).unwrap();
        std::os::unix::fs::symlink("/nonexistent", &dir).unwrap();
        assert!(check(&dir, None).unwrap_err().contains("has not made it"));
        std::fs::remove_file(&dir).unwrap();
    }

    #[test]
    fn paths_that_cannot_work_are_refused() {
        for odd in ["/tmp/with space", "/tmp/a#b", "/tmp/a;b", "/tmp/$a", "/tmp/é"] {
            assert!(check(Path::new(odd), None).unwrap_err().contains("letters, digits"), "{odd}");
        }
        let fits = format!("/{}", "x".repeat(SOCKET_NAME_MAX - LONGEST.len() - 1));
        assert_eq!(check(Path::new(&fits), None), Ok(()));
        assert!(check(Path::new(&format!("{fits}xx")), None).unwrap_err().contains("too long by 2"));
    }

    #[test]
    fn folder_path_is_absolute() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(absolute(Path::new("./c2/")).unwrap(), here.join("c2"));
        assert_eq!(absolute(Path::new("/x/c2/")).unwrap().as_os_str(), "/x/c2");
        assert!(absolute(Path::new("")).is_err());
    }
}
