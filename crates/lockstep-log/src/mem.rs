//! A disk in memory that loses what a real one may lose.
//!
//! Every file has two contents: what a running process sees, and what a power cut leaves. A write is
//! pending until the file is synced; a change of the directory, until the directory is. [`MemDisk::crash`]
//! lets each pending sector and each pending directory change survive or not, by a seed. So an unsynced
//! file may come back torn, in any order, or under no name at all, and nothing that a log may not rely on
//! holds by accident.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::{Disk, DiskFile, Planted};

/// Default size of the parts that a write tears into.
const SECTOR_BYTES: usize = 512;

/// How an operation is made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails with an I/O error. A failed write may have written anything; a failed sync
    /// has forgotten what was pending, as kernels do: it reads back, and is not on disk.
    Io,
    /// The disk is full.
    NoSpace,
    /// The power goes: this operation, which may have had any part of its effect, and all later ones
    /// fail until [`MemDisk::crash`].
    PowerCut,
}

/// The fake disk. Clones share the contents.
#[derive(Clone)]
pub struct MemDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Clone)]
struct State {
    /// Raised at each crash: handles of an earlier life are dead.
    epoch: u64,
    locked: bool,
    now_us: u64,
    /// Operations that change something, counted from 1.
    ops: u64,
    syncs: u64,
    bytes_read: u64,
    fault: Option<(u64, Fault)>,
    fail_sync: Option<u64>,
    fail_reads: bool,
    dead: bool,
    capacity: Option<u64>,
    planted: Option<Planted>,
    sector_bytes: usize,
    rng: u64,
    next_inode: u64,
    inodes: BTreeMap<u64, Inode>,
    /// The names as the process sees them.
    names: BTreeMap<String, u64>,
    /// The names after a power cut.
    durable_names: BTreeMap<String, u64>,
    pending_names: Vec<Vec<NameChange>>,
}

#[derive(Clone, Default)]
struct Inode {
    seen: Contents,
    durable: Contents,
    pending: Vec<Change>,
    /// `seen` may differ from `durable` by more than the pending changes: a sync has failed, or there was damage.
    differs: bool,
    copy: SharedCopy,
}

/// A copy of what a process sees, which readers share. Most files are read at each start and never changed again.
#[derive(Clone, Default)]
enum SharedCopy {
    #[default]
    Changed,
    /// Read once since the last change: the next reader makes the copy.
    Read,
    Made(Bytes),
}

/// The bytes of a file. A log allocates files long before it fills them: zeros at the end take no memory.
#[derive(Clone, Default)]
struct Contents {
    /// Shared with copies of the disk until one of them changes it.
    stored: Arc<Vec<u8>>,
    /// The size of the file, in bytes. All bytes behind the stored ones are zeros.
    len: usize,
}

#[derive(Clone)]
enum Change {
    /// The data, and so many zeros behind them.
    Write {
        offset: usize,
        data: Vec<u8>,
        zeros: usize,
    },
    Grow {
        size: usize,
    },
}

#[derive(Clone)]
enum NameChange {
    Set(String, u64),
    Unset(String),
}

impl Default for MemDisk {
    fn default() -> Self {
        MemDisk::new()
    }
}

/// Possible results of one operation.
enum Verdict {
    Go,
    /// Fail without any effect.
    Fail(io::Error),
    /// Fail, and leave any part of the effect behind.
    Torn(io::Error),
}

impl MemDisk {
    /// An empty disk.
    pub fn new() -> MemDisk {
        let state = State {
            epoch: 0,
            locked: false,
            now_us: 0,
            ops: 0,
            syncs: 0,
            bytes_read: 0,
            fault: None,
            fail_sync: None,
            fail_reads: false,
            dead: false,
            capacity: None,
            planted: None,
            sector_bytes: SECTOR_BYTES,
            rng: 0,
            next_inode: 0,
            inodes: BTreeMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
        };
        MemDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// A disk of its own with the same contents, pending changes and faults.
    pub fn fork(&self) -> MemDisk {
        MemDisk { state: Arc::new(Mutex::new(self.state().clone())) }
    }

    /// Sets what [`Disk::now_us`] answers.
    pub fn set_now_us(&self, now_us: u64) {
        self.state().now_us = now_us;
    }

    /// Operations so far that change something: create, write, allocate, sync, rename, remove.
    pub fn ops(&self) -> u64 {
        self.state().ops
    }

    /// Syncs (of files and of the directory) so far.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// Bytes read so far.
    pub fn bytes_read(&self) -> u64 {
        self.state().bytes_read
    }

    /// Makes the `n`-th changing operation from now fail (1: the next one).
    pub fn fail_op(&self, n: u64, fault: Fault) {
        let mut s = self.state();
        s.fault = Some((s.ops + n, fault));
    }

    /// Makes the `n`-th sync from now fail with an I/O error (1: the next one).
    pub fn fail_sync(&self, n: u64) {
        let mut s = self.state();
        s.fail_sync = Some(s.syncs + n);
    }

    /// Makes all reads of files fail with an I/O error until [`MemDisk::clear_faults`].
    pub fn fail_reads(&self) {
        self.state().fail_reads = true;
    }

    /// Forgets the faults that were asked for and have not happened.
    pub fn clear_faults(&self) {
        let mut s = self.state();
        s.fault = None;
        s.fail_sync = None;
        s.fail_reads = false;
    }

    /// Bounds the total size of all files, in bytes; growing beyond it fails with "disk full".
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// The total size of all files, in bytes: what [`MemDisk::set_capacity`] bounds.
    pub fn used(&self) -> u64 {
        let s = self.state();
        s.names.values().filter_map(|id| s.inodes.get(id)).map(|i| i.seen.len as u64).sum()
    }

    /// Plants a fault in the recovery of the log on this disk.
    pub fn plant(&self, fault: Option<Planted>) {
        self.state().planted = fault;
    }

    /// Sets the unit that is written whole or not at all, in bytes (512 at first, as disks promise).
    pub fn set_sector_bytes(&self, bytes: usize) {
        self.state().sector_bytes = bytes.max(1);
    }

    /// The process dies, the machine lives: locks and handles are gone, the contents stay as seen.
    pub fn kill(&self) {
        let mut s = self.state();
        s.epoch += 1;
        s.locked = false;
        s.dead = false;
    }

    /// The power goes. Of each pending change an arbitrary part survives, chosen by `seed`; the same
    /// seed on the same state leaves the same disk. Handles and the lock are gone, faults are cleared.
    pub fn crash(&self, seed: u64) {
        let mut s = self.state();
        let s = &mut *s;
        let mut rng = Rng(seed);
        let sector = s.sector_bytes;
        for inode in s.inodes.values_mut() {
            let pending = std::mem::take(&mut inode.pending);
            let differs = std::mem::take(&mut inode.differs) || !pending.is_empty();
            apply_part(&mut inode.durable, pending, sector, &mut rng);
            if differs {
                inode.seen.clone_from(&inode.durable);
                inode.copy = SharedCopy::Changed;
            }
            debug_assert!(inode.seen.to_vec() == inode.durable.to_vec());
        }
        let pending = std::mem::take(&mut s.pending_names);
        let mode = rng.below(4);
        let prefix = rng.below(pending.len() as u64 + 1) as usize;
        for (i, change) in pending.into_iter().enumerate() {
            let survives = match mode {
                0 => false,
                1 => true,
                2 => i < prefix,
                _ => rng.below(2) == 0,
            };
            if survives {
                for c in change {
                    apply_name(&mut s.durable_names, c);
                }
            }
        }
        s.names.clone_from(&s.durable_names);
        let used: Vec<u64> = s.names.values().copied().collect();
        s.inodes.retain(|id, _| used.contains(id));
        s.epoch += 1;
        s.locked = false;
        s.dead = false;
        s.fault = None;
        s.fail_sync = None;
    }

    /// The names of all files, sorted.
    pub fn names(&self) -> Vec<String> {
        self.state().names.keys().cloned().collect()
    }

    /// A file's contents as the process sees them.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let s = self.state();
        s.names.get(name).and_then(|id| s.inodes.get(id)).map(|i| i.seen.to_vec())
    }

    /// Puts a file there, durably, replacing what has that name.
    pub fn put(&self, name: &str, contents: Vec<u8>) {
        let mut s = self.state();
        let id = s.new_inode();
        let contents = Contents { len: contents.len(), stored: contents.into() };
        s.inodes.insert(id, Inode { durable: contents.clone(), seen: contents, ..Inode::default() });
        s.names.insert(name.to_string(), id);
        s.durable_names.insert(name.to_string(), id);
    }

    /// Damages a file: XORs one byte, on disk too. False if there is no such byte.
    pub fn corrupt(&self, name: &str, offset: u64, xor: u8) -> bool {
        let mut s = self.state();
        let Some(id) = s.names.get(name).copied() else { return false };
        let Some(inode) = s.inodes.get_mut(&id) else { return false };
        let at = offset as usize;
        (inode.copy, inode.differs) = (SharedCopy::Changed, true);
        inode.durable.xor(at, xor);
        inode.seen.xor(at, xor)
    }

    /// Puts other bytes where a file has some, on disk too, as a write does that was meant for another place. What
    /// would lie behind its end is left out.
    pub fn overwrite(&self, name: &str, offset: u64, bytes: &[u8]) {
        let mut s = self.state();
        let Some(id) = s.names.get(name).copied() else { return };
        let Some(inode) = s.inodes.get_mut(&id) else { return };
        (inode.copy, inode.differs) = (SharedCopy::Changed, true);
        for contents in [&mut inode.durable, &mut inode.seen] {
            let place = contents.range(offset, bytes.len());
            contents.write(place.start, &bytes[..place.len()], 0);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_names(&self, check: impl FnOnce(&mut State) -> io::Result<Vec<NameChange>>) -> io::Result<()> {
        let mut s = self.state();
        let verdict = s.begin();
        let changes = check(&mut s)?;
        let apply = match &verdict {
            Verdict::Go => true,
            Verdict::Fail(_) => false,
            Verdict::Torn(_) => s.chance(2),
        };
        if apply {
            for c in &changes {
                apply_name(&mut s.names, c.clone());
            }
            s.pending_names.push(changes);
        }
        match verdict {
            Verdict::Go => Ok(()),
            Verdict::Fail(e) | Verdict::Torn(e) => Err(e),
        }
    }
}

impl State {
    /// Counts an operation and says whether it may happen.
    fn begin(&mut self) -> Verdict {
        if self.dead {
            return Verdict::Fail(io::Error::other("the power is off"));
        }
        self.ops += 1;
        match self.fault {
            Some((at, fault)) if at == self.ops => {
                self.fault = None;
                match fault {
                    Fault::Io => Verdict::Torn(io::Error::other("injected I/O error")),
                    Fault::NoSpace => Verdict::Fail(io::Error::from(io::ErrorKind::StorageFull)),
                    Fault::PowerCut => {
                        self.dead = true;
                        Verdict::Torn(io::Error::other("the power went off"))
                    }
                }
            }
            _ => Verdict::Go,
        }
    }

    fn new_inode(&mut self) -> u64 {
        self.next_inode += 1;
        self.next_inode
    }

    fn chance(&mut self, n: u64) -> bool {
        let mut rng = Rng(self.rng ^ self.ops);
        let hit = rng.below(n) == 0;
        self.rng = rng.0;
        hit
    }

    fn has_space(&self, more: usize) -> bool {
        let Some(capacity) = self.capacity else { return true };
        let used: usize = self.names.values().filter_map(|id| self.inodes.get(id)).map(|i| i.seen.len).sum();
        (used + more) as u64 <= capacity
    }
}

fn apply_name(names: &mut BTreeMap<String, u64>, change: NameChange) {
    match change {
        NameChange::Set(name, id) => {
            names.insert(name, id);
        }
        NameChange::Unset(name) => {
            names.remove(&name);
        }
    }
}

impl Contents {
    /// Up to `len` bytes at `offset`; fewer at the end.
    fn range(&self, offset: u64, len: usize) -> Range<usize> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.len);
        start..start + len.min(self.len - start)
    }

    /// The part of a range that is stored. The rest of the range is zeros.
    fn stored(&self, range: &Range<usize>) -> Range<usize> {
        range.start.min(self.stored.len())..range.end.min(self.stored.len())
    }

    /// Copies a range of the file.
    fn read(&self, range: Range<usize>, buf: &mut [u8]) {
        let stored = self.stored(&range);
        let (head, zeros) = buf.split_at_mut(stored.len());
        head.copy_from_slice(&self.stored[stored]);
        zeros.fill(0);
    }

    fn to_vec(&self) -> Vec<u8> {
        let mut bytes = self.stored.to_vec();
        bytes.resize(self.len, 0);
        bytes
    }

    fn grow(&mut self, size: usize) {
        self.len = self.len.max(size);
    }

    /// Writes the data, and zeros behind them.
    fn write(&mut self, offset: usize, data: &[u8], zeros: usize) {
        let data_end = offset + data.len();
        let end = data_end + zeros;
        self.grow(end);
        let stored = Arc::make_mut(&mut self.stored);
        if stored.len() < data_end {
            stored.resize(offset, 0);
            stored.extend_from_slice(data);
        } else {
            stored[offset..data_end].copy_from_slice(data);
            if end < stored.len() {
                stored[data_end..end].fill(0);
            } else {
                stored.truncate(data_end);
            }
        }
    }

    /// False if there is no such byte.
    fn xor(&mut self, at: usize, xor: u8) -> bool {
        if at >= self.len {
            return false;
        }
        let stored = Arc::make_mut(&mut self.stored);
        if at >= stored.len() {
            stored.resize(at + 1, 0);
        }
        stored[at] ^= xor;
        true
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Write { offset, data, zeros } => self.write(*offset, data, *zeros),
            Change::Grow { size } => self.grow(*size),
        }
    }
}

/// Applies an arbitrary part of the changes: none, all, a torn prefix, or any set of sectors.
fn apply_part(contents: &mut Contents, pending: Vec<Change>, sector: usize, rng: &mut Rng) {
    let mode = rng.below(5);
    let cut = rng.below(pending.len() as u64 + 1) as usize;
    for (i, change) in pending.iter().enumerate() {
        let keep_of_8 = match mode {
            0 => 0,
            1 => 8,
            2 if i < cut => 8,
            2 if i > cut => 0,
            3 => 7,
            _ => 4,
        };
        match change {
            Change::Grow { .. } => {
                if rng.below(8) < keep_of_8 {
                    contents.apply(change);
                }
            }
            Change::Write { offset, data, zeros } => {
                let len = data.len() + zeros;
                let mut at = 0;
                let torn_at = if mode == 2 && i == cut { rng.below(len as u64 + 1) as usize } else { len };
                while at < len {
                    let step = (sector - (offset + at) % sector).min(len - at);
                    let keep =
                        if mode == 2 && i == cut { at + step <= torn_at } else { rng.below(8) < keep_of_8 };
                    if keep {
                        let part = &data[at.min(data.len())..(at + step).min(data.len())];
                        contents.write(offset + at, part, step - part.len());
                    }
                    at += step;
                }
            }
        }
    }
}

/// SplitMix64: small, seeded, the same everywhere.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

/// Holds a [`MemDisk`]'s lock.
pub struct MemLock {
    disk: MemDisk,
    epoch: u64,
}

impl Drop for MemLock {
    fn drop(&mut self) {
        let mut s = self.disk.state();
        if s.epoch == self.epoch {
            s.locked = false;
        }
    }
}

impl Disk for MemDisk {
    type File = MemFile;
    type Lock = MemLock;

    fn describe(&self) -> String {
        "memory".to_string()
    }

    fn now_us(&self) -> u64 {
        self.state().now_us
    }

    fn lock(&self) -> io::Result<Option<MemLock>> {
        let mut s = self.state();
        if s.locked {
            return Ok(None);
        }
        s.locked = true;
        Ok(Some(MemLock { disk: self.clone(), epoch: s.epoch }))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn create(&self, name: &str) -> io::Result<MemFile> {
        self.change_names(|s| {
            if s.names.contains_key(name) {
                return Err(io::Error::from(io::ErrorKind::AlreadyExists));
            }
            let id = s.new_inode();
            s.inodes.insert(id, Inode::default());
            Ok(vec![NameChange::Set(name.to_string(), id)])
        })?;
        self.open(name, true)
    }

    fn open(&self, name: &str, write: bool) -> io::Result<MemFile> {
        let s = self.state();
        let inode = *s.names.get(name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(MemFile { disk: self.clone(), epoch: s.epoch, inode, write })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change_names(|s| {
            let id = *s.names.get(from).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            Ok(vec![NameChange::Unset(from.to_string()), NameChange::Set(to.to_string(), id)])
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change_names(|s| {
            if !s.names.contains_key(name) {
                return Err(io::Error::from(io::ErrorKind::NotFound));
            }
            Ok(vec![NameChange::Unset(name.to_string())])
        })
    }

    fn planted(&self) -> Option<Planted> {
        self.state().planted
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut s = self.state();
        let s = &mut *s;
        s.syncs += 1;
        let mut verdict = s.begin();
        if s.fail_sync == Some(s.syncs) {
            s.fail_sync = None;
            verdict = Verdict::Torn(io::Error::other("injected sync error"));
        }
        match verdict {
            Verdict::Go => {
                for change in s.pending_names.drain(..).flatten() {
                    apply_name(&mut s.durable_names, change);
                }
                debug_assert_eq!(s.durable_names, s.names);
                Ok(())
            }
            Verdict::Fail(e) | Verdict::Torn(e) => Err(e),
        }
    }
}

/// A file of a [`MemDisk`].
pub struct MemFile {
    disk: MemDisk,
    epoch: u64,
    inode: u64,
    write: bool,
}

impl MemFile {
    fn with<T>(&self, f: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut s = self.disk.state();
        if s.epoch != self.epoch {
            return Err(io::Error::other("the process of this handle is dead"));
        }
        f(&mut s)
    }

    fn change(&self, change: Change) -> io::Result<()> {
        if !self.write {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        self.with(|s| {
            let mut verdict = s.begin();
            let old = s.inodes.get(&self.inode).map_or(0, |i| i.seen.len);
            let new = match &change {
                Change::Write { offset, data, zeros } => offset + data.len() + zeros,
                Change::Grow { size } => *size,
            };
            if matches!(verdict, Verdict::Go) && new > old && !s.has_space(new - old) {
                verdict = Verdict::Fail(io::Error::from(io::ErrorKind::StorageFull));
            }
            let part = match &verdict {
                Verdict::Go => true,
                Verdict::Fail(_) => false,
                Verdict::Torn(_) => s.chance(2),
            };
            if let Some(inode) = s.inodes.get_mut(&self.inode).filter(|_| part) {
                inode.seen.apply(&change);
                inode.copy = SharedCopy::Changed;
                inode.pending.push(change);
            }
            match verdict {
                Verdict::Go => Ok(()),
                Verdict::Fail(e) | Verdict::Torn(e) => Err(e),
            }
        })
    }
}

impl DiskFile for MemFile {
    fn size(&self) -> io::Result<u64> {
        self.with(|s| Ok(s.inodes.get(&self.inode).map_or(0, |i| i.seen.len as u64)))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.with(|s| {
            if s.fail_reads {
                return Err(io::Error::other("injected I/O error"));
            }
            let Some(inode) = s.inodes.get(&self.inode) else { return Ok(0) };
            let found = inode.seen.range(offset, buf.len());
            let n = found.len();
            inode.seen.read(found, &mut buf[..n]);
            s.bytes_read += n as u64;
            Ok(n)
        })
    }

    fn read_bytes(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        self.with(|s| {
            if s.fail_reads {
                return Err(io::Error::other("injected I/O error"));
            }
            let Some(inode) = s.inodes.get_mut(&self.inode) else { return Ok(Bytes::new()) };
            let found = inode.seen.range(offset, len);
            s.bytes_read += found.len() as u64;
            if found.end > inode.seen.stored.len() {
                let mut bytes = vec![0; found.len()];
                inode.seen.read(found, &mut bytes);
                return Ok(bytes.into());
            }
            match &inode.copy {
                SharedCopy::Made(copy) => Ok(copy.slice(found)),
                // Not for a small part of a file that is written all the time.
                SharedCopy::Read if 2 * found.len() >= inode.seen.stored.len() => {
                    let copy = Bytes::copy_from_slice(&inode.seen.stored);
                    inode.copy = SharedCopy::Made(copy.clone());
                    Ok(copy.slice(found))
                }
                SharedCopy::Changed | SharedCopy::Read => {
                    inode.copy = SharedCopy::Read;
                    Ok(Bytes::copy_from_slice(&inode.seen.stored[found]))
                }
            }
        })
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.change(Change::Write { offset: offset as usize, data: data.to_vec(), zeros: 0 })
    }

    fn append_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        // As a real disk may: whole blocks, with zeros behind.
        let end = offset + data.len() as u64;
        let blocks_end = end.next_multiple_of(4096).min(self.size()?.max(end));
        let zeros = (blocks_end - end) as usize;
        self.change(Change::Write { offset: offset as usize, data: data.to_vec(), zeros })
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        if self.size()? >= size {
            return Ok(());
        }
        self.change(Change::Grow { size: size as usize })
    }

    fn planted(&self) -> Option<Planted> {
        self.disk.state().planted
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|s| {
            s.syncs += 1;
            let mut verdict = s.begin();
            if s.fail_sync == Some(s.syncs) {
                s.fail_sync = None;
                verdict = Verdict::Torn(io::Error::other("injected sync error"));
            }
            let (dead, sector) = (s.dead, s.sector_bytes);
            let mut rng = Rng(s.rng ^ s.ops);
            let Some(inode) = s.inodes.get_mut(&self.inode) else { return Ok(()) };
            match verdict {
                Verdict::Go => {
                    for change in std::mem::take(&mut inode.pending) {
                        inode.durable.apply(&change);
                    }
                    Ok(())
                }
                Verdict::Fail(e) => Err(e),
                Verdict::Torn(e) => {
                    // The kernel reports a failed write-back once and marks the pages clean: pending bytes are
                    // partly on disk, they read back in full, and no later sync writes them.
                    if !dead {
                        let pending = std::mem::take(&mut inode.pending);
                        inode.differs |= !pending.is_empty();
                        apply_part(&mut inode.durable, pending, sector, &mut rng);
                        s.rng = rng.0;
                    }
                    Err(e)
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the whole file, in memory of its own and in shared memory.
    fn read(file: &MemFile) -> Vec<u8> {
        let size = file.size().unwrap() as usize;
        let mut bytes = vec![0xff; size + 1];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), size);
        bytes.truncate(size);
        // The first time they are read, then copied, then shared.
        for _ in 0..3 {
            assert!(file.read_bytes(0, size + 1).unwrap() == bytes);
        }
        let from = size / 2;
        assert!(file.read_bytes(from as u64, size).unwrap() == bytes[from..]);
        bytes
    }

    fn put(expected: &mut Vec<u8>, offset: usize, data: &[u8]) {
        expected.resize(expected.len().max(offset + data.len()), 0);
        expected[offset..offset + data.len()].copy_from_slice(data);
    }

    #[test]
    fn file_reads_as_written_through_syncs_crashes_and_damage() {
        for seed in 0..40 {
            let mut rng = Rng(seed);
            let disk = MemDisk::new();
            let mut file = disk.create("a").unwrap();
            disk.sync_dir().unwrap();
            let (mut expected, mut durable) = (Vec::new(), Vec::new());
            for _ in 0..200 {
                let offset = rng.below(12_000) as usize;
                let data = vec![rng.below(3) as u8; 1 + rng.below(3_000) as usize];
                match rng.below(10) {
                    0..=2 => {
                        file.write_at(&data, offset as u64).unwrap();
                        put(&mut expected, offset, &data);
                    }
                    3..=5 => {
                        let end = offset + data.len();
                        let zeros = end.next_multiple_of(4096).min(expected.len().max(end)) - end;
                        file.append_at(&data, offset as u64).unwrap();
                        put(&mut expected, offset, &[&data[..], &vec![0; zeros]].concat());
                    }
                    6 => {
                        file.allocate(offset as u64).unwrap();
                        put(&mut expected, offset, &[]);
                    }
                    7 => {
                        file.sync_data().unwrap();
                        durable.clone_from(&expected);
                    }
                    8 => {
                        // The next sync does not write the changes of a failed one either.
                        disk.fail_sync(1);
                        assert!(file.sync_data().is_err());
                        assert_eq!(read(&file), expected, "it reads back");
                        file.sync_data().unwrap();
                        disk.crash(rng.next());
                        file = disk.open("a", true).unwrap();
                        expected = read(&file);
                        durable.clone_from(&expected);
                    }
                    _ => {
                        file.sync_data().unwrap();
                        durable.clone_from(&expected);
                        let at = rng.below(expected.len() as u64 + 1);
                        if disk.corrupt("a", at, 1) {
                            for bytes in [&mut expected, &mut durable] {
                                bytes.get_mut(at as usize).into_iter().for_each(|byte| *byte ^= 1);
                            }
                        }
                        disk.overwrite("a", offset as u64, &data);
                        for bytes in [&mut expected, &mut durable] {
                            let end = (offset + data.len()).min(bytes.len());
                            let n = end.saturating_sub(offset);
                            bytes[end - n..end].copy_from_slice(&data[..n]);
                        }
                    }
                }
                assert_eq!(read(&file), expected, "seed {seed}");
            }
            // A crash that loses all pending changes leaves what was synced.
            let loses_all = |seed| {
                let copy = disk.fork();
                copy.crash(seed);
                copy.contents("a").as_ref() == Some(&durable)
            };
            assert!((0..100).any(loses_all), "seed {seed}");
        }
    }
}
