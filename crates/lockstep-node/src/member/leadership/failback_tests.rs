use crate::api::Tuning;
use crate::member::harness::Lab;
use crate::member::membership::peers::REJECTED_WRITES_SINCE;
use crate::operator::Command;
use lockstep_core::policy::{Policy, PolicyKind};
use std::time::Duration;

fn tuning() -> Tuning {
    Tuning { apply_timeout: Duration::ZERO, ..Tuning::default() }
}

/// Three members under semisync; the first leads.
fn semisync(tuning: &Tuning) -> Lab {
    under_semisync(Lab::new(3, tuning))
}

fn under_semisync(mut lab: Lab) -> Lab {
    lab.nodes[0].member.request_policy(|policy| *policy = Policy::of(PolicyKind::Semisync));
    lab.until("the policy is in force", 5_000_000, |lab| {
        lab.nodes.iter().all(|node| node.member.ctx.raft.committed_state().policy.is_weak())
    });
    lab.write(0).abandon();
    lab.run(1_000_000);
    assert_eq!(lab.leader(0), Some(0));
    lab
}

/// Cuts the leader off until another is elected, and reconnects it. Returns the new leader.
fn elect(lab: &mut Lab, old: usize) -> usize {
    let witness = (old + 1) % 3;
    lab.cut(old, true);
    lab.until("another one is elected", 20_000_000, |lab| lab.leader(witness).is_some_and(|at| at != old));
    lab.cut(old, false);
    let new = lab.leader(witness).unwrap();
    lab.run(3_000_000);
    assert_eq!(lab.leader(old), Some(new));
    new
}

/// Clients attempt writes on this member for this long.
fn reject_writes_for(lab: &mut Lab, at: usize, ms: u64) {
    for _ in 0..ms / 100 {
        let member = &mut lab.nodes[at].member;
        let refused = member.refused_writes() + 1;
        member.note_refused(refused);
        lab.run(100_000);
    }
}

#[test]
fn unused_elected_leader_returns_leadership() {
    let mut lab = semisync(&tuning());
    let new = elect(&mut lab, 0);
    reject_writes_for(&mut lab, 0, 1500);
    assert_eq!(lab.leader(0), Some(new), "one who tries and goes away is no reason");
    lab.run(5_000_000);
    reject_writes_for(&mut lab, 0, 3500);
    assert_eq!((lab.leader(0), lab.leader(new)), (Some(0), Some(0)));
    assert!(lab.logged("Returning leadership to n1: it is rejecting writes and none arrive here"));
    lab.run(500_000);
    assert_eq!(lab.nodes[0].views.last().unwrap()[0], "n1");
    lab.write(0).abandon();
    lab.run(200_000);
    // Soon again: the return takes longer.
    let again = elect(&mut lab, 0);
    reject_writes_for(&mut lab, 0, 4000);
    let twice = again == new;
    assert_eq!(lab.leader(0), Some(if twice { new } else { 0 }));
    reject_writes_for(&mut lab, 0, 4000);
    assert_eq!(lab.leader(0), Some(0));
}

#[test]
fn used_or_chosen_leader_keeps_leadership() {
    let mut lab = semisync(&tuning());
    let new = elect(&mut lab, 0);
    lab.write(new).abandon();
    reject_writes_for(&mut lab, 0, 20_000);
    assert_eq!(lab.leader(0), Some(new), "its clients have come");

    let mut lab = semisync(&tuning());
    let token = lab.command(0, Command::Switchover { to: "n2".into() });
    assert!(lab.answer(token).ok);
    lab.run(1_000_000);
    reject_writes_for(&mut lab, 0, 20_000);
    assert_eq!(lab.leader(0), Some(1), "an operator wants it there");

    let mut lab = semisync(&Tuning { follow_writer: false, ..tuning() });
    let new = elect(&mut lab, 0);
    reject_writes_for(&mut lab, 0, 20_000);
    assert_eq!(lab.leader(0), Some(new), "it is off");
}

#[test]
fn rejections_on_other_members_keep_leadership() {
    let mut lab = semisync(&tuning());
    let new = elect(&mut lab, 0);
    let third = 3 - new;
    for _ in 0..100 {
        reject_writes_for(&mut lab, 0, 100);
        reject_writes_for(&mut lab, third, 100);
    }
    assert_eq!(lab.leader(0), Some(new));
    reject_writes_for(&mut lab, third, 10_000);
    assert_eq!(lab.leader(0), Some(new));
    reject_writes_for(&mut lab, 0, 4_000);
    assert_eq!(lab.leader(0), Some(0));
}

#[test]
fn failback_does_not_act_under_quorum_policy() {
    let mut lab = semisync(&tuning());
    let new = elect(&mut lab, 0);
    lab.nodes[new].member.request_policy(|policy| *policy = Policy::of(PolicyKind::Quorum));
    lab.run(1_000_000);
    reject_writes_for(&mut lab, 0, 10_000);
    assert_eq!(lab.leader(0), Some(new));
}

#[test]
fn switchover_to_leader_itself_disables_failback() {
    let mut lab = semisync(&tuning());
    let new = elect(&mut lab, 0);
    let token = lab.command(0, Command::Switchover { to: format!("n{}", new + 1) });
    let answer = lab.answer(token);
    assert!(answer.ok && answer.text.contains("leads already"), "{answer:?}");
    reject_writes_for(&mut lab, 0, 20_000);
    assert_eq!(lab.leader(0), Some(new));
}

#[test]
fn failback_ignores_leader_that_left_in_order() {
    let mut lab = semisync(&tuning());
    lab.nodes[0].member.disconnect();
    lab.until("another leads", 20_000_000, |lab| lab.leader(1).is_some_and(|at| at != 0));
    let new = lab.leader(1).unwrap();
    lab.run(5_000_000);
    let state = lab.nodes[new].member.ctx.raft.committed_state();
    let position = lockstep_core::Gtid { uuid: state.history, seqno: state.seqno };
    lab.restart(0, |args| args.position = position);
    lab.cut(0, false);
    lab.run(10_000_000);
    reject_writes_for(&mut lab, 0, 20_000);
    assert_eq!(lab.leader(0), Some(new));
}

#[test]
fn failback_waits_until_all_versions_report_rejections() {
    let mut lab = semisync(&tuning());
    let new = elect(&mut lab, 0);
    let third = 3 - new;
    lab.nodes[third].version = REJECTED_WRITES_SINCE - 1;
    lab.relink(third, 0);
    lab.relink(third, new);
    lab.run(3_000_000);
    reject_writes_for(&mut lab, 0, 20_000);
    assert_eq!(lab.leader(0), Some(new));
}

/// Leadership is lost a second after each return.
#[test]
fn repeated_failback_takes_longer_each_time() {
    // With two members and an arbitrator, the same member returns it each time.
    let mut lab = Lab::new(2, &tuning());
    lab.add(&tuning(), |hello| hello.arbitrator = true);
    lab.until("it votes", 20_000_000, |lab| lab.nodes[0].member.ctx.raft.membership().voters().count() == 3);
    let mut lab = under_semisync(lab);
    let mut waited = Vec::new();
    for _ in 0..6 {
        lab.cut(0, true);
        lab.until("another leads", 20_000_000, |lab| lab.leader(1) == Some(1));
        lab.cut(0, false);
        lab.until("it knows", 20_000_000, |lab| lab.leader(0) == Some(1));
        let began = lab.now;
        while lab.leader(0) != Some(0) {
            reject_writes_for(&mut lab, 0, 100);
            assert!(lab.now < began + 100_000_000, "{waited:?}");
        }
        waited.push((lab.now - began) / 1_000_000);
        lab.run(1_000_000);
    }
    assert!(waited.windows(2).all(|two| two[1] > two[0]), "{waited:?}");
}
