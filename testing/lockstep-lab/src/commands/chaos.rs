//! `lockstep chaos`: real servers under load and faults; compares the answers to clients with the data.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::chaos::{
    ChaosSpec, Fault, FaultReport, Policy, Report, Workload, run as run_chaos, side_by_side, usual_faults,
};
use clap::Args;
use lockstep_local::say;
use serde_json::{Map, Value, json};

/// The exit code where something was lost or wrong.
pub(super) const WRONG: u8 = 3;

/// Options of `lockstep chaos`.
#[derive(Args, Debug)]
pub struct ChaosArgs {
    /// The provider's file, of this project or another [default: liblockstep.so beside this program].
    #[arg(long)]
    provider: Option<PathBuf>,
    /// For how long.
    #[arg(long, default_value_t = 10.0, value_parser = minutes)]
    minutes: f64,
    /// Each fault so often, however long that takes, in place of --minutes.
    #[arg(long, conflicts_with = "minutes", value_parser = clap::value_parser!(u32).range(1..100_000))]
    rounds: Option<u32>,
    /// A fault begins every so many seconds, whether the cluster is whole again or not [default: when it is].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..86_400))]
    every: Option<u64>,
    /// Decides which faults come when, and upon whom.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The kinds of faults, separated by commas [default: all that this machine allows and the policy says something
    /// of]: kill, kill-first, kill-other, kill-all, lose-first, lose-others, pause, isolate, split, bridge, disk-full, slow-disk, hung-disk, restart, switchover, upgrade.
    #[arg(long, value_delimiter = ',', value_name = "FAULT")]
    faults: Vec<Fault>,
    /// The work of the clients: mixed (inserts, a bank, causal reads, lists and registers), list-append or register.
    #[arg(long, default_value_t = Workload::Mixed)]
    workload: Workload,
    /// Write the histories of lists and registers into this folder, in the form of Jepsen's histories (EDN).
    #[arg(long, value_name = "FOLDER")]
    history: Option<PathBuf>,
    /// One server without replication and without faults, for comparison.
    #[arg(long, conflicts_with_all = ["provider", "faults", "rounds", "every", "arbitrator", "policy", "voters", "learners", "upgrade_to", "rival"])]
    stock: bool,
    /// Two servers and an arbitrator (lockstep's; for Galera's library garbd) in place of three servers.
    #[arg(long)]
    arbitrator: bool,
    /// commit.policy of the cluster: async, semisync, quorum or all. A loss that the policy does not allow is a violation.
    #[arg(long, default_value_t = Policy::Quorum)]
    policy: Policy,
    /// Servers that vote: 3, or 1, a primary that is its own majority.
    #[arg(long, default_value_t = 3, value_parser = voters, conflicts_with = "arbitrator")]
    voters: usize,
    /// Servers beside them that do not vote: read replicas [default: 1 under semisync, 2 where one server votes, else
    /// none].
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=3), conflicts_with = "arbitrator")]
    learners: Option<u8>,
    /// async.max_at_risk: how many transactions a leader may have answered ahead of the others.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..1_000_000))]
    max_at_risk: u64,
    /// What `upgrade` upgrades to: another build of the provider; a program lockstep beside it is the arbitrator from
    /// then on. Galera's library needs none: it begins with its protocol before the last.
    #[arg(long, value_name = "FILE")]
    upgrade_to: Option<PathBuf>,
    /// Afterwards the same with this provider, and both side by side.
    #[arg(long, value_name = "FILE")]
    rival: Option<PathBuf>,
    /// For how many seconds a member stays paused, cut off, full or slow.
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

fn voters(text: &str) -> Result<usize, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        _ => Err("1 or 3 servers may vote".into()),
    }
}

pub(super) fn minutes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(minutes) if (0.1..=10_000.0).contains(&minutes) => Ok(minutes),
        _ => Err("a number of minutes from 0.1 to 10000 is wanted".into()),
    }
}

/// Runs the command.
pub(crate) fn run(args: &ChaosArgs) -> Result<ExitCode, String> {
    let provider = match args.stock {
        true => PathBuf::new(),
        false => args.provider.clone().map_or_else(lockstep_local::beside_this_program, Ok)?,
    };
    let learners = match (args.learners, args.voters, args.policy) {
        (Some(learners), ..) => usize::from(learners),
        _ if args.arbitrator => 0,
        (None, 1, _) => 2,
        (None, _, Policy::Semisync) => 1,
        _ => 0,
    };
    if args.voters == 1 && learners == 0 {
        return Err("one server alone is no cluster: --learners says how many replicas it has".into());
    }
    let mut spec = ChaosSpec {
        voters: args.voters,
        learners,
        policy: args.policy,
        // Where nothing waits for it, one that lags is not given up as soon.
        timeout: Duration::from_secs(if args.policy.is_weak() { 180 } else { 60 }),
        max_at_risk: args.max_at_risk,
        faults: usual_faults(args.policy),
        length: Duration::from_secs_f64(args.minutes * 60.0),
        seed: args.seed,
        hold: Duration::from_secs(args.hold),
        snapshot_isolation: !args.no_snapshot_isolation,
        flush: args.flush,
        every: args.every.map(Duration::from_secs),
        rounds: args.rounds,
        arbitrator: args.arbitrator,
        upgrade_to: args.upgrade_to.clone(),
        workload: args.workload,
        history: args.history.clone(),
        stock: args.stock,
        command: std::env::current_exe().ok(),
        ..ChaosSpec::new(provider)
    };
    if !args.faults.is_empty() {
        spec.faults = args.faults.clone();
    }
    let report = run_one(&spec)?;
    let clean = report.is_clean();
    let mut json = value(&report);
    if let Some(rival) = &args.rival {
        let rival = ChaosSpec {
            provider: rival.clone(),
            upgrade_to: None,
            history: args.history.as_ref().map(|folder| folder.join("rival")),
            policy: Policy::Quorum,
            voters: 3,
            learners: 0,
            ..spec
        };
        let rival = run_one(&rival)?;
        say("");
        say(&side_by_side(&report, &rival));
        json = json!({ "provider": json, "rival": value(&rival) });
    }
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&json).map_err(|e| format!("cannot write JSON: {e}"))?;
        std::fs::write(path, text + "\n").map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    // A rival's losses are no failure of the command.
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}

/// One provider's run, and its report.
fn run_one(spec: &ChaosSpec) -> Result<Report, String> {
    let servers = match spec.arbitrator {
        _ if spec.stock => "one server".to_owned(),
        true => "two servers and an arbitrator".to_owned(),
        false => format!("{} servers", spec.voters + spec.learners),
    };
    say(&format!("starting {servers}, which takes some seconds"));
    let began = Instant::now();
    let report = run_chaos(spec, &|line| say(&format!("{:>5} s  {line}", began.elapsed().as_secs())))
        .map_err(|error| error.to_string())?;
    say("");
    say(&report.text());
    Ok(report)
}

fn value(report: &Report) -> Value {
    let of = |of: &FaultReport| {
        json!({ "count": of.count, "longest_gap_all_s": of.gap_all, "longest_gap_one_client_s": of.gap_one,
            "longest_until_whole_s": of.whole })
    };
    let faults: Map<String, Value> =
        report.faults.iter().map(|(fault, report)| (fault.name().to_owned(), of(report))).collect();
    let anomalies = |allowed: bool| -> Map<String, Value> {
        let those = report.anomalies.iter().filter(|((_, is_allowed), _)| *is_allowed == allowed);
        those.map(|((anomaly, _), count)| (anomaly.to_string(), (*count).into())).collect()
    };
    json!({
        "provider": report.provider,
        "seconds": report.rounds.is_none().then_some(report.seconds),
        "rounds": report.rounds,
        "seed": report.seed,
        "innodb_snapshot_isolation": report.snapshot_isolation,
        "innodb_flush_log_at_trx_commit": report.flush,
        "faults": faults,
        "calm": of(&report.calm),
        "acknowledged": report.acknowledged,
        "lost": report.lost,
        "rescued": report.rescued,
        "rescue_files": report.rescue_files,
        "unknown": report.unknown,
        "list_transactions": report.list_transactions,
        "register_transactions": report.register_transactions,
        "audits": report.audits,
        "causal_reads": report.causal_reads,
        "workload": report.workload.name(),
        "stock": report.stock,
        "anomalies": anomalies(false),
        "allowed_anomalies": anomalies(true),
        "arbitrator": report.arbitrator,
        "policy": report.policy.name(),
        "voters": report.servers.0,
        "learners": report.servers.1,
        "upgrade": report.upgrade.as_ref().map(|upgrade| {
            json!({ "protocol_before": upgrade.before, "protocol_meanwhile": upgrade.meanwhile,
                "protocol_after": upgrade.after })
        }),
        "supervisor_starts": report.starts,
        "human_steps": report.human_steps,
        "violations": report.violations,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::ALL_FAULTS;

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
