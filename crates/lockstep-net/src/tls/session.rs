//! The encryption of one connection, without a socket: it stands between the socket's bytes and [`Connection`].
//!
//! The driver reads into [`Session::room`] and reports with [`Session::arrived`], calls [`Session::pump`] then and
//! whenever the connection may take more, and writes with [`Session::write`] while [`Session::wants_write`].

use std::io::{self, IoSlice, Read, Write};
use std::net::IpAddr;
use std::time::Instant;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection};

use super::{TlsIdentity, explain};
use crate::error::TlsFailure;
use crate::proto::{Connection, MAGIC, Role, recognise};

/// Most bytes read from a socket at a time: some records.
const ROOM: usize = 64 * 1024;
/// The most encrypted bytes that wait for the socket. Further output waits before its encryption, so the peer's queue is
/// bounded and counted in one place.
const WAITING_MAX: usize = 256 * 1024;
/// Most slices encrypted in one go.
const SLICES: usize = 64;

/// First byte of a TLS handshake, and of an alert.
const HANDSHAKE: u8 = 0x16;
const ALERT: u8 = 0x15;
/// For a member that does not encrypt: a fatal alert, `protocol_version`. It knows this for TLS by its first bytes.
const NOT_PLAIN: [u8; 7] = [ALERT, 3, 3, 0, 2, 2, 70];

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Session {
    tls: rustls::Connection,
    role: Role,
    /// Connections without encryption are taken, too.
    dynamic: bool,
    /// Something has arrived, and it was TLS.
    begun: bool,
    /// The session has failed: input is discarded, and queued output is still sent.
    failed: bool,
    closed: bool,
    /// Not TLS, for a peer that speaks none.
    last_word: &'static [u8],
    /// Received and not consumed: `scratch[start..end]`.
    scratch: Vec<u8>,
    start: usize,
    end: usize,
}

impl Session {
    pub(crate) fn dialer(identity: &TlsIdentity, remote: IpAddr) -> Result<Session, rustls::Error> {
        let name = ServerName::IpAddress(remote.into());
        let tls = ClientConnection::new(identity.client.clone(), name)?;
        Ok(Session::new(tls.into(), Role::Dialer, false))
    }

    pub(crate) fn dialed(identity: &TlsIdentity, dynamic: bool) -> Result<Session, rustls::Error> {
        let tls = ServerConnection::new(identity.server.clone())?;
        Ok(Session::new(tls.into(), Role::Dialed, dynamic))
    }

    fn new(mut tls: rustls::Connection, role: Role, dynamic: bool) -> Session {
        tls.set_buffer_limit(Some(WAITING_MAX));
        Session {
            tls,
            role,
            dynamic,
            begun: false,
            failed: false,
            closed: false,
            last_word: &[],
            scratch: Vec::new(),
            start: 0,
            end: 0,
        }
    }

    /// Room for bytes from the socket. Empty while what arrived earlier was not taken.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.start < self.end {
            return &mut [];
        }
        (self.start, self.end) = (0, 0);
        self.scratch.resize(ROOM, 0);
        &mut self.scratch
    }

    /// `n` bytes were read into the room.
    pub(crate) fn arrived(&mut self, n: usize) {
        self.end += n;
        debug_assert!(self.end <= self.scratch.len());
    }

    /// Decrypts, and hands on to the connection what it takes now. `Some`: the peer does not encrypt and is taken as it
    /// is: these are its first bytes, and the session is used up.
    pub(crate) fn pump(&mut self, conn: &mut Connection, now: Instant) -> Option<Vec<u8>> {
        loop {
            if self.failed {
                self.start = self.end;
                return None;
            }
            if !self.begun && self.start < self.end {
                let bytes = &self.scratch[self.start..self.end];
                let first = bytes[0];
                if first != HANDSHAKE && (self.role == Role::Dialed || first != ALERT) {
                    if self.dynamic && self.role == Role::Dialed {
                        return Some(bytes.to_vec());
                    }
                    let failure = self.stranger();
                    self.fail(failure, conn, now);
                    continue;
                }
                self.begun = true;
            }
            self.hand_on(conn, now);
            if self.start == self.end || !conn.wants_read() {
                return None;
            }
            match self.tls.read_tls(&mut &self.scratch[self.start..self.end]) {
                // The peer has closed its side in order. Later bytes do not count.
                Ok(0) => self.start = self.end,
                Ok(n) => self.start += n,
                // The buffer is full until its content has been passed on.
                Err(_) => return None,
            }
            if let Err(e) = self.tls.process_new_packets() {
                self.hand_on(conn, now);
                self.fail(TlsFailure::Tls(explain::handshake(&e)), conn, now);
            }
        }
    }

    fn hand_on(&mut self, conn: &mut Connection, now: Instant) {
        while conn.wants_read() {
            match self.tls.reader().read(conn.room()) {
                Ok(0) => conn.ended(now),
                Ok(n) => conn.arrived(n, now),
                // Nothing there, or cut off: the socket's own end says so to the connection.
                Err(_) => return,
            }
        }
    }

    /// The error for bytes that are not TLS.
    fn stranger(&mut self) -> TlsFailure {
        let bytes = &self.scratch[self.start..self.end];
        let n = bytes.len().min(MAGIC.len());
        if self.role == Role::Dialed && bytes[..n] == MAGIC[..n] {
            self.last_word = &NOT_PLAIN;
            return TlsFailure::Plain("a member that does not encrypt".into());
        }
        TlsFailure::Other(recognise(bytes))
    }

    fn fail(&mut self, failure: TlsFailure, conn: &mut Connection, now: Instant) {
        self.failed = true;
        conn.insecure(failure, now);
    }

    /// The socket has ended, in order or with this error.
    pub(crate) fn ended(&mut self, error: Option<&str>, conn: &mut Connection, now: Instant) {
        if !self.failed && self.tls.is_handshaking() && (self.begun || self.role == Role::Dialer) {
            let how = error.unwrap_or("end of stream");
            let failure = match self.begun {
                // Either a member without TLS, which closes because it cannot parse this, or a member that is stopping.
                false => TlsFailure::Plain(format!(
                    "a program that closes the connection at the TLS handshake ({how})"
                )),
                true => {
                    TlsFailure::Tls(format!("the peer ended the connection during the TLS handshake ({how})"))
                }
            };
            self.fail(failure, conn, now);
        }
        match error {
            None => conn.ended(now),
            Some(text) => conn.failed(text, now),
        }
    }

    /// Encrypts what the connection has queued, as far as there is room.
    fn fill(&mut self, conn: &mut Connection) {
        while !self.failed && !self.closed && !self.tls.is_handshaking() && conn.wants_write() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let n = conn.slices(&mut slices);
            match self.tls.writer().write_vectored(&slices[..n]) {
                Ok(0) | Err(_) => return,
                Ok(n) => conn.written(n),
            }
        }
    }

    /// Writes some queued output. 0: nothing can be sent now.
    pub(crate) fn write(&mut self, conn: &mut Connection, to: &mut dyn Write) -> io::Result<usize> {
        if !self.last_word.is_empty() {
            let n = to.write(self.last_word)?;
            self.last_word = &self.last_word[n..];
            return Ok(n);
        }
        self.fill(conn);
        if conn.wants_shutdown() && !self.closed && !self.failed {
            self.closed = true;
            self.tls.send_close_notify();
        }
        self.tls.write_tls(to)
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        !self.failed && self.tls.is_handshaking()
    }

    /// Whether [`Session::write`] has something for the socket.
    pub(crate) fn wants_write(&self, conn: &Connection) -> bool {
        let more = conn.wants_write() || conn.wants_shutdown() && !self.closed;
        !self.last_word.is_empty()
            || self.tls.wants_write()
            || more && !self.failed && !self.closed && !self.tls.is_handshaking()
    }
}
