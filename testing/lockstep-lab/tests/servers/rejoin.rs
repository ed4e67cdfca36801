//! Members that go and come back, while the others work.

use std::time::Duration;

use lockstep_lab::Cluster;
use lockstep_local::{LocalError, START_TIMEOUT, Server, SstMethod};

use crate::fixture::{Kind, Test, eventually, kind, same, session, shared};
use crate::stress::{audit, bank_during, open_bank};

/// A database that only this member has. A state transfer of the whole database takes it away, one from the log
/// leaves it: so it tells which of them happened, whatever the provider.
pub(crate) fn mark(server: &Server) -> Test {
    server.client()?.run(&["SET SESSION wsrep_on = OFF", "CREATE DATABASE only_here"])
}

/// Whether the mark is still there; it is removed.
pub(crate) fn unmark(server: &Server) -> Result<bool, LocalError> {
    let mut client = server.client()?;
    let there = client.query("SHOW DATABASES LIKE 'only_here'")?.rows.len() == 1;
    client.run(&["SET SESSION wsrep_on = OFF", "DROP DATABASE IF EXISTS only_here"])?;
    Ok(there)
}

/// Waits until all members but those that are gone have a view of the others.
pub(crate) fn others_see(cluster: &Cluster, gone: &[usize]) -> Test {
    let size = cluster.servers.len() - gone.len();
    for (n, server) in cluster.servers.iter().enumerate() {
        if !gone.contains(&n) {
            eventually("the others notice", || {
                Ok(server.client()?.status("wsrep_cluster_size")? == size.to_string())
            })?;
        }
    }
    Ok(())
}

#[test]
fn stopped_member_rejoins_by_log() -> Test {
    let mut cluster = shared()?;
    session(&cluster, 0)?.query("CREATE TABLE t (id INT PRIMARY KEY, v INT)")?;
    session(&cluster, 2)?.query("INSERT INTO t VALUES (0, 0)")?;
    mark(&cluster.servers[2])?;
    let running = std::fs::read_to_string(cluster.servers[2].datadir().join("grastate.dat"));
    assert!(running.is_ok_and(|text| text.contains("seqno:   -1")), "a running member's grastate.dat");
    cluster.servers[2].stop()?;
    others_see(&cluster, &[2])?;

    let state =
        std::fs::read_to_string(cluster.servers[2].datadir().join("grastate.dat")).unwrap_or_default();
    let history = session(&cluster, 0)?.status("wsrep_cluster_state_uuid")?;
    let field = |name: &str| {
        state.lines().find_map(|l| l.strip_prefix(name)).map(|v| v.trim().to_owned()).unwrap_or_default()
    };
    same("uuid of grastate.dat", field("uuid:"), history);
    same("safe_to_bootstrap of grastate.dat", field("safe_to_bootstrap:"), "0".into());
    let stopped_at: i64 = field("seqno:").parse().unwrap_or(-1);
    let now: i64 = session(&cluster, 0)?.status("wsrep_last_committed")?.parse().unwrap_or(-1);
    assert!(
        stopped_at > 0 && stopped_at <= now,
        "stopped at {stopped_at}, the others are at {now}:\n{state}"
    );

    for id in 1..=300 {
        session(&cluster, id % 2)?.query(&format!("INSERT INTO t VALUES ({id}, {id})"))?;
    }
    session(&cluster, 1)?.query("ALTER TABLE t ADD COLUMN w INT DEFAULT 3")?;
    session(&cluster, 0)?.query("UPDATE t SET w = 4 WHERE id < 100")?;
    cluster.servers[2].start(&[])?;
    cluster.wait_size(3)?;
    assert!(unmark(&cluster.servers[2])?, "the whole database was copied, though the log reaches back");
    same("sum", cluster.same_everywhere("SELECT SUM(v * w) FROM test.t")?.number()?, 140_400);
    Ok(())
}

#[test]
fn bootstrapped_member_rejoins_by_its_address() -> Test {
    let mut cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(()); // there the wish sticks until the server is started again
    }
    let list = cluster.servers[2].client()?.value("SELECT @@wsrep_cluster_address")?;
    let set = |cluster: &Cluster, address: &str| {
        // The server closes the sessions of its clients, this one perhaps among them.
        let _ = cluster.servers[2].query(&format!("SET GLOBAL wsrep_cluster_address = '{address}'"));
    };
    set(&cluster, "gcomm://");
    others_see(&cluster, &[2])?;
    assert!(cluster.servers[2].log().contains("may not be safe to bootstrap"), "it founded a cluster");
    set(&cluster, &list);
    cluster.wait_size(3)?;
    session(&cluster, 2)?.query("CREATE TABLE t (id INT PRIMARY KEY)")?;
    set(&cluster, "");
    others_see(&cluster, &[2])?;
    set(&cluster, &list);
    cluster.wait_size(3)?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 0);
    Ok(())
}

/// Its status variables show it, so that proxies can stop sending traffic.
#[test]
fn desync_survives_reconnect() -> Test {
    let cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(()); // there it is Synced, and the variable is ON
    }
    let list = cluster.servers[2].client()?.value("SELECT @@wsrep_cluster_address")?;
    cluster.servers[2].query("SET GLOBAL wsrep_desync = ON")?;
    let before = cluster.servers[2].log().len();
    // The server closes the sessions of its clients, this one perhaps among them.
    let _ = cluster.servers[2].query(&format!("SET GLOBAL wsrep_cluster_address = '{list}'"));
    eventually("it connects again", || Ok(cluster.servers[2].log_since(before).contains("connected as")))?;
    eventually("it lets clients in", || {
        let status = cluster.servers[2].wsrep_status();
        Ok(status.is_ok_and(|status| status["wsrep_ready"] == "ON" && status["wsrep_cluster_size"] == "3"))
    })?;
    session(&cluster, 2)?.query("CREATE TABLE t (id INT PRIMARY KEY)")?;
    let status = cluster.servers[2].wsrep_status()?;
    for (name, value) in [
        ("wsrep_ready", "ON"),
        ("wsrep_cluster_status", "Primary"),
        ("wsrep_local_state", "2"),
        ("wsrep_desync_count", "1"),
    ] {
        same(name, status[name].as_str(), value);
    }
    same("variable", cluster.servers[2].client()?.value("SELECT @@wsrep_desync")?, "1".into());
    cluster.servers[2].query("SET GLOBAL wsrep_desync = OFF")?;
    eventually("synced again", || Ok(cluster.servers[2].wsrep_status()?["wsrep_local_state"] == "4"))
}

#[test]
fn rolling_restart_under_load_loses_nothing() -> Test {
    let mut cluster = shared()?;
    open_bank(&cluster)?;
    let socket = cluster.servers[0].config.socket();
    let (done, outcome) = bank_during(&[socket], 3, || {
        [2, 1].into_iter().try_for_each(|n| {
            cluster.servers[n].stop()?;
            cluster.servers[n].start(&[])?;
            cluster.wait_size(3)
        })
    });
    outcome?;
    eprintln!("{done} transfers meanwhile");
    assert!(done > 50, "only {done} transfers: the restart stopped the others");
    audit(&cluster, done, 3)
}

#[test]
fn killed_member_rejoins() -> Test {
    let mut cluster = shared()?;
    open_bank(&cluster)?;
    let sockets = [cluster.servers[0].config.socket(), cluster.servers[1].config.socket()];
    let (done, outcome) = bank_during(&sockets, 4, || {
        std::thread::sleep(Duration::from_secs(1));
        cluster.servers[2].kill();
        others_see(&cluster, &[2])?;
        cluster.servers[2].start(&[])?;
        cluster.wait_size(3)
    });
    outcome?;
    eprintln!("{done} transfers meanwhile");
    audit(&cluster, done, 4)
}

#[test]
fn paused_member_delays_others_briefly() -> Test {
    let mut cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    a.query("CREATE TABLE t (id INT PRIMARY KEY)")?;
    cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?;
    cluster.servers[2].pause()?;
    let outcome = (0..50).try_for_each(|id| a.query(&format!("INSERT INTO t VALUES ({id})")).map(|_| ()));
    let outcome = outcome.and_then(|()| others_see(&cluster, &[2]));
    let outcome =
        outcome.and_then(|()| session(&cluster, 1)?.query("INSERT INTO t VALUES (100)").map(|_| ()));
    cluster.servers[2].resume()?;
    outcome?;
    cluster.wait_size(3)?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 51);
    Ok(())
}

/// Takes member 3's database away and lets it join again with these settings.
fn rejoin_empty(cluster: &mut Cluster, method: SstMethod, donor: &str) -> Test {
    session(cluster, 0)?.run(&[
        "CREATE TABLE t (id INT PRIMARY KEY, v TEXT)",
        "INSERT INTO t SELECT seq, REPEAT('x', 500) FROM seq_1_to_5000",
        "CREATE TABLE m (id INT) ENGINE=MyISAM",
        "CREATE FUNCTION f() RETURNS INT RETURN 5",
    ])?;
    cluster.servers[2].stop()?;
    let config = cluster.servers[2].config.clone();
    let datadir = config.datadir();
    let io = |source| LocalError::Io { what: "empty a data directory".into(), source };
    std::fs::remove_dir_all(&datadir).map_err(io)?;
    cluster.bench().installation().make_dir(&datadir, 0o755)?;
    if let Some(wsrep) = &mut cluster.servers[2].config.wsrep {
        wsrep.sst_method = method;
    }
    cluster.servers[2].config.extra.push(format!("wsrep_sst_donor={donor}"));
    let donor_log = cluster.servers[1].log().len();
    session(cluster, 0)?.query("INSERT INTO t VALUES (6000, 'meanwhile')")?;
    let outcome = cluster.servers[2].start(&[]).and_then(|()| cluster.wait_size(3));
    cluster.servers[2].config = config;
    outcome?;
    let script = format!("wsrep_sst_{} --role 'donor'", method.name());
    assert!(cluster.servers[1].log()[donor_log..].contains(&script), "n2 did not run `{script}`");
    session(cluster, 2)?.query("INSERT INTO t VALUES (6001, 'by the new one')")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 5002);
    cluster.same_everywhere("CHECKSUM TABLE test.t")?;
    same("the function", session(cluster, 2)?.number("SELECT f()")?, 5);
    Ok(())
}

#[test]
fn empty_member_joins_by_rsync_from_named_donor() -> Test {
    let mut cluster = shared()?;
    rejoin_empty(&mut cluster, SstMethod::Rsync, "n2")
}

#[test]
fn empty_member_joins_by_mariabackup() -> Test {
    let mut cluster = shared()?;
    open_bank(&cluster)?;
    let socket = cluster.servers[1].config.socket();
    let (done, outcome) =
        bank_during(&[socket], 1, || rejoin_empty(&mut cluster, SstMethod::Mariabackup, "n2"));
    outcome?;
    eprintln!("{done} transfers on the donor meanwhile");
    assert!(done > 20, "only {done} transfers on the donor");
    audit(&cluster, done, 1)
}

#[test]
fn open_fragments_survive_a_members_restart_elsewhere() -> Test {
    let mut cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    a.query("CREATE TABLE t (id INT PRIMARY KEY, v INT)")?;
    cluster.servers[2].stop()?;
    others_see(&cluster, &[2])?;
    a.run(&[
        "SET SESSION wsrep_trx_fragment_unit = 'rows'",
        "SET SESSION wsrep_trx_fragment_size = 10",
        "BEGIN",
    ])?;
    a.query("INSERT INTO t SELECT seq, 1 FROM seq_1_to_50")?;
    cluster.servers[2].start(&[])?;
    cluster.wait_size(3)?;
    a.query("INSERT INTO t SELECT seq, 1 FROM seq_51_to_100")?;
    a.query("COMMIT")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 100);
    let fragments = cluster.same_everywhere("SELECT COUNT(*) FROM mysql.wsrep_streaming_log")?;
    same("left fragments", fragments.number()?, 0);
    Ok(())
}

#[test]
fn fragments_of_a_killed_member_are_rolled_back() -> Test {
    let mut cluster = shared()?;
    let mut c = session(&cluster, 2)?;
    c.query("CREATE TABLE t (id INT PRIMARY KEY, v INT)")?;
    c.run(&[
        "SET SESSION wsrep_trx_fragment_unit = 'rows'",
        "SET SESSION wsrep_trx_fragment_size = 10",
        "BEGIN",
    ])?;
    c.query("INSERT INTO t SELECT seq, 1 FROM seq_1_to_50")?;
    let fragments = "SELECT COUNT(*) FROM mysql.wsrep_streaming_log";
    assert!(session(&cluster, 0)?.number(fragments)? > 0, "no fragment on another member");
    cluster.servers[2].kill();
    others_see(&cluster, &[2])?;
    eventually("fragments gone", || Ok(session(&cluster, 0)?.number(fragments)? == 0))?;
    // The rows are free again.
    session(&cluster, 1)?.query("INSERT INTO t VALUES (1, 2)")?;
    cluster.servers[2].start(&[])?;
    cluster.servers[2].wait_ready(START_TIMEOUT)?;
    cluster.wait_size(3)?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 1);
    same("left fragments", cluster.same_everywhere(fragments)?.number()?, 0);
    Ok(())
}
