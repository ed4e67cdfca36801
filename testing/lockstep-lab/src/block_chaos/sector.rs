//! The content of a sector: it names its place and its write, so that a wrong one says where it comes from.

/// Bytes of a sector.
pub(crate) const SECTOR: usize = 512;
const HEAD: usize = 24;

/// The meaning of a sector's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// Only zeroes.
    Zero,
    /// The sector of this write.
    Write(u64),
    /// Something else: why.
    Wrong(String),
}

/// The bytes of a sector after a write. Each run has its own salt, so that bytes of another run are found, too.
pub(crate) fn fill(bytes: &mut [u8], salt: u32, sector: u32, write: u64) {
    bytes[4..8].copy_from_slice(&salt.to_le_bytes());
    bytes[8..16].copy_from_slice(&u64::from(sector).to_le_bytes());
    bytes[16..24].copy_from_slice(&write.to_le_bytes());
    let mut state = u64::from(salt) << 32 ^ u64::from(sector) ^ write.rotate_left(40);
    for chunk in bytes[HEAD..].chunks_mut(8) {
        // Splitmix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        chunk.copy_from_slice(&(mixed ^ mixed >> 31).to_le_bytes()[..chunk.len()]);
    }
    let sum = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&sum.to_le_bytes());
}

/// Reads the bytes of a sector.
pub(crate) fn read(bytes: &[u8], salt: u32, sector: u32) -> Content {
    if bytes.iter().all(|byte| *byte == 0) {
        return Content::Zero;
    }
    let half = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let long = |at: usize| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
    if half(0) != crc32c::crc32c(&bytes[4..]) {
        return Content::Wrong(format!("its checksum is wrong (place {}, write {})", long(8), long(16)));
    }
    if half(4) != salt {
        return Content::Wrong("it is of another run".into());
    }
    if long(8) != u64::from(sector) {
        return Content::Wrong(format!("it holds sector {} of write {}", long(8), long(16)));
    }
    let mut expected = vec![0; SECTOR];
    fill(&mut expected, salt, sector, long(16));
    match expected == bytes {
        true => Content::Write(long(16)),
        false => Content::Wrong(format!("its bytes are not those of write {}", long(16))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sector_tells_place_and_write() {
        let mut bytes = vec![0; SECTOR];
        assert_eq!(read(&bytes, 9, 5), Content::Zero);
        fill(&mut bytes, 9, 5, 1234);
        assert_eq!(read(&bytes, 9, 5), Content::Write(1234));
        assert!(matches!(read(&bytes, 9, 6), Content::Wrong(text) if text.contains("sector 5")));
        assert!(matches!(read(&bytes, 8, 5), Content::Wrong(text) if text.contains("another run")));
        for at in [0, 4, 8, 16, 24, 511] {
            bytes[at] ^= 1;
            assert!(matches!(read(&bytes, 9, 5), Content::Wrong(_)), "byte {at}");
            bytes[at] ^= 1;
        }
    }
}
