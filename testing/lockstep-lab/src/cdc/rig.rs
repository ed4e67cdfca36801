//! The servers of each set-up, and the threads that serve consumers.

use std::time::Duration;

use lockstep_local::{LocalError, Result, Server};

use super::{Setup, Spec};
use crate::binlog_member::{ACCOUNT, BinlogMember};
use crate::cluster::{Cluster, ClusterSpec};
use crate::far::{self, PAUSE};
use crate::replica::{Plain, admit_replica};
use crate::servers::Servers;

/// For members to have everything, and for senders to begin.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The name of the threads of `lockstep binlog serve` that send.
const SENDER: &str = "ls-consumer";

/// Running servers; killed when dropped.
pub(super) struct Rig {
    setup: Setup,
    // Before the servers' folder, in which its files are.
    member: Option<BinlogMember>,
    servers: Servers,
}

impl Rig {
    pub(super) fn start(setup: Setup, spec: &Spec) -> Result<Rig> {
        let servers = match setup {
            Setup::MariaDb => Servers::Plain(start_plain()?),
            _ => Servers::Cluster(start_cluster(setup, spec)?),
        };
        let mut rig = Rig { setup, member: None, servers };
        match &rig.servers {
            Servers::Cluster(cluster) if setup == Setup::Lockstep => {
                let mut member = BinlogMember::serve(cluster, "binlog", None, spec.lockstep.as_deref())?;
                member.start()?;
                member.wait_ready()?;
                rig.member = Some(member);
            }
            _ => admit_replica(rig.writer())?,
        }
        Ok(rig)
    }

    fn servers(&self) -> &[Server] {
        self.servers.all()
    }

    /// The server that clients write to.
    pub(super) fn writer(&self) -> &Server {
        &self.servers()[0]
    }

    /// The server that has the binlog, if it is a server.
    fn binlog_server(&self) -> &Server {
        &self.servers()[usize::from(self.setup == Setup::GaleraOther)]
    }

    /// Where consumers connect, and the account's name and password.
    pub(super) fn source(&self) -> (String, (&'static str, &'static str)) {
        let address = match &self.member {
            Some(member) => format!("{}:{}", member.host, member.port),
            None => format!("127.0.0.1:{}", self.binlog_server().config.sql_port),
        };
        (address, ACCOUNT)
    }

    /// Waits until all servers have the same rows.
    pub(super) fn settle(&self, ids: u64) -> Result<()> {
        let count = format!("SELECT COUNT(*) FROM cdc.rows WHERE id<={ids}");
        let due = self.writer().query(&count)?;
        far::wait_for_copies(self.servers(), TIMEOUT, &count, due.value()?)
    }

    /// The threads that send to consumers, once there are so many: a server ends those of earlier consumers when others
    /// register with their server ids.
    pub(super) fn senders(&self, count: usize) -> Result<Vec<u64>> {
        let mut found = Vec::new();
        let writer = self.writer();
        writer.wait_until(TIMEOUT, PAUSE, "is not read by all consumers", || {
            found = match &self.member {
                Some(member) => threads_of(member.pid().unwrap_or(0)),
                None => dump_threads(self.binlog_server())?,
            };
            Ok(found.len() == count)
        })?;
        Ok(found)
    }

    /// Processor time of these threads.
    pub(super) fn cpu_of(&self, threads: &[u64]) -> Result<Duration> {
        threads.iter().map(|thread| thread_cpu(*thread)).sum()
    }

    /// Processor time of the process of ours that serves consumers.
    pub(super) fn server_cpu(&self) -> Result<Option<Duration>> {
        let Some(pid) = self.member.as_ref().and_then(BinlogMember::pid) else { return Ok(None) };
        let tasks = tasks_of(pid).into_iter().filter_map(|task| thread_cpu(task).ok());
        Ok(Some(tasks.sum()))
    }

    pub(super) fn configurations(&self) -> Result<Vec<(String, String)>> {
        let mut all = far::configurations(self.servers())?;
        all.extend(self.member.iter().map(|member| (member.name().to_owned(), member.command())));
        Ok(all)
    }

    pub(super) fn version(&self) -> Result<String> {
        far::version(self.writer())
    }
}

/// A server that flushes everything, with a binlog.
fn start_plain() -> Result<Plain> {
    let mut plain = Plain::new()?;
    let mut server = plain.bench.server("n1", 1)?;
    server.config.log_bin = true;
    server.config.extra = vec!["innodb_flush_log_at_trx_commit=1".into(), "sync_binlog=1".into()];
    plain.servers.push(server);
    plain.start()?;
    Ok(plain)
}

/// Three members. A binlog of Galera's is not flushed: a member that fails gets a new copy.
fn start_cluster(setup: Setup, spec: &Spec) -> Result<Cluster> {
    let mut of = ClusterSpec::new(if setup.is_galera() { &spec.galera } else { &spec.provider });
    of.extra = vec!["innodb_flush_log_at_trx_commit=0".into(), "sync_binlog=0".into()];
    let mut cluster = Cluster::prepare(&of)?;
    let with_binlog = match setup {
        Setup::GaleraWriter => Some(0),
        Setup::GaleraOther => Some(1),
        _ => None,
    };
    if let Some(at) = with_binlog {
        cluster.servers[at].config.log_bin = true;
    }
    cluster.bootstrap()?;
    Ok(cluster)
}

/// The numbers of a server's threads that send its binlog.
fn dump_threads(server: &Server) -> Result<Vec<u64>> {
    let sql = "SELECT TID FROM information_schema.PROCESSLIST WHERE COMMAND='Binlog Dump'";
    let rows = server.query(sql)?.rows;
    Ok(rows.iter().filter_map(|row| row.first()?.as_ref()?.parse().ok()).collect())
}

fn tasks_of(pid: i32) -> Vec<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

/// The numbers of a process' threads that send a binlog.
fn threads_of(pid: i32) -> Vec<u64> {
    let is_sender = |task: &u64| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/task/{task}/comm")).unwrap_or_default();
        name.trim_end() == SENDER
    };
    tasks_of(pid).into_iter().filter(is_sender).collect()
}

/// Processor time of a thread, to the nanosecond.
fn thread_cpu(thread: u64) -> Result<Duration> {
    let path = format!("/proc/{thread}/schedstat");
    let text = std::fs::read_to_string(&path).map_err(LocalError::io(format!("read {path}")))?;
    let nanos = text.split_whitespace().next().and_then(|nanos| nanos.parse().ok());
    nanos.map(Duration::from_nanos).ok_or_else(|| LocalError::Value(format!("{path} has no number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_of_a_thread_is_read_to_the_nanosecond() {
        let own = tasks_of(std::process::id() as i32);
        assert!(own.contains(&u64::from(std::process::id())));
        let spent = thread_cpu(u64::from(std::process::id())).unwrap();
        assert!(spent > Duration::ZERO && spent < Duration::from_secs(3600), "{spent:?}");
        assert!(thread_cpu(u64::MAX).is_err());
        assert!(threads_of(std::process::id() as i32).is_empty());
    }
}
