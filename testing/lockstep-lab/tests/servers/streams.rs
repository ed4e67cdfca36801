//! Streaming transactions, and views in their midst.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockstep_lab::{Cluster, ClusterSpec};
use lockstep_local::LocalError;

use crate::distance::leads;
use crate::failover::{done, lockstep};
use crate::fixture::{Kind, Test, alone, eventually, fails, kind, same, session, shared, spec};

/// Transactions of three fragments, one after the other, until told to stop: how many were committed.
fn stream(cluster: &Cluster, worker: usize, stop: &AtomicBool, committed: &AtomicU64) -> Test {
    let mut client = session(cluster, worker % 3)?;
    client.set_timeout(Duration::from_secs(30))?;
    client.query("SET SESSION wsrep_sync_wait = 0, wsrep_trx_fragment_unit = 'statements', wsrep_trx_fragment_size = 1")?;
    let insert = format!("INSERT INTO t (worker) VALUES ({worker})");
    while !stop.load(Ordering::Relaxed) {
        match client.run(&["BEGIN", &insert, &insert, &insert, "COMMIT"]) {
            Ok(()) => _ = committed.fetch_add(1, Ordering::Relaxed),
            // Rolled back by a view, or while nobody led.
            Err(e) if matches!(e.sql_code(), Some(1213 | 1180 | 1047 | 1205)) => {
                client.query("ROLLBACK")?;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The present leader, if there is one.
fn leader(cluster: &Cluster) -> Result<Option<usize>, LocalError> {
    if kind() != Kind::Lockstep {
        return Ok(None);
    }
    for n in 0..3 {
        if leads(cluster, &format!("n{}", n + 1))? {
            return Ok(Some(n));
        }
    }
    Ok(None)
}

/// At a view of the same members all servers roll back what is streamed, and a fragment under way comes behind it. (Once
/// it passed there: its origin waited for the view, and the view for it, on all members, for good.)
#[test]
fn views_in_the_midst_of_streaming_transactions_stop_nobody() -> Test {
    let mut cluster = shared()?;
    session(&cluster, 0)?
        .run(&["CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, worker INT NOT NULL)"])?;
    let stop = AtomicBool::new(false);
    let committed: [AtomicU64; 9] = Default::default();
    let all = || committed.each_ref().map(|n| n.load(Ordering::Relaxed));
    std::thread::scope(|scope| -> Test {
        let workers: Vec<_> = (0..committed.len())
            .map(|w| {
                let (cluster, stop, committed) = (&*cluster, &stop, &committed[w]);
                scope.spawn(move || stream(cluster, w, stop, committed))
            })
            .collect();
        // The workers end in any case.
        let trouble = || -> Result<(), LocalError> {
            let under_way = |since: [u64; 9]| all().iter().zip(since).all(|(now, then)| *now > then);
            eventually("all stream", || Ok(under_way([0; 9])))?;
            for round in 0..8 {
                let before = all();
                match leader(&cluster)? {
                    // It waits for 2 s until nobody streams, and goes on in their midst.
                    Some(leader) if round > 1 => {
                        let to = format!("n{}", (leader + 1) % 3 + 1);
                        let said = done(&lockstep(&cluster.servers[leader], &["switchover", "--to", &to])?)?;
                        assert!(said.contains(" rolled back (wsrep_trx_fragment_size)"), "{said}");
                    }
                    // Long enough that another one leads, too short to be taken out of the view.
                    leader => {
                        let server = &cluster.servers[leader.unwrap_or(round % 3)];
                        server.pause()?;
                        std::thread::sleep(Duration::from_millis(1300));
                        server.resume()?;
                    }
                }
                eventually("all stream on", || Ok(under_way(before)))?;
            }
            Ok(())
        };
        let ended = trouble();
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().try_for_each(|w| w.join().expect("a worker panicked"))?;
        ended
    })?;
    for (worker, committed) in committed.iter().enumerate() {
        let rows =
            cluster.same_everywhere(&format!("SELECT COUNT(*) FROM test.t WHERE worker = {worker}"))?;
        same("rows", rows.number()?, 3 * committed.load(Ordering::Relaxed) as i64);
    }
    cluster.same_everywhere("CHECKSUM TABLE test.t")?;
    let log = "SELECT COUNT(*) FROM mysql.wsrep_streaming_log";
    eventually("fragments gone", || Ok(cluster.same_everywhere(log)?.number()? == 0))?;
    assert!(cluster.is_whole());
    Ok(())
}

/// A server refuses streaming in a clear way if its provider does not offer it (`trx.streaming`).
#[test]
fn fragment_size_without_option_is_refused() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // it always offers it
    }
    let _alone = alone();
    let cluster = Cluster::start(&ClusterSpec { members: 1, ..spec() })?;
    let mut client = cluster.servers[0].client()?;
    client.run(&["CREATE DATABASE test", "CREATE TABLE test.t (id INT PRIMARY KEY)"])?;
    fails(&mut client, "SET SESSION wsrep_trx_fragment_size = 1000", 1231)?;
    let warnings = client.query("SHOW WARNINGS")?.rows;
    let text = format!("{warnings:?}");
    assert!(text.contains("the wsrep_provider does not support streaming replication"), "{text}");
    client.run(&["BEGIN", "INSERT INTO test.t VALUES (1)", "COMMIT"])?;
    same("rows", client.number("SELECT COUNT(*) FROM test.t")?, 1);
    Ok(())
}
