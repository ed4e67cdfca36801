//! Commit policies: when a commit may return, and what a weak one may lose.

use crate::net::*;
use lockstep_core::members::Role as MemberRole;
use lockstep_core::message::Message;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::raft::*;
use lockstep_core::{EntryKind, Index, Micros};

/// Three voters, led by 1, under this policy.
fn under(policy: Policy) -> Net {
    let mut net = Net::new(3);
    net.elect(1);
    change(&mut net, 1, policy);
    net
}

fn change(net: &mut Net, leader: usize, policy: Policy) {
    let now = net.now;
    net.raft(leader).append_control(now, EntryKind::Policy, policy.to_payload()).unwrap();
    net.settle();
    assert_eq!(net.raft(leader).committed_state().policy, policy);
}

fn weak(kind: PolicyKind) -> Policy {
    Policy { acks: 1, max_at_risk: 2, ..Policy::of(kind) }
}

#[test]
fn under_quorum_nothing_is_asked_for_but_to_be_committed() {
    let mut net = under(Policy::default());
    net.propose(2, "a");
    net.settle();
    for n in 1..=3 {
        assert_eq!(net.raft(n).policy_index(), u64::MAX);
        assert_eq!(net.raft(n).early(), net.raft(n).deliverable());
    }
}

#[test]
fn async_leader_delivers_up_to_max_at_risk() {
    let mut net = under(weak(PolicyKind::Async));
    let commit = net.raft(1).commit();
    net.isolate(1);
    for text in ["a", "b", "c"] {
        net.propose(1, text);
    }
    net.drain(1);
    net.sync(1);
    net.drain(1);
    assert_eq!(net.raft(1).deliverable(), commit);
    assert_eq!(net.raft(1).early(), commit + 2, "no more than two at risk");
    for n in 2..=3 {
        assert_eq!(net.raft(n).early(), net.raft(n).deliverable(), "nobody else goes ahead");
    }
}

#[test]
fn async_leader_delivers_up_to_memory_limit() {
    let mut net = Net::with(3, |config| config.max_at_risk_bytes = 1000);
    net.elect(1);
    change(&mut net, 1, Policy { max_at_risk: 100, ..weak(PolicyKind::Async) });
    let commit = net.raft(1).commit();
    net.isolate(1);
    let text = "x".repeat(300);
    for _ in 0..10 {
        net.propose(1, &text);
        net.drain(1);
        net.sync(1);
        net.drain(1);
    }
    let size = net.raft(1).entry(commit + 1).unwrap().size() as u64;
    let ahead = 1000_u64.div_ceil(size);
    assert_eq!(net.raft(1).early(), commit + ahead, "each has {size} bytes");
    assert_eq!(net.raft(1).blocked_on(), Some((commit + ahead + 1, BlockedOn::Bytes(1000))));
    // A majority has them.
    net.heal();
    net.run(4 * HEARTBEAT);
    assert_eq!(net.raft(1).blocked_on(), None);
    assert!(net.raft(1).early() >= commit + 10);
}

#[test]
fn async_leader_waits_for_entries_not_its_own_writes() {
    let mut net = under(Policy { max_at_risk: 100, ..weak(PolicyKind::Async) });
    let commit = net.raft(1).commit();
    net.isolate(1);
    let now = net.now;
    net.propose(1, "a");
    net.drain(1);
    net.raft(1).append_control(now, EntryKind::Policy, Policy::default().to_payload()).unwrap();
    net.propose(1, "b");
    net.drain(1);
    net.sync(1);
    net.drain(1);
    assert_eq!(net.raft(1).early(), commit + 1, "the policy waits for its commit, and what follows for it");
}

#[test]
fn semisync_waits_for_the_acks_that_it_asks_for() {
    let mut net = under(Policy { acks: 2, ..weak(PolicyKind::Semisync) });
    net.propose(1, "both have it");
    net.settle();
    let last = net.raft(1).last_index();
    assert!(net.raft(1).policy_index() >= last);

    net.isolate(3);
    net.propose(1, "only 2 has it");
    net.settle();
    assert_eq!(net.raft(1).commit(), last + 1, "a majority has it");
    assert_eq!(net.raft(1).policy_index(), last, "but not two others");

    // A change of policy lets those go who waited under the old one.
    change(&mut net, 1, Policy::default());
    assert!(net.raft(1).policy_index() > last);
}

#[test]
fn semisync_ack_on_persist_or_receive() {
    for on_receive in [false, true] {
        let mut net = under(Policy { on_receive, ..weak(PolicyKind::Semisync) });
        net.isolate(3);
        net.node(2).slow_disk = true;
        let last = net.raft(1).last_index();
        net.propose(1, "in its memory");
        net.settle();
        assert_eq!(net.raft(1).policy_index() > last, on_receive);
        assert_eq!(net.raft(1).commit(), last, "a majority has it on disk, or it is not committed");
        net.sync(2);
        net.settle();
        assert!(net.raft(1).policy_index() > last && net.raft(1).commit() > last);
    }
}

#[test]
fn zone_acks_apply_to_all_policies_but_async() {
    // 1 and 2 are in one zone, 3 in another.
    for kind in [PolicyKind::Quorum, PolicyKind::Semisync, PolicyKind::Async] {
        let mut net = under(Policy { zone_acks: 1, max_at_risk: 100, ..weak(kind) });
        net.isolate(3);
        let last = net.raft(1).last_index();
        net.propose(1, "in one zone");
        net.settle();
        assert_eq!(net.raft(1).commit(), last + 1);
        assert_eq!(net.raft(1).policy_index() > last, kind == PolicyKind::Async, "{kind:?}");
        net.heal();
        net.run(ELECTION);
        assert!(net.raft(1).policy_index() > last, "{kind:?}");
    }
}

#[test]
fn sole_voter_knows_last_replicated_seqno() {
    let mut net = Net::new(1);
    net.add(2, DiskImage::default(), |_| {});
    net.add(3, DiskImage::default(), |_| {});
    net.elect(1);
    let now = net.now;
    assert_eq!(net.raft(1).persisted_elsewhere(), None, "there is nobody else");
    let one = voters([1]).with(member(2, MemberRole::Learner));
    net.raft(1).change_membership(now, one.clone()).unwrap();
    net.settle();
    net.raft(1).change_membership(now, one.with(member(3, MemberRole::Learner))).unwrap();
    net.settle();
    change(&mut net, 1, weak(PolicyKind::Async));
    let at_risk = |net: &mut Net| {
        let elsewhere = net.raft(1).persisted_elsewhere().expect("it leads alone");
        net.raft(1).committed_state().seqno - elsewhere
    };
    net.propose(1, "everywhere");
    net.settle();
    assert_eq!(at_risk(&mut net), 0);
    net.isolate(2);
    net.propose(1, "with one of them");
    net.settle();
    assert_eq!(at_risk(&mut net), 0);
    net.isolate(3);
    for text in ["a", "b", "c"] {
        net.propose(1, text);
        net.settle();
    }
    assert_eq!(at_risk(&mut net), 3);
    net.heal();
    net.run(ELECTION);
    assert_eq!(at_risk(&mut net), 0);
}

/// The members that are shown, in a view.
fn show(net: &mut Net, leader: usize, members: &[usize]) {
    let shown = members.iter().map(|n| lockstep_core::members::ViewMember {
        id: id(*n),
        view_uuid: id(*n),
        name: format!("n{n}"),
        incoming: String::new(),
    });
    let mut w = lockstep_core::codec::Writer::new();
    lockstep_core::members::View { number: 1, members: shown.collect() }.encode(&mut w);
    let now = net.now;
    net.raft(leader).append_control(now, EntryKind::View, w.into_bytes()).unwrap();
}

#[test]
fn stronger_policy_does_not_apply_backwards() {
    let quorum_with_a_zone = Policy { zone_acks: 1, ..Policy::default() };
    for stronger in [
        Policy { acks: 2, ..weak(PolicyKind::Semisync) },
        Policy::of(PolicyKind::All),
        quorum_with_a_zone, // 3 is in another one
    ] {
        let mut net = Net::new(3);
        net.elect(1);
        show(&mut net, 1, &[1, 2, 3]);
        net.settle();
        net.isolate(3);
        net.propose(1, "before");
        net.drain(1);
        let before = net.raft(1).last_index();
        change(&mut net, 1, stronger);
        let policy = net.raft(1).last_index();
        net.propose(1, "after");
        net.settle();
        assert_eq!((policy, net.raft(1).commit()), (before + 1, before + 2));
        for n in 1..=2 {
            assert_eq!(net.raft(n).policy_index(), policy, "{stronger:?} on {n}: 3 has neither");
        }
    }
}

#[test]
fn semisync_falls_back_and_returns_with_replicas() {
    let mut net = under(Policy { acks: 2, timeout: ELECTION / 2, ..weak(PolicyKind::Semisync) });
    net.isolate(3);
    net.propose(1, "a");
    net.settle();
    let last = net.raft(1).last_index();
    assert!(net.raft(1).policy_index() < last && !net.raft(1).has_fallen_back());
    net.run(ELECTION);
    assert!(net.raft(1).has_fallen_back());
    assert!(net.raft(2).has_fallen_back(), "the others hear of it");
    assert!(net.raft(1).policy_index() >= last);
    net.heal();
    net.run(3 * ELECTION);
    assert!(!net.raft(1).has_fallen_back() && !net.raft(2).has_fallen_back());
}

#[test]
fn all_waits_for_every_member_of_the_view_learners_too() {
    let mut net = Net::new(3);
    net.elect(1);
    show(&mut net, 1, &[1, 2, 3]);
    change(&mut net, 1, Policy::of(PolicyKind::All));
    net.propose(2, "a");
    net.settle();
    let first = net.raft(1).last_index();
    assert!(net.raft(2).policy_index() >= first);
    net.isolate(3);
    net.propose(2, "b");
    net.settle();
    assert_eq!(net.raft(2).commit(), first + 1);
    assert_eq!(net.raft(2).policy_index(), first, "3 does not have it");
    // It is taken out of the view: nobody waits for it any more.
    show(&mut net, 1, &[1, 2]);
    net.settle();
    assert!(net.raft(2).policy_index() > first);
}

#[test]
fn new_leader_takes_tail_of_learner() {
    let mut net = Net::new(3);
    net.add(4, DiskImage::default(), |_| {});
    net.elect(1);
    let now = net.now;
    let with = voters([1, 2, 3]).with(member(4, MemberRole::Learner));
    net.raft(1).change_membership(now, with).unwrap();
    net.settle();
    change(&mut net, 1, weak(PolicyKind::Semisync));
    let commit = net.raft(1).commit();
    // The leader reaches the learner only.
    net.isolate(2);
    net.isolate(3);
    net.propose(1, "acknowledged");
    net.settle();
    assert_eq!(net.raft(1).commit(), commit);
    assert_eq!(net.raft(1).early(), commit + 1, "one other member has it");

    net.crash(1);
    net.heal();
    net.run(6 * ELECTION);
    let successor = net.leader().expect("somebody takes over");
    assert_ne!(successor, 1);
    net.settle();
    assert!(net.texts().contains(&"acknowledged".to_string()), "{:?}", net.texts());
}

/// The leader, cut off, places "lost" and has it on its disk: the seqno that it gave.
fn given_alone(net: &mut Net) -> lockstep_core::Seqno {
    net.isolate(1);
    net.propose(1, "lost");
    net.drain(1);
    net.sync(1);
    net.drain(1);
    net.raft(1).tail_state().seqno
}

#[test]
fn lost_tail_is_rescued_and_its_seqnos_left_out() {
    let mut net = under(weak(PolicyKind::Async));
    let given = given_alone(&mut net);
    assert_eq!(net.raft(1).early(), net.raft(1).last_index());
    net.run(6 * ELECTION);
    let successor = (2..=3).find(|n| net.raft(*n).role() == Role::Leader).expect("somebody takes over");
    assert!(net.raft(successor).tail_state().seqno > given, "no seqno means two things");
    assert_eq!(
        net.raft(successor).tail_state().leader,
        id(successor),
        "the view that leaves them out names its leader"
    );
    net.heal();
    net.run(4 * ELECTION);
    net.settle();
    let rescued = &net.node(1).rescued;
    assert_eq!(rescued.len(), 1, "{rescued:?}");
    let texts: Vec<_> = rescued[0].entries.iter().map(|e| e.payload()).collect();
    assert!(texts.contains(&bytes::Bytes::from_static(b"lost")), "{texts:?}");
    let kept = net.node(1).outputs.iter().find_map(|o| match o {
        Output::Diverged { kept, .. } => Some(*kept),
        _ => None,
    });
    assert_eq!(kept, Some(given - 1), "its server has it");
    net.run(4 * ELECTION);
    assert!(!net.texts().contains(&"lost".to_string()), "nothing is merged silently");
}

#[test]
fn absent_member_learns_left_out_seqnos() {
    let mut net = under(weak(PolicyKind::Async));
    let commit = net.raft(1).commit();
    let before = net.raft(1).tail_state().seqno;
    let given = given_alone(&mut net);
    // It reads back that all before it was committed: that is not in memory then.
    assert_eq!(net.node(1).disk.commit_hint, commit);
    net.crash(1);
    net.run(6 * ELECTION);
    net.restart(1);
    assert_eq!(net.raft(1).gap_around(given), None, "nobody has told it yet");
    net.heal();
    net.run(2 * ELECTION);
    let left_out = |net: &mut Net| {
        let gap = net.raft(1).gap_around(given).expect("its database may be where the cluster never was");
        assert!(gap.before == before && gap.after > given, "{gap:?}, {before} before {given}");
        assert_eq!(gap.index, commit + 1, "the view is where the first one was that is lost");
        assert_eq!(net.raft(1).gap_around(gap.before), None);
        assert_eq!(net.raft(1).gap_around(gap.after), None);
        gap
    };
    let told = left_out(&mut net);
    assert_eq!(net.raft(1).left_out().collect::<Vec<_>>(), [(told.before + 1, told.after - 1)]);
    net.crash(1);
    net.restart(1);
    assert_eq!(left_out(&mut net), told, "it reads it back");
    net.raft(1).log_trimmed(told.index + 1);
    assert_eq!(left_out(&mut net), told, "its segment is still there");
}

/// Three voters and a learner, led by 1 under semisync, and what only the learner has beside the leader, which is gone.
fn only_the_learner_has_it(texts: &[String], adjust: fn(&mut Config)) -> Net {
    let mut net = Net::with(3, adjust);
    net.add(4, DiskImage::default(), adjust);
    net.elect(1);
    let now = net.now;
    let with = voters([1, 2, 3]).with(member(4, MemberRole::Learner));
    net.raft(1).change_membership(now, with).unwrap();
    net.settle();
    change(&mut net, 1, Policy { max_at_risk: 100, ..weak(PolicyKind::Semisync) });
    let commit = net.raft(1).commit();
    net.isolate(2);
    net.isolate(3);
    for text in texts {
        net.propose(1, text);
        net.settle();
    }
    assert_eq!(net.raft(1).early(), commit + texts.len() as u64);
    net.crash(1);
    net.heal();
    for (a, b) in [(2, 3), (2, 4), (3, 4)] {
        let now = net.now;
        net.raft(a).peer_up(now, id(b));
        net.raft(b).peer_up(now, id(a));
    }
    net
}

/// Runs until a message of this kind is held back, which then is lost.
fn lose_one(net: &mut Net, kind: fn(usize, usize, &Message) -> bool) -> Message {
    net.hold = Some(kind);
    for _ in 0..1000 {
        net.run(ELECTION / 60);
        if let Some((_, _, message)) = net.held.pop() {
            net.hold = None;
            net.held.clear();
            return message;
        }
    }
    panic!("there was no such message");
}

#[test]
fn lost_tail_query_is_repeated() {
    let lost: [fn(usize, usize, &Message) -> bool; 4] = [
        |_, to, m| to == 4 && matches!(m, Message::TailQuery { .. }),
        |from, _, m| from == 4 && matches!(m, Message::TailReply { .. }),
        |_, _, m| matches!(m, Message::FetchTail { .. }),
        |_, _, m| matches!(m, Message::TailEntries { .. }),
    ];
    for kind in lost {
        let mut net = only_the_learner_has_it(&["acknowledged".into()], |_| {});
        let message = lose_one(&mut net, kind);
        let (Message::TailQuery { term }
        | Message::TailReply { term, .. }
        | Message::FetchTail { term, .. }
        | Message::TailEntries { term, .. }) = message
        else {
            panic!("{message:?}")
        };
        net.run(ELECTION / 2);
        net.settle();
        let successor = net.leader().expect("somebody takes over");
        assert_eq!(net.raft(successor).term(), term, "in one campaign, although {message:?} was lost");
        assert!(net.texts().contains(&"acknowledged".to_string()), "{message:?} was lost: {:?}", net.texts());
    }
}

/// An entry a message, so that a tail comes in many parts.
fn in_parts(config: &mut Config) {
    config.max_append_bytes = 1;
}

#[test]
fn tail_is_fetched_in_few_round_trips() {
    let texts: Vec<String> = (0..100).map(|n| format!("acknowledged {n}")).collect();
    let mut net = only_the_learner_has_it(&texts, in_parts);
    // All questions of a moment arrive a round trip later.
    net.hold = Some(|_, _, m| matches!(m, Message::FetchTail { .. }));
    let mut trips = 0;
    while net.leader().is_none_or(|leader| leader == 1) {
        net.run(ELECTION / 60);
        let asked = std::mem::take(&mut net.held);
        trips += usize::from(!asked.is_empty());
        net.wire.extend(asked);
        assert!(trips <= 10, "{} of them have come", net.raft(2).last_index().max(net.raft(3).last_index()));
    }
    assert!(trips > 1, "little is sent at first");
    net.hold = None;
    net.settle();
    assert!(texts.iter().all(|text| net.texts().contains(text)));
}

#[test]
fn reordered_tail_parts_are_kept_and_lost_ones_fetched() {
    let texts: Vec<String> = (0..100).map(|n| format!("acknowledged {n}")).collect();
    let mut net = only_the_learner_has_it(&texts, in_parts);
    let (mut given, mut lost) = (0, 0);
    net.hold = Some(|_, _, m| matches!(m, Message::TailEntries { .. }));
    while net.leader().is_none_or(|leader| leader == 1) {
        net.run(ELECTION / 60);
        let mut came = std::mem::take(&mut net.held);
        came.reverse();
        given += came.len();
        // The first of many, twice.
        if came.len() > 4 && lost < 2 {
            (_, lost) = (came.pop(), lost + 1);
        }
        net.wire.extend(came);
        assert!(given < 1000, "it does not come to an end");
    }
    assert_eq!(lost, 2);
    assert!(given < 150, "{given} parts for {} entries", texts.len());
    net.hold = None;
    net.settle();
    assert!(texts.iter().all(|text| net.texts().contains(text)));
}

#[test]
fn partial_tail_is_kept_for_next_campaign() {
    let texts: Vec<String> = (0..30).map(|n| format!("acknowledged {n}")).collect();
    // An entry a message; in each term one of the next four does not come through.
    let mut net = only_the_learner_has_it(&texts, |config| config.max_append_bytes = 1);
    net.hold = Some(|_, _, m| match m {
        Message::TailEntries { term, prev_index, .. } => prev_index % 4 == term % 4,
        _ => false,
    });
    net.run(60 * ELECTION);
    assert!(net.held.len() > 4, "it was not easy: {}", net.held.len());
    let successor = net.leader().expect("somebody takes over");
    net.settle();
    let there = net.texts();
    assert!(texts.iter().all(|text| there.contains(text)), "{successor}: {there:?}");
}

/// Ten that are written at once, and acknowledged one after the other by a disk that takes this long for each.
fn ten_on_a_slow_disk(timeout: Micros) -> (Net, Index) {
    let mut net = under(Policy { timeout, ..weak(PolicyKind::Semisync) });
    net.isolate(3);
    net.node(2).slow_disk = true;
    let first = net.raft(1).last_index() + 1;
    for n in 0..10 {
        net.propose(1, &format!("{n}"));
        net.quiet();
    }
    assert_eq!((net.raft(1).last_index(), net.node(2).writes.len()), (first + 9, 10));
    (net, first)
}

#[test]
fn semisync_falls_back_where_acks_come_steadily_and_ever_later() {
    let timeout = ELECTION / 2;
    let (mut net, first) = ten_on_a_slow_disk(timeout);
    let began = net.now;
    net.run(timeout * 9 / 10);
    net.sync_one(2);
    net.settle();
    assert!(net.raft(1).policy_index() == first && !net.raft(1).has_fallen_back());
    net.run(timeout / 10);
    assert!(net.now < began + timeout * 11 / 10);
    assert!(net.raft(1).has_fallen_back(), "the second has waited for as long as the first");
    assert!(net.raft(1).policy_index() >= first + 9);
    // Each ack comes sooner than the timeout, and the last that was written at the fallback waits for it still.
    for n in 1..9 {
        net.run(timeout * 9 / 10);
        net.sync_one(2);
        net.settle();
        assert!(net.raft(1).has_fallen_back(), "{n} of ten");
    }
    net.node(2).slow_disk = false;
    net.run(2 * timeout);
    assert!(!net.raft(1).has_fallen_back(), "there is no backlog any more");
}

#[test]
fn later_commit_has_its_own_timeout() {
    let timeout = ELECTION / 2;
    let (mut net, first) = ten_on_a_slow_disk(timeout);
    net.run(timeout / 2);
    net.propose(1, "later");
    net.run(timeout / 3);
    // All ten, but not the later one.
    (0..10).for_each(|_| assert!(net.sync_one(2)));
    net.settle();
    assert_eq!(net.raft(1).policy_index(), first + 9);
    net.run(timeout / 3);
    assert!(!net.raft(1).has_fallen_back(), "it waits for half as long only");
    net.run(timeout / 2);
    assert!(net.raft(1).has_fallen_back());
}

#[test]
fn candidate_waits_boundedly_for_slow_disk() {
    for (comes_after, there) in [(2, true), (20, false)] {
        let mut net = only_the_learner_has_it(&["acknowledged".into()], |_| {});
        net.node(4).slow_disk = true;
        let mut led_after = None;
        for past in 0..40 {
            if past == 2 * comes_after {
                net.sync(4);
                net.node(4).slow_disk = false;
            }
            if led_after.is_none() && net.leader().is_some_and(|leader| leader != 1) {
                led_after = Some(past);
            }
            net.run(ELECTION / 2);
        }
        let led_after = led_after.expect("somebody takes over");
        assert!(led_after <= 2 * 8, "it took {led_after} half election timeouts");
        net.settle();
        let texts = net.texts();
        assert_eq!(texts.contains(&"acknowledged".to_string()), there, "{comes_after}: {texts:?}");
    }
}

#[test]
fn candidate_waits_for_far_member_not_for_silent_one() {
    for (rtt, there) in [(3 * ELECTION / 4, true), (0, false)] {
        let mut net = only_the_learner_has_it(&["acknowledged".into()], |_| {});
        (2..=3).for_each(|n| net.raft(n).set_longest_rtt(rtt));
        // Its replies are slow; a silent member is not waited for.
        net.hold = Some(|from, _, _| from == 4);
        let mut led_after = None;
        for past in 0..20 {
            if led_after.is_none() && net.leader().is_some_and(|leader| leader != 1) {
                led_after = Some(past);
            }
            let came = std::mem::take(&mut net.held);
            net.run(3 * ELECTION / 4);
            net.wire.extend(came);
        }
        let led_after = led_after.expect("somebody takes over");
        assert!(led_after <= 6, "it took {led_after} times three quarters of an election timeout");
        net.hold = None;
        net.run(4 * ELECTION);
        net.settle();
        let texts = net.texts();
        assert_eq!(texts.contains(&"acknowledged".to_string()), there, "{rtt}: {texts:?}");
    }
}

#[test]
fn uncommitted_timeout_does_not_release_commits() {
    let mut net = under(weak(PolicyKind::Semisync));
    net.node(2).slow_disk = true;
    net.node(3).slow_disk = true;
    net.propose(1, "waits for an ack");
    net.settle();
    let waits = net.raft(1).last_index();
    assert!(net.raft(1).early() < waits);
    // It is in nobody else's log on disk, and may be lost with its leader.
    let now = net.now;
    let policy = Policy { timeout: HEARTBEAT, ..weak(PolicyKind::Semisync) };
    net.raft(1).append_control(now, EntryKind::Policy, policy.to_payload()).unwrap();
    net.run(3 * HEARTBEAT);
    assert_eq!(net.raft(1).committed_state().policy.timeout, 0);
    assert!(
        net.raft(1).early() < waits && net.raft(1).policy_index() < waits,
        "answered though the policy that it waits under has no timeout"
    );
}

#[test]
fn ack_of_member_outside_recovery_does_not_count() {
    let mut net = under(weak(PolicyKind::Semisync));
    let commit = net.raft(1).commit();
    net.isolate(2);
    net.isolate(3);
    net.propose(1, "acknowledged");
    net.settle();
    assert_eq!(net.raft(1).early(), commit);
    // A learner joins: its membership is with the leader and with itself only.
    net.add(4, DiskImage::default(), |_| {});
    let now = net.now;
    let with = voters([1, 2, 3]).with(member(4, MemberRole::Learner));
    net.raft(1).change_membership(now, with).unwrap();
    net.settle();
    let answered = net.raft(1).early() > commit;
    net.crash(1);
    net.heal();
    net.run(6 * ELECTION);
    net.leader().expect("somebody takes over");
    net.settle();
    assert!(
        !answered || net.texts().contains(&"acknowledged".to_string()),
        "the client heard ok, 4 has it on its disk and is there, and it is lost: {:?}",
        net.texts()
    );
}
