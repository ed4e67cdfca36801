//! The basic types of the log: identities, positions, entries.

use crate::codec::{DecodeError, Reader, Writer};
use bytes::Bytes;
use std::cmp::Ordering;
use std::fmt;

/// An entry's position in the log, from 1. 0 is the position before the first entry.
pub type Index = u64;
/// A Raft term. 0 is before the first election.
pub type Term = u64;
/// The number of an entry that servers receive, without gaps. −1 is undefined.
pub type Seqno = i64;
/// Microseconds: of a monotonic clock in `now`, of the wall clock since 1970 in an entry.
pub type Micros = u64;

/// No seqno.
pub const SEQNO_UNDEFINED: Seqno = -1;

/// 16 bytes, printed in the canonical form of a UUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

/// The order of the bytes, compared as one number: maps and memberships are searched by it all the time.
impl Ord for Uuid {
    fn cmp(&self, other: &Uuid) -> Ordering {
        u128::from_be_bytes(self.0).cmp(&u128::from_be_bytes(other.0))
    }
}

impl PartialOrd for Uuid {
    fn partial_cmp(&self, other: &Uuid) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

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
/// Identity of a member in the views of servers, new at each connect.
pub type ViewUuid = Uuid;

/// History UUID and seqno: a position of a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gtid {
    /// The history.
    pub uuid: Uuid,
    /// The last seqno of it that the database has.
    pub seqno: Seqno,
}

impl Gtid {
    /// No position.
    pub const UNDEFINED: Gtid = Gtid { uuid: Uuid::NIL, seqno: SEQNO_UNDEFINED };

    /// Whether history and seqno are known.
    pub fn is_defined(&self) -> bool {
        !self.uuid.is_nil() && self.seqno >= 0
    }
}

impl fmt::Display for Gtid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uuid, self.seqno)
    }
}

/// The identity of a proposal. By it a leader recognises a proposal that is sent again after a change of leader.
///
/// **Invariant:** for each (member, incarnation) the log holds the numbers 1, 2, 3, … in this order without a gap. So a
/// proposal is new if its number follows the last one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct ProposalId {
    /// The origin. Nil for a leader's own entry.
    pub member: MemberId,
    /// The origin's incarnation: how often it has opened its log.
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
    /// The commit policy ([`crate::policy`]). In force once committed.
    Policy = 5,
    /// A trim mark of certification ([`crate::snapshot::TrimMark`]). In force once committed.
    Trim = 6,
    /// A piece of a large write-set; the pieces precede the entry that uses them.
    Piece = 7,
    /// A note of a state transfer, and other remarks for people.
    Note = 8,
    /// The outcome of a vote on a result ([`crate::vote::VoteOutcome`]). In force once committed.
    Outcome = 9,
    /// The log goes on as another branch, by an operator's order ([`crate::branch`]). In force once appended.
    Branch = 10,
}

impl EntryKind {
    /// Whether servers receive entries of this kind. Only these have seqnos of their own.
    pub fn takes_seqno(self) -> bool {
        matches!(self, EntryKind::WriteSet | EntryKind::TotalOrder | EntryKind::View)
    }

    /// Whether any member may propose entries of this kind. Only the leader makes the others.
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
    /// Its index.
    pub index: Index,
    /// The term of the leader that appended it.
    pub term: Term,
    /// Its kind.
    pub kind: EntryKind,
    /// The entry's own seqno if its kind takes one, otherwise the last one before.
    pub seqno: Seqno,
    /// The proposal that it came from. Default (nil) for a leader's own entries.
    pub proposal: ProposalId,
    /// The leader's wall clock at the append, in µs since 1970. Used only in reports and for delayed apply.
    pub time: Micros,
}

/// An entry of the log, encoded once. The disk and all peers get the same body.
///
/// It dereferences to its [`EntryHeader`]. The header cannot be changed, because the body would contradict it.
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
    /// [`DecodeError`] if the body is too short or of an unknown kind.
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

    /// The approximate size in memory, in the log and on the wire; exact enough for limits.
    pub fn size(&self) -> usize {
        64 + self.body.len() - ENTRY_BODY_HEADER
    }

    /// The encoded entry without index and term, as the log and messages store it.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The contents; shares the body's memory.
    pub fn payload(&self) -> Bytes {
        self.body.slice(ENTRY_BODY_HEADER..)
    }
}
