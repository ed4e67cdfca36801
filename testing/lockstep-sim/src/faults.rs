//! Injected faults, and deliberate operations on the group.

use crate::cluster::{Cluster, Event, MACHINES};
use crate::history::Check;
use crate::machine::{Fate, Input};
use crate::network::Quality;
use crate::policy::any_policy;
use crate::profile::{DiskSpeed, FAULTS, Fault, MS, SECOND, zone};
use lockstep_core::policy::Policy;
use lockstep_core::{EntryKind, Micros, codec};
use lockstep_log::Fault as DiskFault;

/// The end of a fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Undo {
    /// These links are whole again.
    Links(Vec<(usize, usize)>),
    /// These links are as good as they get.
    Quality(Vec<(usize, usize)>),
    /// This disk is as fast as it gets.
    Disk(usize),
    /// This disk has room again.
    Room(usize),
    /// This clock runs as it should.
    Clock(usize),
}

impl Cluster {
    fn running(&self) -> Vec<usize> {
        (0..MACHINES).filter(|slot| self.machines[*slot].process.is_some()).collect()
    }

    pub(crate) fn any_running(&mut self) -> Option<usize> {
        let running = self.running();
        if running.is_empty() { None } else { Some(*self.rng.pick(&running)) }
    }

    /// One fault, and the time of the next.
    pub(crate) fn fault(&mut self) -> Check {
        let again = self.rng.between(1, 2 * self.profile.fault_every).min(10 * SECOND);
        let round = self.round;
        self.queue.push(self.now + again, Event::Fault { round });
        let Some(at) = self.rng.weighted(&self.profile.weights) else { return Ok(()) };
        let fault = FAULTS[at];
        self.tell(format_args!("fault: {fault:?}"));
        self.trace.mix(at as u64);
        self.counters.faults += 1;
        self.counters.by_kind[at] += 1;
        match fault {
            Fault::Crash => {
                if let Some(slot) = self.any_running() {
                    self.crash(slot, self.profile.restart);
                }
            }
            Fault::CrashLeader => {
                if let Some(slot) = self.leader() {
                    self.crash(slot, self.profile.restart);
                }
            }
            Fault::CrashAll => {
                for slot in self.running() {
                    self.crash(slot, self.profile.restart);
                }
            }
            Fault::CrashInTurn => {
                let left = self.rng.between(2, 8) as u32;
                self.crash_next(left);
            }
            Fault::CrashElected => {
                self.short_terms = self.rng.between(3, 10) as u32;
                if let Some(slot) = self.leader() {
                    self.elected(slot);
                }
            }
            Fault::Pause => self.pause(),
            Fault::Split | Fault::OneWay | Fault::Isolate | Fault::Bridge | Fault::CutInZone => {
                self.cut_links(fault)
            }
            Fault::Degrade => self.degrade(),
            Fault::SlowDisk => {
                if let Some(slot) = self.any_running() {
                    let sync = self.rng.between(10 * MS, 1_500 * MS);
                    self.machines[slot].speed = DiskSpeed { sync, jitter: sync };
                    self.undo_later(Undo::Disk(slot), 6 * SECOND);
                }
            }
            Fault::FailingDisk => self.fail_disk(),
            Fault::FullDisk => self.fill_disk(),
            Fault::Damage => self.damage(),
            Fault::ClockStep => return self.step_clock(),
            Fault::Membership => self.want_something_else(),
            Fault::MembershipBurst => {
                self.operator.impatient_until = self.now + self.rng.between(20 * MS, 3 * SECOND);
                self.queue.push(self.now, Event::Operate);
            }
            Fault::Transfer => {
                if let Some(slot) = self.leader() {
                    self.hand_over(slot);
                    return self.round(slot);
                }
            }
            Fault::PeerNotice => {
                let (Some(slot), Some(peer)) = (self.any_running(), self.any_running()) else {
                    return Ok(());
                };
                if slot != peer {
                    let id = self.machines[peer].id;
                    self.input(slot, Input::PeerDown(id))?;
                    let life = self.life(slot);
                    let at = self.now + self.rng.between(0, SECOND);
                    self.queue.push(at, Event::Peer { slot, life, peer, up: true });
                }
            }
            Fault::Trim => return self.control_entry(false),
            Fault::LoseDatabase => self.lose_database(),
            Fault::Replace => self.replace(),
        }
        Ok(())
    }

    fn crash(&mut self, slot: usize, restart: (Micros, Micros)) {
        let power = self.rng.one_in(2);
        self.stop(slot, power);
        let after = self.rng.between(restart.0, restart.1);
        self.start_later(slot, after);
    }

    /// The leader dies; soon after the next one was elected, it too.
    pub(crate) fn crash_next(&mut self, left: u32) {
        if let Some(slot) = self.leader() {
            let timeout = self.profile.election_timeout;
            let quick = (MS, self.rng.between(2, 6) * timeout);
            self.crash(slot, quick);
        }
        if left > 1 {
            let at = self.now + self.rng.between(MS, 3 * self.profile.election_timeout);
            let round = self.round;
            self.queue.push(at, Event::CrashNext { round, left: left - 1 });
        }
    }

    /// A member has been elected; perhaps not for long.
    pub(crate) fn elected(&mut self, slot: usize) {
        if self.short_terms == 0 || !self.trouble {
            return;
        }
        self.short_terms -= 1;
        let trip = self.profile.quality.delay + self.profile.quality.jitter;
        let disk = self.profile.disk.sync + self.profile.disk.jitter;
        let at = self.now + self.rng.below(3 * (trip + disk));
        let (round, life) = (self.round, self.life(slot));
        self.queue.push(at, Event::CrashElected { round, slot, life });
    }

    /// The end of a short reign.
    pub(crate) fn crash_elected(&mut self, slot: usize) {
        let timeout = self.profile.election_timeout;
        if self.rng.one_in(3) {
            self.cut_off(slot, 4 * timeout);
        } else {
            let longest = self.rng.between(1, 4) * timeout;
            self.crash(slot, (MS, longest));
        }
    }

    /// Nobody hears it, and it hears nobody.
    fn cut_off(&mut self, slot: usize, longest: Micros) {
        let others = (0..MACHINES).filter(|other| *other != slot);
        let links: Vec<_> = others.flat_map(|other| [(slot, other), (other, slot)]).collect();
        self.tell(format_args!("n{slot} is cut off"));
        for (from, to) in &links {
            self.net.cut(*from, *to);
        }
        self.undo_later(Undo::Links(links), longest);
    }

    fn pause(&mut self) {
        let slot = if self.rng.one_in(2) { self.leader() } else { self.any_running() };
        let Some(slot) = slot else { return };
        let longest = if self.rng.one_in(2) { SECOND } else { 8 * SECOND };
        let until = self.now + self.rng.between(20 * MS, longest);
        let Some(process) = &mut self.machines[slot].process else { return };
        process.paused_until = process.paused_until.max(until);
        let (life, at) = (process.life, process.paused_until);
        self.queue.push(at, Event::Resume { slot, life });
        self.say(slot, format_args!("stops for {} ms", (until - self.now) / MS));
    }

    fn undo_later(&mut self, undo: Undo, longest: Micros) {
        let round = self.round;
        let at = self.now + self.rng.between(50 * MS, longest);
        self.queue.push(at, Event::Undo { round, undo });
    }

    /// The end of a fault.
    pub(crate) fn undo(&mut self, undo: Undo) {
        self.tell(format_args!("over: {undo:?}"));
        match undo {
            Undo::Links(links) => {
                for (from, to) in links {
                    self.net.mend(from, to);
                    if self.net.passes(from, to) && self.net.passes(to, from) {
                        self.peer_news(from, to, true);
                    }
                }
            }
            Undo::Quality(links) => {
                for (from, to) in links {
                    self.net.set_quality(from, to, self.profile.quality_of(from, to));
                }
            }
            Undo::Disk(slot) => self.machines[slot].speed = self.profile.disk,
            Undo::Room(slot) => self.make_room(slot),
            Undo::Clock(slot) => self.machines[slot].clock.set(self.now, 0, 1_000_000),
        }
    }

    fn peer_news(&mut self, slot: usize, peer: usize, up: bool) {
        let life = self.life(slot);
        if life != 0 {
            let longest = if up { 200 * MS } else { 2 * SECOND };
            let at = self.now + self.rng.between(0, longest);
            self.queue.push(at, Event::Peer { slot, life, peer, up });
        }
    }

    fn cut_links(&mut self, fault: Fault) {
        let used: Vec<usize> = (0..MACHINES).filter(|slot| self.machines[*slot].fate == Fate::Used).collect();
        let one = match fault {
            Fault::Isolate => self.leader(),
            _ => Some(*self.rng.pick(&used)),
        };
        let Some(one) = one else { return };
        let kind = self.rng.below(4);
        let sides: Vec<u64> = (0..MACHINES).map(|_| self.rng.below(2)).collect();
        let target = *self.rng.pick(&used);
        let mut links = Vec::new();
        for from in &used {
            for to in &used {
                let (from, to) = (*from, *to);
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
        self.tell(format_args!("cut: {links:?}"));
        for (from, to) in links.clone() {
            self.net.cut(from, to);
            if self.rng.one_in(2) {
                self.peer_news(to, from, false);
            }
        }
        self.undo_later(Undo::Links(links), 9 * SECOND);
    }

    fn degrade(&mut self) {
        let all = self.rng.one_in(4);
        let one = self.rng.below(MACHINES as u64) as usize;
        let quality = Quality {
            // Now and then what arrives is from another age.
            delay: if self.rng.one_in(8) {
                self.rng.between(SECOND, 5 * SECOND)
            } else {
                self.rng.between(100, 200_000)
            },
            jitter: self.rng.between(100, 300_000),
            loss: *self.rng.pick(&[0, 10_000, 100_000, 400_000]),
            duplicate: *self.rng.pick(&[0, 10_000, 200_000]),
            reorder: *self.rng.pick(&[0, 10_000, 300_000]),
            bytes_per_ms: self.rng.between(20, 20_000),
            queues: false,
        };
        let mut links = Vec::new();
        for from in 0..MACHINES {
            for to in 0..MACHINES {
                if all || from == one || to == one && self.rng.one_in(2) {
                    self.net.set_quality(from, to, quality);
                    links.push((from, to));
                }
            }
        }
        self.undo_later(Undo::Quality(links), 9 * SECOND);
    }

    fn fail_disk(&mut self) {
        let Some(slot) = self.any_running() else { return };
        let (kind, n) = (self.rng.below(3), self.rng.between(1, 12));
        let machine = &mut self.machines[slot];
        machine.disk_fails = true;
        match kind {
            0 => machine.disk.fail_sync(n),
            1 => machine.disk.fail_op(n, DiskFault::Io),
            _ => machine.disk.fail_op(n, DiskFault::NoSpace),
        }
    }

    /// There is hardly room for more, for a while.
    fn fill_disk(&mut self) {
        let Some(slot) = self.any_running() else { return };
        let room = self.rng.below(4 * self.profile.segment_bytes.min(64 << 10));
        let machine = &mut self.machines[slot];
        machine.disk_fails = true;
        machine.disk_full = true;
        machine.disk.set_capacity(Some(machine.disk.used() + room));
        self.say(slot, format_args!("has {room} bytes left on its disk"));
        self.undo_later(Undo::Room(slot), 9 * SECOND);
    }

    pub(crate) fn make_room(&mut self, slot: usize) {
        let machine = &mut self.machines[slot];
        machine.disk_full = false;
        machine.disk.set_capacity(None);
    }

    /// A clock is set: the wall clock to anything, the monotonic one ahead, or to another speed for a while.
    fn step_clock(&mut self) -> Check {
        let Some(slot) = self.any_running() else { return Ok(()) };
        let (ahead, speed) = (self.rng.between(MS, 10 * SECOND), self.rng.between(950_000, 1_050_000));
        let limit = *self.rng.pick(&[SECOND, 3_600 * SECOND, 1_000_000 * SECOND]);
        let wall = self.rng.below(2 * limit) as i64 - limit as i64;
        let kind = self.rng.below(3);
        let now = self.now;
        let clock = &mut self.machines[slot].clock;
        match kind {
            0 => clock.wall = wall,
            1 => clock.set(now, ahead, clock.rate),
            _ => clock.set(now, 0, speed),
        }
        match kind {
            0 => self.say(slot, format_args!("has its wall clock set {} ms from the truth", wall / 1000)),
            1 => self.say(slot, format_args!("has a clock that jumps {} ms ahead", ahead / MS)),
            _ => self.say(slot, format_args!("has a clock that runs at {speed} ppm")),
        }
        if kind == 2 {
            self.undo_later(Undo::Clock(slot), 9 * SECOND);
        }
        self.round(slot)
    }

    /// Asks a leader to hand over to another voter.
    pub(crate) fn hand_over(&mut self, slot: usize) {
        let machine = &mut self.machines[slot];
        let (id, local) = (machine.id, machine.clock.local(self.now));
        let Some(process) = &mut machine.process else { return };
        let others: Vec<_> = process.membership.voters().filter(|other| *other != id).collect();
        if others.is_empty() {
            return;
        }
        let to = *self.rng.pick(&others);
        let answer = process.order.transfer_leadership(local, to);
        self.say(slot, format_args!("is asked to hand over to n{}: {answer:?}", to.0[15]));
    }

    /// The leader writes an entry of its own: how far may be forgotten, mostly.
    pub(crate) fn control_entry(&mut self, trim: bool) -> Check {
        let Some(slot) = self.leader() else { return Ok(()) };
        let (kind, payload) = match if trim { 2 } else { self.rng.below(8) } {
            n if self.profile.policies && n > 3 => self.policy_entry(slot),
            0 => {
                let Some(process) = &self.machines[slot].process else { return Ok(()) };
                let number = process.order.tail_state().view.number + 1;
                let view = self.view_of(number, process.membership.members.iter());
                let mut w = codec::Writer::new();
                view.encode(&mut w);
                (EntryKind::View, w.into_bytes())
            }
            1 => self.policy_entry(slot),
            _ => {
                // Either the seqno finished by every running server, or the one that every database certainly has, those of
                // absent members included.
                let all = self.rng.one_in(2);
                let least = self.machines.iter().filter(|m| m.fate == Fate::Used).filter_map(|m| {
                    if all {
                        m.server.position.map(|_| m.server.safe)
                    } else {
                        m.process.as_ref().and(m.server.position)
                    }
                });
                let low = least.min().and_then(|at| self.history.seqno_at(at)).unwrap_or(0);
                let window = self.profile.window;
                let Some(process) = &self.machines[slot].process else { return Ok(()) };
                let mark = process
                    .run
                    .as_ref()
                    .and_then(|run| run.next_trim(low, window, process.order.tail_state()));
                match mark {
                    Some(mark) => (EntryKind::Trim, mark.to_payload()),
                    None => return Ok(()),
                }
            }
        };
        let local = self.machines[slot].clock.local(self.now);
        if let Some(process) = &mut self.machines[slot].process {
            let answer = process.order.append_control(local, kind, payload);
            self.say(slot, format_args!("is asked for a {kind:?} entry: {answer:?}"));
        }
        self.round(slot)?;
        for slot in self.running() {
            if self.rng.one_in(2) {
                self.trim(slot)?;
            }
        }
        Ok(())
    }

    fn policy_entry(&mut self, slot: usize) -> (EntryKind, bytes::Bytes) {
        let members = self.machines[slot].process.as_ref().map_or(1, |p| p.membership.members.len());
        let policy = match self.profile.policies {
            true => any_policy(&mut self.rng, members.saturating_sub(1) as u64),
            false => Policy::default(),
        };
        self.say(slot, format_args!("wants {policy:?}"));
        (EntryKind::Policy, policy.to_payload())
    }

    /// Lets go of the segments that neither the own database nor certification needs.
    fn trim(&mut self, slot: usize) -> Check {
        let machine = &mut self.machines[slot];
        let Some(process) = &mut machine.process else { return Ok(()) };
        let limit = process.order.committed_state().trim_previous;
        let safe = machine.server.safe.min(process.order.deliverable());
        let base = process.order.segment_bases().filter(|s| s.seqno <= limit && s.index <= safe).last();
        let Some(first) = base.map(|state| state.index + 1) else { return Ok(()) };
        if machine.server.position.is_none() || first <= process.memory.base + 1 {
            return Ok(());
        }
        machine.trimming = machine.trimming.max(first);
        if let Err(error) = process.log.trim_to(first) {
            return self.log_failed(slot, &error);
        }
        let first = process.log.first_index();
        process.order.log_trimmed(first);
        process.memory.trim_to(first);
        process.marks.retain(|(index, _)| *index >= first);
        machine.durable.trim_to(first);
        self.say(slot, format_args!("trims its log to begin with {first}"));
        Ok(())
    }

    /// Whether somebody else's database is at least as far.
    pub(crate) fn has_better(&self, slot: usize) -> bool {
        let mine = self.machines[slot].server.position;
        self.machines.iter().enumerate().any(|(other, m)| {
            other != slot
                && m.fate == Fate::Used
                && m.server.position >= mine
                && m.server.position >= Some(m.durable.base)
        })
    }

    fn lose_database(&mut self) {
        let Some(slot) = self.any_running() else { return };
        if self.machines[slot].server.position.is_some() && self.has_better(slot) {
            self.crash(slot, self.profile.restart);
            self.machines[slot].server = Default::default();
            self.say(slot, format_args!("has lost its database"));
        }
    }
}
