//! The folder of some servers: when it is dropped, they are killed and it is deleted. A small watchdog process does the
//! same if this process dies first. If the watchdog died too, the next process that makes a folder does it.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use lockstep_local::{Installation, LocalError, Result, Server, ServerConfig, Session, free_ports, try_lock};

/// A folder for servers, deleted in the end.
#[derive(Debug)]
pub struct Bench {
    install: Installation,
    dir: PathBuf,
    template: PathBuf,
    watchdog: Option<Child>,
    keep: bool,
    /// The folder, open and locked: its owner lives, also where process numbers say nothing of it.
    _lock: File,
}

// The data of servers that run as another account must be reachable through folders open to all, which a home or a
// per-user temporary folder need not be.
pub(crate) const PARENT: &str = "/var/tmp";

/// How folders are called: this, the process's number, and one of its own.
const PREFIX: &str = "lockstep-";
/// A file in a folder that somebody has asked to be kept.
const KEPT: &str = "kept";

/// Kills the sessions whose numbers are in the folder's `*.pid` files once its standard input ends, which happens
/// when our process is gone, however it went; then deletes the folder. Mounts are found in the kernel's list: the directory
/// of a FUSE mount without its process cannot be examined.
const WATCHDOG: &str = r#"
trap '' INT TERM HUP
while read -r line; do [ "$line" = done ] && exit 0; done
for file in "$1"/*.pid; do
    case "$file" in *.server.pid) continue ;; esac
    if pid=$(cat "$file" 2>/dev/null) && grep -qs "$1" "/proc/$pid/cmdline"; then
        pkill -9 -s "$pid" || kill -9 "$pid"
    fi
done
sleep 0.5
while read -r source point rest; do
    case "$point" in "$1"/*) umount -l "$point" ;; esac
done </proc/self/mounts
rm -rf "$1"
"#;

/// The watchdog of a folder. Its group is its own, for it is to outlive a kill of all of ours (`timeout -s KILL`).
fn watchdog(dir: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", WATCHDOG, "watchdog"]).arg(dir).process_group(0);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Whether the folder's owner is gone: no process has its number, nobody has it locked, and nobody wants it kept. Only one that
/// belongs to the account of our servers counts as a folder of ours, for this place is open to all.
fn is_left(dir: &Path, name: &str, install: &Installation) -> bool {
    let number = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
    let Some((Ok(pid), Ok(_))) = number.map(|(pid, at)| (pid.parse::<u32>(), at.parse::<u32>())) else {
        return false;
    };
    let ours = |meta: std::fs::Metadata| {
        meta.is_dir() && install.account.as_ref().is_some_and(|account| account.uid == meta.uid())
    };
    std::fs::symlink_metadata(dir).is_ok_and(ours)
        && !Path::new("/proc").join(pid.to_string()).exists()
        && !dir.join(KEPT).exists()
        && File::open(dir).is_ok_and(|dir| try_lock(&dir).unwrap_or(false))
}

/// Ends and deletes what labs have left that were killed together with their watchdogs: as those would have.
fn sweep(parent: &Path, install: &Installation) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_left(&entry.path(), &name, install) {
            // At the end of its input it does its work.
            let _ = watchdog(&entry.path()).stdin(Stdio::null()).status();
        }
    }
}

/// Starts a process of a folder's. `base` is a path in the folder: the output goes to `base.out`, and by `base.pid` the process is
/// found and killed should this one die.
pub(crate) fn spawn(command: &mut Command, base: &Path) -> Result<Session> {
    let session = Session::spawn(command, &base.with_extension("out"))?;
    let path = base.with_extension("pid");
    std::fs::write(&path, session.pid().to_string()).map_err(LocalError::path("write", &path))?;
    Ok(session)
}

impl Bench {
    /// Makes the folder and, once, the data directory that every server of it starts from.
    pub fn new() -> Result<Bench> {
        let bench = Bench::without_servers()?;
        bench.install.make_template(&bench.template, true)?;
        Ok(bench)
    }

    /// Makes the folder only, for processes other than servers.
    pub(crate) fn without_servers() -> Result<Bench> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let install = Installation::find()?;
        sweep(Path::new(PARENT), &install);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = Path::new(PARENT).join(format!("{PREFIX}{}-{number}", std::process::id()));
        if dir.exists() {
            // Another process had our number and left in a hurry.
            std::fs::remove_dir_all(&dir).map_err(LocalError::path("remove", &dir))?;
        }
        install.make_dir(&dir, 0o755)?;
        let lock = File::open(&dir).map_err(LocalError::path("open", &dir))?;
        let _ = try_lock(&lock);
        let keep = std::env::var_os("LOCKSTEP_LAB_KEEP").is_some();
        if keep {
            let kept = dir.join(KEPT);
            std::fs::write(&kept, "").map_err(LocalError::path("write", &kept))?;
        }
        let watchdog = watchdog(&dir)
            .stdin(Stdio::piped())
            .spawn()
            .map_err(LocalError::io("start the watchdog shell"))?;
        let template = dir.join("template");
        Ok(Bench { install, dir, template, watchdog: Some(watchdog), keep, _lock: lock })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The programs and the account in use.
    pub fn installation(&self) -> &Installation {
        &self.install
    }

    /// A plain server, not started, with a fresh database.
    pub fn server(&self, name: &str, server_id: u32) -> Result<Server> {
        let config = ServerConfig::new(name, &self.dir, free_ports(1)?, server_id);
        self.fresh_data(&config)?;
        Ok(Server::new(config, &self.install))
    }

    /// Gives a stopped server a fresh database.
    pub fn fresh_data(&self, config: &ServerConfig) -> Result<()> {
        let datadir = config.datadir();
        if datadir.exists() {
            std::fs::remove_dir_all(&datadir).map_err(LocalError::path("remove", &datadir))?;
        }
        self.install.copy_template(&self.template, &datadir)
    }
}

impl Bench {
    /// Kills what still runs here: a server whose test ended early.
    fn kill_all(&self) {
        let marker = self.dir.display().to_string();
        for file in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            if !name.ends_with(".pid") || name.ends_with(".server.pid") {
                continue;
            }
            let pid = std::fs::read_to_string(file.path()).ok().and_then(|text| text.trim().parse().ok());
            if let Some(mut session) = pid.and_then(|pid| Session::find(pid, &marker)) {
                session.kill();
            }
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.kill_all();
        if self.keep {
            eprintln!("kept: {}", self.dir.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
        if let Some(mut watchdog) = self.watchdog.take() {
            if let Some(mut stdin) = watchdog.stdin.take() {
                let _ = std::io::Write::write_all(&mut stdin, b"done\n");
            }
            let _ = watchdog.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_killed_lab_are_removed() {
        let Ok(install @ Installation { account: Some(_), .. }) = Installation::find() else {
            eprintln!("NOT TESTED: needs root and an installed server");
            return;
        };
        let parent = std::env::temp_dir().join(format!("lockstep-sweep-{}", std::process::id()));
        // Above the highest number that the kernel gives; and a process that is there as long as any.
        let [left, used, kept, locked, other] = [
            "lockstep-4194305-0",
            "lockstep-1-0",
            "lockstep-4194305-1",
            "lockstep-4194305-2",
            "lockstep-x-0",
        ]
        .map(|name| parent.join(name));
        for dir in [&left, &used, &kept, &locked, &other] {
            install.make_dir(dir, 0o755).unwrap();
        }
        let foreign = parent.join("lockstep-4194305-3");
        std::fs::create_dir(&foreign).unwrap();
        std::fs::write(kept.join(KEPT), "").unwrap();
        let lock = File::open(&locked).unwrap();
        assert!(try_lock(&lock).unwrap());
        // A server of the dead one: its session outlived it.
        let marker = left.join("n1.cnf");
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000; true"]).arg(&marker);
        let mut session = Session::spawn(&mut command, &left.join("n1.out")).unwrap();
        std::fs::write(left.join("n1.pid"), session.pid().to_string()).unwrap();
        sweep(&parent, &install);
        let there = [&left, &used, &kept, &locked, &other, &foreign].map(|dir| dir.exists());
        let ended = session.wait(std::time::Duration::from_secs(10));
        session.kill();
        std::fs::remove_dir_all(&parent).unwrap();
        assert_eq!(there, [false, true, true, true, true, true]);
        assert!(ended, "the server of the dead lab still runs");
    }

    #[test]
    fn watchdog_has_own_process_group() {
        let dir = std::env::temp_dir().join(format!("lockstep-watchdog-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut child = watchdog(&dir).stdin(Stdio::piped()).spawn().unwrap();
        // SAFETY: getpgid takes a number and touches no memory of ours.
        let group = unsafe { libc::getpgid(child.id() as i32) };
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(group, child.id() as i32);
        assert!(!dir.exists());
    }
}
