//! The measurement itself, made short: with our provider, and Galera's as the rival where it is installed.

mod common;

use common::*;
use lockstep_host::bench::{self, Side, Spec};
use std::path::Path;

#[test]
fn two_providers_take_turns_and_every_number_is_there() {
    let library = match Kind::Lockstep.library(binary()) {
        Ok(library) => library,
        Err(why) => {
            assert!(std::env::var_os("LOCKSTEP_HOST_REQUIRE").is_none(), "{why}");
            eprintln!("skipped: {why}");
            return;
        }
    };
    let rival = Kind::Galera.library(binary()).unwrap_or_else(|_| library.clone());
    let spec = Spec {
        library,
        rival: Some(rival),
        program: binary().to_owned(),
        program_args: Vec::new(),
        members: 2,
        clients: vec![3],
        bytes: 100,
        writes: 2,
        keys: 50,
        conflict: 60,
        duration: Duration::from_millis(600),
        rounds: 2,
        appliers: 2,
        options: String::new(),
        rival_options: String::new(),
    };
    let mut turns = Vec::new();
    let results = bench::run(&spec, |clients, round, side, _| turns.push((clients, round, side))).unwrap();
    assert_eq!(
        turns,
        [(3, 0, Side::Rival), (3, 0, Side::Provider), (3, 1, Side::Provider), (3, 1, Side::Rival)]
    );
    let [result] = &results[..] else { panic!("{results:?}") };
    let ratio = result.ratio.as_ref().unwrap();
    assert!(ratio.tx_per_second > 0.0 && ratio.cpu_us_per_tx > 0.0, "{ratio:?}");
    for figures in result.provider_rounds.iter().chain(&result.rival_rounds) {
        assert!(figures.tx_per_second > 1.0, "{figures:?}");
        assert!(figures.cpu_us_per_tx > figures.system_us_per_tx, "{figures:?}");
        assert!(figures.latency_min_us > 0.0, "{figures:?}");
        assert!(figures.latency_min_us <= figures.latency_p50_us, "{figures:?}");
        assert!(figures.latency_p50_us <= figures.latency_p99_us, "{figures:?}");
        assert!(figures.conflicts_percent > 0.0, "on 4 shared rows somebody loses: {figures:?}");
        assert!(figures.rss_mib > 1.0 && figures.threads > 5.0, "{figures:?}");
    }
}

#[test]
fn unloadable_provider_is_an_error() {
    let spec = Spec {
        library: Path::new("/nonexistent/provider.so").to_owned(),
        rival: None,
        program: binary().to_owned(),
        program_args: Vec::new(),
        members: 1,
        clients: vec![1],
        bytes: 16,
        writes: 1,
        keys: 1,
        conflict: 0,
        duration: Duration::from_millis(100),
        rounds: 1,
        appliers: 1,
        options: String::new(),
        rival_options: String::new(),
    };
    let error = bench::run(&spec, |_, _, _, _| ()).unwrap_err();
    assert!(error.to_string().contains("cannot be loaded"), "{error}");
}
