//! A directory of binlog files: one writer, many readers.
//!
//! Files are named `NAME.000001` and so on; numbers may be left out. Each has the magic bytes, a format description, a Gtid_list with the state of
//! the stream before it, and event groups. All but the last one end with a Rotate event.
//!
//! # After a crash
//!
//! A new file is written under another name, synced, and renamed. The old file's Rotate event is synced before that. So
//! after a crash only the last file can be incomplete, at its end:
//!
//! | found | done |
//! |---|---|
//! | an incomplete event group | cut ([`Writer::torn`] tells) |
//! | a Rotate event, but no next file | cut: readers have never seen it, and the caller repeats [`Writer::cut`] |
//! | a file under its temporary name | removed |
//! | a damaged format description or Gtid_list | an error: these were synced before the file got its name |

mod error;
mod reader;
mod scan;
mod start;
#[cfg(test)]
mod tests;
mod verbatim;
mod writer;

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

pub use error::{LibraryError, StartError, is_disk_full};
pub use reader::{Reader, Step};
pub use start::Start;
pub use verbatim::VerbatimWriter;
pub use writer::{Torn, Visibility, Writer};

use crate::event::{Checksum, MAGIC};
use crate::gtid::{Gtid, StreamState};

/// Marks are at least so many bytes apart.
const MARK_BYTES: u64 = 1 << 20;

/// A place in the stream: number of the file, and byte in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Position {
    /// The file's number: 7 for `NAME.000007`.
    pub file: u64,
    /// The byte in it.
    pub offset: u64,
}

/// The result of [`Library::purge_to`].
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Purged {
    /// The files that were removed.
    pub removed: Vec<String>,
    /// The oldest file that was to be removed, but a reader needs it: file and reader.
    pub kept_for: Option<(String, String)>,
    /// Readers that were further behind than the cap. Their next read fails.
    pub dropped: Vec<String>,
}

/// Binlog files for readers. Clones refer to the same files.
#[derive(Clone, Debug)]
pub struct Library {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    name: String,
    state: Mutex<State>,
    /// Signalled when the stream grows or the library closes.
    grown: Condvar,
    /// Held by a purge, so that there is one at a time.
    purging: Mutex<()>,
    /// See [`Library::set_behind`]. Not under the lock: the writer sets it at each delivery, and readers hold the lock.
    behind: AtomicBool,
}

#[derive(Default, Debug)]
struct State {
    /// Ascending numbers.
    files: VecDeque<FileEntry>,
    /// The state at the visible end of the last file.
    stream: StreamState,
    /// In each domain, how far the stream is complete although no event group says so.
    covered: BTreeMap<u32, Gtid>,
    /// Whether the seqnos of a domain need not ascend, but those of each server in it: in the copy of a primary's files.
    any_order: bool,
    /// See [`Library::continue_another`].
    continues_another: bool,
    /// See [`Library::continue_another`].
    unlogged: Vec<Gtid>,
    closed: bool,
    readers: BTreeMap<u64, ReaderEntry>,
    next_reader: u64,
}

#[derive(Debug)]
struct FileEntry {
    number: u64,
    /// The visible end: readers see no byte behind it.
    size: u64,
    /// The state of the stream before the file.
    before: StreamState,
    /// The end of the Gtid_list event.
    header_end: u64,
    checksum: Checksum,
    /// Ascending places between event groups, to shorten searches.
    marks: Vec<Mark>,
}

#[derive(Clone, Debug)]
struct Mark {
    offset: u64,
    /// The state of the stream before it.
    state: StreamState,
}

#[derive(Debug)]
struct ReaderEntry {
    label: String,
    at: Position,
    /// Set when a purge removed files that the reader needs.
    dropped: bool,
}

impl State {
    fn file(&self, number: u64) -> Option<&FileEntry> {
        self.files.get(self.files.binary_search_by_key(&number, |file| file.number).ok()?)
    }

    /// The file after this one.
    fn file_after(&self, number: u64) -> Option<&FileEntry> {
        self.files.get(self.files.partition_point(|file| file.number <= number))
    }

    fn file_mut(&mut self, number: u64) -> Option<&mut FileEntry> {
        let at = self.files.binary_search_by_key(&number, |file| file.number).ok()?;
        self.files.get_mut(at)
    }

    /// Bytes between a position and the visible end.
    fn bytes_behind(&self, at: Position) -> u64 {
        let later = self.files.iter().filter(|f| f.number >= at.file);
        later.map(|f| if f.number == at.file { f.size.saturating_sub(at.offset) } else { f.size }).sum()
    }
}

impl Library {
    /// Opens the files of a directory for reading, such as those of a stock server. Nothing in the directory is changed,
    /// and later files are not noticed.
    ///
    /// # Errors
    /// [`LibraryError`] if files cannot be read, are no binlog files, or one is missing between two others.
    pub fn open_read_only(dir: &Path, name: &str) -> Result<Library, LibraryError> {
        let library = Library::new(dir, name);
        let numbers = library.numbers()?;
        let mut files = VecDeque::new();
        for number in &numbers {
            files.push_back(library.read_header(*number)?);
        }
        let mut state = State { files, ..State::default() };
        if let Some(last) = state.files.back_mut() {
            let end = scan::scan_to_end(&library, last)?;
            last.size = end.offset;
            last.marks = end.marks;
            state.stream = end.state;
        }
        *library.lock() = state;
        Ok(library)
    }

    fn new(dir: &Path, name: &str) -> Library {
        let shared = Shared {
            dir: dir.to_owned(),
            name: name.to_owned(),
            state: Mutex::default(),
            grown: Condvar::new(),
            purging: Mutex::default(),
            behind: AtomicBool::new(false),
        };
        Library { shared: Arc::new(shared) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The numbers of the files in the directory, ascending. Between two of them none is missing: if numbers are left out,
    /// the file before says so.
    fn numbers(&self) -> Result<Vec<u64>, LibraryError> {
        let numbers = self.all_numbers()?;
        for pair in numbers.windows(2) {
            if pair[1] != pair[0] + 1 && !self.names_as_next(pair[0], pair[1])? {
                return Err(LibraryError::Missing {
                    file: self.file_name(pair[0] + 1),
                    next: self.file_name(pair[1]),
                });
            }
        }
        Ok(numbers)
    }

    /// The numbers of the files in the directory, ascending.
    fn all_numbers(&self) -> Result<Vec<u64>, LibraryError> {
        let dir = &self.shared.dir;
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(LibraryError::io("read the directory", dir))? {
            let entry = entry.map_err(LibraryError::io("read the directory", dir))?;
            let file = entry.file_name();
            numbers.extend(file.to_str().and_then(|file| self.number_of(file)));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Whether the last event of a file, a Rotate event, names this next file.
    fn names_as_next(&self, number: u64, next: u64) -> Result<bool, LibraryError> {
        let (path, name) = (self.path(number), self.file_name(next));
        let read = || -> std::io::Result<Vec<u8>> {
            let file = std::fs::File::open(&path)?;
            let mut end = vec![0; name.len() + Checksum::Crc32.len()];
            let at = file.metadata()?.len().saturating_sub(end.len() as u64);
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut end, at)?;
            Ok(end)
        };
        let end = read().map_err(LibraryError::io("read", &path))?;
        Ok(end.starts_with(name.as_bytes()))
    }

    /// The number in a file's name, if it is one of this library's names.
    pub fn number_of(&self, file: &str) -> Option<u64> {
        let digits = file.strip_prefix(&self.shared.name)?.strip_prefix('.')?;
        if digits.len() < 6 || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let number = digits.parse().ok()?;
        (self.file_name(number) == file).then_some(number)
    }

    /// The name of a file, without the directory.
    pub fn file_name(&self, number: u64) -> String {
        format!("{}.{number:06}", self.shared.name)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.shared.dir.join(self.file_name(number))
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// Names and sizes of the files, the oldest first.
    pub fn files(&self) -> Vec<(String, u64)> {
        self.lock().files.iter().map(|f| (self.file_name(f.number), f.size)).collect()
    }

    /// The visible end; `None` without a file.
    pub fn end(&self) -> Option<Position> {
        self.lock().files.back().map(|f| Position { file: f.number, offset: f.size })
    }

    /// The state of the stream at its visible end.
    pub fn state_at_end(&self) -> StreamState {
        self.lock().stream.clone()
    }

    /// The state of the stream before the first file; `None` without a file.
    pub fn state_at_begin(&self) -> Option<StreamState> {
        self.lock().files.front().map(|f| f.before.clone())
    }

    /// Bytes between a position and the visible end.
    pub fn bytes_behind(&self, at: Position) -> u64 {
        self.lock().bytes_behind(at)
    }

    /// Wakes all readers, and lets them end: [`Reader::wait`] returns at once from now on.
    pub fn close(&self) {
        self.lock().closed = true;
        self.shared.grown.notify_all();
    }

    /// The files go on where another server's ended. A replica of that one may be further back than the first file, although
    /// no Gtid_list says so: its server may have begun with a backup. And the other server's positions mean nothing here.
    ///
    /// `unlogged` are transactions that came before all files, and that no Gtid_list names.
    pub fn continue_another(&self, unlogged: &[Gtid]) {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.continues_another = true;
        state.unlogged = unlogged.to_vec();
        let marks = state.files.iter_mut().flat_map(|file| &mut file.marks).map(|mark| &mut mark.state);
        for stream in marks.chain([&mut state.stream]) {
            unlogged.iter().for_each(|gtid| stream.precede(*gtid));
        }
        for file in &mut state.files {
            unlogged.iter().for_each(|gtid| file.before.precede(*gtid));
        }
    }

    /// The state of the stream before a file with this Gtid_list.
    fn before_file(&self, list: &[Gtid]) -> StreamState {
        let mut before = StreamState::from_list(list);
        self.lock().unlogged.iter().for_each(|gtid| before.precede(*gtid));
        before
    }

    /// Whether [`Library::continue_another`] was called.
    pub fn continues_another(&self) -> bool {
        self.lock().continues_another
    }

    /// Whether the writer is still behind its source by more than a moment. A consumer that is ahead of the files is told to
    /// connect again then, and is refused for good otherwise.
    pub fn set_behind(&self, behind: bool) {
        self.shared.behind.store(behind, Ordering::Relaxed);
    }

    /// See [`Library::set_behind`].
    pub fn is_behind(&self) -> bool {
        self.shared.behind.load(Ordering::Relaxed)
    }

    /// Whether [`Library::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// The number of the oldest of the last files that have `bytes` bytes together, or of the oldest file if all have less.
    /// `None` without a file.
    pub fn oldest_of_last(&self, bytes: u64) -> Option<u64> {
        let state = self.lock();
        let mut sum = 0;
        let enough = state.files.iter().rev().find(|file| {
            sum += file.size;
            sum >= bytes
        });
        enough.or(state.files.front()).map(|file| file.number)
    }

    /// Removes the files before `number`. The last file stays in any case. A file that a reader needs stays, with all
    /// later ones, unless the reader is more than `cap` bytes behind the end: such a reader is dropped.
    ///
    /// # Errors
    /// [`LibraryError`] if a file cannot be removed. The files before it are gone then.
    pub fn purge_to(&self, number: u64, cap: u64) -> Result<Purged, LibraryError> {
        let _one_at_a_time = self.shared.purging.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut purged = Purged::default();
        let mut state = self.lock();
        let last = state.files.back().map_or(0, |f| f.number);
        let mut to = number.min(last);
        let mut behind = Vec::new();
        for (id, reader) in state.readers.iter().filter(|(_, reader)| !reader.dropped) {
            if reader.at.file >= to {
                continue;
            }
            if state.bytes_behind(reader.at) > cap {
                behind.push(*id);
            } else {
                to = reader.at.file;
                purged.kept_for = Some((self.file_name(to), reader.label.clone()));
            }
        }
        for id in behind {
            if let Some(reader) = state.readers.get_mut(&id).filter(|reader| reader.at.file < to) {
                reader.dropped = true;
                purged.dropped.push(reader.label.clone());
            }
        }
        let count = state.files.iter().take_while(|file| file.number < to).count();
        let mut files: VecDeque<FileEntry> = state.files.drain(..count).collect();
        // The writer must not wait for the removal of a large file.
        drop(state);
        // The oldest first: a failure leaves no gap.
        while let Some(first) = files.front() {
            let path = self.path(first.number);
            if let Err(error) = std::fs::remove_file(&path) {
                let mut state = self.lock();
                files.append(&mut state.files);
                state.files = files;
                return Err(LibraryError::io("remove", &path)(error));
            }
            purged.removed.push(self.file_name(first.number));
            files.pop_front();
        }
        Ok(purged)
    }

    /// Reads the first two or three events of a file.
    fn read_header(&self, number: u64) -> Result<FileEntry, LibraryError> {
        scan::read_header(&self.path(number), number)
    }
}

/// Whether a file's first bytes are those of a binlog file.
fn is_binlog(start: &[u8]) -> bool {
    start.starts_with(&MAGIC)
}
