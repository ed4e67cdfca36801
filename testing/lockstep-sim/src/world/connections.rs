//! Connections: one between two members, made when both admit each other. Frames arrive in order; a cut ends the
//! connection, which each side notices for itself.

use super::{Event, MEMBERS_MAX, SPARES, World, zone_of};
use crate::clock::Name;
use crate::profile::{MS, SECOND};
use crate::trace::brief;
use bytes::Bytes;
use lockstep_core::{MemberId, Micros};
use lockstep_node::net::VERSIONS;
use lockstep_node::simulation::{is_raft, raft_message};

/// One in this many frames of Raft arrives twice, where frames are repeated.
const REPEATED: u64 = 64;
/// One in this many relayed frames arrives twice, everywhere.
const REPEATED_RELAYED: u64 = 8;
/// The last version without relays.
const WITHOUT_RELAYS: u16 = 3;
/// The last version without evidence of the recipient's durable state.
const WITHOUT_EVIDENCE: u16 = 6;

/// All places.
const PLACES: usize = MEMBERS_MAX + SPARES;

/// The tags of `Relay` and `Relayed`.
const RELAY: u8 = 19;
const RELAYED: u8 = 20;

#[derive(Clone, Copy, Debug)]
struct Link {
    id: u64,
    /// The members, which may have other ids when the end is noticed.
    ids: [MemberId; 2],
    /// Of each side, the smaller place first: it has not noticed an end.
    up: [bool; 2],
    /// Nothing passes any more, in the direction from this side.
    dead: [bool; 2],
}

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// By the smaller place, then the larger one.
    all: [[Option<Link>; PLACES]; PLACES],
    ids: u64,
}

impl Links {
    fn get(&self, at: usize, peer: usize) -> Option<&Link> {
        self.all[at.min(peer)][at.max(peer)].as_ref()
    }

    fn place(&mut self, at: usize, peer: usize) -> &mut Option<Link> {
        &mut self.all[at.min(peer)][at.max(peer)]
    }

    /// The member at the other side of a connection, if this side of it is up.
    pub(crate) fn peer(&self, at: usize, peer: usize, id: u64) -> Option<MemberId> {
        let link = self.get(at, peer).filter(|link| link.id == id)?;
        link.up[usize::from(at > peer)].then_some(link.ids[usize::from(at < peer)])
    }

    /// Whether this place has a connection to this member whose end it has not noticed.
    pub(crate) fn has_peer(&self, at: usize, id: &MemberId) -> bool {
        let leads_there = |peer: usize| {
            let link = self.get(at, peer).filter(|link| link.up[usize::from(at > peer)]);
            link.is_some_and(|link| link.ids[usize::from(at < peer)] == *id)
        };
        (0..PLACES).any(leads_there)
    }

    /// Whether two members are connected, as both know, and frames pass.
    pub(crate) fn is_alive(&self, at: usize, peer: usize) -> bool {
        self.get(at, peer).is_some_and(|link| link.up == [true; 2] && link.dead == [false; 2])
    }

    /// Closes one side.
    fn close(&mut self, at: usize, peer: usize, id: u64) {
        let place = self.place(at, peer);
        let Some(link) = place.as_mut().filter(|link| link.id == id) else { return };
        link.up[usize::from(at > peer)] = false;
        link.dead = [true; 2];
        if link.up == [false; 2] {
            *place = None;
        }
    }
}

impl World {
    /// The place of a member.
    pub(crate) fn place_of(&self, id: &MemberId) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == *id)
    }

    pub(crate) fn send(&mut self, at: usize, to: &MemberId, kind: u8, payload: Bytes) {
        let Some(to) = self.place_of(to) else { return };
        let Some(link) = self.links.get(at, to).copied() else { return };
        let side = usize::from(at > to);
        if !link.up[side] || link.dead[side] {
            return;
        }
        self.counters.messages += 1;
        let raft_tag = payload.first().copied().filter(|_| is_raft(kind));
        let relayed = raft_tag == Some(RELAYED);
        self.counters.relays += u64::from(raft_tag == Some(RELAY));
        self.counters.relayed += u64::from(relayed);
        let (bytes, later) = (40 + payload.len(), self.profile.heartbeat);
        let arrival = self.net.send_in_order(self.now, at, to, bytes, later, &mut self.rng);
        if self.trace.wanted(self.now) {
            let text =
                raft_message(kind, &payload, |_| true).map_or("a frame of members".into(), |m| brief(&m));
            self.say(at, format_args!("-> {} by {arrival} µs: {text}", Name(to + 1)));
        }
        // A relay that hangs may pass on what a former leader sent.
        let repeated = self.repeats && is_raft(kind) && self.rng.one_in(REPEATED);
        if repeated || relayed && self.rng.one_in(REPEATED_RELAYED) {
            let longest = (2 * SECOND).max(8 * self.profile.election_timeout);
            let late = arrival + self.rng.below(longest);
            let lives = (self.nodes[at].life(), self.nodes[to].life());
            self.queue.push(late, Event::Late { from: at, to, lives, kind, payload: payload.clone() });
        }
        self.queue.push(arrival, Event::Frame { from: at, to, link: link.id, kind, payload });
    }

    /// Members that can reach each other connect.
    pub(crate) fn connect(&mut self) {
        let awake: Vec<usize> = (0..self.nodes.len()).filter(|at| self.nodes[*at].awake(self.now)).collect();
        for (count, b) in awake.iter().copied().enumerate() {
            for a in awake[..count].iter().copied() {
                let reachable = self.net.passes(a, b) && self.net.passes(b, a);
                if reachable && self.links.get(a, b).is_none() {
                    self.introduce(a, b);
                }
            }
        }
    }

    fn introduce(&mut self, a: usize, b: usize) {
        let hello = |world: &World, at: usize| {
            world.nodes[at].process.as_ref().map(|process| process.node.introduction())
        };
        let (Some(ha), Some(hb)) = (hello(self, a), hello(self, b)) else { return };
        let now = self.now;
        for (at, other) in [(a, &hb), (b, &ha)] {
            let node = &mut self.nodes[at];
            let (local, wall) = (node.clock.local(now), node.clock.wall(now));
            let Some(process) = &mut node.process else { return };
            process.node.begin_round(local, wall);
            if !process.node.admits(other) {
                self.wake(at, 0);
                return;
            }
        }
        self.links.ids += 1;
        self.weather += 1;
        let link = Link { id: self.links.ids, ids: [ha.id, hb.id], up: [true; 2], dead: [false; 2] };
        *self.links.place(a, b) = Some(link);
        self.net.reconnect(a, b);
        // Members of an older version pass nothing on.
        let version = match [a, b].iter().all(|at| self.settings.knows_relays(*at)) {
            true => VERSIONS.1,
            false => VERSIONS.1.min(WITHOUT_RELAYS),
        };
        let version = if self.settings.knows_evidence() { version } else { version.min(WITHOUT_EVIDENCE) };
        for (at, peer, other) in [(a, b, hb), (b, a, ha)] {
            let rtt = self.net.quality(at, peer).delay + self.net.quality(peer, at).delay;
            if let Some(process) = &mut self.nodes[at].process {
                let id = other.id;
                process.node.peer_up(other, version);
                process.node.round_trip(id, rtt);
            }
            self.wake(at, 0);
        }
    }

    /// All links are at their best from now on. A connection on which frames from slower times would still be under way is
    /// made anew: it would be out of order, or late for long.
    pub(crate) fn mend_links(&mut self) {
        for b in 0..self.nodes.len() {
            for a in 0..b {
                let late = self.now + SECOND;
                if self.net.is_busy_after(a, b, late) || self.net.is_busy_after(b, a, late) {
                    self.hang_up(a, b, MS);
                }
            }
        }
        let (profile, zones) = (&self.profile, self.zones);
        self.net.mend_all(|from, to| profile.between(zone_of(from, zones), zone_of(to, zones)));
    }

    /// Nothing passes any more from one to the other; both notice it some time later.
    pub(crate) fn cut(&mut self, from: usize, to: usize) {
        self.net.cut(from, to);
        self.weather += 1;
        let Some(link) = self.links.place(from, to) else { return };
        link.dead[usize::from(from > to)] = true;
        let id = link.id;
        for (at, peer) in [(from, to), (to, from)] {
            let after = self.rng.between(0, 2 * SECOND);
            self.queue.push(self.now + after, Event::Down { at, peer, link: id });
        }
    }

    /// One side has noticed the end of a connection.
    pub(crate) fn side_down(&mut self, at: usize, peer: usize, link: u64) {
        let Some(id) = self.links.peer(at, peer, link) else { return };
        self.links.close(at, peer, link);
        let now = self.now;
        let node = &mut self.nodes[at];
        let (local, wall) = (node.clock.local(now), node.clock.wall(now));
        if let Some(process) = &mut node.process {
            process.node.begin_round(local, wall);
            process.leadership.loses(&id, local);
            process.node.peer_down(id);
            self.wake(at, 0);
        }
    }

    /// This side closes its connection; the other notices soon.
    pub(crate) fn hang_up(&mut self, at: usize, peer: usize, longest: Micros) {
        let Some(link) = self.links.get(at, peer).copied() else { return };
        let after = self.rng.between(50, longest.max(50));
        self.queue.push(self.now + after, Event::Down { at: peer, peer: at, link: link.id });
        self.side_down(at, peer, link.id);
    }

    /// This process is gone: its sides of all connections are.
    pub(crate) fn hang_up_all(&mut self, at: usize, longest: Micros) {
        for peer in (0..self.nodes.len()).filter(|peer| *peer != at) {
            self.hang_up(at, peer, longest);
        }
    }
}
