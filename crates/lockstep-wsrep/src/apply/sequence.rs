//! The progress of seqnos through the server: started, committed in order, finished.
//!
//! All parts count the same seqnos and move together: [`CommitSequence::set_position`] and
//! [`CommitSequence::leave_out`] set them while nothing is in progress. Invariant otherwise:
//! `finished <= left commit order <= started`, where "finished" means that the seqno and all below it have finished.

use crate::apply::commit_barrier::SnapshotBarrier;
use crate::apply::commit_dependency::CommitDependencies;
use crate::apply::commit_order::CommitOrder;
use crate::apply::finished::Finished;
use crate::apply::seqno_limit::SeqnoLimit;
use crate::sync::{Interrupt, Stop, lock};
use lockstep_node::core::writeset::WriteSet;
use lockstep_node::core::{EntryKind, SEQNO_UNDEFINED, Seqno};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// See the module.
pub(crate) struct CommitSequence {
    order: CommitOrder,
    finished: Finished,
    dependencies: CommitDependencies,
    /// Set by `pause`.
    pause: SeqnoLimit,
    /// Closed by `lockstep verify`. Passed in commit order.
    barrier: Arc<SnapshotBarrier>,
    /// The first and last seqno that the last such view left out.
    left_out: Mutex<Option<(Seqno, Seqno)>>,
    /// The highest seqno that a receiving thread has taken.
    taken: AtomicI64,
}

impl Default for CommitSequence {
    fn default() -> CommitSequence {
        CommitSequence {
            order: CommitOrder::new(SEQNO_UNDEFINED),
            finished: Finished::new(SEQNO_UNDEFINED),
            dependencies: CommitDependencies::new(SEQNO_UNDEFINED),
            pause: SeqnoLimit::new(SEQNO_UNDEFINED),
            barrier: Arc::new(SnapshotBarrier::default()),
            left_out: Mutex::default(),
            taken: AtomicI64::new(SEQNO_UNDEFINED),
        }
    }
}

impl CommitSequence {
    /// Everything up to `seqno` is in the database, nothing above it, and nothing is in progress.
    pub(crate) fn set_position(&self, seqno: Seqno) {
        self.order.reset(seqno);
        self.finished.reset(seqno);
        self.dependencies.reset(seqno);
        self.pause.reset(seqno);
        self.barrier.reset(seqno);
        self.taken.store(seqno, Ordering::SeqCst);
    }

    /// A view that has started leaves the seqnos up to `upto` out, and nothing is in progress. The limit of `pause` stays
    /// as it is: it has counted the view already, and a thread that pauses relies on that.
    pub(crate) fn leave_out(&self, upto: Seqno) {
        // First: threads that are woken below read it.
        *lock(&self.left_out) = Some((self.finished.low() + 1, upto));
        self.order.leave_out(upto);
        self.finished.leave_out(upto);
        self.dependencies.leave_out(upto);
        self.barrier.reset(upto);
        self.taken.store(upto, Ordering::SeqCst);
    }

    /// Whether the last [`CommitSequence::leave_out`] left this seqno out.
    pub(crate) fn was_left_out(&self, seqno: Seqno) -> bool {
        lock(&self.left_out).is_some_and(|(first, last)| (first..=last).contains(&seqno))
    }

    /// Ends all waits, now and later.
    pub(crate) fn fail(&self) {
        self.pause.fail();
        self.order.fail();
        self.finished.fail();
        self.dependencies.fail();
    }

    /// No further seqno starts; those that have started may finish. Returns the last one of them.
    pub(crate) fn stop(&self) -> Seqno {
        let last = self.pause.stop();
        self.order.stop(last);
        self.finished.stop(last);
        self.dependencies.stop(last);
        last
    }

    /// A receiving thread has taken `seqno`.
    pub(crate) fn take(&self, seqno: Seqno) {
        self.taken.fetch_max(seqno, Ordering::SeqCst);
    }

    /// The highest seqno that a receiving thread has taken.
    pub(crate) fn taken(&self) -> Seqno {
        self.taken.load(Ordering::SeqCst)
    }

    /// Waits while a pause holds `seqno` back.
    pub(crate) fn start(
        &self,
        seqno: Seqno,
        interrupt: Option<&Interrupt>,
        timeout: Option<Duration>,
    ) -> Result<(), Stop> {
        self.pause.pass(seqno, interrupt, timeout)
    }

    /// The last seqno that starts in this connection; the greatest number while that is not known.
    pub(crate) fn last_to_start(&self) -> Seqno {
        self.pause.last()
    }

    /// Lets no further seqno start. Returns the last one that may.
    pub(crate) fn pause(&self) -> Seqno {
        self.pause.close()
    }

    /// Lets all seqnos start.
    pub(crate) fn resume(&self) {
        self.pause.open();
    }

    /// Whether a pause is in force.
    pub(crate) fn is_paused(&self) -> bool {
        self.pause.is_closed()
    }

    /// Waits until it is the turn of `seqno` in commit order.
    pub(crate) fn enter(
        &self,
        seqno: Seqno,
        interrupt: Option<&Interrupt>,
        timeout: Option<Duration>,
    ) -> Result<(), Stop> {
        self.order.enter(seqno, interrupt, timeout)
    }

    /// Waits at the barrier of `lockstep verify`, in commit order.
    pub(crate) fn pass_barrier(&self, seqno: Seqno, interrupt: Option<&Interrupt>) -> Result<(), Stop> {
        self.barrier.pass(seqno, interrupt)
    }

    /// The node's handle to the barrier.
    pub(crate) fn barrier(&self) -> Arc<SnapshotBarrier> {
        self.barrier.clone()
    }

    /// Leaves commit order; `false` if it was not the turn of `seqno`. `early`: [`CommitSequence::is_early`].
    pub(crate) fn leave(&self, seqno: Seqno, early: bool) -> bool {
        let left = self.order.leave(seqno);
        if left && early {
            self.dependencies.release(seqno);
        }
        left
    }

    /// The last seqno that has left commit order.
    pub(crate) fn left(&self) -> Seqno {
        self.order.left()
    }

    /// Whether write-sets that depend on this one may start when it leaves commit order.
    pub(crate) fn is_early(&self, kind: EntryKind, set: &WriteSet) -> bool {
        self.dependencies.is_early(kind, set)
    }

    /// Waits until a write-set that depends on `seqno` may start.
    pub(crate) fn wait_dependency(&self, seqno: Seqno, timeout: Option<Duration>) -> Result<(), Stop> {
        self.dependencies.wait(seqno, None, timeout)
    }

    /// `seqno` has finished in the server. Returns the new low-water mark if it moved.
    pub(crate) fn finish(&self, seqno: Seqno) -> Option<Seqno> {
        self.dependencies.release(seqno);
        self.finished.finish(seqno)
    }

    /// The low-water mark: everything up to here has finished.
    pub(crate) fn finished(&self) -> Seqno {
        self.finished.low()
    }

    /// Waits until everything up to `seqno` has finished.
    pub(crate) fn wait_finished(
        &self,
        seqno: Seqno,
        interrupt: Option<&Interrupt>,
        timeout: Option<Duration>,
    ) -> Result<(), Stop> {
        self.finished.wait(seqno, interrupt, timeout)
    }

    /// All positions in one line, for the report of a long wait; `delivered` is the node's.
    pub(crate) fn describe(&self, delivered: Seqno) -> String {
        format!(
            "Finished up to {}, left commit order up to {}, started up to {}{}, taken up to {}, delivered up to {delivered}",
            self.finished.low(),
            self.order.left(),
            self.pause.highest(),
            if self.pause.is_closed() { " (paused)" } else { "" },
            self.taken(),
        )
    }

    /// How many seqnos have finished, and how many of them before a lower one.
    pub(crate) fn finished_counts(&self) -> (i64, i64) {
        (self.finished.count(), self.finished.out_of_order())
    }

    /// Mean number of seqnos in progress when one entered commit order.
    pub(crate) fn mean_window(&self) -> f64 {
        self.order.mean_window()
    }

    /// Resets the statistics.
    pub(crate) fn reset_counts(&self) {
        self.finished.reset_counts();
        self.order.reset_counts();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Option<Duration> = Some(Duration::ZERO);

    fn at(seqno: Seqno) -> CommitSequence {
        let sequence = CommitSequence::default();
        sequence.set_position(seqno);
        sequence
    }

    fn commit(sequence: &CommitSequence, seqno: Seqno) -> Option<Seqno> {
        sequence.take(seqno);
        sequence.start(seqno, None, NOW).unwrap();
        sequence.enter(seqno, None, NOW).unwrap();
        sequence.pass_barrier(seqno, None).unwrap();
        assert!(sequence.leave(seqno, false));
        sequence.finish(seqno)
    }

    #[test]
    fn finish_returns_low_water_mark_when_it_moves() {
        let sequence = at(4);
        assert_eq!(commit(&sequence, 5), Some(5));
        for seqno in [6, 7] {
            sequence.enter(seqno, None, NOW).unwrap();
            assert!(sequence.leave(seqno, false));
        }
        assert_eq!((sequence.finish(7), sequence.finish(6)), (None, Some(7)));
        assert_eq!((sequence.finished(), sequence.left(), sequence.taken()), (7, 7, 5));
        assert_eq!(sequence.finished_counts(), (3, 1));
    }

    #[test]
    fn left_out_seqnos_count_as_finished() {
        let sequence = at(4);
        sequence.start(9, None, NOW).unwrap();
        sequence.leave_out(8);
        assert_eq!((sequence.finished(), sequence.left(), sequence.taken()), (8, 8, 8));
        assert!(!sequence.was_left_out(4) && sequence.was_left_out(5) && sequence.was_left_out(8));
        assert!(!sequence.was_left_out(9));
        assert_eq!(commit(&sequence, 9), Some(9));
    }

    #[test]
    fn stop_lets_started_seqnos_finish_and_no_other() {
        let sequence = at(0);
        sequence.start(2, None, NOW).unwrap();
        assert_eq!((sequence.stop(), sequence.last_to_start()), (2, 2));
        assert_eq!(sequence.start(3, None, NOW), Err(Stop::Failed));
        assert_eq!(sequence.enter(3, None, None), Err(Stop::Failed));
        assert_eq!((commit(&sequence, 1), commit(&sequence, 2)), (Some(1), Some(2)));
        sequence.set_position(2);
        assert_eq!(commit(&sequence, 3), Some(3));
    }

    #[test]
    fn failed_sequence_ends_every_wait() {
        let sequence = at(0);
        sequence.fail();
        assert_eq!(sequence.start(1, None, None), Err(Stop::Failed));
        assert_eq!(sequence.enter(2, None, None), Err(Stop::Failed));
        assert_eq!(sequence.wait_finished(1, None, None), Err(Stop::Failed));
        assert_eq!(sequence.wait_dependency(1, None), Err(Stop::Failed));
    }

    #[test]
    fn paused_sequence_starts_nothing_new() {
        let sequence = at(0);
        sequence.start(1, None, NOW).unwrap();
        assert_eq!(sequence.pause(), 1);
        assert_eq!(sequence.start(2, None, NOW), Err(Stop::TimedOut));
        assert!(
            sequence.is_paused() && sequence.describe(7).contains("started up to 2 (paused), taken up to 0")
        );
        sequence.resume();
        sequence.start(2, None, NOW).unwrap();
    }
}
