//! The joiner's side of a copy.

use super::wire::{self, HASHES_MAX, Hello, ITEMS_MAX, Item, Message, Token};
use super::{BLOCK, CopyError, Image, Progress, extent_at, is_zero, sum};
use crate::device::extent_map::{ExtentMap, Run};
use bytes::Bytes;
use lockstep_core::Seqno;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::ops::Range;

/// How many Summaries the joiner sends before it takes an answer: they hide the line's latency.
///
/// Donor and joiner use one thread each. While the donor sends data, it takes no Summary. All that are under way must fit in the
/// sockets' buffers, or both sides would wait: 4 × 128 × 33 bytes = 17 kB.
const AHEAD: usize = 4;
/// Received data are written to the device file in batches of this size. Each batch is synced, so that a flush at the end does
/// not take minutes.
const BATCH: u64 = 8 << 20;

/// The member around a receiver.
pub trait Joiner {
    /// The copy begins with this donor. The own copy is to be marked durably as not whole, and to get the device's size.
    ///
    /// # Errors
    /// [`CopyError`]; the donor is told of [`CopyError::Refused`].
    fn begin(&mut self, hello: &Hello) -> Result<(), CopyError>;

    /// How far the copy is.
    ///
    /// # Errors
    /// [`CopyError::Stopped`]: the copy is to end.
    fn progress(&mut self, progress: Progress) -> Result<(), CopyError>;

    /// Everything is on the disk: the copy is exact once it has the entry `until`.
    ///
    /// # Errors
    /// [`CopyError::Device`].
    fn end(&mut self, hello: &Hello, until: Seqno) -> Result<(), CopyError>;
}

/// Receives a donor's first message.
///
/// # Errors
/// [`CopyError`]. A donor that lacks the token is refused.
pub fn greet<S: Read + Write>(stream: &mut S, group: &str, token: &Token) -> Result<Hello, CopyError> {
    let refused = |stream: &mut S, text: &str| {
        let _ = refuse(stream, text);
        Err(CopyError::Protocol(text.into()))
    };
    match wire::receive(stream).map_err(CopyError::Stream)? {
        Message::Hello(hello) if hello.token != *token || hello.group != group => {
            refused(stream, "a token that this member has not given out")
        }
        Message::Hello(hello) => Ok(hello),
        _ => refused(stream, "no Hello"),
    }
}

/// Refuses a donor, with a text for people.
///
/// # Errors
/// As of the stream.
pub fn refuse(stream: &mut impl Write, text: &str) -> std::io::Result<()> {
    wire::send(stream, &Message::Refuse(text.into())).and_then(|()| stream.flush())
}

/// Takes the device from the donor that has said Hello.
///
/// # Errors
/// [`CopyError`].
pub fn receive<S: Read + Write>(
    stream: &mut S,
    image: &impl Image,
    hello: &Hello,
    joiner: &mut impl Joiner,
) -> Result<Progress, CopyError> {
    if let Err(error) = joiner.begin(hello) {
        if let CopyError::Refused(text) = &error {
            let _ = refuse(stream, text);
        }
        return Err(error);
    }
    wire::send(stream, &Message::Accept).map_err(CopyError::Stream)?;
    let size = hello.attachments.size();
    let mut receiver = Receiver {
        stream,
        image,
        size,
        summed: 0,
        ranges: VecDeque::new(),
        batch: ExtentMap::default(),
        progress: Progress { total: size, ..Progress::default() },
    };
    while receiver.progress.done < size {
        receiver.send_summaries()?;
        let ends = receiver.ranges.front().map_or(size, |range| range.end);
        while receiver.progress.done < ends {
            receiver.take()?;
            joiner.progress(receiver.progress)?;
        }
        receiver.ranges.pop_front();
    }
    receiver.write()?;
    match wire::receive(receiver.stream).map_err(CopyError::Stream)? {
        Message::End { until } if until >= hello.gtid.seqno => joiner.end(hello, until)?,
        other => return Err(unexpected(&other)),
    }
    // If the donor does not learn of it, nothing is lost: this copy is complete.
    let _ = wire::send(receiver.stream, &Message::Done).and_then(|()| receiver.stream.flush());
    Ok(receiver.progress)
}

fn unexpected(message: &Message) -> CopyError {
    CopyError::Protocol(format!("{} out of turn", message.name()))
}

struct Receiver<'a, S, I> {
    stream: &'a mut S,
    image: &'a I,
    size: u64,
    /// Summaries were sent up to here.
    summed: u64,
    /// The ranges of the Summaries that are not answered, in order.
    ranges: VecDeque<Range<u64>>,
    /// Received, and not in the file.
    batch: ExtentMap,
    progress: Progress,
}

impl<S: Read + Write, I: Image> Receiver<'_, S, I> {
    fn send_summaries(&mut self) -> Result<(), CopyError> {
        while self.summed < self.size && self.ranges.len() < AHEAD {
            let from = self.summed;
            let (items, end) = summary(self.image, from, self.size).map_err(CopyError::Device)?;
            self.summed = end;
            self.ranges.push_back(from..end);
            wire::send(self.stream, &Message::Summary { from, items }).map_err(CopyError::Stream)?;
        }
        self.stream.flush().map_err(CopyError::Stream)
    }

    /// Takes a message about the first range that is not answered.
    fn take(&mut self) -> Result<(), CopyError> {
        let present = self.progress.done..self.ranges.front().map_or(0, |range| range.end);
        match wire::receive(self.stream).map_err(CopyError::Stream)? {
            Message::Data { offset, sum: theirs, bytes } => {
                let unit = self.image.unit();
                let extent = extent_at(offset, self.size, unit);
                let is_extent =
                    offset.is_multiple_of(unit) && extent.end.checked_sub(offset) == Some(bytes.len() as u64);
                if !is_extent || !contains(&present, &extent) {
                    return Err(CopyError::Protocol("data of another range".into()));
                }
                if sum(&bytes) != theirs {
                    return Err(CopyError::Protocol("data with a wrong checksum".into()));
                }
                self.progress.sent += bytes.len() as u64;
                self.insert(offset, &bytes);
            }
            Message::Punch { offset, length } => {
                let range = offset..offset.saturating_add(length);
                if length == 0 || !contains(&present, &range) {
                    return Err(CopyError::Protocol("a hole in another range".into()));
                }
                self.batch.insert(Run::zeroes(offset, length, true), 0);
            }
            Message::Compared { upto } if present.start <= upto && upto <= present.end => {
                self.progress.done = upto;
            }
            other => return Err(unexpected(&other)),
        }
        if self.batch.memory() >= BATCH { self.write() } else { Ok(()) }
    }

    /// Takes an extent. Its zeroes become holes.
    fn insert(&mut self, offset: u64, bytes: &Bytes) {
        let mut at = 0;
        while at < bytes.len() {
            let block = |at: usize| at..bytes.len().min(at + BLOCK);
            let zero = is_zero(&bytes[block(at)]);
            let mut end = block(at).end;
            while end < bytes.len() && is_zero(&bytes[block(end)]) == zero {
                end = block(end).end;
            }
            let run = match zero {
                true => Run::zeroes(offset + at as u64, (end - at) as u64, true),
                false => Run::data(offset + at as u64, bytes.slice(at..end)),
            };
            self.batch.insert(run, 0);
            at = end;
        }
    }

    fn write(&mut self) -> Result<(), CopyError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.image.write(&std::mem::take(&mut self.batch)).map_err(CopyError::Device)
    }
}

fn contains(outer: &Range<u64>, inner: &Range<u64>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// The next extents of a file from an offset on, and where they end.
fn summary(image: &impl Image, from: u64, size: u64) -> std::io::Result<(Vec<Item>, u64)> {
    let (mut items, mut hashes, mut at) = (Vec::new(), 0, from);
    let unit = image.unit();
    let mut buffer = Vec::new();
    while at < size && hashes < HASHES_MAX && items.len() < ITEMS_MAX {
        let (length, hole) = image.extent(at, size - at)?;
        let end = size.min(at.saturating_add(length));
        // Whole extents only, but for the last one.
        let hole_end = if end == size { end } else { end - end % unit };
        if hole && hole_end > at {
            let count = (hole_end - at).div_ceil(unit).min(u64::from(u32::MAX));
            items.push(Item::Holes(count as u32));
            at = size.min(at + count * unit);
        } else {
            let extent = extent_at(at, size, unit);
            buffer.resize((extent.end - extent.start) as usize, 0);
            image.read(extent.start, &mut buffer)?;
            items.push(Item::Hash(sum(&buffer)));
            hashes += 1;
            at = extent.end;
        }
    }
    Ok((items, at))
}
