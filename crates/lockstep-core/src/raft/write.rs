//! Writes to the disk: entries, votes, and rescued entries.

use super::log::Log;
use crate::snapshot::StateSnapshot;
use crate::types::*;

/// The vote as the disk keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Vote {
    /// The highest term that we have seen.
    pub term: Term,
    /// Whom we gave our vote in it.
    pub voted_for: Option<MemberId>,
}

/// One write to the log. Its parts are to be done in the order of the fields; all are durable, or none may be
/// answered with [`super::Raft::written`].
#[derive(Clone, PartialEq, Debug)]
pub struct WriteOp {
    /// Its number. Ascending; a ticket's arrival means that of all before it.
    pub ticket: u64,
    /// Write these to a rescue file, and have it on the disk, before anything else: they may have been acknowledged,
    /// and the log is about to lose them.
    pub rescue: Vec<Rescue>,
    /// Forget the log; it begins anew after this state.
    pub reset: Option<Box<StateSnapshot>>,
    /// Forget the entries from here on.
    pub truncate_from: Option<Index>,
    /// Begin a new segment with this base.
    pub roll: Option<Box<StateSnapshot>>,
    /// Append these.
    pub entries: Vec<Entry>,
    /// Keep this vote. The commit hint beside it, if any, must not be above [`super::Raft::deliverable`].
    pub vote: Option<Vote>,
}

/// The end of a log that is given up, though a weak policy may have acknowledged it.
#[derive(Clone, PartialEq, Debug)]
pub struct Rescue {
    /// The fold of the log before it.
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
