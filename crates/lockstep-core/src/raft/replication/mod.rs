//! The leader's replication: each peer's progress, its next entries, and the check of the quorum.
//!
//! [`Replication::round`] ends a leader's round: each peer gets the entries that its window allows, or the news that it
//! waits for. Members of another zone get entries through a relay (`zones.rs`, `relaying.rs`).

mod append_times;
mod contact;
mod path;
mod progress;
mod relaying;
mod round;
mod route;
mod zones;

pub use progress::{PeerProgress, ProgressState};
pub(super) use round::Round;

use super::local::Local;
use super::relay::Relay;
use crate::types::*;
use append_times::AppendTimes;
use progress::{Peers, Progress};
use relaying::{RELAYED_AT_ONCE, Recipient};
use zones::Zones;

/// How long a new commit index may wait for the next append. Under load this saves one message in three. Members that need
/// it at once (an origin, a causal read) get it at once. If [`AppendTimes`] expects no append within this time, the commit
/// index leaves in the next round: the wait would delay it and save no message.
/// Gain (2026-11-25, `bench provider`): 6 % of processor time with 2 and 32 clients.
const COMMIT_NEWS_WAIT: Micros = 1_000;

/// A leader's quorum timeout doubles at most this often.
const MOST_FRUITLESS: u32 = 4;

/// Bytes of entries that a probe may carry. Usually its guess is right, and the entries are accepted.
const PROBE_BYTES: usize = 64 << 10;

/// A removed member is notified of its removal for this many election timeouts.
const FAREWELL: u64 = 10;

/// Whether `counts` holds for a majority of the voters.
fn is_majority(local: &Local, counts: impl Fn(&MemberId) -> bool) -> bool {
    let membership = local.membership();
    membership.voters().filter(counts).count() >= membership.majority()
}

/// See the module. **Invariant:** only a leader has peers: all other members, and those that were just removed.
#[derive(Debug, Default)]
pub(super) struct Replication {
    peers: Peers,
    zones: Zones,
    /// When the next heartbeat is due.
    next_heartbeat: Micros,
    /// All peers get a message at the end of this round.
    heartbeat: bool,
    /// The context of the last message to all peers: grows. Answers to it, or later ones, came after it was sent.
    context: u64,
    /// Peers without proposals of their own learn of commits by then, if not with entries before.
    commit_due: Option<Micros>,
    /// When entries were appended, which says when to expect the next ones.
    append_times: AppendTimes,
    /// Consecutive own terms that ended by lost quorum before anything was committed.
    fruitless_terms: u32,
    /// A stall of this leader that does not count as its peers' silence, until a majority has answered.
    extension: Option<Extension>,
}

/// A time in which the leader did not run.
#[derive(Clone, Copy, Debug)]
struct Extension {
    length: Micros,
    ended_at: Micros,
}

/// The leader's term.
impl Replication {
    /// The leader's term begins.
    pub(super) fn begin(&mut self, local: &Local) {
        debug_assert!(local.is_leader(), "only a leader has peers");
        self.next_heartbeat = local.now();
        (self.heartbeat, self.context, self.commit_due, self.extension) = (false, 0, None, None);
        self.append_times = AppendTimes::default();
        self.peers.clear();
        self.sync_peers(local);
    }

    /// The leader's term is over.
    pub(super) fn end(&mut self) {
        self.peers.clear();
    }

    /// Another term: measurements of the zones are forgotten.
    pub(super) fn enter_term(&mut self) {
        self.zones.forget();
    }

    /// Sets whether this member, as a leader, uses zone relays.
    pub(super) fn set_relaying(&mut self, on: bool) {
        self.zones.set_on(on);
    }

    /// An entry was committed.
    pub(super) fn committed(&mut self) {
        self.fruitless_terms = 0;
    }

    /// The quorum was lost. The next term's timeout is longer if this one committed nothing.
    pub(super) fn quorum_lost(&mut self) {
        self.fruitless_terms = (self.fruitless_terms + 1).min(MOST_FRUITLESS);
    }

    /// After this time without answers of a majority this member, as a leader, steps down.
    pub(super) fn quorum_timeout(&self, local: &Local, leader_timeout: Micros) -> Micros {
        (local.config().election_timeout << self.fruitless_terms).max(leader_timeout)
    }

    /// Whether a majority of the voters has answered within `timeout` before `now`. See [`Replication::quorum_timeout`].
    ///
    /// A large proposal may occupy a line for longer than an election timeout, and the answers behind it wait. Its origin
    /// sends it again to each new leader. So with a constant timeout elections would never end.
    pub(super) fn quorum_active(&self, local: &Local, now: Micros, timeout: Micros) -> bool {
        let answers = |id: &MemberId| self.last_answer(id).is_some_and(|at| now.saturating_sub(at) < timeout);
        is_majority(local, |id| *id == local.id() || answers(id))
    }

    /// Whether this leader may go on: a majority of the voters, all with `counts`, has answered within `timeout`. A stall that
    /// [`Replication::extend_deadlines`] has noted does not count.
    pub(super) fn may_go_on(
        &self,
        local: &Local,
        timeout: Micros,
        counts: impl Fn(&MemberId) -> bool,
    ) -> bool {
        let answers = |id: &MemberId| {
            let silent_since = self.last_answer(id).map(|at| self.extended(at));
            silent_since.is_some_and(|at| local.now().saturating_sub(at) < timeout)
        };
        is_majority(local, |id| (*id == local.id() || answers(id)) && counts(id))
    }

    /// Since when a peer that answered last at `last_answer` is silent, without the stall that does not count.
    fn extended(&self, last_answer: Micros) -> Micros {
        match self.extension {
            Some(Extension { length, ended_at }) if last_answer < ended_at => {
                (last_answer + length).min(ended_at)
            }
            _ => last_answer,
        }
    }

    /// After this time a disk that completes nothing hangs, for this leader; 0: never. It grows with the quorum timeout, so
    /// that a majority of slow disks gets its work done in the end.
    pub(super) fn disk_timeout(&self, local: &Local) -> Micros {
        local.config().disk_timeout << self.fruitless_terms
    }

    /// The part of `bytes` that a leader sends at once: a quarter for each own term that ended in silence before it
    /// committed anything. Perhaps a voter that it needs lacks more than the line carries in a term. A large message that
    /// arrives after the term is lost. Small parts arrive in time, and their acks keep the leader in its role.
    fn after_fruitless_terms(&self, bytes: usize) -> usize {
        (bytes >> (2 * self.fruitless_terms)).max(bytes.min(PROBE_BYTES))
    }

    /// The number of bytes that may be in flight to a peer. After fruitless terms it begins with
    /// [`Replication::after_fruitless_terms`] and widens by twice the bytes that the peer has confirmed in this term. So on a
    /// long line a lagging voter catches up at the line's speed. On a narrow line only that much is lost when the term ends.
    fn window(&self, local: &Local, peer: &Progress) -> usize {
        let most = local.config().max_inflight_bytes;
        let confirmed = peer.route().path().bytes_confirmed();
        let widened = usize::try_from(confirmed.saturating_mul(2)).unwrap_or(usize::MAX);
        self.after_fruitless_terms(most).saturating_add(widened).min(most)
    }

    /// When the next heartbeat, or the news of a commit, is due.
    pub(super) fn deadline(&self) -> Micros {
        self.commit_due.map_or(self.next_heartbeat, |due| due.min(self.next_heartbeat))
    }

    /// When the leader must run at the latest.
    pub(super) fn heartbeat_due(&self) -> Micros {
        self.next_heartbeat
    }

    /// The context of the next message to all peers.
    pub(super) fn next_context(&self) -> u64 {
        self.context + 1
    }

    /// Whether a majority of the voters has answered this context, or a later one.
    pub(super) fn majority_answered(&self, local: &Local, context: u64) -> bool {
        is_majority(local, |id| *id == local.id() || self.context_answered(id) >= context)
    }

    /// This leader did not run for a while. Answers may have arrived meanwhile, so they are no measure of a round trip.
    pub(super) fn stalled(&mut self) {
        self.peers.values_mut().for_each(|peer| peer.leader_stalled());
    }

    /// This leader did not run for `length`, up to now: that is no silence of its peers.
    pub(super) fn extend_deadlines(&mut self, local: &Local, length: Micros) {
        self.extension = Some(Extension { length, ended_at: local.now() });
    }

    /// A majority has answered since the stall: from now on only answers count.
    pub(super) fn end_extension(&mut self) {
        self.extension = None;
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, local: &Local) {
        if self.next_heartbeat <= local.now() {
            self.broadcast_heartbeat(local);
        }
    }

    /// All peers get a message, with a new context, at the end of this round.
    pub(super) fn broadcast_heartbeat(&mut self, local: &Local) {
        self.heartbeat = true;
        self.next_heartbeat = local.now() + local.config().heartbeat;
    }

    /// Synchronises the peers with the membership in force. A removed member is notified before it is forgotten.
    pub(super) fn sync_peers(&mut self, local: &Local) {
        let (membership, now) = (local.membership(), local.now());
        let index = local.log().tail().membership_index;
        let next = local.log().last() + 1;
        for id in local.other_members() {
            let peer = self.peers.entry(id).or_insert_with(|| Progress::new(next, now));
            peer.admitted();
        }
        let until = now + FAREWELL * local.config().election_timeout;
        for (id, peer) in &mut self.peers {
            if membership.get(id).is_none() {
                peer.removed(index, until);
            }
        }
    }

    /// Asserts the invariants of [`Replication`].
    pub(super) fn assert_invariants(&self, local: &Local) {
        assert!(local.is_leader() || self.peers.is_empty(), "only a leader has peers");
        for (id, peer) in &self.peers {
            assert!(*id != local.id(), "a leader is not its own peer");
            peer.assert_invariants(local.log().last());
        }
    }
}

/// Queries of other components.
impl Replication {
    pub(super) fn peers(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.peers.keys().copied()
    }

    /// Each peer and the last entry that it proposed.
    pub(super) fn proposals(&self) -> impl Iterator<Item = (MemberId, Index)> + '_ {
        self.peers.iter().map(|(id, peer)| (*id, peer.proposed()))
    }

    /// The last index on a peer's disk; 0 if unknown.
    pub(super) fn matched(&self, id: &MemberId) -> Index {
        self.peers.get(id).map_or(0, Progress::matched)
    }

    /// The last index in a peer's memory.
    pub(super) fn received(&self, id: &MemberId) -> Option<Index> {
        self.peers.get(id).map(Progress::received)
    }

    /// For how long a peer's disk has completed nothing although it has entries to write, as of its last answer. An answer
    /// says what the peer has in memory and what on disk. So a long line does not look like a hung disk: a peer has only
    /// entries to write that it has received.
    pub(super) fn disk_stands_still_for(&self, id: &MemberId) -> Micros {
        self.peers.get(id).map_or(0, Progress::disk_stands_still_for)
    }

    /// When a peer last answered.
    pub(super) fn last_answer(&self, id: &MemberId) -> Option<Micros> {
        self.peers.get(id).map(|peer| peer.contact().last_answer())
    }

    /// The smoothed round trip to a peer.
    pub(super) fn rtt(&self, id: &MemberId) -> Option<Micros> {
        self.peers.get(id).and_then(|peer| peer.contact().rtt())
    }

    /// The last context that a peer has answered; 0 if none.
    pub(super) fn context_answered(&self, id: &MemberId) -> u64 {
        self.peers.get(id).map_or(0, |peer| peer.contact().context_answered())
    }

    /// Per-peer state, without members that were removed.
    pub(super) fn progress(&self) -> Vec<PeerProgress> {
        let members = self.peers.iter().filter(|(_, peer)| !peer.is_leaving());
        members.map(|(id, peer)| peer.report(*id)).collect()
    }
}

/// Inputs.
impl Replication {
    /// A peer has proposed the entry at this index: it waits until that is committed.
    pub(super) fn proposed(&mut self, from: &MemberId, index: Index) {
        if let Some(peer) = self.peers.get_mut(from) {
            peer.note_proposal(index);
        }
    }

    /// Handles an ack of this term. `indices`: the last ones persisted and received.
    pub(super) fn on_ack(
        &mut self,
        local: &Local,
        from: MemberId,
        indices: (Index, Index),
        finished: Seqno,
        context: u64,
    ) {
        let (now, moment) = (local.now(), relaying::moment(local));
        let next_context = self.context + 1;
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if context > self.context.max(1) {
            return;
        }
        peer.note_answer(context, now);
        peer.note_finished(finished);
        peer.acknowledged(indices, next_context, now, moment);
    }

    /// Handles a rejection of this term. `hint`: where the logs may agree.
    pub(super) fn on_reject(
        &mut self,
        round: &mut Round<'_>,
        from: MemberId,
        prev_index: Index,
        hint: (Index, Term),
        position: Option<Seqno>,
        context: u64,
    ) {
        if context > self.context.max(1) {
            return;
        }
        let local = round.local();
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.note_answer(context, local.now());
        if peer.rejected(local, prev_index, hint, position) {
            peer.send_base(round, self.context, from);
        }
    }

    /// A connection has come up. Whether it is one to a peer.
    pub(super) fn peer_up(&mut self, id: &MemberId) -> bool {
        let Some(peer) = self.peers.get_mut(id) else { return false };
        peer.connected();
        true
    }

    /// A connection has broken.
    pub(super) fn peer_down(&mut self, id: &MemberId) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.disconnected();
        }
    }

    /// Handles entries read from the disk for a peer: from `from` on, dense; none if they are gone.
    pub(super) fn on_fetched(
        &mut self,
        round: &mut Round<'_>,
        to: MemberId,
        from: Index,
        mut entries: Vec<Entry>,
    ) {
        let context = self.context;
        let log = round.local().log();
        let Some(peer) = self.peers.get_mut(&to) else { return };
        if !peer.fetched(from) {
            return;
        }
        // Only what is ours: the node may have read before a truncation.
        let ours = |(n, e): (usize, &Entry)| {
            e.index == from.saturating_add(n as u64) && log.term_at(e.index) == Some(e.term)
        };
        let good = entries.iter().enumerate().take_while(|at| ours(*at)).count();
        entries.truncate(good);
        if entries.is_empty() {
            peer.send_base(round, context, to);
            return;
        }
        // An answer may have overtaken us.
        let known =
            usize::try_from(peer.next().saturating_sub(from)).unwrap_or(usize::MAX).min(entries.len());
        entries.drain(..known);
        let Some(first) = entries.first() else { return };
        if first.index != peer.next() {
            return;
        }
        let prev_index = first.index - 1;
        let bytes = entries.iter().map(Entry::size).sum();
        match log.term_at(prev_index) {
            Some(prev_term) => {
                // A relay's share is kept within its limits at each message, also at one without recipients.
                peer.relay_share(round.local().config().max_inflight_bytes);
                peer.send_append(round, to, (prev_index, prev_term), (entries, bytes), 0, Vec::new());
            }
            None => peer.send_base(round, context, to),
        }
    }
}

/// The end of a round.
impl Replication {
    /// Begins to send. If all peers get a message in this round, returns its context. `needed`: a read index waits for the
    /// answers of a majority.
    pub(super) fn begin_round(&mut self, needed: bool) -> Option<u64> {
        let heartbeat = std::mem::take(&mut self.heartbeat) || needed;
        self.context += u64::from(heartbeat);
        heartbeat.then_some(self.context)
    }

    /// Sends each peer its missing entries and news. `heartbeat`: all peers get a message, see [`Replication::begin_round`].
    pub(super) fn round(&mut self, round: &mut Round<'_>, relay: &Relay, heartbeat: bool) {
        let now = round.local().now();
        if self.commit_due.is_some_and(|due| due <= now) {
            self.commit_due = Some(0);
        }
        let mut peers = std::mem::take(&mut self.peers);
        self.zones.choose(round.local(), relay, &mut peers);
        if peers.values().all(|peer| peer.route().relay().is_none()) {
            peers.iter_mut().for_each(|(id, peer)| self.send_to(round, *id, peer, heartbeat, &mut []));
        } else {
            self.send_zones(round, &mut peers, heartbeat);
        }
        self.append_times.note(now, round.local().log().last());
        let uninformed = peers.values().any(|peer| peer.lacks_commit(round.local()));
        self.commit_due = match self.commit_due {
            Some(due) if uninformed && due > 0 => Some(due),
            _ => uninformed.then(|| match self.append_times.expects_append_by(now + COMMIT_NEWS_WAIT) {
                true => now + COMMIT_NEWS_WAIT,
                false => now,
            }),
        };
        peers.retain(|_, peer| !peer.has_left(now));
        self.peers = peers;
    }

    /// Ends a leader's round if there are relays.
    fn send_zones(&self, round: &mut Round<'_>, peers: &mut Peers, heartbeat: bool) {
        let all = peers.iter_mut().map(|(id, peer)| (*id, peer));
        let (mut recipients, direct): (Vec<Recipient<'_>>, Vec<Recipient<'_>>) =
            all.partition(|(_, p)| p.route().relay().is_some());
        recipients.sort_by_key(|(_, peer)| peer.route().relay());
        for (id, peer) in direct {
            let first = recipients.partition_point(|(_, recipient)| recipient.route().relay() < Some(id));
            let end = recipients.partition_point(|(_, recipient)| recipient.route().relay() <= Some(id));
            let own = &mut recipients[first..end];
            for (recipient_id, recipient) in own.iter_mut() {
                let limits = self.limits(round.local(), recipient, false);
                relaying::send_below(round, *recipient_id, recipient, peer.next(), limits);
            }
            self.send_to(round, id, peer, heartbeat, own);
        }
        for (id, recipient) in recipients {
            self.send_news(round, id, recipient, heartbeat);
        }
    }

    /// Sends a peer its entries or news. `recipients`: the relay recipients behind this peer.
    fn send_to(
        &self,
        round: &mut Round<'_>,
        id: MemberId,
        peer: &mut Progress,
        heartbeat: bool,
        recipients: &mut [Recipient<'_>],
    ) {
        let context = if heartbeat { self.context } else { 0 };
        let sent_any = match peer.state() {
            ProgressState::Probe => {
                let most = PROBE_BYTES.min(round.local().config().max_append_bytes);
                let Some(bytes) = peer.begin_probe(most, heartbeat) else { return };
                // Independent of heartbeats: a probe needs its own reply.
                let context = self.context.max(1);
                self.send_entries(round, id, peer, bytes, context, &mut []).is_some()
            }
            ProgressState::Replicate => self.send_window(round, id, peer, context, recipients),
            ProgressState::Fetching(_) | ProgressState::Base(_) => false,
        };
        if !sent_any {
            self.send_news(round, id, peer, heartbeat);
        }
    }

    /// Sends news to a peer that gets no entries in this round.
    fn send_news(&self, round: &mut Round<'_>, id: MemberId, peer: &mut Progress, heartbeat: bool) {
        let local = round.local();
        let context = if heartbeat { self.context } else { 0 };
        peer.note_known_commit(local, &id);
        let urgent = peer.awaits_commit() || self.commit_due == Some(0);
        if heartbeat || (urgent && peer.lacks_commit(local)) {
            self.send_entries(round, id, peer, 0, context, &mut []);
        } else if peer.awaits_ack(local, &id) {
            peer.note_acked(local);
            round.send_ack(id);
        }
    }

    /// The most bytes in flight to a peer, and in one message.
    fn limits(&self, local: &Local, peer: &mut Progress, relays: bool) -> (usize, usize) {
        let window = self.window(local, peer);
        let message = self.after_fruitless_terms(local.config().max_append_bytes);
        if relays { (peer.relay_share(window), message.min(RELAYED_AT_ONCE)) } else { (window, message) }
    }

    /// Sends all that the window allows. Whether anything was sent.
    fn send_window(
        &self,
        round: &mut Round<'_>,
        id: MemberId,
        peer: &mut Progress,
        context: u64,
        recipients: &mut [Recipient<'_>],
    ) -> bool {
        let mut sent_any = false;
        let log = round.local().log();
        let (window, most) = self.limits(round.local(), peer, !recipients.is_empty());
        while peer.next() <= log.last() && peer.window_open(window) {
            if peer.next() < log.cached_from() && peer.next() > log.base_index() {
                round.fetch(id, peer.fetch(), most);
                break;
            }
            let context = if sent_any { 0 } else { context };
            match self.send_entries(round, id, peer, most, context, recipients) {
                Some(n) if n > 0 => sent_any = true,
                _ => break,
            }
        }
        peer.set_limited(!recipients.is_empty() && peer.next() <= log.last());
        sent_any
    }

    /// Sends one append with cached entries from `peer.next()` on, of at most `max_bytes`; without entries it is a heartbeat.
    /// Sends the snapshot if the log does not reach back far enough. Returns the number of entries; `None`: the snapshot.
    fn send_entries(
        &self,
        round: &mut Round<'_>,
        id: MemberId,
        peer: &mut Progress,
        max_bytes: usize,
        context: u64,
        recipients: &mut [Recipient<'_>],
    ) -> Option<usize> {
        let log = round.local().log();
        let prev_index = peer.prev_index(round.local());
        let Some(prev_term) = log.term_at(prev_index) else {
            peer.send_base(round, self.context, id);
            return None;
        };
        let (entries, bytes) = match max_bytes {
            0 => (Vec::new(), 0),
            _ => log.slice(peer.next(), Index::MAX, max_bytes),
        };
        let (n, mut to) = (entries.len(), Vec::new());
        if let Some(last) = entries.last() {
            to = relaying::add_recipients(round.local(), peer, recipients, (prev_index, last.index), bytes);
        }
        peer.send_append(round, id, (prev_index, prev_term), (entries, bytes), context, to);
        Some(n)
    }
}

#[cfg(test)]
mod tests {
    use super::super::acks::Acks;
    use super::super::output::{Output, Outputs};
    use super::super::testing::{leader, member, with_entries};
    use super::*;
    use crate::message::Message;

    /// Ends a round of a leader. Returns the appends sent: to, previous index, number of entries.
    fn appends(replication: &mut Replication, local: &Local) -> Vec<(MemberId, Index, usize)> {
        let (acks, relay, mut out) = (Acks::new(), Relay::default(), Outputs::new());
        let heartbeat = replication.begin_round(false).is_some();
        replication.round(&mut Round::new(local, &acks, &mut out), &relay, heartbeat);
        let append = |output| match output {
            Output::Send { to, message: Message::Append { prev_index, entries, .. } } => {
                (to, prev_index, entries.len())
            }
            other => panic!("no append: {other:?}"),
        };
        out.take().into_iter().map(append).collect()
    }

    #[test]
    fn answered_probe_is_followed_by_entries() {
        let local = with_entries(leader(2), 3);
        let mut replication = Replication::default();
        replication.begin(&local);
        assert_eq!(appends(&mut replication, &local), [(member(2), 3, 0)], "a probe");
        let local = with_entries(local, 2);
        assert_eq!(appends(&mut replication, &local), [], "the probe is unanswered");
        replication.on_ack(&local, member(2), (0, 3), 0, 1);
        assert_eq!(appends(&mut replication, &local), [(member(2), 3, 2)]);
        replication.assert_invariants(&local);
    }

    #[test]
    fn rejected_probe_moves_back_to_hint() {
        let local = with_entries(leader(2), 3);
        let (acks, mut out, mut replication) = (Acks::new(), Outputs::new(), Replication::default());
        replication.begin(&local);
        appends(&mut replication, &local);
        let mut round = Round::new(&local, &acks, &mut out);
        replication.on_reject(&mut round, member(2), 3, (1, 1), None, 1);
        assert_eq!(appends(&mut replication, &local), [(member(2), 1, 2)]);
    }

    #[test]
    fn quorum_timeout_doubles_after_fruitless_term() {
        let (mut local, mut replication) = (leader(3), Replication::default());
        replication.begin(&local);
        let timeout = replication.quorum_timeout(&local, 0);
        assert_eq!(timeout, local.config().election_timeout);
        local.advance(timeout);
        assert!(!replication.quorum_active(&local, local.now(), timeout));
        replication.on_ack(&local, member(2), (0, 0), 0, 0);
        assert!(replication.quorum_active(&local, local.now(), timeout), "a majority has answered");
        replication.quorum_lost();
        assert_eq!(replication.quorum_timeout(&local, 0), 2 * timeout);
        replication.committed();
        assert_eq!(replication.quorum_timeout(&local, 0), timeout);
    }

    #[test]
    fn extended_deadline_is_no_answer_and_ends_with_majority() {
        let (mut local, mut replication) = (leader(3), Replication::default());
        replication.begin(&local);
        let timeout = local.config().election_timeout;
        let stall = 2 * timeout;
        local.advance(stall);
        replication.extend_deadlines(&local, stall);
        assert!(replication.may_go_on(&local, timeout, |_| true));
        assert!(!replication.quorum_active(&local, local.now(), timeout), "no member has answered");
        assert_eq!(replication.last_answer(&member(2)), Some(0));
        replication.end_extension();
        assert!(!replication.may_go_on(&local, timeout, |_| true));
    }

    #[test]
    fn extended_deadline_counts_silence_before_and_after_stall() {
        let (mut local, mut replication) = (leader(3), Replication::default());
        replication.begin(&local);
        let timeout = local.config().election_timeout;
        local.advance(timeout / 2 + 10 * timeout);
        replication.extend_deadlines(&local, 10 * timeout);
        local.advance(timeout - 1 + 10 * timeout);
        assert!(replication.may_go_on(&local, timeout, |_| true));
        local.advance(timeout + 10 * timeout);
        assert!(!replication.may_go_on(&local, timeout, |_| true));
    }

    #[test]
    fn sole_voter_is_majority_that_has_answered() {
        for (voters, answered) in [(1, true), (2, false), (3, false)] {
            let (local, mut replication) = (leader(voters), Replication::default());
            replication.begin(&local);
            assert_eq!(replication.majority_answered(&local, 1), answered, "{voters} voters");
        }
    }

    #[test]
    fn follower_has_no_peers_after_its_term() {
        let (local, mut replication) = (leader(3), Replication::default());
        replication.begin(&local);
        assert_eq!(replication.peers().count(), 2);
        replication.end();
        assert_eq!((replication.peers().count(), replication.matched(&member(2))), (0, 0));
    }
}
