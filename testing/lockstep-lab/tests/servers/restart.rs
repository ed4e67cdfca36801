//! Outages of the whole cluster, and the positions that servers start from.

use std::process::Command;
use std::time::{Duration, Instant};

use lockstep_lab::Cluster;
use lockstep_local::{LocalError, START_TIMEOUT, Server};

use crate::fixture::{Kind, Test, eventually, kind, same, session, shared};
use crate::rejoin::{mark, unmark};
use crate::stress::{audit, bank_during, open_bank};

/// What Debian's unit runs before the server: prints the argument that names the recovered position.
fn galera_recovery(server: &Server) -> Result<String, LocalError> {
    let io = |source| LocalError::Io { what: "run galera_recovery".into(), source };
    let output = Command::new("galera_recovery")
        .arg(format!("--defaults-file={}", server.config.file("cnf").display()))
        .output()
        .map_err(io)?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() && text.starts_with("--wsrep_start_position=") {
        return Ok(text);
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(LocalError::Command { command: "galera_recovery".into(), output: format!("{text}\n{said}") })
}

/// Of `uuid:seqno`, which the server's own GTID may follow after a comma.
fn seqno(position: &str) -> i64 {
    position
        .split(',')
        .next()
        .unwrap_or_default()
        .rsplit(':')
        .next()
        .and_then(|s| s.parse().ok())
        .unwrap_or(i64::MIN)
}

#[test]
fn killed_member_starts_from_recovered_position() -> Test {
    let mut cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    a.query("CREATE TABLE t (id INT PRIMARY KEY)")?;
    for id in 0..50 {
        a.query(&format!("INSERT INTO t VALUES ({id})"))?;
    }
    cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?;
    mark(&cluster.servers[1])?;
    let at: i64 = cluster.servers[1].client()?.status("wsrep_last_committed")?.parse().unwrap_or(-1);
    cluster.servers[1].kill();
    for id in 50..100 {
        a.query(&format!("INSERT INTO t VALUES ({id})"))?;
    }
    let argument = galera_recovery(&cluster.servers[1])?;
    let history = a.status("wsrep_cluster_state_uuid")?;
    assert!(argument.contains(&history), "{argument} is not of the history {history}");
    same("recovered position", seqno(&argument), at);
    let same_again = cluster.servers[1].recover_position()?;
    same("a second recovery", seqno(&same_again), at);
    cluster.servers[1].start(&[&argument])?;
    cluster.wait_size(3)?;
    assert!(unmark(&cluster.servers[1])?, "the whole database was copied, though the position was given");
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 100);
    Ok(())
}

#[test]
fn cluster_starts_after_orderly_stop_of_all() -> Test {
    let mut cluster = shared()?;
    session(&cluster, 0)?.run(&["CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"])?;
    let history = session(&cluster, 1)?.status("wsrep_cluster_state_uuid")?;
    cluster.stop()?;
    for (n, server) in cluster.servers.iter().enumerate() {
        let state = std::fs::read_to_string(server.datadir().join("grastate.dat")).unwrap_or_default();
        let safe = if n == 0 { "safe_to_bootstrap: 1" } else { "safe_to_bootstrap: 0" };
        assert!(state.contains(safe), "{} has no `{safe}`:\n{state}", server.name());
        assert!(state.contains(&history), "{} has another history:\n{state}", server.name());
    }
    for (n, server) in cluster.servers.iter().enumerate() {
        server.query("SELECT 1").expect_err(&format!("server {n} answers after its stop"));
    }
    cluster.bootstrap()?;
    same("history", session(&cluster, 1)?.status("wsrep_cluster_state_uuid")?, history);
    session(&cluster, 2)?.query("INSERT INTO t VALUES (2)")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 2);
    Ok(())
}

/// Kills all servers while clients move money; how many transfers were acknowledged.
fn killed_under_load(cluster: &mut Cluster) -> u64 {
    let sockets: Vec<_> = cluster.servers.iter().map(|s| s.config.socket()).collect();
    let (done, ()) = bank_during(&sockets, 6, || {
        std::thread::sleep(Duration::from_secs(3));
        cluster.servers.iter_mut().for_each(Server::kill);
    });
    assert!(done > 100, "only {done} transfers before the outage");
    done
}

#[test]
fn after_a_full_outage_nothing_acknowledged_is_missing() -> Test {
    let mut cluster = shared()?;
    open_bank(&cluster)?;
    let done = killed_under_load(&mut cluster);
    match kind() {
        // Heals by itself, in any order, without a flag.
        Kind::Lockstep => {
            for n in [2, 0, 1] {
                cluster.servers[n].spawn(&[])?;
            }
        }
        // Needs a human, who looks for the member that has most and tells it to go first.
        Kind::Galera => {
            let mut positions = Vec::new();
            for server in &mut cluster.servers {
                positions.push(server.recover_position()?);
            }
            let first = (0..3).max_by_key(|n| seqno(&positions[*n])).unwrap_or(0);
            let path = cluster.servers[first].datadir().join("grastate.dat");
            let state = std::fs::read_to_string(&path).unwrap_or_default();
            let io = |source| LocalError::Io { what: "edit grastate.dat".into(), source };
            std::fs::write(&path, state.replace("safe_to_bootstrap: 0", "safe_to_bootstrap: 1"))
                .map_err(io)?;
            let argument = |n: usize| format!("--wsrep_start_position={}", positions[n]);
            cluster.servers[first].start(&["--wsrep-new-cluster", &argument(first)])?;
            for n in (0..3).filter(|n| *n != first) {
                cluster.servers[n].start(&[&argument(n)])?;
            }
        }
    }
    let began = Instant::now();
    eventually("a client writes again", || {
        let written = cluster.servers[0].query("UPDATE test.bank SET balance = balance + 0 WHERE id = 1");
        Ok(written.is_ok())
    })?;
    let gap = began.elapsed();
    println!("writable {:.1} s after the last start", gap.as_secs_f64());
    // Far more than it takes on a machine that has nothing else to do.
    assert!(kind() == Kind::Galera || gap < Duration::from_secs(15), "writable only after {gap:?}");
    for server in &mut cluster.servers {
        server.wait_ready(START_TIMEOUT)?;
    }
    cluster.wait_size(3)?;
    audit(&cluster, done, 6)
}

/// Galera's runbook after an outage: edit one member's `grastate.dat`, give it the flag, start the others.
#[test]
fn new_cluster_flag_after_full_outage_founds_no_second_history() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // there it founds the cluster anew
    }
    let mut cluster = shared()?;
    session(&cluster, 0)?.run(&["CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"])?;
    let history = session(&cluster, 1)?.status("wsrep_cluster_state_uuid")?;
    cluster.servers.iter_mut().for_each(Server::kill);
    let path = cluster.servers[1].datadir().join("grastate.dat");
    let io = |source| LocalError::Io { what: "edit grastate.dat".into(), source };
    let state = std::fs::read_to_string(&path).map_err(io)?;
    std::fs::write(&path, state.replace("safe_to_bootstrap: 0", "safe_to_bootstrap: 1")).map_err(io)?;
    cluster.servers[1].spawn(&["--wsrep-new-cluster"])?;
    eventually("the start says what it does", || {
        Ok(cluster.servers[1].log().contains("should found a new cluster (--wsrep-new-cluster), but"))
    })?;
    cluster.servers[0].spawn(&[])?;
    cluster.servers[2].spawn(&[])?;
    for server in &mut cluster.servers {
        server.wait_ready(START_TIMEOUT)?;
    }
    cluster.wait_size(3)?;
    same("history", session(&cluster, 1)?.status("wsrep_cluster_state_uuid")?, history);
    session(&cluster, 2)?.query("INSERT INTO t VALUES (2)")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 2);
    Ok(())
}

/// Machines that boot when they boot: longer apart than Galera's members, and the server's own start, wait for anything.
#[test]
#[ignore = "long: make servers-long; after_a_full_outage_nothing_acknowledged_is_missing is the short one"]
fn full_outage_members_wait_for_majority() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // a member that finds nobody for 30 s ends
    }
    let mut cluster = shared()?;
    for order in [[0, 1, 2], [2, 1, 0]] {
        session(&cluster, 0)?.query("DROP TABLE IF EXISTS bank, journal")?;
        open_bank(&cluster)?;
        let done = killed_under_load(&mut cluster);
        for (nth, n) in order.into_iter().enumerate() {
            cluster.servers[n].spawn(&[])?;
            if nth < 2 {
                std::thread::sleep(Duration::from_secs(35));
                assert!(cluster.servers[n].is_running(), "{}", cluster.servers[n].log_tail(40));
            }
        }
        for server in &mut cluster.servers {
            server.wait_ready(START_TIMEOUT)?;
        }
        cluster.wait_size(3)?;
        audit(&cluster, done, 6)?;
        session(&cluster, order[2])?.query("UPDATE bank SET balance = balance + 0 WHERE id = 1")?;
    }
    Ok(())
}
