//! The seqno that the front end's server has finished.

use lockstep_core::{SEQNO_UNDEFINED, Seqno};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// See the module's documentation.
#[derive(Debug)]
pub(in crate::member) struct Finished {
    /// The server's threads write it; an arbitrator, which has none, writes it itself.
    seqno: Arc<AtomicI64>,
    /// Its value when the round began, before its inputs were taken.
    at_round: Seqno,
}

impl Finished {
    pub(in crate::member) fn new(seqno: Arc<AtomicI64>) -> Finished {
        Finished { seqno, at_round: SEQNO_UNDEFINED }
    }

    /// A round begins.
    pub(in crate::member) fn begin_round(&mut self) {
        self.at_round = self.get();
    }

    pub(in crate::member) fn get(&self) -> Seqno {
        self.seqno.load(Ordering::Acquire)
    }

    /// The value when the round began: results up to it had been reported before this round's inputs.
    pub(in crate::member) fn at_round(&self) -> Seqno {
        self.at_round
    }

    /// An arbitrator counts an entry as finished once it has taken it.
    pub(in crate::member) fn raise(&self, seqno: Seqno) {
        self.seqno.fetch_max(seqno, Ordering::AcqRel);
    }
}
