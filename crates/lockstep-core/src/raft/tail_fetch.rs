//! Sends our log tail to a candidate ([`super::log_recovery`]), ahead of its requests.
//!
//! The candidate requests entries from an index on, and requests again from the end of each received part. So a request also
//! confirms earlier parts, and several parts may be in flight: the transfer is bounded by bandwidth, not by one part per
//! round trip. (Earlier versions send the same requests, and answer each with one part.)
//!
//! The bytes in flight grow with each prompt confirmation. A repeated request means a loss: the transfer restarts there, with
//! half as many bytes in flight.

use super::relay::Sent;
use super::*;
use std::collections::VecDeque;

/// The most bytes of a tail in one message: it must come through before patience ends.
const TAIL_BYTES: usize = 256 << 10;
/// The most bytes of a tail that are on their way (one message may be larger).
pub(super) const TAIL_AHEAD: usize = 4 << 20;

/// To whom we give our tail, in this term.
#[derive(Debug)]
pub(super) struct TailFetch {
    to: MemberId,
    /// It has asked from here on: it has what is before it. At most `next`.
    asked: Index,
    /// The next index to send.
    next: Index,
    /// So many bytes may be on their way.
    window: usize,
    /// What is.
    inflight: VecDeque<Sent>,
    inflight_bytes: usize,
    /// The next part is being read from the disk.
    fetching: Option<Index>,
}

impl TailFetch {
    /// Handles a request: the candidate has all entries before `first`. `soon`: the reply time up to which the window grows.
    fn asks(&mut self, first: Index, now: Micros, soon: Micros, most: usize) {
        if first > self.asked {
            let before = self.inflight_bytes;
            while let Some(&sent) = self.inflight.front()
                && sent.last < first
            {
                self.inflight.pop_front();
                self.inflight_bytes -= sent.bytes;
                self.window = match now.saturating_sub(sent.at) <= soon {
                    true => self.window.saturating_add(sent.bytes),
                    false => self.window.min(before / 2),
                };
            }
            self.next = self.next.max(first);
        } else {
            self.inflight.clear();
            self.inflight_bytes = 0;
            self.window /= 2;
            self.next = first;
        }
        self.asked = first;
        self.window = self.window.min(most).max(1);
    }

    fn sent(&mut self, last: Index, bytes: usize, at: Micros) {
        self.inflight.push_back(Sent { last, bytes, at });
        self.inflight_bytes += bytes;
        self.next = last + 1;
    }
}

impl Raft {
    /// A candidate that we have told how our log ends wants to have it.
    pub(super) fn on_fetch_tail(&mut self, from: MemberId, term: Term, first: Index) {
        if term != self.term || self.role == Role::Leader || !self.log.exists() || first == 0 {
            return;
        }
        let most = self.config.max_inflight_bytes.min(TAIL_AHEAD);
        let (now, soon) = (self.now, self.recovery_timeout());
        match self.tail_fetch.as_mut().filter(|giving| giving.to == from) {
            Some(giving) => giving.asks(first, now, soon, most),
            None => {
                self.tail_fetch = Some(TailFetch {
                    to: from,
                    asked: first,
                    next: first,
                    window: self.tail_part_bytes().min(most).max(1),
                    inflight: VecDeque::new(),
                    inflight_bytes: 0,
                    fetching: None,
                })
            }
        }
        self.send_next_tail_part();
    }

    fn tail_part_bytes(&self) -> usize {
        self.config.max_append_bytes.min(TAIL_BYTES)
    }

    /// Gives as much as may be on its way. Something in any case, if nothing is: there is a question to be answered.
    fn send_next_tail_part(&mut self) {
        let Some(mut giving) = self.tail_fetch.take() else { return };
        let max_bytes = self.tail_part_bytes();
        while giving.fetching.is_none() && giving.inflight_bytes < giving.window {
            let first = giving.next;
            let there = self.log.term_at(first - 1).is_some() && first <= self.log.last();
            if !there {
                if giving.inflight.is_empty() {
                    self.send_tail(giving.to, first, Vec::new());
                }
                break;
            }
            if first < self.log.cached_from() {
                giving.fetching = Some(first);
                self.outputs.push(Output::Fetch { to: giving.to, from: first, max_bytes });
                break;
            }
            let (entries, bytes) = self.log.slice(first, Index::MAX, max_bytes);
            giving.sent(first + entries.len() as u64 - 1, bytes, self.now);
            self.send_tail(giving.to, first, entries);
        }
        self.tail_fetch = Some(giving);
    }

    /// Entries for a candidate have come from the disk. Whether they were for one.
    pub(super) fn fetched_tail(&mut self, to: MemberId, from: Index, entries: &[Entry]) -> bool {
        let of_term = self.role != Role::Leader;
        let Some(mut giving) = self.tail_fetch.take_if(|g| of_term && g.to == to && g.fetching == Some(from))
        else {
            return false;
        };
        giving.fetching = None;
        let ours = entries.iter().enumerate().take_while(|(n, e)| {
            e.index == from.saturating_add(*n as u64) && self.log.term_at(e.index) == Some(e.term)
        });
        let entries: Vec<Entry> = ours.map(|(_, e)| e.clone()).collect();
        // It may have asked for something else meanwhile.
        let wanted = giving.next == from;
        let gone = wanted && entries.is_empty();
        if wanted && let Some(last) = entries.last() {
            giving.sent(last.index, entries.iter().map(Entry::size).sum(), self.now);
        }
        self.tail_fetch = Some(giving);
        if wanted {
            self.send_tail(to, from, entries);
        }
        if !gone {
            self.send_next_tail_part();
        }
        true
    }

    fn send_tail(&mut self, to: MemberId, first: Index, entries: Vec<Entry>) {
        // Where our log begins later, index 0 says that we cannot.
        let (prev_index, prev_term) = match self.log.term_at(first - 1) {
            Some(term) => (first - 1, term),
            None => (0, 0),
        };
        let last = self.log.last();
        self.send(to, Message::TailEntries { term: self.term, prev_index, prev_term, last, entries });
    }
}
