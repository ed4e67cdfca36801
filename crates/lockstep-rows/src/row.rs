//! Table maps and row events: counting rows means knowing how long each value is.

use std::collections::BTreeMap;

use crate::event::{Event, EventKind};
use crate::inflate::unpack;
use crate::wire::Bytes;

/// Length of one value, as far as the table map tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Fixed(usize),
    /// So many bytes of length, then the value.
    Prefixed(usize),
    /// A type that is not known here.
    Unknown,
}

#[derive(Debug)]
struct Table {
    schema: String,
    table: String,
    columns: Vec<Width>,
}

/// The tables that the maps so far have named, by their number.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    by_id: BTreeMap<u64, Table>,
}

/// What a row event did.
pub(crate) struct Change<'a> {
    pub(crate) schema: &'a str,
    pub(crate) table: &'a str,
    /// `None` where the rows cannot be counted.
    pub(crate) rows: Option<u64>,
}

/// The number of the event that only closes a statement, without rows.
const NO_TABLE: u64 = 0x00ff_ffff;

impl Tables {
    /// Takes in a table map; a broken one is forgotten.
    pub(crate) fn learn(&mut self, event: &Event<'_>) {
        if let Some((id, table)) = parse_map(event.body) {
            self.by_id.insert(id, table);
        }
    }

    /// Reads a row event. `None` for one that changes nothing.
    pub(crate) fn change(&self, event: &Event<'_>) -> Option<Change<'_>> {
        let Some((id, rest)) = split_id(event) else {
            return Some(Change { schema: "?", table: "?", rows: None });
        };
        if id == NO_TABLE && !self.by_id.contains_key(&id) {
            return None;
        }
        let Some(table) = self.by_id.get(&id) else {
            return Some(Change { schema: "?", table: "?", rows: None });
        };
        Some(Change { schema: &table.schema, table: &table.table, rows: count(event, table, rest) })
    }
}

fn parse_map(body: &[u8]) -> Option<(u64, Table)> {
    let mut b = Bytes::new(body);
    let id = b.int(6)?;
    b.take(2)?; // flags
    let mut name = || {
        let len = usize::from(b.byte()?);
        let name = String::from_utf8_lossy(b.take(len)?).into_owned();
        b.take(1)?; // terminating zero
        Some(name)
    };
    let (schema, table) = (name()?, name()?);
    let count = usize::try_from(b.packed()?).ok()?;
    let types = b.take(count)?;
    let meta_len = usize::try_from(b.packed()?).ok()?;
    let mut meta = Bytes::new(b.take(meta_len)?);
    let columns = types.iter().map(|&t| width(t, &mut meta)).collect::<Option<Vec<_>>>()?;
    Some((id, Table { schema, table, columns }))
}

/// Table number, and what follows the fixed part of the head.
fn split_id<'a>(event: &Event<'a>) -> Option<(u64, Bytes<'a>)> {
    let mut b = Bytes::new(event.body);
    let id = b.int(6)?;
    b.take(2)?; // flags
    if event.is_v2() {
        // The length counts itself.
        let extra = (b.int(2)? as usize).checked_sub(2)?;
        b.take(extra)?;
    }
    Some((id, b))
}

fn count(event: &Event<'_>, table: &Table, mut b: Bytes<'_>) -> Option<u64> {
    let columns = usize::try_from(b.packed()?).ok()?;
    if columns != table.columns.len() {
        return None;
    }
    let bitmap = columns.div_ceil(8);
    let mut images = vec![present(b.take(bitmap)?, &table.columns)];
    if event.kind == EventKind::UpdateRows {
        images.push(present(b.take(bitmap)?, &table.columns));
    }
    let unpacked;
    let mut rows = b;
    if event.is_compressed() {
        unpacked = unpack(b.rest())?;
        rows = Bytes::new(&unpacked);
    }
    let mut n = 0;
    while !rows.is_empty() {
        let before = rows.rest().len();
        for image in &images {
            skip_image(&mut rows, image)?;
        }
        // A row without any column takes no bytes, and cannot be counted.
        if rows.rest().len() == before {
            return None;
        }
        n += 1;
    }
    Some(n)
}

fn bit(map: &[u8], i: usize) -> bool {
    map.get(i / 8).is_some_and(|b| b >> (i % 8) & 1 == 1)
}

/// The columns that an image holds.
fn present(map: &[u8], columns: &[Width]) -> Vec<Width> {
    columns.iter().enumerate().filter(|&(i, _)| bit(map, i)).map(|(_, &w)| w).collect()
}

fn skip_image(rows: &mut Bytes<'_>, image: &[Width]) -> Option<()> {
    let nulls = rows.take(image.len().div_ceil(8))?;
    for (i, width) in image.iter().enumerate() {
        if bit(nulls, i) {
            continue;
        }
        let len = match *width {
            Width::Fixed(n) => n,
            Width::Prefixed(n) => usize::try_from(rows.int(n)?).ok()?,
            Width::Unknown => return None,
        };
        rows.take(len)?;
    }
    Some(())
}

/// How long a value of a column is, from its type and the type's metadata (which is taken along).
fn width(code: u8, meta: &mut Bytes<'_>) -> Option<Width> {
    let fixed = |n: usize| Some(Width::Fixed(n));
    match code {
        1 | 13 => fixed(1),                        // tinyint, year
        2 => fixed(2),                             // smallint
        9 | 10 | 11 | 14 => fixed(3),              // mediumint, date, time, date of old
        3 | 7 => fixed(4),                         // int, timestamp
        8 | 12 => fixed(8),                        // bigint, datetime
        6 => fixed(0),                             // null
        4 | 5 => fixed(usize::from(meta.byte()?)), // float, double
        17 => fixed(4 + fraction(meta.byte()?)),   // timestamp, datetime, time with fractions
        18 => fixed(5 + fraction(meta.byte()?)),
        19 => fixed(3 + fraction(meta.byte()?)),
        16 => {
            let (bits, bytes) = (meta.byte()?, meta.byte()?);
            fixed(usize::from(bytes) + usize::from(bits > 0))
        }
        15 | 141 => {
            // varchar, compressed too
            let longest = meta.int(2)?;
            Some(Width::Prefixed(if longest > 255 { 2 } else { 1 }))
        }
        249..=252 | 255 | 140 => {
            // blobs, geometry, compressed too
            let n = usize::from(meta.byte()?);
            Some(if (1..=4).contains(&n) { Width::Prefixed(n) } else { Width::Unknown })
        }
        246 => {
            let (precision, scale) = (meta.byte()?, meta.byte()?);
            Some(decimal(precision, scale))
        }
        247 | 248 | 253 | 254 => {
            // char; enum and set hide behind it: the real type comes first, mixed with the length's upper bits
            let (real, len) = (meta.byte()?, meta.byte()?);
            let (real, len) = if real & 0x30 == 0x30 {
                (real, usize::from(len))
            } else {
                (real | 0x30, usize::from(len) | usize::from((real & 0x30) ^ 0x30) << 4)
            };
            match real {
                247 | 248 => fixed(len),
                _ => Some(Width::Prefixed(if len > 255 { 2 } else { 1 })),
            }
        }
        // Without knowing its metadata, nothing behind it can be read either; it ends the map's use.
        _ => None,
    }
}

/// Bytes of so many decimals of a second.
fn fraction(decimals: u8) -> usize {
    usize::from(decimals.min(6)).div_ceil(2)
}

/// Decimals are stored in groups of nine digits, four bytes each, on both sides of the point.
fn decimal(precision: u8, scale: u8) -> Width {
    const BYTES: [usize; 10] = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4];
    let (precision, scale) = (usize::from(precision), usize::from(scale));
    let Some(whole) = precision.checked_sub(scale) else { return Width::Unknown };
    let side = |digits: usize| digits / 9 * 4 + BYTES[digits % 9];
    Width::Fixed(side(whole) + side(scale))
}
