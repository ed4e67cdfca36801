//! Write coalescing: yield the processor before taking queued work, so that a round, a frame or a sync carries more.
//!
//! On processors that are busy with threads which queue work and sleep, a yield returns within some hundred microseconds.
//! A round, a frame or a sync costs nearly the same whatever its size, so fewer of them do the same work. On an idle
//! processor a yield returns at once. But a thread that never sleeps (a long query, a compiler, even at the lowest
//! priority) gets a whole time slice from a yield. That takes some milliseconds, in which a commit waits for nothing. So
//! the duration of yields is measured. If many are long, there are no yields for a while.
//!
//! Gain (2026-11-25, `bench provider`, one pair of clusters): 9 % of the rate with 8 clients, none with 2 and 32.

use std::time::{Duration, Instant};

/// A yield that takes longer than this went to a thread that did not sleep.
const SLICE: Duration = Duration::from_micros(1500);
/// How many short yields make up for such a long one.
const LONG: u32 = 16;
/// At this score there are no yields for a while.
const ENOUGH: u32 = 3 * LONG;
/// The length of that pause at first. It doubles each time that the next yield is long again.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub struct Coalesce {
    score: u32,
    not_before: Option<Instant>,
    pause: Duration,
}

impl Default for Coalesce {
    fn default() -> Coalesce {
        Coalesce { score: 0, not_before: None, pause: PAUSE }
    }
}

impl Coalesce {
    /// Yields the processor, unless yields have been long lately. Returns whether it did.
    pub fn yield_now(&mut self) -> bool {
        let began = Instant::now();
        if self.not_before.is_some_and(|at| began < at) {
            return false;
        }
        std::thread::yield_now();
        let now = Instant::now();
        self.took(now, now - began);
        true
    }

    fn took(&mut self, now: Instant, time: Duration) {
        if time < SLICE {
            self.score = self.score.saturating_sub(1);
            if self.score == 0 {
                self.pause = PAUSE;
            }
            return;
        }
        self.score += LONG;
        if self.score >= ENOUGH {
            self.not_before = Some(now + self.pause);
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
            // The first yield after the pause shows whether yields are still long.
            self.score = ENOUGH - LONG;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(200);

    fn may(coalesce: &Coalesce, now: Instant) -> bool {
        coalesce.not_before.is_none_or(|at| now >= at)
    }

    #[test]
    fn busy_thread_suspends_coalescing_and_rare_long_yield_does_not() {
        let mut coalesce = Coalesce::default();
        let mut now = Instant::now();
        for round in 0..1000 {
            coalesce.took(now, if round % 20 == 0 { SLICE } else { SHORT });
            assert!(may(&coalesce, now), "{round}");
        }
        for _ in 0..3 {
            coalesce.took(now, 2 * SLICE);
        }
        assert!(!may(&coalesce, now));
        // Still there when it is tried again: one try tells, and the next is later.
        for pauses in [1, 2, 4, 8] {
            assert!(!may(&coalesce, now + pauses * PAUSE - SHORT));
            now += pauses * PAUSE;
            assert!(may(&coalesce, now));
            coalesce.took(now, 2 * SLICE);
        }
        for _ in 0..20 {
            now += LONGEST_PAUSE;
            coalesce.took(now, 2 * SLICE);
        }
        assert!(may(&coalesce, now + LONGEST_PAUSE), "never longer than this");
        now += LONGEST_PAUSE;
        for _ in 0..ENOUGH {
            coalesce.took(now, SHORT);
        }
        coalesce.took(now, 2 * SLICE);
        assert!(may(&coalesce, now), "it is gone, and all is as it was");
        assert_eq!(coalesce.pause, PAUSE);
    }
}
