//! Reads a primary's binlog, as a replica does, with the semi-synchronous acknowledgement that no crate for MySQL clients
//! has. See `sql/slave.cc` and `sql/semisync_slave.cc` of MariaDB.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::ClientConnection;

use super::command::{COM_BINLOG_DUMP, COM_REGISTER_SLAVE, DUMP_ANNOTATE, DUMP_NON_BLOCK};
use super::packet::{Decoder, encode};
use super::sql_client::{SqlClient, SqlClientError, invalid, server_error};

/// The largest event: `max_allowed_packet` is 1 GiB at most, and a packet has a little more.
const EVENT_MAX: usize = (1 << 30) + (1 << 20);
/// Bytes received at once.
const CHUNK: usize = 256 << 10;
/// The mark of a semi-synchronous source's packet, and of an acknowledgement.
const SEMI_SYNC: u8 = 0xef;

/// The part of the binlog to read.
#[derive(Clone, Debug)]
pub struct DumpRequest {
    /// The server id of the reader. The primary ends another connection with the same one.
    pub server_id: u32,
    /// The name that `SHOW SLAVE HOSTS` shows.
    pub report_host: String,
    /// The file.
    pub file: String,
    /// The begin of an event in it.
    pub offset: u32,
    /// Whether to be a semi-synchronous replica. The request itself acknowledges everything before the offset.
    pub semi_sync: bool,
    /// Whether the primary ends the binlog where it ends now, in place of waiting for more.
    pub non_block: bool,
    /// How often the primary sends a sign of life if it has no event.
    pub heartbeat: Duration,
}

/// Registers as a replica and requests the binlog.
///
/// # Errors
/// [`SqlClientError`]. Some refusals arrive as the first event instead.
pub fn request_binlog(
    mut client: SqlClient,
    request: &DumpRequest,
) -> Result<(Events, Acknowledger), SqlClientError> {
    let DumpRequest { server_id, report_host, file, offset, semi_sync, non_block, heartbeat } = request;
    client.rows(&format!("SET @master_heartbeat_period= {}", heartbeat.as_nanos()))?;
    client.rows("SET @master_binlog_checksum= @@global.binlog_checksum")?;
    // As a replica that knows GTIDs: it gets every event as it is in the file.
    client.rows("SET @mariadb_slave_capability= 4")?;
    if *semi_sync {
        client.rows("SET @rpl_semi_sync_slave= 1")?;
    }
    let host = report_host.as_bytes();
    let host = &host[..host.len().min(60)];
    // No user, no password; port, rank, and the source's id.
    let rest = [0; 2 + 2 + 4 + 4];
    let register = [&server_id.to_le_bytes()[..], &[host.len() as u8], host, &rest].concat();
    client.command(COM_REGISTER_SLAVE, &register)?;
    client.answer()?;
    let flags = DUMP_ANNOTATE | if *non_block { DUMP_NON_BLOCK } else { 0 };
    let (offset, flags, id) = (offset.to_le_bytes(), flags.to_le_bytes(), server_id.to_le_bytes());
    client.command(COM_BINLOG_DUMP, &[&offset, &flags[..], &id, file.as_bytes()].concat())?;
    let (socket, tls, decoder) = client.into_parts();
    let wire = Arc::new(Wire { socket, tls: tls.map(Mutex::new) });
    let acknowledger = Acknowledger { wire: wire.clone() };
    Ok((Events::new(wire, decoder, *semi_sync), acknowledger))
}

/// A connection on which one thread reads, and another one sends acknowledgements.
struct Wire {
    socket: TcpStream,
    /// Its lock is never held by a thread that waits for the socket.
    tls: Option<Mutex<ClientConnection>>,
}

/// A socket of which no call waits.
struct NoWait<'a>(&'a TcpStream);

impl Read for NoWait<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(recv(self.0, buffer, RecvFlags::DONTWAIT)?.0)
    }
}

impl Write for NoWait<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Wire {
    fn lock(tls: &Mutex<ClientConnection>) -> MutexGuard<'_, ClientConnection> {
        tls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads some bytes; 0 at the end. An error of the kind `WouldBlock` if there are none: after this time, or because those
    /// that arrived are part of a larger record.
    fn read(&self, input: &mut [u8], timeout: Duration) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(timeout))?;
        let Some(tls) = &self.tls else { return (&self.socket).read(input) };
        match Wire::lock(tls).reader().read(input) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
        if self.socket.peek(&mut [0])? == 0 {
            return Ok(0);
        }
        let mut tls = Wire::lock(tls);
        tls.read_tls(&mut NoWait(&self.socket))?;
        tls.process_new_packets().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        if tls.wants_write() {
            tls.write_tls(&mut NoWait(&self.socket))?;
        }
        tls.reader().read(input)
    }

    /// Sends these bytes, all of them and at once, or fails.
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &self.tls else { return NoWait(&self.socket).write_all(bytes) };
        let mut tls = Wire::lock(tls);
        tls.writer().write_all(bytes)?;
        while tls.wants_write() {
            tls.write_tls(&mut NoWait(&self.socket))?;
        }
        Ok(())
    }
}

/// An event as the primary has sent it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    /// The event's bytes.
    pub event: Vec<u8>,
    /// Whether the primary waits for an acknowledgement.
    pub ack: bool,
}

/// A binlog that arrives.
pub struct Events {
    wire: Arc<Wire>,
    decoder: Decoder,
    semi_sync: bool,
    input: Box<[u8]>,
    received: u64,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    fn new(wire: Arc<Wire>, mut decoder: Decoder, semi_sync: bool) -> Events {
        decoder.set_limit(EVENT_MAX);
        // Primary and replica begin their numbers anew around each acknowledgement, at different moments.
        decoder.ignore_sequence();
        Events { wire, decoder, semi_sync, input: vec![0; CHUNK].into_boxed_slice(), received: 0 }
    }

    /// Bytes received so far: a large event takes time.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The next event. `None` if none has arrived within this time.
    ///
    /// # Errors
    /// [`SqlClientError`]: the primary has refused, or is gone.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Received>, SqlClientError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(received) = self.next_received()? {
                return Ok(Some(received));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            match self.wire.read(&mut self.input, left) {
                Ok(0) => return Err(closed()),
                Ok(len) => {
                    self.received += len as u64;
                    self.decoder.push(&self.input[..len]);
                }
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next event, if it has arrived already.
    ///
    /// # Errors
    /// As [`Events::next`].
    pub fn next_received(&mut self) -> Result<Option<Received>, SqlClientError> {
        let next = self.decoder.take().map_err(invalid)?;
        next.map(|(payload, _)| parse(payload, self.semi_sync)).transpose()
    }
}

fn closed() -> SqlClientError {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the primary has closed the connection").into()
}

/// Takes a packet apart: a status byte, two bytes for semi-synchronous replicas, and the event.
pub(crate) fn parse(mut payload: Vec<u8>, semi_sync: bool) -> Result<Received, SqlClientError> {
    let wrong = |what: &str| invalid(format!("a packet of the binlog has an invalid {what}"));
    match payload.first() {
        Some(0) => {}
        Some(0xfe) if payload.len() < 9 => return Err(SqlClientError::Ended),
        _ => {
            let error = server_error(&payload).map(|(code, text)| SqlClientError::Server(code, text));
            return Err(error.unwrap_or_else(|| wrong("first byte")));
        }
    }
    let mut ack = false;
    let mut begin = 1;
    if semi_sync {
        match payload.get(1..3) {
            Some([SEMI_SYNC, flag @ (0 | 1)]) => ack = *flag == 1,
            _ => return Err(wrong("semi-synchronous mark")),
        }
        begin = 3;
    }
    payload.drain(..begin);
    Ok(Received { event: payload, ack })
}

/// Sends acknowledgements on the connection of [`Events`].
pub struct Acknowledger {
    wire: Arc<Wire>,
}

impl fmt::Debug for Acknowledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acknowledger").finish_non_exhaustive()
    }
}

impl Acknowledger {
    /// Acknowledges everything up to this position. Does not wait.
    ///
    /// # Errors
    /// An error of the system; also if the primary has not read thousands of earlier ones. The connection is to be closed.
    pub fn acknowledge(&mut self, file: &str, offset: u64) -> io::Result<()> {
        let mut out = Vec::with_capacity(32 + file.len());
        let offset = offset.to_le_bytes();
        // Each acknowledgement begins the numbers anew.
        encode(&[&[SEMI_SYNC], &offset, file.as_bytes(), &[0]], &mut 0, &mut out);
        self.wire.send(&out)
    }

    /// Closes the connection, so that [`Events::next`] ends.
    pub fn close(&self) {
        // It may be closed already.
        let _ = self.wire.socket.shutdown(std::net::Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_is_taken_apart() {
        let received = |payload: &[u8], semi_sync| parse(payload.to_vec(), semi_sync);
        let event = b"event".to_vec();
        let plain = received(b"\0event", false).unwrap();
        assert_eq!(plain, Received { event: event.clone(), ack: false });
        let wanted = received(b"\0\xef\x01event", true).unwrap();
        assert_eq!(wanted, Received { event: event.clone(), ack: true });
        let unwanted = received(b"\0\xef\0event", true).unwrap();
        assert_eq!(unwanted, Received { event, ack: false });
        let error = received(b"\xff\xd4\x04#HY000no such file", false).unwrap_err();
        assert!(error.to_string().contains("1236: no such file"), "{error}");
        let end = received(&[0xfe, 0, 0, 2, 0], false).unwrap_err();
        assert!(matches!(end, SqlClientError::Ended), "{end}");
        for wrong in [&b""[..], b"\x07", b"\0", b"\0\xef", b"\0\xef\x02event", b"\0abevent"] {
            assert!(received(wrong, true).is_err(), "{wrong:?}");
        }
    }
}
