//! The durable log of one member: segments of checksummed, chained records, and a two-slot file that
//! keeps the member's identity and its vote.
//!
//! The log knows nothing about what a record's body means. It promises three things:
//!
//! 1. After [`Log::sync`] has returned, everything written before survives a power cut.
//! 2. [`Log::open`] reports a prefix of the records written. It contains every record that was synced and
//!    not truncated since. If the files cannot prove that, opening fails and names the place. Only committed records
//!    may be missing at the beginning, if they are damaged and the owner agrees. If the log proves where it ended before
//!    damage, it may also lose its end, for an owner that knows what it owes then ([`Recovered::former_end`]).
//! 3. A failed sync is final: the log refuses every later call, because the kernel may have dropped the
//!    pages and the next sync would lie.
//!
//! The files are **physically append-only**: truncation of the tail is itself a record (a mark). So no synced byte is
//! ever overwritten, and recovery can tell garbage behind the end from a damaged middle. `docs/format-disk.md`
//! describes the files byte by byte.
//!
//! Everything is generic over [`Disk`], so that the simulator runs this very code on [`MemDisk`], which
//! loses unsynced writes, tears them at sector boundaries and fails on request.
#![forbid(unsafe_code)]

mod direct;
mod disk;
mod error;
mod format;
mod id;
mod log;
mod mem;
mod open;
mod reader;
mod real;
mod rescue;
mod scan;
mod view;

pub use disk::{Disk, DiskFile, Planted};
pub use error::{OpenError, ReadError, Shortage, WriteError};
pub use format::{FORMAT_VERSION, MAX_BASE_BYTES, MAX_RECORD_BYTES};
pub use log::{Log, peek_identity, peek_vote};
pub use mem::{Fault, MemDisk, MemFile, MemLock};
pub use open::{Cut, Recovered, Replay, Shortened, Trimmed, quarantine};
pub use reader::{LogReader, SegmentInfo};
pub use real::{RealDisk, RealFile, try_space};
pub use rescue::{read_rescue, rescue_number};
pub use view::LogView;

use bytes::Bytes;

/// Identity of a member in the log: 16 random bytes, drawn anew when the log is lost.
pub type MemberId = [u8; 16];

/// An entry's index, term and content. The body is opaque.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The index in the log, without gaps.
    pub index: u64,
    /// Term under which the leader appended it; never decreases along the log.
    pub term: u64,
    /// The content, at most [`MAX_RECORD_BYTES`].
    pub body: Bytes,
}

/// This member's identity, as stored in `lockstep.id.log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Chosen when the folder was first used.
    pub member_id: MemberId,
    /// Counts the openings of this log; durably raised before [`Log::open`] returns, starting at 1.
    pub incarnation: u64,
}

/// The member's promise to candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vote {
    /// The highest term the member has seen.
    pub term: u64,
    /// The member that got its vote in that term.
    pub voted_for: Option<MemberId>,
    /// An index known to be committed, for a faster start. Only a hint: it may be old, and a change of
    /// the hint alone is not made durable by the next sync.
    pub commit_hint: u64,
}

impl Vote {
    /// Whether a member that has made the promise `before` may make this one: terms never go back, and a term has one
    /// vote.
    pub(crate) fn may_follow(&self, before: &Vote) -> bool {
        let kept = before.voted_for.is_none() || self.voted_for == before.voted_for;
        self.term > before.term || (self.term == before.term && kept)
    }
}

/// Replaces the log by an empty one that continues after `index`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The snapshot of the replicated state at `index`.
    pub base: Bytes,
    /// The index before the first record to come.
    pub index: u64,
    /// The term of `index`.
    pub term: u64,
}

/// The changes of one call of [`Log::write`], applied in the order of the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteOp<R = Vec<Record>> {
    /// Forget everything and start behind an index (state transfer).
    pub reset: Option<Reset>,
    /// Drop the records from this index on. Beyond the end of the log: nothing happens.
    pub truncate_from: Option<u64>,
    /// Begin a new segment, with this snapshot of the state before it.
    pub roll: Option<Bytes>,
    /// Records to append; dense, from the last index + 1 on.
    pub records: R,
    /// The member's new vote.
    pub vote: Option<Vote>,
}

impl Default for WriteOp {
    fn default() -> WriteOp {
        WriteOp { reset: None, truncate_from: None, roll: None, records: Vec::new(), vote: None }
    }
}

/// How to open a log.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size to preallocate for a segment, in bytes; [`Log::wants_roll`] compares with it.
    pub segment_bytes: u64,
    /// The id to take if the folder holds no log yet (16 random bytes from the caller).
    pub new_member_id: MemberId,
    /// Keep one removed segment file to be written over by the next one, which spares the file system
    /// the conversion of unwritten blocks.
    pub recycle: bool,
    /// If the log is damaged near its end, and proves its former end, let it end before the damage. For an owner that keeps
    /// to [`Recovered::former_end`] in elections, after an open without this has reported a loss.
    pub may_shorten: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { segment_bytes: 64 << 20, new_member_id: [0; 16], recycle: true, may_shorten: false }
    }
}
