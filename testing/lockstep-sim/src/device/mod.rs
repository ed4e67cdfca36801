//! Whole copies of a replicated block device, under a simulated clock, network and disk.
//!
//! Each machine runs the real member with its real log, and the real copy of the device over them. Clients attach, write, read and
//! flush; an operator promotes copies. Every answer is checked against what a disk promises ([`model`]), and every device file
//! against the log ([`reference`]).
//!
//! As in the rest of the simulator, nothing depends on anything but the seed. The device's threads are steps of the world, and
//! its tasks are polled by it.

mod calm;
mod cells;
mod clients;
mod disk;
mod environment;
mod faults;
mod links;
mod machine;
mod model;
mod port;
mod profile;
mod reference;
mod rescued;
mod side;
mod transfers;
mod world;

use crate::{catch, timed};
use lockstep_block::device::Failpoint;
use lockstep_core::Micros;
use std::fmt;

/// How to run a seed.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSettings {
    /// The seed.
    pub seed: u64,
    /// A planted fault.
    pub planted: Option<Failpoint>,
    /// Print a line per event.
    pub trace: bool,
    /// From this simulated time on, µs.
    pub trace_from: Micros,
}

impl DeviceSettings {
    /// This seed, without a planted fault or a trace.
    pub fn seed(seed: u64) -> DeviceSettings {
        DeviceSettings { seed, planted: None, trace: false, trace_from: 0 }
    }
}

/// The counts of the events of one seed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceCounters {
    /// Entries of the log.
    pub entries: u64,
    /// Entries of writes that were taken.
    pub writes_taken: u64,
    /// Reads, writes and flushes that were answered.
    pub reads: u64,
    /// See `reads`.
    pub writes: u64,
    /// See `reads`.
    pub flushes: u64,
    /// Clients that attached.
    pub attached: u64,
    /// Promotions.
    pub promotions: u64,
    /// Epochs that have ended and were checked.
    pub ended: u64,
    /// Epochs that have lost a flush, under weak policies.
    pub lost: u64,
    /// Acknowledged entries that only rescue files have at the end.
    pub rescued: u64,
    /// Copies that the logs did not continue, or that an operator gave up.
    pub needs_state: u64,
    /// Copies from another member that reached their end.
    pub copies: u64,
    /// Faults.
    pub faults: u64,
    /// How often everything came back after faults.
    pub heals: u64,
}

impl DeviceCounters {
    /// Adds those of another seed.
    pub fn add(&mut self, other: &DeviceCounters) {
        let DeviceCounters {
            entries,
            writes_taken,
            reads,
            writes,
            flushes,
            attached,
            promotions,
            ended,
            lost,
            rescued,
            needs_state,
            copies,
            faults,
            heals,
        } = other;
        self.entries += entries;
        self.writes_taken += writes_taken;
        self.reads += reads;
        self.writes += writes;
        self.flushes += flushes;
        self.attached += attached;
        self.promotions += promotions;
        self.ended += ended;
        self.lost += lost;
        self.rescued += rescued;
        self.needs_state += needs_state;
        self.copies += copies;
        self.faults += faults;
        self.heals += heals;
    }
}

impl fmt::Display for DeviceCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "entries={} writes_taken={} reads={} writes={} flushes={} attached={} promotions={} epochs_ended={} lost={} rescued={} needs_state={} copies={} faults={} \
             heals={}",
            self.entries,
            self.writes_taken,
            self.reads,
            self.writes,
            self.flushes,
            self.attached,
            self.promotions,
            self.ended,
            self.lost,
            self.rescued,
            self.needs_state,
            self.copies,
            self.faults,
            self.heals
        )
    }
}

/// The result of a seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceReport {
    /// The seed.
    pub seed: u64,
    /// The hash of all that happened.
    pub hash: u64,
    /// Simulated time, µs.
    pub simulated: Micros,
    /// Counters.
    pub counters: DeviceCounters,
    /// How often each kind of fault happened.
    pub by_kind: Vec<(String, u64)>,
    /// The broken rule, if one was.
    pub violation: Option<String>,
}

/// Runs one seed to its end, or to the first broken rule.
pub fn simulate_device(settings: DeviceSettings) -> DeviceReport {
    let mut world = world::DeviceWorld::new(settings);
    let violation = catch(|| world.run()).map(|text| timed(world.now, text));
    if let Some(text) = &violation {
        world.tell(format_args!("VIOLATION {text}"));
    }
    let counters = DeviceCounters {
        entries: world.reference.entries,
        writes_taken: world.reference.writes,
        reads: world.model.reads,
        writes: world.model.writes,
        flushes: world.model.flushes,
        attached: world.attached,
        promotions: world.promotions,
        ended: world.model.ended,
        lost: world.model.lost.len() as u64,
        rescued: world.rescued,
        needs_state: world.needs_state,
        copies: world.copies,
        faults: world.faults,
        heals: world.heals,
    };
    let by_kind = faults::Kind::ALL.iter().zip(world.by_kind).map(|(kind, n)| (format!("{kind:?}"), n));
    DeviceReport {
        seed: settings.seed,
        hash: world.trace.hash(),
        simulated: world.now,
        counters,
        by_kind: by_kind.collect(),
        violation,
    }
}

/// A planted fault: its name on the command line, and the seeds that must find it.
#[derive(Clone, Copy, Debug)]
pub struct DevicePlant {
    /// `--mutate`.
    pub name: &'static str,
    /// The fault.
    pub fault: Failpoint,
    /// One of the seeds 1 to this finds it.
    pub seeds: u64,
}

const fn plant(name: &'static str, fault: Failpoint, seeds: u64) -> DevicePlant {
    DevicePlant { name, fault, seeds }
}

/// All planted faults.
pub const DEVICE_PLANTS: &[DevicePlant] = &[
    plant("position-before-data", Failpoint::PositionBeforeData, 10),
    plant("uncommitted-written", Failpoint::UncommittedWritten, 10),
    plant("session-kept", Failpoint::SessionKept, 60),
    plant("flush-leaves-dirty", Failpoint::FlushLeavesDirty, 10),
    plant("flush-before-log", Failpoint::FlushBeforeLog, 10),
    plant("hold-skipped", Failpoint::HoldSkipped, 500),
    plant("promoted-at-once", Failpoint::PromotedAtOnce, 400),
    plant("early-behind-promotion", Failpoint::EarlyBehindPromotion, 250),
    plant("failed-flush-forgotten", Failpoint::FailedFlushForgotten, 500),
    plant("writes-kept", Failpoint::WritesKept, 10),
    plant("whole-at-once", Failpoint::WholeAtOnce, 60),
];

/// Looks for a planted fault: the first seed that finds it, with its violation; `Err`: how many seeds did not. A seed that
/// violates a rule without the fault as well does not count.
pub fn hunt_device(plant: &DevicePlant) -> Result<(u64, String), u64> {
    for seed in 1..=plant.seeds {
        let clean = DeviceSettings::seed(seed);
        let planted = DeviceSettings { planted: Some(plant.fault), ..clean };
        if let Some(violation) = simulate_device(planted).violation
            && simulate_device(clean).violation.is_none()
        {
            return Ok((seed, violation));
        }
    }
    Err(plant.seeds)
}
