//! Memory holds only the last 64 MiB of the log: commits wait for acks of older entries, too.

use crate::api::{ApplyHold, SubmitOutcome, Tuning};
use crate::member::harness::{Lab, pair};
use crate::submit::Submission;
use lockstep_core::policy::PolicyKind;
use std::time::Duration;

/// One write of n1, then more writes of member `by` than memory holds.
fn a_write_and_much_more(lab: &mut Lab, by: usize) -> Submission {
    let first = lab.write(0);
    lab.run(300_000);
    assert!(first.wait_for(Duration::ZERO).is_none(), "it waits");
    let index = lab.nodes[0].member.delivery.deliverer.next_index();
    let data = vec![7u8; 900_000];
    for _ in 0..80 {
        lab.write_bytes(by, &data);
        lab.run(20_000);
    }
    lab.run(500_000);
    assert!(lab.nodes[0].member.ctx.raft.entry(index).is_none(), "it is in memory no more");
    first
}

fn is_answered(write: &Submission) -> bool {
    matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(ordered)) if ordered.pass)
}

#[test]
fn semisync_waits_for_acks_of_evicted_entries() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.set_policy(|policy| (policy.kind, policy.acks) = (PolicyKind::Semisync, 2));
    lab.nodes[2].frozen = true;
    let first = a_write_and_much_more(&mut lab, 0);
    assert!(first.wait_for(Duration::ZERO).is_none(), "one of two is there");
    lab.nodes[2].frozen = false;
    lab.until("it is answered once the other one is", 20_000_000, |_| is_answered(&first));
}

#[test]
fn zone_acks_are_awaited_for_evicted_entries() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.set_policy(|policy| policy.zone_acks = 1);
    let first = a_write_and_much_more(&mut lab, 2);
    assert!(first.wait_for(Duration::ZERO).is_none(), "there is no other zone");
    lab.nodes[1].member.request_policy(|policy| policy.zone_acks = 0);
    lab.until("it is answered once no zone is asked for", 20_000_000, |_| is_answered(&first));
}

/// n1's own disk is a majority, so all is committed at once; no other member has any of it.
#[test]
fn single_voter_waits_for_replica_acks_of_evicted_entries() {
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
    assert_eq!(lab.nodes[0].member.admin.commits.yes, 0);
}

/// A member that applies late reads old entries from its log, including uncommitted ones. If a new leader then
/// truncates the log, it must not apply those it has read.
#[test]
fn entries_read_before_truncation_are_not_applied() {
    let mut lab = Lab::empty();
    lab.adjust = |config| config.cache_bytes = 16 << 10;
    for _ in 0..5 {
        lab.add(&Tuning::default(), |_| {});
    }
    lab.until("all vote", 20_000_000, |lab| lab.voters(0).len() == 5);
    lab.run(2_000_000);
    let hold = |lab: &mut Lab, paused| {
        let apply_hold = ApplyHold { paused, ..ApplyHold::default() };
        lab.nodes[2].member.set_tuning(Tuning { apply_hold, ..Tuning::default() });
    };
    hold(&mut lab, true);
    let (minority, majority) = ([0, 2], [1, 3, 4]);
    lab.write_bytes(0, b"common");
    lab.run(100_000);
    for (a, b) in minority.iter().flat_map(|a| majority.map(|b| (*a, b))) {
        lab.unlink(a, b);
        lab.severed.insert(pair(a, b));
    }
    for _ in 0..8 {
        lab.write_bytes(0, &[1; 5_000]);
        lab.run(2_000);
    }
    lab.until("the others have a leader", 20_000_000, |lab| {
        lab.leader(1).is_some_and(|leader| majority.contains(&leader))
    });
    let leader = lab.leader(1).unwrap();
    lab.severed.clear();
    for (a, b) in minority.iter().flat_map(|a| majority.map(|b| (*a, b))) {
        lab.link(a, b);
    }
    for _ in 0..30 {
        lab.write_bytes(leader, &[2; 5_000]);
        lab.run(20_000);
    }
    lab.run(2_000_000);
    hold(&mut lab, false);
    lab.run(2_000_000);
    let other = majority.into_iter().find(|at| *at != leader).unwrap();
    assert_eq!(lab.nodes[2].applied, lab.nodes[other].applied);
    assert_eq!(
        lab.nodes[2].applied.len(),
        1 + 30 + 8,
        "the minority's came after, once it had a leader again"
    );
}
