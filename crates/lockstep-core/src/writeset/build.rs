//! Making a write-set while the transaction runs.

use super::*;
use bytes::{BufMut, BytesMut};
use std::fmt;

/// The most bytes a write-set may have: the server's own limit for one.
pub const MAX_BYTES: usize = i32::MAX as usize;

/// A write-set would have more than [`MAX_BYTES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLarge;

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a write-set cannot be larger than {MAX_BYTES} bytes: split the transaction, or use streaming replication"
        )
    }
}

impl std::error::Error for TooLarge {}

/// Builds a write-set. After [`WriteSetBuilder::finish`] it is empty and builds the next one, such as the next fragment
/// of a streaming transaction.
///
/// Data are written directly to their place in the payload. Of the keys it keeps only hashes, each once, with the strongest
/// type that was given.
#[derive(Debug, Default)]
pub struct WriteSetBuilder {
    /// Header's place, then ordered data. Empty as long as there are none.
    buffer: BytesMut,
    unordered: Vec<u8>,
    annotation: Vec<u8>,
    keys: KeySet,
}

impl WriteSetBuilder {
    /// An empty one. Allocates nothing.
    pub fn new() -> WriteSetBuilder {
        WriteSetBuilder::default()
    }

    /// Adds a key: a path (database, table, row) and its type; its proper prefixes become shared keys. A path of no
    /// parts is the root, which everything shares.
    ///
    /// # Errors
    /// [`TooLarge`], and then the key was not added.
    pub fn append_key(&mut self, parts: &[&[u8]], kind: KeyType) -> Result<(), TooLarge> {
        if self.size() + parts.len().max(1) * 9 > MAX_BYTES {
            return Err(TooLarge);
        }
        self.keys.append(parts, kind);
        Ok(())
    }

    /// Adds data. All that are of one kind are one buffer in the end.
    ///
    /// # Errors
    /// [`TooLarge`], and then nothing was added.
    pub fn append_data(&mut self, kind: DataKind, data: &[u8]) -> Result<(), TooLarge> {
        if self.size().saturating_add(data.len()) > MAX_BYTES {
            return Err(TooLarge);
        }
        match kind {
            DataKind::Ordered => {
                if self.buffer.is_empty() {
                    // Room for the keys as well: they are known by the time the data come, as a rule.
                    self.buffer.reserve(HEADER + data.len() + self.keys.encoded_len());
                    self.buffer.put_bytes(0, HEADER);
                }
                self.buffer.extend_from_slice(data);
            }
            DataKind::Unordered => self.unordered.extend_from_slice(data),
            DataKind::Annotation => self.annotation.extend_from_slice(data),
        }
        Ok(())
    }

    /// Whether neither keys nor data have been added.
    pub fn is_empty(&self) -> bool {
        self.keys.hashes.is_empty()
            && self.data_len() == 0
            && self.unordered.is_empty()
            && self.annotation.is_empty()
    }

    /// Bytes of ordered data so far.
    pub fn data_len(&self) -> usize {
        self.buffer.len().saturating_sub(HEADER)
    }

    /// Keys so far.
    pub fn key_count(&self) -> usize {
        self.keys.hashes.len()
    }

    /// Bytes that the payload would have now.
    pub fn size(&self) -> usize {
        HEADER + self.data_len() + self.unordered.len() + self.annotation.len() + self.keys.encoded_len()
    }

    /// Forgets all that was added; keeps no memory.
    pub fn clear(&mut self) {
        *self = WriteSetBuilder::default();
    }

    /// The payload of all that was added; the builder is empty afterwards.
    pub fn finish(&mut self, meta: &Meta) -> Bytes {
        let WriteSetBuilder { mut buffer, unordered, annotation, keys } = std::mem::take(self);
        if buffer.is_empty() {
            buffer.reserve(HEADER + unordered.len() + annotation.len() + keys.encoded_len());
            buffer.put_bytes(0, HEADER);
        }
        // Invariant: none of them exceeds MAX_BYTES, which fits 32 bits.
        let sizes =
            [buffer.len() - HEADER, unordered.len(), annotation.len(), keys.hashes.len()].map(|n| n as u32);
        let mut header = Writer::with_capacity(HEADER);
        put_header(&mut header, meta, sizes, None);
        buffer[..HEADER].copy_from_slice(&header.into_bytes());
        buffer.reserve(unordered.len() + annotation.len() + keys.encoded_len());
        buffer.extend_from_slice(&unordered);
        buffer.extend_from_slice(&annotation);
        keys.encode(&mut buffer);
        buffer.freeze()
    }
}

/// Up to so many keys, looking at all of them is faster than a table.
const SCAN: usize = 8;

/// Distinct keys in the order of their first appearance.
#[derive(Debug, Default)]
struct KeySet {
    hashes: Vec<u64>,
    /// Same length as `hashes`.
    types: Vec<KeyType>,
    /// Open addressing by the hash's low bits: an index into `hashes` plus one, 0 where free. Empty up to [`SCAN`]
    /// keys; else a power of two, at least twice the number of keys.
    table: Vec<u32>,
    /// The prefixes of the previous key: rows of one table follow each other, and theirs are known to be there.
    previous: Vec<u64>,
}

impl KeySet {
    fn append(&mut self, parts: &[&[u8]], kind: KeyType) {
        let Some((last, prefixes)) = parts.split_last() else {
            self.add(ROOT, kind);
            return;
        };
        let mut hash = ROOT;
        for (depth, part) in prefixes.iter().enumerate() {
            hash = child_hash(hash, part);
            match self.previous.get(depth) {
                Some(known) if *known == hash => {}
                _ => {
                    self.previous.truncate(depth);
                    self.previous.push(hash);
                    self.add(hash, KeyType::Shared);
                }
            }
        }
        self.add(child_hash(hash, last), kind);
    }

    fn add(&mut self, hash: u64, kind: KeyType) {
        if self.table.is_empty() {
            if let Some(at) = self.hashes.iter().position(|h| *h == hash) {
                self.types[at] = self.types[at].max(kind);
                return;
            }
            self.push(hash, kind);
            if self.hashes.len() > SCAN {
                self.rebuild();
            }
            return;
        }
        let mask = self.table.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            match self.table[slot] {
                0 => break,
                at if self.hashes[at as usize - 1] == hash => {
                    let held = &mut self.types[at as usize - 1];
                    *held = (*held).max(kind);
                    return;
                }
                _ => slot = (slot + 1) & mask,
            }
        }
        self.push(hash, kind);
        self.table[slot] = self.hashes.len() as u32;
        if self.hashes.len() * 2 > self.table.len() {
            self.rebuild();
        }
    }

    fn push(&mut self, hash: u64, kind: KeyType) {
        self.hashes.push(hash);
        self.types.push(kind);
    }

    fn rebuild(&mut self) {
        let size = (self.hashes.len() * 4).next_power_of_two();
        self.table.clear();
        self.table.resize(size, 0);
        for (at, hash) in self.hashes.iter().enumerate() {
            let mut slot = *hash as usize & (size - 1);
            while self.table[slot] != 0 {
                slot = (slot + 1) & (size - 1);
            }
            self.table[slot] = at as u32 + 1;
        }
    }

    fn encoded_len(&self) -> usize {
        self.hashes.len() * 8 + self.hashes.len().div_ceil(4)
    }

    fn encode(&self, out: &mut BytesMut) {
        for hash in &self.hashes {
            out.put_u64_le(*hash);
        }
        for four in self.types.chunks(4) {
            out.put_u8(four.iter().enumerate().fold(0, |byte, (at, kind)| byte | (*kind as u8) << (2 * at)));
        }
    }
}
