//! Consumers of a binlog that note when each row arrives, and keep nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockstep_binlog::event::{HEADER_LEN, MAGIC, kind};
use lockstep_binlog::wire::source::{DumpRequest, Events, request_binlog};
use lockstep_binlog::wire::sql_client::{SqlClient, SqlClientError, Target};
use lockstep_local::{LocalError, Result};

use super::CatchUp;
use super::rig::Rig;

/// How long a consumer may take to have everything after a load.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a step of the protocol may take.
const ANSWER: Duration = Duration::from_secs(20);
/// How often a consumer looks whether it is to end.
const LOOK: Duration = Duration::from_millis(200);
/// A consumer's thread needs little.
const STACK: usize = 256 << 10;
/// The first server id of consumers.
const SERVER_ID: u32 = 5000;

/// A row's id, and when its transaction was complete at a consumer.
pub(super) type Arrival = (u64, Instant);

/// The transactions that have arrived at all consumers.
pub(super) struct Arrived {
    /// Of each consumer.
    pub(super) rows: Vec<Vec<Arrival>>,
    /// Connections end when these are dropped: until then their threads can be asked for their processor time.
    pub(super) connections: Vec<Events>,
}

/// The result of a consumer's thread.
type Read = Result<(Vec<Arrival>, Events)>;

/// Consumers that read.
pub(super) struct Consumers {
    threads: Vec<JoinHandle<Read>>,
    /// How many rows each has.
    counts: Vec<Arc<AtomicU64>>,
    stop: Arc<AtomicBool>,
}

fn failed(error: SqlClientError) -> LocalError {
    LocalError::Value(format!("a consumer cannot read the binlog: {error}"))
}

fn target(rig: &Rig) -> Target {
    let (address, (user, password)) = rig.source();
    Target { address, user: user.into(), password: password.into(), tls: None, timeout: ANSWER }
}

fn request(server_id: u32, file: String, offset: u32, non_block: bool) -> DumpRequest {
    let report_host = "consumer".into();
    let heartbeat = Duration::from_secs(10);
    DumpRequest { server_id, report_host, file, offset, semi_sync: false, non_block, heartbeat }
}

/// The end of the binlog: file and position.
fn end_of(client: &mut SqlClient) -> Result<(String, u32)> {
    let rows = client.rows("SHOW MASTER STATUS").map_err(failed)?;
    let mut row = rows.into_iter().next().unwrap_or_default().into_iter();
    let (file, offset) = (row.next().flatten(), row.next().flatten().and_then(|text| text.parse().ok()));
    file.zip(offset).ok_or_else(|| LocalError::Value("there is no binlog yet".into()))
}

impl Consumers {
    /// So many, which begin at the binlog's end. They leave out rows with ids up to `before`: a binlog that is served may not have
    /// all of them yet.
    pub(super) fn start(rig: &Rig, count: usize, before: u64) -> Result<Consumers> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut consumers = Consumers { threads: Vec::new(), counts: Vec::new(), stop: stop.clone() };
        if count == 0 {
            return Ok(consumers);
        }
        let target = target(rig);
        let (file, offset) = end_of(&mut SqlClient::connect(&target).map_err(failed)?)?;
        for at in 0..count {
            let client = SqlClient::connect(&target).map_err(failed)?;
            let request = request(SERVER_ID + at as u32, file.clone(), offset, false);
            let (events, _) = request_binlog(client, &request).map_err(failed)?;
            let (rows, stop) = (Arc::new(AtomicU64::new(0)), stop.clone());
            consumers.counts.push(rows.clone());
            let thread = std::thread::Builder::new().name("consumer".into()).stack_size(STACK);
            let thread = thread.spawn(move || read(events, before, &rows, &stop));
            consumers.threads.push(thread.map_err(LocalError::io("start a thread"))?);
        }
        Ok(consumers)
    }

    /// Waits until each consumer has so many rows.
    pub(super) fn finish(mut self, rows: u64) -> Result<Arrived> {
        let end = Instant::now() + TIMEOUT;
        while let Some(least) = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).min()
            && least < rows
        {
            if Instant::now() > end || self.threads.iter().any(JoinHandle::is_finished) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.stop.store(true, Ordering::Relaxed);
        let mut arrived = Arrived { rows: Vec::new(), connections: Vec::new() };
        for thread in std::mem::take(&mut self.threads) {
            let panicked = |_| LocalError::Value("a consumer panicked".into());
            let (all, events) = thread.join().map_err(panicked)??;
            if all.len() as u64 != rows {
                return Err(LocalError::Value(format!("a consumer has {} of {rows} rows", all.len())));
            }
            arrived.rows.push(all);
            arrived.connections.push(events);
        }
        Ok(arrived)
    }
}

impl Drop for Consumers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn read(mut events: Events, before: u64, rows: &AtomicU64, stop: &AtomicBool) -> Read {
    let (mut arrivals, mut open) = (Vec::new(), Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let mut next = events.next(LOOK).map_err(failed)?;
        while let Some(received) = next {
            match kind_of(&received.event) {
                Some(kind::WRITE_ROWS_V1) => {
                    open.extend(row_id(&received.event).filter(|id| *id > before));
                }
                Some(kind::XID) if !open.is_empty() => {
                    let now = Instant::now();
                    arrivals.extend(open.drain(..).map(|id| (id, now)));
                    rows.store(arrivals.len() as u64, Ordering::Relaxed);
                }
                _ => {}
            }
            next = events.next_received().map_err(failed)?;
        }
    }
    Ok((arrivals, events))
}

fn kind_of(event: &[u8]) -> Option<u8> {
    event.get(4).copied()
}

/// The id of the only row of an event: behind the table's number, flags, the number of columns (2), the columns' bits, and
/// the row's NULL bits.
fn row_id(event: &[u8]) -> Option<u64> {
    let row = event.get(HEADER_LEN + 8..)?;
    (*row.first()? == 2).then_some(())?;
    row.get(3..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Reads the whole binlog with one consumer; it must have so many rows.
pub(super) fn catch_up(rig: &Rig, ids: u64) -> Result<CatchUp> {
    let target = target(rig);
    let mut client = SqlClient::connect(&target).map_err(failed)?;
    let files = client.rows("SHOW BINARY LOGS").map_err(failed)?;
    let first = files.into_iter().next().and_then(|row| row.into_iter().next()).flatten();
    let first = first.ok_or_else(|| LocalError::Value("there is no binlog yet".into()))?;
    let began = Instant::now();
    let request = request(SERVER_ID, first, MAGIC.len() as u32, true);
    let (mut events, _) = request_binlog(client, &request).map_err(failed)?;
    let (mut transactions, mut rows) = (0, 0);
    loop {
        match events.next(ANSWER) {
            Ok(Some(received)) => match kind_of(&received.event) {
                Some(kind::XID) => transactions += 1,
                Some(kind::WRITE_ROWS_V1) => rows += u64::from(row_id(&received.event).is_some()),
                _ => {}
            },
            Ok(None) => return Err(LocalError::Value("the binlog does not end".into())),
            Err(SqlClientError::Ended) => break,
            Err(error) => return Err(failed(error)),
        }
    }
    let elapsed = began.elapsed();
    if rows == 0 || rows > ids {
        return Err(LocalError::Value(format!("the binlog has {rows} rows, and {ids} ids were given out")));
    }
    Ok(CatchUp { transactions, bytes: events.received(), elapsed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_read_from_a_row_event() {
        let mut event = vec![0; HEADER_LEN];
        event[4] = kind::WRITE_ROWS_V1;
        event.extend([9, 0, 0, 0, 0, 0, 1, 0, 2, 0xff, 0xfc]);
        event.extend(4711_u64.to_le_bytes());
        event.extend(b"\x08abcdefgh");
        assert_eq!((kind_of(&event), row_id(&event)), (Some(kind::WRITE_ROWS_V1), Some(4711)));
        event[HEADER_LEN + 8] = 3;
        assert_eq!(row_id(&event), None, "another table");
        for cut in 0..HEADER_LEN + 19 {
            assert_eq!(row_id(&event[..cut]), None);
        }
    }
}
