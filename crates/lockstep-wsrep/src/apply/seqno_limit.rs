//! A limit on seqnos. A thread whose seqno lies above the limit waits. `pause` and the barrier of `lockstep verify` set one.

use crate::sync::{Ended, Interrupt, Stop, Waiter, Waiters, lock};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use std::time::Duration;

const OPEN: i64 = i64::MAX;

/// See the module.
///
/// The fast path is two atomic operations: raise `highest`, then read `limit`. [`SeqnoLimit::close`] first lowers `limit` below all
/// seqnos, then reads `highest`. So each seqno is either counted in `highest`, and may pass, or sees the lower limit.
pub(crate) struct SeqnoLimit {
    highest: AtomicI64,
    limit: AtomicI64,
    waiters: Waiters,
    ended: Ended,
}

impl SeqnoLimit {
    pub(crate) fn new(position: i64) -> SeqnoLimit {
        SeqnoLimit {
            highest: AtomicI64::new(position),
            limit: AtomicI64::new(OPEN),
            waiters: Mutex::new(Vec::new()),
            ended: Ended::default(),
        }
    }

    /// The highest seqno that has called [`SeqnoLimit::pass`].
    pub(crate) fn highest(&self) -> i64 {
        self.highest.load(Ordering::SeqCst)
    }

    /// Waits while `seqno` is above the limit.
    pub(crate) fn pass(
        &self,
        seqno: i64,
        interrupt: Option<&Interrupt>,
        timeout: Option<Duration>,
    ) -> Result<(), Stop> {
        loop {
            self.highest.fetch_max(seqno, Ordering::SeqCst);
            if self.ended.has(seqno) {
                return Err(Stop::Failed);
            }
            if seqno <= self.limit.load(Ordering::SeqCst) {
                return Ok(());
            }
            let waiter = Waiter::new();
            {
                let mut waiters = lock(&self.waiters);
                if seqno <= self.limit.load(Ordering::SeqCst) {
                    return Ok(());
                }
                waiters.push((seqno, waiter.clone()));
            }
            if let Err(stop) = waiter.wait(|| self.ended.has(seqno), interrupt, timeout) {
                lock(&self.waiters).retain(|(_, other)| !Arc::ptr_eq(other, &waiter));
                return Err(stop);
            }
        }
    }

    /// Sets the limit to the highest seqno that has called [`SeqnoLimit::pass`], and returns it.
    pub(crate) fn close(&self) -> i64 {
        self.limit.store(i64::MIN, Ordering::SeqCst);
        let last = self.highest();
        self.set_limit(last);
        last
    }

    /// The last seqno that may pass after [`SeqnoLimit::stop`]; the greatest number before.
    pub(crate) fn last(&self) -> i64 {
        self.ended.last()
    }

    /// Lets all seqnos up to this one pass.
    pub(crate) fn until(&self, seqno: i64) {
        self.set_limit(seqno);
    }

    /// Removes the limit.
    pub(crate) fn open(&self) {
        self.set_limit(OPEN);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.limit.load(Ordering::SeqCst) != OPEN
    }

    fn set_limit(&self, limit: i64) {
        let mut ready = {
            let mut waiters = lock(&self.waiters);
            self.limit.store(limit, Ordering::SeqCst);
            let (ready, blocked): (Vec<_>, Vec<_>) =
                waiters.drain(..).partition(|(seqno, _)| *seqno <= limit);
            *waiters = blocked;
            ready
        };
        ready.sort_by_key(|(seqno, _)| *seqno);
        ready.iter().for_each(|(_, waiter)| waiter.wake());
    }

    /// Sets the position, while nothing is in progress. The limit stays as it is.
    pub(crate) fn reset(&self, position: i64) {
        self.highest.store(position, Ordering::SeqCst);
        self.ended.reset();
    }

    /// Ends all waits, now and later.
    pub(crate) fn fail(&self) {
        self.ended.end_all();
        self.wake_all();
    }

    /// Ends all waits, now and later, above the last seqno that has passed. Returns that seqno. Lower seqnos may pass.
    pub(crate) fn stop(&self) -> i64 {
        let limit = self.limit.load(Ordering::SeqCst);
        let last = if limit == OPEN { self.close() } else { limit };
        self.ended.end_above(last);
        if limit == OPEN {
            self.open();
        }
        self.wake_all();
        last
    }

    fn wake_all(&self) {
        let threads: Vec<_> = lock(&self.waiters).iter().map(|(_, waiter)| waiter.thread.clone()).collect();
        threads.iter().for_each(Thread::unpark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::commit_order::CommitOrder;
    use crate::apply::finished::Finished;

    /// Long enough for a thread to reach its wait. A shorter time cannot fail a correct implementation.
    const SHORT: Duration = Duration::from_millis(30);

    #[test]
    fn limit_stops_seqnos_above_highest_passed() {
        let limit = Arc::new(SeqnoLimit::new(0));
        limit.pass(3, None, None).unwrap();
        assert_eq!(limit.close(), 3);
        limit.pass(2, None, None).unwrap();
        let waiting = {
            let limit = limit.clone();
            std::thread::spawn(move || limit.pass(4, None, None))
        };
        let interrupt = Interrupt::default();
        interrupt.raise();
        assert_eq!(limit.pass(5, Some(&interrupt), None), Err(Stop::Interrupted));
        std::thread::sleep(SHORT);
        assert!(!waiting.is_finished());
        limit.open();
        waiting.join().unwrap().unwrap();
    }

    #[test]
    fn pauses_under_load_lose_no_wake_up() {
        let order = Arc::new(CommitOrder::new(0));
        let finished = Arc::new(Finished::new(0));
        let limit = Arc::new(SeqnoLimit::new(0));
        const THREADS: i64 = 8;
        const EACH: i64 = 400;
        let threads: Vec<_> = (0..THREADS)
            .map(|n| {
                let (order, finished, limit) = (order.clone(), finished.clone(), limit.clone());
                std::thread::spawn(move || {
                    for round in 0..EACH {
                        let seqno = round * THREADS + n + 1;
                        limit.pass(seqno, None, None).unwrap();
                        finished.wait(seqno - THREADS / 2, None, None).unwrap();
                        order.enter(seqno, None, None).unwrap();
                        assert!(order.leave(seqno));
                        finished.finish(seqno);
                    }
                })
            })
            .collect();
        for _ in 0..20 {
            let last = limit.close();
            finished.wait(last, None, None).unwrap();
            assert_eq!(finished.low(), last, "nothing above the limit has moved");
            assert_eq!(order.left(), last);
            limit.open();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((order.left(), finished.low()), (THREADS * EACH, THREADS * EACH));
    }
}
