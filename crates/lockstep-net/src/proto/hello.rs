//! The handshake's first message. Its layout never changes: whatever version a peer is of, it can read who is there
//! and say why it does not want to talk.

use bytes::Bytes;

use crate::error::ProtoError;

/// The first bytes of every connection. The empty line makes an HTTP server answer at once with an error that we
/// recognise, and it reveals a transport that mangles line ends.
pub(crate) const MAGIC: &[u8; 12] = b"LOCKSTEP\r\n\r\n";

/// Bytes before the body: magic, lowest version, highest version, length of the body, CRC-32C.
pub(crate) const PREAMBLE: usize = 24;

/// The longest body.
pub(crate) const BODY_MAX: usize = 64 * 1024 - PREAMBLE;

/// The introduction of one side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) lowest: u16,
    pub(crate) highest: u16,
    /// The longest frame payload that the sender of the hello takes.
    pub(crate) max_frame: u32,
    pub(crate) cluster: String,
    pub(crate) blob: Bytes,
}

impl Hello {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, ProtoError> {
        let body = 4 + 2 + self.cluster.len() + 4 + self.blob.len();
        let cluster_len = u16::try_from(self.cluster.len())
            .map_err(|_| ProtoError::BadHello("the cluster name is too long"))?;
        if body > BODY_MAX {
            return Err(ProtoError::BadHello("the hello is longer than 64 KiB"));
        }
        let mut out = Vec::with_capacity(PREAMBLE + body);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.lowest.to_le_bytes());
        out.extend_from_slice(&self.highest.to_le_bytes());
        out.extend_from_slice(&(body as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.max_frame.to_le_bytes());
        out.extend_from_slice(&cluster_len.to_le_bytes());
        out.extend_from_slice(self.cluster.as_bytes());
        out.extend_from_slice(&(self.blob.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.blob);
        debug_assert_eq!(out.len(), PREAMBLE + body);
        let crc = crc_of(&out);
        out[20..24].copy_from_slice(&crc.to_le_bytes());
        Ok(out)
    }

    /// How long the hello at the front of `bytes` is in all; `None` until its preamble is complete.
    pub(crate) fn total_len(bytes: &[u8]) -> Result<Option<usize>, ProtoError> {
        let Some((pre, _)) = bytes.split_first_chunk::<PREAMBLE>() else { return Ok(None) };
        let body = u32::from_le_bytes([pre[16], pre[17], pre[18], pre[19]]) as usize;
        if body > BODY_MAX {
            return Err(ProtoError::TooLong { len: body as u64, max: BODY_MAX as u64 });
        }
        Ok(Some(PREAMBLE + body))
    }

    /// Decodes a whole hello. Bytes behind the known fields are those of a later version and are left alone.
    pub(crate) fn decode(bytes: &Bytes) -> Result<Hello, ProtoError> {
        let short = ProtoError::BadHello("too short");
        let Some((pre, body)) = bytes.split_first_chunk::<PREAMBLE>() else { return Err(short) };
        if &pre[..MAGIC.len()] != MAGIC {
            return Err(ProtoError::BadHello("no magic"));
        }
        if u32::from_le_bytes([pre[20], pre[21], pre[22], pre[23]]) != crc_of(bytes) {
            return Err(ProtoError::BadHello("checksum"));
        }
        let lowest = u16::from_le_bytes([pre[12], pre[13]]);
        let highest = u16::from_le_bytes([pre[14], pre[15]]);
        if lowest > highest {
            return Err(ProtoError::BadHello("lowest version above the highest"));
        }
        let (max_frame, rest) = body.split_first_chunk::<4>().ok_or_else(|| short.clone())?;
        let (cluster_len, rest) = rest.split_first_chunk::<2>().ok_or_else(|| short.clone())?;
        let cluster_len = usize::from(u16::from_le_bytes(*cluster_len));
        let (cluster, rest) = rest.split_at_checked(cluster_len).ok_or_else(|| short.clone())?;
        let cluster = std::str::from_utf8(cluster)
            .map_err(|_| ProtoError::BadHello("cluster name is not UTF-8"))?
            .to_owned();
        let (blob_len, rest) = rest.split_first_chunk::<4>().ok_or_else(|| short.clone())?;
        let blob = rest.get(..u32::from_le_bytes(*blob_len) as usize).ok_or(short)?;
        let blob = bytes.slice_ref(blob);
        Ok(Hello { lowest, highest, max_frame: u32::from_le_bytes(*max_frame), cluster, blob })
    }

    /// The highest version that both speak.
    pub(crate) fn agree(&self, lowest: u16, highest: u16) -> Option<u16> {
        let version = self.highest.min(highest);
        (version >= self.lowest && version >= lowest).then_some(version)
    }
}

/// CRC-32C over everything but the CRC's own four bytes.
fn crc_of(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..20]), &bytes[PREAMBLE..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            lowest: 1,
            highest: 3,
            max_frame: 1000,
            cluster: "bank".into(),
            blob: Bytes::from_static(b"blob"),
        }
    }

    #[test]
    fn round_trip_and_extension() {
        let mut enc = hello().encode().unwrap();
        assert_eq!(Hello::total_len(&enc).unwrap(), Some(enc.len()));
        assert_eq!(Hello::total_len(&enc[..PREAMBLE - 1]).unwrap(), None);
        assert_eq!(Hello::decode(&Bytes::from(enc.clone())).unwrap(), hello());
        // A later version appends a field.
        enc.extend_from_slice(b"more");
        let body = (enc.len() - PREAMBLE) as u32;
        enc[16..20].copy_from_slice(&body.to_le_bytes());
        let crc = crc_of(&enc);
        enc[20..24].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Hello::decode(&Bytes::from(enc)).unwrap(), hello());
    }

    #[test]
    fn layout_is_as_documented() {
        let enc = hello().encode().unwrap();
        assert_eq!(&enc[..20], b"LOCKSTEP\r\n\r\n\x01\0\x03\0\x12\0\0\0");
        assert_eq!(&enc[24..], b"\xe8\x03\0\0\x04\0bank\x04\0\0\0blob");
        let crc = crc32c::crc32c(&[&enc[..20], &enc[24..]].concat());
        assert_eq!(enc[20..24], crc.to_le_bytes());
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let enc = hello().encode().unwrap();
        for bit in 0..enc.len() * 8 {
            let mut bad = enc.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Hello::decode(&Bytes::from(bad)).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn inner_lengths_are_checked() {
        let mut enc = hello().encode().unwrap();
        enc[PREAMBLE + 4] = 0xff; // the cluster name's length
        let crc = crc_of(&enc);
        enc[20..24].copy_from_slice(&crc.to_le_bytes());
        assert!(Hello::decode(&Bytes::from(enc)).is_err());
    }

    #[test]
    fn versions() {
        let h = hello();
        assert_eq!(h.agree(1, 1), Some(1));
        assert_eq!(h.agree(2, 9), Some(3));
        assert_eq!(h.agree(4, 9), None);
        assert_eq!(h.agree(0, 0), None);
    }

    #[test]
    fn oversized_hello_is_refused_before_it_arrives() {
        let mut enc = hello().encode().unwrap();
        enc[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(Hello::total_len(&enc), Err(ProtoError::TooLong { .. })));
        let big = Hello { blob: Bytes::from(vec![0; BODY_MAX]), ..hello() };
        assert!(big.encode().is_err());
    }
}
