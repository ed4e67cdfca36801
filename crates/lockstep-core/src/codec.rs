//! The hand-written codec of everything that goes to the disk or the wire: little-endian, explicit, bounded.

use bytes::{BufMut, Bytes, BytesMut};
use std::fmt;

/// Why bytes could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecodeError {
    /// It ended before it was complete.
    Short,
    /// A field holds what it may not; names the field.
    Invalid(&'static str),
    /// Something follows where nothing should.
    Trailing,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Short => f.write_str("ends too early"),
            DecodeError::Invalid(what) => write!(f, "has an invalid {what}"),
            DecodeError::Trailing => f.write_str("is longer than it should be"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// From this length on, [`Writer::shared`] refers to bytes instead of copying them.
const SHARED_BYTES: usize = 1024;

/// Gathers bytes, and refers to long ones that others hold.
#[derive(Default, Debug)]
pub struct Writer {
    /// Complete parts.
    parts: Vec<Bytes>,
    /// Bytes of `parts`.
    parts_len: usize,
    /// Bytes after `parts`.
    tail: BytesMut,
}

impl Writer {
    /// An empty one.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// An empty one with room.
    pub fn with_capacity(bytes: usize) -> Writer {
        Writer { tail: BytesMut::with_capacity(bytes), ..Writer::default() }
    }

    /// One byte.
    pub fn u8(&mut self, v: u8) {
        self.tail.put_u8(v);
    }

    /// 0 or 1.
    pub fn bool(&mut self, v: bool) {
        self.tail.put_u8(v as u8);
    }

    /// Two bytes.
    pub fn u16(&mut self, v: u16) {
        self.tail.put_u16_le(v);
    }

    /// Four bytes.
    pub fn u32(&mut self, v: u32) {
        self.tail.put_u32_le(v);
    }

    /// Eight bytes.
    pub fn u64(&mut self, v: u64) {
        self.tail.put_u64_le(v);
    }

    /// Eight bytes, signed.
    pub fn i64(&mut self, v: i64) {
        self.tail.put_i64_le(v);
    }

    /// Bytes as they are, no length.
    pub fn raw(&mut self, v: &[u8]) {
        self.tail.put_slice(v);
    }

    /// A 32-bit length and the bytes.
    pub fn bytes(&mut self, v: &[u8]) {
        self.tail.put_u32_le(u32::try_from(v.len()).expect("no field is longer than 4 GiB"));
        self.tail.put_slice(v);
    }

    /// A string as [`Writer::bytes`].
    pub fn str(&mut self, v: &str) {
        self.bytes(v.as_bytes());
    }

    /// How many of these bytes [`Writer::shared`] copies.
    pub fn copied_len(v: &Bytes) -> usize {
        if v.len() < SHARED_BYTES { v.len() } else { 0 }
    }

    /// As [`Writer::bytes`]; long bytes become a part of their own, without a copy.
    pub fn shared(&mut self, v: &Bytes) {
        if v.len() < SHARED_BYTES {
            return self.bytes(v);
        }
        self.u32(u32::try_from(v.len()).expect("no field is longer than 4 GiB"));
        self.parts_len += self.tail.len() + v.len();
        self.parts.push(self.tail.split().freeze());
        self.parts.push(v.clone());
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.parts_len + self.tail.len()
    }

    /// Whether nothing has been written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes written, in one piece.
    pub fn into_bytes(self) -> Bytes {
        match self.parts.is_empty() {
            true => self.tail.freeze(),
            false => Bytes::from(self.into_parts().concat()),
        }
    }

    /// The bytes written, as parts that follow one another.
    pub fn into_parts(mut self) -> Vec<Bytes> {
        if !self.tail.is_empty() || self.parts.is_empty() {
            self.parts.push(self.tail.freeze());
        }
        self.parts
    }
}

/// Takes bytes apart. Slices share the input's memory.
#[derive(Debug)]
pub struct Reader(Bytes);

impl Reader {
    /// Reads these.
    pub fn new(bytes: Bytes) -> Reader {
        Reader(bytes)
    }

    /// The next `n` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Short`], here and in all that follow.
    pub fn take(&mut self, n: usize) -> Result<Bytes, DecodeError> {
        if self.0.len() < n {
            return Err(DecodeError::Short);
        }
        Ok(self.0.split_to(n))
    }

    /// The next N bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        if self.0.len() < N {
            return Err(DecodeError::Short);
        }
        out.copy_from_slice(&self.0[..N]);
        bytes::Buf::advance(&mut self.0, N);
        Ok(out)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }

    /// 0 or 1, nothing else.
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Invalid("flag")),
        }
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Eight bytes, signed.
    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// A 32-bit length and the bytes.
    pub fn bytes(&mut self) -> Result<Bytes, DecodeError> {
        let n = self.u32()? as usize;
        self.take(n)
    }

    /// A string as [`Writer::str`] wrote it.
    pub fn str(&mut self) -> Result<String, DecodeError> {
        let raw = self.bytes()?;
        match std::str::from_utf8(&raw) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(DecodeError::Invalid("string")),
        }
    }

    /// A 32-bit count of items that take at least `least` bytes each: a hostile count cannot make us allocate more
    /// than the input has.
    pub fn count(&mut self, least: usize) -> Result<usize, DecodeError> {
        let n = self.u32()? as usize;
        if n.saturating_mul(least.max(1)) > self.0.len() {
            return Err(DecodeError::Short);
        }
        Ok(n)
    }

    /// Bytes left.
    pub fn remaining(&self) -> usize {
        self.0.len()
    }

    /// All that is left.
    pub fn rest(self) -> Bytes {
        self.0
    }

    /// Asserts that nothing is left.
    ///
    /// # Errors
    /// [`DecodeError::Trailing`] where something is.
    pub fn end(self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
    }
}
