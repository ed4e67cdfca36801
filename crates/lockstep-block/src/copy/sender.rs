//! The donor's side of a copy.

use super::pace::{COMPARED_PART, Pace};
use super::wire::{self, Hello, Item, Message};
use super::{CopyError, Image, Progress, extent_at, is_zero, sum};
use bytes::Bytes;
use lockstep_core::Seqno;
use std::io::{Read, Write};
use std::ops::Range;
use std::time::{Duration, Instant};

/// The joiner learns at least this often how far the copy is. One that hears nothing for long would give up.
const SAY: Duration = Duration::from_secs(1);

/// The member around a sender.
pub trait Donor {
    /// How far the copy is.
    ///
    /// # Errors
    /// [`CopyError::Stopped`]: the copy is to end.
    fn progress(&mut self, progress: Progress) -> Result<(), CopyError>;

    /// The last entry that the file may have by now.
    fn until(&mut self) -> Seqno;

    /// The monotonic clock.
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// Copies a device to the joiner at the other end of a stream. Returns the bytes that were sent.
///
/// # Errors
/// [`CopyError`].
pub fn send<S: Read + Write>(
    stream: &mut S,
    image: &impl Image,
    hello: Hello,
    pace: Pace,
    donor: &mut impl Donor,
) -> Result<Progress, CopyError> {
    let size = hello.attachments.size();
    wire::send(stream, &Message::Hello(hello)).map_err(CopyError::Stream)?;
    match wire::receive(stream).map_err(CopyError::Stream)? {
        Message::Accept => {}
        Message::Refuse(text) => return Err(CopyError::Refused(text)),
        other => return Err(unexpected(&other)),
    }
    let progress = Progress { total: size, ..Progress::default() };
    let said = donor.now();
    let mut sender =
        Sender { stream, image, size, pace, donor, progress, said, buffer: Vec::new(), hole: 0..0 };
    while sender.progress.done < size {
        match wire::receive(sender.stream).map_err(CopyError::Stream)? {
            Message::Summary { from, items } => sender.compare(from, &items)?,
            other => return Err(unexpected(&other)),
        }
    }
    let until = sender.donor.until();
    sender.put(&Message::End { until })?;
    match wire::receive(sender.stream).map_err(CopyError::Stream)? {
        Message::Done => Ok(sender.progress),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(message: &Message) -> CopyError {
    CopyError::Protocol(format!("{} out of turn", message.name()))
}

struct Sender<'a, S, I, D> {
    stream: &'a mut S,
    image: &'a I,
    size: u64,
    pace: Pace,
    donor: &'a mut D,
    progress: Progress,
    /// When the joiner was last told how far the copy is.
    said: Instant,
    buffer: Vec<u8>,
    /// A range that the joiner is to punch, and that may grow.
    hole: Range<u64>,
}

impl<S: Read + Write, I: Image, D: Donor> Sender<'_, S, I, D> {
    fn put(&mut self, message: &Message) -> Result<(), CopyError> {
        wire::send(self.stream, message).map_err(CopyError::Stream)
    }

    /// Sends what differs from a Summary.
    fn compare(&mut self, from: u64, items: &[Item]) -> Result<(), CopyError> {
        if from != self.progress.done {
            return Err(CopyError::Protocol("a Summary of another range".into()));
        }
        let (mut at, unit) = (from, self.image.unit());
        for item in items {
            if at >= self.size {
                return Err(CopyError::Protocol("a Summary beyond the device's end".into()));
            }
            at = match item {
                Item::Holes(count) => {
                    let end = at.saturating_add(u64::from(*count).saturating_mul(unit));
                    if end.saturating_sub(unit) >= self.size {
                        return Err(CopyError::Protocol("a Summary beyond the device's end".into()));
                    }
                    let end = end.min(self.size);
                    self.fill(at..end)?;
                    end
                }
                Item::Hash(theirs) => {
                    let extent = extent_at(at, self.size, self.image.unit());
                    let end = extent.end;
                    match self.is_hole(&extent)? {
                        true => self.punch(extent)?,
                        false => self.compare_extent(extent, Some(theirs))?,
                    }
                    end
                }
            };
            self.progress.done = at;
            self.keep_going()?;
        }
        self.put_compared()
    }

    fn put_compared(&mut self) -> Result<(), CopyError> {
        self.said = self.donor.now();
        self.put_hole()?;
        self.put(&Message::Compared { upto: self.progress.done })
    }

    /// The joiner has a hole there. The range begins with an extent, and ends with one.
    fn fill(&mut self, range: Range<u64>) -> Result<(), CopyError> {
        let mut at = range.start;
        while at < range.end {
            let (length, hole) = self.image.extent(at, range.end - at).map_err(CopyError::Device)?;
            let end = range.end.min(at.saturating_add(length));
            let equal = match hole {
                true if end == range.end => end,
                // An extent that is a hole only in part is read.
                true => end - end % self.image.unit(),
                false => at,
            };
            if equal > at {
                at = equal;
            } else {
                let extent = extent_at(at, self.size, self.image.unit());
                at = extent.end;
                self.compare_extent(extent, None)?;
            }
            self.progress.done = at;
            self.keep_going()?;
        }
        Ok(())
    }

    fn is_hole(&self, extent: &Range<u64>) -> Result<bool, CopyError> {
        let length = extent.end - extent.start;
        let (found, hole) = self.image.extent(extent.start, length).map_err(CopyError::Device)?;
        Ok(hole && found >= length)
    }

    /// Sends an extent unless it has this hash; `None`: unless it is all zeroes.
    fn compare_extent(&mut self, extent: Range<u64>, theirs: Option<&super::Sum>) -> Result<(), CopyError> {
        let length = extent.end - extent.start;
        self.buffer.resize(length as usize, 0);
        self.image.read(extent.start, &mut self.buffer).map_err(CopyError::Device)?;
        let zero = is_zero(&self.buffer);
        if zero && theirs.is_none() {
            return self.wait(length / COMPARED_PART);
        }
        let own = sum(&self.buffer);
        if theirs == Some(&own) {
            return self.wait(length / COMPARED_PART);
        }
        if zero {
            return self.punch(extent);
        }
        self.put_hole()?;
        let bytes = Bytes::copy_from_slice(&self.buffer);
        self.put(&Message::Data { offset: extent.start, sum: own, bytes })?;
        self.progress.sent += length;
        self.wait(length)
    }

    fn punch(&mut self, range: Range<u64>) -> Result<(), CopyError> {
        if self.hole.end == range.start {
            self.hole.end = range.end;
            return Ok(());
        }
        self.put_hole()?;
        self.hole = range;
        Ok(())
    }

    fn put_hole(&mut self) -> Result<(), CopyError> {
        let hole = std::mem::take(&mut self.hole);
        if hole.is_empty() {
            return Ok(());
        }
        self.put(&Message::Punch { offset: hole.start, length: hole.end - hole.start })
    }

    fn wait(&mut self, bytes: u64) -> Result<(), CopyError> {
        let wait = self.pace.charge(bytes, self.donor.now());
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        Ok(())
    }

    /// Tells this member, and the joiner now and then, how far the copy is.
    fn keep_going(&mut self) -> Result<(), CopyError> {
        self.donor.progress(self.progress)?;
        if self.donor.now().saturating_duration_since(self.said) >= SAY {
            self.put_compared()
        } else {
            Ok(())
        }
    }
}
