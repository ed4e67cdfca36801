use super::super::harness::Lab;
use super::TURNED_AWAY_SINCE;
use crate::api::Tuning;
use crate::operator::Command;
use lockstep_core::policy::{Policy, PolicyKind};
use std::time::Duration;

fn tuning() -> Tuning {
    Tuning { apply_timeout: Duration::ZERO, ..Tuning::default() }
}

/// Three members under semisync, of which the first leads.
fn semisync(tuning: &Tuning) -> Lab {
    under_semisync(Lab::new(3, tuning))
}

fn under_semisync(mut lab: Lab) -> Lab {
    lab.nodes[0].engine.request_policy(|policy| *policy = Policy::of(PolicyKind::Semisync));
    lab.until("the policy is in force", 5_000_000, |lab| {
        lab.nodes.iter().all(|node| node.engine.raft.committed_state().policy.is_weak())
    });
    lab.write(0).abandon();
    lab.run(1_000_000);
    assert_eq!(lab.leader(0), Some(0));
    lab
}

/// The leader is out of reach until another one is elected, and back. Who that is.
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

/// Clients at this member try to write for so long.
fn refused_for(lab: &mut Lab, at: usize, ms: u64) {
    for _ in 0..ms / 100 {
        let engine = &mut lab.nodes[at].engine;
        let refused = engine.failback.refused + 1;
        engine.note_refused(refused);
        lab.run(100_000);
    }
}

#[test]
fn an_elected_leader_that_nobody_writes_to_gives_the_lead_back_to_where_the_clients_are() {
    let mut lab = semisync(&tuning());
    let new = elect(&mut lab, 0);
    refused_for(&mut lab, 0, 1500);
    assert_eq!(lab.leader(0), Some(new), "one who tries and goes away is no reason");
    lab.run(5_000_000);
    refused_for(&mut lab, 0, 3500);
    assert_eq!((lab.leader(0), lab.leader(new)), (Some(0), Some(0)));
    assert!(lab.said("n1, which led before, turns clients away that write, and nobody writes here"));
    lab.run(500_000);
    assert_eq!(lab.nodes[0].views.last().unwrap()[0], "n1");
    lab.write(0).abandon();
    lab.run(200_000);
    // Soon again: not as quickly.
    let again = elect(&mut lab, 0);
    refused_for(&mut lab, 0, 4000);
    let twice = again == new;
    assert_eq!(lab.leader(0), Some(if twice { new } else { 0 }));
    refused_for(&mut lab, 0, 4000);
    assert_eq!(lab.leader(0), Some(0));
}

#[test]
fn a_leader_keeps_the_lead_that_is_written_to_or_was_put_there_or_is_to_follow_nobody() {
    let mut lab = semisync(&tuning());
    let new = elect(&mut lab, 0);
    lab.write(new).abandon();
    refused_for(&mut lab, 0, 20_000);
    assert_eq!(lab.leader(0), Some(new), "its clients have come");

    let mut lab = semisync(&tuning());
    let token = lab.command(0, Command::Switchover { to: "n2".into() });
    assert!(lab.answer(token).ok);
    lab.run(1_000_000);
    refused_for(&mut lab, 0, 20_000);
    assert_eq!(lab.leader(0), Some(1), "an operator wants it there");

    let mut lab = semisync(&Tuning { follow_writer: false, ..tuning() });
    let new = elect(&mut lab, 0);
    refused_for(&mut lab, 0, 20_000);
    assert_eq!(lab.leader(0), Some(new), "it is off");
}

#[test]
fn where_clients_of_two_members_are_turned_away_or_of_one_that_did_not_lead_nothing_moves() {
    let mut lab = semisync(&tuning());
    let new = elect(&mut lab, 0);
    let third = 3 - new;
    for _ in 0..100 {
        refused_for(&mut lab, 0, 100);
        refused_for(&mut lab, third, 100);
    }
    assert_eq!(lab.leader(0), Some(new));
    refused_for(&mut lab, third, 10_000);
    assert_eq!(lab.leader(0), Some(new));
    refused_for(&mut lab, 0, 4_000);
    assert_eq!(lab.leader(0), Some(0));
}

#[test]
fn under_a_policy_that_lets_all_write_nobody_is_turned_away() {
    let mut lab = semisync(&tuning());
    let new = elect(&mut lab, 0);
    lab.nodes[new].engine.request_policy(|policy| *policy = Policy::of(PolicyKind::Quorum));
    lab.run(1_000_000);
    refused_for(&mut lab, 0, 10_000);
    assert_eq!(lab.leader(0), Some(new));
}

#[test]
fn a_command_that_finds_it_leading_keeps_it_there() {
    let mut lab = semisync(&tuning());
    let new = elect(&mut lab, 0);
    let token = lab.command(0, Command::Switchover { to: format!("n{}", new + 1) });
    let answer = lab.answer(token);
    assert!(answer.ok && answer.text.contains("leads already"), "{answer:?}");
    refused_for(&mut lab, 0, 20_000);
    assert_eq!(lab.leader(0), Some(new));
}

#[test]
fn who_has_left_in_order_and_is_back_has_no_right_to_it() {
    let mut lab = semisync(&tuning());
    lab.nodes[0].engine.disconnect();
    lab.until("another leads", 20_000_000, |lab| lab.leader(1).is_some_and(|at| at != 0));
    let new = lab.leader(1).unwrap();
    lab.run(5_000_000);
    let state = lab.nodes[new].engine.raft.committed_state();
    let position = lockstep_core::Gtid { uuid: state.history, seqno: state.seqno };
    lab.restart(0, |args| args.position = position);
    lab.cut(0, false);
    lab.run(10_000_000);
    refused_for(&mut lab, 0, 20_000);
    assert_eq!(lab.leader(0), Some(new));
}

#[test]
fn nothing_moves_while_somebody_is_of_a_version_that_does_not_say_so() {
    let mut lab = semisync(&tuning());
    let new = elect(&mut lab, 0);
    let third = 3 - new;
    lab.nodes[third].version = TURNED_AWAY_SINCE - 1;
    lab.relink(third, 0);
    lab.relink(third, new);
    lab.run(3_000_000);
    refused_for(&mut lab, 0, 20_000);
    assert_eq!(lab.leader(0), Some(new));
}

/// The lead is lost a second after each time that it is given back.
#[test]
fn who_loses_it_again_and_again_waits_longer_each_time() {
    // One and the same gives it back.
    let mut lab = Lab::new(2, &tuning());
    lab.add(&tuning(), |hello| hello.arbitrator = true);
    lab.until("it votes", 20_000_000, |lab| lab.nodes[0].engine.raft.membership().voters().count() == 3);
    let mut lab = under_semisync(lab);
    let mut waited = Vec::new();
    for _ in 0..6 {
        lab.cut(0, true);
        lab.until("another leads", 20_000_000, |lab| lab.leader(1) == Some(1));
        lab.cut(0, false);
        lab.until("it knows", 20_000_000, |lab| lab.leader(0) == Some(1));
        let began = lab.now;
        while lab.leader(0) != Some(0) {
            refused_for(&mut lab, 0, 100);
            assert!(lab.now < began + 100_000_000, "{waited:?}");
        }
        waited.push((lab.now - began) / 1_000_000);
        lab.run(1_000_000);
    }
    assert!(waited.windows(2).all(|two| two[1] > two[0]), "{waited:?}");
}
