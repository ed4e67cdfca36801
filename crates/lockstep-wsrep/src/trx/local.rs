//! The server's calls for a local transaction. [`crate::trx::state`] decides; this waits, sends and counts.

use crate::apply::vote::{self, Executed};
use crate::context::Context;
use crate::sync::{Interrupt, Stop};
use crate::trx::pace::Pacer;
use crate::trx::rollbacks::Rollbacks;
use crate::trx::state::{Release, Slot, State, Turn};
use crate::trx::submit::{self, NO_TRX, Sent};
use crate::trx::table::{Handle, Trx};
use crate::trx::unknown_outcome;
use crate::trx::view_abort::ViewAborts;
use crate::trx::write_access::{Write, check_state};
use lockstep_abi::*;
use lockstep_node::Ordered;
use lockstep_node::core::EntryKind;
use lockstep_node::core::writeset::{self, Meta};
use std::time::{Duration, Instant};

/// Streaming transactions that end, beside the table in [`Context::trxs`], and the pace of all.
#[derive(Default)]
pub(crate) struct LocalTransactions {
    pacer: Pacer,
    rollbacks: Rollbacks,
    views: ViewAborts,
}

impl LocalTransactions {
    /// `certify`. `in_order`: see [`submit::submit`].
    ///
    /// # Safety
    /// `handle.opaque` is as this provider set it.
    pub(crate) unsafe fn certify(
        &self,
        cx: &Context,
        conn: ConnId,
        handle: &mut WsHandle,
        flags: u32,
        meta: &mut TrxMeta,
        in_order: impl FnOnce(),
    ) -> Status {
        // SAFETY: by this function's contract.
        let Some(found) = (unsafe { cx.trxs.find(handle) }) else {
            if meta.stid.trx != NO_TRX {
                cx.host.log.warn(format!(
                    "certify: transaction {} has neither keys nor data; ending another member's transaction is not \
                     supported",
                    meta.stid.trx
                ));
                return Status::NOT_IMPLEMENTED;
            }
            submit::set_undefined(cx, meta, conn, NO_TRX);
            return Status::OK;
        };
        let Some(trx) = found.as_local() else {
            cx.host.log.warn("certify: called for a write-set that is being applied");
            return Status::NOT_ALLOWED;
        };
        let is_streaming = flags & FLAG_TRX_END == 0 || !trx.lock().is_first();
        submit::set_undefined(cx, meta, conn, trx.id());
        // First, because this member may lose its right to write meanwhile.
        self.pacer.wait(cx, trx);
        let status = match cx.may_write(Write::Rows) {
            Ok(()) => certify_trx(cx, conn, trx, flags, meta, in_order),
            Err(status) => trx.lock().not_ordered(status),
        };
        if status != Status::OK && is_streaming {
            self.wait_for_view(cx, trx);
        }
        status
    }

    /// A fragment of a streaming transaction has failed. Waits until its transaction may end: see [`ViewAborts`].
    fn wait_for_view(&self, cx: &Context, trx: &Trx) {
        if let Some(view) = self.views.fails(trx.id()) {
            let what = || format!("transaction {}, whose fragment has failed during a view", trx.id());
            let _ = cx.wait_finished(view, Some(trx.interrupt()), what);
        }
    }

    /// `release`.
    ///
    /// # Safety
    /// `handle.opaque` is as this provider set it.
    pub(crate) unsafe fn release(&self, cx: &Context, handle: &mut WsHandle) -> Status {
        // SAFETY: by this function's contract.
        let Some(trx) = (unsafe { cx.trxs.find(handle) }).and_then(Handle::as_local) else {
            return Status::OK;
        };
        let Release { pass_order, mut finish, keep, committed, status } = trx.lock().release();
        if !committed {
            self.views.ends(trx.id());
        }
        if let Some(seqno) = pass_order {
            match take_turn(cx, seqno, None) {
                Ok(()) => _ = cx.sequence.leave(seqno, false),
                Err(_) => finish = None,
            }
        }
        if committed {
            cx.counters.local_commits.add(1);
        }
        if let Some(seqno) = finish {
            cx.finish(seqno);
        }
        if !keep {
            cx.trxs.remove(trx.id());
            handle.opaque = std::ptr::null_mut();
        }
        status
    }

    /// `abort_certification`. Never blocks.
    pub(crate) fn abort(&self, cx: &Context, by: Seqno, victim: TrxId) -> (Status, Seqno) {
        let Some(found) = cx.trxs.get(victim) else { return (Status::OK, SEQNO_UNDEFINED) };
        let Some(trx) = found.as_local() else { return (Status::OK, SEQNO_UNDEFINED) };
        let (status, seqno, interrupt) = {
            let mut inner = trx.lock();
            let is_replicating = inner.state() == State::Replicating;
            let aborted = match self.views.is_in() {
                false => inner.abort(by),
                // No applier aborts while the server is in a view.
                true => inner.abort_in_view(by),
            };
            // The aborting applier waits for the victim, and may thereby keep the queue of deliveries full.
            if is_replicating
                && aborted.0 == Status::OK
                && let Some(node) = cx.node()
                && trx.begin_hurry()
            {
                node.hurry();
            }
            aborted
        };
        if interrupt {
            trx.interrupt().raise();
        }
        cx.host.log.debug(|| format!("abort of transaction {victim} (seqno {seqno}) by {by}: {status}"));
        (status, seqno)
    }

    /// `rollback`: sends a rollback fragment. Does not wait for it.
    pub(crate) fn rollback(&self, cx: &Context, id: TrxId, data: &[u8]) -> Status {
        self.views.ends(id);
        if check_state(cx.local_state()).is_err() {
            return Status::TRX_FAIL;
        }
        if let Some(victim) = cx.trxs.get(id)
            && let Some(trx) = victim.as_local()
        {
            trx.lock().roll_back();
        }
        self.rollbacks.remember(id, data);
        let status = send_rollback(cx, id, data);
        if status != Status::OK {
            // The server keeps the rollback and calls again.
            self.rollbacks.ordered(id);
        }
        status
    }

    /// Sends the rollback of an own streaming transaction that the server has forgotten, until it is ordered.
    pub(crate) fn roll_back_orphan(&self, cx: &Context, id: TrxId) {
        self.rollbacks.remember(id, &[]);
        self.send_remembered(cx, id, &[]);
    }

    /// See [`Rollbacks::repeat_after`].
    pub(crate) fn repeat_rollbacks_after(&self) -> Option<Duration> {
        self.rollbacks.repeat_after()
    }

    /// See [`Rollbacks::wait_delivered`]. Does not wait if this member has failed, or is not Primary any more.
    pub(crate) fn wait_for_rollbacks(&self, cx: &Context, until: Instant) -> bool {
        let is_primary = || !cx.has_failed() && cx.node().is_some_and(|node| node.is_primary());
        self.rollbacks.wait_delivered(until, is_primary)
    }

    /// Sends rollback fragments again: those sent long ago or not at all, or `all`. If both copies of a fragment are
    /// ordered, the second has no effect.
    pub(crate) fn repeat_rollbacks(&self, cx: &Context, all: bool) {
        for (id, data) in self.rollbacks.due(Instant::now(), all) {
            self.send_remembered(cx, id, &data);
        }
    }

    /// Sends a rollback fragment for which no caller waits. If that fails, it is soon sent again.
    fn send_remembered(&self, cx: &Context, id: TrxId, data: &[u8]) {
        if send_rollback(cx, id, data) != Status::OK {
            self.rollbacks.sending_failed(id);
        }
    }

    /// The transaction's rollback fragment has been delivered.
    pub(crate) fn rollback_delivered(&self, id: TrxId) {
        self.rollbacks.ordered(id);
    }

    /// This member has left: the other members' next view ends its streaming transactions.
    pub(crate) fn forget_rollbacks(&self) {
        self.rollbacks.clear();
    }

    /// See [`ViewAborts::begin`].
    pub(crate) fn begin_view(&self, view: Seqno) -> bool {
        self.views.begin(view)
    }

    /// See [`ViewAborts::end`].
    pub(crate) fn end_view(&self) {
        self.views.end();
    }
}

fn certify_trx(
    cx: &Context,
    conn: ConnId,
    trx: &Trx,
    flags: u32,
    meta: &mut TrxMeta,
    in_order: impl FnOnce(),
) -> Status {
    let payload = {
        let mut content = trx.content();
        let incomplete = content.take_incomplete();
        let mut inner = trx.lock();
        let flags = match inner.begin_certify(flags, incomplete) {
            Ok(flags) => flags,
            Err(status) => {
                if status == Status::NOT_ALLOWED {
                    cx.host.log.warn(format!(
                        "certify: transaction {} is not in a state to be certified ({:?})",
                        trx.id(),
                        inner.state()
                    ));
                }
                if incomplete {
                    content.clear();
                }
                return status;
            }
        };
        if content.size() > cx.host.settings.max_write_set() {
            content.clear();
            return inner.not_ordered(Status::SIZE_EXCEEDED);
        }
        drop(inner);
        // As late as possible: transactions that have finished by now cannot conflict.
        let meta = submit::meta(cx, flags, conn, trx.id());
        content.finish(&meta)
    };
    let sent = submit::submit(cx, trx, EntryKind::WriteSet, payload, in_order);
    let status = match sent {
        Sent::Never(status) => trx.lock().not_ordered(status),
        Sent::Unknown => {
            cx.host.log.warn(format!(
                "transaction {} of connection {conn} was in progress when the majority was lost: this server rolls it \
                 back, and if the cluster commits it, applies it like another member's",
                trx.id()
            ));
            let status = trx.lock().unknown();
            if flags & FLAG_TRX_END != 0 {
                unknown_outcome::report(unknown_outcome::MAJORITY_LOST);
            }
            status
        }
        Sent::Ordered(ordered) => {
            submit::set_ordered(cx, meta, &ordered);
            certified(cx, trx, *ordered)
        }
    };
    if trx.end_hurry()
        && let Some(node) = cx.node()
    {
        node.hurried();
    }
    status
}

/// The status of `certify` for a write-set that has been ordered.
fn certified(cx: &Context, trx: &Trx, ordered: Ordered) -> Status {
    let (seqno, depends_on) = (ordered.seqno, ordered.depends_on);
    if !ordered.pass {
        cx.counters.local_cert_failures.add(1);
        if cx.host.settings.log_conflicts() {
            let Meta { conn, last_seen, .. } = ordered.writeset.meta;
            let why = match last_seen {
                writeset::OVERTAKEN => {
                    "a change of members or leader has ended this streaming transaction".to_owned()
                }
                seen => format!("its snapshot was at {seen}"),
            };
            cx.host.log.info(format!(
                "transaction {} of connection {conn} fails certification at seqno {seqno}: {why}",
                trx.id()
            ));
        }
    }
    if !ordered.pass && ordered.writeset.meta.last_seen == writeset::OVERTAKEN {
        // A view before this seqno ends the streaming transaction. Waits until that view, which the server may not have
        // processed yet, aborts the transaction or has finished.
        let what = || format!("the fragment at seqno {seqno}, which a view invalidated");
        let _ = cx.wait_finished(seqno - 1, Some(trx.interrupt()), what);
    }
    let early = ordered.pass && cx.sequence.is_early(ordered.kind, &ordered.writeset);
    let slot = Slot::of_transaction(ordered, early);
    let ends = slot.ends();
    let status = trx.lock().ordered(slot);
    if status != Status::OK {
        return status;
    }
    // A transaction starts neither during a pause nor beside an entry that it depends on, above all a view or a statement
    // in total order.
    let interrupt = Some(trx.interrupt());
    let ready = cx.wait_to_start(seqno, interrupt).and_then(|()| {
        cx.wait_finished(depends_on, interrupt, || format!("this server's transaction at seqno {seqno}"))
    });
    match ready {
        Ok(()) | Err(Stop::Interrupted) => trx.lock().start(),
        Err(Stop::Failed | Stop::TimedOut) => {
            if ends {
                unknown_outcome::report(unknown_outcome::LEAVES);
            }
            not_here(cx, trx)
        }
    }
}

/// Whether the log has lost this seqno: another leader has taken over under a weak policy.
fn has_lost(cx: &Context, seqno: Seqno) -> bool {
    cx.node().is_some_and(|node| node.has_lost(seqno))
}

/// The transaction is in the log but rolls back here, because this member leaves before its turn. Its seqno must not count
/// as finished: when this member returns, an applier applies it.
fn not_here(cx: &Context, trx: &Trx) -> Status {
    cx.identity.next_epoch();
    trx.lock().not_here();
    Status::NODE_FAIL
}

/// `commit_order_enter`.
pub(crate) fn enter(cx: &Context, trx: &Trx) -> Status {
    let turn = trx.lock().want_turn();
    match turn {
        Turn::Held => Status::OK,
        Turn::Refuse(status) => status,
        Turn::Wrong => {
            cx.host.log.warn(format!(
                "commit_order_enter: transaction {} has no turn to wait for ({:?})",
                trx.id(),
                trx.lock().state()
            ));
            Status::NOT_ALLOWED
        }
        Turn::Wait { seqno, interruptible } => {
            // An aborted transaction keeps its turn, and takes it during replay or rollback.
            let interrupt = interruptible.then_some(trx.interrupt());
            match take_turn(cx, seqno, interrupt) {
                Ok(()) => trx.lock().got_turn(),
                Err(Stop::Interrupted) => trx.lock().lost_turn(),
                Err(Stop::Failed | Stop::TimedOut) => {
                    cx.identity.next_epoch();
                    trx.lock().no_turn(has_lost(cx, seqno))
                }
            }
        }
    }
}

/// Waits for the turn of an own transaction. One that failed certification or was aborted has not started yet, and
/// passes it here: during a pause the database's position must not move.
fn take_turn(cx: &Context, seqno: Seqno, interrupt: Option<&Interrupt>) -> Result<(), Stop> {
    cx.wait_to_start(seqno, interrupt)?;
    cx.wait_turn(seqno, interrupt)
}

/// `commit_order_leave`. Returns the status, and whether it was the transaction's turn.
pub(crate) fn leave(cx: &Context, trx: &Trx, error: &[u8]) -> (Status, bool) {
    let left = trx.lock().leave();
    match left {
        Some((seqno, early)) => {
            (vote::judge(cx, seqno, error, Executed::Rows), cx.sequence.leave(seqno, early))
        }
        None => (Status::OK, false),
    }
}

/// Tells all members, this one included, that the fragments of a streaming transaction are void.
fn send_rollback(cx: &Context, id: TrxId, data: &[u8]) -> Status {
    let Some(node) = cx.node() else { return Status::TRX_FAIL };
    let mut builder = writeset::WriteSetBuilder::new();
    if !data.is_empty() && builder.append_data(writeset::DataKind::Ordered, data).is_err() {
        return Status::TRX_FAIL;
    }
    let payload = builder.finish(&submit::meta(cx, FLAG_ROLLBACK | FLAG_PA_UNSAFE, NO_TRX, id));
    // No thread waits for it: it is delivered to this member's appliers too.
    match node.submit_unattended(EntryKind::WriteSet, payload) {
        Ok(()) => Status::OK,
        Err(_) => Status::TRX_FAIL,
    }
}

/// `replay_trx` begins. Returns the slot to apply on this thread, once everything before it has finished.
///
/// # Safety
/// `handle.opaque` is as this provider set it.
pub(crate) unsafe fn begin_replay(cx: &Context, handle: &WsHandle) -> Result<Slot, Status> {
    // SAFETY: by this function's contract.
    let Some(trx) = (unsafe { cx.trxs.find(handle) }).and_then(Handle::as_local) else {
        cx.host.log.warn(format!("replay_trx: transaction {} is unknown", handle.trx_id));
        return Err(Status::TRX_FAIL);
    };
    let slot = trx.lock().begin_replay()?;
    cx.counters.local_replays.add(1);
    let seqno = slot.seqno();
    cx.host.log.debug(|| format!("replaying transaction {} at seqno {seqno}", trx.id()));
    // Not interruptible: the transaction has been aborted already, and its seqno is the next one.
    let ready = cx.wait_to_start(seqno, None).and_then(|()| {
        cx.wait_finished(seqno - 1, None, || format!("the replay of the transaction at seqno {seqno}"))
    });
    if ready.is_err() {
        not_here(cx, trx);
        if has_lost(cx, seqno) {
            cx.host
                .log
                .warn(format!("transaction {} is lost: the cluster does not have seqno {seqno}", trx.id()));
            return Err(Status::TRX_FAIL);
        }
        // This member leaves. The cluster has committed the transaction; this server does when it is back.
        cx.host.log.info(format!(
            "transaction {} is committed at seqno {seqno}: this member applies it when it returns",
            trx.id()
        ));
        return trx.lock().begin_replay();
    }
    Ok(slot)
}
