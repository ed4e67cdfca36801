//! The server's receiving threads, and the connection that ends when they have returned.

use crate::sync::lock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The interval at which [`Receivers::wait_until_closed`] calls its caller.
const POLL: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Default)]
pub(crate) struct Receivers {
    /// From `connect` to the last delivery.
    is_open: Mutex<bool>,
    /// Notified when `is_open` or `threads` changes.
    changed: Condvar,
    /// Threads in `recv`.
    threads: AtomicUsize,
    /// The server has been connected and has had no final view since.
    owes_final: AtomicBool,
    /// A receiving thread has disconnected the node after a failure.
    left_after_failure: AtomicBool,
    /// The server knows that it is synced, and of no loss of the majority since.
    synced: AtomicBool,
}

impl Receivers {
    /// Whether the server is connected, or `connect` is in progress.
    pub(crate) fn is_open(&self) -> bool {
        *lock(&self.is_open)
    }

    /// `connect` begins.
    pub(crate) fn open(&self) {
        *lock(&self.is_open) = true;
        self.owes_final.store(true, Ordering::SeqCst);
    }

    /// `connect` has failed.
    pub(crate) fn open_failed(&self) {
        *lock(&self.is_open) = false;
        self.owes_final.store(false, Ordering::SeqCst);
    }

    /// No delivery follows.
    pub(crate) fn close(&self) {
        let mut is_open = lock(&self.is_open);
        if std::mem::take(&mut *is_open) {
            self.changed.notify_all();
        }
    }

    /// A thread enters `recv`.
    pub(crate) fn enter(&self) {
        self.threads.fetch_add(1, Ordering::SeqCst);
    }

    /// A thread is about to return from `recv`. Returns whether it is the last one and the server still needs its final
    /// view.
    pub(crate) fn leave(&self) -> bool {
        let is_last = self.threads.fetch_sub(1, Ordering::SeqCst) == 1;
        is_last && self.take_final()
    }

    /// As [`Receivers::leave`], at the server's request; `false` if it is the last thread, which must stay.
    pub(crate) fn leave_on_request(&self) -> bool {
        let fewer = |n: usize| (n > 1).then(|| n - 1);
        self.threads.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok()
    }

    /// A thread has left.
    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Whether the server still needs its final view. The caller shows it now.
    pub(crate) fn take_final(&self) -> bool {
        self.owes_final.swap(false, Ordering::SeqCst)
    }

    /// The server gets its final view now.
    pub(crate) fn final_view_comes(&self) {
        self.owes_final.store(false, Ordering::SeqCst);
    }

    /// This member has failed. Returns whether the caller is the thread to disconnect the node.
    pub(crate) fn must_leave(&self) -> bool {
        !self.left_after_failure.swap(true, Ordering::AcqRel)
    }

    /// The server has been told that it is synced, or has lost its majority since.
    pub(crate) fn set_synced(&self, synced: bool) {
        let _is_open = lock(&self.is_open);
        self.synced.store(synced, Ordering::Release);
        self.changed.notify_all();
    }

    /// Whether the server takes queries.
    pub(crate) fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }

    /// Waits until the server takes no queries. Returns whether that was before `until`.
    pub(crate) fn wait_until_refusing(&self, until: Instant) -> bool {
        let mut is_open = lock(&self.is_open);
        while self.is_synced() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(is_open, left);
            is_open = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Waits until the connection is closed or all threads have returned, and closes it. Calls `poll` now and then.
    /// Returns whether this happened before `until`.
    pub(crate) fn wait_until_closed(&self, until: Instant, mut poll: impl FnMut()) -> bool {
        let mut in_time = true;
        let mut is_open = lock(&self.is_open);
        while *is_open && self.threads.load(Ordering::SeqCst) > 0 {
            let left = until.saturating_duration_since(Instant::now());
            in_time = !left.is_zero();
            if !in_time {
                break;
            }
            poll();
            let waited = self.changed.wait_timeout(is_open, left.min(POLL));
            is_open = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *is_open = false;
        in_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_thread_stays_on_request_and_owes_final_view() {
        let receivers = Receivers::default();
        receivers.open();
        receivers.enter();
        receivers.enter();
        assert!(receivers.leave_on_request() && !receivers.leave_on_request());
        assert!(receivers.leave(), "the server has had no final view");
        receivers.enter();
        assert!(!receivers.leave(), "once only");
        assert!(receivers.must_leave() && !receivers.must_leave());
    }

    #[test]
    fn confirmation_waits_until_server_refuses_queries_or_timeout() {
        let receivers = Receivers::default();
        let now = Instant::now();
        assert!(receivers.wait_until_refusing(now), "never synced");
        receivers.set_synced(true);
        assert!(!receivers.wait_until_refusing(now), "it takes queries");
        let later = now + Duration::from_secs(60);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| receivers.wait_until_refusing(later));
            receivers.set_synced(false);
            assert!(waiter.join().unwrap());
        });
        assert!(Instant::now() < later);
    }

    #[test]
    fn disconnect_waits_for_last_thread_or_timeout() {
        let receivers = Receivers::default();
        receivers.open();
        let now = Instant::now();
        assert!(receivers.wait_until_closed(now, || ()), "no thread");
        assert!(!receivers.is_open());
        receivers.open();
        receivers.enter();
        assert!(!receivers.wait_until_closed(now, || ()), "a thread stays");
        receivers.open();
        let mut polls = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                receivers.close();
            });
            assert!(receivers.wait_until_closed(now + Duration::from_secs(30), || polls += 1));
        });
        assert!(polls > 0);
    }
}
