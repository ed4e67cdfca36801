//! Packets: three bytes of length, one of sequence number, and the payload. A payload of 16 MiB − 1 bytes or more takes
//! several packets; the last one is shorter, possibly empty.

use std::fmt;

/// The longest payload of one packet.
pub const PACKET_MAX: usize = 0xff_ffff;
const HEADER: usize = 4;

/// Bytes that the protocol does not allow. The connection must be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketError {
    /// The sequence number is not the next one.
    Sequence {
        /// The next one.
        expected: u8,
        /// The packet's.
        found: u8,
    },
    /// A payload is longer than the limit.
    TooLong {
        /// The limit.
        limit: usize,
    },
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PacketError::Sequence { expected, found } => {
                write!(f, "packet number {found} instead of {expected}")
            }
            PacketError::TooLong { limit } => write!(f, "packet longer than {limit} bytes"),
        }
    }
}

impl std::error::Error for PacketError {}

/// Appends a payload, given in parts, as packets. `sequence` is the next number, and is moved on.
pub fn encode(parts: &[&[u8]], sequence: &mut u8, out: &mut Vec<u8>) {
    let mut left: usize = parts.iter().map(|part| part.len()).sum();
    out.reserve(left + HEADER * (1 + left / PACKET_MAX));
    let mut parts = parts.iter().copied();
    let mut part: &[u8] = &[];
    loop {
        let len = left.min(PACKET_MAX);
        out.extend_from_slice(&(len as u32).to_le_bytes()[..3]);
        out.push(*sequence);
        *sequence = sequence.wrapping_add(1);
        let mut room = len;
        while room > 0 {
            if part.is_empty() {
                part = parts.next().unwrap_or_default();
            }
            let (now, rest) = part.split_at(part.len().min(room));
            out.extend_from_slice(now);
            (part, room) = (rest, room - now.len());
        }
        left -= len;
        if len < PACKET_MAX {
            return;
        }
    }
}

/// Takes payloads from received bytes.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// The payload's packets so far.
    payload: Vec<u8>,
    /// The next sequence number; `None`: the next packet may begin anew with 0.
    sequence: Option<u8>,
    limit: usize,
}

impl Decoder {
    /// Payloads may have up to `limit` bytes.
    pub fn new(limit: usize) -> Decoder {
        Decoder { buffer: Vec::new(), payload: Vec::new(), sequence: None, limit }
    }

    /// Changes the limit for the payloads that follow.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// The number that the next packet must have. A command has 0; a reply goes on from what it answers.
    pub fn expect(&mut self, sequence: u8) {
        self.sequence = Some(sequence);
    }

    /// Takes the bytes behind the last payload out: they are no packets, because the client begins to encrypt.
    pub fn take_rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next payload and the number that an answer begins with.
    ///
    /// # Errors
    /// [`PacketError`] for bytes that are not allowed.
    pub fn take(&mut self) -> Result<Option<(Vec<u8>, u8)>, PacketError> {
        loop {
            let Some((&[a, b, c, number], rest)) = self.buffer.split_first_chunk::<HEADER>() else {
                return Ok(None);
            };
            let len = usize::from(a) | usize::from(b) << 8 | usize::from(c) << 16;
            let expected = self.sequence.unwrap_or(0);
            if number != expected {
                return Err(PacketError::Sequence { expected, found: number });
            }
            if len + self.payload.len() > self.limit {
                return Err(PacketError::TooLong { limit: self.limit });
            }
            let Some(part) = rest.get(..len) else { return Ok(None) };
            self.payload.extend_from_slice(part);
            self.buffer.drain(..HEADER + len);
            let answer = number.wrapping_add(1);
            if len < PACKET_MAX {
                self.sequence = None;
                return Ok(Some((std::mem::take(&mut self.payload), answer)));
            }
            self.sequence = Some(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_round_trips_at_packet_boundaries() {
        for len in [0, 1, 1000, PACKET_MAX - 1, PACKET_MAX, PACKET_MAX + 1, 2 * PACKET_MAX] {
            let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let (first, second) = payload.split_at(len / 3);
            let (mut out, mut sequence) = (Vec::new(), 0);
            encode(&[first, &[], second], &mut sequence, &mut out);
            assert_eq!(usize::from(sequence), 1 + len / PACKET_MAX);
            let mut decoder = Decoder::new(usize::MAX);
            for part in out.chunks(1 << 20) {
                decoder.push(part);
            }
            let (decoded, answer) = decoder.take().unwrap().unwrap();
            assert!(decoded == payload);
            assert_eq!(answer, sequence);
            assert_eq!(decoder.take(), Ok(None));
        }
    }

    #[test]
    fn packet_truncated_at_any_byte_waits_for_more() {
        let mut out = Vec::new();
        encode(&[b"SELECT 1"], &mut 0, &mut out);
        for cut in 0..out.len() {
            let mut decoder = Decoder::new(100);
            decoder.push(&out[..cut]);
            assert_eq!(decoder.take(), Ok(None));
            decoder.push(&out[cut..]);
            assert_eq!(decoder.take().unwrap().unwrap().0, b"SELECT 1");
        }
    }

    #[test]
    fn long_payload_and_wrong_number_are_refused() {
        let mut decoder = Decoder::new(10);
        decoder.push(&[11, 0, 0, 0]);
        assert_eq!(decoder.take(), Err(PacketError::TooLong { limit: 10 }));
        let mut decoder = Decoder::new(10);
        decoder.push(&[1, 0, 0, 3, 7]);
        assert_eq!(decoder.take(), Err(PacketError::Sequence { expected: 0, found: 3 }));
    }
}
