//! Members come, are promoted, and go.

use crate::net::*;
use lockstep_core::members::Role as MemberRole;
use lockstep_core::message::Message;
use lockstep_core::raft::*;
use lockstep_core::*;

fn change(net: &mut Net, leader: usize, membership: members::Membership) -> Result<Index, ChangeError> {
    let now = net.now;
    net.raft(leader).change_membership(now, membership)
}

#[test]
fn voter_change_waits_for_previous_one_to_commit() {
    let mut net = Net::new(3);
    net.add(4, DiskImage::default(), |_| {});
    net.hold = Some(|_, _, m| matches!(m, Message::Append { entries, .. } if !entries.is_empty()));
    net.elect(1);
    assert_eq!(
        change(&mut net, 1, voters(1..=4)),
        Err(ChangeError::TooEarly),
        "nothing of its term is committed"
    );
    assert_eq!(
        change(&mut net, 2, voters(1..=4)).map_err(|e| matches!(e, ChangeError::NotLeader(_))),
        Err(true)
    );
    net.hold = None;
    net.run(2 * HEARTBEAT);
    assert_eq!(change(&mut net, 1, voters([1])), Err(ChangeError::TooMuch));
    assert_eq!(change(&mut net, 1, voters([])), Err(ChangeError::NoVoters));
    let mut twice = voters(1..=3);
    twice.members[2].id = twice.members[1].id;
    assert_eq!(change(&mut net, 1, twice), Err(ChangeError::Malformed));
    change(&mut net, 1, voters(1..=4)).unwrap();
    assert_eq!(net.raft(1).tail_state().membership.majority(), 3, "in force at once");
    assert_eq!(change(&mut net, 1, voters(1..=3)), Err(ChangeError::TooEarly));
    net.settle();
    change(&mut net, 1, voters(1..=3)).unwrap();
    net.settle();
}

#[test]
fn changing_members_too_early_would_be_possible_with_the_fault() {
    let mut net = Net::with(3, |config| config.failpoints = Some(Failpoint::MembershipTooEarly).into());
    net.hold = Some(|_, _, m| matches!(m, Message::Append { entries, .. } if !entries.is_empty()));
    net.elect(1);
    change(&mut net, 1, voters([1, 2])).unwrap();
    change(&mut net, 1, voters([1])).unwrap();
    net.settle();
    assert_eq!(net.raft(1).commit(), net.nodes[&1].raft.last_index(), "alone, against two others");
}

/// A deposed leader's uncommitted change is undone in its log, and the earlier membership is in force again.
#[test]
fn uncommitted_membership_is_rolled_back() {
    let mut net = Net::new(3);
    net.elect(1);
    net.settle();
    net.isolate(1);
    change(&mut net, 1, voters([1, 2])).unwrap();
    net.settle();
    assert!(!net.raft(1).tail_state().membership.is_voter(&id(3)));
    assert_eq!(net.raft(1).commit(), net.nodes[&1].raft.last_index() - 1, "1 alone is no majority of 2");
    net.run(4 * ELECTION);
    let leader = net.leader().unwrap();
    net.propose(leader, "x");
    net.settle();
    net.node(1).outputs.clear();
    net.heal();
    net.run(2 * ELECTION);
    assert!(net.raft(1).tail_state().membership.is_voter(&id(3)));
    let told = net.nodes[&1].outputs.iter().rev().find_map(|output| match output {
        Output::Membership(membership) => Some(membership.clone()),
        _ => None,
    });
    assert_eq!(*told.expect("the node is told"), voters(1..=3));
    assert_eq!(net.delivered(1), ["x"]);
}

#[test]
fn uncommitted_membership_is_in_force_after_restart() {
    let mut net = Net::new(3);
    net.elect(1);
    net.settle();
    net.isolate(1);
    change(&mut net, 1, voters([1, 2])).unwrap();
    net.settle();
    net.crash(1);
    net.restart(1);
    assert_eq!(*net.raft(1).tail_state().membership, voters([1, 2]));
    assert_eq!(*net.raft(1).committed_state().membership, voters(1..=3));
    // It can win with 2 alone, and then the change is committed.
    net.isolate(3);
    net.cut.remove(&(1, 2));
    net.cut.remove(&(2, 1));
    net.run(ELECTION);
    net.elect(1);
    net.run(HEARTBEAT);
    assert_eq!(*net.raft(2).committed_state().membership, voters([1, 2]));
}

#[test]
fn removed_leader_leads_until_removal_commits() {
    let mut net = Net::new(3);
    net.elect(1);
    net.settle();
    net.propose(1, "before");
    change(&mut net, 1, voters([2, 3])).unwrap();
    net.propose(2, "with it");
    net.settle();
    assert_ne!(net.raft(1).role(), Role::Leader);
    let successor = net.leader().expect("somebody was asked to go on");
    assert_ne!(successor, 1);
    net.run(2 * HEARTBEAT);
    assert_eq!(*net.raft(successor).committed_state().membership, voters([2, 3]));
    net.run(10 * ELECTION);
    assert_eq!(net.raft(1).role(), Role::Follower, "it never campaigns again");
    assert!(net.raft(1).term() <= net.nodes[&successor].raft.term());
    net.propose(3, "after");
    net.run(ELECTION);
    assert_eq!(net.texts(), ["before", "with it", "after"]);
}

/// With its own disk and one other it would have 2 of 3; but it is no voter of the membership that it places.
#[test]
fn removed_leader_does_not_count_itself() {
    let mut net = Net::new(3);
    net.elect(1);
    net.settle();
    net.isolate(3);
    change(&mut net, 1, voters([2, 3])).unwrap();
    net.settle();
    let last = net.raft(1).last_index();
    assert_eq!(net.raft(1).commit(), last - 1);
    net.heal();
    net.run(2 * HEARTBEAT);
    assert!(net.raft(2).commit() >= last);
}

#[test]
fn removed_member_is_notified() {
    let mut net = Net::new(3);
    net.elect(1);
    net.settle();
    let at = change(&mut net, 1, voters([1, 2])).unwrap();
    net.settle();
    assert!(net.raft(3).commit() >= at, "it knows that it is out");
    assert_eq!(net.raft(1).progress().len(), 1);
    let term = net.raft(1).term();
    net.run(10 * ELECTION);
    assert_eq!(net.raft(3).role(), Role::Follower);
    assert_eq!(net.raft(1).term(), term);
}

/// Not told, because it was cut off: it must not disturb.
#[test]
fn unnotified_removed_member_does_not_disturb() {
    let mut net = Net::new(3);
    net.elect(1);
    net.settle();
    net.isolate(3);
    change(&mut net, 1, voters([1, 2])).unwrap();
    net.run(20 * ELECTION);
    let term = net.raft(1).term();
    net.heal();
    net.run(10 * ELECTION);
    assert_eq!((net.raft(1).role(), net.raft(1).term()), (Role::Leader, term));
}

#[test]
fn learners_receive_but_do_not_count() {
    let mut net = Net::new(2);
    net.add(3, DiskImage::default(), |_| {});
    net.elect(1);
    net.settle();
    change(&mut net, 1, voters([1, 2]).with(member(3, MemberRole::Learner))).unwrap();
    net.run(ELECTION);
    net.isolate(2);
    net.propose(1, "x");
    net.run(2 * HEARTBEAT);
    let last = net.raft(1).last_index();
    assert_eq!(net.raft(3).last_index(), last);
    assert_eq!(net.raft(1).commit(), last - 1);
    net.crash(1);
    net.heal();
    net.run(10 * ELECTION);
    assert_eq!(net.leader(), None, "a learner neither campaigns nor makes a majority");
    net.restart(1);
    net.run(5 * ELECTION);
    assert_eq!(net.delivered(3), ["x"]);
}

#[test]
fn promoted_learner_counts_for_majority() {
    let mut net = Net::new(1);
    net.elect(1);
    for n in 2..=3 {
        net.add(n, DiskImage::default(), |_| {});
        let now = net.now;
        let all = net.raft(1).tail_state().membership.clone();
        net.raft(1).change_membership(now, all.with(member(n, MemberRole::Learner))).unwrap();
        net.run(ELECTION);
        let now = net.now;
        net.raft(1).change_membership(now, all.with(member(n, MemberRole::Voter))).unwrap();
        net.settle();
    }
    assert_eq!(*net.raft(1).committed_state().membership, voters(1..=3));
    net.crash(1);
    net.propose(3, "x");
    net.run(5 * ELECTION);
    assert_eq!(net.texts(), ["x"]);
}

/// The leader dies before the new voter hears that it is one; its vote is needed all the same.
#[test]
fn voter_unaware_of_its_promotion_still_votes() {
    let mut net = Net::new(1);
    net.elect(1);
    net.add(2, DiskImage::default(), |_| {});
    change(&mut net, 1, voters([1]).with(member(2, MemberRole::Learner))).unwrap();
    net.run(ELECTION);
    net.isolate(2);
    change(&mut net, 1, voters([1, 2])).unwrap();
    net.settle();
    net.crash(1);
    net.heal();
    net.restart(1);
    assert!(!net.raft(2).tail_state().membership.is_voter(&id(2)));
    net.run(6 * ELECTION);
    assert_eq!(net.leader(), Some(1));
    assert_eq!(*net.raft(2).committed_state().membership, voters([1, 2]));
}

/// Taken out while it was cut off, in the middle of its proposals, and taken in again under the same id.
#[test]
fn returning_member_continues_its_proposals() {
    let mut net = Net::new(3);
    net.elect(1);
    net.propose(3, "a");
    net.settle();
    net.isolate(3);
    net.propose(3, "b");
    net.run(2 * ELECTION);
    change(&mut net, 1, voters([1, 2])).unwrap();
    net.run(HEARTBEAT);
    change(&mut net, 1, voters([1, 2]).with(member(3, MemberRole::Learner))).unwrap();
    net.run(HEARTBEAT);
    net.heal();
    net.run(3 * ELECTION);
    net.propose(3, "c");
    net.run(ELECTION);
    assert_eq!(net.texts(), ["a", "b", "c"]);
    assert_eq!(net.delivered(3), ["a", "b", "c"]);
}

/// The leader removes itself from the voters, and dies before another member has that entry. The other member's log is too
/// short to win. So the first member must campaign, although by its own log it does not vote.
#[test]
fn member_removed_by_uncommitted_entry_campaigns() {
    let mut net = Net::new(2);
    net.elect(1);
    net.settle();
    net.isolate(2);
    change(&mut net, 1, voters([2]).with(member(1, MemberRole::Learner))).unwrap();
    net.settle();
    net.crash(1);
    net.heal();
    net.restart(1);
    net.propose(2, "x");
    net.run(8 * ELECTION);
    assert_eq!(net.leader(), Some(2));
    assert_eq!(net.raft(1).role(), Role::Follower);
    assert_eq!(net.delivered(1), ["x"]);
}

/// The same, where the commit index that it kept is older than its promotion: neither the membership there nor the one
/// in force lets it vote. Found by the simulator.
#[test]
fn member_with_old_commit_index_campaigns_if_removal_open() {
    let learner = || voters([2]).with(member(1, MemberRole::Learner));
    let mut net = Net::new(2);
    net.elect(2);
    net.settle();
    change(&mut net, 2, learner()).unwrap();
    net.settle();
    net.run(HEARTBEAT);
    let hint = net.raft(1).commit();
    change(&mut net, 2, voters([1, 2])).unwrap();
    net.settle();
    net.run(HEARTBEAT);
    let now = net.now;
    net.raft(2).transfer_leadership(now, id(1)).unwrap();
    net.run(ELECTION);
    assert_eq!(net.leader(), Some(1));
    net.isolate(2);
    change(&mut net, 1, learner()).unwrap();
    net.settle();
    net.crash(1);
    net.node(1).disk.commit_hint = hint;
    net.heal();
    net.restart(1);
    assert!(!net.raft(1).committed_state().membership.is_voter(&id(1)));
    assert!(!net.raft(1).tail_state().membership.is_voter(&id(1)));
    net.propose(2, "x");
    net.run(8 * ELECTION);
    assert_eq!(net.leader(), Some(2));
    assert_eq!(net.delivered(1), ["x"]);
}
