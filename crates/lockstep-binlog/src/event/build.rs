//! Builders of events.

use std::fmt;

use super::{Checksum, FormatDescription, GtidEvent, HEADER_LEN, Header, Query, crc_of, flag, kind};
use crate::codec::DecodeError;
use crate::gtid::Gtid;

/// The lengths of post-headers by event type, as MariaDB 10.11 writes them. Types that are not here have 0.
const POST_HEADERS: &[(u8, u8)] = &[
    (1, 56),
    (2, 13),
    (4, 8),
    (6, 18),
    (8, 4),
    (9, 4),
    (10, 4),
    (11, 4),
    (12, 18),
    (15, 228),
    (17, 4),
    (18, 26),
    (19, 8),
    (23, 8),
    (24, 8),
    (25, 8),
    (26, 2),
    (30, 10),
    (31, 10),
    (32, 10),
    (39, 10),
    (40, 10),
    (41, 10),
    (161, 4),
    (162, 19),
    (163, 4),
    (165, 13),
    (166, 8),
    (167, 8),
    (168, 8),
    (169, 10),
    (170, 10),
    (171, 10),
];
/// The highest event type of MariaDB 10.11.
const LAST_KIND: usize = 171;

/// Time and origin of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Seconds since 1970.
    pub timestamp: u32,
    /// The origin's server id.
    pub server_id: u32,
}

/// A position that the four bytes of an event's header cannot hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PositionTooFar(
    /// The position.
    pub u64,
);

impl fmt::Display for PositionTooFar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an event would end at byte {}, and a binlog file has at most {}", self.0, u32::MAX)
    }
}

impl std::error::Error for PositionTooFar {}

/// Builds events that follow one another in a file, each with its end position and CRC32.
#[derive(Clone, Debug)]
pub struct EventWriter {
    position: u64,
    out: Vec<u8>,
}

impl EventWriter {
    /// Builds events for this position of a file.
    pub fn at(position: u64) -> EventWriter {
        EventWriter { position, out: Vec::new() }
    }

    /// Where the next event begins in the file.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes of the events so far.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether there is no event yet.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// The events.
    ///
    /// # Errors
    /// [`PositionTooFar`] if they end beyond 4 GiB.
    pub fn finish(self) -> Result<Vec<u8>, PositionTooFar> {
        if self.position > u64::from(u32::MAX) {
            return Err(PositionTooFar(self.position));
        }
        Ok(self.out)
    }

    /// An event of any type. Its body is these parts, joined.
    pub fn event(&mut self, stamp: Stamp, kind: u8, flags: u16, body: &[&[u8]]) {
        let len = HEADER_LEN + body.iter().map(|part| part.len()).sum::<usize>() + Checksum::Crc32.len();
        self.position += len as u64;
        // `finish` refuses positions, and so lengths, that do not fit.
        let (length, end_pos) = (len as u32, self.position as u32);
        let Stamp { timestamp, server_id } = stamp;
        let start = self.out.len();
        self.out.reserve(len);
        self.out.extend_from_slice(&Header { timestamp, kind, server_id, length, end_pos, flags }.to_bytes());
        body.iter().for_each(|part| self.out.extend_from_slice(part));
        let crc = crc_of(&self.out[start..]);
        self.out.extend_from_slice(&crc.to_le_bytes());
    }

    /// A copy of an event from elsewhere, with its new end position and checksum.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not exactly one event.
    pub fn copy(&mut self, event: &[u8], checksum: Checksum) -> Result<(), DecodeError> {
        let (header, body) = super::split(event, checksum)?;
        let stamp = Stamp { timestamp: header.timestamp, server_id: header.server_id };
        self.event(stamp, header.kind, header.flags, &[body]);
        Ok(())
    }

    /// A file's first event. Its checksum algorithm is CRC32, also if `format` has another.
    pub fn format_description(&mut self, format: &FormatDescription) {
        let FormatDescription { timestamp, server_id, version, created, checksum: _ } = format;
        let mut body = Vec::with_capacity(256);
        body.extend_from_slice(&4u16.to_le_bytes());
        // The last byte stays NUL.
        let version = &version.as_bytes()[..version.len().min(FormatDescription::VERSION_LEN - 1)];
        body.extend_from_slice(version);
        body.resize(2 + FormatDescription::VERSION_LEN, 0);
        body.extend_from_slice(&created.to_le_bytes());
        body.push(HEADER_LEN as u8);
        let lengths = body.len();
        body.resize(lengths + LAST_KIND, 0);
        for (kind, length) in POST_HEADERS {
            body[lengths + usize::from(*kind) - 1] = *length;
        }
        body.push(1);
        self.event(
            Stamp { timestamp: *timestamp, server_id: *server_id },
            kind::FORMAT_DESCRIPTION,
            0,
            &[&body],
        );
    }

    /// The state of the stream before this file.
    pub fn gtid_list(&mut self, stamp: Stamp, gtids: &[Gtid]) {
        self.event(stamp, kind::GTID_LIST, 0, &[&gtid_list_body(gtids, 0)]);
    }

    /// The begin of an event group. The server id is the GTID's.
    pub fn gtid(&mut self, timestamp: u32, event: &GtidEvent) {
        let GtidEvent { gtid, flags, commit_id, extra } = event;
        let mut body = Vec::with_capacity(32);
        body.extend_from_slice(&gtid.seqno.to_le_bytes());
        body.extend_from_slice(&gtid.domain.to_le_bytes());
        body.push(*flags);
        if let Some(commit_id) = commit_id {
            body.extend_from_slice(&commit_id.to_le_bytes());
        }
        body.extend_from_slice(extra);
        // At least the 19 bytes of its post-header.
        body.resize(body.len().max(19), 0);
        // MariaDB sets this flag on every Gtid event.
        self.event(Stamp { timestamp, server_id: gtid.server }, kind::GTID, flag::SUPPRESS_USE, &[&body]);
    }

    /// A statement.
    ///
    /// # Errors
    /// [`DecodeError`] if the database's name or the settings are too long for the event.
    pub fn query(&mut self, stamp: Stamp, flags: u16, query: &Query<'_>) -> Result<(), DecodeError> {
        let Query { thread_id, exec_time, error_code, status_vars, database, sql } = query;
        let database_len = u8::try_from(database.len()).map_err(|_| DecodeError::Invalid("database"))?;
        let vars_len = u16::try_from(status_vars.len()).map_err(|_| DecodeError::Invalid("settings"))?;
        let mut fixed = Vec::with_capacity(13);
        fixed.extend_from_slice(&thread_id.to_le_bytes());
        fixed.extend_from_slice(&exec_time.to_le_bytes());
        fixed.push(database_len);
        fixed.extend_from_slice(&error_code.to_le_bytes());
        fixed.extend_from_slice(&vars_len.to_le_bytes());
        self.event(stamp, kind::QUERY, flags, &[&fixed, status_vars, database, &[0], sql]);
        Ok(())
    }

    /// The statement `BEGIN`. The groups of MariaDB 10 need none: their Gtid event begins the transaction.
    pub fn begin(&mut self, stamp: Stamp) {
        let fixed = [0; 13];
        self.event(stamp, kind::QUERY, flag::SUPPRESS_USE, &[&fixed, &[0], b"BEGIN"]);
    }

    /// The commit of a transaction.
    pub fn xid(&mut self, stamp: Stamp, xid: u64) {
        self.event(stamp, kind::XID, 0, &[&xid.to_le_bytes()]);
    }

    /// The end of a file that is followed by this one.
    pub fn rotate(&mut self, stamp: Stamp, next_file: &str) {
        self.event(stamp, kind::ROTATE, 0, &[&4u64.to_le_bytes(), next_file.as_bytes()]);
    }

    /// The end of the last file of a server that stopped.
    pub fn stop(&mut self, stamp: Stamp) {
        self.event(stamp, kind::STOP, 0, &[]);
    }
}

fn gtid_list_body(gtids: &[Gtid], flags: u8) -> Vec<u8> {
    let mut body = Vec::with_capacity(4 + 16 * gtids.len().max(1));
    let count = (gtids.len() as u32 & 0x0fff_ffff) | u32::from(flags) << 28;
    body.extend_from_slice(&count.to_le_bytes());
    for gtid in gtids {
        body.extend_from_slice(&gtid.domain.to_le_bytes());
        body.extend_from_slice(&gtid.server.to_le_bytes());
        body.extend_from_slice(&gtid.seqno.to_le_bytes());
    }
    // As MariaDB does: an event that can be replaced by a dummy of the same length.
    if gtids.is_empty() {
        body.resize(6, 0);
    }
    body
}

fn artificial(
    server_id: u32,
    kind: u8,
    flags: u16,
    end_pos: u32,
    body: &[&[u8]],
    checksum: Checksum,
) -> Vec<u8> {
    let length = HEADER_LEN + body.iter().map(|part| part.len()).sum::<usize>() + checksum.len();
    let mut out = Vec::with_capacity(length);
    let header = Header { timestamp: 0, kind, server_id, length: length as u32, end_pos, flags };
    out.extend_from_slice(&header.to_bytes());
    body.iter().for_each(|part| out.extend_from_slice(part));
    if checksum == Checksum::Crc32 {
        let crc = crc_of(&out);
        out.extend_from_slice(&crc.to_le_bytes());
    }
    out
}

/// A Rotate event that tells a consumer which file and position follow.
pub fn artificial_rotate(server_id: u32, file: &str, position: u64, checksum: Checksum) -> Vec<u8> {
    let body: [&[u8]; 2] = [&position.to_le_bytes(), file.as_bytes()];
    artificial(server_id, kind::ROTATE, flag::ARTIFICIAL, 0, &body, checksum)
}

/// A Gtid_list event that tells a consumer the stream's state at this position. `until`: its UNTIL condition is met.
pub fn artificial_gtid_list(
    server_id: u32,
    gtids: &[Gtid],
    until: bool,
    end_pos: u32,
    checksum: Checksum,
) -> Vec<u8> {
    let body = gtid_list_body(gtids, u8::from(until));
    artificial(server_id, kind::GTID_LIST, flag::ARTIFICIAL, end_pos, &[&body], checksum)
}

/// A sign of life at the end of the stream.
pub fn heartbeat(server_id: u32, file: &str, position: u32, checksum: Checksum) -> Vec<u8> {
    artificial(server_id, kind::HEARTBEAT, 0, position, &[file.as_bytes()], checksum)
}
