//! The server: what it owns, how it starts, joins, serves and stops.

use crate::checks::{Checks, Holds, lock};
use crate::client::Trx;
use crate::lean::Ledger;
use crate::locks::Locks;
use crate::log;
use crate::provider::{Callbacks, InitConfig, Provider};
use crate::state::{Machine, ServerState, States};
use crate::store::{Op, Store, StreamId};
use lockstep_abi::*;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

/// Timeout for events that must come.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A command failed: a code for tests, a line for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostError {
    /// For tests: `deadlock`, `status:TRX_FAIL`, `state`, ...
    pub code: String,
    /// For people.
    pub text: String,
}

impl HostError {
    /// An error with this code.
    pub fn new(code: impl Into<String>, text: impl Into<String>) -> HostError {
        HostError { code: code.into(), text: text.into() }
    }

    /// A provider call returned this status.
    pub fn status(call: &str, status: Status) -> HostError {
        HostError::new(format!("status:{status}"), format!("{call} returned {status}"))
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text, self.code)
    }
}

impl std::error::Error for HostError {}

/// The server's reaction to a request for a state transfer request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SstMode {
    /// Takes a copy over TCP.
    Copy,
    /// Says "trivial".
    Trivial,
    /// Says "none".
    None,
    /// Takes a copy and reports that it failed.
    Fail,
}

/// How a server starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// Node name.
    pub name: String,
    /// Data directory.
    pub dir: PathBuf,
    /// Node address given to the provider.
    pub address: String,
    /// Provider options.
    pub options: String,
    /// Cluster name.
    pub cluster: String,
    /// Cluster address.
    pub url: String,
    /// Donor wanted.
    pub donor: String,
    /// Start a new cluster.
    pub bootstrap: bool,
    /// Applier threads.
    pub appliers: usize,
    /// `None`: say that the position is unknown. `Some(undefined)`: recover it from the journal.
    pub position: Option<Gtid>,
    /// Keep a journal.
    pub journalled: bool,
    /// State transfer.
    pub sst: SstMode,
    /// Only what a write-set costs every server: see [`crate::lean`].
    pub lean: bool,
}

/// On whose behalf a thread is inside the provider.
pub(crate) enum Role {
    Applier,
    Replayer(Arc<Trx>),
}

/// What `recv_ctx` points to: lives on the stack of the thread that called `recv` or `replay_trx`.
pub(crate) struct RecvCtx {
    pub(crate) host: &'static Host,
    pub(crate) thread: ThreadId,
    pub(crate) role: Role,
}

/// A streaming transaction of another member, or one of our own that waits for its rollback fragment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stream {
    pub(crate) ops: Vec<Op>,
    pub(crate) fragments: usize,
}

/// The server. One per process: a provider library is a process's global state.
pub struct Host {
    /// How it was started.
    pub config: Config,
    provider: OnceLock<Provider>,
    /// Its states.
    pub states: States,
    /// Its checks.
    pub checks: Checks,
    /// Its stops for tests.
    pub holds: Holds,
    pub(crate) store: Mutex<Store>,
    pub(crate) ledger: Ledger,
    pub(crate) locks: Locks,
    pub(crate) trxs: Mutex<BTreeMap<TrxId, Arc<Trx>>>,
    pub(crate) streams: Mutex<BTreeMap<StreamId, Stream>>,
    pub(crate) pending_rollbacks: Mutex<VecDeque<TrxId>>,
    pub(crate) next_trx: AtomicU64,
    pub(crate) appliers_to_stop: AtomicI64,
    pub(crate) desyncs: AtomicI64,
    pub(crate) paused_at: Mutex<Option<Seqno>>,
    appliers: Mutex<Vec<JoinHandle<()>>>,
    recv_results: Mutex<Vec<Status>>,
    freed: AtomicBool,
}

/// The process's server, for threads that outlive the call that starts them.
static HOST: OnceLock<&'static Host> = OnceLock::new();

impl Host {
    /// This very server, by a reference that threads can keep.
    pub(crate) fn leaked(&self) -> Option<&'static Host> {
        HOST.get().copied().filter(|host| std::ptr::eq(*host, self))
    }

    /// A server that lives to the end of the process: the provider's callbacks point to it. `None` if there
    /// is one already.
    pub fn new(config: Config) -> Option<&'static Host> {
        let host: &'static Host = Box::leak(Box::new(Host {
            config,
            provider: OnceLock::new(),
            states: States::default(),
            checks: Checks::default(),
            holds: Holds::default(),
            store: Mutex::default(),
            ledger: Ledger::default(),
            locks: Locks::default(),
            trxs: Mutex::default(),
            streams: Mutex::default(),
            pending_rollbacks: Mutex::default(),
            next_trx: AtomicU64::new(1),
            appliers_to_stop: AtomicI64::new(0),
            desyncs: AtomicI64::new(0),
            paused_at: Mutex::default(),
            appliers: Mutex::default(),
            recv_results: Mutex::default(),
            freed: AtomicBool::new(false),
        }));
        HOST.set(host).is_ok().then_some(host)
    }

    /// The provider, once loaded and until freed.
    pub fn provider(&self) -> Result<&Provider, HostError> {
        match self.provider.get() {
            Some(_) if self.freed.load(Ordering::SeqCst) => {
                Err(HostError::new("state", "the provider has been unloaded"))
            }
            Some(provider) => Ok(provider),
            None => Err(HostError::new("state", "no provider is loaded")),
        }
    }

    /// The provider, in code that only runs because the provider called.
    pub(crate) fn called(&self) -> &Provider {
        match self.provider.get() {
            Some(provider) => provider,
            // Callbacks are registered by `init`, which needs a loaded provider.
            None => unreachable!("a callback without a provider"),
        }
    }

    /// Loads a provider library.
    pub fn load(&self, path: &std::path::Path) -> Result<(), HostError> {
        let provider = Provider::load(path).map_err(|error| HostError::new("load", error.to_string()))?;
        self.provider.set(provider).map_err(|_| HostError::new("state", "a provider is already loaded"))
    }

    /// Calls `init`.
    pub fn init(&'static self) -> Result<(), HostError> {
        let config = &self.config;
        let position = match config.position {
            None => Gtid::UNDEFINED,
            Some(given) if given.is_undefined() => Store::recover_position(&config.dir),
            Some(given) => given,
        };
        let args = InitConfig {
            name: config.name.clone(),
            address: config.address.clone(),
            incoming: format!("{}.example:3306", config.name),
            dir: config.dir.clone(),
            options: config.options.clone(),
            position,
        };
        let app_ctx: *const Host = self;
        let callbacks = Callbacks {
            app_ctx: app_ctx.cast_mut().cast::<c_void>(),
            logger: crate::callbacks::logger,
            connected: crate::callbacks::connected,
            view: crate::callbacks::view,
            sst_request: crate::callbacks::sst_request,
            apply: crate::callbacks::apply,
            sst_donate: crate::callbacks::sst_donate,
            synced: crate::callbacks::synced,
        };
        match self.provider()?.init(&args, callbacks) {
            Status::OK => Ok(()),
            status => Err(HostError::status("init", status)),
        }
    }

    /// Calls `connect`.
    pub fn connect(&self) -> Result<(), HostError> {
        let config = &self.config;
        // The address "gcomm://" alone asks for a new cluster too: the server's rule.
        let bootstrap = config.bootstrap || config.url == "gcomm://";
        self.states.lock().bootstrap = bootstrap;
        match self.provider()?.connect(&config.cluster, &config.url, &config.donor, bootstrap) {
            Status::OK => Ok(()),
            status => Err(HostError::status("connect", status)),
        }
    }

    /// Everything from loading the library to taking commands, in the server's order. The database opens only
    /// when the provider has said that it has its state or gets none.
    pub fn start(&'static self, library: &std::path::Path) -> Result<(), HostError> {
        self.load(library)?;
        self.init()?;
        self.connect()?;
        self.spawn_appliers(1);
        self.states.wait(ServerState::Initializing, TIMEOUT).map_err(|failed| {
            HostError::new("state", format!("start interrupted in state {}", failed.at.name()))
        })?;
        self.open_database()?;
        self.spawn_appliers(self.config.appliers.saturating_sub(1));
        Ok(())
    }

    /// Opens the database and tells the state machine.
    pub fn open_database(&self) -> Result<(), HostError> {
        let store = Store::open(&self.config.dir, self.config.journalled)
            .map_err(|error| HostError::new("store", error.0))?;
        self.checks.jump(store.position().seqno);
        *lock(&self.store) = store;
        let mut machine = self.states.lock();
        machine.initialized = true;
        drop(self.step(machine, ServerState::Initialized));
        Ok(())
    }

    /// Steps the state machine; a step that the real server does not allow is a violation.
    pub(crate) fn step<'a>(
        &'a self,
        machine: MutexGuard<'a, Machine>,
        next: ServerState,
    ) -> MutexGuard<'a, Machine> {
        log::event("state", next.name());
        let (machine, verdict) = self.states.step(machine, next);
        if let Err(text) = verdict {
            self.checks.violation(text);
        }
        machine
    }

    /// Lends more threads to the provider.
    pub fn spawn_appliers(&'static self, count: usize) {
        for _ in 0..count {
            let spawned = std::thread::Builder::new().name("applier".into()).spawn(move || self.applier());
            match spawned {
                Ok(handle) => lock(&self.appliers).push(handle),
                Err(error) => self.checks.violation(format!("no thread for an applier: {error}")),
            }
        }
    }

    fn applier(&'static self) {
        let ctx = RecvCtx { host: self, thread: std::thread::current().id(), role: Role::Applier };
        let status = self.called().recv(Some(&ctx));
        lock(&self.recv_results).push(status);
        log::event("recv", status.name());
    }

    /// The results of the finished `recv` calls.
    pub fn recv_results(&self) -> Vec<Status> {
        lock(&self.recv_results).clone()
    }

    /// Own id in the views.
    pub fn id(&self) -> Uuid {
        self.states.lock().id
    }

    /// Leaves the cluster, in the server's order.
    pub fn disconnect(&self) -> Result<(), HostError> {
        let machine = self.states.lock();
        if matches!(machine.state, ServerState::Disconnected | ServerState::Disconnecting) {
            return Ok(());
        }
        drop(self.step(machine, ServerState::Disconnecting));
        match self.provider()?.disconnect() {
            Status::OK => {}
            status => return Err(HostError::status("disconnect", status)),
        }
        self.states.wait(ServerState::Disconnected, TIMEOUT).map_err(|failed| {
            HostError::new("state", format!("no final view after disconnect, state {}", failed.at.name()))
        })?;
        self.join_appliers()
    }

    fn join_appliers(&self) -> Result<(), HostError> {
        let end = Instant::now() + TIMEOUT;
        let mut appliers = std::mem::take(&mut *lock(&self.appliers));
        while let Some(applier) = appliers.pop() {
            while !applier.is_finished() {
                if Instant::now() > end {
                    return Err(HostError::new("state", "an applier did not return from recv"));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            if applier.join().is_err() {
                return Err(HostError::new("state", "an applier panicked"));
            }
        }
        Ok(())
    }

    /// Unloads the provider: after `disconnect`, or when `connect` was never called.
    pub fn unload(&self) -> Result<(), HostError> {
        let provider = self.provider()?;
        self.freed.store(true, Ordering::SeqCst);
        provider.unload();
        Ok(())
    }

    /// `commit_order_enter` with its check.
    pub(crate) fn order_enter(&self, handle: &WsHandle, meta: &TrxMeta, what: &'static str) -> Status {
        let status = self.called().commit_order_enter(handle, meta);
        if status == Status::OK {
            self.checks.enter(meta.gtid.seqno, what);
        }
        status
    }

    /// `commit_order_leave` with its check.
    pub(crate) fn order_leave(
        &self,
        handle: &WsHandle,
        meta: &TrxMeta,
        error: &[u8],
        kind: &'static str,
    ) -> Status {
        self.checks.leave(meta, kind);
        self.called().commit_order_leave(handle, meta, error)
    }

    /// Runs a change of the database; a failure is a violation, the tests' disks do not fail.
    pub(crate) fn with_store(&self, change: impl FnOnce(&mut Store) -> Result<(), crate::store::StoreError>) {
        if let Err(error) = change(&mut lock(&self.store)) {
            self.checks.violation(error.0);
        }
    }

    /// Reads the database.
    pub fn read_store<T>(&self, read: impl FnOnce(&Store) -> T) -> T {
        read(&lock(&self.store))
    }

    /// Number of open streaming transactions known here as an applier.
    pub fn open_streams(&self) -> usize {
        lock(&self.streams).len()
    }

    /// Number of row locks held.
    pub fn lock_count(&self) -> usize {
        self.locks.count()
    }

    /// Pauses the provider as `FLUSH TABLES WITH READ LOCK` does: desync, tolerated to fail, then pause.
    pub fn desync_and_pause(&self) -> Result<Seqno, HostError> {
        let provider = self.provider()?;
        let desynced = provider.desync() == Status::OK;
        let seqno = provider.pause();
        if seqno < 0 {
            if desynced {
                provider.resync();
            }
            return Err(HostError::new("pause", format!("pause returned {seqno}")));
        }
        if desynced {
            self.desyncs.fetch_add(1, Ordering::SeqCst);
        }
        *lock(&self.paused_at) = Some(seqno);
        Ok(seqno)
    }

    /// Undoes [`Host::desync_and_pause`].
    pub fn resume_and_resync(&self) -> Result<(), HostError> {
        let provider = self.provider()?;
        *lock(&self.paused_at) = None;
        match provider.resume() {
            Status::OK => {}
            status => return Err(HostError::status("resume", status)),
        }
        if self.desyncs.load(Ordering::SeqCst) > 0 {
            self.desyncs.fetch_sub(1, Ordering::SeqCst);
            match provider.resync() {
                Status::OK => {}
                status => return Err(HostError::status("resync", status)),
            }
        }
        Ok(())
    }
}
