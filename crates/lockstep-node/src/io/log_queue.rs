//! The queue from `ls-node` to `ls-log`: a channel with one addition. While the receiver defers a sync, a job that may
//! wait as well does not wake it ([`Receiver::recv_urgent`]): the wake-up would cost more than the job.
//!
//! Gain of this addition (2026-11-25, `bench cluster`, `oltp_update_index`): 6 % with one thread, 11 % with 16.

use crate::effect::{ReadRequest, TrimLimits};
use lockstep_core::Index;
use lockstep_core::raft::WriteOp;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A job from `ls-node`.
pub(crate) enum LogJob {
    Write {
        op: Box<WriteOp>,
        /// No commit needs its sync: writes of the next [`SYNC_DEFERRAL`](crate::effect::SYNC_DEFERRAL) may share it.
        may_defer: bool,
        /// More is on its way, from threads that may be waiting for the processor.
        coalesce: bool,
    },
    /// A deferred sync is needed now.
    SyncNow,
    Read(ReadRequest),
    /// Whole segments may go.
    Trim(TrimLimits),
    /// The log is committed up to here: remembered on the disk.
    Hint(Index),
    /// `ls-node` begins to write itself: check whether it hangs.
    Check,
    Stop,
}

impl LogJob {
    /// Whether a deferred sync need not end for it.
    pub(crate) fn may_wait(&self) -> bool {
        matches!(self, LogJob::Write { may_defer: true, .. } | LogJob::Hint(_))
    }
}

/// The receiver is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Closed;

/// Why there is no job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoJob {
    /// None arrived in time.
    Timeout,
    /// The queue is empty and the sender is gone.
    Closed,
}

/// Which job wakes the receiver.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WakenBy {
    /// None: it is awake.
    None,
    Any,
    Urgent,
}

struct Inner {
    jobs: VecDeque<LogJob>,
    waken_by: WakenBy,
    has_sender: bool,
    has_receiver: bool,
}

struct Shared {
    inner: Mutex<Inner>,
    arrived: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code of others runs under the lock, so a poisoned lock holds valid state.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of `ls-node`.
pub(crate) struct Sender(Arc<Shared>);

/// The end of `ls-log`.
pub(crate) struct Receiver(Arc<Shared>);

/// Both ends.
pub(crate) fn channel() -> (Sender, Receiver) {
    let inner =
        Inner { jobs: VecDeque::new(), waken_by: WakenBy::None, has_sender: true, has_receiver: true };
    let shared = Arc::new(Shared { inner: Mutex::new(inner), arrived: Condvar::new() });
    (Sender(shared.clone()), Receiver(shared))
}

impl Sender {
    /// Queues a job.
    ///
    /// # Errors
    /// [`Closed`]: the job is dropped.
    pub(crate) fn send(&self, job: LogJob) -> Result<(), Closed> {
        let mut inner = self.0.lock();
        if !inner.has_receiver {
            return Err(Closed);
        }
        let wakes = match inner.waken_by {
            WakenBy::None => false,
            WakenBy::Any => true,
            WakenBy::Urgent => !job.may_wait(),
        };
        inner.jobs.push_back(job);
        if wakes {
            inner.waken_by = WakenBy::None;
            drop(inner);
            self.0.arrived.notify_one();
        }
        Ok(())
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.lock().has_sender = false;
        self.0.arrived.notify_one();
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.has_receiver = false;
        inner.jobs.clear();
    }
}

impl Receiver {
    /// The next job, if there is one.
    pub(crate) fn try_recv(&self) -> Option<LogJob> {
        self.0.lock().jobs.pop_front()
    }

    /// The next job, once there is one before `until`.
    ///
    /// # Errors
    /// [`NoJob`].
    pub(crate) fn recv(&self, until: Option<Instant>) -> Result<LogJob, NoJob> {
        self.wait(until, WakenBy::Any)
    }

    /// The next job: a queued one at once, else the first urgent one before `until`, else any queued one at `until`.
    ///
    /// # Errors
    /// [`NoJob`].
    pub(crate) fn recv_urgent(&self, until: Instant) -> Result<LogJob, NoJob> {
        self.wait(Some(until), WakenBy::Urgent)
    }

    fn wait(&self, until: Option<Instant>, waken_by: WakenBy) -> Result<LogJob, NoJob> {
        let mut inner = self.0.lock();
        let mut woken = true;
        loop {
            if woken && let Some(job) = inner.jobs.pop_front() {
                return Ok(job);
            }
            if !inner.has_sender {
                return inner.jobs.pop_front().ok_or(NoJob::Closed);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                inner.waken_by = WakenBy::None;
                return inner.jobs.pop_front().ok_or(NoJob::Timeout);
            }
            inner.waken_by = waken_by;
            inner = match left {
                None => self.0.arrived.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    self.0.arrived.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
            // The sender resets this, so a spurious wake-up is ignored.
            woken = inner.waken_by == WakenBy::None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::write_op;
    use std::sync::mpsc;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(30);

    fn write(ticket: u64, may_defer: bool) -> LogJob {
        LogJob::Write { op: Box::new(write_op(ticket, 0)), may_defer, coalesce: false }
    }

    fn ticket(job: &LogJob) -> u64 {
        match job {
            LogJob::Write { op, .. } => op.ticket,
            _ => 0,
        }
    }

    /// A thread that waits once, until `until`, and reports what it received.
    fn waiter(receiver: Receiver, until: Instant) -> mpsc::Receiver<(Receiver, Option<u64>)> {
        let (report, reports) = mpsc::channel();
        std::thread::spawn(move || {
            let job = receiver.recv_urgent(until).ok().as_ref().map(ticket);
            let _ = report.send((receiver, job));
        });
        reports
    }

    #[test]
    fn deferrable_job_does_not_wake_deferring_receiver() {
        let (sender, receiver) = channel();
        let reports = waiter(receiver, Instant::now() + LONG);
        std::thread::sleep(SHORT);
        sender.send(write(1, true)).unwrap();
        assert!(reports.recv_timeout(SHORT).is_err(), "it may wait");
        sender.send(write(2, false)).unwrap();
        let (receiver, first) = reports.recv_timeout(LONG).unwrap();
        assert_eq!(first, Some(1), "in their order");
        assert_eq!(receiver.try_recv().as_ref().map(ticket), Some(2));
        // At its time it takes what is there.
        let reports = waiter(receiver, Instant::now() + 2 * SHORT);
        std::thread::sleep(SHORT);
        sender.send(write(3, true)).unwrap();
        let (receiver, third) = reports.recv_timeout(LONG).unwrap();
        assert_eq!(third, Some(3));
        assert_eq!(receiver.recv_urgent(Instant::now()).err(), Some(NoJob::Timeout));
        // A receiver that waits for any job is woken by any.
        let waits = std::thread::spawn(move || receiver.recv(None).map(|job| ticket(&job)));
        std::thread::sleep(SHORT);
        sender.send(write(4, true)).unwrap();
        assert_eq!(waits.join().unwrap(), Ok(4));
        assert_eq!(sender.send(write(5, true)), Err(Closed), "nobody takes it");
    }

    #[test]
    fn remaining_jobs_are_taken_after_sender_ends() {
        let (sender, receiver) = channel();
        let reports = waiter(receiver, Instant::now() + LONG);
        std::thread::sleep(SHORT);
        sender.send(write(1, true)).unwrap();
        drop(sender);
        let (receiver, first) = reports.recv_timeout(LONG).unwrap();
        assert_eq!(first, Some(1));
        assert_eq!(receiver.recv(None).err(), Some(NoJob::Closed));
        assert_eq!(receiver.recv(Some(Instant::now() + LONG)).err(), Some(NoJob::Closed));
    }
}
