//! When and what `ls-node` publishes: the state after each round, the status a few times a second.

use crate::api::LocalState;
use crate::io::published::{Published, RoundState};
use crate::member::{Member, branch};
use lockstep_core::{Micros, Seqno, Uuid};

/// How often the published status is made anew.
const STATUS_PERIOD: Micros = 200_000;

/// See the module.
#[derive(Default)]
pub(crate) struct Publisher {
    status_at: Micros,
    /// Since when the member is in its state.
    state_since: Micros,
    /// The state has changed since the last status.
    changed: bool,
    /// The published history and log id; nil if there is no log.
    log: (Uuid, Uuid),
}

impl Publisher {
    /// Publishes the state that the front end's threads check before each step. Returns a line for the log if this
    /// member's state has changed.
    pub(crate) fn publish_round(&mut self, now: Micros, member: &Member, to: &Published) -> Option<String> {
        let raft = &member.ctx.raft;
        let before = to.set_round(&RoundState {
            state: member.local_state(),
            primary: member.ctx.connection().is_primary(),
            delivered: member.delivery.deliverer.delivered(),
            lost_after: member.lost_after(),
            may_originate: member.may_originate(),
            held_back: member.ctx.is_held_back(),
            pace: member.delivery.pace.present(&member.ctx),
            policy: raft.committed_state().policy,
            confirmations: member.delivery.confirmations.recent(),
        });
        // The front end names the log in grastate.dat when it gets a view, so it must know the log by then.
        let tail = member.ctx.raft.tail_state();
        if self.log != (tail.history, tail.log_id) {
            self.log = (tail.history, tail.log_id);
            to.set_history(tail.history, tail.log_id, branch::own_forks(&member.ctx));
        }
        before.map(|before| {
            self.state_since = now;
            self.changed = true;
            shift_text(before, member.local_state(), member.delivery.deliverer.delivered())
        })
    }

    /// Whether to make a new status now: after a change of the state, or for a delivery (`at_once`), at once.
    pub(crate) fn is_status_due(&mut self, now: Micros, at_once: bool) -> bool {
        let due = std::mem::take(&mut self.changed) || at_once || now >= self.status_at + STATUS_PERIOD;
        if due {
            self.status_at = now;
        }
        due
    }

    pub(crate) fn state_since(&self) -> Micros {
        self.state_since
    }
}

/// A change of the member's state, in the words of Galera's library: log monitors search for them. Galera's states
/// PRIMARY and CLOSED do not occur: a member without a primary component is OPEN, also after it has left.
fn shift_text(before: LocalState, now: LocalState, delivered: Seqno) -> String {
    format!("Shifting {} -> {} (TO: {delivered})", state_name(before), state_name(now))
}

fn state_name(state: LocalState) -> &'static str {
    match state {
        LocalState::Initialized => "OPEN",
        LocalState::Joining => "JOINER",
        LocalState::Donor => "DONOR/DESYNCED",
        LocalState::Joined => "JOINED",
        LocalState::Synced => "SYNCED",
        LocalState::Error => "ERROR",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_of_state_is_logged_in_galeras_words() {
        let text = shift_text(LocalState::Synced, LocalState::Donor, 42);
        assert_eq!(text, "Shifting SYNCED -> DONOR/DESYNCED (TO: 42)");
    }

    #[test]
    fn status_is_due_after_its_period_a_change_or_for_a_delivery() {
        let mut publisher = Publisher::default();
        assert!(publisher.is_status_due(STATUS_PERIOD, false));
        assert!(!publisher.is_status_due(STATUS_PERIOD + 1, false));
        publisher.changed = true;
        assert!(publisher.is_status_due(STATUS_PERIOD + 2, false));
        assert!(!publisher.is_status_due(STATUS_PERIOD + 3, false));
        assert!(publisher.is_status_due(STATUS_PERIOD + 4, true));
    }
}
