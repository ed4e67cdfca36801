//! `lockstep-sim --device`.

use crate::{Args, ENOUGH};
use lockstep_sim::{DEVICE_PLANTS, DeviceCounters, DeviceSettings, hunt_device, simulate_device};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[derive(Default)]
struct Sum {
    seeds: u64,
    simulated: u64,
    violations: u64,
    counters: DeviceCounters,
    by_kind: BTreeMap<String, u64>,
}

fn settings(args: &Args, seed: u64) -> DeviceSettings {
    let plant = DEVICE_PLANTS.iter().find(|plant| args.mutate.as_deref() == Some(plant.name));
    DeviceSettings {
        planted: plant.map(|plant| plant.fault),
        trace: args.trace,
        trace_from: (args.trace_from * 1e6) as u64,
        ..DeviceSettings::seed(seed)
    }
}

/// Runs `each` with numbers from 0 on, on several threads, until it returns false.
fn on_threads(threads: usize, each: impl Fn(u64) -> bool + Sync) {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| while each(next.fetch_add(1, Ordering::Relaxed)) {});
        }
    });
}

/// Every planted fault must be found.
fn hunt_all(args: &Args) -> ExitCode {
    let missed = AtomicU64::new(0);
    on_threads(args.threads, |at| {
        let Some(plant) = DEVICE_PLANTS.get(at as usize) else { return false };
        match hunt_device(plant) {
            Ok((seed, text)) => println!("{:<24} seed {seed:<4} {text}", plant.name),
            Err(seeds) => {
                missed.fetch_add(1, Ordering::Relaxed);
                println!("{:<24} NOT FOUND by seeds 1 to {seeds}", plant.name);
            }
        }
        true
    });
    let missed = missed.into_inner();
    println!("planted={} missed={missed}", DEVICE_PLANTS.len());
    if missed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs what the arguments ask for.
pub(crate) fn run(args: &Args) -> ExitCode {
    if args.mutations {
        return hunt_all(args);
    }
    let first = args.seed.or(args.from).unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_secs() * 1_000
    });
    let count = args.seed.map(|_| 1).or(args.seeds);
    let until = Instant::now() + Duration::from_secs_f64(args.minutes.max(0.0) * 60.0);
    let sum = Mutex::new(Sum::default());
    let lock = || sum.lock().unwrap_or_else(PoisonError::into_inner);
    on_threads(args.threads, |at| {
        let over = count.map_or_else(|| Instant::now() >= until, |count| at >= count);
        if over || (count.is_none() && lock().violations >= ENOUGH) {
            return false;
        }
        let report = simulate_device(settings(args, first + at));
        let mut sum = lock();
        sum.seeds += 1;
        sum.simulated += report.simulated;
        sum.counters.add(&report.counters);
        for (kind, n) in &report.by_kind {
            *sum.by_kind.entry(kind.clone()).or_default() += n;
        }
        if args.verbose {
            println!("{report:?}");
        }
        if let Some(text) = &report.violation {
            sum.violations += 1;
            let from = (report.simulated / 1_000_000).saturating_sub(5);
            let mutate = args.mutate.as_ref().map_or_else(String::new, |name| format!(" --mutate {name}"));
            println!(
                "VIOLATION seed {} {text}\n  replay: cargo run -q --release -p lockstep-sim -- --device --seed {} --trace \
                 --trace-from {from}{mutate}",
                report.seed, report.seed
            );
        }
        true
    });
    let sum = lock();
    println!("{}", sum.counters);
    let kinds: Vec<String> = sum.by_kind.iter().map(|(kind, n)| format!("{kind}={n}")).collect();
    println!("faults by kind: {}", kinds.join(" "));
    println!(
        "device seeds={} hours={:.2} violations={}",
        sum.seeds,
        sum.simulated as f64 / 3.6e9,
        sum.violations
    );
    if sum.violations > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
