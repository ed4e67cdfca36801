//! The world: machines with members and copies of one device, a network, clients, and faults.

use super::clients::{Client, Task};
use super::disk::SimDisk;
use super::faults::{End, Kind};
use super::links::Links;
use super::machine::{Device, Input, Machine, MachineClock, Process};
use super::model::Model;
use super::port::Submitted;
use super::reference::{Change, Item, Reference};
use super::rescued::Acknowledged;
use super::transfers::Transfer;
use super::{DeviceSettings, profile::Profile};
use crate::clock::Name;
use crate::history::{Check, Violation, hold};
use crate::network::Network;
use crate::profile::{MS, SECOND};
use crate::queue::Queue;
use crate::rng::Rng;
use crate::trace::Trace;
use bytes::Bytes;
use lockstep_block::device::file::{DeviceFile, Position};
use lockstep_block::device::{Config, Refused, Replica};
use lockstep_core::raft::{self, Failpoints};
use lockstep_core::{EntryKind, Gtid, Micros, Uuid};
use lockstep_log::{MemDisk, Options};
use lockstep_node::simulation::{Output, Setup, SimulatedNode};
use lockstep_node::{ConnectArgs, Delivery, FrontEnd, Hello, ServerEnd, ViewStatus};
use std::collections::VecDeque;
use std::time::Duration;

/// The history that the first member founds.
const HISTORY: Uuid = Uuid([0x77; 16]);
/// No process sleeps longer than this.
const NAP: Micros = 100 * MS;
/// The log is told the commit index this often.
const HINT: Micros = SECOND;

/// A scheduled event. `life` names the process that it is for.
pub(super) enum Event {
    /// A frame arrives on a connection.
    Frame { from: usize, to: usize, link: u64, kind: u8, payload: Bytes },
    /// A process handles its inputs.
    Round { at: usize, life: u64 },
    /// A process's timer rings.
    Timer { at: usize, life: u64, due: Micros },
    /// The log's thread is done.
    Synced { at: usize, life: u64 },
    /// The device's threads and tasks go on.
    Device { at: usize, life: u64 },
    /// One side of a connection notices its end.
    Down { at: usize, peer: usize, link: u64 },
    /// Both sides of a copy from another member go on.
    Transfer { number: u64 },
    /// Bytes of a copy arrive at a side.
    CopyBytes { number: u64, side: usize, bytes: Vec<u8> },
    /// A side of a copy notices that its connection has ended.
    CopyDown { number: u64, side: usize },
    /// Connections are made.
    Connect,
    /// Clients and the operator do something.
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
pub(super) struct DeviceWorld {
    pub(super) now: Micros,
    pub(super) trace: Trace,
    pub(super) settings: DeviceSettings,
    pub(super) queue: Queue<Event>,
    pub(super) rng: Rng,
    pub(super) net: Network,
    pub(super) links: Links,
    pub(super) profile: Profile,
    pub(super) machines: Vec<Machine>,
    pub(super) reference: Reference,
    pub(super) model: Model,
    pub(super) acknowledged: Acknowledged,
    pub(super) clients: Vec<Client>,
    pub(super) tasks: Vec<Task>,
    /// The last number of a task, a client, a connection or a write.
    pub(super) numbers: u64,
    /// The last promotion that succeeded: where, and its epoch.
    pub(super) promoted: Option<(usize, u64)>,
    /// Where the operator has last moved leadership to for a promotion, and until when clients are brought there.
    pub(super) leadership_moves: Option<(usize, Micros)>,
    /// The last policy that was requested is weak.
    pub(super) weak: bool,
    /// Counts the periods of faults; their events are void later.
    pub(super) round: u64,
    pub(super) trouble: bool,
    pub(super) healed_at: Micros,
    pub(super) stage: super::calm::Stage,
    pub(super) faults: u64,
    pub(super) by_kind: [u64; Kind::ALL.len()],
    pub(super) heals: u64,
    pub(super) attached: u64,
    pub(super) rescued: u64,
    /// Copies from another member under way.
    pub(super) transfers: Vec<Transfer>,
    /// Copies that the logs did not continue, or that the operator gave up.
    pub(super) needs_state: u64,
    /// Copies from another member that reached their end.
    pub(super) copies: u64,
    /// One of so many starts of a member gives up its copy; 0: none. Drawn by itself, so that the other draws of a seed stay.
    pub(super) give_up: (u64, Rng),
    pub(super) promotions: u64,
    pub(super) done: bool,
}

impl DeviceWorld {
    pub(super) fn new(settings: DeviceSettings) -> DeviceWorld {
        let mut rng = Rng::new(settings.seed ^ 0x6465_7669_6365);
        let profile = Profile::draw(&mut rng);
        let machines =
            (0..3).map(|at| machine(at, at == 2 && profile.arbitrates, &profile, &mut rng)).collect();
        DeviceWorld {
            now: 0,
            trace: Trace::new(settings.trace, settings.trace_from),
            settings,
            queue: Queue::default(),
            net: Network::new(3, profile.quality),
            links: Links::default(),
            machines,
            reference: Reference::default(),
            model: Model::default(),
            acknowledged: Acknowledged::default(),
            clients: Vec::new(),
            tasks: Vec::new(),
            numbers: 0,
            promoted: None,
            leadership_moves: None,
            weak: profile.tuning.policy.is_weak(),
            round: 0,
            trouble: false,
            healed_at: 0,
            stage: super::calm::Stage::default(),
            faults: 0,
            by_kind: [0; Kind::ALL.len()],
            heals: 0,
            attached: 0,
            rescued: 0,
            transfers: Vec::new(),
            needs_state: 0,
            copies: 0,
            give_up: give_up(settings.seed),
            promotions: 0,
            done: false,
            profile,
            rng,
        }
    }

    pub(super) fn say(&self, at: usize, what: std::fmt::Arguments<'_>) {
        self.trace.line(self.now, &Name(at + 1), what);
    }

    pub(super) fn tell(&self, what: std::fmt::Arguments<'_>) {
        self.trace.line(self.now, &"*", what);
    }

    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Runs to the end, or to the first broken rule.
    pub(super) fn run(&mut self) -> Check {
        self.tell(format_args!("seed {}: {:?}", self.settings.seed, self.profile));
        for at in 0..self.machines.len() {
            let after = if at == 0 { 0 } else { self.rng.between(MS, 300 * MS) };
            self.queue.push(after, Event::Start { at });
        }
        self.queue.push(MS, Event::Connect);
        self.queue.push(MS, Event::Calm);
        while !self.done {
            let Some((at, event)) = self.queue.pop() else {
                return Err(Violation { rule: "something always happens", what: "no event is left".into() });
            };
            self.now = at.max(self.now);
            self.trace.mix(at);
            self.happen(event)?;
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Check {
        match event {
            Event::Frame { from, to, link, kind, payload } if self.links.is_up(to, from, Some(link)) => {
                let from = self.machines[from].id;
                self.input(to, Input::Frame { from, kind, payload });
            }
            Event::Round { at, life } if self.machines[at].life() == life => return self.member_round(at),
            Event::Timer { at, life, due } => {
                let process = self.machines[at].process.as_ref();
                if process.is_some_and(|process| process.life == life && process.timer_at == due) {
                    return self.member_round(at);
                }
            }
            Event::Synced { at, life } if self.machines[at].life() == life => return self.synced(at),
            Event::Device { at, life } if self.machines[at].life() == life => {
                if let Err(text) = self.device_step(at)? {
                    self.ends_itself(at, &text)?;
                }
                let paused = self.machines[at].paused_until;
                let after = self.rng.between(200, self.profile.device_step);
                self.queue.push((self.now + after).max(paused), Event::Device { at, life });
            }
            Event::Down { at, peer, link } => self.side_down(at, peer, link),
            Event::Transfer { number } => return self.transfer_step(number),
            Event::CopyBytes { number, side, bytes } => self.copy_arrives(number, side, &bytes),
            Event::CopyDown { number, side } => self.copy_down(number, side),
            Event::Connect => {
                self.connect();
                self.queue.push(self.now + 20 * MS, Event::Connect);
            }
            Event::Clients { round } if round == self.round => self.clients_act(),
            Event::Fault { round } if round == self.round => self.fault(),
            Event::End { round, end } if round == self.round => self.end(end),
            Event::Start { at } => return self.start(at),
            Event::Heal { round } if round == self.round => self.heal(),
            Event::Calm => return self.calm(),
            _ => {}
        }
        Ok(())
    }

    /// A process starts: its device file and its log are opened, and it connects.
    fn start(&mut self, at: usize) -> Check {
        let now = self.now;
        let machine = &mut self.machines[at];
        machine.starting = false;
        if machine.process.is_some() {
            return Ok(());
        }
        machine.disk_fails = machine.disk.is_faulty();
        machine.log_disk.set_now_us(machine.clock.wall(now));
        machine.lives += 1;
        let life = machine.lives;
        let (local, wall) = (machine.clock.local(now), machine.clock.wall(now));
        let mut position = (Gtid::UNDEFINED, Uuid::NIL);
        let (mut file, mut needs_state) = (None, false);
        if machine.keeps_data() {
            let opened = DeviceFile::over(Box::new(machine.disk.clone()));
            let (opened, found) = match opened {
                Ok(opened) => opened,
                // The state file cannot be written while the disk is full.
                Err(text) if machine.disk_fails => {
                    self.say(at, format_args!("cannot start: {text}"));
                    self.start_later(at, 100 * MS, SECOND);
                    return Ok(());
                }
                Err(what) => {
                    return Err(Violation { rule: "a device file can be opened after a crash", what });
                }
            };
            machine.is_whole = found.whole;
            machine.saved = found.gtid.seqno;
            let name = machine.hello.name.clone();
            if found.gtid.is_defined() && found.whole {
                self.reference.check_begun(&name, found.gtid.seqno, &machine.disk.image())?;
            }
            let gives_up = found.gtid.is_defined() && found.whole && self.gives_up(at);
            needs_state = gives_up || !found.whole;
            let found = if needs_state { Position::given_up() } else { found };
            position = (found.gtid, found.log);
            file = Some((opened, found));
        }
        let machine = &mut self.machines[at];
        let profile = &self.profile;
        let config = raft::Config {
            id: machine.id,
            incarnation: 0,
            heartbeat: profile.heartbeat,
            election_timeout: profile.election_timeout,
            disk_timeout: 0,
            segment_bytes: profile.tuning.segment_bytes,
            max_append_bytes: profile.max_append_bytes,
            max_inflight_bytes: 4 << 20,
            cache_bytes: 1 << 20,
            max_unwritten_bytes: 8 << 20,
            max_at_risk_bytes: 8 << 20,
            seed: self.settings.seed ^ life << 8 ^ at as u64,
            failpoints: Failpoints::default(),
        };
        let options = Options {
            segment_bytes: profile.tuning.segment_bytes,
            new_member_id: machine.id.0,
            ..Options::default()
        };
        let setup = Setup { hello: machine.hello.clone(), tuning: profile.tuning.clone(), config, options };
        let started = SimulatedNode::start(&machine.log_disk, setup, local);
        let (mut node, _) = started.map_err(|error| Violation {
            rule: "a log can be opened after a crash",
            what: format!("n{}: {error}", at + 1),
        })?;
        if machine.keeps_data() {
            node.set_front_end(FrontEnd::Device);
        }
        node.begin_round_at(local, wall, Duration::from_micros(machine.clock.boot(now)));
        let args = ConnectArgs {
            cluster: "sim".into(),
            peers: Vec::new(),
            bootstrap: at == 0 && life == 1,
            position: position.0,
            log: position.1,
            by_donor: false,
            in_doubt: None,
            timeout: Duration::from_secs(360_000),
            waits_for_others: true,
            needs_state,
            followed: None,
        };
        let view_uuid = Uuid(std::array::from_fn(|n| match n {
            0 => at as u8 + 1,
            1 => life as u8,
            2 => (life >> 8) as u8,
            _ => 0x40,
        }));
        let connected = node.connect(args, view_uuid, HISTORY);
        hold!(connected.is_ok(), "a member can be started", "n{}: {connected:?}", at + 1);
        let device = file.map(|(file, position)| {
            let port = super::port::Port::new(machine.id, node.view_uuid());
            let environment = std::sync::Arc::new(super::environment::SimEnvironment::default());
            environment.set(local, wall);
            let config = Config { name: "disk".into(), cache: profile.cache, timeout: profile.timeout };
            let seed = self.settings.seed << 32 | life << 16 | (at as u64) << 8;
            let failpoints = self.settings.planted.into();
            let (log, there) = (port.clone(), environment.clone());
            let replica = Replica::with(log, file, position, config, seed, there, failpoints);
            Device {
                replica,
                port,
                environment,
                deliveries: VecDeque::new(),
                refused: Refused::default(),
                batch: None,
                needs_state,
                asked_at: now,
                donations: Vec::new(),
            }
        });
        let has_device = device.is_some();
        machine.process = Some(Process {
            life,
            node,
            inbox: VecDeque::new(),
            woken: false,
            timer_at: Micros::MAX,
            busy: false,
            hinted_at: now,
            device,
        });
        self.say(at, format_args!("starts at {}, needs the device: {needs_state}", position.0));
        if has_device {
            self.queue.push(now + MS, Event::Device { at, life });
        }
        self.member_round(at)
    }

    /// Whether hardly any log is kept, so that a copy may need the device from another one.
    fn keeps_little_log(&self) -> bool {
        self.profile.tuning.log_bytes < 1 << 30
    }

    /// Whether the operator gives up this member's copy at its start: never the last one that is whole and complete.
    fn gives_up(&mut self, at: usize) -> bool {
        let last = self.reference.last();
        let is_good = |machine: &Machine| {
            let device = machine.process.as_ref().and_then(|process| process.device.as_ref());
            machine.is_whole && device.is_some_and(|device| device.replica.status().written >= last)
        };
        let others =
            self.machines.iter().enumerate().filter(|(other, machine)| *other != at && machine.keeps_data());
        let is_possible =
            others.map(|(_, machine)| machine).all(is_good) && !self.machines[at].disk.is_faulty();
        let (often, rng) = &mut self.give_up;
        *often > 0 && rng.one_in(*often) && is_possible
    }

    /// The process ends. `power`: the machine loses what was not synced.
    pub(super) fn stop(&mut self, at: usize, power: bool) {
        let seed = self.rng.bits();
        self.kill_sides(at, if power { 2 * SECOND } else { 50 * MS });
        let machine = &mut self.machines[at];
        let Some(process) = machine.process.take() else { return };
        self.lose_clients(at, process.life);
        let machine = &mut self.machines[at];
        drop(process);
        if power {
            machine.log_disk.crash(seed);
        } else {
            machine.log_disk.kill();
            machine.log_disk.clear_faults();
        }
        machine.disk.crash(power);
        machine.paused_until = 0;
        self.say(at, format_args!("{}", if power { "loses power" } else { "is killed" }));
        for peer in (0..self.machines.len()).filter(|peer| *peer != at) {
            self.hang_up(at, peer, if power { 2 * SECOND } else { 50 * MS });
        }
    }

    pub(super) fn start_later(&mut self, at: usize, low: Micros, high: Micros) {
        if !self.machines[at].starting && self.machines[at].process.is_none() {
            self.machines[at].starting = true;
            let after = self.rng.between(low, high.max(low));
            self.queue.push(self.now + after, Event::Start { at });
        }
    }

    /// The device cannot go on, and its process ends.
    pub(super) fn ends_itself(&mut self, at: usize, text: &str) -> Check {
        self.say(at, format_args!("ends itself: {text}"));
        let is_cut = self.weak && text.contains("goes on by the log");
        let needs_state = self.keeps_little_log() && text.contains("a state transfer is needed");
        let may_fail = self.machines[at].disk_fails || is_cut || needs_state;
        hold!(may_fail, "a copy goes on while its disk is in order", "n{}: {text}", at + 1);
        let power = self.rng.one_in(2);
        self.stop(at, power);
        let (low, high) = self.profile.restart;
        self.start_later(at, low, high);
        Ok(())
    }

    fn input(&mut self, at: usize, input: Input) {
        if let Some(process) = &mut self.machines[at].process {
            process.inbox.push_back(input);
        }
        self.wake(at, 0);
    }

    /// A round of this process is due.
    pub(super) fn wake(&mut self, at: usize, after: Micros) {
        let paused = self.machines[at].paused_until;
        if let Some(process) = &mut self.machines[at].process
            && !process.woken
        {
            process.woken = true;
            let life = process.life;
            self.queue.push((self.now + after).max(paused), Event::Round { at, life });
        }
    }

    pub(super) fn begin_round(&mut self, at: usize) {
        let (now, machine) = (self.now, &mut self.machines[at]);
        let clock = machine.clock;
        if let Some(process) = &mut machine.process {
            let boot = Duration::from_micros(clock.boot(now));
            process.node.begin_round_at(clock.local(now), clock.wall(now), boot);
        }
    }

    /// One round of a member.
    fn member_round(&mut self, at: usize) -> Check {
        let now = self.now;
        if self.machines[at].paused_until > now {
            return Ok(());
        }
        self.begin_round(at);
        let connected =
            (0..self.machines.len()).filter(|peer| *peer != at && self.links.is_up(at, *peer, None));
        let connected = connected.map(|peer| self.machines[peer].id).collect();
        let Some(process) = &mut self.machines[at].process else { return Ok(()) };
        process.woken = false;
        while let Some(input) = process.inbox.pop_front() {
            match input {
                Input::Frame { from, kind, payload } => process.node.frame(from, kind, payload),
                Input::Log(answered) => process.node.log_answered(answered),
            }
        }
        if process.hinted_at + HINT <= now {
            process.hinted_at = now;
            process.node.hint();
        }
        if let Some(device) = &process.device {
            for Submitted { payload, writeset, notice } in device.port.take_submitted() {
                let call = self.acknowledged.watch(&payload, notice);
                process.node.submit_with(EntryKind::WriteSet, writeset, call);
            }
            process.node.set_finished(device.port.finished_to());
        }
        let (mut outputs, mut deliveries) = (Vec::new(), Vec::new());
        process.node.end_round(&mut outputs, &mut deliveries);
        if let Some(device) = &mut process.device {
            device.deliveries.extend(deliveries);
            device.port.publish(process.node.published(), connected);
        }
        let mut left = false;
        for output in outputs {
            match output {
                Output::Send { to, kind, payload } => self.send(at, &to, kind, payload),
                Output::Drop(peer) => {
                    if let Some(peer) = self.machines.iter().position(|machine| machine.id == peer) {
                        self.hang_up(at, peer, 10 * MS);
                    }
                }
                Output::Connected(result) => {
                    hold!(result.is_ok(), "a member joins", "n{}: {result:?}", at + 1);
                }
                Output::Left => left = true,
                Output::Log(level, text) => self.say(at, format_args!("{level:?}: {text}")),
                Output::QuarantineLog => {
                    return Err(Violation { rule: "there is one branch", what: format!("n{}", at + 1) });
                }
                Output::Answer { answer, .. } => self.say(at, format_args!("answers a command: {answer:?}")),
                Output::Write(_) | Output::Causal { .. } => {}
            }
        }
        self.start_io(at)?;
        if left {
            self.say(at, format_args!("has left"));
            self.stop(at, false);
            self.start_later(at, 10 * MS, 2 * SECOND);
            return Ok(());
        }
        let clock = self.machines[at].clock;
        let local = clock.local(now);
        let Some(process) = &mut self.machines[at].process else { return Ok(()) };
        if let Some((why, text)) = process.node.server_must_end() {
            if why == ServerEnd::Diverged && self.weak || why == ServerEnd::NeedsState {
                return self.ends_itself(at, &text);
            }
            return Err(Violation {
                rule: "no member ends itself",
                what: format!("n{}: {why:?}: {text}", at + 1),
            });
        }
        let life = process.life;
        let due = clock.global(process.node.deadline().min(local + NAP)).max(now + 50);
        if due < process.timer_at || process.timer_at <= now {
            process.timer_at = due;
            self.queue.push(due, Event::Timer { at, life, due });
        }
        Ok(())
    }

    /// The log's thread, if it is idle, takes all jobs.
    fn start_io(&mut self, at: usize) -> Check {
        let Some(process) = &mut self.machines[at].process else { return Ok(()) };
        if process.busy || !process.node.has_jobs() {
            return Ok(());
        }
        process.busy = true;
        let life = process.life;
        let begun = process.node.begin_batch();
        let syncs = begun.map_err(|what| Violation { rule: "the log takes what the core gives", what })?;
        let speed = self.profile.log_disk;
        let takes = if syncs { speed.sync + self.rng.below(speed.jitter + 1) } else { 50 };
        self.queue.push(self.now + takes, Event::Synced { at, life });
        Ok(())
    }

    /// The log's thread is done with a batch.
    fn synced(&mut self, at: usize) -> Check {
        let (now, machine) = (self.now, &mut self.machines[at]);
        let Some(process) = &mut machine.process else { return Ok(()) };
        if machine.paused_until > now {
            let life = process.life;
            self.queue.push(machine.paused_until, Event::Synced { at, life });
            return Ok(());
        }
        process.busy = false;
        let answers = process.node.end_batch(false);
        let answers =
            answers.map_err(|what| Violation { rule: "the log takes what the core gives", what })?;
        process.inbox.extend(answers.into_iter().map(Input::Log));
        self.wake(at, 0);
        self.start_io(at)
    }

    /// The device's threads and tasks do something. The inner error is one of the device, which ends the process.
    fn device_step(&mut self, at: usize) -> Result<Result<(), String>, Violation> {
        let machine = &mut self.machines[at];
        if machine.paused_until > self.now {
            return Ok(Ok(()));
        }
        let life = machine.life();
        let Some(mut device) = machine.process.as_mut().and_then(|process| process.device.take()) else {
            return Ok(Ok(()));
        };
        device.set_times(&machine.clock, self.now);
        let stepped = self.device_steps(at, &mut device);
        for note in device.port.take_notes() {
            self.say(at, format_args!("device: {note}"));
        }
        let submits = device.port.has_submitted();
        if let Some(process) = self.machines[at].process.as_mut().filter(|process| process.life == life) {
            process.device = Some(device);
        }
        if submits {
            self.wake(at, 0);
        }
        stepped
    }

    fn device_steps(&mut self, at: usize, device: &mut Device) -> Result<Result<(), String>, Violation> {
        for _ in 0..self.rng.below(4) {
            device.environment.work(&mut self.rng);
        }
        let taken = self.take_deliveries(at, device)?;
        if taken.is_err() {
            return Ok(taken);
        }
        if self.rng.one_in(2) {
            device.replica.submit_step(&mut device.refused);
        }
        let written = self.write_back(at, device)?;
        if written.is_err() {
            return Ok(written);
        }
        self.poll_tasks(at, device)?;
        self.transfers_step(at, device)?;
        Ok(Ok(()))
    }

    fn take_deliveries(&mut self, at: usize, device: &mut Device) -> Result<Result<(), String>, Violation> {
        let fails =
            |rule: &'static str, what: String| Err(Violation { rule, what: format!("n{}: {what}", at + 1) });
        let name = self.machines[at].hello.name.clone();
        let replica = device.replica.clone();
        for _ in 0..self.rng.below(self.profile.deliveries) {
            let Some(delivery) = device.deliveries.pop_front() else { break };
            match delivery {
                Delivery::Ordered(ordered) => {
                    let (seqno, origin) = (ordered.seqno, ordered.origin);
                    let payload = ordered.writeset.data.clone();
                    if !ordered.pass {
                        self.takes(&name, seqno, Item::Nothing)?;
                        match origin == self.machines[at].id {
                            true => replica.refused(seqno),
                            false => replica.pass(seqno),
                        }
                        continue;
                    }
                    self.takes(&name, seqno, Item::Entry(origin, payload.clone()))?;
                    match replica.try_deliver(seqno, &origin, &payload) {
                        Ok(true) => {}
                        Ok(false) => {
                            device.deliveries.push_front(Delivery::Ordered(ordered));
                            break;
                        }
                        Err(error) => return Ok(Err(error.to_string())),
                    }
                }
                Delivery::Connected(info) | Delivery::View { info, in_log: false } => {
                    if info.status == ViewStatus::Primary
                        && let Err(text) = connected(device, info.gtid.uuid)
                    {
                        return fails("a copy is of its log", text);
                    }
                }
                Delivery::View { info, in_log: true } => {
                    if let Err(text) = connected(device, info.gtid.uuid) {
                        return fails("a copy is of its log", text);
                    }
                    self.takes(&name, info.gtid.seqno, Item::Nothing)?;
                    replica.pass(info.gtid.seqno);
                }
                Delivery::Synced => replica.caught_up(),
                Delivery::Closed => {}
                // Where hardly any log is kept, a leader whose own log began by a snapshot may lack what another copy needs.
                Delivery::StateNeeded { bypass: false } if self.keeps_little_log() || device.needs_state => {
                    self.tell(format_args!("{name} needs the state of another copy"));
                    self.state_needed(at, device);
                }
                Delivery::StateFailed(text) if self.keeps_little_log() => return Ok(Err(text)),
                Delivery::Donate { id, request, .. } => self.donate(at, device, id, &request),
                Delivery::Failed(text) if self.weak => {
                    hold!(
                        text.contains("goes on by the log"),
                        "a copy continues from its log",
                        "{name}: {text}"
                    );
                    return Ok(Err(text));
                }
                other => return fails("a copy continues from its log", format!("{other:?}")),
            }
        }
        Ok(Ok(()))
    }

    /// A copy takes an entry.
    fn takes(&mut self, name: &str, seqno: i64, item: Item) -> Check {
        if let Item::Entry(_, payload) = &item {
            self.acknowledged.commits(payload);
        }
        let change = self.reference.take(name, seqno, item)?;
        let image = self.reference.image().clone();
        match change {
            Change::None => {}
            Change::Promoted(epoch) => {
                self.tell(format_args!("epoch {epoch} begins by a promotion at {seqno}"));
                self.model.ends(epoch - 1, &image, false)?;
                self.model.begins(epoch, &image)?;
            }
            Change::Attached(epoch) => {
                self.tell(format_args!("a client attaches in epoch {epoch} at {seqno}"));
                self.model.begins(epoch, &image)?;
            }
            Change::Detached(epoch) => {
                self.tell(format_args!("epoch {epoch} ends in order at {seqno}"));
                self.model.ends(epoch, &image, true)?;
            }
        }
        Ok(())
    }

    fn write_back(&mut self, at: usize, device: &mut Device) -> Result<Result<(), String>, Violation> {
        let Some((batch, written)) = device.batch.take() else {
            device.batch = device.replica.begin_write_back_if_due().map(|batch| (batch, false));
            return Ok(Ok(()));
        };
        // A disk takes its time.
        if !self.rng.one_in(self.profile.write_back_steps) {
            device.batch = Some((batch, written));
            return Ok(Ok(()));
        }
        if !written {
            let attempted = &mut self.machines[at].attempted;
            *attempted = (*attempted).max(batch.position().gtid.seqno);
            let written = match device.replica.try_write_back(&batch) {
                Ok(written) => written,
                Err(text) => return Ok(Err(text)),
            };
            device.batch = Some((batch, written));
            return Ok(Ok(()));
        }
        let seqno = batch.position().gtid.seqno;
        let was_whole = device.replica.is_whole();
        device.replica.end_write_back(batch);
        let machine = &mut self.machines[at];
        machine.saved = seqno;
        let image = machine.disk.image();
        machine.is_whole |= device.replica.is_whole();
        match seqno >= machine.attempted {
            true => self.reference.check_copy(&machine.hello.name, seqno, &image)?,
            false if device.replica.is_whole() && !was_whole => {
                let what = format!("{} at {seqno} of {}", machine.hello.name, machine.attempted);
                return Err(Violation { rule: "a copy is whole once it has all that its donor had", what });
            }
            false => self.reference.check_begun(&machine.hello.name, seqno, &image)?,
        }
        let oldest =
            self.machines.iter().filter(|machine| machine.keeps_data()).map(|machine| machine.saved).min();
        self.reference.forget(oldest.unwrap_or(-1));
        self.wake(at, 0);
        Ok(Ok(()))
    }
}

/// How often starts give up their copies in this seed.
fn give_up(seed: u64) -> (u64, Rng) {
    let mut rng = Rng::new(seed ^ 0x7265_7379_6e63);
    (*rng.pick(&[0, 0, 2, 4]), rng)
}

fn connected(device: &Device, history: Uuid) -> Result<(), String> {
    let log = device.port.published().log;
    // Older views of the log may be of the branch before.
    if history != log.0 {
        return Ok(());
    }
    device.replica.connected(log.0, log.1, |position| position)
}

fn machine(at: usize, arbitrator: bool, profile: &Profile, rng: &mut Rng) -> Machine {
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
        incoming: format!("10.0.0.{byte}:10809"),
        zone: 0,
        wants_vote: true,
        arbitrator,
        donates: !arbitrator,
        device: !arbitrator,
    };
    Machine {
        id: hello.id,
        hello,
        log_disk: MemDisk::new(),
        disk: SimDisk::new(Rng::new(rng.bits())),
        disk_fails: false,
        clock: MachineClock {
            shown: rng.between(10_000 * SECOND, 1 << 40),
            rate: 1_000_000 + rng.below(2 * profile.drift + 1) - profile.drift,
            suspended: 0,
            wall: rng.below(2 * SECOND),
        },
        lives: 0,
        starting: true,
        paused_until: 0,
        saved: -1,
        is_whole: true,
        attempted: -1,
        process: None,
    }
}
