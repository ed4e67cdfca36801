//! How old, in time, is what the server has not finished yet, and how much, in bytes.

use super::{Effect, Member};
use lockstep_core::{Micros, Seqno};
use std::collections::VecDeque;

/// Deliveries so close to each other count as one.
const GRAIN: Micros = 100_000;

/// The times at which entries that were delivered had been placed in the log.
#[derive(Debug, Default)]
pub(super) struct LagMeter {
    /// Ascending in seqnos and times; none begins later than it was delivered, by the own clock.
    stretches: VecDeque<LagSpan>,
}

/// What was placed within [`GRAIN`].
#[derive(Debug)]
struct LagSpan {
    first: Seqno,
    last: Seqno,
    /// When its first entry was placed.
    began: Micros,
    bytes: u64,
}

impl LagMeter {
    /// An entry goes to the server, `wall` being the own clock. `finished` is asked for only when a stretch begins.
    ///
    /// A leader's clock may be ahead of this one. What it placed in the future is taken to have been placed now: else,
    /// once another member leads, all would join a stretch that has not begun yet, and be of no age.
    pub(super) fn delivered(
        &mut self,
        seqno: Seqno,
        placed: Micros,
        wall: Micros,
        bytes: u64,
        finished: impl FnOnce() -> Seqno,
    ) {
        let placed = placed.min(wall);
        match self.stretches.back_mut() {
            // Clocks of leaders differ, and are put right: time that goes back is time that stands.
            // What a view leaves out has no bytes.
            Some(stretch) if placed < stretch.began + GRAIN && seqno == stretch.last + 1 => {
                stretch.last = seqno;
                stretch.bytes += bytes;
            }
            _ => {
                let finished = finished();
                while self.stretches.front().is_some_and(|stretch| stretch.last <= finished) {
                    self.stretches.pop_front();
                }
                self.stretches.push_back(LagSpan { first: seqno, last: seqno, began: placed, bytes });
            }
        }
    }

    /// How long ago the oldest delivered entry above `finished` was placed, in seconds, up to [`GRAIN`] too much;
    /// `None` where there is none.
    pub(super) fn age(&self, finished: Seqno, wall: Micros) -> Option<f64> {
        let stretch = self.stretches.iter().find(|stretch| stretch.last > finished)?;
        Some(wall.saturating_sub(stretch.began) as f64 / 1e6)
    }

    /// About how many bytes the delivered entries above `finished` have: of the stretch in which that lies, its mean
    /// counts.
    pub(super) fn bytes(&self, finished: Seqno) -> u64 {
        let open = self.stretches.iter().filter(|stretch| stretch.last > finished);
        open.map(|LagSpan { first, last, bytes, .. }| {
            let above = (last - finished.max(first - 1)) as u64;
            (u128::from(*bytes) * u128::from(above) / u128::from((last + 1 - first) as u64)) as u64
        })
        .sum()
    }
}

/// How often it is told how far a member is from being Synced.
const TELL_EVERY: Micros = 1_000_000;

/// A member on its way to Synced.
#[derive(Debug)]
pub(super) struct CatchUp {
    /// What had been finished when it began.
    from: Seqno,
    told_at: Micros,
}

impl Member {
    /// Tells how far this member has come, at the begin and from time to time; `synced`: for the last time.
    pub(super) fn tell_progress(&mut self, synced: bool) {
        let finished = self.finished();
        let first = self.catching_up.is_none();
        // A first view says where the database is.
        if finished < 0 {
            return;
        }
        let state = self.catching_up.get_or_insert(CatchUp { from: finished, told_at: self.now });
        if !first && !synced && self.now < state.told_at + TELL_EVERY {
            return;
        }
        state.told_at = self.now;
        let from = state.from;
        let (total, done) = (self.lag_of(from), self.raft.seqnos_between(from, finished));
        if synced {
            self.catching_up = None;
        }
        if total > 0 {
            self.effects.push(Effect::Progress { total, done: done.min(total) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_is_that_of_the_oldest_unfinished_entry_not_of_the_newest() {
        let mut meter = LagMeter::default();
        assert_eq!(meter.age(0, 9_000_000), None);
        for (seqno, placed) in [(1, 1_000_000), (2, 1_050_000), (3, 2_000_000), (4, 5_000_000)] {
            meter.delivered(seqno, placed, 9_000_000, 100 * seqno as u64, || 0);
        }
        assert_eq!(meter.age(0, 9_000_000), Some(8.0));
        assert_eq!(meter.age(1, 9_000_000), Some(8.0), "2 was placed in the stretch that 1 began");
        assert_eq!(meter.age(2, 9_000_000), Some(7.0));
        assert_eq!(meter.age(4, 9_000_000), None);
        assert_eq!([0, 1, 2, 3, 4].map(|at| meter.bytes(at)), [1000, 850, 700, 400, 0]);
        meter.delivered(5, 6_000_000, 9_000_000, 10, || 4);
        assert_eq!(meter.stretches.len(), 1, "what has finished is forgotten");
        meter.delivered(6, 3_000_000, 9_000_000, 10, || 4);
        assert_eq!(meter.age(5, 9_000_000), Some(3.0));
    }

    #[test]
    fn after_a_leader_whose_clock_was_ahead_the_age_grows_with_the_own_clock() {
        let mut meter = LagMeter::default();
        let second = 1_000_000;
        for at in 1..=3 {
            meter.delivered(at, (60 + at as Micros) * second, at as Micros * second, 10, || 0);
        }
        assert_eq!(meter.stretches.len(), 3);
        // Another one leads, whose clock is right, and the server finishes nothing.
        for at in 4..=6 {
            meter.delivered(at, at as Micros * second, at as Micros * second, 10, || 0);
        }
        assert_eq!(
            [0, 1, 3, 5].map(|finished| meter.age(finished, 10 * second)),
            [9.0, 8.0, 6.0, 4.0].map(Some)
        );
    }
}
