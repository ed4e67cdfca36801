//! What a far copy of the database costs writers, by the way in which the copy is kept. The model is a post of 2012, with
//! one connection and a copy 85.5 ms away. It found 1066 inserts/s with no replica, 943 with an asynchronous one, and
//! 11.5 with a semi-synchronous one.

mod load;
mod rig;
mod setup;

use std::path::PathBuf;
use std::time::Duration;

use crate::far::{FAR, NEAR};
use crate::needs;
use crate::wan::{Counters, Link, Wan};
pub use load::{Connection, Load};
use lockstep_local::{Installation, LocalError, Result};
use rig::Rig;
pub use setup::Setup;

/// Places in the near zone and in the far one.
const PLACES: [usize; 2] = [4, 2];

/// Inserts of a single connection before those that are measured: a server that has just begun is slow.
pub const WARM_UP: u32 = 200;
/// Of one that waits for the far member.
pub const WARM_UP_FAR: u32 = 20;

/// How it is run.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Our provider's file.
    pub provider: PathBuf,
    /// Galera's library.
    pub galera: PathBuf,
    /// Our command, which is the arbitrator and the log members; none: the one in the path.
    pub lockstep: Option<PathBuf>,
    /// From the near zone to the far one and back.
    pub round_trip: Duration,
    /// Inserts of a single connection.
    pub inserts: u32,
    /// Of one that waits for the far member.
    pub far_inserts: u32,
    /// How many connections insert at once afterwards, for each further measurement.
    pub clients: Vec<usize>,
    /// For how long those do.
    pub window: Duration,
}

/// The result of one run.
#[derive(Debug, Clone)]
pub struct Run {
    /// `VERSION()`, and the provider's where there is one.
    pub version: String,
    /// A single connection first, then those of [`Spec::clients`].
    pub loads: Vec<Load>,
    /// The shortest round trip over the line before the load began.
    pub round_trip: Duration,
    /// The statistics of the line to the far zone from the first insert to the end.
    pub there: Counters,
    /// And the way back.
    pub back: Counters,
    /// The name and option file of each server, and its variables.
    pub configurations: Vec<(String, String)>,
}

/// An error that says what is missing, if it cannot be run on this machine.
pub fn check() -> Result<()> {
    Installation::find()?;
    needs::line()
}

/// Warms the machine up: files not yet in the kernel's cache would slow down the first set-up. Its results are dropped.
pub fn warm_up(spec: &Spec) -> Result<()> {
    let spec = Spec { inserts: WARM_UP, clients: Vec::new(), ..spec.clone() };
    run(Setup::Alone, &spec).map(drop)
}

/// Starts the servers of a set-up and inserts by connections to a near one. In the end every copy must have all rows, and
/// nobody may have fallen back to less than was asked for. Everything is gone when it returns.
pub fn run(setup: Setup, spec: &Spec) -> Result<Run> {
    // The distance comes when all are there: rsync copies the database folder by folder, many round trips for each.
    let mut wan = Wan::new(&PLACES, &[Link::of_round_trip(NEAR, FAR, Duration::ZERO)])?;
    let mut rig = Rig::start(setup, spec, &wan)?;
    let round_trip = wan.set_round_trip(NEAR, FAR, spec.round_trip)?;
    rig.writer().client()?.run(&[
        "CREATE DATABASE inserttest",
        "CREATE TABLE inserttest.foo (id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY, text VARCHAR(8)) ENGINE=InnoDB",
    ])?;
    const COUNT: &str = "SELECT COUNT(*) FROM inserttest.foo";
    rig.wait_for_copies(COUNT, "0")?;
    rig.check_promise(0)?;
    wan.count_anew();

    let (warm_up, count) =
        if setup.waits_for_far() { (WARM_UP_FAR, spec.far_inserts) } else { (WARM_UP, spec.inserts) };
    let mut loads = vec![load::of_one(rig.writer(), warm_up, count)?];
    let mut rows = loads[0].rows();
    for clients in &spec.clients {
        // Earlier work must have ended.
        rig.wait_for_copies(COUNT, &rows.to_string())?;
        let load = load::of_many(rig.writer(), *clients, spec.window)?;
        rows += load.rows();
        loads.push(load);
    }
    rig.check_promise(rows)?;
    rig.wait_for_copies(COUNT, &rows.to_string())?;
    if setup.has_far_copy() && wan.counters(NEAR, FAR)?.delivered == 0 {
        return Err(LocalError::Value("the far copy was not reached over the line".into()));
    }
    Ok(Run {
        version: rig.version()?,
        loads,
        round_trip,
        there: wan.counters(NEAR, FAR)?,
        back: wan.counters(FAR, NEAR)?,
        configurations: rig.configurations()?,
    })
}
