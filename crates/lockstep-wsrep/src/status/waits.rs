//! Waits of server threads inside the provider. A wait that takes suspiciously long logs once its condition and the seqnos
//! before it, so that a hanging server explains itself in its error log.

use crate::apply::monitor::{Interrupt, Stop};
use crate::provider::Provider;
use lockstep_node::core::Seqno;
use lockstep_node::{Submission, SubmitOutcome};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A wait is worth a line after this long.
const SUSPICIOUS: Duration = Duration::from_secs(30);

impl Provider {
    /// Until the gate lets `seqno` through.
    pub(crate) fn wait_gate(&self, seqno: Seqno, interrupt: Option<&Interrupt>) -> Result<(), Stop> {
        match self.gate.pass(seqno, interrupt, Some(SUSPICIOUS)) {
            Err(Stop::TimedOut) => {
                self.explain(&format!("seqno {seqno} waits to be let on: the provider is paused"), None);
                self.gate.pass(seqno, interrupt, None)
            }
            other => other,
        }
    }

    /// Until everything up to `upto` has finished; `who` says for whom.
    pub(crate) fn wait_finished(
        &self,
        upto: Seqno,
        interrupt: Option<&Interrupt>,
        who: impl FnOnce() -> String,
    ) -> Result<(), Stop> {
        match self.finished.wait(upto, interrupt, Some(SUSPICIOUS)) {
            Err(Stop::TimedOut) => {
                self.explain(
                    &format!("{} waits until seqno {upto} and all before have finished", who()),
                    Some(self.finished.low() + 1),
                );
                self.finished.wait(upto, interrupt, None)
            }
            other => other,
        }
    }

    /// Until it is the turn of `seqno` in commit order.
    pub(crate) fn wait_turn(&self, seqno: Seqno, interrupt: Option<&Interrupt>) -> Result<(), Stop> {
        let turn = match self.order.enter(seqno, interrupt, Some(SUSPICIOUS)) {
            Err(Stop::TimedOut) => {
                let next = self.order.left() + 1;
                self.explain(&format!("seqno {seqno} waits for its turn in commit order"), Some(next));
                self.order.enter(seqno, interrupt, None)
            }
            other => other,
        };
        turn.and_then(|()| self.hold.pass(seqno, interrupt))
    }

    /// Until a submission has its place in the log.
    pub(crate) fn wait_place(&self, submission: &Submission, who: impl FnOnce() -> String) -> SubmitOutcome {
        if let Some(outcome) = submission.wait_for(SUSPICIOUS) {
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
        self.explain(&format!(
                "{} waits for its place in the log, or for the acknowledgements that commit.policy wants (whose are missing \
                 the leader's error log says){cluster}",
                who()
            ), None);
        submission.wait()
    }

    /// The same for an applier thread that looks about itself while it waits; `alone`: with a view or the like.
    pub(crate) fn explain_patience(&self, alone: bool) {
        let what = if alone { "a view or a change of state" } else { "an applier" };
        self.explain(
            &format!("{what} waits until all before it have finished, or to be let on"),
            Some(self.finished.low() + 1),
        );
    }

    /// One line; `next` is the seqno that all wait for.
    fn explain(&self, what: &str, next: Option<Seqno>) {
        let (delivered, queued) = self.node().map_or((-1, 0), |node| (node.last_committed(), node.queued()));
        let before = next.map_or_else(String::new, |next| format!(". Next is {next}: {}", self.holder(next)));
        self.log.warn(format!(
            "{what}, for more than {} s{before}. Finished up to {}, left commit order up to {}, started up to {}{}, \
             taken up to {}, delivered up to {delivered}, {queued} queued",
            SUSPICIOUS.as_secs(),
            self.finished.low(),
            self.order.left(),
            self.gate.highest(),
            if self.gate.is_closed() { " (paused)" } else { "" },
            self.taken.load(Ordering::SeqCst),
        ));
    }

    /// The holder of this seqno.
    fn holder(&self, seqno: Seqno) -> String {
        if let Some(own) = self.trxs.find_seqno(seqno) {
            return own;
        }
        let statements = crate::apply::monitor::lock(&self.statements);
        let own = statements.iter().find_map(|(conn, trx)| {
            let has = trx.lock().slot.as_ref().is_some_and(|slot| slot.seqno == seqno);
            has.then(|| format!("the own statement in total order of connection {conn}"))
        });
        own.unwrap_or_else(|| match seqno <= self.taken.load(Ordering::SeqCst) {
            true => "an applier of this server has it".into(),
            false => "no thread of this server has taken it".into(),
        })
    }
}
