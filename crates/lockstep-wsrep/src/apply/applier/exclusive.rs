//! Exclusive deliveries: everything but write-sets.

use super::{Applier, Break, Exclusive, Held, Next, view};
use lockstep_node::core::{SEQNO_UNDEFINED, Seqno};
use lockstep_node::{Delivery, Node, ViewStatus as NodeViewStatus};

use crate::lifecycle::state_files::gtid_out;
use crate::sync::Stop;

impl<'a> Applier<'a> {
    pub(super) fn exclusive(&self, node: &Node, delivery: Delivery, exclusive: Exclusive<'a>) -> Next<'a> {
        let cx = self.cx;
        match delivery {
            // Results are for readers of the log: this member's server executes the statements itself.
            Delivery::Ordered(_) | Delivery::Result(_) | Delivery::Closed => Next::Again,
            Delivery::Connected(info) => {
                cx.identity.connected(node.identity().view_uuid, info.gtid);
                cx.view_begins(&info);
                cx.host.log.info(format!("connected as {} at {}", cx.identity.own(), info.gtid));
                Next::Connected(view::buffer(cx, &info), exclusive)
            }
            Delivery::StateNeeded { bypass } => {
                self.provider.begin_transfer(bypass);
                Next::NeedState(exclusive)
            }
            Delivery::StateFailed(_) | Delivery::Failed(_) | Delivery::Inconsistent(_) => {
                self.member_failed(delivery);
                Next::Again
            }
            delivery @ (Delivery::View { .. } | Delivery::Donate { .. } | Delivery::Synced) => {
                self.drained(delivery, exclusive)
            }
        }
    }

    /// Handles a delivery after everything that was taken before it has finished.
    pub(super) fn drained(&self, delivery: Delivery, exclusive: Exclusive<'a>) -> Next<'a> {
        let (provider, cx) = (self.provider, self.cx);
        // In a view with members, a server that has failed or is stopping would wait for a state that never comes. It gets
        // only the final view, which has none.
        let has_members = matches!(&delivery, Delivery::View { info, .. } if !info.members.is_empty());
        if has_members && cx.has_failed() {
            return Next::Again;
        }
        let ready = match &delivery {
            Delivery::View { info, in_log } => self.view_ready(info, *in_log),
            Delivery::Donate { at_least, .. } => {
                self.drain(*at_least).and_then(|()| self.wait_for_majority())
            }
            _ => self.drain(SEQNO_UNDEFINED),
        };
        match (ready, delivery) {
            (Err(Break::Overtaken(info, first)), delivery) => {
                self.overtaken(info, Held { delivery, exclusive: Some(exclusive) }, first)
            }
            (Ok(()), Delivery::View { info, in_log }) => {
                if info.status == NodeViewStatus::Primary {
                    cx.identity.set_history(info.gtid.uuid);
                }
                cx.view_begins(&info);
                let buffer = view::buffer(cx, &info);
                Next::View(Box::new(info), buffer, in_log, exclusive)
            }
            (Ok(()), Delivery::Donate { id, request, joiner, bypass, .. }) => {
                let at = bypass.unwrap_or_else(|| cx.position());
                provider.begin_donation(id, joiner);
                Next::Donate { id, request, at: gtid_out(at), bypass: bypass.is_some(), exclusive }
            }
            // If the majority has been lost meanwhile, the node repeats the delivery later.
            (Ok(()), Delivery::Synced) if !cx.node().is_some_and(|node| node.is_held()) => {
                // Before clients may write: a transaction that a client repeats must be ordered after the rollback of
                // its first attempt. On the other members appliers hold the locks of that attempt.
                provider.repeat_rollbacks(true);
                Next::Synced(exclusive)
            }
            _ => Next::Again,
        }
    }

    /// Waits until everything up to `seqno`, and everything taken so far, has finished.
    pub(super) fn drain(&self, seqno: Seqno) -> Result<(), Break<'a>> {
        let sequence = &self.cx.sequence;
        let upto = seqno.max(sequence.taken());
        self.wait(true, |timeout| sequence.wait_finished(upto, None, Some(timeout)))
    }

    /// Waits while the majority is lost: the server must not get a delivery from which it concludes that it is Primary.
    pub(super) fn wait_for_majority(&self) -> Result<(), Break<'a>> {
        let Some(node) = self.cx.node() else { return Ok(()) };
        self.wait(true, |timeout| {
            let mut naps = 0;
            while node.is_held() {
                if self.cx.has_failed() {
                    return Err(Stop::Failed);
                }
                std::thread::sleep(timeout / 10);
                naps += 1;
                if node.overtakes() || naps >= 10 {
                    return Err(Stop::TimedOut);
                }
            }
            Ok(())
        })
    }
}
