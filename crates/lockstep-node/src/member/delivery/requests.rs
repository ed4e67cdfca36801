//! Requests of the front end's threads.

use crate::api::{Level, SubmitOutcome, Tuning};
use crate::effect::Effect;
use crate::member::Member;
use crate::member::membership::connection_state::ConnectionState;
use crate::submit::Filler;
use bytes::Bytes;
use lockstep_core::writeset;
use lockstep_core::{EntryKind, Index, SEQNO_UNDEFINED, Seqno};

/// Larger write-sets go through the log in pieces of this size, so that small ones can pass between them.
pub(in crate::member) const PIECE_BYTES: usize = crate::api::IN_ORDER_BYTES;
/// The largest entry: the rest of a large write-set after its data have gone ahead in pieces (mostly its keys).
const LAST_MAX: usize = 128 << 20;

impl Member {
    /// Submits a write-set or statement to the log.
    pub(crate) fn submit(&mut self, kind: EntryKind, payload: Bytes, submission: Filler) {
        if !self.ctx.connection.is_primary() || self.roster.leave.has_begun() {
            submission.fill(SubmitOutcome::NotSent);
            return;
        }
        // No thread waits for a rollback, and other members hold the transaction that it ends.
        if !self.accepts_own_writes() && !writeset::has_flags(&payload, writeset::flags::ROLLBACK) {
            submission.fill(SubmitOutcome::NotSent);
            return;
        }
        let seen = writeset::last_seen(&payload).unwrap_or(SEQNO_UNDEFINED);
        if payload.len() <= PIECE_BYTES {
            let number = self.propose(kind, payload);
            self.delivery.submissions.proposed(number, seen, submission);
            return;
        }
        match writeset::split(&payload, PIECE_BYTES) {
            Ok(split) if split.last.len() > LAST_MAX => {
                let bytes = split.last.len();
                self.ctx.log(
                    Level::Error,
                    format!(
                        "a transaction's keys and notes take {bytes} bytes, more than the {LAST_MAX} that an entry of \
                         the log may have: it is refused; change fewer rows at a time"
                    ),
                );
                submission.fill(SubmitOutcome::TooLarge);
            }
            Ok(split) => self.delivery.submissions.push_large(split, kind, seen, submission),
            Err(error) => {
                self.ctx.log(Level::Error, format!("a write-set of this member {error}: it is refused"));
                submission.fill(SubmitOutcome::TooLarge);
            }
        }
    }

    /// The lowest last seen seqno of any write-set of this member that is under way or may still come: keys above it
    /// must be kept.
    pub(in crate::member) fn lowest_seen(&self) -> Seqno {
        let seen = self.delivery.submissions.lowest_seen().unwrap_or(Seqno::MAX);
        seen.min(self.delivery.low_water_mark.low(self.ctx.finished()))
    }

    /// Begins a read that must see every commit acknowledged so far.
    pub(crate) fn causal_read(&mut self, id: u64) {
        if !self.ctx.connection.is_primary() {
            self.ctx.out.push(Effect::Causal { id, seqno: None });
            return;
        }
        self.delivery.causal_reads.begin(&mut self.ctx.raft, self.ctx.now, id);
    }

    /// The leader's answer to a read-index question; `None` if the leader was lost.
    pub(in crate::member) fn read_ready(&mut self, context: u64, index: Option<Index>) {
        self.admin.position_queries.answered(&mut self.ctx.raft, self.ctx.now, context, index);
        self.delivery.causal_reads.answered(&mut self.ctx.raft, self.ctx.now, context, index);
    }

    /// Reads whose index has been delivered wait only for the server.
    pub(in crate::member) fn causal_step(&mut self) {
        if self.delivery.causal_reads.is_empty() {
            return;
        }
        let (next, delivered) = (self.deliverer.next_index(), self.deliverer.delivered());
        for id in self.delivery.causal_reads.take_ready(&mut self.ctx.raft, self.ctx.now, next) {
            self.ctx.out.push(Effect::Causal { id, seqno: Some(delivered) });
        }
    }

    pub(crate) fn causal_cancelled(&mut self, id: u64) {
        self.delivery.causal_reads.cancel(id);
    }

    pub(crate) fn desync(&mut self) {
        self.roster.sync.desync();
    }

    pub(crate) fn resync(&mut self) {
        if self.roster.sync.resync()
            && let ConnectionState::Running { primary, .. } = self.ctx.connection
        {
            self.ctx.connection = ConnectionState::Running { primary, synced: false };
        }
    }

    pub(crate) fn set_tuning(&mut self, tuning: Tuning) {
        self.ctx.raft.set_relaying(tuning.relay);
        self.ctx.tuning = tuning;
        self.adopt_apply_options();
        self.adapt_timing();
    }
}

#[cfg(test)]
#[path = "requests_tests.rs"]
mod tests;
