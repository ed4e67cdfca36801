//! What waits to be taken by the front end's threads.

use crate::api::Delivery;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

#[derive(Default)]
struct Inner {
    items: VecDeque<Delivery>,
    closed: bool,
    /// One that is to be handled alone has been taken, and is not handled yet.
    alone: bool,
    waiting: usize,
}

/// First in, first out; many takers. Its length is bounded by its one filler, which stops at [`Deliveries::full`].
#[derive(Default)]
pub(crate) struct Deliveries {
    inner: Mutex<Inner>,
    wake: Condvar,
    len: AtomicUsize,
    bytes: AtomicUsize,
}

/// Beyond this many the engine stops delivering: the rest stays in the log.
const LIMIT: usize = 16 * 1024;
/// Or bytes.
const BYTES: usize = 64 << 20;

fn size(delivery: &Delivery) -> usize {
    match delivery {
        Delivery::Ordered(ordered) => ordered.writeset.data.len(),
        _ => 0,
    }
}

impl Deliveries {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn open(&self) {
        let mut inner = self.lock();
        inner.items.clear();
        self.bytes.store(0, Ordering::Relaxed);
        inner.closed = false;
        inner.alone = false;
        self.len.store(0, Ordering::Relaxed);
    }

    /// Adds a batch: one lock, and no more wake-ups than items.
    pub(crate) fn push(&self, batch: &mut Vec<Delivery>) {
        if batch.is_empty() {
            return;
        }
        let mut inner = self.lock();
        let n = batch.len();
        self.bytes.fetch_add(batch.iter().map(size).sum(), Ordering::Relaxed);
        inner.items.extend(batch.drain(..));
        self.len.store(inner.items.len(), Ordering::Relaxed);
        let wake = n.min(inner.waiting);
        drop(inner);
        for _ in 0..wake {
            self.wake.notify_one();
        }
    }

    /// Ends it: what is in it is still taken, then everyone gets [`Delivery::Closed`].
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_all();
    }

    /// What was taken last and is to be handled alone has been.
    pub(crate) fn handled(&self) {
        self.lock().alone = false;
        self.wake.notify_all();
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Bytes of write-sets in it.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn is_half_full(&self) -> bool {
        self.len() == LIMIT / 2
    }

    pub(crate) fn full(&self) -> bool {
        self.len() >= LIMIT || self.bytes.load(Ordering::Relaxed) >= BYTES
    }

    /// The next one. `None` after `timeout`.
    pub(crate) fn next(&self, timeout: Option<Duration>) -> Option<Delivery> {
        let until = timeout.map(|t| Instant::now() + t);
        let mut inner = self.lock();
        loop {
            if !inner.alone
                && let Some(item) = inner.items.pop_front()
            {
                inner.alone = !matches!(item, Delivery::Ordered(_) | Delivery::Closed);
                self.len.store(inner.items.len(), Ordering::Relaxed);
                self.bytes.fetch_sub(size(&item), Ordering::Relaxed);
                return Some(item);
            }
            if inner.closed && inner.items.is_empty() && !inner.alone {
                return Some(Delivery::Closed);
            }
            inner.waiting += 1;
            inner = match until {
                None => self.wake.wait(inner).unwrap_or_else(|poisoned| poisoned.into_inner()),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        inner.waiting -= 1;
                        return None;
                    }
                    self.wake.wait_timeout(inner, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0
                }
            };
            inner.waiting -= 1;
        }
    }
}
