//! The send queue: small parts are copied together, large ones referenced, and one vectored write takes many.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Parts up to this long are copied into the small-part buffer: cheaper than an entry of their own in the vector.
const SMALL: usize = 1024;
/// The small-part buffer becomes a chunk at this size.
const CHUNK_BYTES: usize = 32 * 1024;

/// Bytes to be written, in order.
#[derive(Debug, Default)]
pub(crate) struct Output {
    chunks: VecDeque<Bytes>,
    /// The bytes after the last chunk.
    tail: BytesMut,
    /// Bytes in `chunks` and `tail`.
    len: usize,
}

impl Output {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn push_slice(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        self.tail.extend_from_slice(bytes);
        if self.tail.len() >= CHUNK_BYTES {
            self.seal();
        }
    }

    pub(crate) fn push(&mut self, bytes: &Bytes) {
        if bytes.len() <= SMALL {
            self.push_slice(bytes);
        } else {
            self.seal();
            self.len += bytes.len();
            self.chunks.push_back(bytes.clone());
        }
    }

    /// Fills in the front of the queue, for one vectored write. How many slices: 0 if nothing is queued.
    pub(crate) fn slices<'a>(&'a mut self, out: &mut [IoSlice<'a>]) -> usize {
        self.seal();
        for (slot, chunk) in out.iter_mut().zip(&self.chunks) {
            *slot = IoSlice::new(chunk);
        }
        out.len().min(self.chunks.len())
    }

    /// The first `n` bytes were written.
    pub(crate) fn written(&mut self, mut n: usize) {
        assert!(n <= self.len, "more written than queued");
        self.len -= n;
        while n > 0 {
            let Some(front) = self.chunks.front_mut() else { break };
            if n < front.len() {
                front.advance(n);
                return;
            }
            n -= front.len();
            self.chunks.pop_front();
        }
        debug_assert_eq!(n, 0);
    }

    /// Forgets everything queued.
    pub(crate) fn clear(&mut self) {
        *self = Output::default();
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_kept_whatever_the_sizes() {
        let mut out = Output::default();
        let mut expected = Vec::new();
        for i in 0..2000usize {
            let part = Bytes::from(vec![i as u8; (i * 37) % 3000]);
            expected.extend_from_slice(&part);
            if i % 3 == 0 {
                out.push_slice(&part)
            } else {
                out.push(&part)
            }
            assert_eq!(out.len(), expected.len());
        }
        let mut got = Vec::new();
        let mut step = 1;
        while !out.is_empty() {
            let mut slices = [IoSlice::new(&[]); 7];
            let n = out.slices(&mut slices);
            let all: Vec<u8> = slices[..n].iter().flat_map(|s| s.iter().copied()).collect();
            let n = all.len().min(step);
            got.extend_from_slice(&all[..n]);
            out.written(n);
            step = (step * 3) % 100_003;
        }
        assert!(got == expected);
    }
}
