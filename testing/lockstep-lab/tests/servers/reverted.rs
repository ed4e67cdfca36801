//! A member's volume is put back to an older copy: it finds out that it has lost what it had acknowledged, and returns
//! under a new id.

use std::path::Path;
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
