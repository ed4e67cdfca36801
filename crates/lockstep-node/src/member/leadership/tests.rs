//! The decision by itself, from facts.

use super::*;
use lockstep_core::{Index, Uuid};

fn candidate(n: u8, matched: Index) -> Candidate {
    Candidate {
        id: Uuid([n; 16]),
        view_uuid: Some(Uuid([n; 16])),
        leaving: false,
        fit: true,
        database: true,
        synced: true,
        held_back: false,
        matched,
        finished: Some(matched as Seqno),
    }
}

#[test]
fn successor_has_database_then_sync_then_no_hold_then_log() {
    let any = |candidates: &[Candidate]| best_successor(candidates, |_| true).map(|id| id.0[0]);
    let arbitrator = Candidate { database: false, ..candidate(1, 90) };
    let joined = Candidate { synced: false, ..candidate(2, 80) };
    let held = Candidate { held_back: true, ..candidate(3, 70) };
    let (short, long) = (candidate(4, 50), candidate(5, 60));
    let all = [arbitrator, joined, held, long, short];
    assert_eq!(any(&all), Some(5));
    assert_eq!(any(&all[..3]), Some(3));
    assert_eq!(any(&all[..2]), Some(2));
    assert_eq!(any(&all[..1]), Some(1));
    assert_eq!(any(&[]), None);
    assert_eq!(best_successor(&all, |c| c.matched < 60).map(|id| id.0[0]), Some(4));
}

#[test]
fn disk_hangs_after_its_timeout() {
    let tuning = Tuning { apply_timeout: std::time::Duration::ZERO, ..Tuning::default() };
    let timeout = tuning.disk_timeout.as_micros() as Micros;
    let detector = FailureDetector::default();
    assert_eq!(detector.hang(Micros::MAX, &tuning, timeout), None);
    assert_eq!(detector.hang(Micros::MAX, &tuning, timeout + 1), Some(Hang::Disk(timeout + 1)));
    let never = Tuning { disk_timeout: std::time::Duration::ZERO, ..tuning };
    assert_eq!(detector.hang(Micros::MAX, &never, Micros::MAX), None);
}

#[test]
fn election_timeout_follows_nearest_majority() {
    let tuning = Tuning::default();
    let usual = tuning.election_timeout.as_micros() as Micros;
    let mut detector = FailureDetector::default();
    let mut timeout = |voters: &[Micros], leader| {
        let network = Network {
            voters: voters.to_vec(),
            others_needed: 1,
            leader,
            farthest: voters.iter().copied().max(),
        };
        detector.timing(0, &tuning, &network)
    };
    assert_eq!(timeout(&[], None).election_timeout, usual);
    let far = timeout(&[usual, 100], None);
    assert_eq!((far.election_timeout, far.longest_rtt), (usual, usual));
    assert_eq!(timeout(&[usual, 100], Some(usual)).election_timeout, (10 * usual).min(6_000_000));
}
