//! `lockstep lab block`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use crate::block::{Load, Machinery, Machines, Protocol, Run, Setup, Spec, check};
use serde_json::json;

use super::drive::{Case, CaseResult, Common, chosen, drive, finish, named};
use super::numbers::{Stat, number, text};
use super::origin::Origin;
use super::page::{Claims, Page, Section, Table, ratio};
use super::results::Results;
use super::svg::{Chart, Lines, Series, Side, variant};

/// Its name.
pub(super) const NAME: &str = "block";
/// Above this part of the host's processors a rate is that of the processors.
const SATURATED: f64 = 0.95;
/// The mark of such a rate.
const SATURATION: &str = " *";
/// The load of a database.
const MARIADB: &str = "mariadb";

/// Options of `lockstep lab block`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Milliseconds to the other machine and back [default: 0,1,10,85; with --quick 0,10].
    #[arg(long, value_delimiter = ',', value_name = "MS", value_parser = clap::value_parser!(u32).range(..=2000))]
    rtt: Vec<u32>,
    /// Requests in flight [default: 1,4,16,64; with --quick 1,16].
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    depths: Vec<u32>,
    /// Seconds of each load [default: 5; with --quick 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: Option<u32>,
    /// Only these set-ups, separated by commas: disk, nbdkit, drbd-a, drbd-b, drbd-c, lockstep-a, lockstep-b, lockstep-c.
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = setup)]
    setups: Vec<Setup>,
    /// Leave MariaDB's load out.
    #[arg(long)]
    no_mariadb: bool,
    /// MiB of the device.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(64..=2048))]
    size: u32,
    /// MiB of our cache of writes (`lockstep block serve --cache`).
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..=512))]
    cache: u32,
    /// The folder of the virtual machines' images, which are made once.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp/lockstep-vm")]
    images: PathBuf,
    /// Run Debian's user-mode-linux, where there is no KVM: the machines' kernels are processes of this machine. System calls
    /// in the machines are slower, and disks use this machine's cache between flushes.
    #[arg(long)]
    user_mode: bool,
    /// Let QEMU emulate the processors, where there is no KVM. It is some ten times slower, and the rates are the emulated
    /// processors' rather than the disks'.
    #[arg(long, conflicts_with = "user_mode")]
    emulated: bool,
    /// The program that the machines run [default: this one].
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

fn setup(name: &str) -> Result<Setup, String> {
    named(&Setup::EACH, Setup::name, name)
}

/// These, or the default.
fn or(given: &[u32], quick: bool, short: &[u32], full: &[u32]) -> Vec<u32> {
    if given.is_empty() { if quick { short } else { full }.to_vec() } else { given.to_vec() }
}

/// Runs the experiment.
pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let common = &args.common;
    let (quick, repeats) = (common.quick, common.repeats());
    let setups = chosen(&args.setups, &Setup::EACH);
    let ours = setups.iter().any(|setup| setup.is_ours());
    let program = args.program.clone().map_or_else(std::env::current_exe, Ok);
    let program = program.map_err(|e| format!("cannot find this program: {e}"))?;
    let absent = no_block(&program);
    let spec = Spec {
        dir: args.images.clone(),
        machinery: match (args.user_mode, args.emulated) {
            (true, _) => Machinery::UserMode,
            (false, true) => Machinery::Emulated,
            (false, false) => Machinery::Kvm,
        },
        program: (ours && absent.is_none()).then(|| program.clone()),
        round_trips: or(&args.rtt, quick, &[0, 10], &[0, 1, 10, 85]),
        depths: or(&args.depths, quick, &[1, 16], &[1, 4, 16, 64]),
        window: Duration::from_secs(args.seconds.unwrap_or(if quick { 3 } else { 5 }).into()),
        size: args.size,
        cache: args.cache,
        threads: if args.no_mariadb { Vec::new() } else { vec![16] },
        away: if quick { 0 } else { 256.min(args.size) },
        failover: true,
    };
    let parameters = json!({ "line": "netem in the machines", "round_trips_ms": spec.round_trips, "depths": spec.depths,
        "seconds_each": spec.window.as_secs(), "repeats": repeats, "device_mib": spec.size, "cache_mib": spec.cache,
        "threads": spec.threads, "mib_written_while_away": spec.away,
        "processors": spec.machinery.what(),
        "set_ups": setups.iter().map(|setup| setup.name()).collect::<Vec<_>>() });
    check(&spec.dir, spec.machinery).map_err(|e| e.to_string())?;
    let machines = Machines::start(&spec).map_err(|e| e.to_string())?;
    let mut folder = common.folder_of(NAME, parameters, Origin::of_guests(&program, &machines.versions)?)?;
    let case = |setup: &Setup| Case {
        setup: setup.name(),
        what: setup.what(),
        seconds: seconds(*setup, &spec),
        absent: absent.clone().filter(|_| setup.is_ours()),
    };
    let cases: Vec<Case> = setups.iter().map(case).collect();
    let failed = drive(&mut folder, &cases, repeats, |case| {
        let run = machines.run(setup(&case.setup)?, &spec).map_err(|e| e.to_string())?;
        Ok(outcome(&run, &machines.versions))
    });
    Ok(finish(&folder, &failed, page))
}

/// Why this program cannot keep a device, if it cannot.
fn no_block(program: &Path) -> Option<String> {
    let mut help = Command::new(program);
    help.args(["block", "serve", "--help"]).stdout(Stdio::null()).stderr(Stdio::null());
    let has = help.status().is_ok_and(|status| status.success());
    (!has).then(|| format!("{} has no command `block serve`", program.display()))
}

/// About how long a run takes.
fn seconds(setup: Setup, spec: &Spec) -> f64 {
    let distances = if setup.is_replicated() { spec.round_trips.len() } else { 1 };
    let loads = 2 * spec.depths.len() + 2 + spec.threads.len();
    let (begin, rest) = match spec.machinery {
        Machinery::Kvm => (1.0, 25.0),
        Machinery::UserMode => (2.0, 60.0),
        Machinery::Emulated => (4.0, 120.0),
    };
    let each = spec.window.as_secs_f64() + begin;
    (distances * loads) as f64 * each + if setup.is_replicated() { rest } else { 5.0 }
}

fn outcome(run: &Run, versions: &str) -> CaseResult {
    let mut outcome = CaseResult {
        version: versions.lines().next().unwrap_or_default().replace('\t', " "),
        ..CaseResult::default()
    };
    for measured in &run.measured {
        let latency = measured.latency;
        outcome.measurements.push(json!({ "load": measured.load, "depth": measured.depth, "round_trip_ms": measured.round_trip,
            "per_s": measured.per_second, "ms_median": latency.median, "ms_95": latency.p95, "ms_99": latency.p99,
            "host_used": measured.host_used }));
    }
    if let Some(time) = run.resync {
        outcome.measurements.push(json!({ "load": "resync", "seconds": time.as_secs_f64() }));
    }
    if let Some(failover) = run.failover {
        outcome.measurements.push(json!({ "load": "failover", "promoted_s": failover.promoted.as_secs_f64(),
            "written_s": failover.written.as_secs_f64() }));
    }
    let of = |load: Load| {
        let found = run.measured.iter().find(|measured| measured.load == load.name());
        found.map_or_else(|| "–".into(), |measured| number(measured.per_second))
    };
    outcome.headline = format!("{} writes/s with fsync, {} without", of(Load::Synced), of(Load::Unsynced));
    outcome
}

/// The repeats of one load at one distance.
fn stat(results: &Results, setup: Setup, load: &str, depth: u64, rtt: u64, field: &str) -> Option<Stat> {
    results
        .stat(&setup.name(), field, |m| m["load"] == load && m["depth"] == depth && m["round_trip_ms"] == rtt)
}

/// A rate, marked where the host's processors were its limit.
fn rate(results: &Results, setup: Setup, load: &str, depth: u64, rtt: u64) -> String {
    let used = stat(results, setup, load, depth, rtt, "host_used").map_or(0.0, |used| used.median);
    let mark = if used > SATURATED { SATURATION } else { "" };
    format!("{}{mark}", text(stat(results, setup, load, depth, rtt, "per_s")))
}

fn side(setup: Setup) -> Side {
    match setup {
        Setup::Lockstep(_) => Side::Lockstep,
        Setup::Drbd(_) => Side::Galera,
        Setup::Disk | Setup::Nbdkit => Side::MariaDb,
    }
}

/// The report, from results alone.
pub(super) fn page(results: &Results) -> Page {
    let names = results.setups();
    let setups: Vec<Setup> =
        Setup::EACH.into_iter().filter(|setup| names.contains(&setup.name().as_str())).collect();
    let rtts = results.counts("round_trips_ms", "round_trip_ms");
    let depths = results.counts("depths", "depth");
    let mut sections = Vec::new();
    for load in [Load::Synced, Load::Unsynced] {
        for rtt in &rtts {
            sections.push(rates(results, &setups, load, &depths, *rtt));
        }
    }
    sections.push(latencies(results, &setups, &depths, &rtts));
    sections.push(others(results, &setups, &rtts));
    sections.push(times(results, &setups));
    sections.push(claims(results));
    let processors = results.about["parameters"]["processors"].as_str().unwrap_or("–");
    let lead = vec![
        format!(
            "Two virtual machines with one processor each ({processors}) and Debian's kernel have a disk each and a link \
             between them. DRBD 8.4 replicates the disk; or `lockstep block` does, with a file system on the disk, the \
             kernel's NBD client on the primary, and an arbitrator beside the replica. The disks are files of the host without \
             its page cache; flushes reach the host's disk."
        ),
        format!(
            "DRBD's protocol C waits for the other disk at each write. Ours waits at each flush, and answers other writes from \
             memory: rates without fsync compare these promises, not the same one. A rate with{SATURATION} was limited by the \
             host's processors, of which more than {} % were in use.",
            number(100.0 * SATURATED)
        ),
    ];
    Page { title: "A replicated block device".into(), lead, sections }
}

fn heading(load: Load, rtt: u64) -> String {
    let what = match load {
        Load::Synced => "4 KiB writes, each with fsync",
        _ => "4 KiB writes without fsync",
    };
    if rtt == 0 { format!("{what}, near") } else { format!("{what}, {rtt} ms away") }
}

fn rates(results: &Results, setups: &[Setup], load: Load, depths: &[u64], rtt: u64) -> Section {
    let mut head = vec!["writes/s by requests in flight".to_owned()];
    head.extend(depths.iter().map(u64::to_string));
    let mut table = Table { head, rows: Vec::new() };
    let mut series = Vec::new();
    for setup in setups.iter().filter(|setup| rtt == 0 || setup.is_replicated()) {
        let cells = depths.iter().map(|depth| rate(results, *setup, load.name(), *depth, rtt));
        table.row(std::iter::once(setup.what()).chain(cells));
        let point = |depth: &u64| {
            let stat = stat(results, *setup, load.name(), *depth, rtt, "per_s")?;
            Some((*depth as f64, stat.median, stat.deviation))
        };
        series.push(Series {
            name: setup.what(),
            side: side(*setup),
            variant: variant(&Setup::EACH, side, *setup),
            points: depths.iter().filter_map(point).collect(),
            level: false,
        });
    }
    let heading = heading(load, rtt);
    let chart = Chart::Lines(Lines {
        title: heading.clone(),
        x: "requests in flight (logarithmic)".into(),
        y: "writes/s".into(),
        x_log: true,
        y_log: true,
        series,
    });
    Section { heading, chart: Some(chart), table, notes: vec![results.repeats_text()], ..Section::default() }
}

fn latencies(results: &Results, setups: &[Setup], depths: &[u64], rtts: &[u64]) -> Section {
    let depth = depths.first().copied().unwrap_or(1);
    let mut table =
        Table::new(&["ms", "away, ms", "write and fsync, mean", "the fsync: median", "95 %", "99 %"]);
    for setup in setups {
        for rtt in rtts.iter().filter(|rtt| **rtt == 0 || setup.is_replicated()) {
            let of = |field| stat(results, *setup, Load::Synced.name(), depth, *rtt, field);
            let cell = |field| of(field).map_or_else(|| "–".into(), |stat| stat.median_text());
            // In a closed loop, mean time = requests in flight / rate.
            let mean = of("per_s").map_or_else(
                || "–".into(),
                |stat| format!("{}{}", number(1e3 * depth as f64 / stat.median), stat.doubt()),
            );
            let cells = ["ms_median", "ms_95", "ms_99"].map(cell);
            table.row([setup.what(), rtt.to_string(), mean].into_iter().chain(cells));
        }
    }
    Section {
        heading: "How long a write with fsync takes".into(),
        text: format!(
            "With {depth} in flight. DRBD's protocol C waits for the other machine in the write, ours in the fsync: compare the \
             sum."
        ),
        table,
        ..Section::default()
    }
}

fn others(results: &Results, setups: &[Setup], rtts: &[u64]) -> Section {
    let mut table = Table::new(&[
        "per second",
        "away, ms",
        "sequential writes, 128 KiB",
        "mixed, 4 KiB",
        "MariaDB transactions",
    ]);
    for setup in setups {
        for rtt in rtts.iter().filter(|rtt| **rtt == 0 || setup.is_replicated()) {
            let cell = |load: &str| {
                let name = setup.name();
                let depths = results.measurements(&name).filter(|m| m["load"] == load);
                let depth = depths.filter_map(|m| m["depth"].as_u64()).next().unwrap_or(0);
                rate(results, *setup, load, depth, *rtt)
            };
            let cells = [Load::Sequential.name(), Load::Mixed.name(), MARIADB].map(cell);
            table.row([setup.what(), rtt.to_string()].into_iter().chain(cells));
        }
    }
    Section {
        heading: "Other loads".into(),
        text: "MariaDB is on ext4 on the device, flushes its log at each commit, and runs sysbench's oltp_write_only with 16 \
               threads."
            .into(),
        table,
        ..Section::default()
    }
}

fn times(results: &Results, setups: &[Setup]) -> Section {
    let mut table = Table::new(&["seconds", "until promoted", "until a new client has written", "resync"]);
    for setup in setups.iter().filter(|setup| setup.is_replicated()) {
        let cell = |field| text(results.stat(&setup.name(), field, |_| true));
        table.row([setup.what(), cell("promoted_s"), cell("written_s"), cell("seconds")]);
    }
    Section {
        heading: "When a machine is lost, or returns".into(),
        text: "The primary's machine is switched off. From then, the replica's machine tries ten times a second to become \
               primary. DRBD does that alone; ours needs the arbitrator. Resync: from the replica's return until it has \
               everything that was written meanwhile."
            .into(),
        table,
        ..Section::default()
    }
}

/// The claims, beside the measurements.
fn claims(results: &Results) -> Section {
    let mut claims = Claims::new("claim");
    let median = |setup: Setup, load: &str, depth: u64, rtt: u64| {
        results.median(&setup.name(), "per_s", |m| {
            m["load"] == load && m["depth"] == depth && m["round_trip_ms"] == rtt
        })
    };
    let (ours, drbd) = (Setup::Lockstep(Protocol::C), Setup::Drbd(Protocol::C));
    let against =
        |load: &str, depth, rtt| ratio(median(ours, load, depth, rtt), median(drbd, load, depth, rtt));
    let fio = results.counts("depths", "depth");
    claims.at_least("MariaDB, 16 threads, near, C against DRBD's C", 1.0, against(MARIADB, 16, 0));
    claims.at_least("the same 10 ms away", 3.0, against(MARIADB, 16, 10));
    for depth in &fio {
        let what = format!("4 KiB writes with fsync, {depth} in flight, near, C against DRBD's C");
        claims.at_least(what, 0.8, against(Load::Synced.name(), *depth, 0));
    }
    for depth in &fio {
        let what = format!("4 KiB writes without fsync, {depth} in flight, 10 ms away, C against DRBD's C");
        claims.at_least(what, 10.0, against(Load::Unsynced.name(), *depth, 10));
    }
    for depth in fio.iter().filter(|depth| **depth <= 4) {
        let load = Load::Synced.name();
        let part = ratio(median(ours, load, *depth, 0), median(Setup::Nbdkit, load, *depth, 0));
        claims.at_least(
            format!("4 KiB writes with fsync, {depth} in flight, near, C against nbdkit"),
            0.7,
            part,
        );
    }
    let promoted = results.median(&ours.name(), "promoted_s", |_| true);
    claims.at_most("failover, C: seconds until the replica is promoted", 2.5, promoted);
    claims.section(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let of = |setup: &str, per_s: f64, used: f64| {
            json!({ "setup": setup, "repeat": 1, "measurements": [
                { "load": "write-fsync", "depth": 1, "round_trip_ms": 0, "per_s": per_s, "ms_median": 1.5, "host_used": used },
                { "load": "write", "depth": 1, "round_trip_ms": 10, "per_s": 10.0 * per_s, "host_used": 0.5 },
                { "load": "failover", "promoted_s": 1.25, "written_s": 1.5 } ] })
        };
        Results {
            about: json!({ "experiment": NAME, "repeats": 1,
                "parameters": { "depths": [1], "round_trips_ms": [0, 10], "processors": "KVM" },
                "plan": [{ "setup": "drbd-c", "what": "x" }, { "setup": "lockstep-c", "what": "y" }] }),
            runs: vec![of("drbd-c", 100.0, 0.99), of("lockstep-c", 90.0, 0.5)],
            failed: Vec::new(),
            config: Vec::new(),
        }
    }

    #[test]
    fn report_compares_the_two_and_marks_saturated_rates() {
        let results = results();
        let text = page(&results).text(&results);
        let row = |begin: &str| {
            let line = text.lines().find(|line| line.starts_with(begin)).unwrap_or_default();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        for (begin, end) in [
            ("DRBD, protocol C", "C 100 *"),
            ("Lockstep, protocol C", "C 90.0"),
            ("4 KiB writes with fsync, 1 in flight, near, C against DRBD", "0.900 met"),
            ("4 KiB writes without fsync, 1 in flight, 10 ms", "0.900 MISSED"),
            ("failover, C", "1.25 met"),
        ] {
            assert!(row(begin).ends_with(end), "{begin}: {}", row(begin));
        }
        assert!(row("MariaDB, 16 threads, near").contains("not measured"), "{text}");
    }

    #[test]
    fn program_without_the_command_is_named() {
        assert!(no_block(Path::new("/bin/false")).unwrap().contains("/bin/false"));
        assert_eq!(no_block(Path::new("/bin/true")), None);
    }
}
