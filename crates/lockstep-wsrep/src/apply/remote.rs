//! The write-set that an applier has in progress.

use crate::apply::blocked_time::BlockedTime;
use crate::ddl::CrashOutcome;
use crate::trx::state::Place;
use lockstep_abi::Seqno;
use lockstep_node::Spent;
use std::sync::atomic::{AtomicU8, Ordering};

/// A write-set while an applier applies it. The server's calls for it come on the applying thread.
#[derive(Debug)]
pub(crate) struct Remote {
    seqno: Seqno,
    /// A statement in total order.
    is_statement: bool,
    /// The DDL journal has it as begun, and needs a mark that it is done.
    is_begun: bool,
    /// An error counts. It does not for a statement that this server may have executed before a crash.
    is_judged: bool,
    /// See [`CommitSequence::is_early`](crate::apply::sequence::CommitSequence::is_early).
    is_early: bool,
    /// A [`Place`].
    place: AtomicU8,
    blocked: BlockedTime,
}

impl Remote {
    /// A write-set of rows, before commit order. `early`: see
    /// [`CommitSequence::is_early`](crate::apply::sequence::CommitSequence::is_early).
    pub(crate) fn rows(seqno: Seqno, early: bool) -> Remote {
        Remote {
            seqno,
            is_statement: false,
            is_begun: false,
            is_judged: true,
            is_early: early,
            place: AtomicU8::new(Place::Before as u8),
            blocked: BlockedTime::default(),
        }
    }

    /// A statement in total order, before commit order. `former`: the effect of the same statement before a crash.
    pub(crate) fn statement(seqno: Seqno, former: CrashOutcome) -> Remote {
        Remote {
            is_statement: true,
            is_begun: former.is_executed_now(),
            is_judged: former == CrashOutcome::NotBegun,
            ..Remote::rows(seqno, false)
        }
    }

    /// A write-set of which nothing is applied: it only passes through commit order. `former`: as for
    /// [`Remote::statement`], if it is one.
    pub(crate) fn dummy(seqno: Seqno, former: Option<CrashOutcome>) -> Remote {
        let is_judged = former.is_none_or(|former| former == CrashOutcome::NotBegun);
        Remote { is_judged, ..Remote::rows(seqno, false) }
    }

    pub(crate) fn seqno(&self) -> Seqno {
        self.seqno
    }

    /// Whether it is a statement in total order.
    pub(crate) fn is_statement(&self) -> bool {
        self.is_statement
    }

    /// Whether the DDL journal needs a mark that it is done.
    pub(crate) fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Whether an error counts, because this server cannot have executed it before a crash.
    pub(crate) fn is_judged(&self) -> bool {
        self.is_judged
    }

    /// See [`CommitSequence::is_early`](crate::apply::sequence::CommitSequence::is_early).
    pub(crate) fn is_early(&self) -> bool {
        self.is_early
    }

    /// The write-set's place in commit order.
    pub(crate) fn place(&self) -> Place {
        Place::from_u8(self.place.load(Ordering::Relaxed))
    }

    /// The server gets it now. `measured`: measure how long the thread is blocked meanwhile.
    pub(crate) fn begin(&mut self, measured: bool) {
        self.blocked = BlockedTime::new(measured);
        self.blocked.begin();
    }

    /// Waits for its turn in commit order. This wait is not work on the write-set: its time is not measured.
    pub(crate) fn await_turn(&self) {
        self.blocked.end();
    }

    /// Enters commit order, after [`Remote::await_turn`].
    pub(crate) fn enter(&self) {
        self.blocked.begin();
        self.place.store(Place::Inside as u8, Ordering::Relaxed);
    }

    /// Leaves commit order. Returns whether it was inside.
    pub(crate) fn leave(&self) -> bool {
        self.place.swap(Place::After as u8, Ordering::Relaxed) == Place::Inside as u8
    }

    /// The server has returned. Returns how the thread spent the time since [`Remote::begin`], if measured.
    pub(crate) fn end(&self) -> Option<Spent> {
        self.blocked.end();
        self.blocked.total()
    }
}
