//! Memory holds no more than the last 64 MiB of the log: what waits for acknowledgements is waited for beyond that, too.

use super::super::harness::Lab;
use crate::api::{Outcome, Tuning};
use crate::submit::Submission;
use lockstep_core::policy::PolicyKind;
use std::time::Duration;

/// A write of n1's, and then by the member `by` more than memory holds.
fn a_write_and_much_more(lab: &mut Lab, by: usize) -> Submission {
    let first = lab.write(0);
    lab.run(300_000);
    assert!(first.wait_for(Duration::ZERO).is_none(), "it waits");
    let index = lab.nodes[0].engine.feed.next_index();
    let data = vec![7u8; 900_000];
    for _ in 0..80 {
        lab.write_bytes(by, &data);
        lab.run(20_000);
    }
    lab.run(500_000);
    assert!(lab.nodes[0].engine.order.entry(index).is_none(), "it is in memory no more");
    first
}

fn is_answered(write: &Submission) -> bool {
    matches!(write.wait_for(Duration::ZERO), Some(Outcome::Ordered(ordered)) if ordered.pass)
}

#[test]
fn semisync_waits_for_acknowledgements_however_much_comes_after() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.set_policy(|policy| (policy.kind, policy.acks) = (PolicyKind::Semisync, 2));
    lab.nodes[2].frozen = true;
    let first = a_write_and_much_more(&mut lab, 0);
    assert!(first.wait_for(Duration::ZERO).is_none(), "one of two is there");
    lab.nodes[2].frozen = false;
    lab.until("it is answered once the other one is", 20_000_000, |_| is_answered(&first));
}

#[test]
fn a_zone_is_waited_for_however_much_comes_after() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.set_policy(|policy| policy.zone_acks = 1);
    let first = a_write_and_much_more(&mut lab, 2);
    assert!(first.wait_for(Duration::ZERO).is_none(), "there is no other zone");
    lab.nodes[1].engine.wish_for_policy(|policy| policy.zone_acks = 0);
    lab.until("it is answered once no zone is asked for", 20_000_000, |_| is_answered(&first));
}

/// Its own disk is a majority, so that all is committed at once; and nobody else has any of it.
#[test]
fn who_votes_alone_waits_for_a_replica_however_much_comes_after() {
    let tuning = Tuning::default();
    let mut lab = Lab::new(1, &tuning);
    for _ in 0..2 {
        lab.add(&tuning, |hello| hello.wants_vote = false);
    }
    lab.until("they are shown", 20_000_000, |lab| lab.nodes[0].views.last().is_some_and(|v| v.len() == 3));
    lab.run(2_000_000);
    lab.set_policy(|policy| policy.kind = PolicyKind::Semisync);
    (lab.nodes[1].frozen, lab.nodes[2].frozen) = (true, true);
    let first = a_write_and_much_more(&mut lab, 0);
    assert!(first.wait_for(Duration::ZERO).is_none(), "nobody else has it");
    assert_eq!(lab.nodes[0].engine.commits.yes, 0);
}
