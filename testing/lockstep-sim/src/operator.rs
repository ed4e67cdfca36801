//! The operator: decides who should be in the group, and asks the leader for one change after the other.
//!
//! It sees everything, and uses that for one thing only: never to make a group that could not have a majority again
//! because machines that were lost for good still count.

use crate::cluster::{Cluster, Event, MACHINES, member};
use crate::history::Check;
use crate::machine::{Fate, is_arbitrator, slot_of};
use crate::profile::MS;
use crate::round::members;
use lockstep_core::members::{Membership, Role};
use lockstep_core::raft;
use lockstep_core::{MemberId, Micros};
use std::collections::BTreeMap;

/// What the operator wants.
#[derive(Debug)]
pub(crate) struct Operator {
    /// The wanted members and their roles.
    pub(crate) wanted: BTreeMap<usize, Role>,
    /// Until then it asks everybody who thinks that it leads for anything, and does not wait.
    pub(crate) impatient_until: Micros,
}

impl Operator {
    pub(crate) fn new(voters: usize, learners: usize) -> Operator {
        let role = |slot| if slot < voters { Role::Voter } else { Role::Learner };
        Operator {
            wanted: (0..voters + learners).map(|slot| (slot, role(slot))).collect(),
            impatient_until: 0,
        }
    }

    pub(crate) fn voters(&self) -> usize {
        self.wanted.values().filter(|role| role.votes()).count()
    }
}

impl Cluster {
    /// Those who run and think that they lead.
    pub(crate) fn leaders(&self) -> Vec<usize> {
        (0..MACHINES)
            .filter(|slot| self.machines[*slot].awake(self.now))
            .filter(|slot| {
                let process = self.machines[*slot].process.as_ref();
                process.is_some_and(|p| p.order.role() == raft::Role::Leader)
            })
            .collect()
    }

    /// The one of the highest term.
    pub(crate) fn leader(&self) -> Option<usize> {
        let term = |slot: &usize| self.machines[*slot].process.as_ref().map_or(0, |p| p.order.term());
        self.leaders().into_iter().max_by_key(term)
    }

    /// The operator looks, and looks again later.
    pub(crate) fn operate(&mut self) -> Check {
        let impatient = self.now < self.operator.impatient_until;
        let again =
            if impatient { self.rng.between(MS, 40 * MS) } else { self.rng.between(50 * MS, 200 * MS) };
        self.queue.push(self.now + again, Event::Operate);
        self.mind_policy(false)?;
        // While it is not known what a machine has lost, nobody else is taken out.
        if !self.trouble || self.machines.iter().any(|m| m.damaged) {
            return Ok(());
        }
        if impatient {
            for slot in self.leaders() {
                let Some(have) = self.tail_membership(slot) else { continue };
                if let Some(next) = self.random_change(&have) {
                    self.change(slot, next)?;
                }
            }
            return Ok(());
        }
        let Some(slot) = self.leader() else { return Ok(()) };
        if is_arbitrator(&self.machines[slot].id) {
            // It hands over its tail.
            self.counters.arbitrators_led += 1;
            self.hand_over(slot);
            return self.round(slot);
        }
        let Some(have) = self.tail_membership(slot) else { return Ok(()) };
        match self.next_change(slot, &have) {
            Some(next) => self.change(slot, next),
            None => Ok(()),
        }
    }

    fn tail_membership(&self, slot: usize) -> Option<Membership> {
        self.machines[slot].process.as_ref().map(|p| Membership::clone(&p.order.tail_state().membership))
    }

    fn change(&mut self, slot: usize, next: Membership) -> Check {
        let local = self.machines[slot].clock.local(self.now);
        let Some(process) = &mut self.machines[slot].process else { return Ok(()) };
        let text = self.trace.wanted(self.now).then(|| members(&next));
        let answer = process.order.change_membership(local, next);
        if let Some(text) = text {
            self.say(slot, format_args!("is asked to make the members {text}: {answer:?}"));
        }
        if answer.is_ok() {
            self.counters.changes += 1;
            return self.round(slot);
        }
        Ok(())
    }

    fn lost_voter(&self, have: &Membership) -> Option<MemberId> {
        have.voters().find(|id| self.is_gone(id))
    }

    /// The next change from the present to the wanted membership.
    fn next_change(&mut self, leader: usize, have: &Membership) -> Option<Membership> {
        if let Some(lost) = self.lost_voter(have) {
            let next = have.without(&lost);
            let slot = slot_of(&lost);
            // One for the other in one step is what must be refused.
            let at_once = self.machines[slot].fate == Fate::Used && self.rng.one_in(4);
            return Some(if at_once { next.with(member(self.machines[slot].id, Role::Voter)) } else { next });
        }
        let wanted: Vec<_> = self.operator.wanted.iter().map(|(slot, role)| (*slot, *role)).collect();
        for (slot, role) in &wanted {
            let id = self.machines[*slot].id;
            match have.get(&id) {
                None => {
                    self.ensure_running(*slot);
                    return Some(have.with(member(id, Role::Learner)));
                }
                Some(m) if m.role == *role => {}
                Some(_) if role.votes() => {
                    let last =
                        |slot: usize| self.machines[slot].process.as_ref().map_or(0, |p| p.memory.last());
                    if last(*slot) + 20 >= last(leader) || self.rng.one_in(20) {
                        return Some(have.with(member(id, Role::Voter)));
                    }
                }
                Some(_) if have.voters().count() > 1 => return Some(have.with(member(id, Role::Learner))),
                Some(_) => {}
            }
        }
        for m in &have.members {
            let slot = slot_of(&m.id);
            let wanted = self.operator.wanted.contains_key(&slot) && !self.is_gone(&m.id);
            if wanted || (m.role.votes() && have.voters().count() < 2) {
                continue;
            }
            if slot == leader && self.rng.one_in(2) {
                self.hand_over(slot);
                return None;
            }
            return Some(have.without(&m.id));
        }
        None
    }

    /// Any change: of one step, and now and then of two, which must be refused where both are of voters.
    fn random_change(&mut self, have: &Membership) -> Option<Membership> {
        let one = self.random_step(have)?;
        if self.rng.one_in(4) && self.lost_voter(have).is_none() { self.random_step(&one) } else { Some(one) }
    }

    fn random_step(&mut self, have: &Membership) -> Option<Membership> {
        if let Some(lost) = self.lost_voter(have) {
            return Some(have.without(&lost));
        }
        let used: Vec<usize> = (0..MACHINES).filter(|slot| self.machines[*slot].fate == Fate::Used).collect();
        let voters = have.voters().count();
        for _ in 0..8 {
            let slot = *self.rng.pick(&used);
            let id = self.machines[slot].id;
            let next = match have.get(&id) {
                None if voters < 5 && self.machines[slot].process.is_some() => {
                    let role = if self.rng.one_in(2) { Role::Voter } else { Role::Learner };
                    have.with(member(id, role))
                }
                Some(m) if m.role.votes() && voters > 1 => {
                    if self.rng.one_in(2) {
                        have.without(&id)
                    } else {
                        have.with(member(id, Role::Learner))
                    }
                }
                Some(m) if !m.role.votes() && voters < 5 => have.with(member(id, Role::Voter)),
                _ => continue,
            };
            return Some(next);
        }
        None
    }

    pub(crate) fn ensure_running(&mut self, slot: usize) {
        if self.machines[slot].fate == Fate::Spare {
            self.machines[slot].fate = Fate::Used;
        }
        self.start_later(slot, MS);
    }

    /// Changes what is wanted: somebody comes, goes, or changes its role.
    pub(crate) fn want_something_else(&mut self) {
        let voters = self.operator.voters();
        let inside: Vec<usize> = self.operator.wanted.keys().copied().collect();
        let outside: Vec<usize> = (0..MACHINES)
            .filter(|slot| !self.operator.wanted.contains_key(slot))
            .filter(|slot| self.machines[*slot].fate != Fate::Lost)
            .collect();
        match self.rng.below(4) {
            0 if !outside.is_empty() && inside.len() < 7 => {
                // Those who were here before come back rather than strangers, mostly.
                let known: Vec<usize> =
                    outside.iter().copied().filter(|s| self.machines[*s].fate == Fate::Used).collect();
                let from = if known.is_empty() || self.rng.one_in(4) { &outside } else { &known };
                let slot = *self.rng.pick(from);
                let role = if voters < 5 && self.rng.below(3) > 0 { Role::Voter } else { Role::Learner };
                self.operator.wanted.insert(slot, role);
            }
            1 => {
                let slot = *self.rng.pick(&inside);
                if voters > 1 || !self.operator.wanted[&slot].votes() {
                    self.operator.wanted.remove(&slot);
                }
            }
            _ => {
                let slot = *self.rng.pick(&inside);
                let role = self.operator.wanted[&slot];
                if role.votes() && voters > 1 {
                    self.operator.wanted.insert(slot, Role::Learner);
                } else if !role.votes() && voters < 5 {
                    self.operator.wanted.insert(slot, Role::Voter);
                }
            }
        }
        self.tell(format_args!("the operator wants {:?}", self.operator.wanted));
    }
}
