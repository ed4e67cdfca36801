//! The handle that front ends hold, and how a node starts and stops.

use crate::allow::AllowList;
use crate::api::*;
use crate::applier_pool::Done;
use crate::io::links::Links;
use crate::io::runtime::{Input, Runtime, state_of};
use crate::io::threads;
use crate::io::writer::Writer;
use crate::load_estimates::BatchEstimate;
use crate::member::Member;
use crate::operator::Answer;
use crate::options::PolicyChange;
use crate::pack::Packer;
use crate::queue::Deliveries;
use crate::reply::Reply;
use crate::rescued::Rescued;
use crate::status::Status;
use crate::submit::{Submission, SubmitError};
use crate::uuids::{random_uuid, timed_uuid};
use crate::wire::Hello;
use bytes::Bytes;
use lockstep_core::policy::Policy;
use lockstep_core::raft::{Config, Failpoints, Raft, RestoreBuilder};
use lockstep_core::{Entry, EntryKind, Gtid, Micros, SEQNO_UNDEFINED, Seqno, Uuid};
use lockstep_log::{Disk, Log, OpenError, Options, RealDisk, Recovered, Replay};
use lockstep_net::{Address, Reactor, TlsConfig, TlsFiles, TlsIdentity, Waker};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The port of members where an address names none.
pub const DEFAULT_PORT: u16 = 4567;
/// The largest write-set, as the server caps it.
pub const MAX_WRITESET: usize = 0x7fff_ffff;
/// So many submissions may wait for the engine; beyond it they are refused rather than queued without bound.
const INBOX_LIMIT: usize = 64 * 1024;
/// Kinds of entries of the own log that the engine knows from the start on.
pub(crate) const KEPT_AT_START: [u8; 2] = [EntryKind::Trim as u8, EntryKind::Outcome as u8];
/// What of the log may be in memory because the disk has not got it: more than any burst that a disk that works needs
/// time for, and little beside a server's memory. A disk that hangs while the process answers would fill it all.
const MAX_UNWRITTEN: usize = 256 << 20;
/// What a leader under a weak policy has answered and no majority has, stays in memory: no more than this, though
/// `async.max_at_risk` transactions may be more.
const MAX_AT_RISK: usize = 256 << 20;
/// The front end's graceful stop waits for no longer.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// How often a caller that waits long looks about.
const LOOK: Duration = Duration::from_millis(200);
/// Nor for a branch: the engine has answered by then.
const BRANCH_WAIT: Duration = Duration::from_secs(5);
/// Nobody waits longer for another policy.
const POLICY_WAIT: Duration = Duration::from_secs(1);

/// What the node's threads and the front end's share. Its locks are held for a few instructions each.
pub(crate) struct Shared {
    inbox: Mutex<Vec<Input>>,
    waker: Waker,
    pub(crate) deliveries: Deliveries,
    pub(crate) finished: Arc<AtomicI64>,
    pub(crate) delivered: AtomicI64,
    pub(crate) state: AtomicU8,
    pub(crate) primary: AtomicBool,
    pub(crate) may_originate: AtomicBool,
    pub(crate) held_back: AtomicBool,
    /// Writes of this server's clients that were refused for the policy.
    pub(crate) refused: AtomicU64,
    policy: Mutex<Policy>,
    pub(crate) cert_keys: AtomicU64,
    pub(crate) cert_window: AtomicU64,
    pub(crate) isolated: AtomicBool,
    pub(crate) hurry: AtomicUsize,
    pub(crate) stopped: AtomicBool,
    identity: Mutex<Identity>,
    histories: Mutex<Vec<Uuid>>,
    status: Mutex<Arc<Status>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Shared {
    /// Only the first input of a batch wakes `ls-node`: if the inbox is not empty, `ls-node` is awake or being woken.
    pub(crate) fn push(&self, input: Input) {
        let first = {
            let mut inbox = lock(&self.inbox);
            inbox.push(input);
            inbox.len() == 1
        };
        if first {
            self.waker.wake();
        }
    }

    pub(crate) fn take_inputs(&self, into: &mut Vec<Input>) {
        std::mem::swap(&mut *lock(&self.inbox), into);
    }

    pub(crate) fn set_history(&self, history: Uuid, log: Uuid) {
        let mut identity = lock(&self.identity);
        (identity.history, identity.log) = (history, log);
    }

    /// The position of the last delivery.
    pub(crate) fn delivered_at(&self) -> Gtid {
        Gtid { uuid: lock(&self.identity).history, seqno: self.delivered.load(Ordering::Acquire) }
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        *lock(&self.policy) = policy;
    }

    pub(crate) fn set_status(&self, status: Status) {
        *lock(&self.status) = Arc::new(status);
    }
}

/// Why a causal read has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CausalError {
    /// No primary component.
    NotPrimary,
    /// Not in time.
    Timeout,
}

struct Threads {
    node: Option<JoinHandle<()>>,
    log: Option<JoinHandle<()>>,
}

/// A running node. Clones are handles to the same one; [`Node::stop`] ends it.
#[derive(Clone)]
pub struct Node {
    shared: Arc<Shared>,
    threads: Arc<Mutex<Threads>>,
    causal_ids: Arc<AtomicU64>,
    tls_files: Option<Arc<TlsFiles>>,
    logger: Logger,
    log_end: Seqno,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({:?})", self.identity())
    }
}

/// A certificate that expires sooner is worth a warning.
const EXPIRES_SOON: Duration = Duration::from_secs(14 * 86_400);

/// Reads certificate, key and authority.
fn load_identity(files: &TlsFiles) -> Result<TlsIdentity, NodeError> {
    TlsIdentity::load(files).map_err(|e| NodeError::Setup(e.to_string()))
}

/// The identity in force from now on; logs its warning, if there is one.
fn told_identity(identity: TlsIdentity, files: &TlsFiles, logger: &Logger) -> Arc<TlsIdentity> {
    logger(
        Level::Info,
        &format!("connections between members are encrypted: TLS 1.3, {}", identity.describe()),
    );
    if let Some(warning) = identity.warning(EXPIRES_SOON) {
        logger(Level::Warn, &format!("socket.ssl_cert {}: {warning}", files.cert.display()));
    }
    Arc::new(identity)
}

/// The open log, and its recovered contents.
pub(crate) struct Opened<D: Disk> {
    pub(crate) log: Log<D>,
    pub(crate) recovered: Recovered,
    pub(crate) builder: RestoreBuilder,
    /// Its trim marks.
    pub(crate) marks: Vec<Entry>,
}

impl<D: Disk> Opened<D> {
    pub(crate) fn new(disk: &D, options: Options) -> Result<Opened<D>, OpenError> {
        let hint = lockstep_log::peek_vote(disk)?;
        let mut builder = RestoreBuilder::new(hint.map_or(0, |vote| vote.commit_hint));
        let mut marks = Vec::new();
        let mut visit = |replay: Replay| match replay {
            Replay::Base { base, .. } => {
                if base.is_empty() {
                    return Ok(());
                }
                let trouble = |e| format!("the state at the head of a segment {e}");
                builder.base(base).map_err(trouble)
            }
            Replay::Record(record) => {
                let (index, term, body) = (record.index, record.term, record.body);
                let trouble = |e| format!("entry {index} {e}");
                if body.first().is_some_and(|kind| KEPT_AT_START.contains(kind)) {
                    marks.push(Entry::decode_body(index, term, body.clone()).map_err(trouble)?);
                }
                builder.record(index, term, body).map_err(trouble)
            }
        };
        let (log, recovered) = Log::open(disk.clone(), options, &mut visit)?;
        Ok(Opened { log, recovered, builder, marks })
    }
}

impl Node {
    /// Opens the log, makes the status socket and starts the two threads. Nothing is connected yet.
    ///
    /// # Errors
    /// [`NodeError::Setup`] and [`NodeError::Log`]; nothing is left behind.
    pub fn start(config: NodeConfig) -> Result<Node, NodeError> {
        let log_dir = config.log_dir.clone().unwrap_or_else(|| config.data_dir.clone());
        let disk =
            RealDisk::with(&log_dir, config.tuning.log_direct).map_err(|e| NodeError::Log(e.to_string()))?;
        let options = Options {
            segment_bytes: config.tuning.segment_bytes,
            new_member_id: random_uuid()?.0,
            ..Options::default()
        };
        let tls = match &config.tls {
            None => {
                (config.logger)(
                    Level::Info,
                    "connections between members are not encrypted (socket.ssl is off): whoever can read or reach their \
                     network can read what is replicated, or join",
                );
                None
            }
            Some(tls) => {
                let identity = told_identity(load_identity(&tls.files)?, &tls.files, &config.logger);
                if tls.dynamic {
                    let text = "socket.dynamic is on: connections without encryption are taken, too; turn it off when all \
                                members have socket.ssl";
                    (config.logger)(Level::Info, text);
                }
                Some(TlsConfig { identity, dynamic: tls.dynamic })
            }
        };
        crate::log_quarantine::obey(&disk, &log_dir, &config, tls.clone())?;
        let opened = match Opened::new(&disk, options.clone()) {
            Err(error) if error.is_loss() && config.may_begin_anew => {
                // It may have acknowledged what it has no more, and voted: that identity must do neither again.
                let aside = lockstep_log::set_aside(&disk).map_err(|e| NodeError::Log(e.to_string()))?;
                let text = format!(
                    "this member cannot vouch for what it had acknowledged: {error}. What is left of its log is set \
                     aside as {aside}.*; it comes back under a new identity and takes from the others what it lacks"
                );
                (config.logger)(Level::Warn, &text);
                Opened::new(&disk, options)
            }
            opened => opened,
        };
        let Opened { log, recovered, builder, marks } = opened.map_err(|e| NodeError::Log(e.to_string()))?;
        if let Some(cut) = &recovered.cut {
            let text = format!(
                "the log ends in a torn write, which nobody relied on: {} is cut at {} ({})",
                cut.file, cut.offset, cut.reason
            );
            (config.logger)(Level::Info, &text);
        }
        let id = Uuid(recovered.identity.member_id);
        // Each connection of this process is a life of its own: the low bits count them.
        let incarnation = recovered.identity.incarnation << 20;
        let vote = lockstep_core::raft::Vote {
            term: recovered.vote.term,
            voted_for: recovered.vote.voted_for.map(Uuid),
        };
        let restored = builder.finish(vote);
        let seed = u64::from_le_bytes(random_uuid()?.0[..8].try_into().unwrap_or_default());
        let tuning = config.tuning.clone();
        let order = Raft::new(
            Config {
                id,
                incarnation,
                heartbeat: tuning.heartbeat.as_micros() as Micros,
                election_timeout: tuning.election_timeout.as_micros() as Micros,
                segment_bytes: tuning.segment_bytes,
                max_append_bytes: 1 << 20,
                max_inflight_bytes: 16 << 20,
                cache_bytes: 64 << 20,
                max_unwritten_bytes: MAX_UNWRITTEN,
                max_at_risk_bytes: MAX_AT_RISK,
                seed,
                failpoints: Failpoints::default(),
            },
            restored,
            0,
        );
        let view_uuid = timed_uuid()?;
        let me = Hello { incarnation, ..Hello::without_log(&config, id, view_uuid) };
        let log_end = match order.last_index() {
            0 => SEQNO_UNDEFINED,
            _ => order.tail_state().seqno,
        };
        let finished = Arc::new(AtomicI64::new(SEQNO_UNDEFINED));
        let mut engine = Member::new(order, me, tuning, finished.clone(), 0);
        engine.set_commit_barrier(config.hold.clone());
        let found = Rescued::of_start(&disk, &config.logger);
        engine.rescued_before(found.files.len() as u64, found.transactions);
        for entry in &marks {
            engine.remember(entry);
        }

        let mut net = lockstep_net::Config::new("", engine.introduction().to_bytes(), seed);
        // The largest entry must fit into a frame, and a few of them into a queue.
        net.proto.max_frame = 192 << 20;
        net.proto.send_queue_max = 512 << 20;
        net.tls = tls;
        let mut reactor =
            Reactor::new(net).map_err(|e| NodeError::Setup(format!("the network cannot be used: {e}")))?;
        let listen = Address::parse(&config.listen, DEFAULT_PORT)
            .map_err(|e| NodeError::Setup(format!("the listen address {} is wrong: {e}", config.listen)))?;
        let socket = config.data_dir.join("lockstep.sock");
        if let Err(error) = reactor.serve_unix(&socket) {
            let text = format!("no status socket: {error}; `lockstep status` will not work here");
            (config.logger)(Level::Warn, &text);
        }
        if let Some(address) = &config.status_address {
            let address = Address::parse(address, 0)
                .map_err(|e| NodeError::Setup(format!("status.address {address} is wrong: {e}")))?;
            reactor.serve_tcp(&address).map_err(|e| NodeError::Setup(format!("status.address: {e}")))?;
        }
        let introduction = engine.introduction();
        let (history, log_id) = (introduction.history, introduction.log_id);
        let histories = engine.own_histories();
        let shared = Arc::new(Shared {
            inbox: Mutex::new(Vec::new()),
            waker: reactor.waker(),
            deliveries: Deliveries::default(),
            finished,
            delivered: AtomicI64::new(SEQNO_UNDEFINED),
            state: AtomicU8::new(0),
            may_originate: AtomicBool::new(true),
            held_back: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            policy: Mutex::new(config.tuning.policy),
            primary: AtomicBool::new(false),
            cert_keys: AtomicU64::new(0),
            cert_window: AtomicU64::new(0),
            isolated: AtomicBool::new(false),
            hurry: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            identity: Mutex::new(Identity { member: id, view_uuid, history, log: log_id }),
            histories: Mutex::new(histories),
            status: Mutex::new(Arc::new(Status::default())),
        });
        let (log_jobs, jobs) = mpsc::channel();
        let log_bytes = log.bytes();
        let runtime = Runtime {
            engine,
            reactor,
            shared: shared.clone(),
            log_jobs,
            log_later: Vec::new(),
            packer: Packer::default(),
            logger: config.logger.clone(),
            listen,
            origin: Instant::now(),
            links: Links::default(),
            listening: false,
            log_bytes,
            published: 0,
            connecting: None,
            leaving: Vec::new(),
            causal: BTreeMap::new(),
            commands: BTreeMap::new(),
            commands_given: 0,
            asking: BTreeMap::new(),
            asked_within: BTreeMap::new(),
            log_dir,
            // It begins a segment, and its server wants some, too.
            room: 2 * config.tuning.segment_bytes,
            front_end_stats: config.front_end_stats.clone(),
            commit_hinted: 0,
            hinted_at: 0,
            state_since: 0,
            isolated: false,
            progress: config.progress.clone(),
            event: config.event.clone(),
            policy_changed: config.policy_changed.clone(),
            end_server: config.end_server.clone(),
            allow: AllowList::new(config.allowed.clone()),
            named: BTreeSet::new(),
            encrypts: config.tls.is_some(),
            nudge_at: None,
            company: BatchEstimate::default(),
            wishing: Vec::new(),
        };
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.into())
                .spawn(body)
                .map_err(|e| NodeError::Setup(format!("thread {name} cannot be started: {e}")))
        };
        let begins = config.thread_begins.unwrap_or(|| ());
        let (to_node, logger) = (shared.clone(), config.logger.clone());
        let log_thread = spawn(
            "ls-log",
            Box::new(move || {
                begins();
                threads::log(Writer::new(log), &jobs, &to_node, &logger);
            }),
        )?;
        let (own, logger) = (shared.clone(), config.logger.clone());
        let node_thread = spawn(
            "ls-node",
            Box::new(move || {
                begins();
                threads::node(runtime, &own, &logger);
            }),
        )?;
        Ok(Node {
            shared,
            threads: Arc::new(Mutex::new(Threads { node: Some(node_thread), log: Some(log_thread) })),
            causal_ids: Arc::new(AtomicU64::new(1)),
            tls_files: config.tls.map(|tls| Arc::new(tls.files)),
            logger: config.logger,
            log_end,
        })
    }

    fn push(&self, input: Input) {
        self.shared.push(input);
        if self.shared.stopped.load(Ordering::Acquire) {
            self.shared.take_inputs(&mut Vec::new());
        }
    }

    /// Joins or founds a cluster: returns when this member is in the log of a primary component. Deliveries begin
    /// with [`Delivery::Connected`].
    ///
    /// # Errors
    /// [`NodeError`]; the node is not connected then, and may be asked again.
    pub fn connect(&self, args: ConnectArgs) -> Result<(), NodeError> {
        self.connect_and(args, || {})
    }

    /// As [`Node::connect`]; calls `look` a few times a second while it waits.
    ///
    /// # Errors
    /// As [`Node::connect`].
    pub fn connect_and(&self, args: ConnectArgs, look: impl Fn()) -> Result<(), NodeError> {
        let (view_uuid, history) = (timed_uuid()?, random_uuid()?);
        lock(&self.shared.identity).view_uuid = view_uuid;
        let patience = args.timeout + Duration::from_secs(5);
        let waits = args.waits_for_others;
        self.shared.finished.store(args.position.seqno.max(SEQNO_UNDEFINED), Ordering::Release);
        let reply = Reply::new();
        self.push(Input::Connect { args: Box::new(args), view_uuid, history, reply: reply.clone() });
        loop {
            match reply.wait_and(patience, LOOK, &look) {
                Some(result) => return result,
                None if waits && !self.shared.stopped.load(Ordering::Acquire) => {}
                None => return Err(NodeError::State("the node does not answer; see its log lines")),
            }
        }
    }

    /// Leaves in good order: hands over leadership, gives up the vote, closes. Bounded. Deliveries end with a
    /// Disconnected view.
    pub fn disconnect(&self) {
        let reply = Reply::new();
        self.push(Input::Disconnect { reply: reply.clone() });
        if !self.shared.stopped.load(Ordering::Acquire) {
            reply.wait(STOP_PATIENCE);
        }
    }

    /// Ends the threads. Call [`Node::disconnect`] before, or the others take this for a crash.
    pub fn stop(&self) {
        self.push(Input::Stop);
        let mut threads = lock(&self.threads);
        for thread in [threads.node.take(), threads.log.take()].into_iter().flatten() {
            let _ = thread.join();
        }
    }

    /// The next delivery, first in, first out. `None` after `timeout`; [`Delivery::Closed`] for ever after the end.
    /// `last`: the write-set that this thread took before, and how long it has kept it, by which is judged how many threads
    /// to wake. A thread that has told so of one must do so of each, or say [`Node::gone`].
    pub fn next(&self, timeout: Option<Duration>, last: Option<Done>) -> Option<Delivery> {
        let delivery = self.shared.deliveries.next(timeout, last, || self.shared.waker.wake());
        // The queue may have been full: deliver the remaining entries of the log.
        if self.shared.deliveries.is_half_full() {
            self.shared.waker.wake();
        }
        delivery
    }

    /// The thread that took this write-set takes nothing any more.
    pub fn gone(&self, seqno: Seqno) {
        self.shared.deliveries.gone(seqno);
    }

    /// Loss of the majority and failure of the node overtake what waits. A thread that cannot go on with the delivery
    /// in its hands (paused, or others come first) polls here; the returned delivery must be handled first. `alone`: the
    /// delivery in its hands is exclusive. [`Node::handled`] is called only for one that is not.
    pub fn overtaking(&self, alone: bool) -> Option<Delivery> {
        self.overtakes().then(|| self.shared.deliveries.overtaking(alone)).flatten()
    }

    /// Whether something overtakes what has been taken.
    pub fn overtakes(&self) -> bool {
        self.shared.deliveries.overtakes()
    }

    /// Whether the majority was lost after a delivery was taken: one that is to be handled alone waits until it is
    /// back, [`Delivery::Synced`] is void.
    pub fn is_held(&self) -> bool {
        self.shared.deliveries.is_held()
    }

    /// The members of the present view and their states. `None` if the node does not answer.
    pub fn membership(&self) -> Option<MembershipNow> {
        let reply = Reply::new();
        self.push(Input::Membership(reply.clone()));
        match self.shared.stopped.load(Ordering::Acquire) {
            true => None,
            false => reply.wait(Duration::from_secs(2)),
        }
    }

    /// This member's server could not apply `seqno`, and says this error: asks the others, and waits in its place for what
    /// they say, at most for `patience` (`None`: as long as it takes). If they answer after that, and have had no such
    /// error, [`Delivery::Inconsistent`] follows.
    pub fn vote(&self, seqno: Seqno, error: &[u8], patience: Option<Duration>) -> Vote {
        let opinion = lockstep_core::vote::opinion(error);
        let end = error.iter().position(|byte| *byte == 0).unwrap_or(error.len());
        let text = String::from_utf8_lossy(&error[..end]).into_owned();
        let slot = Reply::new();
        self.push(Input::Vote { seqno, opinion, text, reply: VoteReply(slot.clone()) });
        let until = patience.map(|patience| Instant::now() + patience);
        loop {
            let left =
                until.map_or(Duration::from_secs(1), |at| at.saturating_duration_since(Instant::now()));
            if let Some(answer) = slot.wait(left.min(Duration::from_secs(1))) {
                return answer;
            }
            if self.shared.stopped.load(Ordering::Acquire) {
                return Vote::NoOutcome;
            }
            if until.is_some_and(|at| Instant::now() >= at) {
                // In the same moment the answer may have come.
                return slot.give_up().unwrap_or(Vote::Open);
            }
        }
    }

    /// This member has found its result of `seqno` in an earlier life: it is not judged by it again. Before the seqno has
    /// finished.
    pub fn found_before(&self, seqno: Seqno) {
        self.push(Input::FoundBefore(seqno));
    }

    /// What [`Node::next`] returned last that is not a write-set has been handled: others may be taken.
    pub fn handled(&self) {
        self.shared.deliveries.handled();
    }

    /// Hands a write-set or statement (as `WriteSetBuilder` made it) to the log.
    ///
    /// # Errors
    /// [`SubmitError`]: it has gone nowhere.
    pub fn submit(&self, kind: EntryKind, payload: Bytes) -> Result<Submission, SubmitError> {
        self.submit_as(Submission::new(), kind, payload)
    }

    /// As `submit`, without a waiting thread: the entry is delivered like one of another member.
    ///
    /// # Errors
    /// [`SubmitError`]: it was not sent.
    pub fn submit_unattended(&self, kind: EntryKind, payload: Bytes) -> Result<(), SubmitError> {
        self.submit_as(Submission::unattended(), kind, payload).map(|_| ())
    }

    fn submit_as(
        &self,
        submission: Submission,
        kind: EntryKind,
        payload: Bytes,
    ) -> Result<Submission, SubmitError> {
        if self.shared.stopped.load(Ordering::Acquire) {
            return Err(SubmitError::Closed);
        }
        if !self.shared.primary.load(Ordering::Acquire) {
            return Err(SubmitError::NotPrimary);
        }
        if payload.len() > MAX_WRITESET {
            return Err(SubmitError::TooLarge);
        }
        if lock(&self.shared.inbox).len() > INBOX_LIMIT {
            return Err(SubmitError::Busy);
        }
        self.push(Input::Submit { kind, payload, submission: submission.filler() });
        Ok(submission)
    }

    /// Everything up to this seqno has finished in the server. Never goes back.
    pub fn finished(&self, seqno: Seqno) {
        self.shared.finished.fetch_max(seqno, Ordering::AcqRel);
    }

    /// A read that must see all that was acknowledged before it, by anyone: returns the seqno that must have finished
    /// first.
    ///
    /// # Errors
    /// [`CausalError`].
    pub fn causal(&self, timeout: Duration) -> Result<Seqno, CausalError> {
        if !self.is_primary() {
            return Err(CausalError::NotPrimary);
        }
        let id = self.causal_ids.fetch_add(1, Ordering::Relaxed);
        let reply = Reply::new();
        self.push(Input::Causal { id, reply: reply.clone() });
        match reply.wait(timeout) {
            Some(Some(seqno)) => Ok(seqno),
            Some(None) => Err(CausalError::NotPrimary),
            None => {
                self.push(Input::CausalCancelled(id));
                Err(CausalError::Timeout)
            }
        }
    }

    /// The server's answer to [`Delivery::StateNeeded`]; `donor` as in `wsrep_sst_donor`.
    pub fn request_state(&self, request: Bytes, donor: &str) {
        self.push(Input::RequestState { request, donor: donor.to_string() });
    }

    /// The joiner's database now stands here (or the transfer failed with this error number).
    pub fn state_received(&self, result: Result<Gtid, i32>) {
        if let Ok(gtid) = &result {
            self.shared.finished.store(gtid.seqno, Ordering::Release);
            self.shared.deliveries.filled();
        }
        self.push(Input::StateReceived(result));
    }

    /// The donation `id` has ended.
    pub fn donation_done(&self, id: u64, result: Result<Gtid, i32>) {
        self.push(Input::DonationDone { id, result });
    }

    /// Desynced until as many [`Node::resync`]s.
    pub fn desync(&self) {
        self.push(Input::Desync);
    }

    /// Undoes one [`Node::desync`].
    pub fn resync(&self) {
        self.push(Input::Resync);
    }

    /// Cuts this member off from the others, or lets it back. May be called from a signal handler.
    pub fn isolate(&self, on: bool) {
        self.shared.isolated.store(on, Ordering::Release);
        self.shared.waker.wake();
    }

    /// An applier waits for a lock that a thread in [`Submission::wait`] holds: until as many [`Node::hurried`], a
    /// full queue of deliveries does not keep `ls-node` from going on to that thread's place.
    pub fn hurry(&self) {
        self.shared.hurry.fetch_add(1, Ordering::AcqRel);
        self.shared.waker.wake();
    }

    /// Undoes one [`Node::hurry`].
    pub fn hurried(&self) {
        self.shared.hurry.fetch_sub(1, Ordering::AcqRel);
    }

    /// Requests another policy and waits a short time until it is in force: the caller holds a lock that all sessions of
    /// the server need. Returns whether it is in force; if not, the request is still pending, and a log line reports the
    /// outcome.
    ///
    /// # Errors
    /// The reason of a refusal: a line for people.
    pub fn change_policy(&self, change: PolicyChange) -> Result<bool, String> {
        let reply = Reply::new();
        self.push(Input::Policy { change, reply: reply.clone() });
        match reply.wait(POLICY_WAIT) {
            Some(result) => result.map(|()| true),
            None => Ok(false),
        }
    }

    /// The policy in force.
    pub fn policy(&self) -> Policy {
        *lock(&self.shared.policy)
    }

    /// Whether this member's log counts for majorities, as of at most 0.2 s ago.
    pub fn votes(&self) -> bool {
        let status = self.status();
        status.members.iter().any(|m| m.id == status.own.id && m.role != "learner")
    }

    /// Whether this member's server may write: under `async` and `semisync` the leader's alone.
    pub fn may_originate(&self) -> bool {
        self.shared.may_originate.load(Ordering::Acquire)
    }

    /// A client's write was refused because this member's server may not write: the leader is to know that clients are here.
    pub fn note_refused(&self) {
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether entries are kept from this member's server (`apply.paused`, `apply.delay`, `apply.until`), so that it may
    /// not write.
    pub fn is_held_back(&self) -> bool {
        self.shared.held_back.load(Ordering::Acquire)
    }

    /// Founds a branch without the majority, by an operator's order (`pc.bootstrap`). Returns the result within 5 s, because
    /// the caller holds a lock that all sessions of the server need.
    pub fn bootstrap(&self) -> Answer {
        let reply = Reply::new();
        self.push(Input::Bootstrap(reply.clone()));
        let text = || "this member does not answer: look at its log".to_owned();
        reply.wait(BRANCH_WAIT).unwrap_or_else(|| Answer {
            ok: false,
            text: text(),
            seconds: 0.0,
            held: None,
        })
    }

    /// The histories that the database of this log may be found with: the log's own, and those before branches that this
    /// member has founded.
    pub fn histories(&self) -> Vec<Uuid> {
        lock(&self.shared.histories).clone()
    }

    /// The server is inconsistent: out of the cluster, refuse everything.
    pub fn fail(&self, reason: &str) {
        self.push(Input::Fail(reason.to_string()));
    }

    /// Makes `ls-node` panic, for tests.
    pub fn panic(&self) {
        self.push(Input::Panic);
    }

    /// Other timing and sizes, from now on. The segment size: from the next start on.
    pub fn set_tuning(&self, tuning: Tuning) {
        self.push(Input::Tuning(Box::new(tuning)));
    }

    /// Reads certificate, key and authority again (`socket.ssl_reload`), on the caller's thread: they count for
    /// connections made from now on. Does nothing where connections are not encrypted.
    ///
    /// # Errors
    /// [`NodeError::Setup`]: the files are unusable; the loaded ones stay in force.
    pub fn reload_tls(&self) -> Result<(), NodeError> {
        if let Some(files) = &self.tls_files {
            // At a start there is nothing better; here there is what is in force.
            let identity = load_identity(files)?;
            if let Some(why) = identity.distrusted() {
                let cert = files.cert.display();
                return Err(NodeError::Setup(format!(
                    "socket.ssl_cert {cert}: {why}: other members would refuse it"
                )));
            }
            self.push(Input::Identity(told_identity(identity, files, &self.logger)));
        }
        Ok(())
    }

    /// `wsrep_local_state`.
    pub fn state(&self) -> LocalState {
        state_of(self.shared.state.load(Ordering::Acquire))
    }

    /// Whether there is a primary component.
    pub fn is_primary(&self) -> bool {
        self.shared.primary.load(Ordering::Acquire)
    }

    /// This member's identity.
    pub fn identity(&self) -> Identity {
        *lock(&self.shared.identity)
    }

    /// The history of the own log; nil while there is none.
    pub fn history(&self) -> Uuid {
        self.identity().history
    }

    /// The last seqno that the own log held when this node was started; −1 where it was empty. No earlier process on this
    /// log was handed anything beyond it.
    pub fn log_end(&self) -> Seqno {
        self.log_end
    }

    /// The last seqno that was handed to the server, −1 before the first.
    pub fn last_committed(&self) -> Seqno {
        self.shared.delivered.load(Ordering::Acquire)
    }

    /// Keys in the certification index, and seqnos it looks back over.
    pub fn certification(&self) -> (u64, u64) {
        (self.shared.cert_keys.load(Ordering::Relaxed), self.shared.cert_window.load(Ordering::Relaxed))
    }

    /// How many deliveries wait for a thread.
    pub fn queued(&self) -> usize {
        self.shared.deliveries.len()
    }

    /// The last snapshot, not older than a fraction of a second while the node lives.
    pub fn status(&self) -> Arc<Status> {
        lock(&self.shared.status).clone()
    }
}
