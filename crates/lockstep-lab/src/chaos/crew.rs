//! Who injects faults, and who starts again what has ended: a supervisor as systemd is one, and, where that is not
//! enough, a human, whose steps are counted.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::fault::Fault;
use super::load::Dice;
use crate::client::Client;
use crate::cluster::{Cluster, ClusterSpec, Place};
use crate::error::{LabError, Result};
use crate::install::run_to_end;
use crate::netns::{self, Network};
use crate::server::Server;

/// How long a server that has ended stays down.
const RESTART: Duration = Duration::from_secs(2);
/// How long a member that was restarted in order has until the next one's turn comes.
const PATIENCE: Duration = Duration::from_secs(60);
/// After so many steps he gives up.
const STEPS: usize = 6;
/// How long a healthy server may take to answer.
const ANSWER: Duration = Duration::from_secs(2);
/// The size of the disk that is filled up.
const DISK: &str = "700m";
const LOOK: Duration = Duration::from_millis(50);

/// What a server says of itself.
#[derive(Debug, Clone, Copy)]
struct State {
    /// A synced member of a primary component.
    ready: bool,
    /// `wsrep_cluster_size`.
    size: usize,
    /// `wsrep_local_index`.
    index: usize,
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
    })
}

/// A small disk under one server's data.
struct Disk {
    path: PathBuf,
}

impl Disk {
    /// Puts the data directory onto it.
    fn under(server: &Server, cluster: &Cluster) -> Result<Disk> {
        let path = server.datadir();
        let aside = path.with_extension("aside");
        std::fs::rename(&path, &aside).map_err(LabError::path("move aside", &path))?;
        cluster.bench().installation().make_dir(&path, 0o755)?;
        run_to_end(
            Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={DISK}"), "tmpfs"]).arg(&path),
        )?;
        let disk = Disk { path };
        cluster.bench().installation().give(&disk.path)?;
        run_to_end(Command::new("cp").arg("-a").arg(aside.join(".")).arg(&disk.path))?;
        std::fs::remove_dir_all(&aside).map_err(LabError::path("remove", &aside))?;
        Ok(disk)
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }

    /// Fills it to the last byte.
    fn fill(&self) -> Result<()> {
        let filler = self.filler();
        let mut file = std::fs::File::create(&filler).map_err(LabError::path("create", &filler))?;
        let block = vec![0u8; 1 << 20];
        // Until the disk is full, which is the aim.
        while file.write_all(&block).is_ok() {}
        while file.write_all(&block[..4096]).is_ok() {}
        Ok(())
    }

    fn empty(&self) {
        let _ = std::fs::remove_file(self.filler());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = run_to_end(Command::new("umount").arg("-l").arg(&self.path));
    }
}

pub(super) struct Crew {
    /// Declared first: it is taken away before the cluster's folder, in which it is mounted, is deleted.
    disk: Option<Disk>,
    cluster: Cluster,
    network: Option<Network>,
    galera: bool,
    /// When each that is down may be started.
    due: Vec<Option<Instant>>,
    starts: u64,
}

impl Drop for Crew {
    fn drop(&mut self) {
        // Before the disk and the network go from under them.
        for server in &mut self.cluster.servers {
            server.kill();
        }
    }
}

impl Crew {
    pub(super) fn start(mut spec: ClusterSpec, faults: &[Fault]) -> Result<Crew> {
        let network = match faults.iter().any(|fault| fault.needs_network()) {
            true => Some(Network::new(spec.members)?),
            false => None,
        };
        if let Some(network) = &network {
            let place = |at| Place { host: network.host(at), namespace: network.namespace(at) };
            spec.places = (0..spec.members).map(place).collect();
        }
        let name = spec.provider.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut cluster = Cluster::prepare(&spec)?;
        let disk = match (faults.iter().any(|fault| fault.needs_disk()), cluster.servers.last()) {
            (true, Some(server)) => Some(Disk::under(server, &cluster)?),
            _ => None,
        };
        let galera = name.contains("galera");
        let due = vec![None; spec.members];
        cluster.bootstrap()?;
        Ok(Crew { disk, cluster, network, galera, due, starts: 0 })
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(super) fn is_galera(&self) -> bool {
        self.galera
    }

    /// How often a server was started again.
    pub(super) fn starts(&self) -> u64 {
        self.starts
    }

    /// Starts what has been down for long enough, plainly, as the distribution's service does: for Galera's library that
    /// is with the position that `galera_recovery` finds.
    fn tend(&mut self) -> Result<()> {
        let now = Instant::now();
        let mut ready = Vec::new();
        for (server, due) in self.cluster.servers.iter_mut().zip(&mut self.due) {
            if server.is_running() {
                *due = None;
            } else if *due.get_or_insert(now + RESTART) <= now {
                *due = None;
                ready.push(server);
            }
        }
        self.starts += ready.len() as u64;
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

    fn states(&self) -> Vec<Option<State>> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = self.cluster.servers.iter().map(|s| scope.spawn(|| state(s))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(None)).collect()
        })
    }

    /// Does it, and undoes it after `hold`; on whom it was done.
    pub(super) fn inject(&mut self, fault: Fault, dice: &mut Dice, hold: Duration) -> Result<String> {
        let count = self.cluster.servers.len();
        let any = dice.roll(count as u64) as usize;
        let first = self.states().iter().position(|s| s.is_some_and(|s| s.index == 0)).unwrap_or(0);
        let other = (first + 1 + dice.roll(count as u64 - 1) as usize) % count;
        let target = match fault {
            Fault::KillFirst => first,
            Fault::KillOther => other,
            Fault::DiskFull => count - 1,
            _ => any,
        };
        match fault {
            Fault::KillFirst | Fault::KillOther => self.cluster.servers[target].kill(),
            Fault::KillAll => {
                // One at a time would give the others a moment to notice.
                self.cluster.servers.iter().for_each(|server| drop(server.begin_kill()));
                self.cluster.servers.iter_mut().for_each(Server::kill);
            }
            Fault::Pause => {
                self.cluster.servers[target].pause()?;
                self.rest(hold)?;
                self.cluster.servers[target].resume()?;
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
            Fault::Restart => {
                for at in 0..count {
                    if self.cluster.servers[at].stop().is_err() {
                        self.cluster.servers[at].kill();
                    }
                    let galera = self.galera;
                    start(&mut self.cluster.servers[at], galera, &[])?;
                    let until = Instant::now() + PATIENCE;
                    while Instant::now() < until && !state(&self.cluster.servers[at]).is_some_and(|s| s.ready)
                    {
                        self.rest(LOOK)?;
                    }
                }
            }
        }
        Ok(match fault {
            Fault::KillAll | Fault::Split | Fault::Restart => "all".into(),
            Fault::Bridge => {
                let other = (target + 1) % count;
                format!("{} and {}", self.cluster.servers[target].name(), self.cluster.servers[other].name())
            }
            _ => self.cluster.servers[target].name().to_owned(),
        })
    }

    /// Waits until all are synced members of one component; does what a human does where that does not come about. What
    /// he did.
    pub(super) fn until_whole(&mut self, patience: Duration, say: &dyn Fn(&str)) -> Result<Vec<String>> {
        let mut steps: Vec<String> = Vec::new();
        let mut began = Instant::now();
        loop {
            self.tend()?;
            let states = self.states();
            let count = states.len();
            if states.iter().all(|s| s.is_some_and(|s| s.ready && s.size == count)) {
                return Ok(steps);
            }
            if began.elapsed() > patience {
                if steps.len() >= STEPS {
                    return Err(LabError::Value(format!(
                        "the cluster does not come back, after {}:\n{}",
                        steps.join("; "),
                        self.cluster.log_tails(40)
                    )));
                }
                let step = match states.iter().any(|s| s.is_some_and(|s| s.ready)) {
                    true => self.restart_those_outside(&states, &steps)?,
                    false => self.found_anew()?,
                };
                say(&format!("a human {step}"));
                steps.push(step);
                began = Instant::now();
            }
            std::thread::sleep(LOOK);
        }
    }

    /// A member that runs, and does not come back by itself, is restarted; if that was done before, emptied.
    fn restart_those_outside(&mut self, states: &[Option<State>], steps: &[String]) -> Result<String> {
        let mut done = Vec::new();
        for (at, state) in states.iter().enumerate() {
            if state.is_some_and(|s| s.ready) {
                continue;
            }
            let server = &mut self.cluster.servers[at];
            let name = server.name().to_owned();
            server.kill();
            let before = steps.iter().any(|step| step.contains(&format!("restarted {name}")));
            if before {
                empty(&server.datadir())?;
                done.push(format!("emptied {name}"));
            } else {
                done.push(format!("restarted {name}"));
            }
        }
        Ok(done.join(", "))
    }

    /// Nobody is a member of anything: the most advanced one founds the cluster anew.
    fn found_anew(&mut self) -> Result<String> {
        let mut best: Option<(i64, usize, String)> = None;
        for (at, server) in self.cluster.servers.iter_mut().enumerate() {
            server.kill();
            let Ok(position) = server.recover_position() else { continue };
            let seqno =
                position.split(',').next().and_then(|p| p.rsplit(':').next()).and_then(|s| s.parse().ok());
            if let Some(seqno) = seqno
                && best.as_ref().is_none_or(|(highest, ..)| seqno > *highest)
            {
                best = Some((seqno, at, position));
            }
        }
        let (_, at, position) =
            best.ok_or_else(|| LabError::Value("no member has a position to go on from".into()))?;
        let server = &mut self.cluster.servers[at];
        let file = server.datadir().join("grastate.dat");
        let text = std::fs::read_to_string(&file).map_err(LabError::path("read", &file))?;
        std::fs::write(&file, text.replace("safe_to_bootstrap: 0", "safe_to_bootstrap: 1"))
            .map_err(LabError::path("write", &file))?;
        server.spawn(&["--wsrep-new-cluster", &format!("--wsrep_start_position={position}")])?;
        Ok(format!("founded the cluster anew from {}", server.name()))
    }
}

fn start(server: &mut Server, galera: bool, extra: &[&str]) -> Result<()> {
    let mut args: Vec<String> = extra.iter().map(|arg| (*arg).to_owned()).collect();
    if galera && let Ok(position) = server.recover_position() {
        args.push(format!("--wsrep_start_position={position}"));
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    server.spawn(&args)
}

/// Removes what is in a folder, which may be where a disk is mounted.
fn empty(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let gone = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        gone.map_err(LabError::path("remove", &path))?;
    }
    Ok(())
}
