//! `sync_wait`, `pause`, `resume`, `desync` and `resync`.

use crate::context::Context;
use crate::lifecycle::state_files::{gtid_in, gtid_out};
use crate::sync::Stop;
use crate::trx::local::LocalTransactions;
use crate::trx::rollbacks::LONGEST_READ;
use lockstep_abi::*;
use lockstep_node::LocalState;
use lockstep_node::core::Seqno;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The longest wait. The server passes the greatest number it has for "no timeout".
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// `sync_wait`: waits until `upto` has finished here; without `upto`, until all that any member has acknowledged by now
/// has. Rollbacks of streaming transactions that this member has sent are waited for, too, but for 2 s at most, and only
/// while this member is Primary. An `upto` that a new leader left out never finishes.
pub(crate) fn sync_wait(
    cx: &Context,
    local: &LocalTransactions,
    upto: Option<Gtid>,
    seconds: i32,
) -> Result<Gtid, Status> {
    let timeout = match u64::try_from(seconds) {
        Ok(seconds) => Duration::from_secs(seconds).min(LONGEST),
        Err(_) => cx.host.settings.causal_read_timeout(),
    };
    let until = Instant::now() + timeout;
    let seqno = match upto {
        Some(upto) => {
            let upto = gtid_in(upto);
            if upto.uuid != cx.identity.history() {
                return Err(Status::TRX_MISSING);
            }
            upto.seqno
        }
        None => {
            let node = cx.node().ok_or(Status::TRX_FAIL)?;
            let causal = |timeout| {
                node.causal(timeout).map_err(|error| {
                    cx.host.log.debug(|| format!("causal read: {error:?}"));
                    Status::TRX_FAIL
                })
            };
            let seqno = causal(timeout)?;
            // A rollback is never acknowledged, so its seqno may exceed `seqno`.
            let until = until.min(Instant::now() + LONGEST_READ);
            match local.wait_for_rollbacks(cx, until) {
                true => causal(until.saturating_duration_since(Instant::now())).unwrap_or(seqno),
                false => seqno,
            }
        }
    };
    let left = until.saturating_duration_since(Instant::now());
    match cx.sequence.wait_finished(seqno, None, Some(left)) {
        Ok(()) if upto.is_some() && cx.is_left_out(seqno) => Err(Status::TRX_MISSING),
        Ok(()) => {
            cx.counters.causal_reads.add(1);
            Ok(gtid_out(cx.position()))
        }
        Err(Stop::TimedOut | Stop::Interrupted) => Err(Status::TRX_FAIL),
        Err(Stop::Failed) => Err(Status::NODE_FAIL),
    }
}

/// `pause`: nothing above the returned seqno is applied or committed until `resume`.
pub(crate) fn pause(cx: &Context) -> Seqno {
    let last = cx.sequence.pause();
    if cx.wait_finished(last, None, || "a pause".into()).is_err() {
        cx.sequence.resume();
        return SEQNO_UNDEFINED;
    }
    let position = cx.position();
    // Not written to the state file: after a crash the database may be behind this position if its commits are not
    // flushed. Its own recovery determines the position.
    cx.host.log.info(format!("paused at {position}"));
    position.seqno
}

/// `resume`.
pub(crate) fn resume(cx: &Context, is_connected: bool) -> Status {
    if !cx.sequence.is_paused() {
        // Not an error status: the server treats one as fatal.
        cx.host.log.warn("resume: not paused");
        return Status::OK;
    }
    // A member that has left meanwhile has written its position, which must stay.
    if is_connected {
        cx.save_running();
    }
    cx.sequence.resume();
    cx.host.log.info("resumed");
    Status::OK
}

/// `desync`: this member may lag, and announces it, until `resync` has been called as often.
pub(crate) fn desync(cx: &Context) -> Status {
    match (cx.node(), cx.local_state()) {
        (Some(node), LocalState::Synced | LocalState::Joined | LocalState::Donor) => {
            node.desync();
            cx.counters.desyncs.fetch_add(1, Ordering::Relaxed);
            Status::OK
        }
        _ => {
            cx.host.log.warn("desync: not connected to a primary component");
            Status::CONN_FAIL
        }
    }
}

/// `resync`. Never fails: the server treats an error status as fatal.
pub(crate) fn resync(cx: &Context) -> Status {
    let fewer = |n: u32| n.checked_sub(1);
    if cx.counters.desyncs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_err() {
        cx.host.log.warn("resync: not desynced");
        return Status::OK;
    }
    if let Some(node) = cx.node() {
        node.resync();
    }
    Status::OK
}
