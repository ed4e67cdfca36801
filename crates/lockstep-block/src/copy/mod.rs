//! A copy of a device from another member, by checksums.
//!
//! The member that lacks data is the *joiner*; the member that has them is the *donor*. The donor connects to the joiner.
//!
//! ```text
//!  donor                                             joiner
//!    Hello: token, position Q0 ───────────────────────▶  checks the token, marks its copy as not whole
//!    ◀─────────────────────────────────────── Accept (or Refuse, with a text)
//!    ◀─────────────────────────────── Summary: holes and hashes of some extents; a few Summaries ahead
//!    hashes its own extents
//!    Data, Punch: what differs ───────────────────────▶  writes, syncs
//!    Compared: the end of the Summary ────────────────▶  sends the next Summary
//!    …
//!    End: Q1 ─────────────────────────────────────────▶  saves its position
//!    ◀─────────────────────────────────────── Done
//! ```
//!
//! The donor's file changes meanwhile. It has every entry up to Q0 before the first comparison, and no entry above Q1 at the
//! last one. So each byte of the joiner's file is as of some seqno from Q0 to Q1. The joiner takes the entries from Q0 + 1 on
//! from the log, and each entry replaces whole ranges: with the entry Q1 its file is exact.
//!
//! - [`wire`]: the messages, without I/O.
//! - [`sender`], [`receiver`]: both sides, over any stream.
//! - [`pace`]: the donor's rate.

pub mod pace;
pub mod receiver;
pub mod sender;
#[cfg(test)]
pub(crate) mod tests;
pub mod wire;

use crate::device::extent_map::ExtentMap;
use lockstep_core::codec::DecodeError;
use ring::digest::{SHA256, digest};
use std::fmt;
use std::io;
use std::ops::Range;

/// Extents are compared and sent in this size. Only the small devices of the simulator have a lesser one.
pub const EXTENT: u64 = 64 << 10;
/// Parts of a received extent that are zeroes become holes in this size: the block size of most file systems.
const BLOCK: usize = 4 << 10;

/// The collision-resistant hash of an extent. The content of a device is a client's choice: a weaker hash would let a client
/// make two extents that a resync takes for equal.
pub type Sum = [u8; 32];

/// The device file, as a copy reads and writes it.
pub trait Image {
    /// Reads. Bytes behind the end read as zeroes.
    ///
    /// # Errors
    /// As of the file system, here and below.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// The first part of a range that is data, or that is a hole: its length, and whether it is a hole.
    fn extent(&self, offset: u64, length: u64) -> io::Result<(u64, bool)>;

    /// Writes all runs, durably.
    fn write(&self, runs: &ExtentMap) -> io::Result<()>;

    /// The bytes of an extent, at most [`EXTENT`]. Both sides have the same.
    fn unit(&self) -> u64 {
        EXTENT
    }
}

/// How far a copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Bytes of the device that are equal now.
    pub done: u64,
    /// The device's size.
    pub total: u64,
    /// Bytes of the device that were sent because they differed.
    pub sent: u64,
}

/// Why a copy ended early. Nothing is lost by that: the joiner's copy is not whole, and another copy begins.
#[derive(Debug)]
pub enum CopyError {
    /// The connection.
    Stream(io::Error),
    /// The peer sent something wrong.
    Protocol(String),
    /// The peer refused, with this text.
    Refused(String),
    /// The own device file.
    Device(io::Error),
    /// This member ends.
    Stopped,
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CopyError::Stream(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                f.write_str("the other member sends nothing, or takes nothing: the connection was closed")
            }
            CopyError::Stream(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("the other member has closed the connection")
            }
            CopyError::Stream(error) => write!(f, "the connection failed: {error}"),
            CopyError::Protocol(text) => write!(f, "the other member sent {text}: is it of another version?"),
            CopyError::Refused(text) => write!(f, "the other member refuses: {text}"),
            CopyError::Device(error) => write!(f, "the device file: {error}"),
            CopyError::Stopped => f.write_str("this member ends"),
        }
    }
}

impl std::error::Error for CopyError {}

impl From<DecodeError> for CopyError {
    fn from(error: DecodeError) -> CopyError {
        CopyError::Protocol(format!("a message that {error}"))
    }
}

fn sum(bytes: &[u8]) -> Sum {
    let mut sum = [0; 32];
    sum.copy_from_slice(digest(&SHA256, bytes).as_ref());
    sum
}

fn is_zero(bytes: &[u8]) -> bool {
    // Compares with itself, shifted by one byte: memcmp is faster than a loop in builds without optimisation.
    bytes.first().is_none_or(|first| *first == 0 && bytes[1..] == bytes[..bytes.len() - 1])
}

/// The extent of so many bytes that begins here.
fn extent_at(offset: u64, size: u64, unit: u64) -> Range<u64> {
    offset..size.min(offset.saturating_add(unit))
}
