//! `lockstep block serve`: a member with a copy of the device.

use super::control::ControlSocket;
use super::node_log::NodeLog;
use super::options::{ServeArgs, Settings};
use super::report;
use super::resync::{Resync, ResyncSettings};
use super::takeover::Takeover;
use crate::log_member::{self, End, Failure, Hooks, MessageLog, Role, end_by};
use crate::signals::Signals;
use crate::up::has_log;
use lockstep_block::device::file::{DeviceFile, Position};
use lockstep_block::device::{Config, NotTaken, Replica};
use lockstep_block::nbd::{Connections, Places, Server, ServerConfig, TlsAcceptor};
use lockstep_node::core::Uuid;
use lockstep_node::{Delivery, FrontEnd, Level, Node, ViewInfo, ViewStatus};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::TryRecvError;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;
use tokio::runtime::Runtime;

/// How long the loop waits for a delivery before it looks after the threads.
const IDLE: Duration = Duration::from_millis(200);
/// A member that takes longer to join logs the reason.
const JOINS_WITHIN: Duration = Duration::from_secs(2);
/// Threads that serve clients.
const WORKERS: usize = 2;
/// How long a member that ends waits for its clients' requests.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The options that found a group.
const FOUNDS: [&str; 2] = ["--new", "--new-cluster"];

/// What the status, the reload and the end of the program need once the member has joined.
struct Running {
    replica: Replica<NodeLog>,
    connections: Connections,
    /// Taken at the end.
    server: Mutex<Option<(Server, Runtime)>>,
}

impl Running {
    /// Answers the requests in flight, and closes all connections. The attachment does not end by that.
    fn stop_server(&self) {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((server, runtime)) = server {
            runtime.block_on(server.stop());
            runtime.shutdown_timeout(STOP_TIMEOUT);
        }
    }
}

/// Serves until a signal or an error ends it.
pub(super) fn run(args: ServeArgs) -> Result<ExitCode, String> {
    let settings = args.settings()?;
    let dir = settings.plan.dir.clone();
    ControlSocket::check(&dir)?;
    std::fs::create_dir_all(&dir).map_err(|e| {
        format!("cannot create the directory {}: {e}; name another with --dir", dir.display())
    })?;
    // Before anything is founded or written, but for the directory, in which a place may be.
    let places = Places::take(&settings.listen).map_err(|error| format!("{error}; see --listen"))?;
    let log = Arc::new(MessageLog::open(settings.plan.log.clone())?);
    let signals = Signals::block();
    let tls =
        settings.tls.clone().map(TlsAcceptor::load).transpose().map_err(|e| e.to_string())?.map(Arc::new);
    let (file, position) = DeviceFile::open(&dir)?;
    // A copy from another member that did not end begins again. Its checksums find what it has already.
    let needs_state = settings.gives_up_copy || !position.whole;
    let gives_up_copy = settings.gives_up_copy && position.whole && position.gtid.is_defined();
    // A member that was killed soon after it had founded its group has a log, and no position yet.
    let is_new = !position.gtid.is_defined() && !has_log(&dir);
    if settings.plan.founds() && settings.size.is_none() && is_new {
        log.write(Level::Warn, &no_size(&dir));
    }
    let position = if needs_state { Position::given_up() } else { position };
    let running: Arc<OnceLock<Running>> = Arc::default();
    let resync = ResyncSettings::new(&settings.plan, settings.resync_port, settings.resync_rate)?;
    let Settings { plan, device, size, require_tls, takeover, .. } = settings;
    let lines = log.clone();
    let remedy = remedy(&dir, std::env::args_os());
    let server = ServerConfig {
        tls: tls.clone(),
        require_tls,
        log: Arc::new(move |line| lines.write(Level::Info, line)),
        ..ServerConfig::default()
    };
    let member = Member {
        file,
        position: position.clone(),
        device,
        size,
        server,
        places,
        dir,
        resync,
        gives_up_copy,
        takeover,
        remedy,
        running: running.clone(),
    };
    let lines = log.clone();
    let role = Role {
        front_end: FrontEnd::Device,
        position: position.gtid,
        log: position.log,
        needs_state,
        hooks: hooks(&running, tls),
        begin: move |node: &Node| {
            let serving = member.begin(node, &lines)?;
            Ok::<_, String>(move |node: &Node| serving.deliver_all(node))
        },
    };
    log_member::run(&plan, log, &signals, role)
}

/// A new device without `--size`.
fn no_size(dir: &Path) -> String {
    format!(
        "--new is given without --size: the device will have no size, and clients will be refused. Give it one once this member \
         has joined: lockstep block resize --dir {} --size SIZE",
        dir.display()
    )
}

/// The command that replaces a copy of another log. `arguments`: those of this program.
fn remedy(dir: &Path, arguments: impl Iterator<Item = OsString>) -> String {
    let arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
    let kept = arguments.filter(|argument| !FOUNDS.contains(&argument.as_str()));
    let command: Vec<String> =
        kept.chain(["--resync".to_owned()]).map(|argument| quoted(&argument)).collect();
    format!(
        "If the data of this log count, take them once: {}\nEnd that command with Ctrl-C when `lockstep block status` shows no \
         resync, and start the service again. It gives up what only this copy has. To keep that, copy the directory {} first",
        command.join(" "),
        dir.display()
    )
}

/// An argument as a shell takes it.
fn quoted(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_.,:=@%+".contains(c);
    match !argument.is_empty() && argument.chars().all(is_plain) {
        true => argument.to_owned(),
        false => format!("'{}'", argument.replace('\'', "'\\''")),
    }
}

fn hooks(running: &Arc<OnceLock<Running>>, tls: Option<Arc<TlsAcceptor>>) -> Hooks {
    let (numbers, page, end) = (running.clone(), running.clone(), running.clone());
    let now = |running: &OnceLock<Running>| {
        let running = running.get()?;
        Some(report::status(&running.replica, Some(&running.connections)))
    };
    Hooks {
        stats: Some(Arc::new(move || now(&numbers).map_or_else(Vec::new, |status| status.metrics()))),
        status: Some(Arc::new(move || {
            serde_json::to_value(now(&page).unwrap_or_default()).unwrap_or_default()
        })),
        reload: Some(Box::new(move || {
            tls.as_ref().map_or(Ok(()), |tls| tls.reload().map_err(|e| e.to_string()))
        })),
        before_leave: Some(Box::new(move || {
            if let Some(running) = end.get() {
                running.stop_server();
                running.replica.drain(STOP_TIMEOUT);
            }
        })),
    }
}

/// The device of this member, before it has joined.
struct Member {
    file: DeviceFile,
    position: Position,
    device: Config,
    size: Option<u64>,
    server: ServerConfig,
    places: Places,
    dir: std::path::PathBuf,
    resync: ResyncSettings,
    gives_up_copy: bool,
    takeover: Option<Takeover>,
    remedy: String,
    running: Arc<OnceLock<Running>>,
}

impl Member {
    /// Serves clients and commands before the member joins, so that they learn the reason of a wait.
    fn begin(self, node: &Node, lines: &Arc<MessageLog>) -> Result<Serving, String> {
        let Member {
            file,
            position,
            device,
            size,
            server,
            places,
            dir,
            resync,
            gives_up_copy,
            takeover,
            remedy,
            running,
        } = self;
        let log = NodeLog::new(node.clone(), lines.clone());
        let seed = u64::from_le_bytes(random()?);
        let replica = Replica::new(log, file, position, device, seed);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("ls-nbd")
            .enable_all()
            .build()
            .map_err(|error| format!("cannot start threads: {error}"))?;
        let (fails, failed) = start_threads(&replica)?;
        let resync = Resync::new(node.clone(), replica.clone(), lines.clone(), resync, gives_up_copy);
        let server = {
            let _inside = runtime.enter();
            Server::start(server, places, replica.clone()).map_err(|error| error.to_string())?
        };
        let connections = server.connections().clone();
        let control =
            ControlSocket::start(&dir, replica.clone(), connections.clone(), runtime.handle().clone())?;
        {
            let (replica, lines) = (replica.clone(), lines.clone());
            runtime.spawn(async move { tell_wait(&replica, &lines).await });
        }
        if let Some(size) = size {
            let (replica, lines) = (replica.clone(), lines.clone());
            runtime.spawn(async move { found(&replica, size, &lines).await });
        }
        if let Some(takeover) = takeover {
            let (replica, lines) = (replica.clone(), lines.clone());
            runtime.spawn(async move { takeover.run(&replica, &lines).await });
        }
        running.get_or_init(|| Running {
            replica: replica.clone(),
            connections,
            server: Mutex::new(Some((server, runtime))),
        });
        Ok(Serving {
            replica,
            resync,
            fails,
            failed,
            running,
            _control: control,
            lines: lines.clone(),
            remedy,
        })
    }
}

/// A device that is served. It ends with this value.
struct Serving {
    replica: Replica<NodeLog>,
    resync: Resync,
    /// To `failed`, for threads of a resync.
    fails: mpsc::Sender<Failure>,
    /// How threads of the device have ended.
    failed: mpsc::Receiver<Failure>,
    running: Arc<OnceLock<Running>>,
    _control: ControlSocket,
    lines: Arc<MessageLog>,
    /// The command for an operator if the copy is of another log.
    remedy: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.replica.close();
        if let Some(running) = self.running.get() {
            running.stop_server();
        }
    }
}

impl Serving {
    /// Takes the deliveries until they end.
    fn deliver_all(self, node: &Node) -> End {
        let Serving { replica, resync, fails, failed, lines, .. } = &self;
        lines.write(Level::Info, &format!("serves the export {}", replica.config().name));
        let mut left = false;
        loop {
            match failed.try_recv() {
                Ok(failure) => return failure.into(),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    return End::Failed("the threads of the device have ended: start again".into());
                }
            }
            let Some(delivery) = node.next(Some(IDLE), None) else { continue };
            let taken = match &delivery {
                Delivery::Ordered(ordered) => {
                    let (seqno, origin) = (ordered.seqno, ordered.origin);
                    let taken = match ordered.pass {
                        true => replica.deliver(seqno, &origin, &ordered.writeset.data),
                        false if replica.deliver_refused(seqno, &origin, &ordered.writeset.data) => Ok(()),
                        false => {
                            if origin == node.identity().member {
                                replica.refused(seqno);
                            } else {
                                replica.pass(seqno);
                            }
                            Ok(())
                        }
                    };
                    node.gone(seqno);
                    if let Err(error) = taken {
                        return Failure::from(error).into();
                    }
                    continue;
                }
                Delivery::Connected(info) => self.connected(node, info),
                Delivery::View { info, in_log } => self.view(node, info, *in_log),
                Delivery::Synced => {
                    replica.caught_up();
                    Ok(())
                }
                Delivery::Donate { id, request, joiner, .. } => {
                    resync.donate(*id, request, joiner);
                    Ok(())
                }
                Delivery::StateNeeded { .. } => resync.begin(fails.clone()).map_err(Failure::from),
                _ => Ok(()),
            };
            if let Some(end) = end_by(delivery, &mut left) {
                return end;
            }
            if let Err(failure) = taken {
                return failure.into();
            }
            node.handled();
        }
    }

    fn connected(&self, node: &Node, info: &ViewInfo) -> Result<(), Failure> {
        let log = node.identity();
        self.replica.log().viewed(&info.members);
        // Older views of the log may be of the branch before.
        if info.gtid.uuid != log.history {
            return Ok(());
        }
        let connected =
            self.replica.connected(log.history, log.log, |position| node.in_present_history(position));
        connected.map_err(|text| Failure::needs_operator(format!("{text}. {}", self.remedy)))
    }

    fn view(&self, node: &Node, info: &ViewInfo, in_log: bool) -> Result<(), Failure> {
        if info.status != ViewStatus::Primary {
            return Ok(());
        }
        self.connected(node, info)?;
        self.replica.viewed(info.members.iter().map(|member| member.id).collect());
        if in_log {
            self.replica.pass(info.gtid.seqno);
        }
        Ok(())
    }
}

impl From<NotTaken> for Failure {
    fn from(error: NotTaken) -> Failure {
        match error.needs_operator() {
            true => Failure::needs_operator(error.to_string()),
            false => error.to_string().into(),
        }
    }
}

/// Tells how a thread of the device ended, also if it panicked.
struct Ends {
    thread: &'static str,
    /// Why, if it knows.
    text: Option<String>,
    sender: mpsc::Sender<Failure>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        let text = self.text.take().unwrap_or_else(|| {
            format!("the thread {} has ended: see the lines before this one, and start again", self.thread)
        });
        // At the member's end nobody listens.
        let _ = self.sender.send(text.into());
    }
}

/// The threads of the device. Both run as long as the member does: the end of one arrives at the receiver.
fn start_threads(
    replica: &Replica<NodeLog>,
) -> Result<(mpsc::Sender<Failure>, mpsc::Receiver<Failure>), String> {
    let (sender, failed) = mpsc::channel();
    let start = |thread: &'static str, work: fn(&Replica<NodeLog>) -> Result<(), String>| {
        let (replica, sender) = (replica.clone(), sender.clone());
        let run = move || {
            let mut ends = Ends { thread, text: None, sender };
            ends.text = work(&replica).err();
        };
        let started = std::thread::Builder::new().name(thread.into()).spawn(run);
        started.map_err(|error| format!("cannot start a thread: {error}"))
    };
    start("ls-submit", |replica| {
        replica.submit_in_background();
        Ok(())
    })?;
    start("ls-device", Replica::write_back)?;
    Ok((sender.clone(), failed))
}

/// Says why clients are refused, unless the member joins at once. The node repeats its part of that.
async fn tell_wait(replica: &Replica<NodeLog>, lines: &MessageLog) {
    tokio::time::sleep(JOINS_WITHIN).await;
    if let Some(why) = replica.waits_for() {
        lines.write(
            Level::Warn,
            &format!("clients of the device are refused until this member has joined: {why}"),
        );
    }
}

/// Gives the device its first size. A device that has one keeps it.
async fn found(replica: &Replica<NodeLog>, size: u64, lines: &MessageLog) {
    while replica.until_caught_up().await.is_err() {
        // Some errors come at once.
        tokio::time::sleep(IDLE).await;
    }
    let found = replica.status().attachments.size();
    if found == size {
        return;
    }
    if found != 0 {
        let text = format!(
            "the device has {found} bytes, and --size says {size}: --size is only for a new device; see `lockstep block resize`"
        );
        return lines.write(Level::Warn, &text);
    }
    match replica.resize(size).await {
        Ok(()) => lines.write(Level::Info, &format!("the device has {size} bytes")),
        Err(text) => lines.write(Level::Warn, &format!("cannot give the device its size: {text}")),
    }
}

fn random() -> Result<[u8; 8], String> {
    let mut bytes = [0; 8];
    let uuid: Uuid = lockstep_node::random_uuid().map_err(|error| error.to_string())?;
    bytes.copy_from_slice(&uuid.0[..8]);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_is_the_command_of_this_start_with_a_resync() {
        let arguments = [
            "/usr/bin/lockstep",
            "block",
            "serve",
            "--new",
            "-o",
            "base_host=m1; log.size=1G",
            "--name",
            "it's",
        ];
        let text = remedy(Path::new("/d"), arguments.map(OsString::from).into_iter());
        let command =
            "/usr/bin/lockstep block serve -o 'base_host=m1; log.size=1G' --name 'it'\\''s' --resync\n";
        assert!(text.contains(command), "{text}");
    }
}
