//! How late the leader's messages arrive because a processor is busy, the leader's or this member's.
//!
//! With hundreds of computing threads on one processor, a thread runs only every few hundred milliseconds. The leader
//! is not dead then, and an election helps nobody. So the leader timeout follows the silences observed, as in accrual
//! failure detectors (Hayashibara et al., 2004), within bounds. A single pause predicts nothing.

use lockstep_core::Micros;

/// How many seconds are remembered.
const SECONDS: usize = 10;
const SECOND: Micros = 1_000_000;

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(in crate::member) struct LeaderSlowness {
    /// The longest silence of each second, by its number modulo [`SECONDS`].
    longest: [Micros; SECONDS],
    /// The second last written.
    last: Micros,
}

impl LeaderSlowness {
    /// A message has arrived after this silence.
    pub(in crate::member) fn record(&mut self, now: Micros, silence: Micros) {
        let longest = self.at(now);
        *longest = silence.max(*longest);
    }

    /// The silence reached or exceeded in at least two of the last seconds.
    pub(in crate::member) fn usual_silence(&mut self, now: Micros) -> Micros {
        self.at(now);
        let mut longest = self.longest;
        longest.sort_unstable();
        longest[SECONDS - 2]
    }

    /// This second's slot; slots skipped since the last one are cleared.
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
    fn usual_silence_needs_two_pauses_in_ten_seconds() {
        let mut slowness = LeaderSlowness::default();
        let mut now = 77 * SECOND;
        for _ in 0..50 {
            now += 100_000;
            slowness.record(now, 100_000);
        }
        assert_eq!(slowness.usual_silence(now), 100_000);
        slowness.record(now, 900_000);
        slowness.record(now, 700_000);
        assert_eq!(slowness.usual_silence(now), 100_000);
        now += SECOND;
        slowness.record(now, 500_000);
        assert_eq!(slowness.usual_silence(now), 500_000);
        now += 8 * SECOND;
        assert_eq!(slowness.usual_silence(now), 500_000);
        slowness.record(now, 100_000);
        now += SECOND;
        assert_eq!(slowness.usual_silence(now), 100_000);
        now += 1000 * SECOND;
        assert_eq!(slowness.usual_silence(now), 0);
        // A clock that stands still, or a slightly older one.
        slowness.record(now - SECOND, 5);
        assert_eq!(slowness.usual_silence(now - SECOND), 0);
    }
}
