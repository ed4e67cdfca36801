//! One healthy cluster, every kind of statement.

use std::time::{Duration, Instant};

use lockstep_local::LocalError;

use crate::fixture::{Test, eventually, fails, same, session, shared};

#[test]
fn write_on_any_member_is_read_on_all() -> Test {
    let cluster = shared()?;
    session(&cluster, 0)?.query("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")?;
    for writer in 0..3 {
        session(&cluster, writer)?.query(&format!("INSERT INTO t VALUES ({writer}, 'from {writer}')"))?;
        // Causal, so at once, without waiting.
        for reader in 0..3 {
            let seen = session(&cluster, reader)?.value(&format!("SELECT v FROM t WHERE id = {writer}"))?;
            same("what was just written", seen, format!("from {writer}"));
        }
    }
    let mut a = session(&cluster, 0)?;
    let mut b = session(&cluster, 2)?;
    for round in 1..=200 {
        a.query(&format!("UPDATE t SET v = {round} WHERE id = 0"))?;
        same("round trip of a causal read", b.number("SELECT v FROM t WHERE id = 0")?, round);
    }
    b.query("DELETE FROM t WHERE id = 1")?;
    same("rows after a delete", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 2);
    Ok(())
}

#[test]
fn first_committer_wins() -> Test {
    let cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    let mut b = session(&cluster, 1)?;
    a.run(&["CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 0), (2, 0)"])?;
    for first in [true, false] {
        let (winner, loser) = if first { (&mut a, &mut b) } else { (&mut b, &mut a) };
        winner.run(&["BEGIN", "UPDATE t SET v = v + 1 WHERE id = 1"])?;
        loser.run(&["BEGIN", "UPDATE t SET v = v + 100 WHERE id = 1"])?;
        winner.query("COMMIT")?;
        fails(loser, "COMMIT", 1213)?;
        loser.query("ROLLBACK")?;
    }
    // No conflict: different rows, and a read of the other's write.
    a.run(&["BEGIN", "UPDATE t SET v = 50 WHERE id = 1"])?;
    b.run(&["BEGIN", "UPDATE t SET v = 60 WHERE id = 2"])?;
    a.query("COMMIT")?;
    b.query("COMMIT")?;
    let rows = cluster.same_everywhere("SELECT v FROM test.t ORDER BY id")?;
    same("values", rows.rows, vec![vec![Some("50".into())], vec![Some("60".into())]]);

    // An insert of a key that another member inserted first.
    a.run(&["BEGIN", "INSERT INTO t VALUES (3, 1)"])?;
    b.run(&["BEGIN", "INSERT INTO t VALUES (3, 2)"])?;
    b.query("COMMIT")?;
    fails(&mut a, "COMMIT", 1213)?;
    a.query("ROLLBACK")?;
    same("the winner's row", cluster.same_everywhere("SELECT v FROM test.t WHERE id = 3")?.number()?, 2);
    Ok(())
}

#[test]
fn losing_autocommit_statement_is_retried() -> Test {
    let cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    a.run(&["CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 0)"])?;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|n| {
                let cluster = &*cluster;
                scope.spawn(move || -> Result<i64, LocalError> {
                    let mut client = session(cluster, n)?;
                    client.query("SET SESSION wsrep_retry_autocommit = 100")?;
                    for _ in 0..100 {
                        client.query("UPDATE t SET v = v + 1 WHERE id = 1")?;
                    }
                    Ok(100)
                })
            })
            .collect();
        let mut total = 0;
        for worker in workers {
            total += worker.join().expect("a worker panicked")?;
        }
        same("sum of all increments", cluster.same_everywhere("SELECT v FROM test.t")?.number()?, total);
        Ok(())
    })
}

#[test]
fn auto_increment_values_never_collide() -> Test {
    let cluster = shared()?;
    session(&cluster, 0)?
        .query("CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, node INT, KEY (node))")?;
    let mut offsets = Vec::new();
    for n in 0..3 {
        let mut client = session(&cluster, n)?;
        same("increment", client.number("SELECT @@auto_increment_increment")?, 3);
        offsets.push(client.number("SELECT @@auto_increment_offset")?);
    }
    offsets.sort_unstable();
    same("offsets", offsets, vec![1, 2, 3]);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|n| {
                let cluster = &*cluster;
                scope.spawn(move || -> Test {
                    let mut client = session(cluster, n)?;
                    for _ in 0..100 {
                        client.query(&format!("INSERT INTO t (node) VALUES ({n}), ({n})"))?;
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|w| w.join().expect("a worker panicked"))
    })?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 600);
    let classes = cluster.same_everywhere("SELECT COUNT(DISTINCT node, id % 3) FROM test.t")?;
    same("residue classes", classes.number()?, 3);
    Ok(())
}

#[test]
fn ddl_in_total_order_reaches_everybody() -> Test {
    let cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    let mut b = session(&cluster, 1)?;
    a.query("CREATE TABLE t (id INT PRIMARY KEY, v INT)")?;
    b.query("ALTER TABLE t ADD COLUMN w INT DEFAULT 7, ADD INDEX (v)")?;
    a.query("INSERT INTO t (id, v) VALUES (1, 1)")?;
    a.query("CREATE VIEW vw AS SELECT id, w FROM t")?;
    b.query("CREATE PROCEDURE p() INSERT INTO t (id, v) VALUES (2, 2)")?;
    session(&cluster, 2)?.query("CALL p()")?;
    b.query("CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW SET NEW.w = NEW.v * 10")?;
    a.query("INSERT INTO t (id, v) VALUES (3, 3)")?;
    session(&cluster, 2)?.query("CREATE USER IF NOT EXISTS reader@localhost")?;
    a.query("GRANT SELECT ON test.* TO reader@localhost")?;
    let rows = cluster.same_everywhere("SELECT GROUP_CONCAT(id, ':', w ORDER BY id) FROM test.vw")?;
    same("rows through the view", rows.value()?, "1:7,2:7,3:30");
    let grants = cluster.same_everywhere("SHOW GRANTS FOR reader@localhost")?;
    same("grants", grants.rows.len(), 2);
    a.query("DROP USER reader@localhost")?;

    // An open transaction that touches the table gives way to the statement in total order.
    let mut c = session(&cluster, 2)?;
    c.run(&["BEGIN", "UPDATE t SET v = 9 WHERE id = 1"])?;
    a.query("ALTER TABLE t ADD COLUMN x INT")?;
    cluster.same_everywhere("SELECT COUNT(x) FROM test.t")?;
    fails(&mut c, "COMMIT", 1213)?;
    c.query("ROLLBACK")?;

    // One that fails everywhere alike leaves everybody a member.
    fails(&mut b, "CREATE TABLE t (id INT)", 1050)?;
    fails(&mut b, "DROP TABLE nowhere", 1051)?;
    a.query("TRUNCATE TABLE t")?;
    same("rows after truncate", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 0);
    b.query("DROP TABLE t")?;
    same("members", a.status("wsrep_cluster_size")?, "3".into());
    Ok(())
}

#[test]
fn ddl_races_with_writes() -> Test {
    let cluster = shared()?;
    session(&cluster, 0)?.run(&[
        "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v INT)",
        "INSERT INTO t (v) VALUES (0)",
    ])?;
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for n in 0..3 {
            let cluster = &*cluster;
            workers.push(scope.spawn(move || -> Test {
                let mut client = session(cluster, n)?;
                for i in 0..120 {
                    match client.query(&format!("INSERT INTO t (v) VALUES ({i})")) {
                        Err(e) if e.sql_code() != Some(1213) => return Err(e),
                        _ => {}
                    }
                }
                Ok(())
            }));
        }
        let cluster = &*cluster;
        workers.push(scope.spawn(move || -> Test {
            for i in 0..8 {
                session(cluster, i % 3)?.query(&format!("ALTER TABLE t ADD COLUMN c{i} INT DEFAULT {i}"))?;
            }
            Ok(())
        }));
        workers.into_iter().try_for_each(|w| w.join().expect("a worker panicked"))
    })?;
    cluster.same_everywhere("SELECT COUNT(*), SUM(c0 + c7), MAX(id) FROM test.t")?;
    cluster.same_everywhere("CHECKSUM TABLE test.t")?;
    Ok(())
}

#[test]
fn ddl_rolls_over_the_members_one_by_one() -> Test {
    let cluster = shared()?;
    session(&cluster, 0)?
        .run(&["CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)"])?;
    let columns =
        "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema='test' AND table_name='t'";
    for n in 0..3 {
        let mut client = session(&cluster, n)?;
        client.run(&["SET SESSION wsrep_OSU_method = 'RSU'", "ALTER TABLE t ADD COLUMN w INT DEFAULT 5"])?;
        same("columns here", client.number(columns)?, 3);
        if n < 2 {
            same("columns elsewhere", session(&cluster, n + 1)?.number(columns)?, 2);
        }
        // Writes go on meanwhile, between old and new shapes.
        session(&cluster, (n + 1) % 3)?.query(&format!("INSERT INTO t (id, v) VALUES ({}, 1)", n + 2))?;
        eventually("synced again", || Ok(cluster.servers[n].client()?.status("wsrep_local_state")? == "4"))?;
    }
    let sum = cluster.same_everywhere("SELECT CONCAT(COUNT(*), ':', SUM(w)) FROM test.t")?;
    same("rows and sum", sum.value()?, "4:20");
    Ok(())
}

#[test]
fn foreign_keys_hold_on_every_member() -> Test {
    let cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    let mut b = session(&cluster, 1)?;
    a.run(&[
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        "CREATE TABLE child (id INT PRIMARY KEY, pid INT, FOREIGN KEY (pid) REFERENCES parent (id) ON DELETE CASCADE)",
        "INSERT INTO parent VALUES (1), (2), (3)",
        "INSERT INTO child VALUES (1, 1), (2, 1), (3, 2)",
    ])?;
    fails(&mut b, "INSERT INTO child VALUES (9, 99)", 1452)?;
    // A child for a parent that another member deletes: the later one loses, or there would be an orphan.
    a.run(&["BEGIN", "DELETE FROM parent WHERE id = 3"])?;
    b.run(&["BEGIN", "INSERT INTO child VALUES (4, 3)"])?;
    a.query("COMMIT")?;
    fails(&mut b, "COMMIT", 1213)?;
    b.query("ROLLBACK")?;
    // Two children of one parent do not conflict.
    a.run(&["BEGIN", "INSERT INTO child VALUES (5, 2)"])?;
    b.run(&["BEGIN", "INSERT INTO child VALUES (6, 2)"])?;
    a.query("COMMIT")?;
    b.query("COMMIT")?;
    session(&cluster, 2)?.query("DELETE FROM parent WHERE id = 1")?;
    let rows = cluster.same_everywhere("SELECT GROUP_CONCAT(id ORDER BY id) FROM test.child")?;
    same("children after the cascade", rows.value()?, "3,5,6");
    Ok(())
}

#[test]
fn tables_without_keys_replicate() -> Test {
    let cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    let mut b = session(&cluster, 1)?;
    a.query("CREATE TABLE t (v INT, w TEXT)")?;
    a.query("INSERT INTO t VALUES (1, 'x'), (1, 'x'), (2, NULL), (NULL, NULL)")?;
    b.query("UPDATE t SET w = 'y' WHERE v = 2")?;
    b.query("DELETE FROM t WHERE v = 1 LIMIT 1")?;
    a.query("INSERT INTO t SELECT seq, REPEAT('z', 50) FROM seq_10_to_500")?;
    let sum = cluster.same_everywhere("SELECT CONCAT(COUNT(*), ':', SUM(v), ':', COUNT(w)) FROM test.t")?;
    same("rows, sum, texts", sum.value()?, "494:125208:493");
    // Only a unique key that is not primary.
    a.query("CREATE TABLE u (k INT NOT NULL, v INT, UNIQUE (k))")?;
    a.query("INSERT INTO u VALUES (1, 1), (2, 2)")?;
    a.run(&["BEGIN", "UPDATE u SET v = 10 WHERE k = 1"])?;
    b.run(&["BEGIN", "UPDATE u SET v = 20 WHERE k = 1"])?;
    b.query("COMMIT")?;
    fails(&mut a, "COMMIT", 1213)?;
    a.query("ROLLBACK")?;
    same("the winner's", cluster.same_everywhere("SELECT v FROM test.u WHERE k = 1")?.number()?, 20);
    Ok(())
}

#[test]
fn flush_tables_with_read_lock_holds_one_member_still() -> Test {
    let cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    a.query("CREATE TABLE t (id INT PRIMARY KEY)")?;
    cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?;
    let mut still = cluster.servers[1].client()?;
    still.run(&["SET SESSION wsrep_sync_wait = 0", "FLUSH TABLES WITH READ LOCK"])?;
    let before = still.status("wsrep_last_committed")?;
    for id in 0..20 {
        a.query(&format!("INSERT INTO t VALUES ({id})"))?;
    }
    same("the others go on", session(&cluster, 2)?.number("SELECT COUNT(*) FROM t")?, 20);
    same("rows under the lock", still.number("SELECT COUNT(*) FROM test.t")?, 0);
    same("position under the lock", still.status("wsrep_last_committed")?, before);
    still.query("UNLOCK TABLES")?;
    same("rows after", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 20);
    Ok(())
}

#[test]
fn desynced_member_reports_state_and_resyncs() -> Test {
    let cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    let mut b = session(&cluster, 1)?;
    a.query("CREATE TABLE t (id INT PRIMARY KEY)")?;
    b.query("SET GLOBAL wsrep_desync = ON")?;
    same("state", b.status("wsrep_local_state_comment")?, "Donor/Desynced".into());
    same("state", b.status("wsrep_local_state")?, "2".into());
    for id in 0..50 {
        a.query(&format!("INSERT INTO t VALUES ({id})"))?;
    }
    b.query("INSERT INTO t VALUES (100)")?;
    same("it applies all the same", b.number("SELECT COUNT(*) FROM t")?, 51);
    b.query("SET GLOBAL wsrep_desync = OFF")?;
    eventually("synced again", || Ok(b.status("wsrep_local_state")? == "4"))?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 51);
    Ok(())
}

#[test]
fn session_waits_for_gtid() -> Test {
    let cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    let mut b = cluster.servers[2].client()?;
    b.query("SET SESSION wsrep_sync_wait = 0")?;
    a.query("CREATE TABLE t (id INT PRIMARY KEY)")?;
    // MariaDB's own form of GTID (domain-server-number), which the server derives from the provider's order.
    let parts = |gtid: &str| -> Vec<u64> { gtid.split('-').filter_map(|p| p.parse().ok()).collect() };
    let mut last = 0;
    for id in 1..=50 {
        a.query(&format!("INSERT INTO t VALUES ({id})"))?;
        let gtid = a.value("SELECT WSREP_LAST_WRITTEN_GTID()")?;
        let [9, _, number] = parts(&gtid)[..] else { panic!("not a GTID of domain 9: {gtid}") };
        assert!(number > last, "{gtid} comes after number {last}");
        last = number;
        same("waited", b.number(&format!("SELECT WSREP_SYNC_WAIT_UPTO_GTID('{gtid}', 10)"))?, 1);
        // The server lets the waiter go when the commit has its place, a moment before the rows show.
        eventually("the row shows", || Ok(b.number("SELECT COUNT(*) FROM test.t")? == id))?;
    }
    let written = parts(&a.value("SELECT WSREP_LAST_WRITTEN_GTID()")?);
    same("last seen there", parts(&b.value("SELECT WSREP_LAST_SEEN_GTID()")?), written.clone());

    // One that does not come: the wait ends in time, with an error.
    let far = format!("{}-{}-{}", written[0], written[1], written[2] + 1_000_000);
    let started = Instant::now();
    fails(&mut b, &format!("SELECT WSREP_SYNC_WAIT_UPTO_GTID('{far}', 1)"), 1205)?;
    let waited = started.elapsed();
    assert!(waited > Duration::from_millis(700) && waited < Duration::from_secs(5), "waited {waited:?}");
    fails(&mut b, "SELECT WSREP_SYNC_WAIT_UPTO_GTID('nonsense', 1)", 1941)?;
    Ok(())
}

#[test]
fn savepoints_and_rollbacks_leave_no_trace() -> Test {
    let cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    a.query("CREATE TABLE t (id INT PRIMARY KEY, v INT)")?;
    a.run(&["BEGIN", "INSERT INTO t VALUES (1, 1)", "SAVEPOINT s", "INSERT INTO t VALUES (2, 2)"])?;
    a.run(&["ROLLBACK TO SAVEPOINT s", "INSERT INTO t VALUES (3, 3)", "COMMIT"])?;
    a.run(&["BEGIN", "INSERT INTO t VALUES (4, 4)", "ROLLBACK"])?;
    // A statement that fails in the middle of a transaction undoes itself only.
    a.run(&["BEGIN", "INSERT INTO t VALUES (5, 5)"])?;
    fails(&mut a, "INSERT INTO t VALUES (6, 6), (1, 1)", 1062)?;
    a.query("COMMIT")?;
    // A session that ends in the middle takes its transaction with it.
    let mut gone = session(&cluster, 0)?;
    gone.run(&["BEGIN", "INSERT INTO t VALUES (7, 7)"])?;
    drop(gone);
    let rows = cluster.same_everywhere("SELECT GROUP_CONCAT(id ORDER BY id) FROM test.t")?;
    same("rows", rows.value()?, "1,3,5");
    Ok(())
}

#[test]
fn large_transactions_go_through() -> Test {
    let cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    a.query("CREATE TABLE t (id INT PRIMARY KEY, v MEDIUMTEXT)")?;
    // 50 MB in one transaction, in big rows; then very many small ones.
    a.query("INSERT INTO t SELECT seq, REPEAT(CHAR(65 + seq % 26), 1000000) FROM seq_1_to_50")?;
    let sum = cluster
        .same_everywhere("SELECT CONCAT(COUNT(*), ':', SUM(LENGTH(v)), ':', MD5(MAX(v))) FROM test.t")?;
    assert!(sum.value()?.starts_with("50:50000000:"), "{:?}", sum.rows);
    session(&cluster, 1)?.query("UPDATE t SET v = LEFT(v, 10)")?;
    a.query("CREATE TABLE s (id INT PRIMARY KEY, v INT)")?;
    a.query("INSERT INTO s SELECT seq, seq FROM seq_1_to_100000")?;
    session(&cluster, 2)?.query("DELETE FROM s WHERE id % 2 = 0")?;
    let sum = cluster.same_everywhere("SELECT CONCAT(COUNT(*), ':', SUM(v)) FROM test.s")?;
    same("rows and sum", sum.value()?, "50000:2500000000");
    // One above the server's own limit is refused, and harms nobody.
    a.query("SET GLOBAL wsrep_max_ws_size = 1048576")?;
    let refused = a.query("INSERT INTO t SELECT seq, REPEAT('x', 1000000) FROM seq_101_to_105");
    a.query("SET GLOBAL wsrep_max_ws_size = DEFAULT")?;
    match refused {
        Err(e) if e.sql_code().is_some() => {}
        other => panic!("a write-set over the limit: {other:?}"),
    }
    a.query("INSERT INTO t VALUES (200, 'after')")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 51);
    Ok(())
}

const FRAGMENTS: [&str; 2] =
    ["SET SESSION wsrep_trx_fragment_unit = 'rows'", "SET SESSION wsrep_trx_fragment_size = 10"];

#[test]
fn streaming_replication_commits() -> Test {
    let cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    a.query("CREATE TABLE t (id INT PRIMARY KEY, v INT)")?;
    a.run(&FRAGMENTS)?;
    a.query("BEGIN")?;
    for id in 0..105 {
        a.query(&format!("INSERT INTO t VALUES ({id}, {id})"))?;
    }
    // The fragments are on every member already, in the server's own table, while nobody sees the rows.
    let log = "SELECT COUNT(*) FROM mysql.wsrep_streaming_log";
    let mut other = session(&cluster, 1)?;
    assert!(other.number(log)? >= 10, "fragments on another member: {}", other.number(log)?);
    same("rows before commit", other.number("SELECT COUNT(*) FROM t")?, 0);
    a.query("COMMIT")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 105);
    same("left fragments", cluster.same_everywhere(log)?.number()?, 0);

    // By bytes and by statements too.
    a.run(&["SET SESSION wsrep_trx_fragment_unit = 'bytes'", "SET SESSION wsrep_trx_fragment_size = 10000"])?;
    a.query("INSERT INTO t SELECT seq, seq FROM seq_1000_to_9999")?;
    a.run(&[
        "SET SESSION wsrep_trx_fragment_unit = 'statements'",
        "SET SESSION wsrep_trx_fragment_size = 1",
    ])?;
    a.run(&["BEGIN", "UPDATE t SET v = 0 WHERE id < 50", "DELETE FROM t WHERE id = 50", "COMMIT"])?;
    let sum = cluster.same_everywhere("SELECT CONCAT(COUNT(*), ':', SUM(v)) FROM test.t")?;
    same("rows and sum", sum.value()?, "9104:49499685");
    same("left fragments", cluster.same_everywhere(log)?.number()?, 0);
    Ok(())
}

#[test]
fn streaming_replication_rolls_back() -> Test {
    let cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    let mut b = session(&cluster, 1)?;
    a.query("CREATE TABLE t (id INT PRIMARY KEY, v INT)")?;
    a.query("INSERT INTO t SELECT seq, 0 FROM seq_1_to_200")?;
    let log = "SELECT COUNT(*) FROM mysql.wsrep_streaming_log";
    // By its own will.
    a.run(&FRAGMENTS)?;
    a.run(&["BEGIN", "UPDATE t SET v = 1 WHERE id <= 100"])?;
    assert!(b.number(log)? > 0, "no fragment on the other member");
    a.query("ROLLBACK")?;
    eventually("fragments gone after a rollback", || Ok(b.number(log)? == 0))?;
    same("sum", cluster.same_everywhere("SELECT SUM(v) FROM test.t")?.number()?, 0);
    // Its rows are locked on every member: what another changes there has to wait or to lose, and what a commit
    // in total order takes away ends the streaming transaction.
    a.run(&["BEGIN", "UPDATE t SET v = 1 WHERE id <= 100"])?;
    b.query("SET SESSION wsrep_sync_wait = 0")?;
    b.query("SET SESSION innodb_lock_wait_timeout = 1")?;
    eventually("fragments on the other member", || Ok(b.number(log)? >= 10))?;
    fails(&mut b, "UPDATE t SET v = 2 WHERE id = 5", 1205)?;
    session(&cluster, 2)?.query("TRUNCATE TABLE t")?;
    fails(&mut a, "COMMIT", 1213)?;
    a.query("ROLLBACK")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 0);
    // By the end of its session.
    let mut gone = session(&cluster, 0)?;
    gone.run(&FRAGMENTS)?;
    gone.run(&["BEGIN", "INSERT INTO t SELECT seq, 0 FROM seq_1_to_100"])?;
    drop(gone);
    eventually("fragments gone after a disconnect", || Ok(b.number(log)? == 0))?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 0);
    Ok(())
}

#[test]
fn status_variables_are_there_and_true() -> Test {
    let cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    a.query("CREATE TABLE t (id INT PRIMARY KEY)")?;
    let before: i64 = a.status("wsrep_replicated")?.parse().unwrap_or(-1);
    let mut indices = Vec::new();
    let mut uuids = Vec::new();
    for id in 0..25 {
        a.query(&format!("INSERT INTO t VALUES ({id})"))?;
    }
    cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?;
    let after: i64 = a.status("wsrep_replicated")?.parse().unwrap_or(-1);
    assert!(before >= 0 && after >= before + 25, "wsrep_replicated went from {before} to {after}");
    let mut committed = Vec::new();
    for server in &cluster.servers {
        let status = server.wsrep_status()?;
        let get = |name: &str| status.get(name).cloned().unwrap_or_else(|| panic!("no {name}"));
        for (name, due) in [
            ("wsrep_connected", "ON"),
            ("wsrep_ready", "ON"),
            ("wsrep_cluster_size", "3"),
            ("wsrep_cluster_status", "Primary"),
            ("wsrep_local_state_comment", "Synced"),
            ("wsrep_provider_name", "Galera"),
            ("wsrep_desync_count", "0"),
        ] {
            same(name, get(name), due.to_owned());
        }
        for name in [
            "wsrep_local_commits",
            "wsrep_local_cert_failures",
            "wsrep_local_recv_queue",
            "wsrep_local_send_queue",
            "wsrep_flow_control_paused",
            "wsrep_flow_control_sent",
            "wsrep_flow_control_recv",
            "wsrep_cert_index_size",
            "wsrep_cert_deps_distance",
            "wsrep_apply_oooe",
            "wsrep_apply_window",
            "wsrep_commit_window",
            "wsrep_received",
            "wsrep_received_bytes",
            "wsrep_replicated_bytes",
            "wsrep_local_bf_aborts",
            "wsrep_local_replays",
            "wsrep_causal_reads",
            "wsrep_repl_keys",
            "wsrep_incoming_addresses",
            "wsrep_evs_state",
            "wsrep_gcomm_uuid",
            "wsrep_protocol_version",
            "wsrep_provider_version",
            "wsrep_cluster_conf_id",
            "wsrep_last_committed",
            "wsrep_local_cached_downto",
            "wsrep_thread_count",
        ] {
            get(name);
        }
        indices.push(get("wsrep_local_index"));
        uuids.push((get("wsrep_cluster_state_uuid"), get("wsrep_local_state_uuid")));
        committed.push(get("wsrep_last_committed"));
    }
    indices.sort();
    same("indices", indices, vec!["0".into(), "1".into(), "2".to_owned()]);
    assert!(uuids.iter().all(|u| u.0 == u.1 && *u == uuids[0]), "{uuids:?}");
    assert!(committed.iter().all(|c| *c == committed[0]), "{committed:?}");
    Ok(())
}
