//! The report of `lockstep bench cluster`: medians, ratios, and reasons to doubt them.

use std::fmt::Write;

use crate::BUSY;
use serde::Serialize;

/// Fewer write-sets than this share of the transactions: not all of them changed something.
const FEW: f64 = 0.95;

/// The end of the version of a library that was built together with the simulator: cargo builds one library with all
/// features that the packages of one build ask for.
const FAILPOINTS: &str = "-failpoints)";

/// One that took turns.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Provider {
    pub(super) name: String,
    pub(super) version: String,
}

/// How it was measured.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Settings {
    pub(super) server: String,
    pub(super) sysbench: String,
    pub(super) processors: usize,
    /// In the order of the table.
    pub(super) providers: Vec<Provider>,
    pub(super) members: u8,
    pub(super) load_on: &'static str,
    pub(super) tables: u32,
    pub(super) rows: u32,
    pub(super) seconds: u32,
    pub(super) warm_up: u32,
    pub(super) rounds: u32,
    pub(super) flush: u8,
    pub(super) appliers: u32,
    pub(super) tests: Vec<String>,
    pub(super) threads: Vec<u32>,
}

/// One measurement.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Sample {
    pub(super) provider: String,
    pub(super) test: String,
    pub(super) threads: u32,
    pub(super) round: u32,
    pub(super) transactions: u64,
    pub(super) per_second: f64,
    /// The time from the end of the load until every server has applied everything.
    pub(super) drain_seconds: f64,
    /// Transactions per second of load and drain together: a rate at which no server falls behind.
    pub(super) drained_per_second: f64,
    pub(super) avg_ms: f64,
    pub(super) p95_ms: f64,
    pub(super) max_ms: f64,
    /// Lost conflicts, which sysbench tried again.
    pub(super) errors: u64,
    /// Processor time of all servers, for each transaction.
    pub(super) cpu_ms_per_transaction: f64,
    /// Write-sets that the cluster put in order meanwhile.
    pub(super) write_sets: Option<u64>,
    /// Resident memory of the server that has most, after the step.
    pub(super) memory_mib: f64,
    /// Threads of the server that has most.
    pub(super) threads_of_server: u64,
    /// Open files and sockets of the server that has most.
    pub(super) descriptors: u64,
    /// The size of the largest data directory on the disk.
    pub(super) disk_mib: f64,
    /// Share of the machine's processor time that went neither to these servers nor to sysbench nor to the kernel's threads.
    pub(super) elsewhere: f64,
}

/// Medians over the rounds.
#[derive(Debug, Clone, Serialize)]
struct Row {
    provider: String,
    per_second: f64,
    drained_per_second: f64,
    p95_ms: f64,
    max_ms: f64,
    cpu_ms_per_transaction: f64,
    /// Write-sets for each transaction.
    write_sets: Option<f64>,
    elsewhere: f64,
}

/// The first provider's medians divided by another's.
#[derive(Debug, Clone, Serialize)]
struct Ratio {
    to: String,
    per_second: f64,
    drained_per_second: f64,
    p95_ms: f64,
    max_ms: f64,
    cpu_ms_per_transaction: f64,
}

/// One test with one number of threads.
#[derive(Debug, Clone, Serialize)]
struct Cell {
    test: String,
    threads: u32,
    medians: Vec<Row>,
    ratios: Vec<Ratio>,
}

/// All that was found.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    settings: Settings,
    results: Vec<Cell>,
    samples: Vec<Sample>,
}

impl Report {
    pub(super) fn new(settings: Settings, samples: Vec<Sample>) -> Report {
        let mut results = Vec::new();
        for test in &settings.tests {
            for &threads in &settings.threads {
                let medians: Vec<Row> = settings
                    .providers
                    .iter()
                    .filter_map(|p| {
                        let of =
                            |s: &&Sample| s.provider == p.name && s.test == *test && s.threads == threads;
                        medians(&p.name, &samples.iter().filter(of).collect::<Vec<_>>())
                    })
                    .collect();
                let ratios = match medians.split_first() {
                    Some((first, others)) => others.iter().map(|other| ratio(first, other)).collect(),
                    None => Vec::new(),
                };
                results.push(Cell { test: test.clone(), threads, medians, ratios });
            }
        }
        Report { settings, results, samples }
    }

    pub(super) fn json(&self) -> Result<String, String> {
        serde_json::to_string_pretty(self).map_err(|e| format!("cannot write the report as JSON: {e}"))
    }

    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let s = &self.settings;
        writeln!(out)?;
        writeln!(
            out,
            "{} members, MariaDB {}, {} processors, {}, load on {}; {} tables of {} rows,",
            s.members, s.server, s.processors, s.sysbench, s.load_on, s.tables, s.rows
        )?;
        writeln!(
            out,
            "innodb_flush_log_at_trx_commit={}, {} appliers; medians of {} x {} s after {} s of warm-up",
            s.flush, s.appliers, s.rounds, s.seconds, s.warm_up
        )?;
        for provider in &s.providers {
            writeln!(out, "{}: {}", provider.name, provider.version)?;
        }
        let tests = s.tests.iter().map(String::len).max().unwrap_or(0).max(4);
        let names = s.providers.iter().map(|p| p.name.len()).max().unwrap_or(0).max(8) + 3;
        writeln!(
            out,
            "\n{:tests$} {:>7} {:names$} {:>9} {:>9} {:>9} {:>9} {:>11} {:>11}",
            "test", "threads", " provider", "trx/s", "drained", "p95 ms", "max ms", "CPU ms/trx", "elsewhere"
        )?;
        for cell in &self.results {
            for (i, row) in cell.medians.iter().enumerate() {
                let (test, threads) = match i {
                    0 => (cell.test.as_str(), cell.threads.to_string()),
                    _ => ("", String::new()),
                };
                writeln!(
                    out,
                    "{test:tests$} {threads:>7}  {:names$}{:>9.0} {:>9.0} {:>9.2} {:>9.0} {:>11.3} {:>9.0} %",
                    row.provider,
                    row.per_second,
                    row.drained_per_second,
                    row.p95_ms,
                    row.max_ms,
                    row.cpu_ms_per_transaction,
                    row.elsewhere * 100.0
                )?;
            }
            for ratio in &cell.ratios {
                writeln!(
                    out,
                    "{:tests$} {:>7}  {:names$}{:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>11.2}",
                    "",
                    "",
                    format!(": {}", ratio.to),
                    ratio.per_second,
                    ratio.drained_per_second,
                    ratio.p95_ms,
                    ratio.max_ms,
                    ratio.cpu_ms_per_transaction
                )?;
            }
        }
        writeln!(
            out,
            "\ndrained: transactions per second of the load and of the time after it until every server has applied \
             everything"
        )?;
        self.write_growth(out)?;
        self.write_doubts(out)
    }

    /// Memory of each server after the first step and after the last, to show unbounded growth.
    fn write_growth(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "\nThe largest server after the first step and after the last:")?;
        for provider in &self.settings.providers {
            let mut of = self.samples.iter().filter(|s| s.provider == provider.name);
            let Some(first) = of.next() else { continue };
            let last = of.next_back().unwrap_or(first);
            writeln!(
                out,
                "{}: memory {:.0} and {:.0} MiB, disk {:.0} and {:.0} MiB, threads {} and {}, descriptors {} and {}",
                provider.name,
                first.memory_mib,
                last.memory_mib,
                first.disk_mib,
                last.disk_mib,
                first.threads_of_server,
                last.threads_of_server,
                first.descriptors,
                last.descriptors
            )?;
        }
        Ok(())
    }

    /// Reasons to doubt the numbers.
    fn write_doubts(&self, out: &mut String) -> std::fmt::Result {
        let rows = || self.results.iter().flat_map(|c| c.medians.iter().map(move |r| (c, r)));
        let busiest = rows().map(|(_, row)| row.elsewhere).fold(0.0, f64::max);
        if busiest > BUSY {
            writeln!(
                out,
                "\nDoubtful: up to {:.0} % of the machine was busy with something else (median of a test's rounds). \
                 Measure on a quiet machine.",
                busiest * 100.0
            )?;
        }
        for provider in self.settings.providers.iter().filter(|p| p.version.ends_with(FAILPOINTS)) {
            writeln!(
                out,
                "\nDoubtful: {} has failpoints and checks itself in every round, which slows it down. Build it alone: \
                 cargo build --release -p lockstep-wsrep",
                provider.name
            )?;
        }
        for (cell, row) in rows() {
            let Some(sets) = row.write_sets.filter(|sets| *sets < FEW) else { continue };
            writeln!(
                out,
                "\nDoubtful: {} with {} threads on {} made only {sets:.2} write-sets for each transaction: the others \
                 changed nothing.",
                cell.test, cell.threads, row.provider
            )?;
        }
        Ok(())
    }
}

fn medians(provider: &str, samples: &[&Sample]) -> Option<Row> {
    let of = |value: fn(&Sample) -> f64| median(samples.iter().map(|s| value(s)).collect());
    let sets: Option<Vec<f64>> =
        samples.iter().map(|s| Some(s.write_sets? as f64 / s.transactions.max(1) as f64)).collect();
    Some(Row {
        provider: provider.to_owned(),
        per_second: of(|s| s.per_second)?,
        drained_per_second: of(|s| s.drained_per_second)?,
        p95_ms: of(|s| s.p95_ms)?,
        max_ms: of(|s| s.max_ms)?,
        cpu_ms_per_transaction: of(|s| s.cpu_ms_per_transaction)?,
        write_sets: sets.and_then(median),
        elsewhere: of(|s| s.elsewhere)?,
    })
}

fn ratio(first: &Row, other: &Row) -> Ratio {
    let of = |a: f64, b: f64| if b > 0.0 { a / b } else { f64::NAN };
    Ratio {
        to: other.provider.clone(),
        per_second: of(first.per_second, other.per_second),
        drained_per_second: of(first.drained_per_second, other.drained_per_second),
        p95_ms: of(first.p95_ms, other.p95_ms),
        max_ms: of(first.max_ms, other.max_ms),
        cpu_ms_per_transaction: of(first.cpu_ms_per_transaction, other.cpu_ms_per_transaction),
    }
}

/// The middle one, or the mean of the two in the middle; `None` of nothing.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(provider: &str, round: u32, per_second: f64, write_sets: u64) -> Sample {
        Sample {
            provider: provider.into(),
            test: "oltp".into(),
            threads: 4,
            round,
            transactions: 1000,
            per_second,
            drain_seconds: 1000.0 / per_second,
            drained_per_second: per_second / 2.0,
            avg_ms: 1.0,
            p95_ms: 2.0,
            max_ms: 3.0,
            errors: 0,
            cpu_ms_per_transaction: 1000.0 / per_second,
            write_sets: Some(write_sets),
            memory_mib: 100.0 + f64::from(round),
            threads_of_server: 20,
            descriptors: 50,
            disk_mib: 300.0,
            elsewhere: 0.01,
        }
    }

    fn report(samples: Vec<Sample>) -> Report {
        let provider = |name: &str| Provider { name: name.into(), version: "1".into() };
        let settings = Settings {
            server: "10".into(),
            sysbench: "1".into(),
            processors: 2,
            providers: vec![provider("ours"), provider("theirs")],
            members: 3,
            load_on: "one",
            tables: 1,
            rows: 10,
            seconds: 1,
            warm_up: 0,
            rounds: 3,
            flush: 0,
            appliers: 4,
            tests: vec!["oltp".into()],
            threads: vec![4],
        };
        Report::new(settings, samples)
    }

    #[test]
    fn ratio_is_computed_from_medians() {
        let mut samples = Vec::new();
        for (round, (ours, theirs)) in [(10.0, 500.0), (900.0, 400.0), (600.0, 30.0)].into_iter().enumerate()
        {
            samples.push(sample("ours", round as u32, ours, 1000));
            samples.push(sample("theirs", round as u32, theirs, 1000));
        }
        let report = report(samples);
        let [cell] = &report.results[..] else { panic!("{:?}", report.results) };
        assert_eq!(cell.ratios[0].per_second, 600.0 / 400.0);
        let text = report.text();
        assert!(text.contains("1.50"), "{text}");
        assert!(text.contains("theirs: memory 100 and 102 MiB"), "{text}");
        assert!(!text.contains("Doubtful"), "{text}");
        assert!(report.json().unwrap().contains("\"per_second\": 1.5"));
    }

    #[test]
    fn library_with_failpoints_is_pointed_out() {
        let mut report = report(vec![sample("ours", 1, 10.0, 1000), sample("theirs", 1, 10.0, 1000)]);
        assert!(!report.text().contains("failpoints"));
        report.settings.providers[0].version = "26.4.23(lockstep-0.1.0-failpoints)".into();
        let text = report.text();
        assert!(text.contains("Doubtful: ours has failpoints"), "{text}");
    }

    #[test]
    fn transactions_that_changed_nothing_are_pointed_out() {
        let text = report(vec![sample("ours", 1, 10.0, 333), sample("theirs", 1, 10.0, 1000)]).text();
        assert!(text.contains("0.33 write-sets") && text.contains("on ours"), "{text}");
    }

    #[test]
    fn median_of_few_values() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0]), Some(3.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
    }
}
