//! The times since which entries wait, with limited precision.

use crate::types::{Index, Micros};
use std::collections::VecDeque;

/// Two times that differ by less than this fraction (1/x) of the longest wait count as one, the earlier.
const GRAIN: Micros = 64;

/// For ascending indices: the time since which the entries up to this index wait.
///
/// **Invariant:** ascending in both. The times are at least a grain apart, so there are about [`GRAIN`] items at most.
#[derive(Debug, Default)]
pub(super) struct WaitTimes {
    times: VecDeque<(Index, Micros)>,
}

impl WaitTimes {
    /// Entries up to `upto` without a time wait since now. `longest`: the longest wait.
    pub(super) fn note(&mut self, upto: Index, now: Micros, longest: Micros) {
        match self.times.back_mut() {
            Some((index, _)) if *index >= upto => {}
            Some((index, since)) if now.saturating_sub(*since) < longest / GRAIN => *index = upto,
            _ => self.times.push_back((upto, now)),
        }
    }

    /// No entry up to `upto` waits any more.
    pub(super) fn answered(&mut self, upto: Index) {
        while self.times.front().is_some_and(|(index, _)| *index <= upto) {
            self.times.pop_front();
        }
    }

    /// This much time does not count as a wait.
    pub(super) fn extend(&mut self, time: Micros) {
        self.times.iter_mut().for_each(|(_, since)| *since += time);
    }

    pub(super) fn clear(&mut self) {
        self.times.clear();
    }

    /// The time since which the first waiting entry waits.
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
