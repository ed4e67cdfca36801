//! What synchronous replication costs near and far. The model is a post of 2011 that measured sysbench's OLTP load on
//! eight set-ups of one to three servers, some of them 90 ms away.

use std::path::PathBuf;
use std::time::Duration;

use crate::catch_up::catch_up;
use crate::cluster::Cluster;
use crate::far::{self, FAR, GALERA_FAR, NEAR};
use crate::needs;
use crate::sysbench::{Histogram, Load, SYSBENCH_DATABASE, Sysbench};
use crate::wan::{Counters, Link, Wan};

/// The load.
const SCRIPT: &str = "oltp_read_write";
/// Members in the near zone; the far zone has a single member.
const NEAR_MEMBERS: usize = 2;
/// The tables are copied to every member before the distance comes.
const TIMEOUT: Duration = Duration::from_secs(120);
/// For copies to have what a load has written: nobody holds a writer of ours up when they are slower.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(300);

/// Whose provider the servers load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Provider {
    /// The rival's.
    Galera,
    /// This project's.
    Lockstep,
}

/// The places of the members, and the members written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setup {
    /// MariaDB that flushes InnoDB's log at each commit: the alternative to replication.
    Flushing,
    /// A cluster of one.
    One(Provider),
    /// A master and a slave, near each other.
    TwoNear(Provider),
    /// A master, and a slave far away.
    TwoFar(Provider),
    /// A master, a slave near and a slave far away.
    ThreeOneFar(Provider),
    /// Two masters, near each other.
    Masters(Provider),
    /// Two masters near each other, and a slave far away.
    MastersAndFar(Provider),
    /// Clients far from a single server.
    FarClients,
}

use Provider::{Galera, Lockstep};
use lockstep_local::{Installation, Result};

impl Setup {
    /// All of them, the rivals side by side.
    pub const EACH: [Setup; 14] = [
        Setup::Flushing,
        Setup::One(Galera),
        Setup::One(Lockstep),
        Setup::TwoNear(Galera),
        Setup::TwoNear(Lockstep),
        Setup::TwoFar(Galera),
        Setup::TwoFar(Lockstep),
        Setup::ThreeOneFar(Galera),
        Setup::ThreeOneFar(Lockstep),
        Setup::Masters(Galera),
        Setup::Masters(Lockstep),
        Setup::MastersAndFar(Galera),
        Setup::MastersAndFar(Lockstep),
        Setup::FarClients,
    ];

    /// Its provider.
    pub fn provider(self) -> Option<Provider> {
        match self {
            Setup::Flushing | Setup::FarClients => None,
            Setup::One(of)
            | Setup::TwoNear(of)
            | Setup::TwoFar(of)
            | Setup::ThreeOneFar(of)
            | Setup::Masters(of)
            | Setup::MastersAndFar(of) => Some(of),
        }
    }

    /// A short name, as in results.
    pub fn name(self) -> String {
        let what = match self {
            Setup::Flushing => "flushing",
            Setup::One(_) => "one",
            Setup::TwoNear(_) => "two-near",
            Setup::TwoFar(_) => "two-far",
            Setup::ThreeOneFar(_) => "three-one-far",
            Setup::Masters(_) => "masters",
            Setup::MastersAndFar(_) => "masters-and-far",
            Setup::FarClients => "far-clients",
        };
        match self.provider() {
            None => format!("mariadb-{what}"),
            Some(Galera) => format!("galera-{what}"),
            Some(Lockstep) => format!("lockstep-{what}"),
        }
    }

    /// The one of this name.
    pub fn of_name(name: &str) -> Option<Setup> {
        Setup::EACH.into_iter().find(|setup| setup.name() == name)
    }

    /// A short description.
    pub fn what(self) -> String {
        let what = match self {
            Setup::Flushing => "MariaDB alone, flushing at each commit",
            Setup::One(_) => "one node",
            Setup::TwoNear(_) => "two nodes near",
            Setup::TwoFar(_) => "two nodes, one far",
            Setup::ThreeOneFar(_) => "three nodes, one far",
            Setup::Masters(_) => "two masters near",
            Setup::MastersAndFar(_) => "two masters near, slave far",
            Setup::FarClients => "MariaDB alone, clients far",
        };
        match self.provider() {
            None => what.into(),
            Some(Galera) => format!("Galera, {what}"),
            Some(Lockstep) => format!("Lockstep, {what}"),
        }
    }

    /// The zone and the place in it of each server.
    fn places(self) -> &'static [(usize, usize)] {
        match self {
            Setup::Flushing | Setup::One(_) => &[(NEAR, 0)],
            Setup::FarClients => &[(FAR, 0)],
            Setup::TwoNear(_) | Setup::Masters(_) => &[(NEAR, 0), (NEAR, 1)],
            Setup::TwoFar(_) => &[(NEAR, 0), (FAR, 0)],
            Setup::ThreeOneFar(_) | Setup::MastersAndFar(_) => &[(NEAR, 0), (NEAR, 1), (FAR, 0)],
        }
    }

    /// Whether anybody has a copy.
    pub fn has_copies(self) -> bool {
        self.places().len() > 1
    }

    /// How many of the servers, from the first on, are written to.
    fn masters(self) -> usize {
        if matches!(self, Setup::Masters(_) | Setup::MastersAndFar(_)) { 2 } else { 1 }
    }
}

/// How it is run.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Our provider's file.
    pub provider: PathBuf,
    /// Galera's library.
    pub galera: PathBuf,
    /// From the near zone to the far one and back.
    pub round_trip: Duration,
    /// Tables of sysbench's, and the rows of each.
    pub tables: u32,
    /// See `tables`.
    pub rows: u32,
    /// How many threads, for each measurement.
    pub threads: Vec<u32>,
    /// For how long each.
    pub window: Duration,
}

/// The result of one load.
#[derive(Debug, Clone)]
pub struct Measured {
    /// By so many threads.
    pub threads: u32,
    /// In sum, as sysbench said.
    pub load: Load,
    /// How many transactions took how long.
    pub histogram: Histogram,
    /// How long after the load's end every member had everything; none where there is only one.
    pub caught_up: Option<Duration>,
}

/// The result of one run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Of the server, and of the provider where there is one; and sysbench's.
    pub version: String,
    /// One for each of [`Spec::threads`].
    pub measured: Vec<Measured>,
    /// The shortest round trip over the line before the load began.
    pub round_trip: Duration,
    /// The statistics of the line to the far zone while the load ran.
    pub there: Counters,
    /// And the way back.
    pub back: Counters,
    /// The name and option file of each server, and its variables.
    pub configurations: Vec<(String, String)>,
}

/// An error that says what is missing, if it cannot be run on this machine.
pub fn check() -> Result<()> {
    Installation::find()?;
    Sysbench::find()?;
    needs::line()
}

/// Starts the servers of a set-up, fills the tables, and runs the load with each number of threads; after each of them every
/// member must come to the same rows. Everything is gone when it returns.
pub fn run(setup: Setup, spec: &Spec) -> Result<Run> {
    let mut wan = Wan::new(&[NEAR_MEMBERS, 1], &[Link::of_round_trip(NEAR, FAR, Duration::ZERO)])?;
    let cluster = start(setup, spec, &wan)?;
    let mut bench = Sysbench::find()?;
    bench.tables = spec.tables;
    bench.rows = spec.rows;
    // By sysbench's default three of four accesses go to a hundredth of the rows. In tables as small as these, that would
    // measure how long a row stays locked.
    bench.extra.push("--rand-type=uniform".into());
    let first = &cluster.servers[0];
    first.query(&format!("CREATE DATABASE {SYSBENCH_DATABASE}"))?;
    bench.prepare(SCRIPT, &first.config.socket())?;
    let count = format!("SELECT COUNT(*) FROM {SYSBENCH_DATABASE}.sbtest{}", spec.tables);
    far::wait_for_copies(&cluster.servers, TIMEOUT, &count, &spec.rows.to_string())?;

    let round_trip = wan.set_round_trip(NEAR, FAR, spec.round_trip)?;
    let masters = &cluster.servers[..setup.masters()];
    let sockets: Vec<PathBuf> = masters.iter().map(|server| server.config.socket()).collect();
    let sockets: Vec<&std::path::Path> = sockets.iter().map(PathBuf::as_path).collect();
    if setup == Setup::FarClients {
        first
            .client()?
            .run(&["CREATE USER 'far'@'%'", &format!("GRANT ALL ON {SYSBENCH_DATABASE}.* TO 'far'@'%'")])?;
        bench.far = Some((wan.namespace(NEAR, 0), wan.host(FAR, 0), first.config.sql_port));
    }
    wan.count_anew();
    let rows = bench.rows_as_one_value();
    let mut measured = Vec::new();
    for threads in &spec.threads {
        let (load, histogram) = bench.run_with_histogram(SCRIPT, &sockets, *threads, spec.window)?;
        // No server is still busy with this load when the next one starts.
        let caught_up = catch_up(&cluster.servers, setup.masters(), CATCH_UP_TIMEOUT, &rows)?;
        measured.push(Measured { threads: *threads, load, histogram, caught_up });
    }
    Ok(Run {
        version: format!("{}, {}", far::version(first)?, bench.version()?),
        measured,
        round_trip,
        there: wan.counters(NEAR, FAR)?,
        back: wan.counters(FAR, NEAR)?,
        configurations: far::configurations(&cluster.servers)?,
    })
}

fn start(setup: Setup, spec: &Spec, wan: &Wan) -> Result<Cluster> {
    let flush = if setup == Setup::Flushing { 1 } else { 0 };
    let extra = vec![
        format!("innodb_flush_log_at_trx_commit={flush}"),
        "innodb_buffer_pool_size=256M".into(),
        "max_connections=600".into(),
    ];
    match setup.provider() {
        Some(Galera) => far::start_cluster(setup.places(), &spec.galera, &GALERA_FAR, extra, wan),
        Some(Lockstep) => far::start_cluster(setup.places(), &spec.provider, &[], extra, wan),
        None => far::start_alone(setup.places()[0], extra, wan),
    }
}
