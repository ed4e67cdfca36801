//! When faults end: everything comes back, within a bound, and all logs are the same.

use crate::cluster::{Cluster, Event, MACHINES};
use crate::fallback::stays_away;
use crate::history::{Check, Violation, hold};
use crate::judge;
use crate::machine::{Input, Name, is_arbitrator, slot_of};
use crate::mirror::Mark;
use crate::profile::{MS, SECOND};
use lockstep_core::{Entry, Index, Micros};

/// So long may it take, after the last fault, until everybody has everything: a narrow link may carry a long log,
/// and a slow database may have to apply all of it, one after the other.
pub(crate) const HEALING: Micros = 240 * SECOND;

/// But somebody comes nearer to the end within this time.
const STANDSTILL: Micros = 8 * SECOND;

/// In so many election timeouts there is a leader that hears a majority, once all processes run. While an heir takes over
/// what a weak policy may have acknowledged, it takes as many round trips as that has messages; the log grows meanwhile.
const ELECTING: u64 = 12;

impl Cluster {
    /// Faults end.
    pub(crate) fn heal(&mut self) -> Check {
        self.tell(format_args!("everything heals"));
        self.trouble = false;
        self.round += 1;
        self.short_terms = 0;
        self.healed_at = self.now;
        self.healed_with = 0;
        self.all_run_since = Micros::MAX;
        self.led = false;
        self.reached = (self.now, 0);
        self.mend_network();
        for slot in 0..MACHINES {
            let machine = &mut self.machines[slot];
            machine.speed = self.profile.disk;
            machine.disk.clear_faults();
            machine.disk_fails = false;
            machine.clock.set(self.now, 0, 1_000_000);
            self.make_room(slot);
            let machine = &mut self.machines[slot];
            if let Some(process) = &mut machine.process {
                process.slow_sync = process.syncing;
            }
            if let Some(process) = &mut machine.process
                && process.paused_until > self.now
            {
                process.paused_until = self.now;
                let life = process.life;
                self.queue.push(self.now, Event::Resume { slot, life });
            }
            // Also those whose start was to come later.
            let after = self.rng.between(0, 500 * MS);
            self.machines[slot].starting = false;
            self.start_later(slot, after);
        }
        for slot in 0..MACHINES {
            if self.machines[slot].process.is_some() {
                self.notice(slot, true);
            }
        }
        self.queue.push(self.now + 100 * MS, Event::Calm);
        Ok(())
    }

    /// Has everything come back?
    pub(crate) fn calm(&mut self) -> Check {
        self.revive_members();
        let up = self.machines.iter().all(|m| !m.starting);
        // A write that began on a slow disk still takes long after the disk is fast again.
        let slow = |p: &crate::machine::Process| p.slow_sync.is_some() && p.slow_sync == p.syncing;
        let slow = self.machines.iter().filter_map(|m| m.process.as_ref()).any(slow);
        if !up {
            // A member whose database has lost entries ends and returns by state transfer; others may need it meanwhile.
            self.all_run_since = Micros::MAX;
        } else if !slow && self.all_run_since == Micros::MAX {
            self.all_run_since = self.now;
        }
        if !self.led && up {
            let since = self.now.saturating_sub(self.all_run_since);
            self.led = self.leader().is_some_and(|slot| self.hears_quorum(slot));
            if self.led {
                self.counters.longest_election = self.counters.longest_election.max(since);
            }
            let silent = since.min(self.now - self.tail_taken_at);
            // A member on a narrow line receives old messages of a former leader, and follows it until they end.
            let queues = self.profile.between_zones.is_some_and(|line| line.queues);
            let electing = if queues { 4 * ELECTING } else { ELECTING };
            hold!(
                self.led || silent < electing * self.profile.election_timeout,
                "a leader is found when faults end",
                "{} ms after all processes run, {} ms after a candidate has last taken over a tail",
                since / MS,
                (self.now - self.tail_taken_at) / MS
            );
        }
        if up && self.healed_with == 0 {
            // One proposal of every member shows that all of them can.
            self.healed_with = self.history.committed() + 1;
            let mut anybody = false;
            for slot in 0..MACHINES {
                let machine = &self.machines[slot];
                let member =
                    machine.process.as_ref().is_some_and(|p| p.membership.get(&machine.id).is_some());
                if member && !is_arbitrator(&machine.id) {
                    anybody |= self.history.state().membership.get(&machine.id).is_some();
                    self.propose(slot, 1)?;
                    self.input(slot, Input::Nothing)?;
                }
            }
            if !anybody {
                // There is an arbitrator only.
                self.healed_with -= 1;
            }
        }
        if up {
            self.mind_policy(true)?;
        }
        let missing = if up && self.healed_with > 0 { self.what_is_missing() } else { Some("starts".into()) };
        let Some(missing) = missing else {
            let took = self.now - self.healed_at;
            self.tell(format_args!("all is well after {} ms", took / MS));
            self.counters.heals += 1;
            self.counters.longest_heal = self.counters.longest_heal.max(took);
            self.all_alike()?;
            self.settle_accounts()?;
            self.counters.early = self.book.early;
            self.counters.lost = self.book.lost;
            if self.now < self.profile.length {
                if self.profile.trims {
                    self.control_entry(true)?;
                }
                let after = self.rng.between(MS, self.profile.fault_every);
                self.begin_trouble(after);
            } else {
                self.done = true;
            }
            return Ok(());
        };
        // Compared with the last look, not with the best position: a member that was removed and added again, or that
        // received an older state, restarts lower, and every step from there is progress.
        let reached = self.reached();
        if reached > self.reached.1 {
            self.reached.0 = self.now;
        }
        self.reached.1 = reached;
        // Messages repeated before the faults ended still have to pass a narrow line. One message may take long there.
        let queues = self.profile.between_zones.is_some_and(|line| line.queues);
        let message = self.profile.max_append_bytes as u64 * MS / self.profile.quality.bytes_per_ms.max(1);
        let standstill = if queues { 4 * STANDSTILL } else { STANDSTILL } + message;
        hold!(
            self.now < self.healed_at + HEALING && self.now < self.reached.0 + standstill,
            "progress returns when faults end",
            "{} s after the last fault, {} s after the last progress: {missing}",
            (self.now - self.healed_at) / SECOND,
            (self.now - self.reached.0) / SECOND
        );
        self.queue.push(self.now + 50 * MS, Event::Calm);
        Ok(())
    }

    /// A member that reads its own removal in its old log stops, even if it has been added again since: the supervisor
    /// restarts it.
    fn revive_members(&mut self) {
        let asked: Vec<usize> = match self.leader() {
            Some(leader) => vec![leader],
            // A candidate may need a voter that was removed, stopped late because of that, and was added again.
            None => (0..MACHINES).collect(),
        };
        let members = |slot: usize| self.machines[slot].process.as_ref().map(|p| p.membership.clone());
        let known: Vec<_> = asked.into_iter().filter_map(members).collect();
        for id in known.iter().flat_map(|membership| &membership.members).map(|m| m.id) {
            if self.machines[slot_of(&id)].id == id {
                self.start_later(slot_of(&id), MS);
            }
        }
    }

    /// How far all members are, together.
    fn reached(&self) -> u64 {
        let far = |p: &crate::machine::Process| p.order.persisted() + p.order.commit();
        let position = |m: &crate::machine::Machine| m.server.position.unwrap_or(0);
        self.machines.iter().filter_map(|m| m.process.as_ref().map(|p| far(p) + position(m))).sum()
    }

    fn hears_quorum(&self, slot: usize) -> bool {
        let machine = &self.machines[slot];
        machine.process.as_ref().is_some_and(|p| p.order.has_quorum(machine.clock.local(self.now)))
    }

    /// Why not all is well yet.
    fn what_is_missing(&self) -> Option<String> {
        let Some(leader) = self.leader() else { return Some("nobody leads".into()) };
        let Some(chief) = &self.machines[leader].process else { return Some("nobody leads".into()) };
        let last = chief.order.last_index();
        if chief.order.commit() < last || self.history.committed() < self.healed_with {
            return Some(format!(
                "{} leads and has committed {} of {last}",
                Name(leader),
                chief.order.commit()
            ));
        }
        if !self.hears_quorum(leader) {
            return Some(format!("{} leads and hears no majority", Name(leader)));
        }
        if stays_away(&chief.order) {
            return Some(format!("{} leads and has fallen back: {:?}", Name(leader), chief.order.policy()));
        }
        for id in chief.membership.members.iter().map(|m| m.id) {
            if self.is_gone(&id) {
                continue;
            }
            let slot = slot_of(&id);
            let machine = &self.machines[slot];
            let Some(p) = &machine.process else { return Some(format!("{} does not run", Name(slot))) };
            let order = &p.order;
            let well = order.leader() == Some(self.machines[leader].id)
                && order.last_index() == last
                && order.commit() == last
                && order.deliverable() == last
                && self.hears_quorum(slot)
                && order.outstanding() == (0, 0)
                && p.reads.is_empty()
                && machine.server.position == Some(last)
                && p.run.as_ref().is_some_and(|run| run.delivered == last);
            if !well {
                return Some(format!(
                    "{} leads up to {last}; {} follows {:?} in term {}, its log ends at {}, committed {}, on disk \
                     {}, database {:?}, own proposals {:?}, reads {:?}, sees a quorum: {}, policy_index {}, {:?}",
                    Name(leader),
                    Name(slot),
                    order.leader().map(|l| slot_of(&l)),
                    order.term(),
                    order.last_index(),
                    order.commit(),
                    order.persisted(),
                    machine.server.position,
                    order.outstanding(),
                    p.reads,
                    self.hears_quorum(slot),
                    order.policy_index(),
                    order.policy()
                ));
            }
        }
        None
    }

    /// All is well: then all logs, in memory and on disk, are one.
    fn all_alike(&mut self) -> Check {
        // Those who were removed and never heard of it may believe what they like.
        let membership = self.history.state().membership.clone();
        for id in membership.members.iter().map(|m| m.id) {
            if self.is_gone(&id) {
                continue;
            }
            let slot = slot_of(&id);
            let machine = &self.machines[slot];
            let Some(process) = &machine.process else { continue };
            self.history.log_holds(machine.id, &process.memory)?;
            hold!(
                process.order.tail_state() == process.order.committed_state()
                    && *process.order.committed_state() == *self.history.state(),
                "all members fold alike",
                "{}: {:?}, all: {:?}",
                Name(slot),
                process.order.tail_state(),
                self.history.state()
            );
            judge::same_rows(&Name(slot), &machine.server.rows, self.history.judge().rows())?;
            if self.now >= self.profile.length {
                self.disk_holds(slot)?;
            }
        }
        Ok(())
    }

    /// The files hold what the process believes.
    fn disk_holds(&self, slot: usize) -> Check {
        let Some(process) = &self.machines[slot].process else { return Ok(()) };
        let wrong = |index: Index, what: String| Violation {
            rule: "the log gives back what it took",
            what: format!("{} index {index}: {what}", Name(slot)),
        };
        let mut index = process.log.first_index();
        while index <= process.memory.last() {
            let records = process.log.read(index, 1 << 20).map_err(|e| wrong(index, e.to_string()))?;
            if records.is_empty() {
                return Err(wrong(index, "nothing there".into()));
            }
            for record in records {
                let entry = Entry::decode_body(record.index, record.term, record.body)
                    .map_err(|e| wrong(index, e.to_string()))?;
                if entry.index != index || process.memory.get(index) != Some(Mark::of(&entry)) {
                    return Err(wrong(index, format!("{entry:?}")));
                }
                index += 1;
            }
        }
        Ok(())
    }
}
