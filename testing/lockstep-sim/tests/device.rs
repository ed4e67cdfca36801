//! The simulator's copies of a block device: runs repeat themselves exactly, planted faults are found, and nothing is found where
//! there is none.

use lockstep_sim::{
    DEVICE_PLANTS, DeviceCounters, DeviceReport, DeviceSettings, hunt_device, simulate_device,
};

fn clean(seed: u64) -> DeviceReport {
    let report = simulate_device(DeviceSettings::seed(seed));
    assert_eq!(report.violation, None, "replay: lockstep-sim --device --seed {seed} --trace");
    report
}

#[test]
fn equal_seeds_give_equal_device_runs() {
    for seed in [3, 4] {
        assert_eq!(clean(seed), clean(seed), "everything that was counted, and the hash of the trace");
    }
    assert_ne!(clean(3).hash, clean(4).hash);
}

#[test]
fn device_keeps_its_promises_and_every_fault_happens() {
    let (mut sum, mut kinds) = (DeviceCounters::default(), Vec::new());
    for seed in 90..=119 {
        let report = clean(seed);
        sum.add(&report.counters);
        kinds.resize(report.by_kind.len(), 0);
        kinds.iter_mut().zip(&report.by_kind).for_each(|(sum, (_, n))| *sum += n);
    }
    assert!(kinds.iter().all(|n| *n > 0), "{kinds:?}");
    let DeviceCounters {
        writes_taken,
        reads,
        writes,
        flushes,
        attached,
        promotions,
        ended,
        lost,
        heals,
        needs_state,
        copies,
        ..
    } = sum;
    assert!(needs_state > 10 && copies > 10, "members take the device from others: {sum:?}");
    for n in [writes_taken, reads, writes, flushes, attached, promotions, ended, heals] {
        assert!(n > 30, "{sum:?}");
    }
    assert!(lost > 0, "a weak policy has lost a flush: {sum:?}");
}

/// Those that take many seeds are for `make sim-mutations`.
#[test]
fn every_planted_device_fault_is_found() {
    let (mut missed, mut tried) = (Vec::new(), 0);
    for plant in DEVICE_PLANTS.iter().filter(|plant| plant.seeds <= 25) {
        tried += 1;
        match hunt_device(plant) {
            Ok((seed, violation)) => println!("{}: seed {seed}: {violation}", plant.name),
            Err(seeds) => missed.push((plant.name, seeds)),
        }
    }
    assert!(tried >= 5 && missed.is_empty(), "not found within so many seeds: {missed:?}");
}
