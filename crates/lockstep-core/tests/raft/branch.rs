//! Going on without the majority, by an operator's order.

use crate::net::*;
use lockstep_core::branch::Branch;
use lockstep_core::members::Role as MemberRole;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::raft::*;
use lockstep_core::{EntryKind, Uuid};

fn branch(net: &mut Net, n: usize) -> Result<(), BranchError> {
    let now = net.now;
    let branch =
        Branch { history: Uuid([0x77; 16]), log_id: Uuid([0x78; 16]), founder: member(n, MemberRole::Voter) };
    let result = net.raft(n).branch(now, &branch);
    net.settle();
    result
}

fn alone(net: &mut Net, n: usize) {
    for other in 1..=3 {
        if other != n {
            net.crash(other);
        }
    }
    net.run(6 * ELECTION);
    assert_ne!(net.raft(n).role(), Role::Leader);
}

#[test]
fn all_that_the_own_log_holds_is_committed_by_it() {
    let mut net = Net::new(3);
    net.elect(1);
    net.propose(1, "everybody has it");
    net.settle();
    assert_eq!(branch(&mut net, 1), Err(BranchError::HasQuorum));
    net.isolate(2);
    net.isolate(3);
    net.propose(1, "only 1 has it");
    net.settle();
    let (commit, last) = (net.raft(1).commit(), net.raft(1).last_index());
    assert!(commit < last);
    alone(&mut net, 1);
    let before = net.raft(1).tail_state().clone();
    assert_eq!(branch(&mut net, 1), Ok(()));
    let state = net.raft(1).committed_state().clone();
    assert_eq!(net.raft(1).role(), Role::Leader);
    assert_eq!(net.raft(1).commit(), net.raft(1).last_index());
    assert!(state.index >= last + 2, "the branch, and the first entry of a term of its own");
    assert_eq!(state.membership.voters().collect::<Vec<_>>(), [id(1)]);
    assert_eq!((state.history, state.log_id), (Uuid([0x77; 16]), Uuid([0x78; 16])));
    assert_eq!(state.seqno, before.seqno, "no seqno is given twice or left out");
    let parent = state.parents[0];
    assert_eq!((parent.history, parent.index, parent.seqno), (before.history, last, before.seqno));
    net.propose(1, "goes on");
    net.settle();
    assert!(net.texts().contains(&"goes on".to_string()));
    // It is the same after a crash.
    net.crash(1);
    net.restart(1);
    net.run(2 * ELECTION);
    assert_eq!(net.raft(1).role(), Role::Leader);
    assert_eq!(net.raft(1).tail_state().parents, [parent]);
}

#[test]
fn under_every_policy_the_founder_goes_on() {
    for kind in [PolicyKind::Quorum, PolicyKind::All, PolicyKind::Semisync, PolicyKind::Async] {
        let mut net = Net::new(3);
        net.elect(1);
        let (now, policy) = (net.now, Policy { acks: 1, max_at_risk: 2, ..Policy::of(kind) });
        net.raft(1).append_control(now, EntryKind::Policy, policy.to_payload()).unwrap();
        net.settle();
        alone(&mut net, 2);
        assert_eq!(branch(&mut net, 2), Ok(()));
        net.run(2 * ELECTION);
        assert_eq!(net.raft(2).role(), Role::Leader, "{kind:?}");
        assert_eq!(net.raft(2).commit(), net.raft(2).last_index(), "{kind:?}");
    }
}

#[test]
fn crash_before_branch_is_durable_keeps_old_branch() {
    let mut net = Net::new(3);
    net.elect(1);
    alone(&mut net, 3);
    net.node(3).slow_disk = true;
    let before = net.raft(3).tail_state().clone();
    assert_eq!(branch(&mut net, 3), Ok(()));
    assert_ne!(net.raft(3).role(), Role::Leader, "nothing is done before it is durable");
    net.crash(3);
    net.node(3).slow_disk = false;
    net.restart(3);
    assert_eq!(net.raft(3).tail_state().history, before.history);
    net.restart(1);
    net.run(6 * ELECTION);
    assert!(net.leader().is_some(), "the majority of before goes on");
}
