//! The Raft consensus core, without I/O.
//!
//! Inputs are method calls: time, messages, proposals, completed writes. [`Raft::drain`] ends a round and returns the
//! outputs: all inputs since the last round make one write, and one message for each peer that needs one.
//!
//! Differences from the paper (Ongaro and Ousterhout, 2014):
//! - **Everyone counts acks.** A member acknowledges to the leader and to those whose proposals are not committed yet,
//!   so an origin learns of the commit without a message from the leader (`ack.rs`).
//! - **One copy for each zone.** A member of another zone passes the leader's entries on to its neighbours (`relay/`).
//! - **The leader's disk is one of many.** Its appends leave before its own write is durable; it counts itself like
//!   anybody.
//! - **Proposals are exactly once**: the log itself knows the last number of each member (`proposals.rs`).
//! - **Snapshots hold no data**: a snapshot is the replicated state before a segment. The database belongs to the server.
//!
//! Start reading at [`Raft`], then `election.rs`, `follower.rs`, `leader.rs`.
//!
//! **Invariant:** no message from any sender makes this code panic. Invalid messages are ignored.

mod accessors;
mod ack;
mod api;
mod branch;
mod commit_policy;
mod config;
mod disk;
mod election;
mod failpoints;
mod follower;
mod invariants;
mod leader;
mod log;
mod log_recovery;
mod membership;
mod progress;
mod proposals;
mod read_index;
mod relay;
mod restore;
mod streams;
mod tail_fetch;
mod wait_times;

pub use branch::BranchError;
pub use commit_policy::BlockedOn;
pub use config::Config;
pub use disk::Vote;
pub use failpoints::{FAILPOINTS, Failpoint, Failpoints};
pub use log::Gap;
pub use progress::{PeerProgress, ProgressState};
pub use restore::{RestoreBuilder, Restored};

use crate::members::{Membership, ViewMember};
use crate::message::Message;
use crate::snapshot::StateSnapshot;
use crate::types::*;
use config::Rng;
use disk::Disk;
use log::Log;
use progress::Progress;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The Raft role of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Takes what a leader sends, if there is one.
    Follower,
    /// Asks for pre-votes.
    PreCandidate,
    /// Asks for votes.
    Candidate,
    /// Appends and replicates.
    Leader,
}

/// An output of a round.
#[derive(Clone, PartialEq, Debug)]
pub enum Output {
    /// Send a message now; nothing it depends on is still in flight to the disk.
    Send {
        /// To whom.
        to: MemberId,
        /// What.
        message: Message,
    },
    /// Write it; answer with [`Raft::written`].
    Write(WriteOp),
    /// Read entries from the log for a peer that lags; answer with [`Raft::fetched`].
    Fetch {
        /// For whom.
        to: MemberId,
        /// The first entry.
        from: Index,
        /// Bytes of entries that should do.
        max_bytes: usize,
    },
    /// The commit index, or the durable part of the log below it, has moved: deliver up to [`Raft::deliverable`].
    Commit {
        /// The commit index.
        index: Index,
    },
    /// The leader, the term or our role has changed.
    Soft {
        /// Our role.
        role: Role,
        /// Our term.
        term: Term,
        /// The leader, if known.
        leader: Option<MemberId>,
    },
    /// A read may go on once everything up to `index` has been delivered.
    ReadReady {
        /// What [`Raft::read_index`] returned.
        context: u64,
        /// The index that must have been delivered.
        index: Index,
    },
    /// Nobody could say; ask again.
    ReadFailed {
        /// What [`Raft::read_index`] returned.
        context: u64,
    },
    /// The log gives up entries from here on of which this member has delivered some before they were committed: its
    /// database has what the cluster has not. It must not go on with it.
    Diverged {
        /// The first entry that is given up.
        from: Index,
    },
    /// Another membership is in force.
    Membership(Arc<Membership>),
}

/// One write to the log. Its parts are to be done in the order of the fields; all are durable, or none may be
/// answered with [`Raft::written`].
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
    /// Keep this vote. The commit hint beside it, if any, must not be above [`Raft::deliverable`].
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

pub use membership::{ChangeError, ControlError, TransferError};

/// The Raft core of one member.
///
/// **Invariants:** `voted_for` and the log's `matched` belong to `term`. `leader` is of `term`.
#[derive(Debug)]
pub struct Raft {
    config: Config,
    rng: Rng,
    /// The latest time that we were told.
    now: Micros,
    /// The wall clock of this round, for the entries' own time.
    wall: Micros,

    /// The highest term that we know of.
    term: Term,
    /// Our vote in it.
    voted_for: Option<MemberId>,
    role: Role,
    leader: Option<MemberId>,
    /// Time of the leader's last message.
    last_leader_contact: Option<Micros>,
    /// Consecutive own terms that ended by lost quorum before anything was committed.
    fruitless_terms: u32,
    /// The connection to it has broken since.
    leader_gone: bool,
    /// When to campaign, or to campaign again.
    election_deadline: Micros,
    /// See [`Raft::set_leader_timeout`].
    leader_timeout: Micros,
    /// The answers to our campaign.
    votes: BTreeMap<MemberId, bool>,
    /// Replies to the log survey of a forced bootstrap.
    tail_replies: Option<BTreeMap<MemberId, bool>>,

    log: Log,
    disk: Disk,
    /// Decides when commits may return.
    commit_policy: commit_policy::CommitPolicy,
    /// The log recovery before a campaign.
    log_recovery: Option<log_recovery::LogRecovery>,
    /// The longest round trip to anybody.
    longest_rtt: Micros,
    /// A candidate is fetching our log tail.
    tail_fetch: Option<tail_fetch::TailFetch>,
    /// Members that the transport is connected with.
    up: BTreeSet<MemberId>,
    /// Our entry in views.
    own_view_member: Option<ViewMember>,
    /// Acks by member: term and persisted index.
    acks: BTreeMap<MemberId, (Term, Index)>,

    /// Acks to send to the leader and the origins.
    pending_acks: ack::PendingAcks,
    /// The leader's view of its peers: all other members, and those that were just removed. Empty for others.
    peers: BTreeMap<MemberId, Progress>,
    lead: leader::Lead,
    outbox: proposals::Outbox,
    reads: read_index::Reads,
    relays: relay::Relays,

    /// The last seqno finished by our server.
    finished: Seqno,
    /// Our database's position.
    position: Option<Seqno>,

    outputs: Vec<Output>,
    /// The values last reported in outputs.
    told: LastReported,
}

#[derive(Debug)]
struct LastReported {
    role: Role,
    term: Term,
    leader: Option<MemberId>,
    commit: Index,
    deliverable: Index,
    membership: Arc<Membership>,
}
