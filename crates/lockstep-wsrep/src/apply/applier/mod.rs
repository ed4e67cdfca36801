//! The server's applier threads: each takes deliveries and calls the server back, until the connection ends.
//!
//! Steps of the provider and calls of the server alternate; only the former are guarded (see [`crate::guard`]). A
//! delivery that is not a write-set is *exclusive*: it is handled after everything before it has finished and before
//! anything after it is taken. The node ensures the latter: it hands out nothing more until [`Node::handled`].
//!
//! [`Node::handled`]: lockstep_node::Node::handled

mod apply;
mod exclusive;
mod view;

use crate::context::Context;
use crate::ddl::CrashOutcome;
use crate::lifecycle::{process_exit, stop};
use crate::provider::Provider;
use crate::sync::Stop;
use crate::trx::local;
use crate::trx::submit::apply_meta;
use crate::trx::table::Handle;
use lockstep_abi::*;
use lockstep_node::core::Seqno;
use lockstep_node::{Delivery, Done, Ordered, Spent, ViewInfo as NodeView};
use std::ffi::c_void;
use std::time::{Duration, Instant};

/// Held while an exclusive delivery is handled. The node continues when it is dropped.
struct Exclusive<'a>(&'a Context);

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        if let Some(node) = self.0.node() {
            node.handled();
        }
    }
}

/// The thread's next action.
enum Next<'a> {
    Apply(Box<Job>),
    Connected(ViewBuffer, Exclusive<'a>),
    /// The view, and whether it is in the log.
    View(Box<NodeView>, ViewBuffer, bool, Exclusive<'a>),
    /// A view that is shown before the delivery that the thread has taken.
    Overtaken(Box<NodeView>, ViewBuffer, Box<Held<'a>>, Option<Exclusive<'a>>),
    NeedState(Exclusive<'a>),
    Donate {
        id: u64,
        request: bytes::Bytes,
        at: Gtid,
        bypass: bool,
        exclusive: Exclusive<'a>,
    },
    Synced(Exclusive<'a>),
    /// The connection has ended without a final view from the node: the server still needs one.
    Final,
    /// Nothing to call: take the next delivery.
    Again,
    Return(Status),
}

/// A delivery that was taken and must wait.
struct Held<'a> {
    delivery: Delivery,
    /// `None` for a write-set.
    exclusive: Option<Exclusive<'a>>,
}

/// The reason why a wait with a taken delivery ended early.
enum Break<'a> {
    /// This view must be shown first. It is exclusive unless the waiting delivery is.
    Overtaken(NodeView, Option<Exclusive<'a>>),
    /// The delivery is dropped: the node has failed or leaves.
    Dropped,
}

/// A write-set that may be applied now.
struct Job {
    ordered: Ordered,
    handle: Handle,
    flags: u32,
    meta: TrxMeta,
    /// It passes through commit order, and nothing is applied.
    dummy: bool,
    /// For a statement in total order that is not a dummy.
    statement: Option<CrashOutcome>,
}

/// Blocked time is measured for one of so many write-sets of a thread.
const MEASURED: u64 = 8;
/// How often a waiting thread checks for a view that overtakes its delivery.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// After so many checks the thread logs the reason for its wait.
const CHECKS_BEFORE_REPORT: u32 = 300;
/// After so many panics a thread returns to the server.
const MAX_PANICS: u32 = 3;

/// An applier thread, with what it remembers from one delivery to the next.
struct Applier<'a> {
    provider: &'a Provider,
    cx: &'a Context,
    /// The last delivery, if it was a write-set: when the thread took it.
    taken: Option<(Seqno, Instant)>,
    /// How the thread spent its time on that write-set, if measured.
    spent: Option<Spent>,
    /// The number of write-sets taken.
    count: u64,
}

impl Drop for Applier<'_> {
    /// However the thread leaves, the node must not wait for it to come back.
    fn drop(&mut self) {
        if let (Some(done), Some(node)) = (self.done(), self.cx.node()) {
            node.gone(done.seqno);
        }
    }
}

/// `recv`.
///
/// # Safety
/// `ctx` is the context that the server's callbacks expect.
pub(crate) unsafe fn recv(provider: &Provider, ctx: *mut c_void) -> Status {
    let cx = provider.cx();
    if !provider.is_connected() {
        cx.host.log.error("recv: called while not connected");
        return Status::FATAL;
    }
    provider.receiver_enters();
    let mut held = None;
    let mut applier = Applier::new(provider);
    let mut panics = 0;
    let (status, counted) = loop {
        let in_hand = held.take();
        let Some(next) = provider.step("recv", || applier.next(in_hand)) else {
            if provider.awaits_state() {
                // The server's main thread waits for the state, for longer than is of use.
                process_exit::abort();
            }
            // The node has failed and now leaves. That needs a receiving thread, and this may be the only one.
            panics += 1;
            if panics < MAX_PANICS {
                continue;
            }
            break (Status::FATAL, true);
        };
        let calls = &cx.host.calls;
        match next {
            Next::Again => {}
            Next::Return(status) => break (status, true),
            Next::Apply(job) => {
                let handle = WsHandle {
                    trx_id: job.meta.stid.trx,
                    opaque: std::ptr::from_ref(&job.handle).cast_mut().cast(),
                };
                let data = if job.dummy { Buf::EMPTY } else { buf_of(&job.ordered.writeset.data) };
                let mut exit = false;
                // SAFETY: the server's own callback, with arguments that live through the call. It may throw: there is
                // no guard around it.
                let result = unsafe { (calls.apply)(ctx, &handle, job.flags, &data, &job.meta, &mut exit) };
                let unordered = &job.ordered.writeset.unordered;
                if let Some(callback) = calls.unordered
                    && !unordered.is_empty()
                    && !job.dummy
                {
                    let data = buf_of(unordered);
                    // SAFETY: as above. Its result does not matter.
                    unsafe { callback(ctx, &data) };
                }
                provider.step("applied", || applier.applied(*job, result));
                if exit && provider.receiver_ends_on_request() {
                    break (Status::OK, false);
                }
            }
            Next::Connected(view, exclusive) => {
                // SAFETY: as above; the view lives through the call.
                let result = unsafe { (calls.connected)(calls.app.0, view.as_ptr()) };
                provider.step("connected", || {
                    if result != CbStatus::SUCCESS {
                        cx.stop_with("the server refused the connection", false);
                    }
                    drop(exclusive);
                });
            }
            Next::View(info, view, in_log, exclusive) => {
                provider.begin_view(&info, in_log);
                // SAFETY: as above.
                let result = unsafe { (calls.view)(calls.app.0, ctx, view.as_ptr(), std::ptr::null(), 0) };
                provider.step("view", || {
                    provider.end_view(result, &info, in_log);
                    drop(exclusive);
                });
            }
            Next::Overtaken(info, view, rest, exclusive) => {
                // SAFETY: as above.
                let result = unsafe { (calls.view)(calls.app.0, ctx, view.as_ptr(), std::ptr::null(), 0) };
                provider.step("view", || {
                    provider.view_delivered(result, &info, false);
                    drop(exclusive);
                });
                held = Some(*rest);
            }
            // SAFETY: as above.
            Next::Final => unsafe { show_final(provider, ctx) },
            Next::NeedState(exclusive) => {
                let (mut request, mut len) = (std::ptr::null_mut(), 0);
                // SAFETY: as above; it fills in both.
                let result = unsafe { (calls.sst_request)(calls.app.0, &mut request, &mut len) };
                // SAFETY: the server allocated `len` bytes with malloc, and gave them to us.
                let bytes = unsafe { Buf { ptr: request, len }.as_slice() }.to_vec();
                // SAFETY: null, or allocated with malloc and used by no other thread.
                unsafe { libc::free(request) };
                provider.step("state request", || {
                    provider.request_state(result, bytes);
                    drop(exclusive);
                });
            }
            Next::Donate { id, request, at, bypass, exclusive } => {
                let request = buf_of(&request);
                // SAFETY: as above.
                let result =
                    unsafe { (calls.sst_donate)(calls.app.0, ctx, &request, &at, std::ptr::null(), bypass) };
                provider.step("donate", || {
                    provider.donation_begun(id, result);
                    drop(exclusive);
                });
            }
            Next::Synced(exclusive) => {
                // SAFETY: as above.
                let result = unsafe { (calls.synced)(calls.app.0) };
                provider.step("synced", || {
                    provider.synced_delivered(result);
                    drop(exclusive);
                });
            }
        }
    };
    if counted {
        if provider.receiver_leaves() {
            // SAFETY: as above.
            unsafe { show_final(provider, ctx) };
            provider.step("recv", || provider.close_connection());
        }
        provider.receiver_has_left();
    }
    status
}

/// Shows the server a final view that does not come from the node. The server waits for one, without bound, before it
/// ends.
///
/// # Safety
/// `ctx` is the context that the server's callbacks expect.
unsafe fn show_final(provider: &Provider, ctx: *mut c_void) {
    let cx = provider.cx();
    let calls = &cx.host.calls;
    let info = NodeView::disconnected(cx.position());
    let Some(view) = provider.step("final view", || view::buffer(cx, &info)) else { return };
    // SAFETY: the server's own callback, with arguments that live through the call.
    let result = unsafe { (calls.view)(calls.app.0, ctx, view.as_ptr(), std::ptr::null(), 0) };
    provider.step("final view", || provider.view_delivered(result, &info, false));
}

/// `replay_trx`.
///
/// # Safety
/// The arguments are as the API requires.
pub(crate) unsafe fn replay(provider: &Provider, handle: &WsHandle, ctx: *mut c_void) -> Status {
    let cx = provider.cx();
    // SAFETY: by this function's contract.
    let slot = match provider.step("replay", || unsafe { local::begin_replay(cx, handle) }) {
        None => return Status::FATAL,
        Some(Err(status)) => {
            if status == Status::OK {
                provider.step("replay", || provider.refuse_clients_before_commit_elsewhere());
            }
            return status;
        }
        Some(Ok(slot)) => slot,
    };
    let meta = apply_meta(cx, slot.seqno(), slot.depends_on(), &slot.writeset().meta);
    let data = buf_of(&slot.writeset().data);
    let mut exit = false;
    // SAFETY: the server's own callback, with arguments that live through the call; it may throw.
    let result = unsafe { (cx.host.calls.apply)(ctx, handle, slot.flags(), &data, &meta, &mut exit) };
    if result == CbStatus::SUCCESS {
        return Status::OK;
    }
    provider.step("replay", || {
        cx.fail(&format!("this server's transaction at seqno {} cannot be replayed", slot.seqno()));
    });
    Status::NODE_FAIL
}

/// The data of a write-set as the server takes it.
fn buf_of(data: &[u8]) -> Buf {
    if data.is_empty() { Buf::EMPTY } else { Buf { ptr: data.as_ptr().cast::<c_void>(), len: data.len() } }
}

impl<'a> Applier<'a> {
    fn new(provider: &'a Provider) -> Applier<'a> {
        Applier { provider, cx: provider.cx(), taken: None, spent: None, count: 0 }
    }

    /// The report on the last write-set; each is reported once.
    fn done(&mut self) -> Option<Done> {
        let (seqno, at) = self.taken.take()?;
        Some(Done { seqno, time: at.elapsed(), spent: self.spent.take() })
    }

    /// Takes the next delivery, or continues with `held`, and prepares the call of the server.
    fn next(&mut self, held: Option<Held<'a>>) -> Next<'a> {
        let (provider, cx) = (self.provider, self.cx);
        let Some(node) = cx.node() else { return Next::Return(Status::FATAL) };
        provider.leave_after_failure(node);
        if let Some(Held { delivery, exclusive }) = held {
            return match delivery {
                Delivery::Ordered(ordered) => self.start(ordered),
                delivery => exclusive.map_or(Next::Again, |exclusive| self.drained(delivery, exclusive)),
            };
        }
        let repeats = provider.repeat_rollbacks_after();
        let timeout = repeats.or_else(|| provider.awaits_state().then_some(CHECK_INTERVAL));
        let delivery = node.next(timeout, self.done());
        let is_exclusive = !matches!(&delivery, None | Some(Delivery::Ordered(_) | Delivery::Closed));
        let exclusive = is_exclusive.then(|| Exclusive(cx));
        if let Some(Delivery::Ordered(ordered)) = &delivery {
            self.taken = Some((ordered.seqno, Instant::now()));
            self.count += 1;
        }
        if repeats.is_some() {
            provider.repeat_rollbacks(false);
        }
        if delivery.is_none() && provider.awaits_state() && stop::is_wanted() {
            cx.host.log.info("asked to stop while it waits for a state transfer: ending");
            stop::terminate();
        }
        let Some(delivery) = delivery else { return Next::Again };
        cx.counters.recv_queue.sample(node.queued() as i64);
        provider.panic_if_injected("take");
        match exclusive {
            Some(exclusive) => self.exclusive(node, delivery, exclusive),
            None => match delivery {
                Delivery::Ordered(ordered) => self.ordered(ordered),
                _ if provider.take_final_view() => Next::Final,
                _ => {
                    provider.close_connection();
                    Next::Return(if cx.has_failed() { Status::FATAL } else { Status::OK })
                }
            },
        }
    }

    /// Calls `wait` until it succeeds, as long as no view must be shown first. `exclusive`: the waiting delivery is.
    fn wait(
        &self,
        exclusive: bool,
        mut wait: impl FnMut(Duration) -> Result<(), Stop>,
    ) -> Result<(), Break<'a>> {
        let mut checks = 0u32;
        loop {
            match wait(CHECK_INTERVAL) {
                Ok(()) => return Ok(()),
                Err(Stop::Failed | Stop::Interrupted) => return Err(Break::Dropped),
                Err(Stop::TimedOut) => {}
            }
            checks += 1;
            if checks == CHECKS_BEFORE_REPORT {
                self.cx.explain_applier(exclusive);
            }
            let Some(first) = self.cx.node().and_then(|node| node.overtaking(exclusive)) else { continue };
            let lock = (!exclusive).then(|| Exclusive(self.cx));
            match first {
                Delivery::View { info, .. } => return Err(Break::Overtaken(info, lock)),
                failure => self.member_failed(failure),
            }
        }
    }

    /// Shows `info` before the delivery in `rest`.
    fn overtaken(&self, info: NodeView, rest: Held<'a>, exclusive: Option<Exclusive<'a>>) -> Next<'a> {
        self.cx.view_begins(&info);
        let buffer = view::buffer(self.cx, &info);
        Next::Overtaken(Box::new(info), buffer, Box::new(rest), exclusive)
    }

    /// The node reports that this member has failed.
    fn member_failed(&self, delivery: Delivery) {
        match delivery {
            Delivery::StateFailed(text) => self.provider.transfer_failed(&text),
            Delivery::Inconsistent(text) => self.cx.fail(&text),
            Delivery::Failed(text) => self.cx.stop_with(&text, false),
            _ => {}
        }
        // The server's main thread waits for the state, for longer than is of use.
        if self.provider.awaits_state() {
            process_exit::abort();
        }
    }
}
