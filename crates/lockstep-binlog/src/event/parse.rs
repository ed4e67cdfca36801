//! Parsers of the events that the stream's logic depends on.

use super::{CHECKSUM_LEN, Checksum, HEADER_LEN, Header, gtid_flag, kind, split};
use crate::codec::{DecodeError, Reader};
use crate::gtid::Gtid;

fn body_of(event: &[u8], expected: u8, checksum: Checksum) -> Result<(Header, Reader<'_>), DecodeError> {
    let (header, body) = split(event, checksum)?;
    if header.kind != expected {
        return Err(DecodeError::Invalid("event type"));
    }
    Ok((header, Reader::new(body)))
}

/// Whether an event of this type is followed by another one of its event group, also in a group without a commit event.
pub fn is_incomplete_group_part(kind: u8) -> bool {
    matches!(
        kind,
        kind::GTID | kind::INTVAR | kind::RAND | kind::USER_VAR | kind::TABLE_MAP | kind::ANNOTATE_ROWS
    )
}

/// The first event of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormatDescription {
    /// Seconds since 1970.
    pub timestamp: u32,
    /// The server id in the event's header.
    pub server_id: u32,
    /// The server's version, at most 49 bytes.
    pub version: String,
    /// When the server started, if the file is the first one since then; 0 otherwise. A replica that receives another
    /// value drops its temporary tables.
    pub created: u32,
    /// Whether the file's other events have a checksum.
    pub checksum: Checksum,
}

impl FormatDescription {
    /// Offset of `created` in the event.
    pub(super) const CREATED_AT: usize = HEADER_LEN + 2 + Self::VERSION_LEN;
    pub(super) const VERSION_LEN: usize = 50;

    /// Parses the event.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not exactly one event of this type, or its format is not the one of MariaDB 10.
    pub fn parse(event: &[u8]) -> Result<FormatDescription, DecodeError> {
        let (header, mut r) = body_of(event, kind::FORMAT_DESCRIPTION, Checksum::Crc32)?;
        if r.u16()? != 4 {
            return Err(DecodeError::Invalid("binlog version"));
        }
        let version = r.take(Self::VERSION_LEN)?;
        let version = version.split(|byte| *byte == 0).next().unwrap_or_default();
        let created = r.u32()?;
        if usize::from(r.u8()?) != HEADER_LEN {
            return Err(DecodeError::Invalid("header length"));
        }
        let (algorithm, lengths) = r.rest().split_last().ok_or(DecodeError::Short)?;
        // Only the lengths that the parsers of this module rely on.
        for (kind, expected) in [(kind::GTID, 19), (kind::GTID_LIST, 4), (kind::QUERY, 13), (kind::ROTATE, 8)]
        {
            match lengths.get(usize::from(kind) - 1) {
                Some(length) if *length == expected => {}
                Some(_) => return Err(DecodeError::Invalid("length of a post-header")),
                None => return Err(DecodeError::Short),
            }
        }
        let checksum = match algorithm {
            0 => Checksum::None,
            1 => Checksum::Crc32,
            _ => return Err(DecodeError::Invalid("checksum algorithm")),
        };
        Ok(FormatDescription {
            timestamp: header.timestamp,
            server_id: header.server_id,
            version: String::from_utf8_lossy(version).into_owned(),
            created,
            checksum,
        })
    }

    /// The number of bytes behind the body: the algorithm and the checksum.
    pub(super) const TAIL: usize = 1 + CHECKSUM_LEN;
}

/// The event that begins a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GtidEvent {
    /// The GTID; its server id is the one in the event's header.
    pub gtid: Gtid,
    /// See [`gtid_flag`].
    pub flags: u8,
    /// Groups with the same commit id may be applied in parallel. Present iff `flags` has `GROUP_COMMIT_ID`.
    pub commit_id: Option<u64>,
    /// XID and further fields, as they are.
    pub extra: Vec<u8>,
}

impl GtidEvent {
    /// Parses the event.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not exactly one event of this type.
    pub fn parse(event: &[u8], checksum: Checksum) -> Result<GtidEvent, DecodeError> {
        let (header, mut r) = body_of(event, kind::GTID, checksum)?;
        let (seqno, domain, flags) = (r.u64()?, r.u32()?, r.u8()?);
        let commit_id = if flags & gtid_flag::GROUP_COMMIT_ID != 0 { Some(r.u64()?) } else { None };
        if flags & (gtid_flag::PREPARED_XA | gtid_flag::COMPLETED_XA) != 0 {
            let mut xid = r;
            xid.u32()?;
            let (global, branch) = (xid.u8()?, xid.u8()?);
            if global > 64 || branch > 64 {
                return Err(DecodeError::Invalid("XID"));
            }
            xid.take(usize::from(global) + usize::from(branch))?;
        } else if commit_id.is_none() && r.remaining() < 6 {
            return Err(DecodeError::Short);
        }
        if seqno == 0 {
            return Err(DecodeError::Invalid("seqno"));
        }
        let gtid = Gtid { domain, server: header.server_id, seqno };
        Ok(GtidEvent { gtid, flags, commit_id, extra: r.rest().to_vec() })
    }

    /// Whether the group has no commit event.
    pub fn is_standalone(&self) -> bool {
        self.flags & gtid_flag::STANDALONE != 0
    }
}

/// The state of the stream before a file or position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GtidList {
    /// In each domain, the last one is the last in the stream.
    pub gtids: Vec<Gtid>,
    /// Bits 28 to 31 of the count: 1 says that an UNTIL condition is met.
    pub flags: u8,
}

impl GtidList {
    /// Parses the event.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not exactly one event of this type.
    pub fn parse(event: &[u8], checksum: Checksum) -> Result<GtidList, DecodeError> {
        let (_, mut r) = body_of(event, kind::GTID_LIST, checksum)?;
        let count = r.u32()?;
        let (count, flags) = ((count & 0x0fff_ffff) as usize, (count >> 28) as u8);
        if count > r.remaining() / 16 {
            return Err(DecodeError::Short);
        }
        let mut gtids = Vec::with_capacity(count);
        for _ in 0..count {
            gtids.push(Gtid { domain: r.u32()?, server: r.u32()?, seqno: r.u64()? });
        }
        // An empty list may be padded to six bytes: an old replica's dummy event needs as many.
        if r.remaining() > if count == 0 { 2 } else { 0 } {
            return Err(DecodeError::Trailing);
        }
        Ok(GtidList { gtids, flags })
    }
}

/// The name of the next file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rotate {
    /// The position to go on at in that file.
    pub position: u64,
    /// The file's name, without a directory.
    pub file: String,
}

impl Rotate {
    /// Parses the event.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not exactly one event of this type.
    pub fn parse(event: &[u8], checksum: Checksum) -> Result<Rotate, DecodeError> {
        let (_, mut r) = body_of(event, kind::ROTATE, checksum)?;
        let position = r.u64()?;
        let file = r.rest();
        if file.is_empty() || file.len() > 511 {
            return Err(DecodeError::Invalid("file name"));
        }
        let file = std::str::from_utf8(file).map_err(|_| DecodeError::Invalid("file name"))?;
        Ok(Rotate { position, file: file.to_owned() })
    }
}

/// A statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Query<'a> {
    /// The session's number.
    pub thread_id: u32,
    /// Seconds that the statement took.
    pub exec_time: u32,
    /// The statement's result on the source; 0 for success.
    pub error_code: u16,
    /// Settings of the session, encoded.
    pub status_vars: &'a [u8],
    /// The current database.
    pub database: &'a [u8],
    /// The statement's text.
    pub sql: &'a [u8],
}

impl<'a> Query<'a> {
    /// Parses the event.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not exactly one event of this type.
    pub fn parse(event: &'a [u8], checksum: Checksum) -> Result<Query<'a>, DecodeError> {
        let (_, mut r) = body_of(event, kind::QUERY, checksum)?;
        let (thread_id, exec_time) = (r.u32()?, r.u32()?);
        let database = usize::from(r.u8()?);
        let error_code = r.u16()?;
        let status_vars = usize::from(r.u16()?);
        let status_vars = r.take(status_vars)?;
        let database = r.take(database)?;
        if r.u8()? != 0 {
            return Err(DecodeError::Invalid("database"));
        }
        Ok(Query { thread_id, exec_time, error_code, status_vars, database, sql: r.rest() })
    }

    /// Whether the statement ends a transaction.
    pub fn ends_transaction(&self) -> bool {
        self.sql == b"COMMIT" || self.sql == b"ROLLBACK"
    }
}

/// The commit of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Xid {
    /// The transaction's number on its origin.
    pub xid: u64,
}

impl Xid {
    /// Parses the event.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not exactly one event of this type.
    pub fn parse(event: &[u8], checksum: Checksum) -> Result<Xid, DecodeError> {
        let (_, mut r) = body_of(event, kind::XID, checksum)?;
        let xid = r.u64()?;
        r.end()?;
        Ok(Xid { xid })
    }
}

/// A source's sign of life. Its position is the header's end position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// The file that the source reads.
    pub file: String,
    /// The end of the last event that the source has sent.
    pub position: u32,
}

impl Heartbeat {
    /// Parses the event.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not exactly one event of this type.
    pub fn parse(event: &[u8], checksum: Checksum) -> Result<Heartbeat, DecodeError> {
        let (header, mut r) = body_of(event, kind::HEARTBEAT, checksum)?;
        let file = std::str::from_utf8(r.rest()).map_err(|_| DecodeError::Invalid("file name"))?;
        if file.is_empty() || file.len() > 511 {
            return Err(DecodeError::Invalid("file name"));
        }
        Ok(Heartbeat { file: file.to_owned(), position: header.end_pos })
    }
}
