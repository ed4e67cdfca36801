//! What kind of world a seed is: sizes, speeds and which faults it knows.
//!
//! Every seed takes only some of the faults, and each with a weight of its own (swarm testing): worlds in which
//! everything happens at once hide what happens where only two things meet.

use crate::network::Quality;
use crate::rng::Rng;
use lockstep_core::Micros;

/// One second of simulated time.
pub(crate) const SECOND: Micros = 1_000_000;
/// One millisecond.
pub(crate) const MS: Micros = 1_000;

/// Faults and deliberate operations under load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// One process dies and loses what was not fsynced.
    Crash,
    /// The leader's process dies.
    CrashLeader,
    /// All processes die at once.
    CrashAll,
    /// A few leaders die one after the other, each soon after it was elected.
    CrashInTurn,
    /// For a while every new leader dies, or is cut off, within a few round trips of its election: entries of many
    /// terms lie about, each on some of the members.
    CrashElected,
    /// One process stops for a while and does not know it.
    Pause,
    /// Members fall apart in two groups.
    Split,
    /// One direction of one link, or all ways in or out of one member, is cut.
    OneWay,
    /// The leader alone is cut off.
    Isolate,
    /// The ends of a chain no longer see each other, the middle sees all.
    Bridge,
    /// Some links become slow, lossy, doubling or disorderly.
    Degrade,
    /// The disk of one member becomes slow.
    SlowDisk,
    /// A write or fsync of one member fails: it stops.
    FailingDisk,
    /// There is no room for more on a member's disk: it stops, and cannot start before there is.
    FullDisk,
    /// The power fails, and the disk returns damaged: flipped bits, lost or misplaced writes.
    Damage,
    /// A wall clock is set, a monotonic one jumps ahead or runs at another speed.
    ClockStep,
    /// The operator changes who is in the group.
    Membership,
    /// The operator asks for several changes in a row without waiting.
    MembershipBurst,
    /// The leader is asked to hand over.
    Transfer,
    /// A connection is reported lost or made although nothing happened.
    PeerNotice,
    /// The leader lets the log's beginning go.
    Trim,
    /// A server lost its database, not its log.
    LoseDatabase,
    /// A machine is lost with its disk and replaced by a new one under a new id.
    Replace,
    /// A member no longer reaches the others of its zone, or some of them, and reaches those of the other zone. Where
    /// leaders send one copy to each zone.
    CutInZone,
    /// A member's disk is put back to an earlier copy.
    Rewind,
    /// The power fails for several members, often a majority of the voters, and their disks return damaged near the ends of
    /// their logs. A voter whose log has all that they had is whole.
    DamageSeveral,
}

/// All faults.
pub const FAULTS: [Fault; 26] = [
    Fault::Crash,
    Fault::CrashLeader,
    Fault::CrashAll,
    Fault::CrashInTurn,
    Fault::CrashElected,
    Fault::Pause,
    Fault::Split,
    Fault::OneWay,
    Fault::Isolate,
    Fault::Bridge,
    Fault::Degrade,
    Fault::SlowDisk,
    Fault::FailingDisk,
    Fault::FullDisk,
    Fault::Damage,
    Fault::ClockStep,
    Fault::Membership,
    Fault::MembershipBurst,
    Fault::Transfer,
    Fault::PeerNotice,
    Fault::Trim,
    Fault::LoseDatabase,
    Fault::Replace,
    Fault::CutInZone,
    Fault::Rewind,
    Fault::DamageSeveral,
];

/// Which kind of world a seed draws.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum World {
    /// Any.
    #[default]
    Any,
    /// Five voters whose leaders never last, and messages that carry little: logs that differ in many terms are the
    /// rule. It finds errors that need a series of unlucky elections.
    ShortTerms,
    /// Commit policies change all the time, most members do not vote, and leaders are lost: what weak policies lose is
    /// lost here.
    Policies,
    /// Nearly all clients are at one member, and leadership follows them.
    Writers,
    /// Zones with relays. Lines within a zone lose many messages, those between zones are long, and leaders are lost often:
    /// what a relay passes on arrives under the next leader. No seed's number leads here.
    LateRelays,
    /// Few voters with slow disks, and members that leave and return all the time, under changing commit policies: the
    /// acks of a member that returns come before its membership is committed. No seed's number leads here.
    Newcomers,
}

impl World {
    /// The world of a seed of which nothing else is said. Not by a power of two: what else a seed's number decides
    /// ([`crate::Settings::relays`]) is to be met in all of them.
    pub fn of(seed: u64) -> World {
        match seed % 5 {
            3 => World::Writers,
            4 => World::Policies,
            _ => World::Any,
        }
    }
}

/// How long a disk takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DiskSpeed {
    /// The least time of an fsync, µs.
    pub(crate) sync: Micros,
    /// Up to this much more, µs.
    pub(crate) jitter: Micros,
}

/// The world of one seed.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    /// How many voters the operator wants at first: 1 to 5.
    pub(crate) voters: usize,
    /// How many learners beside them.
    pub(crate) learners: usize,
    /// Simulated time, µs.
    pub(crate) length: Micros,
    /// How long faults go on until the next time all must heal, least and most, µs.
    pub(crate) chaos: (Micros, Micros),
    /// Mean time between two faults, µs; never more than 10 s.
    pub(crate) fault_every: Micros,
    /// The weight of each of [`FAULTS`].
    pub(crate) weights: [u32; FAULTS.len()],
    /// Interval of heartbeats, µs.
    pub(crate) heartbeat: Micros,
    /// Silence after which an election begins, µs.
    pub(crate) election_timeout: Micros,
    /// Bytes of a log segment.
    pub(crate) segment_bytes: u64,
    /// Bytes of entries in one append message.
    pub(crate) max_append_bytes: usize,
    /// Bytes of entries on their way to one peer.
    pub(crate) max_inflight_bytes: usize,
    /// Bytes of entries kept in memory.
    pub(crate) cache_bytes: usize,
    /// Links at their best.
    pub(crate) quality: Quality,
    /// Those between zones, if they are others.
    pub(crate) between_zones: Option<Quality>,
    /// Disks at their best.
    pub(crate) disk: DiskSpeed,
    /// Atomic unit of a disk write, bytes.
    pub(crate) sector_bytes: usize,
    /// One start in this many fails on the way, and is tried again; 0: none.
    pub(crate) start_fails: u64,
    /// The longest delay before a process handles its inputs, µs; 0: each input is a round of its own.
    pub(crate) batching: Micros,
    /// Mean time between two proposals of the whole cluster, µs; never more than 100 ms.
    pub(crate) propose_every: Micros,
    /// One proposal in this many begins a burst.
    pub(crate) burst_one_in: u64,
    /// Rows that clients write: few make conflicts.
    pub(crate) rows: u64,
    /// How many write-sets a server applies at a time.
    pub(crate) appliers: usize,
    /// How long a server thinks before some of them are done, at most, µs.
    pub(crate) apply: Micros,
    /// A crashed process comes back after this, least and most, µs.
    pub(crate) restart: (Micros, Micros),
    /// Clocks of members run this much fast or slow at most, ppm.
    pub(crate) drift: u64,
    /// Whether commit policies change all the time.
    pub(crate) policies: bool,
}

impl Profile {
    /// The world that a seed draws.
    pub(crate) fn draw(rng: &mut Rng, world: World) -> Profile {
        let any = Profile::any(rng);
        match world {
            // A writer that is to be followed must stay for some windows, and so must the leader.
            World::Writers => Profile {
                propose_every: any.propose_every.min(45 * MS),
                fault_every: any.fault_every.max(4 * SECOND),
                ..any
            },
            World::Any if !rng.one_in(20) => any,
            World::Policies => {
                let mut weights = any.weights;
                let more = [
                    Fault::Trim,
                    Fault::Isolate,
                    Fault::Split,
                    Fault::CrashLeader,
                    Fault::Pause,
                    Fault::OneWay,
                ];
                more.into_iter().for_each(|fault| weights[fault as usize] += 6);
                Profile {
                    voters: *rng.pick(&[2, 3, 3, 5]),
                    learners: *rng.pick(&[0, 1, 2]),
                    length: any.length.min(240 * SECOND),
                    fault_every: rng.between(300, 2_000) * MS,
                    weights,
                    policies: true,
                    ..any
                }
            }
            World::LateRelays => {
                let mut weights = [0; FAULTS.len()];
                weights[Fault::CrashLeader as usize] = 6;
                weights[Fault::Isolate as usize] = 2;
                weights[Fault::Crash as usize] = 1;
                Profile {
                    voters: 5,
                    learners: 0,
                    length: 240 * SECOND,
                    chaos: (40 * SECOND, 120 * SECOND),
                    fault_every: 800 * MS,
                    weights,
                    election_timeout: 250 * MS,
                    heartbeat: 40 * MS,
                    // Entries come one by one, and many are under way.
                    max_append_bytes: 200,
                    max_inflight_bytes: 64 << 10,
                    propose_every: 25 * MS,
                    burst_one_in: 10,
                    // A lost frame delays those behind it for longer than an election takes.
                    quality: Quality {
                        delay: rng.between(1, 5) * MS,
                        jitter: rng.between(1, 15) * MS,
                        loss: *rng.pick(&[100_000, 200_000, 300_000]),
                        ..Quality::LAN
                    },
                    disk: DiskSpeed { sync: 200, jitter: 2 * MS },
                    restart: (MS, 300 * MS),
                    ..any
                }
            }
            World::Newcomers => {
                let mut weights = [0; FAULTS.len()];
                weights[Fault::Membership as usize] = 16;
                weights[Fault::SlowDisk as usize] = 20;
                weights[Fault::Replace as usize] = 2;
                weights[Fault::CrashLeader as usize] = 1;
                Profile {
                    voters: 2,
                    learners: rng.between(1, 3) as usize,
                    length: 480 * SECOND,
                    chaos: (40 * SECOND, 120 * SECOND),
                    fault_every: rng.between(200, 600) * MS,
                    weights,
                    policies: true,
                    ..any
                }
            }
            World::Any | World::ShortTerms => {
                let mut weights = [0; FAULTS.len()];
                weights[Fault::CrashElected as usize] = 4;
                weights[Fault::Crash as usize] = 1;
                weights[Fault::Split as usize] = 1;
                Profile {
                    voters: 5,
                    learners: 0,
                    length: 120 * SECOND,
                    fault_every: 500 * MS,
                    weights,
                    election_timeout: 150 * MS,
                    heartbeat: 25 * MS,
                    max_append_bytes: 200,
                    max_inflight_bytes: 400,
                    propose_every: 25 * MS,
                    burst_one_in: 10,
                    quality: Quality { delay: 2 * MS, jitter: 4 * MS, ..Quality::LAN },
                    disk: DiskSpeed { sync: 200, jitter: 2 * MS },
                    restart: (MS, 300 * MS),
                    ..any
                }
            }
        }
    }

    /// Zones that are apart, for leaders that send one copy to each: chance of its own, so that the rest is as it was.
    pub(crate) fn with_zones(self, rng: &mut Rng, world: World) -> Profile {
        if world == World::LateRelays {
            // Long enough that old entries arrive while the next leader finds the end of a log.
            let (delay, jitter) = (rng.between(30, 60) * MS, rng.between(1, 20) * MS);
            return Profile { between_zones: Some(Quality { delay, jitter, ..Quality::LAN }), ..self };
        }
        let mut weights = self.weights;
        weights[Fault::CutInZone as usize] = *rng.pick(&[0, 2, 6]);
        let near = self.quality;
        let far = Quality {
            delay: near.delay + rng.between(MS, self.election_timeout / 20),
            bytes_per_ms: near.bytes_per_ms.min(rng.between(50, 5_000)),
            queues: true,
            ..near
        };
        Profile { weights, between_zones: rng.one_in(2).then_some(far), ..self }
    }

    /// Damage to several logs at once: drawn apart, so that the rest is as it was.
    pub(crate) fn with_damage(self, rng: &mut Rng) -> Profile {
        let mut weights = self.weights;
        weights[Fault::DamageSeveral as usize] = *rng.pick(&[0, 3, 8]);
        Profile { weights, ..self }
    }

    /// Disks that go back in time: drawn apart, so that the rest is as it was.
    pub(crate) fn with_rewinds(self, rng: &mut Rng) -> Profile {
        let mut weights = self.weights;
        weights[Fault::Rewind as usize] = *rng.pick(&[0, 4, 8]);
        Profile { weights, ..self }
    }

    /// The links between members of these zones at their best.
    pub(crate) fn between(&self, from: u8, to: u8) -> Quality {
        self.between_zones.filter(|_| from != to).unwrap_or(self.quality)
    }

    fn any(rng: &mut Rng) -> Profile {
        let quality = match rng.below(10) {
            0..=4 => Quality { delay: rng.between(30, 200), jitter: rng.between(20, 300), ..Quality::LAN },
            5..=6 => {
                Quality { delay: rng.between(500, 3000), jitter: rng.between(100, 4000), ..Quality::LAN }
            }
            7..=8 => {
                Quality { delay: rng.between(5000, 30_000), jitter: rng.between(100, 20_000), ..Quality::LAN }
            }
            _ => Quality { delay: 100, jitter: 100, bytes_per_ms: rng.between(100, 2000), ..Quality::LAN },
        };
        let quality = Quality { loss: *rng.pick(&[0, 0, 0, 100, 2_000, 20_000]), ..quality };
        let disk = match rng.below(4) {
            0 => DiskSpeed { sync: 50, jitter: 100 },
            1 => DiskSpeed { sync: 500, jitter: 1500 },
            2 => DiskSpeed { sync: 3000, jitter: 12_000 },
            _ => DiskSpeed { sync: 100, jitter: 20_000 },
        };
        let far = quality.delay > 4000;
        let election_timeout = if far { rng.between(500, 900) * MS } else { rng.between(150, 700) * MS };
        let mut weights: [u32; FAULTS.len()] = [0; FAULTS.len()];
        for (at, weight) in weights.iter_mut().enumerate() {
            // These are drawn apart.
            if !matches!(FAULTS[at], Fault::CutInZone | Fault::Rewind | Fault::DamageSeveral) {
                *weight = if rng.one_in(2) { 0 } else { rng.between(1, 10) as u32 };
            }
        }
        // Faults that need the operator are rarer, and some fault always happens.
        weights[Fault::Crash as usize] = weights[Fault::Crash as usize].max(1);
        weights[Fault::Replace as usize] = weights[Fault::Replace as usize].min(2);
        weights[Fault::Damage as usize] = weights[Fault::Damage as usize].min(3);
        weights[Fault::CrashAll as usize] = weights[Fault::CrashAll as usize].min(3);
        let fault_every = rng.between(400, 6_000) * MS;
        Profile {
            voters: [1, 2, 3, 3, 3, 3, 4, 5, 5, 5][rng.below(10) as usize],
            learners: [0, 0, 0, 1, 2][rng.below(5) as usize],
            length: rng.between(120, 480) * SECOND,
            chaos: (10 * SECOND, *rng.pick(&[20, 40, 120]) * SECOND),
            fault_every,
            weights,
            heartbeat: election_timeout / 6,
            election_timeout,
            segment_bytes: *rng.pick(&[4 << 10, 16 << 10, 64 << 10, 256 << 10]),
            max_append_bytes: *rng.pick(&[200, 1 << 10, 4 << 10, 16 << 10, 1 << 20, 1 << 20]),
            max_inflight_bytes: *rng.pick(&[2 << 10, 64 << 10, 4 << 20]),
            cache_bytes: *rng.pick(&[1 << 10, 64 << 10, 256 << 10, 1 << 20, 64 << 20]),
            quality,
            between_zones: None,
            disk,
            sector_bytes: *rng.pick(&[512, 512, 4096, 64]),
            start_fails: *rng.pick(&[0, 0, 4, 30]),
            batching: *rng.pick(&[0, 50, 200, 1000]),
            propose_every: rng.between(25, 85) * MS,
            burst_one_in: *rng.pick(&[50, 200, 1000]),
            rows: *rng.pick(&[3, 30, 300, 300]),
            appliers: *rng.pick(&[1, 4, 16]),
            apply: *rng.pick(&[100, 2 * MS, 2 * MS, 50 * MS]),
            restart: (rng.between(1, 50) * MS, rng.between(100, 8_000) * MS),
            drift: *rng.pick(&[0, 100, 5_000]),
            policies: false,
        }
    }
}
