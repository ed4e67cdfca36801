//! A member's volume is put back to an older copy: it finds out that it has lost what it had acknowledged, and returns
//! under a new id.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lockstep_lab::Cluster;
use lockstep_local::{LocalError, Server};

use crate::fixture::{Kind, Test, alone, kind, same, session, spec};

fn copy(from: &Path, to: &Path) -> Test {
    let io = |source| LocalError::Io { what: "copy a data directory".into(), source };
    let output = Command::new("cp").arg("-a").arg(from).arg(to).output().map_err(io)?;
    match output.status.success() {
        true => Ok(()),
        false => Err(LocalError::Command {
            command: "cp -a".into(),
            output: String::from_utf8_lossy(&output.stderr).into_owned(),
        }),
    }
}

/// Puts the data directory back to the copy.
fn put_back(server: &Server, old: &Path) -> Test {
    std::fs::remove_dir_all(server.datadir())
        .map_err(|source| LocalError::Io { what: "remove a data directory".into(), source })?;
    copy(old, &server.datadir())
}

/// n2 has left in order, so n1 and n3 are the only voters, and n1 cannot lead without n3.
#[test]
fn last_other_voter_put_back_to_older_copy_loses_nothing() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // it has no votes on disk
    }
    let _alone = alone();
    let mut cluster = Cluster::start(&spec())?;
    cluster.servers[0]
        .client()?
        .run(&["CREATE DATABASE test", "CREATE TABLE test.t (id INT PRIMARY KEY)"])?;
    cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?;
    cluster.servers[2].kill();
    let old = cluster.servers[2].datadir().with_extension("old");
    copy(&cluster.servers[2].datadir(), &old)?;
    cluster.servers[2].start(&[])?;
    cluster.wait_size(3)?;
    cluster.servers[1].stop()?;
    for (n, first) in [(0, 0), (2, 1000)] {
        let mut client = session(&cluster, n)?;
        for id in first..first + 1000 {
            client.query(&format!("INSERT INTO t VALUES ({id})"))?;
        }
    }
    cluster.servers[2].kill();
    put_back(&cluster.servers[2], &old)?;
    cluster.servers[2].spawn(&[])?;
    cluster.servers[2].wait_ended(Duration::from_secs(60))?;
    let log = cluster.servers[2].log();
    assert!(log.contains("this member's log went back in time, as n1 knows"), "{}", cluster.log_tails(40));
    // As its unit starts it again.
    assert!(cluster.servers[2].is_started_again());
    cluster.servers[2].start(&[])?;
    assert!(cluster.servers[2].log().contains("It is set aside now, as lockstep.damaged.1.*"));
    cluster.servers[1].start(&[])?;
    cluster.wait_size(3)?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 2000);
    Ok(())
}

/// The files of a server's log, without what describes its database.
fn log_files(server: &Server) -> Result<Vec<PathBuf>, LocalError> {
    let io = |source| LocalError::Io { what: "list a data directory".into(), source };
    let entries = std::fs::read_dir(server.datadir()).map_err(io)?;
    let is_log = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name == "lockstep.id.log"
            || name.len() == "lockstep..log".len() + 16 && name.starts_with("lockstep.0")
    };
    Ok(entries.flatten().map(|entry| entry.path()).filter(is_log).collect())
}

/// The log of n3 alone is put back, and no other member runs that could tell it. Its database knows.
#[test]
fn log_put_back_below_its_database_does_not_vote() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // its log is not durable
    }
    let _alone = alone();
    let mut cluster = Cluster::start(&spec())?;
    cluster.servers[0]
        .client()?
        .run(&["CREATE DATABASE test", "CREATE TABLE test.t (id INT PRIMARY KEY)"])?;
    cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?;
    let old = cluster.servers[2].datadir().with_extension("old");
    let io = |source| LocalError::Io { what: "put a log back".into(), source };
    std::fs::create_dir(&old).map_err(io)?;
    // As it is while the server runs: the copy is of the same process as the later log.
    for file in log_files(&cluster.servers[2])? {
        copy(&file, &old)?;
    }
    let mut client = session(&cluster, 0)?;
    for id in 0..1000 {
        client.query(&format!("INSERT INTO t VALUES ({id})"))?;
    }
    cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?;
    cluster.servers.iter_mut().for_each(Server::kill);
    for file in log_files(&cluster.servers[2])? {
        std::fs::remove_file(&file).map_err(io)?;
    }
    for file in std::fs::read_dir(&old).map_err(io)?.flatten() {
        copy(&file.path(), &cluster.servers[2].datadir())?;
    }
    cluster.servers[2].spawn(&[])?;
    cluster.servers[2].wait_for("does not notice", Duration::from_secs(60), |server| {
        let is_noticed = server.log().contains("this member's log went back in time, as its database knows");
        is_noticed.then_some(()).ok_or_else(|| "no line".into())
    })?;
    // The others go on without it, and it returns as a new member.
    cluster.servers[1].spawn(&[])?;
    cluster.servers[0].start(&[])?;
    cluster.servers[1].wait_ready(Duration::from_secs(60))?;
    cluster.servers[2].wait_ended(Duration::from_secs(60))?;
    assert!(cluster.servers[2].is_started_again());
    cluster.servers[2].start(&[])?;
    assert!(cluster.servers[2].log().contains("It is set aside now, as lockstep.damaged.1.*"));
    cluster.wait_size(3)?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 1000);
    Ok(())
}

/// Every end of a server leaves a database that its log has: no start is taken for a log that went back in time.
#[test]
fn log_of_killed_or_joined_member_is_whole() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // its log is not durable
    }
    let _alone = alone();
    let mut cluster = Cluster::start(&spec())?;
    cluster.servers[0]
        .client()?
        .run(&["CREATE DATABASE test", "CREATE TABLE test.t (id INT PRIMARY KEY)"])?;
    let mark = |server: &Server| {
        let text = std::fs::read_to_string(server.datadir().join("grastate.dat")).unwrap_or_default();
        text.lines().find(|line| line.starts_with("# lockstep member: ")).map(str::to_owned)
    };
    let mut client = session(&cluster, 0)?;
    for round in 0..3 {
        for id in 0..100 {
            client.query(&format!("INSERT INTO t VALUES ({})", round * 100 + id))?;
        }
        cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?;
        assert!(cluster.servers.iter().all(|server| mark(server).is_some()), "after a state transfer, too");
        match round {
            0 => cluster.servers[2].kill(),
            1 => cluster.servers[2].stop()?,
            _ => {
                // A state transfer.
                cluster.servers[2].kill();
                std::fs::remove_file(cluster.servers[2].datadir().join("grastate.dat"))
                    .map_err(|source| LocalError::Io { what: "remove grastate.dat".into(), source })?;
            }
        }
        cluster.servers[2].start(&[])?;
        cluster.wait_size(3)?;
    }
    client.query("INSERT INTO t VALUES (1000)")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 301);
    cluster.servers[2].wait_for("does not follow its log", Duration::from_secs(10), |server| {
        mark(server).map(|_| ()).ok_or_else(|| "no mark".into())
    })?;
    cluster.servers.iter_mut().for_each(Server::kill);
    cluster.servers[1].spawn(&[])?;
    cluster.servers[2].spawn(&[])?;
    cluster.servers[0].start(&[])?;
    cluster.wait_size(3)?;
    for server in &cluster.servers {
        assert!(!server.log().contains("went back in time"), "{}", server.log_tail(40));
    }
    Ok(())
}
