//! The waits of a server thread inside the provider. After a long wait each logs, once, the thread's condition and the
//! transaction or applier that is ahead of it. So a server that hangs explains why in its error log.

use crate::context::Context;
use crate::sync::{Interrupt, Stop};
use lockstep_node::core::Seqno;
use lockstep_node::{Submission, SubmitOutcome};
use std::time::Duration;

/// A wait is reported after this time.
const REPORT_AFTER: Duration = Duration::from_secs(30);

impl Context {
    /// Waits until `seqno` may start, that is, until no pause holds it back.
    pub(crate) fn wait_to_start(&self, seqno: Seqno, interrupt: Option<&Interrupt>) -> Result<(), Stop> {
        match self.sequence.start(seqno, interrupt, Some(REPORT_AFTER)) {
            Err(Stop::TimedOut) => {
                self.explain(&format!("seqno {seqno} waits to start: the provider is paused"), None);
                self.sequence.start(seqno, interrupt, None)
            }
            other => other,
        }
    }

    /// Waits until everything up to `upto` has finished. `who` names the waiting transaction.
    pub(crate) fn wait_finished(
        &self,
        upto: Seqno,
        interrupt: Option<&Interrupt>,
        who: impl FnOnce() -> String,
    ) -> Result<(), Stop> {
        match self.sequence.wait_finished(upto, interrupt, Some(REPORT_AFTER)) {
            Err(Stop::TimedOut) => {
                self.explain(
                    &format!("{} waits until seqno {upto} and all before have finished", who()),
                    Some(self.sequence.finished() + 1),
                );
                self.sequence.wait_finished(upto, interrupt, None)
            }
            other => other,
        }
    }

    /// Waits until it is the turn of `seqno` in commit order.
    pub(crate) fn wait_turn(&self, seqno: Seqno, interrupt: Option<&Interrupt>) -> Result<(), Stop> {
        let turn = match self.sequence.enter(seqno, interrupt, Some(REPORT_AFTER)) {
            Err(Stop::TimedOut) => {
                let next = self.sequence.left() + 1;
                self.explain(&format!("seqno {seqno} waits for its turn in commit order"), Some(next));
                self.sequence.enter(seqno, interrupt, None)
            }
            other => other,
        };
        turn.and_then(|()| self.sequence.pass_barrier(seqno, interrupt))
    }

    /// Waits until a submission has been ordered. `who` names its transaction.
    pub(crate) fn wait_ordered(
        &self,
        submission: &Submission,
        who: impl FnOnce() -> String,
    ) -> SubmitOutcome {
        if let Some(outcome) = submission.wait_for(REPORT_AFTER) {
            return outcome;
        }
        let cluster = self.node().map_or_else(String::new, |node| {
            let status = node.status();
            format!(
                "; term {}, leader '{}', {} own submissions under way, log persisted up to {}, committed up to {}",
                status.cluster.term,
                status.cluster.leader,
                status.own.waiting,
                status.log.persisted,
                status.log.committed
            )
        });
        self.explain(
            &format!(
                "{} waits to be ordered, or for the acknowledgements that commit.policy requires (the leader's error \
                 log \
                 names the missing ones){cluster}",
                who()
            ),
            None,
        );
        submission.wait()
    }

    /// Reports the long wait of an applier. `exclusive`: of one with a view or the like.
    pub(crate) fn explain_applier(&self, exclusive: bool) {
        let what = if exclusive { "a view or a change of state" } else { "an applier" };
        self.explain(
            &format!("{what} waits until all before it have finished, or for the end of a pause"),
            Some(self.sequence.finished() + 1),
        );
    }

    /// One line; `next` is the seqno that all others wait for.
    fn explain(&self, what: &str, next: Option<Seqno>) {
        let (delivered, queued) = self.node().map_or((-1, 0), |node| (node.last_committed(), node.queued()));
        let before = next.map_or_else(String::new, |next| format!(". Next is {next}: {}", self.holder(next)));
        self.host.log.warn(format!(
            "{what}, for more than {} s{before}. {}, {queued} queued",
            REPORT_AFTER.as_secs(),
            self.sequence.describe(delivered),
        ));
    }

    /// Describes the thread that has this seqno.
    fn holder(&self, seqno: Seqno) -> String {
        self.trxs.describe(seqno).unwrap_or_else(|| match seqno <= self.sequence.taken() {
            true => "an applier of this server is processing it".into(),
            false => "no thread of this server has received it".into(),
        })
    }
}
