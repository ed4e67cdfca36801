//! A leader's choice: who relays for each zone, and who takes no part.

use super::*;

/// Whoever was the cause of a fallback is left out for so many election timeouts first, and at most.
const APART: (u64, u64) = (8, 256);

impl Order {
    /// How long a member may give no sign of getting on.
    fn relay_patience(&self, peer: &Progress) -> Micros {
        3 * self.config.heartbeat + 2 * peer.rtt.unwrap_or(0)
    }

    /// Begins a round of a leader's: who passes on to whom.
    pub(in crate::order) fn choose_relays(&mut self, peers: &mut BTreeMap<MemberId, Progress>) {
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
}

impl Progress {
    /// No longer by another: begins again after what it has, for what is on its way may not arrive.
    fn feed_directly(&mut self) {
        if self.via.take().is_some() && self.state == ProgressState::Replicate {
            self.replicate(self.received + 1);
        }
    }
}
