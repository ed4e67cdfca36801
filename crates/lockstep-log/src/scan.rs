//! Walking one segment from its header to where its records end.

use std::io;

use bytes::Bytes;

use crate::format::{ALIGN, HeaderError, Kind, RECORD_HEADER, RecordHeader, SEGMENT_HEADER, SegmentHeader};
use crate::reader::{Cursor, Segment, Update};
use crate::{DiskFile, Planted};

const CHUNK: u64 = 1 << 20;
/// Behind an append there are zeros up to a multiple of this: see [`DiskFile::append_at`].
const APPEND_BLOCK: u64 = 4096;

/// The next segment's word on where this one ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seal {
    pub(crate) end: u64,
    pub(crate) chain: u32,
    pub(crate) last: (u64, u64),
}

/// How a walk ended, at the segment's `end`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Exactly as the next segment says.
    Sealed,
    /// No intact record follows; the text says what is there instead.
    Broken(&'static str),
    /// Zeros, or the end of the file.
    Clean,
}

/// Result of a walk; the segment itself has been brought to its end.
#[derive(Debug)]
pub(crate) struct Scanned {
    pub(crate) stop: Stop,
    /// A truncation was recorded behind the seal: the later segments are void.
    pub(crate) reopened: bool,
    /// The offset up to which the segment was durable when its last record was written.
    pub(crate) synced: u64,
}

/// Why a header could not be read.
pub(crate) enum HeadError {
    Io(io::Error),
    Header(HeaderError),
    Base,
}

/// Reads and checks a segment's header and base; also gives the header's CRC.
pub(crate) fn read_header<F: DiskFile>(file: &F) -> Result<(SegmentHeader, u32), HeadError> {
    let mut b = [0; SEGMENT_HEADER];
    let n = file.read_at(&mut b, 0).map_err(HeadError::Io)?;
    let (mut header, base_len, base_crc, salt) = SegmentHeader::decode(&b[..n]).map_err(HeadError::Header)?;
    let size = file.size().map_err(HeadError::Io)?;
    if size < (SEGMENT_HEADER + base_len) as u64 {
        return Err(HeadError::Base);
    }
    let mut base = vec![0; base_len];
    let n = file.read_at(&mut base, SEGMENT_HEADER as u64).map_err(HeadError::Io)?;
    if n < base_len || crc32c::crc32c(&base) != base_crc {
        return Err(HeadError::Base);
    }
    header.base = Bytes::from(base);
    Ok((header, salt))
}

/// Walks the records of a fresh `segment`, applying each to it.
pub(crate) fn scan<F: DiskFile>(segment: &mut Segment<F>, mut seal: Option<Seal>) -> io::Result<Scanned> {
    let file = std::sync::Arc::clone(&segment.file);
    debug_assert_eq!(segment.end, segment.header.body_start(), "a fresh segment");
    let trusted = file.planted() == Some(Planted::NoChecksums);
    let mut cursor = Cursor::new(&*file, file.size()?, CHUNK);
    let mut synced = segment.end;
    let mut reopened = false;
    loop {
        let sealed = seal.is_some_and(|s| s.end == segment.end);
        let next = next_record(segment, &mut cursor, trusted)?;
        if let Some(s) = seal.filter(|_| sealed) {
            if s.chain != segment.chain || s.last != segment.last {
                let stop = Stop::Broken("the next segment continues another history");
                return Ok(Scanned { stop, reopened, synced });
            }
            if !matches!(next, Ok(h) if h.kind == Kind::Truncate) {
                return Ok(Scanned { stop: Stop::Sealed, reopened, synced });
            }
            seal = None;
            reopened = true;
        }
        let head = match next {
            Ok(head) => head,
            Err(stop) => return Ok(Scanned { stop, reopened, synced }),
        };
        match head.kind {
            Kind::Entry => segment.apply(Update::Entry { index: head.index, at: segment.end }),
            Kind::Truncate => segment.apply(Update::Truncate { last: head.index }),
            Kind::Open => {}
        }
        segment.advance(segment.end + head.span(), head.crc, (head.index, head.term));
        synced = head.synced;
        debug_assert!(synced < segment.end);
    }
}

/// The head of the record at the segment's end, if the record is intact and continues what is before it.
fn next_record<F: DiskFile>(
    segment: &Segment<F>,
    cursor: &mut Cursor<'_, F>,
    trusted: bool,
) -> io::Result<Result<RecordHeader, Stop>> {
    let at = segment.end;
    let Some(head) = cursor.peek(at, RECORD_HEADER as u64)? else { return Ok(Err(Stop::Clean)) };
    if head.iter().all(|&b| b == 0) {
        return Ok(Err(Stop::Clean));
    }
    let Some(head) = RecordHeader::decode(head) else { return Ok(Err(Stop::Broken("not a record"))) };
    let Some(record) = cursor.peek(at, (RECORD_HEADER + head.len) as u64)? else {
        return Ok(Err(Stop::Broken("a record longer than the file")));
    };
    if !trusted && !head.verify(record, segment.salt) {
        return Ok(Err(Stop::Broken("wrong checksum")));
    }
    if !trusted && head.chain != segment.chain {
        return Ok(Err(Stop::Broken("a record of another chain")));
    }
    let (index, term) = segment.last;
    let fits = match head.kind {
        Kind::Entry => head.index == index + 1 && head.term >= term,
        Kind::Open => head.index == index && head.term == term,
        Kind::Truncate => head.index >= segment.header.prev_index && head.index <= index && head.term <= term,
    };
    if !fits || head.synced > at {
        return Ok(Err(Stop::Broken("a record out of order")));
    }
    Ok(Ok(head))
}

/// Looks behind the end of the last segment for proof that bytes there had been synced. The proof is
/// an intact record with a sync position beyond `end`. Returns its offset.
///
/// A torn batch leaves no such record: all of it was written out under the same sync position.
pub(crate) fn proof_of_loss<F: DiskFile>(segment: &Segment<F>) -> io::Result<Option<u64>> {
    Ok(find_record(segment, segment.end)?.map(|(at, _)| at))
}

/// Where the log ended before the damage at the end of its last segment, as (index, term) and offset, if the bytes behind the
/// damage prove it. `kept`: the log keeps the entries up to this index.
///
/// Behind each hole follow records that were written after it had been durable, each of them chained to the one before.
/// The last one is the log's end: only zeros follow, as far as an append writes them, and no intact record of this segment. A torn
/// write, or one in another place, leaves something there.
///
/// The kept records are a prefix of the log that ended there. On both sides of each hole the term is the same, so one leader
/// made both records, and by log matching the later log has the earlier record. No record behind the holes truncates what is
/// kept.
pub(crate) fn former_end<F: DiskFile>(
    segment: &Segment<F>,
    kept: u64,
) -> io::Result<Option<((u64, u64), u64)>> {
    let size = segment.file.size()?;
    let mut cursor = Cursor::new(&*segment.file, size, CHUNK);
    let mut at = segment.end_only();
    while let Some((here, head)) = find_record(&at, at.end)? {
        let is_entry = head.kind == Kind::Entry;
        let before = (head.index.saturating_sub(u64::from(is_entry)), head.term);
        if !may_continue(at.last, before) {
            return Ok(None);
        }
        (at.end, at.chain, at.last) = (here, head.chain, before);
        while let Ok(head) = next_record(&at, &mut cursor, false)? {
            if head.index < kept {
                return Ok(None);
            }
            (at.end, at.chain, at.last) = (at.end + head.span(), head.crc, (head.index, head.term));
        }
    }
    let zeros = at.end.next_multiple_of(APPEND_BLOCK).min(size) - at.end;
    let ends = next_record(&at, &mut cursor, false)? == Err(Stop::Clean)
        && cursor.peek(at.end, zeros)?.is_some_and(|bytes| bytes.iter().all(|&b| b == 0))
        && find_record(&at, 0)?.is_none();
    Ok(ends.then_some((at.last, at.end)))
}

/// Whether a log that ended at `before`, an (index, term), has kept that entry when it ended at `after`.
pub(crate) fn may_continue(before: (u64, u64), after: (u64, u64)) -> bool {
    after.1 == before.1 && after.0 >= before.0
}

/// The first intact record behind the segment's end with a sync position beyond `above`, and its offset.
fn find_record<F: DiskFile>(segment: &Segment<F>, above: u64) -> io::Result<Option<(u64, RecordHeader)>> {
    let file = &*segment.file;
    let size = file.size()?;
    let end = segment.end;
    let mut outer = Cursor::new(file, size, CHUNK);
    let mut inner = Cursor::new(file, size, 0);
    // Payloads may look like headers; the bound limits the cost of that.
    let mut budget = size.saturating_mul(8);
    let mut at = end;
    while at < size {
        let step = CHUNK.min(size - at);
        let Some(chunk) = outer.peek(at, step)? else { break };
        for offset in (0..chunk.len()).step_by(ALIGN as usize) {
            let Some(head) = chunk.get(offset..offset + RECORD_HEADER) else { break };
            if head[7] >> 4 == 0 {
                continue;
            }
            let Some(head) = RecordHeader::decode(head) else { continue };
            let here = at + offset as u64;
            let span = (RECORD_HEADER + head.len) as u64;
            let plausible = head.synced > above && head.synced <= here && here + span <= size;
            if !plausible || span > budget {
                continue;
            }
            budget -= span;
            debug_assert!(here >= end, "the search begins at the end");
            let Some(record) = inner.peek(here, span)? else { continue };
            if head.verify(record, segment.salt) {
                return Ok(Some((here, head)));
            }
        }
        // Headers may lie across the border of two chunks.
        at += if step == CHUNK { CHUNK - RECORD_HEADER as u64 } else { step };
    }
    Ok(None)
}
