//! What happened: always as a hash (two runs of one seed must agree), as text when asked.

use lockstep_core::Micros;
use lockstep_core::message::{Carried, Message};
use std::fmt;

/// The story of one simulation.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    print: bool,
    /// From this time on.
    from: Micros,
}

impl Trace {
    /// `print`: lines go to standard output, those from time `from` on.
    pub(crate) fn new(print: bool, from: Micros) -> Trace {
        Trace { hash: 0x6c6f_636b_7374_6570, print, from }
    }

    /// Adds a number to the hash.
    pub(crate) fn mix(&mut self, value: u64) {
        self.hash = (self.hash ^ value).wrapping_mul(0x9fb2_1c65_1e98_df25).rotate_left(29);
    }

    /// Whether lines are wanted at this time: spares the work of making them.
    pub(crate) fn wanted(&self, now: Micros) -> bool {
        self.print && now >= self.from
    }

    /// One line: time in seconds, whose, what.
    pub(crate) fn line(&self, now: Micros, who: &dyn fmt::Display, what: fmt::Arguments<'_>) {
        if self.wanted(now) {
            println!("{:>5}.{:06} {who:<4} {what}", now / 1_000_000, now % 1_000_000);
        }
    }

    /// All that was mixed in so far, as one number.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }
}

/// A 64-bit hash of bytes: quick, not for adversaries. Four lanes, so that the multiplications overlap.
pub(crate) fn hash_bytes(seed: u64, bytes: &[u8]) -> u64 {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let step = |h: u64, word: u64| {
        let wide = u128::from(h ^ word) * 0xa076_1d64_78bd_642f_u128;
        (wide as u64) ^ ((wide >> 64) as u64) ^ 0x1656_67b1_9e37_79f9
    };
    let start = seed ^ (bytes.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut h = start;
    let mut blocks = bytes.chunks_exact(32);
    if bytes.len() >= 32 {
        let mut lanes = [start, start ^ 1, start ^ 2, start ^ 3];
        for block in &mut blocks {
            for (lane, part) in lanes.iter_mut().zip(block.chunks_exact(8)) {
                *lane = step(*lane, word(part));
            }
        }
        h = lanes.into_iter().fold(h, step);
    }
    blocks.remainder().chunks(8).fold(h, |h, part| step(h, word(part)))
}

/// A message in one short line.
pub(crate) fn brief(message: &Message) -> String {
    match message {
        Message::Append { term, prev_index, prev_term, commit, persisted, context, entries } => format!(
            "append t{term} after {prev_index}/t{prev_term} +{} commit {commit} persisted {persisted} c{context}",
            entries.len()
        ),
        Message::Relay { term, to, context, carried } => {
            format!("relay t{term} to {} members {} c{context}", to.len(), brief_carried(carried))
        }
        Message::Relayed { term, carried } => format!("relayed t{term} {}", brief_carried(carried)),
        Message::Snapshot { term, state, context } => {
            format!("base t{term} {}/t{} c{context}", state.index, state.term)
        }
        Message::Propose { term, incarnation, first, proposals } => {
            format!("propose t{term} life {incarnation} #{first} +{}", proposals.len())
        }
        other => format!("{other:?}"),
    }
}

fn brief_carried(carried: &Carried) -> String {
    let Carried { prev_index, prev_term, commit, persisted, entries } = carried;
    format!("after {prev_index}/t{prev_term} +{} commit {commit} persisted {persisted}", entries.len())
}

#[cfg(test)]
mod tests {
    use super::hash_bytes;

    #[test]
    fn every_byte_and_the_length_count() {
        let mut seen = std::collections::BTreeSet::new();
        for length in 0..80 {
            let mut bytes = vec![0; length];
            assert!(seen.insert(hash_bytes(7, &bytes)), "{length} zeros");
            for at in 0..length {
                bytes[at] = 1;
                assert!(seen.insert(hash_bytes(7, &bytes)), "{length} bytes, 1 at {at}");
                bytes[at] = 0;
            }
        }
        assert_ne!(hash_bytes(7, &[1; 40]), hash_bytes(8, &[1; 40]));
    }
}
