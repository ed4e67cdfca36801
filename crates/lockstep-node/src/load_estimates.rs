//! How many threads a backlog is worth. To wake one costs two hand-offs of the processor, and it comes some 50 µs later;
//! one that is awake has taken several small write-sets by then. So how long a delivery keeps a thread is measured, and
//! as many are woken as would not catch up by themselves before another came to help.
//!
//! Gain (2026-11-25): [`DeliveryTime`] 40 % of the rate if InnoDB does not flush and 12 % if it does (`lab
//! parallel-apply`, ten workers). [`BatchEstimate`] 8 % with 8 clients (`bench provider`, one pair of clusters), none
//! with 2 and 32.

use lockstep_core::Micros;
use std::time::Duration;

/// Work that one awake thread may have queued before another is woken, ns.
pub(crate) const WORTH: u64 = 50_000;
/// A longer one says nothing of the next: it waited for a lock, or was a large one.
const MOST: u64 = 1_000_000;
/// The mean follows with the weight 1/this.
const WEIGHT: u64 = 16;

/// The mean time, ns, that a delivery keeps its thread.
#[derive(Debug, Default)]
pub(crate) struct DeliveryTime {
    mean: u64,
}

impl DeliveryTime {
    /// A delivery has kept its thread for so long.
    pub(crate) fn took(&mut self, busy: Duration) {
        let busy = u64::try_from(busy.as_nanos()).unwrap_or(MOST).min(MOST);
        self.mean = match self.mean {
            0 => busy,
            mean => (mean * (WEIGHT - 1) + busy) / WEIGHT,
        };
    }

    /// How many should help one who is awake with so many deliveries. While nothing is known: everyone.
    pub(crate) fn helpers(&self, deliveries: usize) -> usize {
        match self.mean {
            0 => deliveries,
            mean => deliveries.min((deliveries as u64 * mean / WORTH) as usize),
        }
    }
}

/// From so many transactions under way on, at the mean, more of them come together.
const COMPANY: usize = 4;
/// And for so long they are expected after there were as many at once.
const EXPECTED: Micros = 5_000;
/// The mean follows, round by round, with the weight 1/this.
const ROUNDS: usize = 32;
/// It is counted in such parts.
const PARTS: usize = 64;

/// Whether yielding the processor before taking queued work pays off, because more work joins the round, frame or sync.
/// With many clients that commit all the time it does. If clients mostly do other work, the yield only delays the commit.
#[derive(Debug, Default)]
pub(crate) struct BatchEstimate {
    mean: usize,
    until: Micros,
}

impl BatchEstimate {
    /// So many transactions are under way in this round.
    pub(crate) fn counted(&mut self, now: Micros, under_way: usize) {
        if under_way >= COMPANY {
            self.until = now + EXPECTED;
        }
        // A crowd for a moment does not outlast it by much.
        let now = under_way.min(8 * COMPANY) * PARTS;
        self.mean = (self.mean * (ROUNDS - 1) + now).div_ceil(ROUNDS);
    }

    /// Whether more is on its way.
    pub(crate) fn is_expected(&self, now: Micros) -> bool {
        self.mean >= COMPANY * PARTS && now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_is_expected_under_concurrent_load() {
        let mut company = BatchEstimate::default();
        let mut rounds = |counts: &[usize]| {
            (0..200).for_each(|n| company.counted(100, counts[n % counts.len()]));
            company.is_expected(100)
        };
        assert!(!rounds(&[0, 1, 2, 3]));
        // Some come together now and then.
        assert!(!rounds(&[5, 1, 0, 2]));
        assert!(rounds(&[8, 2, 6]));
        assert!(rounds(&[64]));
        assert!(!rounds(&[1]), "soon after");
        assert!(rounds(&[COMPANY]));
        // Between two rounds there may be nothing for an instant.
        company.counted(101, 5);
        company.counted(102, 4);
        assert!(company.is_expected(102) && company.is_expected(101 + EXPECTED));
        assert!(!company.is_expected(102 + EXPECTED));
    }

    #[test]
    fn long_deliveries_get_own_threads_and_short_share() {
        let mut time = DeliveryTime::default();
        assert_eq!(time.helpers(3), 3);
        time.took(Duration::from_micros(5));
        assert_eq!([time.helpers(1), time.helpers(9), time.helpers(20)], [0, 0, 2]);
        for _ in 0..100 {
            time.took(Duration::from_micros(200));
        }
        assert_eq!([time.helpers(0), time.helpers(1), time.helpers(20)], [0, 1, 20]);
        // One that hangs does not change much of that.
        time.took(Duration::from_micros(5));
        time.took(Duration::from_secs(100));
        assert!(time.mean < 300_000);
    }
}
