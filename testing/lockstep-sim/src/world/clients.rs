//! Clients, which write and read at any member, and the servers' work.

use super::{Event, HISTORY, World};
use crate::history::Check;
use crate::node::{Read, Write};
use crate::profile::{MS, SECOND};
use lockstep_core::writeset::{DataKind, KeyType, Meta, WriteSetBuilder, flags};
use lockstep_core::{EntryKind, Gtid, Micros};
use lockstep_node::IN_ORDER_BYTES;

/// How long clients stay at one member.
const CLIENTS_STAY: Micros = 20 * SECOND;
/// The maximum of writes under way at a member.
const WRITES_MAX: usize = 30;

impl World {
    /// A client writes, and perhaps one reads.
    pub(crate) fn clients(&mut self) {
        let after = self.rng.between(1, 2 * self.profile.propose_every);
        self.queue.push(self.now + after, Event::Clients { round: self.round });
        let now = self.now;
        let awake = |at: &usize| {
            let node = &self.nodes[*at];
            node.process.is_some() && !node.hello.arbitrator && node.paused_until <= now
        };
        let up: Vec<usize> = (0..self.nodes.len()).filter(awake).collect();
        if up.is_empty() {
            return;
        }
        let writer = self.writers.as_mut().and_then(|writers| writers.place(now, &up));
        let leader = up.iter().copied().find(|at| self.nodes[*at].leads());
        let at = match (writer, leader) {
            (Some(writer), _) => writer,
            (None, Some(leader)) if self.writers.is_none() && !self.rng.one_in(5) => leader,
            _ => *self.rng.pick(&up),
        };
        let burst = if self.rng.one_in(self.profile.burst_one_in) { self.rng.between(2, 20) } else { 1 };
        for _ in 0..burst {
            self.write(at);
        }
        // Clients stay at one member for some time, whether or not it accepts their writes.
        let at = up[(now / CLIENTS_STAY) as usize % up.len()];
        if let Some(process) = &mut self.nodes[at].process {
            process.refused += 1;
        }
        if self.rng.one_in(10) {
            let at = *self.rng.pick(&up);
            self.read(at);
        }
    }

    pub(crate) fn write(&mut self, at: usize) {
        let full = |world: &World| {
            world.nodes[at].process.as_ref().is_none_or(|process| process.writes.len() >= WRITES_MAX)
        };
        if full(self) {
            return;
        }
        self.marks += 1;
        let mark = self.marks;
        let size = match self.rng.below(4000) {
            0 => self.largest_write(),
            1..200 => 5_000,
            _ => 100,
        };
        let mut data = mark.to_le_bytes().to_vec();
        data.resize(size, 7);
        let mut builder = WriteSetBuilder::new();
        for _ in 0..self.rng.between(1, 3) {
            let row = self.rng.below(self.profile.rows);
            let kinds = [
                KeyType::Exclusive,
                KeyType::Exclusive,
                KeyType::Update,
                KeyType::Reference,
                KeyType::Shared,
            ];
            let kind = *self.rng.pick(&kinds);
            let built = builder.append_key(&[b"db", &[b't', (row % 3) as u8], &row.to_le_bytes()], kind);
            debug_assert!(built.is_ok(), "a small key fits");
        }
        let built = builder.append_data(DataKind::Ordered, &data);
        debug_assert!(built.is_ok(), "data fit");
        // Now and then a transaction has seen little for long, or more than there is.
        let odd = match self.rng.below(100) {
            0 => Some(self.rng.bits()),
            1 if self.rng.one_in(10) => Some(u64::MAX),
            _ => None,
        };
        let kind = if self.rng.one_in(30) { EntryKind::TotalOrder } else { EntryKind::WriteSet };
        let (flags, trx) = match kind == EntryKind::WriteSet && self.rng.one_in(4) {
            true => self.part(at, mark),
            false => (flags::TRX_START | flags::TRX_END, mark),
        };
        let Some(process) = &mut self.nodes[at].process else { return };
        let finished = process.node.finished();
        let last_seen = match odd.filter(|_| trx == mark) {
            None => finished,
            Some(u64::MAX) => finished + 1_000_000,
            Some(chance) => (chance % (finished.max(0) as u64 + 1)) as i64,
        };
        let payload = builder.finish(&Meta {
            flags,
            last_seen,
            source: process.node.view_uuid(),
            epoch: 0,
            conn: 1,
            trx,
        });
        let submission = process.node.submit(kind, payload);
        process.writes.push(Write { mark, submission });
        self.counters.proposals += 1;
        self.wake(at, 0);
    }

    /// The bytes of the largest write. Heartbeats wait behind each of its pieces, so the links at their best carry one well
    /// within an election timeout.
    fn largest_write(&self) -> usize {
        let narrow = self.profile.between_zones.map_or(u64::MAX, |line| line.bytes_per_ms);
        let carried =
            self.profile.quality.bytes_per_ms.min(narrow) * (self.profile.election_timeout / MS) / 3;
        if carried < IN_ORDER_BYTES as u64 { carried as usize } else { IN_ORDER_BYTES + IN_ORDER_BYTES / 4 }
    }

    fn read(&mut self, at: usize) {
        self.marks += 1;
        let (id, floor) = (self.marks, self.client_checks.durable);
        let local = self.nodes[at].clock.local(self.now);
        if let Some(process) = &mut self.nodes[at].process {
            process.reads.push(Read { id, floor, asked: local });
            process.node.causal_read(id);
            self.wake(at, 0);
        }
    }

    /// A server's work: it finishes entries, and donates its state.
    pub(crate) fn serve(&mut self, at: usize) -> Check {
        let now = self.now;
        let count = self.rng.between(1, 2 * self.profile.appliers as u64) as usize;
        let node = &mut self.nodes[at];
        node.serving = false;
        let Some(process) = &mut node.process else { return Ok(()) };
        if node.paused_until <= now {
            node.server.own = process.node.view_uuid();
            if node.hello.arbitrator {
                node.server.pending.clear();
            } else if !node.database_hangs {
                node.server.finish(count, now);
                process.node.set_finished(node.server.finished);
            }
            self.donate(at);
        }
        let node = &mut self.nodes[at];
        if !node.server.is_idle() && !node.serving {
            node.serving = true;
            let after =
                if node.database_hangs { 20 * MS } else { self.rng.between(100, self.profile.apply.max(MS)) };
            self.queue.push(now + after, Event::Serve { at });
        }
        Ok(())
    }

    fn donate(&mut self, at: usize) {
        let now = self.now;
        let delay = self.rng.between(5 * MS, 300 * MS);
        let server = &mut self.nodes[at].server;
        let finished = server.finished;
        let Some(donation) = server.donations.iter_mut().find(|d| d.after <= finished) else { return };
        let since = *donation.since.get_or_insert(now);
        if now < since + delay {
            return;
        }
        let (id, joiner) = (donation.id, donation.joiner.clone());
        server.donations.retain(|d| d.id != id);
        // The transferred state is that of the time of sending; so is its position.
        let (database, streams) = (server.database.clone(), server.streams.clone());
        let gtid = Gtid { uuid: HISTORY, seqno: finished };
        let to = self.nodes.iter().position(|node| node.hello.name == joiner);
        if let Some(to) = to
            && self.nodes[to].server.wants_state
            && let Some(process) = &mut self.nodes[to].process
            && process.node.needs_state()
        {
            process.node.state_received(gtid);
            self.nodes[to].server.copied(database, streams, finished);
            self.counters.transfers += 1;
            self.say(at, format_args!("sends its state at {finished} to {joiner}"));
            self.wake(to, 0);
        }
        if let Some(process) = &mut self.nodes[at].process {
            process.node.donation_done(id, gtid);
            self.wake(at, 0);
        }
    }
}
