use super::{COMMANDS_MAX, Operator, TIMEOUT};
use crate::api::{ApplyHold, SubmitOutcome, Tuning};
use crate::effect::Effect;
use crate::member::context::Context;
use crate::member::harness::{Lab, context, leaderless};
use crate::member::outbox::OwnMessage;
use crate::operator::{Answer, Command};
use crate::wire::OperatorMessage;
use lockstep_core::Uuid;
use lockstep_core::writeset::flags;
use std::time::Duration;

fn switchover(to: &str) -> Command {
    Command::Switchover { to: to.into() }
}

fn remove(name: &str, force: bool) -> Command {
    Command::Remove { name: name.into(), force }
}

#[test]
fn switchover_lists_new_leader_first_then_moves() {
    let mut lab = Lab::new(3, &Tuning::default());
    // On whichever member the command is given.
    for (asked, to) in [(0, 1), (0, 2), (2, 0), (2, 1)] {
        let name = format!("n{}", to + 1);
        let token = lab.command(asked, switchover(&name));
        let began = lab.now;
        let answer = lab.answer(token);
        assert!(answer.ok && answer.text.starts_with(&format!("{name} leads in term")), "{answer:?}");
        assert!(lab.now - began < 100_000, "{} µs", lab.now - began);
        lab.until("all know", 1_000_000, |lab| (0..3).all(|at| lab.leader(at) == Some(to)));
        lab.until("all were shown", 1_000_000, |lab| {
            (0..3).all(|at| lab.nodes[at].views.last().is_some_and(|v| v.len() == 3 && v[0] == name))
        });
        let write = lab.write(asked);
        lab.run(50_000);
        assert!(matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))));
    }
    let views = lab.nodes[0].views.len();
    let token = lab.command(1, switchover("n2"));
    let answer = lab.answer(token);
    assert!(answer.ok && answer.text.starts_with("n2 leads already"), "{answer:?}");
    lab.run(100_000);
    assert_eq!(lab.nodes[0].views.len(), views, "no view without need");
}

/// A view with the same members makes all servers roll back.
#[test]
fn switchover_wait_for_streams_is_bounded() {
    let mut lab = Lab::new(3, &Tuning { follow_writer: false, ..Tuning::default() });
    lab.run(500_000);
    lab.write_fragment(2);
    lab.run(50_000);
    let token = lab.command(0, switchover("n2"));
    lab.run(100_000);
    lab.write_flagged(2, b"row", flags::TRX_END);
    let answer = lab.answer(token);
    assert!(answer.ok && lab.leader(0) == Some(1), "once it has ended: {answer:?}");
    assert!(!answer.text.contains("rolled back"), "{answer:?}");
    // An idle client delays the command for a bounded time.
    lab.write_fragment(2);
    lab.run(50_000);
    let token = lab.command(0, switchover("n3"));
    for _ in 0..60 {
        lab.write(1);
        lab.run(100_000);
    }
    let answer = lab.answer(token);
    assert!(
        answer.ok && answer.text.contains(". 1 streaming transaction was open: it is rolled back"),
        "{answer:?}"
    );
    // Transactions that never end do so, too.
    lab.write_fragment(2);
    lab.run(50_000);
    let token = lab.command(2, switchover("n1"));
    let began = lab.now;
    while lab.leader(0) == Some(2) && lab.now < began + 20_000_000 {
        lab.write_flagged(2, b"row", 0);
        lab.run(100_000);
    }
    let took = lab.now - began;
    assert!((1_900_000..3_500_000).contains(&took), "{took} us");
    let answer = lab.answer(token);
    assert!(
        answer.ok && answer.text.contains("1 streaming transaction was open: it is rolled back"),
        "{answer:?}"
    );
    lab.run(500_000);
    let member = &lab.nodes[2].member;
    assert!(
        !member.delivery.deliverer.has_streams_of(&member.ctx.me().view_uuid),
        "its origin does not take them for open, either"
    );
}

#[test]
fn switchover_to_desynced_member_warns() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.run(1_000_000);
    lab.nodes[1].member.desync();
    lab.run(2_000_000);
    // First it takes over, then it leads already.
    for asked in [0, 1] {
        let token = lab.command(asked, switchover("n2"));
        let answer = lab.answer(token);
        assert!(answer.ok && answer.text.contains("But it is Donor/Desynced"), "{answer:?}");
    }
    lab.nodes[1].member.resync();
    lab.run(2_000_000);
    let token = lab.command(0, switchover("n2"));
    let answer = lab.answer(token);
    assert!(answer.ok && !answer.text.contains("Desynced"), "{answer:?}");
}

#[test]
fn switchover_to_unfit_member_is_refused_with_reason() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.add(&Tuning::default(), |hello| hello.wants_vote = false);
    lab.until("the replica is in", 5_000_000, |lab| lab.nodes[0].views.last().is_some_and(|v| v.len() == 4));
    let refused = |lab: &mut Lab, to: &str, why: &str| {
        let token = lab.command(1, switchover(to));
        let answer = lab.answer(token);
        assert!(!answer.ok && answer.text.contains(why), "{answer:?}");
        assert_eq!(lab.leader(0), Some(0));
    };
    refused(&mut lab, "n9", "no member is named n9; there are n1, n2, n3, n4");
    refused(&mut lab, "n4", "member.vote=no");
    lab.cut(2, true);
    refused(&mut lab, "n3", "n3 is not connected");
    lab.cut(2, false);
    // It is connected and was recently in contact, but answers nothing now: the leader appends another view and goes
    // on.
    lab.run(1_000_000);
    lab.nodes[2].frozen = true;
    let token = lab.command(0, switchover("n3"));
    let answer = lab.answer(token);
    assert!(!answer.ok && answer.text.contains("n1 stays the leader"), "{answer:?}");
    let write = lab.write(1);
    lab.run(100_000);
    assert!(matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))));
    assert_eq!(lab.nodes[1].views.last().unwrap()[0], "n1");
}

#[test]
fn command_without_leader_fails_in_time() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.cut(0, true);
    lab.cut(1, true);
    lab.run(3_000_000);
    let token = lab.command(2, switchover("n1"));
    let answer = lab.answer(token);
    assert!(!answer.ok && answer.text.contains("a majority of the voters is needed"), "{answer:?}");
    assert!(answer.seconds < 1.0, "it is known at once: {answer:?}");
    // Links that break for a moment fail no command.
    lab.cut(0, false);
    lab.cut(1, false);
    lab.run(5_000_000);
    lab.cut(0, true);
    lab.cut(1, true);
    let token = lab.command(2, switchover("n3"));
    lab.run(1_000_000);
    lab.cut(0, false);
    lab.cut(1, false);
    let answer = lab.answer(token);
    assert!(answer.ok, "{answer:?}");
    // A member connected to a majority waits for the election.
    lab.cut(0, true);
    lab.cut(1, true);
    lab.run(3_000_000);
    lab.cut(0, false);
    lab.cut(1, false);
    lab.nodes[1].frozen = true;
    let token = lab.command(2, switchover("n3"));
    let answer = lab.answer(token);
    assert!(answer.ok, "{answer:?}");
}

#[test]
fn removal_of_connected_member_needs_force() {
    let mut lab = Lab::new(3, &Tuning::default());
    let ask = |lab: &mut Lab, at, command| {
        let token = lab.command(at, command);
        lab.answer(token)
    };
    let answer = ask(&mut lab, 1, remove("n3", false));
    assert!(!answer.ok && answer.text.contains("n3 is connected: stop its server"), "{answer:?}");
    let answer = ask(&mut lab, 1, remove("n1", true));
    assert!(!answer.ok && answer.text.contains("n1 leads"), "{answer:?}");

    lab.cut(2, true);
    lab.run(1_000_000);
    let answer = ask(&mut lab, 1, remove("n3", false));
    assert!(answer.ok, "{answer:?}");
    assert_eq!(answer.text, "n3 is removed: 2 voters remain, and a commit needs 2 of them");
    assert_eq!(lab.voters(1), ["n1", "n2"]);
    let answer = ask(&mut lab, 0, remove("n3", false));
    assert!(!answer.ok && answer.text.contains("no member is named n3"), "{answer:?}");

    // A connected member is removed by force: it is told, leaves, and does not come back by itself.
    let answer = ask(&mut lab, 0, remove("n2", true));
    assert!(answer.ok && answer.text.contains("one voter remains"), "{answer:?}");
    lab.run(5_000_000);
    assert_eq!(lab.voters(0), ["n1"]);
    assert!(lab.nodes[0].member.ctx.raft.membership().members.len() == 1);
    assert!(lab.nodes[1].member.failure().is_some_and(|text| text.contains("an operator has removed")));
    let write = lab.write(0);
    lab.run(100_000);
    assert!(matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))));
}

fn is_removed(lab: &Lab, at: usize) -> bool {
    lab.nodes[at].member.failure().is_some_and(|text| text.contains("an operator has removed"))
}

/// Its first order to leave is lost with the connection. Later the leader sends it no entries any more.
#[test]
fn removed_member_hears_of_it_after_reconnect() {
    let mut lab = Lab::new(3, &Tuning::default());
    let token = lab.command(0, remove("n3", true));
    lab.until("the removal is appended", 1_000_000, |lab| lab.voters(0) == ["n1", "n2"]);
    lab.cut(2, true);
    assert!(lab.answer(token).ok);
    lab.run(15_000_000);
    assert!(!is_removed(&lab, 2), "it has not heard of it");
    lab.cut(2, false);
    lab.until("it leaves", 10_000_000, |lab| is_removed(lab, 2));
    let ordered =
        lab.lines.iter().filter(|(at, line)| *at == 2 && line.starts_with("an operator has removed"));
    assert_eq!(ordered.count(), 1, "repeated orders are logged once");
}

/// The next leader may not have the removal.
#[test]
fn member_stays_while_its_removal_is_not_committed() {
    let mut lab = Lab::new(5, &Tuning::default());
    lab.run(1_000_000);
    for silent in 2..5 {
        lab.nodes[silent].frozen = true;
    }
    lab.command(0, remove("n2", true));
    lab.until("the removal is appended", 1_000_000, |lab| lab.voters(0).len() == 4);
    lab.run(10_000_000);
    assert!(!is_removed(&lab, 1));
}

const EVICT: Duration = Duration::from_secs(1);

/// Moves leadership.
fn switch_over(lab: &mut Lab, at: usize, to: usize) {
    let token = lab.command(at, switchover(&format!("n{}", to + 1)));
    let answer = lab.answer(token);
    assert!(answer.ok, "{answer:?}");
    lab.until("all know", 1_000_000, |lab| {
        lab.nodes.iter().all(|n| n.member.ctx.raft.leader() == Some(lab.id(to)))
    });
}

/// The third member is away until it is forgotten. Then it returns as the same incarnation.
fn return_after_eviction(lab: &mut Lab) {
    lab.cut(2, true);
    lab.until("it is forgotten", 20_000_000, |lab| {
        lab.nodes[0].member.ctx.raft.membership().members.len() == 3
    });
    lab.run(100_000);
    lab.cut(2, false);
    lab.until("it votes again or leaves", 10_000_000, |lab| lab.voters(0).len() == 4 || is_removed(lab, 2));
    assert!(!is_removed(lab, 2));
}

/// The removal that the first leader appended is truncated, and the member stays a voter.
#[test]
fn member_of_undone_removal_may_return_later() {
    let mut lab = Lab::new(4, &Tuning { evict_timeout: EVICT, ..Tuning::default() });
    lab.run(1_000_000);
    for silent in 1..4 {
        lab.nodes[silent].frozen = true;
    }
    let token = lab.command(0, remove("n3", true));
    lab.until("the removal is appended", 1_000_000, |lab| lab.voters(0).len() == 3);
    lab.cut(0, true);
    assert!(!lab.answer(token).ok, "nor is the next leader asked");
    for silent in 1..4 {
        lab.nodes[silent].frozen = false;
    }
    lab.until("another leads", 5_000_000, |lab| lab.leader(1).is_some_and(|at| at != 0));
    lab.cut(0, false);
    lab.until("the removal is undone", 5_000_000, |lab| lab.voters(0).len() == 4);
    switch_over(&mut lab, 1, 0);
    return_after_eviction(&mut lab);
}

/// The removal is committed, but the next leader takes the member back.
#[test]
fn member_taken_back_after_removal_may_return_later() {
    let mut lab = Lab::new(4, &Tuning { evict_timeout: EVICT, ..Tuning::default() });
    lab.run(1_000_000);
    let token = lab.command(0, remove("n3", true));
    lab.until("the removal is appended", 1_000_000, |lab| lab.voters(0).len() == 3);
    lab.cut(2, true);
    assert!(lab.answer(token).ok);
    let token = lab.command(0, switchover("n2"));
    assert!(lab.answer(token).ok);
    lab.cut(2, false);
    lab.until("it votes again", 10_000_000, |lab| lab.voters(0).len() == 4);
    switch_over(&mut lab, 1, 0);
    return_after_eviction(&mut lab);
}

/// A leader that was deposed and leads again still knows of a removal that it has seen committed.
#[test]
fn committed_removal_outlasts_change_of_leader() {
    let mut lab = Lab::new(4, &Tuning::default());
    let token = lab.command(0, remove("n3", true));
    lab.until("the removal is appended", 1_000_000, |lab| lab.voters(0).len() == 3);
    lab.cut(2, true);
    assert!(lab.answer(token).ok);
    for (at, to) in [(0, "n2"), (1, "n1")] {
        let token = lab.command(at, switchover(to));
        assert!(lab.answer(token).ok);
    }
    lab.run(1_000_000);
    lab.cut(2, false);
    lab.until("it leaves", 10_000_000, |lab| is_removed(lab, 2));
}

#[test]
fn order_to_leave_counts_only_from_leader() {
    let mut lab = Lab::new(3, &Tuning::default());
    let (n1, n2, stranger) = (lab.id(0), lab.id(1), Uuid([9; 16]));
    let order = |lab: &mut Lab, from| {
        let text = "an operator has removed this member".into();
        lab.nodes[2].member.operator_message(from, OperatorMessage::Leave { text });
        lab.run(5_000_000);
        is_removed(lab, 2)
    };
    assert!(!order(&mut lab, n2), "n2 follows");
    assert!(!order(&mut lab, stranger));
    let token = lab.command(0, switchover("n2"));
    assert!(lab.answer(token).ok);
    lab.until("n3 knows", 1_000_000, |lab| lab.leader(2) == Some(1));
    assert!(!order(&mut lab, n1), "n1 leads no more");
    assert!(order(&mut lab, n2));
}

#[test]
fn removal_that_loses_majority_is_refused() {
    let mut lab = Lab::new(5, &Tuning::default());
    lab.cut(3, true);
    lab.cut(4, true);
    lab.run(1_000_000);
    let token = lab.command(0, remove("n3", true));
    let answer = lab.answer(token);
    assert!(!answer.ok, "{answer:?}");
    assert!(
        answer.text.contains("without n3 2 of 4 voters would be connected, and 3 are needed"),
        "{answer:?}"
    );
    assert_eq!(lab.voters(0).len(), 5);
}

#[test]
fn commands_are_bounded_and_only_from_members() {
    let mut lab = Lab::new(3, &Tuning::default());
    let ask = |lab: &mut Lab, from, name: &str| {
        let command = serde_json::to_vec(&remove(name, true)).unwrap().into();
        let leader = &mut lab.nodes[0].member;
        leader.operator_message(from, OperatorMessage::Ask { id: 1, command });
        leader.admin.operator.tasks.len()
    };
    assert_eq!(ask(&mut lab, Uuid([9; 16]), "n3"), 0, "nobody in the membership");
    let member = lab.id(1);
    let most = (0..100).map(|_| ask(&mut lab, member, "n3")).max();
    assert_eq!(most, Some(COMMANDS_MAX));
}

#[test]
fn promoted_replica_votes_and_may_lead() {
    let mut lab = Lab::new(1, &Tuning::default());
    for _ in 0..2 {
        lab.add(&Tuning::default(), |hello| hello.wants_vote = false);
    }
    lab.until("they are in", 5_000_000, |lab| lab.nodes[0].views.last().is_some_and(|v| v.len() == 3));
    lab.run(1_000_000);
    assert_eq!(lab.voters(0), ["n1"]);
    let promote = |lab: &mut Lab, at, name: &str| {
        let token = lab.command(at, Command::Promote { name: name.into() });
        lab.answer(token)
    };
    let answer = promote(&mut lab, 0, "n9");
    assert!(!answer.ok && answer.text.contains("no member is named n9"), "{answer:?}");
    let answer = promote(&mut lab, 0, "n1");
    assert!(answer.ok && answer.text == "n1 votes already", "{answer:?}");
    // On whichever member the command is given.
    let answer = promote(&mut lab, 2, "n2");
    assert!(
        answer.ok && answer.text.contains("there are 2 voters, and a commit needs 2 of them"),
        "{answer:?}"
    );
    assert!(answer.text.contains("member.vote=yes"), "{answer:?}");
    let answer = promote(&mut lab, 1, "n3");
    assert!(answer.ok && answer.text.contains("there are 3 voters, and a commit needs 2"), "{answer:?}");
    lab.run(1_000_000);
    assert_eq!(lab.voters(2), ["n1", "n2", "n3"], "and they stay what they are");
    let token = lab.command(0, switchover("n2"));
    assert!(lab.answer(token).ok);
    // The former primary is lost: the two others go on.
    lab.cut(0, true);
    lab.run(2_000_000);
    let write = lab.write(1);
    lab.run(100_000);
    assert!(matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))));
    // A member that lacks much is not promoted, since it would delay the others.
    lab.cut(0, false);
    lab.add(&Tuning::default(), |hello| hello.wants_vote = false);
    lab.until("it is in", 5_000_000, |lab| lab.nodes[1].views.last().is_some_and(|v| v.len() == 4));
    lab.nodes[3].disk_hangs = true;
    for _ in 0..1500 {
        lab.write(1);
    }
    lab.run(500_000);
    let answer = promote(&mut lab, 1, "n4");
    assert!(!answer.ok && answer.text.contains("n4 has not caught up"), "{answer:?}");
    assert_eq!(lab.voters(1).len(), 3);
    // Nor one that could not confirm its promotion: with one voter, nothing would be committed any more.
    lab.nodes[3].disk_hangs = false;
    lab.run(2_000_000);
    lab.nodes[3].frozen = true;
    lab.run(4_000_000);
    let answer = promote(&mut lab, 1, "n4");
    assert!(!answer.ok && answer.text.contains("n4 has not responded for some time"), "{answer:?}");
    assert_eq!(lab.voters(1).len(), 3);
    lab.nodes[3].frozen = false;
    lab.cut(3, true);
    let answer = promote(&mut lab, 1, "n4");
    assert!(!answer.ok && answer.text.contains("n4 is not connected"), "{answer:?}");
}

/// The answer to a promotion says what a commit needs from then on; that is not a majority under every policy.
#[test]
fn voter_change_reports_what_commit_needs() {
    use lockstep_core::policy::{Policy, PolicyKind};
    let of = Policy::of;
    for (policy, needs) in [
        (of(PolicyKind::Quorum), "and a commit needs 2 of them"),
        (Policy { zone_acks: 1, ..of(PolicyKind::Quorum) }, "and a commit needs 2 of them and 1 other zone"),
        (of(PolicyKind::All), "a commit needs all members of the view (commit.policy is all)"),
        (of(PolicyKind::Async), "a commit needs no other member (commit.policy is async)"),
        (of(PolicyKind::Semisync), "a commit needs 1 other member (commit.policy is semisync)"),
        (
            Policy { acks: 2, zone_acks: 2, ..of(PolicyKind::Semisync) },
            "a commit needs 2 other members and 2 other zones (commit.policy is semisync)",
        ),
        (
            Policy { acks: 0, ..of(PolicyKind::Semisync) },
            "a commit needs no other member (commit.policy is semisync)",
        ),
    ] {
        let mut lab = Lab::new(2, &Tuning::default());
        lab.add(&Tuning::default(), |hello| hello.wants_vote = false);
        lab.until("it is in", 5_000_000, |lab| lab.nodes[0].views.last().is_some_and(|v| v.len() == 3));
        lab.run(1_000_000);
        lab.nodes[0].member.request_policy(|wanted| *wanted = policy);
        lab.until("the policy is in force", 5_000_000, |lab| {
            lab.nodes.iter().all(|node| node.member.ctx.raft.committed_state().policy == policy)
        });
        let token = lab.command(0, Command::Promote { name: "n3".into() });
        let logged = lab.answer(token).text;
        assert!(
            logged.starts_with("n3 votes: there are 3 voters, and ") && logged.contains(needs),
            "{logged}"
        );
        let of_quorum = policy.kind == PolicyKind::Quorum;
        assert_eq!(logged.contains("2 of them are a majority;"), !of_quorum, "{logged}");
        let token = lab.command(0, remove("n3", true));
        let logged = lab.answer(token).text;
        assert!(
            logged.starts_with("n3 is removed: 2 voters remain, and ") && logged.ends_with(needs),
            "{logged}"
        );
    }
}

#[test]
fn switchover_to_member_under_apply_hold_is_refused() {
    let mut lab = Lab::new(3, &Tuning::default());
    for hold in [
        ApplyHold { paused: true, ..ApplyHold::default() },
        ApplyHold { delay: Duration::from_secs(60), ..ApplyHold::default() },
    ] {
        lab.nodes[2].member.set_tuning(Tuning { apply_hold: hold, ..Tuning::default() });
        lab.run(300_000);
        let token = lab.command(1, switchover("n3"));
        let answer = lab.answer(token);
        assert!(!answer.ok && answer.text.contains("entries are kept from the server of n3"), "{answer:?}");
        assert_eq!(lab.leader(0), Some(0));
    }
    // At a leave the other member is preferred, although this one has as much of the log.
    lab.nodes[0].member.disconnect();
    lab.until("another leads", 5_000_000, |lab| lab.leader(1).is_some_and(|at| at != 0));
    assert_eq!(lab.leader(1), Some(1));
    lab.nodes[2].member.set_tuning(Tuning::default());
    lab.run(300_000);
    let token = lab.command(1, switchover("n3"));
    let answer = lab.answer(token);
    assert!(answer.ok, "{answer:?}");
}

/// The ids of the commands that this member, which leads, has asked itself to execute.
fn asked(ctx: &mut Context) -> Vec<u64> {
    let messages = std::iter::from_fn(|| ctx.take_own());
    let ids = messages.filter_map(|message| match message {
        OwnMessage::Operator(OperatorMessage::Ask { id, .. }) => Some(id),
        _ => None,
    });
    ids.collect()
}

fn answers(ctx: &mut Context) -> Vec<(u64, Answer)> {
    let mut effects = Vec::new();
    ctx.take_outputs(&mut effects, &mut Vec::new());
    let answers = effects.into_iter().filter_map(|effect| match effect {
        Effect::Answer { token, answer } => Some((token, answer)),
        _ => None,
    });
    answers.collect()
}

#[test]
fn leader_is_asked_once_unless_it_sends_command_on() {
    let (mut ctx, mut operator) = (context(), Operator::default());
    let leader = ctx.me().id;
    operator.take(ctx.now(), 5, remove("n2", false));
    operator.commands_step(&mut ctx);
    operator.commands_step(&mut ctx);
    assert_eq!(asked(&mut ctx), [5]);
    operator.on_answer(&mut ctx, leader, 5, (false, true), String::new());
    assert!(answers(&mut ctx).is_empty(), "another leader is to be asked");
    operator.commands_step(&mut ctx);
    assert_eq!(asked(&mut ctx), [5]);
}

#[test]
fn answer_counts_only_from_asked_leader() {
    let (mut ctx, mut operator) = (context(), Operator::default());
    let (leader, stranger) = (ctx.me().id, Uuid([9; 16]));
    operator.take(ctx.now(), 5, remove("n2", false));
    operator.on_answer(&mut ctx, leader, 5, (true, false), "not asked yet".into());
    operator.commands_step(&mut ctx);
    operator.on_answer(&mut ctx, stranger, 5, (true, false), "not asked".into());
    operator.on_answer(&mut ctx, leader, 6, (true, false), "another command".into());
    assert!(answers(&mut ctx).is_empty() && operator.is_active());
    operator.on_answer(&mut ctx, leader, 5, (true, false), "done".into());
    operator.on_answer(&mut ctx, leader, 5, (true, false), "again".into());
    let texts: Vec<(u64, String)> = answers(&mut ctx).into_iter().map(|(id, a)| (id, a.text)).collect();
    assert_eq!(texts, [(5, "done".to_string())]);
    assert!(!operator.is_active());
}

#[test]
fn unanswered_command_fails_after_timeout() {
    for has_leader in [true, false] {
        let (mut ctx, mut operator) = (context(), Operator::default());
        if !has_leader {
            ctx.raft = leaderless();
        }
        operator.take(ctx.now(), 5, remove("n2", false));
        ctx.advance(TIMEOUT);
        operator.commands_step(&mut ctx);
        assert!(operator.is_active() || !has_leader);
        ctx.advance(1);
        operator.commands_step(&mut ctx);
        let answer = answers(&mut ctx).pop().expect("an answer").1;
        let why = if has_leader { "may still do so" } else { "no member leads" };
        assert!(!answer.ok && answer.text.contains(why), "{answer:?}");
        assert!(!operator.is_active());
    }
}

#[test]
fn command_beyond_limit_is_refused() {
    let (ctx, mut operator) = (context(), Operator::default());
    for token in 0..COMMANDS_MAX as u64 {
        assert_eq!(operator.refusal(&ctx), None);
        operator.take(ctx.now(), token, remove("n2", false));
    }
    assert!(operator.refusal(&ctx).is_some_and(|text| text.contains("too many commands")));
}
