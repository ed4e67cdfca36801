//! Faults, and their ends.

use super::{Event, World};
use crate::history::Check;
use crate::network::Quality;
use crate::profile::{DiskSpeed, MS, SECOND};
use lockstep_core::Micros;
use lockstep_core::Uuid;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_log::Fault as DiskFault;
use lockstep_node::{ApplyHold, Command};

/// The end of a fault.
#[derive(Clone, Debug)]
pub(super) enum End {
    Links(Vec<(usize, usize)>),
    Quality(Vec<(usize, usize)>),
    Disk(usize),
    Room(usize),
    Database(usize),
    Paused(usize),
    Clock(usize),
}

impl World {
    fn until(&mut self, low: Micros, high: Micros, end: End) {
        let at = self.now + self.rng.between(low, high);
        self.queue.push(at, Event::End { round: self.round, end });
    }

    fn up(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|at| self.nodes[*at].process.is_some()).collect()
    }

    fn crash(&mut self, at: usize, longest: Micros) {
        let power = self.rng.one_in(2);
        self.stop(at, power);
        self.start_later(at, 10 * MS, longest);
    }

    pub(super) fn fault(&mut self) -> Check {
        let again = self.rng.between(1, 2 * self.profile.fault_every);
        self.queue.push(self.now + again, Event::Fault { round: self.round });
        self.counters.faults += 1;
        let up = self.up();
        if up.is_empty() {
            return Ok(());
        }
        let leader = up.iter().copied().find(|at| self.nodes[*at].process.as_ref().is_some_and(|p| p.leads));
        let any = *self.rng.pick(&up);
        let at = leader.filter(|_| self.rng.one_in(3)).unwrap_or(any);
        match self.rng.weighted(&[12, 2, 14, 6, 4, 10, 8, 4, 6, 2, 6, 14, 6, 6, 4]) {
            Some(0) => self.crash(at, 3 * SECOND),
            Some(1) => up.into_iter().for_each(|at| self.crash(at, 2 * SECOND)),
            Some(kind @ 2..=4) => self.cut_links(at, kind),
            Some(5) => {
                let until = self.now + self.rng.between(20 * MS, 3 * SECOND);
                self.nodes[at].paused_until = until;
                self.say(at, format_args!("stands still for {} ms", (until - self.now) / MS));
                // What was to happen before happens then.
                if let Some(process) = &mut self.nodes[at].process {
                    process.woken = false;
                }
                self.wake(at, 0);
            }
            Some(6) => {
                let sync = self.rng.between(10 * MS, 1_500 * MS);
                self.nodes[at].speed = DiskSpeed { sync, jitter: sync };
                self.say(at, format_args!("has a slow disk: {} ms", sync / MS));
                self.until(50 * MS, 6 * SECOND, End::Disk(at));
            }
            Some(7) => {
                let (kind, n) = (self.rng.below(3), self.rng.between(1, 12));
                let node = &mut self.nodes[at];
                node.disk_fails = true;
                match kind {
                    0 => node.disk.fail_sync(n),
                    1 => node.disk.fail_op(n, DiskFault::Io),
                    _ => node.disk.fail_op(n, DiskFault::NoSpace),
                }
            }
            Some(8) => {
                self.nodes[at].database_hangs = true;
                self.until(5 * MS, 1_500 * MS, End::Database(at));
            }
            Some(9) => {
                let room = self.rng.below(64 << 10);
                let node = &mut self.nodes[at];
                node.disk_fails = true;
                node.disk.set_capacity(Some(node.disk.used() + room));
                self.until(50 * MS, 9 * SECOND, End::Room(at));
            }
            Some(10) => self.degrade(),
            Some(11) => self.change_policy(at),
            Some(12) => {
                self.pause_apply(at, true);
                self.until(50 * MS, 4 * SECOND, End::Paused(at));
            }
            Some(13) => {
                let to = format!("n{}", self.rng.below(self.nodes.len() as u64) + 1);
                self.say(at, format_args!("is asked to hand the lead to {to}"));
                self.marks += 1;
                if let Some(process) = &mut self.nodes[at].process {
                    process.node.command(self.marks, Command::Switchover { to }, Uuid([0x80 | at as u8; 16]));
                }
                self.wake(at, 0);
            }
            _ => self.step_clock(at),
        }
        Ok(())
    }

    fn cut_links(&mut self, one: usize, kind: usize) {
        let members = self.nodes.len();
        let other = (one + 1 + self.rng.below(members as u64 - 1) as usize) % members;
        let one_way = self.rng.one_in(3);
        let sides: Vec<u64> = (0..members).map(|_| self.rng.below(2)).collect();
        let mut links = Vec::new();
        for from in 0..members {
            for to in (0..members).filter(|to| *to != from) {
                let cut = match kind {
                    2 => (from, to) == (one, other) || (to, from) == (one, other) && !one_way,
                    3 => from == one || to == one && !one_way,
                    _ => sides[from] < sides[to] || sides[from] > sides[to] && !one_way,
                };
                if cut {
                    links.push((from, to));
                }
            }
        }
        self.tell(format_args!("cut: {links:?}"));
        links.iter().for_each(|(from, to)| self.cut(*from, *to));
        self.until(20 * MS, 6 * SECOND, End::Links(links));
    }

    fn degrade(&mut self) {
        let (all, members) = (self.rng.one_in(4), self.nodes.len());
        let one = self.rng.below(members as u64) as usize;
        let quality = Quality {
            delay: self.rng.between(100, 200_000),
            jitter: self.rng.between(100, 300_000),
            loss: *self.rng.pick(&[0, 10_000, 100_000]),
            bytes_per_ms: self.rng.between(50, 20_000),
            ..Quality::LAN
        };
        let mut links = Vec::new();
        for from in 0..members {
            for to in 0..members {
                if all || from == one || to == one {
                    self.net.set_quality(from, to, quality);
                    links.push((from, to));
                }
            }
        }
        self.until(50 * MS, 6 * SECOND, End::Quality(links));
    }

    fn step_clock(&mut self, at: usize) {
        let (ahead, speed) = (self.rng.between(MS, 5 * SECOND), self.rng.between(950_000, 1_050_000));
        let wall = self.rng.below(7_200 * SECOND) as i64 - 3_600 * SECOND as i64;
        let (kind, now) = (self.rng.below(3), self.now);
        let clock = &mut self.nodes[at].clock;
        match kind {
            0 => clock.wall = wall,
            1 => clock.set(now, ahead, clock.rate),
            _ => clock.set(now, 0, speed),
        }
        self.say(at, format_args!("has its clock changed: {clock:?}", clock = self.nodes[at].clock));
        self.until(50 * MS, 9 * SECOND, End::Clock(at));
        self.wake(at, 0);
    }

    fn pause_apply(&mut self, at: usize, paused: bool) {
        let node = &mut self.nodes[at];
        node.tuning.apply_hold = ApplyHold { paused, ..ApplyHold::default() };
        let tuning = node.tuning.clone();
        if let Some(process) = &mut node.process {
            process.node.set_tuning(tuning);
        }
        self.wake(at, 0);
    }

    /// Requests a policy that can be met while all members are present.
    fn change_policy(&mut self, at: usize) {
        let others = self.nodes.len() as u64 - 1;
        let kinds = [
            PolicyKind::Async,
            PolicyKind::Semisync,
            PolicyKind::Semisync,
            PolicyKind::Quorum,
            PolicyKind::Quorum,
            PolicyKind::All,
        ];
        let policy = Policy {
            kind: *self.rng.pick(&kinds),
            acks: self.rng.between(0, others) as u8,
            zone_acks: self.rng.below(self.zones.min(others as usize + 1) as u64) as u8,
            on_receive: self.rng.one_in(4),
            timeout: *self.rng.pick(&[0, 0, 200_000, 1_000_000]),
            max_at_risk: *self.rng.pick(&[50, 10_000]),
        };
        self.say(at, format_args!("requests {policy:?}"));
        if let Some(process) = &mut self.nodes[at].process {
            process.node.request_policy(policy);
        }
        self.wake(at, 0);
    }

    /// The end of a fault.
    pub(super) fn end(&mut self, end: End) {
        self.tell(format_args!("over: {end:?}"));
        match end {
            End::Links(links) => links.iter().for_each(|(from, to)| self.net.mend(*from, *to)),
            End::Quality(links) => {
                let quality = self.profile.quality;
                links.iter().for_each(|(from, to)| self.net.set_quality(*from, *to, quality));
            }
            End::Disk(at) => self.nodes[at].speed = self.profile.disk,
            End::Room(at) => self.nodes[at].disk.set_capacity(None),
            End::Database(at) => self.nodes[at].database_hangs = false,
            End::Paused(at) => self.pause_apply(at, false),
            End::Clock(at) => self.nodes[at].clock.set(self.now, 0, 1_000_000),
        }
    }
}
