//! For a device: how much of the log its copy needs to be the present state, and as of which time.
//!
//! A member cannot know that its state is the present one, only that it was. So this member asks for a read index again and again.
//! It notes the time *before* it asks. Once the own log is committed up to the answer, it has every entry that was committed
//! anywhere before that time. No clock of Raft is used: an answer that waited in a buffer while the process was stopped counts as
//! of the time of its question.

use lockstep_core::raft::Raft;
use lockstep_core::{Index, Micros, Seqno};
use std::time::Duration;

/// How often this member asks.
const PERIOD: Micros = 100_000;
/// A question without an answer is given up after this time.
const TIMEOUT: Micros = 300_000;

/// A copy that has every entry up to `seqno` has all that was committed before `asked`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Confirmation {
    /// The time since boot, with suspensions.
    pub(crate) asked: Duration,
    /// The last committed entry by the time of the answer.
    pub(crate) seqno: Seqno,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    context: u64,
    asked: Duration,
    /// By Raft's clock, for the next question only.
    began: Micros,
    index: Option<Index>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Confirmations {
    question: Option<Question>,
    next: Micros,
    last: Option<Confirmation>,
}

impl Confirmations {
    /// Asks, if that is due. `clock`: the time since boot, with suspensions.
    pub(in crate::member) fn ask(&mut self, raft: &mut Raft, now: Micros, clock: impl FnOnce() -> Duration) {
        if self.question.is_some_and(|question| now >= question.began + TIMEOUT) {
            self.question = None;
        }
        if self.question.is_none() && now >= self.next {
            let asked = clock();
            self.question = Some(Question { context: raft.read_index(now), asked, began: now, index: None });
            self.next = now + PERIOD;
        }
    }

    /// The leader's answer; `None` if there was no leader to answer.
    pub(in crate::member) fn answered(&mut self, context: u64, index: Option<Index>) {
        if let Some(question) = self.question.as_mut().filter(|question| question.context == context) {
            question.index = index;
            if index.is_none() {
                self.question = None;
            }
        }
    }

    /// Looks whether the own log has reached the answer.
    pub(in crate::member) fn step(&mut self, raft: &Raft) {
        if let Some(Question { asked, index: Some(index), .. }) = self.question
            && raft.commit() >= index
        {
            self.last = Some(Confirmation { asked, seqno: raft.committed_state().seqno });
            self.question = None;
        }
    }

    /// The last confirmation.
    pub(crate) fn last(&self) -> Option<Confirmation> {
        self.last
    }

    /// When the next question is due.
    pub(in crate::member) fn deadline(&self) -> Micros {
        self.question.map_or(self.next, |question| question.began + TIMEOUT).max(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::harness::context;

    #[test]
    fn confirmation_is_as_of_the_time_before_the_question() {
        let mut ctx = context();
        let (mut confirmations, now) = (Confirmations::default(), ctx.now);
        confirmations.ask(&mut ctx.raft, now, || Duration::from_secs(5));
        let context = confirmations.question.unwrap().context;
        confirmations.ask(&mut ctx.raft, now + PERIOD, || panic!("one question at a time"));
        confirmations.answered(context + 1, Some(1));
        confirmations.step(&ctx.raft);
        assert_eq!(confirmations.last(), None, "the answer to another question");
        let commit = ctx.raft.commit();
        confirmations.answered(context, Some(commit + 1));
        confirmations.step(&ctx.raft);
        assert_eq!(confirmations.last(), None, "the own log has not reached it");
        confirmations.answered(context, Some(commit));
        confirmations.step(&ctx.raft);
        let seqno = ctx.raft.committed_state().seqno;
        assert_eq!(confirmations.last(), Some(Confirmation { asked: Duration::from_secs(5), seqno }));
    }
}
