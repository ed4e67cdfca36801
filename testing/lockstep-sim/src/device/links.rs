//! Connections between machines: one between two, which each side notices to end for itself.

use super::world::{DeviceWorld, Event};
use crate::profile::{MS, SECOND};
use bytes::Bytes;
use lockstep_core::{MemberId, Micros};
use lockstep_node::net::VERSIONS;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
struct Link {
    id: u64,
    /// Of each side, the smaller place first: it has not noticed an end.
    up: [bool; 2],
    /// Nothing passes any more, in the direction from this side.
    dead: [bool; 2],
}

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// By the smaller place, then the larger one.
    all: BTreeMap<(usize, usize), Link>,
    ids: u64,
}

fn places(at: usize, peer: usize) -> (usize, usize) {
    (at.min(peer), at.max(peer))
}

impl Links {
    fn get(&self, at: usize, peer: usize) -> Option<&Link> {
        self.all.get(&places(at, peer))
    }

    /// Whether this side of a connection is up.
    pub(super) fn is_up(&self, at: usize, peer: usize, id: Option<u64>) -> bool {
        let link = self.get(at, peer).filter(|link| id.is_none_or(|id| link.id == id));
        link.is_some_and(|link| link.up[usize::from(at > peer)])
    }

    fn close(&mut self, at: usize, peer: usize) {
        let Some(link) = self.all.get_mut(&places(at, peer)) else { return };
        link.up[usize::from(at > peer)] = false;
        link.dead = [true; 2];
        if link.up == [false; 2] {
            self.all.remove(&places(at, peer));
        }
    }
}

impl DeviceWorld {
    pub(super) fn send(&mut self, at: usize, to: &MemberId, kind: u8, payload: Bytes) {
        let Some(to) = self.machines.iter().position(|machine| machine.id == *to) else { return };
        let Some(link) = self.links.get(at, to).copied() else { return };
        let side = usize::from(at > to);
        if !link.up[side] || link.dead[side] {
            return;
        }
        let (bytes, later) = (40 + payload.len(), self.profile.heartbeat);
        let arrival = self.net.send_in_order(self.now, at, to, bytes, later, &mut self.rng);
        self.queue.push(arrival, Event::Frame { from: at, to, link: link.id, kind, payload });
    }

    /// Members that can reach each other connect.
    pub(super) fn connect(&mut self) {
        let awake: Vec<usize> =
            (0..self.machines.len()).filter(|at| self.machines[*at].is_awake(self.now)).collect();
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
        let hello =
            |world: &DeviceWorld, at: usize| Some(world.machines[at].process.as_ref()?.node.introduction());
        let (Some(ha), Some(hb)) = (hello(self, a), hello(self, b)) else { return };
        for (at, other) in [(a, &hb), (b, &ha)] {
            self.begin_round(at);
            let admitted =
                self.machines[at].process.as_mut().is_some_and(|process| process.node.admits(other));
            self.wake(at, 0);
            if !admitted {
                return;
            }
        }
        self.links.ids += 1;
        let link = Link { id: self.links.ids, up: [true; 2], dead: [false; 2] };
        self.links.all.insert(places(a, b), link);
        self.net.reconnect(a, b);
        for (at, peer, other) in [(a, b, hb), (b, a, ha)] {
            let rtt = self.net.quality(at, peer).delay + self.net.quality(peer, at).delay;
            if let Some(process) = &mut self.machines[at].process {
                let id = other.id;
                process.node.peer_up(other, VERSIONS.1);
                process.node.round_trip(id, rtt);
            }
        }
    }

    /// Nothing passes any more from one to the other; both notice it some time later.
    pub(super) fn cut(&mut self, from: usize, to: usize) {
        self.net.cut(from, to);
        let Some(link) = self.links.all.get_mut(&places(from, to)) else { return };
        link.dead[usize::from(from > to)] = true;
        let id = link.id;
        for (at, peer) in [(from, to), (to, from)] {
            let after = self.rng.between(0, 2 * SECOND);
            self.queue.push(self.now + after, Event::Down { at, peer, link: id });
        }
    }

    /// One side has noticed the end of a connection.
    pub(super) fn side_down(&mut self, at: usize, peer: usize, link: u64) {
        if !self.links.is_up(at, peer, Some(link)) {
            return;
        }
        self.links.close(at, peer);
        let id = self.machines[peer].id;
        self.begin_round(at);
        if let Some(process) = &mut self.machines[at].process {
            process.node.peer_down(id);
        }
        self.wake(at, 0);
    }

    /// This side closes all its connections; the others notice soon.
    pub(super) fn hang_up(&mut self, at: usize, peer: usize, longest: Micros) {
        let Some(link) = self.links.get(at, peer).copied() else { return };
        let after = self.rng.between(50, longest.max(50));
        self.queue.push(self.now + after, Event::Down { at: peer, peer: at, link: link.id });
        self.side_down(at, peer, link.id);
    }

    /// All links are as at the beginning.
    pub(super) fn mend_links(&mut self) {
        for b in 0..self.machines.len() {
            for a in 0..b {
                if self.net.is_busy_after(a, b, self.now + SECOND)
                    || self.net.is_busy_after(b, a, self.now + SECOND)
                {
                    self.hang_up(a, b, MS);
                }
            }
        }
        let quality = self.profile.quality;
        self.net.mend_all(|_, _| quality);
    }
}
