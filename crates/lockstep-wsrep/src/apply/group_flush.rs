//! Group flush: on a slow disk, appliers share flushes.
//!
//! With `innodb_flush_log_at_trx_commit=1` an applier that has left commit order waits for the disk. A flush serves all
//! transactions that are committed in memory when it begins; those that commit during it wait for the next one. Without
//! control the appliers split into two halves that flush in turns. On a fast disk that is best: one half computes while the
//! other flushes. If a flush takes longer than all appliers need to compute, it halves the throughput. On such a disk an
//! applier that has left commit order is therefore held until the current flush has ended and the appliers that are coming
//! have arrived, but for at most half the time of a flush.
//!
//! The computing time is not known, but the time from an applier's flush to its next one (`way`) is. While the halves take
//! turns, the computing time of a half is a quarter of `way` on average; when all flush together, a half of it.
//!
//! A held applier has no lock of the provider and is outside commit order. Of the server's locks it has that of its own
//! session, which listing the sessions only tries. Dependent write-sets start without it
//! ([`crate::apply::commit_dependency`]). So only its own next write-set waits for it.

use crate::sync::lock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// While `way` is not known, a disk counts as slow from this flush time on, in nanoseconds,
const SLOW: u64 = 1_500_000;
/// and as fast again below this one.
const FAST: u64 = 1_000_000;
/// Once `way` is known, a disk counts as slow from this multiple of it on: the four of the module's text, and half as much
/// again,
const SLOW_TIMES: u64 = 6;
/// and as fast again below this multiple, in tenths: the two, and a fifth.
const FAST_TENTHS: u64 = 24;
/// A disk never counts as slow below this flush time: holding and releasing takes time, too.
const NEVER_SLOW: u64 = 200_000;
/// Each sample moves an estimate by one part in so many.
const STEP: u64 = 16;
/// A held applier checks its condition at least this often.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The longest time that an applier is held.
const MAX_HOLD: Duration = Duration::from_millis(500);

#[derive(Default)]
struct Inner {
    held: usize,
    /// Counts the releases of held appliers.
    round: u64,
    /// At the last release, no applier was flushing.
    alone: bool,
    /// Since when no flush is in progress.
    idle_since: Option<Instant>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct GroupFlush {
    /// Appliers that have taken a delivery and not left commit order.
    coming: AtomicUsize,
    /// Appliers that have left it, were released, and wait for the disk.
    flushing: AtomicUsize,
    /// The time of a flush, in nanoseconds: an estimate of the median, so that a thread that was only kept from the processor
    /// does not distort it.
    time: AtomicU64,
    /// The time from the end of an applier's flush until it leaves commit order again, if a write-set was queued: as `time`.
    way: AtomicU64,
    slow: AtomicBool,
    /// A copy of `inner.held`, readable without the lock.
    held: AtomicUsize,
    inner: Mutex<Inner>,
    /// The applier that was held first waits here,
    first: Condvar,
    /// and the others here.
    others: Condvar,
}

/// The permission to flush.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Passed {
    at: Instant,
    /// No other applier was flushing.
    alone: bool,
}

impl GroupFlush {
    /// An applier begins a write-set, or is about to.
    pub(crate) fn comes(&self) {
        self.coming.fetch_add(1, Ordering::SeqCst);
    }

    fn comes_no_more(&self) -> bool {
        let before =
            self.coming.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
        before == Ok(1)
    }

    /// The applier does not flush after all. If it was the last one coming, the held ones have nothing to wait for.
    pub(crate) fn stays_away(&self) {
        if self.comes_no_more() && self.held.load(Ordering::SeqCst) > 0 {
            let _held = lock(&self.inner);
            self.first.notify_all();
        }
    }

    /// Takes the next item with `next`, which gets the timeout (`None`: unlimited). Returns it, and whether it was there at
    /// once. An `expected` applier counts as coming, but not while `next` sleeps: the held ones would wait for it.
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
        // It is counted again if it has an item to apply.
        self.stays_away();
        match one {
            None => (next(wait), false),
            one => (one, true),
        }
    }

    fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    /// An applier has left commit order. Returns when it may flush; [`GroupFlush::landed`] must follow. `since`: when its
    /// previous flush ended, if a write-set was queued then.
    pub(crate) fn wait(&self, since: Option<Instant>) -> Passed {
        // No wake-up: this applier checks the condition for all held ones below, or when it has flushed.
        self.comes_no_more();
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
            if !self.is_slow() || now >= began + MAX_HOLD {
                return self.release(&mut inner, now);
            }
            let wait = if self.flushing.load(Ordering::SeqCst) > 0 {
                inner.idle_since = None;
                CHECK_INTERVAL
            } else {
                let until = *inner.idle_since.get_or_insert(now) + self.timeout();
                if self.coming.load(Ordering::SeqCst) == 0 || now >= until {
                    return self.release(&mut inner, now);
                }
                until - now
            };
            let condition = if is_first { &self.first } else { &self.others };
            inner = wait_on(condition, inner, if is_first { wait } else { wait.max(CHECK_INTERVAL) });
        }
    }

    /// Releases all held appliers, this one among them.
    fn release(&self, inner: &mut Inner, now: Instant) -> Passed {
        let alone = self.flushing.fetch_add(inner.held, Ordering::SeqCst) == 0;
        inner.held = 0;
        self.held.store(0, Ordering::SeqCst);
        inner.round += 1;
        inner.alone = alone;
        inner.idle_since = None;
        self.first.notify_all();
        self.others.notify_all();
        Passed { at: now, alone }
    }

    fn timeout(&self) -> Duration {
        Duration::from_nanos(self.time.load(Ordering::Relaxed) / 2)
    }

    /// The applier's flush has ended.
    pub(crate) fn landed(&self, passed: Passed) {
        let took = nanos(passed.at.elapsed());
        // An applier that was not alone may have waited for two flushes.
        self.learn(if passed.alone { took } else { took / 2 });
        let last = self.flushing.fetch_sub(1, Ordering::SeqCst) == 1;
        if (last || !self.is_slow()) && self.held.load(Ordering::SeqCst) > 0 {
            let mut inner = lock(&self.inner);
            if last {
                inner.idle_since = Some(Instant::now());
            }
            self.first.notify_all();
        }
    }

    fn learn(&self, took: u64) {
        let time = follow(&self.time, took);
        let was = self.is_slow();
        let limit = match self.way.load(Ordering::Relaxed) {
            0 if was => FAST,
            0 => SLOW,
            way if was => (way.saturating_mul(FAST_TENTHS) / 10).max(NEVER_SLOW * 2 / 3),
            way => way.saturating_mul(SLOW_TIMES).max(NEVER_SLOW),
        };
        self.slow.store(time >= limit, Ordering::Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Moves an estimate towards a sample. Returns the new estimate.
fn follow(estimate: &AtomicU64, sample: u64) -> u64 {
    let now = estimate.load(Ordering::Relaxed);
    let step = now / STEP + 1_000;
    let next = if sample > now {
        now.saturating_add(step).min(sample)
    } else {
        now.saturating_sub(step).max(sample)
    };
    // Of two concurrent samples one may be lost, which does no harm.
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
    fn flush_time_follows_median() {
        let group = GroupFlush::default();
        for _ in 0..100 {
            group.learn(20_000);
        }
        assert_eq!(group.time.load(Ordering::Relaxed), 20_000);
        // A few samples of threads that were kept from the processor.
        for at in 0..100 {
            group.learn(if at % 4 == 0 { 4_000_000 } else { 20_000 });
        }
        assert!(!group.is_slow());
        for _ in 0..200 {
            group.learn(2_000_000);
        }
        assert!(group.is_slow());
    }

    #[test]
    fn disk_is_slow_relative_to_time_between_flushes() {
        let slow = |time: u64, way: u64, was: bool| {
            let group =
                GroupFlush { time: time.into(), way: way.into(), slow: was.into(), ..GroupFlush::default() };
            group.learn(time);
            group.is_slow()
        };
        // With a flush of half a millisecond, holding pays off if appliers come back soon, and not if they compute for long.
        assert!(slow(500_000, 50_000, false) && !slow(500_000, 100_000, false));
        assert!(!slow(5_000_000, 1_000_000, false));
        // Held appliers compute at the same time and come back later: the disk still counts as slow.
        assert!(
            slow(500_000, 100_000, true) && slow(500_000, 200_000, true) && !slow(500_000, 220_000, true)
        );
        assert!(!slow(150_000, 1_000, false), "below the minimum");
        assert!(slow(SLOW, 0, false) && !slow(SLOW - 1, 0, false) && slow(FAST, 0, true));
    }

    /// Runs workers that compute before each flush, on one disk. Returns the number of flushes until each worker's
    /// transactions are on disk.
    fn flushes(group: &GroupFlush, workers: usize, each: usize, flush: Duration, work: Duration) -> usize {
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
                            group.comes();
                        }
                        std::thread::sleep(work);
                        let mine = disk.committed.fetch_add(1, Ordering::SeqCst) + 1;
                        let passed = group.wait(None);
                        let mut durable = lock(&disk.durable);
                        if *durable < mine {
                            let upto = disk.committed.load(Ordering::SeqCst);
                            std::thread::sleep(flush);
                            disk.flushes.fetch_add(1, Ordering::SeqCst);
                            *durable = upto;
                        }
                        drop(durable);
                        if at + 1 < each {
                            group.comes();
                        }
                        group.landed(passed);
                    }
                });
            }
        });
        disk.flushes.into_inner()
    }

    #[test]
    fn slow_disk_groups_flushes_and_fast_disk_holds_no_applier() {
        let group = slow(20_000_000);
        let (workers, each) = (8, 10);
        let count = flushes(&group, workers, each, Duration::from_millis(20), Duration::from_millis(1));
        // Two halves in turns would need twice as many.
        assert!(count < 2 * each * 3 / 4, "{count} flushes");
        assert_eq!((group.flushing.into_inner(), group.coming.into_inner()), (0, 0));

        let fast = GroupFlush::default();
        fast.comes();
        fast.comes();
        let began = Instant::now();
        let passed = fast.wait(None);
        assert!(began.elapsed() < CHECK_INTERVAL && passed.alone);
        fast.landed(passed);
    }

    #[test]
    fn held_applier_is_released_when_disk_is_fast_again() {
        let group = slow(FAST + 10_000);
        group.flushing.store(1, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let began = Instant::now();
            let held = scope.spawn(|| {
                group.comes();
                group.wait(None);
            });
            while group.held.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            // One fast flush; another applier is still flushing.
            group.flushing.fetch_add(1, Ordering::SeqCst);
            group.landed(Passed { at: Instant::now(), alone: true });
            assert!(!group.is_slow());
            held.join().unwrap();
            assert!(began.elapsed() < MAX_HOLD);
        });
    }

    #[test]
    fn held_applier_does_not_wait_for_one_without_item() {
        let limit = Duration::from_millis(400);
        let group = slow(2 * limit.as_nanos() as u64);
        let queue = Mutex::new(Some(1));
        let next = |wait: Option<Duration>| {
            let one = lock(&queue).take();
            if one.is_none() {
                std::thread::sleep(wait.unwrap_or(2 * limit));
            }
            one
        };
        // Both have seen that the queue has an item.
        group.comes();
        group.comes();
        std::thread::scope(|scope| {
            let worker = || {
                let began = Instant::now();
                let (item, at_once) = group.take(true, None, next);
                assert_eq!(item.is_some(), at_once);
                if at_once {
                    group.comes();
                    let passed = group.wait(None);
                    group.landed(passed);
                    assert!(began.elapsed() < limit / 2, "held for {:?}", began.elapsed());
                }
            };
            for thread in [scope.spawn(worker), scope.spawn(worker)] {
                thread.join().unwrap();
            }
        });
        assert_eq!((group.coming.load(Ordering::SeqCst), *lock(&queue)), (0, None));
        // One is held already when the other finds the queue empty.
        group.comes();
        group.comes();
        std::thread::scope(|scope| {
            let began = Instant::now();
            let held = scope.spawn(|| group.wait(None));
            while group.held.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            group.take(true, Some(Duration::ZERO), |_| None::<u8>);
            group.landed(held.join().unwrap());
            assert!(began.elapsed() < limit / 2, "held for {:?}", began.elapsed());
        });
    }

    #[test]
    fn applier_is_held_for_half_a_flush_at_most() {
        let group = slow(10_000_000);
        group.comes();
        group.comes();
        let began = Instant::now();
        let passed = group.wait(None);
        assert!(began.elapsed() >= Duration::from_micros(4_900), "half of a flush");
        group.landed(passed);
        // Nor does it wait for ever for a flush that does not end.
        group.flushing.store(1, Ordering::SeqCst);
        group.comes();
        group.wait(None);
        assert!(began.elapsed() >= MAX_HOLD);
    }
}
