//! Logs that are damaged or lost: the member comes back by itself, and nothing is lost. It has a new identity, unless the rest
//! of the log proves what it had.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_lab::Cluster;
use lockstep_local::{LocalError, START_TIMEOUT, Server};

use crate::fixture::{Kind, Test, alone, eventually, kind, same, shared, spec};
use crate::rejoin::{mark, others_see, unmark};
use crate::stress::{audit, bank_during, open_bank};

fn io(what: &str) -> impl Fn(std::io::Error) -> LocalError + '_ {
    move |source| LocalError::Io { what: what.into(), source }
}

/// The files of a member's log, the identity first.
fn log_files(dir: &Path) -> Result<Vec<PathBuf>, LocalError> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .map_err(io("list the log"))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let middle = name.strip_prefix("lockstep.").and_then(|n| n.strip_suffix(".log"));
            middle.is_some_and(|m| m == "id" || m.len() == 16)
        })
        .collect();
    files.sort_by_key(|path| (!path.ends_with("lockstep.id.log"), path.clone()));
    Ok(files)
}

fn flip(path: &Path, at: usize) -> Test {
    let mut bytes = std::fs::read(path).map_err(io("read a file of the log"))?;
    bytes[at] ^= 0x55;
    std::fs::write(path, bytes).map_err(io("write a file of the log"))
}

/// The member's identity as the status shows it.
fn identity(server: &Server) -> Result<Vec<u8>, LocalError> {
    let files = log_files(&server.datadir())?;
    let bytes = std::fs::read(&files[0]).map_err(io("read the identity"))?;
    Ok(bytes[24..40].to_vec())
}

/// A member saves the log's durable position once a second. It keeps its identity only if the damage begins below that
/// position.
const UNTIL_POSITION_IS_SAVED: Duration = Duration::from_secs(3);

/// What happens to the log of a member that was killed under load.
type Harm = fn(&Server) -> Test;

/// Damages the last segment in its midst. The records behind the damage prove where the log had ended.
pub(crate) fn in_the_midst(server: &Server) -> Test {
    flip(log_files(&server.datadir())?.last().expect("a log has files"), 20_000)
}

/// Nothing is left that says what the member had acknowledged.
pub(crate) fn of_the_identity(server: &Server) -> Test {
    std::fs::write(&log_files(&server.datadir())?[0], [0u8; 8192]).map_err(io("zero the identity"))
}

fn of_all(server: &Server) -> Test {
    log_files(&server.datadir())?
        .iter()
        .try_for_each(|path| std::fs::remove_file(path).map_err(io("remove a file of the log")))
}

fn comes_back_after(harms: &[Harm], keeps_its_id: bool) -> Test {
    let mut cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(()); // it has no such log
    }
    open_bank(&cluster)?;
    let mut done = 0;
    for harm in harms {
        mark(&cluster.servers[1])?;
        let before = identity(&cluster.servers[1])?;
        let sockets: Vec<_> = cluster.servers.iter().map(|s| s.config.socket()).collect();
        let (transfers, outcome) = bank_during(&sockets, 5, || {
            std::thread::sleep(UNTIL_POSITION_IS_SAVED);
            cluster.servers[1].kill();
            harm(&cluster.servers[1])?;
            cluster.servers[1].start(&[])
        });
        outcome?;
        done += transfers;
        cluster.wait_size(3)?;
        assert!(unmark(&cluster.servers[1])?, "the database was copied");
        let after = identity(&cluster.servers[1])?;
        same("it has kept its identity", before == after, keeps_its_id);
        eventually("it votes again", || {
            let (own, first) = (cluster.servers[1].log(), cluster.servers[0].log());
            Ok(match keeps_its_id {
                true => own.contains("this member's log is whole again"),
                false => first.contains("n2 has caught up and votes from now on"),
            })
        })?;
    }
    audit(&cluster, done, 3 * harms.len() as u64)
}

#[test]
fn member_with_log_damaged_near_end_keeps_its_id() -> Test {
    comes_back_after(&[in_the_midst], true)
}

#[test]
fn member_without_identity_returns_under_new_id() -> Test {
    comes_back_after(&[of_the_identity, of_all], false)
}

/// All die, and one of them has a damaged log: the majority of the others goes on.
#[test]
fn full_outage_with_one_damaged_log_loses_nothing() -> Test {
    let mut cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(());
    }
    open_bank(&cluster)?;
    let sockets: Vec<_> = cluster.servers.iter().map(|s| s.config.socket()).collect();
    let (done, ()) = bank_during(&sockets, 6, || {
        std::thread::sleep(Duration::from_secs(2));
        cluster.servers.iter_mut().for_each(Server::kill);
    });
    in_the_midst(&cluster.servers[0])?;
    for n in 0..3 {
        cluster.servers[n].spawn(&[])?;
    }
    cluster.wait_size(3)?;
    others_see(&cluster, &[])?;
    audit(&cluster, done, 6)
}

/// A member whose log is damaged is told to found a cluster: it waits for the others, and loses nothing.
#[test]
fn damaged_log_founds_no_cluster() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let (_alone, mut cluster) = (alone(), killed_cluster()?);
    let server = &mut cluster.servers[0];
    in_the_midst(server)?;
    let grastate = server.datadir().join("grastate.dat");
    let text = std::fs::read_to_string(&grastate).map_err(io("read grastate.dat"))?;
    std::fs::write(&grastate, text.replace("safe_to_bootstrap: 0", "safe_to_bootstrap: 1"))
        .map_err(io("write grastate.dat"))?;
    server.spawn(&["--wsrep-new-cluster"])?;
    eventually("it waits", || Ok(server.log().contains("waiting for a primary component")))?;
    assert!(server.log().contains("this member's log is damaged near its end"), "{}", server.log_tail(30));
    cluster.servers[1].spawn(&[])?;
    cluster.servers[2].spawn(&[])?;
    all_are_back(&mut cluster)
}

/// All die, and the logs of two are damaged: they vote for the third, which sends what they lack.
#[test]
fn majority_with_logs_damaged_near_end_returns_by_itself() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let (_alone, mut cluster) = (alone(), killed_cluster()?);
    let ids = cluster.servers.iter().map(identity).collect::<Result<Vec<_>, _>>()?;
    for n in [0, 1] {
        in_the_midst(&cluster.servers[n])?;
    }
    for server in &mut cluster.servers {
        server.spawn(&[])?;
    }
    all_are_back(&mut cluster)?;
    let now = cluster.servers.iter().map(identity).collect::<Result<Vec<_>, _>>()?;
    same("identities", now, ids);
    for n in [0, 1] {
        let log = cluster.servers[n].log();
        let since = log.split_once("this member's log is damaged near its end").map(|(_, since)| since);
        assert!(since.is_some_and(|since| !since.contains("the state must be transferred")), "{log}");
    }
    Ok(())
}

const ROWS: i64 = 13;

/// Three members with [`ROWS`] rows that were killed.
fn killed_cluster() -> Result<Cluster, LocalError> {
    let mut spec = spec();
    spec.provider_options.push(("pc.wait_prim_timeout".into(), "PT5M".into()));
    let mut cluster = Cluster::start(&spec)?;
    let mut client = cluster.servers[0].client()?;
    client.run(&["CREATE DATABASE test", "CREATE TABLE test.t (id INT PRIMARY KEY, pad LONGBLOB)"])?;
    client.query("INSERT INTO test.t VALUES (1, REPEAT('x', 100000)), (2, '')")?;
    // The records of later syncs prove what was there, also where a member has deferred some.
    for id in 3..=ROWS {
        client.query(&format!("INSERT INTO test.t VALUES ({id}, '')"))?;
        std::thread::sleep(Duration::from_millis(20));
    }
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, ROWS);
    drop(client);
    std::thread::sleep(UNTIL_POSITION_IS_SAVED);
    cluster.servers.iter_mut().for_each(Server::kill);
    Ok(cluster)
}

fn all_are_back(cluster: &mut Cluster) -> Test {
    for server in &mut cluster.servers {
        server.wait_ready(START_TIMEOUT)?;
    }
    cluster.wait_size(3)?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, ROWS);
    cluster.servers[0].query("INSERT INTO test.t VALUES (100, '')")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, ROWS + 1);
    Ok(())
}

/// All die, and the old segments of all logs are damaged. Each member goes on with the rest of its log, as the voter that it
/// was, and no operator has to act.
#[test]
fn members_with_damaged_old_segments_keep_their_ids() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _alone = alone();
    let mut spec = spec();
    spec.provider_options.push(("log.segment".into(), "1M".into()));
    let mut cluster = Cluster::start(&spec)?;
    let mut client = cluster.servers[0].client()?;
    client.run(&["CREATE DATABASE test", "CREATE TABLE test.t (id INT PRIMARY KEY, pad LONGBLOB)"])?;
    for id in 0..20 {
        client.query(&format!("INSERT INTO test.t VALUES ({id}, REPEAT('x', 200000))"))?;
    }
    // Certification needs somewhat more than the last 2048 seqnos.
    for id in 100..4100 {
        client.query(&format!("INSERT INTO test.t VALUES ({id}, '')"))?;
    }
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 4020);
    std::thread::sleep(UNTIL_POSITION_IS_SAVED);
    mark(&cluster.servers[1])?;
    let ids = cluster.servers.iter().map(identity).collect::<Result<Vec<_>, _>>()?;
    for server in &mut cluster.servers {
        server.kill();
    }
    for server in &cluster.servers {
        let files = log_files(&server.datadir())?;
        assert!(files.len() > 4, "a log of several segments: {files:?}");
        flip(&files[1], 20_000)?;
    }
    for server in &mut cluster.servers {
        server.spawn(&[])?;
    }
    for server in &mut cluster.servers {
        server.wait_ready(START_TIMEOUT)?;
    }
    cluster.wait_size(3)?;
    let now = cluster.servers.iter().map(identity).collect::<Result<Vec<_>, _>>()?;
    same("identities", now, ids);
    for server in &cluster.servers {
        assert!(
            server
                .log()
                .contains("the old part of this member's log is damaged: lockstep.0000000000000001.log"),
            "{}",
            server.log_tail(40)
        );
        assert!(server.datadir().join("lockstep.damaged.1.0000000000000001.log").exists());
        assert!(!server.datadir().join("lockstep.damaged.1.id.log").exists());
    }
    assert!(unmark(&cluster.servers[1])?, "the database was copied");
    cluster.servers[2].query("INSERT INTO test.t VALUES (5000, '')")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 4021);
    Ok(())
}
