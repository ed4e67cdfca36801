//! A leader's own stalls: times in which its process did not run.
//!
//! During a stall the leader hears nobody, whether its peers are there or not, and they may elect another leader. So after a
//! stall:
//!
//! - **Deadlines.** The length of the stall does not count as the peers' silence. This happens once until a majority has
//!   answered a message that was sent after the stall. So a leader that stalls again and again, and hears no majority in
//!   between, steps down. Only the check for the step-down uses the extended deadlines. They end once a majority has
//!   answered.
//! - **Early delivery.** Under a weak policy nothing more is delivered early until a majority has answered a message that was
//!   sent after the last stall. Each of these answers shows that its sender was in the leader's term after the stall. So
//!   no other leader was elected during it.
//!
//! Entries that a majority has persisted in this term are delivered meanwhile: no other leader can lack them. Causal reads
//! need no rule of their own, because each waits for the answers to a message that was sent after it was asked.

use super::local::Local;
use crate::types::*;

/// A leader has stalled if it runs later than it was due by at least this part (1/x) of an election timeout. A shorter delay
/// after a heartbeat does not end its term.
const FRACTION: Micros = 2;

/// The answers that a leader awaits after its stalls. Contexts number its messages to all peers: see `replication/`.
#[derive(Debug, Default)]
pub(super) struct StallCheck {
    /// The context that a majority must answer before the leader delivers early again; 0: no stall is open.
    awaited: u64,
    /// The context that a majority must answer before another stall extends the peers' deadlines; 0: none.
    extended: u64,
}

impl StallCheck {
    /// For how long a leader stalled that ran last at `ran_at` and was due at `due`, if it did.
    pub(super) fn length(local: &Local, ran_at: Micros, due: Micros) -> Option<Micros> {
        let length = local.now().saturating_sub(due.max(ran_at));
        (length > 0 && length >= local.config().election_timeout / FRACTION).then_some(length)
    }

    /// The leader has stalled. `next`: the context of its next message to all peers. `answered`: whether a majority has
    /// answered a context. Returns whether the stall extends the peers' deadlines.
    pub(super) fn begin(&mut self, next: u64, answered: impl Fn(u64) -> bool) -> bool {
        let extends = answered(self.extended);
        if extends {
            self.extended = next;
        }
        self.awaited = next;
        extends
    }

    /// Ends the check if a majority has answered. Returns whether a majority has answered since the stall that extended the
    /// deadlines, for the first time.
    pub(super) fn confirm(&mut self, answered: impl Fn(u64) -> bool) -> bool {
        if self.awaited != 0 && answered(self.awaited) {
            self.awaited = 0;
        }
        let ends = self.extended != 0 && answered(self.extended);
        if ends {
            self.extended = 0;
        }
        ends
    }

    /// Whether another leader may have been elected during a stall, as far as this leader knows.
    pub(super) fn is_open(&self) -> bool {
        self.awaited != 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::leader;
    use super::*;

    #[test]
    fn delay_after_due_time_is_stall_from_half_timeout_on() {
        let mut local = leader(3);
        let half = local.config().election_timeout / 2;
        local.advance(10 * half);
        let length = |ran_at, due| StallCheck::length(&local, ran_at, due);
        assert_eq!(length(8 * half, 9 * half), Some(half));
        assert_eq!(length(8 * half, 9 * half + 1), None);
        assert_eq!(length(9 * half + 1, 8 * half), None, "it ran, although its heartbeat was due");
        assert_eq!(length(7 * half, 11 * half), None, "it had nothing to do");
    }

    #[test]
    fn check_ends_with_answer_to_message_after_last_stall() {
        let mut check = StallCheck::default();
        check.begin(5, |context| context <= 4);
        check.confirm(|context| context <= 4);
        assert!(check.is_open());
        check.begin(6, |context| context <= 4);
        check.confirm(|context| context <= 5);
        assert!(check.is_open(), "the answers may be from before the second stall");
        check.confirm(|context| context <= 6);
        assert!(!check.is_open());
    }

    #[test]
    fn deadlines_are_extended_once_until_majority_answers() {
        let mut check = StallCheck::default();
        assert!(check.begin(5, |context| context <= 4));
        assert!(!check.begin(6, |context| context <= 4));
        assert!(!check.begin(7, |context| context <= 4));
        assert!(check.begin(8, |context| context <= 5), "a majority was heard after the extension");
        assert!(!check.begin(9, |context| context <= 7));
    }

    #[test]
    fn extension_ends_once_majority_answers() {
        let mut check = StallCheck::default();
        assert!(!check.confirm(|_| true), "there is none");
        check.begin(5, |context| context <= 4);
        check.begin(6, |context| context <= 4);
        assert!(!check.confirm(|context| context <= 4));
        assert!(check.confirm(|context| context <= 5), "a majority has answered since the first stall");
        assert!(check.is_open(), "it has not answered since the second stall");
        assert!(!check.confirm(|context| context <= 6) && !check.is_open());
    }
}
