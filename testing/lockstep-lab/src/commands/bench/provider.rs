//! `lockstep bench provider`: the provider alone, with a rival beside.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use lockstep_host::bench::{self, Comparison, Figures, Side, Spec};
use lockstep_local::say;
use serde_json::json;

/// How this program is told to be a member.
pub(crate) const MEMBER: &str = "bench-member";

#[derive(Args, Debug)]
pub struct ProviderArgs {
    /// The provider's file [default: liblockstep.so beside this program].
    #[arg(long)]
    provider: Option<PathBuf>,
    /// Another provider, which takes turns with it: /usr/lib/galera/libgalera_smm.so.
    #[arg(long)]
    rival: Option<PathBuf>,
    /// Members of each cluster; each is a process.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=9))]
    members: u64,
    /// Clients of each member: one measurement for each number.
    #[arg(long, default_values_t = [8, 32], value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1000))]
    clients: Vec<u64>,
    /// Bytes of data in a write-set.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(16..=100_000_000))]
    size: u64,
    /// Rows that a transaction changes.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    writes: u64,
    /// Rows of each client.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    keys: u64,
    /// Of a hundred transactions, how many change one of four rows that all clients of all members share.
    #[arg(long, default_value_t = 0, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(0..=100))]
    conflict: u64,
    /// How long each measurement takes.
    #[arg(long, default_value = "5", value_name = "SECONDS", value_parser = lockstep_local::seconds)]
    seconds: Duration,
    /// How often each is made; the medians count.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Applier threads of each member.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=256))]
    appliers: u64,
    /// Options for the provider, as in wsrep_provider_options.
    #[arg(long, default_value = "")]
    options: String,
    /// Options for the rival.
    #[arg(long, default_value = "")]
    rival_options: String,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ProviderArgs) -> Result<(), String> {
    let library = match &args.provider {
        Some(path) => path.clone(),
        None => lockstep_local::beside_this_program()?,
    };
    let absolute = |path: &PathBuf| {
        std::fs::canonicalize(path)
            .map_err(|e| format!("the provider {} cannot be read: {e}", path.display()))
    };
    let spec = Spec {
        library: absolute(&library)?,
        rival: args.rival.as_ref().map(absolute).transpose()?,
        program: std::env::current_exe().map_err(|e| format!("cannot tell where this program is: {e}"))?,
        program_args: vec![MEMBER.into()],
        members: args.members as usize,
        clients: args.clients.iter().map(|n| *n as usize).collect(),
        bytes: args.size as usize,
        writes: args.writes,
        keys: args.keys,
        conflict: args.conflict,
        duration: args.seconds,
        rounds: args.rounds as usize,
        appliers: args.appliers as usize,
        options: args.options.clone(),
        rival_options: args.rival_options.clone(),
    };
    if !args.json {
        say(&format!(
            "{} members, {} bytes and {} rows a write-set, {} % on shared rows, {} x {:.1} s each; latency and CPU in µs",
            spec.members,
            spec.bytes,
            spec.writes,
            spec.conflict,
            spec.rounds,
            spec.duration.as_secs_f64()
        ));
        say(&format!("provider: {}", spec.library.display()));
        if let Some(rival) = &spec.rival {
            say(&format!("rival:    {}", rival.display()));
        }
        say("");
        say(&heading());
    }
    let comparisons = bench::run(&spec, |clients, round, side, figures| {
        if !args.json {
            say(&row(clients, &format!("{} {}", name(side), round + 1), figures));
        }
    })
    .map_err(|e| e.to_string())?;
    if args.json {
        let out = json!({
            "members": spec.members, "bytes": spec.bytes, "writes": spec.writes, "keys": spec.keys,
            "conflict_percent": spec.conflict, "seconds": spec.duration.as_secs_f64(), "rounds": spec.rounds,
            "appliers": spec.appliers, "provider": spec.library, "rival": spec.rival, "results": comparisons,
        });
        say(&serde_json::to_string_pretty(&out).map_err(|e| e.to_string())?);
    } else {
        summary(&comparisons);
    }
    Ok(())
}

fn name(side: Side) -> &'static str {
    match side {
        Side::Provider => "provider",
        Side::Rival => "rival",
    }
}

fn heading() -> String {
    format!(
        "{:>7} {:<12} {:>8} {:>8} {:>8} {:>8} | {:>6} {:>7} {:>7} {:>7} {:>8} | {:>7} {:>7} {:>6}",
        "clients",
        "",
        "tx/s",
        "CPU/tx",
        "kernel",
        "switches",
        "min",
        "avg",
        "p50",
        "p95",
        "p99",
        "memory",
        "disk/tx",
        "lost"
    )
}

fn row(clients: usize, what: &str, f: &Figures) -> String {
    format!(
        "{clients:>7} {what:<12} {:>8.0} {:>8.1} {:>8.1} {:>8.2} | {:>6.0} {:>7.0} {:>7.0} {:>7.0} {:>8.0} | {:>5.0} M {:>5.0} B {:>5.1}%",
        f.tx_per_second,
        f.cpu_us_per_tx,
        f.system_us_per_tx,
        f.switches_per_tx,
        f.latency_min_us,
        f.latency_avg_us,
        f.latency_p50_us,
        f.latency_p95_us,
        f.latency_p99_us,
        f.rss_mib,
        f.disk_bytes_per_tx,
        f.conflicts_percent
    )
}

fn summary(comparisons: &[Comparison]) {
    say("");
    say("Medians");
    say(&heading());
    for c in comparisons {
        say(&row(c.clients, "provider", &c.provider));
        if let (Some(rival), Some(ratio)) = (&c.rival, &c.ratio) {
            say(&row(c.clients, "rival", rival));
            say(&format!(
                "{:>7} {:<12} {:>8.2} {:>8.2} {:>27} {:>15.2} {:>15.2}",
                c.clients,
                "ratio",
                ratio.tx_per_second,
                ratio.cpu_us_per_tx,
                "|",
                ratio.latency_p50_us,
                ratio.latency_p99_us
            ));
        }
    }
}
