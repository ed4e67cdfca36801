//! Large write-sets: their data go ahead in pieces, so that small ones overtake between the pieces.
//!
//! A piece's payload is only bytes. The order of proposals joins the pieces: the log holds the proposals of one
//! incarnation of a member in the order in which they were made, without a gap. So the last `count` pieces
//! before the write-set are its own, as long as a member sends **one large write-set at a time**: pieces of two must
//! not mix. If a transaction is rolled back midway, no write-set uses its pieces. They can be dropped when the next
//! write-set with pieces arrives, or when the member's incarnation ends.

use super::*;
use bytes::BytesMut;
use std::fmt;

/// A write-set cut up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Split {
    /// To be proposed first, in this order, as [`crate::EntryKind::Piece`]. Empty where it is not large.
    pub pieces: Vec<Bytes>,
    /// The write-set's own entry, to be proposed after its pieces.
    pub last: Bytes,
}

/// Cuts a payload up where it is larger than `max_piece` bytes. The pieces are slices of it, not copies. Keys stay
/// with the write-set: certification never waits for pieces.
///
/// # Errors
/// [`DecodeError`] where the payload is not a write-set.
pub fn split(payload: &Bytes, max_piece: usize) -> Result<Split, DecodeError> {
    let set = WriteSet::parse(payload)?;
    if payload.len() <= max_piece || set.data.is_empty() {
        return Ok(Split { pieces: Vec::new(), last: payload.clone() });
    }
    let step = max_piece.max(1);
    let pieces: Vec<Bytes> = (0..set.data.len())
        .step_by(step)
        .map(|at| set.data.slice(at..set.data.len().min(at + step)))
        .collect();
    let about = Pieces {
        count: u32::try_from(pieces.len()).map_err(|_| DecodeError::Invalid("size of a write-set"))?,
        bytes: set.data.len() as u32,
        hash: pieces_hash(&set.data),
    };
    let rest = &payload[HEADER + set.data.len()..];
    let sizes = [0, set.unordered.len() as u32, set.annotation.len() as u32, set.key_count() as u32];
    let mut w = Writer::with_capacity(HEADER + rest.len());
    put_header(&mut w, &set.meta, sizes, Some(&about));
    w.raw(rest);
    Ok(Split { pieces, last: w.into_bytes() })
}

fn pieces_hash(data: &[u8]) -> u64 {
    xxh3_64_with_seed(data, data.len() as u64)
}

/// Why pieces do not make the write-set. The verdict on such a write-set stands, but there is nothing to apply: it is
/// delivered as one that failed, on every member alike, because the log is alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the text says it")]
pub enum AssembleError {
    Count { expected: u32, found: usize },
    Bytes { expected: u32, found: usize },
    Hash,
}

impl fmt::Display for AssembleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AssembleError::Count { expected, found } => {
                write!(f, "a write-set in {expected} pieces, of which the log holds {found}")
            }
            AssembleError::Bytes { expected, found } => {
                write!(f, "a write-set in pieces of {expected} bytes, of which the log holds {found}")
            }
            AssembleError::Hash => {
                f.write_str("the pieces of a write-set are not its own: their hash differs")
            }
        }
    }
}

impl std::error::Error for AssembleError {}

/// Joins the pieces of a write-set. `pieces` are all pieces of the member's incarnation since its last write-set with
/// pieces, in the log's order. The last ones of them are used. A write-set without pieces is returned unchanged.
///
/// # Errors
/// [`AssembleError`] if number, size or hash differ from the write-set's header.
pub fn assemble(set: WriteSet, pieces: &[Bytes]) -> Result<WriteSet, AssembleError> {
    let Some(Pieces { count, bytes, hash }) = set.pieces else { return Ok(set) };
    let from = pieces
        .len()
        .checked_sub(count as usize)
        .ok_or(AssembleError::Count { expected: count, found: pieces.len() })?;
    let own = &pieces[from..];
    let found = own.iter().map(Bytes::len).sum();
    if found != bytes as usize {
        return Err(AssembleError::Bytes { expected: bytes, found });
    }
    let data = match own {
        [one] => one.clone(),
        _ => {
            let mut data = BytesMut::with_capacity(found);
            own.iter().for_each(|piece| data.extend_from_slice(piece));
            data.freeze()
        }
    };
    if pieces_hash(&data) != hash {
        return Err(AssembleError::Hash);
    }
    Ok(WriteSet { data, pieces: None, ..set })
}
