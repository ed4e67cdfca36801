//! Clients: they propose and read at any member.

use crate::cluster::{Cluster, Event, MACHINES};
use crate::history::{Check, hold, proposal_hash};
use crate::machine::{Input, Name};
use crate::profile::MS;
use bytes::Bytes;
use lockstep_core::{EntryKind, ProposalId};

/// A member with this many proposals under way takes no more.
const MOST_OUTSTANDING: (usize, usize) = (200, 1 << 20);

impl Cluster {
    /// A running member that takes part.
    fn any_member(&mut self) -> Option<usize> {
        let now = self.now;
        let members: Vec<usize> = (0..MACHINES)
            .filter(|slot| self.machines[*slot].awake(now))
            .filter(|slot| {
                let machine = &self.machines[*slot];
                machine.process.as_ref().is_some_and(|p| p.membership.get(&machine.id).is_some())
            })
            .collect();
        if members.is_empty() { None } else { Some(*self.rng.pick(&members)) }
    }

    fn payload(&mut self) -> (EntryKind, Bytes) {
        self.payloads += 1;
        let size = if self.rng.one_in(self.profile.large_one_in) {
            self.rng.between(4 << 10, 64 << 10)
        } else {
            self.rng.between(8, 160)
        };
        let mut bytes = vec![self.payloads as u8; size as usize];
        bytes[..8].copy_from_slice(&self.payloads.to_le_bytes());
        let kind = match self.rng.below(20) {
            0 => EntryKind::TotalOrder,
            1 => EntryKind::Piece,
            2 => EntryKind::Note,
            _ => EntryKind::WriteSet,
        };
        (kind, bytes.into())
    }

    /// One or many proposals, and the time of the next.
    pub(crate) fn clients_propose(&mut self) -> Check {
        let again = self.rng.between(1, 2 * self.profile.propose_every);
        let round = self.round;
        self.queue.push(self.now + again, Event::Propose { round });
        let Some(slot) = self.any_member() else { return Ok(()) };
        let count = if self.rng.one_in(self.profile.burst_one_in) { self.rng.between(2, 60) } else { 1 };
        self.propose(slot, count)?;
        self.withdraw(slot)?;
        self.input(slot, Input::Nothing)
    }

    /// A client proposes at this member.
    pub(crate) fn propose(&mut self, slot: usize, count: u64) -> Check {
        for _ in 0..count {
            let (kind, payload) = self.payload();
            let machine = &mut self.machines[slot];
            let local = machine.clock.local(self.now);
            let Some(process) = &mut machine.process else { return Ok(()) };
            let (number, bytes) = process.order.outstanding();
            if number >= MOST_OUTSTANDING.0 || bytes >= MOST_OUTSTANDING.1 {
                return Ok(());
            }
            let hash = proposal_hash(kind, &payload);
            let number = process.order.propose(local, kind, payload);
            hold!(
                number == process.proposed + 1,
                "proposals are numbered densely",
                "{} numbers a proposal {number} after {}",
                Name(slot),
                process.proposed
            );
            process.proposed = number;
            let pid = ProposalId { member: machine.id, incarnation: process.incarnation, number };
            self.counters.proposals += 1;
            self.history.proposes(pid, hash)?;
        }
        Ok(())
    }

    /// Where the majority is gone, clients are told so; what was never sent is taken back.
    fn withdraw(&mut self, slot: usize) -> Check {
        let machine = &mut self.machines[slot];
        let local = machine.clock.local(self.now);
        let Some(process) = &mut machine.process else { return Ok(()) };
        if process.order.has_quorum(local) || !self.rng.one_in(8) {
            return Ok(());
        }
        let Some(first) = process.order.withdraw_unsent() else { return Ok(()) };
        let last = std::mem::replace(&mut process.proposed, first - 1);
        let (member, incarnation) = (machine.id, process.incarnation);
        self.say(slot, format_args!("takes back #{first} to #{last}"));
        for number in first..=last {
            self.history.withdraws(ProposalId { member, incarnation, number })?;
        }
        Ok(())
    }

    /// A read, and the time of the next.
    pub(crate) fn client_reads(&mut self) -> Check {
        let again = self.rng.between(MS, 2 * self.profile.read_every);
        let round = self.round;
        self.queue.push(self.now + again, Event::Read { round });
        let Some(slot) = self.any_member() else { return Ok(()) };
        let floor = self.history.committed();
        let machine = &mut self.machines[slot];
        let local = machine.clock.local(self.now);
        let Some(process) = &mut machine.process else { return Ok(()) };
        if process.reads.len() < 100 {
            let context = process.order.read_index(local);
            let old = process.reads.insert(context, floor);
            hold!(old.is_none(), "reads have their own numbers", "{} read {context}", Name(slot));
        }
        self.input(slot, Input::Nothing)
    }
}
