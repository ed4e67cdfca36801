use super::*;
use crate::api::{ApplyHold, ServerEnd, Tuning};
use crate::effect::ReadFor;
use crate::member::harness::Lab;
use lockstep_core::MemberId;

fn failure(damaged: bool) -> ReadFailure {
    ReadFailure { text: "cannot read log file lockstep.1.log: I/O error".into(), damaged }
}

fn request(whom: ReadFor) -> ReadRequest {
    ReadRequest { whom, from: 7, max_bytes: 1 << 20 }
}

#[test]
fn failed_read_is_repeated_with_growing_pauses_then_given_up() {
    let mut reads = LogReads::default();
    let wanted = request(ReadFor::Deliverer);
    let mut now = 0;
    for times in 0..REPETITIONS {
        let next = reads.failed(now, wanted, &failure(false));
        assert_eq!(next, AfterFailure::Repeat { first: times == 0 });
        assert_eq!(reads.deadline(), now + (FIRST_PAUSE << times));
        assert_eq!(reads.take_due(reads.deadline() - 1).count(), 0);
        now = reads.deadline();
        assert_eq!(reads.take_due(now).collect::<Vec<_>>(), [wanted]);
        assert_eq!(reads.deadline(), Micros::MAX, "it is being read");
    }
    assert_eq!(reads.failed(now, wanted, &failure(false)), AfterFailure::GiveUp);
}

#[test]
fn successful_read_ends_the_count_of_its_receiver_only() {
    let mut reads = LogReads::default();
    let (own, peer) = (request(ReadFor::Deliverer), request(ReadFor::Peer(MemberId::NIL)));
    for wanted in [own, peer] {
        assert_eq!(reads.failed(0, wanted, &failure(false)), AfterFailure::Repeat { first: true });
    }
    reads.succeeded(&own);
    assert_eq!(reads.failed(1, own, &failure(false)), AfterFailure::Repeat { first: true });
    assert_eq!(reads.failed(1, peer, &failure(false)), AfterFailure::Repeat { first: false });
}

#[test]
fn damaged_read_is_not_repeated() {
    let mut reads = LogReads::default();
    assert_eq!(reads.failed(0, request(ReadFor::Deliverer), &failure(true)), AfterFailure::GiveUp);
}

/// Three members that keep little of the log in memory. n3's server gets nothing until `release`, so that it, or a member
/// that was cut off, needs entries that are on disks only.
fn lab_with_old_entries(cut: Option<usize>) -> Lab {
    let mut lab = Lab::empty();
    lab.adjust = |config| config.cache_bytes = 16 << 10;
    for _ in 0..3 {
        lab.add(&Tuning { follow_writer: false, ..Tuning::default() }, |_| {});
    }
    lab.until("all vote", 20_000_000, |lab| lab.voters(0).len() == 3);
    lab.run(2_000_000);
    match cut {
        Some(at) => lab.cut(at, true),
        None => hold(&mut lab, true),
    }
    for _ in 0..30 {
        lab.write_bytes(0, &[1; 5_000]);
        lab.run(20_000);
    }
    lab
}

fn hold(lab: &mut Lab, paused: bool) {
    let apply_hold = ApplyHold { paused, ..ApplyHold::default() };
    lab.nodes[2].member.set_tuning(Tuning { apply_hold, follow_writer: false, ..Tuning::default() });
}

fn ends(lab: &mut Lab, at: usize) -> Option<ServerEnd> {
    lab.run(2_000_000);
    lab.nodes[at].member.server_must_end().map(|(why, _)| why)
}

#[test]
fn delivery_goes_on_after_a_read_that_failed_for_a_moment() {
    let mut lab = lab_with_old_entries(None);
    lab.nodes[2].disk.read_failure = Some(failure(false));
    hold(&mut lab, false);
    lab.run(1_000_000);
    assert!(lab.nodes[2].applied.len() < 30, "the rest is on the disk only");
    lab.nodes[2].disk.read_failure = None;
    lab.until("n3 applies all", 2_000_000, |lab| lab.nodes[2].applied.len() == 30);
    let repeated = lab.lines.iter().filter(|(_, line)| line.contains("the read is repeated"));
    assert_eq!(repeated.count(), 1);
    assert_eq!(ends(&mut lab, 2), None);
}

#[test]
fn unreadable_log_ends_the_server_and_keeps_its_data() {
    for damaged in [false, true] {
        let mut lab = lab_with_old_entries(None);
        lab.nodes[2].disk.read_failure = Some(failure(damaged));
        hold(&mut lab, false);
        lab.until("n3 fails", 10_000_000, |lab| lab.nodes[2].member.failure().is_some());
        assert!(lab.logged("the log cannot be read: cannot read log file lockstep.1.log: I/O error"));
        assert_eq!(lab.failed, [], "no state transfer");
        assert_eq!(ends(&mut lab, 2), Some(ServerEnd::LogFailed));
    }
}

#[test]
fn member_that_failed_before_its_log_stays_up() {
    let mut lab = lab_with_old_entries(None);
    lab.nodes[1].member.log_failed("cannot sync the log: I/O error");
    assert_eq!(ends(&mut lab, 1), Some(ServerEnd::LogFailed));
    let mut leaving = lab_with_old_entries(None);
    leaving.nodes[1].member.disconnect();
    leaving.nodes[1].member.log_failed("cannot sync the log: I/O error");
    assert_eq!(ends(&mut leaving, 1), None, "its server ends by itself");
    lab.nodes[2].member.fail("it is outvoted");
    lab.nodes[2].member.log_failed("cannot sync the log: I/O error");
    assert_eq!(ends(&mut lab, 2), None);
    assert_eq!(lab.nodes[2].member.failure().as_deref(), Some("it is outvoted"));
}

#[test]
fn read_to_be_given_up_is_tried_once_more_at_most() {
    let mut reads = LogReads::default();
    let wanted = request(ReadFor::Peer(MemberId::NIL));
    assert_eq!(reads.failed(0, wanted, &failure(true)), AfterFailure::GiveUp);
    assert!(reads.try_once_more(0, wanted));
    assert_eq!(reads.take_due(LAST_PAUSE).collect::<Vec<_>>(), [wanted]);
    assert_eq!(reads.failed(LAST_PAUSE, wanted, &failure(false)), AfterFailure::GiveUp);
    assert!(!reads.try_once_more(LAST_PAUSE, wanted));
    assert_eq!(reads.deadline(), Micros::MAX);
}

/// The leader's failed read once looked like a log that begins later, so that the peer's log was replaced.
#[test]
fn leader_that_cannot_read_for_peer_hands_over_leadership() {
    for damaged in [false, true] {
        let mut lab = lab_with_old_entries(Some(2));
        let first = |lab: &Lab| lab.nodes[2].member.ctx.raft.first_index();
        let before = first(&lab);
        lab.nodes[0].disk.read_failure = Some(failure(damaged));
        lab.cut(2, false);
        lab.until("n2 brings n3 up to date", 15_000_000, |lab| lab.nodes[2].applied.len() == 30);
        assert!(lab.logged("the log cannot be read for n3, so another member is to lead"));
        assert!(lab.nodes[1].member.ctx.raft.is_leader());
        assert_eq!(first(&lab), before);
        assert_eq!(lab.failed, []);
        assert_eq!(ends(&mut lab, 0), None);
    }
}

#[test]
fn leader_without_successor_that_cannot_read_for_peer_goes_on() {
    let mut lab = lab_with_old_entries(Some(2));
    lab.nodes[0].disk.read_failure = Some(failure(true));
    lab.nodes[1].member.disconnect();
    lab.run(5_000_000);
    lab.cut(2, false);
    lab.until("n3 needs a state transfer", 30_000_000, |lab| {
        lab.lines.iter().any(|(_, line)| line.contains("for n3, so it needs a state transfer"))
    });
    assert_eq!(ends(&mut lab, 0), None);
    assert!(lab.nodes[0].member.failure().is_none());
}
