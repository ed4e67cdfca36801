//! Mutations of bytes: such as show what decoders forget, above all in lengths and counts.

/// A generator whose numbers depend on its seed alone (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Of this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One from 0 to below `n`; 0 for 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.number() >> 11) as usize % n.max(1)
    }
}

/// Numbers at which something changes.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_ffff,
];

/// What people's texts are made of, and what breaks them.
const WORDS: &[u8] = b" \t\n\r\0:;,.=-+/\\\"'[](){}?&%@#$*~09aAzZ\x7f\xc3\xa4\xff";

/// One of the inputs, with one to eight mutations.
pub(crate) fn mutated(from: &[Vec<u8>], max_len: usize, text: bool, random: &mut Random) -> Vec<u8> {
    let mut input = from[random.below(from.len())].clone();
    for _ in 0..1 + random.below(3) * random.below(4) {
        once(&mut input, from, text, random);
    }
    input.truncate(max_len);
    input
}

fn once(input: &mut Vec<u8>, from: &[Vec<u8>], text: bool, random: &mut Random) {
    let len = input.len();
    let at = random.below(len + 1);
    match random.below(12) {
        0 if at < len => input[at] ^= 1 << random.below(8),
        1 if at < len => input[at] = byte(text, random),
        2 => input.insert(at, byte(text, random)),
        3 if at < len => {
            input.remove(at);
        }
        4 => input.truncate(at),
        // A number of one, two, four or eight bytes, in either order.
        5 | 6 if at < len => {
            let width = (1 << random.below(4)).min(len - at);
            let edge = EDGES[random.below(EDGES.len())];
            let mut raw = edge.to_le_bytes();
            if random.below(4) == 0 {
                raw[..width].reverse();
            }
            input[at..at + width].copy_from_slice(&raw[..width]);
        }
        // A little more or less, as a length that is off by one.
        7 if at < len => {
            let by = [1, 255, 4, 252][random.below(4)];
            input[at] = input[at].wrapping_add(by);
        }
        // A piece once more, taken out, or from another input.
        8 => {
            let piece = piece(input, random, 64);
            input.splice(at..at, piece);
        }
        9 => {
            let end = (at + 1 + random.below(32)).min(len);
            input.drain(at.min(end)..end);
        }
        10 => {
            let other = &from[random.below(from.len())];
            let piece = piece(other, random, 256);
            let end = if random.below(2) == 0 { at } else { (at + piece.len()).min(len) };
            input.splice(at..end, piece);
        }
        _ => {
            let n = 1 + random.below(16);
            let filler = byte(text, random);
            input.splice(at..at, std::iter::repeat_n(filler, n));
        }
    }
}

fn byte(text: bool, random: &mut Random) -> u8 {
    match text && random.below(8) != 0 {
        true => WORDS[random.below(WORDS.len())],
        false => random.number() as u8,
    }
}

fn piece(from: &[u8], random: &mut Random, most: usize) -> Vec<u8> {
    let start = random.below(from.len() + 1);
    let end = (start + random.below(most)).min(from.len());
    from[start..end].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_inputs_and_others_differ() {
        let from = vec![b"one two three".to_vec(), vec![0; 40]];
        let some = |seed| {
            let mut random = Random::new(seed);
            (0..200).map(|_| mutated(&from, 100, false, &mut random)).collect::<Vec<_>>()
        };
        assert_eq!(some(1), some(1));
        assert_ne!(some(1), some(2));
        assert!(some(3).iter().all(|input| input.len() <= 100));
        assert!(some(3).iter().filter(|input| from.contains(input)).count() < 60);
    }
}
