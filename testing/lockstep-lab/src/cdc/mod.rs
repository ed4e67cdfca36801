//! How long a committed row takes to a consumer of the binlog, and what consumers cost: `lockstep binlog serve` beside
//! Galera's library with a binlog on a member, and beside a single server.
//!
//! Consumers are connections of this process that read all events and keep none. Clients insert one row per transaction:
//! at a fixed rate, for the time to the consumers, and as fast as they can, for the rates and the processor time.

mod consumer;
mod load;
mod rig;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use lockstep_local::{Installation, LocalError, Result};

use crate::machine::machine_cpu_time;
use consumer::Consumers;
pub use load::Pace;
use rig::Rig;

/// Both processors count as full above this part of their time.
pub const FULL: f64 = 0.95;

/// The server whose binlog the consumers read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setup {
    /// One MariaDB server; consumers read its binlog.
    MariaDb,
    /// Three members on Galera's library; the one that clients write to has a binlog.
    GaleraWriter,
    /// The same; another member has the binlog, with `log_slave_updates`.
    GaleraOther,
    /// Three members on Lockstep, and `lockstep binlog serve`.
    Lockstep,
}

impl Setup {
    /// All of them, ours between the rivals.
    pub const EACH: [Setup; 4] = [Setup::MariaDb, Setup::GaleraWriter, Setup::Lockstep, Setup::GaleraOther];

    /// A short name, as in results.
    pub fn name(self) -> &'static str {
        match self {
            Setup::MariaDb => "mariadb",
            Setup::GaleraWriter => "galera-writer",
            Setup::GaleraOther => "galera-other",
            Setup::Lockstep => "lockstep",
        }
    }

    /// A short description.
    pub fn what(self) -> &'static str {
        match self {
            Setup::MariaDb => "MariaDB alone",
            Setup::GaleraWriter => "Galera, binlog on the written member",
            Setup::GaleraOther => "Galera, binlog on another member",
            Setup::Lockstep => "Lockstep, binlog serve",
        }
    }

    /// Whether it needs Galera's library.
    pub fn is_galera(self) -> bool {
        matches!(self, Setup::GaleraWriter | Setup::GaleraOther)
    }
}

/// How it is run.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Our provider's file.
    pub provider: PathBuf,
    /// Galera's library.
    pub galera: PathBuf,
    /// Our command; none: the one in the path.
    pub lockstep: Option<PathBuf>,
    /// How many consumers, for each measurement.
    pub consumers: Vec<usize>,
    /// Connections that write.
    pub writers: usize,
    /// Transactions per second of all of them at the fixed rate.
    pub rate: u32,
    /// For how long each load runs.
    pub window: Duration,
}

/// The result of one load with one number of consumers.
#[derive(Debug, Clone)]
pub struct Measured {
    /// How many.
    pub consumers: usize,
    /// How the clients wrote.
    pub pace: Pace,
    /// How many transactions, and in which time.
    pub transactions: u64,
    /// See `transactions`.
    pub elapsed: Duration,
    /// How long each transaction took its client, sorted, in milliseconds.
    pub commit_ms: Vec<f64>,
    /// From sending the statement to its arrival at each consumer, sorted, in milliseconds.
    pub arrival_ms: Vec<f64>,
    /// The same from the answer to the client on: below zero if the consumer was first.
    pub after_answer_ms: Vec<f64>,
    /// Processor time of the threads that send to consumers.
    pub senders: Duration,
    /// Processor time of the process `lockstep binlog serve`; none for others, which do more than that.
    pub server: Option<Duration>,
    /// The part of all processors that was used, by all processes of the machine.
    pub machine: f64,
}

impl Measured {
    /// Transactions per second.
    pub fn rate(&self) -> f64 {
        self.transactions as f64 / self.elapsed.as_secs_f64()
    }

    /// Microseconds of processor time of a sender, per transaction and consumer; none without a consumer.
    pub fn sender_us(&self) -> Option<f64> {
        let all = self.transactions as f64 * self.consumers as f64;
        (all > 0.0).then(|| self.senders.as_secs_f64() * 1e6 / all)
    }
}

/// One consumer reads the whole binlog.
#[derive(Debug, Clone, Copy)]
pub struct CatchUp {
    /// How many transactions, of how many bytes.
    pub transactions: u64,
    /// See `transactions`.
    pub bytes: u64,
    /// In this time.
    pub elapsed: Duration,
}

/// The result of one run.
#[derive(Debug, Clone)]
pub struct Run {
    /// `VERSION()`, and the provider's where there is one.
    pub version: String,
    /// One for each number of consumers, none at first, and for each way of writing.
    pub measured: Vec<Measured>,
    /// At the end.
    pub catch_up: CatchUp,
    /// The name and option file of each server, and its variables.
    pub configurations: Vec<(String, String)>,
}

/// An error that says what is missing, if it cannot be run on this machine.
pub fn check() -> Result<()> {
    Installation::find().map(drop)
}

/// Starts the servers of a set-up, and measures each load with each number of consumers. Every consumer must have every
/// row in the end. Everything is gone when it returns.
pub fn run(setup: Setup, spec: &Spec) -> Result<Run> {
    let rig = Rig::start(setup, spec)?;
    rig.writer().client()?.run(&[
        "CREATE DATABASE cdc",
        "CREATE TABLE cdc.rows (id BIGINT UNSIGNED PRIMARY KEY, text VARCHAR(8)) ENGINE=InnoDB",
    ])?;
    let mut ids = load::Ids::default();
    // A server that has just begun is slow.
    load::write(rig.writer(), spec.writers, Pace::Full, spec.window.min(Duration::from_secs(2)), &mut ids)?;
    let mut measured = Vec::new();
    for consumers in std::iter::once(0).chain(spec.consumers.iter().copied()) {
        for pace in [Pace::Fixed(spec.rate), Pace::Full] {
            measured.push(measure(&rig, spec, consumers, pace, &mut ids)?);
        }
    }
    Ok(Run {
        version: rig.version()?,
        measured,
        catch_up: consumer::catch_up(&rig, ids.used())?,
        configurations: rig.configurations()?,
    })
}

fn measure(rig: &Rig, spec: &Spec, consumers: usize, pace: Pace, ids: &mut load::Ids) -> Result<Measured> {
    rig.settle(ids.used())?;
    let readers = Consumers::start(rig, consumers, ids.used())?;
    let senders = rig.senders(consumers)?;
    let before = (rig.cpu_of(&senders)?, rig.server_cpu()?, machine_cpu_time()?, Instant::now());
    let written = load::write(rig.writer(), spec.writers, pace, spec.window, ids)?;
    let (machine, wall) = (machine_cpu_time()?, before.3.elapsed());
    // Events that the server sends after the load's end belong to the load.
    let arrived = readers.finish(written.transactions())?;
    let (sent, server) = (rig.cpu_of(&senders)?, rig.server_cpu()?);
    drop(arrived.connections);
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let (mut arrival_ms, mut after_answer_ms) = (Vec::new(), Vec::new());
    for (id, at) in arrived.rows.iter().flatten() {
        let row = written.row(*id).ok_or_else(|| LocalError::Value(format!("row {id} was never written")))?;
        let ms = |from: Instant| match at.checked_duration_since(from) {
            Some(after) => after.as_secs_f64() * 1e3,
            None => -from.duration_since(*at).as_secs_f64() * 1e3,
        };
        arrival_ms.push(ms(row.sent));
        after_answer_ms.push(ms(row.answered));
    }
    let mut commit_ms = written.milliseconds();
    for values in [&mut arrival_ms, &mut after_answer_ms, &mut commit_ms] {
        values.sort_by(f64::total_cmp);
    }
    Ok(Measured {
        consumers,
        pace,
        transactions: written.transactions(),
        elapsed: written.elapsed,
        commit_ms,
        arrival_ms,
        after_answer_ms,
        senders: sent.saturating_sub(before.0),
        server: server.zip(before.1).map(|(after, before)| after.saturating_sub(before)),
        machine: machine.saturating_sub(before.2).as_secs_f64() / (wall.as_secs_f64() * processors),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_costs_are_per_transaction_and_consumer() {
        let measured = Measured {
            consumers: 4,
            pace: Pace::Full,
            transactions: 1000,
            elapsed: Duration::from_secs(2),
            commit_ms: Vec::new(),
            arrival_ms: Vec::new(),
            after_answer_ms: Vec::new(),
            senders: Duration::from_millis(20),
            server: None,
            machine: 0.5,
        };
        assert_eq!((measured.rate(), measured.sender_us()), (500.0, Some(5.0)));
        assert_eq!(Measured { consumers: 0, ..measured }.sender_us(), None);
    }

    #[test]
    fn setups_have_unique_names() {
        for setup in Setup::EACH {
            let same = |other: &&Setup| other.name() == setup.name() || other.what() == setup.what();
            assert_eq!(Setup::EACH.iter().filter(same).count(), 1);
            assert_eq!(setup.is_galera(), setup.name().starts_with("galera"));
        }
    }
}
