//! The format of a write-set: the only payload that the core reads, and it reads only the keys.
//!
//! A write-set is one buffer: a header of fixed size, the data that the server wants applied, data of two lesser
//! kinds, then the keys.
//!
//! ```text
//!   0 u16 format version (1)        48 u32 bytes of ordered data that follow the header
//!   2 u16 zero                      52 u32 bytes of unordered data
//!   4 u32 flags                     56 u32 bytes of annotation
//!   8 i64 last seen seqno           60 u32 number of keys (n)
//!  16 16  source, its view UUID     64 u32 number of pieces; 0 where the ordered data are here
//!  32 u64 connection                68 u32 bytes in the pieces
//!  40 u64 transaction               72 u64 hash of the pieces' bytes
//!  80 ordered · unordered · annotation · n × u64 hashes · ⌈n / 4⌉ bytes of types, two bits each, lowest first
//! ```
//!
//! All little-endian. The keys come last so that data are appended once, where they stay: neither their number nor
//! that of the keys is known before the end.
//!
//! **Keys.** A key is a path (database, table, row). It has a type; each of its proper prefixes is a key of type
//! [`KeyType::Shared`], so that a lock on a table meets those who touch its rows. The path of no parts is the root:
//! every write-set shares it, said or not. A key is known by its 64-bit hash alone: two keys with the same hash are
//! one key, which can only cost an unnecessary conflict.

mod build;
mod pieces;

pub use build::{MAX_BYTES, TooLarge, WriteSetBuilder};
pub use pieces::{AssembleError, Split, assemble, split};

use crate::codec::{DecodeError, Reader, Writer};
use crate::types::{Seqno, Uuid, ViewUuid};
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of the header.
pub const HEADER: usize = 80;

const VERSION: u16 = 1;

/// *Last seen* of a payload, without decoding the rest; `None` if the payload is too short.
pub fn last_seen(payload: &[u8]) -> Option<Seqno> {
    Some(Seqno::from_le_bytes(*payload.get(8..16)?.first_chunk()?))
}

/// The value of [`last_seen`] that marks a fragment of a streaming transaction as overtaken by a view, so that it fails.
/// Versions that do not know it fail the fragment, too, because the value is above every seqno.
pub const OVERTAKEN: Seqno = Seqno::MAX;

/// The payload of a fragment, marked as overtaken.
pub fn overtaken(payload: &[u8]) -> Bytes {
    let mut bytes = payload.to_vec();
    if let Some(field) = bytes.get_mut(8..16) {
        field.copy_from_slice(&OVERTAKEN.to_le_bytes());
    }
    bytes.into()
}

/// The server that made this payload, and the last seqno it had seen; `None` if the payload is too short.
pub fn origin(payload: &[u8]) -> Option<(ViewUuid, Seqno)> {
    Some((Uuid(*payload.get(16..32)?.first_chunk()?), last_seen(payload)?))
}

/// Whether a payload is a part of a transaction that has others, or will have, and is not its rollback.
pub fn is_fragment(payload: &[u8]) -> bool {
    let is_set = payload.len() >= HEADER && payload[..2] == VERSION.to_le_bytes();
    let whole = has_flags(payload, flags::TRX_START) && has_flags(payload, flags::TRX_END);
    is_set && !whole && !has_flags(payload, flags::ROLLBACK | flags::ISOLATION)
}

/// Whether a payload has any of these [`flags`], without taking it apart.
pub fn has_flags(payload: &[u8], bits: u32) -> bool {
    payload.get(4..8).and_then(<[u8]>::first_chunk).is_some_and(|raw| u32::from_le_bytes(*raw) & bits != 0)
}

/// The bits of a write-set's flags, as the wsrep API has them.
pub mod flags {
    /// The transaction's last fragment: commit.
    pub const TRX_END: u32 = 1 << 0;
    /// The transaction is rolled back: its fragments are void.
    pub const ROLLBACK: u32 = 1 << 1;
    /// Total order: applied alone.
    pub const ISOLATION: u32 = 1 << 2;
    /// Must not be applied in parallel with anything.
    pub const PA_UNSAFE: u32 = 1 << 3;
    /// The order of application does not matter. Makes no difference here, as in Galera.
    pub const COMMUTATIVE: u32 = 1 << 4;
    /// Holds a write-set of this provider's format. Makes no difference here, as in Galera.
    pub const NATIVE: u32 = 1 << 5;
    /// The transaction's first fragment.
    pub const TRX_START: u32 = 1 << 6;
    /// The transaction read from a snapshot. Makes no difference here, as in Galera.
    pub const SNAPSHOT: u32 = 1 << 8;
    /// Depends on all seqnos that its origin had seen, in addition to its keys.
    pub const IMPLICIT_DEPS: u32 = 1 << 9;
}

/// How a write-set touches a key, weakest first. Which meets which is in [`crate::certify`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum KeyType {
    /// Relies on its being there (a prefix of another key, a parent row).
    Shared = 0,
    /// Refers to it (foreign key).
    Reference = 1,
    /// Changes it, but not what others may refer to.
    Update = 2,
    /// Makes, changes or removes it.
    Exclusive = 3,
}

impl KeyType {
    /// All of them, weakest first.
    pub const ALL: [KeyType; 4] = [KeyType::Shared, KeyType::Reference, KeyType::Update, KeyType::Exclusive];

    /// The type of this number, as the wsrep API counts them.
    pub fn from_u8(raw: u8) -> Option<KeyType> {
        KeyType::ALL.get(raw as usize).copied()
    }

    fn from_bits(raw: u8) -> KeyType {
        KeyType::ALL[(raw & 3) as usize]
    }
}

/// The purpose of appended data, numbered as in the wsrep API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum DataKind {
    /// To be applied, in order.
    Ordered = 0,
    /// To be handed out, in any order.
    Unordered = 1,
    /// For people.
    Annotation = 2,
}

/// A key as certification knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// Of the whole path.
    pub hash: u64,
    /// How it is touched.
    pub kind: KeyType,
}

/// The hash of the path of no parts.
pub const ROOT: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hash of a path from that of its parent and its last part.
///
/// XXH3, seeded with the parent's hash. It is part of the format: all members must agree on it, and it never changes
/// within a format version. It resists accidents, not malice: a user who may write rows may provoke conflicts anyhow.
pub fn child_hash(parent: u64, part: &[u8]) -> u64 {
    xxh3_64_with_seed(part, parent)
}

/// The hash of a path.
pub fn path_hash(parts: &[&[u8]]) -> u64 {
    parts.iter().fold(ROOT, |parent, part| child_hash(parent, part))
}

/// The origin of a write-set and its time: the header without the sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Meta {
    /// A combination of [`flags`].
    pub flags: u32,
    /// *Last seen*: all seqnos up to this one had finished on the origin's server when this was read.
    pub last_seen: Seqno,
    /// The origin's view UUID at that time.
    pub source: ViewUuid,
    /// How many submissions the origin has given up since it became `source`. Their threads do not know whether the write-set
    /// was ordered, and have released its locks. The server's locks separate two write-sets of one source only if both
    /// have the same epoch. Otherwise they are judged as write-sets of two sources.
    pub epoch: u16,
    /// The server's connection id.
    pub conn: u64,
    /// The server's transaction id; unique together with `source`.
    pub trx: u64,
}

impl Meta {
    /// Whether any of these bits is set.
    pub fn has(&self, bits: u32) -> bool {
        self.flags & bits != 0
    }
}

/// Where the ordered data are, if not in the write-set itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pieces {
    /// How many [`crate::EntryKind::Piece`] proposals of the same member's same life hold them: the last so many
    /// before this one. At least 1.
    pub count: u32,
    /// How many bytes they hold together.
    pub bytes: u32,
    /// XXH3 of these bytes, seeded with their number.
    pub hash: u64,
}

/// A decoded write-set. The data are slices of the payload, not copies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteSet {
    /// The header.
    pub meta: Meta,
    /// The data to apply; empty while it is in `pieces`.
    pub data: Bytes,
    /// Unordered data.
    pub unordered: Bytes,
    /// Annotation.
    pub annotation: Bytes,
    /// The pieces with the data, if the write-set is large: see [`assemble`].
    pub pieces: Option<Pieces>,
    hashes: Bytes,
    types: Bytes,
}

impl WriteSet {
    /// Replaces an unreadable write-set: nothing to apply, and a rollback of no transaction.
    pub fn void() -> WriteSet {
        let flags = flags::ROLLBACK | flags::TRX_END;
        WriteSet {
            meta: Meta {
                flags,
                last_seen: crate::SEQNO_UNDEFINED,
                source: ViewUuid::NIL,
                epoch: 0,
                conn: 0,
                trx: 0,
            },
            data: Bytes::new(),
            unordered: Bytes::new(),
            annotation: Bytes::new(),
            pieces: None,
            hashes: Bytes::new(),
            types: Bytes::new(),
        }
    }

    /// Takes a payload apart.
    ///
    /// # Errors
    /// [`DecodeError`] where it is not a write-set of this format version, to the byte. Such a payload is still an
    /// entry with a seqno: see [`crate::certify::Certifier::void`].
    pub fn parse(payload: &Bytes) -> Result<WriteSet, DecodeError> {
        let mut r = Reader::new(payload.clone());
        if r.u16()? != VERSION {
            return Err(DecodeError::Invalid("version of a write-set"));
        }
        let epoch = r.u16()?;
        let flags = r.u32()?;
        let last_seen = r.i64()?;
        let source = Uuid(r.array()?);
        let conn = r.u64()?;
        let trx = r.u64()?;
        let [ordered, unordered, annotation, keys] =
            [r.u32()?, r.u32()?, r.u32()?, r.u32()?].map(|n| n as usize);
        let [count, bytes] = [r.u32()?, r.u32()?];
        let hash = r.u64()?;
        let pieces = match count {
            0 if bytes != 0 || hash != 0 => return Err(DecodeError::Invalid("pieces of a write-set")),
            0 => None,
            _ if ordered != 0 => return Err(DecodeError::Invalid("pieces of a write-set")),
            _ => Some(Pieces { count, bytes, hash }),
        };
        let set = WriteSet {
            meta: Meta { flags, last_seen, source, epoch, conn, trx },
            data: r.take(ordered)?,
            unordered: r.take(unordered)?,
            annotation: r.take(annotation)?,
            pieces,
            hashes: r.take(keys.saturating_mul(8))?,
            types: r.take(keys.div_ceil(4))?,
        };
        r.end()?;
        if keys % 4 != 0 && set.types[keys / 4] >> (2 * (keys % 4)) != 0 {
            return Err(DecodeError::Invalid("key types of a write-set"));
        }
        Ok(set)
    }

    /// How many keys it has.
    pub fn key_count(&self) -> usize {
        self.hashes.len() / 8
    }

    /// The keys, in the order in which they were first appended.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = Key> + '_ {
        self.hashes.chunks_exact(8).enumerate().map(|(at, raw)| Key {
            hash: u64::from_le_bytes(raw.try_into().expect("chunks of eight")),
            kind: KeyType::from_bits(self.types[at / 4] >> (2 * (at % 4))),
        })
    }

    /// Bytes of keys, for statistics.
    pub fn key_bytes(&self) -> usize {
        self.hashes.len() + self.types.len()
    }
}

/// The header, with sizes.
fn put_header(w: &mut Writer, meta: &Meta, sizes: [u32; 4], pieces: Option<&Pieces>) {
    let Meta { flags, last_seen, source, epoch, conn, trx } = meta;
    w.u16(VERSION);
    w.u16(*epoch);
    w.u32(*flags);
    w.i64(*last_seen);
    w.raw(&source.0);
    w.u64(*conn);
    w.u64(*trx);
    for size in sizes {
        w.u32(size);
    }
    let (count, bytes, hash) =
        pieces.map_or((0, 0, 0), |Pieces { count, bytes, hash }| (*count, *bytes, *hash));
    w.u32(count);
    w.u32(bytes);
    w.u64(hash);
    debug_assert_eq!(w.len(), HEADER);
}

#[cfg(test)]
mod tests;
