//! `lockstep binlog`: the cluster's transactions as one MariaDB binlog, from a member without a database.

mod disk_space;
mod feed;
mod ingest;
mod options;
mod report;
mod retention;
mod serve;
mod upstream;

pub(crate) use ingest::IngestStatus;
pub(crate) use options::ServeArgs;
pub(crate) use report::{BinlogStatus, ConsumerStatus};

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
    Serve(Box<ServeArgs>),
    /// Copy the binlog of a plain MariaDB primary to a majority of members before a commit on it returns.
    Ingest(Box<ingest::IngestArgs>),
}

#[cfg(test)]
impl BinlogArgs {
    pub(crate) fn serve_args(self) -> ServeArgs {
        match self.command {
            BinlogCommand::Serve(args) => *args,
            BinlogCommand::Ingest(_) => panic!("not `serve`"),
        }
    }
}

pub(crate) fn run(args: BinlogArgs) -> Result<ExitCode, String> {
    match args.command {
        BinlogCommand::Serve(args) => serve::run(*args),
        BinlogCommand::Ingest(args) => ingest::run(*args),
    }
}
