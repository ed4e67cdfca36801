//! An archive in a directory.

use super::digest;
use super::store::{Store, StoreError, Version, When};
use rustix::fs::{FlockOperation, flock};
use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Locked during a conditional put.
const LOCK: &str = ".lock";
/// The end of the names of files that are not complete.
const TEMPORARY: &str = ".new";

/// A directory. A file is written under another name, synced, and renamed; then its directory is synced.
#[derive(Debug)]
pub struct DirStore {
    dir: PathBuf,
    /// Names this store's temporary files. Process ids do not: in containers several archivers have the same one.
    token: u64,
    written: AtomicU64,
}

impl DirStore {
    /// The archive in this directory, which is made if it is missing and `make` says so.
    ///
    /// # Errors
    /// [`StoreError`] if there is no such directory, or it cannot be made.
    pub fn open(dir: &Path, make: bool) -> Result<DirStore, StoreError> {
        if make {
            make_dir(dir).map_err(|e| {
                StoreError::Refused(format!("cannot create the directory {}: {e}", dir.display()))
            })?;
        }
        if !dir.is_dir() {
            return Err(StoreError::Refused(format!("there is no directory {}", dir.display())));
        }
        let token = RandomState::new().hash_one(std::process::id());
        Ok(DirStore { dir: dir.to_owned(), token, written: AtomicU64::new(0) })
    }

    /// A name beside this one that no other archiver has.
    pub(super) fn temporary(&self, path: &Path) -> PathBuf {
        let count = self.written.fetch_add(1, Ordering::Relaxed);
        path.with_extension(format!("{:016x}-{count}{TEMPORARY}", self.token))
    }

    fn path(&self, key: &str) -> PathBuf {
        self.dir.join(key)
    }

    fn read(&self, key: &str, max: u64) -> std::io::Result<Option<Vec<u8>>> {
        let file = match File::open(self.path(key)) {
            Ok(file) => file,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut bytes = Vec::new();
        file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > max {
            return Err(std::io::Error::new(ErrorKind::InvalidData, format!("it has more than {max} bytes")));
        }
        Ok(Some(bytes))
    }

    fn write(&self, key: &str, bytes: &[u8]) -> std::io::Result<()> {
        let path = self.path(key);
        let parent = path.parent().unwrap_or(&self.dir);
        if !parent.is_dir() {
            make_dir(parent)?;
            File::open(&self.dir)?.sync_all()?;
        }
        // Two archivers may write the same object.
        let temporary = self.temporary(&path);
        let write = || -> std::io::Result<()> {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(&temporary)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            std::fs::rename(&temporary, &path)
        };
        if let Err(error) = write() {
            // Each attempt has a name of its own: on a full disk they must not add up.
            let _ = std::fs::remove_file(&temporary);
            return Err(error);
        }
        File::open(parent)?.sync_all()
    }

    fn lock(&self) -> std::io::Result<File> {
        let path = self.path(LOCK);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o640).open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    fn failed<'a>(&'a self, what: &'a str, key: &'a str) -> impl FnOnce(std::io::Error) -> StoreError + 'a {
        move |e| StoreError::Unavailable(format!("cannot {what} {}: {e}", self.path(key).display()))
    }
}

// The archive has the tables' contents: nobody but owner and group reads it.
fn make_dir(dir: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o750).create(dir)
}

impl Store for DirStore {
    fn name(&self) -> String {
        self.dir.display().to_string()
    }

    fn get(&self, key: &str, max: u64) -> Result<Option<(Vec<u8>, Version)>, StoreError> {
        let bytes = self.read(key, max).map_err(self.failed("read", key))?;
        Ok(bytes.map(|bytes| {
            let version = Version(digest(&bytes));
            (bytes, version)
        }))
    }

    fn put(&self, key: &str, bytes: &[u8], when: &When) -> Result<Version, StoreError> {
        let version = Version(digest(bytes));
        if *when == When::Always {
            self.write(key, bytes).map_err(self.failed("write", key))?;
            return Ok(version);
        }
        let _lock = self.lock().map_err(self.failed("lock", LOCK))?;
        let there = self.get(key, u64::MAX - 1)?.map(|(_, version)| version);
        if !when.is_met(there.as_ref()) {
            return Err(StoreError::Conflict);
        }
        self.write(key, bytes).map_err(self.failed("write", key))?;
        Ok(version)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        let path = self.path(key);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(self.failed("remove", key)(e)),
            _ => {}
        }
        // The last object takes its folder with it.
        if let Some(parent) = path.parent().filter(|parent| *parent != self.dir) {
            let _ = std::fs::remove_dir(parent);
        }
        Ok(())
    }

    fn list(&self, folder: &str) -> Result<Vec<String>, StoreError> {
        let entries = match std::fs::read_dir(self.path(folder)) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(self.failed("read", folder)(e)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(self.failed("read", folder))?;
            names.extend(entry.file_name().into_string());
        }
        Ok(names)
    }
}
