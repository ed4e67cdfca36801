use super::super::harness::Lab;
use super::LONGEST;
use crate::api::{SubmitOutcome, Tuning};
use std::time::Duration;

fn tuning() -> Tuning {
    Tuning {
        disk_timeout: Duration::from_secs(2),
        apply_timeout: Duration::from_secs(4),
        // Some of these write at one member for long.
        follow_writer: false,
        ..Tuning::default()
    }
}

/// A write of each of these members every 50 ms, for so long.
fn write_for(lab: &mut Lab, members: &[usize], seconds: u64) {
    for _ in 0..seconds * 20 {
        for at in members {
            lab.write(*at).abandon();
        }
        lab.run(50_000);
    }
}

#[test]
fn a_leader_whose_disk_hangs_lets_another_lead_and_the_others_go_on() {
    let mut lab = Lab::new(3, &tuning());
    write_for(&mut lab, &[0, 1, 2], 1);
    lab.nodes[0].disk_hangs = true;
    write_for(&mut lab, &[1, 2], 1);
    assert_eq!(lab.leader(1), Some(0), "slow is not hung");
    write_for(&mut lab, &[1, 2], 3);
    let heir = lab.leader(1).expect("somebody leads");
    assert!(heir != 0 && lab.leader(2) == Some(heir));
    assert!(lab.said("this member's disk has not finished a write of the log for 2 s"));
    let views = &lab.nodes[heir].views;
    assert_eq!(views.last().map(|v| v[0].clone()), Some(format!("n{}", heir + 1)), "{views:?}");
    let write = lab.write(3 - heir);
    lab.run(100_000);
    assert!(matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))));
    // It is no candidate while it hangs, and may lead again after.
    write_for(&mut lab, &[1, 2], 10);
    assert!(lab.leader(1) != Some(0));
    lab.nodes[0].disk_hangs = false;
    write_for(&mut lab, &[0, 1, 2], 2);
    assert_eq!(lab.nodes[0].engine.raft.commit(), lab.nodes[1].engine.raft.commit());
}

#[test]
fn a_leader_whose_database_hangs_lets_another_lead() {
    let mut lab = Lab::new(3, &tuning());
    lab.nodes[0].database_hangs = true;
    lab.run(10_000_000);
    assert_eq!(lab.leader(1), Some(0), "it has nothing to do");
    write_for(&mut lab, &[1], 6);
    assert!(lab.leader(1).is_some_and(|leader| leader != 0), "{:?}", lab.lines);
    assert!(lab.said("this member's database has finished nothing for 4 s"));
}

#[test]
fn databases_that_all_stand_still_move_nothing_and_so_does_a_desynced_one() {
    let mut lab = Lab::new(3, &tuning());
    for node in &mut lab.nodes {
        node.database_hangs = true;
    }
    write_for(&mut lab, &[1], 10);
    assert_eq!(lab.leader(1), Some(0), "a long DDL statement stops all alike");
    for node in &mut lab.nodes {
        node.database_hangs = false;
    }
    lab.run(100_000);
    lab.nodes[0].engine.desync();
    lab.nodes[0].database_hangs = true;
    write_for(&mut lab, &[1], 10);
    assert_eq!(lab.leader(1), Some(0), "a backup's lock is meant");
    assert!(!lab.said("should not lead"));
}

#[test]
fn the_election_timeout_follows_the_way_to_the_majority_and_to_the_leader() {
    let mut lab = Lab::new(3, &Tuning::default());
    let timeout = |lab: &mut Lab, at: usize, ways: [u64; 3]| {
        let ids = [lab.id(0), lab.id(1), lab.id(2)];
        for (id, way) in ids.into_iter().zip(ways) {
            lab.nodes[at].engine.measured(id, way);
        }
        lab.run(300_000);
        lab.nodes[at].engine.raft.election_timeout()
    };
    assert_eq!(timeout(&mut lab, 1, [500, 0, 500]), 600_000);
    // The leader is far.
    assert_eq!(timeout(&mut lab, 1, [150_000, 0, 500]), 1_500_000);
    // The leader is near enough, a third is far: nobody waits for that one.
    assert_eq!(timeout(&mut lab, 1, [500, 0, 150_000]), 600_000);
    assert_eq!(timeout(&mut lab, 0, [0, 500, 150_000]), 600_000);
    // It is far from both others.
    assert_eq!(timeout(&mut lab, 0, [0, 100_000, 150_000]), 1_000_000);
    // Nonsense has a limit.
    assert_eq!(timeout(&mut lab, 0, [0, 3_600_000_000, 3_600_000_000]), LONGEST);
    assert_eq!(timeout(&mut lab, 0, [0, 200, 200]), 600_000);
}

/// Hundreds of threads compute on the leader's processor, so that it gets its turn each 0.3 s, and once after almost twice
/// the election timeout.
#[test]
fn a_leader_whose_turns_come_late_is_not_campaigned_against_and_one_that_is_silent_for_once_is() {
    for members in [2, 3] {
        let mut lab = Lab::new(members, &Tuning::default());
        let late = |lab: &mut Lab, time: u64| {
            lab.nodes[0].frozen = true;
            lab.run(time);
            lab.nodes[0].frozen = false;
            lab.run(5_000);
        };
        let patience = |lab: &Lab| -> Vec<u64> {
            lab.nodes.iter().map(|node| node.engine.raft.leader_timeout()).collect()
        };
        lab.run(2_000_000);
        let term = lab.nodes[1].engine.raft.term();
        assert!(patience(&lab).iter().all(|p| *p <= 50_000), "{:?}", patience(&lab));
        for _ in 0..12 {
            late(&mut lab, 300_000);
        }
        assert!(patience(&lab)[1..].iter().all(|p| *p == 1_200_000), "{:?}", patience(&lab));
        late(&mut lab, 1_150_000);
        lab.run(1_000_000);
        let now = (lab.leader(1), lab.nodes[1].engine.raft.term());
        assert_eq!(now, (Some(0), term), "{members}");
        assert!(lab.nodes.iter().all(|node| node.engine.raft.election_timeout() == 600_000));
        // A single pause of that length is too long when that is over.
        lab.run(12_000_000);
        assert!(patience(&lab).iter().all(|p| *p <= 50_000), "{:?}", patience(&lab));
        late(&mut lab, 1_250_000);
        lab.run(1_000_000);
        assert!(lab.nodes[1].engine.raft.term() > term, "{members}");
    }
}

/// Whoever leads anew is no later than a heartbeat, whatever came between the members before.
#[test]
fn idle_members_have_no_more_patience_with_a_new_leader_than_with_another() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.run(3_000_000);
    for old in [0, 1] {
        lab.cut(old, true);
        lab.until("another leads", 10_000_000, |lab| lab.leader(2).is_some_and(|leader| leader != old));
        for _ in 0..30 {
            lab.run(100_000);
            let patience = lab.nodes[2].engine.raft.leader_timeout();
            assert!(patience <= 50_000, "{patience}");
        }
        lab.cut(old, false);
        lab.until("it is back", 10_000_000, |lab| lab.leader(old) == lab.leader(2));
    }
}

#[test]
fn what_a_member_whose_disk_hangs_has_not_got_is_wanted_of_the_leaders_log() {
    let mut lab = Lab::new(3, &tuning());
    lab.nodes[2].disk_hangs = true;
    write_for(&mut lab, &[0, 1], 3);
    assert_eq!(lab.leader(2), Some(0), "it answers all the time");
    let has = lab.nodes[0].engine.raft.matched(&lab.id(2));
    let trim = lab.nodes[0].trim.expect("the log is trimmed");
    assert_eq!(trim.wanted, has + 1, "it stays while there is room");
    let commit = lab.nodes[0].engine.raft.commit();
    lab.nodes[2].disk_hangs = false;
    write_for(&mut lab, &[0, 1], 2);
    let wanted = lab.nodes[0].trim.expect("again").wanted;
    assert!(wanted > commit, "{wanted} {commit}");
}
