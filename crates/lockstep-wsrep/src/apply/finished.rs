//! The seqnos that have finished in the server: all up to a low-water mark, and some above it.
//!
//! A thread that waits for a low-water mark is woken by the thread that raises it, after that has released the lock.

use crate::sync::{Ended, Interrupt, Stop, Waiter, lock};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use std::time::Duration;

#[derive(Default)]
struct FinishedInner {
    low: i64,
    /// Element `i`: whether `low + 1 + i` has finished. The first element is never true.
    above: VecDeque<bool>,
    waiters: BTreeMap<(i64, u64), Arc<Waiter>>,
    next: u64,
}

/// See the module.
pub(crate) struct Finished {
    /// A copy of `inner.low`, which changes under the lock only.
    low: AtomicI64,
    inner: Mutex<FinishedInner>,
    ended: Ended,
    /// The number of finished seqnos, and of those that finished before a lower one.
    count: AtomicU64,
    out_of_order: AtomicU64,
}

impl Finished {
    pub(crate) fn new(position: i64) -> Finished {
        Finished {
            low: AtomicI64::new(position),
            inner: Mutex::new(FinishedInner { low: position, ..FinishedInner::default() }),
            ended: Ended::default(),
            count: AtomicU64::new(0),
            out_of_order: AtomicU64::new(0),
        }
    }

    /// The low-water mark: everything up to here has finished.
    pub(crate) fn low(&self) -> i64 {
        self.low.load(Ordering::SeqCst)
    }

    /// The number of seqnos that have finished since the last [`Finished::reset_counts`].
    pub(crate) fn count(&self) -> i64 {
        self.count.load(Ordering::Relaxed) as i64
    }

    /// The number of these that finished before a lower one.
    pub(crate) fn out_of_order(&self) -> i64 {
        self.out_of_order.load(Ordering::Relaxed) as i64
    }

    /// Resets both numbers.
    pub(crate) fn reset_counts(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.out_of_order.store(0, Ordering::Relaxed);
    }

    /// `seqno` has finished. Returns the new low-water mark if it moved. A second call for a seqno has no effect.
    pub(crate) fn finish(&self, seqno: i64) -> Option<i64> {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut woken = Vec::new();
        let low = {
            let mut inner = lock(&self.inner);
            let at = seqno - inner.low - 1;
            if at < 0 {
                return None;
            }
            if at > 0 {
                self.out_of_order.fetch_add(1, Ordering::Relaxed);
                let at = at as usize;
                if inner.above.len() <= at {
                    inner.above.resize(at + 1, false);
                }
                inner.above[at] = true;
                return None;
            }
            inner.above.pop_front();
            inner.low += 1;
            while inner.above.front() == Some(&true) {
                inner.above.pop_front();
                inner.low += 1;
            }
            self.low.store(inner.low, Ordering::SeqCst);
            Self::take_ready(&mut inner, &mut woken);
            inner.low
        };
        woken.iter().for_each(|waiter| waiter.wake());
        Some(low)
    }

    fn take_ready(inner: &mut FinishedInner, woken: &mut Vec<Arc<Waiter>>) {
        while let Some(first) = inner.waiters.first_entry() {
            if first.key().0 > inner.low {
                break;
            }
            woken.push(first.remove());
        }
    }

    /// Waits until everything up to `seqno` has finished.
    pub(crate) fn wait(
        &self,
        seqno: i64,
        interrupt: Option<&Interrupt>,
        timeout: Option<Duration>,
    ) -> Result<(), Stop> {
        if self.low() >= seqno {
            return Ok(());
        }
        let waiter = Waiter::new();
        let key = {
            let mut inner = lock(&self.inner);
            if inner.low >= seqno {
                return Ok(());
            }
            inner.next += 1;
            let key = (seqno, inner.next);
            inner.waiters.insert(key, waiter.clone());
            key
        };
        let result = waiter.wait(|| self.ended.has(seqno), interrupt, timeout);
        if result.is_err() {
            lock(&self.inner).waiters.remove(&key);
        }
        result
    }

    /// Sets the position, while nothing is in progress.
    pub(crate) fn reset(&self, position: i64) {
        self.ended.reset();
        self.leave_out(position);
    }

    /// Skips the seqnos up to this one, while nothing is in progress. Waits that were ended stay so.
    pub(crate) fn leave_out(&self, upto: i64) {
        let mut woken = Vec::new();
        {
            let mut inner = lock(&self.inner);
            inner.low = upto;
            inner.above.clear();
            self.low.store(upto, Ordering::SeqCst);
            Self::take_ready(&mut inner, &mut woken);
        }
        woken.iter().for_each(|waiter| waiter.wake());
    }

    /// Ends all waits, now and later.
    pub(crate) fn fail(&self) {
        self.ended.end_all();
        self.wake_all();
    }

    /// Ends the waits above `last`, now and later.
    pub(crate) fn stop(&self, last: i64) {
        self.ended.end_above(last);
        self.wake_all();
    }

    fn wake_all(&self) {
        let threads: Vec<_> =
            lock(&self.inner).waiters.values().map(|waiter| waiter.thread.clone()).collect();
        threads.iter().for_each(Thread::unpark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long enough for a thread to reach its wait. A shorter time cannot fail a correct implementation.
    const SHORT: Duration = Duration::from_millis(30);

    #[test]
    fn low_water_mark_passes_seqnos_that_finished_early() {
        let finished = Finished::new(4);
        assert_eq!(finished.finish(6), None);
        assert_eq!(finished.finish(7), None);
        assert_eq!(finished.finish(9), None);
        assert_eq!(finished.low(), 4);
        assert_eq!(finished.finish(5), Some(7));
        assert_eq!(finished.finish(5), None, "the second time has no effect");
        assert_eq!(finished.finish(8), Some(9));
        assert_eq!(finished.low(), 9);
    }

    #[test]
    fn wait_ends_at_low_water_mark_or_timeout() {
        let finished = Arc::new(Finished::new(0));
        assert_eq!(finished.wait(1, None, Some(SHORT)), Err(Stop::TimedOut));
        let threads: Vec<_> = (1..=20)
            .map(|seqno| {
                let finished = finished.clone();
                std::thread::spawn(move || {
                    finished.wait(seqno, None, None).unwrap();
                    assert!(finished.low() >= seqno);
                })
            })
            .collect();
        let finishers: Vec<_> = (1..=20)
            .map(|seqno| {
                let finished = finished.clone();
                std::thread::spawn(move || {
                    finished.finish(seqno);
                })
            })
            .collect();
        threads.into_iter().chain(finishers).for_each(|thread| thread.join().unwrap());
        assert_eq!(finished.low(), 20);
        assert!(lock(&finished.inner).waiters.is_empty());
    }
}
