//! Configuration of the Raft core.

use super::failpoints::Failpoints;
use crate::types::{MemberId, Micros};

/// Sizes and times. All times in µs.
#[derive(Clone, Debug)]
pub struct Config {
    /// This member's id.
    pub id: MemberId,
    /// The incarnation of this process: larger than any before.
    pub incarnation: u64,
    /// The interval of a leader's heartbeats.
    pub heartbeat: Micros,
    /// Silence of a leader after which others campaign; randomised to up to twice this.
    pub election_timeout: Micros,
    /// A disk that completes no write for this long hangs: it no longer counts towards a leader's majority; 0: never. See
    /// [`super::Raft::set_disk_timeout`].
    pub disk_timeout: Micros,
    /// A segment of the log that has reached this many bytes is followed by a new one.
    pub segment_bytes: u64,
    /// The most bytes of entries in one message (one entry may be larger).
    pub max_append_bytes: usize,
    /// The most bytes on the way to one peer and not yet answered (one message may be larger).
    pub max_inflight_bytes: usize,
    /// Entries kept in memory beyond those that must be.
    pub cache_bytes: usize,
    /// A follower takes no more entries while so many bytes of them are on their way to its disk, and then until it is half
    /// as much. There may be `max_inflight_bytes` more.
    pub max_unwritten_bytes: usize,
    /// A leader under a weak policy delivers at most this many bytes of entries, or one entry more, beyond the commit
    /// index. They are all kept in memory, and unsent ones are lost with it.
    pub max_at_risk_bytes: usize,
    /// Seed of the random numbers.
    pub seed: u64,
    /// The injected fault, in tests of the tests.
    pub failpoints: Failpoints,
}

/// Random numbers for election timeouts (SplitMix64): seeded, so that a run can be repeated.
#[derive(Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(config: &Config) -> Rng {
        let (high, low) = config.id.0.split_at(8);
        let word = |half: &[u8]| half.iter().fold(0u64, |acc, b| acc << 8 | u64::from(*b));
        Rng(config.seed ^ word(high) ^ word(low).rotate_left(17) ^ config.incarnation.rotate_left(40))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of 0..n; 0 where n is 0.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next() % n }
    }
}
