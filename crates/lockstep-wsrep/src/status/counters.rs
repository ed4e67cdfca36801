//! Numbers for `SHOW STATUS`: atomics only, so that a query never waits for a lock.

use lockstep_node::{Ordered, OwnStatus};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A counter that only grows.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(crate) fn get(&self) -> i64 {
        self.0.load(Relaxed) as i64
    }

    fn reset(&self) {
        self.0.store(0, Relaxed);
    }
}

/// The length of a queue: current, and the minimum, maximum and mean of the samples since the last reset.
#[derive(Default)]
pub(crate) struct Queue {
    now: AtomicI64,
    max: AtomicI64,
    min: AtomicI64,
    sum: AtomicI64,
    samples: AtomicI64,
}

impl Queue {
    /// An element enters.
    pub(crate) fn enter(&self) {
        let now = self.now.fetch_add(1, Relaxed) + 1;
        self.sample(now - 1);
    }

    /// An element leaves.
    pub(crate) fn leave(&self) {
        self.now.fetch_sub(1, Relaxed);
    }

    /// Samples a length that the caller counts.
    pub(crate) fn sample(&self, now: i64) {
        self.max.fetch_max(now, Relaxed);
        self.min.fetch_min(now, Relaxed);
        self.sum.fetch_add(now, Relaxed);
        self.samples.fetch_add(1, Relaxed);
    }

    pub(crate) fn now(&self) -> i64 {
        self.now.load(Relaxed).max(0)
    }

    pub(crate) fn max(&self) -> i64 {
        self.max.load(Relaxed)
    }

    pub(crate) fn min(&self) -> i64 {
        self.min.load(Relaxed)
    }

    pub(crate) fn mean(&self) -> f64 {
        ratio(self.sum.load(Relaxed), self.samples.load(Relaxed))
    }

    fn reset(&self, now: i64) {
        self.max.store(now, Relaxed);
        self.min.store(now, Relaxed);
        self.sum.store(0, Relaxed);
        self.samples.store(0, Relaxed);
    }
}

/// The time from `certify` until an own write-set is ordered, in microseconds.
#[derive(Default)]
pub(crate) struct Latency {
    samples: AtomicU64,
    sum: AtomicU64,
    squares: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
}

impl Latency {
    pub(crate) fn add(&self, took: Duration) {
        let us = (took.as_micros() as u64).clamp(1, 1 << 31);
        if self.samples.fetch_add(1, Relaxed) == 0 {
            self.min.store(us, Relaxed);
        }
        self.sum.fetch_add(us, Relaxed);
        // 64 bits hold 18 billion samples of one second.
        self.squares.fetch_add(us.saturating_mul(us) >> 10, Relaxed);
        self.min.fetch_min(us, Relaxed);
        self.max.fetch_max(us, Relaxed);
    }

    /// `min/avg/max/stddev/samples`, in seconds: the form of `wsrep_evs_repl_latency`.
    pub(crate) fn text(&self) -> String {
        let n = self.samples.load(Relaxed);
        if n == 0 {
            return "0/0/0/0/0".into();
        }
        let mean = self.sum.load(Relaxed) as f64 / n as f64;
        let square = self.squares.load(Relaxed) as f64 * 1024.0 / n as f64;
        let deviation = (square - mean * mean).max(0.0).sqrt();
        let s = 1e-6;
        format!(
            "{}/{}/{}/{}/{n}",
            self.min.load(Relaxed) as f64 * s,
            mean * s,
            self.max.load(Relaxed) as f64 * s,
            deviation * s
        )
    }

    /// The number of samples.
    pub(crate) fn samples(&self) -> u64 {
        self.samples.load(Relaxed)
    }

    /// The sum of all samples, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.sum.load(Relaxed) as f64 / 1e6
    }

    fn reset(&self) {
        for atomic in [&self.samples, &self.sum, &self.squares, &self.min, &self.max] {
            atomic.store(0, Relaxed);
        }
    }
}

/// Since when `wsrep_flow_control_paused` counts: the node's times at the last `FLUSH STATUS`, in microseconds.
#[derive(Default)]
pub(crate) struct PacedSince {
    uptime: AtomicU64,
    paced: AtomicU64,
}

impl PacedSince {
    /// The part of the time since then in which there was a limit (`apply.pace`).
    pub(crate) fn share(&self, own: &OwnStatus) -> f64 {
        let since = |seconds: f64, base: &AtomicU64| (seconds - base.load(Relaxed) as f64 / 1e6).max(0.0);
        let passed = since(own.uptime_seconds, &self.uptime);
        if passed > 0.0 { (since(own.paced_seconds, &self.paced) / passed).min(1.0) } else { 0.0 }
    }

    /// `FLUSH STATUS`.
    pub(crate) fn reset(&self, own: &OwnStatus) {
        self.uptime.store((own.uptime_seconds * 1e6) as u64, Relaxed);
        self.paced.store((own.paced_seconds * 1e6) as u64, Relaxed);
    }
}

/// All counters of the provider.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) replicated: Count,
    pub(crate) replicated_bytes: Count,
    pub(crate) keys: Count,
    pub(crate) keys_bytes: Count,
    pub(crate) data_bytes: Count,
    pub(crate) other_bytes: Count,
    pub(crate) received: Count,
    pub(crate) received_bytes: Count,
    pub(crate) local_commits: Count,
    pub(crate) local_cert_failures: Count,
    pub(crate) local_replays: Count,
    pub(crate) causal_reads: Count,
    /// Write-sets certified here, own and others'.
    pub(crate) certified: Count,
    /// Sum of the distances to the last dependency.
    pub(crate) deps_distance: Count,
    /// Sum of the distances to the last seqno that the origin had seen.
    pub(crate) interval: Count,
    /// Write-sets that an applier has started,
    pub(crate) applied: Count,
    /// those of them that started before a lower one had finished,
    pub(crate) applied_early: Count,
    /// and the sum of the numbers in progress at each start.
    pub(crate) apply_window: Count,
    /// Write-sets that had to wait for a dependency.
    pub(crate) apply_waits: Count,
    /// In `certify`, not ordered yet.
    pub(crate) send_queue: Queue,
    /// Sampled when an applier takes a delivery.
    pub(crate) recv_queue: Queue,
    pub(crate) latency: Latency,
    pub(crate) paced: PacedSince,
    /// The server's `desync`s without `resync`.
    pub(crate) desyncs: AtomicU32,
}

impl Counters {
    /// An own write-set of `size` bytes has been ordered.
    pub(crate) fn count_sent(&self, ordered: &Ordered, size: u64) {
        let set = &ordered.writeset;
        self.replicated.add(1);
        self.replicated_bytes.add(size);
        self.keys.add(set.key_count() as u64);
        self.keys_bytes.add(set.key_bytes() as u64);
        self.data_bytes.add(set.data.len() as u64);
        self.other_bytes.add((set.unordered.len() + set.annotation.len()) as u64);
    }

    /// For the means of `wsrep_cert_deps_distance` and `wsrep_cert_interval`.
    pub(crate) fn count_certified(&self, ordered: &Ordered) {
        self.certified.add(1);
        self.deps_distance.add((ordered.seqno - ordered.depends_on).max(0) as u64);
        self.interval.add((ordered.seqno - 1 - ordered.writeset.meta.last_seen).max(0) as u64);
    }

    /// `FLUSH STATUS`: resets means and extremes, but not the plain counts, as Galera does.
    pub(crate) fn reset(&self, recv_queue: i64) {
        self.send_queue.reset(self.send_queue.now());
        self.recv_queue.reset(recv_queue);
        for count in [
            &self.certified,
            &self.deps_distance,
            &self.interval,
            &self.applied,
            &self.applied_early,
            &self.apply_window,
            &self.apply_waits,
        ] {
            count.reset();
        }
        self.latency.reset();
    }
}

/// `sum / n`; 0 if `n` is 0.
pub(crate) fn ratio(sum: i64, n: i64) -> f64 {
    if n <= 0 { 0.0 } else { sum as f64 / n as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_keeps_extremes_until_reset() {
        let queue = Queue::default();
        queue.enter();
        queue.enter();
        queue.enter();
        queue.leave();
        assert_eq!((queue.now(), queue.min(), queue.max(), queue.mean()), (2, 0, 2, 1.0));
        queue.reset(queue.now());
        assert_eq!((queue.now(), queue.min(), queue.max(), queue.mean()), (2, 2, 2, 0.0));
    }

    #[test]
    fn paced_share_counts_since_last_reset() {
        let own = |uptime_seconds, paced_seconds| OwnStatus {
            uptime_seconds,
            paced_seconds,
            ..OwnStatus::default()
        };
        let paced = PacedSince::default();
        assert_eq!((paced.share(&own(0.0, 0.0)), paced.share(&own(100.0, 25.0))), (0.0, 0.25));
        paced.reset(&own(100.0, 25.0));
        assert_eq!((paced.share(&own(100.0, 25.0)), paced.share(&own(110.0, 30.0))), (0.0, 0.5));
    }

    #[test]
    fn latency_is_five_numbers_in_seconds() {
        let latency = Latency::default();
        assert_eq!(latency.text(), "0/0/0/0/0");
        latency.add(Duration::from_millis(10));
        latency.add(Duration::from_millis(30));
        let text = latency.text();
        let numbers: Vec<f64> = text.split('/').map(|part| part.parse().unwrap()).collect();
        assert_eq!((numbers[0], numbers[1], numbers[2], numbers[4]), (0.01, 0.02, 0.03, 2.0));
        assert!((numbers[3] - 0.01).abs() < 1e-4, "{text}");
        latency.reset();
        assert_eq!(latency.text(), "0/0/0/0/0");
    }
}
