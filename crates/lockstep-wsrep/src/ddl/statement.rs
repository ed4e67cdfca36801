//! The server's calls for an own statement in total order, which runs alone in commit order between
//! `to_execute_start` and `to_execute_end`.

use crate::apply::vote::{self, Executed};
use crate::context::Context;
use crate::trx::append::keys_of;
use crate::trx::submit::{self, NO_TRX, Sent};
use crate::trx::table::Trx;
use crate::trx::write_access::Write;
use lockstep_abi::*;
use lockstep_node::Ordered;
use lockstep_node::core::EntryKind;
use lockstep_node::core::writeset::{DataKind, KeyType, WriteSetBuilder};
use std::sync::Arc;

/// `to_execute_start`. If `meta` has a GTID afterwards, `to_execute_end` follows, whatever the status is.
///
/// # Safety
/// The arguments are as the API requires.
pub(crate) unsafe fn start(
    cx: &Context,
    conn: ConnId,
    keys: *const Key,
    keys_num: usize,
    action: &[Buf],
    flags: u32,
    meta: &mut TrxMeta,
) -> Status {
    submit::set_undefined(cx, meta, conn, NO_TRX);
    if flags & (FLAG_TRX_START | FLAG_TRX_END) == 0 || flags & FLAG_ROLLBACK != 0 {
        cx.host.log.warn(format!("to_execute_start: the flags {flags:#x} are not those of a statement"));
        return Status::CONN_FAIL;
    }
    if flags & FLAG_TRX_START == 0 || flags & FLAG_TRX_END == 0 {
        cx.host.log.warn("to_execute_start: non-blocking operations are not supported");
        return Status::NOT_IMPLEMENTED;
    }
    if let Err(status) = cx.may_write(Write::Statement) {
        return status;
    }
    // SAFETY: by this function's contract.
    let Some(keys) = (unsafe { keys_of(keys, keys_num) }) else {
        cx.host.log.warn("to_execute_start: a key without parts");
        return Status::CONN_FAIL;
    };
    let mut builder = WriteSetBuilder::new();
    for parts in keys {
        if builder.append_key(&parts, KeyType::Exclusive).is_err() {
            return Status::SIZE_EXCEEDED;
        }
    }
    for data in action {
        // SAFETY: by this function's contract.
        let bytes = unsafe { data.as_slice() };
        if builder.append_data(DataKind::Ordered, bytes).is_err() {
            return Status::SIZE_EXCEEDED;
        }
    }
    if builder.size() > cx.host.settings.max_write_set() {
        return Status::SIZE_EXCEEDED;
    }
    let trx = Arc::new(Trx::new(NO_TRX));
    if !cx.trxs.begin_statement(conn, trx.clone()) {
        cx.host.log.warn(format!("to_execute_start: connection {conn} did not end its last statement"));
    }
    let payload = builder.finish(&submit::meta(cx, flags | FLAG_ISOLATION, conn, NO_TRX));
    let status = match submit::submit(cx, &trx, EntryKind::TotalOrder, payload, || {}) {
        Sent::Ordered(ordered) => {
            submit::set_ordered(cx, meta, &ordered);
            return wait_to_execute(cx, &trx, *ordered);
        }
        // CONN_FAIL makes the server repeat the statement, and is returned only if the statement was not submitted.
        Sent::Never(status) => status,
        Sent::Unknown => {
            // A warning: the operator must check whether the statement was executed before repeating it.
            cx.host.log.warn(format!(
                "a statement of connection {conn} was in progress when the majority was lost: if the cluster commits \
                 it, this server executes it like another member's"
            ));
            Status::NODE_FAIL
        }
    };
    cx.trxs.end_statement(conn);
    status
}

/// The statement has been ordered: waits until the server may execute it.
fn wait_to_execute(cx: &Context, trx: &Trx, ordered: Ordered) -> Status {
    let Ordered { seqno, pass, depends_on, .. } = ordered;
    let data = ordered.writeset.data.clone();
    trx.lock().statement_ordered(ordered);
    let who = || format!("this server's statement at seqno {seqno}");
    let ready = cx
        .wait_to_start(seqno, None)
        .and_then(|()| cx.wait_finished(depends_on, None, who))
        .and_then(|()| cx.wait_turn(seqno, None));
    if ready.is_err() {
        // This member leaves before the statement's turn, and executes it when it is back.
        trx.lock().end_statement();
        return Status::NODE_FAIL;
    }
    if !pass {
        cx.counters.local_cert_failures.add(1);
        return Status::TRX_FAIL;
    }
    cx.ddl.begin(&cx.host, cx.identity.at(seqno), &data);
    Status::OK
}

/// `to_execute_end`.
pub(crate) fn end(cx: &Context, conn: ConnId, error: &[u8]) -> Status {
    let slot = cx.trxs.end_statement(conn).and_then(|trx| trx.lock().end_statement());
    let Some(slot) = slot else {
        cx.host.log.warn(format!("to_execute_end: connection {conn} has no statement in total order"));
        return Status::CONN_FAIL;
    };
    // The status does not matter here: the statement has ended in order. A lost vote fails the provider, which logs it.
    vote::judge(cx, slot.seqno(), error, Executed::OwnStatement);
    if slot.passed() {
        cx.ddl.done(&cx.host, cx.identity.at(slot.seqno()));
    }
    if !cx.sequence.leave(slot.seqno(), false) {
        return Status::NODE_FAIL;
    }
    if slot.passed() {
        cx.ddl.end(&cx.host);
    }
    cx.finish(slot.seqno());
    Status::OK
}
