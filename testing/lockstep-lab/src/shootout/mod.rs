//! The cost of replication beside a single server, for several flush settings. The model is a post of 2011 that measured
//! sysbench's OLTP loads on a large server: with a replicated block device, with semi-synchronous replication, and
//! without either.
//!
//! Each server has a network namespace, a file system in a file, and one processor. The writer has the first, the second
//! server the next, and the load shares the rest.

#[path = "../../../lockstep-floor/src/names.rs"]
mod names;
mod purge;
mod rig;
mod setup;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::bench::PARENT;
use crate::needs;
use crate::netns::Network;
use crate::replicated_device;
use crate::sysbench::{Histogram, Load, SYSBENCH_DATABASE, Sysbench};
use lockstep_local::{Installation, Result};
pub use purge::Debt;
use rig::Rig;
pub use setup::{FileSystem, Kind, Reading, Setup};

/// The post's loads, by sysbench's names: that which reads, and that which writes, too.
pub const READ_ONLY: &str = "oltp_read_only";
/// See [`READ_ONLY`].
pub const READ_WRITE: &str = "oltp_read_write";
/// The load whose transactions are one update each: it shows the cost of a commit alone. The post does not have it.
pub const UPDATE_INDEX: &str = "oltp_update_index";

/// The longest wait of a commit under the provider that only waits: about the time of two machines' disks here.
pub const FLOOR_TICK: Duration = Duration::from_micros(300);

/// How it is run.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Our provider's file.
    pub provider: PathBuf,
    /// The provider that costs nothing.
    pub floor: PathBuf,
    /// Galera's library.
    pub galera: PathBuf,
    /// Our command, which is the log members; none: the one in the path.
    pub lockstep: Option<PathBuf>,
    /// Tables of sysbench's, and the rows of each.
    pub tables: u32,
    /// See `tables`.
    pub rows: u32,
    /// How many threads, for each measurement.
    pub threads: Vec<u32>,
    /// For how long each of those that only reads.
    pub read_window: Duration,
    /// For how long each of those that read and write.
    pub write_window: Duration,
    /// For how long each of those that update.
    pub update_window: Duration,
    /// The two sizes of InnoDB's buffer pool, in MiB, the smaller first.
    pub pools: [u32; 2],
    /// The size of each server's file system, in GiB.
    pub disk: u32,
    /// How much longer a flush takes on the slow disk.
    pub slow: Duration,
    /// The server that runs the read-only load.
    pub reading: Reading,
}

/// Sysbench's result of one load.
#[derive(Debug, Clone)]
pub struct Measured {
    /// [`READ_ONLY`], [`READ_WRITE`] or [`UPDATE_INDEX`].
    pub script: &'static str,
    /// By so many threads.
    pub threads: u32,
    /// In sum.
    pub load: Load,
    /// How many transactions took how long.
    pub histogram: Histogram,
    /// How long after the load's end the copy had everything; none where there is none, or nothing to be had.
    pub caught_up: Option<Duration>,
    /// The writer's purge backlog at the end of the load; none for a read-only load.
    pub debt: Option<Debt>,
}

/// The result of one run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Of the server, and of the provider where there is one; and sysbench's.
    pub version: String,
    /// One for each load and number of threads.
    pub measured: Vec<Measured>,
    /// The name and option file of each server, and its variables.
    pub configurations: Vec<(String, String)>,
}

/// An error that says what is missing, if these set-ups cannot be made on this machine.
pub fn check(setups: &[Setup], spec: &Spec) -> Result<()> {
    needs::root("mount file systems and to make network namespaces")?;
    Installation::find()?;
    Sysbench::find()?;
    needs::program("ip", "iproute2")?;
    setups.iter().try_for_each(|setup| rig::mkfs(setup.file_system).map(drop))?;
    for program in ["taskset", "fallocate", "mount"] {
        needs::program(program, "util-linux")?;
    }
    // One set-up's at a time; and what the servers' folders hold beside that.
    let disks = setups.iter().map(|setup| setup.disks()).max().unwrap_or(0) as u64;
    needs::space(Path::new(PARENT), disks * (u64::from(spec.disk) << 30) + (1 << 29))?;
    if setups.iter().any(|setup| matches!(setup.kind, Kind::Device(_))) {
        replicated_device::check()?;
    }
    Network::new(1).map(drop)
}

/// Starts the servers of a set-up, fills the tables, and runs each load with each number of threads. In the end copies
/// must be equal, and nobody may have fallen back to less than was asked for. Everything is gone when it returns.
pub fn run(setup: Setup, spec: &Spec) -> Result<Run> {
    check(&[setup], spec)?;
    let rig = Rig::start(setup, spec)?;
    let mut bench = Sysbench::find()?;
    bench.tables = spec.tables;
    bench.rows = spec.rows;
    bench.processors = Some(rig::load_processors());
    let socket = rig.writer().config.socket();
    rig.writer().query(&format!("CREATE DATABASE {SYSBENCH_DATABASE}"))?;
    bench.prepare(READ_WRITE, &socket)?;
    let sums = bench.rows_as_one_value();
    rig.catch_up(&sums)?;

    let mut measured = Vec::new();
    let mut written = 0;
    let loads =
        [(READ_ONLY, spec.read_window), (READ_WRITE, spec.write_window), (UPDATE_INDEX, spec.update_window)];
    for (script, window) in loads {
        if script == READ_ONLY && !spec.reading.is_by(setup) {
            continue;
        }
        for threads in &spec.threads {
            let (load, histogram) = bench.run_with_histogram(script, &[&socket], *threads, window)?;
            let (mut caught_up, mut debt) = (None, None);
            if script != READ_ONLY {
                written += load.transactions;
                // No server is still busy with this load when the next one starts.
                let (purged, copied) = std::thread::scope(|scope| {
                    let purged = scope.spawn(|| purge::debt(rig.writer()));
                    let copied = rig.catch_up(&sums);
                    (purged.join(), copied)
                });
                debt = Some(purged.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
                caught_up = copied?;
            }
            measured.push(Measured { script, threads: *threads, load, histogram, caught_up, debt });
        }
    }
    rig.check_promise(written)?;
    Ok(Run {
        version: format!("{}, {}", rig.version()?, bench.version()?),
        measured,
        configurations: rig.configurations()?,
    })
}
