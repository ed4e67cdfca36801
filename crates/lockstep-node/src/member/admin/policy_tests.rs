use crate::api::ServerEnd;
use crate::api::{ApplyHold, LocalState, SubmitOutcome, Tuning};
use crate::member::Member;
use crate::member::admin::wait_report::unacknowledged;
use crate::member::harness::Lab;
use crate::member::membership::disk_progress::DiskProgress;
use crate::operator::Command;
use crate::pack::Packed;
use crate::policy_request::PolicyRequest;
use crate::status::StatusContext;
use crate::submit::Submission;
use lockstep_core::policy::{Policy, PolicyKind};
use std::time::Duration;

/// Options with which a hung disk has no consequences: commits wait for it.
fn patient() -> Tuning {
    Tuning { disk_timeout: Duration::ZERO, ..Tuning::default() }
}

fn under_all() -> Lab {
    let mut lab = Lab::new(3, &patient());
    lab.set_policy(|policy| policy.kind = PolicyKind::All);
    lab
}

fn writes(lab: &mut Lab, at: usize) -> bool {
    let write = lab.write(at);
    lab.run(100_000);
    matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_)))
}

/// The number of members in this member's latest view.
fn delivered_views(lab: &Lab, at: usize) -> usize {
    lab.nodes[at].views.last().map_or(0, Vec::len)
}

#[test]
fn all_returning_member_counts_once_nearly_caught_up() {
    let mut lab = under_all();
    lab.cut(2, true);
    lab.until("it is out of the view", 5_000_000, |lab| delivered_views(lab, 0) == 2);
    for _ in 0..1500 {
        lab.write(0);
    }
    lab.run(500_000);
    assert!(writes(&mut lab, 0));
    // It is connected again, and catches up slowly.
    lab.nodes[2].disk_hangs = true;
    lab.cut(2, false);
    lab.run(500_000);
    assert!(writes(&mut lab, 0) && writes(&mut lab, 1), "nobody waits for it");
    assert_eq!(delivered_views(&lab, 0), 2);
    lab.nodes[2].disk_hangs = false;
    lab.until("it is back in the view", 5_000_000, |lab| (0..3).all(|at| delivered_views(lab, at) == 3));
    assert!(writes(&mut lab, 0));
}

#[test]
fn all_member_with_hung_disk_leaves_view_once_and_returns() {
    let mut lab = under_all();
    lab.nodes[2].disk_hangs = true;
    let write = lab.write(0);
    lab.until("it is out of the view", 10_000_000, |lab| delivered_views(lab, 0) == 2);
    lab.run(100_000);
    assert!(matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))));
    let views = lab.nodes[0].views.len();
    lab.run(20_000_000);
    assert!(writes(&mut lab, 1));
    assert_eq!(lab.nodes[0].views.len(), views, "it is near the end of the log, and does not move");
    lab.nodes[2].disk_hangs = false;
    lab.until("it is back in the view", 5_000_000, |lab| delivered_views(lab, 0) == 3);
}

/// The server asks for a commit as soon as the process runs again, before the others' answers are read.
#[test]
fn all_own_stall_of_leader_takes_nobody_out_of_view() {
    let mut lab = under_all();
    let (term, views) = (lab.nodes[0].member.ctx.raft.term(), lab.nodes[0].views.len());
    // The others cannot replace it meanwhile, and answer late.
    (0..3).for_each(|at| lab.nodes[at].frozen = true);
    lab.run(4_000_000);
    lab.nodes[0].frozen = false;
    let write = lab.write(0);
    lab.run(100_000);
    (1..3).for_each(|at| lab.nodes[at].frozen = false);
    lab.run(1_000_000);
    assert_eq!((lab.nodes[0].member.ctx.raft.term(), lab.nodes[0].views.len()), (term, views));
    assert!(matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))));
}

#[test]
fn all_new_term_forgets_disk_progress() {
    let mut lab = under_all();
    for (from, to) in [(0, 1), (1, 0)] {
        lab.run(10_000_000);
        assert!(writes(&mut lab, 1));
        // n3 has not answered the new leader at all when that first checks the disks.
        lab.nodes[2].frozen = to == 0;
        let (now, id) = (lab.now, lab.id(to));
        lab.nodes[from].member.ctx.raft.transfer_leadership(now, id).unwrap();
        lab.until("it leads", 2_000_000, |lab| lab.nodes[to].member.ctx.raft.has_committed_in_term());
    }
    let views = lab.nodes[1].views.len();
    lab.run(500_000);
    lab.nodes[2].frozen = false;
    lab.run(10_000_000);
    assert!(writes(&mut lab, 2));
    assert_eq!(lab.nodes[1].views.len(), views, "{:?}", lab.nodes[1].views);
}

#[test]
fn at_risk_is_known_on_all_members() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.set_policy(|policy| policy.kind = PolicyKind::Async);
    (lab.nodes[1].disk_hangs, lab.nodes[2].disk_hangs) = (true, true);
    for _ in 0..5 {
        assert!(writes(&mut lab, 0), "nobody is waited for");
    }
    // Members send their health five times a second.
    lab.run(300_000);
    let at_risk = |lab: &Lab| lab.nodes.iter().map(|node| node.member.at_risk()).collect::<Vec<_>>();
    assert_eq!(at_risk(&lab), [5, 5, 5]);
    (lab.nodes[1].disk_hangs, lab.nodes[2].disk_hangs) = (false, false);
    lab.run(300_000);
    assert_eq!(at_risk(&lab), [0, 0, 0]);
}

#[test]
fn at_risk_of_single_voter_counts_unreplicated_entries() {
    let tuning = Tuning::default();
    let mut lab = Lab::new(1, &tuning);
    for _ in 0..2 {
        lab.add(&tuning, |hello| hello.wants_vote = false);
    }
    lab.until("they are shown", 20_000_000, |lab| delivered_views(lab, 0) == 3);
    lab.run(2_000_000);
    lab.set_policy(|policy| policy.kind = PolicyKind::Async);
    let at_risk = |lab: &Lab| lab.nodes.iter().map(|node| node.member.at_risk()).collect::<Vec<_>>();
    assert!(writes(&mut lab, 0));
    lab.run(300_000);
    assert_eq!(at_risk(&lab), [0, 0, 0]);
    (lab.nodes[1].disk_hangs, lab.nodes[2].disk_hangs) = (true, true);
    for _ in 0..5 {
        assert!(writes(&mut lab, 0), "nobody is waited for");
    }
    lab.run(300_000);
    assert_eq!(at_risk(&lab), [5, 5, 5]);
    lab.nodes[1].disk_hangs = false;
    lab.run(300_000);
    assert_eq!(at_risk(&lab)[..2], [0, 0], "one other has it");
    lab.nodes[2].disk_hangs = false;
    lab.run(300_000);
    assert_eq!(at_risk(&lab), [0, 0, 0]);
    (1..3).for_each(|at| lab.cut(at, true));
    assert!(writes(&mut lab, 0));
    assert_eq!(at_risk(&lab)[0], 1);
}

#[test]
fn concurrent_policy_changes_are_both_kept() {
    let mut lab = Lab::new(3, &Tuning::default());
    // With `old`, the leader speaks an older protocol version to n2.
    for old in [false, true] {
        if old {
            lab.nodes[0].version = 4;
            lab.relink(0, 1);
        }
        lab.set_policy(|policy| *policy = Policy::default());
        if !old {
            lab.nodes[0].member.request_policy(|policy| policy.kind = PolicyKind::Semisync);
        } else {
            lab.set_policy(|policy| policy.kind = PolicyKind::Semisync);
        }
        lab.nodes[1].member.request_policy(|policy| policy.acks = 2);
        lab.nodes[1].member.request_policy(|policy| policy.timeout = 7);
        let both = Policy { acks: 2, timeout: 7, ..Policy::of(PolicyKind::Semisync) };
        lab.run(3_000_000);
        for node in &lab.nodes {
            assert_eq!(node.member.ctx.raft.committed_state().policy, both, "{old}");
        }
    }
}

#[test]
fn repeated_policy_request_keeps_later_changes() {
    let mut lab = Lab::new(3, &Tuning::default());
    let acks = |n: u8| PolicyRequest::of(move |policy| policy.acks = n);
    let (one, other) = (lab.id(1), lab.id(2));
    for (from, number, wish, then) in
        [(one, 7, acks(2), 2), (other, 7, acks(3), 3), (one, 7, acks(2), 3), (one, 8, acks(2), 2)]
    {
        let member = &mut lab.nodes[0].member;
        member.admin.policy_requests.on_request(&mut member.ctx, from, number, wish);
        lab.run(100_000);
        assert_eq!(lab.nodes[1].member.ctx.raft.committed_state().policy.acks, then);
    }
}

#[test]
fn all_distant_disk_gets_time_for_round_trip() {
    let mut lab = under_all();
    lab.nodes[2].disk_hangs = true;
    lab.write(0);
    lab.run(20_000);
    let (id, now) = (lab.id(2), lab.now);
    let member = &mut lab.nodes[0].member;
    // Ten round trips of 200 ms: the election timeout has followed them.
    member.ctx.raft.set_timing(100_000, 2_000_000);
    let mut disks = DiskProgress::default();
    for later in (0..=11_000_000).step_by(500_000) {
        let disk_is_stalled = later > 10_000_000;
        member.at(now + later, 1_000_000_000_000_000 + now + later);
        disks.track(member.ctx.now(), &member.ctx.raft, member.ctx.peers.keys().copied(), 1024);
        assert_eq!(disks.is_stalled(&id), disk_is_stalled, "after {later} µs");
    }
    // An own stall is no progress of that disk.
    member.at(now + 60_000_000, 1_000_000_000_000_000 + now + 60_000_000);
    disks.track(member.ctx.now(), &member.ctx.raft, member.ctx.peers.keys().copied(), 1024);
    assert!(disks.is_stalled(&id));
}

#[test]
fn diverged_server_ends_after_rescue_file_is_written() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.set_policy(|policy| policy.kind = PolicyKind::Async);
    lab.cut(0, true);
    let write = lab.write(0);
    lab.run(20_000);
    assert!(
        matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))),
        "answered ahead of the others"
    );
    lab.until("another one leads", 5_000_000, |lab| lab.leader(1).is_some_and(|leader| leader != 0));
    assert_eq!(lab.nodes[0].member.server_must_end(), None);
    assert_eq!(lab.nodes[0].member.at_risk(), 1);
    lab.nodes[0].disk_hangs = true;
    lab.cut(0, false);
    lab.until("it hears of it", 5_000_000, |lab| lab.nodes[0].member.failure().is_some());
    lab.run(50_000);
    assert_eq!(lab.nodes[0].member.server_must_end(), None, "the rescue file is not on the disk");
    assert!(
        matches!(lab.write(0).wait_for(Duration::ZERO), Some(SubmitOutcome::NotSent)),
        "and it takes nothing"
    );
    lab.nodes[0].disk_hangs = false;
    lab.run(50_000);
    let why = lab.nodes[0].member.server_must_end();
    assert!(
        why.as_ref()
            .is_some_and(|(why, text)| *why == ServerEnd::Diverged && text.contains("lockstep.rescue")),
        "{why:?}"
    );
    assert_eq!(lab.nodes[0].member.server_must_end(), None, "once is enough");
}

#[test]
fn commits_waiting_for_zone_are_reported() {
    let tuning = Tuning::default();
    let mut lab = Lab::new(2, &tuning);
    lab.add(&tuning, |hello| hello.zone = 1);
    lab.until("it votes", 20_000_000, |lab| lab.voters(0).len() == 3);
    lab.set_policy(|policy| policy.zone_acks = 1);
    lab.cut(2, true);
    let write = lab.write(0);
    let lines = |lab: &Lab| {
        lab.lines.iter().filter(|(at, line)| *at == 0 && line.contains("Not from: n3 (zone 1).")).count()
    };
    lab.run(9_000_000);
    assert_eq!(lines(&lab), 0);
    lab.run(13_000_000);
    assert_eq!(lines(&lab), 2, "every 10 s: {:#?}", lab.lines);
    assert!(write.wait_for(Duration::ZERO).is_none(), "the promise is kept");
    lab.cut(2, false);
    lab.run(1_000_000);
    assert!(matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))));
    lab.run(30_000_000);
    assert_eq!(lines(&lab), 2);
}

/// Even if the policy needs no acks, or all of them arrive, commits wait for the majority at the limit of transactions
/// at risk.
#[test]
fn commits_at_risk_limit_are_reported() {
    for kind in [PolicyKind::Async, PolicyKind::Semisync] {
        let mut lab = Lab::new(3, &patient());
        let settings = Policy { max_at_risk: 5, timeout: 100_000, on_receive: true, ..Policy::of(kind) };
        lab.set_policy(|policy| *policy = settings);
        (lab.nodes[1].disk_hangs, lab.nodes[2].disk_hangs) = (true, true);
        for _ in 0..5 {
            assert!(writes(&mut lab, 0), "nobody is waited for");
        }
        let write = lab.write(0);
        let lines = |lab: &Lab| {
            let about = "no more may be at risk (async.max_at_risk)";
            let lines = lab.lines.iter().filter(|(at, line)| *at == 0 && line.contains(about));
            lines.map(|(_, line)| line.clone()).collect::<Vec<_>>()
        };
        let awaited = |lab: &Lab| lab.nodes[0].member.waits_for();
        lab.run(1_500_000);
        assert_eq!(awaited(&lab), None);
        lab.run(1_500_000);
        let facts = awaited(&lab).unwrap_or_default();
        assert!(facts.contains("committed the last 5 transactions"), "{facts}");
        assert!(facts.contains("Not on the disks of: n2 (zone 0), n3 (zone 0)."), "{facts}");
        lab.run(6_000_000);
        assert_eq!(lines(&lab), [""; 0]);
        lab.run(2_000_000);
        assert!(lines(&lab).len() == 1 && lines(&lab)[0].contains("n2 (zone 0)"), "{:#?}", lab.lines);
        assert!(write.wait_for(Duration::ZERO).is_none(), "no more than that");
        lab.nodes[2].disk_hangs = false;
        lab.run(100_000);
        assert!(matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))));
        lab.run(20_000_000);
        assert_eq!((awaited(&lab), lines(&lab).len()), (None, 1));
    }
}

#[test]
fn at_risk_is_bounded_in_bytes() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.set_policy(|policy| policy.kind = PolicyKind::Async);
    (lab.nodes[1].disk_hangs, lab.nodes[2].disk_hangs) = (true, true);
    // 44 MiB may be at risk.
    let writes: Vec<_> = (0..50).map(|_| lab.write_bytes(0, &[7; 1_000_000])).collect();
    lab.run(100_000);
    let answered = writes.iter().filter(|write| passed(write) == Some(true)).count();
    assert_eq!(answered, 47, "the last one goes beyond it");
    lab.run(3_000_000);
    let facts = lab.nodes[0].member.waits_for().unwrap_or_default();
    assert!(
        facts.contains("committed the last 44 MiB of transactions, and no more may be at risk"),
        "{facts}"
    );
    assert!(facts.contains("Not on the disks of: n2 (zone 0), n3 (zone 0)."), "{facts}");
    lab.nodes[2].disk_hangs = false;
    lab.until("the rest is answered", 5_000_000, |_| passed(&writes[49]) == Some(true));
    lab.run(100_000);
    assert_eq!(lab.nodes[0].member.waits_for(), None);
}

#[test]
fn setting_change_is_not_logged_as_policy_change() {
    let mut lab = under_all();
    assert!(lab.logged("commit.policy is all from now on"));
    lab.set_policy(|policy| policy.timeout = 1_500_000);
    assert!(
        lab.logged("commit.policy is all, as before; from now on commit.timeout = 1.5 s (ignored under all)")
    );
    lab.set_policy(|policy| (policy.zone_acks, policy.acks) = (0, 2));
    assert!(lab.logged("commit.policy is all, as before; from now on commit.acks = 2 (ignored under all)"));
    lab.set_policy(|policy| policy.kind = PolicyKind::Quorum);
    assert!(lab.logged("commit.policy is quorum from now on"));
}

#[test]
fn status_shows_all_policy_settings() {
    let mut lab = Lab::new(3, &Tuning::default());
    let shown = |lab: &Lab| {
        let packed = Packed::default();
        let around =
            StatusContext { queued: 0, queued_bytes: 0, log_bytes: 0, state_since: 0, protocol: 0, packed };
        serde_json::to_value(lab.nodes[0].member.status(&around).cluster).unwrap()
    };
    let status = shown(&lab);
    assert_eq!((&status["ack_on"], &status["timeout_seconds"]), (&"persist".into(), &0.0.into()));
    let policy = Policy {
        kind: PolicyKind::Semisync,
        acks: 2,
        zone_acks: 1,
        on_receive: true,
        timeout: 1_500_000,
        max_at_risk: 77,
    };
    lab.set_policy(|now| *now = policy);
    let status = shown(&lab);
    for (field, value) in [
        ("policy", "semisync".into()),
        ("acks", 2.into()),
        ("zone_acks", 1.into()),
        ("ack_on", "receive".into()),
        ("timeout_seconds", serde_json::Value::from(1.5)),
        ("max_at_risk", 77.into()),
    ] {
        assert_eq!(status[field], value, "{field}");
    }
}

#[test]
fn excess_zone_acks_are_reported_in_log_and_status() {
    let mut lab = Lab::new(3, &Tuning::default());
    let awaited = |lab: &Lab| lab.nodes[0].member.waits_for();
    lab.set_policy(|policy| policy.zone_acks = 1);
    assert!(lab.logged(
        "commit.zone_acks = 1 asks for acknowledgements from as many other zones, but the members are in 1"
    ));
    assert_eq!(awaited(&lab), None);
    let write = lab.write(0);
    lab.run(3_000_000);
    assert!(write.wait_for(Duration::ZERO).is_none());
    let text = awaited(&lab).unwrap_or_default();
    assert!(text.contains("but the members are in 1") && text.contains("Or lower the settings"), "{text}");
    lab.run(9_000_000);
    let line =
        lab.lines.iter().find(|(_, line)| line.contains("have not come for 10 s")).map(|l| l.1.clone());
    let line = line.unwrap_or_default();
    assert!(line.contains("but the members are in 1") && !line.contains("Not from"), "{line}");
    lab.set_policy(|policy| policy.zone_acks = 0);
    lab.run(100_000);
    assert!(write.wait_for(Duration::ZERO).is_some());
    assert_eq!(awaited(&lab), None);
}

#[test]
fn unsatisfiable_acks_blame_no_healthy_member() {
    let mut lab = Lab::new(3, &Tuning::default());
    let settings = Policy { acks: 7, timeout: 3_600_000_000, ..Policy::of(PolicyKind::Semisync) };
    lab.set_policy(|policy| *policy = settings);
    let write = lab.write(0);
    lab.run(12_000_000);
    assert!(write.wait_for(Duration::ZERO).is_none());
    let awaited = |lab: &Lab, at: usize| lab.nodes[at].member.waits_for().unwrap_or_default();
    let lines: Vec<_> = lab.lines.iter().filter(|(_, line)| line.contains("commits wait for ack")).collect();
    assert!(!lines.is_empty() && lines.iter().all(|(_, line)| !line.contains("Not from")), "{lines:#?}");
    for at in 0..3 {
        let text = awaited(&lab, at);
        assert!(!text.contains("Not from"), "n{}: {text}", at + 1);
        assert!(text.is_empty() || text.ends_with("wsrep_provider_options = 'commit.acks=2'"), "{text}");
    }
    assert!(awaited(&lab, 0).contains("commit.acks = 7, but there are 2 other members"));
    // The member that waits names the missing ones.
    lab.set_policy(|policy| policy.acks = 2);
    assert!(matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))));
    lab.cut(2, true);
    lab.write(0);
    lab.run(3_000_000);
    let text = awaited(&lab, 0);
    assert!(text.contains("Not from: n3 (zone 0).") && text.ends_with("'commit.acks=1'"), "{text}");
    let text = awaited(&lab, 1);
    assert!(!text.contains("Not from"), "{text}");
}

#[test]
fn seqnos_skipped_after_leader_loss_are_no_lag() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.set_policy(|policy| policy.kind = PolicyKind::Async);
    lab.run(1_000_000);
    // The new leader's view skips as many seqnos as may be at risk, which is the lag limit.
    for at in 1..3 {
        lab.nodes[at].database_hangs = true;
    }
    lab.cut(0, true);
    lab.until("another one leads", 5_000_000, |lab| lab.leader(1).is_some_and(|leader| leader != 0));
    lab.run(3_000_000);
    let lags = |lab: &Lab| -> Vec<_> { lab.members(1).iter().map(|m| m.lag_trx.unwrap_or(0)).collect() };
    assert!(lags(&lab).iter().all(|lag| *lag < 10), "{:?}", lags(&lab));
    assert!(!lab.lines.iter().any(|(_, line)| line.contains("Desynced until")), "{:#?}", lab.lines);
}

#[test]
fn seqnos_skipped_by_new_leader_keep_members_synced() {
    for killed in [true, false] {
        let mut lab = Lab::new(3, &Tuning::default());
        lab.set_policy(|policy| *policy = Policy::of(PolicyKind::Semisync));
        let apply_hold = ApplyHold { delay: Duration::from_secs(3600), ..ApplyHold::default() };
        lab.nodes[2].member.set_tuning(Tuning { apply_hold, ..Tuning::default() });
        for _ in 0..5 {
            assert!(writes(&mut lab, 0));
        }
        let before = lab.nodes[1].member.ctx.raft.committed_state().seqno;
        if killed {
            lab.cut(0, true);
        } else {
            let (now, successor) = (lab.now, lab.id(1));
            lab.nodes[0].member.ctx.raft.transfer_leadership(now, successor).unwrap();
        }
        // Serving members stay Synced all the while, and no lag exceeds the number of writes and views.
        let serving = if killed { 1..2 } else { 0..2 };
        let calm = |lab: &Lab| {
            for at in serving.clone() {
                let member = &lab.nodes[at].member;
                assert_eq!(member.local_state(), LocalState::Synced, "n{}: {:#?}", at + 1, lab.lines);
                for member in member.members_status() {
                    assert!(member.lag_trx.is_none_or(|lag| lag <= 9), "{member:?}");
                }
                assert!(member.at_risk() <= 9);
            }
            let raft = &lab.nodes[1].member.ctx.raft;
            raft.has_committed_in_term() && raft.committed_state().seqno > before + 10_000
        };
        lab.until("another leads, and has left seqnos out", 5_000_000, calm);
        let end = lab.now + 1_000_000;
        lab.until("some time has passed", 2_000_000, |lab| calm(lab) && lab.now >= end);
        assert!(!lab.logged("Desynced until"));
        let delayed = lab.members(2).into_iter().find(|m| m.name == "n3").and_then(|m| m.lag_trx);
        assert!(delayed.is_some_and(|lag| (5..10).contains(&lag)), "{delayed:?}");
    }
}

/// Transactions with and without acks, as counted by the first member.
fn counted(lab: &Lab) -> (u64, u64) {
    let commits = &lab.nodes[0].member.admin.commits;
    (commits.yes, commits.no)
}

fn passed(write: &Submission) -> Option<bool> {
    match write.wait_for(Duration::ZERO) {
        Some(SubmitOutcome::Ordered(ordered)) => Some(ordered.pass),
        _ => None,
    }
}

#[test]
fn semisync_counts_committed_transactions_only() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.set_policy(|policy| *policy = Policy::of(PolicyKind::Semisync));
    let fragment = lab.write_fragment(0);
    lab.run(100_000);
    assert_eq!((passed(&fragment), counted(&lab)), (Some(true), (0, 0)), "a fragment commits nothing");
    assert!(writes(&mut lab, 0));
    assert_eq!(counted(&lab), (1, 0));
    // Proposals that a leader has not appended in its term are appended by the next one, and fail certification: only
    // that one may write.
    let (now, successor) = (lab.now, lab.id(1));
    lab.nodes[0].member.ctx.raft.transfer_leadership(now, successor).unwrap();
    let late = lab.write(0);
    lab.until("another one leads", 2_000_000, |lab| lab.leader(0) == Some(1));
    lab.run(500_000);
    assert_eq!((passed(&late), counted(&lab)), (Some(false), (1, 0)));
}

#[test]
fn rejected_writer_is_answered_without_acks() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.run(1_000_000);
    lab.cut(2, true);
    lab.nodes[0].member.request_policy(|policy| {
        *policy = Policy { acks: 2, ..Policy::of(PolicyKind::Semisync) };
    });
    // n2 does not know of the change yet, and no second member can send an ack.
    lab.run(500);
    let late = lab.write(1);
    lab.run(500_000);
    let policy = lab.nodes[1].member.ctx.raft.committed_state().policy;
    assert_eq!((policy.kind, policy.acks), (PolicyKind::Semisync, 2));
    assert_eq!(passed(&late), Some(false));
    // The leader's write waits, and is delivered to the others once it is committed.
    let write = lab.write(0);
    lab.run(500_000);
    assert_eq!(passed(&write), None);
    let (deliverer, raft) = (&lab.nodes[1].member.delivery.deliverer, &lab.nodes[1].member.ctx.raft);
    assert_eq!(deliverer.delivered(), raft.committed_state().seqno);
    lab.cut(2, false);
    lab.until("both have it", 5_000_000, |_| passed(&write) == Some(true));
}

#[test]
fn policy_without_acks_counts_none() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.set_policy(|policy| *policy = Policy { acks: 0, ..Policy::of(PolicyKind::Semisync) });
    (lab.nodes[1].disk_hangs, lab.nodes[2].disk_hangs) = (true, true);
    assert!(writes(&mut lab, 0));
    assert_eq!(counted(&lab), (0, 0));
    (lab.nodes[1].disk_hangs, lab.nodes[2].disk_hangs) = (false, false);
    assert!(writes(&mut lab, 0));
    assert_eq!(counted(&lab), (0, 0));
}

#[test]
fn transactions_before_semisync_are_not_counted() {
    for at_once in [false, true] {
        let mut lab = Lab::new(3, &Tuning::default());
        (lab.nodes[1].disk_hangs, lab.nodes[2].disk_hangs) = (at_once, at_once);
        let write = lab.write(0);
        lab.nodes[0].member.request_policy(|policy| policy.kind = PolicyKind::Semisync);
        lab.run(50_000);
        (lab.nodes[1].disk_hangs, lab.nodes[2].disk_hangs) = (false, false);
        lab.run(100_000);
        assert_eq!(lab.nodes[0].member.ctx.raft.committed_state().policy.kind, PolicyKind::Semisync);
        assert_eq!((passed(&write), counted(&lab)), (Some(true), (0, 0)));
        assert!(writes(&mut lab, 0));
        assert_eq!(counted(&lab), (1, 0));
    }
}

#[test]
fn concurrent_changes_of_one_setting_are_both_answered() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.run(1_000_000);
    let began = lab.now;
    lab.nodes[1].member.request_policy(|policy| policy.acks = 2);
    lab.nodes[2].member.request_policy(|policy| policy.acks = 3);
    lab.run(20_000_000);
    assert_eq!(lab.policies.len(), 2, "{:?}", lab.policies);
    for (at, _, result) in &lab.policies {
        assert!(result.is_ok() && *at < began + 100_000, "{:?}", lab.policies);
    }
    assert!(!lab.logged("was not committed within"));
}

#[test]
fn pending_policy_change_is_reverted_by_present_settings() {
    let mut options = crate::options::Options::default();
    let mut change = |lab: &mut Lab, text: &str| {
        options.adopt_policy(&lab.nodes[1].member.ctx.raft.committed_state().policy);
        let changes = options.set(text, true).unwrap();
        let change = options.policy_change(&changes).expect("it may be about to change");
        lab.nodes[1].member.request_policy(change);
    };
    for elected in [false, true] {
        let mut lab = Lab::new(3, &Tuning::default());
        lab.run(1_000_000);
        if elected {
            // No member leads.
            lab.cut(0, true);
        } else {
            // The leader has appended it, and no other member has it yet.
            (lab.nodes[1].disk_hangs, lab.nodes[2].disk_hangs) = (true, true);
        }
        change(&mut lab, "commit.policy=semisync");
        lab.run(if elected { 0 } else { 50_000 });
        change(&mut lab, "commit.policy=quorum");
        lab.run(20_000);
        assert_eq!(lab.policies, [], "{elected}");
        (lab.nodes[1].disk_hangs, lab.nodes[2].disk_hangs) = (false, false);
        lab.run(3_000_000);
        assert!(matches!(lab.policies[..], [(_, 1, Ok(()))]), "{:?}", lab.policies);
        lab.run(12_000_000);
        for node in &lab.nodes[1..] {
            assert_eq!(node.member.ctx.raft.committed_state().policy, Policy::default(), "{elected}");
        }
        // Without a pending request, it is in force at once.
        let now = lab.now;
        change(&mut lab, "commit.policy=quorum");
        lab.run(1_000);
        assert!(lab.policies.last().is_some_and(|(at, ..)| *at <= now + 1_000), "{:?}", lab.policies);
        assert_eq!(lab.policies.len(), 2);
    }
}

#[test]
fn new_leader_under_weak_policy_logs_possible_loss() {
    let led = |lab: &Lab| {
        lab.lines.iter().filter(|(_, line)| line.contains("are skipped (the next seqno is")).count()
    };
    for kind in [PolicyKind::Quorum, PolicyKind::Async] {
        let mut lab = Lab::new(3, &Tuning::default());
        lab.set_policy(|policy| policy.kind = kind);
        assert!(writes(&mut lab, 0));
        let last = lab.nodes[0].member.ctx.raft.tail_state().seqno;
        lab.cut(0, true);
        lab.until("another one leads", 30_000_000, |lab| lab.leader(1).is_some_and(|at| at != 0));
        lab.run(1_000_000);
        assert_eq!(led(&lab), usize::from(kind == PolicyKind::Async), "{kind:?}: {:#?}", lab.lines);
        if kind == PolicyKind::Async {
            assert!(lab.logged(&format!(
                "without n1: transactions that n1 acknowledged beyond seqno {last} and no member \
                     here has"
            )));
        }
        // A leadership transfer with the old leader present loses nothing.
        lab.cut(0, false);
        lab.run(5_000_000);
        let (facts, leader) = (led(&lab), lab.leader(1).unwrap());
        let successor = 3 - leader;
        lab.command(leader, Command::Switchover { to: format!("n{}", successor + 1) });
        lab.until("the other one leads", 10_000_000, |lab| lab.leader(successor) == Some(successor));
        lab.run(1_000_000);
        assert_eq!(led(&lab), facts, "{kind:?}: {:#?}", lab.lines);
    }
}

#[test]
fn excess_acks_are_logged_on_requester_and_leader() {
    for (timeout, then) in [(0, "commits wait until there are more"), (700_000, "falls back to async")] {
        for asked in [0, 1] {
            let mut lab = Lab::new(3, &Tuning::default());
            lab.run(1_000_000);
            lab.nodes[asked].member.request_policy(|policy| {
                *policy = Policy { acks: 9, timeout, ..Policy::of(PolicyKind::Semisync) };
            });
            lab.run(5_000_000);
            let too_many =
                |line: &str| line.contains("commit.acks = 9, but there are 2") && line.contains(then);
            let mut facts: Vec<usize> =
                lab.lines.iter().filter(|(_, line)| too_many(line)).map(|(at, _)| *at).collect();
            facts.sort_unstable();
            assert_eq!(facts, if asked == 0 { vec![0] } else { vec![0, 1] }, "{:#?}", lab.lines);
            assert_eq!(lab.logged("commits wait until there are more"), timeout == 0);
            let shown = |lab: &Lab, at: usize| lab.nodes[at].member.unsatisfiable_policy();
            assert!((0..3).all(|at| shown(&lab, at).is_some_and(|text| too_many(&text))));
            // So does a member whose term begins.
            let (now, successor) = (lab.now, lab.id(2));
            lab.nodes[0].member.ctx.raft.transfer_leadership(now, successor).unwrap();
            lab.until("it leads", 2_000_000, |lab| lab.nodes[2].member.ctx.raft.has_committed_in_term());
            lab.run(100_000);
            assert!(lab.lines.iter().any(|(at, line)| *at == 2 && too_many(line)));
            lab.nodes[0].member.request_policy(|policy| policy.acks = 2);
            lab.run(1_000_000);
            assert!((0..3).all(|at| shown(&lab, at).is_none()));
        }
    }
}

#[test]
fn fallback_names_members_without_acks() {
    let mut lab = Lab::new(3, &Tuning::default());
    let semisync = Policy { acks: 2, timeout: 300_000, ..Policy::of(PolicyKind::Semisync) };
    lab.set_policy(|policy| *policy = semisync);
    assert!(writes(&mut lab, 0));
    let missing = |lab: &Lab| lab.nodes.iter().map(|n| n.member.not_acknowledged_by()).collect::<Vec<_>>();
    let fallen_back = |lab: &Lab, at: usize| {
        let lines =
            lab.lines.iter().filter(|(n, line)| *n == at && line.contains("semisync has fallen back"));
        lines.map(|(_, line)| line.clone()).collect::<Vec<_>>()
    };
    lab.cut(2, true);
    let write = lab.write(0);
    lab.run(1_000_000);
    assert_eq!(passed(&write), Some(true));
    let lines = fallen_back(&lab, 0);
    assert!(
        lines.len() == 1
            && lines[0].contains("not acknowledged within commit.timeout (0.3 s) by n3 (zone 0).")
            && lines[0].ends_with("may be lost with the leader; n2 still acknowledges it"),
        "{lines:?}"
    );
    let lines = fallen_back(&lab, 1);
    assert!(lines.len() == 1 && lines[0].contains("(the error log of n1 names the members)"), "{lines:?}");
    assert!(
        lines[0].ends_with("may be lost with the leader"),
        "who has not heard of it knows of nobody: {lines:?}"
    );
    let of_leader = lab.events.iter().filter(|(at, _)| *at == 0).map(|(_, text)| text.as_str());
    let events: Vec<&str> = of_leader.collect();
    assert!(events.len() == 1 && events[0].contains(r#""fallen_back":true"#), "{events:?}");
    // During many writes, a member that only lacks the newest one is not named.
    for _ in 0..100 {
        lab.write(0);
        lab.run(700);
        assert_eq!(missing(&lab), [vec!["n3".to_owned()], vec![], vec![]]);
    }
    lab.cut(2, false);
    lab.until("it is back", 10_000_000, |lab| !lab.nodes[0].member.ctx.raft.has_fallen_back());
    lab.run(100_000);
    assert!(lab.events.iter().any(|(at, text)| *at == 0 && text.contains(r#""fallen_back":false"#)));
    assert_eq!(missing(&lab), [[""; 0]; 3]);

    // Under `commit.ack_on = receive`, a member that has the entry in memory has acknowledged it.
    lab.set_policy(|policy| policy.on_receive = true);
    lab.nodes[1].disk_hangs = true;
    lab.nodes[2].frozen = true;
    lab.write(0);
    lab.run(500_000);
    assert_eq!(missing(&lab)[0], ["n3"]);
    (lab.nodes[1].disk_hangs, lab.nodes[2].frozen) = (false, false);
    lab.until("it is back", 10_000_000, |lab| !lab.nodes[0].member.ctx.raft.has_fallen_back());

    // No member is named for a setting that cannot be met, or for acks on their way.
    for on_their_way in [true, false] {
        // A fallback soon after another is not logged at once.
        lab.run(10_000_000);
        lab.set_policy(|policy| policy.acks = 9);
        for _ in 0..1000 {
            if on_their_way || lab.nodes[0].member.ctx.raft.first_overdue().is_none() {
                lab.write(0);
            }
            lab.run(1000);
        }
        let last = fallen_back(&lab, 0).pop().unwrap_or_default();
        assert!(last.contains("to async: commit.acks = 9, but there are 2 other members. What"), "{last}");
        assert!(last.contains("; n2, n3 still acknowledge it"), "{last}");
        lab.run(1_000_000);
        assert_eq!(missing(&lab)[0], [""; 0]);
        lab.set_policy(|policy| policy.acks = 2);
        lab.until("it is back", 10_000_000, |lab| !lab.nodes[0].member.ctx.raft.has_fallen_back());
    }
}

#[test]
fn missing_acks_are_shown_without_timeout() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.set_policy(|policy| *policy = Policy { acks: 2, ..Policy::of(PolicyKind::Semisync) });
    lab.cut(2, true);
    lab.write(0);
    lab.run(1_000_000);
    assert_eq!(lab.nodes[0].member.not_acknowledged_by(), [""; 0], "not yet");
    lab.run(2_000_000);
    assert_eq!(lab.nodes[0].member.not_acknowledged_by(), ["n3"]);
    lab.cut(2, false);
    lab.run(2_000_000);
    assert_eq!(lab.nodes[0].member.not_acknowledged_by(), [""; 0]);
}

#[test]
fn stalled_member_reports_no_waiting_commits() {
    for sleeper in [0, 1] {
        let mut lab = Lab::new(3, &Tuning::default());
        lab.set_policy(|policy| *policy = Policy { acks: 2, ..Policy::of(PolicyKind::Semisync) });
        // It freezes while an entry lacks acks, and has received nothing when it resumes.
        lab.nodes[2].disk_hangs = true;
        lab.write(0);
        lab.until("it waits", 1_000_000, |lab| lab.nodes[sleeper].member.admin.reports.commits_wait());
        lab.nodes[sleeper].frozen = true;
        lab.cut(sleeper, true);
        lab.nodes[2].disk_hangs = false;
        lab.run(15_000_000);
        let before = lab.lines.len();
        lab.nodes[sleeper].frozen = false;
        for _ in 0..100 {
            lab.run(10_000);
            let shown = lab.nodes[sleeper].member.waits_for();
            assert!(shown.as_ref().is_none_or(|text| !text.contains("commits wait")), "{shown:?}");
        }
        lab.cut(sleeper, false);
        lab.run(5_000_000);
        let waits = |line: &str| line.contains("commits wait") && !line.contains("from now on");
        let facts: Vec<_> = lab.lines[before..].iter().filter(|(_, line)| waits(line)).collect();
        assert!(facts.is_empty(), "{facts:#?}");
    }
}

#[test]
fn wait_report_without_leader_is_complete() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.set_policy(|policy| *policy = Policy { acks: 2, ..Policy::of(PolicyKind::Semisync) });
    lab.nodes[2].disk_hangs = true;
    lab.write(0);
    lab.until("it waits", 1_000_000, |lab| lab.nodes[1].member.admin.reports.commits_wait());
    let why = |lab: &Lab| {
        let Member { ctx, delivery, .. } = &lab.nodes[1].member;
        unacknowledged(ctx, &delivery.submissions, ctx.raft.first_unacknowledged().unwrap())
    };
    assert_eq!(why(&lab), "The leader, n1, reports which members");
    lab.cut(0, true);
    lab.until("nobody leads", 5_000_000, |lab| lab.nodes[1].member.ctx.raft.leader().is_none());
    assert_eq!(why(&lab), "The leader reports which members, but is not known here");
}

/// An entry other than a write-set waits for the majority under every policy, and holds back later ones: that wait must
/// be logged.
#[test]
fn commits_waiting_behind_view_are_reported() {
    let tuning = patient();
    let mut lab = Lab::new(3, &tuning);
    lab.set_policy(|policy| policy.kind = PolicyKind::Async);
    (lab.nodes[1].disk_hangs, lab.nodes[2].disk_hangs) = (true, true);
    assert!(writes(&mut lab, 0), "nobody is waited for");
    lab.add(&tuning, |hello| hello.wants_vote = false);
    lab.run(1_000_000);
    let write = lab.write(0);
    lab.run(25_000_000);
    assert!(write.wait_for(Duration::ZERO).is_none(), "it does not wait");
    let waits = lab.nodes[0].member.waits_for();
    assert!(
        lab.logged("commits wait") || lab.logged("commits have waited") || waits.is_some(),
        "for 25 s an async leader answers nobody, and says nothing: {:#?}",
        lab.lines
    );
}

/// As if `commit.timeout` were close to the time that acks take.
#[test]
fn repeated_fallbacks_are_counted_and_logged_rarely() {
    let mut lab = Lab::new(3, &Tuning::default());
    let semisync = Policy { acks: 2, timeout: 50_000, ..Policy::of(PolicyKind::Semisync) };
    lab.set_policy(|policy| *policy = semisync);
    assert!(writes(&mut lab, 0));
    let facts = |lab: &Lab| {
        let lines =
            lab.lines.iter().filter(|(at, line)| *at == 0 && line.contains("semisync has fallen back"));
        lines.map(|(_, line)| line.clone()).collect::<Vec<_>>()
    };
    for _ in 0..4 {
        lab.cut(2, true);
        lab.write(0);
        lab.until("it falls back", 5_000_000, |lab| lab.nodes[0].member.ctx.raft.has_fallen_back());
        lab.cut(2, false);
        lab.until("it returns", 5_000_000, |lab| !lab.nodes[0].member.ctx.raft.has_fallen_back());
    }
    let leader = &lab.nodes[0].member;
    assert_eq!((facts(&lab).len(), leader.commits().fallbacks), (1, 4), "{:#?}", lab.lines);
    let returns = lab.lines.iter().filter(|(at, line)| *at == 0 && line.contains("no longer fallen back"));
    assert_eq!(returns.count(), 1, "what was not said does not end");
    // A lasting fallback is logged, if later.
    lab.cut(2, true);
    lab.write(0);
    lab.run(11_000_000);
    let lines = facts(&lab);
    assert!(lines.len() == 2 && lines[1].contains("(3 more fallbacks since"), "{lines:?}");
}
