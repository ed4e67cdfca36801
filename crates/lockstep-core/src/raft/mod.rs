//! The Raft consensus core, without I/O.
//!
//! Inputs are method calls: time, messages, proposals, completed writes. [`Raft::drain`] ends a round and returns the
//! outputs: all inputs since the last round make one write, and one message for each peer that needs one.
//!
//! Differences from the paper (Ongaro and Ousterhout, 2014):
//!
//! - **All members count acks.** A member acknowledges to the leader, and to the origins of uncommitted proposals. So an
//!   origin learns of the commit without a message from the leader (`acks.rs`).
//! - **Zone relays.** A member of another zone forwards the leader's entries to its neighbours (`relay.rs`).
//! - **The leader's disk is one of many.** The leader sends appends before its own write is durable, and counts its own
//!   ack like any other.
//! - **Proposals are exactly once.** The log holds the last proposal number of each member (`proposals.rs`).
//! - **Snapshots hold no data**: a snapshot is the replicated state before a segment. The database belongs to the server.
//!
//! Start reading at [`Raft`] and `inputs.rs`, then `roles.rs`, `log_changes.rs`, `election.rs`, `replication/`.
//!
//! **Invariant:** no message from any sender makes this code panic. Invalid messages are ignored.

mod acks;
mod commit_policy;
mod config;
mod disk;
mod election;
mod errors;
mod failpoints;
mod inflight;
mod inputs;
mod local;
mod log;
mod log_changes;
mod log_recovery;
mod membership;
mod output;
mod positions;
mod proposals;
mod queries;
mod quorum;
mod read_index;
mod relay;
mod replication;
mod restore;
mod roles;
mod stall;
mod standstill;
mod streams;
mod survey;
mod tail_fetch;
#[cfg(test)]
mod testing;
mod transfer;
mod wait_times;
mod witness;
mod write;

pub use commit_policy::BlockedOn;
pub use config::Config;
pub use errors::{BranchError, ChangeError, ControlError, NotLeader, TransferError};
pub use failpoints::{FAILPOINTS, Failpoint, Failpoints};
pub use local::Role;
pub use log::Gap;
pub use output::Output;
pub use replication::{PeerProgress, ProgressState};
pub use restore::{LogEnd, RestoreBuilder, Restored};
pub use witness::Durable;
pub use write::{Rescue, Vote, WriteOp};

use crate::types::*;
use acks::Acks;
use commit_policy::{CommitPolicy, PolicyUpdate};
use election::Election;
use local::Local;
use log::Log;
use log_recovery::LogRecovery;
use output::Outputs;
use positions::Positions;
use proposals::Outbox;
use read_index::Reads;
use relay::Relay;
use replication::{Replication, Round};
use stall::StallCheck;
use standstill::Standstill;
use std::collections::BTreeSet;
use streams::Ends;
use survey::LogSurvey;
use tail_fetch::TailFetch;
use transfer::LeadershipTransfer;
use witness::Witness;

/// The Raft core of one member: routes inputs to its components, and carries on their outputs.
///
/// Each component owns its state. It reads `Local`, and adds messages to `Outputs`. Changes of
/// several components at once are in `roles.rs` (another term, an election) and `log_changes.rs` (a truncation).
#[derive(Debug)]
pub struct Raft {
    local: Local,
    election: Election,
    /// The log survey of a forced bootstrap.
    survey: LogSurvey,
    /// The log recovery before a campaign.
    recovery: LogRecovery,
    /// A candidate fetches our log tail.
    tail_fetch: TailFetch,
    acks: Acks,
    /// Evidence of the other members' disks.
    witness: Witness,
    /// Decides when commits may return.
    commit_policy: CommitPolicy,
    /// The leader's view of its peers, and the messages to them.
    replication: Replication,
    /// The follower's side of relaying.
    relay: Relay,
    transfer: LeadershipTransfer,
    /// Streaming transactions ended by views, as a leader knows them.
    streams: Ends,
    outbox: Outbox,
    reads: Reads,
    /// A leader's entries that its clients wait for: how long none became deliverable.
    commits: Standstill,
    /// A leader's check after stalls of its process.
    stalls: StallCheck,
    /// The connected members.
    up: BTreeSet<MemberId>,
    out: Outputs,
}
