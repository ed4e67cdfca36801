//! Commit order for a write-set that an applier applies.

use crate::apply::vote::{self, Executed};
use crate::context::Context;
use crate::trx::table::Remote;
use lockstep_abi::Status;

/// `commit_order_enter`.
pub(crate) fn enter(cx: &Context, remote: &Remote) -> Status {
    remote.blocked.end();
    match cx.wait_turn(remote.seqno, None) {
        Ok(()) => {
            remote.blocked.begin();
            remote.enter();
            Status::OK
        }
        Err(_) => Status::NODE_FAIL,
    }
}

/// `commit_order_leave`. Returns the status, and whether it was the write-set's turn.
pub(crate) fn leave(cx: &Context, remote: &Remote, error: &[u8]) -> (Status, bool) {
    let inside = remote.leave();
    let executed = if remote.statement { Executed::OthersStatement } else { Executed::Rows };
    // Before it leaves: later write-sets must wait until it is known whether this database equals the others.
    let status = match inside && remote.judged {
        true => vote::judge(cx, remote.seqno, error, executed),
        false => Status::OK,
    };
    if inside && !remote.judged && remote.begun && error.is_empty() {
        executed.report(cx, remote.seqno, error);
    }
    if inside && remote.begun {
        cx.ddl.done(&cx.host, cx.identity.at(remote.seqno));
    }
    let left = inside && cx.sequence.leave(remote.seqno, remote.early);
    (status, left)
}
