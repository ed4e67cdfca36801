//! Damage takes the ends of members' logs, which prove where they had ended.

use crate::api::Tuning;
use crate::member::harness::Lab;
use lockstep_core::Gtid;

/// Three members with some writes, and their position.
fn cluster() -> (Lab, Gtid) {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.run(1_000_000);
    for _ in 0..5 {
        let write = lab.write(0);
        lab.until("it is committed", 5_000_000, |_| write.try_take().is_some());
    }
    lab.run(2_000_000);
    let state = lab.nodes[0].member.ctx.raft.committed_state();
    let position = Gtid { uuid: state.history, seqno: state.seqno };
    (lab, position)
}

fn primary(lab: &Lab, at: usize) -> bool {
    lab.nodes[at].member.ctx.connection().is_primary()
}

#[test]
fn damaged_majority_goes_on_by_log_of_intact_member() {
    let (mut lab, position) = cluster();
    (0..3).for_each(|at| lab.stop(at));
    lab.lines.clear();
    lab.nodes.iter_mut().for_each(|node| node.applied.clear());
    for (at, lost) in [(0, 9), (1, 4)] {
        let mut disk = lab.nodes[at].disk.clone();
        disk.lose_end(lost);
        lab.boot_at(at, disk, 2, position);
    }
    let end = lab.nodes[2].member.ctx.raft.last_index();
    lab.run(20_000_000);
    for at in [0, 1] {
        let member = &lab.nodes[at].member;
        assert!(member.ctx.raft.leader().is_none() && !primary(&lab, at));
        let text = member.waits_for().unwrap_or_default();
        assert!(text.contains(&format!("had ended at index {end}")), "{text}");
        assert!(member.ctx.raft.tail_state().seqno < position.seqno, "its database is ahead of its log");
    }
    let disk = lab.nodes[2].disk.clone();
    lab.boot_at(2, disk, 2, position);
    lab.until("all go on", 20_000_000, |lab| (0..3).all(|at| primary(lab, at)));
    assert!(lab.nodes[2].member.ctx.raft.is_leader());
    let whole = lab.lines.iter().filter(|(_, line)| line.contains("log is whole again")).count();
    assert_eq!(whole, 2, "{:#?}", lab.lines);
    assert!(!lab.logged("the state must be transferred"), "{:#?}", lab.lines);
    let write = lab.write(1);
    lab.until("it is committed", 5_000_000, |_| write.try_take().is_some());
    lab.run(1_000_000);
    for node in &lab.nodes {
        assert!(node.applied.iter().all(|(seqno, _)| *seqno > position.seqno), "it had them");
    }
}

/// The others know what it had acknowledged. Its former end reaches that, or not.
#[test]
fn damaged_log_is_reverted_only_if_its_former_end_is() {
    for is_reverted in [false, true] {
        let (mut lab, position) = cluster();
        let mut disk = lab.nodes[2].disk.clone();
        let write = lab.write(0);
        lab.until("it is committed", 5_000_000, |_| write.try_take().is_some());
        lab.run(2_000_000);
        if !is_reverted {
            disk = lab.nodes[2].disk.clone();
        }
        disk.lose_end(3);
        lab.boot_at(2, disk, 2, position);
        lab.run(3_000_000);
        assert_eq!(lab.quarantined.contains(&2), is_reverted, "{:#?}", lab.lines);
        assert_eq!(primary(&lab, 2), !is_reverted);
    }
}
