//! Recovery of a statement in total order that had begun when the server was killed, and has no mark that it is done.
//!
//! The server makes single DDL statements atomic (its `ddl_log`): after its recovery, a table is as before an `ALTER` or
//! as after it. The table's definition shows whether the `ALTER` was executed, because each one writes the definition with
//! a new identifier. Most other statements have the same outcome when executed again: the created object exists, the
//! dropped one does not. For a few statements neither holds, and their outcome cannot be determined.

use lockstep_rows::{EventKind, Statement, events};
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

/// How to find out whether a statement was executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// It need not be known: executing the statement twice is as good as once.
    Repeatable,
    /// Compare the definitions of its tables: if they are unchanged, the statement has not been executed.
    Compare {
        /// [`print_of`] before the statement.
        print: u64,
    },
    /// It cannot be determined.
    Undecidable,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Repeatable => write!(f, "again"),
            Rule::Compare { print } => write!(f, "compare {print:016x}"),
            Rule::Undecidable => write!(f, "doubt"),
        }
    }
}

impl Rule {
    /// Parses the output of [`Display`](fmt::Display).
    pub(crate) fn parse(text: &str) -> Option<Rule> {
        match text {
            "again" => Some(Rule::Repeatable),
            "doubt" => Some(Rule::Undecidable),
            _ => {
                let print = u64::from_str_radix(text.strip_prefix("compare ")?, 16).ok()?;
                Some(Rule::Compare { print })
            }
        }
    }
}

/// The kind of a statement, from its text.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    Repeatable,
    /// It changes the definitions of these tables: schema and name.
    Changes(Vec<(String, String)>),
    Undecidable,
}

/// The rule for the statement in `data`, which is executed next.
pub(crate) fn rule(data: &[u8], dir: &Path) -> Rule {
    match kind_of_data(data) {
        Kind::Repeatable => Rule::Repeatable,
        Kind::Changes(tables) => {
            print_of(&tables, dir).map_or(Rule::Undecidable, |print| Rule::Compare { print })
        }
        Kind::Undecidable => Rule::Undecidable,
    }
}

/// Whether the statement with this rule has been executed, after the server's recovery. `false` if that cannot be
/// determined.
pub(crate) fn was_executed(rule: Rule, data: &[u8], dir: &Path) -> bool {
    match (rule, kind_of_data(data)) {
        (Rule::Compare { print }, Kind::Changes(tables)) => {
            print_of(&tables, dir).is_some_and(|now| now != print)
        }
        _ => false,
    }
}

/// The relation of a statement to some tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Relation {
    /// It names none of the tables.
    None,
    /// It changes one of the tables, and nothing else.
    Alone,
    /// Any other relation, or an unknown one.
    Unclear,
}

/// The relation of the statement in `data` to `tables`, each a schema and a name.
pub(crate) fn relation(data: &[u8], tables: &[(String, String)]) -> Relation {
    if tables.is_empty() {
        return Relation::None;
    }
    Words::of(data).relation(tables)
}

/// The words of a statement, as far as they show its relation to tables. The DDL journal keeps them with each mark, because
/// the statement itself may come long after the table in question.
///
/// Words are kept as CRC-32C sums, in lower case. Two words with one sum make an unrelated statement look related, which
/// costs a state transfer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Words {
    /// The only table that the statement changes: the sum of its schema and name.
    alters: Option<u32>,
    /// Ascending. `None` for a statement that cannot be read, or with more than [`WORDS_MAX`] words: it may concern any
    /// table.
    sums: Option<Vec<u32>>,
}

/// The most words that are kept of a statement.
const WORDS_MAX: usize = 200;
/// Stands for all words that are not ASCII. They are in the client's character set in one place and in another one here:
/// any two may match.
const NOT_ASCII: u32 = 0;

fn sum_of(word: &str) -> u32 {
    if word.is_ascii() { crc32c::crc32c(word.to_lowercase().as_bytes()) } else { NOT_ASCII }
}

fn sum_of_table(schema: &str, table: &str) -> u32 {
    crc32c::crc32c(format!("{}\0{}", schema.to_lowercase(), table.to_lowercase()).as_bytes())
}

impl Words {
    /// The words of the statement in `data`.
    pub(crate) fn of(data: &[u8]) -> Words {
        single_statement(data).map_or_else(Words::default, |s| Words::of_sql(&s.sql, &s.schema))
    }

    pub(crate) fn of_sql(sql: &str, schema: &str) -> Words {
        let mut sums: Vec<u32> = tokens(sql)
            .iter()
            .filter_map(|token| match token {
                Token::Word(word) | Token::Name(word) => Some(sum_of(word)),
                Token::Other(_) => None,
            })
            .collect();
        sums.sort_unstable();
        sums.dedup();
        if sums.len() > WORDS_MAX {
            return Words::default();
        }
        let moves =
            ["RENAME", "EXCHANGE", "CONVERT"].iter().any(|word| sums.binary_search(&sum_of(word)).is_ok());
        let alters = match kind(sql, schema) {
            Kind::Changes(tables) if !moves => match &tables[..] {
                [(schema, table)] => Some(sum_of_table(schema, table)),
                _ => None,
            },
            _ => None,
        };
        Words { alters, sums: Some(sums) }
    }

    fn has(&self, word: &str) -> bool {
        self.sums.as_ref().is_none_or(|sums| sums.binary_search(&sum_of(word)).is_ok())
    }

    /// The relation to `tables`, each a schema and a name.
    pub(crate) fn relation(&self, tables: &[(String, String)]) -> Relation {
        let of_schemas = self.has("DATABASE") || self.has("SCHEMA");
        if !tables.iter().any(|(schema, table)| self.has(table) || (of_schemas && self.has(schema))) {
            return Relation::None;
        }
        let alters = |(schema, table): &(String, String)| self.alters == Some(sum_of_table(schema, table));
        if tables.iter().any(alters) { Relation::Alone } else { Relation::Unclear }
    }

    /// Parses the output of [`Display`](fmt::Display).
    pub(crate) fn parse(text: &str) -> Option<Words> {
        let number = |text: &str| {
            let digits = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            digits.then(|| u32::from_str_radix(text, 16).ok()).flatten()
        };
        let (alters, sums) = text.split_once(' ')?;
        let alters = if alters == "-" { None } else { Some(number(alters)?) };
        let sums = match sums {
            "any" => None,
            "" => Some(Vec::new()),
            sums => Some(sums.split(',').map(number).collect::<Option<Vec<u32>>>()?),
        };
        let in_order =
            sums.as_ref().is_none_or(|sums| sums.is_sorted_by(|a, b| a < b) && sums.len() <= WORDS_MAX);
        in_order.then_some(Words { alters, sums })
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.alters {
            Some(sum) => write!(f, "{sum:08x} ")?,
            None => write!(f, "- ")?,
        }
        let Some(sums) = &self.sums else { return write!(f, "any") };
        for (at, sum) in sums.iter().enumerate() {
            write!(f, "{}{sum:08x}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// The table that a `CREATE TABLE` in the server's own form creates: schema and name.
pub(crate) fn created(statement: &Statement) -> Option<(String, String)> {
    let tokens = tokens(&statement.sql);
    let mut at = Cursor { rest: &tokens, schema: &statement.schema };
    at.skip(&["CREATE", "TABLE", "IF", "NOT", "EXISTS"]);
    at.table()
}

/// The statement in `data`, if there is exactly one.
fn single_statement(data: &[u8]) -> Option<Statement> {
    let mut queries =
        events(data).filter(|event| matches!(event.kind, EventKind::Query | EventKind::QueryCompressed));
    let one = queries.next()?;
    if queries.next().is_some() { None } else { one.statement() }
}

fn kind_of_data(data: &[u8]) -> Kind {
    single_statement(data).map_or(Kind::Undecidable, |statement| kind(&statement.sql, &statement.schema))
}

/// A fingerprint of the definitions of these tables, present or absent. `None` if the file name of a table is not known, or
/// if a file exists but cannot be read (a server may be out of descriptors).
fn print_of(tables: &[(String, String)], dir: &Path) -> Option<u64> {
    let mut print = 0u64;
    for (schema, table) in tables {
        let (schema, table) = (file_name(schema)?, file_name(table)?);
        // The server may keep names in lower case.
        for (schema, table) in
            [(schema.clone(), table.clone()), (schema.to_lowercase(), table.to_lowercase())]
        {
            for extension in ["frm", "par"] {
                let path = dir.join(&schema).join(format!("{table}.{extension}"));
                let content = match std::fs::read(path) {
                    Err(error) if error.kind() == ErrorKind::NotFound => None,
                    content => Some(content.ok()?),
                };
                let (sum, len) = content.map_or((0, 0), |c| (crc32c::crc32c(&c), c.len() as u64 + 1));
                print = print.rotate_left(7) ^ (u64::from(sum) << 32) ^ len;
            }
        }
    }
    Some(print)
}

/// Names of devices on other systems: the server encodes them differently on all systems.
const DEVICES: [&str; 22] = [
    "aux", "con", "nul", "prn", "com1", "com2", "com3", "com4", "com5", "com6", "com7", "com8", "com9",
    "lpt1", "lpt2", "lpt3", "lpt4", "lpt5", "lpt6", "lpt7", "lpt8", "lpt9",
];

/// The file name for an SQL name. `None` for a name whose encoding is not implemented here.
fn file_name(name: &str) -> Option<String> {
    if name.starts_with("#mysql50#") || DEVICES.iter().any(|device| name.eq_ignore_ascii_case(device)) {
        return None;
    }
    let mut file = String::new();
    for c in name.chars() {
        match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' => file.push(c),
            _ if c.is_ascii() => file.push_str(&format!("@{:04x}", c as u32)),
            _ => return None,
        }
    }
    (!file.is_empty()).then_some(file)
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    /// A word without quotes: a keyword or a name.
    Word(String),
    /// A quoted name.
    Name(String),
    /// A string, a number's rest, or any other character.
    Other(char),
}

/// The statement's tokens, without comments. The text in an executable comment (`/*! ... */`) is included.
fn tokens(sql: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = sql.chars().peekable();
    while let Some(c) = rest.next() {
        let next = rest.peek().copied();
        match c {
            _ if c.is_whitespace() => {}
            '#' => while rest.next().is_some_and(|c| c != '\n') {},
            '-' if next == Some('-') => while rest.next().is_some_and(|c| c != '\n') {},
            '/' if next == Some('*') => {
                rest.next();
                rest.next_if_eq(&'M');
                if rest.next_if_eq(&'!').is_some() {
                    while rest.next_if(char::is_ascii_digit).is_some() {}
                    continue;
                }
                let mut last = ' ';
                for c in rest.by_ref() {
                    if (last, c) == ('*', '/') {
                        break;
                    }
                    last = c;
                }
            }
            '*' if next == Some('/') => _ = rest.next(),
            '`' | '"' | '\'' => {
                let mut text = String::new();
                while let Some(inner) = rest.next() {
                    match inner {
                        _ if inner == c && rest.next_if_eq(&c).is_none() => break,
                        '\\' if c == '\'' => text.extend(rest.next()),
                        _ => text.push(inner),
                    }
                }
                tokens.push(if c == '\'' { Token::Other('\'') } else { Token::Name(text) });
            }
            _ if c.is_alphanumeric() || c == '_' || c == '$' => {
                let mut word = String::from(c);
                while let Some(c) = rest.next_if(|c| c.is_alphanumeric() || *c == '_' || *c == '$') {
                    word.push(c);
                }
                tokens.push(Token::Word(word));
            }
            _ => tokens.push(Token::Other(c)),
        }
    }
    tokens
}

/// A cursor in the statement.
struct Cursor<'a> {
    rest: &'a [Token],
    schema: &'a str,
}

impl Cursor<'_> {
    fn peek(&self) -> String {
        match self.rest.first() {
            Some(Token::Word(word)) => word.to_ascii_uppercase(),
            _ => String::new(),
        }
    }

    fn word(&mut self) -> String {
        let word = self.peek();
        self.rest = self.rest.get(1..).unwrap_or_default();
        word
    }

    /// Skips any sequence of these words.
    fn skip(&mut self, words: &[&str]) {
        while words.contains(&self.peek().as_str()) {
            self.word();
        }
    }

    fn is(&mut self, c: char) -> bool {
        let is = self.rest.first() == Some(&Token::Other(c));
        if is {
            self.rest = &self.rest[1..];
        }
        is
    }

    fn name(&mut self) -> Option<String> {
        let name = match self.rest.first()? {
            Token::Word(name) | Token::Name(name) => name.clone(),
            Token::Other(_) => return None,
        };
        self.rest = &self.rest[1..];
        Some(name)
    }

    fn table(&mut self) -> Option<(String, String)> {
        let first = self.name()?;
        match self.is('.') {
            true => Some((first, self.name()?)),
            false => Some((self.schema.to_owned(), first)),
        }
    }

    fn has(&self, word: &str) -> bool {
        self.rest.iter().any(|t| matches!(t, Token::Word(w) if w.eq_ignore_ascii_case(word)))
    }
}

fn kind(sql: &str, schema: &str) -> Kind {
    let tokens = tokens(sql);
    let mut at = Cursor { rest: &tokens, schema };
    if at.peek() == "SET"
        && matches!(at.rest.get(1), Some(Token::Word(w)) if w.eq_ignore_ascii_case("STATEMENT"))
    {
        while !at.rest.is_empty() && at.word() != "FOR" {}
    }
    let changes = |tables: Option<Vec<(String, String)>>| tables.map_or(Kind::Undecidable, Kind::Changes);
    match at.word().as_str() {
        "ALTER" => {
            at.skip(&["ONLINE", "IGNORE"]);
            match at.word().as_str() {
                // Executed twice, it has no effect, and the definition stays the same.
                "TABLE" if at.has("EXCHANGE") => Kind::Undecidable,
                "TABLE" => {
                    at.skip(&["IF", "EXISTS"]);
                    changes(at.table().map(|table| vec![table]))
                }
                _ => Kind::Repeatable,
            }
        }
        verb @ ("CREATE" | "DROP") => {
            let replace = at.peek() == "OR";
            at.skip(&["OR", "REPLACE", "ONLINE", "OFFLINE", "UNIQUE", "FULLTEXT", "SPATIAL"]);
            match at.word().as_str() {
                "INDEX" => {
                    while !at.rest.is_empty() && at.word() != "ON" {}
                    changes(at.table().map(|table| vec![table]))
                }
                // With its rows, which would be inserted twice if the table exists.
                "TABLE" if verb == "CREATE" && !replace && at.has("SELECT") => {
                    at.skip(&["IF", "NOT", "EXISTS"]);
                    changes(at.table().map(|table| vec![table]))
                }
                _ => Kind::Repeatable,
            }
        }
        "RENAME" if ["TABLE", "TABLES"].contains(&at.peek().as_str()) => {
            at.word();
            at.skip(&["IF", "EXISTS"]);
            let mut tables = Vec::new();
            loop {
                let Some(from) = at.table() else { return Kind::Undecidable };
                at.skip(&["WAIT", "NOWAIT"]);
                if at.word() != "TO" {
                    return Kind::Undecidable;
                }
                let Some(to) = at.table() else { return Kind::Undecidable };
                tables.extend([from, to]);
                if !at.is(',') {
                    return Kind::Changes(tables);
                }
            }
        }
        "TRUNCATE" | "GRANT" | "REVOKE" | "ANALYZE" | "OPTIMIZE" | "REPAIR" | "CHECK" | "FLUSH" | "SET"
        | "INSTALL" | "UNINSTALL" | "RESET" => Kind::Repeatable,
        _ => Kind::Undecidable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(tables: &[&str]) -> Kind {
        let split = |t: &&str| t.split_once('.').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        Kind::Changes(tables.iter().map(split).collect())
    }

    #[test]
    fn repeatable_statements_are_recognised() {
        for sql in [
            "CREATE TABLE t (a INT PRIMARY KEY)",
            "create table if not exists `a b`.t (a int) select_full_join=1",
            "CREATE OR REPLACE TABLE t AS SELECT 1",
            "CREATE TABLE t LIKE u",
            "DROP TABLE a, b, c",
            "TRUNCATE TABLE t",
            "/* why */ DROP DATABASE d -- done",
            "CREATE ALGORITHM=UNDEFINED DEFINER=`root`@`localhost` SQL SECURITY DEFINER VIEW v AS SELECT 1",
            "CREATE DEFINER=`root`@`localhost` TRIGGER x BEFORE INSERT ON t FOR EACH ROW SET NEW.a = 1",
            "CREATE PROCEDURE p() SELECT 1",
            "CREATE USER u@h IDENTIFIED BY 'x'",
            "ALTER USER u@h IDENTIFIED BY 'y'",
            "ALTER DATABASE d CHARACTER SET utf8",
            "GRANT SELECT ON *.* TO u@h",
            "SET PASSWORD FOR u@h = 'x'",
            "ANALYZE TABLE t",
        ] {
            assert_eq!(kind(sql, "test"), Kind::Repeatable, "{sql}");
        }
    }

    #[test]
    fn changed_tables_are_recognised() {
        for (sql, tables) in [
            ("ALTER TABLE t ADD INDEX (a)", &["test.t"][..]),
            ("alter online ignore table if exists `d``x`.`t.u` add b int", &["d`x.t.u"]),
            ("/*!50100 ALTER */ TABLE d.t ENGINE=InnoDB", &["d.t"]),
            ("SET STATEMENT max_statement_time=5 FOR ALTER TABLE t ADD b INT", &["test.t"]),
            ("CREATE UNIQUE INDEX i USING BTREE ON d.t (a)", &["d.t"]),
            ("CREATE OR REPLACE INDEX i ON t (a)", &["test.t"]),
            ("DROP INDEX IF EXISTS i ON t", &["test.t"]),
            ("RENAME TABLE a TO b, d.c TO e", &["test.a", "test.b", "d.c", "test.e"]),
            ("rename tables if exists a wait 5 to b", &["test.a"]),
            ("CREATE TABLE t AS SELECT * FROM u", &["test.t"]),
        ] {
            let due = match tables.len() {
                1 if sql.starts_with("rename") => Kind::Undecidable,
                _ => changes(tables),
            };
            assert_eq!(kind(sql, "test"), due, "{sql}");
        }
    }

    #[test]
    fn bearing_on_recreated_table_is_recognised() {
        let tables = [("test".to_owned(), "T".to_owned())];
        for (sql, due) in [
            ("ALTER TABLE t ADD INDEX (a)", Relation::Alone),
            ("CREATE INDEX i ON test.t (a)", Relation::Alone),
            ("ALTER TABLE t RENAME TO u", Relation::Unclear),
            ("RENAME TABLE t TO u", Relation::Unclear),
            ("ALTER TABLE p EXCHANGE PARTITION q WITH TABLE t", Relation::Unclear),
            ("ALTER TABLE p CONVERT TABLE t TO PARTITION q VALUES LESS THAN (5)", Relation::Unclear),
            ("ALTER TABLE u ADD t INT", Relation::Unclear),
            ("ALTER TABLE other.t ADD a INT", Relation::Unclear),
            ("DROP TABLE u, `t`", Relation::Unclear),
            ("DROP DATABASE test", Relation::Unclear),
            ("ALTER TABLE test.u ADD a INT", Relation::None),
            ("CREATE USER u@h IDENTIFIED BY 't'", Relation::None),
        ] {
            assert_eq!(Words::of_sql(sql, "test").relation(&tables), due, "{sql}");
        }
        assert_eq!(relation(b"no event", &tables), Relation::Unclear);
        // The same name in another character set has other bytes.
        let tables = [("test".to_owned(), "t\u{e9}".to_owned())];
        for (sql, due) in [
            ("ALTER TABLE `t\u{fffd}` ADD a INT", Relation::Unclear),
            ("ALTER TABLE `t\u{e9}` ADD a INT", Relation::Alone),
            ("ALTER TABLE t ADD a INT", Relation::None),
        ] {
            assert_eq!(Words::of_sql(sql, "test").relation(&tables), due, "{sql}");
        }
        assert_eq!(relation(b"no event", &[]), Relation::None);
        let sql = |sql: &str| Statement { schema: "test".into(), sql: sql.into(), annotation: false };
        let named = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(created(&sql("CREATE TABLE `a``b` (\n `x` int)")), named("test", "a`b"));
        assert_eq!(created(&sql("CREATE TABLE IF NOT EXISTS `d`.`t` (`x` int)")), named("d", "t"));
        assert_eq!(created(&sql("CREATE TABLE")), None);
    }

    #[test]
    fn words_survive_display_and_parse() {
        let many: String = (0..=WORDS_MAX).map(|n| format!(" w{n}")).collect();
        for sql in ["", "ALTER TABLE t ADD b INT", "RENAME TABLE `t\u{e9}` TO u", "DROP TABLE a, b", &many] {
            let words = Words::of_sql(sql, "test");
            assert_eq!(Words::parse(&words.to_string()), Some(words), "{sql}");
        }
        assert_eq!(Words::of_sql(&many, "test"), Words::default());
        assert_eq!(Words::default().relation(&[("test".into(), "t".into())]), Relation::Unclear);
        for bad in ["", "-", "- 1", "- 00000002,00000001", "- 00000001,00000001", "0 any", "- +0000001"] {
            assert_eq!(Words::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn undeterminable_statements_are_doubt() {
        for sql in [
            "RENAME USER a TO b",
            "INSERT INTO aria VALUES (1)",
            "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u",
            "ALTER TABLE 't' ADD b INT",
            "RENAME TABLE a",
            "BEGIN NOT ATOMIC SELECT 1; END",
            "",
            "/* nothing",
        ] {
            assert_eq!(kind(sql, "test"), Kind::Undecidable, "{sql}");
        }
    }

    #[test]
    fn print_changes_with_definition() {
        let dir = std::env::temp_dir().join(format!("lockstep-redo-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("a@0020b")).unwrap();
        let tables = [("a b".to_owned(), "T".to_owned()), ("a b".to_owned(), "u".to_owned())];
        let none = print_of(&tables, &dir).unwrap();
        std::fs::write(dir.join("a@0020b/T.frm"), "one").unwrap();
        let one = print_of(&tables, &dir).unwrap();
        std::fs::rename(dir.join("a@0020b/T.frm"), dir.join("a@0020b/u.frm")).unwrap();
        let renamed = print_of(&tables, &dir).unwrap();
        std::fs::write(dir.join("a@0020b/u.frm"), "two").unwrap();
        let two = print_of(&tables, &dir).unwrap();
        let all = std::collections::BTreeSet::from([none, one, renamed, two]);
        assert_eq!(all.len(), 4);
        assert_eq!(print_of(&tables, &dir), Some(two));
        for odd in ["tëst", "aux", "COM1", "#mysql50#a"] {
            assert_eq!(print_of(&[("d".into(), odd.into())], &dir), None, "{odd}");
        }
        // A file that cannot be read does not count as absent.
        std::fs::create_dir(dir.join("a@0020b/v.frm")).unwrap();
        assert_eq!(print_of(&[("a b".into(), "v".into())], &dir), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn rule_survives_display_and_parse() {
        for rule in [Rule::Repeatable, Rule::Compare { print: u64::MAX }, Rule::Undecidable] {
            assert_eq!(Rule::parse(&rule.to_string()), Some(rule));
        }
        assert_eq!(Rule::parse("maybe"), None);
    }
}
