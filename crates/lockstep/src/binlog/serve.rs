//! `lockstep binlog serve`: joins the cluster as a member without a database, writes its transactions to binlog files, and
//! serves these to replicas.

use super::feed::{FILE_SEQNOS, Feed, SavedPosition, VERSION};
use crate::log_member::{self, End, MemberArgs, MessageLog, Plan, Role, end_by};
use crate::signals::Signals;
use clap::Args;
use lockstep_binlog::Writer;
use lockstep_binlog::library::Visibility;
use lockstep_binlog::wire::session::Settings;
use lockstep_binlog::wire::{Accounts, Server, ServerConfig};
use lockstep_node::core::Seqno;
use lockstep_node::{Beginning, Delivery, FrontEnd, Level, Node};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The default directory.
const DEFAULT_DIR: &str = "/var/lib/lockstep/binlog";
/// The default name of the member.
const DEFAULT_NAME: &str = "binlog";
/// The name of the files: `lockstep-bin.000001`.
const FILES: &str = "lockstep-bin";
/// After this long the error log says that the stream waits.
const SAY_AFTER: Duration = Duration::from_secs(10);
/// How long the loop waits for a delivery before it looks after the files.
const IDLE: Duration = Duration::from_millis(200);

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
        // A reader of the log must not count for majorities unless that is asked for.
        let options = format!("member.vote=no; {}", self.options.as_deref().unwrap_or_default());
        let args = MemberArgs {
            what: "binlog",
            address: self.address.clone(),
            group: self.group.clone(),
            name: self.name.clone(),
            options: Some(options),
            dir: self.dir.clone(),
            log: self.log.clone(),
            ..MemberArgs::default()
        };
        args.plan()
    }
}

/// Serves until a signal or an error ends it.
pub(super) fn run(args: ServeArgs) -> Result<ExitCode, String> {
    let plan = args.plan()?;
    let files = plan.dir.join("files");
    std::fs::create_dir_all(&files).map_err(|e| {
        format!("cannot create the directory {}: {e}; name another with --dir", files.display())
    })?;
    let listen = args.listen.to_socket_addrs().ok().and_then(|mut found| found.next());
    let listen = listen.ok_or_else(|| format!("--listen {} is no address: give HOST:PORT", args.listen))?;
    let accounts = Accounts::read(&args.accounts).map_err(|e| e.to_string())?;
    let log = Arc::new(MessageLog::open(plan.log.clone())?);
    let signals = Signals::block();

    let writer = Writer::open(&files, FILES, Visibility::Appended).map_err(|e| e.to_string())?;
    if let Some(torn) = writer.torn() {
        let text =
            format!("{} ended in a torn write, and is cut at byte {}: {}", torn.file, torn.end, torn.why);
        log.write(Level::Info, &text);
    }
    let saved = SavedPosition::in_dir(&files);
    let position = saved.load()?;
    let feed = Feed::new(writer, saved, args.gtid_domain_id);
    let replicas = Replicas { listen, accounts, domain: args.gtid_domain_id, server: None };
    let lines = log.clone();
    let role = Role {
        front_end: FrontEnd::Reader { begins: Beginning::MultipleOf(FILE_SEQNOS) },
        position,
        take: move |node: &Node| take_deliveries(node, feed, replicas, &lines),
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

/// Says once when the stream waits for the result of a statement for long.
#[derive(Default)]
struct WaitNotice {
    statement: Option<(Seqno, Instant, bool)>,
}

impl WaitNotice {
    fn look(&mut self, waits_for: Option<Seqno>, log: &MessageLog) {
        match (&mut self.statement, waits_for) {
            (_, None) => self.statement = None,
            (Some((seqno, since, said)), Some(now)) if *seqno == now => {
                if !*said && since.elapsed() >= SAY_AFTER {
                    *said = true;
                    let text = format!(
                        "the stream waits for the result of the statement at seqno {seqno}: no server has reported it \
                         yet. It is still being executed, or every server that executed it was lost before its report"
                    );
                    log.write(Level::Warn, &text);
                }
            }
            (_, Some(now)) => self.statement = Some((now, Instant::now(), false)),
        }
    }
}

/// Writes the deliveries to the files. Returns the end of the deliveries.
fn take_deliveries(node: &Node, mut feed: Feed, mut replicas: Replicas, log: &MessageLog) -> End {
    let mut left = false;
    let mut notice = WaitNotice::default();
    loop {
        let delivery = node.next(Some(IDLE), None);
        let had_none = delivery.is_none();
        let end = match delivery {
            Some(Delivery::Donate { id, .. }) => {
                node.donation_done(id, Err(-95));
                None
            }
            Some(Delivery::Ordered(ordered)) => {
                let seqno = ordered.seqno;
                let taken = feed.on_delivery(Delivery::Ordered(ordered));
                node.gone(seqno);
                taken.err().map(End::Failed)
            }
            Some(delivery) => {
                let taken = feed.on_delivery(delivery.clone());
                taken.err().map(End::Failed).or_else(|| end_by(delivery, &mut left))
            }
            None => None,
        };
        let is_idle = had_none || node.queued() == 0;
        let written = match end {
            Some(_) => feed.sync(),
            None if is_idle => feed.on_idle(),
            None if feed.is_sync_due() => feed.sync(),
            None => Ok(None),
        };
        notice.look(feed.waits_for(), log);
        let served = written.and_then(|finished| {
            finished.into_iter().for_each(|seqno| node.finished(seqno));
            replicas.begin(&feed, log)
        });
        if let Err(text) = served {
            return End::Failed(text);
        }
        if let Some(end) = end {
            return end;
        }
        node.handled();
    }
}
