//! Two members have transactions of the same id under way. An id is the number of the statement that began it, and each
//! server counts for itself. The call that aborts a transaction names nothing else.

use std::time::{Duration, Instant};

use lockstep_local::{Client, LocalError};

use crate::fixture::{Kind, Test, fails, kind, same, session, shared};

/// The number of a statement of this session.
fn statement(client: &mut Client) -> Result<i64, LocalError> {
    client.number("SELECT QUERY_ID FROM information_schema.PROCESSLIST WHERE ID = CONNECTION_ID()")
}

/// Both begin a transaction with the same id.
fn begin_both(one: &mut Client, other: &mut Client) -> Test {
    for _ in 0..20 {
        let ahead = statement(one)? - statement(other)?;
        let behind = if ahead < 0 { &mut *one } else { &mut *other };
        for _ in 0..ahead.abs() {
            behind.query("DO 1")?;
        }
        one.query("BEGIN")?;
        other.query("BEGIN")?;
        // Something else may have come between.
        if statement(one)? == statement(other)? {
            return Ok(());
        }
        one.query("ROLLBACK")?;
        other.query("ROLLBACK")?;
    }
    Err(LocalError::Value(
        "the servers' statements cannot be counted alike: something runs on one of them".into(),
    ))
}

#[test]
fn ddl_aborts_streaming_applier_with_shared_id() -> Test {
    // Galera's library refuses one of the two aborts, and the statement waits for ever.
    if kind() == Kind::Galera {
        return Ok(());
    }
    let cluster = shared()?;
    session(&cluster, 0)?.query("CREATE TABLE s (id INT PRIMARY KEY, t CHAR(1))")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.s")?.number()?, 0);
    for round in 0..3 {
        let (mut streams, mut local) = (cluster.servers[0].client()?, cluster.servers[1].client()?);
        streams.query("SET SESSION wsrep_trx_fragment_unit = 'rows', wsrep_trx_fragment_size = 1")?;
        begin_both(&mut streams, &mut local)?;
        local.query("INSERT INTO test.s VALUES (4, 'z')")?;
        streams.query("INSERT INTO test.s VALUES (1, 'x'), (2, 'x'), (3, 'x')")?;
        // Its fragments are applied there when this is.
        let mut third =
            Client::connect(&cluster.servers[1].config.socket(), "root", Duration::from_secs(20))?;
        third.run(&["SET SESSION wsrep_sync_wait = 15", "SELECT COUNT(*) FROM mysql.db"])?;
        let began = Instant::now();
        third.query("TRUNCATE TABLE test.s")?;
        eprintln!("round {round}: {:?}", began.elapsed());
        for client in [&mut streams, &mut local] {
            fails(client, "COMMIT", 1213)?;
        }
        same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.s")?.number()?, 0);
    }
    Ok(())
}
