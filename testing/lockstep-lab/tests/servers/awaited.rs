//! A commit keeps waiting for its acknowledgements even if more than the 64 MiB of cached log follow it.

use std::time::Duration;

use lockstep_local::{Client, LocalError};

use crate::failover::{done, lockstep};
use crate::fixture::{Kind, Test, alone, eventually, kind, same};
use crate::policy::{insert_in_background, primary_and_replicas, set};

/// Rows of a megabyte that another client inserts.
const ROWS: i64 = 90;

#[test]
fn commit_waits_for_replica_beyond_cached_log() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let cluster = primary_and_replicas()?;
    cluster.servers[0].query("CREATE TABLE test.large (id BIGINT PRIMARY KEY, x LONGTEXT)")?;
    cluster.same_everywhere("SELECT COUNT(*) FROM test.large")?;
    set(&cluster, 0, "commit.policy=semisync")?;
    // Nobody is ahead of the primary: the highest is its own.
    let persisted = || -> Result<i64, LocalError> {
        let status = done(&lockstep(&cluster.servers[0], &["status", "--json"])?)?;
        let after = status.split("\"persisted\":").skip(1);
        let numbers = after.filter_map(|text| text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
        numbers.max().ok_or(LocalError::Value(status.clone()))
    };
    cluster.servers[1].pause()?;
    cluster.servers[2].pause()?;
    let small = insert_in_background(&cluster, 0, 1);
    std::thread::sleep(Duration::from_millis(300));
    let before = persisted()?;
    let mut large = Client::connect(&cluster.servers[0].config.socket(), "root", Duration::from_secs(60))?;
    let insert = format!("INSERT INTO test.large SELECT seq, REPEAT('x', 1000000) FROM test.seq_1_to_{ROWS}");
    large.send(&insert)?;
    // The primary votes alone: all of it is agreed on, in pieces of up to a MiB.
    eventually("more than memory holds is in the log", || Ok(persisted()? >= before + ROWS * 5 / 6))?;
    if let Ok(early) = small.recv_timeout(Duration::from_secs(2)) {
        return Err(LocalError::Value(format!("no replica has it: {early:?}")));
    }
    same("acknowledged", cluster.servers[0].client()?.status("wsrep_semi_sync_yes_tx")?.as_str(), "0");
    cluster.servers[1].resume()?;
    cluster.servers[2].resume()?;
    small.recv_timeout(Duration::from_secs(30)).map_err(|_| LocalError::Value("it still waits".into()))??;
    large.receive(&insert)?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.large")?.number()?, ROWS);
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?.number()?, 1);
    Ok(())
}
