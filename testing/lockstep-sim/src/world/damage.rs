//! Media damage to a log. It strikes bytes before the last sync but one: nothing written later could reveal damage to the
//! last one.

use super::World;
use crate::history::Check;
use crate::node::Fate;
use lockstep_log::{MemDisk, Options};
use lockstep_node::simulation::try_open;

/// The identity file, and where its two slots are.
const ID_FILE: &str = "lockstep.id.log";
const ID_SLOTS: [u64; 2] = [0, 4096];
const ID_SLOT_BYTES: u64 = 128;
/// Where a slot names the last segment that was durable, and up to which offset (docs/format-disk.md).
const DURABLE_SEGMENT: usize = 88;
const DURABLE_OFFSET: usize = 96;

fn segment_name(number: u64) -> String {
    format!("lockstep.{number:016x}.log")
}

impl World {
    /// The power fails, and comes back to a medium that is not what it was.
    pub(crate) fn damage(&mut self) -> Check {
        let Some(at) = self.any_running() else { return Ok(()) };
        let safe = self.nodes[at].process.as_ref().and_then(|p| p.synced_to[0]);
        let Some((number, bytes)) = safe.filter(|_| self.bearable(at) && self.has_better(at)) else {
            return Ok(());
        };
        self.stop(at, true);
        self.keep_rescued(at)?;
        // Without a draw, so that the draws of other runs mean what they did.
        if !self.now.is_multiple_of(4) || !self.lose_latest_writes(at, (number, bytes)) {
            let disk = self.nodes[at].disk.clone();
            for _ in 0..self.rng.between(1, 3) {
                if self.rng.one_in(8) {
                    self.damage_identity(at, &disk);
                } else {
                    self.damage_segment(at, &disk, (number, bytes), false);
                }
            }
        }
        let (low, high) = self.profile.restart;
        self.start_later(at, low, high);
        Ok(())
    }

    /// The power fails for several members, which find their logs damaged near the ends. They keep their ids, so a majority may
    /// be struck. Their logs prove the former ends, and an intact voter has all that they had.
    pub(crate) fn damage_several(&mut self) -> Check {
        let mut running = self.running();
        let mut left = self.rng.between(1, running.len().max(1) as u64);
        while left > 0 && !running.is_empty() {
            let at = running.swap_remove(self.rng.below(running.len() as u64) as usize);
            let safe = self.nodes[at].process.as_ref().and_then(|p| p.synced_to[0]);
            let Some(place) = safe.filter(|_| self.is_held_by_intact_voter(at)) else { continue };
            self.stop(at, true);
            self.keep_rescued(at)?;
            let disk = self.nodes[at].disk.fork();
            for _ in 0..self.rng.between(1, 2) {
                self.damage_segment(at, &disk, place, true);
            }
            let opened =
                try_open(&disk.fork(), Options { new_member_id: self.nodes[at].id.0, ..Options::default() });
            // The database may be older than the rest of a trimmed log.
            if opened.is_ok_and(|found| found.trimmed.is_none()) {
                (self.nodes[at].disk, self.nodes[at].lost_end) = (disk, true);
                left -= 1;
            } else {
                self.nodes[at].damaged = false;
                self.say(at, format_args!("its log would not prove its end: it stays whole"));
            }
            let (low, high) = self.profile.restart;
            self.start_later(at, low, high);
        }
        Ok(())
    }

    /// The disk has lost its latest writes although it had confirmed them: the last sync, and a part of an earlier one. Intact
    /// records lie between the two. Nothing tells where the log had ended, so the member must not answer for it. Returns whether
    /// it was possible.
    fn lose_latest_writes(&mut self, at: usize, (number, bytes): (u64, u64)) -> bool {
        let name = segment_name(number);
        let disk = self.nodes[at].disk.fork();
        let (Some(segment), Some(id)) = (disk.contents(&name), disk.contents(ID_FILE)) else { return false };
        if disk.contents(&segment_name(number + 1)).is_some() {
            return false;
        }
        let word = |at: usize| {
            id.get(at..at + 8).map_or(0, |w| u64::from_le_bytes(w.try_into().unwrap_or_default()))
        };
        let saved = ID_SLOTS
            .map(|slot| (word(slot as usize + DURABLE_SEGMENT), word(slot as usize + DURABLE_OFFSET)));
        let durable =
            saved.into_iter().filter(|(segment, _)| *segment == number).map(|(_, offset)| offset).max();
        let (Some(durable), size) = (durable, segment.len() as u64) else { return false };
        if durable >= bytes || bytes >= size {
            return false;
        }
        let hole = self.rng.between(durable, bytes - 1);
        let length = self.rng.between(1, 512).min(bytes - hole);
        disk.overwrite(&name, hole, &vec![0; length as usize]);
        disk.overwrite(&name, bytes, &vec![0; (size - bytes) as usize]);
        let options = Options { new_member_id: self.nodes[at].id.0, ..Options::default() };
        let shows = match try_open(&disk.fork(), options) {
            Ok(found) => found.shortened.is_some(),
            Err(_) => true,
        };
        if shows {
            (self.nodes[at].disk, self.nodes[at].damaged) = (disk, true);
            self.counters.lost_batches += 1;
            self.say(
                at,
                format_args!(
                    "damage: {name} has lost what follows byte {bytes}, and {length} bytes from {hole}"
                ),
            );
        }
        shows
    }

    /// Whether a voter with an intact log has all that this member has or may have on its disk.
    fn is_held_by_intact_voter(&self, at: usize) -> bool {
        let Some(history) = &self.history else { return false };
        let node = &self.nodes[at];
        if node.disk_fails || node.damaged || node.rewound || node.disk_hangs || !node.book.only_appends() {
            return false;
        }
        let mine = &node.book.memory.mirror;
        self.nodes.iter().enumerate().any(|(other, node)| {
            let is_intact = !node.damaged && !node.rewound && !node.book.is_shortened();
            other != at
                && is_intact
                && node.fate == Fate::In
                && !node.hello.arbitrator
                && history.state().membership.is_voter(&node.id)
                && node.book.durable.mirror.term_at(mine.last()) == Some(mine.last_term())
        })
    }

    /// One of the two slots; both are alike then, so that nothing is lost. Or both, and the identity is lost.
    fn damage_identity(&mut self, at: usize, disk: &MemDisk) {
        let Some(contents) = disk.contents(ID_FILE) else { return };
        let part = |slot: u64| contents.get(slot as usize..(slot + ID_SLOT_BYTES) as usize);
        if part(ID_SLOTS[0]) != part(ID_SLOTS[1]) {
            return;
        }
        let both = self.rng.one_in(3);
        let one = self.rng.below(2) as usize;
        for slot in if both { &ID_SLOTS[..] } else { &ID_SLOTS[one..=one] } {
            let (offset, bit) = (slot + self.rng.below(ID_SLOT_BYTES), self.rng.below(8));
            disk.corrupt(ID_FILE, offset, 1 << bit);
        }
        self.nodes[at].damaged = true;
        self.say(at, format_args!("damage to the identity file, both slots: {both}"));
    }

    fn damage_segment(&mut self, at: usize, disk: &MemDisk, (number, bytes): (u64, u64), near_end: bool) {
        let numbers: Vec<u64> = disk
            .names()
            .iter()
            .filter_map(|name| name.strip_prefix("lockstep.")?.strip_suffix(".log"))
            .filter_map(|hex| u64::from_str_radix(hex, 16).ok())
            .filter(|n| *n <= number)
            .collect();
        if numbers.is_empty() {
            return;
        }
        let (mut hit, other) = (*self.rng.pick(&numbers), *self.rng.pick(&numbers));
        if near_end && numbers.contains(&number) && self.rng.below(4) > 0 {
            hit = number;
        }
        let name = segment_name(hit);
        let size = disk.contents(&name).map_or(0, |c| c.len() as u64);
        let limit = if hit == number { bytes.min(size) } else { size };
        if limit == 0 {
            return;
        }
        let mut offset = self.rng.below(limit);
        if near_end && self.rng.one_in(2) {
            offset = limit - 1 - offset % limit.min(1024);
        }
        let length = self.rng.between(1, 2048).min(limit - offset);
        let what = match self.rng.below(4) {
            0 => {
                disk.corrupt(&name, offset, 1 << self.rng.below(8));
                "a bit flips"
            }
            1 => {
                disk.overwrite(&name, offset, &vec![0; length as usize]);
                "a write was lost"
            }
            2 => {
                // Aligned as records are, it looks like one.
                let from = disk.contents(&segment_name(other)).unwrap_or_default();
                let start = self.rng.below((from.len() as u64).max(1)) & !7;
                let part = from.get(start as usize..).unwrap_or_default();
                let part = &part[..part.len().min(length as usize)];
                let offset = offset & !7;
                if part.len() as u64 + offset <= limit {
                    disk.overwrite(&name, offset, part);
                }
                "a write went astray"
            }
            _ => {
                let noise: Vec<u8> = (0..length).map(|_| self.rng.bits() as u8).collect();
                disk.overwrite(&name, offset, &noise);
                "noise"
            }
        };
        self.nodes[at].damaged = true;
        self.say(at, format_args!("damage: {what}, {name} from byte {offset}, {length} bytes at most"));
    }
}
