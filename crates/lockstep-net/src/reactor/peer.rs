//! A socket to a member and the [`Connection`] that it drives, with or without TLS.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Instant;

use bytes::Bytes;
use mio::Registry;
use mio::event::Event as MioEvent;
use mio::net::TcpStream;

use super::listen::send_vectored;
use crate::error::{Reason, SendError};
use crate::proto::{ConnEvent, Connection};
use crate::tls::Session;

/// Most bytes read from one connection before the others have their turn.
const READ_BUDGET: usize = 1 << 20;

/// Most slices handed to one `writev`.
const SLICES: usize = 64;

/// See the module. All bytes of the connection pass through [`Peer::read`] and [`Peer::write`].
#[derive(Debug)]
pub(crate) struct Peer {
    stream: TcpStream,
    conn: Connection,
    /// The encryption; boxed, for most of it is rustls' buffers, and plain connections have none.
    tls: Option<Box<Session>>,
    remote: SocketAddr,
    /// The address that was dialed, if this side dialed, until the end of the dial.
    dialed: Option<String>,
    /// When the transport was established.
    since: Instant,
    /// Edge-triggered: set by an event, cleared when the kernel has nothing (more).
    readable: bool,
    writable: bool,
    /// The peer's end or an error is known to be behind the bytes: read until it shows.
    hangup: bool,
    /// Our sending side is shut down.
    shut: bool,
}

impl Peer {
    pub(crate) fn new(
        stream: TcpStream,
        conn: Connection,
        tls: Option<Box<Session>>,
        remote: SocketAddr,
        dialed: Option<String>,
        now: Instant,
    ) -> Peer {
        Peer {
            stream,
            conn,
            tls,
            remote,
            dialed,
            since: now,
            readable: true,
            writable: true,
            hangup: false,
            shut: false,
        }
    }

    /// The protocol's state. It changes by the methods of [`Peer`] only.
    pub(crate) fn conn(&self) -> &Connection {
        &self.conn
    }

    pub(crate) fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// When the transport was established.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// The address that was dialed; `None` if the peer dialed, or after [`Peer::end_dial`].
    pub(crate) fn dialed(&self) -> Option<&str> {
        self.dialed.as_deref()
    }

    /// The dial has ended, because the connection has failed or was closed. Returns its address, so that the end is noted
    /// once.
    pub(crate) fn end_dial(&mut self) -> Option<String> {
        self.dialed.take()
    }

    /// Takes in an event of the socket. Returns whether the socket has become writable and something waits to be written.
    pub(crate) fn socket_event(&mut self, event: &MioEvent) -> bool {
        self.hangup |= event.is_read_closed() || event.is_error();
        self.readable |= event.is_readable() || self.hangup;
        self.writable |= event.is_writable();
        event.is_writable() && self.wants_write()
    }

    /// Ends the events of the socket.
    pub(crate) fn deregister(&mut self, registry: &Registry) {
        // Closing the descriptor would do, were it not for children of a fork that has not reached its exec.
        let _ = registry.deregister(&mut self.stream);
    }

    /// The next event of the connection.
    pub(crate) fn poll_event(&mut self) -> Option<ConnEvent> {
        self.conn.poll_event()
    }

    /// Takes the peer, which has introduced itself.
    pub(crate) fn accept(&mut self, now: Instant) {
        self.conn.accept(now);
    }

    /// Queues a frame.
    pub(crate) fn send(&mut self, kind: u8, parts: &[Bytes]) -> Result<(), SendError> {
        self.conn.send(kind, parts)
    }

    /// Ends the connection, and tells the peer why. No event of the connection follows.
    pub(crate) fn close(&mut self, reason: Reason, text: &str, now: Instant) {
        self.conn.close(reason, text, now);
        while self.conn.poll_event().is_some() {}
    }

    /// Ends the connection as if the network had failed.
    pub(crate) fn cut(&mut self, error: &str, now: Instant) {
        self.conn.failed(error, now);
    }

    /// Runs the connection's timers. Whether one was due.
    pub(crate) fn tick(&mut self, now: Instant) -> bool {
        let is_due = self.conn.next_timeout().is_some_and(|at| at <= now);
        if is_due {
            self.conn.tick(now);
        }
        is_due
    }

    /// Whether the connection is encrypted, or about to be.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether encryption is still being agreed on.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Reads what is there, up to the budget. Whether more is left for another turn.
    pub(crate) fn read(&mut self) -> bool {
        if self.tls.is_some() {
            return self.read_tls();
        }
        let mut budget = READ_BUDGET;
        while self.readable && self.conn.wants_read() {
            if budget == 0 {
                return true;
            }
            let room = self.conn.room();
            let offered = room.len();
            match self.stream.read(room) {
                Ok(0) => {
                    self.readable = false;
                    self.conn.ended(Instant::now());
                }
                Ok(n) => {
                    budget = budget.saturating_sub(n);
                    // Less than asked for: the socket is empty (epoll(7)), and the next arrival makes an event.
                    if n < offered && !self.hangup {
                        self.readable = false;
                    }
                    self.conn.arrived(n, Instant::now());
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    self.readable = false;
                    self.conn.failed(&e.to_string(), Instant::now());
                }
            }
        }
        false
    }

    /// Writes what is queued, as far as the socket takes it.
    pub(crate) fn write(&mut self) {
        if self.tls.is_some() {
            return self.write_tls();
        }
        while self.writable && self.conn.wants_write() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let n = self.conn.slices(&mut slices);
            let offered: usize = slices[..n].iter().map(|s| s.len()).sum();
            match send_vectored(&self.stream, &slices[..n]) {
                Ok(n) => {
                    self.conn.written(n);
                    if n < offered {
                        self.writable = false;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => self.write_failed(&e),
            }
        }
        if self.conn.wants_shutdown() && !self.shut {
            self.shut = true;
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    fn write_failed(&mut self, e: &io::Error) {
        self.writable = false;
        // The peer's last message explains more than our failed write: read it first.
        let text = e.to_string();
        self.readable = true;
        self.hangup = true;
        self.read();
        self.conn.failed(&text, Instant::now());
    }

    /// Whether there is something for the socket, or its sending side is to be shut down.
    pub(crate) fn wants_write(&self) -> bool {
        let queued = match &self.tls {
            None => self.conn.wants_write(),
            Some(tls) => tls.wants_write(&self.conn),
        };
        queued || self.conn.wants_shutdown()
    }

    fn read_tls(&mut self) -> bool {
        let Some(tls) = &mut self.tls else { return false };
        let mut budget = READ_BUDGET;
        loop {
            // First what arrived earlier: the connection may have become willing to take it.
            let now = Instant::now();
            if let Some(plain) = tls.pump(&mut self.conn, now) {
                self.tls = None;
                self.take_plain(&plain, now);
                return self.read();
            }
            if !self.readable || !self.conn.wants_read() {
                return false;
            }
            if budget == 0 {
                return true;
            }
            let room = tls.room();
            let offered = room.len();
            if offered == 0 {
                return false;
            }
            match self.stream.read(room) {
                Ok(0) => {
                    self.readable = false;
                    tls.ended(None, &mut self.conn, Instant::now());
                }
                Ok(n) => {
                    budget = budget.saturating_sub(n);
                    if n < offered && !self.hangup {
                        self.readable = false;
                    }
                    tls.arrived(n);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    self.readable = false;
                    tls.ended(Some(&e.to_string()), &mut self.conn, Instant::now());
                }
            }
        }
    }

    /// The first bytes of a peer that does not encrypt.
    fn take_plain(&mut self, mut bytes: &[u8], now: Instant) {
        while !bytes.is_empty() && self.conn.wants_read() {
            let room = self.conn.room();
            let n = room.len().min(bytes.len());
            room[..n].copy_from_slice(&bytes[..n]);
            self.conn.arrived(n, now);
            bytes = &bytes[n..];
        }
    }

    fn write_tls(&mut self) {
        let Some(tls) = &mut self.tls else { return };
        while self.writable && tls.wants_write(&self.conn) {
            match tls.write(&mut self.conn, &mut Socket(&self.stream)) {
                Ok(0) => break,
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.writable = false;
                    break;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return self.write_failed(&e),
            }
        }
        if self.conn.wants_shutdown() && !tls.wants_write(&self.conn) && !self.shut {
            self.shut = true;
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }
}

/// The writing side of a socket, without SIGPIPE.
struct Socket<'a>(&'a TcpStream);

impl Write for Socket<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        send_vectored(self.0, slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
