//! A client of another server, for accounts and for statements that are not answered here. Signs in by
//! `mysql_native_password`; with TLS if an authority is given.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvFlags, recv};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::TlsError;
use super::handshake::{Greeting, METHOD, Scramble, capability as cap, client_reply, proof};
use super::packet::{Decoder, encode};
use crate::codec::{DecodeError, Reader};
use lockstep_net::tls::acceptor::certificates;

/// The longest payload of an answer.
const PAYLOAD_MAX: usize = 64 << 20;
/// The most rows that [`SqlClient::rows`] reads.
const ROWS_MAX: usize = 100_000;
const COM_QUERY: u8 = 3;

/// A server, and the account for it.
#[derive(Clone)]
pub struct Target {
    /// `HOST:PORT`.
    pub address: String,
    /// The account's name.
    pub user: String,
    /// Its password.
    pub password: String,
    /// Encryption; `None`: none.
    pub tls: Option<Arc<ClientTls>>,
    /// How long each step may take.
    pub timeout: Duration,
}

impl fmt::Debug for Target {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.user, self.address)
    }
}

/// The authority that the server's certificate must be signed by, for the name in its address.
#[derive(Debug)]
pub struct ClientTls(Arc<ClientConfig>);

impl ClientTls {
    /// Reads the authority's file.
    ///
    /// # Errors
    /// [`TlsError`] if it cannot be used.
    pub fn load(authority: &Path) -> Result<ClientTls, TlsError> {
        let unusable =
            |e: &dyn fmt::Display| TlsError::new(format!("{} cannot be used: {e}", authority.display()));
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authority)? {
            roots.add(certificate).map_err(|e| unusable(&e))?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(super::tls::VERSIONS)
            .map_err(|e| unusable(&e))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(ClientTls(Arc::new(config)))
    }
}

/// Why a statement has no answer.
#[derive(Debug)]
pub enum SqlClientError {
    /// The connection failed, or the server sent what the protocol does not allow.
    Connection(io::Error),
    /// The server's error: number and text.
    Server(u16, String),
    /// The server has sent its binlog to the end.
    Ended,
}

impl fmt::Display for SqlClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(error) => error.fmt(f),
            Self::Server(code, text) => write!(f, "error {code}: {text}"),
            Self::Ended => f.write_str("the primary has ended its binlog"),
        }
    }
}

impl std::error::Error for SqlClientError {}

impl From<io::Error> for SqlClientError {
    fn from(error: io::Error) -> SqlClientError {
        SqlClientError::Connection(error)
    }
}

impl From<DecodeError> for SqlClientError {
    fn from(why: DecodeError) -> SqlClientError {
        invalid(format!("a packet {why}"))
    }
}

pub(super) fn invalid(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> SqlClientError {
    SqlClientError::Connection(io::Error::new(io::ErrorKind::InvalidData, what))
}

/// Rows as text; `None` is NULL.
pub type TextRows = Vec<Vec<Option<String>>>;

/// The bytes of a connection.
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => &stream.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.flush(),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

/// The parts of a connection: its socket, its encryption, and bytes that were received and not taken.
pub(super) type Parts = (TcpStream, Option<ClientConnection>, Decoder);

/// A connection that has signed in.
pub struct SqlClient {
    stream: Stream,
    decoder: Decoder,
    sequence: u8,
}

impl fmt::Debug for SqlClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlClient").finish_non_exhaustive()
    }
}

impl SqlClient {
    /// Connects and signs in.
    ///
    /// # Errors
    /// [`SqlClientError`] if the server cannot be reached or refuses.
    pub fn connect(to: &Target) -> Result<SqlClient, SqlClientError> {
        let mut failed = io::Error::other("the name has no address");
        let mut found = None;
        for address in to.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, to.timeout) {
                Ok(socket) => {
                    found = Some(socket);
                    break;
                }
                Err(error) => failed = error,
            }
        }
        let Some(socket) = found else { return Err(failed.into()) };
        socket.set_read_timeout(Some(to.timeout))?;
        socket.set_write_timeout(Some(to.timeout))?;
        socket.set_nodelay(true)?;
        let mut client =
            SqlClient { stream: Stream::Plain(socket), decoder: Decoder::new(PAYLOAD_MAX), sequence: 0 };
        let greeting = Greeting::parse(&client.checked()?)?;
        let mut capabilities = cap::LONG_PASSWORD
            | cap::PROTOCOL_41
            | cap::TRANSACTIONS
            | cap::SECURE_CONNECTION
            | cap::PLUGIN_AUTH;
        if let Some(tls) = &to.tls {
            if greeting.capabilities & cap::SSL == 0 {
                return Err(invalid("the server does not offer TLS"));
            }
            // The server waits for this request. Bytes of somebody else must not count as decrypted ones.
            if !client.decoder.take_rest().is_empty() {
                return Err(invalid("bytes without encryption arrived behind the server's greeting"));
            }
            capabilities |= cap::SSL;
            client.send(&client_reply(capabilities, None))?;
            let host = to.address.rsplit_once(':').map_or(&*to.address, |(host, _)| host);
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            let name = ServerName::try_from(host).map_err(invalid)?;
            let session = ClientConnection::new(tls.0.clone(), name).map_err(invalid)?;
            let socket = client.stream.socket().try_clone()?;
            client.stream = Stream::Tls(Box::new(StreamOwned::new(session, socket)));
        }
        let shown = proof(to.password.as_bytes(), &greeting.scramble);
        client.send(&client_reply(capabilities, Some((&to.user, &shown))))?;
        let mut answer = client.checked()?;
        if answer.first() == Some(&0xfe) {
            // The server asks for another method, or for a proof of another scramble.
            let scramble = parse_switch(&answer)?;
            client.send(&proof(to.password.as_bytes(), &scramble))?;
            answer = client.checked()?;
        }
        if answer.first() != Some(&0) {
            return Err(invalid("the server asks for more than a password"));
        }
        Ok(client)
    }

    fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        let mut out = Vec::new();
        encode(&[payload], &mut self.sequence, &mut out);
        self.stream.write_all(&out)?;
        self.stream.flush()
    }

    fn receive(&mut self) -> Result<Vec<u8>, SqlClientError> {
        let mut input = [0; 16 << 10];
        loop {
            self.decoder.expect(self.sequence);
            if let Some((payload, next)) = self.decoder.take().map_err(invalid)? {
                self.sequence = next;
                return Ok(payload);
            }
            match self.stream.read(&mut input)? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                len => self.decoder.push(&input[..len]),
            }
        }
    }

    /// The next payload, unless it is an error.
    fn checked(&mut self) -> Result<Vec<u8>, SqlClientError> {
        let payload = self.receive()?;
        match server_error(&payload) {
            Some((code, text)) => Err(SqlClientError::Server(code, text)),
            None => Ok(payload),
        }
    }

    /// Sends a command.
    pub(super) fn command(&mut self, command: u8, body: &[u8]) -> io::Result<()> {
        self.sequence = 0;
        self.send(&[&[command], body].concat())
    }

    /// Reads an answer of one packet.
    ///
    /// # Errors
    /// [`SqlClientError`].
    pub(super) fn answer(&mut self) -> Result<Vec<u8>, SqlClientError> {
        self.checked()
    }

    /// Takes the connection apart.
    pub(super) fn into_parts(self) -> Parts {
        match self.stream {
            Stream::Plain(socket) => (socket, None, self.decoder),
            Stream::Tls(stream) => (stream.sock, Some(stream.conn), self.decoder),
        }
    }

    /// Whether the server is still there, as far as this side knows, and waits for a command. A server that ends a connection
    /// closes it, some after a packet that says why.
    pub fn is_ready(&self) -> bool {
        let mut byte = [0];
        let peeked = recv(self.stream.socket(), &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(peeked, Err(rustix::io::Errno::AGAIN))
    }

    /// The single value of a statement's answer; `None` for NULL or no row.
    ///
    /// # Errors
    /// As [`SqlClient::rows`].
    pub fn value(&mut self, sql: &str) -> Result<Option<String>, SqlClientError> {
        let rows = self.rows(sql)?;
        Ok(rows.into_iter().next().and_then(|row| row.into_iter().next()).flatten())
    }

    /// Sends a statement, and hands each payload of the answer on: OK or an error, or columns and rows with both ends.
    ///
    /// # Errors
    /// An error of either connection, after which this one is of no use.
    pub fn relay(
        &mut self,
        sql: &[u8],
        mut each: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), SqlClientError> {
        self.command(COM_QUERY, sql)?;
        let first = self.receive()?;
        match first.first() {
            Some(0 | 0xff) => return Ok(each(&first)?),
            // The server asks for a file of the client.
            Some(0xfb) | None => return Err(invalid("the server asks for a file")),
            Some(_) => each(&first)?,
        }
        // The columns end with one EOF, the rows with another.
        let mut ends = 0;
        while ends < 2 {
            let payload = self.receive()?;
            each(&payload)?;
            match payload.first() {
                Some(0xff) => return Ok(()),
                Some(0xfe) if payload.len() < 9 => ends += 1,
                _ => {}
            }
        }
        Ok(())
    }

    /// The rows of a statement.
    ///
    /// # Errors
    /// [`SqlClientError`]; also if there are too many.
    pub fn rows(&mut self, sql: &str) -> Result<TextRows, SqlClientError> {
        let (mut rows, mut ends, mut columns, mut failed) = (TextRows::new(), 0, None, None);
        self.relay(sql.as_bytes(), |payload| {
            if let Some(error) = server_error(payload) {
                failed = Some(error);
            } else if columns.is_none() {
                columns = payload.first().copied();
            } else if payload.first() == Some(&0xfe) && payload.len() < 9 {
                ends += 1;
            } else if ends == 1 {
                if rows.len() >= ROWS_MAX {
                    return Err(io::Error::other(format!("more than {ROWS_MAX} rows")));
                }
                let row = parse_row(payload).map_err(|why| io::Error::other(format!("a row {why}")))?;
                rows.push(row);
            }
            Ok(())
        })?;
        match failed {
            Some((code, text)) => Err(SqlClientError::Server(code, text)),
            None => Ok(rows),
        }
    }
}

/// The number and text of an error.
pub(super) fn server_error(payload: &[u8]) -> Option<(u16, String)> {
    let (&[0xff, a, b], rest) = payload.split_first_chunk()? else { return None };
    // `#` and the state, which an error before the sign-in does not have.
    let text = if rest.first() == Some(&b'#') { rest.get(6..).unwrap_or_default() } else { rest };
    let text = String::from_utf8_lossy(text).chars().filter(|c| !c.is_control()).take(500).collect();
    Some((u16::from_le_bytes([a, b]), text))
}

/// The scramble of a request for a proof by [`METHOD`].
fn parse_switch(payload: &[u8]) -> Result<Scramble, SqlClientError> {
    let mut r = Reader::new(payload);
    r.u8()?;
    let method = r.until_nul()?;
    if method != METHOD {
        return Err(invalid(format!(
            "the account signs in by {}: it must sign in by mysql_native_password",
            String::from_utf8_lossy(method)
        )));
    }
    let scramble = r.rest().first_chunk().copied();
    scramble.map(Scramble).ok_or_else(|| invalid("the scramble is too short"))
}

/// The values of a row.
pub(crate) fn parse_row(payload: &[u8]) -> Result<Vec<Option<String>>, DecodeError> {
    let mut r = Reader::new(payload);
    let mut row = Vec::new();
    while r.remaining() > 0 {
        if r.peek() == Some(0xfb) {
            r.u8()?;
            row.push(None);
        } else {
            row.push(Some(String::from_utf8_lossy(r.length_bytes()?).into_owned()));
        }
    }
    Ok(row)
}
