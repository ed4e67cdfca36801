//! The writer.

use std::sync::Arc;

use bytes::Bytes;

use crate::error::{OpenError, WriteError};
use crate::format::{
    ALIGN, ID_FILE, Kind, Link, MAX_BASE_BYTES, MAX_RECORD_BYTES, SEGMENT_TMP, SPARE_FILE, SegmentHeader,
    encode_record, segment_name, segment_number,
};
use crate::id::IdFile;
use crate::open::{Access, Damage, Recovered, Replay, Shortened, Trimmed, load, replay, set_aside};
use crate::reader::{LogReader, Segment, SegmentInfo, Shared, Update};
use crate::scan::proof_of_loss;
use crate::{Disk, DiskFile, Identity, Options, ReadError, Record, Reset, Vote, WriteOp};

/// Buffered bytes are handed to the kernel early from this size on, so that the sync finds them on
/// their way.
const WRITE_OUT_BYTES: usize = 4 << 20;
/// A buffer that has grown beyond it is given back.
const KEEP_BUFFER_BYTES: usize = 8 << 20;
/// Syncs between two writes of `lockstep.id.log` that only bring hints up to date.
const HINT_SYNCS: u32 = 256;

/// The open log of one member. Owned by one thread; others read through [`Log::reader`].
pub struct Log<D: Disk> {
    disk: D,
    options: Options,
    id: IdFile<D::File>,
    shared: Arc<Shared<D::File>>,
    tail: Tail,
    /// The highest segment number that was ever seen or used.
    highest: u64,
    /// The vote to store with the next sync.
    vote: Option<Vote>,
    syncs_since_hint: u32,
    /// This open has shortened the log: the next segment is to begin, see [`Log::go_on_shortened`].
    is_shortened: bool,
    /// The failure that closed the log.
    poisoned: Option<WriteError>,
    /// Last, so that it goes when all else has gone.
    _lock: D::Lock,
}

/// Where the next record goes. Meaningless while there is no segment.
#[derive(Default)]
struct Tail {
    /// Records not yet written out; they belong at `written`.
    buf: Vec<u8>,
    /// Their effect on the index.
    updates: Vec<Update>,
    /// Offset up to which the active segment's file has been written.
    written: u64,
    /// Offset up to which it is durable. Invariant: `synced <= written`.
    synced: u64,
    /// Size of the file.
    allocated: u64,
    /// CRC of the last record, buffered ones included.
    chain: u32,
    salt: u32,
    /// Index and term of the last record, buffered ones included.
    last: (u64, u64),
    /// Index before the active segment's first record.
    prev_index: u64,
    /// This run has not yet marked its presence in the active segment. Without the mark, a torn batch of
    /// an earlier run that lies behind the end could continue a chain that was written anew.
    open_due: bool,
}

impl Tail {
    fn end(&self) -> u64 {
        self.written + self.buf.len() as u64
    }

    fn check(&self) {
        assert!(self.synced <= self.written, "{} synced, {} written", self.synced, self.written);
        assert!(self.prev_index <= self.last.0, "ends at {}, begins at {}", self.last.0, self.prev_index);
        assert!(self.end().is_multiple_of(ALIGN), "the end {} is within a record", self.end());
        debug_assert!(self.updates.is_empty() || !self.buf.is_empty(), "an update without its record");
    }
}

/// The vote and commit hint of a log that is about to be opened; `None` without a log. A replay needs the hint before the
/// first record.
///
/// # Errors
/// As [`Log::open`].
pub fn peek_vote<D: Disk>(disk: &D) -> Result<Option<Vote>, OpenError> {
    let dir = disk.describe();
    let names = disk.list().map_err(|e| OpenError::io(&dir, "list the log directory", e))?;
    if !names.iter().any(|n| n == ID_FILE) {
        return Ok(None);
    }
    Ok(Some(IdFile::open(disk, false)?.slot().vote()))
}

/// The owner of a log that is about to be opened; `None` without a log.
///
/// # Errors
/// As [`Log::open`].
pub fn peek_identity<D: Disk>(disk: &D) -> Result<Option<Identity>, OpenError> {
    let dir = disk.describe();
    let names = disk.list().map_err(|e| OpenError::io(&dir, "list the log directory", e))?;
    if !names.iter().any(|n| n == ID_FILE) {
        return Ok(None);
    }
    Ok(Some(IdFile::open(disk, false)?.slot().identity()))
}

impl<D: Disk> Log<D> {
    /// Opens the log in the disk's directory, or makes a new one in an empty directory. Everything is
    /// read and checked; `visitor` is shown the log from its oldest base on.
    ///
    /// If only committed entries are damaged, and the visitor agrees ([`Replay::Trim`]), the log begins above them from now
    /// on: the segments below are quarantined, and [`Recovered::trimmed`] names them.
    ///
    /// With [`Options::may_shorten`] a log that is damaged near its end may end before the damage. Then
    /// [`Recovered::shortened`] is set, and [`Log::go_on_shortened`] has to follow.
    pub fn open(
        disk: D,
        options: Options,
        visitor: &mut dyn FnMut(Replay) -> Result<(), String>,
    ) -> Result<(Log<D>, Recovered), OpenError> {
        let dir = disk.describe();
        let io = |doing: &'static str| {
            let dir = dir.clone();
            move |e| OpenError::io(&dir, doing, e)
        };
        let lock = disk
            .lock()
            .map_err(io("lock the log directory"))?
            .ok_or_else(|| OpenError::Locked { dir: dir.clone() })?;
        let names = disk.list().map_err(io("list the log directory"))?;
        let created = !names.iter().any(|n| n == ID_FILE);
        if created {
            if names.iter().any(|n| segment_number(n).is_some()) {
                return Err(OpenError::IdentityMissing { dir });
            }
            IdFile::create(&disk, options.new_member_id).map_err(io("create lockstep.id.log"))?;
        }
        let id = IdFile::open(&disk, true)?;
        let access = if options.may_shorten { Access::Shorten } else { Access::Own };
        let image = load(&disk, id.slot(), access)?;

        let highest = image.highest.max(id.slot().durable_segment());
        let (cut, leftovers, synced, damage) = (image.cut, image.leftovers, image.synced, image.damage);
        let lost_end = image.lost_end;
        let mut log = Log {
            disk,
            options,
            id,
            shared: Arc::new(Shared::new(image.index)),
            tail: Tail::default(),
            highest,
            vote: None,
            syncs_since_hint: 0,
            is_shortened: lost_end.is_some(),
            poisoned: None,
            _lock: lock,
        };
        log.seize_tail().map_err(io("open the last segment"))?;
        // Bytes that a killed process had written and not synced read back like all others. This member is about to
        // acknowledge them, so they must be on disk. If a sync failed in that process, the kernel takes the pages for clean.
        // Writing them again makes them dirty.
        if let Some(file) = log.active() {
            rewrite(&*file, synced, log.tail.written).map_err(io("rewrite the log's tail"))?;
        }
        log.disk.sync_dir().map_err(io("sync the log directory"))?;
        let is_refused = match replay(&log.reader(), &dir, visitor) {
            // The rest of the damaged log cannot be used. The damage is the reason.
            Err(OpenError::Refused(_)) if damage.is_some() || lost_end.is_some() => true,
            replayed => replayed.map(|()| false)?,
        };
        let lost_end = match lost_end {
            Some(lost) if is_refused || visitor(Replay::Shorten).is_err() => return Err(lost.error),
            lost_end => lost_end,
        };
        let trimmed = match damage {
            Some(Damage { error, .. }) if is_refused || visitor(Replay::Trim).is_err() => return Err(error),
            // Before the floor: after a crash between the two, the segments are missing, which is the same damage. The
            // other way round, the next open would remove them as leftovers.
            Some(Damage { texts, files, .. }) => {
                let aside = match &files[..] {
                    [] => None,
                    files => Some(set_aside(&log.disk, files).map_err(io("set damaged segments aside"))?),
                };
                Some(Trimmed { damage: texts, aside, files })
            }
            None => None,
        };

        let first = log.shared.get().segments.first().map(Segment::number);
        log.id.slot_mut().opened(first);
        log.note_durable();
        if let Some(lost) = &lost_end {
            log.id.slot_mut().lost_end(lost.former_end, log.tail.last.0);
        }
        log.id.slot_mut().reached(log.tail.last);
        // The former end is durable before anything behind the damage goes. From here on each open gives this log.
        log.id.commit().map_err(io("write lockstep.id.log"))?;
        let shortened = match lost_end {
            Some(lost) => {
                let aside = match &lost.files[..] {
                    [] => None,
                    files => Some(set_aside(&log.disk, files).map_err(io("set damaged segments aside"))?),
                };
                Some(Shortened { damage: lost.text(), aside })
            }
            None => None,
        };
        let mut leftovers = leftovers;
        leftovers.retain(|n| n != SPARE_FILE || !log.options.recycle);
        leftovers.sort_unstable();
        // In the order of `remove_segments`, for its reason.
        for name in leftovers.iter().rev() {
            let remove = || {
                log.disk.remove(name)?;
                log.disk.sync_dir()
            };
            remove().map_err(io("remove leftovers of the log"))?;
        }
        log.tail.check();
        assert!(log.vote.is_none() && log.shared.get().start().0 <= log.tail.last.0);
        let recovered = Recovered {
            identity: log.identity(),
            vote: log.vote(),
            created,
            start: log.shared.get().start(),
            last: log.tail.last,
            cut,
            trimmed,
            shortened,
            former_end: log.id.slot().former_end(),
        };
        Ok((log, recovered))
    }

    /// Begins a new segment with this snapshot of the state at the end of a log that was shortened. It seals the damaged
    /// segment before the damage, and nothing is written behind that.
    ///
    /// # Errors
    /// [`OpenError`]. The next open continues.
    pub fn go_on_shortened(&mut self, base: Bytes) -> Result<(), OpenError> {
        assert!(self.is_shortened, "the log has its end");
        let (dir, doing) = (self.disk.describe(), "begin a segment before the damage");
        self.roll(base).map_err(|error| match error {
            WriteError::Short { of, .. } => OpenError::short(dir, doing.to_owned(), of),
            error => OpenError::io(&dir, doing, std::io::Error::other(error.to_string())),
        })?;
        self.is_shortened = false;
        Ok(())
    }

    /// This member's identity.
    pub fn identity(&self) -> Identity {
        self.id.slot().identity()
    }

    /// The vote as last written, synced or not.
    pub fn vote(&self) -> Vote {
        self.vote.unwrap_or(self.id.slot().vote())
    }

    /// Takes in a change. Nothing of it is durable, and readers need not see it, before the next
    /// [`Log::sync`]. Where the change is invalid nothing happens; where the disk fails, the log is
    /// closed: every later call fails too.
    pub fn write<R>(&mut self, op: WriteOp<R>) -> Result<(), WriteError>
    where
        R: IntoIterator<Item = Record>,
        R::IntoIter: Clone,
    {
        self.check_open()?;
        assert!(!self.is_shortened, "a shortened log goes on in a new segment");
        let WriteOp { reset, truncate_from, roll, records, vote } = op;
        let truncate = match (&reset, truncate_from) {
            (None, Some(from)) if from <= self.tail.last.0 => Some(self.truncation(from)?),
            // After a reset, or behind the end, there is nothing to drop.
            _ => None,
        };
        let last = match (&reset, truncate) {
            (Some(r), _) => (r.index, r.term),
            (None, Some(last)) => last,
            (None, None) => self.tail.last,
        };
        let records = records.into_iter();
        let last = check(last, reset.as_ref(), roll.as_ref(), records.clone())?;
        if let Some(vote) = &vote {
            let before = self.vote();
            assert!(vote.may_follow(&before), "the vote {vote:?} would replace {before:?}");
        }

        let result = self.apply(reset, truncate, roll, records);
        self.note(result)?;
        assert_eq!(self.tail.last, last, "the log ends where the change does");
        self.tail.check();
        if let Some(vote) = vote {
            self.vote = Some(vote);
        }
        Ok(())
    }

    /// Makes everything written so far durable. A failure is final.
    pub fn sync(&mut self) -> Result<(), WriteError> {
        self.check_open()?;
        let result = self.sync_all();
        self.note(result)?;
        assert!(self.vote.is_none() && self.tail.buf.is_empty() && self.tail.synced == self.tail.end());
        Ok(())
    }

    /// Makes durable that entries up to `index`, all of which are, are committed; a hint that is not newer changes
    /// nothing. Call it rarely: it costs a sync of its own. After it, recovery recognises damage to earlier synced records
    /// as damage. A failure is final.
    pub fn note_committed(&mut self, index: u64) -> Result<(), WriteError> {
        self.check_open()?;
        if index <= self.vote().commit_hint {
            return Ok(());
        }
        debug_assert!(
            index <= self.tail.last.0,
            "{index} is committed, the log ends at {}",
            self.tail.last.0
        );
        // A vote that is not durable yet brings its own.
        if let Some(vote) = &mut self.vote {
            vote.commit_hint = index;
            return Ok(());
        }
        self.id.slot_mut().committed(index);
        let result = self.commit_id();
        self.note(result)
    }

    /// Records from index `from` on; see [`LogReader::read`]. Includes synced records, and those written
    /// out early.
    pub fn read(&self, from: u64, max_bytes: usize) -> Result<Vec<Record>, ReadError> {
        self.reader().read(from, max_bytes)
    }

    /// A reader for other threads.
    pub fn reader(&self) -> LogReader<D> {
        LogReader { shared: Arc::clone(&self.shared) }
    }

    /// The index of the oldest record (or of the first one to come).
    pub fn first_index(&self) -> u64 {
        self.shared.get().start().0 + 1
    }

    /// The index of the newest record written, synced or not; `first_index() - 1` when there is none.
    pub fn last_index(&self) -> u64 {
        self.tail.last.0
    }

    /// The term of the newest record written (or of the one before the log).
    pub fn last_term(&self) -> u64 {
        self.tail.last.1
    }

    /// All segments, oldest first.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.reader().segments()
    }

    /// Where the log ends, as far as it was written out: the last segment's number, and the bytes used in it.
    pub fn end(&self) -> Option<(u64, u64)> {
        self.shared.get().segments.last().map(|segment| (segment.number(), segment.end))
    }

    /// Bytes used by all segments, without what is preallocated.
    pub fn bytes(&self) -> u64 {
        self.reader().bytes() + self.tail.buf.len() as u64
    }

    /// Whether the active segment would outgrow its size with records of `more` bytes in all: time to
    /// pass a base blob as `roll`. A segment is never rolled otherwise; it grows.
    pub fn wants_roll(&self, more: usize) -> bool {
        let empty = self.tail.last.0 == self.tail.prev_index;
        !empty && self.tail.end() + more as u64 > self.options.segment_bytes
    }

    /// Removes whole segments whose records all lie below `index`; never the last segment. Returns how
    /// many. Removed segments cannot come back after a crash.
    pub fn trim_to(&mut self, index: u64) -> Result<usize, WriteError> {
        self.check_open()?;
        let keep_from = {
            let shared = self.shared.get();
            let n = shared.segments.partition_point(|s| s.header.prev_index < index);
            let keep = n.saturating_sub(1);
            shared.segments.get(keep).filter(|_| keep > 0).map(|s| (keep, s.number()))
        };
        let Some((count, floor)) = keep_from else { return Ok(0) };
        let result = self.drop_below(count, floor);
        self.note(result)?;
        assert!(self.first_index() <= index, "record {index} is gone");
        Ok(count)
    }

    /// Brings the hints in `lockstep.id.log` up to date and closes the log. Dropping it instead is safe too;
    /// but after this, damage to the log's tail at rest will be recognised as such.
    pub fn close(mut self) -> Result<(), WriteError> {
        self.sync()?;
        let result = self.commit_id();
        self.note(result)
    }

    pub(crate) fn disk(&self) -> &D {
        &self.disk
    }

    pub(crate) fn poison(&mut self, error: &WriteError) {
        self.poisoned.get_or_insert_with(|| error.clone());
    }

    pub(crate) fn check_open(&self) -> Result<(), WriteError> {
        match &self.poisoned {
            Some(cause) => Err(WriteError::Poisoned(Box::new(cause.clone()))),
            None => Ok(()),
        }
    }

    fn note(&mut self, result: Result<(), WriteError>) -> Result<(), WriteError> {
        if let Err(e) = &result {
            self.poison(e);
        }
        result
    }

    /// (index, term) of the last record that stays if everything from `from` on goes.
    fn truncation(&mut self, from: u64) -> Result<(u64, u64), WriteError> {
        let start = self.shared.get().start();
        if from <= start.0 {
            let why = format!("cannot truncate from {from}: the log begins at {}", start.0 + 1);
            return Err(WriteError::Invalid(why));
        }
        if from == start.0 + 1 {
            return Ok(start);
        }
        let result = self.write_out();
        self.note(result)?;
        let kept = self.read(from - 1, 0).map_err(|e| WriteError::Io {
            doing: format!("read record {}", from - 1),
            error: e.to_string(),
        })?;
        match kept.first() {
            Some(r) => {
                assert_eq!(r.index, from - 1, "the reader gave another record");
                debug_assert!((start.1..=self.tail.last.1).contains(&r.term), "terms ascend");
                Ok((r.index, r.term))
            }
            None => Err(WriteError::Invalid(format!("record {} is not in the log", from - 1))),
        }
    }

    fn apply(
        &mut self,
        reset: Option<Reset>,
        truncate: Option<(u64, u64)>,
        roll: Option<Bytes>,
        records: impl Iterator<Item = Record>,
    ) -> Result<(), WriteError> {
        if let Some(Reset { base, index, term }) = reset {
            self.start_over(base, index, term)?;
        }
        if let Some(last) = truncate {
            self.truncate(last)?;
        }
        if let Some(base) = roll {
            self.roll(base)?;
        }
        let mut records = records.peekable();
        if records.peek().is_some() && self.shared.get().segments.is_empty() {
            self.roll(Bytes::new())?;
        }
        for record in records {
            self.open_mark();
            let at = self.tail.end();
            self.append(Kind::Entry, &record);
            self.tail.updates.push(Update::Entry { index: record.index, at });
            if self.tail.buf.len() >= WRITE_OUT_BYTES {
                self.write_out()?;
            }
        }
        Ok(())
    }

    fn append(&mut self, kind: Kind, record: &Record) {
        let t = &mut self.tail;
        debug_assert!(kind != Kind::Entry || !t.open_due, "an entry before this run's mark");
        debug_assert!(kind != Kind::Entry || (record.index == t.last.0 + 1 && record.term >= t.last.1));
        let link = Link { salt: t.salt, chain: t.chain, synced: t.synced };
        t.chain = encode_record(&mut t.buf, link, kind, record);
        t.last = (record.index, record.term);
    }

    /// Appends a mark: the log's last live record is `last` from here on, and this run has marked its presence.
    fn mark(&mut self, kind: Kind, (index, term): (u64, u64)) {
        assert!(self.tail.prev_index <= index && index <= self.tail.last.0, "a mark of {index}");
        debug_assert!(term <= self.tail.last.1);
        let body = Bytes::copy_from_slice(&self.identity().incarnation.to_le_bytes());
        self.append(kind, &Record { index, term, body });
        self.tail.open_due = false;
    }

    fn open_mark(&mut self) {
        if self.tail.open_due {
            self.mark(Kind::Open, self.tail.last);
        }
    }

    fn truncate(&mut self, last: (u64, u64)) -> Result<(), WriteError> {
        if last.0 >= self.tail.prev_index {
            self.mark(Kind::Truncate, last);
            self.tail.updates.push(Update::Truncate { last: last.0 });
            return Ok(());
        }
        // The cut lies in an earlier segment. That one is reopened at its end, where the mark makes the
        // later segments void; only when the mark is durable may they go.
        let gone: Vec<u64> = {
            let mut shared = self.shared.get_mut();
            let keep = shared.segments.partition_point(|s| s.header.prev_index <= last.0);
            assert!(keep > 0, "a truncation to {} before the first segment", last.0);
            shared.segments.drain(keep..).map(|s| s.number()).collect()
        };
        self.seize_tail().map_err(|e| WriteError::io("reopen an earlier segment", &e))?;
        self.clear_remains().map_err(|e| WriteError::io("clear what is behind an earlier segment", &e))?;
        self.mark(Kind::Truncate, last);
        self.tail.updates.push(Update::Truncate { last: last.0 });
        self.sync_tail()?;
        self.commit_id()?;
        self.remove_segments(&gone)
    }

    /// A shortened log has ended this segment before damage. Records behind the damage would prove a loss at each later
    /// end, so they are overwritten with zeros.
    fn clear_remains(&self) -> std::io::Result<()> {
        let segment = self.shared.get().segments.last().map(Segment::end_only);
        let Some(segment) = segment else { return Ok(()) };
        if proof_of_loss(&segment)?.is_none() {
            return Ok(());
        }
        let (mut at, size) = (segment.end, segment.file.size()?);
        let zeros = vec![0; (size - at).min(1 << 20) as usize];
        while at < size {
            let piece = (zeros.len() as u64).min(size - at);
            segment.file.write_at(&zeros[..piece as usize], at)?;
            at += piece;
        }
        segment.file.sync_data()
    }

    fn roll(&mut self, base: Bytes) -> Result<(), WriteError> {
        self.sync_tail()?;
        let header = {
            let shared = self.shared.get();
            let (prev_index, prev_term) = self.tail.last;
            let prev = shared.segments.last();
            // The new header seals the segment before: all of that is durable, and is what the index says.
            if let Some(s) = prev {
                assert_eq!((self.tail.synced, self.tail.chain), (s.end, s.chain), "the seal of {}", s.name());
            }
            SegmentHeader {
                member_id: self.identity().member_id,
                number: self.highest + 1,
                incarnation: self.identity().incarnation,
                prev_index,
                prev_term,
                prev_number: prev.map_or(0, Segment::number),
                prev_end: prev.map_or(0, |s| s.end),
                prev_chain: prev.map_or(0, |s| s.chain),
                created_us: self.disk.now_us(),
                base,
            }
        };
        let first = header.prev_number == 0;
        let segment = self.create_segment(header)?;
        if let Some(before) = self.active() {
            before.finish();
        }
        let number = segment.number();
        self.shared.get_mut().push(segment);
        self.take_tail();
        if first {
            self.id.slot_mut().begins_with(number);
        }
        // From here on a loss of the new file is noticed.
        self.commit_id()
    }

    fn start_over(&mut self, base: Bytes, index: u64, term: u64) -> Result<(), WriteError> {
        self.tail.buf.clear();
        self.tail.updates.clear();
        let header = SegmentHeader {
            member_id: self.identity().member_id,
            number: self.highest + 1,
            incarnation: self.identity().incarnation,
            prev_index: index,
            prev_term: term,
            prev_number: 0,
            prev_end: 0,
            prev_chain: 0,
            created_us: self.disk.now_us(),
            base,
        };
        let segment = self.create_segment(header)?;
        self.id.slot_mut().begins_with(segment.number());
        let gone: Vec<u64> = {
            let mut shared = self.shared.get_mut();
            let gone = shared.segments.drain(..).map(|s| s.number()).collect();
            shared.segments.push(segment);
            gone
        };
        self.take_tail();
        self.commit_id()?;
        self.remove_segments(&gone)
    }

    /// Makes a segment file under a temporary name, durable with its header, then gives it its name: a
    /// file of a segment's name always has a whole header.
    fn create_segment(&mut self, header: SegmentHeader) -> Result<Segment<D::File>, WriteError> {
        // A number used twice would let a crash put one segment in another's place.
        assert!(header.number > self.highest, "segment {} exists already", header.number);
        let name = segment_name(header.number);
        self.highest = header.number;
        let (bytes, salt) = header.encode();
        let make = || {
            let names = self.disk.list()?;
            if names.iter().any(|n| n == SEGMENT_TMP) {
                self.disk.remove(SEGMENT_TMP)?;
            }
            let file = if self.options.recycle && names.iter().any(|n| n == SPARE_FILE) {
                self.disk.rename(SPARE_FILE, SEGMENT_TMP)?;
                // Before it gets its third name: a crash must not leave it with two.
                self.disk.sync_dir()?;
                self.disk.open(SEGMENT_TMP, true)?
            } else {
                self.disk.create(SEGMENT_TMP)?
            };
            file.allocate(self.options.segment_bytes.max(bytes.len() as u64))?;
            file.write_at(&bytes, 0)?;
            file.sync_data()?;
            self.disk.rename(SEGMENT_TMP, &name)?;
            self.disk.sync_dir()?;
            Ok(file)
        };
        let file = make().map_err(|e| WriteError::io(format!("create log segment {name}"), &e))?;
        Ok(Segment::new(header, salt, Arc::new(file)))
    }

    /// Makes the last segment the active one, opening its file for writing.
    fn seize_tail(&mut self) -> std::io::Result<()> {
        let name = match self.shared.get().segments.last() {
            Some(segment) => segment.name(),
            None => return Ok(()),
        };
        let file = Arc::new(self.disk.open(&name, true)?);
        if let Some(segment) = self.shared.get_mut().segments.last_mut() {
            segment.file = file;
        }
        self.take_tail();
        self.tail.allocated = self.active().map_or(Ok(0), |f| f.size())?;
        self.tail.open_due = true;
        Ok(())
    }

    /// Points the tail at the last segment's end.
    fn take_tail(&mut self) {
        let shared = self.shared.get();
        let Some(s) = shared.segments.last() else { return };
        let mut buf = std::mem::take(&mut self.tail.buf);
        buf.clear();
        self.tail = Tail {
            buf,
            updates: Vec::new(),
            written: s.end,
            synced: s.end,
            allocated: self.options.segment_bytes.max(s.end),
            chain: s.chain,
            salt: s.salt,
            last: s.last,
            prev_index: s.header.prev_index,
            open_due: false,
        };
        self.tail.check();
    }

    fn active(&self) -> Option<Arc<D::File>> {
        self.shared.get().segments.last().map(|s| Arc::clone(&s.file))
    }

    /// Hands the buffer to the kernel and shows it to readers.
    fn write_out(&mut self) -> Result<(), WriteError> {
        if self.tail.buf.is_empty() {
            return Ok(());
        }
        let Some(file) = self.active() else {
            return Err(WriteError::Invalid("no segment to write to".to_string()));
        };
        self.tail.check();
        let end = self.tail.end();
        if end > self.tail.allocated {
            let size = end + self.options.segment_bytes / 4;
            file.allocate(size).map_err(|e| WriteError::io("extend the log segment", &e))?;
            self.tail.allocated = size;
        }
        file.append_at(&self.tail.buf, self.tail.written)
            .map_err(|e| WriteError::io("write to the log", &e))?;
        let mut shared = self.shared.get_mut();
        if let Some(segment) = shared.segments.last_mut() {
            assert_eq!(segment.end, self.tail.written, "readers see what is written");
            for update in self.tail.updates.drain(..) {
                segment.apply(update);
            }
            segment.advance(end, self.tail.chain, self.tail.last);
        }
        drop(shared);
        self.tail.written = end;
        self.tail.buf.clear();
        if self.tail.buf.capacity() > KEEP_BUFFER_BYTES {
            self.tail.buf = Vec::new();
        }
        Ok(())
    }

    fn sync_tail(&mut self) -> Result<(), WriteError> {
        self.write_out()?;
        if self.tail.synced == self.tail.written {
            return Ok(());
        }
        if let Some(file) = self.active() {
            file.sync_data().map_err(|e| WriteError::io("sync the log", &e))?;
        }
        self.tail.synced = self.tail.written;
        self.tail.check();
        Ok(())
    }

    fn sync_all(&mut self) -> Result<(), WriteError> {
        self.sync_tail()?;
        let is_whole_again = self.id.slot_mut().reached(self.tail.last);
        let Some(vote) = self.vote.take() else {
            return if is_whole_again { self.commit_id() } else { Ok(()) };
        };
        if self.id.slot_mut().cast(vote) || is_whole_again {
            return self.commit_id();
        }
        self.syncs_since_hint += 1;
        if self.syncs_since_hint >= HINT_SYNCS {
            self.note_durable();
            self.syncs_since_hint = 0;
            self.id.commit_lazily().map_err(|e| WriteError::io("write lockstep.id.log", &e))?;
        }
        Ok(())
    }

    fn note_durable(&mut self) {
        if let Some(s) = self.shared.get().segments.last() {
            assert!(self.tail.synced <= s.end, "{} bytes of {} are durable", self.tail.synced, s.end);
            self.id.slot_mut().synced(s.number(), self.tail.synced);
        }
    }

    fn commit_id(&mut self) -> Result<(), WriteError> {
        self.note_durable();
        self.syncs_since_hint = 0;
        self.id.commit().map_err(|e| WriteError::io("write lockstep.id.log", &e))
    }

    fn drop_below(&mut self, count: usize, floor: u64) -> Result<(), WriteError> {
        // The floor first: should only some of the removals survive a crash, the rest is known as void.
        self.id.slot_mut().begins_with(floor);
        self.commit_id()?;
        let gone: Vec<u64> = self.shared.get_mut().segments.drain(..count).map(|s| s.number()).collect();
        self.remove_segments(&gone)
    }

    fn remove_segments(&mut self, gone: &[u64]) -> Result<(), WriteError> {
        assert!(gone.is_sorted());
        let live = |number| self.shared.get().segments.iter().any(|s| s.number() == number);
        assert!(!gone.iter().any(|number| live(*number)), "a segment of the log is to be removed");
        let remove = || {
            let mut spare = !self.options.recycle || self.disk.list()?.iter().any(|n| n == SPARE_FILE);
            for number in gone.iter().rev() {
                let name = segment_name(*number);
                // Should only some removals survive a crash, no segment may lack the one that it
                // continues: the newest goes first.
                if spare {
                    self.disk.remove(&name)?;
                } else {
                    self.disk.rename(&name, SPARE_FILE)?;
                    spare = true;
                }
                // Also before the spare file is written over: no old name may lead to its new contents.
                self.disk.sync_dir()?;
            }
            Ok(())
        };
        remove().map_err(|e| WriteError::io("remove old log segments", &e))
    }
}

/// Checks a change that begins behind `last`; the (index, term) at which the log ends after it.
fn check(
    last: (u64, u64),
    reset: Option<&Reset>,
    roll: Option<&Bytes>,
    records: impl Iterator<Item = Record>,
) -> Result<(u64, u64), WriteError> {
    let invalid = |why: String| Err(WriteError::Invalid(why));
    let longest_base = reset.map_or(0, |r| r.base.len()).max(roll.map_or(0, Bytes::len));
    if longest_base > MAX_BASE_BYTES {
        return invalid(format!("a base of {longest_base} bytes (the limit is {MAX_BASE_BYTES})"));
    }
    let (mut index, mut term) = last;
    for r in records {
        if r.index != index + 1 {
            return invalid(format!("record {} does not follow record {index}", r.index));
        }
        if r.term < term {
            return invalid(format!("record {} has term {}, the one before has {term}", r.index, r.term));
        }
        if r.body.len() > MAX_RECORD_BYTES {
            return invalid(format!(
                "record {} has {} bytes (the limit is {MAX_RECORD_BYTES})",
                r.index,
                r.body.len()
            ));
        }
        (index, term) = (r.index, r.term);
    }
    Ok((index, term))
}

/// Writes `from..to` of the file over itself and makes it durable.
fn rewrite<F: DiskFile>(file: &F, from: u64, to: u64) -> std::io::Result<()> {
    debug_assert!(from <= to, "bytes {from} to {to}");
    let mut at = from;
    let mut buf = vec![0; (to - from).min(1 << 20) as usize];
    while at < to {
        let want = buf.len().min((to - at) as usize);
        let n = file.read_at(&mut buf[..want], at)?;
        if n < want {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
        }
        file.write_at(&buf[..n], at)?;
        at += n as u64;
    }
    file.sync_data()
}
