use super::super::harness::Lab;
use super::*;
use crate::api::{LocalState, SubmitOutcome, Tuning};
use lockstep_core::policy::PolicyKind;
use lockstep_core::writeset::{DataKind, Meta, WriteSetBuilder};
use lockstep_core::{Gtid, Uuid};
use std::time::Duration;

fn hold(lab: &mut Lab, at: usize, hold: ApplyHold) {
    let tuning = Tuning { apply_hold: hold, ..Tuning::default() };
    lab.nodes[at].engine.set_tuning(tuning);
    lab.run(10_000);
}

fn write(lab: &mut Lab, at: usize) -> Seqno {
    let write = lab.write(at);
    lab.run(50_000);
    match write.wait_for(Duration::ZERO) {
        Some(SubmitOutcome::Ordered(ordered)) => ordered.seqno,
        other => panic!("not ordered: {}", other.is_some()),
    }
}

fn finished(lab: &Lab, at: usize) -> Seqno {
    lab.nodes[at].engine.finished()
}

fn state(lab: &Lab, at: usize) -> LocalState {
    lab.nodes[at].engine.local_state()
}

#[test]
fn a_paused_member_keeps_and_acknowledges_what_its_server_does_not_get() {
    let mut lab = Lab::new(3, &Tuning::default());
    let before = write(&mut lab, 0);
    lab.run(100_000);
    assert_eq!((finished(&lab, 2), state(&lab, 2)), (before, LocalState::Synced));
    hold(&mut lab, 2, ApplyHold { paused: true, ..ApplyHold::default() });
    assert_eq!(state(&lab, 2), LocalState::Donor, "it has everything, and refuses writes");
    assert!(lab.nodes[2].engine.stands_for_good());
    // One more is away: nothing would be committed without the paused one's acks.
    lab.cut(1, true);
    lab.run(1_000_000);
    let last = write(&mut lab, 0);
    lab.run(200_000);
    assert_eq!((finished(&lab, 2), state(&lab, 2)), (before, LocalState::Donor));
    let own = lab.nodes[2].engine.raft.committed_state().seqno;
    assert!(own >= last && lab.said("the server stands at seqno"));
    // Its server's own commits are refused: they would wait for ever.
    let refused = lab.write(2);
    assert!(matches!(refused.wait_for(Duration::ZERO), Some(SubmitOutcome::NotSent)));
    hold(&mut lab, 2, ApplyHold::default());
    assert!(!lab.nodes[2].engine.stands_for_good());
    lab.until("it has caught up", 2_000_000, |lab| finished(lab, 2) >= last);
    lab.until("and is Synced", 1_000_000, |lab| state(lab, 2) == LocalState::Synced);
    assert!(write(&mut lab, 2) > last);
}

#[test]
fn what_waits_when_the_gate_is_to_shut_goes_through_first() {
    let mut lab = Lab::new(3, &Tuning::default());
    let own = lab.write(2);
    let tuning =
        Tuning { apply_hold: ApplyHold { paused: true, ..ApplyHold::default() }, ..Tuning::default() };
    lab.nodes[2].engine.set_tuning(tuning);
    lab.run(100_000);
    assert!(matches!(own.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))));
    let at = lab.nodes[2].engine.deliverer.delivered();
    write(&mut lab, 0);
    lab.run(100_000);
    assert_eq!(lab.nodes[2].engine.deliverer.delivered(), at);
}

#[test]
fn a_delay_is_kept_to_the_millisecond_and_the_lag_is_its_age() {
    let mut lab = Lab::new(3, &Tuning::default());
    let delay = Duration::from_secs(20);
    hold(&mut lab, 2, ApplyHold { delay, ..ApplyHold::default() });
    lab.run(30_000_000);
    assert_eq!(state(&lab, 2), LocalState::Donor, "all is old enough, and it refuses writes");
    let placed = lab.now;
    let seqno = write(&mut lab, 0);
    lab.run(19_900_000 - (lab.now - placed));
    assert!(finished(&lab, 2) < seqno);
    let age = lab.nodes[2].engine.age_at_gate().unwrap();
    assert!((19.0..20.0).contains(&age), "{age}");
    assert!(!lab.nodes[2].engine.stands_for_good(), "it gets on by itself");
    lab.run(200_000);
    assert_eq!((finished(&lab, 2), state(&lab, 2)), (seqno, LocalState::Donor));
    hold(&mut lab, 2, ApplyHold::default());
    assert_eq!(state(&lab, 2), LocalState::Synced);
}

#[test]
fn it_stops_at_a_seqno_a_gtid_and_a_time_and_not_before() {
    let mut lab = Lab::new(3, &Tuning::default());
    let seqno = write(&mut lab, 0) + 2;
    let history = lab.nodes[0].engine.raft.tail_state().history;
    for until in [Until::Seqno(seqno), Until::Gtid(Gtid { uuid: history, seqno })] {
        hold(&mut lab, 2, ApplyHold { until: Some(until), ..ApplyHold::default() });
        assert_eq!(lab.nodes[2].engine.stands_for_good(), finished(&lab, 2) == seqno, "{until:?}");
        for _ in 0..4 {
            write(&mut lab, 0);
        }
        assert_eq!(finished(&lab, 2), seqno, "{until:?}");
        assert!(lab.nodes[2].engine.stands_for_good());
    }
    let until = Until::Gtid(Gtid { uuid: Uuid([9; 16]), seqno: seqno + 100 });
    hold(&mut lab, 2, ApplyHold { until: Some(until), ..ApplyHold::default() });
    assert_eq!(finished(&lab, 2), seqno, "of another history: nobody can say where that is");
    hold(&mut lab, 2, ApplyHold::default());
    let last = write(&mut lab, 0);
    lab.run(100_000);
    assert_eq!(finished(&lab, 2), last);
    let time = Until::Time(lab.nodes[0].engine.wall() + 1_000_000);
    hold(&mut lab, 2, ApplyHold { until: Some(time), ..ApplyHold::default() });
    let before = write(&mut lab, 0);
    lab.run(1_500_000);
    write(&mut lab, 0);
    lab.run(100_000);
    assert_eq!(finished(&lab, 2), before);
}

#[test]
fn leadership_goes_to_one_that_applies() {
    let mut lab = Lab::new(3, &Tuning::default());
    assert_eq!(lab.leader(1), Some(0));
    hold(&mut lab, 0, ApplyHold { paused: true, ..ApplyHold::default() });
    write(&mut lab, 1);
    lab.until("another one leads", 3_000_000, |lab| lab.leader(2).is_some_and(|at| at != 0));
    // Where nobody else does, it stays.
    let leader = lab.leader(2).unwrap();
    for at in 1..3 {
        hold(&mut lab, at, ApplyHold { paused: true, ..ApplyHold::default() });
    }
    lab.run(5_000_000);
    assert_eq!(lab.leader(0), Some(leader));
}

/// Whoever refuses writes is not where a proxy sends them, though it is the only one that they came to.
#[test]
fn who_refuses_writes_says_so_at_once_and_leads_no_longer_though_nobody_writes() {
    let (hour, past) = (Duration::from_secs(3600), Until::Time(1));
    for (what, line, for_good) in [
        (ApplyHold { paused: true, ..ApplyHold::default() }, "apply.paused: the server stands at", true),
        (
            ApplyHold { delay: hour, ..ApplyHold::default() },
            "apply.delay: the server gets entries when",
            false,
        ),
        (ApplyHold { until: Some(past), ..ApplyHold::default() }, "apply.until: the server stands at", true),
        (
            ApplyHold { until: Some(Until::Seqno(1)), ..ApplyHold::default() },
            "apply.until: the server stands",
            true,
        ),
        // Not reached: its server refuses writes all the same.
        (ApplyHold { until: Some(Until::Seqno(1_000)), ..ApplyHold::default() }, "", false),
    ] {
        let mut lab = Lab::new(3, &Tuning::default());
        write(&mut lab, 0);
        lab.run(1_000_000);
        assert_eq!((lab.leader(1), state(&lab, 0)), (Some(0), LocalState::Synced), "{what:?}");
        hold(&mut lab, 0, what);
        assert_eq!(state(&lab, 0), LocalState::Donor, "{what:?}");
        let engine = &lab.nodes[0].engine;
        assert!(engine.health().held_back && engine.stands_for_good() == for_good, "{what:?}");
        assert!(lab.said(line), "{what:?}");
        let refused = lab.write(0);
        assert!(matches!(refused.wait_for(Duration::ZERO), Some(SubmitOutcome::NotSent)), "{what:?}");
        lab.until("another one leads", 1_000_000, |lab| lab.leader(0).is_some_and(|at| at != 0));
        let leader = lab.leader(1).unwrap();
        lab.run(2_000_000);
        assert_eq!((lab.leader(0), state(&lab, leader)), (Some(leader), LocalState::Synced), "{what:?}");
        hold(&mut lab, 0, ApplyHold::default());
        lab.until("it is Synced", 1_000_000, |lab| state(lab, 0) == LocalState::Synced);
        write(&mut lab, 0);
    }
}

#[test]
fn under_a_weak_policy_the_only_writer_is_one_that_may_write() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.nodes[0].engine.request_policy(|policy| policy.kind = PolicyKind::Async);
    lab.until("it is in force", 5_000_000, |lab| {
        lab.nodes.iter().all(|node| node.engine.raft.committed_state().policy.is_weak())
    });
    lab.run(200_000);
    let leader = lab.leader(0).unwrap();
    hold(&mut lab, leader, ApplyHold { paused: true, ..ApplyHold::default() });
    lab.until("another one leads", 3_000_000, |lab| {
        (0..3).all(|at| lab.leader(at).is_some_and(|now| now != leader))
    });
    let leader = lab.leader(0).unwrap();
    assert!(lab.nodes[leader].engine.may_originate() && !lab.nodes[leader].engine.is_held_back());
}

#[test]
fn that_nobody_may_write_is_said_and_no_more_once_somebody_may() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.nodes[0].engine.request_policy(|policy| policy.kind = PolicyKind::Semisync);
    lab.until("it is in force", 5_000_000, |lab| {
        lab.nodes.iter().all(|node| node.engine.raft.committed_state().policy.is_weak())
    });
    let paused = ApplyHold { paused: true, ..ApplyHold::default() };
    for at in 0..3 {
        hold(&mut lab, at, paused);
    }
    lab.run(20_000_000);
    let said = |lab: &Lab| lab.lines.iter().filter(|(_, line)| line.contains("nobody may write")).count();
    assert_eq!(said(&lab), 1, "{:#?}", lab.lines);
    assert!(lab.said(
        "under commit.policy = semisync only the leader's server does, which is this one; entries are kept"
    ));
    lab.run(30_000_000);
    assert_eq!(said(&lab), 2);
    hold(&mut lab, 1, ApplyHold::default());
    lab.until("it leads", 10_000_000, |lab| lab.leader(0) == Some(1) && lab.leader(1) == Some(1));
    lab.run(60_000_000);
    assert_eq!(said(&lab), 2);
}

#[test]
fn a_founder_is_shown_its_first_view() {
    let paused = ApplyHold { paused: true, ..ApplyHold::default() };
    let mut lab = Lab::new(1, &Tuning { apply_hold: paused, ..Tuning::default() });
    lab.run(1_000_000);
    assert_eq!(lab.nodes[0].views, [["n1"]]);
    assert!(lab.nodes[0].engine.told_synced, "its server serves readers");
    assert_eq!(state(&lab, 0), LocalState::Donor);
}

#[test]
fn a_gate_that_is_due_while_the_majority_is_away_keeps_nobody_awake() {
    let mut lab = Lab::new(3, &Tuning::default());
    hold(&mut lab, 2, ApplyHold { delay: Duration::from_secs(20), ..ApplyHold::default() });
    write(&mut lab, 0);
    lab.cut(2, true);
    lab.run(30_000_000);
    lab.until("it sleeps", 1_000_000, |lab| {
        let engine = &lab.nodes[2].engine;
        engine.deadline() > engine.now + 1_000
    });
    lab.cut(2, false);
    lab.until("it has caught up", 5_000_000, |lab| finished(lab, 2) >= finished(lab, 0));
}

#[test]
fn who_stands_is_never_synced_to_others_not_even_for_a_moment() {
    let mut lab = Lab::new(3, &Tuning::default());
    hold(&mut lab, 2, ApplyHold { paused: true, ..ApplyHold::default() });
    write(&mut lab, 0);
    lab.run(100_000);
    lab.nodes[2].engine.desync();
    lab.run(10_000);
    lab.nodes[2].engine.resync();
    for _ in 0..1_000 {
        lab.run(500);
        assert_eq!(state(&lab, 2), LocalState::Donor);
    }
    // While entries are read from the log it stands where it stood; not once nothing is kept from it.
    let engine = &mut lab.nodes[2].engine;
    engine.open_gate();
    engine.not_at_gate_yet();
    assert!(engine.apply_holds.is_shut());
    engine.set_tuning(Tuning::default());
    engine.open_gate();
    engine.not_at_gate_yet();
    assert!(!engine.apply_holds.is_shut());
}

#[test]
fn another_end_is_said_as_the_first_was() {
    let mut lab = Lab::new(3, &Tuning::default());
    let seqno = write(&mut lab, 0);
    for end in [seqno + 1, seqno + 3] {
        hold(&mut lab, 2, ApplyHold { until: Some(Until::Seqno(end)), ..ApplyHold::default() });
        for _ in 0..3 {
            write(&mut lab, 0);
        }
        assert!(lab.said(&format!("apply.until: the server stands at seqno {end},")), "{end}");
    }
}

#[test]
fn that_a_time_has_come_is_said_once_though_entries_from_before_it_are_on_their_way() {
    for load in [true, false] {
        let mut lab = Lab::new(3, &Tuning::default());
        let end = lab.nodes[0].engine.wall() + 100_000;
        hold(&mut lab, 2, ApplyHold { until: Some(Until::Time(end)), ..ApplyHold::default() });
        while load && lab.nodes[0].engine.wall() <= end + 100_000 {
            lab.write(0);
            lab.run(500);
        }
        lab.run(5_000_000);
        let said =
            lab.lines.iter().filter(|(_, line)| line.contains("apply.until: the server stands at seqno"));
        let said: Vec<_> = said.map(|(_, line)| line).collect();
        let seqno = finished(&lab, 2);
        assert!(said.len() == 1 && said[0].contains(&format!("at seqno {seqno},")), "{load}: {said:?}");
    }
}

fn set(parts: &[&[u8]]) -> WriteSet {
    let mut builder = WriteSetBuilder::new();
    builder.append_key(parts, KeyType::Exclusive).unwrap();
    builder.append_data(DataKind::Ordered, b"row").unwrap();
    WriteSet::parse(&builder.finish(&Meta::default())).unwrap()
}

#[test]
fn by_schema_one_waits_for_the_last_of_its_database_serially_for_the_one_before() {
    let mut applying = ApplyHolds::new(ApplyOrder::Schema);
    let a1 = set(&[b"a", b"t", b"1"]);
    let a2 = set(&[b"a", b"u", b"2"]);
    let b1 = set(&[b"b", b"t", b"1"]);
    assert_eq!(applying.depends_on(10, &a1, 4, 0), 4);
    assert_eq!(applying.depends_on(11, &b1, 4, 0), 4);
    assert_eq!(applying.depends_on(12, &a2, 4, 0), 10, "another table of the same database");
    assert_eq!(applying.depends_on(13, &b1, 12, 0), 12, "certification's parent counts as well");
    assert_eq!(applying.depends_on(14, &a1, 4, 0), 12);
    // Of what came before the order was changed nothing is known.
    applying.last.clear();
    applying.floor = 14;
    assert_eq!(applying.depends_on(15, &b1, 4, 0), 14);
    applying.order = ApplyOrder::Serial;
    assert_eq!(applying.depends_on(16, &b1, 4, 0), 15);
    applying.order = ApplyOrder::Writeset;
    assert_eq!(applying.depends_on(17, &b1, 4, 0), 4);
}

#[test]
fn databases_whose_last_write_set_has_finished_are_forgotten() {
    let mut applying = ApplyHolds::new(ApplyOrder::Schema);
    for seqno in 1..3 * KNOWN as Seqno {
        let one = set(&[&seqno.to_le_bytes(), b"t", b"1"]);
        assert_eq!(applying.depends_on(seqno, &one, 0, seqno - 10), 0);
        assert!(applying.last.len() <= KNOWN + 3);
    }
}

#[test]
fn a_log_that_grows_for_what_is_kept_from_the_server_is_warned_of() {
    let mut lab = Lab::new(3, &Tuning::default());
    let limit = Tuning::default().log_max_bytes;
    lab.nodes[2].engine.log_takes(2 * limit);
    lab.run(10_000);
    assert!(!lab.said("more than log.max_size"), "its server has everything");
    hold(&mut lab, 2, ApplyHold { paused: true, ..ApplyHold::default() });
    write(&mut lab, 0);
    for bytes in [limit, limit + 1, 2 * limit] {
        lab.nodes[2].engine.log_takes(bytes);
        lab.run(10_000);
    }
    let said = lab.lines.iter().filter(|(at, line)| *at == 2 && line.contains("more than log.max_size"));
    assert_eq!(said.count(), 1);
}

#[test]
fn a_joiner_does_not_wait_for_a_donor_from_whom_entries_are_kept() {
    let mut lab = Lab::new(3, &Tuning::default());
    // n2 hears of nothing for a moment: then, all at once, of an entry, of the joiner, and that it is to stand still.
    lab.nodes[1].frozen = true;
    write(&mut lab, 0);
    lab.nodes[2].engine.request_state(bytes::Bytes::from_static(b"request"), "n2,".into());
    lab.run(50_000);
    let paused = ApplyHold { paused: true, ..ApplyHold::default() };
    lab.nodes[1].engine.set_tuning(Tuning { apply_hold: paused, ..Tuning::default() });
    lab.nodes[1].frozen = false;
    lab.until("another one donates", 5_000_000, |lab| {
        lab.lines.iter().any(|(at, line)| *at == 0 && line.contains("donates its state to n3"))
    });
    assert!(lab.said("n2 is to donate state to n3"));
    assert_eq!(state(&lab, 0), LocalState::Donor);
    lab.run(2_000_000);
    assert!(!lab.lines.iter().any(|(at, line)| *at == 1 && line.contains("donates its state")));
}

#[test]
fn a_donor_that_is_to_stand_still_lets_its_joiner_go() {
    let mut lab = Lab::new(3, &Tuning::default());
    let at_least = write(&mut lab, 0) + 1;
    lab.nodes[2].engine.request_state(bytes::Bytes::from_static(b"request"), "n2,".into());
    let joiner = lab.id(2);
    // Accepted: the joiner begins at an entry that n2 has not got yet.
    lab.nodes[1].engine.asked_to_donate(joiner, at_least, -1, bytes::Bytes::from_static(b"request"));
    lab.nodes[0].frozen = true;
    lab.run(20_000);
    assert!(lab.said("n2 donates") && state(&lab, 1) == LocalState::Donor);
    hold(&mut lab, 1, ApplyHold { paused: true, ..ApplyHold::default() });
    lab.nodes[0].frozen = false;
    lab.run(100_000);
    assert!(lab.said("does not donate its state to n3") && lab.said("no donor yet"));
    lab.until("another one donates", 5_000_000, |lab| {
        lab.said("donates its state to n3") || lab.said("n1 donates")
    });
}

#[test]
fn nobody_waits_to_hear_what_one_thinks_from_whom_entries_are_kept() {
    let mut lab = Lab::new(2, &Tuning::default());
    hold(&mut lab, 1, ApplyHold { paused: true, ..ApplyHold::default() });
    lab.run(2_000_000);
    lab.nodes[0].database_hangs = true;
    let seqno = write(&mut lab, 0);
    let (slot, error) = (crate::reply::Reply::new(), "no such table".to_owned());
    lab.nodes[0].engine.vote(seqno, 5, error, crate::api::VoteReply(slot.clone()));
    lab.run(1_000_000);
    assert_eq!(slot.wait(Duration::ZERO), Some(crate::api::Vote::Agreed));
    lab.nodes[0].database_hangs = false;
    lab.run(100_000);
    // It comes to it later, and can do what the other could not.
    hold(&mut lab, 1, ApplyHold::default());
    lab.until("it is unlike the others", 2_000_000, |lab| lab.said("Vote 0 (success) on"));
    assert!(lab.lines.iter().all(|(at, line)| *at == 1 || !line.contains("nconsisten")));
}

/// Its database may not have it on its disk yet, however old it is.
#[test]
fn what_a_server_that_stood_has_only_just_finished_stays_in_the_log() {
    let tuning = Tuning {
        segment_bytes: 2 << 10,
        log_keep: Duration::from_secs(5),
        lag_limit: 10,
        ..Tuning::default()
    };
    let mut lab = Lab::new(3, &tuning);
    let paused = ApplyHold { paused: true, ..ApplyHold::default() };
    lab.nodes[2].engine.set_tuning(Tuning { apply_hold: paused, ..tuning.clone() });
    lab.run(10_000);
    let stood = finished(&lab, 2);
    for _ in 0..120 {
        write(&mut lab, 0);
        lab.run(450_000);
    }
    lab.nodes[2].engine.set_tuning(tuning);
    lab.run(2_000_000);
    assert!(finished(&lab, 2) > stood + 100);
    let may_go = |lab: &Lab| {
        let trim = lab.nodes[2].trim.expect("the log is trimmed");
        assert!(trim.below > 50, "what comes before is applied: {trim:?}");
        trim.flushed
    };
    let has = |lab: &Lab, index| {
        lab.nodes[2].engine.raft.segment_bases().find(|b| b.index + 1 >= index).unwrap().seqno
    };
    let flushed = may_go(&lab);
    assert!(has(&lab, flushed) <= stood + 10, "{flushed}");
    lab.run(6_000_000);
    let flushed = may_go(&lab);
    assert!(has(&lab, flushed) > stood + 100, "{flushed}");
}
