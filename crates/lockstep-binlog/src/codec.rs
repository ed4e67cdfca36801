//! Reads little-endian fields from bytes of a disk or a network. Every read is bounded; nothing here panics.

use std::fmt;

/// Why bytes could not be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecodeError {
    /// They end before the value is complete.
    Short,
    /// A field has a value that it must not have; names the field.
    Invalid(&'static str),
    /// The checksum does not match.
    Checksum,
    /// More bytes follow than the value has.
    Trailing,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Short => f.write_str("ends too early"),
            DecodeError::Invalid(what) => write!(f, "has an invalid {what}"),
            DecodeError::Checksum => f.write_str("fails its checksum"),
            DecodeError::Trailing => f.write_str("is longer than it should be"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Takes fields from the front of a slice.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads these bytes.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// The next byte, which stays.
    pub fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    /// The bytes before the next NUL, which is consumed.
    pub fn until_nul(&mut self) -> Result<&'a [u8], DecodeError> {
        let at = self.0.iter().position(|byte| *byte == 0).ok_or(DecodeError::Short)?;
        let taken = self.take(at)?;
        self.take(1)?;
        Ok(taken)
    }

    /// MySQL's length-encoded integer. NULL (0xfb) is invalid here.
    pub fn length(&mut self) -> Result<u64, DecodeError> {
        match self.u8()? {
            byte @ 0..=0xfa => Ok(u64::from(byte)),
            0xfc => self.u16().map(u64::from),
            0xfd => self.take(3).map(|b| u64::from(b[0]) | u64::from(b[1]) << 8 | u64::from(b[2]) << 16),
            0xfe => self.u64(),
            _ => Err(DecodeError::Invalid("length")),
        }
    }

    /// Bytes behind their length-encoded length.
    pub fn length_bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.length()?;
        self.take(usize::try_from(len).map_err(|_| DecodeError::Short)?)
    }

    /// All bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// How many bytes are left.
    pub fn remaining(&self) -> usize {
        self.0.len()
    }

    /// Fails unless all bytes were read.
    pub fn end(&self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
    }
}

/// Appends MySQL's length-encoded integer.
pub fn put_length(out: &mut Vec<u8>, value: u64) {
    match value {
        0..=0xfa => out.push(value as u8),
        0xfb..=0xffff => {
            out.push(0xfc);
            out.extend_from_slice(&(value as u16).to_le_bytes());
        }
        0x1_0000..=0xff_ffff => {
            out.push(0xfd);
            out.extend_from_slice(&(value as u32).to_le_bytes()[..3]);
        }
        _ => {
            out.push(0xfe);
            out.extend_from_slice(&value.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_round_trip_at_each_width() {
        for value in [0, 0xfa, 0xfb, 0xffff, 0x1_0000, 0xff_ffff, 0x100_0000, u64::MAX] {
            let mut out = Vec::new();
            put_length(&mut out, value);
            assert_eq!(Reader::new(&out).length(), Ok(value));
            for cut in 0..out.len() {
                assert_eq!(Reader::new(&out[..cut]).length(), Err(DecodeError::Short));
            }
        }
        assert!(Reader::new(&[0xfb]).length().is_err());
    }
}
