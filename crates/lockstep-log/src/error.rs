//! The errors of the log. Each prints as one line: the problem and the remedy.

use std::fmt;
use std::io;

use crate::MemberId;

/// Why a log could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// Another process uses the directory.
    Locked {
        /// The directory.
        dir: String,
    },
    /// The directory or a file in it cannot be written by this user.
    NotWritable {
        /// The directory.
        dir: String,
        /// The operation.
        doing: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The file system is full.
    NoSpace {
        /// The directory.
        dir: String,
        /// The operation.
        doing: String,
    },
    /// A file was written by a newer version of the software.
    NewerFormat {
        /// The file's name.
        file: String,
        /// The format version of the file.
        found: u16,
        /// The newest one that this software reads.
        supported: u16,
    },
    /// A segment belongs to another member than `lockstep.id.log` names.
    OtherMember {
        /// The file's name.
        file: String,
        /// The member that owns it.
        found: MemberId,
        /// This member.
        expected: MemberId,
    },
    /// There are segments but no `lockstep.id.log`, so their owner, its votes and its acks are unknown.
    IdentityMissing {
        /// The directory.
        dir: String,
    },
    /// No slot of `lockstep.id.log` is intact.
    IdentityDamaged {
        /// The directory.
        dir: String,
    },
    /// A file that must exist is not there.
    MissingSegment {
        /// The file's name.
        file: String,
        /// How it is known that it existed.
        reason: String,
    },
    /// Bytes that had been synced are not what was written.
    Corrupt {
        /// The file's name.
        file: String,
        /// Where in it, in bytes.
        offset: u64,
        /// The last index that is intact before it.
        intact_to: u64,
        /// The problem.
        reason: String,
    },
    /// The visitor refused what was read.
    Refused(String),
    /// Anything else the system answered.
    Io {
        /// The directory.
        dir: String,
        /// The operation.
        doing: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl OpenError {
    /// Whether the log is lost, so that the member may lack entries that it has acknowledged. Does not include files of
    /// another member that an operator has put there.
    pub fn is_loss(&self) -> bool {
        self.is_damage() && !matches!(self, OpenError::OtherMember { .. })
    }

    /// True where the log's contents, not the circumstances, are the trouble: a member in this state
    /// cannot vouch for what it acknowledged, and comes back under a new member id.
    pub fn is_damage(&self) -> bool {
        match self {
            OpenError::IdentityMissing { .. }
            | OpenError::IdentityDamaged { .. }
            | OpenError::MissingSegment { .. }
            | OpenError::Corrupt { .. }
            | OpenError::OtherMember { .. } => true,
            OpenError::Locked { .. }
            | OpenError::NotWritable { .. }
            | OpenError::NoSpace { .. }
            | OpenError::NewerFormat { .. }
            | OpenError::Refused(_)
            | OpenError::Io { .. } => false,
        }
    }

    pub(crate) fn io(dir: &str, doing: impl Into<String>, source: io::Error) -> OpenError {
        let (dir, doing) = (dir.to_string(), doing.into());
        match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                OpenError::NotWritable { dir, doing, source }
            }
            _ if is_disk_full(&source) => OpenError::NoSpace { dir, doing },
            _ => OpenError::Io { dir, doing, source },
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Locked { dir } => write!(
                f,
                "the log in {dir} is in use by another process: stop that one, or give this one its own log.dir"
            ),
            OpenError::NotWritable { dir, doing, source } => write!(
                f,
                "cannot {doing} in {dir}: {source}: make the directory writable for the server's user, or set log.dir"
            ),
            OpenError::NoSpace { dir, doing } => write!(
                f,
                "cannot {doing} in {dir}: the disk is full: free space, lower log.segment, or set log.dir to another disk"
            ),
            OpenError::NewerFormat { file, found, supported } => write!(
                f,
                "{file} has log format version {found}, this software reads up to {supported}: run the newer version again"
            ),
            OpenError::OtherMember { file, found, expected } => write!(
                f,
                "{file} belongs to member {}, but lockstep.id.log says we are {}: log files were mixed or copied; \
                 move all lockstep.* files away to come back as a new member",
                hex(found),
                hex(expected)
            ),
            OpenError::IdentityMissing { dir } => write!(
                f,
                "{dir} has log segments but no lockstep.id.log: restore it, or move all lockstep.* files away to come back as a new member"
            ),
            OpenError::IdentityDamaged { dir } => write!(
                f,
                "lockstep.id.log in {dir} is damaged: move all lockstep.* files away to come back as a new member"
            ),
            OpenError::MissingSegment { file, reason } => write!(
                f,
                "log file {file} is missing ({reason}): restore it, or move all lockstep.* files away to come back as a new member"
            ),
            OpenError::Corrupt { file, offset, intact_to, reason } => write!(
                f,
                "log file {file} is corrupt at byte {offset} ({reason}); it is intact up to index {intact_to}, and what follows had been \
                 synced: check the disk, then move all lockstep.* files away to come back as a new member"
            ),
            OpenError::Refused(why) => write!(f, "the log's contents were refused: {why}"),
            OpenError::Io { dir, doing, source } => {
                write!(f, "cannot {doing} in {dir}: {source}: check the disk and log.dir")
            }
        }
    }
}

impl std::error::Error for OpenError {}

/// Whether the error means that the disk, or its user's quota, is full.
pub fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Why a write or sync failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The operation makes no sense for this log; nothing was changed.
    Invalid(String),
    /// The disk is full. The log takes no more.
    NoSpace {
        /// The operation.
        doing: String,
    },
    /// A write or sync failed. Unsynced records may be lost, and the log refuses further writes.
    Io {
        /// The operation.
        doing: String,
        /// The system's answer.
        error: String,
    },
    /// An earlier write or sync failed, with this error.
    Poisoned(Box<WriteError>),
}

impl WriteError {
    pub(crate) fn io(doing: impl Into<String>, source: &io::Error) -> WriteError {
        match is_disk_full(source) {
            true => WriteError::NoSpace { doing: doing.into() },
            false => WriteError::Io { doing: doing.into(), error: source.to_string() },
        }
    }

    /// Whether the log failed because its disk, or its user's quota, is full.
    pub fn is_disk_full(&self) -> bool {
        match self {
            WriteError::NoSpace { .. } => true,
            WriteError::Poisoned(cause) => cause.is_disk_full(),
            WriteError::Invalid(_) | WriteError::Io { .. } => false,
        }
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Invalid(why) => write!(f, "invalid operation on the log: {why}"),
            WriteError::NoSpace { doing } => {
                write!(f, "cannot {doing}: the disk is full: free space")
            }
            WriteError::Io { doing, error } => {
                write!(f, "cannot {doing}: {error}: check the disk")
            }
            WriteError::Poisoned(cause) => write!(f, "the log is closed since an earlier failure: {cause}"),
        }
    }
}

impl std::error::Error for WriteError {}

/// Why records could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The log no longer reaches back that far.
    Trimmed {
        /// The first index that can be read.
        first: u64,
    },
    /// The bytes on disk differ from those written.
    Corrupt {
        /// The file's name.
        file: String,
        /// Where in it, in bytes.
        offset: u64,
        /// The index that could not be read.
        index: u64,
    },
    /// The system's answer.
    Io {
        /// The file's name.
        file: String,
        /// The system's answer.
        error: String,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Trimmed { first } => {
                write!(f, "the log begins at index {first}: take a state transfer")
            }
            ReadError::Corrupt { file, offset, index } => {
                write!(f, "log file {file} is corrupt at byte {offset} (index {index}): check the disk")
            }
            ReadError::Io { file, error } => write!(f, "cannot read log file {file}: {error}"),
        }
    }
}

impl std::error::Error for ReadError {}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn only_missing_space_and_quota_count_as_full_disk() {
        for (errno, is_full) in [
            (Errno::NOSPC, true),
            (Errno::DQUOT, true),
            (Errno::ROFS, false),
            (Errno::IO, false),
            (Errno::NOENT, false),
            (Errno::FBIG, false),
        ] {
            let error = WriteError::io("sync the log", &errno.into());
            assert_eq!(error.is_disk_full(), is_full, "{error}");
            let later = WriteError::Poisoned(Box::new(error));
            assert_eq!(later.is_disk_full(), is_full, "{later}");
        }
    }
}
