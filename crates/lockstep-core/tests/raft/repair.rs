//! Logs that differ, messages that are lost, peers that are paused: how a leader finds the way back.

use crate::net::*;
use lockstep_core::message::Message;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::raft::*;
use lockstep_core::*;

/// A log of notes of these terms, as a disk would have it.
fn disk_of(members: members::Membership, terms: &[Term]) -> DiskImage {
    let entries: Vec<Entry> = terms
        .iter()
        .enumerate()
        .map(|(at, term)| {
            let (index, kind, proposal) = (at as u64 + 1, EntryKind::Note, ProposalId::default());
            let header = EntryHeader { index, term: *term, kind, seqno: 0, proposal, time: 0 };
            Entry::new(header, format!("{index}/{term}").as_bytes())
        })
        .collect();
    DiskImage { bases: vec![genesis(members)], entries, ..DiskImage::default() }
}

/// The logs of figure 7 in the Raft paper: followers that lack entries, have too many, or both.
#[test]
fn new_leader_repairs_logs_of_raft_figure_7() {
    let logs: [&[Term]; 7] = [
        &[1, 1, 1, 4, 4, 5, 5, 6, 6, 6],
        &[1, 1, 1, 4, 4, 5, 5, 6, 6],
        &[1, 1, 1, 4],
        &[1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],
        &[1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
        &[1, 1, 1, 4, 4, 4, 4],
        &[1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
    ];
    for small in [false, true] {
        let mut net = Net::empty();
        for (at, terms) in logs.iter().enumerate() {
            let adjust: fn(&mut Config) = if small {
                |config| {
                    config.max_append_bytes = 1;
                    config.max_inflight_bytes = 1;
                    config.cache_bytes = 0;
                }
            } else {
                |_| {}
            };
            let mut disk = disk_of(voters(1..=7), terms);
            // All have seen the term that one of them has entries of.
            disk.vote.term = 7;
            net.add(at + 1, disk, adjust);
        }
        // The two that would refuse are away for the election.
        net.isolate(4);
        net.isolate(5);
        net.elect(1);
        assert_eq!(net.raft(1).term(), 8);
        net.heal();
        net.run(10 * HEARTBEAT);
        let want = net.nodes[&1].disk.entries.clone();
        assert_eq!(want.len(), 11, "ten of before, and its own first");
        for n in 2..=7 {
            assert_eq!(net.nodes[&n].disk.entries, want, "member {n}, small messages: {small}");
            assert_eq!(net.raft(n).commit(), 11);
        }
    }
}

/// How many questions it takes to find where logs of many terms part: one a term, not one an entry.
#[test]
fn log_match_is_found_term_by_term() {
    let long = |term: Term| std::iter::repeat_n(term, 500);
    let ours: Vec<Term> = long(1).chain(long(3)).chain(long(5)).collect();
    let other: Vec<Term> = long(1).chain(long(2)).chain(long(4)).collect();
    let mut net = Net::empty();
    for (n, terms) in [(1, &ours), (2, &ours), (3, &other)] {
        net.add(n, disk_of(voters(1..=3), terms), |_| {});
    }
    net.isolate(3);
    net.elect(1);
    net.heal();
    net.hold = Some(|from, _, m| from == 3 && matches!(m, Message::Reject { .. }));
    let mut rejects = 0;
    loop {
        net.run(HEARTBEAT);
        let held = std::mem::take(&mut net.held);
        if held.is_empty() {
            break;
        }
        // Of those to the same question, one will do.
        let (from, to, message) = held.into_iter().next_back().unwrap();
        rejects += 1;
        net.deliver(from, to, message);
        net.settle();
    }
    assert!(rejects <= 4, "{rejects}");
    assert_eq!(net.nodes[&3].disk.entries, net.nodes[&1].disk.entries);
}

/// The first of many messages is lost, so the follower rejects each later one. The leader sends the window again for one
/// of these rejections. The others arrive after that, as on a line that reorders messages, and must cause nothing.
#[test]
fn late_rejections_do_not_resend_the_window_again() {
    let mut net = Net::with(3, |config| config.max_append_bytes = 1);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    let entries_to_3 = |m: &Message| matches!(m, Message::Append { entries, .. } if !entries.is_empty());
    net.hold = Some(|_, to, m| to == 3 && matches!(m, Message::Append { .. }));
    net.propose(1, "lost");
    net.settle();
    net.held.clear();
    net.hold = Some(|from, _, m| from == 3 && matches!(m, Message::Reject { .. }));
    for n in 0..20 {
        net.propose(1, &n.to_string());
        net.quiet();
    }
    net.hold = None;
    // It has persisted none of them, which alone would show that the rejections are old.
    net.node(3).slow_disk = true;
    let mut rejections = std::mem::take(&mut net.held).into_iter();
    assert!(rejections.len() >= 20);
    let (from, to, first) = rejections.next().unwrap();
    net.deliver(from, to, first);
    net.quiet();
    assert_eq!(net.raft(3).last_index(), net.raft(1).last_index(), "sent again");
    for (from, to, late) in rejections {
        net.deliver(from, to, late);
        net.drain(1);
        assert!(!net.wire.iter().any(|(_, to, m)| *to == 3 && entries_to_3(m)), "sent once more");
        net.quiet();
    }
}

/// If a message of the window that was sent again is lost, too, the answer to the next heartbeat shows it.
#[test]
fn next_heartbeat_repairs_loss_in_resent_window() {
    let mut net = Net::with(3, |config| config.max_append_bytes = 1);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    let lose_appends: fn(usize, usize, &Message) -> bool =
        |_, to, m| to == 3 && matches!(m, Message::Append { .. });
    net.hold = Some(lose_appends);
    net.propose(1, "lost");
    net.settle();
    net.hold = None;
    net.held.clear();
    net.propose(1, "rejected, then a probe");
    net.quiet();
    assert_eq!(net.raft(3).last_index(), net.raft(1).last_index());
    net.hold = Some(lose_appends);
    net.propose(1, "lost again");
    net.settle();
    net.hold = None;
    net.held.clear();
    net.propose(1, "rejected");
    net.run(2 * HEARTBEAT);
    assert_eq!(net.raft(3).last_index(), net.raft(1).last_index());
}

/// The message that told of the commit is lost, and nothing follows it but heartbeats.
#[test]
fn next_heartbeat_repairs_lost_commit_message() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    net.hold = Some(|_, to, m| to == 3 && matches!(m, Message::Append { entries, .. } if entries.is_empty()));
    net.propose(1, "x");
    net.settle();
    net.held.clear();
    net.hold = None;
    let last = net.raft(1).last_index();
    assert_eq!((net.raft(3).last_index(), net.raft(3).commit()), (last, last - 1));
    net.run(2 * HEARTBEAT);
    assert_eq!(net.raft(3).commit(), last);
}

#[test]
fn lost_messages_with_entries_are_sent_again() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    for lost in [1, 2, 5] {
        net.cut.insert((1, 3));
        for n in 0..lost {
            net.propose(1, &format!("{lost} {n}"));
            net.settle();
        }
        net.heal();
        net.run(2 * HEARTBEAT);
        assert_eq!(net.raft(3).commit(), net.nodes[&1].raft.last_index());
    }
}

/// A probe and its answer are lost, in turn.
#[test]
fn probing_survives_loss() {
    for (from, to) in [(1, 3), (3, 1)] {
        let mut net = Net::new(3);
        net.elect(1);
        net.run(2 * HEARTBEAT);
        net.cut.insert((from, to));
        let now = net.now;
        net.raft(1).peer_down(now, id(3));
        net.raft(1).peer_up(now, id(3));
        net.propose(1, "x");
        net.run(3 * HEARTBEAT);
        net.heal();
        net.run(2 * HEARTBEAT);
        assert_eq!(net.delivered(3), ["x"]);
    }
}

/// The base, or the answer to it, is lost; or it comes twice, the second time when the log has grown.
#[test]
fn lost_or_duplicate_snapshot_is_harmless() {
    for case in 0..3 {
        let mut net = Net::with(2, |config| config.segment_bytes = 300);
        net.elect(1);
        for n in 0..20 {
            net.propose(1, &format!("{n}"));
            net.settle();
        }
        net.add(3, DiskImage::default(), |_| {});
        let now = net.now;
        let with = voters([1, 2]).with(member(3, members::Role::Learner));
        net.raft(1).change_membership(now, with).unwrap();
        net.hold = Some(match case {
            0 | 2 => |_, to, m| to == 3 && matches!(m, Message::Snapshot { .. }),
            _ => |from, _, m| from == 3 && matches!(m, Message::Ack { .. }),
        });
        net.run(HEARTBEAT);
        let held = std::mem::take(&mut net.held);
        assert!(!held.is_empty());
        net.hold = None;
        if case == 2 {
            // The one that was late comes after one that was not.
            net.run(3 * ELECTION);
            net.propose(1, "more");
            net.settle();
            for (from, to, message) in held {
                net.deliver(from, to, message);
            }
        }
        net.run(3 * ELECTION);
        assert_eq!(net.raft(3).commit(), net.nodes[&1].raft.commit(), "case {case}");
        assert_eq!(net.nodes[&3].raft.tail_state(), net.nodes[&1].raft.tail_state());
    }
}

/// A peer that takes nothing in must not fill the memory of the network: so much, and no more, is on the way.
#[test]
fn append_window_closes_and_reopens() {
    let mut net = Net::with(3, |config| {
        config.max_append_bytes = 200;
        config.max_inflight_bytes = 1000;
    });
    net.elect(1);
    net.run(2 * HEARTBEAT);
    net.hold = Some(|_, to, _| to == 3);
    for n in 0..100 {
        net.propose(1, &format!("{n:03}"));
        net.settle();
    }
    let bytes = |held: &[(usize, usize, Message)]| -> usize {
        held.iter()
            .map(|(_, _, m)| match m {
                Message::Append { entries, .. } => entries.iter().map(Entry::size).sum(),
                _ => 0,
            })
            .sum()
    };
    let on_the_way = bytes(&net.held);
    assert!((1000..1300).contains(&on_the_way), "{on_the_way}");
    assert_eq!(net.delivered(2).len(), 100, "the others are not held up");
    net.hold = None;
    for (from, to, message) in std::mem::take(&mut net.held) {
        net.deliver(from, to, message);
    }
    net.run(2 * HEARTBEAT);
    assert_eq!(net.delivered(3).len(), 100);
}

/// Its disk hangs, and it answers heartbeats all the time.
#[test]
fn follower_with_hanging_disk_bounds_memory() {
    let mut net = Net::with(3, |config| {
        config.max_append_bytes = 200;
        config.max_inflight_bytes = 1000;
        config.max_unwritten_bytes = 5000;
    });
    net.elect(1);
    net.run(2 * HEARTBEAT);
    net.node(3).slow_disk = true;
    for n in 0..200 {
        net.propose(1, &format!("{n:03}"));
        net.settle();
        if n % 10 == 0 {
            net.run(HEARTBEAT);
        }
    }
    assert_eq!(net.delivered(2).len(), 200, "the others are not held up");
    let kept = |net: &Net| -> usize {
        net.nodes[&3].writes.iter().flat_map(|op| &op.entries).map(Entry::size).sum()
    };
    let full = kept(&net);
    assert!((5000..6200).contains(&full), "{full}");
    // Nothing flows while it hangs, and the leader is still heard, and hears.
    net.hold =
        Some(|_, to, m| to == 3 && matches!(m, Message::Append { entries, .. } if !entries.is_empty()));
    net.run(3 * ELECTION);
    assert!(net.held.is_empty(), "{:?}", net.held);
    net.hold = None;
    assert_eq!(kept(&net), full);
    assert_eq!(net.raft(1).leader(), Some(id(1)));
    assert_eq!(net.raft(3).leader(), Some(id(1)));
    // A little of it arrives: not yet. The rest arrives: it gets what it has dropped.
    let last = net.raft(3).last_index();
    net.sync_one(3);
    net.run(2 * HEARTBEAT);
    assert_eq!(net.raft(3).last_index(), last);
    net.node(3).slow_disk = false;
    net.sync(3);
    net.run(4 * HEARTBEAT);
    assert_eq!(net.delivered(3), net.delivered(1));
    assert_eq!(net.delivered(3).len(), 200);
}

/// A new leader with different entries takes over while the queue is full.
#[test]
fn follower_with_hanging_disk_follows_new_leader() {
    let mut net = Net::with(5, |config| {
        config.max_append_bytes = 200;
        config.max_inflight_bytes = 1000;
        config.max_unwritten_bytes = 500;
    });
    net.elect(1);
    net.run(2 * HEARTBEAT);
    let commit = net.raft(1).commit();
    net.node(3).slow_disk = true;
    net.cut.extend([2, 4, 5].into_iter().flat_map(|n| [(1, n), (n, 1)]));
    for n in 0..100 {
        net.propose(1, &format!("lost {n:0100}"));
        net.settle();
    }
    let kept: usize = net.nodes[&3].writes.iter().flat_map(|op| &op.entries).map(Entry::size).sum();
    assert!(kept >= 500, "{kept}");
    net.isolate(1);
    // All three must agree. The fourth's campaign fails because its vote does not reach its disk.
    let successor = (0..12).find_map(|_| {
        net.run(ELECTION);
        net.leader().filter(|successor| [2, 4, 5].contains(successor))
    });
    let successor = successor.expect("three of five elect one");
    for n in 0..20 {
        net.propose(successor, &format!("{n}"));
        net.settle();
    }
    net.run(HEARTBEAT);
    assert_eq!(
        net.raft(3).last_index(),
        commit,
        "what the leader has not is gone, and nothing taken instead"
    );
    net.hold =
        Some(|_, to, m| to == 3 && matches!(m, Message::Append { entries, .. } if !entries.is_empty()));
    net.run(3 * ELECTION);
    assert!(net.held.is_empty(), "{:?}", net.held);
    net.hold = None;
    assert_eq!(net.raft(3).leader(), Some(id(successor)));
    net.node(3).slow_disk = false;
    net.sync(3);
    net.run(4 * HEARTBEAT);
    assert_eq!(net.delivered(3), net.delivered(successor));
    assert_eq!(net.delivered(3).len(), 20);
}

/// The answers come in the wrong order.
#[test]
fn late_answers_take_nothing_back() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    net.hold = Some(|from, _, m| from == 3 && matches!(m, Message::Ack { .. } | Message::Reject { .. }));
    for n in 0..10 {
        net.propose(1, &format!("{n}"));
        net.settle();
    }
    net.hold = None;
    let mut late = std::mem::take(&mut net.held);
    late.reverse();
    let last = net.raft(1).last_index();
    for (from, to, message) in late {
        net.deliver(from, to, message);
        assert_eq!(net.raft(1).matched(&id(3)), last);
    }
    net.settle();
    assert_eq!(net.raft(3).commit(), last);
}

/// All messages of one kind are lost for long, and nobody notices a connection that broke. After that each loss is
/// repaired within a few election timeouts, however often the sender has repeated it in vain.
#[test]
fn messages_of_one_kind_lost_for_long_are_repaired_soon() {
    type Kind = fn(usize, usize, &Message) -> bool;
    let kinds: [(&str, Kind); 14] = [
        ("pre-votes", |_, _, m| matches!(m, Message::PreVote { .. })),
        ("votes", |_, _, m| matches!(m, Message::Vote { .. })),
        ("answers to votes", |_, _, m| matches!(m, Message::VoteReply { .. })),
        ("entries", |_, _, m| matches!(m, Message::Append { entries, .. } if !entries.is_empty())),
        ("appends", |_, _, m| matches!(m, Message::Append { .. })),
        ("acks", |_, _, m| matches!(m, Message::Ack { .. })),
        ("acks to origins", |_, to, m| to != 1 && matches!(m, Message::Ack { .. })),
        ("rejects", |_, _, m| matches!(m, Message::Reject { .. })),
        ("proposals", |_, _, m| matches!(m, Message::Propose { .. })),
        ("answers to proposals", |_, _, m| matches!(m, Message::ProposeReply { .. })),
        ("reads", |_, _, m| matches!(m, Message::ReadIndex { .. })),
        ("answers to reads", |_, _, m| matches!(m, Message::ReadIndexReply { .. })),
        ("what policies have met", |_, _, m| matches!(m, Message::PolicyMet { .. })),
        ("relays", |_, _, m| matches!(m, Message::Relay { .. } | Message::Relayed { .. })),
    ];
    for (name, kind) in kinds {
        for policy in [PolicyKind::Quorum, PolicyKind::All, PolicyKind::Semisync, PolicyKind::Async] {
            let mut net = Net::new(5);
            net.relay();
            net.elect(1);
            let now = net.now;
            let policy = Policy { acks: 1, ..Policy::of(policy) };
            net.raft(1).append_control(now, EntryKind::Policy, policy.to_payload()).unwrap();
            net.run(2 * HEARTBEAT);
            net.hold = Some(kind);
            for round in 0..32 {
                let now = net.now;
                for n in 1..=5 {
                    net.propose(n, &format!("{n} {round}"));
                    net.raft(n).read_index(now);
                }
                net.run(ELECTION / 2);
            }
            net.hold = None;
            net.run(4 * ELECTION);
            let asked = 32;
            let leader = net.leader().expect("there is a leader");
            let last = net.raft(leader).last_index();
            for n in 1..=5 {
                let case = format!("{name} lost, {policy:?}, member {n}, led by {leader}");
                let answered =
                    |o: &&Output| matches!(o, Output::ReadReady { .. } | Output::ReadFailed { .. });
                assert_eq!(net.nodes[&n].outputs.iter().filter(answered).count(), asked, "reads: {case}");
                let raft = net.raft(n);
                assert_eq!(raft.outstanding(), (0, 0), "proposals: {case}");
                assert_eq!((raft.commit(), raft.deliverable()), (last, last), "log: {case}");
                assert!(raft.policy_index() >= last, "policy: {case}");
            }
        }
    }
}
