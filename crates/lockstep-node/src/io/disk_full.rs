//! After a failure of the log: waits until its disk accepts writes again, so that a new start can succeed.
//!
//! If the server ended at once, its supervisor would start it on the full disk. It would refuse to start, and supervisors
//! do not repeat a refused start. So the failed process waits instead, and refuses all calls.

use crate::api::{EndServer, Level, Logger, ServerEnd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often the disk is tried.
const TRY_EVERY: Duration = Duration::from_secs(2);
/// How often the log has a line while the disk still fails.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// Tries until `bytes` can be allocated and synced in `dir`, then ends the server. Not on the caller's thread: the disk may
/// hang. `given_up`: whether the node has ended, so that this is no longer needed.
pub(crate) fn end_when_there_is(
    dir: PathBuf,
    bytes: u64,
    logger: Logger,
    end: EndServer,
    given_up: impl Fn() -> bool + Send + 'static,
) {
    let said = logger.clone();
    let wait = move || {
        let mut spoken: Option<Instant> = None;
        loop {
            // Also before the first try: clients get their answers, and peers learn that this member leaves.
            std::thread::sleep(TRY_EVERY);
            if given_up() {
                return;
            }
            match lockstep_log::try_space(&dir, bytes) {
                Ok(()) => break,
                Err(error) if spoken.is_none_or(|at| at.elapsed() >= SAY_EVERY) => {
                    spoken = Some(Instant::now());
                    logger(
                        Level::Error,
                        &format!(
                            "this member refuses everything until {} MiB can be written in {} ({error}): see to it, and it \
                             comes back by itself",
                            bytes >> 20,
                            dir.display()
                        ),
                    );
                }
                Err(_) => {}
            }
        }
        if !given_up() {
            end(ServerEnd::LogFailed, "the log could not be written, and its disk takes writes now");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("ls-room".into()).spawn(wait) {
        said(
            Level::Error,
            &format!("no thread can be started that waits for room: {error}; restart this server"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex};

    /// The disk here is a folder that is missing at first.
    #[test]
    fn server_ends_once_log_is_writable_again() {
        let parent = std::env::temp_dir().join(format!("lockstep-room-{}", std::process::id()));
        let dir = parent.join("log");
        let _ = std::fs::remove_dir_all(&parent);
        std::fs::create_dir(&parent).unwrap();
        let (sender, ends) = channel();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let said = lines.clone();
        let logger: Logger = Arc::new(move |_, text: &str| said.lock().unwrap().push(text.to_string()));
        let sender = Mutex::new(sender);
        let end: EndServer = Arc::new(move |why, _| sender.lock().unwrap().send(why).unwrap());
        end_when_there_is(dir.clone(), 1 << 20, logger.clone(), end.clone(), || false);
        assert!(ends.recv_timeout(3 * TRY_EVERY).is_err(), "there is no room");
        std::fs::create_dir(&dir).unwrap();
        assert_eq!(ends.recv_timeout(10 * TRY_EVERY).unwrap(), ServerEnd::LogFailed);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "nothing is left of the attempts");
        let lines = lines.lock().unwrap().clone();
        assert!(lines.len() == 1 && lines[0].contains("until 1 MiB can be written"), "{lines:?}");
        end_when_there_is(dir, 1 << 20, logger, end, || true);
        assert!(ends.recv_timeout(2 * TRY_EVERY).is_err(), "the node is gone");
        std::fs::remove_dir_all(&parent).unwrap();
    }
}
