//! A wide area network on one machine: zones of network namespaces, with lines between them that delay, lose and limit. The
//! lines run in user space, because many kernels lack netem.
//!
//! The members of a zone share a bridge and reach each other as any namespaces do. Packets for another zone go by the
//! bridge's namespace into a TUN device there, through a [`Line`](line::Line) in this process, and out of the other
//! zone's TUN device:
//!
//! ```text
//! member - bridge - wan (TUN) - Line, in one thread - wan (TUN) - bridge - member
//! ```
//!
//! Nothing of it is to be seen on the machine's own network, and it all goes when the value is dropped.

mod line;
mod relay;
mod tun;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

pub use line::{Counters, Settings};

use crate::netns::{self, Network, ZONES_MAX};
use lockstep_local::{LocalError, Result};
use relay::Relay;

/// A line between two zones, by their numbers.
#[derive(Debug, Clone)]
pub struct Link {
    /// One end.
    pub from: usize,
    /// The other.
    pub to: usize,
    /// The direction from the one to the other.
    pub there: Settings,
    /// The way back.
    pub back: Settings,
}

impl Link {
    /// A line of which a packet and its answer take `round_trip`, half of it each.
    pub fn of_round_trip(from: usize, to: usize, round_trip: Duration) -> Link {
        let there = Settings::of_delay(round_trip / 2);
        let back = Settings::of_delay(round_trip - round_trip / 2);
        Link { from, to, there, back }
    }
}

/// Zones with lines between them; all of it goes when this is dropped.
#[derive(Debug)]
pub struct Wan {
    // Before the namespaces: the thread ends first.
    lines: Relay,
    zones: Vec<Network>,
}

/// Whether this machine and account can make network namespaces: a machine can, a chroot on it may not.
pub fn is_possible() -> bool {
    crate::netns::is_possible()
}

impl Wan {
    /// Makes one zone of each number of members, and these lines; between zones without a line nothing passes. Needs root,
    /// `ip`, and the kernel's tun driver.
    pub fn new(members: &[usize], links: &[Link]) -> Result<Wan> {
        if let Some(wrong) = objection(members, links) {
            return Err(LocalError::Value(wrong));
        }
        if !lockstep_local::is_root()? {
            return Err(LocalError::Missing {
                what: "the right to make network namespaces".into(),
                hint: "run as root".into(),
            });
        }
        let mut zones = Vec::new();
        for (at, count) in members.iter().enumerate() {
            let zone = Network::of_zone(at, *count)?;
            zone.add_gateway()?;
            zones.push(zone);
        }
        let lines = start_lines(&zones, links)?;
        Ok(Wan { lines, zones })
    }

    /// The namespace of a member of a zone, for `ip netns exec` and a server's configuration.
    pub fn namespace(&self, zone: usize, member: usize) -> String {
        self.zones[zone].namespace(member)
    }

    /// The address of that member.
    pub fn host(&self, zone: usize, member: usize) -> String {
        self.zones[zone].host(member)
    }

    /// Does something in that member's namespace: what it connects or binds stays there.
    pub fn within<T: Send>(&self, zone: usize, member: usize, work: impl FnOnce() -> T + Send) -> Result<T> {
        netns::within(&self.namespace(zone, member), work)
    }

    /// The shortest of some round trips of a small packet between these members, by zone and place in it.
    pub fn round_trip(&self, (zone, member): (usize, usize), other: (usize, usize)) -> Result<Duration> {
        const TRIES: u32 = 3;
        let bound = |zone, member| {
            let socket = self.within(zone, member, || UdpSocket::bind("0.0.0.0:0"))?;
            socket
                .and_then(|socket| socket.set_read_timeout(Some(Duration::from_secs(10))).map(|()| socket))
                .map_err(LocalError::io("make a socket to measure the line with"))
        };
        let (asks, answers) = (bound(zone, member)?, bound(other.0, other.1)?);
        let port = answers.local_addr().map_err(LocalError::io("find the port of a socket"))?.port();
        let target = format!("{}:{port}", self.host(other.0, other.1));
        let mut best = Duration::MAX;
        // The first is for the neighbour tables.
        for number in 0..=TRIES {
            let began = Instant::now();
            let there_and_back = || {
                asks.send_to(&[0], target.as_str())?;
                let (_, from) = answers.recv_from(&mut [0; 8])?;
                answers.send_to(&[0], from)?;
                asks.recv(&mut [0; 8])
            };
            there_and_back().map_err(LocalError::io("measure a round trip over the line"))?;
            if number > 0 {
                best = best.min(began.elapsed());
            }
        }
        Ok(best)
    }

    /// Counters of the packets from one zone to another; an error if there is no such line, or if a device of it failed.
    pub fn counters(&mut self, from: usize, to: usize) -> Result<Counters> {
        self.lines.check()?;
        self.lines.counters(from, to).ok_or_else(|| no_line(from, to))
    }

    /// Resets the counters of all lines.
    pub fn count_anew(&self) {
        self.lines.count_anew();
    }

    /// Packets to an address that no line leads to, and packets that the kernel did not take back.
    pub fn strays(&self) -> (u64, u64) {
        self.lines.strays()
    }

    /// Changes the settings of one direction. Packets in flight keep their due times.
    pub fn set(&self, from: usize, to: usize, settings: Settings) -> Result<()> {
        if let Some(wrong) = settings.objection() {
            return Err(LocalError::Value(wrong));
        }
        if self.lines.set(from, to, settings) { Ok(()) } else { Err(no_line(from, to)) }
    }

    /// Gives a line this round trip, half of it each way, and measures it. Returns the measured one, which is not less.
    pub fn set_round_trip(&self, from: usize, to: usize, round_trip: Duration) -> Result<Duration> {
        let link = Link::of_round_trip(from, to, round_trip);
        self.set(from, to, link.there)?;
        self.set(to, from, link.back)?;
        let measured = self.round_trip((from, 0), (to, 0))?;
        if measured < round_trip {
            return Err(LocalError::Value(format!(
                "the line was to take {round_trip:?} there and back, and takes {measured:?}"
            )));
        }
        Ok(measured)
    }
}

/// A TUN device in each zone, and the thread between them.
fn start_lines(zones: &[Network], links: &[Link]) -> Result<Relay> {
    let mut devices = Vec::new();
    for zone in zones {
        devices.push(tun::open(&zone.hub())?);
        zone.route_others_through(tun::NAME)?;
    }
    let directions = links
        .iter()
        .flat_map(|link| [(link.from, link.to, link.there.clone()), (link.to, link.from, link.back.clone())]);
    Relay::start(devices, directions)
}

fn no_line(from: usize, to: usize) -> LocalError {
    LocalError::Value(format!("there is no line from zone {from} to zone {to}"))
}

fn objection(members: &[usize], links: &[Link]) -> Option<String> {
    if members.len() > ZONES_MAX || members.iter().any(|count| *count > netns::MEMBERS_MAX) {
        return Some(format!("at most {ZONES_MAX} zones of {} members can be made", netns::MEMBERS_MAX));
    }
    links.iter().find_map(|link| {
        if link.from == link.to || link.from.max(link.to) >= members.len() {
            return Some(format!("a line cannot lead from zone {} to zone {}", link.from, link.to));
        }
        link.there.objection().or_else(|| link.back.objection())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_cannot_be_are_refused_before_anything_is_made() {
        let link = |from, to| Link::of_round_trip(from, to, Duration::from_micros(85_501));
        assert_eq!(link(0, 1).there.delay + link(0, 1).back.delay, Duration::from_micros(85_501));
        assert_eq!(objection(&[1, 1], &[link(0, 1)]), None);
        for wrong in [link(0, 0), link(0, 2), link(2, 0)] {
            assert!(objection(&[1, 1], &[wrong]).is_some());
        }
        let mut lossy = link(0, 1);
        lossy.back.loss = 2.0;
        assert!(objection(&[1, 1], &[lossy]).is_some());
        assert!(objection(&[1, netns::MEMBERS_MAX + 1], &[]).is_some());
    }

    #[test]
    fn line_is_measured_before_use() {
        if !netns::is_possible() {
            eprintln!("NOT TESTED: no network namespaces here");
            return;
        }
        let mut wan = Wan::new(&[1, 1], &[Link::of_round_trip(0, 1, Duration::ZERO)]).unwrap();
        let asked = Duration::from_micros(20_001);
        let measured = wan.set_round_trip(0, 1, asked).unwrap();
        assert!((asked..asked * 20).contains(&measured), "{measured:?}");
        assert_eq!(wan.counters(0, 1).unwrap().delivered, 4);
        wan.count_anew();
        assert_eq!(wan.counters(0, 1).unwrap(), Counters::default());
    }

    #[test]
    fn packets_to_foreign_networks_fail_at_once() {
        if !netns::is_possible() {
            eprintln!("NOT TESTED: no network namespaces here");
            return;
        }
        let wan = Wan::new(&[1, 1], &[]).unwrap();
        let reach = |host: String| {
            let connect = || std::net::UdpSocket::bind("0.0.0.0:0")?.connect((host.as_str(), 53));
            wan.within(0, 0, connect).unwrap()
        };
        // An address for documentation: a name server that nobody reaches.
        assert!(reach("192.0.2.1".into()).is_err());
        assert!(reach(wan.host(1, 0)).is_ok());
    }

    #[test]
    fn lost_tun_device_is_reported_and_others_work() {
        if !netns::is_possible() {
            eprintln!("NOT TESTED: no network namespaces here");
            return;
        }
        let mut wan = Wan::new(&[1, 1], &[Link::of_round_trip(0, 1, Duration::from_millis(1))]).unwrap();
        assert_eq!(wan.counters(0, 1).unwrap(), Counters::default());
        netns::ip(&["-n", &wan.zones[0].hub(), "link", "del", tun::NAME]).unwrap();
        let end = std::time::Instant::now() + Duration::from_secs(20);
        while wan.counters(0, 1).is_ok() {
            assert!(std::time::Instant::now() < end, "nobody noticed");
            std::thread::sleep(Duration::from_millis(5));
        }
        // Each time, not only once.
        let said = wan.counters(0, 1).unwrap_err().to_string();
        assert!(said.contains("stands still"), "{said}");
    }
}
