//! The log entries of a device.
//!
//! ```text
//! u8 version (1)   u8 kind
//! 1 writes   u64 epoch  u64 number  u64 clock  u32 runs, each: u8 content  u64 offset  u64 length  and for content 0 the bytes
//! 2 attach   u64 epoch before  u64 token  u8 by  str peer
//! 3 promote  u64 epoch before  u64 token
//! 4 detach   u64 epoch  u64 number  u64 token
//! 5 resize   u64 size before  u64 size  u64 token
//! 6 verify   u64 token  u64 offset  u32 length
//! 7 hashes   u64 token  u8 blocks, each: 32 bytes
//! 8 result   u64 clock  u64 bytes  u32 copies  u64 differing bytes  u8 differences, each: u64 offset  u64 length  u8 members,
//!            each: 16 bytes
//! ```
//!
//! A member of a version without kinds 6 to 8 ends when it takes one of them.
//!
//! Content: 0 bytes, 1 zeroes, 2 zeroes without space. All little-endian.

use super::extent_map::{Content, Run};
use bytes::Bytes;
use lockstep_core::codec::{DecodeError, Reader, Writer};
use lockstep_core::{MemberId, Uuid};
use std::fmt;

const VERSION: u8 = 1;
/// The bytes of an entry of writes without its runs.
pub const WRITES_HEADER: usize = 2 + 3 * 8 + 4;
/// The bytes of a run without its data.
pub const RUN_HEADER: usize = 1 + 2 * 8;
/// The longest peer name.
const PEER_MAX: usize = 256;
/// The largest device: offsets are also numbers of the file system, which are signed.
pub const SIZE_MAX: u64 = 1 << 62;
/// The length of a block that has a hash of its own.
pub const HASH_BLOCK: u64 = 1 << 20;
/// The most hashes of an entry, and differences of a result.
pub const HASHES_MAX: usize = 64;
/// The most members that a difference names.
const NAMED_MAX: usize = 16;

/// The hash of a block.
pub type BlockHash = [u8; 32];

/// An entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Writes of an attachment.
    Writes {
        /// The attachment's epoch.
        epoch: u64,
        /// The number of this entry in the epoch, from 1 without gaps.
        number: u64,
        /// The primary's clock when the entry was made, µs since 1970. For people.
        clock: u64,
        /// The writes. They do not overlap.
        runs: Vec<Run>,
    },
    /// A client comes. It begins an epoch, or uses the one of a promotion.
    Attach {
        /// The epoch before.
        before: u64,
        /// The client's address, for people.
        peer: String,
        /// Whether the client gave the epoch of a promotion, with its name.
        promoted: bool,
        /// By which the origin recognises the entry.
        token: u64,
    },
    /// An operator makes the origin the primary of a new epoch.
    Promote {
        /// The epoch before.
        before: u64,
        /// By which the origin recognises the entry.
        token: u64,
    },
    /// The last client has left in order, after a flush.
    Detach {
        /// The attachment's epoch.
        epoch: u64,
        /// The number after the last entry of writes.
        number: u64,
        /// By which the origin recognises the entry.
        token: u64,
    },
    /// The device gets its first size, or grows.
    Resize {
        /// The size before; 0: none.
        before: u64,
        /// The size.
        size: u64,
        /// By which the origin recognises the entry.
        token: u64,
    },
    /// Each copy hashes a range as of this entry. It changes nothing.
    Verify {
        /// By which the answers are known.
        token: u64,
        /// Where the range begins.
        offset: u64,
        /// Its length: at most [`HASHES_MAX`] blocks.
        length: u32,
    },
    /// A copy's answer.
    Hashes {
        /// That of the range.
        token: u64,
        /// The hashes of its blocks of [`HASH_BLOCK`]; none: the copy cannot read its device file.
        blocks: Vec<BlockHash>,
    },
    /// The result of a comparison of all copies.
    Compared(Compared),
}

/// The result of a comparison of all copies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compared {
    /// When it ended, µs since 1970. For people.
    pub clock: u64,
    /// The bytes of the device that were compared.
    pub bytes: u64,
    /// The number of the copies.
    pub copies: u32,
    /// The bytes of the blocks in which copies differ.
    pub differing: u64,
    /// The first differences: at most [`HASHES_MAX`].
    pub differences: Vec<Difference>,
}

/// A range in which copies differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Where it begins.
    pub offset: u64,
    /// Its length.
    pub length: u64,
    /// The members that differ from a majority of the copies; none: no majority is alike.
    pub members: Vec<MemberId>,
}

/// The ranges of writes that a line names.
const RANGES_SHOWN: usize = 8;

impl Entry {
    /// What the members' logs say when the entry takes effect. `member` made it; `epoch` is the present one. `None`: nothing.
    pub(super) fn notice(&self, member: &str, epoch: u64) -> Option<String> {
        match self {
            Entry::Attach { peer, .. } => Some(format!("{peer} is attached to {member} in epoch {epoch}")),
            Entry::Promote { .. } => Some(format!("{member} was promoted in epoch {epoch}")),
            Entry::Detach { epoch, .. } => {
                Some(format!("the client at {member} has detached in order, which ends epoch {epoch}"))
            }
            Entry::Resize { size, .. } => Some(format!("the device has {size} bytes, as {member} asked")),
            _ => None,
        }
    }
}

/// A line for people.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Writes { epoch, number, runs, .. } => {
                write!(f, "writes {number} of epoch {epoch}")?;
                for (at, Run { offset, length, content }) in runs.iter().take(RANGES_SHOWN).enumerate() {
                    let before = if at == 0 { ":" } else { "," };
                    let what = if matches!(content, Content::Data(_)) { "bytes" } else { "zeroes" };
                    write!(f, "{before} {length} {what} at {offset}")?;
                }
                match runs.len().saturating_sub(RANGES_SHOWN) {
                    0 => Ok(()),
                    more => write!(f, ", and {more} more"),
                }
            }
            Entry::Attach { before, peer, promoted: false, .. } => {
                write!(f, "{peer} attaches after epoch {before}")
            }
            Entry::Attach { before, peer, .. } => write!(f, "{peer} attaches in epoch {before}"),
            Entry::Promote { before, .. } => write!(f, "a promotion after epoch {before}"),
            Entry::Detach { epoch, .. } => write!(f, "the client of epoch {epoch} detaches"),
            Entry::Resize { size, .. } => write!(f, "the device has {size} bytes"),
            Entry::Verify { offset, length, .. } => write!(f, "a comparison of {length} bytes at {offset}"),
            Entry::Hashes { blocks, .. } => write!(f, "{} hashes of a comparison", blocks.len()),
            Entry::Compared(Compared { bytes, differing, .. }) => {
                write!(f, "the result of a comparison of {bytes} bytes: {differing} differ")
            }
        }
    }
}

impl Entry {
    /// As an entry's payload.
    pub fn encode(&self) -> Bytes {
        let mut w = Writer::with_capacity(self.size_hint());
        w.u8(VERSION);
        match self {
            Entry::Writes { epoch, number, clock, runs } => {
                w.u8(1);
                w.u64(*epoch);
                w.u64(*number);
                w.u64(*clock);
                w.u32(runs.len() as u32);
                for Run { offset, length, content } in runs {
                    let kind = match content {
                        Content::Data(_) => 0,
                        Content::Zeroes { hole } => 1 + u8::from(*hole),
                    };
                    w.u8(kind);
                    w.u64(*offset);
                    w.u64(*length);
                    if let Content::Data(bytes) = content {
                        w.raw(bytes);
                    }
                }
            }
            Entry::Attach { before, peer, promoted, token } => {
                w.u8(2);
                w.u64(*before);
                w.u64(*token);
                w.bool(*promoted);
                w.str(peer);
            }
            Entry::Promote { before, token } => {
                w.u8(3);
                w.u64(*before);
                w.u64(*token);
            }
            Entry::Detach { epoch, number, token } => {
                w.u8(4);
                w.u64(*epoch);
                w.u64(*number);
                w.u64(*token);
            }
            Entry::Resize { before, size, token } => {
                w.u8(5);
                w.u64(*before);
                w.u64(*size);
                w.u64(*token);
            }
            Entry::Verify { token, offset, length } => {
                w.u8(6);
                w.u64(*token);
                w.u64(*offset);
                w.u32(*length);
            }
            Entry::Hashes { token, blocks } => {
                debug_assert!(blocks.len() <= HASHES_MAX);
                w.u8(7);
                w.u64(*token);
                w.u8(blocks.len() as u8);
                blocks.iter().for_each(|hash| w.raw(hash));
            }
            Entry::Compared(result) => {
                w.u8(8);
                result.encode(&mut w);
            }
        }
        w.into_bytes()
    }

    fn size_hint(&self) -> usize {
        let Entry::Writes { runs, .. } = self else { return 64 };
        let data = |run: &Run| match &run.content {
            Content::Data(bytes) => bytes.len(),
            Content::Zeroes { .. } => 0,
        };
        WRITES_HEADER + runs.iter().map(|run| RUN_HEADER + data(run)).sum::<usize>()
    }

    /// Reads a payload. Data have memory of their own: a write that is kept must not keep its whole payload.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(payload: &Bytes) -> Result<Entry, DecodeError> {
        let mut r = Reader::new(payload.clone());
        if r.u8()? != VERSION {
            return Err(DecodeError::Invalid("version of a device's entry"));
        }
        let entry = match r.u8()? {
            1 => {
                let (epoch, number, clock) = (r.u64()?, r.u64()?, r.u64()?);
                let count = r.u32()? as usize;
                // The payload bounds the allocation.
                let mut runs = Vec::with_capacity(count.min(payload.len() / RUN_HEADER));
                for _ in 0..count {
                    runs.push(decode_run(&mut r)?);
                }
                Entry::Writes { epoch, number, clock, runs }
            }
            2 => {
                let (before, token, promoted) = (r.u64()?, r.u64()?, r.bool()?);
                let length = r.u32()? as usize;
                if length > PEER_MAX {
                    return Err(DecodeError::Invalid("peer"));
                }
                let peer = String::from_utf8(r.take(length)?.to_vec());
                let peer = peer.map_err(|_| DecodeError::Invalid("peer"))?;
                Entry::Attach { before, peer, promoted, token }
            }
            3 => Entry::Promote { before: r.u64()?, token: r.u64()? },
            4 => Entry::Detach { epoch: r.u64()?, number: r.u64()?, token: r.u64()? },
            5 => {
                let (before, size, token) = (r.u64()?, r.u64()?, r.u64()?);
                if size == 0 || size > SIZE_MAX {
                    return Err(DecodeError::Invalid("size"));
                }
                Entry::Resize { before, size, token }
            }
            6 => {
                let (token, offset, length) = (r.u64()?, r.u64()?, r.u32()?);
                let is_range = length > 0 && u64::from(length) <= HASHES_MAX as u64 * HASH_BLOCK;
                if !is_range || offset >= SIZE_MAX {
                    return Err(DecodeError::Invalid("range"));
                }
                Entry::Verify { token, offset, length }
            }
            7 => {
                let token = r.u64()?;
                let count = bounded(r.u8()?, HASHES_MAX)?;
                let blocks = (0..count).map(|_| r.array()).collect::<Result<_, _>>()?;
                Entry::Hashes { token, blocks }
            }
            8 => Entry::Compared(Compared::decode(&mut r)?),
            _ => return Err(DecodeError::Invalid("kind of a device's entry")),
        };
        match r.take(1) {
            Err(_) => Ok(entry),
            Ok(_) => Err(DecodeError::Trailing),
        }
    }
}

impl Compared {
    fn encode(&self, w: &mut Writer) {
        let Compared { clock, bytes, copies, differing, differences } = self;
        debug_assert!(differences.len() <= HASHES_MAX);
        w.u64(*clock);
        w.u64(*bytes);
        w.u32(*copies);
        w.u64(*differing);
        w.u8(differences.len() as u8);
        for Difference { offset, length, members } in differences {
            w.u64(*offset);
            w.u64(*length);
            let members = &members[..members.len().min(NAMED_MAX)];
            w.u8(members.len() as u8);
            members.iter().for_each(|member| w.raw(&member.0));
        }
    }

    fn decode(r: &mut Reader) -> Result<Compared, DecodeError> {
        let (clock, bytes, copies, differing) = (r.u64()?, r.u64()?, r.u32()?, r.u64()?);
        let count = bounded(r.u8()?, HASHES_MAX)?;
        let mut differences = Vec::with_capacity(count);
        for _ in 0..count {
            let (offset, length) = (r.u64()?, r.u64()?);
            let named = bounded(r.u8()?, NAMED_MAX)?;
            let members = (0..named).map(|_| Ok(Uuid(r.array()?))).collect::<Result<_, _>>()?;
            differences.push(Difference { offset, length, members });
        }
        Ok(Compared { clock, bytes, copies, differing, differences })
    }
}

fn bounded(count: u8, most: usize) -> Result<usize, DecodeError> {
    let count = usize::from(count);
    if count <= most { Ok(count) } else { Err(DecodeError::Invalid("count")) }
}

fn decode_run(r: &mut Reader) -> Result<Run, DecodeError> {
    let kind = r.u8()?;
    let (offset, length) = (r.u64()?, r.u64()?);
    if length == 0 || offset.checked_add(length).is_none_or(|end| end > SIZE_MAX) {
        return Err(DecodeError::Invalid("range"));
    }
    let content = match kind {
        0 => {
            let length = usize::try_from(length).map_err(|_| DecodeError::Short)?;
            Content::Data(Bytes::copy_from_slice(&r.take(length)?))
        }
        1 => Content::Zeroes { hole: false },
        2 => Content::Zeroes { hole: true },
        _ => return Err(DecodeError::Invalid("content")),
    };
    Ok(Run { offset, length, content })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn samples() -> Vec<Entry> {
        vec![
            Entry::Writes {
                epoch: 3,
                number: 7,
                clock: 1_700_000_000_000_000,
                runs: vec![
                    Run::data(4096, Bytes::from_static(b"some bytes")),
                    Run::zeroes(1 << 20, 1 << 40, true),
                    Run::zeroes(0, 512, false),
                ],
            },
            Entry::Writes { epoch: 1, number: 1, clock: 0, runs: Vec::new() },
            Entry::Attach { before: 2, peer: "127.0.0.1".into(), promoted: false, token: 9 },
            Entry::Promote { before: 2, token: 10 },
            Entry::Detach { epoch: 3, number: 8, token: 11 },
            Entry::Resize { before: 0, size: 20 << 30, token: 12 },
            Entry::Verify { token: 13, offset: 16 << 20, length: 16 << 20 },
            Entry::Hashes { token: 13, blocks: vec![[7; 32]; 3] },
            Entry::Compared(Compared {
                clock: 1_700_000_000_000_000,
                bytes: 1 << 30,
                copies: 3,
                differing: 2 << 20,
                differences: vec![Difference {
                    offset: 1 << 20,
                    length: 2 << 20,
                    members: vec![Uuid([2; 16])],
                }],
            }),
        ]
    }

    #[test]
    fn entries_round_trip() {
        for entry in samples() {
            let bytes = entry.encode();
            assert_eq!(Entry::decode(&bytes), Ok(entry.clone()));
            assert!(Entry::decode(&bytes.slice(..bytes.len() - 1)).is_err(), "{entry:?} cut short");
            let mut longer = bytes.to_vec();
            longer.push(0);
            assert_eq!(Entry::decode(&longer.into()), Err(DecodeError::Trailing));
        }
    }

    #[test]
    fn decoded_writes_do_not_keep_their_payload() {
        let payload = samples()[0].encode();
        let entry = Entry::decode(&payload).unwrap();
        assert!(payload.is_unique(), "{entry:?}");
    }

    #[test]
    fn impossible_ranges_are_refused() {
        for (offset, length) in [(0, 0), (u64::MAX, 1), (SIZE_MAX, 1), (1, SIZE_MAX)] {
            let entry = Entry::Writes {
                epoch: 1,
                number: 1,
                clock: 0,
                runs: vec![Run { offset, length, content: Content::Zeroes { hole: true } }],
            };
            assert!(Entry::decode(&entry.encode()).is_err(), "{offset} {length}");
        }
        for (offset, length) in [(0, 0), (SIZE_MAX, 1), (0, u32::MAX)] {
            let entry = Entry::Verify { token: 1, offset, length };
            assert!(Entry::decode(&entry.encode()).is_err(), "{offset} {length}");
        }
    }

    #[test]
    fn counts_above_their_limit_are_refused() {
        let mut bytes = Entry::Hashes { token: 1, blocks: Vec::new() }.encode().to_vec();
        let last = bytes.len() - 1;
        bytes[last] = HASHES_MAX as u8 + 1;
        bytes.resize(bytes.len() + 32 * (HASHES_MAX + 1), 0);
        assert_eq!(Entry::decode(&bytes.into()), Err(DecodeError::Invalid("count")));
    }
}
