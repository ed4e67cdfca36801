//! The index of a part: GTID, begin and clock of each group that begins in it.

use crate::codec::{DecodeError, Reader, put_length};

/// The first bytes: a name and a version.
const MAGIC: [u8; 5] = *b"LSAI\x01";
/// The largest index: a block's groups, at most 27 bytes each.
pub(super) const INDEX_MAX: u64 = 4 << 20;

/// A group of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Indexed {
    /// The seqno of its GTID.
    pub seqno: u64,
    /// Where it begins in the file.
    pub begin: u64,
    /// Its clock, in µs since 1970.
    pub clock: u64,
}

/// Encodes an index. Seqnos and begins ascend; clocks do not descend.
pub fn encode_index(groups: &[Indexed]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    put_length(&mut out, groups.len() as u64);
    let mut last = Indexed { seqno: 0, begin: 0, clock: 0 };
    for group in groups {
        put_length(&mut out, group.seqno.wrapping_sub(last.seqno));
        put_length(&mut out, group.begin.wrapping_sub(last.begin));
        put_length(&mut out, group.clock.wrapping_sub(last.clock));
        last = *group;
    }
    let crc = crc32fast::hash(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// Decodes an index.
///
/// # Errors
/// [`DecodeError`] if these are not exactly the bytes of one.
pub fn decode_index(bytes: &[u8]) -> Result<Vec<Indexed>, DecodeError> {
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or(DecodeError::Short)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
        return Err(DecodeError::Checksum);
    }
    let mut r = Reader::new(body);
    if r.take(MAGIC.len())? != MAGIC {
        return Err(DecodeError::Invalid("kind or version"));
    }
    let count = r.length()?;
    // Three bytes at least for each group.
    if count > (r.remaining() / 3) as u64 {
        return Err(DecodeError::Short);
    }
    let mut groups = Vec::with_capacity(count as usize);
    let mut last = Indexed { seqno: 0, begin: 0, clock: 0 };
    for _ in 0..count {
        let mut next = |last: u64, zero: bool| {
            let step = r.length()?;
            let sum = last.checked_add(step).filter(|_| zero || step > 0);
            sum.ok_or(DecodeError::Invalid("order of groups"))
        };
        last = Indexed {
            seqno: next(last.seqno, false)?,
            begin: next(last.begin, false)?,
            clock: next(last.clock, true)?,
        };
        groups.push(last);
    }
    r.end()?;
    Ok(groups)
}
