//! The same lines made of the kernel's netem, where it has one: a pair of veth devices between the bridges' namespaces of two
//! zones, with a netem queue for each direction.
//!
//! All of it is commands of `ip` and `tc`, which are made here and run elsewhere, so that tests see what would be run: few
//! small virtual machines have a kernel that can run the last of them.

use super::line::{Counters, HELD_MAX, Settings};
use super::tun::MTU;
use crate::error::{LabError, Result};
use crate::install::{command, find_program, run_to_end};
use crate::netns::Network;

/// What a packet of veth devices has before its IP header. The kernel's queues count it, our own line does not.
const ETHERNET: u64 = 14;

/// A program with its arguments.
type Words = Vec<String>;

/// The lines between some zones.
#[derive(Debug)]
pub(super) struct Netem {
    /// The namespaces of the zones' bridges.
    hubs: Vec<String>,
    /// What the counters of each direction were when they were last started anew.
    directions: Vec<(usize, usize, Counters)>,
}

impl Netem {
    /// Makes a line for each of these links, both directions.
    pub(super) fn start(
        zones: &[Network],
        links: impl IntoIterator<Item = (usize, usize, Settings, Settings)>,
    ) -> Result<Netem> {
        is_there().map_err(LabError::Value)?;
        let hubs: Vec<String> = zones.iter().map(Network::hub).collect();
        let mut directions = Vec::new();
        for (a, b, there, back) in links {
            for words in cable((a, &zones[a]), (b, &zones[b])) {
                run(&words)?;
            }
            run(&queue("add", &hubs[a], b, &there))?;
            run(&queue("add", &hubs[b], a, &back))?;
            directions.extend([(a, b, Counters::default()), (b, a, Counters::default())]);
        }
        Ok(Netem { hubs, directions })
    }

    fn has(&self, from: usize, to: usize) -> bool {
        self.directions.iter().any(|(a, b, _)| (*a, *b) == (from, to))
    }

    /// Gives one direction other settings; whether there is a line.
    pub(super) fn set(&self, from: usize, to: usize, settings: &Settings) -> Result<bool> {
        if !self.has(from, to) {
            return Ok(false);
        }
        run(&queue("change", &self.hubs[from], to, settings))?;
        Ok(true)
    }

    /// Counters of one direction's packets; none if there is no line. The kernel does not count deliberate losses or delays.
    pub(super) fn counters(&self, from: usize, to: usize) -> Result<Option<Counters>> {
        let Some((_, _, before)) = self.directions.iter().find(|(a, b, _)| (*a, *b) == (from, to)) else {
            return Ok(None);
        };
        let now = self.counted(from, to)?;
        Ok(Some(Counters {
            taken: now.taken - before.taken,
            dropped: now.dropped - before.dropped,
            delivered: now.delivered - before.delivered,
            delivered_bytes: now.delivered_bytes - before.delivered_bytes,
            ..now
        }))
    }

    /// Starts the counters at nothing.
    pub(super) fn count_anew(&mut self) -> Result<()> {
        for at in 0..self.directions.len() {
            let (from, to, _) = self.directions[at];
            self.directions[at].2 = self.counted(from, to)?;
        }
        Ok(())
    }

    fn counted(&self, from: usize, to: usize) -> Result<Counters> {
        let said = run(&words(&format!("tc -n {} -s qdisc show dev {}", self.hubs[from], device(to))))?;
        sent(&said).ok_or_else(|| LabError::Value(format!("tc does not say what it has sent: {said}")))
    }
}

/// Whether this machine has netem: `tc` can make one. If not, why.
pub(super) fn is_there() -> std::result::Result<(), String> {
    if find_program("tc").is_none() {
        return Err("there is no tc (Debian: apt-get install iproute2)".into());
    }
    let scratch = Network::new(0).map_err(|e| e.to_string())?;
    let probe = format!("tc -n {} qdisc add dev lo root netem delay 1000us", scratch.hub());
    run(&words(&probe)).map(drop).map_err(|e| format!("the kernel has no netem: {}", why(&e)))
}

/// The line of what a command printed that says what was wrong.
fn why(error: &LabError) -> String {
    match error {
        LabError::Command { output, .. } => output.lines().next().unwrap_or_default().trim().to_owned(),
        other => other.to_string(),
    }
}

/// The device in a zone's namespace that leads to this zone.
fn device(to: usize) -> String {
    format!("wan{to}")
}

/// What joins the namespaces of two zones, without any delay yet.
fn cable((a, zone_a): (usize, &Network), (b, zone_b): (usize, &Network)) -> Vec<Words> {
    let (hub_a, hub_b) = (zone_a.hub(), zone_b.hub());
    let (to_a, to_b) = (device(a), device(b));
    let route = |hub: &str, zone: &Network, device: &str| {
        let (network, gateway) = (zone.network(), zone.gateway());
        words(&format!("ip -n {hub} route add {network} via {gateway} dev {device} onlink"))
    };
    vec![
        words(&format!(
            "ip -n {hub_a} link add {to_b} mtu {MTU} type veth peer name {to_a} mtu {MTU} netns {hub_b}"
        )),
        words(&format!("ip -n {hub_a} link set {to_b} up")),
        words(&format!("ip -n {hub_b} link set {to_a} up")),
        route(&hub_a, zone_b, &to_b),
        route(&hub_b, zone_a, &to_a),
    ]
}

/// The command that makes (`add`) or changes (`change`) the queue of one direction. It repeats all settings, because
/// omitted ones would keep their values.
fn queue(verb: &str, hub: &str, to: usize, settings: &Settings) -> Words {
    let us = |time: std::time::Duration| format!("{}us", time.as_nanos() as f64 / 1e3);
    let (delay, jitter) = (us(settings.delay), us(settings.jitter));
    let loss = 100.0 * settings.loss;
    // The second number is added to each packet's length.
    let rate = settings.rate.map_or("0bit".into(), |rate| format!("{rate}bit -{ETHERNET}"));
    let (device, limit) = (device(to), limit(settings));
    words(&format!(
        "tc -n {hub} qdisc {verb} dev {device} root netem limit {limit} delay {delay} {jitter} loss random {loss}% rate {rate}"
    ))
}

/// How many packets netem may hold: its limit includes packets in flight, so the queue before the rate limit
/// gets the rest.
fn limit(settings: &Settings) -> usize {
    let Some(rate) = settings.rate else { return HELD_MAX };
    let under_way = (settings.delay + settings.jitter).as_secs_f64() * rate as f64 / 8.0;
    let packets = (under_way as usize + settings.queue).div_ceil(MTU);
    packets.clamp(1, HELD_MAX)
}

/// ` Sent 8484 bytes 98 pkt (dropped 2, overlimits 0 requeues 0)`, of the first queue that is shown.
fn sent(said: &str) -> Option<Counters> {
    let line = said.lines().find_map(|line| line.trim().strip_prefix("Sent "))?;
    let mut numbers = line.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
    let mut next = || numbers.next()?.parse::<u64>().ok();
    let (bytes, delivered, dropped) = (next()?, next()?, next()?);
    let delivered_bytes = bytes.saturating_sub(ETHERNET * delivered);
    Some(Counters { taken: delivered + dropped, dropped, delivered, delivered_bytes, ..Counters::default() })
}

fn words(line: &str) -> Words {
    line.split(' ').map(str::to_owned).collect()
}

fn run(words: &[String]) -> Result<String> {
    let (program, arguments) = words.split_first().expect("a program");
    run_to_end(command(program).args(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns;
    use std::time::Duration;

    fn settings() -> Settings {
        Settings::of_delay(Duration::from_micros(42_750))
    }

    #[test]
    fn each_setting_has_its_words() {
        let line = |verb, settings: &Settings| queue(verb, "hub", 3, settings).join(" ");
        assert_eq!(
            line("add", &settings()),
            "tc -n hub qdisc add dev wan3 root netem limit 32768 delay 42750us 0us loss random 0% rate 0bit"
        );
        let all = Settings {
            delay: Duration::from_nanos(10_000_500),
            jitter: Duration::from_millis(4),
            loss: 0.0125,
            rate: Some(12_000_000),
            queue: 15_000,
            seed: 7,
        };
        // 14 ms of 12 Mbit/s are 14 packets of 1500 bytes, and ten may wait.
        assert_eq!(
            line("change", &all),
            "tc -n hub qdisc change dev wan3 root netem limit 24 delay 10000.5us 4000us loss random 1.25% rate 12000000bit -14"
        );
        assert_eq!(limit(&Settings { queue: 0, rate: Some(1), ..settings() }), 1);
        assert_eq!(limit(&Settings { queue: 1 << 30, rate: Some(1), ..settings() }), HELD_MAX);
    }

    #[test]
    fn tc_output_is_parsed() {
        let said = "qdisc netem 8001: root refcnt 2 limit 32768 delay 42.75ms\n Sent 8484 bytes 98 pkt (dropped 2, overlimits 0 requeues 0)\n backlog 0b 0p requeues 0\n";
        let counters = sent(said).unwrap();
        assert_eq!((counters.delivered_bytes, counters.delivered, counters.dropped), (8484 - 98 * 14, 98, 2));
        assert_eq!((counters.taken, counters.late), (100, 0));
        assert_eq!(sent("qdisc noqueue 0: root refcnt 2\n"), None);
    }

    /// Where the kernel has no netem, `tc` still reads the words before it asks: an error of the kernel's, not of its own.
    #[test]
    fn tc_understands_the_words_whatever_the_kernel_says() {
        let (Ok(scratch), Some(_)) = (Network::new(0), find_program("tc")) else {
            eprintln!("NOT TESTED: no network namespaces or no tc here");
            return;
        };
        // Of its own: before 6.2 the kernel renames none that is up.
        netns::ip(&["-n", &scratch.hub(), "link", "add", &device(3), "type", "bridge"]).unwrap();
        let narrow =
            Settings { loss: 0.0125, rate: Some(12_000_000), jitter: Duration::from_micros(5), ..settings() };
        for (verb, settings) in [("add", settings()), ("change", narrow)] {
            match (run(&queue(verb, &scratch.hub(), 3, &settings)), is_there()) {
                (Ok(_), Ok(())) => {}
                (Err(e), Err(_)) => {
                    let why = why(&e);
                    let kernels = ["Error: Specified qdisc kind is unknown.", "Error: Qdisc not found."];
                    assert!(kernels.iter().any(|text| why.starts_with(text)), "{why}");
                }
                (ran, there) => panic!("{verb}: {ran:?}, but netem: {there:?}"),
            }
        }
    }

    /// Everything except netem itself: zones reach each other through their cables, and a zone without one is unreachable.
    #[test]
    fn zones_are_joined_by_their_cable() {
        if !netns::is_possible() {
            eprintln!("NOT TESTED: no network namespaces here");
            return;
        }
        let zones: Vec<Network> = (0..3).map(|at| Network::of_zone(at, 1).unwrap()).collect();
        zones.iter().for_each(|zone| zone.add_gateway().unwrap());
        for words in cable((0, &zones[0]), (1, &zones[1])) {
            run(&words).unwrap();
        }
        let bound =
            |at: usize| netns::within(&zones[at].namespace(0), || std::net::UdpSocket::bind("0.0.0.0:7"));
        let sockets: Vec<_> = (0..3).map(|at| bound(at).unwrap().unwrap()).collect();
        for socket in &sockets {
            socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        }
        for (from, to) in [(0, 1), (1, 0)] {
            sockets[from].send_to(b"?", (zones[to].host(0), 7)).unwrap();
            let (_, whence) = sockets[to].recv_from(&mut [0; 8]).unwrap();
            assert_eq!(whence.ip().to_string(), zones[from].host(0));
        }
        sockets[2].set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let _ = sockets[0].send_to(b"?", (zones[2].host(0), 7));
        assert!(sockets[2].recv_from(&mut [0; 8]).is_err());
    }
}
