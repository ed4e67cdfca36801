//! `lockstep chaos`: real servers under load and faults, and what their clients were told against what is there.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use lockstep_lab::chaos::{ALL_FAULTS, ChaosSpec, Fault, FaultReport, Report, run as run_chaos};
use serde_json::{Map, Value, json};

use crate::progress::say;
use crate::up;

/// The exit code where something was lost or wrong.
const WRONG: u8 = 3;

/// Options of `lockstep chaos`.
#[derive(Args, Debug)]
pub(crate) struct ChaosArgs {
    /// The provider's file, of this project or another [default: liblockstep.so beside this program].
    #[arg(long)]
    provider: Option<PathBuf>,
    /// For how long.
    #[arg(long, default_value_t = 10.0, value_parser = minutes)]
    minutes: f64,
    /// Decides which faults come when, and upon whom.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The kinds of faults, separated by commas [default: all that this machine allows].
    #[arg(long, value_delimiter = ',', value_name = "FAULT")]
    faults: Vec<Fault>,
    /// For how many seconds a member stays paused, cut off or full.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..600))]
    hold: u64,
    /// innodb_snapshot_isolation=OFF in the clients' sessions, MariaDB's default: read skew is no violation then.
    #[arg(long)]
    no_snapshot_isolation: bool,
    /// innodb_flush_log_at_trx_commit.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=3))]
    flush: u8,
    /// Also write the report there, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(minutes) if (0.1..=10_000.0).contains(&minutes) => Ok(minutes),
        _ => Err("a number of minutes from 0.1 to 10000 is wanted".into()),
    }
}

/// Runs the command.
pub(crate) fn run(args: &ChaosArgs) -> Result<ExitCode, String> {
    let provider = args.provider.clone().map_or_else(up::beside_this_program, Ok)?;
    let spec = ChaosSpec {
        length: Duration::from_secs_f64(args.minutes * 60.0),
        seed: args.seed,
        faults: if args.faults.is_empty() { ALL_FAULTS.to_vec() } else { args.faults.clone() },
        hold: Duration::from_secs(args.hold),
        snapshot_isolation: !args.no_snapshot_isolation,
        flush: args.flush,
        ..ChaosSpec::new(provider)
    };
    say("starting three servers, which takes some seconds");
    let began = Instant::now();
    let report = run_chaos(&spec, &|line| say(&format!("{:>5} s  {line}", began.elapsed().as_secs())))
        .map_err(|error| error.to_string())?;
    say("");
    say(&report.text());
    if let Some(path) = &args.json {
        let text =
            serde_json::to_string_pretty(&value(&report)).map_err(|e| format!("cannot write JSON: {e}"))?;
        std::fs::write(path, text + "\n").map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}

fn value(report: &Report) -> Value {
    let of = |of: &FaultReport| {
        json!({ "count": of.count, "longest_gap_all_s": of.gap_all, "longest_gap_one_client_s": of.gap_one,
            "longest_until_whole_s": of.whole })
    };
    let faults: Map<String, Value> =
        report.faults.iter().map(|(fault, report)| (fault.name().to_owned(), of(report))).collect();
    let anomalies: Map<String, Value> =
        report.anomalies.iter().map(|(anomaly, count)| (anomaly.to_string(), (*count).into())).collect();
    json!({
        "provider": report.provider,
        "seconds": report.seconds,
        "seed": report.seed,
        "innodb_snapshot_isolation": report.snapshot_isolation,
        "innodb_flush_log_at_trx_commit": report.flush,
        "faults": faults,
        "calm": of(&report.calm),
        "acknowledged": report.acknowledged,
        "lost": report.lost,
        "unknown": report.unknown,
        "list_transactions": report.list_transactions,
        "audits": report.audits,
        "causal_reads": report.causal_reads,
        "anomalies": anomalies,
        "supervisor_starts": report.starts,
        "human_steps": report.human_steps,
        "violations": report.violations,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_have_names_of_their_own() {
        for fault in ALL_FAULTS {
            assert_eq!(fault.name().parse(), Ok(fault));
        }
        assert!("earthquake".parse::<Fault>().unwrap_err().contains("kill-all"));
    }

    #[test]
    fn lengths_are_bounded() {
        assert_eq!(minutes("0.5"), Ok(0.5));
        assert!(minutes("0").is_err() && minutes("NaN").is_err());
    }
}
