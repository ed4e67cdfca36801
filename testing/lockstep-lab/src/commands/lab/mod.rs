//! `lockstep lab`: classic experiments, on real servers of this machine with distances between them.
//!
//! Each experiment is a module that names its set-ups, runs one of them, and makes a [`page::Page`] of the results in a
//! folder. The rest is common: [`drive`] runs set-ups in turns ([`turns`]) and resumes, [`folder`] keeps what was measured, [`results`] has it, and
//! [`page`] and [`svg`] show it.

mod block;
mod caught_up;
mod cdc;
mod drive;
mod files;
mod folder;
mod line;
#[cfg(test)]
mod markup;
mod numbers;
mod origin;
mod page;
mod parallel_apply;
mod results;
mod semi_sync_wan;
mod shootout;
mod svg;
mod synchronous;
mod turns;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

/// Which experiment.
#[derive(Subcommand, Debug)]
pub enum LabCommand {
    /// What a far copy of the database costs those who insert: MariaDB alone, asynchronous and semi-synchronous, Galera,
    /// and this by each of its policies. Needs root and /dev/net/tun.
    SemiSyncWan(semi_sync_wan::Args),
    /// How fast a copy catches up: MariaDB's own replica by each of its modes, and a member of ours by each `apply.order`,
    /// with 1 to 24 workers. Needs no root.
    ParallelApply(parallel_apply::Args),
    /// What synchronous replication costs near and far: sysbench's OLTP load on one to three servers of Galera and of this,
    /// beside MariaDB alone. Needs root and /dev/net/tun.
    Synchronous(synchronous::Args),
    /// Cost of flushing and of a second server: sysbench's OLTP loads on MariaDB alone, semi-synchronous, on Galera and on
    /// Lockstep, each server on a file system and a processor of its own. Needs root, and mkfs.xfs.
    Shootout(shootout::Args),
    /// How long a committed row takes to consumers of the binlog, and what consumers cost: `lockstep binlog serve` beside
    /// Galera with a binlog, and MariaDB alone. Needs no root.
    Cdc(cdc::Args),
    /// A replicated block device between two virtual machines: DRBD, and `lockstep block`, on the same disks, near and far.
    /// Needs root, and QEMU with KVM or Debian's user-mode-linux.
    Block(block::Args),
    /// Print the tables of a folder of results, and write its report.html anew. Exit code 3 as of the run: not all is in it that
    /// was to be measured.
    Report(ReportArgs),
}

/// Options of `lockstep lab report`.
#[derive(clap::Args, Debug)]
pub struct ReportArgs {
    /// The folder that an experiment has written.
    dir: PathBuf,
}

/// Runs the experiment that `command` names; the exit code says whether all of it was measured.
pub(crate) fn run(command: &LabCommand) -> Result<ExitCode, String> {
    match command {
        LabCommand::SemiSyncWan(args) => semi_sync_wan::run(args),
        LabCommand::ParallelApply(args) => parallel_apply::run(args),
        LabCommand::Synchronous(args) => synchronous::run(args),
        LabCommand::Shootout(args) => shootout::run(args),
        LabCommand::Cdc(args) => cdc::run(args),
        LabCommand::Block(args) => block::run(args),
        LabCommand::Report(args) => {
            let results = results::Results::load(&args.dir)?;
            let page = match results.about["experiment"].as_str() {
                Some(semi_sync_wan::NAME) => semi_sync_wan::page,
                Some(parallel_apply::NAME) => parallel_apply::page,
                Some(synchronous::NAME) => synchronous::page,
                Some(shootout::NAME) => shootout::page,
                Some(cdc::NAME) => cdc::page,
                Some(block::NAME) => block::page,
                other => {
                    return Err(format!(
                        "{}: {} is no experiment of this version",
                        args.dir.display(),
                        other.unwrap_or("what is there")
                    ));
                }
            };
            drive::report_again(&args.dir, page)
        }
    }
}

fn milliseconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ms) if (0.0..=2000.0).contains(&ms) => Ok(ms),
        _ => Err("a number of milliseconds from 0 to 2000 is wanted".into()),
    }
}

#[test]
fn round_trips_are_bounded() {
    assert_eq!(milliseconds("85.5"), Ok(85.5));
    assert!(milliseconds("-1").is_err() && milliseconds("NaN").is_err());
}
