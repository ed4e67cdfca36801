//! Changes of several components at once: terms and roles, elections, appends of a leader, truncations.

use super::disk::Held;
use super::election::{VoteCount, grants_vote, may_campaign};
use super::errors::BranchError;
use super::failpoints::Failpoint;
use super::local::Role;
use super::log_recovery::{Next, Part, is_needed, query};
use super::output::Output;
use super::proposals::{refusal, session_reply};
use super::streams::Ends;
use super::write::Rescue;
use super::{PolicyUpdate, Positions, Raft, Round};
use crate::branch::Branch;
use crate::codec::DecodeError;
use crate::message::{Carried, Message, Proposal};
use crate::snapshot::StateSnapshot;
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
        if leader.is_some() {
            self.election.hear_leader(&self.local);
        }
    }

    fn enter_term(&mut self, term: Term) {
        if term > self.local.term() {
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
                self.election.hear_leader(&self.local);
                return true;
            }
        }
        self.become_follower(term, Some(from));
        true
    }

    /// A member is in a newer term: this leader steps down.
    pub(super) fn give_way(&mut self, from: MemberId, term: Term) {
        if self.local.is_member(&from) {
            self.become_follower(term, None);
        }
    }

    pub(super) fn become_leader(&mut self) {
        self.local.lead();
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
    pub(super) fn tick_leader(&mut self) {
        let is_alone = !self.quorum_active(self.local.now());
        if is_alone && !self.local.is_active(Failpoint::NoCheckQuorum) {
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
        self.reads.confirm(&self.local, &mut self.out, |id| self.replication.context_heard(id));
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

    /// Appends a proposal.
    ///
    /// # Errors
    /// As for [`Raft::append`].
    fn append_proposal(
        &mut self,
        kind: EntryKind,
        proposal: ProposalId,
        payload: Bytes,
    ) -> Result<Index, DecodeError> {
        let payload = match self.local.is_active(Failpoint::OvertakenFragmentsPass) {
            true => payload,
            false => self.streams.pass(kind, payload),
        };
        self.append(kind, proposal, payload)
    }

    /// Appends an entry of the leader's own making or a proposal.
    ///
    /// # Errors
    /// If the payload of a control entry cannot be read; nothing has changed then.
    pub(super) fn append(
        &mut self,
        kind: EntryKind,
        proposal: ProposalId,
        payload: Bytes,
    ) -> Result<Index, DecodeError> {
        let seqno = self.local.log().tail().seqno.saturating_add(kind.takes_seqno() as i64);
        self.append_at(kind, proposal, payload, seqno)
    }

    fn append_at(
        &mut self,
        kind: EntryKind,
        proposal: ProposalId,
        payload: Bytes,
        seqno: Seqno,
    ) -> Result<Index, DecodeError> {
        let entry = self.local.next_entry(self.local.term(), kind, proposal, &payload, seqno);
        let view = (kind == EntryKind::View).then(|| entry.clone());
        let index = self.local.append_as_leader(entry)?;
        if let Some(view) = view {
            self.streams.viewed(&view);
        }
        Ok(index)
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
        if !self.election.heard_since(&self.local, self.local.now()) {
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
        if is_newer && !self.election.hears_leader(&self.local) {
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
            if !is_transfer && self.election.hears_leader(&self.local) {
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

/// The log.
impl Raft {
    /// The log begins anew after `state`.
    pub(super) fn begin_log(&mut self, state: StateSnapshot) {
        self.give_up_from(self.local.commit() + 1);
        self.local.restart_log(state);
        self.outbox.log_changed(&self.local);
    }

    pub(super) fn commit_to(&mut self, index: Index) {
        self.local.commit_to(index);
        self.replication.committed();
        self.outbox.log_changed(&self.local);
    }

    /// Gives up the entries from `from` on; those that a weak policy may have acknowledged go to a rescue file first.
    fn truncate(&mut self, from: Index) {
        self.give_up_from(from);
        self.local.truncate(from);
    }

    /// The entries from `from` on are about to be given up.
    fn give_up_from(&mut self, from: Index) {
        if !self.local.is_active(Failpoint::OverwriteWithoutRescue)
            && let Some(rescue) = Rescue::from_log(self.local.log(), from)
        {
            self.local.rescue(rescue);
        }
        if self.commit_policy.truncated(from) {
            // The database has entries that the log loses. Our own proposals may be among them: they must not be proposed
            // again.
            self.outbox.halt();
            self.out.push(Output::Diverged { from });
        }
    }

    /// Counts the acks of this round, for the commit index and the commit policies.
    pub(super) fn count_acks(&mut self) {
        if let Some(index) = self.acks.committed(&self.local) {
            self.commit_to(index);
        }
        let positions = Positions::new(&self.local, &self.acks, &self.replication);
        let PolicyUpdate { done, early_proposal } = self.commit_policy.update(positions);
        if let Some(number) = early_proposal {
            self.outbox.given(number);
        }
        self.local.forget_policy_ranges(done);
    }

    pub(super) fn on_append(&mut self, from: MemberId, context: u64, append: Carried) {
        let Carried { mut prev_index, mut prev_term, commit, persisted, mut entries } = append;
        self.acks.record(&self.local, from, self.local.term(), persisted);
        if !self.local.log().exists() {
            self.out.send(from, self.acks.rejection(&self.local, prev_index, 0, prev_term, context));
            return;
        }
        // Committed entries are equal everywhere, also those already trimmed from our log.
        let committed = self.local.commit();
        if prev_index < committed {
            let known = usize::try_from(committed - prev_index).unwrap_or(usize::MAX).min(entries.len());
            entries.drain(..known);
            self.acks.owe(true, 0);
            prev_index = committed;
            prev_term = self.local.log().committed().term;
        }
        let full = self.local.disk_is_full();
        let last = self.local.log().last();
        if full && prev_index > last && self.local.log().matched() == last {
            // It continues what was dropped below. A refusal would make the leader send that again at once; an answer
            // that we have no more than before leaves its window shut, and lets it know that we are there. When the disk
            // goes on, the next heartbeat is refused, and the leader begins again where we stopped.
            self.acks.owe(true, context);
            self.learn_commit(commit);
            return;
        }
        if self.local.log().term_at(prev_index) != Some(prev_term) {
            let message = self.acks.rejection(&self.local, prev_index, prev_index, prev_term, context);
            self.out.send(from, message);
            return;
        }
        // An empty one that brings nothing new and asks for nothing needs no answer.
        self.acks.owe(prev_index > self.local.log().matched(), context);
        let mut end = prev_index;
        for entry in entries {
            if entry.index != end + 1 || entry.term > self.local.term() {
                break;
            }
            let matched = self.local.log().matched();
            match self.local.log().term_at(entry.index) {
                // It came twice: perhaps our answer was lost.
                Some(term) if term == entry.term => self.acks.owe(entry.index <= matched, 0),
                Some(_) if entry.index <= matched.max(committed) => break,
                known => {
                    if known.is_some() {
                        self.truncate(entry.index);
                    }
                    if full {
                        self.acks.owe(true, 0);
                        break;
                    }
                    if self.local.append(entry).is_err() {
                        break;
                    }
                }
            }
            end += 1;
        }
        self.local.agree_up_to(end);
        self.learn_commit(commit);
        self.outbox.log_changed(&self.local);
    }

    /// The leader has committed up to here: of what we share with it, that holds for us. The news may overtake the entries.
    fn learn_commit(&mut self, commit: Index) {
        let commit = self.relay.hear_commit(commit).min(self.local.log().matched());
        if commit > self.local.commit() {
            self.commit_to(commit);
        }
    }

    /// Handles a snapshot: the leader no longer has the entries that we need, or we have no log.
    ///
    /// A snapshot is a committed state of the leader. It replaces our log only if no committed entry is lost: we have no
    /// log; or the snapshot lies above our commit index and our log disagrees with it at its index, so that our entries up to
    /// there are part of it or uncommitted, and later ones are uncommitted. If our log agrees with it, the log stays, and is
    /// committed up to the snapshot.
    pub(super) fn on_base(&mut self, state: StateSnapshot, context: u64) {
        self.acks.owe(true, context);
        // Indices and seqnos near the end of the numbers are invalid.
        let sane = state.index < Index::MAX / 2 && (0..Seqno::MAX / 2).contains(&state.seqno);
        if state.term > self.local.term() || state.history.is_nil() || !sane {
            return;
        }
        let log = self.local.log();
        if log.exists() && !self.local.is_active(Failpoint::BaseOverLongerLog) {
            let committed = log.committed();
            let same = state.history == committed.history
                || state.parents.iter().any(|p| p.history == committed.history && p.index >= committed.index);
            let follows = same && state.term >= committed.term && state.seqno >= committed.seqno;
            if state.index <= committed.index || !follows {
                return;
            }
            if log.term_at(state.index) == Some(state.term) {
                self.local.agree_up_to(state.index);
                self.commit_to(state.index);
                return;
            }
            // What this term's leader gave us, it also has.
            if state.index <= log.matched() {
                return;
            }
        }
        self.begin_log(state);
    }

    /// Begins a branch: all that the own log holds counts as committed, and this member is the only voter from there on. The
    /// promise that nothing acknowledged is lost ends here, by an operator's order: what others committed without this member
    /// is not in the branch.
    ///
    /// **The caller** has ended all connections before: nothing of the new branch may reach a member of the old one except
    /// by a connection that has compared the names of the logs.
    ///
    /// # Errors
    /// [`BranchError`]; nothing has changed then.
    pub fn branch(&mut self, now: Micros, branch: &Branch) -> Result<(), BranchError> {
        self.local.advance(now);
        if !self.local.log().exists() || branch.founder.id != self.local.id() {
            return Err(BranchError::Malformed);
        }
        if self.has_quorum(now) {
            return Err(BranchError::HasQuorum);
        }
        // A term of ours alone: no member was elected in it.
        let (term, seqno) = (self.local.term() + 1, self.local.log().tail().seqno);
        let (kind, payload) = (EntryKind::Branch, branch.to_payload());
        let entry = self.local.next_entry(term, kind, ProposalId::default(), &payload, seqno);
        self.local.append(entry).map_err(|_| BranchError::Malformed)?;
        self.become_follower(term, None);
        self.up.clear();
        self.acks.clear();
        // Alone this member is a majority. The first entry of the term after this one commits all of it.
        self.campaign(false);
        Ok(())
    }
}

/// Proposals.
impl Raft {
    /// A leader appends its own.
    pub(super) fn append_own_proposals(&mut self) {
        if self.transfer.is_active() {
            return;
        }
        while let Some((kind, id, payload)) = self.outbox.next_own(&self.local) {
            let Ok(index) = self.append_proposal(kind, id, payload) else { break };
            if let Some(entry) = self.local.log().entry(index) {
                self.outbox.share(id.number, entry.payload());
            }
        }
        self.outbox.own_appended(&self.local);
    }

    pub(super) fn on_propose(
        &mut self,
        from: MemberId,
        incarnation: u64,
        first: u64,
        proposals: Vec<Proposal>,
    ) {
        if !self.local.is_leader() || !self.local.is_member(&from) || self.transfer.is_active() {
            return;
        }
        let mut refused = false;
        for (at, Proposal { kind, payload }) in proposals.into_iter().enumerate() {
            let Some(number) = first.checked_add(at as u64) else { break };
            let id = ProposalId { member: from, incarnation, number };
            let next =
                self.local.log().tail().is_next(&id) || self.local.is_active(Failpoint::DuplicateProposals);
            if !kind.may_be_proposed() || !next {
                refused = true;
                continue;
            }
            match self.append_proposal(kind, id, payload) {
                Ok(index) => self.replication.proposed(&from, index),
                Err(_) => break,
            }
        }
        if refused {
            self.out.send(from, refusal(&self.local, &from, incarnation));
        }
    }

    /// A leader tells its peers where their sessions continue.
    pub(super) fn invite_proposals(&mut self) {
        for id in self.replication.peers() {
            if let Some(message) = session_reply(&self.local, &id) {
                self.out.send(id, message);
            }
        }
    }
}
