//! The simulated cluster: machines, network, the clock's queue of events, and what happens at each.

use crate::faults::Undo;
use crate::history::{Check, History, Violation, hold};
use crate::machine::{Clock, Fate, Input, Machine, Name, id_of, is_arbitrator, slot_of};
use crate::mirror::Mirror;
use crate::mutate::{NodeFault, Planted};
use crate::network::Network;
use crate::operator::Operator;
use crate::policy::Book;
use crate::profile::{FAULTS, MS, Profile, SECOND, World, zone};
use crate::queue::Queue;
use crate::rng::Rng;
use crate::server::Server;
use crate::trace::Trace;
use crate::writers::Writers;
use lockstep_core::members::{MemberInfo, Membership, Role};
use lockstep_core::message::Message;
use lockstep_core::raft::Failpoint;
use lockstep_core::snapshot::StateSnapshot;
use lockstep_core::{Index, MemberId, Micros, Uuid};
use lockstep_log::MemDisk;

/// Machines of one simulation: those at the start, spares and replacements.
pub(crate) const MACHINES: usize = 12;

/// One in this many relayed messages is duplicated and delayed: a hanging relay may forward messages of a former leader, and
/// correctness must not depend on when.
const LATE_RELAYED: u64 = 32;

/// Sets the chance that zones are drawn by apart from the rest.
const ZONES: u64 = 0x5a6f_6e65_5a6f_6e65;

/// A scheduled event.
#[derive(Debug)]
pub(crate) enum Event {
    /// A message arrives. It knows which processes it left from and for.
    Message { from: usize, from_life: u64, to: usize, to_life: u64, message: Box<Message> },
    /// A process handles its inputs.
    Wake { slot: usize, life: u64 },
    /// A process's timer rings.
    Timer { slot: usize, life: u64, at: Micros },
    /// An fsync ends.
    Synced { slot: usize, life: u64, ticket: u64 },
    /// Old entries have been read from the log.
    Fetch { slot: usize, life: u64, to: MemberId, from: Index, max_bytes: usize },
    /// The transport's news about a peer.
    Peer { slot: usize, life: u64, peer: usize, up: bool },
    /// A process starts.
    Start { slot: usize },
    /// A stopped process goes on.
    Resume { slot: usize, life: u64 },
    /// A database arrives from another member.
    Transferred { slot: usize, life: u64 },
    /// A server's appliers go on.
    Apply { slot: usize, life: u64 },
    /// Clients propose.
    Propose { round: u64 },
    /// A client reads.
    Read { round: u64 },
    /// A fault happens.
    Fault { round: u64 },
    /// One more of a row of leaders dies.
    CrashNext { round: u64, left: u32 },
    /// A leader that was just elected dies or is cut off.
    CrashElected { round: u64, slot: usize, life: u64 },
    /// A fault ends.
    Undo { round: u64, undo: Undo },
    /// The operator looks.
    Operate,
    /// Faults end, everything heals.
    Heal,
    /// Has everything come back?
    Calm,
}

/// Counters of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Faults, of all kinds.
    pub faults: u64,
    /// Events.
    pub events: u64,
    /// Messages sent.
    pub messages: u64,
    /// Proposals made.
    pub proposals: u64,
    /// Reads answered.
    pub reads: u64,
    /// Fsyncs.
    pub syncs: u64,
    /// Processes started.
    pub starts: u64,
    /// Membership changes begun.
    pub changes: u64,
    /// Bases taken.
    pub bases: u64,
    /// Old entries asked back from a log.
    pub fetches: u64,
    /// Times that everything healed.
    pub heals: u64,
    /// The longest that healing took, µs.
    pub longest_heal: Micros,
    /// The longest that a leader was then waited for, µs.
    pub longest_election: Micros,
    /// Databases copied.
    pub transfers: u64,
    /// Logs that were found damaged.
    pub damaged_logs: u64,
    /// Members that came back under a new id.
    pub identities: u64,
    /// Starts that failed on the way and were tried again.
    pub failed_starts: u64,
    /// Acknowledged before they were committed; and those of them that were lost.
    pub early: u64,
    /// See `early`.
    pub lost: u64,
    /// Histories that ended because each database had diverged under a weak policy: members wait for each other's data.
    pub no_donor: u64,
    /// How often a leader's semisync has fallen back.
    pub fallbacks: u64,
    /// Looks at a leader that was an arbitrator.
    pub arbitrators_led: u64,
    /// Leadership transfers to the main writer.
    pub follows: u64,
    /// Appends that went to a relay, and that relays passed on.
    pub relays: u64,
    /// See `relays`.
    pub relayed: u64,
    /// Of `faults`, each of [`crate::profile::FAULTS`].
    pub by_kind: [u64; FAULTS.len()],
}

impl Counters {
    /// Adds another seed's.
    pub fn add(&mut self, other: &Counters) {
        let Counters {
            faults,
            events,
            messages,
            proposals,
            reads,
            syncs,
            starts,
            changes,
            bases,
            fetches,
            heals,
            longest_heal,
            longest_election,
            transfers,
            damaged_logs,
            identities,
            failed_starts,
            early,
            lost,
            no_donor,
            fallbacks,
            arbitrators_led,
            follows,
            relays,
            relayed,
            by_kind,
        } = other;
        self.early += early;
        self.lost += lost;
        self.no_donor += no_donor;
        self.fallbacks += fallbacks;
        self.arbitrators_led += arbitrators_led;
        self.follows += follows;
        self.relays += relays;
        self.relayed += relayed;
        self.faults += faults;
        self.events += events;
        self.messages += messages;
        self.proposals += proposals;
        self.reads += reads;
        self.syncs += syncs;
        self.starts += starts;
        self.changes += changes;
        self.bases += bases;
        self.fetches += fetches;
        self.heals += heals;
        self.longest_heal = self.longest_heal.max(*longest_heal);
        self.longest_election = self.longest_election.max(*longest_election);
        self.transfers += transfers;
        self.damaged_logs += damaged_logs;
        self.identities += identities;
        self.failed_starts += failed_starts;
        self.by_kind.iter_mut().zip(by_kind).for_each(|(sum, n)| *sum += n);
    }
}

/// How to run a seed.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The seed.
    pub seed: u64,
    /// What kind of world it draws.
    pub world: World,
    /// Whether whole members run in it, not only their cores.
    pub whole: bool,
    /// A planted fault.
    pub mutation: Option<Planted>,
    /// Print a line per event.
    pub trace: bool,
    /// From this simulated time on, µs.
    pub trace_from: Micros,
    /// Check also what members owe each other, not only outcomes.
    pub promises: bool,
}

impl Settings {
    /// The fault that is planted in the core, if one is.
    pub(crate) fn core_failpoint(&self) -> Option<Failpoint> {
        match self.mutation {
            Some(Planted::Core(mutation)) => Some(mutation),
            _ => None,
        }
    }

    /// Whether leaders send one copy to each zone: in every other seed, so that the draws of the rest mean what they did.
    pub fn relays(&self) -> bool {
        self.seed.is_multiple_of(2)
    }

    /// Whether the member at this place is of a version that knows relays: in most clusters all are.
    pub(crate) fn knows_relays(&self, slot: usize) -> bool {
        !(self.seed.is_multiple_of(8) && slot % 3 == 1)
    }

    /// Whether the member at this place is an arbitrator: in one cluster of seven there is one.
    pub fn arbitrates(&self, slot: usize) -> bool {
        slot == 1 && self.seed % 7 == 2
    }

    /// Whether this fault is planted.
    pub(crate) fn node_fault(&self, fault: NodeFault) -> bool {
        self.mutation == Some(Planted::Node(fault))
    }

    /// This seed, all checks, no trace.
    pub fn seed(seed: u64) -> Settings {
        Settings {
            seed,
            world: World::Any,
            whole: false,
            mutation: None,
            trace: false,
            trace_from: 0,
            promises: true,
        }
    }
}

/// The whole world.
pub(crate) struct Cluster {
    pub(crate) now: Micros,
    pub(crate) queue: Queue<Event>,
    pub(crate) rng: Rng,
    pub(crate) net: Network,
    pub(crate) profile: Profile,
    pub(crate) machines: Vec<Machine>,
    pub(crate) history: History,
    pub(crate) trace: Trace,
    pub(crate) counters: Counters,
    pub(crate) settings: Settings,
    pub(crate) operator: Operator,
    /// What policies promised.
    pub(crate) book: Book,
    /// Where the clients are, if not anywhere.
    pub(crate) writers: Option<Writers>,
    /// Counts what may change who reaches whom.
    pub(crate) weather: u64,
    /// The number of the present period of faults; events of earlier periods are void.
    pub(crate) round: u64,
    /// Faults happen and clients propose.
    pub(crate) trouble: bool,
    /// So many new leaders will not last.
    pub(crate) short_terms: u32,
    /// When the present calm began.
    pub(crate) healed_at: Micros,
    /// When all processes ran again.
    pub(crate) all_run_since: Micros,
    /// When the log of a candidate has last grown, or changed: it takes over another's tail.
    pub(crate) tail_taken_at: Micros,
    /// There has been a leader since.
    pub(crate) led: bool,
    /// When all were last farther than before, and how far.
    pub(crate) reached: (Micros, u64),
    /// The commit index then.
    pub(crate) healed_with: Index,
    /// Unique contents of proposals.
    pub(crate) payloads: u64,
    /// Makes ids.
    pub(crate) salt: u64,
    pub(crate) done: bool,
}

/// The member at a place, as the membership lists it.
pub(crate) fn member(id: MemberId, role: Role) -> MemberInfo {
    let slot = slot_of(&id);
    MemberInfo {
        id,
        name: format!("n{slot}"),
        address: format!("sim{slot}:4567"),
        zone: zone(slot),
        role,
        wants_vote: true,
        arbitrator: is_arbitrator(&id),
    }
}

impl Cluster {
    pub(crate) fn new(settings: Settings) -> Cluster {
        let mut rng = Rng::new(settings.seed);
        let mut profile = Profile::draw(&mut rng, settings.world);
        if settings.relays() {
            profile = profile.with_zones(&mut Rng::new(settings.seed ^ ZONES));
        }
        let salt = rng.bits();
        let machines: Vec<_> = (0..MACHINES)
            .map(|slot| Machine {
                id: id_of(slot, salt, settings.arbitrates(slot)),
                clock: Clock {
                    shown: rng.below(1 << 40),
                    since: 0,
                    rate: 1_000_000 + rng.below(2 * profile.drift + 1) - profile.drift,
                    wall: rng.below(2 * SECOND) as i64 - SECOND as i64,
                },
                disk: MemDisk::new(),
                speed: profile.disk,
                disk_fails: false,
                disk_full: false,
                damaged: false,
                former: Vec::new(),
                known_from: 0,
                trimming: 0,
                durable: Mirror::default(),
                durable_vote: (0, None),
                in_flight: Default::default(),
                server: Server::default(),
                early: Default::default(),
                early_life: 0,
                fate: Fate::Spare,
                lives: 0,
                starting: false,
                process: None,
            })
            .collect();
        let genesis = StateSnapshot::genesis(
            Uuid(std::array::from_fn(|at| at as u8 + 1)),
            0,
            Membership { members: vec![member(machines[0].id, Role::Voter)] },
        );
        for machine in &machines {
            machine.disk.set_sector_bytes(profile.sector_bytes);
            if let Some(Planted::Log(fault)) = settings.mutation {
                machine.disk.plant(Some(fault));
            }
        }
        let operator = Operator::new(profile.voters, profile.learners);
        let mut net = Network::new(MACHINES, profile.quality);
        net.reset(|from, to| profile.quality_of(from, to));
        Cluster {
            now: 0,
            queue: Queue::default(),
            net,
            history: History::new(genesis, settings.promises),
            trace: Trace::new(settings.trace, settings.trace_from),
            counters: Counters::default(),
            operator,
            book: Book::default(),
            writers: (settings.world == World::Writers).then(|| Writers::new(settings.seed)),
            weather: 0,
            round: 0,
            trouble: true,
            short_terms: 0,
            healed_at: 0,
            all_run_since: 0,
            tail_taken_at: 0,
            led: false,
            reached: (0, 0),
            healed_with: 0,
            payloads: 0,
            salt,
            done: false,
            rng,
            profile,
            machines,
            settings,
        }
    }

    /// One line of the trace, if it is wanted.
    pub(crate) fn say(&self, slot: usize, what: std::fmt::Arguments<'_>) {
        self.trace.line(self.now, &Name(slot), what);
    }

    /// One line of the trace about everybody.
    pub(crate) fn tell(&self, what: std::fmt::Arguments<'_>) {
        self.trace.line(self.now, &"*", what);
    }

    /// Runs to the end, or to the first broken rule.
    pub(crate) fn run(&mut self) -> Check {
        self.tell(format_args!("seed {}: {:?}", self.settings.seed, self.profile));
        let first = self.profile.voters + self.profile.learners;
        for slot in 0..first {
            self.machines[slot].fate = Fate::Used;
            self.machines[slot].starting = true;
            self.queue.push(slot as u64, Event::Start { slot });
        }
        self.queue.push(10 * MS, Event::Operate);
        // Time to form the cluster: that happens under faults only in later rounds.
        self.begin_trouble(SECOND);
        while !self.done {
            let Some((at, event)) = self.queue.pop() else {
                return Err(Violation { rule: "something always happens", what: "no event is left".into() });
            };
            debug_assert!(at >= self.now, "time moves forward");
            self.now = at.max(self.now);
            self.counters.events += 1;
            self.trace.mix(at);
            self.happen(event)?;
        }
        Ok(())
    }

    /// Faults and clients begin.
    pub(crate) fn begin_trouble(&mut self, after: Micros) {
        self.round += 1;
        self.trouble = true;
        let round = self.round;
        let at = self.now + after;
        self.queue.push(at, Event::Fault { round });
        self.queue.push(self.now, Event::Propose { round });
        self.queue.push(self.now, Event::Read { round });
        let length = self.rng.between(self.profile.chaos.0, self.profile.chaos.1);
        self.queue.push(self.now + length, Event::Heal);
    }

    fn happen(&mut self, event: Event) -> Check {
        if matches!(
            event,
            Event::Fault { .. }
                | Event::CrashNext { .. }
                | Event::CrashElected { .. }
                | Event::Undo { .. }
                | Event::Heal
                | Event::Start { .. }
                | Event::Resume { .. }
                | Event::Peer { .. }
        ) {
            self.weather += 1;
        }
        match event {
            Event::Message { from, from_life, to, to_life, message } => {
                self.arrives(from, from_life, to, to_life, *message)
            }
            Event::Wake { slot, life } => match self.living(slot, life) {
                Some(process) => {
                    process.woken = false;
                    self.round(slot)
                }
                None => Ok(()),
            },
            Event::Timer { slot, life, at } => match self.living(slot, life) {
                Some(process) if process.timer_at == at => {
                    process.timer_at = Micros::MAX;
                    self.round(slot)
                }
                _ => Ok(()),
            },
            Event::Synced { slot, life, ticket } => self.synced(slot, life, ticket),
            Event::Fetch { slot, life, to, from, max_bytes } => self.fetch(slot, life, to, from, max_bytes),
            Event::Peer { slot, life, peer, up } => {
                if self.living(slot, life).is_none() {
                    return Ok(());
                }
                let id = self.machines[peer].id;
                self.input(slot, if up { Input::PeerUp(id) } else { Input::PeerDown(id) })
            }
            Event::Start { slot } => self.start(slot),
            Event::Resume { slot, life } => {
                let now = self.now;
                if self.living(slot, life).is_none_or(|process| process.paused_until > now) {
                    return Ok(());
                }
                self.say(slot, format_args!("goes on"));
                self.round(slot)
            }
            Event::Transferred { slot, life } => self.transferred(slot, life),
            Event::Apply { slot, life } => match self.living(slot, life) {
                Some(_) => self.apply(slot),
                None => Ok(()),
            },
            Event::Propose { round } if round == self.round && self.trouble => self.clients_propose(),
            Event::Read { round } if round == self.round && self.trouble => self.client_reads(),
            Event::Fault { round } if round == self.round && self.trouble => self.fault(),
            Event::CrashNext { round, left } if round == self.round && self.trouble => {
                self.crash_next(left);
                Ok(())
            }
            Event::CrashElected { round, slot, life } if round == self.round && self.life(slot) == life => {
                self.crash_elected(slot);
                Ok(())
            }
            Event::Undo { round, undo } if round == self.round => {
                self.undo(undo);
                Ok(())
            }
            Event::Propose { .. }
            | Event::Read { .. }
            | Event::Fault { .. }
            | Event::CrashNext { .. }
            | Event::CrashElected { .. }
            | Event::Undo { .. } => Ok(()),
            Event::Operate => self.operate(),
            Event::Heal => self.heal(),
            Event::Calm => self.calm(),
        }
    }

    /// Whether nobody of this id will ever run again.
    pub(crate) fn is_gone(&self, id: &MemberId) -> bool {
        let machine = &self.machines[slot_of(id)];
        machine.id != *id || machine.fate == Fate::Lost
    }

    /// The process of this life, if it still runs.
    pub(crate) fn living(&mut self, slot: usize, life: u64) -> Option<&mut crate::machine::Process> {
        self.machines[slot].process.as_mut().filter(|p| p.life == life)
    }

    /// The life of the process at this place; 0 where none runs.
    pub(crate) fn life(&self, slot: usize) -> u64 {
        self.machines[slot].process.as_ref().map_or(0, |p| p.life)
    }

    /// Gives a process something: it will look at once, or with others a little later.
    pub(crate) fn input(&mut self, slot: usize, input: Input) -> Check {
        let batching = self.profile.batching;
        let now = self.now;
        let Some(process) = &mut self.machines[slot].process else { return Ok(()) };
        process.inbox.push(input);
        if process.paused_until > now {
            return Ok(());
        }
        if batching == 0 {
            return self.round(slot);
        }
        if !process.woken {
            process.woken = true;
            let life = process.life;
            let at = now + self.rng.below(batching + 1);
            self.queue.push(at, Event::Wake { slot, life });
        }
        Ok(())
    }

    fn arrives(&mut self, from: usize, from_life: u64, to: usize, to_life: u64, message: Message) -> Check {
        // A connection dies with its process; a packet of another life comes through only now and then.
        let stale = self.life(to) != to_life || self.life(from) != from_life;
        let strangers = from_life < self.machines[from].known_from || to_life < self.machines[to].known_from;
        if strangers || stale && !self.rng.one_in(16) || self.machines[to].process.is_none() {
            return Ok(());
        }
        let from = self.machines[from].id;
        if self.trace.wanted(self.now) {
            self.say(to, format_args!("<- {} {}", Name(slot_of(&from)), crate::trace::brief(&message)));
        }
        self.input(to, Input::Message { from, message })
    }

    /// Hands a message to the network.
    pub(crate) fn send(&mut self, from: usize, to: &MemberId, message: Message) -> Check {
        let slot = slot_of(to);
        let machine =
            self.machines.get(slot).filter(|m| m.id == *to || m.former.iter().any(|(id, _)| id == to));
        hold!(
            machine.is_some() && self.machines[from].id != *to,
            "messages go to members",
            "{} sends {message:?} to {to:?}",
            Name(from)
        );
        self.counters.messages += 1;
        self.counters.relays += matches!(message, Message::Relay { .. }) as u64;
        self.counters.relayed += matches!(message, Message::Relayed { .. }) as u64;
        if self.machines[slot].id != *to {
            // Nobody is called so any more.
            return Ok(());
        }
        let message =
            if self.rng.one_in(self.profile.codec_one_in) { through_the_codec(message)? } else { message };
        let bytes = crate::round::size(&message);
        self.trace.mix((from as u64) << 32 | slot as u64);
        self.trace.mix(message.term() << 32 | bytes as u64);
        let arrivals = self.net.send(self.now, from, slot, bytes, &mut self.rng);
        if self.trace.wanted(self.now) {
            let fate = match arrivals {
                [None, _] => " LOST",
                [_, Some(_)] => " TWICE",
                _ => "",
            };
            self.say(from, format_args!("-> {} {}{fate}", Name(slot), crate::trace::brief(&message)));
        }
        let (from_life, to_life) = (self.life(from), self.life(slot));
        if matches!(message, Message::Relayed { .. }) && self.rng.one_in(LATE_RELAYED) {
            let timeout = self.profile.election_timeout;
            let at = self.now + self.rng.between(timeout / 4, 8 * timeout);
            let message = Box::new(message.clone());
            self.queue.push(at, Event::Message { from, from_life, to: slot, to_life, message });
        }
        if let Some(at) = arrivals[1] {
            let message = Box::new(message.clone());
            self.queue.push(at, Event::Message { from, from_life, to: slot, to_life, message });
        }
        if let Some(at) = arrivals[0] {
            let message = Box::new(message);
            self.queue.push(at, Event::Message { from, from_life, to: slot, to_life, message });
        }
        Ok(())
    }

    /// Tells others about a process that came or went, as transports do: late, and not always.
    pub(crate) fn notice(&mut self, peer: usize, up: bool) {
        for slot in 0..MACHINES {
            if slot == peer || self.machines[slot].process.is_none() || !self.net.passes(peer, slot) {
                continue;
            }
            if up || self.rng.below(10) < 7 {
                let at = self.now + self.rng.between(100, 20 * MS);
                let life = self.life(slot);
                self.queue.push(at, Event::Peer { slot, life, peer, up });
                if up {
                    let life = self.life(peer);
                    self.queue.push(at, Event::Peer { slot: peer, life, peer: slot, up });
                }
            }
        }
    }

    /// All links as good as they get.
    pub(crate) fn mend_network(&mut self) {
        let profile = &self.profile;
        self.net.reset(|from, to| profile.quality_of(from, to));
    }
}

/// Encodes and decodes a message, and requires equality.
fn through_the_codec(message: Message) -> Result<Message, Violation> {
    let mut w = lockstep_core::codec::Writer::new();
    message.encode(&mut w);
    match Message::decode(w.into_bytes()) {
        Ok(read) if read == message => Ok(read),
        other => Err(Violation {
            rule: "messages survive their codec",
            what: format!("sent {message:?}, read {other:?}"),
        }),
    }
}
