//! Statements in total order (DDL): alone in commit order between `to_execute_start` and `to_execute_end`.

use crate::apply::monitor::lock;
use crate::ddl::journal::Mark;
use crate::ddl::recovery::{self, Bearing, Rule};
use crate::lifecycle::state_files::uuid_out;
use crate::provider::Provider;
use crate::trx::local::{NO_TRX, Sent, keys_of};
use crate::trx::{Place, Slot, Trx};
use lockstep_abi::*;
use lockstep_node::core::writeset;
use lockstep_node::core::{EntryKind, SEQNO_UNDEFINED, Seqno};
use std::sync::Arc;

/// The fate of a statement before this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Former {
    /// This server has not begun it.
    NotBegun,
    /// It is in the database.
    Executed,
    /// It is executed now; an error only says that it had been.
    Again,
}

impl Former {
    /// It is: it has marks, and an end.
    pub(crate) fn is_executed_now(self) -> bool {
        self != Former::Executed
    }
}

impl Provider {
    /// `to_execute_start`. With a GTID in `meta`, `to_execute_end` follows for any return value.
    ///
    /// # Safety
    /// As the API says of its arguments.
    pub(crate) unsafe fn statement_start(
        &self,
        conn: ConnId,
        keys: *const Key,
        keys_num: usize,
        action: &[Buf],
        flags: u32,
        meta: &mut TrxMeta,
    ) -> Status {
        self.undefined(meta, conn, NO_TRX);
        if flags & (FLAG_TRX_START | FLAG_TRX_END) == 0 || flags & FLAG_ROLLBACK != 0 {
            self.log.warn(format!("to_execute_start: flags {flags:#x} are not those of a statement"));
            return Status::CONN_FAIL;
        }
        if flags & FLAG_TRX_START == 0 || flags & FLAG_TRX_END == 0 {
            self.log.warn("to_execute_start: non-blocking operations are not offered");
            return Status::NOT_IMPLEMENTED;
        }
        if let Err(status) =
            self.may_write().and_then(|()| self.may_originate(crate::trx::local::Write::Statement))
        {
            return status;
        }
        // SAFETY: the caller vouches for it.
        let Some(keys) = (unsafe { keys_of(keys, keys_num) }) else {
            self.log.warn("to_execute_start: a key without parts");
            return Status::CONN_FAIL;
        };
        let mut builder = writeset::WriteSetBuilder::new();
        for parts in keys {
            if builder.append_key(&parts, writeset::KeyType::Exclusive).is_err() {
                return Status::SIZE_EXCEEDED;
            }
        }
        for data in action {
            // SAFETY: the caller vouches for it.
            let bytes = unsafe { data.as_slice() };
            if builder.append_data(writeset::DataKind::Ordered, bytes).is_err() {
                return Status::SIZE_EXCEEDED;
            }
        }
        if builder.size() > self.settings.max_write_set() {
            return Status::SIZE_EXCEEDED;
        }
        let trx = Arc::new(Trx::new(NO_TRX));
        if lock(&self.statements).insert(conn, trx.clone()).is_some() {
            self.log.warn(format!("to_execute_start: connection {conn} did not end its last statement"));
        }
        let payload = builder.finish(&self.meta(flags | FLAG_ISOLATION, conn, NO_TRX));
        let status = match self.send(&trx, EntryKind::TotalOrder, payload, || {}) {
            Sent::Ordered(ordered) => {
                meta.gtid = Gtid { uuid: uuid_out(self.history.get()), seqno: ordered.seqno };
                meta.depends_on = ordered.depends_on;
                return self.statement_ordered(&trx, *ordered);
            }
            // The server tries again after CONN_FAIL: only if it has gone nowhere.
            Sent::Never(status) => status,
            Sent::Unknown => {
                self.log.warn(format!(
                    "a statement of connection {conn} was under way when the majority was lost: it is executed as \
                     anybody's if the cluster has it"
                ));
                Status::NODE_FAIL
            }
        };
        lock(&self.statements).remove(&conn);
        status
    }

    fn statement_ordered(&self, trx: &Trx, ordered: lockstep_node::Ordered) -> Status {
        let (seqno, pass) = (ordered.seqno, ordered.pass);
        let data = ordered.writeset.data.clone();
        trx.lock().slot = Some(Slot {
            seqno,
            flags: ordered.writeset.meta.flags,
            depends_on: ordered.depends_on,
            early: false,
            pass,
            place: Place::Inside,
            writeset: ordered.writeset,
        });
        let who = || format!("the own statement at seqno {seqno}");
        let ready = self
            .wait_gate(seqno, None)
            .and_then(|()| self.wait_finished(ordered.depends_on, None, who))
            .and_then(|()| self.wait_turn(seqno, None));
        if ready.is_err() {
            // This member leaves before its turn: it is executed when it is back.
            trx.lock().slot = None;
            return Status::NODE_FAIL;
        }
        if !pass {
            self.counters.local_cert_failures.add(1);
            return Status::TRX_FAIL;
        }
        self.statement_begins(seqno, &data);
        Status::OK
    }

    /// `to_execute_end`.
    pub(crate) fn statement_end(&self, conn: ConnId, error: &[u8]) -> Status {
        let slot = lock(&self.statements).remove(&conn).and_then(|trx| trx.lock().slot.take());
        let Some(slot) = slot else {
            self.log.warn(format!("to_execute_end: connection {conn} has no statement in total order"));
            return Status::CONN_FAIL;
        };
        // One that was outvoted has failed the provider, which says so; the statement itself has ended in order.
        self.result(slot.seqno, error, true);
        if slot.pass {
            self.statement_is_done(slot.seqno);
        }
        if !self.order.leave(slot.seqno) {
            return Status::NODE_FAIL;
        }
        if slot.pass {
            self.statement_is_over();
        }
        self.finish(slot.seqno);
        Status::OK
    }

    fn at(&self, seqno: Seqno) -> lockstep_node::core::Gtid {
        lockstep_node::core::Gtid { uuid: self.history.get(), seqno }
    }

    /// The server executes the statement with this data next. Until it has, a crash leaves a database of which only the
    /// mark says how to find out whether the statement is in it.
    pub(crate) fn statement_begins(&self, seqno: Seqno, data: &[u8]) {
        let marked = self.marks.begun(self.at(seqno), recovery::rule(data, &self.data_dir));
        let is_marked = marked.is_ok();
        self.note(marked);
        self.note(self.state_file.mark_unsafe(is_marked));
    }

    /// The server has executed the statement, and no later entry. Called before it leaves commit order: a statement without
    /// this mark is executed again after a crash, which would be wrong after later entries were applied.
    pub(crate) fn statement_is_done(&self, seqno: Seqno) {
        self.note(self.marks.done(self.at(seqno)));
    }

    /// After [`Provider::statement_is_done`], and after it has left commit order: nobody waits for `grastate.dat`.
    pub(crate) fn statement_is_over(&self) {
        self.note(self.state_file.mark_safe());
    }

    /// Before a write-set is applied: for a statement in total order, its fate before this server was killed; for another
    /// write-set, prepares that a table it creates replaces leftovers.
    ///
    /// # Errors
    /// As [`Provider::former_statement`], or the journal cannot be written.
    pub(crate) fn look_back(&self, ordered: &mut lockstep_node::Ordered) -> Result<Option<Former>, String> {
        if ordered.kind == EntryKind::TotalOrder {
            return self.former_statement(ordered.seqno, &ordered.writeset.data).map(Some);
        }
        self.replay_ctas(ordered).map(|()| None)
    }

    /// The fate of a statement that was begun before this server was killed.
    ///
    /// # Errors
    /// That cannot be told any more, for it was begun on a table that has been created again since
    /// ([`crate::ddl::ctas_replay`]).
    pub(crate) fn former_statement(&self, seqno: Seqno, data: &[u8]) -> Result<Former, String> {
        let Some(mark) = self.marks.of(self.at(seqno)) else { return Ok(Former::NotBegun) };
        match (recovery::bearing(data, &self.marks.created_since(self.at(seqno))), mark) {
            (Bearing::None, mark) => Ok(self.former(seqno, data, mark)),
            (_, Mark::Begun(Rule::Again)) => Ok(self.former(seqno, data, mark)),
            // Its earlier effects were on the old table. On the new one this is its first execution, and an error counts.
            (Bearing::Alone, Mark::Begun(Rule::Compare { .. }) | Mark::Done) => {
                self.log.info(format!(
                    "this server had begun the statement at seqno {seqno} when it died: it is executed again, for the \
                     table that it changes has been created again"
                ));
                Ok(Former::NotBegun)
            }
            _ => Err(format!(
                "this server had begun the statement at seqno {seqno} when it died, and a table that it names has been \
                 created again since: whether it was done cannot be told"
            )),
        }
    }

    fn former(&self, seqno: Seqno, data: &[u8], mark: Mark) -> Former {
        match mark {
            Mark::Done => {
                self.log.info(format!("the statement at seqno {seqno} was done before this server died"));
                Former::Executed
            }
            Mark::Begun(rule) if recovery::was_executed(rule, data, &self.data_dir) => {
                self.log.info(format!(
                    "this server died in the statement at seqno {seqno}: what it changes shows that it is done"
                ));
                self.note(self.marks.done(self.at(seqno)));
                Former::Executed
            }
            Mark::Begun(rule) => {
                let why = match rule {
                    Rule::Again => "it does no harm twice",
                    Rule::Compare { .. } => "what it changes is as it was before",
                    Rule::Doubt => "whether it was done cannot be told, and nobody had done it",
                };
                self.log.info(format!(
                    "this server died in the statement at seqno {seqno}: it is executed again, for {why}"
                ));
                Former::Again
            }
        }
    }

    /// The statement after the position of which nobody can say, here, whether it was executed.
    pub(crate) fn statement_in_doubt(&self, position: lockstep_node::core::Gtid) -> Option<Seqno> {
        let (at, rule) = self.marks.open_one()?;
        let open = rule == Rule::Doubt
            && at.uuid == position.uuid
            && position.seqno != SEQNO_UNDEFINED
            && position.seqno < at.seqno;
        open.then_some(at.seqno)
    }
}
