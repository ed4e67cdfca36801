//! The server made a load generator. A *lean* server does only what a write-set costs every server, so it measures the
//! provider. Its origin does keys, data, certify, the turn in commit order and release; the others apply in commit order.
//! Instead of rows it keeps a digest of the committed write-sets in their order: members that agree have equal digests.

use crate::host::{Host, HostError};
use crate::log;
use lockstep_abi::*;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct LeanLoad {
    /// Client threads.
    pub clients: usize,
    /// How long.
    pub duration: Duration,
    /// Rows that belong to each client alone.
    pub keys: u64,
    /// Rows changed by a transaction.
    pub writes: u64,
    /// Bytes of a write-set's data.
    pub bytes: usize,
    /// Of a hundred transactions, how many change one of a few rows that all clients of all members share.
    pub conflict: u64,
    /// The number of this member among all, so that its clients have their own rows.
    pub member: u64,
}

/// Rows that all share where [`LeanLoad::conflict`] says so.
const SHARED_ROWS: u64 = 4;

/// The data that members of a lean server's cluster compare.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    seqno: AtomicI64,
    digest: AtomicU64,
    count: AtomicU64,
    disorder: AtomicU64,
}

impl Ledger {
    /// Only called inside commit order: the provider makes these steps exclusive.
    fn commit(&self, seqno: Seqno, data: &[u8]) {
        if self.seqno.swap(seqno, Ordering::Relaxed) >= seqno {
            self.disorder.fetch_add(1, Ordering::Relaxed);
        }
        let mut hash = self.digest.load(Ordering::Relaxed) ^ seqno as u64;
        for bytes in data.chunks(8).take(2) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        }
        self.digest.store(hash ^ data.len() as u64, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn describe(&self) -> Value {
        json!({
            "seqno": self.seqno.load(Ordering::SeqCst),
            "digest": format!("{:016x}", self.digest.load(Ordering::SeqCst)),
            "count": self.count.load(Ordering::SeqCst),
            "disorder": self.disorder.load(Ordering::SeqCst),
        })
    }
}

/// Counts of latencies in buckets that are each at most a 32nd of their value wide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    sum_us: u64,
    min_us: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: Vec::new(), sum_us: 0, min_us: u64::MAX }
    }
}

const STEPS: u64 = 32;

fn bucket(us: u64) -> usize {
    if us < STEPS {
        return us as usize;
    }
    let shift = us.ilog2() - STEPS.ilog2();
    (u64::from(shift + 1) * STEPS + ((us >> shift) - STEPS)) as usize
}

/// The middle of a bucket.
fn value(bucket: usize) -> f64 {
    let (row, at) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    if row == 0 {
        return at as f64;
    }
    let width = 1u64 << (row - 1);
    ((STEPS + at) * width) as f64 + (width - 1) as f64 / 2.0
}

impl Histogram {
    /// Counts one.
    pub fn add(&mut self, us: u64) {
        let at = bucket(us.min(1 << 40));
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
        self.sum_us += us;
        self.min_us = self.min_us.min(us);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &Histogram) {
        self.min_us = self.min_us.min(other.min_us);
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.sum_us += other.sum_us;
    }

    /// The least, in microseconds; 0 where nothing was counted.
    pub fn min_us(&self) -> f64 {
        if self.min_us == u64::MAX { 0.0 } else { self.min_us as f64 }
    }

    /// The mean, in microseconds.
    pub fn mean_us(&self) -> f64 {
        self.sum_us as f64 / self.count().max(1) as f64
    }

    /// The latency below which `share` (0 to 1) of them are, in microseconds, give or take a 64th.
    pub fn quantile_us(&self, share: f64) -> f64 {
        let wanted = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return value(at);
            }
        }
        0.0
    }

    /// For the line protocol: least, sum, and the buckets that are not empty.
    pub fn to_json(&self) -> Value {
        let counts = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        json!({ "min": self.min_us, "sum": self.sum_us,
                "counts": counts.map(|(at, count)| json!([at, count])).collect::<Vec<_>>() })
    }

    /// What [`Histogram::to_json`] made; empty where it is something else.
    pub fn from_json(text: &Value) -> Histogram {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let mut out = Histogram {
            counts: Vec::new(),
            sum_us: number(&text["sum"]),
            min_us: text["min"].as_u64().unwrap_or(u64::MAX),
        };
        for pair in text["counts"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let at = number(&pair[0]) as usize;
            if at <= bucket(1 << 40) {
                out.counts.resize(out.counts.len().max(at + 1), 0);
                out.counts[at] += number(&pair[1]);
            }
        }
        out
    }
}

#[derive(Default)]
struct LoadResult {
    committed: u64,
    conflicts: u64,
    failed: u64,
    failure: Option<String>,
    latency: Histogram,
}

/// One client's load: the values common to its transactions.
struct Client {
    conn: ConnId,
    load: LeanLoad,
    /// Its number among all clients of all members.
    number: u64,
    data: Vec<u8>,
    random: u64,
    done: u64,
}

impl Client {
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

impl Host {
    /// Applies a write-set as a lean server does.
    pub(crate) fn lean_apply(&self, handle: &WsHandle, flags: u32, data: &[u8], meta: &TrxMeta) -> bool {
        let provider = self.called();
        if provider.commit_order_enter(handle, meta) != Status::OK {
            return false;
        }
        // One that failed certification takes its turn without data.
        if flags & FLAG_ROLLBACK == 0 && !data.is_empty() {
            self.ledger.commit(meta.gtid.seqno, data);
        }
        provider.commit_order_leave(handle, meta, &[]) == Status::OK
    }

    /// Runs a load of small transactions, and says what came out.
    pub fn lean_load(&'static self, load: LeanLoad) -> Value {
        let began = Instant::now();
        let end = began + load.duration;
        let threads: Vec<_> = (0..load.clients)
            .filter_map(|n| {
                let run = move || self.lean_client(load, n as u64, end);
                let spawned = std::thread::Builder::new().name("client".into()).spawn(run);
                spawned.inspect_err(|error| log::event("no_thread", &error.to_string())).ok()
            })
            .collect();
        let mut total = LoadResult::default();
        for thread in threads {
            let part = thread.join().unwrap_or_else(|_| LoadResult {
                failed: 1,
                failure: Some("a client thread panicked".into()),
                ..LoadResult::default()
            });
            total.committed += part.committed;
            total.conflicts += part.conflicts;
            total.failed += part.failed;
            total.failure = part.failure.or(total.failure);
            total.latency.merge(&part.latency);
        }
        json!({
            "committed": total.committed, "conflicts": total.conflicts, "failed": total.failed,
            "failure": total.failure, "seconds": began.elapsed().as_secs_f64(), "latency": total.latency.to_json(),
        })
    }

    fn lean_client(&self, load: LeanLoad, n: u64, end: Instant) -> LoadResult {
        let number = load.member * 1024 + n;
        let mut client = Client {
            conn: 1_000_000 + number,
            load,
            number,
            data: (0..load.bytes.max(16)).map(|at| (at * 7 % 251) as u8).collect(),
            random: (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            done: 0,
        };
        let mut out = LoadResult::default();
        while Instant::now() < end && out.failed < 1000 {
            match self.lean_transaction(&mut client) {
                Ok(Some(took)) => {
                    out.committed += 1;
                    out.latency.add(took.as_micros() as u64);
                }
                Ok(None) => out.conflicts += 1,
                Err(error) => {
                    out.failed += 1;
                    out.failure = Some(error.to_string());
                    // A member that is not in a state to write is not asked as fast as it can refuse.
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        out
    }

    /// How long the commit took, from `certify` to the end of `release`; `None`: it lost against another.
    fn lean_transaction(&self, client: &mut Client) -> Result<Option<Duration>, HostError> {
        let provider = self.provider()?;
        let id = self.next_trx.fetch_add(1, Ordering::Relaxed);
        let mut handle = WsHandle { trx_id: id, opaque: std::ptr::null_mut() };
        let mut meta = TrxMeta::UNDEFINED;
        let shared = client.next() % 100 < client.load.conflict;
        for write in 0..client.load.writes {
            let row = match shared && write == 0 {
                true => client.next() % SHARED_ROWS,
                false => (1 << 40) + (client.number << 44) + client.next() % client.load.keys.max(1),
            };
            let status =
                provider.append_key(&mut handle, &[b"bench", b"t", &row.to_be_bytes()], KeyType::UPDATE);
            if status != Status::OK {
                provider.release(&mut handle);
                return Err(HostError::status("append_key", status));
            }
        }
        client.done += 1;
        client.data[..8].copy_from_slice(&client.number.to_le_bytes());
        client.data[8..16].copy_from_slice(&client.done.to_le_bytes());
        let mut status = provider.append_data(&mut handle, &client.data);
        let began = Instant::now();
        if status == Status::OK {
            status = provider.certify(client.conn, &mut handle, FLAG_TRX_START | FLAG_TRX_END, &mut meta);
        }
        if status == Status::OK {
            status = provider.commit_order_enter(&handle, &meta);
            if status != Status::OK {
                return Err(HostError::status("commit_order_enter", status));
            }
            self.ledger.commit(meta.gtid.seqno, &client.data);
            provider.commit_order_leave(&handle, &meta, &[]);
            provider.release(&mut handle);
            return Ok(Some(began.elapsed()));
        }
        if !meta.gtid.is_undefined() && provider.commit_order_enter(&handle, &meta) == Status::OK {
            // Ordered and failed: it takes its turn, as in the server, after all that came before.
            let before = Gtid { seqno: meta.gtid.seqno - 1, ..meta.gtid };
            provider.sync_wait(Some(before), i32::MAX);
            provider.commit_order_leave(&handle, &meta, &[]);
        }
        provider.release(&mut handle);
        match status {
            Status::TRX_FAIL => Ok(None),
            status => Err(HostError::status("certify", status)),
        }
    }
}

/// Resources used so far and held now by this process.
pub(crate) fn usage() -> Value {
    // SAFETY: all-zero is a valid rusage, and the call only writes to it.
    let used = unsafe {
        let mut used = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &mut used);
        used
    };
    let us = |time: libc::timeval| time.tv_sec * 1_000_000 + time.tv_usec;
    let count = |dir: &str| std::fs::read_dir(dir).map_or(0, Iterator::count);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let field = |text: &str, name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    json!({
        "user_us": us(used.ru_utime), "system_us": us(used.ru_stime),
        "switches": used.ru_nvcsw, "preempted": used.ru_nivcsw,
        "rss_kib": field(&status, "VmRSS:"), "peak_kib": field(&status, "VmHWM:"),
        "threads": count("/proc/self/task"), "descriptors": count("/proc/self/fd"),
        "written_bytes": field(&io, "write_bytes:"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_near_the_truth() {
        let mut all = Histogram::default();
        let mut even = Histogram::default();
        for us in 1..=100_000 {
            if us % 2 == 0 { even.add(us) } else { all.add(us) }
        }
        all.merge(&Histogram::from_json(&even.to_json()));
        assert_eq!((all.count(), all.min_us()), (100_000, 1.0));
        assert!((all.mean_us() - 50_000.5).abs() < 1.0);
        for share in [0.001, 0.01, 0.5, 0.95, 0.99, 1.0] {
            let (is, near) = (100_000.0 * share, all.quantile_us(share));
            assert!((near - is).abs() <= is / 32.0 + 1.0, "{share}: {near} for {is}");
        }
    }

    #[test]
    fn each_bucket_holds_its_own_value() {
        for at in 0..600 {
            assert_eq!(bucket(value(at) as u64), at);
        }
    }

    #[test]
    fn ledger_detects_different_orders() {
        let ledger = |entries: &[(Seqno, &[u8])]| {
            let ledger = Ledger::default();
            entries.iter().for_each(|(seqno, data)| ledger.commit(*seqno, data));
            ledger.describe()
        };
        let one = ledger(&[(1, b"one"), (2, b"two")]);
        assert_eq!(one, ledger(&[(1, b"one"), (2, b"two")]));
        assert_ne!(one["digest"], ledger(&[(1, b"two"), (2, b"one")])["digest"]);
        assert_eq!(ledger(&[(2, b"two"), (1, b"one")])["disorder"], 1);
    }
}
