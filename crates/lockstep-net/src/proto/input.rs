//! The receive buffer: payloads are sliced out of it, never copied.

use bytes::{Bytes, BytesMut};

/// Least room offered to a read.
const ROOM_MIN: usize = 4 * 1024;
/// First size of a chunk; it doubles while reads fill it, up to [`CHUNK_MAX`].
const CHUNK_MIN: usize = 16 * 1024;
const CHUNK_MAX: usize = 256 * 1024;

/// Bytes that arrived and are not taken yet.
///
/// `buf` is always initialised to its end and `filled` says how much of it has arrived, because the bytes behind must
/// be offered to `read` as a plain slice. Taken payloads share the allocation; when its end is near, a new one follows.
#[derive(Debug, Default)]
pub(crate) struct Input {
    buf: BytesMut,
    /// Invariant: `filled <= buf.len()`.
    filled: usize,
    chunk: usize,
}

impl Input {
    /// Bytes received and not consumed.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buf[..self.filled]
    }

    /// Room for a read. `want` is how long the message at the front is in all, 0 if that is not known: it is what the
    /// peer *claims*. So the buffer grows with the bytes received, to at most twice their number, never to the claim.
    pub(crate) fn room(&mut self, want: usize) -> &mut [u8] {
        if self.chunk == 0 {
            self.chunk = CHUNK_MIN;
        }
        let missing = want.saturating_sub(self.filled);
        let room = self.buf.len() - self.filled;
        // The rest of a chunk is used up while it holds the whole message, or at least a decent read.
        let enough = if want > 0 { missing.min(self.filled.max(self.chunk)) } else { 0 };
        if room < enough.max(ROOM_MIN) {
            // Just the size of the message, and a little for the next one. Reading far beyond a long message would move
            // the following ones away from the start of a new chunk.
            let grown = if want > self.chunk {
                self.filled + missing.min(self.filled.max(self.chunk)) + ROOM_MIN
            } else {
                self.chunk.max(self.filled + enough.max(ROOM_MIN))
            };
            let mut next = BytesMut::zeroed(grown);
            next[..self.filled].copy_from_slice(&self.buf[..self.filled]);
            self.buf = next;
        }
        &mut self.buf[self.filled..]
    }

    /// `n` bytes were read into the room last offered.
    pub(crate) fn arrived(&mut self, n: usize) {
        assert!(n <= self.buf.len() - self.filled, "more read than offered");
        self.filled += n;
        if self.filled == self.buf.len() {
            self.chunk = (self.chunk * 2).min(CHUNK_MAX);
        }
    }

    /// Takes the first `n` bytes out, without copying.
    pub(crate) fn take(&mut self, n: usize) -> Bytes {
        assert!(n <= self.filled, "taking more than has arrived");
        self.filled -= n;
        self.buf.split_to(n).freeze()
    }

    /// Bytes of memory held for unconsumed input.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.buf.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_with_what_arrives_not_with_what_is_claimed() {
        let mut input = Input::default();
        let claim = 64 << 20;
        input.room(0)[..12].fill(1);
        input.arrived(12);
        assert!(input.room(claim).len() <= 2 * CHUNK_MAX);
        let mut total = 12;
        while total < claim {
            let room = input.room(claim).len();
            assert!(input.held() <= (2 * total).max(CHUNK_MIN) + CHUNK_MAX + ROOM_MIN);
            let n = room.min(claim - total);
            input.arrived(n);
            total += n;
        }
        assert_eq!(input.take(claim).len(), claim);
    }

    #[test]
    fn slices_share_the_buffer() {
        let mut input = Input::default();
        input.room(0)[..8].copy_from_slice(b"abcdefgh");
        let at = input.bytes().as_ptr();
        input.arrived(8);
        let a = input.take(3);
        let b = input.take(4);
        assert_eq!((&a[..], &b[..], input.bytes()), (&b"abc"[..], &b"defg"[..], &b"h"[..]));
        assert_eq!(a.as_ptr(), at);
        // Consumed slices keep their content while the rest of the buffer is overwritten.
        for _ in 0..10_000 {
            let n = input.room(0).len();
            input.room(0).fill(0xee);
            input.arrived(n);
            let _ = input.take(n);
        }
        assert_eq!((&a[..], &b[..]), (&b"abc"[..], &b"defg"[..]));
    }
}
