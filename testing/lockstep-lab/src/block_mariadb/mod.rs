//! A MariaDB server on ext4 on a replicated block device. It is killed together with its member of the device, and goes on
//! on another one with every acknowledged commit. docs/block-chaos.md says how to run it.

mod host;
mod ledger;
mod report;

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockstep_local::{LocalError, Result, run_to_end};

use self::host::Host;
use self::ledger::{Rows, TABLE};
use crate::bench::Bench;
use crate::block_group::{EXPORT, Group, GroupSpec, LOG_OF_FAULTS, MEMBERS, PATIENCE, Protocol, program};
use crate::chaos::Dice;
use crate::needs;

pub use self::report::{Failover, Report};

/// Bytes of the device.
const SIZE: u64 = 768 << 20;
/// MiB of each member's cache of writes.
const CACHE: u32 = 64;
/// Between two tries of a promotion.
const POLL: Duration = Duration::from_millis(50);

/// The parameters of a campaign.
#[derive(Debug, Clone)]
pub struct Spec {
    /// This project's command; none: the one in `PATH`.
    pub program: Option<PathBuf>,
    /// How often the server is killed.
    pub rounds: u32,
    /// Decides the times of the kills and the members that go on.
    pub seed: u64,
    /// Clients that insert.
    pub clients: u64,
    /// The shortest and the longest time of work between two failovers.
    pub work: (Duration, Duration),
    /// Whether every other primary is also cut off from the network before it is killed.
    pub lose_machines: bool,
}

impl Spec {
    /// A hundred rounds.
    pub fn new(program: Option<PathBuf>) -> Spec {
        Spec {
            program,
            rounds: 100,
            seed: 1,
            clients: 4,
            work: (Duration::from_secs(2), Duration::from_secs(6)),
            lose_machines: true,
        }
    }
}

/// Runs the campaign. `say` gets a line for each failover.
///
/// # Errors
/// The machine lacks a program or right, or the server cannot go on at all. Lost commits are in the report.
pub fn run(spec: &Spec, say: &dyn Fn(&str)) -> Result<Report> {
    needs::root("mount a file system")?;
    needs::program("nbdfuse", "nbdfuse")?;
    needs::program("mkfs.ext4", "e2fsprogs")?;
    let bench = Bench::new()?;
    let group = GroupSpec {
        program: program(spec.program.as_deref())?,
        arbitrator: false,
        protocol: Protocol::C,
        size: SIZE,
        cache: CACHE,
        small_disks: false,
        slow_disks: false,
        log: LOG_OF_FAULTS,
        resync_rate: 32,
    };
    let group = Group::start(&bench, "n", group)?;
    let hosts = (0..MEMBERS).map(|at| Host::new(&bench, &format!("db{}", at + 1), at as u32 + 1));
    let hosts = hosts.collect::<Result<Vec<Host>>>()?;
    let rows = (0..spec.clients).map(Rows::new).collect();
    let report = Report { seed: spec.seed, version: bench.installation().version()?, ..Report::default() };
    let mut rig = Rig { hosts, group, rows, primary: 0, dice: Dice(spec.seed), report };
    let socket = rig.group.socket(0);
    rig.hosts[0].attach(&socket, EXPORT, SIZE)?;
    rig.hosts[0].found(&bench)?;
    rig.hosts[0].server().client()?.run(&TABLE)?;
    for round in 1..=spec.rounds {
        if let Err(error) = rig.round(spec, round, say) {
            // The failovers so far must not be lost with the error.
            say(&format!("round {round}: {error}"));
            rig.report.violations.push(format!("round {round}: {error}\n{}", rig.group.logs()));
            return Ok(rig.report);
        }
    }
    rig.finish()?;
    Ok(rig.report)
}

#[derive(Debug)]
struct Rig {
    /// Dropped before the group: their file systems are on it.
    hosts: Vec<Host>,
    group: Group,
    rows: Vec<Rows>,
    primary: usize,
    dice: Dice,
    report: Report,
}

impl Rig {
    fn acknowledged(&self) -> usize {
        self.rows.iter().map(Rows::acknowledged).sum()
    }

    /// Kills the server and its member under load, and goes on on another one.
    fn round(&mut self, spec: &Spec, round: u32, say: &dyn Fn(&str)) -> Result<()> {
        let (least, most) = spec.work;
        let spread = most.saturating_sub(least).as_millis() as u64;
        let work = least + Duration::from_millis(self.dice.roll(spread.max(1)));
        let machine = spec.lose_machines && self.group.has_network() && round.is_multiple_of(2);
        let old = self.primary;
        let killed = self.kill_under_load(work, machine)?;
        let new = (old + 1 + self.dice.roll(MEMBERS as u64 - 1) as usize) % MEMBERS;
        let (export, detection, promotion) = self.promote(new, killed)?;
        let recovery = self.hosts[new].recover(&self.group.socket(new), &export, SIZE)?;
        let total = killed.elapsed();
        self.primary = new;
        let (wrong, _) = ledger::check(self.hosts[new].server(), &self.rows)?;
        for text in wrong {
            say(&format!("VIOLATION: round {round}: {text}"));
            self.report.violations.push(format!("round {round}: {text}"));
        }
        self.hosts[old].abandon();
        self.group.heal()?;
        self.group.spawn(old)?;
        let acknowledged = self.acknowledged();
        let seconds = |time: Duration| time.as_secs_f64();
        let failover = Failover {
            lost: if machine { "machine" } else { "process" },
            detection_s: seconds(detection),
            promotion_s: seconds(promotion),
            attach_s: seconds(recovery.attach),
            mount_s: seconds(recovery.mount),
            start_s: seconds(recovery.start),
            total_s: seconds(total),
            acknowledged,
        };
        say(&format!(
            "round {round}: {} to {} ({}) in {:.1} s: detection {:.1}, promotion {:.1}, attach {:.1}, mount {:.1}, MariaDB {:.1}; \
             {acknowledged} acknowledged rows",
            self.group.name(old),
            self.group.name(new),
            failover.lost,
            failover.total_s,
            failover.detection_s,
            failover.promotion_s,
            failover.attach_s,
            failover.mount_s,
            failover.start_s
        ));
        self.report.failovers.push(failover);
        // The member that returns takes what it missed while the server works: the next primary may be the third one.
        self.group.until("the killed member is back", |group| {
            group.supervise()?;
            Ok(group.synced_voters(new) == MEMBERS)
        })
    }

    /// Lets the clients insert, and kills both processes meanwhile. Returns when the first one was killed.
    fn kill_under_load(&mut self, work: Duration, machine: bool) -> Result<Instant> {
        let (group, host) = (&mut self.group, &self.hosts[self.primary]);
        let (primary, dice, rows) = (self.primary, &mut self.dice, &mut self.rows);
        let stop = AtomicBool::new(false);
        let stop = &stop;
        std::thread::scope(|scope| {
            for rows in rows.iter_mut() {
                scope.spawn(move || rows.insert(host.server(), stop));
            }
            std::thread::sleep(work);
            let server_first = dice.roll(2) == 0;
            // The time between the two kills: often none.
            let pause = Duration::from_millis(dice.roll(2) * dice.roll(200));
            let isolated = if machine { group.isolate(primary) } else { Ok(()) };
            let killed = Instant::now();
            let server = || host.kill_server();
            let first = if server_first { server() } else { group.signal(primary, libc::SIGKILL) };
            std::thread::sleep(pause);
            // A server whose device is gone may have ended by itself.
            let _ = if server_first { group.signal(primary, libc::SIGKILL) } else { server() };
            group.kill(primary);
            stop.store(true, Ordering::Relaxed);
            isolated.and(first).map(|()| killed)
        })
    }

    /// Promotes a member without force: it refuses while it takes the old one for connected. Returns the export's name, the
    /// time until it did not refuse, and that of the promotion.
    fn promote(&self, new: usize, killed: Instant) -> Result<(String, Duration, Duration)> {
        loop {
            let began = Instant::now();
            match self.group.promote(new, false) {
                Ok(name) => return Ok((name, began - killed, began.elapsed())),
                Err(text) if killed.elapsed() > PATIENCE => {
                    return Err(LocalError::Value(format!(
                        "{} cannot be promoted: {text}",
                        self.group.name(new)
                    )));
                }
                Err(_) => std::thread::sleep(POLL),
            }
        }
    }

    /// Stops everything in order. All copies must be equal, and their file systems sound.
    fn finish(&mut self) -> Result<()> {
        let (wrong, rows) = ledger::check(self.hosts[self.primary].server(), &self.rows)?;
        self.report.violations.extend(wrong);
        self.report.rows = rows;
        self.report.acknowledged = self.acknowledged();
        self.hosts[self.primary].leave()?;
        let wrong = self.group.stop_and_compare()?;
        self.report.violations.extend(wrong);
        for at in 0..MEMBERS {
            if let Err(error) = run_to_end(Command::new("e2fsck").arg("-fn").arg(self.group.image(at))) {
                let name = self.group.name(at);
                self.report.violations.push(format!("the file system of {name} is damaged: {error}"));
            }
        }
        Ok(())
    }
}
