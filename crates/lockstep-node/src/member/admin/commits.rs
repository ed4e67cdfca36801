//! Commit statistics of this member, and the count of transactions that would be lost with the leader.

use crate::member::context::Context;
use lockstep_core::policy::Policy;
use lockstep_core::{Entry, Seqno};

/// See the module's documentation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Commits {
    /// Semisync: transactions that returned with their acks.
    pub(crate) yes: u64,
    /// Semisync: transactions that returned without acks, after a fallback.
    pub(crate) no: u64,
    /// How often the policy has fallen back.
    pub(crate) fallbacks: u64,
    /// Sum of the times from append to return over `yes`, µs.
    pub(crate) waited: u64,
    /// Rescue files: those found at start, and those written since.
    pub(crate) rescued: u64,
    /// The transactions in the rescue files.
    pub(crate) rescued_transactions: u64,
}

impl Commits {
    /// Counts a local transaction that passed certification and may return. Transactions appended under another policy,
    /// or that return because the policy changed, are not counted.
    pub(in crate::member) fn acknowledged(&mut self, ctx: &Context, entry: &Entry, policy_at_append: Policy) {
        if !policy_at_append.awaits_acks() || !ctx.raft.committed_state().policy.awaits_acks() {
            return;
        }
        if ctx.raft.has_fallen_back() {
            self.no += 1;
        } else {
            self.yes += 1;
            self.waited += ctx.wall.saturating_sub(entry.time);
        }
    }

    /// Rescue files, and the transactions in them, were found at the start.
    pub(in crate::member) fn rescued_before(&mut self, files: u64, transactions: u64) {
        (self.rescued, self.rescued_transactions) = (files, transactions);
    }

    /// A rescue file with this many transactions has been written.
    pub(in crate::member) fn rescued(&mut self, transactions: u64) {
        self.rescued += 1;
        self.rescued_transactions += transactions;
    }
}

/// How many acknowledged transactions would be lost with the leader, by its last report. Without a known leader: by this
/// member's own delivery.
pub(in crate::member) fn at_risk(ctx: &Context, delivered: Seqno) -> u64 {
    let committed = ctx.raft.committed_state();
    let leader = ctx.raft.leader().and_then(|id| ctx.peers.get(&id));
    let theirs = leader.and_then(|peer| peer.health).map_or(0, |health| health.delivered);
    // A leader that is the only voter commits by itself: only entries known to be on another member are safe.
    let elsewhere = ctx.raft.persisted_elsewhere().unwrap_or(committed.seqno);
    let beyond = ctx.raft.seqnos_between(elsewhere, delivered.max(theirs));
    let weak = ctx.raft.policy().is_weak() || committed.policy.is_weak();
    if weak { beyond as u64 } else { 0 }
}
