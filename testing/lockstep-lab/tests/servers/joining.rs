//! Joiners that get no state: they end, promptly, and say why.

use std::time::{Duration, Instant};

use lockstep_lab::Cluster;
use lockstep_local::{LocalError, Server, SstMethod, free_ports, host_port};

use crate::fixture::{Kind, Test, eventually, kind, session, shared};
use crate::rejoin::{mark, unmark};

/// What "promptly" means on a busy machine.
const PROMPT: Duration = Duration::from_secs(10);

/// One more member, started, that has no database of its own.
fn joiner(cluster: &Cluster, name: &str, method: SstMethod) -> Result<Server, LocalError> {
    let mut server = cluster.another(name)?;
    server.wsrep_mut()?.sst_method = method;
    server.spawn(&[])?;
    Ok(server)
}

fn said(server: &Server, words: &str) -> Test {
    // Galera has words of its own.
    if kind() == Kind::Lockstep && !server.log().contains(words) {
        return Err(LocalError::Value(format!("no `{words}` in its log:\n{}", server.log_tail(30))));
    }
    Ok(())
}

#[test]
fn joiner_ends_when_donor_fails() -> Test {
    let mut cluster = shared()?;
    // The account under which a donor runs mariabackup.
    for server in &cluster.servers {
        server.query("SET GLOBAL wsrep_sst_auth = 'nobody:wrong'")?;
    }
    let mut server = joiner(&cluster, "unfed", SstMethod::Mariabackup)?;
    let outcome = (|| {
        let failed = "sending state to unfed failed";
        let galera = "(unfed) failed";
        let words = if kind() == Kind::Galera { galera } else { failed };
        eventually("the donor's script fails", || {
            Ok(cluster.servers.iter().any(|s| s.log().contains(words)))
        })?;
        let began = Instant::now();
        server.wait_ended(PROMPT)?;
        eprintln!("it ended {} ms after the donor's word", began.elapsed().as_millis());
        // From the donor, or from its own script, whichever is the first to see it.
        said(&server, "this member cannot get a state transfer")
            .or_else(|_| said(&server, "the state transfer failed"))
    })();
    server.kill();
    for server in &cluster.servers {
        server.query("SET GLOBAL wsrep_sst_auth = 'root:'")?;
    }
    outcome?;
    cluster.wait_size(3)
}

#[test]
fn joiner_waiting_for_donor_stops_on_request() -> Test {
    let mut cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(()); // its joiner does not: the server hears SIGTERM only after the transfer
    }
    // A desynced member is not chosen as donor.
    for server in &cluster.servers {
        server.query("SET GLOBAL wsrep_desync = ON")?;
    }
    let mut server = joiner(&cluster, "patient", SstMethod::Rsync)?;
    let outcome = (|| {
        eventually("it looks for a donor", || Ok(server.log().contains("no donor yet")))?;
        let began = Instant::now();
        server.stop()?;
        assert!(began.elapsed() < PROMPT, "stopped after {:?}", began.elapsed());
        said(&server, "asked to stop while it waits for a state transfer")
    })();
    server.kill();
    for server in &cluster.servers {
        server.query("SET GLOBAL wsrep_desync = OFF")?;
    }
    outcome?;
    cluster.wait_size(3)
}

#[test]
fn member_waiting_for_majority_stops_on_request() -> Test {
    let cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(()); // as above
    }
    let mut server = cluster.another("lonely")?;
    server.wsrep_mut()?.peers = vec![host_port("127.0.0.1", free_ports(1)?)];
    server.spawn(&[])?;
    let outcome = (|| {
        eventually("it connects", || Ok(server.log().contains("connecting to cluster")))?;
        let began = Instant::now();
        server.stop()?;
        assert!(began.elapsed() < PROMPT, "stopped after {:?}", began.elapsed());
        said(&server, "asked to stop while it waits for a primary component")
    })();
    server.kill();
    outcome
}

/// The server gives its start up while it is shown the members. It ends, and its database is as good as it was.
#[test]
fn member_with_failed_start_rejoins_by_log() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // it takes a state transfer
    }
    let mut cluster = shared()?;
    mark(&cluster.servers[2])?;
    cluster.servers[2].stop()?;
    let mut client = session(&cluster, 0)?;
    client.run(&["CREATE TABLE typo (id INT PRIMARY KEY)", "INSERT INTO typo VALUES (1)"])?;
    // By the log alone, and with a donor's word.
    for gtids in ["--wsrep_gtid_mode=OFF", "--wsrep_gtid_mode=ON"] {
        cluster.servers[2].spawn(&["--max_conections=200", gtids])?;
        let ended = cluster.servers[2].wait_ended(2 * PROMPT);
        if ended.is_err() {
            cluster.servers[2].kill();
        }
        ended?;
        said(&cluster.servers[2], "unknown variable 'max_conections=200'")?;
    }
    cluster.servers[2].start(&[])?;
    cluster.wait_size(3)?;
    assert!(
        unmark(&cluster.servers[2])?,
        "the whole database was copied:\n{}",
        cluster.servers[2].log_tail(60)
    );
    cluster.same_everywhere("SELECT COUNT(*) FROM test.typo").map(drop)
}
