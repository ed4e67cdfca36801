//! Applying one write-set: its start condition, the call of the server, and the handling of the result.

use super::{Break, Held, Job, MEASURED, Next, Worker};
use crate::apply::blocked_time::BlockedTime;
use crate::ddl::statement::Former;
use crate::provider::Provider;
use crate::trx::{Handle, Remote, dummy_flags};
use lockstep_abi::*;
use lockstep_node::core::EntryKind;
use lockstep_node::{Delivery, Ordered};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

impl Provider {
    /// A write-set that has been taken.
    pub(super) fn start(&self, mut ordered: Ordered, worker: &Worker) -> Next<'_> {
        let (seqno, depends_on) = (ordered.seqno, ordered.depends_on);
        let early = self.commit_dependencies.is_early(ordered.kind, &ordered.writeset);
        let ready = self.patiently(false, |look| {
            self.gate.pass(seqno, None, Some(look))?;
            match early && !ordered.serial {
                true => self.commit_dependencies.wait(depends_on, None, Some(look)),
                false => self.finished.wait(depends_on, None, Some(look)),
            }
        });
        match ready {
            Ok(()) => {}
            Err(Break::Overtaken(info, first)) => {
                let rest = Held { delivery: Delivery::Ordered(ordered), alone: None };
                return self.overtaken(info, rest, first);
            }
            // Nothing is applied any more, everything is dropped: the log has it.
            Err(Break::Dropped) => return Next::Again,
        }
        let low = self.finished.low();
        let highest = self.taken.load(Ordering::SeqCst);
        self.counters.applied.add(1);
        self.counters.applied_early.add((low + 1 < seqno) as u64);
        self.counters.apply_window.add((highest - low).max(0) as u64);

        if self.is_lost_commit(&ordered) {
            // Everything before this seqno is complete, and the fragments are in the server's store: the next start
            // continues from here by the log, and commits them.
            self.stop_with(
                &format!(
                    "the streaming transaction that commits at seqno {seqno} was given up here when the majority was \
                     lost, and the others commit it"
                ),
                false,
            );
            return Next::Again;
        }
        let given = ordered.writeset.meta.flags;
        if given & FLAG_ROLLBACK != 0 && ordered.writeset.meta.source == self.own.get() {
            self.rollbacks.ordered(ordered.writeset.meta.trx);
        }
        let orphan = self.is_orphan(&ordered);
        let mut dummy = !ordered.pass || orphan;
        let mut statement = match (!dummy).then(|| self.look_back(&mut ordered)).transpose() {
            Ok(former) => former.flatten(),
            Err(why) => {
                self.fail(&why);
                return Next::Again;
            }
        };
        let was_executed = statement == Some(Former::Executed);
        match statement {
            // With a statement that does nothing in its place, so that the server counts it like the others.
            Some(Former::Executed) => match lockstep_rows::silenced(&ordered.writeset.data) {
                Some(silent) => ordered.writeset.data = silent.into(),
                None => (dummy, statement) = (true, None),
            },
            Some(Former::NotBegun | Former::Again) => self.statement_begins(seqno, &ordered.writeset.data),
            None => {}
        }
        if orphan {
            // The others have begun to apply it: its rollback follows.
            self.roll_back_orphan(ordered.writeset.meta.trx);
        }
        let flags = if dummy { dummy_flags(given) } else { given };
        let meta = self.apply_meta(seqno, ordered.depends_on, &ordered.writeset.meta);
        let judged = !matches!(statement, Some(Former::Executed | Former::Again)) && !was_executed;
        if !judged && let Some(node) = self.node() {
            node.found_before(seqno);
        }
        self.group_flush.comes();
        let waited = BlockedTime::new(worker.count % MEASURED == 1);
        waited.begin();
        let handle = Handle::Remote(Remote {
            seqno,
            statement: statement.is_some(),
            begun: statement.is_some_and(Former::is_executed_now),
            judged,
            early: early && !dummy,
            place: AtomicU8::new(0),
            passed: OnceLock::new(),
            waited,
            since: worker.landed,
        });
        Next::Apply(Box::new(Job { ordered, handle, flags, meta, dummy, statement }))
    }

    /// The first fragment of an own streaming transaction whose thread gave up before it was ordered: the server has
    /// forgotten the transaction.
    fn is_orphan(&self, ordered: &Ordered) -> bool {
        let flags = ordered.writeset.meta.flags;
        ordered.pass
            && flags & FLAG_TRX_START != 0
            && flags & (FLAG_TRX_END | FLAG_ROLLBACK) == 0
            && ordered.writeset.meta.source == self.own.get()
    }

    /// The last fragment of an own streaming transaction whose thread gave up before it was ordered. The server has
    /// rolled back what the earlier fragments changed, and would commit the last one's changes alone.
    fn is_lost_commit(&self, ordered: &Ordered) -> bool {
        let flags = ordered.writeset.meta.flags;
        ordered.pass
            && flags & FLAG_TRX_END != 0
            && flags & (FLAG_TRX_START | FLAG_ROLLBACK | FLAG_ISOLATION) == 0
            && ordered.kind == EntryKind::WriteSet
            && ordered.writeset.meta.source == self.own.get()
    }

    /// Handles the result of a job. Returns whether this thread is expected to have another one soon: see
    /// [`Provider::next`].
    pub(super) fn applied(&self, job: Job, result: CbStatus, worker: &mut Worker) -> bool {
        if let Handle::Remote(remote) = &job.handle {
            remote.waited.end();
            worker.spent = remote.waited.total();
        }
        let more = self.node().is_some_and(|node| node.queued() > 0);
        if more {
            self.group_flush.comes();
        }
        self.apply_ended(&job, result);
        let passed = match &job.handle {
            Handle::Remote(remote) => remote.passed.get(),
            Handle::Local(_) => None,
        };
        worker.landed = None;
        match passed {
            Some(passed) => {
                self.group_flush.landed(*passed);
                worker.landed = more.then(Instant::now);
            }
            None => self.group_flush.stays_away(),
        }
        more
    }

    fn apply_ended(&self, job: &Job, result: CbStatus) {
        let seqno = job.ordered.seqno;
        if result != CbStatus::SUCCESS && job.statement != Some(Former::Again) {
            self.fail(&format!("the write-set at seqno {seqno} cannot be applied"));
            return;
        }
        let executed = job.statement.is_some_and(Former::is_executed_now);
        if let Handle::Remote(remote) = &job.handle {
            // Not every way through the server takes a seqno's turn.
            let place = remote.place.load(Ordering::Relaxed);
            if place == 0 && self.wait_turn(seqno, None).is_err() {
                return;
            }
            if place < 2 {
                if executed {
                    self.statement_is_done(seqno);
                }
                self.order.leave(seqno);
            }
        }
        if executed {
            self.statement_is_over();
        }
        self.finish(seqno);
    }
}
