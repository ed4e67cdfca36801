//! The components that every part of the provider needs: what loaded it, the node, positions, and this member's failure.

use crate::apply::sequence::CommitSequence;
use crate::ddl::Ddl;
use crate::host::Host;
use crate::lifecycle::identity::Identity;
use crate::lifecycle::last_view::LastView;
use crate::lifecycle::node_slot::NodeSlot;
use crate::lifecycle::state_files::{Followed, Saved, StateFile, database_inodes};
use crate::status::counters::Counters;
use crate::trx::table::Transactions;
use crate::trx::write_access::{Write, WriteAccess};
use lockstep_abi::Status;
use lockstep_node::core::{Gtid, SEQNO_UNDEFINED, Seqno};
use lockstep_node::{
    FollowedLog, Identity as NodeIdentity, LocalState, Node, NodeConfig, NodeError, ViewInfo,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

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
    failed: AtomicBool,
    /// The position of a state that a donor has sent, until this member's log has gone beyond it: see [`Saved::followed`].
    /// [`SEQNO_UNDEFINED`] if there is none.
    transferred: AtomicI64,
}

impl Context {
    pub(crate) fn new(host: Host, state_file: Arc<StateFile>, ddl: Ddl) -> Context {
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
            failed: AtomicBool::new(false),
            transferred: AtomicI64::new(SEQNO_UNDEFINED),
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
            self.follow_own_log_after_transfer(low);
        }
    }

    /// If the database has the first entry after a transferred state, the own log has reached that state. The entry was on
    /// the own disk before it was delivered.
    fn follow_own_log_after_transfer(&self, finished: Seqno) {
        let transferred = self.transferred.load(Ordering::Acquire);
        let ends = transferred != SEQNO_UNDEFINED && finished > transferred;
        let (relaxed, none) = (Ordering::Relaxed, SEQNO_UNDEFINED);
        if ends && self.transferred.compare_exchange(transferred, none, Ordering::AcqRel, relaxed).is_ok() {
            self.name_log();
            self.host.note(self.state_file.rewrite());
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
    pub(crate) fn database_is_replaced(&self) {
        self.transferred.store(Seqno::MAX, Ordering::Release);
        self.ddl.database_is_replaced(&self.host);
    }

    /// No state was transferred, and the database counts as having it. It may be ahead of this member's log.
    pub(crate) fn state_is_assumed(&self) {
        self.transferred.store(Seqno::MAX, Ordering::Release);
    }

    /// A state transfer has restored the database, or a donor has confirmed its position: `grastate.dat` is that of a running
    /// server again.
    pub(crate) fn save_restored(&self) {
        // The log may end before the transferred state yet.
        if self.transferred.load(Ordering::Acquire) != SEQNO_UNDEFINED {
            self.transferred.store(self.sequence.finished(), Ordering::Release);
        }
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
            let NodeIdentity { member, incarnation, .. } = identity;
            if self.transferred.load(Ordering::Acquire) == SEQNO_UNDEFINED {
                let database = database_inodes(&self.host.data_dir);
                let log = FollowedLog { member, incarnation };
                self.state_file.set_followed(Followed { log, database });
            }
        }
    }

    /// The log that the database has followed, for the first connect of this process.
    pub(crate) fn followed_log(&self) -> Option<FollowedLog> {
        let database = database_inodes(&self.host.data_dir);
        let is_first = !self.identity.been_connected();
        let followed =
            self.saved_state().followed.filter(|followed| is_first && followed.database == database);
        followed.map(|followed| followed.log)
    }

    /// The log has given this process an incarnation that the database knows already. Later starts get higher ones: keeps in
    /// `grastate.dat` that they have gone back, until a connected process names the log again.
    pub(crate) fn keep_reused_incarnation(&self, node: &Node, followed: FollowedLog) {
        let NodeIdentity { member, incarnation, .. } = node.identity();
        if member == followed.member && followed.incarnation >= incarnation {
            let log = FollowedLog { incarnation: u64::MAX, ..followed };
            self.state_file.set_followed(Followed { log, database: database_inodes(&self.host.data_dir) });
            self.host.note(self.state_file.rewrite());
        }
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
