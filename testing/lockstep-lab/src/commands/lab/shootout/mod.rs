//! `lockstep lab shootout`.

mod claims;
mod lasting;
mod post;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::shootout::{self, Kind, Measured, READ_ONLY, READ_WRITE, Reading, Run, Setup, Spec, UPDATE_INDEX};
use serde_json::json;

use super::caught_up::{CAUGHT_UP, CAUGHT_UP_HEADING, CAUGHT_UP_TEXT};
use super::drive::{Case, CaseResult, Common, chosen, drive, finish, named};
use super::numbers::{Stat, number, text};
use super::page::{Page, Section, Table};
use super::results::Results;
use super::semi_sync_wan::wait_point;
use super::svg::{Bar, Bars, Chart, Lines, Series, Side, variant};

/// Its name.
pub(super) const NAME: &str = "shootout";
/// The bars are of so many threads.
const PROFILE: u64 = 64;

/// The writer's purge backlog at the end of a load: transactions, seconds to purge them, and the load's rate if that time
/// counts.
const UNPURGED: &str = "transactions_to_purge_at_the_end";
const PAID: &str = "seconds_until_they_were_purged";
const PURGED_RATE: &str = "requests_per_s_purge_included";

/// The parameter that says whether all set-ups read.
const READ_BY_ALL: &str = "read_only_by_all";

/// Options of `lockstep lab shootout`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Only these set-ups, separated by commas, by their names in results: ext4, xfs, no-binlog, mariadb-semi-sync,
    /// galera, lockstep-semisync-innodb-0, ...
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = setup)]
    setups: Vec<Setup>,
    /// How long each number of threads is measured, in seconds [default: 10 reading only, 30 reading and writing, 15
    /// updating; with --quick 1, 2 and 2].
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: Option<u64>,
    /// Only these numbers of threads, separated by commas [default: 16,64,128,256,512; with --quick 16,64].
    #[arg(long, value_delimiter = ',', value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=512))]
    threads: Vec<u32>,
    /// How much longer an fsync takes on the slow disk, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(..=1000))]
    slow: u64,
    /// The provider that costs nothing [default: liblockstep_floor.so beside this program].
    #[arg(long, value_name = "FILE")]
    floor: Option<PathBuf>,
}

/// The file of the provider that costs nothing, made by the crate of that name.
const FLOOR: &str = "liblockstep_floor.so";

impl Args {
    /// Its path, whether it exists or not.
    fn floor(&self) -> PathBuf {
        let beside = || std::env::current_exe().unwrap_or_default().with_file_name(FLOOR);
        self.floor.clone().unwrap_or_else(beside)
    }
}

/// Why a server with it cannot be measured, if it cannot.
fn no_floor(floor: &Path) -> Option<String> {
    let hint = "cargo build --release -p lockstep-floor makes it";
    (!floor.is_file()).then(|| format!("there is no {}: {hint}", floor.display()))
}

/// Each once, the fewest first: a load finds what the ones before have left.
fn rising(counts: &[u32]) -> Vec<u32> {
    let mut counts = counts.to_vec();
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn setup(name: &str) -> Result<Setup, String> {
    named(&Setup::EACH, Setup::name, name)
}

/// Runs the experiment.
pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let common = &args.common;
    let setups = chosen(&args.setups, &Setup::EACH);
    let repeats = common.repeats();
    let small = Spec {
        provider: common.provider()?,
        floor: args.floor(),
        galera: common.galera.clone(),
        lockstep: std::env::current_exe().ok(),
        tables: 4,
        rows: 10_000,
        threads: vec![16, 64],
        read_window: Duration::from_secs(1),
        write_window: Duration::from_secs(2),
        update_window: Duration::from_secs(2),
        pools: [128, 512],
        disk: 2,
        slow: Duration::from_millis(args.slow),
        reading: Reading::Distinct,
    };
    let spec = match common.quick {
        true => small,
        false => Spec {
            rows: 250_000,
            threads: vec![16, 64, 128, 256, 512],
            read_window: Duration::from_secs(10),
            write_window: Duration::from_secs(30),
            update_window: Duration::from_secs(15),
            pools: [512, 2048],
            disk: 6,
            reading: Reading::All,
            ..small
        },
    };
    let spec = match args.threads.as_slice() {
        [] => spec,
        given => Spec { threads: rising(given), ..spec },
    };
    let spec = match args.seconds.map(Duration::from_secs) {
        Some(each) => {
            // 6 GiB are enough for the five numbers of threads that write for 45 s each.
            let writing = 2 * each.as_secs() as u32 * spec.threads.len() as u32;
            let disk = spec.disk.max((6 * writing).div_ceil(225));
            Spec { read_window: each, write_window: each, update_window: each, disk, ..spec }
        }
        None => spec,
    };
    let parameters = json!({ "repeats": repeats, "tables": spec.tables, "rows_of_each": spec.rows,
        "threads": spec.threads, "seconds_each_read_only": spec.read_window.as_secs(),
        READ_BY_ALL: spec.reading == Reading::All,
        "seconds_each_read_write": spec.write_window.as_secs(),
        "seconds_each_update_index": spec.update_window.as_secs(), "buffer_pools_MiB": spec.pools,
        "file_system_GiB": spec.disk, "slow_disk_adds_ms": args.slow,
        "set_ups": setups.iter().map(|setup| setup.name()).collect::<Vec<_>>() });
    shootout::check(&setups, &spec).map_err(|e| e.to_string())?;
    let mut folder = common.folder(NAME, parameters)?;
    let writes = (spec.write_window + spec.update_window).as_secs_f64() + 1.0;
    let filling = f64::from(spec.tables * spec.rows) / 50_000.0;
    let seconds = |setup: Setup| {
        let start = match setup.kind {
            Kind::Alone => 3.0,
            Kind::SemiSync => 5.0,
            Kind::Floor => 6.0,
            Kind::Ingest | Kind::Galera | Kind::Lockstep(_) => 9.0,
            Kind::Device(_) => 12.0,
        };
        let reads = if spec.reading.is_by(setup) { spec.read_window.as_secs_f64() + 0.5 } else { 0.0 };
        start + filling + (reads + writes) * spec.threads.len() as f64
    };
    let case = |s: &Setup| Case {
        setup: s.name().into(),
        what: s.what().into(),
        seconds: seconds(*s),
        absent: match s.kind {
            Kind::Galera => common.no_galera(),
            Kind::Floor => no_floor(&spec.floor),
            _ => None,
        },
    };
    let mut turns = setups.clone();
    turns.sort_by_key(|setup| setup.turn());
    let cases: Vec<Case> = turns.iter().map(case).collect();
    let failed = drive(&mut folder, &cases, repeats, |case| {
        let run = shootout::run(setup(&case.setup)?, &spec).map_err(|e| e.to_string())?;
        Ok(outcome(&run))
    });
    Ok(finish(&folder, &failed, page))
}

fn outcome(run: &Run) -> CaseResult {
    let measurement = |m: &Measured| {
        let mut measurement = json!({ "script": m.script, "threads": m.threads,
            "transactions": m.load.transactions, "transactions_per_s": m.load.per_second,
            "requests_per_s": m.load.requests_per_second, "ms_min": m.load.min_ms, "ms_avg": m.load.avg_ms,
            "ms_95": m.load.p95_ms, "ms_max": m.load.max_ms, "conflicts": m.load.errors });
        if let Some(time) = m.caught_up {
            measurement[CAUGHT_UP] = time.as_secs_f64().into();
        }
        if let Some(debt) = m.debt {
            measurement[UNPURGED] = debt.transactions.into();
            measurement[PAID] = debt.paid.as_secs_f64().into();
            measurement[PURGED_RATE] =
                lasting::lasting(&measurement, debt.paid.as_secs_f64()).unwrap_or(0.0).into();
        }
        measurement
    };
    let sample =
        |m: &Measured| json!({ "script": m.script, "threads": m.threads, "ms_and_count": m.histogram.0 });
    let writes = run.measured.iter().filter(|m| m.script == READ_WRITE);
    let rates = writes.map(|m| format!("{} by {}", number(m.load.requests_per_second), m.threads));
    CaseResult {
        version: run.version.clone(),
        measurements: run.measured.iter().map(measurement).collect(),
        samples: run.measured.iter().map(sample).collect(),
        configurations: run.configurations.clone(),
        headline: format!("{} requests/s", rates.collect::<Vec<_>>().join(", ")),
        ..CaseResult::default()
    }
}

fn stat(results: &Results, setup: &str, script: &str, threads: u64, field: &str) -> Option<Stat> {
    results.stat(setup, field, |m| m["script"] == script && m["threads"] == threads)
}

/// "2.25 / 10.4 / 30.9": the shortest, the average, and what 95 % stayed below.
fn times(results: &Results, setup: &str, script: &str, threads: u64) -> String {
    let parts = ["ms_min", "ms_avg", "ms_95"].map(|field| stat(results, setup, script, threads, field));
    match parts {
        [Some(min), Some(avg), Some(most)] => [min, avg, most].map(|s| number(s.median)).join(" / "),
        _ => "–".into(),
    }
}

fn side(setup: Setup) -> Side {
    match setup.kind {
        Kind::Alone | Kind::SemiSync | Kind::Ingest | Kind::Floor => Side::MariaDb,
        Kind::Galera => Side::Galera,
        Kind::Lockstep(_) | Kind::Device(_) => Side::Lockstep,
    }
}

/// The report, from results alone.
pub(super) fn page(results: &Results) -> Page {
    let ran = results.setups();
    let setups: Vec<Setup> = Setup::EACH.into_iter().filter(|setup| ran.contains(&setup.name())).collect();
    let threads = results.counts("threads", "threads");
    let mut sections = vec![
        rates(results, &setups, &threads, READ_WRITE, "Reading and writing"),
        latencies(
            results,
            &setups,
            &threads,
            READ_WRITE,
            "How long a transaction takes that reads and writes",
        ),
    ];
    let single = |setup: &Setup| !setup.kind.is_copied() && setup.kind != Kind::Ingest;
    let copied = |setup: &Setup| !single(setup) || ["xfs", "no-binlog-innodb-0"].contains(&setup.name());
    for (heading, chosen) in [
        ("With rising numbers of threads: one server", &single as &dyn Fn(&Setup) -> bool),
        ("With rising numbers of threads: two servers, and one for comparison", &copied),
    ] {
        let setups: Vec<Setup> = setups.iter().copied().filter(|setup| chosen(setup)).collect();
        if threads.len() > 1 && !setups.is_empty() {
            sections.push(lines(results, &setups, &threads, heading));
        }
    }
    sections.push(rates(results, &setups, &threads, UPDATE_INDEX, "Nothing but commits"));
    sections.push(latencies(
        results,
        &setups,
        &threads,
        UPDATE_INDEX,
        "How long a transaction of one update takes",
    ));
    for (script, heading) in
        [(READ_WRITE, "after reading and writing"), (UPDATE_INDEX, "after nothing but commits")]
    {
        sections.extend(catching_up(results, &setups, &threads, script, heading));
    }
    sections.push(lasting::purging(results, &setups, &threads));
    sections.push(lasting::keeping_up(results, &setups, &threads));
    let all = results.about["parameters"][READ_BY_ALL] != false;
    let reading = if all { Reading::All } else { Reading::Distinct };
    let setups: Vec<Setup> = setups.into_iter().filter(|setup| reading.is_by(*setup)).collect();
    let mut only = rates(results, &setups, &threads, READ_ONLY, "Reading only");
    if !all {
        only.text = "With --quick those are left out that differ from others by what they flush only: who reads flushes nothing.".into();
    }
    sections.push(only);
    sections.push(latencies(
        results,
        &setups,
        &threads,
        READ_ONLY,
        "How long a transaction takes that reads only",
    ));
    sections.extend(post::beside_the_post(results, &threads));
    sections.push(claims::claims(results, &threads));
    Page {
        title: "What is flushed when, and what a second server costs".into(),
        lead: vec![
            "sysbench's oltp_read_only and oltp_read_write (14 reads and 4 writes per transaction; requests are these, as in \
             the post), and oltp_update_index, whose transactions are one update each: in the others most of the processor's \
             time goes into statements, which no kind of replication makes faster. Each server has one processor, the writer one that nobody else uses but the machine; the second \
             server and the load have the others. Each has a file system of its own in a file, XFS but where it says \
             ext4. Where nothing else is said, InnoDB's log is flushed at each commit, the binlog, too, and the buffer pool \
             is the larger one. InnoDB 0: its log is flushed once a second (innodb_flush_log_at_trx_commit=0). Lockstep's own \
             log has its defaults: it is fsynced, by whom the policy says, before a commit returns. On the slow disk each \
             flush of either server takes some milliseconds more, as on a volume in a network."
                .into(),
            measured_for(results),
            wait_point(),
            "A provider that costs nothing: none at all, but for the server's own work for any wsrep provider, and each commit \
             waits for the next of ticks of 0.3 ms, about what two machines' disks take here. No provider can be faster than \
             that: it keeps no copy."
                .into(),
            "A run counts only if the copy's rows are the writer's in the end, after each number of threads, and if no \
             semi-synchronous replication fell back. After a blog post of 2011, whose two servers had 8 cores each: \
             semi-synchronous replication cost it little, and with sync_binlog=0 it was twice as fast as a single server that \
             flushed its binlog."
                .into(),
        ],
        sections,
    }
}

/// How long, as the run's parameters say.
fn measured_for(results: &Results) -> String {
    let seconds = |load: &str| {
        let found = results.about["parameters"][format!("seconds_each_{load}")].as_u64();
        found.map_or("?".into(), |seconds| seconds.to_string())
    };
    format!(
        "Each number of threads is measured for {} s of reading only, {} s of reading and writing and {} s of updates.",
        seconds("read_only"),
        seconds("read_write"),
        seconds("update_index")
    )
}

fn table_of(setups: &[Setup], threads: &[u64], what: &str, cell: impl Fn(Setup, u64) -> String) -> Table {
    let mut head = vec![what.to_owned()];
    head.extend(threads.iter().map(u64::to_string));
    let mut table = Table { head, rows: Vec::new() };
    for setup in setups {
        let cells = threads.iter().map(|count| cell(*setup, *count));
        table.row(std::iter::once(setup.what().to_owned()).chain(cells));
    }
    table
}

fn rates(results: &Results, setups: &[Setup], threads: &[u64], script: &str, heading: &str) -> Section {
    let rate = |setup: Setup, count| stat(results, setup.name(), script, count, "requests_per_s");
    let table = table_of(setups, threads, "requests/s by threads", |s, count| text(rate(s, count)));
    let profile = if threads.contains(&PROFILE) { Some(PROFILE) } else { threads.last().copied() };
    let chart = profile.map(|count| {
        let bar = |setup: &Setup| Bar::of(setup.what(), rate(*setup, count), side(*setup));
        let title = format!("Requests per second, {script}, {count} threads");
        Chart::Bars(Bars {
            title,
            unit: "requests/s".into(),
            log: false,
            bars: setups.iter().map(bar).collect(),
        })
    });
    let notes = vec![results.repeats_text()];
    Section { heading: heading.into(), text: String::new(), chart, table, notes }
}

fn latencies(results: &Results, setups: &[Setup], threads: &[u64], script: &str, heading: &str) -> Section {
    let cell = |setup: Setup, count| times(results, setup.name(), script, count);
    let table = table_of(setups, threads, "ms by threads: shortest / average / 95 %", cell);
    let notes = vec![results.repeats_text()];
    Section { heading: heading.into(), table, notes, ..Section::default() }
}

/// How far the second server was behind when the load ended; none where there was none.
fn catching_up(
    results: &Results,
    setups: &[Setup],
    threads: &[u64],
    script: &str,
    heading: &str,
) -> Option<Section> {
    let copied: Vec<Setup> = setups.iter().copied().filter(|setup| setup.kind.is_copied()).collect();
    let cell = |setup: Setup, count| text(stat(results, setup.name(), script, count, CAUGHT_UP));
    (!copied.is_empty()).then(|| Section {
        heading: format!("{CAUGHT_UP_HEADING}, {heading}"),
        text: CAUGHT_UP_TEXT.into(),
        table: table_of(&copied, threads, "seconds after the load, by threads", cell),
        notes: vec![results.repeats_text()],
        ..Section::default()
    })
}

fn lines(results: &Results, setups: &[Setup], threads: &[u64], heading: &str) -> Section {
    let series = setups.iter().map(|setup| {
        let point = |count: &u64| {
            let stat = stat(results, setup.name(), READ_WRITE, *count, "requests_per_s")?;
            Some((*count as f64, stat.median, stat.deviation))
        };
        let points = threads.iter().filter_map(point).collect();
        let variant = variant(&Setup::EACH, side, *setup);
        Series { name: setup.what().into(), side: side(*setup), variant, points, level: false }
    });
    Section {
        heading: heading.into(),
        chart: Some(Chart::Lines(Lines {
            title: "Requests per second by threads, oltp_read_write".into(),
            x: "threads (logarithmic)".into(),
            y: "requests/s".into(),
            x_log: true,
            y_log: false,
            series: series.collect(),
        })),
        ..Section::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::lab::markup::texts;
    use crate::shootout::Debt;
    use crate::{Histogram, Load};

    /// Ours with relaxed InnoDB are three times as fast as the others with 16 threads, and as fast with 64.
    pub(super) fn results(setups: &[Setup]) -> Results {
        let mut runs = Vec::new();
        for setup in setups {
            let measured = |script, threads: u32| {
                let fast = side(*setup) == Side::Lockstep && setup.what().contains("InnoDB 0");
                let rate = if fast && threads == 16 { 5400.0 } else { 1800.0 };
                let load = Load {
                    transactions: 100,
                    per_second: rate / 18.0,
                    requests_per_second: rate,
                    min_ms: 1.5,
                    avg_ms: 12.5,
                    p95_ms: 20.0,
                    max_ms: 30.0,
                    errors: 3,
                };
                let copied = setup.kind.is_copied() && script != READ_ONLY;
                let caught_up = copied.then(|| Duration::from_millis(250));
                let debt = (script != READ_ONLY)
                    .then_some(Debt { transactions: 7000, paid: Duration::from_secs(1) });
                Measured { script, threads, load, histogram: Histogram(vec![(12.5, 100)]), caught_up, debt }
            };
            let measured = [READ_ONLY, READ_WRITE, UPDATE_INDEX]
                .into_iter()
                .flat_map(|script| [16, 64].map(|threads| measured(script, threads)));
            let run =
                Run { version: "10.11".into(), measured: measured.collect(), configurations: Vec::new() };
            let outcome = outcome(&run);
            assert_eq!(
                outcome.samples[3],
                json!({ "script": READ_WRITE, "threads": 64, "ms_and_count": [[12.5, 100]] })
            );
            runs.push(json!({ "setup": setup.name(), "repeat": 1, "version": outcome.version,
                "measurements": outcome.measurements }));
        }
        Results {
            about: json!({ "experiment": NAME, "parameters": {} }),
            runs,
            failed: Vec::new(),
            config: Vec::new(),
        }
    }

    #[test]
    fn report_has_each_setup() {
        let results = results(&Setup::EACH);
        let page = page(&results);
        let html = page.html(&results);
        let (texts, terminal) = (texts(&html), page.text(&results));
        for setup in Setup::EACH {
            // In three bar charts, a line chart, and six tables.
            assert!(texts.iter().filter(|text| **text == setup.what()).count() >= 10, "{setup:?}");
            let row = format!("{}  ", setup.what());
            let row = terminal.lines().find(|line| line.starts_with(&row)).unwrap();
            let cells: Vec<&str> = row[setup.what().len()..].split_whitespace().collect();
            let fast = setup.name().starts_with("lockstep") && setup.name().contains("-innodb-0");
            assert_eq!(cells, [if fast { "5400" } else { "1800" }, "1800"]);
        }
        let copied = Setup::EACH.iter().filter(|setup| setup.kind.is_copied()).count();
        assert_eq!(terminal.lines().filter(|line| line.ends_with(" 0.250  0.250")).count(), 2 * copied);
        assert!(terminal.contains("1.50 / 12.5 / 20.0"), "{terminal}");
    }

    #[test]
    fn numbers_of_threads_rise_and_each_is_measured_once() {
        assert_eq!(rising(&[64, 16, 64, 1]), [1, 16, 64]);
    }

    #[test]
    fn quick_run_skips_reads_of_flush_variants() {
        let mut results = results(&Setup::EACH);
        results.about["parameters"][READ_BY_ALL] = false.into();
        let page = page(&results);
        let only = page.sections.iter().find(|section| section.heading == "Reading only").unwrap();
        assert!(only.text.contains("--quick"));
        let rows: Vec<&str> = only.table.rows.iter().map(|row| row[0].as_str()).collect();
        assert!(rows.contains(&"one server, ext4") && rows.contains(&"Lockstep semisync"), "{rows:?}");
        assert!(!rows.iter().any(|row| row.contains("InnoDB 0") || row.contains("slow disk")), "{rows:?}");
    }
}
