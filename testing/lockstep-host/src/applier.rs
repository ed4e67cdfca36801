//! The server's side of applying a delivered write-set.

use crate::checks::{WITHOUT_CHANGES, lock};
use crate::client::Trx;
use crate::host::{Host, RecvCtx, Role, Stream, TIMEOUT};
use crate::locks::Owner;
use crate::store::{Changes, Op, StreamId, gap};
use lockstep_abi::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Why a write-set could not be applied; the text is what members would vote on.
struct ApplyError(Vec<u8>);

impl Host {
    /// Whether the thread of `ctx` shall leave its `recv`: the server's way to have fewer appliers.
    pub(crate) fn applier_shall_exit(&self, ctx: &RecvCtx) -> bool {
        matches!(ctx.role, Role::Applier)
            && self
                .appliers_to_stop
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| (left > 0).then(|| left - 1))
                .is_ok()
    }

    /// Takes a write-set. False is a failure that makes the provider leave the cluster.
    pub(crate) fn on_apply(
        &self,
        ctx: &RecvCtx,
        handle: &WsHandle,
        flags: u32,
        data: &[u8],
        meta: &TrxMeta,
    ) -> bool {
        if self.config.lean {
            return self.lean_apply(handle, flags, data, meta);
        }
        self.check_thread(ctx, "apply");
        self.checks.ensure(!meta.gtid.is_undefined(), || format!("apply without a GTID, flags {flags:#x}"));
        let position = self.read_store(|store| store.position());
        self.checks.ensure(position.uuid == meta.gtid.uuid && position.seqno < meta.gtid.seqno, || {
            format!("apply of {} on a database at {position}", meta.gtid)
        });
        if flags & FLAG_ROLLBACK == 0 {
            let what = match (&ctx.role, flags & (FLAG_TRX_START | FLAG_TRX_END)) {
                (Role::Replayer(_), _) => "replay",
                _ if flags & FLAG_ISOLATION != 0 => "statement",
                (_, 0) => "fragment",
                (_, FLAG_TRX_START) => "first fragment",
                (_, FLAG_TRX_END) => "last fragment",
                _ => "apply",
            };
            match &ctx.role {
                Role::Replayer(_) => self.checks.begin_independent(meta, what),
                Role::Applier => self.checks.begin(meta, what),
            }
            self.holds.pass("apply");
        } else {
            self.checks.begin_independent(meta, WITHOUT_CHANGES);
        }
        let went = match &ctx.role {
            Role::Replayer(trx) => self.apply_replay(trx, flags, data, meta),
            Role::Applier if flags & FLAG_ISOLATION != 0 => self.apply_toi(handle, flags, data, meta),
            Role::Applier => self.apply_write_set(handle, flags, data, meta),
        };
        self.checks.end(meta.gtid.seqno);
        went
    }

    fn apply_toi(&self, handle: &WsHandle, flags: u32, data: &[u8], meta: &TrxMeta) -> bool {
        let whole = FLAG_TRX_START | FLAG_TRX_END;
        self.checks.ensure(flags & whole == whole, || format!("total order in two phases: {flags:#x}"));
        if self.order_enter(handle, meta, "total order") != Status::OK {
            return false;
        }
        self.holds.pass("apply_in_commit_order");
        let owner = Owner::Applier(meta.gtid.seqno);
        let applied = self.apply_changes(data, owner, meta.gtid.seqno, true);
        self.locks.release(owner);
        let error = match applied {
            Ok(changes) => {
                self.with_store(|store| store.commit(meta.gtid, &changes.ops, None));
                Vec::new()
            }
            Err(ApplyError(text)) => {
                self.with_store(|store| store.checkpoint(meta.gtid));
                text
            }
        };
        let left = self.order_leave(handle, meta, &error, "toi");
        left == Status::OK
    }

    fn apply_write_set(&self, handle: &WsHandle, flags: u32, data: &[u8], meta: &TrxMeta) -> bool {
        let id = StreamId { node: meta.stid.node, trx: meta.stid.trx };
        let starts = flags & FLAG_TRX_START != 0;
        let ends = flags & FLAG_TRX_END != 0;
        if flags & FLAG_ROLLBACK != 0 {
            return self.apply_rollback(handle, id, starts, meta);
        }
        if starts && ends {
            return self.apply_whole(handle, data, meta);
        }
        if starts {
            let stale = lock(&self.streams).insert(id, Stream::default());
            // The real server throws a fatal error here.
            self.checks.ensure(stale.is_none(), || format!("{id:?} starts twice"));
        } else if !lock(&self.streams).contains_key(&id) {
            // Rolled back here by a change of the view before this fragment came.
            return self.dummy(handle, meta, &[]);
        }
        if ends {
            self.apply_last(handle, id, data, meta)
        } else {
            self.apply_fragment(handle, id, data, meta)
        }
    }

    fn apply_whole(&self, handle: &WsHandle, data: &[u8], meta: &TrxMeta) -> bool {
        let owner = Owner::Applier(meta.gtid.seqno);
        let applied = self.apply_changes(data, owner, meta.gtid.seqno, false);
        let changes = match applied {
            Ok(changes) => changes,
            Err(ApplyError(text)) => {
                self.locks.release(owner);
                return self.dummy(handle, meta, &text);
            }
        };
        let entered = self.order_enter(handle, meta, "apply");
        if entered != Status::OK {
            self.checks.violation(format!("commit_order_enter of an applier returned {entered}"));
            self.locks.release(owner);
            return false;
        }
        self.holds.pass("apply_in_commit_order");
        self.with_store(|store| store.commit(meta.gtid, &changes.ops, None));
        self.locks.release(owner);
        self.order_leave(handle, meta, &[], "commit") == Status::OK
    }

    fn apply_fragment(&self, handle: &WsHandle, id: StreamId, data: &[u8], meta: &TrxMeta) -> bool {
        let owner = Owner::Stream(id);
        let changes = match self.apply_changes(data, owner, meta.gtid.seqno, false) {
            Ok(changes) => changes,
            Err(ApplyError(text)) => {
                lock(&self.streams).remove(&id);
                self.locks.release(owner);
                self.with_store(|store| store.forget(id));
                return self.dummy(handle, meta, &text);
            }
        };
        if let Some(stream) = lock(&self.streams).get_mut(&id) {
            stream.ops.extend(changes.ops.iter().cloned());
            stream.fragments += 1;
        }
        if self.order_enter(handle, meta, "fragment") != Status::OK {
            return false;
        }
        self.with_store(|store| store.fragment(meta.gtid, id, changes));
        self.order_leave(handle, meta, &[], "fragment") == Status::OK
    }

    fn apply_last(&self, handle: &WsHandle, id: StreamId, data: &[u8], meta: &TrxMeta) -> bool {
        let owner = Owner::Stream(id);
        let applied = self.apply_changes(data, owner, meta.gtid.seqno, false);
        let stream = lock(&self.streams).remove(&id).unwrap_or_default();
        let (ops, error) = match applied {
            Ok(changes) => (stream.ops.into_iter().chain(changes.ops).collect(), Vec::new()),
            Err(ApplyError(text)) => (Vec::<Op>::new(), text),
        };
        if self.order_enter(handle, meta, "apply") != Status::OK {
            self.locks.release(owner);
            return false;
        }
        self.with_store(|store| store.commit(meta.gtid, &ops, Some(id)));
        self.locks.release(owner);
        self.order_leave(handle, meta, &error, "commit") == Status::OK
    }

    fn apply_rollback(&self, handle: &WsHandle, id: StreamId, starts: bool, meta: &TrxMeta) -> bool {
        let known = !starts && lock(&self.streams).remove(&id).is_some();
        if !known {
            return self.dummy(handle, meta, &[]);
        }
        // The changes go out of order, only the removal of the fragments takes the place in it.
        self.locks.release(Owner::Stream(id));
        if self.order_enter(handle, meta, "rollback") != Status::OK {
            return false;
        }
        self.with_store(|store| store.commit(meta.gtid, &[], Some(id)));
        self.order_leave(handle, meta, &[], "rollback") == Status::OK
    }

    /// Takes a place in the order without changing anything.
    fn dummy(&self, handle: &WsHandle, meta: &TrxMeta, error: &[u8]) -> bool {
        let entered = self.order_enter(handle, meta, "dummy");
        if entered != Status::OK {
            self.checks.violation(format!("commit_order_enter of a dummy returned {entered}"));
            return false;
        }
        self.with_store(|store| store.checkpoint(meta.gtid));
        self.order_leave(handle, meta, error, "dummy") == Status::OK
    }

    /// A local transaction applied again on its own thread, with the *original* handle.
    fn apply_replay(&self, trx: &Arc<Trx>, flags: u32, data: &[u8], meta: &TrxMeta) -> bool {
        self.checks.ensure(flags & FLAG_TRX_END != 0, || format!("replay of a fragment, flags {flags:#x}"));
        let (handle, before, stream) = trx.replay_parts(self.id());
        let owner = Owner::Trx(trx.id);
        let end = Instant::now() + TIMEOUT;
        for row in before.iter().filter_map(Op::row) {
            if self.take_for_applier(row, owner, meta.gtid.seqno, false, end).is_err() {
                return false;
            }
        }
        let changes = match self.apply_changes(data, owner, meta.gtid.seqno, false) {
            Ok(changes) => changes,
            Err(ApplyError(text)) => {
                let text = String::from_utf8_lossy(&text).into_owned();
                self.checks.violation(format!("replay of {} failed: {text}", meta.gtid));
                return false;
            }
        };
        let ops: Vec<Op> = before.into_iter().chain(changes.ops).collect();
        let entered = self.order_enter(&handle, meta, "replay");
        if entered != Status::OK {
            self.checks.violation(format!("commit_order_enter of a replay returned {entered}"));
            return false;
        }
        self.with_store(|store| store.commit(meta.gtid, &ops, stream));
        self.locks.release(owner);
        let left = self.order_leave(&handle, meta, &[], "replay");
        trx.replayed(*meta);
        left == Status::OK
    }

    /// Decodes a write-set and takes its locks, making local transactions give way.
    fn apply_changes(
        &self,
        data: &[u8],
        owner: Owner,
        seqno: Seqno,
        total_order: bool,
    ) -> Result<Changes, ApplyError> {
        let changes = Changes::decode(data).map_err(|text| {
            self.checks.violation(text.clone());
            ApplyError(text.into_bytes())
        })?;
        let end = Instant::now() + TIMEOUT;
        for name in changes.lock_names() {
            self.take_for_applier(&name, owner, seqno, total_order, end)?;
        }
        let failing = |op: &Op| matches!(op, Op::FailOn(name) if *name == self.config.name);
        if changes.ops.iter().any(failing) {
            return Err(ApplyError(b"told to fail".to_vec()));
        }
        Ok(changes)
    }

    /// As an applier of a statement in total order; false after `end`.
    pub(crate) fn take_for_total_order(&self, name: &str, owner: Owner, seqno: Seqno, end: Instant) -> bool {
        self.take_for_applier(name, owner, seqno, true, end).is_ok()
    }

    fn take_for_applier(
        &self,
        name: &str,
        owner: Owner,
        seqno: Seqno,
        total_order: bool,
        end: Instant,
    ) -> Result<(), ApplyError> {
        let between_rows = name.starts_with(&gap(""));
        loop {
            let Err(holder) = self.locks.take(name, owner) else { return Ok(()) };
            match holder {
                Owner::Trx(victim) => {
                    let victim = lock(&self.trxs).get(&victim).cloned();
                    if let Some(victim) = victim {
                        self.bf_abort(&victim, seqno, total_order);
                    }
                }
                Owner::Stream(id) if total_order || between_rows => {
                    // An applier ends an open transaction of another member by itself; the origin does the
                    // same, and its rollback fragment, if it sends one, will find nothing here.
                    lock(&self.streams).remove(&id);
                    self.locks.release(holder);
                    self.with_store(|store| store.forget(id));
                    continue;
                }
                // Appliers do not wait for each other's locks between rows, as in InnoDB.
                Owner::Applier(_) if between_rows => return Ok(()),
                // Its rollback fragment is ahead, on another thread, and lets go out of order.
                Owner::Stream(_) => {}
                Owner::Applier(_) => self.checks.violation(format!(
                    "{owner:?} wants {name} at {seqno}, which {holder:?} has: certification let both pass"
                )),
            }
            if Instant::now() > end {
                self.checks.violation(format!("{owner:?} at {seqno} cannot get {name} from {holder:?}"));
                return Err(ApplyError(b"lock wait timeout".to_vec()));
            }
            self.locks.wait(name, owner, end, || false);
        }
    }
}
