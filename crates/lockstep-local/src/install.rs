//! The machine's installation: the server's programs, the account to run them, and a fresh data directory to copy.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{LocalError, Result};

/// The programs of one MariaDB installation and the account that runs the servers.
#[derive(Debug, Clone)]
pub struct Installation {
    /// The server.
    pub mariadbd: PathBuf,
    /// Makes the system tables.
    pub install_db: PathBuf,
    /// Galera's own start-up helper, if it is installed.
    pub galera_recovery: Option<PathBuf>,
    /// The account of servers: `mysql` if this process is root, otherwise `None` (our own account).
    pub account: Option<Account>,
}

/// An account of the system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Login name.
    pub name: String,
    /// User number.
    pub uid: u32,
    /// Group number.
    pub gid: u32,
}

impl Installation {
    /// Finds the installed server. Says what to install where something is missing.
    pub fn find() -> Result<Installation> {
        let hint = "run scripts/setup.sh (Debian: apt-get install mariadb-server mariadb-backup rsync)";
        let need = |name: &str| {
            find_program(name).ok_or_else(|| LocalError::Missing {
                what: format!("the program {name}"),
                hint: hint.to_owned(),
            })
        };
        Ok(Installation {
            mariadbd: need("mariadbd")?,
            install_db: need("mariadb-install-db")?,
            galera_recovery: find_program("galera_recovery"),
            account: if is_root()? { Some(account("mysql")?) } else { None },
        })
    }

    /// The server's version, as it says it.
    pub fn version(&self) -> Result<String> {
        let said = run_to_end(Command::new(&self.mariadbd).args(["--no-defaults", "--version"]))?;
        // Behind the path of the program; a later one may add warnings, with the time.
        let version = said.split_once("Ver ").map_or(said.as_str(), |(_, version)| version);
        let version = version.lines().next().unwrap_or_default();
        Ok(version.trim().to_owned())
    }

    /// Makes `path` (and its parents) a directory of the account, readable by all who must traverse it.
    pub fn make_dir(&self, path: &Path, mode: u32) -> Result<()> {
        std::fs::create_dir_all(path).map_err(LocalError::path("create", path))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .map_err(LocalError::path("set the mode of", path))?;
        self.give(path)
    }

    /// Makes the account the owner of `path`.
    pub fn give(&self, path: &Path) -> Result<()> {
        match &self.account {
            Some(a) => {
                chown(path, Some(a.uid), Some(a.gid)).map_err(LocalError::path("change the owner of", path))
            }
            None => Ok(()),
        }
    }

    /// Makes a fresh data directory at `dir` with the system tables. Root signs in without a password: to
    /// anybody on this machine's loopback if `open`, else only the system's root over the Unix socket.
    pub fn make_template(&self, dir: &Path, open: bool) -> Result<()> {
        // Not the machine's: a server that starts removes all temporary tables that it finds there, also those of another
        // one that is just being installed.
        let tmpdir = dir.with_extension("tmp");
        self.make_dir(&tmpdir, 0o700)?;
        let mut command = Command::new(&self.install_db);
        command
            .env("TMPDIR", &tmpdir)
            .arg("--no-defaults")
            .arg(format!("--datadir={}", dir.display()))
            .arg(format!("--auth-root-authentication-method={}", if open { "normal" } else { "socket" }))
            // Without --force it wants the machine's host name to be in the DNS or /etc/hosts.
            .args(["--force", "--skip-test-db", "--skip-name-resolve", "--innodb-log-file-size=32M"]);
        if let Some(a) = &self.account {
            command.arg(format!("--user={}", a.name));
        }
        run_to_end(&mut command)?;
        std::fs::remove_dir_all(&tmpdir).map_err(LocalError::path("remove", &tmpdir))
    }

    /// Copies a data directory made by [`Installation::make_template`] to `to`, which must not exist yet.
    pub fn copy_template(&self, from: &Path, to: &Path) -> Result<()> {
        let mut command = Command::new("cp");
        command.args(["-a", "--reflink=auto", "--sparse=always"]).arg(from).arg(to);
        run_to_end(&mut command).map(|_| ())
    }

    /// Copies a provider to `to`, where the servers' account can read it and no later build replaces it under
    /// a running server.
    pub fn copy_provider(&self, from: &Path, to: &Path) -> Result<()> {
        if !from.is_file() {
            return Err(LocalError::Missing {
                what: format!("the provider {}", from.display()),
                hint: "build it with `cargo build --release -p lockstep-wsrep`, or name another".into(),
            });
        }
        // A new file, never the old one overwritten: a server may have that mapped.
        let fresh = to.with_extension("new");
        std::fs::copy(from, &fresh).map_err(LocalError::path("copy the provider to", &fresh))?;
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o644))
            .and_then(|()| std::fs::rename(&fresh, to))
            .map_err(LocalError::path("put the provider at", to))
    }
}

/// Whether this process may act as root.
pub fn is_root() -> Result<bool> {
    let me = std::fs::metadata("/proc/self").map_err(LocalError::io("read /proc/self"))?;
    Ok(me.uid() == 0)
}

fn account(name: &str) -> Result<Account> {
    let missing = || LocalError::Missing {
        what: format!("the account {name}"),
        hint: "run scripts/setup.sh: Debian's mariadb-server creates it".into(),
    };
    let output = Command::new("getent")
        .args(["passwd", name])
        .output()
        .map_err(LocalError::io("run getent to look up an account"))?;
    let line = String::from_utf8_lossy(&output.stdout);
    let mut fields = line.trim().split(':').skip(2);
    let mut number = || fields.next().and_then(|f| f.parse().ok()).ok_or_else(missing);
    Ok(Account { name: name.to_owned(), uid: number()?, gid: number()? })
}

/// The path of a program in `PATH`, or where Debian puts servers.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // A plain account's PATH has no sbin, where Debian puts the server.
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// This program, found also where root's PATH has no sbin, as after Debian's `su`.
pub fn command(name: &str) -> Command {
    find_program(name).map_or_else(|| Command::new(name), Command::new)
}

/// The program, to be run by what these words start, if there are any: `ip netns exec NAME`, `taskset -c 0`.
pub fn prefixed(words: &[String], program: &Path) -> Command {
    let Some((first, rest)) = words.split_first() else { return Command::new(program) };
    let mut command = Command::new(first);
    command.args(rest).arg(program);
    command
}

/// Runs a program to its end; its output is returned, or, if it fails, the end of it is the error.
pub fn run_to_end(command: &mut Command) -> Result<String> {
    let line = format!("{command:?}");
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| LocalError::Io { what: format!("run `{line}`"), source })?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        Ok(text)
    } else {
        Err(LocalError::Command { command: line, output: last_lines(&text, 30) })
    }
}

/// The last `count` lines of `text`.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// What an error log says of its last start, in at most `count` lines: errors and warnings and the last few lines, without
/// the blocks that views are printed as.
pub(crate) fn telling_lines(text: &str, count: usize) -> String {
    const LAST: usize = 8;
    let all: Vec<&str> = text.lines().collect();
    let start = all.iter().rposition(|line| line.contains(" as process ")).unwrap_or(0);
    let mut in_view = false;
    let mut lines = Vec::new();
    for line in &all[start..] {
        let rule = line.trim_end().ends_with("================");
        in_view = match (rule, in_view) {
            (true, inside) => !inside,
            // A block's lines have no date.
            (false, inside) => inside && !line.starts_with("20"),
        };
        if !rule && !in_view {
            lines.push(*line);
        }
    }
    let last = lines.len().saturating_sub(LAST);
    let tells = |line: &str| ["[ERROR]", "[Warning]", "ERROR"].iter().any(|word| line.contains(word));
    let telling: Vec<&str> = lines
        .iter()
        .enumerate()
        .filter(|(at, line)| *at >= last || tells(line))
        .map(|(_, line)| *line)
        .collect();
    telling[telling.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_start_reason_is_found_in_log() {
        let mut log = String::from(
            "2026-01-01 [ERROR] of the start before\n2026-01-02 [Note] Starting MariaDB as process 5\n",
        );
        log.push_str("2026-01-02 [ERROR] WSREP: wrong\n2026-01-02 [Note] WSREP: ================\nView:\n  id: x\n  members(1):\n");
        log.push_str("=================================================\n");
        for n in 0..30 {
            log.push_str(&format!("2026-01-02 [Note] line {n}\n"));
        }
        let text = telling_lines(&log, 25);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 9, "{text}");
        assert_eq!((lines[0], lines[8]), ("2026-01-02 [ERROR] WSREP: wrong", "2026-01-02 [Note] line 29"));
        assert_eq!(telling_lines("one\n2026 view ================\nView:\n id: x\n", 5), "one");
        assert_eq!(telling_lines(&"2026 [ERROR] x\n".repeat(100), 5).lines().count(), 5);
    }
}
