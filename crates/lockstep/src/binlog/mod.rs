//! `lockstep binlog`: the cluster's transactions as one MariaDB binlog, from a member without a database.

mod archive;
mod feed;
mod member_feed;
mod restore;
mod s3;
mod serve;
mod target;

pub(crate) use archive::ArchiveArgs;
pub(crate) use restore::RestoreArgs;
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
    /// Copy the cluster's transactions to a directory or an S3 bucket. Runs in the foreground until SIGTERM.
    Archive(ArchiveArgs),
    /// Write the transactions between a backup and a point in time to binlog files for mariadb-binlog.
    Restore(RestoreArgs),
}

pub(crate) fn run(args: BinlogArgs) -> Result<ExitCode, String> {
    match args.command {
        BinlogCommand::Serve(args) => serve::run(args),
        BinlogCommand::Archive(args) => archive::run(args),
        BinlogCommand::Restore(args) => restore::run(args),
    }
}
