//! A node as the log of a device.

use crate::log_member::MessageLog;
use bytes::Bytes;
use lockstep_block::device::{CopyMember, Log, NotSent, Notice, NoticeCall};
use lockstep_node::core::members::ViewMember;
use lockstep_node::core::writeset::{DataKind, Meta, WriteSetBuilder, flags};
use lockstep_node::core::{EntryKind, MemberId, Seqno, Uuid};
use lockstep_node::{LIVE_FOR, Level, LocalState, Node};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The clocks of two members may run apart by this in the time for which a confirmation counts.
const CLOCKS_DIFFER: Duration = Duration::from_millis(100);
/// The state of a member that has caught up.
const SYNCED: &str = "Synced";

/// See the module's documentation.
pub(super) struct NodeLog {
    node: Node,
    lines: Arc<MessageLog>,
    /// The names of all members that a view has listed. The attachment of a removed member is still in the log.
    names: Mutex<HashMap<MemberId, String>>,
}

impl NodeLog {
    pub(super) fn new(node: Node, lines: Arc<MessageLog>) -> NodeLog {
        NodeLog { node, lines, names: Mutex::default() }
    }

    /// The view lists these members.
    pub(super) fn viewed(&self, members: &[ViewMember]) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.extend(members.iter().map(|member| (member.id, member.name.clone())));
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }
}

impl Log for NodeLog {
    fn submit(&self, payload: Bytes, notice: NoticeCall) -> Result<(), NotSent> {
        let mut builder = WriteSetBuilder::new();
        builder.append_data(DataKind::Ordered, &payload).map_err(|_| NotSent)?;
        let meta = Meta {
            flags: flags::TRX_START | flags::TRX_END | flags::PA_UNSAFE,
            last_seen: self.node.last_committed().max(0),
            source: self.node.identity().view_uuid,
            epoch: 0,
            conn: 0,
            trx: 0,
        };
        let payload = builder.finish(&meta);
        debug_assert!(
            payload.len() <= lockstep_node::IN_ORDER_BYTES,
            "the log keeps the order of small entries"
        );
        let call = move |said| {
            notice(match said {
                lockstep_node::Notice::Acknowledged { after } => Notice::Acknowledged { after },
                lockstep_node::Notice::Lost => Notice::Lost,
            });
        };
        self.node.submit_with(EntryKind::WriteSet, payload, Box::new(call)).map_err(|_| NotSent)
    }

    fn finished(&self, seqno: Seqno) {
        self.node.finished(seqno);
    }

    fn confirmed(&self) -> Option<Seqno> {
        self.node.confirmed()
    }

    fn confirmed_for(&self) -> Duration {
        LIVE_FOR + CLOCKS_DIFFER
    }

    fn has_majority(&self) -> bool {
        // A member whose copy is being made is in a primary component, though it may not write yet.
        self.node.is_primary() || self.node.state() == LocalState::Joining
    }

    fn knows_leader(&self) -> bool {
        !self.node.status().cluster.leader.is_empty()
    }

    fn waits_for(&self) -> Option<String> {
        self.node.status().own.waits_for.clone()
    }

    fn refusal(&self) -> Option<String> {
        if self.node.may_originate() {
            return None;
        }
        let status = self.node.status();
        Some(format!(
            "under this protocol only the leader's clients write, and {} leads: attach there, or run `lockstep block promote` \
             here",
            if status.cluster.leader.is_empty() { "nobody" } else { &status.cluster.leader }
        ))
    }

    fn member(&self) -> MemberId {
        self.node.identity().member
    }

    fn name_of(&self, member: &MemberId) -> String {
        let id = member.to_string();
        let status = self.node.status();
        if let Some(found) = status.members.iter().find(|member| member.id == id) {
            return found.name.clone();
        }
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(member).cloned().unwrap_or_else(|| format!("a removed member ({id})"))
    }

    fn is_connected(&self, member: &MemberId) -> bool {
        let id = member.to_string();
        self.node.status().members.iter().any(|member| member.id == id && member.is_connected())
    }

    fn copies(&self) -> Vec<CopyMember> {
        let status = self.node.status();
        let copies = status.members.iter().filter(|member| !member.arbitrator);
        let copy = |member: &lockstep_node::MemberStatus| {
            let ready = member.is_connected() && member.state == SYNCED;
            Some(CopyMember { member: Uuid::parse(&member.id)?, name: member.name.clone(), ready })
        };
        copies.filter_map(copy).collect()
    }

    fn note(&self, warn: bool, text: &str) {
        self.lines.write(if warn { Level::Warn } else { Level::Info }, text);
    }
}
