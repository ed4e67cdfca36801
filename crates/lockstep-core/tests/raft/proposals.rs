//! Each proposal exactly once, in its origin's order.

use crate::net::*;
use lockstep_core::message::{Message, Proposal};
use lockstep_core::raft::*;
use lockstep_core::*;

/// The leader that took it dies; the next one has it too, or not; the origin cannot know, and sends it again.
#[test]
fn proposal_resent_after_leader_change_is_appended_once() {
    for lost in [false, true] {
        let mut net = Net::new(3);
        net.elect(1);
        net.settle();
        // The entry reaches 3, or nobody, and the origin hears of nothing.
        net.cut.insert((1, 2));
        if lost {
            net.cut.insert((1, 3));
        }
        net.propose(2, "once");
        net.settle();
        net.crash(1);
        net.heal();
        net.elect(if lost { 2 } else { 3 });
        net.run(2 * ELECTION);
        net.restart(1);
        net.run(2 * ELECTION);
        assert_eq!(net.texts(), ["once"], "lost: {lost}");
        assert_eq!(net.raft(2).outstanding(), (0, 0));
    }
}

#[test]
fn duplicates_and_gaps_are_refused() {
    let mut net = Net::new(3);
    net.elect(1);
    net.settle();
    let propose = |net: &mut Net, incarnation: u64, first: u64, texts: &[&str]| {
        let proposals = texts
            .iter()
            .map(|text| Proposal {
                kind: EntryKind::WriteSet,
                payload: bytes::Bytes::copy_from_slice(text.as_bytes()),
            })
            .collect();
        let term = net.raft(1).term();
        net.deliver(2, 1, Message::Propose { term, incarnation, first, proposals });
        net.settle();
    };
    propose(&mut net, 5, 2, &["too early"]);
    propose(&mut net, 5, 1, &["1", "2"]);
    propose(&mut net, 5, 1, &["1", "2", "3"]);
    propose(&mut net, 5, 5, &["a gap"]);
    propose(&mut net, 4, 1, &["an older life"]);
    propose(&mut net, 6, 1, &["a newer life"]);
    propose(&mut net, 5, 4, &["the life before"]);
    assert_eq!(net.texts(), ["1", "2", "3", "a newer life"]);
}

#[test]
fn lost_proposals_are_resent_in_order() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    // The first message is lost, the second is not.
    net.propose(2, "1");
    net.drain(2);
    assert_eq!(net.wire.len(), 1);
    net.wire.clear();
    net.propose(2, "2");
    net.settle();
    assert_eq!(net.texts(), ["1", "2"], "the leader says where the gap is");
    // The only one is lost: time tells.
    net.propose(2, "3");
    net.drain(2);
    net.wire.clear();
    net.run(2 * ELECTION);
    assert_eq!(net.texts(), ["1", "2", "3"]);
    // Or a new connection does.
    net.propose(2, "4");
    net.drain(2);
    net.wire.clear();
    let now = net.now;
    net.raft(2).peer_up(now, id(1));
    net.settle();
    assert_eq!(net.texts().len(), 4);
}

/// A long outage says nothing of how long a proposal takes: the loss after it is noticed as soon as any other.
#[test]
fn proposal_lost_after_long_outage_is_sent_again_soon() {
    for reconnects in [true, false] {
        let mut net = Net::new(3);
        net.elect(1);
        net.run(2 * HEARTBEAT);
        // The leader's heartbeats still come.
        net.cut.insert((2, 1));
        net.propose(2, "1");
        net.run(16 * ELECTION);
        net.heal();
        if reconnects {
            let now = net.now;
            net.raft(2).peer_up(now, id(1));
        }
        net.run(2 * ELECTION);
        assert_eq!(net.texts(), ["1"], "reconnects: {reconnects}");
        net.propose(2, "2");
        net.drain(2);
        net.wire.clear();
        net.run(2 * ELECTION);
        assert_eq!(net.texts(), ["1", "2"], "reconnects: {reconnects}");
    }
}

/// Each time the leader is asked what has arrived, the question or the answer is lost.
#[test]
fn lost_question_after_lost_proposal_is_asked_again() {
    for (from, to) in [(2, 1), (1, 2)] {
        let mut net = Net::new(3);
        net.elect(1);
        net.run(2 * HEARTBEAT);
        net.propose(2, "1");
        net.drain(2);
        net.wire.clear();
        net.hold = Some(match from {
            2 => |_, _, m| matches!(m, Message::Propose { .. }),
            _ => |_, _, m| matches!(m, Message::ProposeReply { .. }),
        });
        net.run(5 * ELECTION);
        assert!((3..=5).contains(&net.held.len()), "{from} to {to}: {:?}", net.held);
        net.hold = None;
        net.propose(2, "2");
        net.run(2 * ELECTION);
        assert_eq!(net.texts(), ["1", "2"], "{from} to {to}");
    }
}

/// It drops proposals while it hands over; this origin has no session to which it could be told to go on from.
#[test]
fn first_proposal_during_failed_transfer_is_sent_again() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    net.cut.insert((1, 3));
    net.run(HEARTBEAT);
    net.propose(1, "own");
    net.settle();
    let now = net.now;
    net.raft(1).transfer_leadership(now, id(3)).unwrap();
    net.propose(2, "other");
    net.run(3 * ELECTION);
    assert_eq!(net.texts(), ["own", "other"]);
}

/// As long as it leads, it has it: the entry comes back sooner or later.
#[test]
fn proposals_held_by_leader_are_not_resent() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    net.hold = Some(|_, to, message| match message {
        Message::Append { entries, .. } => to == 2 && !entries.is_empty(),
        _ => false,
    });
    net.propose(2, "there");
    net.settle();
    assert_eq!(net.raft(1).last_index(), net.raft(2).last_index() + 1);
    let (term, incarnation) = (net.raft(1).term(), net.nodes[&2].incarnation);
    for number in [1, 0] {
        net.deliver(1, 2, Message::ProposeReply { term, incarnation, number });
    }
    net.hold = Some(|_, to, message| match message {
        Message::Append { entries, .. } => to == 2 && !entries.is_empty(),
        message => matches!(message, Message::Propose { .. }),
    });
    net.held.clear();
    net.run(4 * ELECTION);
    assert!(!net.held.iter().any(|(_, _, m)| matches!(m, Message::Propose { .. })), "{:?}", net.held);
    net.hold = None;
    net.run(4 * ELECTION);
    assert_eq!(net.texts(), ["there"]);
    assert_eq!(net.raft(2).outstanding(), (0, 0));
}

#[test]
fn only_what_was_never_sent_can_be_withdrawn() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    net.hold = Some(|_, _, m| matches!(m, Message::Propose { .. }));
    assert_eq!(net.propose(2, "sent"), 1);
    net.settle();
    net.isolate(2);
    net.run(3 * ELECTION);
    assert_eq!(net.raft(2).leader(), None);
    assert_eq!(net.propose(2, "not sent"), 2);
    assert_eq!(net.propose(2, "nor this"), 3);
    net.settle();
    assert_eq!(net.raft(2).withdraw_unsent(), Some(2));
    assert_eq!(net.raft(2).withdraw_unsent(), None);
    assert_eq!(net.raft(2).outstanding().0, 1);
    assert_eq!(net.propose(2, "another"), 2);
    net.hold = None;
    net.heal();
    net.run(3 * ELECTION);
    assert_eq!(net.texts(), ["sent", "another"]);
}

/// A leader's own proposals, cut off, appended, and truncated by its successor.
#[test]
fn deposed_leaders_proposals_go_to_successor() {
    let mut net = Net::new(3);
    net.elect(1);
    net.settle();
    net.isolate(1);
    for n in 0..3 {
        net.propose(1, &format!("{n}"));
        net.settle();
    }
    net.run(4 * ELECTION);
    assert_eq!(net.raft(1).withdraw_unsent(), None, "they may still win");
    net.heal();
    net.run(2 * ELECTION);
    assert_eq!(net.texts(), ["0", "1", "2"]);
    assert_eq!(net.raft(1).outstanding(), (0, 0));
}

#[test]
fn proposal_window_bounds_bytes_in_flight() {
    let mut net = Net::with(3, |config| {
        config.max_append_bytes = 100;
        config.max_inflight_bytes = 300;
    });
    net.elect(1);
    net.run(2 * HEARTBEAT);
    for n in 0..100 {
        net.propose(2, &format!("{n:03}"));
    }
    net.drain(2);
    assert!((3..=6).contains(&net.wire.len()), "{}", net.wire.len());
    net.run(ELECTION);
    let expected: Vec<String> = (0..100).map(|n| format!("{n:03}")).collect();
    assert_eq!(net.texts(), expected);
}

/// A backlog that went to each new leader at once would keep what it waits for behind it, on a slow link.
#[test]
fn proposal_backlog_reaches_new_leader_gradually() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    net.cut.insert((2, 1));
    let text = |n: u32| format!("{n:03}{}", "x".repeat(1000));
    for n in 0..100 {
        net.propose(2, &text(n));
    }
    net.drain(2);
    let sent = |net: &Net| -> Vec<usize> {
        let of = |m: &Message| match m {
            Message::Propose { proposals, .. } => Some(proposals.iter().map(|p| p.payload.len()).sum()),
            _ => None,
        };
        net.wire.iter().filter_map(|(_, _, m)| of(m)).collect()
    };
    net.wire.clear();
    net.heal();
    let now = net.now;
    net.raft(2).peer_up(now, id(1));
    net.drain(2);
    let first: usize = sent(&net).iter().sum();
    assert!((1..16 << 10).contains(&first), "{first}");
    net.run(ELECTION);
    assert_eq!(net.texts(), (0..100).map(text).collect::<Vec<_>>());
}

/// The first that one hears of a leader may be where its log has got to.
#[test]
fn first_window_applies_to_leader_known_by_reply() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    let text = "x".repeat(1000);
    for _ in 0..100 {
        net.propose(2, &text);
    }
    net.run(ELECTION);
    assert_eq!(net.texts().len(), 100, "so the window is wide");
    net.cut.insert((2, 1));
    for _ in 0..100 {
        net.propose(2, &text);
    }
    net.drain(2);
    net.wire.clear();
    let (term, incarnation) = (net.raft(1).term() + 1, net.nodes[&2].incarnation);
    net.deliver(3, 2, Message::ProposeReply { term, incarnation, number: 100 });
    net.drain(2);
    assert_eq!(net.raft(2).leader(), Some(id(3)));
    let sent: usize = net
        .wire
        .iter()
        .map(|(_, to, m)| match m {
            Message::Propose { proposals, .. } if *to == 3 => proposals.iter().map(|p| p.payload.len()).sum(),
            _ => 0,
        })
        .sum();
    assert!((1..16 << 10).contains(&sent), "{sent}");
}

#[test]
fn new_incarnation_starts_new_session() {
    let mut net = Net::new(3);
    net.elect(1);
    net.propose(2, "first life");
    net.settle();
    net.crash(2);
    net.restart(2);
    net.run(HEARTBEAT);
    assert_eq!(net.propose(2, "second life"), 1);
    net.run(HEARTBEAT);
    assert_eq!(net.texts(), ["first life", "second life"]);
    assert_eq!(net.raft(2).role(), Role::Follower);
}
