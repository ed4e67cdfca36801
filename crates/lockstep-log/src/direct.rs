//! Appending to a file past the kernel's page cache (`O_DIRECT`).
//!
//! The log syncs an append at once, so a copy in the page cache saves no write. It costs time: the kernel has to find,
//! fill, mark and write back the pages. A write into a page under write-back waits for it (stable pages), which makes
//! the slowest syncs. A device takes whole blocks only. So the last, partly filled block of the file stays in memory,
//! and the next append writes it again.
//!
//! Readers go through the page cache: a write past it drops what that holds of its blocks.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{Mode, OFlags};

/// The unit of such writes. There are devices and file systems that want a larger one: they refuse.
pub(crate) const BLOCK: usize = 4096;
/// Zeros are written in pieces of this length.
const PIECE: usize = 512 << 10;
/// A buffer beyond this is not kept.
const KEEP: usize = 8 << 20;

/// A file opened once more, and its last block.
#[derive(Debug)]
pub(crate) struct Direct {
    file: File,
    buffer: Blocks,
    /// Offset of the next append; `buffer` begins with the bytes before it in its block. `None`: the end of the file is
    /// unknown.
    end: Option<u64>,
}

impl Direct {
    /// The same file, without the page cache; `None` where that cannot be had.
    pub(crate) fn of(file: &File) -> Option<Direct> {
        // Through the descriptor, because the file may have been renamed.
        let path = format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(&file.as_fd()));
        let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).ok()?.into();
        Some(Direct { file, buffer: Blocks::default(), end: None })
    }

    /// Writes `data` at `offset`, and zeros behind it up to the end of its last block. `through` is the same file by way of
    /// the page cache.
    pub(crate) fn append(&mut self, through: &File, data: &[u8], offset: u64) -> io::Result<()> {
        debug_assert!(!data.is_empty());
        let skip = (offset % BLOCK as u64) as usize;
        let known = self.end.take() == Some(offset);
        let length = (skip + data.len()).next_multiple_of(BLOCK);
        let blocks = self.buffer.of_length(length, if known { skip } else { 0 });
        if !known {
            through.read_exact_at(&mut blocks[..skip], offset - skip as u64)?;
        }
        blocks[skip..skip + data.len()].copy_from_slice(data);
        blocks[skip + data.len()..].fill(0);
        self.file.write_all_at(blocks, offset - skip as u64)?;
        let end = offset + data.len() as u64;
        let kept = (end % BLOCK as u64) as usize;
        let last = length - BLOCK;
        blocks.copy_within(last..last + kept, 0);
        self.end = Some(end);
        self.buffer.shrink(KEEP);
        Ok(())
    }

    /// Writes zeros; both are multiples of [`BLOCK`].
    pub(crate) fn zeros(&self, mut from: u64, to: u64) -> io::Result<()> {
        debug_assert!(from.is_multiple_of(BLOCK as u64) && to.is_multiple_of(BLOCK as u64));
        let mut buffer = Blocks::default();
        let zeros = buffer.of_length(PIECE, 0);
        while from < to {
            let piece = PIECE.min((to - from) as usize);
            self.file.write_all_at(&zeros[..piece], from)?;
            from += piece as u64;
        }
        Ok(())
    }

    /// The file's contents have been changed by another way.
    pub(crate) fn forget(&mut self) {
        self.end = None;
    }
}

/// Memory aligned for direct writes.
#[derive(Debug, Default)]
struct Blocks(Vec<u8>);

impl Blocks {
    /// Resizes the buffer; the first `keep` bytes stay.
    fn of_length(&mut self, length: usize, keep: usize) -> &mut [u8] {
        if self.0.len() < length + BLOCK {
            // A plain clone would lose the alignment of the buffer.
            let mut larger = vec![0; length + BLOCK];
            let at = start(&larger);
            if keep > 0 {
                larger[at..at + keep].copy_from_slice(&self.0[start(&self.0)..][..keep]);
            }
            self.0 = larger;
        }
        let at = start(&self.0);
        &mut self.0[at..at + length]
    }

    /// Gives the memory back, but for the first block, if it is more than this.
    fn shrink(&mut self, most: usize) {
        if self.0.len() > most {
            let mut smaller = Blocks::default();
            smaller.of_length(BLOCK, 0).copy_from_slice(self.of_length(BLOCK, BLOCK));
            *self = smaller;
        }
    }
}

fn start(memory: &[u8]) -> usize {
    memory.as_ptr().addr().next_multiple_of(BLOCK) - memory.as_ptr().addr()
}
