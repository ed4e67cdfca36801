//! Members' disks in tests, and members that come back from them: a crash leaves what was synced, and of what was asked
//! for since a part from its beginning, the last record torn or not.

use super::harness::{Lab, TestMember};
use super::{Effect, Member, ReadFor};
use crate::api::{ConnectArgs, NodeError};
use crate::node::KEPT_AT_START;
use lockstep_core::raft::{Raft, RestoreBuilder, Restored, Vote, WriteOp};
use lockstep_core::snapshot::StateSnapshot;
use lockstep_core::{Entry, Index, Term, Uuid};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The hint of what is committed is written with one sync of so many.
const HINT_EVERY: u64 = 16;
/// So many entries are read at a time.
const READ_AT_ONCE: usize = 64;

/// A log as it reads.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    bases: Vec<StateSnapshot>,
    pub(super) entries: BTreeMap<Index, Entry>,
    vote: Vote,
    hint: Index,
}

impl Image {
    fn last(&self) -> Index {
        let base = self.bases.first().map_or(0, |base| base.index);
        self.entries.last_key_value().map_or(base, |(index, _)| *index)
    }

    fn apply(&mut self, op: &WriteOp) {
        if let Some(state) = &op.reset {
            self.bases = vec![StateSnapshot::clone(state)];
            self.entries.clear();
        }
        if let Some(from) = op.truncate_from {
            self.entries.split_off(&from);
            self.bases.retain(|base| base.index < from);
        }
        if let Some(state) = &op.roll {
            assert_eq!(state.index, self.last(), "a segment begins where the last one ends");
            self.bases.push(StateSnapshot::clone(state));
        }
        for entry in &op.entries {
            assert_eq!(entry.index, self.last() + 1, "entries are dense");
            self.entries.insert(entry.index, entry.clone());
        }
        if let Some(vote) = op.vote {
            assert!(vote.term >= self.vote.term, "terms do not go back");
            self.vote = vote;
        }
        self.hint = self.hint.min(self.last());
    }

    /// The fold of all of it.
    pub(super) fn last_state(&self) -> Option<StateSnapshot> {
        self.state_before(self.last() + 1)
    }

    /// The fold of what comes before `index`.
    pub(super) fn state_before(&self, index: Index) -> Option<StateSnapshot> {
        let mut state = self.bases.iter().rfind(|base| base.index < index)?.clone();
        for entry in self.entries.range(state.index + 1..index).map(|(_, entry)| entry) {
            state.apply(entry).expect("what was written can be read");
        }
        Some(state)
    }

    /// Reads it as a node does that starts.
    fn restore(&self) -> Option<Restored> {
        let mut builder = RestoreBuilder::new(self.hint);
        let mut bases = self.bases.iter().peekable();
        if let Some(first) = bases.next() {
            builder.base(first.to_bytes()).unwrap();
        }
        for entry in self.entries.values() {
            while bases.peek().is_some_and(|base| base.index < entry.index) {
                builder.base(bases.next().unwrap().to_bytes()).unwrap();
            }
            builder.record(entry.index, entry.term, entry.body()).unwrap();
        }
        for base in bases {
            builder.base(base.to_bytes()).unwrap();
        }
        builder.finish(self.vote)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Disk {
    /// As its process reads it.
    pub(super) log: Image,
    synced: Image,
    /// What was asked for and is not synced.
    asked: VecDeque<WriteOp>,
    /// What is to be read when all that was asked for is there: the log's thread answers writes first.
    reads: Vec<(ReadFor, Index)>,
    syncs: u64,
    /// What is in its rescue files.
    pub(super) rescued: Vec<Entry>,
    /// What was ever asked for, and what was ever synced.
    pub(super) received: BTreeSet<(Index, Term)>,
    pub(super) persisted: BTreeSet<(Index, Term)>,
}

impl Disk {
    pub(super) fn write(&mut self, op: WriteOp) {
        self.log.apply(&op);
        self.received.extend(op.entries.iter().map(|entry| (entry.index, entry.term)));
        self.asked.push_back(op);
    }

    /// The last ticket that is done by then, if any is new. `committed`: what the log may be told is.
    pub(super) fn sync(&mut self, committed: Index) -> Option<u64> {
        let ticket = self.asked.back()?.ticket;
        while let Some(op) = self.asked.pop_front() {
            self.sync_one(&op);
        }
        self.syncs += 1;
        if self.syncs.is_multiple_of(HINT_EVERY) {
            self.synced.hint = committed.min(self.synced.last());
        }
        Some(ticket)
    }

    /// What was to be read, which may be other than it was when somebody asked.
    pub(super) fn read(&mut self) -> Vec<(ReadFor, Index, Vec<Entry>)> {
        let there = &self.log.entries;
        let read = |(whom, from)| {
            let entries = (from..).map_while(|index| there.get(&index).cloned()).take(READ_AT_ONCE).collect();
            (whom, from, entries)
        };
        self.reads.drain(..).map(read).collect()
    }

    fn sync_one(&mut self, op: &WriteOp) {
        self.rescued.extend(op.rescue.iter().flat_map(|rescue| rescue.entries.iter().cloned()));
        self.synced.apply(op);
        self.persisted.extend(op.entries.iter().map(|entry| (entry.index, entry.term)));
    }

    /// How many writes a crash may lose.
    pub(super) fn waiting(&self) -> usize {
        self.asked.len()
    }

    /// The process ends: so many of the writes that wait come to be, and of the next one so many of its entries.
    fn crash(&mut self, whole: usize, entries: usize) {
        for _ in 0..whole {
            let Some(op) = self.asked.pop_front() else { break };
            self.sync_one(&op);
        }
        // The vote is another file; what an operation cuts off is cut off before it appends.
        if let Some(mut op) = self.asked.pop_front().filter(|op| entries > 0 && !op.entries.is_empty()) {
            op.entries.truncate(entries);
            op.vote = None;
            self.sync_one(&op);
        }
        self.asked.clear();
        self.reads.clear();
        self.log = self.synced.clone();
    }
}

impl Lab {
    /// The process of a member ends, and of what its disk was asked for since the last sync a part is there: so many
    /// writes, and of the next one so many entries.
    pub(super) fn crash(&mut self, at: usize, whole: usize, entries: usize) {
        for other in 0..self.nodes.len() {
            self.unlink(at, other);
        }
        let node = &mut self.nodes[at];
        node.up = false;
        node.disk.crash(whole, entries);
        node.stopped();
    }

    /// It is started again, with what its disk has.
    ///
    /// # Errors
    /// As those of [`Member::connect`].
    pub(super) fn start(&mut self, at: usize, args: ConnectArgs) -> Result<(), NodeError> {
        let now = self.now;
        let node = &mut self.nodes[at];
        node.member.life += 1;
        let TestMember { life, .. } = node.member;
        let me = node.member.hello();
        let view_uuid = Uuid([[at as u8 + 1, life as u8], [0x40; 2]].concat().repeat(4).try_into().unwrap());
        let order = Raft::new(node.member.config(), node.disk.log.restore(), now);
        let mut engine = Member::new(order, me, node.member.tuning.clone(), node.finished.clone(), now);
        let marks = node.disk.log.entries.values().filter(|e| KEPT_AT_START.contains(&(e.kind as u8)));
        for entry in marks {
            engine.deliverer.remember(entry);
            engine.votes.remember(entry);
        }
        engine.hold = node.hold();
        engine.at(now, super::harness::WALL + now);
        node.finished.store(args.position.seqno, std::sync::atomic::Ordering::Release);
        engine.connect(args, view_uuid, Uuid([0x78; 16]))?;
        node.engine = engine;
        node.up = true;
        Ok(())
    }

    /// What a member's engine asks of its disk.
    pub(super) fn disk_effect(&mut self, at: usize, effect: Effect) {
        let disk = &mut self.nodes[at].disk;
        match effect {
            Effect::Write { op, .. } => disk.write(op),
            Effect::Read { whom, from, .. } => disk.reads.push((whom, from)),
            _ => {}
        }
    }
}
