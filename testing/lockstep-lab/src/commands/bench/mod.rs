//! `lockstep bench`: how fast it is, here, beside another.

mod block;
mod cluster;
mod provider;
mod rejoin;
mod switch;

use std::io::Write;

use clap::Subcommand;

pub(crate) use provider::MEMBER;

/// What to measure.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// The provider alone, under miniature servers that do nothing but commit.
    Provider(provider::ProviderArgs),
    /// Real servers under sysbench.
    Cluster(cluster::ClusterArgs),
    /// How soon a member is back that missed many transactions.
    Rejoin(rejoin::RejoinArgs),
    /// What a change of the commit policy costs those who write meanwhile.
    Switch(switch::SwitchArgs),
    /// A replicated block device beside nbdkit, and a copy from another member under load.
    Block(block::BlockArgs),
}

/// Runs the benchmark that `command` names.
pub(crate) fn run(command: &BenchCommand) -> Result<(), String> {
    match command {
        BenchCommand::Provider(args) => provider::run(args),
        BenchCommand::Cluster(args) => cluster::run(args),
        BenchCommand::Rejoin(args) => rejoin::run(args),
        BenchCommand::Switch(args) => switch::run(args),
        BenchCommand::Block(args) => block::run(args),
    }
}

/// Prints progress on standard error; standard output carries the report.
fn note(text: &str) {
    let mut out = std::io::stderr().lock();
    // The run continues although its output is no longer read.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
