//! Commit dependencies: when write-sets that depend on a transaction may be applied.
//!
//! When the server leaves commit order, a transaction has committed in InnoDB's memory: it holds no locks, and every reader
//! sees it. After that it only waits for the disk, where its changes precede those of later transactions. Dependent
//! write-sets need not wait for the disk, and one flush then serves both.
//!
//! There are exceptions. Statements in total order, and a write-set that creates a table, keep metadata locks until they
//! have finished; a fragment keeps the applier's transaction. And a server with a binlog leaves commit order when a
//! transaction is in the binlog, before InnoDB has committed it. Dependents of these are *released* only when they have finished.

use crate::apply::finished::Finished;
use crate::server_symbol;
use crate::sync::{Interrupt, Stop};
use lockstep_abi::{FLAG_ISOLATION, FLAG_ROLLBACK, FLAG_TRX_END, FLAG_TRX_START};
use lockstep_node::core::writeset::WriteSet;
use lockstep_node::core::{EntryKind, Seqno};
use lockstep_rows::EventKind;
use std::time::Duration;

/// See the module.
pub(crate) struct CommitDependencies {
    /// The seqnos whose dependents are released.
    released: Finished,
    /// Leaving commit order may release the dependents of a transaction.
    early: bool,
}

impl CommitDependencies {
    pub(crate) fn new(position: Seqno) -> CommitDependencies {
        CommitDependencies { released: Finished::new(position), early: commits_before_it_leaves() }
    }

    /// Whether the dependents of this write-set are released when it leaves commit order.
    pub(crate) fn is_early(&self, kind: EntryKind, set: &WriteSet) -> bool {
        self.early && is_plain(kind, set)
    }

    /// Releases the dependents of `seqno`. A second call for a seqno has no effect.
    pub(crate) fn release(&self, seqno: Seqno) {
        if self.early {
            self.released.finish(seqno);
        }
    }

    /// Waits until the dependents of everything up to `seqno` are released.
    pub(crate) fn wait(
        &self,
        seqno: Seqno,
        interrupt: Option<&Interrupt>,
        timeout: Option<Duration>,
    ) -> Result<(), Stop> {
        self.released.wait(seqno, interrupt, timeout)
    }

    /// See [`Finished::reset`].
    pub(crate) fn reset(&self, position: Seqno) {
        self.released.reset(position);
    }

    /// See [`Finished::leave_out`].
    pub(crate) fn leave_out(&self, upto: Seqno) {
        self.released.leave_out(upto);
    }

    /// See [`Finished::fail`].
    pub(crate) fn fail(&self) {
        self.released.fail();
    }

    /// See [`Finished::stop`].
    pub(crate) fn stop(&self, last: Seqno) {
        self.released.stop(last);
    }
}

/// Whether this server commits in InnoDB before it leaves commit order, that is, has no binlog. It exports the variable to
/// its plugins. A process without the variable counts as a server with a binlog.
fn commits_before_it_leaves() -> bool {
    // SAFETY: the variable, if it exists, is the server's `my_bool`, which lives as
    // long as the process and is set before providers are loaded.
    unsafe { server_symbol::find(c"opt_bin_log").is_some_and(|binlog| *binlog.cast::<u8>() == 0) }
}

/// Whether this is a whole transaction of rows and nothing else.
fn is_plain(kind: EntryKind, set: &WriteSet) -> bool {
    let (start, end) = (FLAG_TRX_START, FLAG_TRX_END);
    if kind != EntryKind::WriteSet
        || set.meta.flags & (start | end | FLAG_ROLLBACK | FLAG_ISOLATION) != start | end
    {
        return false;
    }
    // A `CREATE TABLE` precedes its rows.
    let head = |kind: &EventKind| !matches!(kind, EventKind::Gtid | EventKind::Annotate);
    let first = lockstep_rows::events(&set.data).map(|event| event.kind).find(head);
    first == Some(EventKind::TableMap)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(code: u8) -> Vec<u8> {
        let mut event = vec![0; 24];
        event[4] = code;
        event[9] = 24;
        event
    }

    fn set(flags: u32, codes: &[u8]) -> WriteSet {
        let mut set = WriteSet::void();
        set.meta.flags = flags;
        set.data = codes.iter().flat_map(|code| event(*code)).collect::<Vec<u8>>().into();
        set
    }

    #[test]
    fn only_whole_transactions_of_rows_are_plain() {
        let whole = FLAG_TRX_START | FLAG_TRX_END;
        let plain = |kind, flags, codes: &[u8]| is_plain(kind, &set(flags, codes));
        assert!(plain(EntryKind::WriteSet, whole, &[0x13, 0x18]));
        assert!(plain(EntryKind::WriteSet, whole, &[0xa2, 0xa0, 0x13, 0x18]));
        // CREATE TABLE ... SELECT, nothing at all, fragments, a statement in total order.
        assert!(!plain(EntryKind::WriteSet, whole, &[0x02, 0x13, 0x17]));
        assert!(!plain(EntryKind::WriteSet, whole, &[0xa5, 0x13, 0x17]));
        assert!(!plain(EntryKind::WriteSet, whole, &[]));
        assert!(!plain(EntryKind::WriteSet, FLAG_TRX_START, &[0x13, 0x18]));
        assert!(!plain(EntryKind::WriteSet, FLAG_TRX_END, &[0x13, 0x18]));
        assert!(!plain(EntryKind::WriteSet, whole | FLAG_ROLLBACK, &[0x13]));
        assert!(!plain(EntryKind::TotalOrder, whole | FLAG_ISOLATION, &[0x13]));
    }

    #[test]
    fn process_without_binlog_variable_is_never_early() {
        let dependencies = CommitDependencies::new(0);
        assert!(!dependencies.is_early(EntryKind::WriteSet, &set(FLAG_TRX_START | FLAG_TRX_END, &[0x13])));
    }

    #[test]
    fn leaving_and_finishing_release_in_any_order() {
        let dependencies = CommitDependencies { early: true, ..CommitDependencies::new(0) };
        let now = |seqno| dependencies.wait(seqno, None, Some(Duration::ZERO)).is_ok();
        dependencies.release(2);
        assert!(!now(1));
        dependencies.release(1);
        assert!(now(2) && !now(3));
        // They finish.
        dependencies.release(1);
        dependencies.release(2);
        assert!(now(2) && !now(3));
        dependencies.release(3);
        assert!(now(3));
    }
}
