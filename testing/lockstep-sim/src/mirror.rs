//! The checkers' own, simple model of one log: the requested writes, entry by entry.

use crate::trace::hash_bytes;
use lockstep_core::{Entry, EntryHeader, Index, Term};
use std::collections::VecDeque;

/// An entry as the checkers remember it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    /// Its term.
    pub(crate) term: Term,
    /// Of all that it holds.
    pub(crate) hash: u64,
}

impl Mark {
    /// Of this entry.
    pub(crate) fn of(entry: &Entry) -> Mark {
        let EntryHeader { index, term, kind, seqno, proposal, time } = **entry;
        let mut hash = hash_bytes(kind as u64, &entry.payload());
        for word in [index, term, seqno as u64, proposal.incarnation, proposal.number, time] {
            hash = (hash ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25).rotate_left(31);
        }
        Mark { term, hash: hash_bytes(hash, &proposal.member.0) }
    }
}

/// A log, as the checkers remember it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mirror {
    /// The index before the first entry.
    pub(crate) base: Index,
    /// Its term.
    pub(crate) base_term: Term,
    marks: VecDeque<Mark>,
}

impl Mirror {
    /// An empty log after this entry.
    pub(crate) fn after(base: Index, base_term: Term) -> Mirror {
        Mirror { base, base_term, marks: VecDeque::new() }
    }

    /// The index of the last entry.
    pub(crate) fn last(&self) -> Index {
        self.base + self.marks.len() as u64
    }

    /// The term of the last entry.
    pub(crate) fn last_term(&self) -> Term {
        self.marks.back().map_or(self.base_term, |m| m.term)
    }

    /// The entry at this index, where it is in the log.
    pub(crate) fn get(&self, index: Index) -> Option<Mark> {
        let at = index.checked_sub(self.base + 1)?;
        self.marks.get(usize::try_from(at).ok()?).copied()
    }

    /// The term at this index: also that of the entry before the first.
    pub(crate) fn term_at(&self, index: Index) -> Option<Term> {
        if index == self.base { Some(self.base_term) } else { self.get(index).map(|m| m.term) }
    }

    /// Whether two logs are the same where both reach: each may have been trimmed.
    pub(crate) fn agrees(&self, other: &Mirror) -> bool {
        let first = self.base.max(other.base);
        let after_first = |log: &Mirror| log.marks.len() - log.last().saturating_sub(first) as usize;
        self.last() == other.last()
            && self.last_term() == other.last_term()
            && self.marks.range(after_first(self)..).eq(other.marks.range(after_first(other)..))
    }

    /// Adds the next entry.
    pub(crate) fn push(&mut self, mark: Mark) {
        self.marks.push_back(mark);
    }

    /// Entries at this index and after it are removed.
    pub(crate) fn truncate_from(&mut self, index: Index) {
        let keep = index.saturating_sub(self.base + 1);
        self.marks.truncate(usize::try_from(keep).unwrap_or(usize::MAX));
    }

    /// Entries before this index are removed; the log has trimmed them.
    pub(crate) fn trim_to(&mut self, first: Index) {
        while self.base + 1 < first {
            let Some(mark) = self.marks.pop_front() else { return };
            self.base += 1;
            self.base_term = mark.term;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirror_after_truncation_and_trim_has_what_remains() {
        let mark = |term| Mark { term, hash: term * 10 };
        let mut log = Mirror::default();
        [1, 1, 2].into_iter().for_each(|term| log.push(mark(term)));
        assert_eq!((log.last(), log.last_term(), log.term_at(0)), (3, 2, Some(0)));
        log.truncate_from(3);
        [3, 3].into_iter().for_each(|term| log.push(mark(term)));
        assert_eq!((log.last(), log.term_at(3), log.get(5)), (4, Some(3), None));
        log.trim_to(3);
        assert_eq!((log.base, log.base_term, log.get(2), log.get(3)), (2, 1, None, Some(mark(3))));
    }

    #[test]
    fn logs_agree_if_they_are_the_same_where_both_reach() {
        let of = |base, terms: &[Term]| {
            let mut log = Mirror::after(base, 0);
            terms.iter().for_each(|term| log.push(Mark { term: *term, hash: *term }));
            log
        };
        let whole = of(0, &[1, 2, 3, 4]);
        for (other, agrees) in [
            (of(0, &[1, 2, 3, 4]), true),
            (of(2, &[3, 4]), true),
            (of(2, &[5, 4]), false),
            (of(1, &[1, 3, 4]), false),
            (of(0, &[1, 2, 3]), false),
            (of(0, &[1, 2, 3, 4, 4]), false),
        ] {
            assert_eq!((whole.agrees(&other), other.agrees(&whole)), (agrees, agrees), "{other:?}");
        }
        // One that was trimmed to its end knows the last term.
        let mut trimmed = whole.clone();
        trimmed.trim_to(5);
        assert!(whole.agrees(&trimmed) && !of(0, &[1, 2, 3, 3]).agrees(&trimmed));
    }
}
