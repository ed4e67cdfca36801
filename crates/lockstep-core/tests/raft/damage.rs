//! Damage has taken the ends of logs, and the members know where they had ended.

use crate::net::*;
use lockstep_core::message::Message;
use lockstep_core::raft::*;

/// Three voters with ten committed write-sets, led by the first one.
fn net() -> Net {
    let mut net = Net::new(3);
    net.elect(1);
    for n in 0..10 {
        net.propose(1, &format!("{n}"));
        net.settle();
    }
    net.run(2 * ELECTION);
    net
}

/// The log of this member ends at `last` from now on.
fn damage(net: &mut Net, n: usize, last: u64) {
    net.crash(n);
    net.node(n).disk.lose_end(last);
    net.restart(n);
}

fn role(net: &mut Net, n: usize) -> Role {
    net.raft(n).role()
}

#[test]
fn damaged_majority_elects_only_the_intact_member() {
    let mut net = net();
    let end = net.node(3).disk.end();
    net.crash(3);
    damage(&mut net, 1, 3);
    damage(&mut net, 2, 8);
    net.run(50 * ELECTION);
    assert_eq!(net.leader(), None, "nobody has what they had");
    assert_eq!([net.raft(1).former_end(), net.raft(2).former_end()], [Some(end); 2]);
    assert_eq!((net.raft(1).last_index(), net.raft(2).last_index()), (3, 8));

    net.restart(3);
    net.run(50 * ELECTION);
    assert_eq!(net.leader(), Some(3));
    for n in 1..=3 {
        assert_eq!((net.raft(n).former_end(), net.node(n).disk.former_end), (None, None));
        assert_eq!(net.delivered(n).len(), 10, "member {n}");
    }
    // From now on it may lead as any other.
    net.crash(3);
    net.elect(1);
}

#[test]
fn damaged_member_refuses_candidate_that_lacks_its_former_end() {
    let mut net = net();
    net.isolate(3);
    net.propose(1, "on 1 and 2");
    net.settle();
    net.run(2 * ELECTION);
    let end = net.node(2).disk.end();
    damage(&mut net, 2, 5);
    net.crash(1);
    net.heal();
    net.run(50 * ELECTION);
    assert_eq!(net.leader(), None, "3 has more than 2 now, and less than 2 had");
    assert_eq!(net.raft(2).durable().last_index, end.index, "what it owes");

    net.restart(1);
    net.run(50 * ELECTION);
    assert_eq!(net.leader(), Some(1));
    assert_eq!(net.delivered(3).last().unwrap(), "on 1 and 2");
}

/// The leader counts acks of entries that are lost, and would not send them again.
#[test]
fn leader_of_same_term_sends_lost_entries_in_new_term() {
    let mut net = net();
    let term = net.raft(1).term();
    damage(&mut net, 2, 4);
    net.run(50 * ELECTION);
    assert!(net.raft(2).term() > term);
    assert_eq!((net.raft(2).former_end(), net.delivered(2).len()), (None, 10));
}

/// The term of the acks was not on disk yet, so the new term is the leader's.
#[test]
fn leader_sends_lost_entries_again_in_term_of_their_acks() {
    let mut net = net();
    let term = net.raft(1).term();
    net.crash(2);
    net.node(2).disk.lose_end(4);
    net.node(2).disk.vote = Vote { term, voted_for: None };
    let now = net.now;
    net.raft(1).peer_down(now, id(2));
    net.restart(2);
    net.raft(1).peer_up(now, id(2));
    net.run(50 * ELECTION);
    assert_eq!((net.leader(), net.raft(1).term()), (Some(1), term));
    assert_eq!((net.raft(2).former_end(), net.delivered(2).len()), (None, 10));
}

#[test]
fn log_is_whole_once_entries_of_later_term_have_come() {
    let mut net = net();
    damage(&mut net, 2, 4);
    // It had more than the others, who go on without that.
    net.node(2).disk.former_end = Some(LogEnd { term: 1, index: 99 });
    net.crash(2);
    net.restart(2);
    net.run(50 * ELECTION);
    assert_eq!((net.raft(2).former_end(), net.delivered(2).len()), (None, 10));
    assert!(net.raft(2).last_index() < 99);
}

#[test]
fn damaged_member_takes_no_leadership() {
    let mut net = net();
    damage(&mut net, 2, 4);
    net.node(2).disk.former_end = Some(LogEnd { term: 999, index: 99 });
    net.crash(2);
    net.restart(2);
    net.run(50 * ELECTION);
    let leader = net.leader().expect("the others go on");
    assert_eq!(net.raft(2).leader(), Some(id(leader)));
    let term = net.raft(2).term();
    net.deliver(leader, 2, Message::TimeoutNow { term });
    net.drain(2);
    assert_eq!((role(&mut net, 2), net.raft(2).term()), (Role::Follower, term));
    let now = net.now;
    net.raft(leader).transfer_leadership(now, id(2)).unwrap();
    net.run(5 * ELECTION);
    assert_eq!(net.leader(), Some(leader));
}
