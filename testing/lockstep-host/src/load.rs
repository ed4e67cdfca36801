//! A load for measuring providers: threads that commit small transactions as fast as they can.

use crate::host::{Host, HostError};
use crate::store::{Changes, Op};
use lockstep_abi::KeyType;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Client threads.
    pub threads: usize,
    /// How long.
    pub duration: Duration,
    /// Rows to choose from; few make conflicts.
    pub rows: u64,
    /// Rows changed by a transaction.
    pub writes: u64,
    /// Bytes of a row's value.
    pub bytes: usize,
    /// Seed of the choice of rows.
    pub seed: u64,
    /// Of a hundred transactions, how many are streaming: a fragment after each write.
    pub streams: u64,
    /// Of a hundred, how many change one row and take a lock between rows, for which there is no key: these
    /// are aborted after certification, and replayed.
    pub gaps: u64,
    /// Of a hundred, how many are statements in total order.
    pub statements: u64,
    /// Of a hundred, how many are rolled back instead of committed.
    pub rollbacks: u64,
}

/// The result.
#[derive(Clone, Debug, Default)]
pub struct LoadResult {
    /// Transactions committed.
    pub committed: u64,
    /// Transactions that lost against others.
    pub conflicts: u64,
    /// Transactions replayed.
    pub replays: u64,
    /// Transactions that failed for another reason, and the last such reason.
    pub failed: u64,
    /// That reason.
    pub failure: Option<String>,
    /// Latencies of commits in microseconds, sorted.
    pub latencies_us: Vec<u64>,
}

impl LoadResult {
    /// The latency below which `share` (0 to 1) of the commits are, in microseconds.
    pub fn quantile_us(&self, share: f64) -> u64 {
        let last = self.latencies_us.len().saturating_sub(1);
        self.latencies_us.get((last as f64 * share).round() as usize).copied().unwrap_or(0)
    }
}

/// A xorshift generator: a load must be repeatable and needs no more than this.
struct Choice(u64);

impl Choice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

static CONNECTIONS: AtomicU64 = AtomicU64::new(1_000_000);

/// Runs `load` on this server.
pub fn run(host: &'static Host, load: Load) -> LoadResult {
    let end = Instant::now() + load.duration;
    let threads: Vec<_> = (0..load.threads)
        .map(|n| {
            let choice = Choice((load.seed ^ (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
            std::thread::spawn(move || client(host, load, choice, end))
        })
        .collect();
    let mut total = LoadResult::default();
    for thread in threads {
        let Ok(part) = thread.join() else {
            total.failed += 1;
            total.failure = Some("a client thread panicked".into());
            continue;
        };
        let LoadResult { committed, conflicts, replays, failed, failure, latencies_us } = part;
        total.committed += committed;
        total.conflicts += conflicts;
        total.replays += replays;
        total.failed += failed;
        total.failure = failure.or(total.failure);
        total.latencies_us.extend(latencies_us);
    }
    total.latencies_us.sort_unstable();
    total
}

fn client(host: &'static Host, load: Load, mut choice: Choice, end: Instant) -> LoadResult {
    let conn = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    let mut out = LoadResult::default();
    while Instant::now() < end && out.failed < 1000 {
        let began = Instant::now();
        match transaction(host, conn, load, &mut choice) {
            Ok(replays) => {
                out.committed += 1;
                out.replays += u64::from(replays);
                out.latencies_us.push(began.elapsed().as_micros() as u64);
            }
            Err(error) if is_conflict(&error) => {
                out.conflicts += 1;
            }
            Err(error) => {
                out.failed += 1;
                out.failure = Some(error.to_string());
            }
        }
    }
    out
}

/// Conflicts with other clients.
fn is_conflict(error: &HostError) -> bool {
    error.code == "deadlock" || error.code == "lock" || error.code.starts_with("status:TRX_FAIL")
}

fn transaction(host: &Host, conn: u64, load: Load, choice: &mut Choice) -> Result<u32, HostError> {
    let mut share = choice.next() % 100;
    let mut is = |percent: u64| {
        let hit = share < percent;
        share = share.wrapping_sub(percent);
        hit
    };
    if is(load.statements) {
        // Not on the rows of the others: a statement ends open streams in its way without a rollback fragment,
        // which only works where every member has the same of them.
        let row = format!("schema/{}", choice.next() % load.rows.max(1));
        let changes =
            Changes { ops: vec![Op::Put(row, format!("{:016x}", choice.next()))], locks: Vec::new() };
        return host.total_order(conn, &changes, &[]).map(|_| 0);
    }
    let (streaming, between) = (is(load.streams), is(load.gaps));
    let trx = host.begin(conn);
    // In order, so that two clients of one server never wait for each other crosswise.
    let mut rows: Vec<u64> =
        (0..if between { 1 } else { load.writes }).map(|_| choice.next() % load.rows.max(1)).collect();
    rows.sort_unstable();
    rows.dedup();
    for row in rows {
        let mut value = format!("{:016x}", choice.next());
        while value.len() < load.bytes {
            value.push('.');
        }
        let locks = if between { vec![format!("{}", choice.next() % 4)] } else { Vec::new() };
        let mut written = host.write(&trx, Op::Put(format!("load/{row}"), value), &locks, KeyType::UPDATE);
        if streaming && written.is_ok() {
            written = host.fragment(&trx).map(|_| ());
        }
        if let Err(error) = written {
            host.roll_back(&trx);
            return Err(error);
        }
    }
    if choice.next() % 100 < load.rollbacks {
        host.roll_back(&trx);
        return Ok(0);
    }
    Ok(host.commit(&trx)?.replays)
}
