//! `innodb_flush_log_at_trx_commit=0`: InnoDB may lose its last second when the server dies. The cluster may not.

use std::time::Duration;

use lockstep_lab::Cluster;
use lockstep_local::LocalError;

use crate::fixture::{Kind, Test, kind, session, shared};
use crate::rejoin::{mark, others_see, unmark};
use crate::stress::{audit, bank_during, open_bank};

const LAZY: &str = "innodb_flush_log_at_trx_commit=0";

/// Six sessions, two on each member, transfer money; `victims` are killed while they do. The number of transfers that
/// were acknowledged.
fn kill_under_load(cluster: &mut Cluster, victims: &[usize]) -> Result<u64, LocalError> {
    for server in &cluster.servers {
        server.query(&format!("SET GLOBAL {LAZY}"))?;
    }
    let sockets: Vec<_> = cluster.servers.iter().map(|s| s.config.socket()).collect();
    let (done, outcome) = bank_during(&sockets, 6, || {
        std::thread::sleep(Duration::from_secs(3));
        victims.iter().for_each(|n| cluster.servers[*n].kill());
        others_see(cluster, victims)
    });
    outcome?;
    assert!(done > 100, "only {done} transfers");
    Ok(done)
}

#[test]
fn killed_member_with_lazy_flush_rejoins_equal() -> Test {
    let mut cluster = shared()?;
    open_bank(&cluster)?;
    mark(&cluster.servers[2])?;
    let done = kill_under_load(&mut cluster, &[2])?;
    let position = cluster.servers[2].recover_position()?;
    eprintln!(
        "{done} transfers; the killed member is at {position}, the others at {}",
        session(&cluster, 0)?.status("wsrep_last_committed")?
    );
    let config = cluster.servers[2].config.clone();
    cluster.servers[2].config.extra.push(LAZY.into());
    let outcome = cluster.servers[2].start(&[]).and_then(|()| cluster.wait_size(3));
    cluster.servers[2].config = config;
    outcome?;
    let by_log = unmark(&cluster.servers[2])?;
    eprintln!("it came back by {}", if by_log { "the log" } else { "state transfer" });
    audit(&cluster, done, 6)
}

#[test]
fn full_outage_with_lazy_flush_loses_nothing() -> Test {
    let mut cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(()); // it does lose what InnoDB has not flushed: it keeps no log of its own that is flushed
    }
    open_bank(&cluster)?;
    let done = kill_under_load(&mut cluster, &[0, 1, 2])?;
    let configs: Vec<_> = cluster.servers.iter().map(|s| s.config.clone()).collect();
    for server in &mut cluster.servers {
        eprintln!("{} is at {}", server.name().to_owned(), server.recover_position()?);
        server.config.extra.push(LAZY.into());
        server.spawn(&[])?;
    }
    let outcome = cluster.wait_size(3);
    for (server, config) in cluster.servers.iter_mut().zip(configs) {
        server.config = config;
    }
    outcome?;
    audit(&cluster, done, 6)
}

/// It has left the cluster in good order, and InnoDB's last second is not on the disk: its saved position must not be ahead
/// of its data.
#[test]
fn member_killed_after_leave_lacks_nothing() -> Test {
    let mut cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(()); // its file has the seqno then
    }
    session(&cluster, 0)?.query("CREATE TABLE t (id INT PRIMARY KEY)")?;
    let path = cluster.servers[2].datadir().join("grastate.dat");
    let seqno = || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.lines().find_map(|l| l.strip_prefix("seqno:")).and_then(|v| v.trim().parse::<i64>().ok())
    };
    cluster.servers[2].query(&format!("SET GLOBAL {LAZY}"))?;
    let mut client = session(&cluster, 2)?;
    for id in 0..200 {
        client.query(&format!("INSERT INTO t VALUES ({id})"))?;
    }
    cluster.servers[2].query("SET GLOBAL wsrep_cluster_address = ''")?;
    assert!(cluster.servers[2].log().contains("left the cluster at"), "it has not left");
    assert_eq!(seqno(), Some(-1), "InnoDB is not closed yet");
    cluster.servers[2].kill();
    cluster.servers[2].start(&[])?;
    cluster.wait_size(3)?;
    assert_eq!(cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 200);
    // And after an orderly end it is there.
    cluster.servers[2].stop()?;
    assert!(seqno().is_some_and(|seqno| seqno > 200), "{:?}", seqno());
    cluster.servers[2].start(&[])?;
    cluster.wait_size(3)?;
    Ok(())
}
