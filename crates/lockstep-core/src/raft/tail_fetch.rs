//! Sends our log tail to a candidate ([`super::log_recovery`]), ahead of its requests.
//!
//! The candidate requests entries from an index on, and requests again from the end of each received part. So a request also
//! confirms earlier parts, and several parts may be in flight: the transfer is bounded by bandwidth, not by one part per
//! round trip. (Earlier versions send the same requests, and answer each with one part.)
//!
//! The bytes in flight grow with each prompt confirmation. A repeated request means a loss: the transfer restarts there, with
//! half as many bytes in flight.

use super::inflight::Inflight;
use super::local::Local;
use super::output::{Output, Outputs};
use crate::message::Message;
use crate::types::*;

/// The most bytes of a tail in one message: it must arrive before the candidate's timeout.
const TAIL_BYTES: usize = 256 << 10;
/// The most bytes of a tail in flight (one message may be larger).
pub(super) const TAIL_AHEAD: usize = 4 << 20;

/// Serves the candidate of this term that fetches our log tail, if there is one.
#[derive(Debug, Default)]
pub(super) struct TailFetch {
    current: Option<Transfer>,
}

/// **Invariant:** `asked <= next`.
#[derive(Debug)]
struct Transfer {
    to: MemberId,
    /// The candidate has requested entries from here on: it has all before.
    asked: Index,
    /// The next index to send.
    next: Index,
    /// The most bytes in flight.
    window: usize,
    inflight: Inflight,
    /// The next part is being read from the disk.
    fetching: Option<Index>,
}

impl Transfer {
    /// Handles a request: the candidate has all entries before `first`. `soon`: the reply time up to which the window grows.
    fn request(&mut self, first: Index, now: Micros, soon: Micros, most: usize) {
        if first > self.asked {
            let before = self.inflight.bytes();
            while let Some(sent) = self.inflight.confirm(first - 1) {
                self.window = match now.saturating_sub(sent.at) <= soon {
                    true => self.window.saturating_add(sent.bytes),
                    false => self.window.min(before / 2),
                };
            }
            self.next = self.next.max(first);
        } else {
            self.inflight.clear();
            self.window /= 2;
            self.next = first;
        }
        self.asked = first;
        self.window = self.window.min(most).max(1);
    }

    fn sent(&mut self, last: Index, bytes: usize, at: Micros) {
        self.inflight.push(last, bytes, at);
        self.next = last + 1;
    }
}

impl TailFetch {
    /// Another term: its candidate has not asked yet.
    pub(super) fn forget(&mut self) {
        self.current = None;
    }

    /// Handles a candidate's request for the entries from `first` on. `soon`: the reply time up to which more may be in
    /// flight.
    pub(super) fn on_request(
        &mut self,
        local: &Local,
        out: &mut Outputs,
        (from, term, first): (MemberId, Term, Index),
        soon: Micros,
    ) {
        if term != local.term() || local.is_leader() || !local.log().exists() || first == 0 {
            return;
        }
        let most = local.config().max_inflight_bytes.min(TAIL_AHEAD);
        match self.current.as_mut().filter(|transfer| transfer.to == from) {
            Some(transfer) => transfer.request(first, local.now(), soon, most),
            None => {
                self.current = Some(Transfer {
                    to: from,
                    asked: first,
                    next: first,
                    window: part_bytes(local).min(most).max(1),
                    inflight: Inflight::default(),
                    fetching: None,
                })
            }
        }
        self.send(local, out);
    }

    /// Sends what the window allows. At least one message if none is in flight, because a request has to be answered.
    fn send(&mut self, local: &Local, out: &mut Outputs) {
        let Some(transfer) = &mut self.current else { return };
        let (log, max_bytes) = (local.log(), part_bytes(local));
        while transfer.fetching.is_none() && transfer.inflight.bytes() < transfer.window {
            let first = transfer.next;
            debug_assert!(transfer.asked <= first, "requested entries come before the next part");
            let there = log.term_at(first - 1).is_some() && first <= log.last();
            if !there {
                if transfer.inflight.is_empty() {
                    send_part(local, out, transfer.to, first, Vec::new());
                }
                break;
            }
            if first < log.cached_from() {
                transfer.fetching = Some(first);
                out.push(Output::Fetch { to: transfer.to, from: first, max_bytes });
                break;
            }
            let (entries, bytes) = log.slice(first, Index::MAX, max_bytes);
            transfer.sent(first + entries.len() as u64 - 1, bytes, local.now());
            send_part(local, out, transfer.to, first, entries);
        }
    }

    /// Handles entries read from the disk. Whether they were for a candidate.
    pub(super) fn on_fetched(
        &mut self,
        local: &Local,
        out: &mut Outputs,
        to: MemberId,
        from: Index,
        entries: &[Entry],
    ) -> bool {
        let may_serve = !local.is_leader();
        let waits = |transfer: &&mut Transfer| transfer.to == to && transfer.fetching == Some(from);
        let Some(transfer) = self.current.as_mut().filter(|transfer| may_serve && waits(transfer)) else {
            return false;
        };
        transfer.fetching = None;
        let ours = entries.iter().enumerate().take_while(|(n, e)| {
            e.index == from.saturating_add(*n as u64) && local.log().term_at(e.index) == Some(e.term)
        });
        let entries: Vec<Entry> = ours.map(|(_, e)| e.clone()).collect();
        // The candidate may have requested other entries meanwhile.
        let wanted = transfer.next == from;
        let gone = wanted && entries.is_empty();
        if wanted && let Some(last) = entries.last() {
            transfer.sent(last.index, entries.iter().map(Entry::size).sum(), local.now());
        }
        if wanted {
            send_part(local, out, to, from, entries);
        }
        if !gone {
            self.send(local, out);
        }
        true
    }
}

fn part_bytes(local: &Local) -> usize {
    local.config().max_append_bytes.min(TAIL_BYTES)
}

fn send_part(local: &Local, out: &mut Outputs, to: MemberId, first: Index, entries: Vec<Entry>) {
    // Index 0 says that our log begins later.
    let (prev_index, prev_term) = match local.log().term_at(first - 1) {
        Some(term) => (first - 1, term),
        None => (0, 0),
    };
    let (term, last) = (local.term(), local.log().last());
    out.send(to, Message::TailEntries { term, prev_index, prev_term, last, entries });
}

#[cfg(test)]
mod tests {
    use super::super::testing::{follower, member, with_entries};
    use super::*;

    /// The parts sent: previous index and number of entries.
    fn parts(out: &mut Outputs) -> Vec<(Index, usize)> {
        let part = |output| match output {
            Output::Send { message: Message::TailEntries { prev_index, entries, .. }, .. } => {
                (prev_index, entries.len())
            }
            other => panic!("no part of a tail: {other:?}"),
        };
        out.take().into_iter().map(part).collect()
    }

    #[test]
    fn request_of_another_term_is_ignored() {
        let (local, mut out, mut fetch) = (follower(3, None), Outputs::new(), TailFetch::default());
        fetch.on_request(&local, &mut out, (member(2), local.term() + 1, 1), 1000);
        assert!(out.take().is_empty());
    }

    #[test]
    fn tail_is_sent_from_requested_index_to_its_end() {
        let (mut out, mut fetch) = (Outputs::new(), TailFetch::default());
        let local = with_entries(follower(3, None), 5);
        let term = local.term();
        fetch.on_request(&local, &mut out, (member(2), term, 3), 1000);
        assert_eq!(parts(&mut out), [(2, 3)]);
        fetch.on_request(&local, &mut out, (member(2), term, 6), 1000);
        assert_eq!(parts(&mut out), [(5, 0)], "a request at the end is answered, too");
    }

    #[test]
    fn repeated_request_restarts_transfer() {
        let (mut out, mut fetch) = (Outputs::new(), TailFetch::default());
        let local = with_entries(follower(3, None), 5);
        for _ in 0..2 {
            fetch.on_request(&local, &mut out, (member(2), local.term(), 2), 1000);
            assert_eq!(parts(&mut out), [(1, 4)]);
        }
    }
}
