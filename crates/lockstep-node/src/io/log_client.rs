//! The log as `ls-node` uses it: jobs for `ls-log`, and writes of its own ([`RoleSwap`]).

use crate::io::log_queue::{LogJob, Sender};
use crate::io::role_swap::RoleSwap;
use crate::io::writer::{LogDone, LogFailure, LogJobs, Writer};
use lockstep_core::Micros;
use lockstep_core::raft::WriteOp;
use lockstep_log::Disk;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// `ls-node` leaves larger writes to `ls-log`, because it would not answer peers meanwhile.
const LARGEST: usize = 64 << 10;
/// `ls-node` writes itself while its writes take no longer than this on average.
const QUICK: Micros = 1_000;
/// The weight of the latest write in the average is 1/this.
const WEIGHT: Micros = 8;
/// After slow writes `ls-node` leaves all writes to `ls-log` for this long. Doubled, up to [`PAUSE_MAX`], each time that
/// the next try is slow again.
const PAUSE_MIN: Micros = 1_000_000;
const PAUSE_MAX: Micros = 60_000_000;

/// The result of a write by `ls-node`.
pub(crate) enum Wrote<N> {
    /// The write is done.
    Done(N, LogDone),
    /// Nothing was written: `ls-log` has the log.
    Busy(N, Box<WriteOp>),
    /// The write took long, and the other thread continues as `ls-node`. This thread takes the jobs of `ls-log`.
    Swapped(LogDone, Option<LogJobs>),
}

/// Writes without `ls-log`. Hides the type of the disk.
pub(crate) trait Direct<N>: Send + Sync {
    /// As [`RoleSwap::announce`].
    fn announce(&self) -> bool;
    /// Writes and syncs at once.
    fn write(&self, node: N, op: Box<WriteOp>) -> Wrote<N>;
}

impl<D: Disk, N: Send> Direct<N> for RoleSwap<Writer<D>, N, LogJobs> {
    fn announce(&self) -> bool {
        RoleSwap::announce(self)
    }

    fn write(&self, node: N, op: Box<WriteOp>) -> Wrote<N> {
        let mut writer = match self.deposit(node) {
            Ok(writer) => writer,
            Err(node) => return Wrote::Busy(node, op),
        };
        // The node is not on this thread's stack: if this panics, the node continues with a failed log.
        let done = catch_unwind(AssertUnwindSafe(|| writer.write(&op)))
            .unwrap_or_else(|payload| writer.fail(LogFailure::panicked("ls-node", &*payload)));
        match self.take_back(writer) {
            Ok(node) => Wrote::Done(node, done),
            Err(jobs) => Wrote::Swapped(done, jobs),
        }
    }
}

/// See the module's documentation. `N` is the node, which [`LogClient::write`] takes along.
pub(crate) struct LogClient<N> {
    jobs: Sender,
    /// For `ls-log`, once the round's messages have left.
    pending: Vec<LogJob>,
    swap: Arc<dyn Direct<N>>,
    speed: SyncSpeed,
    /// Tickets of the last requested and the last completed write.
    requested: u64,
    completed: u64,
}

impl<N> LogClient<N> {
    pub(crate) fn new(jobs: Sender, swap: Arc<dyn Direct<N>>) -> LogClient<N> {
        LogClient { jobs, pending: Vec::new(), swap, speed: SyncSpeed::default(), requested: 0, completed: 0 }
    }

    /// Adds a job to those of this round.
    pub(crate) fn push(&mut self, job: LogJob) {
        if let LogJob::Write { op, .. } = &job {
            debug_assert!(op.ticket > self.requested, "tickets ascend");
        }
        self.pending.push(job);
    }

    /// Gives `ls-log` a job at once. A closed queue means that `ls-log` has failed, which it reports itself.
    pub(crate) fn send(&self, job: LogJob) {
        let _ = self.jobs.send(job);
    }

    /// The log has everything up to this ticket.
    pub(crate) fn completed(&mut self, ticket: u64) {
        debug_assert!(ticket >= self.completed, "the log answers in order");
        self.completed = ticket;
    }

    /// Gives `ls-log` the round's jobs, except a write that `ls-node` is to do itself: small, urgent, the only job, while
    /// `ls-log` is idle. `allowed`: nobody waits for `ls-node` meanwhile. If more writes are expected (`coalesce`), only a
    /// member that `only_follows` writes itself: its next input waits in the socket.
    pub(crate) fn hand_over(
        &mut self,
        now: Micros,
        allowed: bool,
        only_follows: bool,
    ) -> Option<Box<WriteOp>> {
        let idle = self.requested <= self.completed;
        for job in &self.pending {
            if let LogJob::Write { op, .. } = job {
                self.requested = op.ticket;
            }
        }
        let direct = match &self.pending[..] {
            [LogJob::Write { op, may_defer: false, coalesce }] => {
                idle && allowed && self.speed.is_quick(now) && (!coalesce || only_follows) && is_small(op)
            }
            _ => false,
        };
        if direct && let Some(LogJob::Write { op, .. }) = self.pending.pop() {
            if self.swap.announce() {
                self.send(LogJob::Check);
            }
            return Some(op);
        }
        for job in self.pending.drain(..) {
            let _ = self.jobs.send(job);
        }
        None
    }

    /// The way to write, which outlives the node on this thread's stack.
    pub(crate) fn writer(&self) -> Arc<dyn Direct<N>> {
        self.swap.clone()
    }

    /// A write by `ls-node`, begun at `began`, is done.
    pub(crate) fn took(&mut self, now: Micros, began: Instant) {
        self.speed.took(now, began.elapsed().as_micros() as Micros);
    }

    /// A write by `ls-node` hung.
    pub(crate) fn hung(&mut self, now: Micros) {
        self.speed.hung(now);
    }
}

/// A few entries, and nothing else.
fn is_small(op: &WriteOp) -> bool {
    let WriteOp { ticket: _, rescue, reset, truncate_from, roll, entries, vote } = op;
    rescue.is_empty()
        && reset.is_none()
        && truncate_from.is_none()
        && roll.is_none()
        && vote.is_none()
        && !entries.is_empty()
        && entries.iter().map(|entry| entry.body().len()).sum::<usize>() <= LARGEST
}

/// Whether the disk is so fast that a sync on this thread costs less than two context switches. The waiting thread does
/// nothing else, so a sync of milliseconds would delay others.
#[derive(Debug)]
struct SyncSpeed {
    mean: Micros,
    slow_until: Micros,
    pause: Micros,
}

impl Default for SyncSpeed {
    fn default() -> SyncSpeed {
        SyncSpeed { mean: QUICK - QUICK / WEIGHT, slow_until: 0, pause: PAUSE_MIN }
    }
}

impl SyncSpeed {
    fn is_quick(&self, now: Micros) -> bool {
        now >= self.slow_until
    }

    /// A write took this long.
    fn took(&mut self, now: Micros, time: Micros) {
        self.mean = (self.mean * (WEIGHT - 1) + time) / WEIGHT;
        match self.mean > QUICK {
            true => self.hung(now),
            false => self.pause = PAUSE_MIN,
        }
    }

    /// A write hung, or writes are slow.
    fn hung(&mut self, now: Micros) {
        self.slow_until = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        // The first write after the pause decides.
        self.mean = QUICK - QUICK / WEIGHT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::log_queue;
    use crate::testing::write_op;

    /// Always writes at once.
    struct Instantly;

    impl Direct<()> for Instantly {
        fn announce(&self) -> bool {
            true
        }
        fn write(&self, (): (), op: Box<WriteOp>) -> Wrote<()> {
            Wrote::Done((), LogDone::Written(op.ticket))
        }
    }

    fn write(ticket: u64, bytes: usize, coalesce: bool) -> LogJob {
        LogJob::Write { op: Box::new(write_op(ticket, bytes)), may_defer: false, coalesce }
    }

    fn client() -> (LogClient<()>, log_queue::Receiver) {
        let (sender, receiver) = log_queue::channel();
        (LogClient::new(sender, Arc::new(Instantly)), receiver)
    }

    #[test]
    fn lone_small_write_is_direct_and_others_are_not() {
        let (mut client, queue) = client();
        let mut ticket = 0;
        let mut direct = |bytes, coalesce, others, allowed, follows| {
            ticket += 1;
            client.push(write(ticket, bytes, coalesce));
            if others {
                client.push(LogJob::Hint(1));
            }
            let direct = client.hand_over(0, allowed, follows).is_some();
            let queued =
                std::iter::from_fn(|| queue.try_recv()).filter(|job| !matches!(job, LogJob::Check)).count();
            assert_eq!(queued + usize::from(direct), 1 + usize::from(others), "no job is lost");
            client.completed(ticket);
            direct
        };
        assert!(direct(100, false, false, true, false));
        assert!(!direct(LARGEST + 1, false, false, true, false), "large");
        assert!(!direct(100, true, false, true, false), "more is expected");
        assert!(direct(100, true, false, true, true), "more waits in the socket");
        assert!(!direct(100, false, true, true, false), "not the only job");
        assert!(!direct(100, false, false, false, false), "somebody waits for this thread");
    }

    #[test]
    fn write_behind_an_open_write_is_left_to_ls_log() {
        let (mut client, _queue) = client();
        client.push(write(1, 100, false));
        assert!(client.hand_over(0, true, false).is_some());
        client.push(write(2, 100, false));
        assert!(client.hand_over(0, true, false).is_none(), "1 is not on disk");
        client.completed(2);
        client.push(write(3, 100, false));
        assert!(client.hand_over(0, true, false).is_some());
        client.completed(3);
        client.hung(0);
        client.push(write(4, 100, false));
        assert!(client.hand_over(PAUSE_MIN - 1, true, false).is_none(), "the disk hung a moment ago");
    }

    #[test]
    fn slow_disk_is_retried_and_rare_slow_write_ignored() {
        let mut speed = SyncSpeed::default();
        for _ in 0..40 {
            speed.took(10, 300);
        }
        speed.took(10, 5 * QUICK);
        assert!(speed.is_quick(10));
        let slow =
            (0..9).take_while(|_| speed.is_quick(10).then(|| speed.took(10, 4 * QUICK)).is_some()).count();
        assert!(slow < 9 && !speed.is_quick(9 + PAUSE_MIN));
        assert!(speed.is_quick(10 + PAUSE_MIN));
        speed.took(10 + PAUSE_MIN, 4 * QUICK);
        assert!(!speed.is_quick(10 + PAUSE_MIN), "the first try decides");
        assert!(!speed.is_quick(9 + 3 * PAUSE_MIN), "and the next one is later");
        speed.took(10 + 3 * PAUSE_MIN, 300);
        assert!(speed.is_quick(10 + 3 * PAUSE_MIN));
        for _ in 0..100 {
            speed.hung(0);
        }
        assert!(!speed.is_quick(PAUSE_MAX - 1) && speed.is_quick(PAUSE_MAX));
    }
}
