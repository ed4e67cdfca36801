use super::Leave;
use crate::api::{SubmitOutcome, Tuning};
use crate::member::context::ConnectionState;
use crate::member::harness::Lab;
use crate::submit::Submission;
use lockstep_core::Seqno;
use lockstep_core::policy::{Policy, PolicyKind};
use std::time::Duration;

fn under(kind: PolicyKind) -> Lab {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.nodes[0].member.request_policy(|wanted| *wanted = Policy::of(kind));
    let kind_of = |lab: &Lab, at: usize| lab.nodes[at].member.ctx.raft.committed_state().policy.kind;
    lab.until("the policy is in force", 5_000_000, |lab| (0..3).all(|at| kind_of(lab, at) == kind));
    lab.run(500_000);
    lab
}

/// The seqno acknowledged to the client.
fn acknowledged_seqno(write: &Submission) -> Option<Seqno> {
    match write.wait_for(Duration::ZERO) {
        Some(SubmitOutcome::Ordered(ordered)) if ordered.pass => Some(ordered.seqno),
        _ => None,
    }
}

/// Whether the other members' log has no gap below `last`, without the first member.
fn successors_have(lab: &Lab, last: Seqno) -> bool {
    (1..3).all(|at| {
        let order = &lab.nodes[at].member.ctx.raft;
        let state = order.committed_state();
        state.seqno > last && order.gap_around(last).is_none() && lab.voters(at) == ["n2", "n3"]
    })
}

#[test]
fn leave_over_slow_link_loses_no_acknowledged_write() {
    let mut lab = under(PolicyKind::Async);
    // 800 times 50 kB over 32 Mbit/s take 10 s.
    lab.nodes[0].line = Some(4_000);
    let writes: Vec<_> = (0..800).map(|_| lab.write_bytes(0, &[7; 50_000])).collect();
    lab.run(300_000);
    let last =
        writes.iter().map(|write| acknowledged_seqno(write).expect("nobody is waited for")).max().unwrap();
    assert!(lab.nodes[0].member.at_risk() > 700);
    lab.nodes[0].member.disconnect();
    lab.until("it has left", 60_000_000, |lab| {
        *lab.nodes[0].member.ctx.connection() == ConnectionState::Idle
    });
    lab.run(3_000_000);
    assert!(successors_have(&lab, last), "{:#?}", lab.lines);
    assert!(lab.logged("acknowledged transactions are not on the disks of a majority yet"));
    assert!(!lab.logged("this member leaves with"));
}

#[test]
fn leave_waits_for_briefly_silent_members() {
    let mut lab = under(PolicyKind::Async);
    (lab.nodes[1].frozen, lab.nodes[2].frozen) = (true, true);
    let writes: Vec<_> = (0..20).map(|_| lab.write(0)).collect();
    lab.run(100_000);
    let last =
        writes.iter().map(|write| acknowledged_seqno(write).expect("nobody is waited for")).max().unwrap();
    lab.nodes[0].member.disconnect();
    lab.run(10_000_000);
    (lab.nodes[1].frozen, lab.nodes[2].frozen) = (false, false);
    lab.until("it has left", 20_000_000, |lab| {
        *lab.nodes[0].member.ctx.connection() == ConnectionState::Idle
    });
    lab.run(3_000_000);
    assert!(successors_have(&lab, last), "{:#?}", lab.lines);
}

#[test]
fn leave_with_writes_at_risk_is_bounded_and_reported() {
    let mut lab = under(PolicyKind::Async);
    (lab.nodes[1].frozen, lab.nodes[2].frozen) = (true, true);
    let write = lab.write(0);
    lab.run(100_000);
    assert!(acknowledged_seqno(&write).is_some());
    lab.nodes[0].member.disconnect();
    lab.until("it has left", 58_000_000, |lab| {
        *lab.nodes[0].member.ctx.connection() == ConnectionState::Idle
    });
    assert!(lab.logged("this member leaves with 1 acknowledged transactions"), "{:#?}", lab.lines);
    // Cut off, it waits only as long as connections may take to come back.
    let mut lab = under(PolicyKind::Async);
    let write = lab.write(0);
    lab.run(600);
    assert!(acknowledged_seqno(&write).is_some());
    lab.cut(0, true);
    lab.nodes[0].member.disconnect();
    lab.until("it has left", 6_000_000, |lab| *lab.nodes[0].member.ctx.connection() == ConnectionState::Idle);
    assert!(lab.logged("this member leaves with 1 acknowledged transactions"), "{:#?}", lab.lines);
}

#[test]
fn leave_without_writes_at_risk_is_not_delayed() {
    for kind in [PolicyKind::Quorum, PolicyKind::Async] {
        let mut lab = under(kind);
        let write = lab.write(0);
        lab.run(100_000);
        assert!(acknowledged_seqno(&write).is_some());
        (lab.nodes[1].frozen, lab.nodes[2].frozen) = (true, true);
        lab.nodes[0].member.disconnect();
        lab.until("it has left", 6_000_000, |lab| {
            *lab.nodes[0].member.ctx.connection() == ConnectionState::Idle
        });
        assert!(!lab.logged("this member leaves with"));
    }
}

/// One step of a leave of the first member.
fn step(leave: &mut Leave, lab: &mut Lab) -> bool {
    let member = &mut lab.nodes[0].member;
    let own = member.standing();
    leave.step(&mut member.ctx, own)
}

#[test]
fn leave_step_hands_over_before_connections_end() {
    let (mut leave, mut lab) = (Leave::default(), under(PolicyKind::Quorum));
    assert!(!step(&mut leave, &mut lab), "it has not begun");
    assert!(leave.begin(lab.now) && !leave.begin(lab.now), "it begins once");
    assert!(!step(&mut leave, &mut lab));
    assert!(lab.nodes[0].member.ctx.raft.is_transferring_leadership());
    lab.until("another leads", 1_000_000, |lab| lab.leader(0).is_some_and(|at| at != 0));
    assert!(!step(&mut leave, &mut lab), "this member still votes");
    assert!(leave.is_under_way());
}

#[test]
fn leave_step_ends_at_once_for_only_voter() {
    let (mut leave, mut lab) = (Leave::default(), Lab::new(1, &Tuning::default()));
    lab.run(100_000);
    assert!(leave.begin(lab.now));
    assert!(step(&mut leave, &mut lab));
    assert!(!leave.is_under_way() && leave.has_begun(), "until a new connection begins");
    assert!(!step(&mut leave, &mut lab), "it ends once");
    leave.reset();
    assert!(!leave.has_begun());
}

#[test]
fn leave_step_gives_up_on_silent_voters() {
    let (mut leave, mut lab) = (Leave::default(), under(PolicyKind::Quorum));
    (lab.nodes[1].frozen, lab.nodes[2].frozen) = (true, true);
    assert!(leave.begin(lab.now));
    assert!(!step(&mut leave, &mut lab));
    lab.nodes[0].member.ctx.advance(60_000_000);
    assert!(step(&mut leave, &mut lab));
}

#[test]
fn first_reason_of_leave_for_good_counts() {
    let mut leave = Leave::default();
    assert!(!leave.is_for_good());
    leave.give_up("first");
    leave.give_up("second");
    assert!(leave.is_for_good());
    assert_eq!(leave.take_given_up().as_deref(), Some("first"));
    assert!(!leave.is_for_good());
}
