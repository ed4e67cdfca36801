//! The state machine of a local transaction. It neither waits nor calls out, and does not know the node, so its tests need
//! no server. [`crate::trx::local`] asks it what to do, does it, and reports the result.
//!
//! ```text
//!             certify                  certified            commit_order_enter       …_leave
//! Executing ──────────▶ Replicating ─────────────▶ Certified ─────▶ Ordering ─▶ InOrder ─────▶ Left ─▶ release
//!     ▲  │                   │  verdict: failed ──────────────▶ Aborting ─▶ (the same way, rolling back)
//!     │  └─────────┬─────────┴─────────────┬───────────────────────┘
//!     │            ▼ abort_certification   ▼
//!     │        MustAbort ──▶ Aborting   (fragment, or not ordered)
//!     │            └───────▶ MustReplay ─▶ Replaying ─▶ InOrder ─▶ Left   (ordered, and its last fragment)
//!     └── release of a fragment
//! ```
//!
//! A *slot* is a seqno that was assigned to this transaction. It must pass through commit order even if the transaction
//! fails: by the server's calls, or in `release`.

use lockstep_abi::{FLAG_ROLLBACK, FLAG_TRX_END, FLAG_TRX_START, SEQNO_UNDEFINED, Seqno, Status};
use lockstep_node::core::writeset::WriteSet;
use lockstep_node::{Ordered, Submission};

/// The states of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The server executes it; the next fragment has not been sent.
    Executing,
    /// In `certify`, not ordered yet.
    Replicating,
    /// Ordered, and passed certification.
    Certified,
    /// Waits for its turn in commit order.
    Ordering,
    /// Inside commit order.
    InOrder,
    /// Has left commit order; not released yet.
    Left,
    /// Aborted by another thread; its own thread has not noticed yet.
    MustAbort,
    /// Aborted although ordered, passed and whole: the server calls `replay_trx` next.
    MustReplay,
    /// In `replay_trx`.
    Replaying,
    /// The transaction's own thread is rolling it back.
    Aborting,
}

/// The place of a slot relative to commit order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// It has not entered.
    Before,
    /// It has entered.
    Inside,
    /// It has left.
    After,
}

impl Place {
    /// From `self as u8`.
    pub(crate) fn from_u8(place: u8) -> Place {
        match place {
            0 => Place::Before,
            1 => Place::Inside,
            _ => Place::After,
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    seqno: Seqno,
    flags: u32,
    depends_on: Seqno,
    /// See [`CommitSequence::is_early`](crate::apply::sequence::CommitSequence::is_early).
    early: bool,
    pass: bool,
    place: Place,
    /// Kept for a replay.
    writeset: WriteSet,
}

impl Slot {
    /// The slot of a transaction that has been ordered, before commit order. `early`: see
    /// [`CommitSequence::is_early`](crate::apply::sequence::CommitSequence::is_early).
    pub(crate) fn of_transaction(ordered: Ordered, early: bool) -> Slot {
        Slot {
            seqno: ordered.seqno,
            flags: ordered.writeset.meta.flags,
            depends_on: ordered.depends_on,
            early,
            pass: ordered.pass,
            place: Place::Before,
            writeset: ordered.writeset,
        }
    }

    /// The slot of a statement in total order, which is inside commit order from the start.
    pub(crate) fn of_statement(ordered: Ordered) -> Slot {
        Slot { place: Place::Inside, ..Slot::of_transaction(ordered, false) }
    }

    pub(crate) fn seqno(&self) -> Seqno {
        self.seqno
    }

    /// The flags of the write-set.
    pub(crate) fn flags(&self) -> u32 {
        self.flags
    }

    /// The seqno that must have finished before this one is applied.
    pub(crate) fn depends_on(&self) -> Seqno {
        self.depends_on
    }

    /// The write-set, for a replay.
    pub(crate) fn writeset(&self) -> &WriteSet {
        &self.writeset
    }

    /// Whether certification passed.
    pub(crate) fn passed(&self) -> bool {
        self.pass
    }

    /// Whether the slot is that of the last fragment.
    pub(crate) fn ends(&self) -> bool {
        self.flags & FLAG_TRX_END != 0
    }
}

/// The state of a transaction, behind [`Trx::lock`](crate::trx::table::Trx::lock), which is held for moments only.
#[derive(Debug)]
pub(crate) struct Inner {
    state: State,
    /// No fragment of it has been ordered yet.
    first: bool,
    slot: Option<Slot>,
    /// The submission that `certify` waits for.
    sent: Option<Submission>,
    /// It was given up while it may still be ordered.
    unknown: bool,
    /// It has given its slot up because this member leaves before its turn.
    gone: bool,
    /// It has given its slot up, and the cluster commits it.
    elsewhere: bool,
    /// Aborted inside commit order: `release` reports it.
    deferred_abort: bool,
}

/// The next step of `commit_order_enter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Wait for the turn of this seqno.
    Wait {
        seqno: Seqno,
        /// An abort may end the wait.
        interruptible: bool,
    },
    /// Nothing: the slot is inside.
    Held,
    /// Return this.
    Refuse(Status),
    /// The server calls in the wrong order.
    Wrong,
}

/// The steps of `release`, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Release {
    /// Pass this seqno through commit order.
    pub(crate) pass_order: Option<Seqno>,
    /// Report this seqno as finished.
    pub(crate) finish: Option<Seqno>,
    /// Keep the handle for the next fragment, or for the rollback.
    pub(crate) keep: bool,
    /// The transaction, or a fragment of it, was committed.
    pub(crate) committed: bool,
    /// Return this.
    pub(crate) status: Status,
}

impl Inner {
    pub(crate) fn new() -> Inner {
        Inner {
            state: State::Executing,
            first: true,
            slot: None,
            sent: None,
            unknown: false,
            gone: false,
            elsewhere: false,
            deferred_abort: false,
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// No fragment of it has been ordered yet.
    pub(crate) fn is_first(&self) -> bool {
        self.first
    }

    /// Where the transaction is on its way, if its slot is this seqno.
    pub(crate) fn progress_at(&self, seqno: Seqno) -> Option<(State, Place)> {
        let slot = self.slot.as_ref().filter(|slot| slot.seqno == seqno)?;
        Some((self.state, slot.place))
    }

    /// The statement in total order has been ordered.
    pub(crate) fn statement_ordered(&mut self, ordered: Ordered) {
        self.slot = Some(Slot::of_statement(ordered));
    }

    /// The statement in total order has ended, or is not executed here. Returns its slot, if it had one.
    pub(crate) fn end_statement(&mut self) -> Option<Slot> {
        self.slot.take()
    }

    /// The write-set has been submitted.
    pub(crate) fn set_sent(&mut self, submission: Option<Submission>) {
        self.sent = submission;
    }

    /// `certify` begins. `incomplete`: an append failed. Returns the flags of the write-set.
    ///
    /// # Errors
    /// The status to return.
    pub(crate) fn begin_certify(&mut self, flags: u32, incomplete: bool) -> Result<u32, Status> {
        match self.state {
            State::Executing if incomplete => {
                self.state = State::Aborting;
                Err(Status::SIZE_EXCEEDED)
            }
            State::Executing => {
                self.state = State::Replicating;
                let start = if self.first { FLAG_TRX_START } else { 0 };
                Ok(flags & !FLAG_TRX_START | start)
            }
            State::MustAbort => {
                self.state = State::Aborting;
                // It was never sent: the server may run the statement again.
                Err(Status::CONN_FAIL)
            }
            _ => Err(Status::NOT_ALLOWED),
        }
    }

    /// The write-set was not and never will be ordered. Returns the status for `certify`.
    pub(crate) fn not_ordered(&mut self, status: Status) -> Status {
        self.state = State::Aborting;
        status
    }

    /// The write-set is given up, but may still be ordered. Returns the status for `certify`: always `NODE_FAIL`, the only
    /// one for which the server neither runs the statement again nor reports a deadlock.
    pub(crate) fn unknown(&mut self) -> Status {
        self.unknown = true;
        self.state = State::Aborting;
        Status::NODE_FAIL
    }

    /// The write-set has been ordered. Returns the status for `certify`; `OK`: [`Inner::start`] follows.
    pub(crate) fn ordered(&mut self, slot: Slot) -> Status {
        let (pass, ends) = (slot.pass, slot.ends());
        self.first = false;
        self.slot = Some(slot);
        match (self.state, pass) {
            (_, false) => {
                self.state = State::Aborting;
                Status::TRX_FAIL
            }
            (State::MustAbort, true) => self.aborted_after_order(ends),
            (_, true) => {
                self.state = State::Certified;
                Status::OK
            }
        }
    }

    fn aborted_after_order(&mut self, ends: bool) -> Status {
        if ends {
            self.state = State::MustReplay;
            Status::BF_ABORT
        } else {
            self.state = State::Aborting;
            Status::TRX_FAIL
        }
    }

    /// The wait to start is over. Returns the status for `certify`.
    pub(crate) fn start(&mut self) -> Status {
        match (self.state, &self.slot) {
            (State::MustAbort, Some(slot)) => {
                let ends = slot.ends();
                self.aborted_after_order(ends)
            }
            _ => Status::OK,
        }
    }

    /// `commit_order_enter` begins.
    pub(crate) fn want_turn(&mut self) -> Turn {
        let Some(slot) = &self.slot else {
            return match self.state {
                State::MustAbort => {
                    self.state = State::Aborting;
                    Turn::Refuse(Status::TRX_FAIL)
                }
                // The server knows the seqno, and wants to pass it.
                _ if self.gone => Turn::Refuse(Status::NODE_FAIL),
                _ => Turn::Wrong,
            };
        };
        let (seqno, ends, place) = (slot.seqno, slot.ends(), slot.place);
        match (self.state, place) {
            // A fragment that was aborted inside commit order is still inside.
            (State::Aborting | State::MustAbort, Place::Inside) => Turn::Held,
            (State::MustAbort, _) => Turn::Refuse(self.aborted_after_order(ends)),
            (State::Certified, Place::Before) => {
                self.state = State::Ordering;
                Turn::Wait { seqno, interruptible: true }
            }
            (State::Aborting | State::Replaying, Place::Before) => Turn::Wait { seqno, interruptible: false },
            _ => Turn::Wrong,
        }
    }

    /// The turn has come. Returns the status for `commit_order_enter`.
    pub(crate) fn got_turn(&mut self) -> Status {
        let Some(slot) = &mut self.slot else { return Status::NODE_FAIL };
        let ends = slot.ends();
        match self.state {
            // It was aborted while it waited, and its aborter knows that it yields. The turn is not lost: no other
            // transaction can take it.
            State::MustAbort => self.aborted_after_order(ends),
            State::Ordering => {
                slot.place = Place::Inside;
                self.state = State::InOrder;
                Status::OK
            }
            _ => {
                slot.place = Place::Inside;
                Status::OK
            }
        }
    }

    /// The wait for the turn was interrupted. Returns the status for `commit_order_enter`.
    pub(crate) fn lost_turn(&mut self) -> Status {
        let ends = self.slot.as_ref().is_some_and(Slot::ends);
        self.aborted_after_order(ends)
    }

    /// The turn does not come because this member leaves. Returns the status for `commit_order_enter`. The server reports
    /// a deadlock for every status but `BF_ABORT`. A transaction that the cluster has committed therefore goes to
    /// `replay_trx`, which reports success to the client. `lost`: the log has lost the transaction, and the client may
    /// repeat it.
    pub(crate) fn no_turn(&mut self, lost: bool) -> Status {
        let committed = !lost && self.slot.as_ref().is_some_and(|slot| slot.pass && slot.ends());
        match self.state {
            State::Ordering | State::MustAbort if committed => {
                self.state = State::MustReplay;
                Status::BF_ABORT
            }
            _ => {
                self.not_here();
                Status::NODE_FAIL
            }
        }
    }

    /// `commit_order_leave`: the seqno that leaves, and whether write-sets that depend on it may start ([`Slot::early`]).
    /// `None`: the server calls in the wrong order.
    pub(crate) fn leave(&mut self) -> Option<(Seqno, bool)> {
        let slot = self.slot.as_mut().filter(|slot| slot.place == Place::Inside)?;
        slot.place = Place::After;
        let mut left = false;
        match self.state {
            State::MustAbort => {
                // A fragment. It may be in the server's fragment store already: this call succeeds, and `release`
                // reports the abort.
                self.state = State::Aborting;
                self.deferred_abort = true;
            }
            State::InOrder | State::Replaying => {
                self.state = State::Left;
                left = true;
            }
            _ => {}
        }
        Some((slot.seqno, slot.early && left))
    }

    /// `abort_certification` by the write-set at seqno `by`. Returns the status, the victim's seqno, and whether to
    /// interrupt the victim's wait.
    ///
    /// A transaction that was given up, or that the cluster commits, already rolls back, and its client gets an error that
    /// leaves the outcome open. The aborter may be its own write-set, ordered after all. If the abort counted, the server
    /// would report a deadlock, for which clients repeat the transaction.
    pub(crate) fn abort(&mut self, by: Seqno) -> (Status, Seqno, bool) {
        let seqno = self.slot.as_ref().map_or(SEQNO_UNDEFINED, |slot| slot.seqno);
        if self.unknown || self.gone || self.sent.as_ref().is_some_and(Submission::is_given_up) {
            return (Status::NOT_ALLOWED, seqno, false);
        }
        let ends = self.slot.as_ref().is_some_and(Slot::ends);
        if ends && seqno < by {
            return (Status::NOT_ALLOWED, seqno, false);
        }
        match self.state {
            State::Executing | State::Replicating | State::Certified | State::Ordering => {
                self.state = State::MustAbort;
                (Status::OK, seqno, true)
            }
            State::InOrder if !ends => {
                self.state = State::MustAbort;
                (Status::OK, seqno, false)
            }
            State::Left if !ends => (Status::OK, seqno, false),
            // It rolls back or is replayed already. But the call may mean another transaction, because it names no member:
            // the applier of another member's streaming transaction may have the same id. The server aborts that applier
            // itself if this call permits it. Otherwise the applier would keep its locks, and the aborter would wait for ever.
            State::MustAbort | State::MustReplay | State::Replaying | State::Aborting => {
                (Status::OK, seqno, false)
            }
            State::InOrder | State::Left => (Status::NOT_ALLOWED, seqno, false),
        }
    }

    /// As [`Inner::abort`], by a view, which aborts streaming transactions only. A transaction that was given up or rolls
    /// back yields as well: a fragment of it that is ordered later follows that view in the log, and fails certification.
    pub(crate) fn abort_in_view(&mut self, by: Seqno) -> (Status, Seqno, bool) {
        let seqno = self.slot.as_ref().map_or(SEQNO_UNDEFINED, |slot| slot.seqno);
        if self.unknown || self.gone || self.state == State::Aborting {
            return (Status::OK, seqno, true);
        }
        if self.sent.as_ref().is_some_and(Submission::is_given_up) {
            self.state = State::MustAbort;
            return (Status::OK, seqno, true);
        }
        self.abort(by)
    }

    /// The server rolls back a streaming transaction: the caller sends its rollback fragment.
    pub(crate) fn roll_back(&mut self) {
        if matches!(self.state, State::Executing | State::MustAbort) {
            self.state = State::Aborting;
        }
    }

    /// `release` begins.
    pub(crate) fn release(&mut self) -> Release {
        let ends = self.slot.as_ref().is_some_and(Slot::ends);
        let seqno = self.slot.as_ref().map(|slot| slot.seqno);
        if self.state == State::Left {
            self.slot = None;
            if !ends {
                self.state = State::Executing;
            }
            return Release {
                pass_order: None,
                finish: seqno,
                keep: !ends,
                committed: true,
                status: Status::OK,
            };
        }
        if std::mem::take(&mut self.deferred_abort) {
            self.slot = None;
            return Release {
                pass_order: None,
                finish: seqno,
                keep: true,
                committed: false,
                status: Status::BF_ABORT,
            };
        }
        self.state = State::Aborting;
        let slot = self.slot.take();
        Release {
            pass_order: slot.filter(|slot| slot.place != Place::After).map(|slot| slot.seqno),
            finish: seqno,
            keep: false,
            committed: false,
            status: Status::OK,
        }
    }

    /// This member leaves before it commits the transaction. When it returns, it applies the write-set from the log.
    pub(crate) fn not_here(&mut self) {
        self.gone = true;
        self.state = State::Aborting;
        self.elsewhere |= self.slot.take().is_some_and(|slot| slot.pass && slot.ends());
    }

    /// `replay_trx` begins: the slot to replay.
    ///
    /// # Errors
    /// The status to return: `OK` if the transaction is committed, `TRX_FAIL` for a deadlock, after which the client may
    /// repeat it. The server accepts no other.
    pub(crate) fn begin_replay(&mut self) -> Result<Slot, Status> {
        let Some(slot) = &self.slot else {
            return Err(if self.elsewhere { Status::OK } else { Status::TRX_FAIL });
        };
        match self.state {
            // Aborted between two calls: its thread learns of it here.
            State::MustReplay | State::MustAbort | State::Certified if slot.pass && slot.ends() => {
                self.state = State::Replaying;
                Ok(slot.clone())
            }
            _ => {
                self.state = State::Aborting;
                Err(Status::TRX_FAIL)
            }
        }
    }
}

/// The flags with which the server gets a write-set that failed certification. It applies nothing, but checkpoints the
/// seqno and rolls back a fragment's transaction. Without the flag for total order, or it would execute the statement.
pub(crate) fn dummy_flags(flags: u32) -> u32 {
    (flags | FLAG_ROLLBACK) & !lockstep_abi::FLAG_ISOLATION
}
