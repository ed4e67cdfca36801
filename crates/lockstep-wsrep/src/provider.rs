//! The provider: one per process, from `init` to `free`.

use crate::abi::guard::guarded;
use crate::apply::commit_dependency::CommitDependencies;
use crate::apply::monitor::{CommitOrder, Finished, Gate, lock};
use crate::ddl::ctas_replay::CtasReplay;
use crate::ddl::journal::DdlJournal;
use crate::lifecycle::connect::Names;
use crate::lifecycle::settings::Settings;
use crate::lifecycle::state_files::StateFile;
use crate::status::counters::Counters;
use crate::status::log::Log;
use crate::trx::rollbacks::Rollbacks;
use crate::trx::{Transactions, Trx};
use lockstep_abi::*;
use lockstep_node::core::{Gtid, Seqno, Uuid};
use lockstep_node::{LocalState, Node};
use std::collections::HashMap;
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Instant;

/// The capabilities of this provider, as reported in every view.
pub(crate) const CAPABILITIES: Capabilities = CAP_MULTI_MASTER
    | CAP_CERTIFICATION
    | CAP_PARALLEL_APPLYING
    | CAP_TRX_REPLAY
    | CAP_ISOLATION
    | CAP_PAUSE
    | CAP_CAUSAL_READS
    | CAP_INCREMENTAL_WRITESET
    | CAP_UNORDERED
    | CAP_ANNOTATION
    | CAP_STREAMING;

/// The server's context, which it gets back in callbacks.
#[derive(Clone, Copy)]
pub(crate) struct AppCtx(pub(crate) *mut c_void);

// SAFETY: the pointer is only handed back to the server, and its callbacks may be called from any thread.
unsafe impl Send for AppCtx {}
// SAFETY: as above.
unsafe impl Sync for AppCtx {}

/// What the server wants to be called. Checked in `init`: none of them is null but `unordered`.
#[derive(Clone, Copy)]
pub(crate) struct Callbacks {
    pub(crate) app: AppCtx,
    pub(crate) connected: ConnectedCb,
    pub(crate) view: ViewCb,
    pub(crate) sst_request: SstRequestCb,
    pub(crate) apply: ApplyCb,
    pub(crate) unordered: Option<UnorderedCb>,
    pub(crate) sst_donate: SstDonateCb,
    pub(crate) synced: SyncedCb,
}

/// A UUID that is written while nothing is under way and read at any time.
#[derive(Default)]
pub(crate) struct AtomicUuid([AtomicU64; 2]);

impl AtomicUuid {
    pub(crate) fn get(&self) -> Uuid {
        let mut raw = [0; 16];
        raw[..8].copy_from_slice(&self.0[0].load(Ordering::Acquire).to_le_bytes());
        raw[8..].copy_from_slice(&self.0[1].load(Ordering::Acquire).to_le_bytes());
        Uuid(raw)
    }

    pub(crate) fn set(&self, uuid: Uuid) {
        let half = |at: usize| u64::from_le_bytes(uuid.0[at..at + 8].try_into().unwrap_or_default());
        self.0[0].store(half(0), Ordering::Release);
        self.0[1].store(half(8), Ordering::Release);
    }
}

/// A state transfer that this member gives.
pub(crate) struct Donation {
    pub(crate) id: u64,
    pub(crate) joiner: String,
}

/// Between `connect` and the last delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Connection {
    /// Not connected; `recv` may not be called.
    Closed,
    /// `connect` is under way, or connected.
    Open,
}

/// See the module. Everything in it may be used from any thread.
pub(crate) struct Provider {
    pub(crate) calls: Callbacks,
    pub(crate) log: Log,
    pub(crate) settings: Settings,
    pub(crate) proto_ver: i32,
    pub(crate) data_dir: PathBuf,
    pub(crate) names: Names,
    /// Where the server says that the database stands (`wsrep_start_position`).
    pub(crate) start_position: Gtid,
    pub(crate) node: OnceLock<Node>,
    pub(crate) starting: Mutex<()>,

    pub(crate) order: CommitOrder,
    pub(crate) finished: Finished,
    pub(crate) commit_dependencies: CommitDependencies,
    pub(crate) group_flush: crate::apply::group_flush::GroupFlush,
    pub(crate) gate: Gate,
    pub(crate) hold: crate::apply::commit_barrier::CommitGate,
    /// The history that seqnos are of; nil before the first view.
    pub(crate) history: AtomicUuid,
    /// This member's identity towards the server.
    pub(crate) own: AtomicUuid,
    /// How often a thread has been told that nobody knows whether its write-set was ordered: see
    /// [`lockstep_node::core::writeset::Meta::epoch`].
    pub(crate) epoch: AtomicU16,
    /// No position has been set since the connection began: the first view says where it is.
    pub(crate) fresh: AtomicBool,
    /// A connection has been made in this process.
    pub(crate) been_connected: AtomicBool,
    /// What the last view has left out that left something out, first and last.
    pub(crate) left_out: Mutex<Option<(Seqno, Seqno)>>,
    /// The highest seqno that a receiving thread has taken.
    pub(crate) taken: AtomicI64,
    /// The seqno of the view with which the connection began.
    pub(crate) connected_at: AtomicI64,

    pub(crate) trxs: Transactions,
    pub(crate) rollbacks: Rollbacks,
    /// Statements in total order, by connection.
    pub(crate) statements: Mutex<HashMap<ConnId, Arc<Trx>>>,

    pub(crate) connection: Mutex<Connection>,
    /// Notified when `connection` changes.
    pub(crate) connection_changed: Condvar,
    pub(crate) receivers: AtomicUsize,
    /// `wsrep_sst_donor`.
    pub(crate) donor: Mutex<String>,
    pub(crate) donation: Mutex<Option<Donation>>,
    /// The server has been asked for a state-transfer request and has not said yet that the state is there.
    pub(crate) awaits_state: AtomicBool,
    /// That state is only a donor's word, for a server that goes on by the log.
    pub(crate) awaits_word: AtomicBool,
    /// As of the last Primary view.
    pub(crate) safe_to_bootstrap: AtomicBool,
    /// Addresses of the last view's members, for clients.
    pub(crate) incoming: Mutex<String>,
    pub(crate) state_file: Arc<StateFile>,
    pub(crate) marks: DdlJournal,
    pub(crate) again: CtasReplay,
    pub(crate) counters: Counters,
    pub(crate) failed: AtomicBool,
    /// The server has been connected and has had no final view since.
    pub(crate) owes_final: AtomicBool,
    pub(crate) planted: crate::abi::guard::Planted,
    pub(crate) option_sync: crate::lifecycle::option_sync::OptionSync,
    /// The server has been told that it is synced, and of no loss of the majority since.
    pub(crate) told_synced: AtomicBool,
    /// The view that the server is in.
    pub(crate) in_view: crate::trx::view_abort::ViewAborts,
    /// A thread of the server's has been told to leave after a failure.
    pub(crate) left_after_failure: AtomicBool,
    pub(crate) key_noted: AtomicBool,
    /// When it was last said that only the leader may write.
    pub(crate) refused_writes: Mutex<[Option<Instant>; 2]>,
}

impl Provider {
    /// The node, once `connect` has started it.
    pub(crate) fn node(&self) -> Option<&Node> {
        self.node.get()
    }

    /// `wsrep_local_state`.
    pub(crate) fn local_state(&self) -> LocalState {
        match self.node() {
            _ if self.failed.load(Ordering::Acquire) => LocalState::Error,
            Some(node) => node.state(),
            None => LocalState::Initialized,
        }
    }

    /// The same as the server has heard it: until it has been told that it is synced it takes no queries.
    pub(crate) fn shown_state(&self) -> LocalState {
        match self.local_state() {
            LocalState::Synced if !self.told_synced.load(Ordering::Acquire) => LocalState::Joined,
            state => state,
        }
    }

    /// `seqno` has finished in the server.
    pub(crate) fn finish(&self, seqno: Seqno) {
        self.commit_dependencies.settle(seqno);
        if let Some(low) = self.finished.finish(seqno)
            && let Some(node) = self.node()
        {
            node.finished(low);
        }
    }

    /// Everything up to `seqno` is in the database, nothing else, and nothing is under way.
    pub(crate) fn set_position(&self, seqno: Seqno) {
        self.order.reset(seqno);
        self.finished.reset(seqno);
        self.commit_dependencies.reset(seqno);
        self.gate.reset(seqno);
        self.hold.gate.reset(seqno);
        self.taken.store(seqno, Ordering::SeqCst);
    }

    /// A view that has been let on leaves the seqnos up to this one out, and nothing is under way: nobody's turn comes
    /// between. The gate stays as it is: it counts the view itself already, and so does who closes it.
    pub(crate) fn leave_out(&self, upto: Seqno) {
        // First, because threads woken below read it.
        *lock(&self.left_out) = Some((self.finished.low() + 1, upto));
        self.order.leave_out(upto);
        self.finished.leave_out(upto);
        self.commit_dependencies.leave_out(upto);
        self.hold.gate.reset(upto);
        self.taken.store(upto, Ordering::SeqCst);
    }

    /// Whether a seqno up to which this server has come was left out by a new leader: nothing has it.
    pub(crate) fn is_left_out(&self, seqno: Seqno) -> bool {
        // The node's status may be slightly old; it has all ranges before the last one.
        lock(&self.left_out).is_some_and(|(first, last)| (first..=last).contains(&seqno))
            || self.node().is_some_and(|node| node.status().log.left_out_around(seqno).is_some())
    }

    /// Where the database stands, as far as everything has finished.
    pub(crate) fn position(&self) -> Gtid {
        Gtid { uuid: self.history.get(), seqno: self.finished.low() }
    }

    /// This member is not fit to go on: it leaves, says so in its files, and lets nobody wait.
    pub(crate) fn fail(&self, reason: &str) {
        self.stop_with(reason, true);
    }

    /// Out of the cluster. `corrupt`: the database cannot be relied on, so that the next start takes a state transfer.
    pub(crate) fn stop_with(&self, reason: &str, corrupt: bool) {
        if self.failed.swap(true, Ordering::SeqCst) {
            return;
        }
        if corrupt {
            self.log.error(format!(
                "{reason}: this member leaves the cluster and must be started again, to take a state transfer"
            ));
            // In this order: without marks, a file that names a history would have statements executed again.
            self.note(self.state_file.mark_corrupt());
            self.note(self.marks.forget());
        } else {
            self.log.error(format!(
                "{reason}: this member leaves the cluster; mend the cause and start it again"
            ));
        }
        if let Some(node) = self.node() {
            node.fail(reason);
        }
        self.gate.fail();
        self.order.fail();
        self.finished.fail();
        self.commit_dependencies.fail();
    }

    /// An I/O error of a state file is worth a line, no more: the log is the truth.
    pub(crate) fn note(&self, result: std::io::Result<()>) {
        if let Err(error) = result {
            self.log.warn(error.to_string());
        }
    }

    /// Runs one step of ours; a panic in it fails the node.
    pub(crate) fn step<T>(&self, what: &str, step: impl FnOnce() -> T) -> Option<T> {
        match guarded(|| {
            self.planted.here(what);
            step()
        }) {
            Ok(value) => Some(value),
            Err(panicked) => {
                self.fail(&format!("an error in the program, in {what}: {}", panicked.0));
                None
            }
        }
    }
}
