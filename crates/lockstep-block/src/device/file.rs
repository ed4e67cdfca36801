//! The device file of a copy, and the position that it has.

use super::attachments::Attachments;
use super::extent_map::{Content, ExtentMap, Run};
use super::storage::{FileStorage, Storage};
use lockstep_core::codec::{DecodeError, Reader, Writer};
use lockstep_core::{Gtid, Uuid};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

const STATE_MAGIC: &[u8; 8] = b"LSBLK\0\0\x02";
/// Zeroes are written so many at a time where the file system cannot make them.
const ZEROES: usize = 1 << 20;

/// What the device file holds, durably.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Position {
    /// Every entry up to this one is in the file. Later ones may be, in part.
    pub gtid: Gtid,
    /// The id of the log with which the file reached it; nil if unknown.
    pub log: Uuid,
    /// The attachments as of this entry.
    pub attachments: Attachments,
    /// Whether the file is a copy at all: not while another member's state is being copied to it.
    pub whole: bool,
}

impl Position {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.raw(STATE_MAGIC);
        w.raw(&self.gtid.uuid.0);
        w.i64(self.gtid.seqno);
        w.raw(&self.log.0);
        w.bool(self.whole);
        self.attachments.encode(&mut w);
        let mut bytes = w.into_bytes().to_vec();
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// Reads a state file.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Position, DecodeError> {
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or(DecodeError::Short)?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
            return Err(DecodeError::Invalid("checksum"));
        }
        let mut r = Reader::new(bytes::Bytes::copy_from_slice(body));
        if r.array::<8>()? != *STATE_MAGIC {
            return Err(DecodeError::Invalid("version"));
        }
        let gtid = Gtid { uuid: Uuid(r.array()?), seqno: r.i64()? };
        let log = Uuid(r.array()?);
        let whole = r.bool()?;
        let attachments = Attachments::decode(&mut r)?;
        match r.take(1) {
            Err(_) => Ok(Position { gtid, log, attachments, whole }),
            Ok(_) => Err(DecodeError::Trailing),
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct DeviceFile {
    storage: Box<dyn Storage>,
    /// Held while the file grows: a lesser length of one thread must not follow a greater one of another.
    growing: Mutex<()>,
}

impl DeviceFile {
    /// Opens or makes the device file in a directory, and locks it. Returns it with its position, which is undefined if it is
    /// new.
    ///
    /// # Errors
    /// A text for people.
    pub fn open(dir: &Path) -> Result<(DeviceFile, Position), String> {
        DeviceFile::over(Box::new(FileStorage::open(dir)?))
    }

    /// As [`DeviceFile::open`], over this storage.
    ///
    /// # Errors
    /// A text for people.
    pub fn over(storage: Box<dyn Storage>) -> Result<(DeviceFile, Position), String> {
        let (path, state) = (storage.image_name(), storage.state_name());
        let fails =
            |what: &str, path: &str, error: &dyn std::fmt::Display| format!("cannot {what} {path}: {error}");
        let position = match storage.load_state().map_err(|e| fails("read", &state, &e))? {
            Some(bytes) => {
                let position = Position::decode(&bytes).map_err(|error| {
                    format!(
                        "{state} {error}: what {path} holds is unknown. Set both files aside, and keep them. Then copy the two \
                         files of another member, which is stopped meanwhile"
                    )
                })?;
                Some(position)
            }
            None => None,
        };
        let device = DeviceFile { storage, growing: Mutex::default() };
        let length = device.storage.length().map_err(|e| fails("read", &path, &e))?;
        let position = match position {
            Some(position) => position,
            None if length > 0 => {
                return Err(format!(
                    "{state} is lost: what {path} holds is unknown. Set this file aside, and keep it. Then copy the two files of \
                     another member, which is stopped meanwhile"
                ));
            }
            None => {
                let position = Position {
                    gtid: Gtid::UNDEFINED,
                    log: Uuid::NIL,
                    attachments: Attachments::default(),
                    whole: true,
                };
                device.save(&position).map_err(|e| fails("write", &state, &e))?;
                position
            }
        };
        if !position.gtid.is_defined() && length > 0 {
            // Writes of a process that was killed before it saved a position.
            device.storage.set_length(0).map_err(|e| fails("empty", &path, &e))?;
        }
        // The file is durably as long as each position that is saved says.
        let size = position.attachments.size();
        if position.whole && length < size {
            return Err(format!(
                "{path} has {length} bytes, and the device has {size}: its end is lost. Put the whole file back. If another \
                 member has the device, set this directory aside, and copy the device from there"
            ));
        }
        Ok((device, position))
    }

    /// Makes the file at least this long. The new part reads as zeroes. A file that is longer than the device is in order.
    ///
    /// # Errors
    /// As of the file system. [`ErrorKind::FileTooLarge`]: it holds no file of this length.
    pub fn grow(&self, size: u64) -> io::Result<()> {
        let _guard = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.storage.length()? >= size {
            return Ok(());
        }
        self.storage.set_length(size).map_err(|error| match error.kind() {
            ErrorKind::FileTooLarge => {
                let text = format!(
                    "the file system of {} holds no file of {size} bytes ({error}). Move the member's directory to one that \
                     does, for instance XFS",
                    self.storage.image_name()
                );
                io::Error::new(ErrorKind::FileTooLarge, text)
            }
            _ => error,
        })
    }

    /// Gives the file this length, also a lesser one: before another member's device is copied to it. Bytes behind the
    /// device's end would become a part of it when it grows.
    ///
    /// # Errors
    /// As of the file system.
    pub fn fit(&self, size: u64) -> io::Result<()> {
        if self.storage.length()? == size {
            return Ok(());
        }
        self.storage.set_length(size)?;
        self.storage.sync()
    }

    /// Reads. Bytes behind the end read as zeroes.
    ///
    /// # Errors
    /// As of the file system.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            match self.storage.read_at(&mut into[done..], offset + done as u64) {
                Ok(0) => {
                    into[done..].fill(0);
                    return Ok(());
                }
                Ok(n) => done += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all runs, and syncs them and the file's size. In any order: until [`DeviceFile::save`] the position is an earlier one, from which the log
    /// is read again.
    ///
    /// # Errors
    /// As of the file system. The file may hold a part of them.
    pub fn write(&self, runs: &ExtentMap) -> io::Result<()> {
        for run in runs.runs() {
            self.write_run(&run)?;
        }
        self.storage.sync()
    }

    fn write_run(&self, run: &Run) -> io::Result<()> {
        match &run.content {
            Content::Data(bytes) => self.storage.write_at(bytes, run.offset),
            Content::Zeroes { hole } => match self.storage.zero_at(run.offset, run.length, *hole)? {
                true => Ok(()),
                false => self.write_zeroes(run),
            },
        }
    }

    fn write_zeroes(&self, run: &Run) -> io::Result<()> {
        let zeroes = vec![0; ZEROES.min(run.length as usize)];
        let mut at = run.offset;
        while at < run.end() {
            let length = zeroes.len().min((run.end() - at) as usize);
            self.storage.write_at(&zeroes[..length], at)?;
            at += length as u64;
        }
        Ok(())
    }

    /// Saves the position, durably: after a crash it is the old one or this one.
    ///
    /// # Errors
    /// As of the file system.
    pub fn save(&self, position: &Position) -> io::Result<()> {
        self.storage.save_state(&position.encode())
    }

    /// See [`Storage::sync_and_reread`].
    ///
    /// # Errors
    /// As of the file system.
    pub fn sync_and_reread(&self) -> io::Result<()> {
        self.storage.sync_and_reread()
    }

    /// See [`Storage::reread`].
    ///
    /// # Errors
    /// As of the file system.
    pub fn reread(&self, range: Range<u64>) -> io::Result<()> {
        self.storage.reread(range)
    }

    /// Gives another file this one's content, with shared space, in a moment.
    ///
    /// # Errors
    /// As of the file system: most have no shared space, and none has it with another one.
    pub fn clone_to(&self, other: &File) -> io::Result<()> {
        self.storage.clone_to(other)
    }

    /// See [`Storage::copy_unit`].
    pub fn copy_unit(&self) -> u64 {
        self.storage.copy_unit()
    }

    /// The part of a range from its beginning on that is data, or that is a hole, of the file: its length, and whether it is a
    /// hole.
    ///
    /// # Errors
    /// As of the file system.
    pub fn extent(&self, offset: u64, length: u64) -> io::Result<(u64, bool)> {
        self.storage.extent(offset, length)
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::Entry;
    use super::super::storage::{IMAGE, STATE};
    use super::*;
    use bytes::Bytes;
    use std::fs::OpenOptions;
    use std::path::PathBuf;

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("lockstep-block-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn position(seqno: i64) -> Position {
        Position {
            gtid: Gtid { uuid: Uuid([4; 16]), seqno },
            log: Uuid([5; 16]),
            attachments: Attachments::default(),
            whole: true,
        }
    }

    #[test]
    fn position_survives_and_damage_is_noticed() {
        let dir = dir("position");
        let (file, found) = DeviceFile::open(&dir).unwrap();
        assert!(DeviceFile::open(&dir).unwrap_err().contains("another process"));
        assert!(!found.gtid.is_defined() && found.whole);
        file.save(&position(7)).unwrap();
        file.save(&position(8)).unwrap();
        drop(file);
        assert_eq!(DeviceFile::open(&dir).unwrap().1, position(8));
        let path = dir.join(STATE);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[12] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let text = DeviceFile::open(&dir).unwrap_err();
        assert!(text.contains("checksum") && text.contains("Set both files aside"), "{text}");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn device_file_without_state_is_not_touched() {
        let dir = dir("orphan");
        std::fs::write(dir.join(IMAGE), b"somebody's data").unwrap();
        assert!(DeviceFile::open(&dir).unwrap_err().contains("is lost"));
        assert_eq!(std::fs::read(dir.join(IMAGE)).unwrap(), b"somebody's data");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn writes_before_the_first_position_are_dropped() {
        let dir = dir("killed");
        drop(DeviceFile::open(&dir).unwrap());
        std::fs::write(dir.join(IMAGE), b"of a killed process").unwrap();
        let (file, _) = DeviceFile::open(&dir).unwrap();
        let mut found = [1; 4];
        file.read(0, &mut found).unwrap();
        assert_eq!(found, [0; 4]);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn lost_device_file_is_no_empty_device() {
        let dir = dir("lost");
        DeviceFile::open(&dir).unwrap().0.save(&position(3)).unwrap();
        std::fs::remove_file(dir.join(IMAGE)).unwrap();
        assert!(DeviceFile::open(&dir).unwrap_err().contains("cannot open"));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn device_file_in_use_is_not_touched() {
        let dir = dir("used");
        let (file, _) = DeviceFile::open(&dir).unwrap();
        file.grow(4096).unwrap();
        assert!(DeviceFile::open(&dir).unwrap_err().contains("another process uses"));
        assert_eq!(std::fs::metadata(dir.join(IMAGE)).unwrap().len(), 4096, "it has no position yet");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn cut_device_file_is_refused() {
        let dir = dir("cut");
        let mut cut = position(3);
        let resize = Entry::Resize { before: 0, size: 4096, token: 1 };
        cut.attachments.take(&Uuid([1; 16]), &resize);
        let (file, _) = DeviceFile::open(&dir).unwrap();
        file.grow(4096).unwrap();
        file.save(&cut).unwrap();
        drop(file);
        assert_eq!(DeviceFile::open(&dir).unwrap().1, cut);
        OpenOptions::new().write(true).open(dir.join(IMAGE)).unwrap().set_len(4095).unwrap();
        let text = DeviceFile::open(&dir).unwrap_err();
        assert!(text.contains("4095 bytes") && text.contains("4096"), "{text}");
        assert_eq!(std::fs::metadata(dir.join(IMAGE)).unwrap().len(), 4095);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn runs_reach_the_file_and_holes_take_no_space() {
        let dir = dir("runs");
        let (file, _) = DeviceFile::open(&dir).unwrap();
        file.grow(1 << 20).unwrap();
        let mut runs = ExtentMap::default();
        runs.insert(Run::data(0, Bytes::from(vec![5; 1 << 16])), 0);
        runs.insert(Run::data(1 << 19, Bytes::from_static(b"far")), 0);
        file.write(&runs).unwrap();
        let mut runs = ExtentMap::default();
        runs.insert(Run::zeroes(4096, 8192, true), 0);
        runs.insert(Run::zeroes(10, 20, false), 0);
        file.write(&runs).unwrap();
        let mut found = vec![9; 1 << 16];
        file.read(0, &mut found).unwrap();
        let mut expected = vec![5; 1 << 16];
        expected[4096..4096 + 8192].fill(0);
        expected[10..30].fill(0);
        assert_eq!(found, expected);
        let mut end = [9; 8];
        file.read((1 << 20) - 4, &mut end).unwrap();
        assert_eq!(end, [0; 8], "beyond the end, too");
        let (length, hole) = file.extent(0, 1 << 20).unwrap();
        assert!(!hole && length >= 4096, "{length}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
