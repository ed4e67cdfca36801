//! `lockstep arbitrator`: a node without a database. It votes and keeps the log, and finishes each delivery at once.
//!
//! Its command line and its configuration file are those of garbd, so existing scripts and units only need another path.
//! Under the name `garbd` the program runs this command.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::cfg;
use crate::log_member::{self, End, Hooks, MemberArgs, MessageLog, Plan, Role, end_by};
use crate::signals::Signals;
use clap::Args;
use lockstep_node::core::Gtid;
use lockstep_node::{Delivery, FrontEnd, Node};

/// The default directory of the log.
const DEFAULT_DIR: &str = "/var/lib/lockstep/arbitrator";
/// The default name. It is garbd's.
const DEFAULT_NAME: &str = "garb";
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
        cfg::read(&path, |key, value| {
            let text = || Some(value.to_owned());
            let path_of = || Some(PathBuf::from(value));
            match key {
                "address" => self.address = self.address.take().or_else(text),
                "group" => self.group = self.group.take().or_else(text),
                "name" => self.name = self.name.take().or_else(text),
                "options" => self.options = self.options.take().or_else(text),
                "sst" => self.sst = self.sst.take().or_else(text),
                "donor" => self.donor = self.donor.take().or_else(text),
                "log" => self.log = self.log.take().or_else(path_of),
                "dir" => self.dir = self.dir.take().or_else(path_of),
                "workdir" => self.workdir = self.workdir.take().or_else(path_of),
                "daemon" => self.daemon |= cfg::is_on(value),
                other => {
                    return Err(format!(
                        "unknown option '{other}'; the options are address, group, name, dir, workdir, options, log and \
                         daemon"
                    ));
                }
            }
            Ok(())
        })?;
        Ok(self)
    }

    fn dir(&self) -> PathBuf {
        self.dir.clone().or_else(|| self.workdir.clone()).unwrap_or_else(|| DEFAULT_DIR.into())
    }
}

fn plan(args: &ArbitratorArgs) -> Result<Plan, String> {
    if args.sst.is_some() || args.donor.is_some() {
        return Err(
            "--sst and --donor are not supported: this arbitrator keeps the log and requests no state transfer. For a \
             backup, run mariadb-backup on a member"
                .into(),
        );
    }
    let args = MemberArgs {
        what: "arbitrator",
        address: args.address.clone(),
        group: args.group.clone(),
        name: args.name.clone().unwrap_or_else(|| DEFAULT_NAME.into()),
        options: args.options.clone(),
        dir: args.dir(),
        log: args.log.clone(),
        ..MemberArgs::default()
    };
    args.plan()
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
    let role = Role {
        front_end: FrontEnd::Nothing,
        position: Gtid::UNDEFINED,
        log: lockstep_node::core::Uuid::NIL,
        needs_state: false,
        hooks: Hooks::default(),
        begin: log_member::once_joined(finish_deliveries),
    };
    log_member::run(&plan, Arc::new(log), &signals, role)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_member::own_address;
    use crate::{Cli, Command};
    use clap::Parser;

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
