//! The directory of a cluster of `lockstep up`. `up` creates it and puts a marker file into it. `up` refuses any other
//! existing directory: the files in it will belong to the servers' account, and users may delete it to start afresh.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lockstep_local::{Account, Installation};

/// The cluster directory of `make up`.
pub(crate) const DEFAULT_DIR: &str = "/var/lib/lockstep/up";
/// The names of its members.
pub(crate) const NAMES: [&str; 3] = ["n1", "n2", "n3"];
/// The marker file.
const MARKER: &str = "lockstep.up";
/// The longest path of a Unix socket, without its terminating zero.
const SOCKET_PATH_MAX: usize = 107;
/// The longest path of a socket below the directory.
const LONGEST_SOCKET: &str = "/n1/lockstep.sock";

/// The data directories of a cluster in `dir`.
pub(crate) fn data_dirs(dir: &Path) -> Vec<PathBuf> {
    NAMES.iter().map(|name| dir.join(name)).collect()
}

/// The absolute path. The servers run in other directories, and their files name it.
pub(crate) fn absolute(dir: &Path) -> Result<PathBuf, String> {
    let whole = std::path::absolute(dir).map_err(|e| format!("--dir {}: {e}", dir.display()))?;
    Ok(whole.components().collect())
}

/// Whether `up` created this directory. Old versions wrote no marker; the first server's option file identifies theirs.
pub(crate) fn was_created_by_up(dir: &Path) -> bool {
    if dir.join(MARKER).is_file() {
        return true;
    }
    let cnf = std::fs::read_to_string(dir.join("n1.cnf")).unwrap_or_default();
    let datadir = format!("datadir={}", dir.join("n1").display());
    ["wsrep_cluster_name=up", &datadir].iter().all(|due| cnf.lines().any(|line| line == *due))
}

/// Checks whether a cluster can run in this directory. Changes nothing.
pub(crate) fn check(dir: &Path, account: Option<&Account>) -> Result<(), String> {
    let name = dir.display();
    // The server's scripts and option files give other characters a meaning.
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@,".contains(c);
    if !dir.to_str().is_some_and(|text| text.chars().all(plain)) {
        return Err(format!(
            "--dir {name}: the scripts that create a database do not support this path: name a directory whose path has \
             only letters, digits and . _ - + @ ,"
        ));
    }
    let length = dir.as_os_str().as_bytes().len() + LONGEST_SOCKET.len();
    if length > SOCKET_PATH_MAX {
        return Err(format!(
            "--dir {name}: the path is too long by {} characters for the Unix sockets in the directory",
            length - SOCKET_PATH_MAX
        ));
    }
    // A dangling symbolic link exists, too.
    if dir.symlink_metadata().is_ok() && !was_created_by_up(dir) {
        return Err(format!(
            "{name} exists, and `up` did not create it: nothing was changed. Name a directory that does not exist yet: `up` \
             creates it for the servers' account"
        ));
    }
    let existing = dir.ancestors().find(|path| path.exists()).unwrap_or(dir);
    match account.and_then(|account| inaccessible(existing, account)) {
        Some((path, account)) => Err(format!(
            "--dir {name}: the servers run as the account {account}, which may not enter {}: name another directory",
            path.display()
        )),
        None => Ok(()),
    }
}

/// The first directory of the path that the account may not enter, and the account's name.
fn inaccessible<'a>(path: &'a Path, account: &'a Account) -> Option<(&'a Path, &'a str)> {
    let enters = |path: &Path| {
        let mut command = Command::new("test");
        command.arg("-x").arg(path).uid(account.uid).gid(account.gid).current_dir("/").stdin(Stdio::null());
        // If the check fails to run, a server's own error will report the problem.
        command.status().map_or(true, |status| status.success())
    };
    if enters(path) {
        return None;
    }
    let mut ancestors: Vec<&Path> = path.ancestors().collect();
    ancestors.reverse();
    let first = ancestors.into_iter().find(|path| !enters(path)).unwrap_or(path);
    Some((first, &account.name))
}

/// Creates the directory, its parents and its marker file. [`check`] must have accepted it.
pub(crate) fn create(dir: &Path, install: &Installation) -> Result<(), String> {
    let failed =
        |what: &str, path: &Path, e: std::io::Error| format!("cannot {what} {}: {e}", path.display());
    let mut parents: Vec<&Path> = dir.ancestors().skip(1).take_while(|path| !path.exists()).collect();
    parents.reverse();
    for path in parents {
        std::fs::create_dir(path).map_err(|e| failed("create", path, e))?;
        // The servers' account must be able to enter, whatever the umask.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
            .map_err(|e| failed("set the mode of", path, e))?;
    }
    if !dir.exists() {
        std::fs::create_dir(dir).map_err(|e| failed("create", dir, e))?;
    }
    let marker = dir.join(MARKER);
    if !marker.exists() {
        std::fs::write(&marker, "`lockstep up` created this directory, and owns all files in it.\n")
            .map_err(|e| failed("write", &marker, e))?;
    }
    install.make_dir(dir, 0o755).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("lockstep-cluster-dir-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn directory_not_created_by_up_is_refused() {
        let dir = test_dir("taken");
        assert_eq!(check(&dir, None), Ok(()), "it does not exist yet");
        std::fs::create_dir_all(&dir).unwrap();
        assert!(check(&dir, None).unwrap_err().contains("exists, and `up` did not create it"));
        // Another server's file of this name identifies nothing; the file of an old version does.
        std::fs::write(dir.join("n1.cnf"), "[mysqld]\nwsrep_cluster_name=up\ndatadir=/srv/n1\n").unwrap();
        assert!(!was_created_by_up(&dir));
        let cnf = format!("[mysqld]\ndatadir={}\nwsrep_cluster_name=up\n", dir.join("n1").display());
        std::fs::write(dir.join("n1.cnf"), cnf).unwrap();
        assert_eq!(check(&dir, None), Ok(()));
        std::fs::remove_file(dir.join("n1.cnf")).unwrap();
        std::fs::write(dir.join(MARKER), "").unwrap();
        assert_eq!(check(&dir, None), Ok(()));
        std::fs::remove_dir_all(&dir).unwrap();
        std::os::unix::fs::symlink("/nonexistent", &dir).unwrap();
        assert!(check(&dir, None).unwrap_err().contains("did not create it"));
        std::fs::remove_file(&dir).unwrap();
    }

    #[test]
    fn paths_that_cannot_work_are_refused() {
        for odd in ["/tmp/with space", "/tmp/a#b", "/tmp/a;b", "/tmp/$a", "/tmp/é"] {
            assert!(check(Path::new(odd), None).unwrap_err().contains("letters, digits"), "{odd}");
        }
        let fits = format!("/{}", "x".repeat(SOCKET_PATH_MAX - LONGEST_SOCKET.len() - 1));
        assert_eq!(check(Path::new(&fits), None), Ok(()));
        assert!(check(Path::new(&format!("{fits}xx")), None).unwrap_err().contains("too long by 2"));
    }

    #[test]
    fn directory_path_is_absolute() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(absolute(Path::new("./c2/")).unwrap(), here.join("c2"));
        assert_eq!(absolute(Path::new("/x/c2/")).unwrap().as_os_str(), "/x/c2");
        assert!(absolute(Path::new("")).is_err());
    }
}
