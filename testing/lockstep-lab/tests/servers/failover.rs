//! An operator's commands to members of a cluster (`lockstep`), under load.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockstep_lab::Cluster;
use lockstep_local::{Client, LocalError, Server};

use crate::fixture::{Kind, Test, built, eventually, kind, same, session, shared};

/// Runs `lockstep`, with the socket of a member.
pub(crate) fn lockstep(at: &Server, args: &[&str]) -> Result<Output, LocalError> {
    let program = built("lockstep");
    Command::new(&program)
        .args(args)
        .arg("--socket")
        .arg(at.datadir().join("lockstep.sock"))
        .output()
        .map_err(|source| LocalError::Io { what: format!("run {}", program.display()), source })
}

/// What it printed; an error where it did not end with 0.
pub(crate) fn done(output: &Output) -> Result<String, LocalError> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(LocalError::Command { command: "lockstep".into(), output: text(&output.stderr) }),
    }
}

/// What it objected; fails the test where it did not.
pub(crate) fn objection(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    assert!(!output.status.success() && !text.is_empty(), "{output:?} should have failed");
    text
}

/// Inserts rows one by one until told to stop, connecting again after an error; the longest time between two that
/// succeeded.
fn insert_until(socket: &Path, stop: &AtomicBool, ids: &AtomicU64, acknowledged: &AtomicU64) -> Duration {
    let mut longest = Duration::ZERO;
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut client) = Client::connect(socket, "root", Duration::from_secs(5)) else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        while !stop.load(Ordering::Relaxed) {
            let id = ids.fetch_add(1, Ordering::Relaxed);
            if client.query(&format!("INSERT INTO test.gap VALUES ({id})")).is_err() {
                break;
            }
            acknowledged.fetch_add(1, Ordering::Relaxed);
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
    }
    longest.max(last.elapsed())
}

/// A client of each of these servers inserts into `test.gap`, from this id on, while `act` runs and for `margin` before and
/// after. The longest gap of each client, the number of acknowledged rows, and what `act` returned.
pub(crate) fn insert_during<T>(
    sockets: &[PathBuf],
    first: u64,
    margin: Duration,
    act: impl FnOnce() -> T,
) -> (Vec<Duration>, u64, T) {
    let (stop, ids, acknowledged) = (AtomicBool::new(false), AtomicU64::new(first), AtomicU64::new(0));
    let (gaps, outcome) = std::thread::scope(|scope| {
        let (stop, ids, acknowledged) = (&stop, &ids, &acknowledged);
        let insert = |socket| scope.spawn(move || insert_until(socket, stop, ids, acknowledged));
        let workers: Vec<_> = sockets.iter().map(|socket| insert(socket.as_path())).collect();
        std::thread::sleep(margin);
        let outcome = act();
        std::thread::sleep(margin);
        stop.store(true, Ordering::Relaxed);
        (workers.into_iter().map(|w| w.join().expect("a worker panicked")).collect(), outcome)
    });
    (gaps, acknowledged.into_inner(), outcome)
}

/// The longest gap that a client of any member sees while `act` is done.
fn gap_during(cluster: &Cluster, act: impl FnOnce() -> Test) -> Result<(Duration, u64), LocalError> {
    session(cluster, 0)?.run(&["CREATE OR REPLACE TABLE test.gap (id BIGINT PRIMARY KEY)"])?;
    let (gaps, acknowledged, outcome) = insert_during(&sockets(cluster), 0, Duration::from_millis(700), act);
    outcome.map(|()| (gaps.into_iter().max().unwrap_or_default(), acknowledged))
}

/// The servers' sockets for clients.
pub(crate) fn sockets(cluster: &Cluster) -> Vec<PathBuf> {
    cluster.servers.iter().map(|server| server.config.socket()).collect()
}

/// The first of the view, which proxies write to.
fn first_of_view(cluster: &Cluster) -> Result<String, LocalError> {
    for server in &cluster.servers {
        if server.client()?.status("wsrep_local_index")? == "0" {
            return Ok(server.name().to_owned());
        }
    }
    Err(LocalError::Value("no member is the first".into()))
}

#[test]
fn switchover_moves_leader_with_short_write_gap() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // it has no leader
    }
    let cluster = shared()?;
    let mut best = Duration::MAX;
    // Sent to each of the members in turn, leader or not.
    for (asked, to) in [(0, "n2"), (1, "n3"), (0, "n1")] {
        let mut said = String::new();
        let (gap, rows) = gap_during(&cluster, || {
            said = done(&lockstep(&cluster.servers[asked], &["switchover", "--to", to])?)?;
            Ok(())
        })?;
        eprintln!("{said}; longest gap {gap:?}, {rows} rows");
        assert!(said.starts_with(&format!("{to} leads in term ")), "{said}");
        assert!(said.contains("lists it first"), "{said}");
        same("the first of the view", first_of_view(&cluster)?.as_str(), to);
        let status = done(&lockstep(&cluster.servers[2], &["status", "--json"])?)?;
        assert!(status.contains(&format!("\"leader\":\"{to}\"")), "{status}");
        same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.gap")?.number()?, rows as i64);
        best = best.min(gap);
    }
    // On a busy machine one may be slow; not all three.
    assert!(best <= Duration::from_millis(300), "the shortest of three gaps was {best:?}");
    let said = done(&lockstep(&cluster.servers[1], &["switchover", "--to", "n1", "--json"])?)?;
    assert!(said.contains("\"ok\":true") && said.contains("n1 leads already"), "{said}");
    let said = objection(&lockstep(&cluster.servers[1], &["switchover", "--to", "db7"])?);
    assert!(said.contains("no member is named db7; there are n1, n2, n3"), "{said}");
    Ok(())
}

#[test]
fn remove_needs_force_for_live_member() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let mut cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    a.query("CREATE TABLE t (id INT PRIMARY KEY)")?;
    let said = objection(&lockstep(&cluster.servers[0], &["remove", "--name", "n3"])?);
    assert!(said.contains("n3 is connected"), "{said}");
    cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?;
    cluster.servers[2].kill();
    // Of three voters two are needed: with one more gone nobody writes; without the dead one in the count, n1 would
    // need n2 only.
    eventually("n3 is known to be gone", || Ok(a.status("wsrep_cluster_size")? == "2"))?;
    let said = done(&lockstep(&cluster.servers[1], &["remove", "--name", "n3"])?)?;
    assert!(said.starts_with("n3 is removed: 2 voters remain, and a commit needs 2 of them"), "{said}");
    let status = done(&lockstep(&cluster.servers[0], &["status"])?)?;
    assert!(!status.contains("n3"), "{status}");
    a.query("INSERT INTO t VALUES (1)")?;
    // Started again it joins as anybody would, by its log.
    cluster.servers[2].start(&[])?;
    cluster.wait_size(3)?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 1);
    eventually("it votes", || {
        let status = done(&lockstep(&cluster.servers[0], &["status"])?)?;
        Ok(status.contains("3 of 3 voters connected"))
    })?;
    // By force while it works: it is told, refuses, and comes back when it is started.
    let said = done(&lockstep(&cluster.servers[0], &["remove", "--name", "n3", "--force"])?)?;
    assert!(said.starts_with("n3 is removed"), "{said}");
    eventually("n3 refuses", || {
        Ok(cluster.servers[2].client()?.query("INSERT INTO test.t VALUES (9)").is_err())
    })?;
    a.query("INSERT INTO t VALUES (2)")?;
    let log = cluster.servers[2].log();
    assert!(log.contains("an operator has removed this member"), "{log}");
    cluster.servers[2].stop()?;
    cluster.servers[2].start(&[])?;
    cluster.wait_size(3)?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 2);
    Ok(())
}
