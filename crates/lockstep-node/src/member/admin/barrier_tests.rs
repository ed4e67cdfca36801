use crate::api::{ApplyHold, Tuning};
use crate::member::harness::Lab;
use crate::operator::{Answer, Command};
use lockstep_core::policy::{Policy, PolicyKind};
use std::sync::atomic::Ordering;

/// Writes on all members for this long.
fn write_for(lab: &mut Lab, ms: u64) {
    for _ in 0..ms / 2 {
        for at in 0..3 {
            lab.write(at).abandon();
        }
        lab.run(2_000);
    }
}

fn finished(lab: &Lab) -> Vec<i64> {
    lab.nodes[..3].iter().map(|node| node.finished.load(Ordering::Acquire)).collect()
}

fn ask(lab: &mut Lab, at: usize, command: Command) -> Answer {
    let token = lab.command(at, command);
    lab.answer(token)
}

#[test]
fn barrier_stops_all_members_at_one_seqno_until_release() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.add(&Tuning::default(), |hello| hello.arbitrator = true);
    lab.run(1_000_000);
    for asked in [0, 2] {
        write_for(&mut lab, 100);
        let answer = ask(&mut lab, asked, Command::Hold);
        let held = answer.held.clone().unwrap_or_else(|| panic!("{answer:?}"));
        let names: Vec<&str> = held.members.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["n1", "n2", "n3"], "an arbitrator has nothing to compare");
        assert!(answer.seconds < 0.05, "{answer:?}");
        write_for(&mut lab, 500);
        assert_eq!(finished(&lab), [held.seqno; 3]);
        let busy = ask(&mut lab, 1, Command::Hold);
        assert!(!busy.ok && busy.text.contains("is running"), "{busy:?}");
        let answer = ask(&mut lab, asked, Command::Release { hold: held.id });
        assert!(answer.ok, "{answer:?}");
        write_for(&mut lab, 100);
        assert!(finished(&lab).iter().all(|seqno| *seqno > held.seqno + 100));
    }
}

#[test]
fn barrier_times_out_and_release_reports_it() {
    let mut lab = Lab::new(3, &Tuning::default());
    write_for(&mut lab, 20);
    let held = ask(&mut lab, 0, Command::Hold).held.unwrap();
    write_for(&mut lab, 3_000);
    assert!(finished(&lab).iter().all(|seqno| *seqno > held.seqno));
    let answer = ask(&mut lab, 0, Command::Release { hold: held.id });
    assert!(!answer.ok && answer.text.contains("not all members were held"), "{answer:?}");
    // The member that ran the command is gone before the release: the others go on at once.
    let held = ask(&mut lab, 2, Command::Hold).held.unwrap();
    lab.cut(2, true);
    write_for(&mut lab, 300);
    assert!(finished(&lab)[..2].iter().all(|seqno| *seqno > held.seqno));
}

#[test]
fn barrier_names_late_member_and_releases_all() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.nodes[1].database_hangs = true;
    write_for(&mut lab, 20);
    let answer = ask(&mut lab, 0, Command::Hold);
    assert!(!answer.ok && answer.text.starts_with("n2 did not reach the barrier in time"), "{answer:?}");
    lab.nodes[1].database_hangs = false;
    write_for(&mut lab, 100);
    assert!(ask(&mut lab, 0, Command::Hold).ok);
    lab.run(5_000_000);
    let answer = ask(&mut lab, 1, Command::Hold);
    assert!(answer.ok, "the last one was forgotten: {answer:?}");
}

#[test]
fn barrier_leaves_out_lagging_member_under_apply_hold() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.nodes[0].member.request_policy(|policy| *policy = Policy::of(PolicyKind::Semisync));
    lab.until("the policy is in force", 5_000_000, |lab| {
        lab.nodes.iter().all(|node| node.member.ctx.raft.committed_state().policy.is_weak())
    });
    let apply_hold = ApplyHold { paused: true, ..ApplyHold::default() };
    lab.nodes[2].member.set_tuning(Tuning { apply_hold, ..Tuning::default() });
    lab.run(10_000);
    let all = |answer: Answer| {
        let held = answer.held.clone().unwrap_or_else(|| panic!("{answer:?}"));
        held.members.iter().map(|m| m.name.clone()).collect::<Vec<_>>()
    };
    // It lacks nothing yet, so it can be compared.
    for asked in [0, 2] {
        let held = ask(&mut lab, asked, Command::Hold);
        let hold = held.held.as_ref().map(|held| held.id).unwrap();
        assert_eq!(all(held), ["n1", "n2", "n3"]);
        assert!(ask(&mut lab, asked, Command::Release { hold }).ok);
    }
    // The member that runs the command does not know this write yet.
    lab.write(0).abandon();
    lab.until("the leader's server has it, and nobody else knows", 1_000_000, |lab| {
        let known = |at: usize| lab.nodes[at].member.ctx.raft.committed_state().seqno;
        lab.nodes[0].finished.load(Ordering::Acquire) > known(1)
    });
    let answer = ask(&mut lab, 1, Command::Hold);
    let held_back = "held back by apply.paused, apply.delay or apply.until: try again, and it is left out";
    assert!(!answer.ok && answer.seconds > 1.0, "{answer:?}");
    assert_eq!(answer.text, format!("n3 did not reach the barrier in time, {held_back}"));
    // Each member knows the lag, its own included; also after a new leader's term has skipped seqnos.
    let successor = lab.id(1);
    for round in 0..2 {
        for asked in [0, 2] {
            lab.run(100_000);
            let held = ask(&mut lab, asked, Command::Hold);
            let hold = held.held.as_ref().map(|held| held.id);
            let mut names = all(held);
            names.sort_unstable();
            assert_eq!(names, ["n1", "n2"], "round {round}");
            assert!(ask(&mut lab, asked, Command::Release { hold: hold.unwrap() }).ok);
        }
        if round == 0 {
            let before = lab.nodes[1].member.ctx.raft.committed_state().seqno;
            let now = lab.now;
            lab.nodes[0].member.ctx.raft.transfer_leadership(now, successor).unwrap();
            lab.until("another leads, and has left seqnos out", 5_000_000, |lab| {
                let order = &lab.nodes[1].member.ctx.raft;
                order.has_committed_in_term() && order.committed_state().seqno > before + 10_000
            });
        }
    }
    for at in 0..2 {
        lab.nodes[at].member.set_tuning(Tuning { apply_hold, ..Tuning::default() });
    }
    lab.write(1).abandon();
    lab.run(200_000);
    let answer = ask(&mut lab, 0, Command::Hold);
    assert!(!answer.ok && answer.text.starts_with("all members are held back by"), "{answer:?}");
    for at in 0..2 {
        lab.nodes[at].member.set_tuning(Tuning::default());
    }
    lab.nodes[2].member.set_tuning(Tuning::default());
    lab.run(2_000_000);
    assert_eq!(all(ask(&mut lab, 0, Command::Hold)).len(), 3);
}

/// A stalled member finds its own arrival and the timeout in the same round. The arrival counts first.
#[test]
fn barrier_counts_own_late_arrival_before_timeout() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.nodes[0].database_hangs = true;
    write_for(&mut lab, 20);
    let token = lab.command(0, Command::Hold);
    // The others arrive; this member's database hangs.
    lab.run(1_000_000);
    let target = finished(&lab)[1];
    assert!(finished(&lab)[0] < target);
    lab.nodes[0].finished.store(target, Ordering::Release);
    lab.now += 600_000;
    let answer = lab.answer(token);
    assert!(answer.ok && answer.seconds > 1.5, "{answer:?}");
}
