use super::super::harness::Lab;
use super::LARGE_WINDOW;
use crate::api::{Outcome, Tuning};
use crate::submit::Submission;
use lockstep_core::policy::PolicyKind;
use std::time::Duration;

fn passed(write: &Submission) -> bool {
    matches!(write.wait_for(Duration::ZERO), Some(Outcome::Ordered(ordered)) if ordered.pass)
}

#[test]
fn a_large_write_set_has_its_turn_however_much_is_under_way_of_small_ones() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.nodes[0].engine.wish_for_policy(|policy| policy.kind = PolicyKind::Async);
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
        assert!(lab.nodes[0].engine.order.outstanding().1 > LARGE_WINDOW, "the load is none");
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
            !disks_hang || window.contains(&engine.order.outstanding().1),
            "{:?}",
            engine.order.outstanding()
        );
        (lab.nodes[1].disk_hangs, lab.nodes[2].disk_hangs) = (false, false);
        lab.until("it is committed", 10_000_000, |_| passed(&large));
    }
    let engine = &lab.nodes[0].engine;
    assert_eq!((engine.large_sent.bytes > 0, engine.order.outstanding()), (false, (0, 0)));
}
