//! Commit policies: the members that a commit waits for, changed while clients write.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockstep_lab::{Cluster, Writers};
use lockstep_local::{Client, LocalError};

use crate::failover::{done, lockstep};
use crate::fixture::{Kind, Test, alone, built, eventually, kind, same, session, shared, spec};

/// One option more, or several, of the provider.
pub(crate) fn set(cluster: &Cluster, n: usize, options: &str) -> Test {
    cluster.servers[n].query(&format!("SET GLOBAL wsrep_provider_options='{options}'")).map(|_| ())
}

/// Leadership goes to the first server.
pub(crate) fn first_leads(cluster: &Cluster) -> Test {
    let moved = || done(&lockstep(&cluster.servers[1], &["switchover", "--to", "n1"])?);
    moved().map(|_| ())
}

/// Three servers of a test's own, the first of which leads, with the table.
fn own_cluster() -> Result<Cluster, LocalError> {
    let cluster = Cluster::start(&spec())?;
    cluster.servers[0]
        .client()?
        .run(&["CREATE DATABASE IF NOT EXISTS test", "CREATE TABLE test.p (id BIGINT PRIMARY KEY)"])?;
    first_leads(&cluster)?;
    Ok(cluster)
}

/// Clients of one server that insert rows, each in a transaction of its own, while something is done.
pub(crate) struct Load {
    pub(crate) rows: u64,
    pub(crate) errors: Vec<String>,
    /// The longest time between two answers that any of them saw.
    pub(crate) gap: Duration,
}

pub(crate) fn load_during(
    cluster: &Cluster,
    n: usize,
    clients: usize,
    act: impl FnOnce() -> Test,
) -> Result<Load, LocalError> {
    let writers = Writers::start(&cluster.servers[n].config.socket(), "test.p", clients);
    std::thread::sleep(Duration::from_millis(300));
    let outcome = act();
    std::thread::sleep(Duration::from_millis(300));
    let end = writers.time();
    let written = writers.stop()?;
    outcome?;
    let errors = written.failures().into_iter().map(|(_, why)| why).collect();
    Ok(Load { rows: written.rows(), errors, gap: written.gaps(Duration::ZERO, end).one })
}

/// The duration of one insert; it must succeed.
fn timed_insert(cluster: &Cluster, n: usize, id: i64) -> Result<Duration, LocalError> {
    let mut client = cluster.servers[n].client()?;
    let began = Instant::now();
    client.query(&format!("INSERT INTO test.p VALUES ({id})"))?;
    Ok(began.elapsed())
}

/// Whether a member says that this policy is in force, and its server's variable shows it.
pub(crate) fn is_under(cluster: &Cluster, n: usize, policy: &str) -> Result<bool, LocalError> {
    let status = done(&lockstep(&cluster.servers[n], &["status", "--json"])?)?;
    let options = cluster.servers[n].query("SELECT @@wsrep_provider_options")?;
    let said = status.contains(&format!("\"policy\":\"{policy}\""));
    Ok(said && options.value()?.contains(&format!("commit.policy = {policy};")))
}

/// No client of a change waits for longer.
const STALL: Duration = Duration::from_millis(100);

/// Changes settings while clients write: none of their transactions fails, and none waits long. Of several changes the
/// median counts, each after an equally long time without a change. A machine that stalls too long to tell is reported,
/// and no more than twice the time without a change is accepted.
fn change_under_load(cluster: &Cluster, asked: usize, from: &str, to: &str) -> Result<i64, LocalError> {
    let (mut calm, mut changed, mut rows) = (Vec::new(), Vec::new(), 0);
    let quiet = |calm: &[Duration]| calm.iter().filter(|gap| **gap < STALL / 2).count();
    while changed.len() < 3 || changed.len() < 8 && quiet(&calm) < 3 {
        set(cluster, asked, from)?;
        let nothing = load_during(cluster, 0, 4, || Ok(()))?;
        let change = load_during(cluster, 0, 4, || set(cluster, asked, to))?;
        for load in [&nothing, &change] {
            same("failed transactions", load.errors.clone(), Vec::new());
            rows += load.rows as i64;
        }
        calm.push(nothing.gap);
        changed.push(change.gap);
    }
    let middle = |gaps: &mut Vec<Duration>| {
        gaps.sort_unstable();
        gaps[gaps.len() / 2]
    };
    let (calm, changed) = (middle(&mut calm), middle(&mut changed));
    eprintln!("to {to}: longest gap {changed:?}, without a change {calm:?}");
    if calm < STALL {
        assert!(changed <= STALL, "to {to}: clients waited for {changed:?}, without a change for {calm:?}");
    } else {
        eprintln!(
            "NOT TESTED: this machine stands still for {calm:?} without a change: 100 ms cannot be told on it"
        );
        assert!(
            changed <= 2 * calm,
            "to {to}: clients waited for {changed:?}, without a change for {calm:?}"
        );
    }
    Ok(rows)
}

#[test]
fn policy_change_under_load_fails_no_transaction() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let cluster = shared()?;
    first_leads(&cluster)?;
    set(&cluster, 0, "commit.policy=quorum")?;
    session(&cluster, 0)?.query("CREATE TABLE p (id BIGINT PRIMARY KEY)")?;
    let mut rows = 0;
    // Any member accepts the change; the leader appends it, and all members have it.
    for (asked, policy) in [(0, "all"), (1, "semisync"), (2, "async"), (0, "quorum")] {
        let other = if policy == "quorum" { "all" } else { "quorum" };
        let (from, to) = (format!("commit.policy={other}"), format!("commit.policy={policy}"));
        rows += change_under_load(&cluster, asked, &from, &to)?;
        for n in 0..3 {
            eventually("every member shows it", || is_under(&cluster, n, policy))?;
        }
        same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?.number()?, rows);
    }
    // And a member's own options.
    set(&cluster, 0, "commit.policy=semisync")?;
    for (asked, name, from, to) in
        [(0, "acks", "1", "2"), (1, "ack_on", "persist", "receive"), (2, "timeout", "0", "2s")]
    {
        let (from, to) = (format!("commit.{name}={from}"), format!("commit.{name}={to}"));
        rows += change_under_load(&cluster, asked, &from, &to)?;
        set(&cluster, asked, &from)?;
    }
    set(&cluster, 0, "commit.policy=quorum")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?.number()?, rows);
    Ok(())
}

#[test]
fn policy_all_waits_for_every_member_of_view() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let mut cluster = shared()?;
    first_leads(&cluster)?;
    set(&cluster, 0, "commit.policy=quorum")?;
    session(&cluster, 0)?.query("CREATE TABLE p (id BIGINT PRIMARY KEY)")?;
    cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?;
    cluster.servers[2].pause()?;
    let quorum = timed_insert(&cluster, 0, 1)?;
    assert!(quorum <= Duration::from_millis(1500), "two of three are a majority: {quorum:?}");
    cluster.servers[2].resume()?;
    cluster.wait_size(3)?;

    set(&cluster, 0, "commit.policy=all")?;
    for (n, id) in [(0, 2), (1, 3)] {
        cluster.servers[2].pause()?;
        let all = timed_insert(&cluster, n, id)?;
        // The view has its place behind the commit that waited.
        let size = || cluster.servers[n].client()?.status("wsrep_cluster_size");
        eventually("it is out of the view", || Ok(size()? == "2"))?;
        let after = timed_insert(&cluster, n, id + 100)?;
        cluster.servers[2].resume()?;
        eprintln!("one member stopped: under quorum {quorum:?}, under all {all:?}, without it {after:?}");
        assert!(all >= Duration::from_millis(500), "nobody waited for the one that stood: {all:?}");
        assert!(all <= Duration::from_secs(20) && after <= Duration::from_secs(2), "{all:?}, {after:?}");
        cluster.wait_size(3)?;
    }
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?.number()?, 5);
    set(&cluster, 0, "commit.policy=quorum")?;
    Ok(())
}

/// An insert on another thread: when it is done, how long it took.
pub(crate) fn insert_in_background(
    cluster: &Cluster,
    n: usize,
    id: i64,
) -> std::sync::mpsc::Receiver<Result<Duration, LocalError>> {
    let (told, done) = std::sync::mpsc::channel();
    let socket = cluster.servers[n].config.socket();
    std::thread::spawn(move || {
        let insert = || -> Result<Duration, LocalError> {
            let mut client = Client::connect(&socket, "root", Duration::from_secs(30))?;
            let began = Instant::now();
            client.query(&format!("INSERT INTO test.p VALUES ({id})"))?;
            Ok(began.elapsed())
        };
        let _ = told.send(insert());
    });
    done
}

/// It is not done within a second, and is once `act` has happened.
fn waits_for(cluster: &Cluster, id: i64, act: impl FnOnce() -> Test) -> Result<Duration, LocalError> {
    let insert = insert_in_background(cluster, 0, id);
    if let Ok(early) = insert.recv_timeout(Duration::from_secs(1)) {
        return Err(LocalError::Value(format!("it should have waited: {early:?}")));
    }
    act()?;
    let late = insert.recv_timeout(Duration::from_secs(20));
    late.map_err(|_| LocalError::Value("it still waits".into()))?
}

/// A primary that is a majority by itself, two replicas without a vote, and an empty table.
pub(crate) fn primary_and_replicas() -> Result<Cluster, LocalError> {
    let mut cluster = Cluster::prepare(&spec())?;
    for server in &mut cluster.servers[1..] {
        server.wsrep_mut()?.provider_options.push(("member.vote".into(), "no".into()));
    }
    cluster.bootstrap()?;
    cluster.servers[0]
        .client()?
        .run(&["CREATE DATABASE IF NOT EXISTS test", "CREATE TABLE test.p (id BIGINT PRIMARY KEY)"])?;
    cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?;
    Ok(cluster)
}

#[test]
fn semisync_falls_back_with_warning_and_returns() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let mut cluster = primary_and_replicas()?;
    let status =
        |n: usize, name: &str| cluster.servers[n].client()?.status(&format!("wsrep_semi_sync_{name}"));
    let primary = |name: &str| status(0, name);
    set(&cluster, 0, "commit.policy=semisync")?;
    for n in 0..3 {
        eventually("it is on, for two", || Ok(status(n, "status")? == "ON" && status(n, "clients")? == "2"))?;
    }
    let refused = cluster.servers[1].query("INSERT INTO test.p VALUES (1000)");
    let code = refused.err().and_then(|e| e.sql_code());
    eprintln!("a replica refuses with {code:?}");
    assert!(
        code.is_some_and(|code| ![1213, 1205].contains(&code)),
        "nobody may take it for a deadlock: {code:?}"
    );
    let log = cluster.servers[1].log();
    assert!(log.contains("only the leader, n1, may write: connect to it"), "{log}");

    // The nearest is enough; with nobody there it waits, for ever.
    cluster.servers[2].pause()?;
    let one = timed_insert(&cluster, 0, 1)?;
    assert!(one <= Duration::from_millis(500), "one of two is enough: {one:?}");
    cluster.servers[1].pause()?;
    let waited = waits_for(&cluster, 2, || cluster.servers[1].resume())?;
    eprintln!("the nearest there: {one:?}, away for a second: {waited:?}");
    // Two: the nearest is not enough.
    set(&cluster, 0, "commit.acks=2")?;
    waits_for(&cluster, 3, || cluster.servers[2].resume())?;
    eventually("both are back", || Ok(primary("clients")? == "2"))?;
    same("fallbacks", primary("no_times")?.as_str(), "0");

    // With a timeout it goes on without them, and says so.
    set(&cluster, 0, "commit.acks=1; commit.timeout=300ms")?;
    // Status is published five times a second.
    std::thread::sleep(Duration::from_millis(500));
    let before: i64 = primary("yes_tx")?.parse().unwrap_or_default();
    cluster.servers[1].pause()?;
    cluster.servers[2].pause()?;
    let first = timed_insert(&cluster, 0, 4)?;
    let second = timed_insert(&cluster, 0, 5)?;
    eprintln!("no replica: the first commit took {first:?}, the next one {second:?}");
    assert!(first >= Duration::from_millis(250) && first <= Duration::from_secs(3), "{first:?}");
    assert!(second <= Duration::from_millis(250), "it does not wait again: {second:?}");
    eventually("it has fallen back", || Ok(primary("status")? == "OFF" && primary("no_tx")? == "2"))?;
    same("fallbacks", primary("no_times")?.as_str(), "1");
    // The primary votes alone, so that both are agreed on; but nobody else has them.
    let at_risk = || primary("at_risk").map(|risk| risk.parse::<i64>().unwrap_or(-1));
    eventually("both are at risk", || Ok(at_risk()? >= 2))?;
    same("missing", primary("missing")?.as_str(), "n2,n3");
    let log = cluster.servers[0].log();
    let said = "semisync has fallen back to async: not acknowledged within commit.timeout (0.3 s) by n2 (zone 0), n3 (zone 0). \
                What is committed now may be lost with the leader: no other member acknowledges it";
    assert!(log.contains(said), "{log}");
    cluster.servers[1].resume()?;
    cluster.servers[2].resume()?;
    eventually("it is back", || Ok(primary("status")? == "ON"))?;
    eventually("nothing is at risk", || Ok(at_risk()? == 0))?;
    same("missing", primary("missing")?.as_str(), "");
    let log = cluster.servers[0].log();
    assert!(log.contains("no longer fallen back"), "{log}");
    timed_insert(&cluster, 0, 6)?;
    eventually("it is counted", || Ok(primary("yes_tx")?.parse() == Ok(before + 1)))?;
    cluster.wait_size(3)?;

    // One of two is killed, and two are asked for: all that are left show the fallback, and the return.
    set(&cluster, 0, "commit.acks=2")?;
    // A replica that stood still may have heard of the first fallback and of its end at once: then it has not seen it.
    let no_times = |cluster: &Cluster, n: usize| -> Result<i64, LocalError> {
        let shown = cluster.servers[n].client()?.status("wsrep_semi_sync_no_times")?;
        Ok(shown.parse().unwrap_or(-1))
    };
    let seen = [no_times(&cluster, 0)?, no_times(&cluster, 1)?];
    cluster.servers[2].kill();
    let killed = timed_insert(&cluster, 0, 7)?;
    eprintln!("a replica killed: the commit took {killed:?}");
    // Earlier entries may have begun to wait before it.
    assert!(killed <= Duration::from_secs(3), "{killed:?}");
    let status =
        |n: usize, name: &str| cluster.servers[n].client()?.status(&format!("wsrep_semi_sync_{name}"));
    for (n, before) in seen.into_iter().enumerate() {
        eventually("it is seen", || {
            let (on, clients) = (status(n, "status")?, status(n, "clients")?);
            Ok(on == "OFF" && clients == "1" && no_times(&cluster, n)? == before + 1)
        })?;
    }
    cluster.servers[2].start(&[])?;
    let status =
        |n: usize, name: &str| cluster.servers[n].client()?.status(&format!("wsrep_semi_sync_{name}"));
    for n in 0..3 {
        eventually("it is back", || Ok(status(n, "status")? == "ON" && status(n, "clients")? == "2"))?;
    }
    let last = timed_insert(&cluster, 0, 8)?;
    assert!(last <= Duration::from_millis(300), "{last:?}");
    same("fallbacks", status(0, "no_times")?.as_str(), "2");
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?.number()?, 8);
    Ok(())
}

#[test]
fn promoted_replica_takes_over_from_lost_primary() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let mut cluster = primary_and_replicas()?;
    let voters = |cluster: &Cluster, n: usize| -> Result<usize, LocalError> {
        let status = done(&lockstep(&cluster.servers[n], &["status", "--json"])?)?;
        Ok(status.matches("\"role\":\"voter\"").count() + status.matches("\"role\":\"leader\"").count())
    };
    same("voters", voters(&cluster, 0)?, 1);
    for (asked, name) in [(0, "n2"), (2, "n3")] {
        let said = done(&lockstep(&cluster.servers[asked], &["promote", "--name", name])?)?;
        eprintln!("{}", said.trim());
        assert!(
            said.contains(&format!("{name} votes: there are")) && said.contains("member.vote=yes"),
            "{said}"
        );
    }
    for n in 0..3 {
        eventually("all see three voters", || Ok(voters(&cluster, n)? == 3))?;
    }
    // Its configuration says that it does not vote: neither value is what it seems.
    // The server goes by a snapshot, of at most 0.2 s ago.
    for value in ["no", "yes"] {
        let refused = || Ok(set(&cluster, 1, &format!("member.vote={value}")).is_err());
        eventually("a member.vote is refused", refused)?;
    }
    let log = cluster.servers[1].log();
    assert!(
        log.contains(
            "member.vote = 'no' is refused: this member was promoted, or has founded a cluster, and votes"
        ),
        "{log}"
    );
    timed_insert(&cluster, 0, 1)?;
    cluster.servers[0].kill();
    another_writes(&cluster, 2)?;
    cluster.servers[0].start(&[])?;
    cluster.wait_size(3)?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?.number()?, 2);
    Ok(())
}

#[test]
fn replica_bootstraps_with_all_answered_rows() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let mut cluster = primary_and_replicas()?;
    set(&cluster, 0, "commit.policy=semisync")?;
    for n in 0..3 {
        eventually("all are under it", || is_under(&cluster, n, "semisync"))?;
    }
    let socket = cluster.servers[0].config.socket();
    let (told, started) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || -> Result<i64, LocalError> {
        let mut client = Client::connect(&socket, "root", Duration::from_secs(10))?;
        for answered in 0.. {
            if answered == 100 {
                let _ = told.send(());
            }
            if client.query(&format!("INSERT INTO test.p VALUES ({})", answered + 1)).is_err() {
                return Ok(answered);
            }
        }
        unreachable!("it is killed")
    });
    let wait = started.recv_timeout(Duration::from_secs(20));
    wait.map_err(|_| LocalError::Value("the primary does not write".into()))?;
    cluster.servers[0].kill();
    let answered = writer.join().expect("the writer panicked")?;
    let is_primary = |n: usize| -> Result<bool, LocalError> {
        let mut client = cluster.servers[n].client()?;
        Ok(client.status("wsrep_cluster_status")? == "Primary" && client.status("wsrep_ready")? == "ON")
    };
    eventually("it is missed", || Ok(!is_primary(1)? && !is_primary(2)?))?;
    // The one that has less of the log refuses.
    let mut successor = None;
    for n in [1, 2] {
        let said = lockstep(&cluster.servers[n], &["bootstrap"])?;
        eprintln!("{said:?}");
        if said.status.success() {
            successor = Some(n);
            break;
        }
    }
    let successor = successor.ok_or(LocalError::Value("neither goes on".into()))?;
    eventually("it goes on", || is_primary(successor))?;
    let there = session(&cluster, successor)?.number("SELECT COUNT(*) FROM test.p")?;
    eprintln!("{answered} answered, {there} there");
    assert!((answered..=answered + 1).contains(&there), "{answered} answered, {there} there");
    // Nobody is there to acknowledge anything.
    set(&cluster, successor, "commit.policy=quorum")?;
    cluster.servers[successor].query("INSERT INTO test.p VALUES (1000000)").map(|_| ())
}

#[test]
fn transaction_acked_by_one_replica_survives_leader_loss() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let mut cluster = own_cluster()?;
    let mut replica = cluster.another("n4")?;
    replica.wsrep_mut()?.provider_options.push(("member.vote".into(), "no".into()));
    replica.start(&[])?;
    cluster.servers.push(replica);
    cluster.wait_size(4)?;
    set(&cluster, 0, "commit.policy=semisync")?;
    for n in 0..4 {
        eventually("all are under it", || is_under(&cluster, n, "semisync"))?;
    }
    first_leads(&cluster)?;
    // The other voters stand still: until the leader gives up, the replica's word is all that commits wait for.
    let socket = cluster.servers[0].config.socket();
    let (told, started) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || -> Result<i64, LocalError> {
        let mut client = Client::connect(&socket, "root", Duration::from_secs(10))?;
        for answered in 0.. {
            if answered == 20 {
                let _ = told.send(());
            }
            if let Err(error) = client.query(&format!("INSERT INTO test.p VALUES ({})", answered + 1)) {
                eprintln!("after {answered}: {error}");
                return Ok(answered);
            }
        }
        unreachable!("it is killed")
    });
    started
        .recv_timeout(Duration::from_secs(10))
        .map_err(|_| LocalError::Value("the leader does not write".into()))?;
    cluster.servers[1].pause()?;
    cluster.servers[2].pause()?;
    std::thread::sleep(Duration::from_millis(400));
    let risk: i64 =
        cluster.servers[0].client()?.status("wsrep_semi_sync_at_risk")?.parse().unwrap_or_default();
    cluster.servers[0].kill();
    let answered = writer.join().expect("the writer panicked")?;
    cluster.servers[1].resume()?;
    cluster.servers[2].resume()?;
    another_writes(&cluster, 1_000_000)?;
    // A replica may be behind: the read waits.
    let there = session(&cluster, 3)?.number("SELECT COUNT(*) FROM test.p WHERE id < 1000000")?;
    eprintln!("{answered} answered, {risk} of them at risk when last asked; {there} are there");
    assert!(risk > 0, "nothing was at risk");
    assert!((answered..=answered + 1).contains(&there), "{answered} answered, {there} there");
    cluster.servers[0].start(&[])?;
    cluster.wait_size(4)?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?.number()?, there + 1);
    Ok(())
}

/// Inserts on the first server, one by one, until one is not answered; how many were. The client is at work before
/// something is done. A leader that is cut off goes on for the third of a second only, and a busy machine may be that
/// late.
fn answered_until(cluster: &Cluster, first: i64, act: impl FnOnce() -> Test) -> Result<i64, LocalError> {
    let mut client = Client::connect(&cluster.servers[0].config.socket(), "root", Duration::from_secs(5))?;
    let (at_work, begun) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let mut answered = 0;
            let insert = |id: i64| format!("INSERT INTO test.p VALUES ({id})");
            while answered < 5_000 && client.query(&insert(first + answered)).is_ok() {
                answered += 1;
                let _ = at_work.send(());
            }
            answered
        });
        let acted = begun
            .recv_timeout(Duration::from_secs(10))
            .map_err(|_| LocalError::Value("the leader does not write".into()))
            .and_then(|()| act());
        let answered = writer.join().expect("the writer panicked");
        acted.map(|()| answered)
    })
}

/// One of the others leads and takes writes.
fn another_writes(cluster: &Cluster, id: i64) -> Test {
    let insert = format!("INSERT INTO test.p VALUES ({id})");
    eventually("another member takes writes", || {
        Ok(cluster.servers[1].query(&insert).is_ok() || cluster.servers[2].query(&insert).is_ok())
    })
}

/// Write-sets in a rescue file of the first server.
fn rescued(cluster: &Cluster, number: u32) -> Result<i64, LocalError> {
    let file = cluster.servers[0].datadir().join(format!("lockstep.rescue.{number}.log"));
    let shown =
        std::process::Command::new(built("lockstep")).args(["log", "--json", "--rescue"]).arg(&file).output();
    let text = done(&shown.map_err(|source| LocalError::Io { what: "run lockstep log".into(), source })?)?;
    Ok(text.lines().filter(|line| line.contains("\"kind\":\"write-set\"") && line.contains("test.p")).count()
        as i64)
}

#[test]
fn lost_leaders_tail_is_in_rescue_file_only() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let mut cluster = own_cluster()?;
    cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?;
    set(&cluster, 0, "commit.policy=async; async.max_at_risk=300")?;
    let mut rows = 0;
    let away = |cluster: &Cluster, away: bool| -> Test {
        for server in &cluster.servers[1..] {
            if away { server.pause()? } else { server.resume()? }
        }
        Ok(())
    };

    // Killed, and back before the others elect: they take over what it had answered.
    away(&cluster, true)?;
    let answered = answered_until(&cluster, 1_000, || Ok(()))?;
    assert!((1..=300).contains(&answered), "{answered}");
    let risk: i64 =
        cluster.servers[0].client()?.status("wsrep_semi_sync_at_risk")?.parse().unwrap_or_default();
    eprintln!("{answered} answered ahead, {risk} said to be at risk");
    assert!(risk >= answered, "{risk} at risk, {answered} answered");
    cluster.servers[0].kill();
    cluster.servers[0].spawn(&[])?;
    std::thread::sleep(Duration::from_secs(3));
    away(&cluster, false)?;
    cluster.wait_size(3)?;
    let all = cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?.number()?;
    assert!((answered..=answered + 1).contains(&all), "{all} rows, {answered} were answered");
    rows += all;

    // First the leader is killed and stays away: its own tail goes to its rescue file. Then it is cut off and alive: its
    // process ends once it reaches the others. In both cases it returns with their data.
    let mut counted = 0;
    for (number, alive) in [(1, false), (2, true)] {
        first_leads(&cluster)?;
        let range = 10_000 * i64::from(number);
        let answered = answered_until(&cluster, range, || set(&cluster, 0, "gmcast.isolate=1"))?;
        if !alive {
            cluster.servers[0].kill();
        }
        another_writes(&cluster, i64::from(number))?;
        // The servers' own GTIDs (wsrep_gtid_mode) continue from each one's last: GTIDs of lost transactions are reused.
        for server in &cluster.servers[1..] {
            let warned = server
                .log()
                .matches("this server may assign the GTIDs of transactions that were lost")
                .count();
            assert!(
                warned >= number as usize,
                "{warned} warnings after {number} lost leaders: {}",
                server.log()
            );
        }
        if alive {
            set(&cluster, 0, "gmcast.isolate=0")?;
            let end = cluster.servers[0].wait_ended(Duration::from_secs(20))?;
            eprintln!("the one that was cut off ended by itself: {end}");
            let log = cluster.servers[0].log();
            for line in
                ["another member has taken over", "are kept in lockstep.rescue.2.log", "its process ends now"]
            {
                assert!(log.contains(line), "{line}: {log}");
            }
        }
        let mark = cluster.servers[0].log().len();
        cluster.servers[0].start(&[])?;
        cluster.wait_size(3)?;
        let log = cluster.servers[0].log_since(mark);
        assert!(log.contains("the state must be transferred"), "{log}");
        let status = |name: &str| cluster.servers[0].client()?.status(name);
        same("rescue files", status("wsrep_rescued_files")?, number.to_string());
        let there = format!("SELECT COUNT(*) FROM test.p WHERE id >= {range}");
        let there = cluster.same_everywhere(&there)?.number()?;
        let kept = rescued(&cluster, number)?;
        eprintln!("{answered} answered by the one that was cut off: {there} are there, {kept} kept");
        assert!(kept > 0 && (answered..=answered + 1).contains(&(there + kept)));
        counted += kept;
        same("rescued", status("wsrep_rescued_transactions")?, counted.to_string());
        rows += there + 1;
        same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?.number()?, rows);
    }
    Ok(())
}

#[test]
fn leader_stopped_in_order_hands_over_its_tail() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let mut cluster = own_cluster()?;
    cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?;
    set(&cluster, 0, "commit.policy=async; async.max_at_risk=10000")?;
    let (socket, next) = (cluster.servers[0].config.socket(), AtomicU64::new(1));
    let answered = AtomicU64::new(0);
    // Each client runs until its server stops answering; collects the acknowledged rows.
    let client = || -> Result<Vec<u64>, LocalError> {
        let mut client = Client::connect(&socket, "root", Duration::from_secs(30))?;
        let mut ids = Vec::new();
        loop {
            let id = next.fetch_add(1, Ordering::Relaxed);
            if client.query(&format!("INSERT INTO test.p VALUES ({id})")).is_err() {
                return Ok(ids);
            }
            ids.push(id);
            answered.fetch_add(1, Ordering::Relaxed);
        }
    };
    let (first, others) = cluster.servers.split_at_mut(1);
    let others = &*others;
    let (mut ids, risk) = std::thread::scope(|scope| -> Result<(Vec<u64>, u64), LocalError> {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(client)).collect();
        let stopped = (|| {
            eventually("the leader writes", || Ok(answered.load(Ordering::Relaxed) > 40))?;
            // The others stand still while it is told to stop, and for a moment after that.
            others.iter().try_for_each(|server| server.pause())?;
            let before = answered.load(Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(150));
            let later = scope.spawn(move || -> Test {
                std::thread::sleep(Duration::from_millis(1_500));
                others.iter().try_for_each(|server| server.resume())
            });
            let stopped = first[0].stop();
            later.join().expect("a thread panicked")?;
            stopped.map(|()| answered.load(Ordering::Relaxed) - before)
        })();
        let mut ids = Vec::new();
        for client in clients {
            ids.extend(client.join().expect("a client panicked")?);
        }
        stopped.map(|risk| (ids, risk))
    })?;
    let log = cluster.servers[0].log();
    eprintln!("{} answered, {risk} of them while the others stood still", ids.len());
    assert!(risk > 0, "nothing was at risk: {log}");
    assert!(!log.contains("this member leaves with"), "{log}");
    another_writes(&cluster, 1_000_000)?;
    let rows = session(&cluster, 1)?.query("SELECT id FROM test.p WHERE id < 1000000")?;
    let there: Vec<u64> = rows.rows.iter().filter_map(|row| row[0].as_deref()?.parse().ok()).collect();
    ids.retain(|id| !there.contains(id));
    same("lost", ids, Vec::new());

    cluster.servers[0].start(&[])?;
    cluster.wait_size(3)?;
    cluster.same_everywhere("SELECT COUNT(*), SUM(id) FROM test.p")?;
    same("rescue files", cluster.servers[0].client()?.status("wsrep_rescued_files")?.as_str(), "0");
    Ok(())
}

/// Feeds SQL to the first server with MariaDB's own client; returns the client's error.
fn fed(cluster: &Cluster, sql: &str) -> Result<Result<(), String>, LocalError> {
    use std::io::Write;
    let io = |source| LocalError::Io { what: "run mariadb".into(), source };
    let mut client = std::process::Command::new("mariadb")
        .args(["--no-defaults", "--user=root", "--socket"])
        .arg(cluster.servers[0].config.socket())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .map_err(io)?;
    // One that stops early closes its end.
    let _ = client.stdin.take().map(|mut stdin| stdin.write_all(sql.as_bytes()));
    let output = client.wait_with_output().map_err(io)?;
    Ok(match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    })
}

#[test]
fn rescue_file_as_sql_restores_transactions() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let mut cluster = own_cluster()?;
    cluster.servers[0].client()?.run(&[
        "CREATE TABLE test.kinds (id BIGINT PRIMARY KEY, u INT UNSIGNED, d DECIMAL(20,4), f DOUBLE, v VARCHAR(300), \
         b BLOB, t TEXT, dt DATETIME(3), ts TIMESTAMP(6) NULL, ti TIME(2), da DATE, y YEAR, bi BIT(11), e ENUM('x','y'), \
         s SET('a','b','c'), j JSON, n INT) CHARSET utf8mb4",
        "INSERT INTO test.kinds (id, v) VALUES (1, 'old'), (2, 'to go')",
    ])?;
    cluster.same_everywhere("SELECT COUNT(*) FROM test.kinds")?;
    set(&cluster, 0, "commit.policy=async; async.max_at_risk=300")?;
    set(&cluster, 0, "gmcast.isolate=1")?;
    let mut client = Client::connect(&cluster.servers[0].config.socket(), "root", Duration::from_secs(5))?;
    client.run(&[
        "SET NAMES utf8mb4",
        "INSERT INTO test.kinds VALUES (10, 4294967295, -123456.7890, 6.25, 'it''s \\\\ ü ; -- x', x'00ff27', \
         'a\nDROP TABLE test.kinds;', '2024-02-03 04:05:06.789', '2024-02-03 04:05:06.123456', '-12:13:14.15', '2024-02-29', \
         2024, b'10101010101', 'y', 'a,c', '{\"a\": 1}', NULL)",
        "UPDATE test.kinds SET v = 'new' WHERE id = 1",
        "DELETE FROM test.kinds WHERE id = 2",
        "BEGIN",
        "INSERT INTO test.kinds (id) VALUES (11)",
        "INSERT INTO test.kinds (id) VALUES (12)",
        "COMMIT",
    ])?;
    cluster.servers[0].kill();
    another_writes(&cluster, 1)?;
    cluster.servers[0].start(&[])?;
    cluster.wait_size(3)?;
    let all = "SELECT GROUP_CONCAT(id, IFNULL(v, '') ORDER BY id) FROM test.kinds";
    same("before", cluster.same_everywhere(all)?.value()?, "1old,2to go");

    let file = cluster.servers[0].datadir().join("lockstep.rescue.1.log");
    let shown =
        std::process::Command::new(built("lockstep")).args(["log", "--sql", "--rescue"]).arg(&file).output();
    let sql = done(&shown.map_err(|source| LocalError::Io { what: "run lockstep log".into(), source })?)?;
    for line in ["### INSERT INTO `test`.`kinds`", "###   @2=-1 (4294967295)", "###   @3=-123456.7890"] {
        assert!(sql.contains(line), "{line}: {sql}");
    }
    // Any member takes writes then.
    set(&cluster, 1, "commit.policy=quorum")?;
    eventually("the policy is quorum", || is_under(&cluster, 0, "quorum"))?;
    assert_eq!(fed(&cluster, &format!("{sql}\n"))?, Ok(()));
    let mine = "SELECT COUNT(*) FROM test.kinds WHERE id = 10 AND u = 4294967295 AND d = -123456.7890 AND f = 6.25 \
                AND HEX(v) = '69742773205C20C3BC203B202D2D2078' AND b = x'00ff27' AND t = 'a\nDROP TABLE test.kinds;' \
                AND dt = '2024-02-03 04:05:06.789' AND ts = '2024-02-03 04:05:06.123456' AND ti = '-12:13:14.15' \
                AND da = '2024-02-29' AND y = 2024 AND bi = b'10101010101' AND e = 'y' AND s = 'a,c' \
                AND JSON_VALUE(j, '$.a') = 1 AND n IS NULL";
    same("of all kinds", cluster.same_everywhere(mine)?.number()?, 1);
    let ids = "SELECT GROUP_CONCAT(id ORDER BY id) FROM test.kinds";
    same("rows", cluster.same_everywhere(ids)?.value()?, "1,10,11,12");
    // A row that exists already is an error, and stops the rest.
    let objection = fed(&cluster, &format!("{sql}\n"))?.expect_err("the rows are there");
    assert!(objection.contains("ERROR 1062"), "{objection}");
    same("rows", cluster.same_everywhere(ids)?.value()?, "1,10,11,12");
    Ok(())
}
