//! What kind of world a seed is.

use super::cells::{CELL, CELLS_MAX};
use super::faults::Kind;
use crate::network::Quality;
use crate::profile::{DiskSpeed, MS, SECOND};
use crate::rng::Rng;
use lockstep_core::Micros;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_node::Tuning;
use std::time::Duration;

/// Which protocols (A, B, C) a world uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Protocols {
    /// Only C.
    Strong,
    /// Only A and B.
    Weak,
    /// All of them, in turn.
    Switched,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(super) struct Profile {
    /// The third machine is an arbitrator.
    pub(super) arbitrates: bool,
    pub(super) protocols: Protocols,
    pub(super) tuning: Tuning,
    pub(super) heartbeat: Micros,
    pub(super) election_timeout: Micros,
    pub(super) max_append_bytes: usize,
    pub(super) quality: Quality,
    pub(super) log_disk: DiskSpeed,
    /// Clocks run this much fast or slow at most, ppm.
    pub(super) drift: u64,
    /// `block.cache`, bytes.
    pub(super) cache: u64,
    /// `block.timeout`.
    pub(super) timeout: Duration,
    /// The device's first size, bytes.
    pub(super) size: u64,
    /// The longest time between two steps of a device's threads and tasks.
    pub(super) device_step: Micros,
    /// One of this many steps makes a write-back go on.
    pub(super) write_back_steps: u64,
    /// Fewer deliveries than this are taken in a step.
    pub(super) deliveries: u64,
    /// Mean time between two requests of the clients.
    pub(super) request_every: Micros,
    /// The most cells of a request.
    pub(super) cells: usize,
    /// Clients write to so many cells only.
    pub(super) hot: usize,
    pub(super) weights: [u32; Kind::ALL.len()],
    pub(super) fault_every: Micros,
    pub(super) chaos: (Micros, Micros),
    pub(super) rounds: u64,
    pub(super) restart: (Micros, Micros),
}

impl Profile {
    pub(super) fn draw(rng: &mut Rng) -> Profile {
        let election_timeout = rng.between(150, 700) * MS;
        let heartbeat = election_timeout / 6;
        let protocols = *rng.pick(&[
            Protocols::Strong,
            Protocols::Strong,
            Protocols::Strong,
            Protocols::Weak,
            Protocols::Switched,
        ]);
        let mut weights: [u32; Kind::ALL.len()] =
            std::array::from_fn(|_| if rng.one_in(3) { 0 } else { rng.between(1, 10) as u32 });
        weights[Kind::Crash as usize] += 1;
        weights[Kind::CrashPrimary as usize] += 1;
        weights[Kind::CrashAll as usize] = weights[Kind::CrashAll as usize].min(3);
        if protocols == Protocols::Strong {
            weights[Kind::Policy as usize] = weights[Kind::Policy as usize].min(1);
        }
        let policy = policy(rng, protocols);
        let tuning = Tuning {
            heartbeat: Duration::from_micros(heartbeat),
            election_timeout: Duration::from_micros(election_timeout),
            follow_writer: rng.one_in(2),
            disk_timeout: Duration::ZERO,
            segment_bytes: *rng.pick(&[4 << 10, 16 << 10, 64 << 10]),
            log_bytes: *rng.pick(&[16 << 10, 64 << 10, 1 << 30]),
            log_max_bytes: 1 << 30,
            log_keep: Duration::ZERO,
            policy,
            ..Tuning::default()
        };
        let delay = *rng.pick(&[60, 200, 1000, 8000]);
        Profile {
            arbitrates: rng.one_in(2),
            protocols,
            tuning,
            heartbeat,
            election_timeout,
            max_append_bytes: *rng.pick(&[400, 4 << 10, 1 << 20]),
            quality: Quality {
                delay,
                jitter: rng.between(20, 2 * delay),
                loss: *rng.pick(&[0, 0, 0, 2_000, 20_000]),
                ..Quality::LAN
            },
            log_disk: *rng.pick(&[
                DiskSpeed { sync: 50, jitter: 100 },
                DiskSpeed { sync: 500, jitter: 1500 },
                DiskSpeed { sync: 100, jitter: 20_000 },
            ]),
            drift: *rng.pick(&[0, 100, 20_000]),
            cache: *rng.pick(&[4 << 10, 16 << 10, 64 << 10, 1 << 20]),
            timeout: *rng.pick(&[
                Duration::ZERO,
                Duration::ZERO,
                Duration::from_secs(2),
                Duration::from_secs(8),
            ]),
            size: (*rng.pick(&[8, 32, 64, CELLS_MAX]) * CELL) as u64,
            device_step: *rng.pick(&[1, 5, 10]) * MS,
            write_back_steps: *rng.pick(&[1, 3, 30]),
            deliveries: *rng.pick(&[2, 5, 50]),
            request_every: *rng.pick(&[3, 10, 30]) * MS,
            cells: *rng.pick(&[1, 4, 24]),
            hot: *rng.pick(&[2, 8, CELLS_MAX]),
            weights,
            fault_every: rng.between(400, 5_000) * MS,
            chaos: (8 * SECOND, *rng.pick(&[15, 30, 60]) * SECOND),
            rounds: rng.between(1, 3),
            restart: (rng.between(1, 50) * MS, rng.between(100, 6_000) * MS),
        }
    }
}

/// A policy of these protocols that two members can meet.
pub(super) fn policy(rng: &mut Rng, protocols: Protocols) -> Policy {
    let strong = match protocols {
        Protocols::Strong => true,
        Protocols::Weak => false,
        Protocols::Switched => rng.one_in(2),
    };
    let kind = match (strong, rng.below(3)) {
        (true, 0) => PolicyKind::All,
        (true, _) => PolicyKind::Quorum,
        (false, 0) => PolicyKind::Async,
        (false, _) => PolicyKind::Semisync,
    };
    Policy {
        kind,
        acks: 1,
        on_receive: kind == PolicyKind::Semisync && rng.one_in(2),
        timeout: if kind == PolicyKind::Semisync { *rng.pick(&[0, 500 * MS]) } else { 0 },
        max_at_risk: *rng.pick(&[5, 100, 10_000]),
        ..Policy::default()
    }
}
