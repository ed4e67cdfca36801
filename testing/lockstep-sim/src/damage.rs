//! Media damage to a log, and the member's identity afterwards.
//!
//! A log promises to detect damage to synced bytes, except to the very last sync: no later record proves that it existed
//! (docs/format-disk.md). So damage here strikes earlier bytes: bits flip, writes are lost or misplaced. A member with a
//! damaged log returns under a new id.
//!
//! Damage is injected only while the other members still form a majority under every membership that they know. The
//! simulated operator changes nothing until the extent of the loss is known.

use crate::cluster::Cluster;
use crate::machine::{Fate, id_of};
use crate::mirror::Mirror;
use crate::mutate::{NodeFault, Planted};
use crate::profile::MS;
use crate::server::Server;
use lockstep_core::members::Role;
use lockstep_log::MemDisk;

/// The identity file, and where its two slots are.
const ID_FILE: &str = "lockstep.id.log";
const ID_SLOTS: [u64; 2] = [0, 4096];
const ID_SLOT_BYTES: u64 = 128;

fn segment_name(number: u64) -> String {
    format!("lockstep.{number:016x}.log")
}

impl Cluster {
    /// Whether this machine can lose its log, or all, without the promise being lost.
    pub(crate) fn bearable(&self, slot: usize) -> bool {
        let used = self.machines.iter().filter(|m| m.fate == Fate::Used).count();
        let running = self.machines.iter().filter(|m| m.process.is_some()).count();
        let membership = &self.history.state().membership;
        let settled = running == used
            && self.machines.iter().all(|m| !m.damaged)
            && self.machines.iter().filter_map(|m| m.process.as_ref()).all(|p| p.membership == *membership)
            && membership.members.iter().all(|m| !self.is_gone(&m.id));
        let id = self.machines[slot].id;
        let enough = !membership.is_voter(&id) || membership.voters().count() >= 3;
        settled && enough && membership.members.len() >= 2
    }

    /// The power fails, and comes back to a medium that is not what it was.
    pub(crate) fn damage(&mut self) {
        let Some(slot) = self.any_running() else { return };
        let safe = self.machines[slot].process.as_ref().and_then(|p| p.synced_to[0]);
        let Some((number, bytes)) = safe.filter(|_| self.bearable(slot)) else { return };
        self.stop(slot, true);
        let disk = self.machines[slot].disk.clone();
        let mut strokes = self.rng.between(1, 3);
        while strokes > 0 {
            strokes -= 1;
            if self.rng.one_in(8) {
                self.damage_identity(slot, &disk);
            } else {
                self.damage_segment(slot, &disk, (number, bytes));
            }
        }
        let after = self.rng.between(self.profile.restart.0, self.profile.restart.1);
        self.start_later(slot, after);
    }

    /// One of the two slots; both are alike then, so that nothing is lost. Or both, and then who the member was is.
    fn damage_identity(&mut self, slot: usize, disk: &MemDisk) {
        let Some(contents) = disk.contents(ID_FILE) else { return };
        let part = |at: u64| contents.get(at as usize..(at + ID_SLOT_BYTES) as usize);
        if part(ID_SLOTS[0]) != part(ID_SLOTS[1]) {
            return;
        }
        let both = self.rng.one_in(3);
        let one = self.rng.below(2) as usize;
        for at in if both { &ID_SLOTS[..] } else { &ID_SLOTS[one..=one] } {
            let (offset, bit) = (at + self.rng.below(ID_SLOT_BYTES), self.rng.below(8));
            disk.corrupt(ID_FILE, offset, 1 << bit);
        }
        self.machines[slot].damaged = true;
        self.say(
            slot,
            format_args!("damage: {} of the identity file", if both { "both slots" } else { "a slot" }),
        );
    }

    fn damage_segment(&mut self, slot: usize, disk: &MemDisk, (number, bytes): (u64, u64)) {
        // A segment of the log that is older than the last sync, and how much of it is.
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
        let mut pick = || *self.rng.pick(&numbers);
        let (hit, other) = (pick(), pick());
        let name = segment_name(hit);
        let size = disk.contents(&name).map_or(0, |c| c.len() as u64);
        let limit = if hit == number { bytes.min(size) } else { size };
        if limit == 0 {
            return;
        }
        let at = self.rng.below(limit);
        let length = self.rng.between(1, 2048).min(limit - at);
        let what = match self.rng.below(4) {
            0 => {
                disk.corrupt(&name, at, 1 << self.rng.below(8));
                "a bit flips"
            }
            1 => {
                disk.overwrite(&name, at, &vec![0; length as usize]);
                "a write was lost"
            }
            2 => {
                // Aligned as records are, it looks like one.
                let from = disk.contents(&segment_name(other)).unwrap_or_default();
                let start = self.rng.below((from.len() as u64).max(1)) & !7;
                let part = from.get(start as usize..).unwrap_or_default();
                let part = &part[..part.len().min(length as usize)];
                let at = at & !7;
                if part.len() as u64 + at <= limit {
                    disk.overwrite(&name, at, part);
                }
                "a write went astray"
            }
            _ => {
                let noise: Vec<u8> = (0..length).map(|_| self.rng.bits() as u8).collect();
                disk.overwrite(&name, at, &noise);
                "noise"
            }
        };
        self.machines[slot].damaged = true;
        self.say(slot, format_args!("damage: {what}, {name} from byte {at}, {length} bytes at most"));
    }

    /// The log is gone: the machine returns as a new member.
    pub(crate) fn new_identity(&mut self, slot: usize, with_database: bool) {
        let machine = &mut self.machines[slot];
        let old = machine.id;
        machine.former.push((old, std::mem::take(&mut machine.durable)));
        if self.settings.node_fault(NodeFault::IdKept) {
            machine.former.pop();
        } else {
            let salt = self.salt ^ (machine.former.len() as u64) << 32;
            machine.id = id_of(slot, salt, self.settings.arbitrates(slot));
        }
        machine.disk = MemDisk::new();
        machine.disk.set_sector_bytes(self.profile.sector_bytes);
        if let Some(Planted::Log(fault)) = self.settings.mutation {
            machine.disk.plant(Some(fault));
        }
        machine.damaged = false;
        machine.disk_fails = false;
        machine.disk_full = false;
        machine.trimming = 0;
        machine.durable = Mirror::default();
        machine.durable_vote = (0, None);
        machine.in_flight.clear();
        machine.known_from = machine.lives + 1;
        if !with_database {
            machine.server = Server::default();
        }
        self.counters.identities += 1;
        self.say(slot, format_args!("has lost its log and is somebody else now"));
    }

    /// A machine or its disk is lost for good, and its replacement has a new id. Only while the others still form a majority
    /// under every membership that they know: the promises depend on that.
    pub(crate) fn replace(&mut self) {
        let Some(slot) = self.any_running() else { return };
        if !self.bearable(slot) || !self.has_better(slot) {
            return;
        }
        let spare = (0..crate::cluster::MACHINES).find(|slot| self.machines[*slot].fate == Fate::Spare);
        let spare = spare.filter(|_| self.rng.one_in(2));
        self.stop(slot, true);
        let Some(spare) = spare else {
            self.new_identity(slot, false);
            let after = self.rng.between(MS, self.profile.restart.1);
            self.start_later(slot, after);
            return;
        };
        self.say(slot, format_args!("is lost for good"));
        let machine = &mut self.machines[slot];
        machine.fate = Fate::Lost;
        machine.server = Default::default();
        let role = self.operator.wanted.remove(&slot).unwrap_or(Role::Learner);
        self.operator.wanted.insert(spare, role);
        self.ensure_running(spare);
    }
}
