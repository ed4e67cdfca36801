//! `lockstep binlog ingest`: copies the binlog of a plain MariaDB primary to several members, and acknowledges each
//! transaction once a majority of them has it on disk.

mod copy;
mod primary;
mod progress;
mod report;

use self::copy::{Copy, Saved};
use self::primary::{PrimaryConfig, PrimaryReader, PrimaryStatus};
use self::progress::Progress;
pub(crate) use self::report::IngestStatus;
use self::report::Report;
use crate::log_member::{self, End, Hooks, MemberArgs, MessageLog, Plan, Role, end_by};
use crate::signals::Signals;
use clap::Args;
use lockstep_binlog::event::FormatDescription;
use lockstep_binlog::wire::session::Settings;
use lockstep_binlog::wire::sql_client::Target;
use lockstep_binlog::wire::{Accounts, Server, ServerConfig};
use lockstep_binlog::{Library, Position};
use lockstep_node::core::Gtid;
use lockstep_node::{Beginning, Delivery, FrontEnd, Level, Node, ViewStatus};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// The default directory.
const DEFAULT_DIR: &str = "/var/lib/lockstep/ingest";
/// The default name of the member.
const DEFAULT_NAME: &str = "ingest";
/// How long the primary may take for an answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How long the loop waits for a delivery before it looks after the files.
const IDLE: Duration = Duration::from_millis(200);

#[derive(Args, Debug, Default, Clone)]
pub(crate) struct IngestArgs {
    /// Addresses of the other members: gcomm://HOST[:PORT][,HOST[:PORT]]...
    #[arg(short, long, value_name = "GCOMM")]
    address: Option<String>,
    /// Name of this group of members. No servers belong to it.
    #[arg(short, long, value_name = "NAME")]
    group: Option<String>,
    /// Name of this member.
    #[arg(short, long, default_value = DEFAULT_NAME)]
    name: String,
    /// Directory of the log and of the copied binlog files.
    #[arg(long, default_value = DEFAULT_DIR)]
    dir: PathBuf,
    /// Provider options, as in wsrep_provider_options: gmcast.listen_addr, base_host, status.address, ...
    #[arg(short, long)]
    options: Option<String>,
    /// The first member of a new group. Without effect once this member knows others.
    #[arg(long)]
    new_cluster: bool,
    /// The primary.
    #[arg(long, value_name = "HOST:PORT")]
    from: String,
    /// An account on the primary with the privileges REPLICATION SLAVE and BINLOG MONITOR.
    #[arg(long, value_name = "NAME")]
    user: String,
    /// A file with its password in the first line. Nobody else may read it.
    #[arg(long, value_name = "FILE")]
    password_file: PathBuf,
    /// The server id with which the members read the primary, the same for all; no other replica may have it
    /// [default: derived from the group's name]
    #[arg(long, value_name = "NUMBER")]
    server_id: Option<u32>,
    /// Address for replicas.
    #[arg(long, value_name = "HOST:PORT", requires = "accounts")]
    listen: Option<String>,
    /// A file with one account for replicas a line: a name, a blank, and a password. Nobody else may read it.
    #[arg(long, value_name = "FILE")]
    accounts: Option<PathBuf>,
    /// Write log lines to this file instead of standard error. SIGHUP reopens it and reloads certificates.
    #[arg(short, long, value_name = "FILE")]
    log: Option<PathBuf>,
}

impl IngestArgs {
    fn plan(&self) -> Result<Plan, String> {
        let args = MemberArgs {
            what: "ingest",
            address: self.address.clone(),
            group: self.group.clone(),
            name: self.name.clone(),
            options: self.options.clone(),
            dir: self.dir.clone(),
            log: self.log.clone(),
            may_found: true,
            founds: self.new_cluster,
        };
        args.plan()
    }

    fn primary(&self, group: &str) -> Result<PrimaryConfig, String> {
        let password = read_password(&self.password_file)?;
        // 0 and 1 are the ids that servers have by default.
        let derived = (crc32fast::hash(group.as_bytes()) & 0x7fff_ffff).max(2);
        Ok(PrimaryConfig {
            primary: Target {
                address: self.from.clone(),
                user: self.user.clone(),
                password,
                tls: None,
                timeout: ANSWER,
            },
            server_id: self.server_id.unwrap_or(derived),
            name: self.name.clone(),
        })
    }

    fn replicas(&self) -> Result<Option<Replicas>, String> {
        let (Some(listen), Some(accounts)) = (&self.listen, &self.accounts) else { return Ok(None) };
        let address = listen.to_socket_addrs().ok().and_then(|mut found| found.next());
        let address = address.ok_or_else(|| format!("--listen {listen} is no address: give HOST:PORT"))?;
        let accounts = Accounts::read(accounts).map_err(|e| e.to_string())?;
        Ok(Some(Replicas { listen: address, accounts, server: None }))
    }
}

/// The first line of a file that nobody else may read.
fn read_password(path: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("cannot read the password in {}: {error}", path.display());
    let mode = std::fs::metadata(path).map_err(failed)?.permissions().mode();
    if mode & 0o007 != 0 {
        return Err(format!(
            "{0} has a password, and other users of this machine have access to it: chmod o= {0}",
            path.display()
        ));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    Ok(text.lines().next().unwrap_or_default().trim_end_matches('\r').to_owned())
}

/// Copies until a signal or an error ends it.
pub(super) fn run(args: IngestArgs) -> Result<ExitCode, String> {
    let plan = args.plan()?;
    let config = args.primary(&plan.group)?;
    let replicas = args.replicas()?;
    let files = plan.dir.join("files");
    std::fs::create_dir_all(&files).map_err(|e| {
        format!("cannot create the directory {}: {e}; name another with --dir", files.display())
    })?;
    let log = Arc::new(MessageLog::open(plan.log.clone())?);
    let signals = Signals::block();
    let saved = Saved::load(&files)?;
    let copy = Copy::open(&files, saved.as_ref())?;
    let progress = Arc::new(Progress::default());
    let status = Arc::new(PrimaryStatus::default());
    let report = Arc::new(Report::new(config.primary.address.clone(), progress.clone(), status.clone()));
    let (lines, of_thread) = (log.clone(), progress.clone());
    let mut output = Output { replicas, report: report.clone() };
    let role = Role {
        front_end: FrontEnd::Reader { begins: Beginning::Earliest },
        position: saved.map_or(Gtid::UNDEFINED, |saved| saved.gtid),
        hooks: hooks(report),
        take: move |node: &Node| {
            let reader = PrimaryReader {
                node: node.clone(),
                config,
                progress: of_thread.clone(),
                status,
                log: lines.clone(),
            };
            let thread = std::thread::Builder::new().name("ls-primary".into()).spawn(move || reader.run());
            let end = match thread {
                Ok(_) => take_deliveries(node, copy, &mut output, &of_thread, &lines),
                Err(error) => End::Failed(format!("cannot start a thread: {error}")),
            };
            of_thread.stop();
            end
        },
    };
    let ended = log_member::run(&plan, log, &signals, role);
    progress.stop();
    ended
}

fn hooks(report: Arc<Report>) -> Hooks {
    let numbers = report.clone();
    Hooks {
        stats: Some(Arc::new(move || numbers.status().metrics())),
        status: Some(Arc::new(move || serde_json::to_value(report.status()).unwrap_or_default())),
        reload: None,
    }
}

/// The readers of the copy.
struct Output {
    replicas: Option<Replicas>,
    report: Arc<Report>,
}

impl Output {
    fn begin(&mut self, library: &Library, log: &MessageLog) -> Result<(), String> {
        self.report.on_library(library);
        self.replicas.as_mut().map_or(Ok(()), |replicas| replicas.begin(library, &self.report, log))
    }
}

/// The server for replicas. It begins with the first file, and ends with this value.
struct Replicas {
    listen: SocketAddr,
    accounts: Accounts,
    server: Option<Server>,
}

impl Replicas {
    fn begin(&mut self, library: &Library, report: &Report, log: &MessageLog) -> Result<(), String> {
        if self.server.is_some() {
            return Ok(());
        }
        let format = first_event(library)?;
        let state = library.state_at_end();
        let domain = state.to_list().last().map_or(0, |gtid| gtid.domain);
        let settings =
            Settings { version: format.version, server_id: format.server_id, domain, ..Settings::default() };
        let config = ServerConfig::new(self.listen, settings, self.accounts.clone());
        let server = Server::start(config, library.clone()).map_err(|e| {
            format!("cannot listen at {}: {e}; name another address with --listen", self.listen)
        })?;
        let text =
            format!("serves replicas at {}, as the server with id {}", server.address(), format.server_id);
        log.write(Level::Info, &text);
        report.on_server(server.address(), server.table());
        self.server = Some(server);
        Ok(())
    }
}

/// The format description of the newest file.
fn first_event(library: &Library) -> Result<FormatDescription, String> {
    let end = library.end().ok_or("the copy has no file yet")?;
    let reader =
        library.reader("start", Position { file: end.file, offset: 4 }).map_err(|e| e.to_string())?;
    let event = reader.format_description().map_err(|e| e.to_string())?;
    FormatDescription::parse(&event).map_err(|e| format!("the copy's format description {e}"))
}

/// Copies the deliveries to the files. Returns the end of the deliveries.
fn take_deliveries(
    node: &Node,
    mut copy: Copy,
    output: &mut Output,
    progress: &Progress,
    log: &MessageLog,
) -> End {
    let mut left = false;
    let tell = |copy: &Copy| -> Result<(), String> {
        if progress.took(copy.done(), copy.end()) {
            progress.give_begin(copy.begin()?);
        }
        Ok(())
    };
    loop {
        let delivery = node.next(Some(IDLE), None);
        let taken = match delivery {
            Some(Delivery::Donate { id, .. }) => {
                node.donation_done(id, Err(-95));
                Ok(None)
            }
            Some(Delivery::Ordered(ordered)) => {
                let taken = copy.on_ordered(&ordered);
                let connection = ordered.writeset.meta.conn;
                node.gone(ordered.seqno);
                taken.and_then(|is_gap| {
                    tell(&copy)?;
                    if ordered.origin == node.identity().member {
                        progress.saw_own(connection, is_gap);
                    }
                    Ok(None)
                })
            }
            Some(Delivery::StateNeeded { .. }) => {
                Err("the members' logs do not continue this copy: it was away for too \
                 long. Start this member with an empty directory: it begins with the next file"
                    .to_owned())
            }
            Some(delivery) => {
                let view = match &delivery {
                    Delivery::Connected(info) => Some((info, false)),
                    Delivery::View { info, in_log } if info.status == ViewStatus::Primary => {
                        Some((info, *in_log))
                    }
                    _ => None,
                };
                let taken = view.map_or(Ok(()), |(info, is_delivered)| copy.on_view(info, is_delivered));
                taken.and_then(|()| {
                    tell(&copy)?;
                    Ok(end_by(delivery, &mut left))
                })
            }
            None => tell(&copy).map(|()| None),
        };
        let end = taken.unwrap_or_else(|text| Some(End::Failed(text)));
        let end = end.or_else(|| progress.failure().map(End::Failed));
        // After a failure the position of the last sync counts.
        let fails = matches!(end, Some(End::Failed(_)));
        let synced = if !fails && (end.is_some() || copy.is_sync_due()) { copy.sync() } else { Ok(None) };
        let served = synced.and_then(|finished| {
            finished.into_iter().for_each(|seqno| node.finished(seqno));
            copy.library().map_or(Ok(()), |library| output.begin(library, log))
        });
        if let (Err(text), None) = (served, &end) {
            return End::Failed(text);
        }
        if let Some(end) = end {
            return end;
        }
        node.handled();
    }
}
