//! The network between members: every directed link has its own delay, loss, duplication and reordering, and can be
//! cut in one direction alone.

use crate::rng::Rng;
use lockstep_core::Micros;

/// How a directed link behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quality {
    /// The least time a message takes, µs.
    pub delay: Micros,
    /// Up to this much more, µs.
    pub jitter: Micros,
    /// Chance of a message to be lost, ppm.
    pub loss: u32,
    /// Chance of a message to come twice, ppm.
    pub duplicate: u32,
    /// Chance of a message to ignore those before it, ppm. The others keep their order, as on a connection.
    pub reorder: u32,
    /// Bytes that pass in a millisecond.
    pub bytes_per_ms: u64,
    /// Messages queue behind each other. Otherwise large ones are only late.
    pub queues: bool,
}

impl Quality {
    /// A good local network.
    pub const LAN: Quality = Quality {
        delay: 60,
        jitter: 120,
        loss: 0,
        duplicate: 0,
        reorder: 0,
        bytes_per_ms: 100_000,
        queues: false,
    };
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
pub struct Network {
    machines: usize,
    links: Vec<Link>,
}

impl Network {
    /// All links alike.
    pub fn new(machines: usize, quality: Quality) -> Network {
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
    pub fn quality(&self, from: usize, to: usize) -> Quality {
        self.links[from * self.machines + to].quality
    }

    /// Makes the link behave like this from now on.
    pub fn set_quality(&mut self, from: usize, to: usize, quality: Quality) {
        let link = self.link(from, to);
        link.settled = link.settled.max(link.last);
        link.quality = quality;
    }

    /// Arrival time of the last message sent under the previous settings: later messages queue behind it.
    pub fn last_arrival(&self, from: usize, to: usize) -> Micros {
        self.links[from * self.machines + to].settled
    }

    /// Cuts the link; each cut is undone by one [`Network::mend`].
    pub fn cut(&mut self, from: usize, to: usize) {
        self.link(from, to).cuts += 1;
    }

    /// Undoes one cut.
    pub fn mend(&mut self, from: usize, to: usize) {
        let link = self.link(from, to);
        link.cuts = link.cuts.saturating_sub(1);
    }

    /// Whether messages pass at all.
    pub fn passes(&self, from: usize, to: usize) -> bool {
        self.links[from * self.machines + to].cuts == 0
    }

    /// Repairs all links with this quality. Connections are new: nothing queues behind messages in flight.
    pub fn reset(&mut self, quality: impl Fn(usize, usize) -> Quality) {
        for from in 0..self.machines {
            for to in 0..self.machines {
                let link = self.link(from, to);
                link.cuts = 0;
                link.last = 0;
                link.free = 0;
                link.settled = 0;
                link.quality = quality(from, to);
            }
        }
    }

    /// All links behave like this from now on, and none is cut. Frames in flight stay ahead of later ones.
    pub fn mend_all(&mut self, quality: impl Fn(usize, usize) -> Quality) {
        for from in 0..self.machines {
            for to in 0..self.machines {
                let link = self.link(from, to);
                (link.cuts, link.quality) = (0, quality(from, to));
            }
        }
    }

    /// A new connection between two places: nothing queues behind frames of an earlier one.
    pub fn reconnect(&mut self, a: usize, b: usize) {
        for (from, to) in [(a, b), (b, a)] {
            let link = self.link(from, to);
            (link.last, link.free) = (0, 0);
        }
    }

    /// When a frame that is sent now arrives on a connection: in order, and later for each loss. `later` is the time until
    /// more is sent: its ack reveals a loss. A second loss in a row is repaired by [`RETRANSMIT`].
    pub fn send_in_order(
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
    pub fn is_busy_after(&self, from: usize, to: usize, time: Micros) -> bool {
        self.links[from * self.machines + to].last > time
    }

    /// When a message that is sent now arrives: never, once or twice.
    pub fn send(
        &mut self,
        now: Micros,
        from: usize,
        to: usize,
        bytes: usize,
        rng: &mut Rng,
    ) -> [Option<Micros>; 2] {
        let link = self.link(from, to);
        let Quality { delay, jitter, loss, duplicate, reorder, bytes_per_ms, queues } = link.quality;
        if link.cuts > 0 || rng.chance(loss) {
            return [None, None];
        }
        let mut pass = bytes as u64 * 1000 / bytes_per_ms.max(1);
        if queues {
            link.free = link.free.max(now) + pass;
            pass = link.free - now;
        }
        let mut arrival = now + delay + rng.below(jitter + 1) + pass;
        if rng.chance(reorder) {
            arrival += rng.below(4 * (delay + jitter) + 1000);
        } else {
            arrival = arrival.max(link.last);
            link.last = arrival;
        }
        let again = rng.chance(duplicate).then(|| arrival + rng.below(10 * (delay + jitter) + 1));
        [Some(arrival), again]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_unless_told_otherwise() {
        let mut rng = Rng::new(3);
        let mut net = Network::new(2, Quality { jitter: 5000, ..Quality::LAN });
        let mut last = 0;
        for now in 0..200 {
            let [Some(at), None] = net.send(now, 0, 1, 100, &mut rng) else { panic!("lost or doubled") };
            assert!(at >= last && at > now);
            last = at;
        }
        net.set_quality(0, 1, Quality { jitter: 5000, reorder: 500_000, duplicate: 500_000, ..Quality::LAN });
        let arrivals: Vec<_> = (0..200).map(|now| net.send(now, 0, 1, 100, &mut rng)).collect();
        assert!(arrivals.windows(2).any(|w| w[0][0] > w[1][0]));
        assert!(arrivals.iter().any(|a| a[1].is_some()));
    }

    #[test]
    fn narrow_line_respects_its_rate() {
        let mut rng = Rng::new(3);
        let narrow = Quality { delay: 50, jitter: 0, bytes_per_ms: 100, queues: true, ..Quality::LAN };
        let mut net = Network::new(2, narrow);
        let arrivals: Vec<_> = (0..10).map(|_| net.send(0, 0, 1, 1000, &mut rng)[0].unwrap()).collect();
        assert_eq!(arrivals, (1..=10).map(|n| 10_000 * n + 50).collect::<Vec<_>>());
    }

    #[test]
    fn cuts_are_one_way_and_add_up() {
        let mut rng = Rng::new(3);
        let mut net = Network::new(2, Quality::LAN);
        net.cut(0, 1);
        net.cut(0, 1);
        net.mend(0, 1);
        assert_eq!(net.send(0, 0, 1, 1, &mut rng), [None, None]);
        assert!(net.send(0, 1, 0, 1, &mut rng)[0].is_some());
        net.mend(0, 1);
        assert!(net.passes(0, 1));
    }
}
