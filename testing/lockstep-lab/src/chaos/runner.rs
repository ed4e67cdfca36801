//! Injects faults and restarts ended processes: as a supervisor such as systemd does, and, if that is not enough, as an
//! operator. The operator's steps are counted.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use lockstep_local::{Client, LocalError, Result, Server, last_lines, run_to_end};

use super::ChaosSpec;
use super::disk::Disk;
use super::fault::Fault;
use super::human::Missed;
use super::load::Dice;
use super::policy::Policy;
use super::slow::SlowDisks;
use super::upgrade::{Next, Upgrade};
use crate::arbitrator::Arbitrator;
use crate::cluster::{Cluster, ClusterSpec, Place};
use crate::netns::{self, Network};

/// How long a server that has ended stays down.
const RESTART: Duration = Duration::from_secs(2);
/// How long a member that was restarted in order has until the next one's turn comes.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a healthy server may take to answer.
const ANSWER: Duration = Duration::from_secs(2);
/// How much longer a flush of a slow disk takes.
const SLOW: [Duration; 3] =
    [Duration::from_millis(20), Duration::from_millis(150), Duration::from_millis(1000)];
/// By how much a flush of a hung disk outlasts the fault.
const HUNG: Duration = Duration::from_secs(3600);
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// A server's own status.
#[derive(Debug, Clone, Copy)]
pub(super) struct State {
    /// A synced member of a primary component.
    pub(super) ready: bool,
    /// `wsrep_cluster_size`.
    pub(super) size: usize,
    /// `wsrep_local_index`.
    pub(super) index: usize,
    /// `wsrep_protocol_version`.
    pub(super) protocol: u64,
}

fn state(server: &Server) -> Option<State> {
    let mut client = Client::connect(&server.config.socket(), "root", ANSWER).ok()?;
    let answer = client.query("SHOW GLOBAL STATUS LIKE 'wsrep\\_%'").ok()?;
    let mut values: BTreeMap<String, String> = BTreeMap::new();
    for row in answer.rows {
        let mut row = row.into_iter().flatten();
        values.insert(row.next()?, row.next()?);
    }
    let is = |name: &str, value: &str| values.get(name).is_some_and(|v| v == value);
    let number = |name: &str| values.get(name)?.parse().ok();
    Some(State {
        ready: is("wsrep_ready", "ON")
            && is("wsrep_cluster_status", "Primary")
            && is("wsrep_local_state", "4"),
        size: number("wsrep_cluster_size").unwrap_or(0),
        index: number("wsrep_local_index").unwrap_or(usize::MAX),
        protocol: number("wsrep_protocol_version").unwrap_or(0) as u64,
    })
}

pub(super) struct Runner {
    /// Declared first: it is taken away before the cluster's folder, in which it is mounted, is deleted.
    disk: Option<Disk>,
    /// Dies before that folder goes, too.
    pub(super) arbitrator: Option<Arbitrator>,
    pub(super) cluster: Cluster,
    network: Option<Network>,
    slow: Option<SlowDisks>,
    pub(super) galera: bool,
    /// The library that follows the present one.
    pub(super) next: Option<Next>,
    pub(super) upgrade: Option<Upgrade>,
    /// Moves leadership, and lets one that is left go on.
    pub(super) command: Option<PathBuf>,
    /// Whether one server alone votes.
    alone: bool,
    /// Copies of rescue files from disks that are lost since: their transactions are no loss.
    pub(super) kept: Vec<PathBuf>,
    /// When each that is down may be started.
    due: Vec<Option<Instant>>,
    starts: u64,
    /// Whether not all were members when that was last asked.
    pub(super) broken: bool,
    pub(super) missed: Missed,
}

impl Drop for Runner {
    fn drop(&mut self) {
        // Before the disk and the network go from under them.
        for at in 0..self.members() {
            self.kill(at);
        }
    }
}

/// How the servers are to be.
pub(super) fn cluster_spec(spec: &ChaosSpec) -> ClusterSpec {
    let mut cluster = ClusterSpec::new(&spec.provider);
    cluster.members = if spec.arbitrator { 2 } else { spec.voters + spec.learners };
    cluster.extra = vec![
        format!("innodb_flush_log_at_trx_commit={}", spec.flush),
        "innodb_buffer_pool_size=64M".into(),
        "max_connections=200".into(),
    ];
    if spec.policy != Policy::Quorum {
        let option = |name: &str, value: String| (name.to_owned(), value);
        cluster.provider_options = vec![
            option("commit.policy", spec.policy.to_string()),
            option("async.max_at_risk", spec.max_at_risk.to_string()),
        ];
    }
    cluster
}

impl Runner {
    pub(super) fn start(chaos: &ChaosSpec, faults: &[Fault], galera: bool) -> Result<Runner> {
        let mut spec = cluster_spec(chaos);
        let members = spec.members + usize::from(chaos.arbitrator);
        let network = match faults.iter().any(|fault| fault.needs_network()) {
            true => Some(Network::new(members)?),
            false => None,
        };
        let place = |at: usize| {
            let network = network.as_ref()?;
            Some(Place { host: network.host(at), namespace: network.namespace(at) })
        };
        spec.places = (0..spec.members).filter_map(place).collect();
        let next = match faults.contains(&Fault::Upgrade) {
            true => Some(Next::of(chaos, &mut spec)),
            false => None,
        };
        let mut cluster = Cluster::prepare(&spec)?;
        // Those in the middle: the first founds the cluster, and the last has the disk that may be full.
        for server in cluster.servers.iter_mut().skip(1).take(chaos.learners) {
            vote(server, false)?;
        }
        let disk = match (faults.iter().any(|fault| fault.needs_disk()), cluster.servers.last()) {
            (true, Some(server)) => Some(Disk::under(server, &cluster)?),
            _ => None,
        };
        if disk.is_some()
            && !galera
            && let Some(server) = cluster.servers.last_mut()
        {
            fit_log(server)?;
        }
        let mut arbitrator = match chaos.arbitrator {
            true => Some(Arbitrator::new(&cluster, place(spec.members), galera, chaos.command.as_deref())?),
            false => None,
        };
        let slow = match faults.iter().any(|fault| fault.needs_slow_disks()) {
            true => Some(SlowDisks::new(cluster.bench().dir())?),
            false => None,
        };
        if let Some(slow) = &slow {
            for server in &mut cluster.servers {
                server.config.environment = slow.environment(server.name());
            }
            if let Some(arbitrator) = &mut arbitrator {
                arbitrator.set_environment(slow.environment(Arbitrator::NAME));
            }
        }
        cluster.bootstrap()?;
        let mut runner = Runner {
            disk,
            arbitrator,
            cluster,
            network,
            slow,
            galera,
            next,
            upgrade: None,
            command: chaos.command.clone(),
            alone: chaos.voters == 1 && !chaos.arbitrator,
            kept: Vec::new(),
            due: vec![None; members],
            starts: 0,
            broken: false,
            missed: Missed::default(),
        };
        if let Some(arbitrator) = &mut runner.arbitrator {
            arbitrator.start()?;
            runner.until_joined()?;
        }
        Ok(runner)
    }

    /// Waits until the arbitrator is there, too.
    fn until_joined(&mut self) -> Result<()> {
        let until = Instant::now() + TIMEOUT;
        while !self.are_whole(&self.states()) {
            if Instant::now() > until {
                let logs = self.log_tails(20);
                return Err(LocalError::Value(format!("the arbitrator does not become a member:\n{logs}")));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// How many there are: the servers, and the arbitrator, which comes after them.
    pub(super) fn members(&self) -> usize {
        self.cluster.servers.len() + usize::from(self.arbitrator.is_some())
    }

    pub(super) fn name(&self, at: usize) -> &str {
        self.cluster.servers.get(at).map_or(Arbitrator::NAME, Server::name)
    }

    /// Its data directory.
    pub(super) fn datadir(&self, at: usize) -> PathBuf {
        match (self.cluster.servers.get(at), &self.arbitrator) {
            (Some(server), _) => server.datadir(),
            (None, Some(arbitrator)) => arbitrator.dir().to_owned(),
            (None, None) => PathBuf::new(),
        }
    }

    fn is_running(&mut self, at: usize) -> bool {
        match self.cluster.servers.get_mut(at) {
            Some(server) => server.is_running(),
            None => self.arbitrator.as_mut().is_some_and(Arbitrator::is_running),
        }
    }

    pub(super) fn kill(&mut self, at: usize) {
        self.missed.killed(at);
        match (self.cluster.servers.get_mut(at), &mut self.arbitrator) {
            (Some(server), _) => server.kill(),
            (None, Some(arbitrator)) => arbitrator.kill(),
            (None, None) => {}
        }
    }

    fn signal(&self, at: usize, signal: i32) -> Result<()> {
        match (self.cluster.servers.get(at), &self.arbitrator) {
            (Some(server), _) => server.signal(signal),
            (None, Some(arbitrator)) => arbitrator.signal(signal),
            (None, None) => Ok(()),
        }
    }

    /// Stops it in order, with retries.
    pub(super) fn stop(&mut self, at: usize) -> Result<()> {
        match (self.cluster.servers.get_mut(at), &mut self.arbitrator) {
            (Some(server), _) => {
                if server.stop().is_err() {
                    server.kill();
                }
                Ok(())
            }
            (None, Some(arbitrator)) => arbitrator.stop(),
            (None, None) => Ok(()),
        }
    }

    /// Starts it and waits until it is a member again; whether it is, or takes too long.
    pub(super) fn bring_back(&mut self, at: usize) -> Result<bool> {
        match (self.cluster.servers.get_mut(at), &mut self.arbitrator) {
            (Some(server), _) => start(server, self.galera, &[])?,
            (None, Some(arbitrator)) => arbitrator.start()?,
            (None, None) => {}
        }
        let until = Instant::now() + TIMEOUT;
        while Instant::now() < until {
            let states = self.states();
            let back = match states.get(at) {
                Some(state) => state.is_some_and(|s| s.ready),
                None => self.are_whole(&states),
            };
            if back {
                return Ok(true);
            }
            self.rest(LOOK)?;
        }
        Ok(false)
    }

    /// Whether all are synced members of one component.
    pub(super) fn are_whole(&self, states: &[Option<State>]) -> bool {
        let members = self.members();
        states.iter().all(|state| state.is_some_and(|s| s.ready && s.size == members))
    }

    /// The log lines of all, shortened.
    pub(super) fn log_tails(&self, lines: usize) -> String {
        let mut text = self.cluster.log_tails(lines);
        if let Some(arbitrator) = &self.arbitrator {
            let log = last_lines(&arbitrator.log(), lines);
            text.push_str(&format!("--- {} ---\n{log}\n", Arbitrator::NAME));
        }
        text
    }

    /// The result of the rolling upgrade.
    pub(super) fn take_upgrade(&mut self) -> Option<Upgrade> {
        self.upgrade.take()
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// How often a server was started again.
    pub(super) fn starts(&self) -> u64 {
        self.starts
    }

    /// Starts what has been down for long enough, plainly, as the distribution's service does: for Galera's library that
    /// is with the position that `galera_recovery` finds. It does so where the service would, after a crash or a kill
    /// (Debian's unit says `Restart=on-abnormal`; the arbitrator's `on-failure`). A server that ended in order or refused
    /// to start needs a human.
    pub(super) fn tend(&mut self) -> Result<()> {
        let now = Instant::now();
        let mut ready = Vec::new();
        for (server, due) in self.cluster.servers.iter_mut().zip(&mut self.due) {
            if server.is_running() || !server.is_started_again() {
                *due = None;
            } else if *due.get_or_insert(now + RESTART) <= now {
                *due = None;
                ready.push(server);
            }
        }
        self.starts += ready.len() as u64;
        if let (Some(arbitrator), Some(due)) = (&mut self.arbitrator, self.due.last_mut()) {
            if arbitrator.is_running() || !arbitrator.is_started_again() {
                *due = None;
            } else if *due.get_or_insert(now + RESTART) <= now {
                *due = None;
                self.starts += 1;
                arbitrator.start()?;
            }
        }
        let galera = self.galera;
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                ready.into_iter().map(|server| scope.spawn(move || start(server, galera, &[]))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a start panicked"))
        })
    }

    /// Lets things go on for a while.
    pub(super) fn rest(&mut self, length: Duration) -> Result<()> {
        let end = Instant::now() + length;
        while Instant::now() < end {
            self.tend()?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    pub(super) fn states(&self) -> Vec<Option<State>> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = self.cluster.servers.iter().map(|s| scope.spawn(|| state(s))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(None)).collect()
        })
    }

    /// Does it, and undoes it after `hold`; on whom it was done.
    pub(super) fn inject(&mut self, fault: Fault, dice: &mut Dice, hold: Duration) -> Result<String> {
        let count = self.members();
        let any = dice.roll(count as u64) as usize;
        // If it is no server, it is the arbitrator, if there is one.
        let first = self.states().iter().position(|s| s.is_some_and(|s| s.index == 0));
        let first = first.unwrap_or(if self.arbitrator.is_some() { count - 1 } else { 0 });
        let other = (first + 1 + dice.roll(count as u64 - 1) as usize) % count;
        let target = match fault {
            // Of those that run, if any.
            Fault::Kill => {
                (0..count).map(|n| (any + n) % count).find(|at| self.is_running(*at)).unwrap_or(any)
            }
            Fault::KillFirst | Fault::LoseFirst => first,
            Fault::KillOther => other,
            Fault::DiskFull => self.cluster.servers.len() - 1,
            _ => any,
        };
        let name = self.name(target).to_owned();
        match fault {
            Fault::Kill | Fault::KillFirst | Fault::KillOther => self.kill(target),
            Fault::LoseFirst if target < self.cluster.servers.len() => {
                self.kill(target);
                self.lose_disk(target)?;
                if self.alone {
                    return self.replica_goes_on(target);
                }
            }
            // The arbitrator leads.
            Fault::LoseFirst => self.kill(target),
            Fault::LoseOthers => return self.one_is_left(target),
            Fault::KillAll => {
                // One at a time would give the others a moment to notice.
                (0..count).for_each(|at| drop(self.signal(at, libc::SIGKILL)));
                (0..count).for_each(|at| self.kill(at));
            }
            Fault::Pause => {
                self.signal(target, libc::SIGSTOP)?;
                self.rest(hold)?;
                self.signal(target, libc::SIGCONT)?;
            }
            Fault::Isolate | Fault::Split | Fault::Bridge => {
                let network = self.network.as_ref().ok_or_else(netns::missing)?;
                match fault {
                    Fault::Isolate => network.isolate(target)?,
                    Fault::Bridge => network.part(target, (target + 1) % count)?,
                    _ => (0..count).try_for_each(|at| network.isolate(at))?,
                }
                self.rest(hold)?;
                self.network.as_ref().ok_or_else(netns::missing)?.heal()?;
            }
            Fault::DiskFull => {
                if let Some(disk) = &self.disk {
                    disk.fill()?;
                }
                self.rest(hold)?;
                if let Some(disk) = &self.disk {
                    disk.empty();
                }
            }
            Fault::SlowDisk | Fault::HungDisk => {
                let delay = match fault {
                    Fault::SlowDisk => SLOW[dice.roll(SLOW.len() as u64) as usize],
                    _ => hold + HUNG,
                };
                let slow =
                    self.slow.clone().ok_or_else(|| LocalError::Value("no disk can be slowed".into()))?;
                slow.slow(&name, delay)?;
                self.rest(hold)?;
                slow.fast(&name);
                if fault == Fault::SlowDisk {
                    return Ok(format!("{name}, {} ms a flush", delay.as_millis()));
                }
            }
            Fault::Restart => {
                for at in 0..count {
                    self.stop(at)?;
                    // An operator would stop here, too.
                    if !self.bring_back(at)? {
                        return Ok(format!(
                            "all, ended with {}, which did not come back soon",
                            self.name(at)
                        ));
                    }
                }
            }
            Fault::Switchover => return self.switch_over(first, dice),
            Fault::Upgrade => return self.upgrade_in_turn(first),
        }
        Ok(match fault {
            Fault::KillAll | Fault::Split | Fault::Restart => "all".into(),
            Fault::Bridge => format!("{name} and {}", self.name((target + 1) % count)),
            _ => name,
        })
    }

    /// Gives leadership to a server that is not the first of the view.
    fn switch_over(&self, first: usize, dice: &mut Dice) -> Result<String> {
        let servers = &self.cluster.servers;
        let others: Vec<&Server> =
            servers.iter().enumerate().filter(|(at, _)| *at != first).map(|(_, server)| server).collect();
        let to = others[dice.roll(others.len() as u64) as usize];
        let command = self.command.as_ref().ok_or_else(|| LocalError::Value("no command lockstep".into()))?;
        let mut command = Command::new(command);
        command.args(["switchover", "--to", to.name(), "--socket"]).arg(to.datadir().join("lockstep.sock"));
        // One that is refused is no reason to end the run: clients say what came of it.
        match run_to_end(&mut command) {
            Ok(_) => Ok(to.name().to_owned()),
            Err(error) => Ok(format!("{}: {}", to.name(), error.to_string().replace('\n', " "))),
        }
    }
}

/// Bounds a server's log so that its small disk is full only while a fault fills it, also in a long run.
fn fit_log(server: &mut Server) -> Result<()> {
    let bounds = [("log.segment", "8M"), ("log.size", "64M"), ("log.max_size", "128M")];
    let options = &mut server.wsrep_mut()?.provider_options;
    options.extend(bounds.map(|(name, value)| (name.to_owned(), value.to_owned())));
    Ok(())
}

/// The log line of a server about its vote when it joins.
pub(super) fn vote(server: &mut Server, votes: bool) -> Result<()> {
    let options = &mut server.wsrep_mut()?.provider_options;
    options.retain(|(name, _)| name != "member.vote");
    if !votes {
        options.push(("member.vote".into(), "no".into()));
    }
    Ok(())
}

fn start(server: &mut Server, galera: bool, extra: &[&str]) -> Result<()> {
    let mut args: Vec<String> = extra.iter().map(|arg| (*arg).to_owned()).collect();
    if galera && let Ok(position) = server.recover_position() {
        args.push(format!("--wsrep_start_position={position}"));
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    server.spawn(&args)
}
