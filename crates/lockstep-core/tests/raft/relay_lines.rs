//! Relays on lines that are narrow, long, slow or cut, and behind processes that are busy or stop.

use crate::lines::*;
use crate::net::*;
use lockstep_core::Micros;
use std::collections::BTreeSet;

/// 3 passes on to 4 and 5.
fn five() -> Lines {
    let lines = Lines::new(5, |config| config.cache_bytes = 64 << 20);
    assert_eq!(lines.relays_now(), BTreeSet::from([3]));
    lines
}

fn all_have_all(lines: &Lines) -> bool {
    (1..=5).all(|n| lines.has(n) == lines.has(1))
}

/// How many copies of the entries crossed the line until all members have them.
fn copies(lines: &mut Lines, bytes: usize, every: Micros, time: Micros, drains: Micros) -> f64 {
    let (crossed, times) = (lines.crossed, time / every);
    lines.write(bytes, every, time);
    lines.until(drains, all_have_all);
    (lines.crossed - crossed) as f64 / (bytes as u64 * times) as f64
}

/// A message of 1 MiB takes longer than the timeout for small messages, on separate lines or on one shared line.
#[test]
fn large_message_on_narrow_line_is_no_failure() {
    for cable in [1, 0] {
        let mut lines = five();
        lines.set_far(Line { bytes_per_ms: 1000, cable, ..Line::FAR });
        let copies = copies(&mut lines, 1 << 20, 2 * SECOND, 60 * SECOND, 10 * SECOND);
        assert!(copies < 1.1 && lines.changes() == 0, "{copies} copies, {:?}", lines.relays);
    }
}

/// So narrow that nobody would have believed it: the first one is sent to all, and teaches how long that takes.
#[test]
fn how_long_a_line_takes_is_learnt() {
    for cable in [1, 0] {
        let mut lines = five();
        lines.set_far(Line { bytes_per_ms: 125, cable, ..Line::FAR });
        let first = copies(&mut lines, 1 << 20, 60 * SECOND, 60 * SECOND, 10 * SECOND);
        let changes = lines.changes();
        let then = copies(&mut lines, 1 << 20, 12 * SECOND, 600 * SECOND, 60 * SECOND);
        assert!(first < 4.0 && then < 1.3, "{first} copies, then {then}, {:?}", lines.relays);
        assert!(lines.changes() - changes < 4, "{:?}", lines.relays);
    }
}

/// More is written than the line carries: other relays are tried, and it is none of them.
#[test]
fn full_line_does_not_replace_relay() {
    for cable in [1, 0] {
        let mut lines = five();
        lines.set_far(Line { bytes_per_ms: 1000, cable, ..Line::FAR });
        let copies = copies(&mut lines, 100_000, 80 * MS, 120 * SECOND, 60 * SECOND);
        assert!(copies < 1.1 && lines.changes() <= 8, "{copies} copies, {:?}", lines.relays);
    }
}

/// Entries written every 40 ms reach the zone's other members soon again, and keep doing so.
fn is_relieved(mut lines: Lines, within: Micros) {
    let end = lines.net.now + within;
    while lines.relays_now() == BTreeSet::from([3]) && lines.net.now < end {
        lines.write(20_000, 40 * MS, 40 * MS);
    }
    assert!(!lines.relays_now().contains(&3), "{:?}", lines.relays);
    lines.write(20_000, 40 * MS, 5 * SECOND);
    let changes = lines.changes();
    for _ in 0..1_000 {
        lines.write(20_000, 40 * MS, 40 * MS);
        assert!([4, 5].iter().all(|n| lines.has(*n) + 1 >= lines.has(1)), "{:?}", lines.relays);
    }
    assert_eq!(lines.changes(), changes, "{:?}", lines.relays);
}

#[test]
fn relay_on_slow_line_is_replaced() {
    let mut lines = five();
    lines.set(1, 3, Line { bytes_per_ms: 250, ..Line::FAR });
    is_relieved(lines, 10 * SECOND);
}

#[test]
fn busy_relay_is_replaced() {
    for busy in [100 * MS, 500 * MS] {
        let mut lines = five();
        lines.busy.insert(3, busy);
        is_relieved(lines, 30 * SECOND);
    }
}

/// Members behind a hanging relay get their entries from the leader before they would campaign, for any measured round
/// trip.
#[test]
fn stopped_relay_is_replaced_within_election_timeout() {
    let mut lines = Lines::voters(5, |_| {});
    // Round trips of half a second for a while.
    lines.busy.extend([(3, 450 * MS), (4, 450 * MS), (5, 450 * MS)]);
    lines.run(10 * SECOND);
    lines.busy.clear();
    lines.run(HEARTBEAT);
    let leader = lines.net.leader().unwrap();
    assert_eq!(leader, 1);
    for _ in 0..5 {
        let term = lines.net.raft(1).term();
        let relays = lines.relays_now();
        assert_eq!(relays.len(), 1);
        lines.frozen.extend(relays.clone());
        lines.net.propose(1, "a");
        lines.run(MS);
        let last = lines.has(1);
        let others = move |lines: &Lines| {
            (3..=5).filter(|n| !relays.contains(n)).all(|n| lines.net.nodes[&n].raft.commit() >= last)
        };
        let took = lines.until(10 * SECOND, others);
        assert!(took < ELECTION + 2 * HEARTBEAT, "{took} µs");
        lines.run(3 * SECOND);
        assert_eq!(lines.net.raft(1).term(), term);
        lines.frozen.clear();
        lines.run(20 * SECOND);
        assert_eq!(lines.net.raft(1).term(), term);
        assert!(all_have_all(&lines));
    }
}

/// Whoever cannot pass anything on does not relay for long, and each time that it is tried again comes later.
#[test]
fn relay_without_connections_is_excluded() {
    let mut lines = five();
    lines.net.cut.extend([(3, 4), (3, 5)]);
    let mut late = 0;
    let first = lines.net.now;
    for _ in 0..6_000 {
        lines.net.propose(1, "x");
        let last = lines.has(1);
        lines.run(100 * MS);
        late += usize::from(lines.has(4) < last || lines.has(5) < last);
    }
    assert_eq!(lines.relays_now(), BTreeSet::from([4]));
    assert!(late <= 8, "{late} of 6000 came late");
    assert!(lines.relays[1].0 < first + SECOND, "{:?}", lines.relays);

    // Two of a zone that do not see each other: neither relays for the other, but for moments.
    let mut lines = Lines::new(4, |_| {});
    lines.net.cut.extend([(3, 4), (4, 3)]);
    let mut late = 0;
    for _ in 0..6_000 {
        lines.net.propose(1, "x");
        let last = lines.has(1);
        lines.run(100 * MS);
        late += usize::from(lines.has(3) < last || lines.has(4) < last);
    }
    assert!(late < 60, "{late} of 6000 came late");
}

/// A neighbour that takes nearly nothing: the relay does not keep all for it.
#[test]
fn slow_recipient_does_not_fill_relay_memory() {
    let mut lines = five();
    lines.set(3, 4, Line { bytes_per_ms: 20, ..Line::NEAR });
    lines.write(100_000, 20 * MS, 60 * SECOND);
    assert!(all_have_all(&lines) || lines.has(4) + 2 >= lines.has(1), "{}", lines.has(1) - lines.has(4));
    let most = lines.most_queued[&(3, 4)];
    // Half of a window, plus the next message.
    assert!(most < (2 << 20) + 300_000, "{most} bytes");
    assert_eq!(lines.changes(), 0);
}
