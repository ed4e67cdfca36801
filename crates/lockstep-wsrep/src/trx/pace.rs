//! The pace of local transactions while a member lags (`apply.pace`).
//!
//! A thread waits before its write-set is built: what finishes meanwhile cannot conflict with it. It holds no lock of the
//! provider. An abort ends the wait, because an applier waits for the transaction's row locks then.

use crate::context::Context;
use crate::sync::Waiter;
use crate::trx::table::Trx;
use lockstep_node::Pace;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A shorter wait is less than the time to wake the thread.
const WAIT_MIN: Duration = Duration::from_micros(100);

/// When the next transaction may be submitted.
pub(crate) struct Pacer {
    began: Instant,
    /// Nanoseconds since `began`.
    next: AtomicU64,
}

impl Default for Pacer {
    fn default() -> Pacer {
        Pacer { began: Instant::now(), next: AtomicU64::new(0) }
    }
}

impl Pacer {
    /// Takes a place for a transaction that is ready at `now`, so that `interval` lies between two transactions. Returns
    /// how long it has to wait, at most `longest`.
    fn take(&self, now: Instant, interval: Duration, longest: Duration) -> Duration {
        let nanos = |time: Duration| time.as_nanos() as u64;
        let now = nanos(now.saturating_duration_since(self.began));
        let place = |next: u64| next.clamp(now, now + nanos(longest));
        let take = |next| Some(place(next) + nanos(interval).min(nanos(longest)));
        let before = self.next.fetch_update(Relaxed, Relaxed, take).unwrap_or_else(|next| next);
        Duration::from_nanos(place(before) - now)
    }

    /// Waits for the place of a transaction, if the node limits their number.
    pub(crate) fn wait(&self, cx: &Context, trx: &Trx) {
        let Some(Pace { interval, longest_wait }) = cx.node().and_then(|node| node.pace()) else { return };
        let wait = self.take(Instant::now(), interval, longest_wait);
        if wait >= WAIT_MIN {
            // However the wait ends, the transaction goes on: `certify` finds out whether it was aborted.
            let _ = Waiter::new().wait(|| cx.has_failed(), Some(trx.interrupt()), Some(wait));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_keep_the_interval_up_to_the_longest_wait() {
        let pacer = Pacer::default();
        let ms = Duration::from_millis;
        let take =
            |at: u64, interval: u64| pacer.take(pacer.began + ms(at), ms(interval), ms(100)).as_millis();
        assert_eq!([take(5, 10), take(5, 10), take(5, 10), take(12, 10)], [0, 10, 20, 23]);
        assert_eq!([take(100, 10), take(103, 10)], [0, 7], "unused places are lost");
        let waits: Vec<u128> = (0..12).map(|_| take(200, 30)).collect();
        assert_eq!(waits[..5], [0, 30, 60, 90, 100]);
        assert!(waits[5..].iter().all(|wait| *wait == 100), "{waits:?}");
        // The limit is higher again: nobody waits for the places of before.
        assert_eq!([take(320, 1), take(340, 1)], [10, 0]);
        assert_eq!([take(1_000, 60_000), take(1_000, 1)], [0, 100]);
    }
}
