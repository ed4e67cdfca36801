//! The events in an entry's data, as a MariaDB server has made them.
//!
//! A transaction's data are the server's transaction cache: events without checksums. A statement's data begin with a
//! format description, which says whether the events have checksums. Positions and server ids count for nothing there.

use crate::codec::DecodeError;
use crate::event::{Checksum, HEADER_LEN, Header, kind, split};
use std::fmt;

/// The number of a checksum's kind in a format description: CRC32.
const CRC32: u8 = 1;
/// The offset of the type in an event.
const KIND: usize = 4;
/// The offset of the error code in the body of a query.
const ERROR_CODE: usize = 9;
/// The head of a query's body: thread, time, length of the database's name, error code, length of the variables.
const QUERY_HEAD: usize = 13;

/// The kind of an entry's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    Transaction,
    Statement,
}

/// Why data are no events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceError {
    offset: usize,
    why: DecodeError,
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "has data that are no binlog events: the one at byte {} {}", self.offset, self.why)
    }
}

/// An event, without its checksum, position and server id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SourceEvent {
    pub(super) timestamp: u32,
    pub(super) kind: u8,
    pub(super) flags: u16,
    pub(super) body: Vec<u8>,
}

impl SourceEvent {
    /// Whether this is a statement that changes tables, such as the `CREATE TABLE` of `CREATE TABLE ... SELECT`.
    pub(super) fn changes_schema(&self) -> bool {
        self.text().is_some_and(|text| first_words(text, 2).starts_with("CREATE"))
    }

    /// Whether this statement may have changed something although it failed: it names several objects, and those before
    /// the wrong one are changed.
    pub(super) fn may_have_effect_in_part(&self) -> bool {
        let Some(text) = self.text() else { return false };
        let words = first_words(text, 3);
        let one_object = [
            "CREATE",
            "ALTER",
            "TRUNCATE",
            "RENAME TABLE",
            "DROP PROCEDURE",
            "DROP FUNCTION",
            "DROP PACKAGE",
            "DROP TRIGGER",
            "DROP EVENT",
        ];
        let several = ["CREATE USER", "CREATE OR", "CREATE ROLE", "ALTER USER"];
        several.iter().any(|start| words.starts_with(start))
            || !one_object.iter().any(|start| words.starts_with(start))
    }

    /// Whether the statement concerns the servers' programs and not their data. MariaDB's binlog leaves it out as well.
    pub(super) fn is_for_one_server(&self) -> bool {
        let words = self.text().map(|text| first_words(text, 2)).unwrap_or_default();
        ["INSTALL", "UNINSTALL"].iter().any(|start| words.starts_with(start))
    }

    /// Sets the error that the statement had on its origin: a replica expects it.
    pub(super) fn set_error_code(&mut self, code: u16) {
        if self.is_query()
            && let Some(field) = self.body.get_mut(ERROR_CODE..ERROR_CODE + 2)
        {
            field.copy_from_slice(&code.to_le_bytes());
        }
    }

    fn is_query(&self) -> bool {
        matches!(self.kind, kind::QUERY | kind::QUERY_COMPRESSED)
    }

    /// The text of a query.
    fn text(&self) -> Option<&[u8]> {
        if self.kind != kind::QUERY {
            return None;
        }
        let database = usize::from(*self.body.get(8)?);
        let variables = usize::from(u16::from_le_bytes(self.body.get(11..13)?.try_into().ok()?));
        self.body.get(QUERY_HEAD + variables + database + 1..)
    }
}

/// How much of a statement's text is looked at.
const BEGIN_OF_TEXT: usize = 4096;

/// The first words of a statement in capitals, without comments, one blank between two. A comment that servers of some
/// versions execute counts as executed.
pub(crate) fn first_words(text: &[u8], count: usize) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(BEGIN_OF_TEXT)]);
    let text = without_comments(&text);
    let words: Vec<String> = text.split_whitespace().take(count).map(str::to_uppercase).collect();
    words.join(" ")
}

/// The text up to its first quote, with a blank in place of each comment, and then the rest.
fn without_comments(text: &str) -> String {
    let (mut rest, mut kept) = (text, String::with_capacity(text.len()));
    while let Some(next) = rest.chars().next() {
        let after = |end: &str, from: &'_ str| from.find(end).map_or(from.len(), |at| at + end.len());
        let is_dashes =
            rest.strip_prefix("--").is_some_and(|r| r.is_empty() || r.starts_with(char::is_whitespace));
        if let Some(inside) = rest.strip_prefix("/*!").or_else(|| rest.strip_prefix("/*M!")) {
            rest = inside.trim_start_matches(|c: char| c.is_ascii_digit());
            kept.push(' ');
        } else if let Some(inside) = rest.strip_prefix("/*") {
            rest = &inside[after("*/", inside)..];
            kept.push(' ');
        } else if let Some(behind) = rest.strip_prefix("*/") {
            // The end of an executed one.
            rest = behind;
            kept.push(' ');
        } else if next == '#' || is_dashes {
            rest = &rest[after("\n", rest)..];
            kept.push(' ');
        } else if matches!(next, '`' | '\'' | '"') {
            break;
        } else {
            kept.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    kept + rest
}

/// Takes the data of an entry apart. Format descriptions and GTIDs of the origin are left out.
///
/// # Errors
/// [`SourceError`]
pub(super) fn source_events(data: &[u8], source: Source) -> Result<Vec<SourceEvent>, SourceError> {
    let mut events = Vec::new();
    let mut at = 0;
    let mut checksum = Checksum::None;
    while at < data.len() {
        let wrong = |why| SourceError { offset: at, why };
        let length = Header::parse(&data[at..]).map_err(wrong)?.length as usize;
        let event = data[at..].get(..length).ok_or_else(|| wrong(DecodeError::Short))?;
        match event[KIND] {
            // The kind of checksum is in front of the checksum that each format description has.
            kind::FORMAT_DESCRIPTION if source == Source::Statement => {
                let body = &event[HEADER_LEN..];
                let algorithm = body.len().checked_sub(Checksum::Crc32.len() + 1).map(|at| body[at]);
                checksum = if algorithm == Some(CRC32) { Checksum::Crc32 } else { Checksum::None };
            }
            kind::FORMAT_DESCRIPTION | kind::GTID => {}
            _ => {
                let (Header { timestamp, kind, flags, .. }, body) = split(event, checksum).map_err(wrong)?;
                events.push(SourceEvent { timestamp, kind, flags, body: body.to_vec() });
            }
        }
        at += length;
    }
    Ok(events)
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// An event as a server makes it, without checksum.
    pub(in super::super) fn event(kind: u8, timestamp: u32, body: &[u8]) -> Vec<u8> {
        let mut event = timestamp.to_le_bytes().to_vec();
        event.push(kind);
        event.extend(7u32.to_le_bytes());
        event.extend(((HEADER_LEN + body.len()) as u32).to_le_bytes());
        event.extend([0; 6]);
        event.extend(body);
        event
    }

    /// The body of a query.
    pub(in super::super) fn query(database: &str, text: &str) -> Vec<u8> {
        let mut body = vec![0; 8];
        body.push(database.len() as u8);
        body.extend([0; 4]);
        body.extend(database.bytes());
        body.push(0);
        body.extend(text.bytes());
        body
    }

    fn with_checksum(mut event: Vec<u8>) -> Vec<u8> {
        let len = (event.len() + Checksum::Crc32.len()) as u32;
        event[9..13].copy_from_slice(&len.to_le_bytes());
        let sum = crc32fast::hash(&event);
        event.extend(sum.to_le_bytes());
        event
    }

    /// The data of a statement in total order.
    pub(in super::super) fn statement(database: &str, text: &str) -> Vec<u8> {
        let mut description = vec![0; 90];
        description.push(CRC32);
        let mut data = with_checksum(event(kind::FORMAT_DESCRIPTION, 0, &description));
        data.extend(with_checksum(event(kind::QUERY, 9, &query(database, text))));
        data
    }
}

#[cfg(test)]
mod tests {
    use super::testing::*;
    use super::*;

    #[test]
    fn statement_loses_description_and_checksum() {
        let events = source_events(&statement("shop", "DROP TABLE a, b"), Source::Statement).unwrap();
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].body, query("shop", "DROP TABLE a, b"));
        assert_eq!((events[0].timestamp, events[0].kind), (9, kind::QUERY));
    }

    #[test]
    fn truncated_or_changed_data_are_errors() {
        let data = statement("shop", "CREATE TABLE a (b INT)");
        let description =
            data.len() - (HEADER_LEN + query("shop", "CREATE TABLE a (b INT)").len() + Checksum::Crc32.len());
        for cut in (1..data.len()).filter(|cut| *cut != description) {
            assert!(source_events(&data[..cut], Source::Statement).is_err(), "{cut} bytes");
        }
        let mut changed = data.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert!(source_events(&changed, Source::Statement).unwrap_err().to_string().contains("checksum"));
    }

    #[test]
    fn end_of_rows_that_looks_like_checksum_is_kept() {
        let mut row = event(23, 1, b"abcd");
        let sum = crc32fast::hash(&row[..HEADER_LEN]);
        row[HEADER_LEN..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(source_events(&row, Source::Transaction).unwrap()[0].body.len(), 4);
    }

    #[test]
    fn statement_of_several_objects_may_have_effect() {
        let may = |text: &str| {
            source_events(&statement("shop", text), Source::Statement).unwrap()[0].may_have_effect_in_part()
        };
        for text in [
            "DROP TABLE a, b",
            "DROP SEQUENCE a, b",
            "grant all on *.* to x, y",
            "/* why */ drop  user a,b",
            "CREATE USER a, b",
            "CREATE OR REPLACE PROCEDURE a() SELECT 1",
        ] {
            assert!(may(text), "{text}");
        }
        for text in [
            "create table a (b int)",
            "ALTER TABLE a ADD c INT",
            "/*!50000 TRUNCATE TABLE a */",
            "DROP PROCEDURE a",
            "drop function  if exists a",
            "DROP PACKAGE BODY a",
            "DROP TRIGGER a",
            "DROP EVENT a",
        ] {
            assert!(!may(text), "{text}");
        }
    }

    #[test]
    fn comments_between_words_do_not_hide_a_statement() {
        let may = |text: &str| {
            source_events(&statement("shop", text), Source::Statement).unwrap()[0].may_have_effect_in_part()
        };
        for text in [
            "ALTER /* rotate */ USER a, b",
            "ALTER/**/USER a",
            "ALTER -- why\n USER a",
            "ALTER # why\nUSER a",
            "/* a */ ALTER /* b */ USER a",
            "CREATE /*!100100 OR REPLACE */ TABLE t (a INT)",
            "CREATE /*M!100100 OR REPLACE */ TABLE t (a INT)",
        ] {
            assert!(may(text), "{text}");
        }
        for text in
            ["/* a */ CREATE /* b */ TABLE t (a INT)", "/*!50003 CREATE*/ /* my */ /*!50003 TRIGGER a*/"]
        {
            assert!(!may(text), "{text}");
        }
        assert_eq!(first_words(b"create table `a/*b` (c INT)", 3), "CREATE TABLE `A/*B`");
        assert_eq!(first_words(b"drop /* never ends", 3), "DROP");
        assert_eq!(first_words(b"drop--1", 3), "DROP--1");
    }
}
