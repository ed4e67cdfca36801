//! The network between members: every directed link has its own delay, loss and width, and can be cut in one direction
//! alone.

use crate::rng::Rng;
use lockstep_core::Micros;

/// How a directed link behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Quality {
    /// The least time a message takes, µs.
    pub(crate) delay: Micros,
    /// Up to this much more, µs.
    pub(crate) jitter: Micros,
    /// Chance of a message to be lost, ppm.
    pub(crate) loss: u32,
    /// Bytes that pass in a millisecond.
    pub(crate) bytes_per_ms: u64,
    /// Messages queue behind each other. Otherwise large ones are only late.
    pub(crate) queues: bool,
}

impl Quality {
    /// A good local network.
    pub(crate) const LAN: Quality =
        Quality { delay: 60, jitter: 120, loss: 0, bytes_per_ms: 100_000, queues: false };
}

/// TCP sends a packet again after this time if no ack tells it to do so sooner.
const RETRANSMIT: Micros = 200_000;
/// No frame is later than this for its losses, nearly.
const LOSSES_MAX: Micros = 2_000_000;

#[derive(Clone, Debug)]
struct Link {
    quality: Quality,
    /// How many faults cut it now: cuts may overlap.
    cuts: u32,
    /// When the last message that keeps the order arrives.
    last: Micros,
    /// When the last message has passed.
    free: Micros,
    /// When the last message arrives that was sent before the link's present quality.
    settled: Micros,
}

/// All directed links between `machines` places.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    machines: usize,
    links: Vec<Link>,
}

impl Network {
    /// All links alike.
    pub(crate) fn new(machines: usize, quality: Quality) -> Network {
        Network {
            machines,
            links: vec![Link { quality, cuts: 0, last: 0, free: 0, settled: 0 }; machines * machines],
        }
    }

    fn link(&mut self, from: usize, to: usize) -> &mut Link {
        debug_assert!(from < self.machines && to < self.machines);
        &mut self.links[from * self.machines + to]
    }

    /// How the link behaves.
    pub(crate) fn quality(&self, from: usize, to: usize) -> Quality {
        self.links[from * self.machines + to].quality
    }

    /// Makes the link behave like this from now on.
    pub(crate) fn set_quality(&mut self, from: usize, to: usize, quality: Quality) {
        let link = self.link(from, to);
        link.settled = link.settled.max(link.last);
        link.quality = quality;
    }

    /// Arrival time of the last message sent under the previous settings: later messages queue behind it.
    pub(crate) fn last_arrival(&self, from: usize, to: usize) -> Micros {
        self.links[from * self.machines + to].settled
    }

    /// Cuts the link; each cut is undone by one [`Network::mend`].
    pub(crate) fn cut(&mut self, from: usize, to: usize) {
        self.link(from, to).cuts += 1;
    }

    /// Undoes one cut.
    pub(crate) fn mend(&mut self, from: usize, to: usize) {
        let link = self.link(from, to);
        link.cuts = link.cuts.saturating_sub(1);
    }

    /// Whether messages pass at all.
    pub(crate) fn passes(&self, from: usize, to: usize) -> bool {
        self.links[from * self.machines + to].cuts == 0
    }

    /// All links behave like this from now on, and none is cut. Frames in flight stay ahead of later ones.
    pub(crate) fn mend_all(&mut self, quality: impl Fn(usize, usize) -> Quality) {
        for from in 0..self.machines {
            for to in 0..self.machines {
                self.link(from, to).cuts = 0;
                self.set_quality(from, to, quality(from, to));
            }
        }
    }

    /// A new connection between two places: nothing queues behind frames of an earlier one.
    pub(crate) fn reconnect(&mut self, a: usize, b: usize) {
        for (from, to) in [(a, b), (b, a)] {
            let link = self.link(from, to);
            (link.last, link.free) = (0, 0);
        }
    }

    /// When a frame that is sent now arrives on a connection: in order, and later for each loss. `later` is the time until
    /// more is sent: its ack reveals a loss. A second loss in a row is repaired by [`RETRANSMIT`].
    pub(crate) fn send_in_order(
        &mut self,
        now: Micros,
        from: usize,
        to: usize,
        bytes: usize,
        later: Micros,
        rng: &mut Rng,
    ) -> Micros {
        let link = self.link(from, to);
        let Quality { delay, jitter, loss, bytes_per_ms, queues, .. } = link.quality;
        let mut pass = bytes as u64 * 1000 / bytes_per_ms.max(1);
        if queues {
            link.free = link.free.max(now) + pass;
            pass = link.free - now;
        }
        let round_trip = 2 * delay + jitter;
        let mut lost = 0;
        while lost < LOSSES_MAX && rng.chance(loss) {
            lost += round_trip + if lost == 0 { later.min(RETRANSMIT) } else { RETRANSMIT };
        }
        link.last = link.last.max(now + delay + rng.below(jitter + 1) + pass + lost);
        link.last
    }

    /// Whether a connection has frames in flight that arrive later than this.
    pub(crate) fn is_busy_after(&self, from: usize, to: usize, time: Micros) -> bool {
        self.links[from * self.machines + to].last > time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_on_a_jittery_lossy_link_arrive_in_order() {
        let mut rng = Rng::new(3);
        let mut net = Network::new(2, Quality { jitter: 5000, loss: 100_000, ..Quality::LAN });
        let arrivals: Vec<_> =
            (0..200).map(|now| net.send_in_order(now, 0, 1, 100, 25_000, &mut rng)).collect();
        assert!(arrivals.is_sorted() && arrivals[0] > 0, "{arrivals:?}");
        assert!(arrivals.last() > Some(&25_000), "a lost frame delays those behind it: {arrivals:?}");
    }

    #[test]
    fn frame_after_a_reconnect_does_not_queue_behind_earlier_ones() {
        let mut rng = Rng::new(3);
        let narrow = Quality { delay: 50, jitter: 0, bytes_per_ms: 100, queues: true, ..Quality::LAN };
        let mut net = Network::new(2, narrow);
        let mut send = |net: &mut Network| net.send_in_order(0, 0, 1, 1000, 0, &mut rng);
        let arrivals: Vec<_> = (0..10).map(|_| send(&mut net)).collect();
        assert_eq!(arrivals, (1..=10).map(|n| 10_000 * n + 50).collect::<Vec<_>>());
        net.reconnect(0, 1);
        assert_eq!(send(&mut net), 10_050);
    }

    /// The checks once took a link for clean although frames of before its mending were still to arrive.
    #[test]
    fn frames_in_flight_are_known_after_mending() {
        let mut rng = Rng::new(3);
        let narrow = Quality { delay: 50, jitter: 0, bytes_per_ms: 100, queues: true, ..Quality::LAN };
        let mut net = Network::new(2, narrow);
        let arrival = net.send_in_order(0, 0, 1, 100_000, 0, &mut rng);
        net.mend_all(|_, _| Quality::LAN);
        assert_eq!((arrival, net.last_arrival(0, 1)), (1_000_050, 1_000_050));
    }

    #[test]
    fn twice_cut_link_passes_again_after_two_mends() {
        let mut net = Network::new(2, Quality::LAN);
        net.cut(0, 1);
        net.cut(0, 1);
        net.mend(0, 1);
        assert!(!net.passes(0, 1) && net.passes(1, 0));
        net.mend(0, 1);
        assert!(net.passes(0, 1));
    }
}
