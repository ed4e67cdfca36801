//! Coming from Galera, and going back: one provider takes the data directories of the other over.

use std::path::Path;
use std::time::Duration;

use lockstep_lab::{Cluster, ClusterSpec};
use lockstep_local::{LocalError, Server};

use crate::fixture::{GALERA, Kind, Test, alone, kind, provider, same, session, spec};

/// What a server's `grastate.dat` says under this name.
fn saved(server: &Server, name: &str) -> String {
    let text = std::fs::read_to_string(server.datadir().join("grastate.dat")).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix(name)).map(|v| v.trim().to_owned()).unwrap_or_default()
}

fn seqno(server: &Server) -> i64 {
    saved(server, "seqno:").parse().unwrap_or(-1)
}

/// The stopped members get another provider; the first one, which was stopped last, founds a cluster from its data, and
/// the others join. History and seqnos go on.
fn change_provider(cluster: &mut Cluster, provider: &Path) -> Test {
    let (history, at) = (saved(&cluster.servers[0], "uuid:"), seqno(&cluster.servers[0]));
    assert!(at > 0, "the last one to stop does not say where it stands");
    assert!(cluster.servers[1..].iter().all(|other| seqno(other) <= at), "another one has more");
    same("safe_to_bootstrap", saved(&cluster.servers[0], "safe_to_bootstrap:"), "1".into());
    let file = cluster.bench().dir().join("provider.so");
    cluster.bench().installation().copy_provider(provider, &file)?;
    cluster.bootstrap()?;
    for n in 0..3 {
        let mut client = session(cluster, n)?;
        same("history", client.status("wsrep_cluster_state_uuid")?, history.clone());
        let now: i64 = client.status("wsrep_last_committed")?.parse().unwrap_or(-1);
        assert!(now > at && now < at + 20, "n{} is at {now}, the old cluster ended at {at}", n + 1);
    }
    Ok(())
}

fn write(cluster: &Cluster, who: &str) -> Test {
    for n in 0..3 {
        session(cluster, n)?.query(&format!("INSERT INTO t VALUES ('{who}', {n})"))?;
    }
    Ok(())
}

#[test]
fn from_galera_and_back_and_again() -> Test {
    if kind() == Kind::Galera || !Path::new(GALERA).exists() {
        return Ok(()); // there is only one provider to try
    }
    let _alone = alone();
    let lockstep = provider();
    let galera = ClusterSpec { provider: GALERA.into(), ..spec() };
    let mut cluster = Cluster::start(&galera)?;
    cluster.servers[0].client()?.query("CREATE DATABASE IF NOT EXISTS test")?;
    session(&cluster, 0)?.query("CREATE TABLE t (who VARCHAR(20), n INT, PRIMARY KEY (who, n))")?;
    write(&cluster, "galera")?;
    cluster.stop()?;

    change_provider(&mut cluster, &lockstep)?;
    write(&cluster, "lockstep")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 6);
    cluster.stop()?;

    change_provider(&mut cluster, Path::new(GALERA))?;
    write(&cluster, "galera again")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 9);
    cluster.stop()?;

    // The logs of the first time lie there still, and end where Galera went on: they are not for these data.
    let file = cluster.bench().dir().join("provider.so");
    let io = |source| LocalError::Io { what: "move the logs away".into(), source };
    cluster.bench().installation().copy_provider(&lockstep, &file)?;
    cluster.servers[0].spawn(&["--wsrep-new-cluster"])?;
    cluster.servers[0].wait_ended(Duration::from_secs(60))?;
    let log = cluster.servers[0].log();
    assert!(log.contains("they went on without it"), "{}", cluster.servers[0].log_tail(20));
    assert!(seqno(&cluster.servers[0]) > 0, "the refused start has lost the position");
    for server in &cluster.servers {
        for entry in std::fs::read_dir(server.datadir()).map_err(io)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with("lockstep.") {
                std::fs::remove_file(entry.path()).map_err(io)?;
            }
        }
    }
    change_provider(&mut cluster, &lockstep)?;
    write(&cluster, "lockstep again")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 12);
    cluster.same_everywhere("CHECKSUM TABLE test.t")?;
    Ok(())
}

/// Galera's servers die; one of them is chosen, as one does with Galera, and its database keeps its history.
#[test]
fn crashed_galera_member_founds_cluster_at_its_position() -> Test {
    if kind() == Kind::Galera || !Path::new(GALERA).exists() {
        return Ok(()); // there is only one provider to try
    }
    let _alone = alone();
    let galera = ClusterSpec { provider: GALERA.into(), members: 1, ..spec() };
    let mut cluster = Cluster::start(&galera)?;
    cluster.servers[0].client()?.query("CREATE DATABASE IF NOT EXISTS test")?;
    session(&cluster, 0)?.query("CREATE TABLE t (who VARCHAR(20), n INT, PRIMARY KEY (who, n))")?;
    session(&cluster, 0)?.query("INSERT INTO t VALUES ('galera', 1)")?;
    let history = session(&cluster, 0)?.status("wsrep_cluster_state_uuid")?;
    let at: i64 = session(&cluster, 0)?.status("wsrep_last_committed")?.parse().unwrap_or(-1);
    cluster.servers[0].kill();
    same("seqno of grastate.dat", seqno(&cluster.servers[0]), -1);
    let file = cluster.bench().dir().join("provider.so");
    cluster.bench().installation().copy_provider(&provider(), &file)?;
    cluster.bootstrap()?;
    let mut client = session(&cluster, 0)?;
    same("history", client.status("wsrep_cluster_state_uuid")?, history);
    let now: i64 = client.status("wsrep_last_committed")?.parse().unwrap_or(-1);
    same("seqno: the first view comes next", now, at + 1);
    same("rows", client.number("SELECT COUNT(*) FROM t")?, 1);
    Ok(())
}

/// Galera's members stop one after the other while clients write, and the one that stopped first founds the cluster.
#[test]
fn member_ahead_of_founder_takes_state_transfer() -> Test {
    if kind() == Kind::Galera || !Path::new(GALERA).exists() {
        return Ok(()); // there is only one provider to try
    }
    let _alone = alone();
    let galera = ClusterSpec { provider: GALERA.into(), ..spec() };
    let mut cluster = Cluster::start(&galera)?;
    cluster.servers[0].client()?.query("CREATE DATABASE IF NOT EXISTS test")?;
    session(&cluster, 0)?.query("CREATE TABLE t (who VARCHAR(20), n INT, PRIMARY KEY (who, n))")?;
    write(&cluster, "galera")?;
    cluster.servers[0].stop()?;
    for n in 10..20 {
        session(&cluster, 1)?.query(&format!("INSERT INTO t VALUES ('lost', {n})"))?;
    }
    cluster.servers[2].stop()?;
    cluster.servers[1].stop()?;
    let at = seqno(&cluster.servers[0]);
    assert!(at > 0 && seqno(&cluster.servers[1]) > at + 10 && seqno(&cluster.servers[2]) > at + 9);
    let file = cluster.bench().dir().join("provider.so");
    cluster.bench().installation().copy_provider(&provider(), &file)?;
    // It says where it stands, and not that others go on by themselves.
    cluster.servers[0].spawn(&["--wsrep-new-cluster"])?;
    cluster.servers[0].wait_ended(Duration::from_secs(60))?;
    let log = cluster.servers[0].log();
    assert!(log.contains(&format!(":{at}; the others' are in their grastate.dat")), "{log}");
    assert!(!log.contains("goes on by itself"), "{log}");
    let path = cluster.servers[0].datadir().join("grastate.dat");
    let io = |source| LocalError::Io { what: "edit grastate.dat".into(), source };
    let text = std::fs::read_to_string(&path).map_err(io)?;
    std::fs::write(&path, text.replace("safe_to_bootstrap: 0", "safe_to_bootstrap: 1")).map_err(io)?;
    cluster.servers[0].start(&["--wsrep-new-cluster"])?;
    // The seqnos that the others have for other transactions are given again, and more.
    for n in 0..30 {
        session(&cluster, 0)?.query(&format!("INSERT INTO t VALUES ('lockstep', {n})"))?;
    }
    for n in [1, 2] {
        cluster.servers[n].start(&[])?;
        let log = cluster.servers[n].log();
        let why = format!("but this cluster was founded on data at seqno {at}");
        assert!(log.contains(&why), "{}", cluster.servers[n].log_tail(40));
    }
    cluster.wait_size(3)?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 33);
    cluster.same_everywhere("CHECKSUM TABLE test.t")?;
    // Once it has the cluster's data its file says so, and a lost log is no reason for a copy.
    cluster.servers[2].stop()?;
    for entry in std::fs::read_dir(cluster.servers[2].datadir()).map_err(io)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("lockstep.") {
            std::fs::remove_file(entry.path()).map_err(io)?;
        }
    }
    let said = |cluster: &Cluster| cluster.servers[2].log().matches("the state must be transferred").count();
    let before = said(&cluster);
    cluster.servers[2].start(&[])?;
    cluster.wait_size(3)?;
    same("copies", said(&cluster), before);
    cluster.same_everywhere("CHECKSUM TABLE test.t")?;
    Ok(())
}
