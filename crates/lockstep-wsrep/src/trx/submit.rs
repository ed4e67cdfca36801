//! Submitting a write-set to the log, and the meta data of write-sets.

use crate::context::Context;
use crate::lifecycle::state_files::{gtid_out, uuid_out};
use crate::trx::table::Trx;
use lockstep_abi::*;
use lockstep_node::core::EntryKind;
use lockstep_node::core::writeset::Meta;
use lockstep_node::{Ordered, SubmitError, SubmitOutcome};
use std::time::{Duration, Instant};

/// How long a submission waits for room in the node's inbox.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// The server's transaction id of a statement in total order.
pub(crate) const NO_TRX: TrxId = u64::MAX;

/// The outcome of [`submit`].
pub(crate) enum Sent {
    /// The write-set has been ordered.
    Ordered(Box<Ordered>),
    /// It was not and never will be ordered; the status to return.
    Never(Status),
    /// It was given up, and may still be ordered.
    Unknown,
}

/// Submits a payload and waits until it is ordered. `trx` is not locked meanwhile. Calls `in_order` once the order of
/// the payload among this member's own submissions is fixed; never if it was not submitted.
pub(crate) fn submit(
    cx: &Context,
    trx: &Trx,
    kind: EntryKind,
    payload: bytes::Bytes,
    in_order: impl FnOnce(),
) -> Sent {
    let Some(node) = cx.node() else { return Sent::Never(Status::CONN_FAIL) };
    let began = Instant::now();
    let size = payload.len() as u64;
    cx.counters.send_queue.enter();
    let submission = loop {
        match node.submit(kind, payload.clone()) {
            Ok(submission) => break Ok(submission),
            Err(SubmitError::Busy) if trx.interrupt().is_raised() || began.elapsed() > BUSY_TIMEOUT => {
                break Err(Status::CONN_FAIL);
            }
            Err(SubmitError::Busy) => std::thread::sleep(Duration::from_millis(1)),
            Err(SubmitError::TooLarge) => break Err(Status::SIZE_EXCEEDED),
            Err(SubmitError::NotPrimary | SubmitError::Closed) => break Err(rejection(cx)),
        }
    };
    trx.lock().set_sent(submission.as_ref().ok().cloned());
    // The log has a member's own entries in the order of submission, except that small ones overtake large ones.
    let mut in_order = Some(in_order);
    if submission.is_ok()
        && let Some(in_order) = in_order.take_if(|_| payload.len() <= lockstep_node::IN_ORDER_BYTES)
    {
        in_order();
    }
    let outcome = submission
        .map(|submission| cx.wait_ordered(&submission, || format!("transaction {}", trx.id() as i64)));
    cx.counters.send_queue.leave();
    match outcome {
        Ok(SubmitOutcome::Ordered(ordered)) => {
            if let Some(in_order) = in_order {
                in_order();
            }
            cx.counters.latency.add(began.elapsed());
            cx.counters.count_sent(&ordered, size);
            cx.counters.count_certified(&ordered);
            Sent::Ordered(Box::new(ordered))
        }
        Ok(SubmitOutcome::NotSent) => Sent::Never(rejection(cx)),
        // Not CONN_FAIL, for which the server would repeat an autocommit statement for ever.
        Ok(SubmitOutcome::TooLarge) => Sent::Never(Status::SIZE_EXCEEDED),
        Ok(SubmitOutcome::Unknown) => {
            cx.identity.next_epoch();
            Sent::Unknown
        }
        Err(status) => Sent::Never(status),
    }
}

fn rejection(cx: &Context) -> Status {
    if cx.has_failed() { Status::NODE_FAIL } else { Status::CONN_FAIL }
}

/// The meta data of an own write-set. `last_seen` is sampled here.
pub(crate) fn meta(cx: &Context, flags: u32, conn: ConnId, trx: TrxId) -> Meta {
    let epoch = cx.identity.epoch();
    Meta { flags, last_seen: cx.sequence.finished().max(0), source: cx.identity.own(), epoch, conn, trx }
}

/// The server's meta data of an own transaction that has no seqno yet.
pub(crate) fn set_undefined(cx: &Context, meta: &mut TrxMeta, conn: ConnId, trx: TrxId) {
    meta.gtid = Gtid::UNDEFINED;
    meta.depends_on = SEQNO_UNDEFINED;
    meta.stid = Stid { node: uuid_out(cx.identity.own()), trx, conn };
}

/// The server's meta data of an own transaction that has been ordered.
pub(crate) fn set_ordered(cx: &Context, meta: &mut TrxMeta, ordered: &Ordered) {
    meta.gtid = gtid_out(cx.identity.at(ordered.seqno));
    meta.depends_on = ordered.depends_on;
}

/// The server's meta data of a write-set that is applied at `seqno`.
pub(crate) fn apply_meta(cx: &Context, seqno: Seqno, depends_on: Seqno, meta: &Meta) -> TrxMeta {
    TrxMeta {
        gtid: gtid_out(cx.identity.at(seqno)),
        stid: Stid { node: uuid_out(meta.source), trx: meta.trx, conn: meta.conn },
        depends_on,
    }
}
