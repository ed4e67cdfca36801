//! Writes the groups of an archive between two positions to binlog files.

use super::index::Indexed;
use super::manifest::{Head, Manifest, Mark, Part};
use super::store::Store;
use super::{
    ArchiveError, file_name, folders, manifest_key, read_head, read_index, read_manifest, read_part,
};
use crate::event::{
    Checksum, EventWriter, FormatDescription, Group, Header, MAGIC, Query, Stamp, kind, split,
};
use crate::gtid::StreamState;
use crate::library::{Visibility, Writer};
use crate::stream::first_words;
use std::path::Path;

/// Groups are written together up to this size.
const BUFFER_BYTES: usize = 1 << 20;
/// How often a part that was replaced while the archive is read is looked for again.
const REPLACED_MAX: usize = 20;

/// The last group to restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The last one up to this seqno.
    Seqno(u64),
    /// The last one before the first entry of the log whose time is later than this, in µs since 1970, as `apply.until`.
    Time(u64),
    /// The last one in the archive.
    Latest,
}

/// The result of [`restore`].
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Restored {
    /// The files, in order; none if there is no group between the two positions.
    pub files: Vec<String>,
    /// How many groups.
    pub groups: u64,
    /// The last group.
    pub last: Option<Mark>,
    /// The first group after the target, if the archive has it.
    pub next: Option<Mark>,
    /// The archive is complete up to here.
    pub complete: Mark,
    /// Statements that failed on the cluster's servers in the same way: seqno and error. They are written so that a client
    /// goes on after that error.
    pub failed: Vec<(u64, u16)>,
    /// Statements that failed as well, and cannot be written in that form. They are left out.
    pub by_hand: Vec<ByHand>,
}

/// A statement that failed on the cluster's servers, perhaps after a part of its effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ByHand {
    /// Its seqno.
    pub seqno: u64,
    /// Its error.
    pub code: u16,
    /// Its text.
    pub statement: String,
}

/// How much of an archive was read, for people who wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The file.
    pub file: String,
    /// Its archived bytes.
    pub bytes: u64,
    /// It ends here.
    pub complete: Mark,
}

/// Writes the groups after the seqno `after`, up to the target, to binlog files in the directory `into`, which must have
/// none. They are numbered from 1, so that a shell lists them in order. All checksums are compared. `report` is called for
/// each file of the archive.
///
/// # Errors
/// [`ArchiveError::Refused`] if the archive does not reach from `after` to the target, or `after` lies behind the target; any
/// other if the archive is damaged, or the files cannot be written.
pub fn restore(
    store: &dyn Store,
    after: u64,
    to: Target,
    into: &Path,
    report: &mut dyn FnMut(&Found),
) -> Result<Restored, ArchiveError> {
    let head = read_head(store)?
        .ok_or_else(|| ArchiveError::Refused(format!("there is no archive in {}", store.name())))?;
    let archive = Archive { store, head };
    let mut span = Span { after, to, begin: None };
    if let Target::Seqno(seqno) = to
        && seqno < after
    {
        return Err(archive.begins_later(after, &format!("after GTID {}", archive.head.gtid(seqno))));
    }
    let numbers = folders(store, &archive.head.files)?;
    let at = archive.first_file(&numbers, after)?;
    for number in numbers[..at].iter().rev() {
        if let Some(last) = archive.manifest(*number)?.and_then(|manifest| manifest.last_group()) {
            archive.pass_begin(&mut span, last)?;
            break;
        }
    }
    let mut out = Output::open(into, &archive.head, after)?;
    let mut restored = Restored::default();
    let mut number = numbers[at];
    loop {
        let Some(manifest) = archive.manifest(number)? else {
            // An archiver that was killed has begun the file. But there must be no later one.
            if archive.has_later(number)? {
                return Err(archive.gap(number));
            }
            break;
        };
        report(&Found { file: archive.name(number), bytes: manifest.end(), complete: manifest.complete });
        let manifest = archive.copy(manifest, &mut span, &mut out, &mut restored)?;
        restored.complete = manifest.complete;
        let is_reached = match to {
            Target::Seqno(seqno) => manifest.complete.seqno >= seqno,
            Target::Time(time) => manifest.complete.clock > time,
            Target::Latest => false,
        };
        if restored.next.is_some() || is_reached {
            if manifest.next.is_none() && after > manifest.complete.seqno {
                return Err(archive.ends_before(manifest.complete, after));
            }
            return archive.finish(&span, out, restored);
        }
        match manifest.next {
            Some(next) => number = next,
            None => break,
        }
    }
    if after > restored.complete.seqno {
        return Err(archive.ends_before(restored.complete, after));
    }
    if to != Target::Latest {
        return Err(archive.too_short(restored.complete, to));
    }
    archive.finish(&span, out, restored)
}

/// The groups to restore.
struct Span {
    after: u64,
    to: Target,
    /// The last group up to `after`, as far as it is known.
    begin: Option<Mark>,
}

impl Span {
    fn is_behind(&self, group: Mark) -> bool {
        match self.to {
            Target::Seqno(seqno) => group.seqno > seqno,
            Target::Time(time) => group.clock > time,
            Target::Latest => false,
        }
    }
}

struct Archive<'a> {
    store: &'a dyn Store,
    head: Head,
}

impl Archive<'_> {
    fn name(&self, number: u64) -> String {
        file_name(&self.head.files, number)
    }

    fn manifest(&self, number: u64) -> Result<Option<Manifest>, ArchiveError> {
        Ok(read_manifest(self.store, &self.head.files, number)?.map(|(manifest, _)| manifest))
    }

    fn gap(&self, number: u64) -> ArchiveError {
        ArchiveError::Refused(format!(
            "{} is missing in the archive in {}, although later files are there",
            self.name(number),
            self.store.name()
        ))
    }

    /// Whether a file after this one has a manifest, and this one has none.
    fn has_later(&self, number: u64) -> Result<bool, ArchiveError> {
        for later in folders(self.store, &self.head.files)?.into_iter().filter(|later| *later > number) {
            if self.manifest(later)?.is_some() {
                // An archiver may have put both meanwhile.
                return Ok(self.manifest(number)?.is_none());
            }
        }
        Ok(false)
    }

    /// Passes a group that the data have already.
    fn pass_begin(&self, span: &mut Span, group: Mark) -> Result<(), ArchiveError> {
        if span.is_behind(group) {
            let (gtid, time) = (self.head.gtid(group.seqno), clock_text(group.clock));
            return Err(
                self.begins_later(span.after, &format!("with GTID {gtid} of {time}, after the target"))
            );
        }
        span.begin = Some(group);
        Ok(())
    }

    fn begins_later(&self, after: u64, why: &str) -> ArchiveError {
        let gtid = self.head.gtid(after);
        ArchiveError::Refused(format!("the data are at GTID {gtid} already, {why}: use an older backup"))
    }

    fn ends_before(&self, complete: Mark, after: u64) -> ArchiveError {
        ArchiveError::Refused(format!(
            "the archive in {} is complete up to GTID {} of {}, and the data are at GTID {} already: transactions between \
             the two may be missing. Wait until the archive has caught up, or use an older backup",
            self.store.name(),
            self.head.gtid(complete.seqno),
            clock_text(complete.clock),
            self.head.gtid(after)
        ))
    }

    fn finish(&self, span: &Span, mut out: Output, mut restored: Restored) -> Result<Restored, ArchiveError> {
        let is_time = matches!(span.to, Target::Time(_));
        if is_time && restored.last.is_none() && span.begin.is_none() && span.after > 0 {
            return Err(ArchiveError::Refused(format!(
                "the archive in {} does not have the time of GTID {} any more, which the data are at: it may be later \
                 than the target. Use an older backup, or name the last transaction by its GTID",
                self.store.name(),
                self.head.gtid(span.after)
            )));
        }
        out.finish()?;
        restored.files = out.files;
        Ok(restored)
    }

    /// Reads a part with its index. An archiver replaces a file's last part while it is small: then the manifest is read
    /// again.
    fn read(
        &self,
        manifest: &mut Manifest,
        at: usize,
    ) -> Result<(Part, Vec<Indexed>, Vec<u8>), ArchiveError> {
        let name = self.name(manifest.file);
        let key = manifest_key(&name);
        let mut attempts = 0;
        loop {
            let part = manifest.parts.get(at).cloned();
            let part = part.ok_or_else(|| ArchiveError::damaged(&key, "has fewer parts than before"))?;
            let read = read_index(self.store, &name, &part)
                .and_then(|groups| Ok((groups, read_part(self.store, &name, &part)?)));
            let missing = match read {
                Ok((groups, bytes)) => return Ok((part, groups, bytes)),
                Err(missing @ ArchiveError::Missing { .. }) if attempts < REPLACED_MAX => missing,
                Err(error) => return Err(error),
            };
            attempts += 1;
            match self.manifest(manifest.file)? {
                Some(now) if now == *manifest => return Err(missing),
                Some(now) if now.parts.get(..at) == manifest.parts.get(..at) => *manifest = now,
                Some(_) => return Err(ArchiveError::damaged(&key, "lists other parts than before")),
                None => return Err(missing),
            }
        }
    }

    fn too_short(&self, complete: Mark, to: Target) -> ArchiveError {
        let gtid = self.head.gtid(complete.seqno);
        let why = match to {
            Target::Seqno(seqno) => format!("and does not reach {}", self.head.gtid(seqno)),
            _ => "and has no later entry: nobody can tell whether transactions between the two are missing"
                .into(),
        };
        ArchiveError::Refused(format!(
            "the archive in {} is complete up to GTID {gtid} of {}, {why}. Restore --to {gtid} if that is enough",
            self.store.name(),
            clock_text(complete.clock)
        ))
    }

    /// The index of the file with the first group after this seqno: the last one that begins at or before it.
    fn first_file(&self, numbers: &[u64], after: u64) -> Result<usize, ArchiveError> {
        let before =
            |manifest: &Manifest| manifest.before.last(self.head.domain).map_or(0, |gtid| gtid.seqno);
        // Folders without a manifest are remains of a removal at the begin, or of a crash at the end.
        let (mut low, mut high) = (0, numbers.len());
        while low < high && self.manifest(numbers[low])?.is_none() {
            low += 1;
        }
        let Some(first) = numbers.get(low) else {
            return Err(ArchiveError::Refused(format!("the archive in {} is empty", self.store.name())));
        };
        let oldest = self.manifest(*first)?.map_or(0, |manifest| before(&manifest));
        if oldest > after {
            return Err(ArchiveError::Refused(format!(
                "the archive in {} begins after GTID {}, and the transactions after {} are needed: use a newer backup",
                self.store.name(),
                self.head.gtid(oldest),
                self.head.gtid(after)
            )));
        }
        // Invariant: the file at `low` begins at or before `after`; the one at `high`, if any, does not.
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match self.manifest(numbers[middle])? {
                Some(manifest) if before(&manifest) <= after => low = middle,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// Copies a file's groups of the span, and notes the first group after the target. Returns the file's newest manifest.
    fn copy(
        &self,
        mut manifest: Manifest,
        span: &mut Span,
        out: &mut Output,
        restored: &mut Restored,
    ) -> Result<Manifest, ArchiveError> {
        let name = self.name(manifest.file);
        let mut format = None;
        // A group may go on in the next part.
        let mut wanted = false;
        let mut next_part = 0;
        while let Some(listed) = manifest.parts.get(next_part) {
            let before = listed.groups.map(|(_, last)| last).filter(|last| last.seqno <= span.after);
            let is_needed = wanted || listed.groups.is_some() && before.is_none();
            if listed.begin > 0 && !is_needed {
                before.map_or(Ok(()), |last| self.pass_begin(span, last))?;
                next_part += 1;
                continue;
            }
            let (part, groups, bytes) = self.read(&mut manifest, next_part)?;
            next_part += 1;
            check_index(&part, &groups).map_err(|why| ArchiveError::damaged(&part.index_key(&name), why))?;
            let key = part.key(&name);
            let damaged = |why: &dyn std::fmt::Display| ArchiveError::damaged(&key, why);
            let mut at = 0;
            if part.begin == 0 {
                if !bytes.starts_with(&MAGIC) {
                    return Err(damaged(&"is not the begin of a binlog file"));
                }
                at = MAGIC.len();
            }
            let mut groups = groups.iter();
            while at < bytes.len() {
                let rest = &bytes[at..];
                let length = Header::parse(rest).map_err(|why| damaged(&why))?.length as usize;
                let event = rest.get(..length).ok_or_else(|| damaged(&"ends inside an event"))?;
                let (header, _) = split(event, Checksum::Crc32).map_err(|why| damaged(&why))?;
                match header.kind {
                    kind::FORMAT_DESCRIPTION => {
                        format = Some(FormatDescription::parse(event).map_err(|why| damaged(&why))?);
                    }
                    kind::GTID_LIST | kind::ROTATE => wanted = false,
                    kind::GTID => {
                        let begin = part.begin + at as u64;
                        let group = groups.next().filter(|group| group.begin == begin);
                        let group = group.ok_or_else(|| damaged(&"has other groups than its index"))?;
                        let mark = Mark { seqno: group.seqno, clock: group.clock };
                        wanted = group.seqno > span.after;
                        if !wanted {
                            self.pass_begin(span, mark)?;
                        } else if span.is_behind(mark) {
                            restored.next = Some(mark);
                            return Ok(manifest);
                        } else {
                            let format = format
                                .as_ref()
                                .ok_or_else(|| damaged(&"comes before a format description"))?;
                            out.begin_group(manifest.file, format, mark)?;
                            restored.groups += 1;
                            restored.last = Some(mark);
                        }
                    }
                    _ => {}
                }
                if wanted {
                    out.add(event, restored).map_err(|why| damaged(&why))?;
                }
                at += length;
            }
            if groups.next().is_some() {
                return Err(damaged(&"has fewer groups than its index"));
            }
        }
        match out.is_complete() {
            true => Ok(manifest),
            false => Err(ArchiveError::damaged(&name, "ends inside an event group")),
        }
    }
}

/// Whether the index is that of the part.
fn check_index(part: &Part, groups: &[Indexed]) -> Result<(), String> {
    let first = groups.first().map(|group| group.seqno);
    let last = groups.last().map(|group| Mark { seqno: group.seqno, clock: group.clock });
    match first.zip(last) == part.groups {
        true => Ok(()),
        false => Err("has other groups than the manifest says".into()),
    }
}

/// The files that are written.
struct Output {
    writer: Writer,
    /// The state before the first group.
    before: StreamState,
    /// Whole groups, and the one that is not complete yet, for the end of the current file.
    buffer: Option<EventWriter>,
    group: Group,
    /// The begin of a group of one statement, until the statement is seen.
    held: Vec<Vec<u8>>,
    seqno: u64,
    /// The archive's number of the current file.
    source: u64,
    /// The number of the current file.
    file: u64,
    files: Vec<String>,
}

impl Output {
    fn open(dir: &Path, head: &Head, after: u64) -> Result<Output, ArchiveError> {
        let writer = Writer::open(dir, &head.files, Visibility::Appended)?;
        if writer.end().is_some() {
            return Err(ArchiveError::Refused(format!(
                "there are binlog files in {} already: name an empty directory with --into",
                dir.display()
            )));
        }
        let before = match after {
            0 => StreamState::default(),
            after => StreamState::from_list(&[head.gtid(after)]),
        };
        Ok(Output {
            writer,
            before,
            buffer: None,
            group: Group::Outside,
            held: Vec::new(),
            seqno: 0,
            source: 0,
            file: 0,
            files: Vec::new(),
        })
    }

    fn is_complete(&self) -> bool {
        self.group == Group::Outside
    }

    /// The group with this mark follows, in this file of the archive.
    fn begin_group(
        &mut self,
        source: u64,
        format: &FormatDescription,
        mark: Mark,
    ) -> Result<(), ArchiveError> {
        self.seqno = mark.seqno;
        if self.source != source || self.buffer.as_ref().is_some_and(|b| b.len() >= BUFFER_BYTES) {
            self.flush()?;
        }
        if self.source != source {
            let file = self.file + 1;
            let stamp = Stamp { timestamp: format.timestamp, server_id: format.server_id };
            match self.writer.end() {
                None => self.writer.begin(file, format, &self.before)?,
                Some(_) => {
                    let before = self.writer.state_at_end().clone();
                    self.writer.cut(file, stamp, format, &before)?;
                }
            }
            (self.source, self.file) = (source, file);
            self.files.push(self.writer.library().file_name(file));
        }
        if self.buffer.is_none() {
            let end = self.writer.end().map_or(0, |end| end.offset);
            self.buffer = Some(EventWriter::at(end));
        }
        Ok(())
    }

    /// Adds an event of the group.
    fn add(&mut self, event: &[u8], restored: &mut Restored) -> Result<(), crate::codec::DecodeError> {
        let header = Header::parse(event)?;
        self.group.pass(header.kind, event, Checksum::Crc32)?;
        if self.group == Group::Standalone {
            self.held.push(event.to_vec());
            return Ok(());
        }
        let Some(buffer) = &mut self.buffer else { return Ok(()) };
        let held = std::mem::take(&mut self.held);
        let query = match header.kind {
            kind::QUERY => Some(Query::parse(event, Checksum::Crc32)?).filter(|query| query.error_code != 0),
            _ => None,
        };
        if let Some(query) = &query
            && !can_expect_error(query)
        {
            let statement = String::from_utf8_lossy(query.sql).into_owned();
            restored.by_hand.push(ByHand { seqno: self.seqno, code: query.error_code, statement });
            if !held.is_empty() {
                restored.groups -= 1;
            }
            return Ok(());
        }
        for event in held {
            buffer.copy(&event, Checksum::Crc32)?;
        }
        match query {
            None => buffer.copy(event, Checksum::Crc32),
            Some(query) => {
                restored.failed.push((self.seqno, query.error_code));
                let sql = expecting_error(query.sql, query.error_code);
                let stamp = Stamp { timestamp: header.timestamp, server_id: header.server_id };
                buffer.query(stamp, header.flags, &Query { error_code: 0, sql: &sql, ..query })
            }
        }
    }

    fn flush(&mut self) -> Result<(), ArchiveError> {
        // It may have nothing but statements that are left out.
        if let Some(buffer) = self.buffer.take().filter(|buffer| !buffer.is_empty()) {
            let bytes = buffer.finish().map_err(|e| ArchiveError::Refused(e.to_string()))?;
            self.writer.append(&bytes)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ArchiveError> {
        self.flush()?;
        Ok(self.writer.sync()?)
    }
}

/// A statement that fails with this error on every server, for a client that ends at the first error.
fn expecting_error(sql: &[u8], code: u16) -> Vec<u8> {
    let handler = format!("BEGIN NOT ATOMIC DECLARE CONTINUE HANDLER FOR {code} BEGIN END; ");
    [handler.as_bytes(), sql, b"\n; END"].concat()
}

/// Statements that may fail in part, and are allowed inside `BEGIN NOT ATOMIC`. Others are not: the server takes no
/// definition of a procedure, function, package, trigger or event there.
const MAY_EXPECT: [&str; 33] = [
    "ALTER USER",
    "ANALYZE",
    "CREATE OR REPLACE ALGORITHM",
    "CREATE OR REPLACE DATABASE",
    "CREATE OR REPLACE FULLTEXT",
    "CREATE OR REPLACE INDEX",
    "CREATE OR REPLACE ROLE",
    "CREATE OR REPLACE SCHEMA",
    "CREATE OR REPLACE SEQUENCE",
    "CREATE OR REPLACE SERVER",
    "CREATE OR REPLACE SPATIAL",
    "CREATE OR REPLACE SQL",
    "CREATE OR REPLACE TABLE",
    "CREATE OR REPLACE UNIQUE",
    "CREATE OR REPLACE USER",
    "CREATE OR REPLACE VIEW",
    "CREATE ROLE",
    "CREATE USER",
    "DROP DATABASE",
    "DROP INDEX",
    "DROP ROLE",
    "DROP SCHEMA",
    "DROP SEQUENCE",
    "DROP SERVER",
    "DROP TABLE",
    "DROP TEMPORARY",
    "DROP USER",
    "DROP VIEW",
    "GRANT",
    "OPTIMIZE",
    "RENAME USER",
    "REVOKE",
    "SET PASSWORD",
];

/// Whether [`expecting_error`] makes a statement that the server accepts.
fn can_expect_error(query: &Query<'_>) -> bool {
    let words = first_words(query.sql, 4);
    !is_oracle(query.status_vars) && MAY_EXPECT.iter().any(|start| words.starts_with(start))
}

/// Whether the session had `sql_mode=ORACLE`: that grammar has no `BEGIN NOT ATOMIC`. The variable follows the session's
/// flags, which come first if they are there.
fn is_oracle(variables: &[u8]) -> bool {
    const ORACLE: u64 = 1 << 9;
    let rest = match variables {
        [0, _, _, _, _, rest @ ..] => rest,
        all => all,
    };
    match rest {
        [1, rest @ ..] => rest.first_chunk().is_some_and(|mode| u64::from_le_bytes(*mode) & ORACLE != 0),
        _ => false,
    }
}

/// A clock in UTC: `2026-11-26 18:52:46.123456`.
pub fn clock_text(clock: u64) -> String {
    let (days, second) = (clock / 86_400_000_000, clock / 1_000_000 % 86_400);
    // Civil date of a number of days since 1970 (Howard Hinnant's algorithm).
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{:06} UTC", clock % 1_000_000)
}
