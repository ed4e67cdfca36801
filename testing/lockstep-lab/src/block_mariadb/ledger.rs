//! Clients that insert numbered rows and note which commits were acknowledged; and the comparison with the table.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_local::{Client, Result, Server};

/// The statement that makes the table.
pub(super) const TABLE: [&str; 2] = [
    "CREATE DATABASE ledger",
    "CREATE TABLE ledger.t (id BIGINT UNSIGNED PRIMARY KEY, text VARBINARY(400) NOT NULL) ENGINE=InnoDB",
];
/// A row's text follows from its number.
const TEXT: &str = "REPEAT(MD5(";
/// The rows of one client are numbered from a multiple of this.
const RANGE: u64 = 1 << 32;
/// How many rows a violation names.
const NAMED: usize = 5;

/// The rows of one client.
#[derive(Debug, Clone, Default)]
pub(super) struct Rows {
    /// The next number.
    next: u64,
    acknowledged: Vec<u64>,
    /// The first of two rows of one transaction.
    pairs: Vec<u64>,
}

impl Rows {
    /// Those of the client with this number.
    pub(super) fn new(client: u64) -> Rows {
        Rows { next: client * RANGE, ..Rows::default() }
    }

    /// How many commits were acknowledged, in rows.
    pub(super) fn acknowledged(&self) -> usize {
        self.acknowledged.len()
    }

    /// Inserts until an error or the signal. The server is to be killed meanwhile.
    pub(super) fn insert(&mut self, server: &Server, stop: &AtomicBool) {
        let Ok(mut client) = server.client() else { return };
        while !stop.load(Ordering::Relaxed) {
            let count = if self.next.is_multiple_of(5) { 2 } else { 1 };
            let first = self.next;
            // Also if it fails: a row of unknown fate is never inserted again.
            self.next += count;
            if count == 2 {
                self.pairs.push(first);
            }
            if transaction(&mut client, first, count).is_err() {
                return;
            }
            self.acknowledged.extend(first..first + count);
        }
    }

    /// Compares the rows with those of the table. Returns what must not be.
    fn check(&self, client: u64, table: &BTreeSet<u64>) -> Vec<String> {
        let mut wrong = Vec::new();
        let name = |rows: Vec<u64>, what: &str| {
            let some: Vec<String> = rows.iter().take(NAMED).map(u64::to_string).collect();
            (!rows.is_empty()).then(|| format!("{} rows {what}: {} ...", rows.len(), some.join(", ")))
        };
        let lost = self.acknowledged.iter().copied().filter(|id| !table.contains(id)).collect();
        wrong.extend(name(lost, "were acknowledged and are lost"));
        let own = table.range(client * RANGE..(client + 1) * RANGE);
        let foreign = own.copied().filter(|id| *id >= self.next).collect();
        wrong.extend(name(foreign, "were never inserted"));
        let halves = self.pairs.iter().copied().filter(|id| table.contains(id) != table.contains(&(id + 1)));
        wrong.extend(name(halves.collect(), "are there without the other row of their transaction"));
        wrong
    }
}

fn transaction(client: &mut Client, first: u64, count: u64) -> Result<()> {
    let insert = |id: u64| format!("INSERT INTO ledger.t VALUES ({id}, {TEXT}{id}), 8))");
    if count == 1 {
        return client.query(&insert(first)).map(drop);
    }
    client.run(&["BEGIN", &insert(first), &insert(first + 1), "COMMIT"])
}

/// Reads the whole table and compares it with the rows of all clients. Returns what must not be, and how many rows there
/// are.
pub(super) fn check(server: &Server, rows: &[Rows]) -> Result<(Vec<String>, usize)> {
    let mut client = server.client()?;
    let mut wrong = Vec::new();
    let answer = client.query(&format!("SELECT id, text = {TEXT}id), 8) FROM ledger.t"))?;
    let mut table = BTreeSet::new();
    for row in &answer.rows {
        let field = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
        match field(0).parse() {
            Ok(id) if field(1) == "1" => {
                table.insert(id);
            }
            _ => wrong.push(format!("row {} has a wrong text", field(0))),
        }
    }
    for (client, rows) in rows.iter().enumerate() {
        wrong.extend(rows.check(client as u64, &table));
    }
    let checked = client.query("CHECK TABLE ledger.t")?;
    let text = checked.column("Msg_text")?;
    if text != "OK" {
        wrong.push(format!("CHECK TABLE says: {text}"));
    }
    Ok((wrong, table.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Rows {
        Rows { next: RANGE + 6, acknowledged: vec![RANGE, RANGE + 1, RANGE + 2], pairs: vec![RANGE + 1] }
    }

    #[test]
    fn unknown_row_may_be_there_or_not() {
        let table: BTreeSet<u64> = (RANGE..RANGE + 3).collect();
        assert!(rows().check(1, &table).is_empty());
        let more: BTreeSet<u64> = (RANGE..RANGE + 6).collect();
        assert!(rows().check(1, &more).is_empty());
    }

    #[test]
    fn lost_foreign_and_half_commits_are_found() {
        let found = |table: &[u64]| rows().check(1, &table.iter().copied().collect()).concat();
        assert!(found(&[RANGE + 1, RANGE + 2]).contains("1 rows were acknowledged and are lost"));
        assert!(found(&[RANGE, RANGE + 1]).contains("without the other row"));
        assert!(found(&[RANGE, RANGE + 1, RANGE + 2, RANGE + 6]).contains("never inserted"));
    }
}
