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
use super::reload::reload;
use super::retention::{Purger, Retention};
use crate::cfg::{self, Size, fill};
use crate::log_member::{self, End, Failure, Hooks, MemberArgs, MessageLog, Plan, Role, end_by};
use crate::signals::Signals;
use clap::Args;
use lockstep_binlog::event::FormatDescription;
use lockstep_binlog::wire::session::Settings;
use lockstep_binlog::wire::sql_client::{ClientTls, Target};
use lockstep_binlog::wire::{Accounts, Server, ServerConfig};
use lockstep_binlog::{Library, Position};
use lockstep_node::core::Gtid;
use lockstep_node::{Beginning, Delivery, FrontEnd, Level, LocalState, Node, ViewStatus};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
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
    /// Name of this member [default: ingest].
    #[arg(short, long)]
    name: Option<String>,
    /// Directory of the log and of the copied binlog files [default: /var/lib/lockstep/ingest].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Provider options, as in wsrep_provider_options: gmcast.listen_addr, base_host, status.address, ...
    #[arg(short, long)]
    options: Option<String>,
    /// Found a new group, at the first start of its first member. Refused if a member in --address has a log of the group
    /// already; without effect once this member has one.
    #[arg(long)]
    new_cluster: bool,
    /// The primary.
    #[arg(long, value_name = "HOST:PORT")]
    from: Option<String>,
    /// An account on the primary with the privileges REPLICATION SLAVE and BINLOG MONITOR.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// A file with its password in the first line. Nobody else may read it.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// The authority of the primary's certificate, in PEM: connect with TLS.
    #[arg(long, value_name = "FILE")]
    ssl_ca: Option<PathBuf>,
    /// The server id with which the members read the primary, the same for all; no other replica may have it
    /// [default: derived from the group's name]
    #[arg(long, value_name = "NUMBER")]
    server_id: Option<u32>,
    /// Address for replicas.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// A file with one account for replicas a line: a name, a blank, and a password. Nobody else may read it. SIGHUP reloads
    /// it.
    #[arg(long, value_name = "FILE")]
    accounts: Option<PathBuf>,
    /// Keep at least the last copied files of this size together; remove older ones [default: keep all].
    #[arg(long, value_name = "SIZE")]
    keep: Option<Size>,
    /// Keep older files for a connected replica until it is so far behind; then drop it [default: twice --keep].
    #[arg(long, value_name = "SIZE")]
    keep_connected: Option<Size>,
    /// Write log lines to this file instead of standard error. SIGHUP reopens it and reloads certificates.
    #[arg(short, long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// A file with lines `option = value`, with the names of these options. The command line takes precedence.
    #[arg(short, long, value_name = "FILE")]
    cfg: Option<PathBuf>,
}

impl IngestArgs {
    /// Adds the settings of the configuration file. The command line takes precedence.
    fn complete(mut self) -> Result<IngestArgs, String> {
        let Some(path) = self.cfg.clone() else { return Ok(self) };
        cfg::read(&path, |key, value| {
            // As in a server's my.cnf, `_` and `-` are the same.
            let key = key.replace('_', "-");
            match key.as_str() {
                "address" => fill(&mut self.address, &key, value),
                "group" => fill(&mut self.group, &key, value),
                "name" => fill(&mut self.name, &key, value),
                "dir" => fill(&mut self.dir, &key, value),
                "options" => fill(&mut self.options, &key, value),
                "from" => fill(&mut self.from, &key, value),
                "user" => fill(&mut self.user, &key, value),
                "password-file" => fill(&mut self.password_file, &key, value),
                "ssl-ca" => fill(&mut self.ssl_ca, &key, value),
                "server-id" => fill(&mut self.server_id, &key, value),
                "listen" => fill(&mut self.listen, &key, value),
                "accounts" => fill(&mut self.accounts, &key, value),
                "keep" => fill(&mut self.keep, &key, value),
                "keep-connected" => fill(&mut self.keep_connected, &key, value),
                "log" => fill(&mut self.log, &key, value),
                "new-cluster" => {
                    self.new_cluster |= cfg::is_on(value);
                    Ok(())
                }
                other => Err(format!(
                    "unknown option '{other}'; `lockstep binlog ingest --help` lists the options"
                )),
            }
        })?;
        Ok(self)
    }

    fn plan(&self) -> Result<Plan, String> {
        let args = MemberArgs {
            what: "ingest",
            address: self.address.clone(),
            group: self.group.clone(),
            name: self.name.clone().unwrap_or_else(|| DEFAULT_NAME.into()),
            options: self.options.clone(),
            dir: self.dir.clone().unwrap_or_else(|| DEFAULT_DIR.into()),
            log: self.log.clone(),
            may_found: true,
            founds: self.new_cluster,
        };
        args.plan()
    }

    fn primary(&self, plan: &Plan) -> Result<PrimaryConfig, String> {
        let from = self.from.clone().ok_or("the primary is missing: give --from HOST:PORT")?;
        if from.rsplit_once(':').is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) {
            return Err(format!("--from {from} is no address: give HOST:PORT"));
        }
        let user = self.user.clone().ok_or("the account on the primary is missing: give --user NAME")?;
        let file = self.password_file.as_ref();
        let file = file.ok_or("the password is missing: give --password-file FILE")?;
        let tls = self.ssl_ca.as_deref().map(ClientTls::load).transpose().map_err(|e| e.to_string())?;
        // 0 and 1 are the ids that servers have by default.
        let derived = (crc32fast::hash(plan.group.as_bytes()) & 0x7fff_ffff).max(2);
        Ok(PrimaryConfig {
            primary: Target {
                address: from,
                user,
                password: read_password(file)?,
                tls: tls.map(Arc::new),
                timeout: ANSWER,
            },
            server_id: self.server_id.unwrap_or(derived),
            name: plan.name.clone(),
        })
    }

    /// Which files are kept; `None`: all.
    fn retention(&self) -> Result<Option<Retention>, String> {
        match (self.keep, self.keep_connected) {
            (Some(keep), connected) => Retention::new(keep, connected).map(Some),
            (None, None) => Ok(None),
            (None, Some(_)) => Err("--keep-connected needs --keep: give both, or neither".into()),
        }
    }

    fn replicas(&self) -> Result<Option<Replicas>, String> {
        let (listen, file) = match (&self.listen, &self.accounts) {
            (None, None) => return Ok(None),
            (Some(listen), Some(file)) => (listen, file.clone()),
            _ => return Err("--listen and --accounts need each other: give both to serve replicas".into()),
        };
        let address = listen.to_socket_addrs().ok().and_then(|mut found| found.next());
        let address = address.ok_or_else(|| format!("--listen {listen} is no address: give HOST:PORT"))?;
        let accounts = Accounts::read(&file).map_err(|e| e.to_string())?;
        Ok(Some(Replicas { listen: address, file, accounts, server: None }))
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
    let args = args.complete()?;
    let plan = args.plan()?;
    let config = args.primary(&plan)?;
    let (replicas, retention) = (args.replicas()?, args.retention()?);
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
    let accounts = replicas.as_ref().map(|replicas| (replicas.file.clone(), replicas.accounts.clone()));
    let mut output = Output {
        replicas,
        report: report.clone(),
        retention,
        saved_file: copy.saved_file(),
        log: log.clone(),
        generation: None,
        purger: None,
    };
    let role = Role {
        front_end: FrontEnd::Reader { begins: Beginning::Earliest, prompt: false },
        position: saved.map_or(Gtid::UNDEFINED, |saved| saved.gtid),
        log: lockstep_node::core::Uuid::NIL,
        needs_state: false,
        hooks: hooks(report, accounts),
        begin: log_member::once_joined(move |node: &Node| {
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
        }),
    };
    let ended = log_member::run(&plan, log, &signals, role);
    progress.stop();
    ended
}

fn hooks(report: Arc<Report>, accounts: Option<(PathBuf, Accounts)>) -> Hooks {
    let numbers = report.clone();
    Hooks {
        stats: Some(Arc::new(move || numbers.status().metrics())),
        status: Some(Arc::new(move || serde_json::to_value(report.status()).unwrap_or_default())),
        reload: Some(Box::new(move || {
            reload(accounts.as_ref().map(|(file, accounts)| (file.as_path(), accounts)), None)
        })),
        before_leave: None,
    }
}

/// The readers of the copy.
struct Output {
    replicas: Option<Replicas>,
    report: Arc<Report>,
    retention: Option<Retention>,
    /// The number of the file with which a restart goes on.
    saved_file: Arc<AtomicU64>,
    log: Arc<MessageLog>,
    /// Which primary of the group the files are of that are read now.
    generation: Option<u32>,
    purger: Option<Purger>,
}

impl Output {
    /// Offers these files, in place of those of the primary before.
    fn begin(&mut self, generation: u32, library: &Library) -> Result<(), String> {
        if self.generation == Some(generation) {
            return Ok(());
        }
        self.report.on_library(library);
        self.purger = None;
        if let Some(retention) = self.retention {
            let dropped = Arc::new(AtomicU64::new(0));
            self.purger = Some(Purger::start(
                library.clone(),
                retention,
                self.log.clone(),
                dropped,
                Some(self.saved_file.clone()),
            )?);
        }
        if let Some(replicas) = &mut self.replicas {
            replicas.begin(library, &self.report, &self.log)?;
        }
        self.generation = Some(generation);
        Ok(())
    }
}

/// The server for replicas. It begins with a primary's first file, and ends with this value.
struct Replicas {
    listen: SocketAddr,
    /// The file of the accounts.
    file: PathBuf,
    accounts: Accounts,
    server: Option<Server>,
}

impl Replicas {
    fn begin(&mut self, library: &Library, report: &Report, log: &MessageLog) -> Result<(), String> {
        // Replicas of the files before connect again, and go on by GTID.
        self.server = None;
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
        let taken: Result<Option<End>, Failure> = match delivery {
            Some(Delivery::Donate { id, .. }) => {
                node.donation_done(id, Err(-95));
                Ok(None)
            }
            Some(Delivery::Ordered(ordered)) => {
                let before = copy.end().generation();
                let taken = copy.on_ordered(&ordered);
                if copy.end().generation() != before
                    && let Some(place) = copy.end().place()
                {
                    let text = format!(
                        "another primary has taken over: the copy goes on with its file {}. Replicas that connect by GTID go \
                         on; the files of the primary before stay, and are not served any more",
                        place.file
                    );
                    log.write(Level::Info, &text);
                }
                let connection = ordered.writeset.meta.conn;
                node.gone(ordered.seqno);
                taken.map_err(Failure::from).and_then(|is_gap| {
                    tell(&copy)?;
                    if ordered.origin == node.identity().member {
                        progress.saw_own(connection, is_gap);
                    }
                    Ok(None)
                })
            }
            Some(Delivery::StateNeeded { .. }) => {
                Err(Failure::needs_operator(
                    "the members' logs do not continue this copy: it was away for too long. Start this member with an empty \
                     directory: it begins with the next file"
                        .to_owned(),
                ))
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
            None => tell(&copy).map(|()| None).map_err(Failure::from),
        };
        let end = taken.unwrap_or_else(|failure| Some(End::from(failure)));
        let end = end.or_else(|| progress.failure().map(End::Failed));
        // After a failure the position of the last sync counts.
        let fails = matches!(end, Some(End::Failed(_) | End::NeedsOperator(_)));
        let synced = if !fails && (end.is_some() || copy.is_sync_due()) { copy.sync() } else { Ok(None) };
        let served = synced.and_then(|finished| {
            finished.into_iter().for_each(|seqno| node.finished(seqno));
            copy.library().map_or(Ok(()), |(generation, library)| {
                library.set_behind(node.state() != LocalState::Synced);
                output.begin(generation, library)
            })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::Parser;

    fn args(line: &str) -> Result<IngestArgs, String> {
        let line = format!("lockstep binlog ingest {line}");
        match Cli::try_parse_from(line.split(' ')).map_err(|e| e.to_string())?.command {
            crate::Command::Binlog(args) => args.ingest_args().complete(),
            other => panic!("{other:?}"),
        }
    }

    /// A directory with a file of this text and mode.
    fn private_file(name: &str, text: &str) -> (PathBuf, PathBuf) {
        let dir = std::env::temp_dir().join(format!("lockstep-ingest-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("secret");
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        (dir, file)
    }

    #[test]
    fn file_supplies_all_options_and_the_command_line_wins() {
        let (dir, secret) = private_file("cfg", "copy secret\n");
        let (cfg, secret) = (dir.join("ingest.cnf"), secret.display().to_string());
        let text = format!(
            "# of a member\n[ingest]\naddress = gcomm://b,c\ngroup = shop\nname = log1\ndir = /x # here\n\
             options = gmcast.listen_addr=tcp://127.0.0.1:9\nnew-cluster = yes\nfrom = db1:3306\nuser = \"copy\"\n\
             password_file = {secret}\nserver-id = 77\nkeep = 3G\nkeep_connected = 4G\nlisten = 127.0.0.1:3307\naccounts = {secret}\nlog = /log\n"
        );
        std::fs::write(&cfg, &text).unwrap();
        let line = format!("--cfg {} --name log2 --from db2:3307", cfg.display());
        let found = args(&line).unwrap();
        let plan = found.plan().unwrap();
        assert_eq!((plan.name.as_str(), plan.group.as_str(), found.new_cluster), ("log2", "shop", true));
        assert_eq!(plan.options.listen(), "tcp://127.0.0.1:9");
        assert_eq!((plan.dir.as_path(), plan.log.as_deref()), (Path::new("/x"), Some(Path::new("/log"))));
        let primary = found.primary(&plan).unwrap();
        assert_eq!((primary.server_id, primary.name.as_str()), (77, "log2"));
        let Target { address, user, password, .. } = primary.primary;
        assert_eq!((address.as_str(), user.as_str(), password.as_str()), ("db2:3307", "copy", "copy secret"));
        let replicas = found.replicas().unwrap().unwrap();
        assert_eq!(replicas.listen, "127.0.0.1:3307".parse().unwrap());
        assert_eq!(replicas.file, Path::new(&secret));
        assert_eq!(found.retention(), Ok(Some(Retention { keep: 3 << 30, keep_connected: 4 << 30 })));
        for (text, error) in
            [("grup = x\n", "line 1: unknown option 'grup'"), ("\nserver-id = one\n", "line 2: server-id")]
        {
            std::fs::write(&cfg, text).unwrap();
            let found = args(&line).unwrap_err();
            assert!(found.contains(error), "{found}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn missing_options_are_named() {
        let (dir, secret) = private_file("missing", "secret\n");
        let primary = |line: &str| {
            let args = args(format!("-a gcomm://b -g shop {line}").trim_end()).unwrap();
            args.primary(&args.plan().unwrap()).map(|config| config.server_id)
        };
        let secret = format!("--password-file {}", secret.display());
        assert!(primary("").unwrap_err().contains("--from"));
        assert!(primary("--from db1").unwrap_err().contains("HOST:PORT"));
        assert!(primary("--from db1:3306").unwrap_err().contains("--user"));
        assert!(primary("--from db1:3306 --user copy").unwrap_err().contains("--password-file"));
        assert!(primary(&format!("--from db1:3306 --user copy {secret}")).unwrap() > 1);
        let served = |line: &str| args(line).unwrap().replicas().map(|found| found.is_some());
        assert_eq!(served("-g shop"), Ok(false));
        assert!(served("--listen 127.0.0.1:3307").unwrap_err().contains("--accounts"));
        let kept = |line: &str| args(line).unwrap().retention();
        assert_eq!(kept("-g shop"), Ok(None));
        assert_eq!(kept("--keep 1G"), Ok(Some(Retention { keep: 1 << 30, keep_connected: 2 << 30 })));
        assert!(kept("--keep-connected 1G").unwrap_err().contains("--keep"));
        assert!(kept("--keep 2G --keep-connected 1G").unwrap_err().contains("--keep-connected"));
        let tls = format!("--from db1:3306 --user copy {secret} --ssl-ca {}", dir.display());
        assert!(primary(&tls).unwrap_err().contains(&dir.display().to_string()));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
