//! The callers' queries and settings. They have no output.

use super::local::Support;
use super::relay::takes_relayed;
use super::*;
use crate::members::{MemberInfo, Membership, ViewMember};
use crate::message::Message;
use crate::policy::Policy;
use crate::snapshot::StateSnapshot;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Raft {
    /// The membership in force: the latest in the own log, committed or not.
    pub fn membership(&self) -> Arc<Membership> {
        self.local.membership().clone()
    }

    /// This member's id.
    pub fn id(&self) -> MemberId {
        self.local.id()
    }

    /// The fault that is planted, in a build that has failpoints.
    pub fn failpoints(&self) -> Failpoints {
        self.local.config().failpoints
    }

    /// Whether we vote, by the membership in force.
    pub fn is_voter(&self) -> bool {
        self.local.membership().is_voter(&self.local.id())
    }

    /// Whether we lead, as far as we know.
    pub fn is_leader(&self) -> bool {
        self.local.is_leader()
    }

    /// Whether we lead and an entry of our own term is committed: from then on the commit index is the cluster's.
    pub fn has_committed_in_term(&self) -> bool {
        self.local.has_committed_in_term()
    }

    /// This member's term and the end of its log; the former end of a damaged one. At the start of a process that is what its
    /// disk holds, or knows to have held.
    pub fn durable(&self) -> Durable {
        let LogEnd { term, index } = self.local.protected_end();
        Durable { term: self.local.term(), last_term: term, last_index: index }
    }

    /// Where this member's log ended before damage took its end, while it has not reached that again. Until then the member
    /// votes only for candidates whose logs reach that, and does not campaign.
    pub fn former_end(&self) -> Option<LogEnd> {
        self.local.former_end()
    }

    /// The durable state that another member is known to have had.
    pub fn witnessed(&mut self, id: &MemberId) -> Durable {
        self.witness.note_acks(&self.local, &self.acks);
        self.witness.of(id)
    }

    /// Whether this member and `id` are the only voters of the committed membership, and no later one is in the log. Then
    /// this member has every committed entry, and no other member can win an election.
    pub fn is_only_other_voter(&self, id: &MemberId) -> bool {
        let (membership, log) = (self.local.membership(), self.local.log());
        log.tail().membership_index <= self.local.commit()
            && self.local.former_end().is_none()
            && membership.voters().count() == 2
            && membership.is_voter(&self.local.id())
            && membership.is_voter(id)
            && *id != self.local.id()
    }

    /// Whether this member does not trust its own log: see [`Raft::abstain`] and [`Raft::vote_only_for`].
    pub fn distrusts_own_log(&self) -> bool {
        self.local.support() != Support::Any
    }

    /// Whether this member leads, or follows a leader, and a majority of the voters works without `id`. `works`: a member
    /// is connected, and something has arrived from it lately. The leader has committed an entry of its term.
    ///
    /// Only a committed membership counts: after a crash of the leader its predecessor would be in force again.
    pub fn goes_on_without(&self, id: &MemberId, works: impl Fn(&MemberId) -> bool) -> bool {
        let (log, membership) = (self.local.log(), self.local.membership());
        let Some(leader) = self.local.leader() else { return false };
        let own = self.local.id();
        let has_leader = self.has_quorum(self.local.now())
            && log.term_at(log.commit()) == Some(self.local.term())
            && leader != *id
            && (leader == own || works(&leader));
        let others = membership.voters().filter(|voter| voter != id && (*voter == own || works(voter)));
        has_leader
            && log.tail().membership_index <= log.commit()
            && membership.is_voter(&own)
            && membership.is_voter(&leader)
            && others.count() >= membership.majority()
    }

    /// The last index on a peer's disk, as far as its leader knows; 0 if we do not lead.
    pub fn matched(&self, id: &MemberId) -> Index {
        self.replication.matched(id)
    }

    /// When a peer last answered us as its leader.
    pub fn last_answer(&self, id: &MemberId) -> Option<Micros> {
        self.replication.last_answer(id)
    }

    /// The smoothed round trip to a peer, measured as its leader.
    pub fn rtt(&self, id: &MemberId) -> Option<Micros> {
        self.replication.rtt(id)
    }

    /// Sets the heartbeat interval and the election timeout.
    pub fn set_timing(&mut self, heartbeat: Micros, election_timeout: Micros) {
        self.local.set_timing(heartbeat, election_timeout);
    }

    /// Sets a timeout for a leader whose heartbeats are usually late because its threads wait for a processor. It applies
    /// while the connection holds and `timeout` exceeds the election timeout. Then this member campaigns only after a silence
    /// of `timeout`, randomised up to twice that. As a leader it does not step down earlier. Votes for others are not
    /// affected.
    pub fn set_leader_timeout(&mut self, timeout: Micros) {
        self.election.set_leader_timeout(timeout);
    }

    /// What [`Raft::set_leader_timeout`] has set.
    pub fn leader_timeout(&self) -> Micros {
        self.election.leader_timeout()
    }

    /// The round trip to the member farthest away, of those that there is a connection with.
    pub fn set_longest_rtt(&mut self, rtt: Micros) {
        self.recovery.set_longest_rtt(rtt);
    }

    /// Sets the time after which a disk that completes no write counts as hung; 0: never.
    ///
    /// A leader steps down if the disks of a majority do not work and its clients wait: it could commit nothing. A member
    /// whose own disk hangs grants no pre-vote and does not campaign, because its vote would not become durable.
    pub fn set_disk_timeout(&mut self, timeout: Micros) {
        self.local.set_disk_timeout(timeout);
    }

    /// For how long this member's disk has completed no write although some are in flight. After a stall of this process
    /// it counts on slowly: at most a second for each round.
    pub fn disk_stands_still_for(&self) -> Micros {
        self.local.disk_stands_still_for()
    }

    /// For how long a leader has entries that clients wait for, and none of them became deliverable.
    pub fn commits_stand_still_for(&self) -> Micros {
        if self.local.is_leader() { self.commits.lasts() } else { 0 }
    }

    /// For how long a member's disk has completed no write although it has some to do. Known for this member, and for all
    /// if this member leads; 0 otherwise.
    pub fn disk_of_stands_still_for(&self, id: &MemberId) -> Micros {
        match *id == self.local.id() {
            true => self.local.disk_stands_still_for(),
            false => self.replication.disk_stands_still_for(id),
        }
    }

    /// Silence of a leader after which others campaign.
    pub fn election_timeout(&self) -> Micros {
        self.local.config().election_timeout
    }

    /// Whether we are handing leadership over: nothing is appended meanwhile.
    pub fn is_transferring_leadership(&self) -> bool {
        self.transfer.is_active()
    }

    /// The wall clock, µs since 1970: goes into the entries that we place as a leader.
    pub fn set_wall_clock(&mut self, wall: Micros) {
        self.local.set_wall_clock(wall);
    }

    /// Sets the last seqno finished by our server; acks carry it.
    pub fn set_finished(&mut self, seqno: Seqno) {
        self.acks.set_finished(seqno);
    }

    /// Where our database stands, if we have one: decides from where a leader sends us the log if ours must begin anew.
    pub fn set_position(&mut self, position: Option<Seqno>) {
        self.acks.set_position(position);
    }

    /// Whether the transport has said that there is a connection with this member.
    pub fn is_up(&self, id: &MemberId) -> bool {
        self.up.contains(id)
    }

    /// How views list this member: what a new leader under a weak policy begins with is a view.
    pub fn set_view_member(&mut self, member: ViewMember) {
        self.recovery.set_view_member(member);
    }

    /// This member's role.
    pub fn role(&self) -> Role {
        self.local.role()
    }

    /// The highest term that we know of.
    pub fn term(&self) -> Term {
        self.local.term()
    }

    /// The leader, if known.
    pub fn leader(&self) -> Option<MemberId> {
        self.local.leader()
    }

    /// The message by which a leader shows itself to a process that is not its peer, such as a removed member: its
    /// recipient follows it, unless it is in a newer term. `None`: this member does not lead.
    pub fn leadership_notice(&self) -> Option<Message> {
        // Only a leader answers proposals. There is no incarnation 0 whose session this could concern.
        let notice = Message::ProposeReply { term: self.term(), incarnation: 0, number: 0 };
        self.is_leader().then_some(notice)
    }

    /// Whether there is a log at all: founded, read back or received.
    pub fn has_log(&self) -> bool {
        self.local.log().exists()
    }

    /// The commit index, as far as we know.
    pub fn commit(&self) -> Index {
        self.local.log().commit()
    }

    /// The last index.
    pub fn last_index(&self) -> Index {
        self.local.log().last()
    }

    /// Up to here the own log is on the disk.
    pub fn persisted(&self) -> Index {
        self.local.persisted()
    }

    /// Up to here entries may be handed to the server: committed, and on our own disk.
    pub fn deliverable(&self) -> Index {
        self.local.deliverable()
    }

    /// The snapshot after the last entry: membership in force, sessions.
    pub fn tail_state(&self) -> &StateSnapshot {
        self.local.log().tail()
    }

    /// The snapshot at the commit index.
    pub fn committed_state(&self) -> &StateSnapshot {
        self.local.log().committed()
    }

    /// The first entry of the log; one above the last index where it has none.
    pub fn first_index(&self) -> Index {
        self.local.log().base_index() + 1
    }

    /// The first entry of each segment, ascending.
    pub fn segment_bases(&self) -> impl Iterator<Item = &StateSnapshot> + '_ {
        self.local.log().bases()
    }

    /// About how many bytes the entries from this index on have: exact for few, or where a segment begins.
    pub fn bytes_from(&self, index: Index) -> u64 {
        self.local.log().bytes_from(index)
    }

    /// The gap that contains this seqno, if a view has left it out: no entry of this history has it.
    pub fn gap_around(&self, seqno: Seqno) -> Option<Gap> {
        self.local.log().gaps().iter().find(|gap| gap.holds(seqno)).copied()
    }

    /// Ranges (first, last) of seqnos that committed views have left out, as far back as the log goes.
    pub fn left_out(&self) -> impl Iterator<Item = (Seqno, Seqno)> + '_ {
        let committed =
            self.local.log().gaps().iter().filter(|gap| gap.index <= self.local.log().committed().index);
        committed.map(|gap| (gap.before + 1, gap.after - 1))
    }

    /// The seqnos that this leader's first view left out, if it did.
    pub fn left_out_by_own_term(&self) -> Option<Gap> {
        let last = self.local.log().gaps().last().filter(|_| self.is_leader())?;
        (self.local.log().term_at(last.index) == Some(self.term())).then_some(*last)
    }

    /// The number of seqnos above `above` and up to `upto`, without those that views have left out.
    pub fn seqnos_between(&self, above: Seqno, upto: Seqno) -> i64 {
        let left_out =
            self.local.log().gaps().iter().map(|gap| (gap.after - 1).min(upto) - gap.before.max(above));
        (upto - above - left_out.map(|n| n.max(0)).sum::<i64>()).max(0)
    }

    /// How many write-sets and statements of each member have been put into the log of this process: it only grows.
    pub fn written_by(&self) -> &BTreeMap<MemberId, u64> {
        self.local.log().written()
    }

    /// An entry, if it is in memory; else it is in the log.
    pub fn entry(&self, index: Index) -> Option<&Entry> {
        self.local.log().entry(index)
    }

    /// The term of the entry there, and of the place before the first.
    pub fn term_at(&self, index: Index) -> Option<Term> {
        if self.local.log().exists() { self.local.log().term_at(index) } else { None }
    }

    /// The node has removed the segments below `first_index` from the disk.
    pub fn log_trimmed(&mut self, first_index: Index) {
        self.local.log_trimmed(first_index);
    }

    /// Whether writing makes sense: a leader that hears a majority; another that hears its leader.
    pub fn has_quorum(&self, now: Micros) -> bool {
        let now = self.local.now().max(now);
        match self.local.role() {
            Role::Leader => self.replication.quorum_active(&self.local, now, self.quorum_timeout()),
            _ => self.local.leader().is_some() && self.election.leader_active_since(&self.local, now),
        }
    }

    /// Every entry up to here meets its policy, so its waiting thread may be notified; [`Index::MAX`] if the policy asks only
    /// for commitment.
    pub fn policy_index(&self) -> Index {
        self.commit_policy.policy_index()
    }

    /// Up to here entries may be handed to the server of this member: [`Raft::deliverable`], and for a leader under a
    /// weak policy more.
    pub fn early(&self) -> Index {
        self.commit_policy.early(&self.local)
    }

    /// The first committed entry that still lacks acks of its policy, if there is one.
    pub fn first_unacknowledged(&self) -> Option<Index> {
        self.commit_policy.first_unacknowledged(&self.local)
    }

    /// A leader's first entry that waits for a majority under a weak policy, and why.
    pub fn blocked_on(&self) -> Option<(Index, BlockedOn)> {
        self.commit_policy.blocked_on()
    }

    fn positions(&self) -> Positions<'_> {
        Positions::new(&self.local, &self.acks, &self.replication)
    }

    /// The members that are not known here to have this entry on their disks.
    pub fn not_persisted_by(&self, index: Index) -> impl Iterator<Item = &MemberInfo> {
        self.positions().not_persisted_by(index)
    }

    /// The members that have not acknowledged this entry, as the policy in force means it.
    pub fn unacknowledged_by(&self, index: Index) -> impl Iterator<Item = &MemberInfo> {
        self.positions().unacknowledged_by(index)
    }

    /// If semisync has fallen back on this leader: the first entry that was not acknowledged in time. Once all members have
    /// it: the entry that must be acknowledged before semisync is in force again.
    pub fn first_overdue(&self) -> Option<Index> {
        self.commit_policy.first_overdue(self.positions())
    }

    /// If semisync has fallen back on this leader: the first entry that was not acknowledged in time.
    pub fn fallback_index(&self) -> Option<Index> {
        self.commit_policy.fallback_index()
    }

    /// Whether semisync has fallen back to async, here or at the leader.
    pub fn has_fallen_back(&self) -> bool {
        self.commit_policy.has_fallen_back()
    }

    /// The policy in force for the next entry.
    pub fn policy(&self) -> Policy {
        self.local.log().tail().policy
    }

    /// Under a sole voter, which commits alone: the last seqno persisted by another member. A follower of such a leader knows
    /// its own. `None` if commits need several members, and while there is no other member.
    ///
    /// A new leader does not know the others' positions: until one answers, this is the position at which its term began.
    pub fn persisted_elsewhere(&self) -> Option<Seqno> {
        self.commit_policy.persisted_elsewhere(&self.local)
    }

    /// Proposals that are not committed yet: how many, and their bytes.
    pub fn outstanding(&self) -> (usize, usize) {
        self.outbox.outstanding()
    }

    /// All proposals of this incarnation up to this number are committed.
    pub fn committed_proposal(&self) -> u64 {
        self.outbox.committed()
    }

    /// Whether this member has said since [`Raft::query_tails`] that it would vote for us. It would not if its log goes
    /// further than ours, or if it hears a leader. `None`: it has not answered yet.
    pub fn would_vote(&self, id: &MemberId) -> Option<bool> {
        self.survey.would_vote(id)
    }

    /// How long this member, when it leads, believes so without a majority's answers; bounded.
    pub fn quorum_timeout(&self) -> Micros {
        self.replication.quorum_timeout(&self.local, self.election.leader_timeout())
    }

    /// Whether a leader can commit nothing because disks hang: its clients wait, and no majority of the voters answers
    /// and has a disk that works.
    pub(super) fn disks_hang(&self) -> bool {
        let timeout = self.replication.disk_timeout(&self.local);
        let works = |id: &MemberId| self.disk_of_stands_still_for(id) < timeout;
        timeout > 0
            && self.commits.lasts() >= timeout
            && !self.replication.may_go_on(&self.local, self.quorum_timeout(), works)
    }

    /// Per-peer state; empty where we do not lead.
    pub fn progress(&self) -> Vec<PeerProgress> {
        self.replication.progress()
    }

    /// Whether this member, when it leads, sends one copy to each zone.
    pub fn set_relaying(&mut self, on: bool) {
        self.replication.set_relaying(on);
    }

    /// A connected member understands [`Message::Relay`] and [`Message::Relayed`]. Holds until its connection is lost.
    pub fn peer_relays(&mut self, id: MemberId) {
        self.relay.set_able(id);
    }

    /// Sets the number of bytes that wait in the transport for this member. If there are many, no more entries are forwarded
    /// to it. The leader then detects that the member makes no progress, and sends to it directly.
    pub fn set_queued(&mut self, id: MemberId, bytes: usize) {
        self.relay.set_queued(id, bytes);
    }

    /// Bytes of entries that this member has forwarded in its zone.
    pub fn relayed_bytes(&self) -> u64 {
        self.relay.passed_on()
    }

    /// Whether a [`Message::Relayed`] of this member and term is one to look at: the leader's own, or of a member of our
    /// zone, in our term.
    pub fn takes_relayed(&self, from: MemberId, term: Term) -> bool {
        takes_relayed(&self.local, from, term)
    }
}
