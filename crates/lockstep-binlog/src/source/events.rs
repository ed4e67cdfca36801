//! The events of a primary's binlog, and acknowledgements to it.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{SourceError, server_error};
use crate::codec::DecodeError;
use crate::wire::packet::{Decoder, encode};

/// The largest event: `max_allowed_packet` is 1 GiB at most, and a packet has a little more.
const EVENT_MAX: usize = (1 << 30) + (1 << 20);
/// Bytes received at once.
const CHUNK: usize = 256 << 10;
/// The mark of a semi-synchronous source's packet, and of an acknowledgement.
const SEMI_SYNC: u8 = 0xef;

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
    stream: TcpStream,
    decoder: Decoder,
    semi_sync: bool,
    input: Box<[u8]>,
}

impl Events {
    pub(super) fn new(stream: TcpStream, mut decoder: Decoder, semi_sync: bool) -> Events {
        decoder.set_limit(EVENT_MAX);
        // Primary and replica begin their numbers anew around each acknowledgement, at different moments.
        decoder.ignore_sequence();
        Events { stream, decoder, semi_sync, input: vec![0; CHUNK].into_boxed_slice() }
    }

    /// The next event. `None` if none has arrived within this time.
    ///
    /// # Errors
    /// [`SourceError`]: the primary has refused, or is gone.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Received>, SourceError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(received) = self.next_received()? {
                return Ok(Some(received));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut self.input) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(len) => self.decoder.push(&self.input[..len]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next event, if it has arrived already.
    ///
    /// # Errors
    /// As [`Events::next`].
    pub fn next_received(&mut self) -> Result<Option<Received>, SourceError> {
        let next = self.decoder.take().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        next.map(|(payload, _)| parse(payload, self.semi_sync)).transpose()
    }
}

/// Takes a packet apart: a status byte, two bytes for semi-synchronous replicas, and the event.
pub(super) fn parse(mut payload: Vec<u8>, semi_sync: bool) -> Result<Received, SourceError> {
    let invalid = |what| SourceError::Protocol("packet of a binlog", DecodeError::Invalid(what));
    match payload.first() {
        Some(0) => {}
        Some(0xfe) if payload.len() < 9 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        _ => return Err(server_error(&payload).unwrap_or_else(|| invalid("first byte"))),
    }
    let mut ack = false;
    let mut begin = 1;
    if semi_sync {
        match payload.get(1..3) {
            Some([SEMI_SYNC, flag @ (0 | 1)]) => ack = *flag == 1,
            _ => return Err(invalid("semi-synchronous mark")),
        }
        begin = 3;
    }
    payload.drain(..begin);
    Ok(Received { event: payload, ack })
}

/// Sends acknowledgements on the connection of [`Events`].
pub struct Acknowledger {
    stream: TcpStream,
}

impl Acknowledger {
    pub(super) fn new(stream: TcpStream) -> Acknowledger {
        Acknowledger { stream }
    }

    /// Acknowledges everything up to this position.
    ///
    /// # Errors
    /// An error of the system: the connection is to be closed.
    pub fn acknowledge(&mut self, file: &str, offset: u64) -> io::Result<()> {
        let mut out = Vec::with_capacity(32 + file.len());
        let offset = offset.to_le_bytes();
        encode(&[&[SEMI_SYNC], &offset, file.as_bytes(), &[0]], &mut 0, &mut out);
        self.stream.write_all(&out)
    }

    /// Closes the connection, so that [`Events::next`] ends.
    pub fn close(&self) {
        // It may be closed already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
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
        assert!(end.to_string().contains("closed"), "{end}");
        for wrong in [&b""[..], b"\x07", b"\0", b"\0\xef", b"\0\xef\x02event", b"\0abevent"] {
            assert!(received(wrong, true).is_err(), "{wrong:?}");
        }
    }
}
