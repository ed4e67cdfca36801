//! Waiting threads: a parked thread is woken once, by the thread that makes its condition true.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Locks `mutex`, even if it is poisoned: no change under a lock of this crate can panic half-way.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The reason why a wait ended before its condition came true.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// Another thread raised the waiter's [`Interrupt`].
    Interrupted,
    /// The timeout has passed.
    TimedOut,
    /// The node has failed or leaves: the condition will not come true.
    Failed,
}

/// A parked thread, and whether its condition has come true.
pub(crate) struct Waiter {
    pub(crate) thread: Thread,
    go: AtomicBool,
}

impl Waiter {
    pub(crate) fn new() -> Arc<Waiter> {
        Arc::new(Waiter { thread: std::thread::current(), go: AtomicBool::new(false) })
    }

    pub(crate) fn wake(&self) {
        self.go.store(true, Ordering::Release);
        self.thread.unpark();
    }

    /// Parks until woken, interrupted, failed or timed out.
    pub(crate) fn wait(
        &self,
        failed: impl Fn() -> bool,
        interrupt: Option<&Interrupt>,
        timeout: Option<Duration>,
    ) -> Result<(), Stop> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
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

/// Ends the waits of a thread early. Once raised, it stays raised.
#[derive(Default, Debug)]
pub(crate) struct Interrupt {
    raised: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Interrupt {
    /// Ends the current wait, or the next one. Never blocks.
    pub(crate) fn raise(&self) {
        self.raised.store(true, Ordering::SeqCst);
        if let Some(thread) = &*lock(&self.thread) {
            thread.unpark();
        }
    }

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

/// The seqnos whose waits end because the node has failed or leaves.
///
/// A component sets it and then wakes its waiting threads, which find it set.
pub(crate) struct Ended {
    /// The node has failed.
    all: AtomicBool,
    /// The node leaves: only seqnos up to this one, which had started, may still finish.
    above: AtomicI64,
}

impl Default for Ended {
    fn default() -> Ended {
        Ended { all: AtomicBool::new(false), above: AtomicI64::new(i64::MAX) }
    }
}

impl Ended {
    pub(crate) fn has(&self, seqno: i64) -> bool {
        self.all.load(Ordering::SeqCst) || seqno > self.above.load(Ordering::SeqCst)
    }

    pub(crate) fn reset(&self) {
        self.all.store(false, Ordering::SeqCst);
        self.above.store(i64::MAX, Ordering::SeqCst);
    }

    /// Ends all waits.
    pub(crate) fn end_all(&self) {
        self.all.store(true, Ordering::SeqCst);
    }

    /// Ends the waits above `last`.
    pub(crate) fn end_above(&self, last: i64) {
        self.above.store(last, Ordering::SeqCst);
    }

    /// The last seqno whose waits go on.
    pub(crate) fn last(&self) -> i64 {
        self.above.load(Ordering::SeqCst)
    }
}

/// Waiting threads, each with its seqno.
pub(crate) type Waiters = Mutex<Vec<(i64, Arc<Waiter>)>>;
