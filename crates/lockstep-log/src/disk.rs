//! The file system operations that the log needs.

use std::io;

use bytes::Bytes;

/// A fault planted in the log's recovery: the simulator shows that it would find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// Records count without a look at their checksums and their chain.
    NoChecksums,
    /// Recovery takes any unreadable record for a torn tail, even if later records or the identity file disprove it.
    AnyEndIsTorn,
    /// Recovery believes in a former end behind damage that is younger than the saved durable position.
    YoungDamageProves,
}

/// A directory that holds a log. Names are plain file names within it.
///
/// Every implementation must keep the kernel's promise and no more: contents are durable after
/// [`DiskFile::sync_data`], directory entries after [`Disk::sync_dir`].
pub trait Disk: Clone + Send + Sync + 'static {
    /// An open file.
    type File: DiskFile;
    /// Held while the directory is locked; dropping it unlocks.
    type Lock: Send + 'static;

    /// The directory's name for messages.
    fn describe(&self) -> String;
    /// Microseconds since 1970, for the stamp in a segment's header. Nothing depends on it.
    fn now_us(&self) -> u64;
    /// Locks the directory against other processes; `None` when another one has it.
    fn lock(&self) -> io::Result<Option<Self::Lock>>;
    /// All file names in the directory, in any order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Creates a file (mode 0600), which must not exist, for reading and writing.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    /// Opens an existing file, for writing too if asked.
    fn open(&self, name: &str, write: bool) -> io::Result<Self::File>;
    /// Renames, replacing what has the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync_dir(&self) -> io::Result<()>;
    /// A planted fault. Real disks have none, which the compiler knows.
    fn planted(&self) -> Option<Planted> {
        None
    }
}

/// An open file. Positioned reads and writes, so that threads may share it.
pub trait DiskFile: Send + Sync + 'static {
    /// The file's length in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Reads up to `buf.len()` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// The same bytes in memory of their own, which readers may share.
    fn read_bytes(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let mut bytes = vec![0; len];
        let n = self.read_at(&mut bytes, offset)?;
        bytes.truncate(n);
        Ok(bytes.into())
    }
    /// Writes all of `data` at `offset`.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Writes all of `data` at `offset`, behind which nothing is wanted any more: up to the next multiple of 4096 there may
    /// be zeros then.
    fn append_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(data, offset)
    }
    /// Nothing more will be appended: the implementation may release buffers kept for that.
    fn finish(&self) {}
    /// Reserves space so that the file is at least `size` bytes long; new bytes read as zeros. A file
    /// system that cannot do it is no error.
    fn allocate(&self, size: u64) -> io::Result<()>;
    /// Makes the file's contents (and its length, if it changed) durable.
    fn sync_data(&self) -> io::Result<()>;
    /// As [`Disk::planted`].
    fn planted(&self) -> Option<Planted> {
        None
    }
}
