//! A replica's position behind its writer, and its time to catch up.

use std::time::{Duration, Instant};

use lockstep_local::{Client, LocalError, Result, Server};

use crate::far::wait_for_copies;

/// How often a copy is asked where it is.
const PAUSE: Duration = Duration::from_millis(5);

/// The position applied by a server: a number that grows by one with each transaction. For MariaDB's own replication it is
/// the position `variable` of its only domain.
fn position(server: &Server, client: &mut Client, variable: &str) -> Result<u64> {
    match &server.config.wsrep {
        Some(_) => client.status("wsrep_last_committed")?.parse().map_err(|_| no_number()),
        None => last_of(&client.value(&format!("SELECT @@{variable}"))?),
    }
}

/// Of a member, or of a replica.
pub(crate) fn applied(server: &Server, client: &mut Client) -> Result<u64> {
    position(server, client, "gtid_slave_pos")
}

/// The position to reach: that of the written member, or of the primary.
pub(crate) fn written(server: &Server) -> Result<u64> {
    position(server, &mut server.client()?, "gtid_binlog_pos")
}

/// Waits until every server has what any of the first `writers` has committed, and then until all of them answer `rows` as the
/// first does. How long the former took, to some milliseconds; none where there is nobody to wait for. To be called when
/// nobody writes any more.
pub(crate) fn catch_up(
    servers: &[Server],
    writers: usize,
    timeout: Duration,
    rows: &str,
) -> Result<Option<Duration>> {
    if servers.len() < 2 {
        return Ok(None);
    }
    let began = Instant::now();
    // The last commit was one of theirs, and a commit returns where everything before it is applied.
    let each = servers[..writers].iter().map(written);
    let due = each.collect::<Result<Vec<u64>>>()?.into_iter().max().unwrap_or(0);
    // The only writer has what it has written.
    for server in &servers[usize::from(writers == 1)..] {
        let mut client = server.client()?;
        server.wait_until(timeout, PAUSE, "does not apply everything", || {
            Ok(applied(server, &mut client)? >= due)
        })?;
    }
    let took = began.elapsed();
    let all = servers[0].query(rows)?;
    wait_for_copies(&servers[1..], timeout, rows, all.value()?)?;
    Ok(Some(took))
}

pub(crate) fn no_number() -> LocalError {
    LocalError::Value("the server did not answer with a number".into())
}

/// The number of the only GTID in this position; 0 where it is empty.
pub(crate) fn last_of(gtid: &str) -> Result<u64> {
    match gtid.rsplit_once('-') {
        None if gtid.is_empty() => Ok(0),
        Some((_, number)) if !gtid.contains(',') => number.parse().map_err(|_| no_number()),
        _ => Err(no_number()),
    }
}

#[test]
fn positions_are_read_and_nothing_else() {
    assert_eq!(last_of("").unwrap(), 0);
    assert_eq!(last_of("0-1-1234").unwrap(), 1234);
    assert!(last_of("0-1-12,1-1-3").is_err() && last_of("x").is_err());
}
