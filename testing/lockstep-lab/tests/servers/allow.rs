//! Whom the table `mysql.wsrep_allowlist` lets in.

use std::time::{Duration, Instant};

use lockstep_lab::Cluster;
use lockstep_local::{LocalError, Server};

use crate::fixture::{Kind, Test, alone, kind, session, shared, spec};

/// One more member that reaches the others from an address of its own.
fn from_elsewhere(cluster: &Cluster, name: &str) -> Result<Server, LocalError> {
    let mut server = cluster.another(name)?;
    let wsrep = server.wsrep_mut()?;
    wsrep.host = "127.0.0.3".into();
    wsrep.listen = "127.0.0.3".into();
    Ok(server)
}

fn stays_out_until_its_address_is_there(cluster: &mut Cluster) -> Test {
    let mut client = session(cluster, 0)?;
    client.query("INSERT INTO mysql.wsrep_allowlist (ip) VALUES ('127.0.0.1'), ('10.1.2.3')")?;
    cluster.same_everywhere("SELECT ip FROM mysql.wsrep_allowlist ORDER BY ip")?;
    let mut server = from_elsewhere(cluster, "outsider")?;
    server.spawn(&[])?;
    server.wait_ended(Duration::from_secs(100))?;
    let log = server.log();
    let due = "INSERT INTO mysql.wsrep_allowlist (ip) VALUES ('127.0.0.3')";
    if kind() == Kind::Lockstep && !log.lines().any(|line| line.contains("ERROR") && line.contains(due)) {
        return Err(LocalError::Value(format!(
            "the joiner is not told what to do:\n{}",
            server.log_tail(30)
        )));
    }
    if !cluster.servers.iter().any(|s| s.log().contains("Connection not allowed")) {
        return Err(LocalError::Value(format!("no member says so\n{}", cluster.log_tails(20))));
    }
    if !cluster.is_whole() {
        return Err(LocalError::Value(format!("the cluster suffered\n{}", cluster.log_tails(20))));
    }

    client.query(due)?;
    server.start(&[])?;
    cluster.wait_size(4)?;
    server.stop()?;
    cluster.wait_size(3)
}

#[test]
fn address_missing_from_allow_list_is_refused() -> Test {
    let mut cluster = shared()?;
    let outcome = stays_out_until_its_address_is_there(&mut cluster);
    cluster.servers[0].query("DELETE FROM mysql.wsrep_allowlist")?;
    outcome
}

/// Galera's library asks on its only network thread, so that its cluster comes to a halt here.
#[test]
fn allow_list_table_lock_delays_joiner_only() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _alone = alone();
    let mut cluster = Cluster::start(&spec())?;
    cluster.servers[0].query("CREATE DATABASE test")?;
    let mut client = session(&cluster, 1)?;
    client.query("CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY)")?;
    let mut lockers = Vec::new();
    for server in &cluster.servers {
        let mut locker = server.client()?;
        locker.query("LOCK TABLES mysql.wsrep_allowlist WRITE")?;
        lockers.push(locker);
    }
    let mut server = from_elsewhere(&cluster, "patient")?;
    server.spawn(&[])?;
    let end = Instant::now() + Duration::from_secs(8);
    let (mut longest, mut rows) = (Duration::ZERO, 0);
    while Instant::now() < end {
        let began = Instant::now();
        client.query("INSERT INTO t VALUES ()")?;
        longest = longest.max(began.elapsed());
        rows += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    let said = cluster.servers.iter().any(|s| {
        s.log()
            .lines()
            .any(|line| line.contains("127.0.0.3") && line.contains("mysql.wsrep_allowlist locked"))
    });
    if !said || longest > Duration::from_secs(2) || rows < 20 {
        return Err(LocalError::Value(format!(
            "{rows} rows, the longest took {longest:?}, the lock was named: {said}\n{}",
            cluster.log_tails(20)
        )));
    }
    drop(lockers);
    server.wait_ready(Duration::from_secs(60))?;
    cluster.wait_size(4)?;
    server.stop()?;
    cluster.stop()
}
