//! What a node decides, without a thread, clock, socket or file: who is let in, what is proposed in which batch, who
//! is shown to whom, what is handed to the server and when.
//!
//! Inputs are method calls; effects are collected and taken with [`Member::take`]. One round is: all inputs that are
//! there, then [`Member::round`]. Whatever waits when a round begins is one batch of it.

mod apply_hold;
#[cfg(test)]
mod arbitrator_tests;
mod barrier;
mod branch;
#[cfg(test)]
mod campaign;
mod clocks;
mod commands;
mod committed_position;
mod connection_state;
mod deferred_sync;
mod delivery;
#[cfg(test)]
mod disks;
mod failback;
mod failure_detector;
mod frames;
#[cfg(test)]
mod harness;
mod in_doubt;
mod join_target;
mod lag;
mod leader_slowness;
mod leader_tasks;
mod leave;
mod low_water_mark;
mod operator;
mod peers;
mod placement;
mod policy;
#[cfg(test)]
mod relay_tests;
mod transfer;
mod votes;
mod wait_report;

use crate::api::{Delivery, Level, LocalState, NodeError, SubmitOutcome, Tuning};
use crate::log_quarantine::QuarantineRequest;
use crate::operator::Answer;
use crate::pack::Packed;
use crate::wire::{FRAME_NODE, FRAME_RAFT, Health, Hello, NodeMessage};
use crate::writer::TrimLimits;
use bytes::Bytes;
use connection_state::ConnectionState;
use delivery::Deliverer;
use lockstep_core::codec::Writer;
use lockstep_core::members::ViewMember;
use lockstep_core::message::{Carried, Message};
use lockstep_core::policy::Policy;
use lockstep_core::raft::{Output, Raft, WriteOp};
use lockstep_core::{Entry, EntryKind, Gtid, Index, MemberId, Seqno, ViewUuid};
use peers::{Gone, Peer};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

pub(crate) use lockstep_core::Micros;
pub(crate) use peers::Admission;

/// At least so often a trim mark, if anything can be forgotten.
const TRIM_PERIOD: Micros = 1_000_000;
/// And after so many seqnos.
const TRIM_STEP: Seqno = 1024;
/// How often members tell each other how they are.
const HEALTH_PERIOD: Micros = 200_000;
/// A leader looks at its duties when something has changed, and at least this often; what was refused is tried again
/// then.
const DUTY_PERIOD: Micros = 25_000;
/// How often what an operator waits for is looked at.
const COMMAND_PERIOD: Micros = 5_000;
/// And while members stand still.
const HOLD_PERIOD: Micros = 500;
/// And to forget, where nothing else happens: a hundred thousand keys in a second.
const FORGET_PERIOD: Micros = 5_000;
/// A round that begins so long after the one before is worth a line: there is one each 0.1 s at least.
const STOOD: Micros = 1_000_000;
/// How often it is said that entries had to go early.
const SAY_EARLY_EVERY: Micros = 600_000_000;

/// A member that was lost may have been behind by so much before.
const BEHIND: Micros = 60_000_000;

/// Why old entries are read from the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadFor {
    /// A peer is behind the cache.
    Peer(MemberId),
    /// The own delivery is.
    Deliverer,
}

/// What the engine wants done.
#[derive(Debug)]
pub(crate) enum Effect {
    /// A frame to a connected peer.
    Send { to: MemberId, kind: u8, payload: Bytes },
    /// To the log, in this order; answered by [`Member::written`]. With `may_wait`, nobody waits for its sync: see
    /// [`sync`].
    Write { op: WriteOp, may_wait: bool },
    /// Entries from the log; answered by [`Member::read`].
    Read { whom: ReadFor, from: Index, max_bytes: usize },
    /// Whole segments of the log may go.
    TrimLog(TrimLimits),
    /// Keep trying to connect to this address.
    Dial(String),
    /// Close the connection to this peer.
    Drop(MemberId),
    /// [`crate::Node::connect`] may return.
    Connected(Result<(), NodeError>),
    /// [`crate::Node::disconnect`] may return: no connection is needed any more.
    Left,
    /// A line.
    Log(Level, String),
    /// So many seqnos of so many are done before this member is Synced.
    Progress { total: Seqno, done: Seqno },
    /// For the server to tell: a JSON object.
    Event(String),
    /// This policy is in force from now on.
    PolicyNow(Policy),
    /// The policy that was wished for is in force, or why it is not.
    PolicyChanged(Result<(), String>),
    /// A causal read may go on when this seqno has finished (`None`: no majority).
    Causal { id: u64, seqno: Option<Seqno> },
    /// To the question of this number: up to where the cluster has agreed, or why nobody knows.
    CommittedPosition { token: u64, result: Result<Gtid, String> },
    /// Another branch has left this member's: at the next start its log is set aside, for this reason.
    SetAside(Box<QuarantineRequest>),
    /// To the operator who gave the command of this number.
    Answer { token: u64, answer: Answer },
}

/// The node without its threads.
pub(crate) struct Member {
    pub(crate) raft: Raft,
    pub(crate) me: Hello,
    pub(crate) tuning: Tuning,
    pub(crate) cluster: String,
    pub(crate) peers: BTreeMap<MemberId, Peer>,
    /// Addresses where somebody is with whom this member cannot talk until a person has mended it: whose, and why.
    unlike: BTreeMap<String, (String, String)>,
    /// Members that were connected and are not.
    gone: BTreeMap<MemberId, Gone>,
    pub(crate) connection: ConnectionState,
    pub(crate) deliverer: Deliverer,
    /// Own submissions under way, by number, ascending.
    slots: VecDeque<commands::Waiting>,
    /// Large write-sets on their way, one at a time.
    large: VecDeque<commands::Large>,
    large_sent: commands::LargeSent,
    pub(crate) now: Micros,
    wall: Micros,
    leaving: bool,
    /// A leave under way.
    leave: Option<leave::Leave>,
    /// Why this member leaves for good: its server cannot go on, its log could.
    given_up: Option<String>,
    /// By their view UUIDs, the members of the last view without a majority.
    minority: Vec<ViewUuid>,
    /// Since when others refuse this member for its identity, and nobody takes it.
    not_allowed_since: Option<Micros>,
    /// Whose log this member takes that came without one: its history, and which log of it.
    join_target: Option<(lockstep_core::Uuid, lockstep_core::Uuid)>,
    /// Not before this it is said again that others do not let this member in.
    told_not_listed: Micros,
    catching_up: Option<lag::CatchUp>,
    pub(crate) votes: votes::Votes,
    /// What had finished when the round began, before its inputs were taken.
    finished_before: Seqno,
    /// Users' and donations' reasons to be Desynced.
    desyncs: u32,
    /// The server has been told that it is synced, and of no loss of the majority since.
    told_synced: bool,
    /// Behind by more than `apply.lag_limit`, and not caught up since.
    lagging: bool,
    /// Who led last, as far as this process knows.
    last_leader: Option<MemberId>,
    apply_holds: apply_hold::ApplyHolds,
    clocks: clocks::Clocks,
    /// Changes of policy that somebody here has asked for.
    policy_requests: policy::PolicyRequests,
    /// What was wished of this member as a leader, and done.
    granted: policy::AppliedPolicyRequests,
    /// An operator lets this member go on alone.
    overriding: Option<branch::Override>,
    /// What policies have meant so far.
    pub(crate) commits: policy::Commits,
    /// Whose disks move, under `all`.
    disks: policy::Disks,
    /// The server's process is to end, for its database has what the log has lost.
    ending: Option<policy::Ending>,
    donations: Vec<transfer::Donation>,
    donation_ids: u64,
    choices: Vec<transfer::Choice>,
    state_request: Option<transfer::Pending>,
    /// The position from which a donor's word is all that is wanted; −1 where the state itself is.
    bypass: Seqno,
    causal: Vec<commands::CausalRead>,
    position_queries: Vec<committed_position::PositionQuery>,
    /// The seqno of the view with which this connection began: a member that has not reached it is not caught up.
    connected_seqno: Seqno,
    /// This connection's server knows a Primary view.
    shown: bool,
    /// How many such views there were in this process.
    positions_shown: u64,
    /// Who this member was to its server at each connect of this process.
    view_uuids: Vec<ViewUuid>,
    primary_since: Option<Micros>,
    /// Since when all are there and nobody knows: see [`doubt`].
    doubt_since: Option<Micros>,
    no_quorum_since: Option<Micros>,
    /// When a leader of the own log was known last, or a majority of its voters connected.
    majority_seen: Micros,
    /// Not before this it is said again that a branch is there for which this member does not give up its log.
    told_branch: Micros,
    last_trim_mark: Micros,
    last_health: Micros,
    told: Option<Health>,
    leader_tasks_at: Micros,
    low_water_mark: low_water_mark::LowWaterMark,
    last_log_trim: Micros,
    /// When it looked, and what had finished then, for as long as `log.keep_min`.
    finished_at: VecDeque<(Micros, Seqno)>,
    /// When it was last said that entries had to go early.
    trimmed_early: Option<Micros>,
    /// What the front end's server has finished; written by its threads.
    finished: Arc<AtomicI64>,
    effects: Vec<Effect>,
    deliveries: Vec<Delivery>,
    /// Threads whose submissions have their places, in the order of seqnos.
    woken: Vec<std::thread::Thread>,
    /// What came compressed.
    pub(crate) unpacked: Packed,
    deferred_syncs: deferred_sync::DeferredSyncs,
    operator: operator::Operator,
    failure_detector: failure_detector::FailureDetector,
    writer_share: lockstep_core::placement::WriterShare,
    failback: failback::Failback,
    barrier: barrier::Barrier,
    /// The front end's commits.
    pub(crate) hold: Option<Arc<dyn crate::api::CommitBarrier>>,
}

/// Should the engine go down in the middle of a round: whoever has an answer gets to see it.
impl Drop for Member {
    fn drop(&mut self) {
        self.woken.iter().for_each(std::thread::Thread::unpark);
    }
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
        let votes = votes::Votes::new(raft.last_index());
        let applying = apply_hold::ApplyHolds::new(tuning.apply_order);
        Member {
            raft,
            me,
            tuning,
            cluster: String::new(),
            peers: BTreeMap::new(),
            unlike: BTreeMap::new(),
            gone: BTreeMap::new(),
            connection: ConnectionState::Idle,
            deliverer: Deliverer::default(),
            slots: VecDeque::new(),
            large: VecDeque::new(),
            large_sent: commands::LargeSent::default(),
            now,
            wall: 0,
            leaving: false,
            leave: None,
            given_up: None,
            minority: Vec::new(),
            not_allowed_since: None,
            join_target: None,
            told_not_listed: 0,
            catching_up: None,
            votes,
            finished_before: lockstep_core::SEQNO_UNDEFINED,
            desyncs: 0,
            told_synced: false,
            lagging: false,
            last_leader: None,
            apply_holds: applying,
            clocks: clocks::Clocks::default(),
            policy_requests: policy::PolicyRequests::default(),
            granted: policy::AppliedPolicyRequests::default(),
            overriding: None,
            commits: policy::Commits::default(),
            disks: policy::Disks::default(),
            ending: None,
            donations: Vec::new(),
            donation_ids: 0,
            choices: Vec::new(),
            state_request: None,
            bypass: lockstep_core::SEQNO_UNDEFINED,
            causal: Vec::new(),
            position_queries: Vec::new(),
            connected_seqno: 0,
            shown: false,
            positions_shown: 0,
            view_uuids: Vec::new(),
            primary_since: None,
            doubt_since: None,
            no_quorum_since: None,
            majority_seen: now,
            told_branch: 0,
            last_trim_mark: 0,
            last_health: 0,
            told: None,
            leader_tasks_at: 0,
            low_water_mark: low_water_mark::LowWaterMark::default(),
            last_log_trim: 0,
            finished_at: VecDeque::new(),
            trimmed_early: None,
            finished,
            effects: Vec::new(),
            deliveries: Vec::new(),
            woken: Vec::new(),
            unpacked: Packed::default(),
            deferred_syncs: deferred_sync::DeferredSyncs::default(),
            operator: operator::Operator::default(),
            failure_detector: failure_detector::FailureDetector::default(),
            writer_share: lockstep_core::placement::WriterShare::new(placement::WINDOW),
            failback: failback::Failback::default(),
            barrier: barrier::Barrier::default(),
            hold: None,
        }
    }

    pub(crate) fn finished(&self) -> Seqno {
        self.finished.load(Ordering::Acquire)
    }

    fn log(&mut self, level: Level, text: impl Into<String>) {
        self.effects.push(Effect::Log(level, text.into()));
    }

    fn deliver(&mut self, delivery: Delivery) {
        self.deliveries.push(delivery);
    }

    /// Something has changed that a leader may have to act on.
    fn schedule_leader_tasks(&mut self) {
        self.leader_tasks_at = self.now;
    }

    fn tell(&mut self, to: MemberId, message: &NodeMessage) {
        if to == self.me.id {
            self.node_message(to, message.clone());
        } else {
            self.effects.push(Effect::Send { to, kind: FRAME_NODE, payload: message.to_bytes() });
        }
    }

    fn own_view_member(&self) -> ViewMember {
        ViewMember {
            id: self.me.id,
            view_uuid: self.me.view_uuid,
            name: self.me.name.clone(),
            incoming: self.me.incoming.clone(),
        }
    }

    pub(crate) fn name_of(&self, id: &MemberId) -> String {
        if *id == self.me.id {
            return self.me.name.clone();
        }
        match self.raft.membership().get(id) {
            Some(member) => member.name.clone(),
            None => self.peers.get(id).map_or_else(|| id.to_string(), |p| p.hello.name.clone()),
        }
    }

    /// The time, before the inputs of a round.
    pub(crate) fn at(&mut self, now: Micros, wall: Micros) {
        let stood = now.saturating_sub(self.now);
        self.now = now.max(self.now);
        if stood > STOOD && self.connection.is_connected() {
            let text = format!(
                "this process stood still for {:.1} s, as one does that is stopped or gets no processor: others may have taken it \
                 for dead",
                stood as f64 / 1e6
            );
            self.log(Level::Warn, text);
        }
        self.wall = wall;
        self.finished_before = self.finished();
        self.raft.set_wall_clock(wall);
        self.on_leader_contact(self.me.id);
    }

    /// When the next round is due even if nothing comes in.
    pub(crate) fn deadline(&self) -> Micros {
        let mut at = self.raft.deadline().min(self.last_health + HEALTH_PERIOD);
        if self.raft.is_leader() {
            at = at.min(self.leader_tasks_at);
        }
        if self.is_commanded() {
            at = at.min(self.now + COMMAND_PERIOD);
        }
        if self.is_at_barrier() {
            at = at.min(self.now + HOLD_PERIOD);
        }
        if self.deliverer.is_to_forget() {
            at = at.min(self.now + FORGET_PERIOD);
        }
        if let Some(due) = self.gate_due() {
            at = at.min(due);
        }
        at
    }

    /// Whether another round would deliver more even if nothing came in.
    pub(crate) fn has_more(&self) -> bool {
        self.connection.is_primary() && self.deliverer.is_behind(self.deliverable())
    }

    fn node_message(&mut self, from: MemberId, message: NodeMessage) {
        match message {
            NodeMessage::Health(health) => {
                if let Some(peer) = self.peers.get_mut(&from) {
                    peer.health = Some(health);
                    // It takes this member: before it refuses one it says nothing.
                    self.not_allowed_since = None;
                    self.schedule_leader_tasks();
                }
            }
            NodeMessage::Peers(addresses) => {
                for address in addresses.into_iter().take(64) {
                    self.dial(address);
                }
            }
            NodeMessage::StateRequest { donor, at_least, position, request } => {
                self.find_donor(from, &donor, at_least, position, request);
            }
            NodeMessage::Donate { joiner, at_least, position, request } => {
                // Only a leader sends members to send their data, and only to members.
                let to_member = self.raft.membership().get(&joiner).is_some();
                if self.raft.leader() != Some(from) || !to_member {
                    return;
                }
                self.asked_to_donate(joiner, at_least, position, request);
            }
            NodeMessage::Donated { code, gtid, text } => self.donated(from, code, gtid, text),
            NodeMessage::Opinion { seqno, opinion, text } => self.told_opinion(from, seqno, opinion, &text),
            NodeMessage::AskOpinion { seqno } => self.asked_opinion(from, seqno),
            NodeMessage::Policy(policy) => {
                self.asked_for_policy(from, |_| policy);
            }
            NodeMessage::PolicyRequest { number, request } => self.wished(from, number, request),
            NodeMessage::TurnedAway => self.on_writes_rejected(from),
        }
    }

    /// Everything up to this ticket is on the disk.
    pub(crate) fn written(&mut self, ticket: u64) {
        self.sync_done(ticket);
        self.disk_answered(ticket);
        if let Some(ending) = &mut self.ending {
            ending.written(ticket);
        }
        self.raft.written(self.now, ticket);
    }

    /// Entries from the log. Empty: there are none (trimmed, or the log cannot be read).
    pub(crate) fn read(&mut self, whom: ReadFor, from: Index, entries: Vec<Entry>) {
        match whom {
            ReadFor::Peer(id) => self.raft.fetched(self.now, id, from, entries),
            ReadFor::Deliverer => {
                if let Err(text) = self.deliverer.fetched(from, entries) {
                    self.needs_state(&text);
                }
            }
        }
    }

    /// Ends a round: time passes, duties are done, effects come out of the order core, entries are delivered.
    pub(crate) fn round(&mut self, room: bool) {
        self.large_step();
        self.low_water_mark.note(self.now, self.finished());
        self.raft.set_finished(self.finished());
        self.check_database();
        self.raft.tick(self.now);
        if self.connection.is_connected() && self.now >= self.leader_tasks_at {
            self.leader_tasks_at = self.now + DUTY_PERIOD;
            self.lead();
        }
        self.operator_step();
        self.override_step();
        self.majority_step();
        self.barrier_step();
        // What comes out may put something in again (a leader that is its own majority commits at once).
        for _ in 0..4 {
            if !self.drain_order() {
                break;
            }
        }
        self.connection_step();
        self.failback_step();
        if room {
            self.delivery_step();
        }
        self.deliverer.forget();
        self.committed_position_step();
        self.votes_step();
        self.policy_step();
        self.donations_step();
        self.health_step();
        self.leave_step();
        self.trim_log_step();
    }

    fn drain_order(&mut self) -> bool {
        let outputs = self.raft.drain(self.now);
        let some = !outputs.is_empty();
        let mut diverged = false;
        let mut last_write = 0;
        let mut renamed = false;
        for output in outputs {
            match output {
                Output::Send { to, message } => {
                    let mut w = Writer::with_capacity(message_size(&message));
                    message.encode(&mut w);
                    self.effects.push(Effect::Send { to, kind: FRAME_RAFT, payload: w.into_bytes() });
                }
                Output::Write(op) => {
                    self.compare_clocks(&op.entries);
                    self.votes.follow(&op);
                    self.deliverer.follow(&op);
                    if op.truncate_from.is_some_and(|from| from < self.deliverer.next_index()) && !diverged {
                        self.delivery_was_cut();
                    }
                    let may_wait = self.may_defer_sync(&op);
                    last_write = op.ticket;
                    renamed |= op.reset.is_some() || op.entries.iter().any(|e| e.kind == EntryKind::Branch);
                    self.disk_asked(op.ticket);
                    self.effects.push(Effect::Write { op, may_wait });
                }
                Output::Fetch { to, from, max_bytes } => {
                    self.effects.push(Effect::Read { whom: ReadFor::Peer(to), from, max_bytes });
                }
                Output::Commit { .. } => {}
                Output::Diverged { .. } => diverged = true,
                Output::Soft { leader, term, .. } => self.leader_changed(leader, term),
                Output::ReadReady { context, index } => self.read_ready(context, Some(index)),
                Output::ReadFailed { context } => self.read_ready(context, None),
                Output::Membership(membership) => {
                    for member in &membership.members {
                        if member.id != self.me.id && !self.peers.contains_key(&member.id) {
                            self.dial(member.address.clone());
                        }
                    }
                }
            }
        }
        if renamed {
            self.compare_peers();
        }
        if diverged {
            self.has_diverged(last_write);
        }
        some
    }

    fn leader_changed(&mut self, leader: Option<MemberId>, term: u64) {
        let text = match leader {
            Some(id) if id == self.me.id => format!("this member leads in term {term}"),
            Some(id) => format!("{} leads in term {term}", self.name_of(&id)),
            None => format!("no leader in term {term}"),
        };
        self.schedule_leader_tasks();
        self.log(Level::Info, text);
        if leader == Some(self.me.id) {
            self.tell_of_loss(term);
        }
        self.last_leader = leader.or(self.last_leader);
    }

    /// Under a weak policy this member's predecessor may have answered more than anybody here has. Where it is here
    /// itself, it has been asked how far its log goes.
    fn tell_of_loss(&mut self, term: u64) {
        let Some(gap) = self.raft.left_out_by_own_term() else { return };
        let before = self.last_leader.filter(|id| *id != self.me.id);
        if before.is_some_and(|id| self.responds(&id)) {
            return;
        }
        let before = before.map_or_else(|| "whoever led before".to_owned(), |id| self.name_of(&id));
        let text = format!(
            "this member leads in term {term}, without {before}: what {before} answered beyond seqno {} and nobody here has \
             is left out (the next seqno is {}); it is lost unless that member comes back with its log \
             (lockstep.rescue.*.log there then)",
            gap.before, gap.after
        );
        self.log(Level::Warn, text);
    }

    fn health(&self) -> Health {
        Health {
            state: self.local_state(),
            finished: self.finished(),
            seen: self.lowest_seen(),
            delivered: self.deliverer.delivered(),
            leaving: self.leaving,
            has_state: self.deliverer.has_started(),
            held_back: self.has_held_server(),
        }
    }

    fn health_step(&mut self) {
        let health = self.health();
        let urgent = self.told.is_none_or(|t| {
            t.state != health.state
                || t.leaving != health.leaving
                || t.has_state != health.has_state
                || t.held_back != health.held_back
        });
        if !urgent && self.now < self.last_health + HEALTH_PERIOD {
            return;
        }
        self.told = Some(health);
        self.last_health = self.now;
        self.adapt_timing();
        let payload = NodeMessage::Health(health).to_bytes();
        let for_older = NodeMessage::Health(Health { held_back: false, ..health }).to_bytes();
        for (to, peer) in &self.peers {
            let payload = if peer.version >= peers::HELD_BACK_SINCE { &payload } else { &for_older };
            self.effects.push(Effect::Send { to: *to, kind: FRAME_NODE, payload: payload.clone() });
        }
    }

    /// How a member is, as it has last said; as this one would say.
    pub(crate) fn health_of(&self, id: &MemberId) -> Option<Health> {
        match *id == self.me.id {
            true => Some(self.health()),
            false => self.peers.get(id).and_then(|peer| peer.health),
        }
    }

    pub(crate) fn wall(&self) -> Micros {
        self.wall
    }

    pub(crate) fn waiting(&self) -> usize {
        self.slots.len()
    }

    /// Whether all that comes is what others write, in frames of their leader's: no thread of this server's brings more
    /// while somebody lets it run, and nobody else waits for what this member does meanwhile.
    pub(crate) fn only_follows(&self) -> bool {
        self.slots.is_empty() && !self.raft.is_leader()
    }

    /// Reads that are to see what is committed wait for this thread.
    pub(crate) fn has_readers(&self) -> bool {
        !self.causal.is_empty()
    }

    /// How many transactions are on their way to their places, as far as this member knows.
    pub(crate) fn under_way(&self) -> usize {
        let uncommitted = self.raft.last_index().saturating_sub(self.raft.commit()) as usize;
        self.slots.len().max(uncommitted)
    }

    pub(crate) fn failure(&self) -> Option<String> {
        match &self.connection {
            ConnectionState::Failed(text) => Some(text.clone()),
            _ => None,
        }
    }

    /// The log's first segments are gone; `early`: sooner than `log.keep_min`, or a connected member's disk, asks for.
    pub(crate) fn log_trimmed(&mut self, first: Index, early: bool) {
        if early && self.trimmed_early.is_none_or(|at| self.now >= at + SAY_EARLY_EVERY) {
            self.trimmed_early = Some(self.now);
            self.log(
                Level::Warn,
                "the log is larger than log.max_size: entries are removed that are younger than log.keep_min or not on \
                 the disk of a connected member, so that a member that is away or behind, or this one after a crash, \
                 may need a state transfer; raise log.max_size, or see whose disk hangs",
            );
        }
        self.raft.log_trimmed(first);
        self.deliverer.forget_below(first);
        self.votes.forget_below(first);
    }

    /// Wakes the threads whose submissions have their places: the last thing in a round. They find their turn in commit
    /// order open, for it is the order in which they are woken.
    pub(crate) fn wake(&mut self) {
        for thread in self.woken.drain(..) {
            thread.unpark();
        }
    }

    /// Effects and deliveries since the last call.
    pub(crate) fn take(&mut self, effects: &mut Vec<Effect>, deliveries: &mut Vec<Delivery>) {
        effects.append(&mut self.effects);
        deliveries.append(&mut self.deliveries);
    }

    /// The log cannot supply what the database lacks, and a running server cannot take a copy: the front end is told to
    /// give up its position, and to end the process, so that the next start takes a state transfer.
    fn needs_state(&mut self, text: &str) {
        let text = format!("{text}: a state transfer is needed; start this server again");
        self.deliver(Delivery::StateFailed(text.clone()));
        if !matches!(self.connection, ConnectionState::Failed(_)) {
            self.fail(&text);
            self.end_for_state(&text);
        }
    }

    /// This node cannot go on: it says so, refuses everything, and leaves.
    pub(crate) fn fail(&mut self, text: &str) {
        if matches!(self.connection, ConnectionState::Failed(_)) {
            return;
        }
        self.log(Level::Error, text.to_string());
        self.wake_all(true);
        self.end_votes();
        if let ConnectionState::Connecting { .. } = self.connection {
            self.effects.push(Effect::Connected(Err(NodeError::Log(text.to_string()))));
        }
        if self.deliverer.is_shown() {
            let info = self.view_without_quorum();
            self.deliver(Delivery::View { info, in_log: false });
        }
        self.deliver(Delivery::Failed(text.to_string()));
        self.connection = ConnectionState::Failed(text.to_string());
        let ids: Vec<MemberId> = self.peers.keys().copied().collect();
        for id in ids {
            self.effects.push(Effect::Drop(id));
        }
    }

    /// Wakes every waiting submission. `unknown`: nothing can be withdrawn, for the order core is not asked.
    fn wake_all(&mut self, unknown: bool) {
        let first_unsent = if unknown { None } else { self.raft.withdraw_unsent() };
        if let Some(first) = first_unsent {
            self.large_sent.withdrawn(first);
        }
        for large in self.large.drain(..) {
            large.submission.fill(SubmitOutcome::NotSent);
        }
        for commands::Waiting { number, submission, .. } in self.slots.drain(..) {
            let outcome = if first_unsent.is_some_and(|first| number >= first) {
                SubmitOutcome::NotSent
            } else {
                SubmitOutcome::Unknown
            };
            submission.fill(outcome);
        }
        for read in self.causal.drain(..) {
            self.effects.push(Effect::Causal { id: read.id, seqno: None });
        }
    }

    /// Synced, or it would be if its server took writes: nothing that it is to have is missing, and nothing else is under way.
    fn serves_all_it_is_to_have(&self) -> bool {
        matches!(self.connection, ConnectionState::Running { primary: true, synced: true })
            && !self.is_desynced()
    }

    fn is_desynced(&self) -> bool {
        self.desyncs > 0 || self.lagging || !self.donations.is_empty()
    }

    pub(crate) fn local_state(&self) -> LocalState {
        if matches!(self.connection, ConnectionState::Failed(_)) {
            return LocalState::Error;
        }
        match &self.connection {
            ConnectionState::Running { primary: true, synced } => match (self.is_desynced(), synced) {
                (true, _) => LocalState::Donor,
                // Its server refuses writes, whether anything is kept back yet or not.
                (false, true) if self.has_held_server() => LocalState::Donor,
                (false, true) => LocalState::Synced,
                (false, false) => LocalState::Joined,
            },
            ConnectionState::NeedState { primary: true } => LocalState::Joining,
            _ => LocalState::Initialized,
        }
    }

    /// What the own server had finished `log.keep_min` ago. What it had as its process began is on its disk.
    fn finished_long_ago(&mut self) -> Seqno {
        let (now, keep) = (self.now, self.tuning.log_keep.as_micros() as Micros);
        let at = if self.finished_at.is_empty() { now.saturating_sub(keep) } else { now };
        self.finished_at.push_back((at, self.finished()));
        while self.finished_at.get(1).is_some_and(|(at, _)| at + keep <= now) {
            self.finished_at.pop_front();
        }
        let first = self.finished_at.front().filter(|(at, _)| at + keep <= now);
        first.map_or(lockstep_core::SEQNO_UNDEFINED, |(_, seqno)| *seqno)
    }

    fn trim_log_step(&mut self) {
        if self.now < self.last_log_trim + 1_000_000 {
            return;
        }
        self.last_log_trim = self.now;
        let long_ago = self.finished_long_ago();
        let needed = self.deliverer.next_index().min(self.raft.deliverable());
        let membership = self.raft.membership();
        // What a connected member has not got on its disk stays up to `log.max_size` only: a disk that hangs elsewhere
        // must not fill this one. What it misses then, it gets as a base, like one that was away for too long.
        let connected = membership.members.iter().filter(|m| self.peers.contains_key(&m.id));
        let wanted = connected
            .filter(|m| m.id != self.me.id && self.raft.is_leader())
            .map(|m| self.raft.matched(&m.id) + 1)
            .min()
            .unwrap_or(Index::MAX);
        // What a server that lagged has only just finished may not be on its disk, however old it is.
        let flushed = self.raft.segment_bases().filter(|b| b.seqno <= long_ago).last();
        let flushed = flushed.map_or(0, |b| b.index + 1);
        // Certification after a restart begins at the trim mark before the last.
        let trim = self.raft.committed_state().trim_previous.min(self.finished());
        let keep = self.raft.segment_bases().filter(|b| b.seqno <= trim && b.index <= needed).last();
        if let Some(below) = keep.map(|b| b.index + 1) {
            let ago = |time: Micros| self.wall.saturating_sub(time);
            // What an absent member has not got is kept like what is young.
            let absent = membership.members.iter().filter(|m| m.id != self.me.id && !m.arbitrator);
            let absent_since = absent
                .filter(|m| !self.peers.contains_key(&m.id))
                // One that was not seen since this process began: all that there is.
                .map(|m| {
                    self.gone.get(&m.id).map_or(0, |gone| ago(self.now.saturating_sub(gone.since) + BEHIND))
                })
                .min()
                .unwrap_or(Micros::MAX);
            self.effects.push(Effect::TrimLog(TrimLimits {
                below,
                wanted,
                flushed,
                keep_bytes: self.tuning.log_bytes,
                older_than: ago(self.tuning.log_keep.as_micros() as Micros).min(absent_since),
                max_bytes: self.tuning.log_max_bytes,
            }));
        }
    }

    /// How this member introduces itself.
    pub(crate) fn introduction(&self) -> Hello {
        let Some((history, log_id)) = self.log_to_tell() else { return self.me.clone() };
        let before = &self.raft.tail_state().parents;
        let parents = before.iter().map(|p| (p.history, p.log_id)).collect();
        let forks = before.iter().map(|p| (p.index, p.term)).collect();
        Hello { history, log_id, parents, forks, last_index: self.raft.last_index(), ..self.me.clone() }
    }

    /// Somebody refused this member for a reason that only a person can mend.
    pub(crate) fn refused(&mut self, text: &str) {
        if matches!(self.connection, ConnectionState::Connecting { .. }) && self.peers.is_empty() {
            self.connection = ConnectionState::Idle;
            self.forget_peers();
            self.effects.push(Effect::Connected(Err(NodeError::Refused(text.to_string()))));
        }
    }

    /// The kind is one that members may propose.
    fn propose(&mut self, kind: EntryKind, payload: Bytes) -> u64 {
        debug_assert!(kind.may_be_proposed());
        self.raft.propose(self.now, kind, payload)
    }
}

fn message_size(message: &Message) -> usize {
    match message {
        Message::Append { entries, .. }
        | Message::Relay { carried: Carried { entries, .. }, .. }
        | Message::Relayed { carried: Carried { entries, .. }, .. } => {
            64 + entries.iter().map(|e| 64 + e.payload.len()).sum::<usize>()
        }
        Message::Propose { proposals, .. } => {
            64 + proposals.iter().map(|p| 8 + p.payload.len()).sum::<usize>()
        }
        _ => 128,
    }
}
