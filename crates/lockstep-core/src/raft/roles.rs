//! Changes of role that several components take part in: terms, elections, the end of a leadership.

use super::disk::Held;
use super::election::{VoteCount, grants_vote, may_campaign};
use super::failpoints::Failpoint;
use super::local::Role;
use super::log_recovery::{Next, Part, is_needed, query};
use super::output::Output;
use super::stall::StallCheck;
use super::standstill::Standstill;
use super::streams::Ends;
use super::{Raft, Round};
use crate::message::Message;
use crate::types::*;
use bytes::Bytes;

/// Terms and roles.
impl Raft {
    /// Enters a term, or learns who leads it.
    pub(super) fn become_follower(&mut self, term: Term, leader: Option<MemberId>) {
        debug_assert!(term >= self.local.term(), "terms only grow");
        if self.local.is_leader() {
            self.step_down();
        }
        self.enter_term(term);
        self.local.set_role(Role::Follower);
        self.election.clear_votes();
        self.recovery.end();
        self.local.set_leader(leader);
        if let Some(leader) = leader {
            self.witness.note_term(&self.local, leader, term);
            self.election.note_leader_active(&self.local);
        }
    }

    fn enter_term(&mut self, term: Term) {
        if term > self.local.term() {
            self.witness.note_acks(&self.local, &self.acks);
            self.local.enter_term(term);
            self.election.forget_leader();
            self.acks.enter_term();
            self.relay.enter_term(&self.local);
            self.replication.enter_term();
            self.commit_policy.forget();
            self.recovery.end();
            self.tail_fetch.forget();
        }
    }

    /// Whether a message comes from the leader of our term; enters its term if it is newer.
    pub(super) fn accept_leader(&mut self, from: MemberId, term: Term) -> bool {
        if term < self.local.term() {
            return false;
        }
        if term == self.local.term() {
            // Two leaders of one term cannot be.
            let other = self.local.leader().is_some_and(|leader| leader != from);
            if self.local.is_leader() || other {
                return false;
            }
            if self.local.role() == Role::Follower && self.local.leader().is_some() {
                self.election.note_leader_active(&self.local);
                return true;
            }
        }
        self.become_follower(term, Some(from));
        true
    }

    /// A member is in a newer term: this leader steps down.
    pub(super) fn on_newer_term(&mut self, from: MemberId, term: Term) {
        if self.local.is_member(&from) {
            self.become_follower(term, None);
        }
    }

    pub(super) fn become_leader(&mut self) {
        self.local.lead();
        self.commits = Standstill::default();
        self.stalls = StallCheck::default();
        self.election.forget_leader();
        self.election.clear_votes();
        self.acks.retain(self.local.membership());
        self.replication.begin(&self.local);
        let tail = self.local.log().tail();
        self.streams = Ends::new(&tail.view, tail.view_seqno);
        // The first entry commits what the predecessors left.
        let first = match self.recovery.first_view(&self.local) {
            Some((view, seqno)) => self.append_at(EntryKind::View, ProposalId::default(), view, seqno),
            None => {
                let id = Bytes::copy_from_slice(&self.local.id().0);
                self.append(EntryKind::Noop, ProposalId::default(), id)
            }
        };
        debug_assert!(first.is_ok(), "a leader can append its own entry");
        self.invite_proposals();
        self.replication.broadcast_heartbeat(&self.local);
    }

    /// Steps down.
    pub(super) fn step_down(&mut self) {
        debug_assert!(self.local.is_leader(), "only a leader steps down");
        self.replication.end();
        self.transfer.end();
        self.local.set_leader(None);
        self.local.set_role(Role::Follower);
        self.election.forget_leader();
        self.commit_policy.forget();
        self.election.reset_timer(&self.local);
        self.reads.fail(&self.local, &mut self.out);
    }
}

/// The leader.
impl Raft {
    /// Whether this leader's process has stalled since `ran_at`, its last input: see `stall.rs`.
    pub(super) fn note_stall(&mut self, ran_at: Micros) {
        let due = self.replication.heartbeat_due();
        let Some(length) = StallCheck::length(&self.local, ran_at, due) else { return };
        let answered = |context| self.replication.majority_answered(&self.local, context);
        if self.stalls.begin(self.replication.next_context(), answered) {
            self.replication.extend_deadlines(&self.local, length);
        }
        self.replication.stalled();
        self.commit_policy.extend_waits(length);
        self.replication.broadcast_heartbeat(&self.local);
    }

    pub(super) fn tick_leader(&mut self) {
        // A stall lowers `early` until a majority has answered: that neither ends nor begins a standstill.
        let deliverable = self.commit_policy.early(&self.local).max(self.commits.finished());
        self.commits.report(self.local.now(), deliverable, self.local.log().last());
        let is_alone = !self.replication.may_go_on(&self.local, self.quorum_timeout(), |_| true);
        let disks_hang = !is_alone && self.disks_hang();
        if disks_hang {
            let voters = self.local.membership().voters().map(|id| (id, self.disk_of_stands_still_for(&id)));
            let disks = voters.filter(|(_, time)| *time > 0).collect();
            self.out.push(Output::DisksHang { disks });
        }
        if (is_alone || disks_hang) && !self.local.is_active(Failpoint::NoCheckQuorum) {
            self.replication.quorum_lost();
            self.step_down();
            return;
        }
        if self.transfer.tick(&self.local) {
            self.invite_proposals();
        }
        self.replication.tick(&self.local);
    }

    /// Ends a leader's round.
    pub(super) fn lead_round(&mut self) {
        let needed = self.reads.begin_round(&self.local);
        let heartbeat = self.replication.begin_round(needed);
        if let Some(context) = heartbeat {
            self.reads.stamp(context);
        }
        let heartbeat = heartbeat.is_some();
        let mut round = Round::new(&self.local, &self.acks, &mut self.out);
        self.replication.round(&mut round, &self.relay, heartbeat);
        let proposals = self.replication.proposals();
        self.commit_policy.announce(&self.local, &mut self.out, heartbeat, proposals);
        self.reads.confirm(&self.local, &mut self.out, |id| self.replication.context_answered(id));
        self.transfer.hand_over(&self.local, &mut self.out, |id| self.replication.received(id));
        self.leave_if_removed();
    }

    /// A leader that a committed entry has removed from the voters has led up to here.
    fn leave_if_removed(&mut self) {
        let membership = self.local.membership();
        let is_open = self.local.log().tail().membership_index > self.local.commit();
        if membership.is_voter(&self.local.id()) || is_open {
            return;
        }
        // A voter that has all entries need not wait for an election timeout.
        let last = self.local.log().last();
        let next = membership.voters().find(|id| self.replication.received(id) == Some(last));
        if let Some(to) = next {
            self.out.send(to, Message::TimeoutNow { term: self.local.term() });
        }
        self.step_down();
    }
}

/// Elections.
impl Raft {
    pub(super) fn tick_election(&mut self) {
        let own_vote = self.election.has_own_vote(&self.local);
        let tick = self.recovery.tick(&self.local, &mut self.out, own_vote, &self.up);
        if tick.is_waiting {
            self.election.reset_timer(&self.local);
        }
        if tick.wait_is_over {
            self.continue_recovery();
        }
        if self.local.now() < self.election.deadline() {
            return;
        }
        if !self.election.leader_active_since(&self.local, self.local.now()) {
            self.local.set_leader(None);
            self.election.forget_leader();
        }
        if may_campaign(&self.local) {
            match self.local.is_active(Failpoint::NoPreVote) {
                true => self.campaign(false),
                false => self.pre_campaign(),
            }
        } else {
            self.local.set_role(Role::Follower);
            self.election.reset_timer(&self.local);
        }
    }

    fn pre_campaign(&mut self) {
        self.local.set_role(Role::PreCandidate);
        self.recovery.end();
        self.election.begin_pre_vote(&self.local, &mut self.out);
        self.count_votes();
    }

    /// Campaigns. Our vote for ourselves is made durable first, because we must not give another one in this term.
    pub(super) fn campaign(&mut self, is_transfer: bool) {
        self.enter_term(self.local.term() + 1);
        self.local.set_role(Role::Candidate);
        self.local.vote_for(self.local.id());
        self.election.begin(&self.local, is_transfer);
        self.local.after_vote(Held::OwnVote(self.local.term()));
        let needs_recovery = is_needed(&self.local);
        let (message, to): (Message, Vec<MemberId>) = match needs_recovery {
            true => (query(&self.local), self.local.other_members().collect()),
            false => (self.election.request(&self.local), self.local.other_voters().collect()),
        };
        if needs_recovery {
            self.recovery.begin(&self.local);
        }
        for id in to {
            self.local.after_vote(Held::Send(id, message.clone()));
        }
    }

    fn count_votes(&mut self) {
        if self.recovery.is_active() {
            return;
        }
        match (self.election.count(&self.local), self.local.role()) {
            (VoteCount::Won, Role::PreCandidate) => self.campaign(false),
            (VoteCount::Won, Role::Candidate) => self.become_leader(),
            (VoteCount::Lost, _) => {
                self.local.set_role(Role::Follower);
                self.election.clear_votes();
            }
            (VoteCount::Won | VoteCount::Open, _) => {}
        }
    }

    /// Sends a message that waited for the vote to be durable.
    pub(super) fn release(&mut self, what: Held) {
        match what {
            Held::Send(to, message) => {
                // A message of an older term is of no use to any member.
                let is_reply = matches!(message, Message::VoteReply { .. } | Message::TailReply { .. });
                let of_use = self.local.role() == Role::Candidate || is_reply;
                if message.term() == self.local.term() && of_use {
                    self.out.send(to, message);
                }
            }
            Held::OwnVote(term) => {
                if self.local.role() == Role::Candidate && self.local.term() == term {
                    self.election.record(self.local.id(), true);
                    match self.recovery.is_active() {
                        true => self.continue_recovery(),
                        false => self.count_votes(),
                    }
                }
            }
        }
    }

    /// A connection has come up during a campaign.
    pub(super) fn ask_again(&mut self, id: MemberId) {
        // Our own vote tells that the term is durable.
        let own_vote = self.election.has_own_vote(&self.local);
        let recovers = self.recovery.is_active() || is_needed(&self.local);
        if own_vote && recovers && self.local.is_member(&id) {
            // A late tail counts, too, if the reply comes before the votes.
            self.out.send(id, query(&self.local));
        }
        if !self.recovery.is_active() {
            self.election.ask_again(&self.local, &mut self.out, id);
        }
    }

    pub(super) fn on_pre_vote_reply(&mut self, from: MemberId, term: Term, granted: bool) {
        let is_newer = self.survey.record(&self.local, from, term, granted);
        if is_newer && !self.election.leader_is_active(&self.local) {
            self.become_follower(term, None);
        }
        if self.local.role() != Role::PreCandidate || !self.local.membership().is_voter(&from) {
            return;
        }
        if granted {
            if term != self.local.term() + 1 {
                return;
            }
        } else if term > self.local.term() {
            self.become_follower(term, None);
            return;
        }
        self.election.record(from, granted);
        self.count_votes();
    }

    pub(super) fn on_vote(&mut self, from: MemberId, term: Term, last: (Term, Index), is_transfer: bool) {
        if term > self.local.term() {
            if !is_transfer && self.election.leader_is_active(&self.local) {
                return;
            }
            self.become_follower(term, None);
        }
        if grants_vote(&self.local, from, term, last) {
            if self.local.voted_for() != Some(from) {
                self.local.vote_for(from);
            }
            self.election.reset_timer(&self.local);
            self.local.after_vote(Held::Send(from, Message::VoteReply { term, granted: true }));
        } else {
            self.out.send(from, Message::VoteReply { term: self.local.term(), granted: false });
        }
    }

    pub(super) fn on_vote_reply(&mut self, from: MemberId, term: Term, granted: bool) {
        if !self.local.membership().is_voter(&from) {
            return;
        }
        if term > self.local.term() && !granted {
            self.become_follower(term, None);
        } else if term == self.local.term() && self.local.role() == Role::Candidate {
            self.election.record(from, granted);
            self.count_votes();
        }
    }

    pub(super) fn on_timeout_now(&mut self, from: MemberId, term: Term) {
        let follows = self.local.role() == Role::Follower && self.local.leader() == Some(from);
        if follows && term == self.local.term() && may_campaign(&self.local) {
            self.campaign(true);
        }
    }

    /// Handles a tail query. The candidate has won a pre-vote, or its leader hands over. So we answer even if we still hear
    /// the old leader: entries that we went on acknowledging might be lost.
    pub(super) fn on_tail_query(&mut self, from: MemberId, term: Term) {
        let (last_index, last_term) = (self.local.log().last(), self.local.log().tail().term);
        let reply = |term| Message::TailReply { term, last_index, last_term };
        if self.local.is_active(Failpoint::TailWithoutPromise) && term > self.local.term() {
            self.out.send(from, reply(term));
            return;
        }
        let asked_before = term == self.local.term();
        if term > self.local.term() {
            self.become_follower(term, None);
        }
        if term < self.local.term() {
            self.out.send(from, reply(self.local.term()));
        } else if self.local.leader().is_none() {
            self.election.reset_timer(&self.local);
            if asked_before && self.local.vote_is_pending() {
                // We are responsive, and do not promise anything yet: of an older term it is no answer.
                self.out.send(from, reply(term - 1));
            }
            self.local.after_vote(Held::Send(from, reply(term)));
        }
    }

    pub(super) fn on_tail_reply(&mut self, from: MemberId, term: Term, last: (Term, Index)) {
        if !self.local.is_member(&from) {
            return;
        }
        if term > self.local.term() {
            self.become_follower(term, None);
        } else if self.recovery.on_reply(&self.local, from, term, last) {
            self.continue_recovery();
        }
    }

    pub(super) fn on_tail_entries(
        &mut self,
        from: (MemberId, Term),
        position: ((Index, Term), Index),
        entries: Vec<Entry>,
    ) {
        match self.recovery.on_part(&self.local, &mut self.out, from, position, entries) {
            Part::Ignored => {}
            Part::Unusable => self.continue_recovery(),
            Part::Taken(entries) => {
                self.election.reset_timer(&self.local);
                // Entries in the log stay for another campaign.
                self.take_over(entries);
                self.continue_recovery();
            }
        }
    }

    /// Puts fetched entries into the log, as if the old leader had sent them.
    fn take_over(&mut self, entries: Vec<Entry>) {
        if entries.is_empty() {
            return;
        }
        for entry in entries {
            match self.local.log().term_at(entry.index) {
                Some(term) if term == entry.term => continue,
                Some(_) => self.truncate(entry.index),
                None => {}
            }
            if self.local.append(entry).is_err() {
                break;
            }
        }
        self.outbox.log_changed(&self.local);
    }

    pub(super) fn continue_recovery(&mut self) {
        let own_vote = self.election.has_own_vote(&self.local);
        match self.recovery.next(&self.local, &mut self.out, own_vote, &self.up) {
            Next::Wait => {}
            Next::AskForVotes => {
                for to in self.local.other_voters() {
                    self.out.send(to, self.election.request(&self.local));
                }
                self.count_votes();
            }
        }
    }
}
