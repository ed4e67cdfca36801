//! Write coalescing: yield the processor before taking queued work, so that a round, a frame or a sync carries more.
//!
//! Where the processors are busy with threads that bring something and go to sleep, a yield returns within some hundred
//! microseconds, and what costs nearly the same whatever it carries is done more rarely. Where they are idle it returns at
//! once. But where something computes beside them that never sleeps (a long query, a compiler, even at the lowest
//! priority) a yield hands it a whole slice of the scheduler's, some milliseconds, in which a commit waits for nothing. So
//! how long yields take is looked at, and where many are that long it is left alone for a while.
//!
//! Gain (2026-11-25, `bench provider`, one pair of clusters): 9 % of the rate with 8 clients, none with 2 and 32.

use std::time::{Duration, Instant};

/// A yield that takes longer than this has served somebody who did not go to sleep.
const SLICE: Duration = Duration::from_micros(1500);
/// What such a one counts against those that were shorter,
const LONG: u32 = 16;
/// and with how much of that no more are made for a while.
const ENOUGH: u32 = 3 * LONG;
/// The while: twice as long each time that the next one is that long again.
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
    /// Lets others run, where that has been worth it lately. Whether it has.
    pub fn gather(&mut self) -> bool {
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
            // The first one after it tells whether it is over.
            self.score = ENOUGH - LONG;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(200);

    fn may(gather: &Coalesce, now: Instant) -> bool {
        gather.not_before.is_none_or(|at| now >= at)
    }

    #[test]
    fn busy_thread_suspends_coalescing_and_rare_long_yield_does_not() {
        let mut gather = Coalesce::default();
        let mut now = Instant::now();
        for round in 0..1000 {
            gather.took(now, if round % 20 == 0 { SLICE } else { SHORT });
            assert!(may(&gather, now), "{round}");
        }
        for _ in 0..3 {
            gather.took(now, 2 * SLICE);
        }
        assert!(!may(&gather, now));
        // Still there when it is tried again: one try tells, and the next is later.
        for pauses in [1, 2, 4, 8] {
            assert!(!may(&gather, now + pauses * PAUSE - SHORT));
            now += pauses * PAUSE;
            assert!(may(&gather, now));
            gather.took(now, 2 * SLICE);
        }
        for _ in 0..20 {
            now += LONGEST_PAUSE;
            gather.took(now, 2 * SLICE);
        }
        assert!(may(&gather, now + LONGEST_PAUSE), "never longer than this");
        now += LONGEST_PAUSE;
        for _ in 0..ENOUGH {
            gather.took(now, SHORT);
        }
        gather.took(now, 2 * SLICE);
        assert!(may(&gather, now), "it is gone, and all is as it was");
        assert_eq!(gather.pause, PAUSE);
    }
}
