//! A small client of MySQL's text protocol over a Unix socket.
//!
//! The tests need many sessions with exact control over what each sends and when, and no more than that: plain
//! statements, their rows as text, the error's number. So this speaks the 4.1 protocol with neither TLS nor
//! compression nor prepared statements, and signs in with accounts that need no password (an empty one, or
//! `unix_socket`).

use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::error::{LocalError, Result};

const PACKET_MAX: usize = 0xff_ffff;
/// The most that one logical packet may hold: more is a peer that talks nonsense.
const MESSAGE_MAX: usize = 1 << 30;

const CLIENT_LONG_PASSWORD: u32 = 1;
const CLIENT_PROTOCOL_41: u32 = 0x200;
const CLIENT_TRANSACTIONS: u32 = 0x2000;
const CLIENT_SECURE_CONNECTION: u32 = 0x8000;
const CLIENT_PLUGIN_AUTH: u32 = 0x8_0000;
const UTF8MB4_GENERAL_CI: u8 = 45;
const COM_QUIT: u8 = 1;
const COM_QUERY: u8 = 3;

/// The result of a statement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// Names of the columns; empty for a statement without a result set.
    pub columns: Vec<String>,
    /// The rows: text, or `None` for NULL.
    pub rows: Vec<Vec<Option<String>>>,
    /// Rows that the statement changed.
    pub affected: u64,
    /// The first auto-increment value that the statement made, or 0.
    pub insert_id: u64,
}

impl Answer {
    /// The value in the first column of the first row; an error if there is no row or it is NULL.
    pub fn value(&self) -> Result<&str> {
        self.rows
            .first()
            .and_then(|row| row.first())
            .and_then(|v| v.as_deref())
            .ok_or_else(|| LocalError::Value("the statement returned no value".into()))
    }

    /// [`Answer::value`] as a number.
    pub fn number(&self) -> Result<i64> {
        let text = self.value()?;
        text.parse().map_err(|_| LocalError::Value(format!("`{text}` is not a whole number")))
    }

    /// The value of the first row's column `name`; an error if there is none or it is NULL.
    pub fn column(&self, name: &str) -> Result<&str> {
        let at = self.columns.iter().position(|c| c == name);
        at.and_then(|i| self.rows.first()?.get(i)?.as_deref())
            .ok_or_else(|| LocalError::Value(format!("no value in column `{name}`")))
    }
}

/// One session with a server.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    sequence: u8,
    /// The last answer was not read to its end: it would be taken for that of the next statement.
    awaits_answer: bool,
    /// There was more than one answer to a statement.
    is_out_of_step: bool,
    /// The server's number of this session (`CONNECTION_ID()`).
    pub connection_id: u32,
}

impl Client {
    /// Signs in as `user` without a password. Waits at most `timeout` for the greeting and for each later
    /// answer (see [`Client::set_timeout`]).
    pub fn connect(socket: &Path, user: &str, timeout: Duration) -> Result<Client> {
        let stream = UnixStream::connect(socket).map_err(LocalError::path("connect to", socket))?;
        let mut client = Client::over(stream);
        client.set_timeout(timeout)?;
        client.sign_in(user)?;
        Ok(client)
    }

    /// A session before its sign-in.
    fn over(stream: UnixStream) -> Client {
        Client {
            stream: BufReader::new(stream),
            sequence: 0,
            awaits_answer: false,
            is_out_of_step: false,
            connection_id: 0,
        }
    }

    /// How long to wait for a part of an answer before giving up.
    pub fn set_timeout(&mut self, timeout: Duration) -> Result<()> {
        let stream = self.stream.get_ref();
        stream
            .set_read_timeout(Some(timeout))
            .and_then(|()| stream.set_write_timeout(Some(timeout)))
            .map_err(LocalError::io("set the timeout of a connection"))
    }

    fn sign_in(&mut self, user: &str) -> Result<()> {
        let greeting = self.read_message()?;
        if greeting.first() == Some(&0xff) {
            return Err(error_packet(&greeting, "connect"));
        }
        let mut at = Cursor::new(&greeting);
        let version = at.u8()?;
        if version != 10 {
            return Err(LocalError::Protocol(format!("handshake of version {version}, not 10")));
        }
        at.until_nul()?;
        self.connection_id = u32::from_le_bytes(at.array()?);

        let capabilities = CLIENT_LONG_PASSWORD
            | CLIENT_PROTOCOL_41
            | CLIENT_TRANSACTIONS
            | CLIENT_SECURE_CONNECTION
            | CLIENT_PLUGIN_AUTH;
        let mut reply = Vec::with_capacity(96);
        reply.extend_from_slice(&capabilities.to_le_bytes());
        reply.extend_from_slice(&(MESSAGE_MAX as u32).to_le_bytes());
        reply.push(UTF8MB4_GENERAL_CI);
        reply.extend_from_slice(&[0; 23]);
        reply.extend_from_slice(user.as_bytes());
        reply.push(0);
        reply.push(0); // an empty password's proof is empty
        reply.extend_from_slice(b"mysql_native_password\0");
        self.write_message(&reply)?;

        loop {
            let answer = self.read_message()?;
            match answer.first() {
                Some(0x00) => return Ok(()),
                Some(0xff) => return Err(error_packet(&answer, "connect")),
                // The server wants another method: with none of the supported ones does it need bytes from us.
                Some(0xfe) => self.write_message(&[])?,
                _ => return Err(LocalError::Protocol("neither yes nor no to the sign-in".into())),
            }
        }
    }

    /// Runs one statement and reads all of its answer.
    pub fn query(&mut self, sql: &str) -> Result<Answer> {
        self.send(sql)?;
        self.receive(sql)
    }

    /// Runs statements one after the other; stops at the first error.
    pub fn run(&mut self, statements: &[&str]) -> Result<()> {
        for sql in statements {
            self.query(sql)?;
        }
        Ok(())
    }

    /// The statement's first value as text.
    pub fn value(&mut self, sql: &str) -> Result<String> {
        Ok(self.query(sql)?.value()?.to_owned())
    }

    /// The statement's first value as a number.
    pub fn number(&mut self, sql: &str) -> Result<i64> {
        self.query(sql)?.number()
    }

    /// The status variable `name`, or an error if the server has none of that name.
    pub fn status(&mut self, name: &str) -> Result<String> {
        let answer = self.query(&format!("SHOW GLOBAL STATUS LIKE '{name}'"))?;
        Ok(answer.column("Value")?.to_owned())
    }

    /// Sends a statement without waiting for its answer; [`Client::receive`] must follow.
    ///
    /// # Errors
    /// Also if an earlier answer was not read to its end, for example because of the timeout: connect again then.
    pub fn send(&mut self, sql: &str) -> Result<()> {
        if self.awaits_answer || self.is_out_of_step {
            return Err(LocalError::Protocol(
                "an earlier answer was not read to its end: connect again".into(),
            ));
        }
        let mut message = Vec::with_capacity(sql.len() + 1);
        message.push(COM_QUERY);
        message.extend_from_slice(sql.as_bytes());
        self.sequence = 0;
        self.write_message(&message)
    }

    /// Reads the answer to what [`Client::send`] sent; `sql` is only for the error's text.
    pub fn receive(&mut self, sql: &str) -> Result<Answer> {
        let answer = self.read_answer(sql);
        self.awaits_answer = matches!(&answer, Err(error) if error.sql_code().is_none());
        answer
    }

    fn read_answer(&mut self, sql: &str) -> Result<Answer> {
        let first = self.read_message()?;
        match first.first() {
            Some(0x00) => {
                let mut at = Cursor::new(&first[1..]);
                Ok(Answer { affected: at.length()?, insert_id: at.length()?, ..Answer::default() })
            }
            Some(0xff) => Err(error_packet(&first, sql)),
            Some(0xfb) => Err(LocalError::Protocol("the server asks for a local file".into())),
            Some(_) => self.read_rows(&first, sql),
            None => Err(LocalError::Protocol("an empty answer".into())),
        }
    }

    fn read_rows(&mut self, first: &[u8], sql: &str) -> Result<Answer> {
        let count = Cursor::new(first).length()?;
        let mut answer = Answer::default();
        for _ in 0..count {
            let column = self.read_message()?;
            let mut at = Cursor::new(&column);
            for _skipped in ["catalog", "schema", "table", "original table"] {
                at.text()?;
            }
            answer.columns.push(String::from_utf8_lossy(at.text()?).into_owned());
        }
        if !is_end(&self.read_message()?) {
            return Err(LocalError::Protocol("no end after the columns".into()));
        }
        loop {
            let packet = self.read_message()?;
            if packet.first() == Some(&0xff) {
                return Err(error_packet(&packet, sql));
            }
            if is_end(&packet) {
                return Ok(answer);
            }
            let mut at = Cursor::new(&packet);
            let mut row = Vec::with_capacity(answer.columns.len());
            for _ in 0..count {
                row.push(at.nullable()?.map(|v| String::from_utf8_lossy(v).into_owned()));
            }
            answer.rows.push(row);
        }
    }

    /// One logical message: packets are joined until one is shorter than the maximum.
    fn read_message(&mut self) -> Result<Vec<u8>> {
        let mut message = Vec::new();
        loop {
            let mut header = [0; 4];
            self.stream.read_exact(&mut header).map_err(LocalError::io("read the server's answer"))?;
            let length = u32::from_le_bytes([header[0], header[1], header[2], 0]) as usize;
            self.is_out_of_step |= header[3] != self.sequence;
            self.sequence = header[3].wrapping_add(1);
            let old = message.len();
            if old + length > MESSAGE_MAX {
                return Err(LocalError::Protocol("an answer above 1 GiB".into()));
            }
            message.resize(old + length, 0);
            self.stream
                .read_exact(&mut message[old..])
                .map_err(LocalError::io("read the server's answer"))?;
            if length < PACKET_MAX {
                return Ok(message);
            }
        }
    }

    fn write_message(&mut self, message: &[u8]) -> Result<()> {
        // A message that fills its last packet is followed by an empty one, so the loop runs once more then.
        let mut rest = message;
        loop {
            let part = &rest[..rest.len().min(PACKET_MAX)];
            let mut packet = Vec::with_capacity(part.len() + 4);
            packet.extend_from_slice(&(part.len() as u32).to_le_bytes()[..3]);
            packet.push(self.sequence);
            packet.extend_from_slice(part);
            self.sequence = self.sequence.wrapping_add(1);
            self.stream.get_mut().write_all(&packet).map_err(LocalError::io("send to the server"))?;
            rest = &rest[part.len()..];
            if part.len() < PACKET_MAX {
                return Ok(());
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.sequence = 0;
        let _ = self.write_message(&[COM_QUIT]);
    }
}

fn is_end(packet: &[u8]) -> bool {
    packet.first() == Some(&0xfe) && packet.len() < 9
}

fn error_packet(packet: &[u8], sql: &str) -> LocalError {
    let code = packet.get(1..3).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
    let rest = packet.get(3..).unwrap_or_default();
    let (state, message) = match rest.split_first() {
        Some((b'#', tail)) if tail.len() >= 5 => tail.split_at(5),
        _ => (&b"HY000"[..], rest),
    };
    LocalError::Sql {
        code,
        state: String::from_utf8_lossy(state).into_owned(),
        message: String::from_utf8_lossy(message).into_owned(),
        statement: sql.chars().take(200).collect(),
    }
}

/// Reads the protocol's fields out of a packet.
struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn new(rest: &'a [u8]) -> Self {
        Cursor { rest }
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        if count > self.rest.len() {
            return Err(LocalError::Protocol("a packet that ends too early".into()));
        }
        let (head, tail) = self.rest.split_at(count);
        self.rest = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn until_nul(&mut self) -> Result<&'a [u8]> {
        let end = self.rest.iter().position(|b| *b == 0);
        let end = end.ok_or_else(|| LocalError::Protocol("a text without its end".into()))?;
        let text = self.bytes(end)?;
        self.bytes(1)?;
        Ok(text)
    }

    /// A length-encoded number; `None` stands for NULL.
    fn optional_length(&mut self) -> Result<Option<u64>> {
        Ok(Some(match self.u8()? {
            0xfb => return Ok(None),
            0xfc => u64::from(u16::from_le_bytes(self.array()?)),
            0xfd => {
                let [a, b, c] = self.array()?;
                u64::from(u32::from_le_bytes([a, b, c, 0]))
            }
            0xfe => u64::from_le_bytes(self.array()?),
            small => u64::from(small),
        }))
    }

    fn length(&mut self) -> Result<u64> {
        self.optional_length()?.ok_or_else(|| LocalError::Protocol("NULL in place of a number".into()))
    }

    fn nullable(&mut self) -> Result<Option<&'a [u8]>> {
        match self.optional_length()? {
            None => Ok(None),
            Some(length) => Ok(Some(self.bytes(usize::try_from(length).unwrap_or(usize::MAX))?)),
        }
    }

    fn text(&mut self) -> Result<&'a [u8]> {
        self.nullable()?.ok_or_else(|| LocalError::Protocol("NULL in place of a text".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_that_gave_up_an_answer_sends_nothing_more() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut client = Client::over(near);
        client.set_timeout(Duration::from_millis(20)).unwrap();
        let ok = [7, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0];
        far.write_all(&ok).unwrap();
        client.query("BEGIN").unwrap();
        client.query("ROLLBACK").unwrap_err();
        // The late answer is not that of the next statement.
        far.write_all(&ok).unwrap();
        let refused = client.query("SELECT 1").unwrap_err().to_string();
        assert!(refused.contains("connect again"), "{refused}");
        client.receive("ROLLBACK").unwrap();
        far.write_all(&ok).unwrap();
        client.query("SELECT 1").unwrap();
    }

    #[test]
    fn second_answer_to_one_statement_ends_the_session() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut client = Client::over(near);
        let ok = |sequence| [7, 0, 0, sequence, 0, 0, 0, 2, 0, 0, 0];
        far.write_all(&[ok(1), ok(2), ok(1)].concat()).unwrap();
        client.query("COMMIT").unwrap();
        client.query("ROLLBACK").unwrap();
        client.query("SELECT 1").unwrap_err();
    }

    #[test]
    fn lengths_of_every_size_are_read() {
        let bytes = [7, 0xfb, 0xfc, 1, 2, 0xfd, 1, 2, 3, 0xfe, 1, 0, 0, 0, 0, 0, 0, 1];
        let mut at = Cursor::new(&bytes);
        assert_eq!(at.optional_length().unwrap(), Some(7));
        assert_eq!(at.optional_length().unwrap(), None);
        assert_eq!(at.optional_length().unwrap(), Some(0x201));
        assert_eq!(at.optional_length().unwrap(), Some(0x3_0201));
        assert_eq!(at.optional_length().unwrap(), Some(0x0100_0000_0000_0001));
        assert!(at.optional_length().is_err());
    }

    #[test]
    fn error_packet_has_number_state_and_text() {
        let error = error_packet(b"\xff\xbd\x04#40001Deadlock found", "COMMIT");
        assert_eq!(error.sql_code(), Some(1213));
        assert_eq!(error.to_string(), "ERROR 1213 (40001): Deadlock found [COMMIT]");
    }

    #[test]
    fn truncated_packet_is_an_error() {
        assert!(Cursor::new(&[5, b'a']).text().is_err());
        assert!(Cursor::new(b"no end").until_nul().is_err());
        assert_eq!(error_packet(&[0xff], "x").sql_code(), Some(0));
    }
}
