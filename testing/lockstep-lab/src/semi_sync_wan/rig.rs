//! The servers of each set-up, started and stopped.

use std::time::Duration;

use lockstep_local::{LocalError, Result, Server};

use super::{Setup, Spec};
use crate::arbitrator::Arbitrator;
use crate::cluster::{Cluster, Place};
use crate::far::{self, GALERA_FAR, NEAR, start_cluster};
use crate::replica::{Plain, check_semi_sync, replicate};
use crate::wan::Wan;

/// As in the post, InnoDB's log is written and flushed once a second; and all connections may come.
const OPTIONS: [&str; 2] = ["innodb_flush_log_at_trx_commit=0", "max_connections=400"];
/// For a replica to connect, or to have everything.
const TIMEOUT: Duration = Duration::from_secs(120);

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

impl Rig {
    pub(super) fn start(setup: Setup, spec: &Spec, wan: &Wan) -> Result<Rig> {
        let extra = OPTIONS.map(str::to_owned).to_vec();
        let servers = match (setup, setup.policy()) {
            (Setup::Galera, _) => {
                Servers::Cluster(start_cluster(setup.places(), &spec.galera, &GALERA_FAR, extra, wan)?)
            }
            (_, Some(policy)) => {
                let receive = setup == Setup::SemiSyncTwoReceive;
                let ack_on = if receive { "receive" } else { "persist" };
                let options = [("commit.policy", policy), ("commit.ack_on", ack_on)];
                Servers::Cluster(start_cluster(setup.places(), &spec.provider, &options, extra, wan)?)
            }
            _ => Servers::Plain(start_plain(setup, wan)?),
        };
        let mut rig = Rig { setup, arbitrator: None, servers };
        match &mut rig.servers {
            Servers::Plain(plain) if plain.servers.len() > 1 => {
                replicate(plain, &wan.host(NEAR, 0), setup == Setup::MariadbSemiSync, TIMEOUT)?;
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

    pub(super) fn configurations(&self) -> Result<Vec<(String, String)>> {
        far::configurations(self.servers())
    }

    pub(super) fn version(&self) -> Result<String> {
        far::version(self.writer())
    }

    /// Waits until every server answers `sql` so.
    pub(super) fn wait_for_copies(&self, sql: &str, due: &str) -> Result<()> {
        far::wait_for_copies(self.servers(), TIMEOUT, sql, due)
    }

    /// Semi-synchronous replication falls back to asynchronous without telling the client: then it is no such run. At
    /// least so many transactions must have been acknowledged by others. All members must still be connected.
    pub(super) fn check_promise(&mut self, transactions: u64) -> Result<()> {
        if self.arbitrator.as_mut().is_some_and(|arbitrator| !arbitrator.is_running()) {
            return Err(LocalError::Value("the arbitrator has ended".into()));
        }
        let prefix = match (self.setup, self.setup.policy()) {
            (Setup::MariadbSemiSync, _) => "Rpl_semi_sync_master",
            (_, Some("semisync")) => "wsrep_semi_sync",
            _ => return Ok(()),
        };
        check_semi_sync(self.writer(), prefix, transactions)
    }
}

fn start_plain(setup: Setup, wan: &Wan) -> Result<Plain> {
    let mut plain = Plain::new()?;
    for (zone, at) in setup.places() {
        let number = plain.servers.len() as u32 + 1;
        let mut server = plain.bench.server(if *zone == NEAR { "near" } else { "far" }, number)?;
        // A replica is faster without.
        server.config.log_bin = number == 1;
        server.config.namespace = Some(wan.namespace(*zone, *at));
        server.config.bind_address = wan.host(*zone, *at);
        server.config.extra = OPTIONS.map(str::to_owned).to_vec();
        server.config.extra.push("sync_binlog=0".into());
        plain.servers.push(server);
    }
    plain.start()?;
    Ok(plain)
}
