//! The outputs of a round.

use super::local::{Local, Role};
use super::write::WriteOp;
use crate::members::Membership;
use crate::message::Message;
use crate::types::*;
use std::sync::Arc;

/// An output of a round.
#[derive(Clone, PartialEq, Debug)]
pub enum Output {
    /// Send a message now; nothing it depends on is still in flight to the disk.
    Send {
        /// The receiver.
        to: MemberId,
        /// The message.
        message: Message,
    },
    /// Write to the log; answer with [`super::Raft::written`].
    Write(WriteOp),
    /// Read entries from the log for a peer that lags; answer with [`super::Raft::fetched`].
    Fetch {
        /// The peer.
        to: MemberId,
        /// The first entry.
        from: Index,
        /// Stop after this number of bytes.
        max_bytes: usize,
    },
    /// The commit index has moved, or another limit of delivery.
    Commit {
        /// The commit index.
        index: Index,
        /// Up to here entries are committed, and on the own disk.
        deliverable: Index,
        /// Up to here entries may be delivered to the server of this member: [`super::Raft::early`].
        early: Index,
        /// Up to here every entry meets its policy: [`super::Raft::policy_index`].
        policy_index: Index,
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
        /// The result of [`super::Raft::read_index`].
        context: u64,
        /// The index that must have been delivered.
        index: Index,
    },
    /// The read index is unknown; ask again.
    ReadFailed {
        /// The result of [`super::Raft::read_index`].
        context: u64,
    },
    /// The log loses entries from `from` on, and this member has delivered some of them before they were committed. Its
    /// database has transactions that the cluster lacks, so the member must not continue with it.
    Diverged {
        /// The first lost entry.
        from: Index,
        /// The last seqno before it: every later one that this member's threads were given is lost.
        kept: Seqno,
    },
    /// This leader steps down because it can commit nothing: too few disks of voters work.
    DisksHang {
        /// The voters whose disks have completed no write, and for how long.
        disks: Vec<(MemberId, Micros)>,
    },
    /// Another membership is in force.
    Membership(Arc<Membership>),
}

/// Collects the outputs of a round, and remembers the values last reported.
#[derive(Debug)]
pub(super) struct Outputs {
    queue: Vec<Output>,
    role: Role,
    term: Term,
    leader: Option<MemberId>,
    /// The fields of the last [`Output::Commit`].
    limits: [Index; 4],
    membership: Arc<Membership>,
}

impl Outputs {
    pub(super) fn new() -> Outputs {
        Outputs {
            queue: Vec::new(),
            role: Role::Follower,
            term: 0,
            leader: None,
            limits: [0; 4],
            membership: Arc::new(Membership::default()),
        }
    }

    pub(super) fn send(&mut self, to: MemberId, message: Message) {
        self.queue.push(Output::Send { to, message });
    }

    pub(super) fn push(&mut self, output: Output) {
        self.queue.push(output);
    }

    /// Reports what has changed since the last round. `early` and `policy_index` are the limits of the commit policy.
    pub(super) fn report(&mut self, local: &Local, early: Index, policy_index: Index) {
        let (role, term, leader) = (local.role(), local.term(), local.leader());
        if (self.role, self.term, self.leader) != (role, term, leader) {
            (self.role, self.term, self.leader) = (role, term, leader);
            self.push(Output::Soft { role, term, leader });
        }
        if !Arc::ptr_eq(&self.membership, local.membership()) {
            let membership = local.membership().clone();
            if *membership != *self.membership {
                self.push(Output::Membership(membership.clone()));
            }
            self.membership = membership;
        }
        let (index, deliverable) = (local.commit(), local.deliverable());
        let limits = [index, deliverable, early, policy_index];
        if self.limits != limits {
            self.limits = limits;
            self.push(Output::Commit { index, deliverable, early, policy_index });
        }
    }

    /// The outputs since the last call.
    pub(super) fn take(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.queue)
    }
}
