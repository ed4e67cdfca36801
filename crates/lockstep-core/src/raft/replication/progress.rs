//! Replication progress of one peer, kept by the leader.

use super::contact::Contact;
use super::route::Route;
use crate::raft::inflight::Inflight;
use crate::raft::local::Local;
use crate::raft::standstill::Standstill;
use crate::types::*;
use std::collections::BTreeMap;

/// The leader's way to replicate to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgressState {
    /// Looks for the index at which the logs agree, with one message at a time.
    Probe,
    /// Sends ahead, up to the window.
    Replicate,
    /// Waits for the node to read entries from this index, which are no longer in memory.
    Fetching(Index),
    /// Has sent the snapshot at this index.
    Base(Index),
}

/// A peer as [`crate::raft::Raft::progress`] shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerProgress {
    /// The peer.
    pub id: MemberId,
    /// The last index on its disk that equals the leader's log.
    pub matched: Index,
    /// The last index in its memory.
    pub received: Index,
    /// The next index to send.
    pub next: Index,
    /// The last seqno finished by its server.
    pub finished: Seqno,
    /// The time of a round trip, smoothed, in µs, if measured.
    pub rtt: Option<Micros>,
    /// When it last answered.
    pub last_answer: Micros,
    /// The leader's way to replicate to it.
    pub state: ProgressState,
    /// Its relay; `None`: entries come from the leader.
    pub via: Option<MemberId>,
}

/// The peers of a leader.
pub(super) type Peers = BTreeMap<MemberId, Progress>;

/// **Invariants:** `matched <= received < next`. After a late answer that overtook another, `next` may be lower until the
/// next answer.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) matched: Index,
    pub(super) received: Index,
    pub(super) next: Index,
    pub(super) finished: Seqno,
    pub(super) position: Option<Seqno>,
    pub(super) contact: Contact,
    pub(super) state: ProgressState,
    /// A probe is in flight: wait for its answer, or for the next heartbeat.
    pub(super) probing: bool,
    /// When the snapshot was sent.
    pub(super) base_sent: Micros,
    /// Each message in flight.
    inflight: Inflight,
    /// The highest commit index that it received or can count for itself.
    pub(super) commit_announced: Index,
    /// The last entry that it proposed. A thread of its server waits for the commit.
    pub(super) proposed: Index,
    /// Our own persisted index as last reported to it.
    pub(super) persisted_announced: Index,
    /// How long its disk has not advanced although entries are in its memory.
    pub(super) disk: Standstill,
    /// The peer was removed by this entry, and is notified until this time.
    pub(super) leaving: Option<(Index, Micros)>,
    /// The path of its entries.
    pub(super) route: Route,
}

impl Progress {
    pub(super) fn new(next: Index, now: Micros) -> Progress {
        Progress {
            matched: 0,
            received: 0,
            next,
            finished: SEQNO_UNDEFINED,
            position: None,
            contact: Contact::new(now),
            state: ProgressState::Probe,
            probing: false,
            base_sent: 0,
            inflight: Inflight::default(),
            commit_announced: 0,
            proposed: 0,
            persisted_announced: 0,
            disk: Standstill::default(),
            leaving: None,
            route: Route::default(),
        }
    }

    /// Asserts the invariants of [`Progress`]. `last`: the leader's last index.
    pub(super) fn assert_invariants(&self, last: Index) {
        assert!(self.matched <= self.received, "matched {} <= received {}", self.matched, self.received);
        assert!(self.received <= last, "received {} <= last {last}", self.received);
    }

    /// A message with entries up to `last` was sent.
    pub(super) fn sent(&mut self, last: Index, bytes: usize, now: Micros) {
        self.inflight.push(last, bytes, now);
        self.next = last + 1;
    }

    /// Whether messages are in flight.
    pub(super) fn awaits_answers(&self) -> bool {
        !self.inflight.is_empty()
    }

    /// The bytes in flight.
    pub(super) fn bytes_in_flight(&self) -> usize {
        self.inflight.bytes()
    }

    /// Whether more bytes may be in flight.
    pub(super) fn window_open(&self, max: usize) -> bool {
        self.inflight.bytes() < max
    }

    /// It has received everything up to here. `moment`: see [`Route::confirmed`].
    pub(super) fn answered(&mut self, received: Index, now: Micros, moment: Micros) {
        let (mut first, mut bytes, mut last) = (None, 0, None);
        while let Some(sent) = self.inflight.confirm(received) {
            bytes += sent.bytes;
            (first, last) = (first.or(Some(sent)), Some(sent));
        }
        if let (Some(first), Some(last)) = (first, last) {
            self.route.confirmed((first, last), bytes, now, moment);
        }
    }

    /// Looks for the place where the logs agree, from `next` on.
    pub(super) fn probe(&mut self, next: Index) {
        self.inflight.clear();
        self.next = next;
        self.probing = false;
        self.state = ProgressState::Probe;
    }

    /// The logs agree up to `next - 1`.
    pub(super) fn replicate(&mut self, next: Index) {
        self.probe(next);
        self.state = ProgressState::Replicate;
    }

    /// The logs agree up to `next - 1`, as the answer to a probe says, and everything after is sent again. `context`: the next
    /// one to be sent.
    pub(super) fn resend(&mut self, next: Index, context: u64) {
        self.replicate(next);
        self.contact.ignore_rejections_before(context);
    }

    /// Whether a rejection says something about messages sent since the last probe. Each message of a window is
    /// rejected if the first is lost. One of these rejections starts a probe; each of the others, believed after it,
    /// would have the whole window sent once more. A gap in the messages sent again shows in the answer to the next
    /// heartbeat. Messages through a relay have no context to go by.
    pub(super) fn believes_rejections(&self) -> bool {
        self.route.relay().is_some() || self.contact.believes_rejections()
    }

    /// An answer to this context has arrived.
    pub(super) fn note_answer(&mut self, context: u64, now: Micros) {
        if let Some(sample) = self.contact.note_answer(context, now) {
            self.route.measured(sample);
        }
    }

    /// Our commit index and persisted index have been sent to the peer.
    pub(super) fn note_announced(&mut self, local: &Local) {
        self.commit_announced = local.commit();
        self.persisted_announced = local.acknowledged();
    }

    /// Whether the peer lacks our commit index and can receive it.
    pub(super) fn lacks_commit(&self, local: &Local) -> bool {
        local.commit() > self.commit_announced && self.state == ProgressState::Replicate
    }

    /// If two voters are a majority, a voter knows that an entry is committed once it and we have persisted it.
    pub(super) fn note_known_commit(&mut self, local: &Local, id: &MemberId) {
        let (membership, index) = (local.membership(), local.log().tail().membership_index);
        let both = membership.is_voter(id) && membership.is_voter(&local.id());
        if both && membership.majority() == 2 && self.matched >= index {
            let known = self.persisted_announced.min(self.matched).min(local.commit());
            self.commit_announced = self.commit_announced.max(known);
        }
    }

    /// Whether the peer was removed, and knows it or has not answered in time.
    pub(super) fn has_left(&self, now: Micros) -> bool {
        self.leaving.is_some_and(|(index, until)| {
            (self.received >= index && self.commit_announced >= index) || now >= until
        })
    }
}
