//! Two threads that can do each other's work.
//!
//! A commit that has little company is as fast as the hand-offs on its way are few. So `ls-node` writes and syncs the log
//! itself where not many come together, instead of handing over to `ls-log` and being called back. But it must never
//! hang in the disk: others would take the member for dead. So before it writes it leaves the node on the desk, and
//! `ls-log`, which looks every few milliseconds, takes it from there when the write lasts too long, and leaves its jobs
//! in its place: they have changed parts.
//!
//! Also here: the log, which whoever writes takes from the desk and lays back.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A write of `ls-node` may last so long before somebody takes its part.
pub(crate) const SWAP_AFTER: Duration = Duration::from_millis(20);

/// See the module. `L` is the log, `N` the node, `J` the jobs of `ls-log`.
pub(crate) struct RoleSwap<L, N, J> {
    inner: Mutex<Inner<L, N, J>>,
    /// The log has been laid back.
    log_back: Condvar,
}

struct Inner<L, N, J> {
    log: Option<L>,
    /// `ls-log` waits for it.
    awaited: bool,
    seat: Seat<N, J>,
    /// Somebody looks whether the node has been left for too long.
    watched: bool,
    /// How often it was announced that it would be.
    left: u64,
}

enum Seat<N, J> {
    Empty,
    /// The node, while its thread writes; and since when.
    Node(N, Instant),
    /// For him whose node was taken.
    Jobs(J),
}

impl<L, N, J> Inner<L, N, J> {
    /// Takes the node for the jobs, if it has been left for too long.
    fn change_parts(&mut self, jobs: J) -> Result<J, N> {
        match std::mem::replace(&mut self.seat, Seat::Empty) {
            Seat::Node(node, since) if since.elapsed() >= SWAP_AFTER => {
                self.seat = Seat::Jobs(jobs);
                Err(node)
            }
            other => {
                self.seat = other;
                Ok(jobs)
            }
        }
    }
}

/// The role that `ls-log` continues with.
#[derive(Debug)]
pub(crate) enum Part<L, N, J> {
    Log(L, J),
    /// The other one hangs.
    Node(N),
}

impl<L, N, J> RoleSwap<L, N, J> {
    pub(crate) fn new(log: L) -> RoleSwap<L, N, J> {
        RoleSwap {
            inner: Mutex::new(Inner {
                log: Some(log),
                awaited: false,
                seat: Seat::Empty,
                watched: false,
                left: 0,
            }),
            log_back: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<L, N, J>> {
        // Nothing in here calls out: a panic while the lock is held is impossible.
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// `ls-node` is about to leave the node: whether `ls-log` has to be told to [`RoleSwap::watch`].
    pub(crate) fn announce(&self) -> bool {
        let mut inner = self.lock();
        inner.left += 1;
        !std::mem::replace(&mut inner.watched, true)
    }

    /// `ls-node` deposits the node and takes the log in order to write. Refuses (returns the node) if the log is in use, if
    /// `ls-log` is waiting for it (it would starve), or if the watchdog has already given up waiting.
    pub(crate) fn leave(&self, node: N) -> Result<L, N> {
        let mut inner = self.lock();
        if inner.awaited || !inner.watched {
            return Err(node);
        }
        let Some(log) = inner.log.take() else { return Err(node) };
        inner.seat = Seat::Node(node, Instant::now());
        Ok(log)
    }

    /// It has written: gets the node back, or, where that has been taken, the other one's jobs (which there are, if it
    /// has left the node before).
    pub(crate) fn back(&self, log: L) -> Result<N, Option<J>> {
        let mut inner = self.lock();
        let seat = std::mem::replace(&mut inner.seat, Seat::Empty);
        self.lay_back(inner, log);
        match seat {
            Seat::Node(node, _) => Ok(node),
            Seat::Jobs(jobs) => Err(Some(jobs)),
            Seat::Empty => Err(None),
        }
    }

    /// `ls-log` takes the log for its next batch.
    pub(crate) fn take(&self, mut jobs: J) -> Part<L, N, J> {
        let mut inner = self.lock();
        loop {
            inner.awaited = false;
            if let Some(log) = inner.log.take() {
                return Part::Log(log, jobs);
            }
            jobs = match inner.change_parts(jobs) {
                Ok(jobs) => jobs,
                Err(node) => return Part::Node(node),
            };
            inner.awaited = true;
            let left = match &inner.seat {
                Seat::Node(_, since) => SWAP_AFTER.saturating_sub(since.elapsed()),
                _ => SWAP_AFTER,
            };
            inner = match self.log_back.wait_timeout(inner, left) {
                Ok((inner, _)) => inner,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// And lays it back.
    pub(crate) fn put(&self, log: L) {
        self.lay_back(self.lock(), log);
    }

    fn lay_back(&self, mut inner: MutexGuard<'_, Inner<L, N, J>>, log: L) {
        inner.log = Some(log);
        let awaited = inner.awaited;
        drop(inner);
        if awaited {
            self.log_back.notify_one();
        }
    }

    /// `ls-log` has nothing to do, and looks whether the other one hangs.
    pub(crate) fn watch(&self, jobs: J) -> Result<J, N> {
        self.lock().change_parts(jobs)
    }

    /// How often it was announced that the node is left.
    pub(crate) fn left(&self) -> u64 {
        self.lock().left
    }

    /// `ls-log` stops looking, if the node has not been left more often than this.
    pub(crate) fn unwatch(&self, left: u64) -> bool {
        let mut inner = self.lock();
        let idle = inner.left == left && !matches!(inner.seat, Seat::Node(..));
        // Who announces it from now on tells `ls-log` to watch, for he sees that nobody does.
        inner.watched &= !idle;
        idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Test = RoleSwap<&'static str, u32, &'static str>;

    #[test]
    fn short_write_returns_role_to_its_thread() {
        let desk = Test::new("log");
        assert_eq!(desk.leave(7).unwrap_err(), 7, "nobody looks");
        assert!(desk.announce());
        let log = desk.leave(7).unwrap();
        assert_eq!(desk.leave(8).unwrap_err(), 8, "the log is in use");
        assert_eq!(desk.watch("jobs"), Ok("jobs"), "not long enough");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| desk.take("jobs"));
            assert_eq!(desk.back(log), Ok(7));
            assert!(matches!(other.join().unwrap(), Part::Log("log", "jobs")));
        });
        assert_eq!(desk.leave(7).unwrap_err(), 7);
        desk.put("log");
        desk.leave(7).unwrap();
    }

    #[test]
    fn hanging_thread_continues_with_the_other_role() {
        for waits_for_log in [false, true] {
            let desk = Test::new("log");
            desk.announce();
            let log = desk.leave(7).unwrap();
            match waits_for_log {
                true => assert!(matches!(desk.take("jobs"), Part::Node(7))),
                false => {
                    std::thread::sleep(SWAP_AFTER);
                    assert_eq!(desk.watch("jobs"), Err(7));
                }
            }
            assert_eq!(desk.leave(8).unwrap_err(), 8, "whoever is the node now cannot write");
            assert_eq!(desk.back(log), Err(Some("jobs")));
            assert!(matches!(desk.take("jobs"), Part::Log("log", "jobs")));
        }
    }

    #[test]
    fn waiting_log_thread_is_not_starved() {
        let desk = Test::new("log");
        desk.announce();
        let log = desk.leave(7).unwrap();
        // As in `take`.
        desk.lock().awaited = true;
        assert_eq!(desk.back(log), Ok(7));
        assert_eq!(desk.leave(7).unwrap_err(), 7, "whether the other one has the processor by now or not");
        assert!(matches!(desk.take("jobs"), Part::Log("log", "jobs")));
        desk.put("log");
        desk.leave(7).unwrap();
    }

    #[test]
    fn nobody_stops_looking_unseen() {
        let desk = Test::new("log");
        assert!(desk.announce(), "nobody looks yet");
        assert!(!desk.announce());
        assert!(!desk.unwatch(1), "once more meanwhile");
        assert!(!desk.announce());
        desk.leave(7).unwrap();
        assert!(!desk.unwatch(3), "it is writing");
        assert_eq!(desk.back("log"), Ok(7));
        assert!(desk.unwatch(3));
        assert_eq!(desk.leave(7).unwrap_err(), 7, "announced long ago");
        assert!(desk.announce());
    }
}
