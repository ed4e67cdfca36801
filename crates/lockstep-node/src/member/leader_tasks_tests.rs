use super::super::harness::Lab;
use crate::api::{LocalState, SubmitOutcome, Tuning};
use crate::operator::Command;
use lockstep_core::policy::PolicyKind;
use std::time::Duration;

const EVICT: Duration = Duration::from_secs(5);

fn lab(members: usize) -> Lab {
    Lab::new(members, &Tuning { evict_timeout: EVICT, ..Tuning::default() })
}

fn writes(lab: &mut Lab, at: usize) -> bool {
    let write = lab.write(at);
    lab.run(100_000);
    matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_)))
}

#[test]
fn of_five_voters_two_dead_ones_are_taken_out_and_three_never_become_two() {
    let mut lab = lab(5);
    // One alone would not lower the majority: it stays, however long.
    lab.cut(4, true);
    lab.run(12_000_000);
    assert_eq!(lab.voters(0).len(), 5);
    lab.cut(3, true);
    lab.run(4_000_000);
    assert_eq!(lab.voters(0).len(), 5, "not before the time");
    lab.until("both are taken out", 3_000_000, |lab| lab.voters(0) == ["n1", "n2", "n3"]);
    assert_eq!(lab.nodes[0].engine.raft.membership().members.len(), 5, "they are members still");
    // Now one more may go.
    lab.cut(2, true);
    lab.run(500_000);
    assert!(writes(&mut lab, 1));
    lab.run(20_000_000);
    assert_eq!(lab.voters(0), ["n1", "n2", "n3"]);
    // Back again: as learners, until they have caught up, and then voters.
    lab.cut(3, false);
    lab.until("it votes again", 5_000_000, |lab| lab.voters(0) == ["n1", "n2", "n3", "n4"]);
    assert!(lab.said("n4 has caught up and votes from now on"));
}

#[test]
fn of_four_voters_one_dead_one_is_taken_out() {
    let mut lab = lab(4);
    lab.cut(1, true);
    lab.until("it is taken out", 8_000_000, |lab| lab.voters(0) == ["n1", "n3", "n4"]);
    assert!(lab.said("n2 has been gone for more than 5 s: it votes no more until it is back"));
    lab.cut(1, false);
    lab.until("it votes again", 5_000_000, |lab| lab.voters(0).len() == 4);
}

#[test]
fn who_was_frozen_and_not_cut_off_is_not_taken_out_before_it_is_disconnected() {
    let mut lab = lab(4);
    lab.nodes[3].frozen = true;
    lab.run(3_000_000);
    lab.nodes[3].frozen = false;
    lab.run(6_000_000);
    assert_eq!(lab.voters(0).len(), 4);
    assert!(writes(&mut lab, 3));
}

#[test]
fn a_copied_name_takes_no_vote_from_a_member_that_is_away_for_a_moment() {
    let tuning = Tuning { evict_timeout: EVICT, ..Tuning::default() };
    let mut lab = lab(3);
    lab.cut(1, true);
    lab.run(1_000_000);
    // Another server, with the my.cnf of the one that restarts.
    lab.add(&tuning, |hello| hello.name = "n2".into());
    lab.cut(1, true);
    lab.run(2_000_000);
    let away = lab.id(1);
    assert!(lab.nodes[0].engine.raft.membership().is_voter(&away), "{:?}", lab.lines);
    assert!(lab.said("a member of the same name at 10.0.0.2:4567 is away"), "{:?}", lab.lines);
    assert_eq!(lab.voters(0).len(), 3, "nor does it vote beside it yet");
    // Which is back, so that they are two.
    lab.cut(1, false);
    lab.until("all vote", 3_000_000, |lab| lab.voters(0).len() == 4);
    lab.run(1_000_000);
    assert!(writes(&mut lab, 1) && writes(&mut lab, 3));
}

#[test]
fn who_is_back_without_its_log_at_another_address_votes_when_its_former_self_is_long_gone() {
    let tuning = Tuning { evict_timeout: EVICT, ..Tuning::default() };
    let mut lab = lab(3);
    lab.cut(1, true);
    let away = lab.id(1);
    lab.run(1_000_000);
    lab.add(&tuning, |hello| hello.name = "n2".into());
    lab.cut(1, true);
    let new = lab.id(3);
    lab.until("it votes in the place of the old one", 6_000_000, |lab| {
        let membership = lab.nodes[0].engine.raft.membership();
        membership.is_voter(&new) && !membership.is_voter(&away)
    });
    assert!(lab.said("n2 (10.0.0.2:4567) has been gone for more than 5 s"));
    assert_eq!(lab.voters(0).len(), 3);
    // At its own address there is no doubt.
    lab.cut(2, true);
    lab.add(&tuning, |hello| {
        hello.name = "n3".into();
        hello.address = "10.0.0.3:4567".into();
    });
    lab.cut(1, true);
    lab.cut(2, true);
    let (old, new) = (lab.id(2), lab.id(4));
    lab.until("it votes at once", 2_000_000, |lab| lab.nodes[0].engine.raft.membership().is_voter(&new));
    assert!(lab.nodes[0].engine.raft.membership().get(&old).is_none());
}

/// Under semisync, where only the leader's server may write; n3's server takes a copy, which takes long, and votes all the
/// while.
fn one_takes_a_copy() -> Lab {
    let mut lab = lab(3);
    lab.set_policy(|policy| policy.kind = PolicyKind::Semisync);
    assert!(writes(&mut lab, 0));
    lab.nodes[2].copy_takes_long = true;
    lab.restart(2, |_| {});
    lab.until("n3 is there without its data", 20_000_000, |lab| {
        lab.nodes[2].engine.local_state() == LocalState::Joining
            && lab.nodes[0].views.last().is_some_and(|view| view.len() == 3)
    });
    lab.run(2_000_000);
    assert!(writes(&mut lab, 0));
    lab
}

fn n2_leads_and_writes(lab: &mut Lab) -> bool {
    lab.run(60_000_000);
    lab.leader(1) == Some(1) && writes(lab, 1)
}

#[test]
fn who_stops_hands_over_to_one_with_data() {
    let mut lab = one_takes_a_copy();
    lab.nodes[0].engine.disconnect();
    assert!(n2_leads_and_writes(&mut lab));
}

#[test]
fn who_is_lost_is_followed_by_one_with_data_whoever_is_elected() {
    for at in 0..12 {
        let mut lab = one_takes_a_copy();
        lab.run(777_000 + at * 37_500);
        lab.cut(0, true);
        assert!(n2_leads_and_writes(&mut lab), "{at}");
    }
}

#[test]
fn nobody_is_switched_over_to_that_has_no_data() {
    let mut lab = one_takes_a_copy();
    let token = lab.command(0, Command::Switchover { to: "n3".into() });
    let answer = lab.answer(token);
    assert!(!answer.ok && answer.text.contains("n3 is Joining: its server waits for its data"), "{answer:?}");
    assert!(writes(&mut lab, 0));
}
