//! The servers of each set-up, started and stopped.

use std::time::Duration;

use lockstep_local::{LocalError, Result, Server};

use super::{Setup, Spec};
use crate::arbitrator::Arbitrator;
use crate::binlog_member::BinlogMember;
use crate::cluster::Place;
use crate::far::{self, GALERA_FAR, NEAR, start_cluster};
use crate::replica::{Plain, acknowledge, check_semi_sync, replicate, wait_for_log_members};
use crate::servers::Servers;
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
    log_members: Vec<BinlogMember>,
    servers: Servers,
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
        let mut rig = Rig { setup, arbitrator: None, log_members: Vec::new(), servers };
        match &mut rig.servers {
            Servers::Plain(plain) if plain.servers.len() > 1 => {
                replicate(plain, &wan.host(NEAR, 0), setup.stock_wait_point(), TIMEOUT)?;
            }
            Servers::Plain(plain) if setup.is_ingested() => {
                let place = |(zone, at): &(usize, usize)| {
                    Some(Place { host: wan.host(*zone, *at), namespace: wan.namespace(*zone, *at) })
                };
                let (places, writer) = (setup.log_places().iter().map(place).collect(), &plain.servers[0]);
                let lockstep = spec.lockstep.as_deref();
                let members =
                    || BinlogMember::ingest(&plain.bench, places, writer, &wan.host(NEAR, 0), lockstep);
                rig.log_members = acknowledge(writer, members, TIMEOUT)?;
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
        self.servers.all()
    }

    /// The near server that the clients use.
    pub(super) fn writer(&self) -> &Server {
        &self.servers()[0]
    }

    pub(super) fn configurations(&self) -> Result<Vec<(String, String)>> {
        let mut all = far::configurations(self.servers())?;
        all.extend(self.log_members.iter().map(|member| (member.name().to_owned(), member.command())));
        Ok(all)
    }

    pub(super) fn version(&self) -> Result<String> {
        far::version(self.writer())
    }

    /// Waits until every server answers `sql` so.
    pub(super) fn wait_for_copies(&self, sql: &str, due: &str) -> Result<()> {
        far::wait_for_copies(self.servers(), TIMEOUT, sql, due)?;
        wait_for_log_members(self.writer(), &self.log_members, TIMEOUT)
    }

    /// Semi-synchronous replication falls back to asynchronous without telling the client: then it is no such run. At
    /// least so many transactions must have been acknowledged by others. All members must still be connected.
    pub(super) fn check_promise(&mut self, transactions: u64) -> Result<()> {
        if self.arbitrator.as_mut().is_some_and(|arbitrator| !arbitrator.is_running()) {
            return Err(LocalError::Value("the arbitrator has ended".into()));
        }
        if self.log_members.iter_mut().any(|member| !member.is_running()) {
            return Err(LocalError::Value("a log member has ended".into()));
        }
        let prefix = match (self.setup, self.setup.policy()) {
            (setup, _) if setup.stock_wait_point().is_some() || setup.is_ingested() => "Rpl_semi_sync_master",
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
        let name = match (*zone, number) {
            (NEAR, 1) => "near",
            (NEAR, _) => "near2",
            _ => "far",
        };
        let mut server = plain.bench.server(name, number)?;
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
