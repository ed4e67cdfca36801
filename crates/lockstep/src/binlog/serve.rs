//! `lockstep binlog serve`: joins the cluster as a member without a database, writes its transactions to binlog files, and
//! serves these to replicas.

use super::feed::{FILE_SEQNOS, Feed, SavedPosition};
use crate::log_member::{self, End, MemberArgs, MessageLog, Plan, Role, end_by};
use crate::signals::Signals;
use clap::Args;
use lockstep_binlog::library::Visibility;
use lockstep_binlog::{Library, Writer, wire};
use lockstep_node::{Delivery, FrontEnd, Level, Node};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// The default directory.
const DEFAULT_DIR: &str = "/var/lib/lockstep/binlog";
/// The default name of the member.
const DEFAULT_NAME: &str = "binlog";
/// The name of the files: `lockstep-bin.000001`.
const FILES: &str = "lockstep-bin";
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
    let log = Arc::new(MessageLog::open(plan.log.clone())?);
    let signals = Signals::block();

    let writer = Writer::open(&files, FILES, Visibility::Appended).map_err(|e| e.to_string())?;
    if let Some(torn) = writer.torn() {
        let text =
            format!("{} ended in a torn write, and is cut at byte {}: {}", torn.file, torn.end, torn.why);
        log.write(Level::Info, &text);
    }
    let library = writer.library().clone();
    let saved = SavedPosition::in_dir(&files);
    let position = saved.load()?;
    let server = serve_replicas(&args, library.clone(), &log)?;
    log.write(Level::Info, &format!("serves replicas at {}", args.listen));

    let feed = Feed::new(writer, saved, args.gtid_domain_id);
    let lines = log.clone();
    let role = Role {
        front_end: FrontEnd::Reader { begins_at_multiple_of: FILE_SEQNOS },
        position,
        take: move |node: &Node| take_deliveries(node, feed, &lines),
    };
    let outcome = log_member::run(&plan, log, &signals, role);
    library.close();
    drop(server);
    outcome
}

/// Writes the deliveries to the files. Returns the end of the deliveries.
fn take_deliveries(node: &Node, mut feed: Feed, log: &MessageLog) -> End {
    let mut left = false;
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
                let taken = feed.on_delivery(node, Delivery::Ordered(ordered));
                node.gone(seqno);
                taken.err().map(End::Failed)
            }
            Some(delivery) => {
                let taken = feed.on_delivery(node, delivery.clone());
                taken.err().map(End::Failed).or_else(|| end_by(delivery, &mut left))
            }
            None => None,
        };
        let is_idle = had_none || node.queued() == 0;
        let written = match (end.is_some(), is_idle) {
            (true, _) => feed.sync(),
            (false, true) => feed.on_idle(),
            (false, false) => Ok(None),
        };
        match written {
            Ok(Some(seqno)) => node.finished(seqno),
            Ok(None) => {}
            Err(text) => return End::Failed(text),
        }
        if let Some(end) = end {
            if let End::Failed(text) = &end {
                log.write(Level::Error, text);
            }
            return end;
        }
        node.handled();
    }
}
