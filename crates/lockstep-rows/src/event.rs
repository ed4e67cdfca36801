//! Events: their boundaries, kinds and texts.

use crate::Statement;
use crate::inflate::unpack;
use crate::wire::{Bytes, crc32};

const HEADER: usize = 19;
const CHECKSUM: usize = 4;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A statement to execute.
    Query,
    /// The same, compressed.
    QueryCompressed,
    /// The text of the statement that caused the rows behind it.
    Annotate,
    /// Which table a number stands for.
    TableMap,
    /// Inserted rows.
    WriteRows,
    /// Updated rows.
    UpdateRows,
    /// Deleted rows.
    DeleteRows,
    /// The server's own transaction id.
    Gtid,
    /// End of a transaction.
    Xid,
    /// How the events behind it are built.
    FormatDescription,
    /// Any other, by its number.
    Other(u8),
}

impl EventKind {
    fn of(code: u8) -> EventKind {
        match code {
            0x02 => EventKind::Query,
            0x0f => EventKind::FormatDescription,
            0x10 => EventKind::Xid,
            0x13 => EventKind::TableMap,
            0x17 | 0x1e | 0xa6 | 0xa9 => EventKind::WriteRows,
            0x18 | 0x1f | 0xa7 | 0xaa => EventKind::UpdateRows,
            0x19 | 0x20 | 0xa8 | 0xab => EventKind::DeleteRows,
            0xa0 => EventKind::Annotate,
            0xa2 => EventKind::Gtid,
            0xa5 => EventKind::QueryCompressed,
            other => EventKind::Other(other),
        }
    }

    /// A short name.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::Query => "query",
            EventKind::QueryCompressed => "query_compressed",
            EventKind::Annotate => "annotate",
            EventKind::TableMap => "table_map",
            EventKind::WriteRows => "write_rows",
            EventKind::UpdateRows => "update_rows",
            EventKind::DeleteRows => "delete_rows",
            EventKind::Gtid => "gtid",
            EventKind::Xid => "xid",
            EventKind::FormatDescription => "format_description",
            EventKind::Other(0x05) => "intvar",
            EventKind::Other(0x0d) => "rand",
            EventKind::Other(0x0e) => "user_var",
            EventKind::Other(_) => "other",
        }
    }
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// Its kind.
    pub kind: EventKind,
    /// The number of its type.
    pub code: u8,
    /// Seconds since 1970.
    pub timestamp: u32,
    /// The server that made it.
    pub server_id: u32,
    /// Its offset in the data, in bytes.
    pub offset: usize,
    /// The bytes after the header, without the checksum.
    pub body: &'a [u8],
}

impl Event<'_> {
    /// True for row events of the second version, which have a longer head.
    pub(crate) fn is_v2(&self) -> bool {
        matches!(self.code, 0x1e..=0x20 | 0xa9..=0xab)
    }

    /// True for row events whose rows are compressed.
    pub(crate) fn is_compressed(&self) -> bool {
        matches!(self.code, 0xa6..=0xab)
    }

    /// The text of a query or annotation; `None` for other events, or where it cannot be read.
    pub fn statement(&self) -> Option<Statement> {
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        match self.kind {
            EventKind::Annotate => {
                Some(Statement { schema: String::new(), sql: text(self.body), annotation: true })
            }
            EventKind::Query | EventKind::QueryCompressed => {
                let mut b = Bytes::new(self.body);
                b.take(8)?; // thread, execution time
                let schema_len = usize::from(b.byte()?);
                b.take(2)?; // error code
                let vars_len = b.int(2)? as usize;
                b.take(vars_len)?;
                let schema = text(b.take(schema_len)?);
                b.take(1)?; // terminating zero
                let sql =
                    if self.kind == EventKind::Query { text(b.rest()) } else { text(&unpack(b.rest())?) };
                Some(Statement { schema, sql, annotation: false })
            }
            _ => None,
        }
    }
}

/// Iterates over the events in `data`; ends at the end or at the first thing that is no event.
pub fn events(data: &[u8]) -> Events<'_> {
    Events { data, at: 0, damage: None }
}

/// See [`events`].
#[derive(Clone, Debug)]
pub struct Events<'a> {
    data: &'a [u8],
    at: usize,
    damage: Option<String>,
}

impl Events<'_> {
    /// Why the iteration ended before the end of the data, if it did.
    pub fn damage(&self) -> Option<String> {
        self.damage.clone()
    }
}

impl<'a> Iterator for Events<'a> {
    type Item = Event<'a>;

    fn next(&mut self) -> Option<Event<'a>> {
        let rest = self.data.get(self.at..).filter(|r| !r.is_empty())?;
        if self.damage.is_some() {
            return None;
        }
        let mut b = Bytes::new(rest);
        let mut head =
            || Some((b.int(4)? as u32, b.byte()?, b.int(4)? as u32, b.int(4)? as usize, b.take(6)?));
        let Some((timestamp, code, server_id, len, _)) = head() else {
            self.damage = Some(format!("{} bytes at offset {} are no event", rest.len(), self.at));
            return None;
        };
        if len < HEADER || len > rest.len() {
            let why = format!("the event at offset {} says {len} bytes, {} are there", self.at, rest.len());
            self.damage = Some(why);
            return None;
        }
        let mut body = &rest[HEADER..len];
        // Events of a transaction cache have no checksum; those made for a DDL have one where the server
        // is configured so. They say it nowhere, but a checksum that fits is one.
        if let Some(cut) = len.checked_sub(CHECKSUM).filter(|&cut| cut >= HEADER)
            && crc32(&rest[..cut]).to_le_bytes() == rest[cut..len]
        {
            body = &rest[HEADER..cut];
        }
        let offset = self.at;
        self.at += len;
        Some(Event { kind: EventKind::of(code), code, timestamp, server_id, offset, body })
    }
}
