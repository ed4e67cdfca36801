//! Clusters that are set up in another way than the shared one.

use lockstep_lab::Cluster;
use lockstep_local::{SstMethod, has_ipv6};

use crate::fixture::{Test, alone, eventually, same, session, spec, streaming_spec};

/// A cluster of two whose members know each other by `host` and listen on `listen`.
fn works_under(host: &str, listen: &str) -> Test {
    let mut spec = spec();
    spec.members = 2;
    spec.host = host.into();
    spec.listen = listen.into();
    let mut cluster = Cluster::start(&spec)?;
    let mut a = cluster.servers[0].client()?;
    a.run(&[
        "CREATE DATABASE test",
        "CREATE TABLE test.t (id INT PRIMARY KEY)",
        "INSERT INTO test.t VALUES (1)",
    ])?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 1);
    cluster.servers[1].stop()?;
    a.query("INSERT INTO test.t VALUES (2)")?;
    cluster.servers[1].start(&[])?;
    cluster.wait_size(2)?;
    session(&cluster, 1)?.query("INSERT INTO t VALUES (3)")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 3);
    Ok(())
}

#[test]
fn members_may_be_named_by_host() -> Test {
    let _alone = alone();
    works_under("localhost", "127.0.0.1")
}

#[test]
fn members_may_have_ipv6_addresses() -> Test {
    let _alone = alone();
    if !has_ipv6() {
        eprintln!("NOT TESTED: this machine has no IPv6 loopback");
        return Ok(());
    }
    works_under("::1", "::1")
}

#[test]
fn member_with_binlog_feeds_async_replica() -> Test {
    let _alone = alone();
    let mut spec = streaming_spec();
    spec.members = 2;
    spec.log_bin = true;
    spec.sst_method = SstMethod::Mariabackup;
    let mut cluster = Cluster::start(&spec)?;
    let mut a = cluster.servers[0].client()?;
    a.run(&[
        "CREATE DATABASE test",
        "CREATE USER repl@'127.0.0.1'",
        "GRANT REPLICATION SLAVE ON *.* TO repl@'127.0.0.1'",
        "CREATE TABLE test.t (id INT PRIMARY KEY, v INT)",
    ])?;
    let mut replica = cluster.bench().server("replica", 99)?;
    replica.start(&[])?;
    let mut reader = replica.client()?;
    let port = cluster.servers[0].config.sql_port;
    reader.run(&[
        &format!(
            "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, MASTER_USER='repl', \
             MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1"
        ),
        "START SLAVE",
    ])?;
    let mut b = session(&cluster, 1)?;
    for id in 0..200 {
        let writer = if id % 2 == 0 { &mut a } else { &mut b };
        writer.query(&format!("INSERT INTO test.t VALUES ({id}, {id})"))?;
    }
    b.query("ALTER TABLE t ADD COLUMN w INT DEFAULT 1")?;
    b.run(&["SET SESSION wsrep_trx_fragment_unit = 'rows'", "SET SESSION wsrep_trx_fragment_size = 10"])?;
    b.query("UPDATE t SET w = 2 WHERE id < 100")?;
    let all = "SELECT CONCAT(COUNT(*), ':', SUM(v), ':', SUM(w)) FROM test.t";
    same("on the members", cluster.same_everywhere(all)?.value()?, "200:19900:300");
    let check = |reader: &mut lockstep_local::Client, due: &str| {
        let outcome =
            eventually("the replica has it all", || Ok(reader.value(all).is_ok_and(|seen| seen == due)));
        if outcome.is_err() {
            let state = reader.query("SHOW SLAVE STATUS")?;
            panic!(
                "the replica lags: {:?} {:?}",
                state.column("Last_IO_Error"),
                state.column("Last_SQL_Error")
            );
        }
        Ok(())
    };
    check(&mut reader, "200:19900:300")?;

    // The member that feeds it goes and comes back; so does one by force.
    cluster.servers[0].stop()?;
    b.query("UPDATE t SET v = 0 WHERE id >= 100")?;
    cluster.servers[0].start(&[])?;
    cluster.wait_size(2)?;
    check(&mut reader, "200:4950:300")?;
    let binlog = session(&cluster, 0)?.value("SELECT @@gtid_binlog_pos")?;
    same("GTID of both members", session(&cluster, 1)?.value("SELECT @@gtid_binlog_pos")?, binlog);
    reader.query("STOP SLAVE")?;
    replica.stop()?;
    Ok(())
}
