//! Members' disks in tests. Everything that was written is there after the next sync.

use super::harness::Lab;
use crate::effect::{Effect, ReadFailure, ReadRequest};
use lockstep_core::raft::{LogEnd, RestoreBuilder, Restored, Vote, WriteOp};
use lockstep_core::snapshot::StateSnapshot;
use lockstep_core::{Entry, Index};
use std::collections::BTreeMap;

/// Entries returned by one read.
const READ_AT_ONCE: usize = 64;

/// The log of one member.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    /// The state that the log begins with.
    base: Option<StateSnapshot>,
    vote: Vote,
    entries: BTreeMap<Index, Entry>,
    /// Where the log ended before damage.
    former_end: Option<LogEnd>,
    /// The ticket of the last write that is not synced.
    unsynced: Option<u64>,
    /// Reads to be answered once all writes so far are synced: the log's thread answers writes first.
    reads: Vec<ReadRequest>,
    /// How many writes came whose sync may be deferred.
    pub(super) deferrable: usize,
    /// Each read fails like this.
    pub(super) read_failure: Option<ReadFailure>,
}

impl Disk {
    fn write(&mut self, op: &WriteOp) {
        if let Some(base) = &op.reset {
            self.entries.clear();
            self.base = Some((**base).clone());
        }
        self.vote = op.vote.unwrap_or(self.vote);
        if let Some(from) = op.truncate_from {
            self.entries.split_off(&from);
        }
        for entry in &op.entries {
            if let Some((last, _)) = self.entries.last_key_value() {
                assert_eq!(entry.index, last + 1, "entries are dense");
            }
            self.entries.insert(entry.index, entry.clone());
        }
        self.unsynced = Some(op.ticket);
    }

    /// Syncs all writes; returns the last ticket, if any is new.
    pub(super) fn sync(&mut self) -> Option<u64> {
        self.unsynced.take()
    }

    /// The log as a new process reads it back.
    pub(super) fn restored(&self) -> Option<Restored> {
        let mut builder = RestoreBuilder::new(0);
        if let Some(base) = &self.base {
            builder.base(base.to_bytes()).expect("a base");
        }
        for entry in self.entries.values() {
            builder.record(entry.index, entry.term, entry.body().clone()).expect("the next record");
        }
        if let Some(former_end) = self.former_end {
            builder.ended_at(former_end);
        }
        builder.finish(self.vote)
    }

    /// Damage takes this many entries at the end of the log, which proves where it had ended.
    pub(super) fn lose_end(&mut self, count: u64) {
        let (index, last) = self.entries.last_key_value().expect("a log with entries");
        let (end, first) = (LogEnd { term: last.term, index: *index }, index + 1 - count);
        self.former_end = self.former_end.max(Some(end));
        self.entries.split_off(&first);
        self.vote = Vote { term: self.vote.term.max(end.term) + 1, voted_for: None };
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Answers the reads; the log may have changed since they were requested.
    pub(super) fn read(&mut self) -> Vec<(ReadRequest, Result<Vec<Entry>, ReadFailure>)> {
        let Disk { entries, read_failure, .. } = self;
        let read = |request: ReadRequest| {
            let found = (request.from..).map_while(|index| entries.get(&index).cloned());
            (request, read_failure.clone().map_or_else(|| Ok(found.take(READ_AT_ONCE).collect()), Err))
        };
        self.reads.drain(..).map(read).collect()
    }
}

impl Lab {
    /// Executes a member's disk requests.
    pub(super) fn disk_effect(&mut self, at: usize, effect: Effect) {
        let disk = &mut self.nodes[at].disk;
        match effect {
            Effect::Write { op, may_defer } => {
                disk.write(&op);
                disk.deferrable += usize::from(may_defer);
            }
            Effect::Read(request) => disk.reads.push(request),
            _ => {}
        }
    }
}
