//! The applier pool: how many of a front end's threads hold a write-set at once.
//!
//! A write-set that waits only for commit order needs a processor for some microseconds. More threads than processors
//! do not apply such write-sets faster: they preempt each other, the thread next in commit order does not run, and each
//! commit costs two context switches. So as many threads work as there are processors, and the thread that has just
//! finished, with warm caches, takes the next write-set. If a write-set takes less time than a context switch, one thread
//! applies fastest alone.
//!
//! If write-sets wait (for a flush at each commit, for pages, for locks), more threads overlap these waits. The formula is
//! extra threads = 2 × processors × wait time / work time. The factor 2 is there because waiting threads share a flush. Both
//! times are measured.
//!
//! **Invariant:** every queued delivery is taken in the end, whatever the working threads wait for. Either one of them
//! returns, or [`ApplierPool::nudged`] finds that none has, and admits one more thread each time.
//!
//! Gain where InnoDB does not flush: 1.5 to 2.1 times the updates (2026-11-28, `lab parallel-apply`, ten workers). Where it
//! flushes, none is shown. Where clients commit on all members at the same time: 3 % (`bench cluster --load all`).

use crate::load_estimates::WORTH;
use lockstep_core::Seqno;
use std::time::Duration;

/// A thread's report on the write-set that it took before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Its seqno.
    pub seqno: Seqno,
    /// How long the thread worked on it, with its waits.
    pub time: Duration,
    /// How that time was spent. `None`: not measured.
    pub spent: Option<Spent>,
}

/// How a thread has spent its time with a write-set. The wait for its turn in commit order counts for neither part.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Spent {
    /// The thread worked.
    pub worked: Duration,
    /// The thread was blocked: on a disk, a lock or another transaction.
    pub waited: Duration,
}

/// Longer times, in ns, count as this one.
const MOST: u64 = 1_000_000;
/// A new value has the weight 1/this in the means.
const WEIGHT: u64 = 16;
/// A wait below this fraction (1/x) of the work time counts as none.
const HARDLY: u64 = 4;

/// The cost, in ns, of one thread that waits for its turn and is woken by another. Shorter work is not shared.
const HAND_OFF: u64 = 5_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct ApplierPool {
    processors: usize,
    /// Seqnos held by working threads.
    hands: Vec<Seqno>,
    /// The mean times of work and of waiting, ns, once they have been measured.
    means: Option<(u64, u64)>,
    /// The median time of work, in ns. A few interrupted write-sets raise the mean, but not the median.
    typical: u64,
    /// The number of extra threads, because none of the working ones has returned.
    extra: usize,
    /// A thread has returned since the last nudge.
    came_back: bool,
}

impl Default for ApplierPool {
    fn default() -> ApplierPool {
        ApplierPool::new(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

impl ApplierPool {
    fn new(processors: usize) -> ApplierPool {
        ApplierPool { processors, hands: Vec::new(), means: None, typical: MOST, extra: 0, came_back: false }
    }

    /// A thread has taken this write-set.
    pub(crate) fn took(&mut self, seqno: Seqno) {
        self.hands.push(seqno);
    }

    /// A thread has finished a write-set.
    pub(crate) fn back(&mut self, done: &Done) {
        if let Some(spent) = &done.spent {
            let (worked, waited) = nanos(spent);
            let (mean_worked, mean_waited) = self.means.unwrap_or((worked, waited));
            let follow = |mean, time| (mean * (WEIGHT - 1) + time) / WEIGHT;
            self.means = Some((follow(mean_worked, worked), follow(mean_waited, waited)));
            let step = (self.typical / WEIGHT).max(1);
            self.typical = match worked > self.typical {
                true => (self.typical + step).min(MOST),
                false => self.typical.saturating_sub(step),
            };
        }
        self.gone(done.seqno);
    }

    /// The thread with this write-set has ended or returned.
    pub(crate) fn gone(&mut self, seqno: Seqno) {
        if let Some(at) = self.hands.iter().position(|other| *other == seqno) {
            self.hands.swap_remove(at);
        }
        self.came_back = true;
        self.extra = 0;
    }

    /// A delivery and an idle thread wait. If no thread has returned since the last call, one more may work.
    pub(crate) fn nudged(&mut self) {
        if !std::mem::take(&mut self.came_back) {
            self.extra += 1;
        }
    }

    /// How many more threads may take a delivery. The next one depends on the seqnos up to `depends_on`.
    ///
    /// A write-set that depends on a held one is left to the holding thread, which returns soon: another thread would only
    /// wait with it.
    pub(crate) fn vacancies(&self, depends_on: Seqno) -> usize {
        let Some((worked, waited)) = self.means else { return usize::MAX };
        // Later write-sets wait, too: this pays off only if an awake thread takes it soon.
        let small = waited * HARDLY < worked && worked < WORTH;
        if small && self.extra == 0 && self.hands.iter().any(|seqno| *seqno <= depends_on) {
            return 0;
        }
        let shared = self.typical >= HAND_OFF || waited * HARDLY >= worked;
        let processors = if shared { self.processors as u64 } else { 1 };
        let more = processors * 2 * waited / worked.max(1);
        let limit = (processors as usize).saturating_add(more as usize).saturating_add(self.extra);
        limit.saturating_sub(self.hands.len())
    }
}

/// Time worked and waited.
fn nanos(spent: &Spent) -> (u64, u64) {
    let whole = (spent.worked + spent.waited).as_nanos();
    let part = |time: Duration| (time.as_nanos() * u128::from(MOST) / whole.max(u128::from(MOST))) as u64;
    (part(spent.worked), part(spent.waited))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After 10 µs of work.
    fn done(seqno: Seqno, waited: u64) -> Done {
        let (worked, waited) = (Duration::from_micros(10), Duration::from_micros(waited));
        Done { seqno, time: worked + waited, spent: Some(Spent { worked, waited }) }
    }

    /// Of two processors, with write-sets that do not wait.
    fn busy() -> ApplierPool {
        let mut pool = ApplierPool::new(2);
        pool.took(1);
        pool.back(&done(1, 0));
        pool
    }

    #[test]
    fn nobody_is_kept_from_work_before_something_is_known() {
        let mut pool = ApplierPool::new(2);
        (1..9).for_each(|seqno| pool.took(seqno));
        pool.back(&Done { seqno: 1, time: Duration::from_micros(9), spent: None });
        assert_eq!(pool.vacancies(0), usize::MAX);
    }

    #[test]
    fn pool_size_grows_with_wait_time() {
        let mut pool = busy();
        assert_eq!(pool.vacancies(0), 2);
        pool.took(2);
        pool.took(3);
        assert_eq!(pool.vacancies(0), 0);
        pool.back(&done(2, 0));
        assert_eq!(pool.vacancies(0), 1);
        pool.gone(3);
        let after = |waited| {
            let mut pool = busy();
            (0..200).for_each(|_| pool.back(&done(99, waited)));
            pool.vacancies(0)
        };
        // A lock for a moment, a quick disk, a slow one.
        assert_eq!([after(1), after(2), after(20)], [2, 2, 9]);
        assert!(after(100) >= 40 && after(2_000) >= 200);
        // The disk has become one that is waited for.
        let soon = (0..).take_while(|_| {
            pool.vacancies(0) < 20 && {
                pool.back(&done(99, 200));
                true
            }
        });
        assert!(soon.count() < 20);
        // One that waited for a lock for a minute is forgotten soon.
        let mut pool = busy();
        pool.back(&done(99, 60_000_000));
        let forgotten = (0..).take_while(|_| {
            pool.vacancies(0) > 2 && {
                pool.back(&done(99, 0));
                true
            }
        });
        assert!(forgotten.count() < 60);
    }

    #[test]
    fn short_write_sets_stay_on_one_thread() {
        let tiny = |seqno, worked, waited| {
            let (worked, waited) = (Duration::from_nanos(worked), Duration::from_nanos(waited));
            Done { seqno, time: worked + waited, spent: Some(Spent { worked, waited }) }
        };
        let mut pool = ApplierPool::new(8);
        (0..200).for_each(|_| pool.back(&tiny(99, 700, 0)));
        assert_eq!(pool.vacancies(0), 1);
        // One in ten is interrupted in the middle: they are short all the same.
        (0..200).for_each(|n| pool.back(&tiny(99, if n % 10 == 0 { 900_000 } else { 700 }, 0)));
        assert_eq!(pool.vacancies(0), 1);
        pool.took(5);
        assert_eq!(pool.vacancies(0), 0);
        // It is stuck: the others are not.
        pool.nudged();
        pool.nudged();
        assert_eq!(pool.vacancies(0), 1);
        pool.back(&tiny(5, 700, 0));
        // They wait, or have become long ones.
        let shared = |worked, waited| {
            let mut pool = ApplierPool::new(8);
            (0..200).for_each(|_| pool.back(&tiny(99, 700, 0)));
            (0..100).for_each(|_| pool.back(&tiny(99, worked, waited)));
            pool.vacancies(0)
        };
        assert!(shared(700, 2_000) > 20);
        assert_eq!(shared(20_000, 0), 8);
    }

    #[test]
    fn dependent_write_set_is_left_to_working_thread() {
        let mut pool = busy();
        pool.took(5);
        assert_eq!((pool.vacancies(4), pool.vacancies(5), pool.vacancies(7)), (1, 0, 0));
        pool.back(&done(5, 0));
        assert_eq!(pool.vacancies(7), 2);
        (0..20).for_each(|_| pool.back(&done(99, 200)));
        pool.took(8);
        assert!(pool.vacancies(9) > 10);
    }

    #[test]
    fn stuck_threads_do_not_block_the_pool() {
        let mut pool = busy();
        pool.took(5);
        pool.took(6);
        // The last one came back after the nudge before.
        pool.nudged();
        assert_eq!(pool.vacancies(0), 0);
        for seqno in 7..17 {
            pool.nudged();
            assert_eq!((pool.vacancies(0), pool.vacancies(seqno)), (1, 1), "independent or not");
            pool.took(seqno);
            assert_eq!(pool.vacancies(0), 0);
        }
        // They do at last: those who came in addition have nothing to do until as few are at work as before.
        for seqno in 5..15 {
            assert_eq!(pool.vacancies(0), 0);
            pool.back(&done(seqno, 0));
        }
        pool.back(&done(15, 0));
        assert_eq!(pool.vacancies(0), 1);
    }

    #[test]
    fn ended_thread_frees_its_slot() {
        let mut pool = busy();
        pool.took(5);
        pool.took(6);
        pool.gone(5);
        assert_eq!(pool.vacancies(0), 1);
        pool.gone(5);
        assert_eq!(pool.vacancies(0), 1);
    }
}
