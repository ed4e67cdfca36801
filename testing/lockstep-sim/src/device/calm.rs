//! The end of all faults: every task ends, the device can be used, and all copies become equal.

use super::world::{DeviceWorld, Event};
use crate::history::{Check, hold};
use crate::profile::{MS, SECOND};
use lockstep_core::Micros;

/// After the faults end, everything must be well within this time. Lost entries are sent again after a minute at the latest, and
/// a control entry may take half a minute.
const HEALING: Micros = 300 * SECOND;

/// The awaited event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Stage {
    /// All requests, attaches and promotions end.
    #[default]
    Ends,
    /// A client is attached.
    Attached,
    /// Its requests are answered. So many are to come.
    Used(u64),
    /// It has left, and all copies are equal.
    Equal,
}

impl DeviceWorld {
    /// All faults end.
    pub(super) fn heal(&mut self) {
        self.tell(format_args!("everything heals"));
        self.round += 1;
        self.trouble = false;
        self.healed_at = self.now;
        self.stage = Stage::Ends;
        self.mend_links();
        for at in 0..self.machines.len() {
            let machine = &mut self.machines[at];
            machine.disk.set_full(false);
            // A planned fault may strike later.
            machine.disk_fails = machine.disk.is_faulty();
            machine.paused_until = 0;
            if let Some(process) = &mut machine.process {
                process.woken = false;
            }
            self.wake(at, 0);
            self.start_later(at, 0, 500 * MS);
        }
    }

    /// Why not all copies are equal and complete.
    fn unequal(&self) -> Option<String> {
        for machine in self.machines.iter().filter(|machine| machine.keeps_data()) {
            let name = &machine.hello.name;
            let Some(device) = machine.process.as_ref().and_then(|process| process.device.as_ref()) else {
                return Some(format!("{name} does not run"));
            };
            let status = device.replica.status();
            if !machine.is_whole || !device.replica.is_whole() {
                return Some(format!("{name} has no whole copy: {status:?}"));
            }
            if status.written != self.reference.last() || status.dirty > 0 {
                return Some(format!("{name} is not at {}: {status:?}", self.reference.last()));
            }
        }
        None
    }

    fn missing(&self) -> String {
        let equal = self.unequal();
        format!(
            "stage {:?}, {} tasks, {} clients, epoch {}: {equal:?}",
            self.stage,
            self.tasks.len(),
            self.clients.len(),
            self.reference.epoch()
        )
    }

    pub(super) fn calm(&mut self) -> Check {
        self.queue.push(self.now + 50 * MS, Event::Calm);
        if self.trouble {
            return Ok(());
        }
        hold!(
            self.now < self.healed_at + HEALING,
            "everything ends when faults end",
            "{} s after the last fault: {}",
            (self.now - self.healed_at) / SECOND,
            self.missing()
        );
        let healthy = self.clients.iter().position(|client| !client.failed);
        match self.stage {
            Stage::Ends => {
                if self.tasks.is_empty() {
                    self.abandon_all();
                    self.stage = Stage::Attached;
                }
            }
            Stage::Attached => match healthy {
                None if self.tasks.is_empty() => {
                    self.abandon_all();
                    self.bring_client();
                }
                None => {}
                Some(_) if self.tasks.is_empty() => self.stage = Stage::Used(12),
                Some(_) => {}
            },
            Stage::Used(left) => match healthy {
                None => self.stage = Stage::Attached,
                Some(_) if !self.tasks.is_empty() => {}
                Some(place) if left > 0 => {
                    let cells = self.reference.size() as usize / super::cells::CELL;
                    // All of it is read first and last.
                    match left {
                        12 | 1 => self.ask(place, 99, 0, cells),
                        2 => self.ask(place, 60, 0, 1),
                        _ => {
                            let first = self.rng.below(cells as u64) as usize;
                            let kind = self.rng.below(100);
                            self.ask(place, kind, first, 1);
                        }
                    }
                    self.stage = Stage::Used(left - 1);
                }
                Some(place) => {
                    match self.rng.one_in(2) {
                        true => self.detach(place),
                        false => self.abandon_all(),
                    }
                    self.stage = Stage::Equal;
                }
            },
            Stage::Equal => {
                if self.tasks.is_empty() && self.unequal().is_none() {
                    return self.well();
                }
            }
        }
        Ok(())
    }

    /// Everything has come back. All copies are checked.
    fn well(&mut self) -> Check {
        for machine in self.machines.iter().filter(|machine| machine.keeps_data()) {
            self.reference.check_copy(&machine.hello.name, self.reference.last(), &machine.disk.image())?;
        }
        let disks = self.machines.iter().map(|machine| &machine.log_disk);
        self.rescued = self.acknowledged.check(disks, &self.model.lost)?;
        self.tell(format_args!("all is well after {} ms", (self.now - self.healed_at) / MS));
        self.heals += 1;
        if self.round / 2 >= self.profile.rounds {
            self.done = true;
            return Ok(());
        }
        self.round += 1;
        self.trouble = true;
        let round = self.round;
        let chaos = self.rng.between(self.profile.chaos.0, self.profile.chaos.1);
        self.queue.push(self.now + chaos, Event::Heal { round });
        self.queue.push(self.now + MS, Event::Clients { round });
        self.queue.push(self.now + 500 * MS, Event::Fault { round });
        Ok(())
    }
}
