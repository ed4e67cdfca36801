//! Commit order, the finished prefix, and the gate that `pause` closes.
//!
//! Three questions, three structures. [`CommitOrder`]: is it this seqno's turn? Strictly one after the other.
//! [`Finished`]: has everything up to a seqno finished in the server? [`Gate`]: may this seqno start at all?
//!
//! In each a waiting thread parks on its own flag and is woken once, by the thread that makes its condition true. Wake-ups go
//! out in the order of seqnos and after the lock is released. No lock is held while a thread waits or calls out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Why a wait ended without its condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// Somebody raised the waiter's [`Interrupt`].
    Interrupted,
    /// The time is over.
    TimedOut,
    /// The node has failed, or leaves: this turn will not come any more.
    Failed,
}

/// The lock, whatever happened to its last holder: nothing in this module can panic half-way through a change.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A parked thread, and whether its condition has come true.
struct Waiter {
    thread: Thread,
    go: AtomicBool,
}

impl Waiter {
    fn new() -> Arc<Waiter> {
        Arc::new(Waiter { thread: std::thread::current(), go: AtomicBool::new(false) })
    }

    fn wake(&self) {
        self.go.store(true, Ordering::Release);
        self.thread.unpark();
    }

    /// Parks until woken, interrupted, failed or late.
    fn wait(
        &self,
        failed: impl Fn() -> bool,
        interrupt: Option<&Interrupt>,
        patience: Option<Duration>,
    ) -> Result<(), Stop> {
        let until = patience.map(|patience| Instant::now() + patience);
        if let Some(interrupt) = interrupt {
            interrupt.arm(&self.thread);
        }
        let result = loop {
            if self.go.load(Ordering::Acquire) {
                break Ok(());
            }
            if failed() {
                break Err(Stop::Failed);
            }
            if interrupt.is_some_and(Interrupt::is_raised) {
                break Err(Stop::Interrupted);
            }
            match until {
                None => std::thread::park(),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break Err(Stop::TimedOut);
                    }
                    std::thread::park_timeout(left);
                }
            }
        };
        if let Some(interrupt) = interrupt {
            interrupt.disarm();
        }
        result
    }
}

/// How another thread makes a wait end early. Raised once and for all.
#[derive(Default, Debug)]
pub(crate) struct Interrupt {
    raised: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Interrupt {
    /// Ends the wait under way, or the next one. Never blocks.
    pub(crate) fn raise(&self) {
        self.raised.store(true, Ordering::SeqCst);
        if let Some(thread) = &*lock(&self.thread) {
            thread.unpark();
        }
    }

    /// Whether it is raised.
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    fn arm(&self, thread: &Thread) {
        *lock(&self.thread) = Some(thread.clone());
    }

    fn disarm(&self) {
        *lock(&self.thread) = None;
    }
}

/// The seqnos whose turn will not come any more.
struct Ended {
    /// Nobody's.
    all: AtomicBool,
    /// All seqnos above this one: those begun before this member began to leave still end.
    above: AtomicI64,
}

impl Default for Ended {
    fn default() -> Ended {
        Ended { all: AtomicBool::new(false), above: AtomicI64::new(i64::MAX) }
    }
}

impl Ended {
    fn has(&self, seqno: i64) -> bool {
        self.all.load(Ordering::SeqCst) || seqno > self.above.load(Ordering::SeqCst)
    }

    fn reset(&self) {
        self.all.store(false, Ordering::SeqCst);
        self.above.store(i64::MAX, Ordering::SeqCst);
    }
}

const SHARDS: usize = 64;

/// Waiting threads with the seqno that each waits for.
type Waiters = Mutex<Vec<(i64, Arc<Waiter>)>>;

/// So few before a seqno are worth a wait without parking,
const SOON: i64 = 4;
/// which is no longer than this.
const SHORT: Duration = Duration::from_micros(50);

/// The turn to commit: seqno after seqno, none left out.
///
/// **Invariant:** `left` grows by one at a time, by the one whose turn it is, but for [`CommitOrder::reset`], which is
/// called while nobody is inside.
pub(crate) struct CommitOrder {
    /// The last that has had its turn.
    left: AtomicI64,
    /// The highest that has asked for its turn (for statistics).
    asked: AtomicI64,
    shards: [Waiters; SHARDS],
    ended: Ended,
    /// Turns asked for, and the sum of their distances to `left`.
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

    /// The last that has had its turn.
    pub(crate) fn left(&self) -> i64 {
        self.left.load(Ordering::SeqCst)
    }

    /// How many were under way, at the mean, when a turn was asked for.
    pub(crate) fn mean_window(&self) -> f64 {
        match self.entered.load(Ordering::Relaxed) {
            0 => 0.0,
            entered => self.window.load(Ordering::Relaxed) as f64 / entered as f64,
        }
    }

    /// Sets it back.
    pub(crate) fn reset_counts(&self) {
        self.entered.store(0, Ordering::Relaxed);
        self.window.store(0, Ordering::Relaxed);
    }

    fn shard(&self, seqno: i64) -> &Waiters {
        &self.shards[seqno.rem_euclid(SHARDS as i64) as usize]
    }

    /// Waits until it is the turn of `seqno`. One whose turn is over already passes.
    ///
    /// An interrupted one has not lost its turn: nobody overtakes it.
    pub(crate) fn enter(
        &self,
        seqno: i64,
        interrupt: Option<&Interrupt>,
        patience: Option<Duration>,
    ) -> Result<(), Stop> {
        let left = self.left();
        let asked = self.asked.fetch_max(seqno, Ordering::Relaxed).max(seqno);
        self.entered.fetch_add(1, Ordering::Relaxed);
        self.window.fetch_add(asked.saturating_sub(left).max(0) as u64, Ordering::Relaxed);
        // Appliers only, which nobody interrupts. A client's thread has its place among those that compute, and one that
        // gives the processor away there gets it back after all of them, while everybody waits for its turn to end.
        if left >= seqno - 1 || (interrupt.is_none() && self.comes_soon(seqno, left)) {
            return Ok(());
        }
        let waiter = Waiter::new();
        {
            let mut shard = lock(self.shard(seqno));
            // Under the lock: either the one before sees the waiter, or this sees that it has left.
            if self.left() >= seqno - 1 {
                return Ok(());
            }
            shard.push((seqno, waiter.clone()));
        }
        let result = waiter.wait(|| self.ended.has(seqno), interrupt, patience);
        if result.is_err() {
            lock(self.shard(seqno)).retain(|(_, other)| !Arc::ptr_eq(other, &waiter));
        }
        result
    }

    /// Whether its turn has come while this thread has let others run for the time of a short commit.
    ///
    /// Where few are before it, the turn mostly comes within that time, and to park and be woken costs both sides more
    /// than the commit. Whoever runs meanwhile on this processor may well be the one that is waited for.
    fn comes_soon(&self, seqno: i64, left: i64) -> bool {
        if seqno - 1 - left > SOON {
            return false;
        }
        let began = Instant::now();
        loop {
            std::thread::yield_now();
            if self.left() >= seqno - 1 {
                return true;
            }
            if began.elapsed() > SHORT {
                return false;
            }
        }
    }

    /// The turn of `seqno` is over. `false` where it was not its turn.
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

    /// A new position, while nobody is inside.
    pub(crate) fn reset(&self, position: i64) {
        self.ended.reset();
        self.leave_out(position);
    }

    /// Skips all seqnos up to here; none of them is in commit order. The recorded end stays.
    pub(crate) fn leave_out(&self, upto: i64) {
        self.left.store(upto, Ordering::SeqCst);
        self.asked.store(upto, Ordering::Relaxed);
        self.wake(upto + 1);
    }

    /// Ends all waits, now and later.
    pub(crate) fn fail(&self) {
        self.ended.all.store(true, Ordering::SeqCst);
        self.wake_all();
    }

    /// Ends the waits above this seqno, now and later.
    pub(crate) fn stop(&self, last: i64) {
        self.ended.above.store(last, Ordering::SeqCst);
        self.wake_all();
    }

    fn wake_all(&self) {
        for shard in &self.shards {
            let waiters: Vec<_> = lock(shard).iter().map(|(_, waiter)| waiter.thread.clone()).collect();
            waiters.iter().for_each(Thread::unpark);
        }
    }
}

#[derive(Default)]
struct FinishedInner {
    low: i64,
    /// Whether `low + 1 + i` has finished. Its first is never true.
    above: VecDeque<bool>,
    waiters: BTreeMap<(i64, u64), Arc<Waiter>>,
    next: u64,
}

/// Which seqnos have finished in the server: a prefix, and some above it.
pub(crate) struct Finished {
    /// Everything up to here has finished. Changes under the lock of `inner` only.
    low: AtomicI64,
    inner: Mutex<FinishedInner>,
    ended: Ended,
    /// How many have finished, and how many of them before one below them.
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

    /// Everything up to here has finished.
    pub(crate) fn low(&self) -> i64 {
        self.low.load(Ordering::SeqCst)
    }

    /// How many have finished since the last [`Finished::reset_counts`].
    pub(crate) fn count(&self) -> i64 {
        self.count.load(Ordering::Relaxed) as i64
    }

    /// How many of these finished before one below them.
    pub(crate) fn out_of_order(&self) -> i64 {
        self.out_of_order.load(Ordering::Relaxed) as i64
    }

    /// Sets both numbers back.
    pub(crate) fn reset_counts(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.out_of_order.store(0, Ordering::Relaxed);
    }

    /// `seqno` has finished. Returns the new end of the prefix where it has moved.
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
            // The common case: the next one.
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
        patience: Option<Duration>,
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
        let result = waiter.wait(|| self.ended.has(seqno), interrupt, patience);
        if result.is_err() {
            lock(&self.inner).waiters.remove(&key);
        }
        result
    }

    /// A new position, while nothing is under way.
    pub(crate) fn reset(&self, position: i64) {
        self.ended.reset();
        self.leave_out(position);
    }

    /// Counts all seqnos up to here as finished; none is under way. The recorded end stays.
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
        self.ended.all.store(true, Ordering::SeqCst);
        self.wake_all();
    }

    /// Ends the waits above this seqno, now and later.
    pub(crate) fn stop(&self, last: i64) {
        self.ended.above.store(last, Ordering::SeqCst);
        self.wake_all();
    }

    fn wake_all(&self) {
        let threads: Vec<_> =
            lock(&self.inner).waiters.values().map(|waiter| waiter.thread.clone()).collect();
        threads.iter().for_each(Thread::unpark);
    }
}

const OPEN: i64 = i64::MAX;

/// What `pause` closes: a seqno above the limit may not start to be applied or to commit.
///
/// The fast path is two atomic operations. `highest` is raised before `limit` is looked at, and [`Gate::close`] looks
/// at `highest` after it has shut `limit`: so every seqno is either counted in `highest`, and may pass, or sees the
/// gate closed.
pub(crate) struct Gate {
    highest: AtomicI64,
    limit: AtomicI64,
    waiters: Waiters,
    ended: Ended,
}

impl Gate {
    pub(crate) fn new(position: i64) -> Gate {
        Gate {
            highest: AtomicI64::new(position),
            limit: AtomicI64::new(OPEN),
            waiters: Mutex::new(Vec::new()),
            ended: Ended::default(),
        }
    }

    /// The highest seqno that has started.
    pub(crate) fn highest(&self) -> i64 {
        self.highest.load(Ordering::SeqCst)
    }

    /// Waits while the gate is closed for `seqno`.
    pub(crate) fn pass(
        &self,
        seqno: i64,
        interrupt: Option<&Interrupt>,
        patience: Option<Duration>,
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
            if let Err(stop) = waiter.wait(|| self.ended.has(seqno), interrupt, patience) {
                lock(&self.waiters).retain(|(_, other)| !Arc::ptr_eq(other, &waiter));
                return Err(stop);
            }
        }
    }

    /// Closes it. Returns the last seqno that may pass: once it has finished, nothing moves.
    pub(crate) fn close(&self) -> i64 {
        self.limit.store(i64::MIN, Ordering::SeqCst);
        let last = self.highest();
        self.set_limit(last);
        last
    }

    /// The last seqno that starts in this connection, once it is known.
    pub(crate) fn last(&self) -> i64 {
        self.ended.above.load(Ordering::SeqCst)
    }

    /// All up to this one may pass.
    pub(crate) fn until(&self, seqno: i64) {
        self.set_limit(seqno);
    }

    /// Opens it.
    pub(crate) fn open(&self) {
        self.set_limit(OPEN);
    }

    /// Whether it is closed.
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

    /// A new position, while nothing is under way. Leaves it closed where it is.
    pub(crate) fn reset(&self, position: i64) {
        self.highest.store(position, Ordering::SeqCst);
        self.ended.reset();
    }

    /// Ends all waits, now and later.
    pub(crate) fn fail(&self) {
        self.ended.all.store(true, Ordering::SeqCst);
        self.wake_all();
    }

    /// Refuses all waiting and later seqnos. Returns the last seqno that has started, or that may start because a later one
    /// has.
    pub(crate) fn stop(&self) -> i64 {
        let limit = self.limit.load(Ordering::SeqCst);
        let last = if limit == OPEN { self.close() } else { limit };
        self.ended.above.store(last, Ordering::SeqCst);
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
    use std::sync::mpsc;

    /// Long enough that a thread that is to wait does wait; only makes a broken monitor be found, never a sound one
    /// fail.
    const SHORT: Duration = Duration::from_millis(30);

    #[test]
    fn turns_come_in_order_whoever_asks_first() {
        let order = Arc::new(CommitOrder::new(10));
        let (tell, told) = mpsc::channel();
        let threads: Vec<_> = (11..=42)
            .rev()
            .map(|seqno| {
                let (order, tell) = (order.clone(), tell.clone());
                std::thread::spawn(move || {
                    order.enter(seqno, None, None).unwrap();
                    tell.send(seqno).unwrap();
                    assert!(order.leave(seqno));
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(told.try_iter().collect::<Vec<_>>(), (11..=42).collect::<Vec<_>>());
        assert_eq!(order.left(), 42);
        assert!(!order.leave(44), "a turn that has not come cannot end");
    }

    #[test]
    fn interrupted_wait_keeps_its_turn() {
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
    fn failed_commit_order_refuses_all_waits() {
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

    #[test]
    fn finished_prefix_grows_over_earlier_finishes() {
        let finished = Finished::new(4);
        assert_eq!(finished.finish(6), None);
        assert_eq!(finished.finish(7), None);
        assert_eq!(finished.finish(9), None);
        assert_eq!(finished.low(), 4);
        assert_eq!(finished.finish(5), Some(7));
        assert_eq!(finished.finish(5), None, "twice does not count");
        assert_eq!(finished.finish(8), Some(9));
        assert_eq!(finished.low(), 9);
    }

    #[test]
    fn prefix_wait_ends_by_prefix_or_timeout() {
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

    #[test]
    fn closed_gate_reports_passed_seqno_and_stops_rest() {
        let gate = Arc::new(Gate::new(0));
        gate.pass(3, None, None).unwrap();
        assert_eq!(gate.close(), 3);
        gate.pass(2, None, None).unwrap();
        let waiting = {
            let gate = gate.clone();
            std::thread::spawn(move || gate.pass(4, None, None))
        };
        let interrupt = Interrupt::default();
        interrupt.raise();
        assert_eq!(gate.pass(5, Some(&interrupt), None), Err(Stop::Interrupted));
        std::thread::sleep(SHORT);
        assert!(!waiting.is_finished());
        gate.open();
        waiting.join().unwrap().unwrap();
    }

    #[test]
    fn many_threads_in_all_three_lose_no_wake_up() {
        let order = Arc::new(CommitOrder::new(0));
        let finished = Arc::new(Finished::new(0));
        let gate = Arc::new(Gate::new(0));
        const THREADS: i64 = 8;
        const EACH: i64 = 400;
        let threads: Vec<_> = (0..THREADS)
            .map(|n| {
                let (order, finished, gate) = (order.clone(), finished.clone(), gate.clone());
                std::thread::spawn(move || {
                    for round in 0..EACH {
                        let seqno = round * THREADS + n + 1;
                        gate.pass(seqno, None, None).unwrap();
                        finished.wait(seqno - THREADS / 2, None, None).unwrap();
                        order.enter(seqno, None, None).unwrap();
                        assert!(order.leave(seqno));
                        finished.finish(seqno);
                    }
                })
            })
            .collect();
        for _ in 0..20 {
            let last = gate.close();
            finished.wait(last, None, None).unwrap();
            assert_eq!(finished.low(), last, "nothing above the gate's limit has moved");
            assert_eq!(order.left(), last);
            gate.open();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((order.left(), finished.low()), (THREADS * EACH, THREADS * EACH));
    }
}
