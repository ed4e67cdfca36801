//! Commit policies: when a commit may return.
//!
//! `quorum` asks only that an entry is committed, and costs nothing here. The other policies ask for more, or for less and
//! sooner:
//!
//! - [`Raft::policy_index`]: every entry up to here meets its own policy. Threads that wait for later entries keep waiting.
//! - [`Raft::early`]: this member may deliver up to here. Usually that is `deliverable`. A leader under a weak policy goes
//!   beyond it with its own write-sets of its own term, as long as at most `async.max_at_risk` seqnos, and at most a fixed
//!   number of bytes in memory, are at risk. Any other entry blocks those after it.
//!
//! The policy of an entry is the last policy entry before it in the log. Meeting a later, committed policy is enough, too:
//! so a change of policy releases the commits that wait under the old one.
//!
//! Every member computes the policy index from the acks that it receives. The leader receives all acks, and announces its
//! result ([`Message::PolicyMet`]), because acks between other members may be lost.

use super::failpoints::Failpoint;
use super::log::PolicyRange;
use super::wait_times::WaitTimes;
use super::*;
use crate::members::MemberInfo;
use crate::policy::{Policy, PolicyKind};

/// Why a leader under a weak policy does not deliver the next entry of its log before a majority has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockedOn {
    /// As many transactions are at risk already as may be (`async.max_at_risk`).
    Number,
    /// They have so many bytes, and no more of them may be in memory.
    Bytes(usize),
    /// It is no write-set of this leader: a view, a membership, a policy, DDL. Later entries wait, too.
    Kind(EntryKind),
}

/// A fallback of semisync.
#[derive(Clone, Copy, Debug)]
struct Fallback {
    /// The first entry that was not acknowledged in time.
    late: Index,
    /// An entry and when it was the last one: once that one is acknowledged, the time that it took tells whether the
    /// replicas have caught up.
    mark: Index,
    since: Micros,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct CommitPolicy {
    /// Up to here the policies are known to be met, for good.
    floor: Index,
    /// The same as of now; [`Index::MAX`]: being committed is enough.
    policy_index: Index,
    /// A leader has delivered up to here, or may, before it was committed.
    early: Index,
    /// The most that was ever delivered early, and is in the log still.
    given: Index,
    /// The first on the own disk that is not delivered early.
    blocked_on: Option<(Index, BlockedOn)>,
    /// Since when entries that are on our own disk wait for acks of semisync; begun anew where the timeout is another one.
    waiting: WaitTimes,
    /// The timeout that `waiting` is reckoned with.
    timeout: Micros,
    /// Semisync has fallen back to async.
    fallen: Option<Fallback>,
    /// The leader reports a fallback.
    leader_has_fallen: bool,
    /// The last index announced to peers.
    told: Index,
    /// The last entry that another member is known to have, and its seqno: see [`Raft::persisted_elsewhere`].
    elsewhere: Option<(Index, Seqno)>,
}

impl CommitPolicy {
    /// The log is cut. Whether something was delivered that it loses.
    pub(super) fn truncated(&mut self, from: Index) -> bool {
        let lost = self.given >= from;
        self.given = self.given.min(from.saturating_sub(1));
        self.floor = self.floor.min(from.saturating_sub(1));
        self.told = self.told.min(self.floor);
        self.waiting.clear();
        lost
    }

    /// Another term, or another office in it.
    pub(super) fn forget(&mut self) {
        self.early = 0;
        self.blocked_on = None;
        self.waiting.clear();
        self.fallen = None;
        self.leader_has_fallen = false;
        self.elsewhere = None;
    }

    fn deadline(&self, timeout: Micros) -> Micros {
        match self.waiting.first() {
            Some(since) if timeout > 0 && self.fallen.is_none() => since.saturating_add(timeout),
            _ => Micros::MAX,
        }
    }
}

impl Raft {
    /// Every entry up to here meets its policy, so its waiting thread may be notified; [`Index::MAX`] if the policy asks only
    /// for commitment.
    pub fn policy_index(&self) -> Index {
        self.commit_policy.policy_index.max(self.commit_policy.floor)
    }

    /// Up to here entries may be handed to the server of this member: [`Raft::deliverable`], and for a leader under a
    /// weak policy more.
    pub fn early(&self) -> Index {
        self.deliverable().max(self.commit_policy.early.min(self.disk.persisted()))
    }

    /// The first committed entry that still lacks acks of its policy, if there is one.
    pub fn first_unacknowledged(&self) -> Option<Index> {
        let next = self.policy_index().saturating_add(1);
        (next <= self.commit()).then_some(next)
    }

    /// A leader's first entry that waits for a majority under a weak policy, and why.
    pub fn blocked_on(&self) -> Option<(Index, BlockedOn)> {
        self.commit_policy.blocked_on
    }

    /// The members that are not known here to have this entry on their disks.
    pub fn not_persisted_by(&self, index: Index) -> impl Iterator<Item = &MemberInfo> {
        self.log.tail().membership.members.iter().filter(move |member| self.persisted_by(&member.id) < index)
    }

    /// The members that have not acknowledged this entry, as the policy in force means it.
    pub fn unacknowledged_by(&self, index: Index) -> impl Iterator<Item = &MemberInfo> {
        let policy = &self.log.tail().policy;
        // Other zones' disks are asked for in any case.
        let in_memory = self.acks_received() && policy.zone_acks == 0;
        let acked = move |id: &MemberId| match *id == self.config.id || !in_memory {
            true => self.persisted_by(id),
            false => self.acked_by_other(id, policy),
        };
        self.log.tail().membership.members.iter().filter(move |member| acked(&member.id) < index)
    }

    /// Where this member leads and semisync has fallen back: the first entry that was not acknowledged in time; once
    /// all have that one, up to where semisync waits for acknowledgements to come back.
    pub fn first_overdue(&self) -> Option<Index> {
        let Fallback { late, mark, .. } = self.commit_policy.fallen?;
        let others = |index| self.unacknowledged_by(index).any(|member| member.id != self.config.id);
        Some(if others(late) { late } else { mark })
    }

    /// Where this member leads and semisync has fallen back: the first entry that was not acknowledged in time.
    pub fn fallback_index(&self) -> Option<Index> {
        Some(self.commit_policy.fallen?.late)
    }

    /// Whether semisync has fallen back to async, here or at the leader.
    pub fn has_fallen_back(&self) -> bool {
        self.commit_policy.fallen.is_some() || self.commit_policy.leader_has_fallen
    }

    /// The policy in force for the next entry.
    pub fn policy(&self) -> Policy {
        self.log.tail().policy
    }

    /// Whether some entry that may matter still asks for more than to be committed, or for less.
    fn is_plain(&self) -> bool {
        self.log.policy_ranges().len() == 1 && self.log.policy_ranges()[0].policy.is_plain()
    }

    /// The last index that a member is known to have persisted, equal to our log.
    fn persisted_by(&self, id: &MemberId) -> Index {
        if *id == self.config.id {
            return self.acknowledged();
        }
        match self.acks.get(id) {
            Some((term, index)) if *term == self.term => (*index).min(self.log.matched()),
            _ => 0,
        }
    }

    /// Up to here this policy is met. [`Index::MAX`] where it asks for no more than to be committed.
    fn met(&self, at: usize) -> Index {
        let PolicyRange { policy, view, .. } = &self.log.policy_ranges()[at];
        let zones = self.in_zones(policy.zone_acks);
        match policy.kind {
            PolicyKind::Quorum => zones,
            PolicyKind::All if self.config.failpoints.is_active(Failpoint::AllIsMajority) => Index::MAX,
            PolicyKind::All => {
                // Members removed from the view since then are not waited for.
                let later = || self.log.policy_ranges().iter().skip(at + 1);
                let later =
                    || later().filter(|s| s.after <= self.commit() && s.policy.kind == PolicyKind::All);
                let members = view.members.iter().map(|m| m.id);
                let wanted = members.filter(|id| later().all(|s| s.view.position(id).is_some()));
                wanted.map(|id| self.persisted_by(&id)).min().unwrap_or(Index::MAX).min(zones)
            }
            // Only the leader writes: the others take its word.
            _ if self.role != Role::Leader => 0,
            PolicyKind::Async => self.acknowledged(),
            PolicyKind::Semisync if self.commit_policy.fallen.is_some() && policy.timeout > 0 => {
                self.acknowledged()
            }
            PolicyKind::Semisync => self.acknowledged().min(self.acked(policy)).min(zones),
        }
    }

    /// The members whose acks count under policies that a majority does not meet by itself: those that every possible next
    /// leader queries. Its log has all committed entries, and perhaps not the uncommitted ones. So a member counts if it is in
    /// the committed membership and in every later one of the log: our commit index may lag, and a later membership may be
    /// committed already.
    fn counted(&self) -> impl Iterator<Item = &MemberInfo> {
        let anybody = self.config.failpoints.is_active(Failpoint::AnyMembersAcksCount);
        let known = &self.log.committed().membership;
        let changed = self.log.tail().membership_index > self.log.committed().index;
        let open: Vec<Membership> = if changed { self.log.open_memberships().collect() } else { Vec::new() };
        let members = self.log.tail().membership.members.iter();
        members.filter(move |member| {
            let is_known = |membership: &Membership| membership.get(&member.id).is_some();
            anybody || (is_known(known) && open.iter().all(is_known))
        })
    }

    /// The index acknowledged by each other member, in the sense of this policy.
    fn acked_by_others(&self, policy: &Policy) -> impl Iterator<Item = Index> {
        self.counted().filter(|m| m.id != self.config.id).map(move |m| self.acked_by_other(&m.id, policy))
    }

    fn acked_by_other(&self, id: &MemberId, policy: &Policy) -> Index {
        let on_receive =
            policy.on_receive || self.config.failpoints.is_active(Failpoint::ReceivedIsPersisted);
        match self.peers.get(id) {
            Some(peer) if on_receive => peer.received.min(self.log.matched()),
            _ => self.persisted_by(id),
        }
    }

    /// The index acknowledged by `commit.acks` other members.
    fn acked(&self, policy: &Policy) -> Index {
        if policy.acks == 0 || self.config.failpoints.is_active(Failpoint::NoAcksAwaited) {
            return Index::MAX;
        }
        let mut held: Vec<Index> = self.acked_by_others(policy).collect();
        ack::reached_by(&mut held, usize::from(policy.acks))
    }

    /// Under a sole voter, which commits alone: the last seqno persisted by another member. A follower of such a leader knows
    /// its own. `None` if commits need several members, and while there is no other member.
    ///
    /// A new leader does not know the others' positions: until one answers, this is the position at which its term began.
    pub fn persisted_elsewhere(&self) -> Option<Seqno> {
        self.commit_policy.elsewhere.filter(|_| self.commits_alone()).map(|(_, seqno)| seqno)
    }

    fn commits_alone(&self) -> bool {
        let membership = &self.log.tail().membership;
        membership.majority() == 1 && membership.members.len() > 1
    }

    fn look_elsewhere(&mut self) {
        if !self.commits_alone() {
            self.commit_policy.elsewhere = None;
            return;
        }
        let policy = &self.log.tail().policy;
        let held = match self.role {
            Role::Leader => self.acked_by_others(policy).max().unwrap_or(0),
            _ if policy.on_receive => self.log.matched(),
            _ => self.acknowledged(),
        };
        let known = self.commit_policy.elsewhere.get_or_insert((0, self.log.tail().seqno));
        if held <= known.0 {
            return;
        }
        // For a member behind the cached entries, use the first seqno of its segment as a lower bound.
        let segment = || self.log.bases().rev().find(|base| base.index <= held);
        let seqno = self.log.entry(held).map(|entry| entry.seqno);
        if let Some(seqno) = seqno.or_else(|| segment().map(|base| base.seqno)) {
            *known = (held, seqno);
        }
    }

    /// The index persisted in `zones` zones beside one more; [`Index::MAX`] if `zones` is 0.
    fn in_zones(&self, zones: u8) -> Index {
        if zones == 0 || self.config.failpoints.is_active(Failpoint::NoZonesAwaited) {
            return Index::MAX;
        }
        let mut held: BTreeMap<u8, Index> = BTreeMap::new();
        for member in self.counted() {
            let index = self.persisted_by(&member.id);
            let zone = held.entry(member.zone).or_default();
            *zone = (*zone).max(index);
        }
        let mut held: Vec<Index> = held.into_values().collect();
        ack::reached_by(&mut held, usize::from(zones) + 1)
    }

    /// Works out what the acks allow. Once a round, after they have been counted.
    pub(super) fn update_gate(&mut self) {
        if self.is_plain() {
            if self.commit_policy.policy_index != Index::MAX {
                self.commit_policy = CommitPolicy {
                    policy_index: Index::MAX,
                    given: self.commit_policy.given,
                    ..CommitPolicy::default()
                };
            }
            return;
        }
        self.look_elsewhere();
        self.watch_fallback();
        let policy_ranges = &self.log.policy_ranges();
        let commit = self.commit();
        let mut policy_index = Index::MAX;
        for at in 0..policy_ranges.len() {
            let later = (at + 1..policy_ranges.len()).filter(|later| policy_ranges[*later].after <= commit);
            let met = later.map(|later| self.met(later)).fold(self.met(at), Index::max);
            // Entries before this range meet their policies, and a stronger policy does not apply backwards. This does not
            // hold for the first range, which starts where the restored log begins.
            let met = if at > 0 { met.max(policy_ranges[at].after) } else { met };
            if policy_ranges.get(at + 1).is_none_or(|next| met < next.after) {
                policy_index = met;
                break;
            }
        }
        self.commit_policy.policy_index = policy_index;
        if policy_index != Index::MAX {
            self.commit_policy.floor = self.commit_policy.floor.max(policy_index.min(self.log.last()));
        }
        self.update_early();
        let done = self.policy_index().min(commit);
        self.log.forget_policy_ranges(done);
    }

    /// A leader under a weak policy delivers its own write-sets before they are committed.
    fn update_early(&mut self) {
        let commit = self.commit();
        let failpoints = self.config.failpoints;
        let earnest = self.has_committed_in_term()
            || (self.is_leader() && failpoints.is_active(Failpoint::EarlyBeforeOwnTerm));
        self.commit_policy.blocked_on = None;
        if !earnest || !self.log.committed().policy.is_weak() {
            self.commit_policy.early = 0;
            return;
        }
        let limit = self.acknowledged().min(self.policy_index());
        let bound = i64::try_from(self.log.committed().policy.max_at_risk).unwrap_or(i64::MAX);
        let last_seqno = self.log.committed().seqno.saturating_add(bound);
        let mut at = self.commit_policy.early.max(commit);
        // Most often all that is not committed is less, and need not be counted.
        let most = self.config.max_at_risk_bytes;
        let mut ahead = self.log.uncommitted_upto(at, most).unwrap_or(0);
        while at < limit {
            let Some(entry) = self.log.entry(at + 1) else { break };
            let own = entry.proposal.member == self.config.id && entry.term == self.term;
            let may = match entry.kind {
                EntryKind::WriteSet => own || failpoints.is_active(Failpoint::EarlyBeforeOwnTerm),
                EntryKind::Piece | EntryKind::Note => true,
                // Forgets only what all have finished, and is learned again where the log is cut.
                EntryKind::Trim => true,
                EntryKind::Noop
                | EntryKind::TotalOrder
                | EntryKind::View
                | EntryKind::Membership
                | EntryKind::Policy
                | EntryKind::Outcome
                | EntryKind::Branch => false,
            };
            let why = match may {
                false => Some(BlockedOn::Kind(entry.kind)),
                true if entry.seqno > last_seqno => Some(BlockedOn::Number),
                true => (ahead >= most).then_some(BlockedOn::Bytes(most)),
            };
            if let Some(why) = why {
                self.commit_policy.blocked_on = Some((at + 1, why));
                break;
            }
            at += 1;
            ahead += entry.size();
            if entry.kind == EntryKind::WriteSet {
                self.commit_policy.given = self.commit_policy.given.max(at);
                if entry.proposal.incarnation == self.config.incarnation {
                    self.outbox.given(entry.proposal.number);
                }
            }
        }
        self.commit_policy.early = at;
    }

    /// Semisync that waits for too long goes on as async, and comes back once the replicas have caught up. Each commit has
    /// its own time: acks that come steadily, and later with each, are too late as well.
    ///
    /// How long one waits is what the members have agreed on: a timeout that is in the log only lets nobody go.
    fn watch_fallback(&mut self) {
        let policy = self.falls_back_by();
        let semisync = policy.kind == PolicyKind::Semisync && policy.timeout > 0;
        if self.role != Role::Leader || !semisync {
            self.commit_policy.waiting.clear();
            self.commit_policy.fallen = None;
            return;
        }
        if self.commit_policy.timeout != policy.timeout {
            self.commit_policy.waiting.clear();
            self.commit_policy.timeout = policy.timeout;
        }
        let zones = self.in_zones(policy.zone_acks);
        let acked = self.acked(&policy).min(zones);
        if let Some(Fallback { mark, since, .. }) = self.commit_policy.fallen {
            if acked < mark || self.config.failpoints.is_active(Failpoint::StaysFallenBack) {
                return;
            }
            // The way of that entry took less time than one waits: they have caught up.
            let caught_up = self.now.saturating_sub(since) < policy.timeout;
            let (mark, since) = (self.log.last(), self.now);
            self.commit_policy.fallen = (!caught_up).then_some(Fallback { late: mark, mark, since });
            if !caught_up {
                return;
            }
        }
        let own = self.acknowledged();
        self.commit_policy.waiting.note(own, self.now, policy.timeout);
        let answered = self.policy_index().max(acked).min(own);
        self.commit_policy.waiting.answered(answered);
        let at_once = self.config.failpoints.is_active(Failpoint::FallsBackAtOnce);
        let waits_from = if at_once { self.commit_policy.waiting.first() } else { None };
        if waits_from.unwrap_or(self.commit_policy.deadline(policy.timeout)) <= self.now {
            self.commit_policy.fallen =
                Some(Fallback { late: answered + 1, mark: self.log.last(), since: self.now });
            self.commit_policy.waiting.clear();
        }
    }

    fn falls_back_by(&self) -> Policy {
        match self.config.failpoints.is_active(Failpoint::TimeoutNotAgreedOn) {
            true => self.log.tail().policy,
            false => self.log.committed().policy,
        }
    }

    pub(super) fn gate_deadline(&self) -> Micros {
        let timeout = || self.falls_back_by().timeout;
        if self.role == Role::Leader { self.commit_policy.deadline(timeout()) } else { Micros::MAX }
    }

    /// Whether acks matter to others than those who make a majority: then everybody hears them.
    pub(super) fn acks_for_all(&self) -> bool {
        !self.is_plain()
            && self
                .log
                .policy_ranges()
                .iter()
                .any(|s| s.policy.kind == PolicyKind::All || s.policy.zone_acks > 0)
    }

    /// Whether what is received is to be acknowledged before it is on the disk.
    pub(super) fn acks_received(&self) -> bool {
        let policy = self.log.tail().policy;
        policy.on_receive && policy.kind == PolicyKind::Semisync
    }

    /// The leader announces the policy index: with each heartbeat, and at once to origins that wait for it.
    pub(super) fn send_policy_met(&mut self, speak: bool) {
        if self.is_plain() {
            return;
        }
        let settled = self.policy_index().min(self.log.last());
        let told = self.commit_policy.told;
        let mut to = Vec::new();
        for (id, peer) in &self.peers {
            if speak || (settled > told && peer.proposed > told) {
                to.push(*id);
            }
        }
        let fallen = self.commit_policy.fallen.is_some();
        for id in to {
            self.send(id, Message::PolicyMet { term: self.term, settled, fallen });
        }
        self.commit_policy.told = settled;
    }

    /// The leader has said up to where policies are met.
    pub(super) fn on_policy_met(&mut self, from: MemberId, term: Term, settled: Index, fallen: bool) {
        if self.leader != Some(from) || term != self.term || self.role != Role::Follower {
            return;
        }
        self.commit_policy.floor = self.commit_policy.floor.max(settled.min(self.log.matched()));
        self.commit_policy.leader_has_fallen = fallen;
    }
}
