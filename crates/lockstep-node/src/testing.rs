//! Values for the tests of several modules.

use lockstep_core::raft::WriteOp;
use lockstep_core::{Entry, EntryHeader, EntryKind, ProposalId};

/// A write of one entry, a write-set with a payload of `bytes` bytes. Its index and seqno are the ticket.
pub(crate) fn write_op(ticket: u64, bytes: usize) -> WriteOp {
    let (kind, proposal) = (EntryKind::WriteSet, ProposalId::default());
    let header = EntryHeader { index: ticket, term: 1, kind, seqno: ticket as i64, proposal, time: 0 };
    WriteOp {
        ticket,
        rescue: Vec::new(),
        reset: None,
        truncate_from: None,
        roll: None,
        entries: vec![Entry::new(header, &vec![0; bytes])],
        vote: None,
    }
}
