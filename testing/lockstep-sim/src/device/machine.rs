//! A simulated machine, and the process of its member.

use super::disk::SimDisk;
use super::environment::SimEnvironment;
use super::port::Port;
use super::transfers::Donation;
use bytes::Bytes;
use lockstep_block::device::{Batch, Refused, Replica};
use lockstep_core::{MemberId, Micros, Seqno};
use lockstep_log::MemDisk;
use lockstep_node::simulation::{Answered, SimulatedNode};
use lockstep_node::{Delivery, Hello};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The clocks of a machine. They run a little fast or slow.
#[derive(Clone, Copy, Debug)]
pub(super) struct MachineClock {
    pub(super) shown: Micros,
    /// How many ppm it runs fast, plus a million.
    pub(super) rate: u64,
    /// For how long the machine was suspended.
    pub(super) suspended: Micros,
    pub(super) wall: Micros,
}

impl MachineClock {
    /// The time since boot, with suspensions.
    pub(super) fn boot(&self, now: Micros) -> Micros {
        self.shown + now * self.rate / 1_000_000
    }

    /// The time since boot without suspensions.
    pub(super) fn local(&self, now: Micros) -> Micros {
        self.boot(now) - self.suspended
    }

    /// When [`MachineClock::local`] will show this; never before.
    pub(super) fn global(&self, local: Micros) -> Micros {
        let boot = local.saturating_add(self.suspended);
        boot.saturating_sub(self.shown).saturating_mul(1_000_000).div_ceil(self.rate)
    }

    /// µs since 1970, as far as this machine knows.
    pub(super) fn wall(&self, now: Micros) -> Micros {
        1_700_000_000_000_000 + now + self.wall
    }
}

/// An input of a process's next round.
pub(super) enum Input {
    Frame { from: MemberId, kind: u8, payload: Bytes },
    Log(Answered),
}

/// The device in a process.
pub(super) struct Device {
    pub(super) replica: Replica<Port>,
    pub(super) port: Port,
    pub(super) environment: Arc<SimEnvironment>,
    /// The member's deliveries that the device has not taken.
    pub(super) deliveries: VecDeque<Delivery>,
    pub(super) refused: Refused,
    /// A write-back that has begun, and whether the disk has it.
    pub(super) batch: Option<(Batch, bool)>,
    /// This process began without a whole copy, or gives it up.
    pub(super) needs_state: bool,
    /// When this joiner last asked for the device.
    pub(super) asked_at: Micros,
    /// Joiners that wait for this donor's file.
    pub(super) donations: Vec<Donation>,
}

impl Device {
    pub(super) fn set_times(&self, clock: &MachineClock, now: Micros) {
        self.environment.set(clock.local(now), clock.wall(now));
        self.port.set_boot(Duration::from_micros(clock.boot(now)));
    }
}

/// A running process.
pub(super) struct Process {
    /// Counts the processes of a machine.
    pub(super) life: u64,
    pub(super) node: SimulatedNode<MemDisk>,
    pub(super) inbox: VecDeque<Input>,
    /// A round is due.
    pub(super) woken: bool,
    /// When the timer that counts rings.
    pub(super) timer_at: Micros,
    /// The log's thread is busy.
    pub(super) busy: bool,
    /// When the log was last told the commit index.
    pub(super) hinted_at: Micros,
    /// `None`: an arbitrator, or taken out for a step.
    pub(super) device: Option<Device>,
}

/// A machine.
pub(super) struct Machine {
    pub(super) id: MemberId,
    pub(super) hello: Hello,
    pub(super) log_disk: MemDisk,
    pub(super) disk: SimDisk,
    /// An operation of the device's disk may fail: its error is then no surprise.
    pub(super) disk_fails: bool,
    pub(super) clock: MachineClock,
    pub(super) lives: u64,
    /// A start is on its way.
    pub(super) starting: bool,
    pub(super) paused_until: Micros,
    /// A position that the device file has at least.
    pub(super) saved: Seqno,
    /// The device file is a whole copy: as the world knows, not as the copy says.
    pub(super) is_whole: bool,
    /// The last position whose entries may be in the device file, in part.
    pub(super) attempted: Seqno,
    pub(super) process: Option<Process>,
}

impl Machine {
    pub(super) fn keeps_data(&self) -> bool {
        !self.hello.arbitrator
    }

    /// Whether it runs and is not stopped.
    pub(super) fn is_awake(&self, now: Micros) -> bool {
        self.process.is_some() && self.paused_until <= now
    }

    /// The present process; 0 if there is none.
    pub(super) fn life(&self) -> u64 {
        self.process.as_ref().map_or(0, |process| process.life)
    }
}
