//! A write-set's data as SQL, to restore transactions that a server has lost.
//!
//! Rows are given as `BINLOG` statements: events know no names of columns and not how a number's sign is meant, so SQL
//! made of them could only be a guess. Comments before them show the readable values. A statement in total order is
//! printed as it is.

use std::fmt::Write;

use crate::event::{Event, EventKind};
use crate::inflate::unpack;
use crate::row::{Tables, rows_offset, split_id};
use crate::text::{base64, comment, literal, put_name, put_text};
use crate::value::show;
use crate::wire::{Bytes, crc32};
use crate::{Statement, events};

const HEADER: usize = 19;
/// Bytes of events in one `BINLOG`: a large statement becomes several, which a server and a client with their usual
/// `max_allowed_packet` take.
const LARGE: usize = 1 << 20;
/// No more than so much text about one event's rows.
const ABOUT: usize = 1 << 18;
/// The flag of a row event behind which nothing of its statement comes.
const LAST: u8 = 1;

/// The format description that must precede all events, once.
pub fn preamble() -> String {
    let mut out = String::from("SET NAMES utf8mb4;\n");
    put_binlog(&format_description(), &mut out);
    out
}

/// A format description of MariaDB, of events without checksums.
fn format_description() -> Vec<u8> {
    /// Bytes of the fixed part of each event, from type 1 on.
    const FIRST: [u8; 41] = [
        56, 13, 0, 8, 0, 18, 0, 4, 4, 4, 4, 18, 0, 0, 228, 0, 4, 26, 8, 0, 0, 0, 8, 8, 8, 2, 0, 0, 0, 10, 10,
        10, 0, 0, 0, 0, 0, 0, 10, 10, 10,
    ];
    /// And of MariaDB's own, from type 160 on.
    const OWN: [u8; 12] = [0, 4, 19, 4, 0, 13, 8, 8, 8, 10, 10, 10];
    let mut body = vec![4, 0];
    let mut version = [0u8; 50];
    let text = b"10.11.0-MariaDB";
    version[..text.len()].copy_from_slice(text);
    body.extend(version);
    body.extend([0; 4]); // not the first event of a running server, which would drop temporary tables
    body.push(HEADER as u8);
    let mut lengths = [0u8; 171];
    lengths[..FIRST.len()].copy_from_slice(&FIRST);
    lengths[159..].copy_from_slice(&OWN);
    body.extend(lengths);
    body.push(0); // no checksums
    let mut event = vec![0u8; HEADER];
    event[4] = 0x0f;
    event[9..13].copy_from_slice(&((HEADER + body.len() + 4) as u32).to_le_bytes());
    event.extend(body);
    let sum = crc32(&event).to_le_bytes();
    event.extend(sum);
    event
}

fn put_binlog(bytes: &[u8], out: &mut String) {
    out.push_str("BINLOG '\n");
    base64(bytes, out);
    out.push_str("';\n");
}

/// The data of one write-set as SQL for the `mariadb` client, to follow [`preamble`]. Rows stand between `BEGIN` and
/// `COMMIT`.
///
/// # Errors
/// Says which event cannot be given. Nothing of the write-set must be executed then.
pub fn sql(data: &[u8]) -> Result<String, String> {
    let mut writer = Writer::default();
    let mut iter = events(data);
    for event in iter.by_ref() {
        writer.take(&event).map_err(|why| format!("the event at offset {} {why}", event.offset))?;
    }
    if let Some(damage) = iter.damage() {
        return Err(damage);
    }
    writer.flush();
    writer.end();
    Ok(writer.out)
}

#[derive(Default)]
struct Writer {
    out: String,
    tables: Tables,
    /// Whether a transaction is open.
    open: bool,
    /// Table maps of the statement under way, with their tables' numbers: the server forgets them with each `BINLOG`.
    maps: Vec<u8>,
    known: Vec<u64>,
    /// Its row events so far.
    rows: Vec<u8>,
    /// The beginning of the last of these.
    last: usize,
    /// The readable values, for comments.
    about: String,
}

impl Writer {
    fn take(&mut self, event: &Event<'_>) -> Result<(), String> {
        match event.kind {
            EventKind::FormatDescription | EventKind::Gtid => {}
            // Events about the binary log itself: stop, rotate, checkpoint, list of GTIDs.
            EventKind::Other(0x03 | 0x04 | 0xa1 | 0xa3) => {}
            EventKind::Annotate => {
                let text = event.statement().map(|s| s.sql).unwrap_or_default();
                self.flush();
                self.about.push_str(&comment(&format!("Q> {text}")));
            }
            EventKind::Xid => {
                self.flush();
                self.end();
            }
            EventKind::TableMap => {
                let id = Bytes::new(event.body).int(6).ok_or("is a broken table map")?;
                // Behind rows it begins another statement, though these did not say that they were the last.
                if !self.rows.is_empty() {
                    self.flush();
                }
                self.tables.learn(event);
                put_event(event, event.code, event.body, &mut self.maps)?;
                self.known.push(id);
            }
            EventKind::WriteRows | EventKind::UpdateRows | EventKind::DeleteRows => self.rows(event)?,
            EventKind::Query | EventKind::QueryCompressed => self.statement(event)?,
            EventKind::Other(code) => {
                let name = event.kind.name();
                return Err(format!("is of a kind that cannot be given as SQL ({name}, type {code})"));
            }
        }
        Ok(())
    }

    fn rows(&mut self, event: &Event<'_>) -> Result<(), String> {
        let (id, _) = split_id(event).ok_or("is a broken row event")?;
        let is_last = event.body[6] & LAST != 0;
        if !self.known.contains(&id) {
            // One that only closes a statement has a number of no table.
            if self.tables.change(event).is_none() {
                self.flush();
                return Ok(());
            }
            return Err("has rows of a table that nothing names".into());
        }
        self.describe(event);
        self.last = self.rows.len();
        if event.is_compressed() {
            // `BINLOG` does not take those.
            let at = rows_offset(event).ok_or("is a broken row event")?;
            let mut body = event.body[..at].to_vec();
            body.extend(unpack(&event.body[at..]).ok_or("has rows that cannot be decompressed")?);
            let code = match event.code {
                code @ 0xa6..=0xa8 => code - 0xa6 + 0x17,
                code => code - 0xa9 + 0x1e,
            };
            put_event(event, code, &body, &mut self.rows)?;
        } else {
            put_event(event, event.code, event.body, &mut self.rows)?;
        }
        if is_last {
            self.flush();
        } else if self.rows.len() > LARGE {
            self.put_rows();
        }
        Ok(())
    }

    /// Comments that say what the rows are.
    fn describe(&mut self, event: &Event<'_>) {
        let verb = match event.kind {
            EventKind::WriteRows => "INSERT INTO ",
            EventKind::UpdateRows => "UPDATE ",
            _ => "DELETE FROM ",
        };
        // The table's name is known behind the rows only, so it is left out while they are read.
        let mut rows: Vec<(u64, usize, String)> = Vec::new();
        let mut size = 0;
        let mut more = false;
        let change = self.tables.visit(event, &mut |cell| {
            if size > ABOUT {
                more = true;
                return;
            }
            if rows.last().is_none_or(|(row, image, _)| (*row, *image) != (cell.row, cell.image)) {
                rows.push((cell.row, cell.image, String::new()));
                size += 64;
            }
            let Some((_, _, text)) = rows.last_mut() else { return };
            let value = cell.value.map_or_else(|| "NULL".to_owned(), |value| show(cell.column.kind, value));
            let before = text.len();
            let _ = writeln!(text, "###   @{}={value}", cell.at + 1);
            size += text.len() - before;
        });
        let Some(change) = change else { return };
        let mut table = String::new();
        put_name(&mut table, change.schema);
        table.push('.');
        put_name(&mut table, change.table);
        for (_, image, text) in rows {
            let head = match (event.kind, image) {
                (EventKind::WriteRows, _) => format!("### {verb}{table}\n### SET\n"),
                (EventKind::UpdateRows, 1) => "### SET\n".into(),
                _ => format!("### {verb}{table}\n### WHERE\n"),
            };
            self.about.push_str(&head);
            self.about.push_str(&text);
        }
        if change.rows.is_none() {
            let _ = writeln!(self.about, "### {verb}{table}: rows that cannot be shown here");
        } else if more {
            self.about.push_str("### and more rows of the same\n");
        }
    }

    fn statement(&mut self, event: &Event<'_>) -> Result<(), String> {
        let Statement { schema, sql, .. } = event.statement().ok_or("is a statement that cannot be read")?;
        self.flush();
        let mut words = sql.split_ascii_whitespace().map(str::to_ascii_uppercase);
        match words.next().as_deref() {
            Some("BEGIN") | None => return Ok(()),
            Some("COMMIT") => {
                self.end();
                return Ok(());
            }
            Some("SAVEPOINT" | "ROLLBACK" | "RELEASE") => self.begin(),
            // It commits by itself what is before it.
            Some(_) => self.end(),
        }
        let settings = Settings::of(event);
        if sql.contains('\u{fffd}') || schema.contains('\u{fffd}') || !(sql.is_ascii() || settings.is_utf8())
        {
            return Err("is a statement that is not in UTF-8: enter it again by hand".into());
        }
        if literal(&sql).starts_with("CONVERT") {
            let mut plain = String::new();
            put_text(&mut plain, &sql);
            self.out.push_str(&comment(&plain));
        }
        if let Some(mode) = settings.sql_mode {
            let _ = writeln!(self.out, "SET SESSION sql_mode = {mode};");
        }
        // A client reads USE itself, and not all names as the server does.
        match schema.as_str() {
            "" => {}
            plain if plain.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') => {
                let _ = writeln!(self.out, "USE `{plain}`;");
            }
            odd => {
                let used = format!("USE `{}`", odd.replace('`', "``"));
                let _ = writeln!(self.out, "EXECUTE IMMEDIATE {};", literal(&used));
            }
        }
        let _ = writeln!(self.out, "EXECUTE IMMEDIATE {};", literal(&sql));
        Ok(())
    }

    fn begin(&mut self) {
        if !self.open {
            self.out.push_str("BEGIN;\n");
            self.open = true;
        }
    }

    fn end(&mut self) {
        if self.open {
            self.out.push_str("COMMIT;\n");
            self.open = false;
        }
    }

    /// Writes what is there of a statement's rows, of which more may come.
    fn put_rows(&mut self) {
        if self.rows.is_empty() {
            return;
        }
        self.begin();
        self.out.push_str(&self.about);
        self.about.clear();
        self.rows[self.last + HEADER + 6] |= LAST;
        let mut both = self.maps.clone();
        both.append(&mut self.rows);
        if both.len() > 8 * LARGE {
            let size = both.len().div_ceil(3) * 4;
            self.out.push_str(&comment(&format!(
                "The next statement is about {size} bytes long: the server's and the client's max_allowed_packet must be larger."
            )));
        }
        put_binlog(&both, &mut self.out);
    }

    /// Ends a statement.
    fn flush(&mut self) {
        self.put_rows();
        self.maps.clear();
        self.known.clear();
        self.out.push_str(&std::mem::take(&mut self.about));
    }
}

/// An event without a checksum.
fn put_event(event: &Event<'_>, code: u8, body: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let len = u32::try_from(HEADER + body.len()).map_err(|_| "is too large")?;
    out.extend(event.timestamp.to_le_bytes());
    out.push(code);
    out.extend(event.server_id.to_le_bytes());
    out.extend(len.to_le_bytes());
    out.extend([0; 4]); // its place in a binary log
    out.extend([0; 2]); // flags, none of which is about its rows
    out.extend(body);
    Ok(())
}

/// Session variables that a statement's event carries.
#[derive(Default)]
struct Settings {
    sql_mode: Option<u64>,
    charset: Option<u64>,
}

impl Settings {
    fn of(event: &Event<'_>) -> Settings {
        let mut settings = Settings::default();
        let vars = event.body.get(11..13).map_or(0, |b| usize::from(b[0]) | usize::from(b[1]) << 8);
        if let Some(vars) = event.body.get(13..13 + vars) {
            settings.read(Bytes::new(vars));
        }
        settings
    }

    /// Until the first that is not known: their lengths are not written.
    fn read(&mut self, mut b: Bytes<'_>) -> Option<()> {
        while !b.is_empty() {
            match b.byte()? {
                0 => {
                    b.take(4)?; // switches of the session
                }
                1 => self.sql_mode = Some(b.int(8)?),
                3 => {
                    b.take(4)?; // steps of AUTO_INCREMENT
                }
                4 => {
                    self.charset = Some(b.int(2)?);
                    b.take(4)?;
                }
                6 => {
                    let len = usize::from(b.byte()?); // catalog
                    b.take(len)?;
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// By the number of the client's collation.
    fn is_utf8(&self) -> bool {
        matches!(self.charset, None | Some(33 | 45 | 46 | 83 | 192..=247 | 2048..))
    }
}
