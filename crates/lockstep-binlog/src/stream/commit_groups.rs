//! Which transactions share a commit id: a replica may apply those in parallel (`slave_parallel_mode=conservative`).
//!
//! Transactions share one if no two of them touch the same row, and all lie in the same block of [`BLOCK`] seqnos. The
//! blocks have fixed borders, so that every instance finds the same groups, wherever it began. The times of arrival play
//! no part, and neither does certification's dependency: members may differ in it.

use lockstep_core::Seqno;
use lockstep_core::writeset::{Key, KeyType};
use std::collections::HashMap;

/// The seqnos of a block: the first one has 1 to 64.
const BLOCK: Seqno = 64;

/// The first seqno of a seqno's block.
pub(super) fn begin_of_block(seqno: Seqno) -> Seqno {
    seqno - (seqno - 1).rem_euclid(BLOCK)
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct CommitGroups {
    /// The seqno of the group's first transaction, which is the commit id; 0: none.
    first: Seqno,
    /// The keys that the group's transactions touch.
    keys: HashMap<u64, KeyType>,
}

/// Whether two transactions that touch a row in these ways must be applied one after the other.
fn meet(a: KeyType, b: KeyType) -> bool {
    a.max(b) >= KeyType::Update
}

impl CommitGroups {
    /// The commit id of a transaction with these keys.
    pub(super) fn join(&mut self, seqno: Seqno, keys: &[Key]) -> u64 {
        let same_block = self.first > 0 && begin_of_block(self.first) == begin_of_block(seqno);
        let meets = |key: &Key| self.keys.get(&key.hash).is_some_and(|kind| meet(*kind, key.kind));
        if !same_block || keys.iter().any(meets) {
            self.keys.clear();
            self.first = seqno;
        }
        for key in keys {
            let kind = self.keys.entry(key.hash).or_insert(key.kind);
            *kind = (*kind).max(key.kind);
        }
        self.first as u64
    }

    /// The commit id of a transaction that is applied alone.
    pub(super) fn alone(&mut self, seqno: Seqno) -> u64 {
        self.keys.clear();
        self.first = 0;
        seqno as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(transactions: &[(Seqno, &[(u64, KeyType)])]) -> Vec<u64> {
        let mut groups = CommitGroups::default();
        let keys = |keys: &[(u64, KeyType)]| {
            keys.iter().map(|(hash, kind)| Key { hash: *hash, kind: *kind }).collect::<Vec<_>>()
        };
        transactions.iter().map(|(seqno, given)| groups.join(*seqno, &keys(given))).collect()
    }

    #[test]
    fn transactions_that_touch_one_row_have_different_ids() {
        use KeyType::*;
        let table = (1, Shared);
        let found = ids(&[
            (65, &[table, (10, Exclusive)]),
            (66, &[table, (11, Exclusive)]),
            (67, &[table, (10, Update)]),
            (68, &[table, (11, Reference)]),
            (69, &[table, (11, Reference)]),
            (70, &[table, (11, Exclusive)]),
        ]);
        assert_eq!(found, [65, 65, 67, 67, 67, 70]);
    }

    #[test]
    fn group_ends_at_border_of_block() {
        let row = |hash| [(hash, KeyType::Exclusive)];
        assert_eq!(ids(&[(63, &row(1)), (64, &row(2)), (65, &row(3)), (66, &row(4))]), [63, 63, 65, 65]);
    }

    #[test]
    fn transaction_applied_alone_ends_group() {
        let mut groups = CommitGroups::default();
        assert_eq!(groups.join(1, &[]), 1);
        assert_eq!(groups.alone(2), 2);
        assert_eq!(groups.join(3, &[]), 3);
        assert_eq!(groups.join(4, &[]), 3);
    }
}
