//! Between the log and the front end: submissions, and entries delivered in order.

pub(in crate::member) mod answer_check;
pub(in crate::member) mod apply_hold;
pub(in crate::member) mod causal_reads;
pub(in crate::member) mod clocks;
pub(crate) mod confirmations;
pub(in crate::member) mod deliverer;
pub(in crate::member) mod finished;
pub(in crate::member) mod lag;
pub(in crate::member) mod low_water_mark;
pub(in crate::member) mod pace;
pub(in crate::member) mod statement_results;
pub(in crate::member) mod submissions;

use crate::api::SubmitOutcome;
use crate::effect::Effect;
use crate::member::admin::commits::Commits;
use crate::member::context::Context;
use crate::member::membership::views_shown::ViewsShown;
use crate::submit::Filler;
use answer_check::{AnswerCheck, Committed};
use apply_hold::ApplyHolds;
use bytes::Bytes;
use causal_reads::CausalReads;
use clocks::Clocks;
use confirmations::Confirmations;
use deliverer::{Deliverer, Receivers};
use lag::CatchUp;
use lockstep_core::{EntryKind, Seqno, writeset};
use low_water_mark::LowWaterMark;
use pace::Pacing;
use statement_results::StatementResults;
use submissions::Submissions;

/// The components of delivery. Each keeps its fields to itself. They are open because the router lends several to one call.
#[derive(Default)]
pub(crate) struct Delivery {
    /// Entries from the log to the server.
    pub(crate) deliverer: Deliverer,
    /// The front end's submissions under way.
    pub(in crate::member) submissions: Submissions,
    /// Whether delivery has answered what it has passed.
    pub(in crate::member) answer_check: AnswerCheck,
    /// Causal reads under way.
    pub(in crate::member) causal_reads: CausalReads,
    /// For a device: since when its state is the present one.
    pub(crate) confirmations: Confirmations,
    /// Apply holds, and the permitted parallelism.
    pub(crate) apply_holds: ApplyHolds,
    /// The difference of the leader's clock.
    pub(in crate::member) clocks: Clocks,
    /// How far certification may forget keys.
    pub(in crate::member) low_water_mark: LowWaterMark,
    /// The progress towards Synced.
    pub(in crate::member) catching_up: CatchUp,
    /// The delay of this member's own transactions (`apply.pace`).
    pub(crate) pace: Pacing,
    /// Results of statements in total order, on their way to the log.
    pub(in crate::member) statement_results: StatementResults,
}

impl Delivery {
    /// A new connection begins: proposals are numbered anew, and the position has changed.
    pub(in crate::member) fn renew(&mut self) {
        self.submissions.renew();
        self.answer_check.reset();
        self.low_water_mark.reset();
    }

    /// A server thread submits a write-set or statement to the log.
    pub(in crate::member) fn submit(
        &mut self,
        ctx: &mut Context,
        leaving: bool,
        kind: EntryKind,
        payload: Bytes,
        submission: Filler,
    ) {
        // No thread waits for a rollback, and other members hold the transaction that it ends.
        let is_open = |holds: &ApplyHolds| {
            holds.accepts_own_writes(ctx) || writeset::has_flags(&payload, writeset::flags::ROLLBACK)
        };
        if ctx.connection().is_primary() && !leaving && is_open(&self.apply_holds) {
            self.submissions.submit(ctx, kind, payload, submission);
        } else {
            submission.fill(SubmitOutcome::NotSent);
        }
    }

    /// The lowest last seen seqno of any write-set of this member that is under way or may still come: keys above it
    /// must be kept.
    pub(in crate::member) fn lowest_seen(&self, finished: Seqno) -> Seqno {
        let seen = self.submissions.lowest_seen().unwrap_or(Seqno::MAX);
        seen.min(self.low_water_mark.low(finished))
    }

    /// Begins a read that must see every commit acknowledged so far.
    pub(in crate::member) fn begin_causal_read(&mut self, ctx: &mut Context, id: u64) {
        if !ctx.connection().is_primary() {
            ctx.emit(Effect::Causal { id, seqno: None });
            return;
        }
        let now = ctx.now();
        self.causal_reads.begin(&mut ctx.raft, now, id);
    }

    /// Wakes every waiting submission and causal read. `unknown`: nothing can be withdrawn, since Raft is not asked.
    pub(in crate::member) fn wake_all(&mut self, ctx: &mut Context, unknown: bool) {
        let first_unsent = if unknown { None } else { ctx.raft.withdraw_unsent() };
        self.submissions.fail_all(first_unsent);
        for id in self.causal_reads.take_all() {
            ctx.emit(Effect::Causal { id, seqno: None });
        }
    }

    /// Answers *unknown* to threads whose entries delivery has passed without an answer. Returns the member's state then: an
    /// error in the program, after which the server cannot go on.
    pub(in crate::member) fn answer_overlooked(&mut self, ctx: &Context) -> Option<String> {
        let committed = Committed { index: ctx.raft.commit(), proposal: ctx.raft.committed_proposal() };
        let next = self.deliverer.next_index();
        let upto = self.answer_check.step(ctx.now(), next, committed)?;
        let overlooked = self.submissions.give_up(upto.proposal);
        let first = overlooked.first()?;
        Some(format!(
            "an error in the program: delivery has passed {} own proposals without an answer (the first is number {first} \
             of incarnation {}); their clients get an error, and the outcome is unknown. Term {}, own log up to {}, \
             committed up to {} and proposal {}, a second ago up to {} and proposal {}, next to deliver {next}, delivered \
             up to seqno {}, finished up to seqno {}, {} more own proposals under way",
            overlooked.len(),
            ctx.me().incarnation,
            ctx.raft.term(),
            ctx.raft.last_index(),
            committed.index,
            committed.proposal,
            upto.index,
            upto.proposal,
            self.deliverer.delivered(),
            ctx.finished(),
            self.submissions.proposed_len(),
        ))
    }

    /// Delivers entries, and ends the causal reads whose index has been delivered: those wait only for the server.
    ///
    /// # Errors
    /// Why the database needs a state transfer.
    pub(in crate::member) fn step(
        &mut self,
        ctx: &mut Context,
        views_shown: &mut ViewsShown,
        commits: &mut Commits,
        leaving: bool,
        committed_only: bool,
    ) -> Result<(), String> {
        let Delivery { deliverer, submissions, apply_holds, causal_reads, .. } = self;
        let mut receivers =
            Receivers { submissions, apply_holds, views_shown, commits, leaving, committed_only };
        deliverer.step(ctx, &mut receivers)?;
        if ctx.connection().is_primary() && deliverer.has_started() && !causal_reads.is_empty() {
            let (delivered, now) = (deliverer.delivered(), ctx.now());
            for id in causal_reads.take_ready(&mut ctx.raft, now, deliverer.next_index()) {
                ctx.emit(Effect::Causal { id, seqno: Some(delivered) });
            }
        }
        Ok(())
    }

    /// How much of the log the server still has to finish, in bytes; `None` if its position in the log is unknown.
    pub(crate) fn bytes_behind(&self, ctx: &Context) -> Option<u64> {
        self.deliverer.bytes_behind(ctx)
    }
}

#[cfg(test)]
mod evicted_tests;
#[cfg(test)]
mod requests_tests;
