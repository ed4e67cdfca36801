//! Readers of a library: each follows the stream from file to file, on its own thread.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::{Library, LibraryError, Position, ReaderEntry};
use crate::codec::DecodeError;
use crate::event::{Checksum, HEADER_LEN, Header, MAGIC};

/// Bytes read at once.
const CHUNK: usize = 128 << 10;
/// A larger buffer, for a large event, is given back.
const BUFFER_KEPT: usize = 1 << 20;

/// The result of [`Reader::advance`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The next event: see [`Reader::event`].
    Event,
    /// The file has ended, and another one follows: see [`Reader::next_file`].
    FileEnd,
    /// The reader is at the end of the stream: see [`Reader::wait`].
    End,
}

/// Reads events from a position on. While it exists, the files it needs are not purged, up to the purge's cap.
#[derive(Debug)]
pub struct Reader {
    library: Library,
    id: u64,
    file: File,
    number: u64,
    checksum: Checksum,
    /// Where the event after [`Reader::event`] begins.
    offset: u64,
    /// The end of the file as this reader knows it. Invariant: `offset <= end`.
    end: u64,
    /// Bytes of the file up to `offset + (buffer.len() - at)`.
    buffer: Vec<u8>,
    /// Where the next event begins in `buffer`.
    at: usize,
    /// The last event in `buffer`.
    event: std::ops::Range<usize>,
}

impl Library {
    /// A reader that begins at this position, which must be an event's begin. `label` names its consumer in the results
    /// of purges.
    ///
    /// # Errors
    /// [`LibraryError`] if there is no such file or it cannot be opened.
    pub fn reader(&self, label: &str, at: Position) -> Result<Reader, LibraryError> {
        // Registered first: from now on the file cannot be purged.
        let (id, end, checksum) = {
            let mut state = self.lock();
            let (end, checksum) = match state.file(at.file) {
                Some(file) => (file.size, file.checksum),
                None => return Err(self.purged(at.file)),
            };
            let id = state.next_reader;
            state.next_reader += 1;
            state.readers.insert(id, ReaderEntry { label: label.to_owned(), at, dropped: false });
            (id, end, checksum)
        };
        let path = self.path(at.file);
        match File::open(&path) {
            Ok(file) => Ok(Reader {
                library: self.clone(),
                id,
                file,
                number: at.file,
                checksum,
                offset: at.offset,
                end: end.max(at.offset),
                buffer: Vec::new(),
                at: 0,
                event: 0..0,
            }),
            Err(error) => {
                self.lock().readers.remove(&id);
                Err(LibraryError::io("open", &path)(error))
            }
        }
    }

    /// Waits until the stream goes on behind this position, or until the first file exists; otherwise as
    /// [`Reader::wait`]. `stop` is called with the library locked, so it must not use the library.
    pub fn wait_beyond(&self, at: Option<Position>, timeout: Duration, stop: impl Fn() -> bool) {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            let end = state.files.back().map(|file| Position { file: file.number, offset: file.size });
            let left = deadline.saturating_duration_since(Instant::now());
            if end > at || state.closed || left.is_zero() || stop() {
                return;
            }
            let waited = self.shared.grown.wait_timeout(state, left);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// Wakes all readers, so that they look whether they are to stop.
    pub fn wake(&self) {
        // With the lock, so that no reader is between its look and its wait.
        let _state = self.lock();
        self.shared.grown.notify_all();
    }

    fn purged(&self, number: u64) -> LibraryError {
        let oldest = self.lock().files.front().map_or(0, |f| f.number);
        LibraryError::Purged { file: self.file_name(number), oldest: self.file_name(oldest) }
    }
}

impl Reader {
    /// The file's format description, whole.
    ///
    /// # Errors
    /// [`LibraryError`] if it cannot be read.
    pub fn format_description(&self) -> Result<Vec<u8>, LibraryError> {
        let path = self.library.path(self.number);
        let mut header = [0; HEADER_LEN];
        let start = MAGIC.len() as u64;
        self.file.read_exact_at(&mut header, start).map_err(LibraryError::io("read", &path))?;
        let damaged = |why| LibraryError::Damaged { file: path.clone(), offset: start, why };
        let length = Header::parse(&header).map_err(damaged)?.length as usize;
        // A format description of MariaDB 10 has some 250 bytes.
        if length > 4096 {
            return Err(damaged(DecodeError::Invalid("event length")));
        }
        let mut event = vec![0; length];
        self.file.read_exact_at(&mut event, start).map_err(LibraryError::io("read", &path))?;
        Ok(event)
    }

    /// The file's name.
    pub fn file_name(&self) -> String {
        self.library.file_name(self.number)
    }

    /// Where the next event begins.
    pub fn position(&self) -> Position {
        Position { file: self.number, offset: self.offset }
    }

    /// Whether the file's events have checksums.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// The last event.
    pub fn event(&self) -> &[u8] {
        &self.buffer[self.event.clone()]
    }

    /// Whether the reader has passed the last event that it knows of.
    pub fn is_at_known_end(&self) -> bool {
        self.offset == self.end
    }

    /// Whether the reader has passed the last event of the stream.
    pub fn is_at_visible_end(&self) -> bool {
        self.library.end() == Some(self.position())
    }

    /// Goes to the next event. Does not wait.
    ///
    /// # Errors
    /// [`LibraryError`] if the file cannot be read or has damaged bytes, or was purged.
    pub fn advance(&mut self) -> Result<Step, LibraryError> {
        loop {
            if self.offset < self.end {
                self.fill(HEADER_LEN)?;
                let header = Header::parse(&self.buffer[self.at..]).map_err(|why| self.damaged(why))?;
                let length = header.length as usize;
                self.fill(length)?;
                self.event = self.at..self.at + length;
                self.at += length;
                self.offset += length as u64;
                return Ok(Step::Event);
            }
            let at = self.position();
            let mut state = self.library.lock();
            match state.readers.get_mut(&self.id) {
                Some(entry) if !entry.dropped => entry.at = at,
                _ => {
                    drop(state);
                    return Err(self.library.purged(self.number));
                }
            }
            let size = state.file(self.number).map(|file| file.size);
            let last = state.files.back().map_or(0, |file| file.number);
            drop(state);
            match size {
                Some(size) if size > self.end => self.end = size,
                Some(_) if self.number < last => return Ok(Step::FileEnd),
                Some(_) => return Ok(Step::End),
                None => return Err(self.library.purged(self.number)),
            }
        }
    }

    fn damaged(&self, why: DecodeError) -> LibraryError {
        LibraryError::Damaged { file: self.library.path(self.number), offset: self.offset, why }
    }

    /// Reads until the buffer has `len` bytes from `at` on.
    fn fill(&mut self, len: usize) -> Result<(), LibraryError> {
        let have = self.buffer.len() - self.at;
        if have >= len {
            return Ok(());
        }
        if len as u64 > self.end - self.offset {
            return Err(self.damaged(DecodeError::Short));
        }
        self.buffer.drain(..self.at);
        self.at = 0;
        if self.buffer.capacity() > BUFFER_KEPT && len <= CHUNK {
            self.buffer.shrink_to(CHUNK.max(have));
        }
        // Never beyond the visible end: bytes behind it may still change.
        let wanted = (self.end - self.offset).min(len.max(CHUNK) as u64) as usize;
        self.buffer.resize(wanted, 0);
        let read = self.file.read_exact_at(&mut self.buffer[have..], self.offset + have as u64);
        if let Err(error) = read {
            self.buffer.truncate(have);
            return Err(LibraryError::io("read", &self.library.path(self.number))(error));
        }
        let at = self.position();
        match self.library.lock().readers.get_mut(&self.id) {
            Some(entry) if !entry.dropped => {
                entry.at = at;
                return Ok(());
            }
            _ => {}
        }
        // An open file that was removed still takes its space on the disk, so its reader does not go on to its end.
        Err(self.library.purged(self.number))
    }

    /// Waits at the end of the stream until it grows, at most for `timeout`. Returns also when the library is closed, or
    /// [`Library::wake`] was called and `stop` says so.
    pub fn wait(&self, timeout: Duration, stop: impl Fn() -> bool) {
        let (number, end) = (self.number, self.end);
        self.library.wait_beyond(Some(Position { file: number, offset: end }), timeout, stop);
    }

    /// Goes to the begin of the next file, behind its magic bytes.
    ///
    /// # Errors
    /// [`LibraryError`] if there is none, or it cannot be opened.
    pub fn next_file(&mut self) -> Result<(), LibraryError> {
        let mut state = self.library.lock();
        // A file that is missing here was purged, and its reader dropped.
        let found = state.file(self.number).and_then(|_| state.file_after(self.number));
        let found = found.map(|file| (file.number, file.size, file.checksum));
        let number = found.map_or(self.number, |(number, ..)| number);
        let at = Position { file: number, offset: MAGIC.len() as u64 };
        let entry = state.readers.get_mut(&self.id).filter(|entry| !entry.dropped);
        let (Some((_, end, checksum)), Some(entry)) = (found, entry) else {
            drop(state);
            return Err(self.library.purged(number));
        };
        entry.at = at;
        drop(state);
        let path = self.library.path(number);
        self.file = File::open(&path).map_err(LibraryError::io("open", &path))?;
        (self.number, self.checksum) = (number, checksum);
        (self.offset, self.end) = (at.offset, end);
        self.buffer.clear();
        (self.at, self.event) = (0, 0..0);
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.library.lock().readers.remove(&self.id);
    }
}
