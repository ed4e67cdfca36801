//! `lockstep`: runs a cluster on this machine, monitors any cluster, and prints logs.

mod absent;
#[cfg(test)]
mod alerts;
mod arbitrator;
mod binlog;
mod block;
mod cert;
mod certification;
mod cfg;
mod check;
mod cluster_dir;
mod command;
mod existing_group;
mod fetch;
mod log;
mod log_member;
mod query;
mod rescue;
mod server_health;
mod signals;
mod smoke_test;
mod source;
mod status;
mod up;
mod verify;
mod wait;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use self::command::complain;
use self::source::{CommandArgs, Source};

/// Runs, monitors and measures Lockstep clusters of MariaDB servers.
#[derive(Parser, Debug)]
#[command(name = "lockstep", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Start a cluster of three servers on this machine.
    Up(UpArgs),
    /// Stop the cluster that `up` started, and keep its data.
    Down(DownArgs),
    /// Show the members, the leader and the lag. Exit code 3: no member that answers is in a primary component; 1: no
    /// member answers.
    Status(StatusArgs),
    /// Transfer leadership to another member. A new view lists it first.
    Switchover(SwitchoverArgs),
    /// Remove a member that will not return. No majority counts it, and no log is kept for it.
    Remove(RemoveArgs),
    /// Make a read replica (member.vote=no) a voter. It counts for majorities and may lead.
    Promote(PromoteArgs),
    /// Continue with one member, without a majority. This founds a new branch of the data, and the other members
    /// adopt it when they return. Commits that this member lacks are lost. The others must not run meanwhile:
    /// docs/operating.md, No majority.
    Bootstrap(BootstrapArgs),
    /// Run a voter without a database. It keeps the log, so two servers and an arbitrator survive the loss of one.
    /// Accepts garbd's command line.
    Arbitrator(arbitrator::ArbitratorArgs),
    /// Binlogs: serve those of a cluster, archive and restore them, or copy that of a plain primary to log members.
    Binlog(binlog::BinlogArgs),
    /// Keep and serve a replicated block device over NBD, from members without a database.
    Block(block::BlockArgs),
    /// Compare the rows of all members at one seqno, while clients write. Exit code 0: all members are equal; 1: they
    /// differ; 3: the comparison failed; 4: the compared members are equal, and others were not compared.
    Verify(verify::VerifyArgs),
    /// Wait until members have applied the cluster's committed position. Exit code 0: they have; 3: timeout, or no
    /// leader knows the position; 4: never, because a new leader left the seqno out; 1: no member answers.
    Wait(wait::WaitArgs),
    /// Print the entries of a log or of a rescue file.
    Log(log::LogArgs),
    /// The developers' tools.
    #[cfg(feature = "lab")]
    #[command(flatten)]
    Tools(lockstep_lab::Tool),
    /// Create the certificates and keys for TLS between members.
    Cert(cert::CertArgs),
    /// Check a server's option files for settings that Lockstep refuses, ignores or advises against. Exit code 0:
    /// none; 3: warnings; 4: errors; 1: the files cannot be read.
    Check(check::CheckArgs),
}

#[derive(Args, Debug)]
struct UpArgs {
    /// The provider library [default: liblockstep.so beside this program].
    #[arg(long)]
    provider: Option<PathBuf>,
    /// Directory of the servers' files: a new one, or one that `up` created.
    #[arg(long, default_value = cluster_dir::DEFAULT_DIR)]
    dir: PathBuf,
    /// First of three consecutive TCP ports for SQL. Members use the ports 10, 20 and 30 above it (with 33061: 45671,
    /// 45681 and 45691) [default: as before, or 33061].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1024..65000))]
    port: Option<u16>,
}

#[derive(Args, Debug)]
struct DownArgs {
    /// Directory of the servers' files.
    #[arg(long, default_value = cluster_dir::DEFAULT_DIR)]
    dir: PathBuf,
    /// Seconds that each server may take to stop. After that it is killed, and the others are stopped.
    #[arg(long, value_name = "SECONDS", default_value = "40", value_parser = lockstep_local::seconds)]
    timeout: std::time::Duration,
}

#[derive(Args, Debug)]
struct StatusArgs {
    #[command(flatten)]
    source: Source,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Repeat every so many seconds.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = lockstep_local::seconds)]
    watch: Option<std::time::Duration>,
}

#[derive(Args, Debug)]
struct SwitchoverArgs {
    /// Name of the new leader, or its id if several members have that name.
    #[arg(long, value_name = "NAME")]
    to: String,
    #[command(flatten)]
    at: CommandArgs,
}

#[derive(Args, Debug)]
struct RemoveArgs {
    /// Name of the member, or its id if several members have that name.
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Remove the member even if it is connected. It rejects all statements until its server is restarted.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    at: CommandArgs,
}

#[derive(Args, Debug)]
struct PromoteArgs {
    /// Name of the member, or its id if several members have that name.
    #[arg(long, value_name = "NAME")]
    name: String,
    #[command(flatten)]
    at: CommandArgs,
}

#[derive(Args, Debug)]
struct BootstrapArgs {
    /// Socket of the member that is to continue: `lockstep.sock` in its data directory.
    #[arg(long)]
    socket: PathBuf,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

impl Command {
    /// Whether to print JSON.
    fn wants_json(&self) -> bool {
        match self {
            Command::Status(args) => args.json,
            Command::Switchover(SwitchoverArgs { at, .. })
            | Command::Remove(RemoveArgs { at, .. })
            | Command::Promote(PromoteArgs { at, .. }) => at.json,
            Command::Bootstrap(args) => args.json,
            Command::Block(args) => args.wants_json(),
            Command::Verify(args) => args.wants_json(),
            Command::Wait(args) => args.wants_json(),
            Command::Check(args) => args.wants_json(),
            Command::Binlog(args) => args.wants_json(),
            _ => false,
        }
    }
}

fn main() -> ExitCode {
    let command = Cli::parse_from(arbitrator::as_garbd(std::env::args_os())).command;
    let json = command.wants_json();
    let outcome = match command {
        Command::Arbitrator(args) => arbitrator::run(args),
        Command::Binlog(args) => binlog::run(args),
        Command::Block(args) => block::run(args),
        Command::Up(args) => up::up(&args.dir, args.provider, args.port).map(|()| ExitCode::SUCCESS),
        Command::Down(args) => up::down(&args.dir, args.timeout).map(|()| ExitCode::SUCCESS),
        Command::Status(args) => status::run(&args.source, args.json, args.watch),
        Command::Cert(args) => cert::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Switchover(args) => {
            let command = lockstep_node::Command::Switchover { to: args.to };
            command::run(&args.at.source(), &command, args.at.json)
        }
        Command::Remove(args) => {
            let command = lockstep_node::Command::Remove { name: args.name, force: args.force };
            command::run(&args.at.source(), &command, args.at.json)
        }
        Command::Promote(args) => {
            let command = lockstep_node::Command::Promote { name: args.name };
            command::run(&args.at.source(), &command, args.at.json)
        }
        Command::Bootstrap(args) => {
            let source = Source { dir: None, socket: Some(args.socket), address: None };
            command::run(&source, &lockstep_node::Command::Bootstrap, args.json)
        }
        Command::Verify(args) => verify::run(&args),
        Command::Wait(args) => wait::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Log(args) => log::run(&args).map(|()| ExitCode::SUCCESS),
        #[cfg(feature = "lab")]
        Command::Tools(tool) => tool.run(),
    };
    match outcome {
        Ok(code) => code,
        Err(text) => {
            complain(&text, json);
            ExitCode::FAILURE
        }
    }
}
