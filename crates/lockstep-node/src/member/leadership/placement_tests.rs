use crate::api::{SubmitOutcome, Tuning};
use crate::member::harness::Lab;
use crate::submit::Submission;
use std::time::Duration;

/// Clients' commits here are finished by no server: that must not make the leader step down.
fn tuning() -> Tuning {
    Tuning { apply_timeout: Duration::ZERO, ..Tuning::default() }
}

/// One write every 50 ms on this member, for this long.
fn write_for(lab: &mut Lab, at: usize, seconds: u64) -> Vec<Submission> {
    let mut writes = Vec::new();
    for _ in 0..seconds * 20 {
        writes.push(lab.write(at));
        lab.run(50_000);
    }
    writes
}

fn all_done(writes: &[Submission]) {
    for write in writes {
        assert!(matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))));
    }
}

#[test]
fn leadership_moves_to_writer_unless_option_off() {
    let mut lab = Lab::new(3, &Tuning { follow_writer: false, ..tuning() });
    let before = write_for(&mut lab, 1, 30);
    assert_eq!(lab.leader(1), Some(0), "it is off");
    all_done(&before[..before.len() - 1]);
    let views = lab.nodes[0].views.len();
    for node in &mut lab.nodes {
        node.member.set_tuning(tuning());
    }
    let writes = write_for(&mut lab, 1, 16);
    lab.run(100_000);
    assert_eq!(lab.leader(0), Some(1));
    assert_eq!(lab.leader(2), Some(1));
    assert!(lab.logged("n2 proposes 100 % of all transactions: it is to lead (leader.follow_writer)"));
    assert_eq!(lab.nodes[0].views.len(), views, "a change of leader alone makes no view");
    all_done(&writes);
}

#[test]
fn weak_policy_view_lists_leader_first() {
    let mut lab = Lab::new(3, &tuning());
    write_for(&mut lab, 1, 16);
    assert_eq!(lab.leader(0), Some(1));
    assert_eq!(lab.nodes[0].views.last().unwrap()[0], "n1");
    let member = &mut lab.nodes[0].member;
    member.request_policy(|policy| policy.kind = lockstep_core::policy::PolicyKind::Semisync);
    lab.run(500_000);
    assert_eq!(lab.nodes[0].views.last().unwrap()[0], "n2");
}

/// A leader that was not chosen by a command is moved without a longer rest.
#[test]
fn placement_resumes_after_weak_policy() {
    use lockstep_core::policy::PolicyKind;
    let mut lab = Lab::new(3, &tuning());
    lab.set_policy(|policy| policy.kind = PolicyKind::Semisync);
    lab.run(12_000_000);
    lab.set_policy(|policy| policy.kind = PolicyKind::Quorum);
    let writes = write_for(&mut lab, 1, 8);
    lab.run(100_000);
    assert_eq!(lab.leader(0), Some(1));
    all_done(&writes);
}

#[test]
fn leadership_does_not_move_to_unfit_writer() {
    let mut lab = Lab::new(3, &tuning());
    lab.nodes[1].member.desync();
    write_for(&mut lab, 1, 30);
    assert_eq!(lab.leader(1), Some(0), "desynced");
    lab.nodes[1].member.resync();
    write_for(&mut lab, 1, 8);
    assert_eq!(lab.leader(1), Some(1));
}

#[test]
fn leadership_stays_during_join_and_after_switchover() {
    let mut lab = Lab::new(3, &tuning());
    // A member that is connected but sends no health.
    lab.add(&tuning(), |_| {});
    lab.nodes[3].frozen = true;
    write_for(&mut lab, 1, 30);
    assert_eq!(lab.leader(1), Some(0));
    lab.nodes[3].frozen = false;
    // A Desynced third member does not matter.
    lab.nodes[2].member.desync();
    write_for(&mut lab, 1, 10);
    assert_eq!(lab.leader(1), Some(1));
    let token = lab.command(1, crate::operator::Command::Switchover { to: "n1".into() });
    assert!(lab.answer(token).ok);
    write_for(&mut lab, 1, 30);
    assert_eq!(lab.leader(1), Some(0), "an operator's word counts for a minute");
    write_for(&mut lab, 1, 40);
    assert_eq!(lab.leader(1), Some(1));
}
