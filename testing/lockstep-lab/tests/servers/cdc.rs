//! A small run of `lockstep lab cdc`.

use std::time::Duration;

use lockstep_lab::cdc::{Pace, Setup, Spec, run};

use crate::fixture::{GALERA, Kind, Test, alone, built, kind, provider, same};

#[test]
fn consumers_get_each_row_and_catch_up() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let spec = Spec {
        provider: provider(),
        galera: GALERA.into(),
        lockstep: Some(built("lockstep")),
        consumers: vec![2],
        writers: 2,
        rate: 50,
        window: Duration::from_millis(500),
    };
    for setup in [Setup::MariaDb, Setup::Lockstep] {
        // Each consumer must have each row, or the run fails.
        let run = run(setup, &spec)?;
        let paces: Vec<(usize, Pace)> = run.measured.iter().map(|m| (m.consumers, m.pace)).collect();
        let fixed = Pace::Fixed(spec.rate);
        same("loads", paces, vec![(0, fixed), (0, Pace::Full), (2, fixed), (2, Pace::Full)]);
        let written: u64 = run.measured.iter().map(|m| m.transactions).sum();
        assert!(run.catch_up.transactions >= written, "{run:?}");
        assert!(run.measured[2].arrival_ms[0] > 0.0 && run.measured[2].sender_us().is_some(), "{run:?}");
    }
    Ok(())
}
