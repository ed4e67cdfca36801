//! Many sessions at once, with a total that must come out even.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockstep_lab::Cluster;
use lockstep_local::{Client, LocalError};

use crate::fixture::{Test, same, session, shared};

const ACCOUNTS: u64 = 20;

/// Numbers that look random and are the same in each run.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

pub(crate) fn open_bank(cluster: &Cluster) -> Test {
    session(cluster, 0)?.run(&[
        "CREATE TABLE bank (id INT PRIMARY KEY, balance INT NOT NULL)",
        "CREATE TABLE journal (id BIGINT AUTO_INCREMENT PRIMARY KEY, a INT, b INT, amount INT)",
        &format!("INSERT INTO bank SELECT seq, 100 FROM seq_1_to_{ACCOUNTS}"),
    ])?;
    // The workers must find the tables on every member.
    cluster.same_everywhere("SELECT COUNT(*) FROM test.bank")?;
    Ok(())
}

/// One transfer; `Ok(false)` if it lost against another.
fn transfer(client: &mut Client, dice: &mut Dice) -> Result<bool, LocalError> {
    let from = 1 + dice.roll(ACCOUNTS);
    let to = 1 + (from + dice.roll(ACCOUNTS - 1)) % ACCOUNTS;
    let amount = 1 + dice.roll(5);
    let steps = [
        "BEGIN".to_owned(),
        format!("UPDATE bank SET balance = balance - {amount} WHERE id = {from}"),
        format!("UPDATE bank SET balance = balance + {amount} WHERE id = {to}"),
        format!("INSERT INTO journal (a, b, amount) VALUES ({from}, {to}, {amount})"),
        "COMMIT".to_owned(),
    ];
    for step in &steps {
        match client.query(step) {
            Ok(_) => {}
            Err(e) if matches!(e.sql_code(), Some(1213 | 1205)) => {
                client.query("ROLLBACK")?;
                return Ok(false);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

/// Transfers from `sessions` sessions on each of `members` for `length`; how many were acknowledged, how many lost
/// against others.
fn run_bank(
    cluster: &Cluster,
    members: &[usize],
    sessions: u64,
    length: Duration,
) -> Result<(u64, u64), LocalError> {
    let (done, lost) = (AtomicU64::new(0), AtomicU64::new(0));
    let end = Instant::now() + length;
    std::thread::scope(|scope| {
        let workers: Vec<_> = members
            .iter()
            .flat_map(|n| (0..sessions).map(move |s| (*n, s)))
            .map(|(n, s)| {
                let (done, lost) = (&done, &lost);
                scope.spawn(move || -> Test {
                    let mut client = session(cluster, n)?;
                    client.query("SET SESSION wsrep_sync_wait = 0")?;
                    let mut dice = Dice(n as u64 * 1000 + s);
                    while Instant::now() < end {
                        let counter = if transfer(&mut client, &mut dice)? { done } else { lost };
                        counter.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|w| w.join().expect("a worker panicked"))
    })?;
    Ok((done.into_inner(), lost.into_inner()))
}

/// Runs clients that transfer money, on these servers in turn, while `act` runs; how many transfers were acknowledged.
pub(crate) fn bank_during<T>(sockets: &[PathBuf], clients: usize, act: impl FnOnce() -> T) -> (u64, T) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..clients)
            .map(|seed| {
                let (socket, stop) = (&sockets[seed % sockets.len()], &stop);
                scope.spawn(move || bank_until(socket, stop, seed as u64))
            })
            .collect();
        let outcome = act();
        stop.store(true, Ordering::Relaxed);
        (workers.into_iter().map(|w| w.join().expect("a worker panicked")).sum(), outcome)
    })
}

/// Transfers on the server behind `socket` until `stop`, or until the server goes away; how many it acknowledged.
/// Errors of a cluster in trouble (not ready, interrupted) only count as not acknowledged.
pub(crate) fn bank_until(socket: &Path, stop: &AtomicBool, seed: u64) -> u64 {
    let mut dice = Dice(seed);
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let timeout = Duration::from_secs(40);
        let opened = Client::connect(socket, "root", timeout)
            .and_then(|mut c| c.run(&["USE test", "SET SESSION wsrep_sync_wait = 0"]).map(|()| c));
        let Ok(mut client) = opened else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        while !stop.load(Ordering::Relaxed) {
            match transfer(&mut client, &mut dice) {
                Ok(true) => done += 1,
                Ok(false) => {}
                Err(_) => break,
            }
        }
    }
    done
}

/// The money is all there, the journal holds what was acknowledged, and explains every balance. The journal may
/// hold up to `unanswered` more: commits whose sessions were cut off before they heard.
pub(crate) fn audit(cluster: &Cluster, acknowledged: u64, unanswered: u64) -> Test {
    let total = cluster.same_everywhere("SELECT SUM(balance) FROM test.bank")?;
    same("money in the bank", total.number()?, ACCOUNTS as i64 * 100);
    let entries = cluster.same_everywhere("SELECT COUNT(*) FROM test.journal")?;
    let entries = entries.number()? as u64;
    assert!(
        (acknowledged..=acknowledged + unanswered).contains(&entries),
        "{entries} transfers in the journal, but {acknowledged} were acknowledged and {unanswered} may be more"
    );
    // Which accounts the journal does not explain, and by how much they are off.
    let unexplained = cluster.same_everywhere(
        "SELECT GROUP_CONCAT(id, ': ', balance, ' instead of ', due ORDER BY id SEPARATOR '; ') FROM (SELECT id, \
         balance, 100 - COALESCE((SELECT SUM(amount) FROM test.journal WHERE a = bank.id), 0) \
         + COALESCE((SELECT SUM(amount) FROM test.journal WHERE b = bank.id), 0) AS due FROM test.bank) AS x \
         WHERE balance <> due",
    )?;
    same("balances that the journal does not explain", unexplained.rows, vec![vec![None]]);
    cluster.same_everywhere("SELECT id, balance FROM test.bank ORDER BY id")?;
    cluster.same_everywhere("CHECKSUM TABLE test.bank, test.journal")?;
    Ok(())
}

#[test]
fn conflicting_transfers_on_all_members_keep_the_total() -> Test {
    let mut cluster = shared()?;
    open_bank(&cluster)?;
    let (done, lost) = run_bank(&cluster, &[0, 1, 2], 4, Duration::from_secs(10))?;
    eprintln!("{done} transfers, {lost} lost against others");
    assert!(done > 200 && lost > 20, "{done} transfers, {lost} conflicts: too few to mean anything");
    audit(&cluster, done, 0)?;
    let mut aborts = 0;
    for server in &cluster.servers {
        aborts += server.client()?.status("wsrep_local_bf_aborts")?.parse::<i64>().unwrap_or(0);
    }
    assert!(aborts > 0, "no brute-force abort in {lost} conflicts");
    assert!(cluster.is_whole());
    Ok(())
}

#[test]
fn parallel_appliers_keep_the_order() -> Test {
    let cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    a.run(&[
        "CREATE TABLE chain (id INT PRIMARY KEY, v BIGINT NOT NULL)",
        "INSERT INTO chain SELECT seq, 1 FROM seq_1_to_8",
    ])?;
    // Each session multiplies and adds in turns on one row: only the order of execution gives the same number. It does so
    // on rows that others never touch (so in parallel), and on row 8, which all of them touch.
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=6u64)
            .map(|row| {
                let cluster = &*cluster;
                scope.spawn(move || -> Test {
                    let mut client = session(cluster, 0)?;
                    for i in 0..150 {
                        client.query(&format!(
                            "UPDATE chain SET v = (v * 31 + {i}) % 1000003 WHERE id = {row}"
                        ))?;
                        if i % 10 == 0 {
                            client.query(&format!(
                                "UPDATE chain SET v = (v * 7 + {row}) % 1000003 WHERE id = 8"
                            ))?;
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|w| w.join().expect("a worker panicked"))
    })?;
    let rows = cluster.same_everywhere("SELECT v FROM test.chain WHERE id <= 6 ORDER BY id")?;
    let due = (0..150).fold(1i64, |v, i| (v * 31 + i) % 1_000_003).to_string();
    same("each chain", rows.rows, vec![vec![Some(due)]; 6]);
    cluster.same_everywhere("SELECT v FROM test.chain WHERE id = 8")?;
    same("appliers", session(&cluster, 1)?.value("SELECT @@wsrep_slave_threads")?, "4".into());
    Ok(())
}

#[test]
fn streaming_and_plain_transactions_work_side_by_side() -> Test {
    let mut cluster = shared()?;
    session(&cluster, 0)?.run(&[
        "CREATE TABLE t (id INT PRIMARY KEY, v INT NOT NULL)",
        "INSERT INTO t SELECT seq, 0 FROM seq_1_to_120",
    ])?;
    let added = AtomicU64::new(0);
    let end = Instant::now() + Duration::from_secs(6);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..6u64)
            .map(|w| {
                let (cluster, added) = (&*cluster, &added);
                scope.spawn(move || -> Test {
                    let mut client = session(cluster, (w % 3) as usize)?;
                    client.query("SET SESSION wsrep_sync_wait = 0, innodb_lock_wait_timeout = 2")?;
                    if w < 3 {
                        client.query(
                            "SET SESSION wsrep_trx_fragment_unit = 'rows', wsrep_trx_fragment_size = 5",
                        )?;
                    }
                    let mut dice = Dice(w);
                    while Instant::now() < end {
                        // Each streaming one keeps to 20 rows of its own, the plain ones to others, with rows between
                        // that nobody touches (a range locks the row after it, too). Where streaming transactions collide
                        // with many others at once, stock servers sometimes hang or lose an update, under Galera's
                        // provider too. One collision at a time is tested in `daily`.
                        let (from, width) = if w < 3 { (1 + 30 * w, 20) } else { (101 + dice.roll(10), 2) };
                        let change = format!(
                            "UPDATE t SET v = v + 1 WHERE id BETWEEN {from} AND {}",
                            from + width - 1
                        );
                        let outcome = client.run(&["BEGIN", &change, "COMMIT"]);
                        match outcome {
                            Ok(()) => {
                                added.fetch_add(width, Ordering::Relaxed);
                            }
                            Err(e) if matches!(e.sql_code(), Some(1213 | 1205)) => {
                                client.query("ROLLBACK")?;
                            }
                            Err(e) => return Err(e),
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|w| w.join().expect("a worker panicked"))
    })?;
    let added = added.into_inner() as i64;
    assert!(added > 100, "only {added} additions");
    let parts = cluster.same_everywhere("SELECT id > 100, SUM(v) FROM test.t GROUP BY id > 100")?;
    eprintln!("streaming and plain additions: {:?}", parts.rows);
    same("sum", cluster.same_everywhere("SELECT SUM(v) FROM test.t")?.number()?, added);
    cluster.same_everywhere("CHECKSUM TABLE test.t")?;
    let fragments = cluster.same_everywhere("SELECT COUNT(*) FROM mysql.wsrep_streaming_log")?;
    same("left fragments", fragments.number()?, 0);
    assert!(cluster.is_whole());
    Ok(())
}

#[test]
fn sysbench_runs() -> Test {
    let mut cluster = shared()?;
    let sysbench = |args: &[&str], member: usize| -> Result<String, LocalError> {
        let mut command = Command::new("sysbench");
        command
            .args(["oltp_read_write", "--tables=2", "--table-size=1000", "--threads=4", "--mysql-user=root"])
            .arg("--mysql-db=test")
            .arg(format!("--mysql-socket={}", cluster.servers[member].config.socket().display()))
            .args(args);
        let output =
            command.output().map_err(|source| LocalError::Io { what: "run sysbench".into(), source })?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(LocalError::Command { command: format!("{command:?}"), output: text + &errors });
        }
        Ok(text)
    };
    sysbench(&["--threads=1", "prepare"], 0)?;
    cluster.same_everywhere("SELECT COUNT(*) FROM test.sbtest1")?;
    let text = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|n| {
                let sysbench = &sysbench;
                scope.spawn(move || sysbench(&["--time=6", "--mysql-ignore-errors=1213,1205,1020", "run"], n))
            })
            .collect();
        let mut all = String::new();
        for worker in workers {
            all += &worker.join().expect("a worker panicked")?;
        }
        Ok::<_, LocalError>(all)
    })?;
    for line in text.lines().filter(|l| l.contains("transactions:")) {
        eprintln!("{}", line.trim());
    }
    assert_eq!(text.matches("transactions:").count(), 2, "{text}");
    cluster.same_everywhere("CHECKSUM TABLE test.sbtest1, test.sbtest2")?;
    sysbench(&["cleanup"], 1)?;
    cluster.same_everywhere("SHOW TABLES FROM test")?;
    assert!(cluster.is_whole());
    Ok(())
}
