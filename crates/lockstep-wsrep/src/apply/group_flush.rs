//! Appliers flush together where the disk is slow.
//!
//! With `innodb_flush_log_at_trx_commit=1` an applier that has left commit order waits for the disk. A flush serves all who
//! have committed in memory when it begins; who commits while it lasts waits for the next. So by themselves appliers
//! fall into two halves that flush in turns, each half waiting while the other does. On a fast disk that is best: one half
//! computes meanwhile. If a flush takes longer than the computing time of all of them together, it halves the throughput.
//! Then an applier that has left commit order is held until the present flush has ended and the others have arrived, for at
//! most half the time of a flush.
//!
//! The computing time is unknown, but the time of an applier from one flush to its next is measured. If the halves
//! alternate, the computing time is a quarter of that on average; if all flush together, a half.
//!
//! A held applier holds no lock of ours and no place in commit order (of the server's locks it holds that of its own session,
//! which listing sessions only tries). Its dependents proceed (see [`crate::apply::commit_dependency`]). So only its own
//! next transaction waits.

use crate::sync::lock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// From here on a disk is slow, in nanoseconds, while it is not known how soon somebody comes back,
const SLOW: u64 = 1_500_000;
/// and below this it is not any more.
const QUICK: u64 = 1_000_000;
/// Where that is known, it is slow from so many times of it on: the four of the module's text, and half as much again,
const SLOW_TIMES: u64 = 6;
/// and below so many, in tenths, not any more: the two, and a fifth.
const QUICK_TENTHS: u64 = 24;
/// But never below this: to hold and to let go takes time, too.
const NEVER_SLOW: u64 = 200_000;
/// The estimate follows by this part with each flush.
const STEP: u64 = 16;
/// Somebody who is held looks again after so long, whatever happens.
const LOOK: Duration = Duration::from_millis(20);
/// And passes after this.
const MOST: Duration = Duration::from_millis(500);

#[derive(Default)]
struct Inner {
    held: usize,
    /// How often those who were held have been let go.
    round: u64,
    /// The last time, nobody was flushing.
    alone: bool,
    /// No flush is under way, since then.
    free_since: Option<Instant>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct GroupFlush {
    /// Appliers with a delivery in their hands that have not left commit order.
    coming: AtomicUsize,
    /// Those that have left it, were let go, and wait for the disk.
    flushing: AtomicUsize,
    /// The median duration of a flush, in nanoseconds: a preempted thread does not move the median.
    time: AtomicU64,
    /// How long it takes one that has flushed, and has something to do, until it has left commit order again: as `time`.
    way: AtomicU64,
    slow: AtomicBool,
    /// The number of held appliers, readable without the lock.
    held: AtomicUsize,
    inner: Mutex<Inner>,
    /// The applier held first waits here,
    first: Condvar,
    /// and the others here.
    others: Condvar,
}

/// That somebody was let go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Passed {
    at: Instant,
    /// Nobody else was flushing.
    alone: bool,
}

impl GroupFlush {
    /// An applier begins, or is about to.
    pub(crate) fn comes(&self) {
        self.coming.fetch_add(1, Ordering::SeqCst);
    }

    fn one_less(&self) -> bool {
        let less = self.coming.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
        less == Ok(1)
    }

    /// It does not flush after all: if it was the last one, those who are held wait for nobody.
    pub(crate) fn stays_away(&self) {
        if self.one_less() && self.held.load(Ordering::SeqCst) > 0 {
            let _held = lock(&self.inner);
            self.first.notify_all();
        }
    }

    /// Takes the next one with `next`, which waits for one for so long (`None`: as long as it takes); and whether there
    /// was one at once. An `expected` thread counts as arriving until it has a delivery, but not while it sleeps: held appliers
    /// would wait for it.
    pub(crate) fn take<T>(
        &self,
        expected: bool,
        wait: Option<Duration>,
        mut next: impl FnMut(Option<Duration>) -> Option<T>,
    ) -> (Option<T>, bool) {
        if !expected {
            return (next(wait), false);
        }
        let one = next(Some(Duration::ZERO));
        // It is counted anew if it has something to apply.
        self.stays_away();
        match one {
            None => (next(wait), false),
            one => (one, true),
        }
    }

    fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    /// An applier has left commit order: returns when it is time to flush. [`GroupFlush::landed`] must follow. `since`: when
    /// it had landed before, if something waited for it then.
    pub(crate) fn wait(&self, since: Option<Instant>) -> Passed {
        // Held appliers check again when this one is held.
        self.one_less();
        if let Some(since) = since {
            follow(&self.way, nanos(since.elapsed()));
        }
        if !self.is_slow() {
            let alone = self.flushing.fetch_add(1, Ordering::SeqCst) == 0;
            return Passed { at: Instant::now(), alone };
        }
        let began = Instant::now();
        let mut inner = lock(&self.inner);
        inner.held += 1;
        self.held.store(inner.held, Ordering::SeqCst);
        let (round, is_first) = (inner.round, inner.held == 1);
        loop {
            let now = Instant::now();
            if inner.round != round {
                return Passed { at: now, alone: inner.alone };
            }
            if !self.is_slow() || now >= began + MOST {
                return self.let_go(&mut inner, now);
            }
            let wait = if self.flushing.load(Ordering::SeqCst) > 0 {
                inner.free_since = None;
                LOOK
            } else {
                let until = *inner.free_since.get_or_insert(now) + self.timeout();
                if self.coming.load(Ordering::SeqCst) == 0 || now >= until {
                    return self.let_go(&mut inner, now);
                }
                until - now
            };
            let condition = if is_first { &self.first } else { &self.others };
            inner = wait_on(condition, inner, if is_first { wait } else { wait.max(LOOK) });
        }
    }

    /// All who are held, this one among them.
    fn let_go(&self, inner: &mut Inner, now: Instant) -> Passed {
        let alone = self.flushing.fetch_add(inner.held, Ordering::SeqCst) == 0;
        inner.held = 0;
        self.held.store(0, Ordering::SeqCst);
        inner.round += 1;
        inner.alone = alone;
        inner.free_since = None;
        self.first.notify_all();
        self.others.notify_all();
        Passed { at: now, alone }
    }

    fn timeout(&self) -> Duration {
        Duration::from_nanos(self.time.load(Ordering::Relaxed) / 2)
    }

    /// Its flush has completed.
    pub(crate) fn landed(&self, passed: Passed) {
        let took = nanos(passed.at.elapsed());
        // An applier that was not alone may have waited for two flushes.
        self.learn(if passed.alone { took } else { took / 2 });
        let last = self.flushing.fetch_sub(1, Ordering::SeqCst) == 1;
        if (last || !self.is_slow()) && self.held.load(Ordering::SeqCst) > 0 {
            let mut inner = lock(&self.inner);
            if last {
                inner.free_since = Some(Instant::now());
            }
            self.first.notify_all();
        }
    }

    fn learn(&self, took: u64) {
        let time = follow(&self.time, took);
        let was = self.is_slow();
        let limit = match self.way.load(Ordering::Relaxed) {
            0 if was => QUICK,
            0 => SLOW,
            way if was => (way.saturating_mul(QUICK_TENTHS) / 10).max(NEVER_SLOW * 2 / 3),
            way => way.saturating_mul(SLOW_TIMES).max(NEVER_SLOW),
        };
        self.slow.store(time >= limit, Ordering::Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Moves an estimate towards what was seen. Returns it.
fn follow(estimate: &AtomicU64, seen: u64) -> u64 {
    let now = estimate.load(Ordering::Relaxed);
    let step = now / STEP + 1_000;
    let next =
        if seen > now { now.saturating_add(step).min(seen) } else { now.saturating_sub(step).max(seen) };
    // That of two at once one is lost does no harm.
    estimate.store(next, Ordering::Relaxed);
    next
}

fn wait_on<'a>(condition: &Condvar, inner: MutexGuard<'a, Inner>, most: Duration) -> MutexGuard<'a, Inner> {
    condition.wait_timeout(inner, most).unwrap_or_else(PoisonError::into_inner).0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(nanos: u64) -> GroupFlush {
        GroupFlush { time: nanos.into(), slow: true.into(), ..GroupFlush::default() }
    }

    #[test]
    fn flush_time_is_median() {
        let together = GroupFlush::default();
        for _ in 0..100 {
            together.learn(20_000);
        }
        assert_eq!(together.time.load(Ordering::Relaxed), 20_000);
        // A few that were kept from the processor.
        for at in 0..100 {
            together.learn(if at % 4 == 0 { 4_000_000 } else { 20_000 });
        }
        assert!(!together.is_slow());
        for _ in 0..200 {
            together.learn(2_000_000);
        }
        assert!(together.is_slow());
    }

    #[test]
    fn disk_is_slow_relative_to_applier_cycle() {
        let slow = |time: u64, way: u64, was: bool| {
            let together =
                GroupFlush { time: time.into(), way: way.into(), slow: was.into(), ..GroupFlush::default() };
            together.learn(time);
            together.is_slow()
        };
        // Those who come back soon are worth a wait of a flush of half a millisecond; those who compute for long are not.
        assert!(slow(500_000, 50_000, false) && !slow(500_000, 100_000, false));
        assert!(!slow(5_000_000, 1_000_000, false));
        // Held, all compute at once, and come back later: it stays.
        assert!(
            slow(500_000, 100_000, true) && slow(500_000, 200_000, true) && !slow(500_000, 220_000, true)
        );
        assert!(!slow(150_000, 1_000, false), "not worth it, whoever comes");
        assert!(slow(SLOW, 0, false) && !slow(SLOW - 1, 0, false) && slow(QUICK, 0, true));
    }

    /// One disk, and workers that have something to do before each flush: how many flushes it takes for each to have its
    /// transactions on the disk.
    fn flushes(together: &GroupFlush, workers: usize, each: usize, flush: Duration, work: Duration) -> usize {
        struct Disk {
            committed: AtomicUsize,
            durable: Mutex<usize>,
            flushes: AtomicUsize,
        }
        let disk = Disk { committed: 0.into(), durable: Mutex::new(0), flushes: 0.into() };
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    for at in 0..each {
                        if at == 0 {
                            together.comes();
                        }
                        std::thread::sleep(work);
                        let mine = disk.committed.fetch_add(1, Ordering::SeqCst) + 1;
                        let passed = together.wait(None);
                        let mut durable = lock(&disk.durable);
                        if *durable < mine {
                            let upto = disk.committed.load(Ordering::SeqCst);
                            std::thread::sleep(flush);
                            disk.flushes.fetch_add(1, Ordering::SeqCst);
                            *durable = upto;
                        }
                        drop(durable);
                        if at + 1 < each {
                            together.comes();
                        }
                        together.landed(passed);
                    }
                });
            }
        });
        disk.flushes.into_inner()
    }

    #[test]
    fn slow_disk_groups_flushes_and_fast_disk_holds_none() {
        let together = slow(20_000_000);
        let (workers, each) = (8, 10);
        let count = flushes(&together, workers, each, Duration::from_millis(20), Duration::from_millis(1));
        // In two halves it would be twice as many.
        assert!(count < 2 * each * 3 / 4, "{count} flushes");
        assert_eq!((together.flushing.into_inner(), together.coming.into_inner()), (0, 0));

        let quick = GroupFlush::default();
        quick.comes();
        quick.comes();
        let began = Instant::now();
        let passed = quick.wait(None);
        assert!(began.elapsed() < LOOK && passed.alone);
        quick.landed(passed);
    }

    #[test]
    fn held_appliers_are_released_when_disk_is_fast_again() {
        let together = slow(QUICK + 10_000);
        together.flushing.store(1, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let began = Instant::now();
            let held = scope.spawn(|| {
                together.comes();
                together.wait(None);
            });
            while together.held.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            // One of several whose flush was quick; another one goes on flushing.
            together.flushing.fetch_add(1, Ordering::SeqCst);
            together.landed(Passed { at: Instant::now(), alone: true });
            assert!(!together.is_slow());
            held.join().unwrap();
            assert!(began.elapsed() < MOST);
        });
    }

    #[test]
    fn expected_applier_without_delivery_is_not_waited_for() {
        let patience = Duration::from_millis(400);
        let together = slow(2 * patience.as_nanos() as u64);
        let queue = Mutex::new(Some(1));
        let next = |wait: Option<Duration>| {
            let one = lock(&queue).take();
            if one.is_none() {
                std::thread::sleep(wait.unwrap_or(2 * patience));
            }
            one
        };
        // Both have seen that something waits.
        together.comes();
        together.comes();
        std::thread::scope(|scope| {
            let worker = || {
                let began = Instant::now();
                let (item, at_once) = together.take(true, None, next);
                assert_eq!(item.is_some(), at_once);
                if at_once {
                    together.comes();
                    let passed = together.wait(None);
                    together.landed(passed);
                    assert!(began.elapsed() < patience / 2, "held for {:?}", began.elapsed());
                }
            };
            for thread in [scope.spawn(worker), scope.spawn(worker)] {
                thread.join().unwrap();
            }
        });
        assert_eq!((together.coming.load(Ordering::SeqCst), *lock(&queue)), (0, None));
        // One is held already when the other finds nothing.
        together.comes();
        together.comes();
        std::thread::scope(|scope| {
            let began = Instant::now();
            let held = scope.spawn(|| together.wait(None));
            while together.held.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            together.take(true, Some(Duration::ZERO), |_| None::<u8>);
            together.landed(held.join().unwrap());
            assert!(began.elapsed() < patience / 2, "held for {:?}", began.elapsed());
        });
    }

    #[test]
    fn nobody_waits_for_long_for_one_who_does_not_come() {
        let together = slow(10_000_000);
        together.comes();
        together.comes();
        let began = Instant::now();
        let passed = together.wait(None);
        assert!(began.elapsed() >= Duration::from_micros(4_900), "half of a flush");
        together.landed(passed);
        // Nor for a flush that does not end.
        together.flushing.store(1, Ordering::SeqCst);
        together.comes();
        together.wait(None);
        assert!(began.elapsed() >= MOST);
    }
}
