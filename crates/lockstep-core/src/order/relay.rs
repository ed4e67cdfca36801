//! One copy for each zone: entries for several members of another zone go to one of them, the relay, who passes them on.
//!
//! A line between zones is long and often narrow, so the same bytes should cross it once. Everything else stays between
//! each member and the leader: acks, refusals, heartbeats, the news of a commit, bases, and what a member lacks that the
//! leader has to read from its disk.
//!
//! **Why it is safe.** What is passed on is an append of the leader of its term, word for word. Within a term a leader's
//! log only grows, and so do its commit index and what its disk holds: what it said once stays true for the term,
//! however late it comes, how often, and by whom. So a follower takes it exactly while it is in that term and knows the
//! term's leader; the same checks of index and term follow as for any append. A relay that is late, or does not know that
//! it is one no longer, can only repeat what is true or what nobody takes any more. It is no sign of life of the leader's.
//!
//! **Order.** Entries may now come on two ways, and overtake each other. So those by relay are not refused when what they
//! follow is not there yet: the follower keeps them (`early`) until it is. Whether something was lost the leader sees by
//! comparing with the relay: it is the relay's neighbour who does not get on while the relay does.
//!
//! **When it does not work.** The leader feeds a member itself, beginning after what that has said it received, as soon
//! as its relay is not connected, is being brought to the end of the log, or has not answered for a moment; or as that member
//! has got no further for a moment though its relay has. Who was the cause is left out for a while, longer each time.
//!
//! **Invariants:** a peer with `via` is fed like one that replicates; its relay is of its zone, and has no `via`.

use super::config::Mutation;
use super::*;
use crate::message::Carried;
use std::collections::VecDeque;

/// One to whom entries are passed on.
pub(super) type Rider<'a> = (MemberId, &'a mut Progress);

/// Whoever was the cause of a fallback is left out for so many election timeouts first, and at most.
const APART: (u64, u64) = (8, 256);

/// So many times as much may be on its way to one who gets it by a relay: the answer takes one hop more than the relay's,
/// which must not shut it out.
const RIDERS_WINDOW: usize = 3;

/// The relaying of a member, whether it leads or follows.
#[derive(Debug, Default)]
pub(super) struct Relays {
    /// A leader relays.
    on: bool,
    /// Connected members that understand it.
    able: BTreeSet<MemberId>,
    /// What came before what it follows. All of our term.
    early: VecDeque<Carried>,
    early_bytes: usize,
    /// The highest commit index that the leader of our term has told of.
    commit: Index,
    /// Bytes of entries that we have passed on, to however many.
    passed_on: u64,
}

impl Relays {
    /// Another term: nothing has been said in it.
    pub(super) fn forget(&mut self, mutation: Option<Mutation>) {
        self.commit = 0;
        if mutation != Some(Mutation::RelayedOfAnyTerm) {
            self.early.clear();
            self.early_bytes = 0;
        }
    }

    /// The connection with it is gone.
    pub(super) fn lost(&mut self, id: &MemberId) {
        self.able.remove(id);
    }

    /// The highest commit index that the leader has told of.
    pub(super) fn hear_commit(&mut self, commit: Index) -> Index {
        self.commit = self.commit.max(commit);
        self.commit
    }
}

fn bytes_of(entries: &[Entry]) -> usize {
    entries.iter().map(Entry::size).sum()
}

/// What one that is kept counts for, in bytes.
fn kept(carried: &Carried) -> usize {
    64 + bytes_of(&carried.entries)
}

impl Order {
    /// Whether this member, when it leads, sends one copy to each zone.
    pub fn set_relaying(&mut self, on: bool) {
        self.relays.on = on;
    }

    /// This member, which is connected, understands [`Message::Relay`] and [`Message::Relayed`]. Holds until it is lost.
    pub fn peer_relays(&mut self, id: MemberId) {
        self.relays.able.insert(id);
    }

    /// Bytes of entries that this member has passed on to others of its zone.
    pub fn relayed_bytes(&self) -> u64 {
        self.relays.passed_on
    }

    /// To the others of our zone: it need not be on our disk, nor fit our log.
    pub(super) fn pass_to_zone(&mut self, leader: MemberId, to: &[MemberId], carried: &Carried) {
        for (at, id) in to.iter().enumerate() {
            // Where there is no connection, the leader finds out.
            if *id != leader
                && *id != self.config.id
                && self.relays.able.contains(id)
                && self.is_of_our_zone(*id)
                && !to[..at].contains(id)
            {
                self.relays.passed_on += bytes_of(&carried.entries) as u64;
                let message = Message::Relayed { term: self.term, carried: carried.clone() };
                self.send(*id, message);
            }
        }
    }

    /// Whether a [`Message::Relayed`] of this member and term is one to look at: the leader's own, or of a member of our
    /// zone, while we follow that leader.
    pub fn takes_relayed(&self, from: MemberId, term: Term) -> bool {
        self.role == Role::Follower
            && term == self.term
            && self.leader.is_some_and(|leader| from == leader || self.is_of_our_zone(from))
    }

    fn is_of_our_zone(&self, id: MemberId) -> bool {
        let membership = self.membership();
        let zone_of = |id: &MemberId| membership.get(id).map(|m| m.zone);
        zone_of(&id).is_some() && zone_of(&id) == zone_of(&self.config.id)
    }

    pub(super) fn on_relayed(&mut self, from: MemberId, term: Term, carried: Carried) {
        let any_term = self.config.mutation == Some(Mutation::RelayedOfAnyTerm);
        let term = if any_term { self.term } else { term };
        let Some(leader) = self.leader.filter(|_| self.takes_relayed(from, term) && self.log.exists()) else {
            return;
        };
        if self.follows_ours(&carried) {
            self.on_append(leader, 0, carried);
            self.take_early(leader);
            return;
        }
        // A large one is kept where it is the only one.
        let bytes = kept(&carried);
        if self.relays.early.is_empty() || self.relays.early_bytes + bytes <= self.config.max_inflight_bytes {
            self.relays.early_bytes += bytes;
            self.relays.early.push_back(carried);
        }
    }

    fn follows_ours(&self, carried: &Carried) -> bool {
        carried.prev_index <= self.commit()
            || (carried.prev_index <= self.log.last()
                && self.log.term_at(carried.prev_index) == Some(carried.prev_term))
    }

    /// Takes what was kept and now follows our log.
    pub(super) fn take_early(&mut self, leader: MemberId) {
        while let Some(at) = self.relays.early.iter().position(|carried| self.follows_ours(carried))
            && let Some(carried) = self.relays.early.remove(at)
        {
            self.relays.early_bytes -= kept(&carried);
            self.on_append(leader, 0, carried);
        }
    }

    /// How long a member may give no sign of getting on.
    fn relay_patience(&self, peer: &Progress) -> Micros {
        3 * self.config.heartbeat + 2 * peer.rtt.unwrap_or(0)
    }

    /// Begins a round of a leader's: who passes on to whom.
    pub(super) fn choose_relays(&mut self, peers: &mut BTreeMap<MemberId, Progress>) {
        if !self.relays.on && peers.values().all(|peer| peer.via.is_none()) {
            return;
        }
        let membership = self.log.tail.membership.clone();
        let zone_of = |id: &MemberId| membership.get(id).map(|m| m.zone);
        let own = zone_of(&self.config.id);
        self.leave_out(peers);
        let takes_part = |id: &MemberId, peer: &Progress| {
            self.relays.on
                && self.relays.able.contains(id)
                && peer.state == ProgressState::Replicate
                && peer.leaving.is_none()
                && peer.next >= self.log.cached_from()
                && peer.apart.0 <= self.now
                && self.now < peer.last_heard + self.relay_patience(peer)
        };
        let mut last_zone = None;
        // Zone after zone; there are few members, and most often one zone.
        while let Some(zone) =
            membership.members.iter().map(|m| m.zone).filter(|z| Some(*z) > last_zone).min()
        {
            last_zone = Some(zone);
            let of_zone = |id: &MemberId| Some(zone) != own && zone_of(id) == Some(zone);
            let may = |(id, peer): &(&MemberId, &Progress)| of_zone(id) && takes_part(id, peer);
            let some = peers.iter().filter(may).count();
            let present = peers.values().find_map(|peer| peer.via.filter(of_zone));
            let chosen = match present.filter(|id| peers.get(id).is_some_and(|peer| may(&(id, peer)))) {
                _ if some < 2 => None,
                Some(id) => Some(id),
                // The one that has the most; of equals the first.
                None => {
                    let most =
                        peers.iter().filter(may).max_by_key(|(id, p)| (p.received, std::cmp::Reverse(*id)));
                    most.map(|(id, _)| *id)
                }
            };
            if let Some(relay) = chosen {
                peers.get_mut(&relay).map(Progress::feed_directly);
            }
            let next = chosen.and_then(|id| peers.get(&id)).map_or(0, |relay| relay.next);
            for (id, peer) in peers.iter_mut().filter(|(id, _)| zone_of(id) == Some(zone)) {
                if Some(*id) == chosen || (peer.via.is_none() && chosen.is_none()) {
                    continue;
                }
                let takes_part = chosen.is_some() && takes_part(id, peer);
                if !takes_part || peer.via != chosen {
                    peer.feed_directly();
                }
                // One that is ahead of its relay would have to wait for it.
                if takes_part && peer.via.is_none() && peer.next <= next {
                    peer.via = chosen;
                    peer.stuck_since = None;
                }
            }
        }
        // Who is no member any more is in no zone.
        peers.iter_mut().filter(|(id, _)| zone_of(id).is_none()).for_each(|(_, peer)| peer.feed_directly());
    }

    /// Leaves those out that keep others, or themselves, from getting on.
    fn leave_out(&self, peers: &mut BTreeMap<MemberId, Progress>) {
        let mut out: Vec<MemberId> = Vec::new();
        let relays: Vec<(MemberId, Index)> = peers
            .values()
            .filter_map(|peer| peer.via)
            .filter_map(|id| peers.get(&id).map(|relay| (id, relay.received)))
            .collect();
        for (id, peer) in peers.iter_mut() {
            let relays_now = relays.iter().any(|(relay, _)| relay == id);
            let behind = match peer.via {
                Some(via) => relays.iter().any(|(id, received)| *id == via && *received > peer.received),
                None => relays_now && peer.awaits_answers(),
            };
            let since = match behind {
                true => *peer.stuck_since.get_or_insert(self.now),
                false => {
                    peer.stuck_since = None;
                    self.now
                }
            };
            let since = if relays_now { since.min(peer.last_heard) } else { since };
            if self.now >= since + self.relay_patience(peer) {
                out.push(*id);
            }
        }
        let first = APART.0 * self.config.election_timeout;
        let most = APART.1 * self.config.election_timeout;
        for id in out {
            if let Some(peer) = peers.get_mut(&id) {
                let (until, last) = peer.apart;
                let lately = self.now < until + 4 * last;
                let time = if lately { (2 * last).clamp(first, most) } else { first };
                peer.apart = (self.now + time, time);
                peer.stuck_since = None;
            }
        }
    }

    /// The end of a leader's round, where there are relays: each member's part of it.
    pub(super) fn feed_zones(&mut self, peers: &mut BTreeMap<MemberId, Progress>, speak: bool) {
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
            self.tell_news(id, rider, speak);
        }
    }

    /// Sends what is missing before `next`, where its relay is: by no relay, and yet so that it may overtake what is on
    /// its way by one.
    fn feed_below(&mut self, id: MemberId, peer: &mut Progress, next: Index) {
        while peer.next < next && peer.window_open(self.config.max_inflight_bytes) {
            let prev_index = peer.next - 1;
            let (entries, bytes) = self.log.slice(peer.next, next - 1, self.config.max_append_bytes);
            let (Some(last), Some(prev_term)) = (entries.last(), self.log.term_at(prev_index)) else {
                return;
            };
            peer.sent(last.index, bytes);
            let carried = self.carry(peer, prev_index, prev_term, entries);
            self.send(id, Message::Relayed { term: self.term, carried });
        }
    }

    fn carry(&self, peer: &mut Progress, prev_index: Index, prev_term: Term, entries: Vec<Entry>) -> Carried {
        peer.commit_told = self.commit();
        peer.persisted_told = self.acknowledged();
        Carried { prev_index, prev_term, commit: self.commit(), persisted: self.acknowledged(), entries }
    }

    /// Who goes along with entries from after `prev_index` to `last`: who was sent all before them, and not all of them.
    pub(super) fn board(
        &self,
        riders: &mut [Rider<'_>],
        prev_index: Index,
        last: Index,
        bytes: usize,
    ) -> Vec<MemberId> {
        let mut to = Vec::new();
        for (id, rider) in riders {
            let fits = rider.next > prev_index && rider.next <= last;
            if fits && rider.window_open(RIDERS_WINDOW * self.config.max_inflight_bytes) {
                rider.sent(last, bytes);
                rider.commit_told = self.commit();
                rider.persisted_told = self.acknowledged();
                to.push(*id);
            }
        }
        to
    }
}

impl Progress {
    /// No longer by another: begins again after what it has, for what is on its way may not arrive.
    fn feed_directly(&mut self) {
        if self.via.take().is_some() && self.state == ProgressState::Replicate {
            self.replicate(self.received + 1);
        }
    }
}
