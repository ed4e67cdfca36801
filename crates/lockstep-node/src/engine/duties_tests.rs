use super::super::harness::Lab;
use crate::api::{Outcome, Tuning};
use std::time::Duration;

const EVICT: Duration = Duration::from_secs(5);

fn lab(members: usize) -> Lab {
    Lab::new(members, &Tuning { evict_timeout: EVICT, ..Tuning::default() })
}

fn writes(lab: &mut Lab, at: usize) -> bool {
    let write = lab.write(at);
    lab.run(100_000);
    matches!(write.wait_for(Duration::ZERO), Some(Outcome::Ordered(_)))
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
    assert_eq!(lab.nodes[0].engine.order.membership().members.len(), 5, "they are members still");
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
