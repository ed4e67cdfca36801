//! Branches: a new history that one member founds by an operator's order, without a majority.
//!
//! The founder cannot know which entries the other members committed without it, or will commit. So the entries that
//! follow belong to another history: a [`crate::EntryKind::Branch`] entry gives the history and the log new names and
//! makes its founder the only voter. Members of the branch before keep what they have, and are never mixed with it: connections compare the
//! names of the logs before anything else is said.

use crate::codec::{DecodeError, Reader, Writer};
use crate::members::{MemberInfo, Membership, Role};
use crate::types::*;
use bytes::Bytes;

/// So many branches are remembered.
pub const PARENTS_KEPT: usize = 8;

/// The payload of an [`crate::EntryKind::Branch`] entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Branch {
    /// The new history.
    pub history: Uuid,
    /// The new log of it.
    pub log_id: Uuid,
    /// The founder: the only member from here on.
    pub founder: MemberInfo,
}

impl Branch {
    /// As an entry's payload.
    pub fn to_payload(&self) -> Bytes {
        let mut w = Writer::with_capacity(128);
        w.raw(&self.history.0);
        w.raw(&self.log_id.0);
        self.membership().encode(&mut w);
        w.into_bytes()
    }

    /// Reads an entry's payload.
    ///
    /// # Errors
    /// [`DecodeError`] where it is not one.
    pub fn from_payload(payload: Bytes) -> Result<Branch, DecodeError> {
        let mut r = Reader::new(payload);
        let (history, log_id) = (Uuid(r.array()?), Uuid(r.array()?));
        let mut members = Membership::decode(&mut r)?.members;
        r.end()?;
        match members.pop() {
            Some(founder) if members.is_empty() && founder.role == Role::Voter && !history.is_nil() => {
                Ok(Branch { history, log_id, founder })
            }
            _ => Err(DecodeError::Invalid("founder of a branch")),
        }
    }

    /// The members from here on.
    pub fn membership(&self) -> Membership {
        Membership { members: vec![self.founder.clone()] }
    }
}

/// Where a branch left the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parent {
    /// The history of before.
    pub history: Uuid,
    /// The log of it.
    pub log_id: Uuid,
    /// The last entry that both have.
    pub index: Index,
    /// Its term.
    pub term: Term,
    /// Its seqno.
    pub seqno: Seqno,
    /// The founder.
    pub founder: MemberId,
}

impl Parent {
    pub(crate) fn encode(&self, w: &mut Writer) {
        let Parent { history, log_id, index, term, seqno, founder } = self;
        w.raw(&history.0);
        w.raw(&log_id.0);
        w.u64(*index);
        w.u64(*term);
        w.i64(*seqno);
        w.raw(&founder.0);
    }

    pub(crate) fn decode(r: &mut Reader) -> Result<Parent, DecodeError> {
        Ok(Parent {
            history: Uuid(r.array()?),
            log_id: Uuid(r.array()?),
            index: r.u64()?,
            term: r.u64()?,
            seqno: r.i64()?,
            founder: Uuid(r.array()?),
        })
    }
}
