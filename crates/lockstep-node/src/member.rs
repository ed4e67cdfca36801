//! The decisions of a node, without threads, clock, sockets or files: admission of peers, proposals and their batches,
//! views, and delivery to the server.
//!
//! Inputs are method calls; effects are collected and taken with [`Member::take`]. One round is all pending inputs,
//! then [`Member::round`]. All proposals pending at the start of a round form one batch.

mod admin;
#[cfg(test)]
mod arbitrator_tests;
mod context;
mod deferred_sync;
mod delivery;
#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod disks;
mod facts;
#[cfg(test)]
mod harness;
mod leadership;
mod log_reads;
mod log_retention;
mod membership;
pub(crate) use delivery::confirmations::Confirmation;
pub(crate) use membership::branch;
mod outbox;
#[cfg(test)]
mod reader_tests;
mod recovery;
#[cfg(test)]
mod relay_tests;
mod routing;
mod unreadable;

use crate::api::{Delivery, FrontEnd, Level, LocalState, Tuning};
use crate::effect::{Effect, ReadFor, ReadRequest};
use crate::io::liveness::since_boot;
use crate::pack::Packed;
use crate::wire::{FRAME_NODE, Health, Hello, NodeMessage};
use admin::commits::Commits;
pub(crate) use context::ConnectionState;
use context::Context;
use delivery::deliverer::{Deliverer, Limits};
use facts::Standing;
use lockstep_core::raft::{LogEnd, Output, Raft};
use lockstep_core::{Entry, EntryKind, MemberId, Seqno};
use log_retention::Presence;
use membership::peers::{HELD_BACK_SINCE, Peer};
use membership::reverted_log::RevertedLog;
use recovery::Recovery;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

pub(crate) use lockstep_core::Micros;
pub(crate) use membership::admission::Admission;
pub(crate) use membership::wait_text::SHOW_DISK_AFTER;

/// Round interval while a command is under way.
const COMMAND_PERIOD: Micros = 5_000;
/// Round interval while this member takes part in a barrier.
const BARRIER_PERIOD: Micros = 500;
/// Round interval while certification has keys to forget and nothing else happens: a hundred thousand keys per second.
const FORGET_PERIOD: Micros = 5_000;
/// How often Raft is drained in one round at most: see [`Member::drain_all`].
const DRAINS_MAX: usize = 4;
/// A gap this long between two rounds is logged. Normally there is a round every 0.1 s at least.
const STALL: Micros = 1_000_000;

/// The error text for a diverged server.
const DIVERGED: &str = "another member has taken over and does not have all that this one had committed ahead of it \
                        (commit.policy was weak): what the cluster does not have is kept in lockstep.rescue.*.log";

/// The same of a member that takes committed entries only: its data lack nothing and have nothing that the log lacks.
const CUT: &str = "another member has taken over and does not have all that this one had acknowledged ahead of a majority \
                   (commit.policy was weak; protocol A or B): what the log does not have is kept in lockstep.rescue.*.log. The \
                   copy here has none of it. This process ends, and the next one goes on by the log";

/// The node without its threads.
pub(crate) struct Member {
    pub(crate) ctx: Context,
    roster: membership::Roster,
    recovery: Recovery,
    pub(crate) delivery: delivery::Delivery,
    admin: admin::Admin,
    log_retention: log_retention::LogRetention,
    log_reads: log_reads::LogReads,
    deferred_syncs: deferred_sync::DeferredSyncs,
    leadership: leadership::Leadership,
    /// Payloads that were received compressed.
    pub(crate) unpacked: Packed,
    /// Where the log ended before damage, until it has reached that again.
    former_end: Option<LogEnd>,
    /// The log was cut after this seqno: threads that were given a later one have lost their transaction.
    lost_after: Seqno,
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
        // Entries that damage has taken had been acted on, too.
        let durable = raft.durable();
        let votes = recovery::votes::Votes::new(durable.last_index, durable.last_term);
        let recovery = Recovery { votes, ..Recovery::default() };
        let apply_holds = delivery::apply_hold::ApplyHolds::new(tuning.apply_order);
        let deliverer = Deliverer::with(raft.failpoints());
        let delivery = delivery::Delivery { deliverer, apply_holds, ..delivery::Delivery::default() };
        let reverted_log = RevertedLog::new(&raft, (me.view_uuid, me.incarnation));
        let former_end = raft.former_end();
        Member {
            ctx: Context::new(raft, me, tuning, finished, now),
            roster: membership::Roster { reverted_log, ..membership::Roster::default() },
            recovery,
            delivery,
            admin: admin::Admin::default(),
            log_retention: log_retention::LogRetention::default(),
            log_reads: log_reads::LogReads::default(),
            deferred_syncs: deferred_sync::DeferredSyncs::default(),
            leadership: leadership::Leadership::default(),
            unpacked: Packed::default(),
            former_end,
            lost_after: Seqno::MAX,
        }
    }

    /// Remembers an entry found in the log at start.
    pub(crate) fn remember(&mut self, entry: &Entry) {
        self.delivery.deliverer.remember(entry);
        self.recovery.votes.remember(entry);
        self.roster.disk_notes.remember(entry);
    }

    /// This member's result for `seqno` was judged in an earlier incarnation.
    pub(crate) fn found_before(&mut self, seqno: Seqno) {
        self.recovery.votes.found_before(seqno);
    }

    /// Sets the time, before the inputs of a round.
    pub(crate) fn at(&mut self, now: Micros, wall: Micros) {
        let stall = self.ctx.begin_round(now, wall);
        if stall > STALL && self.ctx.connection().is_connected() {
            let text = format!(
                "this process stalled for {:.1} s (stopped, or without a processor): other members may have taken it \
                 for dead",
                stall as f64 / 1e6
            );
            self.ctx.log(Level::Warn, text);
        }
        self.leadership.contact(self.ctx.now(), self.ctx.raft.leader(), self.ctx.me().id);
    }

    /// When the next round is due without new inputs.
    pub(crate) fn deadline(&self) -> Micros {
        let mut at = self
            .ctx
            .raft
            .deadline()
            .min(self.roster.health_reports.deadline(self.delivery.pace.is_behind(&self.ctx)));
        at = at.min(self.log_reads.deadline()).min(self.recovery.ending.deadline());
        if self.ctx.connection().is_primary() {
            at = at.min(self.delivery.statement_results.deadline());
        }
        if self.confirms() {
            at = at.min(self.delivery.confirmations.deadline());
        }
        if self.ctx.raft.is_leader() {
            at = at.min(self.roster.leader_tasks.deadline());
        }
        if self.is_commanded() {
            at = at.min(self.ctx.now() + COMMAND_PERIOD);
        }
        if self.admin.barrier.is_active() {
            at = at.min(self.ctx.now() + BARRIER_PERIOD);
        }
        if self.delivery.deliverer.is_to_forget() {
            at = at.min(self.ctx.now() + FORGET_PERIOD);
        }
        if let Some(due) = self.delivery.apply_holds.ends_at(&self.ctx) {
            at = at.min(due);
        }
        at
    }

    /// Whether another round would deliver more without new inputs.
    pub(crate) fn has_more(&self) -> bool {
        self.ctx.connection().is_primary()
            && self.delivery.deliverer.is_behind(self.delivers_committed_only())
    }

    /// Ends a round: a pipeline from inputs to outputs. `room`: the front end takes deliveries.
    pub(crate) fn round(&mut self, room: bool) {
        self.inform_raft();
        self.append_control_entries();
        if self.confirms() {
            let (now, simulated) = (self.ctx.now(), self.ctx.simulated_boot());
            let clock = || simulated.unwrap_or_else(since_boot);
            self.delivery.confirmations.ask(&mut self.ctx.raft, now, clock);
        }
        self.drain_all();
        self.delivery.confirmations.step(&self.ctx.raft);
        self.deliver_entries(room);
        self.answer_and_report();
    }

    /// Whether the front end must know since when its state is the present one.
    fn confirms(&self) -> bool {
        self.ctx.front_end() == FrontEnd::Device && self.ctx.connection().is_primary()
    }

    /// Tells Raft what has changed here: time, pieces of large write-sets, the database's progress.
    fn inform_raft(&mut self) {
        let now = self.ctx.now();
        self.delivery.submissions.propose_large(&mut self.ctx.raft, now);
        self.delivery.statement_results.step(&mut self.ctx);
        self.delivery.low_water_mark.note(now, self.ctx.finished());
        self.ctx.raft.set_finished(self.ctx.finished());
        self.check_database();
        self.ctx.raft.tick(now);
    }

    /// Runs the tasks that may append entries or move leadership. They come before Raft is drained, so that what they
    /// append leaves in this round.
    fn append_control_entries(&mut self) {
        if self.ctx.connection().is_connected() && self.roster.leader_tasks.is_due(self.ctx.now()) {
            self.lead();
        }
        let (operator, ctx, mut others) = self.commands();
        operator.tasks_step(ctx, &mut others);
        self.dispatch_own();
        self.admin.operator.commands_step(&mut self.ctx);
        self.admin.operator.order_removed_to_leave(&mut self.ctx);
        self.dispatch_own();
        self.forced_bootstrap_step();
        self.majority_step();
        self.admin.barrier.own_wait_step(&mut self.ctx);
        // The running barrier counts this member as well, so its report comes first.
        self.dispatch_own();
        self.admin.barrier.running_step(&mut self.ctx);
        self.dispatch_own();
    }

    /// Takes Raft's outputs until there are none.
    ///
    /// Handling an output gives Raft one kind of input: a read that failed is asked again, if there is a leader by then
    /// ([`Member::read_ready`]). The second drain sends that question; if this member leads alone, the third one brings
    /// the answer. The fourth is empty.
    fn drain_all(&mut self) {
        let drains = (1..=DRAINS_MAX).take_while(|_| self.drain_raft()).count();
        debug_assert!(drains < DRAINS_MAX, "an output causes outputs without end");
    }

    /// Certifies and delivers entries. The connection comes first: it decides whether there is a run, and where it
    /// begins. [`Output::Commit`] has said how far delivery goes.
    fn deliver_entries(&mut self, room: bool) {
        self.own_disk_step();
        self.connection_step();
        self.follow_leader();
        if room {
            self.delivery_step();
        }
        self.delivery.deliverer.forget();
    }

    /// Answers requests and reports this member's state, as of the entries just delivered. The leave comes after the
    /// health report, by which the others know of it.
    fn answer_and_report(&mut self) {
        self.committed_position_step();
        let own = self.standing();
        self.recovery.votes.step(&mut self.ctx, own);
        let Recovery { verdict_votes, .. } = &mut self.recovery;
        if let Err(text) = verdict_votes.step(&mut self.ctx, &self.delivery.deliverer) {
            self.needs_state(&text);
        }
        self.answer_overlooked();
        self.policy_step();
        self.recovery.transfers.step(&mut self.ctx, own);
        self.dispatch_own();
        self.delivery.pace.step(&mut self.ctx, own);
        self.health_step();
        self.report_evidence_again();
        self.leave_step();
        if self.ctx.raft.former_end().is_none()
            && let Some(LogEnd { term, index }) = self.former_end.take()
        {
            let text = format!(
                "this member's log is whole again: it has reached index {index} of term {term}, where it ended before damage"
            );
            self.ctx.log(Level::Info, text);
        }
        self.trim_log_step();
        self.ctx.emit_all(self.log_reads.take_due(self.ctx.now()).map(Effect::Read));
    }

    fn forced_bootstrap_step(&mut self) {
        let leaving = self.roster.leave.has_begun();
        if !self.roster.branches.step(&mut self.ctx, leaving) {
            return;
        }
        let ids: Vec<MemberId> = self.ctx.peers.keys().copied().collect();
        for id in ids {
            self.ctx.emit(Effect::Drop(id));
            self.peer_down(id, "this member begins a new branch");
        }
        self.roster.branches.start(&mut self.ctx);
    }

    /// Records when this member's own branch was last seen alive.
    fn majority_step(&mut self) {
        let has_leader = self.ctx.raft.leader().is_some();
        if self.ctx.connection().is_connected() && (has_leader || !self.ctx.cut_off()) {
            self.ctx.note_majority_seen();
        }
    }

    fn delivery_step(&mut self) {
        let (leaving, committed_only) = (self.roster.leave.has_begun(), self.delivers_committed_only());
        let (views_shown, commits) = (&mut self.roster.views_shown, &mut self.admin.commits);
        if let Err(text) = self.delivery.step(&mut self.ctx, views_shown, commits, leaving, committed_only) {
            self.needs_state(&text);
        }
    }

    /// Nobody can hand an overlooked entry to the server any more, so that it would wait for that seqno for ever. A new
    /// process gets the entry from the log.
    fn answer_overlooked(&mut self) {
        if let Some(text) = self.delivery.answer_overlooked(&self.ctx) {
            self.fail(&text);
            let text = "delivery has passed own transactions without an answer";
            self.recovery.ending.repeats_from_log(self.ctx.now(), text);
        }
    }

    /// Whether delivery stops at the commit index even under a weak policy: this member donates or leaves, or has no database.
    fn delivers_committed_only(&self) -> bool {
        self.ctx.front_end().takes_committed_only()
            || self.recovery.transfers.is_donating()
            || self.roster.leave.has_begun()
    }

    fn policy_step(&mut self) {
        if self.ctx.raft.has_log() {
            let admin = &mut self.admin;
            admin.reports.step(&mut self.ctx, &mut admin.commits, &self.delivery.submissions);
            admin.policy_requests.step(&mut self.ctx);
        }
    }

    /// Takes Raft's outputs once. Returns whether there were any that may cause new ones.
    fn drain_raft(&mut self) -> bool {
        let outputs = self.ctx.raft.drain(self.ctx.now());
        // New limits alone give Raft no input, so they need no further drain.
        let some = outputs.iter().any(|output| !matches!(output, Output::Commit { .. }));
        let mut diverged = None;
        let mut last_write = 0;
        let mut renamed = false;
        for output in outputs {
            match output {
                Output::Send { to, message } => self.ctx.send_raft(to, &message),
                Output::Write(op) => {
                    self.compare_clocks(&op.entries);
                    self.delivery.pace.written(&self.ctx, &op);
                    self.recovery.votes.follow(&op);
                    self.roster.disk_notes.follow(&op);
                    self.delivery.statement_results.follow(&op.entries);
                    self.delivery.deliverer.follow(&op);
                    if op.truncate_from.is_some_and(|from| from < self.delivery.deliverer.next_index())
                        && diverged.is_none()
                        && let Err(text) = self.delivery.deliverer.was_cut(&self.ctx)
                    {
                        self.needs_state(&text);
                    }
                    last_write = op.ticket;
                    renamed |= op.reset.is_some() || op.entries.iter().any(|e| e.kind == EntryKind::Branch);
                    let may_defer = !self.has_causal_reads() && self.deferred_syncs.may_defer(&self.ctx, &op);
                    self.ctx.emit(Effect::Write { op, may_defer });
                }
                Output::Fetch { to, from, max_bytes } => {
                    let whom = ReadFor::Peer(to);
                    self.ctx.emit(Effect::Read(ReadRequest { whom, from, max_bytes }));
                }
                Output::Commit { index: _, deliverable, early, policy_index } => {
                    self.delivery.deliverer.set_limits(Limits { deliverable, early, policy_index });
                }
                Output::DisksHang { disks } => self.majority_of_disks_hangs(disks),
                Output::Diverged { from: _, kept } => diverged = Some(kept),
                Output::Soft { leader, term, .. } => self.leader_changed(leader, term),
                Output::ReadReady { context, index } => self.read_ready(context, Some(index)),
                Output::ReadFailed { context } => self.read_ready(context, None),
                Output::Membership(membership) => {
                    for member in &membership.members {
                        if member.id != self.ctx.me().id && !self.ctx.peers.contains_key(&member.id) {
                            self.ctx.dial(member.address.clone());
                        }
                    }
                }
            }
        }
        if renamed {
            self.compare_peers();
        }
        if let Some(kept) = diverged {
            self.lost_after = self.lost_after.min(kept);
            if self.ctx.front_end().is_database() {
                self.needs_state(DIVERGED);
                self.recovery.ending.diverged(self.ctx.now(), last_write, DIVERGED);
            } else {
                self.fail(CUT);
                self.recovery.ending.diverged(self.ctx.now(), last_write, CUT);
            }
        }
        some
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

    fn committed_position_step(&mut self) {
        let results = self.admin.position_queries.take_results(
            &self.ctx.raft,
            self.ctx.now(),
            self.ctx.connection().is_primary(),
        );
        let answers = results.into_iter().map(|(token, result)| Effect::CommittedPosition { token, result });
        self.ctx.emit_all(answers);
    }

    /// How many transactions are not ordered yet, as far as this member knows.
    pub(crate) fn under_way(&self) -> usize {
        let uncommitted = self.ctx.raft.last_index().saturating_sub(self.ctx.raft.commit()) as usize;
        self.delivery.submissions.proposed_len().max(uncommitted)
    }

    /// Wakes the threads whose submissions have been ordered, in commit order. This comes last in a round: each thread
    /// finds its commit order position reached.
    pub(crate) fn wake(&mut self) {
        self.ctx.wake();
    }

    /// Effects and deliveries since the last call.
    pub(crate) fn take(&mut self, effects: &mut Vec<Effect>, deliveries: &mut Vec<Delivery>) {
        self.ctx.take_outputs(effects, deliveries);
    }

    fn trim_log_step(&mut self) {
        let presence = |id: &MemberId| match (self.ctx.peers.contains_key(id), self.ctx.peers.gone_since(id))
        {
            (true, _) => Presence::Connected,
            (false, Some(since)) => Presence::LostAt(since),
            (false, None) => Presence::NeverSeen,
        };
        let limits = self.log_retention.step(&log_retention::Inputs {
            now: self.ctx.now(),
            wall: self.ctx.wall(),
            raft: &self.ctx.raft,
            finished: self.ctx.finished(),
            next_index: self.delivery.deliverer.next_index(),
            keep: self.ctx.tuning().log_keep.as_micros() as Micros,
            keep_bytes: self.ctx.tuning().log_bytes,
            max_bytes: self.ctx.tuning().log_max_bytes,
            presence: &presence,
        });
        self.ctx.emit_all(limits.map(Effect::TrimLog));
    }

    /// This member's own state, as its components see it.
    pub(in crate::member) fn standing(&self) -> Standing {
        let synced =
            matches!(self.ctx.connection(), ConnectionState::Running { primary: true, synced: true });
        Standing {
            state: self.local_state(),
            synced_but_for_hold: synced && !self.is_desynced(),
            leaving: self.is_to_leave(),
            delivered: self.delivery.deliverer.delivered(),
            delivering: self.delivery.deliverer.is_running(),
        }
    }

    /// Whether the leader is to take this member's vote.
    fn is_to_leave(&self) -> bool {
        self.roster.leave.has_begun() || self.roster.reverted_log.waits(&self.ctx.raft).is_some()
    }

    fn is_desynced(&self) -> bool {
        self.roster.sync.is_desynced_by_server()
            || self.roster.sync.is_lagging()
            || self.recovery.transfers.is_donating()
            || self.roster.own_disk.hangs()
    }

    pub(crate) fn local_state(&self) -> LocalState {
        if self.ctx.connection().is_failed() {
            return LocalState::Error;
        }
        match self.ctx.connection() {
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

    pub(in crate::member) fn health(&self) -> Health {
        Health {
            state: self.local_state(),
            finished: self.ctx.finished(),
            lowest_seen: self.delivery.lowest_seen(self.ctx.finished()),
            delivered: self.delivery.deliverer.delivered(),
            leaving: self.is_to_leave(),
            has_state: self.delivery.deliverer.has_started(),
            held_back: self.ctx.has_held_server(),
        }
    }

    /// A member's health: as last received, or this member's own.
    pub(crate) fn health_of(&self, id: &MemberId) -> Option<Health> {
        match *id == self.ctx.me().id {
            true => Some(self.health()),
            false => self.ctx.peers.health_of(id),
        }
    }

    fn health_step(&mut self) {
        let health = self.health();
        let is_behind = self.delivery.pace.is_behind(&self.ctx);
        if !self.roster.health_reports.is_due(self.ctx.now(), &health, is_behind) {
            return;
        }
        self.adapt_timing();
        let payload = NodeMessage::Health(health).to_bytes();
        let for_older = NodeMessage::Health(Health { held_back: false, ..health }).to_bytes();
        let send = |(to, peer): (&MemberId, &Peer)| {
            let payload = if peer.supports(HELD_BACK_SINCE) { &payload } else { &for_older };
            Effect::Send { to: *to, kind: FRAME_NODE, payload: vec![payload.clone()] }
        };
        let sends: Vec<Effect> = self.ctx.peers.iter().map(send).collect();
        self.ctx.emit_all(sends);
    }

    pub(crate) fn failure(&self) -> Option<String> {
        match self.ctx.connection() {
            ConnectionState::Failed(text) => Some(text.clone()),
            _ => None,
        }
    }

    pub(crate) fn wall(&self) -> Micros {
        self.ctx.wall()
    }

    /// Threads that were given a later seqno have lost their transaction.
    pub(crate) fn lost_after(&self) -> Seqno {
        self.lost_after
    }

    /// Commit statistics, for the status.
    pub(crate) fn commits(&self) -> &Commits {
        &self.admin.commits
    }

    /// Whether an apply hold lasts until an option is changed; `apply.delay` alone ends by itself.
    pub(crate) fn is_held_indefinitely(&self) -> bool {
        self.delivery.apply_holds.is_indefinite(&self.ctx, self.delivery.deliverer.delivered())
    }
}
