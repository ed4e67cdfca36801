use super::*;
use crate::api::ApplyHold;
use crate::api::{LocalState, SubmitOutcome, Tuning};
use crate::member::harness::Lab;
use crate::member::recovery::transfer::Wanted;
use lockstep_core::policy::PolicyKind;
use lockstep_core::writeset::{DataKind, Meta, WriteSetBuilder};
use lockstep_core::{Gtid, Uuid};
use std::time::Duration;

fn hold(lab: &mut Lab, at: usize, hold: ApplyHold) {
    let tuning = Tuning { apply_hold: hold, ..Tuning::default() };
    lab.nodes[at].member.set_tuning(tuning);
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
    lab.nodes[at].member.ctx.finished()
}

fn state(lab: &Lab, at: usize) -> LocalState {
    lab.nodes[at].member.local_state()
}

#[test]
fn paused_member_persists_and_acknowledges_entries() {
    let mut lab = Lab::new(3, &Tuning::default());
    let before = write(&mut lab, 0);
    lab.run(100_000);
    assert_eq!((finished(&lab, 2), state(&lab, 2)), (before, LocalState::Synced));
    hold(&mut lab, 2, ApplyHold { paused: true, ..ApplyHold::default() });
    assert_eq!(state(&lab, 2), LocalState::Donor, "it has everything, and refuses writes");
    assert!(lab.nodes[2].member.is_held_indefinitely());
    // With another member away, commits need the paused member's acks.
    lab.cut(1, true);
    lab.run(1_000_000);
    let last = write(&mut lab, 0);
    lab.run(200_000);
    assert_eq!((finished(&lab, 2), state(&lab, 2)), (before, LocalState::Donor));
    let own = lab.nodes[2].member.ctx.raft.committed_state().seqno;
    assert!(own >= last && lab.logged("the server stops at seqno"));
    // Its server's own commits are refused: they would wait for ever.
    let refused = lab.write(2);
    assert!(matches!(refused.wait_for(Duration::ZERO), Some(SubmitOutcome::NotSent)));
    hold(&mut lab, 2, ApplyHold::default());
    assert!(!lab.nodes[2].member.is_held_indefinitely());
    lab.until("it has caught up", 2_000_000, |lab| finished(lab, 2) >= last);
    lab.until("and is Synced", 1_000_000, |lab| state(lab, 2) == LocalState::Synced);
    assert!(write(&mut lab, 2) > last);
}

#[test]
fn pending_writes_are_delivered_before_apply_hold() {
    let mut lab = Lab::new(3, &Tuning::default());
    let own = lab.write(2);
    let tuning =
        Tuning { apply_hold: ApplyHold { paused: true, ..ApplyHold::default() }, ..Tuning::default() };
    lab.nodes[2].member.set_tuning(tuning);
    lab.run(100_000);
    assert!(matches!(own.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))));
    let at = lab.nodes[2].member.delivery.deliverer.delivered();
    write(&mut lab, 0);
    lab.run(100_000);
    assert_eq!(lab.nodes[2].member.delivery.deliverer.delivered(), at);
}

#[test]
fn apply_delay_is_exact_and_lag_shows_age() {
    let mut lab = Lab::new(3, &Tuning::default());
    let delay = Duration::from_secs(20);
    hold(&mut lab, 2, ApplyHold { delay, ..ApplyHold::default() });
    lab.run(30_000_000);
    assert_eq!(state(&lab, 2), LocalState::Donor, "all is old enough, and it refuses writes");
    let appended = lab.now;
    let seqno = write(&mut lab, 0);
    lab.run(19_900_000 - (lab.now - appended));
    assert!(finished(&lab, 2) < seqno);
    let member = &lab.nodes[2].member;
    let age = member.delivery.apply_holds.age_of_held_entry(&member.ctx).unwrap();
    assert!((19.0..20.0).contains(&age), "{age}");
    assert!(!lab.nodes[2].member.is_held_indefinitely(), "it gets on by itself");
    lab.run(200_000);
    assert_eq!((finished(&lab, 2), state(&lab, 2)), (seqno, LocalState::Donor));
    hold(&mut lab, 2, ApplyHold::default());
    assert_eq!(state(&lab, 2), LocalState::Synced);
}

#[test]
fn apply_until_stops_at_seqno_gtid_and_time() {
    let mut lab = Lab::new(3, &Tuning::default());
    let seqno = write(&mut lab, 0) + 2;
    let history = lab.nodes[0].member.ctx.raft.tail_state().history;
    for until in [Until::Seqno(seqno), Until::Gtid(Gtid { uuid: history, seqno })] {
        hold(&mut lab, 2, ApplyHold { until: Some(until), ..ApplyHold::default() });
        assert_eq!(lab.nodes[2].member.is_held_indefinitely(), finished(&lab, 2) == seqno, "{until:?}");
        for _ in 0..4 {
            write(&mut lab, 0);
        }
        assert_eq!(finished(&lab, 2), seqno, "{until:?}");
        assert!(lab.nodes[2].member.is_held_indefinitely());
    }
    let until = Until::Gtid(Gtid { uuid: Uuid([9; 16]), seqno: seqno + 100 });
    hold(&mut lab, 2, ApplyHold { until: Some(until), ..ApplyHold::default() });
    assert_eq!(finished(&lab, 2), seqno, "of another history: nobody can say where that is");
    hold(&mut lab, 2, ApplyHold::default());
    let last = write(&mut lab, 0);
    lab.run(100_000);
    assert_eq!(finished(&lab, 2), last);
    let time = Until::Time(lab.nodes[0].member.wall() + 1_000_000);
    hold(&mut lab, 2, ApplyHold { until: Some(time), ..ApplyHold::default() });
    let before = write(&mut lab, 0);
    lab.run(1_500_000);
    write(&mut lab, 0);
    lab.run(100_000);
    assert_eq!(finished(&lab, 2), before);
}

#[test]
fn leadership_moves_to_member_without_apply_hold() {
    let mut lab = Lab::new(3, &Tuning::default());
    assert_eq!(lab.leader(1), Some(0));
    hold(&mut lab, 0, ApplyHold { paused: true, ..ApplyHold::default() });
    write(&mut lab, 1);
    lab.until("another one leads", 3_000_000, |lab| lab.leader(2).is_some_and(|at| at != 0));
    // With no other candidate, leadership stays.
    let leader = lab.leader(2).unwrap();
    for at in 1..3 {
        hold(&mut lab, at, ApplyHold { paused: true, ..ApplyHold::default() });
    }
    lab.run(5_000_000);
    assert_eq!(lab.leader(0), Some(leader));
}

/// Proxies must not send writes to a member that refuses them, although no other write is held back.
#[test]
fn apply_hold_desyncs_and_moves_leadership_without_writes() {
    let (hour, past) = (Duration::from_secs(3600), Until::Time(1));
    for (what, line, for_good) in [
        (ApplyHold { paused: true, ..ApplyHold::default() }, "apply.paused: the server stops at", true),
        (
            ApplyHold { delay: hour, ..ApplyHold::default() },
            "apply.delay: the server gets entries when",
            false,
        ),
        (ApplyHold { until: Some(past), ..ApplyHold::default() }, "apply.until: the server stops at", true),
        (
            ApplyHold { until: Some(Until::Seqno(1)), ..ApplyHold::default() },
            "apply.until: the server stops",
            true,
        ),
        // Not reached, but the server refuses writes all the same.
        (ApplyHold { until: Some(Until::Seqno(1_000)), ..ApplyHold::default() }, "", false),
    ] {
        let mut lab = Lab::new(3, &Tuning::default());
        write(&mut lab, 0);
        lab.run(1_000_000);
        assert_eq!((lab.leader(1), state(&lab, 0)), (Some(0), LocalState::Synced), "{what:?}");
        hold(&mut lab, 0, what);
        assert_eq!(state(&lab, 0), LocalState::Donor, "{what:?}");
        let member = &lab.nodes[0].member;
        assert!(member.health().held_back && member.is_held_indefinitely() == for_good, "{what:?}");
        assert!(lab.logged(line), "{what:?}");
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
fn weak_policy_leader_is_member_that_may_write() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.nodes[0].member.request_policy(|policy| policy.kind = PolicyKind::Async);
    lab.until("it is in force", 5_000_000, |lab| {
        lab.nodes.iter().all(|node| node.member.ctx.raft.committed_state().policy.is_weak())
    });
    lab.run(200_000);
    let leader = lab.leader(0).unwrap();
    hold(&mut lab, leader, ApplyHold { paused: true, ..ApplyHold::default() });
    lab.until("another one leads", 3_000_000, |lab| {
        (0..3).all(|at| lab.leader(at).is_some_and(|now| now != leader))
    });
    let leader = lab.leader(0).unwrap();
    assert!(lab.nodes[leader].member.may_originate() && !lab.nodes[leader].member.ctx.is_held_back());
}

#[test]
fn lack_of_writable_member_is_logged_until_resolved() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.nodes[0].member.request_policy(|policy| policy.kind = PolicyKind::Semisync);
    lab.until("it is in force", 5_000_000, |lab| {
        lab.nodes.iter().all(|node| node.member.ctx.raft.committed_state().policy.is_weak())
    });
    let paused = ApplyHold { paused: true, ..ApplyHold::default() };
    for at in 0..3 {
        hold(&mut lab, at, paused);
    }
    lab.run(20_000_000);
    let logged = |lab: &Lab| lab.lines.iter().filter(|(_, line)| line.contains("nobody may write")).count();
    assert_eq!(logged(&lab), 1, "{:#?}", lab.lines);
    assert!(lab.logged(
        "under commit.policy = semisync only the leader's server does, which is this one; entries are kept"
    ));
    lab.run(30_000_000);
    assert_eq!(logged(&lab), 2);
    hold(&mut lab, 1, ApplyHold::default());
    lab.until("it leads", 10_000_000, |lab| lab.leader(0) == Some(1) && lab.leader(1) == Some(1));
    lab.run(60_000_000);
    assert_eq!(logged(&lab), 2);
}

#[test]
fn founder_under_apply_hold_sees_first_view() {
    let paused = ApplyHold { paused: true, ..ApplyHold::default() };
    let mut lab = Lab::new(1, &Tuning { apply_hold: paused, ..Tuning::default() });
    lab.run(1_000_000);
    assert_eq!(lab.nodes[0].views, [["n1"]]);
    assert!(lab.nodes[0].member.roster.sync.is_notified(), "its server serves readers");
    assert_eq!(state(&lab, 0), LocalState::Donor);
}

#[test]
fn expired_apply_delay_without_quorum_does_not_spin() {
    let mut lab = Lab::new(3, &Tuning::default());
    hold(&mut lab, 2, ApplyHold { delay: Duration::from_secs(20), ..ApplyHold::default() });
    write(&mut lab, 0);
    lab.cut(2, true);
    lab.run(30_000_000);
    lab.until("it sleeps", 1_000_000, |lab| {
        let member = &lab.nodes[2].member;
        member.deadline() > member.ctx.now() + 1_000
    });
    lab.cut(2, false);
    lab.until("it has caught up", 5_000_000, |lab| finished(lab, 2) >= finished(lab, 0));
}

#[test]
fn apply_hold_never_shows_synced_for_a_moment() {
    let mut lab = Lab::new(3, &Tuning::default());
    hold(&mut lab, 2, ApplyHold { paused: true, ..ApplyHold::default() });
    write(&mut lab, 0);
    lab.run(100_000);
    lab.nodes[2].member.desync();
    lab.run(10_000);
    lab.nodes[2].member.resync();
    for _ in 0..1_000 {
        lab.run(500);
        assert_eq!(state(&lab, 2), LocalState::Donor);
    }
    // While entries are read from the log, the hold stays in force; not once it has been lifted.
    let member = &mut lab.nodes[2].member;
    member.delivery.apply_holds.begin_round();
    member.delivery.apply_holds.keep(&member.ctx);
    assert!(member.delivery.apply_holds.is_holding());
    member.set_tuning(Tuning::default());
    member.delivery.apply_holds.begin_round();
    member.delivery.apply_holds.keep(&member.ctx);
    assert!(!member.delivery.apply_holds.is_holding());
}

#[test]
fn second_apply_until_is_logged_like_first() {
    let mut lab = Lab::new(3, &Tuning::default());
    let seqno = write(&mut lab, 0);
    for end in [seqno + 1, seqno + 3] {
        hold(&mut lab, 2, ApplyHold { until: Some(Until::Seqno(end)), ..ApplyHold::default() });
        for _ in 0..3 {
            write(&mut lab, 0);
        }
        assert!(lab.logged(&format!("apply.until: the server stops at seqno {end},")), "{end}");
    }
}

#[test]
fn apply_until_time_is_logged_once_under_load() {
    for load in [true, false] {
        let mut lab = Lab::new(3, &Tuning::default());
        let end = lab.nodes[0].member.wall() + 100_000;
        hold(&mut lab, 2, ApplyHold { until: Some(Until::Time(end)), ..ApplyHold::default() });
        while load && lab.nodes[0].member.wall() <= end + 100_000 {
            lab.write(0);
            lab.run(500);
        }
        lab.run(5_000_000);
        let logged =
            lab.lines.iter().filter(|(_, line)| line.contains("apply.until: the server stops at seqno"));
        let logged: Vec<_> = logged.map(|(_, line)| line).collect();
        let seqno = finished(&lab, 2);
        assert!(logged.len() == 1 && logged[0].contains(&format!("at seqno {seqno},")), "{load}: {logged:?}");
    }
}

fn set(parts: &[&[u8]]) -> WriteSet {
    let mut builder = WriteSetBuilder::new();
    builder.append_key(parts, KeyType::Exclusive).unwrap();
    builder.append_data(DataKind::Ordered, b"row").unwrap();
    WriteSet::parse(&builder.finish(&Meta::default())).unwrap()
}

#[test]
fn apply_order_decides_dependency() {
    let mut apply_holds = ApplyHolds::new(ApplyOrder::Schema);
    let a1 = set(&[b"a", b"t", b"1"]);
    let a2 = set(&[b"a", b"u", b"2"]);
    let b1 = set(&[b"b", b"t", b"1"]);
    assert_eq!(apply_holds.depends_on(10, &a1, 4, 0), 4);
    assert_eq!(apply_holds.depends_on(11, &b1, 4, 0), 4);
    assert_eq!(apply_holds.depends_on(12, &a2, 4, 0), 10, "another table of the same database");
    assert_eq!(apply_holds.depends_on(13, &b1, 12, 0), 12, "certification's parent counts as well");
    assert_eq!(apply_holds.depends_on(14, &a1, 4, 0), 12);
    // Dependencies from before the change of the order are unknown.
    apply_holds.last.clear();
    apply_holds.floor = 14;
    assert_eq!(apply_holds.depends_on(15, &b1, 4, 0), 14);
    apply_holds.order = ApplyOrder::Serial;
    assert_eq!(apply_holds.depends_on(16, &b1, 4, 0), 15);
    apply_holds.order = ApplyOrder::Writeset;
    assert_eq!(apply_holds.depends_on(17, &b1, 4, 0), 4);
}

#[test]
fn apply_order_forgets_finished_databases() {
    let mut apply_holds = ApplyHolds::new(ApplyOrder::Schema);
    for seqno in 1..3 * DATABASES_MAX as Seqno {
        let one = set(&[&seqno.to_le_bytes(), b"t", b"1"]);
        assert_eq!(apply_holds.depends_on(seqno, &one, 0, seqno - 10), 0);
        assert!(apply_holds.last.len() <= DATABASES_MAX + 3);
    }
}

#[test]
fn log_growth_under_apply_hold_is_logged() {
    let mut lab = Lab::new(3, &Tuning::default());
    let limit = Tuning::default().log_max_bytes;
    lab.nodes[2].member.note_log_size(2 * limit);
    lab.run(10_000);
    assert!(!lab.logged("more than log.max_size"), "its server has everything");
    hold(&mut lab, 2, ApplyHold { paused: true, ..ApplyHold::default() });
    write(&mut lab, 0);
    for bytes in [limit, limit + 1, 2 * limit] {
        lab.nodes[2].member.note_log_size(bytes);
        lab.run(10_000);
    }
    let logged = lab.lines.iter().filter(|(at, line)| *at == 2 && line.contains("more than log.max_size"));
    assert_eq!(logged.count(), 1);
}

#[test]
fn joiner_is_not_given_donor_under_apply_hold() {
    let mut lab = Lab::new(3, &Tuning::default());
    // n2 is frozen for a moment. Then it receives, at once, an entry, the joiner's request and its own apply hold.
    lab.nodes[1].frozen = true;
    write(&mut lab, 0);
    lab.nodes[2].member.request_state(bytes::Bytes::from_static(b"request"), "n2,".into());
    lab.run(50_000);
    let paused = ApplyHold { paused: true, ..ApplyHold::default() };
    lab.nodes[1].member.set_tuning(Tuning { apply_hold: paused, ..Tuning::default() });
    lab.nodes[1].frozen = false;
    lab.until("another one donates", 5_000_000, |lab| {
        lab.lines.iter().any(|(at, line)| *at == 0 && line.contains("donates its state to n3"))
    });
    assert!(lab.logged("n2 is to donate state to n3"));
    assert_eq!(state(&lab, 0), LocalState::Donor);
    lab.run(2_000_000);
    assert!(!lab.lines.iter().any(|(at, line)| *at == 1 && line.contains("donates its state")));
}

#[test]
fn donor_under_new_apply_hold_releases_joiner() {
    let mut lab = Lab::new(3, &Tuning::default());
    let at_least = write(&mut lab, 0) + 1;
    lab.nodes[2].member.request_state(bytes::Bytes::from_static(b"request"), "n2,".into());
    let joiner = lab.id(2);
    // Accepted: the joiner begins at an entry that n2 has not received yet.
    let donor = &mut lab.nodes[1].member;
    let wanted = Wanted { at_least, position: -1, request: bytes::Bytes::from_static(b"request") };
    let own = donor.standing();
    donor.recovery.transfers.on_donate(&mut donor.ctx, own, joiner, wanted);
    lab.nodes[0].frozen = true;
    lab.run(20_000);
    assert!(lab.logged("n2 donates") && state(&lab, 1) == LocalState::Donor);
    hold(&mut lab, 1, ApplyHold { paused: true, ..ApplyHold::default() });
    lab.nodes[0].frozen = false;
    lab.run(100_000);
    assert!(lab.logged("does not donate its state to n3") && lab.logged("no donor yet"));
    lab.until("another one donates", 5_000_000, |lab| {
        lab.logged("donates its state to n3") || lab.logged("n1 donates")
    });
}

#[test]
fn vote_does_not_wait_for_member_under_apply_hold() {
    let mut lab = Lab::new(2, &Tuning::default());
    hold(&mut lab, 1, ApplyHold { paused: true, ..ApplyHold::default() });
    lab.run(2_000_000);
    lab.nodes[0].database_hangs = true;
    let seqno = write(&mut lab, 0);
    let (slot, error) = (crate::reply::Reply::new(), "no such table".to_owned());
    lab.nodes[0].member.vote(seqno, 5, error, crate::api::VoteReply(slot.clone()));
    lab.run(1_000_000);
    assert_eq!(slot.wait(Duration::ZERO), Some(crate::api::Vote::Agreed));
    lab.nodes[0].database_hangs = false;
    lab.run(100_000);
    // n2 applies the entry later, without the others' error.
    hold(&mut lab, 1, ApplyHold::default());
    lab.until("it is unlike the others", 2_000_000, |lab| lab.logged("Vote 0 (success) on"));
    assert!(lab.lines.iter().all(|(at, line)| *at == 1 || !line.contains("nconsisten")));
}

/// The database may not have the entry on disk yet, however old it is.
#[test]
fn entries_just_finished_after_hold_stay_in_log() {
    let tuning = Tuning {
        segment_bytes: 2 << 10,
        log_keep: Duration::from_secs(5),
        lag_limit: 10,
        ..Tuning::default()
    };
    let mut lab = Lab::new(3, &tuning);
    let paused = ApplyHold { paused: true, ..ApplyHold::default() };
    lab.nodes[2].member.set_tuning(Tuning { apply_hold: paused, ..tuning.clone() });
    lab.run(10_000);
    let held_before = finished(&lab, 2);
    for _ in 0..120 {
        write(&mut lab, 0);
        lab.run(450_000);
    }
    lab.nodes[2].member.set_tuning(tuning);
    lab.run(2_000_000);
    assert!(finished(&lab, 2) > held_before + 100);
    let may_go = |lab: &Lab| {
        let trim = lab.nodes[2].trim.expect("the log is trimmed");
        assert!(trim.below > 50, "what comes before is applied: {trim:?}");
        trim.flushed
    };
    let has = |lab: &Lab, index| {
        lab.nodes[2].member.ctx.raft.segment_bases().find(|b| b.index + 1 >= index).unwrap().seqno
    };
    let flushed = may_go(&lab);
    assert!(has(&lab, flushed) <= held_before + 10, "{flushed}");
    lab.run(6_000_000);
    let flushed = may_go(&lab);
    assert!(has(&lab, flushed) > held_before + 100, "{flushed}");
}
