//! All chance in a simulation: one seed, one stream. xoshiro256++, seeded by splitmix64.

/// A seeded stream of numbers.
#[derive(Clone, Debug)]
pub(crate) struct Rng([u64; 4]);

/// One step of splitmix64: also a good way to mix a number.
pub(crate) fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The stream of this seed.
    pub(crate) fn new(seed: u64) -> Rng {
        let mut state = seed;
        Rng(std::array::from_fn(|_| splitmix(&mut state)))
    }

    /// 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// A number below `n`; 0 where `n` is 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high);
        low + self.below(high - low + 1)
    }

    /// True with a chance of `ppm` in a million.
    pub(crate) fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of these.
    ///
    /// # Panics
    /// Where there are none.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// The place of one of these weights, in proportion to it; `None` where all are 0.
    pub(crate) fn weighted(&mut self, weights: &[u32]) -> Option<usize> {
        let total: u64 = weights.iter().map(|w| u64::from(*w)).sum();
        if total == 0 {
            return None;
        }
        let mut at = self.below(total);
        weights.iter().position(|w| {
            let here = at < u64::from(*w);
            at = at.saturating_sub(u64::from(*w));
            here
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_stream_and_bounds_hold() {
        let (mut a, mut b, mut c) = (Rng::new(7), Rng::new(7), Rng::new(8));
        let mut differs = false;
        for _ in 0..1000 {
            let x = a.bits();
            assert_eq!(x, b.bits());
            differs |= x != c.bits();
            let y = a.between(3, 5);
            b.between(3, 5);
            assert!((3..=5).contains(&y));
        }
        assert!(differs);
    }

    #[test]
    fn weights_are_respected() {
        let mut rng = Rng::new(1);
        let mut hits = [0u32; 3];
        for _ in 0..10_000 {
            hits[rng.weighted(&[1, 0, 3]).unwrap()] += 1;
        }
        assert_eq!(hits[1], 0);
        assert!((2_200..2_800).contains(&hits[0]), "{hits:?}");
        assert_eq!(rng.weighted(&[0, 0]), None);
    }
}
