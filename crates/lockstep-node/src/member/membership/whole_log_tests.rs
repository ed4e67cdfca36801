//! Members with whole logs keep them, whatever happens to them: no evidence may accuse a disk that works.

use crate::api::Tuning;
use crate::member::harness::Lab;
use crate::member::membership::peers::EVIDENCE_SINCE;
use crate::operator::Command;
use lockstep_core::Gtid;
use lockstep_core::policy::PolicyKind;
use lockstep_core::raft::Durable;

const LIMIT: u64 = 20_000_000;

fn primary(lab: &Lab, at: usize) -> bool {
    lab.nodes[at].member.ctx.connection().is_primary()
}

fn write(lab: &mut Lab, at: usize) {
    let write = lab.write(at);
    lab.until("it is committed", 5_000_000, |_| write.try_take().is_some());
}

/// The member's process is killed, and a new one begins with its disk.
fn reboot(lab: &mut Lab, at: usize) {
    let (disk, starts) = (lab.nodes[at].disk.clone(), lab.nodes[at].setup.starts);
    lab.boot(at, disk, starts + 1);
}

/// The same. Returns once it is in the view.
fn return_of(lab: &mut Lab, at: usize) {
    reboot(lab, at);
    lab.until("it is in the view", LIMIT, |lab| primary(lab, at));
    lab.run(1_500_000);
}

#[track_caller]
fn assert_logs_are_kept(lab: &Lab) {
    assert!(lab.quarantined.is_empty() && !lab.logged("went back in time"), "{:#?}", lab.lines);
}

fn witnessed(lab: &mut Lab, by: usize, of: usize) -> Durable {
    let id = lab.id(of);
    lab.nodes[by].member.ctx.raft.witnessed(&id)
}

#[test]
fn restarts_of_each_member_keep_logs() {
    let mut lab = Lab::new(3, &Tuning::default());
    for round in 0..3 {
        for at in 0..3 {
            write(&mut lab, (at + round) % 3);
            return_of(&mut lab, at);
        }
    }
    assert_logs_are_kept(&lab);
}

#[test]
fn restart_of_all_at_once_keeps_logs() {
    let mut lab = Lab::new(3, &Tuning::default());
    for _ in 0..3 {
        write(&mut lab, 1);
        lab.run(2_000_000);
        (0..3).for_each(|at| lab.stop(at));
        (0..3).for_each(|at| reboot(&mut lab, at));
        lab.until("all are back", LIMIT, |lab| (0..3).all(|at| primary(lab, at)));
    }
    assert_logs_are_kept(&lab);
}

#[test]
fn reconnects_of_one_process_keep_log() {
    let mut lab = Lab::new(3, &Tuning::default());
    write(&mut lab, 1);
    return_of(&mut lab, 2);
    for _ in 0..3 {
        write(&mut lab, 1);
        lab.restart(2, |_| {});
        lab.until("it is in the view", LIMIT, |lab| primary(lab, 2));
        write(&mut lab, 2);
        (0..2).for_each(|other| lab.relink(2, other));
        lab.run(2_000_000);
    }
    return_of(&mut lab, 2);
    assert_logs_are_kept(&lab);
}

#[test]
fn two_voters_that_restart_in_turn_keep_logs() {
    let mut lab = Lab::new(2, &Tuning::default());
    for at in [0, 1, 0, 1] {
        write(&mut lab, at);
        return_of(&mut lab, at);
        assert_eq!(lab.voters(at).len(), 2);
    }
    assert_logs_are_kept(&lab);
}

#[test]
fn unsynced_tail_lost_in_crash_is_no_evidence() {
    let mut lab = Lab::new(3, &Tuning::default());
    let synced = lab.nodes[2].disk.clone();
    lab.nodes[2].disk_hangs = true;
    for _ in 0..3 {
        write(&mut lab, 0);
    }
    assert!(lab.nodes[2].member.ctx.raft.last_index() > lab.nodes[2].member.ctx.raft.persisted());
    lab.nodes[2].disk_hangs = false;
    lab.boot(2, synced, 2);
    lab.until("it is in the view", LIMIT, |lab| primary(lab, 2));
    lab.run(2_000_000);
    assert_logs_are_kept(&lab);
}

/// n1 and n2 are cut off with entries that the others replace.
#[test]
fn truncated_uncommitted_ack_is_no_evidence() {
    let mut lab = Lab::new(5, &Tuning::default());
    lab.run(1_000_000);
    (2..5).for_each(|at| lab.cut(at, true));
    lab.write(0);
    let last = lab.nodes[0].member.ctx.raft.last_index();
    lab.run(100_000);
    let last = lab.nodes[0].member.ctx.raft.last_index().max(last);
    assert_eq!(lab.nodes[0].member.ctx.raft.matched(&lab.id(1)), last, "n2 has acknowledged it");
    assert!(lab.nodes[0].member.ctx.raft.commit() < last);
    lab.cut(0, true);
    lab.severed.insert((0, 1));
    for (a, b) in [(2, 3), (2, 4), (3, 4)] {
        lab.link(a, b);
    }
    lab.until("the others have a leader", LIMIT, |lab| lab.leader(2).is_some_and(|at| at > 1));
    reboot(&mut lab, 1);
    let term = lab.nodes[2].member.ctx.raft.term();
    lab.until("the tail of n2 is replaced", LIMIT, |lab| {
        lab.nodes[1].member.ctx.raft.tail_state().term >= term
    });
    assert!(witnessed(&mut lab, 0, 1).last_index < last);
    lab.severed.clear();
    lab.link(0, 1);
    lab.cut(0, false);
    (0..2).for_each(|at| return_of(&mut lab, at));
    assert_logs_are_kept(&lab);
}

#[test]
fn async_tail_replaced_by_new_leader_is_no_evidence() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.set_policy(|policy| policy.kind = PolicyKind::Async);
    lab.cut(0, true);
    for _ in 0..3 {
        lab.write(0);
        lab.run(50_000);
    }
    assert!(lab.nodes[0].member.ctx.raft.last_index() > lab.nodes[0].member.ctx.raft.commit());
    lab.until("another one leads", LIMIT, |lab| lab.leader(1).is_some_and(|at| at > 0));
    lab.run(3_000_000);
    (0..3).for_each(|at| return_of(&mut lab, at));
    assert_logs_are_kept(&lab);
}

#[test]
fn founder_of_branch_keeps_log() {
    let mut lab = Lab::new(3, &Tuning::default());
    write(&mut lab, 1);
    lab.run(2_000_000);
    (0..3).for_each(|at| lab.cut(at, true));
    lab.until("no majority", LIMIT, |lab| (0..3).all(|at| !primary(lab, at)));
    let token = lab.command(1, Command::Bootstrap);
    assert!(lab.answer(token).ok);
    lab.until("it is Primary", LIMIT, |lab| primary(lab, 1));
    // The others give up their logs, for the branch.
    lab.run(11_000_000);
    lab.cut(1, false);
    lab.run(1_000_000);
    assert_eq!(lab.quarantined, [0, 2]);
    lab.stop(0);
    lab.stop(2);
    lab.add(&Tuning::default(), |_| {});
    lab.until("a new member votes", LIMIT, |lab| lab.voters(1).len() == 2);
    write(&mut lab, 3);
    lab.run(2_000_000);
    for at in [1, 3, 1] {
        return_of(&mut lab, at);
    }
    assert_eq!(lab.quarantined, [0, 2]);
    assert!(!lab.logged("went back in time"), "{:#?}", lab.lines);
}

#[test]
fn log_replaced_by_snapshot_is_kept() {
    let mut lab = Lab::new(3, &Tuning { segment_bytes: 2 << 10, ..Tuning::default() });
    write(&mut lab, 2);
    lab.run(1_000_000);
    let last = lab.nodes[2].member.ctx.raft.last_index();
    lab.cut(2, true);
    lab.outlive_log_of_third(last);
    reboot(&mut lab, 2);
    lab.until("a snapshot replaces its log", LIMIT, |lab| {
        lab.nodes[2].member.ctx.raft.segment_bases().next().is_some_and(|base| base.index > last)
    });
    lab.run(100_000);
    return_of(&mut lab, 2);
    return_of(&mut lab, 2);
    assert_logs_are_kept(&lab);
}

#[test]
fn removed_member_that_returns_with_its_log_is_not_accused() {
    let mut lab = Lab::new(3, &Tuning::default());
    write(&mut lab, 2);
    lab.run(2_000_000);
    lab.stop(2);
    lab.until("n3 is out of the view", LIMIT, |lab| lab.nodes[0].views.last().is_some_and(|v| v.len() == 2));
    let token = lab.command(0, Command::Remove { name: "n3".into(), force: false });
    assert!(lab.answer(token).ok);
    write(&mut lab, 0);
    lab.run(2_000_000);
    reboot(&mut lab, 2);
    lab.run(10_000_000);
    reboot(&mut lab, 0);
    lab.run(5_000_000);
    reboot(&mut lab, 2);
    lab.run(5_000_000);
    assert_logs_are_kept(&lab);
}

/// As after a state transfer whose recipient is killed before its log has caught up.
#[test]
fn database_ahead_of_log_keeps_log() {
    let mut lab = Lab::new(3, &Tuning::default());
    write(&mut lab, 0);
    lab.run(1_500_000);
    let tail = lab.nodes[2].member.ctx.raft.tail_state();
    let position = Gtid { uuid: tail.history, seqno: tail.seqno + 50 };
    lab.restart(2, |args| args.position = position);
    lab.until("it is in the view", LIMIT, |lab| primary(lab, 2));
    assert!(lab.logged("or the log is an older copy"), "{:#?}", lab.lines);
    return_of(&mut lab, 2);
    assert_logs_are_kept(&lab);
}

/// The joiner is killed at different times before it has a log, or votes.
#[test]
fn joiner_that_is_killed_keeps_its_id() {
    for steps in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] {
        let mut lab = Lab::new(2, &Tuning::default());
        write(&mut lab, 0);
        lab.add(&Tuning::default(), |_| {});
        (0..steps).for_each(|_| lab.step());
        reboot(&mut lab, 2);
        (0..steps).for_each(|_| lab.step());
        return_of(&mut lab, 2);
        assert_logs_are_kept(&lab);
    }
}

#[test]
fn arbitrator_that_restarts_keeps_log() {
    let mut lab = Lab::new(2, &Tuning::default());
    lab.add(&Tuning::default(), |hello| {
        hello.arbitrator = true;
        hello.incoming = String::new();
    });
    lab.until("the arbitrator votes", LIMIT, |lab| lab.voters(0).len() == 3);
    for at in [2, 0, 2, 1, 2] {
        write(&mut lab, 0);
        return_of(&mut lab, at);
    }
    assert_logs_are_kept(&lab);
}

/// n2 is of the version before. It is upgraded after n3, and before n1.
#[test]
fn rolling_upgrade_keeps_logs_and_writes_notes_at_its_end() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.run(2_000_000);
    for at in 0..3 {
        lab.nodes[at].version = EVIDENCE_SINCE - 1;
        return_of(&mut lab, at);
    }
    let noted = |lab: &Lab, of: usize| lab.nodes[0].member.roster.disk_notes.of(&lab.id(of));
    let before = noted(&lab, 2);
    for at in [2, 1] {
        lab.nodes[at].version = EVIDENCE_SINCE;
        return_of(&mut lab, at);
        write(&mut lab, at);
        lab.run(2_000_000);
        assert_eq!(noted(&lab, 2), before, "n1 cannot read it");
    }
    lab.nodes[0].version = EVIDENCE_SINCE;
    return_of(&mut lab, 0);
    write(&mut lab, 0);
    lab.run(2_000_000);
    assert_ne!(noted(&lab, 2), before);
    (0..3).for_each(|at| return_of(&mut lab, at));
    assert_logs_are_kept(&lab);
}

/// The clocks of processes have no common beginning, and wall clocks may step: evidence does not depend on them.
#[test]
fn paused_leader_that_returns_keeps_log() {
    let mut lab = Lab::new(3, &Tuning::default());
    write(&mut lab, 0);
    lab.nodes[0].frozen = true;
    lab.until("another one leads", LIMIT, |lab| lab.leader(1).is_some_and(|at| at > 0));
    write(&mut lab, 1);
    reboot(&mut lab, 2);
    lab.run(5_000_000);
    lab.nodes[0].frozen = false;
    lab.until("all are back", LIMIT, |lab| (0..3).all(|at| primary(lab, at)));
    (0..3).for_each(|at| return_of(&mut lab, at));
    assert_logs_are_kept(&lab);
}
