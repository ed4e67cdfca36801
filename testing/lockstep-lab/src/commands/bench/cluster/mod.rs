//! `lockstep bench cluster`: real servers under sysbench, with one provider or two by turns.
//!
//! Both clusters are started once and stay up. Each step runs on one while the other is idle, so that the two see the
//! same machine within a minute of each other. A step begins when nobody is busy with what the step before left, and
//! ends, for the processor's time, when every member has applied what was committed.

mod report;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::chaos::Policy;
use crate::{Cluster, ClusterSpec, Load, SYSBENCH_DATABASE, Sysbench, Work, children_cpu_time};
use clap::{Args, ValueEnum};
use lockstep_local::{Installation, Server, Usage};

use super::note;
use report::{Provider, Report, Sample, Settings};

/// What to run, on what, for how long.
#[derive(Args, Debug, Clone)]
pub struct ClusterArgs {
    /// The provider's file [default: liblockstep.so beside this program].
    #[arg(long, value_name = "FILE")]
    provider: Option<PathBuf>,
    /// Another provider to take turns with, such as /usr/lib/galera/libgalera_smm.so.
    #[arg(long, value_name = "FILE")]
    rival: Option<PathBuf>,
    /// One server without replication takes its turns, too.
    #[arg(long)]
    alone: bool,
    /// How many servers a cluster has.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    members: u8,
    /// sysbench's tests, with commas between.
    #[arg(long, value_delimiter = ',', default_value = "oltp_update_index,oltp_write_only")]
    tests: Vec<String>,
    /// Numbers of client threads, with commas between.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64", value_parser = clap::value_parser!(u32).range(1..=1000))]
    threads: Vec<u32>,
    /// Which members the clients connect to. Under commit.policy=semisync or async only the first takes writes, which leads.
    #[arg(long, value_enum, default_value_t = LoadOn::One)]
    load: LoadOn,
    /// How many tables.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    tables: u32,
    /// How many rows each table has.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(10..=100_000_000))]
    rows: u32,
    /// Seconds that each step is measured.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Seconds of load before each measurement.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=3600))]
    warm_up: u32,
    /// How often everything is measured; the medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// innodb_flush_log_at_trx_commit of all servers.
    #[arg(long, value_name = "0|1|2", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    flush: u8,
    /// Applier threads of each member (wsrep_slave_threads).
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=512))]
    appliers: u32,
    /// A further provider option for --provider's members; may be given again.
    #[arg(long = "option", value_name = "NAME=VALUE", value_parser = name_and_value)]
    options: Vec<(String, String)>,
    /// A further provider option for --rival's members; may be given again.
    #[arg(long = "rival-option", value_name = "NAME=VALUE", value_parser = name_and_value)]
    rival_options: Vec<(String, String)>,
    /// A further line of every server's [mysqld]; may be given again.
    #[arg(long = "set", value_name = "LINE")]
    settings: Vec<String>,
    /// As JSON, with every single measurement.
    #[arg(long)]
    json: bool,
    /// Further options for sysbench.
    #[arg(last = true, value_name = "SYSBENCH OPTIONS")]
    sysbench: Vec<String>,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum LoadOn {
    /// The first.
    One,
    /// All of them, thread by thread in turn.
    All,
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("NAME=VALUE is wanted".into()),
    }
}

fn text(error: lockstep_local::LocalError) -> String {
    error.to_string()
}

const MIB: f64 = 1_048_576.0;
/// Clients beyond those of sysbench: ours, and somebody who looks in.
const SPARE_CONNECTIONS: u32 = 20;
/// Less than this share of one processor is rest.
const REST: f64 = 0.08;
const REST_WINDOW: Duration = Duration::from_millis(500);
/// Longer than servers usually go on working after a load; a machine that never rests is measured all the same, and
/// the report says how busy it was otherwise.
const REST_TIMEOUT: Duration = Duration::from_secs(15);

/// One that takes turns: a cluster, or one server of it without a provider.
struct Contender {
    name: String,
    cluster: Cluster,
    sockets: Vec<PathBuf>,
}

impl Contender {
    fn servers(&self) -> &[Server] {
        &self.cluster.servers
    }

    /// Processor time of all servers so far.
    fn cpu(&self) -> Result<Duration, String> {
        self.servers().iter().map(|s| s.cpu_time().map_err(text)).sum()
    }

    /// Waits until every member has applied all that was committed before.
    fn drain(&self) -> Result<(), String> {
        for server in self.servers().iter().filter(|s| s.config.wsrep.is_some()) {
            let mut client = server.client().map_err(text)?;
            client.run(&["SET SESSION wsrep_sync_wait = 1", "SELECT 1"]).map_err(text)?;
        }
        Ok(())
    }

    /// How many write-sets there were so far; `None` without replication.
    fn write_sets(&self) -> Result<Option<u64>, String> {
        let server = &self.servers()[0];
        if server.config.wsrep.is_none() {
            return Ok(None);
        }
        let seen = server.client().and_then(|mut c| c.status("wsrep_last_committed")).map_err(text)?;
        seen.parse().map(Some).map_err(|_| format!("wsrep_last_committed is `{seen}`, not a number"))
    }

    /// Members that hold different rows have not done the same work.
    fn check_agreement(&self, tables: u32) -> Result<(), String> {
        let names: Vec<String> = (1..=tables).map(|n| format!("{SYSBENCH_DATABASE}.sbtest{n}")).collect();
        let sql = format!("CHECKSUM TABLE {}", names.join(", "));
        self.cluster.same_everywhere(&sql).map_err(|e| format!("{}: {e}", self.name))?;
        Ok(())
    }
}

/// sysbench's tests on its usual tables that write nothing.
const READ_ONLY: [&str; 2] = ["oltp_read_only", "oltp_point_select"];

/// An error where clients would write on members that take no writes, of whose errors sysbench dies.
fn who_writes_where(args: &ClusterArgs) -> Result<(), String> {
    let writing = args.tests.iter().find(|test| !READ_ONLY.contains(&test.as_str()));
    let (LoadOn::All, Some(writing)) = (args.load, writing) else { return Ok(()) };
    // Another build of ours, too; of others' options this says nothing.
    for (name, value) in args.options.iter().chain(&args.rival_options) {
        let policy =
            (name == "commit.policy").then(|| value.to_ascii_lowercase().parse::<Policy>().ok()).flatten();
        if let Some(policy) = policy.filter(|policy| policy.is_weak()) {
            return Err(format!(
                "{writing} with --load all writes on every member, and under commit.policy={} only the leader takes writes: \
                 take --load one (the first member leads), or commit.policy=quorum or all; only {} can be had of all members",
                policy.name(),
                READ_ONLY.join(" and ")
            ));
        }
    }
    Ok(())
}

/// Everything, from looking for the programs to the report.
pub(crate) fn run(args: &ClusterArgs) -> Result<(), String> {
    who_writes_where(args)?;
    let mut sysbench = Sysbench::find().map_err(text)?;
    Installation::find().map_err(text)?;
    sysbench.tables = args.tables;
    sysbench.rows = args.rows;
    sysbench.extra = args.sysbench.clone();
    for test in &args.tests {
        sysbench.check(test).map_err(text)?;
    }
    let provider = args.provider.clone().map_or_else(lockstep_local::beside_this_program, Ok)?;
    for file in std::iter::once(&provider).chain(&args.rival) {
        if !file.is_file() {
            return Err(format!("there is no provider {}", file.display()));
        }
    }

    let mut contenders = vec![set_up(args, &sysbench, Some(&provider), &args.options)?];
    if let Some(rival) = &args.rival {
        contenders.push(set_up(args, &sysbench, Some(rival), &args.rival_options)?);
    }
    if args.alone {
        contenders.push(set_up(args, &sysbench, None, &[])?);
    }
    tell_apart(&mut contenders);

    let samples = measure_all(args, &sysbench, &contenders)?;
    for contender in &contenders {
        contender.check_agreement(args.tables)?;
    }
    let report = Report::new(settings(args, &sysbench, &contenders)?, samples);
    let out = if args.json { report.json()? } else { report.text() };
    lockstep_local::say(&out);
    Ok(())
}

/// Starts a cluster with this provider, or a server with none, and fills the tables.
fn set_up(
    args: &ClusterArgs,
    sysbench: &Sysbench,
    provider: Option<&Path>,
    options: &[(String, String)],
) -> Result<Contender, String> {
    let name = provider.map_or_else(|| "alone".to_owned(), provider_name);
    let started = Instant::now();
    note(&format!("{name}: starting "));
    let mut spec = ClusterSpec::new(provider.unwrap_or(Path::new("")));
    spec.members = usize::from(args.members);
    spec.appliers = args.appliers;
    spec.provider_options = options.to_vec();
    let most = args.threads.iter().max().copied().unwrap_or(1);
    spec.extra = vec![
        format!("innodb_flush_log_at_trx_commit={}", args.flush),
        format!("max_connections={}", (most + SPARE_CONNECTIONS).max(151)),
    ];
    spec.extra.extend(args.settings.iter().cloned());
    let cluster = match provider {
        Some(_) => Cluster::start(&spec),
        None => Cluster::start_alone(&spec),
    }
    .map_err(text)?;
    note(&format!("({:.1} s), filling {} tables ", started.elapsed().as_secs_f64(), args.tables));
    let sockets = match args.load {
        LoadOn::One => &cluster.servers[..1],
        LoadOn::All => &cluster.servers[..],
    }
    .iter()
    .map(|s| s.config.socket())
    .collect();
    let contender = Contender { name, cluster, sockets };
    let create = format!("CREATE DATABASE {SYSBENCH_DATABASE}");
    contender.servers()[0].query(&create).map_err(text)?;
    // The tables are alike for all the tests that sysbench calls oltp.
    let test = args.tests.first().ok_or("no test is named")?;
    sysbench.prepare(test, &contender.servers()[0].config.socket()).map_err(text)?;
    contender.drain()?;
    note(&format!("({:.1} s)\n", started.elapsed().as_secs_f64()));
    Ok(contender)
}

/// `libgalera_smm.so` is "galera_smm".
fn provider_name(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    stem.strip_prefix("lib").unwrap_or(&stem).to_owned()
}

/// Two builds of one provider have one name.
fn tell_apart(contenders: &mut [Contender]) {
    if contenders.len() > 1 && contenders[0].name == contenders[1].name {
        contenders[1].name.push_str(" (rival)");
    }
}

fn measure_all(
    args: &ClusterArgs,
    sysbench: &Sysbench,
    contenders: &[Contender],
) -> Result<Vec<Sample>, String> {
    let steps = args.rounds as usize * args.tests.len() * args.threads.len() * contenders.len();
    let guess = Duration::from_secs(u64::from(args.seconds + args.warm_up)) + Duration::from_millis(2500);
    let begun = Instant::now();
    let mut samples = Vec::with_capacity(steps);
    for round in 1..=args.rounds {
        for test in &args.tests {
            for &threads in &args.threads {
                // The order of the two is reversed in every round.
                let mut order: Vec<usize> = (0..contenders.len()).collect();
                if round % 2 == 0 {
                    order.reverse();
                }
                for c in order {
                    let contender = &contenders[c];
                    let done = samples.len();
                    let each = if done == 0 { guess } else { begun.elapsed() / done as u32 };
                    note(&format!(
                        "[{}/{steps}, {} left] round {round}: {test}, {threads} thread{}, {}: ",
                        done + 1,
                        time_left(each * (steps - done) as u32),
                        if threads == 1 { "" } else { "s" },
                        contender.name
                    ));
                    rest(contenders)?;
                    let sample = measure(args, sysbench, contender, test, threads, round)?;
                    note(&format!("{:.0}/s\n", sample.per_second));
                    samples.push(sample);
                }
            }
        }
    }
    Ok(samples)
}

fn time_left(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..=99 => format!("{s} s"),
        s => format!("{} min", s.div_ceil(60)),
    }
}

/// Waits until the servers have nothing more to do.
fn rest(contenders: &[Contender]) -> Result<(), String> {
    let used = || contenders.iter().map(Contender::cpu).sum::<Result<Duration, String>>();
    let deadline = Instant::now() + REST_TIMEOUT;
    let mut before = used()?;
    while Instant::now() < deadline {
        std::thread::sleep(REST_WINDOW);
        let now = used()?;
        if (now - before).as_secs_f64() < REST * REST_WINDOW.as_secs_f64() {
            break;
        }
        before = now;
    }
    Ok(())
}

fn measure(
    args: &ClusterArgs,
    sysbench: &Sysbench,
    contender: &Contender,
    test: &str,
    threads: u32,
    round: u32,
) -> Result<Sample, String> {
    let sockets: Vec<&Path> = contender.sockets.iter().map(PathBuf::as_path).collect();
    let load = |seconds: u32| {
        sysbench.run(test, &sockets, threads, Duration::from_secs(u64::from(seconds))).map_err(text)
    };
    if args.warm_up > 0 {
        load(args.warm_up)?;
        contender.drain()?;
    }
    let before = Clocks::read(contender)?;
    let sets_before = contender.write_sets()?;
    let result = load(args.seconds)?;
    let ended = Instant::now();
    contender.drain()?;
    let drain_seconds = ended.elapsed().as_secs_f64();
    let after = Clocks::read(contender)?;
    let write_sets =
        contender.write_sets()?.zip(sets_before).map(|(after, before)| after.saturating_sub(before));
    let usage: Vec<Usage> =
        contender.servers().iter().map(|s| s.usage().map_err(text)).collect::<Result<_, _>>()?;
    let cpu = after.servers.saturating_sub(before.servers);
    Ok(Sample {
        provider: contender.name.clone(),
        test: test.to_owned(),
        threads,
        round,
        transactions: result.transactions,
        per_second: result.per_second,
        drain_seconds,
        drained_per_second: drained_per_second(&result, drain_seconds),
        avg_ms: result.avg_ms,
        p95_ms: result.p95_ms,
        max_ms: result.max_ms,
        errors: result.errors,
        cpu_ms_per_transaction: cpu.as_secs_f64() * 1000.0 / result.transactions.max(1) as f64,
        write_sets,
        memory_mib: usage.iter().map(|u| u.memory).max().unwrap_or(0) as f64 / MIB,
        threads_of_server: usage.iter().map(|u| u.threads).max().unwrap_or(0),
        descriptors: usage.iter().map(|u| u.descriptors).max().unwrap_or(0),
        disk_mib: contender.servers().iter().map(Server::disk_usage).max().unwrap_or(0) as f64 / MIB,
        elsewhere: after.work.elsewhere_since(&before.work).unwrap_or(0.0),
    })
}

/// Transactions per second of the load and of the time until every server had applied everything.
fn drained_per_second(load: &Load, drain_seconds: f64) -> f64 {
    match load.transactions {
        0 => 0.0,
        all => all as f64 / (all as f64 / load.per_second + drain_seconds),
    }
}

/// Processor time that was used so far.
struct Clocks {
    servers: Duration,
    /// Theirs and that of all our children that have ended (between two readings, sysbench), and the machine's.
    work: Work,
}

impl Clocks {
    fn read(contender: &Contender) -> Result<Clocks, String> {
        let servers = contender.cpu()?;
        let sysbench = children_cpu_time().map_err(text)?;
        Ok(Clocks { servers, work: Work::so_far(servers + sysbench).map_err(text)? })
    }
}

fn settings(args: &ClusterArgs, sysbench: &Sysbench, contenders: &[Contender]) -> Result<Settings, String> {
    let mut providers = Vec::new();
    for contender in contenders {
        let mut client = contender.servers()[0].client().map_err(text)?;
        let version = match contender.servers()[0].config.wsrep {
            Some(_) => client.status("wsrep_provider_version").map_err(text)?,
            None => "no replication".into(),
        };
        providers.push(Provider { name: contender.name.clone(), version });
    }
    let mut client = contenders[0].servers()[0].client().map_err(text)?;
    Ok(Settings {
        server: client.value("SELECT VERSION()").map_err(text)?,
        sysbench: sysbench.version().map_err(text)?,
        processors: std::thread::available_parallelism().map_or(0, usize::from),
        providers,
        members: args.members,
        load_on: if args.load == LoadOn::One { "one" } else { "all" },
        tables: args.tables,
        rows: args.rows,
        seconds: args.seconds,
        warm_up: args.warm_up,
        rounds: args.rounds,
        flush: args.flush,
        appliers: args.appliers,
        tests: args.tests.clone(),
        threads: args.threads.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ClusterArgs,
    }

    fn judged(words: &str) -> Result<(), String> {
        who_writes_where(&Line::try_parse_from(words.split(' ')).unwrap().args)
    }

    #[test]
    fn clients_write_to_leader_only_under_weak_policy() {
        for policy in ["semisync", "async", "SemiSync"] {
            let refused = judged(&format!("x --option commit.policy={policy} --load all")).unwrap_err();
            assert!(
                refused.starts_with("oltp_update_index with --load all writes on every member")
                    && refused.contains("take --load one")
                    && refused.contains(&format!("commit.policy={}", policy.to_ascii_lowercase())),
                "{refused}"
            );
            assert_eq!(judged(&format!("x --option commit.policy={policy}")), Ok(()));
            assert!(
                judged(&format!("x --rival y --rival-option commit.policy={policy} --load all")).is_err()
            );
            let reads = format!("x --option commit.policy={policy} --load all --tests oltp_read_only");
            assert_eq!(judged(&reads), Ok(()));
            assert!(judged(&format!("{reads},oltp_write_only")).unwrap_err().starts_with("oltp_write_only"));
        }
        for policy in ["quorum", "all"] {
            assert_eq!(judged(&format!("x --option commit.policy={policy} --load all")), Ok(()));
        }
        assert_eq!(judged("x --load all --option gcache.size=1G"), Ok(()));
    }
}
