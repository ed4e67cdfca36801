//! The leader's measurements of the path to a peer, for relaying.
//!
//! **The bytes in flight through a relay** are bounded by its reply times. So a change of relay repeats few bytes, other
//! messages do not queue behind them for long, and a silence is significant.

use crate::raft::inflight::Sent;
use crate::types::*;

/// The bytes in flight to a relay at first, and at least.
const FIRST: usize = 1 << 20;
const LEAST: usize = 128 << 10;

/// Messages of at least this size are used to measure the rate of the path.
const LARGE: usize = 64 << 10;

/// µs per 1 KiB: the initial estimate (1 MB/s; slower paths are measured), and the maximum.
const TIME_PER_KIB: (Micros, Micros) = (1_000, 16_000);

/// The estimate of the round trip follows a longer one by this fraction of the difference.
const SLOWLY: Micros = 64;

#[derive(Debug)]
pub(super) struct Path {
    /// The shortest recent round trip. It follows longer ones slowly, because those may have waited behind entries.
    shortest: Option<Micros>,
    /// The most bytes in flight to the peer while it relays.
    share: usize,
    shrunk_at: Micros,
    /// Estimated µs for 1 KiB.
    time_per_kib: Micros,
    /// Bytes that the peer has confirmed.
    confirmed: u64,
    /// The time of the last confirmation.
    moved_at: Micros,
    /// The bytes a second that it took as a relay while more entries waited, and the time of that measurement.
    rate: Option<(u64, Micros)>,
}

impl Default for Path {
    fn default() -> Path {
        Path {
            shortest: None,
            share: FIRST,
            shrunk_at: 0,
            time_per_kib: TIME_PER_KIB.0,
            confirmed: 0,
            moved_at: 0,
            rate: None,
        }
    }
}

impl Path {
    /// Records the round trip of a small message.
    pub(super) fn measured(&mut self, took: Micros) {
        self.shortest = Some(match self.shortest {
            Some(shortest) if took > shortest => shortest + (took - shortest).div_ceil(SLOWLY),
            _ => took,
        });
    }

    pub(super) fn shortest(&self) -> Micros {
        self.shortest.unwrap_or(0)
    }

    /// Records the confirmation of `bytes`, from message `first` to `last`. `moment`: the delay of a reply beyond the round
    /// trip that is still normal.
    pub(super) fn confirmed(
        &mut self,
        (first, last): (Sent, Sent),
        bytes: usize,
        now: Micros,
        moment: Micros,
    ) {
        if bytes >= LARGE {
            let took = now.saturating_sub(first.at.max(self.moved_at)).saturating_sub(self.shortest());
            let time_per_kib = (took / (bytes >> 10) as Micros).min(TIME_PER_KIB.1);
            self.time_per_kib = time_per_kib.max(self.time_per_kib - self.time_per_kib / 8);
        }
        self.moved_at = now;
        self.confirmed += bytes as u64;
        if now.saturating_sub(last.at) <= self.shortest() + moment {
            self.share = self.share.saturating_add(bytes);
        } else if last.at >= self.shrunk_at {
            self.share = (self.share / 2).max(LEAST);
            self.shrunk_at = now;
        }
    }

    /// The most bytes in flight while the peer relays; at most `most`.
    pub(super) fn share(&mut self, most: usize) -> usize {
        self.share = self.share.min(most.max(LEAST));
        self.share.min(most)
    }

    /// The peer begins to relay. `before`: the share of the relay that it replaces.
    pub(super) fn begin(&mut self, before: Option<usize>) {
        self.share = before.map_or(FIRST, |share| share.min(FIRST));
    }

    pub(super) fn share_now(&self) -> usize {
        self.share
    }

    pub(super) fn time_per_kib(&self) -> Micros {
        self.time_per_kib
    }

    /// See the field.
    pub(super) fn rate(&self) -> Option<(u64, Micros)> {
        self.rate
    }

    pub(super) fn set_rate(&mut self, rate: u64, now: Micros) {
        self.rate = Some((rate, now));
    }

    pub(super) fn bytes_confirmed(&self) -> u64 {
        self.confirmed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Micros = 150_000;

    fn confirm(path: &mut Path, bytes: usize, sent: Micros, now: Micros) {
        let sent = Sent { last: 1, bytes, at: sent };
        path.confirmed((sent, sent), bytes, now, MOMENT);
    }

    #[test]
    fn share_follows_reply_time() {
        let mut path = Path::default();
        path.measured(20_000);
        for n in 0..100 {
            confirm(&mut path, 1 << 20, n * 100_000, n * 100_000 + 30_000);
        }
        assert_eq!(path.share(16 << 20), 16 << 20);
        assert_eq!(path.share(1 << 20), 1 << 20);
        // Late answers halve the share, once for all bytes that were in flight then.
        let mut path = Path::default();
        path.measured(20_000);
        for sent in [0, 10, 20] {
            confirm(&mut path, 100_000, sent, 300_000);
        }
        assert_eq!(path.share(16 << 20), FIRST / 2);
        for n in 1..10 {
            confirm(&mut path, 100_000, n * 300_000, n * 300_000 + 300_000);
        }
        assert_eq!(path.share(16 << 20), LEAST);
    }

    #[test]
    fn slow_pace_is_learned_fast_and_forgotten_slowly() {
        let mut path = Path::default();
        confirm(&mut path, 1 << 20, 0, 8_000_000);
        assert_eq!(path.time_per_kib(), 8_000_000 >> 10);
        confirm(&mut path, 1 << 20, 8_000_000, 8_010_000);
        assert!((6_800..7_000).contains(&path.time_per_kib()), "{}", path.time_per_kib());
        for n in 0..100 {
            confirm(&mut path, 1 << 20, 9_000_000 + n * 10_000, 9_010_000 + n * 10_000);
        }
        assert!(path.time_per_kib() < 20, "{}", path.time_per_kib());
        // Small messages are no measure.
        confirm(&mut path, 100, 10_000_000, 20_000_000);
        assert!(path.time_per_kib() < 20, "{}", path.time_per_kib());
    }
}
