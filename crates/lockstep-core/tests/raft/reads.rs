//! Causal reads.

use crate::net::*;
use lockstep_core::raft::*;
use lockstep_core::*;

fn read(net: &mut Net, n: usize) -> u64 {
    let now = net.now;
    net.raft(n).read_index(now)
}

fn answer(net: &Net, n: usize, wanted: u64) -> Option<Option<Index>> {
    net.nodes[&n].outputs.iter().find_map(|output| match output {
        Output::ReadReady { context, index } if *context == wanted => Some(Some(*index)),
        Output::ReadFailed { context } if *context == wanted => Some(None),
        _ => None,
    })
}

#[test]
fn everybody_learns_what_a_read_must_see() {
    let mut net = Net::new(3);
    net.elect(1);
    net.propose(2, "x");
    net.settle();
    let last = net.raft(1).last_index();
    let contexts: Vec<u64> = (1..=3).map(|n| read(&mut net, n)).collect();
    let second = read(&mut net, 3);
    net.settle();
    for n in 1..=3 {
        assert_eq!(answer(&net, n, contexts[n - 1]), Some(Some(last)), "member {n}");
    }
    assert_eq!(answer(&net, 3, second), Some(Some(last)));
}

/// The origin may know of a commit before the leader does: the leader's last entry is what counts.
#[test]
fn read_sees_entries_not_known_committed_by_leader() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    net.hold = Some(|from, to, m| {
        to == 1
            && from != 1
            && matches!(m, lockstep_core::message::Message::Ack { persisted, .. } if *persisted > 1)
    });
    net.propose(2, "x");
    net.settle();
    let last = net.raft(2).last_index();
    assert_eq!(net.raft(2).commit(), last);
    assert_eq!(net.raft(1).commit(), last - 1);
    let context = read(&mut net, 1);
    net.hold = None;
    net.settle();
    net.run(HEARTBEAT);
    assert_eq!(answer(&net, 1, context), Some(Some(last)));
}

/// It still believes that it leads, but others have gone on without it.
#[test]
fn deposed_leader_does_not_answer_reads() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(HEARTBEAT);
    net.isolate(1);
    net.elect(2);
    net.propose(2, "1 has not heard of this");
    net.settle();
    assert_eq!(net.raft(1).role(), Role::Leader, "it does not know");
    let own = read(&mut net, 1);
    net.settle();
    assert_eq!(answer(&net, 1, own), None);
    net.heal();
    net.run(HEARTBEAT);
    assert_eq!(answer(&net, 1, own), Some(None), "it failed");
    let again = read(&mut net, 1);
    net.settle();
    assert_eq!(answer(&net, 1, again), Some(Some(net.nodes[&2].raft.last_index())));
}

/// Late answers to what the deposed leader asked in its time are from before the question.
#[test]
fn only_answers_to_later_messages_confirm() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    net.hold = Some(|_, to, m| to == 1 && matches!(m, lockstep_core::message::Message::Ack { .. }));
    net.run(HEARTBEAT);
    net.hold = None;
    let late = std::mem::take(&mut net.held);
    assert!(!late.is_empty());
    net.isolate(1);
    let context = read(&mut net, 1);
    net.settle();
    net.heal();
    for (from, to, message) in late {
        net.deliver(from, to, message);
    }
    net.isolate(1);
    net.settle();
    assert_eq!(answer(&net, 1, context), None);
}

#[test]
fn read_without_leader_fails() {
    let mut net = Net::new(3);
    let early = read(&mut net, 2);
    net.settle();
    assert_eq!(answer(&net, 2, early), Some(None));
    net.elect(1);
    net.run(HEARTBEAT);
    net.crash(1);
    let late = read(&mut net, 2);
    net.run(3 * ELECTION);
    assert!(answer(&net, 2, late).is_some(), "it is answered by the next leader, or fails");
}

#[test]
fn sole_voter_answers_reads_at_once() {
    let mut net = Net::new(1);
    net.elect(1);
    net.settle();
    let context = read(&mut net, 1);
    net.drain(1);
    assert_eq!(answer(&net, 1, context), Some(Some(1)));
}
