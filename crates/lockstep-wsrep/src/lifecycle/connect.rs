//! `init`, `connect` and `disconnect`.

use crate::abi::{events, services};
use crate::context::Context;
use crate::ddl::Ddl;
use crate::host::{Callbacks, Host, Names, server_keeps_gtids};
use crate::lifecycle::saved_options::SavedOptions;
use crate::lifecycle::settings::{self, Settings};
use crate::lifecycle::state_files::{self, StateFile, gtid_in};
use crate::lifecycle::{process_exit, start_position, stop};
use crate::provider::Provider;
use crate::status::log::Log;
use crate::status::stats;
use lockstep_abi::InitArgs;
use lockstep_node::core::Gtid;
use lockstep_node::options::Options;
use lockstep_node::{ConnectArgs, FrontEnd, Level, Node, NodeConfig, NodeError};
use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The longest name that a server can show.
const NAME_MAX: usize = 31;
/// How long a leaving member applies deliveries that it has taken and not begun. Later it leaves them to the log.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long `disconnect` waits for the server's receiving threads, which take the remaining deliveries.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// A C string of the server's; empty for null.
///
/// # Safety
/// `text` is null or NUL-terminated.
pub(crate) unsafe fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by this function's contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Adds brackets to a plain IPv6 address: `wsrep_node_address` and `base_host` may be one, as in Galera.
fn with_brackets(host: String) -> String {
    match host.parse::<std::net::Ipv6Addr>() {
        Ok(_) => format!("[{host}]"),
        Err(_) => host,
    }
}

/// The port that `wsrep_node_address` names, if it does. An address that cannot be read is refused at the connect.
fn port_in(node_address: &str) -> Option<u16> {
    // No address has port 0, so it stands for "none".
    let address = lockstep_node::net::Address::parse(&with_brackets(node_address.to_owned()), 0).ok()?;
    Some(address.port).filter(|port| *port != 0)
}

/// `init`.
///
/// # Errors
/// The cause, in one line.
///
/// # Safety
/// `args` is as the API requires.
pub(crate) unsafe fn init(args: &InitArgs) -> Result<Arc<Provider>, String> {
    let log = Log::new(args.logger_cb);
    let calls = Callbacks::of(args)?;
    // SAFETY: by this function's contract.
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
    let settings = open_settings(&log, &text, &address, &data_dir)?;
    // Writes the state file of a former provider of this process, if that has not been done yet.
    state_files::process_ends();
    let (state_file, warning) = StateFile::open(&data_dir).map_err(|error| {
        let path = data_dir.join("grastate.dat");
        let remedy = state_files::remedy(&error, &path);
        format!("cannot open {}: {error}{remedy}", path.display())
    })?;
    let state_file = Arc::new(state_file);
    state_files::write_at_exit(&state_file);
    if let Some(warning) = warning {
        log.warn(warning);
    }
    let (ddl, warning) = Ddl::open(&data_dir, state_file.clone())?;
    if let Some(warning) = warning {
        log.warn(warning);
    }
    let saved = state_file.get();
    log.info(format!(
        "saved state: {}, safe_to_bootstrap: {}",
        saved.position, saved.safe_to_bootstrap as u8
    ));
    let names = Names { name, address, incoming };
    let host = Host::new(calls, log, settings, args.proto_ver, data_dir, names, start_position);
    Ok(Arc::new(Provider::new(Context::new(host, state_file, ddl))))
}

/// The options in `text`, with those that were set before this start and saved. As in Galera, a port in
/// `wsrep_node_address` is `base_port` as well, so that it is listened on.
fn open_settings(log: &Log, text: &str, node_address: &str, data_dir: &Path) -> Result<Settings, String> {
    let mut options = Options::parse(text).map_err(|error| error.to_string())?;
    if let Some(port) = port_in(node_address) {
        options.fill("base_port", &port.to_string()).map_err(|error| error.to_string())?;
    }
    log.set_debug(options.bool("debug"));
    for note in options.notes() {
        log.line(if note.warn { Level::Warn } else { Level::Info }, &note.text);
    }
    // No warning: configurations for Galera, among them MariaDB's own tests, often have a small gcache.size.
    for text in settings::unwise(&options) {
        log.line(Level::Info, &text);
    }
    let beside_log = options.log_dir().unwrap_or_else(|| data_dir.to_owned());
    let (saved, notes) = SavedOptions::open(&beside_log, &mut options)?;
    for note in notes {
        log.warn(note.text);
    }
    Ok(Settings::new(options, saved))
}

/// The address that peers connect to: `base_host`, else `wsrep_node_address`, else the address listened on.
fn own_address(host: &Host) -> Result<String, NodeError> {
    use lockstep_node::net::Address;
    let (base_host, port, listen) =
        host.settings.with(|options| (options.text("base_host"), options.port(), options.listen()));
    let bad = |what: &str, error: &dyn std::fmt::Display| NodeError::Setup(format!("{what}: {error}"));
    let listen = Address::parse(&listen, port).map_err(|e| bad("gmcast.listen_addr", &e))?;
    let given = with_brackets(if base_host.is_empty() { host.names.address.clone() } else { base_host });
    if given.is_empty() {
        let address = if listen.is_wildcard() { "127.0.0.1".into() } else { listen.to_string() };
        let own = Address::parse(&address, listen.port).map_err(|e| bad("gmcast.listen_addr", &e))?;
        if listen.is_wildcard() {
            host.log.warn(format!(
                "neither wsrep_node_address nor base_host is set: this member announces the address {own}"
            ));
        }
        return Ok(own.to_string());
    }
    let own = Address::parse(&given, listen.port).map_err(|e| bad("wsrep_node_address", &e))?;
    Ok(own.to_string())
}

impl Provider {
    /// The node's configuration.
    fn node_config(self: &Arc<Self>, may_begin_anew: bool) -> Result<NodeConfig, NodeError> {
        let host = &self.cx().host;
        let names = host.names.clone();
        let logger: Weak<Provider> = Arc::downgrade(self);
        let stats = logger.clone();
        let ends = logger.clone();
        let shows = logger.clone();
        let address = own_address(host)?;
        let tuning = host.settings.tuning();
        host.settings.with(|options| {
            Ok(NodeConfig {
                name: names.name,
                data_dir: host.data_dir.clone(),
                log_dir: options.log_dir(),
                listen: options.listen(),
                address,
                incoming: names.incoming,
                zone: options.zone(),
                wants_vote: options.bool("member.vote"),
                may_begin_anew,
                front_end: FrontEnd::Database,
                donates: !options.bool("gcs.stateless"),
                hold: Some(self.cx().sequence.barrier()),
                tuning,
                tls: options.tls(),
                status_address: options.status_address(),
                logger: Arc::new(move |level, text: &str| {
                    if let Some(provider) = logger.upgrade() {
                        provider.cx().host.log.line(level, text);
                    }
                }),
                allowed: Some(Arc::new(services::is_allowed)),
                progress: Some(Arc::new(events::progress)),
                event: Some(Arc::new(events::event)),
                policy_changed: Some(Arc::new(move |_| {
                    if let Some(provider) = shows.upgrade() {
                        provider.show_policy();
                    }
                })),
                end_server: Some(Arc::new(move |why, reason: &str| {
                    if let Some(provider) = ends.upgrade() {
                        process_exit::end_server(provider.cx(), why, reason);
                    }
                })),
                front_end_status: None,
                front_end_stats: Some(Arc::new(move || {
                    stats.upgrade().map_or_else(Vec::new, |provider| stats::metrics(provider.cx()))
                })),
            })
        })
    }

    fn start_node(self: &Arc<Self>, founds: bool) -> Result<&Node, NodeError> {
        let cx = self.cx();
        let is_new = cx.node().is_none();
        let node = cx.node_or_start(|| self.node_config(!founds))?;
        // At once: this process may be killed while it looks for its position, and the next one gets another incarnation.
        if is_new && let Some(followed) = cx.followed_log() {
            cx.log_is_open(node, followed);
        }
        Ok(node)
    }

    /// `connect`.
    pub(crate) fn connect(
        self: &Arc<Self>,
        cluster: &str,
        url: &str,
        donor: &str,
        bootstrap: bool,
    ) -> Result<(), String> {
        let cx = self.cx();
        let log = &cx.host.log;
        if self.is_connected() {
            return Err("connect: connected already".into());
        }
        self.open_option_sync();
        if cx.has_failed() {
            return Err("connect: this member has failed, see the lines above: restart the server".into());
        }
        let parsed = lockstep_node::net::ClusterAddress::parse(url, lockstep_node::DEFAULT_PORT)
            .map_err(|error| bad_address(cluster, url, &error))?;
        let wanted = bootstrap || parsed.peers.is_empty();
        let been_connected = cx.identity.been_connected();
        let bootstrap = founds(wanted, parsed.peers.is_empty(), been_connected);
        if bootstrap != wanted {
            log.info(
                "the request for a new cluster is from an earlier wsrep_cluster_address: joining instead",
            );
        }
        for (name, value) in &parsed.options {
            log.warn(format!(
                "wsrep_cluster_address: the option {name}={value} has no effect in this address: set it in \
                 wsrep_provider_options"
            ));
        }
        let mut position = start_position::known(cx);
        if bootstrap && !cx.saved_state().safe_to_bootstrap {
            let dir = cx.host.settings.with(|options| options.log_dir());
            return Err(unsafe_to_found(position, has_log(dir.as_ref().unwrap_or(&cx.host.data_dir))));
        }
        if !position.is_defined() {
            let node = self.start_node(bootstrap).map_err(|error| error.to_string())?;
            position = start_position::recover(cx, node)?;
        }
        let (timeout, bounded) = cx.host.settings.with(|options| match options.bool("pc.wait_prim") {
            true => (options.time("pc.wait_prim_timeout"), options.is_given("pc.wait_prim_timeout")),
            false => (Duration::from_secs(3600), false),
        });
        log.info(format!(
            "connecting to cluster {cluster} at {url} from position {position}{}",
            if bootstrap { ", founding it" } else { "" }
        ));
        self.begin_connection(position, donor);
        let args = ConnectArgs {
            in_doubt: cx.ddl.in_doubt(position),
            cluster: cluster.to_owned(),
            peers: parsed.peers.iter().map(ToString::to_string).collect(),
            bootstrap,
            position,
            log: cx.saved_state().log,
            // A process that was a member before knows the domain, and no method but mysqldump serves a running server.
            by_donor: server_keeps_gtids() && !been_connected,
            timeout,
            // A client that sets wsrep_cluster_address waits for the result.
            waits_for_others: !bounded && !been_connected,
            needs_state: false,
            followed: cx.followed_log(),
        };
        let result = self.start_node(bootstrap).and_then(|node| {
            // A later connection of this process continues the replay of the first one.
            if !been_connected {
                cx.ddl.expect_replay(&cx.host, position, node.log_end());
            }
            node.connect_and(args, || {
                if stop::is_wanted() {
                    log.info("asked to stop while it waits for a primary component: ending");
                    stop::terminate();
                }
            })
        });
        result.map_err(|error| {
            self.connection_failed();
            error.to_string()
        })
    }

    /// `disconnect`: returns when the server has processed the final view.
    pub(crate) fn disconnect(&self) {
        let Some(node) = self.cx().node() else { return };
        if !self.is_connected() {
            return;
        }
        let began = Instant::now();
        // The server takes none from before this call on.
        self.server_refuses_queries();
        if self.cx().sequence.is_paused() {
            self.start_nothing_more("paused");
        }
        node.disconnect();
        let mut drains = true;
        let in_time = self.wait_until_closed(began + CLOSE_TIMEOUT, || {
            if began.elapsed() > DRAIN_TIMEOUT && std::mem::take(&mut drains) {
                self.start_nothing_more("far behind");
            }
        });
        if !in_time {
            self.cx().host.log.warn("applier threads have not ended: disconnecting without them");
        }
        self.close_option_sync();
        // The server closes the tables that the allow-list callback reads next.
        services::wait_for_allow_list();
    }

    /// Leaves deliveries that have not been begun to the log, because this member leaves.
    fn start_nothing_more(&self, why: &str) {
        let last = self.cx().sequence.stop();
        self.cx().host.log.info(format!(
            "this member is {why} and leaves: it will apply the transactions after seqno {last} when it returns"
        ));
    }
}

/// The error if `wsrep_cluster_address` cannot be read. It begins like the line of Galera's library.
fn bad_address(cluster: &str, url: &str, error: &dyn std::fmt::Display) -> String {
    format!("Failed to open channel '{cluster}' at '{url}': {error}")
}

/// Whether the directory contains segments of a log.
fn has_log(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    entries.flatten().any(|entry| is_segment(&entry.file_name().to_string_lossy()))
}

fn is_segment(name: &str) -> bool {
    let digits = name.strip_prefix("lockstep.").and_then(|rest| rest.strip_suffix(".log"));
    digits.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The error if `grastate.dat` says that this member was not the last one to leave.
fn unsafe_to_found(position: Gtid, has_log: bool) -> String {
    let begin = "It may not be safe to bootstrap the cluster from this node: it was not the last one to leave the \
         cluster and may lack committed transactions.";
    if has_log {
        return format!(
            "{begin} Start the other members without --wsrep-new-cluster: a majority of them continues by itself. If \
             the other members are lost, start this one without --wsrep-new-cluster, too, and run lockstep bootstrap \
             while it waits for them"
        );
    }
    let at = match position.is_defined() {
        true => format!("this member's is {position}"),
        false => "this member's is unknown; a start with --wsrep-recover prints it".to_string(),
    };
    format!(
        "{begin} There is no log here yet (a database that comes from Galera, for one): compare the positions of all \
         members \
         ({at}; the others' are in their grastate.dat, or come from --wsrep-recover). On the member with the highest \
         position set safe_to_bootstrap to 1 in grastate.dat and start it with --wsrep-new-cluster; start the others \
         without it: transactions that only they have are lost"
    )
}

/// Whether a connection founds a cluster. The server keeps passing `bootstrap`, once an empty address or
/// `--wsrep-new-cluster` has set it, until a connection succeeds. If an empty address was rejected, `bootstrap` is still
/// set for the next address. So an address with members, in a process that has been a member, means joining them.
fn founds(wanted: bool, no_members: bool, was_member: bool) -> bool {
    wanted && (no_members || !was_member)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_node::core::Uuid;

    #[test]
    fn plain_ipv6_address_gets_brackets() {
        for (given, address) in
            [("::1", "[::1]"), ("[::1]:4567", "[::1]:4567"), ("db1", "db1"), ("10.0.0.1:7", "10.0.0.1:7")]
        {
            assert_eq!(with_brackets(given.into()), address);
        }
    }

    #[test]
    fn port_of_node_address_is_base_port_unless_that_is_given() {
        for (address, port) in
            [("db1", None), ("db1:16000", Some(16000)), ("::1", None), ("[::1]:7", Some(7)), ("", None)]
        {
            assert_eq!(port_in(address), port, "{address}");
        }
        let log = Log::new(None);
        let dir = std::env::temp_dir().join(format!("lockstep-base-port-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let listens = |text: &str| {
            let settings = open_settings(&log, text, "10.0.0.1:16000", &dir).unwrap();
            settings.with(|options| options.listen())
        };
        assert_eq!(listens(""), "tcp://0.0.0.0:16000");
        assert_eq!(listens("base_port=17000"), "tcp://0.0.0.0:17000");
        assert_eq!(listens("gmcast.listen_addr=tcp://0.0.0.0:4567"), "tcp://0.0.0.0:4567");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn bad_address_names_cluster_address_and_problem() {
        for (url, problem) in [("foo://", "has an unknown scheme"), ("db1", "write gcomm://db1")] {
            let error = lockstep_node::net::ClusterAddress::parse(url, 4567).unwrap_err();
            let text = bad_address("test", url, &error);
            assert!(text.starts_with(&format!("Failed to open channel 'test' at '{url}': ")), "{text}");
            assert!(text.contains(problem), "{text}");
        }
    }

    #[test]
    fn refused_bootstrap_says_what_to_do_with_and_without_log() {
        let at = Gtid { uuid: Uuid([7; 16]), seqno: 407 };
        let text = unsafe_to_found(at, false);
        assert!(text.contains(&format!("this member's is {at}")), "{text}");
        assert!(
            text.contains("On the member with the highest position set safe_to_bootstrap to 1"),
            "{text}"
        );
        assert!(!text.contains("continues by itself"), "{text}");
        assert!(is_segment("lockstep.000000000000001f.log") && !is_segment("lockstep.id.log"));
        let text = unsafe_to_found(at, true);
        assert!(text.contains("continues by itself") && !text.contains("set safe_to_bootstrap"), "{text}");
    }

    #[test]
    fn leftover_bootstrap_request_joins_named_members() {
        assert!(founds(true, true, true) && founds(true, true, false), "an empty address");
        assert!(founds(true, false, false), "--wsrep-new-cluster with a list");
        assert!(!founds(true, false, true), "left over");
        assert!(!founds(false, false, false));
    }
}
