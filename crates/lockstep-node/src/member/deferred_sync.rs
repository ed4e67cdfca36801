//! Deferred syncs: a member whose sync no commit needs may delay it, so that more entries share one sync.
//!
//! A commit needs the syncs of a majority, and of the origin: a server only gets entries in its own log. With three
//! members and one writer that is two of three disks. Deferral halves the third member's work; if members share a disk
//! or processors, the others' commits get faster.
//!
//! The *needed* members of an entry are the leader, the origin, and then the others as they follow the leader in id
//! order, up to a majority. Members that are not connected are skipped. So are members surely farther from the leader
//! than this one, since their acks come later. Members need not agree on this: a wrong guess only makes a sync earlier
//! or later than necessary. If entries are repeatedly uncommitted when this member's deferred sync ends, one of the
//! needed disks is slow or gone: the member then defers nothing for a while.
//!
//! A reader of the log whose consumers wait for each entry ([`crate::FrontEnd::Reader`], `prompt`) defers nothing. It delivers
//! only entries on its own disk, so each transaction would arrive later by the time of the deferral. Entries that arrive
//! during a sync share the next one.
//!
//! Gain (2026-11-25, `bench cluster`, `oltp_update_index`, two processors): 10 % with one thread; with 16 none, at 12 %
//! less processor time.

use crate::effect::SYNC_DEFERRAL;
use crate::member::context::Context;
use lockstep_core::members::Membership;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::raft::WriteOp;
use lockstep_core::{Entry, EntryKind, Index, MemberId, Micros};

/// How long a member defers nothing after its syncs were missed.
const EAGER_PERIOD: Micros = 1_000_000;
/// After this many missed syncs in succession, deferral stops. One proves nothing: news of a commit comes only with the
/// leader's next message.
const MISSED_MAX: u32 = 3;

/// Differences in round trip below this, µs, do not count: a local network and its disks cause as much.
const RTT_TOLERANCE: Micros = 2_000;

/// Deferred syncs under way.
#[derive(Debug, Default)]
pub(super) struct DeferredSyncs {
    /// The first one under way: its ticket, its first entry, and since when.
    under_way: Option<(u64, Index, Micros)>,
    /// How many in succession were missed.
    missed: u32,
    eager_until: Micros,
}

/// Whether no commit needs more disks than a majority of `voters`. Weak policies need fewer; but entries leave the risk
/// once a majority has them, which must not take longer than under `quorum`.
fn majority_suffices(policy: Policy, voters: usize) -> bool {
    let with_leader = match policy.kind {
        PolicyKind::Quorum | PolicyKind::Async => 0,
        PolicyKind::Semisync => usize::from(policy.acks) + 1,
        PolicyKind::All => return false,
    };
    policy.zone_acks == 0 && with_leader <= voters / 2 + 1
}

/// Whether the other member's ack surely reaches the leader later than this one's. Either the zones say so, or the
/// measured distance does: the other's is more than twice this member's own distance to the leader.
fn is_farther(own_rtt: Option<Micros>, zones: [u8; 3], other_rtt: Option<Micros>) -> bool {
    let [leader, own, its] = zones;
    let elsewhere = own == leader && its != leader;
    let far = own_rtt.zip(other_rtt).is_some_and(|(own, its)| its > own.saturating_mul(2) + RTT_TOLERANCE);
    elsewhere || far
}

/// Whether the sync of `me` is needed. `voters` ascend; `up` says which members are connected and not too far.
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

/// Whether no commit needs this member's sync of `op`. `counts`: the other member is connected, and not farther from the
/// leader than this one.
fn no_commit_needs(
    op: &WriteOp,
    me: MemberId,
    leader: MemberId,
    membership: &Membership,
    policy: Policy,
    counts: impl Fn(&MemberId) -> bool,
) -> bool {
    let plain = op.reset.is_none() && op.truncate_from.is_none() && op.roll.is_none() && op.vote.is_none();
    if !plain || op.entries.is_empty() {
        return false;
    }
    let voters: Vec<MemberId> = membership.voters().collect();
    if !majority_suffices(policy, voters.len()) {
        return false;
    }
    // Under semisync, a commit may return on the ack of a member without a vote.
    if policy.kind == PolicyKind::Semisync && policy.acks > 0 && !voters.contains(&me) {
        return false;
    }
    let needed = |entry: &Entry| {
        let data = matches!(entry.kind, EntryKind::WriteSet | EntryKind::Trim);
        !data || is_needed(me, leader, entry.proposal.member, &voters, &counts)
    };
    !op.entries.iter().any(needed)
}

impl DeferredSyncs {
    /// Whether the sync of `op` may be deferred. If so, it counts as deferred.
    pub(super) fn may_defer(&mut self, ctx: &Context, op: &WriteOp) -> bool {
        if ctx.front_end().is_prompt() {
            return false;
        }
        let Some(leader) =
            ctx.raft.leader().filter(|_| ctx.connection().is_primary() && self.is_allowed(ctx.now()))
        else {
            return false;
        };
        let own_rtt = ctx.peers.rtt_to(&leader);
        let leaders_zone = ctx.peers.get(&leader).map_or(ctx.me().zone, |peer| peer.hello().zone);
        let counts = |id: &MemberId| {
            ctx.peers.get(id).is_some_and(|peer| {
                let zones = [leaders_zone, ctx.me().zone, peer.hello().zone];
                !is_farther(own_rtt, zones, peer.rtt())
            })
        };
        let unneeded =
            no_commit_needs(op, ctx.me().id, leader, &ctx.raft.membership(), ctx.raft.policy(), counts);
        if unneeded {
            self.begin(ctx.now(), op);
        }
        unneeded
    }

    fn is_allowed(&self, now: Micros) -> bool {
        now >= self.eager_until
    }

    fn begin(&mut self, now: Micros, op: &WriteOp) {
        if let (None, Some(first)) = (self.under_way, op.entries.first()) {
            self.under_way = Some((op.ticket, first.index, now));
        }
    }

    /// Everything up to this ticket is on disk: checks whether a commit missed it.
    pub(super) fn synced(&mut self, now: Micros, ticket: u64, commit: Index) {
        let Some((_, first, since)) = self.under_way.take_if(|(deferred, ..)| *deferred <= ticket) else {
            return;
        };
        let waited = now.saturating_sub(since) >= SYNC_DEFERRAL.as_micros() as Micros;
        self.missed = if waited && commit < first { self.missed + 1 } else { 0 };
        if self.missed >= MISSED_MAX {
            self.missed = 0;
            self.eager_until = now + EAGER_PERIOD;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::write_op;
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
    fn sync_is_needed_of_majority_and_origin() {
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
    fn policy_beyond_majority_defers_no_sync() {
        let semisync = |acks| Policy { acks, ..Policy::of(PolicyKind::Semisync) };
        assert!(majority_suffices(Policy::of(PolicyKind::Quorum), 3));
        assert!(majority_suffices(Policy::of(PolicyKind::Async), 3));
        assert!(!majority_suffices(Policy::of(PolicyKind::All), 3));
        assert!(majority_suffices(semisync(1), 3) && majority_suffices(semisync(1), 2));
        assert!(!majority_suffices(semisync(2), 3) && majority_suffices(semisync(2), 5));
        assert!(!majority_suffices(Policy { zone_acks: 1, ..Policy::of(PolicyKind::Quorum) }, 3));
    }

    #[test]
    fn near_member_does_not_count_on_far_one() {
        let (near, far) = (Some(300), Some(80_000));
        assert!(is_farther(near, [0, 0, 0], far));
        assert!(!is_farther(far, [0, 0, 0], far), "it may be beside the leader");
        assert!(!is_farther(near, [0, 0, 0], Some(1_500)), "a busy network");
        assert!(is_farther(None, [0, 0, 1], None) && !is_farther(None, [0, 0, 0], None));
        assert!(!is_farther(None, [0, 1, 0], None) && !is_farther(None, [0, 1, 2], None));
        // 2 is first by id, and far away; 3 is near.
        let voters = [id(1), id(2), id(3)];
        assert!(!is_needed(id(3), id(1), id(1), &voters, |_| true));
        assert!(is_needed(id(3), id(1), id(1), &voters, |other| *other != id(2)));
    }

    #[test]
    fn absent_member_is_replaced_by_next() {
        // 2 itself cannot know that it is away.
        assert_eq!(needed(3, 1, 1, &[2]), [1, 2, 3]);
        assert_eq!(needed(5, 1, 1, &[2, 3]), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn missed_syncs_end_deferral_for_a_while() {
        let deferral = SYNC_DEFERRAL.as_micros() as Micros;
        let mut syncs = DeferredSyncs::default();
        let mut now = 0;
        for ticket in 1..=u64::from(MISSED_MAX) {
            assert!(syncs.is_allowed(now));
            syncs.begin(now, &write_op(ticket, 0));
            now += deferral;
            syncs.synced(now, ticket, ticket - 1);
        }
        assert!(!syncs.is_allowed(now) && syncs.is_allowed(now + EAGER_PERIOD));
        // A commit in time resets the count.
        now += EAGER_PERIOD;
        for ticket in 10..20 {
            syncs.begin(now, &write_op(ticket, 0));
            now += deferral;
            syncs.synced(now, ticket, if ticket % MISSED_MAX as u64 == 0 { ticket } else { ticket - 1 });
            assert!(syncs.is_allowed(now));
        }
    }

    #[test]
    fn learner_sync_is_needed_for_own_writes_only() {
        let voters = [id(1), id(2), id(3)];
        assert!(!is_needed(id(9), id(1), id(1), &voters, |_| true));
        assert!(is_needed(id(9), id(1), id(9), &voters, |_| true));
        assert!(is_needed(id(2), id(1), id(9), &voters, |_| true), "the learner's disk makes no majority");
    }
}
