//! The operator: members leave and come back, change their roles and are removed; machines are lost and replaced.
//!
//! The operator uses the commands and options that operators have. It sees everything, and uses that for one thing only:
//! logs and databases are lost only while the others can bear it.

use super::World;
use crate::history::Check;
use crate::mutate::{NodeFault, Planted};
use crate::node::{Fate, Node};
use crate::profile::{MS, SECOND};
use crate::server::Server;
use lockstep_core::{MemberId, Uuid};
use lockstep_log::MemDisk;
use lockstep_node::Command;

impl World {
    /// A command at some member.
    fn command(&mut self, command: Command) {
        let Some(at) = self.any_running() else { return };
        self.say(at, format_args!("is asked for {command:?}"));
        self.marks += 1;
        if let Some(process) = &mut self.nodes[at].process {
            process.node.command(self.marks, command, Uuid([0x80 | at as u8; 16]));
        }
        self.wake(at, 0);
    }

    pub(crate) fn hand_over(&mut self) {
        let to = self.nodes[*self.rng.pick(&self.used())].hello.name.clone();
        self.command(Command::Switchover { to });
    }

    /// Somebody comes, goes, changes its role or is removed.
    pub(crate) fn change_members(&mut self) {
        if !self.losses_are_known() {
            return;
        }
        let used = self.used();
        let out: Vec<usize> = (0..self.nodes.len()).filter(|at| self.nodes[*at].fate == Fate::Out).collect();
        self.counters.changes += 1;
        match self.rng.below(5) {
            0 if !out.is_empty() => {
                let at = *self.rng.pick(&out);
                self.nodes[at].fate = Fate::In;
                self.start_later(at, MS, SECOND);
            }
            0 | 1 => {
                let at = *self.rng.pick(&used);
                // It comes back soon, or when the operator wants it again.
                if used.len() > 2 && self.rng.one_in(2) {
                    self.nodes[at].fate = Fate::Out;
                }
                self.leave(at);
            }
            2 => {
                let at = *self.rng.pick(&used);
                self.nodes[at].hello.wants_vote ^= true;
                // An arbitrator that is the only voter leads, and nobody may write under a weak policy.
                let votes = |at: &usize| {
                    let hello = &self.nodes[*at].hello;
                    hello.wants_vote && !hello.arbitrator
                };
                if !used.iter().any(votes) {
                    self.nodes[at].hello.wants_vote = true;
                }
                self.leave(at);
            }
            3 => {
                let at = *self.rng.pick(&used);
                let name = self.nodes[at].hello.name.clone();
                self.command(Command::Promote { name });
            }
            _ => {
                let at = *self.rng.pick(&used);
                let name = self.nodes[at].hello.name.clone();
                let force = self.rng.one_in(2);
                self.nodes[at].told_to_leave |= force;
                self.nodes[at].removal_asked |= force;
                self.command(Command::Remove { name, force });
            }
        }
    }

    /// The server stops in good order.
    fn leave(&mut self, at: usize) {
        self.say(at, format_args!("is stopped in good order"));
        if let Some(process) = &mut self.nodes[at].process {
            process.node.leave();
        }
        self.wake(at, 0);
    }

    /// The server of a member that was removed is started again.
    pub(crate) fn restart_removed(&mut self, at: usize) {
        self.stop(at, false);
        self.start_later(at, 10 * MS, 2 * SECOND);
    }

    /// A member that is stopped keeps its vote if the others could not go on without it. The operator starts such members
    /// again while the machines that are in use are no majority.
    fn restore_majority(&mut self) {
        let Some(history) = &self.history else { return };
        let membership = &history.state().membership;
        let in_use = |id: &MemberId| self.nodes.iter().any(|node| node.id == *id && node.fate == Fate::In);
        if membership.voters().filter(in_use).count() >= membership.majority() {
            return;
        }
        let voters: Vec<MemberId> = membership.voters().collect();
        let stopped = |node: &Node| node.fate == Fate::Out && voters.contains(&node.id);
        if let Some(at) = self.nodes.iter().position(stopped) {
            self.nodes[at].fate = Fate::In;
            self.start_later(at, MS, SECOND);
        }
    }

    /// The operator starts members that a majority needs, and removes machines that are lost for good.
    pub(crate) fn operate(&mut self) {
        self.restore_majority();
        let lost: Vec<usize> =
            (0..self.nodes.len()).filter(|at| self.nodes[*at].fate == Fate::Lost).collect();
        for at in lost {
            let id = self.nodes[at].id;
            let listed = self.history.as_ref().is_some_and(|h| h.state().membership.get(&id).is_some());
            if listed {
                let name = self.nodes[at].hello.name.clone();
                self.command(Command::Remove { name, force: false });
            }
        }
    }

    /// Whether other databases have everything that this one has. Where weak policies may cost one of them its data, there
    /// are two.
    pub(crate) fn has_better(&self, at: usize) -> bool {
        let mine = self.nodes[at].server.finished;
        let committed = self.history.as_ref().map_or(0, |history| history.seqno());
        let better = |(other, node): &(usize, &crate::node::Node)| {
            *other != at
                && node.fate == Fate::In
                && !node.hello.arbitrator
                && !node.server.gives_up_data
                && node.process.as_ref().is_some_and(|process| !process.node.needs_state())
                && (mine.max(0)..=committed).contains(&node.server.finished)
        };
        self.nodes.iter().enumerate().filter(better).count() > usize::from(self.around.policies())
    }

    /// Whether it is known what every machine has lost.
    fn losses_are_known(&self) -> bool {
        let Some(history) = &self.history else { return false };
        let known = |id| self.nodes.iter().any(|node| node.fate != Fate::Lost && node.id == id);
        self.nodes.iter().all(|node| !node.damaged && !node.book.is_shortened())
            && history.state().membership.members.iter().all(|member| known(member.id))
    }

    /// Whether this machine can lose its log, or all, without a promise being lost.
    pub(crate) fn bearable(&self, at: usize) -> bool {
        let Some(history) = &self.history else { return false };
        let membership = &history.state().membership;
        let settled = self.nodes.iter().filter(|node| node.fate == Fate::In).all(|node| {
            let agrees = |p: &crate::node::Process| {
                p.node.raft().tail_state().membership == *membership && !p.node.raft().policy().is_weak()
            };
            !node.damaged
                && !node.book.is_shortened()
                && membership.get(&node.id).is_some()
                && node.process.as_ref().is_some_and(agrees)
        });
        let node = &self.nodes[at];
        let known = |id| self.nodes.iter().any(|node| node.fate == Fate::In && node.id == id);
        let settled = settled && membership.members.iter().all(|m| known(m.id));
        let enough = !membership.is_voter(&node.id) || membership.voters().count() >= 3;
        let nothing_at_risk = node.process.as_ref().is_some_and(|p| p.commit == p.node.raft().last_index());
        settled && enough && nothing_at_risk && membership.members.len() >= 2
    }

    /// A machine or its disk is lost for good, and its replacement has a new id.
    pub(crate) fn replace(&mut self) -> Check {
        let Some(at) = self.any_running() else { return Ok(()) };
        if !self.bearable(at) || !self.has_better(at) {
            return Ok(());
        }
        // Policies may ask for acks from each zone.
        let zone = self.nodes[at].hello.zone;
        let spare = self
            .nodes
            .iter()
            .position(|node| node.fate == Fate::Out && node.lives == 0 && node.hello.zone == zone)
            .filter(|_| self.rng.one_in(2));
        self.stop(at, true);
        self.keep_rescued(at)?;
        let Some(spare) = spare else {
            self.new_identity(at, false);
            self.start_later(at, MS, self.profile.restart.1);
            return Ok(());
        };
        self.say(at, format_args!("is lost for good"));
        self.nodes[at].fate = Fate::Lost;
        self.nodes[spare].fate = Fate::In;
        self.start_later(spare, MS, SECOND);
        Ok(())
    }

    /// The log is gone: the machine returns as a new member.
    pub(crate) fn new_identity(&mut self, at: usize, with_database: bool) {
        let node = &mut self.nodes[at];
        let durable = std::mem::take(&mut node.book).durable;
        if self.settings.mutation != Some(Planted::Node(NodeFault::IdKept)) {
            node.former.push((node.id, durable));
            let mut id = [at as u8 + 1; 16];
            id[0] = 0xf0 ^ node.former.len() as u8;
            node.id = Uuid(id);
        }
        node.disk = MemDisk::new();
        node.disk.set_sector_bytes(self.profile.sector_bytes);
        if let Some(Planted::Log(fault)) = self.settings.mutation {
            node.disk.plant(Some(fault));
        }
        (node.damaged, node.disk_fails, node.disk_full) = (false, false, false);
        if !with_database {
            node.server = Server::new();
        }
        self.counters.identities += 1;
        self.say(at, format_args!("has lost its log and is somebody else now"));
    }
}
