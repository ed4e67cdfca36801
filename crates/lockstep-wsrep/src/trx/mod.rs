//! The state machine of a local transaction.
//!
//! Nothing here waits, calls out or knows the node: [`crate::trx::local`] asks a question, does what the answer says, and
//! reports how it went. So the whole state machine is tested without a server.
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
//! A *slot* is a seqno that was given to this transaction. It must take its turn in commit order in any case: by the server's
//! calls, or by `release`.

pub(crate) mod local;
pub(crate) mod rollbacks;
pub(crate) mod view_abort;

use crate::apply::blocked_time::BlockedTime;
use crate::apply::group_flush::Passed;
use crate::apply::monitor::Interrupt;
use lockstep_abi::{
    FLAG_ROLLBACK, FLAG_TRX_END, FLAG_TRX_START, SEQNO_UNDEFINED, Seqno, Status, TrxId, WsHandle,
};
use lockstep_node::Submission;
use lockstep_node::core::writeset::{WriteSet, WriteSetBuilder};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

/// Where a transaction is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Running in the server; nothing of it, or of its next fragment, has been sent.
    Executing,
    /// In `certify`, and not ordered yet.
    Replicating,
    /// Ordered and passed.
    Certified,
    /// Waits for its turn.
    Ordering,
    /// Has its turn.
    InOrder,
    /// Its turn is over; not released yet.
    Left,
    /// Aborted by somebody else; its own thread has not noticed.
    MustAbort,
    /// Aborted though it was ordered, passed and whole: `replay_trx` comes.
    MustReplay,
    /// In `replay_trx`.
    Replaying,
    /// Its own thread knows that it rolls back.
    Aborting,
}

/// Where a slot is in commit order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Its turn has not come.
    Before,
    /// It is its turn.
    Inside,
    /// Its turn is over.
    After,
}

/// A seqno that this transaction must take through commit order.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) seqno: Seqno,
    pub(crate) flags: u32,
    pub(crate) depends_on: Seqno,
    /// Its dependents need not wait until it has finished.
    pub(crate) early: bool,
    pub(crate) pass: bool,
    pub(crate) place: Place,
    /// For a replay.
    pub(crate) writeset: WriteSet,
}

impl Slot {
    fn ends(&self) -> bool {
        self.flags & FLAG_TRX_END != 0
    }
}

/// What a transaction consists of; behind [`Trx::lock`], which is only ever held for a moment.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) state: State,
    /// No fragment of it has been ordered yet.
    pub(crate) first: bool,
    pub(crate) slot: Option<Slot>,
    /// The submission that `certify` waits for.
    pub(crate) sent: Option<Submission>,
    /// Nobody knows whether it was, or will be, ordered.
    unknown: bool,
    /// It has given its slot back, for this member leaves before its turn.
    gone: bool,
    /// The same, and the cluster has committed it.
    elsewhere: bool,
    /// Aborted in its turn: `release` has to say so.
    deferred_abort: bool,
}

/// The action of `commit_order_enter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Wait for the turn of this seqno.
    Wait {
        /// The seqno.
        seqno: Seqno,
        /// Whether an abort may end the wait.
        interruptible: bool,
    },
    /// Nothing: it has it.
    Held,
    /// Return this.
    Refuse(Status),
    /// The server calls in the wrong order.
    Wrong,
}

/// The action of `release`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Release {
    /// Take this seqno through commit order first.
    pub(crate) pass_order: Option<Seqno>,
    /// Then this one has finished.
    pub(crate) finish: Option<Seqno>,
    /// Whether the handle is kept for the next fragment, or for the rollback.
    pub(crate) keep: bool,
    /// Whether it, or a fragment of it, was committed.
    pub(crate) committed: bool,
    /// What to return.
    pub(crate) status: Status,
}

impl Inner {
    fn new() -> Inner {
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

    /// `certify` begins, with all that was appended, if it is not `incomplete`: the flags of the write-set, or what to
    /// return.
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
                // Never sent, so that it may run again.
                Err(Status::CONN_FAIL)
            }
            _ => Err(Status::NOT_ALLOWED),
        }
    }

    /// It was not ordered and never will be: what `certify` returns.
    pub(crate) fn not_ordered(&mut self, status: Status) -> Status {
        self.state = State::Aborting;
        status
    }

    /// Nobody knows whether it will be ordered: what `certify` returns.
    ///
    /// `NODE_FAIL` whatever happened besides: it is the one code after which the server neither runs the statement
    /// again nor calls it a deadlock.
    pub(crate) fn unknown(&mut self) -> Status {
        self.unknown = true;
        self.state = State::Aborting;
        Status::NODE_FAIL
    }

    /// It has been ordered: what `certify` returns, `OK` if it may go on to [`Inner::start`].
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

    /// After the wait at the gate: what `certify` returns.
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
                // The server has seen the seqno, and wants to pass it.
                _ if self.gone => Turn::Refuse(Status::NODE_FAIL),
                _ => Turn::Wrong,
            };
        };
        let (seqno, ends, place) = (slot.seqno, slot.ends(), slot.place);
        match (self.state, place) {
            // Aborted in its turn while it was a fragment: it still has it.
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

    /// The wait for the turn ended well: what `commit_order_enter` returns.
    pub(crate) fn got_turn(&mut self) -> Status {
        let Some(slot) = &mut self.slot else { return Status::NODE_FAIL };
        let ends = slot.ends();
        match self.state {
            // An abort that came while it waited has priority: its aborter was told that it would yield. It gives up
            // nothing: nobody else can have this turn.
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

    /// The wait for the turn was interrupted: what `commit_order_enter` returns.
    pub(crate) fn lost_turn(&mut self) -> Status {
        let ends = self.slot.as_ref().is_some_and(Slot::ends);
        self.aborted_after_order(ends)
    }

    /// The turn does not come, because this member leaves: the status for `commit_order_enter`. The server reports a deadlock
    /// for all statuses but one. So a transaction committed by the cluster goes to replay, and its client gets an error there.
    pub(crate) fn no_turn(&mut self) -> Status {
        let committed = self.slot.as_ref().is_some_and(|slot| slot.pass && slot.ends());
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

    /// `commit_order_leave`: the seqno whose turn is over, and whether what depends on it may go on ([`Slot::early`]).
    /// `None`: the server calls in the wrong order.
    pub(crate) fn leave(&mut self) -> Option<(Seqno, bool)> {
        let slot = self.slot.as_mut().filter(|slot| slot.place == Place::Inside)?;
        slot.place = Place::After;
        let mut left = false;
        match self.state {
            State::MustAbort => {
                // A fragment. Whether it is in the server's fragment store already, nobody knows: so success here,
                // and the abort in `release`.
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

    /// `abort_certification` by the entry at `by`: the status, the victim's seqno, and whether to interrupt it.
    ///
    /// A transaction with unknown outcome, or committed elsewhere, is already rolling back, and its client gets an error that
    /// says so. If the log has it after all, its own write-set needs its locks. If that entry were told that it has aborted
    /// the transaction, the server would report a deadlock, and clients would retry.
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
            // It rolls back, or is replayed, as it is. And it may not be what is asked for: the call names no member, and
            // the applier of another member's streaming transaction has the id that this has there. The server aborts that
            // one itself, if it is told that it may: refused, it would keep its locks for ever, before a statement that
            // waits for them.
            State::MustAbort | State::MustReplay | State::Replaying | State::Aborting => {
                (Status::OK, seqno, false)
            }
            State::InOrder | State::Left => (Status::NOT_ALLOWED, seqno, false),
        }
    }

    /// The same by a view, which aborts streaming transactions only. A transaction with unknown outcome, or already rolling
    /// back, yields to it, too: its fragments in the log come after that view, and fail.
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

    /// The server rolls back a streaming transaction: its rollback fragment goes out.
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

    /// It is not committed here before this member leaves: its entry in the log is applied after the return.
    pub(crate) fn not_here(&mut self) {
        self.gone = true;
        self.state = State::Aborting;
        self.elsewhere |= self.slot.take().is_some_and(|slot| slot.pass && slot.ends());
    }

    /// `replay_trx` begins: what to replay, or what to return. The server takes only two answers without one: it is
    /// committed, or the client is told of a deadlock, after which it may well do it again.
    pub(crate) fn begin_replay(&mut self) -> Result<Slot, Status> {
        let Some(slot) = &self.slot else {
            return Err(if self.elsewhere { Status::OK } else { Status::TRX_FAIL });
        };
        match self.state {
            // Aborted between two calls: this is how it learns.
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

/// A local transaction, from its first key to `release`.
#[derive(Debug)]
pub(crate) struct Trx {
    pub(crate) id: TrxId,
    pub(crate) interrupt: Interrupt,
    /// The node has been told to hurry for it. Raised under the lock, while it is under way.
    pub(crate) hurried: AtomicBool,
    inner: Mutex<Inner>,
    content: Mutex<Content>,
}

/// Keys and data of the next write-set. Only the transaction's own thread uses it, perhaps for long. It has a lock of its
/// own, so that an aborting thread does not wait.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) builder: WriteSetBuilder,
    /// Something did not go into `builder`. The server does not always heed what an append returns, and would go on
    /// to certify half of a transaction.
    pub(crate) incomplete: bool,
}

impl Trx {
    pub(crate) fn new(id: TrxId) -> Trx {
        Trx {
            id,
            interrupt: Interrupt::default(),
            hurried: AtomicBool::new(false),
            inner: Mutex::new(Inner::new()),
            content: Mutex::new(Content { builder: WriteSetBuilder::new(), incomplete: false }),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        crate::apply::monitor::lock(&self.inner)
    }

    /// For its own thread.
    pub(crate) fn content(&self) -> MutexGuard<'_, Content> {
        crate::apply::monitor::lock(&self.content)
    }
}

/// A write-set of somebody else's while it is applied. The server's calls for it come on the applying thread.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) seqno: Seqno,
    /// A statement in total order.
    pub(crate) statement: bool,
    /// One that has a mark that it has begun, and is to have one that it is done.
    pub(crate) begun: bool,
    /// Whether this server's error says something: not of a statement that it has executed before, in part or as a whole.
    pub(crate) judged: bool,
    /// Its dependents need not wait until it has finished.
    pub(crate) early: bool,
    /// 0 before, 1 inside, 2 after its turn.
    pub(crate) place: AtomicU8,
    /// It has been let go to flush, after its turn.
    pub(crate) passed: OnceLock<Passed>,
    pub(crate) waited: BlockedTime,
    /// When its thread had finished the one before, if something waited then.
    pub(crate) since: Option<Instant>,
}

/// What the `opaque` of a write-set handle points to.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the small one is on a stack, one per applying thread")]
pub(crate) enum Handle {
    /// Kept in [`Transactions`].
    Local(Trx),
    /// On the stack of the applying thread.
    Remote(Remote),
}

impl Handle {
    pub(crate) fn as_local(&self) -> Option<&Trx> {
        match self {
            Handle::Local(trx) => Some(trx),
            Handle::Remote(_) => None,
        }
    }
}

const SHARDS: usize = 64;

/// All local transactions, by the server's id.
///
/// **Invariant:** a pointer that was put into a handle stays valid until [`Transactions::remove`], which the server
/// causes by `release`, the last call for this transaction.
pub(crate) struct Transactions {
    shards: [Mutex<HashMap<TrxId, Arc<Handle>>>; SHARDS],
    count: AtomicUsize,
}

impl Transactions {
    pub(crate) fn new() -> Transactions {
        Transactions {
            shards: std::array::from_fn(|_| Mutex::new(HashMap::new())),
            count: AtomicUsize::new(0),
        }
    }

    fn shard(&self, id: TrxId) -> MutexGuard<'_, HashMap<TrxId, Arc<Handle>>> {
        crate::apply::monitor::lock(&self.shards[(id % SHARDS as u64) as usize])
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// The transaction of this id.
    pub(crate) fn get(&self, id: TrxId) -> Option<Arc<Handle>> {
        self.shard(id).get(&id).cloned()
    }

    /// The transaction of this handle; made, and the handle filled in, where there is none.
    pub(crate) fn of_handle<'a>(&'a self, handle: &'a mut WsHandle) -> &'a Handle {
        if handle.opaque.is_null() {
            let mut shard = self.shard(handle.trx_id);
            let made = shard.entry(handle.trx_id).or_insert_with(|| {
                self.count.fetch_add(1, Ordering::Relaxed);
                Arc::new(Handle::Local(Trx::new(handle.trx_id)))
            });
            handle.opaque = Arc::as_ptr(made).cast_mut().cast();
        }
        // SAFETY: it is not null, so it points to an entry put into the table here or in an earlier call, which the table
        // keeps until `remove`.
        unsafe { &*handle.opaque.cast::<Handle>() }
    }

    /// The transaction of this handle, if it has one.
    ///
    /// # Safety
    /// `handle.opaque` is null or as this provider set it, and the transaction has not been released since.
    pub(crate) unsafe fn find<'a>(&self, handle: &WsHandle) -> Option<&'a Handle> {
        // SAFETY: the caller vouches for it.
        unsafe { handle.opaque.cast::<Handle>().as_ref() }
    }

    /// The transaction whose seqno this is, for people.
    pub(crate) fn find_seqno(&self, seqno: Seqno) -> Option<String> {
        self.shards.iter().find_map(|shard| {
            let shard = crate::apply::monitor::lock(shard);
            shard.values().filter_map(|handle| handle.as_local()).find_map(|trx| {
                let inner = trx.lock();
                let slot = inner.slot.as_ref().filter(|slot| slot.seqno == seqno)?;
                Some(format!("the own transaction {} ({:?}, {:?} its turn)", trx.id, inner.state, slot.place))
            })
        })
    }

    /// Forgets it. Pointers to it become invalid once nobody else looks at it.
    pub(crate) fn remove(&self, id: TrxId) {
        if self.shard(id).remove(&id).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Flags with which a write-set that failed certification is shown to the server: it is not applied, but its seqno
/// is checkpointed, and a fragment's transaction is rolled back. Not as total order, or the server would execute it.
pub(crate) fn dummy_flags(flags: u32) -> u32 {
    (flags | FLAG_ROLLBACK) & !lockstep_abi::FLAG_ISOLATION
}

#[cfg(test)]
mod tests;
