//! Why files cannot be used, and why a consumer cannot start.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::codec::DecodeError;
use crate::gtid::{Gtid, ReplicaState, StreamState};

/// The way out for a replica whose next event was removed.
const COPY: &str = "give the replica a new copy of the data, and start it from the copy's position";

/// A failure of the files or of a call.
#[derive(Debug)]
pub enum LibraryError {
    /// The system refused an operation.
    Io {
        /// The operation.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file has bytes that no binlog has.
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where the event begins.
        offset: u64,
        /// The event's defect.
        why: DecodeError,
    },
    /// The file is no binlog file, or one of another format.
    NotBinlog {
        /// The file.
        file: PathBuf,
        /// Its defect.
        why: String,
    },
    /// A file is missing between two others.
    Missing {
        /// The missing file.
        file: String,
        /// The next one that exists.
        next: String,
    },
    /// The files end before a place up to which they were synced.
    Lost {
        /// The directory.
        dir: PathBuf,
        /// The last file and its last whole event group's end. `None`: there is no file.
        end: Option<(String, u64)>,
        /// The file and the byte up to which they were synced.
        synced: (String, u64),
        /// The defect of the bytes behind the end, if there are any.
        why: String,
    },
    /// Another process writes the files of this directory.
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// An event group cannot be appended.
    Refused(String),
    /// An earlier write or sync failed, so the file's content is unknown: open the library again.
    Failed,
    /// The files that a reader needs were removed.
    Purged {
        /// The file that it needs.
        file: String,
        /// The oldest file that is left.
        oldest: String,
    },
}

impl LibraryError {
    pub(super) fn io<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> LibraryError + 'a {
        move |source| LibraryError::Io { what, path: path.to_owned(), source }
    }

    /// Whether the disk is full, or the user's quota of it.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, LibraryError::Io { source, .. } if is_disk_full(source))
    }
}

/// Whether this error says that the disk is full, or the user's quota of it.
pub fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl fmt::Display for LibraryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { what, path, source } => write!(f, "cannot {what} {}: {source}", path.display()),
            Self::Damaged { file, offset, why } => {
                write!(f, "{}: the event at byte {offset} {why}", file.display())
            }
            Self::NotBinlog { file, why } => write!(f, "{} is no binlog file: {why}", file.display()),
            Self::Missing { file, next } => write!(f, "{file} is missing, but {next} exists"),
            Self::Lost { dir, end, synced: (file, offset), why } => {
                let dir = dir.display();
                match end {
                    Some((last, end)) => {
                        write!(f, "the binlog files in {dir} end with byte {end} of {last}")?
                    }
                    None => write!(f, "there are no binlog files in {dir}")?,
                }
                let colon = if why.is_empty() { "" } else { ": " };
                write!(f, ", and were complete up to byte {offset} of {file}{colon}{why}")
            }
            Self::Locked { dir } => write!(f, "another process writes the binlog files in {}", dir.display()),
            Self::Refused(why) => write!(f, "cannot append an event group: {why}"),
            Self::Failed => f.write_str(
                "an earlier write of the binlog file failed: it must be opened again before further writes",
            ),
            Self::Purged { file, oldest } => {
                write!(
                    f,
                    "{file} was removed, because its reader was too far behind; the oldest file is {oldest}. Give the replica \
                     a new copy of the data, or let it read from a server that still has the file"
                )
            }
        }
    }
}

impl std::error::Error for LibraryError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Damaged { why, .. } => Some(why),
            _ => None,
        }
    }
}

/// Why a consumer cannot start where it asks. Its text names both sides.
#[derive(Debug)]
pub enum StartError {
    /// The stream has none of the domains that the replica knows.
    OtherDomains {
        /// The replica's state.
        replica: ReplicaState,
        /// The stream's.
        stream: StreamState,
    },
    /// The stream ends before this GTID.
    BeyondEnd {
        /// The replica's GTID.
        gtid: Gtid,
        /// The stream's last one in that domain.
        last: Gtid,
    },
    /// The stream has this seqno, or had it, under another server id: the replica has followed another history.
    OtherHistory {
        /// The replica's GTID.
        gtid: Gtid,
        /// The stream's GTID with the same seqno, or the nearest one.
        stream: Gtid,
    },
    /// The first events that the replica needs were removed.
    Purged {
        /// The replica's state.
        replica: ReplicaState,
        /// The state before the oldest file.
        begin: StreamState,
    },
    /// The replica may lack events before the first one of a domain.
    Hole {
        /// The replica's state.
        replica: ReplicaState,
        /// The first one.
        first: Gtid,
    },
    /// There is no such file.
    NoFile {
        /// The name.
        file: String,
        /// The oldest and the newest file.
        range: Option<(String, String)>,
    },
    /// The file has no event at this position.
    NoEvent {
        /// The file.
        file: String,
        /// The position.
        offset: u64,
        /// The file's end.
        end: u64,
    },
    /// The library has no file yet.
    Empty,
    /// The files cannot be read.
    Library(LibraryError),
}

impl From<LibraryError> for StartError {
    fn from(error: LibraryError) -> StartError {
        StartError::Library(error)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherDomains { replica, stream } if stream.is_empty() => {
                write!(f, "the replica is at GTID {replica}, but this stream has no event yet")
            }
            Self::OtherDomains { replica, stream } => write!(
                f,
                "the replica is at GTID {replica}, but this stream is at {stream} and has none of those domains"
            ),
            Self::BeyondEnd { gtid, last } => {
                write!(f, "the replica is at GTID {gtid}, but this stream ends at {last}")
            }
            Self::OtherHistory { gtid, stream } => write!(
                f,
                "the replica is at GTID {gtid}, which this stream does not have: the nearest GTID here is {stream}, so the \
                 replica has followed another history"
            ),
            Self::Purged { replica, begin } if replica.is_empty() => write!(
                f,
                "the replica asks for the stream from its first event, but the events up to GTID {begin} were purged: {COPY}"
            ),
            Self::Purged { replica, begin } => {
                write!(
                    f,
                    "the replica is at GTID {replica}, but the events up to GTID {begin} were purged: {COPY}"
                )
            }
            Self::Hole { replica, first } => write!(
                f,
                "the replica is at GTID {replica}, but the first event of its domain is {first} here, and the events before \
                 that one were another primary's: {COPY}"
            ),
            Self::NoFile { file, range: Some((oldest, newest)) } => {
                write!(f, "the consumer asks for file '{file}', but the files are {oldest} to {newest}")
            }
            Self::NoFile { file, range: None } => {
                write!(f, "the consumer asks for file '{file}', but there is no file yet")
            }
            Self::NoEvent { file, offset, end } => write!(
                f,
                "the consumer asks for position {offset} of file {file}, but no event begins there; the file ends at {end}"
            ),
            Self::Empty => f.write_str("this stream has no file yet"),
            Self::Library(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {}
