//! Writes in flight to the disk, the persisted index, and messages held back until a write completes.
//!
//! Writes are numbered by tickets and become durable in their order. "Durable up to index n" is only true of the
//! entries that the write carried. If a later truncation replaces some of them, the older write's arrival says nothing
//! about the new ones (the ABA race). So a truncation lowers what all writes on their way may claim.

use super::failpoints::{Failpoint, Failpoints};
use super::log::Log;
use super::standstill::Standstill;
use super::write::{Rescue, Vote, WriteOp};
use crate::message::Message;
use crate::snapshot::StateSnapshot;
use crate::types::*;
use std::collections::VecDeque;

/// A message held back until the vote is durable.
#[derive(Debug)]
pub(super) enum Held {
    /// A message that tells of it.
    Send(MemberId, Message),
    /// Our own vote for ourselves in this term.
    OwnVote(Term),
}

#[derive(Debug)]
struct Flight {
    ticket: u64,
    /// The persisted index once this write completes, as far as the entries still equal those in memory.
    last: Index,
    /// Bytes of the entries that it carries, replaced ones included.
    bytes: usize,
}

/// **Invariants:** `persisted <= handed`; all of `in_flight[..].last <= handed`; tickets ascend.
#[derive(Debug)]
pub(super) struct Disk {
    last_ticket: u64,
    in_flight: VecDeque<Flight>,
    /// Sum of their bytes.
    in_flight_bytes: usize,
    /// There was too much of it, and half of that is still there.
    full: bool,
    /// Up to here entries were given to a write; those above go with the next.
    handed: Index,
    /// Up to here the entries in memory are on the disk.
    persisted: Index,
    /// The next write begins by keeping these elsewhere.
    rescue: Vec<Rescue>,
    /// The next write begins by giving up what the disk has from here on.
    truncate_from: Option<Index>,
    /// The next write begins the log anew, at its base.
    reset: bool,
    /// The next write that has entries begins a new segment, after this state. **Invariant:** its index is `handed`.
    roll: Option<Box<StateSnapshot>>,
    /// The vote has changed since the last write.
    vote_dirty: bool,
    /// The ticket of the last write with a vote.
    vote_ticket: u64,
    /// Wait for the next write with a vote.
    waiting: Vec<Held>,
    /// Wait for a ticket.
    held: VecDeque<(u64, Held)>,
    /// How long no write has completed.
    standstill: Standstill,
}

impl Disk {
    /// Asserts the invariants of [`Disk`]. `last`: the last index of the log.
    pub(super) fn assert_invariants(&self, last: Index) {
        assert!(self.persisted <= self.handed, "persisted {} <= handed {}", self.persisted, self.handed);
        assert!(self.handed <= last, "handed {} <= last {last}", self.handed);
        assert!(
            self.in_flight.iter().all(|flight| flight.last <= self.handed),
            "writes in flight end at {}",
            self.handed
        );
        let tickets = self.in_flight.iter().zip(self.in_flight.iter().skip(1));
        assert!(tickets.into_iter().all(|(a, b)| a.ticket < b.ticket), "tickets ascend");
    }

    /// Everything up to `last` is there.
    pub(super) fn new(last: Index) -> Disk {
        Disk {
            last_ticket: 0,
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            full: false,
            handed: last,
            persisted: last,
            rescue: Vec::new(),
            truncate_from: None,
            reset: false,
            roll: None,
            vote_dirty: false,
            vote_ticket: 0,
            waiting: Vec::new(),
            held: VecDeque::new(),
            standstill: Standstill::default(),
        }
    }

    /// Up to here the entries in memory are on the disk.
    pub(super) fn persisted(&self) -> Index {
        self.persisted
    }

    /// Notes whether writes complete.
    pub(super) fn observe(&mut self, now: Micros) {
        let open = self.in_flight.front().map_or(self.last_ticket, |flight| flight.ticket - 1);
        self.standstill.report(now, open, self.last_ticket);
    }

    /// For how long no write has completed although some are in flight.
    pub(super) fn stands_still_for(&self) -> Micros {
        self.standstill.lasts()
    }

    /// The vote has changed.
    pub(super) fn vote_changed(&mut self) {
        self.vote_dirty = true;
    }

    /// Whether the vote as it is now is not on the disk yet.
    pub(super) fn vote_waits(&self) -> bool {
        self.vote_dirty || self.in_flight.front().is_some_and(|flight| flight.ticket <= self.vote_ticket)
    }

    /// Keeps this until the vote as it is now is on the disk.
    pub(super) fn after_vote(&mut self, what: Held) {
        self.waiting.push(what);
    }

    /// These are to be kept before they are given up.
    pub(super) fn rescue(&mut self, rescue: Rescue) {
        self.rescue.push(rescue);
    }

    /// The entries from `from` on are given up.
    pub(super) fn truncated(&mut self, from: Index, failpoints: Failpoints) {
        let keep = from - 1;
        self.persisted = self.persisted.min(keep);
        if !failpoints.is_active(Failpoint::ReplacedWritesCount) {
            for flight in &mut self.in_flight {
                flight.last = flight.last.min(keep);
            }
        }
        if self.handed > keep {
            self.truncate_from = Some(self.truncate_from.map_or(from, |f| f.min(from)));
            self.handed = keep;
        }
        if self.roll.as_ref().is_some_and(|state| state.index > keep) {
            self.roll = None;
        }
    }

    /// The log restarts after `base`. Entries of the old log up to `committed` still count as persisted.
    pub(super) fn reset(&mut self, base: Index, committed: Index) {
        self.persisted = self.persisted.min(committed);
        for flight in &mut self.in_flight {
            flight.last = flight.last.min(committed);
        }
        self.truncate_from = None;
        self.roll = None;
        self.reset = true;
        self.handed = base;
    }

    /// The next write, if there is anything to write.
    pub(super) fn write(
        &mut self,
        log: &mut Log,
        vote: Vote,
        segment_bytes: u64,
        failpoints: Failpoints,
    ) -> Option<WriteOp> {
        let new = log.last() > self.handed;
        let vote_due = self.vote_dirty && !failpoints.is_active(Failpoint::VoteNotPersisted);
        self.vote_dirty = false;
        if !new && !vote_due && !self.reset && self.truncate_from.is_none() && self.rescue.is_empty() {
            self.hold();
            return None;
        }
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        if vote_due {
            self.vote_ticket = ticket;
        }
        self.hold();
        let reset = std::mem::take(&mut self.reset);
        let roll = if new { self.roll.take() } else { None };
        if let Some(state) = &roll {
            log.roll(state);
        }
        let op = WriteOp {
            ticket,
            rescue: std::mem::take(&mut self.rescue),
            reset: reset.then(|| Box::new(log.base_state())),
            truncate_from: self.truncate_from.take(),
            roll,
            entries: if new { log.slice(self.handed + 1, log.last(), usize::MAX).0 } else { Vec::new() },
            vote: vote_due.then_some(vote),
        };
        self.handed = log.last();
        let bytes = op.entries.iter().map(Entry::size).sum();
        self.in_flight.push_back(Flight { ticket, last: self.handed, bytes });
        self.in_flight_bytes += bytes;
        if self.roll.is_none() && log.segment_full(segment_bytes) {
            self.roll = Some(Box::new(log.tail().clone()));
        }
        Some(op)
    }

    /// Ties the held-back messages to the write that carries the vote.
    fn hold(&mut self) {
        for what in self.waiting.drain(..) {
            self.held.push_back((self.vote_ticket, what));
        }
    }

    /// All writes up to this ticket are on the disk.
    pub(super) fn written(&mut self, ticket: u64) {
        while self.in_flight.front().is_some_and(|flight| flight.ticket <= ticket) {
            if let Some(flight) = self.in_flight.pop_front() {
                self.persisted = self.persisted.max(flight.last);
                self.in_flight_bytes -= flight.bytes;
            }
        }
    }

    /// Whether the writes in flight have reached `max` bytes, and have not fallen to half of it since. It bounds the memory
    /// while a disk hangs. Entries of this round do not count yet: the leader's window bounds them.
    pub(super) fn is_full(&mut self, max: usize) -> bool {
        let limit = if self.full { max / 2 } else { max };
        self.full = self.in_flight_bytes >= limit.max(1);
        self.full
    }

    /// The next thing that waited for a vote and waits no more.
    pub(super) fn released(&mut self) -> Option<Held> {
        let done = self.in_flight.front().map_or(u64::MAX, |flight| flight.ticket - 1);
        if self.held.front().is_some_and(|(ticket, _)| *ticket <= done) {
            self.held.pop_front().map(|h| h.1)
        } else {
            None
        }
    }
}
