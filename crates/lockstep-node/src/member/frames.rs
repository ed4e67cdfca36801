//! Frames from peers: decoded, checked and dispatched.

use super::{Level, Member};
use crate::effect::Effect;
use crate::pack;
use crate::wire::{FRAME_NODE, FRAME_OPERATOR, FRAME_PACKED, FRAME_RAFT, NodeMessage, OperatorMessage};
use bytes::Bytes;
use lockstep_core::branch::Branch;
use lockstep_core::codec::{DecodeError, Reader};
use lockstep_core::members::{Membership, View};
use lockstep_core::message::{Carried, Message};
use lockstep_core::policy::Policy;
use lockstep_core::raft::Raft;
use lockstep_core::snapshot::TrimMark;
use lockstep_core::vote::VoteOutcome;
use lockstep_core::{Entry, EntryKind, Index, MemberId};

impl Member {
    /// Handles a frame from a connected peer.
    pub(crate) fn frame(&mut self, from: MemberId, kind: u8, payload: Bytes) {
        self.ctx.peers.received(self.ctx.now, &from);
        let (kind, payload) = match kind {
            FRAME_PACKED => match pack::unpack(&payload, &mut self.unpacked) {
                Ok(inner) => inner,
                Err(error) => return self.bad_message(from, &error),
            },
            _ => (kind, payload),
        };
        let bad = match kind {
            FRAME_RAFT => match Message::decode(payload) {
                Ok(message) => {
                    if let Some(unreadable) = unreadable_control(&self.ctx.raft, from, &message) {
                        return self.stop_at_unreadable(from, &unreadable);
                    }
                    self.ctx.raft.step(self.ctx.now, from, message);
                    self.leadership.contact(self.ctx.now, self.ctx.raft.leader(), from);
                    return;
                }
                Err(error) => error,
            },
            FRAME_NODE => match NodeMessage::from_bytes(payload) {
                Ok(message) => return self.node_message(from, message),
                Err(error) => error,
            },
            FRAME_OPERATOR => match OperatorMessage::from_bytes(payload) {
                Ok(message) => return self.operator_message(from, message),
                Err(error) => error,
            },
            // A later version's frame: the peer knows that this version does not understand it.
            _ => return,
        };
        self.bad_message(from, &bad);
    }

    /// A member that cannot read its leader's control entry must say so and stop, or it would wait for it for ever.
    fn stop_at_unreadable(&mut self, from: MemberId, unreadable: &Unreadable) {
        // If the leader is not known for a moment, the sender of its entries stands for it.
        let leader = self.ctx.raft.leader().unwrap_or(from);
        let Unreadable { index, kind, error } = unreadable;
        let text = format!(
            "entry {index} ({kind:?}) of the leader {} {error}: the members are of different versions, or its log is \
             damaged; this member stops",
            self.ctx.name_of(&leader)
        );
        self.fail(&text);
    }

    /// A peer's frame cannot be read.
    fn bad_message(&mut self, from: MemberId, error: &DecodeError) {
        let name = self.ctx.name_of(&from);
        let text = format!("a message from {name} {error}: the connection is closed and made again");
        self.ctx.log(Level::Warn, text);
        self.ctx.out.push(Effect::Drop(from));
    }
}

/// A control entry that cannot be read.
struct Unreadable {
    index: Index,
    kind: EntryKind,
    error: DecodeError,
}

/// The first control entry in a leader's message that cannot be read, before any of them is taken.
fn unreadable_control(raft: &Raft, from: MemberId, message: &Message) -> Option<Unreadable> {
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
