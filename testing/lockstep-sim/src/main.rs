//! `lockstep-sim`: seeds in, verdict out.

use clap::Parser;
use clap::builder::PossibleValuesParser;
use lockstep_sim::{
    Counters, DEVICE_PLANTS, FAULTS, PLANTS, RunReport, Settings, World, hunt, mutate, simulate,
};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

mod allocator;
mod device_run;

/// A simulation allocates much and holds little: this takes a tenth less time than with the system's allocator.
#[global_allocator]
static ALLOCATOR: allocator::Recycling = allocator::Recycling;

/// After so many failing seeds there is enough to look at, unless a number of seeds was asked for.
const ENOUGH: u64 = 10;

/// Runs clusters of whole members of Lockstep under faults, and checks every step.
#[derive(Parser, Debug)]
#[command(name = "lockstep-sim", version)]
struct Args {
    /// Run this seed alone.
    #[arg(long)]
    seed: Option<u64>,
    /// Run seeds for so many minutes.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Run so many seeds, however long it takes.
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed; the time of day decides if it is not given.
    #[arg(long)]
    from: Option<u64>,
    /// How many seeds run at a time.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Print what happens, a line per event (with --seed).
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Print only what happens from this second of simulated time on.
    #[arg(long, default_value_t = 0.0, requires = "trace")]
    trace_from: f64,
    /// Plant a fault in the core: violations are then what should be seen.
    #[arg(long)]
    #[arg(value_parser = PossibleValuesParser::new(plant_names()))]
    mutate: Option<String>,
    /// Check only what users were promised, not what members owe each other.
    #[arg(long)]
    outcomes_only: bool,
    /// Only worlds in which leaders never last.
    #[arg(long, group = "worlds")]
    short_terms: bool,
    /// Plant every fault of the list in turn: each must be found within its number of seeds.
    #[arg(long, conflicts_with_all = ["seed", "seeds", "mutate"])]
    mutations: bool,
    /// Run the seeds that are kept because they once failed.
    #[arg(long, conflicts_with_all = ["seed", "seeds"])]
    kept: bool,
    /// Only worlds in which commit policies change all the time.
    #[arg(long, group = "worlds")]
    policies: bool,
    /// Only worlds in which nearly all clients are at one member, which leadership follows.
    #[arg(long, group = "worlds")]
    writers: bool,
    /// Only worlds in which relayed messages arrive under later leaders.
    #[arg(long, group = "worlds")]
    late_relays: bool,
    /// Only worlds in which members leave and return while disks are slow.
    #[arg(long, group = "worlds")]
    newcomers: bool,
    /// None of these worlds. Without any of these options the seed's number decides.
    #[arg(long, group = "worlds")]
    plain: bool,
    /// Copies of a replicated block device and their clients, instead of databases.
    #[arg(long, conflicts_with_all = ["worlds", "kept", "outcomes_only"])]
    device: bool,
    /// Say for every seed what was counted.
    #[arg(long)]
    verbose: bool,
}

fn plant_names() -> impl Iterator<Item = &'static str> {
    let device = DEVICE_PLANTS.iter().map(|plant| plant.name);
    PLANTS.iter().map(|plant| plant.name).chain(device)
}

#[derive(Default)]
struct Sum {
    seeds: u64,
    simulated: u64,
    entries: u64,
    elections: u64,
    acknowledged: u64,
    certified: (u64, u64),
    violations: u64,
    worlds: BTreeMap<World, u64>,
    counters: Counters,
}

impl Sum {
    fn add(&mut self, outcome: &RunReport, world: World) {
        self.seeds += 1;
        *self.worlds.entry(world).or_default() += 1;
        self.simulated += outcome.simulated;
        self.entries += outcome.entries;
        self.elections += outcome.elections;
        self.acknowledged += outcome.acknowledged;
        self.certified.0 += outcome.certified.0;
        self.certified.1 += outcome.certified.1;
        self.violations += u64::from(outcome.violation.is_some());
        self.counters.add(&outcome.counters);
    }

    fn hours(&self) -> f64 {
        self.simulated as f64 / 3.6e9
    }
}

/// The command that shows what a seed does, from a while before it went wrong on. In the repository's folder.
fn replay(args: &Args, outcome: &RunReport, world: World) -> String {
    let from = (outcome.simulated / 1_000_000).saturating_sub(5);
    let mut text = format!(
        "cargo run -q --release -p lockstep-sim -- --seed {} --trace --trace-from {from}",
        outcome.seed
    );
    if let Some(name) = &args.mutate {
        text += &format!(" --mutate {name}");
    }
    if args.outcomes_only {
        text += " --outcomes-only";
    }
    // Always said, so that it is the same history whatever decided on the world.
    text += " --";
    text += name(world);
    text
}

/// The name of a world, here and on the command line.
fn name(world: World) -> &'static str {
    match world {
        World::Any => "plain",
        World::ShortTerms => "short-terms",
        World::Policies => "policies",
        World::Writers => "writers",
        World::LateRelays => "late-relays",
        World::Newcomers => "newcomers",
    }
}

/// The world that was asked for, if one was.
fn world(args: &Args) -> Option<World> {
    let asked = [
        (args.plain, World::Any),
        (args.short_terms, World::ShortTerms),
        (args.policies, World::Policies),
        (args.writers, World::Writers),
        (args.late_relays, World::LateRelays),
        (args.newcomers, World::Newcomers),
    ];
    asked.into_iter().find_map(|(asked, world)| asked.then_some(world))
}

fn settings(args: &Args, seed: u64) -> Settings {
    let plant = args.mutate.as_deref().and_then(mutate::by_name);
    // A planted fault is looked for where it can show.
    let own = || plant.map_or(World::of(seed), |plant| plant.world(!args.outcomes_only));
    Settings {
        world: world(args).unwrap_or_else(own),
        mutation: plant.map(|plant| plant.fault),
        trace: args.trace,
        trace_from: (args.trace_from * 1e6) as u64,
        promises: !args.outcomes_only,
        ..Settings::seed(seed)
    }
}

/// Every planted fault must be found.
fn hunt_all(args: &Args) -> ExitCode {
    let wanted: Vec<_> = PLANTS.iter().filter(|plant| !args.outcomes_only || plant.by_outcomes > 0).collect();
    let (next, missed) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..args.threads.max(1) {
            scope.spawn(|| {
                while let Some(plant) = wanted.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    match hunt(plant, !args.outcomes_only) {
                        Ok((seed, text)) => println!("{:<24} seed {seed:<4} {text}", plant.name),
                        Err(seeds) => {
                            missed.fetch_add(1, Ordering::Relaxed);
                            println!("{:<24} NOT FOUND by seeds 1 to {seeds}", plant.name);
                        }
                    }
                }
            });
        }
    });
    let missed = missed.into_inner();
    println!("planted={} found={} missed={missed}", wanted.len(), wanted.len() as u64 - missed);
    if missed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.device {
        return device_run::run(&args);
    }
    if args.mutations {
        return hunt_all(&args);
    }
    let kept = if args.kept { lockstep_sim::regression_seeds() } else { Vec::new() };
    let first = args.seed.or(args.from).unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_secs() * 1_000
    });
    let count = match args.seed {
        Some(_) => Some(1),
        None if args.kept => Some(kept.len() as u64),
        None => args.seeds,
    };
    let until = Instant::now() + Duration::from_secs_f64(args.minutes.max(0.0) * 60.0);
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let sum = Mutex::new((Sum::default(), Instant::now()));
    if count.is_none() {
        eprintln!("seeds from {first} on, for {} minutes", args.minutes);
    }
    std::thread::scope(|scope| {
        for _ in 0..args.threads.max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let over = match count {
                        Some(count) => at >= count,
                        None => Instant::now() >= until,
                    };
                    if over {
                        return;
                    }
                    let settings = match kept.get(at as usize) {
                        Some((seed, world)) => Settings { world: *world, ..settings(&args, *seed) },
                        None => settings(&args, first + at),
                    };
                    let outcome = simulate(settings);
                    let Ok(mut guard) = sum.lock() else { return };
                    let (sum, told) = &mut *guard;
                    sum.add(&outcome, settings.world);
                    if args.verbose {
                        println!("{outcome:?}");
                    }
                    if let Some(text) = &outcome.violation {
                        println!(
                            "VIOLATION seed {} {text}\n  replay: {}",
                            outcome.seed,
                            replay(&args, &outcome, settings.world)
                        );
                        if sum.violations >= ENOUGH && count.is_none() {
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                    if told.elapsed() > Duration::from_secs(20) {
                        *told = Instant::now();
                        eprintln!(
                            "{} seeds, {:.1} cluster hours, {} entries, {} violations",
                            sum.seeds,
                            sum.hours(),
                            sum.entries,
                            sum.violations
                        );
                    }
                }
            });
        }
    });
    let sum = match sum.into_inner() {
        Ok((sum, _)) => sum,
        Err(_) => {
            eprintln!("lockstep-sim failed; this is a fault of the simulator itself");
            return ExitCode::from(2);
        }
    };
    let c = &sum.counters;
    println!(
        "elections={} acknowledged={} passed={} failed={} reads={} proposals={} starts={} changes={} snapshots={} transfers={} \
         early={} lost={} no_donor={} fallbacks={} hung_disks={} arbitrators_led={} damaged_logs={} trimmed_logs={} shortened_logs={} lost_batches={} identities={} rewound={} follows={} relays={} relayed={} failed_starts={} heals={} longest_heal_ms={} longest_election_ms={} messages={} syncs={} events={}",
        sum.elections,
        sum.acknowledged,
        sum.certified.0,
        sum.certified.1,
        c.reads,
        c.proposals,
        c.starts,
        c.changes,
        c.snapshots,
        c.transfers,
        c.early,
        c.lost,
        c.no_donor,
        c.fallbacks,
        c.hung_disks,
        c.arbitrators_led,
        c.damaged_logs,
        c.trimmed_logs,
        c.shortened_logs,
        c.lost_batches,
        c.identities,
        c.rewound,
        c.follows,
        c.relays,
        c.relayed,
        c.failed_starts,
        c.heals,
        c.longest_heal / 1000,
        c.longest_election / 1000,
        c.messages,
        c.syncs,
        c.events
    );
    let kinds = FAULTS.iter().zip(&c.by_kind).map(|(fault, n)| format!("{fault:?}={n}"));
    println!("faults by kind: {}", kinds.collect::<Vec<_>>().join(" "));
    let worlds = sum.worlds.iter().map(|(world, n)| format!("{}={n}", name(*world)));
    println!("seeds by world: {}", worlds.collect::<Vec<_>>().join(" "));
    println!(
        "seeds={} cluster_hours={:.2} entries={} faults={} violations={}",
        sum.seeds,
        sum.hours(),
        sum.entries,
        c.faults,
        sum.violations
    );
    if sum.violations > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
