//! Commit order for a write-set that an applier applies.

use crate::apply::remote::Remote;
use crate::apply::vote::{self, Executed};
use crate::context::Context;
use lockstep_abi::Status;

/// `commit_order_enter`.
pub(crate) fn enter(cx: &Context, remote: &Remote) -> Status {
    remote.await_turn();
    match cx.wait_turn(remote.seqno(), None) {
        Ok(()) => {
            remote.enter();
            Status::OK
        }
        Err(_) => Status::NODE_FAIL,
    }
}

/// `commit_order_leave`. Returns the status, and whether it was the write-set's turn.
pub(crate) fn leave(cx: &Context, remote: &Remote, error: &[u8]) -> (Status, bool) {
    if !remote.leave() {
        return (Status::OK, false);
    }
    let seqno = remote.seqno();
    let executed = if remote.is_statement() { Executed::OthersStatement } else { Executed::Rows };
    // Before it leaves: later write-sets must wait until it is known whether this database equals the others.
    let status = match remote.is_judged() {
        true => vote::judge(cx, seqno, error, executed),
        false => Status::OK,
    };
    if !remote.is_judged() && remote.is_begun() && error.is_empty() {
        executed.report(cx, seqno, error);
    }
    if remote.is_begun() {
        cx.ddl.done(&cx.host, cx.identity.at(seqno));
    }
    (status, cx.sequence.leave(seqno, remote.is_early()))
}
