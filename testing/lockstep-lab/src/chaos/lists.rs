//! Removes transactions that were lost with a leader from a history of lists or registers. Under a weak policy a leader may answer
//! before others have the transaction. Such lost transactions, and those that read them, do not belong to the surviving
//! history.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::isolation::{Completion, Op, Transaction};

/// A history without what was lost.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Retained {
    pub(super) history: Vec<Transaction>,
    /// The elements of acknowledged transactions that are gone.
    pub(super) lost: BTreeSet<u64>,
    /// How many such transactions are in rescue files, and how many nowhere.
    pub(super) rescued: u64,
    pub(super) gone: u64,
}

fn appended(transaction: &Transaction) -> impl Iterator<Item = u64> {
    transaction.ops.iter().filter_map(|op| match op {
        Op::Append { element, .. } => Some(*element),
        Op::Read { .. } | Op::Value { .. } => None,
    })
}

/// `last` are the lists in the end; `rescued`, the elements in rescue files. A transaction of which a part is there stays, and
/// so does one that is there and has read what is not: neither can be.
pub(super) fn without_lost(
    history: Vec<Transaction>,
    last: &BTreeMap<u64, Vec<u64>>,
    rescued: &BTreeSet<u64>,
) -> Retained {
    let there: BTreeSet<u64> = last.values().flatten().copied().collect();
    // Transactions that may have committed on a leader and are missing now.
    let mut away: HashMap<u64, Completion> = HashMap::new();
    for transaction in &history {
        let missing = appended(transaction).filter(|element| !there.contains(element));
        away.extend(missing.map(|element| (element, transaction.completion)));
    }
    let mut kept = Retained::default();
    for transaction in history {
        let own: Vec<u64> = appended(&transaction).collect();
        let is_lost = !own.is_empty() && !own.iter().any(|element| there.contains(element));
        if transaction.completion == Completion::Committed && is_lost {
            match own.iter().all(|element| rescued.contains(element)) {
                true => kept.rescued += 1,
                false => kept.gone += 1,
            }
            kept.lost.extend(own);
            continue;
        }
        let read_lost = transaction.ops.iter().any(|op| match op {
            Op::Read { list, .. } => list
                .iter()
                .any(|element| away.get(element).is_some_and(|ended| *ended != Completion::Aborted)),
            Op::Value { element, .. } => {
                element.is_some_and(|e| away.get(&e).is_some_and(|ended| *ended != Completion::Aborted))
            }
            Op::Append { .. } => false,
        });
        if !(own.is_empty() && read_lost) {
            kept.history.push(transaction);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolation::{Anomaly, Claim, check};

    fn trx(completion: Completion, ops: &[Op]) -> Transaction {
        Transaction {
            ops: ops.to_vec(),
            completion,
            error: None,
            client: 0,
            member: 0,
            sync_wait: false,
            invoked: 0,
            completed: 1,
        }
    }

    fn append(element: u64) -> Op {
        Op::Append { key: 1, element }
    }

    fn read(list: &[u64]) -> Op {
        Op::Read { key: 1, list: list.to_vec() }
    }

    fn last(list: &[u64]) -> BTreeMap<u64, Vec<u64>> {
        BTreeMap::from([(1, list.to_vec())])
    }

    #[test]
    fn lost_leaders_tail_and_its_readers_are_excluded() {
        use Completion::{Committed, Unknown};
        let history = vec![
            trx(Committed, &[append(1)]),
            trx(Committed, &[append(2)]),
            trx(Committed, &[append(3), append(4)]),
            trx(Unknown, &[append(5)]),
            trx(Committed, &[read(&[1, 2, 3, 4, 5])]),
            trx(Committed, &[read(&[1])]),
            trx(Committed, &[append(6)]),
        ];
        let kept = without_lost(history, &last(&[1, 6]), &BTreeSet::from([2]));
        assert_eq!((kept.rescued, kept.gone, kept.history.len()), (1, 1, 4));
        assert_eq!(kept.lost, BTreeSet::from([2, 3, 4]));
        assert_eq!(check(&kept.history, &last(&[1, 6]), Claim::snapshot_isolation()), []);
    }

    #[test]
    fn impossible_reads_are_found() {
        use Completion::{Aborted, Committed};
        let found = |history: &[Transaction], list: &[u64]| -> Vec<Anomaly> {
            let kept = without_lost(history.to_vec(), &last(list), &BTreeSet::from([2, 3]));
            check(&kept.history, &last(list), Claim::snapshot_isolation())
                .into_iter()
                .map(|finding| finding.anomaly)
                .collect()
        };
        // A part of a transaction; one that is there and follows one that is not; one that aborted was read.
        assert_eq!(found(&[trx(Committed, &[append(1), append(2)])], &[1]), [Anomaly::Lost]);
        let follows = [trx(Committed, &[append(2)]), trx(Committed, &[read(&[2]), append(1)])];
        assert_eq!(found(&follows, &[1]), [Anomaly::Reordered]);
        let aborted = [trx(Aborted, &[append(1)]), trx(Committed, &[read(&[1])])];
        assert_eq!(found(&aborted, &[]), [Anomaly::AbortedRead]);
    }
}
