//! `lockstep block-chaos`: faults on the members of a replicated block device.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use lockstep_local::say;
use serde::Serialize;

use super::chaos::{WRONG, minutes};
use crate::block_chaos::{Fault, Plant, Protocol, Spec, Stage, run as run_chaos};

/// Options of `lockstep block-chaos`.
#[derive(Args, Debug)]
pub struct BlockChaosArgs {
    /// For how long, all stages together.
    #[arg(long, default_value_t = 60.0, value_parser = minutes)]
    minutes: f64,
    /// Each fault so often in each stage, in place of --minutes.
    #[arg(long, conflicts_with = "minutes", value_parser = clap::value_parser!(u32).range(1..100_000))]
    rounds: Option<u32>,
    /// Decides the order of faults, their members, and the requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The kinds of faults, separated by commas [default: all that this machine allows]: kill-primary,
    /// kill-primary-move, kill-other, kill-all, pause-primary, pause-primary-move, pause-other, cut-primary,
    /// cut-primary-move, cut-other, split, full-disk, slow-disk, stop-primary, handover.
    #[arg(long, value_delimiter = ',', value_name = "FAULT")]
    faults: Vec<Fault>,
    /// Only stages with these protocols, separated by commas: a, b, c [default: c with three copies, c with an
    /// arbitrator, b, a].
    #[arg(long, value_delimiter = ',', value_name = "LETTER")]
    protocols: Vec<Protocol>,
    /// Only stages with two copies and an arbitrator.
    #[arg(long)]
    arbitrator: bool,
    /// For how many seconds a fault lasts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..600))]
    hold: u64,
    /// Damage a sector at the end of each stage (flip, swap or lose): the run must find it and end with exit code 3.
    #[arg(long, value_name = "KIND")]
    plant: Option<Plant>,
    /// Keep the members' logs in this folder.
    #[arg(long, value_name = "FOLDER")]
    logs: Option<PathBuf>,
    /// Also write the report there, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl BlockChaosArgs {
    fn stages(&self) -> Vec<Stage> {
        if self.protocols.is_empty() && !self.arbitrator {
            return Stage::ALL.to_vec();
        }
        let protocols = if self.protocols.is_empty() { &[Protocol::C][..] } else { &self.protocols };
        protocols.iter().map(|protocol| Stage { protocol: *protocol, arbitrator: self.arbitrator }).collect()
    }
}

/// Runs the command.
pub(crate) fn run(args: &BlockChaosArgs) -> Result<ExitCode, String> {
    let mut spec = Spec {
        length: Duration::from_secs_f64(args.minutes * 60.0),
        rounds: args.rounds,
        seed: args.seed,
        stages: args.stages(),
        hold: Duration::from_secs(args.hold),
        plant: args.plant,
        logs: args.logs.clone(),
        ..Spec::new(std::env::current_exe().ok())
    };
    if !args.faults.is_empty() {
        spec.faults = args.faults.clone();
    }
    let began = Instant::now();
    let report = run_chaos(&spec, &|line| say(&format!("{:>5} s  {line}", began.elapsed().as_secs())))
        .map_err(|error| error.to_string())?;
    say("");
    say(&report.text());
    write_json(args.json.as_deref(), &report)?;
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}

/// Writes a report as JSON, if that is wanted.
pub(super) fn write_json(path: Option<&Path>, report: &impl Serialize) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(report).map_err(|e| format!("cannot write JSON: {e}"))?;
    std::fs::write(path, text + "\n").map_err(|e| format!("cannot write {}: {e}", path.display()))
}
