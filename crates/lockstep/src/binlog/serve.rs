//! `lockstep binlog serve`: joins the cluster as a member without a database, writes its transactions to binlog files, and
//! serves these to replicas.

use super::feed::{FILE_SEQNOS, Feed, VERSION};
use super::member_feed::{open_files, plan_of_reader, take_deliveries};
use crate::log_member::{self, MemberArgs, MessageLog, Plan, Role};
use crate::signals::Signals;
use clap::Args;
use lockstep_binlog::wire::session::Settings;
use lockstep_binlog::wire::{Accounts, Server, ServerConfig};
use lockstep_node::{FrontEnd, Level, Node};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// The default directory.
const DEFAULT_DIR: &str = "/var/lib/lockstep/binlog";
/// The default name of the member.
const DEFAULT_NAME: &str = "binlog";

#[derive(Args, Debug, Default, Clone)]
pub(crate) struct ServeArgs {
    /// Addresses of members: gcomm://HOST[:PORT][,HOST[:PORT]]..., as in wsrep_cluster_address.
    #[arg(short, long, value_name = "GCOMM")]
    address: Option<String>,
    /// Name of the cluster, as in wsrep_cluster_name.
    #[arg(short, long, value_name = "NAME")]
    group: Option<String>,
    /// Name of this member.
    #[arg(short, long, default_value = DEFAULT_NAME)]
    name: String,
    /// Directory of the log and of the binlog files.
    #[arg(long, default_value = DEFAULT_DIR)]
    dir: PathBuf,
    /// Provider options, as in wsrep_provider_options: gmcast.listen_addr, base_host, status.address, ...
    #[arg(short, long)]
    options: Option<String>,
    /// Address for replicas.
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// A file with one account a line: a name, a blank, and a password. Nobody else may read it.
    #[arg(long, value_name = "FILE")]
    accounts: PathBuf,
    /// The domain of the GTIDs: the same on every instance.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    gtid_domain_id: u32,
    /// Write log lines to this file instead of standard error. SIGHUP reopens it and reloads certificates.
    #[arg(short, long, value_name = "FILE")]
    log: Option<PathBuf>,
}

impl ServeArgs {
    fn plan(&self) -> Result<Plan, String> {
        plan_of_reader(MemberArgs {
            what: "binlog",
            address: self.address.clone(),
            group: self.group.clone(),
            name: self.name.clone(),
            options: self.options.clone(),
            dir: self.dir.clone(),
            log: self.log.clone(),
        })
    }
}

/// Serves until a signal or an error ends it.
pub(super) fn run(args: ServeArgs) -> Result<ExitCode, String> {
    let plan = args.plan()?;
    let listen = args.listen.to_socket_addrs().ok().and_then(|mut found| found.next());
    let listen = listen.ok_or_else(|| format!("--listen {} is no address: give HOST:PORT", args.listen))?;
    let accounts = Accounts::read(&args.accounts).map_err(|e| e.to_string())?;
    let log = Arc::new(MessageLog::open(plan.log.clone())?);
    let signals = Signals::block();

    let (writer, saved) = open_files(&plan.dir, &log)?;
    let position = saved.load()?;
    let feed = Feed::new(writer, saved, args.gtid_domain_id);
    let mut replicas = Replicas { listen, accounts, domain: args.gtid_domain_id, server: None };
    let lines = log.clone();
    let role = Role {
        front_end: FrontEnd::Reader { begins_at_multiple_of: FILE_SEQNOS },
        position,
        take: move |node: &Node| take_deliveries(node, feed, &lines, |feed| replicas.begin(feed, &lines)),
    };
    log_member::run(&plan, log, &signals, role)
}

/// The server for replicas. It begins when the stream's server id is known, and ends with this value.
struct Replicas {
    listen: SocketAddr,
    accounts: Accounts,
    domain: u32,
    server: Option<Server>,
}

impl Replicas {
    fn begin(&mut self, feed: &Feed, log: &MessageLog) -> Result<(), String> {
        let Some(server_id) = feed.server_id().filter(|_| self.server.is_none()) else { return Ok(()) };
        let settings =
            Settings { version: VERSION.into(), server_id, domain: self.domain, ..Settings::default() };
        let config = ServerConfig::new(self.listen, settings, self.accounts.clone());
        let server = Server::start(config, feed.library().clone()).map_err(|e| {
            format!("cannot listen at {}: {e}; name another address with --listen", self.listen)
        })?;
        log.write(
            Level::Info,
            &format!(
                "serves replicas at {}; server id {server_id}, GTID domain {}",
                server.address(),
                self.domain
            ),
        );
        self.server = Some(server);
        Ok(())
    }
}
