//! `lockstep binlog`: the cluster's transactions as one MariaDB binlog, from a member without a database.

mod feed;
mod ingest;
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
    /// Copy the binlog of a plain MariaDB primary to a majority of members before a commit on it returns.
    Ingest(ingest::IngestArgs),
}

pub(crate) fn run(args: BinlogArgs) -> Result<ExitCode, String> {
    match args.command {
        BinlogCommand::Serve(args) => serve::run(args),
        BinlogCommand::Ingest(args) => ingest::run(args),
    }
}
