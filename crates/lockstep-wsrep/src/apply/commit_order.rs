//! Commit order: one seqno after the other, without gaps.
//!
//! A waiting thread parks on its own flag. The thread of the previous seqno wakes it, after it has released the lock. No
//! lock is held while a thread waits or calls the server.
//!
//! Gain of the yield before parking (2026-11-25, `lab parallel-apply`, ten workers): 19 % of the rate if InnoDB does not
//! flush, within a large spread; none otherwise.

use crate::sync::{Ended, Interrupt, Stop, Waiter, Waiters, lock};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use std::time::{Duration, Instant};

const SHARDS: usize = 64;

/// A thread yields before it parks if at most so many seqnos are before it,
const YIELD_DISTANCE: i64 = 4;
/// for at most this time.
const YIELD_TIME: Duration = Duration::from_micros(50);

/// See the module.
///
/// **Invariant:** `left` grows by one at a time, set by the thread whose turn it is. [`CommitOrder::reset`] and
/// [`CommitOrder::leave_out`] set it while no thread is inside.
pub(crate) struct CommitOrder {
    /// The last seqno that has left.
    left: AtomicI64,
    /// The highest seqno that has asked for its turn, for statistics.
    asked: AtomicI64,
    shards: [Waiters; SHARDS],
    ended: Ended,
    /// The number of calls of [`CommitOrder::enter`], and the sum of the distances between `asked` and `left`.
    entered: AtomicU64,
    /// See `entered`.
    window: AtomicU64,
}

impl CommitOrder {
    pub(crate) fn new(position: i64) -> CommitOrder {
        CommitOrder {
            left: AtomicI64::new(position),
            asked: AtomicI64::new(position),
            shards: std::array::from_fn(|_| Mutex::new(Vec::new())),
            ended: Ended::default(),
            entered: AtomicU64::new(0),
            window: AtomicU64::new(0),
        }
    }

    /// The last seqno that has left.
    pub(crate) fn left(&self) -> i64 {
        self.left.load(Ordering::SeqCst)
    }

    /// The mean number of seqnos in progress at calls of [`CommitOrder::enter`].
    pub(crate) fn mean_window(&self) -> f64 {
        match self.entered.load(Ordering::Relaxed) {
            0 => 0.0,
            entered => self.window.load(Ordering::Relaxed) as f64 / entered as f64,
        }
    }

    /// Resets the statistics.
    pub(crate) fn reset_counts(&self) {
        self.entered.store(0, Ordering::Relaxed);
        self.window.store(0, Ordering::Relaxed);
    }

    fn shard(&self, seqno: i64) -> &Waiters {
        &self.shards[seqno.rem_euclid(SHARDS as i64) as usize]
    }

    /// Waits until it is the turn of `seqno`. Returns at once if `seqno` has left already.
    ///
    /// An interrupted thread keeps its turn: no other seqno overtakes it.
    pub(crate) fn enter(
        &self,
        seqno: i64,
        interrupt: Option<&Interrupt>,
        timeout: Option<Duration>,
    ) -> Result<(), Stop> {
        let left = self.left();
        let asked = self.asked.fetch_max(seqno, Ordering::Relaxed).max(seqno);
        self.entered.fetch_add(1, Ordering::Relaxed);
        self.window.fetch_add(asked.saturating_sub(left).max(0) as u64, Ordering::Relaxed);
        // Only appliers, which are never interrupted, yield. A client thread that yields gets the processor back after all
        // other running threads, while everything behind its seqno waits.
        if left >= seqno - 1 || (interrupt.is_none() && self.comes_soon(seqno, left)) {
            return Ok(());
        }
        let waiter = Waiter::new();
        {
            let mut shard = lock(self.shard(seqno));
            // Under the lock: either the previous seqno's thread sees the waiter, or this thread sees that it has left.
            if self.left() >= seqno - 1 {
                return Ok(());
            }
            shard.push((seqno, waiter.clone()));
        }
        let result = waiter.wait(|| self.ended.has(seqno), interrupt, timeout);
        if result.is_err() {
            lock(self.shard(seqno)).retain(|(_, other)| !Arc::ptr_eq(other, &waiter));
        }
        result
    }

    /// Yields for the time of a short commit. Returns whether the turn has come.
    ///
    /// With few seqnos before it the turn mostly comes within that time, and parking and waking cost more than the commit.
    /// The thread that runs meanwhile may well be the one that this thread waits for.
    fn comes_soon(&self, seqno: i64, left: i64) -> bool {
        if seqno - 1 - left > YIELD_DISTANCE {
            return false;
        }
        let began = Instant::now();
        loop {
            std::thread::yield_now();
            if self.left() >= seqno - 1 {
                return true;
            }
            if began.elapsed() > YIELD_TIME {
                return false;
            }
        }
    }

    /// `seqno` leaves. Returns `false` if it was not its turn.
    pub(crate) fn leave(&self, seqno: i64) -> bool {
        if self.left.compare_exchange(seqno - 1, seqno, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return false;
        }
        self.wake(seqno + 1);
        true
    }

    fn wake(&self, seqno: i64) {
        let mut found = None;
        {
            let mut shard = lock(self.shard(seqno));
            if let Some(at) = shard.iter().position(|(other, _)| *other == seqno) {
                found = Some(shard.swap_remove(at).1);
            }
        }
        if let Some(waiter) = found {
            waiter.wake();
        }
    }

    /// Sets the position, while no thread is inside.
    pub(crate) fn reset(&self, position: i64) {
        self.ended.reset();
        self.leave_out(position);
    }

    /// Skips the seqnos up to this one, while no thread is inside. Waits that were ended stay so.
    pub(crate) fn leave_out(&self, upto: i64) {
        self.left.store(upto, Ordering::SeqCst);
        self.asked.store(upto, Ordering::Relaxed);
        self.wake(upto + 1);
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
        for shard in &self.shards {
            let waiters: Vec<_> = lock(shard).iter().map(|(_, waiter)| waiter.thread.clone()).collect();
            waiters.iter().for_each(Thread::unpark);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Long enough for a thread to reach its wait. A shorter time cannot fail a correct implementation.
    const SHORT: Duration = Duration::from_millis(30);

    #[test]
    fn turns_come_in_seqno_order() {
        let order = Arc::new(CommitOrder::new(10));
        let (sender, receiver) = mpsc::channel();
        let threads: Vec<_> = (11..=42)
            .rev()
            .map(|seqno| {
                let (order, sender) = (order.clone(), sender.clone());
                std::thread::spawn(move || {
                    order.enter(seqno, None, None).unwrap();
                    sender.send(seqno).unwrap();
                    assert!(order.leave(seqno));
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), (11..=42).collect::<Vec<_>>());
        assert_eq!(order.left(), 42);
        assert!(!order.leave(44), "a turn that has not come cannot end");
    }

    #[test]
    fn interrupted_thread_keeps_its_turn() {
        let order = Arc::new(CommitOrder::new(0));
        let interrupt = Arc::new(Interrupt::default());
        let waiting = {
            let (order, interrupt) = (order.clone(), interrupt.clone());
            std::thread::spawn(move || order.enter(2, Some(&interrupt), None))
        };
        let later = {
            let order = order.clone();
            std::thread::spawn(move || order.enter(3, None, None))
        };
        std::thread::sleep(SHORT);
        interrupt.raise();
        assert_eq!(waiting.join().unwrap(), Err(Stop::Interrupted));
        assert_eq!(
            order.enter(2, Some(&interrupt), None),
            Err(Stop::Interrupted),
            "raised before the wait as well"
        );
        assert!(order.leave(1));
        std::thread::sleep(SHORT);
        assert!(!later.is_finished(), "2 has not had its turn yet");
        order.enter(2, None, None).unwrap();
        assert!(order.leave(2));
        later.join().unwrap().unwrap();
    }

    #[test]
    fn failed_order_ends_waits_until_reset() {
        let order = Arc::new(CommitOrder::new(0));
        let waiting = {
            let order = order.clone();
            std::thread::spawn(move || order.enter(5, None, None))
        };
        std::thread::sleep(SHORT);
        order.fail();
        assert_eq!(waiting.join().unwrap(), Err(Stop::Failed));
        assert_eq!(order.enter(6, None, None), Err(Stop::Failed));
        order.reset(5);
        order.enter(6, None, None).unwrap();
    }
}
