//! The end of the process while its disk hangs, if `ls-node` cannot carry it out itself.
//!
//! The server's error log may be on the hung disk, so that `ls-node` hangs with its next line. Then the server would stay
//! up, and its clients would wait. So while the disk hangs, a short-lived thread waits for the time at which the process is
//! to end. It touches no file.

use crate::api::{EndServer, ServerEnd};
use lockstep_core::Micros;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often the thread looks at the time. A sleep counts as this long even if it was longer: while the whole process is
/// stopped, it cannot be the disk that hangs.
const CHECK_EVERY: Duration = Duration::from_millis(200);
/// `ls-node` has this much longer to end the process itself.
const GRACE: Micros = 3_000_000;
/// No end is due.
const NEVER: u64 = u64::MAX;

/// See the module.
#[derive(Debug)]
pub(crate) struct HungDisk {
    /// When the process is to have ended, by the clock of `ls-node`.
    due: Arc<AtomicU64>,
    /// The begin of that clock.
    origin: Instant,
}

impl HungDisk {
    pub(crate) fn new(origin: Instant) -> HungDisk {
        HungDisk { due: Arc::new(AtomicU64::new(NEVER)), origin }
    }

    /// In each round, before anything is logged. `ends_by`: when this member leaves because its disk hangs, if it does.
    pub(crate) fn set(&self, ends_by: Option<Micros>, end: Option<&EndServer>) {
        let due = ends_by.map_or(NEVER, |at| at.saturating_add(GRACE));
        let before = self.due.swap(due, Ordering::AcqRel);
        if before != NEVER || due == NEVER {
            return;
        }
        let Some(end) = end.cloned() else { return };
        let (due, mut now) = (self.due.clone(), self.origin.elapsed());
        // Without a thread, `ls-node` alone ends the process.
        let _ = std::thread::Builder::new().name("ls-hung".into()).spawn(move || {
            loop {
                std::thread::sleep(CHECK_EVERY);
                now += CHECK_EVERY;
                match due.load(Ordering::Acquire) {
                    NEVER => return,
                    due if now.as_micros() as Micros >= due => break,
                    _ => {}
                }
            }
            end(
                ServerEnd::DiskHangs,
                "a write of the log has not ended for long, and this member cannot leave in order",
            );
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};

    fn end() -> (EndServer, Receiver<ServerEnd>) {
        let (sender, ends) = channel();
        let sender = Mutex::new(sender);
        (Arc::new(move |why, _: &str| sender.lock().unwrap().send(why).unwrap()), ends)
    }

    #[test]
    fn process_ends_if_node_thread_hangs() {
        let (end, ends) = end();
        let hung = HungDisk::new(Instant::now());
        hung.set(Some(1), Some(&end));
        assert_eq!(ends.recv_timeout(Duration::from_micros(3 * GRACE)).unwrap(), ServerEnd::DiskHangs);
    }

    #[test]
    fn process_stays_if_disk_works_in_time() {
        let (end, ends) = end();
        let hung = HungDisk::new(Instant::now());
        hung.set(Some(1), Some(&end));
        hung.set(None, Some(&end));
        assert!(ends.recv_timeout(Duration::from_micros(GRACE) + 3 * CHECK_EVERY).is_err());
    }
}
