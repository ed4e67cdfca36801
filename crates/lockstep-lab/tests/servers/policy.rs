//! Commit policies: whom a commit waits for, changed while clients write.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockstep_lab::{Client, Cluster, LabError};

use crate::failover::{done, lockstep};
use crate::fixture::{Kind, Test, eventually, kind, same, session, shared};

/// One option more, or several, of the provider.
fn set(cluster: &Cluster, n: usize, options: &str) -> Test {
    cluster.servers[n].query(&format!("SET GLOBAL wsrep_provider_options='{options}'")).map(|_| ())
}

/// Leadership goes to the first server.
fn first_leads(cluster: &Cluster) -> Test {
    let moved = || done(&lockstep(&cluster.servers[1], &["switchover", "--to", "n1"])?);
    moved().map(|_| ())
}

/// Clients of one server that insert rows, each in a transaction of its own, while something is done.
struct Load {
    rows: u64,
    errors: Vec<String>,
    /// The longest time between two answers that any of them saw.
    gap: Duration,
}

fn load_during(
    cluster: &Cluster,
    n: usize,
    clients: usize,
    act: impl FnOnce() -> Test,
) -> Result<Load, LabError> {
    static IDS: AtomicU64 = AtomicU64::new(1);
    let stop = AtomicBool::new(false);
    let socket = cluster.servers[n].config.socket();
    let one = || -> (u64, Option<String>, Duration) {
        let (mut rows, mut gap) = (0, Duration::ZERO);
        let mut client = match Client::connect(&socket, "root", Duration::from_secs(30)) {
            Ok(client) => client,
            Err(e) => return (0, Some(e.to_string()), gap),
        };
        let mut last = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let id = IDS.fetch_add(1, Ordering::Relaxed);
            if let Err(e) = client.query(&format!("INSERT INTO test.p VALUES ({id})")) {
                return (rows, Some(e.to_string()), gap);
            }
            rows += 1;
            gap = gap.max(last.elapsed());
            last = Instant::now();
        }
        (rows, None, gap.max(last.elapsed()))
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..clients).map(|_| scope.spawn(one)).collect();
        std::thread::sleep(Duration::from_millis(300));
        let outcome = act();
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        let mut load = Load { rows: 0, errors: Vec::new(), gap: Duration::ZERO };
        for worker in workers {
            let (rows, error, gap) = worker.join().expect("a worker panicked");
            load.rows += rows;
            load.errors.extend(error);
            load.gap = load.gap.max(gap);
        }
        outcome.map(|()| load)
    })
}

/// What one insert took; it must succeed.
fn timed_insert(cluster: &Cluster, n: usize, id: i64) -> Result<Duration, LabError> {
    let mut client = cluster.servers[n].client()?;
    let began = Instant::now();
    client.query(&format!("INSERT INTO test.p VALUES ({id})"))?;
    Ok(began.elapsed())
}

/// Whether a member says that this policy is in force. (The server's variable shows what was set there.)
fn is_under(cluster: &Cluster, n: usize, policy: &str) -> Result<bool, LabError> {
    let status = done(&lockstep(&cluster.servers[n], &["status", "--json"])?)?;
    Ok(status.contains(&format!("\"policy\":\"{policy}\"")))
}

#[test]
fn a_policy_changes_under_load_and_no_transaction_fails() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let cluster = shared()?;
    first_leads(&cluster)?;
    set(&cluster, 0, "commit.policy=quorum")?;
    session(&cluster, 0)?.query("CREATE TABLE p (id BIGINT PRIMARY KEY)")?;
    let mut rows = 0;
    // Whoever is asked, the leader makes the change, and all members have it.
    for (asked, policy) in [(0, "all"), (1, "quorum"), (2, "all"), (0, "quorum")] {
        let mut best = Duration::MAX;
        for _ in 0..3 {
            let load =
                load_during(&cluster, 0, 4, || set(&cluster, asked, &format!("commit.policy={policy}")))?;
            same("failed transactions", load.errors, Vec::new());
            rows += load.rows as i64;
            best = best.min(load.gap);
            if best <= Duration::from_millis(100) {
                break;
            }
            // Once more: on a busy machine one may be slow.
            let other = if policy == "all" { "quorum" } else { "all" };
            set(&cluster, asked, &format!("commit.policy={other}"))?;
        }
        eprintln!("to {policy}: longest gap {best:?}");
        assert!(best <= Duration::from_millis(300), "the shortest of three gaps was {best:?}");
        set(&cluster, asked, &format!("commit.policy={policy}"))?;
        for n in 0..3 {
            eventually("every member shows it", || is_under(&cluster, n, policy))?;
        }
        same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?.number()?, rows);
    }
    Ok(())
}

#[test]
fn under_all_a_commit_waits_for_every_member_until_it_is_taken_out_of_the_view() -> Test {
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
