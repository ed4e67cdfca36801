//! Table maps and row events: counting rows means knowing how long each value is.

use std::collections::BTreeMap;

use crate::event::{Event, EventKind};
use crate::inflate::unpack;
use crate::value::Kind;
use crate::wire::Bytes;

/// Length of one value, as far as the table map tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Fixed(usize),
    /// A length of this many bytes, then the value.
    Prefixed(usize),
    /// A type that is not known here.
    Unknown,
}

/// A column, as far as the table map tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    width: Width,
    /// How its values are read.
    pub(crate) kind: Kind,
}

#[derive(Debug)]
struct Table {
    schema: String,
    table: String,
    columns: Vec<Column>,
}

/// One value of a row: `None` is NULL.
pub(crate) struct Cell<'a> {
    /// Which row of the event.
    pub(crate) row: u64,
    /// 0, or for an update 0 before and 1 after.
    pub(crate) image: usize,
    /// Which column of the table, from 0.
    pub(crate) at: usize,
    pub(crate) column: Column,
    pub(crate) value: Option<&'a [u8]>,
}

/// The tables that the maps so far have named, by their number.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    by_id: BTreeMap<u64, Table>,
}

/// The change of a row event.
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
        self.visit(event, &mut |_| {})
    }

    /// The same, and gives each value that it can read.
    pub(crate) fn visit(&self, event: &Event<'_>, each: &mut dyn FnMut(Cell<'_>)) -> Option<Change<'_>> {
        let Some((id, rest)) = split_id(event) else {
            return Some(Change { schema: "?", table: "?", rows: None });
        };
        if id == NO_TABLE && !self.by_id.contains_key(&id) {
            return None;
        }
        let Some(table) = self.by_id.get(&id) else {
            return Some(Change { schema: "?", table: "?", rows: None });
        };
        Some(Change { schema: &table.schema, table: &table.table, rows: walk(event, table, rest, each) })
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
    let columns = types.iter().map(|&t| column(t, &mut meta)).collect::<Option<Vec<_>>>()?;
    Some((id, Table { schema, table, columns }))
}

/// Table number, and the bytes after the fixed part of the header.
pub(crate) fn split_id<'a>(event: &Event<'a>) -> Option<(u64, Bytes<'a>)> {
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

/// The offset of an event's rows, after the list of their columns.
pub(crate) fn rows_offset(event: &Event<'_>) -> Option<usize> {
    let (_, mut b) = split_id(event)?;
    let columns = usize::try_from(b.packed()?).ok()?;
    let images = if event.kind == EventKind::UpdateRows { 2 } else { 1 };
    for _ in 0..images {
        b.take(columns.div_ceil(8))?;
    }
    Some(event.body.len() - b.rest().len())
}

fn walk(event: &Event<'_>, table: &Table, mut b: Bytes<'_>, each: &mut dyn FnMut(Cell<'_>)) -> Option<u64> {
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
        for (number, image) in images.iter().enumerate() {
            walk_image(&mut rows, image, &mut |at, column, value| {
                each(Cell { row: n, image: number, at, column, value });
            })?;
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

/// The columns that an image holds, with their places.
fn present(map: &[u8], columns: &[Column]) -> Vec<(usize, Column)> {
    columns.iter().copied().enumerate().filter(|&(i, _)| bit(map, i)).collect()
}

fn walk_image<'a>(
    rows: &mut Bytes<'a>,
    image: &[(usize, Column)],
    each: &mut dyn FnMut(usize, Column, Option<&'a [u8]>),
) -> Option<()> {
    let nulls = rows.take(image.len().div_ceil(8))?;
    for (i, &(at, column)) in image.iter().enumerate() {
        if bit(nulls, i) {
            each(at, column, None);
            continue;
        }
        let len = match column.width {
            Width::Fixed(n) => n,
            Width::Prefixed(n) => usize::try_from(rows.int(n)?).ok()?,
            Width::Unknown => return None,
        };
        each(at, column, Some(rows.take(len)?));
    }
    Some(())
}

/// How long a value of a column is and how it is read, from its type and the type's metadata (which is taken along).
fn column(code: u8, meta: &mut Bytes<'_>) -> Option<Column> {
    let (width, kind) = width(code, meta)?;
    Some(Column { width, kind })
}

fn width(code: u8, meta: &mut Bytes<'_>) -> Option<(Width, Kind)> {
    let fixed = |n: usize, kind: Kind| Some((Width::Fixed(n), kind));
    match code {
        1 => fixed(1, Kind::Int),
        2 => fixed(2, Kind::Int),
        9 => fixed(3, Kind::Int), // mediumint
        3 => fixed(4, Kind::Int),
        8 => fixed(8, Kind::Int),
        13 => fixed(1, Kind::Year),
        10 | 14 => fixed(3, Kind::Date),
        11 => fixed(3, Kind::OldTime),
        7 => fixed(4, Kind::OldTimestamp),
        12 => fixed(8, Kind::OldDatetime),
        6 => fixed(0, Kind::Raw),                               // null
        4 | 5 => fixed(usize::from(meta.byte()?), Kind::Float), // float, double
        17 => {
            let decimals = meta.byte()?;
            fixed(4 + fraction(decimals), Kind::Timestamp(decimals))
        }
        18 => {
            let decimals = meta.byte()?;
            fixed(5 + fraction(decimals), Kind::Datetime(decimals))
        }
        19 => {
            let decimals = meta.byte()?;
            fixed(3 + fraction(decimals), Kind::Time(decimals))
        }
        16 => {
            let (bits, bytes) = (meta.byte()?, meta.byte()?);
            let kind = Kind::Bit(u16::from(bits) + 8 * u16::from(bytes));
            fixed(usize::from(bytes) + usize::from(bits > 0), kind)
        }
        15 | 141 => {
            // varchar, compressed too
            let longest = meta.int(2)?;
            let kind = if code == 15 { Kind::Text } else { Kind::Raw };
            Some((Width::Prefixed(if longest > 255 { 2 } else { 1 }), kind))
        }
        249..=252 | 255 | 140 => {
            // blobs, geometry, compressed too
            let n = usize::from(meta.byte()?);
            let kind = if matches!(code, 249..=252) { Kind::Text } else { Kind::Raw };
            Some((if (1..=4).contains(&n) { Width::Prefixed(n) } else { Width::Unknown }, kind))
        }
        246 => {
            let (precision, scale) = (meta.byte()?, meta.byte()?);
            Some((decimal(precision, scale), Kind::Decimal { precision, scale }))
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
                247 => fixed(len, Kind::Enum),
                248 => fixed(len, Kind::Set),
                _ => Some((Width::Prefixed(if len > 255 { 2 } else { 1 }), Kind::Text)),
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
