//! Members whose data lack or contradict the log: state transfers, votes on results and verdicts, in-doubt DDL.

pub(in crate::member) mod ending;
pub(in crate::member) mod in_doubt;
pub(in crate::member) mod start_position;
pub(in crate::member) mod transfer;
pub(in crate::member) mod verdict_votes;
pub(in crate::member) mod votes;

use ending::Ending;
use in_doubt::InDoubt;
use transfer::Transfers;
use verdict_votes::VerdictVotes;
use votes::Votes;

/// The components of this folder. Each keeps its fields to itself. They are open because the router lends several to one
/// call.
#[derive(Default)]
pub(in crate::member) struct Recovery {
    /// Votes on results.
    pub(in crate::member) votes: Votes,
    /// Votes on verdicts.
    pub(in crate::member) verdict_votes: VerdictVotes,
    /// State transfers.
    pub(in crate::member) transfers: Transfers,
    /// The statement in which this member was killed.
    pub(in crate::member) in_doubt: InDoubt,
    /// The end of the server process.
    pub(in crate::member) ending: Ending,
}
