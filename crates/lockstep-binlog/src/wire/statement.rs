//! Recognises the statements that replicas and tools send on connecting. This is no SQL parser: a statement is split into
//! tokens, and compared with a short list. Case, spaces, comments and backquotes do not matter.

/// A recognised statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Statement {
    /// `SET` with its assignments.
    Set(Vec<Assignment>),
    /// `SELECT` of a list of expressions, each with its name in the result.
    Select(Vec<(String, Expr)>),
    /// `SHOW VARIABLES`, with the pattern of `LIKE` or the value of `WHERE variable_name =`.
    ShowVariables(Option<String>),
    /// `SHOW MASTER STATUS`, `SHOW BINLOG STATUS` or `SHOW BINARY LOG STATUS`.
    ShowMasterStatus,
    /// `SHOW BINARY LOGS` or `SHOW MASTER LOGS`.
    ShowBinaryLogs,
    /// `SHOW SLAVE HOSTS`, `SHOW REPLICA HOSTS` or `SHOW REPLICAS`.
    ShowReplicas,
    /// `SHOW WARNINGS`.
    ShowWarnings,
    /// Nothing but spaces and comments.
    Empty,
}

/// One assignment of `SET`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Assignment {
    /// A user variable: `@name = value`.
    User(String, Expr),
    /// A variable of the session, in lower case.
    Session(String, Expr),
    /// `SET NAMES` and the like, which change nothing here.
    Ignored,
}

/// A value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expr {
    /// A number or a word, as written.
    Literal(String),
    /// A string.
    Text(String),
    /// NULL.
    Null,
    /// A user variable.
    User(String),
    /// A system variable, in lower case and without its scope.
    System(String),
    /// `UNIX_TIMESTAMP()`.
    UnixTimestamp,
    /// `VERSION()`.
    Version,
    /// `CONNECTION_ID()`.
    ConnectionId,
    /// `DATABASE()`.
    Database,
    /// `BINLOG_GTID_POS(file, position)`.
    BinlogGtidPos(String, u64),
}

/// The longest statement that is looked at.
const BYTES_MAX: usize = 64 << 10;
const TOKENS_MAX: usize = 1024;

#[derive(Clone, PartialEq, Eq, Debug)]
enum Token<'a> {
    /// A name or keyword.
    Word(&'a str),
    Number(&'a str),
    Text(String),
    /// `@name`.
    User(String),
    /// `@@name` or `@@scope.name`, in lower case, without the scope.
    System(String),
    Symbol(char),
}

impl Token<'_> {
    fn is(&self, word: &str) -> bool {
        matches!(self, Token::Word(found) if found.eq_ignore_ascii_case(word))
    }
}

/// Recognises a statement; `None` if it is none of the list.
pub fn recognise(sql: &[u8]) -> Option<Statement> {
    let sql = std::str::from_utf8(sql).ok().filter(|sql| sql.len() <= BYTES_MAX)?;
    let mut tokens = tokens(sql)?;
    while tokens.last().is_some_and(|(token, _)| *token == Token::Symbol(';')) {
        tokens.pop();
    }
    let mut p = Parser { sql, tokens: &tokens };
    let Some(first) = p.next() else { return Some(Statement::Empty) };
    let statement = match first {
        first if first.is("set") => p.set()?,
        first if first.is("select") => p.select()?,
        first if first.is("show") => p.show()?,
        _ => return None,
    };
    p.tokens.is_empty().then_some(statement)
}

/// Splits a statement into tokens, each with its place.
fn tokens(sql: &str) -> Option<Vec<(Token<'_>, std::ops::Range<usize>)>> {
    let mut out = Vec::new();
    let mut rest = sql;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace());
        let start = sql.len() - rest.len();
        let Some(c) = rest.chars().next() else { return Some(out) };
        if out.len() >= TOKENS_MAX {
            return None;
        }
        let token;
        (token, rest) = match c {
            '#' => {
                rest = rest.split_once('\n').map_or("", |(_, after)| after);
                continue;
            }
            '-' if rest.starts_with("-- ") => {
                rest = rest.split_once('\n').map_or("", |(_, after)| after);
                continue;
            }
            // The text of `/*!40101 …*/` belongs to the statement, and no statement of the list has one.
            '/' if rest.starts_with("/*") && !rest.starts_with("/*!") && !rest.starts_with("/*M!") => {
                rest = rest.split_once("*/")?.1;
                continue;
            }
            '\'' | '"' => {
                let (text, after) = quoted(rest)?;
                (Token::Text(text), after)
            }
            '`' => {
                let (name, after) = rest[1..].split_once('`')?;
                (Token::Word(name), after)
            }
            '@' if rest.starts_with("@@") => {
                let (first, mut after) = name(&rest[2..])?;
                let mut last = first;
                if let Some(member) = after.strip_prefix('.') {
                    if !["global", "session", "local"].iter().any(|scope| first.eq_ignore_ascii_case(scope)) {
                        return None;
                    }
                    (last, after) = name(member)?;
                }
                (Token::System(last.to_ascii_lowercase()), after)
            }
            '@' => {
                let (name, after) = name(&rest[1..])?;
                (Token::User(name.to_ascii_lowercase()), after)
            }
            '0'..='9' => {
                let (word, after) = split_word(rest);
                let token = if word.bytes().all(|b| b.is_ascii_digit()) {
                    Token::Number(word)
                } else {
                    Token::Word(word)
                };
                (token, after)
            }
            c if c.is_ascii_alphabetic() || c == '_' => {
                let (word, after) = split_word(rest);
                (Token::Word(word), after)
            }
            c => (Token::Symbol(c), &rest[c.len_utf8()..]),
        };
        out.push((token, start..sql.len() - rest.len()));
    }
}

fn split_word(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '$')).unwrap_or(text.len());
    text.split_at(end)
}

/// A variable's name, with or without backquotes.
fn name(text: &str) -> Option<(&str, &str)> {
    if let Some(quoted) = text.strip_prefix('`') {
        return quoted.split_once('`');
    }
    let (word, rest) = split_word(text);
    (!word.is_empty()).then_some((word, rest))
}

/// A string at the front of `text`, and the rest.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut chars = text.char_indices();
    let (_, quote) = chars.next()?;
    let mut out = String::new();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => out.push(chars.next()?.1),
            c if c == quote => {
                let rest = &text[at + 1..];
                if !rest.starts_with(quote) {
                    return Some((out, rest));
                }
                out.push(quote);
                chars.next();
            }
            c => out.push(c),
        }
    }
    None
}

struct Parser<'a> {
    sql: &'a str,
    tokens: &'a [(Token<'a>, std::ops::Range<usize>)],
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<&'a Token<'a>> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(&first.0)
    }

    fn peek(&self) -> Option<&'a Token<'a>> {
        self.tokens.first().map(|(token, _)| token)
    }

    fn symbol(&mut self, symbol: char) -> Option<()> {
        (*self.next()? == Token::Symbol(symbol)).then_some(())
    }

    /// Takes the word if it is the next one.
    fn word(&mut self, word: &str) -> bool {
        let found = self.peek().is_some_and(|token| token.is(word));
        if found {
            self.next();
        }
        found
    }

    fn set(&mut self) -> Option<Statement> {
        if ["names", "character", "charset"].iter().any(|word| self.word(word)) {
            self.tokens = &[];
            return Some(Statement::Set(vec![Assignment::Ignored]));
        }
        let mut assignments = Vec::new();
        loop {
            let scoped = self.word("session") || self.word("local");
            let assignment: fn(String, Expr) -> Assignment;
            let name = match self.next()? {
                Token::User(name) if !scoped => {
                    assignment = Assignment::User;
                    name.clone()
                }
                Token::System(name) if !scoped => {
                    assignment = Assignment::Session;
                    name.clone()
                }
                Token::Word(word) if !word.eq_ignore_ascii_case("global") => {
                    assignment = Assignment::Session;
                    word.to_ascii_lowercase()
                }
                _ => return None,
            };
            if self.peek() == Some(&Token::Symbol(':')) {
                self.next();
            }
            self.symbol('=')?;
            assignments.push(assignment(name, self.expr()?));
            match self.peek() {
                None => return Some(Statement::Set(assignments)),
                Some(_) => self.symbol(',')?,
            }
        }
    }

    fn select(&mut self) -> Option<Statement> {
        let mut list = Vec::new();
        loop {
            let start = self.tokens.first()?.1.start;
            let expr = self.expr()?;
            let end = self.tokens.first().map_or(self.sql.len(), |(_, place)| place.start);
            let mut name = self.sql.get(start..end)?.trim().trim_end_matches(';').trim().to_owned();
            let named = self.word("as");
            match self.peek() {
                Some(Token::Word(word)) if named || !word.eq_ignore_ascii_case("limit") => {
                    name = (*word).to_owned();
                    self.next();
                }
                Some(Token::Text(text)) if named => {
                    name = text.clone();
                    self.next();
                }
                _ if named => return None,
                _ => {}
            }
            list.push((name, expr));
            if self.word("limit") {
                return matches!(self.next()?, Token::Number(_)).then_some(Statement::Select(list));
            }
            match self.peek() {
                None => return Some(Statement::Select(list)),
                Some(_) => self.symbol(',')?,
            }
        }
    }

    fn expr(&mut self) -> Option<Expr> {
        Some(match self.next()? {
            Token::Symbol('-') => match self.next()? {
                Token::Number(number) => Expr::Literal(format!("-{number}")),
                _ => return None,
            },
            Token::Number(number) => Expr::Literal((*number).to_owned()),
            Token::Text(text) => Expr::Text(text.clone()),
            Token::User(name) => Expr::User(name.clone()),
            Token::System(name) => Expr::System(name.clone()),
            Token::Word(word) if self.peek() == Some(&Token::Symbol('(')) => {
                self.next();
                let word = word.to_ascii_lowercase();
                let expr = match word.as_str() {
                    "unix_timestamp" => Expr::UnixTimestamp,
                    "version" => Expr::Version,
                    "connection_id" => Expr::ConnectionId,
                    "database" | "schema" => Expr::Database,
                    "binlog_gtid_pos" => {
                        let Token::Text(file) = self.next()? else { return None };
                        self.symbol(',')?;
                        let Token::Number(offset) = self.next()? else { return None };
                        Expr::BinlogGtidPos(file.clone(), offset.parse().ok()?)
                    }
                    _ => return None,
                };
                self.symbol(')')?;
                expr
            }
            Token::Word(word) if word.eq_ignore_ascii_case("null") => Expr::Null,
            Token::Word(word) => Expr::Literal((*word).to_owned()),
            Token::Symbol(_) => return None,
        })
    }

    fn show(&mut self) -> Option<Statement> {
        let _scope = self.word("global") || self.word("session") || self.word("local");
        if self.word("variables") {
            return Some(Statement::ShowVariables(self.filter()?));
        }
        if self.word("warnings") {
            return Some(Statement::ShowWarnings);
        }
        if self.word("binary") {
            if self.word("logs") {
                return Some(Statement::ShowBinaryLogs);
            }
            return (self.word("log") && self.word("status")).then_some(Statement::ShowMasterStatus);
        }
        if self.word("replicas") {
            return Some(Statement::ShowReplicas);
        }
        if self.word("master") || self.word("binlog") {
            if self.word("status") {
                return Some(Statement::ShowMasterStatus);
            }
            return self.word("logs").then_some(Statement::ShowBinaryLogs);
        }
        ((self.word("slave") || self.word("replica")) && self.word("hosts"))
            .then_some(Statement::ShowReplicas)
    }

    /// `LIKE 'pattern'` or `WHERE variable_name = 'name'` or `WHERE variable_name LIKE 'pattern'`, or nothing.
    fn filter(&mut self) -> Option<Option<String>> {
        if self.tokens.is_empty() {
            return Some(None);
        }
        let mut exact = false;
        if self.word("where") {
            if !self.word("variable_name") {
                return None;
            }
            exact = self.peek() == Some(&Token::Symbol('='));
        }
        if exact {
            self.symbol('=')?;
        } else if !self.word("like") {
            return None;
        }
        match self.next()? {
            Token::Text(text) if exact => Some(Some(text.replace('_', "\\_").replace('%', "\\%"))),
            Token::Text(text) => Some(Some(text.clone())),
            _ => None,
        }
    }
}

/// Whether a name matches a pattern of `LIKE`, in any case. The time is bounded: at most name times pattern.
pub fn like(name: &str, pattern: &str) -> bool {
    let name: Vec<char> = name.chars().map(|c| c.to_ascii_lowercase()).collect();
    // `here[i]`: the pattern so far matches the first i characters.
    let mut here = vec![false; name.len() + 1];
    here[0] = true;
    let mut chars = pattern.chars().map(|c| c.to_ascii_lowercase());
    while let Some(c) = chars.next() {
        let (c, literal) = if c == '\\' { (chars.next().unwrap_or('\\'), true) } else { (c, false) };
        match c {
            '%' if !literal => {
                let first = here.iter().position(|matches| *matches).unwrap_or(here.len());
                here.iter_mut().enumerate().for_each(|(at, matches)| *matches = at >= first);
            }
            _ => {
                for at in (0..name.len()).rev() {
                    here[at + 1] = here[at] && ((c == '_' && !literal) || name[at] == c);
                }
                here[0] = false;
            }
        }
    }
    here[name.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(sql: &str) -> Vec<Assignment> {
        match recognise(sql.as_bytes()) {
            Some(Statement::Set(list)) => list,
            other => panic!("{sql}: {other:?}"),
        }
    }

    fn select(sql: &str) -> Vec<(String, Expr)> {
        match recognise(sql.as_bytes()) {
            Some(Statement::Select(list)) => list,
            other => panic!("{sql}: {other:?}"),
        }
    }

    #[test]
    fn statements_of_a_replica_are_recognised() {
        assert_eq!(select("SELECT UNIX_TIMESTAMP()"), [("UNIX_TIMESTAMP()".into(), Expr::UnixTimestamp)]);
        let user = |name: &str, expr| Assignment::User(name.into(), expr);
        assert_eq!(
            set("SET @master_heartbeat_period= 30000001024"),
            [user("master_heartbeat_period", Expr::Literal("30000001024".into()))]
        );
        assert_eq!(
            set("SET @master_binlog_checksum= @@global.binlog_checksum"),
            [user("master_binlog_checksum", Expr::System("binlog_checksum".into()))]
        );
        assert_eq!(
            set("SET @slave_connect_state='1-2-3'"),
            [user("slave_connect_state", Expr::Text("1-2-3".into()))]
        );
        assert_eq!(
            set("SET skip_replication=1"),
            [Assignment::Session("skip_replication".into(), Expr::Literal("1".into()))]
        );
        assert_eq!(select("SELECT @@GLOBAL.gtid_domain_id")[0].1, Expr::System("gtid_domain_id".into()));
        assert_eq!(
            select("SELECT binlog_gtid_pos('bin.000001',4)")[0].1,
            Expr::BinlogGtidPos("bin.000001".into(), 4)
        );
        assert_eq!(
            recognise(b"SHOW VARIABLES LIKE 'SERVER_ID'"),
            Some(Statement::ShowVariables(Some("SERVER_ID".into())))
        );
    }

    #[test]
    fn statements_of_tools_are_recognised() {
        assert_eq!(
            recognise(b"show global variables like 'binlog_checksum';"),
            Some(Statement::ShowVariables(Some("binlog_checksum".into())))
        );
        assert_eq!(
            recognise(b"SHOW VARIABLES WHERE Variable_name = 'server_id'"),
            Some(Statement::ShowVariables(Some("server\\_id".into())))
        );
        assert_eq!(recognise(b" show  MASTER\n status "), Some(Statement::ShowMasterStatus));
        assert_eq!(recognise(b"SHOW BINARY LOGS"), Some(Statement::ShowBinaryLogs));
        assert_eq!(recognise(b"SHOW BINARY LOG STATUS"), Some(Statement::ShowMasterStatus));
        for sql in ["SHOW SLAVE HOSTS", "show replica hosts", "SHOW REPLICAS"] {
            assert_eq!(recognise(sql.as_bytes()), Some(Statement::ShowReplicas));
        }
        assert_eq!(set("set names utf8mb4 collate utf8mb4_bin"), [Assignment::Ignored]);
        let list = select(
            "/* mysql-connector-java */ SELECT @@session.auto_increment_increment AS `inc`, 'a''b' x LIMIT 1",
        );
        assert_eq!(list[0], ("inc".into(), Expr::System("auto_increment_increment".into())));
        assert_eq!(list[1], ("x".into(), Expr::Text("a'b".into())));
        assert_eq!(set("SET @`slave_connect_state` = '0-1-2', @x := -5").len(), 2);
        assert_eq!(recognise(b" -- nothing\n"), Some(Statement::Empty));
    }

    #[test]
    fn other_statements_are_not_recognised() {
        for sql in [
            "SELECT * FROM t",
            "SELECT 1 FROM dual",
            "SET GLOBAL binlog_checksum=NONE",
            "SELECT 'open",
            "SHOW",
            "SHOW TABLES",
            "DROP TABLE t",
            "SELECT /*!40101 1 */",
            "SELECT sleep(10)",
            "SET @a",
            "SHOW VARIABLES LIKE",
        ] {
            assert_eq!(recognise(sql.as_bytes()), None, "{sql}");
        }
        assert_eq!(recognise(b"SELECT \xff"), None);
    }

    #[test]
    fn like_matches_wildcards_and_escapes() {
        for (name, pattern, expected) in [
            ("server_id", "SERVER_ID", true),
            ("serverXid", "server_id", true),
            ("serverXid", "server\\_id", false),
            ("binlog_checksum", "%check%", true),
            ("binlog_checksum", "binlog%", true),
            ("binlog_checksum", "checksum", false),
            ("", "%", true),
            ("", "", true),
            ("a", "", false),
        ] {
            assert_eq!(like(name, pattern), expected, "{name} {pattern}");
        }
    }
}
