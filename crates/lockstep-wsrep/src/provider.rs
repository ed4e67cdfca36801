//! The provider: one per process, from `init` to `free`. It routes the server's calls to its components.

use crate::apply::remote_turn;
use crate::context::Context;
use crate::guard::{InjectedPanic, guarded};
use crate::lifecycle::option_sync::{self, OptionSync};
use crate::lifecycle::receivers::Receivers;
use crate::lifecycle::settings::Settings;
use crate::lifecycle::state_transfer::StateTransfer;
use crate::lifecycle::{control, option_change, state_files};
use crate::trx::local::{self, LocalTransactions};
use crate::trx::table::Handle;
use lockstep_abi::*;
use lockstep_node::options::Options;
use lockstep_node::{LocalState, Node, ViewInfo, ViewStatus};
use std::ffi::CString;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a client that gets the OK of a transaction of the other members waits at most: a server that leaves takes queries
/// for some milliseconds.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(10);

/// The provider's capabilities, without the optional one.
const CAPABILITIES: Capabilities = CAP_MULTI_MASTER
    | CAP_CERTIFICATION
    | CAP_PARALLEL_APPLYING
    | CAP_TRX_REPLAY
    | CAP_ISOLATION
    | CAP_PAUSE
    | CAP_CAUSAL_READS
    | CAP_INCREMENTAL_WRITESET
    | CAP_UNORDERED
    | CAP_ANNOTATION;

/// The provider's capabilities, reported in every view. Without that of streaming the server refuses
/// `wsrep_trx_fragment_size`. Fragments are replicated nevertheless: of other members, and of a server that splits `LOAD
/// DATA` (`wsrep_load_data_splitting`), which does not look at the capability.
pub(crate) fn capabilities(settings: &Settings) -> Capabilities {
    CAPABILITIES | if settings.streams() { CAP_STREAMING } else { 0 }
}

/// See the module. Usable from any thread.
pub(crate) struct Provider {
    cx: Context,
    local: LocalTransactions,
    receivers: Receivers,
    transfer: StateTransfer,
    option_sync: OptionSync,
    injected: InjectedPanic,
}

impl Provider {
    pub(crate) fn new(cx: Context) -> Provider {
        Provider {
            cx,
            local: LocalTransactions::default(),
            receivers: Receivers::default(),
            transfer: StateTransfer::default(),
            option_sync: OptionSync::default(),
            injected: InjectedPanic::default(),
        }
    }

    /// The components that every call needs.
    pub(crate) fn cx(&self) -> &Context {
        &self.cx
    }

    /// Runs one step of the provider; a panic in it fails this member.
    pub(crate) fn step<T>(&self, what: &str, step: impl FnOnce() -> T) -> Option<T> {
        match guarded(|| {
            self.injected.here(what);
            step()
        }) {
            Ok(value) => Some(value),
            Err(panicked) => {
                self.cx.fail(&format!("an error in the program, in {what}: {}", panicked.0));
                None
            }
        }
    }

    /// Panics if a test has requested it for this place.
    pub(crate) fn panic_if_injected(&self, place: &str) {
        self.injected.here(place);
    }

    /// The state that the server reports. Until the server knows that it is synced, it takes no queries.
    pub(crate) fn reported_state(&self) -> LocalState {
        match self.cx.local_state() {
            LocalState::Synced if !self.receivers.is_synced() => LocalState::Joined,
            state => state,
        }
    }

    /// `wsrep_local_state_comment`.
    pub(crate) fn state_comment(&self) -> &'static str {
        match self.reported_state() {
            LocalState::Joining if !self.transfer.awaits_state() => "Joining",
            state => lockstep_node::state_comment(state),
        }
    }

    /// Whether the server is connected, or `connect` is in progress.
    pub(crate) fn is_connected(&self) -> bool {
        self.receivers.is_open()
    }

    /// `connect` is about to start the connection, at `position`. `donor`: the donors that the server prefers.
    pub(crate) fn begin_connection(&self, position: lockstep_node::core::Gtid, donor: &str) {
        self.transfer.set_donor(donor);
        self.cx.sequence.set_position(position.seqno);
        self.cx.identity.connecting(position.uuid);
        self.receivers.open();
    }

    /// The connection could not be started.
    pub(crate) fn connection_failed(&self) {
        self.receivers.open_failed();
    }

    /// See [`Receivers::wait_until_closed`].
    pub(crate) fn wait_until_closed(&self, until: Instant, poll: impl FnMut()) -> bool {
        self.receivers.wait_until_closed(until, poll)
    }

    /// No delivery follows.
    pub(crate) fn close_connection(&self) {
        self.receivers.close();
    }

    /// `options_set`: changes all options in `text`, or none.
    pub(crate) fn set_options(&self, text: &str) -> Status {
        option_change::set_options(&self.cx, &self.injected, self.is_connected(), text)
    }

    /// `certify`.
    ///
    /// # Safety
    /// `handle.opaque` is as this provider set it.
    pub(crate) unsafe fn certify(
        &self,
        conn: ConnId,
        handle: &mut WsHandle,
        flags: u32,
        meta: &mut TrxMeta,
        in_order: impl FnOnce(),
    ) -> Status {
        // SAFETY: by this function's contract.
        unsafe { self.local.certify(&self.cx, conn, handle, flags, meta, in_order) }
    }

    /// `release`.
    ///
    /// # Safety
    /// `handle.opaque` is as this provider set it.
    pub(crate) unsafe fn release(&self, handle: &mut WsHandle) -> Status {
        // SAFETY: by this function's contract.
        unsafe { self.local.release(&self.cx, handle) }
    }

    /// `abort_certification`. Never blocks.
    pub(crate) fn abort(&self, by: Seqno, victim: TrxId) -> (Status, Seqno) {
        self.local.abort(&self.cx, by, victim)
    }

    /// `rollback`: sends a rollback fragment. Does not wait for it.
    pub(crate) fn rollback(&self, id: TrxId, data: &[u8]) -> Status {
        self.local.rollback(&self.cx, id, data)
    }

    /// `commit_order_enter`.
    ///
    /// # Safety
    /// `handle.opaque` is as this provider set it.
    pub(crate) unsafe fn commit_order_enter(&self, handle: &WsHandle) -> Status {
        // SAFETY: by this function's contract.
        match unsafe { self.cx.trxs.find(handle) } {
            None => {
                let id = handle.trx_id;
                self.cx.host.log.warn(format!("commit_order_enter: transaction {id} is unknown"));
                Status::TRX_MISSING
            }
            Some(Handle::Remote(remote)) => remote_turn::enter(&self.cx, remote),
            Some(Handle::Local(trx)) => local::enter(&self.cx, trx),
        }
    }

    /// `commit_order_leave`.
    ///
    /// # Safety
    /// `handle.opaque` is as this provider set it.
    pub(crate) unsafe fn commit_order_leave(&self, handle: &WsHandle, error: &[u8]) -> Status {
        let id = handle.trx_id;
        // SAFETY: by this function's contract.
        let (status, left) = match unsafe { self.cx.trxs.find(handle) } {
            None => {
                self.cx.host.log.warn(format!("commit_order_leave: transaction {id} is unknown"));
                return Status::TRX_MISSING;
            }
            Some(Handle::Remote(remote)) => remote_turn::leave(&self.cx, remote, error),
            Some(Handle::Local(trx)) => local::leave(&self.cx, trx, error),
        };
        if !left {
            if self.cx.has_failed() {
                return Status::NODE_FAIL;
            }
            self.cx.host.log.warn(format!("commit_order_leave: it is not the turn of transaction {id}"));
            return Status::NOT_ALLOWED;
        }
        status
    }

    /// `sync_wait`: see [`control::sync_wait`].
    pub(crate) fn sync_wait(&self, upto: Option<Gtid>, seconds: i32) -> Result<Gtid, Status> {
        control::sync_wait(&self.cx, &self.local, upto, seconds)
    }

    /// `resume`.
    pub(crate) fn resume(&self) -> Status {
        control::resume(&self.cx, self.is_connected())
    }

    /// `sst_sent`.
    pub(crate) fn state_sent(&self, at: Gtid, code: i32) -> Status {
        self.transfer.sent(&self.cx, at, code)
    }

    /// `sst_received`.
    pub(crate) fn state_received(&self, at: Gtid, code: i32) -> Status {
        self.transfer.received(&self.cx, at, code)
    }

    /// A thread enters `recv`.
    pub(crate) fn receiver_enters(&self) {
        self.receivers.enter();
    }

    /// A thread is about to return from `recv`. Returns whether it is the last one and the server still needs its final
    /// view. [`Provider::receiver_has_left`] follows.
    pub(crate) fn receiver_leaves(&self) -> bool {
        self.receivers.leave()
    }

    /// A thread returns from `recv`: wakes `disconnect`.
    pub(crate) fn receiver_has_left(&self) {
        self.receivers.notify();
    }

    /// The server asks a thread to return from `recv`. Returns whether it may: the last one may not.
    pub(crate) fn receiver_ends_on_request(&self) -> bool {
        let ok = self.receivers.leave_on_request();
        match ok {
            true => self.cx.host.log.info("an applier thread ends on request"),
            false => self.cx.host.log.warn("the last applier thread may not end"),
        }
        ok
    }

    /// If this member has failed, lets the node leave the cluster, once.
    pub(crate) fn leave_after_failure(&self, node: &Node) {
        if self.cx.has_failed() && self.receivers.must_leave() {
            node.disconnect();
        }
    }

    /// Whether the server still needs its final view. The caller shows it now.
    pub(crate) fn take_final_view(&self) -> bool {
        self.receivers.take_final()
    }

    /// Whether the server waits for the state of a transfer.
    pub(crate) fn awaits_state(&self) -> bool {
        self.transfer.awaits_state()
    }

    /// This server needs a state transfer. `bypass`: the donor only confirms this member's position.
    pub(crate) fn begin_transfer(&self, bypass: bool) {
        self.transfer.begin(&self.cx, bypass);
    }

    /// The server's answer to `sst_request_cb`.
    pub(crate) fn request_state(&self, result: CbStatus, request: Vec<u8>) {
        self.transfer.request(&self.cx, result, request);
    }

    /// No donor can give the state.
    pub(crate) fn transfer_failed(&self, text: &str) {
        self.transfer.fails(&self.cx, text);
    }

    /// This member is the donor for `joiner`.
    pub(crate) fn begin_donation(&self, id: u64, joiner: String) {
        self.transfer.begin_donation(id, joiner);
    }

    /// The server has returned `result` from `sst_donate_cb`.
    pub(crate) fn donation_begun(&self, id: u64, result: CbStatus) {
        if result != CbStatus::SUCCESS {
            self.transfer.donation_failed(&self.cx, id);
        }
    }

    /// The rollback fragment of an own streaming transaction has been delivered.
    pub(crate) fn rollback_delivered(&self, id: TrxId) {
        self.local.rollback_delivered(id);
    }

    /// Sends the rollback of an own streaming transaction that the server has forgotten, until it is ordered.
    pub(crate) fn roll_back_orphan(&self, id: TrxId) {
        self.local.roll_back_orphan(&self.cx, id);
    }

    /// After which time without a delivery to call [`Provider::repeat_rollbacks`], if at all.
    pub(crate) fn repeat_rollbacks_after(&self) -> Option<Duration> {
        self.local.repeat_rollbacks_after()
    }

    /// Sends rollback fragments again: those sent long ago or not at all, or `all`.
    pub(crate) fn repeat_rollbacks(&self, all: bool) {
        self.local.repeat_rollbacks(&self.cx, all);
    }

    /// The server has returned `result` from its change to Synced. If it could not process it, this member stops.
    pub(crate) fn synced_delivered(&self, result: CbStatus) {
        if result != CbStatus::SUCCESS {
            self.cx.stop_with("the server could not process its change to Synced", false);
        }
        self.receivers.set_synced(true);
    }

    /// The server is about to get a view of the log or of the node. Waits, for a view in the log, until failed streaming
    /// transactions have ended. [`Provider::end_view`] follows.
    pub(crate) fn begin_view(&self, info: &ViewInfo, in_log: bool) {
        if info.status == ViewStatus::Disconnected {
            self.receivers.final_view_comes();
        }
        if in_log && info.status == ViewStatus::Primary && !self.local.begin_view(info.gtid.seqno) {
            self.cx
                .host
                .log
                .warn("a failed streaming transaction has not ended yet; processing the view nevertheless");
        }
    }

    /// The server has returned `result` from a view, after [`Provider::begin_view`].
    pub(crate) fn end_view(&self, result: CbStatus, info: &ViewInfo, in_log: bool) {
        self.local.end_view();
        self.view_delivered(result, info, in_log);
    }

    /// The server has returned `result` from a view. After a view that it could not process, this member stops.
    pub(crate) fn view_delivered(&self, result: CbStatus, info: &ViewInfo, in_log: bool) {
        if result != CbStatus::SUCCESS {
            self.cx.stop_with("the server could not process a view", false);
        }
        match info.status {
            ViewStatus::Primary if result == CbStatus::SUCCESS => self.primary_view_processed(info, in_log),
            ViewStatus::Primary => {}
            ViewStatus::NonPrimary => self.receivers.set_synced(false),
            ViewStatus::Disconnected => {
                self.receivers.set_synced(false);
                self.final_view_processed();
            }
        }
    }

    fn primary_view_processed(&self, info: &ViewInfo, in_log: bool) {
        let cx = &self.cx;
        let seqno = info.gtid.seqno;
        if in_log {
            cx.sequence.leave(seqno, false);
            cx.finish(seqno);
        } else if cx.sequence.finished() < seqno {
            cx.sequence.set_position(seqno);
            if let Some(node) = cx.node() {
                node.finished(seqno);
            }
        }
        cx.save_running();
        cx.host.note(state_files::write_view(
            &cx.host.data_dir,
            cx.identity.own(),
            info.number,
            cx.host.settings.zone(),
            &info.members,
        ));
    }

    /// The server takes no queries until it is told again that it is synced.
    pub(crate) fn server_refuses_queries(&self) {
        self.receivers.set_synced(false);
    }

    /// This member leaves, and a client is about to get the OK of a transaction that the other members commit. Waits until
    /// this server takes no queries: its database does not have the transaction, and a client may read on a server what
    /// that server has confirmed.
    pub(crate) fn refuse_clients_before_commit_elsewhere(&self) {
        if !self.receivers.wait_until_refusing(Instant::now() + REFUSAL_TIMEOUT) {
            self.cx.host.log.warn(format!(
                "this server still takes queries {} s after a transaction that only the other members commit: it does not \
                 show that transaction",
                REFUSAL_TIMEOUT.as_secs()
            ));
        }
    }

    /// This member has left the cluster: writes its position to the state file.
    fn final_view_processed(&self) {
        let cx = &self.cx;
        let position = cx.position();
        let awaited_transfer = self.transfer.end();
        if position.is_defined() && !awaited_transfer {
            if cx.has_failed() {
                // Threads inside commit order may still commit above this position. The next start asks InnoDB.
                cx.save_running();
            } else {
                cx.save_left(position);
                cx.host.log.info(format!("left the cluster at {position}"));
                cx.host.note(state_files::remove_view(&cx.host.data_dir));
            }
        }
        cx.forget_view();
        self.local.forget_rollbacks();
    }

    /// The server connects: its copy of the options may be renewed again.
    pub(crate) fn open_option_sync(&self) {
        self.option_sync.open();
    }

    /// The server has disconnected, and may shut down: ends the renewing of its copy of the options.
    pub(crate) fn close_option_sync(&self) {
        self.option_sync.close();
    }

    /// Another policy is in force: renews the server's copy of the options. Called on `ls-node`, and does not block.
    pub(crate) fn show_policy(self: &Arc<Self>) {
        if !self.option_sync.begin() {
            return;
        }
        let provider = self.clone();
        let thread = std::thread::Builder::new().name("ls-show".into());
        let spawned = thread.spawn(move || provider.option_sync.run(|| provider.renew_options()));
        if let Err(error) = spawned {
            self.option_sync.spawn_failed();
            self.cx.host.log.warn(format!(
                "wsrep_provider_options do not show the new policy, because no thread could be started: \
                     {error}"
            ));
        }
    }

    fn renew_options(&self) {
        if let Some(node) = self.cx.node().filter(|_| option_sync::is_possible()) {
            self.cx.host.settings.adopt_policy(&node.policy());
            let text = self.cx.host.settings.with(Options::get_all).replace('\0', "");
            option_sync::renew(&CString::new(text).unwrap_or_default());
        }
    }
}
