//! Disks that hang without an error: their members answer heartbeats, and persist nothing.

use crate::net::*;
use lockstep_core::Micros;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::raft::*;

/// Three voters, led by 1; 2 is off, and everything is on the disks of the others.
fn without_second(adjust: fn(&mut Config)) -> Net {
    let mut net = Net::with(3, adjust);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    net.isolate(2);
    net.run(2 * HEARTBEAT);
    net
}

/// The disks of the members that reach each other hang.
fn hang(net: &mut Net, members: &[usize]) {
    for n in members {
        net.node(*n).slow_disk = true;
    }
}

fn mend(net: &mut Net, members: &[usize]) {
    for n in members {
        net.node(*n).slow_disk = false;
        net.sync(*n);
    }
}

fn has_quorum(net: &mut Net, n: usize) -> bool {
    let now = net.now;
    net.raft(n).has_quorum(now)
}

#[test]
fn leader_steps_down_when_majority_of_disks_hangs() {
    let mut net = without_second(|_| {});
    hang(&mut net, &[3]);
    net.propose(1, "a");
    net.run(DISK_TIMEOUT - 2 * HEARTBEAT);
    assert_eq!(net.raft(1).role(), Role::Leader, "the disk may only be slow");
    assert!(net.raft(1).disk_of_stands_still_for(&id(3)) > DISK_TIMEOUT / 2);
    net.run(4 * HEARTBEAT);
    assert_ne!(net.raft(1).role(), Role::Leader);

    // Elections would not end: no vote of 3 becomes durable. So nobody begins one.
    let term = net.raft(1).term();
    net.run(20 * ELECTION);
    assert_eq!((net.raft(1).term(), net.raft(3).term()), (term, term));
    assert!(!has_quorum(&mut net, 1) && !has_quorum(&mut net, 3));

    let index = net.raft(1).last_index();
    mend(&mut net, &[3]);
    net.run(4 * ELECTION);
    assert!(net.raft(1).commit() > index, "the entry is committed once the disk works");
    assert!(has_quorum(&mut net, 1) && has_quorum(&mut net, 3));
}

#[test]
fn leader_stays_when_disks_of_majority_work() {
    let mut net = Net::new(3);
    net.elect(1);
    hang(&mut net, &[3]);
    for _ in 0..10 {
        net.propose(1, "a");
        net.run(DISK_TIMEOUT / 4);
    }
    assert_eq!(net.raft(1).role(), Role::Leader);
    assert_eq!(net.raft(1).commit(), net.raft(1).last_index());
    assert!(net.raft(1).disk_of_stands_still_for(&id(3)) > 2 * DISK_TIMEOUT);
    assert_eq!(net.raft(1).disk_of_stands_still_for(&id(2)), 0);
}

#[test]
fn leader_stays_while_hung_disks_have_nothing_to_write() {
    let mut net = without_second(|_| {});
    hang(&mut net, &[1, 3]);
    net.run(4 * DISK_TIMEOUT);
    assert_eq!(net.raft(1).role(), Role::Leader);
}

#[test]
fn slow_disks_that_advance_keep_leader() {
    let mut net = without_second(|_| {});
    hang(&mut net, &[1, 3]);
    for _ in 0..8 {
        net.propose(1, "a");
        net.run(DISK_TIMEOUT / 2);
        net.sync_one(1);
        net.run(DISK_TIMEOUT / 4);
        net.sync_one(3);
    }
    assert_eq!(net.raft(1).role(), Role::Leader);
}

#[test]
fn disks_slower_than_timeout_commit_in_the_end() {
    let mut net = without_second(|_| {});
    hang(&mut net, &[3]);
    net.propose(1, "a");
    let committed = net.raft(1).commit();
    for _ in 0..20 {
        net.run(DISK_TIMEOUT + ELECTION);
        net.sync(3);
    }
    assert!(net.raft(1).commit() > committed, "the timeout grows after terms that commit nothing");
}

#[test]
fn hung_disk_of_sole_voter_ends_its_term_until_it_works() {
    let mut net = Net::new(1);
    net.elect(1);
    hang(&mut net, &[1]);
    net.propose(1, "a");
    net.run(DISK_TIMEOUT + 2 * HEARTBEAT);
    assert!(!has_quorum(&mut net, 1));
    net.run(DISK_TIMEOUT);
    mend(&mut net, &[1]);
    net.run(4 * ELECTION);
    assert!(has_quorum(&mut net, 1));
    assert_eq!(net.raft(1).commit(), net.raft(1).last_index());
}

#[test]
fn disk_timeout_of_zero_keeps_leader() {
    let mut net = without_second(|config| config.disk_timeout = 0);
    hang(&mut net, &[1, 3]);
    net.propose(1, "a");
    net.run(4 * DISK_TIMEOUT);
    assert_eq!(net.raft(1).role(), Role::Leader);
}

/// Under a weak policy the commit index may lag. Only clients that wait for the majority end the term.
#[test]
fn weak_leader_steps_down_once_risk_limit_blocks() {
    let mut net = without_second(|_| {});
    let policy = Policy { max_at_risk: 2, ..Policy::of(PolicyKind::Async) };
    let now = net.now;
    net.raft(1).append_control(now, lockstep_core::EntryKind::Policy, policy.to_payload()).unwrap();
    net.run(2 * HEARTBEAT);
    hang(&mut net, &[3]);
    net.propose(1, "a");
    net.propose(1, "b");
    net.run(2 * DISK_TIMEOUT);
    assert_eq!(net.raft(1).role(), Role::Leader, "its clients have their answers");
    assert!(net.raft(1).blocked_on().is_none());
    net.propose(1, "c");
    net.run(DISK_TIMEOUT + 2 * HEARTBEAT);
    assert_ne!(net.raft(1).role(), Role::Leader);
}

/// A pre-vote promises a vote, which this member could not make durable.
#[test]
fn member_with_hung_disk_refuses_pre_vote_and_does_not_campaign() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    hang(&mut net, &[3]);
    net.propose(1, "a");
    net.run(DISK_TIMEOUT + 2 * HEARTBEAT);
    let term = net.raft(1).term();
    net.isolate(1);
    let idle: Micros = 10 * ELECTION;
    net.run(idle);
    assert_eq!((net.raft(2).term(), net.raft(3).term()), (term, term));
    mend(&mut net, &[3]);
    net.run(6 * ELECTION);
    assert!(matches!(net.leader(), Some(2 | 3)) && net.raft(2).term() > term);
}
