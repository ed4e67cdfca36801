//! Whether a member that has connected goes on from its database's position by the log, or needs a state transfer.

use lockstep_core::raft::Gap;
use lockstep_core::snapshot::StateSnapshot;
use lockstep_core::{Gtid, Seqno, Uuid};

/// Why a member's database cannot go on by the log, whatever the log still holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::member) enum TransferReason {
    /// The member was killed in this statement, and cannot tell whether it was done.
    InDoubt(Seqno),
    /// The database's position is not known.
    NoPosition,
    /// The database belongs to another history.
    OtherHistory { database: Uuid, cluster: Uuid },
    /// The database has seqnos that the log does not have.
    AheadOfLog { position: Seqno, committed: Seqno },
    /// No entry has the database's seqno: a view has left it out.
    LeftOut { position: Seqno, before: Seqno, after: Seqno },
    /// The database may have reached its position in the cluster on whose data this one was founded at `founded`.
    FoundedBefore { position: Seqno, founded: Seqno },
    /// The same, where the log no longer reaches back to its founding.
    FoundedUnknown { position: Seqno },
}

/// What the log says about a database's position.
#[derive(Clone, Copy, Debug)]
pub(in crate::member) struct LogFacts<'a> {
    /// The state of the committed part.
    pub(in crate::member) committed: &'a StateSnapshot,
    /// The snapshot at which the log begins.
    pub(in crate::member) first: Option<&'a StateSnapshot>,
    /// The gap that contains the database's seqno.
    pub(in crate::member) gap: Option<Gap>,
    /// The id of the log with which the database reached its position; nil if unknown.
    pub(in crate::member) database_log: Uuid,
}

impl LogFacts<'_> {
    /// Why a database at this position needs a state transfer. `None` if the log may supply what follows: whether it
    /// reaches back far enough is the deliverer's question.
    ///
    /// `database` is whether this member has one; an arbitrator starts where its log does.
    pub(in crate::member) fn transfer_reason(
        &self,
        position: Gtid,
        in_doubt: Option<Seqno>,
        database: bool,
    ) -> Option<TransferReason> {
        let (history, committed) = (self.committed.history, self.committed.seqno);
        if let Some(seqno) = in_doubt {
            return Some(TransferReason::InDoubt(seqno));
        }
        if !position.is_defined() {
            return Some(TransferReason::NoPosition);
        }
        if position.uuid != history {
            return Some(TransferReason::OtherHistory { database: position.uuid, cluster: history });
        }
        let position = position.seqno;
        if position > committed {
            return Some(TransferReason::AheadOfLog { position, committed });
        }
        if let Some(Gap { before, after, .. }) = self.gap {
            return Some(TransferReason::LeftOut { position, before, after });
        }
        if database { self.other_log(position) } else { None }
    }

    /// Why the database's transactions up to this position may differ from this log's, if they may.
    ///
    /// A log founded on data with a history reassigns the seqnos after its beginning. A member whose database has a
    /// position of that history beyond the beginning may have the first owner's transactions there, unless it got there
    /// with this log. An example is a member of Galera's cluster that had more than the founder of this one. That the
    /// member has this log proves nothing: it gets the log before the state. A log with a history of its own has no such
    /// predecessor.
    fn other_log(&self, position: Seqno) -> Option<TransferReason> {
        let log = self.committed.log_id;
        let has_own_history = log.is_nil() || log == self.committed.history;
        if has_own_history || self.database_log == log {
            return None;
        }
        match self.first.filter(|base| base.index == 0).map(|base| base.seqno) {
            Some(founded) if position <= founded => None,
            Some(founded) => Some(TransferReason::FoundedBefore { position, founded }),
            None => Some(TransferReason::FoundedUnknown { position }),
        }
    }
}

impl TransferReason {
    /// For people. `data` is what the member keeps.
    pub(in crate::member) fn text(&self, data: &str) -> String {
        match self {
            TransferReason::InDoubt(seqno) => {
                format!("whether the statement at seqno {seqno} was done before the crash cannot be told")
            }
            TransferReason::NoPosition => format!("the {data}'s position is not known"),
            TransferReason::OtherHistory { database, cluster } => {
                format!("the {data} is of history {database}, the cluster of {cluster}")
            }
            TransferReason::AheadOfLog { position, committed } => {
                format!("the {data} is at {position}, ahead of the log ({committed})")
            }
            TransferReason::LeftOut { position, before, after } => format!(
                "the {data} is at seqno {position}, which this cluster does not have: it went on from {before} to \
                 {after} when another member took over, and what this member had committed ahead of it is kept in \
                 lockstep.rescue.*.log"
            ),
            TransferReason::FoundedBefore { position, founded } => format!(
                "the {data} is at seqno {position}, but this cluster was founded on data at seqno {founded} and has \
                 assigned the later seqnos itself: this {data} may have them from the cluster before it (for a \
                 restored backup of this cluster, see docs/restore.md)"
            ),
            TransferReason::FoundedUnknown { position } => format!(
                "the {data} is at seqno {position}, which it may have reached in the cluster on whose data this one \
                 was founded, not with this cluster's log (for a restored backup of this cluster, see docs/restore.md)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HISTORY: Uuid = Uuid([5; 16]);
    const LOG: Uuid = Uuid([6; 16]);

    /// A log of committed seqnos up to 100, founded on data at seqno 40.
    fn founded_on_data() -> (StateSnapshot, StateSnapshot) {
        let first = StateSnapshot { log_id: LOG, ..StateSnapshot::genesis(HISTORY, 40, Default::default()) };
        (first.clone(), StateSnapshot { index: 60, seqno: 100, ..first })
    }

    fn reason(facts: &LogFacts<'_>, seqno: Seqno) -> Option<TransferReason> {
        facts.transfer_reason(Gtid { uuid: HISTORY, seqno }, None, true)
    }

    #[test]
    fn position_needs_a_transfer_where_the_log_cannot_vouch_for_it() {
        let (first, committed) = founded_on_data();
        let own = LogFacts { committed: &committed, first: Some(&first), gap: None, database_log: LOG };
        let gap = Some(Gap { index: 30, before: 70, after: 80 });
        let other = Uuid([9; 16]);
        assert_eq!(reason(&own, 100), None, "the log ends there");
        assert_eq!(reason(&own, 41), None);
        assert_eq!(reason(&own, 101), Some(TransferReason::AheadOfLog { position: 101, committed: 100 }));
        assert_eq!(
            reason(&LogFacts { gap, ..own }, 75),
            Some(TransferReason::LeftOut { position: 75, before: 70, after: 80 })
        );
        assert_eq!(own.transfer_reason(Gtid::UNDEFINED, None, true), Some(TransferReason::NoPosition));
        assert_eq!(
            own.transfer_reason(Gtid { uuid: other, seqno: 50 }, None, true),
            Some(TransferReason::OtherHistory { database: other, cluster: HISTORY })
        );
        assert_eq!(
            own.transfer_reason(Gtid { uuid: HISTORY, seqno: 50 }, Some(51), true),
            Some(TransferReason::InDoubt(51))
        );
    }

    #[test]
    fn position_beyond_founding_data_counts_only_with_this_log() {
        let (first, committed) = founded_on_data();
        let none =
            LogFacts { committed: &committed, first: Some(&first), gap: None, database_log: Uuid::NIL };
        assert_eq!(reason(&none, 40), None, "the founding data themselves");
        let why = reason(&none, 41).expect("another cluster may have assigned 41");
        assert_eq!(why, TransferReason::FoundedBefore { position: 41, founded: 40 });
        let text = why.text("device");
        assert!(text.contains("founded on data at seqno 40") && text.starts_with("the device is"), "{text}");
        assert_eq!(
            none.transfer_reason(Gtid { uuid: HISTORY, seqno: 41 }, None, false),
            None,
            "an arbitrator"
        );
        let own = LogFacts { database_log: LOG, ..none };
        assert_eq!(reason(&own, 41), None, "it got there with this log");
        let trimmed = LogFacts { first: Some(&committed), ..none };
        assert_eq!(
            reason(&trimmed, 40),
            Some(TransferReason::FoundedUnknown { position: 40 }),
            "where the log began is not known any more"
        );
        let own_history = StateSnapshot { log_id: HISTORY, ..committed.clone() };
        assert_eq!(reason(&LogFacts { committed: &own_history, ..none }, 99), None);
    }
}
