use super::super::connection_state::ConnectionState;
use super::super::harness::Lab;
use crate::api::{SubmitOutcome, Tuning};
use crate::operator::{Answer, Command};
use lockstep_core::Gtid;
use std::time::Duration;

fn bootstrap(lab: &mut Lab, at: usize) -> Answer {
    let token = lab.command(at, Command::Bootstrap);
    lab.answer(token)
}

fn writes(lab: &mut Lab, at: usize) -> bool {
    let write = lab.write(at);
    lab.run(200_000);
    matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_)))
}

fn primary(lab: &Lab, at: usize) -> bool {
    lab.nodes[at].engine.connection.is_primary()
}

/// Every one for itself.
fn apart(lab: &mut Lab) {
    for at in 0..lab.nodes.len() {
        lab.cut(at, true);
    }
    lab.until("no majority", 10_000_000, |lab| (0..lab.nodes.len()).all(|at| !primary(lab, at)));
}

#[test]
fn a_member_goes_on_alone_by_order_and_the_others_follow_anew() {
    let mut lab = Lab::new(3, &Tuning::default());
    assert!(writes(&mut lab, 1));
    let before = lab.nodes[1].engine.raft.tail_state().clone();
    apart(&mut lab);
    assert!(!writes(&mut lab, 1));
    let answer = bootstrap(&mut lab, 1);
    assert!(answer.ok && answer.text.contains("after ") && answer.text.contains("n1, n3"), "{answer:?}");
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 1));
    assert!(writes(&mut lab, 1));
    let state = lab.nodes[1].engine.raft.committed_state().clone();
    assert_ne!((state.history, state.log_id), (before.history, before.log_id));
    assert!(state.seqno > before.seqno, "its seqnos go on");
    assert_eq!(lab.nodes[1].views.last().unwrap(), &["n2"]);
    // The others cannot go on beside it once they know, and have waited for each other: the one that led may have
    // written what it sent to nobody.
    lab.run(11_000_000);
    lab.cut(1, false);
    lab.run(10_000);
    for at in [0, 2] {
        assert!(matches!(lab.nodes[at].engine.connection, ConnectionState::Failed(_)), "{:#?}", lab.lines);
    }
    assert_eq!(lab.aside, [0, 2]);
    assert!(lab.said("was made to go on alone by an operator"));
    lab.run(3_000_000);
    assert!(primary(&lab, 1) && writes(&mut lab, 1));
    // As new members they are let in.
    for _ in 0..2 {
        lab.add(&Tuning::default(), |_| {});
        lab.cut(0, true);
        lab.cut(2, true);
    }
    lab.until("they vote", 20_000_000, |lab| lab.voters(1).len() == 3);
    assert!(writes(&mut lab, 3) && writes(&mut lab, 4));
    // The branch is one cluster as any other.
    lab.cut(1, true);
    lab.until("the others lead", 10_000_000, |lab| lab.leader(3).is_some_and(|at| at != 1));
    assert!(writes(&mut lab, 3));
}

#[test]
fn two_branches_that_are_both_primary_are_never_mixed() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.cut(2, true);
    lab.until("it is alone", 10_000_000, |lab| !primary(lab, 2));
    let answer = bootstrap(&mut lab, 2);
    assert!(answer.ok, "{answer:?}");
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 2));
    assert!(writes(&mut lab, 0) && writes(&mut lab, 2));
    lab.cut(2, false);
    lab.run(2_000_000);
    assert!(writes(&mut lab, 0) && writes(&mut lab, 1) && writes(&mut lab, 2));
    let history = |lab: &Lab, at: usize| lab.nodes[at].engine.raft.committed_state().history;
    assert_eq!(history(&lab, 0), history(&lab, 1));
    assert_ne!(history(&lab, 0), history(&lab, 2));
    assert!(lab.aside.is_empty(), "who is Primary gives nothing up");
}

#[test]
fn where_a_majority_is_or_somebody_has_more_it_is_refused() {
    let mut lab = Lab::new(4, &Tuning::default());
    // All know that the fourth votes.
    lab.run(1_000_000);
    let answer = bootstrap(&mut lab, 1);
    assert!(!answer.ok && answer.text.contains("in a primary component"), "{answer:?}");
    // n2 misses a write, and is left with n1, which has it.
    lab.cut(1, true);
    assert!(writes(&mut lab, 0));
    apart(&mut lab);
    // Nobody leads any more, so that nobody gives it what it has missed.
    lab.run(3_000_000);
    lab.cut(1, false);
    lab.cut(2, true);
    lab.cut(3, true);
    lab.run(2_000_000);
    let answer = bootstrap(&mut lab, 1);
    assert!(!answer.ok && answer.text.contains("give this command to n1"), "{answer:?}");
    let answer = bootstrap(&mut lab, 0);
    assert!(answer.ok, "{answer:?}");
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 0));
    assert!(writes(&mut lab, 0));
}

/// What a voter and the learner have got, and the other voters not.
#[test]
fn where_only_a_learner_has_more_it_is_refused() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.add(&Tuning::default(), |hello| hello.wants_vote = false);
    lab.run(3_000_000);
    lab.cut(1, true);
    assert!(writes(&mut lab, 0));
    apart(&mut lab);
    lab.run(3_000_000);
    lab.cut(1, false);
    lab.cut(3, false);
    lab.cut(0, true);
    lab.cut(2, true);
    lab.run(2_000_000);
    let answer = bootstrap(&mut lab, 1);
    assert!(!answer.ok && answer.text.contains("give this command to n4"), "{answer:?}");
    let answer = bootstrap(&mut lab, 3);
    assert!(answer.ok, "{answer:?}");
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 3));
    assert!(writes(&mut lab, 3));
}

/// Two replicas, whose primary is gone: neither ever campaigns.
#[test]
fn of_two_learners_the_one_that_has_more_is_promoted() {
    let mut lab = Lab::new(1, &Tuning::default());
    for _ in 0..2 {
        lab.add(&Tuning::default(), |hello| hello.wants_vote = false);
    }
    lab.run(3_000_000);
    assert!(writes(&mut lab, 0));
    lab.cut(1, true);
    assert!(writes(&mut lab, 0));
    lab.cut(1, false);
    lab.cut(0, true);
    lab.until("no majority", 10_000_000, |lab| !primary(lab, 1) && !primary(lab, 2));
    lab.run(3_000_000);
    let answer = bootstrap(&mut lab, 1);
    assert!(!answer.ok && answer.text.contains("give this command to n3"), "{answer:?}");
    let answer = bootstrap(&mut lab, 2);
    assert!(answer.ok, "{answer:?}");
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 2));
    assert!(writes(&mut lab, 2));
}

/// The third goes on alone, the others as they were.
fn forked() -> Lab {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.cut(2, true);
    lab.until("it is alone", 10_000_000, |lab| !primary(lab, 2));
    let answer = bootstrap(&mut lab, 2);
    assert!(answer.ok, "{answer:?}");
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 2));
    lab
}

/// A member of a healthy majority that is started again meets the branch before anybody of its own.
#[test]
fn what_is_committed_beyond_the_fork_is_not_given_up() {
    let mut lab = forked();
    assert!(writes(&mut lab, 0) && writes(&mut lab, 1));
    lab.run(1_000_000);
    lab.cut(1, true);
    lab.restart(1, |_| {});
    lab.cut(2, false);
    for _ in 0..15 {
        lab.run(1_000_000);
        lab.cut(2, false);
        lab.cut(1, true);
        lab.link(1, 2);
    }
    assert!(lab.aside.is_empty(), "{:#?}", lab.lines);
    assert!(lab.said("has committed up to index") && lab.said("gives that up at an operator's order only"));
    lab.cut(1, false);
    lab.until("they are the majority that they were", 10_000_000, |lab| primary(lab, 0) && primary(lab, 1));
    assert!(writes(&mut lab, 0) && writes(&mut lab, 1));
}

/// Whether others have committed it is not known: they are waited for.
#[test]
fn what_may_be_committed_beyond_the_fork_is_given_up_after_a_time() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.run(1_000_000);
    for at in 0..3 {
        lab.cut(at, true);
    }
    let lost = lab.write(0);
    lab.until("no majority", 10_000_000, |lab| (0..3).all(|at| !primary(lab, at)));
    let answer = bootstrap(&mut lab, 2);
    assert!(answer.ok, "{answer:?}");
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 2));
    assert!(!matches!(lost.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))));
    let order = &lab.nodes[0].engine.raft;
    assert!(order.last_index() > order.commit(), "it has what it may have answered for");
    lab.link(0, 2);
    lab.run(10_000);
    assert!(lab.aside.is_empty() && lab.said("it gives way when"), "{:#?}", lab.lines);
    lab.run(11_000_000);
    lab.link(0, 2);
    lab.run(10_000);
    assert_eq!(lab.aside, [0]);
}

#[test]
fn a_joiner_is_of_one_log() {
    let mut lab = forked();
    let members = |lab: &Lab, at: usize| lab.nodes[at].engine.raft.membership().members.len();
    // It meets those of the old one first, and the branch before anything of a log has come.
    lab.add(&Tuning::default(), |_| {});
    assert!(lab.linked(3, 0) && !lab.linked(3, 2));
    lab.until("it votes", 20_000_000, |lab| lab.voters(0).len() == 4);
    assert!(writes(&mut lab, 3) && writes(&mut lab, 2));
    assert_eq!(members(&lab, 2), 1, "it is none of the branch");
    // Two that know each other from before they had logs, and join different ones.
    for _ in 0..2 {
        lab.add(&Tuning::default(), |_| {});
        lab.cut(4, true);
    }
    lab.cut(5, true);
    lab.link(4, 5);
    lab.link(4, 0);
    lab.link(5, 2);
    assert!(lab.linked(4, 5) && lab.linked(4, 0) && lab.linked(5, 2));
    lab.until("both have a log", 10_000_000, |lab| (4..6).all(|at| lab.nodes[at].engine.raft.has_log()));
    lab.run(100_000);
    assert!(!lab.linked(4, 5), "{:#?}", lab.lines);
    assert!(lab.linked(4, 0) && lab.linked(5, 2));
}

/// What it has of the log that it reads is older than the branch: neither does it look left behind to itself, nor to who
/// sends it, and it does not go over to those that were.
#[test]
fn a_joiner_that_loses_the_connection_below_the_fork_reads_on() {
    let mut lab = Lab::new(3, &Tuning::default());
    for _ in 0..40 {
        let write = lab.write_bytes(0, &[b'x'; 200_000]);
        lab.until("it is written", 5_000_000, |_| write.wait_for(Duration::ZERO).is_some());
    }
    let old = lab.nodes[0].engine.raft.tail_state().history;
    apart(&mut lab);
    let answer = bootstrap(&mut lab, 2);
    assert!(answer.ok, "{answer:?}");
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 2));
    lab.add(&Tuning::default(), |_| {});
    lab.cut(3, true);
    lab.link(3, 2);
    let below = |lab: &Lab| {
        let order = &lab.nodes[3].engine.raft;
        order.has_log() && order.tail_state().history == old
    };
    lab.until("it reads", 10_000_000, below);
    while below(&lab) {
        lab.unlink(3, 2);
        lab.run(10_000);
        // Those of before the branch are nothing to it, and it nothing to them.
        lab.link(3, 0);
        assert!(!lab.linked(3, 0), "{:#?}", lab.lines);
        lab.link(3, 2);
        assert!(lab.linked(3, 2), "{:#?}", lab.lines);
        let had = lab.nodes[3].engine.raft.last_index();
        lab.until("it reads on", 10_000_000, |lab| lab.nodes[3].engine.raft.last_index() > had);
    }
    lab.until("it votes", 20_000_000, |lab| lab.voters(2).len() == 2);
    assert!(lab.aside.is_empty(), "{:#?}", lab.lines);
    assert!(writes(&mut lab, 3) && writes(&mut lab, 2));
}

/// What its start waits for is over by the clock before the command comes.
#[test]
fn who_has_waited_for_the_others_for_long_goes_on_alone_all_the_same() {
    for patient in [true, false] {
        let mut lab = Lab::new(3, &Tuning::default());
        let state = lab.nodes[1].engine.raft.committed_state();
        let position = Gtid { uuid: state.history, seqno: state.seqno };
        lab.cut(0, true);
        lab.cut(2, true);
        lab.restart(1, |args| {
            args.position = position;
            args.timeout = Duration::from_secs(30);
            args.waits_for_others = patient;
        });
        lab.run(if patient { 36_000_000 } else { 29_000_000 });
        // Its disk is slow just now.
        lab.nodes[1].disk_hangs = true;
        let token = lab.command(1, Command::Bootstrap);
        lab.run(2_000_000);
        lab.nodes[1].disk_hangs = false;
        let answer = lab.answer(token);
        assert!(answer.ok, "{answer:?}");
        lab.until("it is Primary", 1_000_000, |lab| primary(lab, 1));
        assert!(writes(&mut lab, 1));
    }
}
