//! Applies write-sets: waits until one may start, passes it to the server, and handles the result.

use super::{Applier, Break, Held, Job, MEASURED, Next};
use crate::apply::remote::Remote;
use crate::ddl::CrashOutcome;
use crate::trx::state::{Place, dummy_flags};
use crate::trx::submit::apply_meta;
use crate::trx::table::Handle;
use lockstep_abi::*;
use lockstep_node::core::EntryKind;
use lockstep_node::{Delivery, Ordered};

impl<'a> Applier<'a> {
    /// A write-set has been taken.
    pub(super) fn ordered(&self, ordered: Ordered) -> Next<'a> {
        let cx = self.cx;
        let seqno = ordered.seqno;
        cx.counters.received.add(1);
        cx.counters.received_bytes.add(ordered.writeset.data.len() as u64);
        cx.counters.count_certified(&ordered);
        if cx.identity.take_fresh() {
            cx.sequence.set_position(seqno - 1);
        }
        if seqno <= cx.sequence.finished() {
            return Next::Again;
        }
        cx.sequence.take(seqno);
        if cx.sequence.finished() < ordered.depends_on {
            cx.counters.apply_waits.add(1);
        }
        self.start(ordered)
    }

    /// Waits until the write-set may be applied, and prepares the call of the server.
    pub(super) fn start(&self, mut ordered: Ordered) -> Next<'a> {
        let (provider, cx) = (self.provider, self.cx);
        let (seqno, depends_on) = (ordered.seqno, ordered.depends_on);
        let early = cx.sequence.is_early(ordered.kind, &ordered.writeset);
        let ready = self.wait(false, |timeout| {
            cx.sequence.start(seqno, None, Some(timeout))?;
            match early && !ordered.serial {
                true => cx.sequence.wait_dependency(depends_on, Some(timeout)),
                false => cx.sequence.wait_finished(depends_on, None, Some(timeout)),
            }
        });
        match ready {
            Ok(()) => {}
            Err(Break::Overtaken(info, first)) => {
                let rest = Held { delivery: Delivery::Ordered(ordered), exclusive: None };
                return self.overtaken(info, rest, first);
            }
            // Nothing is applied any more. The log keeps the write-set.
            Err(Break::Dropped) => return Next::Again,
        }
        let low = cx.sequence.finished();
        let highest = cx.sequence.taken();
        cx.counters.applied.add(1);
        cx.counters.applied_early.add((low + 1 < seqno) as u64);
        cx.counters.apply_window.add((highest - low).max(0) as u64);

        if self.is_lost_commit(&ordered) {
            // The database is consistent up to this seqno, and the fragments are in the server's store. The next start
            // continues here by the log, and commits the whole transaction. Nothing else can: this process has rolled the
            // rows back.
            cx.repeat_from_log(&format!(
                "this server rolled back the streaming transaction of seqno {seqno} when the majority was lost, but the \
                 other members commit it"
            ));
            return Next::Again;
        }
        let given = ordered.writeset.meta.flags;
        if given & FLAG_ROLLBACK != 0 && ordered.writeset.meta.source == cx.identity.own() {
            provider.rollback_delivered(ordered.writeset.meta.trx);
        }
        let orphan = self.is_orphan(&ordered);
        let mut dummy = !ordered.pass || orphan;
        let at = cx.identity.at(seqno);
        let former =
            match (!dummy).then(|| cx.ddl.outcome_before_crash(&cx.host, at, &mut ordered)).transpose() {
                Ok(former) => former.flatten(),
                Err(stop) => {
                    cx.stop_with(&stop.why, stop.corrupt);
                    return Next::Again;
                }
            };
        match former {
            // Replaced by a statement that does nothing, so that the server counts it as the other members do.
            Some(CrashOutcome::Executed) => match lockstep_rows::silenced(&ordered.writeset.data) {
                Some(silent) => ordered.writeset.data = silent.into(),
                None => dummy = true,
            },
            Some(CrashOutcome::NotBegun | CrashOutcome::MayBeExecuted) => {
                cx.ddl.begin(&cx.host, at, &ordered.writeset.data)
            }
            None => {}
        }
        if orphan {
            // The other members have begun to apply it, and need its rollback.
            provider.roll_back_orphan(ordered.writeset.meta.trx);
        }
        let flags = if dummy { dummy_flags(given) } else { given };
        let meta = apply_meta(cx, seqno, ordered.depends_on, &ordered.writeset.meta);
        let mut remote = match former {
            _ if dummy => Remote::dummy(seqno, former),
            Some(former) => Remote::statement(seqno, former),
            None => Remote::rows(seqno, early),
        };
        if !remote.is_judged()
            && let Some(node) = cx.node()
        {
            node.found_before(seqno);
        }
        remote.begin(self.count % MEASURED == 1);
        let statement = former.filter(|_| !dummy);
        let handle = Handle::Remote(remote);
        Next::Apply(Box::new(Job { ordered, handle, flags, meta, dummy, statement }))
    }

    /// Whether this is the first fragment of an own streaming transaction whose thread gave it up before it was ordered.
    /// The server has forgotten that transaction.
    fn is_orphan(&self, ordered: &Ordered) -> bool {
        let cx = self.cx;
        let flags = ordered.writeset.meta.flags;
        ordered.pass
            && flags & FLAG_TRX_START != 0
            && flags & (FLAG_TRX_END | FLAG_ROLLBACK) == 0
            && ordered.writeset.meta.source == cx.identity.own()
    }

    /// Whether this is the last fragment of an own streaming transaction whose thread gave it up before it was ordered. The
    /// server has rolled back the earlier fragments, and would commit the changes of this one alone.
    fn is_lost_commit(&self, ordered: &Ordered) -> bool {
        let cx = self.cx;
        let flags = ordered.writeset.meta.flags;
        ordered.pass
            && flags & FLAG_TRX_END != 0
            && flags & (FLAG_TRX_START | FLAG_ROLLBACK | FLAG_ISOLATION) == 0
            && ordered.kind == EntryKind::WriteSet
            && ordered.writeset.meta.source == cx.identity.own()
    }

    /// The server has applied `job`.
    pub(super) fn applied(&mut self, job: Job, result: CbStatus) {
        if let Handle::Remote(remote) = &job.handle {
            self.spent = remote.end();
        }
        self.apply_ended(&job, result);
    }

    fn apply_ended(&self, job: &Job, result: CbStatus) {
        let cx = self.cx;
        let seqno = job.ordered.seqno;
        if result != CbStatus::SUCCESS && job.statement != Some(CrashOutcome::MayBeExecuted) {
            cx.fail(&format!("the write-set at seqno {seqno} cannot be applied"));
            return;
        }
        let executed = job.statement.is_some_and(CrashOutcome::is_executed_now);
        if let Handle::Remote(remote) = &job.handle {
            // Some paths in the server do not enter commit order, or do not leave it.
            let place = remote.place();
            if place == Place::Before && cx.wait_turn(seqno, None).is_err() {
                return;
            }
            if place != Place::After {
                if executed {
                    cx.ddl.done(&cx.host, cx.identity.at(seqno));
                }
                cx.sequence.leave(seqno, false);
            }
        }
        if executed {
            cx.ddl.end(&cx.host);
        }
        cx.finish(seqno);
    }
}
