//! Two members with a database, and an arbitrator.

use super::harness::Lab;
use crate::api::{SubmitOutcome, Tuning};
use crate::operator::Command;
use std::time::Duration;

/// A lab whose n3 is the arbitrator.
fn lab() -> Lab {
    lab_with(&Tuning::default())
}

fn lab_with(tuning: &Tuning) -> Lab {
    let mut lab = Lab::new(2, tuning);
    lab.add(tuning, |hello| {
        hello.arbitrator = true;
        hello.incoming = String::new();
    });
    lab.until("the arbitrator votes", 5_000_000, |lab| lab.voters(0).len() == 3);
    lab.run(1_000_000);
    lab
}

fn writes(lab: &mut Lab, at: usize) -> bool {
    let write = lab.write(at);
    lab.run(50_000);
    matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_)))
}

#[test]
fn two_members_with_arbitrator_survive_any_loss() {
    let mut lab = lab();
    assert_eq!(lab.nodes[0].views.last().unwrap(), &["n1", "n2", "n3"], "it is in the view, and last");
    assert_eq!(lab.nodes[2].member.local_state(), crate::LocalState::Synced);
    for lost in [0, 1, 2] {
        assert!(writes(&mut lab, 0) && writes(&mut lab, 1));
        lab.cut(lost, true);
        let rest: Vec<usize> = (0..2).filter(|at| *at != lost).collect();
        lab.until("somebody with a database leads", 2_500_000, |lab| {
            let leader = lab.leader(rest[0]);
            leader.is_some_and(|at| at != lost && at != 2)
                && lab.leader(leader.unwrap()) == leader
                && lab.nodes[leader.unwrap()].member.ctx.raft.has_committed_in_term()
        });
        lab.run(600_000);
        for at in &rest {
            assert!(writes(&mut lab, *at), "n{} writes without n{}", at + 1, lost + 1);
        }
        lab.cut(lost, false);
        lab.run(3_000_000);
        assert!(writes(&mut lab, if lost == 2 { 0 } else { lost }), "n{} is back", lost + 1);
        for node in &lab.nodes[..2] {
            assert!(
                node.views.iter().all(|v| v[0] != "n3"),
                "an arbitrator is never first: {:?}",
                node.views
            );
        }
    }
}

#[test]
fn arbitrator_state_is_not_waited_for() {
    let mut lab = lab();
    assert!(lab.nodes[0].member.ctx.somebody_may_confirm(), "n2 may");
    lab.cut(1, true);
    lab.run(1_000_000);
    assert!(!lab.nodes[0].member.ctx.somebody_may_confirm(), "n3 is Synced, and has nothing to give");
}

#[test]
fn arbitrator_with_longest_log_leads_until_caught_up() {
    let mut lab = lab();
    // n2 is away while n1 writes; then n1 is lost, and n2 comes back.
    lab.cut(1, true);
    lab.run(600_000);
    let before: Vec<_> = (0..20).map(|_| lab.write(0)).collect();
    lab.run(100_000);
    assert!(before.iter().all(|w| matches!(w.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_)))));
    let last = lab.nodes[0].member.ctx.raft.commit();
    lab.cut(0, true);
    lab.cut(1, false);
    // Reconnecting n2 also linked n1: n1 stays away.
    lab.cut(0, true);
    lab.until("n2 leads", 4_000_000, |lab| {
        lab.leader(1) == Some(1) && lab.nodes[1].member.ctx.raft.has_committed_in_term()
    });
    assert!(lab.logged("this member leads in term"));
    assert!(lab.lines.iter().any(|(at, line)| *at == 2 && line.starts_with("this member leads")));
    assert!(lab.nodes[1].member.ctx.raft.commit() >= last, "nothing is lost");
    lab.run(1_000_000);
    assert!(writes(&mut lab, 1));
}

#[test]
fn switchover_to_arbitrator_is_refused() {
    let mut lab = lab();
    let token = lab.command(0, Command::Switchover { to: "n3".into() });
    let answer = lab.answer(token);
    assert!(!answer.ok && answer.text.contains("n3 is an arbitrator"), "{answer:?}");
}

#[test]
fn leaving_leader_prefers_database_over_arbitrator() {
    let mut lab = lab();
    // After the leader's orderly stop, the other member with a database leads, not the arbitrator.
    lab.nodes[0].member.disconnect();
    lab.until("n2 leads", 5_000_000, |lab| lab.leader(1) == Some(1));
    lab.run(1_000_000);
    assert!(writes(&mut lab, 1));
    assert!(!lab.lines.iter().any(|(at, line)| *at == 2 && line.starts_with("this member leads")));
}

#[test]
fn absent_arbitrator_is_still_listed_as_arbitrator() {
    let mut lab = lab();
    let is = |lab: &Lab| lab.members(0).into_iter().map(|m| (m.role, m.arbitrator)).collect::<Vec<_>>();
    assert_eq!(is(&lab)[1..], [("voter".into(), false), ("arbitrator".into(), true)]);
    lab.nodes[2].member.disconnect();
    lab.until("it votes no more", 2_000_000, |lab| lab.voters(0).len() == 2);
    lab.cut(2, true);
    lab.run(1_000_000);
    assert_eq!(is(&lab)[2], ("learner".into(), true));
    assert!(!lab.members(0)[2].keeps_data() && lab.members(0)[1].keeps_data());
}

/// The snapshot comes before the trim marks from which certification begins.
#[test]
fn arbitrator_continues_from_snapshot_of_trimmed_log() {
    let mut lab = lab_with(&Tuning { segment_bytes: 2 << 10, ..Tuning::default() });
    lab.cut(2, true);
    // Certification may forget what is older than 15 s; the log goes on from the mark before the last.
    for n in 0..160 {
        assert!(writes(&mut lab, n % 2));
        lab.run(450_000);
    }
    let last = lab.nodes[2].member.ctx.raft.last_index();
    for at in 0..2 {
        let first = lab.nodes[at].trim.expect("segments may go").below;
        assert!(first > last + 1, "the arbitrator lacks entries before {first}");
        lab.nodes[at].member.log_trimmed(first, false);
    }
    lab.cut(2, false);
    let runs = |lab: &Lab| {
        let (member, leader) = (&lab.nodes[2].member, &lab.nodes[0].member);
        member.delivery.deliverer.is_running()
            && member.delivery.deliverer.delivered() == leader.delivery.deliverer.delivered()
    };
    lab.until("the arbitrator certifies again", 10_000_000, runs);
    assert!(lab.nodes[2].member.ctx.raft.segment_bases().next().is_some_and(|base| base.index > last));
    assert_eq!(lab.nodes[2].member.failure(), None);
    assert!(writes(&mut lab, 1));
    lab.until("it follows", 1_000_000, runs);
}
