//! Signing in, and statements.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::events::{Acknowledger, Events};
use super::{SourceError, greeting, server_error};
use crate::codec::{DecodeError, Reader};
use crate::wire::packet::{Decoder, encode};

/// The longest payload before the binlog begins.
const ANSWER_MAX: usize = 16 << 20;
/// The most columns and rows of an answer.
const ROWS_MAX: usize = 100_000;
const COM_QUERY: u8 = 3;
const COM_REGISTER_SLAVE: u8 = 21;
const COM_BINLOG_DUMP: u8 = 18;
/// Send Annotate_rows events.
const DUMP_ANNOTATE: u16 = 2;

/// The account on the primary.
#[derive(Clone)]
pub struct Credentials {
    /// Its name.
    pub user: String,
    /// Its password.
    pub password: String,
}

/// What to read.
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
    /// Whether to acknowledge transactions, as a semi-synchronous replica does.
    pub semi_sync: bool,
    /// How often the primary sends a sign of life if it has no event.
    pub heartbeat: Duration,
}

/// A connection that is signed in. Each answer is awaited for a limited time.
pub struct Connection {
    stream: TcpStream,
    decoder: Decoder,
    timeout: Duration,
}

impl Connection {
    /// Connects and signs in.
    ///
    /// # Errors
    /// [`SourceError`].
    pub fn open(address: &str, account: &Credentials, timeout: Duration) -> Result<Connection, SourceError> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host's name has no address");
        let mut stream = None;
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(connected) => {
                    stream = Some(connected);
                    break;
                }
                Err(error) => last = error,
            }
        }
        let stream = stream.ok_or(last)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(timeout))?;
        rustix::net::sockopt::set_socket_keepalive(&stream, true).map_err(io::Error::from)?;
        let mut connection = Connection { stream, decoder: Decoder::new(ANSWER_MAX), timeout };
        connection.sign_in(account)?;
        Ok(connection)
    }

    fn sign_in(&mut self, Credentials { user, password }: &Credentials) -> Result<(), SourceError> {
        let (hello, mut sequence) = self.read()?;
        if let Some(error) = server_error(&hello) {
            return Err(error);
        }
        let scramble = greeting::scramble_of(&hello).map_err(|why| SourceError::Protocol("greeting", why))?;
        self.write(&greeting::reply(user, password, &scramble), sequence)?;
        loop {
            let (answer, next) = self.read()?;
            sequence = next;
            match answer.first() {
                Some(0) => return Ok(()),
                Some(0xfe) => {
                    let proof = greeting::answer_to_switch(&answer, password)?;
                    self.write(&proof, sequence)?;
                }
                _ => {
                    let what = SourceError::Protocol("answer", DecodeError::Invalid("first byte"));
                    return Err(server_error(&answer).unwrap_or(what));
                }
            }
        }
    }

    fn write(&mut self, payload: &[u8], mut sequence: u8) -> io::Result<()> {
        let mut out = Vec::new();
        encode(&[payload], &mut sequence, &mut out);
        self.decoder.expect(sequence);
        self.stream.write_all(&out)
    }

    /// The next payload, and the number that an answer begins with.
    fn read(&mut self) -> Result<(Vec<u8>, u8), SourceError> {
        let deadline = Instant::now() + self.timeout;
        let mut input = [0; 4096];
        loop {
            let next = self.decoder.take();
            if let Some(next) = next.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))? {
                self.decoder.expect(next.1);
                return Ok(next);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut input) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(len) => self.decoder.push(&input[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::Error::from(io::ErrorKind::TimedOut).into());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn command(&mut self, command: u8, body: &[u8]) -> Result<Vec<u8>, SourceError> {
        self.write(&[&[command], body].concat(), 0)?;
        let (answer, _) = self.read()?;
        match server_error(&answer) {
            Some(error) => Err(error),
            None => Ok(answer),
        }
    }

    /// Executes a statement. Returns the rows of its answer as text, without the names of the columns.
    ///
    /// # Errors
    /// [`SourceError`].
    pub fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, SourceError> {
        let malformed = |why| SourceError::Protocol("answer to a statement", why);
        let answer = self.command(COM_QUERY, sql.as_bytes())?;
        if answer.first() == Some(&0) {
            return Ok(Vec::new());
        }
        let columns = Reader::new(&answer).length().map_err(malformed)? as usize;
        if columns > ROWS_MAX {
            return Err(malformed(DecodeError::Invalid("number of columns")));
        }
        // The columns' definitions, and their end.
        for _ in 0..=columns {
            self.read()?;
        }
        let mut rows = Vec::new();
        loop {
            let (payload, _) = self.read()?;
            if let Some(error) = server_error(&payload) {
                return Err(error);
            }
            if payload.first() == Some(&0xfe) && payload.len() < 9 {
                return Ok(rows);
            }
            if rows.len() >= ROWS_MAX {
                return Err(malformed(DecodeError::Invalid("number of rows")));
            }
            rows.push(row(&payload, columns).map_err(malformed)?);
        }
    }

    /// The single value of a statement's answer; `None` for NULL or no row.
    ///
    /// # Errors
    /// [`SourceError`].
    pub fn value(&mut self, sql: &str) -> Result<Option<String>, SourceError> {
        let rows = self.query(sql)?;
        Ok(rows.into_iter().next().and_then(|row| row.into_iter().next()).flatten())
    }

    /// Registers as a replica and requests the binlog.
    ///
    /// # Errors
    /// [`SourceError`]. Some refusals arrive as the first event instead.
    pub fn dump(mut self, request: &DumpRequest) -> Result<(Events, Acknowledger), SourceError> {
        let DumpRequest { server_id, report_host, file, offset, semi_sync, heartbeat } = request;
        self.query(&format!("SET @master_heartbeat_period= {}", heartbeat.as_nanos()))?;
        self.query("SET @master_binlog_checksum= @@global.binlog_checksum")?;
        // As a replica that knows GTIDs: it gets every event as it is in the file.
        self.query("SET @mariadb_slave_capability= 4")?;
        if *semi_sync {
            self.query("SET @rpl_semi_sync_slave= 1")?;
        }
        let mut body = server_id.to_le_bytes().to_vec();
        let host = report_host.as_bytes();
        let host = &host[..host.len().min(60)];
        body.push(host.len() as u8);
        body.extend_from_slice(host);
        // No user, no password; port, rank, and the source's id.
        body.extend_from_slice(&[0, 0]);
        body.extend_from_slice(&[0; 2 + 4 + 4]);
        self.command(COM_REGISTER_SLAVE, &body)?;
        let mut body = offset.to_le_bytes().to_vec();
        body.extend_from_slice(&DUMP_ANNOTATE.to_le_bytes());
        body.extend_from_slice(&server_id.to_le_bytes());
        body.extend_from_slice(file.as_bytes());
        self.write(&[&[COM_BINLOG_DUMP], body.as_slice()].concat(), 0)?;
        let acknowledger = Acknowledger::new(self.stream.try_clone()?);
        Ok((Events::new(self.stream, self.decoder, *semi_sync), acknowledger))
    }
}

pub(super) fn row(payload: &[u8], columns: usize) -> Result<Vec<Option<String>>, DecodeError> {
    let mut r = Reader::new(payload);
    let mut values = Vec::new();
    for _ in 0..columns {
        let mut ahead = r;
        if ahead.u8()? == 0xfb {
            r = ahead;
            values.push(None);
        } else {
            values.push(Some(String::from_utf8_lossy(r.length_bytes()?).into_owned()));
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_with_null_parses_and_truncated_one_is_refused() {
        let payload = [1, b'a', 0xfb, 2, b'b', b'c'];
        let expected = vec![Some("a".into()), None, Some("bc".into())];
        assert_eq!(row(&payload, 3), Ok(expected));
        for cut in 0..payload.len() {
            assert!(row(&payload[..cut], 3).is_err(), "{cut}");
        }
    }
}
