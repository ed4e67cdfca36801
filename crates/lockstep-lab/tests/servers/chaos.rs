//! A minute of chaos. `make chaos` is the long form.

use std::time::Duration;

use lockstep_lab::LabError;
use lockstep_lab::chaos::{ChaosSpec, Fault, Report, run};

use crate::fixture::{Test, alone, provider};

fn chaos(faults: &[Fault], seconds: u64, snapshot_isolation: bool) -> Result<Report, LabError> {
    let _alone = alone();
    let spec = ChaosSpec {
        length: Duration::from_secs(seconds),
        faults: faults.to_vec(),
        hold: Duration::from_secs(3),
        calm: Duration::from_secs(1),
        patience: Duration::from_secs(60),
        snapshot_isolation,
        ..ChaosSpec::new(provider())
    };
    let report = run(&spec, &|line| eprintln!("{line}"))?;
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

#[test]
#[ignore = "long: make servers-long; disk::* is the short one"]
fn a_full_disk_loses_nothing_and_leaves_no_trace() -> Test {
    let report = chaos(&[Fault::DiskFull], 3, true)?;
    assert!(report.is_clean(), "{}", report.text());
    // Whose log alone has no room comes back by itself. Where InnoDB's data share the disk, its applying may fail first:
    // then the member is outvoted, and stays with its evidence until somebody starts it again, as under Galera.
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
