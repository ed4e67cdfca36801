//! The handle that front ends hold.

use crate::api::*;
use crate::applier_pool::Done;
use crate::io::inbox::Input;
use crate::io::shared::Shared;
use crate::io::start::{Started, start};
use crate::io::tls::{announce_identity, load_identity};
use crate::operator::Answer;
use crate::options::PolicyChange;
use crate::reply::Reply;
use crate::status::Status;
use crate::submit::{NoticeCall, Submission, SubmitError};
use crate::uuids::{random_uuid, timed_uuid};
use bytes::Bytes;
use lockstep_core::policy::Policy;
use lockstep_core::{EntryKind, Gtid, SEQNO_UNDEFINED, Seqno, Uuid};
use lockstep_net::TlsFiles;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The largest write-set, as the server caps it.
pub const MAX_WRITESET: usize = 0x7fff_ffff;
/// The most submissions that may wait for `ls-node`. More are refused.
const INBOX_LIMIT: usize = 64 * 1024;
/// The longest wait of a graceful stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a waiting caller calls its callback.
const LOOK: Duration = Duration::from_millis(200);
/// The longest wait for a new branch. `ls-node` has answered by then.
const BRANCH_WAIT: Duration = Duration::from_secs(5);
/// The longest wait for a change of policy.
const POLICY_WAIT: Duration = Duration::from_secs(1);

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

impl Node {
    /// Opens the log, makes the status socket and starts the two threads. Nothing is connected yet.
    ///
    /// # Errors
    /// [`NodeError::Setup`] and [`NodeError::Log`]; nothing is left behind.
    pub fn start(config: NodeConfig) -> Result<Node, NodeError> {
        let tls_files = config.tls.as_ref().map(|tls| Arc::new(tls.files.clone()));
        let logger = config.logger.clone();
        let Started { shared, node_thread, log_thread, log_end } = start(config)?;
        Ok(Node {
            shared,
            threads: Arc::new(Mutex::new(Threads { node: Some(node_thread), log: Some(log_thread) })),
            causal_ids: Arc::new(AtomicU64::new(1)),
            tls_files,
            logger,
            log_end,
        })
    }

    fn push(&self, input: Input) {
        self.shared.inbox.push(input);
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
        self.shared.published.set_view_uuid(view_uuid);
        let limit = args.timeout + Duration::from_secs(5);
        let waits = args.waits_for_others;
        self.shared.signals.reset_finished(args.position.seqno.max(SEQNO_UNDEFINED));
        let reply = Reply::new();
        self.push(Input::Connect { args: Box::new(args), view_uuid, history, reply: reply.clone() });
        loop {
            match reply.wait_and(limit, LOOK, &look) {
                Some(result) => return result,
                None if waits && !self.shared.inbox.is_stopped() => {}
                None => return Err(NodeError::State("the node does not answer; see its log lines")),
            }
        }
    }

    /// Leaves in good order: hands over leadership, gives up the vote, closes. Bounded. Deliveries end with a
    /// Disconnected view.
    pub fn disconnect(&self) {
        let reply = Reply::new();
        self.push(Input::Disconnect { reply: reply.clone() });
        if !self.shared.inbox.is_stopped() {
            reply.wait(STOP_TIMEOUT);
        }
    }

    /// Ends the threads. Call [`Node::disconnect`] before, or the others take this for a crash.
    pub fn stop(&self) {
        self.push(Input::Stop);
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in [threads.node.take(), threads.log.take()].into_iter().flatten() {
            let _ = thread.join();
        }
    }

    /// The next delivery, first in, first out. `None` after `timeout`; always [`Delivery::Closed`] after the end. `last`: the
    /// write-set that this thread took before, and its time, which decides how many threads are woken. A thread that passes
    /// it once must pass it for each write-set, or call [`Node::gone`].
    pub fn next(&self, timeout: Option<Duration>, last: Option<Done>) -> Option<Delivery> {
        let delivery = self.shared.deliveries.next(timeout, last, || self.shared.inbox.wake());
        // The queue may have been full: deliver the remaining entries of the log.
        if self.shared.deliveries.is_half_full() {
            self.shared.inbox.wake();
        }
        delivery
    }

    /// The thread that took this write-set takes no more deliveries.
    pub fn gone(&self, seqno: Seqno) {
        self.shared.deliveries.gone(seqno);
    }

    /// Loss of the majority and failure of the node overtake queued deliveries. A thread whose taken delivery must wait
    /// (paused, or others come first) polls here, and handles the returned delivery first. `alone`: the taken delivery is
    /// exclusive; then [`Node::handled`] is not called for the returned one.
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
        match self.shared.inbox.is_stopped() {
            true => None,
            false => reply.wait(Duration::from_secs(2)),
        }
    }

    /// This member's server could not apply `seqno`, with this error. Starts a vote, and waits for its outcome for at most
    /// `timeout` (`None`: without limit). If the other members report success later, [`Delivery::Inconsistent`] follows.
    pub fn vote(&self, seqno: Seqno, error: &[u8], timeout: Option<Duration>) -> Vote {
        let opinion = lockstep_core::vote::opinion(error);
        let end = error.iter().position(|byte| *byte == 0).unwrap_or(error.len());
        let text = String::from_utf8_lossy(&error[..end]).into_owned();
        let slot = Reply::new();
        self.push(Input::Vote { seqno, opinion, text, reply: VoteReply(slot.clone()) });
        let until = timeout.map(|time| Instant::now() + time);
        loop {
            let left =
                until.map_or(Duration::from_secs(1), |at| at.saturating_duration_since(Instant::now()));
            if let Some(answer) = slot.wait(left.min(Duration::from_secs(1))) {
                return answer;
            }
            if self.shared.inbox.is_stopped() {
                return Vote::NoOutcome;
            }
            if until.is_some_and(|at| Instant::now() >= at) {
                // In the same moment the answer may have come.
                return slot.give_up().unwrap_or(Vote::Open);
            }
        }
    }

    /// A former process of this member had its result of `seqno` already, so no vote is held on it again. Call this before the
    /// seqno has finished.
    pub fn found_before(&self, seqno: Seqno) {
        self.push(Input::FoundBefore(seqno));
    }

    /// This member's server has executed a statement in total order, with this error or none, and no other member has had
    /// another result. `own`: of this member's client. The result goes into the log, for its readers ([`FrontEnd::Reader`]).
    pub fn statement_executed(&self, seqno: Seqno, error: &[u8], own: bool) {
        let end = error.iter().position(|byte| *byte == 0).unwrap_or(error.len());
        let text = String::from_utf8_lossy(&error[..end]).into_owned();
        let result = StatementResult { seqno, error: Some(text).filter(|text| !text.is_empty()) };
        self.push(Input::StatementExecuted(result, own));
    }

    /// The front end has handled the last exclusive delivery of [`Node::next`]. Further deliveries may be taken.
    pub fn handled(&self) {
        self.shared.deliveries.handled();
    }

    /// Submits a write-set or statement, as `WriteSetBuilder` made it.
    ///
    /// # Errors
    /// [`SubmitError`]: it was not sent.
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

    /// As `submit_unattended`; calls `call` if there is something to say before the entry is delivered. For
    /// [`FrontEnd::Device`].
    ///
    /// # Errors
    /// [`SubmitError`]: it was not sent, and `call` is not called.
    pub fn submit_with(&self, kind: EntryKind, payload: Bytes, call: NoticeCall) -> Result<(), SubmitError> {
        self.submit_as(Submission::notifying(call), kind, payload).map(|_| ())
    }

    fn submit_as(
        &self,
        submission: Submission,
        kind: EntryKind,
        payload: Bytes,
    ) -> Result<Submission, SubmitError> {
        if self.shared.inbox.is_stopped() {
            return Err(SubmitError::Closed);
        }
        if !self.shared.published.is_primary() {
            return Err(SubmitError::NotPrimary);
        }
        if payload.len() > MAX_WRITESET {
            return Err(SubmitError::TooLarge);
        }
        if self.shared.inbox.len() > INBOX_LIMIT {
            return Err(SubmitError::Busy);
        }
        self.push(Input::Submit { kind, payload, submission: submission.filler() });
        Ok(submission)
    }

    /// Everything up to this seqno has finished in the server. Never goes back.
    pub fn finished(&self, seqno: Seqno) {
        self.shared.signals.finished(seqno);
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
            self.shared.signals.reset_finished(gtid.seqno);
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
        self.shared.signals.isolate(on);
        self.shared.inbox.wake();
    }

    /// An applier waits for a lock that a thread in [`Submission::wait`] holds. Until the matching [`Node::hurried`],
    /// `ls-node` delivers also to a full queue, so that it reaches the entry of that thread.
    pub fn hurry(&self) {
        self.shared.signals.hurry();
        self.shared.inbox.wake();
    }

    /// Undoes one [`Node::hurry`].
    pub fn hurried(&self) {
        self.shared.signals.hurried();
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
        self.shared.published.policy()
    }

    /// Whether this member's log counts for majorities, as of at most 0.2 s ago.
    pub fn votes(&self) -> bool {
        let status = self.status();
        status.members.iter().any(|m| m.id == status.own.id && m.role != "learner")
    }

    /// Whether this member's server may write: under `async` and `semisync` the leader's alone.
    pub fn may_originate(&self) -> bool {
        self.shared.published.may_originate()
    }

    /// A client's write was refused because this member's server may not write: the leader is to know that clients are here.
    pub fn note_refused(&self) {
        self.shared.signals.count_refused();
    }

    /// Whether entries are kept from this member's server (`apply.paused`, `apply.delay`, `apply.until`), so that it may
    /// not write.
    pub fn is_held_back(&self) -> bool {
        self.shared.published.is_held_back()
    }

    /// The limit of `apply.pace` for transactions of this member's clients, if there is one now.
    pub fn pace(&self) -> Option<Pace> {
        self.shared.published.pace()
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
        self.shared.published.histories()
    }

    /// The server is inconsistent: out of the cluster, refuse everything.
    pub fn fail(&self, reason: &str) {
        self.push(Input::Fail(reason.to_string()));
    }

    /// The server cannot apply an entry that a new process applies: it leaves the cluster in order, and then its process
    /// ends. Without effect on the process if it leaves already.
    pub fn repeat_from_log(&self, reason: &str) {
        self.push(Input::RepeatFromLog(reason.to_string()));
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
            self.push(Input::Identity(announce_identity(identity, files, &self.logger)));
        }
        Ok(())
    }

    /// `wsrep_local_state`.
    pub fn state(&self) -> LocalState {
        self.shared.published.state()
    }

    /// Whether there is a primary component.
    pub fn is_primary(&self) -> bool {
        self.shared.published.is_primary()
    }

    /// For a device: a copy with every entry up to this seqno has all that was committed [`crate::LIVE_FOR`] ago. `None`: that is
    /// not known, because no majority has answered lately, or this process or its machine was stopped.
    pub fn confirmed(&self) -> Option<Seqno> {
        self.shared.published.confirmed()
    }

    /// This member's identity.
    pub fn identity(&self) -> Identity {
        self.shared.published.identity()
    }

    /// The position in the present history, if this member has it from before a branch that it founded (`lockstep bootstrap`);
    /// otherwise as it is.
    pub fn in_present_history(&self, position: Gtid) -> Gtid {
        self.shared.published.in_present_history(position)
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
        self.shared.published.delivered()
    }

    /// Whether the log has lost the transaction that was given this seqno: another leader has taken over under a weak
    /// policy.
    pub fn has_lost(&self, seqno: Seqno) -> bool {
        self.shared.published.is_lost(seqno)
    }

    /// Keys in the certification index, and seqnos it looks back over.
    pub fn certification(&self) -> (u64, u64) {
        self.shared.published.certification()
    }

    /// How many deliveries wait for a thread.
    pub fn queued(&self) -> usize {
        self.shared.deliveries.len()
    }

    /// The last snapshot, not older than a fraction of a second while the node lives.
    pub fn status(&self) -> Arc<Status> {
        self.shared.published.status()
    }
}
