//! A member without threads and sockets, for the simulator: the decisions ([`Member`]) and the log of a node, driven
//! step by step. Compiled only with the feature `simulation`.
//!
//! A round is [`SimulatedNode::begin_round`], all inputs, then [`SimulatedNode::end_round`]. The thread of the log is two
//! calls: [`SimulatedNode::begin_batch`] writes all queued jobs, [`SimulatedNode::end_batch`] syncs and answers. What the
//! simulated disk does between the two is up to the caller.

use crate::api::{ConnectArgs, Delivery, FrontEnd, Level, LocalState, NodeError, ServerEnd, Tuning};
use crate::effect::{Effect, ReadRequest, TrimLimits};
use crate::io::liveness::confirmed_at;
use crate::io::opened::Opened;
use crate::io::writer::{LogDone, keep, read, trim, write_to};
use crate::member::{Admission, Confirmation, ConnectionState, Member};
use crate::operator::{Answer, Command};
use crate::submit::{NoticeCall, Submission};
use crate::wire::{FRAME_RAFT, Hello};
use bytes::Bytes;
use lockstep_core::message::Message;
use lockstep_core::policy::Policy;
use lockstep_core::raft::{Config, Raft, Vote, WriteOp};
use lockstep_core::{EntryKind, Gtid, Index, MemberId, Micros, SEQNO_UNDEFINED, Seqno, Uuid, ViewUuid};
use lockstep_log::{Disk, Log, OpenError, Options, Recovered};
use std::collections::VecDeque;
use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// The code of a donor that asks to be asked again: EAGAIN, as in Galera's library.
const AGAIN: i32 = -11;

/// The settings that a process starts with.
pub struct Setup {
    /// The member's introduction. Its id and incarnation come from the log.
    pub hello: Hello,
    /// The options.
    pub tuning: Tuning,
    /// Raft's settings. Id and incarnation come from the log.
    pub config: Config,
    /// The log's settings.
    pub options: Options,
}

/// Opens a log as a start does, and drops it.
///
/// # Errors
/// Those of [`Log::open`].
pub fn try_open<D: Disk>(disk: &D, options: Options) -> Result<Recovered, OpenError> {
    Opened::new(disk, options).map(|opened| opened.recovered)
}

/// An effect of a round that the simulated world carries out.
pub enum Output {
    /// A frame to a connected peer.
    Send {
        /// The peer.
        to: MemberId,
        /// The frame's kind.
        kind: u8,
        /// Its payload.
        payload: Bytes,
    },
    /// A write was queued for the log.
    Write(WriteOp),
    /// Close the connection to this peer.
    Drop(MemberId),
    /// The connect has ended.
    Connected(Result<(), NodeError>),
    /// No connection is needed any more.
    Left,
    /// A line of the error log.
    Log(Level, String),
    /// A causal read may continue when this seqno has finished; `None` without a majority.
    Causal {
        /// The read's number.
        id: u64,
        /// The seqno.
        seqno: Option<Seqno>,
    },
    /// The answer to a command of the operator.
    Answer {
        /// The command's number.
        token: u64,
        /// The answer.
        answer: Answer,
    },
    /// The next start quarantines the log.
    QuarantineLog,
}

/// A job for the log.
enum Job {
    Write(Box<WriteOp>),
    Read(ReadRequest),
    Trim(TrimLimits),
    Hint(Index),
}

/// An answer of the log.
pub struct Answered(LogDone);

impl Answered {
    /// The ticket up to which all writes are on disk.
    pub fn written(&self) -> Option<u64> {
        match self.0 {
            LogDone::Written(ticket) => Some(ticket),
            _ => None,
        }
    }

    /// The first index of the log, after segments were removed.
    pub fn trimmed(&self) -> Option<Index> {
        match self.0 {
            LogDone::Trimmed { first, .. } => Some(first),
            _ => None,
        }
    }
}

/// The Raft message in a frame, if its tag is wanted: the first byte of [`Message::encode`].
pub fn raft_message(kind: u8, payload: &Bytes, is_wanted: impl FnOnce(u8) -> bool) -> Option<Message> {
    let wanted = kind == FRAME_RAFT && payload.first().is_some_and(|tag| is_wanted(*tag));
    wanted.then(|| Message::decode(payload.clone()).ok())?
}

/// Whether a frame carries a message of Raft, which may be lost, repeated and reordered.
pub fn is_raft(kind: u8) -> bool {
    kind == FRAME_RAFT
}

/// A frame's payload in one piece.
fn whole(mut parts: Vec<Bytes>) -> Bytes {
    match parts.len() {
        1 => parts.swap_remove(0),
        _ => parts.concat().into(),
    }
}

/// What a node publishes after a round for a device. The threads of the device read it at any time.
#[derive(Clone, Debug, Default)]
pub struct PublishedState {
    /// Whether there is a primary component.
    pub is_primary: bool,
    /// Whether this member's clients may write.
    pub may_originate: bool,
    /// The last seqno that was delivered.
    pub delivered: Seqno,
    /// The history, and the log's id.
    pub log: (Uuid, Uuid),
    confirmations: Vec<Confirmation>,
}

impl PublishedState {
    /// As [`crate::Node::confirmed`], at this time since boot.
    pub fn confirmed(&self, boot: Duration) -> Option<Seqno> {
        confirmed_at(&self.confirmations, boot)
    }
}

/// See the module's documentation.
pub struct SimulatedNode<D: Disk> {
    member: Member,
    log: Log<D>,
    /// The commit hint that votes are written with.
    hint: Index,
    finished: Arc<AtomicI64>,
    jobs: VecDeque<Job>,
    /// Of the batch that is under way: its last ticket, its reads, and answers that need no sync.
    ticket: Option<u64>,
    reads: Vec<ReadRequest>,
    done: Vec<LogDone>,
    effects: Vec<Effect>,
}

impl<D: Disk> SimulatedNode<D> {
    /// Opens the log and begins where it ends.
    ///
    /// # Errors
    /// Those of [`Log::open`].
    pub fn start(disk: &D, setup: Setup, now: Micros) -> Result<(SimulatedNode<D>, Recovered), OpenError> {
        let Setup { mut hello, tuning, mut config, options } = setup;
        let Opened { log, recovered, builder, marks } = Opened::new(disk, options)?;
        let vote = Vote { term: recovered.vote.term, voted_for: recovered.vote.voted_for.map(Uuid) };
        (hello.id, hello.incarnation) =
            (Uuid(recovered.identity.member_id), recovered.identity.incarnation << 20);
        (config.id, config.incarnation) = (hello.id, hello.incarnation);
        let raft = Raft::new(config, builder.finish(vote), now);
        let finished = Arc::new(AtomicI64::new(SEQNO_UNDEFINED));
        let mut member = Member::new(raft, hello, tuning, finished.clone(), now);
        for entry in &marks {
            member.remember(entry);
        }
        let hint = log.vote().commit_hint;
        let node = SimulatedNode {
            member,
            log,
            hint,
            finished,
            jobs: VecDeque::new(),
            ticket: None,
            reads: Vec::new(),
            done: Vec::new(),
            effects: Vec::new(),
        };
        Ok((node, recovered))
    }

    /// Connects to the cluster; `history` names the one that it founds.
    ///
    /// # Errors
    /// Those of a node's connect.
    pub fn connect(&mut self, args: ConnectArgs, view_uuid: Uuid, history: Uuid) -> Result<(), NodeError> {
        self.finished.store(args.position.seqno, Ordering::Release);
        self.member.connect(args, view_uuid, history)
    }

    /// Begins a round.
    pub fn begin_round(&mut self, now: Micros, wall: Micros) {
        self.member.at(now, wall);
    }

    /// Ends a round: effects and deliveries.
    pub fn end_round(&mut self, outputs: &mut Vec<Output>, deliveries: &mut Vec<Delivery>) {
        self.member.round(true);
        self.member.take(&mut self.effects, deliveries);
        self.member.wake();
        for effect in self.effects.drain(..) {
            outputs.push(match effect {
                Effect::Send { to, kind, payload } => Output::Send { to, kind, payload: whole(payload) },
                Effect::Write { op, .. } => {
                    self.jobs.push_back(Job::Write(Box::new(op.clone())));
                    Output::Write(op)
                }
                Effect::Read(request) => {
                    self.jobs.push_back(Job::Read(request));
                    continue;
                }
                Effect::TrimLog(limits) => {
                    self.jobs.push_back(Job::Trim(limits));
                    continue;
                }
                Effect::Drop(id) => Output::Drop(id),
                Effect::Connected(result) => Output::Connected(result),
                Effect::Left => Output::Left,
                Effect::Log(level, text) => Output::Log(level, text),
                Effect::Causal { id, seqno } => Output::Causal { id, seqno },
                Effect::Answer { token, answer } => Output::Answer { token, answer },
                Effect::QuarantineLog(_) => Output::QuarantineLog,
                Effect::Dial(_)
                | Effect::Progress { .. }
                | Effect::Event(_)
                | Effect::PolicyNow(_)
                | Effect::PolicyChanged(_)
                | Effect::CommittedPosition { .. } => continue,
            });
        }
    }

    /// When the next round is due without inputs; now, if one more would deliver more.
    pub fn deadline(&self) -> Micros {
        if self.member.has_more() { self.member.ctx.now() } else { self.member.deadline() }
    }

    /// A frame of a connected peer.
    pub fn frame(&mut self, from: MemberId, kind: u8, payload: Bytes) {
        self.member.frame(from, kind, payload);
    }

    /// This member's introduction.
    pub fn introduction(&self) -> Hello {
        self.member.introduction()
    }

    /// A peer introduces itself: whether it is let in.
    pub fn admits(&mut self, peer: &Hello) -> bool {
        if !self.member.ctx.connection().is_connected() {
            return false;
        }
        match self.member.admit(peer) {
            Admission::Welcome | Admission::Replaces => true,
            Admission::Superseded(_) => {
                self.member.met_branch(peer);
                false
            }
            _ => false,
        }
    }

    /// A connection is made.
    pub fn peer_up(&mut self, peer: Hello, version: u16) {
        let id = peer.id;
        self.member.peer_up(peer);
        self.member.on_peer_version(id, version);
    }

    /// A round trip to a peer was measured.
    pub fn round_trip(&mut self, id: MemberId, rtt: Micros) {
        self.member.on_rtt(id, rtt);
    }

    /// A connection is lost.
    pub fn peer_down(&mut self, id: MemberId) {
        self.member.peer_down(id, "cut");
    }

    /// A client's write.
    pub fn submit(&mut self, kind: EntryKind, payload: Bytes) -> Submission {
        let submission = Submission::new();
        self.member.submit(kind, payload, submission.filler());
        submission
    }

    /// The taker of the deliveries, if it is no database. Before [`SimulatedNode::connect`].
    pub fn set_front_end(&mut self, front_end: FrontEnd) {
        self.member.set_front_end(front_end);
    }

    /// As [`SimulatedNode::begin_round`], with the time since boot.
    pub fn begin_round_at(&mut self, now: Micros, wall: Micros, boot: Duration) {
        self.member.ctx.simulate_boot(boot);
        self.member.at(now, wall);
    }

    /// As [`crate::Node::submit_with`].
    pub fn submit_with(&mut self, kind: EntryKind, payload: Bytes, call: NoticeCall) {
        let submission = Submission::notifying(call);
        self.member.submit(kind, payload, submission.filler());
    }

    /// The state after the last round.
    pub fn published(&self) -> PublishedState {
        let tail = self.member.ctx.raft.tail_state();
        PublishedState {
            is_primary: self.member.ctx.connection().is_primary(),
            may_originate: self.member.may_originate(),
            delivered: self.member.delivery.deliverer.delivered(),
            log: (tail.history, tail.log_id),
            confirmations: self.member.delivery.confirmations.recent(),
        }
    }

    /// A client's causal read.
    pub fn causal_read(&mut self, id: u64) {
        self.member.causal_read(id);
    }

    /// A command of the operator.
    pub fn command(&mut self, token: u64, command: Command, fresh: Uuid) {
        self.member.command(token, command, fresh);
    }

    /// The server stops in good order: [`Output::Left`] follows.
    pub fn leave(&mut self) {
        self.member.disconnect();
    }

    /// An operator sets the policy.
    pub fn request_policy(&mut self, policy: Policy) {
        self.member.request_policy(|wanted| *wanted = policy);
    }

    /// Other options.
    pub fn set_tuning(&mut self, tuning: Tuning) {
        self.member.set_tuning(tuning);
    }

    /// The server requests a state transfer.
    pub fn request_state(&mut self, request: Bytes) {
        self.member.request_state(request, String::new());
    }

    /// Whether a state transfer is awaited.
    pub fn needs_state(&self) -> bool {
        matches!(self.member.ctx.connection(), ConnectionState::NeedState { .. })
    }

    /// The server has received a state.
    pub fn state_received(&mut self, position: Gtid) {
        self.finished.store(position.seqno, Ordering::Release);
        self.member.state_received(Ok(position));
    }

    /// The server has sent its state.
    pub fn donation_done(&mut self, id: u64, position: Gtid) {
        self.member.donation_done(id, Ok(position));
    }

    /// The server could not send its state: the joiner asks again.
    pub fn donation_failed(&mut self, id: u64) {
        self.member.donation_done(id, Err(AGAIN));
    }

    /// The server has finished everything up to here.
    pub fn set_finished(&mut self, seqno: Seqno) {
        self.finished.fetch_max(seqno, Ordering::AcqRel);
    }

    /// The seqno that the server has finished.
    pub fn finished(&self) -> Seqno {
        self.member.ctx.finished()
    }

    /// The server refuses one more write, if the policy has it written elsewhere.
    pub fn refuse_writes(&mut self, refused: u64) {
        if !self.member.may_originate() {
            self.member.note_refused(refused);
        }
    }

    /// Why the server's process must end now, if it must.
    pub fn server_must_end(&mut self) -> Option<(ServerEnd, String)> {
        self.member.server_must_end()
    }

    /// The core.
    pub fn raft(&self) -> &Raft {
        &self.member.ctx.raft
    }

    /// Its state, as its server sees it.
    pub fn local_state(&self) -> LocalState {
        self.member.local_state()
    }

    /// Its id in the log.
    pub fn id(&self) -> MemberId {
        self.member.ctx.me().id
    }

    /// Its identity towards servers.
    pub fn view_uuid(&self) -> ViewUuid {
        self.member.ctx.me().view_uuid
    }

    /// The log is told how far it is committed.
    pub fn hint(&mut self) {
        self.jobs.push_back(Job::Hint(self.member.ctx.raft.deliverable()));
    }

    /// Whether the log's thread has anything to do.
    pub fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Where the log's last segment ends (number, bytes).
    pub fn log_end(&self) -> Option<(u64, u64)> {
        self.log.end()
    }

    /// The open log.
    pub fn log(&self) -> &Log<D> {
        &self.log
    }

    /// The log's thread takes all jobs and writes. Whether a sync is needed.
    ///
    /// # Errors
    /// A text, if the log has failed.
    pub fn begin_batch(&mut self) -> Result<bool, String> {
        while let Some(job) = self.jobs.pop_front() {
            match job {
                Job::Write(op) => {
                    for rescue in &op.rescue {
                        self.done.push(keep(&mut self.log, rescue).map_err(|e| e.to_string())?);
                    }
                    self.ticket = Some(op.ticket);
                    write_to(&mut self.log, &op, self.hint).map_err(|e| e.to_string())?;
                }
                Job::Read(request) => self.reads.push(request),
                Job::Trim(limits) => trim(&mut self.log, limits, &mut self.done),
                Job::Hint(index) => {
                    self.hint = index;
                    self.log.note_committed(index).map_err(|e| e.to_string())?;
                }
            }
        }
        Ok(self.ticket.is_some())
    }

    /// The sync ends, and the log answers.
    ///
    /// # Errors
    /// A text, if the log has failed. With `ignore_errors`, a fault of the simulator's own, a failed sync counts.
    pub fn end_batch(&mut self, ignore_errors: bool) -> Result<Vec<Answered>, String> {
        if let Some(ticket) = self.ticket.take() {
            self.log.sync().or_else(|e| if ignore_errors { Ok(()) } else { Err(e.to_string()) })?;
            self.done.push(LogDone::Written(ticket));
        }
        for request in take(&mut self.reads) {
            self.done.push(read(&self.log, request));
        }
        Ok(self.done.drain(..).map(Answered).collect())
    }

    /// An answer of the log, as an input of a round.
    pub fn log_answered(&mut self, answered: Answered) {
        match answered.0 {
            LogDone::Written(ticket) => self.member.written(ticket),
            LogDone::Read { request, result } => self.member.read(request, result),
            LogDone::Trimmed { first, early } => self.member.log_trimmed(first, early),
            LogDone::Size(bytes) => self.member.note_log_size(bytes),
            LogDone::Rescued(kept) => self.member.rescued(&kept),
            LogDone::Failed(failure) => self.member.log_failed(&failure.text),
        }
    }
}
