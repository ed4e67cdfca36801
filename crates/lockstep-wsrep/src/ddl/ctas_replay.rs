//! Replays `CREATE TABLE ... SELECT` after a crash.
//!
//! For the server the statement is a transaction: one write-set with a `CREATE TABLE` and its rows. But the table is on
//! disk before the rows are, and on the member that ran the statement InnoDB does not even store its seqno until the next
//! commit. A server that is killed may therefore have the table, with or without its rows, below its recovered position.
//! When the write-set is delivered again, its `CREATE TABLE` replaces the existing table: the write-set contains all
//! rows, and the write-sets after it are delivered again too.
//!
//! This applies only to write-sets that the server may have received before it was killed. These are the ones up to the end
//! of the member's own log when this process opened it, because only entries of that log are delivered. Any other
//! existing table is one that the other members do not have, and must cause an error.
//!
//! Statements in total order that followed the write-set, and were begun or done before the crash, worked on the former
//! table (`Ddl::statement_outcome`). The DDL journal therefore records each replaced table before the server gets the write-set. It
//! also records how far replay extends, because the server may be killed again during the replay.

use crate::lifecycle::identity::AtomicUuid;
use lockstep_abi::{FLAG_TRX_END, FLAG_TRX_START};
use lockstep_node::Ordered;
use lockstep_node::core::{EntryKind, Gtid, SEQNO_UNDEFINED};
use std::sync::atomic::{AtomicI64, Ordering};

/// The write-sets that this server may have received before it was killed.
pub(crate) struct CtasReplay {
    /// The last one; -1 if the server was not killed.
    upto: AtomicI64,
    history: AtomicUuid,
}

impl Default for CtasReplay {
    fn default() -> CtasReplay {
        CtasReplay { upto: AtomicI64::new(SEQNO_UNDEFINED), history: AtomicUuid::default() }
    }
}

impl CtasReplay {
    /// The server was killed, and may have received write-sets up to here.
    pub(crate) fn expect(&self, upto: Gtid) {
        self.history.set(upto.uuid);
        self.upto.store(upto.seqno, Ordering::SeqCst);
    }

    /// A state transfer replaces the database.
    pub(crate) fn forget(&self) {
        self.upto.store(SEQNO_UNDEFINED, Ordering::SeqCst);
    }

    /// Whether this is a whole transaction that the server may have received before.
    pub(crate) fn may_repeat(&self, at: Gtid, ordered: &Ordered) -> bool {
        let whole = FLAG_TRX_START | FLAG_TRX_END;
        ordered.kind == EntryKind::WriteSet && self.covers(at) && ordered.writeset.meta.flags & whole == whole
    }

    fn covers(&self, at: Gtid) -> bool {
        at.seqno <= self.upto.load(Ordering::Acquire) && at.uuid == self.history.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_node::core::Uuid;

    #[test]
    fn replay_covers_only_own_log_of_same_history() {
        let at = |n: u8, seqno| Gtid { uuid: Uuid([n; 16]), seqno };
        let replay = CtasReplay::default();
        assert!(!replay.covers(at(1, 0)) && !replay.covers(at(0, 5)));
        replay.expect(at(1, 9));
        assert!(replay.covers(at(1, 9)) && replay.covers(at(1, 3)));
        assert!(!replay.covers(at(1, 10)), "after the own log's end");
        assert!(!replay.covers(at(2, 3)), "of another history");
        replay.forget();
        assert!(!replay.covers(at(1, 9)));
    }
}
