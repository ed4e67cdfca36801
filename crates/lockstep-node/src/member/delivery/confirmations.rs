//! For a device: how much of the log its copy needs to be the present state, and as of which time.
//!
//! A member cannot know that its state is the present one, only that it was. So this member asks for a read index again and again.
//! It notes the time *before* it asks. Once the own log is committed up to the answer, it has every entry that was committed
//! anywhere before that time. No clock of Raft is used: an answer that waited in a buffer while the process was stopped counts as
//! of the time of its question.
//!
//! Several questions are under way at once: the index of an answer is the end of the leader's log, which the own log reaches
//! late under load.

use lockstep_core::raft::Raft;
use lockstep_core::{Index, Micros, Seqno};
use std::collections::VecDeque;
use std::time::Duration;

/// How often this member asks.
const PERIOD: Micros = 100_000;
/// A question is given up after this time: its confirmation would no longer count (`LIVE_FOR`).
const TIMEOUT: Micros = 1_000_000;
/// So many confirmations are kept: those that still count, and some more.
const KEPT: usize = 12;

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
    /// By Raft's clock, for [`TIMEOUT`] only.
    began: Micros,
    index: Option<Index>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Confirmations {
    /// Ascending by their times.
    questions: VecDeque<Question>,
    next: Micros,
    /// Ascending by their times.
    recent: VecDeque<Confirmation>,
}

impl Confirmations {
    /// Asks, if that is due. `clock`: the time since boot, with suspensions.
    pub(in crate::member) fn ask(&mut self, raft: &mut Raft, now: Micros, clock: impl FnOnce() -> Duration) {
        self.questions.retain(|question| now < question.began + TIMEOUT);
        if now >= self.next {
            let asked = clock();
            self.questions.push_back(Question {
                context: raft.read_index(now),
                asked,
                began: now,
                index: None,
            });
            self.next = now + PERIOD;
        }
    }

    /// The leader's answer; `None` if there was no leader to answer.
    pub(in crate::member) fn answered(&mut self, context: u64, index: Option<Index>) {
        let Some(at) = self.questions.iter().position(|question| question.context == context) else { return };
        match index {
            Some(_) => self.questions[at].index = index,
            None => drop(self.questions.remove(at)),
        }
    }

    /// Looks which answers the own log has reached.
    pub(in crate::member) fn step(&mut self, raft: &Raft) {
        let is_reached = |question: &Question| question.index.is_some_and(|index| index <= raft.commit());
        let Some(last) = self.questions.iter().rposition(is_reached) else { return };
        // It says more than those before it.
        let asked = self.questions[last].asked;
        self.questions.drain(..=last);
        self.recent.push_back(Confirmation { asked, seqno: raft.committed_state().seqno });
        if self.recent.len() > KEPT {
            self.recent.pop_front();
        }
    }

    /// The last confirmations, the oldest first.
    pub(crate) fn recent(&self) -> Vec<Confirmation> {
        self.recent.iter().copied().collect()
    }

    /// When the next question is due.
    pub(in crate::member) fn deadline(&self) -> Micros {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::harness::context;

    #[test]
    fn confirmation_is_as_of_the_time_before_the_question() {
        let mut ctx = context();
        let (mut confirmations, now) = (Confirmations::default(), ctx.now());
        confirmations.ask(&mut ctx.raft, now, || Duration::from_secs(5));
        let context = confirmations.questions[0].context;
        confirmations.ask(&mut ctx.raft, now + PERIOD - 1, || panic!("too soon"));
        confirmations.answered(context + 1, Some(1));
        confirmations.step(&ctx.raft);
        assert_eq!(confirmations.recent(), [], "the answer to another question");
        let commit = ctx.raft.commit();
        confirmations.answered(context, Some(commit + 1));
        confirmations.step(&ctx.raft);
        assert_eq!(confirmations.recent(), [], "the own log has not reached it");
        confirmations.answered(context, Some(commit));
        confirmations.step(&ctx.raft);
        let seqno = ctx.raft.committed_state().seqno;
        assert_eq!(confirmations.recent(), [Confirmation { asked: Duration::from_secs(5), seqno }]);
    }

    #[test]
    fn answer_that_the_log_reaches_late_counts_although_more_was_asked() {
        let mut ctx = context();
        let (mut confirmations, now) = (Confirmations::default(), ctx.now());
        for n in 0..8u64 {
            confirmations.ask(&mut ctx.raft, now + n * PERIOD, || Duration::from_millis(100 * n));
        }
        assert_eq!(confirmations.questions.len(), 8);
        let contexts: Vec<u64> = confirmations.questions.iter().map(|question| question.context).collect();
        let commit = ctx.raft.commit();
        for (n, context) in contexts.into_iter().enumerate() {
            confirmations.answered(context, Some(if n < 3 { commit } else { commit + 1 }));
        }
        confirmations.step(&ctx.raft);
        let asked = |one: &Confirmation| one.asked.as_millis();
        assert_eq!(confirmations.recent().iter().map(asked).collect::<Vec<_>>(), [200]);
        assert_eq!(confirmations.questions.len(), 5, "the later ones are still open");
        confirmations.ask(&mut ctx.raft, now + 3 * PERIOD + TIMEOUT, || Duration::from_secs(2));
        assert_eq!(confirmations.questions.len(), 5, "the oldest of them is given up, and one is new");
    }
}
