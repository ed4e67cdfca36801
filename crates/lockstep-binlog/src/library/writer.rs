//! The one writer of a library.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use super::{FileEntry, Library, LibraryError, Mark, Position, State, scan};
use crate::event::{Checksum, EventWriter, FormatDescription, Group, Header, MAGIC, Stamp, split};
use crate::gtid::{Gtid, StreamState};

/// When readers see an event group.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Visibility {
    /// As soon as it is written. After a power failure a replica can be ahead of the library, until the groups are
    /// appended again.
    #[default]
    Appended,
    /// Once [`Writer::sync`] has made it durable.
    Synced,
}

/// What [`Writer::open`] cut off the last file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Torn {
    /// The file.
    pub file: String,
    /// Its new end.
    pub end: u64,
    /// Bytes cut.
    pub bytes: u64,
    /// Their defect.
    pub why: String,
}

/// Appends event groups to a library's last file. Dropping it releases the directory.
#[derive(Debug)]
pub struct Writer {
    library: Library,
    /// Open and locked, so that there is no second writer; also synced after a new name.
    dir: File,
    current: Option<Current>,
    /// The state at the written end, which readers may not see yet.
    stream: StreamState,
    visibility: Visibility,
    /// Groups that were appended, but are not visible: GTID and begin of each.
    hidden: Vec<(Gtid, u64)>,
    torn: Option<Torn>,
    failed: bool,
}

/// The last file. Invariant: `visible end <= synced or written end`.
#[derive(Debug)]
struct Current {
    number: u64,
    file: File,
    written: u64,
    checksum: Checksum,
    sync_failed: bool,
}

impl Writer {
    /// Opens the library in a directory, which is created if it is missing. Cuts what a crash left incomplete.
    ///
    /// # Errors
    /// [`LibraryError`] if files cannot be read or another process writes them.
    pub fn open(dir: &Path, name: &str, visibility: Visibility) -> Result<Writer, LibraryError> {
        Writer::open_synced(dir, name, visibility, None)
    }

    /// As [`Writer::open`], with a place up to which the files were synced: [`Writer::end`] at an earlier [`Writer::sync`].
    ///
    /// # Errors
    /// As [`Writer::open`]; [`LibraryError::Lost`] if the files end before that place. They are left as they are then.
    pub fn open_synced(
        dir: &Path,
        name: &str,
        visibility: Visibility,
        synced: Option<Position>,
    ) -> Result<Writer, LibraryError> {
        let dir_file = lock_dir(dir)?;
        let library = Library::new(dir, name);
        let temporary = temporary(&library);
        match std::fs::remove_file(&temporary) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(LibraryError::io("remove", &temporary)(e));
            }
            _ => {}
        }
        let mut state = State::default();
        for number in library.numbers()? {
            let entry = library.read_header(number)?;
            if entry.checksum == Checksum::None {
                let why = "its events have no checksum".into();
                return Err(LibraryError::NotBinlog { file: library.path(number), why });
            }
            state.files.push_back(entry);
        }
        let mut writer = Writer {
            library,
            dir: dir_file,
            current: None,
            stream: StreamState::default(),
            visibility,
            hidden: Vec::new(),
            torn: None,
            failed: false,
        };
        match (state.files.back_mut(), synced) {
            (Some(last), synced) => writer.recover(last, synced)?,
            (None, Some(synced)) => return Err(writer.lost(None, synced, String::new())),
            (None, None) => {}
        }
        state.stream.clone_from(&writer.stream);
        *writer.library.lock() = state;
        Ok(writer)
    }

    /// The error of files that end before this synced place.
    fn lost(&self, end: Option<Position>, synced: Position, why: String) -> LibraryError {
        let named = |at: Position| (self.library.file_name(at.file), at.offset);
        LibraryError::Lost {
            dir: self.library.shared.dir.clone(),
            end: end.map(named),
            synced: named(synced),
            why,
        }
    }

    /// Cuts the last file's incomplete end, and makes the rest durable.
    fn recover(&mut self, last: &mut FileEntry, synced: Option<Position>) -> Result<(), LibraryError> {
        let end = scan::scan_to_end(&self.library, last)?;
        let path = self.library.path(last.number);
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(LibraryError::io("open", &path))?;
        let (offset, why) = match (end.rotate, end.torn) {
            (Some(rotate), _) => (rotate, "a Rotate event without a next file".to_owned()),
            (None, Some((_, why))) => (end.offset, why),
            (None, None) => (end.offset, String::new()),
        };
        let found = Position { file: last.number, offset };
        if let Some(synced) = synced.filter(|synced| found < *synced) {
            return Err(self.lost(Some(found), synced, why));
        }
        if offset < last.size {
            let bytes = last.size - offset;
            self.torn = Some(Torn { file: self.library.file_name(last.number), end: offset, bytes, why });
            file.set_len(offset).map_err(LibraryError::io("truncate", &path))?;
        }
        file.sync_data().map_err(LibraryError::io("sync", &path))?;
        (last.size, last.marks) = (offset, end.marks);
        self.stream = end.state;
        self.current = Some(Current {
            number: last.number,
            file,
            written: offset,
            checksum: last.checksum,
            sync_failed: false,
        });
        Ok(())
    }

    /// The cut that opening the library made, if any.
    pub fn torn(&self) -> Option<&Torn> {
        self.torn.as_ref()
    }

    /// The files for readers.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// The state of the stream at the written end, from which the caller goes on.
    pub fn state_at_end(&self) -> &StreamState {
        &self.stream
    }

    /// The written end: the position for the next event group. `None` before [`Writer::begin`].
    pub fn end(&self) -> Option<Position> {
        self.current.as_ref().map(|current| Position { file: current.number, offset: current.written })
    }

    fn ready(&self) -> Result<(), LibraryError> {
        if self.failed { Err(LibraryError::Failed) } else { Ok(()) }
    }

    /// Makes the first file of an empty library. `before` is the state of the stream before it.
    ///
    /// # Errors
    /// [`LibraryError`] if the library has a file, or the new one cannot be written.
    pub fn begin(
        &mut self,
        number: u64,
        format: &FormatDescription,
        before: &StreamState,
    ) -> Result<(), LibraryError> {
        self.ready()?;
        if self.current.is_some() {
            return Err(LibraryError::Refused("the library has files already".into()));
        }
        let entry = self.new_file(number, format, before)?;
        self.stream = before.clone();
        let mut state = self.library.lock();
        state.stream.clone_from(&self.stream);
        state.files.push_back(entry);
        drop(state);
        self.library.shared.grown.notify_all();
        Ok(())
    }

    /// Writes and syncs a file's header under a temporary name, then renames it. It becomes the current file.
    fn new_file(
        &mut self,
        number: u64,
        format: &FormatDescription,
        before: &StreamState,
    ) -> Result<FileEntry, LibraryError> {
        let mut events = EventWriter::at(MAGIC.len() as u64);
        events.format_description(format);
        let stamp = Stamp { timestamp: format.timestamp, server_id: format.server_id };
        events.gtid_list(stamp, &before.to_list());
        let header_end = events.position();
        let events = events.finish().map_err(|e| LibraryError::Refused(e.to_string()))?;
        let (temporary, path) = (temporary(&self.library), self.library.path(number));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o640);
        let mut file = options.open(&temporary).map_err(LibraryError::io("create", &temporary))?;
        file.write_all(&MAGIC).map_err(LibraryError::io("write", &temporary))?;
        file.write_all(&events).map_err(LibraryError::io("write", &temporary))?;
        file.sync_all().map_err(LibraryError::io("sync", &temporary))?;
        std::fs::rename(&temporary, &path).map_err(LibraryError::io("create", &path))?;
        self.dir.sync_all().map_err(LibraryError::io("sync", &self.library.shared.dir))?;
        self.current = Some(Current {
            number,
            file,
            written: header_end,
            checksum: Checksum::Crc32,
            sync_failed: false,
        });
        Ok(FileEntry {
            number,
            size: header_end,
            before: before.clone(),
            header_end,
            checksum: Checksum::Crc32,
            marks: Vec::new(),
        })
    }

    /// Appends one or more whole event groups. Their positions continue from [`Writer::end`].
    ///
    /// # Errors
    /// [`LibraryError::Refused`] if the bytes are anything else; nothing is written then. Another error leaves the file as
    /// it was, or makes every later call fail with [`LibraryError::Failed`].
    pub fn append(&mut self, groups: &[u8]) -> Result<Position, LibraryError> {
        self.ready()?;
        let Some(current) = &self.current else {
            return Err(LibraryError::Refused("the library has no file yet".into()));
        };
        let (number, start, checksum) = (current.number, current.written, current.checksum);
        let gtids = self.check(groups, start, checksum)?;
        self.write(groups)?;
        let end = start + groups.len() as u64;
        gtids.iter().for_each(|(gtid, _)| self.stream.update(*gtid));
        self.hidden.extend(gtids);
        if self.visibility == Visibility::Appended {
            self.publish(number, end);
        }
        Ok(Position { file: number, offset: end })
    }

    /// The groups in these bytes, each with its begin.
    fn check(&self, groups: &[u8], start: u64, checksum: Checksum) -> Result<Vec<(Gtid, u64)>, LibraryError> {
        let refused = |at: u64, why: &str| LibraryError::Refused(format!("the event for byte {at} {why}"));
        let mut gtids: Vec<(Gtid, u64)> = Vec::new();
        let (mut group, mut at, mut rest) = (Group::default(), start, groups);
        while !rest.is_empty() {
            let length = Header::parse(rest).map_err(|why| refused(at, &why.to_string()))?.length as usize;
            let (event, after) =
                rest.split_at_checked(length).ok_or_else(|| refused(at, "ends too early"))?;
            let end = at + length as u64;
            let (header, _) = split(event, checksum).map_err(|why| refused(at, &why.to_string()))?;
            if u64::from(header.end_pos) != end {
                return Err(refused(
                    at,
                    &format!("says that it ends at {}, but it would end at {end}", header.end_pos),
                ));
            }
            let outside = group == Group::Outside;
            let gtid =
                group.pass(header.kind, event, checksum).map_err(|why| refused(at, &why.to_string()))?;
            match gtid.map(|g| g.gtid) {
                None if outside => return Err(refused(at, "is outside of an event group")),
                None => {}
                Some(gtid) => {
                    let earlier = gtids.iter().rev().map(|(g, _)| *g).find(|g| g.domain == gtid.domain);
                    let earlier = earlier.or_else(|| self.stream.last(gtid.domain));
                    if let Some(last) = earlier.filter(|last| last.seqno >= gtid.seqno) {
                        return Err(refused(
                            at,
                            &format!("has GTID {gtid}, but the stream is at {last} already"),
                        ));
                    }
                    gtids.push((gtid, at));
                }
            }
            (at, rest) = (end, after);
        }
        if group != Group::Outside || gtids.is_empty() {
            return Err(LibraryError::Refused("the event group is incomplete".into()));
        }
        Ok(gtids)
    }

    /// Writes at the end of the current file, all or nothing.
    fn write(&mut self, bytes: &[u8]) -> Result<(), LibraryError> {
        let Some(current) = &mut self.current else { return Err(LibraryError::Failed) };
        match current.file.write_all_at(bytes, current.written) {
            Ok(()) => {
                current.written += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.failed = current.file.set_len(current.written).is_err();
                let path = self.library.path(current.number);
                Err(LibraryError::io("write", &path)(error))
            }
        }
    }

    /// Lets readers see all that is written to a file.
    fn publish(&mut self, number: u64, written: u64) {
        let mut state = self.library.lock();
        let first = self.hidden.first().map(|(_, begin)| *begin);
        let due = |file: &FileEntry| first.filter(|at| scan::is_mark_due(&file.marks, file.header_end, *at));
        let mark =
            state.file(number).and_then(due).map(|offset| Mark { offset, state: state.stream.clone() });
        for (gtid, _) in &self.hidden {
            state.stream.update(*gtid);
        }
        if let Some(file) = state.file_mut(number) {
            debug_assert!(file.size <= written, "the visible end never moves back");
            file.size = written;
            file.marks.extend(mark);
        }
        self.hidden.clear();
        drop(state);
        self.library.shared.grown.notify_all();
    }

    /// Makes durable what was appended.
    ///
    /// # Errors
    /// [`LibraryError`] if the disk refuses. The file's durable content is unknown then, so every later call fails.
    pub fn sync(&mut self) -> Result<(), LibraryError> {
        self.ready()?;
        let Some(current) = &self.current else { return Ok(()) };
        if let Err(error) = current.file.sync_data() {
            self.failed = true;
            return Err(LibraryError::io("sync", &self.library.path(current.number))(error));
        }
        let (number, written) = (current.number, current.written);
        if self.visibility == Visibility::Synced {
            self.publish(number, written);
        }
        Ok(())
    }

    /// Ends the current file with a Rotate event of this time, and begins the file `next`, a higher number. `before` is the
    /// state of the stream before it, at least [`Writer::state_at_end`]: groups in between do not exist. All is durable
    /// afterwards.
    ///
    /// # Errors
    /// [`LibraryError`] if a file cannot be written. If the disk is full, the library is as before, and the caller repeats the
    /// cut. After another failure every later call fails; after [`Writer::open`] the caller repeats the cut.
    pub fn cut(
        &mut self,
        next: u64,
        rotate: Stamp,
        format: &FormatDescription,
        before: &StreamState,
    ) -> Result<Position, LibraryError> {
        self.ready()?;
        let Some(number) = self.current.as_ref().map(|current| current.number) else {
            return Err(LibraryError::Refused("the library has no file yet".into()));
        };
        if next <= number {
            let (this, next) = (self.library.file_name(number), self.library.file_name(next));
            return Err(LibraryError::Refused(format!("{next} cannot follow {this}")));
        }
        // A failure in between leaves a file with a Rotate event and no next file.
        self.failed = true;
        let entry = match self.rotate((number, next), rotate, format, before) {
            Ok(entry) => entry,
            Err(error) => {
                self.failed = !(error.is_disk_full() && self.undo_rotate(number, next));
                return Err(error);
            }
        };
        self.failed = false;
        let (end, header_end) = (Position { file: entry.number, offset: entry.size }, entry.header_end);
        debug_assert_eq!(end.offset, header_end);
        self.stream.clone_from(before);
        let mut state = self.library.lock();
        state.stream.clone_from(before);
        state.files.push_back(entry);
        drop(state);
        self.library.shared.grown.notify_all();
        Ok(end)
    }

    fn rotate(
        &mut self,
        (number, next): (u64, u64),
        stamp: Stamp,
        format: &FormatDescription,
        before: &StreamState,
    ) -> Result<FileEntry, LibraryError> {
        let Some(current) = &mut self.current else { return Err(LibraryError::Failed) };
        let mut events = EventWriter::at(current.written);
        events.rotate(stamp, &self.library.file_name(next));
        let event = events.finish().map_err(|e| LibraryError::Refused(e.to_string()))?;
        let path = self.library.path(number);
        current.file.write_all_at(&event, current.written).map_err(LibraryError::io("write", &path))?;
        let synced = current.file.sync_data();
        current.sync_failed = synced.is_err();
        synced.map_err(LibraryError::io("sync", &path))?;
        let written = current.written + event.len() as u64;
        let entry = self.new_file(next, format, before)?;
        // Both files exist: now readers may see the Rotate event.
        self.publish(number, written);
        Ok(entry)
    }

    /// Cuts the Rotate event of [`Writer::rotate`] off again. Whether the library is as it was before.
    fn undo_rotate(&mut self, number: u64, next: u64) -> bool {
        let Some(current) = self.current.as_ref().filter(|current| current.number == number) else {
            return false;
        };
        // After a failed sync of the file its durable content is unknown, and so it is after one of the directory, once the
        // next file has its name.
        let undone = !current.sync_failed && !self.library.path(next).exists();
        undone && current.file.set_len(current.written).is_ok()
    }

    /// Notes that the stream is complete up to this GTID, although it ends before: the seqnos in between will have no
    /// event group. A replica may start there. The note is lost when the library is closed.
    pub fn note_complete_to(&mut self, gtid: Gtid) {
        self.library.lock().covered.insert(gtid.domain, gtid);
    }
}

/// Makes a library's directory if it is missing, and locks it until the file is closed: there is one writer.
///
/// # Errors
/// [`LibraryError`], [`LibraryError::Locked`] if another process writes.
pub(super) fn lock_dir(dir: &Path) -> Result<File, LibraryError> {
    // The files have the tables' contents: nobody but owner and group reads them.
    let made = DirBuilder::new().recursive(true).mode(0o750).create(dir);
    made.map_err(LibraryError::io("create", dir))?;
    let file = File::open(dir).map_err(LibraryError::io("open", dir))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(LibraryError::Locked { dir: dir.to_owned() }),
        Err(error) => Err(LibraryError::io("lock", dir)(error.into())),
    }
}

pub(super) fn temporary(library: &Library) -> std::path::PathBuf {
    library.shared.dir.join(format!("{}.new", library.shared.name))
}
