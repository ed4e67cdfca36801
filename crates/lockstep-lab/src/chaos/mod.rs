//! Chaos: a cluster under load, whose servers are killed, paused, cut off and filled up, and whose clients compare what
//! they were told with what is there in the end. docs/chaos.md says what is checked and what is promised.

mod audit;
mod crew;
mod fault;
pub mod history;
mod load;
mod report;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use self::crew::Crew;
use self::load::{Dice, Load};
use crate::cluster::ClusterSpec;
use crate::error::Result;

pub use self::fault::{ALL_FAULTS, Fault};
pub use self::report::{FaultReport, Report};

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
    /// How long the cluster has to become whole by itself before a human is called.
    pub patience: Duration,
    /// `innodb_snapshot_isolation` of the clients' sessions.
    pub snapshot_isolation: bool,
    /// `innodb_flush_log_at_trx_commit` of the servers.
    pub flush: u8,
    /// How many clients insert rows.
    pub inserters: usize,
}

impl ChaosSpec {
    /// Ten minutes of all faults that this machine allows.
    pub fn new(provider: PathBuf) -> ChaosSpec {
        ChaosSpec {
            provider,
            length: Duration::from_secs(600),
            seed: 1,
            faults: ALL_FAULTS.to_vec(),
            hold: Duration::from_secs(5),
            calm: Duration::from_secs(3),
            patience: Duration::from_secs(60),
            snapshot_isolation: true,
            flush: 1,
            inserters: 6,
        }
    }
}

/// Runs it. `say` hears what happens, a line each.
///
/// # Errors
/// The machine does not allow what is asked for, the cluster cannot be started, or no human step that is known brings it
/// back. What is wrong with the provider is in the report.
pub fn run(spec: &ChaosSpec, say: &dyn Fn(&str)) -> Result<Report> {
    let faults = fault::possible(&spec.faults, say)?;
    let mut cluster_spec = ClusterSpec::new(&spec.provider);
    cluster_spec.extra = vec![
        format!("innodb_flush_log_at_trx_commit={}", spec.flush),
        "innodb_buffer_pool_size=64M".into(),
        "max_connections=200".into(),
    ];
    let mut crew = Crew::start(cluster_spec, &faults)?;
    load::prepare(crew.cluster())?;
    let load = Load::new(crew.cluster(), spec.inserters, spec.snapshot_isolation);
    let mut report = Report::new(spec, crew.is_galera());
    let mut dice = Dice(spec.seed);
    let (outcome, heards) = load.run(spec.seed, || -> Result<()> {
        let end = Instant::now() + spec.length;
        let mut deck: Vec<Fault> = Vec::new();
        while Instant::now() < end {
            let from = load.now();
            crew.rest(spec.calm)?;
            report.window(None, from, load.now());
            // Every kind comes once before any comes twice.
            if deck.is_empty() {
                deck = faults.clone();
            }
            let fault = deck.swap_remove(dice.roll(deck.len() as u64) as usize);
            let from = load.now();
            let target = crew.inject(fault, &mut dice, spec.hold)?;
            let mut steps = crew.until_whole(spec.patience, say)?;
            report.window(Some(fault), from, load.now());
            let took = (load.now() - from) as f64 / 1e6;
            say(&format!("{fault} ({target}): whole again after {took:.1} s"));
            report.human_steps.append(&mut steps);
        }
        crew.rest(spec.calm)
    });
    outcome?;
    report.starts = crew.starts();
    audit::audit(crew.cluster(), &heards, spec, &mut report)?;
    Ok(report)
}
