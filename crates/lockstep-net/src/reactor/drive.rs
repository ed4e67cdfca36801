//! The inside of [`Reactor::poll`]: events of sockets, timers, answers of the resolver.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::event::Event as MioEvent;
use mio::net::TcpStream;
use mio::{Events, Interest, Token};

use super::http::{Http, Stream};
use super::listen;
use super::noise::Report;
use super::peer::Peer;
use super::{Connecting, Event, Listener, PeerHello, Reactor, WAKER};
use crate::conn_id::ConnId;
use crate::error::{DialError, DownReason};
use crate::proto::{ConnEvent, Connection, Role};
use crate::status::StatusRequest;
use crate::tls::Session;

/// Most connections accepted from one listener before the others have their turn.
const ACCEPT_BUDGET: usize = 64;
/// Most incoming connections in the handshake of TLS that are looked at in one round.
const PROOFS: usize = 4;
/// How long to leave a listener alone whose `accept` failed: usually the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The longest sleep when no timer is due: it bounds the damage of a missed wake-up.
const SLEEP_MAX: Duration = Duration::from_secs(60);

impl Reactor {
    /// Waits for something to happen, at most for `timeout` (`None`: as long as it takes), and appends what happened
    /// to `events`. Also returns, perhaps with nothing, after [`super::Waker::wake`].
    ///
    /// Fails only if epoll itself fails.
    pub fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        let before = events.len();
        self.proofs = PROOFS;
        self.flush();
        self.turn(events);
        let mut now = Instant::now();
        let timer = self.next_timer(now).saturating_duration_since(now);
        let mut wait = timeout.map_or(timer, |t| t.min(timer));
        if events.len() > before || !self.again.is_empty() || !self.waker.may_sleep() {
            wait = Duration::ZERO;
        }
        let mut mio_events = std::mem::replace(&mut self.mio_events, Events::with_capacity(0));
        let result = self.poll.poll(&mut mio_events, Some(wait));
        self.waker.awake();
        match result {
            Err(e) if e.kind() != ErrorKind::Interrupted => {
                self.mio_events = mio_events;
                return Err(e);
            }
            Err(_) => mio_events.clear(),
            Ok(()) => {}
        }
        // On busy processors the next threads queue more work for this round, which costs nearly the same whatever its
        // size. On idle processors the yield returns at once.
        if self.coalesces {
            self.coalesce.yield_now();
        }
        now = Instant::now();
        for event in &mio_events {
            if event.token() != WAKER {
                self.socket_event(event, now);
            }
        }
        self.mio_events = mio_events;
        while let Some((key, answer)) = self.resolver.poll() {
            self.resolved(&key, answer, events, now);
        }
        self.turn(events);
        // Timers after the sockets: a process that was stopped for a while must read before it calls its peers silent.
        now = Instant::now();
        if self.next_timer(now) <= now {
            self.timers(now, events);
            self.turn(events);
        }
        // Verdicts and answers to pings do not wait for the caller's own flush.
        self.flush();
        Ok(())
    }

    /// Looks at every connection in `again` once.
    fn turn(&mut self, events: &mut Vec<Event>) {
        for id in std::mem::take(&mut self.again) {
            if self.peers.contains_key(&id) {
                self.peer_turn(id, events);
            } else if self.https.contains_key(&id) {
                self.http_turn(id, events);
            } else if self.listeners.contains_key(&id) {
                self.accept_turn(id, events);
            } else if self.connecting.contains_key(&id) {
                self.connect_turn(id, events);
            }
        }
    }

    fn socket_event(&mut self, event: &MioEvent, now: Instant) {
        let id = event.token().0 as u64;
        if let Some(peer) = self.peers.get_mut(&id) {
            if peer.socket_event(event) {
                self.dirty.insert(id);
            }
        } else if let Some(http) = self.https.get_mut(&id) {
            let gone = event.is_error() || event.is_write_closed();
            http.event(event.is_readable() || event.is_read_closed(), event.is_writable(), gone);
            http.write(now);
        }
        self.again.insert(id);
    }

    // ---- members

    fn peer_turn(&mut self, id: u64, events: &mut Vec<Event>) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.dialed().is_none() && peer.is_handshaking() {
            // A handshake with any peer costs the processor up to some milliseconds, for the proof of identity. Frames and
            // heartbeats of members must not wait for many of these.
            if self.proofs == 0 {
                self.again.insert(id);
                return;
            }
            self.proofs -= 1;
        }
        if peer.read() {
            self.again.insert(id);
        }
        let conn = ConnId(id);
        loop {
            let Some(peer) = self.peers.get_mut(&id) else { return };
            let event = match peer.poll_event() {
                None => break,
                // The common case, kept short.
                Some(ConnEvent::Frame { kind, payload }) => {
                    events.push(Event::Frame { conn, kind, payload });
                    continue;
                }
                Some(event) => event,
            };
            self.peer_event(conn, event, events);
        }
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.conn().is_dead() {
            self.drop_peer(id);
        } else if peer.wants_write() {
            self.dirty.insert(id);
        }
    }

    fn peer_event(&mut self, conn: ConnId, event: ConnEvent, events: &mut Vec<Event>) {
        let now = Instant::now();
        // Any event may have changed the connection's timers.
        self.next_timer = None;
        let Some(peer) = self.peers.get_mut(&conn.0) else { return };
        match event {
            ConnEvent::Frame { kind, payload } => events.push(Event::Frame { conn, kind, payload }),
            ConnEvent::Ready => events.push(Event::Ready { conn }),
            ConnEvent::Hello { version, blob } => events.push(Event::PeerUp {
                conn,
                hello: PeerHello {
                    cluster: self.proto.cluster.clone(),
                    version,
                    blob,
                    remote_addr: peer.remote(),
                    outgoing: peer.dialed().is_some(),
                    dialed: peer.dialed().map(str::to_owned),
                    encrypted: peer.is_encrypted(),
                },
            }),
            ConnEvent::Down(reason) => {
                if let Some(key) = peer.end_dial() {
                    let why = match &reason {
                        DownReason::Rejected(why, _) | DownReason::Goodbye(why, _) => Some(*why),
                        _ => None,
                    };
                    self.targets.lost(&key, conn, why, peer.since(), now);
                }
                self.targets.unvia(conn, now);
                events.push(Event::PeerDown { conn, reason });
            }
            ConnEvent::Failed(error) => match peer.end_dial() {
                Some(key) => {
                    let (remote, tried_tls) = (peer.remote(), peer.is_encrypted());
                    if tried_tls
                        && matches!(error, DialError::NotEncrypted(_))
                        && self.cfg.tls.as_ref().is_some_and(|tls| tls.dynamic)
                        && let Some(target) = self.targets.get_mut(&key)
                    {
                        // Once more, as a peer that does not encrypt wants it.
                        target.retry_plain(remote);
                    }
                    self.attempt_failed(&key, error, events, now);
                }
                None => {
                    let remote = peer.remote();
                    if !self.isolated {
                        self.noise(remote, noise_text(&error), events, now);
                    }
                }
            },
        }
    }

    pub(super) fn drop_peer(&mut self, id: u64) {
        if let Some(mut peer) = self.peers.remove(&id) {
            peer.deregister(self.poll.registry());
            self.dirty.remove(&id);
        }
    }

    fn add_peer(
        &mut self,
        id: u64,
        stream: TcpStream,
        remote: SocketAddr,
        dialed: Option<String>,
        plain: bool,
        now: Instant,
    ) {
        listen::tune(&stream, self.cfg.proto.idle_timeout);
        let role = if dialed.is_some() { Role::Dialer } else { Role::Dialed };
        let tls = match &self.cfg.tls {
            Some(tls) if !plain => match role {
                Role::Dialer => Some(Session::dialer(&tls.identity, remote.ip())),
                Role::Dialed => Some(Session::dialed(&tls.identity, tls.dynamic)),
            },
            _ => None,
        };
        // The hello was checked when it was set, and the identity when it was loaded, so this does not fail; if it did,
        // the connection would be dropped.
        let conn = Connection::new(self.proto.clone(), role, self.cfg.hello.clone(), now);
        if let (Ok(conn), Ok(tls)) = (conn, tls.transpose()) {
            self.peers.insert(id, Peer::new(stream, conn, tls.map(Box::new), remote, dialed, now));
            self.touch(id);
        }
    }

    fn noise(&mut self, addr: SocketAddr, what: String, events: &mut Vec<Event>, now: Instant) {
        if let Some(Report { suppressed, persists }) = self.noise.record(addr.ip(), &what, now) {
            events.push(Event::Noise { addr, what, suppressed, persists });
        }
    }

    // ---- incoming

    fn accept_turn(&mut self, id: u64, events: &mut Vec<Event>) {
        for _ in 0..ACCEPT_BUDGET {
            let accepted = match self.listeners.get_mut(&id) {
                None => return,
                Some(Listener::Peers(l)) => l.accept().map(|(s, a)| (Stream::Tcp(s), Some(a))),
                Some(Listener::StatusTcp(l)) => l.accept().map(|(s, _)| (Stream::Tcp(s), None)),
                Some(Listener::StatusUnix(l)) => l.accept().map(|(s, _)| (Stream::Unix(s), None)),
            };
            let now = Instant::now();
            match accepted {
                Ok((Stream::Tcp(stream), Some(remote))) => self.accept_peer(stream, remote, events, now),
                Ok((stream, _)) => self.accept_http(stream, now),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(_) => {
                    // Most likely there are no descriptors left. No event announces the waiting connections again, so a
                    // timer does.
                    self.paused.insert(id, now + ACCEPT_PAUSE);
                    self.next_timer = None;
                    return;
                }
            }
        }
        self.again.insert(id);
    }

    fn accept_peer(
        &mut self,
        mut stream: TcpStream,
        remote: SocketAddr,
        events: &mut Vec<Event>,
        now: Instant,
    ) {
        if self.isolated {
            return;
        }
        let pending: Vec<u64> = self
            .peers
            .iter()
            .filter(|(_, p)| p.dialed().is_none() && !p.conn().is_open())
            .map(|(id, _)| *id)
            .collect();
        if pending.len() >= self.cfg.pending_max {
            // The oldest that has not even introduced itself: a real member does so within a round trip.
            let stranger = |id: &&u64| self.peers.get(id).is_some_and(|p| !p.conn().is_introduced());
            // Else one that has been refused, and lingers only so that it reads why.
            let refused = |id: &&u64| self.peers.get(id).is_some_and(|p| p.conn().is_closing());
            let oldest = pending.iter().find(stranger).or_else(|| pending.iter().find(refused));
            let Some(oldest) = oldest.copied() else { return };
            let whose = self.peers.get(&oldest).map_or(remote, Peer::remote);
            self.drop_peer(oldest);
            self.noise(
                whose,
                "too many silent or rejected connections: closed the oldest one".into(),
                events,
                now,
            );
        }
        let id = self.new_id();
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut stream, Token(id as usize), interest).is_ok() {
            self.add_peer(id, stream, remote, None, false, now);
        }
    }

    fn accept_http(&mut self, mut stream: Stream, now: Instant) {
        if self.https.len() >= self.cfg.status_max {
            let Some(oldest) = self.https.iter().find(|(_, h)| h.is_reading()).map(|(id, _)| *id) else {
                return;
            };
            self.https.remove(&oldest);
        }
        let id = self.new_id();
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(stream.source(), Token(id as usize), interest).is_ok() {
            self.https.insert(id, Http::new(stream, self.cfg.status_timeout, now));
            self.again.insert(id);
            self.next_timer = None;
        }
    }

    fn http_turn(&mut self, id: u64, events: &mut Vec<Event>) {
        let now = Instant::now();
        let Some(http) = self.https.get_mut(&id) else { return };
        if let Some(request) = http.read(now) {
            events.push(Event::Request(StatusRequest {
                conn: ConnId(id),
                method: request.method,
                path: request.path,
                query: request.query,
                body: request.body,
                local: http.local,
            }));
        }
        http.write(now);
        if http.is_dead() {
            self.https.remove(&id);
        }
        self.next_timer = None;
    }

    // ---- outgoing

    fn start_dial(&mut self, key: &str, events: &mut Vec<Event>, now: Instant) {
        let Some(target) = self.targets.get_mut(key) else { return };
        if target.requires_tls() && self.cfg.tls.is_none() {
            return self.attempt_failed(key, DialError::NoTls, events, now);
        }
        let Some(addr) = target.begin_round(now + self.cfg.resolve_timeout) else {
            return self.try_next(key, DialError::ConnectTimeout, events, now);
        };
        if let Err(e) = self.resolver.start(key, &addr, &self.waker) {
            self.attempt_failed(key, DialError::Resolve(e), events, now);
        }
    }

    fn resolved(&mut self, key: &str, answer: super::resolve::Answer, events: &mut Vec<Event>, now: Instant) {
        let Some(target) = self.targets.get_mut(key) else { return };
        // An answer that comes too late, or to an address that was forgotten and added again, is still an answer; but
        // an attempt that is under way is not disturbed.
        if !target.is_resolving() {
            return;
        }
        match answer {
            Ok(found) => {
                target.resolved(found);
                self.try_next(key, DialError::Resolve("the name has no address".into()), events, now);
            }
            Err(e) => self.attempt_failed(key, DialError::Resolve(e), events, now),
        }
    }

    /// Connects to the next address of the name; if none is left, the attempt failed with `last`.
    fn try_next(&mut self, key: &str, mut last: DialError, events: &mut Vec<Event>, now: Instant) {
        self.next_timer = None;
        loop {
            let Some(target) = self.targets.get_mut(key) else { return };
            let Some((remote, plain)) = target.next_attempt() else { break };
            let id = self.next_id;
            self.next_id += 1;
            let from = self.listeners.values().filter_map(Listener::members_ip);
            let connected = listen::dial(remote, from).and_then(|mut stream| {
                let interest = Interest::READABLE | Interest::WRITABLE;
                self.poll.registry().register(&mut stream, Token(id as usize), interest)?;
                Ok(stream)
            });
            match connected {
                Ok(stream) => {
                    target.attempt(ConnId(id));
                    let deadline = now + self.cfg.connect_timeout;
                    self.connecting
                        .insert(id, Connecting { stream, remote, key: key.to_owned(), plain, deadline });
                    return;
                }
                Err(e) => last = connect_error(&e),
            }
        }
        self.attempt_failed(key, last, events, now);
    }

    fn connect_turn(&mut self, id: u64, events: &mut Vec<Event>) {
        let Some(connecting) = self.connecting.get(&id) else { return };
        let now = Instant::now();
        let outcome = match connecting.stream.take_error() {
            Ok(None) => match connecting.stream.peer_addr() {
                Ok(_) => Ok(()),
                // Not there yet: the event was an early one.
                Err(e) if e.kind() == ErrorKind::NotConnected => return,
                Err(e) => Err(e),
            },
            Ok(Some(e)) | Err(e) => Err(e),
        };
        let Some(Connecting { stream, remote, key, plain, .. }) = self.connecting.remove(&id) else { return };
        match outcome {
            Ok(()) => self.add_peer(id, stream, remote, Some(key), plain, now),
            Err(e) => self.try_next(&key, connect_error(&e), events, now),
        }
    }

    fn attempt_failed(&mut self, key: &str, error: DialError, events: &mut Vec<Event>, now: Instant) {
        // A name may have several addresses, and not all of them lead to a member.
        if self.targets.get_mut(key).is_some_and(|t| t.has_untried()) {
            return self.try_next(key, error, events, now);
        }
        self.next_timer = None;
        if self.targets.failed(key, &error, now) {
            events.push(Event::DialFailed { addr: key.to_owned(), error });
        }
    }

    // ---- time

    /// The earliest time at which a timer may be due.
    fn next_timer(&mut self, now: Instant) -> Instant {
        if let Some(at) = self.next_timer {
            return at;
        }
        let mut next = now + SLEEP_MAX;
        let peers = self.peers.values().filter_map(|p| p.conn().next_timeout());
        let https = self.https.values().filter_map(Http::next_timeout);
        let connecting = self.connecting.values().map(|c| c.deadline);
        let targets = if self.isolated { None } else { self.targets.next_timeout() };
        for at in peers.chain(https).chain(connecting).chain(targets).chain(self.paused.values().copied()) {
            next = next.min(at);
        }
        self.next_timer = Some(next);
        next
    }

    fn timers(&mut self, now: Instant, events: &mut Vec<Event>) {
        self.next_timer = None;
        for (id, peer) in &mut self.peers {
            if peer.tick(now) {
                self.again.insert(*id);
            }
        }
        for (id, http) in &mut self.https {
            if http.next_timeout().is_some_and(|t| t <= now) {
                http.tick(now);
                self.again.insert(*id);
            }
        }
        self.paused.retain(|id, at| {
            if *at <= now {
                self.again.insert(*id);
            }
            *at > now
        });
        let late: Vec<u64> =
            self.connecting.iter().filter(|(_, c)| c.deadline <= now).map(|(id, _)| *id).collect();
        for id in late {
            if let Some(c) = self.connecting.remove(&id) {
                self.try_next(&c.key, DialError::ConnectTimeout, events, now);
            }
        }
        for key in self.targets.unresolved(now) {
            self.attempt_failed(&key, DialError::Resolve("no answer in time".into()), events, now);
        }
        if !self.isolated {
            for key in self.targets.due(now) {
                self.start_dial(&key, events, now);
            }
        }
    }
}

fn connect_error(e: &io::Error) -> DialError {
    if e.kind() == ErrorKind::TimedOut {
        DialError::ConnectTimeout
    } else {
        DialError::Connect(e.to_string())
    }
}

/// The log text for an incoming connection that failed.
fn noise_text(error: &DialError) -> String {
    match error {
        DialError::NoHello => {
            "connected and sent nothing in time: a port check, or not a Lockstep member (Galera waits for the first \
             message)".into()
        }
        DialError::ClosedEarly(_) => "connected and disconnected without sending anything: a port check?".into(),
        DialError::NotLockstep(what) => format!("not a Lockstep member but {what}"),
        DialError::Encrypts(what) => format!(
            "{what}: if it is a member, it has socket.ssl on, and this member does not: all members need it (for a \
             rolling change: socket.dynamic)"
        ),
        DialError::NotEncrypted(what) => format!(
            "{what}: this one has socket.ssl on, and all members need it (for a rolling change: socket.dynamic)"
        ),
        DialError::WrongCluster { ours, theirs } => {
            format!("refused a member of cluster '{theirs}': this one belongs to '{ours}' (check wsrep_cluster_name)")
        }
        DialError::Version { ours, theirs } => format!(
            "refused a member that speaks protocol versions {} to {}: this one speaks {} to {}",
            theirs.0, theirs.1, ours.0, ours.1
        ),
        other => other.to_string(),
    }
}
