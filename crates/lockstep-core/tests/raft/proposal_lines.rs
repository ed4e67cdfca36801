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
    lines.net.nodes[&n].order.outstanding() == (0, 0)
}

/// Proposes from 3, waits until that is committed, and says how many copies have gone to the leader.
fn copies(lines: &mut Lines, bytes: usize) -> f64 {
    let before = lines.proposed.get(&(3, 1)).copied().unwrap_or(0);
    lines.net.propose(3, &"x".repeat(bytes));
    lines.until(120 * SECOND, |lines| committed(lines, 3));
    // What is on its way all the same is counted, too.
    lines.run(4 * ELECTION);
    (lines.proposed[&(3, 1)] - before) as f64 / bytes as f64
}

/// The line takes ten seconds for it, an election timeout is 0.6: it is not lost.
#[test]
fn a_proposal_that_takes_long_is_not_sent_again_and_again() {
    let mut lines = far(100);
    let first = copies(&mut lines, 1 << 20);
    assert!(first < 5.5, "{first} copies");
    let most = lines.most_queued[&(3, 1)];
    assert!(most < 6 << 20, "{most} bytes wait");
}

/// What the line takes is learnt: the next ones go once, or with one copy more.
#[test]
fn how_long_proposals_take_is_learnt() {
    let mut lines = far(100);
    copies(&mut lines, 200_000);
    lines.run(20 * SECOND);
    for _ in 0..5 {
        let then = copies(&mut lines, 200_000);
        assert!(then < 1.1, "{then} copies");
    }
}
