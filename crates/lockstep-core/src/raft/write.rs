//! Writes to the disk: entries, votes, and rescued entries.

use super::log::Log;
use crate::snapshot::StateSnapshot;
use crate::types::*;

/// The vote in its durable form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Vote {
    /// The highest known term.
    pub term: Term,
    /// The member that got our vote in that term.
    pub voted_for: Option<MemberId>,
}

/// A write to the log. The node executes its parts in the order of the fields, and calls [`super::Raft::written`] when all
/// are durable.
#[derive(Clone, PartialEq, Debug)]
pub struct WriteOp {
    /// The number of the write, ascending. Completion of a ticket implies that of all lower ones.
    pub ticket: u64,
    /// Write and sync these to a rescue file first: they may have been acknowledged, and the log is about to lose them.
    pub rescue: Vec<Rescue>,
    /// Replace the log by an empty one that begins after this state.
    pub reset: Option<Box<StateSnapshot>>,
    /// Truncate the log from this index on.
    pub truncate_from: Option<Index>,
    /// Begin a new segment with this base.
    pub roll: Option<Box<StateSnapshot>>,
    /// The entries to append.
    pub entries: Vec<Entry>,
    /// The vote to store. The commit hint beside it, if any, must not be above [`super::Raft::deliverable`].
    pub vote: Option<Vote>,
}

/// A tail that the log loses although a weak policy may have acknowledged it.
#[derive(Clone, PartialEq, Debug)]
pub struct Rescue {
    /// The snapshot before the tail.
    pub base: Box<StateSnapshot>,
    /// The entries, dense.
    pub entries: Vec<Entry>,
}

impl Rescue {
    /// The entries from `from` on that a weak policy may have acknowledged, if the loss of any of them matters.
    pub(super) fn from_log(log: &Log, from: Index) -> Option<Rescue> {
        let matters =
            |e: &Entry| matches!(e.kind, EntryKind::WriteSet | EntryKind::TotalOrder | EntryKind::Piece);
        let (mut entries, _) = log.slice(from, Index::MAX, usize::MAX);
        let first = entries.iter().position(|e| log.policy_at(e.index).is_weak())?;
        entries.drain(..first);
        let base = entries.iter().any(matters).then(|| Box::new(log.snapshot_before(entries[0].index)))?;
        Some(Rescue { base, entries })
    }
}
