//! `lockstep lab parallel-apply`.

use std::process::ExitCode;
use std::time::Duration;

use crate::parallel_apply::{
    Case as What, Choice, Family, GROUP_COUNT, GROUP_WAIT_US, ParallelApply, Run, SCHEMAS, Side, Spec, check,
};
use serde_json::{Value, json};

use super::drive::{Case, CaseResult, Common, drive, finish};
use super::numbers::{Known, Stat, number, text};
use super::page::{Claims, Page, Section, Table, ratio};
use super::results::{NOT_CHOSEN, Results, stat_of};
use super::svg::{self, Bar, Bars, Chart, Lines, Series};

/// Its name.
pub(super) const NAME: &str = "parallel-apply";
/// With so many workers what is claimed is judged.
const JUDGED: u64 = 10;

/// Options of `lockstep lab parallel-apply`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Numbers of workers, separated by commas [default: 1,2,4,6,8,10,16,24; with --quick 1,10].
    #[arg(long, value_delimiter = ',', value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: Vec<u32>,
    /// Updates of each run; on the slow disk a tenth of that, with --quick a fifth [default: 100000; with --quick 6000].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1000..=10_000_000))]
    updates: Option<u32>,
    /// How much longer an fsync takes on the slow disk, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=100))]
    slow: u64,
    /// Only these set-ups, separated by commas, by their names in results or parts of them, which leave the rest open:
    /// lockstep-writeset, mariadb-optimistic, mariadb-10w, 10s-flush, lockstep-schema-10w-10s-slow-disk, ...
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    setups: Vec<Choice>,
}

/// Runs the experiment.
pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let common = &args.common;
    let quick = common.quick;
    let updates = args.updates.unwrap_or(if quick { 6_000 } else { 100_000 });
    let repeats = common.repeats();
    let workers = match args.workers.as_slice() {
        [] if quick => vec![1, 10],
        [] => vec![1, 2, 4, 6, 8, 10, 16, 24],
        given => given.to_vec(),
    };
    let spec = Spec {
        provider: common.provider()?,
        lockstep: std::env::current_exe().ok(),
        rows: 10_000,
        updates,
        slow_updates: if quick { updates / 5 } else { updates / 10 },
        connections: 100,
        slow: Duration::from_millis(args.slow),
    };
    let parameters = json!({ "repeats": repeats, "updates": updates, "updates_on_the_slow_disk": spec.slow_updates,
        "rows_of_each_table": spec.rows, "connections_that_write": spec.connections, "workers": workers,
        "set_ups": set_ups(&args.setups),
        "slow_disk_adds_ms": args.slow, "binlog_commit_wait_count": GROUP_COUNT, "binlog_commit_wait_usec": GROUP_WAIT_US });
    let whats = chosen(&workers, &args.setups)?;
    let seconds = |what: &What| {
        let (count, each) = match (what.slow, what.workers > 1) {
            (true, false) => (spec.slow_updates, 0.003),
            (true, true) => (spec.slow_updates, 0.0005),
            (false, _) => (updates, 0.000_15),
        };
        1.0 + f64::from(count) * (each + 0.000_08)
    };
    let case =
        |what: &What| Case { setup: what.name(), what: describe(what), seconds: seconds(what), absent: None };
    let cases: Vec<Case> = whats.iter().map(case).collect();
    check().map_err(|e| e.to_string())?;
    let mut folder = common.folder(NAME, parameters)?;
    let mut lab = ParallelApply::new(spec);
    let failed = drive(&mut folder, &cases, repeats, |case| {
        let what = whats.iter().find(|what| what.name() == case.setup).ok_or("no such set-up")?;
        let run = lab.run(what).map_err(|e| e.to_string())?;
        Ok(outcome(what, &run))
    });
    Ok(finish(&folder, &failed, page))
}

/// The choices of the command line as parameters, in the order given.
fn set_ups(choices: &[Choice]) -> Value {
    let mut names: Vec<&str> = choices.iter().map(Choice::text).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() { "all".into() } else { names.into() }
}

/// The cases to measure: those that a choice selects, or all. A choice that selects none is an error.
fn chosen(workers: &[u32], choices: &[Choice]) -> Result<Vec<What>, String> {
    let mut cases = cases(workers);
    if let Some(none) = choices.iter().find(|choice| !cases.iter().any(|case| choice.is(case))) {
        let workers: Vec<String> = workers.iter().map(u32::to_string).collect();
        return Err(format!(
            "--setups: none of the set-ups is {}; with the numbers of workers {} (--workers) there are {}, ...",
            none.text(),
            workers.join(", "),
            cases.iter().take(3).map(What::name).collect::<Vec<_>>().join(", ")
        ));
    }
    cases.retain(|case| choices.is_empty() || choices.iter().any(|choice| choice.is(case)));
    Ok(cases)
}

/// All cases, ours and MariaDB's in turn.
fn cases(workers: &[u32]) -> Vec<What> {
    let most = workers.iter().copied().find(|count| u64::from(*count) == JUDGED);
    let slow: Vec<u32> = most.or(workers.last().copied()).into_iter().collect();
    let mut cases = Vec::new();
    for (schemas, flush, on_slow) in [
        (SCHEMAS, true, false),
        (SCHEMAS, false, false),
        (1, true, false),
        (1, false, false),
        (SCHEMAS, true, true),
        (1, true, true),
    ] {
        for (at, count) in (if on_slow { &slow } else { workers }).iter().enumerate() {
            for side in Side::EACH {
                let workers = if side.is_single() { 0 } else { *count };
                // Where the position is was compared with ten schemas only.
                if (!side.is_single() || at == 0) && (!side.has_file() || (schemas == SCHEMAS && !on_slow)) {
                    cases.push(What { side, workers, schemas, flush, slow: on_slow });
                }
            }
        }
    }
    cases
}

fn describe(what: &What) -> String {
    let schemas = if what.schemas == 1 { "one schema".into() } else { format!("{} schemas", what.schemas) };
    let disk = match (what.slow, what.flush) {
        (true, _) => "slow disk",
        (false, true) => "flush at commit",
        (false, false) => "relaxed",
    };
    let workers = match what.workers {
        0 => String::new(),
        1 => ", 1 worker".into(),
        count => format!(", {count} workers"),
    };
    format!("{}{workers}, {schemas}, {disk}", what.side.what())
}

fn outcome(what: &What, run: &Run) -> CaseResult {
    let mut outcome = CaseResult {
        version: run.version.clone(),
        configurations: run.configurations.clone(),
        headline: format!("{} updates/s", number(run.rate())),
        ..CaseResult::default()
    };
    let mut measurement = json!({
        "side": what.side.setting(),
        "workers": what.workers,
        "schemas": what.schemas,
        "flush": what.flush,
        "slow": what.slow,
        "updates": run.updates,
        "seconds": run.elapsed.as_secs_f64(),
        "updates_per_s": run.rate(),
        "processor_us_per_update": run.cpu.as_secs_f64() * 1e6 / f64::from(run.updates),
        "flushes": run.flushes,
        "applied_again": run.retried,
        "written_in_s": run.written_in.as_secs_f64(),
    });
    if let Some((commits, groups)) = run.groups {
        measurement["binlog_commits"] = commits.into();
        measurement["binlog_group_commits"] = groups.into();
    }
    outcome.measurements.push(measurement);
    let progress = run.progress.iter().map(|(at, done)| json!({ "s": at.as_secs_f64(), "applied": done }));
    outcome.samples = progress.collect();
    outcome
}

/// A part of the results: what differs in it are the sides and the numbers of workers.
#[derive(Clone, Copy)]
struct Part<'a> {
    results: &'a Results,
    schemas: u64,
    flush: bool,
    slow: bool,
}

impl Part<'_> {
    fn measurements(&self, side: Side) -> impl Iterator<Item = &Value> {
        let part = *self;
        let all = part.results.runs.iter().filter_map(|run| run["measurements"].as_array()).flatten();
        all.filter(move |m| {
            m["side"] == side.setting()
                && m["schemas"] == part.schemas
                && m["flush"] == part.flush
                && m["slow"] == part.slow
        })
    }

    fn stat(&self, side: Side, workers: u64, field: &str) -> Option<Stat> {
        stat_of(self.measurements(side).filter(|m| m["workers"] == workers), field)
    }

    /// Of the binlog that MariaDB's replica applied: how many commits there were in a group.
    fn group_size(&self) -> Option<f64> {
        let sum = |field: &str| -> u64 {
            Side::EACH
                .iter()
                .flat_map(|side| self.measurements(*side))
                .filter_map(|m| m[field].as_u64())
                .sum()
        };
        let (commits, groups) = (sum("binlog_commits"), sum("binlog_group_commits"));
        (groups > 0).then(|| commits as f64 / groups as f64)
    }

    fn name(&self, side: Side, workers: u64) -> String {
        let workers = u32::try_from(workers).unwrap_or(u32::MAX);
        let schemas = u32::try_from(self.schemas).unwrap_or(u32::MAX);
        What { side, workers, schemas, flush: self.flush, slow: self.slow }.name()
    }

    fn rate(&self, side: Side, workers: u64) -> Result<Known, String> {
        let stat = self.stat(side, workers, "updates_per_s");
        self.results.known(&self.name(side, workers), stat)
    }

    /// Whether it was measured, or was to be.
    fn has(&self, side: Side, workers: u64) -> bool {
        self.results.setups().contains(&self.name(side, workers).as_str())
    }

    /// Numbers of workers that were asked for, or measured.
    fn asked(&self) -> Vec<u64> {
        let asked = self.results.about["parameters"]["workers"].as_array().into_iter().flatten();
        let measured = Side::EACH.iter().flat_map(|side| self.measurements(*side));
        let mut all: Vec<u64> =
            measured.map(|m| &m["workers"]).chain(asked).filter_map(Value::as_u64).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Numbers of workers that were measured, or were to be.
    fn workers(&self) -> Vec<u64> {
        let mut all = self.asked();
        if all.first() != Some(&0) {
            all.insert(0, 0);
        }
        all.retain(|workers| Side::EACH.iter().any(|side| self.has(*side, *workers)));
        all
    }

    /// MariaDB's best: in whatever mode, with however many workers.
    fn rivals_best(&self) -> Result<Known, String> {
        self.best_of(|side| side.family() == Family::MariaDb)
    }

    /// The best that is applied one after the other: workers are of no use to it, but neither may they be to its harm.
    fn best_serial(&self) -> Result<Known, String> {
        self.best_of(|side| side == Side::Serial)
    }

    /// The best of these, with however many workers. Unless all of them were measured it is not known, also where some were
    /// not even chosen.
    fn best_of(&self, wanted: impl Fn(Side) -> bool) -> Result<Known, String> {
        let asked = self.asked().into_iter().filter(|workers| *workers > 0);
        let asked: Vec<u32> = asked.filter_map(|workers| workers.try_into().ok()).collect();
        let here = |case: &What| {
            (u64::from(case.schemas), case.flush, case.slow) == (self.schemas, self.flush, self.slow)
        };
        let rates = cases(&asked)
            .into_iter()
            .filter(|case| here(case) && wanted(case.side))
            .map(|case| self.rate(case.side, case.workers.into()));
        let rates = rates.collect::<Result<Vec<Known>, String>>()?;
        let best = rates.iter().copied().max_by(|a, b| a.value.total_cmp(&b.value)).ok_or(NOT_CHOSEN)?;
        // One that has fewer repeats might be the best with all of them.
        Ok(rates.into_iter().fold(best, Known::rests_on))
    }
}

/// The report, from results alone.
pub(super) fn page(results: &Results) -> Page {
    let part = |schemas: u32, flush, slow| Part { results, schemas: schemas.into(), flush, slow };
    let slow = results.about["parameters"]["slow_disk_adds_ms"].as_u64().unwrap_or(0);
    let mut sections = Vec::new();
    for (schemas, name) in [(SCHEMAS, "Ten schemas"), (1, "One schema")] {
        sections.push(by_workers(
            &part(schemas, true, false),
            &format!("{name}, innodb_flush_log_at_trx_commit=1"),
            "Each server's InnoDB makes each transaction durable. A worker that waits for the disk does nothing else, and \
             transactions whose commits wait together share a flush.",
        ));
        sections.push(by_workers(
            &part(schemas, false, false),
            &format!("{name}, innodb_flush_log_at_trx_commit=0"),
            "InnoDB's log goes to the disk once a second. Ours loses nothing by that, for a transaction was in the \
             member's own log, on the disk, before it was applied; MariaDB's replica does lose it when the machine fails, \
             and asks its primary again only if its own position was lost with it.",
        ));
        sections
            .push(slow_disk(&part(schemas, true, true), &format!("{name}, a flush takes {slow} ms more")));
    }
    sections.retain(|section| !section.table.rows.is_empty());
    sections.push(targets(results));
    Page {
        title: "How fast a copy catches up".into(),
        lead: vec![
            "The post of 2011: ten schemas with 10,000 rows each, 100,000 updates of random rows that a replica had received \
             and not applied; then it was let go. With ten workers on ten schemas it was five times as fast as with none. \
             Its disks took milliseconds to flush."
                .into(),
            "Here MariaDB's own replica and a Lockstep member do the same in turn on one machine; the member keeps its log, \
             and the replica its relay log, before they are let go. MariaDB 10.11 keeps its position in a table \
             (mysql.gtid_slave_pos), and without GTIDs (MASTER_USE_GTID=no) in the file relay-log.info, too; ours is in InnoDB's \
             own commit."
                .into(),
        ],
        sections,
    }
}

fn family(side: Side) -> svg::Side {
    if side.is_ours() { svg::Side::Lockstep } else { svg::Side::MariaDb }
}

fn by_workers(part: &Part<'_>, heading: &str, what: &str) -> Section {
    let workers = part.workers();
    let mut head = vec!["updates/s by workers".to_owned()];
    head.extend(workers.iter().map(u64::to_string));
    head.push("processor µs each".into());
    let mut table = Table { head, rows: Vec::new() };
    let mut series = Vec::new();
    let mut notes = Vec::new();
    for side in Side::EACH {
        let stats: Vec<(u64, Option<Stat>)> =
            workers.iter().map(|count| (*count, part.stat(side, *count, "updates_per_s"))).collect();
        if !workers.iter().any(|count| part.has(side, *count)) {
            continue;
        }
        let most = stats.iter().rev().find(|(_, stat)| stat.is_some()).map_or(0, |(count, _)| *count);
        let cpu = part.stat(side, most, "processor_us_per_update");
        let cells = stats.iter().map(|(_, stat)| text(*stat));
        let last = cpu.map_or_else(|| "–".into(), |stat| number(stat.median));
        table.row(std::iter::once(side.what()).chain(cells).chain([last]));
        let point = |(count, stat): &(u64, Option<Stat>)| {
            stat.map(|stat| (*count as f64, stat.median, stat.deviation))
        };
        let points = stats.iter().filter_map(point).collect();
        let variant = svg::variant(&Side::EACH, family, side);
        let level = side.is_single();
        series.push(Series { name: side.what(), side: family(side), variant, points, level });
        let again: u64 = part.measurements(side).filter_map(|m| m["applied_again"].as_u64()).sum();
        if again > 0 {
            notes.push(format!(
                "{}: {again} transactions met others that came before them, and were applied again.",
                side.what()
            ));
        }
    }
    if let Some(size) = part.group_size() {
        notes.push(format!("MariaDB's primary had committed {} updates in a group.", number(size)));
    }
    notes.push(format!(
        "The last column is of the largest number of workers. {}",
        part.results.repeats_text()
    ));
    Section {
        heading: heading.into(),
        text: what.into(),
        chart: (!series.is_empty()).then(|| {
            Chart::Lines(Lines {
                title: heading.into(),
                x: "workers (0: the SQL thread applies; its line goes on to compare with)".into(),
                y: "updates/s".into(),
                x_log: false,
                y_log: false,
                series,
            })
        }),
        table,
        notes,
    }
}

fn slow_disk(part: &Part<'_>, heading: &str) -> Section {
    let mut table = Table::new(&["slow disk", "workers", "updates/s", "updates per flush"]);
    let mut bars = Vec::new();
    for side in Side::EACH {
        for workers in part.workers() {
            if !part.has(side, workers) {
                continue;
            }
            let rate = part.stat(side, workers, "updates_per_s");
            let field = |name: &str| part.stat(side, workers, name).map_or(f64::NAN, |stat| stat.median);
            let each = field("updates") / field("flushes");
            table.row([side.what(), workers.to_string(), text(rate), number(each)]);
            bars.push(Bar::of(side.what(), rate, family(side)));
        }
    }
    Section {
        heading: heading.into(),
        text: "As on the post's disks. The flushes of the copy's process are held back by the kernel's seccomp notification, \
               the same way for both; innodb_flush_log_at_trx_commit=1."
            .into(),
        chart: (!bars.is_empty()).then(|| {
            Chart::Bars(Bars {
                title: heading.into(),
                unit: "updates/s".into(),
                log: false,
                bars,
            })
        }),
        table,
        notes: vec![part.results.repeats_text()],
    }
}

/// The claims, beside the measurements.
fn targets(results: &Results) -> Section {
    let mut claims = Claims::new("claim, with 10 workers");
    let part = |schemas: u32, flush, slow| Part { results, schemas: schemas.into(), flush, slow };
    for (schemas, side, name) in [
        (SCHEMAS, Side::Schema, "ten schemas, schema"),
        (SCHEMAS, Side::Writeset, "ten schemas, writeset"),
        (1, Side::Writeset, "one schema, writeset"),
    ] {
        let (flush, relaxed, slow) =
            (part(schemas, true, false), part(schemas, false, false), part(schemas, true, true));
        let ours = flush.rate(side, JUDGED);
        let serial = flush.best_serial();
        claims.at_least(format!("{name}, flush: against the best serial"), 3.0, ratio(ours.clone(), serial));
        claims.at_least(
            format!("{name}, flush: against MariaDB's best"),
            1.0,
            ratio(ours, flush.rivals_best()),
        );
        claims.at_least(
            format!("{name}, each durable in its own way: against MariaDB's best"),
            1.3,
            ratio(relaxed.rate(side, JUDGED), flush.rivals_best()),
        );
        let on_slow = ratio(slow.rate(side, JUDGED), slow.rate(Side::Serial, JUDGED));
        claims.at_least(format!("{name}, slow disk: against serial"), 5.0, on_slow);
    }
    let asked = part(SCHEMAS, true, false).asked().into_iter().filter(|workers| *workers > 0);
    let asked: Vec<String> = asked.map(|workers| workers.to_string()).collect();
    let notes = vec![format!(
        "MariaDB's best is that of all its modes, without workers and with as many as were chosen ({0}), the best serial that of \
         these numbers of workers. Each in its own way: its replica flushes InnoDB's log at each commit, our member its own log \
         before that.",
        asked.join(", ")
    )];
    claims.section(notes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::lab::markup::texts;

    /// Ours are thrice as fast with ten workers, but for `serial`; MariaDB's are as fast as ours with one.
    fn results() -> Results {
        let mut runs = Vec::new();
        for what in cases(&[1, 10]) {
            let fast = what.workers == 10 && what.side.is_ours() && what.side != Side::Serial;
            let run = Run {
                version: "10.11".into(),
                updates: 3000,
                elapsed: Duration::from_secs(if fast { 1 } else { 3 }),
                written_in: Duration::from_secs(1),
                groups: (!what.side.is_ours()).then_some((3000, 150)),
                cpu: Duration::from_secs(1),
                flushes: 300,
                retried: u64::from(what.side == Side::Optimistic),
                progress: vec![(Duration::from_secs(1), 3000)],
                configurations: Vec::new(),
            };
            let outcome = outcome(&what, &run);
            assert_eq!(outcome.samples, [json!({ "s": 1.0, "applied": 3000 })]);
            runs.push(json!({ "setup": what.name(), "repeat": 1, "version": "10.11",
                "measurements": outcome.measurements }));
        }
        let about = json!({ "experiment": NAME, "parameters": { "slow_disk_adds_ms": 2 } });
        Results { about, runs, failed: Vec::new(), config: Vec::new() }
    }

    #[test]
    fn each_setup_has_unique_name_and_place_in_report() {
        let results = results();
        let mut names: Vec<&str> = results.setups();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!((count, results.runs.len()), (names.len(), names.len()));
        let page = page(&results);
        let html = page.html(&results);
        let texts = texts(&html);
        for side in Side::EACH {
            // In four line charts and two bar charts, with a table each; file-backed setups in two line charts.
            let seen = texts.iter().filter(|text| **text == side.what()).count();
            assert!(seen >= if side.has_file() { 4 } else { 12 }, "{}: {seen}", side.what());
        }
        let terminal = page.text(&results);
        let line = terminal.lines().find(|line| line.starts_with("Lockstep writeset")).unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells, ["Lockstep", "writeset", "–", "1000", "3000", "333"]);
        assert!(terminal.contains("MariaDB's primary had committed 20.0 updates in a group."), "{terminal}");
        assert!(terminal.contains("MariaDB optimistic: 2 transactions met others"), "{terminal}");
    }

    fn choices(texts: &[&str]) -> Vec<Choice> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn set_ups_are_chosen_by_name_and_take_their_turns_as_ever() {
        let all = cases(&[1, 10]);
        assert_eq!(chosen(&[1, 10], &[]).unwrap(), all);
        let two = choices(&["mariadb-optimistic-10w", "lockstep-writeset-10s-flush", "mariadb-optimistic"]);
        let names: Vec<String> = chosen(&[1, 10], &two).unwrap().iter().map(What::name).collect();
        assert_eq!(
            names[..5],
            [
                "lockstep-writeset-1w-10s-flush",
                "mariadb-optimistic-1w-10s-flush",
                "lockstep-writeset-10w-10s-flush",
                "mariadb-optimistic-10w-10s-flush",
                "mariadb-optimistic-1w-10s-relaxed"
            ]
        );
        assert_eq!(names.len(), 2 + 10);
        // To resume with the same ones in another order is no other experiment.
        assert_eq!(set_ups(&choices(&["10w", "10w"])), json!(["10w"]));
        assert_eq!(set_ups(&choices(&["mariadb", "10w"])), set_ups(&choices(&["10w", "mariadb"])));
        assert_eq!(set_ups(&[]), "all");
        for (text, why) in
            [("7w", "is 7w; with the numbers of workers 1, 10"), ("lockstep-0w", "is lockstep-0w;")]
        {
            let refused = chosen(&[1, 10], &choices(&[text])).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn partial_report_judges_only_measured_setups() {
        let mut results = results();
        let names = ["lockstep-writeset", "mariadb-optimistic-10s", "lockstep-serial-10w"];
        let chosen = chosen(&[1, 10], &choices(&names)).unwrap();
        let names: Vec<String> = chosen.iter().map(What::name).collect();
        results.runs.retain(|run| names.iter().any(|name| run["setup"] == name.as_str()));
        let plan = chosen.iter().map(|case| json!({ "setup": case.name(), "what": describe(case) }));
        results.about["plan"] = plan.collect();
        results.about["repeats"] = json!(1);
        results.about["parameters"]["workers"] = json!([1, 10]);
        let text = page(&results).text(&results);
        assert!(!text.contains("MariaDB conservative") && !text.contains("What is missing"), "{text}");
        assert!(text.contains("Lockstep writeset") && text.contains("MariaDB optimistic"), "{text}");
        let rows = targets(&results).table.rows;
        let writeset: Vec<(&str, &str)> =
            rows[4..8].iter().map(|row| (row[2].as_str(), row[3].as_str())).collect();
        let not = |why| ("not measured", why);
        assert_eq!(
            writeset,
            [
                not("lockstep-serial-1w-10s-flush: not chosen"),
                not("mariadb-none-0w-10s-flush: not chosen"),
                not("mariadb-none-0w-10s-flush: not chosen"),
                ("3.00", "MISSED"),
            ]
        );
    }

    #[test]
    fn setup_without_workers_is_plotted_at_zero() {
        let results = results();
        let charts = page(&results).sections.into_iter().filter_map(|section| section.chart);
        let lines = charts.filter_map(|chart| match chart {
            Chart::Lines(lines) => Some(lines),
            Chart::Bars(_) => None,
        });
        let all: Vec<Series> = lines.flat_map(|lines| lines.series).collect();
        let (without, with): (Vec<_>, Vec<_>) =
            all.iter().partition(|series| series.name.starts_with("MariaDB, no workers"));
        assert_eq!((without.len(), with.len()), (6, 34));
        assert!(without.iter().all(|series| series.level && series.points.len() == 1));
        assert!(without.iter().all(|series| series.points[0].0 == 0.0), "{without:?}");
        assert!(with.iter().all(|series| !series.level && series.points[0].0 == 1.0), "{with:?}");
    }

    #[test]
    fn claims_are_judged_by_what_was_measured() {
        let rows = targets(&results()).table.rows;
        let verdicts: Vec<(&str, &str)> = rows.iter().map(|row| (row[2].as_str(), row[3].as_str())).collect();
        let each = [("3.00", "met"), ("3.00", "met"), ("3.00", "met"), ("3.00", "MISSED")];
        assert_eq!(verdicts, [each, each, each].concat());
        // Cases that did not run are listed, and not judged.
        let nothing = Results { about: json!({}), runs: Vec::new(), failed: Vec::new(), config: Vec::new() };
        let rows = targets(&nothing).table.rows;
        assert_eq!(rows.len(), verdicts.len());
        assert!(rows.iter().all(|row| row[2] == "not measured"), "{rows:?}");
    }

    #[test]
    fn setup_with_missing_repeats_is_marked() {
        let mut results = results();
        results.about["repeats"] = json!(2);
        results.about["parameters"]["workers"] = json!([1, 10]);
        for mut run in results.runs.clone() {
            run["repeat"] = json!(2);
            results.runs.push(run);
        }
        let verdicts = |results: &Results| -> Vec<String> {
            targets(results).table.rows[..4].iter().map(|row| row[3].clone()).collect()
        };
        assert_eq!(verdicts(&results), ["met", "met", "met", "MISSED"]);
        results.runs.retain(|run| run["repeat"] == 1 || run["setup"] != "mariadb-optimistic-1w-10s-flush");
        let partly = "met (1 of 2 repeats)";
        assert_eq!(verdicts(&results), ["met", partly, partly, "MISSED"]);
        results.runs.retain(|run| run["repeat"] == 1 || run["setup"] != "lockstep-schema-10w-10s-flush");
        let failed = json!({ "setup": "lockstep-schema-10w-10s-flush", "repeat": 2, "why": "rows differ" });
        results.failed.push(failed);
        assert_eq!(verdicts(&results)[0], "met (1 of 2 repeats, others failed)");
        let notes = targets(&results).notes;
        assert!(notes[0].contains("as many as were chosen (1, 10)"), "{notes:?}");
    }

    #[test]
    fn without_one_of_the_rivals_their_best_is_not_known() {
        let mut results = results();
        let plan = results.runs.iter().map(|run| json!({ "setup": run["setup"], "what": "x" }));
        results.about["plan"] = plan.collect();
        results.about["parameters"]["workers"] = json!([1, 10]);
        results.runs.retain(|run| run["setup"] != "mariadb-optimistic-10w-10s-flush");
        let why = json!("it broke");
        results.failed.push(json!({ "setup": "mariadb-optimistic-10w-10s-flush", "repeat": 1, "why": why }));
        let rows = targets(&results).table.rows;
        let judged: Vec<&str> = rows[..4].iter().map(|row| row[3].as_str()).collect();
        let why = "mariadb-optimistic-10w-10s-flush: it broke";
        assert_eq!(judged, ["met", why, why, "MISSED"]);
        let text = page(&results).text(&results);
        let row = text.lines().find(|line| line.starts_with("MariaDB optimistic")).unwrap();
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["MariaDB", "optimistic", "–", "1000", "–", "333"]
        );
    }
}
