//! Replication through relays, on the leader's side.

use super::*;

/// One to whom entries are passed on.
pub(in crate::raft) type Rider<'a> = (MemberId, &'a mut Progress);

/// So many times as much may be on its way to one who gets it by a relay: the answer takes one hop more than the relay's,
/// which must not shut it out.
const RIDERS_WINDOW: usize = 3;

/// The most bytes of entries in one message to a relay, which passes it on when it has all of it (one entry may be larger).
const RELAYED_AT_ONCE: usize = 128 << 10;

impl Raft {
    /// The end of a leader's round, where there are relays: each member's part of it.
    pub(in crate::raft) fn feed_zones(&mut self, peers: &mut BTreeMap<MemberId, Progress>, speak: bool) {
        let all = peers.iter_mut().map(|(id, peer)| (*id, peer));
        let (mut riders, direct): (Vec<Rider<'_>>, Vec<Rider<'_>>) = all.partition(|(_, p)| p.via.is_some());
        riders.sort_by_key(|(_, peer)| peer.via);
        for (id, peer) in direct {
            let first = riders.partition_point(|(_, rider)| rider.via < Some(id));
            let end = riders.partition_point(|(_, rider)| rider.via <= Some(id));
            let own = &mut riders[first..end];
            for (rider_id, rider) in own.iter_mut() {
                self.feed_below(*rider_id, rider, peer.next);
            }
            self.feed(id, peer, speak, own);
        }
        for (id, rider) in riders {
            self.send_news(id, rider, speak);
        }
    }

    /// How much may be on its way to a peer, and in one message.
    pub(in crate::raft) fn limits(&self, peer: &mut Progress, relays: bool) -> (usize, usize) {
        let window = self.window(peer);
        let message = self.after_vain_terms(self.config.max_append_bytes);
        if relays { (peer.way.share(window), message.min(RELAYED_AT_ONCE)) } else { (window, message) }
    }

    /// How much later than after a round trip a relay's answer may come: it is given no more than it passes on in this time.
    pub(in crate::raft) fn moment(&self) -> Micros {
        (self.config.heartbeat * 3 / 2).min(self.config.election_timeout / 4)
    }

    /// Sends what is missing before `next`, where its relay is: by no relay, and yet so that it may overtake what is on
    /// its way by one.
    fn feed_below(&mut self, id: MemberId, peer: &mut Progress, next: Index) {
        let window = self.window(peer);
        let message = self.after_vain_terms(self.config.max_append_bytes);
        while peer.next < next && peer.window_open(window) {
            let prev_index = peer.next - 1;
            let (entries, bytes) = self.log.slice(peer.next, next - 1, message);
            let (Some(last), Some(prev_term)) = (entries.last(), self.log.term_at(prev_index)) else {
                return;
            };
            peer.sent(last.index, bytes, self.now);
            let carried = self.carry(peer, prev_index, prev_term, entries);
            self.send(id, Message::Relayed { term: self.term, carried });
        }
    }

    fn carry(&self, peer: &mut Progress, prev_index: Index, prev_term: Term, entries: Vec<Entry>) -> Carried {
        peer.commit_told = self.commit();
        peer.persisted_told = self.acknowledged();
        Carried { prev_index, prev_term, commit: self.commit(), persisted: self.acknowledged(), entries }
    }

    /// The relay recipients for the entries after `prev_index` up to `last`: members that were sent all earlier entries, and
    /// not all of these.
    pub(in crate::raft) fn board(
        &self,
        relay: &mut Progress,
        riders: &mut [Rider<'_>],
        prev_index: Index,
        last: Index,
        bytes: usize,
    ) -> Vec<MemberId> {
        let share = relay.way.share(self.config.max_inflight_bytes);
        // A large entry fills the relay's, and is all the same the only one.
        let window = RIDERS_WINDOW * share.max(relay.bytes_on_the_way() + bytes);
        let mut to = Vec::new();
        for (id, rider) in riders {
            let fits = rider.next > prev_index && rider.next <= last;
            if fits && rider.window_open(window) {
                rider.sent(last, bytes, self.now);
                rider.commit_told = self.commit();
                rider.persisted_told = self.acknowledged();
                to.push(*id);
            }
        }
        to
    }
}
