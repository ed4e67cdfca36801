use super::*;
use crate::api::{ApplyHold, SubmitOutcome, Tuning};
use crate::member::harness::{Lab, STEP};
use crate::submit::Submission;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SECOND: Micros = 1_000_000;

#[test]
fn limit_falls_from_an_eighth_of_the_bound_on() {
    let table = [
        // Bound, lag, speed, limit.
        (SECOND, 0, 1_000.0, UNLIMITED),
        (SECOND, 125_000, 1_000.0, UNLIMITED),
        (SECOND, 125_001, 1_000.0, 1_250.0),
        (SECOND, 125_001, 10.0, 12.5),
        (SECOND, 562_500, 1_000.0, 395.28),
        (SECOND, 562_500, 0.0, 0.0),
        (SECOND, SECOND, 1_000.0, 125.0),
        (SECOND, 100 * SECOND, 1_000.0, 125.0),
        (80 * SECOND, 45 * SECOND, 1_000.0, 395.28),
        (80 * SECOND, Micros::MAX, 1_000.0, 125.0),
        (0, 0, 1_000.0, UNLIMITED),
        (0, SECOND, 1_000.0, UNLIMITED),
    ];
    for (bound, lag, speed, limit) in table {
        let found = limit_for(lag, speed, bound, 0);
        assert!(found == limit || (found - limit).abs() < 0.01, "lag {lag}, bound {bound}: {found}");
    }
    // Two round trips are no lag.
    assert_eq!(limit_for(400_000, 1_000.0, SECOND, 200_000), UNLIMITED);
    assert!(limit_for(400_001, 1_000.0, SECOND, 200_000) < UNLIMITED);
    assert!(limit_for(500_001, 1_000.0, SECOND, SECOND) < UNLIMITED, "half of the bound at most");
}

#[test]
fn lag_is_backlog_by_speed_unless_entries_are_young() {
    let mut arrivals = Arrivals::default();
    // A hundred entries each 100 ms, of which the server finishes half.
    let (mut server, mut finished) = (None, 0);
    for n in 1..=50 {
        arrivals.note(n * 100_000, 100 * n as Seqno, 20_000);
        finished += 50;
        server = Some(Server::observe(server, &arrivals, n * 100_000, finished));
    }
    let busy = server.unwrap();
    assert!((490.0..510.0).contains(&busy.speed), "{busy:?}");
    assert!((4_700_000..5_100_000).contains(&busy.lag), "2,500 entries wait: {busy:?}");
    // One entry each second, which takes 3 ms.
    for n in 100..=110 {
        arrivals.note(n * SECOND, 5_000 + n as Seqno, 20_000);
        server = Some(Server::observe(server, &arrivals, n * SECOND + 3_000, 4_999 + n as Seqno));
    }
    let idle = server.unwrap();
    assert!(idle.speed < 2.0 && idle.lag == 6_000, "{idle:?}");
    // It finishes nothing more.
    let stuck = Server::observe(server, &arrivals, 120 * SECOND, 5_109);
    assert!(stuck.speed < 0.1 && stuck.lag > 10 * SECOND, "{stuck:?}");
    assert_eq!(Server::observe(Some(stuck), &arrivals, 121 * SECOND, 5_110).lag, 0);
}

#[test]
fn age_is_that_of_first_seqno_not_finished() {
    let mut arrivals = Arrivals::default();
    assert_eq!(arrivals.age(9, 0), 0);
    for (now, last) in [(100, 5), (105, 6), (112, 9), (130, 9), (140, 12)] {
        arrivals.note(now, last, 10);
    }
    let age = |finished| arrivals.age(200, finished);
    assert_eq!([0, 5, 6, 8, 9, 11, 12, 13].map(age), [100, 100, 88, 88, 60, 60, 0, 0]);
    assert_eq!([0, 11, 12, 13].map(|finished| arrivals.above(finished)), [12, 1, 0, 0]);
    for at in 0..1_000 {
        arrivals.note(1_000 + 10 * at, 100 + at as Seqno, 10);
    }
    assert_eq!(arrivals.spans.len(), SPANS_MAX);
    assert_eq!(arrivals.age(11_000, 0), 10 * SPANS_MAX as Micros, "older arrivals are forgotten");
}

fn tuning() -> Tuning {
    Tuning { apply_pace: Duration::from_secs(1), ..Tuning::default() }
}

/// Writes on `at`, one write-set each 10 ms, for this long. Returns the least limit on that member.
fn load(lab: &mut Lab, at: usize, time: Micros) -> f64 {
    let end = lab.now + time;
    let mut least = UNLIMITED;
    let mut open: Vec<Submission> = Vec::new();
    while lab.now < end || !open.is_empty() {
        if lab.now < end && lab.now.is_multiple_of(20 * STEP) {
            open.push(lab.write(at));
        }
        lab.step();
        let node = &lab.nodes[at];
        open.retain(|submission| match submission.try_take() {
            None => true,
            Some(SubmitOutcome::Ordered(ordered)) => {
                // The thread that wrote commits.
                if !node.database_hangs {
                    node.finished.fetch_max(ordered.seqno, Ordering::AcqRel);
                }
                false
            }
            Some(other) => panic!("{other:?}"),
        });
        least = least.min(node.member.delivery.pace.paced().limit);
    }
    least
}

#[test]
fn writers_slow_down_while_a_voter_lags() {
    let mut lab = Lab::new(3, &Tuning { apply_pace: Duration::from_secs(3), ..tuning() });
    assert_eq!(load(&mut lab, 0, 3 * SECOND), UNLIMITED);
    lab.nodes[2].database_hangs = true;
    // Three members, and a writer that leads, one that follows, and the one that lags.
    for at in [0, 1, 2] {
        load(&mut lab, at, 1_500_000);
        let paced = lab.nodes[at].member.delivery.pace.paced();
        assert!(paced.limit < 20.0, "{paced:?}");
        assert_eq!(paced.because_of, [lab.id(2)]);
        assert_eq!((paced.times, paced.own_times), (1, u64::from(at == 2)));
    }
    assert!(lab.logged("writes of this server's clients are slowed down: n3 lags by 0."), "{:?}", lab.lines);
    let last = &mut lab.nodes[2];
    last.database_hangs = false;
    last.finished.store(last.member.delivery.deliverer.delivered(), Ordering::Release);
    lab.run(500_000);
    for node in &lab.nodes {
        let paced = node.member.delivery.pace.paced();
        assert!(!paced.is_limited() && paced.because_of.is_empty(), "{paced:?}");
        assert!((4 * SECOND..6 * SECOND).contains(&paced.total), "{paced:?}");
    }
}

#[test]
fn writers_never_slow_down_without_the_option() {
    let mut lab = Lab::new(2, &Tuning::default());
    lab.nodes[1].database_hangs = true;
    assert_eq!(load(&mut lab, 0, SECOND), UNLIMITED);
    // The option can be set while the server runs, and be removed.
    lab.nodes[0].member.set_tuning(tuning());
    assert!(load(&mut lab, 0, 800_000) < 100.0);
    lab.nodes[0].member.set_tuning(Tuning::default());
    lab.run(100_000);
    assert_eq!(load(&mut lab, 0, 2 * SECOND), UNLIMITED);
}

#[test]
fn lag_of_a_stopped_member_is_ignored() {
    let mut lab = Lab::new(3, &tuning());
    load(&mut lab, 0, SECOND);
    lab.nodes[2].frozen = true;
    assert_eq!(load(&mut lab, 0, 5 * SECOND), UNLIMITED);
    lab.nodes[2].frozen = false;
    lab.run(2 * SECOND);
    lab.cut(2, true);
    assert_eq!(load(&mut lab, 0, 5 * SECOND), UNLIMITED);
}

#[test]
fn lag_of_a_held_back_or_desynced_member_is_ignored() {
    let mut lab = Lab::new(3, &tuning());
    let apply_hold = ApplyHold { paused: true, ..ApplyHold::default() };
    lab.nodes[1].member.set_tuning(Tuning { apply_hold, ..tuning() });
    lab.nodes[2].member.desync();
    lab.run(SECOND);
    lab.nodes[2].database_hangs = true;
    assert_eq!(load(&mut lab, 0, 5 * SECOND), UNLIMITED);
    lab.nodes[2].database_hangs = false;
    lab.run(SECOND);
    lab.nodes[2].member.resync();
    load(&mut lab, 0, SECOND);
    lab.nodes[2].database_hangs = true;
    assert!(load(&mut lab, 0, SECOND) < 100.0, "it is Synced again, and lags");
}

#[test]
fn lag_of_a_member_that_applies_nothing_for_long_is_ignored() {
    let mut lab = Lab::new(2, &tuning());
    load(&mut lab, 0, SECOND);
    lab.nodes[1].database_hangs = true;
    assert!(load(&mut lab, 0, SECOND) < 100.0);
    load(&mut lab, 0, 1_500_000);
    let paced = lab.nodes[0].member.delivery.pace.paced();
    assert!(!paced.is_limited(), "{paced:?}");
    assert_eq!(lab.nodes[1].member.local_state(), LocalState::Synced);
}

#[test]
fn lag_of_a_member_without_a_vote_is_ignored() {
    let mut lab = Lab::new(2, &tuning());
    lab.add(&tuning(), |hello| hello.wants_vote = false);
    lab.until("the replica is Synced", 20 * SECOND, |lab| {
        lab.nodes[2].member.local_state() == LocalState::Synced
    });
    lab.nodes[2].database_hangs = true;
    assert_eq!(load(&mut lab, 0, 5 * SECOND), UNLIMITED);
}

#[test]
fn member_within_twice_the_bound_stays_synced() {
    let few = Tuning { lag_limit: 10, ..tuning() };
    let mut lab = Lab::new(2, &few);
    let state = |lab: &Lab| lab.nodes[1].member.local_state();
    lab.nodes[1].database_hangs = true;
    load(&mut lab, 0, 1_900_000);
    assert_eq!(state(&lab), LocalState::Synced);
    load(&mut lab, 0, 200_000);
    assert_eq!(state(&lab), LocalState::Donor);
    load(&mut lab, 0, 300_000);
    assert!(!lab.nodes[0].member.delivery.pace.paced().is_limited(), "its lag is contained no more");
}
