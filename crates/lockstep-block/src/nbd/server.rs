//! Listens for clients; one task for each connection.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::TlsAcceptor;
use super::connection::{End, Limits, Transmission};
use super::handshake::{Handshake, Step, TlsMode};
use super::places::{Places, SocketFile, Taken};
use super::reply::Output;
use super::request::{Decoder, Rules};
use super::status::{Connections, Counters, Log, Registered};
use super::wire::PAYLOAD_MAX;
use crate::export::{Export, Peer};

/// How long an accept that failed waits before the next one, such as without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bytes that are received at once during the handshake.
const HANDSHAKE_RECEIVE: usize = 4 << 10;
/// Probes of a silent client at TCP: after 30 s, three times.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(30))
    .with_interval(Duration::from_secs(10))
    .with_retries(3);

/// How a server serves.
#[derive(Clone)]
pub struct ServerConfig {
    /// The certificate for connections with TLS; `None`: TLS is not offered.
    pub tls: Option<Arc<TlsAcceptor>>,
    /// Whether a connection without TLS is refused.
    pub require_tls: bool,
    /// Connections at the same time. More are closed at once.
    pub max_connections: usize,
    /// Requests in flight of one connection.
    pub max_requests: usize,
    /// Bytes of requests in flight of one connection. A single larger request is possible.
    pub max_connection_bytes: u64,
    /// Bytes of requests in flight of all connections. At least 32 MiB, the longest request.
    pub max_total_bytes: usize,
    /// How long the handshake may take, including TLS and the export's part of an attachment.
    pub handshake_timeout: Duration,
    /// How long a client may make no progress in the middle of a request or reply. A client without requests may be idle for
    /// any time.
    pub stall_timeout: Duration,
    /// How long requests in flight may take when the server stops.
    pub stop_timeout: Duration,
    /// Receives lines for the log.
    pub log: Log,
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConfig").finish_non_exhaustive()
    }
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            tls: None,
            require_tls: false,
            max_connections: 64,
            max_requests: 256,
            max_connection_bytes: 64 << 20,
            max_total_bytes: 256 << 20,
            handshake_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(60),
            stop_timeout: Duration::from_secs(10),
            log: Arc::new(|_| {}),
        }
    }
}

/// A server that listens. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<SocketAddr>,
    connections: Connections,
    stop: CancellationToken,
    listeners: Vec<JoinHandle<()>>,
}

/// Everything that connections share.
pub(crate) struct Service<E> {
    export: E,
    config: ServerConfig,
    limits: Limits,
    places: Arc<Semaphore>,
    memory: Arc<Semaphore>,
    connections: Connections,
    stop: CancellationToken,
}

impl<E> Service<E> {
    pub(crate) fn new(config: ServerConfig, export: E) -> Service<E> {
        Service {
            export,
            limits: Limits {
                requests: config.max_requests.max(1),
                bytes: config.max_connection_bytes,
                stall: config.stall_timeout,
            },
            places: Arc::new(Semaphore::new(config.max_connections)),
            memory: Arc::new(Semaphore::new(config.max_total_bytes.max(PAYLOAD_MAX as usize))),
            connections: Connections::default(),
            stop: CancellationToken::new(),
            config,
        }
    }
}

impl Server {
    /// Serves this export at these places, on the current runtime of tokio.
    ///
    /// # Errors
    /// An error of the system.
    pub fn start<E: Export>(config: ServerConfig, places: Places, export: E) -> io::Result<Server> {
        let service = Arc::new(Service::new(config, export));
        let bound = places.0.into_iter().map(Bound::new).collect::<io::Result<Vec<_>>>()?;
        let addresses = bound.iter().filter_map(Bound::address).collect();
        let listeners = bound.into_iter().map(|bound| tokio::spawn(listen(service.clone(), bound))).collect();
        let (connections, stop) = (service.connections.clone(), service.stop.clone());
        Ok(Server { addresses, connections, stop, listeners })
    }

    /// Where it listens at TCP.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Its connections, also for another thread.
    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// Stops listening, answers the requests in flight, closes all connections, and waits for that.
    pub async fn stop(mut self) {
        self.stop.cancel();
        for listener in std::mem::take(&mut self.listeners) {
            // A task that panicked has ended as well.
            let _ = listener.await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A socket that listens.
enum Bound {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: SocketFile },
}

/// An accepted connection.
enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl Bound {
    fn new(taken: Taken) -> io::Result<Bound> {
        Ok(match taken {
            Taken::Tcp(listener) => Bound::Tcp(TcpListener::from_std(listener)?),
            Taken::Unix(listener, file) => {
                Bound::Unix { listener: UnixListener::from_std(listener)?, _file: file }
            }
        })
    }

    fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix { .. } => None,
        }
    }

    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, from)| Accepted::Tcp(stream, from)),
            Self::Unix { listener, .. } => listener.accept().await.map(|(stream, _)| Accepted::Unix(stream)),
        }
    }
}

async fn listen<E: Export>(service: Arc<Service<E>>, bound: Bound) {
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            () = service.stop.cancelled() => break,
            accepted = bound.accept() => match accepted {
                Ok(accepted) => {
                    // More connections than allowed are closed: there is no message for that.
                    if let Ok(place) = service.places.clone().try_acquire_owned() {
                        tasks.spawn(serve(service.clone(), accepted, place));
                    }
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = tasks.join_next() => {}
        }
    }
    drop(bound);
    let deadline = Instant::now() + service.config.stop_timeout;
    while let Ok(Some(_)) = timeout_at(deadline, tasks.join_next()).await {}
    tasks.shutdown().await;
}

async fn serve<E: Export>(service: Arc<Service<E>>, accepted: Accepted, _place: OwnedSemaphorePermit) {
    match accepted {
        Accepted::Tcp(stream, from) => {
            // Without these options the connection works, if more slowly.
            let _ = stream.set_nodelay(true);
            let _ = SockRef::from(&stream).set_tcp_keepalive(&KEEPALIVE);
            let peer = Peer::Ip(from.ip().to_canonical());
            serve_stream(&service, stream, peer, from.to_string()).await;
        }
        Accepted::Unix(stream) => {
            let Ok(credentials) = stream.peer_cred() else { return };
            let peer = Peer::Uid(credentials.uid());
            let client = match credentials.pid() {
                Some(pid) => format!("{peer}, process {pid}"),
                None => peer.to_string(),
            };
            serve_stream(&service, stream, peer, client).await;
        }
    }
}

/// Serves a client to its end.
pub(crate) async fn serve_stream<E, S>(service: &Service<E>, stream: S, peer: Peer, client: String)
where
    E: Export,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let counters = Arc::new(Counters::new(client, service.config.log.clone()));
    let registered = service.connections.add(peer, counters.clone());
    if let Err(why) = serve_registered(service, stream, &registered).await {
        counters.log(&why);
    }
}

/// Serves a client to its end. The error is a line for the log.
async fn serve_registered<E, S>(
    service: &Service<E>,
    mut stream: S,
    registered: &Registered,
) -> Result<(), String>
where
    E: Export,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let tls = match &service.config.tls {
        None => TlsMode::Off,
        Some(_) if service.config.require_tls => TlsMode::Required,
        Some(_) => TlsMode::Optional,
    };
    let handshake = &mut Handshake::new(tls);
    let deadline = Instant::now() + service.config.handshake_timeout;
    match shake_hands(service, &mut stream, handshake, registered, deadline).await? {
        Shaken::Left => Ok(()),
        Shaken::Attached(attached) => transmit(service, stream, attached, registered).await,
        Shaken::StartTls => {
            let Some(tls) = &service.config.tls else { return Ok(()) };
            let accepted =
                timeout_at(deadline, tokio_rustls::TlsAcceptor::from(tls.config()).accept(stream)).await;
            let mut stream = accepted
                .map_err(|_| "the TLS handshake takes too long".to_owned())?
                .map_err(|error| format!("TLS: {error}"))?;
            registered.set_encrypted();
            match shake_hands(service, &mut stream, handshake, registered, deadline).await? {
                Shaken::Attached(attached) => transmit(service, stream, attached, registered).await,
                Shaken::Left | Shaken::StartTls => {
                    // The client may be gone.
                    let _ = stream.shutdown().await;
                    Ok(())
                }
            }
        }
    }
}

/// The end of a handshake.
enum Shaken<A> {
    Attached(Attached<A>),
    StartTls,
    /// The client has left, or the server stops.
    Left,
}

/// An attachment, and the state of the stream behind the handshake.
struct Attached<A> {
    attachment: A,
    rules: Rules,
    structured: bool,
    input: BytesMut,
    output: BytesMut,
}

async fn shake_hands<E, S>(
    service: &Service<E>,
    stream: &mut S,
    handshake: &mut Handshake,
    registered: &Registered,
    deadline: Instant,
) -> Result<Shaken<E::Attachment>, String>
where
    E: Export,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let negotiated = timeout_at(deadline, negotiate(&service.export, stream, handshake, registered));
    tokio::select! {
        () = service.stop.cancelled() => Ok(Shaken::Left),
        negotiated = negotiated => {
            negotiated.unwrap_or_else(|_| Err("the handshake takes too long".to_owned()))
        }
    }
}

async fn negotiate<E, S>(
    export: &E,
    stream: &mut S,
    handshake: &mut Handshake,
    registered: &Registered,
) -> Result<Shaken<E::Attachment>, String>
where
    E: Export,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let lost = |error: io::Error| format!("the connection is lost during the handshake: {error}");
    let mut input = BytesMut::with_capacity(HANDSHAKE_RECEIVE);
    loop {
        let step = handshake.next(&mut input, export).map_err(|violation| violation.to_string())?;
        if let Step::Attach(request) = step {
            let attached = match export.attach(&request.name, registered.peer()).await {
                Ok(attachment) => export.describe(&request.name).map(|described| (attachment, described)),
                Err(refusal) => Err(refusal),
            };
            match attached {
                Ok((attachment, described)) => {
                    let agreed = handshake.attached(&request, &described);
                    registered.set_export(&request.name);
                    return Ok(Shaken::Attached(Attached {
                        attachment,
                        rules: Rules::new(&described, agreed.structured, agreed.allocation),
                        structured: agreed.structured,
                        input,
                        output: handshake.take_output(),
                    }));
                }
                Err(refusal) => {
                    registered.counters().log(&format!("export {:?} is refused: {refusal}", request.name));
                    if !handshake.refused(&request, &refusal) {
                        return Ok(Shaken::Left);
                    }
                    continue;
                }
            }
        }
        let output = handshake.take_output();
        let sent = match stream.write_all(&output).await {
            Ok(()) => stream.flush().await,
            error => error,
        };
        if step == Step::Close {
            // A client may close the connection without waiting for the last reply.
            return Ok(Shaken::Left);
        }
        sent.map_err(lost)?;
        match step {
            Step::Receive => {
                let mut buffer = (&mut input).limit(HANDSHAKE_RECEIVE);
                if stream.read_buf(&mut buffer).await.map_err(lost)? == 0 {
                    // Programs that look for an open port do that.
                    return Ok(Shaken::Left);
                }
            }
            Step::StartTls => return Ok(Shaken::StartTls),
            Step::Close | Step::Attach(_) => return Ok(Shaken::Left),
        }
    }
}

async fn transmit<E, S>(
    service: &Service<E>,
    stream: S,
    attached: Attached<E::Attachment>,
    registered: &Registered,
) -> Result<(), String>
where
    E: Export,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Attached { attachment, rules, structured, input, output } = attached;
    let state = (Decoder::new(rules, input), Output::new(structured, output));
    let (limits, memory) = (service.limits, service.memory.clone());
    let connection =
        Transmission::new(stream, attachment, state, limits, memory, registered.counters().clone());
    match connection.run(service.stop.clone()).await {
        End::Left | End::Stopped => Ok(()),
        End::Lost(why) => Err(why),
    }
}
