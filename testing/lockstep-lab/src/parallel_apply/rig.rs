//! A writer and its copy, of either kind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_local::{Client, Disk, LocalError, Result, Server};

use super::load::schema;
use super::{Case, Family, SCHEMAS, Spec, follow};
use crate::binlog_member::BinlogMember;
use crate::catch_up::{applied, last_of, no_number, written};
use crate::cluster::{Cluster, ClusterSpec};
use crate::far;
use crate::replica::{BinlogPlace, Plain, admit_replica, replicate_from, replicate_from_port, replicates};
use crate::slow_disk::SlowDisk;

/// For a replica to connect, to have everything, or to apply it.
const TIMEOUT: Duration = Duration::from_secs(60);
/// For the copy to apply a run's updates: 100,000 at 100 a second, and some more.
const APPLY_TIMEOUT: Duration = Duration::from_secs(1200);

/// Of every server: room for the redo log of a whole run, so that none of them waits for a checkpoint.
const COMMON: [&str; 3] =
    ["innodb_log_file_size=512M", "innodb_buffer_pool_size=256M", "character_set_server=latin1"];

/// So many transactions MariaDB's primary gathers in a group while it writes what is to be applied,
pub const GROUP_COUNT: u32 = 80;
/// and so long it waits for them at most, in microseconds.
pub const GROUP_WAIT_US: u32 = 5000;

/// The writer and the copy; killed when dropped.
#[derive(Debug)]
pub(super) struct Rig {
    kind: Kind,
    /// The copy's disk in the cases on a slow one. In the others its process has no filter around it, which takes time of
    /// its own.
    disk: SlowDisk,
    /// Statements that have set the copy up for the case, for the record.
    set: Vec<String>,
    /// The copy's position when it was held back.
    from: u64,
}

#[derive(Debug)]
enum Kind {
    Lockstep(Cluster),
    MariaDb(Plain),
    Served(Box<Served>),
}

/// A member of ours, a replica of MariaDB's, and between them `lockstep binlog serve`.
#[derive(Debug)]
struct Served {
    // Before the servers' folder.
    _member: BinlogMember,
    /// Kept for their folder.
    _cluster: Cluster,
    _plain: Plain,
    /// The writer and the copy.
    servers: Vec<Server>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.servers.iter_mut().for_each(Server::kill);
    }
}

impl Rig {
    /// Starts both, with the tables filled.
    pub(super) fn start(family: Family, spec: &Spec) -> Result<Rig> {
        let kind = match family {
            Family::Lockstep => Kind::Lockstep(start_cluster(2, spec)?),
            Family::MariaDb => Kind::MariaDb(start_plain(spec)?),
            Family::Served => Kind::Served(Box::new(start_served(spec)?)),
        };
        let mut rig = Rig { kind, disk: SlowDisk::new(), set: Vec::new(), from: 0 };
        rig.fill(spec.rows)?;
        Ok(rig)
    }

    fn servers(&self) -> &[Server] {
        match &self.kind {
            Kind::Lockstep(cluster) => &cluster.servers,
            Kind::MariaDb(plain) => &plain.servers,
            Kind::Served(served) => &served.servers,
        }
    }

    /// Makes the primary wait for others before it commits a group while it writes the load, or stops that.
    /// `conservative` applies in parallel what the primary committed as a group. Ours has no such thing.
    pub(super) fn gather(&self, on: bool) -> Result<()> {
        let (count, usec) = if on { (GROUP_COUNT, GROUP_WAIT_US) } else { (0, 0) };
        match &self.kind {
            Kind::Lockstep(_) | Kind::Served(_) => Ok(()),
            Kind::MariaDb(_) => self.writer().client()?.run(&[
                &format!("SET GLOBAL binlog_commit_wait_count={count}"),
                &format!("SET GLOBAL binlog_commit_wait_usec={usec}"),
            ]),
        }
    }

    /// Commits of the primary's binlog so far, and the groups that they were made in; none of ours, which has neither.
    pub(super) fn groups(&self) -> Result<Option<(u64, u64)>> {
        if !matches!(self.kind, Kind::MariaDb(_)) {
            return Ok(None);
        }
        let mut client = self.writer().client()?;
        let mut count = |name| client.status(name)?.parse::<u64>().map_err(|_| no_number());
        Ok(Some((count("Binlog_commits")?, count("Binlog_group_commits")?)))
    }

    /// The server that is written to.
    pub(super) fn writer(&self) -> &Server {
        &self.servers()[0]
    }

    fn copy(&self) -> &Server {
        &self.servers()[1]
    }

    fn copy_mut(&mut self) -> &mut Server {
        match &mut self.kind {
            Kind::Lockstep(cluster) => &mut cluster.servers[1],
            Kind::MariaDb(plain) => &mut plain.servers[1],
            Kind::Served(served) => &mut served.servers[1],
        }
    }

    /// Starts the copy again where it is to be on the other disk.
    fn set_disk(&mut self, slow: bool) -> Result<()> {
        let disk = slow.then(|| Arc::new(self.disk.clone()) as Arc<dyn Disk>);
        let copy = self.copy_mut();
        if copy.config.disk.is_some() != slow {
            copy.stop()?;
            copy.config.disk = disk;
            copy.start(&[])?;
        }
        Ok(())
    }

    /// The copy's disk.
    pub(super) fn disk(&self) -> &SlowDisk {
        &self.disk
    }

    /// Tables as sysbench made them in the post's days.
    fn fill(&mut self, rows: u32) -> Result<()> {
        let mut client = self.writer().client()?;
        for number in 0..SCHEMAS {
            let name = schema(number);
            client.run(&[
                &format!("CREATE DATABASE {name}"),
                &format!(
                    "CREATE TABLE {name}.sbtest (id INT(10) UNSIGNED NOT NULL AUTO_INCREMENT, \
                     k INT(10) UNSIGNED NOT NULL DEFAULT '0', c CHAR(120) NOT NULL DEFAULT '', \
                     pad CHAR(60) NOT NULL DEFAULT '', PRIMARY KEY (id), KEY k (k)) ENGINE=InnoDB DEFAULT CHARSET=latin1"
                ),
            ])?;
            let row = |id: u32| format!("({id},'qqqqqqqqqqwwwwwwwwwweeeeeeeeeerrrrrrrrrrtttttttttt')");
            let ids: Vec<u32> = (1..=rows).collect();
            for part in ids.chunks(1000) {
                let values: Vec<String> = part.iter().map(|id| row(*id)).collect();
                client.query(&format!("INSERT INTO {name}.sbtest (id, pad) VALUES {}", values.join(",")))?;
            }
        }
        self.has_applied()
    }

    /// Sets the copy up for a case.
    pub(super) fn set(&mut self, case: &Case) -> Result<()> {
        self.set_disk(case.slow)?;
        let flush = format!("SET GLOBAL innodb_flush_log_at_trx_commit={}", u8::from(case.flush));
        self.set = match &self.kind {
            Kind::Lockstep(_) => vec![
                flush,
                format!("SET GLOBAL wsrep_provider_options='apply.order={}'", case.side.setting()),
                format!("SET GLOBAL wsrep_slave_threads={}", case.workers.max(1)),
            ],
            Kind::MariaDb(_) | Kind::Served(_) => {
                let mode = case.side.mode();
                let workers = if case.side.is_single() { 0 } else { case.workers };
                let gtid = if case.side.has_file() { "no" } else { "slave_pos" };
                vec![
                    flush,
                    "STOP SLAVE".into(),
                    format!("CHANGE MASTER TO MASTER_USE_GTID={gtid}"),
                    format!("SET GLOBAL slave_parallel_mode='{mode}'"),
                    format!("SET GLOBAL slave_parallel_threads={workers}"),
                    "START SLAVE".into(),
                ]
            }
        };
        let mut client = self.copy().client()?;
        self.set.iter().try_for_each(|sql| client.query(sql).map(|_| ()))?;
        match self.kind {
            Kind::Lockstep(_) => self.wait_for_appliers(case.workers.max(1)),
            Kind::MariaDb(_) | Kind::Served(_) => self.wait_for_replica(),
        }
    }

    /// A thread that is too many ends after it has applied something: something is written until all of them have.
    fn wait_for_appliers(&self, workers: u32) -> Result<()> {
        let (mut writer, mut copy) = (self.writer().client()?, self.copy().client()?);
        writer.query("CREATE TABLE IF NOT EXISTS sb1.spare (id INT PRIMARY KEY, k INT)")?;
        let values: Vec<String> = (0..200).map(|id| format!("({id},0)")).collect();
        // An update that changes nothing is not replicated.
        let write =
            format!("INSERT INTO sb1.spare VALUES {} ON DUPLICATE KEY UPDATE k=k+1", values.join(","));
        let set = format!("SET GLOBAL wsrep_slave_threads={workers}");
        self.wait(&format!("has not {workers} appliers"), || {
            let appliers: u32 =
                copy.status("wsrep_applier_thread_count")?.parse().map_err(|_| no_number())?;
            if appliers != workers {
                // It works out how many are too many when it is set.
                copy.query(&set)?;
                for _ in 0..appliers.max(4) {
                    writer.query(&write)?;
                }
            }
            Ok(appliers == workers)
        })?;
        self.has_applied()
    }

    fn wait_for_replica(&self) -> Result<()> {
        self.wait("does not replicate", || replicates(self.copy()))
    }

    /// The position of the copy, in transactions.
    fn position(&self, client: &mut Client) -> Result<u64> {
        applied(self.copy(), client)
    }

    /// The position of the writer.
    fn due(&self) -> Result<u64> {
        written(self.writer())
    }

    fn has_applied(&self) -> Result<()> {
        let (due, mut client) = (self.due()?, self.copy().client()?);
        self.wait("does not apply everything", || Ok(self.position(&mut client)? >= due))
    }

    /// From now on the copy receives, and applies nothing.
    pub(super) fn hold_back(&mut self) -> Result<()> {
        self.has_applied()?;
        let mut client = self.copy().client()?;
        client.query(match self.kind {
            Kind::Lockstep(_) => "SET GLOBAL wsrep_provider_options='apply.paused=yes'",
            Kind::MariaDb(_) | Kind::Served(_) => "STOP SLAVE SQL_THREAD",
        })?;
        self.from = self.position(&mut client)?;
        Ok(())
    }

    /// Waits until the copy has received everything; an error if it has applied something of it.
    pub(super) fn has_received(&self) -> Result<()> {
        let mut client = self.copy().client()?;
        match self.kind {
            Kind::Lockstep(_) => {}
            Kind::MariaDb(_) => {
                let due = BinlogPlace::written_by(self.writer())?;
                self.wait("does not receive everything", || {
                    Ok(BinlogPlace::received_by(self.copy())? >= due)
                })?;
            }
            Kind::Served(_) => {
                let due = self.due()?;
                self.wait("does not receive everything", || {
                    let answer = self.copy().query("SHOW SLAVE STATUS")?;
                    Ok(last_of(answer.column("Gtid_IO_Pos")?)? >= due)
                })?;
            }
        }
        // A commit of ours has been kept by both members, for two are a majority of two.
        match self.position(&mut client)? {
            at if at == self.from => Ok(()),
            at => Err(LocalError::Value(format!(
                "the copy was held back at {}, and has come to {at}",
                self.from
            ))),
        }
    }

    /// Waits, though not for long, until the writer has cleaned up behind its updates: it shares processors with the copy.
    pub(super) fn calm_down(&self) -> Result<()> {
        let mut client = self.writer().client()?;
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end {
            let left: u64 = client.status("Innodb_history_list_length")?.parse().map_err(|_| no_number())?;
            if left < 1000 {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Lets the copy go on, and follows it until it has applied `count` more transactions. How long it took, and how far
    /// it was when.
    pub(super) fn let_go(&self, count: u64) -> Result<(Duration, Vec<(Duration, u64)>)> {
        let due = self.due()?;
        if due - self.from < count {
            return Err(LocalError::Value(format!(
                "{count} updates were made, and the writer has {}",
                due - self.from
            )));
        }
        let (mut client, mut other) = (self.copy().client()?, self.copy().client()?);
        let began = Instant::now();
        client.query(match self.kind {
            Kind::Lockstep(_) => "SET GLOBAL wsrep_provider_options='apply.paused=no'",
            Kind::MariaDb(_) | Kind::Served(_) => "START SLAVE SQL_THREAD",
        })?;
        let from = self.from;
        follow(due - from, APPLY_TIMEOUT, began, || Ok(self.position(&mut other)?.saturating_sub(from)))
    }

    /// Of the copy so far: processor time, flushes, transactions applied again.
    pub(super) fn usage(&self) -> Result<(Duration, u64, u64)> {
        let flushes = match self.copy().config.disk.is_some() {
            true => self.disk.flushes(),
            false => {
                let flushes = self.copy().client()?.status("Innodb_data_fsyncs")?;
                flushes.parse().map_err(|_| no_number())?
            }
        };
        let retried = match self.kind {
            Kind::Lockstep(_) => 0,
            Kind::MariaDb(_) | Kind::Served(_) => {
                let retried = self.copy().client()?.status("Slave_retried_transactions")?;
                retried.parse().map_err(|_| no_number())?
            }
        };
        Ok((self.copy().cpu_time()?, flushes, retried))
    }

    /// The sum of what the updates change, in the copy.
    pub(super) fn sum(&self, schemas: u32) -> Result<i64> {
        self.has_applied()?;
        let mut client = self.copy().client()?;
        (0..schemas)
            .map(|n| client.number(&format!("SELECT CAST(SUM(k) AS SIGNED) FROM {}.sbtest", schema(n))))
            .sum()
    }

    /// An error unless writer and copy have the same rows.
    pub(super) fn same_rows(&self, schemas: u32) -> Result<()> {
        let tables: Vec<String> = (0..schemas).map(|n| format!("{}.sbtest", schema(n))).collect();
        let sql = format!("CHECKSUM TABLE {}", tables.join(","));
        let (here, there) = (self.writer().query(&sql)?.rows, self.copy().query(&sql)?.rows);
        if here == there {
            return Ok(());
        }
        Err(LocalError::Value(format!("the copy has other rows: {here:?} and {there:?}")))
    }

    pub(super) fn version(&self) -> Result<String> {
        let mut client = self.copy().client()?;
        let server = client.value("SELECT VERSION()")?;
        Ok(match self.kind {
            Kind::MariaDb(_) => server,
            Kind::Served(_) => {
                let provider = self.writer().client()?.status("wsrep_provider_version")?;
                format!("{server}, Lockstep {provider}")
            }
            Kind::Lockstep(_) => format!("{server}, Lockstep {}", client.status("wsrep_provider_version")?),
        })
    }

    /// Each server's option file; the replica's with the settings of the case.
    pub(super) fn configurations(&self) -> Result<Vec<(String, String)>> {
        let text = |server: &Server| match server.name() == self.copy().name() {
            true => format!("{}# Set while it ran:\n# {}\n", server.config.render(), self.set.join("\n# ")),
            false => server.config.render(),
        };
        let options = self.servers().iter().map(|server| (server.name().to_owned(), text(server)));
        Ok(options.chain(far::variables(self.servers())?).collect())
    }

    /// Waits for the copy.
    fn wait(&self, what: &str, check: impl FnMut() -> Result<bool>) -> Result<()> {
        self.copy().wait_until(TIMEOUT, Duration::from_millis(5), what, check)
    }
}

/// Of two members, a commit waits until both have it.
fn start_cluster(members: usize, spec: &Spec) -> Result<Cluster> {
    let mut cluster = ClusterSpec::new(&spec.provider);
    cluster.members = members;
    // A copy that is held back for a while is no reason to leave it out.
    cluster.provider_options = vec![("commit.policy".into(), "quorum".into())];
    cluster.extra = COMMON.map(str::to_owned).to_vec();
    cluster.extra.extend([
        "innodb_flush_log_at_trx_commit=0".into(),
        format!("max_connections={}", spec.connections + 50),
    ]);
    let mut cluster = Cluster::prepare(&cluster)?;
    cluster.bootstrap()?;
    Ok(cluster)
}

/// A primary with large binlog groups ([`Rig::gather`], and `sync_binlog=1`: commits that arrive during a flush form the
/// next group), and a replica without a binlog, which is faster.
fn start_plain(spec: &Spec) -> Result<Plain> {
    let mut plain = Plain::new()?;
    let mut primary = plain.bench.server("n1", 1)?;
    primary.config.log_bin = true;
    primary.config.extra = COMMON.map(str::to_owned).to_vec();
    primary.config.extra.extend([
        "innodb_flush_log_at_trx_commit=0".into(),
        "sync_binlog=1".into(),
        format!("max_connections={}", spec.connections + 50),
    ]);
    let replica = replica_in(&plain)?;
    plain.servers.extend([primary, replica]);
    plain.start()?;
    let (writer, copy) = (&plain.servers[0], &plain.servers[1]);
    admit_replica(writer)?;
    replicate_from(writer, "127.0.0.1", copy)?;
    Ok(plain)
}

/// A replica, not started.
fn replica_in(plain: &Plain) -> Result<Server> {
    let mut server = plain.bench.server("n2", 2)?;
    server.config.extra = COMMON.map(str::to_owned).to_vec();
    server.config.extra.extend([
        "innodb_flush_log_at_trx_commit=1".into(),
        // More than that its workers need not wait for the reader of the relay log.
        "slave_parallel_max_queued=16M".into(),
        "relay_log=relay".into(),
    ]);
    Ok(server)
}

/// Starts a cluster of one member, because only the replica applies.
fn start_served(spec: &Spec) -> Result<Served> {
    let mut cluster = start_cluster(1, spec)?;
    let mut member = BinlogMember::serve(&cluster, "binlog", None, spec.lockstep.as_deref())?;
    member.start()?;
    member.wait_ready()?;
    let mut plain = Plain::new()?;
    let replica = replica_in(&plain)?;
    plain.servers.push(replica);
    plain.start()?;
    let servers = vec![cluster.servers.remove(0), plain.servers.remove(0)];
    let served = Served { _member: member, _cluster: cluster, _plain: plain, servers };
    replicate_from_port(&served._member.host, served._member.port, &served.servers[1])?;
    Ok(served)
}
