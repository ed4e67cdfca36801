use crate::api::{LocalState, SubmitOutcome, Tuning};
use crate::member::context::ConnectionState;
use crate::member::harness::Lab;
use crate::operator::Command;
use lockstep_core::Micros;
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
fn five_voters_evict_two_dead_but_three_keep_all() {
    let mut lab = lab(5);
    // Demoting one voter alone would not lower the majority: it stays, however long it is away.
    lab.cut(4, true);
    lab.run(12_000_000);
    assert_eq!(lab.voters(0).len(), 5);
    lab.cut(3, true);
    lab.run(4_000_000);
    assert_eq!(lab.voters(0).len(), 5, "not before the time");
    lab.until("both are taken out", 3_000_000, |lab| lab.voters(0) == ["n1", "n2", "n3"]);
    assert_eq!(lab.nodes[0].member.ctx.raft.membership().members.len(), 5, "they are members still");
    // Now another one may be demoted.
    lab.cut(2, true);
    lab.run(500_000);
    assert!(writes(&mut lab, 1));
    lab.run(20_000_000);
    assert_eq!(lab.voters(0), ["n1", "n2", "n3"]);
    // Back again: learners until they have caught up, and then voters.
    lab.cut(3, false);
    lab.until("it votes again", 5_000_000, |lab| lab.voters(0) == ["n1", "n2", "n3", "n4"]);
    assert!(lab.logged("n4 has caught up and votes from now on"));
}

#[test]
fn four_voters_evict_one_dead() {
    let mut lab = lab(4);
    lab.cut(1, true);
    lab.until("it is taken out", 8_000_000, |lab| lab.voters(0) == ["n1", "n3", "n4"]);
    assert!(lab.logged("n2 has been gone for more than 5 s: it votes no more until it is back"));
    lab.cut(1, false);
    lab.until("it votes again", 5_000_000, |lab| lab.voters(0).len() == 4);
}

#[test]
fn frozen_voter_is_evicted_only_after_disconnect() {
    let mut lab = lab(4);
    lab.nodes[3].frozen = true;
    lab.run(3_000_000);
    lab.nodes[3].frozen = false;
    lab.run(6_000_000);
    assert_eq!(lab.voters(0).len(), 4);
    assert!(writes(&mut lab, 3));
}

/// The member is stopped in good order.
fn stop(lab: &mut Lab, at: usize) {
    lab.nodes[at].member.disconnect();
    lab.until("it has left", 2_000_000, |lab| {
        *lab.nodes[at].member.ctx.connection() == ConnectionState::Idle
    });
    lab.cut(at, true);
    lab.run(100_000);
}

#[test]
fn leave_while_a_voter_is_away_keeps_all_votes() {
    let mut lab = lab(3);
    lab.cut(2, true);
    lab.run(1_000_000);
    assert!(writes(&mut lab, 0));
    stop(&mut lab, 1);
    assert_eq!(lab.voters(0).len(), 3);
    assert!(lab.logged("this member keeps its vote while it is away"), "{:?}", lab.lines);
    assert!(lab.logged("writes wait until enough of these members are back: n2, n3"), "{:?}", lab.lines);
    let write = lab.write(0);
    lab.run(20_000_000);
    let acknowledged = matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_)));
    assert!(!acknowledged, "one disk of three is no majority");
    // Either of the two is enough.
    lab.cut(2, false);
    lab.until("one of them leads", 10_000_000, |lab| lab.leader(0).is_some());
    lab.run(1_000_000);
    assert!(writes(&mut lab, 0));
    assert_eq!(lab.voters(0).len(), 3);
}

#[test]
fn leave_of_leader_while_a_voter_is_away_keeps_all_votes() {
    let mut lab = lab(3);
    lab.cut(2, true);
    lab.run(1_000_000);
    stop(&mut lab, 0);
    assert_eq!(lab.voters(1).len(), 3);
    lab.run(10_000_000);
    assert!(!writes(&mut lab, 1));
    lab.cut(2, false);
    lab.until("another leads", 10_000_000, |lab| lab.leader(1).is_some_and(|at| at != 0));
    lab.run(1_000_000);
    assert!(writes(&mut lab, 1));
}

#[test]
fn leave_demotes_voter_that_was_away_for_long() {
    let mut lab = lab(3);
    lab.cut(2, true);
    lab.run(6_000_000);
    assert_eq!(lab.voters(0).len(), 3);
    lab.nodes[1].member.disconnect();
    lab.until("n1 votes alone", 2_000_000, |lab| lab.voters(0) == ["n1"]);
    assert!(
        lab.logged("n3 has been gone for more than 5 s and n2 leaves: n3 votes no more until it is back")
    );
    assert!(writes(&mut lab, 0));
}

#[test]
fn members_stopped_in_turn_leave_one_voter() {
    let mut lab = lab(3);
    stop(&mut lab, 0);
    stop(&mut lab, 2);
    assert_eq!(lab.voters(1), ["n2"]);
    assert!(writes(&mut lab, 1));
}

#[test]
fn copied_name_keeps_vote_of_briefly_absent_member() {
    let tuning = Tuning { evict_timeout: EVICT, ..Tuning::default() };
    let mut lab = lab(3);
    lab.cut(1, true);
    lab.run(1_000_000);
    // Another server, with the configuration file of the restarting one.
    lab.add(&tuning, |hello| hello.name = "n2".into());
    lab.cut(1, true);
    lab.run(2_000_000);
    let away = lab.id(1);
    assert!(lab.nodes[0].member.ctx.raft.membership().is_voter(&away), "{:?}", lab.lines);
    assert!(lab.logged("a member of the same name at 10.0.0.2:4567 is away"), "{:?}", lab.lines);
    assert_eq!(lab.voters(0).len(), 3, "nor does it vote beside it yet");
    // The old one is back, so there are two servers.
    lab.cut(1, false);
    lab.until("all vote", 3_000_000, |lab| lab.voters(0).len() == 4);
    lab.run(1_000_000);
    assert!(writes(&mut lab, 1) && writes(&mut lab, 3));
}

#[test]
fn moved_member_without_log_votes_after_eviction() {
    let tuning = Tuning { evict_timeout: EVICT, ..Tuning::default() };
    let mut lab = lab(3);
    lab.cut(1, true);
    let away = lab.id(1);
    lab.run(1_000_000);
    lab.add(&tuning, |hello| hello.name = "n2".into());
    lab.cut(1, true);
    let new = lab.id(3);
    lab.until("it votes in the place of the old one", 6_000_000, |lab| {
        let membership = lab.nodes[0].member.ctx.raft.membership();
        membership.is_voter(&new) && !membership.is_voter(&away)
    });
    assert!(lab.logged("n2 (10.0.0.2:4567) has been gone for more than 5 s"));
    assert_eq!(lab.voters(0).len(), 3);
    // At the old address there is no doubt.
    lab.cut(2, true);
    lab.add(&tuning, |hello| {
        hello.name = "n3".into();
        hello.address = "10.0.0.3:4567".into();
    });
    lab.cut(1, true);
    lab.cut(2, true);
    let (old, new) = (lab.id(2), lab.id(4));
    lab.until("it votes at once", 2_000_000, |lab| lab.nodes[0].member.ctx.raft.membership().is_voter(&new));
    assert!(lab.nodes[0].member.ctx.raft.membership().get(&old).is_none());
}

/// Under semisync, where only the leader's server may write. n3's server is in a long state transfer, and n3 votes all
/// the while.
fn lab_with_joining_member() -> Lab {
    let mut lab = lab(3);
    lab.set_policy(|policy| policy.kind = PolicyKind::Semisync);
    assert!(writes(&mut lab, 0));
    lab.nodes[2].copy_takes_long = true;
    lab.restart(2, |_| {});
    lab.until("n3 is there without its data", 20_000_000, |lab| {
        lab.nodes[2].member.local_state() == LocalState::Joining
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
fn stopping_leader_hands_over_to_member_with_data() {
    let mut lab = lab_with_joining_member();
    lab.nodes[0].member.disconnect();
    assert!(n2_leads_and_writes(&mut lab));
}

#[test]
fn lost_leader_is_succeeded_by_member_with_data() {
    for at in 0..12 {
        let mut lab = lab_with_joining_member();
        lab.run(777_000 + at * 37_500);
        lab.cut(0, true);
        assert!(n2_leads_and_writes(&mut lab), "{at}");
    }
}

#[test]
fn switchover_to_joining_member_is_refused() {
    let mut lab = lab_with_joining_member();
    let token = lab.command(0, Command::Switchover { to: "n3".into() });
    let answer = lab.answer(token);
    assert!(!answer.ok && answer.text.contains("n3 is Joining: its server waits for its data"), "{answer:?}");
    assert!(writes(&mut lab, 0));
}

/// How long a commit under `all` is not answered after the third member is lost.
fn wait_for_lost_member(lose: impl Fn(&mut Lab)) -> Micros {
    let mut lab = lab(3);
    lab.set_policy(|policy| policy.kind = PolicyKind::All);
    assert!(writes(&mut lab, 0));
    lose(&mut lab);
    let (began, write) = (lab.now, lab.write(0));
    lab.until("it is answered", 10_000_000, |_| write.wait_for(Duration::ZERO).is_some());
    lab.now - began
}

#[test]
fn commit_under_all_waits_until_member_is_out_of_view() {
    let disconnected = wait_for_lost_member(|lab| lab.cut(2, true));
    assert!((250_000..300_000).contains(&disconnected), "{disconnected}");
    let timeout = lab(3).nodes[0].member.ctx.raft.election_timeout();
    let silent = wait_for_lost_member(|lab| lab.nodes[2].frozen = true);
    // Counted from its last answer, which came with the last heartbeat.
    assert!((5 * timeout - 100_000..5 * timeout + 100_000).contains(&silent), "{silent}, {timeout}");
}
