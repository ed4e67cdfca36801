//! Answers between threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// An answer that another thread waits for.
#[derive(Debug)]
pub(crate) struct Reply<T> {
    slot: Mutex<Option<T>>,
    wake: Condvar,
    abandoned: AtomicBool,
}

impl<T> Reply<T> {
    pub(crate) fn new() -> Arc<Reply<T>> {
        Arc::new(Reply { slot: Mutex::new(None), wake: Condvar::new(), abandoned: AtomicBool::new(false) })
    }

    pub(crate) fn set(&self, value: T) {
        *self.slot.lock().unwrap_or_else(|p| p.into_inner()) = Some(value);
        self.wake.notify_all();
    }

    /// The waiting thread gives up; returns the answer if it is there.
    pub(crate) fn give_up(&self) -> Option<T> {
        let mut slot = self.slot.lock().unwrap_or_else(|p| p.into_inner());
        self.abandoned.store(true, Ordering::Release);
        slot.take()
    }

    /// Passes the reply to the waiting thread. Returns false if no thread waits.
    pub(crate) fn offer(&self, value: T) -> bool {
        let mut slot = self.slot.lock().unwrap_or_else(|p| p.into_inner());
        if self.abandoned.load(Ordering::Acquire) {
            return false;
        }
        *slot = Some(value);
        self.wake.notify_all();
        true
    }

    pub(crate) fn wait(&self, timeout: Duration) -> Option<T> {
        self.wait_and(timeout, timeout, || {})
    }

    /// As `wait`; calls `look` after each `pause` without an answer.
    pub(crate) fn wait_and(&self, timeout: Duration, pause: Duration, look: impl Fn()) -> Option<T> {
        let until = Instant::now() + timeout;
        let mut slot = self.slot.lock().unwrap_or_else(|p| p.into_inner());
        loop {
            if let Some(value) = slot.take() {
                return Some(value);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let (guard, waited) =
                self.wake.wait_timeout(slot, left.min(pause)).unwrap_or_else(|p| p.into_inner());
            slot = guard;
            if waited.timed_out() {
                look();
            }
        }
    }
}
