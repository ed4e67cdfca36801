//! After a failure of the log because its disk is full, or no file descriptor is left: waits until the log's directory takes
//! writes again, so that a new start can succeed.
//!
//! If the server ended at once, its supervisor would start it on the full disk. It would refuse to start, and supervisors
//! do not repeat a refused start. So the failed process waits instead, and refuses all calls. It waits only for a
//! [`Shortage`], which an operator ends. A disk that fails otherwise needs a repair.

use crate::api::{EndServer, Level, Logger, ServerEnd};
use lockstep_log::Shortage;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// How often the directory is tried.
const TRY_EVERY: Duration = Duration::from_secs(2);
/// While the shortage lasts, the log has a line at the first of so many attempts: once a minute.
const SAY_EVERY: u32 = 30;
/// After so many attempts in a row that failed for another reason than a shortage, the process ends.
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
    try_every(TRY_EVERY, dir, bytes, logger, end, given_up);
}

fn try_every(
    interval: Duration,
    dir: PathBuf,
    bytes: u64,
    logger: Logger,
    end: EndServer,
    given_up: impl Fn() -> bool + Send + 'static,
) {
    let said = logger.clone();
    let wait = move || {
        let text = format!("until {} MiB can be written in {}", bytes >> 20, dir.display());
        let attempt = || lockstep_log::try_space(&dir, bytes);
        let pause = || std::thread::sleep(interval);
        if let Some(reason) = wait_for_space(attempt, pause, &text, &logger, &given_up) {
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
    mut pause: impl FnMut(),
    until: &str,
    logger: &Logger,
    given_up: impl Fn() -> bool,
) -> Option<String> {
    let (mut attempts, mut other_failures) = (0, 0);
    loop {
        // Also before the first try: clients get their answers, and peers learn that this member leaves.
        pause();
        if given_up() {
            return None;
        }
        let error = match attempt() {
            Ok(()) => {
                return (!given_up())
                    .then(|| "the log could not be written, and its directory takes writes now".to_owned());
            }
            Err(error) => error,
        };
        let shortage = Shortage::of(&error);
        other_failures = if shortage.is_some() { 0 } else { other_failures + 1 };
        if other_failures == OTHER_FAILURES {
            return Some(format!("the log could not be written, and its disk fails: {error}"));
        }
        if attempts % SAY_EVERY == 0 {
            let why = shortage.map_or_else(|| error.to_string(), |shortage| shortage.to_string());
            let text =
                format!("this member refuses everything {until} ({why}). Then it comes back by itself");
            logger(Level::Error, &text);
        }
        attempts += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex};

    const SHORT: Duration = Duration::from_millis(10);
    const LONG: Duration = Duration::from_secs(20);

    type Lines = Arc<Mutex<Vec<String>>>;

    fn lines() -> (Logger, Lines) {
        let lines = Lines::default();
        let said = lines.clone();
        (Arc::new(move |_, text: &str| said.lock().unwrap().push(text.to_string())), lines)
    }

    /// The reason to end the server, and the lines of the log, if the attempts fail with these errors and then succeed.
    fn waits(errors: &[Errno]) -> (String, Vec<String>) {
        let (mut left, mut pauses) = (errors.iter(), 0);
        let (logger, lines) = lines();
        let attempt = || left.next().map_or(Ok(()), |errno| Err((*errno).into()));
        let reason = wait_for_space(attempt, || pauses += 1, "until", &logger, || false);
        assert_eq!(pauses, errors.len() - left.len() + usize::from(left.len() == 0), "one before each");
        let lines = lines.lock().unwrap().clone();
        assert!(lines.iter().all(|line| line.starts_with("this member refuses everything until (")));
        (reason.unwrap(), lines)
    }

    #[test]
    fn full_disk_is_waited_for() {
        let full = [Errno::NOSPC, Errno::IO, Errno::IO, Errno::DQUOT, Errno::IO, Errno::IO];
        let (reason, lines) = waits(&full);
        assert!(reason.contains("its directory takes writes now"), "{reason}");
        let [line] = &lines[..] else { panic!("{lines:?}") };
        assert!(line.contains("(the disk is full: free space)"), "{line}");
        assert_eq!(waits(&[Errno::NOSPC; 61]).1.len(), 3, "once a minute");
    }

    #[test]
    fn descriptors_are_waited_for() {
        for (errno, remedy) in [(Errno::MFILE, "LimitNOFILE"), (Errno::NFILE, "fs.file-max")] {
            let (reason, lines) = waits(&[errno; 10]);
            assert!(reason.contains("its directory takes writes now"), "{reason}");
            assert!(lines.len() == 1 && lines[0].contains(remedy), "{lines:?}");
        }
    }

    #[test]
    fn full_disk_that_becomes_read_only_ends_server() {
        let (reason, _) = waits(&[Errno::NOSPC, Errno::ROFS, Errno::ROFS, Errno::ROFS, Errno::ROFS]);
        assert!(reason.contains("its disk fails: Read-only file system"), "{reason}");
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
        try_every(SHORT, dir.clone(), 1 << 20, logger.clone(), end.clone(), || false);
        assert_eq!(ends.recv_timeout(LONG).unwrap(), ServerEnd::LogFailed);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "nothing is left of the attempts");
        let (looks, looked) = channel();
        try_every(SHORT, dir.clone(), 1 << 20, logger, end, move || looks.send(()).is_ok());
        looked.recv_timeout(LONG).expect("it looks whether the node has ended");
        // The thread ends, and the sender with it.
        assert!(looked.recv_timeout(LONG).is_err() && ends.try_recv().is_err(), "the node is gone");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
