//! The disk under a device file: its image and its state file.
//!
//! [`FileStorage`] is the real one. The simulator has another: at a crash it loses unsynced writes.

use super::entry::SIZE_MAX;
use crate::copy::EXTENT;
use rustix::fs::{
    Advice, FallocateFlags, FlockOperation, SeekFrom, fadvise, fallocate, flock, ioctl_ficlone, seek,
};
use rustix::io::Errno;
use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The device file's name.
pub(super) const IMAGE: &str = "device.img";
/// The name of the file with its position.
pub(super) const STATE: &str = "device.state";
/// The permissions of new files: they hold what clients have written.
const MODE: u32 = 0o600;
/// The longest state file.
const STATE_MAX: u64 = 64 << 10;

/// Where the image and its state lie. An image of one process only.
pub trait Storage: Debug + Send + Sync + 'static {
    /// The image's name, for people.
    fn image_name(&self) -> String;

    /// The state file's name, for people.
    fn state_name(&self) -> String;

    /// The image's length.
    ///
    /// # Errors
    /// As of the file system.
    fn length(&self) -> io::Result<u64>;

    /// Cuts or extends the image. A new part reads as zeroes.
    ///
    /// # Errors
    /// As of the file system.
    fn set_length(&self, length: u64) -> io::Result<()>;

    /// Reads at most as many bytes as there is room for. 0: the image ends here.
    ///
    /// # Errors
    /// As of the file system.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all bytes. They are durable after [`Storage::sync`].
    ///
    /// # Errors
    /// As of the file system. The image may hold a part of them.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes a range read as zeroes, without writing them. `hole`: the range takes no space afterwards. Returns false if that
    /// is not possible here.
    ///
    /// # Errors
    /// As of the file system.
    fn zero_at(&self, offset: u64, length: u64, hole: bool) -> io::Result<bool>;

    /// Makes all writes and the image's length durable.
    ///
    /// # Errors
    /// As of the file system. The content of writes that were not durable before is then unknown.
    fn sync(&self) -> io::Result<()>;

    /// Makes everything durable, and reads it from the disk from now on. After a failed sync, and after a process that was killed
    /// before it synced, memory may hold what the disk lacks.
    ///
    /// # Errors
    /// As of [`Storage::sync`].
    fn sync_and_reread(&self) -> io::Result<()> {
        self.sync()?;
        self.reread(0..u64::MAX)
    }

    /// Reads a range from the disk from now on, as far as that is possible: memory keeps what is not durable, and pages in use.
    ///
    /// # Errors
    /// As of the file system.
    fn reread(&self, range: Range<u64>) -> io::Result<()>;

    /// The part of a range from its beginning on that is data, or that is a hole: its length, and whether it is a hole.
    ///
    /// # Errors
    /// As of the file system.
    fn extent(&self, offset: u64, length: u64) -> io::Result<(u64, bool)>;

    /// The bytes of an extent in a copy from another member: the same on all members, at most [`EXTENT`].
    fn copy_unit(&self) -> u64 {
        EXTENT
    }

    /// Gives another file the image's content, with shared space, in a moment.
    ///
    /// # Errors
    /// As of the file system: most have no shared space, and none has it with another one.
    fn clone_to(&self, _other: &File) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    /// The content of the state file, if there is one.
    ///
    /// # Errors
    /// As of the file system, or if the file is too long.
    fn load_state(&self) -> io::Result<Option<Vec<u8>>>;

    /// Replaces the state file, durably: after a crash it is the old one or this one.
    ///
    /// # Errors
    /// As of the file system.
    fn save_state(&self, bytes: &[u8]) -> io::Result<()>;
}

/// Files in a directory.
#[derive(Debug)]
pub struct FileStorage {
    file: File,
    dir: PathBuf,
}

impl FileStorage {
    /// Opens the image in a directory, and locks it. Makes it if there is no state file.
    ///
    /// # Errors
    /// A text for people.
    pub fn open(dir: &Path) -> Result<FileStorage, String> {
        let (path, state) = (dir.join(IMAGE), dir.join(STATE));
        let is_known =
            state.try_exists().map_err(|error| format!("cannot read {}: {error}", state.display()))?;
        let mut options = OpenOptions::new();
        // Its content is for nobody else.
        options.read(true).write(true).create(!is_known).mode(MODE);
        let file = options.open(&path).map_err(|error| format!("cannot open {}: {error}", path.display()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(FileStorage { file, dir: dir.to_owned() }),
            Err(Errno::WOULDBLOCK) => Err(format!(
                "another process uses {}: stop it first, or name another directory with --dir",
                path.display()
            )),
            Err(error) => Err(format!("cannot lock {}: {error}", path.display())),
        }
    }
}

impl Storage for FileStorage {
    fn image_name(&self) -> String {
        self.dir.join(IMAGE).display().to_string()
    }

    fn state_name(&self) -> String {
        self.dir.join(STATE).display().to_string()
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(into, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn zero_at(&self, offset: u64, length: u64, hole: bool) -> io::Result<bool> {
        let how = match hole {
            true => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            false => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        match fallocate(&self.file, how, offset, length) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn reread(&self, range: Range<u64>) -> io::Result<()> {
        let length = range.end.saturating_sub(range.start);
        // Without a length it is the rest of the file.
        let length = NonZeroU64::new(length).filter(|_| range.end <= SIZE_MAX);
        Ok(fadvise(&self.file, range.start, length, Advice::DontNeed)?)
    }

    fn extent(&self, offset: u64, length: u64) -> io::Result<(u64, bool)> {
        let seek = |whence| match seek(&self.file, whence) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(io::Error::from(error)),
        };
        match seek(SeekFrom::Data(offset))? {
            Some(data) if data <= offset => {
                let hole = seek(SeekFrom::Hole(offset))?.unwrap_or(u64::MAX).max(offset + 1);
                Ok(((hole - offset).min(length), false))
            }
            Some(data) => Ok(((data - offset).min(length), true)),
            None => Ok((length, true)),
        }
    }

    fn clone_to(&self, other: &File) -> io::Result<()> {
        Ok(ioctl_ficlone(other, &self.file)?)
    }

    fn load_state(&self) -> io::Result<Option<Vec<u8>>> {
        let path = self.dir.join(STATE);
        match std::fs::metadata(&path) {
            Ok(found) if found.len() > STATE_MAX => {
                Err(io::Error::new(ErrorKind::InvalidData, "it is no state file"))
            }
            Ok(_) => std::fs::read(&path).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn save_state(&self, bytes: &[u8]) -> io::Result<()> {
        let (path, next) = (self.dir.join(STATE), self.dir.join("device.state.new"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(&next)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&next, &path)?;
        File::open(&self.dir)?.sync_all()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// Files in a directory of a file system with limits of its own.
    #[derive(Debug)]
    pub(in crate::device) struct TestStorage {
        files: FileStorage,
        /// The length of its largest file.
        largest: u64,
        /// The ranges that are to be read from the disk.
        pub(in crate::device) reread: Arc<Mutex<Vec<Range<u64>>>>,
    }

    impl TestStorage {
        pub(in crate::device) fn open(dir: &Path, largest: u64) -> TestStorage {
            TestStorage { files: FileStorage::open(dir).unwrap(), largest, reread: Arc::default() }
        }
    }

    impl Storage for TestStorage {
        fn image_name(&self) -> String {
            self.files.image_name()
        }

        fn state_name(&self) -> String {
            self.files.state_name()
        }

        fn length(&self) -> io::Result<u64> {
            self.files.length()
        }

        fn set_length(&self, length: u64) -> io::Result<()> {
            match length > self.largest {
                true => Err(Errno::FBIG.into()),
                false => self.files.set_length(length),
            }
        }

        fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
            self.files.read_at(into, offset)
        }

        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            self.files.write_at(bytes, offset)
        }

        fn zero_at(&self, offset: u64, length: u64, hole: bool) -> io::Result<bool> {
            self.files.zero_at(offset, length, hole)
        }

        fn sync(&self) -> io::Result<()> {
            self.files.sync()
        }

        fn reread(&self, range: Range<u64>) -> io::Result<()> {
            self.reread.lock().unwrap().push(range.clone());
            self.files.reread(range)
        }

        fn extent(&self, offset: u64, length: u64) -> io::Result<(u64, bool)> {
            self.files.extent(offset, length)
        }

        fn load_state(&self) -> io::Result<Option<Vec<u8>>> {
            self.files.load_state()
        }

        fn save_state(&self, bytes: &[u8]) -> io::Result<()> {
            self.files.save_state(bytes)
        }
    }
}
