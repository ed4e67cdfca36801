//! Measures a provider, and a rival beside it: clusters of lean servers on loopback, each member a process of its own,
//! the two providers taking turns under the same load. Other work on the machine then affects both alike, and the ratio of
//! one round says more than two numbers.

use crate::harness::{CallError, Cluster, Kind, Member, Pending};
use crate::lean::Histogram;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The provider.
    pub library: PathBuf,
    /// The one to compare it with.
    pub rival: Option<PathBuf>,
    /// The program that is a member, and its arguments: it serves [`crate::command::serve`] on standard input.
    pub program: PathBuf,
    /// See [`Spec::program`].
    pub program_args: Vec<String>,
    /// Members of each cluster.
    pub members: usize,
    /// Clients of each member, one measurement after the other.
    pub clients: Vec<usize>,
    /// Bytes of a write-set's data.
    pub bytes: usize,
    /// Rows that a transaction changes.
    pub writes: u64,
    /// Rows of each client.
    pub keys: u64,
    /// Of a hundred transactions, how many change one of a few rows that all share.
    pub conflict: u64,
    /// How long each measurement takes.
    pub duration: Duration,
    /// How often each is made.
    pub rounds: usize,
    /// Applier threads of each member.
    pub appliers: usize,
    /// More options of the provider.
    pub options: String,
    /// More options of the rival.
    pub rival_options: String,
}

/// Why nothing could be measured.
#[derive(Debug)]
pub enum Error {
    /// A cluster's files or ports.
    Io(std::io::Error),
    /// A member: its name, its error, and the end of the provider's log.
    Member(String, CallError, String),
    /// Transactions failed that had no reason to.
    Failed(String),
    /// Members do not have the same, or had it in another order: the numbers would be those of a broken provider.
    Disagree(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(error) => write!(f, "a cluster cannot be prepared: {error}"),
            Error::Member(name, error, log) => {
                write!(f, "{name}: {error}; the end of its provider's log:\n{log}")
            }
            Error::Failed(text) => write!(f, "transactions failed: {text}"),
            Error::Disagree(text) => write!(f, "the members disagree: {text}"),
        }
    }
}

impl std::error::Error for Error {}

/// One measurement of one provider; with several rounds, the median of each number.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// Transactions committed a second, all members together.
    pub tx_per_second: f64,
    /// Processor time of all members together for each of them, µs.
    pub cpu_us_per_tx: f64,
    /// The kernel's part of it.
    pub system_us_per_tx: f64,
    /// Context switches of all members for each, voluntary and not.
    pub switches_per_tx: f64,
    /// Latency of a commit, from `certify` to `release`, µs: the least.
    pub latency_min_us: f64,
    /// The mean.
    pub latency_avg_us: f64,
    /// The median.
    pub latency_p50_us: f64,
    /// 95 of 100 are below.
    pub latency_p95_us: f64,
    /// 99 of 100 are below.
    pub latency_p99_us: f64,
    /// Transactions that lost against others, of a hundred.
    pub conflicts_percent: f64,
    /// Memory of the largest member at the end, MiB.
    pub rss_mib: f64,
    /// Bytes that one member has the disk write for each transaction.
    pub disk_bytes_per_tx: f64,
    /// Most threads of a member.
    pub threads: f64,
    /// Most descriptors of a member.
    pub descriptors: f64,
}

impl Figures {
    fn fields(&self) -> [f64; 14] {
        [
            self.tx_per_second,
            self.cpu_us_per_tx,
            self.system_us_per_tx,
            self.switches_per_tx,
            self.latency_min_us,
            self.latency_avg_us,
            self.latency_p50_us,
            self.latency_p95_us,
            self.latency_p99_us,
            self.conflicts_percent,
            self.rss_mib,
            self.disk_bytes_per_tx,
            self.threads,
            self.descriptors,
        ]
    }

    fn of(f: [f64; 14]) -> Figures {
        Figures {
            tx_per_second: f[0],
            cpu_us_per_tx: f[1],
            system_us_per_tx: f[2],
            switches_per_tx: f[3],
            latency_min_us: f[4],
            latency_avg_us: f[5],
            latency_p50_us: f[6],
            latency_p95_us: f[7],
            latency_p99_us: f[8],
            conflicts_percent: f[9],
            rss_mib: f[10],
            disk_bytes_per_tx: f[11],
            threads: f[12],
            descriptors: f[13],
        }
    }

    /// The median of each number.
    fn median(all: &[Figures]) -> Figures {
        let mut out = [0.0; 14];
        for (at, out) in out.iter_mut().enumerate() {
            *out = median(all.iter().map(|f| f.fields()[at]).collect());
        }
        Figures::of(out)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// The result for one number of clients.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Clients of each member.
    pub clients: usize,
    /// The provider.
    pub provider: Figures,
    /// Its rounds.
    pub provider_rounds: Vec<Figures>,
    /// The rival.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rival: Option<Figures>,
    /// Its rounds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rival_rounds: Vec<Figures>,
    /// The provider's to the rival's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Ratio>,
}

/// Medians of each round's ratio.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// Transactions a second: more is better.
    pub tx_per_second: f64,
    /// Processor time for each: less is better.
    pub cpu_us_per_tx: f64,
    /// Median latency: less is better.
    pub latency_p50_us: f64,
    /// The latency that 99 of 100 are below: less is better.
    pub latency_p99_us: f64,
}

impl Ratio {
    fn of(ours: &[Figures], theirs: &[Figures]) -> Ratio {
        let of = |field: fn(&Figures) -> f64| {
            let pairs = ours.iter().zip(theirs).filter(|(_, b)| field(b) > 0.0);
            median(pairs.map(|(a, b)| field(a) / field(b)).collect())
        };
        Ratio {
            tx_per_second: of(|f| f.tx_per_second),
            cpu_us_per_tx: of(|f| f.cpu_us_per_tx),
            latency_p50_us: of(|f| f.latency_p50_us),
            latency_p99_us: of(|f| f.latency_p99_us),
        }
    }
}

/// The subject of a line of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The provider.
    Provider,
    /// The rival.
    Rival,
}

/// Runs everything. `progress` is told after each measurement: clients, round, whose, and the figures.
///
/// # Errors
/// [`Error`]; earlier measurements are lost.
pub fn run(
    spec: &Spec,
    mut progress: impl FnMut(usize, usize, Side, &Figures),
) -> Result<Vec<Comparison>, Error> {
    let ours = start(spec, Side::Provider)?;
    let theirs = spec.rival.is_some().then(|| start(spec, Side::Rival)).transpose()?;
    let mut out = Vec::new();
    for clients in &spec.clients {
        // Threads, connections and caches are there before anything counts.
        for cluster in [Some(&ours), theirs.as_ref()].into_iter().flatten() {
            measure(spec, cluster, *clients, Duration::from_millis(500))?;
        }
        let (mut provider, mut rival) = (Vec::new(), Vec::new());
        for round in 0..spec.rounds.max(1) {
            let mut turns = vec![Side::Provider];
            if theirs.is_some() {
                // The order of the two alternates.
                turns.insert(round % 2, Side::Rival);
            }
            for side in turns {
                let (cluster, list) = match (side, &theirs) {
                    (Side::Rival, Some(theirs)) => (theirs, &mut rival),
                    _ => (&ours, &mut provider),
                };
                let figures = measure(spec, cluster, *clients, spec.duration)?;
                progress(*clients, round, side, &figures);
                list.push(figures);
            }
        }
        out.push(Comparison {
            clients: *clients,
            provider: Figures::median(&provider),
            rival: (!rival.is_empty()).then(|| Figures::median(&rival)),
            ratio: (!rival.is_empty()).then(|| Ratio::of(&provider, &rival)),
            provider_rounds: provider,
            rival_rounds: rival,
        });
    }
    for cluster in [Some(&ours), theirs.as_ref()].into_iter().flatten() {
        agree(cluster)?;
    }
    Ok(out)
}

fn failed(member: &Member, error: CallError) -> Error {
    Error::Member(member.name.clone(), error, member.log_tail(12))
}

fn start(spec: &Spec, side: Side) -> Result<Cluster, Error> {
    let (library, options, kind) = match (side, &spec.rival) {
        (Side::Rival, Some(rival)) => (rival, &spec.rival_options, Kind::Galera),
        _ => (&spec.library, &spec.options, Kind::Lockstep),
    };
    let mut cluster =
        Cluster::prepare(kind, library, &spec.program, "bench", spec.members).map_err(Error::Io)?;
    cluster.binary_args = spec.program_args.clone();
    cluster.tuning = options.clone();
    for node in &mut cluster.nodes {
        let mut extra = Map::new();
        extra.insert("lean".into(), json!(true));
        extra.insert("appliers".into(), json!(spec.appliers));
        node.extra = extra;
    }
    match cluster.start_all() {
        Ok(()) => Ok(cluster),
        Err(error) => Err(match cluster.running().last() {
            Some(member) => failed(member, error),
            None => Error::Member("the first member".into(), error, String::new()),
        }),
    }
}

fn ask(cluster: &Cluster, what: &str) -> Result<Vec<Value>, Error> {
    cluster
        .running()
        .map(|member| member.ask(what, json!({})).map_err(|error| failed(member, error)))
        .collect()
}

fn sum(values: &[Value], field: &str) -> f64 {
    values.iter().map(|value| value[field].as_f64().unwrap_or(0.0)).sum()
}

fn most(values: &[Value], field: &str) -> f64 {
    values.iter().map(|value| value[field].as_f64().unwrap_or(0.0)).fold(0.0, f64::max)
}

fn measure(spec: &Spec, cluster: &Cluster, clients: usize, time: Duration) -> Result<Figures, Error> {
    let before = ask(cluster, "usage")?;
    let runs: Vec<Pending> = cluster
        .running()
        .enumerate()
        .map(|(n, member)| {
            let args = json!({
                "clients": clients, "millis": time.as_millis() as u64, "bytes": spec.bytes, "keys": spec.keys,
                "writes": spec.writes, "conflict": spec.conflict, "member": n,
            });
            member.send("load", "lean_load", args)
        })
        .collect();
    let mut outcomes = Vec::new();
    for (run, member) in runs.into_iter().zip(cluster.running()) {
        let outcome = run.wait_for(time + Duration::from_secs(60)).map_err(|error| failed(member, error))?;
        if let Some(text) = outcome["failure"].as_str() {
            return Err(Error::Failed(format!(
                "{}: {} of them, the last one with: {text}",
                member.name, outcome["failed"]
            )));
        }
        outcomes.push(outcome);
    }
    // Pending applies belong to this load.
    agree(cluster)?;
    let after = ask(cluster, "usage")?;

    let mut latency = Histogram::default();
    outcomes.iter().for_each(|outcome| latency.merge(&Histogram::from_json(&outcome["latency"])));
    let committed = sum(&outcomes, "committed");
    let (each, members) = (committed.max(1.0), cluster.running().count().max(1) as f64);
    let used = |field: &str| sum(&after, field) - sum(&before, field);
    Ok(Figures {
        tx_per_second: committed / most(&outcomes, "seconds").max(0.001),
        cpu_us_per_tx: (used("user_us") + used("system_us")) / each,
        system_us_per_tx: used("system_us") / each,
        switches_per_tx: (used("switches") + used("preempted")) / each,
        latency_min_us: latency.min_us(),
        latency_avg_us: latency.mean_us(),
        latency_p50_us: latency.quantile_us(0.5),
        latency_p95_us: latency.quantile_us(0.95),
        latency_p99_us: latency.quantile_us(0.99),
        conflicts_percent: 100.0 * sum(&outcomes, "conflicts") / (each + sum(&outcomes, "conflicts")),
        rss_mib: most(&after, "rss_kib") / 1024.0,
        disk_bytes_per_tx: used("written_bytes") / members / each,
        threads: most(&after, "threads"),
        descriptors: most(&after, "descriptors"),
    })
}

/// Waits until all members have committed the same, in the same order.
fn agree(cluster: &Cluster) -> Result<(), Error> {
    let mut ledgers = Vec::new();
    for _ in 0..1000 {
        ledgers = ask(cluster, "ledger")?;
        if ledgers.windows(2).all(|pair| pair[0] == pair[1]) {
            return match ledgers.iter().find(|ledger| ledger["disorder"] != 0) {
                Some(ledger) => Err(Error::Disagree(format!("a member committed out of order: {ledger}"))),
                None => Ok(()),
            };
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(Error::Disagree(json!(ledgers).to_string()))
}
