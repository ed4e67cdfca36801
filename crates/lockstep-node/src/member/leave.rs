//! An orderly leave: what was answered goes first, then leadership, then the vote, then the connections.
//!
//! Each step is bounded, or a stop could hang. The bounds differ: for a member whose others are slow to take its vote a
//! few election timeouts are enough, since they elect without it and take it out themselves. But a leader under a weak
//! policy may have answered what no majority has. Where it goes before an heir has that, the others leave it out, and
//! nobody was lost or cut off who could be blamed. So it stays for longer while such a tail is there.

use super::connection_state::ConnectionState;
use super::{Delivery, Effect, Level, Member, Micros};
use crate::api::ViewInfo;

/// What was answered and is not agreed on holds up a leave for no longer: less than the front end waits for it.
const TAIL_PATIENCE: Micros = 45_000_000;
/// That it does is said once it has for so long.
const SAY_AFTER: Micros = 1_000_000;
/// And again this often.
const SAY_EVERY: Micros = 10_000_000;

/// A leave under way.
#[derive(Debug)]
pub(super) struct Leave {
    began: Micros,
    /// The last moment at which something was at risk: the patience for all else counts from there.
    at_risk_at: Micros,
    /// When to say next that something is.
    say: Micros,
}

impl Member {
    /// Asks to leave in good order.
    pub(crate) fn disconnect(&mut self) {
        if self.connection == ConnectionState::Idle || self.leaving {
            return;
        }
        self.leaving = true;
        let now = self.now;
        self.leave = Some(Leave { began: now, at_risk_at: now, say: now + SAY_AFTER });
        self.wake_all(false);
        self.end_votes();
    }

    /// Whether it is on its way out: `Effect::Left` is still to come.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leave.is_some()
    }

    /// This member's server cannot go on, because its data differ, for one: it leaves in good order, so that the others
    /// need not wait for its vote, and does not come back.
    pub(crate) fn give_up(&mut self, text: &str) {
        if !matches!(self.connection, ConnectionState::Running { .. }) {
            return self.fail(text);
        }
        self.given_up.get_or_insert_with(|| text.to_string());
        self.disconnect();
    }

    /// How many transactions this member's server has, and its log, that the cluster has not agreed on.
    fn ahead(&self) -> i64 {
        if !self.connection.is_connected() || !self.deliverer.is_running() {
            return 0;
        }
        // What the log has lost cannot be handed over any more.
        let held = self.deliverer.delivered().min(self.raft.tail_state().seqno);
        self.raft.seqnos_between(self.raft.committed_state().seqno, held)
    }

    /// Leadership goes first, then the vote, then the connections; each bounded.
    pub(super) fn leave_step(&mut self) {
        let (now, ahead, cut_off) = (self.now, self.ahead(), self.cut_off());
        let patience = 8 * self.raft.election_timeout();
        let Some(leave) = &mut self.leave else { return };
        // Who is cut off may be connected again in a moment.
        let tail_patience = if cut_off { patience.min(TAIL_PATIENCE) } else { TAIL_PATIENCE };
        let at_risk = ahead > 0 && now.saturating_sub(leave.began) <= tail_patience;
        if at_risk {
            leave.at_risk_at = now;
        }
        let say = at_risk && now >= leave.say;
        if say {
            leave.say = now + SAY_EVERY;
        }
        let expired = now.saturating_sub(leave.at_risk_at) > patience;
        if say {
            self.log(
                Level::Info,
                format!(
                    "{ahead} transactions that were answered are not on the disks of a majority yet: they are handed over \
                     before this member leaves"
                ),
            );
        }
        let membership = self.raft.membership();
        let other_voters = membership.voters().any(|id| id != self.me.id && self.peers.contains_key(&id));
        let votes = membership.is_voter(&self.me.id);
        // Between two leaders there is none: that is no reason to go without handing in the vote.
        if votes && other_voters && !expired && !cut_off {
            if self.raft.is_leader() {
                let heir = self.best_successor(|id| self.peers.get(id).is_some_and(|p| !p.leaving()));
                if let Some(heir) = heir {
                    let _ = self.raft.transfer_leadership(self.now, heir);
                    return;
                }
            } else {
                return;
            }
        }
        if at_risk {
            return;
        }
        // The entry that ends the vote must be committed, or it might be undone.
        let settled = self.raft.committed_state().membership_index == self.raft.tail_state().membership_index;
        if !settled && other_voters && !expired {
            return;
        }
        if ahead > 0 {
            self.log(
                Level::Warn,
                format!(
                    "this member leaves with {ahead} transactions that were answered and are not on the disks of a majority: \
                     if the others go on without them, this member writes them to lockstep.rescue.*.log when it is back"
                ),
            );
        }
        let info = ViewInfo::disconnected(self.view_without_quorum().gtid);
        self.wake_all(true);
        self.deliver(Delivery::View { info, in_log: false });
        self.leave = None;
        if !matches!(self.connection, ConnectionState::Failed(_)) {
            self.connection = self.given_up.take().map_or(ConnectionState::Idle, ConnectionState::Failed);
        }
        self.deliverer.stop();
        // `desyncs` stay: the server has not forgotten that it wants to lag, when it connects again.
        self.told_synced = false;
        self.lagging = false;
        self.donations.clear();
        self.state_request = None;
        self.forget_peers();
        self.effects.push(Effect::Left);
    }
}

#[cfg(test)]
#[path = "leave_tests.rs"]
mod tests;
