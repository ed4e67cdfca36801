//! Time and threads, as a replica uses them.
//!
//! [`System`] is the real environment. The simulator has another: its clock runs as the simulator wants, and nothing runs beside
//! it.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;

/// A wait for some time.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// See the module's documentation.
pub trait Environment: Debug + Send + Sync + 'static {
    /// The time, by a clock that nobody sets.
    fn now(&self) -> Instant;

    /// µs since 1970, for people.
    fn wall(&self) -> u64;

    /// Waits for this time. Called in a task.
    fn sleep(&self, time: Duration) -> Sleep;

    /// Runs work that waits for a disk, on another thread than the tasks. Called in a task.
    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>);
}

/// The machine's clock, and the threads of the present tokio runtime.
#[derive(Clone, Copy, Debug)]
pub struct System;

impl Environment for System {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wall(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64)
    }

    fn sleep(&self, time: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(time))
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        drop(tokio::task::spawn_blocking(work));
    }
}

/// Runs work that waits for a disk. `None`: it was interrupted.
pub(super) async fn blocking<T: Send + 'static>(
    environment: &dyn Environment,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, done) = oneshot::channel();
    environment.spawn_blocking(Box::new(move || {
        // Without a receiver, nobody waits for the result any more.
        let _ = sender.send(work());
    }));
    done.await.ok()
}

/// Waits for `event`, but no longer than this time.
pub(super) async fn wait(environment: &dyn Environment, time: Duration, event: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = event => {}
        () = environment.sleep(time) => {}
    }
}
