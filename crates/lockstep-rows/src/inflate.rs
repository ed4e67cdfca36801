//! The decompressor for compressed events (zlib's format, RFC 1950 and 1951).
//!
//! Written out here because it is all that is needed of a compression library, and by far not the hot
//! path. Output is bounded by what the event's own header announces.

use crate::wire::Bytes;

/// More than any event holds uncompressed.
const MAX_OUTPUT: usize = 1 << 30;
const MAX_BITS: usize = 15;

/// Unpacks a compressed part of an event: one byte of algorithm and length of length, the length, zlib data.
pub(crate) fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    let mut b = Bytes::new(packed);
    let head = b.byte()?;
    // Bit 7: compressed; bits 4 to 6: algorithm, 0 is zlib; bits 0 to 2: bytes of the length.
    if head & 0x80 == 0 || head & 0x70 != 0 {
        return None;
    }
    let len = b.take(usize::from(head & 7)).filter(|l| l.len() <= 4)?;
    let len = len.iter().fold(0usize, |acc, &x| (acc << 8) | usize::from(x));
    if len > MAX_OUTPUT {
        return None;
    }
    let out = zlib(b.rest(), len)?;
    (out.len() == len).then_some(out)
}

/// Inflates a zlib stream to at most `limit` bytes and checks its checksum.
fn zlib(data: &[u8], limit: usize) -> Option<Vec<u8>> {
    let [cmf, flags, deflated @ ..] = data else { return None };
    let fits = cmf & 0x0f == 8 && (u16::from(*cmf) << 8 | u16::from(*flags)).is_multiple_of(31);
    if !fits || flags & 0x20 != 0 {
        return None;
    }
    let mut bits = Bits { data: deflated, at: 0, held: 0, count: 0 };
    let mut out = Vec::new();
    loop {
        let last = bits.take(1)?;
        match bits.take(2)? {
            0 => stored(&mut bits, &mut out, limit)?,
            1 => compressed(&mut bits, &mut out, limit, &fixed())?,
            2 => {
                let codes = dynamic(&mut bits)?;
                compressed(&mut bits, &mut out, limit, &codes)?;
            }
            _ => return None,
        }
        if last == 1 {
            break;
        }
    }
    bits.align();
    let check = (0..4).try_fold(0u32, |acc, _| Some((acc << 8) | bits.take(8)?))?;
    (adler32(&out) == check).then_some(out)
}

fn adler32(data: &[u8]) -> u32 {
    let (mut a, mut b) = (1u32, 0u32);
    for chunk in data.chunks(5000) {
        for &x in chunk {
            a += u32::from(x);
            b += a;
        }
        a %= 65521;
        b %= 65521;
    }
    b << 16 | a
}

struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    held: u32,
    count: u32,
}

impl Bits<'_> {
    /// The next `n` bits, at most 16.
    fn take(&mut self, n: u32) -> Option<u32> {
        while self.count < n {
            self.held |= u32::from(*self.data.get(self.at)?) << self.count;
            self.at += 1;
            self.count += 8;
        }
        let value = self.held & ((1 << n) - 1);
        self.held >>= n;
        self.count -= n;
        Some(value)
    }

    /// Goes to the next whole byte.
    fn align(&mut self) {
        self.held >>= self.count % 8;
        self.count -= self.count % 8;
    }
}

/// A canonical Huffman code: how many codes of each length, and the symbols in order.
struct Code {
    counts: [u16; MAX_BITS + 1],
    symbols: Vec<u16>,
}

impl Code {
    fn new(lengths: &[u8]) -> Option<Code> {
        let mut counts = [0u16; MAX_BITS + 1];
        for &l in lengths {
            counts[usize::from(l)] += 1;
        }
        counts[0] = 0;
        // More codes than there is room for mean garbage.
        let mut room = 1i32;
        for &c in &counts[1..] {
            room = (room << 1) - i32::from(c);
            if room < 0 {
                return None;
            }
        }
        let mut symbols = Vec::with_capacity(lengths.len());
        for length in 1..=MAX_BITS {
            let of_length = lengths.iter().enumerate().filter(|&(_, &l)| usize::from(l) == length);
            symbols.extend(of_length.map(|(symbol, _)| symbol as u16));
        }
        Some(Code { counts, symbols })
    }

    fn decode(&self, bits: &mut Bits<'_>) -> Option<u16> {
        let (mut code, mut first, mut index) = (0u32, 0u32, 0u32);
        for &count in &self.counts[1..] {
            let count = u32::from(count);
            code |= bits.take(1)?;
            if code < first + count {
                return self.symbols.get((index + code - first) as usize).copied();
            }
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        None
    }
}

struct Codes {
    literal: Code,
    distance: Code,
}

fn fixed() -> Codes {
    let mut lengths = [8u8; 288];
    lengths[144..256].fill(9);
    lengths[256..280].fill(7);
    let none = || Code { counts: [0; MAX_BITS + 1], symbols: Vec::new() };
    Codes {
        literal: Code::new(&lengths).unwrap_or_else(none),
        distance: Code::new(&[5; 30]).unwrap_or_else(none),
    }
}

fn dynamic(bits: &mut Bits<'_>) -> Option<Codes> {
    const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
    let literals = bits.take(5)? as usize + 257;
    let distances = bits.take(5)? as usize + 1;
    let order = bits.take(4)? as usize + 4;
    let mut lengths = [0u8; 19];
    for &place in &ORDER[..order] {
        lengths[place] = bits.take(3)? as u8;
    }
    let meta = Code::new(&lengths)?;
    let mut lengths: Vec<u8> = Vec::with_capacity(literals + distances);
    while lengths.len() < literals + distances {
        let (value, times) = match meta.decode(bits)? {
            l @ 0..=15 => (l as u8, 1),
            16 => (*lengths.last()?, 3 + bits.take(2)?),
            17 => (0, 3 + bits.take(3)?),
            _ => (0, 11 + bits.take(7)?),
        };
        lengths.extend(std::iter::repeat_n(value, times as usize));
    }
    if lengths.len() > literals + distances {
        return None;
    }
    Some(Codes { literal: Code::new(&lengths[..literals])?, distance: Code::new(&lengths[literals..])? })
}

fn stored(bits: &mut Bits<'_>, out: &mut Vec<u8>, limit: usize) -> Option<()> {
    bits.align();
    let len = bits.take(16)?;
    let check = bits.take(16)?;
    if len != !check & 0xffff || out.len() + len as usize > limit {
        return None;
    }
    for _ in 0..len {
        out.push(bits.take(8)? as u8);
    }
    Some(())
}

fn compressed(bits: &mut Bits<'_>, out: &mut Vec<u8>, limit: usize, codes: &Codes) -> Option<()> {
    const LENGTHS: [(u16, u8); 29] = [
        (3, 0),
        (4, 0),
        (5, 0),
        (6, 0),
        (7, 0),
        (8, 0),
        (9, 0),
        (10, 0),
        (11, 1),
        (13, 1),
        (15, 1),
        (17, 1),
        (19, 2),
        (23, 2),
        (27, 2),
        (31, 2),
        (35, 3),
        (43, 3),
        (51, 3),
        (59, 3),
        (67, 4),
        (83, 4),
        (99, 4),
        (115, 4),
        (131, 5),
        (163, 5),
        (195, 5),
        (227, 5),
        (258, 0),
    ];
    loop {
        let symbol = codes.literal.decode(bits)?;
        match symbol {
            0..=255 => {
                if out.len() >= limit {
                    return None;
                }
                out.push(symbol as u8);
            }
            256 => return Some(()),
            _ => {
                let (base, extra) = *LENGTHS.get(usize::from(symbol) - 257)?;
                let len = usize::from(base) + bits.take(u32::from(extra))? as usize;
                let symbol = u32::from(codes.distance.decode(bits)?);
                // Distances grow by powers of two, two symbols each: 1, 2, 3, 4, 5, 7, 9, 13, ...
                let distance = match symbol {
                    0..=1 => symbol + 1,
                    2..=29 => {
                        let extra = symbol / 2 - 1;
                        1 + ((2 + symbol % 2) << extra) + bits.take(extra)?
                    }
                    _ => return None,
                };
                let start = out.len().checked_sub(distance as usize)?;
                if out.len() + len > limit {
                    return None;
                }
                for i in start..start + len {
                    out.push(out[i]);
                }
            }
        }
    }
}
