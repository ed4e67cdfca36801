//! The barrier of `lockstep verify`, which takes equal snapshots on all members. While it is closed, the thread whose turn
//! it is in commit order waits, and so do all threads behind it. Executing, ordering and applying continue.

use crate::apply::seqno_limit::SeqnoLimit;
use crate::sync::{Interrupt, Stop};
use lockstep_node::CommitBarrier;
use lockstep_node::core::{SEQNO_UNDEFINED, Seqno};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The longest wait, in case the node no longer exists. The node opens the barrier after 2.5 s.
const TIMEOUT: Duration = Duration::from_secs(4);

/// See the module.
pub(crate) struct SnapshotBarrier {
    limit: SeqnoLimit,
    /// A wait has timed out since the barrier was closed.
    broken: AtomicBool,
}

impl Default for SnapshotBarrier {
    fn default() -> SnapshotBarrier {
        SnapshotBarrier { limit: SeqnoLimit::new(SEQNO_UNDEFINED), broken: AtomicBool::new(false) }
    }
}

impl SnapshotBarrier {
    /// Waits while the barrier is closed for `seqno`. It is the turn of `seqno` in commit order.
    pub(crate) fn pass(&self, seqno: Seqno, interrupt: Option<&Interrupt>) -> Result<(), Stop> {
        match self.limit.pass(seqno, interrupt, Some(TIMEOUT)) {
            Err(Stop::TimedOut) => {
                self.broken.store(true, Ordering::SeqCst);
                self.limit.open();
                Ok(())
            }
            other => other,
        }
    }

    /// See [`SeqnoLimit::reset`].
    pub(crate) fn reset(&self, position: Seqno) {
        self.limit.reset(position);
    }
}

impl CommitBarrier for SnapshotBarrier {
    fn close(&self) -> Seqno {
        self.broken.store(false, Ordering::SeqCst);
        self.limit.close()
    }

    fn until(&self, seqno: Seqno) {
        self.limit.until(seqno);
    }

    fn open(&self) -> bool {
        let held = self.limit.is_closed() && !self.broken.load(Ordering::SeqCst);
        self.limit.open();
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn closed_barrier_holds_commits_until_opened_or_timeout() {
        let barrier = Arc::new(SnapshotBarrier::default());
        barrier.pass(1, None).unwrap();
        assert_eq!(barrier.close(), 1, "a commit that has begun may end");
        let pass = |seqno| {
            let barrier = barrier.clone();
            std::thread::spawn(move || barrier.pass(seqno, None))
        };
        let (two, three) = (pass(2), pass(3));
        std::thread::sleep(Duration::from_millis(30));
        assert!(!two.is_finished() && !three.is_finished());
        barrier.until(2);
        two.join().unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(30));
        assert!(!three.is_finished());
        // The node never opens it.
        three.join().unwrap().unwrap();
        assert!(barrier.broken.load(Ordering::SeqCst) && !barrier.limit.is_closed());
        assert!(!barrier.open(), "a commit has passed while it was closed");
    }
}
