//! `lockstep bench switch`: what a change of the commit policy costs those who write meanwhile.
//!
//! Clients write to the leader of three servers all the time. The policy goes from each to each other one, round after
//! round. Before each switch comes an equally long time without one, which shows how long the machine itself stalls.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{Cluster, ClusterSpec, Gaps, Writers, Written};
use clap::Args;
use lockstep_local::{Client, LocalError, Server};
use serde_json::{Value, json};

use super::note;

/// What to run, on what.
#[derive(Args, Debug, Clone)]
pub struct SwitchArgs {
    /// The provider's file [default: liblockstep.so beside this program].
    #[arg(long, value_name = "FILE")]
    provider: Option<PathBuf>,
    /// How many sessions write to the leader.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=500))]
    clients: u64,
    /// How often the policy goes from each to each other one: twelve switches.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// For how long a switch, and no switch before it, is looked at.
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    window: u64,
    /// innodb_flush_log_at_trx_commit of all servers.
    #[arg(long, value_name = "0|1|2", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    flush: u8,
    /// As JSON, with every single switch.
    #[arg(long)]
    json: bool,
}

/// From each policy to each other one, and back to where it began.
const WALK: [&str; 13] = [
    "quorum", "async", "quorum", "semisync", "quorum", "all", "async", "semisync", "async", "all",
    "semisync", "all", "quorum",
];
/// A client that waits for longer has noticed.
const STALL: Duration = Duration::from_millis(100);
const TABLE: &str = "bench.switched";

fn text(error: LocalError) -> String {
    error.to_string()
}

/// When what was done, since the writers began.
#[derive(Debug, Clone, Copy)]
struct Step {
    from: &'static str,
    to: &'static str,
    /// The time without a switch begins.
    calm: Duration,
    /// The command begins.
    began: Duration,
    /// It has answered.
    done: Duration,
    /// And so long afterwards it is looked at.
    end: Duration,
}

/// The result of one switch.
#[derive(Debug, Clone)]
struct Switch {
    step: Step,
    calm: Seen,
    changed: Seen,
}

/// A window of time.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    gaps: Gaps,
    per_second: f64,
    failed: usize,
}

impl Seen {
    fn of(written: &Written, from: Duration, to: Duration) -> Seen {
        let failed = written.failures().iter().filter(|(at, _)| (from..to).contains(at)).count();
        let per_second = written.rows_between(from, to) as f64 / (to - from).as_secs_f64();
        Seen { gaps: written.gaps(from, to), per_second, failed }
    }

    fn json(&self) -> Value {
        json!({ "longest_without_commit_ms": ms(self.gaps.all), "longest_wait_of_one_client_ms": ms(self.gaps.one),
            "commits_per_second": self.per_second, "failed": self.failed })
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Measures, and prints what it found.
pub(crate) fn run(args: &SwitchArgs) -> Result<(), String> {
    let provider = match &args.provider {
        Some(file) => file.clone(),
        None => lockstep_local::beside_this_program()?,
    };
    let mut spec = ClusterSpec::new(&provider);
    spec.extra = vec![
        format!("innodb_flush_log_at_trx_commit={}", args.flush),
        format!("max_connections={}", args.clients + 50),
    ];
    note("three servers start\n");
    let cluster = Cluster::start(&spec).map_err(text)?;
    let leader = &cluster.servers[0];
    leader
        .client()
        .and_then(|mut c| {
            c.run(&["CREATE DATABASE bench", &format!("CREATE TABLE {TABLE} (id BIGINT PRIMARY KEY)")])
        })
        .map_err(text)?;
    let writers = Writers::start(&leader.config.socket(), TABLE, args.clients as usize);
    let walked = walk(args, leader, &writers);
    let written = writers.stop().map_err(text)?;
    let steps = walked?;
    let rows = cluster.same_everywhere(&format!("SELECT COUNT(*) FROM {TABLE}"));
    let rows = rows.and_then(|answer| answer.number()).map_err(text)?;
    let failures = written.failures();
    // A commit that failed may have happened all the same.
    let most = written.rows() + failures.len() as u64;
    if !(written.rows()..=most).contains(&(rows as u64)) {
        return Err(format!("{rows} rows on each server, {} were acknowledged", written.rows()));
    }
    let report = Report {
        args: args.clone(),
        switches: steps.into_iter().map(|step| Switch::of(step, &written)).collect(),
        rows: written.rows(),
        failures: failures.into_iter().map(|(_, why)| why).collect(),
    };
    match args.json {
        true => println!("{:#}", report.json()),
        false => print!("{}", report.text()),
    }
    Ok(())
}

/// Goes from policy to policy.
fn walk(args: &SwitchArgs, leader: &Server, writers: &Writers) -> Result<Vec<Step>, String> {
    let window = Duration::from_millis(args.window);
    let mut session = leader.client().map_err(text)?;
    let mut steps = Vec::new();
    // Servers that have just begun are slow.
    std::thread::sleep(Duration::from_secs(2));
    for round in 0..args.rounds {
        note(&format!("round {} of {}\n", round + 1, args.rounds));
        for pair in WALK.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let calm = writers.time();
            std::thread::sleep(window);
            let began = writers.time();
            set(&mut session, to)?;
            let done = writers.time();
            std::thread::sleep(window.saturating_sub(done - began));
            steps.push(Step { from, to, calm, began, done, end: writers.time() });
            check(leader, to)?;
        }
    }
    // Commits pending at the end of the last window are still answered.
    std::thread::sleep(window);
    Ok(steps)
}

fn set(session: &mut Client, policy: &str) -> Result<(), String> {
    let sql = format!("SET GLOBAL wsrep_provider_options = 'commit.policy={policy}'");
    session.query(&sql).map(drop).map_err(text)
}

/// Status of this member and the cluster, from the `lockstep status` command.
fn status(server: &Server) -> Result<serde_json::Value, String> {
    let program = std::env::current_exe().map_err(|e| format!("cannot tell where this program is: {e}"))?;
    let mut command = Command::new(program);
    command.args(["status", "--json", "--socket"]).arg(server.datadir().join("lockstep.sock"));
    let said = lockstep_local::run_to_end(&mut command).map_err(text)?;
    serde_json::from_str(&said).map_err(|e| format!("lockstep status: {e}"))
}

/// Checks that the policy is in force and that the written server still leads. A member's status may be slightly old.
fn check(leader: &Server, policy: &str) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let status = status(leader)?;
        let of = |field: &str| status["cluster"][field].as_str().unwrap_or_default();
        let (leads, is) = (of("leader"), of("policy"));
        if leads == leader.name() && is == policy {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{leads} leads under {is}, not {} under {policy}", leader.name()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Switch {
    fn of(step: Step, written: &Written) -> Switch {
        let (calm, changed) =
            (Seen::of(written, step.calm, step.began), Seen::of(written, step.began, step.end));
        Switch { step, calm, changed }
    }

    fn command(&self) -> Duration {
        self.step.done - self.step.began
    }
}

struct Report {
    args: SwitchArgs,
    switches: Vec<Switch>,
    rows: u64,
    failures: Vec<String>,
}

impl Report {
    /// Of all these switches the longest, or else the middle one.
    fn of<T: Ord + Copy + Default>(&self, middle: bool, value: impl Fn(&Switch) -> T) -> T {
        let mut values: Vec<T> = self.switches.iter().map(value).collect();
        values.sort_unstable();
        let at = if middle { values.len() / 2 } else { values.len().saturating_sub(1) };
        values.get(at).copied().unwrap_or_default()
    }

    fn over(&self, seen: impl Fn(&Switch) -> Seen) -> usize {
        self.switches.iter().filter(|switch| seen(switch).gaps.one > STALL).count()
    }

    fn json(&self) -> Value {
        let switch = |s: &Switch| {
            json!({ "from": s.step.from, "to": s.step.to, "command_ms": ms(s.command()), "switch": s.changed.json(),
                "without": s.calm.json() })
        };
        json!({ "clients": self.args.clients, "window_ms": self.args.window, "rounds": self.args.rounds,
            "innodb_flush_log_at_trx_commit": self.args.flush, "transactions": self.rows, "failed": self.failures.len(),
            "failures": self.failures, "over_100_ms": { "switch": self.over(|s| s.changed), "without": self.over(|s| s.calm) },
            "switches": self.switches.iter().map(switch).collect::<Vec<_>>() })
    }

    fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let mut line = |text: std::fmt::Arguments<'_>| {
            let _ = writeln!(out, "{text}");
        };
        let args = &self.args;
        line(format_args!(
            "{} clients write to the leader of three servers, innodb_flush_log_at_trx_commit={}; each switch is looked at for {} ms, \
             and as long a time before it without one",
            args.clients, args.flush, args.window
        ));
        line(format_args!("milliseconds; of {} switches each: the longest", args.rounds));
        line(format_args!(
            "{:<22} {:>8}  {:>10} {:>8}  {:>11} {:>8}  {:>7}",
            "switch", "command", "no commit", "without", "one client", "without", "failed"
        ));
        for pair in WALK.windows(2) {
            let of = self.switches.iter().filter(|s| [s.step.from, s.step.to] == pair).cloned();
            let of = Report { args: args.clone(), switches: of.collect(), rows: 0, failures: Vec::new() };
            let failed: usize = of.switches.iter().map(|s| s.changed.failed + s.calm.failed).sum();
            line(format_args!("{} {failed:>7}", of.row(&format!("{} -> {}", pair[0], pair[1]), false)));
        }
        line(format_args!("{}", self.row("longest of all", false)));
        line(format_args!("{}", self.row("median of all", true)));
        let rate = |seen: fn(&Switch) -> Seen| {
            let sum: f64 = self.switches.iter().map(|s| seen(s).per_second).sum();
            sum / self.switches.len().max(1) as f64
        };
        line(format_args!(
            "{:.0} commits/s around switches, {:.0} without",
            rate(|s| s.changed),
            rate(|s| s.calm)
        ));
        line(format_args!(
            "a client waited for more than 100 ms: around {} of {} switches, in {} of as many windows without one",
            self.over(|s| s.changed),
            self.switches.len(),
            self.over(|s| s.calm)
        ));
        line(format_args!(
            "{} transactions acknowledged, {} failed; the servers have the same rows",
            self.rows,
            self.failures.len()
        ));
        for why in self.failures.iter().take(5) {
            line(format_args!("failed: {why}"));
        }
        out
    }

    fn row(&self, name: &str, middle: bool) -> String {
        format!(
            "{name:<22} {:>8.1}  {:>10.1} {:>8.1}  {:>11.1} {:>8.1} ",
            ms(self.of(middle, Switch::command)),
            ms(self.of(middle, |s| s.changed.gaps.all)),
            ms(self.of(middle, |s| s.calm.gaps.all)),
            ms(self.of(middle, |s| s.changed.gaps.one)),
            ms(self.of(middle, |s| s.calm.gaps.one))
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn walk_contains_each_switch_once() {
        let pairs: BTreeSet<&[&str]> = WALK.windows(2).collect();
        assert_eq!((pairs.len(), WALK.len()), (12, 13));
        assert!(pairs.iter().all(|pair| pair[0] != pair[1]));
        assert_eq!(WALK.first(), WALK.last(), "the next round goes on from there");
    }

    #[test]
    fn report_lists_each_switch_and_noise() {
        let at = Duration::from_millis;
        let switch = |from, to, gap| Switch {
            step: Step { from, to, calm: at(0), began: at(500), done: at(503), end: at(1000) },
            calm: Seen { gaps: Gaps { all: at(2), one: at(4) }, per_second: 900.0, failed: 0 },
            changed: Seen { gaps: Gaps { all: at(3), one: at(gap) }, per_second: 800.0, failed: 0 },
        };
        let report = Report {
            args: SwitchArgs { provider: None, clients: 8, rounds: 2, window: 500, flush: 0, json: false },
            switches: vec![
                switch("quorum", "async", 101),
                switch("quorum", "async", 7),
                switch("all", "quorum", 9),
            ],
            rows: 1234,
            failures: vec!["Deadlock".into()],
        };
        let text = report.text();
        for due in [
            "quorum -> async             3.0         3.0      2.0        101.0      4.0        0",
            "all -> quorum               3.0         3.0      2.0          9.0      4.0        0",
            "longest of all              3.0         3.0      2.0        101.0      4.0",
            "median of all               3.0         3.0      2.0          9.0      4.0",
            "800 commits/s around switches, 900 without",
            "around 1 of 3 switches, in 0 of as many windows",
            "1234 transactions acknowledged, 1 failed",
            "failed: Deadlock",
        ] {
            assert!(text.contains(due), "{due} is not in\n{text}");
        }
        let json = report.json();
        assert_eq!((json["failed"].as_u64(), json["over_100_ms"]["switch"].as_u64()), (Some(1), Some(1)));
        assert_eq!(json["switches"][2]["switch"]["longest_wait_of_one_client_ms"], 9.0);
    }
}
