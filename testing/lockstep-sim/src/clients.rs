//! Clients: they propose and read at any member.

use crate::cluster::{Cluster, Event, MACHINES};
use crate::history::{Check, hold};
use crate::machine::{Input, Name, is_arbitrator};
use crate::profile::MS;
use bytes::Bytes;
use lockstep_core::writeset::{DataKind, KeyType, Meta, WriteSetBuilder, flags};
use lockstep_core::{EntryKind, ProposalId};

/// A member with this many proposals under way takes no more.
const MOST_OUTSTANDING: (usize, usize) = (200, 1 << 20);

impl Cluster {
    /// A running member that takes part.
    fn any_member(&mut self) -> Option<usize> {
        let members = self.members_awake();
        if members.is_empty() { None } else { Some(*self.rng.pick(&members)) }
    }

    fn members_awake(&self) -> Vec<usize> {
        let now = self.now;
        (0..MACHINES)
            .filter(|slot| self.machines[*slot].awake(now))
            .filter(|slot| {
                let machine = &self.machines[*slot];
                let member =
                    machine.process.as_ref().is_some_and(|p| p.membership.get(&machine.id).is_some());
                member && !is_arbitrator(&machine.id)
            })
            .collect()
    }

    /// The member at which the next client writes.
    fn where_to_write(&mut self) -> Option<usize> {
        if self.writers.is_none() {
            return self.any_member();
        }
        let members = self.members_awake();
        self.writer(&members).or_else(|| self.any_member())
    }

    /// What a client of this member has done, as its server proposes it.
    fn payload(&mut self, slot: usize) -> (EntryKind, Bytes) {
        self.payloads += 1;
        let size = if self.rng.one_in(self.profile.large_one_in) {
            self.rng.between(4 << 10, 64 << 10)
        } else {
            self.rng.between(8, 160)
        };
        let mut bytes = vec![self.payloads as u8; size as usize];
        bytes[..8].copy_from_slice(&self.payloads.to_le_bytes());
        let kind = match self.rng.below(40) {
            0 => EntryKind::TotalOrder,
            1 => EntryKind::Piece,
            2 => EntryKind::Note,
            // A write-set that nobody can read fails everywhere.
            3 if self.rng.one_in(8) => return (EntryKind::WriteSet, bytes.into()),
            _ => EntryKind::WriteSet,
        };
        if !matches!(kind, EntryKind::WriteSet | EntryKind::TotalOrder) {
            return (kind, bytes.into());
        }
        (kind, self.write_set(slot, kind, &bytes))
    }

    fn write_set(&mut self, slot: usize, kind: EntryKind, data: &[u8]) -> Bytes {
        let machine = &self.machines[slot];
        let run = machine.process.as_ref().and_then(|p| p.run.as_ref());
        let seen = run.map_or(0, |run| run.seen());
        let source = machine.view_uuid();
        let mut builder = WriteSetBuilder::new();
        let (mut set, mut trx) = (flags::TRX_START | flags::TRX_END | flags::NATIVE, self.payloads);
        if kind == EntryKind::TotalOrder {
            set |= flags::ISOLATION;
            let table = [b't', self.rng.below(3) as u8];
            // Too many keys would be an error; these are few.
            let _ = builder.append_key(&[b"db", &table], KeyType::Exclusive);
        } else {
            set |= *self.rng.pick(&[
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                flags::PA_UNSAFE,
                flags::IMPLICIT_DEPS,
                flags::SNAPSHOT,
            ]);
            if self.rng.one_in(100) {
                set |= flags::ROLLBACK;
            }
            // Now and then a transaction goes in fragments.
            let begins = self.rng.one_in(60);
            let ends = self.rng.one_in(4);
            if let Some(process) = &mut self.machines[slot].process {
                match process.stream {
                    Some(open) => {
                        trx = open;
                        set &= !flags::TRX_START;
                        if ends {
                            process.stream = None;
                        } else {
                            set &= !flags::TRX_END;
                        }
                    }
                    None if begins => {
                        process.stream = Some(trx);
                        set &= !flags::TRX_END;
                    }
                    None => {}
                }
            }
            for _ in 0..self.rng.between(1, 3) {
                let row = self.rng.below(self.profile.rows);
                let kinds = [
                    KeyType::Exclusive,
                    KeyType::Exclusive,
                    KeyType::Update,
                    KeyType::Reference,
                    KeyType::Shared,
                ];
                let touch = *self.rng.pick(&kinds);
                let table = [b't', (row % 3) as u8];
                let _ = builder.append_key(&[b"db", &table, &row.to_le_bytes()], touch);
            }
        }
        let last_seen = match self.rng.below(100) {
            0 => self.rng.below(seen.max(0) as u64 + 1) as i64,
            1 if self.rng.one_in(10) => seen + 1_000_000,
            _ => seen,
        };
        let _ = builder.append_data(DataKind::Ordered, data);
        let meta = Meta { flags: set, last_seen, source, epoch: 0, conn: 1, trx };
        builder.finish(&meta)
    }

    /// One or many proposals, and the time of the next.
    pub(crate) fn clients_propose(&mut self) -> Check {
        let again = self.rng.between(1, 2 * self.profile.propose_every);
        let round = self.round;
        self.queue.push(self.now + again, Event::Propose { round });
        let Some(slot) = self.where_to_write() else { return Ok(()) };
        let count = if self.rng.one_in(self.profile.burst_one_in) { self.rng.between(2, 60) } else { 1 };
        self.propose(slot, count)?;
        self.withdraw(slot)?;
        self.input(slot, Input::Nothing)
    }

    /// A client proposes at this member.
    pub(crate) fn propose(&mut self, slot: usize, count: u64) -> Check {
        for _ in 0..count {
            let (kind, payload) = self.payload(slot);
            let machine = &mut self.machines[slot];
            let local = machine.clock.local(self.now);
            let Some(process) = &mut machine.process else { return Ok(()) };
            let (number, bytes) = process.order.outstanding();
            if number >= MOST_OUTSTANDING.0 || bytes >= MOST_OUTSTANDING.1 {
                return Ok(());
            }
            let number = process.order.propose(local, kind, payload.clone());
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
            self.history.proposes(pid, kind, &payload)?;
        }
        Ok(())
    }

    /// Without a majority, clients are notified, and unsent proposals are withdrawn.
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
            let old = process.reads.insert(context, (floor, local));
            hold!(old.is_none(), "reads have their own numbers", "{} read {context}", Name(slot));
        }
        self.input(slot, Input::Nothing)
    }
}
