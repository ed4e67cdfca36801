//! The leader's measurements of the path to a peer, for relaying.
//!
//! **The bytes in flight through a relay** are bounded by its reply times: no more than arrives within a moment. So a change
//! of relay repeats few bytes, other messages do not queue behind them for long, and a silence is significant.

use crate::raft::inflight::Sent;
use crate::types::*;

/// Bytes in flight at first, and at least.
const FIRST: usize = 1 << 20;
const LEAST: usize = 128 << 10;

/// Messages of so many bytes and more tell how fast they go.
const LARGE: usize = 64 << 10;

/// µs per 1 KiB: the initial estimate (1 MB/s; slower paths are measured), and the maximum.
const TIME_PER_KIB: (Micros, Micros) = (1_000, 16_000);

/// So slowly does the shortest round trip follow longer ones.
const SLOWLY: Micros = 64;

#[derive(Debug)]
pub(super) struct Path {
    /// The shortest time of a round trip lately: it follows longer ones slowly, for those may have waited behind entries.
    shortest: Option<Micros>,
    /// Bytes that may be on their way to it while it relays, if it is to be less than to others.
    share: usize,
    shrunk_at: Micros,
    /// µs that 1 KiB took.
    time_per_kib: Micros,
    /// Bytes that it has confirmed.
    confirmed: u64,
    /// When it last did.
    moved_at: Micros,
    /// How many bytes a second it took when it relayed and more was there, and when that was.
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
    /// A round trip of something small has taken so long.
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

    /// How many bytes may be on their way while it relays; at most `most`.
    pub(super) fn share(&mut self, most: usize) -> usize {
        self.share = self.share.min(most.max(LEAST));
        self.share.min(most)
    }

    /// It begins to relay, perhaps instead of one that took so much at a time.
    pub(super) fn begin(&mut self, before: Option<usize>) {
        self.share = before.map_or(FIRST, |share| share.min(FIRST));
    }

    pub(super) fn takes(&self) -> usize {
        self.share
    }

    pub(super) fn time_per_kib(&self) -> Micros {
        self.time_per_kib
    }

    /// How many bytes a second it took when it last relayed and more was there, and when that was.
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

    fn confirm(way: &mut Path, bytes: usize, sent: Micros, now: Micros) {
        let sent = Sent { last: 1, bytes, at: sent };
        way.confirmed((sent, sent), bytes, now, MOMENT);
    }

    #[test]
    fn share_follows_reply_time() {
        let mut way = Path::default();
        way.measured(20_000);
        for n in 0..100 {
            confirm(&mut way, 1 << 20, n * 100_000, n * 100_000 + 30_000);
        }
        assert_eq!(way.share(16 << 20), 16 << 20);
        assert_eq!(way.share(1 << 20), 1 << 20);
        // Answers that come late: half of it, once for all that was on the way then.
        let mut way = Path::default();
        way.measured(20_000);
        for sent in [0, 10, 20] {
            confirm(&mut way, 100_000, sent, 300_000);
        }
        assert_eq!(way.share(16 << 20), FIRST / 2);
        for n in 1..10 {
            confirm(&mut way, 100_000, n * 300_000, n * 300_000 + 300_000);
        }
        assert_eq!(way.share(16 << 20), LEAST);
    }

    #[test]
    fn slow_pace_is_learned_fast_and_forgotten_slowly() {
        let mut way = Path::default();
        confirm(&mut way, 1 << 20, 0, 8_000_000);
        assert_eq!(way.time_per_kib(), 8_000_000 >> 10);
        confirm(&mut way, 1 << 20, 8_000_000, 8_010_000);
        assert!((6_800..7_000).contains(&way.time_per_kib()), "{}", way.time_per_kib());
        for n in 0..100 {
            confirm(&mut way, 1 << 20, 9_000_000 + n * 10_000, 9_010_000 + n * 10_000);
        }
        assert!(way.time_per_kib() < 20, "{}", way.time_per_kib());
        // Small messages are no measure.
        confirm(&mut way, 100, 10_000_000, 20_000_000);
        assert!(way.time_per_kib() < 20, "{}", way.time_per_kib());
    }
}
