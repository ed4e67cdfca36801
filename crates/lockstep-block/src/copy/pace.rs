//! The rate of a donor: clients of the primary come first.

use std::time::{Duration, Instant};

/// An extent that is only compared counts as this part of one that is sent.
pub const COMPARED_PART: u64 = 4;
/// Idle time is not made up for beyond this.
const CREDIT: Duration = Duration::from_millis(100);

/// Says how long to wait so that a rate is kept.
#[derive(Debug)]
pub struct Pace {
    /// Bytes a second; 0: any number.
    rate: u64,
    /// When everything so far is paid for.
    paid_at: Instant,
}

impl Pace {
    /// `rate` bytes a second; 0: without a limit.
    pub fn new(rate: u64, now: Instant) -> Pace {
        Pace { rate, paid_at: now }
    }

    /// Counts so many bytes. Returns how long to wait before the next.
    pub fn charge(&mut self, bytes: u64, now: Instant) -> Duration {
        if self.rate == 0 {
            return Duration::ZERO;
        }
        let earliest = now.checked_sub(CREDIT).unwrap_or(now);
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
        self.paid_at = self.paid_at.max(earliest) + Duration::from_nanos(nanos as u64);
        self.paid_at.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_kept_and_idle_time_is_no_credit() {
        let mut now = Instant::now() + Duration::from_secs(100);
        let mut pace = Pace::new(1000, now);
        let began = now;
        for _ in 0..100 {
            now += pace.charge(100, now);
        }
        assert_eq!(now - began, Duration::from_secs(10));
        now += Duration::from_secs(60);
        let began = now;
        for _ in 0..100 {
            now += pace.charge(100, now);
        }
        assert_eq!(now - began, Duration::from_secs(10) - CREDIT);
        assert_eq!(Pace::new(0, now).charge(u64::MAX, now), Duration::ZERO);
    }
}
