//! Commit policies: when a commit may return.
//!
//! `quorum` asks only that an entry is committed, and costs nothing here. The other policies ask for more, or for less and
//! sooner:
//!
//! - [`CommitPolicy::policy_index`]: every entry up to here meets its own policy. Threads that wait for later entries keep waiting.
//! - [`CommitPolicy::early`]: this member may deliver up to here. Usually that is `deliverable`. A leader under a weak policy also
//!   delivers its own write-sets of its own term before they are committed. At most `async.max_at_risk` seqnos, and a
//!   fixed number of bytes in memory, may be at risk. Any other entry blocks those after it.
//!
//! The policy of an entry is the last policy entry before it in the log. Meeting a later, committed policy is enough, too:
//! so a change of policy releases the commits that wait under the old one.
//!
//! Every member computes the policy index from the acks that it receives. The leader receives all acks, and announces its
//! result ([`Message::PolicyMet`]), because acks between other members may be lost.

use super::failpoints::Failpoint;
use super::local::{Local, Role};
use super::log::PolicyRange;
use super::output::Outputs;
use super::positions::Positions;
use super::wait_times::WaitTimes;
use crate::message::Message;
use crate::policy::{Policy, PolicyKind};
use crate::types::*;

/// Why a leader under a weak policy does not deliver the next entry of its log before a majority has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockedOn {
    /// `async.max_at_risk` transactions are at risk already.
    Number,
    /// The transactions at risk have this many bytes, the most that may be in memory.
    Bytes(usize),
    /// The entry is no write-set of this leader: a view, a membership, a policy, DDL. Later entries wait, too.
    Kind(EntryKind),
    /// The leader's process stalled, and no majority has answered it since: another leader may have been elected.
    Stall,
}

/// A fallback of semisync.
#[derive(Clone, Copy, Debug)]
struct Fallback {
    /// The first entry that was not acknowledged in time.
    late: Index,
    /// An entry, and when it was the last one. Once it is acknowledged, the elapsed time tells whether the replicas have
    /// caught up.
    mark: Index,
    since: Micros,
}

/// The effects of an update on other components.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct PolicyUpdate {
    /// No thread waits for the policy of an entry up to here any more.
    pub(super) done: Index,
    /// The last proposal of this incarnation that may be delivered before it is committed, if that has moved.
    pub(super) early_proposal: Option<u64>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct CommitPolicy {
    /// Every entry up to here is known to meet its policy, whatever happens later.
    floor: Index,
    /// Every entry up to here meets its policy now; [`Index::MAX`]: the policy asks only for commitment.
    policy_index: Index,
    /// A leader may deliver up to here before the entries are committed.
    early: Index,
    /// The last write-set of the log that may have been delivered before it was committed.
    max_early: Index,
    /// The first entry that is not delivered early, and why.
    blocked_on: Option<(Index, BlockedOn)>,
    /// Since when clients' entries on our own disk wait for acks of semisync. Cleared when the timeout changes.
    waiting: WaitTimes,
    /// The last entry of a client, and the last entry examined for that.
    last_of_client: Index,
    examined: Index,
    /// The timeout that `waiting` counts with.
    timeout: Micros,
    /// Semisync has fallen back to async.
    fallback: Option<Fallback>,
    /// The leader reports a fallback.
    leader_fell_back: bool,
    /// The last index announced to peers.
    announced: Index,
    /// The last entry that another member is known to have, and its seqno: see [`CommitPolicy::persisted_elsewhere`].
    elsewhere: Option<(Index, Seqno)>,
}

impl CommitPolicy {
    /// The log loses its entries from `from` on. Returns whether one of them may have been delivered.
    pub(super) fn truncated(&mut self, from: Index) -> bool {
        let lost = self.max_early >= from;
        self.max_early = self.max_early.min(from.saturating_sub(1));
        self.floor = self.floor.min(from.saturating_sub(1));
        self.announced = self.announced.min(self.floor);
        self.examined = self.examined.min(from.saturating_sub(1));
        self.last_of_client = self.last_of_client.min(self.examined);
        self.waiting.clear();
        lost
    }

    /// The term or the role has changed.
    pub(super) fn forget(&mut self) {
        self.early = 0;
        self.blocked_on = None;
        self.waiting.clear();
        self.fallback = None;
        self.leader_fell_back = false;
        self.elsewhere = None;
    }

    /// Every entry up to here meets its policy, so its waiting thread may be notified; [`Index::MAX`] if the policy asks
    /// only for commitment.
    pub(super) fn policy_index(&self) -> Index {
        self.policy_index.max(self.floor)
    }

    /// Up to here entries may be handed to the server of this member.
    pub(super) fn early(&self, local: &Local) -> Index {
        local.deliverable().max(self.early.min(local.persisted()))
    }

    /// The first committed entry that still lacks acks of its policy, if there is one.
    pub(super) fn first_unacknowledged(&self, local: &Local) -> Option<Index> {
        let next = self.policy_index().saturating_add(1);
        (next <= local.commit()).then_some(next)
    }

    /// A leader's first entry that waits for a majority under a weak policy, and why.
    pub(super) fn blocked_on(&self) -> Option<(Index, BlockedOn)> {
        self.blocked_on
    }

    /// If a leader's semisync has fallen back: the first entry that was not acknowledged in time. Once all members have it:
    /// the entry that must be acknowledged before semisync is in force again.
    pub(super) fn first_overdue(&self, positions: Positions<'_>) -> Option<Index> {
        let Fallback { late, mark, .. } = self.fallback?;
        let own = positions.local().id();
        let waits = positions.unacknowledged_by(late).any(|member| member.id != own);
        Some(if waits { late } else { mark })
    }

    /// If a leader's semisync has fallen back: the first entry that was not acknowledged in time.
    pub(super) fn fallback_index(&self) -> Option<Index> {
        Some(self.fallback?.late)
    }

    /// Whether semisync has fallen back to async, here or at the leader.
    pub(super) fn has_fallen_back(&self) -> bool {
        self.fallback.is_some() || self.leader_fell_back
    }

    /// Under a sole voter, which commits alone: the last seqno persisted by another member. A follower of such a leader
    /// knows its own. `None` if commits need several members, and while there is no other member.
    ///
    /// A new leader does not know the others' positions: until one answers, this is the position at which its term began.
    pub(super) fn persisted_elsewhere(&self, local: &Local) -> Option<Seqno> {
        self.elsewhere.filter(|_| commits_alone(local)).map(|(_, seqno)| seqno)
    }

    /// The leader did not run for this long: acks could not arrive.
    pub(super) fn extend_waits(&mut self, time: Micros) {
        self.waiting.extend(time);
    }

    /// When semisync falls back, if nothing changes.
    pub(super) fn deadline(&self, local: &Local) -> Micros {
        if local.is_leader() { self.fallback_deadline(falls_back_by(local).timeout) } else { Micros::MAX }
    }

    fn fallback_deadline(&self, timeout: Micros) -> Micros {
        match self.waiting.first() {
            Some(since) if timeout > 0 && self.fallback.is_none() => since.saturating_add(timeout),
            _ => Micros::MAX,
        }
    }

    /// Updates all indices, once a round, after the acks have been counted. `may_be_deposed`: another leader may have been
    /// elected while this leader's process stalled, so nothing more is delivered early.
    pub(super) fn update(&mut self, positions: Positions<'_>, may_be_deposed: bool) -> PolicyUpdate {
        let local = positions.local();
        if local.log().has_plain_policy() {
            if self.policy_index != Index::MAX {
                let max_early = self.max_early;
                *self = CommitPolicy { policy_index: Index::MAX, max_early, ..CommitPolicy::default() };
            }
            return PolicyUpdate::default();
        }
        self.update_elsewhere(positions);
        self.update_fallback(positions);
        self.policy_index = self.met_by_all(positions);
        if self.policy_index != Index::MAX {
            self.floor = self.floor.max(self.policy_index.min(local.log().last()));
        }
        let early_proposal = self.update_early(local, may_be_deposed);
        let done = self.policy_index().min(local.commit());
        debug_assert!(self.early <= local.log().last(), "only entries of the log are delivered early");
        PolicyUpdate { done, early_proposal }
    }

    /// The index up to which every entry meets its policy.
    fn met_by_all(&self, positions: Positions<'_>) -> Index {
        let local = positions.local();
        let ranges = local.log().policy_ranges();
        for at in 0..ranges.len() {
            let later = (at + 1..ranges.len()).filter(|later| ranges[*later].after <= local.commit());
            let met = later.map(|later| self.met(positions, later)).fold(self.met(positions, at), Index::max);
            // Entries before this range meet their policies, and a stronger policy does not apply backwards. This does not
            // hold for the first range, which starts where the restored log begins.
            let met = if at > 0 { met.max(ranges[at].after) } else { met };
            if ranges.get(at + 1).is_none_or(|next| met < next.after) {
                return met;
            }
        }
        Index::MAX
    }

    /// The index up to which the policy of a range is met; [`Index::MAX`] if that policy asks only for commitment.
    fn met(&self, positions: Positions<'_>, at: usize) -> Index {
        let local = positions.local();
        let ranges = local.log().policy_ranges();
        let PolicyRange { policy, view, .. } = &ranges[at];
        let zones = positions.in_zones(policy.zone_acks);
        match policy.kind {
            PolicyKind::Quorum => zones,
            PolicyKind::All if local.is_active(Failpoint::AllIsMajority) => Index::MAX,
            PolicyKind::All => {
                // Members removed from the view since then are not waited for.
                let later = || ranges.iter().skip(at + 1);
                let later =
                    || later().filter(|s| s.after <= local.commit() && s.policy.kind == PolicyKind::All);
                let members = view.members.iter().map(|m| m.id);
                let wanted = members.filter(|id| later().all(|s| s.view.position(id).is_some()));
                wanted.map(|id| positions.persisted_by(&id)).min().unwrap_or(Index::MAX).min(zones)
            }
            // Only the leader writes: the others take its word.
            _ if !local.is_leader() => 0,
            PolicyKind::Async => local.acknowledged(),
            PolicyKind::Semisync if self.fallback.is_some() && policy.timeout > 0 => local.acknowledged(),
            PolicyKind::Semisync => local.acknowledged().min(positions.acked(policy)).min(zones),
        }
    }

    fn update_elsewhere(&mut self, positions: Positions<'_>) {
        let local = positions.local();
        if !commits_alone(local) {
            self.elsewhere = None;
            return;
        }
        let log = local.log();
        let policy = &log.tail().policy;
        let persisted = match local.role() {
            Role::Leader => positions.acked_by_others(policy).max().unwrap_or(0),
            _ if policy.on_receive => log.matched(),
            _ => local.acknowledged(),
        };
        let known = self.elsewhere.get_or_insert((0, log.tail().seqno));
        if persisted <= known.0 {
            return;
        }
        // For a member behind the cached entries, use the first seqno of its segment as a lower bound.
        let segment = || log.bases().rev().find(|base| base.index <= persisted);
        let seqno = log.entry(persisted).map(|entry| entry.seqno);
        if let Some(seqno) = seqno.or_else(|| segment().map(|base| base.seqno)) {
            *known = (persisted, seqno);
        }
    }

    /// A leader under a weak policy delivers its own write-sets before they are committed. Returns the last proposal of this
    /// incarnation that it may deliver now, if there is one.
    fn update_early(&mut self, local: &Local, may_be_deposed: bool) -> Option<u64> {
        let eager = local.is_active(Failpoint::EarlyBeforeOwnTerm);
        let may_deliver = local.has_committed_in_term() || (local.is_leader() && eager);
        let (log, config) = (local.log(), local.config());
        self.blocked_on = None;
        if !may_deliver || !log.committed().policy.is_weak() {
            self.early = 0;
            return None;
        }
        if may_be_deposed {
            // Entries that the server has not taken yet wait, too.
            self.early = 0;
        }
        let limit = local.acknowledged().min(self.policy_index());
        let bound = i64::try_from(log.committed().policy.max_at_risk).unwrap_or(i64::MAX);
        let last_seqno = log.committed().seqno.saturating_add(bound);
        let mut at = self.early.max(log.commit());
        // Usually all uncommitted entries have fewer bytes than the limit, and need not be counted one by one.
        let most = config.max_at_risk_bytes;
        let mut ahead = log.uncommitted_upto(at, most).unwrap_or(0);
        let mut proposal = None;
        while at < limit {
            let Some(entry) = log.entry(at + 1) else { break };
            let own = entry.proposal.member == local.id() && entry.term == local.term();
            let why = match may_go_early(entry.kind, own || eager) {
                false => Some(BlockedOn::Kind(entry.kind)),
                true if may_be_deposed => Some(BlockedOn::Stall),
                true if entry.seqno > last_seqno => Some(BlockedOn::Number),
                true => (ahead >= most).then_some(BlockedOn::Bytes(most)),
            };
            if let Some(why) = why {
                self.blocked_on = Some((at + 1, why));
                break;
            }
            at += 1;
            ahead += entry.size();
            if entry.kind == EntryKind::WriteSet {
                self.max_early = self.max_early.max(at);
                if entry.proposal.incarnation == config.incarnation {
                    proposal = proposal.max(Some(entry.proposal.number));
                }
            }
        }
        self.early = at;
        proposal
    }

    /// The last entry up to `upto` that a client may wait for.
    fn last_of_client(&mut self, local: &Local, upto: Index) -> Index {
        let log = local.log();
        let from = self.examined.max(log.cached_from().saturating_sub(1)) + 1;
        let of_client = |index: &Index| {
            let kind = log.entry(*index).map(|entry| entry.kind);
            matches!(kind, Some(EntryKind::WriteSet | EntryKind::TotalOrder))
        };
        if let Some(last) = (from..=upto).rev().find(of_client) {
            self.last_of_client = last;
        }
        self.examined = self.examined.max(upto);
        self.last_of_client
    }

    /// If a commit waits longer than the timeout, semisync continues as async until the replicas have caught up. Each
    /// commit has its own time, so steady acks that arrive later and later cause a fallback, too. Entries that no client
    /// waits for cause none: in an idle cluster the next commit waits for the timeout.
    ///
    /// The timeout is the committed one: a timeout that is only in the log releases no commit.
    fn update_fallback(&mut self, positions: Positions<'_>) {
        let local = positions.local();
        let policy = falls_back_by(local);
        let semisync = policy.kind == PolicyKind::Semisync && policy.timeout > 0;
        if !local.is_leader() || !semisync {
            self.waiting.clear();
            self.fallback = None;
            return;
        }
        if self.timeout != policy.timeout {
            self.waiting.clear();
            self.timeout = policy.timeout;
        }
        let (now, last) = (local.now(), local.log().last());
        let zones = positions.in_zones(policy.zone_acks);
        let acked = positions.acked(&policy).min(zones);
        if let Some(Fallback { mark, since, .. }) = self.fallback {
            if acked < mark || local.is_active(Failpoint::StaysFallenBack) {
                return;
            }
            // The replicas have caught up if that entry was acknowledged within the timeout.
            let caught_up = now.saturating_sub(since) < policy.timeout;
            self.fallback = (!caught_up).then_some(Fallback { late: last, mark: last, since: now });
            if !caught_up {
                return;
            }
        }
        let own = local.acknowledged();
        let last_of_client = self.last_of_client(local, own);
        self.waiting.note(last_of_client, now, policy.timeout);
        let answered = self.policy_index().max(acked).min(own);
        self.waiting.answered(answered);
        let at_once = local.is_active(Failpoint::FallsBackAtOnce);
        let waits_from = if at_once { self.waiting.first() } else { None };
        if waits_from.unwrap_or(self.fallback_deadline(policy.timeout)) <= now {
            self.fallback = Some(Fallback { late: answered + 1, mark: last, since: now });
            self.waiting.clear();
        }
    }

    /// The leader announces the policy index: to all peers with each heartbeat, and at once to origins that wait for it.
    /// `peers`: each peer and the last entry that it proposed.
    pub(super) fn announce(
        &mut self,
        local: &Local,
        out: &mut Outputs,
        heartbeat: bool,
        peers: impl Iterator<Item = (MemberId, Index)>,
    ) {
        if local.log().has_plain_policy() {
            return;
        }
        let policy_index = self.policy_index().min(local.log().last());
        let (term, fallen_back, announced) = (local.term(), self.fallback.is_some(), self.announced);
        for (id, proposed) in peers {
            if heartbeat || (policy_index > announced && proposed > announced) {
                out.send(id, Message::PolicyMet { term, policy_index, fallen_back });
            }
        }
        self.announced = policy_index;
    }

    /// Handles the leader's announcement.
    pub(super) fn on_announced(
        &mut self,
        local: &Local,
        from: MemberId,
        term: Term,
        policy_index: Index,
        fallen_back: bool,
    ) {
        if local.leader() != Some(from) || term != local.term() || local.role() != Role::Follower {
            return;
        }
        self.floor = self.floor.max(policy_index.min(local.log().matched()));
        self.leader_fell_back = fallen_back;
    }
}

/// Whether an entry of this kind may be delivered before it is committed. `own`: it is the leader's own, of this term.
fn may_go_early(kind: EntryKind, own: bool) -> bool {
    match kind {
        EntryKind::WriteSet => own,
        EntryKind::Piece | EntryKind::Note => true,
        // Forgets only what all have finished, and is learned again if the log is truncated.
        EntryKind::Trim => true,
        EntryKind::Noop
        | EntryKind::TotalOrder
        | EntryKind::View
        | EntryKind::Membership
        | EntryKind::Policy
        | EntryKind::Outcome
        | EntryKind::Branch => false,
    }
}

/// The policy whose timeout counts for a fallback.
fn falls_back_by(local: &Local) -> Policy {
    match local.is_active(Failpoint::TimeoutNotAgreedOn) {
        true => local.log().tail().policy,
        false => local.log().committed().policy,
    }
}

fn commits_alone(local: &Local) -> bool {
    let membership = local.membership();
    membership.majority() == 1 && membership.members.len() > 1
}

#[cfg(test)]
mod tests {
    use super::super::acks::Acks;
    use super::super::output::Output;
    use super::super::replication::Replication;
    use super::super::testing::{follower, leader, member, persisted, with_entries, with_policy};
    use super::*;
    use bytes::Bytes;

    fn updated(policy: &mut CommitPolicy, local: &Local, acks: &Acks) -> Index {
        policy.update(Positions::new(local, acks, &Replication::default()), false);
        policy.policy_index()
    }

    #[test]
    fn quorum_asks_only_for_commitment() {
        let (local, mut policy) = (with_entries(leader(3), 2), CommitPolicy::default());
        assert_eq!(updated(&mut policy, &local, &Acks::new()), Index::MAX);
    }

    #[test]
    fn semisync_waits_for_acks_of_others() {
        let semisync = Policy { acks: 1, ..Policy::of(PolicyKind::Semisync) };
        let local = with_policy(leader(3), semisync);
        let (mut policy, mut acks) = (CommitPolicy::default(), Acks::new());
        let local = persisted(local);
        assert_eq!(updated(&mut policy, &local, &acks), 1, "the policy's own entry asks for quorum");
        let last = local.log().last();
        acks.record(&local, member(3), local.term(), last);
        assert_eq!(updated(&mut policy, &local, &acks), last);
    }

    #[test]
    fn semisync_falls_back_for_entries_of_clients_only() {
        let semisync = Policy { acks: 1, timeout: 1_000, ..Policy::of(PolicyKind::Semisync) };
        let mut local = persisted(with_entries(with_policy(leader(3), semisync), 3));
        local.commit_to(1);
        let (mut policy, acks) = (CommitPolicy::default(), Acks::new());
        let mut fallen_back_at = |local: &mut Local, now| {
            local.advance(now);
            updated(&mut policy, local, &acks);
            policy.has_fallen_back()
        };
        assert!(!fallen_back_at(&mut local, 10_000));
        assert!(!fallen_back_at(&mut local, 20_000), "no client waits");
        let seqno = local.log().tail().seqno + 1;
        let payload = Bytes::from_static(b"row");
        let entry = local.next_entry(1, EntryKind::WriteSet, ProposalId::default(), &payload, seqno);
        assert!(local.append(entry).is_ok());
        local.agree_up_to(local.log().last());
        let mut local = persisted(local);
        assert!(!fallen_back_at(&mut local, 30_000));
        assert!(!fallen_back_at(&mut local, 30_999));
        assert!(fallen_back_at(&mut local, 31_000));
    }

    #[test]
    fn follower_takes_word_of_its_leader_only() {
        let local = with_policy(follower(3, Some(member(2))), Policy::of(PolicyKind::Async));
        let mut policy = CommitPolicy::default();
        policy.on_announced(&local, member(3), local.term(), 2, false);
        assert_eq!(policy.policy_index(), 0);
        policy.on_announced(&local, member(2), local.term(), 2, true);
        assert_eq!((policy.policy_index(), policy.has_fallen_back()), (2, true));
    }

    #[test]
    fn policy_index_is_announced_to_waiting_origin_once() {
        let local = with_policy(leader(3), Policy::of(PolicyKind::Async));
        let (mut policy, mut out) = (CommitPolicy::default(), Outputs::new());
        updated(&mut policy, &local, &Acks::new());
        let peers = || [(member(2), local.log().last()), (member(3), 0)].into_iter();
        policy.announce(&local, &mut out, false, peers());
        let to: Vec<_> = out
            .take()
            .into_iter()
            .filter_map(|o| if let Output::Send { to, .. } = o { Some(to) } else { None })
            .collect();
        assert_eq!(to, [member(2)]);
        policy.announce(&local, &mut out, false, peers());
        assert!(out.take().is_empty());
    }
}
