use super::Branches;
use crate::api::{SubmitOutcome, Tuning};
use crate::effect::Effect;
use crate::member::context::ConnectionState;
use crate::member::context::Context;
use crate::member::harness::{Lab, context, leaderless};
use crate::operator::{Answer, Command};
use lockstep_core::{Gtid, Uuid};
use std::time::Duration;

fn bootstrap(lab: &mut Lab, at: usize) -> Answer {
    let token = lab.command(at, Command::Bootstrap);
    lab.answer(token)
}

fn writes(lab: &mut Lab, at: usize) -> bool {
    let write = lab.write(at);
    lab.run(200_000);
    matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_)))
}

fn primary(lab: &Lab, at: usize) -> bool {
    lab.nodes[at].member.ctx.connection().is_primary()
}

/// Cuts all members off from each other.
fn apart(lab: &mut Lab) {
    for at in 0..lab.nodes.len() {
        lab.cut(at, true);
    }
    lab.until("no majority", 10_000_000, |lab| (0..lab.nodes.len()).all(|at| !primary(lab, at)));
}

#[test]
fn forced_bootstrap_others_rejoin_as_new_members() {
    let mut lab = Lab::new(3, &Tuning::default());
    assert!(writes(&mut lab, 1));
    let before = lab.nodes[1].member.ctx.raft.tail_state().clone();
    apart(&mut lab);
    assert!(!writes(&mut lab, 1));
    let answer = bootstrap(&mut lab, 1);
    assert!(answer.ok && answer.text.contains("after ") && answer.text.contains("n1, n3"), "{answer:?}");
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 1));
    assert!(writes(&mut lab, 1));
    let state = lab.nodes[1].member.ctx.raft.committed_state().clone();
    assert_ne!((state.history, state.log_id), (before.history, before.log_id));
    assert!(state.seqno > before.seqno, "its seqnos go on");
    assert_eq!(lab.nodes[1].views.last().unwrap(), &["n2"]);
    let removed = [0, 2].map(|at| lab.nodes[1].member.ctx.name_of(&lab.id(at)));
    assert_eq!(removed, ["n1", "n3"], "lines about the leader before name it");
    // The others cannot go on beside the branch once they know of it. They wait for each other first: the last leader
    // may have written entries that it sent to no member.
    lab.run(11_000_000);
    lab.cut(1, false);
    lab.run(10_000);
    for at in [0, 2] {
        assert!(
            matches!(lab.nodes[at].member.ctx.connection(), ConnectionState::Failed(_)),
            "{:#?}",
            lab.lines
        );
    }
    assert_eq!(lab.quarantined, [0, 2]);
    assert!(lab.logged("was made to go on alone by an operator"));
    lab.run(3_000_000);
    assert!(primary(&lab, 1) && writes(&mut lab, 1));
    // They are admitted as new members.
    for _ in 0..2 {
        lab.add(&Tuning::default(), |_| {});
        lab.cut(0, true);
        lab.cut(2, true);
    }
    lab.until("they vote", 20_000_000, |lab| lab.voters(1).len() == 3);
    assert!(writes(&mut lab, 3) && writes(&mut lab, 4));
    // The branch works like any other cluster.
    lab.cut(1, true);
    lab.until("the others lead", 10_000_000, |lab| lab.leader(3).is_some_and(|at| at != 1));
    assert!(writes(&mut lab, 3));
}

#[test]
fn primary_branches_refuse_each_other() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.cut(2, true);
    lab.until("it is alone", 10_000_000, |lab| !primary(lab, 2));
    let answer = bootstrap(&mut lab, 2);
    assert!(answer.ok, "{answer:?}");
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 2));
    assert!(writes(&mut lab, 0) && writes(&mut lab, 2));
    lab.cut(2, false);
    lab.run(2_000_000);
    assert!(writes(&mut lab, 0) && writes(&mut lab, 1) && writes(&mut lab, 2));
    let history = |lab: &Lab, at: usize| lab.nodes[at].member.ctx.raft.committed_state().history;
    assert_eq!(history(&lab, 0), history(&lab, 1));
    assert_ne!(history(&lab, 0), history(&lab, 2));
    assert!(lab.quarantined.is_empty(), "who is Primary gives nothing up");
}

#[test]
fn forced_bootstrap_with_majority_or_behind_peer_is_refused() {
    let mut lab = Lab::new(4, &Tuning::default());
    // All know that the fourth votes.
    lab.run(1_000_000);
    let answer = bootstrap(&mut lab, 1);
    assert!(!answer.ok && answer.text.contains("in a primary component"), "{answer:?}");
    // n2 misses a write, and stays connected only with n1, which has it.
    lab.cut(1, true);
    assert!(writes(&mut lab, 0));
    apart(&mut lab);
    // Without a leader, no member sends n2 the missing write.
    lab.run(3_000_000);
    lab.cut(1, false);
    lab.cut(2, true);
    lab.cut(3, true);
    lab.run(2_000_000);
    let answer = bootstrap(&mut lab, 1);
    assert!(!answer.ok && answer.text.contains("give this command to n1"), "{answer:?}");
    let answer = bootstrap(&mut lab, 0);
    assert!(answer.ok, "{answer:?}");
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 0));
    assert!(writes(&mut lab, 0));
}

/// The write reached one voter and the learner, but not the other voters.
#[test]
fn forced_bootstrap_behind_learner_is_refused() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.add(&Tuning::default(), |hello| hello.wants_vote = false);
    lab.run(3_000_000);
    lab.cut(1, true);
    assert!(writes(&mut lab, 0));
    apart(&mut lab);
    lab.run(3_000_000);
    lab.cut(1, false);
    lab.cut(3, false);
    lab.cut(0, true);
    lab.cut(2, true);
    lab.run(2_000_000);
    let answer = bootstrap(&mut lab, 1);
    assert!(!answer.ok && answer.text.contains("give this command to n4"), "{answer:?}");
    let answer = bootstrap(&mut lab, 3);
    assert!(answer.ok, "{answer:?}");
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 3));
    assert!(writes(&mut lab, 3));
}

/// Two replicas whose primary is gone: neither ever campaigns.
#[test]
fn forced_bootstrap_promotes_learner_with_longer_log() {
    let mut lab = Lab::new(1, &Tuning::default());
    for _ in 0..2 {
        lab.add(&Tuning::default(), |hello| hello.wants_vote = false);
    }
    lab.run(3_000_000);
    assert!(writes(&mut lab, 0));
    lab.cut(1, true);
    assert!(writes(&mut lab, 0));
    lab.cut(1, false);
    lab.cut(0, true);
    lab.until("no majority", 10_000_000, |lab| !primary(lab, 1) && !primary(lab, 2));
    lab.run(3_000_000);
    let answer = bootstrap(&mut lab, 1);
    assert!(!answer.ok && answer.text.contains("give this command to n3"), "{answer:?}");
    let answer = bootstrap(&mut lab, 2);
    assert!(answer.ok, "{answer:?}");
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 2));
    assert!(writes(&mut lab, 2));
}

/// n3 goes on alone; the others keep their log.
fn forked() -> Lab {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.cut(2, true);
    lab.until("it is alone", 10_000_000, |lab| !primary(lab, 2));
    let answer = bootstrap(&mut lab, 2);
    assert!(answer.ok, "{answer:?}");
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 2));
    lab
}

/// A restarted member of a healthy majority connects to the branch before any member of its own.
#[test]
fn commits_beyond_fork_are_not_given_up() {
    let mut lab = forked();
    assert!(writes(&mut lab, 0) && writes(&mut lab, 1));
    lab.run(1_000_000);
    lab.cut(1, true);
    lab.restart(1, |_| {});
    lab.cut(2, false);
    for _ in 0..15 {
        lab.run(1_000_000);
        lab.cut(2, false);
        lab.cut(1, true);
        lab.link(1, 2);
    }
    assert!(lab.quarantined.is_empty(), "{:#?}", lab.lines);
    assert!(
        lab.logged("has committed up to index") && lab.logged("gives that up at an operator's order only")
    );
    lab.cut(1, false);
    lab.until("they are the majority that they were", 10_000_000, |lab| primary(lab, 0) && primary(lab, 1));
    assert!(writes(&mut lab, 0) && writes(&mut lab, 1));
}

/// Other members may have committed these entries: the member waits for them first.
#[test]
fn uncommitted_tail_beyond_fork_is_given_up_after_timeout() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.run(1_000_000);
    for at in 0..3 {
        lab.cut(at, true);
    }
    let lost = lab.write(0);
    lab.until("no majority", 10_000_000, |lab| (0..3).all(|at| !primary(lab, at)));
    let answer = bootstrap(&mut lab, 2);
    assert!(answer.ok, "{answer:?}");
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 2));
    assert!(!matches!(lost.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))));
    let order = &lab.nodes[0].member.ctx.raft;
    assert!(order.last_index() > order.commit(), "it has what it may have answered for");
    lab.link(0, 2);
    lab.run(10_000);
    assert!(lab.quarantined.is_empty() && lab.logged("it gives up its log after"), "{:#?}", lab.lines);
    lab.run(11_000_000);
    lab.link(0, 2);
    lab.run(10_000);
    assert_eq!(lab.quarantined, [0]);
}

#[test]
fn joiner_refuses_members_of_other_logs() {
    let mut lab = forked();
    let members = |lab: &Lab, at: usize| lab.nodes[at].member.ctx.raft.membership().members.len();
    // The joiner connects to the old log's members first, and to the branch before any of the log has arrived.
    lab.add(&Tuning::default(), |_| {});
    assert!(lab.linked(3, 0) && !lab.linked(3, 2));
    lab.until("it votes", 20_000_000, |lab| lab.voters(0).len() == 4);
    assert!(writes(&mut lab, 3) && writes(&mut lab, 2));
    assert_eq!(members(&lab, 2), 1, "it is none of the branch");
    // Two joiners connect before they have logs, and join different ones.
    for _ in 0..2 {
        lab.add(&Tuning::default(), |_| {});
        lab.cut(4, true);
    }
    lab.cut(5, true);
    lab.link(4, 5);
    lab.link(4, 0);
    lab.link(5, 2);
    assert!(lab.linked(4, 5) && lab.linked(4, 0) && lab.linked(5, 2));
    lab.until("both have a log", 10_000_000, |lab| (4..6).all(|at| lab.nodes[at].member.ctx.raft.has_log()));
    lab.run(100_000);
    assert!(!lab.linked(4, 5), "{:#?}", lab.lines);
    assert!(lab.linked(4, 0) && lab.linked(5, 2));
}

/// The joiner's part of the log is older than the branch. It must not look left behind, to itself or to its source, and
/// must not go over to the members left behind.
#[test]
fn joiner_disconnected_below_fork_keeps_reading() {
    let mut lab = Lab::new(3, &Tuning::default());
    for _ in 0..40 {
        let write = lab.write_bytes(0, &[b'x'; 200_000]);
        lab.until("it is written", 5_000_000, |_| write.wait_for(Duration::ZERO).is_some());
    }
    let old = lab.nodes[0].member.ctx.raft.tail_state().history;
    apart(&mut lab);
    let answer = bootstrap(&mut lab, 2);
    assert!(answer.ok, "{answer:?}");
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 2));
    lab.add(&Tuning::default(), |_| {});
    lab.cut(3, true);
    lab.link(3, 2);
    let below = |lab: &Lab| {
        let order = &lab.nodes[3].member.ctx.raft;
        order.has_log() && order.tail_state().history == old
    };
    lab.until("it reads", 10_000_000, below);
    while below(&lab) {
        lab.unlink(3, 2);
        lab.run(10_000);
        // The old log's members and the joiner refuse each other.
        lab.link(3, 0);
        assert!(!lab.linked(3, 0), "{:#?}", lab.lines);
        lab.link(3, 2);
        assert!(lab.linked(3, 2), "{:#?}", lab.lines);
        let had = lab.nodes[3].member.ctx.raft.last_index();
        lab.until("it reads on", 10_000_000, |lab| lab.nodes[3].member.ctx.raft.last_index() > had);
    }
    lab.until("it votes", 20_000_000, |lab| lab.voters(2).len() == 2);
    assert!(lab.quarantined.is_empty(), "{:#?}", lab.lines);
    assert!(writes(&mut lab, 3) && writes(&mut lab, 2));
}

/// The connect's timeout has passed before the command arrives.
#[test]
fn forced_bootstrap_works_after_connect_timeout() {
    for patient in [true, false] {
        let mut lab = Lab::new(3, &Tuning::default());
        let state = lab.nodes[1].member.ctx.raft.committed_state();
        let position = Gtid { uuid: state.history, seqno: state.seqno };
        lab.cut(0, true);
        lab.cut(2, true);
        lab.restart(1, |args| {
            args.position = position;
            args.timeout = Duration::from_secs(30);
            args.waits_for_others = patient;
        });
        lab.run(if patient { 36_000_000 } else { 29_000_000 });
        // The disk is slow at this moment.
        lab.nodes[1].disk_hangs = true;
        let token = lab.command(1, Command::Bootstrap);
        lab.run(2_000_000);
        lab.nodes[1].disk_hangs = false;
        let answer = lab.answer(token);
        assert!(answer.ok, "{answer:?}");
        lab.until("it is Primary", 1_000_000, |lab| primary(lab, 1));
        assert!(writes(&mut lab, 1));
    }
}

/// A leader in a primary component, for single steps.
fn refusal(ctx: &mut Context, leaving: bool) -> Option<String> {
    let mut branches = Branches::default();
    branches.begin(ctx, 7, Uuid([7; 16]));
    assert!(branches.is_bootstrapping());
    assert!(!branches.step(ctx, leaving), "it must not go on alone");
    let mut effects = Vec::new();
    ctx.take_outputs(&mut effects, &mut Vec::new());
    let answers = effects.into_iter().filter_map(|effect| match effect {
        Effect::Answer { token: 7, answer } if !answer.ok => Some(answer.text),
        _ => None,
    });
    assert!(!branches.is_bootstrapping(), "a refused order is over");
    answers.last()
}

#[test]
fn forced_bootstrap_of_unfit_member_is_refused() {
    let is = |ctx: &mut Context, leaving, why: &str| {
        let text = refusal(ctx, leaving).expect("an answer");
        assert!(text.contains(why), "{text}");
    };
    let mut ctx = context();
    is(&mut ctx, false, "is in a primary component");
    ctx.lost_primary();
    is(&mut ctx, true, "is about to leave");
    ctx.need_state();
    ctx.lost_primary();
    is(&mut ctx, false, "database is incomplete");
    ctx.disconnected();
    is(&mut ctx, false, "not connected to a cluster");
    ctx.me_mut().arbitrator = true;
    is(&mut ctx, false, "an arbitrator has no database");
    ctx.me_mut().arbitrator = false;
    ctx.raft = leaderless();
    is(&mut ctx, false, "not listed in its log");
}

#[test]
fn second_forced_bootstrap_is_refused_while_one_runs() {
    let mut ctx = context();
    let mut branches = Branches::default();
    branches.begin(&mut ctx, 1, Uuid([7; 16]));
    branches.begin(&mut ctx, 2, Uuid([8; 16]));
    let mut effects = Vec::new();
    ctx.take_outputs(&mut effects, &mut Vec::new());
    let refused = |effect: &Effect| match effect {
        Effect::Answer { token, answer } => (*token, answer.ok, answer.text.contains("already under way")),
        _ => (0, true, false),
    };
    assert!(effects.iter().any(|effect| refused(effect) == (2, false, true)));
    assert!(branches.is_bootstrapping(), "the first goes on");
}
