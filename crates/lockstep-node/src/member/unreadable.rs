//! Control entries of a leader that this member cannot read: it must say so and stop, or it would wait for them for ever.

use lockstep_core::branch::Branch;
use lockstep_core::codec::{DecodeError, Reader};
use lockstep_core::members::{Membership, View};
use lockstep_core::message::{Carried, Message};
use lockstep_core::policy::Policy;
use lockstep_core::raft::Raft;
use lockstep_core::snapshot::TrimMark;
use lockstep_core::vote::VoteOutcome;
use lockstep_core::{Entry, EntryKind, Index, MemberId};

/// A control entry that cannot be read.
pub(in crate::member) struct Unreadable {
    pub(in crate::member) index: Index,
    pub(in crate::member) kind: EntryKind,
    pub(in crate::member) error: DecodeError,
}

/// The first control entry in a leader's message that cannot be read, before any of them is taken.
pub(in crate::member) fn unreadable_control(
    raft: &Raft,
    from: MemberId,
    message: &Message,
) -> Option<Unreadable> {
    let (entries, is_leaders) = match message {
        Message::Append { entries, .. } | Message::Relay { carried: Carried { entries, .. }, .. } => {
            (entries, raft.leader() == Some(from))
        }
        Message::Relayed { term, carried } => (&carried.entries, raft.takes_relayed(from, *term)),
        _ => return None,
    };
    let unreadable = |entry: &Entry| {
        let error = readable(entry).err()?;
        Some(Unreadable { index: entry.index, kind: entry.kind, error })
    };
    entries.iter().find_map(unreadable).filter(|_| is_leaders)
}

/// Whether an entry that every member must understand can be read.
fn readable(entry: &Entry) -> Result<(), DecodeError> {
    let mut r = Reader::new(entry.payload());
    match entry.kind {
        EntryKind::Membership => Membership::decode(&mut r).map(|_| ())?,
        EntryKind::View => View::decode(&mut r).map(|_| ())?,
        EntryKind::Policy => Policy::decode(&mut r).map(|_| ())?,
        EntryKind::Trim => return TrimMark::from_payload(entry.payload()).map(|_| ()),
        EntryKind::Branch => return Branch::from_payload(entry.payload()).map(|_| ()),
        EntryKind::Outcome => return VoteOutcome::from_payload(entry.payload()).map(|_| ()),
        _ => return Ok(()),
    }
    r.end()
}
