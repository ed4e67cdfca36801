use super::super::connection_state::ConnectionState;
use super::super::harness::Lab;
use crate::api::{SubmitOutcome, Tuning};
use crate::submit::Submission;
use lockstep_core::Seqno;
use lockstep_core::policy::{Policy, PolicyKind};
use std::time::Duration;

fn under(kind: PolicyKind) -> Lab {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.nodes[0].engine.request_policy(|wanted| *wanted = Policy::of(kind));
    let kind_of = |lab: &Lab, at: usize| lab.nodes[at].engine.raft.committed_state().policy.kind;
    lab.until("the policy is in force", 5_000_000, |lab| (0..3).all(|at| kind_of(lab, at) == kind));
    lab.run(500_000);
    lab
}

/// The seqno at which the client heard "ok".
fn answered(write: &Submission) -> Option<Seqno> {
    match write.wait_for(Duration::ZERO) {
        Some(SubmitOutcome::Ordered(ordered)) if ordered.pass => Some(ordered.seqno),
        _ => None,
    }
}

/// Whether the others go on without a gap below these, and without the first member.
fn heirs_have(lab: &Lab, last: Seqno) -> bool {
    (1..3).all(|at| {
        let order = &lab.nodes[at].engine.raft;
        let state = order.committed_state();
        state.seqno > last && order.gap_around(last).is_none() && lab.voters(at) == ["n2", "n3"]
    })
}

#[test]
fn who_stops_in_order_takes_nothing_along_that_was_answered_however_narrow_its_line_is() {
    let mut lab = under(PolicyKind::Async);
    // 800 times 50 kB over 32 Mbit/s: that takes 10 s.
    lab.nodes[0].line = Some(4_000);
    let writes: Vec<_> = (0..800).map(|_| lab.write_bytes(0, &[7; 50_000])).collect();
    lab.run(300_000);
    let last = writes.iter().map(|write| answered(write).expect("nobody is waited for")).max().unwrap();
    assert!(lab.nodes[0].engine.at_risk() > 700);
    lab.nodes[0].engine.disconnect();
    lab.until("it has left", 60_000_000, |lab| lab.nodes[0].engine.connection == ConnectionState::Idle);
    lab.run(3_000_000);
    assert!(heirs_have(&lab, last), "{:#?}", lab.lines);
    assert!(lab.said("transactions that were answered are not on the disks of a majority yet"));
    assert!(!lab.said("this member leaves with"));
}

#[test]
fn who_stops_in_order_waits_for_others_that_are_silent_for_some_seconds() {
    let mut lab = under(PolicyKind::Async);
    (lab.nodes[1].frozen, lab.nodes[2].frozen) = (true, true);
    let writes: Vec<_> = (0..20).map(|_| lab.write(0)).collect();
    lab.run(100_000);
    let last = writes.iter().map(|write| answered(write).expect("nobody is waited for")).max().unwrap();
    lab.nodes[0].engine.disconnect();
    lab.run(10_000_000);
    (lab.nodes[1].frozen, lab.nodes[2].frozen) = (false, false);
    lab.until("it has left", 20_000_000, |lab| lab.nodes[0].engine.connection == ConnectionState::Idle);
    lab.run(3_000_000);
    assert!(heirs_have(&lab, last), "{:#?}", lab.lines);
}

#[test]
fn a_stop_waits_for_what_is_at_risk_for_a_minute_at_most_and_says_what_stays_behind() {
    let mut lab = under(PolicyKind::Async);
    (lab.nodes[1].frozen, lab.nodes[2].frozen) = (true, true);
    let write = lab.write(0);
    lab.run(100_000);
    assert!(answered(&write).is_some());
    lab.nodes[0].engine.disconnect();
    lab.until("it has left", 58_000_000, |lab| lab.nodes[0].engine.connection == ConnectionState::Idle);
    assert!(lab.said("this member leaves with 1 transactions that were answered"), "{:#?}", lab.lines);
    // Cut off, it waits only for as long as connections may take to come back.
    let mut lab = under(PolicyKind::Async);
    let write = lab.write(0);
    lab.run(600);
    assert!(answered(&write).is_some());
    lab.cut(0, true);
    lab.nodes[0].engine.disconnect();
    lab.until("it has left", 6_000_000, |lab| lab.nodes[0].engine.connection == ConnectionState::Idle);
    assert!(lab.said("this member leaves with 1 transactions that were answered"), "{:#?}", lab.lines);
}

#[test]
fn where_nothing_is_at_risk_a_stop_takes_no_longer() {
    for kind in [PolicyKind::Quorum, PolicyKind::Async] {
        let mut lab = under(kind);
        let write = lab.write(0);
        lab.run(100_000);
        assert!(answered(&write).is_some());
        (lab.nodes[1].frozen, lab.nodes[2].frozen) = (true, true);
        lab.nodes[0].engine.disconnect();
        lab.until("it has left", 6_000_000, |lab| lab.nodes[0].engine.connection == ConnectionState::Idle);
        assert!(!lab.said("this member leaves with"));
    }
}
