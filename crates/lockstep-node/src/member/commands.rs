//! What the front end's threads ask for.

use super::{Effect, Member};
use crate::api::{Level, SubmitOutcome, Tuning};
use crate::member::connection_state::ConnectionState;
use crate::submit::Filler;
use bytes::Bytes;
use lockstep_core::writeset;
use lockstep_core::{EntryKind, Index, SEQNO_UNDEFINED, Seqno, Term};
use std::collections::VecDeque;

/// Write-sets above this go through the log in pieces of this size, so that small ones overtake between them.
pub(super) const PIECE_BYTES: usize = crate::api::IN_ORDER_BYTES;
/// While so many bytes of large write-sets are under way, no further piece is sent. Small ones do not count: under a weak
/// policy, or over a long line, there may always be as much of them, and the large one's turn would never come.
const LARGE_WINDOW: usize = 8 << 20;

/// The largest entry: what remains of a large write-set when its data have gone ahead in pieces (its keys, mostly).
const LAST_MAX: usize = 128 << 20;

/// A large write-set that is being sent.
pub(super) struct Large {
    pieces: VecDeque<Bytes>,
    last: Bytes,
    kind: EntryKind,
    pub(super) seen: Seqno,
    pub(super) submission: Filler,
}

/// What was proposed of large write-sets and is not committed.
#[derive(Debug, Default)]
pub(super) struct LargeSent {
    /// Numbers and bytes, ascending.
    parts: VecDeque<(u64, usize)>,
    /// The sum of those bytes.
    bytes: usize,
}

impl LargeSent {
    fn push(&mut self, number: u64, bytes: usize) {
        self.parts.push_back((number, bytes));
        self.bytes += bytes;
    }

    /// All proposals up to this one are committed.
    fn committed(&mut self, number: u64) {
        while self.parts.front().is_some_and(|part| part.0 <= number)
            && let Some((_, bytes)) = self.parts.pop_front()
        {
            self.bytes -= bytes;
        }
    }

    /// The proposals from this one on are withdrawn.
    pub(super) fn withdrawn(&mut self, first: u64) {
        while self.parts.back().is_some_and(|part| part.0 >= first)
            && let Some((_, bytes)) = self.parts.pop_back()
        {
            self.bytes -= bytes;
        }
    }
}

/// A submission that has been proposed.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) number: u64,
    /// What its origin had seen: nothing above may be forgotten before it is certified.
    pub(super) seen: Seqno,
    pub(super) submission: Filler,
}

/// A causal read under way.
#[derive(Debug)]
pub(super) struct CausalRead {
    pub(super) id: u64,
    context: u64,
    /// The term in which it was asked.
    term: Term,
    /// What is to be delivered first.
    index: Option<Index>,
}

impl Member {
    /// A write-set or statement on its way into the log.
    pub(crate) fn submit(&mut self, kind: EntryKind, payload: Bytes, submission: Filler) {
        if !self.connection.is_primary() || self.leaving {
            submission.fill(SubmitOutcome::NotSent);
            return;
        }
        // Nobody waits for a rollback, and others keep what it ends.
        if !self.takes_own() && !writeset::has_flags(&payload, writeset::flags::ROLLBACK) {
            submission.fill(SubmitOutcome::NotSent);
            return;
        }
        let seen = writeset::last_seen(&payload).unwrap_or(SEQNO_UNDEFINED);
        if payload.len() <= PIECE_BYTES {
            let number = self.propose(kind, payload);
            self.slots.push_back(Waiting { number, seen, submission });
            return;
        }
        match writeset::split(&payload, PIECE_BYTES) {
            Ok(split) if split.last.len() > LAST_MAX => {
                let bytes = split.last.len();
                self.log(
                    Level::Error,
                    format!(
                        "a transaction's keys and notes take {bytes} bytes, more than the {LAST_MAX} that an entry of \
                         the log may have: it is refused; change fewer rows at a time"
                    ),
                );
                submission.fill(SubmitOutcome::TooLarge);
            }
            Ok(split) => {
                self.large.push_back(Large {
                    pieces: split.pieces.into(),
                    last: split.last,
                    kind,
                    seen,
                    submission,
                });
            }
            Err(error) => {
                self.log(Level::Error, format!("a write-set of this member {error}: it is refused"));
                submission.fill(SubmitOutcome::TooLarge);
            }
        }
    }

    /// The pieces of one large write-set at a time, a few in each round, so that small ones overtake between them.
    pub(super) fn large_step(&mut self) {
        self.large_sent.committed(self.raft.committed_proposal());
        while let Some(large) = self.large.front_mut() {
            if self.large_sent.bytes > LARGE_WINDOW {
                return;
            }
            if let Some(piece) = large.pieces.pop_front() {
                let bytes = piece.len();
                let number = self.propose(EntryKind::Piece, piece);
                self.large_sent.push(number, bytes);
            } else if let Some(Large { last, kind, seen, submission, .. }) = self.large.pop_front() {
                let bytes = last.len();
                let number = self.propose(kind, last);
                self.large_sent.push(number, bytes);
                self.slots.push_back(Waiting { number, seen, submission });
            }
        }
    }

    /// The slot of an own proposal, if a thread waits for it.
    pub(super) fn take_slot(&mut self, number: u64) -> Option<Filler> {
        while let Some(front) = self.slots.front() {
            if front.number > number {
                return None;
            }
            let front = self.slots.pop_front()?;
            if front.number == number {
                return Some(front.submission);
            }
        }
        None
    }

    /// The lowest seqno that a write-set of this member under way has seen, or may yet turn out to have: above it
    /// nothing may be forgotten.
    pub(super) fn lowest_seen(&self) -> Seqno {
        let waiting = self.slots.iter().map(|w| w.seen).chain(self.large.iter().map(|l| l.seen));
        waiting
            .filter(|seen| *seen >= 0)
            .min()
            .unwrap_or(Seqno::MAX)
            .min(self.low_water_mark.low(self.finished()))
    }

    /// A read that must see all that has been acknowledged by now.
    pub(crate) fn causal_read(&mut self, id: u64) {
        if !self.connection.is_primary() {
            self.effects.push(Effect::Causal { id, seqno: None });
            return;
        }
        let (context, term) = (self.raft.read_index(self.now), self.raft.term());
        self.causal.push(CausalRead { id, context, term, index: None });
    }

    /// The leader that was asked has gone: what it named may be lost with it, and nothing come in its place for long. So the
    /// next one is asked, whose log has all of it that is not.
    fn ask_reads_again(&mut self) {
        let term = self.raft.term();
        if self.raft.leader().is_none() || self.causal.iter().all(|read| read.term == term) {
            return;
        }
        let (now, order) = (self.now, &mut self.raft);
        for read in self.causal.iter_mut().filter(|read| read.term != term && read.index.is_some()) {
            *read = CausalRead { id: read.id, context: order.read_index(now), term, index: None };
        }
    }

    pub(super) fn read_ready(&mut self, context: u64, index: Option<Index>) {
        self.on_position_read(context, index);
        let mut kept = Vec::with_capacity(self.causal.len());
        for mut read in std::mem::take(&mut self.causal) {
            if read.context != context {
                kept.push(read);
            } else if index.is_some() {
                read.index = index;
                kept.push(read);
            } else {
                // The leader went: ask the next one.
                (read.context, read.term) = (self.raft.read_index(self.now), self.raft.term());
                kept.push(read);
            }
        }
        self.causal = kept;
    }

    /// Reads whose index has been delivered wait for the server only.
    pub(super) fn causal_step(&mut self) {
        if self.causal.is_empty() {
            return;
        }
        let (next, delivered) = (self.deliverer.next_index(), self.deliverer.delivered());
        let effects = &mut self.effects;
        self.causal.retain(|read| {
            let ready = read.index.is_some_and(|index| next > index);
            if ready {
                effects.push(Effect::Causal { id: read.id, seqno: Some(delivered) });
            }
            !ready
        });
        self.ask_reads_again();
    }

    pub(crate) fn causal_cancelled(&mut self, id: u64) {
        self.causal.retain(|read| read.id != id);
    }

    pub(crate) fn desync(&mut self) {
        self.desyncs += 1;
    }

    pub(crate) fn resync(&mut self) {
        self.desyncs = self.desyncs.saturating_sub(1);
        if self.desyncs == 0
            && let ConnectionState::Running { primary, .. } = self.connection
        {
            self.connection = ConnectionState::Running { primary, synced: false };
        }
    }

    pub(crate) fn set_tuning(&mut self, tuning: Tuning) {
        self.raft.set_relaying(tuning.relay);
        self.tuning = tuning;
        self.set_applying();
        self.adapt_timing();
    }
}

#[cfg(test)]
#[path = "commands_tests.rs"]
mod tests;
