//! `lockstep block-mariadb`: a MariaDB server that is killed with its replicated block device.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use lockstep_local::say;

use super::block_chaos::write_json;
use super::chaos::WRONG;
use crate::block_mariadb::{Spec, run as run_rounds};

/// Options of `lockstep block-mariadb`.
#[derive(Args, Debug)]
pub struct BlockMariadbArgs {
    /// How often the server and its member of the device are killed.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..100_000))]
    rounds: u32,
    /// Decides the times of the kills and the members that go on.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Clients that insert rows.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    clients: u64,
    /// Also write the report there, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &BlockMariadbArgs) -> Result<ExitCode, String> {
    let spec = Spec {
        rounds: args.rounds,
        seed: args.seed,
        clients: args.clients,
        ..Spec::new(std::env::current_exe().ok())
    };
    let began = Instant::now();
    let report = run_rounds(&spec, &|line| say(&format!("{:>5} s  {line}", began.elapsed().as_secs())))
        .map_err(|error| error.to_string())?;
    say("");
    say(&report.text());
    write_json(args.json.as_deref(), &report)?;
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}
