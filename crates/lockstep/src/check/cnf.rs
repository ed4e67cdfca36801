//! Reads option files as the server does: groups, `!include`, `!includedir`, comments, quotes. The last setting counts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Finding, Level};

/// Maximum depth of includes. It is the server's limit.
const MAX_DEPTH: usize = 10;

/// One line `name = value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) group: String,
    /// The name in lower case and with underscores, without `loose_`, `skip_` and the like.
    pub(super) name: String,
    /// The name as the file has it.
    pub(super) written: String,
    /// `None` if the line has no `=`.
    pub(super) value: Option<String>,
    /// The server starts even if it does not know the option.
    pub(super) loose: bool,
    /// The line ends before a quote of the value is closed.
    pub(super) open_quote: bool,
    pub(super) file: Arc<PathBuf>,
    pub(super) line: usize,
}

impl Setting {
    /// The value, or an empty text.
    pub(super) fn text(&self) -> &str {
        self.value.as_deref().unwrap_or_default()
    }

    /// The value as a switch. A setting without a value is on.
    pub(super) fn is_on(&self) -> bool {
        match self.value.as_deref() {
            None => true,
            Some(value) => {
                ["1", "on", "true", "yes", "force"].iter().any(|on| on.eq_ignore_ascii_case(value))
            }
        }
    }
}

/// All settings, in the order in which the server reads them.
#[derive(Debug, Clone, Default)]
pub(super) struct Cnf {
    pub(super) settings: Vec<Setting>,
    pub(super) files: Vec<PathBuf>,
    pub(super) findings: Vec<Finding>,
    /// The server's version, for example `10.11`. Some groups have it in their names.
    version: String,
}

impl Cnf {
    /// Reads these files one after the other.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn read(paths: &[PathBuf], version: &str) -> Result<Cnf, String> {
        let mut cnf = Cnf { version: version.to_owned(), ..Cnf::default() };
        for path in paths {
            let text = std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
            if is_writable_for_all(path) {
                cnf.files.push(path.clone());
                let text =
                    "is writable for everybody, so the server ignores the whole file: set its mode to 0644"
                        .to_owned();
                let (file, line) = (Some(path.clone()), Some(1));
                cnf.findings.push(Finding {
                    level: Level::Unwise,
                    file,
                    line,
                    option: "(file)".into(),
                    text,
                });
                continue;
            }
            cnf.take(path, &text, 0);
        }
        Ok(cnf)
    }

    /// The server's version as numbers. A part that is not a number is 0.
    pub(super) fn version(&self) -> (u32, u32) {
        let (major, minor) = self.version.split_once('.').unwrap_or((&self.version, ""));
        (major.parse().unwrap_or(0), minor.parse().unwrap_or(0))
    }

    /// The setting in force on the server.
    pub(super) fn get<'a>(&'a self, name: &str) -> Option<&'a Setting> {
        self.settings.iter().rev().find(|s| s.name.eq_ignore_ascii_case(name) && self.is_servers(&s.group))
    }

    /// All settings of this name that the server reads. The last one is in force.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Setting> {
        self.settings.iter().filter(move |s| s.name.eq_ignore_ascii_case(name) && self.is_servers(&s.group))
    }

    /// The setting in force in a group that the server does not read, such as `sst`.
    pub(super) fn get_in(&self, group: &str, name: &str) -> Option<&Setting> {
        self.settings.iter().rev().find(|s| s.name.eq_ignore_ascii_case(name) && s.group == group)
    }

    /// Whether the server reads this group.
    pub(super) fn is_servers(&self, group: &str) -> bool {
        if matches!(group, "mysqld" | "server" | "mariadb" | "mariadbd" | "galera" | "client-server") {
            return true;
        }
        let base = group.strip_suffix(&self.version).and_then(|base| base.strip_suffix('-'));
        matches!(base, Some("mysqld" | "mariadb" | "mariadbd"))
    }

    fn find(&mut self, level: Level, file: &Arc<PathBuf>, line: usize, option: &str, text: String) {
        let (file, line) = (Some(file.to_path_buf()), Some(line));
        self.findings.push(Finding { level, file, line, option: option.to_owned(), text });
    }

    fn take(&mut self, path: &Path, text: &[u8], depth: usize) {
        self.files.push(path.to_owned());
        let file = Arc::new(path.to_owned());
        let mut group: Option<String> = None;
        for (at, raw) in String::from_utf8_lossy(text).lines().enumerate() {
            let (number, line) = (at + 1, raw.trim_start());
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(directive) = line.strip_prefix('!') {
                self.directive(&file, number, directive.trim(), depth);
                continue;
            }
            if let Some(rest) = line.strip_prefix('[') {
                match rest.split_once(']') {
                    Some((name, _)) => group = Some(name.trim_end().to_owned()),
                    None => {
                        let text = "this group has no `]`: the server reports an error and does not start"
                            .to_owned();
                        self.find(Level::Refused, &file, number, line.trim_end(), text);
                        return;
                    }
                }
                continue;
            }
            let Some(group) = &group else {
                let text =
                    "this option precedes the first [group]: the server reports an error and does not start"
                        .to_owned();
                self.find(Level::Refused, &file, number, line.trim_end(), text);
                return;
            };
            self.settings.push(setting(line, group, &file, number));
        }
    }

    fn directive(&mut self, file: &Arc<PathBuf>, line: usize, text: &str, depth: usize) {
        let written = format!("!{text}");
        if depth >= MAX_DEPTH {
            let why = format!("includes are nested more than {MAX_DEPTH} deep: the server skips this one");
            return self.find(Level::Ignored, file, line, &written, why);
        }
        let Some((word, argument)) = text.split_once(char::is_whitespace) else { return };
        let argument = argument.trim();
        match word {
            "include" => self.include(file, line, &written, Path::new(argument), depth),
            "includedir" => {
                let entries = match std::fs::read_dir(argument) {
                    Ok(entries) => entries,
                    Err(e) => {
                        let why = format!("the directory cannot be read ({e}): the server does not start");
                        return self.find(Level::Refused, file, line, &written, why);
                    }
                };
                let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
                paths.retain(|path| path.extension().is_some_and(|e| e == "cnf"));
                paths.sort();
                for path in paths {
                    self.include(file, line, &written, &path, depth);
                }
            }
            _ => {}
        }
    }

    fn include(&mut self, file: &Arc<PathBuf>, line: usize, written: &str, path: &Path, depth: usize) {
        if is_writable_for_all(path) {
            let why = format!("{} is writable for everybody: the server ignores it", path.display());
            return self.find(Level::Ignored, file, line, written, why);
        }
        match std::fs::read(path) {
            Ok(text) => self.take(path, &text, depth + 1),
            Err(e) => {
                let why = format!("{} cannot be read ({e}): the server continues without it", path.display());
                self.find(Level::Ignored, file, line, written, why);
            }
        }
    }
}

/// Whether every account may write to this file. The server ignores such files.
fn is_writable_for_all(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o002 != 0)
}

/// The line without its comment. A comment begins with `#` outside of quotes.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        match (c, quote) {
            ('\'' | '"', None) if !escaped => quote = Some(c),
            (_, Some(open)) if c == open && !escaped => quote = None,
            ('#', None) => return &line[..at],
            _ => {}
        }
        escaped = quote.is_some() && c == '\\' && !escaped;
    }
    line
}

fn setting(line: &str, group: &str, file: &Arc<PathBuf>, number: usize) -> Setting {
    let line = without_comment(line);
    let (written, value) = match line.split_once('=') {
        Some((name, value)) => (name.trim_end(), Some(value.trim())),
        None => (line.trim_end(), None),
    };
    let open_quote = value.is_some_and(has_open_quote);
    let mut value = value.map(unquote);
    let mut name = written.replace('-', "_").to_ascii_lowercase();
    let mut loose = false;
    if let Some(rest) = name.strip_prefix("loose_") {
        (name, loose) = (rest.to_owned(), true);
    }
    let switch = |prefixes: [&str; 2]| prefixes.iter().find_map(|p| name.strip_prefix(p)).map(str::to_owned);
    // In these names, `skip_` is a part of the name, not a prefix.
    let whole = [
        "skip_name_resolve",
        "skip_networking",
        "skip_grant_tables",
        "skip_external_locking",
        "skip_show_database",
    ];
    if value.is_none() && !whole.contains(&name.as_str()) {
        if let Some(rest) = switch(["skip_", "disable_"]) {
            (name, value) = (rest, Some("OFF".to_owned()));
        } else if let Some(rest) = switch(["enable_", "enable_"]) {
            (name, value) = (rest, Some("ON".to_owned()));
        }
    }
    let (group, written) = (group.to_owned(), written.to_owned());
    Setting { group, name, written, value, loose, open_quote, file: file.clone(), line: number }
}

/// Whether the whole value is in quotes.
fn is_quoted(value: &str) -> bool {
    let by = |q: char| value.len() > 1 && value.starts_with(q) && value.ends_with(q);
    by('"') || by('\'')
}

/// Whether a closing quote is missing. An apostrophe inside the value does not count, unless it precedes a `#`, which is
/// then not a comment.
fn has_open_quote(value: &str) -> bool {
    let is_open_at_end = without_comment(&format!("{value}#")).len() > value.len();
    let quotes = ['"', '\''];
    is_open_at_end
        && !is_quoted(value)
        && (value.starts_with(quotes) || value.ends_with(quotes) || value.contains('#'))
}

/// The value without its quotes and escapes.
fn unquote(value: &str) -> String {
    let inner = if is_quoted(value) { &value[1..value.len() - 1] } else { value };
    let mut out = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some('b') => out.push('\u{8}'),
            Some('s') => out.push(' '),
            Some(c @ ('"' | '\'' | '\\')) => out.push(c),
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> (String, Option<String>) {
        let s = setting(line, "mysqld", &Arc::default(), 1);
        (s.name, s.value)
    }

    #[test]
    fn lines_are_read_as_the_server_reads_them() {
        let value = |text: &str| Some(text.to_owned());
        assert_eq!(one("wsrep-on = ON # yes"), ("wsrep_on".into(), value("ON")));
        assert_eq!(
            one("wsrep_provider_options=\"a=1; b='2#3'\""),
            ("wsrep_provider_options".into(), value("a=1; b='2#3'"))
        );
        assert_eq!(one("loose-wsrep_on"), ("wsrep_on".into(), None));
        assert_eq!(one("skip-innodb"), ("innodb".into(), value("OFF")));
        assert_eq!(one("skip-name-resolve"), ("skip_name_resolve".into(), None));
        assert_eq!(one("a = 'b\\sc\\\\d\\e'"), ("a".into(), value("b c\\d\\e")));
        assert_eq!(one("a ="), ("a".into(), value("")));
    }

    #[test]
    fn forgotten_quotes_are_found() {
        let open = |line: &str| setting(line, "mysqld", &Arc::default(), 1).open_quote;
        for line in ["a='b", "a=b\"", "a=\"b; c='d'", "a=it's # so", "a='b\" # c", "a='"] {
            assert!(open(line), "{line}");
        }
        for line in ["a='b' # it's", "a=it's so", "a=\"it's\"", "a", "a=", "a='b#c'", "a='b\\'", "a=x'1'"] {
            assert!(!open(line), "{line}");
        }
        assert_eq!(one("a='b # c"), ("a".into(), Some("'b # c".into())), "as the server takes it");
    }

    #[test]
    fn included_files_count_where_they_are_included() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/check/include");
        let main = std::env::temp_dir().join(format!("lockstep-check-{}.cnf", std::process::id()));
        let text = format!(
            "[mysqld]\nport=1\n!includedir {}\nserver_id=9\n!include /nonexistent.cnf\n",
            dir.display()
        );
        std::fs::write(&main, text).unwrap();
        let cnf = Cnf::read(std::slice::from_ref(&main), "10.11").unwrap();
        std::fs::remove_file(&main).unwrap();
        let names: Vec<String> =
            cnf.files.iter().skip(1).map(|f| f.file_name().unwrap().to_string_lossy().into_owned()).collect();
        assert_eq!(names, ["10-first.cnf", "20-second.cnf"], "in their order, and nothing but .cnf");
        assert_eq!(cnf.get("port").map(|s| (s.text(), s.line)), Some(("3", 3)));
        assert_eq!(cnf.get("server_id").map(Setting::text), Some("9"));
        assert_eq!(cnf.get("wsrep_on"), None, "groups of other versions are not read");
        assert_eq!(cnf.get("wsrep_slave_threads").map(Setting::text), Some("8"));
        assert_eq!(cnf.findings.len(), 1);
        assert!(cnf.findings[0].text.starts_with("/nonexistent.cnf cannot be read"));
    }

    #[test]
    fn world_writable_file_is_not_read() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("lockstep-check-open-{}.cnf", std::process::id()));
        std::fs::write(&path, "[mysqld]\nport=1\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        let cnf = Cnf::read(std::slice::from_ref(&path), "10.11").unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(cnf.get("port"), None);
        assert!(cnf.findings[0].text.contains("writable for everybody"), "{:?}", cnf.findings);
        assert_eq!(cnf.findings[0].level, Level::Unwise);
    }

    #[test]
    fn errors_that_stop_the_server_are_found() {
        for (text, line) in
            [("port=1\n", 1), ("[mysqld]\n[server\n", 2), ("[mysqld]\n!includedir /nonexistent\n", 2)]
        {
            let mut cnf = Cnf::default();
            cnf.take(Path::new("x.cnf"), text.as_bytes(), 0);
            assert_eq!(cnf.findings.len(), 1, "{text}");
            assert_eq!((cnf.findings[0].level, cnf.findings[0].line), (Level::Refused, Some(line)), "{text}");
        }
    }
}
