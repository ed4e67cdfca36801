//! The deterministic simulator: whole members with their logs, under a simulated clock, network and disk.
//!
//! One seed is one history: the seed draws a world ([`profile`]) and all chance in it. Clients write and read,
//! faults happen, and every step is checked against all that was ever seen ([`history`]). From time to time all
//! faults end, and everything must come back within a bound.
//!
//! **Invariant:** nothing here depends on anything but the seed: no clock, no thread, no hash map with a random
//! seed. Two runs of one seed have the same trace.
#![forbid(unsafe_code)]

mod apply_order;
mod client_checks;
mod clock;
mod counters;
mod device;
mod fallback;
mod history;
mod hunt;
mod leadership_checks;
mod log_copy;
mod mirror;
pub mod mutate;
mod network;
mod node;
mod overtaken;
mod profile;
mod queue;
mod reference;
mod rescued;
mod rng;
mod server;
mod settings;
mod streams;
mod trace;
mod world;
mod writers;

pub use counters::Counters;
pub use device::{
    DEVICE_PLANTS, DeviceCounters, DevicePlant, DeviceReport, DeviceSettings, hunt_device, simulate_device,
};
pub use hunt::hunt;
use lockstep_core::Micros;
pub use lockstep_core::raft::Failpoint;
pub use mutate::{PLANTS, Plant, Planted};
pub use profile::{FAULTS, World};
pub use settings::Settings;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// The result of a seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunReport {
    /// The seed.
    pub seed: u64,
    /// The hash of all that happened.
    pub hash: u64,
    /// Simulated time, µs.
    pub simulated: Micros,
    /// Entries committed.
    pub entries: u64,
    /// Proposals acknowledged to their clients.
    pub acknowledged: u64,
    /// Write-sets and statements that certification let pass, and those that it refused.
    pub certified: (u64, u64),
    /// Leaders elected.
    pub elections: u64,
    /// Counters.
    pub counters: Counters,
    /// The broken rule, if one was.
    pub violation: Option<String>,
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static CATCHING: RefCell<bool> = const { RefCell::new(false) };
}

/// Panics of simulated code are findings, not noise: they are kept for the outcome.
fn keep_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if CATCHING.with_borrow(|catching| *catching) {
                PANIC.with_borrow_mut(|kept| *kept = Some(info.to_string()));
            } else {
                before(info);
            }
        }));
    });
}

/// Seeds that once failed: they run again and again (`seeds.txt`).
pub fn regression_seeds() -> Vec<(u64, World)> {
    let lines = include_str!("../seeds.txt").lines().filter(|line| !line.starts_with('#'));
    let seed = |line: &str| {
        let mut words = line.split_whitespace();
        let seed = words.next()?.parse().ok()?;
        let world = match words.next() {
            Some("short-terms") => World::ShortTerms,
            Some("policies") => World::Policies,
            Some("writers") => World::Writers,
            Some("late-relays") => World::LateRelays,
            Some("newcomers") => World::Newcomers,
            _ => World::Any,
        };
        Some((seed, world))
    };
    lines.filter_map(seed).collect()
}

/// Runs a simulation, and returns the broken rule, if one was.
fn catch(run: impl FnOnce() -> history::Check) -> Option<String> {
    keep_panics();
    CATCHING.set(true);
    let ran = catch_unwind(AssertUnwindSafe(run));
    CATCHING.set(false);
    match ran {
        Ok(Ok(())) => None,
        Ok(Err(violation)) => Some(violation.to_string()),
        Err(_) => {
            let text = PANIC.with_borrow_mut(Option::take).unwrap_or_else(|| "?".into());
            Some(format!("nothing panics: {}", text.replace('\n', " ")))
        }
    }
}

fn timed(now: Micros, text: String) -> String {
    format!("at {}.{:06} s: {text}", now / 1_000_000, now % 1_000_000)
}

/// Runs one seed to its end, or to the first broken rule.
pub fn simulate(settings: Settings) -> RunReport {
    let mut world = world::World::new(settings);
    let violation = catch(|| world.run()).map(|text| timed(world.now, text));
    if let Some(text) = &violation {
        world.tell(format_args!("VIOLATION {text}"));
    }
    let history = world.history.as_ref();
    RunReport {
        seed: settings.seed,
        hash: world.trace.hash(),
        simulated: world.now,
        entries: history.map_or(0, |history| history.committed()),
        acknowledged: world.answers(),
        certified: history.map_or((0, 0), |history| history.reference().counts()),
        elections: history.map_or(0, |history| history.elections() as u64),
        counters: world.counters,
        violation,
    }
}
