//! Views: when the server may get one, and in which form.

use super::{Applier, Break};
use crate::context::Context;
use crate::host::server_keeps_gtids;
use crate::lifecycle::state_files::{gtid_out, uuid_out};
use crate::provider::capabilities;
use lockstep_abi::*;
use lockstep_node::core::Seqno;
use lockstep_node::{ViewInfo as NodeView, ViewStatus as NodeViewStatus};

/// The view in the server's layout.
pub(super) fn buffer(cx: &Context, info: &NodeView) -> ViewBuffer {
    let member = |member: &lockstep_node::core::members::ViewMember| {
        MemberInfo::new(uuid_out(member.view_uuid), &member.name, &member.incoming)
    };
    let members: Vec<MemberInfo> = info.members.iter().map(member).collect();
    let head = ViewHead {
        state_id: gtid_out(info.gtid),
        view: info.number,
        status: match info.status {
            NodeViewStatus::Primary => ViewStatus::PRIMARY,
            NodeViewStatus::NonPrimary => ViewStatus::NON_PRIMARY,
            NodeViewStatus::Disconnected => ViewStatus::DISCONNECTED,
        },
        capabilities: capabilities(&cx.host.settings),
        my_idx: info.my_index.map_or(-1, |at| at as i32),
        proto_ver: cx.host.proto_ver,
    };
    ViewBuffer::new(head, &members)
}

impl<'a> Applier<'a> {
    /// Waits until the server may get a view.
    pub(super) fn view_ready(&self, info: &NodeView, in_log: bool) -> Result<(), Break<'a>> {
        // Up to the seqno below the view: the server moves its checkpoint only to a view that is ahead of it.
        let before = if in_log { info.before } else { info.gtid.seqno };
        match info.status {
            // Nothing can be written any more, so that it does not matter what has finished.
            NodeViewStatus::NonPrimary => Ok(()),
            NodeViewStatus::Disconnected => self.final_view_ready(before),
            NodeViewStatus::Primary => self.primary_view_ready(info.gtid.seqno, before, in_log),
        }
    }

    fn final_view_ready(&self, before: Seqno) -> Result<(), Break<'a>> {
        // While the server waits for its state, nothing is applied. After a failure, nothing finishes any more.
        if self.provider.awaits_state() {
            return Ok(());
        }
        let sequence = &self.cx.sequence;
        let drained = self.wait(true, |timeout| {
            let last = before.max(sequence.taken()).min(sequence.last_to_start());
            sequence.wait_finished(last, None, Some(timeout))
        });
        match drained {
            Err(overtaken @ Break::Overtaken(..)) => Err(overtaken),
            _ => Ok(()),
        }
    }

    fn primary_view_ready(&self, seqno: Seqno, before: Seqno, in_log: bool) -> Result<(), Break<'a>> {
        let Context { sequence, identity, .. } = self.cx;
        // Stays set until the view may be shown: a view that is overtaken comes here again.
        let first = identity.is_fresh();
        let applies = !first && !self.provider.awaits_state();
        if first {
            sequence.set_position(seqno - 1);
        } else if applies {
            // Own transactions below the view may still be in progress in the server's threads.
            self.drain(before)?;
        }
        if in_log {
            self.wait(true, |timeout| sequence.start(seqno, None, Some(timeout)))?;
        }
        self.wait_for_majority()?;
        if first {
            identity.position_is_set();
        }
        if in_log {
            if applies && before < seqno - 1 {
                // Not earlier: until the view has started, the database is below the seqnos that it leaves out. A
                // backup taken meanwhile, or the state file of a member that leaves, must show that position.
                sequence.leave_out(seqno - 1);
                self.warn_of_lost_gtids(before, seqno);
            }
            sequence.take(seqno);
        }
        Ok(())
    }

    /// The server assigns its own GTIDs in sequence, and reuses those of lost transactions. A session variable moves the
    /// sequence beyond them, which only a client can set.
    fn warn_of_lost_gtids(&self, before: Seqno, seqno: Seqno) {
        if server_keeps_gtids() {
            self.cx.host.log.warn(format!(
                "wsrep_gtid_mode: this server may assign the GTIDs of transactions that were lost with the leader \
                 (seqnos {} to {}) to other transactions. If clients or replicas use GTIDs, skip these GTIDs in the \
                 first transaction of the new leader: SET SESSION wsrep_gtid_seq_no to more than {} above the last one",
                before + 1,
                seqno - 1,
                seqno - before - 1
            ));
        }
    }
}
