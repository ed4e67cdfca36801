//! Replies of the transmission phase, and the queue of bytes to send.
//!
//! The queue keeps the data of READs as the export returned it. Headers and data are sent together by vectored writes.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::wire::{BASE_ALLOCATION_ID, CHUNK, Errno, SIMPLE_REPLY, chunk, extent_flag, shortened};
use crate::export::{Extent, IoError};

/// The most extents in a reply. A client asks again for the rest.
const EXTENTS_MAX: usize = 8192;
/// The longest text of an error.
const TEXT_MAX: usize = 512;
/// The most parts of a vectored write.
const PARTS: usize = 64;

/// What a request's reply frees when it has been sent: a place among the requests in flight, and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Freed {
    pub(crate) requests: usize,
    pub(crate) bytes: u64,
}

/// A request's result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Done,
    Data { offset: u64, data: Bytes },
    Extents { extents: Vec<Extent>, length: u32, one: bool },
    Failed { errno: Errno, text: String },
}

impl Reply {
    /// The reply to a request that failed.
    pub(crate) fn failed(error: &IoError) -> Reply {
        let errno = match error {
            IoError::Io(_) => Errno::Io,
            IoError::NoSpace(_) => Errno::NoSpace,
            IoError::Shutdown(_) => Errno::Shutdown,
            IoError::Invalid(_) => Errno::Invalid,
        };
        Reply::Failed { errno, text: error.text().to_owned() }
    }
}

#[derive(Debug)]
struct Part {
    bytes: Bytes,
    /// Freed as soon as this part has been sent.
    freed: Freed,
}

/// Bytes to send.
#[derive(Default, Debug)]
pub(crate) struct Output {
    parts: VecDeque<Part>,
    /// Small parts at the end of the queue, in one allocation.
    tail: BytesMut,
    tail_freed: Freed,
    structured: bool,
}

impl Output {
    /// A queue for structured or simple replies, behind the last bytes of the handshake.
    pub(crate) fn new(structured: bool, handshake: BytesMut) -> Output {
        Output { structured, tail: handshake, ..Output::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.tail.is_empty()
    }

    /// Appends a reply that frees one request and these bytes.
    pub(crate) fn push(&mut self, cookie: u64, reply: Reply, bytes: u64) {
        let freed = Freed { requests: 1, bytes };
        match reply {
            Reply::Done => self.simple(cookie, 0),
            Reply::Data { offset, data } if self.structured => {
                self.chunk(chunk::OFFSET_DATA, cookie, 8 + data.len());
                self.tail.put_u64(offset);
                self.data(data);
            }
            Reply::Data { data, .. } => {
                self.simple(cookie, 0);
                self.data(data);
            }
            Reply::Extents { extents, length, one } => {
                let extents = merged(&extents, length, if one { 1 } else { EXTENTS_MAX });
                self.chunk(chunk::BLOCK_STATUS, cookie, 4 + 8 * extents.len());
                self.tail.put_u32(BASE_ALLOCATION_ID);
                for extent in extents {
                    self.tail.put_u32(extent.length);
                    self.tail.put_u32(flags(extent));
                }
            }
            Reply::Failed { errno, text } if self.structured => {
                let text = shortened(&text, TEXT_MAX);
                self.chunk(chunk::ERROR, cookie, 6 + text.len());
                self.tail.put_u32(errno as u32);
                self.tail.put_u16(text.len() as u16);
                self.tail.put_slice(text.as_bytes());
            }
            Reply::Failed { errno, .. } => self.simple(cookie, errno as u32),
        }
        let last = match self.parts.back_mut() {
            Some(part) if self.tail.is_empty() => &mut part.freed,
            _ => &mut self.tail_freed,
        };
        last.requests += freed.requests;
        last.bytes += freed.bytes;
    }

    fn simple(&mut self, cookie: u64, errno: u32) {
        self.tail.put_u32(SIMPLE_REPLY);
        self.tail.put_u32(errno);
        self.tail.put_u64(cookie);
    }

    /// The header of a reply's only chunk.
    fn chunk(&mut self, kind: u16, cookie: u64, length: usize) {
        self.tail.put_u32(CHUNK);
        self.tail.put_u16(chunk::DONE);
        self.tail.put_u16(kind);
        self.tail.put_u64(cookie);
        self.tail.put_u32(length as u32);
    }

    fn data(&mut self, data: Bytes) {
        self.close_tail();
        self.parts.push_back(Part { bytes: data, freed: Freed::default() });
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            let freed = std::mem::take(&mut self.tail_freed);
            self.parts.push_back(Part { bytes: self.tail.split().freeze(), freed });
        }
    }

    /// The next bytes to send, for one vectored write.
    pub(crate) fn slices(&mut self) -> Vec<IoSlice<'_>> {
        self.close_tail();
        self.parts.iter().take(PARTS).map(|part| IoSlice::new(&part.bytes)).collect()
    }

    /// So many bytes have been sent.
    pub(crate) fn sent(&mut self, mut count: usize) -> Freed {
        let mut freed = Freed::default();
        while let Some(part) = self.parts.front_mut() {
            let taken = count.min(part.bytes.len());
            part.bytes.advance(taken);
            count -= taken;
            if !part.bytes.is_empty() {
                break;
            }
            freed.requests += part.freed.requests;
            freed.bytes += part.freed.bytes;
            self.parts.pop_front();
        }
        freed
    }
}

fn flags(extent: Extent) -> u32 {
    let mut flags = 0;
    if extent.hole {
        flags |= extent_flag::HOLE;
    }
    if extent.zero {
        flags |= extent_flag::ZERO;
    }
    flags
}

/// Extents that the protocol accepts: neighbours differ, none is empty, and they end within `length`. If the export returns
/// none, the range has no known state.
fn merged(extents: &[Extent], length: u32, most: usize) -> Vec<Extent> {
    let mut merged: Vec<Extent> = Vec::with_capacity(extents.len().min(most));
    let mut left = length;
    for extent in extents {
        let extent = Extent { length: extent.length.min(left), ..*extent };
        left -= extent.length;
        if extent.length == 0 {
            continue;
        }
        let full = merged.len() == most;
        match merged.last_mut() {
            Some(last) if (last.hole, last.zero) == (extent.hole, extent.zero) => {
                last.length += extent.length
            }
            _ if full => break,
            _ => merged.push(extent),
        }
    }
    if merged.is_empty() {
        merged.push(Extent { length, hole: false, zero: false });
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that is to be sent.
    fn drain(output: &mut Output, step: usize) -> (Vec<u8>, Freed) {
        let (mut bytes, mut freed) = (Vec::new(), Freed::default());
        while !output.is_empty() {
            let next: Vec<u8> = output.slices().iter().flat_map(|slice| slice.to_vec()).take(step).collect();
            let some = output.sent(next.len());
            freed = Freed { requests: freed.requests + some.requests, bytes: freed.bytes + some.bytes };
            bytes.extend(next);
        }
        (bytes, freed)
    }

    fn push_all(output: &mut Output) {
        output.push(1, Reply::Done, 0);
        output.push(2, Reply::Data { offset: 512, data: Bytes::from_static(b"data") }, 4);
        output.push(3, Reply::Failed { errno: Errno::Io, text: "broken".into() }, 9);
        output.push(4, Reply::Data { offset: 0, data: Bytes::from_static(b"more") }, 4);
    }

    #[test]
    fn simple_replies_have_the_layout_of_the_protocol() {
        let mut output = Output::new(false, BytesMut::new());
        push_all(&mut output);
        let (bytes, freed) = drain(&mut output, usize::MAX);
        let simple = |errno: u8, cookie: u8| {
            let mut reply = vec![0x67, 0x44, 0x66, 0x98, 0, 0, 0, errno];
            reply.extend([0, 0, 0, 0, 0, 0, 0, cookie]);
            reply
        };
        let expected = [&simple(0, 1)[..], &simple(0, 2), b"data", &simple(5, 3), &simple(0, 4), b"more"];
        assert_eq!(bytes, expected.concat());
        assert_eq!(freed, Freed { requests: 4, bytes: 17 });
    }

    #[test]
    fn structured_replies_have_the_layout_of_the_protocol() {
        let mut output = Output::new(true, BytesMut::from(&b"hello"[..]));
        output.push(2, Reply::Data { offset: 512, data: Bytes::from_static(b"data") }, 4);
        output.push(3, Reply::Failed { errno: Errno::NoSpace, text: "full".into() }, 0);
        let (bytes, _) = drain(&mut output, usize::MAX);
        let mut expected = b"hello".to_vec();
        expected.extend([0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 12]);
        expected.extend([0, 0, 0, 0, 0, 0, 2, 0]);
        expected.extend(b"data");
        expected.extend([0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 10]);
        expected.extend([0, 0, 0, 28, 0, 4]);
        expected.extend(b"full");
        assert_eq!(bytes, expected);
    }

    #[test]
    fn short_writes_free_each_request_once() {
        for structured in [false, true] {
            let mut whole = Output::new(structured, BytesMut::from(&b"hello"[..]));
            push_all(&mut whole);
            let whole = drain(&mut whole, usize::MAX);
            for step in 1..40 {
                let mut output = Output::new(structured, BytesMut::from(&b"hello"[..]));
                push_all(&mut output);
                assert_eq!(drain(&mut output, step), whole);
            }
        }
    }

    #[test]
    fn extents_are_merged_and_cut_to_the_request() {
        let extent = |length, hole| Extent { length, hole, zero: hole };
        let extents =
            [extent(10, false), extent(0, true), extent(5, false), extent(7, true), extent(9, false)];
        assert_eq!(merged(&extents, 20, 9), [extent(15, false), extent(5, true)]);
        assert_eq!(merged(&extents, 100, 9), [extent(15, false), extent(7, true), extent(9, false)]);
        assert_eq!(merged(&extents, 100, 1), [extent(15, false)]);
        assert_eq!(merged(&[], 100, 9), [extent(100, false)]);
        let mut output = Output::new(true, BytesMut::new());
        output.push(1, Reply::Extents { extents: vec![extent(512, true)], length: 512, one: true }, 0);
        let (bytes, _) = drain(&mut output, usize::MAX);
        assert_eq!(bytes[20..], [0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 3]);
    }

    #[test]
    fn text_of_an_error_is_shortened() {
        let mut output = Output::new(true, BytesMut::new());
        output.push(1, Reply::Failed { errno: Errno::Io, text: "ä".repeat(10_000) }, 0);
        let (bytes, _) = drain(&mut output, usize::MAX);
        assert_eq!(bytes.len(), 20 + 6 + TEXT_MAX);
    }
}
