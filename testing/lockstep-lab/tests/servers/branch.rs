//! Going on without the majority, by an operator's order: `pc.bootstrap`, `lockstep bootstrap`.

use std::process::Command;
use std::time::Duration;

use lockstep_lab::Cluster;
use lockstep_local::{LocalError, START_TIMEOUT};

use crate::damage::of_the_identity;
use crate::fixture::{Kind, Test, alone, built, eventually, fails, kind, same, session, spec};
use crate::rejoin::{mark, others_see, unmark};

const BOOTSTRAP: &str = "SET GLOBAL wsrep_provider_options = 'pc.bootstrap=1'";

fn history(cluster: &Cluster, n: usize) -> Result<String, LocalError> {
    cluster.servers[n].client()?.status("wsrep_cluster_state_uuid")
}

fn rows(cluster: &Cluster, n: usize) -> Result<i64, LocalError> {
    session(cluster, n)?.query("SELECT COUNT(*) FROM test.t")?.number()
}

/// As a supervisor does: a member that ended is started again, until it is one of the cluster.
fn start_until_it_joins(cluster: &mut Cluster, n: usize, joined: &str) -> Test {
    for _ in 0..3 {
        cluster.servers[n].spawn(&[])?;
        match cluster.servers[n].wait_ready(START_TIMEOUT) {
            Ok(()) => {
                same("its history", history(cluster, n)?.as_str(), joined);
                return Ok(());
            }
            Err(LocalError::Exited { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Err(LocalError::Value(format!("{} does not join:\n{}", n + 1, cluster.servers[n].log_tail(40))))
}

#[test]
fn bootstrap_founds_branch_and_others_transfer_state() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _alone = alone();
    let mut cluster = Cluster::start(&spec())?;
    let mut c = cluster.servers[2].client()?;
    c.run(&[
        "CREATE DATABASE test",
        "CREATE TABLE test.t (id INT PRIMARY KEY)",
        "INSERT INTO test.t VALUES (1)",
    ])?;
    // A member of a primary component refuses the command.
    c.run(&[BOOTSTRAP])?;
    let before = history(&cluster, 2)?;
    same("its history", history(&cluster, 0)?, before.clone());
    cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?;
    cluster.servers[0].kill();
    cluster.servers[1].kill();
    eventually("it is non-Primary", || Ok(c.status("wsrep_cluster_status")? == "non-Primary"))?;
    fails(&mut c, "INSERT INTO test.t VALUES (2)", 1047)?;
    c.run(&[BOOTSTRAP])?;
    eventually("it is Primary", || {
        Ok(c.status("wsrep_cluster_status")? == "Primary" && c.status("wsrep_ready")? == "ON")
    })?;
    c.run(&["INSERT INTO test.t VALUES (3)", "CREATE TABLE test.u (id INT PRIMARY KEY)"])?;
    let after = history(&cluster, 2)?;
    assert_ne!(after, before, "another branch has another history");
    eventually("it is the only one", || Ok(c.status("wsrep_cluster_size")? == "1"))?;
    drop(c);
    // It comes back to it after a crash, by its own log.
    mark(&cluster.servers[2])?;
    cluster.servers[2].kill();
    cluster.servers[2].start(&[])?;
    assert!(unmark(&cluster.servers[2])?, "its data are its own");
    same("its history", history(&cluster, 2)?, after.clone());
    same("rows", rows(&cluster, 2)?, 2);
    // Both others at once: they must not form the majority of before.
    cluster.servers[0].spawn(&[])?;
    cluster.servers[1].spawn(&[])?;
    for n in [0, 1] {
        cluster.servers[n].wait_ended(Duration::from_secs(60))?;
        let log = cluster.servers[n].log();
        assert!(
            log.contains("was made to go on alone by an operator")
                && log.contains("server's process ends now, to join that branch"),
            "{}",
            cluster.servers[n].log_tail(40)
        );
    }
    for n in [0, 1] {
        start_until_it_joins(&mut cluster, n, &after)?;
    }
    cluster.wait_size(3)?;
    session(&cluster, 0)?.run(&["INSERT INTO test.t VALUES (4)"])?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 3);
    others_see(&cluster, &[])?;
    // The new cluster survives the loss of its founder.
    eventually("all vote", || {
        Ok(cluster.servers[2].log().matches("has caught up and votes from now on").count() >= 2)
    })?;
    cluster.servers[2].kill();
    let write = || session(&cluster, 0)?.query("REPLACE INTO test.t VALUES (5)");
    eventually("the others go on", || Ok(write().is_ok()))?;
    cluster.servers[2].start(&[])?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 4);
    Ok(())
}

/// All die, and a majority has lost its identities. No member votes on entries that it cannot vouch for, each reports its log,
/// and the operator lets the member with its log go on.
#[test]
fn majority_without_identities_is_reported_and_bootstrap_works() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _alone = alone();
    let mut spec = spec();
    spec.provider_options.push(("pc.wait_prim_timeout".into(), "PT5M".into()));
    let mut cluster = Cluster::start(&spec)?;
    let mut c = cluster.servers[0].client()?;
    c.run(&["CREATE DATABASE test", "CREATE TABLE test.t (id INT PRIMARY KEY, pad LONGBLOB)"])?;
    for id in 0..20 {
        c.query(&format!("INSERT INTO test.t VALUES ({id}, REPEAT('x', 50000))"))?;
    }
    cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?;
    for server in &mut cluster.servers {
        server.kill();
    }
    for n in [0, 1] {
        of_the_identity(&cluster.servers[n])?;
    }
    for server in &mut cluster.servers {
        server.spawn(&[])?;
    }
    let whole = &cluster.servers[2];
    let said = eventually("it says for whom it waits, and who is back without what it had", || {
        // In the order of their ids.
        let either =
            ["n1, n2", "n2, n1"].map(|names| format!("back without the logs that they had: {names}"));
        Ok(either.iter().any(|words| whole.log().contains(words)))
    });
    if said.is_err() {
        eprintln!("{}", cluster.log_tails(40));
    }
    said?;
    for n in [0, 1] {
        let log = cluster.servers[n].log();
        assert!(log.contains("cannot vouch for what it had acknowledged"), "{log}");
    }
    let socket = whole.datadir().join("lockstep.sock");
    let give = |path: &std::path::Path| {
        Command::new(built("lockstep"))
            .arg("bootstrap")
            .arg("--socket")
            .arg(path)
            .output()
            .expect("it starts")
    };
    // Not one of those that have lost theirs.
    let refused = give(&cluster.servers[0].datadir().join("lockstep.sock"));
    assert!(!refused.status.success(), "{refused:?}");
    let done = give(&socket);
    assert!(done.status.success(), "{done:?}");
    for server in &mut cluster.servers {
        server.wait_ready(START_TIMEOUT)?;
    }
    cluster.wait_size(3)?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 20);
    cluster.servers[1].query("INSERT INTO test.t VALUES (100, '')")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 21);
    Ok(())
}
