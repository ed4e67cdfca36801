//! A disk in memory: the durable log and vote of one member, and the writes in flight to it.

use lockstep_core::raft::{RestoreBuilder, Restored, Vote, WriteOp};
use lockstep_core::snapshot::StateSnapshot;
use lockstep_core::{Entry, Index};
use std::collections::VecDeque;

/// The durable state.
#[derive(Clone, Default)]
struct Image {
    /// The states before the segments, ascending.
    bases: Vec<StateSnapshot>,
    entries: Vec<Entry>,
    vote: Vote,
}

impl Image {
    fn base(&self) -> Index {
        self.bases.first().map_or(0, |base| base.index)
    }

    fn last(&self) -> Index {
        self.base() + self.entries.len() as u64
    }

    fn apply(&mut self, op: &WriteOp) {
        if let Some(state) = &op.reset {
            self.bases = vec![StateSnapshot::clone(state)];
            self.entries.clear();
        }
        if let Some(from) = op.truncate_from {
            assert!(from > self.base() && from <= self.last(), "truncates entries that are there");
            self.entries.truncate((from - self.base() - 1) as usize);
            self.bases.retain(|base| base.index < from);
        }
        if let Some(state) = &op.roll {
            assert_eq!(state.index, self.last(), "a segment begins where the last one ends");
            self.bases.push(StateSnapshot::clone(state));
        }
        for entry in &op.entries {
            assert_eq!(entry.index, self.last() + 1, "entries are dense on disk");
            self.entries.push(entry.clone());
        }
        if let Some(vote) = op.vote {
            assert!(vote.term >= self.vote.term, "terms only grow");
            self.vote = vote;
        }
    }
}

/// See the module.
///
/// **Invariant:** the tickets of `in_flight` ascend.
#[derive(Default)]
pub(crate) struct Disk {
    image: Image,
    in_flight: VecDeque<WriteOp>,
    /// Up to here entries are known to be committed, as of the last completed write.
    commit_hint: Index,
    /// Writes stay in flight until they are completed by a command.
    slow: bool,
}

impl Disk {
    /// A disk with a log after this state.
    pub(crate) fn with_log(base: StateSnapshot, entries: Vec<Entry>, vote: Vote) -> Disk {
        Disk { image: Image { bases: vec![base], entries, vote }, ..Disk::default() }
    }

    /// The state before the first entry, if there is a log.
    pub(crate) fn base(&self) -> Option<&StateSnapshot> {
        self.image.bases.first()
    }

    pub(crate) fn set_slow(&mut self, slow: bool) {
        self.slow = slow;
    }

    pub(crate) fn is_slow(&self) -> bool {
        self.slow
    }

    /// Accepts a write.
    pub(crate) fn begin(&mut self, op: WriteOp) {
        self.in_flight.push_back(op);
    }

    /// Completes the oldest write in flight, and returns its ticket.
    pub(crate) fn complete(&mut self) -> Option<u64> {
        let op = self.in_flight.pop_front()?;
        self.image.apply(&op);
        Some(op.ticket)
    }

    /// Keeps how far the log is known to be committed.
    pub(crate) fn set_commit_hint(&mut self, deliverable: Index) {
        self.commit_hint = deliverable;
    }

    /// The process has ended: the writes in flight are lost.
    pub(crate) fn crash(&mut self) {
        self.in_flight.clear();
    }

    /// Reads the log back.
    pub(crate) fn restore(&self) -> Option<Restored> {
        let mut builder = RestoreBuilder::new(self.commit_hint);
        let mut bases = self.image.bases.iter().peekable();
        for entry in &self.image.entries {
            while let Some(base) = bases.next_if(|base| base.index < entry.index) {
                builder.base(base.to_bytes()).expect("a base can be read back");
            }
            builder.record(entry.index, entry.term, entry.body().clone()).expect("an entry can be read back");
        }
        for base in bases {
            builder.base(base.to_bytes()).expect("a base can be read back");
        }
        builder.finish(self.image.vote)
    }

    /// Entries from `from` on, read behind all writes in flight; at least one, if there is one.
    pub(crate) fn read(&self, from: Index, max_bytes: usize) -> Vec<Entry> {
        let mut image = self.image.clone();
        self.in_flight.iter().for_each(|op| image.apply(op));
        let mut bytes = 0;
        let wanted = image.entries.into_iter().filter(|entry| entry.index >= from);
        let fits = |entry: &Entry| {
            let first = bytes == 0;
            bytes += entry.size();
            first || bytes <= max_bytes
        };
        wanted.take_while(fits).collect()
    }
}
