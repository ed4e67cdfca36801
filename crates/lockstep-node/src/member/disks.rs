//! Members' disks in tests, and restarts from them. A crash leaves everything synced, and a prefix of the later writes;
//! the last record may be torn.

use super::Member;
use super::harness::{Lab, TestSetup};
use crate::api::{ConnectArgs, NodeError};
use crate::effect::{Effect, ReadFor};
use crate::io::opened::KEPT_AT_START;
use lockstep_core::raft::{Raft, RestoreBuilder, Restored, Vote, WriteOp};
use lockstep_core::snapshot::StateSnapshot;
use lockstep_core::{Entry, Index, Term, Uuid};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The commit hint is written at every this many syncs.
const HINT_EVERY: u64 = 16;
/// Entries returned by one read.
const READ_AT_ONCE: usize = 64;

/// The contents of a log.
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

    /// The snapshot after all entries.
    pub(super) fn last_state(&self) -> Option<StateSnapshot> {
        self.state_before(self.last() + 1)
    }

    /// The snapshot before `index`.
    pub(super) fn state_before(&self, index: Index) -> Option<StateSnapshot> {
        let mut state = self.bases.iter().rfind(|base| base.index < index)?.clone();
        for entry in self.entries.range(state.index + 1..index).map(|(_, entry)| entry) {
            state.apply(entry).expect("what was written can be read");
        }
        Some(state)
    }

    /// Restores it as a starting node does.
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
            builder.record(entry.index, entry.term, entry.body().clone()).unwrap();
        }
        for base in bases {
            builder.base(base.to_bytes()).unwrap();
        }
        builder.finish(self.vote)
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Disk {
    /// The log as the running process reads it.
    pub(super) log: Image,
    synced: Image,
    /// Writes not synced yet.
    asked: VecDeque<WriteOp>,
    /// Reads to be answered once all writes so far are synced: the log's thread answers writes first.
    reads: Vec<(ReadFor, Index)>,
    syncs: u64,
    /// Entries in the rescue files.
    pub(super) rescued: Vec<Entry>,
    /// All entries ever written, and all ever synced.
    pub(super) received: BTreeSet<(Index, Term)>,
    pub(super) persisted: BTreeSet<(Index, Term)>,
}

impl Disk {
    pub(super) fn write(&mut self, op: WriteOp) {
        self.log.apply(&op);
        self.received.extend(op.entries.iter().map(|entry| (entry.index, entry.term)));
        self.asked.push_back(op);
    }

    /// Syncs all writes; returns the last ticket, if any is new. `committed`: the commit hint.
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

    /// Answers the reads; the log may have changed since they were requested.
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

    /// A crash: the first `whole` unsynced writes survive, and of the next one the first `entries` entries.
    fn crash(&mut self, whole: usize, entries: usize) {
        for _ in 0..whole {
            let Some(op) = self.asked.pop_front() else { break };
            self.sync_one(&op);
        }
        // The vote is in another file; a truncation takes place before the append.
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
    /// Crashes a member's process. The first `whole` unsynced writes survive, and of the next one the first `entries`
    /// entries.
    pub(super) fn crash(&mut self, at: usize, whole: usize, entries: usize) {
        for other in 0..self.nodes.len() {
            self.unlink(at, other);
        }
        let node = &mut self.nodes[at];
        node.up = false;
        node.disk.crash(whole, entries);
        node.stopped();
    }

    /// Starts it again from its disk.
    ///
    /// # Errors
    /// Those of [`Member::connect`].
    pub(super) fn start(&mut self, at: usize, args: ConnectArgs) -> Result<(), NodeError> {
        let now = self.now;
        let node = &mut self.nodes[at];
        node.setup.starts += 1;
        let TestSetup { starts, .. } = node.setup;
        let me = node.setup.hello();
        let view_uuid =
            Uuid([[at as u8 + 1, starts as u8], [0x40; 2]].concat().repeat(4).try_into().unwrap());
        let raft = Raft::new(node.setup.config(), node.disk.log.restore(), now);
        let mut member = Member::new(raft, me, node.setup.tuning.clone(), node.finished.clone(), now);
        let marks = node.disk.log.entries.values().filter(|e| KEPT_AT_START.contains(&(e.kind as u8)));
        for entry in marks {
            member.remember(entry);
        }
        member.set_commit_barrier(node.hold());
        member.at(now, super::harness::WALL + now);
        node.finished.store(args.position.seqno, std::sync::atomic::Ordering::Release);
        member.connect(args, view_uuid, Uuid([0x78; 16]))?;
        node.member = member;
        node.up = true;
        Ok(())
    }

    /// Executes a member's disk requests.
    pub(super) fn disk_effect(&mut self, at: usize, effect: Effect) {
        let disk = &mut self.nodes[at].disk;
        match effect {
            Effect::Write { op, .. } => disk.write(op),
            Effect::Read { whom, from, .. } => disk.reads.push((whom, from)),
            _ => {}
        }
    }
}
