//! Reads what a write-set's data says: which tables, how many rows, which statements.
//!
//! The server fills the data with binlog events in row format, one after another, as they stand in its transaction cache.
//! A DDL statement has a format description and query events. Nothing here is needed to replicate: it is for people who
//! look at a log, and for a server that was killed in a DDL statement. So nothing here fails: a summary marks its
//! unreadable parts and contains the rest.
//!
//! ```
//! let summary = lockstep_rows::summarize(b"");
//! assert!(summary.tables.is_empty() && summary.damage.is_none());
//! ```
#![forbid(unsafe_code)]

mod event;
mod inflate;
mod replace;
mod row;
mod silence;
mod sql;
mod text;
mod value;
mod wire;

pub use event::{Event, EventKind, Events, events};
pub use replace::replacing;
pub use silence::silenced;
pub use sql::{preamble, sql};
pub use text::comment;
pub use value::utc;

use std::collections::BTreeMap;

/// What happened to one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableChange {
    /// The database.
    pub schema: String,
    /// The table.
    pub table: String,
    /// Rows inserted.
    pub inserted: u64,
    /// Rows updated.
    pub updated: u64,
    /// Rows deleted.
    pub deleted: u64,
    /// Events whose rows could not be counted; the counts are then too low.
    pub uncounted: u64,
}

impl TableChange {
    /// `database.table`, as people write it.
    pub fn name(&self) -> String {
        format!("{}.{}", self.schema, self.table)
    }

    /// All rows counted.
    pub fn rows(&self) -> u64 {
        self.inserted + self.updated + self.deleted
    }
}

/// A statement in the data: a DDL in total order, or the text that caused rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The current database, if the event names one.
    pub schema: String,
    /// The text.
    pub sql: String,
    /// True if it only explains the rows that follow and is not executed.
    pub annotation: bool,
}

/// The contents of a write-set's data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Tables in the order of their first change.
    pub tables: Vec<TableChange>,
    /// Statements in order.
    pub statements: Vec<Statement>,
    /// How many events of each kind, by name.
    pub kinds: Vec<(&'static str, u64)>,
    /// The offset and reason if reading stopped before the end.
    pub damage: Option<String>,
}

/// Reads the data of a write-set.
pub fn summarize(data: &[u8]) -> Summary {
    let mut summary = Summary::default();
    let mut kinds: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut reader = row::Tables::default();
    let mut places: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut iter = events(data);
    for event in iter.by_ref() {
        *kinds.entry(event.kind.name()).or_default() += 1;
        match event.kind {
            EventKind::Query | EventKind::QueryCompressed | EventKind::Annotate => {
                if let Some(statement) = event.statement() {
                    summary.statements.push(statement);
                }
            }
            EventKind::TableMap => reader.learn(&event),
            EventKind::WriteRows | EventKind::UpdateRows | EventKind::DeleteRows => {
                let Some(change) = reader.change(&event) else { continue };
                let key = (change.schema.to_string(), change.table.to_string());
                let place = *places.entry(key).or_insert_with_key(|(schema, table)| {
                    let (schema, table) = (schema.clone(), table.clone());
                    summary.tables.push(TableChange { schema, table, ..TableChange::default() });
                    summary.tables.len() - 1
                });
                let table = &mut summary.tables[place];
                match (event.kind, change.rows) {
                    (_, None) => table.uncounted += 1,
                    (EventKind::WriteRows, Some(n)) => table.inserted += n,
                    (EventKind::UpdateRows, Some(n)) => table.updated += n,
                    (_, Some(n)) => table.deleted += n,
                }
            }
            EventKind::Gtid | EventKind::Xid | EventKind::FormatDescription | EventKind::Other(_) => {}
        }
    }
    summary.damage = iter.damage();
    summary.kinds = kinds.into_iter().collect();
    summary
}
