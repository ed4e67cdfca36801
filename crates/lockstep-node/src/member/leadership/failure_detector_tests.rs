use super::{FailureDetector, Hang, TIMEOUT_MAX};
use crate::api::{SubmitOutcome, Tuning};
use crate::member::harness::Lab;
use std::time::Duration;

fn tuning() -> Tuning {
    Tuning {
        disk_timeout: Duration::from_secs(2),
        apply_timeout: Duration::from_secs(4),
        // Some of these tests write on one member for long.
        follow_writer: false,
        ..Tuning::default()
    }
}

/// One write every 50 ms on each of these members, for this long.
fn write_for(lab: &mut Lab, members: &[usize], seconds: u64) {
    for _ in 0..seconds * 20 {
        for at in members {
            lab.write(*at).abandon();
        }
        lab.run(50_000);
    }
}

#[test]
fn leader_with_hung_disk_hands_over_leadership() {
    let mut lab = Lab::new(3, &tuning());
    write_for(&mut lab, &[0, 1, 2], 1);
    lab.nodes[0].disk_hangs = true;
    write_for(&mut lab, &[1, 2], 1);
    assert_eq!(lab.leader(1), Some(0), "slow is not hung");
    write_for(&mut lab, &[1, 2], 3);
    let successor = lab.leader(1).expect("somebody leads");
    assert!(successor != 0 && lab.leader(2) == Some(successor));
    assert!(lab.logged("this member's disk has not finished a write of the log for 2 s"));
    let views = &lab.nodes[successor].views;
    assert_eq!(views.last().map(|v| v[0].clone()), Some(format!("n{}", successor + 1)), "{views:?}");
    let write = lab.write(3 - successor);
    lab.run(100_000);
    assert!(matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))));
    // It is no candidate while its disk hangs, and may lead again later.
    write_for(&mut lab, &[1, 2], 1);
    assert!(lab.leader(1) != Some(0));
    lab.nodes[0].disk_hangs = false;
    write_for(&mut lab, &[0, 1, 2], 2);
    assert_eq!(lab.nodes[0].member.ctx.raft.commit(), lab.nodes[1].member.ctx.raft.commit());
}

#[test]
fn leader_with_hung_database_hands_over_leadership() {
    let mut lab = Lab::new(3, &tuning());
    lab.nodes[0].database_hangs = true;
    lab.run(10_000_000);
    assert_eq!(lab.leader(1), Some(0), "it has nothing to do");
    write_for(&mut lab, &[1], 6);
    assert!(lab.leader(1).is_some_and(|leader| leader != 0), "{:?}", lab.lines);
    assert!(lab.logged("this member's database has finished nothing for 4 s"));
}

/// The process of the server stalls with this member. Its database had no chance to finish anything.
#[test]
fn own_stall_is_no_hang_of_database() {
    let mut detector = FailureDetector::default();
    let tuning = tuning();
    detector.note_database(10_000_000, 7, true);
    detector.note_database(10_100_000, 7, false);
    detector.note_database(70_000_000, 7, false);
    assert_eq!(detector.hang(70_000_000, &tuning, 0), None);
    for tenth in 1..=31 {
        detector.note_database(70_000_000 + tenth * 100_000, 7, false);
    }
    assert_eq!(detector.hang(73_100_000, &tuning, 0), Some(Hang::Database(4_200_000)));
}

#[test]
fn leadership_stays_if_all_databases_hang_or_leader_desynced() {
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
    lab.nodes[0].member.desync();
    lab.nodes[0].database_hangs = true;
    write_for(&mut lab, &[1], 10);
    assert_eq!(lab.leader(1), Some(0), "a backup's lock is meant");
    assert!(!lab.logged("handing over leadership"));
}

#[test]
fn election_timeout_follows_majority_and_leader_round_trip() {
    let mut lab = Lab::new(3, &Tuning::default());
    let timeout = |lab: &mut Lab, at: usize, rtts: [u64; 3]| {
        let ids = [lab.id(0), lab.id(1), lab.id(2)];
        for (id, rtt) in ids.into_iter().zip(rtts) {
            lab.nodes[at].member.on_rtt(id, rtt);
        }
        lab.run(300_000);
        lab.nodes[at].member.ctx.raft.election_timeout()
    };
    assert_eq!(timeout(&mut lab, 1, [500, 0, 500]), 600_000);
    // The leader is far away.
    assert_eq!(timeout(&mut lab, 1, [150_000, 0, 500]), 1_500_000);
    // The leader is near and a third member far: no timeout grows for that one.
    assert_eq!(timeout(&mut lab, 1, [500, 0, 150_000]), 600_000);
    assert_eq!(timeout(&mut lab, 0, [0, 500, 150_000]), 600_000);
    // Far from both others.
    assert_eq!(timeout(&mut lab, 0, [0, 100_000, 150_000]), 1_000_000);
    // Absurd measurements are bounded.
    assert_eq!(timeout(&mut lab, 0, [0, 3_600_000_000, 3_600_000_000]), TIMEOUT_MAX);
    assert_eq!(timeout(&mut lab, 0, [0, 200, 200]), 600_000);
}

/// Hundreds of threads compute on the leader's processor: the leader runs every 0.3 s, and once after almost twice the
/// election timeout.
#[test]
fn leader_timeout_adapts_to_repeated_pauses_only() {
    for members in [2, 3] {
        let mut lab = Lab::new(members, &Tuning::default());
        let late = |lab: &mut Lab, time: u64| {
            lab.nodes[0].frozen = true;
            lab.run(time);
            lab.nodes[0].frozen = false;
            lab.run(5_000);
        };
        let timeout = |lab: &Lab| -> Vec<u64> {
            lab.nodes.iter().map(|node| node.member.ctx.raft.leader_timeout()).collect()
        };
        lab.run(2_000_000);
        let term = lab.nodes[1].member.ctx.raft.term();
        assert!(timeout(&lab).iter().all(|p| *p <= 50_000), "{:?}", timeout(&lab));
        for _ in 0..12 {
            late(&mut lab, 300_000);
        }
        assert!(timeout(&lab)[1..].iter().all(|p| *p == 1_200_000), "{:?}", timeout(&lab));
        late(&mut lab, 1_150_000);
        lab.run(1_000_000);
        let now = (lab.leader(1), lab.nodes[1].member.ctx.raft.term());
        assert_eq!(now, (Some(0), term), "{members}");
        assert!(lab.nodes.iter().all(|node| node.member.ctx.raft.election_timeout() == 600_000));
        // Once that is over, a single pause of that length is too long, if others can elect a leader meanwhile.
        lab.run(12_000_000);
        assert!(timeout(&lab).iter().all(|p| *p <= 50_000), "{:?}", timeout(&lab));
        late(&mut lab, 1_250_000);
        lab.run(1_000_000);
        assert_eq!(lab.nodes[1].member.ctx.raft.term() > term, members > 2, "{members}");
    }
}

/// A new leader sends heartbeats on time, whatever the silence between these members was before.
#[test]
fn leader_timeout_is_reset_for_new_leader() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.run(3_000_000);
    for old in [0, 1] {
        lab.cut(old, true);
        lab.until("another leads", 10_000_000, |lab| lab.leader(2).is_some_and(|leader| leader != old));
        for _ in 0..30 {
            lab.run(100_000);
            let timeout = lab.nodes[2].member.ctx.raft.leader_timeout();
            assert!(timeout <= 50_000, "{timeout}");
        }
        lab.cut(old, false);
        lab.until("it is back", 10_000_000, |lab| lab.leader(old) == lab.leader(2));
    }
}

#[test]
fn entries_missing_on_hung_disk_stay_in_leader_log() {
    let mut lab = Lab::new(3, &tuning());
    lab.nodes[2].disk_hangs = true;
    write_for(&mut lab, &[0, 1], 3);
    assert_eq!(lab.leader(2), Some(0), "it answers all the time");
    let has = lab.nodes[0].member.ctx.raft.matched(&lab.id(2));
    let trim = lab.nodes[0].trim.expect("the log is trimmed");
    assert_eq!(trim.wanted, has + 1, "it stays while there is room");
    let commit = lab.nodes[0].member.ctx.raft.commit();
    lab.nodes[2].disk_hangs = false;
    write_for(&mut lab, &[0, 1], 2);
    let wanted = lab.nodes[0].trim.expect("again").wanted;
    assert!(wanted > commit, "{wanted} {commit}");
}
