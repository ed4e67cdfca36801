//! The inputs of a round.

use crate::raft::acks::Acks;
use crate::raft::local::Local;
use crate::raft::output::Outputs;

/// The inputs of a round, and the queue for its messages.
#[derive(Debug)]
pub(in crate::raft) struct Round<'a> {
    pub(super) local: &'a Local,
    pub(super) acks: &'a Acks,
    pub(super) out: &'a mut Outputs,
}

impl<'a> Round<'a> {
    pub(in crate::raft) fn new(local: &'a Local, acks: &'a Acks, out: &'a mut Outputs) -> Round<'a> {
        Round { local, acks, out }
    }
}
