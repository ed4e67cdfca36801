//! Sockets and threads of a copy of the device from another member.
//!
//! The joiner listens, and asks the group for a donor. The leader chooses one, and that one connects. Until the joiner says that
//! it has the state, the node asks again by itself: after each failure that the donor reports, and 15 s after a lost donor. The
//! joiner asks anew where neither happens.

use super::node_log::NodeLog;
use crate::log_member::{Failure, MessageLog, Plan, own_address};
use bytes::Bytes;
use lockstep_block::copy::pace::Pace;
use lockstep_block::copy::receiver::{greet, refuse};
use lockstep_block::copy::wire::{Hello, Request, Token};
use lockstep_block::copy::{CopyError, Progress};
use lockstep_block::device::resync::Wholeness;
use lockstep_block::device::{Replica, ReplicaStatus};
use lockstep_node::core::Gtid;
use lockstep_node::net::{Address, Host, TlsFiles, TlsIdentity, TlsStream};
use lockstep_node::{Level, Node};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

/// How long a connection may take until a donor has proved itself.
const GREETING: Duration = Duration::from_secs(15);
/// How long the other side of a copy may send nothing, or take nothing.
const STALL: Duration = Duration::from_secs(60);
/// Connections whose donors have not proved themselves yet.
const GREETINGS_MAX: usize = 8;
/// How often the joiner looks for connections.
const LOOK: Duration = Duration::from_millis(100);
/// Without a donor's connection for this long, the joiner asks anew: the donor's word may have been lost.
const ASK_ANEW: Duration = Duration::from_secs(90);
/// How often the progress is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// "Ask again" as the result of a donation.
const AGAIN: i32 = -11;
/// "Not supported" as the result of a donation: the joiner ends.
const UNSUPPORTED: i32 = -95;

/// The options of resyncs.
#[derive(Clone, Debug)]
pub(super) struct ResyncSettings {
    /// The group's name.
    pub(super) group: String,
    /// This member's name.
    pub(super) name: String,
    /// This member's address for other members.
    pub(super) address: Address,
    /// The host of `gmcast.listen_addr`; a wildcard: all addresses.
    pub(super) bind: Host,
    /// The port on which a joiner listens; `None`: the one after the member's own, or any if that is in use.
    pub(super) port: Option<u16>,
    /// Bytes a second that a donor sends; 0: any number.
    pub(super) rate: u64,
    /// The members' certificate, if they use TLS.
    pub(super) tls: Option<TlsFiles>,
}

impl ResyncSettings {
    /// The settings of a member.
    ///
    /// # Errors
    /// Its address is not known: a text for people.
    pub(super) fn new(plan: &Plan, port: Option<u16>, rate: u64) -> Result<ResyncSettings, String> {
        let address =
            |text: &str| Address::parse(text, plan.options.port()).map_err(|error| error.to_string());
        Ok(ResyncSettings {
            group: plan.group.clone(),
            name: plan.name.clone(),
            address: address(&own_address(plan)?)?,
            bind: address(&plan.options.listen())?.host,
            port,
            rate,
            tls: plan.options.tls().map(|tls| tls.files),
        })
    }

    /// The certificate as it is in the files now.
    fn identity(&self) -> Result<Option<TlsIdentity>, CopyError> {
        let load = |files| TlsIdentity::load(files).map_err(|error| CopyError::Refused(error.to_string()));
        self.tls.as_ref().map(load).transpose()
    }

    fn listen(&self) -> Result<TcpListener, String> {
        let bind = |port| {
            let place = Address { host: self.bind.clone(), port, ..self.address.clone() };
            let listener = TcpListener::bind(place.to_string());
            let listener = listener.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
            listener.map_err(|error| format!("cannot listen for a donor at {place}: {error}"))
        };
        match self.port {
            Some(port) => bind(port).map_err(|text| format!("{text}; give another port with --resync-port")),
            None => bind(self.address.port.saturating_add(1)).or_else(|_| bind(0)),
        }
    }
}

/// A socket whose calls end in time.
struct Timed {
    stream: TcpStream,
    /// Until the donor has proved itself, everything together must end by then.
    greets_until: Instant,
    /// Set once it has.
    greeted: Arc<OnceLock<()>>,
}

impl Timed {
    fn new(stream: TcpStream) -> io::Result<(Timed, Arc<OnceLock<()>>)> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        let greeted = Arc::<OnceLock<()>>::default();
        let greets_until = Instant::now() + GREETING;
        Ok((Timed { stream, greets_until, greeted: greeted.clone() }, greeted))
    }

    fn limit(&self) -> io::Result<Duration> {
        if self.greeted.get().is_some() {
            return Ok(STALL);
        }
        let left = self.greets_until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.limit()?))?;
        self.stream.read(into)
    }
}

impl Write for Timed {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.limit()?))?;
        self.stream.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// A stream between joiner and donor.
enum Stream {
    Plain(Timed),
    Tls(TlsStream<Timed>),
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(into),
            Stream::Tls(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write(from),
            Stream::Tls(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

/// A resync in the status of a member.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ResyncStatus {
    /// `needed`, `copying` or `until` at a joiner; `sending` at a donor.
    pub(crate) state: String,
    /// The other member.
    pub(crate) with: Option<String>,
    /// The copy is whole once the device file has this seqno.
    pub(crate) until_seqno: Option<i64>,
    /// Bytes of the device that were compared.
    pub(crate) done_bytes: u64,
    /// The device's size.
    pub(crate) total_bytes: u64,
    /// Bytes that were sent because they differed.
    pub(crate) sent_bytes: u64,
}

/// The state of a donor.
const SENDING: &str = "sending";

impl ResyncStatus {
    /// Whether the copy is this member's: it is not whole.
    pub(super) fn is_to_this_member(&self) -> bool {
        self.state != SENDING
    }

    /// Bytes of the device that were not compared yet.
    pub(super) fn left_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.done_bytes)
    }

    /// The copies of a replica: to it, or from it.
    pub(super) fn of(replica: &ReplicaStatus) -> Option<ResyncStatus> {
        let copy = |state: &str, with: &str, progress: &Progress| ResyncStatus {
            state: state.into(),
            with: Some(with.to_owned()),
            until_seqno: None,
            done_bytes: progress.done,
            total_bytes: progress.total,
            sent_bytes: progress.sent,
        };
        match &replica.wholeness {
            Wholeness::Whole => {
                replica.donation.as_ref().map(|donation| copy(SENDING, &donation.joiner, &donation.progress))
            }
            Wholeness::Needed => Some(ResyncStatus { state: "needed".into(), ..ResyncStatus::default() }),
            Wholeness::Copying { donor, progress } => Some(copy("copying", donor, progress)),
            Wholeness::Until(seqno) => Some(ResyncStatus {
                state: "until".into(),
                until_seqno: Some(*seqno),
                ..ResyncStatus::default()
            }),
        }
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let with = self.with.as_deref().unwrap_or("another member");
        let progress = format!(
            "{} of {} MiB compared, {} MiB sent",
            self.done_bytes >> 20,
            self.total_bytes >> 20,
            self.sent_bytes >> 20
        );
        match (self.state.as_str(), self.until_seqno) {
            (SENDING, _) => format!("sends the device to {with}: {progress}"),
            ("copying", _) => format!("this copy is inconsistent: takes the device from {with}: {progress}"),
            (_, Some(seqno)) => format!("this copy is inconsistent until it has seqno {seqno} of the log"),
            _ => "this copy is not whole: waits for a member that sends the device".into(),
        }
    }
}

/// What both sides of a resync use.
#[derive(Clone)]
pub(super) struct Resync {
    node: Node,
    replica: Replica<NodeLog>,
    lines: Arc<MessageLog>,
    settings: ResyncSettings,
    /// Whether an operator gives up this member's copy, which was whole.
    gives_up_copy: bool,
}

impl Resync {
    pub(super) fn new(
        node: Node,
        replica: Replica<NodeLog>,
        lines: Arc<MessageLog>,
        settings: ResyncSettings,
        gives_up_copy: bool,
    ) -> Resync {
        Resync { node, replica, lines, settings, gives_up_copy }
    }

    fn note(&self, text: &str) {
        self.lines.write(Level::Info, text);
    }

    fn warn(&self, text: &str) {
        self.lines.write(Level::Warn, text);
    }
}

/// As a joiner.
impl Resync {
    /// The log does not continue this copy: asks for a donor, and takes its device on a thread of its own. An error that ends the
    /// member goes to `failed`.
    ///
    /// # Errors
    /// The device cannot be copied: a text for people. Nothing was changed.
    pub(super) fn begin(&self, failed: mpsc::Sender<Failure>) -> Result<(), String> {
        let status = self.node.status();
        let own = status.own.id.clone();
        if !status.members.iter().any(|member| member.id != own && member.keeps_data()) {
            return Err(NO_OTHER_COPY.into());
        }
        let listener = self.settings.listen()?;
        let port =
            listener.local_addr().map_err(|error| format!("cannot listen for a donor: {error}"))?.port();
        let token = Token(random_token()?);
        let address = Address { port, ..self.settings.address.clone() };
        let request = Request {
            group: self.settings.group.clone(),
            address: address.to_string(),
            token,
            tls: self.settings.tls.is_some(),
        };
        self.replica.needs_state();
        self.note(&format!(
            "the device is copied from another member, which connects to {address}: only what differs is sent"
        ));
        if self.gives_up_copy {
            self.note(UNCHANGED);
        }
        let joiner = Arc::new(JoinerSide {
            resync: self.clone(),
            request: request.encode(),
            token,
            greetings: AtomicUsize::new(0),
            copies: Mutex::new(Copies { last: Instant::now(), begun: false, ended: false }),
            failed,
        });
        let thread = std::thread::Builder::new().name("ls-resync".into());
        thread
            .spawn(move || joiner.listen(&listener))
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(())
    }
}

const NO_OTHER_COPY: &str = "this member's copy is not whole, or --resync is to replace it, and no other member of the group keeps \
                             the device: there is nothing to copy it from. Nothing was changed. Start a member that has the \
                             device. If this member's copy is whole, start it without --resync";
const UNCHANGED: &str = "this member's copy is given up once another member whose copy is whole connects. Until then it is not \
                         changed: to keep it, end this member, and start it without --resync";

struct Copies {
    /// When the last one ended, or when a donor was last asked for.
    last: Instant,
    /// A donor has begun: this copy may not be what it was.
    begun: bool,
    /// This copy has all that a donor sends.
    ended: bool,
}

struct JoinerSide {
    resync: Resync,
    request: Bytes,
    token: Token,
    greetings: AtomicUsize,
    /// Locked while a donor sends: only one does.
    copies: Mutex<Copies>,
    failed: mpsc::Sender<Failure>,
}

impl JoinerSide {
    /// Takes connections until a donor has sent all.
    fn listen(self: &Arc<Self>, listener: &TcpListener) {
        let resync = &self.resync;
        resync.node.request_state(self.request.clone(), "");
        let (mut logged, mut tries) = (Instant::now(), 0);
        loop {
            match listener.accept() {
                Ok((stream, _)) if self.greetings.load(Ordering::SeqCst) >= GREETINGS_MAX => drop(stream),
                Ok((stream, peer)) => {
                    self.greetings.fetch_add(1, Ordering::SeqCst);
                    let side = self.clone();
                    let greet = move || {
                        let result = side.take(stream);
                        if let Err(error) = result {
                            side.resync.warn(&format!("the copy from {peer} has not ended: {error}"));
                        }
                    };
                    if std::thread::Builder::new().name("ls-copy".into()).spawn(greet).is_err() {
                        self.greetings.fetch_sub(1, Ordering::SeqCst);
                    }
                }
                Err(_) => std::thread::sleep(LOOK),
            }
            if logged.elapsed() >= LOG_INTERVAL {
                logged = Instant::now();
                self.log();
            }
            if let Ok(mut copies) = self.copies.try_lock() {
                if copies.ended {
                    return;
                }
                if copies.last.elapsed() >= ASK_ANEW {
                    copies.last = Instant::now();
                    tries += 1;
                    resync.node.request_state(self.request.clone(), &self.donors(tries));
                }
            }
        }
    }

    /// The other copies in turn, then anyone: the one that the leader prefers may fail each time.
    fn donors(&self, tries: usize) -> String {
        let status = self.resync.node.status();
        let others = status.members.iter().filter(|member| member.id != status.own.id && member.keeps_data());
        let mut names: Vec<&str> = others.map(|member| member.name.as_str()).collect();
        names.sort_unstable();
        if !names.is_empty() {
            let first = tries % names.len();
            names.rotate_left(first);
        }
        names.iter().map(|name| format!("{name},")).collect()
    }

    fn log(&self) {
        match self.resync.replica.status().wholeness {
            Wholeness::Copying { donor, progress } => {
                self.resync.note(&format!("takes the device from {donor}: {}", describe(&progress)));
            }
            Wholeness::Needed => {
                let text = "waits for a member that sends the device: it must be Synced, and its own copy whole (see `lockstep \
                            status`)";
                let is_untouched = self.copies.try_lock().is_ok_and(|copies| !copies.begun);
                match self.resync.gives_up_copy && is_untouched {
                    true => self.resync.note(&format!("{text}. If there is none: {UNCHANGED}")),
                    false => self.resync.note(text),
                }
            }
            Wholeness::Whole | Wholeness::Until(_) => {}
        }
    }

    /// Takes the device through this connection, if it is a donor's.
    fn take(&self, stream: TcpStream) -> Result<(), CopyError> {
        let greeted = self.greet(stream);
        self.greetings.fetch_sub(1, Ordering::SeqCst);
        let (mut stream, hello) = greeted?;
        let Ok(mut copies) = self.copies.try_lock() else {
            let _ = refuse(&mut stream, "another member sends the device already");
            return Ok(());
        };
        if copies.ended {
            return Ok(());
        }
        self.resync.note(&format!("{} sends the device as of seqno {}", hello.donor, hello.gtid.seqno));
        copies.begun = true;
        let received = self.resync.replica.receive_copy(&mut stream, &hello);
        copies.last = Instant::now();
        match received {
            Ok(gtid) => {
                copies.ended = true;
                self.received(gtid);
                Ok(())
            }
            Err(CopyError::Device(error)) => {
                let text = format!("cannot copy the device: {error}");
                let failure = match error.kind() {
                    io::ErrorKind::FileTooLarge => {
                        Failure::needs_operator(format!("{text}. Then start this member again"))
                    }
                    _ => format!("{text}. The copy is not whole, and the next start copies it again").into(),
                };
                // At the member's end nobody listens.
                let _ = self.failed.send(failure);
                Err(CopyError::Device(error))
            }
            Err(error) => Err(error),
        }
    }

    fn received(&self, gtid: Gtid) {
        let status = self.resync.replica.status();
        let rest = match status.wholeness {
            Wholeness::Until(seqno) => format!("; it is whole once it has seqno {seqno} of the log"),
            _ => String::new(),
        };
        self.resync.note(&format!("has the device as of seqno {}{rest}", gtid.seqno));
        self.resync.node.state_received(Ok(gtid));
    }

    fn greet(&self, stream: TcpStream) -> Result<(Stream, Hello), CopyError> {
        let (timed, greeted) = Timed::new(stream).map_err(CopyError::Stream)?;
        let mut stream = match self.resync.settings.identity()? {
            Some(identity) => Stream::Tls(identity.accept(timed).map_err(CopyError::Stream)?),
            None => Stream::Plain(timed),
        };
        let hello = greet(&mut stream, &self.resync.settings.group, &self.token)?;
        let _ = greeted.set(());
        Ok((stream, hello))
    }
}

/// As a donor.
impl Resync {
    /// Sends the device to a joiner, on a thread of its own, and tells the node how that ended.
    pub(super) fn donate(&self, id: u64, request: &Bytes, joiner: &str) {
        let request = match Request::decode(request) {
            Ok(request) => request,
            Err(error) => {
                self.warn(&format!(
                    "{joiner} asks for the device by a request that {error}: is it of another version?"
                ));
                return self.node.donation_done(id, Err(UNSUPPORTED));
            }
        };
        let (side, name) = (self.clone(), joiner.to_owned());
        let work = move || {
            let result = match side.send(&request, &name) {
                Ok((gtid, progress)) => {
                    side.note(&format!("has sent the device to {name}: {}", describe(&progress)));
                    Ok(gtid)
                }
                Err(error) => {
                    side.warn(&format!("cannot send the device to {name}: {error}. {name} asks again"));
                    Err(AGAIN)
                }
            };
            side.node.donation_done(id, result);
        };
        if std::thread::Builder::new().name("ls-donate".into()).spawn(work).is_err() {
            self.node.donation_done(id, Err(AGAIN));
        }
    }

    fn send(&self, request: &Request, joiner: &str) -> Result<(Gtid, Progress), CopyError> {
        if request.group != self.settings.group {
            return Err(CopyError::Refused(format!("{joiner} is of the group {}", request.group)));
        }
        if request.tls != self.settings.tls.is_some() {
            return Err(CopyError::Refused(
                "only one of both members uses TLS: set socket.ssl_cert and socket.ssl_key on both".into(),
            ));
        }
        // Before the joiner waits: the file may need long to have the log's writes.
        let source = self.replica.source()?;
        let (timed, greeted) = dial(&request.address).map_err(|error| {
            let text = format!("no connection to {}: {error}; see --resync-port there", request.address);
            CopyError::Stream(io::Error::new(error.kind(), text))
        })?;
        let remote = timed.stream.peer_addr().map_err(CopyError::Stream)?.ip();
        let mut stream = match self.settings.identity()? {
            Some(identity) => Stream::Tls(identity.dial(timed, remote).map_err(CopyError::Stream)?),
            None => Stream::Plain(timed),
        };
        let _ = greeted.set(());
        let pace = Pace::new(self.settings.rate, Instant::now());
        let names = (self.settings.name.as_str(), joiner);
        self.replica.send_copy(&mut stream, source, request.token, names, pace)
    }
}

fn dial(address: &str) -> io::Result<(Timed, Arc<OnceLock<()>>)> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for place in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&place, GREETING) {
            Ok(stream) => return Timed::new(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn describe(progress: &Progress) -> String {
    let Progress { done, total, sent } = progress;
    format!("{} of {} MiB compared, {} MiB sent because they differed", done >> 20, total >> 20, sent >> 20)
}

fn random_token() -> Result<[u8; 32], String> {
    let mut token = [0; 32];
    for half in token.chunks_mut(16) {
        let uuid = lockstep_node::random_uuid().map_err(|error| error.to_string())?;
        half.copy_from_slice(&uuid.0);
    }
    Ok(token)
}
