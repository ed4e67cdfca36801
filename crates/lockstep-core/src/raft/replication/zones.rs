//! The leader's choice of relays: one for each zone, and the members excluded from relaying.

use super::progress::{Peers, Progress, ProgressState};
use crate::raft::local::Local;
use crate::raft::relay::Relay;
use crate::types::*;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// How long a member is excluded from relaying after a failure, in election timeouts: at first, and at most.
const EXCLUSION: (u64, u64) = (8, 256);

/// How long a relay may be slow before another is tried, in election timeouts: at first, and at most.
const SLOW: (u64, u64) = (4, 256);

/// What a leader remembers of a zone that has a relay.
#[derive(Debug, Default)]
struct Zone {
    /// Since when its relay has been slow, and the bytes confirmed then.
    slow: Option<(Micros, u64)>,
    /// How long its relay may be slow before it is replaced.
    switch_timeout: Micros,
    /// When its relay was last replaced because it was slow.
    replaced_at: Micros,
    /// Estimated time of the bytes in flight to the zone, and until when the estimate holds for messages queued behind.
    line: (Micros, Micros),
}

/// The choice of relays. Zones are known by number.
#[derive(Debug, Default)]
pub(super) struct Zones {
    /// This member, when it leads, relays.
    on: bool,
    zones: BTreeMap<u8, Zone>,
}

impl Zones {
    pub(super) fn set_on(&mut self, on: bool) {
        self.on = on;
    }

    /// Forgets all measurements, because a new term has begun.
    pub(super) fn forget(&mut self) {
        self.zones.clear();
    }

    /// The longest time without progress of a member. `line`: see [`Zones::time_in_flight`]. For small messages the bound is that of a
    /// silent leader, independent of measurements.
    fn relay_timeout(local: &Local, peer: &Progress, line: Micros) -> Micros {
        let trips = 2 * peer.route().path().shortest();
        let small = (3 * local.config().heartbeat + trips).min(local.config().election_timeout.max(trips));
        small + 2 * line
    }

    /// Estimated time of all bytes in flight to a zone: a message sent now may queue behind them on one line.
    fn time_in_flight(&mut self, local: &Local, zone: u8, peers: &Peers) -> Micros {
        let lately = EXCLUSION.0 * local.config().election_timeout;
        let there = || peers.values().filter(|peer| peer.route().zone() == Some(zone));
        let time_per_kib = there().map(|peer| peer.route().path().time_per_kib()).max().unwrap_or(0);
        let takes = |peer: &Progress| (peer.bytes_in_flight() >> 10) as Micros * time_per_kib;
        // A silent member receives nothing, and bytes to a relay recipient count for its relay.
        let live = there().filter(|peer| local.now() < peer.contact().last_answer() + lately + takes(peer));
        let takes = live.filter(|peer| peer.route().relay().is_none()).map(takes).sum();
        let line = &mut self.zones.entry(zone).or_default().line;
        if takes >= line.0 || line.1 <= local.now() {
            *line = (takes, local.now() + takes);
        }
        line.0
    }

    /// Whether the path to `relay` is much longer than the one to `other`.
    fn is_farther(local: &Local, relay: &Progress, other: &Progress) -> bool {
        relay.route().path().shortest() > 2 * other.route().path().shortest() + local.config().heartbeat / 2
    }

    /// Begins a leader's round: chooses the relay of each zone and its recipients.
    pub(super) fn choose(&mut self, local: &Local, relay: &Relay, peers: &mut Peers) {
        let membership = local.membership().clone();
        let own = membership.get(&local.id()).map(|m| m.zone);
        let on = self.on && membership.members.iter().any(|m| Some(m.zone) != own);
        if !on && peers.values().all(|peer| peer.route().relay().is_none()) {
            return;
        }
        for (id, peer) in peers.iter_mut() {
            peer.set_zone(membership.get(id).map(|m| m.zone));
        }
        self.exclude_failed(local, peers);
        let mut last_zone = None;
        // Zone after zone. There are few members, and usually one or two zones.
        while let Some(zone) =
            membership.members.iter().map(|m| m.zone).filter(|z| Some(*z) > last_zone).min()
        {
            last_zone = Some(zone);
            let of_zone = |peer: &Progress| peer.route().zone() == Some(zone);
            let mut fit = Vec::new();
            // A relay needs a recipient.
            let may_relay = membership.members.iter().filter(|m| m.zone == zone).count() > 1;
            if Some(zone) != own && may_relay {
                let line = self.time_in_flight(local, zone, peers);
                let all = peers
                    .iter()
                    .filter(|(id, peer)| of_zone(peer) && self.may_take_part(local, relay, (id, peer), line));
                fit.extend(all.map(|(id, _)| *id));
            }
            let present = peers.values().find_map(|peer| peer.route().relay().filter(|_| of_zone(peer)));
            let chosen = match present.filter(|id| fit.contains(id)) {
                _ if fit.len() < 2 => None,
                Some(id) => self.replacement(local, zone, id, &fit, peers).or(Some(id)),
                None => Zones::first_choice(local, &fit, peers),
            };
            let before = present.and_then(|id| peers.get(&id)).map(|relay| relay.route().path().share_now());
            if let Some(relay) = chosen.filter(|_| chosen != present).and_then(|id| peers.get_mut(&id)) {
                relay.begin_relaying(before);
            }
            for (id, peer) in peers.iter_mut().filter(|(id, peer)| of_zone(peer) && Some(**id) != chosen) {
                match chosen.filter(|_| fit.contains(id)) {
                    Some(relay) => peer.receive_through(relay),
                    None => peer.send_directly(),
                }
            }
        }
        // A removed member is in no zone.
        peers.values_mut().filter(|peer| peer.route().zone().is_none()).for_each(Progress::send_directly);
    }

    fn may_take_part(
        &self,
        local: &Local,
        relay: &Relay,
        (id, peer): (&MemberId, &Progress),
        line: Micros,
    ) -> bool {
        self.on
            && relay.is_able(id)
            && peer.state() == ProgressState::Replicate
            && !peer.is_leaving()
            && peer.next() >= local.log().cached_from()
            && !peer.route().is_excluded(local.now())
            && local.now() < peer.contact().last_answer() + Zones::relay_timeout(local, peer, line)
    }

    /// The best candidate: one that need not wait for others, has not failed lately, has the shortest path, has received
    /// most; then the one with the lowest id.
    fn first_choice(local: &Local, fit: &[MemberId], peers: &Peers) -> Option<MemberId> {
        let known = || fit.iter().filter_map(|id| Some((*id, peers.get(id)?)));
        let most = known().map(|(_, peer)| peer.received()).max()?;
        let step = (local.config().heartbeat / 2).max(1);
        let rank = |(id, peer): &(MemberId, &Progress)| {
            let failed = peer.route().recent_exclusion(local.now());
            (
                peer.next() <= most,
                failed,
                peer.route().path().shortest() / step,
                Reverse(peer.received()),
                *id,
            )
        };
        known().min_by_key(rank).map(|(id, _)| id)
    }

    /// The replacement of a relay that has been slow for long: a member with a shorter path. If more entries wait than the
    /// relay takes, it may also be a member that took more, or was not tried yet. If the line or all members are slow, the
    /// changes come to an end: each one doubles the time until the next, and measured rates are kept.
    fn replacement(
        &mut self,
        local: &Local,
        zone: u8,
        id: MemberId,
        fit: &[MemberId],
        peers: &mut Peers,
    ) -> Option<MemberId> {
        let first = SLOW.0 * local.config().election_timeout;
        let most = SLOW.1 * local.config().election_timeout;
        let others = |peers: &Peers| -> Vec<(MemberId, bool, bool)> {
            let relay = peers.get(&id);
            let pairs =
                fit.iter().filter(|other| **other != id).filter_map(|o| Some((*o, relay?, peers.get(o)?)));
            pairs
                .map(|(o, relay, other)| {
                    (o, Zones::is_farther(local, relay, other), Zones::is_farther(local, other, relay))
                })
                .collect()
        };
        let others = others(peers);
        let nearer = others.iter().any(|(_, nearer, _)| *nearer);
        let mut of_zone = self.zones.remove(&zone).unwrap_or_default();
        of_zone.switch_timeout = of_zone.switch_timeout.max(first);
        let now = local.now();
        let relay = peers.get_mut(&id)?;
        let confirmed = relay.route().path().bytes_confirmed();
        let mut chosen = None;
        if !nearer && !relay.route().is_limited() {
            of_zone.slow = None;
            if now >= of_zone.replaced_at + 16 * of_zone.switch_timeout {
                of_zone.switch_timeout = first;
            }
        } else {
            let (since, before) = *of_zone.slow.get_or_insert((now, confirmed));
            // Several messages must be able to arrive in that time.
            if now >= since + of_zone.switch_timeout.max(4 * of_zone.line.0) {
                let rate = confirmed.saturating_sub(before) * 1_000_000 / (now - since).max(1);
                let limited = relay.route().is_limited();
                if limited {
                    relay.note_rate(rate, now);
                }
                let rate_of =
                    |other: &MemberId| match peers.get(other).and_then(|peer| peer.route().path().rate()) {
                        Some((rate, at)) if now < at + most => rate,
                        _ => u64::MAX,
                    };
                let better = others.iter().filter(|(other, nearer, farther)| {
                    *nearer || (limited && !farther && rate_of(other) / 3 > rate / 2)
                });
                chosen =
                    better.max_by_key(|(o, nearer, _)| (*nearer, rate_of(o), Reverse(*o))).map(|(o, ..)| *o);
                of_zone.slow = None;
                if chosen.is_some() {
                    of_zone.switch_timeout = (2 * of_zone.switch_timeout).min(most);
                    of_zone.replaced_at = now;
                }
            }
        }
        self.zones.insert(zone, of_zone);
        chosen
    }

    /// Excludes relays that reach no recipient or are stuck, and recipients that stay behind their relay.
    fn exclude_failed(&self, local: &Local, peers: &mut Peers) {
        let relays: BTreeMap<MemberId, (Index, Micros)> = peers
            .values()
            .filter_map(|peer| peer.route().relay())
            .filter_map(|id| {
                let relay = peers.get(&id)?;
                let line = self.zones.get(&relay.route().zone()?).map_or(0, |zone| zone.line.0);
                Some((id, (relay.received(), line)))
            })
            .collect();
        if relays.is_empty() {
            return;
        }
        let mut out: Vec<MemberId> = Vec::new();
        // Recipients behind each relay that have waited for half of the timeout, and their number.
        let mut behind: BTreeMap<MemberId, (usize, usize, Vec<MemberId>)> = BTreeMap::new();
        for (id, peer) in peers.iter_mut() {
            if let Some((via, (received, line))) =
                peer.route().relay().and_then(|via| Some((via, relays.get(&via)?)))
            {
                let waits = peer.track_wait(*received, local.now());
                let timeout = Zones::relay_timeout(local, peer, *line);
                let (waiting, all, given_up) = behind.entry(via).or_default();
                *waiting += usize::from(waits >= timeout / 2);
                *all += 1;
                if waits >= timeout {
                    given_up.push(*id);
                }
            } else if let Some((_, line)) = relays.get(id) {
                let timeout = Zones::relay_timeout(local, peer, *line);
                if local.now() >= peer.track_stuck(local.now()) + timeout {
                    out.push(*id);
                }
            }
        }
        for (relay, (waiting, all, given_up)) in behind {
            // If the relay reaches no recipient, the relay is the cause.
            if !given_up.is_empty() && waiting == all {
                out.push(relay);
            } else {
                out.extend(given_up);
            }
        }
        let first = EXCLUSION.0 * local.config().election_timeout;
        let most = EXCLUSION.1 * local.config().election_timeout;
        for id in out {
            if let Some(peer) = peers.get_mut(&id) {
                peer.exclude(local.now(), (first, most));
            }
        }
    }
}
