//! Compressed frames, for narrow links between zones (`net.compress`). LZ4 takes less time than the bytes that it saves
//! would take on such a link. Only Raft's frames are compressed, and only for members with a protocol version that can
//! decompress.

use crate::wire::FRAME_RAFT;
use bytes::Bytes;
use lockstep_core::codec::DecodeError;
use lz4_flex::block;

/// The first protocol version whose speakers unpack.
pub(crate) const UNPACKED_SINCE: u16 = 3;
/// Smaller frames are not compressed: they fit one packet anyway.
const LEAST: usize = 256;
/// Larger frames are sent plain, so that unpacking never allocates more than this.
const MOST: usize = 8 << 20;
/// The inner kind and the length before packing.
const HEADER: usize = 5;
/// No byte of LZ4 stands for more.
const RATIO: usize = 255;

/// Bytes before and after, since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Packed {
    /// Before packing.
    pub(crate) plain: u64,
    /// Their size on the wire.
    pub(crate) packed: u64,
}

impl Packed {
    fn count(&mut self, plain: usize, packed: usize) {
        self.plain += plain as u64;
        self.packed += packed as u64;
    }
}

/// Packs what this member sends.
#[derive(Debug, Default)]
pub(crate) struct Packer {
    scratch: Vec<u8>,
    pub(crate) sent: Packed,
}

impl Packer {
    /// The payload of a [`crate::wire::FRAME_PACKED`] that replaces this frame; `None` if it would save too little.
    pub(crate) fn pack(&mut self, kind: u8, parts: &[Bytes]) -> Option<Bytes> {
        match parts {
            [payload] => self.pack_whole(kind, payload),
            // The compressor takes one piece.
            _ if parts.iter().map(Bytes::len).sum::<usize>() <= MOST => {
                self.pack_whole(kind, &parts.concat())
            }
            _ => None,
        }
    }

    fn pack_whole(&mut self, kind: u8, payload: &[u8]) -> Option<Bytes> {
        if kind != FRAME_RAFT || !(LEAST..=MOST).contains(&payload.len()) {
            return None;
        }
        let most = HEADER + block::get_maximum_output_size(payload.len());
        if self.scratch.len() < most {
            self.scratch.resize(most, 0);
        }
        self.scratch[0] = kind;
        self.scratch[1..HEADER].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        let length = block::compress_into(payload, &mut self.scratch[HEADER..]).ok()?;
        let packed = &self.scratch[..HEADER + length];
        // A saving of less than a tenth is not worth the receiver's work.
        if packed.len() > payload.len() - payload.len() / 10 {
            return None;
        }
        self.sent.count(payload.len(), packed.len());
        Some(Bytes::copy_from_slice(packed))
    }
}

/// The kind and the payload of the frame in a [`crate::wire::FRAME_PACKED`]'s payload.
///
/// # Errors
/// Where it is none. No more memory is taken than [`MOST`], nor more than the input can stand for.
pub(crate) fn unpack(input: &[u8], count: &mut Packed) -> Result<(u8, Bytes), DecodeError> {
    let invalid = DecodeError::Invalid("compressed frame");
    let Some((header, packed)) = input.split_first_chunk::<HEADER>() else { return Err(invalid) };
    let [kind, length @ ..] = *header;
    let length = u32::from_le_bytes(length) as usize;
    if kind != FRAME_RAFT || length > MOST || length > packed.len().saturating_mul(RATIO) {
        return Err(invalid);
    }
    let mut plain = vec![0; length];
    match block::decompress_into(packed, &mut plain) {
        Ok(written) if written == length => {}
        _ => return Err(invalid),
    }
    count.count(length, input.len());
    Ok((kind, plain.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize) -> Vec<u8> {
        (0..count).flat_map(|n| [b"INSERT INTO t VALUES (".as_slice(), &n.to_le_bytes()].concat()).collect()
    }

    #[test]
    fn packed_frame_round_trips_and_is_counted() {
        let mut packer = Packer::default();
        let plain = rows(100);
        let packed = packer.pack_whole(FRAME_RAFT, &plain).unwrap();
        assert!(packed.len() * 2 < plain.len());
        let mut received = Packed::default();
        let (kind, again) = unpack(&packed, &mut received).unwrap();
        assert_eq!((kind, &again[..]), (FRAME_RAFT, &plain[..]));
        assert_eq!(packer.sent, received);
        assert_eq!((received.plain, received.packed), (plain.len() as u64, packed.len() as u64));
        // A larger one, then a smaller one, in the same scratch.
        for plain in [rows(20_000), rows(10)] {
            let packed = packer.pack_whole(FRAME_RAFT, &plain).unwrap();
            assert_eq!(unpack(&packed, &mut received).unwrap().1, plain);
        }
    }

    #[test]
    fn incompressible_frame_is_sent_plain() {
        let mut packer = Packer::default();
        let mut noise = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            noise as u8
        })
        .take(4096)
        .collect();
        assert_eq!(packer.pack_whole(FRAME_RAFT, &noise), None);
        assert_eq!(packer.pack_whole(FRAME_RAFT, &[7; LEAST - 1]), None, "too small");
        assert_eq!(packer.pack_whole(FRAME_RAFT, &vec![7; MOST + 1]), None, "too large");
        assert_eq!(packer.pack_whole(crate::wire::FRAME_NODE, &[7; 4096]), None, "not in bulk");
        assert_eq!(packer.sent, Packed::default());
    }

    #[test]
    fn nobody_makes_this_member_allocate_by_a_claim() {
        let claim = |length: u32, packed: &[u8]| {
            let mut input = vec![FRAME_RAFT];
            input.extend_from_slice(&length.to_le_bytes());
            input.extend_from_slice(packed);
            unpack(&input, &mut Packed::default())
        };
        assert!(claim(u32::MAX, &[0; 1 << 10]).is_err());
        assert!(claim(MOST as u32 + 1, &[0; 1 << 17]).is_err());
        assert!(claim(256, &[0]).is_err());
        // One more and one less than there is.
        let mut packed = vec![0; block::get_maximum_output_size(1000)];
        let length = block::compress_into(&[7; 1000], &mut packed).unwrap();
        packed.truncate(length);
        assert!(claim(1000, &packed).is_ok());
        assert!(claim(999, &packed).is_err() && claim(1001, &packed).is_err());
        // Frames that are never packed.
        let packed = Packer::default().pack_whole(FRAME_RAFT, &[7; 1000]).unwrap();
        let mut inner = packed.to_vec();
        inner[0] = crate::wire::FRAME_NODE;
        assert!(unpack(&inner, &mut Packed::default()).is_err());
        assert!(unpack(&[FRAME_RAFT, 1], &mut Packed::default()).is_err());
    }
}
