//! Local transactions: from the first key to `release`. The state machine is in [`crate::trx`]; here is what waits,
//! sends and counts.

use crate::apply::monitor::{Interrupt, Stop, lock};
use crate::lifecycle::state_files::{gtid_out, uuid_out};
use crate::provider::Provider;
use crate::trx::{Handle, Place, Release, Remote, Slot, State, Trx, Turn};
use lockstep_abi::*;
use lockstep_node::core::EntryKind;
use lockstep_node::core::writeset::{self, Meta};
use lockstep_node::{LocalState, Node, Ordered, SubmitError, SubmitOutcome, Vote};
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A statement's error waits for no longer to hear what the others say of it.
const STATEMENT_PATIENCE: Duration = Duration::from_secs(15);
/// The server's transaction id of a statement in total order.
pub(crate) const NO_TRX: TrxId = u64::MAX;

/// How long a full inbox of the node is waited for before the transaction fails.
const BUSY_PATIENCE: Duration = Duration::from_secs(10);

/// How often it is said that only the leader may write.
const SAY_REFUSED: Duration = Duration::from_secs(10);
/// Of which a second, where nobody could be named.
const SAY_NONE: Duration = Duration::from_secs(1);

/// What a client wants to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Write {
    /// Rows.
    Rows,
    /// In total order.
    Statement,
}

/// The result of submitting a write-set to the log.
pub(crate) enum Sent {
    /// It has its place.
    Ordered(Box<Ordered>),
    /// It has none and never will have.
    Never(Status),
    /// Nobody knows.
    Unknown,
}

fn parts_of<'a>(key: &Key) -> Option<Vec<&'a [u8]>> {
    if key.key_parts_num > 0 && key.key_parts.is_null() {
        return None;
    }
    // SAFETY: the server passes `key_parts_num` parts, each with its length, valid during the call.
    Some(unsafe { (0..key.key_parts_num).map(|at| (*key.key_parts.add(at)).as_slice()).collect() })
}

/// The keys of an array of the server's, taken apart.
///
/// # Safety
/// `keys` points to `count` keys with all they point to, valid during `'a`.
pub(crate) unsafe fn keys_of<'a>(keys: *const Key, count: usize) -> Option<Vec<Vec<&'a [u8]>>> {
    if count > 0 && keys.is_null() {
        return None;
    }
    // SAFETY: the caller vouches for it.
    (0..count).map(|at| parts_of(unsafe { &*keys.add(at) })).collect()
}

impl Provider {
    /// Whether this member has state enough to write; what to return where not.
    pub(crate) fn may_write(&self) -> Result<(), Status> {
        match self.local_state() {
            LocalState::Joined | LocalState::Synced | LocalState::Donor => Ok(()),
            LocalState::Initialized | LocalState::Joining => Err(Status::CONN_FAIL),
            LocalState::Error => Err(Status::NODE_FAIL),
        }
    }

    /// Whether this server may write. Under a weak policy only the leader's server may; other writes would fail certification
    /// on every member. A held-back server may not: its commits would wait behind held-back entries.
    pub(crate) fn may_originate(&self, what: Write) -> Result<(), Status> {
        let may = |node: &Node| node.may_originate() && !node.is_held_back();
        let Some(node) = self.node().filter(|node| !may(node)) else { return Ok(()) };
        let held_back = node.is_held_back();
        if !held_back {
            node.note_refused();
        }
        let status = node.status();
        let leader = &status.cluster.leader;
        if !held_back && status.leads() {
            // Leadership has just moved, and the published state is old: later attempts name the new leader.
            return Err(Status::NOT_ALLOWED);
        }
        let now = Instant::now();
        let mut all = lock(&self.refused_writes);
        let said = &mut all[what as usize];
        if said.is_none_or(|at| now.duration_since(at) > SAY_REFUSED) {
            // That there is none is said again as soon as there is one.
            let soon = SAY_REFUSED - SAY_NONE;
            *said = if leader.is_empty() { now.checked_sub(soon) } else { Some(now) };
            drop(all);
            let text = if held_back {
                // Where it leads under a weak policy, the others send their clients here.
                let elsewhere = if node.may_originate() && !node.policy().is_weak() {
                    "write on another member, or "
                } else {
                    ""
                };
                format!(
                    "writes are refused here: entries are kept from this server (apply.paused, apply.delay, apply.until), and \
                     a commit would wait behind them; {elsewhere}SET GLOBAL wsrep_provider_options = \
                     'apply.paused=no; apply.delay=0; apply.until=none'"
                )
            } else {
                let policy = node.policy().name();
                let who = match leader.is_empty() {
                    true => {
                        "the leader may write, and there is none for the moment: try again where it is then"
                            .to_owned()
                    }
                    false => format!("the leader, {leader}, may write: connect there"),
                };
                format!(
                    "writes are refused here: under commit.policy = {policy} only {who}. Under commit.policy = quorum, which is \
                     a promise of its own, every member takes writes"
                )
            };
            self.log.warn(match what {
                Write::Rows => text,
                // The server has no other words for a statement that has no place in total order.
                Write::Statement => format!(
                    "{text}. A client whose statement (CREATE, ALTER, GRANT ...) is refused so hears of error 1205, a lock wait \
                     timeout: there was none, and to try again here is of no use"
                ),
            });
        }
        // Not a code after which the server runs the statement again, or calls it a deadlock.
        Err(Status::NOT_ALLOWED)
    }

    /// `append_key`.
    ///
    /// # Safety
    /// As the API says of its arguments.
    pub(crate) unsafe fn append_key(
        &self,
        handle: &mut WsHandle,
        keys: *const Key,
        count: usize,
        kind: KeyType,
    ) -> Status {
        let Some(kind) = u8::try_from(kind.0).ok().and_then(writeset::KeyType::from_u8) else {
            self.log.warn(format!("append_key: key type {} is not known", kind.0));
            return Status::CONN_FAIL;
        };
        // SAFETY: the caller vouches for it.
        let Some(mut keys) = (unsafe { keys_of(keys, count) }) else {
            self.log.warn("append_key: a key without parts");
            return Status::CONN_FAIL;
        };
        if keys.is_empty() {
            // The key that meets every transaction.
            keys.push(Vec::new());
        }
        let Some(trx) = self.trxs.of_handle(handle).as_local() else { return Status::NOT_ALLOWED };
        let mut content = trx.content();
        for parts in keys {
            if content.builder.append_key(&parts, kind).is_err() {
                content.incomplete = true;
                return Status::SIZE_EXCEEDED;
            }
        }
        Status::OK
    }

    /// `append_data`.
    ///
    /// # Safety
    /// As the API says of its arguments.
    pub(crate) unsafe fn append_data(
        &self,
        handle: &mut WsHandle,
        data: *const Buf,
        count: usize,
        kind: DataType,
    ) -> Status {
        let kind = match kind {
            DataType::ORDERED => writeset::DataKind::Ordered,
            DataType::UNORDERED => writeset::DataKind::Unordered,
            DataType::ANNOTATION => writeset::DataKind::Annotation,
            _ => {
                self.log.warn(format!("append_data: data type {} is not known", kind.0));
                return Status::CONN_FAIL;
            }
        };
        if data.is_null() {
            return Status::OK;
        }
        let Some(trx) = self.trxs.of_handle(handle).as_local() else { return Status::NOT_ALLOWED };
        let mut content = trx.content();
        for at in 0..count {
            // SAFETY: the server passes `count` buffers, valid during the call.
            let bytes = unsafe { (*data.add(at)).as_slice() };
            if content.builder.size() + bytes.len() > self.settings.max_write_set()
                || content.builder.append_data(kind, bytes).is_err()
            {
                content.incomplete = true;
                return Status::SIZE_EXCEEDED;
            }
        }
        Status::OK
    }

    /// Hands a payload to the log and waits for its place. The trx is not locked meanwhile. `settled` is called once its
    /// place among this member's own is settled.
    pub(crate) fn send(
        &self,
        trx: &Trx,
        kind: EntryKind,
        payload: bytes::Bytes,
        settled: impl FnOnce(),
    ) -> Sent {
        let Some(node) = self.node() else { return Sent::Never(Status::CONN_FAIL) };
        let began = Instant::now();
        let size = payload.len() as u64;
        self.counters.send_queue.enter();
        let submission = loop {
            match node.submit(kind, payload.clone()) {
                Ok(submission) => break Ok(submission),
                Err(SubmitError::Busy) if trx.interrupt.is_raised() || began.elapsed() > BUSY_PATIENCE => {
                    break Err(Status::CONN_FAIL);
                }
                Err(SubmitError::Busy) => std::thread::sleep(Duration::from_millis(1)),
                Err(SubmitError::TooLarge) => break Err(Status::SIZE_EXCEEDED),
                Err(SubmitError::NotPrimary | SubmitError::Closed) => break Err(self.refusal()),
            }
        };
        trx.lock().sent = submission.as_ref().ok().cloned();
        // The log has a member's own in the order in which they were handed in; but large ones are overtaken.
        let mut settled = Some(settled);
        if submission.is_ok()
            && let Some(settled) = settled.take_if(|_| payload.len() <= lockstep_node::IN_ORDER_BYTES)
        {
            settled();
        }
        let outcome = submission
            .map(|submission| self.wait_place(&submission, || format!("transaction {}", trx.id as i64)));
        self.counters.send_queue.leave();
        match outcome {
            Ok(SubmitOutcome::Ordered(ordered)) => {
                if let Some(settled) = settled {
                    settled();
                }
                self.counters.latency.add(began.elapsed());
                self.counters.replicated.add(1);
                self.counters.replicated_bytes.add(size);
                self.counters.keys.add(ordered.writeset.key_count() as u64);
                self.counters.keys_bytes.add(ordered.writeset.key_bytes() as u64);
                self.counters.data_bytes.add(ordered.writeset.data.len() as u64);
                self.counters
                    .other_bytes
                    .add((ordered.writeset.unordered.len() + ordered.writeset.annotation.len()) as u64);
                self.count_certified(&ordered);
                Sent::Ordered(Box::new(ordered))
            }
            Ok(SubmitOutcome::NotSent) => Sent::Never(self.refusal()),
            // Not as if there were no connection: the server would try an autocommit statement again for ever.
            Ok(SubmitOutcome::TooLarge) => Sent::Never(Status::SIZE_EXCEEDED),
            Ok(SubmitOutcome::Unknown) => {
                // Before its locks are released: the next holder belongs to the next epoch.
                self.epoch.fetch_add(1, Ordering::AcqRel);
                Sent::Unknown
            }
            Err(status) => Sent::Never(status),
        }
    }

    fn refusal(&self) -> Status {
        if self.failed.load(Ordering::Acquire) { Status::NODE_FAIL } else { Status::CONN_FAIL }
    }

    /// For the means of `wsrep_cert_deps_distance` and `wsrep_cert_interval`.
    pub(crate) fn count_certified(&self, ordered: &Ordered) {
        self.counters.certified.add(1);
        self.counters.deps_distance.add((ordered.seqno - ordered.depends_on).max(0) as u64);
        self.counters.interval.add((ordered.seqno - 1 - ordered.writeset.meta.last_seen).max(0) as u64);
    }

    /// The origin of a write-set, and its `last_seen`.
    pub(crate) fn meta(&self, flags: u32, conn: ConnId, trx: TrxId) -> Meta {
        let epoch = self.epoch.load(Ordering::Acquire);
        Meta { flags, last_seen: self.finished.low().max(0), source: self.own.get(), epoch, conn, trx }
    }

    /// `certify`. `settled`: see [`Provider::send`]; it is not called for a write-set that is never submitted.
    ///
    /// # Safety
    /// `handle.opaque` is as this provider set it.
    pub(crate) unsafe fn certify(
        &self,
        conn: ConnId,
        handle: &mut WsHandle,
        flags: u32,
        meta: &mut TrxMeta,
        settled: impl FnOnce(),
    ) -> Status {
        // SAFETY: the caller vouches for it.
        let Some(found) = (unsafe { self.trxs.find(handle) }) else {
            if meta.stid.trx != NO_TRX {
                self.log.warn(format!(
                    "certify: transaction {} has neither keys nor data; ending another's transaction is not offered",
                    meta.stid.trx
                ));
                return Status::NOT_IMPLEMENTED;
            }
            self.undefined(meta, conn, NO_TRX);
            return Status::OK;
        };
        let Some(trx) = found.as_local() else {
            self.log.warn("certify: called for a write-set that is being applied");
            return Status::NOT_ALLOWED;
        };
        // Else there are other parts of it, or will be.
        let is_whole = flags & FLAG_TRX_END != 0 && trx.lock().first;
        let status = self.certify_trx(conn, trx, flags, meta, settled);
        if status != Status::OK && !is_whole {
            self.let_view_abort(trx);
        }
        status
    }

    fn certify_trx(
        &self,
        conn: ConnId,
        trx: &Trx,
        flags: u32,
        meta: &mut TrxMeta,
        settled: impl FnOnce(),
    ) -> Status {
        self.undefined(meta, conn, trx.id);
        if let Err(status) = self.may_write().and_then(|()| self.may_originate(Write::Rows)) {
            return trx.lock().not_ordered(status);
        }
        let payload = {
            let mut content = trx.content();
            let incomplete = std::mem::take(&mut content.incomplete);
            let mut inner = trx.lock();
            let flags = match inner.begin_certify(flags, incomplete) {
                Ok(flags) => flags,
                Err(status) => {
                    if status == Status::NOT_ALLOWED {
                        self.log.warn(format!(
                            "certify: transaction {} is not in a state to be certified ({:?})",
                            trx.id, inner.state
                        ));
                    }
                    if incomplete {
                        content.builder.clear();
                    }
                    return status;
                }
            };
            if content.builder.size() > self.settings.max_write_set() {
                content.builder.clear();
                return inner.not_ordered(Status::SIZE_EXCEEDED);
            }
            drop(inner);
            // Sampled as late as possible: finished write-sets cannot conflict.
            let meta = self.meta(flags, conn, trx.id);
            content.builder.finish(&meta)
        };
        let sent = self.send(trx, EntryKind::WriteSet, payload, settled);
        let status = self.sent(trx, sent, conn, meta);
        if trx.hurried.swap(false, Ordering::AcqRel)
            && let Some(node) = self.node()
        {
            node.hurried();
        }
        status
    }

    fn sent(&self, trx: &Trx, sent: Sent, conn: ConnId, meta: &mut TrxMeta) -> Status {
        match sent {
            Sent::Never(status) => trx.lock().not_ordered(status),
            Sent::Unknown => {
                self.log.warn(format!(
                    "transaction {} of connection {conn} was under way when the majority was lost: it is rolled back \
                     here, and applied as anybody's if the cluster has it",
                    trx.id
                ));
                trx.lock().unknown()
            }
            Sent::Ordered(ordered) => {
                meta.gtid = Gtid { uuid: uuid_out(self.history.get()), seqno: ordered.seqno };
                meta.depends_on = ordered.depends_on;
                self.certified(trx, *ordered)
            }
        }
    }

    /// What `certify` returns for a write-set that has its place.
    fn certified(&self, trx: &Trx, ordered: Ordered) -> Status {
        let (seqno, depends_on) = (ordered.seqno, ordered.depends_on);
        if !ordered.pass {
            self.counters.local_cert_failures.add(1);
            if self.settings.log_conflicts() {
                let Meta { conn, last_seen, .. } = ordered.writeset.meta;
                let why = match last_seen {
                    writeset::OVERTAKEN => {
                        "a change of members or leader has ended this streaming transaction".to_owned()
                    }
                    seen => format!("it had seen {seen}"),
                };
                self.log.info(format!(
                    "transaction {} of connection {conn} fails certification at seqno {seqno}: {why}",
                    trx.id
                ));
            }
        }
        if !ordered.pass && ordered.writeset.meta.last_seen == writeset::OVERTAKEN {
            self.wait_for_its_end(trx, seqno);
        }
        let slot = Slot {
            seqno,
            flags: ordered.writeset.meta.flags,
            depends_on,
            early: ordered.pass && self.commit_dependencies.is_early(ordered.kind, &ordered.writeset),
            pass: ordered.pass,
            place: Place::Before,
            writeset: ordered.writeset,
        };
        let status = trx.lock().ordered(slot);
        if status != Status::OK {
            return status;
        }
        // Not while paused, and not beside what it depends on: above all no view or statement in total order.
        let interrupt = Some(&trx.interrupt);
        let ready = self.wait_gate(seqno, interrupt).and_then(|()| {
            self.wait_finished(depends_on, interrupt, || format!("the own transaction at seqno {seqno}"))
        });
        match ready {
            Ok(()) | Err(Stop::Interrupted) => trx.lock().start(),
            Err(Stop::Failed | Stop::TimedOut) => self.not_here(trx),
        }
    }

    /// It is in the log, and is rolled back here: this member leaves before its turn. Its seqno must not count as
    /// finished, so that it is applied as anybody's when this member is back.
    fn not_here(&self, trx: &Trx) -> Status {
        // Before its locks go, as for one that was given up.
        self.epoch.fetch_add(1, Ordering::AcqRel);
        trx.lock().not_here();
        Status::NODE_FAIL
    }

    pub(crate) fn undefined(&self, meta: &mut TrxMeta, conn: ConnId, trx: TrxId) {
        meta.gtid = Gtid::UNDEFINED;
        meta.depends_on = SEQNO_UNDEFINED;
        meta.stid = Stid { node: uuid_out(self.own.get()), trx, conn };
    }

    /// `commit_order_enter`.
    ///
    /// # Safety
    /// `handle.opaque` is as this provider set it.
    pub(crate) unsafe fn commit_order_enter(&self, handle: &WsHandle) -> Status {
        // SAFETY: the caller vouches for it.
        match unsafe { self.trxs.find(handle) } {
            None => {
                self.log.warn(format!("commit_order_enter: transaction {} is not known", handle.trx_id));
                Status::TRX_MISSING
            }
            Some(Handle::Remote(remote)) => self.enter_remote(remote),
            Some(Handle::Local(trx)) => self.enter_local(trx),
        }
    }

    fn enter_remote(&self, remote: &Remote) -> Status {
        remote.waited.end();
        match self.wait_turn(remote.seqno, None) {
            Ok(()) => {
                remote.waited.begin();
                remote.place.store(1, Ordering::Relaxed);
                Status::OK
            }
            Err(_) => Status::NODE_FAIL,
        }
    }

    fn enter_local(&self, trx: &Trx) -> Status {
        let turn = trx.lock().want_turn();
        match turn {
            Turn::Held => Status::OK,
            Turn::Refuse(status) => status,
            Turn::Wrong => {
                self.log.warn(format!(
                    "commit_order_enter: transaction {} has no turn to wait for ({:?})",
                    trx.id,
                    trx.lock().state
                ));
                Status::NOT_ALLOWED
            }
            Turn::Wait { seqno, interruptible } => {
                // A transaction that is aborted keeps its turn, and takes it later, on its way to replay or rollback.
                let interrupt = interruptible.then_some(&trx.interrupt);
                match self.take_turn(seqno, interrupt) {
                    Ok(()) => trx.lock().got_turn(),
                    Err(Stop::Interrupted) => trx.lock().lost_turn(),
                    Err(Stop::Failed | Stop::TimedOut) => {
                        // Before its locks go, as for one that was given up.
                        self.epoch.fetch_add(1, Ordering::AcqRel);
                        trx.lock().no_turn()
                    }
                }
            }
        }
    }

    /// Waits for the turn of an own transaction. A transaction that failed or was aborted did not pass the gate at
    /// certification, so it passes here: the database's position must not move during a pause.
    fn take_turn(&self, seqno: Seqno, interrupt: Option<&Interrupt>) -> Result<(), Stop> {
        self.wait_gate(seqno, interrupt)?;
        self.wait_turn(seqno, interrupt)
    }

    /// `commit_order_leave`.
    ///
    /// # Safety
    /// `handle.opaque` is as this provider set it.
    pub(crate) unsafe fn commit_order_leave(&self, handle: &WsHandle, error: &[u8]) -> Status {
        // SAFETY: the caller vouches for it.
        let (status, left) = match unsafe { self.trxs.find(handle) } {
            None => {
                self.log.warn(format!("commit_order_leave: transaction {} is not known", handle.trx_id));
                return Status::TRX_MISSING;
            }
            Some(Handle::Remote(remote)) => {
                let inside = remote.place.swap(2, Ordering::Relaxed) == 1;
                // Later write-sets wait until the vote shows whether this member agrees with the others.
                let status = match inside && remote.judged {
                    true => self.result(remote.seqno, error, remote.statement),
                    false => Status::OK,
                };
                if inside && remote.begun {
                    self.statement_is_done(remote.seqno);
                }
                let left = inside && self.leave(remote.seqno, remote.early);
                if left && remote.early {
                    let _ = remote.passed.set(self.group_flush.wait(remote.since));
                }
                (status, left)
            }
            Some(Handle::Local(trx)) => {
                let left = trx.lock().leave();
                match left {
                    Some((seqno, early)) => (self.result(seqno, error, false), self.leave(seqno, early)),
                    None => (Status::OK, false),
                }
            }
        };
        if !left {
            if self.failed.load(Ordering::Acquire) {
                return Status::NODE_FAIL;
            }
            self.log.warn(format!("commit_order_leave: it is not the turn of transaction {}", handle.trx_id));
            return Status::NOT_ALLOWED;
        }
        status
    }

    /// Ends the turn of `seqno`; returns whether it was its turn. `early`: its dependents may go on.
    fn leave(&self, seqno: Seqno, early: bool) -> bool {
        let left = self.order.leave(seqno);
        if left && early {
            self.commit_dependencies.settle(seqno);
        }
        left
    }

    /// What the server's error at `seqno` means: nothing where there is none or the other members have it, too. Else this
    /// member stops.
    ///
    /// A statement that is wrong is wrong on every member, which is common: if the others take their time to say so, this
    /// member goes on, and hears of it later. A write-set was applied where it comes from.
    pub(crate) fn result(&self, seqno: Seqno, error: &[u8], statement: bool) -> Status {
        if text_of(error).is_empty() {
            return Status::OK;
        }
        let Some(node) = self.node() else { return Status::NODE_FAIL };
        let at = lockstep_node::core::Gtid { uuid: self.history.get(), seqno };
        match node.vote(seqno, error, statement.then_some(STATEMENT_PATIENCE)) {
            Vote::Agreed => Status::OK,
            Vote::Open => {
                self.log.warn(format!("the others have not said yet whether {at} fails there, too: goes on"));
                Status::OK
            }
            Vote::Inconsistent => {
                self.fail(&format!(
                    "Inconsistency detected: Inconsistent by consensus on {at}: the others could do what this server \
                     cannot: {}",
                    text_of(error)
                ));
                Status::NODE_FAIL
            }
            Vote::NoOutcome => {
                self.fail(&format!(
                    "{at} cannot be applied, and the others cannot be asked whether they could: {}",
                    text_of(error)
                ));
                Status::NODE_FAIL
            }
        }
    }

    /// `release`.
    ///
    /// # Safety
    /// `handle.opaque` is as this provider set it.
    pub(crate) unsafe fn release(&self, handle: &mut WsHandle) -> Status {
        // SAFETY: the caller vouches for it.
        let Some(trx) = (unsafe { self.trxs.find(handle) }).and_then(Handle::as_local) else {
            return Status::OK;
        };
        let Release { pass_order, mut finish, keep, committed, status } = trx.lock().release();
        if !committed {
            self.in_view.ends(trx.id);
        }
        if let Some(seqno) = pass_order {
            match self.take_turn(seqno, None) {
                Ok(()) => _ = self.order.leave(seqno),
                Err(_) => finish = None,
            }
        }
        if committed {
            self.counters.local_commits.add(1);
        }
        if let Some(seqno) = finish {
            self.finish(seqno);
        }
        if !keep {
            self.trxs.remove(trx.id);
            handle.opaque = std::ptr::null_mut();
        }
        status
    }

    /// `abort_certification`. Never blocks.
    pub(crate) fn abort(&self, by: Seqno, victim: TrxId) -> (Status, Seqno) {
        let Some(found) = self.trxs.get(victim) else { return (Status::OK, SEQNO_UNDEFINED) };
        let Some(trx) = found.as_local() else { return (Status::OK, SEQNO_UNDEFINED) };
        let (status, seqno, interrupt) = {
            let mut inner = trx.lock();
            let under_way = inner.state == State::Replicating;
            let aborted = match self.in_view.is_in() {
                false => inner.abort(by),
                // Nobody else aborts meanwhile.
                true => inner.abort_in_view(by),
            };
            // The aborting thread waits for it, and may block the queue of deliveries.
            if under_way
                && aborted.0 == Status::OK
                && let Some(node) = self.node()
                && !trx.hurried.swap(true, Ordering::AcqRel)
            {
                node.hurry();
            }
            aborted
        };
        if interrupt {
            trx.interrupt.raise();
        }
        self.log.debug(|| format!("abort of transaction {victim} (seqno {seqno}) by {by}: {status}"));
        (status, seqno)
    }

    /// `rollback`: a rollback fragment is on its way when this returns. Only enqueues.
    pub(crate) fn rollback(&self, id: TrxId, data: &[u8]) -> Status {
        self.in_view.ends(id);
        if self.may_write().is_err() {
            return Status::TRX_FAIL;
        }
        if let Some(victim) = self.trxs.get(id)
            && let Some(trx) = victim.as_local()
        {
            trx.lock().roll_back();
        }
        self.rollbacks.remember(id, data);
        let status = self.send_rollback(id, data);
        if status != Status::OK {
            // The server keeps it and asks again.
            self.rollbacks.ordered(id);
        }
        status
    }

    /// Tells all members, this one included, that the fragments of a streaming transaction are void.
    fn send_rollback(&self, id: TrxId, data: &[u8]) -> Status {
        let Some(node) = self.node() else { return Status::TRX_FAIL };
        let mut builder = writeset::WriteSetBuilder::new();
        if !data.is_empty() && builder.append_data(writeset::DataKind::Ordered, data).is_err() {
            return Status::TRX_FAIL;
        }
        let payload = builder.finish(&self.meta(FLAG_ROLLBACK | FLAG_PA_UNSAFE, NO_TRX, id));
        // Nobody waits for it: it comes back to this member's appliers too.
        match node.submit_unattended(EntryKind::WriteSet, payload) {
            Ok(()) => Status::OK,
            Err(_) => Status::TRX_FAIL,
        }
    }

    /// The rollback of an own streaming transaction that the server knows nothing of: sent until it is ordered.
    pub(crate) fn roll_back_orphan(&self, id: TrxId) {
        self.rollbacks.remember(id, &[]);
        let _ = self.send_rollback(id, &[]);
    }

    /// Repeats rollback fragments that may be lost: old ones, or `all`. A duplicate has no effect.
    pub(crate) fn repeat_rollbacks(&self, all: bool) {
        for (id, data) in self.rollbacks.due(Instant::now(), all) {
            let _ = self.send_rollback(id, &data);
        }
    }

    /// `replay_trx` begins: what to apply, on this thread, once everything before it has finished.
    ///
    /// # Safety
    /// `handle.opaque` is as this provider set it.
    pub(crate) unsafe fn begin_replay(&self, handle: &WsHandle) -> Result<Slot, Status> {
        // SAFETY: the caller vouches for it.
        let Some(trx) = (unsafe { self.trxs.find(handle) }).and_then(Handle::as_local) else {
            self.log.warn(format!("replay_trx: transaction {} is not known", handle.trx_id));
            return Err(Status::TRX_FAIL);
        };
        let slot = trx.lock().begin_replay()?;
        self.counters.local_replays.add(1);
        let seqno = slot.seqno;
        self.log.debug(|| format!("replaying transaction {} at seqno {seqno}", trx.id));
        // Not to be interrupted: it has been aborted already, and is the next one.
        let ready = self.wait_gate(seqno, None).and_then(|()| {
            self.wait_finished(seqno - 1, None, || format!("the replay of the transaction at seqno {seqno}"))
        });
        if ready.is_err() {
            // This member leaves. The cluster has committed it, and so will this server when it is back.
            self.not_here(trx);
            self.log.info(format!(
                "transaction {} is committed, at seqno {seqno}: here, when this member is back",
                trx.id
            ));
            return trx.lock().begin_replay();
        }
        Ok(slot)
    }

    /// The metadata of the write-set applied at `seqno`.
    pub(crate) fn apply_meta(&self, seqno: Seqno, depends_on: Seqno, meta: &Meta) -> TrxMeta {
        TrxMeta {
            gtid: gtid_out(lockstep_node::core::Gtid { uuid: self.history.get(), seqno }),
            stid: Stid { node: uuid_out(meta.source), trx: meta.trx, conn: meta.conn },
            depends_on,
        }
    }
}

/// The data of a write-set as the server takes it.
pub(crate) fn buf_of(data: &[u8]) -> Buf {
    if data.is_empty() { Buf::EMPTY } else { Buf { ptr: data.as_ptr().cast::<c_void>(), len: data.len() } }
}

/// The server's error, up to its NUL.
fn text_of(error: &[u8]) -> String {
    let end = error.iter().position(|byte| *byte == 0).unwrap_or(error.len());
    String::from_utf8_lossy(&error[..end.min(512)]).into_owned()
}
