//! An image of the device at one position of the log, made while clients write.
//!
//! The thread that writes to the device file begins a snapshot between two batches: then the file is exactly a prefix of the log.
//! Where the file system can share space between files, that thread clones the file, and the image is complete. Elsewhere the
//! caller's thread copies the file in the background. Before a batch is written, the thread that writes copies what the batch
//! replaces ("copy before write").
//!
//! Clients' writes go to the log and to memory meanwhile. They wait for the device file only if the cache is full.

use super::extent_map::ExtentMap;
use super::file::{DeviceFile, Position};
use super::replica::{BEHIND, LOOK, Log, NO_SIZE, Replica, State};
use lockstep_core::Gtid;
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The unit of copies: a small write into the device makes one copy of this size.
const CHUNK: u64 = 64 << 10;
/// The most chunks that the background copies at once.
const CHUNKS_AT_ONCE: u64 = 16;
/// The words of bits of a page of [`Chunks`].
const WORDS: usize = 64;
/// The chunks of a page.
const PAGE: u64 = WORDS as u64 * 64;
/// The image is synced after so many bytes.
const SYNC_EVERY: u64 = 64 << 20;
/// How often the caller hears of progress.
const TELL: Duration = Duration::from_millis(500);
/// How long the thread that writes to the device file waits for the snapshot's own thread, which copies a MiB at most.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a snapshot may take to begin: the batch before it must be written.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(120);

/// How far a snapshot has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotProgress {
    /// Bytes of the device that the image has.
    pub done: u64,
    /// The device's size.
    pub total: u64,
}

/// A complete snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotDone {
    /// The image.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Its position: it has exactly the entries up to this one.
    pub position: Gtid,
    /// Whether it shares space with the device file.
    pub cloned: bool,
}

/// The snapshot of a member, from the request to the end.
#[derive(Debug)]
pub(crate) struct Slot {
    target: Arc<File>,
    begun: Option<Begun>,
}

#[derive(Clone, Debug)]
struct Begun {
    position: Gtid,
    size: u64,
    /// `None`: the file was cloned.
    copy: Option<Arc<BackgroundCopy>>,
}

impl Slot {
    /// The image's file, if the snapshot has not begun.
    pub(crate) fn waiting(&self) -> Option<Arc<File>> {
        self.begun.is_none().then(|| self.target.clone())
    }

    /// The copy in the background, if there is one.
    pub(crate) fn copy(&self) -> Option<Arc<BackgroundCopy>> {
        self.begun.as_ref()?.copy.clone()
    }
}

/// The chunks of a file that are copied: all before `next`, and some behind it.
#[derive(Debug)]
struct Chunks {
    count: u64,
    next: u64,
    /// Bits of chunks, in pages. Pages before `next` are removed.
    ahead: BTreeMap<u64, Box<[u64; WORDS]>>,
    ahead_count: u64,
}

impl Chunks {
    fn new(count: u64) -> Chunks {
        Chunks { count, next: 0, ahead: BTreeMap::new(), ahead_count: 0 }
    }

    fn has(&self, chunk: u64) -> bool {
        let bit = |page: &[u64; WORDS]| page[(chunk % PAGE / 64) as usize] >> (chunk % 64) & 1 == 1;
        chunk < self.next || self.ahead.get(&(chunk / PAGE)).is_some_and(|page| bit(page))
    }

    fn set(&mut self, chunk: u64) {
        if self.has(chunk) {
            return;
        }
        let page = self.ahead.entry(chunk / PAGE).or_insert_with(|| Box::new([0; WORDS]));
        page[(chunk % PAGE / 64) as usize] |= 1 << (chunk % 64);
        self.ahead_count += 1;
        while self.next < self.count && self.is_ahead(self.next) {
            self.next += 1;
            self.ahead_count -= 1;
        }
        let first = self.next / PAGE;
        while self.ahead.first_key_value().is_some_and(|(page, _)| *page < first) {
            self.ahead.pop_first();
        }
    }

    fn is_ahead(&self, chunk: u64) -> bool {
        let page = self.ahead.get(&(chunk / PAGE));
        page.is_some_and(|page| page[(chunk % PAGE / 64) as usize] >> (chunk % 64) & 1 == 1)
    }

    /// The first chunks of a range that are not copied, at most so many.
    fn missing(&self, range: Range<u64>, most: u64) -> Option<Range<u64>> {
        let begin = (range.start.max(self.next)..range.end).find(|chunk| !self.has(*chunk))?;
        let end = (begin..range.end).take(most as usize).find(|chunk| self.has(*chunk));
        Some(begin..end.unwrap_or_else(|| range.end.min(begin + most)))
    }

    fn done(&self) -> u64 {
        self.next + self.ahead_count
    }
}

/// A copy of the device file in the background. Two threads copy: the snapshot's own, and before each batch the one that writes
/// to the device file.
///
/// **Invariants**: the claims of the two do not overlap. A chunk is written on the device file only if it is copied.
#[derive(Debug)]
pub(crate) struct BackgroundCopy {
    target: Arc<File>,
    size: u64,
    progress: Mutex<CopyProgress>,
    /// A claim has ended.
    freed: Condvar,
}

#[derive(Debug)]
struct CopyProgress {
    chunks: Chunks,
    /// The chunks that each thread copies now.
    claims: [Range<u64>; 2],
    /// Why the snapshot has failed. Nothing more is copied.
    failed: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    Background = 0,
    BeforeWrite = 1,
}

impl BackgroundCopy {
    fn new(target: Arc<File>, size: u64) -> BackgroundCopy {
        let chunks = Chunks::new(size.div_ceil(CHUNK));
        let progress = CopyProgress { chunks, claims: [0..0, 0..0], failed: None };
        BackgroundCopy { target, size, progress: Mutex::new(progress), freed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, CopyProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims the first chunks of a range that are not copied. `None`: all are, or the snapshot has failed.
    fn claim(&self, who: Who, range: Range<u64>) -> Option<Range<u64>> {
        let mut progress = self.lock();
        loop {
            if progress.failed.is_some() {
                return None;
            }
            let wanted = progress.chunks.missing(range.clone(), CHUNKS_AT_ONCE)?;
            let other = &progress.claims[1 - who as usize];
            if wanted.start >= other.end || other.start >= wanted.end {
                progress.claims[who as usize] = wanted.clone();
                return Some(wanted);
            }
            let (waited, timeout) =
                self.freed.wait_timeout(progress, CLAIM_TIMEOUT).unwrap_or_else(PoisonError::into_inner);
            progress = waited;
            if timeout.timed_out() && who == Who::BeforeWrite {
                // The device must not wait for the image's disk.
                progress.failed.get_or_insert_with(|| HANGS.into());
            }
        }
    }

    /// The claimed chunks are copied, or not.
    fn end_claim(&self, who: Who, result: io::Result<()>) {
        let mut progress = self.lock();
        let claimed = std::mem::replace(&mut progress.claims[who as usize], 0..0);
        match result {
            Ok(()) => claimed.for_each(|chunk| progress.chunks.set(chunk)),
            Err(error) => {
                progress.failed.get_or_insert(copy_fails(&error));
            }
        }
        drop(progress);
        self.freed.notify_all();
    }

    /// Copies the first chunks of a range that are not copied. Returns the end of what it copied.
    fn copy_some(&self, who: Who, file: &DeviceFile, range: Range<u64>) -> Option<u64> {
        let claimed = self.claim(who, range)?;
        let bytes = claimed.start * CHUNK..(claimed.end * CHUNK).min(self.size);
        self.end_claim(who, copy(file, &self.target, bytes));
        Some(claimed.end)
    }

    /// Copies what a batch replaces. A failure ends the snapshot, and not the device.
    pub(crate) fn before_write(&self, file: &DeviceFile, batch: &ExtentMap) {
        for run in batch.runs() {
            let end = run.end().min(self.size).div_ceil(CHUNK);
            let mut at = run.offset / CHUNK;
            while let Some(copied) = self.copy_some(Who::BeforeWrite, file, at..end) {
                at = copied;
            }
        }
    }

    /// Copies the next chunks in the background. Returns whether there were some.
    fn copy_next(&self, file: &DeviceFile) -> bool {
        let all = 0..self.size.div_ceil(CHUNK);
        self.copy_some(Who::Background, file, all).is_some()
    }

    fn done(&self) -> u64 {
        (self.lock().chunks.done() * CHUNK).min(self.size)
    }

    /// Nothing more is copied.
    fn abandon(&self) {
        self.lock().failed.get_or_insert_with(|| CANCELLED.into());
        self.freed.notify_all();
    }

    fn failure(&self) -> Option<String> {
        self.lock().failed.clone()
    }
}

fn copy_fails(error: &io::Error) -> String {
    let advice = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            ": make space, or name a file on another disk. The device goes on"
        }
        _ => ". The device goes on",
    };
    format!("cannot copy the device to the snapshot: {error}{advice}")
}

/// Copies a range. Holes stay holes.
fn copy(file: &DeviceFile, target: &File, range: Range<u64>) -> io::Result<()> {
    let mut buffer = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let (length, is_hole) = file.extent(at, range.end - at)?;
        if !is_hole {
            buffer.resize(length as usize, 0);
            file.read(at, &mut buffer)?;
            target.write_all_at(&buffer, at)?;
        }
        at += length;
    }
    Ok(())
}

/// The image while it is made. Without [`Image::finish`] it is removed.
#[derive(Debug)]
struct Image {
    file: Arc<File>,
    partial: PathBuf,
    path: PathBuf,
    is_complete: bool,
}

impl Drop for Image {
    fn drop(&mut self) {
        if !self.is_complete {
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

impl Image {
    /// Makes the file `PATH.partial`. One that an earlier try has left is removed.
    fn create(path: &Path) -> Result<Image, String> {
        let fails = |what: &str, path: &Path, error: &dyn std::fmt::Display| {
            format!("cannot {what} {}: {error}", path.display())
        };
        let (Some(name), true) = (path.file_name(), path.is_absolute()) else {
            return Err(format!("{} is no path of a file: give --to FILE", path.display()));
        };
        if path.symlink_metadata().is_ok() {
            return Err(exists(path));
        }
        let mut name = name.to_owned();
        name.push(".partial");
        let partial = path.with_file_name(name);
        match partial.symlink_metadata() {
            Ok(found) if found.is_file() => {
                let old = File::open(&partial).map_err(|e| fails("open", &partial, &e))?;
                if flock(&old, FlockOperation::NonBlockingLockExclusive).is_err() {
                    return Err(format!("another snapshot writes {}: wait for its end", partial.display()));
                }
                std::fs::remove_file(&partial).map_err(|e| fails("remove", &partial, &e))?;
            }
            Ok(_) => {
                return Err(format!("{} is no file: remove it, or name another file", partial.display()));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(fails("read", &partial, &error)),
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&partial);
        let file = file.map_err(|e| fails("create", &partial, &e))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|e| fails("lock", &partial, &e))?;
        Ok(Image { file: Arc::new(file), partial, path: path.to_owned(), is_complete: false })
    }

    /// Gives the complete image its size and its name, durably.
    fn finish(mut self, size: u64) -> Result<(), String> {
        self.file.set_len(size).and_then(|()| self.file.sync_all()).map_err(|error| copy_fails(&error))?;
        match renameat_with(CWD, &self.partial, CWD, &self.path, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(exists(&self.path)),
            // The file system does not know the flag.
            Err(Errno::INVAL | Errno::NOSYS) if self.path.symlink_metadata().is_err() => {
                std::fs::rename(&self.partial, &self.path)
                    .map_err(|error| format!("cannot rename {}: {error}", self.partial.display()))?;
            }
            Err(error) => return Err(format!("cannot rename {}: {error}", self.partial.display())),
        }
        self.is_complete = true;
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(dir)
            .and_then(|dir| dir.sync_all())
            .map_err(|error| format!("cannot sync the directory {}: {error}", dir.display()))
    }
}

fn exists(path: &Path) -> String {
    format!("{} exists: remove it, or name another file", path.display())
}

/// Ends the snapshot of this member.
struct Ends<'a, L: Log>(&'a Replica<L>);

impl<L: Log> Drop for Ends<'_, L> {
    fn drop(&mut self) {
        let slot = self.0.lock().snapshot.take();
        if let Some(copy) = slot.and_then(|slot| slot.copy()) {
            copy.abandon();
        }
    }
}

impl<L: Log> Replica<L> {
    /// Makes an image of the device at one position. `to` is an absolute path of no file. `progress` is told now and then, and
    /// ends the snapshot by returning `false`. Blocks until the end.
    ///
    /// # Errors
    /// There is no image: a text for people. The device goes on.
    pub fn snapshot(
        &self,
        to: &Path,
        mut progress: impl FnMut(SnapshotProgress) -> bool,
    ) -> Result<SnapshotDone, String> {
        {
            let state = self.lock();
            state.wholeness.check()?;
            if !state.caught_up {
                // After a kill, the file may have parts of entries that are taken again.
                return Err(BEHIND.into());
            }
            if state.attachments.size() == 0 {
                return Err(NO_SIZE.into());
            }
            if state.snapshot.is_some() {
                return Err(ONE_AT_A_TIME.into());
            }
        }
        let image = Image::create(to)?;
        {
            let mut state = self.lock();
            if state.snapshot.is_some() {
                return Err(ONE_AT_A_TIME.into());
            }
            state.snapshot = Some(Slot { target: image.file.clone(), begun: None });
        }
        let _ends = Ends(self);
        self.wake();
        let Begun { position, size, copy } = self.until_begun(&mut progress)?;
        if let Some(copy) = &copy {
            let (mut told, mut synced) = (Instant::now(), 0);
            while copy.copy_next(self.file()) {
                let done = copy.done();
                if done >= synced + SYNC_EVERY {
                    synced = done;
                    // Else the last sync takes long, and the device file's syncs wait for this one's writes.
                    image.file.sync_data().map_err(|error| copy_fails(&error))?;
                }
                if told.elapsed() >= TELL {
                    told = Instant::now();
                    if self.lock().closing {
                        return Err("this member ends".into());
                    }
                    if !progress(SnapshotProgress { done, total: size }) {
                        return Err(CANCELLED.into());
                    }
                }
            }
            if let Some(text) = copy.failure() {
                return Err(text);
            }
        }
        if !progress(SnapshotProgress { done: size, total: size }) {
            return Err(CANCELLED.into());
        }
        image.finish(size)?;
        Ok(SnapshotDone { path: to.to_owned(), bytes: size, position, cloned: copy.is_none() })
    }

    fn until_begun(&self, progress: &mut impl FnMut(SnapshotProgress) -> bool) -> Result<Begun, String> {
        let (began, mut told) = (Instant::now(), Instant::now());
        loop {
            let mut state = self.lock();
            state = self.wait(state, LOOK);
            if let Some(begun) = state.snapshot.as_ref().and_then(|slot| slot.begun.clone()) {
                return Ok(begun);
            }
            if state.closing {
                return Err("this member ends".into());
            }
            if began.elapsed() >= BEGIN_TIMEOUT {
                let trouble = state.trouble.clone();
                return Err(trouble.unwrap_or_else(|| {
                    "the device file's disk is too busy: the snapshot did not begin in time. Try again".into()
                }));
            }
            let total = state.attachments.size();
            drop(state);
            if told.elapsed() >= TELL {
                told = Instant::now();
                if !progress(SnapshotProgress { done: 0, total }) {
                    return Err(CANCELLED.into());
                }
            }
        }
    }

    /// Begins a snapshot. The device file is exactly at this position, and this thread writes to it.
    pub(super) fn begin_snapshot(&self, target: Arc<File>, position: &Position) {
        let size = position.attachments.size();
        // The device file may be longer than the device.
        let copy = match self.file().clone_to(&target).and_then(|()| target.set_len(size)) {
            Ok(()) => None,
            Err(_) => Some(Arc::new(BackgroundCopy::new(target.clone(), size))),
        };
        let mut state: MutexGuard<'_, State> = self.lock();
        // Another one may have taken its place, if its caller has given up.
        if let Some(slot) = state.snapshot.as_mut().filter(|slot| Arc::ptr_eq(&slot.target, &target)) {
            slot.begun = Some(Begun { position: position.gtid, size, copy });
        }
        drop(state);
        self.wake();
    }
}

const ONE_AT_A_TIME: &str = "a snapshot of this member is being made: wait for its end";
const HANGS: &str =
    "the disk of the snapshot's file takes no writes: name a file on another disk. The device goes on";
const CANCELLED: &str = "the snapshot was cancelled";

#[cfg(test)]
mod tests {
    use super::super::extent_map::Run;
    use super::*;
    use proptest::prelude::*;

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("lockstep-snapshot-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    proptest! {
        #[test]
        fn chunks_agree_with_a_set(steps in proptest::collection::vec((0..9000_u64, 1..40_u64), 1..60)) {
            let mut chunks = Chunks::new(9000);
            let mut model = vec![false; 9000];
            for (begin, length) in steps {
                let range = begin..(begin + length).min(9000);
                let found = chunks.missing(range.clone(), 8);
                let first = range.clone().find(|chunk| !model[*chunk as usize]);
                prop_assert_eq!(found.clone().map(|found| found.start), first);
                for chunk in found.unwrap_or(0..0) {
                    prop_assert!(!model[chunk as usize]);
                    model[chunk as usize] = true;
                    chunks.set(chunk);
                }
                prop_assert!((0..9000).all(|chunk| chunks.has(chunk) == model[chunk as usize]));
                prop_assert_eq!(chunks.done(), model.iter().filter(|copied| **copied).count() as u64);
            }
        }
    }

    /// One thread copies in the background, another writes batches.
    #[test]
    fn image_has_the_state_of_its_beginning() {
        let dir = dir("image");
        let (file, _) = DeviceFile::open(&dir).unwrap();
        let size = 200 * CHUNK + 512;
        file.grow(size).unwrap();
        let mut random = 12345_u64;
        let mut below = |n: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % n
        };
        let mut batch = |byte: u8| {
            let mut runs = ExtentMap::default();
            for _ in 0..40 {
                let offset = below(size - 70_000);
                let length = 1 + below(70_000);
                runs.insert(
                    match below(3) {
                        0 => Run::zeroes(offset, length, true),
                        _ => Run::data(offset, vec![byte; length as usize].into()),
                    },
                    0,
                );
            }
            runs
        };
        file.write(&batch(1)).unwrap();
        for round in 0..8 {
            let expected = std::fs::read(dir.join("device.img")).unwrap();
            let image = Image::create(&dir.join(format!("image{round}"))).unwrap();
            let copy = BackgroundCopy::new(image.file.clone(), size);
            let batches: Vec<ExtentMap> = (0..6).map(|at| batch(2 + at)).collect();
            std::thread::scope(|scope| {
                let background = scope.spawn(|| {
                    while copy.copy_next(&file) {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                });
                for runs in &batches {
                    copy.before_write(&file, runs);
                    file.write(runs).unwrap();
                }
                background.join().unwrap();
            });
            assert_eq!((copy.done(), copy.failure()), (size, None));
            image.finish(size).unwrap();
            let found = std::fs::read(dir.join(format!("image{round}"))).unwrap();
            assert!(found == expected, "round {round}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn image_never_replaces_a_file() {
        let dir = dir("exists");
        let path = dir.join("image");
        std::fs::write(dir.join("image.partial"), b"of a killed process").unwrap();
        let image = Image::create(&path).unwrap();
        assert!(Image::create(&path).unwrap_err().contains("another snapshot"), "the first one is under way");
        std::fs::write(&path, b"somebody's data").unwrap();
        assert!(Image::create(&path).unwrap_err().contains("exists"));
        assert!(image.finish(512).unwrap_err().contains("exists"));
        assert_eq!(std::fs::read(&path).unwrap(), b"somebody's data");
        assert!(!dir.join("image.partial").exists(), "a failed one is removed");
        assert!(Image::create(Path::new("image")).unwrap_err().contains("--to"));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn failed_copy_ends_the_snapshot_and_lets_writes_pass() {
        let dir = dir("failed");
        let (file, _) = DeviceFile::open(&dir).unwrap();
        file.grow(1 << 20).unwrap();
        let mut runs = ExtentMap::default();
        runs.insert(Run::data(0, vec![1; 4096].into()), 0);
        file.write(&runs).unwrap();
        std::fs::write(dir.join("target"), b"").unwrap();
        // It cannot be written.
        let target = Arc::new(File::open(dir.join("target")).unwrap());
        let copy = BackgroundCopy::new(target, 1 << 20);
        copy.before_write(&file, &runs);
        assert!(copy.failure().unwrap().contains("The device goes on"));
        assert!(!copy.copy_next(&file));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
