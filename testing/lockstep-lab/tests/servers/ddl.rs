//! DDL is executed exactly once: servers are killed before, inside and after statements of every kind. They come back by
//! their own log, equal to the others.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockstep_lab::Cluster;
use lockstep_local::{Client, LocalError, START_TIMEOUT};

use crate::fixture::{Kind, Test, kind, same, session, shared};
use crate::rejoin::{mark, others_see, unmark};
use crate::stress::Dice;

/// One round of a stream of statements: each kind, above all those that are not the same when executed twice.
fn statements(round: u64) -> Vec<String> {
    let r = round;
    let texts = [
        "CREATE TABLE d{r} (id INT PRIMARY KEY, a INT) COMMENT 'first'",
        "CREATE TABLE e{r} LIKE d{r}",
        "ALTER TABLE e{r} COMMENT 'second', ADD INDEX (a)",
        "INSERT INTO d{r} SELECT seq, seq % 7 FROM seq_1_to_200",
        // A second execution makes a second index.
        "ALTER TABLE d{r} ADD INDEX (a)",
        "ALTER TABLE d{r} ADD INDEX (a), ALGORITHM=COPY",
        "ALTER TABLE d{r} ADD c INT DEFAULT 5, ALGORITHM=INSTANT",
        "CREATE INDEX i ON d{r} (c, a)",
        // A second execution undoes the first.
        "RENAME TABLE d{r} TO x{r}, e{r} TO d{r}, x{r} TO e{r}",
        "INSERT INTO d{r} SELECT seq, seq FROM seq_1_to_50",
        "TRUNCATE TABLE d{r}",
        "INSERT INTO d{r} VALUES ({r}, 1)",
        "ALTER TABLE big FORCE, ALGORITHM=COPY",
        "ALTER TABLE big ADD INDEX (pad)",
        "ALTER TABLE big DROP INDEX pad",
        // A transaction to the servers, but the table is there before its rows.
        "CREATE TABLE f{r} AS SELECT * FROM e{r}",
        "CREATE VIEW v{r} AS SELECT id FROM d{r}",
        "CREATE TRIGGER t{r} BEFORE INSERT ON d{r} FOR EACH ROW SET NEW.a = NEW.a + 1",
        "INSERT INTO d{r} VALUES (100000 + {r}, 1)",
        "CREATE PROCEDURE p{r}() SELECT {r}",
        "CREATE USER u{r}@localhost IDENTIFIED BY 'x'",
        "GRANT SELECT ON test.* TO u{r}@localhost",
        "ALTER USER u{r}@localhost IDENTIFIED BY 'y'",
        "CREATE TABLE s{r} (id INT PRIMARY KEY, a INT) ENGINE=Aria",
        "ALTER TABLE s{r} ADD INDEX (a)",
        "CREATE SEQUENCE q{r}",
        "CREATE DATABASE IF NOT EXISTS other",
        "ALTER TABLE f{r} RENAME TO other.f{r}",
        "CREATE TABLE `odd-{r} name` (id INT PRIMARY KEY, a INT)",
        "ALTER TABLE `odd-{r} name` ADD INDEX (a)",
        "DROP VIEW v{r}",
        "DROP TRIGGER t{r}",
        "DROP PROCEDURE p{r}",
        "DROP USER u{r}@localhost",
        "DROP TABLE e{r}, s{r}, q{r}",
        "DROP DATABASE other",
    ];
    texts.iter().map(|text| text.replace("{r}", &r.to_string())).collect()
}

/// Runs the stream on the server behind `socket` until `stop`. After a server's death and return the stream continues:
/// the interrupted statement may have been executed or not, and its successors may fail.
fn stream(socket: &Path, stop: &AtomicBool, round: &AtomicU64) -> u64 {
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let opened = Client::connect(socket, "root", Duration::from_secs(60))
            .and_then(|mut c| c.run(&["USE test"]).map(|()| c));
        let Ok(mut client) = opened else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        'rounds: while !stop.load(Ordering::Relaxed) {
            for sql in statements(round.fetch_add(1, Ordering::Relaxed)) {
                match client.query(&sql) {
                    Ok(_) => done += 1,
                    Err(e) if e.sql_code().is_some_and(|code| code != 1047) => {}
                    Err(_) => break 'rounds,
                }
                if stop.load(Ordering::Relaxed) {
                    break 'rounds;
                }
            }
        }
    }
    done
}

/// Everything that the statements made is the same on all members.
fn agree(cluster: &Cluster) -> Test {
    for sql in [
        "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE, TABLE_COMMENT FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA IN ('test', 'other') ORDER BY 1, 2",
        "SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, ORDINAL_POSITION FROM information_schema.COLUMNS \
         WHERE TABLE_SCHEMA IN ('test', 'other') ORDER BY TABLE_SCHEMA, 1, 4",
        "SELECT TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX, COLUMN_NAME FROM information_schema.STATISTICS \
         WHERE TABLE_SCHEMA IN ('test', 'other') ORDER BY TABLE_SCHEMA, 1, 2, 3",
        "SELECT TRIGGER_NAME, EVENT_OBJECT_TABLE, ACTION_STATEMENT FROM information_schema.TRIGGERS \
         WHERE TRIGGER_SCHEMA IN ('test', 'other') ORDER BY 1",
        "SELECT name, body FROM mysql.proc WHERE db = 'test' ORDER BY 1",
        "SELECT User, Host, Priv FROM mysql.global_priv WHERE User LIKE 'u%' ORDER BY 1",
        "SELECT User, Db, Select_priv FROM mysql.db ORDER BY 1, 2",
    ] {
        cluster.same_everywhere(sql)?;
    }
    let tables = cluster.same_everywhere(
        "SELECT CONCAT('`', TABLE_SCHEMA, '`.`', TABLE_NAME, '`') FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA IN ('test', 'other') AND TABLE_TYPE = 'BASE TABLE' ORDER BY 1",
    )?;
    let names: Vec<String> = tables.rows.into_iter().flatten().flatten().collect();
    for some in names.chunks(50) {
        cluster.same_everywhere(&format!("CHECKSUM TABLE {}", some.join(", ")))?;
    }
    Ok(())
}

fn big_table(cluster: &Cluster, rows: u32) -> Test {
    session(cluster, 0)?.run(&[
        "CREATE TABLE big (id INT PRIMARY KEY, pad CHAR(100))",
        &format!("INSERT INTO big SELECT seq, seq FROM seq_1_to_{rows}"),
    ])?;
    cluster.same_everywhere("SELECT COUNT(*) FROM test.big")?;
    Ok(())
}

fn rounds(short: u64) -> u64 {
    std::env::var("LOCKSTEP_DDL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(short)
}

/// The victim's stream of statements comes from `origin`; each time it is killed it comes back by the log.
fn killed_in_a_stream(origin: usize, victim: usize, kills: u64) -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // it takes a state transfer where a statement was under way
    }
    let mut cluster = shared()?;
    session(&cluster, 0)?.query("DROP DATABASE IF EXISTS other")?;
    big_table(&cluster, 8000)?;
    let round = AtomicU64::new(victim as u64 * 1_000_000);
    let mut dice = Dice(std::process::id().into());
    let (mut inside, mut copied, mut done) = (0, 0, 0);
    for _ in 0..kills {
        mark(&cluster.servers[victim])?;
        let socket = cluster.servers[origin].config.socket();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| -> Test {
            let worker = scope.spawn(|| stream(&socket, &stop, &round));
            std::thread::sleep(Duration::from_millis(100 + dice.roll(1500)));
            cluster.servers[victim].kill();
            let state = std::fs::read_to_string(cluster.servers[victim].datadir().join("grastate.dat"));
            inside += state.is_ok_and(|s| s.contains("uuid:    00000000")) as u64;
            let back = cluster.servers[victim].start(&[]);
            stop.store(true, Ordering::Relaxed);
            done += worker.join().expect("a worker panicked");
            back
        })?;
        cluster.wait_size(3)?;
        if !unmark(&cluster.servers[victim])? {
            copied += 1;
            println!("took a copy:\n{}", cluster.servers[victim].log_tail(150));
        }
        agree(&cluster)
            .map_err(|e| LocalError::Value(format!("{e}\n{}", cluster.servers[victim].log_tail(60))))?;
    }
    println!(
        "{kills} kills, {inside} of them inside a statement; {done} statements; {copied} state transfers"
    );
    same("state transfers", copied, 0);
    Ok(())
}

#[test]
fn member_killed_applying_ddl_executes_each_once() -> Test {
    killed_in_a_stream(0, 1, rounds(3))
}

#[test]
fn member_killed_running_ddl_executes_each_once() -> Test {
    killed_in_a_stream(2, 2, rounds(3))
}

/// Killed when its mark says that a statement is done, and `grastate.dat` does not say yet which history the database is
/// of: it comes back by the log. Where somebody removed that file, it takes a state transfer as he wished.
#[test]
fn member_killed_after_ddl_rejoins_by_log() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // it has no marks
    }
    let mut cluster = shared()?;
    session(&cluster, 0)?.query("CREATE TABLE w (id INT PRIMARY KEY)")?;
    cluster.same_everywhere("SELECT COUNT(*) FROM test.w")?;
    let state = cluster.servers[1].datadir().join("grastate.dat");
    for removed in [false, true] {
        mark(&cluster.servers[1])?;
        cluster.servers[1].kill();
        if removed {
            std::fs::remove_file(&state).expect("grastate.dat is there");
        } else {
            let text = "# GALERA saved state\nversion: 2.1\nuuid:    00000000-0000-0000-0000-000000000000\n\
                        seqno:   -1\nsafe_to_bootstrap: 0\n\
                        # within a statement in total order: see lockstep.ddl.log\n";
            std::fs::write(&state, text).expect("grastate.dat can be written");
        }
        cluster.servers[1].start(&[])?;
        cluster.wait_size(3)?;
        same("its database is its own", unmark(&cluster.servers[1])?, !removed);
    }
    agree(&cluster)
}

/// All members die inside `slow`, and start again by themselves.
fn all_killed_in(slow: &str, prepare: &[&str]) -> Result<crate::fixture::Shared, LocalError> {
    let mut cluster = shared()?;
    session(&cluster, 0)?.run(prepare)?;
    cluster.same_everywhere("SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'test'")?;
    let mut client = session(&cluster, 0)?;
    client.send(slow)?;
    // Until all members are in it.
    for server in &cluster.servers {
        let path = server.datadir().join("grastate.dat");
        crate::fixture::eventually("the statement begins", || {
            Ok(std::fs::read_to_string(&path).is_ok_and(|s| s.contains("uuid:    00000000")))
        })?;
    }
    for server in &mut cluster.servers {
        server.kill();
    }
    for n in [1, 2, 0] {
        cluster.servers[n].spawn(&[])?;
    }
    for server in &mut cluster.servers {
        server.wait_ready(START_TIMEOUT)?;
    }
    cluster.wait_size(3)?;
    Ok(cluster)
}

#[test]
fn all_members_killed_inside_a_statement_come_back() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // nobody has a position then
    }
    let cluster = all_killed_in(
        "ALTER TABLE big ADD INDEX (pad), ALGORITHM=COPY",
        &[
            "CREATE TABLE big (id INT PRIMARY KEY, pad CHAR(100))",
            "INSERT INTO big SELECT seq, seq FROM seq_1_to_60000",
        ],
    )?;
    let indexes = cluster.same_everywhere(
        "SELECT COUNT(*) FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = 'test' AND TABLE_NAME = 'big'",
    )?;
    same("indexes", indexes.number()?, 2);
    agree(&cluster)
}

/// Rows of a table without transactions, in total order: whether they are there nobody can tell.
#[test]
fn all_members_killed_in_traceless_ddl_agree_again() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // nobody has a position then
    }
    let cluster = all_killed_in(
        "INSERT INTO plain SELECT seq FROM seq_1_to_30 WHERE SLEEP(0.1) = 0",
        &["CREATE TABLE plain (id INT) ENGINE=Aria", "SET GLOBAL wsrep_mode = 'REPLICATE_ARIA'"],
    )?;
    let log = cluster.servers.iter().map(|s| s.log()).collect::<String>();
    assert!(log.contains("was executed: all were killed in it"), "it was known what became of the statement");
    agree(&cluster)?;
    others_see(&cluster, &[])
}

/// Starts a killed server with a pending journal mark: it comes back without a state transfer, and creates its table again.
/// Returns its log lines about that.
fn creates_again(cluster: &mut Cluster, n: usize) -> Result<String, LocalError> {
    let before = cluster.servers[n].log().len();
    cluster.servers[n].start(&[])?;
    cluster.wait_size(3)?;
    let log = cluster.servers[n].log_since(before);
    assert!(unmark(&cluster.servers[n])?, "the whole database was copied:\n{log}");
    assert!(
        log.contains("may have been created before this server crashed"),
        "it did not come again:\n{log}"
    );
    Ok(log)
}

/// `CREATE TABLE ... SELECT` is the last that its origin does before it is killed: InnoDB there does not know that it has
/// it.
#[test]
fn ctas_before_kill_is_applied_once() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // it takes a state transfer
    }
    let mut cluster = shared()?;
    for (round, sql) in [
        "CREATE TABLE c0 (id INT PRIMARY KEY, p VARCHAR(300)) SELECT seq id, REPEAT('x', 20) p FROM seq_1_to_10",
        // Without a key, a row applied twice would exist twice.
        "CREATE TABLE IF NOT EXISTS c1 SELECT seq id FROM seq_1_to_10",
    ]
    .iter()
    .enumerate()
    {
        mark(&cluster.servers[2])?;
        session(&cluster, 2)?.query(sql)?;
        std::thread::sleep(Duration::from_secs(1));
        cluster.servers[2].kill();
        others_see(&cluster, &[2])?;
        creates_again(&mut cluster, 2)?;
        same("rows", cluster.same_everywhere(&format!("SELECT COUNT(*) FROM test.c{round}"))?.number()?, 10);
        agree(&cluster)?;
    }
    Ok(())
}

/// A statement after it, in which its origin is killed: it is executed on the table that was created again, also where
/// the origin is killed on the way there.
#[test]
fn ddl_after_ctas_replay_is_executed() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // it takes a state transfer
    }
    let mut cluster = shared()?;
    mark(&cluster.servers[2])?;
    let mut client = session(&cluster, 2)?;
    client.query(
        "CREATE TABLE c (id INT PRIMARY KEY, p CHAR(100)) SELECT seq id, seq p FROM seq_1_to_200000",
    )?;
    client.send("ALTER TABLE c ADD INDEX (p), ALGORITHM=COPY")?;
    let state = cluster.servers[2].datadir().join("grastate.dat");
    crate::fixture::eventually("the statement begins", || {
        Ok(std::fs::read_to_string(&state).is_ok_and(|s| s.contains("uuid:    00000000")))
    })?;
    cluster.servers[2].kill();
    // And once more, when the table has been or is being created again and the statement's turn comes.
    let before = cluster.servers[2].log().len();
    cluster.servers[2].spawn(&[])?;
    crate::fixture::eventually("the table is created again", || {
        Ok(cluster.servers[2].log_since(before).contains("may have been created before this server crashed"))
    })?;
    std::thread::sleep(Duration::from_millis(Dice(std::process::id().into()).roll(2000)));
    cluster.servers[2].kill();
    let before = cluster.servers[2].log().len();
    cluster.servers[2].start(&[])?;
    cluster.wait_size(3)?;
    let log = cluster.servers[2].log_since(before);
    assert!(unmark(&cluster.servers[2])?, "the whole database was copied:\n{log}");
    same(
        "indexes",
        cluster
            .same_everywhere(
                "SELECT COUNT(*) FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = 'test' AND TABLE_NAME = 'c'",
            )?
            .number()?,
        2,
    );
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.c")?.number()?, 200_000);
    agree(&cluster)
}

/// An applier is killed when it has the table, and its rows not yet.
#[test]
fn member_killed_inside_ctas_has_table_and_rows() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // it takes a state transfer
    }
    let mut cluster = shared()?;
    mark(&cluster.servers[1])?;
    let mut client = session(&cluster, 0)?;
    client
        .send("CREATE TABLE c (id INT PRIMARY KEY, p CHAR(100)) SELECT seq id, seq p FROM seq_1_to_300000")?;
    let table = cluster.servers[1].datadir().join("test").join("c.frm");
    crate::fixture::eventually("the table is there", || Ok(table.exists()))?;
    cluster.servers[1].kill();
    creates_again(&mut cluster, 1)?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.c")?.number()?, 300_000);
    agree(&cluster)
}
