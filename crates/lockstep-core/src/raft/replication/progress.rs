//! Replication progress of one peer, kept by the leader.

use super::contact::Contact;
use super::round::Round;
use super::route::Route;
use crate::message::{Carried, Message};
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
    matched: Index,
    received: Index,
    next: Index,
    finished: Seqno,
    position: Option<Seqno>,
    contact: Contact,
    state: ProgressState,
    /// A probe is in flight: wait for its answer, or for the next heartbeat.
    probing: bool,
    /// When the snapshot was sent.
    base_sent: Micros,
    /// Each message in flight.
    inflight: Inflight,
    /// The highest commit index that it received or can count for itself.
    commit_announced: Index,
    /// The last entry that it proposed. A thread of its server waits for the commit.
    proposed: Index,
    /// Our own persisted index as last reported to it.
    persisted_announced: Index,
    /// How long its disk has not advanced although entries are in its memory.
    disk: Standstill,
    /// The peer was removed by this entry, and is notified until this time.
    leaving: Option<(Index, Micros)>,
    /// The path of its entries.
    route: Route,
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

    /// The last index on its disk that equals the leader's log; 0 if unknown.
    pub(super) fn matched(&self) -> Index {
        self.matched
    }

    /// The last index in its memory.
    pub(super) fn received(&self) -> Index {
        self.received
    }

    /// The next index to send.
    pub(super) fn next(&self) -> Index {
        self.next
    }

    pub(super) fn state(&self) -> ProgressState {
        self.state
    }

    /// The last entry that it proposed.
    pub(super) fn proposed(&self) -> Index {
        self.proposed
    }

    pub(super) fn contact(&self) -> &Contact {
        &self.contact
    }

    pub(super) fn route(&self) -> &Route {
        &self.route
    }

    /// For how long its disk has completed nothing although entries are in its memory, as of its last answer.
    pub(super) fn disk_stands_still_for(&self) -> Micros {
        self.disk.lasts()
    }

    /// The peer `id` as [`crate::raft::Raft::progress`] shows it.
    pub(super) fn report(&self, id: MemberId) -> PeerProgress {
        PeerProgress {
            id,
            matched: self.matched,
            received: self.received,
            next: self.next,
            finished: self.finished,
            rtt: self.contact.rtt(),
            last_answer: self.contact.last_answer(),
            state: self.state,
            via: self.route.relay(),
        }
    }
}

/// Membership and connection.
impl Progress {
    /// The peer is a member.
    pub(super) fn admitted(&mut self) {
        self.leaving = None;
    }

    /// The peer is no member any more. It is notified until `until`, if it was not removed earlier. `index`: the entry that
    /// removed it.
    pub(super) fn removed(&mut self, index: Index, until: Micros) {
        self.leaving.get_or_insert((index, until));
    }

    /// Whether the peer was removed.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Whether the peer was removed, and knows it or has not answered in time.
    pub(super) fn has_left(&self, now: Micros) -> bool {
        self.leaving.is_some_and(|(index, until)| {
            (self.received >= index && self.commit_announced >= index) || now >= until
        })
    }

    /// A connection has come up. Messages in flight may be lost.
    pub(super) fn connected(&mut self) {
        self.probe(self.next);
        // A reply to a message sent while it was disconnected is no measure of the round trip.
        self.contact.interrupted();
    }

    /// The connection has broken.
    pub(super) fn disconnected(&mut self) {
        let next = self.received.max(self.matched) + 1;
        self.probe(next.min(self.next));
        // Not before it is back, or at the next heartbeat.
        self.probing = true;
    }

    /// The leader did not run for a while: see [`Contact::interrupted`].
    pub(super) fn leader_stalled(&mut self) {
        self.contact.interrupted();
    }
}

/// Messages in flight.
impl Progress {
    /// A message with entries up to `last` was sent.
    fn sent(&mut self, last: Index, bytes: usize, now: Micros) {
        self.inflight.push(last, bytes, now);
        self.next = last + 1;
    }

    /// The bytes in flight.
    pub(super) fn bytes_in_flight(&self) -> usize {
        self.inflight.bytes()
    }

    /// Whether more bytes may be in flight.
    pub(super) fn window_open(&self, max: usize) -> bool {
        self.inflight.bytes() < max
    }

    /// It has received everything up to here. `moment`: see [`Path::confirmed`](super::path::Path::confirmed).
    fn confirm(&mut self, received: Index, now: Micros, moment: Micros) {
        let (mut first, mut bytes, mut last) = (None, 0, None);
        while let Some(sent) = self.inflight.confirm(received) {
            bytes += sent.bytes;
            (first, last) = (first.or(Some(sent)), Some(sent));
        }
        if let (Some(first), Some(last)) = (first, last) {
            self.route.confirmed((first, last), bytes, now, moment);
        }
    }

    /// The index before the first entry of the next append.
    pub(super) fn prev_index(&self, local: &Local) -> Index {
        match self.state {
            // Until it answers to the snapshot, say only that we are there.
            ProgressState::Base(index) => index,
            // This may overtake entries sent through a relay, so start after those it has confirmed.
            _ if self.route.relay().is_some() && local.log().term_at(self.received).is_some() => {
                self.received
            }
            _ => self.next - 1,
        }
    }

    /// Sends an append; without entries it is a heartbeat. `bytes`: of the entries. `to`: the recipients to which the peer
    /// relays them.
    pub(super) fn send_append(
        &mut self,
        round: &mut Round<'_>,
        id: MemberId,
        (prev_index, prev_term): (Index, Term),
        (entries, bytes): (Vec<Entry>, usize),
        context: u64,
        to: Vec<MemberId>,
    ) {
        let local = round.local();
        // While probing, `next` stays: the answer moves it.
        if let Some(last) = entries.last().filter(|_| self.state != ProgressState::Probe) {
            self.sent(last.index, bytes, local.now());
        }
        if context != 0 {
            self.contact.sent(context, local.now());
        }
        let (term, commit, persisted) = (local.term(), local.commit(), local.acknowledged());
        self.note_announced(local);
        let message = if to.is_empty() {
            Message::Append { term, prev_index, prev_term, commit, persisted, context, entries }
        } else {
            let carried = Carried { prev_index, prev_term, commit, persisted, entries };
            Message::Relay { term, to, context, carried }
        };
        round.send(id, message);
    }

    /// Sends the snapshot from which the peer is to begin, and waits for its answer.
    pub(super) fn send_base(&mut self, round: &mut Round<'_>, context: u64, id: MemberId) {
        let Some(state) = round.local().log().base_for(self.position) else { return };
        self.probe(state.index + 1);
        self.state = ProgressState::Base(state.index);
        self.base_sent = round.local().now();
        let state = Box::new(state.clone());
        round.send(id, Message::Snapshot { term: round.local().term(), state, context: context.max(1) });
    }

    /// A message with entries up to `last`, our commit index and our persisted index was sent, directly or through the relay.
    pub(super) fn sent_as_recipient(&mut self, local: &Local, last: Index, bytes: usize) {
        self.sent(last, bytes, local.now());
        self.note_announced(local);
    }
}

/// Its log beside the leader's.
impl Progress {
    /// Looks for the place where the logs agree, from `next` on.
    fn probe(&mut self, next: Index) {
        self.inflight.clear();
        self.next = next;
        self.probing = false;
        self.state = ProgressState::Probe;
    }

    /// The logs agree up to `next - 1`.
    fn replicate(&mut self, next: Index) {
        self.probe(next);
        self.state = ProgressState::Replicate;
    }

    /// The logs agree up to `next - 1`, as the answer to a probe says, and everything after is sent again. `context`: the next
    /// one to be sent.
    fn resend(&mut self, next: Index, context: u64) {
        self.replicate(next);
        self.contact.ignore_rejections_before(context);
    }

    /// Whether a rejection says something about messages sent since the last probe. Each message of a window is
    /// rejected if the first is lost. One of these rejections starts a probe; each of the others, believed after it,
    /// would have the whole window sent once more. A gap in the messages sent again shows in the answer to the next
    /// heartbeat. Messages through a relay have no context to go by.
    fn believes_rejections(&self) -> bool {
        self.route.relay().is_some() || self.contact.believes_rejections()
    }

    /// Begins a probe. Returns the most bytes that it may carry; `None`: it waits for the answer to the one before, or for a
    /// heartbeat. `most`: for the first probe; a second one, after silence, carries none.
    pub(super) fn begin_probe(&mut self, most: usize, heartbeat: bool) -> Option<usize> {
        if self.probing && !heartbeat {
            return None;
        }
        let bytes = if self.probing { 0 } else { most };
        self.probing = true;
        Some(bytes)
    }

    /// The next entries are no longer in memory: waits until they are read from the disk. Returns the index of the first.
    pub(super) fn fetch(&mut self) -> Index {
        self.state = ProgressState::Fetching(self.next);
        self.next
    }

    /// The entries from this index on were read. Whether the peer waits for them.
    pub(super) fn fetched(&mut self, from: Index) -> bool {
        let is_awaited = self.state == ProgressState::Fetching(from);
        if is_awaited {
            self.state = ProgressState::Replicate;
        }
        is_awaited
    }

    /// The peer has persisted and received everything up to these indices. `next_context`: see [`Progress::resend`].
    /// `moment`: see [`Path::confirmed`](super::path::Path::confirmed).
    pub(super) fn acknowledged(
        &mut self,
        (persisted, received): (Index, Index),
        next_context: u64,
        now: Micros,
        moment: Micros,
    ) {
        self.matched = self.matched.max(persisted);
        if received > self.received {
            self.received = received;
            self.route.advanced();
        }
        self.disk.report(now, self.matched, self.received);
        self.confirm(received, now, moment);
        match self.state {
            ProgressState::Probe if received + 1 >= self.next => self.resend(received + 1, next_context),
            ProgressState::Base(index) if received >= index => self.replicate(received + 1),
            ProgressState::Replicate | ProgressState::Fetching(_) => self.next = self.next.max(received + 1),
            _ => {}
        }
    }

    /// The peer has rejected entries after `prev_index`. `hint`: where the logs may agree; `position`: of its server.
    /// Returns whether it needs the snapshot.
    pub(super) fn rejected(
        &mut self,
        local: &Local,
        prev_index: Index,
        hint: (Index, Term),
        position: Option<Seqno>,
    ) -> bool {
        self.position = position;
        if self.is_stale_rejection(local, prev_index) {
            return false;
        }
        let log = local.log();
        self.received = self.matched;
        let try_at = match prev_index.checked_sub(1) {
            Some(before) if !matches!(self.state, ProgressState::Base(_)) => {
                log.last_not_above(hint.0.min(before), hint.1).filter(|at| *at >= log.base_index())
            }
            _ => None,
        };
        let Some(try_at) = try_at else { return true };
        if self.state == ProgressState::Probe && prev_index == self.matched && try_at < self.matched {
            // Damage has taken entries that it acked, before the vote file had the term of its acks. It still votes for no
            // candidate below its former end, so the acks count, but it needs the entries again.
            (self.matched, self.received) = (try_at, try_at);
        }
        let next = try_at.max(self.matched) + 1;
        let again = self.state == ProgressState::Probe && next >= self.next;
        self.probe(next);
        // It contradicts itself; no hurry then.
        self.probing = again;
        false
    }

    /// Whether a rejection of the entries after `prev_index` says nothing about the last messages.
    fn is_stale_rejection(&self, local: &Local, prev_index: Index) -> bool {
        match self.state {
            ProgressState::Probe => prev_index != self.next - 1,
            ProgressState::Replicate | ProgressState::Fetching(_) => {
                // It has persisted these entries, so nothing before them is missing.
                prev_index >= self.next
                    || (prev_index <= self.matched && prev_index != 0)
                    || !self.believes_rejections()
            }
            // The snapshot may have been lost.
            ProgressState::Base(_) => local.now() < self.base_sent + local.config().election_timeout,
        }
    }

    /// The server has finished everything up to this seqno.
    pub(super) fn note_finished(&mut self, finished: Seqno) {
        self.finished = self.finished.max(finished);
    }

    /// An answer to this context has arrived.
    pub(super) fn note_answer(&mut self, context: u64, now: Micros) {
        if let Some(sample) = self.contact.note_answer(context, now) {
            self.route.measured(sample);
        }
    }
}

/// News: our commit index and our persisted index.
impl Progress {
    /// It has proposed the entry at this index.
    pub(super) fn note_proposal(&mut self, index: Index) {
        self.proposed = index;
    }

    /// Whether it waits for the commit of an entry that it proposed.
    pub(super) fn awaits_commit(&self) -> bool {
        self.proposed > self.commit_announced
    }

    /// Whether it counts the acks of an entry of its own, and lacks ours.
    pub(super) fn awaits_ack(&self, local: &Local, id: &MemberId) -> bool {
        let announced = self.persisted_announced;
        local.persisted() > announced && local.log().origins().get(id).is_some_and(|last| *last > announced)
    }

    /// An ack of ours was sent to it.
    pub(super) fn note_acked(&mut self, local: &Local) {
        self.persisted_announced = local.persisted();
    }

    /// Our commit index and persisted index have been sent to the peer.
    fn note_announced(&mut self, local: &Local) {
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
}

/// Relaying: see [`Route`].
impl Progress {
    /// See [`Route::zone`].
    pub(super) fn set_zone(&mut self, zone: Option<u8>) {
        self.route.set_zone(zone);
    }

    /// From now on it gets entries through `relay`.
    pub(super) fn receive_through(&mut self, relay: MemberId) {
        if self.route.relay() != Some(relay) {
            self.send_directly();
            // A recipient that is ahead of its relay waits for it. With new entries it would stay ahead.
            self.route.begin_receiving(relay);
        }
    }

    /// Ends relaying to this peer. Restarts after its received index, because entries in flight may not arrive.
    pub(super) fn send_directly(&mut self) {
        if self.route.end_receiving() && self.state == ProgressState::Replicate {
            self.replicate(self.received + 1);
        }
    }

    /// It becomes the relay of its zone. `share`: of the relay that it replaces.
    pub(super) fn begin_relaying(&mut self, share: Option<usize>) {
        self.send_directly();
        self.route.begin_relaying(share);
    }

    /// See [`Route::share`].
    pub(super) fn relay_share(&mut self, most: usize) -> usize {
        self.route.share(most)
    }

    /// See [`Route::is_limited`].
    pub(super) fn set_limited(&mut self, limited: bool) {
        self.route.set_limited(limited);
    }

    /// See [`Route::note_rate`].
    pub(super) fn note_rate(&mut self, rate: u64, now: Micros) {
        self.route.note_rate(rate, now);
    }

    /// See [`Route::exclude`].
    pub(super) fn exclude(&mut self, now: Micros, limits: (Micros, Micros)) {
        self.route.exclude(now, limits);
    }

    /// Returns how long this recipient has waited for the entries that its relay had received. The relay has received
    /// everything up to `relay_received` by now.
    pub(super) fn track_wait(&mut self, relay_received: Index, now: Micros) -> Micros {
        self.route.track_wait(relay_received, self.received, now)
    }

    /// Since when this relay has not answered, or has received nothing although messages are in flight.
    pub(super) fn track_stuck(&mut self, now: Micros) -> Micros {
        self.route.track_stuck(!self.inflight.is_empty(), now).min(self.contact.last_answer())
    }
}
