//! Values for the tests of several modules.

use crate::api::{FrontEnd, NodeConfig, Tuning};
use lockstep_core::raft::WriteOp;
use lockstep_core::{Entry, EntryHeader, EntryKind, ProposalId};
use std::path::Path;

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

/// A member with this data directory, which logs nothing.
pub(crate) fn config(dir: &Path) -> NodeConfig {
    NodeConfig {
        name: "n1".into(),
        data_dir: dir.to_owned(),
        log_dir: None,
        listen: "127.0.0.1:0".into(),
        address: "127.0.0.1:1".into(),
        incoming: String::new(),
        zone: 0,
        wants_vote: true,
        may_begin_anew: true,
        front_end: FrontEnd::Database,
        donates: true,
        hold: None,
        tuning: Tuning::default(),
        tls: None,
        status_address: None,
        logger: std::sync::Arc::new(|_, _| {}),
        front_end_stats: None,
        front_end_status: None,
        allowed: None,
        progress: None,
        event: None,
        policy_changed: None,
        end_server: None,
    }
}
