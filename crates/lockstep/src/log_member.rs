//! A member without a database, as a program: its arguments, its messages, and its life from the start to a signal.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::command::complain;
use crate::existing_group::existing_member;
use crate::signals::{Signal, Signals};
use crate::up::has_log;
use lockstep_node::core::{Gtid, Uuid};
use lockstep_node::net::{Address, ClusterAddress};
use lockstep_node::options::Options;
use lockstep_node::{
    ConnectArgs, DEFAULT_PORT, Delivery, FrontEnd, FrontEndStats, FrontEndStatus, Level, Node, NodeConfig,
    NodeError, ViewStatus,
};

/// The longest member name in bytes that a server can show.
const NAME_MAX: usize = 31;

/// The arguments that every member without a database has.
#[derive(Debug, Default)]
pub(crate) struct MemberArgs {
    /// The program's kind, for messages: "arbitrator".
    pub(crate) what: &'static str,
    /// Addresses of members.
    pub(crate) address: Option<String>,
    /// The cluster's name.
    pub(crate) group: Option<String>,
    /// The member's name.
    pub(crate) name: String,
    /// Provider options.
    pub(crate) options: Option<String>,
    /// The directory of the log.
    pub(crate) dir: PathBuf,
    /// The file of messages, in place of standard error.
    pub(crate) log: Option<PathBuf>,
    /// Whether such members may be a cluster by themselves.
    pub(crate) may_found: bool,
    /// Whether this one founds the cluster.
    pub(crate) founds: bool,
}

/// The arguments of a member without a database, validated.
#[derive(Debug)]
pub(crate) struct Plan {
    what: &'static str,
    pub(crate) name: String,
    pub(crate) group: String,
    pub(crate) peers: Vec<Address>,
    pub(crate) options: Options,
    pub(crate) dir: PathBuf,
    pub(crate) log: Option<PathBuf>,
    founds: bool,
}

impl Plan {
    /// Whether this member founds the cluster, if it has no log.
    pub(crate) fn founds(&self) -> bool {
        self.founds
    }

    fn founding_option(&self) -> &'static str {
        founding_option(self.what)
    }
}

/// The option that founds a group.
fn founding_option(what: &str) -> &'static str {
    if what == "block" { "--new" } else { "--new-cluster" }
}

impl MemberArgs {
    /// Validates the arguments.
    ///
    /// # Errors
    /// A text for people.
    pub(crate) fn plan(self) -> Result<Plan, String> {
        let address = self.address.as_deref().unwrap_or_default();
        let address = if address.is_empty() && self.founds { "gcomm://" } else { address };
        if address.is_empty() {
            return Err("the addresses of members are missing: give --address gcomm://HOST,HOST".into());
        }
        let parsed = ClusterAddress::parse(address, DEFAULT_PORT).map_err(|e| e.to_string())?;
        if parsed.peers.is_empty() && !self.may_found {
            return Err(
                "a member without a database cannot found a cluster: name members in --address".into()
            );
        }
        if parsed.peers.is_empty() && !self.founds {
            let option = founding_option(self.what);
            return Err(format!(
                "--address names no member: give {option} to the first member of a new group"
            ));
        }
        let group = self.group.filter(|g| !g.is_empty());
        let group =
            group.ok_or("the cluster's name is missing: give --group NAME, as in wsrep_cluster_name")?;
        let name = self.name;
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(format!("--name must have 1 to {NAME_MAX} bytes; '{name}' has {}", name.len()));
        }
        let mut text = self.options.unwrap_or_default();
        for (name, value) in &parsed.options {
            text.push_str(&format!("; {name} = {value}"));
        }
        let options = Options::parse(&text).map_err(|e| e.to_string())?;
        if options.bool("pc.bootstrap") {
            return Err(
                "a member without a database cannot found a cluster: set pc.bootstrap on a member with one"
                    .into(),
            );
        }
        Ok(Plan {
            what: self.what,
            name,
            group,
            peers: parsed.peers,
            options,
            dir: self.dir,
            log: self.log,
            founds: self.founds,
        })
    }
}

/// The log of messages: a file, or standard error.
#[derive(Debug)]
pub(crate) struct MessageLog {
    path: Option<PathBuf>,
    file: Mutex<Option<File>>,
}

impl MessageLog {
    pub(crate) fn open(path: Option<PathBuf>) -> Result<MessageLog, String> {
        let log = MessageLog { path, file: Mutex::new(None) };
        log.reopen()?;
        Ok(log)
    }

    pub(crate) fn reopen(&self) -> Result<(), String> {
        let Some(path) = &self.path else { return Ok(()) };
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|e| format!("cannot write to the log file {}: {e}", path.display()))?;
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
        Ok(())
    }

    pub(crate) fn write(&self, level: Level, text: &str) {
        let kind = match level {
            Level::Error => "ERROR",
            Level::Warn => "Warning",
            Level::Info => "Note",
            Level::Debug => "Debug",
        };
        let line = format!("{} [{kind}] {text}\n", lockstep_local::timestamp());
        // Ignore errors: the member must keep running if the disk is full or the terminal is closed.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = match file.as_mut() {
            Some(file) => file.write_all(line.as_bytes()),
            None => std::io::stderr().write_all(line.as_bytes()),
        };
    }
}

/// The address that other members connect to: `base_host`, else the listen address, else the local address of the route to
/// the first member.
pub(crate) fn own_address(plan: &Plan) -> Result<String, String> {
    let listen = Address::parse(&plan.options.listen(), plan.options.port()).map_err(|e| e.to_string())?;
    let host = plan.options.text("base_host");
    if !host.is_empty() {
        let host = match host.parse::<std::net::Ipv6Addr>() {
            Ok(_) => format!("[{host}]"),
            Err(_) => host,
        };
        return Address::parse(&host, listen.port).map(|a| a.to_string()).map_err(|e| e.to_string());
    }
    if !listen.is_wildcard() {
        return Ok(listen.to_string());
    }
    let local_address_to = |peer: &Address| {
        let target = peer.to_string();
        let local = if target.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = UdpSocket::bind(local).ok()?;
        // For UDP, `connect` sends no packet. It only selects a route.
        socket.connect(target.as_str()).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    plan.peers
        .iter()
        .find_map(local_address_to)
        .map(|ip| std::net::SocketAddr::new(ip, listen.port).to_string())
        .ok_or_else(|| {
            "cannot determine this member's own address, because no member's name can be resolved: set the option \
             base_host"
                .to_owned()
        })
}

/// Error text for a node that ended without a reason. Its log lines have the details.
const BROKEN: &str = "the member's node ended unexpectedly: restart this program";

/// The exit code of a member that cannot go on before somebody has changed something, EX_CONFIG in sysexits.h. Units have it in
/// `RestartPreventExitStatus=`.
pub(crate) const NEEDS_OPERATOR: u8 = 78;

/// Why a member without a database cannot go on.
#[derive(Debug)]
pub(crate) struct Failure {
    text: String,
    needs_operator: bool,
}

impl Failure {
    /// Each further start ends in the same way until an operator follows the text.
    pub(crate) fn needs_operator(text: String) -> Failure {
        Failure { text, needs_operator: true }
    }
}

/// Another start may succeed.
impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure { text, needs_operator: false }
    }
}

/// The reason why the member ends.
#[derive(Debug)]
pub(crate) enum End {
    /// It has failed: its supervisor starts it again.
    Failed(String),
    /// It has failed, and its supervisor must not start it again before somebody has done what the text says.
    NeedsOperator(String),
    /// The node has left the cluster, because a user removed it.
    Closed,
    /// The node cannot join.
    Refused(NodeError),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> End {
        match failure.needs_operator {
            true => End::NeedsOperator(failure.text),
            false => End::Failed(failure.text),
        }
    }
}

/// What a program adds to its member's status, and to SIGHUP.
#[derive(Default)]
pub(crate) struct Hooks {
    /// Numbers for the metrics.
    pub(crate) stats: Option<FrontEndStats>,
    /// A part of the status page.
    pub(crate) status: Option<FrontEndStatus>,
    /// Reads the program's own files again. Its error is a warning.
    pub(crate) reload: Option<Box<dyn Fn() -> Result<(), String>>>,
    /// Called when a signal ends the program, before the member leaves.
    pub(crate) before_leave: Option<Box<dyn Fn()>>,
}

/// What the program does with its member.
pub(crate) struct Role<B> {
    /// The kind of front end.
    pub(crate) front_end: FrontEnd,
    /// The position from which it takes the log's entries; undefined: none yet.
    pub(crate) position: Gtid,
    /// The id of the log with which it reached the position; nil if unknown.
    pub(crate) log: Uuid,
    /// See [`ConnectArgs::needs_state`].
    pub(crate) needs_state: bool,
    /// See [`Hooks`].
    pub(crate) hooks: Hooks,
    /// Called once the node runs, before it joins. Returns what takes the deliveries, once it has joined, on a thread of its own,
    /// until they end.
    pub(crate) begin: B,
}

/// Starts the member, joins the cluster, and runs until a signal or an error ends it. `signals` must have been blocked before
/// the first thread began.
///
/// # Errors
/// A text for people; it is in the log of messages as well.
pub(crate) fn run<B, T>(
    plan: &Plan,
    log: Arc<MessageLog>,
    signals: &Signals,
    role: Role<B>,
) -> Result<ExitCode, String>
where
    B: FnOnce(&Node) -> Result<T, String> + Send + 'static,
    T: FnOnce(&Node) -> End,
{
    let Role { front_end, position, log: reached_with, needs_state, hooks, begin } = role;
    let Hooks { stats, status, reload, before_leave } = hooks;
    for note in plan.options.notes() {
        log.write(if note.warn { Level::Warn } else { Level::Info }, &note.text);
    }
    if plan.founds && !has_log(&plan.options.log_dir().unwrap_or_else(|| plan.dir.clone())) {
        let found = existing_member(plan)?;
        if let Some(text) = found.map(|member| member.refusal(&plan.group, plan.founding_option())) {
            log.write(Level::Error, &text);
            complain(&text, false);
            return Ok(ExitCode::from(NEEDS_OPERATOR));
        }
    }
    let address = own_address(plan)?;
    let lines = log.clone();
    let node = Node::start(NodeConfig {
        name: plan.name.clone(),
        data_dir: plan.dir.clone(),
        log_dir: plan.options.log_dir(),
        listen: plan.options.listen(),
        address: address.clone(),
        incoming: String::new(),
        zone: plan.options.zone(),
        wants_vote: plan.options.bool("member.vote"),
        may_begin_anew: !plan.founds,
        front_end,
        donates: true,
        hold: None,
        tuning: plan.options.tuning(),
        tls: plan.options.tls(),
        status_address: plan.options.status_address(),
        logger: Arc::new(move |level, text: &str| lines.write(level, text)),
        front_end_stats: stats,
        front_end_status: status,
        // The allowlist is in a database, and this member has none.
        allowed: None,
        progress: None,
        event: None,
        policy_changed: None,
        end_server: None,
    })
    .map_err(|e| e.to_string())?;
    log.write(
        Level::Info,
        &format!(
            "{} {} of cluster {} at {address}; its log is in {}",
            plan.what,
            plan.name,
            plan.group,
            plan.dir.display()
        ),
    );
    let (sender, ends) = mpsc::channel();
    let receiver = node.clone();
    let timeout = plan.options.time("pc.wait_prim_timeout").max(Duration::from_secs(1));
    let connect = ConnectArgs {
        cluster: plan.group.clone(),
        peers: plan.peers.iter().map(ToString::to_string).collect(),
        bootstrap: plan.founds,
        position,
        log: reached_with,
        by_donor: false,
        in_doubt: None,
        timeout,
        waits_for_others: false,
        needs_state,
        followed: None,
    };
    // This thread holds nothing that needs cleanup, so it may run until the process ends.
    std::thread::spawn(move || {
        let end = match begin(&receiver) {
            Ok(take) => match join(&receiver, &connect) {
                Ok(()) => take(&receiver),
                Err(error) => End::Refused(error),
            },
            Err(text) => End::Failed(text),
        };
        let _ = sender.send(end);
    });
    let outcome = loop {
        match signals.wait(Duration::from_millis(200)) {
            Some(Signal::End) => {
                log.write(Level::Info, "received a signal to end: leaving the cluster");
                if let Some(before_leave) = &before_leave {
                    before_leave();
                }
                node.disconnect();
                break Ok(ExitCode::SUCCESS);
            }
            Some(Signal::Reopen) => {
                if let Err(text) = log.reopen() {
                    log.write(Level::Warn, &text);
                }
                // Members do the same for `socket.ssl_reload`.
                if plan.options.tls().is_some()
                    && let Err(error) = node.reload_tls()
                {
                    log.write(Level::Warn, &error.to_string());
                }
                if let Some(Err(text)) = reload.as_ref().map(|reload| reload()) {
                    log.write(Level::Warn, &text);
                }
            }
            None => {}
        }
        match ends.try_recv() {
            Ok(End::Closed) => break Ok(ExitCode::SUCCESS),
            Ok(End::NeedsOperator(text)) => {
                log.write(Level::Error, &text);
                complain(&text, false);
                break Ok(ExitCode::from(NEEDS_OPERATOR));
            }
            Ok(End::Failed(text)) => break Err(text),
            Ok(End::Refused(error)) => break Err(error.to_string()),
            Err(mpsc::TryRecvError::Empty) => {}
            Err(mpsc::TryRecvError::Disconnected) => break Err(BROKEN.into()),
        }
    };
    node.stop();
    if let Err(text) = &outcome {
        log.write(Level::Error, text);
    }
    outcome
}

/// [`Role::begin`] of a program that does nothing before its member has joined. `take` takes the deliveries.
pub(crate) fn once_joined<T>(take: T) -> impl FnOnce(&Node) -> Result<T, String>
where
    T: FnOnce(&Node) -> End,
{
    move |_| Ok(take)
}

/// Joins the cluster, as soon as members answer.
fn join(node: &Node, connect: &ConnectArgs) -> Result<(), NodeError> {
    loop {
        match node.connect(connect.clone()) {
            Err(NodeError::Timeout(_)) => {}
            other => return other,
        }
    }
}

/// Whether this delivery is the last one. A node that leaves normally delivers a last view first (`left`). Without that
/// view the node has failed, and the supervisor must restart this process.
pub(crate) fn end_by(delivery: Delivery, left: &mut bool) -> Option<End> {
    match delivery {
        Delivery::Failed(text) | Delivery::StateFailed(text) => Some(End::Failed(text)),
        Delivery::Closed if *left => Some(End::Closed),
        Delivery::Closed => Some(End::Failed(BROKEN.into())),
        Delivery::View { info, .. } => {
            *left |= info.status == ViewStatus::Disconnected;
            None
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_node::ViewInfo;

    #[test]
    fn units_do_not_restart_a_member_that_needs_its_operator() {
        for unit in ["lockstep-binlog", "lockstep-block", "lockstep-ingest"] {
            let path = format!("{}/../../packaging/{unit}.service", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&path).unwrap();
            let line = format!("\nRestart=on-failure\nRestartPreventExitStatus={NEEDS_OPERATOR}\n");
            assert!(text.contains(&line), "{path}");
        }
    }

    #[test]
    fn end_without_last_view_is_a_failure() {
        let mut left = false;
        let Some(End::Failed(text)) = end_by(Delivery::Closed, &mut left) else {
            panic!("the supervisor must see that the node's thread panicked")
        };
        assert!(text.contains("restart this program"), "{text}");
        assert!(
            matches!(end_by(Delivery::Failed("disk".into()), &mut left), Some(End::Failed(text)) if text == "disk")
        );
        for (status, ended) in [
            (ViewStatus::NonPrimary, false),
            (ViewStatus::Disconnected, true),
            (ViewStatus::Disconnected, true),
        ] {
            let info = ViewInfo {
                gtid: Gtid::UNDEFINED,
                before: -1,
                number: 1,
                status,
                members: Vec::new(),
                my_index: None,
                time: None,
            };
            assert!(end_by(Delivery::View { info, in_log: false }, &mut left).is_none());
            assert_eq!(matches!(end_by(Delivery::Closed, &mut left), Some(End::Closed)), ended, "{status:?}");
        }
    }
}
