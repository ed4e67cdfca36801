//! The report of a run.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::ChaosSpec;
use super::fault::Fault;
use super::load::Heards;
use super::policy::Policy;
use super::upgrade::Upgrade;
use super::workload::Workload;
use crate::isolation::Anomaly;

/// Losses of answers given up to this long before a fault are attributed to it, in µs.
const BEFORE: u64 = 1_000_000;

/// What one kind of fault did to writes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FaultReport {
    /// How often it was injected.
    pub count: u64,
    /// The longest time in which no client at all had a write acknowledged, in seconds.
    pub gap_all: f64,
    /// The longest time for which one client, which reconnects to another member, had none.
    pub gap_one: f64,
    /// The longest time from the fault until all were synced members again, its own length included.
    pub whole: f64,
}

/// All of it.
#[derive(Debug, Clone)]
pub struct Report {
    /// The provider's file.
    pub provider: String,
    /// Whether that is Galera's.
    pub galera: bool,
    /// The seed.
    pub seed: u64,
    /// For how long faults were to be injected, in seconds, unless `rounds` were wanted.
    pub seconds: u64,
    /// How often each fault was to come.
    pub rounds: Option<u32>,
    /// `innodb_snapshot_isolation`.
    pub snapshot_isolation: bool,
    /// `innodb_flush_log_at_trx_commit`.
    pub flush: u8,
    /// By kind.
    pub faults: BTreeMap<Fault, FaultReport>,
    /// The same of the times between faults.
    pub calm: FaultReport,
    /// Transactions that their clients heard to be committed.
    pub acknowledged: u64,
    /// Those of which they heard nothing certain.
    pub unknown: u64,
    /// Those of the acknowledged that are gone.
    pub lost: u64,
    /// Those of the acknowledged that are in rescue files only.
    pub rescued: u64,
    /// How many rescue files there were.
    pub rescue_files: u64,
    /// Acknowledged transactions on lists with a checked history.
    pub list_transactions: u64,
    /// The same for registers.
    pub register_transactions: u64,
    /// How often all the money was found.
    pub audits: u64,
    /// Reads with `wsrep_sync_wait` that saw what had been acknowledged.
    pub causal_reads: u64,
    /// The anomalies in the histories of lists and registers, and whether the claim allows them.
    pub anomalies: BTreeMap<(Anomaly, bool), u64>,
    /// Violations.
    pub violations: Vec<String>,
    /// Steps that an operator had to take.
    pub human_steps: Vec<String>,
    /// How often a supervisor started a server again.
    pub starts: u64,
    /// The result of the rolling upgrade, if there was one.
    pub upgrade: Option<Upgrade>,
    /// Whether there were two servers and an arbitrator.
    pub arbitrator: bool,
    /// The work of the clients.
    pub workload: Workload,
    /// Whether it was one server without replication.
    pub stock: bool,
    /// `commit.policy`.
    pub policy: Policy,
    /// Servers that vote, and those that do not.
    pub servers: (usize, usize),
    windows: Vec<(Option<Fault>, u64, u64)>,
}

impl Report {
    pub(super) fn new(spec: &ChaosSpec, galera: bool) -> Report {
        Report {
            provider: spec.provider.display().to_string(),
            galera,
            seed: spec.seed,
            seconds: spec.length.as_secs(),
            rounds: spec.rounds,
            snapshot_isolation: spec.snapshot_isolation,
            flush: spec.flush,
            faults: BTreeMap::new(),
            calm: FaultReport::default(),
            acknowledged: 0,
            unknown: 0,
            lost: 0,
            rescued: 0,
            rescue_files: 0,
            list_transactions: 0,
            register_transactions: 0,
            audits: 0,
            causal_reads: 0,
            anomalies: BTreeMap::new(),
            violations: Vec::new(),
            human_steps: Vec::new(),
            starts: 0,
            upgrade: None,
            arbitrator: spec.arbitrator,
            workload: spec.workload,
            stock: spec.stock,
            policy: spec.policy,
            servers: (spec.voters, spec.learners),
            windows: Vec::new(),
        }
    }

    /// Whether nothing was found that must not be. What the policy allows to be lost is no violation.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// A fault's time, or that between two, in µs since the load began.
    pub(super) fn window(&mut self, fault: Option<Fault>, from: u64, to: u64) {
        self.windows.push((fault, from, to));
    }

    /// How often this fault was injected.
    pub(super) fn times(&self, fault: Fault) -> u64 {
        self.windows.iter().filter(|(of, ..)| *of == Some(fault)).count() as u64
    }

    /// The fault of this moment: answers given just before a fault are attributed to it.
    pub(super) fn fault_at(&self, time: u64) -> Option<Fault> {
        let near = |(fault, from, to): &&(Option<Fault>, u64, u64)| {
            fault.is_some() && from.saturating_sub(BEFORE) <= time && time <= *to
        };
        self.windows.iter().find(near).and_then(|(fault, ..)| *fault)
    }

    /// The gaps in each window.
    pub(super) fn measure(&mut self, heards: &Heards) {
        let clients: Vec<&[u64]> = heards.inserts.iter().map(|i| i.times.as_slice()).collect();
        let mut all: Vec<u64> = clients.concat();
        all.sort_unstable();
        for (fault, from, to) in &self.windows {
            let of = match fault {
                Some(fault) => self.faults.entry(*fault).or_default(),
                None => &mut self.calm,
            };
            of.count += 1;
            of.whole = of.whole.max((to - from) as f64 / 1e6);
            // A gap that begins or ends within a fault is attributed to it, not to the calm around it.
            let gap = |times: &[u64]| match fault {
                Some(_) => gap(times, *from, *to),
                None => gap(within(times, *from, *to), *from, *to),
            };
            of.gap_all = of.gap_all.max(gap(&all));
            let one = clients.iter().map(|times| gap(times)).fold(0.0, f64::max);
            of.gap_one = of.gap_one.max(one);
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{} · {}{}, seed {} · workload {} · innodb_snapshot_isolation {} · innodb_flush_log_at_trx_commit {}",
            if self.stock { "one server without replication" } else { &self.provider },
            match (self.arbitrator, self.servers) {
                (true, _) => "two servers and an arbitrator · ".to_owned(),
                (false, (3, 0)) => String::new(),
                (false, (voters, learners)) => format!("{voters} voting and {learners} other servers · "),
            } + &match self.policy {
                Policy::Quorum => String::new(),
                policy => format!("commit.policy={policy} · "),
            },
            match self.rounds {
                Some(rounds) => format!("each fault {rounds} times"),
                None => format!("{} s", self.seconds),
            },
            self.seed,
            self.workload,
            if self.snapshot_isolation { "ON" } else { "OFF" },
            self.flush
        );
        let _ = writeln!(
            out,
            "{:<12} {:>6} {:>18} {:>18} {:>12}",
            "fault", "times", "no write at all", "one client waits", "until whole"
        );
        let calm = (!self.windows.is_empty()).then_some(("(none)", &self.calm));
        for (name, of) in calm.into_iter().chain(self.faults.iter().map(|(fault, of)| (fault.name(), of))) {
            let whole = if name == "(none)" { "-".to_owned() } else { format!("{:.1} s", of.whole) };
            let _ = writeln!(
                out,
                "{name:<12} {:>6} {:>16.2} s {:>16.2} s {whole:>12}",
                of.count, of.gap_all, of.gap_one
            );
        }
        let _ = writeln!(
            out,
            "acknowledged {}, lost {}, rescued {} ({} files), open {}; {} list transactions, {} register transactions, {} audits, {} causal reads; {} starts by the supervisor",
            self.acknowledged,
            self.lost,
            self.rescued,
            self.rescue_files,
            self.unknown,
            self.list_transactions,
            self.register_transactions,
            self.audits,
            self.causal_reads,
            self.starts
        );
        let anomalies: Vec<String> = self
            .anomalies
            .iter()
            .map(|((anomaly, allowed), count)| {
                format!("{count} × {anomaly}{}", if *allowed { " (allowed)" } else { "" })
            })
            .collect();
        let _ = writeln!(
            out,
            "anomalies: {}",
            if anomalies.is_empty() { "none".into() } else { anomalies.join(", ") }
        );
        if let Some(upgrade) = &self.upgrade {
            let _ = writeln!(out, "{}", upgrade.text());
        }
        let _ = writeln!(out, "human steps: {}", self.human_steps.len());
        for step in &self.human_steps {
            let _ = writeln!(out, "  {step}");
        }
        let _ = write!(out, "violations: {}", self.violations.len());
        for violation in self.violations.iter().take(20) {
            let _ = write!(out, "\n  {violation}");
        }
        out
    }
}

/// Two runs side by side, for people.
pub fn side_by_side(one: &Report, other: &Report) -> String {
    let name = |report: &Report| if report.galera { "Galera" } else { "Lockstep" }.to_owned();
    let mut rows = vec![["".to_owned(), name(one), name(other)]];
    let both = |what: &str, of: &dyn Fn(&Report) -> String| [what.to_owned(), of(one), of(other)];
    rows.push(both("transactions acknowledged", &|r| r.acknowledged.to_string()));
    rows.push(both("of these lost", &|r| r.lost.to_string()));
    if one.rescued > 0 {
        rows.push(both("of these in rescue files only", &|r| r.rescued.to_string()));
    }
    rows.push(both("violations", &|r| r.violations.len().to_string()));
    rows.push(both("human steps", &|r| r.human_steps.len().to_string()));
    let kinds: std::collections::BTreeSet<Fault> =
        one.faults.keys().chain(other.faults.keys()).copied().collect();
    for fault in kinds {
        let gap = |report: &Report| match report.faults.get(&fault) {
            Some(of) => format!("{:.2} s ({} times)", of.gap_all, of.count),
            None => "-".into(),
        };
        rows.push(both(&format!("{fault}: no write at all"), &gap));
        let whole = |report: &Report| match report.faults.get(&fault) {
            Some(of) => format!("{:.1} s", of.whole),
            None => "-".into(),
        };
        rows.push(both(&format!("{fault}: until whole"), &whole));
    }
    let lines: Vec<String> = rows.iter().map(|[what, a, b]| format!("{what:<34} {a:>20} {b:>20}")).collect();
    lines.join("\n")
}

/// Those of `times` that lie in the window, so that the gaps at its edges are cut off there.
fn within(times: &[u64], from: u64, to: u64) -> &[u64] {
    &times[times.partition_point(|t| *t < from)..times.partition_point(|t| *t <= to)]
}

/// The longest time between two neighbouring ones of `times` (in µs, ascending) that touches the window, in seconds.
fn gap(times: &[u64], from: u64, to: u64) -> f64 {
    let first = times.partition_point(|t| *t <= from).saturating_sub(1);
    let mut longest = 0;
    let mut before = times.get(first).copied().filter(|t| *t <= from).unwrap_or(from);
    for time in times.iter().copied().skip_while(|t| *t <= from) {
        longest = longest.max(time - before);
        before = time;
        if time >= to {
            return longest as f64 / 1e6;
        }
    }
    longest.max(to.saturating_sub(before)) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_reach_over_the_edges_of_their_window() {
        let times = [1_000_000, 2_000_000, 5_000_000, 5_500_000, 9_000_000];
        assert_eq!(gap(&times, 2_500_000, 3_000_000), 3.0);
        assert_eq!(gap(&times, 1_500_000, 5_600_000), 3.5);
        assert_eq!(gap(&times, 5_100_000, 5_200_000), 0.5);
        assert_eq!(gap(&times, 9_500_000, 9_900_000), 0.9, "none came after it");
        assert_eq!(
            gap(within(&times, 2_500_000, 6_000_000), 2_500_000, 6_000_000),
            2.5,
            "cut off at the edges"
        );
        assert_eq!(gap(&[], 1_000_000, 3_000_000), 2.0);
    }
}
