//! Worlds of whole members: the real `Member` of lockstep-node with its real log, on a simulated disk, network and clock,
//! with servers and clients around it. What members decide by themselves (views, votes, memberships, trims, fallbacks,
//! state transfers) nothing here decides for them.

mod at_risk;
mod calm;
mod clients;
mod connections;
mod damage;
mod faults;
mod operator;
mod process;
mod rewind;
mod round;
mod streaming;

use crate::client_checks::ClientChecks;
use crate::clock::{Clock, Name};
use crate::counters::Counters;
use crate::history::{Check, History, Violation};
use crate::log_copy::LogBook;
use crate::mutate::Planted;
use crate::network::{Network, Quality};
use crate::node::{Fate, Input, Node};
use crate::profile::{MS, Profile, SECOND, World as WorldKind};
use crate::queue::Queue;
use crate::rescued::Rescued;
use crate::rng::Rng;
use crate::server::Server;
use crate::settings::Settings;
use crate::trace::Trace;
use crate::writers::Writers;
use bytes::Bytes;
use connections::Links;
use faults::{AroundWeights, End};
use lockstep_core::{Gtid, Micros, Seqno, Uuid};
use lockstep_log::MemDisk;
use lockstep_node::{Hello, Tuning};
use std::time::Duration;

/// The history that the first member founds.
const HISTORY: Uuid = Uuid([0x77; 16]);

/// Machines at the start, at most, and machines that may come later.
const MEMBERS_MAX: usize = 7;
const SPARES: usize = 2;

/// Sets the chance that zones are drawn by apart from the rest.
const ZONES: u64 = 0x5a6f_6e65_5a6f_6e65;
/// The same for disks that go back in time.
const REWINDS: u64 = 0x5265_7769_6e64_7321;
const DAMAGE: u64 = 0x4c6f_7374_2065_6e64;

fn zone_of(at: usize, zones: usize) -> u8 {
    (at % zones) as u8
}

/// A scheduled event. `life` names the process that it is for.
enum Event {
    /// A frame arrives on a connection.
    Frame { from: usize, to: usize, link: u64, kind: u8, payload: Bytes },
    /// A repeated frame arrives, even if its connection has ended.
    Late { from: usize, to: usize, lives: (u64, u64), kind: u8, payload: Bytes },
    /// A process handles its inputs.
    Round { at: usize, life: u64 },
    /// A process's timer rings.
    Timer { at: usize, life: u64, due: Micros },
    /// The log's thread is done.
    Synced { at: usize, life: u64 },
    /// The server goes on.
    Serve { at: usize },
    /// One side of a connection notices its end.
    Down { at: usize, peer: usize, link: u64 },
    /// Connections are made.
    Connect,
    /// The operator checks for lost members and data.
    Operate,
    /// Clients write and read.
    Clients { round: u64 },
    /// A fault happens.
    Fault { round: u64 },
    /// A fault ends.
    End { round: u64, end: End },
    /// A process starts.
    Start { at: usize },
    /// All faults end.
    Heal { round: u64 },
    /// Has everything come back?
    Calm,
}

/// The whole world.
pub(crate) struct World {
    pub(crate) now: Micros,
    pub(crate) trace: Trace,
    pub(crate) counters: Counters,
    pub(crate) history: Option<History>,
    settings: Settings,
    queue: Queue<Event>,
    rng: Rng,
    net: Network,
    links: Links,
    profile: Profile,
    nodes: Vec<Node>,
    client_checks: ClientChecks,
    at_risk: at_risk::AtRisk,
    around: AroundWeights,
    /// Where the clients are, if not anywhere.
    writers: Option<Writers>,
    /// Until then no fault happens: a disk has gone back, and the members that know it must live.
    quiet_until: Micros,
    /// The writes in the rescue files of disks that are gone.
    rescued: Rescued,
    /// Counts what may change who reaches whom.
    weather: u64,
    /// So many new leaders will not last.
    short_terms: u32,
    streaming: Vec<streaming::Client>,
    /// The last write's number.
    marks: u64,
    zones: usize,
    /// Repeated frames arrive late.
    repeats: bool,
    answers: u64,
    /// Counts the periods of faults; their events are void later.
    round: u64,
    trouble: bool,
    healed_at: Micros,
    answers_at_heal: u64,
    /// What all databases together have applied, and when that last changed.
    finished_since_heal: (Seqno, Micros),
    /// There has been a leader since.
    led_since_heal: bool,
    done: bool,
}

impl World {
    pub(crate) fn new(settings: Settings) -> World {
        let mut rng = Rng::new(settings.seed);
        let mut profile = Profile::draw(&mut rng, settings.world);
        if settings.relays() {
            profile = profile.with_zones(&mut Rng::new(settings.seed ^ ZONES), settings.world);
        }
        if settings.damages_several() {
            profile = profile.with_damage(&mut Rng::new(settings.seed ^ DAMAGE));
        }
        if settings.rewinds() {
            profile = profile.with_rewinds(&mut Rng::new(settings.seed ^ REWINDS));
        }
        let members = (profile.voters + profile.learners).clamp(1, MEMBERS_MAX);
        let zones = if settings.relays() { 2 } else { *rng.pick(&[1, 1, 2, 3]) };
        let around = AroundWeights::draw(&mut rng, profile.policies, settings.mutation.is_some());
        let tuning = Tuning {
            heartbeat: Duration::from_micros(profile.heartbeat),
            election_timeout: Duration::from_micros(profile.election_timeout),
            evict_timeout: Duration::from_secs(*rng.pick(&[300, 300, 15])),
            follow_writer: settings.world == WorldKind::Writers || rng.one_in(2),
            disk_timeout: Duration::from_millis(*rng.pick(&[0, 1000, 5000])),
            relay: settings.relays(),
            segment_bytes: profile.segment_bytes,
            log_bytes: *rng.pick(&[64 << 10, 128 << 10, 512 << 10, 1 << 30]),
            log_max_bytes: 8 << 20,
            log_keep: Duration::from_secs(*rng.pick(&[0, 0, 20])),
            ..Tuning::default()
        };
        let nodes: Vec<Node> = (0..members + SPARES)
            .map(|at| {
                let byte = at as u8 + 1;
                let hello = Hello {
                    id: Uuid([byte; 16]),
                    incarnation: 0,
                    view_uuid: Uuid([byte | 0x40; 16]),
                    history: Uuid::NIL,
                    log_id: Uuid::NIL,
                    parents: Vec::new(),
                    forks: Vec::new(),
                    last_index: 0,
                    name: format!("n{byte}"),
                    address: format!("10.0.0.{byte}:4567"),
                    incoming: format!("10.0.0.{byte}:3306"),
                    zone: zone_of(at, zones),
                    wants_vote: at < profile.voters || at >= members,
                    arbitrator: settings.arbitrates(at),
                    donates: true,
                    device: false,
                };
                let disk = MemDisk::new();
                disk.set_sector_bytes(profile.sector_bytes);
                if let Some(Planted::Log(fault)) = settings.mutation {
                    disk.plant(Some(fault));
                }
                Node {
                    id: hello.id,
                    former: Vec::new(),
                    fate: if at < members { Fate::In } else { Fate::Out },
                    hello,
                    tuning: tuning.clone(),
                    disk,
                    speed: profile.disk,
                    disk_fails: false,
                    disk_failed: false,
                    damaged: false,
                    lost_end: false,
                    disk_full: false,
                    clock: Clock {
                        shown: rng.below(1 << 40),
                        since: 0,
                        rate: 1_000_000 + rng.below(2 * profile.drift + 1) - profile.drift,
                        wall: rng.below(2 * SECOND) as i64 - SECOND as i64,
                    },
                    book: LogBook::default(),
                    server: Server::new(),
                    database_hangs: false,
                    disk_hangs: false,
                    serving: false,
                    lives: 0,
                    starting: at < members,
                    told_to_leave: false,
                    removal_asked: false,
                    old_disk: None,
                    rewound: false,
                    paused_until: 0,
                    process: None,
                }
            })
            .collect();
        let mut net = Network::new(nodes.len(), profile.quality);
        net.mend_all(|from, to| profile.between(zone_of(from, zones), zone_of(to, zones)));
        let writers = (settings.world == WorldKind::Writers).then(|| Writers::new(settings.seed));
        World {
            now: 0,
            trace: Trace::new(settings.trace, settings.trace_from),
            counters: Counters::default(),
            history: None,
            settings,
            queue: Queue::default(),
            net,
            links: Links::default(),
            profile,
            nodes,
            client_checks: ClientChecks::default(),
            at_risk: at_risk::AtRisk::default(),
            around,
            writers,
            quiet_until: 0,
            rescued: Rescued::default(),
            weather: 0,
            short_terms: 0,
            streaming: Vec::new(),
            marks: 0,
            zones,
            repeats: rng.one_in(3),
            answers: 0,
            round: 0,
            trouble: false,
            healed_at: 0,
            answers_at_heal: 0,
            finished_since_heal: (0, 0),
            led_since_heal: false,
            done: false,
            rng,
        }
    }

    /// Writes acknowledged to their clients.
    pub(crate) fn answers(&self) -> u64 {
        self.answers
    }

    /// One line of the trace.
    fn say(&self, at: usize, what: std::fmt::Arguments<'_>) {
        self.trace.line(self.now, &Name(at + 1), what);
    }

    /// One line of the trace about everybody.
    pub(crate) fn tell(&self, what: std::fmt::Arguments<'_>) {
        self.trace.line(self.now, &"*", what);
    }

    /// The database's position.
    fn position(&self, at: usize) -> Gtid {
        match self.nodes[at].hello.arbitrator {
            true => Gtid::UNDEFINED,
            false => self.nodes[at].server.position(HISTORY),
        }
    }

    /// The link between two places at its best.
    fn quality_of(&self, from: usize, to: usize) -> Quality {
        self.profile.between(zone_of(from, self.zones), zone_of(to, self.zones))
    }

    /// Runs to the end, or to the first broken rule.
    pub(crate) fn run(&mut self) -> Check {
        self.tell(format_args!("seed {}: {:?}", self.settings.seed, self.profile));
        for at in self.used() {
            let after = if at == 0 { 0 } else { self.rng.between(MS, 300 * MS) };
            self.queue.push(after, Event::Start { at });
        }
        self.queue.push(MS, Event::Connect);
        self.queue.push(MS, Event::Calm);
        self.queue.push(SECOND, Event::Operate);
        while !self.done {
            let Some((at, event)) = self.queue.pop() else {
                return Err(Violation { rule: "something always happens", what: "no event is left".into() });
            };
            self.now = at.max(self.now);
            self.counters.events += 1;
            self.trace.mix(at);
            self.happen(event)?;
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Check {
        match event {
            Event::Frame { from, to, link, kind, payload } => {
                if let Some(from) = self.links.peer(to, from, link) {
                    self.input(to, Input::Frame { from, kind, payload });
                }
            }
            Event::Late { from, to, lives, kind, payload } => {
                if (self.nodes[from].life(), self.nodes[to].life()) == lives {
                    let from = self.nodes[from].id;
                    self.input(to, Input::Frame { from, kind, payload });
                }
            }
            Event::Round { at, life } => {
                if self.nodes[at].life() == life {
                    return self.round(at);
                }
            }
            Event::Timer { at, life, due } => {
                if self.nodes[at].living(life).is_some_and(|process| process.timer_at == due) {
                    return self.round(at);
                }
            }
            Event::Synced { at, life } => {
                if self.nodes[at].life() == life {
                    return self.synced(at);
                }
            }
            Event::Serve { at } => return self.serve(at),
            Event::Down { at, peer, link } => self.side_down(at, peer, link),
            Event::Connect => {
                self.connect();
                self.queue.push(self.now + 20 * MS, Event::Connect);
            }
            Event::Operate => {
                self.operate();
                self.queue.push(self.now + 500 * MS, Event::Operate);
            }
            Event::Clients { round } if round == self.round => self.clients(),
            Event::Fault { round } if round == self.round => return self.fault(),
            Event::End { round, end } if round == self.round => return self.end(end),
            Event::Clients { .. } | Event::Fault { .. } | Event::End { .. } => {}
            Event::Start { at } => return self.start(at),
            Event::Heal { round } if round == self.round => return self.heal(),
            Event::Heal { .. } => {}
            Event::Calm => return self.calm(),
        }
        Ok(())
    }
}
