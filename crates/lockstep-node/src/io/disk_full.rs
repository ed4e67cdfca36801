//! After a failure of the log because its disk is full: waits until the disk accepts writes again, so that a new start can
//! succeed.
//!
//! If the server ended at once, its supervisor would start it on the full disk. It would refuse to start, and supervisors
//! do not repeat a refused start. So the failed process waits instead, and refuses all calls. It waits only
//! for a full disk, on which an operator frees space. A disk that fails otherwise needs a repair.

use crate::api::{EndServer, Level, Logger, ServerEnd};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often the disk is tried.
const TRY_EVERY: Duration = Duration::from_secs(2);
/// How often the log has a line while the disk is full.
const SAY_EVERY: Duration = Duration::from_secs(60);
/// After so many attempts in a row that failed for another reason than a full disk, the process ends. One such attempt may
/// have failed for want of a file descriptor.
const OTHER_FAILURES: u32 = 3;

/// Tries until `bytes` can be allocated and synced in `dir`, or the disk fails otherwise, then ends the server. Not on the
/// caller's thread: the disk may hang. `given_up`: whether the node has ended, so that this is no longer needed.
pub(crate) fn end_when_there_is(
    dir: PathBuf,
    bytes: u64,
    logger: Logger,
    end: EndServer,
    given_up: impl Fn() -> bool + Send + 'static,
) {
    let said = logger.clone();
    let wait = move || {
        let text = format!("until {} MiB can be written in {}", bytes >> 20, dir.display());
        let reason = wait_for_space(|| lockstep_log::try_space(&dir, bytes), &text, &logger, &given_up);
        if let Some(reason) = reason {
            end(ServerEnd::LogFailed, &reason);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("ls-room".into()).spawn(wait) {
        said(
            Level::Error,
            &format!("no thread can be started that waits for room: {error}; restart this server"),
        );
    }
}

/// The reason to end the server; `None` if the node has ended.
fn wait_for_space(
    mut attempt: impl FnMut() -> io::Result<()>,
    until: &str,
    logger: &Logger,
    given_up: impl Fn() -> bool,
) -> Option<String> {
    let mut spoken: Option<Instant> = None;
    let mut other_failures = 0;
    loop {
        // Also before the first try: clients get their answers, and peers learn that this member leaves.
        std::thread::sleep(TRY_EVERY);
        if given_up() {
            return None;
        }
        let error = match attempt() {
            Ok(()) => {
                return (!given_up())
                    .then(|| "the log could not be written, and its disk takes writes now".to_owned());
            }
            Err(error) => error,
        };
        other_failures = if lockstep_log::is_disk_full(&error) { 0 } else { other_failures + 1 };
        if other_failures == OTHER_FAILURES {
            return Some(format!("the log could not be written, and its disk fails: {error}"));
        }
        if spoken.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
            spoken = Some(Instant::now());
            logger(
                Level::Error,
                &format!(
                    "this member refuses everything {until} ({error}): see to it, and it comes back by itself"
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex};

    type Lines = Arc<Mutex<Vec<String>>>;

    fn lines() -> (Logger, Lines) {
        let lines = Lines::default();
        let said = lines.clone();
        (Arc::new(move |_, text: &str| said.lock().unwrap().push(text.to_string())), lines)
    }

    /// The reason to end the server, and the number of lines, if the attempts end like this; the last one is repeated.
    fn waits(attempts: &[Option<io::ErrorKind>]) -> (Option<String>, usize) {
        let mut left = attempts.iter();
        let (logger, lines) = lines();
        let attempt = || match left.next().or(attempts.last()) {
            Some(Some(kind)) => Err(io::Error::from(*kind)),
            _ => Ok(()),
        };
        let reason = wait_for_space(attempt, "until", &logger, || false);
        let lines = lines.lock().unwrap();
        assert!(
            lines.iter().all(|line| line.starts_with("this member refuses everything until (")),
            "{lines:?}"
        );
        (reason, lines.len())
    }

    #[test]
    fn full_disk_is_waited_for() {
        use io::ErrorKind::{Other, QuotaExceeded, StorageFull};
        let full = [StorageFull, Other, Other, QuotaExceeded, Other, Other].map(Some);
        let (reason, lines) = waits(&[&full[..], &[None]].concat());
        assert!(reason.unwrap().contains("its disk takes writes now"));
        assert_eq!(lines, 1, "once a minute");
    }

    #[test]
    fn full_disk_that_becomes_read_only_ends_server() {
        use io::ErrorKind::{ReadOnlyFilesystem, StorageFull};
        let (reason, _) = waits(&[StorageFull, ReadOnlyFilesystem].map(Some));
        let reason = reason.unwrap();
        assert!(reason.contains("its disk fails: read-only filesystem"), "{reason}");
    }

    #[test]
    fn writable_directory_ends_server_unless_node_has_ended() {
        let dir = std::env::temp_dir().join(format!("lockstep-room-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        let (sender, ends) = channel();
        let (logger, _) = lines();
        let sender = Mutex::new(sender);
        let end: EndServer = Arc::new(move |why, _| sender.lock().unwrap().send(why).unwrap());
        end_when_there_is(dir.clone(), 1 << 20, logger.clone(), end.clone(), || false);
        assert_eq!(ends.recv_timeout(10 * TRY_EVERY).unwrap(), ServerEnd::LogFailed);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "nothing is left of the attempts");
        end_when_there_is(dir.clone(), 1 << 20, logger, end, || true);
        assert!(ends.recv_timeout(2 * TRY_EVERY).is_err(), "the node is gone");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
