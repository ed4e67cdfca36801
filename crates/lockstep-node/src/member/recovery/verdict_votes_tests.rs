use super::*;
use crate::api::Tuning;
use crate::member::harness::Lab;
use lockstep_core::raft::Failpoint;
use lockstep_core::writeset::flags;
use std::sync::atomic::Ordering;

/// Three members. One of them, if any, passes write-sets whose origin had not seen the trim mark; on all others they fail.
fn lab(wrong: Option<usize>) -> Lab {
    let tuning = Tuning { follow_writer: false, ..Tuning::default() };
    let mut lab = Lab::empty();
    for at in 0..3 {
        lab.adjust = match wrong == Some(at) {
            true => |config| config.failpoints = Some(Failpoint::TrimMarkIgnored).into(),
            false => |_| {},
        };
        lab.add(&tuning, |_| {});
    }
    lab.until("all vote", 20_000_000, |lab| lab.voters(0).len() == 3);
    lab.run(2_000_000);
    assert_eq!(lab.leader(0), Some(0));
    lab
}

fn verdicts_to(lab: &Lab, at: usize) -> Seqno {
    lab.nodes[at].member.ctx.raft.committed_state().verdicts_to
}

/// More writes than the low-water marks stay behind the finished seqno.
fn write_many(lab: &mut Lab, at: usize) {
    for _ in 0..2_200 {
        drop(lab.write(at));
    }
}

/// Runs until the condition holds. Each server finishes its entries at once, also those of its own threads.
#[track_caller]
fn until(lab: &mut Lab, what: &str, so: impl Fn(&Lab) -> bool) {
    let end = lab.now + 20_000_000;
    while !so(lab) {
        assert!(lab.now < end, "{what}\n{:#?}", lab.lines);
        lab.step();
        for node in &lab.nodes {
            node.finished.fetch_max(node.member.delivery.deliverer.delivered(), Ordering::AcqRel);
        }
    }
}

/// Writes until there is another trim mark. Returns how long the vote before it lasted.
fn until_next_mark(lab: &mut Lab, at: usize) -> Micros {
    write_many(lab, at);
    let before = verdicts_to(lab, at);
    let (began, mut first) = (lab.now, None);
    while verdicts_to(lab, at) == before {
        let now = lab.now;
        assert!(now < began + 20_000_000, "no mark\n{:#?}", lab.lines);
        until(lab, "a step", |lab| lab.now > now);
        let poll = &lab.nodes[at].member.recovery.verdict_votes.poll;
        first = first.or(poll.as_ref().map(|poll| poll.began));
    }
    first.map_or(0, |first| lab.now - first)
}

/// A write-set that had seen nothing after this seqno passes on the wrong member only.
fn a_verdict_differs(lab: &mut Lab, old: Seqno) {
    until_next_mark(lab, 0);
    assert!(lab.nodes[0].member.ctx.raft.committed_state().trim > old);
    drop(lab.write_seen(1, b"late", flags::TRX_START | flags::TRX_END, old));
    write_many(lab, 1);
}

#[test]
fn leader_with_a_wrong_verdict_stops_and_others_go_on() {
    let mut lab = lab(Some(0));
    let old = lab.nodes[0].member.delivery.deliverer.delivered();
    a_verdict_differs(&mut lab, old);
    until(&mut lab, "n1 stops", |lab| lab.nodes[0].member.failure().is_some());
    assert!(lab.logged("came out otherwise here than on most members (n2, n3)"), "{:#?}", lab.lines);
    until(&mut lab, "another one leads", |lab| lab.leader(1).is_some_and(|leader| leader != 0));
    let leader = lab.leader(1).unwrap();
    until_next_mark(&mut lab, leader);
    let others: Vec<usize> = lab.failed.iter().map(|(at, _)| *at).collect();
    assert_eq!(others, [0], "{:?}", lab.failed);
}

#[test]
fn follower_with_a_wrong_verdict_stops_at_the_mark() {
    let mut lab = lab(Some(2));
    let old = lab.nodes[0].member.delivery.deliverer.delivered();
    a_verdict_differs(&mut lab, old);
    until(&mut lab, "n3 stops", |lab| lab.nodes[2].member.failure().is_some());
    assert!(until_next_mark(&mut lab, 0) < TIMEOUT, "n2 agrees");
    let failed: Vec<usize> = lab.failed.iter().map(|(at, _)| *at).collect();
    assert_eq!(failed, [2], "{:?}", lab.failed);
    assert!(lab.failed[0].1.contains("came out otherwise here: the cluster says failed"));
}

#[test]
fn most_members_decide_and_lagging_ones_are_not_awaited() {
    for (others, silent, waited, due) in [
        (&[][..], 0, 0, Some(SUCCESS)),
        // Two members: nobody could outvote the leader.
        (&[], 1, 0, Some(SUCCESS)),
        (&[5], 0, 0, Some(SUCCESS)),
        // Three.
        (&[], 2, 0, None),
        (&[], 2, TIMEOUT, None),
        (&[], 2, TIMEOUT_IN_DISPUTE, Some(SUCCESS)),
        (&[7], 3, TIMEOUT, Some(SUCCESS)),
        (&[7], 1, 0, Some(SUCCESS)),
        (&[5], 1, TIMEOUT, None),
        (&[5], 1, TIMEOUT_IN_DISPUTE, Some(SUCCESS)),
        (&[5, 5], 0, 0, Some(5)),
        (&[5, 7], 0, 0, Some(SUCCESS)),
        (&[5, 6], 0, 0, Some(SUCCESS)),
        // Five.
        (&[5, 5], 2, 0, None),
        (&[5, 5, 5], 1, 0, Some(5)),
    ] {
        assert_eq!(outcome(7, others, silent, waited), due, "{others:?} {silent} {waited}");
    }
}

#[test]
fn members_of_an_earlier_version_are_not_asked() {
    let mut lab = lab(None);
    for at in [1, 2] {
        lab.nodes[at].version = VERDICTS_SINCE - 1;
        lab.relink(0, at);
    }
    lab.run(3_000_000);
    assert_eq!(lab.leader(0), Some(0));
    assert_eq!(until_next_mark(&mut lab, 0), 0);
    assert!(!lab.logged("the connection is closed and made again"));
}
