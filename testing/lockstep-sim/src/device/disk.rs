//! The disk under a simulated copy. A crash loses what was not synced, sector by sector.

use super::side::before_disk;
use crate::rng::Rng;
use lockstep_block::device::storage::Storage;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The atomic unit of a disk write, bytes.
const SECTOR: usize = 512;

/// A fault of the next operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DiskFault {
    /// One operation fails.
    Io,
    /// The power fails in this operation, and in all that follow.
    PowerCut,
}

#[derive(Debug)]
struct Inner {
    /// The image as the process sees it.
    current: Vec<u8>,
    /// The image as it is on the medium.
    durable: Vec<u8>,
    /// Sectors that were written since the last sync.
    unsynced: BTreeSet<usize>,
    state: Option<Vec<u8>>,
    /// The fault, and the operations before it.
    fault: Option<(u64, DiskFault)>,
    is_cut: bool,
    is_full: bool,
    /// Whether ranges can be made zero without writing them.
    zeroes: bool,
    rng: Rng,
}

/// See the module's documentation. Clones are the same disk.
#[derive(Clone, Debug)]
pub(super) struct SimDisk(Arc<Mutex<Inner>>);

impl SimDisk {
    pub(super) fn new(mut rng: Rng) -> SimDisk {
        let zeroes = !rng.one_in(4);
        SimDisk(Arc::new(Mutex::new(Inner {
            current: Vec::new(),
            durable: Vec::new(),
            unsynced: BTreeSet::new(),
            state: None,
            fault: None,
            is_cut: false,
            is_full: false,
            zeroes,
            rng,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault strikes after this number of operations.
    pub(super) fn plan(&self, after: u64, fault: DiskFault) {
        self.lock().fault = Some((after, fault));
    }

    pub(super) fn set_full(&self, is_full: bool) {
        self.lock().is_full = is_full;
    }

    pub(super) fn is_full(&self) -> bool {
        self.lock().is_full
    }

    /// Whether the disk is out of order in any way.
    pub(super) fn is_faulty(&self) -> bool {
        let inner = self.lock();
        inner.is_cut || inner.is_full || inner.fault.is_some()
    }

    /// The process ends. `power`: the machine loses what was not synced.
    pub(super) fn crash(&self, power: bool) {
        let mut inner = self.lock();
        if power || inner.is_cut {
            let Inner { current, durable, unsynced, rng, .. } = &mut *inner;
            // The new length may be lost. Sectors beyond the old one are then, too.
            if rng.one_in(2) {
                durable.resize(current.len(), 0);
            }
            for sector in std::mem::take(unsynced) {
                if rng.one_in(2) {
                    copy_sector(current, durable, sector);
                }
            }
            *current = durable.clone();
        }
        (inner.fault, inner.is_cut) = (None, false);
    }

    /// The image as the process sees it.
    pub(super) fn image(&self) -> Vec<u8> {
        self.lock().current.clone()
    }
}

/// Copies a sector from memory to the medium, or back.
fn copy_sector(from: &[u8], to: &mut [u8], sector: usize) {
    let end = ((sector + 1) * SECTOR).min(from.len()).min(to.len());
    let begin = (sector * SECTOR).min(end);
    to[begin..end].copy_from_slice(&from[begin..end]);
}

impl Inner {
    /// Counts an operation. Fails if it meets a fault.
    fn begin(&mut self) -> io::Result<()> {
        if self.is_cut {
            return Err(io::Error::other("the power is off"));
        }
        match &mut self.fault {
            Some((0, DiskFault::Io)) => {
                self.fault = None;
                Err(io::Error::other("input/output error"))
            }
            Some((0, DiskFault::PowerCut)) => {
                (self.fault, self.is_cut) = (None, true);
                Err(io::Error::other("the power fails"))
            }
            Some((left, _)) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn room(&self) -> io::Result<()> {
        match self.is_full {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }

    /// Writes the sectors of a range. If `failed`, only some of them.
    fn put(&mut self, offset: usize, length: usize, byte: impl Fn(usize) -> u8, failed: bool) {
        let end = offset + length;
        if end > self.current.len() {
            self.current.resize(end, 0);
        }
        let mut at = offset;
        while at < end {
            let sector = at / SECTOR;
            let until = ((sector + 1) * SECTOR).min(end);
            if !failed || self.rng.one_in(2) {
                (at..until).for_each(|at| self.current[at] = byte(at - offset));
                self.unsynced.insert(sector);
            }
            at = until;
        }
    }
}

impl Storage for SimDisk {
    fn image_name(&self) -> String {
        "device.img".into()
    }

    fn state_name(&self) -> String {
        "device.state".into()
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.lock().current.len() as u64)
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        before_disk()?;
        let mut inner = self.lock();
        inner.begin()?;
        let before = inner.current.len();
        inner.current.resize(length as usize, 0);
        // The medium may still have what a shorter length has cut off.
        let end = inner.current.len().div_ceil(SECTOR);
        inner.unsynced.extend(before / SECTOR..end);
        Ok(())
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        before_disk()?;
        let inner = self.lock();
        let rest = inner.current.get(offset as usize..).unwrap_or_default();
        let length = rest.len().min(into.len());
        into[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        before_disk()?;
        let mut inner = self.lock();
        inner.room()?;
        let begun = inner.begin();
        inner.put(offset as usize, bytes.len(), |at| bytes[at], begun.is_err());
        begun
    }

    fn zero_at(&self, offset: u64, length: u64, _hole: bool) -> io::Result<bool> {
        before_disk()?;
        let mut inner = self.lock();
        if !inner.zeroes {
            return Ok(false);
        }
        inner.room()?;
        let begun = inner.begin();
        inner.put(offset as usize, length as usize, |_| 0, begun.is_err());
        begun.map(|()| true)
    }

    fn sync(&self) -> io::Result<()> {
        before_disk()?;
        let mut inner = self.lock();
        let begun = inner.begin();
        let Inner { current, durable, unsynced, rng, .. } = &mut *inner;
        durable.resize(current.len(), 0);
        // After a failed sync the kernel takes all sectors for clean: a later sync does not write them.
        for sector in std::mem::take(unsynced) {
            if begun.is_ok() || rng.one_in(2) {
                copy_sector(current, durable, sector);
            }
        }
        begun
    }

    fn reread(&self, range: Range<u64>) -> io::Result<()> {
        before_disk()?;
        let mut inner = self.lock();
        let Inner { current, durable, unsynced, .. } = &mut *inner;
        let first = range.start as usize / SECTOR;
        let end = (range.end.min(current.len().min(durable.len()) as u64) as usize).div_ceil(SECTOR);
        for sector in (first..end).filter(|sector| !unsynced.contains(sector)) {
            copy_sector(durable, current, sector);
        }
        Ok(())
    }

    fn extent(&self, offset: u64, length: u64) -> io::Result<(u64, bool)> {
        let inner = self.lock();
        let end = (offset + length) as usize;
        let is_zero = |at: usize| inner.current.get(at).is_none_or(|byte| *byte == 0);
        // A hole takes whole sectors.
        let is_hole = |sector: usize| (sector * SECTOR..(sector + 1) * SECTOR).all(is_zero);
        let first = offset as usize / SECTOR;
        let hole = is_hole(first);
        let mut sector = first + 1;
        while sector * SECTOR < end && is_hole(sector) == hole {
            sector += 1;
        }
        Ok(((sector * SECTOR).min(end) as u64 - offset, hole))
    }

    /// The device has several extents.
    fn copy_unit(&self) -> u64 {
        SECTOR as u64
    }

    fn load_state(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.lock().state.clone())
    }

    fn save_state(&self, bytes: &[u8]) -> io::Result<()> {
        before_disk()?;
        let mut inner = self.lock();
        inner.room()?;
        let is_off = inner.is_cut;
        let begun = inner.begin();
        if begun.is_ok() || !is_off && inner.rng.one_in(2) {
            inner.state = Some(bytes.to_vec());
        }
        begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crash_keeps_what_was_synced_and_any_sectors_of_the_rest() {
        let disk = SimDisk::new(Rng::new(1));
        disk.set_length(64 * 512).unwrap();
        disk.write_at(&[1; 64 * 512], 0).unwrap();
        disk.sync().unwrap();
        disk.write_at(&[2; 32 * 512], 0).unwrap();
        disk.crash(false);
        assert_eq!(disk.image()[0], 2, "a killed process loses nothing");
        disk.crash(true);
        let image = disk.image();
        let kept = image.chunks(512).filter(|sector| sector.iter().all(|byte| *byte == 2)).count();
        let lost = image.chunks(512).filter(|sector| sector.iter().all(|byte| *byte == 1)).count();
        assert_eq!(kept + lost, 64, "no sector is torn");
        assert!((1..32).contains(&kept), "{kept}");
    }

    #[test]
    fn failed_sync_is_not_made_good_by_the_next() {
        let disk = SimDisk::new(Rng::new(1));
        disk.write_at(&[1; 64 * 512], 0).unwrap();
        disk.plan(0, DiskFault::Io);
        assert!(disk.sync().is_err());
        disk.sync().unwrap();
        disk.crash(true);
        assert!(disk.image().contains(&0));
    }

    #[test]
    fn reread_shows_what_a_failed_sync_has_lost() {
        let disk = SimDisk::new(Rng::new(1));
        disk.write_at(&[1; 64 * 512], 0).unwrap();
        disk.plan(0, DiskFault::Io);
        assert!(disk.sync().is_err());
        disk.write_at(&[2; 512], 0).unwrap();
        assert!(!disk.image().contains(&0), "memory hides it");
        disk.reread(0..u64::MAX).unwrap();
        let image = disk.image();
        assert!(image.contains(&0));
        assert_eq!(image[0], 2, "what is not durable stays");
    }

    #[test]
    fn bytes_that_were_cut_off_do_not_come_back() {
        let disk = SimDisk::new(Rng::new(1));
        disk.write_at(&[1; 64 * 512], 0).unwrap();
        disk.sync().unwrap();
        disk.set_length(0).unwrap();
        disk.set_length(64 * 512).unwrap();
        disk.sync_and_reread().unwrap();
        disk.crash(true);
        assert_eq!(disk.image(), [0; 64 * 512]);
    }

    #[test]
    fn power_cut_ends_all_operations_until_the_restart() {
        let disk = SimDisk::new(Rng::new(1));
        disk.plan(1, DiskFault::PowerCut);
        disk.write_at(&[1; 512], 0).unwrap();
        assert!(disk.sync().is_err() && disk.save_state(b"position").is_err());
        assert_eq!(disk.load_state().unwrap(), None);
        disk.crash(true);
        disk.save_state(b"position").unwrap();
        assert_eq!(disk.load_state().unwrap().as_deref(), Some(&b"position"[..]));
    }
}
