//! `lockstep bench block`: a replicated block device on this machine.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::note;
use crate::block_bench::{self, Report, Sample, Setup, Spec};
use crate::block_group::Protocol;

/// What to run.
#[derive(Args, Debug, Clone)]
pub struct BlockArgs {
    /// How many flushed writes are in flight.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    depths: Vec<u32>,
    /// Our protocols, separated by commas: a, b, c.
    #[arg(long, value_name = "LETTER", value_delimiter = ',', default_value = "c")]
    protocols: Vec<Protocol>,
    /// The time of each load, in seconds.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// How often each set-up has its turn; 0: only the copy from another member is measured.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=1000))]
    rounds: u32,
    /// MiB that are written while a member is away, which then takes the device from another member; 0: not measured.
    #[arg(long, value_name = "MIB", default_value_t = 3072, value_parser = clap::value_parser!(u64).range(0..=1_048_576))]
    away: u64,
    /// MiB per second at which a member sends the device to another one; 0: as fast as it can.
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    resync_rate: u32,
    /// The program that keeps the device [default: this one].
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// As JSON, with every measurement.
    #[arg(long)]
    json: bool,
}

/// Above this share of the processors, a rate is theirs.
const BUSY: f64 = 0.95;

/// Measures, and prints the results.
pub(crate) fn run(args: &BlockArgs) -> Result<(), String> {
    let spec = Spec {
        program: args.program.clone(),
        depths: args.depths.clone(),
        protocols: args.protocols.clone(),
        window: Duration::from_secs(args.seconds),
        rounds: args.rounds,
        away: args.away,
        resync_rate: args.resync_rate,
    };
    let report = block_bench::run(&spec, &|line| note(&format!("{line}\n"))).map_err(|e| e.to_string())?;
    match args.json {
        true => println!("{:#}", as_json(args, &report)),
        false => print!("{}", as_text(args, &report)),
    }
    Ok(())
}

fn median(samples: &[&Sample], value: fn(&Sample) -> f64) -> f64 {
    let mut values: Vec<f64> = samples.iter().map(|sample| value(sample)).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn as_text(args: &BlockArgs, report: &Report) -> String {
    let mut by_load: BTreeMap<(bool, u32), BTreeMap<Setup, Vec<&Sample>>> = BTreeMap::new();
    for sample in &report.samples {
        let loads = by_load.entry((!sample.synced, sample.depth)).or_default();
        loads.entry(sample.setup).or_default().push(sample);
    }
    let mut out = String::new();
    if !by_load.is_empty() {
        let _ = writeln!(
            out,
            "4 KiB random writes of one client, medians of {} rounds of {} s. All copies are on one disk. *: more than {:.0} % of \
             the processors were in use\n",
            args.rounds,
            args.seconds,
            BUSY * 100.0
        );
        let (one, three) = ("nbdkit = 1", "3 nbdkits = 1");
        let _ = writeln!(
            out,
            "{:<28} {:<16} {:>10} {:>10} {one:>12} {three:>14}",
            "load", "set-up", "writes/s", "99 %, ms"
        );
    }
    for ((unsynced, depth), setups) in &by_load {
        let load = if *unsynced { "without flush" } else { "each flushed" };
        let rate = |setup| setups.get(&setup).map_or(f64::NAN, |samples| median(samples, |s| s.rate));
        for (setup, samples) in setups {
            let own = rate(*setup);
            let busy = if samples.iter().any(|sample| sample.busy > BUSY) { "*" } else { "" };
            let _ = writeln!(
                out,
                "{:<28} {:<16} {:>10} {:>10.2} {:>12.2} {:>14.2}",
                format!("{load}, {depth} in flight"),
                setup.name(),
                format!("{own:.0}{busy}"),
                median(samples, |s| s.p99),
                own / rate(Setup::Nbdkit),
                own / rate(Setup::ThreeNbdkits)
            );
        }
    }
    if let Some(resync) = &report.resync {
        let _ = writeln!(
            out,
            "\nA member returned after {} MiB were written without it. Its copy was whole after {:.1} s ({:.1} MiB/s): {}\nThe \
             primary's flushed writes, 4 in flight: {:.0} per second before, {:.0} during the copy ({:.2})",
            resync.written_mib,
            resync.seconds,
            resync.written_mib as f64 / resync.seconds,
            resync.report,
            resync.rate_before,
            resync.rate_during,
            resync.rate_during / resync.rate_before
        );
    }
    out
}

fn as_json(args: &BlockArgs, report: &Report) -> Value {
    let samples: Vec<Value> = report
        .samples
        .iter()
        .map(|sample| {
            json!({
                "setup": sample.setup.name(),
                "flushed": sample.synced,
                "in_flight": sample.depth,
                "writes_per_second": sample.rate,
                "p99_ms": sample.p99,
                "processors_busy": sample.busy,
            })
        })
        .collect();
    json!({
        "rounds": args.rounds,
        "seconds": args.seconds,
        "resync_rate_mib": args.resync_rate,
        "samples": samples,
        "resync": report.resync,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_medians_and_ratios_and_marks_saturated_rows() {
        let sample = |setup, rate, busy| Sample { setup, synced: true, depth: 1, rate, p99: 1.0, busy };
        let ours = Setup::Lockstep(Protocol::C);
        let report = Report {
            samples: vec![
                sample(Setup::Nbdkit, 1000.0, 0.5),
                sample(Setup::ThreeNbdkits, 500.0, 0.5),
                sample(ours, 100.0, 0.5),
                sample(ours, 400.0, 0.99),
                sample(ours, 9000.0, 0.5),
            ],
            resync: None,
        };
        let args = BlockArgs {
            depths: vec![1],
            protocols: vec![Protocol::C],
            seconds: 1,
            rounds: 3,
            away: 0,
            resync_rate: 0,
            program: None,
            json: false,
        };
        let text = as_text(&args, &report);
        let row = text.lines().find(|line| line.contains("lockstep c")).unwrap();
        let words: Vec<&str> = row.split_whitespace().rev().collect();
        assert_eq!((words[0], words[1], words[3]), ("0.80", "0.40", "400*"), "{text}");
        assert_eq!(as_json(&args, &report)["samples"].as_array().unwrap().len(), 5);
    }
}
