//! Reading records by index, from any thread, while the log is being written.
//!
//! The index in memory is sparse: for each segment one (index, offset) pair per 32 KiB. A reader copies
//! its part of the index under a short lock, then reads the file without the lock. Files are physically
//! append-only, so a concurrent writer cannot change the bytes that it reads.

use std::io;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;

use crate::format::{ALIGN, Kind, RECORD_HEADER, RecordHeader, SegmentHeader, segment_name};
use crate::{Disk, DiskFile, Planted, ReadError, Record};

const SPARSE_BYTES: u64 = 32 << 10;
const CHUNK_MIN: u64 = 64 << 10;
const CHUNK_MAX: u64 = 1 << 20;

/// A segment, for status and for deciding what to trim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// The number in the file's name.
    pub number: u64,
    /// Index of its first record (or of the one to come).
    pub first_index: u64,
    /// Index of its last live record; `first_index - 1` when there is none.
    pub last_index: u64,
    /// Bytes used, without what is preallocated.
    pub bytes: u64,
    /// When it was begun, in microseconds since 1970.
    pub created_us: u64,
    /// Term of the record before the first.
    pub prev_term: u64,
    /// The snapshot of the replicated state before its first record, as given to `roll` or `reset`.
    pub base: Bytes,
}

/// Live records that follow one another in a file: `first..=last`, with marks between them at most.
#[derive(Clone, Debug)]
struct Run {
    first: u64,
    last: u64,
    /// (index, offset), ascending; the first pair is that of `first`.
    sparse: Vec<(u64, u64)>,
}

/// The effect of a record on a segment's live part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Update {
    Entry { index: u64, at: u64 },
    Truncate { last: u64 },
}

/// An open segment.
pub(crate) struct Segment<F> {
    pub(crate) header: SegmentHeader,
    /// CRC of the header: in every record's checksum.
    pub(crate) salt: u32,
    pub(crate) file: Arc<F>,
    /// Where the records end (of those written out), and the chain and the live log's last (index, term)
    /// there.
    pub(crate) end: u64,
    pub(crate) chain: u32,
    pub(crate) last: (u64, u64),
    /// Consecutive: each begins where the one before ends.
    runs: Vec<Run>,
}

impl<F> Segment<F> {
    pub(crate) fn new(header: SegmentHeader, salt: u32, file: Arc<F>) -> Segment<F> {
        let (end, last) = (header.body_start(), (header.prev_index, header.prev_term));
        Segment { header, salt, file, end, chain: salt, last, runs: Vec::new() }
    }

    /// The same segment without its index: to look behind its end, or to walk on from there.
    pub(crate) fn end_only(&self) -> Segment<F> {
        let (header, file) = (self.header.clone(), Arc::clone(&self.file));
        let Segment { salt, end, chain, last, .. } = *self;
        Segment { header, salt, file, end, chain, last, runs: Vec::new() }
    }

    pub(crate) fn number(&self) -> u64 {
        self.header.number
    }

    pub(crate) fn name(&self) -> String {
        segment_name(self.header.number)
    }

    pub(crate) fn apply(&mut self, update: Update) {
        match update {
            Update::Truncate { last } => {
                assert!(last >= self.header.prev_index, "a truncation to {last}, before the segment");
                while let Some(run) = self.runs.last_mut() {
                    if run.first > last {
                        self.runs.pop();
                        continue;
                    }
                    run.last = run.last.min(last);
                    run.sparse.retain(|&(i, _)| i <= last);
                    // The next entry is not behind this run's last one in the file.
                    self.runs.push(Run { first: last + 1, last, sparse: Vec::new() });
                    break;
                }
            }
            Update::Entry { index, at } => match self.runs.last_mut() {
                Some(run) if run.sparse.is_empty() => {
                    assert_eq!(run.first, index, "entries are dense");
                    run.last = index;
                    run.sparse.push((index, at));
                }
                Some(run) => {
                    assert_eq!(run.last + 1, index, "entries are dense");
                    run.last = index;
                    if run.sparse.last().is_none_or(|&(_, o)| at - o >= SPARSE_BYTES) {
                        run.sparse.push((index, at));
                    }
                }
                None => {
                    assert_eq!(self.header.prev_index + 1, index, "entries are dense");
                    self.runs.push(Run { first: index, last: index, sparse: vec![(index, at)] });
                }
            },
        }
    }

    /// Moves the end behind the records whose updates have been applied.
    pub(crate) fn advance(&mut self, end: u64, chain: u32, last: (u64, u64)) {
        assert!(end > self.end && end.is_multiple_of(ALIGN), "the end moves from {} to {end}", self.end);
        // The index and the end name the same last record.
        let indexed = self.runs.last().map_or(self.header.prev_index, |run| run.last);
        assert_eq!(indexed, last.0, "the index ends elsewhere than the segment");
        (self.end, self.chain, self.last) = (end, chain, last);
    }

    /// An offset at or before the record, from which a walk finds it, and the last index of its run.
    fn locate(&self, index: u64) -> Option<(u64, u64)> {
        let run = self.runs.iter().rev().find(|r| r.first <= index && index <= r.last)?;
        let i = run.sparse.partition_point(|&(i, _)| i <= index);
        let (_, at) = run.sparse[..i].last()?;
        debug_assert!(*at >= self.header.body_start() && *at < self.end, "record {index} at byte {at}");
        debug_assert!(run.last <= self.last.0);
        Some((*at, run.last))
    }

    pub(crate) fn info(&self) -> SegmentInfo {
        SegmentInfo {
            number: self.header.number,
            first_index: self.header.prev_index + 1,
            last_index: self.last.0,
            bytes: self.end,
            created_us: self.header.created_us,
            prev_term: self.header.prev_term,
            base: self.header.base.clone(),
        }
    }
}

/// All segments, oldest first. Invariant: each begins behind the last record of the one before.
pub(crate) struct Index<F> {
    pub(crate) segments: Vec<Segment<F>>,
}

impl<F> Index<F> {
    /// Adds the segment that continues the last one.
    pub(crate) fn push(&mut self, segment: Segment<F>) {
        if let Some(before) = self.segments.last() {
            let header = &segment.header;
            assert!(header.number > before.number(), "{} behind {}", header.number, before.number());
            assert_eq!(header.prev_number, before.number());
            assert_eq!((header.prev_end, header.prev_chain), (before.end, before.chain));
            assert_eq!((header.prev_index, header.prev_term), before.last);
        }
        self.segments.push(segment);
    }

    /// (index, term) before the first record; (0, 0) for an empty log.
    pub(crate) fn start(&self) -> (u64, u64) {
        self.segments.first().map_or((0, 0), |s| (s.header.prev_index, s.header.prev_term))
    }

    pub(crate) fn last(&self) -> (u64, u64) {
        self.segments.last().map_or((0, 0), |s| s.last)
    }

    /// The segment that holds the index, if it is in the log.
    pub(crate) fn holder(&self, index: u64) -> Option<&Segment<F>> {
        let i = self.segments.partition_point(|s| s.header.prev_index < index);
        self.segments[..i].last().filter(|s| index <= s.last.0)
    }
}

/// The index, shared between the writer and the readers. Held for moments only, never across I/O.
pub(crate) struct Shared<F> {
    index: RwLock<Index<F>>,
}

impl<F> Shared<F> {
    pub(crate) fn new(index: Index<F>) -> Shared<F> {
        Shared { index: RwLock::new(index) }
    }

    pub(crate) fn get(&self) -> RwLockReadGuard<'_, Index<F>> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get_mut(&self) -> RwLockWriteGuard<'_, Index<F>> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads records; cloneable, and usable from any thread while the log goes on. Sees what has been written
/// out: everything synced, possibly more, never less.
pub struct LogReader<D: Disk> {
    pub(crate) shared: Arc<Shared<D::File>>,
}

impl<D: Disk> Clone for LogReader<D> {
    fn clone(&self) -> Self {
        LogReader { shared: Arc::clone(&self.shared) }
    }
}

impl<D: Disk> LogReader<D> {
    /// Records from index `from` on, until their bodies exceed `max_bytes` (but at least one), or the log
    /// ends; empty if `from` lies behind the end. Bodies may share one buffer of up to a megabyte.
    pub fn read(&self, from: u64, max_bytes: usize) -> Result<Vec<Record>, ReadError> {
        let mut out: Vec<Record> = Vec::new();
        let mut next = from;
        let mut budget = max_bytes;
        while let Some(mut part) = self.find(next)? {
            let file = Arc::clone(&part.file);
            let chunk = (budget as u64).saturating_add(SPARSE_BYTES).clamp(CHUNK_MIN, CHUNK_MAX);
            let mut cursor = Cursor::new(&*file, part.end, chunk);
            if !part.read(&mut cursor, &mut next, &mut budget, &mut out)? {
                break;
            }
        }
        debug_assert!(
            out.iter().zip(from..).all(|(record, index)| record.index == index),
            "records are dense"
        );
        Ok(out)
    }

    /// Shows the records from index `from` to `to`, or to the log's end. Bodies share the memory into which the next ones are
    /// read, as long as the visitor does not keep them.
    ///
    /// # Errors
    /// A record cannot be read, or the visitor's error.
    pub(crate) fn visit<E: From<ReadError>>(
        &self,
        from: u64,
        to: u64,
        mut visitor: impl FnMut(Record) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut next, mut one) = (from, Vec::with_capacity(1));
        while next <= to
            && let Some(mut part) = self.find(next)?
        {
            part.last = part.last.min(to);
            let file = Arc::clone(&part.file);
            let mut cursor = Cursor::new(&*file, part.end, CHUNK_MAX);
            while next <= part.last {
                // Without a budget it is one record.
                part.read(&mut cursor, &mut next, &mut 0, &mut one)?;
                one.drain(..).try_for_each(&mut visitor)?;
            }
        }
        Ok(())
    }

    /// The index of the oldest record (or of the first one to come).
    pub fn first_index(&self) -> u64 {
        self.shared.get().start().0 + 1
    }

    /// The index of the newest record written out; `first_index() - 1` when there is none.
    pub fn last_index(&self) -> u64 {
        self.shared.get().last().0
    }

    /// All segments, oldest first.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.shared.get().segments.iter().map(Segment::info).collect()
    }

    /// Bytes used by all segments, without what is preallocated.
    pub fn bytes(&self) -> u64 {
        self.shared.get().segments.iter().map(|s| s.end).sum()
    }

    fn find(&self, index: u64) -> Result<Option<Part<D::File>>, ReadError> {
        let shared = self.shared.get();
        let first = shared.start().0 + 1;
        if index < first {
            return Err(ReadError::Trimmed { first });
        }
        let Some(segment) = shared.holder(index) else { return Ok(None) };
        Ok(segment.locate(index).map(|(at, last)| Part {
            file: Arc::clone(&segment.file),
            number: segment.number(),
            salt: segment.salt,
            at,
            end: segment.end,
            last,
        }))
    }
}

/// A stretch of one file, to be read without the lock.
struct Part<F> {
    file: Arc<F>,
    number: u64,
    salt: u32,
    at: u64,
    end: u64,
    last: u64,
}

impl<F: DiskFile> Part<F> {
    /// Reads on from `next`; false when there is no more budget. `cursor` is on the part's file.
    fn read(
        &mut self,
        cursor: &mut Cursor<'_, F>,
        next: &mut u64,
        budget: &mut usize,
        out: &mut Vec<Record>,
    ) -> Result<bool, ReadError> {
        let trusted = self.file.planted() == Some(Planted::NoChecksums);
        while *next <= self.last {
            if *budget == 0 && !out.is_empty() {
                return Ok(false);
            }
            let (number, at) = (self.number, self.at);
            let bad = || ReadError::Corrupt { file: segment_name(number), offset: at, index: *next };
            let io = |e: io::Error| ReadError::Io { file: segment_name(number), error: e.to_string() };
            let head = cursor.peek(at, RECORD_HEADER as u64).map_err(io)?.ok_or_else(bad)?;
            let head = RecordHeader::decode(head).ok_or_else(bad)?;
            if head.kind == Kind::Entry && head.index == *next {
                let len = RECORD_HEADER + head.len;
                let record = cursor.bytes(at, len as u64).map_err(io)?.ok_or_else(bad)?;
                if !trusted && !head.verify(&record, self.salt) {
                    return Err(bad());
                }
                if !out.is_empty() && head.len > *budget {
                    return Ok(false);
                }
                out.push(Record { index: *next, term: head.term, body: record.slice(RECORD_HEADER..) });
                *budget = budget.saturating_sub(head.len);
                *next += 1;
            } else if head.kind == Kind::Entry && head.index > *next {
                return Err(bad());
            }
            self.at += head.span();
        }
        Ok(true)
    }
}

/// Reads a file through a window, handing out slices that share its memory.
pub(crate) struct Cursor<'a, F> {
    file: &'a F,
    /// Nothing behind it is read.
    limit: u64,
    chunk: u64,
    at: u64,
    window: Bytes,
}

impl<'a, F: DiskFile> Cursor<'a, F> {
    pub(crate) fn new(file: &'a F, limit: u64, chunk: u64) -> Cursor<'a, F> {
        Cursor { file, limit, chunk, at: 0, window: Bytes::new() }
    }

    /// `len` bytes at `offset`, in shared memory; `None` where the file or the limit ends before.
    pub(crate) fn bytes(&mut self, offset: u64, len: u64) -> io::Result<Option<Bytes>> {
        Ok(self.find(offset, len)?.map(|found| self.window.slice(found)))
    }

    /// The same bytes, to be looked at.
    pub(crate) fn peek(&mut self, offset: u64, len: u64) -> io::Result<Option<&[u8]>> {
        Ok(self.find(offset, len)?.map(|found| &self.window[found]))
    }

    /// The place of these bytes in the window.
    fn find(&mut self, offset: u64, len: u64) -> io::Result<Option<Range<usize>>> {
        match offset.checked_add(len) {
            Some(end) if end <= self.limit => {}
            _ => return Ok(None),
        }
        let held = self.at..self.at + self.window.len() as u64;
        if offset < held.start || offset + len > held.end {
            let want = len.max(self.chunk).min(self.limit - offset) as usize;
            self.fill(offset, want)?;
            self.at = offset;
            if (self.window.len() as u64) < len {
                return Ok(None);
            }
        }
        debug_assert!(self.at <= offset && offset + len <= self.limit);
        let start = (offset - self.at) as usize;
        Ok(Some(start..start + len as usize))
    }

    /// Reads up to `want` bytes at `offset` into the window: into its present memory, if nobody shares that. New memory costs
    /// the kernel more time than the read itself.
    fn fill(&mut self, offset: u64, want: usize) -> io::Result<()> {
        let former = std::mem::take(&mut self.window);
        self.window = match former.try_into_mut() {
            Ok(mut buffer) if buffer.capacity() >= want => {
                buffer.resize(want, 0);
                let n = self.file.read_at(&mut buffer, offset)?;
                buffer.truncate(n);
                buffer.freeze()
            }
            _ => self.file.read_bytes(offset, want)?,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Disk, RealDisk};

    #[test]
    fn window_reads_into_its_own_memory_unless_it_is_shared() {
        let dir = std::env::temp_dir().join(format!("lockstep-log-window-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let disk = RealDisk::with(&dir, false).unwrap();
        let file = disk.create("f").unwrap();
        let content: Vec<u8> = (0..10_000u32).map(|at| (at / 100) as u8).collect();
        file.write_at(&content, 0).unwrap();
        let mut cursor = Cursor::new(&file, content.len() as u64, 4096);
        let place = |cursor: &mut Cursor<'_, _>, at: usize| {
            let seen = cursor.peek(at as u64, 100).unwrap().unwrap();
            assert_eq!(seen, &content[at..at + 100]);
            seen.as_ptr()
        };
        let first = place(&mut cursor, 0);
        assert_eq!(place(&mut cursor, 5000), first);
        // A short read at the end of the file.
        assert_eq!(place(&mut cursor, 9900), first);
        assert_eq!(place(&mut cursor, 100), first);
        let kept = cursor.bytes(100, 200).unwrap().unwrap();
        assert_ne!(place(&mut cursor, 5000), first);
        assert_eq!(kept, content[100..300]);
        assert_eq!(cursor.peek(9950, 100).unwrap(), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
