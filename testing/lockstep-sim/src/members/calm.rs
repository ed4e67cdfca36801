//! The end of all faults: every member becomes well within a bound, and then all databases are equal.

use super::{Event, World};
use crate::history::{Check, Violation, hold};
use crate::profile::{MS, SECOND};
use lockstep_core::{Entry, Micros, Seqno};
use lockstep_log::{MemDisk, Replay, read_rescue, rescue_number};
use lockstep_node::LocalState;
use std::collections::BTreeSet;

/// After the faults end, all members must be well within this time.
const HEALING: Micros = 90 * SECOND;

impl World {
    /// All faults end.
    pub(super) fn heal(&mut self) {
        self.tell(format_args!("everything heals"));
        self.round += 1;
        self.trouble = false;
        (self.healed_at, self.answers_at_heal) = (self.now, self.answers);
        self.mend_links();
        for at in 0..self.nodes.len() {
            let now = self.now;
            let node = &mut self.nodes[at];
            node.speed = self.profile.disk;
            node.disk.clear_faults();
            node.disk.set_capacity(None);
            node.disk_fails = false;
            node.database_hangs = false;
            node.clock.set(now, 0, 1_000_000);
            node.paused_until = 0;
            if let Some(process) = &mut node.process {
                process.woken = false;
            }
            if node.tuning.apply_hold.paused {
                self.end(super::End::Paused(at));
            }
            self.wake(at, 0);
            self.start_later(at, 0, 500 * MS);
        }
        self.queue.push(self.now + 100 * MS, Event::Calm);
    }

    /// Why not all is well yet.
    fn missing(&self) -> Option<String> {
        let leader = self.nodes.iter().filter_map(|node| node.process.as_ref()).find(|process| process.leads);
        let Some(leader) = leader else { return Some("nobody leads".into()) };
        let last = leader.node.raft().last_index();
        for node in &self.nodes {
            let name = &node.hello.name;
            let Some(process) = &node.process else { return Some(format!("{name} does not run")) };
            let state = process.node.local_state();
            let well = state == LocalState::Synced
                && (node.hello.arbitrator
                    || node.server.finished == process.node.raft().committed_state().seqno)
                && node.server.pending.is_empty()
                && process.node.raft().commit() == last
                && process.writes.is_empty();
            if !well {
                return Some(format!(
                    "{name} is {state:?}: committed {} of {last}, {} to apply after {}, {} writes under way, policy {:?}",
                    process.node.raft().commit(),
                    node.server.pending.len(),
                    node.server.finished,
                    process.writes.len(),
                    process.node.raft().policy()
                ));
            }
        }
        (self.round > 0 && self.answers == self.answers_at_heal).then(|| "nobody has written".into())
    }

    /// Whether each member with data waits for those of another.
    fn all_wait_for_data(&self) -> bool {
        let mut with_data = self.nodes.iter().filter(|node| !node.hello.arbitrator);
        with_data.all(|node| node.process.is_some() && node.server.wants_state)
    }

    /// The seqnos in all rescue files.
    fn rescued(&self) -> Result<BTreeSet<Seqno>, Violation> {
        let mut seqnos = BTreeSet::new();
        for node in &self.nodes {
            rescued_seqnos(&node.disk, &mut seqnos)?;
        }
        Ok(seqnos)
    }

    pub(super) fn calm(&mut self) -> Check {
        let missing = self.missing();
        if missing.is_some() && self.all_wait_for_data() && !self.rescued()?.is_empty() {
            self.tell(format_args!(
                "each database has diverged under a weak policy: the operator must choose one"
            ));
            self.counters.no_donor += 1;
            self.done = true;
            return Ok(());
        }
        if let Some(missing) = missing {
            hold!(
                self.now < self.healed_at + HEALING,
                "progress returns when faults end",
                "{} s after the last fault: {missing}",
                (self.now - self.healed_at) / SECOND
            );
            let leader = self.nodes.iter().position(|node| node.process.as_ref().is_some_and(|p| p.leads));
            let leader = leader.filter(|at| !self.nodes[*at].hello.arbitrator);
            if let Some(leader) = leader
                && self.round > 0
                && self.answers == self.answers_at_heal
                && self.nodes[leader].process.as_ref().is_some_and(|p| p.writes.is_empty())
            {
                self.write(leader);
            }
            self.queue.push(self.now + 50 * MS, Event::Calm);
            return Ok(());
        }
        let took = self.now - self.healed_at;
        self.tell(format_args!("all is well after {} ms", took / MS));
        self.counters.heals += 1;
        self.counters.longest_heal = self.counters.longest_heal.max(took);
        if let Some(history) = &self.history {
            for node in &self.nodes {
                history.log_holds(node.id, &node.book.memory.mirror)?;
                if let Some(process) = &node.process {
                    history.folds(node.id, process.node.raft().committed_state())?;
                }
            }
        }
        let rescued = self.rescued()?;
        self.judge.compare(&self.nodes, &rescued)?;
        self.counters.lost = self.judge.lost;
        if self.now >= self.profile.length {
            self.done = true;
            return Ok(());
        }
        self.round += 1;
        self.trouble = true;
        let round = self.round;
        let chaos = self.rng.between(self.profile.chaos.0, self.profile.chaos.1);
        self.queue.push(self.now + chaos, Event::Heal { round });
        self.queue.push(self.now + MS, Event::Clients { round });
        self.queue.push(self.now + 10 * MS, Event::Fault { round });
        Ok(())
    }
}

/// The seqnos in the rescue files of a disk.
fn rescued_seqnos(disk: &MemDisk, seqnos: &mut BTreeSet<Seqno>) -> Check {
    for name in disk.names().into_iter().filter(|name| rescue_number(name).is_some()) {
        let mut visitor = |replay: Replay| {
            if let Replay::Record(record) = replay {
                let entry = Entry::decode_body(record.index, record.term, record.body);
                seqnos.insert(entry.map_err(|e| e.to_string())?.seqno);
            }
            Ok(())
        };
        read_rescue(disk, &name, &mut visitor).map_err(|error| Violation {
            rule: "a rescue file can be read",
            what: format!("{name}: {error}"),
        })?;
    }
    Ok(())
}
