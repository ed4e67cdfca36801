//! Lets `ls-node` write the log itself without the risk of hanging in the disk.
//!
//! A hand-over to `ls-log` and back costs two context switches. A lone small write is faster if `ls-node` writes and syncs
//! it. But a disk may hang, and other members would take this one for dead. So before `ls-node` writes, it deposits the
//! node here. `ls-log` checks every few milliseconds. If the write takes longer than [`SWAP_AFTER`], `ls-log` takes the
//! node, leaves its own jobs in exchange, and continues as `ls-node`. When the write ends, the first thread finds the jobs
//! and continues as `ls-log`.
//!
//! The log is kept here as well: whichever thread writes takes it and puts it back.
//!
//! Gain (2026-11-25, `bench cluster`, `oltp_update_index`, two processors): 6 % with one thread, 3 % with 16.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A write of `ls-node` may last this long before `ls-log` takes over the node.
pub(crate) const SWAP_AFTER: Duration = Duration::from_millis(20);

/// See the module's documentation. `L` is the log, `N` the node, `J` the jobs of `ls-log`.
pub(crate) struct RoleSwap<L, N, J> {
    inner: Mutex<Inner<L, N, J>>,
    /// The log has been put back.
    log_back: Condvar,
}

struct Inner<L, N, J> {
    log: Option<L>,
    /// `ls-log` waits for the log.
    log_awaited: bool,
    deposit: Deposit<N, J>,
    /// `ls-log` checks for a node that was deposited for too long.
    watched: bool,
    /// How many deposits were announced.
    announced: u64,
}

enum Deposit<N, J> {
    Empty,
    /// The node, while its thread writes, and since when.
    Node(N, Instant),
    /// The jobs of `ls-log`, for the thread whose node was taken.
    Jobs(J),
}

impl<L, N, J> Inner<L, N, J> {
    /// Takes the node in exchange for the jobs, if it has been deposited for too long.
    fn swap(&mut self, jobs: J) -> Result<J, N> {
        match std::mem::replace(&mut self.deposit, Deposit::Empty) {
            Deposit::Node(node, since) if since.elapsed() >= SWAP_AFTER => {
                self.deposit = Deposit::Jobs(jobs);
                Err(node)
            }
            other => {
                self.deposit = other;
                Ok(jobs)
            }
        }
    }
}

/// The role that `ls-log` continues with.
#[derive(Debug)]
pub(crate) enum Role<L, N, J> {
    /// `ls-log`, with the log and its jobs.
    Log(L, J),
    /// `ls-node`: the thread that deposited the node hangs in the disk.
    Node(N),
}

impl<L, N, J> RoleSwap<L, N, J> {
    pub(crate) fn new(log: L) -> RoleSwap<L, N, J> {
        RoleSwap {
            inner: Mutex::new(Inner {
                log: Some(log),
                log_awaited: false,
                deposit: Deposit::Empty,
                watched: false,
                announced: 0,
            }),
            log_back: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<L, N, J>> {
        // No code of others runs under the lock, so a poisoned lock holds valid state.
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// `ls-node` is about to deposit the node. Returns whether `ls-log` has to be told to check.
    pub(crate) fn announce(&self) -> bool {
        let mut inner = self.lock();
        inner.announced += 1;
        !std::mem::replace(&mut inner.watched, true)
    }

    /// `ls-node` deposits the node and takes the log in order to write.
    ///
    /// # Errors
    /// Returns the node if the log is in use, if `ls-log` waits for it (it would starve), or if `ls-log` has stopped
    /// checking.
    pub(crate) fn deposit(&self, node: N) -> Result<L, N> {
        let mut inner = self.lock();
        if inner.log_awaited || !inner.watched {
            return Err(node);
        }
        let Some(log) = inner.log.take() else { return Err(node) };
        inner.deposit = Deposit::Node(node, Instant::now());
        Ok(log)
    }

    /// `ls-node` has written: puts the log back and takes its node.
    ///
    /// # Errors
    /// The node was taken: returns the jobs of `ls-log`. They are there if the node had been deposited.
    pub(crate) fn take_back(&self, log: L) -> Result<N, Option<J>> {
        let mut inner = self.lock();
        let deposit = std::mem::replace(&mut inner.deposit, Deposit::Empty);
        self.put_back(inner, log);
        match deposit {
            Deposit::Node(node, _) => Ok(node),
            Deposit::Jobs(jobs) => Err(Some(jobs)),
            Deposit::Empty => Err(None),
        }
    }

    /// `ls-log` takes the log for its next batch, or the node if its thread hangs with the log.
    pub(crate) fn take_log(&self, mut jobs: J) -> Role<L, N, J> {
        let mut inner = self.lock();
        loop {
            inner.log_awaited = false;
            if let Some(log) = inner.log.take() {
                return Role::Log(log, jobs);
            }
            jobs = match inner.swap(jobs) {
                Ok(jobs) => jobs,
                Err(node) => return Role::Node(node),
            };
            inner.log_awaited = true;
            let left = match &inner.deposit {
                Deposit::Node(_, since) => SWAP_AFTER.saturating_sub(since.elapsed()),
                _ => SWAP_AFTER,
            };
            inner = match self.log_back.wait_timeout(inner, left) {
                Ok((inner, _)) => inner,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// `ls-log` puts the log back.
    pub(crate) fn put_log(&self, log: L) {
        self.put_back(self.lock(), log);
    }

    fn put_back(&self, mut inner: MutexGuard<'_, Inner<L, N, J>>, log: L) {
        debug_assert!(inner.log.is_none(), "there is one log");
        inner.log = Some(log);
        let awaited = inner.log_awaited;
        drop(inner);
        if awaited {
            self.log_back.notify_one();
        }
    }

    /// `ls-log` has no job, and checks whether the other thread hangs.
    ///
    /// # Errors
    /// It does: returns the node.
    pub(crate) fn check(&self, jobs: J) -> Result<J, N> {
        self.lock().swap(jobs)
    }

    /// How many deposits were announced.
    pub(crate) fn announced(&self) -> u64 {
        self.lock().announced
    }

    /// `ls-log` stops checking, unless more than `announced` deposits were announced. Returns whether it has stopped.
    pub(crate) fn stop_checking(&self, announced: u64) -> bool {
        let mut inner = self.lock();
        let idle = inner.announced == announced && !matches!(inner.deposit, Deposit::Node(..));
        // The next `announce` sees that nobody checks, and tells `ls-log`.
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
        let swap = Test::new("log");
        assert_eq!(swap.deposit(7).unwrap_err(), 7, "nobody checks");
        assert!(swap.announce());
        let log = swap.deposit(7).unwrap();
        assert_eq!(swap.deposit(8).unwrap_err(), 8, "the log is in use");
        assert_eq!(swap.check("jobs"), Ok("jobs"), "not long enough");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| swap.take_log("jobs"));
            assert_eq!(swap.take_back(log), Ok(7));
            assert!(matches!(other.join().unwrap(), Role::Log("log", "jobs")));
        });
        assert_eq!(swap.deposit(7).unwrap_err(), 7);
        swap.put_log("log");
        swap.deposit(7).unwrap();
    }

    #[test]
    fn hanging_thread_continues_with_the_other_role() {
        for waits_for_log in [false, true] {
            let swap = Test::new("log");
            swap.announce();
            let log = swap.deposit(7).unwrap();
            match waits_for_log {
                true => assert!(matches!(swap.take_log("jobs"), Role::Node(7))),
                false => {
                    std::thread::sleep(SWAP_AFTER);
                    assert_eq!(swap.check("jobs"), Err(7));
                }
            }
            assert_eq!(swap.deposit(8).unwrap_err(), 8, "whoever has the node now cannot write");
            assert_eq!(swap.take_back(log), Err(Some("jobs")));
            assert!(matches!(swap.take_log("jobs"), Role::Log("log", "jobs")));
        }
    }

    #[test]
    fn waiting_log_thread_is_not_starved() {
        let swap = Test::new("log");
        swap.announce();
        let log = swap.deposit(7).unwrap();
        // As in `take_log`.
        swap.lock().log_awaited = true;
        assert_eq!(swap.take_back(log), Ok(7));
        assert_eq!(swap.deposit(7).unwrap_err(), 7, "even if the other thread has no processor yet");
        assert!(matches!(swap.take_log("jobs"), Role::Log("log", "jobs")));
        swap.put_log("log");
        swap.deposit(7).unwrap();
    }

    #[test]
    fn check_ends_only_without_new_deposits() {
        let swap = Test::new("log");
        assert!(swap.announce(), "nobody checks yet");
        assert!(!swap.announce());
        assert!(!swap.stop_checking(1), "one more was announced meanwhile");
        assert!(!swap.announce());
        let log = swap.deposit(7).unwrap();
        assert!(!swap.stop_checking(3), "a write is under way");
        assert_eq!(swap.take_back(log), Ok(7));
        assert!(swap.stop_checking(3));
        assert_eq!(swap.deposit(7).unwrap_err(), 7, "announced long ago");
        assert!(swap.announce());
    }
}
