//! `lockstep binlog serve`: joins the cluster as a member without a database, writes its transactions to binlog files, and
//! serves these to replicas.

use super::disk_space::DiskSpace;
use super::feed::{FILE_SEQNOS, Feed, VERSION};
use super::member_feed::{Output, Wait, open_files, take_deliveries};
use super::options::{Config, ServeArgs};
use super::reload::reload;
use super::report::Report;
use super::retention::Purger;
use super::upstream::{AccountReader, Upstream};
use crate::log_member::{self, Hooks, MessageLog, Role};
use crate::signals::Signals;
use lockstep_binlog::wire::session::Settings;
use lockstep_binlog::wire::{Accounts, Server, ServerConfig, TlsAcceptor, tls};
use lockstep_node::{Beginning, FrontEnd, Level, Node};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// File descriptors of a connection: its socket, a copy to close it, its file, and a connection to the upstream with a copy.
const DESCRIPTORS_EACH: u64 = 5;
/// File descriptors for everything else.
const DESCRIPTORS_FREE: u64 = 256;
/// The effect of a full disk.
const ON_FULL: &str =
    "and consumers get no new events. Free space there, or start this instance again with a smaller --keep";
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
    let accounts = accounts_file.as_deref().map_or_else(|| Ok(Accounts::default()), Accounts::read);
    let accounts = accounts.map_err(|e| e.to_string())?;
    let upstream = upstream.map(Upstream::open).transpose()?;
    let tls = tls.map(tls::acceptor).transpose().map_err(|e| e.to_string())?.map(Arc::new);
    let log = Arc::new(MessageLog::open(plan.log.clone())?);
    let signals = Signals::block();

    let (writer, saved) = open_files(&plan.dir, &log)?;
    let position = saved.load()?;
    let (library, dropped) = (writer.library().clone(), Arc::new(AtomicU64::new(0)));
    let space = Arc::new(DiskSpace::new(library.dir().to_owned(), log.clone(), ON_FULL));
    let report = Arc::new(Report::new(library.clone(), retention, space.clone(), dropped.clone()));
    let _purger = Purger::start(library, retention, log.clone(), dropped, None)?;
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
    let mut replicas = Replicas { config, report: report.clone(), log: log.clone(), server: None };
    let lines = log.clone();
    let role = Role {
        front_end: FrontEnd::Reader { begins: Beginning::MultipleOf(FILE_SEQNOS), prompt: true },
        position,
        log: lockstep_node::core::Uuid::NIL,
        needs_state: false,
        hooks: hooks(report, accounts_file, accounts, tls),
        begin: log_member::once_joined(move |node: &Node| take_deliveries(node, feed, &lines, &mut replicas)),
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
        reload: Some(Box::new(move || reload(file.as_deref().map(|file| (file, &accounts)), tls.as_deref()))),
        before_leave: None,
    }
}

/// The server for replicas. It begins when the stream's server id is known, and ends with this value.
struct Replicas {
    /// Without the stream's server id.
    config: ServerConfig,
    report: Arc<Report>,
    log: Arc<MessageLog>,
    server: Option<Server>,
}

impl Output for Replicas {
    /// Begins the server, before the first write: consumers that are behind can read while the writer waits for space.
    fn on_round(&mut self, feed: &Feed) -> Result<(), String> {
        let Some(server_id) = feed.server_id().filter(|_| self.server.is_none()) else { return Ok(()) };
        let mut config = self.config.clone();
        config.settings.server_id = server_id;
        let server = Server::start(config, feed.library().clone()).map_err(|e| {
            format!("cannot listen at {}: {e}; name another address with --listen", self.config.listen)
        })?;
        self.log.write(
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

    fn on_wait(&mut self, wait: Option<Wait>) {
        self.report.on_wait(wait);
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
