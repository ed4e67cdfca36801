//! Events as SQL: the comments, and that no event's content is executed as SQL.

#[path = "common/read.rs"]
mod read;

use lockstep_rows::{EventKind, events, preamble, sql, summarize};
use read::binlogs;

const PLAIN: &[u8] = include_bytes!("data/plain.events");
const COMPRESSED: &[u8] = include_bytes!("data/compressed.events");

fn after_first_preamble(text: &str) -> Vec<Vec<u8>> {
    binlogs(&[&preamble(), text].concat()).split_off(1)
}

#[test]
fn rows_are_said_and_given() {
    let text = sql(PLAIN).unwrap();
    for line in [
        "### INSERT INTO `shop`.`t1`",
        "###   @6=6.5",
        "###   @8=-12345678901234567890.1234567",
        "###   @9=b'10101010101'",
        "###   @10=2024",
        "###   @11='2024-02-03'",
        "###   @12='11:12:13.456'",
        "###   @13='2024-02-03 01:02:03.456789'",
        "###   @14='2024-02-03 01:02:03.45' UTC",
        "###   @15='abc'",
        "###   @23=2",
        "###   @24=5",
        "###   @26='{\"a\":1}'",
        "###   @33=NULL",
        "### UPDATE `shop`.`t1`",
        "### DELETE FROM `shop`.`t1`",
        "# Q> delete from t1",
        "BEGIN;",
        "COMMIT;",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    // The output restores the same rows.
    let given: Vec<u8> = after_first_preamble(&text).concat();
    assert_eq!(summarize(&given).tables, summarize(PLAIN).tables);
    assert_eq!(text.matches("BEGIN;").count(), text.matches("COMMIT;").count());
}

#[test]
fn compressed_event_is_printed_unpacked() {
    let text = sql(COMPRESSED).unwrap();
    assert!(text.contains("EXECUTE IMMEDIATE 'create table t3 (id int primary key"), "{text}");
    assert!(text.contains("USE `shop`;\n"));
    let given: Vec<u8> = after_first_preamble(&text).concat();
    assert_eq!(summarize(&given).tables, summarize(COMPRESSED).tables);
    assert!(events(&given).all(|e| matches!(e.code, 0x13 | 0x17..=0x19)));
    // The event that a binary log begins with, but for its checksums: the same lengths.
    let description = binlogs(&preamble()).remove(0);
    let own = events(&description).next().unwrap();
    let real = events(PLAIN).next().unwrap();
    assert_eq!((own.kind, own.body.len()), (EventKind::FormatDescription, real.body.len()));
    assert_eq!(own.body[56..own.body.len() - 1], real.body[56..real.body.len() - 1]);
    assert_eq!(own.body.last(), Some(&0));
}

/// Each `BINLOG` stands for itself: it names its tables, and says that its last rows are the last.
#[test]
fn large_statement_is_printed_in_parts() {
    let map = events(PLAIN).find(|e| e.kind == EventKind::TableMap).unwrap();
    let rows = events(PLAIN).find(|e| e.kind == EventKind::WriteRows).unwrap();
    let mut data = PLAIN[map.offset..rows.offset].to_vec();
    let times = 500;
    for _ in 0..times {
        let mut event = PLAIN[rows.offset..][..19].to_vec();
        event[9..13].copy_from_slice(&(19 + rows.body.len() as u32).to_le_bytes());
        event.extend(rows.body);
        event[19 + 6] &= !1;
        data.extend(event);
    }
    let text = sql(&data).unwrap();
    let parts = after_first_preamble(&text);
    assert!(parts.len() > 1);
    for part in &parts {
        let last = events(part).last().unwrap();
        assert_eq!(last.body[6] & 1, 1);
        assert_eq!(events(part).filter(|e| e.kind != EventKind::TableMap && e.body[6] & 1 == 1).count(), 1);
        assert_eq!(summarize(part).tables[0].uncounted, 0);
    }
    assert_eq!(summarize(&parts.concat()).tables[0].inserted, 2 * times);
    assert_eq!((text.matches("BEGIN;").count(), text.matches("COMMIT;").count()), (1, 1));
}

/// A statement as it stands in a log, with no setting of its session but `sql_mode` and a character set.
fn statement(schema: &str, text: &[u8], charset: u8) -> Vec<u8> {
    let vars = [&[1, 4, 0, 0, 0, 0, 0, 0, 0, 4, charset, 0, charset, 0, charset, 0][..]].concat();
    let mut body = vec![0u8; 13];
    body[8] = schema.len() as u8;
    body[11] = vars.len() as u8;
    body.extend(vars);
    body.extend(schema.as_bytes());
    body.push(0);
    body.extend(text);
    let mut event = vec![0u8; 19];
    event[4] = 2;
    event[9..13].copy_from_slice(&(19 + body.len() as u32).to_le_bytes());
    event.extend(body);
    event
}

#[test]
fn statements_keep_to_their_quotes() {
    let text = sql(&statement("shop", b"CREATE TABLE t (a INT DEFAULT ';')", 45)).unwrap();
    let expected =
        "SET SESSION sql_mode = 4;\nUSE `shop`;\nEXECUTE IMMEDIATE 'CREATE TABLE t (a INT DEFAULT '';'')';\n";
    assert_eq!(text, expected);
    // A backslash means one thing to the client and one to the server, as sql_mode says.
    let text = sql(&statement("a`b", b"CREATE VIEW v AS SELECT '\\\n'; \\! true", 45)).unwrap();
    assert!(text.contains("EXECUTE IMMEDIATE 'USE `a``b`';\n"), "{text}");
    assert!(text.contains("EXECUTE IMMEDIATE CONVERT(x'435245415445"), "{text}");
    assert!(text.starts_with("# CREATE VIEW v AS SELECT \\'\\\\\\n\\'; \\\\! true\n"), "{text}");
    assert!(sql(&statement("s", "CREATE TABLE ü (a INT)".as_bytes(), 45)).is_ok());
    for (text, charset) in [("CREATE TABLE ü (a INT)".as_bytes(), 8), (b"CREATE TABLE \xfc (a INT)", 45)] {
        assert!(sql(&statement("s", text, charset)).unwrap_err().contains("not in UTF-8"));
    }
}

#[test]
fn unprintable_event_is_refused() {
    let rows = events(PLAIN).find(|e| e.kind == EventKind::WriteRows).unwrap();
    assert!(sql(&PLAIN[rows.offset..]).unwrap_err().contains("rows of a table that nothing names"));
    let mut intvar = statement("s", b"x", 45);
    intvar[4] = 5;
    assert!(sql(&intvar).unwrap_err().contains("cannot be given as SQL (intvar, type 5)"));
    assert!(sql(&PLAIN[..PLAIN.len() - 5]).is_err());
    assert_eq!(sql(b""), Ok(String::new()));
}
