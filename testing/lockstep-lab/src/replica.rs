//! MariaDB's own replication: a server that writes a binlog, and its replica.

use std::time::{Duration, Instant};

use lockstep_local::{LocalError, Result, Server};

use crate::bench::Bench;
use crate::binlog_member::BinlogMember;
use crate::catch_up::no_number;
use crate::far::PAUSE;

/// Running servers, the one that is written to first; killed when dropped, before their folder goes.
#[derive(Debug)]
pub(crate) struct Plain {
    pub(crate) servers: Vec<Server>,
    pub(crate) bench: Bench,
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.servers.iter_mut().for_each(Server::kill);
    }
}

impl Plain {
    pub(crate) fn new() -> Result<Plain> {
        Ok(Plain { servers: Vec::new(), bench: Bench::new()? })
    }

    /// Starts all of them.
    pub(crate) fn start(&mut self) -> Result<()> {
        self.servers.iter_mut().try_for_each(|server| server.start(&[]))
    }
}

/// When the primary waits for its semi-synchronous replica: the server's default. Others see a commit before it is acknowledged.
pub const WAIT_POINT: &str = "AFTER_COMMIT";
/// Nobody sees a commit before it is acknowledged. Groups of commits wait one after the other.
pub(crate) const AFTER_SYNC: &str = "AFTER_SYNC";

/// A server's status is a moment behind its transactions.
const SOON: Duration = Duration::from_secs(5);

/// Makes the account that a replica reads with.
pub(crate) fn admit_replica(writer: &Server) -> Result<()> {
    writer.client()?.run(&[
        "CREATE USER 'copy'@'%' IDENTIFIED BY 'copy'",
        "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO 'copy'@'%'",
    ])
}

/// Lets `copy` replicate from `writer`, which it reaches at `host`.
pub(crate) fn replicate_from(writer: &Server, host: &str, copy: &Server) -> Result<()> {
    replicate_from_port(host, writer.config.sql_port, copy)
}

/// Lets `copy` replicate from the binlog that is served there.
pub(crate) fn replicate_from_port(host: &str, port: u16, copy: &Server) -> Result<()> {
    copy.client()?.run(&[
        &format!(
            "CHANGE MASTER TO MASTER_HOST='{host}', MASTER_PORT={port}, MASTER_USER='copy', MASTER_PASSWORD='copy', \
             MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1"
        ),
        "START SLAVE",
    ])
}

/// Whether both threads of the replica run.
pub(crate) fn replicates(copy: &Server) -> Result<bool> {
    let answer = copy.query("SHOW SLAVE STATUS")?;
    Ok(answer.column("Slave_IO_Running")? == "Yes" && answer.column("Slave_SQL_Running")? == "Yes")
}

/// A place in a primary's binlog, which both sides know with GTIDs or without; a later one is greater.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BinlogPlace {
    file: u64,
    at: u64,
}

impl BinlogPlace {
    /// Where the primary is. It may be further the next moment though nobody writes: what the start of a new file says of the
    /// old one (a binlog checkpoint) is written behind everybody's back.
    pub(crate) fn written_by(writer: &Server) -> Result<BinlogPlace> {
        let answer = writer.query("SHOW MASTER STATUS")?;
        BinlogPlace::parse(answer.column("File")?, answer.column("Position")?)
    }

    /// The position received by the replica.
    pub(crate) fn received_by(copy: &Server) -> Result<BinlogPlace> {
        let answer = copy.query("SHOW SLAVE STATUS")?;
        BinlogPlace::parse(answer.column("Master_Log_File")?, answer.column("Read_Master_Log_Pos")?)
    }

    /// "binlog.000002" and "344"; from no file nothing has been read yet.
    fn parse(file: &str, at: &str) -> Result<BinlogPlace> {
        let number = |text: &str| text.parse().map_err(|_| no_number());
        let file = match file.rsplit_once('.') {
            Some((_, count)) => number(count)?,
            None if file.is_empty() => 0,
            None => return Err(no_number()),
        };
        Ok(BinlogPlace { file, at: number(at)? })
    }
}

/// Lets the second server replicate from the first, which it reaches at `host`, and waits for it. With a wait point the
/// replication is semi-synchronous.
pub(crate) fn replicate(
    plain: &Plain,
    host: &str,
    wait_point: Option<&str>,
    timeout: Duration,
) -> Result<()> {
    let (writer, copy) = (&plain.servers[0], &plain.servers[1]);
    admit_replica(writer)?;
    if let Some(wait_point) = wait_point {
        // Before the replica connects, because it announces semi-sync then; and after steps that would wait for it in vain.
        writer.client()?.run(&[
            &format!("SET GLOBAL rpl_semi_sync_master_wait_point='{wait_point}'"),
            "SET GLOBAL rpl_semi_sync_master_enabled=ON",
        ])?;
        copy.query("SET GLOBAL rpl_semi_sync_slave_enabled=ON")?;
    }
    replicate_from(writer, host, copy)?;
    copy.wait_until(timeout, PAUSE, "does not replicate", || replicates(copy))?;
    writer.wait_until(timeout, PAUSE, "has no semi-synchronous replica", || {
        Ok(wait_point.is_none() || writer.client()?.status("Rpl_semi_sync_master_clients")? == "1")
    })
}

/// Lets log members (`lockstep binlog ingest`) acknowledge what a server commits, starts them, and waits for the one that
/// reads its binlog. `members` makes them, once their account is there.
pub(crate) fn acknowledge(
    writer: &Server,
    members: impl FnOnce() -> Result<Vec<BinlogMember>>,
    timeout: Duration,
) -> Result<Vec<BinlogMember>> {
    admit_replica(writer)?;
    let mut members = members()?;
    // Nobody acknowledges these, so they come first; and the members look at them when they connect.
    writer.client()?.run(&[
        &format!("SET GLOBAL rpl_semi_sync_master_wait_point='{AFTER_SYNC}'"),
        "SET GLOBAL rpl_semi_sync_master_wait_no_slave=ON",
        "SET GLOBAL rpl_semi_sync_master_timeout=3600000",
        "SET GLOBAL rpl_semi_sync_master_enabled=ON",
    ])?;
    members.iter_mut().try_for_each(BinlogMember::start)?;
    members.iter_mut().try_for_each(BinlogMember::wait_ready)?;
    writer.wait_until(timeout, PAUSE, "has no log member that acknowledges", || {
        Ok(writer.client()?.status("Rpl_semi_sync_master_clients")? == "1")
    })?;
    Ok(members)
}

/// Waits until each log member has the server's whole binlog.
pub(crate) fn wait_for_log_members(
    writer: &Server,
    members: &[BinlogMember],
    timeout: Duration,
) -> Result<()> {
    // Members of other set-ups need not have a binlog.
    if members.is_empty() {
        return Ok(());
    }
    writer.wait_until(timeout, PAUSE, "has a log member without its whole binlog", || {
        let answer = writer.query("SHOW MASTER STATUS")?;
        let (file, end) = (answer.column("File")?, answer.column("Position")?);
        Ok(members.iter().all(|member| member.copied(file).to_string() == end))
    })
}

/// An error unless semi-synchronous replication has never fallen back to asynchronous, which tells no client, and others have
/// acknowledged at least so many transactions. `prefix` is what the names of its status variables begin with: MariaDB's
/// `Rpl_semi_sync_master`, our `wsrep_semi_sync`.
pub(crate) fn check_semi_sync(writer: &Server, prefix: &str, transactions: u64) -> Result<()> {
    let mut client = writer.client()?;
    let end = Instant::now() + SOON;
    loop {
        let mut status = |name| client.status(&format!("{prefix}_{name}"));
        let (on, acknowledged, not) = (status("status")?, status("yes_tx")?, status("no_tx")?);
        let enough = acknowledged.parse::<u64>().is_ok_and(|count| count >= transactions);
        if on == "ON" && not == "0" && enough {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(LocalError::Value(format!(
                "semi-synchronous replication is {on}; of {transactions} transactions {acknowledged} were acknowledged, \
                 {not} were not"
            )));
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replica_past_position_has_received_it() {
        let place = |file, at| BinlogPlace::parse(file, at).unwrap();
        let due = place("binlog.000002", "344");
        for (file, at, received) in [
            ("", "4", false),
            ("binlog.000001", "99999", false),
            ("binlog.000002", "343", false),
            ("binlog.000002", "344", true),
            // The checkpoint of the file before.
            ("binlog.000002", "385", true),
            ("binlog.000010", "4", true),
            ("binlog.1000000", "4", true),
        ] {
            assert_eq!(place(file, at) >= due, received, "{file} {at}");
        }
        assert!(BinlogPlace::parse("binlog", "4").is_err() && BinlogPlace::parse("a.1", "NULL").is_err());
    }
}
