//! Local transactions, step by step as the server takes them: execute, certify, commit in order; and the ways
//! out of it: certification failure, brute-force abort with replay, rollback.

use crate::checks::lock;
use crate::host::{Host, HostError, RecvCtx, Role, Stream};
use crate::locks::Owner;
use crate::state::ServerState;
use crate::store::{Changes, Op, StreamId, gap};
use lockstep_abi::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a local transaction waits for a row.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// The state of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrxState {
    /// Between or inside statements.
    Executing,
    /// Inside certify, or between it and commit order.
    Certifying,
    /// Certified, waiting for commit order.
    Committing,
    /// Aborted by an applier, not yet rolled back.
    MustAbort,
    /// Ordered and aborted: to be replayed.
    MustReplay,
    /// Being replayed.
    Replaying,
    /// Rolled back.
    Aborted,
    /// Done.
    Committed,
}

#[derive(Debug)]
struct Core {
    state: TrxState,
    handle: WsHandle,
    meta: TrxMeta,
    pending: Changes,
    sent_ops: Vec<Op>,
    keys: Vec<(Vec<u8>, Vec<u8>)>,
    fragments: usize,
    stream_rolled_back: bool,
    total_order_abort: bool,
    /// In commit order: nothing can abort it any more.
    immutable: bool,
    /// A command of the client runs.
    busy: bool,
    /// The checks know it as running.
    in_flight: bool,
    replays: u32,
}

// SAFETY: the only pointers inside are the provider's opaque context, which the API hands from thread to thread.
unsafe impl Send for Core {}

/// A local transaction.
#[derive(Debug)]
pub struct Trx {
    /// Its id.
    pub id: TrxId,
    /// Its connection.
    pub conn: ConnId,
    core: Mutex<Core>,
    aborted: AtomicBool,
}

/// How a commit ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its place; undefined if it changed nothing.
    pub gtid: Gtid,
    /// How often it was replayed.
    pub replays: u32,
}

fn deadlock() -> HostError {
    HostError::new("deadlock", "the transaction was aborted by another one that is earlier in the order")
}

impl Trx {
    /// Its state.
    pub fn state(&self) -> TrxState {
        lock(&self.core).state
    }

    /// For a replay: the original handle, the changes of earlier fragments, and the stream they make.
    pub(crate) fn replay_parts(&self, node: Uuid) -> (WsHandle, Vec<Op>, Option<StreamId>) {
        let core = lock(&self.core);
        let stream = (core.fragments > 0).then_some(StreamId { node, trx: self.id });
        (core.handle, core.sent_ops.clone(), stream)
    }

    /// The replay has committed.
    pub(crate) fn replayed(&self, meta: TrxMeta) {
        let mut core = lock(&self.core);
        core.state = TrxState::Committed;
        core.meta = meta;
        core.replays += 1;
    }
}

/// Table and row of a key, for certification: `table/row`.
fn key_parts(row: &str) -> (Vec<u8>, Vec<u8>) {
    let (table, row) = row.split_once('/').unwrap_or(("t", row));
    (table.as_bytes().to_vec(), row.as_bytes().to_vec())
}

/// First part of every key: the database.
const DATABASE: &[u8] = b"host";

impl Host {
    /// Begins a transaction.
    pub fn begin(&self, conn: ConnId) -> Arc<Trx> {
        let id = self.next_trx.fetch_add(1, Ordering::SeqCst);
        let trx = Arc::new(Trx {
            id,
            conn,
            core: Mutex::new(Core {
                state: TrxState::Executing,
                handle: WsHandle { trx_id: id, opaque: std::ptr::null_mut() },
                meta: TrxMeta::UNDEFINED,
                pending: Changes::default(),
                sent_ops: Vec::new(),
                keys: Vec::new(),
                fragments: 0,
                stream_rolled_back: false,
                total_order_abort: false,
                immutable: false,
                busy: false,
                in_flight: false,
                replays: 0,
            }),
            aborted: AtomicBool::new(false),
        });
        lock(&self.trxs).insert(id, Arc::clone(&trx));
        trx
    }

    /// Begins a command: an abort that came while the client was away shows now.
    fn command<'a>(&self, trx: &'a Arc<Trx>) -> Result<MutexGuard<'a, Core>, HostError> {
        let mut core = lock(&trx.core);
        match core.state {
            TrxState::Executing => {
                core.busy = true;
                Ok(core)
            }
            TrxState::MustAbort | TrxState::Aborted => {
                drop(core);
                self.roll_back(trx);
                Err(deadlock())
            }
            other => Err(HostError::new("state", format!("the transaction is {other:?}"))),
        }
    }

    /// Ends a command: an abort that came meanwhile is carried out.
    fn command_end(&self, trx: &Arc<Trx>) -> Result<(), HostError> {
        let mut core = lock(&trx.core);
        core.busy = false;
        if core.state == TrxState::Executing {
            return Ok(());
        }
        drop(core);
        self.roll_back(trx);
        Err(deadlock())
    }

    /// Changes a row, with extra locks that have no certification key.
    pub fn write(&self, trx: &Arc<Trx>, op: Op, locks: &[String], key: KeyType) -> Result<(), HostError> {
        drop(self.command(trx)?);
        let written = self.write_inner(trx, op, locks, key);
        self.command_end(trx)?;
        written
    }

    fn write_inner(&self, trx: &Arc<Trx>, op: Op, locks: &[String], key: KeyType) -> Result<(), HostError> {
        let rows = op.row().map(str::to_owned).into_iter();
        for name in rows.chain(locks.iter().map(|name| gap(name))) {
            self.take_for_client(trx, &name)?;
        }
        if let Some(row) = op.row() {
            self.append_key(trx, row, key)?;
        }
        let mut core = lock(&trx.core);
        core.pending.ops.push(op);
        core.pending.locks.extend_from_slice(locks);
        Ok(())
    }

    /// Adds a key without a change: a row that is referred to.
    pub fn append_key(&self, trx: &Arc<Trx>, row: &str, key: KeyType) -> Result<(), HostError> {
        let (table, row) = key_parts(row);
        let mut core = lock(&trx.core);
        let mut handle = core.handle;
        let status = self.provider()?.append_key(&mut handle, &[DATABASE, &table, &row], key);
        core.handle = handle;
        core.keys.push((table, row));
        if status == Status::OK { Ok(()) } else { Err(HostError::status("append_key", status)) }
    }

    fn take_for_client(&self, trx: &Arc<Trx>, name: &str) -> Result<(), HostError> {
        let owner = Owner::Trx(trx.id);
        let end = Instant::now() + LOCK_WAIT;
        loop {
            if trx.aborted.load(Ordering::SeqCst) {
                return Err(deadlock());
            }
            let Err(holder) = self.locks.take(name, owner) else { return Ok(()) };
            if Instant::now() > end {
                return Err(HostError::new("lock", format!("lock wait timeout: {holder:?} has {name}")));
            }
            self.locks.wait(name, owner, end, || trx.aborted.load(Ordering::SeqCst));
        }
    }

    /// An applier at `bf_seqno` needs what `trx` holds. Returns whether it gives way.
    pub(crate) fn bf_abort(&self, trx: &Arc<Trx>, bf_seqno: Seqno, total_order: bool) -> bool {
        let mut core = lock(&trx.core);
        if core.immutable {
            return false;
        }
        let before = core.state;
        if !matches!(before, TrxState::Executing | TrxState::Certifying | TrxState::Committing) {
            return false;
        }
        // Called with the client's lock held, as in the server: this must not block.
        let began = Instant::now();
        let (status, _) = self.called().abort_certification(bf_seqno, trx.id);
        let took = began.elapsed();
        self.checks.ensure(took < Duration::from_secs(1), || format!("abort_certification took {took:?}"));
        if status != Status::OK {
            return false;
        }
        core.state = TrxState::MustAbort;
        core.total_order_abort |= total_order;
        trx.aborted.store(true, Ordering::SeqCst);
        if before == TrxState::Executing {
            let core = self.roll_back_stream(trx, core);
            if !core.busy {
                // No thread runs it, so the server's background rollbacker rolls it back at once.
                self.undo(trx, core);
            }
        } else {
            drop(core);
        }
        self.locks.wake();
        true
    }

    /// A view ends this open streaming transaction on all members alike: no rollback fragment.
    pub(crate) fn abort_stream_in_total_order(&self, trx: &Arc<Trx>, seqno: Seqno) {
        if lock(&trx.core).fragments > 0 {
            self.bf_abort(trx, seqno, true);
        }
    }

    /// Sends the rollback fragment of a streaming transaction, once.
    fn roll_back_stream<'a>(
        &self,
        trx: &'a Arc<Trx>,
        mut core: MutexGuard<'a, Core>,
    ) -> MutexGuard<'a, Core> {
        if core.fragments == 0 || core.stream_rolled_back {
            return core;
        }
        core.stream_rolled_back = true;
        if core.total_order_abort {
            return core;
        }
        let id = StreamId { node: self.id(), trx: trx.id };
        // From here on the server treats it as a stream of somebody else's, which its own rollback fragment,
        // or a view, ends.
        lock(&self.streams).insert(id, Stream { ops: Vec::new(), fragments: core.fragments });
        if self.called().rollback(trx.id) != Status::OK {
            lock(&self.pending_rollbacks).push_back(trx.id);
        }
        core
    }

    /// Undoes the changes and lets go of the rows.
    fn undo(&self, trx: &Arc<Trx>, core: MutexGuard<'_, Core>) {
        let mut core = core;
        core.state = TrxState::Aborted;
        let forget = core.fragments > 0 && core.total_order_abort;
        drop(core);
        if forget {
            let id = StreamId { node: self.id(), trx: trx.id };
            self.with_store(|store| store.forget(id));
        }
        self.locks.release(Owner::Trx(trx.id));
    }

    /// Rolls back: sends the rollback fragment if there is something to roll back elsewhere, lets go of the
    /// rows, takes the place in commit order if there is one, releases.
    pub fn roll_back(&self, trx: &Arc<Trx>) {
        let core = lock(&trx.core);
        if core.state == TrxState::Committed {
            return;
        }
        if core.state == TrxState::Aborted {
            drop(core);
        } else {
            let core = self.roll_back_stream(trx, core);
            self.undo(trx, core);
        }
        self.after_abort(trx);
    }

    fn after_abort(&self, trx: &Arc<Trx>) {
        let core = lock(&trx.core);
        let (mut handle, meta) = (core.handle, core.meta);
        drop(core);
        let provider = self.called();
        if !meta.gtid.is_undefined() {
            let entered = self.order_enter(&handle, &meta, "failed transaction");
            if entered == Status::OK {
                // The server waits for all earlier ones before it moves its position.
                let before = Gtid { seqno: meta.gtid.seqno - 1, ..meta.gtid };
                let (waited, _) = provider.sync_wait(Some(before), i32::MAX);
                self.checks.ensure(waited == Status::OK, || {
                    format!("sync_wait for {before} inside commit order returned {waited}")
                });
                self.with_store(|store| store.checkpoint(meta.gtid));
                self.order_leave(&handle, &meta, &[], "failed");
            } else {
                self.checks
                    .violation(format!("{} failed and cannot enter commit order: {entered}", meta.gtid));
            }
        }
        self.end_in_flight(trx);
        provider.release(&mut handle);
        lock(&trx.core).handle = handle;
        lock(&self.trxs).remove(&trx.id);
    }

    fn end_in_flight(&self, trx: &Arc<Trx>) {
        let mut core = lock(&trx.core);
        let seqno = core.meta.gtid.seqno;
        if std::mem::take(&mut core.in_flight) {
            drop(core);
            self.checks.end(seqno);
        }
    }

    /// Replicates what has been written so far as a fragment.
    pub fn fragment(&self, trx: &Arc<Trx>) -> Result<Gtid, HostError> {
        drop(self.command(trx)?);
        let sent = self.fragment_inner(trx);
        match sent {
            Ok(gtid) => self.command_end(trx).map(|()| gtid),
            Err(error) => {
                lock(&trx.core).busy = false;
                self.roll_back(trx);
                Err(error)
            }
        }
    }

    fn fragment_inner(&self, trx: &Arc<Trx>) -> Result<Gtid, HostError> {
        let provider = self.provider()?;
        self.send_pending_rollbacks();
        let mut core = lock(&trx.core);
        if core.state != TrxState::Executing {
            return Err(deadlock());
        }
        core.state = TrxState::Certifying;
        let (mut handle, first) = (core.handle, core.fragments == 0);
        let changes = std::mem::take(&mut core.pending);
        drop(core);
        let mut meta = TrxMeta::UNDEFINED;
        let mut status = provider.append_data(&mut handle, &changes.encode());
        if status == Status::OK {
            self.holds.pass("before_certify");
            let flags = if first { FLAG_TRX_START } else { 0 };
            status = provider.certify(trx.conn, &mut handle, flags, &mut meta);
            self.holds.pass("after_certify");
        }
        let mut core = lock(&trx.core);
        core.handle = handle;
        // After these two the server takes the fragment for replicated, so that a rollback fragment follows.
        if matches!(status, Status::OK | Status::BF_ABORT | Status::TRX_FAIL) {
            core.fragments += 1;
            core.sent_ops.extend(changes.ops.iter().cloned());
        }
        if status != Status::OK {
            let aborted = core.state == TrxState::MustAbort;
            core.state = TrxState::MustAbort;
            return Err(match status {
                // A fragment is never replayed: the server rolls back, whichever of these it is.
                Status::BF_ABORT => deadlock(),
                Status::CONN_FAIL if aborted => deadlock(),
                status => HostError::status("certify", status),
            });
        }
        drop(core);
        self.checks.begin_independent(&meta, "fragment");
        let stored = self.store_fragment(trx, &handle, &meta, changes);
        self.checks.end(meta.gtid.seqno);
        let status = if stored == Status::OK { provider.release(&mut handle) } else { stored };
        let mut core = lock(&trx.core);
        core.handle = handle;
        if status != Status::OK && core.state == TrxState::Certifying {
            core.state = TrxState::MustAbort;
        }
        match core.state {
            TrxState::Certifying => {
                core.state = TrxState::Executing;
                Ok(meta.gtid)
            }
            _ => Err(deadlock()),
        }
    }

    /// The fragment's own small transaction into the fragment storage, at the fragment's place.
    fn store_fragment(&self, trx: &Arc<Trx>, handle: &WsHandle, meta: &TrxMeta, changes: Changes) -> Status {
        let entered = self.order_enter(handle, meta, "fragment");
        if entered != Status::OK {
            return entered;
        }
        let id = StreamId { node: self.id(), trx: trx.id };
        self.with_store(|store| store.fragment(meta.gtid, id, changes));
        self.order_leave(handle, meta, &[], "fragment")
    }

    /// Commits.
    pub fn commit(&self, trx: &Arc<Trx>) -> Result<Committed, HostError> {
        let core = self.command(trx)?;
        if core.keys.is_empty() && core.pending.ops.is_empty() && core.fragments == 0 {
            // It changed nothing: the provider never hears of it.
            let mut core = core;
            core.state = TrxState::Committed;
            drop(core);
            self.locks.release(Owner::Trx(trx.id));
            lock(&self.trxs).remove(&trx.id);
            return Ok(Committed { gtid: Gtid::UNDEFINED, replays: 0 });
        }
        drop(core);
        let committed = self.commit_inner(trx);
        if committed.is_err() {
            lock(&trx.core).busy = false;
            if trx.state() != TrxState::Committed {
                self.roll_back(trx);
            }
        }
        committed
    }

    fn commit_inner(&self, trx: &Arc<Trx>) -> Result<Committed, HostError> {
        let pending = self.send_pending_rollbacks();
        if pending != Status::OK {
            return Err(HostError::status("rollback", pending));
        }
        self.certify_commit(trx)?;
        if trx.state() == TrxState::MustReplay {
            return self.replay(trx);
        }
        self.holds.pass("before_commit_order");
        let core = lock(&trx.core);
        let (handle, meta) = (core.handle, core.meta);
        drop(core);
        let status = self.order_enter(&handle, &meta, "commit");
        let mut core = lock(&trx.core);
        match status {
            Status::OK => {
                let state = core.state;
                self.checks.ensure(state == TrxState::Committing, || {
                    format!("{} is in commit order and {state:?}: the abort was let through", meta.gtid)
                });
                core.immutable = true;
            }
            Status::BF_ABORT => {
                core.state = TrxState::MustReplay;
                drop(core);
                return self.replay(trx);
            }
            other => {
                self.checks.violation(format!("commit_order_enter of a certified one returned {other}"));
                return Err(HostError::status("commit_order_enter", other));
            }
        }
        let stream = (core.fragments > 0).then_some(StreamId { node: self.id(), trx: trx.id });
        let ops: Vec<Op> = core.sent_ops.iter().chain(&core.pending.ops).cloned().collect();
        drop(core);
        self.holds.pass("in_commit_order");
        self.with_store(|store| store.commit(meta.gtid, &ops, stream));
        self.locks.release(Owner::Trx(trx.id));
        let left = self.order_leave(&handle, &meta, &[], "commit");
        self.checks.ensure(left == Status::OK, || format!("commit_order_leave returned {left}"));
        self.finish(trx, handle);
        Ok(Committed { gtid: meta.gtid, replays: 0 })
    }

    fn finish(&self, trx: &Arc<Trx>, mut handle: WsHandle) {
        self.end_in_flight(trx);
        let released = self.called().release(&mut handle);
        self.checks.ensure(released == Status::OK, || format!("release after commit returned {released}"));
        lock(&trx.core).state = TrxState::Committed;
        lock(&self.trxs).remove(&trx.id);
    }

    /// Certifies; on return the transaction is committing or must be replayed.
    fn certify_commit(&self, trx: &Arc<Trx>) -> Result<(), HostError> {
        let provider = self.provider()?;
        let mut core = lock(&trx.core);
        if core.state != TrxState::Executing {
            return Err(deadlock());
        }
        core.state = TrxState::Certifying;
        let (mut handle, streaming) = (core.handle, core.fragments > 0);
        let changes = core.pending.clone();
        let keys = if streaming { core.keys.clone() } else { Vec::new() };
        drop(core);

        let mut flags = FLAG_TRX_END;
        if streaming {
            // The keys of all fragments once more, as shared: nobody may have touched the rows since.
            for (table, row) in &keys {
                provider.append_key(&mut handle, &[DATABASE, table, row], KeyType::SHARED);
            }
            flags |= FLAG_PA_UNSAFE;
        } else {
            flags |= FLAG_TRX_START;
        }
        let mut meta = TrxMeta::UNDEFINED;
        let mut status = provider.append_data(&mut handle, &changes.encode());
        if status == Status::OK {
            self.holds.pass("before_certify");
            let calls;
            let told = || self.holds.pass("certify_tells");
            (status, calls) = provider.certify_telling(trx.conn, &mut handle, flags, &mut meta, &told);
            let as_often = if status == Status::OK { 1..=1 } else { 0..=1 };
            self.checks.ensure(calls.is_none_or(|calls| as_often.contains(&calls)), || {
                format!("certify returned {status:?} and had called back {calls:?} times")
            });
            if status == Status::OK {
                self.checks.begin_independent(&meta, "commit");
                lock(&trx.core).in_flight = true;
            }
            self.holds.pass("after_certify");
        }
        self.checks
            .ensure(!matches!(status, Status::OK | Status::BF_ABORT) || !meta.gtid.is_undefined(), || {
                format!("certify returned {status} without a GTID")
            });

        let mut core = lock(&trx.core);
        core.handle = handle;
        core.meta = meta;
        match status {
            Status::OK if core.state == TrxState::MustAbort => core.state = TrxState::MustReplay,
            Status::OK => core.state = TrxState::Committing,
            Status::BF_ABORT => core.state = TrxState::MustReplay,
            other => {
                let aborted = core.state == TrxState::MustAbort;
                core.state = TrxState::MustAbort;
                let ordered = !meta.gtid.is_undefined();
                if other == Status::CONN_FAIL && aborted {
                    return Err(deadlock());
                }
                let code =
                    if ordered { format!("status:{other}:ordered") } else { format!("status:{other}") };
                return Err(HostError::new(code, format!("certify returned {other}, GTID {}", meta.gtid)));
            }
        }
        Ok(())
    }

    /// Rolls the local changes back and has the provider apply the transaction again in its place.
    fn replay(&self, trx: &Arc<Trx>) -> Result<Committed, HostError> {
        self.end_in_flight(trx);
        let mut core = lock(&trx.core);
        core.state = TrxState::Replaying;
        let mut handle = core.handle;
        drop(core);
        self.locks.release(Owner::Trx(trx.id));
        self.holds.pass("before_replay");
        let Some(host) = self.leaked() else {
            return Err(HostError::new("state", "no server to replay on"));
        };
        let role = Role::Replayer(Arc::clone(trx));
        let ctx = RecvCtx { host, thread: std::thread::current().id(), role };
        let status = self.called().replay_trx(&handle, Some(&ctx));
        match status {
            Status::OK => {
                let core = lock(&trx.core);
                let (state, gtid, replays) = (core.state, core.meta.gtid, core.replays);
                drop(core);
                // The others commit it. Nobody can miss it here, because this server takes no queries any more.
                let leaves = matches!(
                    self.states.lock().state,
                    ServerState::Disconnecting | ServerState::Disconnected
                );
                self.checks.ensure(state == TrxState::Committed || leaves, || {
                    format!("replay_trx returned OK and applied nothing: {gtid} is {state:?}")
                });
                self.called().release(&mut handle);
                lock(&self.trxs).remove(&trx.id);
                Ok(Committed { gtid, replays })
            }
            Status::TRX_FAIL => {
                let mut core = lock(&trx.core);
                if core.fragments > 0 {
                    let id = StreamId { node: self.id(), trx: trx.id };
                    self.with_store(|store| store.forget(id));
                    core.stream_rolled_back = true;
                }
                core.state = TrxState::Aborted;
                Err(deadlock())
            }
            other => {
                self.checks.violation(format!("replay_trx returned {other}: the real server aborts"));
                lock(&trx.core).state = TrxState::Aborted;
                Err(HostError::status("replay_trx", other))
            }
        }
    }

    /// A statement in total order: `to_execute_start`, the changes, `to_execute_end`.
    pub fn total_order(&self, conn: ConnId, changes: &Changes, error: &[u8]) -> Result<Gtid, HostError> {
        let provider = self.provider()?;
        let keys: Vec<Vec<Vec<u8>>> = changes
            .ops
            .iter()
            .filter_map(Op::row)
            .map(|row| vec![DATABASE.to_vec(), key_parts(row).0])
            .collect();
        let mut meta = TrxMeta::UNDEFINED;
        let flags = FLAG_TRX_START | FLAG_TRX_END;
        let status = provider.to_execute_start(conn, &keys, &changes.encode(), flags, &mut meta);
        if status != Status::OK {
            if !meta.gtid.is_undefined() {
                provider.to_execute_end(conn, &[]);
            }
            return Err(HostError::status("to_execute_start", status));
        }
        self.checks.begin(&meta, "total order");
        self.checks.enter(meta.gtid.seqno, "total order");
        self.holds.pass("in_total_order");
        self.apply_local_total_order(changes, &meta);
        self.checks.leave(&meta, "toi");
        self.checks.end(meta.gtid.seqno);
        match provider.to_execute_end(conn, error) {
            Status::OK => Ok(meta.gtid),
            status => Err(HostError::status("to_execute_end", status)),
        }
    }

    fn apply_local_total_order(&self, changes: &Changes, meta: &TrxMeta) {
        // The statement waits for nobody: local transactions in its way are aborted, as the server does when
        // it takes its metadata locks.
        let owner = Owner::Applier(meta.gtid.seqno);
        let end = Instant::now() + LOCK_WAIT;
        for name in changes.lock_names() {
            if !self.take_for_total_order(&name, owner, meta.gtid.seqno, end) {
                self.checks.violation(format!("total order at {} cannot get {name}", meta.gtid));
            }
        }
        self.with_store(|store| store.commit(meta.gtid, &changes.ops, None));
        self.locks.release(owner);
    }
}
