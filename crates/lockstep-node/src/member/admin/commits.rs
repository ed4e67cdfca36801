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
            self.waited += ctx.wall().saturating_sub(entry.time);
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
    let leader = ctx.raft.leader().and_then(|id| ctx.peers.health_of(&id));
    let theirs = leader.map_or(0, |health| health.delivered);
    // A leader that is the only voter commits by itself: only entries known to be on another member are safe.
    let elsewhere = ctx.raft.persisted_elsewhere().unwrap_or(committed.seqno);
    let beyond = ctx.raft.seqnos_between(elsewhere, delivered.max(theirs));
    let weak = ctx.raft.policy().is_weak() || committed.policy.is_weak();
    if weak { beyond as u64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Tuning;
    use crate::member::harness::Lab;
    use lockstep_core::policy::PolicyKind;
    use lockstep_core::{EntryHeader, EntryKind, ProposalId};

    /// The only voter. Its replica has all entries, and is silent from now on.
    fn leader_under(kind: PolicyKind) -> Lab {
        let mut lab = Lab::new(1, &Tuning::default());
        lab.add(&Tuning::default(), |hello| hello.wants_vote = false);
        lab.until("the replica is in", 5_000_000, |lab| {
            lab.nodes[0].views.last().is_some_and(|v| v.len() == 2)
        });
        lab.set_policy(|policy| (policy.kind, policy.timeout) = (kind, 500_000));
        lab.run(1_000_000);
        lab.nodes[1].frozen = true;
        lab
    }

    /// A transaction appended this long ago.
    fn entry(ctx: &Context, age: u64) -> Entry {
        let (kind, proposal) = (EntryKind::WriteSet, ProposalId::default());
        let header = EntryHeader { index: 9, term: 1, kind, seqno: 9, proposal, time: ctx.wall() - age };
        Entry::new(header, b"")
    }

    #[test]
    fn acks_are_counted_only_under_semisync() {
        let [quorum, semisync] = [PolicyKind::Quorum, PolicyKind::Semisync].map(Policy::of);
        let mut commits = Commits::default();
        let lab = leader_under(PolicyKind::Quorum);
        let ctx = &lab.nodes[0].member.ctx;
        commits.acknowledged(ctx, &entry(ctx, 50), semisync);
        assert_eq!((commits.yes, commits.no), (0, 0), "the policy has changed meanwhile");

        let lab = leader_under(PolicyKind::Semisync);
        let ctx = &lab.nodes[0].member.ctx;
        commits.acknowledged(ctx, &entry(ctx, 50), quorum);
        assert_eq!((commits.yes, commits.no), (0, 0), "it was appended under another policy");
        commits.acknowledged(ctx, &entry(ctx, 50), semisync);
        commits.acknowledged(ctx, &entry(ctx, 20), semisync);
        assert_eq!((commits.yes, commits.no, commits.waited), (2, 0, 70));
    }

    #[test]
    fn commit_after_fallback_counts_as_without_acks() {
        let mut lab = leader_under(PolicyKind::Semisync);
        lab.write(0);
        lab.until("it falls back", 20_000_000, |lab| lab.nodes[0].member.ctx.raft.has_fallen_back());
        let ctx = &lab.nodes[0].member.ctx;
        let mut commits = Commits::default();
        commits.acknowledged(ctx, &entry(ctx, 50), Policy::of(PolicyKind::Semisync));
        assert_eq!((commits.yes, commits.no, commits.waited), (0, 1, 0));
    }

    #[test]
    fn delivered_beyond_commit_is_at_risk_only_under_weak_policy() {
        for (kind, lost) in [(PolicyKind::Quorum, 0), (PolicyKind::All, 0), (PolicyKind::Async, 3)] {
            let lab = leader_under(kind);
            let ctx = &lab.nodes[0].member.ctx;
            let committed = ctx.raft.committed_state().seqno;
            assert_eq!(at_risk(ctx, committed + 3), lost, "{kind:?}");
            assert_eq!(at_risk(ctx, committed), 0, "{kind:?}");
        }
    }

    #[test]
    fn rescue_files_found_and_written_are_added_up() {
        let mut commits = Commits::default();
        commits.rescued_before(2, 40);
        commits.rescued(3);
        commits.rescued(0);
        assert_eq!((commits.rescued, commits.rescued_transactions), (4, 43));
    }
}
