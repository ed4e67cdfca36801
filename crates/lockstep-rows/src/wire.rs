//! Bounded reading of little-endian fields, and the checksum of binlog events.

/// A cursor that never reads past its end.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a> {
    rest: &'a [u8],
}

impl<'a> Bytes<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Bytes<'a> {
        Bytes { rest }
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(n)?;
        self.rest = rest;
        Some(head)
    }

    /// An integer of `n` bytes, at most 8.
    pub(crate) fn int(&mut self, n: usize) -> Option<u64> {
        let bytes = self.take(n)?;
        Some(bytes.iter().rev().fold(0, |acc, &b| (acc << 8) | u64::from(b)))
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }

    /// An integer of variable length, as the client protocol packs it.
    pub(crate) fn packed(&mut self) -> Option<u64> {
        match self.byte()? {
            n @ 0..=250 => Some(u64::from(n)),
            252 => self.int(2),
            253 => self.int(3),
            254 => self.int(8),
            _ => None,
        }
    }
}

/// CRC-32 of the IEEE polynomial, one byte at a time: it runs over what a person looks at.
pub(crate) fn crc32(data: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    !data.iter().fold(!0u32, |crc, &b| (crc >> 8) ^ TABLE[((crc ^ u32::from(b)) & 0xff) as usize])
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u32;
        let mut k = 0;
        while k < 8 {
            c = if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 };
            k += 1;
        }
        table[i] = c;
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_the_standard_text() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
