//! Inputs of peers and their frames, operators' commands, requests of the front end, and the disk.

use crate::api::{
    CommitBarrier, Compress, FrontEnd, Level, NodeError, ServerEnd, StatementResult, Tuning, VoteReply,
};
use crate::effect::{Effect, QuarantineRequest, ReadFailure, ReadFor, ReadRequest};
use crate::member::Member;
use crate::member::admin::operator::{Operator, Others};
use crate::member::admin::{commits, policy, wait_report};
use crate::member::context::ConnectionState;
use crate::member::context::Context;
use crate::member::leadership::{Candidate, best_successor};
use crate::member::log_reads::AfterFailure;
use crate::member::membership::admission::Admission;
use crate::member::membership::branch::{self, Meeting};
use crate::member::membership::peers::{EVIDENCE_SINCE, Peer, RELAYED_SINCE};
use crate::member::membership::reverted_log::Consequence;
use crate::member::outbox::OwnMessage;
use crate::member::recovery::transfer::Wanted;
use crate::member::unreadable::{Unreadable, unreadable_control};
use crate::operator::{Answer, Command};
use crate::pack;
use crate::rescued::Kept;
use crate::submit::Filler;
use crate::wire::{
    Evidence, FRAME_NODE, FRAME_OPERATOR, FRAME_PACKED, FRAME_RAFT, Health, Hello, NodeMessage,
    OperatorMessage, Sighting,
};
use bytes::Bytes;
use lockstep_core::codec::DecodeError;
use lockstep_core::message::Message;
use lockstep_core::policy::Policy;
use lockstep_core::vote::Opinion;
use lockstep_core::{Entry, EntryKind, Gtid, Index, MemberId, Micros, Seqno, Uuid};
use std::sync::Arc;

/// Frames and messages of members.
impl Member {
    /// Handles a frame from a connected peer.
    pub(crate) fn frame(&mut self, from: MemberId, kind: u8, payload: Bytes) {
        self.ctx.peers.received(self.ctx.now(), &from);
        let (kind, payload) = match kind {
            FRAME_PACKED => match pack::unpack(&payload, &mut self.unpacked) {
                Ok(inner) => inner,
                Err(error) => return self.bad_message(from, &error),
            },
            _ => (kind, payload),
        };
        let bad = match kind {
            FRAME_RAFT => match Message::decode(payload) {
                Ok(message) => {
                    if let Some(unreadable) = unreadable_control(&self.ctx.raft, from, &message) {
                        return self.stop_at_unreadable(from, &unreadable);
                    }
                    self.ctx.raft.step(self.ctx.now(), from, message);
                    self.leadership.contact(self.ctx.now(), self.ctx.raft.leader(), from);
                    return;
                }
                Err(error) => error,
            },
            FRAME_NODE => match NodeMessage::from_bytes(payload) {
                Ok(message) => {
                    self.node_message(from, message);
                    return self.dispatch_own();
                }
                Err(error) => error,
            },
            FRAME_OPERATOR => match OperatorMessage::from_bytes(payload) {
                Ok(message) => {
                    self.operator_message(from, message);
                    return self.dispatch_own();
                }
                Err(error) => error,
            },
            // A later version's frame: the peer knows that this version does not understand it.
            _ => return,
        };
        self.bad_message(from, &bad);
    }

    /// A member that cannot read its leader's control entry must say so and stop, or it would wait for it for ever.
    fn stop_at_unreadable(&mut self, from: MemberId, unreadable: &Unreadable) {
        // If the leader is not known for a moment, the sender of its entries stands for it.
        let leader = self.ctx.raft.leader().unwrap_or(from);
        let Unreadable { index, kind, error } = unreadable;
        let text = format!(
            "entry {index} ({kind:?}) of the leader {} {error}: the members are of different versions, or its log is \
             damaged; this member stops",
            self.ctx.name_of(&leader)
        );
        self.fail(&text);
    }

    /// A peer's frame cannot be read.
    fn bad_message(&mut self, from: MemberId, error: &DecodeError) {
        let name = self.ctx.name_of(&from);
        let text = format!("a message from {name} {error}: the connection is closed and made again");
        self.ctx.log(Level::Warn, text);
        self.ctx.emit(Effect::Drop(from));
    }

    pub(in crate::member) fn node_message(&mut self, from: MemberId, message: NodeMessage) {
        let own = self.standing();
        match message {
            NodeMessage::Health(health) => {
                if self.ctx.peers.set_health(&from, health) {
                    self.delivery.pace.reported(&self.ctx, from, health.finished);
                    self.schedule_leader_tasks();
                }
            }
            NodeMessage::Peers(addresses) => {
                for address in addresses.into_iter().take(64) {
                    self.ctx.dial(address);
                }
            }
            NodeMessage::StateRequest { donor, at_least, position, request } => {
                let transfers = &mut self.recovery.transfers;
                let wanted = Wanted { at_least, position, request };
                transfers.find_donor(&mut self.ctx, own, from, &donor, wanted);
            }
            NodeMessage::Donate { joiner, at_least, position, request } => {
                // Only the leader names donors, and only for members.
                let to_member = self.ctx.raft.membership().get(&joiner).is_some();
                if self.ctx.raft.leader() != Some(from) || !to_member {
                    return;
                }
                let transfers = &mut self.recovery.transfers;
                let wanted = Wanted { at_least, position, request };
                transfers.on_donate(&mut self.ctx, own, joiner, wanted);
            }
            NodeMessage::Donated { code, gtid, text } => {
                self.recovery.transfers.on_donated(&mut self.ctx, from, code, gtid, text);
            }
            NodeMessage::Opinion { seqno, opinion, text } => {
                self.recovery.votes.on_opinion(&mut self.ctx, from, seqno, opinion, &text);
            }
            NodeMessage::AskOpinion { seqno } => {
                self.recovery.votes.on_opinion_request(&mut self.ctx, from, seqno);
            }
            NodeMessage::Policy(policy) => {
                policy::append(&mut self.ctx, from, |_| policy);
            }
            NodeMessage::PolicyRequest { number, request } => {
                self.admin.policy_requests.on_request(&mut self.ctx, from, number, request);
            }
            NodeMessage::AskVerdicts { after, to } => {
                self.recovery.verdict_votes.on_request(&self.ctx, from, after, to);
            }
            NodeMessage::Verdicts { after, to, hash } => {
                self.recovery.verdict_votes.on_verdicts(from, after, to, hash);
            }
            NodeMessage::WritesRejected => self.leadership.on_writes_rejected(self.ctx.now(), from),
            NodeMessage::Evidence(evidence) => self.on_evidence(from, &evidence),
        }
    }

    pub(in crate::member) fn operator_message(&mut self, from: MemberId, message: OperatorMessage) {
        match message {
            OperatorMessage::Ask { id, command } => {
                let (operator, ctx, mut others) = self.commands();
                operator.on_ask(ctx, &mut others, from, id, &command);
            }
            OperatorMessage::Answer { id, ok, again, text } => {
                self.admin.operator.on_answer(&mut self.ctx, from, id, (ok, again), text);
            }
            OperatorMessage::Leave { text } => self.ordered_to_leave(from, &text),
            about_a_barrier => self.admin.barrier.on_message(&mut self.ctx, from, about_a_barrier),
        }
    }

    /// A peer orders this member to leave, because an operator has removed it.
    ///
    /// Only the leader of the newest term known here may: a deposed leader, or a peer that never led, does not know
    /// the committed membership. The order is repeated until the connection ends.
    fn ordered_to_leave(&mut self, from: MemberId, text: &str) {
        let obeys = self.roster.leave.is_for_good() || self.failure().is_some();
        if self.ctx.raft.leader() == Some(from) && !obeys {
            self.ctx.log(Level::Error, text);
            self.give_up(text);
        }
    }

    /// The commands under way, with the components that they need.
    pub(in crate::member) fn commands(&mut self) -> (&mut Operator, &mut Context, Others<'_>) {
        let own = self.standing();
        let Member { ctx, admin, delivery, roster, leadership, .. } = self;
        (
            &mut admin.operator,
            ctx,
            Others { own, deliverer: &delivery.deliverer, tasks: &roster.leader_tasks, leadership },
        )
    }

    /// Dispatches the messages of this member to itself.
    pub(in crate::member) fn dispatch_own(&mut self) {
        let me = self.ctx.me().id;
        while let Some(message) = self.ctx.take_own() {
            match message {
                OwnMessage::Node(message) => self.node_message(me, message),
                OwnMessage::Operator(message) => self.operator_message(me, message),
            }
        }
    }
}

/// Peers.
impl Member {
    /// Whether to accept a connection to this peer.
    pub(crate) fn admit(&self, hello: &Hello) -> Admission {
        self.ctx.peers.admit(&self.ctx.raft, self.ctx.me(), self.ctx.now(), hello)
    }

    /// Peers refuse this member for its identity. If its earlier incarnation only was not known to be dead yet, this
    /// passes in a moment. Otherwise it must not run beside the member with its identity.
    pub(crate) fn not_allowed(&mut self, text: &str) {
        if !self.ctx.peers.is_empty() || !self.ctx.peers.refused_for_long(self.ctx.now()) {
            return;
        }
        match self.ctx.connection() {
            ConnectionState::Connecting { .. } => self.refused(text),
            ConnectionState::Running { .. } | ConnectionState::NeedState { .. } => {
                self.fail(&format!("the other members refuse this one: {text}"));
            }
            _ => {}
        }
    }

    /// Peers do not find this member in their allow-list. A new member cannot join then; an earlier member waits until
    /// it is let in again.
    pub(crate) fn not_listed(&mut self, text: &str) {
        if !self.ctx.peers.is_empty() {
            return;
        }
        let now = self.ctx.now();
        let for_long = self.ctx.peers.refused_for_long(now);
        if matches!(self.ctx.connection(), ConnectionState::Connecting { .. }) {
            if for_long {
                self.refused(text);
            }
        } else if self.ctx.connection().is_connected() && self.ctx.peers.may_log_refusal(now) {
            self.ctx
                .log(Level::Warn, format!("the other members refuse this one, and are asked again: {text}"));
        }
    }

    /// A peer refused this member for a reason that only an administrator can remove.
    pub(crate) fn refused(&mut self, text: &str) {
        if matches!(self.ctx.connection(), ConnectionState::Connecting { .. }) && self.ctx.peers.is_empty() {
            self.ctx.disconnected();
            self.forget_peers();
            self.ctx.emit(Effect::Connected(Err(NodeError::Refused(text.to_string()))));
        }
    }

    /// A connection attempt failed. `why`: a member is there, but this one cannot talk with it.
    pub(crate) fn not_reached(&mut self, addr: String, who: String, why: Option<String>) {
        self.ctx.peers.not_reached(addr, who, why);
    }

    pub(crate) fn reached(&mut self, addr: &str) {
        self.ctx.peers.reached(addr);
    }

    /// A connection was accepted.
    pub(crate) fn peer_up(&mut self, hello: Hello) {
        let id = hello.id;
        let fresh = !self.ctx.peers.contains_key(&id);
        if fresh {
            self.ctx.log(Level::Info, format!("connected to {} ({})", hello.name, hello.address));
            // Only a hint: the default name is the host's, and several servers of a host may be in one group. Members
            // are identified by their ids.
            let name = &hello.name;
            if self.ctx.me().name == *name || self.ctx.peers.values().any(|p| p.hello().name == *name) {
                let text = format!(
                    "another member is named {name}, too: set {}, or {} that name it are ambiguous",
                    self.ctx.terms().name,
                    match self.ctx.front_end() {
                        FrontEnd::Device => "lines and commands",
                        _ => "lines and wsrep_sst_donor",
                    }
                );
                self.ctx.log(Level::Info, text);
            }
        }
        self.ctx.dial(hello.address.clone());
        self.ctx.peers.connect(&self.ctx.raft, self.ctx.now(), hello);
        self.ctx.raft.peer_up(self.ctx.now(), id);
        self.schedule_leader_tasks();
        self.recovery.transfers.donor_is_back(&mut self.ctx, id);
        let addresses: Vec<String> = self
            .ctx
            .raft
            .membership()
            .members
            .iter()
            .map(|m| m.address.clone())
            .chain(self.ctx.peers.values().map(|p| p.hello().address.clone()))
            .chain([self.ctx.me().address.clone()])
            .collect();
        self.ctx.send(id, &NodeMessage::Peers(addresses));
        // Fields unknown to older versions follow once the peer's version is known.
        let health = Health { held_back: false, ..self.health() };
        self.ctx.send(id, &NodeMessage::Health(health));
    }

    /// A connection ended.
    pub(crate) fn peer_down(&mut self, id: MemberId, why: &str) {
        let (membership, view) = (self.ctx.raft.membership(), self.ctx.raft.tail_state().view.clone());
        let keep = |id: &MemberId| membership.get(id).is_some() || view.position(id).is_some();
        if let Some(peer) = self.ctx.peers.disconnect(self.ctx.now(), &id, keep) {
            self.ctx.log(Level::Info, format!("connection to {} lost: {why}", peer.hello().name));
            if peer.leaving() && membership.is_voter(&id) && self.ctx.cut_off() {
                let (name, absent) = (&peer.hello().name, self.ctx.absent_voters());
                let text = format!(
                    "{name} was stopped and keeps its vote; writes wait until enough of these members are back: \
                     {absent}"
                );
                self.ctx.log(Level::Info, text);
            }
            self.ctx.raft.peer_down(self.ctx.now(), id);
            self.recovery.transfers.donor_may_be_gone(self.ctx.now(), id);
            self.schedule_leader_tasks();
        }
    }

    /// The own log has begun or been renamed: earlier connections were not compared with it. Peers whose log is not
    /// known to be this one must reconnect and introduce themselves again.
    pub(in crate::member) fn compare_peers(&mut self) {
        let tail = self.ctx.raft.tail_state();
        let own = (tail.history, tail.log_id);
        let others = self.ctx.peers.values().filter(|peer| {
            let log = (peer.hello().history, peer.hello().log_id);
            // The peer may lead this member to a branch of its present log.
            log != own && !peer.hello().parents.contains(&own)
        });
        let ids: Vec<MemberId> = others.map(Peer::id).collect();
        self.ctx.emit_all(ids.into_iter().map(Effect::Drop));
    }

    /// The protocol version of the connection just made.
    pub(crate) fn on_peer_version(&mut self, id: MemberId, version: u16) {
        self.ctx.peers.set_version(&id, version);
        if version >= RELAYED_SINCE {
            self.ctx.raft.peer_relays(id);
        }
        if version >= EVIDENCE_SINCE {
            self.report_evidence(id);
        }
    }

    /// Reports to a peer its durable state before this connection. The report is the connection's first message
    /// that the peer acts on: the peer must judge it before it votes or acknowledges.
    fn report_evidence(&mut self, id: MemberId) {
        let ctx = &mut self.ctx;
        if let Some((view_uuid, incarnation)) = ctx.peers.get(&id).and_then(Peer::earlier) {
            let sighting = Sighting { view_uuid, incarnation, durable: ctx.raft.witnessed(&id) };
            ctx.peers.set_earlier_sighting(&id, sighting);
        }
        let sightings = [ctx.peers.earlier_sighting(&id), self.roster.disk_notes.of(&id)];
        ctx.peers.set_sightings(&id, sightings.into_iter().flatten().collect());
        self.send_evidence(id);
    }

    /// Sends the evidence of this connection, with flags as they are now.
    fn send_evidence(&mut self, id: MemberId) {
        let flags = self.evidence_flags(&id);
        let reporter = self.ctx.raft.durable();
        let (only_two_vote, goes_on) = flags;
        for sighting in self.ctx.peers.report_sightings(&id, flags) {
            let evidence = Evidence { sighting, reporter, only_two_vote, goes_on };
            self.ctx.send(id, &NodeMessage::Evidence(evidence));
        }
    }

    /// Whether this member and `id` are the only voters, and whether the others go on without `id`.
    fn evidence_flags(&self, id: &MemberId) -> (bool, bool) {
        let Context { raft, peers, .. } = &self.ctx;
        let now = self.ctx.now();
        let works = |voter: &MemberId| peers.get(voter).is_some_and(|peer| peer.is_alive(now));
        (raft.is_only_other_voter(id), raft.goes_on_without(id, works))
    }

    /// Reports again to peers that may wait for a flag.
    pub(in crate::member) fn report_evidence_again(&mut self) {
        if !self.ctx.peers.may_repeat_evidence(self.ctx.now()) {
            return;
        }
        let due = |peer: &&Peer| peer.awaits_evidence(|| self.evidence_flags(&peer.id()));
        let ids: Vec<MemberId> = self.ctx.peers.values().filter(due).map(Peer::id).collect();
        ids.into_iter().for_each(|id| self.send_evidence(id));
    }

    /// A peer reports this member's earlier durable state. If part of it is lost, the log has gone back in time.
    fn on_evidence(&mut self, from: MemberId, evidence: &Evidence) {
        if self.failure().is_some() {
            return;
        }
        let (by, terms) = (self.ctx.name_of(&from), self.ctx.terms());
        let (now, raft) = (self.ctx.now(), &mut self.ctx.raft);
        let line = match self.roster.reverted_log.on_report(raft, &by, evidence) {
            None => return,
            Some(Consequence::GiveUpLog(why)) => return self.give_up_log(&why),
            Some(Consequence::Report(why)) => format!(
                "{why}. This member has been Primary since its start, so it goes on with this log, and committed \
                 {} may be missing. Compare the members' data. To discard this log, stop this {} and move its lockstep.* \
                 files away: it returns as a new member",
                terms.entries, terms.process
            ),
            Some(Consequence::SupportReporter(why)) => {
                raft.vote_only_for(now, from, evidence.reporter.term);
                format!("{why}. This member serves no clients until {by} has taken its vote")
            }
            Some(Consequence::Abstain(why)) => {
                let remedy =
                    "stop all members but the one with the newest data, and run lockstep bootstrap there";
                return self.abstain(&why, remedy);
            }
        };
        self.ctx.log(Level::Error, line);
    }

    /// Lets this member take no part, because its log is reverted. `remedy` says what an operator does if the others cannot
    /// go on without this member.
    pub(in crate::member) fn abstain(&mut self, why: &str, remedy: &str) {
        let now = self.ctx.now();
        self.ctx.raft.abstain(now);
        let line = format!(
            "{why}. This member keeps its log, does not vote, and serves no clients. Start the other members: once they go on \
             without it, it returns as a new member. If they cannot, {remedy}"
        );
        self.ctx.log(Level::Error, line);
    }

    /// Fails because the log is reverted: the next start quarantines it, and this member joins as a new one.
    fn give_up_log(&mut self, why: &str) {
        let member = self.ctx.me().id;
        let request = QuarantineRequest::Reverted { member, why: why.to_owned() };
        self.ctx.emit(Effect::QuarantineLog(Box::new(request)));
        self.fail(&format!(
            "{why}. It must not vote on what it has lost: its next start sets its log aside as lockstep.damaged.*, and \
             it joins as a new member"
        ));
        let text = "this member gives up its log, which went back in time";
        let needs_state = self.roster.reverted_log.database_was_at().is_some();
        self.recovery.ending.gives_up_log(self.ctx.now(), needs_state, text);
    }

    /// All connections end: this member has left, or does not join.
    pub(super) fn forget_peers(&mut self) {
        for id in self.ctx.peers.disconnect_all(self.ctx.now()) {
            self.ctx.raft.peer_down(self.ctx.now(), id);
        }
    }

    /// Whether payloads to this member are compressed, if it can unpack them.
    pub(crate) fn compresses_to(&self, id: &MemberId) -> bool {
        match self.ctx.tuning().compress {
            Compress::Off => false,
            Compress::Zone => {
                self.ctx.peers.get(id).is_some_and(|peer| peer.hello().zone != self.ctx.me().zone)
            }
            Compress::All => true,
        }
    }

    /// The shortest of the latest round trips to a peer.
    pub(crate) fn on_rtt(&mut self, id: MemberId, rtt: Micros) {
        self.ctx.peers.set_rtt(&id, rtt);
    }

    /// The introduction of this member to a peer.
    pub(crate) fn introduction(&self) -> Hello {
        let Some((history, log_id)) = self.ctx.peers.announced_log(&self.ctx.raft) else {
            return self.ctx.me().clone();
        };
        let before = &self.ctx.raft.tail_state().parents;
        let parents = before.iter().map(|p| (p.history, p.log_id)).collect();
        let forks = before.iter().map(|p| (p.index, p.term)).collect();
        Hello {
            history,
            log_id,
            parents,
            forks,
            last_index: self.ctx.raft.last_index(),
            ..self.ctx.me().clone()
        }
    }

    /// A peer's branch left this member's. Returns whether that was handled: this member gave up its log and joins as a
    /// new one at its next start, or has logged why it does not.
    pub(crate) fn met_branch(&mut self, hello: &Hello) -> bool {
        match self.roster.branches.meet(&mut self.ctx, hello) {
            Meeting::None => return false,
            Meeting::KeepsLog => {}
            Meeting::GivesUpLog { text } => {
                // The database's position stays: if the operator drops the branch before the next start, this member's
                // data are the cluster's.
                let starts = !matches!(self.ctx.connection(), ConnectionState::Running { .. });
                self.fail(&text);
                let text = format!("this member gives up its log for the branch of {}", hello.name);
                self.recovery.ending.gives_way(self.ctx.now(), starts, &text);
            }
        }
        true
    }

    /// The histories that this member's database may have: its log's, and those before its own branches.
    pub(crate) fn own_histories(&self) -> Vec<Uuid> {
        branch::own_histories(&self.ctx)
    }
}

/// Operators.
impl Member {
    /// A command from the socket, answered by [`Effect::Answer`]. `fresh` names the history of a new branch, if the
    /// command begins one.
    pub(crate) fn command(&mut self, token: u64, command: Command, fresh: Uuid) {
        if let Some(text) = self.admin.operator.refusal(&self.ctx) {
            let answer = Answer { ok: false, text: text.into(), seconds: 0.0, held: None };
            return self.ctx.emit(Effect::Answer { token, answer });
        }
        match command {
            Command::Hold => self.admin.barrier.begin(&mut self.ctx, token),
            Command::Release { hold } => self.admin.barrier.release(&mut self.ctx, token, hold),
            Command::Bootstrap if self.roster.reverted_log.lacks_entries_of_database(&self.ctx.raft) => {
                let text = format!(
                    "this member's log went back in time, and its data are ahead of it: give this command to a member {}. If \
                     there is none, found the cluster anew on the newest data: stop all servers, move their lockstep.* files \
                     away, and start the one with the newest data with --wsrep-new-cluster",
                    self.roster.reverted_log.wanted_log()
                );
                let answer = Answer { ok: false, text, seconds: 0.0, held: None };
                self.ctx.emit(Effect::Answer { token, answer });
            }
            Command::Bootstrap => self.roster.branches.begin(&mut self.ctx, token, fresh),
            Command::Switchover { .. } | Command::Remove { .. } | Command::Promote { .. } => {
                self.admin.operator.take(self.ctx.now(), token, command);
            }
        }
        self.dispatch_own();
    }

    /// Answered by [`Effect::CommittedPosition`].
    pub(crate) fn query_committed_position(&mut self, token: u64) {
        let (now, primary) = (self.ctx.now(), self.ctx.connection().is_primary());
        if let Err(refusal) = self.admin.position_queries.begin(&mut self.ctx.raft, now, primary, token) {
            self.ctx.emit(Effect::CommittedPosition { token, result: Err(refusal.into()) });
        }
    }

    /// The front end requests another policy.
    pub(crate) fn request_policy(&mut self, change: impl Fn(&mut Policy)) {
        let admin = &mut self.admin;
        admin.policy_requests.request(&mut self.ctx, &mut admin.reports, change);
    }

    /// Begins the use of the front end's barrier.
    pub(crate) fn set_commit_barrier(&mut self, commits: Option<Arc<dyn CommitBarrier>>) {
        self.admin.barrier.set_commits(commits);
    }

    /// The taker of this member's deliveries, if it is no database.
    pub(crate) fn set_front_end(&mut self, front_end: FrontEnd) {
        debug_assert_eq!(front_end.keeps_data(), !self.ctx.me().arbitrator, "the introduction says so too");
        self.ctx.set_front_end(front_end);
    }

    /// This member's server has executed a statement in total order. `own`: of this member's client.
    pub(crate) fn statement_executed(&mut self, result: StatementResult, own: bool) {
        let history = self.ctx.raft.tail_state().history;
        self.delivery.statement_results.executed(self.ctx.now(), history, result, own);
    }

    pub(crate) fn set_tuning(&mut self, tuning: Tuning) {
        self.ctx.set_tuning(tuning);
        self.delivery.apply_holds.adopt_options(&mut self.ctx, self.delivery.deliverer.delivered());
        self.adapt_timing();
    }

    /// Whether this member's server may write: under a weak policy, only the leader's.
    pub(crate) fn may_originate(&self) -> bool {
        let raft = &self.ctx.raft;
        !raft.has_log() || !raft.policy().is_weak() || raft.is_leader()
    }

    /// How many acknowledged transactions would be lost with the leader.
    pub(crate) fn at_risk(&self) -> u64 {
        commits::at_risk(&self.ctx, self.delivery.deliverer.delivered())
    }

    /// The members whose acks this leader's commits lack; for programs.
    pub(crate) fn not_acknowledged_by(&self) -> Vec<String> {
        self.admin.reports.not_acknowledged_by(&self.ctx)
    }

    /// The settings of the policy that the present members cannot meet, if there are any.
    pub(crate) fn unsatisfiable_policy(&self) -> Option<String> {
        wait_report::unsatisfiable_policy(&self.ctx)
    }
}

/// The front end.
impl Member {
    /// Submits a write-set or statement to the log.
    pub(crate) fn submit(&mut self, kind: EntryKind, payload: Bytes, submission: Filler) {
        let leaving = self.roster.leave.has_begun();
        self.delivery.submit(&mut self.ctx, leaving, kind, payload, submission);
    }

    /// Begins a read that must see every commit acknowledged so far.
    pub(crate) fn causal_read(&mut self, id: u64) {
        self.delivery.begin_causal_read(&mut self.ctx, id);
    }

    pub(crate) fn causal_cancelled(&mut self, id: u64) {
        self.delivery.causal_reads.cancel(id);
    }

    pub(crate) fn desync(&mut self) {
        self.roster.sync.desync();
    }

    pub(crate) fn resync(&mut self) {
        if self.roster.sync.resync() {
            self.ctx.not_synced();
        }
    }

    /// This member's server could not apply `seqno`. The reply gets whether the other members' results agree, possibly
    /// much later.
    pub(crate) fn vote(&mut self, seqno: Seqno, opinion: Opinion, text: String, reply: VoteReply) {
        let own = self.standing();
        self.recovery.votes.vote(&mut self.ctx, own, seqno, opinion, text, reply);
    }

    /// Takes the server's request for state.
    pub(crate) fn request_state(&mut self, request: Bytes, donor: String) {
        self.recovery.transfers.begin_request(self.ctx.now(), request, donor);
    }

    /// The front end's server has sent its state, or failed to.
    pub(crate) fn donation_done(&mut self, id: u64, result: Result<Gtid, i32>) {
        if self.recovery.transfers.donation_done(&mut self.ctx, id, result) {
            self.ctx.not_synced();
        }
    }

    /// The front end has rejected this many writes for the policy, in all.
    pub(crate) fn note_refused(&mut self, refused: u64) {
        self.leadership.note_refused(refused);
    }

    /// Why the server process must end now, if so.
    pub(crate) fn server_must_end(&mut self) -> Option<(ServerEnd, String)> {
        self.recovery.ending.take_due(self.ctx.now())
    }
}

/// The disk.
impl Member {
    /// Everything up to this ticket is on disk.
    pub(crate) fn written(&mut self, ticket: u64) {
        self.deferred_syncs.synced(self.ctx.now(), ticket, self.ctx.raft.commit());
        self.recovery.ending.written(ticket);
        self.ctx.raft.written(self.ctx.now(), ticket);
    }

    /// Entries from the log; empty only if the log does not have them.
    ///
    /// A failed read says nothing about the log's contents: neither this server nor a peer takes a state transfer for it.
    pub(crate) fn read(&mut self, request: ReadRequest, result: Result<Vec<Entry>, ReadFailure>) {
        let entries = match result {
            Ok(entries) => entries,
            Err(failure) => return self.read_failed(request, &failure),
        };
        self.log_reads.succeeded(&request);
        let ReadRequest { whom, from, max_bytes: _ } = request;
        match whom {
            ReadFor::Peer(id) => self.ctx.raft.fetched(self.ctx.now(), id, from, entries),
            ReadFor::Deliverer => {
                if let Err(text) = self.delivery.deliverer.fetched(from, entries) {
                    self.needs_state(&text);
                }
            }
        }
    }

    fn read_failed(&mut self, request: ReadRequest, failure: &ReadFailure) {
        if self.failure().is_some() {
            return;
        }
        match self.log_reads.failed(self.ctx.now(), request, failure) {
            AfterFailure::Repeat { first } => {
                if first {
                    let text = format!("{}: the read is repeated", failure.text);
                    self.ctx.log(Level::Warn, text);
                }
            }
            AfterFailure::GiveUp => match request.whom {
                ReadFor::Peer(id) => self.give_up_read_for_peer(request, id, failure),
                ReadFor::Deliverer => {
                    let text = format!("the log cannot be read: {}", failure.text);
                    self.log_failed(&text);
                }
            },
        }
    }

    /// This member goes on, because its own server does not need these entries. Another leader can send them; without one,
    /// the peer takes a state transfer.
    fn give_up_read_for_peer(&mut self, request: ReadRequest, id: MemberId, failure: &ReadFailure) {
        let stays = |c: &Candidate| c.view_uuid.is_some() && !c.leaving && c.id != id;
        let successor = best_successor(&self.ctx.candidates(), stays).filter(|_| self.ctx.raft.is_leader());
        let hands_over = successor.is_some_and(|successor| {
            self.log_reads.try_once_more(self.ctx.now(), request)
                && self.ctx.raft.transfer_leadership(self.ctx.now(), successor).is_ok()
        });
        let what = if hands_over { "another member is to lead" } else { "it needs a state transfer" };
        let text = format!(
            "the log cannot be read for {}, so {what}: {}. Restart this {}: its start checks the whole log",
            self.ctx.name_of(&id),
            failure.text,
            self.ctx.terms().process
        );
        self.ctx.log(Level::Error, text);
        if !hands_over {
            self.log_reads.succeeded(&request);
            self.ctx.raft.fetched(self.ctx.now(), id, request.from, Vec::new());
        }
    }

    /// The log's first segments are gone. `early`: removed although `log.keep_min`, or a connected member's disk, still
    /// needed them.
    pub(crate) fn log_trimmed(&mut self, first: Index, early: bool) {
        if early && self.log_retention.warn_of_early_removal(self.ctx.now()) {
            self.ctx.log(
                Level::Warn,
                "the log is larger than log.max_size: entries are removed that are younger than log.keep_min or not \
                 on the disk of a connected member, so that a member that is away or behind, or this one after a \
                 crash, may need a state transfer; raise log.max_size, or check for a member with a hanging disk",
            );
        }
        self.ctx.raft.log_trimmed(first);
        self.delivery.deliverer.forget_below(first);
        self.recovery.votes.forget_below(first);
    }

    /// Records the size of the log, which grows without bound under a hold.
    pub(crate) fn note_log_size(&mut self, bytes: u64) {
        self.delivery.apply_holds.note_log_size(&mut self.ctx, bytes);
    }

    /// Rescue files, and the transactions in them, were found at the start.
    pub(crate) fn rescued_before(&mut self, files: u64, transactions: u64) {
        self.admin.commits.rescued_before(files, transactions);
    }

    /// A rescue file has been written.
    pub(crate) fn rescued(&mut self, kept: &Kept) {
        self.admin.commits.rescued(kept.transactions);
        let text = kept.line(self.ctx.terms());
        self.ctx.log(Level::Warn, text);
    }
}
