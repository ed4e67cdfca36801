//! `lockstep binlog serve`: joins the cluster as a member without a database, writes its transactions to binlog files, and
//! serves these to replicas.

use super::disk_space::DiskSpace;
use super::feed::{FILE_SEQNOS, Feed, SavedPosition, VERSION};
use super::options::{Config, ServeArgs};
use super::report::{Report, Wait};
use super::retention::Purger;
use super::upstream::{AccountReader, Upstream};
use crate::log_member::{self, End, Hooks, MessageLog, Role, end_by};
use crate::signals::Signals;
use lockstep_binlog::Writer;
use lockstep_binlog::library::Visibility;
use lockstep_binlog::wire::session::Settings;
use lockstep_binlog::wire::{Accounts, Server, ServerConfig, TlsAcceptor};
use lockstep_node::core::Seqno;
use lockstep_node::{Beginning, Delivery, FrontEnd, Level, Node};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// The name of the files: `lockstep-bin.000001`.
const FILES: &str = "lockstep-bin";
/// After this long the error log says that the stream waits.
const SAY_AFTER: Duration = Duration::from_secs(10);
/// File descriptors of a connection: its socket, a copy to close it, its file, and a connection to the upstream with a copy.
const DESCRIPTORS_EACH: u64 = 5;
/// File descriptors for everything else.
const DESCRIPTORS_FREE: u64 = 256;
/// How long the loop waits for a delivery before it looks after the files.
const IDLE: Duration = Duration::from_millis(200);

/// Serves until a signal or an error ends it.
pub(super) fn run(args: ServeArgs) -> Result<ExitCode, String> {
    let Config {
        plan,
        listen,
        accounts: accounts_file,
        upstream,
        domain,
        retention,
        max_connections,
        tls,
        require_tls,
    } = args.config()?;
    let files = plan.dir.join("files");
    std::fs::create_dir_all(&files).map_err(|e| {
        format!("cannot create the directory {}: {e}; name another with --dir", files.display())
    })?;
    let accounts = accounts_file.as_deref().map_or_else(|| Ok(Accounts::default()), Accounts::read);
    let accounts = accounts.map_err(|e| e.to_string())?;
    let upstream = upstream.map(Upstream::open).transpose()?;
    let tls = tls.map(TlsAcceptor::load).transpose().map_err(|e| e.to_string())?.map(Arc::new);
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
    let (library, dropped) = (writer.library().clone(), Arc::new(AtomicU64::new(0)));
    let space = Arc::new(DiskSpace::new(files, log.clone()));
    let report = Arc::new(Report::new(library.clone(), retention, space.clone(), dropped.clone()));
    let _purger = Purger::start(library, retention, log.clone(), dropped)?;
    let _accounts = match &upstream {
        Some(upstream) => {
            Some(AccountReader::start(upstream.accounts.clone(), accounts.clone(), log.clone())?)
        }
        None => None,
    };
    let feed = Feed::new(writer, saved, space, domain);
    let settings = Settings { version: VERSION.into(), domain, ..Settings::default() };
    let mut config = ServerConfig::new(listen, settings, accounts.clone());
    config.max_connections = max_connections.min(connections_for(descriptors(max_connections)));
    if config.max_connections < max_connections {
        let text = format!(
            "only {} connections are accepted instead of {max_connections}: each takes {DESCRIPTORS_EACH} file descriptors. \
             Raise the limit (ulimit -n, LimitNOFILE= in a systemd unit)",
            config.max_connections
        );
        log.write(Level::Warn, &text);
    }
    config.tls.clone_from(&tls);
    config.require_tls = require_tls;
    config.upstream = upstream.and_then(|upstream| upstream.statements);
    let replicas = Replicas { config, report: report.clone(), server: None };
    let lines = log.clone();
    let role = Role {
        front_end: FrontEnd::Reader { begins: Beginning::MultipleOf(FILE_SEQNOS) },
        position,
        hooks: hooks(report, accounts_file, accounts, tls),
        take: move |node: &Node| take_deliveries(node, feed, replicas, &lines),
    };
    log_member::run(&plan, log, &signals, role)
}

/// Raises this process' limit of file descriptors for so many connections, as far as that is allowed. Returns the limit;
/// `None`: there is none. Without a free descriptor the writer could not begin a file.
fn descriptors(connections: usize) -> Option<u64> {
    let wanted = (connections as u64).saturating_mul(DESCRIPTORS_EACH).saturating_add(DESCRIPTORS_FREE);
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current?;
    if current >= wanted {
        return Some(current);
    }
    let raised = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted)).max(current);
    match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum }) {
        Ok(()) => Some(raised),
        Err(_) => Some(current),
    }
}

/// How many connections a limit of file descriptors is enough for.
fn connections_for(limit: Option<u64>) -> usize {
    let Some(limit) = limit else { return usize::MAX };
    let count = limit.saturating_sub(DESCRIPTORS_FREE) / DESCRIPTORS_EACH;
    usize::try_from(count).unwrap_or(usize::MAX).max(1)
}

fn hooks(
    report: Arc<Report>,
    file: Option<PathBuf>,
    accounts: Accounts,
    tls: Option<Arc<TlsAcceptor>>,
) -> Hooks {
    let numbers = report.clone();
    Hooks {
        stats: Some(Arc::new(move || numbers.status().metrics())),
        status: Some(Arc::new(move || serde_json::to_value(report.status()).unwrap_or_default())),
        reload: Some(Box::new(move || {
            let kept = "this instance goes on with what it has";
            if let Some(file) = &file {
                accounts.replace_with(&Accounts::read(file).map_err(|e| format!("{e}; {kept}"))?);
            }
            tls.as_ref().map_or(Ok(()), |tls| tls.reload()).map_err(|e| format!("{e}; {kept}"))
        })),
    }
}

/// The server for replicas. It begins when the stream's server id is known, and ends with this value.
struct Replicas {
    /// Without the stream's server id.
    config: ServerConfig,
    report: Arc<Report>,
    server: Option<Server>,
}

impl Replicas {
    fn begin(&mut self, feed: &Feed, log: &MessageLog) -> Result<(), String> {
        let Some(server_id) = feed.server_id().filter(|_| self.server.is_none()) else { return Ok(()) };
        let mut config = self.config.clone();
        config.settings.server_id = server_id;
        let server = Server::start(config, feed.library().clone()).map_err(|e| {
            format!("cannot listen at {}: {e}; name another address with --listen", self.config.listen)
        })?;
        log.write(
            Level::Info,
            &format!(
                "serves replicas at {}; server id {server_id}, GTID domain {}",
                server.address(),
                self.config.settings.domain
            ),
        );
        self.report.on_server(server.address(), server.table());
        self.server = Some(server);
        Ok(())
    }
}

/// Says once when the stream waits for the result of a statement for long.
struct WaitNotice {
    report: Arc<Report>,
    statement: Option<(Wait, bool)>,
}

impl WaitNotice {
    fn look(&mut self, waits_for: Option<Seqno>, log: &MessageLog) {
        match (&mut self.statement, waits_for) {
            (None, None) => {}
            (Some((wait, said)), Some(now)) if wait.seqno == now => {
                if !*said && wait.since.elapsed() >= SAY_AFTER {
                    *said = true;
                    let text = format!(
                        "the stream waits for the result of the statement at seqno {now}: no server has reported it \
                         yet. It is still being executed, or every server that executed it was lost before its report"
                    );
                    log.write(Level::Warn, &text);
                }
            }
            (_, now) => {
                let wait = now.map(|seqno| Wait { seqno, since: Instant::now() });
                self.report.on_wait(wait);
                self.statement = wait.map(|wait| (wait, false));
            }
        }
    }
}

/// Writes the deliveries to the files. Returns the end of the deliveries.
fn take_deliveries(node: &Node, mut feed: Feed, mut replicas: Replicas, log: &MessageLog) -> End {
    let mut left = false;
    let mut notice = WaitNotice { report: replicas.report.clone(), statement: None };
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
        // First the server: consumers that are behind can read while the writer waits for space.
        let served = replicas.begin(&feed, log).and_then(|()| match end {
            Some(_) => feed.sync(),
            None if is_idle => feed.on_idle(),
            None if feed.is_sync_due() => feed.sync(),
            None => Ok(None),
        });
        notice.look(feed.waits_for(), log);
        let served = served.map(|finished| finished.into_iter().for_each(|seqno| node.finished(seqno)));
        if let Err(text) = served {
            return End::Failed(text);
        }
        if let Some(end) = end {
            return end;
        }
        node.handled();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_files() {
        assert_eq!(connections_for(None), usize::MAX);
        assert_eq!(connections_for(Some(100)), 1);
        assert_eq!(connections_for(Some(DESCRIPTORS_FREE + 200 * DESCRIPTORS_EACH)), 200);
        // Tests may run with any limit, and raising it for one connection changes nothing.
        let limit = descriptors(1);
        assert!(connections_for(limit) >= 1);
        assert!(descriptors(10) >= limit);
    }
}
