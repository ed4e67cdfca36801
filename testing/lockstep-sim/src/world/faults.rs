//! Faults, and their ends.

use super::{Event, World};
use crate::history::Check;
use crate::network::Quality;
use crate::node::Fate;
use crate::profile::{DiskSpeed, FAULTS, Fault, MS, SECOND};
use lockstep_core::Micros;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_log::Fault as DiskFault;
use lockstep_node::ApplyHold;
use std::collections::BTreeSet;

/// Faults of the server around the member, and its operator's settings.
#[derive(Clone, Copy, Debug)]
enum Around {
    /// Another commit policy.
    Policy,
    /// The server's database finishes nothing for a while.
    DatabaseHangs,
    /// `apply.paused`.
    PauseApply,
    /// No sync of the disk ends for a while, and none fails.
    DiskHangs,
}

const AROUND: [Around; 4] = [Around::Policy, Around::DatabaseHangs, Around::PauseApply, Around::DiskHangs];

/// The end of a fault.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Links(Vec<(usize, usize)>),
    Quality(Vec<(usize, usize)>),
    Disk(usize),
    Room(usize),
    Database(usize),
    DiskHang(usize),
    Paused(usize),
    /// A policy that nobody can meet is replaced.
    Policy(usize),
    Clock(usize),
    /// The next of a row of leaders dies; so many are left.
    Leader(u32),
    /// A leader that was just elected, in this process, dies or is cut off.
    Elected(usize, u64),
    /// Logs are kept as long as before.
    Trim(usize, u64),
    /// The time is over in which a member of this id must find out that its disk went back.
    Rewound(usize, lockstep_core::MemberId),
}

/// How often each of [`AROUND`] happens, relative to the other faults.
#[derive(Clone, Debug)]
pub(crate) struct AroundWeights([u32; AROUND.len()]);

impl AroundWeights {
    /// `planted`: a fault is planted; the table of first seeds is of runs without hung disks.
    pub(crate) fn draw(rng: &mut crate::rng::Rng, policies: bool, planted: bool) -> AroundWeights {
        let mut weight = |most: u64| if rng.one_in(2) { 0 } else { rng.between(1, most) as u32 };
        let (policy, hangs, paused) = (weight(4), weight(6), weight(6));
        let disks = if planted { 0 } else { weight(6) };
        AroundWeights([if policies { 14 } else { policy }, hangs, paused, disks])
    }

    /// Whether commit policies change.
    pub(crate) fn policies(&self) -> bool {
        self.0[Around::Policy as usize] > 0
    }
}

impl World {
    pub(crate) fn until(&mut self, low: Micros, high: Micros, end: End) {
        let at = self.now + self.rng.between(low, high.max(low));
        self.queue.push(at, Event::End { round: self.round, end });
    }

    pub(crate) fn running(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|at| self.nodes[*at].process.is_some()).collect()
    }

    /// Machines that take part.
    pub(crate) fn used(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|at| self.nodes[*at].fate == Fate::In).collect()
    }

    pub(crate) fn any_running(&mut self) -> Option<usize> {
        let running = self.running();
        if running.is_empty() { None } else { Some(*self.rng.pick(&running)) }
    }

    /// The leader of the highest term.
    pub(crate) fn leader(&self) -> Option<usize> {
        let term = |at: &usize| self.nodes[*at].process.as_ref().map_or(0, |process| process.term);
        let leads = |at: &usize| self.nodes[*at].leads() && self.nodes[*at].paused_until <= self.now;
        (0..self.nodes.len()).filter(leads).max_by_key(term)
    }

    pub(crate) fn crash(&mut self, at: usize, restart: (Micros, Micros)) {
        let power = self.rng.one_in(2);
        self.stop(at, power);
        self.start_later(at, restart.0, restart.1);
    }

    pub(crate) fn fault(&mut self) -> Check {
        let again = self.rng.between(1, 2 * self.profile.fault_every).min(10 * SECOND);
        self.queue.push(self.now + again, Event::Fault { round: self.round });
        if self.is_quiet() {
            return Ok(());
        }
        let weights: Vec<u32> = self.profile.weights.iter().chain(&self.around.0).copied().collect();
        let Some(kind) = self.rng.weighted(&weights) else { return Ok(()) };
        self.counters.faults += 1;
        self.weather += 1;
        self.trace.mix(kind as u64);
        match FAULTS.get(kind) {
            Some(fault) => {
                self.tell(format_args!("fault: {fault:?}"));
                self.counters.by_kind[kind] += 1;
                return self.strike(*fault);
            }
            None => self.around(AROUND[kind - FAULTS.len()]),
        }
        Ok(())
    }

    fn around(&mut self, fault: Around) {
        self.tell(format_args!("fault: {fault:?}"));
        let Some(at) = self.any_running() else { return };
        match fault {
            Around::Policy => self.change_policy(at),
            Around::DatabaseHangs => {
                self.nodes[at].database_hangs = true;
                self.until(5 * MS, 1_500 * MS, End::Database(at));
            }
            Around::DiskHangs => {
                self.nodes[at].disk_hangs = true;
                self.say(at, format_args!("has a disk that hangs"));
                let longest = if self.rng.one_in(2) { 2 * SECOND } else { 30 * SECOND };
                self.until(50 * MS, longest, End::DiskHang(at));
            }
            Around::PauseApply => {
                self.pause_apply(at, true);
                self.until(50 * MS, 4 * SECOND, End::Paused(at));
            }
        }
    }

    fn strike(&mut self, fault: Fault) -> Check {
        let restart = self.profile.restart;
        match fault {
            Fault::Crash => {
                if let Some(at) = self.any_running() {
                    self.crash(at, restart);
                }
            }
            Fault::CrashLeader => {
                if let Some(at) = self.leader() {
                    self.crash(at, restart);
                }
            }
            Fault::CrashAll => self.running().into_iter().for_each(|at| self.crash(at, restart)),
            Fault::CrashInTurn => {
                let left = self.rng.between(2, 8) as u32;
                self.crash_next(left);
            }
            Fault::CrashElected => {
                self.short_terms = self.rng.between(3, 10) as u32;
                if let Some(at) = self.leader() {
                    self.elected(at);
                }
            }
            Fault::Pause => self.pause(),
            Fault::Split | Fault::OneWay | Fault::Isolate | Fault::Bridge | Fault::CutInZone => {
                self.cut_links(fault)
            }
            Fault::Degrade => self.degrade(),
            Fault::SlowDisk => {
                let Some(at) = self.any_running() else { return Ok(()) };
                let sync = self.rng.between(10 * MS, 1_500 * MS);
                self.nodes[at].speed = DiskSpeed { sync, jitter: sync };
                self.say(at, format_args!("has a slow disk: {} ms", sync / MS));
                self.until(50 * MS, 6 * SECOND, End::Disk(at));
            }
            Fault::FailingDisk => {
                let Some(at) = self.any_running() else { return Ok(()) };
                let (kind, n) = (self.rng.below(3), self.rng.between(1, 12));
                let node = &mut self.nodes[at];
                node.disk_fails = true;
                match kind {
                    0 => node.disk.fail_sync(n),
                    1 => node.disk.fail_op(n, DiskFault::Io),
                    _ => node.disk.fail_op(n, DiskFault::NoSpace),
                }
            }
            Fault::FullDisk => {
                let Some(at) = self.any_running() else { return Ok(()) };
                let room = self.rng.below(4 * self.profile.segment_bytes.min(64 << 10));
                let node = &mut self.nodes[at];
                (node.disk_fails, node.disk_full) = (true, true);
                node.disk.set_capacity(Some(node.disk.used() + room));
                self.say(at, format_args!("has {room} bytes left on its disk"));
                self.until(50 * MS, 9 * SECOND, End::Room(at));
            }
            Fault::Damage => return self.damage(),
            Fault::ClockStep => self.step_clock(),
            Fault::Membership => self.change_members(),
            Fault::MembershipBurst => {
                for _ in 0..self.rng.between(2, 5) {
                    self.change_members();
                }
            }
            Fault::Transfer => self.hand_over(),
            Fault::PeerNotice => {
                let (Some(at), Some(peer)) = (self.any_running(), self.any_running()) else { return Ok(()) };
                if at != peer {
                    self.say(at, format_args!("loses its connection to n{}", peer + 1));
                    self.hang_up(at, peer, SECOND);
                }
            }
            Fault::Trim => {
                let Some(at) = self.any_running() else { return Ok(()) };
                let kept = self.nodes[at].tuning.log_bytes;
                let bytes = self.rng.below(4 * self.profile.segment_bytes);
                self.keep_log(at, bytes);
                self.until(SECOND, 20 * SECOND, End::Trim(at, kept));
            }
            Fault::LoseDatabase => {
                let Some(at) = self.any_running() else { return Ok(()) };
                if self.has_better(at) {
                    self.crash(at, restart);
                    self.nodes[at].server = crate::server::Server::new();
                    self.say(at, format_args!("has lost its database"));
                }
            }
            Fault::Replace => return self.replace(),
            Fault::Rewind => return self.rewind(),
            Fault::DamageSeveral => return self.damage_several(),
        }
        Ok(())
    }

    /// The leader dies; soon after the next one was elected, it dies, too.
    fn crash_next(&mut self, left: u32) {
        if let Some(at) = self.leader().filter(|_| !self.is_quiet()) {
            let longest = self.rng.between(2, 6) * self.profile.election_timeout;
            self.crash(at, (MS, longest));
        }
        if left > 1 {
            self.until(MS, 3 * self.profile.election_timeout, End::Leader(left - 1));
        }
    }

    /// A member has been elected; perhaps not for long.
    pub(crate) fn elected(&mut self, at: usize) {
        if self.short_terms == 0 || !self.trouble {
            return;
        }
        self.short_terms -= 1;
        let trip = self.profile.quality.delay + self.profile.quality.jitter;
        let disk = self.profile.disk.sync + self.profile.disk.jitter;
        let life = self.nodes[at].life();
        self.until(0, 3 * (trip + disk), End::Elected(at, life));
    }

    /// The end of a short term.
    fn crash_elected(&mut self, at: usize) {
        let timeout = self.profile.election_timeout;
        if self.rng.one_in(3) {
            let others: Vec<usize> = (0..self.nodes.len()).filter(|other| *other != at).collect();
            let links = others.into_iter().flat_map(|other| [(at, other), (other, at)]).collect();
            self.cut_all(links, 4 * timeout);
        } else {
            let longest = self.rng.between(1, 4) * timeout;
            self.crash(at, (MS, longest));
        }
    }

    fn pause(&mut self) {
        let at = if self.rng.one_in(2) { self.leader() } else { self.any_running() };
        let Some(at) = at else { return };
        let longest = if self.rng.one_in(2) { SECOND } else { 8 * SECOND };
        let until = self.now + self.rng.between(20 * MS, longest);
        self.nodes[at].paused_until = self.nodes[at].paused_until.max(until);
        self.say(at, format_args!("stands still for {} ms", (until - self.now) / MS));
        // Events that were due earlier happen then.
        if let Some(process) = &mut self.nodes[at].process {
            process.woken = false;
        }
        self.wake(at, 0);
    }

    fn cut_all(&mut self, links: Vec<(usize, usize)>, longest: Micros) {
        self.tell(format_args!("cut: {links:?}"));
        links.iter().for_each(|(from, to)| self.cut(*from, *to));
        self.until(20 * MS, longest, End::Links(links));
    }

    fn cut_links(&mut self, fault: Fault) {
        let used = self.used();
        let one = match fault {
            Fault::Isolate => self.leader(),
            _ => Some(*self.rng.pick(&used)),
        };
        let Some(one) = one else { return };
        let kind = self.rng.below(4);
        let sides: Vec<u64> = (0..self.nodes.len()).map(|_| self.rng.below(2)).collect();
        let target = *self.rng.pick(&used);
        let zone = |at: usize| self.nodes[at].hello.zone;
        let mut links = Vec::new();
        for from in used.iter().copied() {
            for to in used.iter().copied() {
                let cut = match fault {
                    Fault::Split => sides[from] != sides[to],
                    Fault::Bridge => sides[from] != sides[to] && from != one && to != one,
                    // One direction, both, or only some of them.
                    Fault::CutInZone => {
                        let near = zone(from) == zone(to) && (kind < 3 || sides[from] != sides[to]);
                        near && (from == one || kind > 0 && to == one)
                    }
                    Fault::OneWay => match kind {
                        0 => from == one,
                        1 => to == one,
                        2 => from == one && to == target,
                        _ => sides[from] < sides[to],
                    },
                    _ => from == one || to == one,
                };
                if cut && from != to {
                    links.push((from, to));
                }
            }
        }
        self.cut_all(links, 9 * SECOND);
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

    /// A clock is set: the wall clock to anything, the monotonic one ahead, or to another speed for a while.
    fn step_clock(&mut self) {
        let Some(at) = self.any_running() else { return };
        let (ahead, speed) = (self.rng.between(MS, 10 * SECOND), self.rng.between(950_000, 1_050_000));
        let limit = *self.rng.pick(&[SECOND, 3_600 * SECOND, 1_000_000 * SECOND]);
        let wall = self.rng.below(2 * limit) as i64 - limit as i64;
        let (kind, now) = (self.rng.below(3), self.now);
        let clock = &mut self.nodes[at].clock;
        match kind {
            0 => clock.wall = wall,
            1 => clock.set(now, ahead, clock.rate),
            _ => clock.set(now, 0, speed),
        }
        self.say(at, format_args!("has its clock changed: {clock:?}", clock = self.nodes[at].clock));
        if kind == 2 {
            self.until(50 * MS, 9 * SECOND, End::Clock(at));
        }
        self.wake(at, 0);
    }

    fn pause_apply(&mut self, at: usize, paused: bool) {
        let node = &mut self.nodes[at];
        node.tuning.apply_hold = ApplyHold { paused, ..ApplyHold::default() };
        self.tune(at);
    }

    /// `log.size` is set: the log is trimmed above it.
    pub(crate) fn keep_log(&mut self, at: usize, bytes: u64) {
        self.nodes[at].tuning.log_bytes = bytes;
        self.tune(at);
    }

    /// The process takes over its options.
    fn tune(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let tuning = node.tuning.clone();
        if let Some(process) = &mut node.process {
            process.node.set_tuning(tuning);
        }
        self.wake(at, 0);
    }

    /// Requests a policy that can be met while all members are present; now and then one that nobody can meet, for a while.
    fn change_policy(&mut self, at: usize) {
        let others = self.used().len() as u64 - 1;
        let kinds = [
            PolicyKind::Async,
            PolicyKind::Semisync,
            PolicyKind::Semisync,
            PolicyKind::Quorum,
            PolicyKind::All,
        ];
        // With an arbitrator's vote, two databases can both be given up, each for what only the other leader had.
        let used = self.used();
        let with_data = used.iter().filter(|at| !self.nodes[**at].hello.arbitrator).count();
        let weak = with_data == used.len() || with_data > 2;
        let zones: BTreeSet<u8> = used.iter().map(|at| self.nodes[*at].hello.zone).collect();
        let kinds = if weak { &kinds[..] } else { &kinds[3..] };
        let mut policy = Policy {
            kind: *self.rng.pick(kinds),
            acks: self.rng.between(0, others.min(3)) as u8,
            zone_acks: self.rng.below(zones.len().max(1) as u64) as u8,
            on_receive: self.rng.one_in(4),
            timeout: *self.rng.pick(&[0, 0, 50 * MS, 500 * MS, 3_000 * MS]),
            max_at_risk: *self.rng.pick(&[1, 5, 100, 10_000]),
        };
        if self.rng.one_in(10) {
            (policy.acks, policy.zone_acks) = (others as u8 + 1, zones.len() as u8);
            self.until(50 * MS, 5 * SECOND, End::Policy(at));
        }
        self.request_policy(at, policy);
    }

    /// Whether no members could meet this policy, even if all of them were present.
    pub(crate) fn is_unmeetable(&self, policy: Policy) -> bool {
        let used = self.used();
        let zones: BTreeSet<u8> = used.iter().map(|at| self.nodes[*at].hello.zone).collect();
        let waits = policy.kind != PolicyKind::Async;
        let acks = policy.kind == PolicyKind::Semisync && usize::from(policy.acks) >= used.len();
        waits && (acks || usize::from(policy.zone_acks) >= zones.len().max(1))
    }

    pub(crate) fn request_policy(&mut self, at: usize, policy: Policy) {
        self.say(at, format_args!("requests {policy:?}"));
        if let Some(process) = &mut self.nodes[at].process {
            process.node.request_policy(policy);
        }
        self.wake(at, 0);
    }

    /// The end of a fault.
    pub(crate) fn end(&mut self, end: End) -> Check {
        self.tell(format_args!("over: {end:?}"));
        self.weather += 1;
        match end {
            End::Links(links) => links.iter().for_each(|(from, to)| self.net.mend(*from, *to)),
            End::Quality(links) => {
                for (from, to) in links {
                    let quality = self.quality_of(from, to);
                    self.net.set_quality(from, to, quality);
                }
            }
            End::Disk(at) => self.nodes[at].speed = self.profile.disk,
            End::Room(at) => {
                self.nodes[at].disk_full = false;
                self.nodes[at].disk.set_capacity(None);
            }
            End::Database(at) => self.nodes[at].database_hangs = false,
            End::DiskHang(at) => self.nodes[at].disk_hangs = false,
            End::Policy(at) => self.request_policy(at, Policy::default()),
            End::Paused(at) => self.pause_apply(at, false),
            End::Clock(at) => self.nodes[at].clock.set(self.now, 0, 1_000_000),
            End::Leader(left) => self.crash_next(left),
            End::Elected(at, life) => {
                if self.nodes[at].life() == life && !self.is_quiet() {
                    self.crash_elected(at);
                }
            }
            End::Trim(at, bytes) => self.keep_log(at, bytes),
            End::Rewound(at, id) => return self.has_found_out(at, id),
        }
        Ok(())
    }
}
