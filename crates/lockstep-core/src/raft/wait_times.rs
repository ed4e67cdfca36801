//! Since when entries wait, as far as one has to know it.

use crate::types::{Index, Micros};
use std::collections::VecDeque;

/// Times of entries that are so close to each other, as a part of the longest wait, count as one: the earlier.
const GRAIN: Micros = 64;

/// Up to which index there was something to wait for, and since when.
///
/// **Invariant:** ascending in both, and more than a grain apart: while nobody waits for longer than the longest wait,
/// these are about [`GRAIN`] at most.
#[derive(Debug, Default)]
pub(super) struct WaitTimes {
    times: VecDeque<(Index, Micros)>,
}

impl WaitTimes {
    /// Those up to `upto` that are not marked yet wait since now; nobody waits longer than `longest`.
    pub(super) fn note(&mut self, upto: Index, now: Micros, longest: Micros) {
        match self.times.back_mut() {
            Some((index, _)) if *index >= upto => {}
            Some((index, since)) if now.saturating_sub(*since) < longest / GRAIN => *index = upto,
            _ => self.times.push_back((upto, now)),
        }
    }

    /// Nobody waits for those up to this one any more.
    pub(super) fn answered(&mut self, upto: Index) {
        while self.times.front().is_some_and(|(index, _)| *index <= upto) {
            self.times.pop_front();
        }
    }

    pub(super) fn clear(&mut self) {
        self.times.clear();
    }

    /// Since when the first waits that does.
    pub(super) fn first(&self) -> Option<Micros> {
        self.times.front().map(|(_, since)| *since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_waiting_entry_keeps_its_own_time() {
        let mut marks = WaitTimes::default();
        for (upto, now) in [(3, 100), (3, 200), (5, 300), (6, 309), (9, 400)] {
            marks.note(upto, now, 640);
        }
        let mut since = |upto| {
            marks.answered(upto);
            marks.first()
        };
        assert_eq!([2, 3, 5, 6, 9].map(&mut since), [Some(100), Some(300), Some(300), Some(400), None]);
    }

    #[test]
    fn marks_are_few_however_many_entries_come() {
        let mut marks = WaitTimes::default();
        for index in 1..=100_000 {
            marks.note(index, index, 100_000);
        }
        assert!(marks.times.len() <= 65, "{}", marks.times.len());
    }
}
