//! Some minutes of faults on a replicated block device. `make block-chaos` and `make block-mariadb` are the long forms.

use std::time::Duration;

use lockstep_lab::block_chaos::{Fault, Plant, Protocol, Spec, Stage, run};
use lockstep_lab::block_mariadb;

use crate::fixture::{Test, alone, built, has_networks};

fn spec(faults: &[Fault], stages: &[Stage]) -> Spec {
    Spec {
        faults: faults.to_vec(),
        stages: stages.to_vec(),
        rounds: Some(1),
        hold: Duration::from_secs(3),
        calm: Duration::from_secs(1),
        ..Spec::new(Some(built("lockstep")))
    }
}

#[test]
fn device_holds_every_flushed_write_under_faults() -> Test {
    let _alone = alone();
    let mut faults = vec![
        Fault::KillPrimaryMove,
        Fault::KillAll,
        Fault::PausePrimaryMove,
        Fault::SlowDisk,
        Fault::StopPrimary,
        Fault::Handover,
    ];
    if has_networks() {
        faults.extend([Fault::CutPrimaryMove, Fault::Split, Fault::FullDisk]);
    }
    let stages = [
        Stage { protocol: Protocol::C, arbitrator: true },
        Stage { protocol: Protocol::A, arbitrator: false },
    ];
    let report = run(&spec(&faults, &stages), &|line| eprintln!("{line}"))?;
    eprintln!("{}", report.text());
    assert!(report.is_clean(), "{}", report.text());
    assert!(report.flushes > 200, "too few to mean anything:\n{}", report.text());
    Ok(())
}

#[test]
fn planted_corruption_of_a_device_is_found() -> Test {
    let _alone = alone();
    let stages = [Stage { protocol: Protocol::C, arbitrator: true }];
    let spec = Spec { plant: Some(Plant::Lose), ..spec(&[Fault::Handover], &stages) };
    let report = run(&spec, &|line| eprintln!("{line}"))?;
    let found = report.violations.concat();
    assert!(found.contains("differ at byte") && found.contains("sector"), "{}", report.text());
    Ok(())
}

#[test]
fn mariadb_on_device_keeps_acknowledged_commits() -> Test {
    if !has_networks() || !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("NOT TESTED: needs root, network namespaces and /dev/fuse");
        return Ok(());
    }
    let _alone = alone();
    let spec = block_mariadb::Spec { rounds: 2, ..block_mariadb::Spec::new(Some(built("lockstep"))) };
    let report = block_mariadb::run(&spec, &|line| eprintln!("{line}"))?;
    eprintln!("{}", report.text());
    assert!(report.is_clean(), "{}", report.text());
    assert!(report.failovers.len() == 2 && report.acknowledged > 50, "{}", report.text());
    Ok(())
}
