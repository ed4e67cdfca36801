//! The developers' subcommands of `lockstep`: their options and reports. The rest of this crate does their work.

mod bench;
mod block_chaos;
mod block_mariadb;
mod chaos;
mod lab;

use std::process::ExitCode;

use clap::Subcommand;

/// A subcommand of `lockstep` for developers.
#[derive(Subcommand, Debug)]
pub enum Tool {
    /// Run a benchmark on this machine.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Run three servers under load and faults, and compare the answers to clients with the data. Exit code 3: data
    /// were lost or wrong.
    Chaos(chaos::ChaosArgs),
    /// Inject faults into the members of a replicated block device, and compare the device with the answers to its
    /// client. Exit code 3: a byte was wrong or lost.
    BlockChaos(block_chaos::BlockChaosArgs),
    /// Kill a MariaDB server and its replicated block device again and again, and continue on another member. Exit code
    /// 3: an acknowledged commit was lost.
    BlockMariadb(block_mariadb::BlockMariadbArgs),
    /// Reproduce classic replication experiments, with the rivals in the same run. Exit code 3: some measurements are
    /// missing.
    #[command(subcommand)]
    Lab(lab::LabCommand),
    /// One miniature server of `bench provider`, controlled by lines on standard input.
    #[command(name = bench::MEMBER, hide = true)]
    BenchMember,
}

impl Tool {
    /// Runs it; the exit code says whether all went well.
    pub fn run(self) -> Result<ExitCode, String> {
        match self {
            Tool::Bench(command) => bench::run(&command).map(|()| ExitCode::SUCCESS),
            Tool::Chaos(args) => chaos::run(&args),
            Tool::BlockChaos(args) => block_chaos::run(&args),
            Tool::BlockMariadb(args) => block_mariadb::run(&args),
            Tool::Lab(command) => lab::run(&command),
            Tool::BenchMember => {
                lockstep_host::command::serve(std::io::stdin().lock());
                // Whatever still runs in the provider goes down with the process, as when a server is killed.
                std::process::exit(0);
            }
        }
    }
}
