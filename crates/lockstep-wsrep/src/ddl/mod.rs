//! Statements in total order (DDL), and their recovery after a crash.
//!
//! InnoDB's position does not cover DDL: [`journal`] records it instead, and `grastate.dat` names no history while a
//! statement executes. [`recovery`] decides after a crash whether a statement was executed; [`ctas_replay`] repeats
//! `CREATE TABLE ... SELECT`. [`statement`] has the server's calls for a statement of its own.

pub(crate) mod ctas_replay;
pub(crate) mod journal;
pub(crate) mod recovery;
pub(crate) mod server_error;
pub(crate) mod statement;

use crate::host::Host;
use crate::lifecycle::state_files::StateFile;
use ctas_replay::CtasReplay;
use journal::{DdlJournal, Mark, Table};
use lockstep_node::Ordered;
use lockstep_node::core::{EntryKind, Gtid, SEQNO_UNDEFINED, Seqno};
use recovery::{Relation, Rule};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The effect of a statement that this server began before it was killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CrashOutcome {
    /// It had not begun the statement.
    NotBegun,
    /// It had executed the statement.
    Executed,
    /// It may have executed the statement, which is executed now: an error only means that it had.
    MayBeExecuted,
}

impl CrashOutcome {
    /// Whether the statement is executed now, with its marks in the journal.
    pub(crate) fn is_executed_now(self) -> bool {
        self != CrashOutcome::Executed
    }
}

/// A write-set cannot be applied safely after a crash: this member must stop.
#[derive(Debug)]
pub(crate) struct Unsafe {
    pub(crate) why: String,
    /// The database may differ from the cluster's already.
    pub(crate) corrupt: bool,
}

/// The record of DDL: the journal, the state file's mark, and the tables that may be created again.
pub(crate) struct Ddl {
    journal: DdlJournal,
    replay: CtasReplay,
    state_file: Arc<StateFile>,
}

impl Ddl {
    /// Opens the journal. The text in the result is a warning.
    ///
    /// # Errors
    /// As [`DdlJournal::open`].
    pub(crate) fn open(data_dir: &Path, state_file: Arc<StateFile>) -> Result<(Ddl, Option<String>), String> {
        let (journal, warning) = DdlJournal::open(data_dir)?;
        Ok((Ddl { journal, replay: CtasReplay::default(), state_file }, warning))
    }

    /// The server executes the statement at `at` next. A crash before [`Ddl::done`] leaves a database of which only the
    /// journal tells how to find out whether the statement was executed.
    pub(crate) fn begin(&self, host: &Host, at: Gtid, data: &[u8]) {
        let marked = self.journal.begun(at, recovery::rule(data, &host.data_dir), recovery::Words::of(data));
        let is_marked = marked.is_ok();
        host.note(marked);
        host.note(self.state_file.mark_unsafe(is_marked));
    }

    /// The server has executed the statement. Call it before the statement leaves commit order: a statement without this
    /// mark is executed again after a crash, and must not be once a later one has been.
    pub(crate) fn done(&self, host: &Host, at: Gtid) {
        host.note(self.journal.done(at));
    }

    /// The statement has left commit order, after [`Ddl::done`]: nothing waits for the write of `grastate.dat`.
    pub(crate) fn end(&self, host: &Host) {
        host.note(self.state_file.mark_safe());
    }

    /// A state transfer is about to overwrite the database.
    ///
    /// # Errors
    /// `grastate.dat` cannot say so. The database must stay as it is: a later start would take it for a whole one.
    pub(crate) fn database_is_replaced(&self, host: &Host) -> io::Result<()> {
        self.state_file.transfer_begins()?;
        self.replay.forget();
        host.note(self.journal.forget());
        Ok(())
    }

    /// The database differs from the cluster's: the next start needs a state transfer.
    pub(crate) fn database_is_corrupt(&self, host: &Host) {
        // In this order: with a history in the file and no journal, the next start would execute statements again.
        host.note(self.state_file.mark_corrupt());
        host.note(self.journal.forget());
    }

    /// The position in `grastate.dat`. While a statement executes, the file names no history, because other tools cannot
    /// tell the database's state; the journal can, and supplies the history. If the file names none for another reason,
    /// such as an operator who removed it to force a state transfer, the journal is not consulted.
    pub(crate) fn saved_position(&self) -> Gtid {
        let saved = self.state_file.get();
        match self.journal.history() {
            Some(uuid) if saved.in_statement => Gtid { uuid, seqno: SEQNO_UNDEFINED },
            _ => saved.position,
        }
    }

    /// The statement above `position` that may or may not have been executed, if the journal cannot tell.
    pub(crate) fn in_doubt(&self, position: Gtid) -> Option<Seqno> {
        let (at, rule) = self.journal.open_one()?;
        let open = rule == Rule::Undecidable
            && at.uuid == position.uuid
            && position.seqno != SEQNO_UNDEFINED
            && position.seqno < at.seqno;
        open.then_some(at.seqno)
    }

    /// The first connection of this process begins, at `position`; its log ended at `log_end` when it was opened.
    pub(crate) fn expect_replay(&self, host: &Host, position: Gtid, log_end: Seqno) {
        if !position.is_defined() {
            return;
        }
        let before = self.journal.expected().filter(|upto| upto.uuid == position.uuid).map(|upto| upto.seqno);
        let stopped_in_order = self.state_file.get().position == position;
        let upto = match stopped_in_order {
            true => before,
            false => before.max(Some(log_end)),
        };
        if let Some(seqno) = upto.filter(|seqno| *seqno > position.seqno) {
            let upto = Gtid { uuid: position.uuid, seqno };
            self.replay.expect(upto);
            if before != Some(seqno) {
                host.note(self.journal.expect(upto));
            }
        }
    }

    /// Called before a write-set is applied. For a statement, returns its outcome before the crash. For a transaction, changes
    /// its `CREATE TABLE` to replace a table that this server may have left behind.
    ///
    /// # Errors
    /// The outcome of the statement cannot be determined, or the table's creation cannot be recorded.
    pub(crate) fn outcome_before_crash(
        &self,
        host: &Host,
        at: Gtid,
        ordered: &mut Ordered,
    ) -> Result<Option<CrashOutcome>, Unsafe> {
        if ordered.kind == EntryKind::TotalOrder {
            return self.statement_outcome(host, at, &ordered.writeset.data).map(Some);
        }
        self.replay_ctas(host, at, ordered).map(|()| None)
    }

    /// The effect of the statement at `at` that this server began before it was killed.
    ///
    /// # Errors
    /// The outcome cannot be determined: the statement names a table that has been created again since.
    fn statement_outcome(&self, host: &Host, at: Gtid, data: &[u8]) -> Result<CrashOutcome, Unsafe> {
        let Some(mark) = self.journal.of(at) else { return Ok(CrashOutcome::NotBegun) };
        let seqno = at.seqno;
        match (recovery::relation(data, &self.journal.created_since(at)), mark) {
            (Relation::None, mark) => Ok(self.outcome(host, at, data, mark)),
            (_, Mark::Begun(Rule::Repeatable)) => Ok(self.outcome(host, at, data, mark)),
            // The statement changed the former table only. On the new table it is executed for the first time, and an
            // error is a real one.
            (Relation::Alone, Mark::Begun(Rule::Compare { .. }) | Mark::Done) => {
                host.log.info(format!(
                    "this server crashed in the statement at seqno {seqno}: it is executed again, because the table \
                     that it changes has been created again since"
                ));
                Ok(CrashOutcome::NotBegun)
            }
            _ => {
                let why = format!(
                    "this server crashed in the statement at seqno {seqno}, and a table that it names has been \
                     created again since: this server cannot tell whether the statement was executed"
                );
                Err(Unsafe { why, corrupt: true })
            }
        }
    }

    fn outcome(&self, host: &Host, at: Gtid, data: &[u8], mark: Mark) -> CrashOutcome {
        let seqno = at.seqno;
        match mark {
            Mark::Done => {
                host.log.info(format!(
                    "this server had executed the statement at seqno {seqno} before it crashed"
                ));
                CrashOutcome::Executed
            }
            Mark::Begun(rule) if recovery::was_executed(rule, data, &host.data_dir) => {
                host.log.info(format!(
                    "this server crashed in the statement at seqno {seqno}: the objects that it changes show that it \
                     was executed"
                ));
                self.done(host, at);
                CrashOutcome::Executed
            }
            Mark::Begun(rule) => {
                let why = match rule {
                    Rule::Repeatable => "a repeated execution is harmless",
                    Rule::Compare { .. } => "the objects that it changes are unchanged",
                    Rule::Undecidable => "no present member knows whether it was executed",
                };
                host.log.info(format!(
                    "this server crashed in the statement at seqno {seqno}: it is executed again, because {why}"
                ));
                CrashOutcome::MayBeExecuted
            }
        }
    }

    /// Lets a `CREATE TABLE ... SELECT` replace the table that this server may have left behind when it was killed.
    ///
    /// # Errors
    /// Another table may have that name by now, and must not be replaced. Or the creation cannot be recorded. The marks of
    /// later statements would then be taken for marks on the new table, so this member stops before it changes the database.
    fn replay_ctas(&self, host: &Host, at: Gtid, ordered: &mut Ordered) -> Result<(), Unsafe> {
        if !self.replay.may_repeat(at, ordered) {
            return Ok(());
        }
        let Some((data, statement)) = lockstep_rows::replacing(&ordered.writeset.data) else { return Ok(()) };
        let Some((schema, name)) = recovery::created(&statement) else { return Ok(()) };
        self.check_name(at, &(schema.clone(), name.clone()))?;
        if let Err(error) = self.journal.recreated(at, (schema.clone(), name.clone())) {
            let why = format!("cannot record that {schema}.{name} is created again: {error}");
            return Err(Unsafe { why, corrupt: false });
        }
        host.log.info(format!(
            "the table {schema}.{name} of seqno {} may have been created before this server crashed: it is replaced",
            ordered.seqno
        ));
        ordered.writeset.data = data.into();
        Ok(())
    }

    /// # Errors
    /// Another table may have the name of the one that the write-set at `at` made: it must not be replaced.
    fn check_name(&self, at: Gtid, table: &Table) -> Result<(), Unsafe> {
        let Some(later) = self.journal.unclear_after(at, table) else { return Ok(()) };
        let (schema, name) = table;
        let why = format!(
            "this server crashed after the CREATE TABLE ... SELECT at seqno {} and the statement at seqno {later}, which may \
             have removed {schema}.{name} or given its name to another table: it cannot create that table again",
            at.seqno
        );
        Err(Unsafe { why, corrupt: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_node::core::Uuid;
    use recovery::Words;

    #[test]
    fn ctas_replay_needs_transfer_after_rename_to_its_name() {
        let dir = std::env::temp_dir().join(format!("lockstep-ddl-name-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let at = |seqno| Gtid { uuid: Uuid([7; 16]), seqno };
        let ddl = Ddl::open(&dir, Arc::new(StateFile::open(&dir).unwrap().0)).unwrap().0;
        let executed = |seqno, sql: &str| {
            let words = Words::of_sql(sql, "d");
            ddl.journal.begun(at(seqno), Rule::Compare { print: 1 }, words).unwrap();
            ddl.journal.done(at(seqno)).unwrap();
        };
        let table = ("d".to_owned(), "t".to_owned());
        executed(11, "ALTER TABLE t ADD INDEX (a)");
        assert!(ddl.check_name(at(10), &table).is_ok());
        executed(12, "RENAME TABLE t TO old, aria TO t");
        let stop = ddl.check_name(at(10), &table).unwrap_err();
        assert!(
            stop.corrupt && stop.why.contains("the statement at seqno 12, which may have removed d.t"),
            "{stop:?}"
        );
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
