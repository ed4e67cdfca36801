//! Estimates of the load: how many threads to wake for a backlog, and whether a yield pays off.
//!
//! Waking a thread costs two context switches, and the thread starts some 50 µs later. By then an awake thread has taken
//! several small write-sets. So the time of a delivery is measured, and a thread is woken only if the awake threads would
//! not finish the backlog before it starts.
//!
//! Gain (2026-11-25): [`DeliveryTime`] 40 % of the rate if InnoDB does not flush and 12 % if it does (`lab
//! parallel-apply`, ten workers). [`BatchEstimate`] 8 % with 8 clients (`bench provider`, one pair of clusters), none
//! with 2 and 32.

use lockstep_core::Micros;
use std::time::Duration;

/// Work that one awake thread may have queued before another is woken, ns.
pub(crate) const WORTH: u64 = 50_000;
/// Longer times count as this one. They say nothing about the next delivery: the thread waited for a lock, or the write-set
/// was large.
const MOST: u64 = 1_000_000;
/// A new value has the weight 1/this in the mean.
const WEIGHT: u64 = 16;

/// The mean time, ns, that a delivery keeps its thread.
#[derive(Debug, Default)]
pub(crate) struct DeliveryTime {
    mean: u64,
}

impl DeliveryTime {
    /// Records the time that a delivery has kept its thread.
    pub(crate) fn took(&mut self, busy: Duration) {
        let busy = u64::try_from(busy.as_nanos()).unwrap_or(MOST).min(MOST);
        self.mean = match self.mean {
            0 => busy,
            mean => (mean * (WEIGHT - 1) + busy) / WEIGHT,
        };
    }

    /// How many threads to wake for so many deliveries beside one awake thread. Before the first measurement: one for each.
    pub(crate) fn helpers(&self, deliveries: usize) -> usize {
        match self.mean {
            0 => deliveries,
            mean => deliveries.min((deliveries as u64 * mean / WORTH) as usize),
        }
    }
}

/// Batches are expected if at least this many transactions are in progress on average.
const CONCURRENT: usize = 4;
/// How long batches are expected after a round with that many transactions.
const EXPECTED: Micros = 5_000;
/// A new round has the weight 1/this in the mean.
const ROUNDS: usize = 32;
/// The mean is a fixed-point number with this denominator.
const PARTS: usize = 64;

/// Whether yielding the processor before taking queued work pays off, because more work joins the round, frame or sync.
/// With many clients that commit all the time it does. If clients mostly do other work, the yield only delays the commit.
#[derive(Debug, Default)]
pub(crate) struct BatchEstimate {
    mean: usize,
    until: Micros,
}

impl BatchEstimate {
    /// Records the number of transactions in progress in this round.
    pub(crate) fn counted(&mut self, now: Micros, under_way: usize) {
        if under_way >= CONCURRENT {
            self.until = now + EXPECTED;
        }
        // The limit keeps a short burst from raising the mean for long.
        let now = under_way.min(8 * CONCURRENT) * PARTS;
        self.mean = (self.mean * (ROUNDS - 1) + now).div_ceil(ROUNDS);
    }

    /// Whether more transactions are likely to arrive soon.
    pub(crate) fn is_expected(&self, now: Micros) -> bool {
        self.mean >= CONCURRENT * PARTS && now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_is_expected_under_concurrent_load() {
        let mut estimate = BatchEstimate::default();
        let mut rounds = |counts: &[usize]| {
            (0..200).for_each(|n| estimate.counted(100, counts[n % counts.len()]));
            estimate.is_expected(100)
        };
        assert!(!rounds(&[0, 1, 2, 3]));
        // Occasional bursts.
        assert!(!rounds(&[5, 1, 0, 2]));
        assert!(rounds(&[8, 2, 6]));
        assert!(rounds(&[64]));
        assert!(!rounds(&[1]), "soon after");
        assert!(rounds(&[CONCURRENT]));
        // A short pause between two rounds does not end it.
        estimate.counted(101, 5);
        estimate.counted(102, 4);
        assert!(estimate.is_expected(102) && estimate.is_expected(101 + EXPECTED));
        assert!(!estimate.is_expected(102 + EXPECTED));
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
        // A hanging delivery hardly changes the mean.
        time.took(Duration::from_micros(5));
        time.took(Duration::from_secs(100));
        assert!(time.mean < 300_000);
    }
}
