//! The barrier of `lockstep verify`, which takes equal snapshots on all members. While it is closed, the thread whose turn
//! it is in commit order waits, and so do all threads behind it. Executing, ordering and applying continue.

use crate::apply::gate::Gate;
use crate::sync::{Interrupt, Stop};
use lockstep_node::CommitBarrier;
use lockstep_node::core::{SEQNO_UNDEFINED, Seqno};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The longest wait, in case the node no longer exists. The node opens the barrier after 2.5 s.
const TIMEOUT: Duration = Duration::from_secs(4);

/// A gate that is passed in commit order.
pub(crate) struct CommitGate {
    gate: Gate,
    /// A wait has timed out since the barrier was closed.
    broken: AtomicBool,
}

impl Default for CommitGate {
    fn default() -> CommitGate {
        CommitGate { gate: Gate::new(SEQNO_UNDEFINED), broken: AtomicBool::new(false) }
    }
}

impl CommitGate {
    /// Waits while the barrier is closed for `seqno`, whose turn it is.
    pub(crate) fn pass(&self, seqno: Seqno, interrupt: Option<&Interrupt>) -> Result<(), Stop> {
        match self.gate.pass(seqno, interrupt, Some(TIMEOUT)) {
            Err(Stop::TimedOut) => {
                self.broken.store(true, Ordering::SeqCst);
                self.gate.open();
                Ok(())
            }
            other => other,
        }
    }

    /// See [`Gate::reset`].
    pub(crate) fn reset(&self, position: Seqno) {
        self.gate.reset(position);
    }
}

impl CommitBarrier for CommitGate {
    fn close(&self) -> Seqno {
        self.broken.store(false, Ordering::SeqCst);
        self.gate.close()
    }

    fn until(&self, seqno: Seqno) {
        self.gate.until(seqno);
    }

    fn open(&self) -> bool {
        let held = self.gate.is_closed() && !self.broken.load(Ordering::SeqCst);
        self.gate.open();
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn closed_barrier_holds_commits_until_opened_or_timeout() {
        let barrier = Arc::new(CommitGate::default());
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
        assert!(barrier.broken.load(Ordering::SeqCst) && !barrier.gate.is_closed());
        assert!(!barrier.open(), "a commit has passed while it was closed");
    }
}
