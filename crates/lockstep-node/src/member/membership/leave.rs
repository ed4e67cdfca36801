//! An orderly leave: first the acknowledged transactions go to a majority, then leadership, the vote and the
//! connections are given up. If the connected voters could not go on without the vote, the member keeps it: then writes
//! wait, and no commit relies on fewer disks than before.
//!
//! Each step is bounded, or a stop could hang. The bounds differ. If the others are slow to take the vote, a few
//! election timeouts suffice: they elect a leader without this member and demote it. But a leader under a weak policy
//! may have acknowledged transactions that no majority has. If it leaves before a successor has them, the others drop
//! them although no member was lost or cut off. So it stays longer while it has such a tail.

use crate::api::Level;
use crate::member::context::Context;
use crate::member::facts::Standing;
use crate::member::leadership::{Candidate, best_successor};
use crate::member::membership::leader_tasks::gives_up_vote;
use lockstep_core::Micros;

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

    /// Begins the leave. Returns whether it had not begun yet.
    pub(in crate::member) fn begin(&mut self, now: Micros) -> bool {
        if self.begun {
            return false;
        }
        self.begun = true;
        self.under_way = Some(UnderWay { began: now, at_risk_at: now, log_at: now + LOG_AFTER });
        true
    }

    /// Why this member leaves for good. The first reason counts.
    pub(in crate::member) fn give_up(&mut self, text: &str) {
        self.given_up.get_or_insert_with(|| text.to_string());
    }

    /// Whether this member leaves for good.
    pub(in crate::member) fn is_for_good(&self) -> bool {
        self.given_up.is_some()
    }

    /// Takes the reason for which this member leaves for good, if there is one.
    pub(in crate::member) fn take_given_up(&mut self) -> Option<String> {
        self.given_up.take()
    }

    /// Whether the leave has begun and not ended: [`crate::effect::Effect::Left`] is still to come.
    pub(in crate::member) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Gives up leadership, then the vote; each step is bounded. Returns whether the connections may end now.
    pub(in crate::member) fn step(&mut self, ctx: &mut Context, own: Standing) -> bool {
        let Some(leave) = &mut self.under_way else { return false };
        let (now, ahead, cut_off) = (ctx.now(), ahead(ctx, own), ctx.cut_off());
        let timeout = 8 * ctx.raft.election_timeout();
        // Connections may be back in a moment.
        let tail_timeout = if cut_off { timeout.min(TAIL_TIMEOUT) } else { TAIL_TIMEOUT };
        let at_risk = ahead > 0 && now.saturating_sub(leave.began) <= tail_timeout;
        if at_risk {
            leave.at_risk_at = now;
        }
        if at_risk && now >= leave.log_at {
            leave.log_at = now + LOG_INTERVAL;
            ctx.log(
                Level::Info,
                format!(
                    "{ahead} acknowledged {} are not on the disks of a majority yet: they are handed over before this \
                     member leaves",
                    ctx.terms().entries
                ),
            );
        }
        let expired = now.saturating_sub(leave.at_risk_at) > timeout;
        let membership = ctx.raft.membership();
        let other_voters = membership.voters().any(|id| id != ctx.me().id && ctx.peers.contains_key(&id));
        let votes = membership.is_voter(&ctx.me().id);
        // During an election there is no leader: wait, so as not to leave without giving up the vote.
        if votes && other_voters && !expired && !cut_off {
            let stays = |c: &Candidate| c.view_uuid.is_some() && !c.leaving;
            if !ctx.raft.is_leader() {
                // The leader may be connected with voters that this member does not reach.
                let leader_decides = now.saturating_sub(leave.began) <= ctx.raft.election_timeout();
                if leader_decides || gives_up_vote(ctx) {
                    return false;
                }
            } else if let Some(successor) = best_successor(&ctx.candidates(), stays) {
                let _ = ctx.raft.transfer_leadership(now, successor);
                return false;
            }
        }
        if at_risk {
            return false;
        }
        // The entry that ends the vote must be committed, or it could be undone.
        let settled = ctx.raft.committed_state().membership_index == ctx.raft.tail_state().membership_index;
        if !settled && other_voters && !expired {
            return false;
        }
        if ahead > 0 {
            ctx.log(
                Level::Warn,
                format!(
                    "this member leaves with {ahead} acknowledged {} that are not on the disks of a majority: if the \
                     others go on without them, this member writes them to lockstep.rescue.*.log when it is back",
                    ctx.terms().entries
                ),
            );
        }
        let voters: Vec<String> = ctx.raft.membership().voters().map(|id| ctx.name_of(&id)).collect();
        if votes && voters.len() > 1 {
            ctx.log(
                Level::Info,
                format!(
                    "this member keeps its vote while it is away: a commit needs a majority of {}",
                    voters.join(", ")
                ),
            );
        }
        self.under_way = None;
        true
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

/// How many transactions this member's server and log have that the cluster has not committed.
fn ahead(ctx: &Context, own: Standing) -> i64 {
    if !ctx.connection().is_connected() || !own.delivering {
        return 0;
    }
    // Entries that the log has lost cannot be handed over.
    let held = own.delivered.min(ctx.raft.tail_state().seqno);
    ctx.raft.seqnos_between(ctx.raft.committed_state().seqno, held)
}

#[cfg(test)]
#[path = "leave_tests.rs"]
mod tests;
