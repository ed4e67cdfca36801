//! The texts that describe an archive and its files: one value a line, the last line with the CRC32 of all before it.

use crate::gtid::{Gtid, StreamState};
use lockstep_core::Uuid;
use std::fmt::Write;

/// The largest manifest: some 20,000 parts.
pub const MANIFEST_MAX: u64 = 4 << 20;
/// The first line of a description of an archive.
const HEAD_FIRST: &str = "lockstep archive 1";
/// The first line of a manifest.
const MANIFEST_FIRST: &str = "lockstep archive manifest 1";
/// Domains and server ids before a file.
const BEFORE_MAX: usize = 10_000;

/// What all files of an archive have in common.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// The name of the files, without the number.
    pub files: String,
    /// The cluster's history.
    pub history: Uuid,
    /// The domain of all GTIDs.
    pub domain: u32,
    /// The server id of all GTIDs.
    pub server: u32,
}

impl Head {
    /// The GTID with this seqno.
    pub fn gtid(&self, seqno: u64) -> Gtid {
        Gtid { domain: self.domain, server: self.server, seqno }
    }

    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let Head { files, history, domain, server } = self;
        sealed(format!("{HEAD_FIRST}\nfiles {files}\nhistory {history}\ndomain {domain}\nserver {server}\n"))
    }

    /// Decodes it.
    ///
    /// # Errors
    /// The defect, as the end of a sentence.
    pub fn decode(bytes: &[u8]) -> Result<Head, String> {
        let mut lines = Lines::of(bytes, HEAD_FIRST)?;
        let files = lines.value("files")?;
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if files.is_empty() || files.len() > 64 || !files.bytes().all(is_plain) {
            return Err(invalid("files"));
        }
        let head = Head {
            files: files.to_owned(),
            history: Uuid::parse(lines.value("history")?).ok_or_else(|| invalid("history"))?,
            domain: lines.number("domain")?,
            server: lines.number("server")?,
        };
        lines.end()?;
        Ok(head)
    }
}

/// A seqno with its clock, in µs since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Mark {
    /// The seqno.
    pub seqno: u64,
    /// The highest time of an entry up to it.
    pub clock: u64,
}

/// A part of a file: its bytes from `begin` to `end`, which are borders of events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Its first byte.
    pub begin: u64,
    /// The byte behind it.
    pub end: u64,
    /// The SHA-256 of its bytes.
    pub digest: String,
    /// The seqno of the first group that begins in it, and the last one with its clock.
    pub groups: Option<(u64, Mark)>,
    /// The SHA-256 of its index.
    pub index: String,
}

impl Part {
    /// The object with its bytes.
    pub fn key(&self, file: &str) -> String {
        format!("{file}/{}.part", self.stem(&self.digest))
    }

    /// The object with its index.
    pub fn index_key(&self, file: &str) -> String {
        format!("{file}/{}.index", self.stem(&self.index))
    }

    fn stem(&self, digest: &str) -> String {
        format!("{:010}-{:010}-{}", self.begin, self.end, digest.get(..16).unwrap_or_default())
    }

    /// The end in the name of an object of a part.
    pub(super) fn end_in_name(name: &str) -> Option<u64> {
        let mut fields = name.split('-');
        fields.next()?.parse::<u64>().ok()?;
        fields.next()?.parse().ok()
    }
}

/// The archived parts of one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manifest {
    /// The file's number.
    pub file: u64,
    /// The state of the stream before the file.
    pub before: StreamState,
    /// A position of the log from which an instance can go on behind this file's archived end.
    pub resume: Mark,
    /// The stream is complete up to here. Seqnos without a group may lie behind the last group.
    pub complete: Mark,
    /// The file that follows; `None` while this file is not archived to its end.
    pub next: Option<u64>,
    /// The parts, from the file's first byte on, without a gap.
    pub parts: Vec<Part>,
}

impl Manifest {
    /// The archived end in bytes.
    pub fn end(&self) -> u64 {
        self.parts.last().map_or(0, |part| part.end)
    }

    /// The last group; `None` if the file has none.
    pub fn last_group(&self) -> Option<Mark> {
        self.parts.iter().rev().find_map(|part| part.groups).map(|(_, last)| last)
    }

    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let Manifest { file, before, resume, complete, next, parts } = self;
        let mut text = format!("{MANIFEST_FIRST}\nfile {file}\nbefore");
        for gtid in before.to_list() {
            let _ = write!(text, " {gtid}");
        }
        let _ = write!(text, "\nresume {} {}", resume.seqno, resume.clock);
        let _ = write!(text, "\ncomplete {} {}", complete.seqno, complete.clock);
        let _ = writeln!(text, "\nnext {}", next.unwrap_or(0));
        for Part { begin, end, digest, groups, index } in parts {
            let (first, last) = groups.unwrap_or_default();
            let Mark { seqno, clock } = last;
            let _ = writeln!(text, "part {begin} {end} {digest} {first} {seqno} {clock} {index}");
        }
        sealed(text)
    }

    /// Decodes it.
    ///
    /// # Errors
    /// The defect, as the end of a sentence.
    pub fn decode(bytes: &[u8]) -> Result<Manifest, String> {
        let mut lines = Lines::of(bytes, MANIFEST_FIRST)?;
        let file = lines.number("file")?;
        let before = lines.value("before")?;
        let before = before.split(' ').filter(|gtid| !gtid.is_empty()).take(BEFORE_MAX);
        let before: Result<Vec<Gtid>, _> = before.map(str::parse).collect();
        let before = StreamState::from_list(&before.map_err(|_| invalid("before"))?);
        let resume = mark(lines.value("resume")?).ok_or_else(|| invalid("resume"))?;
        let complete = mark(lines.value("complete")?).ok_or_else(|| invalid("complete"))?;
        let next = Some(lines.number("next")?).filter(|next| *next != 0);
        let mut parts: Vec<Part> = Vec::new();
        let mut last = Mark::default();
        while let Some(line) = lines.optional("part") {
            let part = part(line).ok_or_else(|| invalid("part"))?;
            let begin = parts.last().map_or(0, |part| part.end);
            if part.begin != begin || part.end <= begin {
                return Err(format!("has a gap or an overlap of parts at byte {begin}"));
            }
            if let Some((first, end)) = part.groups {
                if first <= last.seqno || end.seqno < first || end.clock < last.clock {
                    return Err(format!("has GTIDs or clocks that do not ascend at byte {begin}"));
                }
                last = end;
            }
            parts.push(part);
        }
        lines.end()?;
        if complete.seqno < last.seqno || complete.clock < last.clock || resume.seqno > complete.seqno {
            return Err("ends before its last group".into());
        }
        if next.is_some_and(|next| next <= file) {
            return Err(invalid("next"));
        }
        Ok(Manifest { file, before, resume, complete, next, parts })
    }
}

fn mark(text: &str) -> Option<Mark> {
    let (seqno, clock) = text.split_once(' ')?;
    Some(Mark { seqno: number(seqno)?, clock: number(clock)? })
}

fn part(text: &str) -> Option<Part> {
    let mut fields = text.split(' ');
    let (begin, end) = (number(fields.next()?)?, number(fields.next()?)?);
    let digest = fields.next()?;
    let first = number(fields.next()?)?;
    let last = Mark { seqno: number(fields.next()?)?, clock: number(fields.next()?)? };
    let index = fields.next()?;
    let is_digest = |text: &str| {
        text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    if fields.next().is_some() || !is_digest(digest) || !is_digest(index) {
        return None;
    }
    let groups = match first {
        0 if last == Mark::default() => None,
        0 => return None,
        first => Some((first, last)),
    };
    Some(Part { begin, end, digest: digest.to_owned(), groups, index: index.to_owned() })
}

/// A number in the only form in which it is written.
fn number<N: std::str::FromStr + ToString>(text: &str) -> Option<N> {
    let number: N = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

fn invalid(what: &str) -> String {
    format!("has an invalid line '{what}'")
}

fn sealed(mut text: String) -> Vec<u8> {
    let sum = crc32fast::hash(text.as_bytes());
    let _ = writeln!(text, "sum {sum:08x}");
    text.into_bytes()
}

/// The lines of a text whose sum is right.
struct Lines<'a> {
    lines: std::iter::Peekable<std::str::Lines<'a>>,
}

impl<'a> Lines<'a> {
    fn of(bytes: &'a [u8], first: &str) -> Result<Lines<'a>, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "is no text".to_owned())?;
        let begin = text.lines().next().unwrap_or_default();
        if begin != first {
            let known = first.trim_end_matches(|c: char| c.is_ascii_digit());
            return Err(match begin.starts_with(known) {
                true => format!(
                    "has a format of another version: '{}'",
                    begin.chars().take(64).collect::<String>()
                ),
                false => format!("does not begin with '{first}'"),
            });
        }
        let (body, sum) = text.trim_end_matches('\n').rsplit_once("\nsum ").ok_or("ends too early")?;
        let body = text.get(..=body.len()).ok_or("ends too early")?;
        if format!("{:08x}", crc32fast::hash(body.as_bytes())) != sum {
            return Err("fails its checksum".into());
        }
        let mut lines = body.lines().peekable();
        lines.next();
        Ok(Lines { lines })
    }

    /// The value of the next line if it has this name.
    fn optional(&mut self, name: &str) -> Option<&'a str> {
        let value = |line: &&'a str| {
            let rest = line.strip_prefix(name)?;
            if rest.is_empty() { Some("") } else { rest.strip_prefix(' ') }
        };
        let found = self.lines.peek().and_then(value)?;
        self.lines.next();
        Some(found)
    }

    fn value(&mut self, name: &str) -> Result<&'a str, String> {
        self.optional(name).ok_or_else(|| format!("has no line '{name}'"))
    }

    fn number<N: std::str::FromStr + ToString>(&mut self, name: &str) -> Result<N, String> {
        number(self.value(name)?).ok_or_else(|| invalid(name))
    }

    fn end(&mut self) -> Result<(), String> {
        match self.lines.next() {
            None => Ok(()),
            Some(line) => Err(format!("has an unknown line '{}'", line.chars().take(64).collect::<String>())),
        }
    }
}
