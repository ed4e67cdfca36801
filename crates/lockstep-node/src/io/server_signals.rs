//! Counters and switches that the front end's threads set, and `ls-node` reads each round.

use lockstep_core::Seqno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

pub(crate) struct ServerSignals {
    /// Everything up to this seqno has finished in the server. Shared with the member.
    finished: Arc<AtomicI64>,
    /// Writes of this server's clients that were refused for the policy.
    refused: AtomicU64,
    isolated: AtomicBool,
    /// Threads that wait for an entry behind a full queue of deliveries.
    hurrying: AtomicUsize,
}

impl ServerSignals {
    pub(crate) fn new(finished: Arc<AtomicI64>) -> ServerSignals {
        ServerSignals {
            finished,
            refused: AtomicU64::new(0),
            isolated: AtomicBool::new(false),
            hurrying: AtomicUsize::new(0),
        }
    }

    /// The database of the server has another position.
    pub(crate) fn reset_finished(&self, seqno: Seqno) {
        self.finished.store(seqno, Ordering::Release);
    }

    pub(crate) fn finished(&self, seqno: Seqno) {
        self.finished.fetch_max(seqno, Ordering::AcqRel);
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn isolate(&self, on: bool) {
        self.isolated.store(on, Ordering::Release);
    }

    pub(crate) fn is_isolated(&self) -> bool {
        self.isolated.load(Ordering::Acquire)
    }

    pub(crate) fn hurry(&self) {
        self.hurrying.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn hurried(&self) {
        let before = self.hurrying.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "hurried without hurry");
    }

    pub(crate) fn is_hurried(&self) -> bool {
        self.hurrying.load(Ordering::Acquire) > 0
    }
}
