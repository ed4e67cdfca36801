//! `lockstep bench rejoin`: how soon a member is back that missed many transactions, beside another provider.
//!
//! A member is stopped in good order, the others go on with one-row transactions, and it is started again. Measured is
//! the time from its process's start until its server has finished the last transaction. No database is copied, or the
//! run fails.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::{Cluster, ClusterSpec};
use clap::Args;
use lockstep_local::{Client, LocalError, Server};

use super::note;

/// What to run, on what.
#[derive(Args, Debug, Clone)]
pub struct RejoinArgs {
    /// The provider's file [default: liblockstep.so beside this program].
    #[arg(long, value_name = "FILE")]
    provider: Option<PathBuf>,
    /// Another provider to take turns with, such as /usr/lib/galera/libgalera_smm.so.
    #[arg(long, value_name = "FILE")]
    rival: Option<PathBuf>,
    /// How many one-row transactions the member misses.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    transactions: u64,
    /// How many sessions write them.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=500))]
    clients: u64,
    /// Applier threads of each member (wsrep_slave_threads).
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=512))]
    appliers: u32,
    /// innodb_flush_log_at_trx_commit of all servers.
    #[arg(long, value_name = "0|1|2", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    flush: u8,
    /// How often each provider has its turn.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// The member is killed instead of stopped in good order.
    #[arg(long)]
    kill: bool,
}

fn text(error: LocalError) -> String {
    error.to_string()
}

/// One rejoin.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// From the start of the process until the last transaction has finished.
    all: Duration,
    /// Of that, until the member has applied the first.
    start: Duration,
    /// Processor time of the joiner.
    cpu: Duration,
}

/// Waits long enough for anything that works.
const TIMEOUT: Duration = Duration::from_secs(900);
const LOOK: Duration = Duration::from_millis(20);

pub(crate) fn run(args: &RejoinArgs) -> Result<(), String> {
    let own = match &args.provider {
        Some(file) => file.clone(),
        None => std::env::current_exe().map_err(|e| e.to_string())?.with_file_name("liblockstep.so"),
    };
    let providers: Vec<&Path> = [Some(own.as_path()), args.rival.as_deref()].into_iter().flatten().collect();
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); providers.len()];
    for round in 0..args.rounds {
        for (provider, samples) in providers.iter().zip(&mut samples) {
            note(&format!("round {}: {}: ", round + 1, name(provider)));
            let sample = measure(args, provider)?;
            note(&format!("{:.2} s\n", sample.all.as_secs_f64()));
            samples.push(sample);
        }
    }
    println!(
        "{} one-row transactions missed, {} appliers, innodb_flush_log_at_trx_commit={}, {}, medians of {}",
        args.transactions,
        args.appliers,
        args.flush,
        if args.kill { "killed" } else { "stopped in order" },
        args.rounds
    );
    println!(
        "{:<16} {:>10} {:>14} {:>14} {:>14}",
        "provider", "back, s", "of it start, s", "transactions/s", "processor, s"
    );
    let mut totals = Vec::new();
    for (provider, samples) in providers.iter().zip(&samples) {
        let median = |value: fn(&Sample) -> Duration| {
            let mut values: Vec<Duration> = samples.iter().map(value).collect();
            values.sort();
            values[values.len() / 2].as_secs_f64()
        };
        let (all, start, cpu) = (median(|s| s.all), median(|s| s.start), median(|s| s.cpu));
        totals.push((all, all - start));
        let rate = args.transactions as f64 / (all - start).max(0.001);
        println!("{:<16} {all:>10.2} {start:>14.2} {rate:>14.0} {cpu:>14.2}", name(provider));
    }
    if let [own, rival] = totals[..] {
        println!(
            "{:.2} times as fast in all, {:.2} times without the start",
            rival.0 / own.0,
            rival.1 / own.1
        );
    }
    Ok(())
}

/// `libgalera_smm.so` is "galera_smm".
fn name(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    stem.strip_prefix("lib").unwrap_or(&stem).to_owned()
}

fn measure(args: &RejoinArgs, provider: &Path) -> Result<Sample, String> {
    let mut spec = ClusterSpec::new(provider);
    spec.appliers = args.appliers;
    // As much as is missed, many times over, under either provider.
    spec.provider_options = vec![("gcache.size".into(), "2G".into())];
    spec.extra = vec![
        format!("innodb_flush_log_at_trx_commit={}", args.flush),
        "innodb_buffer_pool_size=256M".into(),
        "innodb_log_file_size=256M".into(),
        format!("max_connections={}", args.clients + 50),
    ];
    let mut cluster = Cluster::start(&spec).map_err(text)?;
    cluster.servers[0]
        .client()
        .and_then(|mut c| {
            c.run(&[
                "CREATE DATABASE bench",
                "CREATE TABLE bench.missed (id BIGINT PRIMARY KEY, v CHAR(60) NOT NULL) ENGINE=InnoDB",
            ])
        })
        .map_err(text)?;
    cluster.same_everywhere("SELECT COUNT(*) FROM bench.missed").map_err(text)?;
    // A copy of the database would take it away.
    cluster.servers[2]
        .client()
        .and_then(|mut c| c.run(&["SET SESSION wsrep_on = OFF", "CREATE DATABASE only_here"]))
        .map_err(text)?;
    match args.kill {
        true => cluster.servers[2].kill(),
        false => cluster.servers[2].stop().map_err(text)?,
    }
    write(&cluster.servers[0], args)?;
    let target: i64 = committed(&cluster.servers[0]).ok_or("the first member says no position")?;
    let first = target - args.transactions as i64 + 1;
    // The others are idle: their pending flushes would be charged to the joiner.
    std::thread::sleep(Duration::from_secs(2));
    let began = Instant::now();
    cluster.servers[2].spawn(&[]).map_err(text)?;
    let mut start = None;
    let joiner = &cluster.servers[2];
    loop {
        let at = committed(joiner).unwrap_or(-1);
        if at >= first && start.is_none() {
            start = Some(began.elapsed());
        }
        if at >= target {
            break;
        }
        if began.elapsed() > TIMEOUT {
            return Err(format!(
                "the member is not back after {} s\n{}",
                TIMEOUT.as_secs(),
                joiner.log_tail(30)
            ));
        }
        std::thread::sleep(LOOK);
    }
    let all = began.elapsed();
    let cpu = joiner.cpu_time().map_err(text)?;
    cluster.wait_size(3).map_err(text)?;
    let rows =
        cluster.same_everywhere("SELECT COUNT(*) FROM bench.missed").map_err(text)?.number().map_err(text)?;
    let mark = cluster.servers[2].query("SHOW DATABASES LIKE 'only_here'").map_err(text)?;
    if rows != args.transactions as i64 || mark.rows.len() != 1 {
        return Err(format!(
            "{rows} rows; {} of the database",
            if mark.rows.is_empty() { "a copy" } else { "no copy" }
        ));
    }
    Ok(Sample { all, start: start.unwrap_or(all), cpu })
}

fn committed(server: &Server) -> Option<i64> {
    let mut client = Client::connect(&server.config.socket(), "root", Duration::from_secs(5)).ok()?;
    client.status("wsrep_last_committed").ok()?.parse().ok()
}

/// The transactions that are missed.
fn write(server: &Server, args: &RejoinArgs) -> Result<(), String> {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..args.clients)
            .map(|_| {
                scope.spawn(|| -> Result<(), LocalError> {
                    let mut client = server.client()?;
                    loop {
                        let id = next.fetch_add(1, Ordering::Relaxed);
                        if id >= args.transactions {
                            return Ok(());
                        }
                        client.query(&format!(
                            "INSERT INTO bench.missed VALUES ({id}, 'row {id} of those missed')"
                        ))?;
                    }
                })
            })
            .collect();
        workers.into_iter().try_for_each(|w| w.join().expect("a worker panicked"))
    })
    .map_err(text)
}
