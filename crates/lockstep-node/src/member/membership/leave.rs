//! An orderly leave: first the acknowledged transactions go to a majority, then leadership, the vote and the
//! connections are given up.
//!
//! Each step is bounded, or a stop could hang. The bounds differ. If the others are slow to take the vote, a few
//! election timeouts suffice: they elect a leader without this member and demote it. But a leader under a weak policy
//! may have acknowledged transactions that no majority has. If it leaves before a successor has them, the others drop
//! them although no member was lost or cut off. So it stays longer while it has such a tail.

use crate::api::ViewInfo;
use crate::effect::Effect;
use crate::member::leadership::{Candidate, best_successor};
use crate::member::membership::connection_state::ConnectionState;
use crate::member::{Delivery, Level, Member, Micros};

/// How long acknowledged but uncommitted transactions delay a leave; the front end waits longer than this for it.
const TAIL_TIMEOUT: Micros = 45_000_000;
/// After this long, the delay is logged.
const LOG_AFTER: Micros = 1_000_000;
/// And again this often.
const LOG_INTERVAL: Micros = 10_000_000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct Leave {
    /// This connection is being left, or has been.
    begun: bool,
    under_way: Option<UnderWay>,
    /// Why this member leaves for good although its log is intact: its server cannot go on.
    given_up: Option<String>,
}

impl Leave {
    /// A new connection begins.
    pub(in crate::member) fn reset(&mut self) {
        (self.begun, self.under_way) = (false, None);
    }

    /// Whether this connection is being left, or has been.
    pub(in crate::member) fn has_begun(&self) -> bool {
        self.begun
    }
}

/// A leave under way.
#[derive(Debug)]
struct UnderWay {
    began: Micros,
    /// When something was last at risk: all other timeouts count from then.
    at_risk_at: Micros,
    /// When to log the delay next.
    log_at: Micros,
}

impl Member {
    /// Begins an orderly leave.
    pub(crate) fn disconnect(&mut self) {
        if self.ctx.connection == ConnectionState::Idle || self.roster.leave.begun {
            return;
        }
        self.roster.leave.begun = true;
        let now = self.ctx.now;
        self.roster.leave.under_way = Some(UnderWay { began: now, at_risk_at: now, log_at: now + LOG_AFTER });
        self.wake_all(false);
        self.end_votes();
    }

    /// Whether a leave is under way: `Effect::Left` is still to come.
    pub(crate) fn is_leaving(&self) -> bool {
        self.roster.leave.under_way.is_some()
    }

    /// Leaves for good because the server cannot go on, for example because its data differ. The leave is orderly, so
    /// that the others do not miss its vote.
    pub(crate) fn give_up(&mut self, text: &str) {
        if !matches!(self.ctx.connection, ConnectionState::Running { .. }) {
            return self.fail(text);
        }
        self.roster.leave.given_up.get_or_insert_with(|| text.to_string());
        self.disconnect();
    }

    /// How many transactions this member's server and log have that the cluster has not committed.
    fn ahead(&self) -> i64 {
        if !self.ctx.connection.is_connected() || !self.deliverer.is_running() {
            return 0;
        }
        // Entries that the log has lost cannot be handed over.
        let held = self.deliverer.delivered().min(self.ctx.raft.tail_state().seqno);
        self.ctx.raft.seqnos_between(self.ctx.raft.committed_state().seqno, held)
    }

    /// Gives up leadership, then the vote, then the connections; each step is bounded.
    pub(in crate::member) fn leave_step(&mut self) {
        let (now, ahead, cut_off) = (self.ctx.now, self.ahead(), self.ctx.cut_off());
        let timeout = 8 * self.ctx.raft.election_timeout();
        let Some(leave) = &mut self.roster.leave.under_way else { return };
        // Connections may be back in a moment.
        let tail_timeout = if cut_off { timeout.min(TAIL_TIMEOUT) } else { TAIL_TIMEOUT };
        let at_risk = ahead > 0 && now.saturating_sub(leave.began) <= tail_timeout;
        if at_risk {
            leave.at_risk_at = now;
        }
        let log_at = at_risk && now >= leave.log_at;
        if log_at {
            leave.log_at = now + LOG_INTERVAL;
        }
        let expired = now.saturating_sub(leave.at_risk_at) > timeout;
        if log_at {
            self.ctx.log(
                Level::Info,
                format!(
                    "{ahead} acknowledged transactions are not on the disks of a majority yet: they are handed over \
                     before this member leaves"
                ),
            );
        }
        let membership = self.ctx.raft.membership();
        let other_voters =
            membership.voters().any(|id| id != self.ctx.me.id && self.ctx.peers.contains_key(&id));
        let votes = membership.is_voter(&self.ctx.me.id);
        // During an election there is no leader: wait, so as not to leave without giving up the vote.
        if votes && other_voters && !expired && !cut_off {
            if self.ctx.raft.is_leader() {
                let stays = |c: &Candidate| c.view_uuid.is_some() && !c.leaving;
                let successor = best_successor(&self.candidates(), stays);
                if let Some(successor) = successor {
                    let _ = self.ctx.raft.transfer_leadership(self.ctx.now, successor);
                    return;
                }
            } else {
                return;
            }
        }
        if at_risk {
            return;
        }
        // The entry that ends the vote must be committed, or it could be undone.
        let settled =
            self.ctx.raft.committed_state().membership_index == self.ctx.raft.tail_state().membership_index;
        if !settled && other_voters && !expired {
            return;
        }
        if ahead > 0 {
            self.ctx.log(
                Level::Warn,
                format!(
                    "this member leaves with {ahead} acknowledged transactions that are not on the disks of a \
                     majority: if the others go on without them, this member writes them to lockstep.rescue.*.log \
                     when it is back"
                ),
            );
        }
        let info = ViewInfo::disconnected(self.view_without_quorum().gtid);
        self.wake_all(true);
        self.ctx.deliver(Delivery::View { info, in_log: false });
        self.roster.leave.under_way = None;
        if !matches!(self.ctx.connection, ConnectionState::Failed(_)) {
            self.ctx.connection =
                self.roster.leave.given_up.take().map_or(ConnectionState::Idle, ConnectionState::Failed);
        }
        self.deliverer.stop();
        self.roster.sync.left();
        self.recovery.transfers.end();
        self.forget_peers();
        self.ctx.out.push(Effect::Left);
    }
}

#[cfg(test)]
#[path = "leave_tests.rs"]
mod tests;
