//! The checks' view of the machine. [`Machine`] is a trait, so that tests can use a fake machine.

use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use lockstep_node::net::{TlsError, TlsFiles, TlsIdentity};

use super::accounts::getent;
use super::installed::{self, Known, Printed, Reaction, RunAs};

/// The kind of a provider file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Library {
    Lockstep,
    Galera,
    /// Another library or a program.
    Other,
    /// The file is not a library.
    Nothing,
    /// The file cannot be read, with the reason.
    Unreadable(String),
}

/// The state of a directory for the server's account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Directory {
    /// The server's account owns the directory.
    Own {
        /// Free bytes of its file system, if known.
        free: Option<u64>,
        /// Bytes of a log in it.
        log: u64,
    },
    /// The directory belongs to this other account.
    Others(String),
    Missing,
    /// The directory cannot be examined, with the reason.
    Unreadable(String),
}

/// Whether the server's account can use certificate, key and authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Keys {
    /// The account can use them.
    Usable {
        /// A warning about the certificate.
        warning: Option<String>,
        /// Every account can read the key.
        exposed: bool,
    },
    /// The account cannot use them, with the reason.
    Unusable(String),
    /// The user of this command may not read them.
    NotSeen(String),
}

pub(super) trait Machine {
    /// The installed server's options. `None` if no server of the right version is installed.
    fn server_prints(&self, run_as: &RunAs) -> Option<Printed>;
    /// That server's verdict on an option as it is written in the file.
    fn server_knows(&self, run_as: &RunAs, written: &str, value: Option<&str>) -> Known;
    /// That server's reaction to these arguments.
    fn server_reaction(&self, run_as: &RunAs, arguments: &[String]) -> Option<Reaction>;
    /// Certificate, key and authority.
    fn keys(&self, files: &TlsFiles, account: &str) -> Keys;
    fn has_program(&self, name: &str) -> bool;
    fn library(&self, path: &Path) -> Library;
    fn directory(&self, path: &Path, account: &str) -> Directory;
    /// Whether a process listens on this port.
    fn is_taken(&self, address: IpAddr, port: u16) -> bool;
    /// The machine's addresses except loopback. Empty if they are unknown.
    fn addresses(&self) -> Vec<IpAddr>;
    /// The addresses of a host name.
    fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, String>;
    /// Whether a server runs in this data directory.
    fn runs_in(&self, datadir: &Path) -> bool;
    /// The first port of the system's range for outgoing connections.
    fn first_ephemeral_port(&self) -> u16;
    fn processors(&self) -> usize;
    fn is_readable_for_all(&self, path: &Path) -> bool;
    fn is_executable(&self, path: &Path) -> bool;
}

/// The machine that runs this command.
pub(super) struct ThisMachine {
    /// Whether the option files are for the server that is installed here, so that it may be run.
    pub(super) has_server: bool,
}

/// Timeout for the resolution of a host name.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// A larger file is not a provider.
const LIBRARY_MAX: u64 = 512 << 20;

/// A certificate that expires within this time causes a warning.
const EXPIRES_SOON: Duration = Duration::from_secs(30 * 86_400);

impl Machine for ThisMachine {
    fn server_prints(&self, run_as: &RunAs) -> Option<Printed> {
        self.has_server.then(|| installed::printed(run_as)).flatten()
    }

    fn server_knows(&self, run_as: &RunAs, written: &str, value: Option<&str>) -> Known {
        if self.has_server { installed::knows(run_as, written, value) } else { Known::Yes }
    }

    fn server_reaction(&self, run_as: &RunAs, arguments: &[String]) -> Option<Reaction> {
        self.has_server.then(|| installed::reaction(run_as, arguments)).flatten()
    }

    fn keys(&self, files: &TlsFiles, account: &str) -> Keys {
        let numbers = getent(account);
        let paths = [("socket.ssl_cert", &files.cert), ("socket.ssl_key", &files.key)];
        for (option, path) in paths.into_iter().chain(files.ca.as_ref().map(|ca| ("socket.ssl_ca", ca))) {
            let found = match std::fs::metadata(path) {
                Ok(found) => found,
                Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                    return Keys::NotSeen(format!("{option}: cannot examine {}", path.display()));
                }
                Err(e) => return Keys::Unusable(format!("{option}: cannot read {}: {e}", path.display())),
            };
            // The account may have the group's rights through a secondary group, so a group's read right counts.
            let mode = found.permissions().mode();
            let owns = numbers.as_ref().is_none_or(|(number, ..)| found.uid() == *number);
            if account != "root" && !(owns && mode & 0o400 != 0 || mode & 0o044 != 0) {
                return Keys::Unusable(format!(
                    "{option}: the server's account cannot read {0}: run chown {account} {0}",
                    path.display()
                ));
            }
        }
        match TlsIdentity::load(files) {
            Ok(identity) => Keys::Usable {
                warning: identity.warning(EXPIRES_SOON),
                exposed: self.is_readable_for_all(&files.key),
            },
            Err(TlsError::Read(option, path, e)) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                Keys::NotSeen(format!("{option}: this account cannot read {}", path.display()))
            }
            Err(e) => Keys::Unusable(e.to_string()),
        }
    }

    fn has_program(&self, name: &str) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let usual = ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin"].map(Into::into);
        std::env::split_paths(&path).chain(usual).any(|dir| dir.join(name).is_file())
    }

    fn library(&self, path: &Path) -> Library {
        let read = || -> std::io::Result<Library> {
            if std::fs::metadata(path)?.len() > LIBRARY_MAX {
                return Ok(Library::Other);
            }
            let bytes = std::fs::read(path)?;
            let holds = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
            Ok(match bytes.starts_with(b"\x7fELF") {
                false => Library::Nothing,
                true if holds(b"(lockstep-") => Library::Lockstep,
                true if holds(b"gcache.page_size") => Library::Galera,
                true => Library::Other,
            })
        };
        read().unwrap_or_else(|e| Library::Unreadable(e.to_string()))
    }

    fn directory(&self, path: &Path, account: &str) -> Directory {
        let found = match std::fs::metadata(path) {
            Ok(found) if !found.is_dir() => return Directory::Unreadable("it is not a directory".into()),
            Ok(found) => found,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Directory::Missing,
            Err(e) => return Directory::Unreadable(e.to_string()),
        };
        let numbers = getent(account);
        if let Some((number, ..)) = &numbers
            && found.uid() != *number
        {
            let owner =
                getent(&found.uid().to_string()).map_or_else(|| found.uid().to_string(), |(.., name)| name);
            return Directory::Others(owner);
        }
        let free = rustix::fs::statvfs(path).ok().map(|s| s.f_bavail.saturating_mul(s.f_frsize));
        let is_log = |name: &str| name.starts_with("lockstep.") && name.ends_with(".log");
        let files = std::fs::read_dir(path).into_iter().flatten().flatten();
        let logs = files.filter(|file| is_log(&file.file_name().to_string_lossy()));
        let log = logs.filter_map(|file| file.metadata().ok()).map(|m| m.len()).sum();
        Directory::Own { free, log }
    }

    fn is_taken(&self, address: IpAddr, port: u16) -> bool {
        let bound = TcpListener::bind(SocketAddr::new(address, port));
        bound.is_err_and(|e| e.kind() == std::io::ErrorKind::AddrInUse)
    }

    fn addresses(&self) -> Vec<IpAddr> {
        let Ok(output) = Command::new("hostname").arg("-I").output() else { return Vec::new() };
        String::from_utf8_lossy(&output.stdout)
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect()
    }

    fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        let (sender, answer) = mpsc::channel();
        let name = name.to_owned();
        std::thread::spawn(move || {
            let found = (name.as_str(), 0u16).to_socket_addrs();
            // The receiver does not exist any more after the timeout.
            let _ = sender.send(found.map(|f| f.map(|a| a.ip()).collect()).map_err(|e| e.to_string()));
        });
        answer
            .recv_timeout(RESOLVE_TIMEOUT)
            .unwrap_or_else(|_| Err(format!("no answer within {} s", RESOLVE_TIMEOUT.as_secs())))
    }

    fn runs_in(&self, datadir: &Path) -> bool {
        // A server with Galera's library has no such socket. Its working directory is the data directory.
        std::os::unix::net::UnixStream::connect(datadir.join("lockstep.sock")).is_ok()
            || lockstep_local::Server::runs_in(datadir)
    }

    fn first_ephemeral_port(&self) -> u16 {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
        range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(32_768)
    }

    fn processors(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    fn is_readable_for_all(&self, path: &Path) -> bool {
        std::fs::metadata(path).is_ok_and(|m| m.permissions().mode() & 0o004 != 0)
    }

    fn is_executable(&self, path: &Path) -> bool {
        std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A fake machine for tests. Everything is present and correct, except as configured.
    pub(in crate::check) struct Fake {
        pub(in crate::check) lacks: Vec<&'static str>,
        pub(in crate::check) library: Library,
        pub(in crate::check) directories: BTreeMap<&'static str, Directory>,
        pub(in crate::check) taken: Vec<u16>,
        pub(in crate::check) addresses: Vec<&'static str>,
        pub(in crate::check) unresolved: Vec<&'static str>,
        pub(in crate::check) runs: bool,
        pub(in crate::check) readable: bool,
        pub(in crate::check) keys: Keys,
        /// The options of its server. Empty if no server is installed.
        pub(in crate::check) options: Vec<&'static str>,
    }

    impl Default for Fake {
        fn default() -> Fake {
            Fake {
                lacks: Vec::new(),
                library: Library::Lockstep,
                directories: BTreeMap::new(),
                taken: Vec::new(),
                addresses: vec!["10.0.0.1"],
                unresolved: Vec::new(),
                runs: false,
                readable: false,
                keys: Keys::Usable { warning: None, exposed: false },
                options: Vec::new(),
            }
        }
    }

    impl Machine for Fake {
        fn server_prints(&self, run_as: &RunAs) -> Option<Printed> {
            let mut options: Vec<String> = self.options.iter().map(|&name| name.to_owned()).collect();
            if options.is_empty() {
                return None;
            }
            let mut not_loaded = Vec::new();
            for plugin in &run_as.plugins {
                match plugin.split_once('=') {
                    Some((_, "server_audit")) => {
                        options.extend(["server_audit_logging", "server_audit_events"].map(str::to_owned));
                    }
                    Some((_, name)) => not_loaded.push((format!("{name}.so"), "no such file".to_owned())),
                    None => {}
                }
            }
            Some(Printed { options, not_loaded })
        }
        fn server_knows(&self, _: &RunAs, written: &str, value: Option<&str>) -> Known {
            match written {
                "innodb_file_format" => Known::Removed,
                // A hidden option.
                "sync_frm" => Known::Yes,
                "max_con" | "wsrep_s" | "loose_wsrep_s" => Known::Ambiguous,
                "max_connectio" | "wsrep_slave_thread" => Known::Yes,
                "port" if value.is_some_and(|v| v.starts_with('"')) => Known::BadValue,
                "socket" => Known::Yes,
                _ => Known::No,
            }
        }
        /// The server ends at once at a numeric option with a bad value, and at its last option for other bad values.
        fn server_reaction(&self, _: &RunAs, arguments: &[String]) -> Option<Reaction> {
            let mut reaction = Reaction::default();
            for argument in arguments {
                let (name, value) =
                    argument.trim_start_matches("--").split_once('=').unwrap_or((argument, ""));
                let name = name.strip_prefix("loose_").unwrap_or(name);
                let line = match (name, value) {
                    ("port" | "max_connect" | "max_connectio", "abc") => {
                        let name = if name == "max_connectio" { "max_connections" } else { name };
                        let error_log =
                            format!("[ERROR] mariadbd: Error while setting value 'abc' to '{name}'\n");
                        return Some(Reaction { refused: true, error_log });
                    }
                    ("sql_mode", "foo") => {
                        reaction.refused = true;
                        "[ERROR] mariadbd: Error while setting value 'foo' to 'sql_mode'\n"
                    }
                    ("character_set_server", "foo") => {
                        reaction.refused = true;
                        "mariadbd: Character set 'foo' is not a compiled character set\n"
                    }
                    ("skip_slave_start", "maybe") => {
                        "[Warning] option 'skip_slave_start': boolean value 'maybe' wasn't recognized. Set to OFF.\n"
                    }
                    _ => "",
                };
                reaction.error_log.push_str(line);
            }
            Some(reaction)
        }
        fn keys(&self, _: &TlsFiles, _: &str) -> Keys {
            self.keys.clone()
        }
        fn has_program(&self, name: &str) -> bool {
            !self.lacks.contains(&name) && name != "wsrep_sst_carrier_pigeon"
        }
        fn library(&self, _: &Path) -> Library {
            self.library.clone()
        }
        fn directory(&self, path: &Path, _: &str) -> Directory {
            let own = Directory::Own { free: Some(100 << 30), log: 0 };
            self.directories.get(path.to_str().unwrap()).cloned().unwrap_or(own)
        }
        fn is_taken(&self, _: IpAddr, port: u16) -> bool {
            self.taken.contains(&port)
        }
        fn addresses(&self) -> Vec<IpAddr> {
            self.addresses.iter().map(|a| a.parse().unwrap()).collect()
        }
        fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, String> {
            match self.unresolved.contains(&name) {
                true => Err("name not known".into()),
                false => Ok(vec!["10.0.0.2".parse().unwrap()]),
            }
        }
        fn runs_in(&self, _: &Path) -> bool {
            self.runs
        }
        fn first_ephemeral_port(&self) -> u16 {
            32_768
        }
        fn processors(&self) -> usize {
            4
        }
        fn is_readable_for_all(&self, _: &Path) -> bool {
            self.readable
        }
        fn is_executable(&self, _: &Path) -> bool {
            false
        }
    }

    #[test]
    fn this_machine_answers() {
        let here = ThisMachine { has_server: true };
        assert!(here.has_program("sh") && !here.has_program("no-such-program"));
        assert_eq!(here.library(Path::new("/bin/sh")), Library::Other);
        assert_eq!(here.library(Path::new("/etc/passwd")), Library::Nothing);
        assert!(matches!(here.library(Path::new("/nonexistent")), Library::Unreadable(_)));
        assert_eq!(here.directory(Path::new("/nonexistent"), "root"), Directory::Missing);
        assert!(matches!(here.directory(Path::new("/proc/sys"), "root"), Directory::Own { .. }));
        assert_eq!(here.directory(Path::new("/proc/sys"), "daemon"), Directory::Others("root".into()));
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = held.local_addr().unwrap();
        assert!(here.is_taken(at.ip(), at.port()));
        assert!(here.resolve("localhost").is_ok());
        assert!(
            here.is_executable(Path::new("/bin/sh")) && here.is_readable_for_all(Path::new("/etc/passwd"))
        );
    }
}
