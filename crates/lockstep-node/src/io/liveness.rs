//! Whether a majority has answered lately, by a clock that counts a suspended machine's time.
//!
//! Raft's clock stands still while the machine is suspended, and nothing runs while the process is stopped. Another member may
//! lead by then. So each round notes the time at which it found a majority, and a reader compares it with the time of the
//! question.

use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The two clocks may drift apart by so much between two rounds without a suspension.
const DRIFT_MAX: Duration = Duration::from_millis(20);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Liveness {
    /// The time since boot at which a round found a majority, µs; 0: the last round found none.
    confirmed: AtomicU64,
}

impl Liveness {
    /// A round has ended.
    pub(crate) fn note(&self, at: Option<Duration>) {
        self.confirmed.store(at.map_or(0, micros), Ordering::Release);
    }

    /// Whether a round found a majority within this time.
    pub(crate) fn within(&self, time: Duration) -> bool {
        self.is_within(time, since_boot())
    }

    fn is_within(&self, time: Duration, now: Duration) -> bool {
        let confirmed = self.confirmed.load(Ordering::Acquire);
        confirmed > 0 && micros(now).saturating_sub(confirmed) <= micros(time)
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

/// Finds out whether a majority that Raft knows of counts: not right after the machine was suspended.
#[derive(Debug, Default)]
pub(crate) struct Suspensions {
    /// The time for which the machine was suspended before the last round.
    before: Option<Duration>,
    /// Since a suspension that this clock has not seen, Raft's knowledge is old until then (by Raft's clock).
    doubtful_until: Duration,
}

impl Suspensions {
    /// The time since boot, if a majority that answered within `timeout` by Raft's clock counts now.
    pub(crate) fn confirm(&mut self, timeout: Duration) -> Option<Duration> {
        self.confirm_at(timeout, since_boot(), awake())
    }

    fn confirm_at(&mut self, timeout: Duration, since_boot: Duration, awake: Duration) -> Option<Duration> {
        let suspended = since_boot.saturating_sub(awake);
        let before = self.before.replace(suspended).unwrap_or(suspended);
        if suspended > before + DRIFT_MAX {
            self.doubtful_until = awake + timeout;
        }
        (awake >= self.doubtful_until).then_some(since_boot)
    }
}

/// The time since boot, with suspensions.
fn since_boot() -> Duration {
    duration(ClockId::Boottime)
}

/// The time since boot, without suspensions.
fn awake() -> Duration {
    duration(ClockId::Monotonic)
}

fn duration(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(600);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn majority_counts_for_a_while_only() {
        let liveness = Liveness::default();
        assert!(!liveness.is_within(TIMEOUT, ms(10_000)), "no round yet");
        liveness.note(Some(ms(10_000)));
        assert!(liveness.is_within(TIMEOUT, ms(10_600)));
        assert!(!liveness.is_within(TIMEOUT, ms(10_601)), "the process was stopped");
        liveness.note(None);
        assert!(!liveness.is_within(TIMEOUT, ms(10_000)));
    }

    #[test]
    fn majority_of_before_a_suspension_does_not_count() {
        let mut suspensions = Suspensions::default();
        assert_eq!(suspensions.confirm_at(TIMEOUT, ms(9_000), ms(1_000)), Some(ms(9_000)));
        assert_eq!(suspensions.confirm_at(TIMEOUT, ms(9_100), ms(1_100)), Some(ms(9_100)));
        assert_eq!(suspensions.confirm_at(TIMEOUT, ms(20_000), ms(1_110)), None, "suspended for 11 s");
        assert_eq!(suspensions.confirm_at(TIMEOUT, ms(20_500), ms(1_610)), None);
        assert_eq!(suspensions.confirm_at(TIMEOUT, ms(20_700), ms(1_810)), Some(ms(20_700)));
    }

    #[test]
    fn clocks_of_this_machine_are_read() {
        assert!(since_boot() >= awake() - DRIFT_MAX && awake() > Duration::ZERO);
    }
}
