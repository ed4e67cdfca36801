//! The own submissions under way: proposed ones that threads wait for, and large write-sets that go ahead in pieces.
//!
//! **Invariant:** `waiting` ascends by number, and only one large write-set is being sent at a time.

use crate::api::{Level, SubmitOutcome};
use crate::member::context::Context;
use crate::submit::Filler;
use bytes::Bytes;
use lockstep_core::raft::Raft;
use lockstep_core::writeset::{self, Split};
use lockstep_core::{EntryKind, Micros, SEQNO_UNDEFINED, Seqno};
use std::collections::VecDeque;

/// Larger write-sets go through the log in pieces of this size, so that small ones can pass between them.
pub(in crate::member) const PIECE_BYTES: usize = crate::api::IN_ORDER_BYTES;
/// The largest entry: the rest of a large write-set after its data have gone ahead in pieces (mostly its keys).
const LAST_MAX: usize = 128 << 20;
/// While this many bytes of large write-sets are in flight, no further piece is sent. Small write-sets do not count: under a
/// weak policy, or over a long line, they could fill any window, and a large one would never be sent.
pub(in crate::member) const LARGE_WINDOW: usize = 8 << 20;

/// A large write-set that is being sent.
#[derive(Debug)]
struct Large {
    pieces: VecDeque<Bytes>,
    last: Bytes,
    kind: EntryKind,
    last_seen: Seqno,
    submission: Filler,
}

/// Parts of large write-sets that are proposed and not committed.
#[derive(Debug, Default)]
struct LargeSent {
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
    fn withdrawn(&mut self, first: u64) {
        while self.parts.back().is_some_and(|part| part.0 >= first)
            && let Some((_, bytes)) = self.parts.pop_back()
        {
            self.bytes -= bytes;
        }
    }
}

/// A submission that has been proposed.
#[derive(Debug)]
struct Waiting {
    number: u64,
    /// The last seqno that its origin had seen: certification may forget nothing above it.
    last_seen: Seqno,
    submission: Filler,
}

/// See the module.
#[derive(Debug, Default)]
pub(in crate::member) struct Submissions {
    waiting: VecDeque<Waiting>,
    large: VecDeque<Large>,
    large_sent: LargeSent,
}

impl Submissions {
    /// Proposes a write-set or statement, or queues a large one.
    pub(in crate::member) fn submit(
        &mut self,
        ctx: &mut Context,
        kind: EntryKind,
        payload: Bytes,
        submission: Filler,
    ) {
        debug_assert!(kind.may_be_proposed());
        let last_seen = writeset::last_seen(&payload).unwrap_or(SEQNO_UNDEFINED);
        if payload.len() <= PIECE_BYTES {
            let number = ctx.raft.propose(ctx.now(), kind, payload);
            self.proposed(number, last_seen, submission);
            return;
        }
        match writeset::split(&payload, PIECE_BYTES) {
            Ok(split) if split.last.len() > LAST_MAX => {
                let bytes = split.last.len();
                ctx.log(
                    Level::Error,
                    format!(
                        "a transaction's keys and notes take {bytes} bytes, more than the {LAST_MAX} that an entry of \
                         the log may have: it is refused; change fewer rows at a time"
                    ),
                );
                submission.fill(SubmitOutcome::TooLarge);
            }
            Ok(split) => self.push_large(split, kind, last_seen, submission),
            Err(error) => {
                ctx.log(Level::Error, format!("a write-set of this member {error}: it is refused"));
                submission.fill(SubmitOutcome::TooLarge);
            }
        }
    }

    /// Adds a submission that was proposed under this number.
    fn proposed(&mut self, number: u64, last_seen: Seqno, submission: Filler) {
        debug_assert!(self.waiting.back().is_none_or(|last| last.number < number));
        self.waiting.push_back(Waiting { number, last_seen, submission });
    }

    /// Queues a large write-set; [`Submissions::propose_large`] sends it.
    fn push_large(&mut self, split: Split, kind: EntryKind, last_seen: Seqno, submission: Filler) {
        let pieces = split.pieces.into();
        self.large.push_back(Large { pieces, last: split.last, kind, last_seen, submission });
    }

    /// Proposes pieces of one large write-set at a time, within [`LARGE_WINDOW`], so that small ones overtake between them.
    pub(in crate::member) fn propose_large(&mut self, raft: &mut Raft, now: Micros) {
        self.large_sent.committed(raft.committed_proposal());
        while let Some(large) = self.large.front_mut() {
            if self.large_sent.bytes > LARGE_WINDOW {
                return;
            }
            if let Some(piece) = large.pieces.pop_front() {
                let bytes = piece.len();
                let number = raft.propose(now, EntryKind::Piece, piece);
                self.large_sent.push(number, bytes);
            } else if let Some(Large { last, kind, last_seen, submission, .. }) = self.large.pop_front() {
                let bytes = last.len();
                let number = raft.propose(now, kind, last);
                self.large_sent.push(number, bytes);
                self.proposed(number, last_seen, submission);
            }
        }
    }

    /// The slot of the proposal with this number, if a thread waits for it. Earlier slots are dropped.
    pub(in crate::member) fn take(&mut self, number: u64) -> Option<Filler> {
        while let Some(front) = self.waiting.front() {
            if front.number > number {
                return None;
            }
            let front = self.waiting.pop_front()?;
            if front.number == number {
                return Some(front.submission);
            }
        }
        None
    }

    /// Whether a thread waits for the proposal with this number.
    pub(in crate::member) fn awaits(&self, number: u64) -> bool {
        self.waiting.iter().any(|waiting| waiting.number == number)
    }

    /// The number of proposed submissions that threads wait for.
    pub(in crate::member) fn proposed_len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing is proposed or queued.
    pub(in crate::member) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.large.is_empty()
    }

    /// The lowest seqno that a submission under way has seen.
    pub(in crate::member) fn lowest_seen(&self) -> Option<Seqno> {
        let all = self.waiting.iter().map(|w| w.last_seen).chain(self.large.iter().map(|l| l.last_seen));
        all.filter(|last_seen| *last_seen >= 0).min()
    }

    /// Wakes every waiting thread: *not sent* for queued ones and for proposals from `first_unsent` on, *unknown* for the
    /// others.
    pub(in crate::member) fn fail_all(&mut self, first_unsent: Option<u64>) {
        if let Some(first) = first_unsent {
            self.large_sent.withdrawn(first);
        }
        for large in self.large.drain(..) {
            large.submission.fill(SubmitOutcome::NotSent);
        }
        for Waiting { number, submission, .. } in self.waiting.drain(..) {
            let unsent = first_unsent.is_some_and(|first| number >= first);
            submission.fill(if unsent { SubmitOutcome::NotSent } else { SubmitOutcome::Unknown });
        }
    }

    /// Answers *unknown* to the threads that wait for proposals up to this number. Returns their numbers.
    pub(in crate::member) fn give_up(&mut self, upto: u64) -> Vec<u64> {
        let count = self.waiting.partition_point(|waiting| waiting.number <= upto);
        let given_up = self.waiting.drain(..count).map(|Waiting { number, submission, .. }| {
            submission.fill(SubmitOutcome::Unknown);
            number
        });
        given_up.collect()
    }

    /// A new incarnation: its proposals are numbered anew.
    pub(in crate::member) fn renew(&mut self) {
        self.large_sent = LargeSent::default();
    }

    #[cfg(test)]
    pub(in crate::member) fn large_bytes_in_flight(&self) -> usize {
        self.large_sent.bytes
    }
}
