//! The frame: a 12-byte header, then the payload.
//!
//! The header has a check of its own, so that a damaged or hostile length is found when the header has arrived, not
//! after as many bytes as it claims. The payload's CRC continues the header's: a payload cannot be taken for that of
//! another header.

use crate::error::ProtoError;

/// Bytes of a frame's header.
pub(crate) const HEADER: usize = 12;

/// Flag: the frame is the connection's own (accept, reject, ping, ...), its kind a control opcode.
pub(crate) const FLAG_CONTROL: u8 = 1;

/// Control opcodes. Part of the format: docs/format-wire.md.
pub(crate) mod op {
    /// Both sides send it once they accept the peer's hello. Payload: agreed version, u16.
    pub(crate) const ACCEPT: u8 = 1;
    /// Instead of ACCEPT. Payload: reason u16, text.
    pub(crate) const REJECT: u8 = 2;
    /// Payload: 8 bytes that come back in a PONG.
    pub(crate) const PING: u8 = 3;
    /// Payload: the 8 bytes of the PING.
    pub(crate) const PONG: u8 = 4;
    /// The last frame of a side that closes on purpose. Payload: reason u16, text.
    pub(crate) const GOODBYE: u8 = 5;
}

/// The longest payload of a control frame.
pub(crate) const CONTROL_MAX: usize = 4096;

/// A decoded header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Bytes of payload.
    pub(crate) len: u32,
    /// The caller's kind, or the control opcode.
    pub(crate) kind: u8,
    /// Whether it is a control frame.
    pub(crate) control: bool,
    /// CRC-32C of the first six header bytes and the payload.
    pub(crate) crc: u32,
    /// CRC-32C of the first six header bytes: where the payload's continues.
    seed: u32,
}

impl Header {
    /// Encodes the header of a frame whose payload is `parts` one after the other.
    ///
    /// The caller has checked that their length fits u32.
    pub(crate) fn encode<'a>(
        kind: u8,
        control: bool,
        len: u32,
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> [u8; HEADER] {
        let mut out = [0u8; HEADER];
        out[0..4].copy_from_slice(&len.to_le_bytes());
        out[4] = kind;
        out[5] = if control { FLAG_CONTROL } else { 0 };
        let seed = crc32c::crc32c(&out[0..6]);
        out[6..8].copy_from_slice(&check_of(seed).to_le_bytes());
        let crc = parts.fold(seed, crc32c::crc32c_append);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes a header; `bytes` has at least [`HEADER`] bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Header, ProtoError> {
        let Some((head, _)) = bytes.split_first_chunk::<HEADER>() else { return Err(ProtoError::BadHeader) };
        let [l0, l1, l2, l3, kind, flags, c0, c1, p0, p1, p2, p3] = *head;
        let seed = crc32c::crc32c(&head[0..6]);
        if u16::from_le_bytes([c0, c1]) != check_of(seed) {
            return Err(ProtoError::BadHeader);
        }
        // A flag that is not known changes the meaning of the payload: a later version may send it only once agreed.
        if flags & !FLAG_CONTROL != 0 {
            return Err(ProtoError::BadHeader);
        }
        Ok(Header {
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            kind,
            control: flags & FLAG_CONTROL != 0,
            crc: u32::from_le_bytes([p0, p1, p2, p3]),
            seed,
        })
    }

    /// Checks the payload against the header.
    pub(crate) fn verify(&self, payload: &[u8]) -> Result<(), ProtoError> {
        if crc32c::crc32c_append(self.seed, payload) == self.crc {
            Ok(())
        } else {
            Err(ProtoError::BadChecksum)
        }
    }
}

/// Sixteen bits out of the header's CRC. Never those of an all-zero header by accident: CRC-32C of zeros is not zero.
fn check_of(seed: u32) -> u16 {
    (seed >> 16) as u16 ^ seed as u16
}

/// Payload of a REJECT or GOODBYE, its text cut to what fits.
pub(crate) fn encode_reason(code: u16, text: &str) -> Vec<u8> {
    let mut end = text.len().min(CONTROL_MAX - 2);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut out = Vec::with_capacity(2 + end);
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&text.as_bytes()[..end]);
    out
}

/// Decodes a REJECT or GOODBYE; `None` if it has no reason.
pub(crate) fn decode_reason(payload: &[u8]) -> Option<(u16, String)> {
    let (code, text) = payload.split_first_chunk::<2>()?;
    // The text goes into log lines, so it is reduced to one line of printable characters.
    let text = String::from_utf8_lossy(text).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    Some((u16::from_le_bytes(*code), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_as_documented() {
        let h = Header::encode(0x42, false, 5, [b"he".as_slice(), b"llo".as_slice()].into_iter());
        assert_eq!(&h[..6], &[5, 0, 0, 0, 0x42, 0]);
        let mut all = h[..6].to_vec();
        all.extend_from_slice(b"hello");
        assert_eq!(&h[8..], &crc32c::crc32c(&all).to_le_bytes());
        let head = Header::decode(&h).unwrap();
        assert_eq!((head.len, head.kind, head.control), (5, 0x42, false));
        head.verify(b"hello").unwrap();
        assert_eq!(head.verify(b"hellp"), Err(ProtoError::BadChecksum));
    }

    #[test]
    fn every_flipped_header_bit_is_noticed() {
        let h = Header::encode(7, true, 9, [b"123456789".as_slice()].into_iter());
        for bit in 0..HEADER * 8 {
            let mut bad = h;
            bad[bit / 8] ^= 1 << (bit % 8);
            let noticed = match Header::decode(&bad) {
                Err(_) => true,
                Ok(head) => head.verify(b"123456789").is_err(),
            };
            assert!(noticed, "bit {bit}");
        }
    }

    #[test]
    fn zeros_are_no_header() {
        assert_eq!(Header::decode(&[0; HEADER]), Err(ProtoError::BadHeader));
    }

    #[test]
    fn reasons_stay_one_line_and_bounded() {
        let long = "ä".repeat(CONTROL_MAX);
        let enc = encode_reason(4, &long);
        assert!(enc.len() <= CONTROL_MAX);
        let (code, text) = decode_reason(&enc).unwrap();
        assert_eq!(code, 4);
        assert!(long.starts_with(&text) && text.len() > CONTROL_MAX - 8);
        assert_eq!(decode_reason(b"\x01\x00a\nb\x1b[31m").unwrap().1, "a b [31m");
        assert_eq!(decode_reason(b"\x01"), None);
    }
}
