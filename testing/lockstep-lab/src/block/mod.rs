//! A replicated block device between two virtual machines: DRBD, and ours, on the same disks and the same line.

mod guests;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockstep_local::{LocalError, Result};
use serde_json::Value;

use crate::machine::machine_cpu_time;
pub use guests::Machinery;
use guests::{Guest, Guests, Scripts};

/// The device that the loads write to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setup {
    /// The data disk of the primary itself.
    Disk,
    /// A file on it, served by nbdkit to the kernel's NBD client: no replication.
    Nbdkit,
    /// DRBD by one of its protocols.
    Drbd(Protocol),
    /// `lockstep block` by one of its protocols, with the kernel's NBD client.
    Lockstep(Protocol),
}

/// When a write or a flush counts as replicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Once it is on its way.
    A,
    /// Once the other machine has received it.
    B,
    /// Once it is on the other machine's disk.
    C,
}

impl Protocol {
    fn letter(self) -> &'static str {
        match self {
            Protocol::A => "a",
            Protocol::B => "b",
            Protocol::C => "c",
        }
    }
}

impl Setup {
    /// All of them.
    pub const EACH: [Setup; 8] = [
        Setup::Disk,
        Setup::Nbdkit,
        Setup::Drbd(Protocol::A),
        Setup::Drbd(Protocol::B),
        Setup::Drbd(Protocol::C),
        Setup::Lockstep(Protocol::A),
        Setup::Lockstep(Protocol::B),
        Setup::Lockstep(Protocol::C),
    ];

    /// As in results.
    pub fn name(self) -> String {
        match self {
            Setup::Disk => "disk".into(),
            Setup::Nbdkit => "nbdkit".into(),
            Setup::Drbd(protocol) => format!("drbd-{}", protocol.letter()),
            Setup::Lockstep(protocol) => format!("lockstep-{}", protocol.letter()),
        }
    }

    /// In words.
    pub fn what(self) -> String {
        let letter = |protocol: Protocol| protocol.letter().to_uppercase();
        match self {
            Setup::Disk => "the disk alone".into(),
            Setup::Nbdkit => "nbdkit, not replicated".into(),
            Setup::Drbd(protocol) => format!("DRBD, protocol {}", letter(protocol)),
            Setup::Lockstep(protocol) => format!("Lockstep, protocol {}", letter(protocol)),
        }
    }

    /// Whether another machine has a copy.
    pub fn is_replicated(self) -> bool {
        matches!(self, Setup::Drbd(_) | Setup::Lockstep(_))
    }

    /// Whether it is ours.
    pub fn is_ours(self) -> bool {
        matches!(self, Setup::Lockstep(_))
    }
}

/// The parameters of the experiment.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The folder of images and sockets.
    pub dir: PathBuf,
    /// What runs the guests' kernels.
    pub machinery: Machinery,
    /// Our program, as the guests run it.
    pub program: Option<PathBuf>,
    /// Milliseconds to the other machine and back.
    pub round_trips: Vec<u32>,
    /// How many requests are in flight.
    pub depths: Vec<u32>,
    /// The time of each load.
    pub window: Duration,
    /// MiB of the device.
    pub size: u32,
    /// MiB of our cache of writes.
    pub cache: u32,
    /// Threads of sysbench's `oltp_write_only`; none: MariaDB is not measured.
    pub threads: Vec<u32>,
    /// MiB that are written while the replica is away; 0: not measured.
    pub away: u32,
    /// Whether the primary is switched off at the end.
    pub failover: bool,
}

/// A load of fio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Random writes of 4 KiB, each followed by fsync: as many threads as requests in flight.
    Synced,
    /// The same without fsync, by asynchronous I/O.
    Unsynced,
    /// Sequential writes of 128 KiB, without fsync.
    Sequential,
    /// Random reads and writes of 4 KiB, seven to three, without fsync.
    Mixed,
}

impl Load {
    /// All of them.
    pub const EACH: [Load; 4] = [Load::Synced, Load::Unsynced, Load::Sequential, Load::Mixed];

    /// As in results.
    pub fn name(self) -> &'static str {
        match self {
            Load::Synced => "write-fsync",
            Load::Unsynced => "write",
            Load::Sequential => "sequential",
            Load::Mixed => "mixed",
        }
    }

    fn arguments(self, depth: u32, size: u32, window: Duration) -> String {
        let engine = match self {
            Load::Synced => {
                format!("--rw=randwrite --bs=4k --ioengine=psync --fsync=1 --thread --numjobs={depth}")
            }
            Load::Unsynced => format!("--rw=randwrite --bs=4k --ioengine=libaio --iodepth={depth}"),
            Load::Sequential => format!("--rw=write --bs=128k --ioengine=libaio --iodepth={depth}"),
            Load::Mixed => format!("--rw=randrw --rwmixread=70 --bs=4k --ioengine=libaio --iodepth={depth}"),
        };
        format!("fio {engine} --size={size}m --time_based --runtime={}", window.as_secs())
    }
}

/// Milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Latency {
    /// Half of the requests took no longer.
    pub median: f64,
    /// 95 of a hundred.
    pub p95: f64,
    /// 99 of a hundred.
    pub p99: f64,
}

/// The result of a load.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The load: a name of [`Load`]'s, or `mariadb`.
    pub load: &'static str,
    /// Requests in flight, or sysbench's threads.
    pub depth: u32,
    /// Milliseconds to the other machine and back.
    pub round_trip: u32,
    /// Writes (and reads) per second; transactions per second of MariaDB.
    pub per_second: f64,
    /// Of the fsyncs, where each write has one; else of the requests.
    pub latency: Latency,
    /// The part of the host's processors in use meanwhile, 0 to 1.
    pub host_used: f64,
}

/// The time from the loss of the primary's machine.
#[derive(Debug, Clone, Copy)]
pub struct Failover {
    /// Until the other one was promoted: detection and promotion.
    pub promoted: Duration,
    /// Until a new client there had written and flushed.
    pub written: Duration,
}

/// The result of one run of a set-up.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// The loads.
    pub measured: Vec<Measured>,
    /// How long the replica took to be up to date again after `Spec::away`.
    pub resync: Option<Duration>,
    /// How long a failover took.
    pub failover: Option<Failover>,
}

/// The machines of an experiment: they stay for all set-ups.
#[derive(Debug)]
pub struct Machines {
    guests: Guests,
    /// The packages' versions.
    pub versions: String,
    program: Option<PathBuf>,
}

/// Whether two virtual machines can run here.
///
/// # Errors
/// Why not.
pub fn check(dir: &Path, machinery: Machinery) -> Result<()> {
    Scripts::new(dir, machinery)?.check()
}

impl Machines {
    /// Makes the images if there are none, and boots both machines.
    ///
    /// # Errors
    /// They could not be made, or do not start.
    pub fn start(spec: &Spec) -> Result<Machines> {
        let scripts = Scripts::new(&spec.dir, spec.machinery)?;
        scripts.build()?;
        let program = spec.program.as_deref().map(|program| stripped(program, &spec.dir));
        let guests = Guests::start(&scripts, program.as_deref())?;
        Ok(Machines { guests, versions: scripts.versions()?, program })
    }

    /// Runs the loads on a set-up, and clears it away.
    ///
    /// # Errors
    /// A command in a machine failed.
    pub fn run(&self, setup: Setup, spec: &Spec) -> Result<Run> {
        self.guests.run_both("clear")?;
        self.guests.run_both("delay 0")?;
        self.make(setup, spec)?;
        let mut run = Run::default();
        for round_trip in &spec.round_trips {
            if *round_trip > 0 && !setup.is_replicated() {
                continue;
            }
            // Half of it each way; netem takes fractions.
            self.guests.run_both(&format!("delay {}", f64::from(*round_trip) / 2.0))?;
            self.measure(spec, *round_trip, &mut run)?;
        }
        if setup.is_replicated() {
            self.guests.run_both("delay 0")?;
            if spec.away > 0 {
                run.resync = Some(self.resync(setup, spec)?);
            }
            if spec.failover {
                run.failover = Some(self.fail_over(setup)?);
            }
        }
        // The next run begins with the same: a failure here spoils no result.
        let _ = self.guests.run_both("clear");
        Ok(run)
    }

    fn make(&self, setup: Setup, spec: &Spec) -> Result<()> {
        let on_a = |command: &str| self.guests.run(Guest::A, command).map(drop);
        match setup {
            Setup::Disk => on_a("raw"),
            Setup::Nbdkit => on_a(&format!("nbdkit {}", spec.size)),
            Setup::Drbd(protocol) => {
                self.guests.run_both(&format!("drbd-create {}", protocol.letter().to_uppercase()))?;
                on_a("drbd-first")
            }
            Setup::Lockstep(protocol) => {
                let start = format!("lockstep-start {} {} {}M", protocol.letter(), spec.size, spec.cache);
                on_a(&start)?;
                self.guests.run(Guest::B, &start)?;
                on_a("lockstep-first")
            }
        }
    }

    fn measure(&self, spec: &Spec, round_trip: u32, run: &mut Run) -> Result<()> {
        let most = spec.depths.iter().copied().max().unwrap_or(1).min(16);
        for load in Load::EACH {
            let depths: &[u32] = match load {
                Load::Synced | Load::Unsynced => &spec.depths,
                Load::Sequential | Load::Mixed => &[most],
            };
            for depth in depths {
                let arguments = load.arguments(*depth, spec.size, spec.window);
                let (text, host_used) = watched(|| self.guests.run(Guest::A, &arguments))?;
                let (per_second, latency) = of_fio(&text, load)?;
                run.measured.push(Measured {
                    load: load.name(),
                    depth: *depth,
                    round_trip,
                    per_second,
                    latency,
                    host_used,
                });
            }
        }
        for threads in &spec.threads {
            let command = format!("mariadb {threads} {}", spec.window.as_secs());
            // The first run makes the tables.
            if spec.round_trips.first() == Some(&round_trip) && spec.threads.first() == Some(threads) {
                self.guests.run(Guest::A, "mariadb 1 1")?;
            }
            let (text, host_used) = watched(|| self.guests.run(Guest::A, &command))?;
            let (per_second, latency) = of_sysbench(&text)?;
            let depth = *threads;
            run.measured.push(Measured {
                load: "mariadb",
                depth,
                round_trip,
                per_second,
                latency,
                host_used,
            });
        }
        Ok(())
    }

    /// Takes the replica away, writes elsewhere, and waits until it has everything again.
    fn resync(&self, setup: Setup, spec: &Spec) -> Result<Duration> {
        let kind = if setup.is_ours() { "lockstep" } else { "drbd" };
        self.guests.run(Guest::B, &format!("{kind}-leave"))?;
        let write = format!(
            "fio --rw=write --bs=128k --ioengine=libaio --iodepth=4 --end_fsync=1 --size={}m",
            spec.away
        );
        self.guests.run(Guest::A, &write)?;
        let target = if setup.is_ours() { self.guests.run(Guest::A, "seqno")? } else { String::new() };
        let began = Instant::now();
        self.guests.run(Guest::B, &format!("{kind}-return {}", target.trim()))?;
        Ok(began.elapsed())
    }

    fn fail_over(&self, setup: Setup) -> Result<Failover> {
        let kind = if setup.is_ours() { "lockstep" } else { "drbd" };
        let lines = ["promoted", "written"];
        let times =
            self.guests.times_of(Guest::B, &format!("{kind}-take"), &lines, || self.guests.kill(Guest::A));
        self.guests.restart(Guest::A, self.program.as_deref())?;
        match times?[..] {
            [promoted, written] => Ok(Failover { promoted, written }),
            _ => Err(LocalError::Value("a failover has two times".into())),
        }
    }
}

/// Without symbols it is copied faster. The program itself where it cannot be stripped.
fn stripped(program: &Path, dir: &Path) -> PathBuf {
    let to = dir.join("lockstep");
    let done = std::process::Command::new("strip").arg("-o").arg(&to).arg(program).status();
    if done.is_ok_and(|status| status.success()) { to } else { program.to_owned() }
}

/// Runs this, and tells which part of the host's processors was in use.
pub(crate) fn watched<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let (began, before) = (Instant::now(), machine_cpu_time()?);
    let result = work()?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let used = machine_cpu_time()?.saturating_sub(before).as_secs_f64();
    Ok((result, used / (began.elapsed().as_secs_f64() * processors)))
}

/// Requests per second and latency from fio's JSON, before which fio may print notes.
fn of_fio(text: &str, load: Load) -> Result<(f64, Latency)> {
    let none = || {
        LocalError::Value(format!("fio has printed no results: {}", text.lines().next().unwrap_or_default()))
    };
    let json = text.find('{').map(|at| &text[at..]).ok_or_else(none)?;
    let all: Value = serde_json::from_str(json).map_err(|_| none())?;
    let job = &all["jobs"][0];
    let rate = |side: &str| job[side]["iops"].as_f64().unwrap_or(0.0);
    let times = match load {
        Load::Synced => &job["sync"]["lat_ns"]["percentile"],
        _ => &job["write"]["clat_ns"]["percentile"],
    };
    let ms = |percentile: &str| times[percentile].as_f64().map(|ns| ns / 1e6);
    let latency =
        (|| Some(Latency { median: ms("50.000000")?, p95: ms("95.000000")?, p99: ms("99.000000")? }))();
    Ok((rate("write") + rate("read"), latency.ok_or_else(none)?))
}

/// Transactions per second and latency from sysbench's report; it has but one percentile.
fn of_sysbench(text: &str) -> Result<(f64, Latency)> {
    let number = |name: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(name))?;
        let rest = line.split_once(['(', ':'])?.1;
        rest.split(|c: char| c != '.' && !c.is_ascii_digit()).find_map(|word| word.parse::<f64>().ok())
    };
    let rate = text.lines().find(|line| line.trim_start().starts_with("transactions:"));
    let rate = rate.and_then(|line| line.split_once('(')?.1.split_whitespace().next()?.parse::<f64>().ok());
    match (rate, number("avg:"), number("99th percentile:")) {
        (Some(rate), Some(average), Some(p99)) => Ok((rate, Latency { median: average, p95: f64::NAN, p99 })),
        _ => Err(LocalError::Value("sysbench has printed no results".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_results_are_read() {
        let text = r#"note: both iodepth >= 1 and synchronous I/O engine are selected
            {"jobs":[{"write":{"iops":250.5,"clat_ns":{"percentile":{"50.000000":1000000,"95.000000":2000000,"99.000000":4000000}}},
            "read":{"iops":0},"sync":{"lat_ns":{"percentile":{"50.000000":3000000,"95.000000":3000000,"99.000000":5000000}}}}]}"#;
        let (rate, latency) = of_fio(text, Load::Unsynced).unwrap();
        assert_eq!((rate, latency), (250.5, Latency { median: 1.0, p95: 2.0, p99: 4.0 }));
        assert_eq!(of_fio(text, Load::Synced).unwrap().1, Latency { median: 3.0, p95: 3.0, p99: 5.0 });
        assert!(of_fio("fio: cannot open", Load::Mixed).unwrap_err().to_string().contains("cannot open"));
        assert!(of_fio("{}", Load::Mixed).is_err());
    }

    #[test]
    fn sysbench_results_are_read() {
        let text = "    transactions:                        1043   (208.31 per sec.)\n\
                    Latency (ms):\n         min:        1.20\n         avg:        4.79\n         99th percentile:   12.08\n";
        let (rate, latency) = of_sysbench(text).unwrap();
        assert_eq!((rate, latency.median, latency.p99), (208.31, 4.79, 12.08));
        assert!(of_sysbench("FATAL: x").is_err());
    }

    #[test]
    fn setups_have_names_of_their_own() {
        let names: std::collections::BTreeSet<String> = Setup::EACH.iter().map(|s| s.name()).collect();
        assert_eq!(names.len(), Setup::EACH.len());
        assert!(names.contains("drbd-c") && names.contains("lockstep-a"));
    }

    #[test]
    fn each_load_has_its_own_engine_and_depth() {
        let window = Duration::from_secs(5);
        assert!(
            Load::Synced.arguments(16, 512, window).contains("--fsync=1 --thread --numjobs=16 --size=512m ")
        );
        assert!(Load::Unsynced.arguments(4, 512, window).contains("--iodepth=4"));
    }
}
