//! The errors of the log. Each prints as one line: the problem and the remedy.

use std::fmt;
use std::io;

use rustix::io::Errno;

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
    /// No file descriptor is left.
    NoDescriptor {
        /// The directory.
        dir: String,
        /// The operation.
        doing: String,
        /// Says whose limit it is: [`Shortage::OwnDescriptors`] or [`Shortage::SystemDescriptors`].
        of: Shortage,
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
            | OpenError::NoDescriptor { .. }
            | OpenError::NewerFormat { .. }
            | OpenError::Refused(_)
            | OpenError::Io { .. } => false,
        }
    }

    pub(crate) fn io(dir: &str, doing: impl Into<String>, source: io::Error) -> OpenError {
        let (dir, doing) = (dir.to_string(), doing.into());
        match Shortage::of(&source) {
            Some(shortage) => OpenError::short(dir, doing, shortage),
            None => match source.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    OpenError::NotWritable { dir, doing, source }
                }
                _ => OpenError::Io { dir, doing, source },
            },
        }
    }

    pub(crate) fn short(dir: String, doing: String, of: Shortage) -> OpenError {
        match of {
            Shortage::Space => OpenError::NoSpace { dir, doing },
            Shortage::OwnDescriptors | Shortage::SystemDescriptors => {
                OpenError::NoDescriptor { dir, doing, of }
            }
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
            OpenError::NoDescriptor { dir, doing, of } => write!(f, "cannot {doing} in {dir}: {of}"),
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

/// A lack that an operator can end while the process runs. The disk works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// The disk, or its user's quota, is full.
    Space,
    /// The process has as many files open as it may have.
    OwnDescriptors,
    /// The processes of the machine have as many files open as they may have together.
    SystemDescriptors,
}

impl Shortage {
    /// The lack that caused this error, if one did.
    pub fn of(error: &io::Error) -> Option<Shortage> {
        match (error.kind(), Errno::from_io_error(error)) {
            (io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded, _) => Some(Shortage::Space),
            (_, Some(Errno::MFILE)) => Some(Shortage::OwnDescriptors),
            (_, Some(Errno::NFILE)) => Some(Shortage::SystemDescriptors),
            _ => None,
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Shortage::Space => "the disk is full: free space",
            Shortage::OwnDescriptors => {
                "this process has no file descriptor left: raise LimitNOFILE of its systemd unit, and open_files_limit of a \
                 MariaDB server"
            }
            Shortage::SystemDescriptors => {
                "this machine has no file descriptor left: end processes that have many files open, or raise fs.file-max \
                 (sysctl)"
            }
        })
    }
}

/// Why a write or sync failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The operation makes no sense for this log; nothing was changed.
    Invalid(String),
    /// The operation lacked space or a file descriptor. The log takes no more.
    Short {
        /// The operation.
        doing: String,
        /// What it lacked.
        of: Shortage,
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
        match Shortage::of(source) {
            Some(of) => WriteError::Short { doing: doing.into(), of },
            None => WriteError::Io { doing: doing.into(), error: source.to_string() },
        }
    }

    /// The lack that made the log fail, if one did.
    pub fn shortage(&self) -> Option<Shortage> {
        match self {
            WriteError::Short { of, .. } => Some(*of),
            WriteError::Poisoned(cause) => cause.shortage(),
            WriteError::Invalid(_) | WriteError::Io { .. } => None,
        }
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Invalid(why) => write!(f, "invalid operation on the log: {why}"),
            WriteError::Short { doing, of } => write!(f, "cannot {doing}: {of}"),
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

    #[test]
    fn only_lack_of_space_quota_and_descriptors_is_a_shortage() {
        for (errno, shortage) in [
            (Errno::NOSPC, Some(Shortage::Space)),
            (Errno::DQUOT, Some(Shortage::Space)),
            (Errno::MFILE, Some(Shortage::OwnDescriptors)),
            (Errno::NFILE, Some(Shortage::SystemDescriptors)),
            (Errno::ROFS, None),
            (Errno::IO, None),
            (Errno::NOENT, None),
            (Errno::FBIG, None),
        ] {
            let error = WriteError::io("sync the log", &errno.into());
            assert_eq!(error.shortage(), shortage, "{error}");
            assert_eq!(error.to_string().contains("check the disk"), shortage.is_none(), "{error}");
            let later = WriteError::Poisoned(Box::new(error));
            assert_eq!(later.shortage(), shortage, "{later}");
            let open = OpenError::io("/log", "open the log directory", errno.into());
            let is_short = matches!(open, OpenError::NoSpace { .. } | OpenError::NoDescriptor { .. });
            assert_eq!(is_short, shortage.is_some(), "{open}");
        }
        let error = OpenError::io("/log", "open the log directory", Errno::MFILE.into());
        assert!(error.to_string().contains("raise LimitNOFILE"), "{error}");
    }
}
