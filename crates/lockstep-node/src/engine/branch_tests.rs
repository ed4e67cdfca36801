use super::super::harness::Lab;
use super::super::phase::Phase;
use crate::api::{Outcome, Tuning};
use crate::operator::{Answer, Command};
use std::time::Duration;

fn bootstrap(lab: &mut Lab, at: usize) -> Answer {
    let token = lab.command(at, Command::Bootstrap);
    lab.answer(token)
}

fn writes(lab: &mut Lab, at: usize) -> bool {
    let write = lab.write(at);
    lab.run(200_000);
    matches!(write.wait_for(Duration::ZERO), Some(Outcome::Ordered(_)))
}

fn primary(lab: &Lab, at: usize) -> bool {
    lab.nodes[at].engine.phase.is_primary()
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
    let before = lab.nodes[1].engine.order.tail_state().clone();
    apart(&mut lab);
    assert!(!writes(&mut lab, 1));
    let answer = bootstrap(&mut lab, 1);
    assert!(answer.ok && answer.text.contains("after ") && answer.text.contains("n1, n3"), "{answer:?}");
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 1));
    assert!(writes(&mut lab, 1));
    let state = lab.nodes[1].engine.order.committed_state().clone();
    assert_ne!((state.history, state.log_id), (before.history, before.log_id));
    assert!(state.seqno > before.seqno, "its seqnos go on");
    assert_eq!(lab.nodes[1].views.last().unwrap(), &["n2"]);
    // The others cannot go on beside it once they know.
    lab.cut(1, false);
    lab.run(10_000);
    for at in [0, 2] {
        assert!(matches!(lab.nodes[at].engine.phase, Phase::Failed(_)), "{:#?}", lab.lines);
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
    let history = |lab: &Lab, at: usize| lab.nodes[at].engine.order.committed_state().history;
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
