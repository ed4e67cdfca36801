//! The servers of each set-up, started and stopped.

use std::time::{Duration, Instant};

use super::{NEAR, Setup, Spec};
use crate::arbitrator::Arbitrator;
use crate::cluster::{Bench, Cluster, ClusterSpec, Place};
use crate::error::{LabError, Result};
use crate::server::Server;
use crate::wan::Wan;

/// As in the post, InnoDB's log is written and flushed once a second; and all connections may come.
const OPTIONS: [&str; 2] = ["innodb_flush_log_at_trx_commit=0", "max_connections=400"];
/// What Galera's makers advise for long lines: without it 64 connections wait for each other.
const GALERA_FAR: [(&str, &str); 6] = [
    ("gcs.fc_factor", "0.95"),
    ("gcs.fc_limit", "1024"),
    ("evs.send_window", "512"),
    ("evs.user_send_window", "256"),
    ("evs.suspect_timeout", "PT30S"),
    ("evs.inactive_timeout", "PT60S"),
];
/// For a replica to connect, or to have everything.
const PATIENCE: Duration = Duration::from_secs(120);

/// Running servers; killed when dropped.
pub(super) struct Rig {
    setup: Setup,
    // Before the servers' folder, in which its files are.
    arbitrator: Option<Arbitrator>,
    servers: Servers,
}

enum Servers {
    Plain(Plain),
    Cluster(Cluster),
}

/// A server that writes a binlog, and maybe its replica. The servers go before their folder.
struct Plain {
    servers: Vec<Server>,
    bench: Bench,
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.servers.iter_mut().for_each(Server::kill);
    }
}

impl Rig {
    pub(super) fn start(setup: Setup, spec: &Spec, wan: &Wan) -> Result<Rig> {
        let servers = match (setup, setup.policy()) {
            (Setup::Galera, _) => Servers::Cluster(start_cluster(setup, &spec.galera, &GALERA_FAR, wan)?),
            (_, Some(policy)) => {
                let options = [("commit.policy", policy)];
                Servers::Cluster(start_cluster(setup, &spec.provider, &options, wan)?)
            }
            _ => Servers::Plain(start_plain(setup, wan)?),
        };
        let mut rig = Rig { setup, arbitrator: None, servers };
        match &mut rig.servers {
            Servers::Plain(plain) if plain.servers.len() > 1 => {
                replicate(plain, &wan.host(NEAR, 0), setup == Setup::MariadbSemiSync)?;
            }
            Servers::Cluster(cluster) if setup == Setup::SemiSyncArbitrator => {
                let place = Place { host: wan.host(NEAR, 1), namespace: wan.namespace(NEAR, 1) };
                let mut arbitrator = Arbitrator::new(cluster, Some(place), false, spec.lockstep.as_deref())?;
                arbitrator.start()?;
                rig.arbitrator = Some(arbitrator);
                cluster.wait_size(cluster.servers.len() + 1)?;
            }
            _ => {}
        }
        Ok(rig)
    }

    fn servers(&self) -> &[Server] {
        match &self.servers {
            Servers::Plain(plain) => &plain.servers,
            Servers::Cluster(cluster) => &cluster.servers,
        }
    }

    /// The near server that the clients use.
    pub(super) fn writer(&self) -> &Server {
        &self.servers()[0]
    }

    pub(super) fn configurations(&self) -> Vec<(String, String)> {
        self.servers().iter().map(|server| (server.name().to_owned(), server.config.render())).collect()
    }

    pub(super) fn version(&self) -> Result<String> {
        let mut client = self.writer().client()?;
        let server = client.value("SELECT VERSION()")?;
        Ok(match &self.servers {
            Servers::Plain(_) => server,
            Servers::Cluster(_) => {
                let (vendor, provider) =
                    (client.status("wsrep_provider_name")?, client.status("wsrep_provider_version")?);
                format!("{server}, {vendor} {provider}")
            }
        })
    }

    /// Waits until every server answers `sql` so.
    pub(super) fn wait_for_copies(&self, sql: &str, due: &str) -> Result<()> {
        self.servers().iter().try_for_each(|server| {
            let what = format!("does not answer [{sql}] with {due}");
            wait(server, &what, || Ok(server.query(sql)?.value()? == due))
        })
    }

    /// Semi-synchronous replication falls back to asynchronous without telling the client: then it is no such run. At
    /// least so many transactions must have been acknowledged by others. And who was there must still be.
    pub(super) fn check_promise(&mut self, transactions: u64) -> Result<()> {
        if self.arbitrator.as_mut().is_some_and(|arbitrator| !arbitrator.is_running()) {
            return Err(LabError::Value("the arbitrator has ended".into()));
        }
        let prefix = match (self.setup, self.setup.policy()) {
            (Setup::MariadbSemiSync, _) => "Rpl_semi_sync_master",
            (_, Some("semisync")) => "wsrep_semi_sync",
            _ => return Ok(()),
        };
        let mut client = self.writer().client()?;
        let mut status = |name| client.status(&format!("{prefix}_{name}"));
        let (on, acknowledged, not) = (status("status")?, status("yes_tx")?, status("no_tx")?);
        let enough = acknowledged.parse::<u64>().is_ok_and(|count| count >= transactions);
        if on == "ON" && not == "0" && enough {
            return Ok(());
        }
        Err(LabError::Value(format!(
            "semi-synchronous replication is {on}; of {transactions} transactions {acknowledged} were acknowledged, {not} \
             were not"
        )))
    }
}

fn start_cluster(
    setup: Setup,
    provider: &std::path::Path,
    options: &[(&str, &str)],
    wan: &Wan,
) -> Result<Cluster> {
    let places = setup.places();
    let mut spec = ClusterSpec::new(provider);
    spec.places = places
        .iter()
        .map(|(zone, at)| Place { host: wan.host(*zone, *at), namespace: wan.namespace(*zone, *at) })
        .collect();
    spec.members = places.len();
    spec.extra = OPTIONS.map(str::to_owned).to_vec();
    spec.provider_options = options.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let mut cluster = Cluster::prepare(&spec)?;
    for (server, (zone, _)) in cluster.servers.iter_mut().zip(places) {
        // A name that both providers know.
        server.wsrep_mut()?.provider_options.push(("gmcast.segment".into(), zone.to_string()));
    }
    cluster.bootstrap()?;
    Ok(cluster)
}

fn start_plain(setup: Setup, wan: &Wan) -> Result<Plain> {
    let bench = Bench::new()?;
    let mut plain = Plain { servers: Vec::new(), bench };
    for (zone, at) in setup.places() {
        let number = plain.servers.len() as u32 + 1;
        let mut server = plain.bench.server(if *zone == NEAR { "near" } else { "far" }, number)?;
        server.config.log_bin = true;
        server.config.namespace = Some(wan.namespace(*zone, *at));
        server.config.bind_address = wan.host(*zone, *at);
        server.config.extra = OPTIONS.map(str::to_owned).to_vec();
        server.config.extra.push("sync_binlog=0".into());
        plain.servers.push(server);
    }
    plain.servers.iter_mut().try_for_each(|server| server.start(&[]))?;
    Ok(plain)
}

fn replicate(plain: &Plain, host: &str, semi_sync: bool) -> Result<()> {
    let (near, far) = (&plain.servers[0], &plain.servers[1]);
    near.client()?.run(&[
        "CREATE USER 'copy'@'%' IDENTIFIED BY 'copy'",
        "GRANT REPLICATION SLAVE ON *.* TO 'copy'@'%'",
    ])?;
    if semi_sync {
        // Before the replica connects, which tells then what it is; and after what would wait for it in vain.
        near.query("SET GLOBAL rpl_semi_sync_master_enabled=ON")?;
        far.query("SET GLOBAL rpl_semi_sync_slave_enabled=ON")?;
    }
    let port = near.config.sql_port;
    far.client()?.run(&[
        &format!(
            "CHANGE MASTER TO MASTER_HOST='{host}', MASTER_PORT={port}, MASTER_USER='copy', MASTER_PASSWORD='copy', \
             MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1"
        ),
        "START SLAVE",
    ])?;
    wait(far, "does not replicate", || {
        let answer = far.query("SHOW SLAVE STATUS")?;
        Ok(answer.column("Slave_IO_Running")? == "Yes" && answer.column("Slave_SQL_Running")? == "Yes")
    })?;
    wait(near, "has no semi-synchronous replica", || {
        Ok(!semi_sync || near.client()?.status("Rpl_semi_sync_master_clients")? == "1")
    })
}
fn wait(server: &Server, what: &str, mut check: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        // What is not there yet is an error, too.
        let seen = check();
        match seen {
            Ok(true) => return Ok(()),
            Ok(false) | Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(50)),
            seen => {
                let seen = seen.err().map_or_else(String::new, |e| format!(" ({e})"));
                return Err(LabError::Timeout {
                    server: server.name().to_owned(),
                    what: format!("{what} within {} s{seen}", PATIENCE.as_secs()),
                    log: server.log_tail(20),
                });
            }
        }
    }
}
