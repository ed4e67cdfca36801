//! A submission: a thread that waits until its entry is ordered.
//!
//! One slot per submission: the waiting thread parks on it. `ls-node` fills it and wakes the thread once, at the end of
//! its round: a woken thread takes the processor, and messages to other members should have left by then. A slot whose
//! thread has given up (disconnect, loss of the majority) is *abandoned*. If the log has its entry after all, the entry
//! is delivered like one of another member.

use crate::api::{Ordered, SubmitOutcome};
use lockstep_core::Seqno;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Why the node refuses a submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitError {
    /// No primary component.
    NotPrimary,
    /// Not connected.
    Closed,
    /// The write-set is too large.
    TooLarge,
    /// Too many submissions are in progress.
    Busy,
}

/// What a device learns of its own entry apart from the entry's delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The entry meets a weak policy, and is not committed yet. It counts after the deliveries up to this seqno.
    Acknowledged {
        /// The last committed seqno then.
        after: Seqno,
    },
    /// The log may have lost the entry. It may be delivered all the same.
    Lost,
}

/// Receives the notice, if there is one. Called once, on `ls-node` or on the thread that submits: must not block.
pub type NoticeCall = Box<dyn FnOnce(Notice) + Send>;

/// The call of a submission without a waiting thread.
struct Call(NoticeCall);

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Call")
    }
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "as for SubmitOutcome")]
enum Slot {
    /// Not filled yet. The thread, if it waits already.
    Waiting(Option<Thread>),
    /// No thread waits: the entry is delivered, and this is called if there is something to say before.
    Notifies(Call),
    Done(SubmitOutcome),
    /// Its thread has the outcome, and knows it.
    Taken,
    /// Its thread has the outcome, and does not know it.
    GivenUp,
}

impl Slot {
    /// The outcome, unless the thread still has to wait for it.
    fn take(&mut self) -> Option<SubmitOutcome> {
        if let Slot::Waiting(_) = self {
            return None;
        }
        match std::mem::replace(self, Slot::Taken) {
            Slot::Done(SubmitOutcome::Unknown) | Slot::GivenUp => {
                *self = Slot::GivenUp;
                Some(SubmitOutcome::Unknown)
            }
            Slot::Done(outcome) => Some(outcome),
            Slot::Taken | Slot::Waiting(_) | Slot::Notifies(_) => Some(SubmitOutcome::Unknown),
        }
    }
}

#[derive(Debug)]
pub(crate) struct SubmissionInner {
    slot: Mutex<Slot>,
}

/// A submission in progress. Cheap to clone; one thread waits.
#[derive(Clone, Debug)]
pub struct Submission(pub(crate) Arc<SubmissionInner>);

impl Submission {
    pub(crate) fn new() -> Submission {
        Submission(Arc::new(SubmissionInner { slot: Mutex::new(Slot::Waiting(None)) }))
    }

    fn lock(&self) -> MutexGuard<'_, Slot> {
        // No code of others runs under the lock, so a poisoned lock holds valid state.
        self.0.slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits until the entry is ordered, or until this node can no longer learn whether it will be.
    ///
    /// Ends in bounded time: the node fills every slot when it loses the majority, disconnects or fails.
    pub fn wait(&self) -> SubmitOutcome {
        loop {
            if let Some(outcome) = self.take_or_register() {
                return outcome;
            }
            std::thread::park();
        }
    }

    /// As [`Submission::wait`], with a timeout. `None`: still in progress.
    pub fn wait_for(&self, timeout: Duration) -> Option<SubmitOutcome> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(outcome) = self.take_or_register() {
                return Some(outcome);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            std::thread::park_timeout(left);
        }
    }

    /// The outcome, if there is one yet. The calling thread is not woken later.
    pub fn try_take(&self) -> Option<SubmitOutcome> {
        self.lock().take()
    }

    /// Takes the result; without one, registers this thread to be unparked by the filler.
    fn take_or_register(&self) -> Option<SubmitOutcome> {
        let mut slot = self.lock();
        if let Slot::Waiting(thread) = &mut *slot {
            thread.get_or_insert_with(std::thread::current);
        }
        slot.take()
    }

    /// Whether the outcome is unknown. That holds from the moment at which the node gives it up, before and after its
    /// thread takes the outcome.
    pub fn is_given_up(&self) -> bool {
        matches!(*self.lock(), Slot::Done(SubmitOutcome::Unknown) | Slot::GivenUp)
    }

    /// A submission without a waiting thread: its entry is delivered like one of another member. That is decided before the
    /// proposal. If a thread gave up later, the slot might hold the entry already, and no thread would take it.
    pub(crate) fn unattended() -> Submission {
        Submission(Arc::new(SubmissionInner { slot: Mutex::new(Slot::Taken) }))
    }

    /// Gives the submission up before its entry is ordered.
    #[cfg(test)]
    pub(crate) fn abandon(self) {
        assert!(self.fill(SubmitOutcome::Unknown));
    }

    /// Fills the slot and wakes its thread. Returns false if the slot was filled before.
    fn fill(&self, outcome: SubmitOutcome) -> bool {
        if self.notify(Notice::Lost) {
            return true;
        }
        let mut slot = self.lock();
        let Slot::Waiting(thread) = &mut *slot else { return false };
        let thread = thread.take();
        *slot = Slot::Done(outcome);
        drop(slot);
        if let Some(thread) = thread {
            thread.unpark();
        }
        true
    }

    /// A submission whose entry is delivered like one of another member, with a call for a notice before.
    pub(crate) fn notifying(call: NoticeCall) -> Submission {
        Submission(Arc::new(SubmissionInner { slot: Mutex::new(Slot::Notifies(Call(call))) }))
    }

    /// Calls the call, if there is one.
    fn notify(&self, notice: Notice) -> bool {
        let mut slot = self.lock();
        if !matches!(*slot, Slot::Notifies(_)) {
            return false;
        }
        let before = std::mem::replace(&mut *slot, Slot::Taken);
        drop(slot);
        if let Slot::Notifies(Call(call)) = before {
            call(notice);
        }
        true
    }

    /// The node's end of it.
    pub(crate) fn filler(&self) -> Filler {
        Filler(self.clone())
    }

    /// As [`Submission::fill`] for an ordered entry, but the caller wakes the thread: returns it if it waits already. Returns
    /// the entry if no thread waits for it.
    fn order(&self, ordered: Ordered) -> Result<Option<Thread>, Box<Ordered>> {
        let mut slot = self.lock();
        if let Slot::Notifies(_) = *slot {
            // The delivery says it.
            *slot = Slot::Taken;
        }
        let Slot::Waiting(thread) = &mut *slot else { return Err(Box::new(ordered)) };
        let thread = thread.take();
        *slot = Slot::Done(SubmitOutcome::Ordered(ordered));
        Ok(thread)
    }
}

/// The node's end of a submission. Dropping it in any way (leave, failure, panic) wakes the waiting thread.
#[derive(Debug)]
pub(crate) struct Filler(Submission);

impl Filler {
    pub(crate) fn fill(&self, outcome: SubmitOutcome) -> bool {
        self.0.fill(outcome)
    }

    /// A device's entry meets a weak policy before it is committed: see [`Notice::Acknowledged`].
    pub(crate) fn acknowledge(&self, after: Seqno) {
        self.0.notify(Notice::Acknowledged { after });
    }

    /// Fills the slot with an ordered entry. The caller must unpark the returned thread.
    #[must_use = "the thread that waits is to be woken"]
    pub(crate) fn order(&self, ordered: Ordered) -> Result<Option<Thread>, Box<Ordered>> {
        self.0.order(ordered)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.0.fill(SubmitOutcome::Unknown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_core::writeset::WriteSet;
    use lockstep_core::{EntryKind, Uuid};

    fn ordered(seqno: Seqno) -> Ordered {
        Ordered {
            seqno,
            kind: EntryKind::WriteSet,
            pass: true,
            depends_on: seqno - 1,
            serial: false,
            origin: Uuid([2; 16]),
            time: 0,
            writeset: WriteSet::void(),
        }
    }

    /// However soon it has its place: a thread may be put aside between sending it and anything that it does next.
    #[test]
    fn abandoned_submission_is_returned_in_order() {
        let submission = Submission::unattended();
        let given_back = submission.filler().order(ordered(7)).unwrap_err();
        assert_eq!(given_back.seqno, 7);
    }

    #[test]
    fn notifying_submission_calls_once_or_not_at_all() {
        let (sender, notices) = std::sync::mpsc::channel();
        let notifying = || {
            let sender = sender.clone();
            Submission::notifying(Box::new(move |notice| sender.send(notice).unwrap()))
        };
        let early = notifying().filler();
        early.acknowledge(4);
        drop(early);
        drop(notifying().filler());
        let delivered = notifying().filler();
        assert_eq!(delivered.order(ordered(9)).unwrap_err().seqno, 9);
        drop(delivered);
        let all: Vec<Notice> = notices.try_iter().collect();
        assert_eq!(all, [Notice::Acknowledged { after: 4 }, Notice::Lost]);
    }

    #[test]
    fn waiting_thread_is_woken_once_with_first_result() {
        let submission = Submission::new();
        let other = submission.clone();
        let thread = std::thread::spawn(move || other.wait());
        assert!(submission.fill(SubmitOutcome::NotSent));
        assert!(!submission.fill(SubmitOutcome::Unknown));
        assert!(matches!(thread.join().unwrap(), SubmitOutcome::NotSent));
        let (given_up, refused) = (Submission::new(), Submission::new());
        assert!(!given_up.is_given_up());
        assert!(given_up.fill(SubmitOutcome::Unknown) && refused.fill(SubmitOutcome::NotSent));
        assert!(given_up.is_given_up() && !refused.is_given_up());
        assert!(matches!(given_up.wait(), SubmitOutcome::Unknown));
        assert!(given_up.is_given_up(), "its thread has not acted on the outcome yet");
        assert!(matches!(refused.wait(), SubmitOutcome::NotSent) && !refused.is_given_up());
    }
}
