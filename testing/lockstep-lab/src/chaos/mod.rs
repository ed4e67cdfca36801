//! Chaos: a cluster under load with servers that are killed, paused, cut off, filled up and slowed down. At the end it
//! compares the answers to the clients with the data. docs/chaos.md lists the checks and the promises.

mod audit;
mod disk;
mod fault;
mod human;
mod lists;
mod load;
mod lost;
mod policy;
mod report;
mod rescued;
mod runner;
mod slow;
mod transactions;
mod upgrade;
mod workload;

use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(crate) use self::load::Dice;
use self::load::Load;
use self::runner::Runner;
use crate::cluster::Cluster;
use lockstep_local::{LocalError, Result};

pub use self::fault::{ALL_FAULTS, Fault};
pub use self::policy::Policy;
pub use self::report::{FaultReport, Report, side_by_side};
pub use self::upgrade::Upgrade;
pub use self::workload::Workload;

/// How a run is to be.
#[derive(Debug, Clone)]
pub struct ChaosSpec {
    /// The provider's file.
    pub provider: PathBuf,
    /// For how long faults are injected.
    pub length: Duration,
    /// Which faults, in which order, on whom: the same seed, the same choices.
    pub seed: u64,
    /// The kinds to choose from.
    pub faults: Vec<Fault>,
    /// How long a member stays paused, cut off, down or full.
    pub hold: Duration,
    /// How long everything is left alone between two faults.
    pub calm: Duration,
    /// How long a member may take to come back by itself before a human is called.
    pub timeout: Duration,
    /// `innodb_snapshot_isolation` of the clients' sessions.
    pub snapshot_isolation: bool,
    /// `innodb_flush_log_at_trx_commit` of the servers.
    pub flush: u8,
    /// How many clients insert rows.
    pub inserters: usize,
    /// From the beginning of a fault to that of the next one, whether the cluster is whole by then or not; `None`: as soon as
    /// it is, and after `calm`.
    pub every: Option<Duration>,
    /// Each fault comes so often, however long that takes; `None`: for `length`.
    pub rounds: Option<u32>,
    /// Two servers and an arbitrator in place of three servers.
    pub arbitrator: bool,
    /// Servers that vote: three, or one, which is its own majority.
    pub voters: usize,
    /// Servers beside them that do not vote.
    pub learners: usize,
    /// `commit.policy`.
    pub policy: Policy,
    /// `async.max_at_risk`.
    pub max_at_risk: u64,
    /// The library to upgrade to. A program `lockstep` beside it becomes the arbitrator.
    pub upgrade_to: Option<PathBuf>,
    /// The work of the clients.
    pub workload: Workload,
    /// The folder for the history files, if they are wanted.
    pub history: Option<PathBuf>,
    /// One server without replication and without faults, for comparison.
    pub stock: bool,
    /// This project's command: the arbitrator, and what moves leadership.
    pub command: Option<PathBuf>,
}

impl ChaosSpec {
    /// Ten minutes of all faults that this machine allows.
    pub fn new(provider: PathBuf) -> ChaosSpec {
        ChaosSpec {
            provider,
            length: Duration::from_secs(600),
            seed: 1,
            faults: usual_faults(Policy::Quorum),
            hold: Duration::from_secs(5),
            calm: Duration::from_secs(3),
            timeout: Duration::from_secs(60),
            snapshot_isolation: true,
            flush: 1,
            inserters: 6,
            every: None,
            rounds: None,
            arbitrator: false,
            voters: 3,
            learners: 0,
            policy: Policy::Quorum,
            max_at_risk: 100,
            upgrade_to: None,
            workload: Workload::Mixed,
            history: None,
            stock: false,
            command: None,
        }
    }
}

/// The faults of a run under this policy that names none.
pub fn usual_faults(policy: Policy) -> Vec<Fault> {
    ALL_FAULTS.into_iter().filter(|fault| fault.is_usual(policy)).collect()
}

/// Runs it. `say` hears what happens, a line each.
///
/// # Errors
/// The machine lacks a feature, the cluster cannot be started, or no known operator's step brings it back. Faults of the
/// provider are in the report.
pub fn run(spec: &ChaosSpec, say: &dyn Fn(&str)) -> Result<Report> {
    let name = spec.provider.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let galera = name.contains("galera");
    if galera && (spec.policy != Policy::Quorum || spec.learners > 0) {
        return Err(LocalError::Value("Galera's library has neither commit policies nor learners".into()));
    }
    if spec.stock {
        return run_stock(spec);
    }
    let faults = fault::possible(spec, galera, say)?;
    let mut runner = Runner::start(spec, &faults, galera)?;
    load::prepare(runner.cluster())?;
    let load = Load::new(runner.cluster(), spec);
    let mut report = Report::new(spec, galera);
    let mut dice = Dice(spec.seed);
    let (outcome, heards) =
        load.run(spec.seed, || inject_all(spec, &faults, &mut runner, &load, &mut dice, &mut report, say));
    outcome?;
    report.starts = runner.starts();
    report.upgrade = runner.take_upgrade();
    let wrong = report.upgrade.as_ref().map(Upgrade::violations).unwrap_or_default();
    report.violations.extend(wrong);
    let files = runner.rescue_files()?;
    audit::audit(runner.cluster(), &heards, spec, &files, &mut report)?;
    Ok(report)
}

/// The same clients on one server without replication and without faults.
fn run_stock(spec: &ChaosSpec) -> Result<Report> {
    let cluster = Cluster::start_alone(&runner::cluster_spec(spec))?;
    load::prepare(&cluster)?;
    let load = Load::new(&cluster, spec);
    let mut report = Report::new(spec, false);
    let ((), heards) = load.run(spec.seed, || std::thread::sleep(spec.length));
    report.window(None, 0, load.now());
    audit::audit(&cluster, &heards, spec, &[], &mut report)?;
    Ok(report)
}

/// One fault after the other, until the time is up or each has come as often as it is to.
fn inject_all(
    spec: &ChaosSpec,
    faults: &[Fault],
    runner: &mut Runner,
    load: &Load,
    dice: &mut Dice,
    report: &mut Report,
    say: &dyn Fn(&str),
) -> Result<()> {
    let end = Instant::now() + spec.length;
    let mut rounds = 0;
    let mut deck: Vec<Fault> = Vec::new();
    let mut next = Instant::now() + spec.calm;
    loop {
        // Every kind comes once before any comes twice.
        if deck.is_empty() {
            let again = faults.iter().copied().filter(|fault| rounds == 0 || !fault.comes_once());
            deck = again.collect();
            rounds += 1;
        }
        let over = match spec.rounds {
            Some(wanted) => rounds > wanted,
            None => Instant::now() >= end,
        };
        if over || deck.is_empty() {
            break;
        }
        let from = load.now();
        runner.rest(next.saturating_duration_since(Instant::now()))?;
        report.window(None, from, load.now());
        let fault = deck.swap_remove(dice.roll(deck.len() as u64) as usize);
        let from = load.now();
        let began = Instant::now();
        let target = runner.inject(fault, dice, spec.hold)?;
        let until = spec.every.map(|every| began + every);
        let mut steps = runner.until_whole(spec.timeout, until, say)?;
        report.window(Some(fault), from, load.now());
        let took = (load.now() - from) as f64 / 1e6;
        let whole = if runner.broken { "not whole yet" } else { "whole again" };
        say(&format!("{fault} ({target}): {whole} after {took:.1} s"));
        report.human_steps.append(&mut steps);
        next = until.unwrap_or_else(|| Instant::now() + spec.calm);
    }
    let mut steps = runner.until_whole(spec.timeout, None, say)?;
    report.human_steps.append(&mut steps);
    runner.rest(spec.calm)
}
