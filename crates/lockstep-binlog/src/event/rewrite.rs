//! Changes to events on their way to a consumer: without checksums, or without what an old consumer does not know.
//!
//! End positions stay those of the file. A consumer reconnects with positions that it has read from events, and they must
//! be positions of the canonical file.

use super::{
    CHECKSUM_LEN, Checksum, FormatDescription, GtidEvent, HEADER_LEN, Header, crc_of, flag, kind, split,
};
use crate::codec::DecodeError;

/// Post-header of a statement, its database's NUL included.
const QUERY_FIXED: usize = 13;
/// Status variable: the session's time zone. An empty one changes nothing.
const VAR_TIME_ZONE: u8 = 5;

fn seal(event: &mut [u8], checksum: Checksum) {
    if checksum == Checksum::Crc32 {
        let end = event.len() - CHECKSUM_LEN;
        let crc = crc_of(&event[..end]);
        event[end..].copy_from_slice(&crc.to_le_bytes());
    }
}

/// The event of a file with checksums for a consumer that knows none. The format description keeps its checksum and says
/// that the others have none.
///
/// # Errors
/// [`DecodeError`] if the bytes are not exactly one event.
pub fn without_checksum(event: &[u8], checksum: Checksum) -> Result<Vec<u8>, DecodeError> {
    let (header, body) = split(event, checksum)?;
    if header.kind == kind::FORMAT_DESCRIPTION {
        let mut out = event.to_vec();
        let algorithm = out.len().checked_sub(FormatDescription::TAIL).ok_or(DecodeError::Short)?;
        out[algorithm] = 0;
        seal(&mut out, Checksum::Crc32);
        return Ok(out);
    }
    let length = (HEADER_LEN + body.len()) as u32;
    let mut out = Vec::with_capacity(length as usize);
    out.extend_from_slice(&Header { length, ..header }.to_bytes());
    out.extend_from_slice(body);
    Ok(out)
}

/// A file's format description for a consumer. The flag of an open file is cleared.
/// `from_start`: the consumer reads the file from its first byte. Otherwise the event has no position, so that a replica
/// does not count its length. `keep_created`: the replica may drop its temporary tables.
///
/// # Errors
/// [`DecodeError`] if the bytes are no format description.
pub fn format_for_start(event: &[u8], from_start: bool, keep_created: bool) -> Result<Vec<u8>, DecodeError> {
    FormatDescription::parse(event)?;
    let mut out = event.to_vec();
    out[17] &= !(flag::IN_USE as u8);
    if !from_start {
        out[13..17].fill(0);
    }
    if !(from_start && keep_created) {
        out[FormatDescription::CREATED_AT..FormatDescription::CREATED_AT + 4].fill(0);
    }
    seal(&mut out, Checksum::Crc32);
    Ok(out)
}

/// `BEGIN` in place of a Gtid event, of the same length, for consumers that do not know GTIDs. `None` for a group without
/// a commit event, which needs no `BEGIN`.
///
/// # Errors
/// [`DecodeError`] if the bytes are no Gtid event, or one whose length no `BEGIN` can have (XA).
pub fn to_begin(event: &[u8], checksum: Checksum) -> Result<Option<Vec<u8>>, DecodeError> {
    let gtid = GtidEvent::parse(event, checksum)?;
    if gtid.is_standalone() {
        return Ok(None);
    }
    let (header, body) = split(event, checksum)?;
    let settings: &[u8] = match body.len() {
        19 => &[],
        21 => &[VAR_TIME_ZONE, 0],
        _ => {
            return Err(DecodeError::Invalid(
                "length: an XA transaction, which a consumer without GTIDs cannot get",
            ));
        }
    };
    let mut out = replacement(header, kind::QUERY);
    out.extend_from_slice(&[0; 11]);
    out.extend_from_slice(&(settings.len() as u16).to_le_bytes());
    out.extend_from_slice(settings);
    out.push(0);
    out.extend_from_slice(b"BEGIN");
    debug_assert_eq!(out.len(), HEADER_LEN + body.len(), "both have the same length");
    out.resize(event.len(), 0);
    seal(&mut out, checksum);
    Ok(Some(out))
}

/// An event without effect in place of one that an old consumer does not know, of the same length: that consumer computes
/// positions from lengths.
///
/// # Errors
/// [`DecodeError`] if the bytes are not exactly one event, or too few for a replacement.
pub fn to_dummy(event: &[u8], checksum: Checksum) -> Result<Vec<u8>, DecodeError> {
    let (header, body) = split(event, checksum)?;
    let mut out;
    if let Some(len) = body.len().checked_sub(QUERY_FIXED + 1).filter(|len| *len > 0) {
        // A statement that is a comment.
        out = replacement(header, kind::QUERY);
        out.extend_from_slice(&[0; QUERY_FIXED + 1]);
        let text = format!("# event of type {} left out", header.kind);
        out.extend(text.bytes().chain(std::iter::repeat(b' ')).take(len));
    } else {
        // A user variable whose value is NULL: length of its name, name, NULL.
        let name = body.len().checked_sub(5).filter(|len| *len > 0).ok_or(DecodeError::Short)?;
        out = replacement(header, kind::USER_VAR);
        out.extend_from_slice(&(name as u32).to_le_bytes());
        out.extend(b"!unused__".iter().cycle().take(name));
        out.push(1);
    }
    debug_assert_eq!(out.len(), HEADER_LEN + body.len(), "both have the same length");
    out.resize(event.len(), 0);
    seal(&mut out, checksum);
    Ok(out)
}

/// The header of a replacement. The statement does not depend on a database.
fn replacement(header: Header, kind: u8) -> Vec<u8> {
    let flags = header.flags & !flag::THREAD_SPECIFIC | flag::SUPPRESS_USE;
    Header { kind, flags, ..header }.to_bytes().to_vec()
}
