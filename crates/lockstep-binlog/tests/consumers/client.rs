//! A small client of the replication protocol.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use lockstep_binlog::wire::handshake::{HASH_LEN, METHOD, Scramble, capability as cap, proof};
use lockstep_binlog::wire::packet::{Decoder, encode};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

/// The account of all tests.
pub(crate) const USER: &str = "repl";
pub(crate) const PASSWORD: &str = "secret";

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection that has signed in.
pub(crate) struct Client {
    stream: Box<dyn Stream>,
    decoder: Decoder,
    /// The number of the next packet, of either side.
    sequence: u8,
    pub(crate) local: SocketAddr,
}

/// An answer that is an error: its number and text.
pub(crate) type Refused = (u16, String);

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Result<Client, Refused> {
        Client::sign_in(address, PASSWORD, None)
    }

    pub(crate) fn connect_tls(address: SocketAddr, config: Arc<ClientConfig>) -> Result<Client, Refused> {
        Client::sign_in(address, PASSWORD, Some(config))
    }

    fn sign_in(
        address: SocketAddr,
        password: &str,
        tls: Option<Arc<ClientConfig>>,
    ) -> Result<Client, Refused> {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let local = socket.local_addr().unwrap();
        let (decoder, copy) = (Decoder::new(usize::MAX), socket.try_clone().unwrap());
        let mut client = Client { stream: Box::new(socket), decoder, sequence: 0, local };
        let greeting = client.answer()?;
        let (offered, scramble) = parse_greeting(&greeting);
        let mut capabilities = cap::PROTOCOL_41 | cap::SECURE_CONNECTION | cap::PLUGIN_AUTH;
        if let Some(config) = tls {
            if offered & cap::SSL == 0 {
                return Err((2026, "TLS is not offered".into()));
            }
            capabilities |= cap::SSL;
            client.send(&reply_begin(capabilities))?;
            let tls = ClientConnection::new(config, ServerName::try_from("127.0.0.1").unwrap()).unwrap();
            client.stream = Box::new(StreamOwned::new(tls, copy));
        }
        let mut reply = reply_begin(capabilities);
        reply.extend_from_slice(USER.as_bytes());
        reply.push(0);
        reply.push(HASH_LEN as u8);
        reply.extend_from_slice(&proof(password.as_bytes(), &scramble));
        reply.extend_from_slice(METHOD);
        reply.push(0);
        client.send(&reply)?;
        client.answer()?;
        Ok(client)
    }

    fn send(&mut self, payload: &[u8]) -> Result<(), Refused> {
        let mut out = Vec::new();
        encode(&[payload], &mut self.sequence, &mut out);
        let sent = self.stream.write_all(&out).and_then(|()| self.stream.flush());
        sent.map_err(|error| (0, error.to_string()))
    }

    /// The next payload.
    pub(crate) fn answer(&mut self) -> Result<Vec<u8>, Refused> {
        let mut input = vec![0; 64 << 10];
        loop {
            self.decoder.expect(self.sequence);
            if let Some((payload, next)) = self.decoder.take().unwrap() {
                self.sequence = next;
                if payload.first() == Some(&0xff) {
                    let code = u16::from_le_bytes([payload[1], payload[2]]);
                    return Err((code, String::from_utf8_lossy(&payload[9..]).into_owned()));
                }
                return Ok(payload);
            }
            match self.stream.read(&mut input) {
                Ok(0) => return Err((0, "the connection was closed".into())),
                Ok(len) => self.decoder.push(&input[..len]),
                Err(error) => return Err((0, error.to_string())),
            }
        }
    }

    fn command(&mut self, kind: u8, body: &[u8]) -> Result<(), Refused> {
        self.sequence = 0;
        self.send(&[&[kind], body].concat())
    }

    /// Sends a statement that has no rows.
    pub(crate) fn set(&mut self, sql: &str) -> Result<(), Refused> {
        self.command(3, sql.as_bytes())?;
        self.answer().map(drop)
    }

    /// Sends a statement, and returns its rows.
    pub(crate) fn rows(&mut self, sql: &str) -> Result<Vec<Vec<String>>, Refused> {
        self.command(3, sql.as_bytes())?;
        let columns = self.answer()?[0];
        // The columns, and the end of them.
        for _ in 0..=columns {
            self.answer()?;
        }
        let mut rows = Vec::new();
        loop {
            let row = self.answer()?;
            if row[0] == 0xfe && row.len() < 9 {
                return Ok(rows);
            }
            let mut values = Vec::new();
            let mut rest = &row[..];
            while let Some((&len, after)) = rest.split_first() {
                let (value, after) = after.split_at(usize::from(len));
                values.push(String::from_utf8_lossy(value).into_owned());
                rest = after;
            }
            rows.push(values);
        }
    }

    pub(crate) fn register(&mut self, server_id: u32, host: &str) -> Result<(), Refused> {
        let mut body = server_id.to_le_bytes().to_vec();
        for text in [host, "", ""] {
            body.push(text.len() as u8);
            body.extend_from_slice(text.as_bytes());
        }
        body.extend_from_slice(&3306u16.to_le_bytes());
        body.extend_from_slice(&[0; 8]);
        self.command(21, &body)?;
        self.answer().map(drop)
    }

    /// Requests the stream from this GTID state on.
    pub(crate) fn dump(&mut self, state: &str, server_id: u32, waits: bool) -> Result<(), Refused> {
        self.set("SET @master_binlog_checksum='CRC32'")?;
        self.set("SET @mariadb_slave_capability=4")?;
        self.set(&format!("SET @slave_connect_state='{state}'"))?;
        let flags = if waits { 2_u16 } else { 3 };
        let mut body = 4_u32.to_le_bytes().to_vec();
        body.extend_from_slice(&flags.to_le_bytes());
        body.extend_from_slice(&server_id.to_le_bytes());
        self.command(18, &body)
    }

    /// The next event; `None` at the end of the stream.
    pub(crate) fn event(&mut self) -> Result<Option<Vec<u8>>, Refused> {
        let mut payload = self.answer()?;
        if payload[0] == 0xfe {
            return Ok(None);
        }
        payload.remove(0);
        Ok(Some(payload))
    }

    /// Reads the stream to its end. Returns the files' events, without the artificial ones.
    pub(crate) fn read_to_end(&mut self) -> Result<Vec<u8>, Refused> {
        let mut all = Vec::new();
        while let Some(event) = self.event()? {
            if !is_artificial(&event) {
                all.extend_from_slice(&event);
            }
        }
        Ok(all)
    }
}

/// Whether an event was made for the consumer, and is in no file.
fn is_artificial(event: &[u8]) -> bool {
    event[17] & 0x20 != 0
}

fn reply_begin(capabilities: u32) -> Vec<u8> {
    let mut out = capabilities.to_le_bytes().to_vec();
    out.extend_from_slice(&(1_u32 << 24).to_le_bytes());
    out.push(45);
    out.extend_from_slice(&[0; 23]);
    out
}

/// The server's capabilities and its scramble.
fn parse_greeting(payload: &[u8]) -> (u32, Scramble) {
    let version = payload.iter().position(|byte| *byte == 0).unwrap();
    let rest = &payload[version + 5..];
    let mut scramble = [0; HASH_LEN];
    scramble[..8].copy_from_slice(&rest[..8]);
    scramble[8..].copy_from_slice(&rest[27..39]);
    (u32::from_le_bytes([rest[9], rest[10], rest[14], rest[15]]), Scramble(scramble))
}
