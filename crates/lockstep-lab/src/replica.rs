//! MariaDB's own replication: a server that writes a binlog, and its replica.

use crate::cluster::Bench;
use crate::error::Result;
use crate::server::Server;

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

/// Makes the account that a replica reads with.
pub(crate) fn admit_replica(writer: &Server) -> Result<()> {
    writer
        .client()?
        .run(&["CREATE USER 'copy'@'%' IDENTIFIED BY 'copy'", "GRANT REPLICATION SLAVE ON *.* TO 'copy'@'%'"])
}

/// Lets `copy` replicate from `writer`, which it reaches at `host`.
pub(crate) fn replicate_from(writer: &Server, host: &str, copy: &Server) -> Result<()> {
    let port = writer.config.sql_port;
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
