//! The operating system's file system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};

use crate::direct::Direct;
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
    direct: bool,
}

/// The attempt's file.
const TRIAL_FILE: &str = "lockstep.room.log";

/// Whether `bytes` can be allocated, and something written and synced, in this directory. Nothing is left of the attempt.
///
/// # Errors
/// Why not.
pub fn try_space(dir: &Path, bytes: u64) -> io::Result<()> {
    let path = dir.join(TRIAL_FILE);
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    // From here on it goes with this function, however that ends.
    std::fs::remove_file(&path)?;
    loop {
        match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => break,
            Err(e) => return Err(e.into()),
        }
    }
    file.write_all_at(&[0; 4096], 0)?;
    file.sync_all()
}

impl RealDisk {
    /// Opens the directory, which must exist. The path is made absolute, so that a later change of the
    /// working directory does no harm.
    pub fn new(path: impl AsRef<Path>) -> Result<RealDisk, OpenError> {
        RealDisk::with(path, true)
    }

    /// As [`RealDisk::new`]; `direct`: appends bypass the kernel's page cache if the file system supports it.
    pub fn with(path: impl AsRef<Path>, direct: bool) -> Result<RealDisk, OpenError> {
        let path = path.as_ref();
        let shown = path.display().to_string();
        let open = || -> io::Result<RealDisk> {
            let path = std::fs::canonicalize(path)?;
            let handle = File::open(&path)?;
            if !handle.metadata()?.is_dir() {
                return Err(io::Error::from(io::ErrorKind::NotADirectory));
            }
            Ok(RealDisk { inner: Arc::new(Dir { path, handle, direct }) })
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
        Ok(RealFile::new(file, self.inner.direct))
    }

    fn open(&self, name: &str, write: bool) -> io::Result<RealFile> {
        let file = OpenOptions::new().read(true).write(write).open(self.inner.path.join(name))?;
        Ok(RealFile::new(file, self.inner.direct))
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

/// How many bytes of zeros are written ahead of the end of the data.
const AHEAD: u64 = 512 << 10;
/// The unit of that.
const BLOCK: u64 = crate::direct::BLOCK as u64;

/// A file of the real file system.
///
/// Space that is only reserved (`fallocate`) makes each sync dear. The file system has to note in its journal that the
/// blocks are written now, which doubles a sync's time and processor time. So zeros are written over the zeros that
/// such space reads as, a good piece at a time, and the syncs after it find their blocks noted.
#[derive(Debug)]
pub struct RealFile {
    file: File,
    /// Up to here nothing has to be prepared (any more).
    ready: AtomicU64,
    appending: Mutex<Appending>,
}

/// How is appended.
#[derive(Debug)]
enum Appending {
    /// Nothing has been appended.
    Not,
    /// Past the page cache.
    Direct(Direct),
    /// Through it.
    Through,
}

impl RealFile {
    fn new(file: File, direct: bool) -> RealFile {
        let appending = Mutex::new(if direct { Appending::Not } else { Appending::Through });
        RealFile { file, ready: AtomicU64::new(0), appending }
    }

    fn appending(&self) -> MutexGuard<'_, Appending> {
        // After a panic the lock's holder wrote nothing more; the cached end of the file is dropped first.
        self.appending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something ends at `end`: makes the reserved space behind it written space. Changes no contents, so that a crash
    /// cannot tell: only what the file system itself says to be without data is written, with the zeros that it reads as.
    /// Best effort, for nothing depends on it.
    fn prepare(&self, end: u64, direct: Option<&Direct>) -> io::Result<()> {
        let to = (end + AHEAD).min(self.size()?);
        self.ready.store(to.max(end), Ordering::Relaxed);
        let from = end.next_multiple_of(BLOCK);
        let data = match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(from)) {
            Ok(at) => at,
            // No data up to the file's end.
            Err(rustix::io::Errno::NXIO) => to,
            Err(e) => return Err(e.into()),
        };
        if let Some(direct) = direct {
            return direct.zeros(from, to.min(data) / BLOCK * BLOCK);
        }
        // Block by block: the kernel may keep one large write as one folio, and would then account each record
        // written into it with the size of the folio.
        for at in (from..to.min(data)).step_by(BLOCK as usize) {
            let space = (to.min(data) - at).min(BLOCK) as usize;
            self.file.write_all_at(&[0; BLOCK as usize][..space], at)?;
        }
        Ok(())
    }
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
        let mut appending = self.appending();
        if let Appending::Direct(direct) = &mut *appending {
            direct.forget();
        }
        self.file.write_all_at(data, offset)
    }

    fn append_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut appending = self.appending();
        if let Appending::Not = &*appending {
            *appending = Direct::of(&self.file).map_or(Appending::Through, Appending::Direct);
        }
        let end = offset + data.len() as u64;
        if let Appending::Direct(direct) = &mut *appending {
            // Only into space that is written: the file does not grow by it, and the file system has nothing to note.
            let blocks_end = end.next_multiple_of(BLOCK);
            if blocks_end > self.ready.load(Ordering::Relaxed) {
                let _ = self.prepare(end, Some(direct));
            }
            if blocks_end <= self.ready.load(Ordering::Relaxed) {
                match direct.append(&self.file, data, offset) {
                    // The device needs larger blocks, or does not support direct writes.
                    Err(e)
                        if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) =>
                    {
                        *appending = Appending::Through
                    }
                    done => return done,
                }
            } else {
                direct.forget();
            }
        }
        self.file.write_all_at(data, offset)?;
        if end > self.ready.load(Ordering::Relaxed) {
            let _ = self.prepare(end, None);
        }
        Ok(())
    }

    fn finish(&self) {
        *self.appending() = Appending::Through;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of this test's own, gone with it.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let path = std::env::temp_dir().join(format!("lockstep-log-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Dir(path)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn preallocation_keeps_existing_bytes() {
        for direct in [false, true] {
            space_ahead(direct);
        }
    }

    fn space_ahead(direct: bool) {
        let dir = Dir::new(&format!("ahead-{direct}"));
        let disk = RealDisk::with(&dir.0, direct).unwrap();
        let file = disk.create("reserved").unwrap();
        file.allocate(4 * AHEAD).unwrap();
        let size = file.size().unwrap();
        // Bytes of an earlier use of the file.
        let written: [(u64, &[u8]); 3] = [(AHEAD + 5000, b"old"), (0, b"first"), (AHEAD + 10, b"large")];
        disk.open("reserved", true).unwrap().write_at(written[0].1, written[0].0).unwrap();
        for (at, text) in &written[1..] {
            file.append_at(text, *at).unwrap();
            let end = at + text.len() as u64;
            assert_eq!(file.ready.load(Ordering::Relaxed), (end + AHEAD).min(size).max(end));
        }
        // Where the file system could reserve space at all.
        if size == 4 * AHEAD {
            let data = rustix::fs::seek(&file.file, rustix::fs::SeekFrom::Data(BLOCK));
            assert_eq!(data, Ok(BLOCK), "written, not only reserved");
        }
        let mut all = vec![0; file.size().unwrap() as usize];
        assert_eq!(file.read_at(&mut all, 0).unwrap(), all.len());
        for (at, text) in written {
            let place = &mut all[at as usize..][..text.len()];
            assert_eq!(place, text);
            place.fill(0);
        }
        assert!(all.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn file_grows_only_by_written_bytes() {
        let dir = Dir::new("growing");
        let file = RealDisk::new(&dir.0).unwrap().create("growing").unwrap();
        for n in 0..10 {
            file.append_at(&[7; 100], n * 100).unwrap();
            assert_eq!(file.size().unwrap(), (n + 1) * 100);
        }
    }

    /// Reads return the bytes appended, whichever way each append took: through the page cache or past it.
    #[test]
    fn appends_are_read_as_they_were_made() {
        let dir = Dir::new("appends");
        let size = 3 * AHEAD as usize;
        for direct in [false, true] {
            let name = format!("appends-{direct}");
            let disk = RealDisk::with(&dir.0, direct).unwrap();
            let mut file = disk.create(&name).unwrap();
            file.allocate(size as u64).unwrap();
            let mut expected = vec![0; size];
            let (mut at, mut n) = (0, 1_u32);
            let mut random = |below: usize| {
                n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (n >> 8) as usize % below
            };
            while at < size - 40_000 {
                let data: Vec<u8> = (0..1 + random(9000)).map(|_| random(255) as u8 + 1).collect();
                match random(16) {
                    // Back to an earlier end: nothing is wanted behind that.
                    0 => at -= random(at.min(10_000) + 1),
                    1 => file = disk.open(&name, true).unwrap(),
                    2 => {
                        let place = random(at + 1);
                        file.write_at(&data, place as u64).unwrap();
                        expected[place..place + data.len()].copy_from_slice(&data);
                        at = at.max(place + data.len());
                    }
                    3 => file.sync_data().unwrap(),
                    _ => {}
                }
                file.append_at(&data, at as u64).unwrap();
                expected[at..at + data.len()].copy_from_slice(&data);
                at += data.len();
                let from = at - random(at.min(20_000));
                let mut read = vec![0; at - from];
                assert_eq!(file.read_at(&mut read, from as u64).unwrap(), read.len());
                assert!(read == expected[from..at], "{direct}: {from} to {at}");
            }
            file.finish();
            file.append_at(b"the end", at as u64).unwrap();
            expected[at..at + 7].copy_from_slice(b"the end");
            let mut read = vec![0; at + 7];
            assert_eq!(disk.open(&name, false).unwrap().read_at(&mut read, 0).unwrap(), read.len());
            assert!(read == expected[..at + 7], "{direct}");
        }
    }
}
