//! The replication test of `lockstep up`: it writes a row on each member that may write, and reads it on the others.
//!
//! Under a weak policy only the leader may write, and leadership may move at any moment. A held-back member
//! (`apply.paused` and the like) accepts no writes, and receives the rows when the hold ends.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lockstep_local::{Server, say};

use crate::{fetch, query, server_health};

/// Maximum duration of a leadership transfer.
const LEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum delay until a row is visible on another member.
const ROW_TIMEOUT: Duration = Duration::from_secs(5);

/// The members that may write.
#[derive(Debug, PartialEq, Eq)]
enum Writers {
    All,
    /// The leader, under this policy.
    Only(String, String),
}

impl Writers {
    fn under(policy: &str, leader: &str) -> Writers {
        match policy {
            "semisync" | "async" => Writers::Only(leader.to_owned(), policy.to_owned()),
            _ => Writers::All,
        }
    }

    fn allow(&self, name: &str) -> bool {
        match self {
            Writers::All => true,
            Writers::Only(leader, _) => leader == name,
        }
    }
}

/// Writes a row on each member that may write, and reads it on the others.
pub(crate) fn run(dir: &Path, servers: &[Server]) -> Result<(), String> {
    let mut free = Vec::new();
    for server in servers {
        match server_health::apply_hold(server) {
            Some(hold) => say(&format!("{} is {hold}", server.name())),
            None => free.push(server),
        }
    }
    let deadline = Instant::now() + LEADER_TIMEOUT;
    loop {
        let cluster = query::cluster(&fetch::sockets(dir), true)?.status.cluster;
        let writers = Writers::under(&cluster.policy, &cluster.leader);
        let error = match run_once(&free, &writers) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        // Only a leadership transfer makes a retry useful, and it matters under weak policies only.
        if writers == Writers::All || Instant::now() >= deadline {
            return Err(error);
        }
        sleep(Duration::from_millis(200));
    }
}

fn run_once(free: &[&Server], allowed: &Writers) -> Result<(), String> {
    if free.is_empty() {
        say("An apply hold keeps entries from all members: none of them may write.");
        return Ok(());
    }
    let writers: Vec<_> = free.iter().filter(|server| allowed.allow(server.name())).collect();
    let Some(first) = writers.first() else {
        return Err(match allowed {
            Writers::Only(leader, policy) if !leader.is_empty() => format!(
                "only the leader may write under {policy}, and the leader {leader} is held back or not one of these servers"
            ),
            _ => "there is no leader, so no member may write".into(),
        });
    };
    let text = |error: lockstep_local::LocalError| error.to_string();
    let table = [
        "CREATE DATABASE IF NOT EXISTS lockstep",
        "CREATE TABLE IF NOT EXISTS lockstep.hello (id BIGINT AUTO_INCREMENT PRIMARY KEY, \
         writer VARCHAR(64) NOT NULL, written_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3))",
    ];
    first.client().and_then(|mut c| c.run(&table)).map_err(text)?;
    for writer in &writers {
        let insert = format!("INSERT INTO lockstep.hello (writer) VALUES ('{}')", writer.name());
        let id = writer.client().and_then(|mut c| c.query(&insert)).map_err(text)?.insert_id;
        let mut readers = Vec::new();
        for reader in free.iter().filter(|r| r.name() != writer.name()) {
            let seen = read(reader, id, *allowed != Writers::All)?;
            if seen != writer.name() {
                return Err(format!("{} wrote row {id}, but {} read `{seen}`", writer.name(), reader.name()));
            }
            readers.push(reader.name());
        }
        let read = if readers.is_empty() { "no other member".into() } else { readers.join(" and ") };
        say(&format!("{} wrote row {id}: read on {read}", writer.name()));
    }
    if let Writers::Only(leader, policy) = allowed {
        say(&format!("(only {leader} may write under {policy})"));
    }
    Ok(())
}

/// Reads the writer of this row on a member. Under a weak policy the row may become visible `later` than the commit
/// returns.
fn read(reader: &Server, id: u64, later: bool) -> Result<String, String> {
    let sql = format!("SELECT writer FROM lockstep.hello WHERE id = {id}");
    let deadline = Instant::now() + ROW_TIMEOUT;
    loop {
        let seen = reader.client().and_then(|mut c| {
            c.query("SET SESSION wsrep_sync_wait = 1")?;
            c.value(&sql)
        });
        match seen {
            Ok(seen) => return Ok(seen),
            Err(_) if later && Instant::now() < deadline => sleep(Duration::from_millis(50)),
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weak_policy_allows_writes_on_leader_only() {
        for policy in ["semisync", "async"] {
            let writers = Writers::under(policy, "n3");
            assert_eq!(["n1", "n2", "n3"].map(|name| writers.allow(name)), [false, false, true], "{policy}");
        }
        for policy in ["quorum", "all"] {
            assert!(Writers::under(policy, "n3").allow("n1"), "{policy}");
        }
    }
}
