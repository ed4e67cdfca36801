use super::super::harness::Lab;
use crate::api::{SubmitOutcome, Tuning};
use crate::submit::Submission;
use std::time::Duration;

/// What these members' own clients commit is finished by nobody here: no reason to step down.
fn tuning() -> Tuning {
    Tuning { apply_timeout: Duration::ZERO, ..Tuning::default() }
}

/// A write of this member every 50 ms, for so long.
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
fn leadership_moves_to_the_writer_without_a_view_or_a_loss_and_not_when_that_is_off() {
    let mut lab = Lab::new(3, &Tuning { follow_writer: false, ..tuning() });
    let before = write_for(&mut lab, 1, 30);
    assert_eq!(lab.leader(1), Some(0), "it is off");
    all_done(&before[..before.len() - 1]);
    let views = lab.nodes[0].views.len();
    for node in &mut lab.nodes {
        node.engine.set_tuning(tuning());
    }
    let writes = write_for(&mut lab, 1, 16);
    lab.run(100_000);
    assert_eq!(lab.leader(0), Some(1));
    assert_eq!(lab.leader(2), Some(1));
    assert!(lab.said("n2 proposes 100 % of all transactions: it is to lead (leader.follow_writer)"));
    assert_eq!(lab.nodes[0].views.len(), views, "a change of leader alone makes no view");
    all_done(&writes);
}

#[test]
fn where_only_the_leader_may_write_a_view_lists_it_first() {
    let mut lab = Lab::new(3, &tuning());
    write_for(&mut lab, 1, 16);
    assert_eq!(lab.leader(0), Some(1));
    assert_eq!(lab.nodes[0].views.last().unwrap()[0], "n1");
    let engine = &mut lab.nodes[0].engine;
    engine.request_policy(|policy| policy.kind = lockstep_core::policy::PolicyKind::Semisync);
    lab.run(500_000);
    assert_eq!(lab.nodes[0].views.last().unwrap()[0], "n2");
}

/// A leader that nobody has put there by a command rests no longer for that.
#[test]
fn after_a_policy_under_which_only_the_leader_writes_the_writer_is_followed_as_before() {
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
fn a_writer_whose_server_is_not_fit_is_not_followed() {
    let mut lab = Lab::new(3, &tuning());
    lab.nodes[1].engine.desync();
    write_for(&mut lab, 1, 30);
    assert_eq!(lab.leader(1), Some(0), "desynced");
    lab.nodes[1].engine.resync();
    write_for(&mut lab, 1, 8);
    assert_eq!(lab.leader(1), Some(1));
}

#[test]
fn leadership_stays_while_a_member_joins_and_where_an_operator_put_it() {
    let mut lab = Lab::new(3, &tuning());
    // One that is connected, and says nothing of how far it is.
    lab.add(&tuning(), |_| {});
    lab.nodes[3].frozen = true;
    write_for(&mut lab, 1, 30);
    assert_eq!(lab.leader(1), Some(0));
    lab.nodes[3].frozen = false;
    // A desynced third member is no reason.
    lab.nodes[2].engine.desync();
    write_for(&mut lab, 1, 10);
    assert_eq!(lab.leader(1), Some(1));
    let token = lab.command(1, crate::operator::Command::Switchover { to: "n1".into() });
    assert!(lab.answer(token).ok);
    write_for(&mut lab, 1, 30);
    assert_eq!(lab.leader(1), Some(0), "an operator's word counts for a minute");
    write_for(&mut lab, 1, 40);
    assert_eq!(lab.leader(1), Some(1));
}
