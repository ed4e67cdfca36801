//! `lockstep lab cdc`.

use std::process::ExitCode;
use std::time::Duration;

use crate::cdc::{FULL, Measured, Pace, Run, Setup, Spec, check, run as run_setup};
use serde_json::{Value, json};

use super::drive::{Case, CaseResult, Common, chosen, drive, finish, named};
use super::numbers::{Stat, number, percentile, text};
use super::page::{Claims, Page, Section, Table, ratio};
use super::results::Results;
use super::svg::{Bar, Bars, Chart, Side};

/// Its name.
pub(super) const NAME: &str = "cdc";
/// Connections that write.
const WRITERS: usize = 4;
/// Transactions per second at the fixed rate.
const RATE: u32 = 200;
/// The names of the two loads in results.
const FIXED: &str = Pace::Fixed(RATE).name();
const AS_FAST: &str = Pace::Full.name();
/// The mark after a number that was measured while all processors were full.
const FULL_MARK: &str = " ‡";

/// Options of `lockstep lab cdc`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Only these set-ups, separated by commas, by their names in results: mariadb, galera-writer, galera-other, lockstep.
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = setup)]
    setups: Vec<Setup>,
    /// Numbers of consumers, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = [1, 16, 64],
        value_parser = clap::value_parser!(u64).range(1..=200))]
    consumers: Vec<u64>,
}

fn setup(name: &str) -> Result<Setup, String> {
    named(&Setup::EACH, Setup::name, name)
}

/// Runs the experiment.
pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let common = &args.common;
    let repeats = common.repeats();
    let window = if common.quick { 3 } else { 10 };
    let setups = chosen(&args.setups, &Setup::EACH);
    let parameters = json!({ "repeats": repeats, "consumers": args.consumers, "writers": WRITERS, "fixed_rate_per_s": RATE,
        "seconds_each": window, "set_ups": setups.iter().map(|setup| setup.name()).collect::<Vec<_>>() });
    let spec = Spec {
        provider: common.provider()?,
        galera: common.galera.clone(),
        lockstep: std::env::current_exe().ok(),
        consumers: args.consumers.iter().map(|count| *count as usize).collect(),
        writers: WRITERS,
        rate: RATE,
        window: Duration::from_secs(window),
    };
    check().map_err(|e| e.to_string())?;
    let mut folder = common.folder(NAME, parameters)?;
    let loads = 2.0 * (1 + spec.consumers.len()) as f64;
    let case = |s: &Setup| Case {
        setup: s.name().into(),
        what: s.what().into(),
        seconds: if *s == Setup::MariaDb { 4.0 } else { 12.0 } + (window as f64 + 0.7) * loads,
        absent: common.no_galera().filter(|_| s.is_galera()),
    };
    let cases: Vec<Case> = setups.iter().map(case).collect();
    let failed = drive(&mut folder, &cases, repeats, |case| {
        let run = run_setup(setup(&case.setup)?, &spec).map_err(|e| e.to_string())?;
        Ok(outcome(&run))
    });
    Ok(finish(&folder, &failed, page))
}

fn outcome(run: &Run) -> CaseResult {
    let mut outcome = CaseResult {
        version: run.version.clone(),
        measurements: run.measured.iter().map(measurement).collect(),
        configurations: run.configurations.clone(),
        ..CaseResult::default()
    };
    let seconds = run.catch_up.elapsed.as_secs_f64();
    outcome.measurements.push(
        json!({ "load": "catch-up", "consumers": 1, "transactions": run.catch_up.transactions,
        "bytes": run.catch_up.bytes, "seconds": seconds,
        "transactions_per_s": run.catch_up.transactions as f64 / seconds,
        "mb_per_s": run.catch_up.bytes as f64 / 1e6 / seconds }),
    );
    let median = |measured: &Measured| number(percentile(&measured.arrival_ms, 0.5));
    let fixed = run.measured.iter().filter(|m| m.pace != Pace::Full && m.consumers > 0);
    let medians = fixed.map(|measured| format!("{} ms to {}", median(measured), measured.consumers));
    outcome.headline = format!("median {}", medians.collect::<Vec<_>>().join(", "));
    outcome
}

fn measurement(measured: &Measured) -> Value {
    let mut all = json!({ "load": measured.pace.name(), "consumers": measured.consumers,
        "transactions": measured.transactions, "seconds": measured.elapsed.as_secs_f64(),
        "transactions_per_s": measured.rate(), "processors_used": measured.machine,
        "processors_full": measured.machine >= FULL });
    let times = [
        ("commit_ms", &measured.commit_ms),
        ("arrival_ms", &measured.arrival_ms),
        ("after_answer_ms", &measured.after_answer_ms),
    ];
    for (name, values) in times {
        if !values.is_empty() {
            for (end, part) in [("median", 0.5), ("99", 0.99), ("max", 1.0)] {
                all[format!("{name}_{end}")] = percentile(values, part).into();
            }
        }
    }
    if let Some(us) = measured.sender_us() {
        all["sender_us"] = us.into();
    }
    if let Some(server) = measured.server.filter(|_| measured.transactions > 0) {
        all["server_us"] = (server.as_secs_f64() * 1e6 / measured.transactions as f64).into();
    }
    all
}

fn stat(results: &Results, setup: Setup, load: &str, consumers: u64, field: &str) -> Option<Stat> {
    results.stat(setup.name(), field, |m| m["load"] == load && m["consumers"] == consumers)
}

/// The number, marked where all processors were full.
fn cell(results: &Results, setup: Setup, load: &str, consumers: u64, field: &str) -> String {
    let is_this = |m: &&Value| m["load"] == load && m["consumers"] == consumers;
    let is_full = results.measurements(setup.name()).filter(is_this).any(|m| m["processors_full"] == true);
    let mark = if is_full { FULL_MARK } else { "" };
    format!("{}{mark}", text(stat(results, setup, load, consumers, field)))
}

fn side(setup: Setup) -> Side {
    match setup {
        Setup::MariaDb => Side::MariaDb,
        Setup::GaleraWriter | Setup::GaleraOther => Side::Galera,
        Setup::Lockstep => Side::Lockstep,
    }
}

/// The report, from results alone.
pub(super) fn page(results: &Results) -> Page {
    let ran = results.setups();
    let setups: Vec<Setup> = Setup::EACH.into_iter().filter(|setup| ran.contains(&setup.name())).collect();
    let consumers: Vec<u64> =
        results.counts("consumers", "consumers").into_iter().filter(|count| *count > 0).collect();
    Page {
        title: "From a commit to the consumers of the binlog".into(),
        lead: vec![
            format!(
                "{WRITERS} clients insert one row per transaction into one server; consumers read the binlog by the replication \
                 protocol and keep nothing. Galera's members have a binlog that is not flushed (sync_binlog=0), the single \
                 server flushes binlog and InnoDB's log at each commit, and Lockstep has its defaults: quorum, with its log \
                 fsynced, before the binlog server shows a transaction. All servers, clients and consumers share the machine."
            ),
            format!(
                "{}: all processors were full; then a time says how long the queue was.",
                FULL_MARK.trim()
            ),
        ],
        sections: vec![
            arrival(results, &setups, &consumers),
            rates(results, &setups, &consumers),
            costs(results, &setups, &consumers),
            catching_up(results, &setups),
            targets(results, &consumers),
        ],
    }
}

fn arrival(results: &Results, setups: &[Setup], consumers: &[u64]) -> Section {
    let mut head = vec![format!("ms, {RATE} transactions/s")];
    head.extend(
        consumers
            .iter()
            .flat_map(|count| [format!("{count}: median"), "99 %".into(), "commit, median".into()]),
    );
    let mut table = Table { head, rows: Vec::new() };
    for setup in setups {
        let cells = consumers.iter().flat_map(|count| {
            ["arrival_ms_median", "arrival_ms_99", "commit_ms_median"]
                .map(|field| cell(results, *setup, FIXED, *count, field))
        });
        table.row(std::iter::once(setup.what().to_owned()).chain(cells));
    }
    let most = consumers.last().copied().unwrap_or(1);
    let bar = |setup: &Setup| {
        Bar::of(setup.what(), stat(results, *setup, FIXED, most, "arrival_ms_median"), side(*setup))
    };
    Section {
        heading: "From commit to consumer".into(),
        text: "From the client's statement to the arrival of the whole transaction at each consumer. The time of the commit \
               itself, as its client saw it, is beside it: a consumer may have a transaction before its client has the answer."
            .into(),
        chart: Some(Chart::Bars(Bars {
            title: format!("Median time from statement to consumer, {most} consumers"),
            unit: "ms, less is better".into(),
            log: true,
            bars: setups.iter().map(bar).collect(),
        })),
        table,
        notes: vec![results.repeats_text()],
    }
}

fn rates(results: &Results, setups: &[Setup], consumers: &[u64]) -> Section {
    let all = || std::iter::once(0).chain(consumers.iter().copied());
    let mut head = vec!["transactions/s by consumers".to_owned()];
    head.extend(all().map(|count| count.to_string()));
    let mut table = Table { head, rows: Vec::new() };
    for setup in setups {
        let cells = all().map(|count| cell(results, *setup, AS_FAST, count, "transactions_per_s"));
        table.row(std::iter::once(setup.what().to_owned()).chain(cells));
    }
    Section {
        heading: "Commit rate beside consumers".into(),
        text: format!("{WRITERS} clients write as fast as the servers answer."),
        table,
        ..Section::default()
    }
}

fn costs(results: &Results, setups: &[Setup], consumers: &[u64]) -> Section {
    let mut head = vec!["µs per transaction and consumer".to_owned()];
    head.extend(consumers.iter().flat_map(|count| [format!("{count}: {RATE}/s"), "as fast".into()]));
    let mut table = Table { head, rows: Vec::new() };
    for setup in setups {
        let cells = consumers
            .iter()
            .flat_map(|count| [FIXED, AS_FAST].map(|load| cell(results, *setup, load, *count, "sender_us")));
        table.row(std::iter::once(setup.what().to_owned()).chain(cells));
    }
    let server = |load, count| text(stat(results, Setup::Lockstep, load, count, "server_us"));
    let mut notes = vec![format!(
        "The threads that send: MariaDB's dump threads, and those of `lockstep binlog serve`. That whole process, which is a \
         member of the cluster and writes the files, takes {} µs per transaction without a consumer at {RATE}/s, and {} µs as \
         fast as clients can.",
        server(FIXED, 0),
        server(AS_FAST, 0)
    )];
    notes.extend(consumers.last().map(|most| {
        format!("With {most} consumers it takes {} and {} µs.", server(FIXED, *most), server(AS_FAST, *most))
    }));
    Section { heading: "Processor time".into(), table, notes, ..Section::default() }
}

fn catching_up(results: &Results, setups: &[Setup]) -> Section {
    let mut table = Table::new(&["one consumer reads everything", "transactions/s", "MB/s", "transactions"]);
    for setup in setups {
        let cells = ["transactions_per_s", "mb_per_s", "transactions"]
            .map(|field| text(stat(results, *setup, "catch-up", 1, field)));
        table.row(std::iter::once(setup.what().to_owned()).chain(cells));
    }
    Section { heading: "Catching up".into(), table, ..Section::default() }
}

/// The goals, beside the measurements.
fn targets(results: &Results, consumers: &[u64]) -> Section {
    let median = |setup: Setup, load: &str, count: u64, field: &str| {
        results.median(setup.name(), field, |m| m["load"] == load && m["consumers"] == count)
    };
    let mut claims = Claims::new("claim");
    claims.at_most(
        "one consumer: median ms from statement to consumer",
        2.0,
        median(Setup::Lockstep, FIXED, 1, "arrival_ms_median"),
    );
    for count in consumers.iter().filter(|count| [1, 64].contains(*count)) {
        let cost = |setup| median(setup, AS_FAST, *count, "sender_us");
        claims.at_most(
            format!("{count} consumers: processor time of a sender against a stock primary's"),
            1.0,
            ratio(cost(Setup::Lockstep), cost(Setup::MariaDb)),
        );
    }
    let rate = |setup| median(setup, "catch-up", 1, "transactions_per_s");
    claims.at_least(
        "catching up: transactions/s against a stock primary's",
        1.0,
        ratio(rate(Setup::Lockstep), rate(Setup::MariaDb)),
    );
    claims.section(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdc::CatchUp;

    fn results() -> Results {
        let mut runs = Vec::new();
        for setup in Setup::EACH {
            let measured = |consumers, pace| Measured {
                consumers,
                pace,
                transactions: 1000,
                elapsed: Duration::from_secs(2),
                commit_ms: vec![0.5; 10],
                arrival_ms: vec![1.5; 10 * consumers],
                after_answer_ms: vec![-0.25; 10 * consumers],
                senders: Duration::from_millis(10 * consumers as u64),
                server: (setup == Setup::Lockstep).then(|| Duration::from_millis(50)),
                machine: if consumers == 64 { 0.99 } else { 0.5 },
            };
            let run = Run {
                version: "10.11".into(),
                measured: [0, 1, 64]
                    .into_iter()
                    .flat_map(|count| [measured(count, Pace::Fixed(RATE)), measured(count, Pace::Full)])
                    .collect(),
                catch_up: CatchUp { transactions: 9000, bytes: 4_000_000, elapsed: Duration::from_secs(3) },
                configurations: Vec::new(),
            };
            let outcome = outcome(&run);
            assert_eq!(outcome.headline, "median 1.50 ms to 1, 1.50 ms to 64");
            assert!(outcome.measurements[0].get("arrival_ms_median").is_none(), "without a consumer");
            runs.push(json!({ "setup": setup.name(), "repeat": 1, "version": outcome.version,
                "measurements": outcome.measurements }));
        }
        let about = json!({ "experiment": NAME, "parameters": { "consumers": [1, 64] } });
        Results { about, runs, failed: Vec::new(), config: Vec::new() }
    }

    #[test]
    fn report_has_each_setup_and_marks_full_processors() {
        let results = results();
        let page = page(&results);
        let terminal = page.text(&results);
        assert!(page.html(&results).contains("</html>"));
        for setup in Setup::EACH {
            let rows: Vec<&str> = terminal.lines().filter(|line| line.starts_with(setup.what())).collect();
            let cells: Vec<Vec<&str>> =
                rows.iter().map(|row| row[setup.what().len()..].split_whitespace().collect()).collect();
            let expected = [
                vec!["1.50", "1.50", "0.500", "1.50", "‡", "1.50", "‡", "0.500", "‡"],
                vec!["500", "500", "500", "‡"],
                vec!["10.0", "10.0", "10.0", "‡", "10.0", "‡"],
                vec!["3000", "1.33", "9000"],
            ];
            assert_eq!(cells, expected, "{terminal}");
        }
        assert!(terminal.contains("takes 50.0 µs per transaction without a consumer"), "{terminal}");
        let verdicts: Vec<String> =
            targets(&results, &[1, 64]).table.rows.into_iter().map(|row| row[3].clone()).collect();
        assert_eq!(verdicts, ["met"; 4]);
    }

    #[test]
    fn set_ups_have_names() {
        assert_eq!(setup("lockstep"), Ok(Setup::Lockstep));
        assert!(setup("else").unwrap_err().contains("galera-other"));
    }
}
