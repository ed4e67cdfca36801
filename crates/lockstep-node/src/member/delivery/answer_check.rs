//! A check that delivery has answered every submission that it has passed.
//!
//! Delivery takes every committed entry in turn, and hands an own one to the thread that waits for it. So once delivery is
//! past an index, no thread waits for an own proposal up to there. If one did, it would wait for ever: its server would
//! never get that seqno, and could commit nothing after it. No fault is known that leaves a thread behind. The check
//! bounds the damage of an unknown one.

use lockstep_core::{Index, Micros};

/// How often the check is made. It compares two numbers.
const PERIOD: Micros = 1_000_000;

/// How far the log was committed at some moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::member) struct Committed {
    /// Every entry up to this index.
    pub(in crate::member) index: Index,
    /// Every proposal of this member's incarnation up to this number.
    pub(in crate::member) proposal: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(in crate::member) struct AnswerCheck {
    due: Micros,
    /// As of an earlier check. Delivery need not have come so far yet: under load it never reaches the present end.
    committed: Committed,
}

impl AnswerCheck {
    /// A new incarnation numbers its proposals anew.
    pub(in crate::member) fn reset(&mut self) {
        *self = AnswerCheck::default();
    }

    /// When a check is due: how far every submission must have been answered. `next` is the next index to deliver.
    pub(in crate::member) fn step(
        &mut self,
        now: Micros,
        next: Index,
        committed: Committed,
    ) -> Option<Committed> {
        if now < self.due || next <= self.committed.index {
            return None;
        }
        self.due = now + PERIOD;
        Some(std::mem::replace(&mut self.committed, committed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ServerEnd, SubmitOutcome, Tuning};
    use crate::member::harness::Lab;
    use lockstep_core::raft::Failpoint;
    use std::time::Duration;

    fn committed(index: Index) -> Committed {
        Committed { index, proposal: 10 * index }
    }

    #[test]
    fn answers_are_due_once_delivery_has_passed_them() {
        let mut check = AnswerCheck::default();
        assert_eq!(check.step(0, 0, committed(3)), None, "there is no run");
        assert_eq!(check.step(0, 1, committed(3)), Some(Committed::default()));
        assert_eq!(check.step(PERIOD - 1, 9, committed(9)), None);
        // Delivery lags. The check waits, and its point stays.
        assert_eq!(check.step(5 * PERIOD, 3, committed(20)), None);
        assert_eq!(check.step(6 * PERIOD, 4, committed(21)), Some(committed(3)));
        assert_eq!(check.step(7 * PERIOD, 22, committed(30)), Some(committed(21)));
        check.reset();
        assert_eq!(check.step(8 * PERIOD, 31, committed(1)), Some(Committed::default()));
    }

    #[test]
    fn overlooked_thread_gets_unknown_and_process_ends() {
        for overlooks in [true, false] {
            let mut lab = Lab::empty();
            if overlooks {
                lab.adjust = |config| config.failpoints = Some(Failpoint::SubmissionOverlooked).into();
            }
            (0..3).for_each(|_| lab.add(&Tuning::default(), |_| {}));
            lab.until("all vote", 20_000_000, |lab| lab.voters(0).len() == 3);
            let write = lab.write(1);
            lab.run(3_000_000);
            let outcome = write.wait_for(Duration::ZERO);
            let end = lab.nodes[1].member.server_must_end().map(|(why, _)| why);
            if overlooks {
                assert!(matches!(outcome, Some(SubmitOutcome::Unknown)), "{outcome:?}");
                assert_eq!(end, Some(ServerEnd::RepeatsFromLog));
                assert!(
                    lab.logged("delivery has passed 1 own proposals without an answer (the first is number ")
                );
            } else {
                assert!(matches!(outcome, Some(SubmitOutcome::Ordered(_))), "{outcome:?}");
                assert_eq!((end, lab.nodes[1].member.failure()), (None, None));
            }
            assert_eq!(lab.nodes[0].member.failure(), None);
        }
    }
}
