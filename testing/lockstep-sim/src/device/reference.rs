//! The reference: the log's entries applied in order by a second, simple implementation.

use super::cells::{CELL, CELLS_MAX};
use crate::history::{Check, hold};
use bytes::Bytes;
use lockstep_block::device::entry::Entry;
use lockstep_block::device::extent_map::Content;
use lockstep_core::{MemberId, Seqno};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A taken entry, or one that is nothing to the device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Item {
    /// A view, or an entry that certification refused.
    Nothing,
    Entry(MemberId, Bytes),
}

/// The owner of the present epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Nobody,
    Promoted(MemberId),
    /// With the number of the next entry.
    Attached(MemberId, u64),
}

/// The change that an entry has made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    None,
    /// An epoch begins. The one before ends without order.
    Promoted(u64),
    /// An epoch's client comes.
    Attached(u64),
    /// An epoch ends in order.
    Detached(u64),
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Reference {
    items: BTreeMap<Seqno, Item>,
    last: Seqno,
    size: u64,
    epoch: u64,
    owner: Owner,
    image: Arc<Vec<u8>>,
    /// The image and its size after each of the last entries.
    images: BTreeMap<Seqno, (u64, Arc<Vec<u8>>)>,
    /// Entries, and those of writes that were taken.
    pub(super) entries: u64,
    pub(super) writes: u64,
}

impl Default for Reference {
    fn default() -> Reference {
        let image = Arc::new(vec![0; CELLS_MAX * CELL]);
        Reference {
            items: BTreeMap::new(),
            last: -1,
            size: 0,
            epoch: 0,
            owner: Owner::Nobody,
            images: BTreeMap::from([(-1, (0, image.clone()))]),
            image,
            entries: 0,
            writes: 0,
        }
    }
}

impl Reference {
    pub(super) fn last(&self) -> Seqno {
        self.last
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn image(&self) -> &Arc<Vec<u8>> {
        &self.image
    }

    /// The size and the image at a position.
    pub(super) fn at(&self, seqno: Seqno) -> Option<&(u64, Arc<Vec<u8>>)> {
        self.images.range(..=seqno).next_back().map(|(_, image)| image)
    }

    /// The images at a position and later.
    pub(super) fn from(&self, seqno: Seqno) -> impl Iterator<Item = &Arc<Vec<u8>>> {
        let first = self.images.range(..=seqno).next_back().map(|(at, _)| *at);
        self.images.range(first.unwrap_or(seqno)..).map(|(_, (_, image))| image)
    }

    /// No copy is at a position before this one.
    pub(super) fn forget(&mut self, before: Seqno) {
        if let Some(first) = self.images.range(..=before).next_back().map(|(at, _)| *at) {
            self.images = self.images.split_off(&first);
        }
        self.items = self.items.split_off(&before);
    }

    /// A member takes an entry: the first one to do so says what it is, and all others must take the same. Returns what it
    /// changes if it is new.
    pub(super) fn take(
        &mut self,
        name: &str,
        seqno: Seqno,
        item: Item,
    ) -> Result<Change, crate::history::Violation> {
        if seqno <= self.last {
            let same = self.items.get(&seqno).is_none_or(|known| *known == item);
            hold!(same, "all copies take the same entries", "{name} takes another entry at {seqno}");
            return Ok(Change::None);
        }
        self.items.insert(seqno, item.clone());
        self.entries += 1;
        self.last = seqno;
        let Item::Entry(origin, payload) = item else { return Ok(Change::None) };
        let entry = Entry::decode(&payload);
        hold!(entry.is_ok(), "entries can be read", "seqno {seqno}: {entry:?}");
        let change = entry.map_or(Change::None, |entry| self.apply(&origin, entry));
        self.images.insert(seqno, (self.size, self.image.clone()));
        Ok(change)
    }

    fn apply(&mut self, origin: &MemberId, entry: Entry) -> Change {
        match (entry, self.owner) {
            (Entry::Writes { epoch, number, runs, .. }, Owner::Attached(member, next))
                if epoch == self.epoch && member == *origin && number == next =>
            {
                self.owner = Owner::Attached(member, next + 1);
                self.writes += 1;
                let image = Arc::make_mut(&mut self.image);
                for run in runs {
                    let range = run.offset as usize..run.end() as usize;
                    match run.content {
                        Content::Data(bytes) => image[range].copy_from_slice(&bytes),
                        Content::Zeroes { .. } => image[range].fill(0),
                    }
                }
                Change::None
            }
            (Entry::Attach { before, promoted: false, .. }, Owner::Nobody)
                if before == self.epoch && self.size > 0 =>
            {
                self.epoch += 1;
                self.owner = Owner::Attached(*origin, 1);
                Change::Attached(self.epoch)
            }
            (Entry::Attach { before, promoted: true, .. }, Owner::Promoted(member))
                if before == self.epoch && member == *origin =>
            {
                self.owner = Owner::Attached(*origin, 1);
                Change::Attached(self.epoch)
            }
            (Entry::Promote { before, .. }, _) if before == self.epoch && self.size > 0 => {
                self.epoch += 1;
                self.owner = Owner::Promoted(*origin);
                Change::Promoted(self.epoch)
            }
            (Entry::Detach { epoch, number, .. }, Owner::Attached(member, next))
                if epoch == self.epoch && member == *origin && number == next =>
            {
                self.owner = Owner::Nobody;
                Change::Detached(epoch)
            }
            (Entry::Resize { before, size, .. }, _) if before == self.size && size >= self.size => {
                self.size = size;
                Change::None
            }
            _ => Change::None,
        }
    }

    /// The device file of a copy at a position is the log's prefix.
    pub(super) fn check_copy(&self, name: &str, seqno: Seqno, found: &[u8]) -> Check {
        let Some((size, image)) = self.at(seqno) else { return Ok(()) };
        let image = &image[..*size as usize];
        hold!(
            found.len() >= image.len(),
            "a copy is a prefix of the log",
            "{name} at {seqno}: {} bytes",
            found.len()
        );
        // A later entry may have made it longer.
        let rest = std::iter::repeat_n(&0, found.len() - image.len());
        let differs =
            found.iter().zip(image.iter().chain(rest)).position(|(found, expected)| found != expected);
        hold!(
            differs.is_none(),
            "a copy is a prefix of the log",
            "the device file of {name}, at {seqno}, differs from the log in byte {differs:?}"
        );
        Ok(())
    }

    /// The device file of a copy whose last write-back has failed or was interrupted: each cell is of its position or later.
    pub(super) fn check_begun(&self, name: &str, seqno: Seqno, found: &[u8]) -> Check {
        let size = self.at(seqno).map_or(0, |(size, _)| *size as usize);
        for (cell, found) in found.chunks(CELL).enumerate().take(size / CELL) {
            let is_known = self.from(seqno).any(|image| image[cell * CELL..].starts_with(found));
            hold!(
                is_known,
                "a saved position is not ahead of the data",
                "the device file of {name} says {seqno}, and cell {cell} is of no entry from there on"
            );
        }
        Ok(())
    }
}
