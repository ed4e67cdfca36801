//! The inputs, and the end of a round.

use super::local::Support;
use super::membership::check_change;
use super::proposals::session_reply;
use super::*;
use crate::codec::Writer;
use crate::members::Membership;
use crate::message::{Carried, Message};
use crate::snapshot::StateSnapshot;
use bytes::Bytes;

impl Raft {
    /// A core that has read its log back (`None`: the folder is empty; this member belongs to no cluster yet).
    pub fn new(config: Config, restored: Option<Restored>, now: Micros) -> Raft {
        let (vote, log, former_end) = match restored {
            Some(restored) => restored.into_parts(),
            None => (Vote::default(), Log::empty(), None),
        };
        let mut raft = Raft {
            election: Election::new(&config),
            survey: LogSurvey::default(),
            recovery: LogRecovery::default(),
            tail_fetch: TailFetch::default(),
            acks: Acks::new(),
            witness: Witness::default(),
            commit_policy: CommitPolicy::default(),
            replication: Replication::default(),
            relay: Relay::default(),
            transfer: LeadershipTransfer::default(),
            streams: Ends::default(),
            outbox: Outbox::default(),
            reads: Reads::new(config.incarnation),
            commits: Standstill::default(),
            stalls: StallCheck::default(),
            up: BTreeSet::new(),
            out: Outputs::new(),
            local: Local::new(config, vote, (log, former_end), now),
        };
        raft.election.reset_timer(&raft.local);
        let membership = raft.local.membership();
        if membership.is_voter(&raft.local.id()) && membership.majority() == 1 {
            raft.election.campaign_now(&raft.local);
        }
        raft
    }

    /// Founds a cluster: the log begins with `state`, in which this member is the only voter, and it campaigns at once.
    /// Without effect if there is a log already.
    pub fn bootstrap(&mut self, now: Micros, state: StateSnapshot) {
        self.advance(now);
        if self.local.log().exists() {
            return;
        }
        self.begin_log(state);
        self.campaign(false);
    }

    /// Each input brings the time.
    pub(super) fn advance(&mut self, now: Micros) {
        let ran_at = self.local.now();
        self.local.advance(now);
        if self.local.is_leader() {
            self.note_stall(ran_at);
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Micros) {
        self.advance(now);
        match self.local.role() {
            Role::Leader => self.tick_leader(),
            _ => self.tick_election(),
        }
        self.outbox.tick(&self.local, &mut self.out);
        self.reads.tick(&self.local, &mut self.out);
    }

    /// When [`Raft::tick`] has something to do.
    pub fn deadline(&self) -> Micros {
        let own = match self.local.role() {
            Role::Leader => {
                let own = self.replication.deadline().min(self.transfer.deadline());
                own.min(self.commit_policy.deadline(&self.local))
            }
            Role::Candidate => self.election.deadline().min(self.recovery.deadline()),
            _ => self.election.deadline(),
        };
        own.min(self.outbox.deadline(&self.local)).min(self.reads.deadline(self.local.config()))
    }

    /// A message has arrived.
    pub fn step(&mut self, now: Micros, from: MemberId, message: Message) {
        self.advance(now);
        // A term near the end of the numbers is invalid: terms grow by elections.
        if from == self.local.id() || message.term() > Term::MAX / 2 {
            return;
        }
        if self.local.support() == Support::Nobody {
            // No answer: a leader must not count this member for its quorum.
            return;
        }
        match message {
            Message::PreVote { term, last_index, last_term } => {
                let last = (last_term, last_index);
                self.election.on_pre_vote(&self.local, &mut self.out, (from, term), last);
            }
            Message::PreVoteReply { term, granted } => self.on_pre_vote_reply(from, term, granted),
            Message::Vote { term, last_index, last_term, transfer } => {
                // A candidate asks once its own vote is durable.
                self.witness.note_term(&self.local, from, term);
                self.on_vote(from, term, (last_term, last_index), transfer)
            }
            Message::VoteReply { term, granted } => {
                if granted {
                    self.witness.note_term(&self.local, from, term);
                }
                self.on_vote_reply(from, term, granted)
            }
            Message::Append { term, prev_index, prev_term, commit, persisted, context, entries } => {
                if self.accept_or_reject(from, term, (prev_index, context)) {
                    let carried = Carried { prev_index, prev_term, commit, persisted, entries };
                    self.on_append(from, context, carried);
                    self.take_early(from);
                }
            }
            Message::Snapshot { term, state, context } => {
                if self.accept_or_reject(from, term, (state.index, context)) {
                    self.on_base(*state, context);
                }
            }
            Message::Ack { term, persisted, received, finished, context } => {
                self.on_ack(from, term, (persisted, received), finished, context)
            }
            Message::Reject { term, prev_index, hint_index, hint_term, position, context } => {
                self.on_reject(from, term, prev_index, (hint_index, hint_term), position, context)
            }
            Message::Propose { incarnation, first, proposals, .. } => {
                self.on_propose(from, incarnation, first, proposals)
            }
            Message::ProposeReply { term, incarnation, number } => {
                // Only a leader answers proposals: it shows itself by this.
                if self.accept_leader(from, term) && incarnation == self.local.config().incarnation {
                    self.outbox.on_reply(&self.local, from, number);
                }
            }
            Message::ReadIndex { context, .. } => {
                self.reads.on_question(&self.local, &mut self.out, from, context)
            }
            Message::ReadIndexReply { term, context, index } => {
                self.reads.on_reply(&self.local, &mut self.out, from, term, context, index)
            }
            Message::TimeoutNow { term } => self.on_timeout_now(from, term),
            Message::PolicyMet { term, policy_index, fallen_back } => {
                self.commit_policy.on_announced(&self.local, from, term, policy_index, fallen_back)
            }
            Message::TailQuery { term } => self.on_tail_query(from, term),
            Message::TailReply { term, last_index, last_term } => {
                self.on_tail_reply(from, term, (last_term, last_index))
            }
            Message::FetchTail { term, from: first } => {
                let soon = self.recovery.timeout(&self.local);
                self.tail_fetch.on_request(&self.local, &mut self.out, (from, term, first), soon);
            }
            Message::TailEntries { term, prev_index, prev_term, last, entries } => {
                self.on_tail_entries((from, term), ((prev_index, prev_term), last), entries)
            }
            Message::Relay { term, to, context, carried } => {
                if self.accept_or_reject(from, term, (carried.prev_index, context)) {
                    self.relay.pass_on(&self.local, &mut self.out, from, &to, &carried);
                    self.on_append(from, context, carried);
                    self.take_early(from);
                }
            }
            Message::Relayed { term, carried } => {
                let now = self.relay.on_relayed(&self.local, from, term, carried);
                if let Some((leader, carried)) = now {
                    self.on_append(leader, 0, carried);
                    self.take_early(leader);
                }
            }
        }
    }

    /// Whether entries come from the leader of our term, or of a newer one. The leader of an older term gets a rejection:
    /// else it and we would wait for each other.
    fn accept_or_reject(&mut self, from: MemberId, term: Term, (prev_index, context): (Index, u64)) -> bool {
        if self.accept_leader(from, term) {
            return true;
        }
        if term < self.local.term() {
            self.out.send(from, self.acks.rejection(&self.local, prev_index, prev_index, term, context));
        }
        false
    }

    fn on_ack(
        &mut self,
        from: MemberId,
        term: Term,
        (persisted, received): (Index, Index),
        finished: Seqno,
        context: u64,
    ) {
        if persisted > received {
            return;
        }
        if !self.local.is_leader() {
            if term > self.local.term() {
                // It replaces an ack of our term.
                self.witness.note_acks(&self.local, &self.acks);
            }
            self.acks.record(&self.local, from, term, persisted);
        } else if term > self.local.term() {
            self.on_newer_term(from, term);
        } else if term == self.local.term() && received <= self.local.log().last() {
            self.acks.record(&self.local, from, term, persisted);
            self.replication.on_ack(&self.local, from, (persisted, received), finished, context);
        }
    }

    fn on_reject(
        &mut self,
        from: MemberId,
        term: Term,
        prev_index: Index,
        hint: (Index, Term),
        position: Option<Seqno>,
        context: u64,
    ) {
        if !self.local.is_leader() || term < self.local.term() {
            return;
        }
        if term > self.local.term() {
            self.on_newer_term(from, term);
            return;
        }
        let mut round = Round::new(&self.local, &self.acks, &mut self.out);
        self.replication.on_reject(&mut round, from, prev_index, hint, position, context);
    }

    /// Takes kept appends that follow our log now.
    fn take_early(&mut self, leader: MemberId) {
        while let Some(carried) = self.relay.next_early(&self.local) {
            self.on_append(leader, 0, carried);
        }
    }

    /// The transport has a connection to this member.
    pub fn peer_up(&mut self, now: Micros, id: MemberId) {
        self.advance(now);
        self.up.insert(id);
        if self.local.leader() == Some(id) && !self.local.is_leader() {
            // Messages in flight to it are lost.
            self.outbox.connected(&self.local);
            self.reads.ask_again();
        }
        match self.local.role() {
            Role::Leader => {
                if self.replication.peer_up(&id)
                    && let Some(reply) = session_reply(&self.local, &id)
                {
                    self.out.send(id, reply);
                }
            }
            Role::PreCandidate | Role::Candidate => self.ask_again(id),
            Role::Follower => {}
        }
    }

    /// The transport has lost its connection to this member.
    pub fn peer_down(&mut self, now: Micros, id: MemberId) {
        self.advance(now);
        self.up.remove(&id);
        self.relay.peer_down(&id);
        if self.recovery.peer_down(id) {
            self.continue_recovery();
        }
        match self.local.role() {
            Role::Leader => self.replication.peer_down(&id),
            _ if self.local.leader() == Some(id) => self.election.leader_lost(&self.local),
            _ => {}
        }
    }

    /// All writes up to this ticket are on the disk.
    pub fn written(&mut self, now: Micros, ticket: u64) {
        self.advance(now);
        self.local.written(ticket);
        self.release_all();
    }

    fn release_all(&mut self) {
        while let Some(what) = self.local.released() {
            self.release(what);
        }
    }

    /// The answer to [`Output::Fetch`]: the entries from `from` on, dense; none if they are gone.
    pub fn fetched(&mut self, now: Micros, to: MemberId, from: Index, entries: Vec<Entry>) {
        self.advance(now);
        if !self.tail_fetch.on_fetched(&self.local, &mut self.out, to, from, &entries) {
            let mut round = Round::new(&self.local, &self.acks, &mut self.out);
            self.replication.on_fetched(&mut round, to, from, entries);
        }
    }

    /// Appends an entry of the leader's own: a view, a policy, a trim mark, a note. It is sent at the end of the round.
    ///
    /// # Errors
    /// [`ControlError`]. Memberships have a way of their own: [`Raft::change_membership`].
    pub fn append_control(
        &mut self,
        now: Micros,
        kind: EntryKind,
        payload: Bytes,
    ) -> Result<Index, ControlError> {
        self.advance(now);
        if !self.local.is_leader() || self.transfer.is_active() {
            let leader = self.local.leader().filter(|_| !self.local.is_leader());
            return Err(ControlError::NotLeader(NotLeader { leader }));
        }
        if !matches!(
            kind,
            EntryKind::View
                | EntryKind::Policy
                | EntryKind::Trim
                | EntryKind::Note
                | EntryKind::Outcome
                | EntryKind::Noop
        ) {
            return Err(ControlError::Malformed);
        }
        self.append(kind, ProposalId::default(), payload).map_err(|_| ControlError::Malformed)
    }

    /// Appends a new membership, which is in force at once. If it removes this member, this member leads until it is
    /// committed.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub fn change_membership(&mut self, now: Micros, membership: Membership) -> Result<Index, ChangeError> {
        self.advance(now);
        check_change(&self.local, &membership, self.transfer.is_active())?;
        let mut w = Writer::new();
        membership.encode(&mut w);
        let index = self
            .append(EntryKind::Membership, ProposalId::default(), w.into_bytes())
            .map_err(|_| ChangeError::Malformed)?;
        self.replication.sync_peers(&self.local);
        self.acks.retain(&membership);
        Ok(index)
    }

    /// Hands leadership to another voter, as soon as it holds all of our log; nothing is appended until then, or
    /// until an election timeout has passed.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn transfer_leadership(&mut self, now: Micros, to: MemberId) -> Result<(), TransferError> {
        self.advance(now);
        self.transfer.begin(&self.local, to)
    }

    /// This member's disk has gone back in time: from now on it does not campaign, and votes for this candidate only, in
    /// terms after `term`, which the candidate has entered.
    ///
    /// This member no longer knows its votes and acks of terms up to `term`. So the caller must know that no other member
    /// can win with them. If the candidate leads in `term`, it steps down: it counts acks of entries that are lost, and
    /// learns in a new term where the log ends now.
    pub fn vote_only_for(&mut self, now: Micros, candidate: MemberId, term: Term) {
        self.advance(now);
        self.local.set_support(Support::Only(candidate));
        let term = if term > Term::MAX / 2 { 0 } else { term + 1 };
        self.become_follower(term.max(self.local.term()), None);
    }

    /// This member's disk has gone back in time: from now on it takes no part. It does not campaign, grants no vote or
    /// pre-vote, and acknowledges nothing, because it may have voted in terms that it no longer knows. Its log stays as it
    /// is. [`Raft::branch`] ends this.
    pub fn abstain(&mut self, now: Micros) {
        self.advance(now);
        self.local.set_support(Support::Nobody);
        self.become_follower(self.local.term(), None);
    }

    /// Takes a proposal; it is sent, or appended, at the end of the round, and again after a change of leader, until
    /// it is committed. Returns its number.
    pub fn propose(&mut self, now: Micros, kind: EntryKind, payload: Bytes) -> u64 {
        self.advance(now);
        self.outbox.push(kind, payload)
    }

    /// Begins a new incarnation: earlier proposals are no longer sent (the log may have them all the same), and numbers
    /// restart. No effect unless `incarnation` exceeds the previous one.
    pub fn renew(&mut self, incarnation: u64) {
        if incarnation > self.local.config().incarnation {
            self.local.set_incarnation(incarnation);
            self.outbox = Outbox::default();
        }
    }

    /// Drops the proposals that were never sent nor appended: they can never be committed. Returns the first number
    /// dropped; that number and those after it will be given again.
    pub fn withdraw_unsent(&mut self) -> Option<u64> {
        self.outbox.withdraw_unsent()
    }

    /// Asks which index must be delivered before a read. [`Output::ReadReady`] or [`Output::ReadFailed`] answers with
    /// the context returned here.
    pub fn read_index(&mut self, now: Micros) -> u64 {
        self.advance(now);
        self.reads.ask(&self.local)
    }

    /// Asks every other member, also learners, whether it would vote for this one, even if this one may not campaign. A
    /// refusal means that its log is more up to date. [`Raft::would_vote`] returns the answers; earlier answers are
    /// discarded.
    pub fn query_tails(&mut self, now: Micros) {
        self.advance(now);
        self.survey.begin(&self.local, &mut self.out);
    }

    /// Asks those again that have not answered: a question or its answer may have been lost.
    pub fn query_tails_again(&mut self, now: Micros) {
        self.advance(now);
        self.survey.ask(&self.local, &mut self.out);
    }

    /// Ends a round: returns the outputs for all inputs since the last call.
    pub fn drain(&mut self, now: Micros) -> Vec<Output> {
        self.advance(now);
        self.local.observe_disk();
        if self.local.is_leader() {
            self.append_own_proposals();
        }
        self.count_acks();
        if let Some(op) = self.local.write() {
            self.out.push(Output::Write(op));
        }
        // If nothing had to be written, nothing has to wait.
        self.release_all();
        if self.local.is_leader() {
            self.lead_round();
        } else {
            self.outbox.send(&self.local, &mut self.out);
            self.reads.send(&self.local, &mut self.out);
            self.acks.send(&self.local, &mut self.out);
        }
        self.local.evict();
        self.out.report(&self.local, self.early(), self.policy_index());
        self.assert_invariants();
        self.out.take()
    }

    /// Asserts the invariants of the core and its parts, at the end of each round.
    ///
    /// Tests and the simulator check them; builds for users do not, because some take time linear in the log's cache. A run
    /// with an active failpoint is exempt: it breaks them on purpose.
    ///
    /// # Panics
    /// If one of them does not hold.
    #[inline]
    fn assert_invariants(&self) {
        let is_checked = cfg!(debug_assertions) || FAILPOINTS;
        if !is_checked || !self.local.config().failpoints.none_active() {
            return;
        }
        self.local.assert_invariants();
        self.outbox.assert_invariants();
        self.replication.assert_invariants(&self.local);
    }
}
