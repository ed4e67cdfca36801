//! The actions that a member requests from its threads: the only effect type of the node.
//!
//! This file imports no component, so that members' decisions and the I/O do not depend on each other.

use crate::api::{Level, NodeError};
use crate::operator::Answer;
use bytes::Bytes;
use lockstep_core::policy::Policy;
use lockstep_core::raft::WriteOp;
use lockstep_core::{Gtid, Index, MemberId, Seqno, Uuid};
use std::time::Duration;

/// How long a sync that no commit needs may be deferred, so that more entries share it.
pub(crate) const SYNC_DEFERRAL: Duration = Duration::from_millis(6);

/// Why old entries are read from the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadFor {
    /// For a peer that is behind the cache.
    Peer(MemberId),
    /// For this member's own delivery.
    Deliverer,
}

/// Old entries to read from the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadRequest {
    pub(crate) whom: ReadFor,
    pub(crate) from: Index,
    pub(crate) max_bytes: usize,
}

/// Entries that are in the log and could not be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReadFailure {
    /// The file and the cause, for people.
    pub(crate) text: String,
    /// The bytes on the disk differ from those written, so that another read has no other result.
    pub(crate) damaged: bool,
}

/// Actions that the member requests from its node.
#[derive(Debug)]
pub(crate) enum Effect {
    /// A frame to a connected peer. The parts of its payload follow one another; long ones share the entries' bytes.
    Send { to: MemberId, kind: u8, payload: Vec<Bytes> },
    /// Write to the log, in this order; answered by `Member::written`. With `may_defer`, no commit needs the sync, and it
    /// may be delayed by [`SYNC_DEFERRAL`].
    Write { op: WriteOp, may_defer: bool },
    /// Read entries from the log; answered by `Member::read`.
    Read(ReadRequest),
    /// Whole segments of the log may be removed.
    TrimLog(TrimLimits),
    /// Keep trying to connect to this address.
    Dial(String),
    /// Close the connection to this peer.
    Drop(MemberId),
    /// [`crate::Node::connect`] may return.
    Connected(Result<(), NodeError>),
    /// [`crate::Node::disconnect`] may return: no connection is needed any more.
    Left,
    /// Write a line to the error log.
    Log(Level, String),
    /// Seqnos in all and seqnos done before this member is Synced.
    Progress { total: Seqno, done: Seqno },
    /// An event for the server: a JSON object.
    Event(String),
    /// This policy is in force from now on.
    PolicyNow(Policy),
    /// The requested policy is in force, or why it is not.
    PolicyChanged(Result<(), String>),
    /// A causal read may continue when this seqno has finished (`None`: no majority).
    Causal { id: u64, seqno: Option<Seqno> },
    /// Answers the query `token`: the cluster's committed position, or why it is unknown.
    CommittedPosition { token: u64, result: Result<Gtid, String> },
    /// This member's log must not be used any more: the next start quarantines it, for this reason.
    QuarantineLog(Box<QuarantineRequest>),
    /// The answer to the operator's command `token`.
    Answer { token: u64, answer: Answer },
}

/// The limits of trimming the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TrimLimits {
    /// Keep segments that begin at this index or later, in any case.
    pub(crate) below: Index,
    /// Keep segments that begin beyond this index, as young ones: a connected member has not persisted them.
    pub(crate) wanted: Index,
    /// Keep segments that begin beyond this index, as young ones: the own server has only just finished them.
    pub(crate) flushed: Index,
    /// Trim the log to this size (`log.size`).
    pub(crate) keep_bytes: u64,
    /// Keep segments younger than this, µs since 1970 (`log.keep_min`).
    pub(crate) older_than: u64,
    /// Above this size segments that are young or wanted are removed, too (`log.max_size`).
    pub(crate) max_bytes: u64,
}

/// Why a log is quarantined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum QuarantineRequest {
    /// A branch has replaced it.
    Superseded(Superseded),
    /// It went back in time.
    Reverted {
        /// The owner of the log.
        member: MemberId,
        /// The reason, one line for people.
        why: String,
    },
}

/// The log to give up, and the branch that replaces it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Superseded {
    /// The owner of the log.
    pub(crate) member: MemberId,
    /// History and log id.
    pub(crate) own: (Uuid, Uuid),
    /// The history of the branch that replaces it.
    pub(crate) branch: Uuid,
    /// The last entry that both have.
    pub(crate) fork: Index,
    /// The cluster's name.
    pub(crate) cluster: String,
    /// The address of a member of the branch.
    pub(crate) address: String,
    /// The reason, one line for people.
    pub(crate) why: String,
}
