//! Members with differing results vote, and the losing side leaves.
//!
//! The server reports errors of DDL only where `wsrep_ignore_apply_errors` does not make it ignore them.

use std::time::Duration;

use lockstep_lab::Cluster;
use lockstep_local::{LocalError, Server};

use crate::fixture::{Kind, Test, alone, eventually, fails, kind, same, session, spec};

fn strict() -> Result<Cluster, LocalError> {
    let mut spec = spec();
    spec.extra.push("wsrep_ignore_apply_errors=0".into());
    let cluster = Cluster::start(&spec)?;
    cluster.servers[0].query("CREATE DATABASE test")?;
    cluster.same_everywhere("SHOW CREATE DATABASE test")?;
    Ok(cluster)
}

/// Statements that only this server executes.
fn alone_there(server: &Server, statements: &[&str]) -> Test {
    let mut client = server.client()?;
    client.query("SET SESSION wsrep_on = OFF")?;
    client.run(statements)
}

fn sees(server: &Server, size: usize) -> Result<bool, LocalError> {
    let status = server.wsrep_status()?;
    Ok(status.get("wsrep_cluster_size") == Some(&size.to_string())
        && status.get("wsrep_ready").is_some_and(|v| v == "ON"))
}

/// The member is out, has said why, and comes back with the others' data.
fn left_and_comes_back(cluster: &mut Cluster, n: usize, said: &str) -> Test {
    for other in (0..3).filter(|at| *at != n) {
        eventually("the others go on without it", || sees(&cluster.servers[other], 2))?;
    }
    let server = &mut cluster.servers[n];
    let log = server.log();
    if !log.lines().any(|line| line.contains("ERROR") && line.contains(said)) {
        return Err(LocalError::Value(format!("it does not say [{said}]:\n{}", server.log_tail(30))));
    }
    server.kill();
    server.start(&[])?;
    cluster.wait_size(3)
}

#[test]
fn ddl_failing_on_one_member_is_voted_on() -> Test {
    let _alone = alone();
    let mut cluster = strict()?;
    alone_there(&cluster.servers[2], &["CREATE TABLE test.t (odd INT PRIMARY KEY)"])?;
    let mut client = session(&cluster, 0)?;
    client.query("CREATE TABLE t (id INT PRIMARY KEY)")?;
    client.query("INSERT INTO t VALUES (1)")?;
    left_and_comes_back(&mut cluster, 2, "Inconsistent by consensus on")?;
    let rows = cluster.same_everywhere("SELECT id FROM test.t")?.number()?;
    same("the row", rows, 1);
    // The evidence is in everybody's log.
    if kind() == Kind::Lockstep {
        let log = cluster.servers[0].log();
        assert!(log.lines().any(|l| l.contains("vote on seqno") && l.contains("success counts")), "{log}");
    }
    cluster.stop()
}

#[test]
fn ddl_succeeding_on_one_member_is_voted_on() -> Test {
    let _alone = alone();
    let mut cluster = strict()?;
    let mut client = session(&cluster, 0)?;
    client.query("CREATE TABLE t (id INT PRIMARY KEY)")?;
    cluster.same_everywhere("SHOW CREATE TABLE test.t")?;
    alone_there(&cluster.servers[1], &["DROP TABLE test.t"])?;
    // 1050: it exists, here and on n3, who agree that it fails; n2 makes it, and is the odd one.
    let began = std::time::Instant::now();
    fails(&mut client, "CREATE TABLE t (other INT PRIMARY KEY)", 1050)?;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    client.query("INSERT INTO t VALUES (1)")?;
    left_and_comes_back(&mut cluster, 1, "is inconsistent with group")?;
    let rows = cluster.same_everywhere("SELECT id FROM test.t")?.number()?;
    same("the row", rows, 1);
    cluster.stop()
}

#[test]
fn row_failing_on_two_members_wins_vote() -> Test {
    let _alone = alone();
    let mut cluster = strict()?;
    let mut client = session(&cluster, 0)?;
    client.query("CREATE TABLE t (id INT PRIMARY KEY, who CHAR(1))")?;
    cluster.same_everywhere("SHOW CREATE TABLE test.t")?;
    for n in [0, 1] {
        alone_there(&cluster.servers[n], &["INSERT INTO test.t VALUES (1, 'a')"])?;
    }
    cluster.servers[2].query("INSERT INTO test.t VALUES (1, 'b')")?;
    left_and_comes_back(&mut cluster, 2, "is inconsistent with group")?;
    let who = cluster.same_everywhere("SELECT who FROM test.t")?;
    same("what the many have", who.column("who")?, "a");
    cluster.stop()
}
