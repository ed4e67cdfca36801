//! Waking the reactor from other threads, with a system call only if it really sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The reactor is running: it will look at [`Shared::state`] before it sleeps.
const AWAKE: u8 = 0;
/// The reactor is in `epoll_wait`, or about to be.
const SLEEPING: u8 = 1;
/// The reactor was woken since it last ran.
const NOTIFIED: u8 = 2;

#[derive(Debug)]
struct Shared {
    state: AtomicU8,
    mio: mio::Waker,
}

/// Wakes the reactor out of [`crate::Reactor::poll`]. Cheap to clone, and to use while the reactor is running anyway.
///
/// Items pushed to a queue before `wake` are visible to the reactor's thread when it drains the queue after the `poll`
/// that this call ends.
#[derive(Debug, Clone)]
pub struct Waker(Arc<Shared>);

impl Waker {
    pub(crate) fn new(mio: mio::Waker) -> Waker {
        Waker(Arc::new(Shared { state: AtomicU8::new(AWAKE), mio }))
    }

    /// Makes the current or the next `poll` return promptly.
    pub fn wake(&self) {
        if self.0.state.swap(NOTIFIED, Ordering::AcqRel) == SLEEPING {
            // Fails only if the eventfd's counter is full, and then the reactor wakes all the same.
            let _ = self.0.mio.wake();
        }
    }

    /// Before `epoll_wait`: whether it may sleep. False after a call of [`Waker::wake`] meanwhile.
    pub(crate) fn may_sleep(&self) -> bool {
        self.0.state.compare_exchange(AWAKE, SLEEPING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// After `epoll_wait`.
    pub(crate) fn awake(&self) {
        self.0.state.swap(AWAKE, Ordering::AcqRel);
    }
}
