//! An error in the program of one member's provider: its server serves nobody any more, and can be stopped.

use std::time::{Duration, Instant};

use lockstep_lab::Cluster;
use lockstep_local::LocalError;

use crate::fixture::{Kind, Test, alone, eventually, fails, kind, same, session, spec};

/// In the node's own thread, and in an applier after the server has accepted a view.
#[test]
fn member_after_panic_rejects_queries_and_stops() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // it has no such option
    }
    let _alone = alone();
    let mut spec = spec();
    // The server's default: nobody else is there to take what is left.
    spec.appliers = 1;
    let mut cluster = Cluster::start(&spec)?;
    cluster.servers[0]
        .client()?
        .run(&["CREATE DATABASE test", "CREATE TABLE test.t (id INT PRIMARY KEY)"])?;
    for (row, place) in ["node", "view"].into_iter().enumerate() {
        cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?;
        let mut client = session(&cluster, 1)?;
        client.query(&format!("SET GLOBAL wsrep_provider_options = 'debug.panic={place}'"))?;
        if place == "view" {
            cluster.servers[2].stop()?;
        }
        eventually("it is in no cluster", || {
            let status = cluster.servers[1].wsrep_status()?;
            Ok(status["wsrep_cluster_status"] != "Primary" && status["wsrep_ready"] == "OFF")
        })?;
        same("its state", cluster.servers[1].wsrep_status()?["wsrep_evs_state"].clone(), "CLOSED".into());
        // The session of before is closed with the cluster, or refused.
        let mut late = cluster.servers[1].client()?;
        fails(&mut late, "SELECT COUNT(*) FROM test.t", 1047)?;
        let log = cluster.servers[1].log();
        let said = |line: &str| {
            line.contains("an error in the program")
                && line.contains("this member leaves")
                && line.contains("start")
        };
        if !log.lines().any(said) {
            return Err(LocalError::Value(cluster.servers[1].log_tail(40)));
        }
        let began = Instant::now();
        cluster.servers[1].stop_within(Duration::from_secs(40))?;
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        eventually("the others go on", || {
            Ok(cluster.servers[0].query(&format!("REPLACE INTO test.t VALUES ({row})")).is_ok())
        })?;
        if place == "view" {
            cluster.servers[2].start(&[])?;
        }
        cluster.servers[1].start(&[])?;
        cluster.wait_size(3)?;
    }
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 2);
    cluster.stop()
}
