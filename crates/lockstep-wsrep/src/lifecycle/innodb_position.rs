//! Where InnoDB stands after a crash.
//!
//! A server that is started plainly does not say: it starts the provider before it opens InnoDB, and `grastate.dat` has
//! no seqno while a server runs. A copy of the database for want of a number would be absurd, so the provider does what
//! the `galera_recovery` script does. It runs the server's own program with its own arguments and `--wsrep-recover`.
//! That replays InnoDB's redo log, prints the position and exits. InnoDB must not be open in this process then; with
//! the state-transfer methods that copy files it is not.

use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use lockstep_node::core::{Gtid, Uuid};

/// Replaying a large redo log takes its time; beyond this something hangs.
const TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// How often a line says that it goes on.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// Where the recovery run writes its log; a name that state-transfer scripts spare.
const OUTPUT: &str = "lockstep.recovery.log";

/// Why InnoDB's position is not known; one line each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NoPosition {
    /// The database has no position, or InnoDB cannot recover it, or not in time.
    Unknown(String),
    /// The recovery run did not take place, or was ended. That says nothing about the database.
    NotRun(String),
}

/// InnoDB's position, found by a run of the server's own recovery.
///
/// # Errors
/// [`NoPosition`]. The database is as it was, or recovered.
pub(crate) fn position(data_dir: &Path, mut say: impl FnMut(String)) -> Result<Gtid, NoPosition> {
    let unread = |what: &str, error: io::Error| NoPosition::NotRun(format!("{what} cannot be read: {error}"));
    if innodb_is_open().map_err(|e| unread("/proc/self/fd", e))? {
        return Err(NoPosition::Unknown("InnoDB is open in this server already".into()));
    }
    let arguments = own_arguments().map_err(|e| unread("/proc/self/cmdline", e))?;
    let output = data_dir.join(OUTPUT);
    let _ = std::fs::remove_file(&output);
    run(arguments, &output, &mut say)?;
    let bytes = std::fs::read(&output).map_err(|e| unread(&output.display().to_string(), e))?;
    match recovered(&String::from_utf8_lossy(&bytes)) {
        Some(gtid) => {
            let _ = std::fs::remove_file(&output);
            Ok(gtid)
        }
        None => {
            let text = format!("the server's recovery run printed no position: see {}", output.display());
            Err(NoPosition::Unknown(text))
        }
    }
}

/// The server's arguments without those that would make the run another one than a recovery.
fn own_arguments() -> io::Result<Vec<std::ffi::OsString>> {
    let mut raw = Vec::new();
    std::fs::File::open("/proc/self/cmdline")?.read_to_end(&mut raw)?;
    let arguments = raw.split(|byte| *byte == 0).skip(1).filter(|argument| !argument.is_empty());
    Ok(arguments
        .filter(|argument| {
            let text = String::from_utf8_lossy(argument).replace('_', "-");
            !["--wsrep-new-cluster", "--wsrep-start-position", "--log-error", "--daemonize"]
                .iter()
                .any(|drop| text.starts_with(drop))
        })
        .map(|argument| std::ffi::OsString::from_vec(argument.to_vec()))
        .collect())
}

fn run(
    arguments: Vec<std::ffi::OsString>,
    output: &Path,
    say: &mut impl FnMut(String),
) -> Result<(), NoPosition> {
    let began = Instant::now();
    let log_error = {
        let mut text = std::ffi::OsString::from("--log-error=");
        // The run changes into the data directory, as this server did.
        text.push(std::path::absolute(output).as_deref().unwrap_or(output));
        text
    };
    let mut child = Command::new("/proc/self/exe")
        .args(arguments)
        .arg("--wsrep-recover")
        .arg(log_error)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| not_started(&e))?;
    let mut said = began;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return ended(status, output),
            Ok(None) => {}
            Err(error) => {
                end(&mut child);
                let text = format!("the server's recovery run cannot be waited for: {error}");
                return Err(NoPosition::NotRun(text));
            }
        }
        if began.elapsed() > TIMEOUT {
            end(&mut child);
            let text = format!("the server's recovery run took more than {} s", TIMEOUT.as_secs());
            // The next run would not end either.
            return Err(NoPosition::Unknown(text));
        }
        if said.elapsed() > SAY_EVERY {
            said = Instant::now();
            say(format!("a recovery run determines InnoDB's position ({} s)", began.elapsed().as_secs()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A program that was replaced or removed is not there at the next start either; memory may be.
fn not_started(error: &io::Error) -> NoPosition {
    let text = format!("the server's recovery run cannot be started: {error}");
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => NoPosition::Unknown(text),
        _ => NoPosition::NotRun(text),
    }
}

/// The result of a run that has ended. InnoDB ends a failed recovery with an exit code or an abort; another process may
/// have killed the run.
fn ended(status: ExitStatus, output: &Path) -> Result<(), NoPosition> {
    let text = || format!("the server's recovery run failed ({status}): see {}", output.display());
    match status.signal() {
        Some(libc::SIGKILL | libc::SIGTERM) => Err(NoPosition::NotRun(text())),
        _ if status.success() => Ok(()),
        _ => Err(NoPosition::Unknown(text())),
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Whether this process has InnoDB's system tablespace open.
fn innodb_is_open() -> io::Result<bool> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Ok(target) = entry.and_then(|e| std::fs::read_link(e.path())) else { continue };
        if target.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ibdata")) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The position in the lines of a recovery run; the last one counts.
pub(crate) fn recovered(text: &str) -> Option<Gtid> {
    let line = text.lines().rfind(|line| line.contains("Recovered position:"))?;
    let (_, position) = line.split_once("Recovered position:")?;
    // A domain and server id may follow, separated by commas.
    let position = position.trim().split(',').next()?;
    let (uuid, seqno) = position.rsplit_once(':')?;
    let gtid = Gtid { uuid: Uuid::parse(uuid.trim())?, seqno: seqno.trim().parse().ok()? };
    gtid.is_defined().then_some(gtid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn killed_recovery_run_says_nothing_about_the_database() {
        let of = |raw| ended(ExitStatus::from_raw(raw), Path::new("/data/lockstep.recovery.log"));
        assert_eq!(of(0), Ok(()));
        for (raw, killed) in
            [(libc::SIGKILL, true), (libc::SIGTERM, true), (libc::SIGABRT, false), (1 << 8, false)]
        {
            let result = of(raw);
            assert_eq!(matches!(result, Err(NoPosition::NotRun(_))), killed, "{result:?}");
            assert_eq!(matches!(result, Err(NoPosition::Unknown(_))), !killed, "{result:?}");
        }
    }

    #[test]
    fn missing_program_does_not_refuse_each_start() {
        let of = |errno| not_started(&io::Error::from_raw_os_error(errno));
        assert!(matches!(of(libc::ENOENT), NoPosition::Unknown(_)));
        assert!(matches!(of(libc::ENOMEM), NoPosition::NotRun(_)));
    }

    #[test]
    fn position_is_parsed_from_recovery_log() {
        let uuid = "67979488-65c4-4b96-8f0c-8a95dde9d56c";
        let text = format!(
            "2026-11-21  4:37:21 0 [Note] InnoDB: log sequence number 1\n\
             2026-11-21  4:37:21 0 [Note] WSREP: Recovered position: {uuid}:42\n"
        );
        let found = recovered(&text).unwrap();
        assert_eq!(found.to_string(), format!("{uuid}:42"));
        assert_eq!(recovered(&text.replace(":42", ":42,0-1-7")), Some(found));
        assert_eq!(recovered("WSREP: Recovered position: 00000000-0000-0000-0000-000000000000:-1"), None);
        assert_eq!(recovered("nothing"), None);
    }
}
