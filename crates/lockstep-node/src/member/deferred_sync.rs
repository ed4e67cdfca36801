//! Whose sync does a commit wait for? For those of a majority, and for the origin's own, for a server is handed only what
//! its own log has. In a group of three with one writer that is two of three disks: the third member's sync makes
//! nobody's commit earlier, so it may wait a moment for more to come together. That halves its work, and where members
//! share a disk or processors, the others' commits get faster.
//!
//! Who is *needed* for an entry is a matter of order: the leader, the origin, then the others as they follow the leader in
//! the order of ids, as many as make a majority. Left out are those who are not connected, and those who are surely
//! farther from the leader than this member is: whose acks come later than its own anyway. Nothing depends on members
//! agreeing about it: who is wrong syncs a moment sooner or later than it had to. And who finds again and again that an
//! entry was not committed when its own late sync was done, because one of those disks is slow or gone, waits no more
//! for a while.

use super::{Member, Micros};
use crate::writer::SYNC_WAIT;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::raft::WriteOp;
use lockstep_core::{Entry, EntryKind, Index, MemberId};

/// How long a member that was needed after all does not wait.
const EAGER: Micros = 1_000_000;
/// After so many late syncs in succession without which an entry would not have been committed so soon. One is
/// no evidence: word of a commit comes with what the leader sends next.
const MISSED: u32 = 3;

/// So much farther, µs, is not farther: what a local network and its disks make of a round trip.
const AS_NEAR: Micros = 2_000;

/// Syncs that were told that they may wait.
#[derive(Debug, Default)]
pub(super) struct DeferredSyncs {
    /// The first of those under way: its ticket, the first entry, and since when.
    under_way: Option<(u64, Index, Micros)>,
    /// How many in succession were missed.
    missed: u32,
    eager_until: Micros,
}

/// Whether no commit waits for the disks of more than a majority of so many voters. Weak policies wait for fewer, and
/// what a majority has is no longer at risk: that is not to come later than under `quorum`.
fn a_majority_is_enough(policy: Policy, voters: usize) -> bool {
    let with_leader = match policy.kind {
        PolicyKind::Quorum | PolicyKind::Async => 0,
        PolicyKind::Semisync => usize::from(policy.acks) + 1,
        PolicyKind::All => return false,
    };
    policy.zone_acks == 0 && with_leader <= voters / 2 + 1
}

/// Whether the other one's ack surely reaches the leader later than this member's: by the zones, where these say it, and
/// by what this member measures: the way to the other one is no longer than those of both to the leader together.
fn is_farther(own_way: Option<Micros>, zones: [u8; 3], its_way: Option<Micros>) -> bool {
    let [leader, own, its] = zones;
    let elsewhere = own == leader && its != leader;
    let far = own_way.zip(its_way).is_some_and(|(own, its)| its > own.saturating_mul(2) + AS_NEAR);
    elsewhere || far
}

/// Whether `me` is among those whose syncs are waited for. `voters` ascend; `up` says who is there, and not too far.
fn is_needed(
    me: MemberId,
    leader: MemberId,
    origin: MemberId,
    voters: &[MemberId],
    up: impl Fn(&MemberId) -> bool,
) -> bool {
    if me == leader || me == origin {
        return true;
    }
    let majority = voters.len() / 2 + 1;
    let voting = |id: &MemberId| voters.contains(id);
    let first = voting(&leader) as usize + (origin != leader && voting(&origin)) as usize;
    let at = voters.partition_point(|id| *id <= leader);
    let others = voters[at..].iter().chain(&voters[..at]).filter(|id| **id != leader && **id != origin);
    others.filter(|id| **id == me || up(id)).take(majority.saturating_sub(first)).any(|id| *id == me)
}

impl Member {
    /// Whether the sync of this write may wait.
    pub(super) fn may_defer_sync(&mut self, op: &WriteOp) -> bool {
        let may_wait = self.now >= self.deferred_syncs.eager_until
            && self.causal.is_empty()
            && self.nobody_waits_for(op);
        if let (true, None, Some(first)) = (may_wait, self.deferred_syncs.under_way, op.entries.first()) {
            self.deferred_syncs.under_way = Some((op.ticket, first.index, self.now));
        }
        may_wait
    }

    /// Everything up to this ticket is on the disk: was it missed?
    pub(super) fn sync_done(&mut self, ticket: u64) {
        let Some((_, first, since)) = self.deferred_syncs.under_way.take_if(|(late, ..)| *late <= ticket)
        else {
            return;
        };
        let waited = self.now.saturating_sub(since) >= SYNC_WAIT.as_micros() as Micros;
        self.deferred_syncs.missed =
            if waited && self.raft.commit() < first { self.deferred_syncs.missed + 1 } else { 0 };
        if self.deferred_syncs.missed >= MISSED {
            self.deferred_syncs.missed = 0;
            self.deferred_syncs.eager_until = self.now + EAGER;
        }
    }

    fn nobody_waits_for(&self, op: &WriteOp) -> bool {
        let plain =
            op.reset.is_none() && op.truncate_from.is_none() && op.roll.is_none() && op.vote.is_none();
        let Some(leader) = self.raft.leader().filter(|_| plain && self.connection.is_primary()) else {
            return false;
        };
        let voters: Vec<MemberId> = self.raft.membership().voters().collect();
        if op.entries.is_empty() || !a_majority_is_enough(self.raft.policy(), voters.len()) {
            return false;
        }
        // The ack that lets a commit under semisync return may be that of a member without a vote.
        let Policy { kind, acks, .. } = self.raft.policy();
        if kind == PolicyKind::Semisync && acks > 0 && !voters.contains(&self.me.id) {
            return false;
        }
        let own_way = self.way_to(&leader);
        let leaders_zone = self.peers.get(&leader).map_or(self.me.zone, |peer| peer.hello.zone);
        let counts = |id: &MemberId| {
            self.peers.get(id).is_some_and(|peer| {
                !is_farther(own_way, [leaders_zone, self.me.zone, peer.hello.zone], peer.rtt)
            })
        };
        let needed = |entry: &Entry| {
            let data = matches!(entry.kind, EntryKind::WriteSet | EntryKind::Trim);
            !data || is_needed(self.me.id, leader, entry.proposal.member, &voters, counts)
        };
        !op.entries.iter().any(needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_core::Uuid;

    fn id(n: u8) -> MemberId {
        Uuid([n; 16])
    }

    fn needed(members: u8, leader: u8, origin: u8, down: &[u8]) -> Vec<u8> {
        let voters: Vec<MemberId> = (1..=members).map(id).collect();
        let up = |other: &MemberId| !down.iter().any(|n| id(*n) == *other);
        (1..=members).filter(|me| is_needed(id(*me), id(leader), id(origin), &voters, up)).collect()
    }

    #[test]
    fn those_whose_disks_make_the_majority_are_needed_and_the_origin() {
        assert_eq!(needed(3, 1, 1, &[]), [1, 2]);
        assert_eq!(needed(3, 3, 3, &[]), [1, 3]);
        assert_eq!(needed(3, 1, 3, &[]), [1, 3]);
        assert_eq!(needed(5, 4, 4, &[]), [1, 4, 5]);
        assert_eq!(needed(5, 4, 1, &[]), [1, 4, 5]);
        assert_eq!(needed(5, 4, 3, &[]), [3, 4, 5]);
        assert_eq!(needed(2, 1, 1, &[]), [1, 2]);
        assert_eq!(needed(1, 1, 1, &[]), [1]);
    }

    #[test]
    fn who_waits_for_more_than_a_majority_lets_no_sync_wait() {
        let semisync = |acks| Policy { acks, ..Policy::of(PolicyKind::Semisync) };
        assert!(a_majority_is_enough(Policy::of(PolicyKind::Quorum), 3));
        assert!(a_majority_is_enough(Policy::of(PolicyKind::Async), 3));
        assert!(!a_majority_is_enough(Policy::of(PolicyKind::All), 3));
        assert!(a_majority_is_enough(semisync(1), 3) && a_majority_is_enough(semisync(1), 2));
        assert!(!a_majority_is_enough(semisync(2), 3) && a_majority_is_enough(semisync(2), 5));
        assert!(!a_majority_is_enough(Policy { zone_acks: 1, ..Policy::of(PolicyKind::Quorum) }, 3));
    }

    #[test]
    fn who_is_far_away_is_not_waited_for_by_who_is_near() {
        let (near, far) = (Some(300), Some(80_000));
        assert!(is_farther(near, [0, 0, 0], far));
        assert!(!is_farther(far, [0, 0, 0], far), "it may be beside the leader");
        assert!(!is_farther(near, [0, 0, 0], Some(1_500)), "a busy network");
        assert!(is_farther(None, [0, 0, 1], None) && !is_farther(None, [0, 0, 0], None));
        assert!(!is_farther(None, [0, 1, 0], None) && !is_farther(None, [0, 1, 2], None));
        // 2 is first by its id, and far; 3 is near.
        let voters = [id(1), id(2), id(3)];
        assert!(!is_needed(id(3), id(1), id(1), &voters, |_| true));
        assert!(is_needed(id(3), id(1), id(1), &voters, |other| *other != id(2)));
    }

    #[test]
    fn the_next_one_stands_in_for_one_that_is_away() {
        // 2 itself cannot know that it is away.
        assert_eq!(needed(3, 1, 1, &[2]), [1, 2, 3]);
        assert_eq!(needed(5, 1, 1, &[2, 3]), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_learner_is_needed_for_its_own_only() {
        let voters = [id(1), id(2), id(3)];
        assert!(!is_needed(id(9), id(1), id(1), &voters, |_| true));
        assert!(is_needed(id(9), id(1), id(9), &voters, |_| true));
        assert!(is_needed(id(2), id(1), id(9), &voters, |_| true), "the learner's disk makes no majority");
    }
}
