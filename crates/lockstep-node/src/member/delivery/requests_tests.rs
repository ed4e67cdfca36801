use crate::api::{SubmitOutcome, Tuning};
use crate::member::delivery::submissions::LARGE_WINDOW;
use crate::member::harness::Lab;
use crate::submit::Submission;
use lockstep_core::policy::PolicyKind;
use std::time::Duration;

fn passed(write: &Submission) -> bool {
    matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(ordered)) if ordered.pass)
}

#[test]
fn large_write_set_is_not_starved_by_small_ones() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.nodes[0].member.request_policy(|policy| policy.kind = PolicyKind::Async);
    lab.run(1_000_000);
    // Small writes fill the links, and the backlog from before is larger than all windows.
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
        assert!(lab.nodes[0].member.ctx.raft.outstanding().1 > LARGE_WINDOW, "the load is none");
    }
    assert!(large.iter().all(passed), "small ones went past for 2.5 s");
}

#[test]
fn large_write_sets_under_way_are_bounded_by_window() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.run(1_000_000);
    for disks_hang in [true, false] {
        (lab.nodes[1].disk_hangs, lab.nodes[2].disk_hangs) = (disks_hang, disks_hang);
        let large = lab.write_bytes(0, &vec![7; 40 << 20]);
        lab.run(300_000);
        let member = &lab.nodes[0].member;
        let window = LARGE_WINDOW..LARGE_WINDOW + (3 << 20);
        assert!(
            !disks_hang || window.contains(&member.ctx.raft.outstanding().1),
            "{:?}",
            member.ctx.raft.outstanding()
        );
        (lab.nodes[1].disk_hangs, lab.nodes[2].disk_hangs) = (false, false);
        lab.until("it is committed", 10_000_000, |_| passed(&large));
    }
    let member = &lab.nodes[0].member;
    assert_eq!(
        (member.delivery.submissions.large_bytes_in_flight() > 0, member.ctx.raft.outstanding()),
        (false, (0, 0))
    );
}

/// The read index is the leader's last entry, which may not arrive for long. If the leader is lost first, no entry
/// reaches that index for a long time.
#[test]
fn causal_read_survives_loss_of_leader_and_its_index() {
    use lockstep_core::policy::{Policy, PolicyKind};
    let mut lab = Lab::new(3, &Tuning::default());
    lab.nodes[0].member.request_policy(|policy| *policy = Policy::of(PolicyKind::Async));
    lab.run(1_000_000);
    lab.nodes[0].line = Some(100_000);
    for _ in 0..44 {
        let _write = lab.write_bytes(0, &vec![7; 900_000]);
    }
    lab.run(2_000);
    lab.nodes[2].member.causal_read(1);
    lab.until("the leader has told where it must see", 20_000_000, |lab| {
        lab.nodes[2].member.delivery.causal_reads.first_index().is_some()
    });
    let index = lab.nodes[2].member.delivery.causal_reads.first_index().unwrap();
    assert!(index > lab.nodes[2].member.ctx.raft.last_index(), "it has it already: nothing is shown");
    lab.cut(0, true);
    lab.until("another one leads", 10_000_000, |lab| lab.leader(2).is_some_and(|leader| leader != 0));
    lab.run(2_000_000);
    let raft = &lab.nodes[2].member.ctx.raft;
    assert!(
        lab.nodes[2].member.delivery.causal_reads.is_empty(),
        "waits for index {index}; all that there is, up to {}, is committed ({})",
        raft.last_index(),
        raft.commit()
    );
}

/// With a link full for longer than an election timeout, the read index takes as long to arrive, and still counts.
#[test]
fn causal_read_over_full_link_is_answered() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.nodes[0].member.request_policy(|policy| policy.kind = PolicyKind::Async);
    lab.run(1_000_000);
    // Writes arrive as fast as the link takes them; the backlog takes about a second.
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
    lab.nodes[2].member.causal_read(1);
    let asked = lab.now;
    let due = lab.nodes[0].member.ctx.raft.last_index();
    while lab.nodes[2].member.delivery.deliverer.next_index() <= due {
        busy(&mut lab);
    }
    let came = lab.now - asked;
    (0..400).for_each(|_| busy(&mut lab));
    assert!(
        lab.nodes[2].member.delivery.causal_reads.is_empty(),
        "all that it was to see came after {} ms; after {} ms it is not answered",
        came / 1000,
        (lab.now - asked) / 1000
    );
}
