//! Why the core refuses a command.

use crate::types::MemberId;
use std::fmt;

/// Only a leader can do that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotLeader {
    /// The leader, if known.
    pub leader: Option<MemberId>,
}

impl fmt::Display for NotLeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.leader {
            Some(id) => write!(f, "this member does not lead; ask {id}"),
            None => f.write_str("this member does not lead, and knows no leader; try again later"),
        }
    }
}

impl std::error::Error for NotLeader {}

/// Why a membership cannot be changed now, or not like this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChangeError {
    /// Only a leader can.
    NotLeader(NotLeader),
    /// The previous change, or everything of this term, is not committed yet: try again soon.
    TooEarly,
    /// Leadership is being handed over.
    HandingOver,
    /// More than one voter would change.
    TooMuch,
    /// No voter would be left.
    NoVoters,
    /// Ids not sorted and unique.
    Malformed,
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChangeError::NotLeader(who) => return who.fmt(f),
            ChangeError::TooEarly => "the previous change of members is not committed yet; try again soon",
            ChangeError::HandingOver => "leadership is being handed over; ask the next leader",
            ChangeError::TooMuch => "only one voter can change at a time; make one change after the other",
            ChangeError::NoVoters => "this would leave no voter; keep at least one",
            ChangeError::Malformed => "members must be sorted by id, ids unique",
        })
    }
}

impl std::error::Error for ChangeError {}

/// Why a leader's own entry was not placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlError {
    /// Only a leader can, and not while it hands over.
    NotLeader(NotLeader),
    /// The kind is not a leader's own, or the payload is not of that kind.
    Malformed,
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::NotLeader(who) => who.fmt(f),
            ControlError::Malformed => f.write_str("the payload does not fit the kind of entry"),
        }
    }
}

impl std::error::Error for ControlError {}

/// Why leadership is not handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransferError {
    /// Only the leader can.
    NotLeader(NotLeader),
    /// It leads already.
    Ourselves,
    /// It does not vote, so it cannot lead.
    NotVoter,
    /// It is being handed to another.
    Busy,
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TransferError::NotLeader(who) => return who.fmt(f),
            TransferError::Ourselves => "this member leads already",
            TransferError::NotVoter => "that member is not a voter; make it one first",
            TransferError::Busy => "leadership is being handed to another member; try again soon",
        })
    }
}

impl std::error::Error for TransferError {}

/// Why a member does not begin a branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BranchError {
    /// There is a majority: nothing has to be overridden.
    HasQuorum,
    /// It has no log, or the founder is not this member.
    Malformed,
}

impl fmt::Display for BranchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BranchError::HasQuorum => "there is a majority: nothing has to be overridden",
            BranchError::Malformed => "this member has no log to go on with",
        })
    }
}

impl std::error::Error for BranchError {}
