//! What happens every day.

use crate::net::*;
use lockstep_core::raft::*;

#[test]
fn elects_replicates_commits_and_restarts() {
    let mut net = Net::new(3);
    net.run(3 * ELECTION);
    let leader = net.leader().expect("somebody is elected");
    for n in 1..=3 {
        net.propose(n, &format!("from {n}"));
    }
    net.settle();
    let mut texts = net.texts();
    texts.sort();
    assert_eq!(texts, ["from 1", "from 2", "from 3"]);
    for n in 1..=3 {
        assert_eq!(net.raft(n).commit(), 4, "member {n}");
        assert_eq!(net.delivered(n), net.texts());
        assert_eq!(net.raft(n).tail_state().seqno, 3);
        assert_eq!(net.raft(n).outstanding(), (0, 0));
        assert!({
            let now = net.now;
            net.raft(n).has_quorum(now)
        });
    }
    for n in 1..=3 {
        net.crash(n);
    }
    for n in 1..=3 {
        net.restart(n);
        assert_eq!(net.raft(n).last_index(), 4);
    }
    net.run(4 * ELECTION);
    let again = net.leader().expect("somebody is elected again");
    assert!(net.raft(again).term() > 1, "{leader} led term 1");
    net.propose(2, "after the restart");
    net.settle();
    assert_eq!(net.texts().len(), 4);
    for n in 1..=3 {
        assert_eq!(net.delivered(n), net.texts());
    }
}

#[test]
fn founder_leads_at_once_and_admits_joiner() {
    let mut net = Net::empty();
    net.add(1, DiskImage::default(), |_| {});
    let now = net.now;
    net.raft(1).bootstrap(now, genesis(voters([1])));
    net.settle();
    assert_eq!(net.raft(1).role(), Role::Leader);
    net.propose(1, "alone");
    net.settle();
    assert_eq!(net.texts(), ["alone"]);

    net.add(2, DiskImage::default(), |_| {});
    let with = voters([1]).with(member(2, lockstep_core::members::Role::Learner));
    net.raft(1).change_membership(now, with).unwrap();
    net.run(ELECTION);
    assert_eq!(net.delivered(2), ["alone"]);
    assert_eq!(net.raft(2).role(), Role::Follower);
    net.raft(1).change_membership(now, voters([1, 2])).unwrap();
    net.settle();
    net.propose(2, "both");
    net.settle();
    assert_eq!(net.delivered(1), ["alone", "both"]);
    assert_eq!(net.delivered(2), ["alone", "both"]);
}
