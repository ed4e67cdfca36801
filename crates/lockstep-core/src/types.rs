//! The words of the log: who, where, what.

use crate::codec::{DecodeError, Reader, Writer};
use bytes::Bytes;
use std::fmt;

/// An entry's place in the log, from 1. 0 is the place before the first entry.
pub type Index = u64;
/// A leader's term of office. 0 is before the first election.
pub type Term = u64;
/// What the server sees: dense over the entries that servers receive. −1 is undefined.
pub type Seqno = i64;
/// Microseconds. Of a monotonic clock where it is `now`, of the wall clock since 1970 where it is in an entry.
pub type Micros = u64;

/// A seqno that says nothing.
pub const SEQNO_UNDEFINED: Seqno = -1;

/// 16 bytes, printed in the canonical form of a UUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// All zeros: undefined.
    pub const NIL: Uuid = Uuid([0; 16]);

    /// Whether this is the undefined UUID.
    pub fn is_nil(&self) -> bool {
        self.0 == [0; 16]
    }

    /// Parses the canonical form, 36 characters with dashes.
    pub fn parse(text: &str) -> Option<Uuid> {
        let raw = text.as_bytes();
        if raw.len() != 36 {
            return None;
        }
        let mut out = [0u8; 16];
        let mut nibble = 0;
        for (at, &c) in raw.iter().enumerate() {
            if matches!(at, 8 | 13 | 18 | 23) {
                if c != b'-' {
                    return None;
                }
                continue;
            }
            let value = (c as char).to_digit(16)? as u8;
            out[nibble / 2] |= value << (4 * (1 - nibble % 2));
            nibble += 1;
        }
        Some(Uuid(out))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}{:02x}{:02x}{:02x}", self.0[0], self.0[1], self.0[2], self.0[3])
    }
}

/// Identity of a member in the log: stored in its log folder, new when the log is lost.
pub type MemberId = Uuid;
/// Identity of a member towards servers: fresh at each connect.
pub type ViewUuid = Uuid;

/// History UUID and seqno: a point in the life of the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gtid {
    /// Which history.
    pub uuid: Uuid,
    /// Which point of it.
    pub seqno: Seqno,
}

impl Gtid {
    /// No history, no point.
    pub const UNDEFINED: Gtid = Gtid { uuid: Uuid::NIL, seqno: SEQNO_UNDEFINED };

    /// Whether it names a point of a history.
    pub fn is_defined(&self) -> bool {
        !self.uuid.is_nil() && self.seqno >= 0
    }
}

impl fmt::Display for Gtid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uuid, self.seqno)
    }
}

/// Names a proposal, so that one that is sent again after a change of leader is recognised.
///
/// **Invariant:** of one (member, incarnation) the log holds the numbers 1, 2, 3, … in this order without a gap
/// (first in, first out): that the last number decides whether a proposal is new is all that deduplication needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct ProposalId {
    /// The origin. Nil where a leader made the entry of its own accord.
    pub member: MemberId,
    /// Which life of the origin's process: grows with each start.
    pub incarnation: u64,
    /// Dense from 1 within the incarnation.
    pub number: u64,
}

/// The kind of an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum EntryKind {
    /// A new leader's first entry: it commits what its predecessors left.
    Noop = 0,
    /// One transaction's changes. Takes a seqno.
    WriteSet = 1,
    /// A statement in total order (DDL). Takes a seqno.
    TotalOrder = 2,
    /// The connected members ([`crate::members::View`]). Takes a seqno.
    View = 3,
    /// The members of the group ([`crate::members::Membership`]). In force once appended.
    Membership = 4,
    /// Whom commits wait for ([`crate::policy`]). Acts at commit.
    Policy = 5,
    /// How far certification may forget ([`crate::snapshot::TrimMark`]). Acts at commit.
    Trim = 6,
    /// A piece of a large write-set; the pieces precede the entry that uses them.
    Piece = 7,
    /// A note of a state transfer, and other remarks for people.
    Note = 8,
    /// How a vote on a result has ended ([`crate::vote::VoteOutcome`]). Acts at commit.
    Outcome = 9,
    /// The log goes on as another branch, by an operator's order ([`crate::branch`]). In force once appended.
    Branch = 10,
}

impl EntryKind {
    /// Whether servers receive it, so that it takes a seqno.
    pub fn takes_seqno(self) -> bool {
        matches!(self, EntryKind::WriteSet | EntryKind::TotalOrder | EntryKind::View)
    }

    /// Whether any member may propose it (the others are the leader's own).
    pub fn may_be_proposed(self) -> bool {
        matches!(self, EntryKind::WriteSet | EntryKind::TotalOrder | EntryKind::Piece | EntryKind::Note)
    }

    /// The kind of this number.
    pub fn from_u8(raw: u8) -> Option<EntryKind> {
        use EntryKind::*;
        [Noop, WriteSet, TotalOrder, View, Membership, Policy, Trim, Piece, Note, Outcome, Branch]
            .into_iter()
            .find(|k| *k as u8 == raw)
    }
}

/// All fields of an entry except its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryHeader {
    /// Its place.
    pub index: Index,
    /// The term of the leader that placed it.
    pub term: Term,
    /// Its kind.
    pub kind: EntryKind,
    /// The seqno of the log up to and with this entry: its own where the kind takes one, else the last one before.
    pub seqno: Seqno,
    /// The proposal that it came from. Default (nil) for a leader's own entries.
    pub proposal: ProposalId,
    /// The leader's wall clock when it was placed, in µs since 1970. For people and for delayed apply only.
    pub time: Micros,
}

/// One entry of the log, encoded once: its body is what the disk and all peers get.
///
/// The fields of its [`EntryHeader`] can be read as its own. They cannot be changed: the body would contradict them.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    header: EntryHeader,
    /// The header without index and term, then the payload.
    body: Bytes,
}

/// Bytes of an entry's body before its payload.
pub const ENTRY_BODY_HEADER: usize = 1 + 8 + 8 + 16 + 8 + 8;

impl std::ops::Deref for Entry {
    type Target = EntryHeader;

    fn deref(&self) -> &EntryHeader {
        &self.header
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("header", &self.header).field("payload", &self.payload()).finish()
    }
}

impl Entry {
    /// Encodes an entry. This copies the payload, once for the disk and all peers.
    pub fn new(header: EntryHeader, payload: &[u8]) -> Entry {
        let EntryHeader { index: _, term: _, kind, seqno, proposal, time } = header;
        let mut w = Writer::with_capacity(ENTRY_BODY_HEADER + payload.len());
        w.u8(kind as u8);
        w.i64(seqno);
        w.u64(time);
        w.raw(&proposal.member.0);
        w.u64(proposal.incarnation);
        w.u64(proposal.number);
        debug_assert_eq!(w.len(), ENTRY_BODY_HEADER);
        w.raw(payload);
        Entry { header, body: w.into_bytes() }
    }

    /// Reads an entry back from its body, which it keeps. Index and term are outside the body: a record of the log and
    /// a message have them in their own headers.
    ///
    /// # Errors
    /// [`DecodeError`] where the body is too short or of an unknown kind.
    pub fn decode_body(index: Index, term: Term, body: Bytes) -> Result<Entry, DecodeError> {
        let mut r = Reader::new(body.clone());
        let kind = EntryKind::from_u8(r.u8()?).ok_or(DecodeError::Invalid("entry kind"))?;
        let seqno = r.i64()?;
        let time = r.u64()?;
        let member = Uuid(r.array()?);
        let incarnation = r.u64()?;
        let number = r.u64()?;
        let proposal = ProposalId { member, incarnation, number };
        Ok(Entry { header: EntryHeader { index, term, kind, seqno, proposal, time }, body })
    }

    /// Bytes that it takes in memory, in the log and on the wire, near enough for limits.
    pub fn size(&self) -> usize {
        64 + self.body.len() - ENTRY_BODY_HEADER
    }

    /// What the log keeps as a record's body, and messages as an entry's.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The contents; shares the body's memory.
    pub fn payload(&self) -> Bytes {
        self.body.slice(ENTRY_BODY_HEADER..)
    }
}
