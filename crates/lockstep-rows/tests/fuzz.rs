//! Row events as a hostile origin may fill them, mutated.

use lockstep_fuzz::{Target, outcome};
use lockstep_rows::{EventKind, events, replacing, silenced, sql, summarize};

#[path = "common/read.rs"]
mod read;

fn test(input: &[u8]) -> u64 {
    let summary = summarize(input);
    if let Some(silent) = silenced(input) {
        assert_eq!(silent.len(), input.len());
        let again = summarize(&silent);
        assert_eq!(again.damage, None);
        assert!(again.statements.iter().all(|s| s.sql.starts_with("DO 0")), "{again:?}");
    }
    if let Some((made, was)) = replacing(input) {
        assert!(was.sql.starts_with("CREATE TABLE "));
        let statement = events(&made).find(|event| event.kind == EventKind::Query);
        let sql = statement.and_then(|event| event.statement()).map(|s| s.sql);
        assert!(sql.is_some_and(|sql| sql.starts_with("CREATE OR REPLACE TABLE ")));
    }
    outcome(&(summary.kinds, summary.tables.len(), summary.statements.len(), summary.damage))
}

/// The generated SQL contains only the intended statements, and they restore the rows of the input.
fn test_sql(input: &[u8]) -> u64 {
    let made = sql(input);
    if let Ok(text) = &made {
        let given: Vec<u8> = read::binlogs(text).concat();
        let (before, after) = (summarize(input), summarize(&given));
        assert_eq!(after.damage, None);
        let rows = |tables: &[lockstep_rows::TableChange]| tables.iter().map(|t| t.rows()).sum::<u64>();
        assert_eq!(rows(&after.tables), rows(&before.tables), "{before:?}");
    }
    outcome(&made.map(|text| text.lines().map(|line| line.get(..6).map(str::to_owned)).collect::<Vec<_>>()))
}

fn seeds() -> Vec<Vec<u8>> {
    let plain = include_bytes!("data/plain.events").to_vec();
    let compressed = include_bytes!("data/compressed.events").to_vec();
    // One event at a time as well, so that each is hit more often.
    let mut seeds = vec![plain.clone(), compressed.clone()];
    for whole in [&plain, &compressed] {
        let mut rest = &whole[..];
        while rest.len() > 19 {
            let len = u32::from_le_bytes([rest[9], rest[10], rest[11], rest[12]]) as usize;
            seeds.push(rest[..len].to_vec());
            rest = &rest[len..];
        }
    }
    seeds
}

#[test]
fn fuzz_events() {
    let mut target = Target::new("events", env!("CARGO_MANIFEST_DIR"), seeds(), &test);
    // Compressed input grows when it is unpacked.
    target.memory = (1 << 20, 4096);
    target.run();
}

#[test]
fn fuzz_sql() {
    let mut seeds = seeds();
    // A statement of its own: a map with its rows.
    let plain = include_bytes!("data/plain.events");
    let map = events(plain).find(|event| event.kind == EventKind::TableMap).map_or(0, |event| event.offset);
    seeds.push(plain[map..].to_vec());
    let mut target = Target::new("sql", env!("CARGO_MANIFEST_DIR"), seeds, &test_sql);
    target.memory = (4 << 20, 16_384);
    target.run();
}
