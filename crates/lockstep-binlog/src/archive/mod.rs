//! An archive of a library's files, in a directory or an object store, for point-in-time recovery.
//!
//! ```text
//! archive                                        history, domain, server id
//! lockstep-bin.000001/manifest                   parts of the file, with checksums, GTIDs and clocks
//! lockstep-bin.000001/0000000000-0004194304-<sha>.part    bytes of the file
//! lockstep-bin.000001/0000000000-0004194304-<sha>.index   GTID, begin and clock of each group in that part
//! ```
//!
//! The parts of a file, joined in order, are the canonical binlog file.
//!
//! - **A manifest lists only objects that are stored.** Parts are put first, the manifest second. After a crash the next
//!   archiver goes on behind what the manifests list.
//! - **A listed object is never overwritten with other bytes**: its name has its checksum.
//! - **Manifests are replaced only if they are unchanged** ([`When`]). So several archivers may have one target. The end
//!   of a file in its manifest only grows.
//! - **Files follow one another without a gap.** A file's first manifest is put after the last one of the file before,
//!   which names it.
//! - **Only a file's last part is replaced**, by a larger one, while it is small. A reader that misses a part reads the
//!   manifest again.
//!
//! A group's clock is the highest time at which a leader appended an entry up to that group ([`ClockLog`]). Clocks
//! ascend with GTIDs, as the timestamps of events do not.

mod archiver;
mod clocks;
mod dir;
mod index;
mod manifest;
mod recovered;
mod restore;
mod store;
#[cfg(test)]
mod tests;

pub use archiver::{Advance, Archiver, Expired, Progress, StartPoint};
pub use clocks::{ClockLog, Clocks};
pub use dir::DirStore;
pub use index::{Indexed, decode_index, encode_index};
pub use manifest::{Head, MANIFEST_MAX, Manifest, Mark, Part};
pub use recovered::recovered_end;
pub use restore::{ByHand, Found, Restored, Target, clock_text, restore};
pub use store::{Store, StoreError, Version, When};

use crate::library::LibraryError;
use std::fmt;

/// The name of the object that describes the archive.
const HEAD: &str = "archive";

/// Why an archive cannot be written or read.
#[derive(Debug)]
pub enum ArchiveError {
    /// The store failed.
    Store(StoreError),
    /// The local files failed.
    Library(LibraryError),
    /// A listed object is missing: damage, or the manifest that lists it was replaced meanwhile.
    Missing {
        /// The object.
        key: String,
    },
    /// A local file that is no binlog file failed: operation and reason.
    Local(String),
    /// An object has bytes that it must not have.
    Damaged {
        /// The object.
        key: String,
        /// Its defect.
        why: String,
    },
    /// The archive cannot be continued, or does not have what is asked for. For people.
    Refused(String),
}

impl ArchiveError {
    fn damaged(key: &str, why: impl fmt::Display) -> ArchiveError {
        ArchiveError::Damaged { key: key.to_owned(), why: why.to_string() }
    }

    /// Whether a later attempt may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, ArchiveError::Store(StoreError::Unavailable(_) | StoreError::Conflict))
    }
}

impl fmt::Display for ArchiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArchiveError::Store(error) => error.fmt(f),
            ArchiveError::Library(error) => error.fmt(f),
            ArchiveError::Local(text) | ArchiveError::Refused(text) => f.write_str(text),
            ArchiveError::Damaged { key, why } => write!(f, "the archive's object {key} {why}"),
            ArchiveError::Missing { key } => {
                write!(f, "the archive's object {key} is missing, although it is listed")
            }
        }
    }
}

impl std::error::Error for ArchiveError {}

impl From<StoreError> for ArchiveError {
    fn from(error: StoreError) -> ArchiveError {
        ArchiveError::Store(error)
    }
}

impl From<LibraryError> for ArchiveError {
    fn from(error: LibraryError) -> ArchiveError {
        ArchiveError::Library(error)
    }
}

/// The SHA-256 of bytes, in hexadecimal digits.
fn digest(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name of an object of a file.
fn manifest_key(file: &str) -> String {
    format!("{file}/manifest")
}

/// The numbers of the files that have a folder, ascending.
fn folders(store: &dyn Store, files: &str) -> Result<Vec<u64>, ArchiveError> {
    let mut numbers: Vec<u64> =
        store.list("")?.iter().filter_map(|folder| number_of(files, folder)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// The number of a file of this name.
fn number_of(files: &str, file: &str) -> Option<u64> {
    let digits = file.strip_prefix(files)?.strip_prefix('.')?;
    let number = digits.parse().ok()?;
    (file_name(files, number) == file).then_some(number)
}

fn file_name(files: &str, number: u64) -> String {
    format!("{files}.{number:06}")
}

/// Reads the description of an archive; `None` if there is no archive yet.
///
/// # Errors
/// [`ArchiveError`] if the store fails or the object is damaged.
pub fn read_head(store: &dyn Store) -> Result<Option<Head>, ArchiveError> {
    let Some((bytes, _)) = store.get(HEAD, MANIFEST_MAX)? else { return Ok(None) };
    Head::decode(&bytes).map(Some).map_err(|why| ArchiveError::damaged(HEAD, why))
}

/// Reads the manifest of a file; `None` if it has none.
fn read_manifest(
    store: &dyn Store,
    files: &str,
    number: u64,
) -> Result<Option<(Manifest, Version)>, ArchiveError> {
    let key = manifest_key(&file_name(files, number));
    let Some((bytes, version)) = store.get(&key, MANIFEST_MAX)? else { return Ok(None) };
    let manifest = Manifest::decode(&bytes).map_err(|why| ArchiveError::damaged(&key, why))?;
    if manifest.file != number {
        return Err(ArchiveError::damaged(&key, format!("is of the file with number {}", manifest.file)));
    }
    Ok(Some((manifest, version)))
}

/// Reads a part's index.
fn read_index(store: &dyn Store, file: &str, part: &Part) -> Result<Vec<Indexed>, ArchiveError> {
    let key = part.index_key(file);
    let bytes = read_exact(store, &key, index::INDEX_MAX, &part.index)?;
    decode_index(&bytes).map_err(|why| ArchiveError::damaged(&key, why))
}

/// Reads a part.
fn read_part(store: &dyn Store, file: &str, part: &Part) -> Result<Vec<u8>, ArchiveError> {
    let key = part.key(file);
    let bytes = read_exact(store, &key, part.end - part.begin, &part.digest)?;
    if bytes.len() as u64 != part.end - part.begin {
        return Err(ArchiveError::damaged(&key, "has another length than its manifest says"));
    }
    Ok(bytes)
}

fn read_exact(store: &dyn Store, key: &str, max: u64, expected: &str) -> Result<Vec<u8>, ArchiveError> {
    let found = store.get(key, max)?;
    let (bytes, _) = found.ok_or_else(|| ArchiveError::Missing { key: key.to_owned() })?;
    let sum = digest(&bytes);
    if sum != expected {
        return Err(ArchiveError::damaged(key, format!("has SHA-256 {sum}, and {expected} is listed")));
    }
    Ok(bytes)
}
