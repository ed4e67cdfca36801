use super::super::harness::Lab;
use super::LARGE_WINDOW;
use crate::api::{SubmitOutcome, Tuning};
use crate::submit::Submission;
use lockstep_core::policy::PolicyKind;
use std::time::Duration;

fn passed(write: &Submission) -> bool {
    matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(ordered)) if ordered.pass)
}

#[test]
fn a_large_write_set_has_its_turn_however_much_is_under_way_of_small_ones() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.nodes[0].engine.request_policy(|policy| policy.kind = PolicyKind::Async);
    lab.run(1_000_000);
    // What comes is as much as the lines take, and there is a backlog from before, larger than all windows.
    lab.nodes[0].line = Some(4_000);
    let small = [7; 100_000];
    for _ in 0..300 {
        lab.write_bytes(0, &small);
    }
    lab.run(100_000);
    let large: Vec<_> = (0..2).map(|n| lab.write_bytes(0, &vec![n; 2 << 20])).collect();
    for _ in 0..100 {
        let write = lab.write_bytes(0, &small);
        lab.run(25_000);
        assert!(passed(&write));
        assert!(lab.nodes[0].engine.raft.outstanding().1 > LARGE_WINDOW, "the load is none");
    }
    assert!(large.iter().all(passed), "small ones went past for 2.5 s");
}

#[test]
fn of_large_write_sets_no_more_than_a_window_is_under_way() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.run(1_000_000);
    for disks_hang in [true, false] {
        (lab.nodes[1].disk_hangs, lab.nodes[2].disk_hangs) = (disks_hang, disks_hang);
        let large = lab.write_bytes(0, &vec![7; 40 << 20]);
        lab.run(300_000);
        let engine = &lab.nodes[0].engine;
        let window = LARGE_WINDOW..LARGE_WINDOW + (3 << 20);
        assert!(
            !disks_hang || window.contains(&engine.raft.outstanding().1),
            "{:?}",
            engine.raft.outstanding()
        );
        (lab.nodes[1].disk_hangs, lab.nodes[2].disk_hangs) = (false, false);
        lab.until("it is committed", 10_000_000, |_| passed(&large));
    }
    let engine = &lab.nodes[0].engine;
    assert_eq!((engine.large_sent.bytes > 0, engine.raft.outstanding()), (false, (0, 0)));
}

/// Whoever asks what a read must see is told the leader's last entry, which may be far from here. Should the leader be lost
/// before it comes, nothing will be in its place for long.
#[test]
fn a_read_does_not_wait_for_what_was_lost_with_the_leader() {
    use lockstep_core::policy::{Policy, PolicyKind};
    let mut lab = Lab::new(3, &Tuning::default());
    lab.nodes[0].engine.request_policy(|policy| *policy = Policy::of(PolicyKind::Async));
    lab.run(1_000_000);
    lab.nodes[0].line = Some(100_000);
    for _ in 0..44 {
        let _write = lab.write_bytes(0, &vec![7; 900_000]);
    }
    lab.run(2_000);
    lab.nodes[2].engine.causal_read(1);
    lab.until("the leader has told where it must see", 20_000_000, |lab| {
        lab.nodes[2].engine.causal.iter().any(|read| read.index.is_some())
    });
    let index = lab.nodes[2].engine.causal[0].index.unwrap();
    assert!(index > lab.nodes[2].engine.raft.last_index(), "it has it already: nothing is shown");
    lab.cut(0, true);
    lab.until("another one leads", 10_000_000, |lab| lab.leader(2).is_some_and(|leader| leader != 0));
    lab.run(2_000_000);
    let order = &lab.nodes[2].engine.raft;
    assert!(
        lab.nodes[2].engine.causal.is_empty(),
        "waits for index {index}; all that there is, up to {}, is committed ({})",
        order.last_index(),
        order.commit()
    );
}

/// Where a line is full for longer than an election timeout, the answer to a read's question takes as long, and is an answer
/// all the same.
#[test]
fn a_read_behind_a_full_line_is_answered() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.nodes[0].engine.request_policy(|policy| policy.kind = PolicyKind::Async);
    lab.run(1_000_000);
    // What comes is as much as the line takes; what waits for it takes about a second.
    lab.nodes[0].line = Some(10_000);
    let small = vec![7; 100_000];
    for _ in 0..100 {
        let _write = lab.write_bytes(0, &small);
    }
    let busy = |lab: &mut Lab| {
        let _write = lab.write_bytes(0, &small);
        lab.run(10_500);
    };
    (0..100).for_each(|_| busy(&mut lab));
    lab.nodes[2].engine.causal_read(1);
    let asked = lab.now;
    let due = lab.nodes[0].engine.raft.last_index();
    while lab.nodes[2].engine.deliverer.next_index() <= due {
        busy(&mut lab);
    }
    let came = lab.now - asked;
    (0..400).for_each(|_| busy(&mut lab));
    assert!(
        lab.nodes[2].engine.causal.is_empty(),
        "all that it was to see came after {} ms; after {} ms it is not answered",
        came / 1000,
        (lab.now - asked) / 1000
    );
}
