//! `lockstep lab synchronous`.

use std::process::ExitCode;
use std::time::Duration;

use crate::synchronous::{Measured, Provider, Run, Setup, Spec, check, run as run_setup};
use serde_json::json;

use super::caught_up::{CAUGHT_UP, CAUGHT_UP_HEADING, CAUGHT_UP_TEXT};
use super::drive::{Case, CaseResult, Common, chosen, drive, finish, named};
use super::line::{self, Lateness};
use super::numbers::{Stat, number, text};
use super::page::{Page, Section, Table};
use super::results::Results;
use super::svg::{Bar, Bars, Chart, Lines, Series, Side, variant};

/// Its name.
pub(super) const NAME: &str = "synchronous";
/// The latency profile is that of so many threads.
const PROFILE: u32 = 32;

/// Which percentiles of it.
const PERCENTILES: [u32; 9] = [1, 10, 25, 50, 75, 90, 95, 98, 99];

/// Options of `lockstep lab synchronous`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Milliseconds to the far member and back.
    #[arg(long, value_name = "MS", default_value_t = 90.0, value_parser = super::milliseconds)]
    rtt: f64,
    /// Only these set-ups, separated by commas, by their names in results: mariadb-flushing, galera-two-far,
    /// lockstep-two-far, ...
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = setup)]
    setups: Vec<Setup>,
}

fn setup(name: &str) -> Result<Setup, String> {
    named(&Setup::EACH, Setup::name, name)
}

/// Runs the experiment.
pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let common = &args.common;
    let repeats = common.repeats();
    let (threads, window) = match common.quick {
        true => (vec![8, PROFILE], 4),
        false => (vec![8, PROFILE, 128], 20),
    };
    let (tables, rows) = if common.quick { (2, 5_000) } else { (4, 25_000) };
    let setups = chosen(&args.setups, &Setup::EACH);
    let parameters = json!({ "line": line::NAME, "round_trip_ms": args.rtt, "repeats": repeats, "load": "sysbench oltp_read_write",
        "rows_chosen": "uniform",
        "tables": tables, "rows_of_each": rows, "threads": threads, "seconds_each": window,
        "set_ups": setups.iter().map(|setup| setup.name()).collect::<Vec<_>>() });
    let spec = Spec {
        provider: common.provider()?,
        galera: common.galera.clone(),
        round_trip: Duration::from_secs_f64(args.rtt / 1e3),
        tables,
        rows,
        threads,
        window: Duration::from_secs(window),
    };
    check().map_err(|e| e.to_string())?;
    let mut folder = common.folder(NAME, parameters)?;
    let seconds = |setup: Setup| {
        let start = if setup.provider().is_some() { 9.0 } else { 4.0 };
        start + (window as f64 + 1.0) * spec.threads.len() as f64
    };
    let case = |s: &Setup| Case {
        setup: s.name(),
        what: s.what(),
        seconds: seconds(*s),
        absent: common.no_galera().filter(|_| s.provider() == Some(Provider::Galera)),
    };
    let cases: Vec<Case> = setups.iter().map(case).collect();
    let failed = drive(&mut folder, &cases, repeats, |case| {
        let run = run_setup(setup(&case.setup)?, &spec).map_err(|e| e.to_string())?;
        Ok(outcome(&spec, &run))
    });
    Ok(finish(&folder, &failed, page))
}

fn outcome(spec: &Spec, run: &Run) -> CaseResult {
    let mut outcome = CaseResult {
        version: run.version.clone(),
        configurations: run.configurations.clone(),
        late: Lateness::of_run(&run.there, &run.back, spec.round_trip, run.round_trip),
        ..CaseResult::default()
    };
    line::record(&mut outcome.more, &run.there, &run.back, run.round_trip);
    for Measured { threads, load, histogram, caught_up } in &run.measured {
        let mut measurement = json!({ "threads": threads, "transactions": load.transactions,
            "transactions_per_s": load.per_second, "ms_min": load.min_ms, "ms_avg": load.avg_ms,
            "ms_95": load.p95_ms, "ms_max": load.max_ms, "ms_deviation": histogram.deviation(),
            "conflicts": load.errors, "conflicts_per_s": load.errors_per_second() });
        if let Some(time) = caught_up {
            measurement[CAUGHT_UP] = time.as_secs_f64().into();
        }
        for percent in PERCENTILES {
            measurement[below(percent)] = json!(histogram.percentile(percent.into()));
        }
        outcome.measurements.push(measurement);
        outcome.samples.push(json!({ "threads": threads, "ms_and_count": histogram.0 }));
    }
    let rates = run.measured.iter().map(|m| format!("{} by {}", number(m.load.per_second), m.threads));
    outcome.headline = format!("{} transactions/s", rates.collect::<Vec<_>>().join(", "));
    outcome
}

/// The field of a percentile, as sysbench's histogram has it.
fn below(percent: u32) -> String {
    format!("ms_below_{percent}")
}

fn stat(results: &Results, setup: Setup, threads: u64, field: &str) -> Option<Stat> {
    results.stat(&setup.name(), field, |m| m["threads"] == threads)
}

/// The report, from results alone.
pub(super) fn page(results: &Results) -> Page {
    let rtt = results.about["parameters"]["round_trip_ms"].as_f64().unwrap_or(f64::NAN);
    let ran = results.setups();
    let setups: Vec<Setup> =
        Setup::EACH.into_iter().filter(|setup| ran.contains(&setup.name().as_str())).collect();
    let threads = results.counts("threads", "threads");
    let mut sections = vec![throughput(results, &setups, &threads)];
    sections.extend(catching_up(results, &setups, &threads));
    let sides = by_provider(&setups);
    sections.extend(sides.iter().map(|(name, setups)| lines(results, setups, &threads, name)));
    let profile = if threads.contains(&u64::from(PROFILE)) {
        Some(u64::from(PROFILE))
    } else {
        threads.last().copied()
    };
    if let Some(threads) = profile {
        sections.push(latency(results, &setups, threads));
        sections.extend(sides.iter().map(|(name, setups)| distribution(results, setups, threads, name)));
    }
    Page {
        title: format!("Synchronous replication near, and {rtt} ms away"),
        lead: vec![
            format!(
                "sysbench's oltp_read_write (14 reads and 4 writes per transaction, all rows as likely as any other: \
                 --rand-type=uniform) on one to three servers; far is {rtt} ms there and back, by the lab's own delay line. InnoDB's log is flushed once a second but where it says flushing; \
                 Lockstep has its defaults, quorum with its log fsynced before a commit returns, Galera its makers' options \
                 for long lines. All servers and the load share the machine."
            ),
            "After a blog post of 2011: a synchronous slave near hardly shows, one far away adds its round trip to each \
             transaction, and clients far from their server are worse off by far."
                .into(),
        ],
        sections,
    }
}

/// Those of each provider that ran, and MariaDB's beside them.
fn by_provider(setups: &[Setup]) -> Vec<(&'static str, Vec<Setup>)> {
    let of = |provider| {
        setups.iter().copied().filter(move |s: &Setup| s.provider().is_none_or(|of| of == provider))
    };
    let sides = [("Lockstep", Provider::Lockstep), ("Galera", Provider::Galera)];
    let sides = sides.map(|(name, provider)| (name, of(provider).collect::<Vec<_>>()));
    sides.into_iter().filter(|(_, setups)| setups.iter().any(|setup| setup.provider().is_some())).collect()
}

fn side(setup: Setup) -> Side {
    match setup.provider() {
        None => Side::MariaDb,
        Some(Provider::Galera) => Side::Galera,
        Some(Provider::Lockstep) => Side::Lockstep,
    }
}

fn bars(
    results: &Results,
    setups: &[Setup],
    threads: u64,
    title: String,
    unit: &str,
    field: &str,
    log: bool,
) -> Chart {
    let bar = |setup: &Setup| Bar::of(setup.what(), stat(results, *setup, threads, field), side(*setup));
    Chart::Bars(Bars { title, unit: unit.into(), log, bars: setups.iter().map(bar).collect() })
}

fn throughput(results: &Results, setups: &[Setup], threads: &[u64]) -> Section {
    let mut head = vec!["transactions/s by threads".to_owned()];
    head.extend(threads.iter().flat_map(|count| [count.to_string(), "conflicts/s".into()]));
    let mut table = Table { head, rows: Vec::new() };
    for setup in setups {
        let cells = |count: &u64| {
            ["transactions_per_s", "conflicts_per_s"].map(|field| text(stat(results, *setup, *count, field)))
        };
        table.row(std::iter::once(setup.what()).chain(threads.iter().flat_map(cells)));
    }
    let most = threads.last().copied().unwrap_or_default();
    let title = format!("Transactions per second, {most} threads");
    Section {
        heading: "Throughput".into(),
        text: String::new(),
        chart: Some(bars(results, setups, most, title, "transactions/s", "transactions_per_s", false)),
        table,
        notes: vec![
            "Conflicts are transactions that met another one of the same rows, and were tried again.".into(),
            results.repeats_text(),
        ],
    }
}

/// How far copies were behind when the load ended; none where there were none.
fn catching_up(results: &Results, setups: &[Setup], threads: &[u64]) -> Option<Section> {
    let mut head = vec!["seconds after the load, by threads".to_owned()];
    head.extend(threads.iter().map(u64::to_string));
    let mut table = Table { head, rows: Vec::new() };
    for setup in setups.iter().filter(|setup| setup.has_copies()) {
        let cell = |count: &u64| text(stat(results, *setup, *count, CAUGHT_UP));
        table.row(std::iter::once(setup.what()).chain(threads.iter().map(cell)));
    }
    (!table.rows.is_empty()).then(|| Section {
        heading: CAUGHT_UP_HEADING.into(),
        text: CAUGHT_UP_TEXT.into(),
        table,
        notes: vec![results.repeats_text()],
        ..Section::default()
    })
}

fn series_of(setup: Setup, points: Vec<(f64, f64, Option<f64>)>) -> Series {
    Series {
        name: setup.what(),
        side: side(setup),
        variant: variant(&Setup::EACH, side, setup),
        points,
        level: false,
    }
}

fn lines(results: &Results, setups: &[Setup], threads: &[u64], name: &str) -> Section {
    let series = setups.iter().map(|setup| {
        let point = |count: &u64| {
            let stat = stat(results, *setup, *count, "transactions_per_s")?;
            Some((*count as f64, stat.median, stat.deviation))
        };
        let points = threads.iter().filter_map(point).collect();
        series_of(*setup, points)
    });
    Section {
        heading: format!("With rising numbers of clients: {name}"),
        chart: Some(Chart::Lines(Lines {
            title: format!("Transactions per second by threads: {name} and MariaDB alone"),
            x: "threads (logarithmic)".into(),
            y: "transactions/s".into(),
            x_log: true,
            y_log: false,
            series: series.collect(),
        })),
        ..Section::default()
    }
}

fn latency(results: &Results, setups: &[Setup], threads: u64) -> Section {
    let mut table = Table::new(&[
        "ms of a transaction",
        "average",
        "deviation",
        "95 %",
        "longest",
        "conflicts tried again",
    ]);
    for setup in setups {
        let cell = |field| text(stat(results, *setup, threads, field));
        let cells = ["ms_avg", "ms_deviation", "ms_95", "ms_max", "conflicts"].map(cell);
        table.row(std::iter::once(setup.what()).chain(cells));
    }
    let title = format!("Average time of a transaction, {threads} threads");
    Section {
        heading: format!("Latency with {threads} threads"),
        text: String::new(),
        chart: Some(bars(results, setups, threads, title, "ms, less is better", "ms_avg", true)),
        table,
        notes: vec![
            "Medians of the repeats, ± standard deviation over them; deviation is that of the transactions of a run, whose whole \
             distribution is in samples.jsonl."
                .into(),
        ],
    }
}

fn distribution(results: &Results, setups: &[Setup], threads: u64, name: &str) -> Section {
    let mut head = vec!["ms that so many of 100 stayed below".to_owned()];
    head.extend(PERCENTILES.iter().map(u32::to_string));
    let mut table = Table { head, rows: Vec::new() };
    let mut series = Vec::new();
    for setup in setups {
        let each = PERCENTILES.map(|percent| (percent, stat(results, *setup, threads, &below(percent))));
        table.row(std::iter::once(setup.what()).chain(each.iter().map(|(_, stat)| text(*stat))));
        let point = |(percent, stat): &(u32, Option<Stat>)| {
            stat.as_ref().map(|stat| (f64::from(*percent), stat.median, stat.deviation))
        };
        let points = each.iter().filter_map(point).collect();
        series.push(series_of(*setup, points));
    }
    Section {
        heading: format!("How long {threads} threads' transactions took: {name}"),
        chart: Some(Chart::Lines(Lines {
            title: format!("Latency profile, {threads} threads: {name} and MariaDB alone"),
            x: "so many of 100 transactions".into(),
            y: "took no more ms (logarithmic)".into(),
            x_log: false,
            y_log: true,
            series,
        })),
        table,
        ..Section::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::lab::markup::texts;
    use crate::wan::Counters;
    use crate::{Histogram, Load};

    fn spec() -> Spec {
        Spec {
            provider: "x".into(),
            galera: "x".into(),
            round_trip: Duration::from_millis(90),
            tables: 1,
            rows: 1,
            threads: vec![8, 32],
            window: Duration::from_secs(1),
        }
    }

    fn results() -> Results {
        let mut runs = Vec::new();
        for setup in Setup::EACH {
            let load = |per_second| Load {
                transactions: 100,
                per_second,
                requests_per_second: 18.0 * per_second,
                min_ms: 8.0,
                avg_ms: 12.5,
                p95_ms: 20.0,
                max_ms: 30.0,
                errors: 3,
            };
            let measured = |threads, per_second| Measured {
                threads,
                load: load(per_second),
                histogram: Histogram(vec![(12.5, 100)]),
                caught_up: setup.has_copies().then(|| Duration::from_millis(250)),
            };
            let run = Run {
                version: "10.11".into(),
                measured: vec![measured(8, 640.0), measured(32, 1234.0)],
                round_trip: Duration::from_millis(90),
                there: Counters::default(),
                back: Counters::default(),
                configurations: Vec::new(),
            };
            let outcome = outcome(&spec(), &run);
            assert_eq!(outcome.samples[1], json!({ "threads": 32, "ms_and_count": [[12.5, 100]] }));
            runs.push(json!({ "setup": setup.name(), "repeat": 1, "version": outcome.version,
                "measurements": outcome.measurements }));
        }
        let about = json!({ "experiment": NAME, "parameters": { "round_trip_ms": 90.0 } });
        Results { about, runs, failed: Vec::new(), config: Vec::new() }
    }

    #[test]
    fn report_has_each_setup_with_its_numbers() {
        let results = results();
        let page = page(&results);
        let html = page.html(&results);
        let (texts, terminal) = (texts(&html), page.text(&results));
        for setup in Setup::EACH {
            // In two bar charts, two line charts, and three tables.
            assert!(texts.iter().filter(|text| **text == setup.what()).count() >= 7, "{setup:?}");
            let row = format!("{} ", setup.what());
            let row = terminal.lines().find(|line| line.starts_with(&row)).unwrap();
            let cells: Vec<&str> = row[setup.what().len()..].split_whitespace().collect();
            assert_eq!(cells, ["640", "19.2", "1234", "37.0"]);
            let start = format!("{} ", setup.what());
            let lines = terminal.lines().filter(|text| text.starts_with(&start));
            let caught_up = lines.filter(|text| text.ends_with(" 0.250  0.250")).count();
            assert_eq!(caught_up, usize::from(setup.has_copies()), "{setup:?}");
        }
        assert!(texts.iter().any(|text| text == "Latency with 32 threads"));
    }

    #[test]
    fn set_ups_have_names() {
        for of in Setup::EACH {
            assert_eq!(setup(&of.name()), Ok(of));
        }
        assert!(setup("else").unwrap_err().contains("galera-masters"));
    }
}
