//! `LOCKSTEP_SEEDS=2000 cargo test -p lockstep-node campaign` runs more seeds, `LOCKSTEP_SEED=7` a single one (`make
//! campaign`).

use super::{CALM_TIMEOUT, World};
use lockstep_core::Micros;
use lockstep_core::raft::Failpoint;

/// How long faults happen.
const FAULT_PERIOD: Micros = 12_000_000;

/// One run, and the invariant it violated.
fn run(seed: u64, failpoint: Option<Failpoint>) -> (World, Result<(), String>) {
    let mut world = World::new(seed, failpoint);
    let mut go = || {
        // All members join before the faults begin.
        let until = world.lab.now + CALM_TIMEOUT;
        while !world.is_healthy() {
            if world.lab.now > until {
                return Err("they do not come together".into());
            }
            world.step()?;
        }
        let (until, often) = (world.lab.now + FAULT_PERIOD, world.rng.between(40, 600));
        while world.lab.now < until {
            if world.rng.one_in(often) {
                world.fault();
            }
            world.clients();
            world.step()?;
        }
        world.end_faults()
    };
    let end = go();
    (world, end)
}

#[test]
fn campaign() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let one = number("LOCKSTEP_SEED");
    let seeds = one.map_or(1..=number("LOCKSTEP_SEEDS").unwrap_or(60), |seed| seed..=seed);
    let (mut answers, mut parts, mut crashes, mut copies, mut rescued) = (0, 0, 0, 0, 0);
    let mut failed = Vec::new();
    for seed in seeds {
        match run(seed, None) {
            (world, Ok(())) => {
                answers += world.answers;
                parts += world.parts;
                crashes += world.crashes;
                copies += world.copies;
                rescued += world.lab.nodes.iter().map(|node| node.disk.rescued.len()).sum::<usize>();
            }
            (world, Err(text)) => {
                if one.is_some() || failed.is_empty() {
                    let mut logged: Vec<(Micros, String)> = world.events.clone();
                    logged.sort_by_key(|(at, _)| *at);
                    for (at, line) in logged {
                        eprintln!("{:>10.3} ms  {line}", at as f64 / 1e3);
                    }
                    for (at, line) in &world.lab.lines {
                        eprintln!("n{}: {line}", at + 1);
                    }
                }
                eprintln!("seed {seed}, at {} ms: {text}", world.lab.now / 1000);
                failed.push(seed);
            }
        }
    }
    eprintln!(
        "{answers} writes acknowledged, {parts} parts of streaming transactions, {crashes} crashes, {copies} state transfers, {rescued} entries rescued"
    );
    assert!(failed.is_empty(), "seeds {failed:?}");
    assert!(
        one.is_some() || answers > 0 && parts > 0 && crashes > 0 && copies > 0 && rescued > 0,
        "it has not tried much"
    );
}

/// The campaign's sensitivity: it must detect each injected fault.
#[test]
fn campaign_detects_injected_faults() {
    for failpoint in [
        Failpoint::NoAcksAwaited,
        Failpoint::NoZonesAwaited,
        Failpoint::AllIsMajority,
        Failpoint::ReceivedIsPersisted,
        Failpoint::OverwriteWithoutRescue,
        Failpoint::SeqnosGivenTwice,
        Failpoint::VoteForAnyLog,
        Failpoint::OvertakenFragmentsPass,
    ] {
        let found = (1..=120).find_map(|seed| run(seed, Some(failpoint)).1.err().map(|text| (seed, text)));
        eprintln!("{failpoint:?}: {found:?}");
        assert!(found.is_some(), "{failpoint:?} is not found");
    }
}
