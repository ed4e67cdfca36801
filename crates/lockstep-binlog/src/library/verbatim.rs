//! A writer that copies the files of a primary byte for byte.
//!
//! Readers see whole event groups, as with [`Writer`](super::Writer). A server also writes events between the groups:
//! checkpoints, and the event that ends a file. A file that a primary left in the middle of a group,
//! because it was killed, keeps these bytes, and readers do not see them.
//!
//! # After a crash
//!
//! The caller saves positions, after [`VerbatimWriter::sync`]. [`VerbatimWriter::open`] removes the bytes after the saved
//! one, and the caller writes them again.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::scan::{self, Scan};
use super::writer::{lock_dir, temporary};
use super::{FileEntry, Library, LibraryError, Mark, Position, State};
use crate::codec::DecodeError;
use crate::event::{Checksum, FormatDescription, Group, GtidList, HEADER_LEN, Header, MAGIC, kind, split};
use crate::gtid::{Gtid, StreamState};

/// A longer Query event cannot be the COMMIT or ROLLBACK that ends a transaction.
const QUERY_MAX: u32 = 64 << 10;

/// See the module's documentation. Dropping it releases the directory.
#[derive(Debug)]
pub struct VerbatimWriter {
    library: Library,
    /// Open and locked, so that there is no second writer; also synced after a new name.
    dir: File,
    current: Option<Current>,
    failed: bool,
}

/// The last file.
#[derive(Debug)]
struct Current {
    number: u64,
    /// `None` until the events that begin the file are complete.
    file: Option<File>,
    /// The magic bytes and the events that begin the file, until the file is made.
    header: Vec<u8>,
    written: u64,
    events: EventFollower,
    /// The state at the end of the last whole group.
    stream: StreamState,
}

/// Follows the events through bytes that arrive in any portions.
#[derive(Debug)]
struct EventFollower {
    /// The present event's bytes, as far as they are needed.
    bytes: Vec<u8>,
    /// Bytes of it that were passed.
    passed: u64,
    /// Where it begins.
    begin: u64,
    /// The last whole event: its begin and its length.
    last: Option<(u64, u32)>,
    group: Group,
    /// The GTID and begin of the group that has begun.
    gtid: Option<(Gtid, u64)>,
}

/// The result of [`EventFollower::pass`].
#[derive(Default)]
struct Progress {
    /// The groups that have ended: GTID and begin of each.
    groups: Vec<(Gtid, u64)>,
    /// The end of the last event behind which no group is open.
    end: Option<u64>,
}

impl EventFollower {
    fn at(begin: u64) -> EventFollower {
        EventFollower { bytes: Vec::new(), passed: 0, begin, last: None, group: Group::default(), gtid: None }
    }

    /// Whether the bytes so far end with a whole event.
    fn is_between_events(&self) -> bool {
        self.passed == 0
    }

    /// How many bytes of the present event are needed beyond its header.
    fn needed(&self, header: &Header) -> usize {
        let whole =
            self.group.needs_event(header.kind) && (header.kind != kind::QUERY || header.length <= QUERY_MAX);
        if whole { header.length as usize } else { HEADER_LEN }
    }

    /// Passes bytes that follow those before.
    fn pass(&mut self, mut bytes: &[u8]) -> Result<Progress, DecodeError> {
        let mut progress = Progress::default();
        while !bytes.is_empty() {
            let taken = self.take(bytes)?;
            bytes = &bytes[taken..];
            if let Some(header) = self.complete() {
                self.event(header, &mut progress)?;
            }
        }
        Ok(progress)
    }

    /// Takes bytes of the present event; how many.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, DecodeError> {
        let header = (self.bytes.len() >= HEADER_LEN).then(|| Header::parse(&self.bytes)).transpose()?;
        let (end, needed) = match &header {
            None => (HEADER_LEN as u64, HEADER_LEN),
            Some(header) => (u64::from(header.length), self.needed(header)),
        };
        let taken = (bytes.len() as u64).min(end - self.passed) as usize;
        let kept = taken.min(needed.saturating_sub(self.bytes.len()));
        self.bytes.extend_from_slice(&bytes[..kept]);
        self.passed += taken as u64;
        Ok(taken)
    }

    /// The present event's header, if its last byte was passed.
    fn complete(&self) -> Option<Header> {
        let header = Header::parse(&self.bytes).ok()?;
        (self.passed == u64::from(header.length)).then_some(header)
    }

    fn event(&mut self, header: Header, progress: &mut Progress) -> Result<(), DecodeError> {
        let end = self.begin + u64::from(header.length);
        // The field has four bytes.
        if header.end_pos != end as u32 {
            return Err(DecodeError::Invalid("end position"));
        }
        let is_long_query = header.kind == kind::QUERY && header.length > QUERY_MAX;
        if is_long_query && self.group != Group::Outside {
            // It ends a group without a commit event, and no other one.
            if self.group == Group::Standalone {
                self.group = Group::Outside;
            }
        } else if let Some(gtid) = self.group.pass(header.kind, &self.bytes, Checksum::Crc32)? {
            self.gtid = Some((gtid.gtid, self.begin));
        }
        if self.group == Group::Outside {
            progress.groups.extend(self.gtid.take());
            progress.end = Some(end);
        }
        self.last = Some((self.begin, header.length));
        (self.begin, self.passed) = (end, 0);
        self.bytes.clear();
        Ok(())
    }
}

impl VerbatimWriter {
    /// Opens the copy in a directory, which is created if it is missing, and cuts it at the saved position: the end of an
    /// event. Without one there must be no file yet. `name` is the files' name without the number.
    ///
    /// # Errors
    /// [`LibraryError`] if files cannot be read, end before the position, or another process writes them.
    pub fn open(dir: &Path, name: &str, saved: Option<Position>) -> Result<VerbatimWriter, LibraryError> {
        let dir_file = lock_dir(dir)?;
        let library = Library::new(dir, name);
        let mut writer = VerbatimWriter { library, dir: dir_file, current: None, failed: false };
        writer.recover(saved)?;
        Ok(writer)
    }

    fn recover(&mut self, saved: Option<Position>) -> Result<(), LibraryError> {
        let library = self.library.clone();
        let last = saved.map_or(0, |at| at.file);
        // Before any file is removed: without that one the others cannot be used, but can be looked at.
        if let Some(at) = saved
            && !library.all_numbers()?.contains(&at.file)
        {
            return Err(LibraryError::Missing {
                file: library.file_name(at.file),
                next: "the saved position".into(),
            });
        }
        // The newest first: a failure leaves no gap.
        for number in library.all_numbers()?.into_iter().rev().filter(|number| *number > last) {
            let path = library.path(number);
            std::fs::remove_file(&path).map_err(LibraryError::io("remove", &path))?;
        }
        let mut state = State { any_order: true, ..State::default() };
        for number in library.numbers()? {
            state.files.push_back(library.read_header(number)?);
        }
        if let Some(at) = saved {
            let entry = state.files.back_mut().filter(|file| file.number == at.file);
            let entry = entry.ok_or_else(|| LibraryError::Missing {
                file: library.file_name(at.file),
                next: "the saved position".into(),
            })?;
            let current = self.recover_file(entry, at.offset)?;
            state.stream.clone_from(&current.stream);
            self.current = Some(current);
        }
        *library.lock() = state;
        Ok(())
    }

    fn recover_file(&self, entry: &mut FileEntry, end: u64) -> Result<Current, LibraryError> {
        let path = self.library.path(entry.number);
        let short = |why| LibraryError::Damaged { file: path.clone(), offset: end, why };
        if entry.size < end || end < entry.header_end {
            return Err(short(DecodeError::Short));
        }
        let mut scan = Scan::new(&path, entry.header_end, end)?;
        let mut events = EventFollower::at(entry.header_end);
        events.last = Some(list_of(&path, entry.header_end)?);
        let (mut stream, mut visible) = (entry.before.clone(), entry.header_end);
        while let Some(found) = scan.next(|_| true)? {
            split(scan.event(), Checksum::Crc32).map_err(|why| scan.damaged(found.offset, why))?;
            let progress = events.pass(scan.event()).map_err(|why| scan.damaged(found.offset, why))?;
            for (gtid, begin) in progress.groups {
                scan::mark(&mut entry.marks, entry.header_end, begin, &stream);
                stream.update(gtid);
            }
            visible = progress.end.unwrap_or(visible);
        }
        if events.begin != end {
            return Err(short(DecodeError::Short));
        }
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(LibraryError::io("open", &path))?;
        file.set_len(end).map_err(LibraryError::io("truncate", &path))?;
        file.sync_all().map_err(LibraryError::io("sync", &path))?;
        entry.size = visible;
        Ok(Current {
            number: entry.number,
            file: Some(file),
            header: Vec::new(),
            written: end,
            events,
            stream,
        })
    }

    /// The files go on where another server's ended: see [`Library::continue_another`].
    pub fn continue_another(&mut self, unlogged: &[Gtid]) {
        self.library.continue_another(unlogged);
        if let Some(current) = &mut self.current {
            unlogged.iter().for_each(|gtid| current.stream.precede(*gtid));
        }
    }

    /// The files for readers.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// The end of the bytes that were appended.
    pub fn end(&self) -> Option<Position> {
        self.current.as_ref().map(|current| Position { file: current.number, offset: current.written })
    }

    /// Whether the end is the end of an event and the file exists: such a position may be saved.
    pub fn is_between_events(&self) -> bool {
        self.current
            .as_ref()
            .is_some_and(|current| current.file.is_some() && current.events.is_between_events())
    }

    /// The last whole event of the last file: its position, its length, and the event group behind it.
    pub fn last_event(&self) -> Option<(Position, u32, Group)> {
        let current = self.current.as_ref().filter(|current| current.file.is_some())?;
        let (offset, length) = current.events.last?;
        Some((Position { file: current.number, offset }, length, current.events.group))
    }

    fn ready(&self) -> Result<(), LibraryError> {
        if self.failed { Err(LibraryError::Failed) } else { Ok(()) }
    }

    /// Begins the next file. Its bytes follow with [`VerbatimWriter::append`].
    ///
    /// # Errors
    /// [`LibraryError`] if the file before cannot be synced, or has a higher number.
    pub fn begin_file(&mut self, number: u64) -> Result<(), LibraryError> {
        self.sync()?;
        let stream = match &self.current {
            None => StreamState::default(),
            Some(current) if current.number < number => current.stream.clone(),
            Some(current) => {
                let (name, last) = (self.library.file_name(number), self.library.file_name(current.number));
                return Err(LibraryError::Refused(format!("{name} cannot follow {last}")));
            }
        };
        let begin = MAGIC.len() as u64;
        self.current = Some(Current {
            number,
            file: None,
            header: MAGIC.to_vec(),
            written: begin,
            events: EventFollower::at(begin),
            stream,
        });
        Ok(())
    }

    /// Appends bytes at the end. They need not end with an event.
    ///
    /// # Errors
    /// [`LibraryError`] if they are no events with positions that continue, or cannot be written. Every later call fails
    /// then: the caller opens the copy again.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), LibraryError> {
        self.ready()?;
        let result = self.try_append(bytes);
        self.failed = result.is_err();
        result
    }

    fn try_append(&mut self, bytes: &[u8]) -> Result<(), LibraryError> {
        let Some(current) = &mut self.current else {
            return Err(LibraryError::Refused("the library has no file yet".into()));
        };
        let path = self.library.path(current.number);
        let offset = current.events.begin;
        let damaged = |why| LibraryError::Damaged { file: path.clone(), offset, why };
        let progress = current.events.pass(bytes).map_err(damaged)?;
        match &current.file {
            Some(file) => {
                file.write_all_at(bytes, current.written).map_err(LibraryError::io("write", &path))?
            }
            None => current.header.extend_from_slice(bytes),
        }
        current.written += bytes.len() as u64;
        let before = current.stream.clone();
        progress.groups.iter().for_each(|(gtid, _)| current.stream.update(*gtid));
        if current.file.is_none() {
            return self.make_file();
        }
        if let Some(end) = progress.end {
            self.publish(before, &progress.groups, end);
        }
        Ok(())
    }

    /// Makes the file once the events that begin it are complete.
    fn make_file(&mut self) -> Result<(), LibraryError> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let path = self.library.path(current.number);
        let Some(Begin { checksum, list, list_at, end: header_end }) = begin_of_file(&current.header)
            .map_err(|(offset, why)| LibraryError::Damaged { file: path.clone(), offset, why })?
        else {
            return Ok(());
        };
        if checksum == Checksum::None {
            let why = "its events have no checksum: set binlog_checksum=CRC32 on the primary".into();
            return Err(LibraryError::NotBinlog { file: path, why });
        }
        let temporary = temporary(&self.library);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o640);
        let mut file = options.open(&temporary).map_err(LibraryError::io("create", &temporary))?;
        file.write_all(&current.header).map_err(LibraryError::io("write", &temporary))?;
        file.sync_all().map_err(LibraryError::io("sync", &temporary))?;
        std::fs::rename(&temporary, &path).map_err(LibraryError::io("create", &path))?;
        self.dir.sync_all().map_err(LibraryError::io("sync", &self.library.shared.dir))?;
        // The groups behind the header, in the same bytes, are found by following them once more.
        let mut events = EventFollower::at(header_end);
        events.last = Some((list_at, (header_end - list_at) as u32));
        let rest = &current.header[header_end as usize..];
        let progress =
            events.pass(rest).map_err(|why| LibraryError::Damaged { file: path, offset: header_end, why })?;
        (current.file, current.events) = (Some(file), events);
        let before = self.library.before_file(&list.gtids);
        current.stream.clone_from(&before);
        progress.groups.iter().for_each(|(gtid, _)| current.stream.update(*gtid));
        let entry = FileEntry {
            number: current.number,
            size: header_end,
            before: before.clone(),
            header_end,
            checksum,
            marks: Vec::new(),
        };
        current.header = Vec::new();
        let mut state = self.library.lock();
        state.stream.clone_from(&before);
        state.files.push_back(entry);
        drop(state);
        self.publish(before, &progress.groups, progress.end.unwrap_or(header_end));
        Ok(())
    }

    /// Lets readers see the bytes up to `end`, with these groups.
    fn publish(&self, mut before: StreamState, groups: &[(Gtid, u64)], end: u64) {
        let Some(current) = &self.current else { return };
        let mut state = self.library.lock();
        state.stream.clone_from(&current.stream);
        if let Some(file) = state.file_mut(current.number) {
            debug_assert!(file.size <= end, "the visible end never moves back");
            file.size = end;
            for (gtid, begin) in groups {
                if scan::is_mark_due(&file.marks, file.header_end, *begin) {
                    file.marks.push(Mark { offset: *begin, state: before.clone() });
                }
                before.update(*gtid);
            }
        }
        drop(state);
        self.library.shared.grown.notify_all();
    }

    /// Makes durable what was appended.
    ///
    /// # Errors
    /// [`LibraryError`] if the disk refuses. The file's durable content is unknown then, so every later call fails.
    pub fn sync(&mut self) -> Result<(), LibraryError> {
        self.ready()?;
        let Some(Current { number, file: Some(file), .. }) = &self.current else { return Ok(()) };
        if let Err(error) = file.sync_data() {
            self.failed = true;
            return Err(LibraryError::io("sync", &self.library.path(*number))(error));
        }
        Ok(())
    }
}

/// The begin of a file: a format description and a Gtid_list.
struct Begin {
    checksum: Checksum,
    list: GtidList,
    /// Where the Gtid_list begins.
    list_at: u64,
    /// Where it ends.
    end: u64,
}

/// The offset of an event that does not belong there, and why.
type Misplaced = (u64, DecodeError);

/// Reads the begin of a file; `None` if it is incomplete.
fn begin_of_file(bytes: &[u8]) -> Result<Option<Begin>, Misplaced> {
    let mut at = MAGIC.len();
    let mut next = || -> Result<Option<(u64, &[u8])>, Misplaced> {
        let rest = &bytes[at..];
        if rest.len() < HEADER_LEN {
            return Ok(None);
        }
        let length = Header::parse(rest).map_err(|why| (at as u64, why))?.length as usize;
        let Some(event) = rest.get(..length) else { return Ok(None) };
        let begin = at as u64;
        at += length;
        Ok(Some((begin, event)))
    };
    let Some((format_at, event)) = next()? else { return Ok(None) };
    let format = FormatDescription::parse(event).map_err(|why| (format_at, why))?;
    let Some((list_at, event)) = next()? else { return Ok(None) };
    let list = GtidList::parse(event, format.checksum).map_err(|why| (list_at, why))?;
    Ok(Some(Begin { checksum: format.checksum, list, list_at, end: list_at + event.len() as u64 }))
}

/// Begin and length of a file's Gtid_list, which ends at `end`.
fn list_of(path: &Path, end: u64) -> Result<(u64, u32), LibraryError> {
    let mut scan = Scan::new(path, MAGIC.len() as u64, end)?;
    let mut last = None;
    while let Some(found) = scan.next(|_| false)? {
        last = Some((found.offset, found.header.length));
    }
    last.ok_or_else(|| scan.damaged(end, DecodeError::Short))
}

#[cfg(test)]
mod tests {
    use super::super::Step;
    use super::*;
    use crate::event::{EventWriter, GtidEvent, Stamp, gtid_flag};

    const STAMP: Stamp = Stamp { timestamp: 7, server_id: 10 };

    fn gtid(seqno: u64) -> Gtid {
        Gtid { domain: 0, server: 10, seqno }
    }

    fn transaction(writer: &mut EventWriter, gtid: Gtid) {
        let flags = gtid_flag::TRANSACTIONAL;
        writer.gtid(7, &GtidEvent { gtid, flags, commit_id: None, extra: vec![0; 6] });
        writer.event(STAMP, kind::TABLE_MAP, 0, &[&[gtid.seqno as u8; 300]]);
        writer.xid(STAMP, gtid.seqno);
    }

    /// The events that begin a file after these transactions.
    fn begun(before: &[Gtid]) -> EventWriter {
        let mut writer = EventWriter::at(4);
        writer.format_description(&FormatDescription {
            timestamp: 1,
            server_id: 10,
            version: "10.11".into(),
            created: 1,
            checksum: Checksum::Crc32,
        });
        writer.gtid_list(STAMP, before);
        writer
    }

    /// A file's bytes behind the magic ones: these transactions, after those.
    fn file_of(before: &[Gtid], gtids: &[Gtid]) -> Vec<u8> {
        let mut writer = begun(before);
        gtids.iter().for_each(|gtid| transaction(&mut writer, *gtid));
        writer.finish().unwrap()
    }

    /// A file's bytes behind the magic ones: three transactions, with a checkpoint before the second one.
    fn file(first: u64) -> Vec<u8> {
        let before: Vec<Gtid> = (first > 1).then(|| gtid(first - 1)).into_iter().collect();
        let mut writer = begun(&before);
        for seqno in first..first + 3 {
            transaction(&mut writer, gtid(seqno));
            if seqno == first {
                writer.event(STAMP, kind::BINLOG_CHECKPOINT, 0, &[&14u32.to_le_bytes(), b"bin.000001"]);
            }
        }
        writer.finish().unwrap()
    }

    fn directory(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("lockstep-verbatim-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        dir
    }

    fn events_of(library: &Library) -> Vec<Vec<u8>> {
        let first = library.lock().files.front().map(|file| file.number).unwrap();
        let mut reader = library.reader("test", Position { file: first, offset: 4 }).unwrap();
        let mut events = Vec::new();
        loop {
            match reader.advance().unwrap() {
                Step::Event => events.push(reader.event().to_vec()),
                Step::FileEnd => reader.next_file().unwrap(),
                Step::End => return events,
            }
        }
    }

    #[test]
    fn copy_equals_original_in_portions_of_any_size() {
        let bytes = file(1);
        for portion in [1, 7, 19, 100, 1000, bytes.len()] {
            let dir = directory("portions");
            let mut writer = VerbatimWriter::open(&dir, "bin", None).unwrap();
            writer.begin_file(1).unwrap();
            for part in bytes.chunks(portion) {
                writer.append(part).unwrap();
            }
            assert_eq!(events_of(writer.library()).concat(), bytes, "{portion}");
            assert_eq!(writer.library().state_at_end().to_list(), [gtid(3)]);
            let copied = std::fs::read(dir.join("bin.000001")).unwrap();
            assert_eq!(copied, [&MAGIC, bytes.as_slice()].concat());
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }

    #[test]
    fn readers_see_whole_groups_only() {
        let (dir, bytes) = (directory("groups"), file(1));
        let mut writer = VerbatimWriter::open(&dir, "bin", None).unwrap();
        writer.begin_file(1).unwrap();
        let mut seen = 0;
        for part in bytes.chunks(10) {
            writer.append(part).unwrap();
            let Some(end) = writer.library().end() else { continue };
            let events = events_of(writer.library());
            let last = events.last().unwrap()[4];
            assert!([kind::GTID_LIST, kind::XID, kind::BINLOG_CHECKPOINT].contains(&last), "{last}");
            assert!(end.offset <= writer.end().unwrap().offset);
            seen = seen.max(events.len());
        }
        assert_eq!(seen, 2 + 3 * 3 + 1);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn missing_file_of_the_saved_position_leaves_later_files() {
        let dir = directory("missing");
        let mut writer = VerbatimWriter::open(&dir, "bin", None).unwrap();
        for (number, bytes) in [(1, file(1)), (2, file(4))] {
            writer.begin_file(number).unwrap();
            writer.append(&bytes).unwrap();
        }
        drop(writer);
        std::fs::remove_file(dir.join("bin.000001")).unwrap();
        let opened = VerbatimWriter::open(&dir, "bin", Some(Position { file: 1, offset: 200 }));
        assert!(matches!(opened, Err(LibraryError::Missing { .. })), "{opened:?}");
        assert!(dir.join("bin.000002").exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn open_goes_on_from_each_saved_position() {
        let (first, second) = (file(1), file(4));
        let dir = directory("saved");
        let mut positions = Vec::new();
        let mut writer = VerbatimWriter::open(&dir, "bin", None).unwrap();
        for (number, bytes) in [(1, &first), (2, &second)] {
            writer.begin_file(number).unwrap();
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let (event, after) = rest.split_at(Header::parse(rest).unwrap().length as usize);
                rest = after;
                // Also a position in the middle of an event was passed.
                let (first, second) = event.split_at(event.len() / 2);
                writer.append(first).unwrap();
                assert!(!writer.is_between_events());
                writer.append(second).unwrap();
                if writer.is_between_events() {
                    positions.push((writer.end().unwrap(), writer.last_event()));
                }
            }
        }
        assert!(positions.len() > 15, "{}", positions.len());
        let all = events_of(writer.library());
        drop(writer);
        for (position, last) in positions.into_iter().rev() {
            let mut writer = VerbatimWriter::open(&dir, "bin", Some(position)).unwrap();
            assert_eq!(writer.end(), Some(position));
            assert_eq!(writer.last_event(), last);
            let rest = if position.file == 1 { &first } else { &second };
            writer.append(&rest[position.offset as usize - 4..]).unwrap();
            if position.file == 1 {
                writer.begin_file(2).unwrap();
                writer.append(&second).unwrap();
            }
            assert!(events_of(writer.library()) == all, "{position:?}");
            assert_eq!(writer.library().state_at_end().to_list(), [gtid(6)]);
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn killed_primarys_open_group_is_kept_and_not_shown() {
        let (first, second) = (file(1), file(3));
        let dir = directory("open-group");
        let mut writer = VerbatimWriter::open(&dir, "bin", None).unwrap();
        writer.begin_file(1).unwrap();
        // Up to the third transaction's last event.
        let cut = first.len() - (HEADER_LEN + 8 + 4);
        writer.append(&first[..cut]).unwrap();
        writer.begin_file(2).unwrap();
        writer.append(&second).unwrap();
        let copied = std::fs::read(dir.join("bin.000001")).unwrap();
        assert_eq!(copied[4..], first[..cut]);
        let gtids = events_of(writer.library()).iter().filter(|event| event[4] == kind::GTID).count();
        assert_eq!(gtids, 2 + 3);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn wrong_bytes_are_refused_and_the_writer_fails() {
        let bytes = file(1);
        let dir = directory("wrong");
        let mut writer = VerbatimWriter::open(&dir, "bin", None).unwrap();
        writer.begin_file(1).unwrap();
        writer.append(&bytes).unwrap();
        let refused = writer.append(&[0; 40]).unwrap_err();
        assert!(refused.to_string().contains("bin.000001"), "{refused}");
        assert!(matches!(writer.append(&bytes), Err(LibraryError::Failed)));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// What a replica with this position gets of the library, up to the end.
    fn served(library: &Library, position: &str) -> Result<Vec<String>, String> {
        let mut start = library.position_of(&position.parse().unwrap()).map_err(|e| e.to_string())?;
        let mut reader = library.reader("test", start.at).unwrap();
        let (mut group, mut gtids) = (Group::default(), Vec::new());
        loop {
            match reader.advance().unwrap() {
                Step::End => return Ok(gtids),
                Step::FileEnd => reader.next_file().unwrap(),
                Step::Event => {
                    let event = reader.event();
                    let header = Header::parse(event).unwrap();
                    if let Some(gtid) = group.pass(header.kind, event, Checksum::Crc32).unwrap()
                        && !start.pass(gtid.gtid).map_err(|e| e.to_string())?
                    {
                        gtids.push(gtid.gtid.to_string());
                    }
                }
            }
        }
    }

    #[test]
    fn mixed_seqnos_of_servers_are_served_without_loss() {
        let of = |list: &str| -> Vec<Gtid> { list.split(' ').map(|gtid| gtid.parse().unwrap()).collect() };
        let dir = directory("mixed");
        let mut writer = VerbatimWriter::open(&dir, "bin", None).unwrap();
        let all = of("0-2-149 0-1-199 0-1-200 0-2-150 0-2-151 0-1-201 0-2-152 0-1-203");
        let mut state = StreamState::default();
        for (number, gtids) in (1..).zip(all.chunks(4)) {
            writer.begin_file(number).unwrap();
            writer.append(&file_of(&state.to_list(), gtids)).unwrap();
            gtids.iter().for_each(|gtid| state.update(*gtid));
        }
        let library = writer.library();
        for (at, gtid) in all.iter().enumerate() {
            let follow: Vec<String> = all[at + 1..].iter().map(Gtid::to_string).collect();
            assert_eq!(served(library, &gtid.to_string()), Ok(follow), "{gtid}");
        }
        // Whether a replica with a transaction that is not there has the one of server 2 before it, is not known.
        let error = served(library, "0-1-202").unwrap_err();
        assert!(error.contains("0-1-202"), "{error}");
        let error = served(library, "0-1-204").unwrap_err();
        assert!(error.contains("0-1-203"), "{error}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
