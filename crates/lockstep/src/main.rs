//! `lockstep`: run a cluster on this machine, watch any cluster, look into a log.

mod absent;
mod arbitrator;
mod bench;
mod cert;
mod chaos;
mod check;
mod command;
mod fetch;
mod hello;
mod lab;
mod log;
mod member;
mod place;
mod progress;
mod rescue;
mod status;
mod survey;
mod up;
mod verdicts;
mod verify;
mod wait;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// Replication of unmodified MariaDB servers: run, watch and measure clusters.
#[derive(Parser, Debug)]
#[command(name = "lockstep", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Start three servers on this machine as one cluster, and leave them running.
    Up(UpArgs),
    /// Stop what `up` started; the data stay.
    Down(DownArgs),
    /// Show who is in the cluster, and where everybody stands. Exit code 3: no member that answers is in a primary
    /// component; 1: no member answers.
    Status(StatusArgs),
    /// Let another member lead, in good order, after a view that lists it first.
    Switchover(SwitchoverArgs),
    /// Take a member that will not return out of the cluster: no majority counts it any more, nothing is kept for it.
    Remove(RemoveArgs),
    /// Let a member vote that does not (member.vote=no): a read replica becomes one of those who make majorities, and may
    /// lead then.
    Promote(PromoteArgs),
    /// Let one member go on alone, without the majority: a new branch of the data, which the others take over when they are
    /// back. Their commits without it are lost, and they must not run beside it: docs/operating.md, No majority.
    Bootstrap(BootstrapArgs),
    /// Be a voter without a database: it keeps the log, so that two servers and it survive the loss of any one. Takes
    /// garbd's command line, too.
    Arbitrator(arbitrator::ArbitratorArgs),
    /// Compare the rows of all members at one seqno, without stopping writes. Exit code 0: all are equal; 1: they differ;
    /// 3: they could not be compared; 4: those that are there are equal, and others were not compared.
    Verify(verify::VerifyArgs),
    /// Wait until members have applied what the cluster has agreed on. Exit code 0: they have; 3: not in time, also where no
    /// leader says what is agreed on; 4: never, a new leader left out what is waited for; 1: no member answers.
    Wait(wait::WaitArgs),
    /// Print the log.
    Log(log::LogArgs),
    /// Measure how fast it is on this machine.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Run three servers under load while they are killed, paused, cut off and filled up, and compare the answers to their
    /// clients with the data. Exit code 3: something was lost or wrong.
    Chaos(chaos::ChaosArgs),
    /// Reproduce classic experiments with replication over distances, beside its rivals. Exit code 3: not all was measured
    /// that was to be.
    #[command(subcommand)]
    Lab(lab::LabCommand),
    /// A member of `bench provider`: a miniature server, driven by lines on standard input.
    #[command(name = bench::MEMBER, hide = true)]
    BenchMember,
    /// Make certificates and keys, so that members encrypt what they send each other.
    Cert(cert::CertArgs),
    /// Read a server's option files, and say what would be refused, ignored or unwise. Exit code 0: nothing; 3: something
    /// is unwise; 4: something would be refused; 1: the files cannot be read.
    Check(check::CheckArgs),
}

#[derive(Args, Debug)]
struct UpArgs {
    /// The provider's file [default: liblockstep.so beside this program].
    #[arg(long)]
    provider: Option<PathBuf>,
    /// Where the servers' files go: a folder that does not exist yet, or one that `up` has made.
    #[arg(long, default_value = up::DEFAULT_DIR)]
    dir: PathBuf,
    /// The first of three neighbouring TCP ports for SQL; members talk on 10, 20 and 30 above it (with 33061 on 45671,
    /// 45681 and 45691) [default: as before, or 33061].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1024..65000))]
    port: Option<u16>,
}

#[derive(Args, Debug)]
struct DownArgs {
    /// Where the servers' files are.
    #[arg(long, default_value = up::DEFAULT_DIR)]
    dir: PathBuf,
    /// How long each server may take, in seconds; one that still runs then is killed, and the others are stopped.
    #[arg(long, value_name = "SECONDS", default_value = "40", value_parser = seconds)]
    timeout: std::time::Duration,
}

#[derive(Args, Debug)]
struct StatusArgs {
    #[command(flatten)]
    source: Source,
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// Again and again, every so many seconds.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    watch: Option<std::time::Duration>,
}

#[derive(Args, Debug)]
struct SwitchoverArgs {
    /// The member that is to lead: its name, or its id where several have the name.
    #[arg(long, value_name = "NAME")]
    to: String,
    #[command(flatten)]
    at: CommandArgs,
}

#[derive(Args, Debug)]
struct RemoveArgs {
    /// The member: its name, or its id where several have the name.
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Also if it is connected. It is told so, and refuses everything until its server is started again.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    at: CommandArgs,
}

#[derive(Args, Debug)]
struct PromoteArgs {
    /// The member: its name, or its id where several have the name.
    #[arg(long, value_name = "NAME")]
    name: String,
    #[command(flatten)]
    at: CommandArgs,
}

#[derive(Args, Debug)]
struct BootstrapArgs {
    /// The socket of the member that is to go on: `lockstep.sock` in its data directory.
    #[arg(long)]
    socket: PathBuf,
    /// The answer as JSON.
    #[arg(long)]
    json: bool,
}

/// Which member takes a command: any of the cluster that runs here.
#[derive(Args, Debug)]
struct CommandArgs {
    /// The folder of a cluster that `up --dir` started.
    #[arg(long, conflicts_with = "socket")]
    dir: Option<PathBuf>,
    /// The socket of a member: `lockstep.sock` in its data directory. Commands are taken there only, never over TCP.
    #[arg(long)]
    socket: Option<PathBuf>,
    /// The answer as JSON.
    #[arg(long)]
    json: bool,
}

impl CommandArgs {
    fn source(&self) -> Source {
        Source { dir: self.dir.clone(), socket: self.socket.clone(), address: None }
    }
}

/// Whom to ask. Without any of these: the cluster of `make up`, else the server of /var/lib/mysql.
#[derive(Args, Debug, Clone)]
struct Source {
    /// The folder of a cluster that `up --dir` started.
    #[arg(long, conflicts_with_all = ["socket", "address"])]
    dir: Option<PathBuf>,
    /// The status socket of a member: `lockstep.sock` in its data directory.
    #[arg(long, conflicts_with = "address")]
    socket: Option<PathBuf>,
    /// The status address of a member (its option `status.address`): HOST:PORT.
    #[arg(long)]
    address: Option<String>,
}

fn seconds(text: &str) -> Result<std::time::Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.1..=86_400.0).contains(&s) => Ok(std::time::Duration::from_secs_f64(s)),
        _ => Err("a number of seconds from 0.1 to 86400 is wanted".into()),
    }
}

impl Command {
    /// Whether a program reads the answer.
    fn wants_json(&self) -> bool {
        match self {
            Command::Status(args) => args.json,
            Command::Switchover(SwitchoverArgs { at, .. })
            | Command::Remove(RemoveArgs { at, .. })
            | Command::Promote(PromoteArgs { at, .. }) => at.json,
            Command::Bootstrap(args) => args.json,
            Command::Verify(args) => args.wants_json(),
            Command::Wait(args) => args.wants_json(),
            Command::Check(args) => args.wants_json(),
            _ => false,
        }
    }
}

fn main() -> ExitCode {
    let command = Cli::parse_from(arbitrator::as_garbd(std::env::args_os())).command;
    let json = command.wants_json();
    let outcome = match command {
        Command::Arbitrator(args) => arbitrator::run(args),
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
        Command::Chaos(args) => chaos::run(&args),
        Command::Log(args) => log::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Bench(command) => bench::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Lab(command) => lab::run(&command),
        Command::BenchMember => {
            lockstep_host::command::serve(std::io::stdin().lock());
            // Whatever still runs in the provider goes down with the process, as when a server is killed.
            std::process::exit(0);
        }
    };
    match outcome {
        Ok(code) => code,
        Err(text) => {
            progress::complain(&text, json);
            ExitCode::FAILURE
        }
    }
}
