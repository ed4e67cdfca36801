//! A thread that waits for its place in the log.
//!
//! One slot per submission: the waiting thread parks on it, `ls-node` fills it and wakes it once. A slot whose thread
//! has gone away (disconnected, loss of the majority) is *abandoned*: should the log hold the entry after all, it is
//! delivered as anybody's.

use crate::api::{Ordered, Outcome};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Why a submission is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitError {
    /// No primary component.
    NotPrimary,
    /// Not connected.
    Closed,
    /// Above the largest write-set.
    TooLarge,
    /// Too much is under way already.
    Busy,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "as for Outcome")]
enum Slot {
    Waiting,
    Done(Outcome),
    Taken,
}

#[derive(Debug)]
pub(crate) struct SubmissionInner {
    slot: Mutex<Slot>,
    wake: Condvar,
}

/// A submission under way. Cheap to clone; one thread waits.
#[derive(Clone, Debug)]
pub struct Submission(pub(crate) Arc<SubmissionInner>);

impl Submission {
    pub(crate) fn new() -> Submission {
        Submission(Arc::new(SubmissionInner { slot: Mutex::new(Slot::Waiting), wake: Condvar::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, Slot> {
        // A panic while the lock is held is impossible (nothing in here calls out); poison says nothing.
        self.0.slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits until it has been ordered, or until it is certain that nobody can say any more whether it will be.
    ///
    /// Ends in bounded time: the node fills every slot when it loses the majority, disconnects or fails.
    pub fn wait(&self) -> Outcome {
        let mut slot = self.lock();
        loop {
            match std::mem::replace(&mut *slot, Slot::Taken) {
                Slot::Done(outcome) => return outcome,
                Slot::Taken => return Outcome::Unknown,
                Slot::Waiting => *slot = Slot::Waiting,
            }
            slot = self.0.wake.wait(slot).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// As [`Submission::wait`], for no longer than this: `None` where it is still under way.
    pub fn wait_for(&self, patience: Duration) -> Option<Outcome> {
        let slot = self.lock();
        let waiting = |slot: &mut Slot| matches!(slot, Slot::Waiting);
        let result = self.0.wake.wait_timeout_while(slot, patience, waiting);
        let (slot, late) = result.unwrap_or_else(|poisoned| poisoned.into_inner());
        drop(slot);
        (!late.timed_out()).then(|| self.wait())
    }

    /// Nobody waits for it: in its place it is delivered as anybody's.
    pub fn abandon(self) {
        self.fill(Outcome::Unknown);
    }

    /// Fills the slot and wakes its thread. `false` where it was filled before.
    fn fill(&self, outcome: Outcome) -> bool {
        let mut slot = self.lock();
        if !matches!(*slot, Slot::Waiting) {
            return false;
        }
        *slot = Slot::Done(outcome);
        drop(slot);
        self.0.wake.notify_one();
        true
    }

    /// The node's end of it.
    pub(crate) fn filler(&self) -> Filler {
        Filler(self.clone())
    }

    /// As [`Submission::fill`] for an entry in its place; gives the entry back where nobody waits for it.
    fn order(&self, ordered: Ordered) -> Result<(), Box<Ordered>> {
        let mut slot = self.lock();
        if !matches!(*slot, Slot::Waiting) {
            return Err(Box::new(ordered));
        }
        *slot = Slot::Done(Outcome::Ordered(ordered));
        drop(slot);
        self.0.wake.notify_one();
        Ok(())
    }
}

/// The node's end of a submission. However it is dropped (left, failed, a panic on its way out), the thread that waits
/// is woken.
#[derive(Debug)]
pub(crate) struct Filler(Submission);

impl Filler {
    pub(crate) fn fill(&self, outcome: Outcome) -> bool {
        self.0.fill(outcome)
    }

    pub(crate) fn order(&self, ordered: Ordered) -> Result<(), Box<Ordered>> {
        self.0.order(ordered)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.0.fill(Outcome::Unknown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_thread_is_woken_once_with_what_was_filled_first() {
        let submission = Submission::new();
        let other = submission.clone();
        let thread = std::thread::spawn(move || other.wait());
        assert!(submission.fill(Outcome::NotSent));
        assert!(!submission.fill(Outcome::Unknown));
        assert!(matches!(thread.join().unwrap(), Outcome::NotSent));
    }
}
