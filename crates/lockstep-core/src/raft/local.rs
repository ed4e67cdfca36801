//! This member's own state, which every component may read: configuration, time, term, role, log and disk.
//!
//! Components get `&Local`. Only the router ([`super::Raft`]) changes it, by the methods in the second half of this file,
//! each of which keeps the invariants of [`Local`].

use super::config::Config;
use super::disk::{Disk, Held};
use super::failpoints::Failpoint;
use super::log::Log;
use super::restore::LogEnd;
use super::write::{Rescue, Vote, WriteOp};
use crate::codec::DecodeError;
use crate::members::Membership;
use crate::snapshot::StateSnapshot;
use crate::types::*;
use std::sync::Arc;

/// The Raft role of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Accepts the entries of a leader, if there is one.
    Follower,
    /// Asks for pre-votes.
    PreCandidate,
    /// Asks for votes.
    Candidate,
    /// Appends and replicates.
    Leader,
}

/// Which campaigns a member may support, its own included. See [`super::Raft::abstain`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Support {
    /// All.
    Any,
    /// Those of this member.
    Only(MemberId),
    /// None: this member takes no part.
    Nobody,
}

/// **Invariants:** `voted_for`, `leader` and the log's `matched` belong to `term`. The last entry's term is at most `term`.
/// A leader's `matched` is its last index, and its `leader` is itself.
#[derive(Debug)]
pub(super) struct Local {
    config: Config,
    /// The latest time passed in.
    now: Micros,
    /// The wall clock of this round, for the entries' own time.
    wall: Micros,
    /// The highest term seen.
    term: Term,
    /// The vote of this member in `term`.
    voted_for: Option<MemberId>,
    role: Role,
    leader: Option<MemberId>,
    support: Support,
    log: Log,
    /// See [`Local::former_end`].
    former_end: Option<LogEnd>,
    disk: Disk,
}

/// Reads, for all components.
impl Local {
    pub(super) fn new(
        config: Config,
        vote: Vote,
        (log, former_end): (Log, Option<LogEnd>),
        now: Micros,
    ) -> Local {
        // A member that has persisted an entry of a term has entered that term, even if the write of its vote file was
        // lost.
        let Vote { term, voted_for } = match log.tail().term > vote.term {
            true => Vote { term: log.tail().term, voted_for: None },
            false => vote,
        };
        let disk = Disk::new(log.last());
        let (role, leader, support) = (Role::Follower, None, Support::Any);
        Local { config, now, wall: 0, term, voted_for, role, leader, support, log, former_end, disk }
    }

    /// This member's id.
    pub(super) fn id(&self) -> MemberId {
        self.config.id
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Whether a test has injected this fault.
    pub(super) fn is_active(&self, failpoint: Failpoint) -> bool {
        self.config.failpoints.is_active(failpoint)
    }

    pub(super) fn now(&self) -> Micros {
        self.now
    }

    pub(super) fn term(&self) -> Term {
        self.term
    }

    pub(super) fn role(&self) -> Role {
        self.role
    }

    pub(super) fn is_leader(&self) -> bool {
        self.role == Role::Leader
    }

    /// The leader of `term`, if known.
    pub(super) fn leader(&self) -> Option<MemberId> {
        self.leader
    }

    /// The member that got this member's vote in `term`.
    pub(super) fn voted_for(&self) -> Option<MemberId> {
        self.voted_for
    }

    /// Whether this member may support the campaign of `id`; itself included.
    pub(super) fn may_support(&self, id: &MemberId) -> bool {
        match self.support {
            Support::Any => true,
            Support::Only(only) => only == *id,
            Support::Nobody => false,
        }
    }

    /// Which campaigns this member may support.
    pub(super) fn support(&self) -> Support {
        self.support
    }

    pub(super) fn log(&self) -> &Log {
        &self.log
    }

    /// The last entry of the own log.
    pub(super) fn end(&self) -> LogEnd {
        LogEnd { term: self.log.tail().term, index: self.log.last() }
    }

    /// Where the own log ended before damage took its end, while it has not reached that again. Then this member does not
    /// campaign: it may have acknowledged entries that it lacks.
    pub(super) fn former_end(&self) -> Option<LogEnd> {
        self.former_end.filter(|former| self.end() < *former)
    }

    /// What the log of a candidate must reach to get this member's vote: see "Damaged logs" in the crate's README.
    pub(super) fn protected_end(&self) -> LogEnd {
        self.former_end().unwrap_or(self.end())
    }

    /// The membership in force: the latest in the log, committed or not.
    pub(super) fn membership(&self) -> &Arc<Membership> {
        &self.log.tail().membership
    }

    /// Whether this member is in the membership in force.
    pub(super) fn is_member(&self, id: &MemberId) -> bool {
        self.membership().get(id).is_some()
    }

    /// The members of the membership in force, without this one.
    pub(super) fn other_members(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.membership().members.iter().map(|m| m.id).filter(|id| *id != self.config.id)
    }

    /// The voters of the membership in force, without this member.
    pub(super) fn other_voters(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.membership().voters().filter(|id| *id != self.config.id)
    }

    pub(super) fn commit(&self) -> Index {
        self.log.commit()
    }

    /// Up to here the own log is on the disk.
    pub(super) fn persisted(&self) -> Index {
        self.disk.persisted()
    }

    /// The last index that this member acknowledges: on its disk, and equal to the leader's log.
    pub(super) fn acknowledged(&self) -> Index {
        if self.is_active(Failpoint::AckBeforeFsync) {
            return self.log.matched();
        }
        if self.is_active(Failpoint::AckOfUnmatched) {
            return self.disk.persisted();
        }
        self.disk.persisted().min(self.log.matched())
    }

    /// Up to here entries may be handed to the server: committed, and on the own disk.
    pub(super) fn deliverable(&self) -> Index {
        if self.is_active(Failpoint::DeliverBeforeDisk) {
            return self.commit();
        }
        self.commit().min(self.disk.persisted())
    }

    /// Whether this member leads and an entry of its own term is committed.
    pub(super) fn has_committed_in_term(&self) -> bool {
        self.is_leader() && self.log.term_at(self.commit()) == Some(self.term)
    }

    /// For how long the own disk has completed no write although some are in flight.
    pub(super) fn disk_stands_still_for(&self) -> Micros {
        self.disk.stands_still_for()
    }

    /// Whether the own disk hangs: no vote of this member would become durable.
    pub(super) fn disk_hangs(&self) -> bool {
        let timeout = self.config.disk_timeout;
        timeout > 0 && self.disk_stands_still_for() >= timeout
    }

    /// Whether the vote as it is now is not on the disk yet.
    pub(super) fn vote_is_pending(&self) -> bool {
        self.disk.vote_waits()
    }

    /// Asserts the invariants of [`Local`] and its parts. The cached entries take linear time: an optimized build, the
    /// simulator's, checks them in one round of 64.
    pub(super) fn assert_invariants(&self) {
        let whole = cfg!(debug_assertions) || self.now.is_multiple_of(64);
        self.log.assert_invariants(whole);
        self.disk.assert_invariants(self.log.last());
        let (commit, last) = (self.commit(), self.log.last());
        assert!(self.deliverable() <= commit, "deliverable {} <= commit {commit}", self.deliverable());
        let tail_term = self.log.tail().term;
        assert!(tail_term <= self.term, "last entry's term {tail_term} <= term {}", self.term);
        if self.is_leader() {
            assert_eq!(self.log.matched(), last, "a leader's log is the term's log");
            assert_eq!(self.leader, Some(self.config.id), "a leader knows itself as the leader");
            let may_lack = self.is_active(Failpoint::CampaignBelowFormerEnd);
            assert!(
                self.former_end().is_none() || may_lack,
                "a leader has all that its log had before damage"
            );
        }
    }
}

/// Changes, by the router only.
impl Local {
    pub(super) fn advance(&mut self, now: Micros) {
        self.now = self.now.max(now);
    }

    pub(super) fn set_wall_clock(&mut self, wall: Micros) {
        self.wall = wall;
    }

    pub(super) fn set_timing(&mut self, heartbeat: Micros, election_timeout: Micros) {
        self.config.heartbeat = heartbeat;
        self.config.election_timeout = election_timeout;
    }

    pub(super) fn set_disk_timeout(&mut self, timeout: Micros) {
        self.config.disk_timeout = timeout;
    }

    /// Notes whether the own disk makes progress.
    pub(super) fn observe_disk(&mut self) {
        self.disk.observe(self.now);
    }

    pub(super) fn set_incarnation(&mut self, incarnation: u64) {
        debug_assert!(incarnation > self.config.incarnation, "incarnations grow");
        self.config.incarnation = incarnation;
    }

    /// Enters a newer term, in which this member has no leader and has not voted. Of a new leader's log only the committed
    /// part is known.
    pub(super) fn enter_term(&mut self, term: Term) {
        assert!(term > self.term, "terms only grow");
        self.term = term;
        self.voted_for = None;
        self.disk.vote_changed();
        self.leader = None;
        self.log.forget_leader();
    }

    pub(super) fn set_support(&mut self, support: Support) {
        self.support = support;
    }

    pub(super) fn set_role(&mut self, role: Role) {
        self.role = role;
    }

    pub(super) fn set_leader(&mut self, leader: Option<MemberId>) {
        self.leader = leader;
    }

    /// Leads from here on: all of the own log is the term's.
    pub(super) fn lead(&mut self) {
        debug_assert!(self.voted_for.is_some(), "a leader has voted in its term");
        self.role = Role::Leader;
        self.leader = Some(self.config.id);
        self.log.agree_up_to(self.log.last());
    }

    pub(super) fn vote_for(&mut self, id: MemberId) {
        self.voted_for = Some(id);
        self.disk.vote_changed();
    }

    /// The next entry, of this member's term or a later one.
    pub(super) fn next_entry(
        &self,
        term: Term,
        kind: EntryKind,
        proposal: ProposalId,
        payload: &[u8],
        seqno: Seqno,
    ) -> Entry {
        let index = self.log.last() + 1;
        Entry::new(EntryHeader { index, term, kind, seqno, proposal, time: self.wall }, payload)
    }

    /// Appends an entry that is not known to be in the leader's log.
    ///
    /// # Errors
    /// If it is not the next one, or cannot be read; nothing has changed then.
    pub(super) fn append(&mut self, entry: Entry) -> Result<(), DecodeError> {
        self.log.append(entry)
    }

    /// Appends an entry as the leader.
    ///
    /// # Errors
    /// As for [`Local::append`].
    pub(super) fn append_as_leader(&mut self, entry: Entry) -> Result<Index, DecodeError> {
        debug_assert!(self.is_leader() && entry.term == self.term, "only a leader appends by itself");
        self.log.append(entry)?;
        self.log.agree_up_to(self.log.last());
        Ok(self.log.last())
    }

    /// Up to here the log equals the leader's.
    pub(super) fn agree_up_to(&mut self, index: Index) {
        self.log.agree_up_to(index);
    }

    pub(super) fn commit_to(&mut self, index: Index) {
        self.log.commit_to(index);
    }

    /// The next write first puts these entries in a rescue file.
    pub(super) fn rescue(&mut self, rescue: Rescue) {
        self.disk.rescue(rescue);
    }

    /// Forgets the entries from `from` on.
    pub(super) fn truncate(&mut self, from: Index) {
        self.disk.truncated(from, self.config.failpoints);
        self.log.truncate(from);
    }

    /// The log begins anew after `state`.
    pub(super) fn restart_log(&mut self, state: StateSnapshot) {
        self.disk.reset(state.index, self.log.commit());
        self.log = Log::starting_at(state);
    }

    /// No thread waits for an entry up to here any more.
    pub(super) fn forget_policy_ranges(&mut self, upto: Index) {
        self.log.forget_policy_ranges(upto);
    }

    /// The node has removed the segments below `first`.
    pub(super) fn log_trimmed(&mut self, first: Index) {
        self.log.trimmed(first);
    }

    /// Whether too many bytes are on their way to the disk. See [`Disk::is_full`].
    pub(super) fn disk_is_full(&mut self) -> bool {
        self.disk.is_full(self.config.max_unwritten_bytes)
    }

    /// Holds this back until the vote as it is now is on the disk.
    pub(super) fn after_vote(&mut self, what: Held) {
        self.disk.after_vote(what);
    }

    /// All writes up to this ticket are on the disk.
    pub(super) fn written(&mut self, ticket: u64) {
        self.disk.written(ticket);
        // From here on the log has what it had, also if it is truncated later.
        self.former_end = self.former_end.filter(|former| {
            let index = self.disk.persisted();
            let term = self.log.term_at(index).unwrap_or(0);
            LogEnd { term, index } < *former
        });
    }

    /// The next thing that waited for the vote and waits no more.
    pub(super) fn released(&mut self) -> Option<Held> {
        self.disk.released()
    }

    /// The next write, if there is anything to write.
    pub(super) fn write(&mut self) -> Option<WriteOp> {
        let vote = Vote { term: self.term, voted_for: self.voted_for };
        self.disk.write(&mut self.log, vote, self.config.segment_bytes, self.config.failpoints)
    }

    /// Drops old entries from memory.
    pub(super) fn evict(&mut self) {
        self.log.evict(self.config.cache_bytes, self.disk.persisted());
    }
}
