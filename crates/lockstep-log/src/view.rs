//! Looking at a log without owning it: for tools, while the server runs.

use std::path::Path;
use std::sync::Arc;

use crate::error::OpenError;
use crate::id::IdFile;
use crate::open::{Access, Replay, load, replay};
use crate::reader::{LogReader, SegmentInfo, Shared};
use crate::{Disk, Identity, ReadError, RealDisk, Record, Vote};

/// A log as it was at one moment. Nothing is locked or changed, so the log may belong to a running
/// server; records that had been written but not yet synced may be seen too.
pub struct LogView<D: Disk> {
    dir: String,
    identity: Identity,
    vote: Vote,
    reader: LogReader<D>,
}

impl LogView<RealDisk> {
    /// Opens the log in a directory.
    pub fn open(dir: impl AsRef<Path>) -> Result<LogView<RealDisk>, OpenError> {
        LogView::open_on(RealDisk::new(dir)?)
    }
}

impl<D: Disk> LogView<D> {
    /// Opens the log on a disk.
    pub fn open_on(disk: D) -> Result<LogView<D>, OpenError> {
        // The owner may roll or trim under our eyes; then the picture is inconsistent, and we look again.
        const TRIES: usize = 5;
        let mut tries = 1;
        loop {
            match Self::look(&disk) {
                Ok(view) => return Ok(view),
                Err(
                    e @ (OpenError::Io { .. } | OpenError::Corrupt { .. } | OpenError::MissingSegment { .. }),
                ) if tries >= TRIES => {
                    return Err(e);
                }
                Err(OpenError::Io { .. } | OpenError::Corrupt { .. } | OpenError::MissingSegment { .. }) => {
                    tries += 1;
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn look(disk: &D) -> Result<LogView<D>, OpenError> {
        let slot = *IdFile::open(disk, false)?.slot();
        let image = load(disk, &slot, Access::Look)?;
        let shared = Arc::new(Shared::new(image.index));
        Ok(LogView {
            dir: disk.describe(),
            identity: slot.identity(),
            vote: slot.vote(),
            reader: LogReader { shared },
        })
    }

    /// The member that owns the log.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The vote on disk.
    pub fn vote(&self) -> Vote {
        self.vote
    }

    /// Reads records; see [`LogReader::read`].
    pub fn read(&self, from: u64, max_bytes: usize) -> Result<Vec<Record>, ReadError> {
        self.reader.read(from, max_bytes)
    }

    /// Shows the visitor every base and record, oldest first.
    pub fn visit(&self, visitor: &mut dyn FnMut(Replay) -> Result<(), String>) -> Result<(), OpenError> {
        replay(&self.reader, &self.dir, visitor)
    }

    /// The index of the oldest record (or of the first one to come).
    pub fn first_index(&self) -> u64 {
        self.reader.first_index()
    }

    /// The index of the newest record.
    pub fn last_index(&self) -> u64 {
        self.reader.last_index()
    }

    /// All segments, oldest first.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.reader.segments()
    }
}
