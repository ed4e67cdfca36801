//! How fast a copy catches up. The model is a post of 2011: a replica that applied ten schemas in parallel was five times
//! as fast as one that applied everything in turn.
//!
//! The writer's updates are kept from the copy's tables while they come in; then they are let go, and the clock runs
//! until the last of them is there. MariaDB's own replica and a Lockstep member do the same in turn, on the same machine.

mod choice;
mod load;
mod rig;

use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use choice::Choice;
use lockstep_local::{Installation, LocalError, Result};
use rig::Rig;
pub use rig::{GROUP_COUNT, GROUP_WAIT_US};

/// The number of schemas in the database of each server. A case uses the first few of them.
pub const SCHEMAS: u32 = 10;

/// The applying server, and what it applies in parallel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// A member of ours with `apply.order=serial`.
    Serial,
    /// With `apply.order=schema`.
    Schema,
    /// With `apply.order=writeset`.
    Writeset,
    /// MariaDB's replica without workers: its SQL thread applies.
    MariaDb,
    /// As [`Side::MariaDb`], with its position in a file, too.
    MariaDbFile,
    /// With workers and `slave_parallel_mode=minimal`: only commits overlap.
    Minimal,
    /// With `conservative`: what the primary committed as a group.
    Conservative,
    /// As [`Side::Conservative`], with its position in a file, too.
    ConservativeFile,
    /// With `optimistic`: everything, and what conflicts again.
    Optimistic,
    /// MariaDB's replica of a cluster of ours, by `lockstep binlog serve`: with `conservative`
    ServedConservative,
    /// and with `optimistic`.
    ServedOptimistic,
}

/// The kinds of servers that apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// A member of ours.
    Lockstep,
    /// A replica of a MariaDB server.
    MariaDb,
    /// A replica of a cluster of ours.
    Served,
}

impl Family {
    /// All of them.
    pub const EACH: [Family; 3] = [Family::Lockstep, Family::MariaDb, Family::Served];

    /// How the names of its cases begin.
    fn name(self) -> &'static str {
        match self {
            Family::Lockstep => "lockstep",
            Family::MariaDb => "mariadb",
            Family::Served => "served",
        }
    }
}

impl Side {
    /// All of them, ours between their rivals.
    pub const EACH: [Side; 11] = [
        Side::Serial,
        Side::MariaDb,
        Side::MariaDbFile,
        Side::Schema,
        Side::Minimal,
        Side::Writeset,
        Side::Conservative,
        Side::ConservativeFile,
        Side::ServedConservative,
        Side::Optimistic,
        Side::ServedOptimistic,
    ];

    /// Which kind of server applies.
    pub fn family(self) -> Family {
        match self {
            Side::Serial | Side::Schema | Side::Writeset => Family::Lockstep,
            Side::ServedConservative | Side::ServedOptimistic => Family::Served,
            _ => Family::MariaDb,
        }
    }

    /// Whether it is a member of ours.
    pub fn is_ours(self) -> bool {
        self.family() == Family::Lockstep
    }

    /// Whether it is MariaDB's replica without workers.
    pub fn is_single(self) -> bool {
        matches!(self, Side::MariaDb | Side::MariaDbFile)
    }

    /// Whether MariaDB's replica writes its position to a file at each commit (`MASTER_USE_GTID=no`), beside its table.
    pub fn has_file(self) -> bool {
        matches!(self, Side::MariaDbFile | Side::ConservativeFile)
    }

    /// The name of its setting.
    pub fn setting(self) -> &'static str {
        match self {
            Side::Serial => "serial",
            Side::Schema => "schema",
            Side::Writeset => "writeset",
            Side::MariaDb => "none",
            Side::Minimal => "minimal",
            Side::Conservative => "conservative",
            Side::MariaDbFile => "none-file",
            Side::ConservativeFile => "conservative-file",
            Side::Optimistic => "optimistic",
            Side::ServedConservative => "served-conservative",
            Side::ServedOptimistic => "served-optimistic",
        }
    }

    /// `slave_parallel_mode` of a replica.
    fn mode(self) -> &'static str {
        match self {
            Side::Minimal => "minimal",
            Side::Optimistic | Side::ServedOptimistic => "optimistic",
            _ => "conservative",
        }
    }

    /// How the names of its cases begin.
    pub fn name(self) -> String {
        match self.family() {
            Family::Served => self.setting().to_owned(),
            family => format!("{}-{}", family.name(), self.setting()),
        }
    }

    /// A short description.
    pub fn what(self) -> String {
        match self {
            Side::MariaDb => "MariaDB, no workers".into(),
            Side::MariaDbFile => "MariaDB, no workers, position in a file, too".into(),
            Side::ConservativeFile => "MariaDB conservative, position in a file, too".into(),
            side if side.is_ours() => format!("Lockstep {}", side.setting()),
            side if side.family() == Family::Served => format!("MariaDB {}, fed by Lockstep", side.mode()),
            side => format!("MariaDB {}", side.setting()),
        }
    }
}

/// One thing to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// The applying server.
    pub side: Side,
    /// With so many threads; 0 for MariaDB's replica without workers.
    pub workers: u32,
    /// How many schemas the updates are spread over, 1 to [`SCHEMAS`].
    pub schemas: u32,
    /// Whether InnoDB's log is flushed at each commit (`innodb_flush_log_at_trx_commit=1`, else 0).
    pub flush: bool,
    /// Whether each flush of the copy's process takes longer, by [`Spec::slow`].
    pub slow: bool,
}

impl Case {
    /// A short name, as in results.
    pub fn name(&self) -> String {
        let flush = if self.flush { "flush" } else { "relaxed" };
        let disk = if self.slow { "-slow-disk" } else { "" };
        let (side, workers, schemas) = (self.side.name(), self.workers, self.schemas);
        format!("{side}-{workers}w-{schemas}s-{flush}{disk}")
    }
}

/// How it is run.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Our provider's file.
    pub provider: PathBuf,
    /// Our command, which feeds replicas; none: the one in the path.
    pub lockstep: Option<PathBuf>,
    /// Rows of each table.
    pub rows: u32,
    /// Updates of each run,
    pub updates: u32,
    /// and of one with slow flushes.
    pub slow_updates: u32,
    /// Connections that write them.
    pub connections: u32,
    /// How much longer a flush takes on the slow disk.
    pub slow: Duration,
}

/// The result of one run.
#[derive(Debug, Clone)]
pub struct Run {
    /// `VERSION()`, and the provider's where there is one.
    pub version: String,
    /// The number of applied updates,
    pub updates: u32,
    /// in this time: from before the applier was released until the last update was applied.
    pub elapsed: Duration,
    /// The time that the writer took to write them.
    pub written_in: Duration,
    /// Commits of MariaDB's primary meanwhile, and the groups of its binlog that they were made in; none for ours.
    pub groups: Option<(u64, u64)>,
    /// Processor time of the copy's process.
    pub cpu: Duration,
    /// Flushes of its InnoDB files; on the slow disk, all calls of the process that waited for the disk.
    pub flushes: u64,
    /// Transactions that the copy had to apply again (MariaDB's optimistic mode).
    pub retried: u64,
    /// When it had been looked at, and how many updates there were by then.
    pub progress: Vec<(Duration, u64)>,
    /// The name and option file of each server, its runtime settings, and its variables.
    pub configurations: Vec<(String, String)>,
}

impl Run {
    /// Updates per second.
    pub fn rate(&self) -> f64 {
        f64::from(self.updates) / self.elapsed.as_secs_f64()
    }
}

/// An error that says what is missing, if it cannot be run on this machine.
pub fn check() -> Result<()> {
    Installation::find().map(drop)
}

/// The servers of all sides, which stay up from run to run: they are started by the first case that wants them.
#[derive(Debug)]
pub struct ParallelApply {
    spec: Spec,
    /// By family.
    rigs: [Option<Rig>; Family::EACH.len()],
    /// Of the updates, so that no two runs have the same rows in the same order.
    seed: u64,
}

impl ParallelApply {
    /// Nothing runs yet.
    pub fn new(spec: Spec) -> ParallelApply {
        ParallelApply { spec, rigs: [const { None }; Family::EACH.len()], seed: 1 }
    }

    /// Measures one case, and checks that the copy has the same rows in the end and that no update is missing.
    pub fn run(&mut self, case: &Case) -> Result<Run> {
        let outcome = self.measure(case);
        if outcome.is_err() {
            // In any state: the next case gets new servers.
            *self.rig_of(case) = None;
        }
        outcome
    }

    fn rig_of(&mut self, case: &Case) -> &mut Option<Rig> {
        &mut self.rigs[case.side.family() as usize]
    }

    fn measure(&mut self, case: &Case) -> Result<Run> {
        if !(1..=SCHEMAS).contains(&case.schemas) {
            return Err(LocalError::Value(format!("{} schemas: 1 to {SCHEMAS} are there", case.schemas)));
        }
        let spec = self.spec.clone();
        if self.rig_of(case).is_none() {
            let rig = Rig::start(case.side.family(), &spec)?;
            *self.rig_of(case) = Some(rig);
        }
        self.seed += 1;
        let seed = self.seed;
        let Some(rig) = self.rig_of(case) else { return Err(LocalError::Value("no servers".into())) };
        rig.set(case)?;
        let updates = if case.slow { spec.slow_updates } else { spec.updates };
        let sum_before = rig.sum(case.schemas)?;

        rig.hold_back()?;
        rig.gather(true)?;
        let before = rig.groups()?;
        let written_in =
            load::update(rig.writer(), case.schemas, spec.rows, updates, spec.connections, seed)?;
        let groups =
            rig.groups()?.zip(before).map(|(after, before)| (after.0 - before.0, after.1 - before.1));
        rig.gather(false)?;
        rig.has_received()?;
        rig.calm_down()?;
        let (cpu, flushes, retried) = rig.usage()?;
        rig.disk().set(if case.slow { spec.slow } else { Duration::ZERO });
        let applied = rig.let_go(u64::from(updates));
        rig.disk().set(Duration::ZERO);
        let (elapsed, progress) = applied?;
        let (cpu_after, flushes_after, retried_after) = rig.usage()?;

        rig.same_rows(case.schemas)?;
        let sum = rig.sum(case.schemas)? - sum_before;
        if sum != i64::from(updates) {
            return Err(LocalError::Value(format!("{updates} updates were made, and {sum} are in the copy")));
        }
        Ok(Run {
            version: rig.version()?,
            updates,
            elapsed,
            written_in,
            groups,
            cpu: cpu_after.saturating_sub(cpu),
            flushes: flushes_after - flushes,
            retried: retried_after - retried,
            progress,
            configurations: rig.configurations()?,
        })
    }
}

/// Polls a number that grows to `due` until it is reached: rarely at first and often at the end, because each poll costs the
/// server time. Returns the times and values.
fn follow(
    due: u64,
    timeout: Duration,
    began: Instant,
    mut look: impl FnMut() -> Result<u64>,
) -> Result<(Duration, Vec<(Duration, u64)>)> {
    const CLOSEST: Duration = Duration::from_millis(2);
    const FARTHEST: Duration = Duration::from_millis(100);
    let mut progress = Vec::new();
    loop {
        let done = look()?;
        let now = began.elapsed();
        progress.push((now, done));
        if done >= due {
            return Ok((now, progress));
        }
        if now >= timeout {
            return Err(LocalError::Value(format!(
                "{done} of {due} are applied after {} s",
                timeout.as_secs()
            )));
        }
        // A quarter of the time that the rest will take.
        let rest = if done == 0 { CLOSEST } else { now.mul_f64((due - done) as f64 / done as f64 / 4.0) };
        std::thread::sleep(rest.clamp(CLOSEST, FARTHEST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_cases_apart() {
        let mut names = std::collections::BTreeSet::new();
        for side in Side::EACH {
            for workers in [1, 10] {
                for (schemas, flush, slow) in
                    [(1, true, false), (10, true, false), (10, false, false), (10, true, true)]
                {
                    assert!(names.insert(Case { side, workers, schemas, flush, slow }.name()));
                }
            }
        }
        assert!(names.contains("lockstep-writeset-10w-10s-flush-slow-disk"));
    }

    #[test]
    fn growing_number_is_followed_to_end_or_timeout() {
        let began = Instant::now();
        let mut seen = 0;
        let (took, progress) = follow(10, Duration::from_secs(60), began, || {
            seen += 4;
            Ok(seen)
        })
        .unwrap();
        assert_eq!(progress.iter().map(|(_, done)| *done).collect::<Vec<_>>(), [4, 8, 12]);
        assert_eq!(took, progress[2].0);
        let stuck = follow(10, Duration::ZERO, began, || Ok(9)).unwrap_err();
        assert!(stuck.to_string().contains("9 of 10"));
    }
}
