//! `init`, `connect`, `disconnect`, and the options of a running provider.

use crate::apply::commit_dependency::CommitDependencies;
use crate::apply::monitor::{CommitOrder, Finished, Gate, lock};
use crate::ddl::ctas_replay::CtasReplay;
use crate::ddl::journal::DdlJournal;
use crate::lifecycle::saved_options::SavedOptions;
use crate::lifecycle::settings::{Settings, where_until_is};
use crate::lifecycle::state_files::{StateFile, gtid_in};
use crate::provider::{AppCtx, AtomicUuid, Callbacks, Connection, Provider};
use crate::status::counters::Counters;
use crate::status::log::Log;
use crate::trx::Transactions;
use crate::trx::rollbacks::Rollbacks;
use lockstep_abi::{InitArgs, Status};
use lockstep_node::core::{Gtid, SEQNO_UNDEFINED};
use lockstep_node::options::{Change, OptionError, Options};
use lockstep_node::{ConnectArgs, Level, Node, NodeConfig, NodeError};
use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// A name that a server can show is not longer.
const NAME_MAX: usize = 31;
/// What a member that leaves has taken but not begun to apply, it goes on with for no longer: the log has it.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);
/// After the node has left, the server's threads take what is left of the deliveries; one that does not come back
/// does not hold up the stop for longer.
const CLOSE_PATIENCE: Duration = Duration::from_secs(60);

/// A C string of the server's; empty for null.
///
/// # Safety
/// `text` is null or NUL-terminated.
pub(crate) unsafe fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller vouches for it.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Whether `wsrep_gtid_mode` is on: the server exports the variable to its plugins. It learns the domain of the
/// cluster's GTIDs only from a donor's script. False in a process that has no such variable.
pub(crate) fn server_keeps_gtids() -> bool {
    // SAFETY: the name is NUL-terminated; the variable, where there is one, is the server's `my_bool`, which lives as
    // long as the process and is set before providers are loaded.
    unsafe {
        let mode = libc::dlsym(libc::RTLD_DEFAULT, c"wsrep_gtid_mode".as_ptr()).cast::<u8>();
        !mode.is_null() && *mode != 0
    }
}

/// `wsrep_node_address` and `base_host` may be an IPv6 address alone, as with Galera: in a place of its own it needs no
/// brackets.
fn with_brackets(host: String) -> String {
    match host.parse::<std::net::Ipv6Addr>() {
        Ok(_) => format!("[{host}]"),
        Err(_) => host,
    }
}

/// Node names, addresses and directories, as `init` got them.
#[derive(Clone, Default)]
pub(crate) struct Names {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) incoming: String,
}

/// µs since 1970.
fn wall() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

impl Provider {
    /// `init`.
    ///
    /// # Errors
    /// The error, in one line.
    ///
    /// # Safety
    /// As the API says of `args`.
    pub(crate) unsafe fn new(args: &InitArgs) -> Result<Arc<Provider>, String> {
        let log = Log::new(args.logger_cb);
        let missing = |what: &str| format!("init: the server passes no {what} callback");
        let calls = Callbacks {
            app: AppCtx(args.app_ctx),
            connected: args.connected_cb.ok_or_else(|| missing("connected"))?,
            view: args.view_cb.ok_or_else(|| missing("view"))?,
            sst_request: args.sst_request_cb.ok_or_else(|| missing("sst_request"))?,
            apply: args.apply_cb.ok_or_else(|| missing("apply"))?,
            unordered: args.unordered_cb,
            sst_donate: args.sst_donate_cb.ok_or_else(|| missing("sst_donate"))?,
            synced: args.synced_cb.ok_or_else(|| missing("synced"))?,
        };
        // SAFETY: the caller vouches for the strings.
        let (name, address, incoming, data_dir, text) = unsafe {
            (
                text_of(args.node_name),
                text_of(args.node_address),
                text_of(args.node_incoming),
                text_of(args.data_dir),
                text_of(args.options),
            )
        };
        // SAFETY: null, or a GTID.
        let start_position = unsafe { args.state_id.as_ref() }.map_or(Gtid::UNDEFINED, |at| gtid_in(*at));
        if name.len() > NAME_MAX {
            return Err(format!(
                "wsrep_node_name '{name}' is longer than {NAME_MAX} bytes: choose a shorter one"
            ));
        }
        let data_dir = PathBuf::from(if data_dir.is_empty() { "." } else { &data_dir });
        let mut options = Options::parse(&text).map_err(|error| error.to_string())?;
        log.set_debug(options.bool("debug"));
        for note in options.notes() {
            log.line(if note.warn { Level::Warn } else { Level::Info }, &note.text);
        }
        // No warning: a Galera configuration may have a small gcache.size (MariaDB's own tests have).
        for text in crate::lifecycle::settings::unwise(&options) {
            log.line(Level::Info, &text);
        }
        let beside_log = options.log_dir().unwrap_or_else(|| data_dir.clone());
        let (kept, notes) = SavedOptions::open(&beside_log, &mut options)?;
        for note in notes {
            log.warn(note.text);
        }
        // What a former provider of this process has not written yet.
        crate::lifecycle::state_files::process_ends();
        let (state_file, warning) = StateFile::open(&data_dir).map_err(|error| {
            let path = data_dir.join("grastate.dat");
            let remedy = crate::lifecycle::state_files::remedy(&error, &path);
            format!("cannot open {}: {error}{remedy}", path.display())
        })?;
        let state_file = Arc::new(state_file);
        crate::lifecycle::state_files::end_with(&state_file);
        if let Some(warning) = warning {
            log.warn(warning);
        }
        let (marks, warning) = DdlJournal::open(&data_dir)?;
        if let Some(warning) = warning {
            log.warn(warning);
        }
        let saved = state_file.get();
        log.info(format!(
            "saved state: {}, safe_to_bootstrap: {}",
            saved.position, saved.safe_to_bootstrap as u8
        ));
        Ok(Arc::new(Provider {
            calls,
            log,
            settings: Settings::new(options, kept),
            proto_ver: args.proto_ver,
            data_dir,
            names: Names { name, address, incoming },
            start_position,
            node: OnceLock::new(),
            starting: Mutex::new(()),
            order: CommitOrder::new(SEQNO_UNDEFINED),
            finished: Finished::new(SEQNO_UNDEFINED),
            commit_dependencies: CommitDependencies::new(SEQNO_UNDEFINED),
            group_flush: crate::apply::group_flush::GroupFlush::default(),
            gate: Gate::new(SEQNO_UNDEFINED),
            hold: crate::apply::commit_barrier::CommitGate::default(),
            history: AtomicUuid::default(),
            own: AtomicUuid::default(),
            epoch: AtomicU16::new(0),
            fresh: AtomicBool::new(true),
            been_connected: AtomicBool::new(false),
            taken: AtomicI64::new(SEQNO_UNDEFINED),
            left_out: Mutex::default(),
            connected_at: AtomicI64::new(SEQNO_UNDEFINED),
            trxs: Transactions::new(),
            rollbacks: Rollbacks::default(),
            statements: Mutex::new(HashMap::new()),
            connection: Mutex::new(Connection::Closed),
            connection_changed: Condvar::new(),
            receivers: AtomicUsize::new(0),
            donor: Mutex::new(String::new()),
            donation: Mutex::new(None),
            awaits_state: AtomicBool::new(false),
            awaits_word: AtomicBool::new(false),
            safe_to_bootstrap: AtomicBool::new(saved.safe_to_bootstrap),
            incoming: Mutex::new(String::new()),
            state_file,
            marks,
            again: CtasReplay::default(),
            counters: Counters::default(),
            failed: AtomicBool::new(false),
            owes_final: AtomicBool::new(false),
            planted: crate::abi::guard::Planted::default(),
            option_sync: crate::lifecycle::option_sync::OptionSync::default(),
            told_synced: AtomicBool::new(false),
            in_view: crate::trx::view_abort::ViewAborts::default(),
            left_after_failure: AtomicBool::new(false),
            key_noted: AtomicBool::new(false),
            refused_writes: Mutex::new([None; 2]),
        }))
    }

    /// The node's configuration.
    fn node_config(self: &Arc<Self>, may_begin_anew: bool) -> Result<NodeConfig, NodeError> {
        let names = self.names.clone();
        let logger: Weak<Provider> = Arc::downgrade(self);
        let stats = logger.clone();
        let ends = logger.clone();
        let shows = logger.clone();
        let address = self.own_address()?;
        let tuning = self.settings.tuning();
        self.settings.with(|options| {
            Ok(NodeConfig {
                name: names.name,
                data_dir: self.data_dir.clone(),
                log_dir: options.log_dir(),
                listen: options.listen(),
                address,
                incoming: names.incoming,
                zone: options.zone(),
                wants_vote: options.bool("member.vote"),
                may_begin_anew,
                arbitrator: false,
                hold: Some(Arc::new(crate::apply::commit_barrier::ProviderBarrier::of(self))),
                thread_begins: Some(crate::apply::sched_slice::shorten_sched_slice),
                tuning,
                tls: options.tls(),
                status_address: options.status_address(),
                logger: Arc::new(move |level, text: &str| {
                    if let Some(provider) = logger.upgrade() {
                        provider.log.line(level, text);
                    }
                }),
                allowed: Some(Arc::new(crate::abi::services::is_allowed)),
                progress: Some(Arc::new(crate::abi::events::progress)),
                event: Some(Arc::new(crate::abi::events::event)),
                policy_changed: Some(Arc::new(move |_| {
                    if let Some(provider) = shows.upgrade() {
                        provider.show_policy();
                    }
                })),
                end_server: Some(Arc::new(move |why, reason: &str| {
                    if let Some(provider) = ends.upgrade() {
                        provider.end_server(why, reason);
                    }
                })),
                front_end_stats: Some(Arc::new(move || {
                    stats.upgrade().map_or_else(Vec::new, |provider| provider.metrics())
                })),
            })
        })
    }

    /// The address advertised to peers: `base_host`, else `wsrep_node_address`, else the listen address.
    fn own_address(&self) -> Result<String, NodeError> {
        use lockstep_node::net::Address;
        let (host, port, listen) =
            self.settings.with(|options| (options.text("base_host"), options.port(), options.listen()));
        let bad = |what: &str, error: &dyn std::fmt::Display| NodeError::Setup(format!("{what}: {error}"));
        let listen = Address::parse(&listen, port).map_err(|e| bad("gmcast.listen_addr", &e))?;
        let given = with_brackets(if host.is_empty() { self.names.address.clone() } else { host });
        if given.is_empty() {
            let host = if listen.is_wildcard() { "127.0.0.1".into() } else { listen.to_string() };
            let own = Address::parse(&host, listen.port).map_err(|e| bad("gmcast.listen_addr", &e))?;
            if listen.is_wildcard() {
                self.log.warn(format!(
                    "neither wsrep_node_address nor base_host says where this member is: peers are told {own}"
                ));
            }
            return Ok(own.to_string());
        }
        let own = Address::parse(&given, listen.port).map_err(|e| bad("wsrep_node_address", &e))?;
        Ok(own.to_string())
    }

    fn start_node(self: &Arc<Self>, founds: bool) -> Result<&Node, NodeError> {
        let _one = lock(&self.starting);
        if self.node.get().is_none() {
            let node = Node::start(self.node_config(!founds)?)?;
            let _ = self.node.set(node);
        }
        self.node.get().ok_or(NodeError::State("connect: the node has gone"))
    }

    /// Where the database stands, as far as is known before it is opened.
    fn start_from(&self) -> Gtid {
        // The state found at the start of the process is obsolete once anything may have been applied.
        let recovered = match self.been_connected.load(Ordering::SeqCst) {
            true => Gtid::UNDEFINED,
            false => self.start_position,
        };
        start_from(self.saved_position(), recovered)
    }

    /// The position in `grastate.dat`. While a statement in total order is under way the file names no history, because tools
    /// and other libraries cannot know the database's state then. The DDL journal can. If the file names none for another
    /// reason (perhaps it was removed to force a state transfer), the journal is not used.
    fn saved_position(&self) -> Gtid {
        let saved = self.state_file.get();
        match self.marks.history() {
            Some(uuid) if saved.in_statement => Gtid { uuid, seqno: SEQNO_UNDEFINED },
            _ => saved.position,
        }
    }

    /// After a crash, unless the own log is of another history than the database: a run of the server's recovery says
    /// where InnoDB stands, so that the log supplies the rest and nothing must be copied; or, where there is no log,
    /// so that a database that comes from Galera's library keeps its history.
    fn recover_position(&self, node: &Node) -> Gtid {
        let saved = self.saved_position();
        // The founder of a branch may be found with its database, or its file, from before it.
        let (log, own) = (node.history(), node.histories());
        if saved.uuid.is_nil() || (!log.is_nil() && !own.contains(&saved.uuid)) {
            return Gtid::UNDEFINED;
        }
        self.log
            .info("this server was not stopped in good order: a recovery run finds out where InnoDB stands");
        match crate::lifecycle::innodb_position::position(&self.data_dir, |line| self.log.info(line)) {
            Ok(gtid) if gtid.uuid == saved.uuid || own.contains(&gtid.uuid) => {
                self.log.info(format!("InnoDB stands at {gtid}"));
                gtid
            }
            Ok(gtid) => {
                self.log.warn(format!("InnoDB stands at {gtid}, of another history than grastate.dat's"));
                Gtid::UNDEFINED
            }
            Err(why) => {
                self.log.warn(format!("InnoDB's position is not known: {why}"));
                Gtid::UNDEFINED
            }
        }
    }

    /// `connect`.
    pub(crate) fn connect(
        self: &Arc<Self>,
        cluster: &str,
        url: &str,
        donor: &str,
        bootstrap: bool,
    ) -> Result<(), String> {
        if *lock(&self.connection) == Connection::Open {
            return Err("connect: connected already".into());
        }
        self.option_sync.open();
        if self.failed.load(Ordering::Acquire) {
            return Err("connect: this member has failed, see the lines above: start the server again".into());
        }
        let parsed = lockstep_node::net::ClusterAddress::parse(url, lockstep_node::DEFAULT_PORT)
            .map_err(|error| error.to_string())?;
        let wanted = bootstrap || parsed.peers.is_empty();
        let bootstrap = founds(wanted, parsed.peers.is_empty(), self.been_connected.load(Ordering::SeqCst));
        if bootstrap != wanted {
            self.log.info("the wish for a new cluster is left from an earlier wsrep_cluster_address: joins");
        }
        for (name, value) in &parsed.options {
            self.log.warn(format!(
                "wsrep_cluster_address: option {name}={value} is not taken from there: write it into wsrep_provider_options"
            ));
        }
        let mut position = self.start_from();
        if bootstrap && !self.state_file.get().safe_to_bootstrap {
            let dir = self.settings.with(|options| options.log_dir());
            return Err(unsafe_to_found(position, has_log(&dir.unwrap_or_else(|| self.data_dir.clone()))));
        }
        if !position.is_defined() {
            let node = self.start_node(bootstrap).map_err(|error| error.to_string())?;
            position = self.recover_position(node);
        }
        let (timeout, bounded) = self.settings.with(|options| match options.bool("pc.wait_prim") {
            true => (options.time("pc.wait_prim_timeout"), options.is_given("pc.wait_prim_timeout")),
            false => (Duration::from_secs(3600), false),
        });
        self.log.info(format!(
            "connecting to cluster {cluster} at {url} from position {position}{}",
            if bootstrap { ", founding it" } else { "" }
        ));
        *lock(&self.donor) = donor.to_owned();
        self.set_position(position.seqno);
        self.fresh.store(true, Ordering::SeqCst);
        self.history.set(position.uuid);
        *lock(&self.connection) = Connection::Open;
        self.owes_final.store(true, Ordering::SeqCst);
        let in_doubt = self.statement_in_doubt(position);
        let args = ConnectArgs {
            in_doubt,
            cluster: cluster.to_owned(),
            peers: parsed.peers.iter().map(ToString::to_string).collect(),
            bootstrap,
            position,
            log: self.state_file.get().log,
            // A process that was a member before has the domain, and no method but mysqldump serves one that runs.
            by_donor: server_keeps_gtids() && !self.been_connected.load(Ordering::SeqCst),
            timeout,
            // A client that sets wsrep_cluster_address waits for its answer.
            waits_for_others: !bounded && !self.been_connected.load(Ordering::SeqCst),
        };
        let result = self.start_node(bootstrap).and_then(|node| {
            self.expect_ctas_replay(position, node.log_end());
            node.connect_and(args, || {
                if crate::lifecycle::stop::is_wanted() {
                    self.log.info("asked to stop while it waits for a primary component: ends");
                    crate::lifecycle::stop::obey();
                }
            })
        });
        if let Err(error) = result {
            *lock(&self.connection) = Connection::Closed;
            self.owes_final.store(false, Ordering::SeqCst);
            return Err(error.to_string());
        }
        Ok(())
    }

    /// `disconnect`: returns when the server has processed the final view.
    pub(crate) fn disconnect(&self) {
        let Some(node) = self.node() else { return };
        if *lock(&self.connection) == Connection::Closed {
            return;
        }
        let began = Instant::now();
        if self.gate.is_closed() {
            self.begin_nothing("paused");
        }
        node.disconnect();
        let until = began + CLOSE_PATIENCE;
        let mut begins = true;
        let mut connection = lock(&self.connection);
        while *connection == Connection::Open && self.receivers.load(Ordering::SeqCst) > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.log.warn("applier threads do not come back: disconnects without them");
                break;
            }
            if began.elapsed() > DRAIN_PATIENCE && std::mem::take(&mut begins) {
                self.begin_nothing("far behind");
            }
            connection = self
                .connection_changed
                .wait_timeout(connection, left.min(Duration::from_millis(500)))
                .unwrap_or_else(|poisoned| poisoned.into_inner())
                .0;
        }
        *connection = Connection::Closed;
        drop(connection);
        self.option_sync.close();
        // The tables that are looked at are closed next.
        crate::abi::services::wait_for_allow_list();
    }

    /// Deliveries taken and not begun are left to the log: this member leaves.
    fn begin_nothing(&self, why: &str) {
        let last = self.gate.stop();
        self.order.stop(last);
        self.finished.stop(last);
        self.commit_dependencies.stop(last);
        self.log.info(format!(
            "this member is {why} and leaves: what comes after seqno {last} it applies when it is back"
        ));
    }

    /// `options_set`: all of it, or nothing.
    pub(crate) fn set_options(&self, text: &str) -> Status {
        let policy = self.node().map(|node| node.policy());
        let refused =
            |error: &dyn std::fmt::Display| format!("wsrep_provider_options stay as they are: {error}");
        let promoted =
            self.settings.with(|options| options.check_promoted(text, self.node().is_some_and(Node::votes)));
        let ahead = promoted.and_then(|()| self.settings.look_ahead(text, policy));
        match ahead.map(|(options, changes)| self.orders(&options, &changes)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                self.log.error(refused(&error));
                return Status::NODE_FAIL;
            }
            Err(error @ OptionError::Unknown { .. }) => {
                self.log.warn(refused(&error));
                return Status::WARNING;
            }
            Err(error) => {
                self.log.error(refused(&error));
                return Status::NODE_FAIL;
            }
        }
        let (changes, tuning, notes) = match self.settings.set(text, policy) {
            Ok(changed) => changed,
            Err(error) => {
                self.log.error(refused(&error));
                return Status::NODE_FAIL;
            }
        };
        for note in notes {
            self.log.line(if note.warn { Level::Warn } else { Level::Info }, &note.text);
        }
        self.log.set_debug(self.settings.with(|options| options.bool("debug")));
        let Some(node) = self.node() else { return Status::OK };
        node.set_tuning(tuning);
        for change in changes {
            match change.name {
                "debug.panic" if change.value.eq_ignore_ascii_case("node") => node.panic(),
                "debug.panic" => self.planted.plant(&change.value.to_ascii_lowercase()),
                "gmcast.isolate" => node.isolate(change.value != "0"),
                _ => {}
            }
        }
        Status::OK
    }

    /// Executes the change that may fail, before all others. Only one such change at a time: its effect is not undone if
    /// another one fails.
    fn orders(&self, options: &Options, changes: &[Change]) -> Result<(), String> {
        let Some(node) = self.node() else { return Ok(()) };
        let is_connected = *lock(&self.connection) != Connection::Closed;
        if changes.iter().any(|change| change.name == "apply.until")
            && let Some(until) = options.tuning().apply_hold.until
            && let Some(warning) = where_until_is(until, node.history(), node.last_committed(), wall())?
        {
            self.log.warn(warning);
        }
        let policy = options.policy_change(changes).filter(|_| is_connected);
        let is_ordered = |name| changes.iter().any(|change| change.name == name) && options.bool(name);
        let [reload, bootstrap] = ["socket.ssl_reload", "pc.bootstrap"].map(is_ordered);
        if usize::from(policy.is_some()) + usize::from(reload) + usize::from(bootstrap) > 1 {
            return Err("commit.*, socket.ssl_reload and pc.bootstrap want a SET GLOBAL each".into());
        }
        if let Some(change) = policy {
            match node.change_policy(change) {
                Ok(true) => {}
                Ok(false) => self.log.warn(
                    "the change of commit.* is asked for, and not in force yet: a line here, and `lockstep status`, say \
                     when it is",
                ),
                Err(text) => return Err(format!("the policy is not changed: {text}")),
            }
        }
        if reload {
            node.reload_tls().map_err(|error| {
                format!("socket.ssl_reload: {error}; what was loaded before stays in force")
            })?;
        }
        if bootstrap && node.is_primary() {
            self.log.info("pc.bootstrap: this member is in the primary component already; nothing is done");
        } else if bootstrap {
            let answer = node.bootstrap();
            if !answer.ok {
                return Err(format!("pc.bootstrap: {}", answer.text));
            }
        }
        Ok(())
    }
}

/// Whether there are files of a log.
fn has_log(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    entries.flatten().any(|entry| is_segment(&entry.file_name().to_string_lossy()))
}

fn is_segment(name: &str) -> bool {
    let digits = name.strip_prefix("lockstep.").and_then(|rest| rest.strip_suffix(".log"));
    digits.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The refusal if `grastate.dat` shows that this member was not the last one to leave.
fn unsafe_to_found(position: Gtid, has_log: bool) -> String {
    let begin = "It may not be safe to bootstrap the cluster from this node: it was not the last one to leave the cluster and \
                 may not have all that was committed.";
    if has_log {
        return format!(
            "{begin} Start the others without --wsrep-new-cluster: a majority of them goes on by itself. If the others are \
             gone for good, start this one without --wsrep-new-cluster, too, and run lockstep bootstrap while it waits for \
             them"
        );
    }
    let at = match position.is_defined() {
        true => format!("this member's is {position}"),
        false => "this member's is not known; a start with --wsrep-recover says it".to_string(),
    };
    format!(
        "{begin} There is no log here yet (a database that comes from Galera, for one): compare the positions of all members \
         ({at}; the others' are in their grastate.dat, or come from --wsrep-recover). On the member with the highest \
         position set safe_to_bootstrap to 1 in grastate.dat and start it with --wsrep-new-cluster; start the others without: \
         what they have and it has not is lost"
    )
}

/// Whether a connection founds a cluster. The server keeps the wish, once an empty address or `--wsrep-new-cluster` has
/// made it, until a connection succeeds: after an empty address was refused, every later one comes with it. An address
/// that names members, given to a process that was a member before, means those.
fn founds(wanted: bool, nobody_named: bool, was_member: bool) -> bool {
    wanted && (nobody_named || !was_member)
}

/// `grastate.dat` after a clean stop; but where the server's own recovery was asked, its word counts, if the file says
/// that the data are whole: a file that was synced may be ahead of a database whose last commits were not.
fn start_from(saved: Gtid, recovered: Gtid) -> Gtid {
    if !saved.uuid.is_nil() && saved.uuid == recovered.uuid && recovered.is_defined() {
        return recovered;
    }
    if saved.is_defined() { saved } else { Gtid::UNDEFINED }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_node::core::{Gtid, SEQNO_UNDEFINED, Uuid};

    #[test]
    fn bare_ipv6_address_is_a_host() {
        for (given, taken) in
            [("::1", "[::1]"), ("[::1]:4567", "[::1]:4567"), ("db1", "db1"), ("10.0.0.1:7", "10.0.0.1:7")]
        {
            assert_eq!(with_brackets(given.into()), taken);
        }
    }

    #[test]
    fn founding_refusal_names_position_and_needs_log() {
        let at = Gtid { uuid: Uuid([7; 16]), seqno: 407 };
        let text = unsafe_to_found(at, false);
        assert!(text.contains(&format!("this member's is {at}")), "{text}");
        assert!(
            text.contains("On the member with the highest position set safe_to_bootstrap to 1"),
            "{text}"
        );
        assert!(!text.contains("goes on by itself"), "{text}");
        assert!(is_segment("lockstep.000000000000001f.log") && !is_segment("lockstep.id.log"));
        let text = unsafe_to_found(at, true);
        assert!(text.contains("goes on by itself") && !text.contains("set safe_to_bootstrap"), "{text}");
    }

    #[test]
    fn leftover_bootstrap_request_founds_nothing() {
        assert!(founds(true, true, true) && founds(true, true, false), "an empty address");
        assert!(founds(true, false, false), "--wsrep-new-cluster with a list");
        assert!(!founds(true, false, true), "left over");
        assert!(!founds(false, false, false));
    }

    #[test]
    fn innodb_position_counts_for_complete_data() {
        let at = |n: u8, seqno| Gtid { uuid: Uuid([n; 16]), seqno };
        let whole = at(1, SEQNO_UNDEFINED);
        assert_eq!(start_from(at(1, 7), Gtid::UNDEFINED), at(1, 7), "a clean stop");
        assert_eq!(start_from(at(1, 7), at(1, 5)), at(1, 5), "the last commits were not flushed");
        assert_eq!(start_from(at(1, 7), at(1, 9)), at(1, 9), "committed after the file was written");
        assert_eq!(start_from(whole, at(1, 5)), at(1, 5), "a crash");
        assert_eq!(start_from(at(1, 7), at(2, 5)), at(1, 7), "another history");
        assert_eq!(start_from(Gtid::UNDEFINED, at(1, 5)), Gtid::UNDEFINED, "not whole");
        assert_eq!(start_from(whole, Gtid::UNDEFINED), Gtid::UNDEFINED, "nobody was asked");
    }
}
