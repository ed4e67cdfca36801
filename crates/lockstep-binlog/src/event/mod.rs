//! Binlog events of format 4, as MariaDB 10.11 writes them.
//!
//! An event is a header of 19 bytes, a body, and a CRC32 if the file's format description says so. The format description
//! itself always has a CRC32. Parsers take a whole event and return an error for all other bytes; they never panic.

mod build;
mod parse;
mod rewrite;

pub use build::{EventWriter, PositionTooFar, Stamp, artificial_gtid_list, artificial_rotate, heartbeat};
pub use parse::{
    FormatDescription, GtidEvent, GtidList, Heartbeat, Query, Rotate, Xid, is_incomplete_group_part,
};
pub use rewrite::{format_for_start, to_begin, to_dummy, without_checksum};

use crate::codec::{DecodeError, Reader};

/// The first bytes of a binlog file.
pub const MAGIC: [u8; 4] = *b"\xfebin";
/// Bytes of an event's header.
pub const HEADER_LEN: usize = 19;
/// Bytes of a checksum.
pub const CHECKSUM_LEN: usize = 4;

/// Event types by number.
pub mod kind {
    /// A statement.
    pub const QUERY: u8 = 2;
    /// The server stopped in good order.
    pub const STOP: u8 = 3;
    /// The end of a file, or (artificial) the name of the file that follows.
    pub const ROTATE: u8 = 4;
    /// A value for the next statement.
    pub const INTVAR: u8 = 5;
    /// A seed for the next statement.
    pub const RAND: u8 = 13;
    /// A user variable for the next statement.
    pub const USER_VAR: u8 = 14;
    /// The first event of a file.
    pub const FORMAT_DESCRIPTION: u8 = 15;
    /// Commit of a transaction.
    pub const XID: u8 = 16;
    /// The columns of a table.
    pub const TABLE_MAP: u8 = 19;
    /// Inserted rows.
    pub const WRITE_ROWS_V1: u8 = 23;
    /// Changed rows.
    pub const UPDATE_ROWS_V1: u8 = 24;
    /// Removed rows.
    pub const DELETE_ROWS_V1: u8 = 25;
    /// The source may have lost events.
    pub const INCIDENT: u8 = 26;
    /// Nothing has happened; never in a file.
    pub const HEARTBEAT: u8 = 27;
    /// `XA PREPARE`, or `XA COMMIT … ONE PHASE`.
    pub const XA_PREPARE: u8 = 38;
    /// The statement behind row events.
    pub const ANNOTATE_ROWS: u8 = 160;
    /// Recovery needs no older file than the one named.
    pub const BINLOG_CHECKPOINT: u8 = 161;
    /// Begin of an event group.
    pub const GTID: u8 = 162;
    /// The state of the stream before a file.
    pub const GTID_LIST: u8 = 163;
    /// The rest of the file is encrypted.
    pub const START_ENCRYPTION: u8 = 164;
    /// A statement, compressed.
    pub const QUERY_COMPRESSED: u8 = 165;
}

/// Flags of an event's header.
pub mod flag {
    /// The file was not closed in good order, or still is open.
    pub const IN_USE: u16 = 1;
    /// The statement needs its session's own state.
    pub const THREAD_SPECIFIC: u16 = 4;
    /// The statement does not depend on the current database.
    pub const SUPPRESS_USE: u16 = 8;
    /// The event is in no file.
    pub const ARTIFICIAL: u16 = 0x20;
    /// `@@skip_replication` was set.
    pub const SKIP_REPLICATION: u16 = 0x8000;
}

/// Flags of a Gtid event.
pub mod gtid_flag {
    /// The group has one statement and no commit event.
    pub const STANDALONE: u8 = 1;
    /// A commit id follows.
    pub const GROUP_COMMIT_ID: u8 = 2;
    /// The group can be rolled back.
    pub const TRANSACTIONAL: u8 = 4;
    /// `@@skip_parallel_replication` was off.
    pub const ALLOW_PARALLEL: u8 = 8;
    /// The transaction waited for a lock.
    pub const WAITED: u8 = 16;
    /// The group is DDL.
    pub const DDL: u8 = 32;
    /// The group ends with `XA PREPARE`.
    pub const PREPARED_XA: u8 = 64;
    /// The group is `XA COMMIT` or `XA ROLLBACK`.
    pub const COMPLETED_XA: u8 = 128;
}

/// Whether events of a file or connection end with a checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksum {
    /// They do not.
    None,
    /// CRC-32 as in zlib.
    Crc32,
}

impl Checksum {
    /// Bytes at the end of each event.
    pub fn len(self) -> usize {
        match self {
            Checksum::None => 0,
            Checksum::Crc32 => CHECKSUM_LEN,
        }
    }

    /// Whether events have none.
    pub fn is_empty(self) -> bool {
        self == Checksum::None
    }
}

/// The header of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Seconds since 1970; 0 in artificial events.
    pub timestamp: u32,
    /// The event's type: see [`kind`].
    pub kind: u8,
    /// The origin's server id.
    pub server_id: u32,
    /// Bytes of the whole event.
    pub length: u32,
    /// Where the event ends in its file; 0 if it is in none.
    pub end_pos: u32,
    /// See [`flag`].
    pub flags: u16,
}

impl Header {
    /// Parses the header at the front of these bytes.
    ///
    /// # Errors
    /// [`DecodeError`] if there are fewer than 19 bytes, or the length is too small for an event.
    pub fn parse(bytes: &[u8]) -> Result<Header, DecodeError> {
        let mut r = Reader::new(bytes);
        let header = Header {
            timestamp: r.u32()?,
            kind: r.u8()?,
            server_id: r.u32()?,
            length: r.u32()?,
            end_pos: r.u32()?,
            flags: r.u16()?,
        };
        if (header.length as usize) < HEADER_LEN {
            return Err(DecodeError::Invalid("event length"));
        }
        Ok(header)
    }

    /// The header's bytes.
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let Header { timestamp, kind, server_id, length, end_pos, flags } = self;
        let mut out = [0; HEADER_LEN];
        out[0..4].copy_from_slice(&timestamp.to_le_bytes());
        out[4] = *kind;
        out[5..9].copy_from_slice(&server_id.to_le_bytes());
        out[9..13].copy_from_slice(&length.to_le_bytes());
        out[13..17].copy_from_slice(&end_pos.to_le_bytes());
        out[17..19].copy_from_slice(&flags.to_le_bytes());
        out
    }
}

/// The CRC32 of an event without its last four bytes. The flag of an open file does not count.
pub(crate) fn crc_of(event_without_crc: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    match event_without_crc.split_at_checked(HEADER_LEN) {
        Some((header, body)) if header[4] == kind::FORMAT_DESCRIPTION => {
            let mut header: [u8; HEADER_LEN] = header.try_into().unwrap_or_default();
            header[17] &= !(flag::IN_USE as u8);
            crc.update(&header);
            crc.update(body);
        }
        _ => crc.update(event_without_crc),
    }
    crc.finalize()
}

/// Checks a whole event: its length, its checksum if it has one. Returns header and body.
///
/// # Errors
/// [`DecodeError`] if the bytes are not exactly one event.
pub fn split(event: &[u8], checksum: Checksum) -> Result<(Header, &[u8]), DecodeError> {
    let header = Header::parse(event)?;
    let length = header.length as usize;
    if event.len() != length {
        return Err(if event.len() < length { DecodeError::Short } else { DecodeError::Trailing });
    }
    // The format description has a checksum in any case.
    let checksum = if header.kind == kind::FORMAT_DESCRIPTION { Checksum::Crc32 } else { checksum };
    let end = length.checked_sub(checksum.len()).filter(|end| *end >= HEADER_LEN);
    let end = end.ok_or(DecodeError::Invalid("event length"))?;
    if checksum == Checksum::Crc32 {
        let stored = Reader::new(&event[end..]).u32()?;
        if crc_of(&event[..end]) != stored {
            return Err(DecodeError::Checksum);
        }
    }
    Ok((header, &event[HEADER_LEN..end]))
}

/// Follows event groups through a sequence of events.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Group {
    /// Between groups.
    #[default]
    Outside,
    /// In a group that ends with its first complete statement.
    Standalone,
    /// In a group that ends with a commit or rollback.
    Transaction,
}

impl Group {
    /// Passes an event, and returns its GTID if it begins a group.
    ///
    /// # Errors
    /// [`DecodeError`] if the event is malformed, or must not appear at this place.
    pub fn pass(
        &mut self,
        kind: u8,
        event: &[u8],
        checksum: Checksum,
    ) -> Result<Option<GtidEvent>, DecodeError> {
        if kind == kind::GTID {
            if *self != Group::Outside {
                return Err(DecodeError::Invalid("place: a Gtid event inside an event group"));
            }
            let gtid = GtidEvent::parse(event, checksum)?;
            *self = if gtid.is_standalone() { Group::Standalone } else { Group::Transaction };
            return Ok(Some(gtid));
        }
        match self {
            Group::Outside => {}
            _ if matches!(
                kind,
                kind::FORMAT_DESCRIPTION | kind::GTID_LIST | kind::ROTATE | kind::STOP | kind::HEARTBEAT
            ) =>
            {
                return Err(DecodeError::Invalid("place: an event of the file inside an event group"));
            }
            Group::Standalone if !is_incomplete_group_part(kind) => *self = Group::Outside,
            Group::Standalone => {}
            Group::Transaction => {
                let ends = match kind {
                    kind::XID | kind::XA_PREPARE => true,
                    kind::QUERY => Query::parse(event, checksum)?.ends_transaction(),
                    _ => false,
                };
                if ends {
                    *self = Group::Outside;
                }
            }
        }
        Ok(None)
    }

    /// Whether [`Group::pass`] needs the bytes of an event of this type, or only its type.
    pub fn needs_event(self, kind: u8) -> bool {
        kind == kind::GTID || (self == Group::Transaction && kind == kind::QUERY)
    }
}

#[cfg(test)]
pub(crate) mod tests;
