//! The reactor: sockets, timers, dials and name resolution, on the caller's thread.
//!
//! The caller's loop is: [`Reactor::poll`], handle the events, drain the queues of other threads, [`Reactor::send`]
//! the resulting messages, [`Reactor::flush`]. The messages of one round leave with one `writev` per peer.
//!
//! The reactor never waits for a peer, a client of the status service or a DNS server.

mod dial;
mod drive;
mod http;
mod listen;
mod noise;
mod peer;
mod resolve;
mod waker;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mio::net::{TcpListener, TcpStream, UnixListener};
use mio::{Events, Interest, Poll, Token};

use self::dial::Targets;
use self::http::Http;
use self::listen::UnixSocket;
use self::noise::Noise;
use self::peer::Peer;
use self::resolve::Resolver;
pub use self::waker::Waker;
use crate::addr::Address;
use crate::conn_id::ConnId;
use crate::error::{DialError, DownReason, ListenError, ProtoError, Reason, SendError};
use crate::proto::{Connection, ProtoConfig, Role};
use crate::status::StatusRequest;
use crate::tls::{TlsConfig, TlsIdentity};

/// Configuration of a reactor.
#[derive(Debug, Clone)]
pub struct Config {
    /// Cluster name, frame and queue limits, timeouts of connections.
    pub proto: ProtoConfig,
    /// The blob by which this member introduces itself. Can be changed with [`Reactor::set_hello`].
    pub hello: Bytes,
    /// Seed of the jitter between attempts to dial: different on each member.
    pub seed: u64,
    /// How long TCP may take to connect, for each address of a name.
    pub connect_timeout: Duration,
    /// How long resolving a name may take.
    pub resolve_timeout: Duration,
    /// First wait between attempts to a kept address; it doubles up to [`Config::backoff_max`].
    pub backoff_min: Duration,
    /// Longest wait between attempts.
    pub backoff_max: Duration,
    /// Most incoming connections that have not finished their handshake. One more replaces the oldest.
    pub pending_max: usize,
    /// Most connections of the status service. One more replaces the oldest whose request has not arrived.
    pub status_max: usize,
    /// For a status request to arrive, and for its reader to take something of the answer.
    pub status_timeout: Duration,
    /// How connections between members are encrypted; `None`: not at all.
    pub tls: Option<TlsConfig>,
}

impl Config {
    /// The defaults, for a cluster of this name.
    pub fn new(cluster: impl Into<String>, hello: Bytes, seed: u64) -> Config {
        Config {
            proto: ProtoConfig::new(cluster),
            hello,
            seed,
            connect_timeout: Duration::from_secs(3),
            resolve_timeout: Duration::from_secs(10),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(1),
            pending_max: 64,
            status_max: 64,
            status_timeout: Duration::from_secs(5),
            tls: None,
        }
    }
}

/// A peer's introduction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerHello {
    /// The cluster's name. It equals ours: others are rejected earlier.
    pub cluster: String,
    /// The protocol version of the connection.
    pub version: u16,
    /// The peer's introduction.
    pub blob: Bytes,
    /// The peer's end of the socket. On an incoming connection its port is not the one that the peer listens on.
    pub remote_addr: SocketAddr,
    /// This side dialed.
    pub outgoing: bool,
    /// The address that was dialed, as its [`Address`] displays.
    pub dialed: Option<String>,
    /// The connection is encrypted, and the peer has proved that it is a member.
    pub encrypted: bool,
}

/// An event that [`Reactor::poll`] reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A peer introduced itself. Answer with [`Reactor::accept`], [`Reactor::reject`] or [`Reactor::close`], in the
    /// same round or within a few seconds. Until then the reactor reads little more from it, and no timer of the
    /// connection runs.
    PeerUp {
        /// The connection.
        conn: ConnId,
        /// The peer's introduction and address.
        hello: PeerHello,
    },
    /// The peer has accepted us too. (Frames may be sent from our own acceptance on; they arrive only if the peer
    /// accepts.)
    Ready {
        /// The connection.
        conn: ConnId,
    },
    /// A frame from an accepted peer.
    Frame {
        /// The connection.
        conn: ConnId,
        /// The sender's kind.
        kind: u8,
        /// The payload, a slice of the receive buffer. Keeping it also keeps up to 256 KiB of neighbouring bytes.
        payload: Bytes,
    },
    /// A peer reported with `PeerUp` is gone. Not reported for connections that the caller rejected or closed.
    PeerDown {
        /// The connection.
        conn: ConnId,
        /// The reason.
        reason: DownReason,
    },
    /// A dial failed before a peer introduced itself. A kept address is dialed again and again: it is reported only when the
    /// error changes, and every 10 s.
    DialFailed {
        /// The address, as [`Address`] displays.
        addr: String,
        /// The error.
        error: DialError,
    },
    /// A connection of a program that is no member of this cluster was dropped: a line for the log. Rate-limited, above all
    /// for repeated connections of one address for the same reason.
    Noise {
        /// The remote address.
        addr: SocketAddr,
        /// The kind of connection.
        what: String,
        /// The number of similar events since the last report.
        suppressed: u64,
        /// Connections of this address have been dropped for this reason for a minute or more, with no pause over 30 s.
        persists: bool,
    },
    /// A request of the status service: answer with [`Reactor::respond`].
    Request(StatusRequest),
}

/// Figures of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnStats {
    /// Smoothed round-trip time; `None` before the second ping came back (the first does not count).
    pub rtt: Option<Duration>,
    /// The shortest of the latest eight; `None` before the second ping came back (the first does not count).
    pub rtt_min: Option<Duration>,
    /// Bytes queued in this process for the peer.
    pub queued: usize,
    /// Frames received.
    pub frames_in: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// When the transport was established.
    pub since: Instant,
}

/// A TCP connection that is being established.
#[derive(Debug)]
struct Connecting {
    stream: TcpStream,
    remote: SocketAddr,
    key: String,
    /// Without encryption, because the peer does not support it.
    plain: bool,
    deadline: Instant,
}

/// The use of a TCP port.
#[derive(Debug, Clone, Copy)]
enum PortFor {
    Members,
    Status,
}

#[derive(Debug)]
enum Listener {
    Peers(TcpListener),
    StatusTcp(TcpListener),
    StatusUnix(UnixListener),
}

impl Listener {
    /// The one address on which members are listened for, if this is such a listener and not for all addresses.
    fn members_ip(&self) -> Option<IpAddr> {
        let Self::Peers(listener) = self else { return None };
        listener.local_addr().ok().map(|a| a.ip()).filter(|ip| !ip.is_unspecified())
    }
}

const WAKER: Token = Token(usize::MAX);

/// See the module's text.
#[derive(Debug)]
pub struct Reactor {
    cfg: Config,
    proto: Arc<ProtoConfig>,
    poll: Poll,
    mio_events: Events,
    /// Handshakes of strangers that this round still has time for.
    proofs: usize,
    waker: Waker,
    next_id: u64,
    listeners: BTreeMap<u64, Listener>,
    peers: BTreeMap<u64, Peer>,
    connecting: BTreeMap<u64, Connecting>,
    https: BTreeMap<u64, Http>,
    targets: Targets,
    resolver: Resolver,
    unix: Option<UnixSocket>,
    /// Connections with something to write. Emptied by `flush`.
    dirty: BTreeSet<u64>,
    /// Connections to look at without an event of their socket: events produced by the caller's calls, a read that
    /// stopped at its budget, an acceptance that lets waiting bytes through.
    again: BTreeSet<u64>,
    /// Listeners whose `accept` failed, and when to try again.
    paused: BTreeMap<u64, Instant>,
    noise: Noise,
    isolated: bool,
    /// See [`Reactor::set_coalesces`].
    coalesces: bool,
    coalesce: crate::Coalesce,
    /// The earliest time a timer may be due; `None`: to be computed.
    next_timer: Option<Instant>,
}

impl Reactor {
    /// A reactor without listeners and addresses to dial.
    ///
    /// Fails if the kernel gives no epoll or eventfd, or if cluster name and hello are too long for a handshake.
    pub fn new(cfg: Config) -> io::Result<Reactor> {
        let poll = Poll::new()?;
        let waker = Waker::new(mio::Waker::new(poll.registry(), WAKER)?);
        let now = Instant::now();
        let proto = Arc::new(cfg.proto.clone());
        Connection::new(proto.clone(), Role::Dialer, cfg.hello.clone(), now)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        Ok(Reactor {
            targets: Targets::new(cfg.backoff_min, cfg.backoff_max, cfg.seed),
            proto,
            cfg,
            poll,
            mio_events: Events::with_capacity(256),
            proofs: 0,
            waker,
            next_id: 1,
            listeners: BTreeMap::new(),
            peers: BTreeMap::new(),
            connecting: BTreeMap::new(),
            https: BTreeMap::new(),
            resolver: Resolver::new(),
            unix: None,
            dirty: BTreeSet::new(),
            again: BTreeSet::new(),
            paused: BTreeMap::new(),
            noise: Noise::new(now),
            isolated: false,
            coalesces: false,
            coalesce: crate::Coalesce::default(),
            next_timer: None,
        })
    }

    /// For other threads, to end a `poll`.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Whether [`Reactor::poll`] yields the processor after its wait and before it reads events. Set it only while more
    /// input is expected: otherwise the yield only adds latency.
    pub fn set_coalesces(&mut self, coalesces: bool) {
        self.coalesces = coalesces;
    }

    // ---- listening

    /// Listens for members on all these addresses, or on none of them. Returns the addresses with their real ports.
    ///
    /// A host name is resolved here, for at most 5 s: this is for the start.
    pub fn listen(&mut self, addrs: &[Address]) -> Result<Vec<SocketAddr>, ListenError> {
        self.listen_with(addrs, PortFor::Members)
    }

    /// Stops listening for members and closes incoming connections that have not introduced themselves. Those that are
    /// up stay, and so does the status service.
    pub fn unlisten(&mut self) {
        self.listeners.retain(|_, l| !matches!(l, Listener::Peers(_)));
        let strangers: Vec<u64> = self
            .peers
            .iter()
            .filter(|(_, p)| p.dialed().is_none() && !p.conn().is_introduced())
            .map(|(id, _)| *id)
            .collect();
        for id in strangers {
            self.drop_peer(id);
        }
    }

    /// Serves the status over TCP, read-only.
    pub fn serve_tcp(&mut self, addr: &Address) -> Result<Vec<SocketAddr>, ListenError> {
        self.listen_with(std::slice::from_ref(addr), PortFor::Status)
    }

    fn listen_with(&mut self, addrs: &[Address], kind: PortFor) -> Result<Vec<SocketAddr>, ListenError> {
        let mut bound = Vec::new();
        // The status service never uses TLS.
        let encrypted = self.cfg.tls.is_some() && matches!(kind, PortFor::Members);
        for listener in listen::tcp(addrs, encrypted)? {
            let name = || addrs.iter().map(Address::to_string).collect::<Vec<_>>().join(",");
            bound.push(listener.local_addr().map_err(|e| ListenError::Io(name(), e))?);
            let listener = match kind {
                PortFor::Members => Listener::Peers(listener),
                PortFor::Status => Listener::StatusTcp(listener),
            };
            self.add_listener(listener).map_err(|e| ListenError::Io(name(), e))?;
        }
        Ok(bound)
    }

    /// Serves the status and takes commands on a Unix socket, mode 0600. The file is removed with the reactor.
    pub fn serve_unix(&mut self, path: &Path) -> Result<(), ListenError> {
        let (socket, listener) = UnixSocket::open(path)?;
        self.drop_unix_listener();
        self.add_listener(Listener::StatusUnix(listener))
            .map_err(|e| ListenError::Io(path.display().to_string(), e))?;
        self.unix = Some(socket);
        Ok(())
    }

    /// Makes the Unix socket again if its file has vanished or is another's: state-transfer scripts delete sockets.
    /// Costs one `lstat`, so it can be called each second. Returns whether the socket was made again.
    pub fn ensure_socket(&mut self) -> Result<bool, ListenError> {
        let Some(socket) = self.unix.as_mut().filter(|s| !s.in_place()) else { return Ok(false) };
        socket.disown();
        let path = socket.path().to_owned();
        self.serve_unix(&path)?;
        Ok(true)
    }

    fn drop_unix_listener(&mut self) {
        let old: Vec<u64> = self
            .listeners
            .iter()
            .filter(|(_, l)| matches!(l, Listener::StatusUnix(_)))
            .map(|(id, _)| *id)
            .collect();
        for id in old {
            // Closing the descriptor takes it out of epoll as well.
            self.listeners.remove(&id);
        }
    }

    fn add_listener(&mut self, mut listener: Listener) -> io::Result<()> {
        let id = self.new_id();
        let source: &mut dyn mio::event::Source = match &mut listener {
            Listener::Peers(l) | Listener::StatusTcp(l) => l,
            Listener::StatusUnix(l) => l,
        };
        self.poll.registry().register(source, Token(id as usize), Interest::READABLE)?;
        self.listeners.insert(id, listener);
        Ok(())
    }

    // ---- dialing

    /// Dials an address once. The outcome is `PeerUp` or `DialFailed`. Does nothing while the address is being dialed,
    /// is kept, or is connected.
    pub fn dial(&mut self, addr: &Address) {
        self.add_target(addr, false);
    }

    /// Keeps a connection to an address: dials it, again and again with growing waits while it fails, and again when
    /// the connection is lost.
    pub fn keep(&mut self, addr: &Address) {
        self.add_target(addr, true);
    }

    fn add_target(&mut self, addr: &Address, keep: bool) {
        let key = addr.to_string();
        // A connection that was dialed before the address was forgotten still serves.
        let live = self.peers.iter().find(|(_, p)| p.dialed() == Some(&key)).map(|(id, _)| ConnId(*id));
        self.targets.add(addr, keep, live, Instant::now());
        self.next_timer = None;
    }

    /// `conn` reaches the member behind a kept address; the other side may have dialed it, or this one by another
    /// address. The address is not dialed while that connection lives.
    pub fn keep_via(&mut self, addr: &Address, conn: ConnId) {
        let live = self.peers.get(&conn.0).is_some_and(|p| !p.conn().is_dead());
        if let (true, Some(target)) = (live, self.targets.get_mut(&addr.to_string())) {
            target.reached_via(conn);
            self.next_timer = None;
        }
    }

    /// Stops dialing an address. A connection that is up stays; one on its way is dropped.
    pub fn forget(&mut self, addr: &Address) {
        if let Some(conn) = self.targets.remove(&addr.to_string()) {
            self.connecting.remove(&conn.0);
            if self.peers.get(&conn.0).is_some_and(|p| !p.conn().is_introduced()) {
                self.drop_peer(conn.0);
            }
        }
        self.next_timer = None;
    }

    /// The addresses that are dialed or kept, as [`Address`] displays.
    pub fn dialing(&self) -> Vec<String> {
        self.targets.keys()
    }

    // ---- members

    /// Changes the blob by which this member introduces itself, for connections made from now on.
    ///
    /// Fails if it is too long for a handshake; the old one stays.
    pub fn set_hello(&mut self, hello: Bytes) -> Result<(), ProtoError> {
        Connection::new(self.proto.clone(), Role::Dialer, hello.clone(), Instant::now())?;
        self.cfg.hello = hello;
        Ok(())
    }

    /// Changes certificate, key and authority, for connections made from now on; those that are up stay as they are.
    /// Does nothing where connections are not encrypted.
    pub fn set_identity(&mut self, identity: Arc<TlsIdentity>) {
        if let Some(tls) = &mut self.cfg.tls {
            tls.identity = identity;
        }
    }

    /// Changes the cluster name, for connections made from now on.
    ///
    /// Fails if it is too long for a handshake; the old one stays.
    pub fn set_cluster(&mut self, cluster: &str) -> Result<(), ProtoError> {
        let proto = Arc::new(ProtoConfig { cluster: cluster.to_owned(), ..self.cfg.proto.clone() });
        Connection::new(proto.clone(), Role::Dialer, self.cfg.hello.clone(), Instant::now())?;
        self.cfg.proto = (*proto).clone();
        self.proto = proto;
        Ok(())
    }

    /// Takes a peer that has introduced itself. Frames may be sent to it at once.
    pub fn accept(&mut self, conn: ConnId) {
        if let Some(peer) = self.peers.get_mut(&conn.0) {
            peer.accept(Instant::now());
            self.touch(conn.0);
        }
    }

    /// Refuses a peer that has introduced itself, and tells it why. No event of the connection follows.
    pub fn reject(&mut self, conn: ConnId, reason: Reason, text: &str) {
        self.close(conn, reason, text);
    }

    /// Ends a connection, and tells the peer why. No event of the connection follows, except those that `poll` has
    /// reported already. A kept address is dialed again after a while: [`Reactor::forget`] it first if it should not.
    pub fn close(&mut self, conn: ConnId, reason: Reason, text: &str) {
        let now = Instant::now();
        if let Some(peer) = self.peers.get_mut(&conn.0) {
            peer.close(reason, text, now);
            if let Some(key) = peer.end_dial() {
                self.targets.lost(&key, conn, Some(reason), peer.since(), now);
            }
            self.targets.unvia(conn, now);
            self.touch(conn.0);
        }
    }

    /// Queues a frame for a peer; it leaves with the next [`Reactor::flush`]. Large parts are referenced, not copied.
    ///
    /// On [`SendError::Overflow`] the connection is closed and the next `poll` reports it.
    pub fn send(&mut self, conn: ConnId, kind: u8, parts: &[Bytes]) -> Result<(), SendError> {
        let peer = self.peers.get_mut(&conn.0).ok_or(SendError::NotConnected)?;
        let result = peer.send(kind, parts);
        match result {
            Ok(()) => {
                self.dirty.insert(conn.0);
            }
            Err(SendError::Overflow) => self.touch(conn.0),
            Err(_) => {}
        }
        result
    }

    /// Writes what is queued, as far as the sockets take it; the rest follows from `poll`. For the end of a round.
    pub fn flush(&mut self) {
        while let Some(id) = self.dirty.pop_first() {
            let Some(peer) = self.peers.get_mut(&id) else { continue };
            peer.write();
            if peer.conn().is_dead() {
                self.again.insert(id);
            }
        }
    }

    /// Figures of a connection to a member; `None` once it is gone.
    pub fn stats(&self, conn: ConnId) -> Option<ConnStats> {
        let peer = self.peers.get(&conn.0)?;
        let (frames_in, frames_out, bytes_in, bytes_out) = peer.conn().counters();
        Some(ConnStats {
            rtt: peer.conn().rtt(),
            rtt_min: peer.conn().rtt_min(),
            queued: peer.conn().queued(),
            frames_in,
            frames_out,
            bytes_in,
            bytes_out,
            since: peer.since(),
        })
    }

    /// Cuts this member off from all others, or lets it back. An isolated member does not dial and drops every connection.
    ///
    /// Connections end without GOODBYE and are reported as down, as if the network had failed. The status is served.
    pub fn set_isolated(&mut self, isolated: bool) {
        self.isolated = isolated;
        self.next_timer = None;
        if isolated {
            let now = Instant::now();
            let connecting: Vec<u64> = self.connecting.keys().copied().collect();
            for id in connecting {
                if let Some(c) = self.connecting.remove(&id) {
                    self.targets.lost(&c.key, ConnId(id), None, now, now);
                }
            }
            for (id, peer) in &mut self.peers {
                peer.cut("this member is isolated", now);
                self.again.insert(*id);
            }
        }
    }

    /// Says goodbye to all members and ends every connection, waiting at most `limit` for the words to leave.
    pub fn shutdown(&mut self, text: &str, limit: Duration) {
        let end = Instant::now() + limit;
        self.listeners.clear();
        self.unix = None;
        self.connecting.clear();
        self.targets.clear();
        let ids: Vec<u64> = self.peers.keys().copied().collect();
        for id in ids {
            self.close(ConnId(id), Reason::Shutdown, text);
        }
        let mut ignored = Vec::new();
        while !self.peers.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.poll(Some(left), &mut ignored).is_err() {
                break;
            }
            ignored.clear();
        }
        self.peers.clear();
        self.https.clear();
    }

    // ---- status service

    /// Answers a status request. Does nothing if the client has gone meanwhile.
    pub fn respond(&mut self, conn: ConnId, status: u16, content_type: &str, body: impl Into<Bytes>) {
        let now = Instant::now();
        if let Some(http) = self.https.get_mut(&conn.0) {
            http.respond(status, content_type, &body.into(), now);
            http.write(now);
            self.again.insert(conn.0);
            self.next_timer = None;
        }
    }

    fn new_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// The connection has something to write, to report, or another timer.
    fn touch(&mut self, id: u64) {
        self.dirty.insert(id);
        self.again.insert(id);
        self.next_timer = None;
    }
}
