use super::*;
use crate::api::{ApplyHold, SubmitOutcome, Tuning};
use crate::member::harness::{Lab, STEP};
use crate::submit::Submission;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SECOND: Micros = 1_000_000;

#[test]
fn limit_falls_from_a_quarter_of_the_bound_on() {
    let table = [
        // Bound, lag, speed, limit.
        (SECOND, 0, 1_000.0, UNLIMITED),
        (SECOND, 250_000, 1_000.0, UNLIMITED),
        (SECOND, 250_001, 1_000.0, 1_250.0),
        (SECOND, 250_001, 10.0, 12.5),
        (SECOND, 500_000, 1_000.0, 395.28),
        (SECOND, 500_000, 0.0, 0.0),
        (SECOND, 750_000, 1_000.0, 125.0),
        (SECOND, SECOND, 1_000.0, 39.53),
        (SECOND, 100 * SECOND, 1_000.0, 39.53),
        (80 * SECOND, 40 * SECOND, 1_000.0, 395.28),
        (80 * SECOND, Micros::MAX, 1_000.0, 39.53),
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
    let lag = |server: Option<Server>, arrivals: &Arrivals, now| server.unwrap().lag(arrivals, now);
    // A hundred entries each 100 ms, of which the server finishes half.
    let (mut server, mut finished) = (None, 0);
    for n in 1..=50 {
        arrivals.note(n * 100_000, 100 * n as Seqno, 20_000);
        finished += 50;
        server = Some(Server::observe(server, &arrivals, n * 100_000, finished, 0));
    }
    let speed = server.unwrap().speed.unwrap();
    assert!((490.0..510.0).contains(&speed), "{server:?}");
    let busy = lag(server, &arrivals, 5 * SECOND);
    assert!((4_700_000..5_100_000).contains(&busy), "2,500 entries wait: {busy}");
    // Until the next report it goes on at its speed: 2,400 are left.
    let later = lag(server, &arrivals, 5_200_000);
    assert!((4_700_000..4_900_000).contains(&later), "{later}");
    // It has caught up, and gets one entry each second, which takes 3 ms. Its speed is not forgotten.
    for n in 100..=110 {
        arrivals.note(n * SECOND, 5_000 + n as Seqno, 20_000);
        server = Some(Server::observe(server, &arrivals, n * SECOND + 3_000, 4_999 + n as Seqno, 0));
    }
    assert!(server.unwrap().speed.unwrap() >= speed, "{server:?}");
    assert!(lag(server, &arrivals, 110 * SECOND + 3_000) <= 6_000);
    // It finishes nothing more.
    for n in 111..=120 {
        server = Some(Server::observe(server, &arrivals, n * SECOND, 5_109, 0));
    }
    let stuck = lag(server, &arrivals, 120 * SECOND);
    assert!(server.unwrap().speed.unwrap() < 0.1 && stuck > 10 * SECOND, "{server:?}");
    server = Some(Server::observe(server, &arrivals, 121 * SECOND, 5_110, 0));
    assert_eq!(lag(server, &arrivals, 121 * SECOND), 0);
}

#[test]
fn speed_without_backlog_is_a_lower_bound() {
    let mut arrivals = Arrivals::default();
    let mut server = Some(Server::observe(None, &arrivals, 0, 0, 0));
    let mut step = |now: Micros, arrived: Seqno, finished: Seqno| {
        arrivals.note(now - 100_000, arrived, 1_000);
        server = Some(Server::observe(server, &arrivals, now, finished, 0));
        server.unwrap().speed
    };
    let mut step =
        |now: Micros, arrived: Seqno, finished: Seqno| step(now, arrived, finished).unwrap().round();
    // It keeps up with 100 entries a second, then with 1,000, then with 10.
    assert_eq!(step(SECOND, 100, 100), 100.0);
    assert_eq!(step(2 * SECOND, 1_100, 1_100), 994.0);
    assert_eq!(step(3 * SECOND, 1_110, 1_110), 994.0);
    // It falls behind: from the second report on a lower throughput is its speed.
    assert_eq!(step(4 * SECOND, 3_110, 1_610), 994.0);
    assert_eq!(step(5 * SECOND, 5_110, 2_110), 503.0);
}

#[test]
fn low_speed_of_quiet_time_makes_no_lag() {
    let mut arrivals = Arrivals::default();
    // A quiet server of 50 entries a second, and then a thousand a second from its last report on.
    let idle = Server::observe(None, &arrivals, 0, 0, 0);
    let quiet = Server::observe(Some(idle), &arrivals, SECOND, 50, 0);
    for n in 0..20 {
        arrivals.note(SECOND + n * 10_000, 60 + 10 * n as Seqno, 20_000);
    }
    assert_eq!((quiet.speed, quiet.lag(&arrivals, 1_190_000)), (Some(50.0), 0));
    // Its report of a backlog counts, also one that is read together with another.
    let behind = Server::observe(Some(quiet), &arrivals, 1_200_000, 60, 0);
    let again = Server::observe(Some(behind), &arrivals, 1_200_000, 61, 0);
    assert!(again.lag(&arrivals, 1_200_000) > 300_000 && again.speed == behind.speed, "{again:?}");
    // On a line of 100 ms nothing else is to be expected.
    assert_eq!(Server::observe(Some(quiet), &arrivals, 1_200_000, 60, 200_000).lag(&arrivals, 1_200_000), 0);
}

#[test]
fn limit_is_released_by_rising() {
    let mut pacing = Pacing::default();
    let server = Server { at: 0, finished: 0, speed: Some(1_000.0), is_behind: false, moved_at: 0 };
    pacing.servers.insert(lockstep_core::Uuid([1; 16]), server);
    assert_eq!(pacing.released(PERIOD), UNLIMITED, "there was none");
    pacing.paced.limit = 0.0;
    let mut steps = 0;
    while pacing.paced.is_limited() {
        let limit = pacing.released(PERIOD);
        assert!(
            limit > pacing.paced.limit
                && (steps == 0 || limit == UNLIMITED || limit < 1.1 * pacing.paced.limit)
        );
        pacing.paced.limit = limit;
        steps += 1;
    }
    // From 10 to 4,000 a second.
    assert!((1_400_000..1_600_000).contains(&(steps * PERIOD)), "{steps}");
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

#[test]
fn truncation_keeps_earlier_arrivals() {
    let kept = |kept| {
        let mut arrivals = Arrivals::default();
        for (now, last) in [(10, 5), (30, 8), (50, 20)] {
            arrivals.note(now, last, 10);
        }
        arrivals.truncate(kept);
        Vec::from(arrivals.spans)
    };
    assert_eq!(kept(20), [(5, 10), (8, 30), (20, 50)]);
    assert_eq!(kept(10), [(5, 10), (8, 30), (10, 50)]);
    assert_eq!(kept(8), [(5, 10), (8, 30)]);
    assert_eq!(kept(7), [(5, 10), (7, 30)]);
    assert_eq!(kept(5), [(5, 10)]);
    let mut none = Arrivals::default();
    none.truncate(5);
    assert_eq!(none.above(0), 0);
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
    lab.run(3 * SECOND);
    for node in &lab.nodes {
        let paced = node.member.delivery.pace.paced();
        assert!(!paced.is_limited() && paced.because_of.is_empty(), "{paced:?}");
        assert!((4 * SECOND..7 * SECOND).contains(&paced.total), "{paced:?}");
    }
}

#[test]
fn writers_never_slow_down_without_the_option() {
    let mut lab = Lab::new(2, &Tuning::default());
    lab.nodes[1].database_hangs = true;
    assert_eq!(load(&mut lab, 0, SECOND), UNLIMITED);
    // The option can be set while the server runs, and be removed.
    lab.nodes[0].member.set_tuning(tuning());
    assert!(load(&mut lab, 0, 1_800_000) < 100.0);
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
    assert!(load(&mut lab, 0, 1_800_000) < 100.0);
    load(&mut lab, 0, 3 * SECOND);
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
    load(&mut lab, 0, 3 * SECOND);
    assert!(!lab.nodes[0].member.delivery.pace.paced().is_limited(), "its lag is contained no more");
}

#[test]
fn new_leader_that_truncates_hides_no_lag() {
    let mut lab = Lab::new(3, &tuning());
    load(&mut lab, 0, SECOND);
    lab.nodes[2].database_hangs = true;
    load(&mut lab, 0, 500_000);
    let finished = lab.nodes[2].finished.load(Ordering::Acquire);
    let member = &mut lab.nodes[0].member;
    let (ctx, pace) = (&member.ctx, &mut member.delivery.pace);
    let last = ctx.raft.last_index();
    let kept = ctx.raft.entry(last - 1).unwrap().seqno;
    let age = pace.arrivals.age(ctx.now(), finished);
    let op = |truncate_from| WriteOp { truncate_from, entries: Vec::new(), ..crate::testing::write_op(1, 0) };
    pace.written(ctx, &op(Some(last)));
    assert!(kept > finished + 10, "{kept} {finished}");
    assert_eq!(pace.arrivals.above(finished), kept - finished);
    assert_eq!(pace.arrivals.age(ctx.now(), finished), age);
}
