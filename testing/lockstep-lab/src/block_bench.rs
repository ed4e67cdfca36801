//! Rates of a replicated block device on this machine, beside nbdkit, which does not replicate; and a copy from another member
//! under load.
//!
//! All copies are on one disk, so a flush of ours writes to it three times. nbdkit therefore has a second set-up: three servers
//! with three clients that write at the same time, of which the mean counts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lockstep_local::{LocalError, Result, Session, run_to_end};
use serde::Serialize;
use serde_json::Value;

use crate::bench::{self, Bench};
use crate::block::watched;
use crate::block_group::{EXPORT, Group, GroupSpec, MEMBERS, Protocol, program};
use crate::machine::sync_disks;
use crate::needs;

/// MiB of the device.
const SIZE: u64 = 512;
/// MiB of our cache of writes.
const CACHE: u32 = 128;
/// A log that keeps little, so that a member that returns needs the device from another one.
const SHORT_LOG: &str = "log.size=32M; log.segment=4M; log.max_size=64M; log.keep_min=0s";
/// A log that a measurement of rates does not fill.
const LONG_LOG: &str = "log.size=1G";
/// The time of a load while a member copies. The end of the copy is seen at the end of such a time.
const WINDOW_DURING: Duration = Duration::from_secs(1);
/// For two of three members to write to their device files what is in memory.
const SETTLES: Duration = Duration::from_secs(3);
/// How long a server may take to listen.
const LISTENS: Duration = Duration::from_secs(20);

/// What to measure.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// Our program; none: this one.
    pub(crate) program: Option<PathBuf>,
    /// How many requests are in flight.
    pub(crate) depths: Vec<u32>,
    /// Our protocols.
    pub(crate) protocols: Vec<Protocol>,
    /// The time of each load.
    pub(crate) window: Duration,
    /// How often each set-up has its turn.
    pub(crate) rounds: u32,
    /// MiB that are written while a member is away; 0: no copy from another member is measured.
    pub(crate) away: u64,
    /// MiB per second at which a member sends the device to another one; 0: as fast as it can.
    pub(crate) resync_rate: u32,
}

/// A set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Setup {
    /// One server of nbdkit.
    Nbdkit,
    /// Three, each with a client.
    ThreeNbdkits,
    /// Three copies of ours.
    Lockstep(Protocol),
}

impl Setup {
    /// As in results.
    pub(crate) fn name(self) -> String {
        match self {
            Setup::Nbdkit => "nbdkit".into(),
            Setup::ThreeNbdkits => "3 nbdkits, each".into(),
            Setup::Lockstep(protocol) => format!("lockstep {}", protocol.letter()),
        }
    }
}

/// A measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) setup: Setup,
    /// Each write is followed by a flush.
    pub(crate) synced: bool,
    pub(crate) depth: u32,
    /// Requests per second of one client.
    pub(crate) rate: f64,
    /// Milliseconds of a flush, or of a write without one: 99 of a hundred took no longer.
    pub(crate) p99: f64,
    /// The share of this machine's processors in use.
    pub(crate) busy: f64,
}

/// A copy from another member.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Resync {
    /// MiB that were written while the member was away.
    pub(crate) written_mib: u64,
    /// From the start of the process until its copy is whole.
    pub(crate) seconds: f64,
    /// The report of the member that sent it.
    pub(crate) report: String,
    /// Flushed 4 KiB writes per second at the primary before the member was stopped.
    pub(crate) rate_before: f64,
    /// The same during the copy.
    pub(crate) rate_during: f64,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) samples: Vec<Sample>,
    pub(crate) resync: Option<Resync>,
}

/// Servers with one device each.
enum Servers {
    /// Of nbdkit: their processes and sockets.
    Nbdkit(Vec<(Session, PathBuf)>),
    Lockstep(Group),
}

impl Servers {
    fn start(bench: &Bench, spec: &Spec, setup: Setup, name: &str) -> Result<Servers> {
        let count = match setup {
            Setup::Nbdkit => 1,
            Setup::ThreeNbdkits => 3,
            Setup::Lockstep(protocol) => {
                return Group::start(bench, name, group(spec, protocol, LONG_LOG)?).map(Servers::Lockstep);
            }
        };
        let start = |at: u32| {
            let base = bench.dir().join(format!("{name}{at}"));
            let (file, socket) = (base.with_extension("img"), base.with_extension("nbd"));
            run_to_end(Command::new("truncate").arg(format!("--size={SIZE}M")).arg(&file))?;
            let mut command = Command::new("nbdkit");
            command.args(["--foreground", "--unix"]).arg(&socket).arg("file").arg(&file);
            let session = bench::spawn(&mut command, &base)?;
            let end = Instant::now() + LISTENS;
            while !socket.exists() {
                if Instant::now() > end {
                    return Err(LocalError::Value("nbdkit does not listen".into()));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok((session, socket))
        };
        (0..count).map(start).collect::<Result<_>>().map(Servers::Nbdkit)
    }

    /// The addresses of their clients.
    fn uris(&self) -> Vec<String> {
        match self {
            Servers::Nbdkit(servers) => servers.iter().map(|(_, socket)| uri("", socket)).collect(),
            Servers::Lockstep(group) => vec![uri(EXPORT, &group.socket(0))],
        }
    }
}

impl Servers {
    /// Waits until everything written so far is where it stays: what the kernel or a member still writes would slow down the
    /// measurement.
    fn settle(&mut self) -> Result<()> {
        if let Servers::Lockstep(group) = self {
            group.until_written()?;
        }
        sync_disks();
        Ok(())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        match self {
            Servers::Nbdkit(servers) => {
                for (session, socket) in servers {
                    session.kill();
                    let _ = std::fs::remove_file(socket.with_extension("img"));
                }
            }
            Servers::Lockstep(group) => group.remove(),
        }
    }
}

fn uri(export: &str, socket: &Path) -> String {
    format!("nbd+unix:///{export}?socket={}", socket.display())
}

fn group(spec: &Spec, protocol: Protocol, log: &'static str) -> Result<GroupSpec> {
    Ok(GroupSpec {
        program: program(spec.program.as_deref())?,
        arbitrator: false,
        protocol,
        size: SIZE << 20,
        cache: CACHE,
        small_disks: false,
        slow_disks: false,
        log,
        resync_rate: spec.resync_rate,
    })
}

/// fio with random writes of 4 KiB.
fn writes(uri: &str, synced: bool, depth: u32, window: Duration) -> Command {
    let mut command = Command::new("fio");
    command.args(["--name=w", "--ioengine=nbd", "--rw=randwrite", "--bs=4k", "--time_based", "--thread"]);
    command.args(["--group_reporting", "--output-format=json"]).arg(format!("--uri={uri}"));
    command.arg(format!("--size={SIZE}m")).arg(format!("--runtime={}", window.as_secs()));
    match synced {
        true => command.arg("--fsync=1").arg(format!("--numjobs={depth}")),
        false => command.arg(format!("--iodepth={depth}")),
    };
    command
}

/// The rate and the 99th percentile, ms, of fio's JSON, before which fio may print notes.
fn of_fio(text: &str, synced: bool) -> Option<(f64, f64)> {
    let all: Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    let job = &all["jobs"][0];
    let times = if synced { &job["sync"]["lat_ns"] } else { &job["write"]["clat_ns"] };
    Some((job["write"]["iops"].as_f64()?, times["percentile"]["99.000000"].as_f64()? / 1e6))
}

/// Runs a client for each address at the same time. Returns the mean rate and the worst 99th percentile.
fn clients(uris: &[String], synced: bool, depth: u32, window: Duration) -> Result<(f64, f64)> {
    let run = |uri: &String| {
        let text = run_to_end(&mut writes(uri, synced, depth, window))?;
        of_fio(&text, synced).ok_or_else(|| LocalError::Value(format!("fio has printed no results: {text}")))
    };
    let results: Vec<Result<(f64, f64)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = uris.iter().map(|uri| scope.spawn(move || run(uri))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|result| result.unwrap_or_else(|_| Err(LocalError::Value("a client panicked".into()))))
            .collect()
    });
    let results = results.into_iter().collect::<Result<Vec<_>>>()?;
    let rate = results.iter().map(|(rate, _)| rate).sum::<f64>() / results.len() as f64;
    Ok((rate, results.iter().map(|(_, p99)| *p99).fold(0.0, f64::max)))
}

/// Measures. `say` gets a line for each measurement.
///
/// # Errors
/// A program is missing, or a server or client fails.
pub(crate) fn run(spec: &Spec, say: &dyn Fn(&str)) -> Result<Report> {
    needs::program("fio", "fio")?;
    needs::program("nbdkit", "nbdkit")?;
    let bench = Bench::without_servers()?;
    let mut report = Report::default();
    let mut setups = vec![Setup::Nbdkit, Setup::ThreeNbdkits];
    setups.extend(spec.protocols.iter().map(|protocol| Setup::Lockstep(*protocol)));
    for round in 0..spec.rounds {
        // None always follows the same one.
        setups.rotate_left(1);
        for setup in &setups {
            let name = format!("r{round}-{}-", setup.name().replace([' ', ','], ""));
            let mut servers = Servers::start(&bench, spec, *setup, &name)?;
            let uris = servers.uris();
            // All blocks exist: the first write of a block costs the file system more.
            for uri in &uris {
                fill(uri, SIZE)?;
            }
            let loads = spec.depths.iter().map(|depth| (true, *depth)).chain([(false, 16)]);
            for (synced, depth) in loads {
                servers.settle()?;
                let ((rate, p99), busy) = watched(|| clients(&uris, synced, depth, spec.window))?;
                let flushed = if synced { "flushed " } else { "" };
                say(&format!(
                    "round {}: {}: {rate:.0} {flushed}writes/s, {depth} in flight, processors {:.0} % busy",
                    round + 1,
                    setup.name(),
                    busy * 100.0
                ));
                report.samples.push(Sample { setup: *setup, synced, depth, rate, p99, busy });
            }
        }
    }
    if spec.away > 0 {
        report.resync = Some(resync(&bench, spec, say)?);
    }
    Ok(report)
}

/// Writes the device's first part once, and flushes.
fn fill(uri: &str, mib: u64) -> Result<()> {
    let mut command = Command::new("fio");
    command.args([
        "--name=fill",
        "--ioengine=nbd",
        "--rw=write",
        "--bs=128k",
        "--iodepth=4",
        "--end_fsync=1",
    ]);
    command.arg(format!("--uri={uri}")).arg(format!("--size={mib}m"));
    run_to_end(&mut command).map(drop)
}

/// A member is away while others write more than their logs keep. It returns while the primary is under load.
fn resync(bench: &Bench, spec: &Spec, say: &dyn Fn(&str)) -> Result<Resync> {
    let away = MEMBERS - 1;
    let mut device = group(spec, Protocol::C, SHORT_LOG)?;
    device.size = (spec.away + SIZE) << 20;
    let mut group = Group::start(bench, "resync", device)?;
    let uri = uri(EXPORT, &group.socket(0));
    let uris = std::slice::from_ref(&uri);
    fill(&uri, spec.away)?;
    group.until_written()?;
    sync_disks();
    let (rate_before, _) = clients(uris, true, 4, spec.window)?;
    group.until_written()?;
    group.stop(away)?;
    say(&format!("a member is away, and {} MiB are written", spec.away));
    fill(&uri, spec.away)?;
    std::thread::sleep(SETTLES);
    sync_disks();
    let began = Instant::now();
    group.spawn(away)?;
    let (mut rates, mut seconds) = (Vec::new(), 0.0);
    while seconds == 0.0 {
        let (rate, _) = clients(uris, true, 4, WINDOW_DURING)?;
        if group.is_synced(away) {
            seconds = began.elapsed().as_secs_f64();
        }
        // The last window is partly one without a copy.
        if seconds == 0.0 || rates.is_empty() {
            rates.push(rate);
        }
        if began.elapsed() > Duration::from_secs(60 * 60) {
            return Err(LocalError::Value(format!("the copy does not end\n{}", group.logs())));
        }
    }
    group.until_whole()?;
    let copied = "has sent the device to";
    let report = group.last_line(copied).ok_or_else(|| {
        LocalError::Value(format!(
            "the member has returned by the log, without a copy: the others still had it. Write more with --away\n{}",
            group.logs()
        ))
    })?;
    let report = report.find(copied).map(|at| report[at..].to_owned()).unwrap_or(report);
    let differences = group.stop_and_compare()?;
    if let Some(difference) = differences.first() {
        return Err(LocalError::Value(difference.clone()));
    }
    let rate_during = rates.iter().sum::<f64>() / rates.len() as f64;
    Ok(Resync { written_mib: spec.away, seconds, report, rate_before, rate_during })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_results_are_read() {
        let text = r#"fio: a note
            {"jobs": [{"write": {"iops": 1000.5, "clat_ns": {"percentile": {"99.000000": 2000000}}},
                       "sync": {"lat_ns": {"percentile": {"99.000000": 5000000}}}}]}"#;
        assert_eq!(of_fio(text, true), Some((1000.5, 5.0)));
        assert_eq!(of_fio(text, false), Some((1000.5, 2.0)));
        assert_eq!(of_fio("fio: cannot open", true), None);
    }
}
