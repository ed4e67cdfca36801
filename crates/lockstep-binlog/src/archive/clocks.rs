//! The leader's clock for each seqno of the log, beside the library's files.
//!
//! Binlog events have whole seconds of the clock at their origin. Here is the leader's clock at the append, in µs since
//! 1970: the clock of `apply.until`. Leaders' clocks differ, and go back; so a seqno's clock is the highest one up to it.
//! `apply.until` stops before the first entry whose time is later, which is the first one whose highest time is later.
//!
//! A file `clocks.N` has a record of 12 bytes for each seqno of its block: the clock, and a CRC32. A record may be written
//! again: an instance that reads entries again computes the same clock.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a record.
const RECORD: usize = 12;
/// Records are written together up to this size.
const BUFFER_BYTES: usize = 1 << 16;
/// Seqnos without an entry that may lie before a position.
const LEFT_OUT_MAX: u64 = 1 << 12;

fn record(seqno: u64, clock: u64) -> [u8; RECORD] {
    let mut out = [0; RECORD];
    out[..8].copy_from_slice(&clock.to_le_bytes());
    out[8..].copy_from_slice(&sum(seqno, clock).to_le_bytes());
    out
}

fn sum(seqno: u64, clock: u64) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&seqno.to_le_bytes());
    crc.update(&clock.to_le_bytes());
    crc.finalize()
}

/// The clock in a record; `None` if none was written.
fn clock_in(seqno: u64, record: &[u8]) -> Option<u64> {
    let (clock, crc) = record.split_first_chunk::<8>()?;
    let clock = u64::from_le_bytes(*clock);
    (crc == sum(seqno, clock).to_le_bytes()).then_some(clock)
}

fn path_of(dir: &Path, block: u64) -> PathBuf {
    dir.join(format!("clocks.{block:06}"))
}

/// Writes clocks. See the module's documentation.
#[derive(Debug)]
pub struct ClockLog {
    dir: PathBuf,
    /// Seqnos of a file.
    block_len: u64,
    /// The highest time so far.
    clock: u64,
    file: Option<(u64, File)>,
    /// Records that are not written yet: those of ascending seqnos from `first` on, all of one block.
    buffer: Vec<u8>,
    first: u64,
}

impl ClockLog {
    /// The clocks in this directory, `block_len` in each file.
    pub fn new(dir: &Path, block_len: u64) -> ClockLog {
        ClockLog { dir: dir.to_owned(), block_len, clock: 0, file: None, buffer: Vec::new(), first: 0 }
    }

    /// The entries after this position follow. `known`: its clock, if there is one from elsewhere.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn begin(&mut self, position: u64, known: Option<u64>) -> std::io::Result<()> {
        self.clock = match known {
            Some(clock) => clock,
            None => self.at(position)?,
        };
        // So that the clock of the position is known next time.
        match position {
            0 => Ok(()),
            position => self.note(position, 0).map(drop),
        }
    }

    /// The clock of a position whose records are written: that of the last entry up to it. 0 if it is not known.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn at(&self, position: u64) -> std::io::Result<u64> {
        let mut open: Option<(u64, File)> = None;
        let mut seqno = position;
        while seqno > position.saturating_sub(LEFT_OUT_MAX) {
            let block = self.block(seqno);
            if open.as_ref().is_none_or(|(of, _)| *of != block) {
                open = match File::open(path_of(&self.dir, block)) {
                    Ok(file) => Some((block, file)),
                    Err(e) if e.kind() == ErrorKind::NotFound => return Ok(0),
                    Err(e) => return Err(e),
                };
            }
            let mut bytes = [0; RECORD];
            let place = (seqno - 1 - block * self.block_len) * RECORD as u64;
            let read = open.as_ref().map(|(_, file)| file.read_exact_at(&mut bytes, place));
            match read {
                Some(Err(e)) if e.kind() != ErrorKind::UnexpectedEof => return Err(e),
                Some(Ok(())) if clock_in(seqno, &bytes).is_some() => {
                    return Ok(clock_in(seqno, &bytes).unwrap_or(0));
                }
                _ => seqno -= 1,
            }
        }
        Ok(0)
    }

    /// Notes the time of the entry with this seqno, and returns its clock. After an error the caller notes the same again.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn note(&mut self, seqno: u64, time: u64) -> std::io::Result<u64> {
        self.clock = self.clock.max(time);
        let next = self.first + (self.buffer.len() / RECORD) as u64;
        let same_block = self.block(seqno) == self.block(self.first);
        if !self.buffer.is_empty() && (seqno != next || !same_block || self.buffer.len() >= BUFFER_BYTES) {
            self.flush()?;
        }
        if self.buffer.is_empty() {
            self.first = seqno;
        }
        self.buffer.extend(record(seqno, self.clock));
        Ok(self.clock)
    }

    /// The clock of the last entry.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    fn block(&self, seqno: u64) -> u64 {
        seqno.saturating_sub(1) / self.block_len
    }

    /// Writes what was noted. If the disk is full, a later call goes on: nothing that was noted is lost.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn flush(&mut self) -> std::io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let block = self.block(self.first);
        if self.file.as_ref().is_none_or(|(open, _)| *open != block) {
            self.sync_file()?;
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o640);
            let file = options.open(path_of(&self.dir, block))?;
            File::open(&self.dir)?.sync_all()?;
            self.file = Some((block, file));
        }
        if let Some((_, file)) = &self.file {
            let at = (self.first - 1 - block * self.block_len) * RECORD as u64;
            file.write_all_at(&self.buffer, at)?;
        }
        self.buffer.clear();
        Ok(())
    }

    /// After a failed sync the file's durable content is unknown. So its error is none that the caller repeats, as it does
    /// while the disk is full.
    fn sync_file(&self) -> std::io::Result<()> {
        match &self.file {
            Some((_, file)) => {
                file.sync_data().map_err(|e| std::io::Error::other(format!("a sync has failed: {e}")))
            }
            None => Ok(()),
        }
    }

    /// Makes durable what was noted.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn sync(&mut self) -> std::io::Result<()> {
        self.flush()?;
        self.sync_file()
    }
}

/// Reads clocks, also while they are written.
#[derive(Debug)]
pub struct Clocks {
    dir: PathBuf,
    block_len: u64,
    /// The file that was read last, as it was then.
    loaded: Option<(u64, Vec<u8>)>,
}

impl Clocks {
    /// The clocks in this directory, `block_len` in each file.
    pub fn new(dir: &Path, block_len: u64) -> Clocks {
        Clocks { dir: dir.to_owned(), block_len, loaded: None }
    }

    /// The clock of a seqno; `None` if it was not noted.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn get(&mut self, seqno: u64) -> std::io::Result<Option<u64>> {
        let Some(place) = seqno.checked_sub(1) else { return Ok(None) };
        let (block, at) = (place / self.block_len, (place % self.block_len) as usize * RECORD);
        let look = |bytes: &[u8]| bytes.get(at..at + RECORD).and_then(|r| clock_in(seqno, r));
        if let Some((loaded, bytes)) = &self.loaded
            && *loaded == block
            && let Some(clock) = look(bytes)
        {
            return Ok(Some(clock));
        }
        let bytes = match std::fs::read(path_of(&self.dir, block)) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let found = look(&bytes);
        self.loaded = Some((block, bytes));
        Ok(found)
    }

    /// Removes the files of blocks that end before this seqno's block.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn remove_before(&self, seqno: u64) -> std::io::Result<()> {
        let keep = seqno.saturating_sub(1) / self.block_len;
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let block = name.to_str().and_then(|name| name.strip_prefix("clocks.")?.parse::<u64>().ok());
            if block.is_some_and(|block| block < keep) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}
