//! `lockstep lab semi-sync-wan`.

use std::process::ExitCode;
use std::time::Duration;

use crate::WAIT_POINT;
use crate::semi_sync_wan::{Load, Run, Setup, Spec, WARM_UP, WARM_UP_FAR, check, run as run_setup, warm_up};
use serde_json::{Value, json};

use super::drive::{Case, CaseResult, Common, chosen, drive, finish, named};
use super::line::{self, Lateness};
use super::numbers::{DOUBT, Known, Stat, number, percentile, text};
use super::page::{Claims, Page, Section, Table, ratio};
use super::results::Results;
use super::svg::{Bar, Bars, Chart, Lines, Series, Side, variant};

/// Its name.
pub(super) const NAME: &str = "semi-sync-wan";

/// Round trip to the post's far replica, in milliseconds: its findings and our claims hold for this distance.
const POST_RTT: f64 = 85.5;

/// Options of `lockstep lab semi-sync-wan`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Milliseconds to the far member and back.
    #[arg(long, value_name = "MS", default_value_t = POST_RTT, value_parser = super::milliseconds)]
    rtt: f64,
    /// Only these set-ups, separated by commas, by their names in results: alone, mariadb-async, lockstep-quorum, ...
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
    let (inserts, far_inserts) = if common.quick { (1000, 100) } else { (10_000, 1000) };
    let (clients, window) = if common.quick { (vec![64], 3) } else { (vec![4, 16, 64, 256], 10) };
    let setups = chosen(&args.setups, &Setup::EACH);
    let parameters = json!({ "line": line::NAME, "round_trip_ms": args.rtt, "repeats": repeats, "inserts": inserts,
        "inserts_that_wait_for_the_far_member": far_inserts, "inserts_before_those": [WARM_UP, WARM_UP_FAR], "connections": clients, "seconds_each": window,
        "set_ups": setups.iter().map(|setup| setup.name()).collect::<Vec<_>>() });
    let spec = Spec {
        provider: common.provider()?,
        galera: common.galera.clone(),
        lockstep: std::env::current_exe().ok(),
        round_trip: Duration::from_secs_f64(args.rtt / 1e3),
        inserts,
        far_inserts,
        clients,
        window: Duration::from_secs(window),
    };
    check().map_err(|e| e.to_string())?;
    let mut folder = common.folder(NAME, parameters)?;
    let seconds = |setup: Setup| {
        let start = if setup.is_ours() || setup == Setup::Galera || setup.is_ingested() { 10.0 } else { 4.0 };
        let each = if setup.waits_for_far() { args.rtt / 1e3 } else { 0.001 };
        let count = if setup.waits_for_far() { far_inserts } else { inserts };
        start + each * f64::from(count) + (window as f64 + 1.0) * spec.clients.len() as f64
    };
    let case = |s: &Setup| Case {
        setup: s.name().into(),
        what: s.what().into(),
        seconds: seconds(*s),
        absent: common.no_galera().filter(|_| *s == Setup::Galera),
    };
    let cases: Vec<Case> = setups.iter().map(case).collect();
    let mut cold = true;
    let failed = drive(&mut folder, &cases, repeats, |case| {
        if std::mem::take(&mut cold) {
            // If it fails, then so does what follows, and is said.
            let _ = warm_up(&spec);
        }
        let run = run_setup(setup(&case.setup)?, &spec).map_err(|e| e.to_string())?;
        Ok(outcome(&spec, &run))
    });
    Ok(finish(&folder, &failed, page))
}

fn outcome(spec: &Spec, run: &Run) -> CaseResult {
    let mut outcome = CaseResult {
        version: run.version.clone(),
        measurements: run.loads.iter().map(measurement).collect(),
        configurations: run.configurations.clone(),
        late: Lateness::of_run(&run.there, &run.back, spec.round_trip, run.round_trip),
        ..CaseResult::default()
    };
    line::record(&mut outcome.more, &run.there, &run.back, run.round_trip);
    for load in &run.loads {
        let clients = load.connections.len();
        for (at, connection) in load.connections.iter().enumerate() {
            let us: Vec<u64> = connection.inserts.iter().map(|nanos| nanos / 1000).collect();
            outcome.samples.push(json!({ "clients": clients, "connection": at + 1,
                "seconds": connection.elapsed.as_secs_f64(), "us": us }));
        }
    }
    let rates = run.loads.iter().map(|load| format!("{} by {}", number(load.rate()), load.connections.len()));
    outcome.headline = format!("{} inserts/s", rates.collect::<Vec<_>>().join(", "));
    outcome
}

fn measurement(load: &Load) -> Value {
    let times = load.milliseconds();
    json!({
        "clients": load.connections.len(),
        "inserts": load.inserts(),
        "inserts_per_s": load.rate(),
        "ms_min": percentile(&times, 0.0),
        "ms_median": percentile(&times, 0.5),
        "ms_95": percentile(&times, 0.95),
        "ms_99": percentile(&times, 0.99),
        "ms_max": percentile(&times, 1.0),
    })
}

/// The results of a set-up's repeats for one number of connections.
fn stat(results: &Results, setup: Setup, clients: u64, field: &str) -> Option<Stat> {
    results.stat(setup.name(), field, |m| m["clients"] == clients)
}

/// The report, from results alone.
pub(super) fn page(results: &Results) -> Page {
    let parameters = &results.about["parameters"];
    let rtt = parameters["round_trip_ms"].as_f64().unwrap_or(f64::NAN);
    let setups: Vec<Setup> = results.setups().into_iter().filter_map(Setup::of_name).collect();
    let mut order: Vec<Setup> = setups.clone();
    order.sort();
    let mut clients = results.counts("connections", "clients");
    if !clients.contains(&1) {
        // A single one always.
        clients.insert(0, 1);
    }
    let mut sections = vec![one_connection(results, &order, rtt), commit_times(results, &order, rtt)];
    let (far, near): (Vec<Setup>, Vec<Setup>) = order.iter().partition(|setup| setup.waits_for_far());
    let groups = [
        (
            near,
            "Many connections, where commits stay near",
            "No commit of these waits for the long line: the far copy follows.",
        ),
        (
            far,
            "Many connections, where each commit waits for the long line",
            "Here a connection gets one commit per round trip, whatever the software. What differs is whether commits of many \
             connections travel together.",
        ),
    ];
    for (setups, heading, what) in groups {
        if clients.len() > 1 && !setups.is_empty() {
            sections.push(many_connections(results, &setups, &clients, heading, what));
        }
    }
    sections.push(targets(results, rtt));
    let title = format!("What a copy {rtt} ms away costs those who write");
    let lead = vec![
        format!(
            "Connections insert rows (id, text VARCHAR(8)), one row per commit, into a server next to them. A copy of the \
             database is kept {rtt} ms (there and back) away. Real servers in network namespaces of one machine; the distance \
             is the lab's own delay line. A run counts only if every copy has all rows in the end and no semi-synchronous \
             replication fell back."
        ),
        wait_point(),
        "After a blog post of 2012, which found 1066 inserts/s of one connection with no replica, 943 with an asynchronous \
         one, and 11.5 with a semi-synchronous one, 85.5 ms away, and concluded that one should not use it there."
            .into(),
    ];
    Page { title, lead, sections }
}

/// Describes MariaDB's semi-synchronous replication in our experiments, and ours.
pub(super) fn wait_point() -> String {
    format!(
        "MariaDB's semi-synchronous primary waits for its replica at the server's default, \
         rpl_semi_sync_master_wait_point={WAIT_POINT}: others see a commit before it is acknowledged, and may have read what is \
         lost with the primary. Under Lockstep's semisync and quorum nobody sees one on the server that it is made on until it is \
         acknowledged."
    )
}

fn side(setup: Setup) -> Side {
    match setup {
        Setup::Galera => Side::Galera,
        _ if setup.is_ours() => Side::Lockstep,
        _ => Side::MariaDb,
    }
}

fn bars(results: &Results, setups: &[Setup], title: String, unit: &str, field: &str) -> Chart {
    let bar = |setup: &Setup| Bar::of(setup.what(), stat(results, *setup, 1, field), side(*setup));
    Chart::Bars(Bars { title, unit: unit.into(), log: true, bars: setups.iter().map(bar).collect() })
}

fn one_connection(results: &Results, setups: &[Setup], rtt: f64) -> Section {
    let mut head = vec!["one connection", "inserts/s", "of no replica"];
    // Of its distance only.
    head.extend((rtt == POST_RTT).then_some("the post, 2012"));
    let mut table = Table::new(&head);
    let base = stat(results, Setup::Alone, 1, "inserts_per_s");
    for setup in setups {
        let rate = stat(results, *setup, 1, "inserts_per_s");
        let part = rate.zip(base).map_or_else(
            || "–".into(),
            |(rate, base)| {
                let part = Known::of(rate).by(Known::of(base));
                format!("{:.1} %{}", 100.0 * part.value, if part.doubtful { DOUBT } else { "" })
            },
        );
        let post = match setup {
            Setup::Alone => "1066",
            Setup::MariadbAsync => "943",
            Setup::MariadbSemiSync => "11.5",
            _ => "",
        };
        let cells = [setup.what().into(), text(rate), part].into_iter();
        table.row(cells.chain((rtt == POST_RTT).then(|| post.into())));
    }
    Section {
        heading: "One connection".into(),
        text: format!(
            "A commit that waits for the far copy takes a round trip: at most {} inserts/s. Under Lockstep's quorum and \
             semisync a near member, or a near arbitrator without a database, has the transaction on its disk before the \
             client hears of it, and the far copy follows a moment later.",
            number(1e3 / rtt)
        ),
        chart: Some(bars(
            results,
            setups,
            format!("Inserts per second of one connection; the far copy is {rtt} ms away"),
            "inserts/s",
            "inserts_per_s",
        )),
        table,
        notes: vec![results.repeats_text()],
    }
}

fn commit_times(results: &Results, setups: &[Setup], rtt: f64) -> Section {
    let mut table = Table::new(&["one connection, ms", "shortest", "median", "95 %", "99 %", "longest"]);
    for setup in setups {
        let cell = |field| stat(results, *setup, 1, field).map_or_else(|| "–".into(), |s| s.median_text());
        let fields = ["ms_min", "ms_median", "ms_95", "ms_99", "ms_max"];
        table.row(std::iter::once(setup.what().to_owned()).chain(fields.map(cell)));
    }
    Section {
        heading: "How long a commit takes".into(),
        text: String::new(),
        chart: Some(bars(
            results,
            setups,
            format!("Median time of one insert, one connection; the far copy is {rtt} ms away"),
            "ms, less is better",
            "ms_median",
        )),
        table,
        notes: vec![results.repeats_text()],
    }
}

fn many_connections(
    results: &Results,
    setups: &[Setup],
    clients: &[u64],
    heading: &str,
    what: &str,
) -> Section {
    let mut head = vec!["inserts/s by connections".to_owned()];
    head.extend(clients.iter().map(u64::to_string));
    let mut table = Table { head, rows: Vec::new() };
    let mut notes = Vec::new();
    let mut series = Vec::new();
    for setup in setups {
        let stats = clients.iter().map(|count| (*count, stat(results, *setup, *count, "inserts_per_s")));
        let stats: Vec<(u64, Option<Stat>)> = stats.collect();
        table.row(std::iter::once(setup.what().to_owned()).chain(stats.iter().map(|(_, stat)| text(*stat))));
        let point = |(count, stat): &(u64, Option<Stat>)| {
            stat.map(|stat| (*count as f64, stat.median, stat.deviation))
        };
        let points = stats.iter().filter_map(point).collect();
        let variant = variant(&Setup::EACH, side, *setup);
        series.push(Series { name: setup.what().into(), side: side(*setup), variant, points, level: false });
    }
    for setup in setups {
        let last = clients.last().copied().unwrap_or(1);
        if let Some(slow) = stat(results, *setup, last, "ms_99") {
            notes.push(format!(
                "{}: 99 % of the commits of {last} connections within {} ms.{}",
                setup.what(),
                number(slow.median),
                slow.doubt()
            ));
        }
    }
    Section {
        heading: heading.into(),
        text: what.into(),
        chart: Some(Chart::Lines(Lines {
            title: heading.into(),
            x: "connections (logarithmic)".into(),
            y: "inserts/s".into(),
            x_log: true,
            y_log: true,
            series,
        })),
        table,
        notes,
    }
}

/// The claims, beside the measurements.
fn targets(results: &Results, rtt: f64) -> Section {
    let mut claims = Claims::new("claim");
    let median =
        |setup: Setup, clients: u64, field| results.median(setup.name(), field, |m| m["clients"] == clients);
    let one = |setup, field| median(setup, 1, field);
    claims.at_most(
        "quorum, one far member of three: time of a commit against that of three near ones",
        1.5,
        ratio(one(Setup::Quorum, "ms_median"), one(Setup::QuorumNear, "ms_median")),
    );
    let galera = ratio(one(Setup::Quorum, "inserts_per_s"), one(Setup::Galera, "inserts_per_s"));
    let against = "the same, inserts/s against Galera's";
    // Galera's is one per round trip: how many times as many ours are is a question of the distance.
    match rtt == POST_RTT {
        true => claims.at_least(against, 50.0, galera),
        false => claims.told(against, galera),
    }
    let time = |setup| one(setup, "ms_median");
    claims.told(
        "log members near: time of a commit against MariaDB's semi-sync AFTER_SYNC with a near replica, which flushes later",
        ratio(time(Setup::IngestNear), time(Setup::MariadbAfterSyncNear)),
    );
    claims.at_most(
        "log members, one of three far: time of a commit against three near ones",
        1.5,
        ratio(time(Setup::IngestMajority), time(Setup::IngestNear)),
    );
    claims.at_most(
        "log members, two of three far: time of a commit against MariaDB's semi-sync AFTER_SYNC with a far replica",
        1.3,
        ratio(time(Setup::IngestFar), time(Setup::MariadbAfterSync)),
    );
    for (setup, what) in [
        (Setup::SemiSyncTwo, "semisync, the only other member far"),
        (Setup::SemiSyncTwoReceive, "the same, acknowledged on receipt"),
    ] {
        let two = one(setup, "inserts_per_s");
        let claim = format!("{what}: inserts/s of one connection against one per round trip");
        claims.at_least(claim, 0.97, two.clone().map(|rate| rate.times(rtt / 1e3)));
        let together = ratio(median(setup, 64, "inserts_per_s"), two);
        claims.at_least(format!("{what}: 64 connections against one"), 60.0, together);
    }
    let of = |run: &Value, field: &str| {
        Some(run["line_to_far"][field].as_u64()? + run["line_from_far"][field].as_u64()?)
    };
    let packets: u64 = results.runs.iter().filter_map(|run| of(run, "packets")).sum();
    let late: Option<u64> = results.runs.iter().map(|run| of(run, "over_1_ms_late")).sum();
    let notes = vec![match late {
        Some(late) => format!(
            "Of {packets} packets over the long line {late} arrived more than 1 ms after they were due, because the machine \
             was busy; none arrives early."
        ),
        None => format!("Of {packets} packets over the long line nobody knows whether they were late."),
    }];
    claims.section(notes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::lab::markup::texts;
    use crate::semi_sync_wan::Connection;
    use crate::wan::Counters;

    fn spec() -> Spec {
        Spec {
            provider: "x".into(),
            galera: "x".into(),
            lockstep: None,
            round_trip: Duration::from_micros(85_500),
            inserts: 10,
            far_inserts: 10,
            clients: vec![64],
            window: Duration::from_secs(1),
        }
    }

    fn load(clients: usize, ms: u64) -> Load {
        let connection =
            Connection { inserts: vec![ms * 1_000_000; 10], elapsed: Duration::from_millis(10 * ms) };
        Load::of(vec![connection; clients])
    }

    fn results(setups: &[Setup]) -> Results {
        let mut runs = Vec::new();
        for repeat in 1..=3 {
            for setup in setups {
                let ms = if setup.waits_for_far() { 86 } else { repeat };
                let run = Run {
                    version: "10.11".into(),
                    loads: vec![load(1, ms), load(64, ms)],
                    round_trip: Duration::from_millis(86),
                    there: Counters { delivered: 10, late: 1, ..Counters::default() },
                    back: Counters::default(),
                    configurations: Vec::new(),
                };
                let outcome = outcome(&spec(), &run);
                assert_eq!(outcome.samples.len(), 65);
                assert_eq!(outcome.samples[0]["us"][9], ms * 1000);
                let mut run = json!({ "setup": setup.name(), "repeat": repeat, "version": "10.11",
                    "measurements": outcome.measurements });
                for (name, value) in outcome.more {
                    run[name] = value;
                }
                runs.push(run);
            }
        }
        let about = json!({ "experiment": NAME, "parameters": { "round_trip_ms": 85.5 } });
        Results { about, runs, failed: Vec::new(), config: Vec::new() }
    }

    #[test]
    fn report_has_each_setup_with_its_median() {
        let results = results(&Setup::EACH);
        let page = page(&results);
        let html = page.html(&results);
        let (texts, terminal) = (texts(&html), page.text(&results));
        for setup in Setup::EACH {
            // In two bar charts, a line chart, and a table below each.
            assert!(texts.iter().filter(|text| *text == setup.what()).count() >= 6, "{setup:?}");
            assert!(terminal.lines().any(|line| line.starts_with(setup.what())), "{terminal}");
        }
        let row = terminal.lines().find(|line| line.starts_with(Setup::Alone.what())).unwrap();
        let cells: Vec<&str> = row[Setup::Alone.what().len()..].split_whitespace().collect();
        assert_eq!(cells, ["500", "±", "347", "100.0", "%", "1066"]);
        assert!(terminal.contains("Of 540 packets over the long line 54 arrived"), "{terminal}");
    }

    #[test]
    fn claims_are_judged_by_what_was_measured() {
        let results = results(&[Setup::Quorum, Setup::QuorumNear, Setup::Galera, Setup::SemiSyncTwo]);
        let rows = targets(&results, 85.5).table.rows;
        let verdicts: Vec<(&str, &str)> = rows.iter().map(|row| (row[2].as_str(), row[3].as_str())).collect();
        assert_eq!(verdicts[..2], [("1.00", "met"), ("43.0", "MISSED")]);
        assert!(verdicts[2..4].iter().all(|(measured, _)| *measured == "not measured"), "{verdicts:?}");
        assert_eq!(verdicts[4..6], [("0.994", "met"), ("64.0", "met")]);
        // Of another distance something else would have to be claimed.
        assert_eq!(targets(&results, 10.0).table.rows[1][1..], ["–", "43.0", ""]);
        // Cases that did not run are listed, and not judged.
        let rows = targets(&results, 85.5).table.rows;
        let why = "lockstep-semisync-two-receive: not chosen";
        assert_eq!(rows[6][2..], ["not measured", why]);
    }

    #[test]
    fn post_figures_keep_distance_and_doubt_marks() {
        let mut results = results(&[Setup::Alone, Setup::Quorum]);
        let near = one_connection(&results, &[Setup::Alone], 10.0);
        assert_eq!((near.table.head.len(), near.table.rows[0].len()), (3, 3));
        for run in &mut results.runs {
            for measurement in run["measurements"].as_array_mut().unwrap() {
                measurement[crate::commands::lab::drive::LINE_LATE] = true.into();
            }
        }
        let one = one_connection(&results, &[Setup::Quorum], 85.5);
        assert_eq!(one.table.rows[0][2..], ["100.0 % †", ""]);
        let many = many_connections(&results, &[Setup::Quorum], &[1, 64], "x", "y");
        assert!(many.notes[0].ends_with("64 connections within 2.00 ms. †"), "{:?}", many.notes);
    }

    #[test]
    fn set_ups_have_names() {
        assert_eq!(setup("alone"), Ok(Setup::Alone));
        assert!(setup("else").unwrap_err().contains("lockstep-quorum"));
    }
}
