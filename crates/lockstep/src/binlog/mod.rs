//! `lockstep binlog`: the cluster's transactions as one MariaDB binlog, from a member without a database.

mod feed;
mod member_feed;
mod serve;

pub(crate) use serve::ServeArgs;

use clap::{Args, Subcommand};
use std::process::ExitCode;

#[derive(Args, Debug)]
pub(crate) struct BinlogArgs {
    #[command(subcommand)]
    command: BinlogCommand,
}

#[derive(Subcommand, Debug)]
enum BinlogCommand {
    /// Serve MariaDB replicas and tools that read a binlog. Runs in the foreground until SIGTERM.
    Serve(ServeArgs),
}

pub(crate) fn run(args: BinlogArgs) -> Result<ExitCode, String> {
    match args.command {
        BinlogCommand::Serve(args) => serve::run(args),
    }
}
