//! The queue from `ls-node` to `ls-log`: a channel with one addition. A receiver that waits to batch more jobs
//! ([`Receiver::wait_for_more`]) is not woken by a deferrable job: the wake-up would cost more than the job.

use crate::io::writer::LogJob;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Nobody takes jobs any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gone;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleeper {
    Awake,
    /// Any job wakes it.
    ForAny,
    /// Only a job that cannot wait does.
    ForCompany,
}

struct Inner {
    jobs: VecDeque<LogJob>,
    sleeper: Sleeper,
    sender: bool,
    receiver: bool,
}

struct Shared {
    inner: Mutex<Inner>,
    woken: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing in here calls out: poison says nothing.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of `ls-node`.
pub(crate) struct Sender(Arc<Shared>);

/// The end of `ls-log`.
pub(crate) struct Receiver(Arc<Shared>);

/// Both ends.
pub(crate) fn channel() -> (Sender, Receiver) {
    let inner = Inner { jobs: VecDeque::new(), sleeper: Sleeper::Awake, sender: true, receiver: true };
    let shared = Arc::new(Shared { inner: Mutex::new(inner), woken: Condvar::new() });
    (Sender(shared.clone()), Receiver(shared))
}

impl Sender {
    /// # Errors
    /// [`Gone`]: the job is dropped.
    pub(crate) fn send(&self, job: LogJob) -> Result<(), Gone> {
        let mut inner = self.0.lock();
        if !inner.receiver {
            return Err(Gone);
        }
        let wakes = match inner.sleeper {
            Sleeper::Awake => false,
            Sleeper::ForAny => true,
            Sleeper::ForCompany => !matches!(job, LogJob::Write { may_wait: true, .. } | LogJob::Hint(_)),
        };
        inner.jobs.push_back(job);
        if wakes {
            inner.sleeper = Sleeper::Awake;
            drop(inner);
            self.0.woken.notify_one();
        }
        Ok(())
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.lock().sender = false;
        self.0.woken.notify_one();
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.receiver = false;
        inner.jobs.clear();
    }
}

impl Receiver {
    /// The next job, if there is one.
    pub(crate) fn try_recv(&self) -> Option<LogJob> {
        self.0.lock().jobs.pop_front()
    }

    /// The next job, once there is one. `None`: there is none, and no sender.
    pub(crate) fn recv(&self) -> Option<LogJob> {
        self.wait(None, Sleeper::ForAny)
    }

    /// The next job: a queued one at once, else the first urgent one before `until`, else any queued one at `until`.
    pub(crate) fn wait_for_more(&self, until: Instant) -> Option<LogJob> {
        self.wait(Some(until), Sleeper::ForCompany)
    }

    fn wait(&self, until: Option<Instant>, sleeper: Sleeper) -> Option<LogJob> {
        let mut inner = self.0.lock();
        let mut woken = true;
        loop {
            if woken && let Some(job) = inner.jobs.pop_front() {
                return Some(job);
            }
            if !inner.sender {
                return inner.jobs.pop_front();
            }
            inner.sleeper = sleeper;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            inner = match left {
                None => self.0.woken.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => {
                    inner.sleeper = Sleeper::Awake;
                    return inner.jobs.pop_front();
                }
                Some(left) => {
                    self.0.woken.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
            // The sender sets a flag, so a spurious wake-up is ignored.
            woken = inner.sleeper == Sleeper::Awake;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_core::raft::WriteOp;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(30);

    fn write(ticket: u64, may_wait: bool) -> LogJob {
        let op = WriteOp {
            ticket,
            rescue: Vec::new(),
            reset: None,
            truncate_from: None,
            roll: None,
            entries: Vec::new(),
            vote: None,
        };
        LogJob::Write { op: Box::new(op), may_wait, gather: false }
    }

    fn ticket(job: &LogJob) -> u64 {
        match job {
            LogJob::Write { op, .. } => op.ticket,
            _ => 0,
        }
    }

    /// A thread that waits once, until then, and tells what it got.
    fn waiter(receiver: Receiver, until: Instant) -> mpsc::Receiver<(Receiver, Option<LogJob>)> {
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let job = receiver.wait_for_more(until);
            let _ = tell.send((receiver, job));
        });
        told
    }

    #[test]
    fn deferrable_job_wakes_no_batching_receiver() {
        let (give, take) = channel();
        let told = waiter(take, Instant::now() + LONG);
        std::thread::sleep(SHORT);
        give.send(write(1, true)).unwrap();
        assert!(told.recv_timeout(SHORT).is_err(), "it may wait");
        give.send(write(2, false)).unwrap();
        let (take, first) = told.recv_timeout(LONG).unwrap();
        assert_eq!(first.as_ref().map(ticket), Some(1), "in their order");
        assert_eq!(take.try_recv().as_ref().map(ticket), Some(2));
        // At its time it takes what is there.
        let told = waiter(take, Instant::now() + 2 * SHORT);
        std::thread::sleep(SHORT);
        give.send(write(3, true)).unwrap();
        let (take, third) = told.recv_timeout(LONG).unwrap();
        assert_eq!(third.as_ref().map(ticket), Some(3));
        assert!(take.wait_for_more(Instant::now()).is_none());
        // A receiver that waits for any job is woken by any.
        let waits = std::thread::spawn(move || take.recv().map(|job| ticket(&job)));
        std::thread::sleep(SHORT);
        give.send(write(4, true)).unwrap();
        assert_eq!(waits.join().unwrap(), Some(4));
        assert_eq!(give.send(write(5, true)), Err(Gone), "nobody takes it");
    }

    #[test]
    fn remaining_jobs_are_taken_after_senders_end() {
        let (give, take) = channel();
        let told = waiter(take, Instant::now() + LONG);
        std::thread::sleep(SHORT);
        give.send(write(1, true)).unwrap();
        drop(give);
        let (take, first) = told.recv_timeout(LONG).unwrap();
        assert_eq!(first.as_ref().map(ticket), Some(1));
        assert!(take.recv().is_none());
    }
}
