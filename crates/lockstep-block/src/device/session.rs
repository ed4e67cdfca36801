//! The attachment of this member: its entries of writes, from the first send until they are committed.
//!
//! Entries are sent in the order of their numbers, several at a time. A lost entry is sent again with all that follow it ("go
//! back n"): copies ignore the numbers that they know.
//!
//! **Invariant**: `committed <= acknowledged <= last`, and `committed <= sent <= last`. `entries` are those after `committed`.

use super::extent_map::{Content, RUN_BYTES, Run};
use crate::export::Peer;
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The most data of one entry. With its header it stays below the size up to which the log keeps the order.
const ENTRY_BYTES: u64 = (1 << 20) - (64 << 10);
/// The most runs of one entry: their headers must fit, too.
const ENTRY_RUNS: usize = 2048;
/// After a report of a loss everything is sent again in this time. It doubles with each try, since the entries after a lost one
/// are reported, too.
const REPORTED_AFTER: Duration = Duration::from_millis(20);
/// Without a report, everything is sent again after this time without progress.
const LOST_AFTER: Duration = Duration::from_secs(5);
/// The longest such time: it doubles with each try.
const LOST_AFTER_MAX: Duration = Duration::from_secs(60);
/// The entry that ends the attachment may be lost. It is sent again after this time: at most one of them is accepted.
const DETACH_AGAIN: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Pending {
    runs: Vec<Run>,
    /// Once it was sent.
    payload: Option<Bytes>,
    /// The bytes of its data.
    bytes: u64,
    /// The memory of its data and its runs.
    memory: u64,
}

/// Entries of a session that has ended.
#[derive(Debug)]
pub(crate) struct Entries {
    _entries: VecDeque<Pending>,
}

#[derive(Debug)]
struct Detach {
    payload: Bytes,
    sent: Option<Instant>,
}

/// The next thing to send.
#[derive(Debug)]
pub(crate) enum ToSend {
    /// These runs, for the first time.
    Runs(Vec<Run>),
    /// This payload, again.
    Again(Bytes),
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Session {
    epoch: u64,
    peer: Peer,
    connections: usize,
    /// The last connection is leaving in order: no client joins.
    leaving: bool,
    /// The entry that ends the attachment in order.
    detach: Option<Detach>,
    /// Why the attachment has ended.
    failed: Option<String>,
    entries: VecDeque<Pending>,
    /// The memory of `entries`.
    memory: u64,
    last: u64,
    sent: u64,
    committed: u64,
    acknowledged: u64,
    /// Bytes of the entries that are sent and not committed.
    outstanding: u64,
    /// When the last entry was committed, or the first was sent after none was under way.
    progress: Instant,
    lost_after: Duration,
    reported_after: Duration,
    /// An entry was refused or lost.
    lost: bool,
}

impl Session {
    pub(crate) fn new(epoch: u64, peer: Peer, now: Instant) -> Session {
        Session {
            epoch,
            peer,
            connections: 0,
            leaving: false,
            detach: None,
            failed: None,
            entries: VecDeque::new(),
            memory: 0,
            last: 0,
            sent: 0,
            committed: 0,
            acknowledged: 0,
            outstanding: 0,
            progress: now,
            lost_after: LOST_AFTER,
            reported_after: REPORTED_AFTER,
            lost: false,
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections
    }

    pub(crate) fn connected(&mut self) {
        self.connections += 1;
    }

    pub(crate) fn disconnected(&mut self) {
        self.connections = self.connections.saturating_sub(1);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving
    }

    pub(crate) fn set_leaving(&mut self) {
        self.leaving = true;
    }

    /// The attachment goes on: no entry can end it in order any more.
    pub(crate) fn stay(&mut self) {
        self.leaving = false;
        self.detach = None;
    }

    /// This entry ends the attachment in order. It is sent until the log has decided.
    pub(crate) fn detach(&mut self, payload: Bytes) {
        self.detach = Some(Detach { payload, sent: None });
    }

    /// Whether there is such an entry.
    pub(crate) fn is_detaching(&self) -> bool {
        self.detach.is_some()
    }

    /// That entry, if it is due now.
    pub(crate) fn detach_to_send(&mut self, now: Instant) -> Option<Bytes> {
        let detach = self.detach.as_mut().filter(|_| self.failed.is_none())?;
        if detach.sent.is_some_and(|sent| now.saturating_duration_since(sent) < DETACH_AGAIN) {
            return None;
        }
        detach.sent = Some(now);
        Some(detach.payload.clone())
    }

    /// Why the attachment has ended, if it has.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Ends the attachment. The first reason counts. Returns its entries: to free them takes time.
    #[must_use]
    pub(crate) fn fail(&mut self, text: String) -> Entries {
        self.failed.get_or_insert(text);
        self.memory = 0;
        self.outstanding = 0;
        Entries { _entries: std::mem::take(&mut self.entries) }
    }

    /// The number of the last entry.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Every entry up to this one is as durable as the policy asks.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The memory that entries take which are not committed.
    pub(crate) fn memory(&self) -> u64 {
        self.memory
    }

    /// How many entries are not committed.
    pub(crate) fn uncommitted(&self) -> usize {
        self.entries.len()
    }

    /// Makes entries of writes. Calls `fly` for each with its runs and its number.
    pub(crate) fn add(&mut self, runs: Vec<Run>, mut fly: impl FnMut(&[Run], u64)) {
        debug_assert!(self.failed.is_none());
        let (mut entry, mut bytes) = (Vec::new(), 0);
        for run in runs {
            let more = match &run.content {
                Content::Data(data) => data.len() as u64,
                Content::Zeroes { .. } => 0,
            };
            if !entry.is_empty() && (bytes + more > ENTRY_BYTES || entry.len() >= ENTRY_RUNS) {
                self.push(std::mem::take(&mut entry), bytes, &mut fly);
                bytes = 0;
            }
            bytes += more;
            entry.push(run);
        }
        if !entry.is_empty() {
            self.push(entry, bytes, &mut fly);
        }
    }

    fn push(&mut self, runs: Vec<Run>, bytes: u64, fly: &mut impl FnMut(&[Run], u64)) {
        self.last += 1;
        fly(&runs, self.last);
        let memory = bytes + runs.len() as u64 * RUN_BYTES;
        self.memory += memory;
        self.entries.push_back(Pending { runs, payload: None, bytes, memory });
    }

    /// The next entry to send, while fewer than `window` bytes are under way.
    pub(crate) fn next_to_send(&self, window: u64) -> Option<(u64, ToSend)> {
        if self.outstanding >= window {
            return None;
        }
        let pending = self.entries.get((self.sent - self.committed) as usize)?;
        let what = match &pending.payload {
            Some(payload) => ToSend::Again(payload.clone()),
            None => ToSend::Runs(pending.runs.clone()),
        };
        Some((self.sent + 1, what))
    }

    /// That entry was sent.
    pub(crate) fn sent(&mut self, number: u64, payload: Bytes, now: Instant) {
        if number != self.sent + 1 {
            // Sent again or committed meanwhile.
            return;
        }
        if self.sent == self.committed {
            self.progress = now;
        }
        let at = (self.sent - self.committed) as usize;
        if let Some(pending) = self.entries.get_mut(at) {
            self.sent = number;
            self.outstanding += pending.bytes;
            pending.payload = Some(payload);
            pending.runs = Vec::new();
        }
    }

    /// The log has this entry as durably as the policy asks, before it is committed. An acknowledgement counts only if those of
    /// all entries before have come: the log may have lost one of them.
    pub(crate) fn on_acknowledged(&mut self, number: u64) {
        if number == self.acknowledged + 1 && number <= self.last {
            self.acknowledged = number;
        }
    }

    /// Copies take this entry.
    pub(crate) fn on_committed(&mut self, number: u64, now: Instant) {
        while self.committed < number
            && let Some(pending) = self.entries.pop_front()
        {
            self.committed += 1;
            self.memory -= pending.memory;
            if self.committed <= self.sent {
                self.outstanding -= pending.bytes;
            }
        }
        self.sent = self.sent.max(self.committed);
        self.acknowledged = self.acknowledged.max(self.committed);
        self.progress = now;
        self.lost_after = LOST_AFTER;
        self.reported_after = REPORTED_AFTER;
    }

    /// An entry was refused, was lost, or came without its predecessor.
    pub(crate) fn on_lost(&mut self) {
        self.lost = true;
    }

    /// Goes back to the first entry that is not committed, if it is due. `live`: the log takes entries. Returns whether there is
    /// something to send.
    pub(crate) fn go_back_if_due(&mut self, now: Instant, live: bool) -> bool {
        if self.sent == self.committed || !live {
            return false;
        }
        let waited = now.saturating_duration_since(self.progress);
        let due = if self.lost { &mut self.reported_after } else { &mut self.lost_after };
        if waited < *due {
            return false;
        }
        *due = (*due * 2).min(LOST_AFTER_MAX);
        self.lost = false;
        self.sent = self.committed;
        self.outstanding = 0;
        self.progress = now;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        Session::new(1, Peer::Uid(0), Instant::now())
    }

    fn run(at: u64) -> Run {
        Run::data(at, Bytes::from(vec![1; 1000]))
    }

    /// Sends all that the window permits. Returns the numbers.
    fn send(session: &mut Session, window: u64, now: Instant) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some((number, _)) = session.next_to_send(window) {
            session.sent(number, Bytes::from_static(b"payload"), now);
            numbers.push(number);
        }
        numbers
    }

    #[test]
    fn entries_stay_below_their_limits() {
        let mut session = session();
        let runs: Vec<Run> = (0..5000).map(|at| run(at * 1000)).collect();
        let mut sizes = Vec::new();
        session.add(runs, |runs, _| sizes.push(runs.len()));
        assert_eq!(sizes.iter().sum::<usize>(), 5000);
        assert!(sizes.iter().all(|n| *n <= ENTRY_RUNS && *n as u64 * 1000 <= ENTRY_BYTES), "{sizes:?}");
    }

    #[test]
    fn window_bounds_what_is_under_way() {
        let mut session = session();
        for at in 0..5 {
            session.add(vec![run(at)], |_, _| {});
        }
        assert_eq!(session.memory(), 5 * (1000 + RUN_BYTES));
        assert_eq!(send(&mut session, 2500, Instant::now()), [1, 2, 3]);
        session.on_committed(2, Instant::now());
        assert_eq!(session.memory(), 3 * (1000 + RUN_BYTES), "also those that were not sent");
        assert_eq!(send(&mut session, 2500, Instant::now()), [4, 5]);
        assert_eq!((session.acknowledged(), session.uncommitted()), (2, 3));
    }

    #[test]
    fn acknowledgement_after_a_lost_one_does_not_count() {
        let mut session = session();
        for at in 0..3 {
            session.add(vec![run(at)], |_, _| {});
        }
        send(&mut session, 1 << 20, Instant::now());
        session.on_acknowledged(1);
        session.on_acknowledged(3);
        assert_eq!(session.acknowledged(), 1);
        session.on_committed(2, Instant::now());
        session.on_acknowledged(3);
        assert_eq!(session.acknowledged(), 3);
    }

    #[test]
    fn lost_entries_are_sent_again_once() {
        let mut session = session();
        for at in 0..3 {
            session.add(vec![run(at)], |_, _| {});
        }
        let now = Instant::now();
        send(&mut session, 1 << 20, now);
        session.on_committed(1, now);
        assert!(!session.go_back_if_due(now + LOST_AFTER / 2, true));
        session.on_lost();
        assert!(!session.go_back_if_due(now + LOST_AFTER / 2, false), "the log takes nothing");
        assert!(session.go_back_if_due(now + LOST_AFTER / 2, true));
        assert_eq!(send(&mut session, 1 << 20, now + LOST_AFTER / 2), [2, 3]);
        session.on_lost();
        assert!(!session.go_back_if_due(now + LOST_AFTER / 2, true), "of the same loss");
        let later = now + LOST_AFTER / 2 + 2 * REPORTED_AFTER;
        assert!(session.go_back_if_due(later, true));
        send(&mut session, 1 << 20, later);
        assert!(!session.go_back_if_due(later + LOST_AFTER / 2, true));
        assert!(session.go_back_if_due(later + LOST_AFTER, true), "without a report, later");
    }

    #[test]
    fn nothing_under_way_is_nothing_to_repeat() {
        let mut session = session();
        assert!(!session.go_back_if_due(Instant::now() + LOST_AFTER_MAX, true));
    }
}
