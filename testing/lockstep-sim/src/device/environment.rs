//! The environment of a simulated copy: its clock stands between two steps, and nothing runs beside it.

use crate::rng::Rng;
use lockstep_block::device::environment::{Environment, Sleep};
use lockstep_core::Micros;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Only differences of times count, so any beginning will do.
static BEGINNING: OnceLock<Instant> = OnceLock::new();

#[derive(Debug, Default)]
struct Times {
    now: AtomicU64,
    wall: AtomicU64,
}

/// Work for other threads.
#[derive(Default)]
struct Work(Mutex<Vec<Box<dyn FnOnce() + Send>>>);

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Work")
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct SimEnvironment {
    times: Arc<Times>,
    work: Work,
}

impl SimEnvironment {
    /// Sets the time.
    pub(super) fn set(&self, now: Micros, wall: Micros) {
        self.times.now.store(now, Ordering::Relaxed);
        self.times.wall.store(wall, Ordering::Relaxed);
    }

    /// Runs one piece of work of those that wait. Returns whether there was one.
    pub(super) fn work(&self, rng: &mut Rng) -> bool {
        let mut waiting = self.work.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.is_empty() {
            return false;
        }
        let at = rng.below(waiting.len() as u64) as usize;
        let work = waiting.remove(at);
        drop(waiting);
        work();
        true
    }
}

/// Is ready from a time on. The world polls all tasks again and again.
struct Until(Arc<Times>, Micros);

impl Future for Until {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.0.now.load(Ordering::Relaxed) >= self.1 { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Environment for SimEnvironment {
    fn now(&self) -> Instant {
        let now = Duration::from_micros(self.times.now.load(Ordering::Relaxed));
        *BEGINNING.get_or_init(Instant::now) + now
    }

    fn wall(&self) -> u64 {
        self.times.wall.load(Ordering::Relaxed)
    }

    fn sleep(&self, time: Duration) -> Sleep {
        let until = self.times.now.load(Ordering::Relaxed) + time.as_micros() as Micros;
        Box::pin(Until(self.times.clone(), until))
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        self.work.0.lock().unwrap_or_else(PoisonError::into_inner).push(work);
    }
}
