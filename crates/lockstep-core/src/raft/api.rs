//! The inputs, the looking glass, and the end of a round.

use super::failpoints::Failpoint;
use super::*;
use crate::message::Carried;

impl Raft {
    /// A core that has read its log back (`None`: the folder is empty; we are a member of nothing yet).
    pub fn new(config: Config, restored: Option<Restored>, now: Micros) -> Raft {
        let (vote, log) = match restored {
            Some(restored) => restored.into_parts(),
            None => (Vote::default(), Log::empty()),
        };
        // A member that has persisted an entry of a term has entered that term, even if the write of its vote file was
        // lost.
        let (term, voted_for) =
            if log.tail().term > vote.term { (log.tail().term, None) } else { (vote.term, vote.voted_for) };
        let membership = log.tail().membership.clone();
        let mut order = Raft {
            rng: Rng::new(&config),
            now,
            wall: 0,
            term,
            voted_for,
            role: Role::Follower,
            leader: None,
            last_leader_contact: None,
            leader_timeout: 0,
            fruitless_terms: 0,
            leader_gone: false,
            election_deadline: 0,
            votes: BTreeMap::new(),
            tail_replies: None,
            disk: Disk::new(log.last()),
            commit_policy: commit_policy::CommitPolicy::default(),
            log_recovery: None,
            longest_rtt: 0,
            tail_fetch: None,
            up: BTreeSet::new(),
            own_view_member: None,
            acks: BTreeMap::new(),
            pending_acks: ack::PendingAcks::default(),
            peers: BTreeMap::new(),
            lead: leader::Lead::default(),
            outbox: proposals::Outbox::default(),
            reads: read_index::Reads::new(config.incarnation),
            relays: relay::Relays::default(),
            finished: SEQNO_UNDEFINED,
            position: None,
            outputs: Vec::new(),
            told: LastReported {
                role: Role::Follower,
                term: 0,
                leader: None,
                commit: 0,
                deliverable: 0,
                membership: Arc::new(Membership::default()),
            },
            log,
            config,
        };
        order.reset_election_timer();
        // Nobody else could be leading.
        if membership.is_voter(&order.config.id) && membership.majority() == 1 {
            order.election_deadline = now;
        }
        order
    }

    /// Founds a cluster: the log begins with `state`, in which we are the only voter, and we campaign at once.
    /// Without effect where there is a log already.
    pub fn bootstrap(&mut self, now: Micros, state: StateSnapshot) {
        self.advance(now);
        if self.log.exists() {
            return;
        }
        self.begin_log(state);
        self.campaign(false);
    }

    /// The log begins anew after `state`.
    pub(super) fn begin_log(&mut self, state: StateSnapshot) {
        let (base, committed) = (state.index, self.log.commit());
        self.give_up_from(committed + 1);
        self.disk.reset(base, committed);
        self.log = Log::starting_at(state);
        self.outbox.log_changed(&self.log, &self.config, self.now);
    }

    /// The wall clock, µs since 1970: goes into the entries that we place as a leader.
    pub fn set_wall_clock(&mut self, wall: Micros) {
        self.wall = wall;
    }

    /// Sets the last seqno finished by our server; acks carry it.
    pub fn set_finished(&mut self, seqno: Seqno) {
        self.finished = seqno;
    }

    /// Where our database stands, if we have one: decides from where a leader sends us the log if ours must begin anew.
    pub fn set_position(&mut self, position: Option<Seqno>) {
        self.position = position;
    }

    /// Whether the transport has said that there is a connection with this member.
    pub fn is_up(&self, id: &MemberId) -> bool {
        self.up.contains(id)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Micros) {
        self.advance(now);
        match self.role {
            Role::Leader => self.tick_leader(),
            _ => self.tick_election(),
        }
        self.tick_proposals();
        self.tick_reads();
    }

    /// When [`Raft::tick`] has something to do.
    pub fn deadline(&self) -> Micros {
        let own = match self.role {
            Role::Leader => self.lead.deadline().min(self.gate_deadline()),
            Role::Candidate => self.election_deadline.min(self.recovery_deadline()),
            _ => self.election_deadline,
        };
        own.min(self.outbox.deadline(&self.log, &self.config)).min(self.reads.deadline(&self.config))
    }

    /// A message has come.
    pub fn step(&mut self, now: Micros, from: MemberId, message: Message) {
        self.advance(now);
        // A term near the end of the numbers is nobody's: terms grow by elections.
        if from == self.config.id || message.term() > Term::MAX / 2 {
            return;
        }
        match message {
            Message::PreVote { term, last_index, last_term } => {
                self.on_pre_vote(from, term, last_index, last_term)
            }
            Message::PreVoteReply { term, granted } => self.on_pre_vote_reply(from, term, granted),
            Message::Vote { term, last_index, last_term, transfer } => {
                self.on_vote(from, term, last_index, last_term, transfer)
            }
            Message::VoteReply { term, granted } => self.on_vote_reply(from, term, granted),
            Message::Append { term, prev_index, prev_term, commit, persisted, context, entries } => {
                if self.accept_leader(from, term) {
                    let carried = Carried { prev_index, prev_term, commit, persisted, entries };
                    self.on_append(from, context, carried);
                    self.take_early(from);
                } else if term < self.term {
                    // It must hear that its time is over, else it and we would wait for each other.
                    self.send(from, self.reject(prev_index, prev_index, term, context));
                }
            }
            Message::Snapshot { term, state, context } => {
                if self.accept_leader(from, term) {
                    self.on_base(*state, context);
                } else if term < self.term {
                    self.send(from, self.reject(state.index, state.index, term, context));
                }
            }
            Message::Ack { term, persisted, received, finished, context } => {
                self.on_ack(from, term, persisted, received, finished, context)
            }
            Message::Reject { term, prev_index, hint_index, hint_term, position, context } => {
                self.on_reject(from, term, prev_index, (hint_index, hint_term), position, context)
            }
            Message::Propose { incarnation, first, proposals, .. } => {
                self.on_propose(from, incarnation, first, proposals)
            }
            Message::ProposeReply { term, incarnation, number } => {
                // Only a leader answers proposals: it shows itself by this.
                if self.accept_leader(from, term) && incarnation == self.config.incarnation {
                    self.outbox.told(number, &self.log, &self.config, self.term, from, self.now);
                }
            }
            Message::ReadIndex { context, .. } => self.on_read_index(from, context),
            Message::ReadIndexReply { term, context, index } => {
                self.on_read_index_reply(from, term, context, index)
            }
            Message::TimeoutNow { term } => self.on_timeout_now(from, term),
            Message::PolicyMet { term, settled, fallen } => self.on_policy_met(from, term, settled, fallen),
            Message::TailQuery { term } => self.on_tail_query(from, term),
            Message::TailReply { term, last_index, last_term } => {
                self.on_tail_reply(from, term, last_index, last_term)
            }
            Message::FetchTail { term, from: first } => self.on_fetch_tail(from, term, first),
            Message::TailEntries { term, prev_index, prev_term, last, entries } => {
                self.on_tail_entries(from, term, (prev_index, prev_term), last, entries)
            }
            Message::Relay { term, to, context, carried } => {
                if self.accept_leader(from, term) {
                    self.pass_to_zone(from, &to, &carried);
                    self.on_append(from, context, carried);
                    self.take_early(from);
                } else if term < self.term {
                    self.send(from, self.reject(carried.prev_index, carried.prev_index, term, context));
                }
            }
            Message::Relayed { term, carried } => self.on_relayed(from, term, carried),
        }
    }

    /// The transport has a connection to it.
    pub fn peer_up(&mut self, now: Micros, id: MemberId) {
        self.advance(now);
        self.up.insert(id);
        if self.leader == Some(id) && self.role != Role::Leader {
            // Messages in flight to it are lost.
            self.outbox.connected(&self.log, &self.config, self.now);
            self.reads.ask_again();
        }
        match self.role {
            Role::Leader => self.leader_peer_up(id),
            Role::PreCandidate | Role::Candidate => self.ask_again(id),
            Role::Follower => {}
        }
    }

    /// The transport has lost its connection to it.
    pub fn peer_down(&mut self, now: Micros, id: MemberId) {
        self.advance(now);
        self.up.remove(&id);
        self.relays.lost(&id);
        self.recovery_peer_down(id);
        match self.role {
            Role::Leader => self.leader_peer_down(id),
            _ if self.leader == Some(id) => self.leader_lost(),
            _ => {}
        }
    }

    /// All writes up to this ticket are on the disk.
    pub fn written(&mut self, now: Micros, ticket: u64) {
        self.advance(now);
        self.disk.written(ticket);
        while let Some(what) = self.disk.released() {
            self.release(what);
        }
    }

    /// Ends a round: returns the outputs for all inputs since the last call.
    pub fn drain(&mut self, now: Micros) -> Vec<Output> {
        self.advance(now);
        if self.role == Role::Leader {
            self.append_own_proposals();
        }
        self.maybe_commit();
        self.update_gate();
        self.write_out();
        if self.role == Role::Leader {
            self.lead_round();
        } else {
            self.follow_on();
        }
        self.log.evict(self.config.cache_bytes, self.disk.persisted());
        self.report_changes();
        self.assert_invariants();
        std::mem::take(&mut self.outputs)
    }

    fn write_out(&mut self) {
        let vote = Vote { term: self.term, voted_for: self.voted_for };
        let write = self.disk.write(&mut self.log, vote, self.config.segment_bytes, self.config.failpoints);
        if let Some(op) = write {
            self.outputs.push(Output::Write(op));
        }
        // Where nothing had to be written, nothing has to wait.
        while let Some(what) = self.disk.released() {
            self.release(what);
        }
    }

    /// Says what has changed since the last round.
    fn report_changes(&mut self) {
        let (role, term, leader) = (self.role, self.term, self.leader);
        if (self.told.role, self.told.term, self.told.leader) != (role, term, leader) {
            (self.told.role, self.told.term, self.told.leader) = (role, term, leader);
            self.outputs.push(Output::Soft { role, term, leader });
        }
        if !Arc::ptr_eq(&self.told.membership, &self.log.tail().membership) {
            let membership = self.log.tail().membership.clone();
            if *membership != *self.told.membership {
                self.outputs.push(Output::Membership(membership.clone()));
            }
            self.told.membership = membership;
        }
        let (commit, deliverable) = (self.commit(), self.deliverable());
        if (self.told.commit, self.told.deliverable) != (commit, deliverable) {
            (self.told.commit, self.told.deliverable) = (commit, deliverable);
            self.outputs.push(Output::Commit { index: commit });
        }
    }

    /// How views list this member: what a new leader under a weak policy begins with is a view.
    pub fn set_view_member(&mut self, member: ViewMember) {
        self.own_view_member = Some(member);
    }

    pub(super) fn advance(&mut self, now: Micros) {
        self.now = self.now.max(now);
    }

    pub(super) fn send(&mut self, to: MemberId, message: Message) {
        self.outputs.push(Output::Send { to, message });
    }

    /// This member's role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The highest term that we know of.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The leader, if known.
    pub fn leader(&self) -> Option<MemberId> {
        self.leader
    }

    /// Whether there is a log at all: founded, read back or received.
    pub fn has_log(&self) -> bool {
        self.log.exists()
    }

    /// The commit index, as far as we know.
    pub fn commit(&self) -> Index {
        self.log.commit()
    }

    /// The last index.
    pub fn last_index(&self) -> Index {
        self.log.last()
    }

    /// Up to here the own log is on the disk.
    pub fn persisted(&self) -> Index {
        self.disk.persisted()
    }

    /// Up to here entries may be handed to the server: committed, and on our own disk.
    pub fn deliverable(&self) -> Index {
        if self.config.failpoints.is_active(Failpoint::DeliverBeforeDisk) {
            return self.commit();
        }
        self.commit().min(self.disk.persisted())
    }

    /// The fold of the whole log: membership in force, sessions.
    pub fn tail_state(&self) -> &StateSnapshot {
        self.log.tail()
    }

    /// The fold up to the commit index.
    pub fn committed_state(&self) -> &StateSnapshot {
        self.log.committed()
    }

    /// The first entry of the log; one above the last index where it has none.
    pub fn first_index(&self) -> Index {
        self.log.base_index() + 1
    }

    /// The first entry of each segment, ascending.
    pub fn segment_bases(&self) -> impl Iterator<Item = &StateSnapshot> + '_ {
        self.log.bases()
    }

    /// About how many bytes the entries from this index on have: exact for few, or where a segment begins.
    pub fn bytes_from(&self, index: Index) -> u64 {
        self.log.bytes_from(index)
    }

    /// The gap that contains this seqno, if a view has left it out: no entry of this history has it.
    pub fn gap_around(&self, seqno: Seqno) -> Option<Gap> {
        self.log.gaps().iter().find(|gap| gap.holds(seqno)).copied()
    }

    /// Ranges (first, last) of seqnos that committed views have left out, as far back as the log goes.
    pub fn left_out(&self) -> impl Iterator<Item = (Seqno, Seqno)> + '_ {
        let committed = self.log.gaps().iter().filter(|gap| gap.index <= self.log.committed().index);
        committed.map(|gap| (gap.before + 1, gap.after - 1))
    }

    /// What this member's own term of office has begun with leaving out, if it leads, and has.
    pub fn left_out_by_own_term(&self) -> Option<Gap> {
        let last = self.log.gaps().last().filter(|_| self.is_leader())?;
        (self.log.term_at(last.index) == Some(self.term())).then_some(*last)
    }

    /// The number of seqnos above `above` and up to `upto`, without those that views have left out.
    pub fn seqnos_between(&self, above: Seqno, upto: Seqno) -> i64 {
        let left_out = self.log.gaps().iter().map(|gap| (gap.after - 1).min(upto) - gap.before.max(above));
        (upto - above - left_out.map(|n| n.max(0)).sum::<i64>()).max(0)
    }

    /// How many write-sets and statements of each member have been put into the log of this process: it only grows.
    pub fn written_by(&self) -> &BTreeMap<MemberId, u64> {
        self.log.written()
    }

    /// An entry, if it is in memory; else it is in the log.
    pub fn entry(&self, index: Index) -> Option<&Entry> {
        self.log.entry(index)
    }

    /// The term of the entry there, and of the place before the first.
    pub fn term_at(&self, index: Index) -> Option<Term> {
        if self.log.exists() { self.log.term_at(index) } else { None }
    }

    /// The node has removed the segments below `first_index` from the disk.
    pub fn log_trimmed(&mut self, first_index: Index) {
        self.log.trimmed(first_index);
    }

    /// Whether writing makes sense: a leader that hears a majority; another that hears its leader.
    pub fn has_quorum(&self, now: Micros) -> bool {
        let now = self.now.max(now);
        match self.role {
            Role::Leader => self.quorum_active(now),
            _ => self.leader.is_some() && self.heard_since(now),
        }
    }
}
