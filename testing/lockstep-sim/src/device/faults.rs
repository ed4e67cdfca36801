//! Faults, and their ends.

use super::disk::DiskFault;
use super::profile::{Protocols, policy};
use super::world::{DeviceWorld, Event};
use crate::network::Quality;
use crate::profile::{MS, SECOND};
use lockstep_core::Micros;
use lockstep_core::policy::Policy;
use lockstep_node::Command;

/// The kind of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A process is killed, or its machine loses power.
    Crash,
    /// The same on the member that has the client.
    CrashPrimary,
    /// The same on all.
    CrashAll,
    /// A process stops for a while.
    Pause,
    /// The machine of the member that has the client stops for a while, and its clock without suspensions does, too.
    Suspend,
    /// One member is cut off.
    Isolate,
    /// The member that has the client is cut off.
    IsolatePrimary,
    /// Some links pass nothing in one direction.
    OneWay,
    /// Links are slow and lose much.
    Degrade,
    /// An operation of the device's disk fails.
    DiskError,
    /// The power fails in the middle of a write-back.
    PowerCut,
    /// The device's disk is full for a while.
    DiskFull,
    /// Another commit policy.
    Policy,
    /// Leadership moves.
    Transfer,
    /// A member stops in good order, and returns.
    Leave,
}

impl Kind {
    /// All kinds.
    pub(super) const ALL: [Kind; 15] = [
        Kind::Crash,
        Kind::CrashPrimary,
        Kind::CrashAll,
        Kind::Pause,
        Kind::Suspend,
        Kind::Isolate,
        Kind::IsolatePrimary,
        Kind::OneWay,
        Kind::Degrade,
        Kind::DiskError,
        Kind::PowerCut,
        Kind::DiskFull,
        Kind::Policy,
        Kind::Transfer,
        Kind::Leave,
    ];
}

/// The end of a fault.
#[derive(Clone, Debug)]
pub(super) enum End {
    Links(Vec<(usize, usize)>),
    Quality,
    Room(usize),
}

impl DeviceWorld {
    fn until(&mut self, low: Micros, high: Micros, end: End) {
        let at = self.now + self.rng.between(low, high);
        self.queue.push(at, Event::End { round: self.round, end });
    }

    pub(super) fn running(&self) -> Vec<usize> {
        (0..self.machines.len()).filter(|at| self.machines[*at].process.is_some()).collect()
    }

    /// The member that the client of the last epoch is attached to; else any.
    fn primary(&mut self) -> Option<usize> {
        let last = self.clients.iter().max_by_key(|client| client.epoch).map(|client| client.at);
        last.filter(|at| self.machines[*at].process.is_some()).or_else(|| self.any_running())
    }

    pub(super) fn any_running(&mut self) -> Option<usize> {
        let running = self.running();
        if running.is_empty() { None } else { Some(*self.rng.pick(&running)) }
    }

    fn any_copy(&mut self) -> Option<usize> {
        let copies: Vec<usize> =
            self.running().into_iter().filter(|at| self.machines[*at].keeps_data()).collect();
        if copies.is_empty() { None } else { Some(*self.rng.pick(&copies)) }
    }

    fn crash(&mut self, at: usize) {
        let power = self.rng.one_in(2);
        self.stop(at, power);
        let (low, high) = self.profile.restart;
        self.start_later(at, low, high);
    }

    fn pause(&mut self, at: usize, suspended: bool) {
        let longest = if self.rng.one_in(2) { SECOND } else { 8 * SECOND };
        let time = self.rng.between(20 * MS, longest);
        let until = self.now + time;
        let machine = &mut self.machines[at];
        if machine.paused_until > self.now {
            return;
        }
        machine.paused_until = until;
        if suspended {
            machine.clock.suspended += time;
        }
        if let Some(process) = &mut machine.process {
            process.woken = false;
        }
        self.say(at, format_args!("stands still for {} ms, suspended: {suspended}", time / MS));
        self.wake(at, 0);
    }

    fn isolate(&mut self, at: usize) {
        let others: Vec<usize> = (0..self.machines.len()).filter(|other| *other != at).collect();
        self.cut_all(others.into_iter().flat_map(|other| [(at, other), (other, at)]).collect());
    }

    fn cut_all(&mut self, links: Vec<(usize, usize)>) {
        self.tell(format_args!("cut: {links:?}"));
        links.iter().for_each(|(from, to)| self.cut(*from, *to));
        self.until(20 * MS, 9 * SECOND, End::Links(links));
    }

    pub(super) fn fault(&mut self) {
        let again = self.rng.between(1, 2 * self.profile.fault_every);
        self.queue.push(self.now + again, Event::Fault { round: self.round });
        let Some(kind) = self.rng.weighted(&self.profile.weights) else { return };
        self.faults += 1;
        self.by_kind[kind] += 1;
        let kind = Kind::ALL[kind];
        self.trace.mix(kind as u64);
        self.tell(format_args!("fault: {kind:?}"));
        self.strike(kind);
    }

    fn strike(&mut self, kind: Kind) {
        let primary = self.primary();
        let at = match kind {
            Kind::CrashPrimary | Kind::Suspend | Kind::IsolatePrimary => primary,
            Kind::DiskError | Kind::PowerCut | Kind::DiskFull => self.any_copy(),
            Kind::Pause if self.rng.one_in(2) => primary,
            _ => self.any_running(),
        };
        let Some(at) = at else { return };
        match kind {
            Kind::Crash | Kind::CrashPrimary => self.crash(at),
            Kind::CrashAll => self.running().into_iter().for_each(|at| self.crash(at)),
            Kind::Pause => self.pause(at, false),
            Kind::Suspend => self.pause(at, true),
            Kind::Isolate => self.isolate(at),
            Kind::IsolatePrimary => {
                self.isolate(at);
                // Now and then the operator is quick.
                let other = self.any_copy().filter(|other| *other != at && self.rng.one_in(2));
                if let Some(other) = other {
                    self.promote(other, true);
                }
            }
            Kind::OneWay => {
                let peer = self.rng.below(self.machines.len() as u64) as usize;
                if peer != at {
                    self.cut_all(vec![(at, peer)]);
                }
            }
            Kind::Degrade => {
                let quality = Quality {
                    delay: self.rng.between(100, 100_000),
                    jitter: self.rng.between(100, 200_000),
                    loss: *self.rng.pick(&[0, 10_000, 100_000]),
                    ..Quality::LAN
                };
                for from in 0..self.machines.len() {
                    (0..self.machines.len()).for_each(|to| self.net.set_quality(from, to, quality));
                }
                self.until(50 * MS, 6 * SECOND, End::Quality);
            }
            Kind::DiskError | Kind::PowerCut => {
                let after = self.rng.below(8);
                let fault = if kind == Kind::PowerCut { DiskFault::PowerCut } else { DiskFault::Io };
                self.machines[at].disk_fails = true;
                self.machines[at].disk.plan(after, fault);
            }
            Kind::DiskFull => {
                self.machines[at].disk_fails = true;
                self.machines[at].disk.set_full(true);
                self.say(at, format_args!("has a full disk"));
                self.until(50 * MS, 9 * SECOND, End::Room(at));
            }
            Kind::Policy => {
                let policy = policy(&mut self.rng, self.profile.protocols);
                self.request_policy(at, policy);
            }
            Kind::Transfer => {
                let to =
                    self.machines[self.rng.below(self.machines.len() as u64) as usize].hello.name.clone();
                self.move_leadership(at, to);
            }
            Kind::Leave => {
                self.say(at, format_args!("is stopped in good order"));
                self.lose_clients(at, self.machines[at].life());
                if let Some(process) = &mut self.machines[at].process {
                    if let Some(device) = &process.device {
                        device.replica.drain(std::time::Duration::ZERO);
                    }
                    process.node.leave();
                }
                self.wake(at, 0);
            }
        }
    }

    /// A command at this member.
    pub(super) fn move_leadership(&mut self, at: usize, to: String) {
        self.say(at, format_args!("is asked to move leadership to {to}"));
        let number = self.number();
        if let Some(process) = &mut self.machines[at].process {
            let fresh = lockstep_core::Uuid([0x80 | at as u8; 16]);
            process.node.command(number, Command::Switchover { to }, fresh);
        }
        self.wake(at, 0);
    }

    pub(super) fn request_policy(&mut self, at: usize, policy: Policy) {
        self.say(at, format_args!("requests {policy:?}"));
        self.weak |= policy.is_weak();
        if let Some(process) = &mut self.machines[at].process {
            process.node.request_policy(policy);
        }
        self.wake(at, 0);
    }

    /// Whether a flush that begins and ends now is durable on a majority.
    pub(super) fn is_strong(&self) -> bool {
        if self.profile.protocols == Protocols::Strong {
            return true;
        }
        self.machines.iter().all(|machine| {
            let state = machine.process.as_ref().map(|process| process.node.raft());
            state.is_some_and(|raft| !raft.committed_state().policy.is_weak() && !raft.policy().is_weak())
        })
    }

    /// The end of a fault.
    pub(super) fn end(&mut self, end: End) {
        self.tell(format_args!("over: {end:?}"));
        match end {
            End::Links(links) => links.iter().for_each(|(from, to)| self.net.mend(*from, *to)),
            End::Quality => {
                let quality = self.profile.quality;
                for from in 0..self.machines.len() {
                    (0..self.machines.len()).for_each(|to| self.net.set_quality(from, to, quality));
                }
            }
            End::Room(at) => {
                self.machines[at].disk.set_full(false);
                self.machines[at].disk_fails = self.machines[at].disk.is_faulty();
            }
        }
    }
}
