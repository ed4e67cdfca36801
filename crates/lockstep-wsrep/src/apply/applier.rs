//! The server's applier threads: each takes deliveries and calls the server back, until the connection ends.
//!
//! Steps of ours and calls of the server alternate; only our steps are guarded (see [`crate::abi::guard`]). A delivery that
//! is not a write-set is *exclusive*: handled after all that came before it has finished and before anything that
//! comes after it is taken. The node sees to the latter: it hands out nothing more until [`Node::handled`].
//!
//! [`Node::handled`]: lockstep_node::Node::handled

mod apply;

use crate::apply::monitor::{Stop, lock};
use crate::ddl::statement::Former;
use crate::lifecycle::connect::server_keeps_gtids;
use crate::lifecycle::state_files::{gtid_out, uuid_in};
use crate::provider::{Connection, Donation, Provider};
use crate::trx::Handle;
use crate::trx::local::buf_of;
use crate::trx::rollbacks::REPEAT_ROLLBACKS;
use lockstep_abi::*;
use lockstep_node::core::{SEQNO_UNDEFINED, Seqno};
use lockstep_node::{
    Delivery, Done, Node, Ordered, Spent, ViewInfo as NodeView, ViewStatus as NodeViewStatus,
};
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// An exclusive delivery in somebody's hands: others are handed out once this is dropped, however that comes about.
struct Alone<'a>(&'a Provider);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        if let Some(node) = self.0.node() {
            node.handled();
        }
    }
}

/// The next step of the thread.
enum Next<'a> {
    Apply(Box<Job>),
    Connected(ViewBuffer, Alone<'a>),
    View(Box<NodeView>, ViewBuffer, bool, Alone<'a>),
    /// A view that overtakes what this thread has in its hands.
    Overtaken(Box<NodeView>, ViewBuffer, Box<Held<'a>>, Option<Alone<'a>>),
    NeedState(Alone<'a>),
    Donate {
        id: u64,
        request: bytes::Bytes,
        at: Gtid,
        bypass: bool,
        alone: Alone<'a>,
    },
    Synced(Alone<'a>),
    /// No final view comes from the node any more, and the server has had none.
    Final,
    /// Nothing to call: take the next one.
    Again,
    Return(Status),
}

/// A delivery that was taken and must wait.
struct Held<'a> {
    delivery: Delivery,
    /// It is to be handled alone.
    alone: Option<Alone<'a>>,
}

/// The state of a thread between two deliveries.
struct Worker<'a> {
    provider: &'a Provider,
    /// The last one, if that was a write-set: when it took it.
    taken: Option<(Seqno, Instant)>,
    /// How it spent that time, if measured.
    spent: Option<Spent>,
    /// It counts as one who comes ([`crate::apply::group_flush`]), for something was waiting when it had finished.
    expected: bool,
    /// When it was through with the last one's flush, if something was waiting then.
    landed: Option<Instant>,
    /// How many write-sets it has taken.
    count: u64,
}

impl Worker<'_> {
    /// Takes the report on the last write-set.
    fn done(&mut self) -> Option<Done> {
        let (seqno, at) = self.taken.take()?;
        Some(Done { seqno, time: at.elapsed(), spent: self.spent.take() })
    }
}

impl Drop for Worker<'_> {
    /// However the thread leaves: nobody waits for it to come back.
    fn drop(&mut self) {
        if let (Some(done), Some(node)) = (self.done(), self.provider.node()) {
            node.gone(done.seqno);
        }
    }
}

/// Why a wait with a delivery in the thread's hands has ended without its condition.
enum Break<'a> {
    /// This comes first; to be handled alone, unless what waits is.
    Overtaken(NodeView, Option<Alone<'a>>),
    /// The delivery is dropped: the node has failed or leaves.
    Dropped,
}

/// Of so many write-sets of a thread it is measured of one how long it works and waits.
const MEASURED: u64 = 8;
/// How often a waiting thread looks for what overtakes.
const LOOK: Duration = Duration::from_millis(100);
/// After so many it says what it waits for.
const LOOKS: u32 = 300;

/// After so many errors in the program a thread takes nothing any more.
const PANICS: u32 = 3;

/// A write-set that may be applied now.
struct Job {
    ordered: Ordered,
    handle: Handle,
    flags: u32,
    meta: TrxMeta,
    /// It takes its turn, and nothing is applied.
    dummy: bool,
    /// The earlier fate of a statement in total order; `None` for other write-sets and dummies.
    statement: Option<Former>,
}

/// `recv`.
///
/// # Safety
/// `ctx` is what the server's callbacks expect.
pub(crate) unsafe fn recv(provider: &Provider, ctx: *mut c_void) -> Status {
    if *lock(&provider.connection) == Connection::Closed {
        provider.log.error("recv: called while not connected");
        return Status::FATAL;
    }
    provider.receivers.fetch_add(1, Ordering::SeqCst);
    let mut held = None;
    let mut worker = Worker { provider, taken: None, spent: None, expected: false, landed: None, count: 0 };
    let mut panics = 0;
    let (status, counted) = loop {
        let in_hand = held.take();
        let Some(next) = provider.step("recv", || provider.next(in_hand, &mut worker)) else {
            if provider.awaits_state.load(Ordering::SeqCst) {
                // The server's main thread waits for the state, and would until it is tired.
                provider.die();
            }
            // It has failed, and now leaves as after any failure: that takes a thread, and this may be the only one.
            panics += 1;
            if panics < PANICS {
                continue;
            }
            break (Status::FATAL, true);
        };
        let calls = &provider.calls;
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
                // SAFETY: the server's own callback, with arguments that live through the call. An exception of its
                // passes through: there is no guard around.
                let result = unsafe { (calls.apply)(ctx, &handle, job.flags, &data, &job.meta, &mut exit) };
                let unordered = &job.ordered.writeset.unordered;
                if let Some(callback) = calls.unordered
                    && !unordered.is_empty()
                    && !job.dummy
                {
                    let data = buf_of(unordered);
                    // SAFETY: as above. The return value is ignored.
                    unsafe { callback(ctx, &data) };
                }
                worker.expected =
                    provider.step("applied", || provider.applied(*job, result, &mut worker)) == Some(true);
                if exit && provider.may_exit() {
                    if worker.expected {
                        provider.group_flush.stays_away();
                    }
                    break (Status::OK, false);
                }
            }
            Next::Connected(view, alone) => {
                // SAFETY: as above; the view lives through the call.
                let result = unsafe { (calls.connected)(calls.app.0, view.as_ptr()) };
                provider.step("connected", || {
                    if result != CbStatus::SUCCESS {
                        provider.stop_with("the server refused the connection", false);
                    }
                    drop(alone);
                });
            }
            Next::View(info, view, in_log, alone) => {
                if info.status == NodeViewStatus::Disconnected {
                    provider.owes_final.store(false, Ordering::SeqCst);
                }
                if in_log
                    && info.status == NodeViewStatus::Primary
                    && !provider.in_view.begin(info.gtid.seqno)
                {
                    provider.log.warn("a streaming transaction that has failed has not ended yet; the view is begun all the same");
                }
                // SAFETY: as above.
                let result = unsafe { (calls.view)(calls.app.0, ctx, view.as_ptr(), std::ptr::null(), 0) };
                provider.step("view", || {
                    provider.in_view.end();
                    provider.view_delivered(result, &info, in_log);
                    drop(alone);
                });
            }
            Next::Overtaken(info, view, rest, alone) => {
                // SAFETY: as above.
                let result = unsafe { (calls.view)(calls.app.0, ctx, view.as_ptr(), std::ptr::null(), 0) };
                provider.step("view", || {
                    provider.view_delivered(result, &info, false);
                    drop(alone);
                });
                held = Some(*rest);
            }
            // SAFETY: as above.
            Next::Final => unsafe { show_final(provider, ctx) },
            Next::NeedState(alone) => {
                let (mut request, mut len) = (std::ptr::null_mut(), 0);
                // SAFETY: as above; it fills in both.
                let result = unsafe { (calls.sst_request)(calls.app.0, &mut request, &mut len) };
                // SAFETY: the server allocated `len` bytes with malloc, and gave them to us.
                let bytes = unsafe { Buf { ptr: request, len }.as_slice() }.to_vec();
                // SAFETY: null, or allocated with malloc, and used by nobody else.
                unsafe { libc::free(request) };
                provider.step("state request", || {
                    provider.request_state(result, bytes);
                    drop(alone);
                });
            }
            Next::Donate { id, request, at, bypass, alone } => {
                let request = buf_of(&request);
                // SAFETY: as above.
                let result =
                    unsafe { (calls.sst_donate)(calls.app.0, ctx, &request, &at, std::ptr::null(), bypass) };
                provider.step("donate", || {
                    if result != CbStatus::SUCCESS {
                        provider.donation_failed(id);
                    }
                    drop(alone);
                });
            }
            Next::Synced(alone) => {
                // SAFETY: as above.
                let result = unsafe { (calls.synced)(calls.app.0) };
                provider.step("synced", || {
                    if result != CbStatus::SUCCESS {
                        provider.stop_with("the server could not process that it is synced", false);
                    }
                    provider.told_synced.store(true, Ordering::Release);
                    drop(alone);
                });
            }
        }
    };
    if counted {
        let is_last = provider.receivers.fetch_sub(1, Ordering::SeqCst) == 1;
        if is_last && provider.owes_final.swap(false, Ordering::SeqCst) {
            // SAFETY: as above.
            unsafe { show_final(provider, ctx) };
            provider.step("recv", || provider.closed());
        }
        provider.connection_changed.notify_all();
    }
    status
}

/// Shows the server a final view that is none of the node's: it waits for one, without bound, before it ends.
///
/// # Safety
/// `ctx` is what the server's callbacks expect.
unsafe fn show_final(provider: &Provider, ctx: *mut c_void) {
    let info = NodeView::disconnected(provider.position());
    let Some(view) = provider.step("final view", || provider.view_buffer(&info)) else { return };
    // SAFETY: the server's own callback, with arguments that live through the call.
    let result =
        unsafe { (provider.calls.view)(provider.calls.app.0, ctx, view.as_ptr(), std::ptr::null(), 0) };
    provider.step("final view", || provider.view_delivered(result, &info, false));
}

/// `replay_trx`.
///
/// # Safety
/// As the API says of its arguments.
pub(crate) unsafe fn replay(provider: &Provider, handle: &WsHandle, ctx: *mut c_void) -> Status {
    // SAFETY: the caller vouches for the handle.
    let slot = match provider.step("replay", || unsafe { provider.begin_replay(handle) }) {
        None => return Status::FATAL,
        Some(Err(status)) => return status,
        Some(Ok(slot)) => slot,
    };
    let meta = provider.apply_meta(slot.seqno, slot.depends_on, &slot.writeset.meta);
    let data = buf_of(&slot.writeset.data);
    let mut exit = false;
    // SAFETY: the server's own callback, with arguments that live through the call; its exceptions pass through.
    let result = unsafe { (provider.calls.apply)(ctx, handle, slot.flags, &data, &meta, &mut exit) };
    if result == CbStatus::SUCCESS {
        return Status::OK;
    }
    provider.step("replay", || {
        provider.fail(&format!("the own transaction at seqno {} cannot be replayed", slot.seqno));
    });
    Status::NODE_FAIL
}

impl Provider {
    /// Whether this thread may end because the server asked it to: not the last one.
    fn may_exit(&self) -> bool {
        let fewer = |n: usize| (n > 1).then(|| n - 1);
        let ok = self.receivers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok();
        match ok {
            true => self.log.info("an applier thread ends on request"),
            false => self.log.warn("the last applier thread may not end"),
        }
        ok
    }

    /// Takes the next delivery, or the one in hand again, and prepares it.
    fn next<'a>(&'a self, held: Option<Held<'a>>, worker: &mut Worker) -> Next<'a> {
        let Some(node) = self.node() else { return Next::Return(Status::FATAL) };
        if self.failed.load(Ordering::Acquire) && !self.left_after_failure.swap(true, Ordering::AcqRel) {
            node.disconnect();
        }
        if let Some(Held { delivery, alone }) = held {
            return match delivery {
                Delivery::Ordered(ordered) => self.start(ordered, worker),
                delivery => alone.map_or(Next::Again, |alone| self.alone(delivery, alone)),
            };
        }
        let repeats = self.rollbacks.are_open().then_some(REPEAT_ROLLBACKS);
        let waits = repeats.or_else(|| self.awaits_state.load(Ordering::Relaxed).then_some(LOOK));
        let expected = std::mem::take(&mut worker.expected);
        let (delivery, at_once) =
            self.group_flush.take(expected, waits, |wait| node.next(wait, worker.done()));
        if !at_once {
            worker.landed = None;
        }
        let is_alone = !matches!(&delivery, None | Some(Delivery::Ordered(_) | Delivery::Closed));
        let alone = is_alone.then(|| Alone(self));
        if let Some(Delivery::Ordered(ordered)) = &delivery {
            worker.taken = Some((ordered.seqno, Instant::now()));
            worker.count += 1;
        }
        if repeats.is_some() {
            self.repeat_rollbacks(false);
        }
        if delivery.is_none()
            && self.awaits_state.load(Ordering::Relaxed)
            && crate::lifecycle::stop::is_wanted()
        {
            self.log.info("asked to stop while it waits for a state transfer: ends");
            crate::lifecycle::stop::obey();
        }
        let Some(delivery) = delivery else { return Next::Again };
        self.counters.recv_queue.sample(node.queued() as i64);
        self.planted.here("take");
        match alone {
            Some(alone) => self.exclusive(node, delivery, alone),
            None => match delivery {
                Delivery::Ordered(ordered) => self.ordered(ordered, worker),
                _ if self.owes_final.swap(false, Ordering::SeqCst) => Next::Final,
                _ => {
                    self.closed();
                    Next::Return(if self.failed.load(Ordering::Acquire) { Status::FATAL } else { Status::OK })
                }
            },
        }
    }

    /// A delivery that is no write-set.
    fn exclusive<'a>(&'a self, node: &Node, delivery: Delivery, alone: Alone<'a>) -> Next<'a> {
        match delivery {
            Delivery::Ordered(_) | Delivery::Closed => Next::Again,
            Delivery::Connected(info) => {
                self.own.set(node.identity().view_uuid);
                self.history.set(info.gtid.uuid);
                self.connected_at.store(info.gtid.seqno, Ordering::SeqCst);
                self.fresh.store(true, Ordering::SeqCst);
                self.been_connected.store(true, Ordering::SeqCst);
                self.note_members(&info);
                self.log.info(format!("connected as {} at {}", self.own.get(), info.gtid));
                Next::Connected(self.view_buffer(&info), alone)
            }
            Delivery::StateNeeded { bypass } => {
                self.awaits_word.store(bypass, Ordering::SeqCst);
                self.awaits_state.store(true, Ordering::SeqCst);
                if !bypass {
                    self.again.forget();
                    self.note(self.state_file.transfer_begins());
                    self.note(self.marks.forget());
                }
                Next::NeedState(alone)
            }
            Delivery::StateFailed(_) | Delivery::Failed(_) | Delivery::Inconsistent(_) => {
                self.told_of_failure(delivery);
                Next::Again
            }
            delivery @ (Delivery::View { .. } | Delivery::Donate { .. } | Delivery::Synced) => {
                self.alone(delivery, alone)
            }
        }
    }

    fn told_of_failure(&self, delivery: Delivery) {
        match delivery {
            // A donor's word is all that was asked for: the data are whole.
            Delivery::StateFailed(text) if self.awaits_word.load(Ordering::SeqCst) => {
                self.stop_with(&format!("no donor's word can be had: {text}"), false);
            }
            Delivery::StateFailed(text) => self.fail(&format!("no state transfer can be had: {text}")),
            Delivery::Inconsistent(text) => self.fail(&text),
            Delivery::Failed(text) => self.stop_with(&text, false),
            _ => {}
        }
        // The server's main thread waits for the state, and would until it is tired.
        if self.awaits_state.load(Ordering::SeqCst) {
            self.die();
        }
    }

    /// A delivery that is to be handled after all that was taken before it has finished.
    fn alone<'a>(&'a self, delivery: Delivery, alone: Alone<'a>) -> Next<'a> {
        // A server that has failed, or gives its start up, would wait in a view of members for a state that never comes.
        // It gets the last one, which has none.
        let has_members = matches!(&delivery, Delivery::View { info, .. } if !info.members.is_empty());
        if has_members && self.failed.load(Ordering::Acquire) {
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
                self.overtaken(info, Held { delivery, alone: Some(alone) }, first)
            }
            (Ok(()), Delivery::View { info, in_log }) => {
                if info.status == NodeViewStatus::Primary {
                    self.history.set(info.gtid.uuid);
                }
                self.note_members(&info);
                let buffer = self.view_buffer(&info);
                Next::View(Box::new(info), buffer, in_log, alone)
            }
            (Ok(()), Delivery::Donate { id, request, joiner, bypass, .. }) => {
                let at = bypass.unwrap_or_else(|| self.position());
                *lock(&self.donation) = Some(Donation { id, joiner });
                Next::Donate { id, request, at: gtid_out(at), bypass: bypass.is_some(), alone }
            }
            // Where the majority was lost meanwhile, it is said again.
            (Ok(()), Delivery::Synced) if !self.node().is_some_and(|node| node.is_held()) => {
                // Before any client writes again: a retried transaction must come after the rollback of its first
                // attempt: appliers on the other members hold its locks.
                self.repeat_rollbacks(true);
                Next::Synced(alone)
            }
            _ => Next::Again,
        }
    }

    fn overtaken<'a>(&'a self, info: NodeView, rest: Held<'a>, alone: Option<Alone<'a>>) -> Next<'a> {
        self.note_members(&info);
        let buffer = self.view_buffer(&info);
        Next::Overtaken(Box::new(info), buffer, Box::new(rest), alone)
    }

    /// Waits, for as long as nothing comes that overtakes what is waited with.
    fn patiently(
        &self,
        alone: bool,
        mut wait: impl FnMut(Duration) -> Result<(), Stop>,
    ) -> Result<(), Break<'_>> {
        let mut looks = 0u32;
        loop {
            match wait(LOOK) {
                Ok(()) => return Ok(()),
                Err(Stop::Failed | Stop::Interrupted) => return Err(Break::Dropped),
                Err(Stop::TimedOut) => {}
            }
            looks += 1;
            if looks == LOOKS {
                self.explain_patience(alone);
            }
            let Some(first) = self.node().and_then(|node| node.overtaking(alone)) else { continue };
            let alone = (!alone).then(|| Alone(self));
            match first {
                Delivery::View { info, .. } => return Err(Break::Overtaken(info, alone)),
                failure => self.told_of_failure(failure),
            }
        }
    }

    /// Waits until everything up to `seqno`, and everything taken so far, has finished.
    fn drain(&self, seqno: Seqno) -> Result<(), Break<'_>> {
        let upto = seqno.max(self.taken.load(Ordering::SeqCst));
        self.patiently(true, |look| self.finished.wait(upto, None, Some(look)))
    }

    /// A delivery that would make the server Primary waits until it is.
    fn wait_for_majority(&self) -> Result<(), Break<'_>> {
        let Some(node) = self.node() else { return Ok(()) };
        self.patiently(true, |look| {
            let mut waited = 0;
            while node.is_held() {
                if self.failed.load(Ordering::Acquire) {
                    return Err(Stop::Failed);
                }
                std::thread::sleep(look / 10);
                waited += 1;
                if node.overtakes() || waited >= 10 {
                    return Err(Stop::TimedOut);
                }
            }
            Ok(())
        })
    }

    fn ordered(&self, ordered: Ordered, worker: &Worker) -> Next<'_> {
        let seqno = ordered.seqno;
        self.counters.received.add(1);
        self.counters.received_bytes.add(ordered.writeset.data.len() as u64);
        self.count_certified(&ordered);
        if self.fresh.swap(false, Ordering::SeqCst) {
            self.set_position(seqno - 1);
        }
        if seqno <= self.finished.low() {
            return Next::Again;
        }
        self.taken.fetch_max(seqno, Ordering::SeqCst);
        if self.finished.low() < ordered.depends_on {
            self.counters.apply_waits.add(1);
        }
        self.start(ordered, worker)
    }

    /// A view as the server wants it.
    fn view_buffer(&self, info: &NodeView) -> ViewBuffer {
        let members: Vec<MemberInfo> = info
            .members
            .iter()
            .map(|member| {
                MemberInfo::new(
                    crate::lifecycle::state_files::uuid_out(member.view_uuid),
                    &member.name,
                    &member.incoming,
                )
            })
            .collect();
        let head = ViewHead {
            state_id: gtid_out(info.gtid),
            view: info.number,
            status: match info.status {
                NodeViewStatus::Primary => ViewStatus::PRIMARY,
                NodeViewStatus::NonPrimary => ViewStatus::NON_PRIMARY,
                NodeViewStatus::Disconnected => ViewStatus::DISCONNECTED,
            },
            capabilities: crate::provider::CAPABILITIES,
            my_idx: info.my_index.map_or(-1, |at| at as i32),
            proto_ver: self.proto_ver,
        };
        ViewBuffer::new(head, &members)
    }

    /// Waits until a view may be shown.
    fn view_ready(&self, info: &NodeView, in_log: bool) -> Result<(), Break<'_>> {
        let seqno = info.gtid.seqno;
        // Below its own seqno: the server moves its checkpoint to the view only if the view is ahead.
        let before = if in_log { info.before } else { seqno };
        match info.status {
            // The log accepts no more entries, even if all earlier ones have finished.
            NodeViewStatus::NonPrimary => return Ok(()),
            NodeViewStatus::Disconnected => {
                // Nothing is applied while the server waits for its state. After a failure nothing finishes any more.
                if self.awaits_state.load(Ordering::SeqCst) {
                    return Ok(());
                }
                let drained = self.patiently(true, |look| {
                    let last = before.max(self.taken.load(Ordering::SeqCst)).min(self.gate.last());
                    self.finished.wait(last, None, Some(look))
                });
                return match drained {
                    Err(overtaken @ Break::Overtaken(..)) => Err(overtaken),
                    _ => Ok(()),
                };
            }
            NodeViewStatus::Primary => {}
        }
        // Until the view has been let through: one that is overtaken comes here again.
        let first = self.fresh.load(Ordering::SeqCst);
        let applies = !first && !self.awaits_state.load(Ordering::SeqCst);
        if first {
            self.set_position(seqno - 1);
        } else if applies {
            // Own transactions below the view may still be on their way through the server's threads.
            self.drain(before)?;
        }
        if in_log {
            self.patiently(true, |look| self.gate.pass(seqno, None, Some(look)))?;
        }
        self.wait_for_majority()?;
        if first {
            self.fresh.store(false, Ordering::SeqCst);
        }
        if in_log {
            if applies && before < seqno - 1 {
                // Only now: until the view passes, the database's position is before the left-out seqnos, and a backup or
                // the state file of a leaving member must record that position.
                self.leave_out(seqno - 1);
                self.warn_of_gtids(before, seqno, server_keeps_gtids());
            }
            self.taken.fetch_max(seqno, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Warns about the server's own GTIDs: it counts its own transactions, and reuses GTIDs of lost ones. Only a client can
    /// set the variable that moves the count beyond them.
    fn warn_of_gtids(&self, before: Seqno, seqno: Seqno, keeps: bool) {
        if keeps {
            self.log.warn(format!(
                "wsrep_gtid_mode: transactions that were lost with the leader (seqnos {} to {}) may have GTIDs that this \
                 server gives to others: where clients wait for GTIDs, or something replicates by them, have the first \
                 transaction of the new leader take the count beyond them: SET SESSION wsrep_gtid_seq_no, more than {} above \
                 the last one",
                before + 1,
                seqno - 1,
                seqno - before - 1
            ));
        }
    }

    /// Remembers who is in a view.
    fn note_members(&self, info: &NodeView) {
        let incoming: Vec<&str> = info.members.iter().map(|member| member.incoming.as_str()).collect();
        *lock(&self.incoming) = incoming.join(",");
        if info.status == NodeViewStatus::Primary {
            // Alone, that is, not: gone from a view of one other.
            let alone = info.members.len() == 1 && info.my_index.is_some();
            self.safe_to_bootstrap.store(alone, Ordering::SeqCst);
        }
    }

    /// The server has been shown a view, with this result. After one that it could not process nothing is begun: what
    /// waits has been told so.
    fn view_delivered(&self, result: CbStatus, info: &NodeView, in_log: bool) {
        if result != CbStatus::SUCCESS {
            self.stop_with("the server could not process a view", false);
        }
        if result == CbStatus::SUCCESS || info.status != NodeViewStatus::Primary {
            self.viewed(info, in_log);
        }
    }

    /// The server has processed a view.
    fn viewed(&self, info: &NodeView, in_log: bool) {
        let seqno = info.gtid.seqno;
        match info.status {
            NodeViewStatus::Primary => {
                if in_log {
                    self.order.leave(seqno);
                    self.finish(seqno);
                } else if self.finished.low() < seqno {
                    self.set_position(seqno);
                    if let Some(node) = self.node() {
                        node.finished(seqno);
                    }
                }
                self.save_running();
                let (number, zone) = (info.number, self.settings.zone());
                let saved = crate::lifecycle::state_files::write_view(
                    &self.data_dir,
                    self.own.get(),
                    number,
                    zone,
                    &info.members,
                );
                self.note(saved);
            }
            NodeViewStatus::NonPrimary => self.told_synced.store(false, Ordering::Release),
            NodeViewStatus::Disconnected => {
                self.told_synced.store(false, Ordering::Release);
                self.left();
            }
        }
    }

    /// The state file names the log from which this server gets what it has.
    fn name_log(&self) {
        if let Some(identity) = self.node().map(|node| node.identity())
            && !identity.log.is_nil()
            && identity.history == self.history.get()
        {
            self.state_file.of_log(identity.log);
        }
    }

    /// `grastate.dat` while the server runs: which history, no seqno.
    pub(crate) fn save_running(&self) {
        self.name_log();
        let position = lockstep_node::core::Gtid { uuid: self.history.get(), seqno: -1 };
        self.note(self.state_file.set(position, self.safe_to_bootstrap.load(Ordering::SeqCst)));
    }

    /// The server's answer to the wish for a state-transfer request.
    fn request_state(&self, result: CbStatus, request: Vec<u8>) {
        let Some(node) = self.node() else { return };
        if result != CbStatus::SUCCESS {
            // It waits for the transfer, and would for ever.
            self.fail("the server could not prepare for a state transfer: see its lines above");
            self.die();
        }
        let is = |text: &std::ffi::CStr| request.starts_with(text.to_bytes_with_nul());
        if request.is_empty() {
            // The configured method cannot fill a running server; only a new process can.
            self.fail("this server needs a state transfer that its method cannot do while it runs");
            self.die();
        } else if is(STATE_TRANSFER_TRIVIAL) || is(STATE_TRANSFER_NONE) {
            // The view in which this member is, is the first thing that the server gets.
            let seqno = self.connected_at.load(Ordering::SeqCst) - 1;
            let at = lockstep_node::core::Gtid { uuid: self.history.get(), seqno };
            self.log.warn(format!("no state transfer, as configured: takes its own data for that of {at}"));
            self.state_is(at);
        } else {
            let donor = lock(&self.donor).clone();
            self.log.info("asks for a state transfer");
            node.request_state(request.into(), &donor);
        }
    }

    /// The database is at `at` now.
    fn state_is(&self, at: lockstep_node::core::Gtid) {
        let Some(node) = self.node() else { return };
        self.set_position(at.seqno);
        self.fresh.store(false, Ordering::SeqCst);
        self.awaits_state.store(false, Ordering::SeqCst);
        self.state_file.mark_restored();
        self.save_running();
        node.state_received(Ok(at));
    }

    /// `sst_received`.
    pub(crate) fn sst_received(&self, at: Gtid, code: i32) -> Status {
        let Some(node) = self.node() else { return Status::CONN_FAIL };
        if !self.awaits_state.load(Ordering::SeqCst) {
            self.log.error("sst_received: no state transfer was asked for");
            return Status::CONN_FAIL;
        }
        if code != 0 || at.is_undefined() {
            let code = if code < 0 { code } else { -libc::EINVAL };
            self.log.error(format!("the state transfer failed with {code}: see the lines of the SST script"));
            node.state_received(Err(code));
            return Status::OK;
        }
        let history = self.history.get();
        if uuid_in(at.uuid) != history {
            self.fail(&format!(
                "the state that was received is of history {}, not {history}",
                uuid_in(at.uuid)
            ));
            return Status::CONN_FAIL;
        }
        self.state_is(lockstep_node::core::Gtid { uuid: history, seqno: at.seqno });
        Status::OK
    }

    /// `sst_sent`.
    pub(crate) fn sst_sent(&self, at: Gtid, code: i32) -> Status {
        let Some(node) = self.node() else { return Status::CONN_FAIL };
        let Some(Donation { id, joiner }) = lock(&self.donation).take() else {
            self.log.error("sst_sent: this member does not donate");
            return Status::CONN_FAIL;
        };
        let history = self.history.get();
        let result = if code != 0 {
            Err(if code < 0 { code } else { -code })
        } else if uuid_in(at.uuid) != history {
            self.log.error(format!(
                "what was sent to {joiner} is of history {}, not {history}",
                uuid_in(at.uuid)
            ));
            Err(-libc::EREMCHG)
        } else {
            Ok(lockstep_node::core::Gtid { uuid: history, seqno: at.seqno })
        };
        node.donation_done(id, result);
        Status::OK
    }

    fn donation_failed(&self, id: u64) {
        let mut donation = lock(&self.donation);
        if donation.as_ref().is_some_and(|donation| donation.id == id) {
            *donation = None;
            drop(donation);
            if let Some(node) = self.node() {
                node.donation_done(id, Err(-libc::ECANCELED));
            }
        }
    }

    /// The final view has been processed: the files say where the database stands.
    fn left(&self) {
        let position = self.position();
        let awaits = self.awaits_state.swap(false, Ordering::SeqCst);
        if position.is_defined() && !awaits {
            if self.failed.load(Ordering::SeqCst) {
                // Not drained: threads in their commit turn may still commit above. The next start asks InnoDB.
                self.save_running();
            } else {
                let safe = self.safe_to_bootstrap.load(Ordering::SeqCst);
                self.name_log();
                self.note(self.state_file.set_at_end(position, safe));
                self.log.info(format!("left the cluster at {position}"));
                self.note(crate::lifecycle::state_files::remove_view(&self.data_dir));
            }
        }
        lock(&self.donation).take();
        lock(&self.incoming).clear();
        // The others' next view ends what was open.
        self.rollbacks.clear();
    }

    /// No delivery follows.
    fn closed(&self) {
        let mut connection = lock(&self.connection);
        if *connection == Connection::Open {
            *connection = Connection::Closed;
            self.connection_changed.notify_all();
        }
    }
}
