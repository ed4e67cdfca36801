//! Tables, the statements that compute checksums of their rows, and the comparison.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::sql::Rows;

/// Approximate number of rows in a bucket. A table with a difference is divided into buckets.
const BUCKET_ROWS: u64 = 1000;
/// Maximum number of buckets.
const BUCKETS_MAX: u64 = 65_536;
/// Maximum number of differing buckets whose rows are compared.
pub(super) const BUCKETS_READ: usize = 20;

/// Selects all columns of all tables. [`Table::read`] expects the fields in this order.
pub(super) const COLUMNS: &str = "SELECT c.TABLE_SCHEMA, c.TABLE_NAME, c.COLUMN_NAME, c.DATA_TYPE, c.COLUMN_TYPE, \
    IFNULL((SELECT s.SEQ_IN_INDEX FROM information_schema.STATISTICS s WHERE s.TABLE_SCHEMA = c.TABLE_SCHEMA AND \
    s.TABLE_NAME = c.TABLE_NAME AND s.COLUMN_NAME = c.COLUMN_NAME AND s.INDEX_NAME = 'PRIMARY'), 0), c.EXTRA \
    FROM information_schema.COLUMNS c JOIN information_schema.TABLES t ON t.TABLE_SCHEMA = c.TABLE_SCHEMA AND \
    t.TABLE_NAME = c.TABLE_NAME WHERE t.TABLE_TYPE = 'BASE TABLE' AND t.ENGINE = 'InnoDB' AND c.TABLE_SCHEMA NOT IN \
    ('mysql', 'sys', 'information_schema', 'performance_schema') ORDER BY 1, 2, c.ORDINAL_POSITION";

/// The columns of a table on one member.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Table {
    /// Name, type and declaration of each stored column.
    columns: Vec<(String, String, String)>,
    /// The primary key's columns, in its order.
    key: BTreeMap<u32, String>,
}

/// Schema and name.
pub(super) type Name = (String, String);

impl Table {
    /// Parses the result of [`COLUMNS`].
    pub(super) fn read(rows: &Rows) -> BTreeMap<Name, Table> {
        let mut tables: BTreeMap<Name, Table> = BTreeMap::new();
        for row in rows {
            let [schema, table, column, kind, declared, key, extra] = &row[..] else { continue };
            let entry = tables.entry((schema.clone(), table.clone())).or_default();
            if let Ok(at @ 1..) = key.parse() {
                entry.key.insert(at, column.clone());
            }
            if !extra.to_ascii_uppercase().contains("VIRTUAL") {
                entry.columns.push((column.clone(), kind.to_ascii_lowercase(), declared.clone()));
            }
        }
        tables
    }

    /// An SQL expression for the hash of a row.
    fn row_hash(&self) -> String {
        let columns = self.columns.iter().map(|(name, kind, _)| {
            let column = quoted(name);
            match kind.as_str() {
                // Compare bytes, because the text depends on character sets.
                "char" | "varchar" | "enum" | "set" | "binary" | "varbinary" | "bit" => {
                    format!("IFNULL(HEX({column}),'N')")
                }
                k if k.ends_with("text") || k.ends_with("blob") => format!("IFNULL(MD5({column}),'N')"),
                "geometry" | "point" | "linestring" | "polygon" | "multipoint" | "multilinestring"
                | "multipolygon" | "geometrycollection" => format!("IFNULL(MD5(ST_AsWKB({column})),'N')"),
                _ => format!("IFNULL({column},'N')"),
            }
        });
        format!("MD5(CONCAT_WS('#',{}))", columns.collect::<Vec<_>>().join(","))
    }

    /// An SQL expression for the key of a row as text. The hash of the row if the table has no key.
    fn key_text(&self) -> String {
        match self.key.is_empty() {
            true => self.row_hash(),
            false => {
                let columns = self.key.values().map(|name| {
                    let column = quoted(name);
                    let kind = self.columns.iter().find(|c| c.0 == *name).map_or("", |c| c.1.as_str());
                    match kind {
                        "binary" | "varbinary" | "blob" | "bit" => format!("CONCAT('0x',HEX({column}))"),
                        _ => format!("CONVERT({column} USING utf8mb4)"),
                    }
                });
                format!("CONCAT_WS(',',{})", columns.collect::<Vec<_>>().join(","))
            }
        }
    }

    /// The names of the key's columns.
    pub(super) fn key_names(&self) -> Vec<String> {
        self.key.values().cloned().collect()
    }

    /// Selects the number of rows and two sums of their hashes.
    pub(super) fn checksum(&self, name: &Name) -> String {
        format!("SELECT {} FROM {}", self.sums(), full(name))
    }

    fn sums(&self) -> String {
        let hash = self.row_hash();
        let half = |side: &str| format!("IFNULL(SUM(CAST(CONV({side}({hash},16),16,10) AS DECIMAL(20))),0)");
        format!("COUNT(*),{},{}", half("LEFT"), half("RIGHT"))
    }

    /// As [`Table::checksum`], for each bucket of rows.
    pub(super) fn buckets(&self, name: &Name, rows: u64) -> String {
        let count = (rows / BUCKET_ROWS).clamp(1, BUCKETS_MAX);
        format!(
            "SELECT CRC32({}) % {count} AS lockstep_bucket,{} FROM {} GROUP BY lockstep_bucket ORDER BY lockstep_bucket",
            self.key_text(),
            self.sums(),
            full(name)
        )
    }

    /// Selects key and hash of each row of a bucket.
    pub(super) fn bucket(&self, name: &Name, rows: u64, bucket: &str) -> String {
        let count = (rows / BUCKET_ROWS).clamp(1, BUCKETS_MAX);
        let key = self.key_text();
        format!(
            "SELECT {key},{} FROM {} WHERE CRC32({key}) % {count} = {bucket}",
            self.row_hash(),
            full(name)
        )
    }
}

fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

fn full(name: &Name) -> String {
    format!("{}.{}", quoted(&name.0), quoted(&name.1))
}

/// A table that is not the same on all members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Difference {
    /// `schema.table`.
    pub(super) table: String,
    /// Members that differ from the majority; all if there is no majority.
    pub(super) members: Vec<String>,
    /// A description in one line.
    pub(super) text: String,
    /// The columns of the primary key. `first`, `last` and `rows` list values of these columns.
    pub(super) key: Vec<String>,
    /// The lowest key of the differing rows that were found.
    pub(super) first: Option<String>,
    /// The highest key of the differing rows that were found.
    pub(super) last: Option<String>,
    /// Some of the differing rows.
    pub(super) rows: Vec<RowDifference>,
}

/// A row that is not the same on all members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct RowDifference {
    /// The key of the row.
    pub(super) key: String,
    /// The members whose row differs from the majority's.
    pub(super) differs_on: Vec<String>,
    /// The members that lack the row.
    pub(super) missing_on: Vec<String>,
    /// The members that have the row, if they are at most half and their rows are equal. `differs_on` is empty then.
    pub(super) only_on: Vec<String>,
}

impl RowDifference {
    /// The difference as text. A row that most members lack is described by the members that have it.
    pub(super) fn text(&self) -> String {
        if !self.only_on.is_empty() {
            return format!("only on {}", self.only_on.join(", "));
        }
        let parts = [("differs", &self.differs_on), ("missing", &self.missing_on)];
        let parts = parts.iter().filter(|(_, on)| !on.is_empty());
        parts.map(|(what, on)| format!("{what} on {}", on.join(", "))).collect::<Vec<_>>().join("; ")
    }
}

/// The statement that prints the definition of a table.
pub(super) fn show_definition(name: &Name) -> String {
    format!("SHOW CREATE TABLE {}", full(name))
}

/// The lines of a definition, from the result of [`show_definition`]. The next AUTO_INCREMENT value is removed: it may
/// differ between equal tables.
pub(super) fn definition(rows: &Rows) -> Vec<String> {
    let text = rows.first().and_then(|row| row.get(1)).map(String::as_str).unwrap_or_default();
    let without_counter = |line: &str| match (line.starts_with(')'), line.split_once(" AUTO_INCREMENT=")) {
        (true, Some((before, rest))) => {
            format!("{before}{}", rest.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
        _ => line.trim().trim_end_matches(',').to_owned(),
    };
    text.lines().map(without_counter).collect()
}

/// The difference between two table definitions, as text.
pub(super) fn definition_difference(odd: &[String], most: &[String]) -> String {
    let lines = |what: &str, of: &[String], without: &[String]| -> Vec<String> {
        of.iter().filter(|line| !without.contains(line)).map(|line| format!("{what} {line}")).collect()
    };
    let all = [lines("has", odd, most), lines("lacks", most, odd)].concat();
    if all.is_empty() { "in another order".into() } else { all.join(", ") }
}

/// The members whose value differs from the majority's. All members if no value has a majority.
pub(super) fn minority<T: PartialEq>(values: &[(String, T)]) -> Vec<String> {
    let most = values
        .iter()
        .map(|(_, value)| value)
        .find(|value| values.iter().filter(|(_, other)| other == *value).count() * 2 > values.len());
    values.iter().filter(|(_, value)| Some(value) != most).map(|(name, _)| name.clone()).collect()
}

/// Finds the differing rows of one bucket, from key and hash of each row on each member.
pub(super) fn compare_rows(members: &[(String, Rows)]) -> Vec<RowDifference> {
    let mut by_member: Vec<(String, BTreeMap<&str, Vec<&str>>)> = Vec::new();
    let mut keys = BTreeSet::new();
    for (name, rows) in members {
        let mut map: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for row in rows {
            if let [key, hash] = &row[..] {
                map.entry(key).or_default().push(hash);
                keys.insert(key.as_str());
            }
        }
        map.values_mut().for_each(|hashes| hashes.sort_unstable());
        by_member.push((name.clone(), map));
    }
    let mut out = Vec::new();
    for key in keys {
        let values: Vec<(String, Option<&Vec<&str>>)> =
            by_member.iter().map(|(name, map)| (name.clone(), map.get(key))).collect();
        let odd = minority(&values);
        if odd.is_empty() {
            continue;
        }
        let (missing, present): (Vec<_>, Vec<_>) = values.iter().partition(|v| v.1.is_none());
        let alike = present.windows(2).all(|two| two[0].1 == two[1].1);
        let names = |of: &[&(String, _)]| of.iter().map(|v| v.0.clone()).collect::<Vec<String>>();
        let missing_on = names(&missing);
        let only_on = if alike && missing.len() >= present.len() { names(&present) } else { Vec::new() };
        let differs_on =
            odd.into_iter().filter(|name| !missing_on.contains(name) && !only_on.contains(name)).collect();
        out.push(RowDifference { key: key.to_owned(), differs_on, missing_on, only_on });
    }
    out.sort_by(|a, b| by_value(&a.key, &b.key));
    out
}

/// Orders two numbers by value, and other texts as texts.
pub(super) fn by_value(a: &str, b: &str) -> std::cmp::Ordering {
    match (a.parse::<i128>(), b.parse::<i128>()) {
        (Ok(a), Ok(b)) => a.cmp(&b),
        _ => a.cmp(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> Rows {
        text.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
    }

    #[test]
    fn statements_quote_names_and_skip_virtual_columns() {
        let answer = vec![
            ["s", "a`b", "id", "int", "int(11)", "1", "auto_increment"].map(str::to_owned).to_vec(),
            ["s", "a`b", "v", "varchar", "varchar(9)", "0", ""].map(str::to_owned).to_vec(),
            ["s", "a`b", "g", "int", "int(11)", "0", "VIRTUAL GENERATED"].map(str::to_owned).to_vec(),
        ];
        let tables = Table::read(&answer);
        let name = ("s".to_owned(), "a`b".to_owned());
        let table = &tables[&name];
        let sql = table.checksum(&name);
        assert!(sql.ends_with("FROM `s`.`a``b`") && sql.contains("IFNULL(HEX(`v`),'N')"), "{sql}");
        assert!(!sql.contains("`g`"), "virtual columns are not compared: {sql}");
        assert!(table.bucket(&name, 5000, "3").contains("% 5 = 3"));
        assert_eq!(table.key_names(), ["id"]);
    }

    #[test]
    fn definitions_are_compared_without_counters() {
        let answer = |text: &str| vec![vec!["t".to_owned(), text.to_owned()]];
        let one = definition(&answer(
            "CREATE TABLE `t` (\n  `id` int(11),\n  KEY `a` (`id`)\n) ENGINE=InnoDB AUTO_INCREMENT=17 DEFAULT CHARSET=utf8mb4",
        ));
        let counted = definition(&answer(
            "CREATE TABLE `t` (\n  `id` int(11),\n  KEY `a` (`id`)\n) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4",
        ));
        assert_eq!(one, counted);
        let other = definition(&answer(
            "CREATE TABLE `t` (\n  `id` int(11)\n) ENGINE=InnoDB AUTO_INCREMENT=17 DEFAULT CHARSET=utf8mb4",
        ));
        assert_eq!(definition_difference(&other, &one), "lacks KEY `a` (`id`)");
        assert_eq!(definition_difference(&one, &other), "has KEY `a` (`id`)");
    }

    #[test]
    fn minority_is_named_and_all_without_majority() {
        let of = |values: &[(&str, u8)]| {
            minority(&values.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect::<Vec<_>>())
        };
        assert_eq!(of(&[("n1", 1), ("n2", 1), ("n3", 2)]), ["n3"]);
        assert_eq!(of(&[("n1", 1), ("n2", 2)]), ["n1", "n2"]);
        assert!(of(&[("n1", 1), ("n2", 1)]).is_empty());
    }

    #[test]
    fn rows_that_differ_or_are_missing_are_found() {
        let members = [
            ("n1".to_owned(), rows("1 a\n2 b\n10 c")),
            ("n2".to_owned(), rows("1 a\n2 b\n10 c\n9 x")),
            ("n3".to_owned(), rows("1 a\n2 B")),
        ];
        let found = compare_rows(&members);
        let keys: Vec<&str> = found.iter().map(|r| r.key.as_str()).collect();
        assert_eq!(keys, ["2", "9", "10"]);
        assert_eq!((found[0].differs_on.clone(), found[0].missing_on.len()), (vec!["n3".to_owned()], 0));
        assert!(found[1].differs_on.is_empty(), "a row on one member only has no counterpart");
        assert_eq!(
            (&found[1].only_on[..], &found[1].missing_on[..]),
            (&["n2".to_owned()][..], &["n1", "n3"].map(str::to_owned)[..])
        );
        assert_eq!((found[2].missing_on[0].as_str(), found[2].only_on.len()), ("n3", 0));
        assert_eq!([&found[1], &found[2]].map(RowDifference::text), ["only on n2", "missing on n3"]);
        // One member lacks the row, and the rows of the others differ: no value has a majority.
        let members =
            [("n1".to_owned(), rows("")), ("n2".to_owned(), rows("1 a")), ("n3".to_owned(), rows("1 b"))];
        let found = compare_rows(&members);
        assert_eq!((found[0].differs_on.len(), found[0].missing_on.len(), found[0].only_on.len()), (2, 1, 0));
        assert_eq!(found[0].text(), "differs on n2, n3; missing on n1");
    }
}
