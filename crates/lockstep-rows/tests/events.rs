//! Real events, as MariaDB 10.11 writes them, and garbage.
//!
//! `data/plain.events` and `data/compressed.events` are binary logs without their first four bytes; what
//! they hold is what `mariadb-binlog -v` says of them.

use lockstep_rows::{EventKind, TableChange, events, replacing, silenced, summarize};
use proptest::prelude::*;

const PLAIN: &[u8] = include_bytes!("data/plain.events");
const COMPRESSED: &[u8] = include_bytes!("data/compressed.events");

fn change(table: &str, inserted: u64, updated: u64, deleted: u64) -> TableChange {
    TableChange { schema: "shop".into(), table: table.into(), inserted, updated, deleted, uncounted: 0 }
}

#[test]
fn every_column_type_is_walked_over() {
    let s = summarize(PLAIN);
    assert_eq!(s.damage, None);
    assert_eq!(s.tables, vec![change("t1", 2, 2, 2), change("t2", 3, 3, 1)]);
    assert_eq!(s.tables[0].name(), "shop.t1");
    assert_eq!(s.tables[0].rows(), 6);
    let sql: Vec<&str> = s.statements.iter().map(|x| x.sql.as_str()).collect();
    assert_eq!(sql.len(), 6);
    assert!(s.statements.iter().all(|x| x.annotation));
    assert_eq!(sql[1], "update t1 set a=a+1, p='changed', t='short'");
    assert_eq!(sql[5], "delete from t1");
    assert!(s.kinds.contains(&("table_map", 6)) && s.kinds.contains(&("gtid", 4)));
}

#[test]
fn compressed_rows_and_statements() {
    let s = summarize(COMPRESSED);
    assert_eq!(s.damage, None);
    assert_eq!(s.tables, vec![change("t2", 2, 4, 4)]);
    let ddl: Vec<_> = s.statements.iter().filter(|x| !x.annotation).collect();
    assert_eq!(ddl.len(), 1);
    assert_eq!(ddl[0].schema, "shop");
    assert!(ddl[0].sql.starts_with("create table t3 (id int primary key"));
    assert!(ddl[0].sql.ends_with("quis nostrud exercitation'"));
    assert!(events(COMPRESSED).any(|e| e.code == 0xa7) && events(COMPRESSED).any(|e| e.code == 0xa5));
}

/// An event of a DDL statement, as it stands in a log: header, 13 fixed bytes, variables, schema, text, checksum.
fn statement(sql: &str, checksum: bool) -> Vec<u8> {
    let mut body = vec![0u8; 13];
    body[8] = 4;
    body[11] = 3;
    body.extend(b"\x01\x02\x03test\0");
    body.extend(sql.as_bytes());
    let mut event = vec![0u8; 19];
    event[4] = 2;
    event.extend(&body);
    let len = event.len() as u32 + if checksum { 4 } else { 0 };
    event[9..13].copy_from_slice(&len.to_le_bytes());
    if checksum {
        // The sum of IEEE's polynomial, bit by bit.
        let sum = !event.iter().fold(!0u32, |crc, b| {
            (0..8).fold(
                crc ^ u32::from(*b),
                |crc, _| if crc & 1 == 1 { 0xedb8_8320 ^ (crc >> 1) } else { crc >> 1 },
            )
        });
        event.extend(sum.to_le_bytes());
    }
    event
}

#[test]
fn silenced_statement_has_no_effect_and_keeps_its_length() {
    for checksum in [false, true] {
        let data = statement("ALTER TABLE t ADD c INT", checksum);
        assert_eq!(summarize(&data).statements[0].sql, "ALTER TABLE t ADD c INT");
        let silent = silenced(&data).unwrap();
        assert_eq!(silent.len(), data.len());
        let summary = summarize(&silent);
        assert_eq!(summary.damage, None);
        assert_eq!(summary.statements[0].sql.trim_end(), "DO 0");
        assert_eq!(summary.statements[0].schema, "test");
        // Its checksum was found to fit, else it would be part of the text.
        assert_eq!(summary.statements[0].sql.len(), "ALTER TABLE t ADD c INT".len());
    }
    assert_eq!(silenced(PLAIN), None, "rows are not silenced");
    assert_eq!(silenced(b""), None);
    assert_eq!(silenced(&statement("DO", true)), None);
}

#[test]
fn create_table_becomes_create_or_replace() {
    // Rows behind it, which stay as they are.
    let rows: Vec<u8> = {
        let map = events(PLAIN).find(|e| e.kind == EventKind::TableMap).unwrap();
        PLAIN[map.offset..].to_vec()
    };
    for checksum in [false, true] {
        for before in ["CREATE TABLE `t` (a INT)", "CREATE TABLE IF NOT EXISTS `t` (a INT)"] {
            let data = [statement(before, checksum), rows.clone()].concat();
            let (made, was) = replacing(&data).unwrap();
            assert_eq!((was.sql.as_str(), was.schema.as_str()), (before, "test"));
            let summary = summarize(&made);
            assert_eq!(summary.damage, None);
            // Its checksum was found to fit, else it would be part of the text.
            assert_eq!(summary.statements[0].sql, "CREATE OR REPLACE TABLE `t` (a INT)");
            assert_eq!(summary.statements[0].schema, "test");
            assert_eq!(summary.tables, summarize(&data).tables);
            assert!(made.ends_with(&rows));
            assert_eq!(replacing(&made), None, "it replaces already");
        }
    }
    for other in ["CREATE OR REPLACE TABLE t (a INT)", "CREATE TEMPORARY TABLE t (a INT)", "BEGIN", ""] {
        assert_eq!(replacing(&[statement(other, true), rows.clone()].concat()), None, "{other}");
    }
    let create = statement("CREATE TABLE t (a INT)", true);
    assert_eq!(replacing(&[rows, create].concat()), None, "rows come first");
    assert_eq!(replacing(b""), None);
}

/// `COMPRESSED` holds a CREATE TABLE statement; the rewritten event is not compressed.
#[test]
fn compressed_create_table_becomes_create_or_replace() {
    let packed = events(COMPRESSED).find(|e| e.kind == EventKind::QueryCompressed).unwrap();
    let sql = packed.statement().unwrap().sql.replacen("create table ", "CREATE TABLE ", 1);
    // The stored form of zlib's format: the server's own text is in small letters.
    let len = sql.len() as u16;
    let mut zlib = vec![0x78, 0x01, 1];
    zlib.extend(len.to_le_bytes());
    zlib.extend((!len).to_le_bytes());
    zlib.extend(sql.as_bytes());
    let (a, b) = sql.bytes().fold((1u32, 0u32), |(a, b), x| {
        let a = (a + u32::from(x)) % 65521;
        (a, (a + b) % 65521)
    });
    zlib.extend((b << 16 | a).to_be_bytes());
    let mut data = statement("", false);
    data[4] = 0xa5;
    data.extend([0x82, (len >> 8) as u8, len as u8]);
    data.extend(zlib);
    let total = data.len() as u32;
    data[9..13].copy_from_slice(&total.to_le_bytes());
    assert_eq!(summarize(&data).statements[0].sql, sql);
    let (made, was) = replacing(&data).unwrap();
    assert_eq!(was.sql, sql);
    let first = events(&made).next().unwrap();
    assert_eq!(first.kind, EventKind::Query);
    assert_eq!(first.statement().unwrap().sql, sql.replacen("CREATE", "CREATE OR REPLACE", 1));
}

/// A transaction cache has no checksums: the same events without them read the same.
#[test]
fn events_without_checksums() {
    for data in [PLAIN, COMPRESSED] {
        let mut bare = Vec::new();
        for e in events(data) {
            let mut head = data[e.offset..e.offset + 19].to_vec();
            head[9..13].copy_from_slice(&(19 + e.body.len() as u32).to_le_bytes());
            bare.extend(head);
            bare.extend(e.body);
        }
        assert!(bare.len() < data.len());
        assert_eq!(summarize(&bare), summarize(data));
    }
}

/// The second version of row events has a longer head, otherwise they are alike.
#[test]
fn row_events_of_the_second_version() {
    let mut v2 = Vec::new();
    for e in events(PLAIN) {
        let row = matches!(e.kind, EventKind::WriteRows | EventKind::UpdateRows | EventKind::DeleteRows);
        let mut head = PLAIN[e.offset..e.offset + 19].to_vec();
        let mut body = e.body.to_vec();
        if row {
            head[4] += 7;
            body.splice(8..8, [5, 0, 1, 2, 3]);
        }
        head[9..13].copy_from_slice(&(19 + body.len() as u32).to_le_bytes());
        v2.extend(head);
        v2.extend(body);
    }
    assert_eq!(summarize(&v2).tables, summarize(PLAIN).tables);
}

#[test]
fn unreadable_event_is_reported_as_damage() {
    let cut = &PLAIN[..PLAIN.len() - 10];
    let s = summarize(cut);
    assert_eq!(s.tables, summarize(PLAIN).tables);
    assert!(s.damage.unwrap().contains("says"));
    // Rows whose table map is missing.
    let first_map = events(PLAIN).find(|e| e.kind == EventKind::TableMap).unwrap();
    let rows = events(PLAIN).find(|e| e.kind == EventKind::WriteRows).unwrap();
    let s = summarize(&PLAIN[rows.offset..]);
    assert_eq!((s.tables[0].name().as_str(), s.tables[0].uncounted), ("?.?", 1));
    // A column type of the future.
    let mut odd = PLAIN.to_vec();
    let first_column = first_map.offset + 19 + 8 + 1 + 4 + 1 + 1 + 2 + 1 + 1;
    assert_eq!(odd[first_column], 3);
    odd[first_column] = 99;
    assert!(summarize(&odd).tables.iter().any(|t| t.uncounted > 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(data in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = summarize(&data);
    }

    /// Real events with damage: no panic, and no more work than the data is worth.
    #[test]
    fn damaged_events(
        compressed in any::<bool>(),
        hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut data = if compressed { COMPRESSED.to_vec() } else { PLAIN.to_vec() };
        for (at, byte) in hits {
            let at = at.index(data.len());
            data[at] = byte;
        }
        let keep = if compressed { data.len() } else { cut.index(data.len() + 1) };
        data.truncate(keep);
        let s = summarize(&data);
        prop_assert!(s.tables.iter().map(TableChange::rows).sum::<u64>() <= 1 << 20);
    }

    /// Heads that are in order, so that garbage reaches the inner parts.
    #[test]
    fn random_events(list in prop::collection::vec((any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 0..120)), 0..8)) {
        const CODES: [u8; 16] = [2, 0x13, 0x13, 0x17, 0x18, 0x19, 0x1e, 0x1f, 0x20, 0xa0, 0xa2, 0xa5, 0xa6, 0xa7, 0xa8, 0xab];
        let mut data = Vec::new();
        for (code, body) in list {
            let mut head = [0u8; 19];
            head[4] = CODES[code.index(CODES.len())];
            head[9..13].copy_from_slice(&(19 + body.len() as u32).to_le_bytes());
            data.extend(head);
            // Small numbers for the table, so that maps and rows meet.
            data.extend(body.iter().enumerate().map(|(i, b)| if i < 6 { b & u8::from(i == 0) } else { *b }));
        }
        let s = summarize(&data);
        prop_assert_eq!(s.damage, None);
    }
}
