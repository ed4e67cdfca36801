//! The simulator itself: it repeats itself exactly, finds planted faults, and finds none where there is none.

use lockstep_sim::{
    Counters, FAULTS, PLANTS, RunReport, Settings, World, hunt, mutate, regression_seeds, simulate,
};
use std::process::Command;

fn clean(seed: u64) -> RunReport {
    let outcome = simulate(Settings::seed(seed));
    assert_eq!(outcome.violation, None, "replay: lockstep-sim --seed {seed} --plain --trace");
    outcome
}

#[test]
fn equal_seeds_give_equal_runs() {
    for seed in [7, 11] {
        let (first, second) = (clean(seed), clean(seed));
        assert_eq!(first, second, "everything that was counted, and the hash of the trace");
    }
    assert_ne!(clean(7).hash, clean(11).hash);
}

#[test]
fn seeds_cover_all_activities() {
    let mut seen = [0; 5];
    for seed in 12..=14 {
        let outcome = clean(seed);
        let (seconds, counters) = (outcome.simulated / 1_000_000, outcome.counters);
        assert!(counters.proposals >= 10 * seconds, "{outcome:?}");
        assert!(counters.faults >= seconds / 10, "{outcome:?}");
        let more = [outcome.acknowledged, counters.heals, outcome.elections, counters.reads, counters.starts];
        seen.iter_mut().zip(more).for_each(|(sum, n)| *sum += n);
    }
    assert!(seen.iter().all(|sum| *sum > 10), "{seen:?}");
}

/// Every activity of the simulator occurs, and none causes a violation.
#[test]
fn every_fault_happens() {
    let mut sum = Counters::default();
    for seed in 31..=38 {
        sum.add(&clean(seed).counters);
    }
    for (fault, n) in FAULTS.iter().zip(sum.by_kind) {
        assert!(n > 0, "{fault:?} never happened: {sum:?}");
    }
    assert!(sum.damaged_logs > 0 && sum.identities > 0 && sum.failed_starts > 0, "{sum:?}");
}

/// With one writer at a time leadership follows it, and no rule is broken by that.
#[test]
fn leadership_follows_the_writer() {
    let mut follows = 0;
    for seed in 3..=8 {
        let outcome = simulate(Settings { world: World::Writers, ..Settings::seed(seed) });
        assert_eq!(outcome.violation, None, "replay: lockstep-sim --seed {seed} --writers --trace");
        follows += outcome.counters.follows;
    }
    assert!(follows >= 6, "{follows}");
}

/// Worlds in which something was once wrong, or in which much that is rare happens together: `seeds.txt`.
#[test]
fn seeds_that_once_failed() {
    let kept = regression_seeds();
    assert!(!kept.is_empty());
    for (seed, world) in kept {
        let outcome = simulate(Settings { world, ..Settings::seed(seed) });
        assert_eq!(outcome.violation, None, "replay: lockstep-sim --seed {seed} --trace ({world:?})");
    }
}

/// Each rule that is broken on purpose is found, within the number of seeds that the list says. Those that take long
/// are for `make sim-mutations`, and so is what outcomes alone show.
#[test]
fn every_planted_fault_is_found() {
    let (mut missed, mut tried) = (Vec::new(), 0);
    for plant in PLANTS.iter().filter(|plant| plant.seeds <= 25) {
        tried += 1;
        match hunt(plant, true) {
            Ok((seed, violation)) => println!("{}: seed {seed}: {violation}", plant.name),
            Err(seeds) => missed.push((plant.name, seeds)),
        }
    }
    assert!(tried > 20 && missed.is_empty(), "not found within so many seeds: {missed:?}");
}

/// The inner rules switched off, the damage shows all the same: the histories are hard enough.
#[test]
fn outcome_checks_alone_find_faults() {
    for name in ["ack-before-fsync", "vote-for-any-log", "two-votes", "duplicate-proposals", "no-parents"] {
        let plant = mutate::by_name(name).expect("is in the list");
        assert!(hunt(plant, false).is_ok(), "{name}");
    }
}

/// What weak policies lose is regression_seeds, told and counted, and nothing else is lost.
#[test]
fn policies_keep_their_promises() {
    let mut sum = Counters::default();
    for seed in 1..=12 {
        let settings = Settings { world: World::Policies, ..Settings::seed(seed) };
        let outcome = simulate(settings);
        assert_eq!(outcome.violation, None, "replay: lockstep-sim --seed {seed} --policies --trace");
        sum.add(&outcome.counters);
    }
    assert!(sum.early > 100 && sum.lost > 0 && sum.fallbacks > 0, "{sum:?}");
}

/// An arbitrator leads now and then under policies that change, takes over what others had acknowledged, and passes it on.
#[test]
fn arbitrators_take_part() {
    let mut sum = Counters::default();
    for seed in (1..=40).filter(|seed| Settings::seed(*seed).arbitrates(1)) {
        let outcome = simulate(Settings { world: World::Policies, ..Settings::seed(seed) });
        assert_eq!(outcome.violation, None, "replay: lockstep-sim --seed {seed} --policies --trace");
        sum.add(&outcome.counters);
    }
    assert!(sum.arbitrators_led > 0 && sum.early > 0, "{sum:?}");
}

/// A run of many seeds is in all worlds, and each of them meets what else a seed's number decides.
#[test]
fn all_worlds_are_run() {
    for world in [World::Any, World::Policies, World::Writers] {
        for relays in [false, true] {
            let meets = |seed: &u64| World::of(*seed) == world && Settings::seed(*seed).relays() == relays;
            assert!((1..=40).filter(meets).count() >= 4, "{world:?}, relays: {relays}");
        }
    }
}

/// A violation prints the command that repeats it, for any choice of the world.
#[test]
fn violation_prints_replay_command() {
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_lockstep-sim")).args(args).output().expect("runs");
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).expect("is text")
    };
    let line = |text: &str, begins: &str| {
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(begins));
        line.unwrap_or_else(|| panic!("{begins} is not in {text}")).to_string()
    };
    // A fault that any seed finds at once.
    let plant = ["--mutate", "ack-before-fsync"];
    for args in [
        &["--from", "4", "--seeds", "1"][..],
        &["--from", "4", "--seeds", "1", "--policies"],
        &["--seed", "6", "--writers"],
        &["--seed", "1", "--short-terms"],
        &["--seed", "1", "--late-relays"],
        &["--seed", "1", "--newcomers"],
    ] {
        let first = run(&[args, &plant].concat());
        let replay = line(&first, "replay: cargo run -q --release -p lockstep-sim -- ");
        let again = run(&replay.split(' ').collect::<Vec<_>>());
        assert_eq!(line(&first, "VIOLATION seed"), line(&again, "VIOLATION seed"), "{replay}");
    }
}
