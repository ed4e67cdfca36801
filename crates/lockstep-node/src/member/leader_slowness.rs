//! How late the leader's words come here because somebody's processor is busy, the leader's or this member's.
//!
//! Among hundreds of threads that compute on one processor a thread gets its turn each few hundred milliseconds. A leader
//! is not dead for that, and an election helps nobody: so the silence after which this member campaigns follows what has
//! been seen, as in the accrual failure detectors (Hayashibara et al., 2004), within bounds. A single pause is no pattern,
//! and says nothing of the next.

use super::Micros;

/// Seconds that are remembered.
const SECONDS: usize = 10;
const SECOND: Micros = 1_000_000;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct LeaderSlowness {
    /// The longest silence of each second, by its number modulo [`SECONDS`].
    longest: [Micros; SECONDS],
    /// The second that was written last.
    last: Micros,
}

impl LeaderSlowness {
    /// Something has come, after a silence.
    pub(super) fn heard(&mut self, now: Micros, silence: Micros) {
        let longest = self.at(now);
        *longest = silence.max(*longest);
    }

    /// What a silence lasted or exceeded in at least two of the last seconds.
    pub(super) fn usual_silence(&mut self, now: Micros) -> Micros {
        self.at(now);
        let mut longest = self.longest;
        longest.sort_unstable();
        longest[SECONDS - 2]
    }

    /// This second's place; those between it and the last one are emptied.
    fn at(&mut self, now: Micros) -> &mut Micros {
        let second = (now / SECOND).max(self.last);
        for passed in (self.last + 1..=second).rev().take(SECONDS) {
            self.longest[passed as usize % SECONDS] = 0;
        }
        self.last = second;
        &mut self.longest[second as usize % SECONDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pause_is_no_pattern_two_are_for_ten_seconds() {
        let mut late = LeaderSlowness::default();
        let mut now = 77 * SECOND;
        for _ in 0..50 {
            now += 100_000;
            late.heard(now, 100_000);
        }
        assert_eq!(late.usual_silence(now), 100_000);
        late.heard(now, 900_000);
        late.heard(now, 700_000);
        assert_eq!(late.usual_silence(now), 100_000);
        now += SECOND;
        late.heard(now, 500_000);
        assert_eq!(late.usual_silence(now), 500_000);
        now += 8 * SECOND;
        assert_eq!(late.usual_silence(now), 500_000);
        late.heard(now, 100_000);
        now += SECOND;
        assert_eq!(late.usual_silence(now), 100_000);
        now += 1000 * SECOND;
        assert_eq!(late.usual_silence(now), 0);
        // A clock that stands still, or a round's that is a little older.
        late.heard(now - SECOND, 5);
        assert_eq!(late.usual_silence(now - SECOND), 0);
    }
}
