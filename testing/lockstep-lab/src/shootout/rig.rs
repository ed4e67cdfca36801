//! The servers of each set-up, on disks and processors of their own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lockstep_local::{Disk, Installation, Result, Server, run_to_end};

use super::setup::{FileSystem, Kind, LOG_MEMBERS, Setup};
use super::{FLOOR_TICK, Spec, names};
use crate::bench::Bench;
use crate::binlog_member::BinlogMember;
use crate::catch_up::catch_up;
use crate::cluster::{Cluster, ClusterSpec, Place};
use crate::far;
use crate::mount::Mount;
use crate::needs;
use crate::netns::Network;
use crate::replica::{Plain, WAIT_POINT, acknowledge, check_semi_sync, replicate, wait_for_log_members};
use crate::replicated_device::ReplicatedDevice;
use crate::servers::Servers;
use crate::slow_disk::SlowDisk;

/// For a replica to connect, or to have everything: it may be far behind.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Running servers, the writer first; killed when dropped.
pub(super) struct Rig {
    setup: Setup,
    log_members: Vec<BinlogMember>,
    // Taken away before the device and the folder in which they are.
    _mounts: Vec<Mount>,
    device: Option<ReplicatedDevice>,
    servers: Servers,
    _network: Network,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.log_members.clear();
        self.servers.all_mut().iter_mut().for_each(Server::kill);
    }
}

impl Rig {
    pub(super) fn start(setup: Setup, spec: &Spec) -> Result<Rig> {
        let network = Network::new(setup.networks())?;
        let mut servers = match setup.kind {
            Kind::Alone | Kind::SemiSync | Kind::Ingest | Kind::Device(_) => {
                Servers::Plain(prepare_plain(setup, spec, &network)?)
            }
            Kind::Galera => Servers::Cluster(prepare_cluster(setup, spec, &spec.galera, &[], &network)?),
            Kind::Lockstep(policy) => {
                let options = [("commit.policy", policy)];
                Servers::Cluster(prepare_cluster(setup, spec, &spec.provider, &options, &network)?)
            }
            Kind::Floor => Servers::Cluster(prepare_floor(setup, spec, &network)?),
        };
        let processors = processors();
        let mut mounts = Vec::new();
        let install = servers.installation().clone();
        let device = match (setup.kind, &servers) {
            (Kind::Device(protocol), Servers::Plain(plain)) => {
                Some(start_device(protocol, spec, &plain.bench, &network, &processors)?)
            }
            _ => None,
        };
        for (at, server) in servers.all_mut().iter_mut().enumerate() {
            server.config.processor = processors.get(at).or(processors.last()).copied();
            server.config.disk = setup.slow_disk.then(|| {
                let disk = SlowDisk::new();
                disk.set(spec.slow);
                Arc::new(disk) as Arc<dyn Disk>
            });
            let image = match &device {
                Some(device) => device.file(),
                None => allocate(server, spec.disk)?,
            };
            mounts.push(mount(server, setup.file_system, &image, &install)?);
        }
        let mut rig =
            Rig { setup, log_members: Vec::new(), _mounts: mounts, device, servers, _network: network };
        match &mut rig.servers {
            Servers::Cluster(cluster) => cluster.bootstrap()?,
            Servers::Plain(plain) => plain.start()?,
        }
        let network = &rig._network;
        match (&rig.servers, setup.kind) {
            (Servers::Plain(plain), Kind::SemiSync) => {
                replicate(plain, &network.host(0), Some(WAIT_POINT), TIMEOUT)?
            }
            (Servers::Plain(plain), Kind::Ingest) => {
                let place = |at| Some(Place { host: network.host(at), namespace: network.namespace(at) });
                let (places, writer) = ((1..=LOG_MEMBERS).map(place).collect(), &plain.servers[0]);
                // Together they have what a second server would have.
                let processor = processors.get(1).or(processors.last()).copied();
                let (bench, lockstep) = (&plain.bench, spec.lockstep.as_deref());
                let members = || {
                    let mut members =
                        BinlogMember::ingest(bench, places, writer, &network.host(0), lockstep)?;
                    members.iter_mut().for_each(|member| member.set_processor(processor));
                    Ok(members)
                };
                rig.log_members = acknowledge(writer, members, TIMEOUT)?;
            }
            _ => {}
        }
        Ok(rig)
    }

    /// The server that is written to.
    pub(super) fn writer(&self) -> &Server {
        &self.servers.all()[0]
    }

    pub(super) fn configurations(&self) -> Result<Vec<(String, String)>> {
        let mut all = far::configurations(self.servers.all())?;
        all.extend(self.device.iter().flat_map(ReplicatedDevice::commands));
        Ok(all)
    }

    pub(super) fn version(&self) -> Result<String> {
        far::version(self.writer())
    }

    /// Waits until every copy has everything, and answers `sql` as the writer does; how long the former took.
    pub(super) fn catch_up(&self, sql: &str) -> Result<Option<Duration>> {
        if let Some(device) = &self.device {
            return device.catch_up().map(Some);
        }
        wait_for_log_members(self.writer(), &self.log_members, TIMEOUT)?;
        catch_up(self.servers.all(), 1, TIMEOUT, sql)
    }

    /// An error if semi-synchronous replication, where that is what the set-up is, fell back to asynchronous, or acknowledged
    /// fewer transactions than these.
    pub(super) fn check_promise(&self, transactions: u64) -> Result<()> {
        match self.setup.kind {
            Kind::SemiSync | Kind::Ingest => {
                check_semi_sync(self.writer(), "Rpl_semi_sync_master", transactions)
            }
            Kind::Lockstep("semisync") => check_semi_sync(self.writer(), "wsrep_semi_sync", transactions),
            _ => Ok(()),
        }
    }
}

fn prepare_plain(setup: Setup, spec: &Spec, network: &Network) -> Result<Plain> {
    let mut plain = Plain::new()?;
    for at in 0..setup.servers() {
        let mut server = plain.bench.server(&format!("n{}", at + 1), at as u32 + 1)?;
        // Not a replica's: it is faster without, and a second member of ours writes none either.
        server.config.log_bin = at == 0 && setup.binlog.is_some();
        server.config.namespace = Some(network.namespace(at));
        server.config.bind_address = network.host(at);
        server.config.extra = setup.options(spec.pools);
        plain.servers.push(server);
    }
    Ok(plain)
}

fn prepare_cluster(
    setup: Setup,
    spec: &Spec,
    provider: &Path,
    options: &[(&str, &str)],
    network: &Network,
) -> Result<Cluster> {
    let mut cluster = ClusterSpec::new(provider);
    cluster.members = setup.servers();
    let place = |at| Place { host: network.host(at), namespace: network.namespace(at) };
    cluster.places = (0..setup.servers()).map(place).collect();
    cluster.extra = setup.options(spec.pools);
    cluster.provider_options =
        options.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    Cluster::prepare(&cluster)
}

/// A cluster of one. Its provider is ours except for transactions, which wait for a moment and cost nothing.
fn prepare_floor(setup: Setup, spec: &Spec, network: &Network) -> Result<Cluster> {
    let mut cluster = prepare_cluster(setup, spec, &spec.floor, &[], network)?;
    let real = cluster.bench().dir().join("real.so");
    cluster.bench().installation().copy_provider(&spec.provider, &real)?;
    for server in &mut cluster.servers {
        server.config.environment.push((names::REAL.into(), real.display().to_string()));
        server.config.environment.push((names::TICK.into(), FLOOR_TICK.as_micros().to_string()));
    }
    Ok(cluster)
}

/// The members have the processors that two servers would have.
fn start_device(
    protocol: &str,
    spec: &Spec,
    bench: &Bench,
    network: &Network,
    processors: &[usize],
) -> Result<ReplicatedDevice> {
    let place = |at| Place { host: network.host(at), namespace: network.namespace(at) };
    let own = [0, 1].map(|at| processors.get(at).or(processors.last()).copied());
    ReplicatedDevice::start(bench, [0, 1].map(place), protocol, spec.disk, own, spec.lockstep.as_deref())
}

/// A file of this size in GiB beside the server's data, for a file system.
fn allocate(server: &Server, size: u32) -> Result<PathBuf> {
    let image = server.config.file("img");
    run_to_end(Command::new("fallocate").arg("-l").arg(format!("{size}GiB")).arg(&image))?;
    Ok(image)
}

/// Puts the server's data on a file system of this kind, in this file.
fn mount(server: &Server, kind: FileSystem, image: &Path, install: &Installation) -> Result<Mount> {
    // Discarded blocks would have to be allocated again while the load runs.
    let arguments: &[&str] = match kind {
        FileSystem::Ext4 => &["-q", "-F", "-E", "nodiscard"],
        FileSystem::Xfs => &["-q", "-f", "-K"],
    };
    run_to_end(Command::new(mkfs(kind)?).args(arguments).arg(image))?;
    let mount = Mount::under(&server.datadir(), install, &["-o", "loop,noatime"], image)?;
    // To the server it would be a database.
    let _ = std::fs::remove_dir(server.datadir().join("lost+found"));
    Ok(mount)
}

/// The program that makes such a file system.
pub(super) fn mkfs(kind: FileSystem) -> Result<PathBuf> {
    let (name, package) = match kind {
        FileSystem::Ext4 => ("mkfs.ext4", "e2fsprogs"),
        FileSystem::Xfs => ("mkfs.xfs", "xfsprogs"),
    };
    needs::program(name, package)
}

/// The processors that this process may use, by the system's numbers; 0 where it does not say.
pub(super) fn processors() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let all = parse(list.unwrap_or_default());
    if all.is_empty() { vec![0] } else { all }
}

/// `0-3,8`.
fn parse(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.trim().parse().ok()?..=to.trim().parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// The processors of the load: all except the writer's, if there are others.
pub(super) fn load_processors() -> String {
    let all = processors();
    let others = if all.len() > 1 { &all[1..] } else { &all[..] };
    others.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(parse("\t0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(parse("5"), [5]);
        assert!(parse("").is_empty());
    }
}
