//! The decisions of a node, without threads, clock, sockets or files: admission of peers, proposals and their batches,
//! views, and delivery to the server.
//!
//! Inputs are method calls; effects are collected and taken with [`Member::take`]. One round is all pending inputs,
//! then [`Member::round`]. All proposals pending at the start of a round form one batch.

mod admin;
#[cfg(test)]
mod arbitrator_tests;
#[cfg(test)]
mod campaign;
mod context;
mod deferred_sync;
mod delivery;
#[cfg(test)]
mod disks;
mod facts;
mod frames;
#[cfg(test)]
mod harness;
mod leadership;
mod log_retention;
mod membership;
mod outbox;
mod recovery;
#[cfg(test)]
mod relay_tests;

use crate::api::{Delivery, Level, LocalState, NodeError, Tuning};
use crate::effect::{Effect, ReadFor};
use crate::pack::Packed;
use crate::wire::{FRAME_NODE, FRAME_RAFT, Health, Hello, NodeMessage};
use bytes::Bytes;
use context::Context;
use delivery::feed::Deliverer;
use delivery::finished::Finished;
use lockstep_core::codec::Writer;
use lockstep_core::raft::{Output, Raft};
use lockstep_core::{Entry, EntryKind, Index, MemberId, Seqno};
use log_retention::Presence;
pub(crate) use membership::connection_state::ConnectionState;
use membership::peers::Peers;
use membership::quorum::Quorum;
use outbox::Outbox;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

pub(crate) use lockstep_core::Micros;
pub(crate) use membership::admission::Admission;

/// Round interval while a command is under way.
const COMMAND_PERIOD: Micros = 5_000;
/// Round interval while this member takes part in a barrier.
const BARRIER_PERIOD: Micros = 500;
/// Round interval while certification has keys to forget and nothing else happens: a hundred thousand keys per second.
const FORGET_PERIOD: Micros = 5_000;
/// How often Raft is drained in one round. Without a bound the round might not end: a read that fails for want of a
/// leader asks again at once.
const DRAINS_MAX: usize = 4;
/// A gap this long between two rounds is logged. Normally there is a round every 0.1 s at least.
const STALL: Micros = 1_000_000;

/// The node without its threads.
pub(crate) struct Member {
    pub(crate) ctx: Context,
    roster: membership::Roster,
    recovery: recovery::Recovery,
    delivery: delivery::Delivery,
    admin: admin::Admin,
    pub(crate) deliverer: Deliverer,
    log_retention: log_retention::LogRetention,
    deferred_syncs: deferred_sync::DeferredSyncs,
    leadership: leadership::Leadership,
    /// Payloads that were received compressed.
    pub(crate) unpacked: Packed,
}

impl Member {
    pub(crate) fn new(
        mut raft: Raft,
        me: Hello,
        tuning: Tuning,
        finished: Arc<AtomicI64>,
        now: Micros,
    ) -> Member {
        raft.set_relaying(tuning.relay);
        let votes = recovery::votes::Votes::new(raft.last_index());
        let recovery = recovery::Recovery { votes, ..recovery::Recovery::default() };
        let apply_holds = delivery::apply_hold::ApplyHolds::new(tuning.apply_order);
        let delivery = delivery::Delivery { apply_holds, ..delivery::Delivery::default() };
        let mut quorum = Quorum::default();
        quorum.note_seen(now);
        let deliverer = Deliverer::with(raft.failpoints());
        let ctx = Context {
            raft,
            me,
            tuning,
            cluster: String::new(),
            peers: Peers::default(),
            connection: ConnectionState::Idle,
            quorum,
            now,
            wall: 0,
            finished: Finished::new(finished),
            out: Outbox::default(),
        };
        Member {
            ctx,
            roster: membership::Roster::default(),
            recovery,
            delivery,
            admin: admin::Admin::default(),
            deliverer,
            log_retention: log_retention::LogRetention::default(),
            deferred_syncs: deferred_sync::DeferredSyncs::default(),
            leadership: leadership::Leadership::default(),
            unpacked: Packed::default(),
        }
    }

    /// Remembers an entry found in the log at start.
    pub(crate) fn remember(&mut self, entry: &Entry) {
        self.deliverer.remember(entry);
        self.recovery.votes.remember(entry);
    }

    /// This member's result for `seqno` was judged in an earlier incarnation.
    pub(crate) fn found_before(&mut self, seqno: Seqno) {
        self.recovery.votes.found_before(seqno);
    }

    /// Runs the leader's tasks in this round: something has changed.
    fn schedule_leader_tasks(&mut self) {
        self.roster.leader_tasks.schedule(self.ctx.now);
    }

    fn tell(&mut self, to: MemberId, message: &NodeMessage) {
        if to == self.ctx.me.id {
            self.node_message(to, message.clone());
        } else {
            self.ctx.out.send(to, message);
        }
    }

    /// Sets the time, before the inputs of a round.
    pub(crate) fn at(&mut self, now: Micros, wall: Micros) {
        let stall = now.saturating_sub(self.ctx.now);
        self.ctx.now = now.max(self.ctx.now);
        if stall > STALL && self.ctx.connection.is_connected() {
            let text = format!(
                "this process stalled for {:.1} s (stopped, or without a processor): other members may have taken it \
                 for dead",
                stall as f64 / 1e6
            );
            self.ctx.log(Level::Warn, text);
        }
        self.ctx.wall = wall;
        self.ctx.finished.begin_round();
        self.ctx.raft.set_wall_clock(wall);
        self.leadership.contact(self.ctx.now, self.ctx.raft.leader(), self.ctx.me.id);
    }

    /// When the next round is due without new inputs.
    pub(crate) fn deadline(&self) -> Micros {
        let mut at = self.ctx.raft.deadline().min(self.roster.health_reports.deadline());
        if self.ctx.raft.is_leader() {
            at = at.min(self.roster.leader_tasks.deadline());
        }
        if self.is_commanded() {
            at = at.min(self.ctx.now + COMMAND_PERIOD);
        }
        if self.is_at_barrier() {
            at = at.min(self.ctx.now + BARRIER_PERIOD);
        }
        if self.deliverer.is_to_forget() {
            at = at.min(self.ctx.now + FORGET_PERIOD);
        }
        if let Some(due) = self.hold_ends_at() {
            at = at.min(due);
        }
        at
    }

    /// Whether another round would deliver more without new inputs.
    pub(crate) fn has_more(&self) -> bool {
        self.ctx.connection.is_primary() && self.deliverer.is_behind(self.deliverable())
    }

    fn node_message(&mut self, from: MemberId, message: NodeMessage) {
        match message {
            NodeMessage::Health(health) => {
                if self.ctx.peers.set_health(&from, health) {
                    self.schedule_leader_tasks();
                }
            }
            NodeMessage::Peers(addresses) => {
                for address in addresses.into_iter().take(64) {
                    self.ctx.dial(address);
                }
            }
            NodeMessage::StateRequest { donor, at_least, position, request } => {
                self.find_donor(from, &donor, at_least, position, request);
            }
            NodeMessage::Donate { joiner, at_least, position, request } => {
                // Only the leader names donors, and only for members.
                let to_member = self.ctx.raft.membership().get(&joiner).is_some();
                if self.ctx.raft.leader() != Some(from) || !to_member {
                    return;
                }
                self.asked_to_donate(joiner, at_least, position, request);
            }
            NodeMessage::Donated { code, gtid, text } => self.donated(from, code, gtid, text),
            NodeMessage::Opinion { seqno, opinion, text } => self.on_opinion(from, seqno, opinion, &text),
            NodeMessage::AskOpinion { seqno } => self.on_opinion_request(from, seqno),
            NodeMessage::Policy(policy) => {
                self.append_policy(from, |_| policy);
            }
            NodeMessage::PolicyRequest { number, request } => self.on_policy_request(from, number, request),
            NodeMessage::TurnedAway => self.leadership.on_writes_rejected(self.ctx.now, from),
        }
    }

    /// Everything up to this ticket is on disk.
    pub(crate) fn written(&mut self, ticket: u64) {
        self.deferred_syncs.synced(self.ctx.now, ticket, self.ctx.raft.commit());
        self.leadership.write_done(ticket);
        self.recovery.ending.written(ticket);
        self.ctx.raft.written(self.ctx.now, ticket);
    }

    /// Entries from the log; empty if there are none (trimmed, or the log cannot be read).
    pub(crate) fn read(&mut self, whom: ReadFor, from: Index, entries: Vec<Entry>) {
        match whom {
            ReadFor::Peer(id) => self.ctx.raft.fetched(self.ctx.now, id, from, entries),
            ReadFor::Deliverer => {
                if let Err(text) = self.deliverer.fetched(from, entries) {
                    self.needs_state(&text);
                }
            }
        }
    }

    /// Ends a round: a pipeline from inputs to outputs. `room`: the front end takes deliveries.
    pub(crate) fn round(&mut self, room: bool) {
        self.inform_raft();
        self.append_control_entries();
        self.drain_all();
        self.deliver_entries(room);
        self.answer_and_report();
    }

    /// Tells Raft what has changed here: time, pieces of large write-sets, the database's progress.
    fn inform_raft(&mut self) {
        self.delivery.submissions.propose_large(&mut self.ctx.raft, self.ctx.now);
        self.delivery.low_water_mark.note(self.ctx.now, self.ctx.finished());
        self.ctx.raft.set_finished(self.ctx.finished());
        self.check_database();
        self.ctx.raft.tick(self.ctx.now);
    }

    /// Runs the tasks that may append entries or move leadership. They come before Raft is drained, so that what they
    /// append leaves in this round.
    fn append_control_entries(&mut self) {
        if self.ctx.connection.is_connected() && self.roster.leader_tasks.is_due(self.ctx.now) {
            self.lead();
        }
        self.operator_step();
        self.forced_bootstrap_step();
        self.majority_step();
        self.barrier_step();
    }

    /// Takes Raft's outputs until there are none. An output may cause a new one: a leader that is its own majority
    /// commits at once.
    fn drain_all(&mut self) {
        for _ in 0..DRAINS_MAX {
            if !self.drain_raft() {
                return;
            }
        }
    }

    /// Certifies and delivers entries. The connection comes first: it decides whether there is a run, and where it
    /// begins. How far delivery goes depends on the commit index, the own disk and the commit policy, so it asks Raft
    /// for the limit; [`Output::Commit`] announces only the first.
    fn deliver_entries(&mut self, room: bool) {
        self.connection_step();
        self.follow_leader();
        if room {
            self.delivery_step();
        }
        self.deliverer.forget();
    }

    /// Answers requests and reports this member's state, as of the entries just delivered. The leave comes after the
    /// health report, by which the others know of it.
    fn answer_and_report(&mut self) {
        self.committed_position_step();
        self.votes_step();
        self.policy_step();
        self.donations_step();
        self.health_step();
        self.leave_step();
        self.trim_log_step();
    }

    /// Takes Raft's outputs once. Returns whether there were any.
    fn drain_raft(&mut self) -> bool {
        let outputs = self.ctx.raft.drain(self.ctx.now);
        let some = !outputs.is_empty();
        let mut diverged = false;
        let mut last_write = 0;
        let mut renamed = false;
        for output in outputs {
            match output {
                Output::Send { to, message } => {
                    let mut w = Writer::with_capacity(message.copied_size());
                    message.encode(&mut w);
                    self.ctx.out.push(Effect::Send { to, kind: FRAME_RAFT, payload: w.into_parts() });
                }
                Output::Write(op) => {
                    self.compare_clocks(&op.entries);
                    self.recovery.votes.follow(&op);
                    self.deliverer.follow(&op);
                    if op.truncate_from.is_some_and(|from| from < self.deliverer.next_index()) && !diverged {
                        self.delivery_was_cut();
                    }
                    last_write = op.ticket;
                    renamed |= op.reset.is_some() || op.entries.iter().any(|e| e.kind == EntryKind::Branch);
                    self.leadership.write_begun(self.ctx.now, op.ticket);
                    let may_defer = !self.has_causal_reads() && self.deferred_syncs.may_defer(&self.ctx, &op);
                    self.ctx.out.push(Effect::Write { op, may_defer });
                }
                Output::Fetch { to, from, max_bytes } => {
                    self.ctx.out.push(Effect::Read { whom: ReadFor::Peer(to), from, max_bytes });
                }
                // Delivery asks for its limit: see `deliver_entries`.
                Output::Commit { .. } => {}
                Output::Diverged { .. } => diverged = true,
                Output::Soft { leader, term, .. } => self.leader_changed(leader, term),
                Output::ReadReady { context, index } => self.read_ready(context, Some(index)),
                Output::ReadFailed { context } => self.read_ready(context, None),
                Output::Membership(membership) => {
                    for member in &membership.members {
                        if member.id != self.ctx.me.id && !self.ctx.peers.contains_key(&member.id) {
                            self.ctx.dial(member.address.clone());
                        }
                    }
                }
            }
        }
        if renamed {
            self.compare_peers();
        }
        if diverged {
            self.on_diverged(last_write);
        }
        some
    }

    fn leader_changed(&mut self, leader: Option<MemberId>, term: u64) {
        let text = match leader {
            Some(id) if id == self.ctx.me.id => format!("this member leads in term {term}"),
            Some(id) => format!("{} leads in term {term}", self.ctx.name_of(&id)),
            None => format!("no leader in term {term}"),
        };
        self.schedule_leader_tasks();
        self.ctx.log(Level::Info, text);
        let before = self.leadership.leader_changed(leader);
        if leader == Some(self.ctx.me.id) {
            self.warn_of_loss(term, before);
        }
    }

    /// Under a weak policy the previous leader may have acknowledged transactions that no present member has. If the
    /// previous leader is present itself, log recovery has asked it for its log tail.
    fn warn_of_loss(&mut self, term: u64, before: Option<MemberId>) {
        let Some(gap) = self.ctx.raft.left_out_by_own_term() else { return };
        let before = before.filter(|id| *id != self.ctx.me.id);
        if before.is_some_and(|id| self.ctx.responds(&id)) {
            return;
        }
        let before = before.map_or_else(|| "the previous leader".to_owned(), |id| self.ctx.name_of(&id));
        let text = format!(
            "this member leads in term {term}, without {before}: transactions that {before} acknowledged beyond seqno \
             {} and no member here has are skipped (the next seqno is {}). They are lost unless that member comes \
             back with its log and writes them to lockstep.rescue.*.log",
            gap.before, gap.after
        );
        self.ctx.log(Level::Warn, text);
    }

    fn health(&self) -> Health {
        Health {
            state: self.local_state(),
            finished: self.ctx.finished(),
            seen: self.lowest_seen(),
            delivered: self.deliverer.delivered(),
            leaving: self.roster.leave.has_begun(),
            has_state: self.deliverer.has_started(),
            held_back: self.ctx.has_held_server(),
        }
    }

    fn health_step(&mut self) {
        let health = self.health();
        if !self.roster.health_reports.is_due(self.ctx.now, &health) {
            return;
        }
        self.adapt_timing();
        let payload = NodeMessage::Health(health).to_bytes();
        let for_older = NodeMessage::Health(Health { held_back: false, ..health }).to_bytes();
        for (to, peer) in self.ctx.peers.iter() {
            let payload =
                if peer.version >= membership::peers::HELD_BACK_SINCE { &payload } else { &for_older };
            self.ctx.out.push(Effect::Send { to: *to, kind: FRAME_NODE, payload: vec![payload.clone()] });
        }
    }

    /// A member's health: as last received, or this member's own.
    pub(crate) fn health_of(&self, id: &MemberId) -> Option<Health> {
        match *id == self.ctx.me.id {
            true => Some(self.health()),
            false => self.ctx.peers.get(id).and_then(|peer| peer.health),
        }
    }

    pub(crate) fn wall(&self) -> Micros {
        self.ctx.wall
    }

    pub(crate) fn waiting(&self) -> usize {
        self.delivery.submissions.proposed_len()
    }

    /// Whether this member only receives other members' writes, in its leader's frames. Then no local thread adds work
    /// while this one yields, and no other member waits for this one's work.
    pub(crate) fn only_follows(&self) -> bool {
        self.delivery.submissions.proposed_len() == 0 && !self.ctx.raft.is_leader()
    }

    /// Whether causal reads wait for this thread.
    pub(crate) fn has_causal_reads(&self) -> bool {
        !self.delivery.causal_reads.is_empty()
    }

    /// Answered by [`Effect::CommittedPosition`].
    pub(crate) fn query_committed_position(&mut self, token: u64) {
        let primary = self.ctx.connection.is_primary();
        if let Err(refusal) =
            self.admin.position_queries.begin(&mut self.ctx.raft, self.ctx.now, primary, token)
        {
            self.ctx.out.push(Effect::CommittedPosition { token, result: Err(refusal.into()) });
        }
    }

    fn committed_position_step(&mut self) {
        let results = self.admin.position_queries.take_results(
            &self.ctx.raft,
            self.ctx.now,
            self.ctx.connection.is_primary(),
        );
        let answers = results.into_iter().map(|(token, result)| Effect::CommittedPosition { token, result });
        self.ctx.out.extend(answers);
    }

    /// How many transactions are not ordered yet, as far as this member knows.
    pub(crate) fn under_way(&self) -> usize {
        let uncommitted = self.ctx.raft.last_index().saturating_sub(self.ctx.raft.commit()) as usize;
        self.delivery.submissions.proposed_len().max(uncommitted)
    }

    pub(crate) fn failure(&self) -> Option<String> {
        match &self.ctx.connection {
            ConnectionState::Failed(text) => Some(text.clone()),
            _ => None,
        }
    }

    /// The log's first segments are gone. `early`: removed although `log.keep_min`, or a connected member's disk, still
    /// needed them.
    pub(crate) fn log_trimmed(&mut self, first: Index, early: bool) {
        if early && self.log_retention.warn_of_early_removal(self.ctx.now) {
            self.ctx.log(
                Level::Warn,
                "the log is larger than log.max_size: entries are removed that are younger than log.keep_min or not \
                 on the disk of a connected member, so that a member that is away or behind, or this one after a \
                 crash, may need a state transfer; raise log.max_size, or check for a member with a hanging disk",
            );
        }
        self.ctx.raft.log_trimmed(first);
        self.deliverer.forget_below(first);
        self.recovery.votes.forget_below(first);
    }

    /// Wakes the threads whose submissions have been ordered, in commit order. This comes last in a round: each thread
    /// finds its commit order position reached.
    pub(crate) fn wake(&mut self) {
        self.ctx.out.wake();
    }

    /// Effects and deliveries since the last call.
    pub(crate) fn take(&mut self, effects: &mut Vec<Effect>, deliveries: &mut Vec<Delivery>) {
        self.ctx.out.take(effects, deliveries);
    }

    /// The log cannot supply what the database lacks, and a running server cannot take a state transfer. The front end
    /// gives up its position and ends the process, so that the next start takes a state transfer.
    fn needs_state(&mut self, text: &str) {
        let text = format!("{text}: a state transfer is needed; start this server again");
        self.ctx.deliver(Delivery::StateFailed(text.clone()));
        if !matches!(self.ctx.connection, ConnectionState::Failed(_)) {
            self.fail(&text);
            self.recovery.ending.needs_state(self.ctx.now, &text);
        }
    }

    /// Fails for good: logs the reason, refuses everything and leaves.
    pub(crate) fn fail(&mut self, text: &str) {
        if matches!(self.ctx.connection, ConnectionState::Failed(_)) {
            return;
        }
        self.ctx.log(Level::Error, text.to_string());
        self.wake_all(true);
        self.end_votes();
        if let ConnectionState::Connecting { .. } = self.ctx.connection {
            self.ctx.out.push(Effect::Connected(Err(NodeError::Log(text.to_string()))));
        }
        if self.deliverer.is_shown() {
            let info = self.view_without_quorum();
            self.ctx.deliver(Delivery::View { info, in_log: false });
        }
        self.ctx.deliver(Delivery::Failed(text.to_string()));
        self.ctx.connection = ConnectionState::Failed(text.to_string());
        let ids: Vec<MemberId> = self.ctx.peers.keys().copied().collect();
        for id in ids {
            self.ctx.out.push(Effect::Drop(id));
        }
    }

    /// Wakes every waiting submission. `unknown`: nothing can be withdrawn, since Raft is not asked.
    fn wake_all(&mut self, unknown: bool) {
        let first_unsent = if unknown { None } else { self.ctx.raft.withdraw_unsent() };
        self.delivery.submissions.fail_all(first_unsent);
        for id in self.delivery.causal_reads.take_all() {
            self.ctx.out.push(Effect::Causal { id, seqno: None });
        }
    }

    /// Synced, or would be but for the server's apply hold: it lacks nothing that it is due to have, and is not
    /// Desynced.
    fn is_synced_but_for_hold(&self) -> bool {
        matches!(self.ctx.connection, ConnectionState::Running { primary: true, synced: true })
            && !self.is_desynced()
    }

    fn is_desynced(&self) -> bool {
        self.roster.sync.is_desynced_by_server()
            || self.roster.sync.is_lagging()
            || self.recovery.transfers.is_donating()
    }

    pub(crate) fn local_state(&self) -> LocalState {
        if matches!(self.ctx.connection, ConnectionState::Failed(_)) {
            return LocalState::Error;
        }
        match &self.ctx.connection {
            ConnectionState::Running { primary: true, synced } => match (self.is_desynced(), synced) {
                (true, _) => LocalState::Donor,
                // The server refuses writes, whether or not entries are held back yet.
                (false, true) if self.ctx.has_held_server() => LocalState::Donor,
                (false, true) => LocalState::Synced,
                (false, false) => LocalState::Joined,
            },
            ConnectionState::NeedState { primary: true } => LocalState::Joining,
            _ => LocalState::Initialized,
        }
    }

    fn trim_log_step(&mut self) {
        let presence = |id: &MemberId| match (self.ctx.peers.contains_key(id), self.ctx.peers.gone(id)) {
            (true, _) => Presence::Connected,
            (false, Some(gone)) => Presence::LostAt(gone.since),
            (false, None) => Presence::NeverSeen,
        };
        let limits = self.log_retention.step(&log_retention::Inputs {
            now: self.ctx.now,
            wall: self.ctx.wall,
            raft: &self.ctx.raft,
            finished: self.ctx.finished.get(),
            next_index: self.deliverer.next_index(),
            keep: self.ctx.tuning.log_keep.as_micros() as Micros,
            keep_bytes: self.ctx.tuning.log_bytes,
            max_bytes: self.ctx.tuning.log_max_bytes,
            presence: &presence,
        });
        self.ctx.out.extend(limits.map(Effect::TrimLog));
    }

    /// The introduction of this member to a peer.
    pub(crate) fn introduction(&self) -> Hello {
        let Some((history, log_id)) = self.ctx.peers.announced_log(&self.ctx.raft) else {
            return self.ctx.me.clone();
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
            ..self.ctx.me.clone()
        }
    }

    /// A peer refused this member for a reason that only an administrator can remove.
    pub(crate) fn refused(&mut self, text: &str) {
        if matches!(self.ctx.connection, ConnectionState::Connecting { .. }) && self.ctx.peers.is_empty() {
            self.ctx.connection = ConnectionState::Idle;
            self.forget_peers();
            self.ctx.out.push(Effect::Connected(Err(NodeError::Refused(text.to_string()))));
        }
    }

    /// Proposes an entry of a kind that members may propose.
    fn propose(&mut self, kind: EntryKind, payload: Bytes) -> u64 {
        debug_assert!(kind.may_be_proposed());
        self.ctx.raft.propose(self.ctx.now, kind, payload)
    }
}
