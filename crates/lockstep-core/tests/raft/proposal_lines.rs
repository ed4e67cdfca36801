//! Proposals on lines that are narrow: a copy too many keeps everything behind it.

use crate::lines::*;
use crate::net::*;

/// 3 is far from the leader; so much gets through to it in a millisecond.
fn far(bytes_per_ms: u64) -> Lines {
    let mut lines = Lines::voters(5, |_| {});
    lines.set(3, 1, Line { bytes_per_ms, ..Line::FAR });
    lines
}

fn committed(lines: &Lines, n: usize) -> bool {
    lines.net.nodes[&n].raft.outstanding() == (0, 0)
}

/// Proposes from 3, waits until that is committed, and says how many copies have gone to the leader.
fn copies(lines: &mut Lines, bytes: usize) -> f64 {
    let before = lines.proposed.get(&(3, 1)).copied().unwrap_or(0);
    lines.net.propose(3, &"x".repeat(bytes));
    lines.until(120 * SECOND, |lines| committed(lines, 3));
    // Messages in flight count, too.
    lines.run(4 * ELECTION);
    (lines.proposed[&(3, 1)] - before) as f64 / bytes as f64
}

/// The line takes ten seconds for it, an election timeout is 0.6: it is not lost.
#[test]
fn large_proposal_on_narrow_line_is_sent_once() {
    let mut lines = far(100);
    for bytes in [1 << 20, 200_000] {
        let copies = copies(&mut lines, bytes);
        assert!(copies < 1.01, "{copies} copies of {bytes} bytes");
    }
    let most = lines.most_queued[&(3, 1)];
    assert!(most < 2 << 20, "{most} bytes wait");
}

/// Each takes two seconds, and there are always some under way.
#[test]
fn stream_of_large_proposals_is_sent_once() {
    let mut lines = far(100);
    for _ in 0..20 {
        lines.net.propose(3, &"x".repeat(200_000));
        lines.run(SECOND);
    }
    lines.until(60 * SECOND, |lines| committed(lines, 3));
    let copies = lines.proposed[&(3, 1)] as f64 / (20.0 * 200_000.0);
    assert!(copies < 1.01, "{copies} copies");
}

/// Proposals in flight are sent again, and the leader rejects the duplicates: its replies are no sign of further losses.
#[test]
fn steady_proposals_after_false_reconnect_are_sent_once() {
    let mut lines = far(0);
    let steady = |lines: &mut Lines| {
        for _ in 0..1000 {
            lines.net.propose(3, &"x".repeat(1000));
            lines.run(MS);
        }
    };
    steady(&mut lines);
    let now = lines.net.now;
    lines.net.raft(3).peer_up(now, id(1));
    steady(&mut lines);
    let copies = lines.proposed[&(3, 1)] as f64 / (2.0 * 1000.0 * 1000.0);
    assert!(copies < 1.2, "{copies} copies");
    lines.until(SECOND, |lines| committed(lines, 3));
}
