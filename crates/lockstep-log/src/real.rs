//! The operating system's file system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};

use crate::error::OpenError;
use crate::{Disk, DiskFile};

/// A directory of the real file system. Files are made with mode 0600 and close on exec.
#[derive(Clone, Debug)]
pub struct RealDisk {
    inner: Arc<Dir>,
}

#[derive(Debug)]
struct Dir {
    path: PathBuf,
    handle: File,
}

impl RealDisk {
    /// Opens the directory, which must exist. The path is made absolute, so that a later change of the
    /// working directory does no harm.
    pub fn new(path: impl AsRef<Path>) -> Result<RealDisk, OpenError> {
        let path = path.as_ref();
        let shown = path.display().to_string();
        let open = || -> io::Result<RealDisk> {
            let path = std::fs::canonicalize(path)?;
            let handle = File::open(&path)?;
            if !handle.metadata()?.is_dir() {
                return Err(io::Error::from(io::ErrorKind::NotADirectory));
            }
            Ok(RealDisk { inner: Arc::new(Dir { path, handle }) })
        };
        open().map_err(|e| OpenError::io(&shown, "open the log directory", e))
    }

    /// The directory's absolute path.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }
}

impl Disk for RealDisk {
    type File = RealFile;
    type Lock = File;

    fn describe(&self) -> String {
        self.inner.path.display().to_string()
    }

    fn now_us(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64)
    }

    fn lock(&self) -> io::Result<Option<File>> {
        // The directory itself is locked: no lock file that could be copied or left behind. A handle of
        // its own, because flock belongs to the open file description.
        let handle = File::open(&self.inner.path)?;
        match flock(&handle, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(handle)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.inner.path)? {
            // A name that is not UTF-8 is none of ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<RealFile> {
        let path = self.inner.path.join(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        Ok(RealFile { file })
    }

    fn open(&self, name: &str, write: bool) -> io::Result<RealFile> {
        let file = OpenOptions::new().read(true).write(write).open(self.inner.path.join(name))?;
        Ok(RealFile { file })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.inner.path.join(from), self.inner.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.inner.path.join(name))
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.inner.handle.sync_all()
    }
}

/// A file of the real file system.
#[derive(Debug)]
pub struct RealFile {
    file: File,
}

impl DiskFile for RealFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        if size <= self.size()? {
            return Ok(());
        }
        loop {
            match fallocate(&self.file, FallocateFlags::empty(), 0, size) {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                // Some file systems cannot: the file then grows as it is written.
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
