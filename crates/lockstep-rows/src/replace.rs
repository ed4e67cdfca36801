//! The same events with a table created in the place of one that may be there.

use crate::wire::crc32;
use crate::{Event, EventKind, Statement, events};

const HEADER: usize = 19;
/// The type of a statement that is not compressed.
const QUERY: u8 = 2;
/// As the server writes it for `CREATE TABLE ... SELECT`.
const CREATE: &str = "CREATE TABLE ";
const UNLESS: &str = "IF NOT EXISTS ";
/// The text executed in place of both.
const REPLACE: &str = "CREATE OR REPLACE TABLE ";

/// The statement that creates the table whose rows the rest of the data is: the first event that does anything.
fn creating(data: &[u8]) -> Option<(Event<'_>, Statement)> {
    let event = events(data).find(|event| {
        matches!(
            event.kind,
            EventKind::Query | EventKind::QueryCompressed | EventKind::TableMap | EventKind::Xid
        )
    })?;
    let statement = event.statement()?;
    statement.sql.starts_with(CREATE).then_some((event, statement))
}

/// The data of a `CREATE TABLE ... SELECT`, that is, a `CREATE TABLE` with its rows, made to replace a table of that
/// name, and the statement as it was. `None` where the data are nothing of the kind, or replace it by themselves.
pub fn replacing(data: &[u8]) -> Option<(Vec<u8>, Statement)> {
    let (event, statement) = creating(data)?;
    let schema_len = usize::from(*event.body.get(8)?);
    let vars_len = usize::from(u16::from_le_bytes([*event.body.get(11)?, *event.body.get(12)?]));
    let head = event.body.get(..13 + vars_len + schema_len + 1)?;
    // The text's own bytes: it may be in any character set.
    let unpacked;
    let text = match event.kind {
        EventKind::Query => &event.body[head.len()..],
        _ => {
            unpacked = crate::inflate::unpack(&event.body[head.len()..])?;
            &unpacked[..]
        }
    };
    let rest = text.strip_prefix(CREATE.as_bytes())?;
    let rest = rest.strip_prefix(UNLESS.as_bytes()).unwrap_or(rest);

    let at = event.offset;
    let given = u32::from_le_bytes(data.get(at + 9..at + 13)?.try_into().ok()?) as usize;
    let is_summed = given > HEADER + event.body.len();
    let len = HEADER + head.len() + REPLACE.len() + rest.len() + if is_summed { 4 } else { 0 };
    let mut made = Vec::with_capacity(data.len() + REPLACE.len());
    made.extend_from_slice(&data[..at + HEADER]);
    made[at + 4] = QUERY;
    made[at + 9..at + 13].copy_from_slice(&u32::try_from(len).ok()?.to_le_bytes());
    made.extend_from_slice(head);
    made.extend_from_slice(REPLACE.as_bytes());
    made.extend_from_slice(rest);
    if is_summed {
        let sum = crc32(&made[at..]).to_le_bytes();
        made.extend_from_slice(&sum);
    }
    made.extend_from_slice(data.get(at + given..)?);
    Some((made, statement))
}
