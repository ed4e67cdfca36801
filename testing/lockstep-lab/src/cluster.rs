//! A cluster of real servers that lasts as long as the value. When it is dropped, everything is killed and deleted; the
//! watchdog of its [`Bench`] does that when this process dies first.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_local::{
    LocalError, Result, START_TIMEOUT, Server, ServerConfig, SstMethod, Wsrep, free_ports, host_port,
};

use crate::bench::Bench;

/// A member's own network.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its address.
    pub host: String,
    /// The network namespace in which it runs.
    pub namespace: String,
}

/// The configuration of a cluster.
#[derive(Debug, Clone)]
pub struct ClusterSpec {
    /// The provider's file; it is copied before use.
    pub provider: PathBuf,
    /// How many members.
    pub members: usize,
    /// Host under which the members reach each other (IPv6 without brackets).
    pub host: String,
    /// Address that the members listen on.
    pub listen: String,
    /// Where each member is, if not all at `host`: hosts, which are their addresses to listen on, too, and network
    /// namespaces.
    pub places: Vec<Place>,
    /// How joiners get the database.
    pub sst_method: SstMethod,
    /// `wsrep_slave_threads`.
    pub appliers: u32,
    /// Whether members write binlogs.
    pub log_bin: bool,
    /// Further provider options of every member.
    pub provider_options: Vec<(String, String)>,
    /// Further lines of every member's `[mysqld]`.
    pub extra: Vec<String>,
}

impl ClusterSpec {
    /// Three members on 127.0.0.1 with rsync and four appliers.
    pub fn new(provider: &Path) -> ClusterSpec {
        ClusterSpec {
            provider: provider.to_owned(),
            members: 3,
            host: "127.0.0.1".into(),
            listen: "127.0.0.1".into(),
            places: Vec::new(),
            sst_method: SstMethod::Rsync,
            appliers: 4,
            log_bin: false,
            provider_options: Vec::new(),
            extra: Vec::new(),
        }
    }
}

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    /// The members, named n1, n2, ...
    pub servers: Vec<Server>,
    /// Their folder. Declared last: it is deleted after the servers are dead.
    bench: Bench,
}

impl Cluster {
    /// Makes the members' files without starting any.
    pub fn prepare(spec: &ClusterSpec) -> Result<Cluster> {
        let bench = Bench::new()?;
        let provider = bench.dir().join("provider.so");
        bench.installation().copy_provider(&spec.provider, &provider)?;
        let mut ports = Vec::new();
        for _ in 0..spec.members {
            ports.push(free_ports(4)?);
        }
        let host = |at: usize| spec.places.get(at).map_or(&spec.host, |place| &place.host);
        let listen = |at: usize| spec.places.get(at).map_or(&spec.listen, |place| &place.host);
        let peers: Vec<String> =
            ports.iter().enumerate().map(|(at, port)| host_port(host(at), *port)).collect();
        let mut servers = Vec::new();
        for (i, port) in ports.iter().enumerate() {
            let mut config = ServerConfig::new(&format!("n{}", i + 1), bench.dir(), port + 3, i as u32 + 1);
            config.log_bin = spec.log_bin;
            config.extra = spec.extra.clone();
            config.namespace = spec.places.get(i).map(|place| place.namespace.clone());
            config.wsrep = Some(Wsrep {
                provider: provider.clone(),
                cluster_name: "lab".into(),
                peers: peers.clone(),
                host: host(i).clone(),
                listen: listen(i).clone(),
                peer_port: *port,
                sst_port: port + 2,
                sst_method: spec.sst_method,
                sst_auth: Some("root:".into()),
                appliers: spec.appliers,
                incremental_port: true,
                provider_options: spec.provider_options.clone(),
            });
            bench.fresh_data(&config)?;
            servers.push(Server::new(config, bench.installation()));
        }
        Ok(Cluster { servers, bench })
    }

    /// Makes and starts a cluster: the first member bootstraps, the others join one after the other.
    pub fn start(spec: &ClusterSpec) -> Result<Cluster> {
        let mut cluster = Cluster::prepare(spec)?;
        cluster.bootstrap()?;
        Ok(cluster)
    }

    /// Makes and starts one server with these settings but without replication, for comparison.
    pub fn start_alone(spec: &ClusterSpec) -> Result<Cluster> {
        let mut cluster = Cluster::prepare_alone()?;
        cluster.servers[0].config.extra = spec.extra.clone();
        cluster.servers[0].config.log_bin = spec.log_bin;
        cluster.servers[0].start(&[])?;
        Ok(cluster)
    }

    /// Makes one server's files, without replication, and does not start it.
    pub(crate) fn prepare_alone() -> Result<Cluster> {
        let bench = Bench::new()?;
        let server = bench.server("alone", 1)?;
        Ok(Cluster { servers: vec![server], bench })
    }

    /// Starts all members, the first with `--wsrep-new-cluster`.
    pub fn bootstrap(&mut self) -> Result<()> {
        for (i, server) in self.servers.iter_mut().enumerate() {
            server.start(if i == 0 { &["--wsrep-new-cluster"] } else { &[] })?;
        }
        self.wait_size(self.servers.len())
    }

    /// One more member, not started, with a fresh database and the first member's settings.
    pub fn another(&self, name: &str) -> Result<Server> {
        let port = free_ports(4)?;
        let mut config = self.servers[0].config.clone();
        config.name = name.to_owned();
        config.sql_port = port + 3;
        config.server_id = u32::from(port);
        if let Some(wsrep) = &mut config.wsrep {
            wsrep.peer_port = port;
            wsrep.sst_port = port + 2;
        }
        self.bench.fresh_data(&config)?;
        Ok(Server::new(config, self.bench.installation()))
    }

    /// The folder of the cluster's files.
    pub fn bench(&self) -> &Bench {
        &self.bench
    }

    /// Waits until every running member sees `size` members and is synced.
    pub fn wait_size(&mut self, size: usize) -> Result<()> {
        for server in &mut self.servers {
            if !server.is_running() {
                continue;
            }
            server.wait_ready(START_TIMEOUT)?;
            server.wait_for(&format!("does not see {size} members"), START_TIMEOUT, |s| {
                let seen = s.query("SHOW GLOBAL STATUS LIKE 'wsrep_cluster_size'");
                match seen.and_then(|a| a.column("Value").map(str::to_owned)) {
                    Ok(seen) if seen == size.to_string() => Ok(()),
                    Ok(seen) => Err(format!("it sees {seen}")),
                    Err(e) => Err(e.to_string()),
                }
            })?;
        }
        Ok(())
    }

    /// Whether every member runs, is synced, and sees all the others.
    pub fn is_whole(&mut self) -> bool {
        let size = self.servers.len().to_string();
        self.servers.iter_mut().all(|server| {
            server.is_running()
                && server.wsrep_status().is_ok_and(|status| {
                    status.get("wsrep_ready").is_some_and(|v| v == "ON")
                        && status.get("wsrep_local_state").is_some_and(|v| v == "4")
                        && status.get("wsrep_cluster_size") == Some(&size)
                })
        })
    }

    /// Waits until every running member has applied what was committed before, and checks that `sql` (which must
    /// return rows in a fixed order) has the same answer on all. Returns that answer.
    pub fn same_everywhere(&self, sql: &str) -> Result<lockstep_local::Answer> {
        let mut first: Option<(String, lockstep_local::Answer)> = None;
        for server in &self.servers {
            if server.pid().is_none() {
                continue;
            }
            let mut client = server.client()?;
            client.query("SET SESSION wsrep_sync_wait = 15")?;
            let answer = client.query(sql)?;
            match &first {
                None => first = Some((server.name().to_owned(), answer)),
                Some((name, expected)) if *expected != answer => {
                    return Err(LocalError::Value(format!(
                        "members differ on [{sql}]: {name} says {:?}, {} says {:?}",
                        expected.rows,
                        server.name(),
                        answer.rows
                    )));
                }
                Some(_) => {}
            }
        }
        first.map(|(_, answer)| answer).ok_or_else(|| LocalError::Value("no member runs".into()))
    }

    /// The logs of all members, shortened, for a failure's report.
    pub fn log_tails(&self, lines: usize) -> String {
        self.servers.iter().map(|s| format!("--- {} ---\n{}\n", s.name(), s.log_tail(lines))).collect()
    }

    /// Stops all members in order, the last first, and waits for each.
    pub fn stop(&mut self) -> Result<()> {
        for server in self.servers.iter_mut().rev() {
            server.stop()?;
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for server in &mut self.servers {
            server.kill();
        }
    }
}

/// Timeout for a change of state that takes a second or two on an idle machine.
pub const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);
