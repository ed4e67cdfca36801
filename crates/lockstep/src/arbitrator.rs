//! `lockstep arbitrator`: a node without a database. It votes and keeps the log, and finishes each delivery at once.
//!
//! Its command line and its configuration file are those of garbd, so existing scripts and units only need another path.
//! Under the name `garbd` the program runs this command.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::signals::{Signal, Signals};
use clap::Args;
use lockstep_node::core::{Gtid, Uuid};
use lockstep_node::net::{Address, ClusterAddress};
use lockstep_node::options::Options;
use lockstep_node::{ConnectArgs, DEFAULT_PORT, Delivery, Level, Node, NodeConfig, NodeError, ViewStatus};

/// The default directory of the log.
const DEFAULT_DIR: &str = "/var/lib/lockstep/arbitrator";
/// The default name. It is garbd's.
const DEFAULT_NAME: &str = "garb";
/// The longest member name in bytes that a server can show.
const NAME_MAX: usize = 31;
/// The environment variable that marks the child of `--daemon`.
const CHILD: &str = "LOCKSTEP_ARBITRATOR_CHILD";

#[derive(Args, Debug, Default, Clone)]
pub(crate) struct ArbitratorArgs {
    /// Addresses of members: gcomm://HOST[:PORT][,HOST[:PORT]]..., as in wsrep_cluster_address.
    #[arg(short, long, value_name = "GCOMM", conflicts_with = "positional")]
    address: Option<String>,
    /// Addresses of members, after the options.
    #[arg(value_name = "GCOMM", hide = true)]
    positional: Option<String>,
    /// Name of the cluster, as in wsrep_cluster_name.
    #[arg(short, long, value_name = "NAME")]
    group: Option<String>,
    /// Name of the arbitrator [default: garb].
    #[arg(short, long)]
    name: Option<String>,
    /// Directory of the log [default: the working directory of -w, else /var/lib/lockstep/arbitrator].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Working directory of the daemon, and directory of the log unless --dir is given.
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// Provider options, as in wsrep_provider_options: gmcast.listen_addr, base_host, status.address, ...
    #[arg(short, long)]
    options: Option<String>,
    /// Write log lines to this file instead of standard error. SIGHUP reopens it and reloads certificates.
    #[arg(short, long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// A file with lines `option = value`, with the names of these options. The command line takes precedence.
    #[arg(short, long, value_name = "FILE")]
    cfg: Option<PathBuf>,
    /// Run in the background.
    #[arg(short, long)]
    daemon: bool,
    /// An option of garbd, refused with an explanation: this arbitrator requests no state transfer.
    #[arg(long, hide = true)]
    sst: Option<String>,
    /// Refused, as --sst.
    #[arg(long, hide = true)]
    donor: Option<String>,
}

/// The command line, if the program was called as `garbd`.
pub(crate) fn as_garbd(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    let called = args.first().map(Path::new).and_then(Path::file_name);
    if called.is_some_and(|name| name == "garbd") {
        args.insert(1, "arbitrator".into());
    }
    args
}

impl ArbitratorArgs {
    /// Adds the settings of the configuration file. The command line takes precedence.
    fn complete(mut self) -> Result<ArbitratorArgs, String> {
        self.address = self.address.or(self.positional.take());
        let Some(path) = self.cfg.clone() else { return Ok(self) };
        let text = std::fs::read_to_string(&path)
            .map_err(|e| format!("cannot read the configuration file {}: {e}", path.display()))?;
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() || line.starts_with('[') {
                continue;
            }
            let (key, value) = line.split_once('=').unwrap_or((line, ""));
            let value = value.trim();
            let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value);
            let text = || Some(value.to_owned());
            let path_of = || Some(PathBuf::from(value));
            match key.trim() {
                "address" => self.address = self.address.take().or_else(text),
                "group" => self.group = self.group.take().or_else(text),
                "name" => self.name = self.name.take().or_else(text),
                "options" => self.options = self.options.take().or_else(text),
                "sst" => self.sst = self.sst.take().or_else(text),
                "donor" => self.donor = self.donor.take().or_else(text),
                "log" => self.log = self.log.take().or_else(path_of),
                "dir" => self.dir = self.dir.take().or_else(path_of),
                "workdir" => self.workdir = self.workdir.take().or_else(path_of),
                "daemon" => self.daemon |= !matches!(value, "0" | "no" | "false" | "off"),
                other => {
                    return Err(format!(
                        "{}: line {}: unknown option '{other}'; the options are address, group, name, dir, workdir, \
                         options, log and daemon",
                        path.display(),
                        number + 1
                    ));
                }
            }
        }
        Ok(self)
    }

    fn dir(&self) -> PathBuf {
        self.dir.clone().or_else(|| self.workdir.clone()).unwrap_or_else(|| DEFAULT_DIR.into())
    }
}

/// The arbitrator's arguments, validated.
#[derive(Debug)]
struct Plan {
    name: String,
    group: String,
    peers: Vec<Address>,
    options: Options,
    dir: PathBuf,
    log: Option<PathBuf>,
}

fn plan(args: &ArbitratorArgs) -> Result<Plan, String> {
    if args.sst.is_some() || args.donor.is_some() {
        return Err(
            "--sst and --donor are not supported: this arbitrator keeps the log and requests no state transfer. For a \
             backup, run mariadb-backup on a member"
                .into(),
        );
    }
    let address = args.address.as_deref().unwrap_or_default();
    if address.is_empty() {
        return Err("the addresses of members are missing: give --address gcomm://HOST,HOST".into());
    }
    let parsed = ClusterAddress::parse(address, DEFAULT_PORT).map_err(|e| e.to_string())?;
    if parsed.peers.is_empty() {
        return Err("an arbitrator cannot found a cluster: name members in --address".into());
    }
    let group = args.group.clone().filter(|g| !g.is_empty());
    let group = group.ok_or("the cluster's name is missing: give --group NAME, as in wsrep_cluster_name")?;
    let name = args.name.clone().unwrap_or_else(|| DEFAULT_NAME.into());
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(format!("--name must have 1 to {NAME_MAX} bytes; '{name}' has {}", name.len()));
    }
    let mut text = args.options.clone().unwrap_or_default();
    for (name, value) in &parsed.options {
        text.push_str(&format!("; {name} = {value}"));
    }
    let options = Options::parse(&text).map_err(|e| e.to_string())?;
    if options.bool("pc.bootstrap") {
        return Err(
            "an arbitrator cannot found a cluster: set pc.bootstrap on a member with a database".into()
        );
    }
    let (dir, log) = (args.dir(), args.log.clone());
    Ok(Plan { name, group, peers: parsed.peers, options, dir, log })
}

/// The log of messages: a file, or standard error.
struct MessageLog {
    path: Option<PathBuf>,
    file: Mutex<Option<File>>,
}

impl MessageLog {
    fn open(path: Option<PathBuf>) -> Result<MessageLog, String> {
        let log = MessageLog { path, file: Mutex::new(None) };
        log.reopen()?;
        Ok(log)
    }

    fn reopen(&self) -> Result<(), String> {
        let Some(path) = &self.path else { return Ok(()) };
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|e| format!("cannot write to the log file {}: {e}", path.display()))?;
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
        Ok(())
    }

    fn write(&self, level: Level, text: &str) {
        let kind = match level {
            Level::Error => "ERROR",
            Level::Warn => "Warning",
            Level::Info => "Note",
            Level::Debug => "Debug",
        };
        let line = format!("{} [{kind}] {text}\n", lockstep_local::timestamp());
        // Ignore errors: the arbitrator must keep running if the disk is full or the terminal is closed.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = match file.as_mut() {
            Some(file) => file.write_all(line.as_bytes()),
            None => std::io::stderr().write_all(line.as_bytes()),
        };
    }
}

/// The address that other members connect to: `base_host`, else the listen address, else the local address of the route to
/// the first member.
fn own_address(plan: &Plan) -> Result<String, String> {
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
            "cannot determine the arbitrator's own address, because no member's name can be resolved: set the option \
             base_host"
                .to_owned()
        })
}

/// Runs the arbitrator until a signal or an error ends it.
pub(crate) fn run(args: ArbitratorArgs) -> Result<ExitCode, String> {
    let args = args.complete()?;
    let plan = plan(&args)?;
    std::fs::create_dir_all(&plan.dir).map_err(|e| {
        format!("cannot create the directory {}: {e}; name another with --dir", plan.dir.display())
    })?;
    let log = MessageLog::open(plan.log.clone())?;
    if args.daemon && std::env::var_os(CHILD).is_none() {
        return daemonise(&plan);
    }
    if std::env::var_os(CHILD).is_some() {
        rustix::process::setsid().map_err(|e| format!("cannot create a session: {e}"))?;
    }
    // Block signals before the start of any thread, so that all threads inherit this.
    let signals = Signals::block();
    serve(&plan, Arc::new(log), &signals)
}

/// Starts this program again in the background, and waits until the child has passed its first checks.
fn daemonise(plan: &Plan) -> Result<ExitCode, String> {
    let io = |e: std::io::Error| format!("cannot start in the background: {e}");
    let program = std::env::current_exe().map_err(io)?;
    let log = plan.log.clone().unwrap_or_else(|| plan.dir.join("arbitrator.err"));
    let file = OpenOptions::new().create(true).append(true).open(&log);
    let file = file.map_err(|e| format!("cannot write to the log file {}: {e}", log.display()))?;
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if args.first().is_none_or(|first| first != "arbitrator") {
        args.insert(0, "arbitrator".into());
    }
    let mut child = Command::new(program)
        .args(args)
        .env(CHILD, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .spawn()
        .map_err(io)?;
    std::thread::sleep(Duration::from_millis(500));
    match child.try_wait().map_err(io)? {
        Some(status) => {
            Err(format!("the arbitrator ended right after its start ({status}): see {}", log.display()))
        }
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Error text for a node that ended without a reason. Its log lines have the details.
const BROKEN: &str = "the arbitrator's node ended unexpectedly: restart the arbitrator";

/// The reason why the arbitrator ends.
#[derive(Debug)]
enum End {
    /// The node has failed.
    Failed(String),
    /// The node has left the cluster, because a user removed it.
    Closed,
    /// The node cannot join.
    Refused(NodeError),
}

fn serve(plan: &Plan, log: Arc<MessageLog>, signals: &Signals) -> Result<ExitCode, String> {
    for note in plan.options.notes() {
        log.write(if note.warn { Level::Warn } else { Level::Info }, &note.text);
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
        may_begin_anew: true,
        arbitrator: true,
        donates: true,
        hold: None,
        thread_begins: None,
        tuning: plan.options.tuning(),
        tls: plan.options.tls(),
        status_address: plan.options.status_address(),
        logger: Arc::new(move |level, text: &str| lines.write(level, text)),
        front_end_stats: None,
        // The allowlist is in a database, and an arbitrator has none.
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
            "arbitrator {} of cluster {} at {address}; its log is in {}",
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
        bootstrap: false,
        position: Gtid::UNDEFINED,
        log: Uuid::NIL,
        by_donor: false,
        in_doubt: None,
        timeout,
        waits_for_others: false,
    };
    // This thread holds nothing that needs cleanup, so it may run until the process ends.
    std::thread::spawn(move || {
        let joined = loop {
            match receiver.connect(connect.clone()) {
                // No member answers yet: retry until one does.
                Err(NodeError::Timeout(_)) => {}
                other => break other,
            }
        };
        let end = match joined {
            Ok(()) => finish_deliveries(&receiver),
            Err(error) => End::Refused(error),
        };
        let _ = sender.send(end);
    });
    let outcome = loop {
        match signals.wait(Duration::from_millis(200)) {
            Some(Signal::End) => {
                log.write(Level::Info, "received a signal to end: leaving the cluster");
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
            }
            None => {}
        }
        match ends.try_recv() {
            Ok(End::Closed) => break Ok(ExitCode::SUCCESS),
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

/// Finishes each delivery at once. Without a database there is nothing else to do. Returns the end of the deliveries.
fn finish_deliveries(node: &Node) -> End {
    let mut left = false;
    loop {
        let delivery = node.next(None, None);
        if let Some(Delivery::Donate { id, .. }) = delivery {
            node.donation_done(id, Err(-95));
        } else if let Some(Delivery::Ordered(ordered)) = delivery {
            node.gone(ordered.seqno);
        } else if let Some(end) = delivery.and_then(|delivery| end_by(delivery, &mut left)) {
            return end;
        }
        node.handled();
    }
}

/// Whether this delivery is the last one. A node that leaves normally delivers a last view first (`left`). Without that
/// view the node has failed, and the supervisor must restart this process.
fn end_by(delivery: Delivery, left: &mut bool) -> Option<End> {
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
    use crate::{Cli, Command};
    use clap::Parser;
    use lockstep_node::ViewInfo;

    fn parse(line: &str) -> ArbitratorArgs {
        let args = as_garbd(line.split(' ').map(OsString::from));
        match Cli::try_parse_from(args).unwrap().command {
            Command::Arbitrator(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn garbd_command_line_is_accepted() {
        for line in [
            "lockstep arbitrator --address gcomm://a,b:5 --group shop --name arb --dir /x",
            "/usr/bin/garbd -a gcomm://a,b:5 -g shop -n arb -w /x -l /x/log -o gcs.fc_limit=5;gmcast.segment=3 -d",
            "garbd -g shop -n arb -w /x gcomm://a,b:5",
        ] {
            let plan = plan(&parse(line).complete().unwrap()).unwrap();
            let peers: Vec<String> = plan.peers.iter().map(ToString::to_string).collect();
            assert_eq!((plan.name.as_str(), plan.group.as_str()), ("arb", "shop"), "{line}");
            assert_eq!(peers, ["a:4567", "b:5"], "{line}");
            assert_eq!(plan.dir, Path::new("/x"), "{line}");
        }
        let plan = plan(&parse("garbd -a gcomm://a?gmcast.listen_addr=tcp://127.0.0.1:9 -g s")).unwrap();
        assert_eq!(plan.options.listen(), "tcp://127.0.0.1:9");
        assert_eq!(own_address(&plan).unwrap(), "127.0.0.1:9");
        assert_eq!((plan.name.as_str(), plan.dir.as_path()), ("garb", Path::new(DEFAULT_DIR)));
    }

    #[test]
    fn end_without_last_view_is_a_failure() {
        let mut left = false;
        let Some(End::Failed(text)) = end_by(Delivery::Closed, &mut left) else {
            panic!("the supervisor must see that the node's thread panicked")
        };
        assert!(text.contains("restart the arbitrator"), "{text}");
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
            };
            assert!(end_by(Delivery::View { info, in_log: false }, &mut left).is_none());
            assert_eq!(matches!(end_by(Delivery::Closed, &mut left), Some(End::Closed)), ended, "{status:?}");
        }
    }

    #[test]
    fn arguments_missing_or_unsupported_are_named() {
        let refused = |line: &str| plan(&parse(line).complete().unwrap()).unwrap_err();
        assert!(refused("garbd -g s").contains("--address"));
        assert!(refused("garbd -a gcomm://a").contains("--group"));
        assert!(refused("garbd -a gcomm:// -g s").contains("cannot found a cluster"));
        assert!(refused("garbd -a gcomm://a -g s --sst backup").contains("requests no state"));
        assert!(refused("garbd -a gcomm://a -g s -o nonsense=1").contains("nonsense"));
        let long = format!("garbd -a gcomm://a -g s -n {}", "x".repeat(40));
        assert!(refused(&long).contains("31"));
    }

    #[test]
    fn config_file_supplies_missing_arguments() {
        let path = std::env::temp_dir().join(format!("lockstep-garb-{}.cnf", std::process::id()));
        std::fs::write(
            &path,
            "# of garbd\naddress = gcomm://a\ngroup=\"shop\"\nname = arb # here\ndaemon=no\n",
        )
        .unwrap();
        let line = format!("garbd -n other -c {}", path.display());
        let args = parse(&line).complete().unwrap();
        assert_eq!(args.group.as_deref(), Some("shop"));
        assert_eq!(args.name.as_deref(), Some("other"));
        assert!(!args.daemon);
        std::fs::write(&path, "adress = gcomm://a\n").unwrap();
        assert!(parse(&line).complete().unwrap_err().contains("line 1: unknown option 'adress'"));
        std::fs::remove_file(&path).unwrap();
    }
}
