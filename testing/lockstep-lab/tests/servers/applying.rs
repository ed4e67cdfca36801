//! Members whose servers are to stay behind: paused, delayed, stopped at a point, or applying one after the other.

use std::time::{Duration, Instant};

use lockstep_lab::Cluster;
use lockstep_local::{LocalError, START_TIMEOUT, Server};

use crate::failover::{done, lockstep};
use crate::fixture::{Kind, Test, eventually, fails, kind, same, session, shared};

fn set(cluster: &Cluster, n: usize, options: &str) -> Test {
    cluster.servers[n].query(&format!("SET GLOBAL wsrep_provider_options='{options}'")).map(|_| ())
}

fn rows(cluster: &Cluster, n: usize) -> Result<i64, LocalError> {
    cluster.servers[n].client()?.number("SELECT COUNT(*) FROM test.a")
}

/// Waits until a server that was started is ready. Under an apply hold it is not Synced for others.
///
/// The time is that of every start. After a kill it has a recovery run for InnoDB's position, and the server's transfer scripts
/// here and at a donor, which confirms that the log is enough. The scripts start dozens of processes one after the other: with 30
/// runnable threads on two processors a start took 14 s. If the server's process ends, the error says so at once.
fn until_ready(server: &mut Server) -> Test {
    server.wait_for("is not ready", START_TIMEOUT, |server| {
        let status = server.wsrep_status().map_err(|error| error.to_string())?;
        let get = |name: &str| status.get(name).cloned().unwrap_or_default();
        match get("wsrep_ready").as_str() {
            "ON" => Ok(()),
            _ => Err(format!("{}, {}", get("wsrep_cluster_status"), get("wsrep_local_state_comment"))),
        }
    })
}

/// The third member is killed, and is ready again.
fn killed_and_back(cluster: &mut Cluster) -> Test {
    cluster.servers[2].kill();
    cluster.servers[2].spawn(&[])?;
    until_ready(&mut cluster.servers[2])
}

/// Three members, and a table with one row.
fn table(cluster: &Cluster) -> Test {
    session(cluster, 0)?.run(&["CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)"])?;
    same("the row", cluster.same_everywhere("SELECT COUNT(*) FROM test.a")?.number()?, 1);
    Ok(())
}

#[test]
fn paused_member_applies_nothing_after_restart() -> Test {
    let mut cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(());
    }
    table(&cluster)?;
    set(&cluster, 2, "apply.paused=yes")?;
    cluster.servers[0].query("INSERT INTO test.a VALUES (2)")?;
    eventually("it reports itself desynced", || {
        Ok(cluster.servers[2].wsrep_status()?["wsrep_local_state_comment"] == "Donor/Desynced")
    })?;
    same("rows there", rows(&cluster, 2)?, 1);
    // Its server refuses what could only wait.
    let mut there = cluster.servers[2].client()?;
    fails(&mut there, "INSERT INTO test.a VALUES (3)", 1180)?;
    assert!(cluster.servers[2].log().contains("this server rejects writes: an apply hold"));
    // The server has no better error for a statement; the line is there, though another one has just been.
    fails(&mut there, "CREATE TABLE test.b (id INT)", 1205)?;
    assert!(
        cluster.servers[2].log().contains("gets error 1205, a lock wait timeout. There was no lock wait")
    );

    // It is started so, after it has missed something, and serves its readers what it had.
    let n3 = &mut cluster.servers[2];
    let before = n3.wsrep_mut()?.provider_options.clone();
    n3.wsrep_mut()?.provider_options.push(("apply.paused".into(), "yes".into()));
    n3.stop()?;
    cluster.servers[0].query("INSERT INTO test.a VALUES (4)")?;
    let n3 = &mut cluster.servers[2];
    n3.write_config()?;
    n3.spawn(&[])?;
    n3.wsrep_mut()?.provider_options = before;
    until_ready(&mut cluster.servers[2])?;
    same("rows there", rows(&cluster, 2)?, 1);
    // For the others it is a voter like any: without it there would be no majority now.
    cluster.servers[1].stop()?;
    cluster.servers[0].query("INSERT INTO test.a VALUES (5)")?;
    same("rows there", rows(&cluster, 2)?, 1);
    set(&cluster, 2, "apply.paused=no")?;
    eventually("it has caught up", || Ok(rows(&cluster, 2)? == 4))?;
    cluster.servers[1].start(&[])?;
    let n3 = &cluster.servers[2];
    n3.write_config()?;
    cluster.wait_size(3)?;
    session(&cluster, 2)?.query("INSERT INTO a VALUES (6)")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.a")?.number()?, 5);
    Ok(())
}

#[test]
fn apply_delay_and_until_limit_applied_entries() -> Test {
    let cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(());
    }
    table(&cluster)?;
    set(&cluster, 2, "apply.delay=4s")?;
    let began = Instant::now();
    cluster.servers[0].query("INSERT INTO test.a VALUES (2)")?;
    std::thread::sleep(Duration::from_secs(2));
    same("rows there after 2 s", rows(&cluster, 2)?, 1);
    let said = done(&lockstep(&cluster.servers[2], &["status", "--json"])?)?;
    let own = said.split("\"name\":\"n3\"").last().unwrap_or_default();
    let lag = own.split("\"lag_seconds\":").nth(1).and_then(|rest| rest.split(',').next());
    let lag: f64 = lag.and_then(|text| text.parse().ok()).unwrap_or_default();
    assert!((1.0..4.0).contains(&lag), "lag_seconds = {lag} in {said}");
    eventually("it is there", || Ok(rows(&cluster, 2)? == 2))?;
    assert!(began.elapsed() >= Duration::from_secs(4), "{:?}", began.elapsed());
    set(&cluster, 2, "apply.delay=0")?;

    let mut first = cluster.servers[0].client()?;
    let last: i64 = first.status("wsrep_last_committed")?.parse().unwrap_or_default();
    let uuid = first.status("wsrep_cluster_state_uuid")?;
    set(&cluster, 2, &format!("apply.until={uuid}:{}", last + 2))?;
    first.run(&[
        "INSERT INTO test.a VALUES (3)",
        "INSERT INTO test.a VALUES (4)",
        "INSERT INTO test.a VALUES (5)",
    ])?;
    eventually("it has what is up to there", || Ok(rows(&cluster, 2)? == 4))?;
    std::thread::sleep(Duration::from_millis(500));
    same("rows there", rows(&cluster, 2)?, 4);
    assert!(cluster.servers[2].log().contains("apply.until: the server stops at seqno"));
    let wait = |more: &[&str]| lockstep(&cluster.servers[0], &[&["wait"], more].concat());
    same("n3 is waited for", wait(&["--timeout", "0.5"])?.status.code(), Some(3));
    same("up to there it has it", wait(&[&format!("{uuid}:{}", last + 2)])?.status.code(), Some(0));
    // A time, to the second: entries appended to the log up to then.
    set(&cluster, 2, "apply.until=none")?;
    same("n3 has it", wait(&["--member", "n3"])?.status.code(), Some(0));
    std::thread::sleep(Duration::from_millis(1100));
    let now = first.value("SELECT UTC_TIMESTAMP()")?;
    set(&cluster, 2, &format!("apply.until={now}"))?;
    std::thread::sleep(Duration::from_millis(1100));
    first.query("DELETE FROM test.a")?;
    eventually("it stands", || {
        Ok(cluster.servers[2].log().matches("apply.until: the server stops").count() > 1)
    })?;
    std::thread::sleep(Duration::from_millis(300));
    same("rows there", rows(&cluster, 2)?, 5);
    set(&cluster, 2, "apply.until=none")?;
    same("n3 has it", wait(&["--member", "n3"])?.status.code(), Some(0));
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.a")?.number()?, 0);
    cluster.servers[2].client()?.query("INSERT INTO test.a VALUES (6)")?;
    Ok(())
}

#[test]
fn apply_hold_survives_crash() -> Test {
    let mut cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(());
    }
    // By its present configuration: where that has changed since the start, it counts at the next one.
    cluster.servers[2].stop()?;
    cluster.servers[2].start(&[])?;
    cluster.wait_size(3)?;
    table(&cluster)?;
    // After a kill, entries that InnoDB had not flushed are held back, too. So wait until the row is flushed.
    std::thread::sleep(Duration::from_secs(2));
    set(&cluster, 2, "apply.paused=yes")?;
    cluster.servers[0].query("DELETE FROM test.a")?;
    for _ in 0..2 {
        killed_and_back(&mut cluster)?;
        std::thread::sleep(Duration::from_millis(500));
        same("rows there", rows(&cluster, 2)?, 1);
    }
    assert!(cluster.servers[2].log().contains("apply.paused is yes, as SET GLOBAL set it before this start"));
    let said = done(&lockstep(&cluster.servers[2], &["status"])?)?;
    assert!(said.contains("note: n3 has apply.paused=yes: set while it ran"), "{said}");
    // Reset to the configured value, the setting is no longer saved.
    set(&cluster, 2, "apply.paused=no")?;
    eventually("it has the statement", || Ok(rows(&cluster, 2)? == 0))?;
    killed_and_back(&mut cluster)?;
    cluster.wait_size(3)?;
    cluster.servers[0].query("INSERT INTO test.a VALUES (7)")?;
    eventually("it applies", || Ok(rows(&cluster, 2)? == 1))?;
    session(&cluster, 2)?.query("INSERT INTO a VALUES (8)").map(|_| ())
}

#[test]
fn delayed_member_killed_in_ddl_and_stream_recovers() -> Test {
    let mut cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(());
    }
    table(&cluster)?;
    set(&cluster, 2, "apply.delay=5s")?;
    let mut stream = session(&cluster, 0)?;
    stream.run(&[
        "CREATE TABLE b (id INT PRIMARY KEY, k INT)",
        "SET SESSION wsrep_trx_fragment_unit = 'rows', wsrep_trx_fragment_size = 10",
        "BEGIN",
        "INSERT INTO b SELECT seq, 1 FROM seq_1_to_200",
    ])?;
    cluster.servers[0].query("ALTER TABLE test.a ADD COLUMN c INT DEFAULT 7")?;
    cluster.servers[1].query("INSERT INTO test.a (id) VALUES (2)")?;
    // At the kill some of it is executed, and some is not.
    let steps = [1, 4].map(Duration::from_secs);
    for step in steps {
        std::thread::sleep(step);
        killed_and_back(&mut cluster)?;
    }
    stream.run(&["UPDATE b SET k = 2 WHERE id % 2 = 0", "COMMIT"])?;
    cluster.servers[1].query("INSERT INTO test.a (id) VALUES (3)")?;
    assert!(rows(&cluster, 2)? < 3, "it does not stay behind any more");
    set(&cluster, 2, "apply.delay=0")?;
    same("n3 has it", lockstep(&cluster.servers[0], &["wait", "--member", "n3"])?.status.code(), Some(0));
    let sums = cluster.same_everywhere("SELECT COUNT(*), SUM(c) FROM test.a")?.rows;
    same("rows", format!("{sums:?}"), format!("{:?}", [[Some("3"), Some("21")]]));
    same("streamed", cluster.same_everywhere("SELECT SUM(k) FROM test.b")?.number()?, 300);
    same("left", cluster.same_everywhere("SELECT COUNT(*) FROM mysql.wsrep_streaming_log")?.number()?, 0);
    session(&cluster, 2)?.query("DROP TABLE b").map(|_| ())
}

/// After `write`, `lockstep wait` at this member, with nothing said, while `meanwhile` is done: it ends well, and then
/// all three have these rows. Their reads wait for nothing.
fn waited_for(
    cluster: &Cluster,
    at: usize,
    due: i64,
    write: impl FnOnce() -> Test,
    meanwhile: impl FnOnce() -> Test,
) -> Test {
    let mut readers = (0..3).map(|n| cluster.servers[n].client()).collect::<Result<Vec<_>, _>>()?;
    for reader in &mut readers {
        reader.query("SET SESSION wsrep_sync_wait = 0")?;
    }
    write()?;
    std::thread::scope(|scope| {
        let wait = scope.spawn(move || -> Result<Vec<i64>, LocalError> {
            done(&lockstep(&cluster.servers[at], &["wait", "--timeout", "30"])?)?;
            readers.iter_mut().map(|reader| reader.number("SELECT COUNT(*) FROM test.a")).collect()
        });
        let outcome = meanwhile();
        let seen = wait.join().expect("a client")?;
        same("rows when it had waited", seen, vec![due; 3]);
        outcome
    })
}

#[test]
fn to_wait_means_for_what_was_acknowledged_anywhere() -> Test {
    let cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(());
    }
    table(&cluster)?;
    done(&lockstep(&cluster.servers[0], &["switchover", "--to", "n1"])?)?;
    let some = Duration::from_millis(300);
    let insert = |n: usize, id: i64| cluster.servers[n].query(&format!("INSERT INTO test.a VALUES ({id})"));
    // n3 hears of nothing, and does not know yet that it is alone: asked itself, it must not say that all is there.
    for (writer, due) in [(0, 2), (1, 3)] {
        let write = || {
            set(&cluster, 2, "gmcast.isolate=1")?;
            insert(writer, due).map(|_| ())
        };
        waited_for(&cluster, 2, due, write, || {
            std::thread::sleep(some);
            set(&cluster, 2, "gmcast.isolate=0")
        })?;
        eventually("it is Synced, and all see it", || {
            Ok(cluster.servers[2].wsrep_status()?["wsrep_local_state_comment"] == "Synced"
                && cluster.servers[0].wsrep_status()?["wsrep_cluster_size"] == "3")
        })?;
    }
    // Acknowledged before another member has it, so the leader's committed position is not the end of the log.
    set(&cluster, 0, "commit.policy=async")?;
    let resume = || [1, 2].into_iter().try_for_each(|n| cluster.servers[n].resume());
    let write = || {
        [1, 2].into_iter().try_for_each(|n| cluster.servers[n].pause())?;
        insert(0, 4).map(|_| ()).inspect_err(|_| drop(resume()))
    };
    let outcome = waited_for(&cluster, 0, 4, write, || {
        std::thread::sleep(some);
        resume()
    });
    set(&cluster, 0, "commit.policy=quorum")?;
    outcome
}

#[test]
fn apply_order_change_under_load_keeps_members_equal() -> Test {
    let cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(());
    }
    let mut first = session(&cluster, 0)?;
    for db in ["d1", "d2"] {
        first.run(&[
            &format!("CREATE OR REPLACE DATABASE {db}"),
            &format!("CREATE TABLE {db}.t (id INT PRIMARY KEY AUTO_INCREMENT, k INT)"),
        ])?;
    }
    for order in ["serial", "schema", "writeset"] {
        set(&cluster, 2, &format!("apply.order={order}"))?;
        std::thread::scope(|scope| {
            let load = |db: &'static str| {
                let server = &cluster.servers[0];
                scope.spawn(move || -> Test {
                    let mut client = server.client()?;
                    for k in 0..50 {
                        client.run(&[
                            &format!("INSERT INTO {db}.t (k) VALUES ({k})"),
                            &format!("UPDATE {db}.t SET k = k + 1 WHERE id % 7 = {}", k % 7),
                        ])?;
                    }
                    Ok(())
                })
            };
            [load("d1"), load("d2")].into_iter().try_for_each(|one| one.join().expect("a client"))
        })?;
        cluster.same_everywhere("CHECKSUM TABLE d1.t, d2.t")?;
    }
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM d1.t")?.number()?, 150);
    first.run(&["DROP DATABASE d1", "DROP DATABASE d2"])
}
