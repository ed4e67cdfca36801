//! The provider: one per process, from `init` to `free`. It routes the server's calls to its components.

use crate::apply::remote_turn;
use crate::context::Context;
use crate::guard::{InjectedPanic, guarded};
use crate::lifecycle::option_sync::{self, OptionSync};
use crate::lifecycle::receivers::Receivers;
use crate::lifecycle::settings::Settings;
use crate::lifecycle::state_files;
use crate::lifecycle::state_transfer::StateTransfer;
use crate::trx::local::{self, LocalTransactions};
use crate::trx::table::Handle;
use lockstep_abi::*;
use lockstep_node::options::Options;
use lockstep_node::{LocalState, ViewInfo, ViewStatus};
use std::ffi::CString;
use std::sync::Arc;

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
    pub(crate) cx: Context,
    pub(crate) local: LocalTransactions,
    pub(crate) receivers: Receivers,
    pub(crate) transfer: StateTransfer,
    pub(crate) option_sync: OptionSync,
    pub(crate) injected: InjectedPanic,
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
                cx.name_log();
                cx.host.note(cx.state_file.set_at_end(position, cx.view.safe_to_bootstrap()));
                cx.host.log.info(format!("left the cluster at {position}"));
                cx.host.note(state_files::remove_view(&cx.host.data_dir));
            }
        }
        cx.view.clear();
        self.local.forget_rollbacks();
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
