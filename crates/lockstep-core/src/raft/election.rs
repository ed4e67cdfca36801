//! Terms, votes and campaigns.
//!
//! A campaign begins by asking whether it would succeed (pre-vote), so that a member that was cut off does not disturb
//! the others when it comes back. A member with a live leader refuses both requests, unless that leader itself asked for
//! the campaign (`transfer`).
//!
//! Anybody asked answers, learner or not: the membership in force at the candidate may be newer than ours, and the
//! candidate counts only voters of its own.

use super::disk::Held;
use super::failpoints::Failpoint;
use super::*;

impl Raft {
    /// Enters a term, or learns who leads it.
    pub(super) fn become_follower(&mut self, term: Term, leader: Option<MemberId>) {
        debug_assert!(term >= self.term, "terms only grow");
        if self.role == Role::Leader {
            self.step_down();
        }
        self.enter_term(term);
        self.role = Role::Follower;
        self.votes.clear();
        self.log_recovery = None;
        self.leader = leader;
        if leader.is_some() {
            self.hear_leader();
        }
    }

    fn enter_term(&mut self, term: Term) {
        if term > self.term {
            self.term = term;
            self.voted_for = None;
            self.disk.vote_changed();
            self.leader = None;
            self.last_leader_contact = None;
            // Of a new leader's log we know only that it holds what is committed.
            self.log.forget_leader();
            self.pending_acks.forget();
            self.relays.forget(self.config.failpoints);
            self.commit_policy.forget();
            self.log_recovery = None;
            self.tail_fetch = None;
        }
    }

    /// Whether this comes from the leader of our term; enters its term if it is newer.
    pub(super) fn accept_leader(&mut self, from: MemberId, term: Term) -> bool {
        if term < self.term {
            return false;
        }
        if term == self.term {
            // Two leaders of one term cannot be.
            if self.role == Role::Leader || self.leader.is_some_and(|leader| leader != from) {
                return false;
            }
            if self.role == Role::Follower && self.leader.is_some() {
                self.hear_leader();
                return true;
            }
        }
        self.become_follower(term, Some(from));
        true
    }

    fn hear_leader(&mut self) {
        self.last_leader_contact = Some(self.now);
        self.leader_gone = false;
        self.reset_election_timer();
        let least = self.leader_timeout;
        if least > self.config.election_timeout {
            self.election_deadline = self.now + least + self.rng.below(least) + self.deference();
        }
    }

    /// Whether we have heard of the leader within the election timeout before `now`.
    pub(super) fn heard_since(&self, now: Micros) -> bool {
        self.last_leader_contact.is_some_and(|at| now.saturating_sub(at) < self.config.election_timeout)
    }

    /// Whether there is a leader that we can hear, so that nobody should campaign.
    pub(super) fn hears_leader(&self) -> bool {
        self.role == Role::Leader
            || (self.leader.is_some() && !self.leader_gone && self.heard_since(self.now))
    }

    pub(super) fn reset_election_timer(&mut self) {
        self.election_deadline = self.now + self.timeout();
    }

    /// One to two election timeouts.
    fn timeout(&mut self) -> Micros {
        let least = self.config.election_timeout;
        least + self.rng.below(least) + self.deference()
    }

    /// An arbitrator leaves the others the first word: it should lead only where none of them can.
    fn deference(&self) -> Micros {
        let member = self.log.tail().membership.get(&self.config.id);
        if member.is_some_and(|m| m.arbitrator) { self.config.election_timeout / 2 } else { 0 }
    }

    /// The connection to the leader has broken: perhaps it is gone. Campaign sooner; those who still hear it refuse,
    /// and until its time is up we take it for our leader should it come back.
    pub(super) fn leader_lost(&mut self) {
        self.leader_gone = true;
        let half = self.config.election_timeout / 2;
        let soon = self.now + half / 2 + self.rng.below(half) + self.deference();
        self.election_deadline = self.election_deadline.min(soon);
    }

    /// A voter of the membership in force campaigns. So does one that an entry takes out that is not known to be
    /// committed: it may be the only one that has the entry, and so the only one that can win, as the others can if
    /// the entry is lost. It counts the votes of the voters in force, not its own. After a restart the commit index
    /// may be known too low, so any membership from there on that lets it vote will do.
    fn may_campaign(&self) -> bool {
        let (id, log) = (&self.config.id, &self.log);
        if !log.exists() || log.tail().membership.is_voter(id) {
            return log.exists();
        }
        let open = log.tail().membership_index > log.commit();
        open && (log.committed().membership.is_voter(id) || log.open_memberships().any(|m| m.is_voter(id)))
    }

    pub(super) fn tick_election(&mut self) {
        self.tick_log_recovery();
        if self.now < self.election_deadline {
            return;
        }
        if !self.heard_since(self.now) {
            self.leader = None;
            self.last_leader_contact = None;
        }
        if self.may_campaign() {
            match self.config.failpoints.is_active(Failpoint::NoPreVote) {
                true => self.campaign(false),
                false => self.pre_campaign(),
            }
        } else {
            self.role = Role::Follower;
            self.reset_election_timer();
        }
    }

    fn pre_campaign(&mut self) {
        self.role = Role::PreCandidate;
        self.log_recovery = None;
        // Where the question comes early, because a connection broke, the next one comes when it would have.
        let since = self.last_leader_contact.unwrap_or(self.now);
        self.election_deadline = since + self.timeout();
        self.votes.clear();
        self.votes.insert(self.config.id, true);
        for to in self.other_voters() {
            self.send(to, self.pre_vote());
        }
        self.count_votes();
    }

    pub(super) fn pre_vote(&self) -> Message {
        Message::PreVote { term: self.term + 1, last_index: self.log.last(), last_term: self.log.tail().term }
    }

    /// Campaigns: our vote for ourselves goes to the disk first, for we must not give another one in this term.
    pub(super) fn campaign(&mut self, transfer: bool) {
        self.enter_term(self.term + 1);
        self.role = Role::Candidate;
        self.last_leader_contact = None;
        self.reset_election_timer();
        self.voted_for = Some(self.config.id);
        self.disk.vote_changed();
        self.votes.clear();
        self.lead.campaign_is_transfer = transfer;
        self.disk.after_vote(Held::OwnVote(self.term));
        if self.needs_log_recovery() {
            return self.begin_log_recovery();
        }
        for to in self.other_voters() {
            self.disk.after_vote(Held::Send(to, self.vote()));
        }
    }

    pub(super) fn vote(&self) -> Message {
        Message::Vote {
            term: self.term,
            last_index: self.log.last(),
            last_term: self.log.tail().term,
            transfer: self.lead.campaign_is_transfer,
        }
    }

    /// Sends a message that waited for the vote to be durable.
    pub(super) fn release(&mut self, what: Held) {
        match what {
            Held::Send(to, message) => {
                // Of an older term it is no longer of use to anybody.
                let of_use = message.term() == self.term
                    && (self.role == Role::Candidate
                        || matches!(message, Message::VoteReply { .. } | Message::TailReply { .. }));
                if of_use {
                    self.send(to, message);
                }
            }
            Held::OwnVote(term) => {
                if self.role == Role::Candidate && self.term == term {
                    self.votes.insert(self.config.id, true);
                    match self.log_recovery {
                        Some(_) => self.continue_log_recovery(),
                        None => self.count_votes(),
                    }
                }
            }
        }
    }

    /// A connection has come up while we campaign.
    pub(super) fn ask_again(&mut self, id: MemberId) {
        if self.log_recovery.is_some() {
            let asked = self.role == Role::Candidate && self.votes.contains_key(&self.config.id);
            if asked && self.log.tail().membership.get(&id).is_some() {
                self.send(id, self.tail_query());
            }
            return;
        }
        let own_vote = self.role == Role::Candidate && self.votes.contains_key(&self.config.id);
        if own_vote && self.needs_log_recovery() && self.log.tail().membership.get(&id).is_some() {
            // Late: its tail counts all the same, if the answer comes before the votes.
            self.send(id, self.tail_query());
        }
        if !self.log.tail().membership.is_voter(&id) || self.votes.contains_key(&id) {
            return;
        }
        match self.role {
            Role::PreCandidate => self.send(id, self.pre_vote()),
            // Our own vote tells that the term is on the disk.
            Role::Candidate if self.votes.contains_key(&self.config.id) => self.send(id, self.vote()),
            _ => {}
        }
    }

    pub(super) fn other_voters(&self) -> Vec<MemberId> {
        self.log.tail().membership.voters().filter(|id| *id != self.config.id).collect()
    }

    fn up_to_date(&self, last_index: Index, last_term: Term) -> bool {
        (last_term, last_index) >= (self.log.tail().term, self.log.last())
            || self.config.failpoints.is_active(Failpoint::VoteForAnyLog)
    }

    pub(super) fn on_pre_vote(&mut self, from: MemberId, term: Term, last_index: Index, last_term: Term) {
        let granted = term > self.term && !self.hears_leader() && self.up_to_date(last_index, last_term);
        let term = if granted { term } else { self.term };
        self.send(from, Message::PreVoteReply { term, granted });
    }

    pub(super) fn on_pre_vote_reply(&mut self, from: MemberId, term: Term, granted: bool) {
        self.record_tail_reply(from, term, granted);
        if self.role != Role::PreCandidate || !self.log.tail().membership.is_voter(&from) {
            return;
        }
        if granted {
            if term != self.term + 1 {
                return;
            }
        } else if term > self.term {
            self.become_follower(term, None);
            return;
        }
        self.votes.entry(from).or_insert(granted);
        self.count_votes();
    }

    pub(super) fn on_vote(
        &mut self,
        from: MemberId,
        term: Term,
        last_index: Index,
        last_term: Term,
        transfer: bool,
    ) {
        if term > self.term {
            if !transfer && self.hears_leader() {
                return;
            }
            self.become_follower(term, None);
        }
        let free = match self.voted_for {
            Some(id) => id == from,
            None => self.leader.is_none(),
        } || self.config.failpoints.is_active(Failpoint::TwoVotes);
        if term == self.term && free && self.up_to_date(last_index, last_term) {
            if self.voted_for != Some(from) {
                self.voted_for = Some(from);
                self.disk.vote_changed();
            }
            self.reset_election_timer();
            self.disk.after_vote(Held::Send(from, Message::VoteReply { term, granted: true }));
        } else {
            self.send(from, Message::VoteReply { term: self.term, granted: false });
        }
    }

    pub(super) fn on_vote_reply(&mut self, from: MemberId, term: Term, granted: bool) {
        if !self.log.tail().membership.is_voter(&from) {
            return;
        }
        if term > self.term && !granted {
            self.become_follower(term, None);
        } else if term == self.term && self.role == Role::Candidate {
            self.votes.entry(from).or_insert(granted);
            self.count_votes();
        }
    }

    pub(super) fn count_votes(&mut self) {
        if self.log_recovery.is_some() {
            return;
        }
        let membership = &self.log.tail().membership;
        let majority = membership.majority();
        let of = |what: bool| membership.voters().filter(|id| self.votes.get(id) == Some(&what)).count();
        let (granted, refused) = (of(true), of(false));
        if granted >= majority {
            match self.role {
                Role::PreCandidate => self.campaign(false),
                Role::Candidate => self.become_leader(),
                _ => {}
            }
        } else if refused > membership.voters().count() - majority {
            self.role = Role::Follower;
            self.votes.clear();
        }
    }

    pub(super) fn on_timeout_now(&mut self, from: MemberId, term: Term) {
        let from_leader = term == self.term && self.leader == Some(from) && self.role == Role::Follower;
        if from_leader && self.may_campaign() {
            self.campaign(true);
        }
    }
}
