//! `lockstep binlog`: the cluster's transactions as one MariaDB binlog, from a member without a database.

mod archive;
mod archive_status;
mod disk_space;
mod feed;
mod ingest;
mod member_feed;
mod options;
mod reload;
mod report;
mod restore;
mod retention;
mod s3;
mod serve;
mod target;
mod upstream;

pub(crate) use archive::ArchiveArgs;
pub(crate) use archive_status::ArchiveStatus;
pub(crate) use ingest::IngestStatus;
pub(crate) use options::ServeArgs;
pub(crate) use report::{BinlogStatus, ConsumerStatus};
pub(crate) use restore::RestoreArgs;

use clap::{Args, Subcommand};
use std::fs::File;
use std::path::Path;
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
    /// Copy the cluster's transactions to a directory or an S3 bucket. Runs in the foreground until SIGTERM.
    Archive(Box<ArchiveArgs>),
    /// Write the transactions between a backup and a point in time to binlog files for mariadb-binlog.
    Restore(RestoreArgs),
    /// Copy the binlog of a plain MariaDB primary to a majority of members before a commit on it returns.
    Ingest(Box<ingest::IngestArgs>),
}

impl BinlogArgs {
    /// Whether to print JSON.
    pub(crate) fn wants_json(&self) -> bool {
        matches!(&self.command, BinlogCommand::Restore(args) if args.wants_json())
    }
}

#[cfg(test)]
impl BinlogArgs {
    pub(crate) fn serve_args(self) -> ServeArgs {
        match self.command {
            BinlogCommand::Serve(args) => *args,
            other => panic!("not `serve`: {other:?}"),
        }
    }

    pub(crate) fn ingest_args(self) -> ingest::IngestArgs {
        match self.command {
            BinlogCommand::Ingest(args) => *args,
            other => panic!("not `ingest`: {other:?}"),
        }
    }
}

pub(crate) fn run(args: BinlogArgs) -> Result<ExitCode, String> {
    match args.command {
        BinlogCommand::Serve(args) => serve::run(*args),
        BinlogCommand::Archive(args) => archive::run(*args),
        BinlogCommand::Restore(args) => restore::run(args),
        BinlogCommand::Ingest(args) => ingest::run(*args),
    }
}

/// Replaces a small file, durably: after a crash it has the old text or the new one.
fn replace_durably(path: &Path, text: &str) -> std::io::Result<()> {
    let next = path.with_extension("new");
    std::fs::write(&next, text)?;
    File::open(&next)?.sync_all()?;
    std::fs::rename(&next, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}
