//! `lockstep block`: a replicated block device, served over NBD.

mod control;
mod listen;
mod node_log;
mod options;
mod report;
mod resync;
mod serve;
mod takeover;

pub(crate) use report::BlockStatus;

use clap::{Args, Subcommand};
use lockstep_local::say;
use lockstep_node::Command;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::cfg::Size;
use crate::fetch::{self, Target};
use control::{Progress, Request};
use options::{Protocol, ServeArgs};

#[derive(Args, Debug)]
pub(crate) struct BlockArgs {
    #[command(subcommand)]
    command: BlockCommand,
}

#[derive(Subcommand, Debug)]
enum BlockCommand {
    /// Keep a copy of the device, and serve it to NBD clients. Runs in the foreground until SIGTERM.
    Serve(Box<ServeArgs>),
    /// Show the device as this member sees it.
    Status(AtArgs),
    /// Make this member the primary of a new epoch, and print the export name that clients attach by.
    Promote(PromoteArgs),
    /// Make the device larger. Clients see the new size when they attach again.
    Resize(ResizeArgs),
    /// Change the replication protocol of the running group.
    Protocol(ProtocolArgs),
    /// Compare all copies while clients write. Exit code 1: they differ, or could not be compared; 4: those that were compared
    /// are alike, and others were not compared.
    Verify(VerifyArgs),
    /// Make an image of the device at one position, while clients write.
    Snapshot(SnapshotArgs),
}

#[derive(Args, Debug)]
struct AtArgs {
    /// Directory of a member on this machine.
    #[arg(long, value_name = "DIR", default_value = options::DEFAULT_DIR)]
    dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct PromoteArgs {
    #[command(flatten)]
    at: AtArgs,
    /// Also if that ends an attachment in use.
    #[arg(long)]
    force: bool,
}

#[derive(Args, Debug)]
struct ResizeArgs {
    #[command(flatten)]
    at: AtArgs,
    /// The new size.
    #[arg(long, value_name = "SIZE")]
    size: Size,
}

#[derive(Args, Debug)]
struct ProtocolArgs {
    #[command(flatten)]
    at: AtArgs,
    /// The protocol: a, b or c.
    protocol: Protocol,
}

#[derive(Args, Debug)]
struct VerifyArgs {
    #[command(flatten)]
    at: AtArgs,
    /// The most bytes of the device to compare in a second, as 50M [default: no limit].
    #[arg(long, value_name = "SIZE")]
    rate: Option<Size>,
}

#[derive(Args, Debug)]
struct SnapshotArgs {
    #[command(flatten)]
    at: AtArgs,
    /// The image: a file that does not exist yet. The member writes it.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

impl BlockArgs {
    /// Whether to print JSON.
    pub(crate) fn wants_json(&self) -> bool {
        match &self.command {
            BlockCommand::Serve(_) => false,
            BlockCommand::Status(at) => at.json,
            BlockCommand::Promote(PromoteArgs { at, .. })
            | BlockCommand::Resize(ResizeArgs { at, .. })
            | BlockCommand::Verify(VerifyArgs { at, .. })
            | BlockCommand::Snapshot(SnapshotArgs { at, .. })
            | BlockCommand::Protocol(ProtocolArgs { at, .. }) => at.json,
        }
    }
}

#[cfg(test)]
impl BlockArgs {
    pub(crate) fn serve_args(self) -> ServeArgs {
        match self.command {
            BlockCommand::Serve(args) => *args,
            other => panic!("not `serve`: {other:?}"),
        }
    }
}

pub(crate) fn run(args: BlockArgs) -> Result<ExitCode, String> {
    match args.command {
        BlockCommand::Serve(args) => serve::run(*args),
        BlockCommand::Status(at) => {
            let page = control::ask(&at.dir, &Request::Status)?;
            let status: BlockStatus =
                page.status.ok_or("the member has sent no status: is it of another version?")?;
            match at.json {
                true => say(&serde_json::to_string(&status).map_err(|e| format!("cannot write JSON: {e}"))?),
                false => say(&status.text()),
            }
            Ok(ExitCode::SUCCESS)
        }
        BlockCommand::Promote(PromoteArgs { at, force }) => {
            // Under protocols A and B the present primary stops when leadership moves: not for a promotion that is refused.
            control::ask(&at.dir, &Request::MayPromote { force })?;
            lead(&at.dir)?;
            let answer = control::ask(&at.dir, &Request::Promote { force })?;
            print(&at, &answer)
        }
        BlockCommand::Resize(ResizeArgs { at, size: Size(size) }) => {
            print(&at, &control::ask(&at.dir, &Request::Resize { size })?)
        }
        BlockCommand::Protocol(ProtocolArgs { at, protocol }) => {
            print(&at, &control::ask(&at.dir, &Request::Protocol { protocol })?)
        }
        BlockCommand::Verify(VerifyArgs { at, rate }) => {
            let request = Request::Verify { rate: rate.map(|Size(bytes)| bytes) };
            let mut meter = Meter::new("compared");
            let answer = control::ask_long(&at.dir, &request, |now| meter.show(now))?;
            print(&at, &answer)?;
            let compared =
                answer.compared.ok_or("the member has sent no result: is it of another version?")?;
            Ok(ExitCode::from(compared.exit_code()))
        }
        BlockCommand::Snapshot(SnapshotArgs { at, to }) => {
            // The member has another working directory.
            let to = std::path::absolute(&to).map_err(|error| format!("{}: {error}", to.display()))?;
            let mut meter = Meter::new("copied");
            print(&at, &control::ask_long(&at.dir, &Request::Snapshot { to }, |now| meter.show(now))?)
        }
    }
}

/// Shows the progress on standard error, now and then.
struct Meter {
    verb: &'static str,
    shown: Instant,
}

impl Meter {
    /// How often a line is written.
    const PERIOD: Duration = Duration::from_secs(5);

    fn new(verb: &'static str) -> Meter {
        Meter { verb, shown: Instant::now() }
    }

    fn show(&mut self, now: Progress) {
        if self.shown.elapsed() < Meter::PERIOD {
            return;
        }
        self.shown = Instant::now();
        let Progress { done, total, differing } = now;
        let percent = u128::from(done) * 100 / u128::from(total.max(1));
        let differs = if differing > 0 { ", the copies differ" } else { "" };
        eprintln!("{} {done} of {total} bytes ({percent} %){differs}", self.verb);
    }
}

fn print(at: &AtArgs, answer: &control::Answer) -> Result<ExitCode, String> {
    if at.json {
        say(&serde_json::to_string(answer).map_err(|e| format!("cannot write JSON: {e}"))?);
    } else {
        say(&answer.text);
    }
    Ok(ExitCode::SUCCESS)
}

/// Lets the member of this directory lead, if possible: a primary that leads has one round trip per flush. Protocols A and B
/// need it, and the member itself refuses without.
fn lead(dir: &Path) -> Result<(), String> {
    let target = fetch::socket_in(dir);
    let page = fetch::get(&target, "/status").map_err(|error| format!("{target}: {error}"))?;
    let status: lockstep_node::Status =
        serde_json::from_str(&page).map_err(|error| format!("{target}: no status: {error}"))?;
    if status.leads() {
        return Ok(());
    }
    if let Target::Socket(socket) = &target {
        let command = Command::Switchover { to: status.own.id };
        let answer = crate::command::send(socket, &command)?;
        if !answer.ok {
            eprintln!("lockstep: this member does not lead: {}", answer.text);
        }
    }
    Ok(())
}
