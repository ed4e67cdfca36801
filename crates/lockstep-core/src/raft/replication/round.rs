//! The inputs of a round.

use crate::message::Message;
use crate::raft::acks::Acks;
use crate::raft::local::Local;
use crate::raft::output::{Output, Outputs};
use crate::types::*;

/// The inputs of a round, and the queue for its messages.
#[derive(Debug)]
pub(in crate::raft) struct Round<'a> {
    local: &'a Local,
    acks: &'a Acks,
    out: &'a mut Outputs,
}

impl<'a> Round<'a> {
    pub(in crate::raft) fn new(local: &'a Local, acks: &'a Acks, out: &'a mut Outputs) -> Round<'a> {
        Round { local, acks, out }
    }

    /// This member's log and state.
    #[inline]
    pub(super) fn local(&self) -> &'a Local {
        self.local
    }

    /// Sends a message to a peer.
    #[inline]
    pub(super) fn send(&mut self, to: MemberId, message: Message) {
        self.out.send(to, message);
    }

    /// Sends an ack to a peer.
    pub(super) fn send_ack(&mut self, to: MemberId) {
        self.out.send(to, self.acks.message(self.local, 0));
    }

    /// Has entries read from the disk for a peer, from `from` on.
    pub(super) fn fetch(&mut self, to: MemberId, from: Index, max_bytes: usize) {
        self.out.push(Output::Fetch { to, from, max_bytes });
    }
}
