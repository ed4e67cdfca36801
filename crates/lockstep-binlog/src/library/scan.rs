//! Reads files from front to back.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::{FileEntry, Library, LibraryError, MARK_BYTES, Mark};
use crate::codec::DecodeError;
use crate::event::{
    Checksum, FormatDescription, Group, GtidEvent, GtidList, HEADER_LEN, Header, MAGIC, kind, split,
};
use crate::gtid::StreamState;

/// An event found by a [`Scan`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) header: Header,
    pub(super) offset: u64,
}

impl Found {
    pub(super) fn end(&self) -> u64 {
        self.offset + u64::from(self.header.length)
    }
}

/// Passes over the events of one file.
pub(super) struct Scan {
    path: PathBuf,
    file: BufReader<File>,
    /// Where the next event begins.
    offset: u64,
    end: u64,
    /// The last event, if it was read whole.
    event: Vec<u8>,
}

impl Scan {
    /// Begins at `offset`, an event's begin, and ends at `end`.
    pub(super) fn new(path: &Path, offset: u64, end: u64) -> Result<Scan, LibraryError> {
        let mut file = File::open(path).map_err(LibraryError::io("open", path))?;
        file.seek(SeekFrom::Start(offset)).map_err(LibraryError::io("read", path))?;
        let file = BufReader::with_capacity(256 << 10, file);
        Ok(Scan { path: path.to_owned(), file, offset, end, event: Vec::new() })
    }

    pub(super) fn damaged(&self, offset: u64, why: DecodeError) -> LibraryError {
        LibraryError::Damaged { file: self.path.clone(), offset, why }
    }

    /// The next event; `None` at the end. It is read whole if `wanted`.
    pub(super) fn next(&mut self, wanted: impl FnOnce(u8) -> bool) -> Result<Option<Found>, LibraryError> {
        if self.offset >= self.end {
            return Ok(None);
        }
        let offset = self.offset;
        let left = self.end - offset;
        if left < HEADER_LEN as u64 {
            return Err(self.damaged(offset, DecodeError::Short));
        }
        let mut bytes = [0; HEADER_LEN];
        self.fill(&mut bytes)?;
        let header = Header::parse(&bytes).map_err(|why| self.damaged(offset, why))?;
        let found = Found { header, offset };
        if u64::from(header.length) > left {
            return Err(self.damaged(offset, DecodeError::Short));
        }
        // The file's size bounds the memory.
        let body = header.length as usize - HEADER_LEN;
        self.event.clear();
        if wanted(header.kind) {
            self.event.extend_from_slice(&bytes);
            let mut event = std::mem::take(&mut self.event);
            event.resize(HEADER_LEN + body, 0);
            let filled = self.fill(&mut event[HEADER_LEN..]);
            self.event = event;
            filled?;
        } else {
            self.file.seek_relative(body as i64).map_err(LibraryError::io("read", &self.path))?;
        }
        self.offset = found.end();
        Ok(Some(found))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), LibraryError> {
        match self.file.read_exact(bytes) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => {
                Err(self.damaged(self.offset, DecodeError::Short))
            }
            Err(e) => Err(LibraryError::io("read", &self.path)(e)),
        }
    }

    /// The last event, if it was wanted.
    pub(super) fn event(&self) -> &[u8] {
        &self.event
    }
}

/// Reads the format description and the Gtid_list of a file.
pub(super) fn read_header(path: &Path, number: u64) -> Result<FileEntry, LibraryError> {
    let mut file = File::open(path).map_err(LibraryError::io("open", path))?;
    let size = file.metadata().map_err(LibraryError::io("read", path))?.len();
    let mut magic = [0; MAGIC.len()];
    let not_binlog = |why: &str| LibraryError::NotBinlog { file: path.to_owned(), why: why.to_owned() };
    match file.read_exact(&mut magic) {
        Ok(()) if super::is_binlog(&magic) => {}
        Ok(()) => return Err(not_binlog("it begins with other bytes")),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Err(not_binlog("it is empty")),
        Err(e) => return Err(LibraryError::io("read", path)(e)),
    }
    drop(file);
    let mut scan = Scan::new(path, MAGIC.len() as u64, size)?;
    let first = scan.next(|_| true)?.ok_or_else(|| not_binlog("it has no format description"))?;
    if first.header.kind != kind::FORMAT_DESCRIPTION {
        return Err(not_binlog("its first event is no format description"));
    }
    let format = FormatDescription::parse(scan.event()).map_err(|why| scan.damaged(first.offset, why))?;
    let second = scan.next(|_| true)?.ok_or_else(|| not_binlog("it has no Gtid_list"))?;
    match second.header.kind {
        kind::GTID_LIST => {}
        kind::START_ENCRYPTION => return Err(not_binlog("it is encrypted")),
        _ => {
            return Err(not_binlog(
                "its second event is no Gtid_list: it is not MariaDB's, or of a version before 10.0",
            ));
        }
    }
    let list =
        GtidList::parse(scan.event(), format.checksum).map_err(|why| scan.damaged(second.offset, why))?;
    Ok(FileEntry {
        number,
        size,
        before: StreamState::from_list(&list.gtids),
        header_end: second.end(),
        checksum: format.checksum,
        marks: Vec::new(),
    })
}

/// The end of the complete event groups in a file.
pub(super) struct End {
    pub(super) offset: u64,
    pub(super) state: StreamState,
    pub(super) marks: Vec<Mark>,
    /// The last event is a Rotate event that begins here.
    pub(super) rotate: Option<u64>,
    /// Bytes behind the end, and their defect.
    pub(super) torn: Option<(u64, String)>,
}

/// Reads a whole file, checksums included, up to the first event that is incomplete or damaged.
pub(super) fn scan_to_end(library: &Library, file: &FileEntry) -> Result<End, LibraryError> {
    let path = library.path(file.number);
    let mut scan = Scan::new(&path, file.header_end, file.size)?;
    let mut state = file.before.clone();
    let mut end =
        End { offset: file.header_end, state: state.clone(), marks: Vec::new(), rotate: None, torn: None };
    let mut group = Group::default();
    let why = loop {
        let found = match scan.next(|_| true) {
            Ok(Some(found)) => found,
            Ok(None) => break None,
            Err(LibraryError::Damaged { why, .. }) => break Some(why.to_string()),
            Err(error) => return Err(error),
        };
        let passed = split(scan.event(), file.checksum).and_then(|(header, _)| {
            if u64::from(header.end_pos) != found.end() {
                return Err(DecodeError::Invalid("end position"));
            }
            group.pass(header.kind, scan.event(), file.checksum)
        });
        match passed {
            Ok(Some(gtid)) => {
                mark(&mut end.marks, file.header_end, found.offset, &state);
                state.update(gtid.gtid);
            }
            Ok(None) => {}
            Err(why) => break Some(why.to_string()),
        }
        if group == Group::Outside {
            end.offset = found.end();
            end.rotate = (found.header.kind == kind::ROTATE).then_some(found.offset);
            end.state.clone_from(&state);
        }
    };
    let left = file.size - end.offset;
    if left > 0 {
        let why = why.unwrap_or_else(|| "the event group is incomplete".into());
        end.torn = Some((left, why));
    }
    Ok(end)
}

/// Adds a mark if the last one is far enough away.
pub(super) fn mark(marks: &mut Vec<Mark>, header_end: u64, offset: u64, state: &StreamState) {
    if is_mark_due(marks, header_end, offset) {
        marks.push(Mark { offset, state: state.clone() });
    }
}

/// Whether a mark at this place would be far enough behind the last one.
pub(super) fn is_mark_due(marks: &[Mark], header_end: u64, offset: u64) -> bool {
    offset >= marks.last().map_or(header_end, |mark| mark.offset) + MARK_BYTES
}

/// The groups of a file, from a mark on: for each its first event and its GTID.
pub(super) struct Groups {
    scan: Scan,
    checksum: Checksum,
    group: Group,
}

impl Groups {
    pub(super) fn new(
        path: &Path,
        offset: u64,
        end: u64,
        checksum: Checksum,
    ) -> Result<Groups, LibraryError> {
        Ok(Groups { scan: Scan::new(path, offset, end)?, checksum, group: Group::default() })
    }

    /// The next event, and its GTID if it begins a group. Bodies that do not matter are skipped, with their checksums.
    pub(super) fn next(&mut self) -> Result<Option<(Found, Option<GtidEvent>)>, LibraryError> {
        let group = self.group;
        let Some(found) = self.scan.next(|kind| group.needs_event(kind))? else { return Ok(None) };
        let passed = self.group.pass(found.header.kind, self.scan.event(), self.checksum);
        let gtid = passed.map_err(|why| self.scan.damaged(found.offset, why))?;
        Ok(Some((found, gtid)))
    }
}
