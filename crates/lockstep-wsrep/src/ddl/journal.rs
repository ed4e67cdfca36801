//! The DDL journal: the statements in total order that this database has begun and done, in a synced file beside it.
//!
//! A write-set is in InnoDB together with its seqno, or not at all. A DDL statement is not: its effects are on disk before
//! the position moves past it. If it touches no InnoDB table, the position may even be far behind. So each statement has
//! two marks: *begun* before the server executes it, and *done* after. After a crash a statement that is done is not
//! executed again, whatever the position is. The mark of a statement that is only begun tells how to find out
//! ([`crate::ddl::recovery`]).
//!
//! A mark refers to the tables that existed when it was made. With it the journal keeps the words of the statement: they
//! show whether a table may have been given another one's name since ([`DdlJournal::unclear_after`]). The journal also
//! records each table that is created again after a crash ([`crate::ddl::ctas_replay`]), and so shows which marks are
//! older than the table.
//!
//! The file is text: one line for each record, preceded by a checksum (docs/format-disk.md). It applies only to the
//! database in this directory. It names the inodes of files that every database has, so that it does not count for a
//! database that has been restored in its place.

use crate::ddl::recovery::{Relation, Rule, Words};
use crate::lifecycle::state_files::DatabaseId;
use crate::sync::lock;
use lockstep_node::core::{Gtid, Seqno, Uuid};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The file's name. State-transfer scripts keep files with this ending.
pub(crate) const FILE: &str = "lockstep.ddl.log";
const TITLE: &str = "lockstep statements 2";
/// A file without words, by an earlier version. It is read, and rewritten at the first mark.
const TITLE_WITHOUT_WORDS: &str = "lockstep statements 1";
/// A larger file is rewritten without its oldest marks.
const MAX_BYTES: u64 = 1 << 20;
/// The number of marks that are kept then: far more statements than a server executes before InnoDB writes its log.
const KEEP: usize = 4096;
/// The number of the newest marks whose words are kept then. Without its words a statement counts as one that may have
/// removed any table. Words take up to 2 KB, so that those of all marks would fill the file, and each mark rewrite it.
const KEEP_WORDS: usize = 256;

/// The most lines of one write: words and mark.
const LINES_AT_ONCE: usize = 2;

/// The state of a statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    /// Its execution has begun; how to find out whether it was executed.
    Begun(Rule),
    /// It has been executed.
    Done,
}

/// A table: schema and name.
pub(crate) type Table = (String, String);

/// A record of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Line {
    /// The state of the statement at this seqno.
    Mark(Mark),
    /// The words of the statement at this seqno.
    Words(Words),
    /// The write-set at this seqno creates this table again.
    Recreated(Table),
    /// This database may have received the write-sets up to this seqno before.
    Upto,
}

/// A table that was created again.
struct Recreated {
    seqno: Seqno,
    table: Table,
    /// The number of records before it.
    age: u64,
}

#[derive(Default)]
struct Inner {
    /// `None` until the first write.
    file: Option<File>,
    bytes: u64,
    history: Uuid,
    /// The number of records written, including those that have been dropped.
    records: u64,
    /// Each with its age: the number of records before it.
    marks: BTreeMap<Seqno, (Mark, u64)>,
    /// Of the statements with a mark; of none that an earlier version has marked.
    words: BTreeMap<Seqno, Words>,
    recreated: Vec<Recreated>,
    upto: Option<(Seqno, u64)>,
}

/// See the module.
pub(crate) struct DdlJournal {
    dir: PathBuf,
    inner: Mutex<Inner>,
}

impl DdlJournal {
    /// Reads the file. The text in the result is a warning: the reason why the file's content is ignored.
    ///
    /// # Errors
    /// The file exists and cannot be read or written: its name, the cause, and the remedy.
    pub(crate) fn open(dir: &Path) -> Result<(DdlJournal, Option<String>), String> {
        DdlJournal::open_in(dir).map_err(|error| {
            let path = dir.join(FILE);
            let remedy = crate::lifecycle::state_files::remedy(&error, &path);
            format!("cannot open {}, the journal of DDL statements: {error}{remedy}", path.display())
        })
    }

    fn open_in(dir: &Path) -> io::Result<(DdlJournal, Option<String>)> {
        let path = dir.join(FILE);
        let text = match std::fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let mut inner = Inner::default();
        let warning = inner.load(&text, DatabaseId::of(dir)).err();
        let is_old = text.lines().next().is_some_and(|first| first.contains(TITLE_WITHOUT_WORDS));
        if warning.is_none() && inner.records > 0 && !is_old {
            let file = OpenOptions::new().write(true).custom_flags(libc::O_CLOEXEC).open(&path)?;
            // A torn last line was never synced: the next record overwrites it.
            file.set_len(inner.bytes)?;
            inner.file = Some(file);
        } else if warning.is_some() || inner.records == 0 {
            inner = Inner::default();
        }
        let warning = warning.map(|why| format!("{} is ignored: {why}", path.display()));
        Ok((DdlJournal { dir: dir.to_owned(), inner: Mutex::new(inner) }, warning))
    }

    /// The server executes the statement next.
    pub(crate) fn begun(&self, at: Gtid, rule: Rule, words: Words) -> io::Result<()> {
        self.write(at, [Line::Words(words), Line::Mark(Mark::Begun(rule))])
    }

    /// The server has executed the statement. No effect if it has no mark: the journal has been cleared meanwhile.
    pub(crate) fn done(&self, at: Gtid) -> io::Result<()> {
        match self.of(at) {
            Some(_) => self.write(at, [Line::Mark(Mark::Done)]),
            None => Ok(()),
        }
    }

    /// The write-set at this seqno replaces this table next.
    pub(crate) fn recreated(&self, at: Gtid, table: Table) -> io::Result<()> {
        self.write(at, [Line::Recreated(table)])
    }

    /// The tables that write-sets below `at` have created again since the statement at `at` got its mark.
    pub(crate) fn created_since(&self, at: Gtid) -> Vec<Table> {
        let inner = lock(&self.inner);
        let Some(&(_, age)) = inner.marks.get(&at.seqno).filter(|_| inner.history == at.uuid) else {
            return Vec::new();
        };
        let since = inner.recreated.iter().filter(|table| table.age > age && table.seqno < at.seqno);
        since.map(|table| table.table.clone()).collect()
    }

    /// The first statement after `at` that may have removed this table, or given its name to another one. The table of that
    /// name is then not the one that the write-set at `at` made. A statement that changes this table alone does not count.
    /// Nor does one that was begun only and has the same effect when it is repeated.
    pub(crate) fn unclear_after(&self, at: Gtid, table: &Table) -> Option<Seqno> {
        let inner = lock(&self.inner);
        if inner.history != at.uuid {
            return None;
        }
        let mut later = inner.marks.range(at.seqno + 1..);
        later.find_map(|(&seqno, &(mark, _))| {
            let relation = inner
                .words
                .get(&seqno)
                .map_or(Relation::Unclear, |words| words.relation(std::slice::from_ref(table)));
            let unclear = relation == Relation::Unclear && mark != Mark::Begun(Rule::Repeatable);
            unclear.then_some(seqno)
        })
    }

    /// This database may have received the write-sets up to here before.
    pub(crate) fn expect(&self, upto: Gtid) -> io::Result<()> {
        self.write(upto, [Line::Upto])
    }

    /// The last value of [`DdlJournal::expect`], even of an earlier process.
    pub(crate) fn expected(&self) -> Option<Gtid> {
        let inner = lock(&self.inner);
        inner.upto.map(|(seqno, _)| Gtid { uuid: inner.history, seqno })
    }

    /// The state of the statement at this seqno; `None` if it has no mark.
    pub(crate) fn of(&self, at: Gtid) -> Option<Mark> {
        let inner = lock(&self.inner);
        (inner.history == at.uuid).then(|| inner.marks.get(&at.seqno).map(|mark| mark.0)).flatten()
    }

    /// The history of all marks; `None` without marks.
    pub(crate) fn history(&self) -> Option<Uuid> {
        let inner = lock(&self.inner);
        (!inner.marks.is_empty()).then_some(inner.history)
    }

    /// The statement that was being executed when the server was killed.
    pub(crate) fn open_one(&self) -> Option<(Gtid, Rule)> {
        let inner = lock(&self.inner);
        match inner.marks.last_key_value() {
            Some((&seqno, &(Mark::Begun(rule), _))) => Some((Gtid { uuid: inner.history, seqno }, rule)),
            _ => None,
        }
    }

    /// Removes the file: the database is about to be replaced, or differs from the cluster's.
    pub(crate) fn forget(&self) -> io::Result<()> {
        let mut inner = lock(&self.inner);
        *inner = Inner::default();
        match std::fs::remove_file(self.dir.join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(self.with_path(error)),
            Ok(()) => File::open(&self.dir)?.sync_all(),
        }
    }

    /// Writes the records at once, in this order.
    fn write<const N: usize>(&self, at: Gtid, entries: [Line; N]) -> io::Result<()> {
        let mut inner = lock(&self.inner);
        if inner.history != at.uuid {
            *inner = Inner { history: at.uuid, ..Inner::default() };
        }
        let text: String = entries.iter().map(|entry| line(&record(at, entry))).collect();
        for entry in entries {
            inner.note(at.seqno, entry);
        }
        let result = match inner.file.is_none() || inner.bytes > MAX_BYTES {
            true => self.rewrite(&mut inner),
            false => inner.append(&text),
        };
        if result.is_err() {
            // Its content is unknown now: the next record starts a new file.
            inner.file = None;
        }
        result.map_err(|error| self.with_path(error))
    }

    /// Writes all records that are still needed to a new file.
    fn rewrite(&self, inner: &mut Inner) -> io::Result<()> {
        while inner.marks.len() > KEEP {
            inner.marks.pop_first();
        }
        let Inner { marks, words, .. } = &mut *inner;
        let oldest = marks.keys().nth_back(KEEP_WORDS - 1).copied();
        words.retain(|seqno, _| Some(*seqno) >= oldest && marks.contains_key(seqno));
        let mut text = line(&format!("{TITLE} {}", DatabaseId::of(&self.dir)));
        for (seqno, entry) in inner.needed() {
            text.push_str(&line(&record(Gtid { uuid: inner.history, seqno }, &entry)));
        }
        let (path, draft) = (self.dir.join(FILE), self.dir.join("lockstep.ddl.new.log"));
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_CLOEXEC)
            .open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&draft, &path)?;
        File::open(&self.dir)?.sync_all()?;
        inner.file = Some(file);
        inner.bytes = text.len() as u64;
        Ok(())
    }

    fn with_path(&self, error: io::Error) -> io::Error {
        let text = format!(
            "cannot write {}: {error}; if this server crashes in the statement, the statement is executed again",
            self.dir.join(FILE).display()
        );
        io::Error::new(error.kind(), text)
    }
}

impl Inner {
    fn note(&mut self, seqno: Seqno, entry: Line) {
        let age = self.records;
        self.records += 1;
        match entry {
            Line::Mark(mark) => {
                self.marks.insert(seqno, (mark, age));
            }
            Line::Words(words) => {
                self.words.insert(seqno, words);
            }
            Line::Recreated(table) => self.recreated.push(Recreated { seqno, table, age }),
            Line::Upto => self.upto = Some((seqno, age)),
        }
    }

    /// The records that are still needed, in the order in which they were made. A table that was created again is needed
    /// while an older mark of a later statement exists.
    fn needed(&mut self) -> Vec<(Seqno, Line)> {
        let marks = &self.marks;
        self.recreated.retain(|table| marks.range(table.seqno..).any(|(_, mark)| mark.1 < table.age));
        let words = self.words.iter().filter_map(|(&seqno, words)| {
            // Before its mark: a mark never has the words of another statement, nor, after a torn write, none.
            let (_, age) = marks.get(&seqno)?;
            Some((*age, seqno, Line::Words(words.clone())))
        });
        let marks = marks.iter().map(|(&seqno, &(mark, age))| (age, seqno, Line::Mark(mark)));
        let tables =
            self.recreated.iter().map(|table| (table.age, table.seqno, Line::Recreated(table.table.clone())));
        let upto = self.upto.iter().map(|&(seqno, age)| (age, seqno, Line::Upto));
        let mut all: Vec<_> = words.chain(marks).chain(tables).chain(upto).collect();
        all.sort_by_key(|(age, ..)| *age);
        all.into_iter().map(|(_, seqno, entry)| (seqno, entry)).collect()
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let Some(file) = &self.file else { return Ok(()) };
        file.write_all_at(line.as_bytes(), self.bytes)?;
        file.sync_data()?;
        self.bytes += line.len() as u64;
        Ok(())
    }

    /// Loads the records of a file.
    ///
    /// # Errors
    /// The reason why the file does not count.
    fn load(&mut self, text: &str, database: DatabaseId) -> Result<(), String> {
        if text.is_empty() {
            return Ok(());
        }
        let mut lines = text.split_inclusive('\n').peekable();
        let mut first = true;
        while let Some(raw) = lines.next() {
            let Some(content) = unline(raw) else {
                // A write that never finished: its last line has no end, or the page before its last one is missing. Any
                // other line was complete, and has been damaged.
                let is_cut = !raw.ends_with('\n') && lines.peek().is_none();
                let lacks_page = raw.contains('\0') && lines.clone().count() < LINES_AT_ONCE;
                if is_cut || lacks_page {
                    return Ok(());
                }
                return Err("one of its lines is damaged".into());
            };
            self.bytes += raw.len() as u64;
            if std::mem::take(&mut first) {
                let of = content.strip_prefix(TITLE).or_else(|| content.strip_prefix(TITLE_WITHOUT_WORDS));
                let of = of.ok_or("another version wrote it")?.trim();
                // Earlier versions wrote no times.
                if of != database.to_string() && of != database.without_times() {
                    return Err("it belongs to another database that was in this directory before".into());
                }
                continue;
            }
            let (at, entry) = parse(content).ok_or("one of its lines has an unknown format")?;
            if at.uuid != self.history {
                *self = Inner { history: at.uuid, bytes: self.bytes, ..Inner::default() };
            }
            self.note(at.seqno, entry);
        }
        Ok(())
    }
}

/// The text of a record.
pub(crate) fn record(at: Gtid, entry: &Line) -> String {
    match entry {
        Line::Mark(Mark::Begun(rule)) => format!("begun {at} {rule}"),
        Line::Mark(Mark::Done) => format!("done {at}"),
        Line::Words(words) => format!("words {at} {words}"),
        Line::Recreated((schema, name)) => format!("anew {at} {} {}", hex(schema), hex(name)),
        Line::Upto => format!("upto {at}"),
    }
}

/// Encodes a name, which may contain any character.
fn hex(name: &str) -> String {
    name.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<String> {
    let digits = text.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).ok());
    let bytes: Option<Vec<u8>> = digits.map(|two| u8::from_str_radix(two?, 16).ok()).collect();
    String::from_utf8(bytes?).ok()
}

/// Parses the text of a record.
pub(crate) fn parse(text: &str) -> Option<(Gtid, Line)> {
    let mut words = text.splitn(3, ' ');
    let (what, at, rest) = (words.next()?, words.next()?, words.next());
    let (uuid, seqno) = at.rsplit_once(':')?;
    let at = Gtid { uuid: Uuid::parse(uuid)?, seqno: seqno.parse().ok()? };
    match (what, rest) {
        ("done", None) => Some((at, Line::Mark(Mark::Done))),
        ("begun", Some(rule)) => Some((at, Line::Mark(Mark::Begun(Rule::parse(rule)?)))),
        ("words", Some(words)) => Some((at, Line::Words(Words::parse(words)?))),
        ("upto", None) => Some((at, Line::Upto)),
        ("anew", Some(names)) => {
            let (schema, name) = names.split_once(' ')?;
            Some((at, Line::Recreated((unhex(schema)?, unhex(name)?))))
        }
        _ => None,
    }
}

/// The line of a record: its checksum and its text.
fn line(text: &str) -> String {
    format!("{:08x} {text}\n", crc32c::crc32c(text.as_bytes()))
}

/// The text in a line; `None` if it is torn or damaged.
pub(crate) fn unline(raw: &str) -> Option<&str> {
    let (sum, text) = raw.strip_suffix('\n')?.split_once(' ')?;
    let sum = u32::from_str_radix(sum, 16).ok()?;
    (sum == crc32c::crc32c(text.as_bytes())).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let path = std::env::temp_dir().join(format!("lockstep-marks-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(path.join("mysql")).unwrap();
            std::fs::write(path.join("ibdata1"), "x").unwrap();
            Dir(path)
        }

        fn open(&self) -> (DdlJournal, Option<String>) {
            DdlJournal::open(&self.0).unwrap()
        }

        fn file(&self) -> PathBuf {
            self.0.join(FILE)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn at(seqno: Seqno) -> Gtid {
        Gtid { uuid: Uuid([7; 16]), seqno }
    }

    const COMPARE: Rule = Rule::Compare { print: 0xfeed };

    #[test]
    fn open_error_names_file() {
        let dir = Dir::new("unreadable");
        std::fs::create_dir(dir.file()).unwrap();
        let error = DdlJournal::open(&dir.0).err().unwrap();
        assert!(error.starts_with(&format!("cannot open {}, ", dir.file().display())), "{error}");
    }

    #[test]
    fn marks_are_read_back() {
        let dir = Dir::new("back");
        let (marks, warning) = dir.open();
        assert_eq!((warning, marks.open_one(), marks.of(at(1))), (None, None, None));
        assert_eq!(marks.history(), None);
        marks.begun(at(5), Rule::Repeatable, Words::default()).unwrap();
        marks.done(at(5)).unwrap();
        marks.begun(at(9), COMPARE, Words::default()).unwrap();
        drop(marks);
        for _ in 0..2 {
            let (marks, warning) = dir.open();
            assert_eq!(marks.history(), Some(at(0).uuid));
            assert_eq!(warning, None);
            assert_eq!(marks.of(at(5)), Some(Mark::Done));
            assert_eq!(marks.of(at(9)), Some(Mark::Begun(COMPARE)));
            assert_eq!(marks.of(at(6)), None);
            assert_eq!(marks.of(Gtid { uuid: Uuid([8; 16]), seqno: 5 }), None, "of another history");
            assert_eq!(marks.open_one(), Some((at(9), COMPARE)));
        }
        let (marks, _) = dir.open();
        marks.done(at(9)).unwrap();
        assert_eq!(marks.open_one(), None);
        assert_eq!(dir.open().0.of(at(9)), Some(Mark::Done));
    }

    #[test]
    fn torn_last_mark_is_dropped_and_damage_voids_all() {
        let dir = Dir::new("torn");
        let (marks, _) = dir.open();
        marks.begun(at(5), Rule::Repeatable, Words::default()).unwrap();
        marks.done(at(5)).unwrap();
        marks.begun(at(9), Rule::Repeatable, Words::default()).unwrap();
        let whole = std::fs::read(dir.file()).unwrap();
        let last = whole[..whole.len() - 1].iter().rposition(|b| *b == b'\n').unwrap() + 1;
        for cut in last..whole.len() {
            std::fs::write(dir.file(), &whole[..cut]).unwrap();
            let (marks, warning) = dir.open();
            assert_eq!((warning, marks.open_one()), (None, None), "cut at {cut}");
            assert_eq!(marks.of(at(5)), Some(Mark::Done));
        }
        // A mark written after the cut is read back.
        dir.open().0.begun(at(10), COMPARE, Words::default()).unwrap();
        assert_eq!(dir.open().0.open_one(), Some((at(10), COMPARE)));
        for byte in 0..last {
            let mut damaged = whole.clone();
            damaged[byte] ^= 1;
            std::fs::write(dir.file(), &damaged).unwrap();
            let (marks, warning) = dir.open();
            assert!(warning.is_some(), "byte {byte}");
            assert_eq!(marks.of(at(5)), None);
        }
    }

    #[test]
    fn marks_of_other_database_are_ignored() {
        let dir = Dir::new("other");
        dir.open().0.begun(at(5), Rule::Repeatable, Words::default()).unwrap();
        std::fs::rename(dir.0.join("ibdata1"), dir.0.join("old")).unwrap();
        std::fs::write(dir.0.join("ibdata1"), "restored").unwrap();
        let (marks, warning) = dir.open();
        assert!(warning.unwrap().contains("another database"));
        assert_eq!(marks.of(at(5)), None);
        marks.begun(at(6), Rule::Repeatable, Words::default()).unwrap();
        assert_eq!(dir.open().0.of(at(6)), Some(Mark::Begun(Rule::Repeatable)));
    }

    #[test]
    fn recreated_table_is_reported_for_older_marks_only() {
        let dir = Dir::new("anew");
        let (marks, _) = dir.open();
        let table = |name: &str| ("a schema".to_string(), format!("{name}\n\u{e9}"));
        let executed = |marks: &DdlJournal, seqno| {
            marks
                .begun(at(seqno), Rule::Repeatable, Words::default())
                .and_then(|()| marks.done(at(seqno)))
                .unwrap();
        };
        executed(&marks, 3);
        marks.begun(at(7), COMPARE, Words::default()).unwrap();
        executed(&marks, 8);
        marks.expect(at(9)).unwrap();
        marks.recreated(at(5), table("t")).unwrap();
        // Executed again: this mark refers to the new table.
        marks.begun(at(7), Rule::Repeatable, Words::default()).unwrap();
        let check = |marks: &DdlJournal| {
            assert_eq!(marks.created_since(at(3)), [], "it came before the table");
            assert_eq!(marks.created_since(at(7)), []);
            assert_eq!(marks.created_since(at(8)), [table("t")]);
            assert_eq!(marks.created_since(at(6)), [], "without a mark");
            assert_eq!(marks.expected(), Some(at(9)));
        };
        check(&marks);
        let (marks, warning) = dir.open();
        assert_eq!(warning, None);
        check(&marks);
        // Rewritten, in the same order.
        lock(&marks.inner).file = None;
        executed(&marks, 2);
        check(&marks);
        check(&dir.open().0);
        marks.done(at(8)).unwrap();
        assert_eq!(
            lock(&marks.inner).needed().len(),
            9,
            "four marks and their words: none is older than the table"
        );
        marks.forget().unwrap();
        assert_eq!((marks.created_since(at(8)), dir.open().0.expected()), (vec![], None));
    }

    /// The words of a statement in schema `d`.
    fn words(sql: &str) -> Words {
        Words::of_sql(sql, "d")
    }

    #[test]
    fn later_statement_that_may_move_table_is_reported() {
        let executed = |marks: &DdlJournal, seqno, rule, sql: &str| {
            marks.begun(at(seqno), rule, words(sql)).and_then(|()| marks.done(at(seqno))).unwrap();
        };
        let table = ("d".to_owned(), "T".to_owned());
        let dir = Dir::new("later");
        let (marks, _) = dir.open();
        executed(&marks, 4, COMPARE, "RENAME TABLE t TO s");
        executed(&marks, 6, COMPARE, "ALTER TABLE t ADD INDEX (a)");
        executed(&marks, 7, Rule::Repeatable, "GRANT SELECT ON d.* TO u");
        marks.begun(at(8), Rule::Repeatable, words("DROP TABLE t")).unwrap();
        assert_eq!(marks.unclear_after(at(5), &table), None);
        assert_eq!(marks.unclear_after(at(3), &table), Some(4));
        // The statement that removed it has been executed, and another table has got its name.
        marks.done(at(8)).unwrap();
        executed(&marks, 9, COMPARE, "RENAME TABLE aria TO t");
        let check = |marks: &DdlJournal| {
            assert_eq!(marks.unclear_after(at(5), &table), Some(8));
            assert_eq!(marks.unclear_after(at(8), &table), Some(9));
            assert_eq!(marks.unclear_after(at(9), &table), None);
            assert_eq!(marks.unclear_after(at(5), &("d".into(), "other".into())), None);
            assert_eq!(marks.unclear_after(Gtid { uuid: Uuid([8; 16]), seqno: 5 }, &table), None);
        };
        check(&marks);
        let (marks, warning) = dir.open();
        assert_eq!(warning, None);
        check(&marks);
        lock(&marks.inner).file = None;
        marks.expect(at(9)).unwrap();
        check(&marks);
        check(&dir.open().0);
    }

    #[test]
    fn write_that_lacks_its_first_page_is_dropped() {
        let dir = Dir::new("page");
        let (marks, _) = dir.open();
        marks.begun(at(5), COMPARE, words("DROP TABLE t")).and_then(|()| marks.done(at(5))).unwrap();
        let begins = std::fs::metadata(dir.file()).unwrap().len() as usize;
        marks.begun(at(6), COMPARE, words("DROP TABLE s")).unwrap();
        let mut bytes = std::fs::read(dir.file()).unwrap();
        bytes[begins..begins + 20].fill(0);
        std::fs::write(dir.file(), &bytes).unwrap();
        let (marks, warning) = dir.open();
        assert_eq!((warning, marks.of(at(5)), marks.of(at(6))), (None, Some(Mark::Done), None));
    }

    #[test]
    fn rewritten_file_has_words_of_newest_marks_only() {
        let dir = Dir::new("words");
        let (marks, _) = dir.open();
        lock(&marks.inner).history = at(0).uuid;
        let sql = "CREATE TABLE sbtest1 (id INT NOT NULL AUTO_INCREMENT, k INT DEFAULT 0, c CHAR(120), PRIMARY KEY (id))";
        for seqno in 0..KEEP_WORDS as Seqno + 10 {
            lock(&marks.inner).note(seqno, Line::Words(words(sql)));
            lock(&marks.inner).note(seqno, Line::Mark(Mark::Done));
        }
        marks.begun(at(1000), COMPARE, words(sql)).unwrap();
        let inner = lock(&marks.inner);
        assert_eq!((inner.words.len(), inner.marks.len()), (KEEP_WORDS, KEEP_WORDS + 11));
        let of_words = inner.bytes / KEEP_WORDS as u64 * KEEP_WORDS as u64;
        assert!(of_words + KEEP as u64 * 64 < MAX_BYTES / 2, "the next mark does not rewrite it: {of_words}");
    }

    #[test]
    fn file_of_version_without_words_is_read_and_rewritten() {
        let dir = Dir::new("without-words");
        let (marks, _) = dir.open();
        marks
            .begun(at(5), COMPARE, words("ALTER TABLE t ADD a INT"))
            .and_then(|()| marks.done(at(5)))
            .unwrap();
        drop(marks);
        let text = std::fs::read_to_string(dir.file()).unwrap();
        let former = text.lines().map(|line| &line[9..]).filter(|text| !text.starts_with("words "));
        let database = DatabaseId::of(&dir.0);
        let former: String = former
            .map(|text| text.replace(&database.to_string(), &database.without_times()))
            .map(|text| line(&text.replace(TITLE, TITLE_WITHOUT_WORDS)))
            .collect();
        std::fs::write(dir.file(), former).unwrap();
        let (marks, warning) = dir.open();
        assert_eq!((warning, marks.of(at(5))), (None, Some(Mark::Done)));
        let table = ("d".to_owned(), "t".to_owned());
        assert_eq!(marks.unclear_after(at(4), &table), Some(5), "nobody knows what it did");
        marks.begun(at(6), COMPARE, words("ALTER TABLE t ADD b INT")).unwrap();
        let (marks, warning) = dir.open();
        assert_eq!(
            (warning, marks.of(at(5)), marks.open_one()),
            (None, Some(Mark::Done), Some((at(6), COMPARE)))
        );
        assert_eq!(marks.unclear_after(at(5), &table), None);
        assert!(std::fs::read_to_string(dir.file()).unwrap().contains(TITLE));
    }

    #[test]
    fn forgotten_marks_are_gone_and_file_stays_small() {
        let dir = Dir::new("forget");
        let (marks, _) = dir.open();
        marks.begun(at(5), Rule::Repeatable, Words::default()).unwrap();
        marks.forget().unwrap();
        marks.forget().unwrap();
        assert_eq!((marks.of(at(5)), dir.open().0.of(at(5))), (None, None));
        // The statement during which the journal was cleared ends.
        marks.done(at(5)).unwrap();
        assert!(!dir.file().exists() && marks.of(at(5)).is_none());
        for seqno in 0..10_000 {
            let mut inner = lock(&marks.inner);
            inner.history = at(0).uuid;
            inner.note(seqno, Line::Mark(Mark::Done));
        }
        marks.begun(at(10_000), Rule::Repeatable, Words::default()).unwrap();
        let marks = dir.open().0;
        assert_eq!(marks.of(at(10_000 - KEEP as i64)), None);
        assert_eq!(marks.of(at(10_001 - KEEP as i64)), Some(Mark::Done));
    }
}
