//! Requests of the front end's threads.

use super::{Effect, Member};
use crate::api::{Level, SubmitOutcome, Tuning};
use crate::member::connection_state::ConnectionState;
use crate::submit::Filler;
use bytes::Bytes;
use lockstep_core::writeset;
use lockstep_core::{EntryKind, Index, SEQNO_UNDEFINED, Seqno, Term};
use std::collections::VecDeque;

/// Larger write-sets go through the log in pieces of this size, so that small ones can pass between them.
pub(super) const PIECE_BYTES: usize = crate::api::IN_ORDER_BYTES;
/// No further piece is sent while this many bytes of large write-sets are under way. Small write-sets do not count:
/// under a weak policy, or on a slow link, there may always be as many bytes of them, and the large one would starve.
const LARGE_WINDOW: usize = 8 << 20;

/// The largest entry: the rest of a large write-set after its data have gone ahead in pieces (mostly its keys).
const LAST_MAX: usize = 128 << 20;

/// A large write-set that is being sent.
pub(super) struct Large {
    pieces: VecDeque<Bytes>,
    last: Bytes,
    kind: EntryKind,
    pub(super) seen: Seqno,
    pub(super) submission: Filler,
}

/// Uncommitted proposals of large write-sets.
#[derive(Debug, Default)]
pub(super) struct LargeSent {
    /// Proposal numbers and bytes, ascending.
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

/// A proposed submission.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) number: u64,
    /// The write-set's last seen seqno: keys above it must not be forgotten before it is certified.
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
    /// The index that must be delivered first.
    index: Option<Index>,
}

impl Member {
    /// Submits a write-set or statement to the log.
    pub(crate) fn submit(&mut self, kind: EntryKind, payload: Bytes, submission: Filler) {
        if !self.connection.is_primary() || self.leaving {
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

    /// Proposes the pieces of one large write-set at a time, a few per round, so that small ones can pass between them.
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

    /// The submission of an own proposal, if a thread waits for it.
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

    /// The lowest last seen seqno of any write-set of this member that is under way or may still come: keys above it
    /// must be kept.
    pub(super) fn lowest_seen(&self) -> Seqno {
        let waiting = self.slots.iter().map(|w| w.seen).chain(self.large.iter().map(|l| l.seen));
        waiting
            .filter(|seen| *seen >= 0)
            .min()
            .unwrap_or(Seqno::MAX)
            .min(self.low_water_mark.low(self.finished()))
    }

    /// Begins a read that must see every commit acknowledged so far.
    pub(crate) fn causal_read(&mut self, id: u64) {
        if !self.connection.is_primary() {
            self.effects.push(Effect::Causal { id, seqno: None });
            return;
        }
        let (context, term) = (self.raft.read_index(self.now), self.raft.term());
        self.causal.push(CausalRead { id, context, term, index: None });
    }

    /// If the leader changed, the index it named may be lost with it and not be reached again for long. The new
    /// leader's log has every entry that survived, so the read is asked again there.
    fn repeat_reads(&mut self) {
        let term = self.raft.term();
        if self.raft.leader().is_none() || self.causal.iter().all(|read| read.term == term) {
            return;
        }
        let (now, raft) = (self.now, &mut self.raft);
        for read in self.causal.iter_mut().filter(|read| read.term != term && read.index.is_some()) {
            *read = CausalRead { id: read.id, context: raft.read_index(now), term, index: None };
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
                // The leader is gone: ask the next one.
                (read.context, read.term) = (self.raft.read_index(self.now), self.raft.term());
                kept.push(read);
            }
        }
        self.causal = kept;
    }

    /// Reads whose index has been delivered now wait for the server only.
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
        self.repeat_reads();
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
        self.adopt_apply_options();
        self.adapt_timing();
    }
}

#[cfg(test)]
#[path = "commands_tests.rs"]
mod tests;
