//! One socket to a member, driving one [`Connection`].

use std::io::{ErrorKind, IoSlice, Read};
use std::net::{Shutdown, SocketAddr};
use std::time::Instant;

use mio::net::TcpStream;

use super::listen::send_vectored;
use crate::proto::Connection;

/// Most bytes read from one connection before the others have their turn.
const READ_BUDGET: usize = 1 << 20;

/// Most slices handed to one `writev`.
const SLICES: usize = 64;

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    pub(crate) conn: Connection,
    pub(crate) remote: SocketAddr,
    /// The address that was dialed, if this side dialed.
    pub(crate) dialed: Option<String>,
    /// When the transport was established.
    pub(crate) since: Instant,
    /// Edge-triggered: set by an event, cleared when the kernel has nothing (more).
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer's end or an error is known to be behind the bytes: read until it shows.
    pub(crate) hangup: bool,
    /// Our sending side is shut down.
    shut: bool,
}

impl Peer {
    pub(crate) fn new(
        stream: TcpStream,
        conn: Connection,
        remote: SocketAddr,
        dialed: Option<String>,
        now: Instant,
    ) -> Peer {
        Peer {
            stream,
            conn,
            remote,
            dialed,
            since: now,
            readable: true,
            writable: true,
            hangup: false,
            shut: false,
        }
    }

    /// Reads what is there, up to the budget. Whether more is left for another turn.
    pub(crate) fn read(&mut self) -> bool {
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
                Err(e) => {
                    self.writable = false;
                    // What the peer said before it closed is worth more than our failed write: read it first.
                    let text = e.to_string();
                    self.readable = true;
                    self.hangup = true;
                    self.read();
                    self.conn.failed(&text, Instant::now());
                }
            }
        }
        if self.conn.wants_shutdown() && !self.shut {
            self.shut = true;
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }
}
