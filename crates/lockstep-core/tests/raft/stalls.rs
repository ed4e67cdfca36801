//! Leaders whose process does not run for a while: no input and no tick, then the clock has moved.

use crate::net::*;
use lockstep_core::EntryKind;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::raft::*;

/// Longer than two election timeouts.
const STALL: u64 = 2 * ELECTION + HEARTBEAT;
/// `commit.timeout` of these tests. Two stalls exceed it even if only the first one is not counted.
const COMMIT_TIMEOUT: u64 = 2 * ELECTION / 3;

/// Three voters under a policy of this kind, led by 1.
fn under(kind: PolicyKind) -> Net {
    under_policy(Policy { acks: 1, timeout: COMMIT_TIMEOUT, ..Policy::of(kind) })
}

fn under_policy(policy: Policy) -> Net {
    let mut net = Net::new(3);
    net.elect(1);
    let now = net.now;
    net.raft(1).append_control(now, EntryKind::Policy, policy.to_payload()).unwrap();
    net.run(2 * HEARTBEAT);
    net
}

/// The leader has the entry on its disk, and nobody has answered.
fn propose(net: &mut Net, text: &str) {
    net.propose(1, text);
    net.drain(1);
    net.drain(1);
}

/// Time passes, and no member runs. Then member 1 has the first round.
fn stall(net: &mut Net, time: u64) {
    net.now += time;
    let now = net.now;
    net.raft(1).tick(now);
    net.drain(1);
}

#[test]
fn leader_stays_in_term_after_each_answered_stall() {
    let mut net = under(PolicyKind::Quorum);
    let term = net.raft(1).term();
    for _ in 0..5 {
        stall(&mut net, STALL);
        assert_eq!((net.raft(1).role(), net.raft(1).term()), (Role::Leader, term));
        net.settle();
    }
    let now = net.now;
    assert!(net.raft(1).has_quorum(now));
}

#[test]
fn silence_of_dead_peers_after_stall_ends_term() {
    let mut net = under(PolicyKind::Quorum);
    net.isolate(1);
    stall(&mut net, STALL);
    assert_eq!(net.raft(1).role(), Role::Leader);
    net.run(ELECTION + HEARTBEAT);
    assert_ne!(net.raft(1).role(), Role::Leader);
}

#[test]
fn entry_waits_for_answers_to_message_after_stall() {
    let mut net = under(PolicyKind::Async);
    propose(&mut net, "a");
    let first = net.raft(1).last_index();
    assert_eq!(net.raft(1).early(), first, "no member has answered");
    stall(&mut net, STALL);
    assert!(net.raft(1).early() < first, "the server may not have taken it yet");
    propose(&mut net, "b");
    assert_eq!(net.raft(1).blocked_on(), Some((first, BlockedOn::Stall)));
    net.settle();
    assert_eq!((net.raft(1).commit(), net.raft(1).blocked_on()), (first + 1, None));
    net.isolate(1);
    propose(&mut net, "c");
    assert_eq!(net.raft(1).early(), first + 2, "a majority has answered since the stall");
}

/// The deadlines are extended for the step-down only: nobody takes the stalled leader's peers for responsive.
#[test]
fn stalled_leader_has_no_quorum_until_majority_answers() {
    let mut net = under(PolicyKind::Quorum);
    let answered = net.raft(1).last_answer(&id(2));
    stall(&mut net, STALL);
    let now = net.now;
    assert_eq!(net.raft(1).role(), Role::Leader);
    assert!(!net.raft(1).has_quorum(now) && !net.raft(1).goes_on_without(&id(3), |_| true));
    assert_eq!(net.raft(1).last_answer(&id(2)), answered);
    net.settle();
    let now = net.now;
    assert!(net.raft(1).has_quorum(now) && net.raft(1).goes_on_without(&id(3), |_| true));
}

/// Clients wait beyond `async.max_at_risk` while the disks of the others hang. Stalls change what is delivered early.
#[test]
fn standstill_of_disks_is_found_across_stalls() {
    let mut net = under_policy(Policy { max_at_risk: 2, ..Policy::of(PolicyKind::Async) });
    (net.node(2).slow_disk, net.node(3).slow_disk) = (true, true);
    for text in ["a", "b", "c"] {
        net.propose(1, text);
    }
    net.run(DISK_TIMEOUT / 2);
    for _ in 0..2 {
        stall(&mut net, ELECTION);
        net.settle();
        net.run(2 * HEARTBEAT);
    }
    assert_eq!(net.raft(1).role(), Role::Leader);
    net.run(DISK_TIMEOUT / 2);
    assert_ne!(net.raft(1).role(), Role::Leader);
}

/// The entry leaves, and the process stalls at once. The acks wait in the socket.
#[test]
fn semisync_does_not_fall_back_because_of_own_stall() {
    let mut net = under(PolicyKind::Semisync);
    propose(&mut net, "a");
    stall(&mut net, COMMIT_TIMEOUT + HEARTBEAT);
    assert!(!net.raft(1).has_fallen_back());
    net.settle();
    let index = net.raft(1).last_index();
    assert!(net.raft(1).policy_index() >= index && !net.raft(1).has_fallen_back());
}

#[test]
fn second_stall_does_not_count_for_commit_timeout() {
    let mut net = under(PolicyKind::Semisync);
    propose(&mut net, "a");
    for _ in 0..2 {
        stall(&mut net, ELECTION / 2 + HEARTBEAT);
    }
    assert_eq!((net.raft(1).role(), net.raft(1).has_fallen_back()), (Role::Leader, false));
}

#[test]
fn stall_is_no_measure_of_round_trip() {
    let mut net = under(PolicyKind::Quorum);
    net.run(HEARTBEAT);
    let now = net.now + HEARTBEAT;
    net.now = now;
    net.raft(1).tick(now);
    net.drain(1);
    stall(&mut net, STALL);
    net.settle();
    assert!(net.raft(1).rtt(&id(2)).is_some_and(|rtt| rtt < HEARTBEAT), "{:?}", net.raft(1).rtt(&id(2)));
}

/// The leader sends a heartbeat between two short stalls. Its answer waits in the socket during the second one.
#[test]
fn second_stall_is_no_measure_of_round_trip() {
    let mut net = under(PolicyKind::Quorum);
    let short = ELECTION / 2 + HEARTBEAT;
    stall(&mut net, short);
    stall(&mut net, short);
    net.settle();
    assert_eq!(net.raft(1).role(), Role::Leader);
    // One sample of a stall would move the mean by an eighth of it.
    let rtt = net.raft(1).rtt(&id(2));
    assert!(rtt.is_some_and(|rtt| rtt < short / 16), "{rtt:?}");
}
