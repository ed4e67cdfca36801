//! An NBD client of our own: the campaign must not trust the code that it tests. One connection, any number of requests in
//! flight, simple replies only.

use std::collections::HashMap;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const HANDSHAKE: &[u8; 16] = b"NBDMAGICIHAVEOPT";
const OPTION: &[u8; 8] = b"IHAVEOPT";
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
const GO: u32 = 7;
/// The fixed newstyle handshake without zeroes behind it.
const CLIENT_FLAGS: u32 = 3;
/// The longest text or information in a handshake that is taken.
const HANDSHAKE_MAX: usize = 1 << 16;

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    /// Reads this many bytes.
    Read { offset: u64, length: u32 },
    /// Writes the bytes that are sent with it.
    Write { offset: u64, length: u32, durable: bool },
    /// Makes bytes zero.
    Zero { offset: u64, length: u32, durable: bool },
    /// Makes all answered writes durable.
    Flush,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The number of the request.
    pub(crate) cookie: u64,
    /// The bytes that were read, or the server's error.
    pub(crate) result: Result<Vec<u8>>,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    next: u64,
    /// The bytes that the answer to each request has.
    expected: HashMap<u64, usize>,
    received: Vec<u8>,
}

impl Connection {
    /// Attaches by this name.
    ///
    /// # Errors
    /// The server's text, if it refuses.
    pub(crate) fn attach(socket: &Path, name: &str, timeout: Duration) -> Result<Connection> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        if &greeting[..16] != HANDSHAKE {
            return Err(invalid("no NBD server answers"));
        }
        let name_length = u32::try_from(name.len()).map_err(|_| invalid("a name that is too long"))?;
        let mut out = CLIENT_FLAGS.to_be_bytes().to_vec();
        out.extend(OPTION);
        out.extend(GO.to_be_bytes());
        out.extend((name_length + 6).to_be_bytes());
        out.extend(name_length.to_be_bytes());
        out.extend(name.as_bytes());
        out.extend([0, 0]);
        stream.write_all(&out)?;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head)?;
            if long(&head, 0) != OPTION_REPLY {
                return Err(invalid("an unknown reply to an option"));
            }
            let length = word(&head, 16) as usize;
            if length > HANDSHAKE_MAX {
                return Err(invalid("a reply to an option that is too long"));
            }
            let mut data = vec![0; length];
            stream.read_exact(&mut data)?;
            match word(&head, 12) {
                // NBD_REP_ACK and NBD_REP_INFO.
                1 => break,
                3 => {}
                _ => return Err(Error::other(String::from_utf8_lossy(&data).into_owned())),
            }
        }
        Ok(Connection { stream, next: 0, expected: HashMap::new(), received: Vec::new() })
    }

    /// How many requests have no answer.
    pub(crate) fn in_flight(&self) -> usize {
        self.expected.len()
    }

    /// Sends a request. Returns its number.
    pub(crate) fn send(&mut self, command: Command, data: &[u8]) -> Result<u64> {
        const DURABLE: u16 = 1;
        // NBD_CMD_FLAG_NO_HOLE: space stays allocated.
        const NO_HOLE: u16 = 2;
        let flag = |durable: bool| if durable { DURABLE } else { 0 };
        let (kind, flags, offset, length, answer) = match command {
            Command::Read { offset, length } => (0_u16, 0, offset, length, length as usize),
            Command::Write { offset, length, durable } => (1, flag(durable), offset, length, 0),
            Command::Flush => (3, 0, 0, 0, 0),
            Command::Zero { offset, length, durable } => (6, flag(durable) | NO_HOLE, offset, length, 0),
        };
        self.next += 1;
        let mut out = REQUEST.to_be_bytes().to_vec();
        out.extend(flags.to_be_bytes());
        out.extend(kind.to_be_bytes());
        out.extend(self.next.to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend(length.to_be_bytes());
        out.extend(data);
        self.stream.write_all(&out)?;
        self.expected.insert(self.next, answer);
        Ok(self.next)
    }

    /// Waits for an answer; `None`: none has come within the time.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn receive(&mut self, wait: Duration) -> Result<Option<Answer>> {
        self.stream.set_read_timeout(Some(wait.max(Duration::from_millis(1))))?;
        loop {
            if let Some(answer) = self.take()? {
                return Ok(Some(answer));
            }
            let mut buffer = [0; 1 << 16];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.received.extend(&buffer[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The next answer that has been received wholly.
    fn take(&mut self) -> Result<Option<Answer>> {
        if self.received.len() < 16 {
            return Ok(None);
        }
        if word(&self.received, 0) != SIMPLE_REPLY {
            return Err(invalid("an answer that does not begin like one"));
        }
        let (error, cookie) = (word(&self.received, 4), long(&self.received, 8));
        let length = *self.expected.get(&cookie).ok_or_else(|| invalid("an answer to no request"))?;
        let length = if error == 0 { length } else { 0 };
        if self.received.len() < 16 + length {
            return Ok(None);
        }
        self.expected.remove(&cookie);
        let rest = self.received.split_off(16 + length);
        let mut data = std::mem::replace(&mut self.received, rest);
        data.drain(..16);
        let result = match i32::try_from(error) {
            Ok(0) => Ok(data),
            Ok(error) => Err(Error::from_raw_os_error(error)),
            Err(_) => Err(invalid("an unknown error number")),
        };
        Ok(Some(Answer { cookie, result }))
    }

    /// Sends one request and waits for its answer, with no other in flight.
    ///
    /// # Errors
    /// The server's, or no answer has come in time.
    pub(crate) fn ask(&mut self, command: Command, timeout: Duration) -> Result<Vec<u8>> {
        let cookie = self.send(command, &[])?;
        match self.receive(timeout)? {
            Some(answer) if answer.cookie == cookie => answer.result,
            Some(_) => Err(invalid("an answer to another request")),
            None => Err(Error::new(ErrorKind::TimedOut, "no answer in time")),
        }
    }

    /// Leaves in order: the attachment has ended when this returns.
    pub(crate) fn detach(mut self, timeout: Duration) -> Result<()> {
        self.stream.set_read_timeout(Some(timeout))?;
        let mut out = REQUEST.to_be_bytes().to_vec();
        out.extend([0, 0, 0, 2]);
        out.resize(28, 0);
        self.stream.write_all(&out)?;
        self.stream.read_to_end(&mut Vec::new()).map(drop)
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) << 32 | u64::from(word(bytes, at + 4))
}

fn invalid(text: &str) -> Error {
    Error::new(ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> (Connection, UnixStream) {
        let (stream, server) = UnixStream::pair().unwrap();
        (Connection { stream, next: 0, expected: HashMap::new(), received: Vec::new() }, server)
    }

    fn reply(error: u32, cookie: u64, data: &[u8]) -> Vec<u8> {
        let mut out = SIMPLE_REPLY.to_be_bytes().to_vec();
        out.extend(error.to_be_bytes());
        out.extend(cookie.to_be_bytes());
        out.extend(data);
        out
    }

    #[test]
    fn answers_in_pieces_and_out_of_order_are_matched() {
        let (mut client, mut server) = connection();
        let read = client.send(Command::Read { offset: 0, length: 3 }, &[]).unwrap();
        let flush = client.send(Command::Flush, &[]).unwrap();
        let wait = Duration::from_secs(20);
        server.write_all(&reply(0, flush, &[])).unwrap();
        let bytes = reply(0, read, b"abc");
        server.write_all(&bytes[..17]).unwrap();
        let answer = client.receive(wait).unwrap().unwrap();
        assert_eq!((answer.cookie, answer.result.unwrap()), (flush, vec![]));
        assert!(client.receive(Duration::from_millis(10)).unwrap().is_none());
        server.write_all(&bytes[17..]).unwrap();
        let answer = client.receive(wait).unwrap().unwrap();
        assert_eq!((answer.cookie, answer.result.unwrap()), (read, b"abc".to_vec()));
        assert_eq!(client.in_flight(), 0);
    }

    #[test]
    fn errors_and_unknown_answers_are_told_apart() {
        let (mut client, mut server) = connection();
        let wait = Duration::from_secs(20);
        let read = client.send(Command::Read { offset: 0, length: 3 }, &[]).unwrap();
        server.write_all(&reply(5, read, &[])).unwrap();
        let answer = client.receive(wait).unwrap().unwrap();
        assert_eq!(answer.result.unwrap_err().raw_os_error(), Some(5));
        server.write_all(&reply(0, read, &[])).unwrap();
        assert_eq!(client.receive(wait).unwrap_err().kind(), ErrorKind::InvalidData);
        let (mut client, server) = connection();
        drop(server);
        assert!(client.send(Command::Flush, &[]).is_err() || client.receive(wait).is_err());
    }
}
