//! The components that every part of the provider needs: what loaded it, the node, positions, and this member's failure.

use crate::apply::sequence::CommitSequence;
use crate::ddl::Ddl;
use crate::host::Host;
use crate::lifecycle::database_log::DatabaseLog;
use crate::lifecycle::identity::Identity;
use crate::lifecycle::last_view::LastView;
use crate::lifecycle::node_slot::NodeSlot;
use crate::lifecycle::state_files::{Saved, StateFile};
use crate::status::counters::Counters;
use crate::trx::table::Transactions;
use crate::trx::write_access::{Write, WriteAccess};
use lockstep_abi::Status;
use lockstep_node::core::{Gtid, Seqno};
use lockstep_node::{FollowedLog, LocalState, Node, NodeConfig, NodeError, ViewInfo};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module. Usable from any thread.
///
/// The open fields are components with private state.
pub(crate) struct Context {
    pub(crate) host: Host,
    pub(crate) identity: Identity,
    pub(crate) sequence: CommitSequence,
    pub(crate) trxs: Transactions,
    pub(crate) ddl: Ddl,
    pub(crate) counters: Counters,
    node: NodeSlot,
    view: LastView,
    state_file: Arc<StateFile>,
    access: WriteAccess,
    database_log: DatabaseLog,
    failed: AtomicBool,
}

impl Context {
    pub(crate) fn new(host: Host, state_file: Arc<StateFile>, ddl: Ddl) -> Context {
        let database_log = DatabaseLog::new(state_file.clone(), host.data_dir.clone());
        Context {
            host,
            node: NodeSlot::default(),
            identity: Identity::default(),
            sequence: CommitSequence::default(),
            trxs: Transactions::new(),
            ddl,
            view: LastView::new(state_file.get().safe_to_bootstrap),
            state_file,
            counters: Counters::default(),
            access: WriteAccess::default(),
            database_log,
            failed: AtomicBool::new(false),
        }
    }

    /// The node, once `connect` has started it.
    pub(crate) fn node(&self) -> Option<&Node> {
        self.node.get()
    }

    /// The node; starts it with `config` if need be.
    ///
    /// # Errors
    /// As [`NodeSlot::get_or_start`].
    pub(crate) fn node_or_start(
        &self,
        config: impl FnOnce() -> Result<NodeConfig, NodeError>,
    ) -> Result<&Node, NodeError> {
        self.node.get_or_start(config)
    }

    /// `wsrep_local_state`.
    pub(crate) fn local_state(&self) -> LocalState {
        match self.node() {
            _ if self.has_failed() => LocalState::Error,
            Some(node) => node.state(),
            None => LocalState::Initialized,
        }
    }

    /// # Errors
    /// The status to return if a client may not write here: see [`WriteAccess::check`].
    pub(crate) fn may_write(&self, write: Write) -> Result<(), Status> {
        self.access.check(&self.host, self.node(), self.local_state(), write)
    }

    /// `seqno` has finished in the server.
    pub(crate) fn finish(&self, seqno: Seqno) {
        if let Some(low) = self.sequence.finish(seqno)
            && let Some(node) = self.node()
        {
            node.finished(low);
            if self.database_log.has_finished(low) {
                self.name_log();
                self.host.note(self.state_file.rewrite());
            }
        }
    }

    /// The database's position: everything up to it has finished.
    pub(crate) fn position(&self) -> Gtid {
        self.identity.at(self.sequence.finished())
    }

    /// Whether a new leader left this seqno out, so that no write-set has it. Only for a seqno that this server has passed.
    pub(crate) fn is_left_out(&self, seqno: Seqno) -> bool {
        // The node publishes its status with a delay, so that it may lack the last range; it has all earlier ones.
        self.sequence.was_left_out(seqno)
            || self.node().is_some_and(|node| node.status().log.left_out_around(seqno).is_some())
    }

    /// The server gets this view next.
    pub(crate) fn view_begins(&self, info: &ViewInfo) {
        self.view.set(info);
    }

    /// This member has left: it is in no view.
    pub(crate) fn forget_view(&self) {
        self.view.clear();
    }

    /// The addresses for clients of the last view's members.
    pub(crate) fn incoming_addresses(&self) -> String {
        self.view.incoming()
    }

    /// The content of `grastate.dat`.
    pub(crate) fn saved_state(&self) -> Saved {
        self.state_file.get()
    }

    /// A state transfer is about to overwrite the database.
    ///
    /// # Errors
    /// As [`Ddl::database_is_replaced`].
    pub(crate) fn database_is_replaced(&self) -> io::Result<()> {
        self.database_log.state_begins();
        self.ddl.database_is_replaced(&self.host)
    }

    /// No state was transferred, and the database counts as having it. It may be ahead of this member's log.
    pub(crate) fn state_is_assumed(&self) {
        self.database_log.state_is_assumed();
    }

    /// A state transfer has restored the database, or a donor has confirmed its position: `grastate.dat` is that of a running
    /// server again.
    pub(crate) fn save_restored(&self) {
        self.database_log.state_is_restored(self.sequence.finished());
        self.state_file.mark_restored();
        self.save_running();
    }

    /// Writes `grastate.dat` for a server that has left the cluster at `position`.
    pub(crate) fn save_left(&self, position: Gtid) {
        self.name_log();
        self.host.note(self.state_file.set_at_end(position, self.view.safe_to_bootstrap()));
    }

    /// Writes `grastate.dat` for a running server: the history, and no seqno.
    pub(crate) fn save_running(&self) {
        self.name_log();
        let position = self.identity.at(-1);
        self.host.note(self.state_file.set(position, self.view.safe_to_bootstrap()));
    }

    /// Names, in the state file, the log that this server applies.
    fn name_log(&self) {
        if let Some(identity) = self.node().map(|node| node.identity())
            && !identity.log.is_nil()
            && identity.history == self.identity.history()
        {
            self.state_file.of_log(identity.log);
            // Before that, the file names the log of an earlier process: the proof that it has gone back.
            if self.identity.been_connected() {
                self.database_log.name(&identity);
            }
        }
    }

    /// The log that the database has followed, for the first connect of this process.
    pub(crate) fn followed_log(&self) -> Option<FollowedLog> {
        if self.identity.been_connected() { None } else { self.database_log.get() }
    }

    /// `node` has opened its log, and the database has followed this one.
    pub(crate) fn log_is_open(&self, node: &Node, followed: FollowedLog) {
        self.host.note(self.database_log.keep_reused_incarnation(&node.identity(), followed));
    }

    /// Whether this member has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Makes this member count as failed. Returns whether it did before.
    pub(crate) fn set_failed(&self) -> bool {
        self.failed.swap(true, Ordering::SeqCst)
    }

    /// The database cannot be relied on: this member leaves the cluster, and its next start takes a state transfer.
    pub(crate) fn fail(&self, reason: &str) {
        self.stop_with(reason, true);
    }

    /// Leaves the cluster in order and ends all waits; then the process ends. The next start applies from the log what this
    /// process cannot.
    pub(crate) fn repeat_from_log(&self, reason: &str) {
        if self.has_failed() {
            return;
        }
        self.host.log.error(format!("{reason}: this member leaves the cluster, and then its process ends"));
        // Before the others see that this member has failed: an applier that sees it begins an ordinary leave, and after such
        // a leave the process goes on.
        if let Some(node) = self.node() {
            node.repeat_from_log(reason);
        }
        self.set_failed();
        self.sequence.fail();
    }

    /// Leaves the cluster and ends all waits. `corrupt`: the next start takes a state transfer.
    pub(crate) fn stop_with(&self, reason: &str, corrupt: bool) {
        if self.set_failed() {
            return;
        }
        if corrupt {
            self.host.log.error(format!(
                "{reason}: this member leaves the cluster; restart it, and it requests a state transfer"
            ));
            self.ddl.database_is_corrupt(&self.host);
        } else {
            self.host
                .log
                .error(format!("{reason}: this member leaves the cluster; fix the cause and restart it"));
        }
        if let Some(node) = self.node() {
            node.fail(reason);
        }
        self.sequence.fail();
    }
}
