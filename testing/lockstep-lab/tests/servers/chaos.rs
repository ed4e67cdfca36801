//! A minute of chaos. `make chaos` is the long form.

use std::time::Duration;

use lockstep_lab::chaos::{ChaosSpec, Fault, Policy, Report, Workload, run};
use lockstep_local::LocalError;

use crate::fixture::{Kind, Test, alone, built, kind, provider};

fn spec(faults: &[Fault], seconds: u64, snapshot_isolation: bool) -> ChaosSpec {
    ChaosSpec {
        length: Duration::from_secs(seconds),
        faults: faults.to_vec(),
        hold: Duration::from_secs(3),
        calm: Duration::from_secs(1),
        timeout: Duration::from_secs(60),
        snapshot_isolation,
        command: Some(built("lockstep")),
        ..ChaosSpec::new(provider())
    }
}

fn chaos(faults: &[Fault], seconds: u64, snapshot_isolation: bool) -> Result<Report, LocalError> {
    goes(&spec(faults, seconds, snapshot_isolation))
}

fn goes(spec: &ChaosSpec) -> Result<Report, LocalError> {
    let _alone = alone();
    let report = run(spec, &|line| eprintln!("{line}"))?;
    eprintln!("{}", report.text());
    Ok(report)
}

#[test]
fn clients_find_what_they_were_told_after_kills_and_cuts() -> Test {
    let faults = [Fault::KillFirst, Fault::KillAll, Fault::Pause, Fault::Isolate, Fault::Split];
    let report = chaos(&faults, 30, true)?;
    assert!(report.is_clean(), "{}", report.text());
    assert!(report.human_steps.is_empty(), "{}", report.text());
    assert!(
        report.acknowledged > 500 && report.list_transactions > 100,
        "too few to mean anything:\n{}",
        report.text()
    );
    Ok(())
}

/// Each fault once under this policy, with one server more that does not vote.
fn under(policy: Policy, faults: &[Fault], voters: usize, learners: usize) -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let mut spec = spec(faults, 0, true);
    spec.rounds = Some(1);
    (spec.policy, spec.voters, spec.learners) = (policy, voters, learners);
    let report = goes(&spec)?;
    assert!(report.is_clean(), "{}", report.text());
    assert!(report.acknowledged > 200, "too few to mean anything:\n{}", report.text());
    Ok(())
}

#[test]
fn under_async_no_more_is_lost_than_was_at_risk() -> Test {
    under(Policy::Async, &[Fault::LoseFirst, Fault::Isolate], 3, 0)
}

#[test]
fn under_semisync_who_acknowledged_is_enough() -> Test {
    under(Policy::Semisync, &[Fault::LoseFirst, Fault::Isolate], 3, 1)
}

#[test]
fn under_semisync_a_replica_goes_on_when_the_only_voter_is_lost() -> Test {
    under(Policy::Semisync, &[Fault::LoseFirst], 1, 2)
}

#[test]
fn under_all_one_of_three_is_enough() -> Test {
    under(Policy::All, &[Fault::LoseOthers], 3, 0)
}

#[test]
#[ignore = "long: make servers-long; disk::* is the short one"]
fn full_disk_loses_nothing_and_is_cleaned_up() -> Test {
    let report = chaos(&[Fault::DiskFull], 3, true)?;
    assert!(report.is_clean(), "{}", report.text());
    // If only the log's disk is full, the member comes back by itself. If InnoDB's data share the disk, applying may fail
    // first: then the member is outvoted and stays down until it is restarted, as under Galera.
    assert!(report.human_steps.len() <= 1, "{}", report.text());
    let own = format!("lockstep-{}-", std::process::id());
    let left: Vec<_> = std::fs::read_dir("/var/tmp")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&own))
        .collect();
    assert!(left.is_empty(), "{left:?} is left of the servers' files");
    Ok(())
}

/// List-append on three members while the leader is killed once, and then another one.
#[test]
fn isolation_holds_on_three_members_with_kills() -> Test {
    let mut spec = spec(&[Fault::KillFirst, Fault::KillOther], 0, true);
    spec.rounds = Some(1);
    spec.workload = Workload::ListAppend;
    let report = goes(&spec)?;
    assert!(report.is_clean(), "{}", report.text());
    assert!(report.list_transactions > 500, "too few to mean anything:\n{}", report.text());
    Ok(())
}
