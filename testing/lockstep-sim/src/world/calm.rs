//! The end of all faults: every member becomes well within a bound, and then all databases are equal.

use super::{Event, World};
use crate::fallback::stays_away;
use crate::history::{Check, Violation, hold};
use crate::node::{Fate, Node};
use crate::profile::{MS, SECOND};
use crate::rescued::Rescued;
use lockstep_core::policy::Policy;
use lockstep_core::{MemberId, Micros};
use lockstep_node::LocalState;

/// After the faults end, or after the last database has caught up, all members must be well within this time.
const HEALING: Micros = 90 * SECOND;
/// A database with thousands of entries to apply may take longer, while it applies them.
const CATCHING_UP: Micros = 180 * SECOND;

impl World {
    /// All faults end.
    pub(crate) fn heal(&mut self) -> Check {
        self.tell(format_args!("everything heals"));
        self.round += 1;
        self.trouble = false;
        (self.healed_at, self.answers_at_heal) = (self.now, self.answers);
        self.led_since_heal = false;
        self.mend_links();
        self.short_terms = 0;
        self.weather += 1;
        self.bring_back();
        for at in 0..self.nodes.len() {
            let now = self.now;
            let node = &mut self.nodes[at];
            node.speed = self.profile.disk;
            node.disk.clear_faults();
            node.disk.set_capacity(None);
            node.disk_failed |= node.disk_fails;
            (node.disk_fails, node.disk_full) = (false, false);
            node.database_hangs = false;
            node.disk_hangs = false;
            node.clock.set(now, 0, 1_000_000);
            node.paused_until = 0;
            if let Some(process) = &mut node.process {
                process.woken = false;
            }
            if node.tuning.apply_hold.paused {
                self.end(super::End::Paused(at))?;
            }
            // One that does not know of its removal is started again, too.
            if self.nodes[at].told_to_leave && self.nodes[at].process.is_some() {
                self.restart_removed(at);
            }
            self.wake(at, 0);
            self.start_later(at, 0, 500 * MS);
        }
        self.queue.push(self.now + 100 * MS, Event::Calm);
        Ok(())
    }

    /// Machines that the operator did not want take part again, if others may need them: for their votes, or for what only
    /// they have.
    fn bring_back(&mut self) {
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            if node.fate != Fate::Out || node.lives == 0 {
                continue;
            }
            let votes = self.nodes.iter().any(|other| other.book.memory.is_voter(&node.id));
            let has_more = |other: &Node| {
                other.fate == Fate::In
                    && !other.server.gives_up_data
                    && other.server.finished >= node.server.finished
            };
            if votes || self.around.policies() || !self.nodes.iter().any(has_more) {
                self.nodes[at].fate = Fate::In;
            }
        }
    }

    /// The rescue files of a disk are kept, which is gone otherwise.
    pub(crate) fn keep_rescued(&mut self, at: usize) -> Check {
        self.rescued.read(&self.nodes[at].disk, at)
    }

    /// Why not all is well yet.
    fn missing(&self) -> Option<String> {
        let leader = self.nodes.iter().filter_map(|node| node.process.as_ref()).find(|process| process.leads);
        let Some(leader) = leader else { return Some("nobody leads".into()) };
        let last = leader.node.raft().last_index();
        if stays_away(leader.node.raft()) {
            return Some(format!("the leader has fallen back: {:?}", leader.node.raft().policy()));
        }
        for node in self.nodes.iter().filter(|node| node.fate == Fate::In) {
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
        let name = |id: &MemberId| self.nodes.iter().find(|node| node.id == *id).map(|node| &node.hello.name);
        (self.round > 0 && self.answers == self.answers_at_heal).then(|| {
            let raft = leader.node.raft();
            let voters: Vec<_> = raft.tail_state().membership.voters().filter_map(|id| name(&id)).collect();
            format!(
                "nobody has written: {:?} leads the voters {voters:?}, policy {:?}",
                name(&raft.id()),
                raft.policy()
            )
        })
    }

    /// Whether each member with data waits for those of another.
    fn all_wait_for_data(&self) -> bool {
        let mut with_data = self.nodes.iter().filter(|node| node.fate == Fate::In && !node.hello.arbitrator);
        with_data.all(|node| node.process.is_some() && node.server.wants_state)
    }

    /// Whether there is a leader some time after the faults; the operator has it replace a policy that nobody can meet.
    fn found_leader(&mut self, leader: Option<usize>) {
        let Some(leader) = leader else { return };
        let Some(process) = &self.nodes[leader].process else { return };
        let policy = process.node.raft().policy();
        if !std::mem::replace(&mut self.led_since_heal, true) {
            let took = self.now - self.healed_at;
            self.counters.longest_election = self.counters.longest_election.max(took);
        }
        if self.is_unmeetable(policy) && self.rng.one_in(10) {
            self.request_policy(leader, Policy::default());
        }
    }

    /// The writes in all rescue files.
    fn rescued(&self) -> Result<Rescued, Violation> {
        let mut rescued = self.rescued.clone();
        for (at, node) in self.nodes.iter().enumerate() {
            rescued.read(&node.disk, at)?;
        }
        Ok(rescued)
    }

    /// When the faults ended, or when a database last applied something since.
    fn last_progress(&mut self) -> Micros {
        let present = self.nodes.iter().filter(|node| node.fate == Fate::In);
        let finished = present.map(|node| node.server.finished).sum();
        if self.finished_since_heal.0 != finished {
            self.finished_since_heal = (finished, self.now);
        }
        self.finished_since_heal.1.clamp(self.healed_at, self.healed_at + CATCHING_UP)
    }

    pub(crate) fn calm(&mut self) -> Check {
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
                self.now < self.last_progress() + HEALING,
                "progress returns when faults end",
                "{} s after the last fault: {missing}",
                (self.now - self.healed_at) / SECOND
            );
            let leader = self.nodes.iter().position(|node| node.process.as_ref().is_some_and(|p| p.leads));
            self.found_leader(leader);
            // An arbitrator has no clients.
            let with_data = |at: &usize| {
                let node = &self.nodes[*at];
                node.process.is_some() && !node.hello.arbitrator
            };
            let writer = leader
                .and_then(|at| if with_data(&at) { Some(at) } else { (0..self.nodes.len()).find(with_data) });
            if let Some(writer) = writer
                && self.round > 0
                && self.answers == self.answers_at_heal
                && self.nodes[writer].process.as_ref().is_some_and(|p| p.writes.is_empty())
            {
                self.write(writer);
            }
            self.queue.push(self.now + 50 * MS, Event::Calm);
            return Ok(());
        }
        let took = self.now - self.healed_at;
        self.tell(format_args!("all is well after {} ms", took / MS));
        self.counters.heals += 1;
        self.counters.longest_heal = self.counters.longest_heal.max(took);
        if let Some(history) = &self.history {
            for node in self.nodes.iter().filter(|node| node.process.is_some()) {
                history.log_holds(node.id, &node.book.memory.mirror)?;
                if let Some(process) = &node.process {
                    history.folds(node.id, process.node.raft().committed_state())?;
                }
            }
        }
        let rescued = self.rescued()?;
        self.client_checks.compare(&self.nodes, &rescued)?;
        self.counters.lost = self.client_checks.lost;
        self.at_risk.settle();
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
