//! Commit dependencies: when write-sets that depend on a transaction may be applied.
//!
//! A transaction that has committed in InnoDB's memory holds no lock any more, and nobody sees the database without it;
//! that is so when the server leaves commit order. After that it waits only for the disk, and its changes precede those of
//! any later transaction there. So dependents need not wait for the disk: one flush then serves both.
//!
//! Not everything is like that. Statements in total order, and a write-set that creates a table, keep locks on the
//! tables' definitions until they have finished; a fragment keeps the applier's transaction. And a server with a binlog
//! leaves commit order when a transaction has its place in the binlog, before InnoDB has committed it. Those are
//! *settled* when they have finished.

use crate::apply::finished::Finished;
use crate::sync::{Interrupt, Stop};
use lockstep_abi::{FLAG_ISOLATION, FLAG_ROLLBACK, FLAG_TRX_END, FLAG_TRX_START};
use lockstep_node::core::writeset::WriteSet;
use lockstep_node::core::{EntryKind, Seqno};
use lockstep_rows::EventKind;
use std::time::Duration;

/// See the module.
pub(crate) struct CommitDependencies {
    /// "Finished" is "settled" here.
    upto: Finished,
    /// Whether leaving commit order means anything.
    early: bool,
}

impl CommitDependencies {
    pub(crate) fn new(position: Seqno) -> CommitDependencies {
        CommitDependencies { upto: Finished::new(position), early: commits_before_it_leaves() }
    }

    /// Whether what depends on this one need not wait until it has finished.
    pub(crate) fn is_early(&self, kind: EntryKind, set: &WriteSet) -> bool {
        self.early && is_plain(kind, set)
    }

    /// Releases the dependents of `seqno` as far as that one is concerned. A second call has no effect.
    pub(crate) fn settle(&self, seqno: Seqno) {
        if self.early {
            self.upto.finish(seqno);
        }
    }

    /// Waits until everything up to `seqno` is settled.
    pub(crate) fn wait(
        &self,
        seqno: Seqno,
        interrupt: Option<&Interrupt>,
        patience: Option<Duration>,
    ) -> Result<(), Stop> {
        self.upto.wait(seqno, interrupt, patience)
    }

    /// See [`Finished::reset`].
    pub(crate) fn reset(&self, position: Seqno) {
        self.upto.reset(position);
    }

    /// See [`Finished::leave_out`].
    pub(crate) fn leave_out(&self, upto: Seqno) {
        self.upto.leave_out(upto);
    }

    /// See [`Finished::fail`].
    pub(crate) fn fail(&self) {
        self.upto.fail();
    }

    /// See [`Finished::stop`].
    pub(crate) fn stop(&self, last: Seqno) {
        self.upto.stop(last);
    }
}

/// Whether this server commits before it leaves commit order: it has no binlog. It exports the variable to its plugins;
/// a process that has none, or one that is not known, is taken for a server with a binlog.
fn commits_before_it_leaves() -> bool {
    // SAFETY: the name is NUL-terminated; the variable, where there is one, is the server's `my_bool`, which lives as
    // long as the process and is set before providers are loaded.
    unsafe {
        let binlog = libc::dlsym(libc::RTLD_DEFAULT, c"opt_bin_log".as_ptr()).cast::<u8>();
        !binlog.is_null() && *binlog == 0
    }
}

/// A whole transaction of rows, and of nothing else.
fn is_plain(kind: EntryKind, set: &WriteSet) -> bool {
    let (start, end) = (FLAG_TRX_START, FLAG_TRX_END);
    if kind != EntryKind::WriteSet
        || set.meta.flags & (start | end | FLAG_ROLLBACK | FLAG_ISOLATION) != start | end
    {
        return false;
    }
    // A `CREATE TABLE` stands before its rows.
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
    fn whole_transactions_of_rows_are_plain_and_nothing_else_is() {
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
    fn non_server_process_waits_until_all_finished() {
        let settled = CommitDependencies::new(0);
        assert!(!settled.is_early(EntryKind::WriteSet, &set(FLAG_TRX_START | FLAG_TRX_END, &[0x13])));
    }

    #[test]
    fn leave_and_finish_settle_in_any_order() {
        let settled = CommitDependencies { early: true, ..CommitDependencies::new(0) };
        let now = |seqno| settled.wait(seqno, None, Some(Duration::ZERO)).is_ok();
        settled.settle(2);
        assert!(!now(1));
        settled.settle(1);
        assert!(now(2) && !now(3));
        // They finish.
        settled.settle(1);
        settled.settle(2);
        assert!(now(2) && !now(3));
        settled.settle(3);
        assert!(now(3));
    }
}
