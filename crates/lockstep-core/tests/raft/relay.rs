//! One copy for each zone. 1 and 2 are in one zone, 3 to 5 in another; 1 leads, and 3 is the relay.

use crate::net::*;
use lockstep_core::message::{Carried, Message};
use lockstep_core::raft::{Config, Failpoint, Role};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Five voters whose leader has chosen its relay.
fn five() -> Net {
    let mut net = Net::new(5);
    net.relay();
    net.elect(1);
    net.run(2 * HEARTBEAT);
    net
}

fn via(net: &Net, n: usize) -> Option<usize> {
    let progress = net.nodes[&1].raft.progress();
    progress.iter().find(|peer| peer.id == id(n)).and_then(|peer| peer.via).map(number)
}

/// All that leave 1 with entries, and to whom it goes in the end.
fn copies(net: &mut Net, text: &str) -> Vec<(usize, Vec<usize>)> {
    net.hold = Some(|from, _, m| {
        from == 1
            && match m {
                Message::Append { entries, .. } => !entries.is_empty(),
                m => matches!(m, Message::Relay { .. } | Message::Relayed { .. }),
            }
    });
    net.propose(1, text);
    net.quiet();
    net.hold = None;
    let held = std::mem::take(&mut net.held);
    let mut copies = Vec::new();
    for (from, to, message) in held {
        let others = match &message {
            Message::Relay { to, .. } => to.iter().copied().map(number).collect(),
            _ => Vec::new(),
        };
        copies.push((to, others));
        net.deliver(from, to, message);
    }
    net.settle();
    copies
}

fn all_have(net: &mut Net, text: &str) {
    for n in 1..=5 {
        assert!(net.delivered(n).iter().any(|t| t == text), "member {n} has no {text}");
    }
}

#[test]
fn zone_gets_one_copy() {
    let mut net = five();
    assert_eq!(copies(&mut net, "a"), [(2, vec![]), (3, vec![4, 5])]);
    net.run(2 * HEARTBEAT);
    all_have(&mut net, "a");
    assert_eq!((via(&net, 2), via(&net, 3), via(&net, 4), via(&net, 5)), (None, None, Some(3), Some(3)));
}

#[test]
fn single_or_old_member_zone_gets_no_relay() {
    let mut net = Net::new(3);
    net.relay();
    net.elect(1);
    net.run(2 * HEARTBEAT);
    assert_eq!(copies(&mut net, "a"), [(2, vec![]), (3, vec![])]);

    let mut net = Net::new(5);
    for n in 1..=5 {
        net.raft(n).set_relaying(true);
        for other in [1, 2, 3, 4].into_iter().filter(|other| *other != n) {
            net.raft(n).peer_relays(id(other));
        }
    }
    net.elect(1);
    net.run(2 * HEARTBEAT);
    assert_eq!(copies(&mut net, "a"), [(2, vec![]), (3, vec![4]), (5, vec![])]);
    all_have(&mut net, "a");

    net.raft(1).set_relaying(false);
    let mut direct = copies(&mut net, "b");
    direct.sort();
    assert_eq!(direct, [(2, vec![]), (3, vec![]), (4, vec![]), (5, vec![])]);
    all_have(&mut net, "b");
}

#[test]
fn lost_relay_is_replaced_without_gap() {
    let mut net = five();
    // The relay dies before forwarding.
    net.hold = Some(|from, _, m| from == 3 && matches!(m, Message::Relayed { .. }));
    net.propose(1, "a");
    net.quiet();
    net.held.clear();
    net.hold = None;
    net.crash(3);
    let now = net.now;
    for n in [1, 2, 4, 5] {
        net.raft(n).peer_down(now, id(3));
    }
    net.quiet();
    assert!(net.delivered(4).contains(&"a".into()) && net.delivered(5).contains(&"a".into()), "at once");
    net.run(HEARTBEAT);
    assert_eq!(copies(&mut net, "b"), [(2, vec![]), (4, vec![5])]);
    net.restart(3);
    let now = net.now;
    for n in [1, 2, 4, 5] {
        net.raft(n).peer_up(now, id(3));
        net.raft(n).peer_relays(id(3));
    }
    net.run(2 * HEARTBEAT);
    let mut got = copies(&mut net, "c");
    got.iter_mut().for_each(|(_, others)| others.sort());
    assert_eq!(got, [(2, vec![]), (4, vec![3, 5])], "who relays goes on with it");
    all_have(&mut net, "c");
}

/// A relay that hangs with its connections whole, and one whose neighbour it does not reach.
#[test]
fn stalled_relay_recipient_is_fed_by_leader() {
    let mut net = five();
    net.isolate(3);
    net.propose(1, "a");
    net.settle();
    assert!(!net.delivered(4).contains(&"a".into()));
    net.run(5 * HEARTBEAT);
    assert!(net.delivered(4).contains(&"a".into()) && net.delivered(5).contains(&"a".into()));
    assert_eq!((via(&net, 4), via(&net, 5)), (None, Some(4)));

    let mut net = five();
    net.cut.insert((3, 5));
    net.propose(1, "a");
    net.settle();
    assert!(net.delivered(4).contains(&"a".into()) && !net.delivered(5).contains(&"a".into()));
    net.run(5 * HEARTBEAT);
    assert!(net.delivered(5).contains(&"a".into()));
    assert_eq!((via(&net, 4), via(&net, 5)), (Some(3), None));
    let before = copies(&mut net, "b");
    assert_eq!(before, [(2, vec![]), (3, vec![4]), (5, vec![])]);
    // It is tried again, later each time.
    net.heal();
    net.run(9 * ELECTION);
    assert_eq!(via(&net, 5), Some(3));
}

/// A relay whose disk takes nothing passes on all the same.
#[test]
fn relay_forwards_before_its_own_sync() {
    let mut net = five();
    net.node(3).slow_disk = true;
    for n in 0..5 {
        net.propose(1, &n.to_string());
        net.settle();
    }
    assert_eq!(net.delivered(4).len(), 5);
    assert_eq!(net.delivered(5).len(), 5);
    assert_eq!(net.raft(3).persisted() + 5, net.raft(1).last_index());
    net.sync(3);
    net.settle();
    assert_eq!(net.delivered(3).len(), 5);
}

/// Heartbeats and direct appends overtake relayed ones: no follower rejects them for that.
#[test]
fn reordered_relayed_entries_are_kept() {
    let mut net = five();
    net.hold = Some(|_, to, m| to == 4 && matches!(m, Message::Relayed { .. }));
    for n in 0..4 {
        net.propose(1, &n.to_string());
        net.quiet();
    }
    assert_eq!(net.held.len(), 4);
    let committed = net.raft(1).commit();
    // A heartbeat brings the news of the commit before the entries.
    net.now += HEARTBEAT;
    let now = net.now;
    net.raft(1).tick(now);
    net.hold = Some(|from, to, m| {
        matches!(m, Message::Reject { .. }) || (to == 4 && from == 3 && matches!(m, Message::Relayed { .. }))
    });
    net.quiet();
    net.hold = None;
    let held = std::mem::take(&mut net.held);
    assert!(held.iter().all(|(_, _, m)| matches!(m, Message::Relayed { .. })));
    assert!(net.raft(4).commit() < committed);
    for (from, to, message) in held.into_iter().rev() {
        net.deliver(from, to, message);
        net.quiet();
    }
    assert_eq!(net.raft(4).commit(), committed, "with the last piece, without another word of the leader's");
    assert_eq!(net.delivered(4), net.delivered(1));
}

/// 3 was to pass on an entry of 1's; then 2 leads, and places another there.
fn brought_late(adjust: fn(&mut Config)) {
    let mut net = Net::with(5, adjust);
    net.relay();
    net.elect(1);
    net.run(2 * HEARTBEAT);
    net.hold = Some(|_, to, m| to == 4 && matches!(m, Message::Relayed { .. }));
    for to in [1, 2, 5] {
        net.cut.insert((3, to));
    }
    net.cut.insert((1, 2));
    net.propose(1, "old");
    net.quiet();
    net.hold = None;
    let held = std::mem::take(&mut net.held);
    let [(3, 4, Message::Relayed { term, carried })] = &held[..] else { panic!("{held:?}") };
    net.crash(1);
    net.crash(3);
    net.heal();
    let last = net.raft(4).last_index();
    net.hold = Some(|_, to, m| {
        to == 4 && matches!(m, Message::Append { .. } | Message::Relay { .. } | Message::Relayed { .. })
    });
    net.elect(2);
    net.propose(2, "new");
    net.settle();
    // It has heard that 2 leads, and has none of its entries yet.
    let heard = Message::Append {
        term: net.raft(2).term(),
        prev_index: last,
        prev_term: *term,
        commit: last,
        persisted: last,
        context: 0,
        entries: Vec::new(),
    };
    net.deliver(2, 4, heard);
    for term in [*term, *term + 10] {
        net.deliver(3, 4, Message::Relayed { term, carried: carried.clone() });
        assert_eq!(net.raft(4).last_index(), last, "an entry that 2 has not");
    }
    let wrong = Carried { prev_term: carried.prev_term + 7, ..carried.clone() };
    let term = net.raft(2).term();
    net.deliver(3, 4, Message::Relayed { term, carried: wrong });
    assert_eq!(net.raft(4).last_index(), last, "one that follows what its log has not");
    net.hold = None;
    net.run(4 * HEARTBEAT);
    net.restart(1);
    net.restart(3);
    net.run(4 * ELECTION);
    assert_eq!(net.delivered(4), net.delivered(2));
}

#[test]
fn relayed_append_of_other_term_is_ignored() {
    brought_late(|_| {});
}

/// The switch is a real one.
#[test]
fn taking_what_was_said_in_another_term_would_be_found() {
    let faulty = || brought_late(|config| config.failpoints = Some(Failpoint::RelayedOfAnyTerm).into());
    assert!(catch_unwind(AssertUnwindSafe(faulty)).is_err());
}

/// A burst that is larger than the windows: still one copy, but for those who are slower than their relay.
#[test]
fn windows_do_not_shut_recipients_out() {
    let mut net = Net::with(5, |config| {
        config.max_append_bytes = 300;
        config.max_inflight_bytes = 1000;
    });
    net.relay();
    net.elect(1);
    net.run(2 * HEARTBEAT);
    let mut relayed = 0;
    let mut direct = 0;
    for n in 0..60 {
        net.propose(1, &format!("{n:0100}"));
    }
    for _ in 0..200 {
        (1..=5).for_each(|n| {
            net.drain(n);
        });
        for (from, to, message) in std::mem::take(&mut net.wire) {
            if from == 1 && to > 2 {
                match &message {
                    Message::Relay { to, .. } if to.len() == 2 => relayed += 1,
                    Message::Append { entries, .. } if !entries.is_empty() => direct += 1,
                    Message::Relay { .. } | Message::Relayed { .. } => direct += 1,
                    _ => {}
                }
            }
            net.deliver(from, to, message);
        }
    }
    net.settle();
    assert_eq!(net.delivered(5).len(), 60);
    assert!(relayed >= 30 && direct == 0, "{relayed} relayed, {direct} not");
}

/// A member that comes to a zone is brought to the end of the log by the leader, and then rides along.
#[test]
fn returning_member_is_relayed_after_catch_up() {
    let mut net = Net::with(5, |config| config.cache_bytes = 2000);
    net.relay();
    net.elect(1);
    net.run(2 * HEARTBEAT);
    net.crash(5);
    let now = net.now;
    (1..=4).for_each(|n| net.raft(n).peer_down(now, id(5)));
    for n in 0..100 {
        net.propose(1, &format!("{n:0100}"));
        net.settle();
    }
    net.restart(5);
    let now = net.now;
    for n in 1..=4 {
        net.raft(n).peer_up(now, id(5));
        net.raft(n).peer_relays(id(5));
    }
    net.run(4 * HEARTBEAT);
    assert_eq!(via(&net, 5), Some(3));
    assert_eq!(copies(&mut net, "a"), [(2, vec![]), (3, vec![4, 5])]);
    all_have(&mut net, "a");
}

/// Relayed entries are accepted only from members of the own zone and from the leader.
#[test]
fn entries_passed_on_by_somebody_of_another_zone_are_not_taken() {
    for from in [2, 9, 3] {
        let mut net = five();
        net.settle();
        net.hold = Some(|_, to, m| to == 4 && matches!(m, Message::Relayed { .. }));
        net.propose(1, "a");
        net.quiet();
        net.hold = None;
        let held = std::mem::take(&mut net.held);
        let before = net.nodes[&4].raft.last_index();
        for (_, _, message) in held {
            net.deliver(from, 4, message);
        }
        net.drain(4);
        assert_eq!(net.nodes[&4].raft.last_index() > before, from == 3, "from {from}");
    }
}

/// Two pieces that 3 passes on to 4, kept back, in their order.
fn two_kept_back(net: &mut Net) -> Vec<(usize, usize, Message)> {
    net.hold = Some(|_, to, m| to == 4 && matches!(m, Message::Relayed { .. }));
    for text in ["a", "b"] {
        net.propose(1, text);
        net.quiet();
    }
    net.hold = None;
    std::mem::take(&mut net.held)
}

/// On a line that is full a member hears nothing of its leader for a while, and asks whether it might lead. What a relay
/// brings then is not lost: it is there when the leader is heard again.
#[test]
fn follower_without_leader_keeps_relayed_entries() {
    let mut net = five();
    let held = two_kept_back(&mut net);
    assert_eq!(held.len(), 2);
    net.now += 3 * ELECTION;
    let now = net.now;
    // Nobody hears what it asks.
    net.isolate(4);
    net.raft(4).tick(now);
    net.drain(4);
    net.wire.clear();
    net.heal();
    assert_eq!((net.raft(4).role(), net.raft(4).leader()), (Role::PreCandidate, None));
    let before = net.raft(4).last_index();
    for (from, to, message) in held {
        net.deliver(from, to, message);
    }
    assert_eq!(net.raft(4).last_index(), before);
    let (term, commit) = (net.raft(1).term(), net.raft(4).commit());
    let prev_term = net.raft(4).term_at(commit).unwrap();
    let entries = Vec::new();
    let heard = Message::Append {
        term,
        prev_index: commit,
        prev_term,
        commit,
        persisted: commit,
        context: 0,
        entries,
    };
    net.deliver(1, 4, heard);
    assert_eq!(net.raft(4).last_index(), before + 2);
}

/// Kept appends are bounded: appends without new entries are dropped, and duplicates are kept once.
#[test]
fn relayed_duplicates_take_no_memory() {
    let mut net = Net::with(5, |config| config.max_inflight_bytes = 1000);
    net.relay();
    net.elect(1);
    net.run(2 * HEARTBEAT);
    let held = two_kept_back(&mut net);
    let [(3, 4, first), (3, 4, second)] = &held[..] else { panic!("{held:?}") };
    let Message::Relayed { term, carried } = second else { panic!("{second:?}") };
    for further in 0..50 {
        let empty =
            Carried { prev_index: carried.prev_index + further, entries: Vec::new(), ..carried.clone() };
        net.deliver(3, 4, Message::Relayed { term: *term, carried: empty });
        // It arrives repeatedly before its predecessor.
        let third = Carried { prev_index: carried.prev_index + 100, ..carried.clone() };
        net.deliver(3, 4, Message::Relayed { term: *term, carried: third });
    }
    let before = net.raft(4).last_index();
    net.deliver(3, 4, second.clone());
    net.deliver(3, 4, first.clone());
    assert_eq!(net.raft(4).last_index(), before + 2);
}
