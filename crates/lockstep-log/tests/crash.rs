//! What survives: crashes at every operation, failures of every operation, and random histories.

mod common;

use common::model::{Bench, Step};
use lockstep_log::Fault;
use proptest::prelude::*;

/// A history that passes through every path of the writer.
fn story() -> Vec<Step> {
    use Step::*;
    vec![
        Append { count: 3, raise: 1, grow: 0 },
        Vote { raise: 1, whom: 1 },
        Sync,
        Append { count: 4, raise: 0, grow: 700 },
        Append { count: 2, raise: 1, grow: 0 },
        Sync,
        Replace { back: 3, count: 2 },
        Sync,
        Roll { count: 5 },
        Append { count: 2, raise: 0, grow: 1500 },
        Sync,
        Hint,
        Vote { raise: 1, whom: 4 },
        Sync,
        Roll { count: 2 },
        Sync,
        Append { count: 30, raise: 0, grow: 900 },
        Sync,
        // Back across two segments.
        Replace { back: 36, count: 3 },
        Append { count: 1, raise: 0, grow: 0 },
        Sync,
        ReplaceAndRoll { back: 2, count: 4 },
        Sync,
        Roll { count: 6 },
        Sync,
        Trim { eighths: 6 },
        Roll { count: 3 },
        Sync,
        Reopen,
        Append { count: 2, raise: 0, grow: 0 },
        Vote { raise: 1, whom: 2 },
        Sync,
        Reset { ahead: 10, count: 3 },
        Append { count: 2, raise: 0, grow: 0 },
        Sync,
        Roll { count: 2 },
        Sync,
    ]
}

/// Plays the steps until one fails; true if none did.
fn play(bench: &mut Bench, steps: &[Step]) -> bool {
    for step in steps {
        if bench.log.is_none() || bench.step(step).is_err() {
            bench.log = None;
            return false;
        }
    }
    bench.log.is_some()
}

fn operations_of_the_story() -> u64 {
    let mut bench = Bench::new();
    bench.open(false);
    assert!(play(&mut bench, &story()));
    bench.disk.ops()
}

#[test]
fn script_runs_without_faults() {
    assert!(operations_of_the_story() > 60);
}

#[test]
fn power_cut_at_each_operation_keeps_synced_records() {
    for n in 1..=operations_of_the_story() {
        let mut bench = Bench::new();
        bench.disk.fail_op(n, Fault::PowerCut);
        if bench.open(true) {
            assert!(!play(&mut bench, &story()));
        }
        for seed in 0..24 {
            let mut image = bench.fork();
            image.disk.set_sector_bytes(if seed % 2 == 0 { 512 } else { 24 });
            image.disk.crash(seed * 7919 + n);
            assert!(image.open(false));
            // It must be as good as any: it goes on, and survives another crash.
            let more = [
                Step::Append { count: 2, raise: 1, grow: 0 },
                Step::Sync,
                Step::Append { count: 2, raise: 0, grow: 300 },
                Step::Replace { back: 3, count: 1 },
            ];
            assert!(play(&mut image, &more));
            image.log = None;
            image.disk.crash(seed);
            assert!(image.open(false));
        }
    }
}

/// The process dies at some operation, and the power goes while the next one opens the log.
#[test]
fn power_cut_during_open_keeps_synced_records() {
    for killed_at in (2..operations_of_the_story()).step_by(7) {
        let mut bench = Bench::new();
        bench.disk.fail_op(killed_at, Fault::PowerCut);
        if bench.open(true) {
            assert!(!play(&mut bench, &story()));
        }
        bench.disk.kill();
        for n in 1..=8 {
            for seed in 0..24 {
                let mut image = bench.fork();
                image.disk.set_sector_bytes(if seed % 2 == 0 { 512 } else { 24 });
                image.disk.fail_op(n, Fault::PowerCut);
                if image.open(true) {
                    image.log = None;
                }
                image.disk.crash(seed);
                assert!(image.open(false));
            }
        }
    }
}

/// Each operation fails once; the server ends, and starts again with the machine running or not.
fn failure_at_every_operation(fault: Fault) {
    for n in 1..=operations_of_the_story() {
        let mut bench = Bench::new();
        bench.disk.fail_op(n, fault);
        if bench.open(true) {
            assert!(!play(&mut bench, &story()));
        }
        bench.disk.clear_faults();
        for seed in 0..8 {
            let mut image = bench.fork();
            if seed == 0 {
                image.disk.kill();
            } else {
                image.disk.crash(seed);
            }
            assert!(image.open(false));
            // Recovered records count as durable from here on, even after a failed sync.
            image.log = None;
            image.disk.crash(seed + 100);
            assert!(image.open(false));
        }
    }
}

#[test]
fn io_error_at_each_operation_keeps_synced_records() {
    failure_at_every_operation(Fault::Io);
}

#[test]
fn full_disk_at_each_operation_keeps_synced_records() {
    failure_at_every_operation(Fault::NoSpace);
}

#[test]
fn failed_sync_is_final() {
    for n in 1..40 {
        let mut bench = Bench::new();
        bench.open(false);
        bench.disk.fail_sync(n);
        assert!(!play(&mut bench, &story()), "sync {n} was to fail");
    }
    let mut bench = Bench::new();
    bench.open(false);
    bench.step(&Step::Append { count: 1, raise: 1, grow: 0 }).unwrap();
    bench.step(&Step::Sync).unwrap();
    bench.step(&Step::Append { count: 1, raise: 0, grow: 0 }).unwrap();
    let mut log = bench.log.take().unwrap();
    bench.disk.fail_sync(1);
    let first = log.sync().unwrap_err();
    assert!(first.to_string().contains("sync the log"), "{first}");
    for _ in 0..2 {
        let later = log.sync().unwrap_err();
        assert!(matches!(&later, lockstep_log::WriteError::Poisoned(cause) if **cause == first), "{later}");
    }
    assert!(log.write(lockstep_log::WriteOp::default()).is_err());
    assert!(log.trim_to(1).is_err());
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..6u64, 0..2u64, prop_oneof![3 => Just(0usize), 1 => 0..3000usize])
            .prop_map(|(count, raise, grow)| Step::Append { count, raise, grow }),
        2 => (0..20u64, 0..4u64).prop_map(|(back, count)| Step::Replace { back, count }),
        2 => (0..4u64).prop_map(|count| Step::Roll { count }),
        1 => (0..20u64, 0..4u64).prop_map(|(back, count)| Step::ReplaceAndRoll { back, count }),
        1 => (0..10u64).prop_map(|eighths| Step::Trim { eighths }),
        1 => (0..5u64, 0..3u64).prop_map(|(ahead, count)| Step::Reset { ahead, count }),
        1 => (1..3u64, any::<u8>()).prop_map(|(raise, whom)| Step::Vote { raise, whom }),
        1 => Just(Step::Hint),
        6 => Just(Step::Sync),
        1 => Just(Step::Reopen),
    ]
}

#[derive(Clone, Debug)]
enum End {
    Crash(u64),
    Kill,
    PowerCut(u64, u64),
    Error(u64, bool),
}

fn any_end() -> impl Strategy<Value = End> {
    prop_oneof![
        any::<u64>().prop_map(End::Crash),
        Just(End::Kill),
        (1..40u64, any::<u64>()).prop_map(|(n, seed)| End::PowerCut(n, seed)),
        (1..40u64, any::<bool>()).prop_map(|(n, full)| End::Error(n, full)),
    ]
}

/// `LOCKSTEP_CASES` asks for a longer run.
fn cases() -> u32 {
    std::env::var("LOCKSTEP_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    /// Several lives, each ended by a crash, a kill or a failing disk.
    #[test]
    fn many_lives(sector in prop_oneof![Just(512usize), Just(24)], lives in prop::collection::vec((prop::collection::vec(any_step(), 0..25), any_end()), 1..6)) {
        let mut bench = Bench::new();
        bench.disk.set_sector_bytes(sector);
        prop_assert!(bench.open(false));
        for (steps, end) in lives {
            match end {
                End::PowerCut(n, _) => bench.disk.fail_op(n, Fault::PowerCut),
                End::Error(n, true) => bench.disk.fail_op(n, Fault::NoSpace),
                End::Error(n, false) => bench.disk.fail_op(n, Fault::Io),
                End::Crash(_) | End::Kill => {}
            }
            play(&mut bench, &steps);
            bench.log = None;
            match end {
                End::Crash(seed) | End::PowerCut(_, seed) => bench.disk.crash(seed),
                End::Kill | End::Error(..) => bench.disk.kill(),
            }
            bench.disk.clear_faults();
            prop_assert!(bench.open(false));
        }
    }
}
