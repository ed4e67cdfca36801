//! A small run of `lockstep lab parallel-apply`; and a test that dependents do not wait for the disk.

use std::time::Duration;

use lockstep_lab::parallel_apply::{Case, Family, ParallelApply, Run, Side, Spec};

use crate::fixture::{Kind, Test, kind, provider, same};

fn lab() -> ParallelApply {
    ParallelApply::new(Spec {
        provider: provider(),
        lockstep: Some(crate::fixture::built("lockstep")),
        rows: 200,
        updates: 1000,
        slow_updates: 400,
        connections: 20,
        slow: Duration::from_millis(4),
    })
}

const CASE: Case = Case { side: Side::Writeset, workers: 8, schemas: 10, flush: false, slow: false };

#[test]
fn replica_is_paused_resumed_and_followed_to_end() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let mut lab = lab();
    // The rows are compared by the lab itself.
    for (side, workers, schemas) in [
        (Side::Writeset, 8, 10),
        (Side::Conservative, 4, 10),
        (Side::Schema, 2, 3),
        (Side::ConservativeFile, 4, 10),
        (Side::MariaDb, 0, 1),
        (Side::ServedConservative, 4, 10),
        (Side::ServedOptimistic, 4, 10),
    ] {
        let case = Case { side, workers, schemas, ..CASE };
        let run = lab.run(&case)?;
        same("updates", run.updates, 1000);
        assert!(run.rate() > 0.0 && run.written_in > Duration::ZERO, "{run:?}");
        assert!(run.progress.last().is_some_and(|(at, done)| *at == run.elapsed && *done >= 1000), "{run:?}");
        // The primary has grouped the commits of 20 connections.
        let size = run.groups.map(|(commits, groups)| commits as f64 / groups as f64);
        eprintln!("{side:?}: {size:?} commits in a group");
        assert_eq!(size.is_some_and(|size| size >= 5.0), side.family() == Family::MariaDb, "{run:?}");
        let copy = &run.configurations[1].1;
        let setting =
            side.setting().trim_start_matches("none").trim_start_matches("served-").trim_end_matches("-file");
        assert!(copy.contains("SET GLOBAL") && copy.contains(setting));
        assert_eq!(copy.contains("MASTER_USE_GTID=no"), side.has_file(), "{copy}");
    }
    Ok(())
}

#[test]
fn dependent_transaction_waits_for_commit_not_flush() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let mut lab = lab();
    let mut slow = |side, schemas| lab.run(&Case { side, schemas, flush: true, slow: true, ..CASE });
    let each = |run: &Run| run.elapsed.as_secs_f64() / f64::from(run.updates);
    let serial = slow(Side::Serial, 1)?;
    assert!(serial.flushes >= 400 && each(&serial) >= 0.004, "one flush for each: {serial:?}");
    // In one schema each depends on the one before it.
    let schema = slow(Side::Schema, 1)?;
    assert!(each(&schema) < each(&serial) / 2.0, "{schema:?} and {serial:?}");
    let writeset = slow(Side::Writeset, 10)?;
    assert!(each(&writeset) < each(&serial) / 2.0, "{writeset:?} and {serial:?}");
    Ok(())
}
