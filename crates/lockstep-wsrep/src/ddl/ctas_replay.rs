//! `CREATE TABLE ... SELECT`, once more after a crash.
//!
//! To the server it is a transaction: a write-set with a `CREATE TABLE` and its rows. But the table is on the disk
//! before the rows are, and on its origin InnoDB does not even store its seqno: the next commit does. So a killed server may
//! have the table, with or without its rows, although its position is before the statement. When the write-set comes again,
//! its table replaces the existing one: all its rows are in the write-set, and later entries of the log follow again.
//!
//! That is right only for entries that this database may have received before the kill: if a statement arrives for the first
//! time, an existing table is one that the other members do not have. The entries possibly received are those in the own log
//! when this process opened it, because only those are delivered.
//!
//! Statements in total order that came after it, and were begun or done before the server died, were so for the table
//! that was there: see [`Provider::former_statement`]. So it is written beside their marks, before the server gets it;
//! and so is how far what comes may have come before, for the server may end again, in whatever way, on the way there.

use crate::ddl::recovery;
use crate::provider::{AtomicUuid, Provider};
use lockstep_abi::{FLAG_TRX_END, FLAG_TRX_START};
use lockstep_node::Ordered;
use lockstep_node::core::{EntryKind, Gtid, SEQNO_UNDEFINED, Seqno};
use std::sync::atomic::{AtomicI64, Ordering};

/// The range of entries that may have been received before.
pub(crate) struct CtasReplay {
    /// Up to here what comes may have come before; −1 where the server was not killed.
    upto: AtomicI64,
    history: AtomicUuid,
}

impl Default for CtasReplay {
    fn default() -> CtasReplay {
        CtasReplay { upto: AtomicI64::new(SEQNO_UNDEFINED), history: AtomicUuid::default() }
    }
}

impl CtasReplay {
    /// The server was killed; entries up to here may have been delivered before.
    pub(crate) fn expect(&self, upto: Gtid) {
        self.history.set(upto.uuid);
        self.upto.store(upto.seqno, Ordering::SeqCst);
    }

    /// Another database takes the place of that one.
    pub(crate) fn forget(&self) {
        self.upto.store(SEQNO_UNDEFINED, Ordering::SeqCst);
    }

    fn may_have_come(&self, at: Gtid) -> bool {
        at.seqno <= self.upto.load(Ordering::Acquire) && at.uuid == self.history.get()
    }
}

impl Provider {
    /// A connection is about to be made from `position`, with a log that held so much when this process opened it.
    pub(crate) fn expect_ctas_replay(&self, position: Gtid, log_end: Seqno) {
        // A second connection of this process: the unfinished part of the first one's range still counts.
        if self.been_connected.load(Ordering::SeqCst) {
            return;
        }
        if !position.is_defined() {
            return;
        }
        let before = self.marks.expected().filter(|upto| upto.uuid == position.uuid).map(|upto| upto.seqno);
        let stopped_in_order = self.state_file.get().position == position;
        let upto = match stopped_in_order {
            true => before,
            false => before.max(Some(log_end)),
        };
        if let Some(seqno) = upto.filter(|seqno| *seqno > position.seqno) {
            let upto = Gtid { uuid: position.uuid, seqno };
            self.again.expect(upto);
            if before != Some(seqno) {
                self.note(self.marks.expect(upto));
            }
        }
    }

    /// Before a write-set is applied: a table that it creates replaces an existing one that the killed server may have left.
    ///
    /// # Errors
    /// The journal cannot be written: marks of later statements would be taken to be about the new table. This member
    /// leaves, and the database is unchanged.
    pub(crate) fn replay_ctas(&self, ordered: &mut Ordered) -> Result<(), String> {
        let at = Gtid { uuid: self.history.get(), seqno: ordered.seqno };
        let whole = FLAG_TRX_START | FLAG_TRX_END;
        if ordered.kind != EntryKind::WriteSet
            || !self.again.may_have_come(at)
            || ordered.writeset.meta.flags & whole != whole
        {
            return Ok(());
        }
        let Some((data, statement)) = lockstep_rows::replacing(&ordered.writeset.data) else { return Ok(()) };
        let Some(table) = recovery::created(&statement) else { return Ok(()) };
        if let Err(error) = self.marks.anew(at, table.clone()) {
            let why =
                format!("that {}.{} is created again cannot be written down: {error}", table.0, table.1);
            self.stop_with(&why, false);
            return Err(why);
        }
        self.log.info(format!(
            "the table {}.{} of seqno {} may have been created before this server died: what is there of it is replaced",
            table.0, table.1, ordered.seqno
        ));
        ordered.writeset.data = data.into();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_node::core::Uuid;

    #[test]
    fn only_what_may_have_come_before_the_crash_comes_again() {
        let at = |n: u8, seqno| Gtid { uuid: Uuid([n; 16]), seqno };
        let again = CtasReplay::default();
        assert!(!again.may_have_come(at(1, 0)) && !again.may_have_come(at(0, 5)));
        again.expect(at(1, 9));
        assert!(again.may_have_come(at(1, 9)) && again.may_have_come(at(1, 3)));
        assert!(!again.may_have_come(at(1, 10)), "after the own log's end");
        assert!(!again.may_have_come(at(2, 3)), "of another history");
        again.forget();
        assert!(!again.may_have_come(at(1, 9)));
    }
}
