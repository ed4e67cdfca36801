//! What synchronous replication costs: masters that both write, a slave far from them, and clients far from their server.

use std::time::Duration;

use lockstep_lab::synchronous::{Measured, Provider, Run, Setup, Spec, run};
use lockstep_local::LocalError;

use crate::fixture::{GALERA, Test, alone, built, has_networks, same};

const ROUND_TRIP: Duration = Duration::from_millis(40);

fn measure(setup: Setup) -> Result<Run, LocalError> {
    let spec = Spec {
        provider: built("liblockstep.so"),
        galera: GALERA.into(),
        round_trip: ROUND_TRIP,
        tables: 2,
        rows: 1000,
        threads: vec![2, 4],
        window: Duration::from_secs(2),
    };
    let run = run(setup, &spec)?;
    same("loads", run.measured.iter().map(|m| m.threads).collect::<Vec<_>>(), vec![2, 4]);
    for Measured { threads, load, histogram, caught_up } in &run.measured {
        eprintln!("{} by {threads}: {load:?}, copies had all after {caught_up:?}", setup.what());
        same("whether there are copies", caught_up.is_some(), setup.has_copies());
        let counted: u64 = histogram.0.iter().map(|(_, count)| count).sum();
        same("transactions in the histogram", counted, load.transactions);
        let median = histogram.percentile(50.0).unwrap_or(0.0);
        assert!(load.min_ms * 0.9 <= median && median <= load.max_ms * 1.1, "{median}: {load:?}");
    }
    Ok(run)
}

#[test]
fn far_clients_pay_per_statement_and_far_slave_costs_none() -> Test {
    let _alone = alone();
    if !has_networks() {
        return Ok(());
    }
    let rtt = ROUND_TRIP.as_secs_f64() * 1e3;
    let far = measure(Setup::FarClients)?;
    // A transaction has 20 statements.
    assert!(far.measured.iter().all(|m| m.load.min_ms >= 20.0 * rtt), "{:?}", far.measured);
    let near = measure(Setup::MastersAndFar(Provider::Lockstep))?;
    same("option files, and variables", near.configurations.len(), 6);
    assert!(near.measured.iter().all(|m| m.load.min_ms < rtt), "{:?}", near.measured);
    assert!(near.there.delivered > 0, "nothing went to the far slave: {:?}", near.there);
    Ok(())
}
