//! `lockstep log`: prints a member's log as text or JSON. It reads the files, so the server may be running or stopped.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use lockstep_block::device::entry::Entry as DeviceEntry;
use lockstep_node::core::branch::Branch;
use lockstep_node::core::codec::Reader;
use lockstep_node::core::members::{Membership, View};
use lockstep_node::core::policy::Policy;
use lockstep_node::core::snapshot::{StateSnapshot, TrimMark};
use lockstep_node::core::types::{Entry, EntryKind, MemberId};
use lockstep_node::core::vote::{SUCCESS, VoteOutcome};
use lockstep_node::core::writeset::WriteSet;
use lockstep_node::log::{LogView, OpenError, RealDisk, Record, Replay, read_rescue, rescue_number};
use serde::Serialize;

use crate::certification::{Certified, LogCertifier, Verdict};
use crate::cluster_dir;
use crate::fetch::USUAL_DATADIR;
use crate::rescue::Rescue;
use crate::status::bytes;

/// Options of `lockstep log`.
#[derive(Args, Debug)]
pub(crate) struct LogArgs {
    /// Directory of the log: a data directory, or the value of `log.dir` [default: the first one of the cluster of
    /// `make up`, else /var/lib/mysql].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Print the last COUNT entries.
    #[arg(long, short = 'n', default_value_t = 40, conflicts_with = "all")]
    count: usize,
    /// Print all entries.
    #[arg(long)]
    all: bool,
    /// Print a rescue file: transactions, or writes of a block device, that were perhaps acknowledged to clients and that
    /// the cluster lacks. Its path, or its name in the directory of the log.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["all", "count"])]
    rescue: Option<PathBuf>,
    /// With --rescue: print SQL, to be reviewed and then run on a member with the mariadb client. Rows are BINLOG
    /// statements, with their values in comments.
    #[arg(long, requires = "rescue", conflicts_with = "json")]
    sql: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

/// A description of one entry.
#[derive(Debug, Serialize)]
struct Line {
    /// The seqno, if the entry is delivered to servers.
    seqno: Option<i64>,
    index: u64,
    term: u64,
    kind: &'static str,
    /// The proposer's name, or its id if the name is unknown. `None` for the leader's own entries.
    origin: Option<String>,
    size: usize,
    keys: Option<usize>,
    /// The certification verdict, if the entry is certified.
    verdict: Option<Verdict>,
    tables: Vec<TableLine>,
    /// Seconds since the leader appended the entry.
    age: f64,
    /// Further details, as text.
    note: String,
}

/// The changes of a write-set to one table.
#[derive(Debug, Serialize)]
struct TableLine {
    table: String,
    inserted: u64,
    updated: u64,
    deleted: u64,
    /// Events whose rows could not be counted, so the counts above are too low.
    uncounted: u64,
}

impl Line {
    /// Adds the certification verdict and its reason. Statements in total order always pass.
    fn add_verdict(&mut self, certified: Option<Certified>) {
        let Some(Certified { verdict, why }) = certified else { return };
        self.verdict = Some(verdict);
        if !why.is_empty() {
            self.note = if self.note.is_empty() { why } else { format!("{why}; {}", self.note) };
        }
    }
}

impl std::fmt::Display for TableLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.table)?;
        for (sign, count) in [('+', self.inserted), ('~', self.updated), ('-', self.deleted)] {
            if count > 0 {
                write!(f, " {sign}{count}")?;
            }
        }
        if self.uncounted > 0 { f.write_str(" and more") } else { Ok(()) }
    }
}

/// Names of members, from every membership that was read so far.
#[derive(Default)]
struct Names(Vec<(MemberId, String)>);

impl Names {
    fn learn(&mut self, membership: &Membership) {
        for member in &membership.members {
            self.0.retain(|(id, _)| *id != member.id);
            self.0.push((member.id, member.name.clone()));
        }
    }

    fn of(&self, id: MemberId) -> Option<String> {
        if id.is_nil() {
            return None;
        }
        let known = self.0.iter().find(|(other, _)| *other == id);
        Some(known.map_or_else(|| id.to_string(), |(_, name)| name.clone()))
    }
}

/// Prints the log.
pub(crate) fn run(args: &LogArgs) -> Result<(), String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    if let Some(file) = &args.rescue {
        if args.sql {
            return print_sql(file, args.dir.as_deref());
        }
        return print(&read_file(file, args.dir.as_deref(), now)?, args.json);
    }
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => usual_dir(),
    };
    check_dir(&dir)?;
    let view = LogView::open(&dir).map_err(|e| explain(&e))?;
    let keep = if args.all { usize::MAX } else { args.count };
    let lines = read(&view, keep, now)?;
    print(&lines, args.json)
}

/// Reads the last `keep` entries.
fn read(view: &LogView<RealDisk>, keep: usize, now: Duration) -> Result<VecDeque<Line>, String> {
    // Trim marks carry verdicts on earlier entries, so they are read first.
    let mut marks = Vec::new();
    let mut visit = |replay| {
        if let Replay::Record(record) = replay
            && let entry = decode(&record)?
            && entry.kind == EntryKind::Trim
            && let Ok(mark) = TrimMark::from_payload(entry.payload())
        {
            marks.push(mark);
        }
        Ok(())
    };
    view.visit(&mut visit).map_err(|e| explain(&e))?;
    let from = view.last_index().saturating_sub(keep as u64);
    let mut names = Names::default();
    let mut certifier: Option<LogCertifier> = None;
    let mut lines = VecDeque::new();
    let mut visit = |replay| {
        match replay {
            Replay::Base { base, .. } => {
                let state = StateSnapshot::from_bytes(base)
                    .map_err(|e| format!("the state at the start of a segment {e}"))?;
                names.learn(&state.membership);
                certifier.get_or_insert_with(|| LogCertifier::new(&state, std::mem::take(&mut marks)));
            }
            Replay::Record(record) => {
                let entry = decode(&record)?;
                let certified = certifier.as_mut().and_then(|certifier| certifier.certify(&entry));
                if entry.index > from {
                    let mut line = describe(&entry, &mut names, now);
                    line.add_verdict(certified);
                    lines.push_back(line);
                } else if matches!(entry.kind, EntryKind::Membership | EntryKind::Branch) {
                    describe(&entry, &mut names, now);
                }
            }
            // Nobody trims a log that is only looked at.
            Replay::Trim | Replay::Shorten => {}
        }
        Ok(())
    };
    view.visit(&mut visit).map_err(|e| explain(&e))?;
    Ok(lines)
}

/// Reads a rescue file. Its entries are not certified: they have no position in the log.
fn read_file(file: &Path, dir: Option<&Path>, now: Duration) -> Result<VecDeque<Line>, String> {
    let mut lines = VecDeque::new();
    visit_file(file, dir, &mut |entry, names| lines.push_back(describe(entry, names, now)))?;
    Ok(lines)
}

/// Calls `each` for the entries of a rescue file, with the member names that the file has listed so far.
fn visit_file(
    file: &Path,
    dir: Option<&Path>,
    each: &mut dyn FnMut(&Entry, &mut Names),
) -> Result<(), String> {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    let dir = parent.or(dir).map_or_else(usual_dir, Path::to_owned);
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    if rescue_number(&name).is_none() {
        return Err(format!(
            "{} is not a rescue file: they are named lockstep.rescue.1.log and so on",
            file.display()
        ));
    }
    let disk = RealDisk::new(&dir).map_err(|e| explain(&e))?;
    let mut names = Names::default();
    let mut visit = |replay| {
        match replay {
            Replay::Base { base, .. } => {
                let state =
                    StateSnapshot::from_bytes(base).map_err(|e| format!("the state at its start {e}"))?;
                names.learn(&state.membership);
            }
            Replay::Record(record) => each(&decode(&record)?, &mut names),
            Replay::Trim | Replay::Shorten => {}
        }
        Ok(())
    };
    read_rescue(&disk, &name, &mut visit).map_err(|e| explain(&e))
}

/// Prints a rescue file as SQL. Transactions that cannot be converted are reported as an error at the end.
fn print_sql(file: &Path, dir: Option<&Path>) -> Result<(), String> {
    use std::io::Write;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut rescue = Rescue::default();
    let name = file.display().to_string();
    let mut head = Some(Rescue::head(&name));
    let mut written = Ok(());
    let mut is_device = false;
    visit_file(file, dir, &mut |entry, names| {
        if entry.kind == EntryKind::Membership {
            describe(entry, names, Duration::ZERO);
        }
        let device =
            (entry.kind == EntryKind::WriteSet).then(|| WriteSet::parse(&entry.payload()).ok()).flatten();
        if device.is_some_and(|set| device_entry(&set).is_some()) {
            is_device = true;
            return;
        }
        let text = rescue.add(entry, names.of(entry.proposal.member).as_deref());
        if let Some(text) = text
            && written.is_ok()
        {
            let before = head.take().unwrap_or_default();
            written = out.write_all(before.as_bytes()).and_then(|()| out.write_all(text.as_bytes()));
        }
    })?;
    if is_device {
        return Err(format!(
            "{name} has writes of a block device: there is no SQL for them. `lockstep log --rescue {name}` lists their ranges"
        ));
    }
    let (text, result) = rescue.end(&name);
    let written = written.and_then(|()| out.write_all(text.as_bytes())).and_then(|()| out.flush());
    match written {
        // The reader (`head`) has closed the pipe.
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(e) => Err(format!("cannot write the SQL: {e}")),
        Ok(()) => result,
    }
}

fn decode(record: &Record) -> Result<Entry, String> {
    Entry::decode_body(record.index, record.term, record.body.clone())
        .map_err(|e| format!("entry {} {e}", record.index))
}

/// The first of the usual directories that holds a log.
fn usual_dir() -> PathBuf {
    let dirs = cluster_dir::data_dirs(Path::new(cluster_dir::DEFAULT_DIR));
    let usual = PathBuf::from(USUAL_DATADIR);
    let found = dirs.iter().chain([&usual]).find(|dir| check_dir(dir).is_ok());
    found.or_else(|| dirs.iter().find(|dir| dir.exists())).unwrap_or(&usual).clone()
}

/// Checks that a directory is readable and holds a log. If not, the error says what to do.
fn check_dir(dir: &Path) -> Result<(), String> {
    let files = std::fs::read_dir(dir).map_err(|e| match e.kind() {
        ErrorKind::NotFound => format!(
            "there is no directory {}: give --dir the data directory of a member, or its log.dir",
            dir.display()
        ),
        ErrorKind::NotADirectory => {
            format!("{} is not a directory: give --dir the data directory of a member", dir.display())
        }
        ErrorKind::PermissionDenied => not_readable(dir),
        _ => format!("cannot read the directory {}: {e}", dir.display()),
    })?;
    let is_log = |name: &str| name.starts_with("lockstep.") && name.ends_with(".log");
    let mut members = Vec::new();
    for file in files.flatten() {
        if is_log(&file.file_name().to_string_lossy()) {
            return Ok(());
        }
        if file.path().join("lockstep.id.log").exists() {
            members.push(file.path().display().to_string());
        }
    }
    members.sort();
    let hint = match members.is_empty() {
        true => "give --dir the data directory of a member, or its log.dir".to_owned(),
        false => format!("did you mean {}?", members.join(" or ")),
    };
    Err(format!("{} holds no log (no file lockstep.*.log): {hint}", dir.display()))
}

fn not_readable(dir: &Path) -> String {
    format!(
        "permission denied: only root and the server's account may read the log in {}: run this as root",
        dir.display()
    )
}

/// The text of a log error. The log's own texts address a process that writes the log; this command only reads it.
fn explain(error: &OpenError) -> String {
    match error {
        OpenError::NotWritable { dir, source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            not_readable(Path::new(dir))
        }
        OpenError::Io { dir, doing, source } => format!("cannot {doing} in {dir}: {source}"),
        _ => error.to_string(),
    }
}

fn print(lines: &VecDeque<Line>, json: bool) -> Result<(), String> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    if !json {
        let _ = writeln!(
            out,
            "{:>10} {:>10} {:>5}  {:<10} {:<8} {:<12} {:>10} {:>6} {:>9}  what",
            "seqno", "index", "term", "kind", "verdict", "origin", "size", "keys", "age"
        );
    }
    for line in lines {
        let written = if json {
            let text = serde_json::to_string(line).map_err(|e| format!("cannot write JSON: {e}"))?;
            writeln!(out, "{text}")
        } else {
            writeln!(
                out,
                "{:>10} {:>10} {:>5}  {:<10} {:<8} {:<12} {:>10} {:>6} {:>9}  {}",
                line.seqno.map_or_else(|| "-".into(), |s| s.to_string()),
                line.index,
                line.term,
                line.kind,
                line.verdict.map_or("-", Verdict::text),
                line.origin.as_deref().unwrap_or("-"),
                bytes(line.size as u64),
                line.keys.map_or_else(|| "-".into(), |k| k.to_string()),
                age(line.age),
                details(line),
            )
        };
        if written.is_err() {
            // The reader (`head`) has closed the pipe.
            return Ok(());
        }
    }
    Ok(())
}

fn details(line: &Line) -> String {
    let tables: Vec<String> = line.tables.iter().map(TableLine::to_string).collect();
    let tables = tables.join(", ");
    match (tables.is_empty(), line.note.is_empty()) {
        (false, false) => format!("{tables}; {}", line.note),
        (false, true) => tables,
        (true, _) => line.note.clone(),
    }
}

fn age(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.1}s"),
        s if s < 7200.0 => format!("{:.0}min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0}h", s / 3600.0),
        s => format!("{:.0}d", s / 86_400.0),
    }
}

fn describe(entry: &Entry, names: &mut Names, now: Duration) -> Line {
    let mut line = Line {
        seqno: entry.kind.takes_seqno().then_some(entry.seqno),
        index: entry.index,
        term: entry.term,
        kind: kind_name(entry.kind),
        origin: names.of(entry.proposal.member),
        size: entry.payload().len(),
        keys: None,
        verdict: None,
        tables: Vec::new(),
        age: now.saturating_sub(Duration::from_micros(entry.time)).as_secs_f64(),
        note: String::new(),
    };
    match entry.kind {
        EntryKind::WriteSet | EntryKind::TotalOrder => match WriteSet::parse(&entry.payload()) {
            Ok(set) => describe_writeset(&set, &mut line),
            Err(e) => line.note = format!("damaged: the payload {e}"),
        },
        EntryKind::View => match View::decode(&mut Reader::new(entry.payload())) {
            Ok(view) => {
                let members: Vec<&str> = view.members.iter().map(|m| m.name.as_str()).collect();
                line.note = format!("view {}: {}", view.number, members.join(", "));
            }
            Err(e) => line.note = format!("damaged: the payload {e}"),
        },
        EntryKind::Membership => match Membership::decode(&mut Reader::new(entry.payload())) {
            Ok(membership) => {
                names.learn(&membership);
                let members: Vec<String> =
                    membership.members.iter().map(|m| format!("{} ({:?})", m.name, m.role)).collect();
                line.note = members.join(", ").to_lowercase();
            }
            Err(e) => line.note = format!("damaged: the payload {e}"),
        },
        EntryKind::Branch => match Branch::from_payload(entry.payload()) {
            Ok(branch) => {
                names.learn(&branch.membership());
                line.note = format!("history {}: founded by {} alone", branch.history, branch.founder.name);
            }
            Err(e) => line.note = format!("damaged: the payload {e}"),
        },
        // The leader's own: a disk note.
        EntryKind::Note if entry.proposal.member.is_nil() => {
            line.note = "what the leader knows of the members' disks".into();
        }
        EntryKind::Note => line.note = String::from_utf8_lossy(&entry.payload()).into_owned(),
        EntryKind::Noop => line.note = "a new leader".into(),
        EntryKind::Outcome => match VoteOutcome::from_payload(entry.payload()) {
            Ok(outcome) => line.note = describe_outcome(&outcome, names),
            Err(e) => line.note = format!("damaged: the payload {e}"),
        },
        EntryKind::Policy => match Policy::decode(&mut Reader::new(entry.payload())) {
            Ok(policy) => line.note = describe_policy(&policy),
            Err(e) => line.note = format!("damaged: the payload {e}"),
        },
        EntryKind::Trim | EntryKind::Piece => {}
    }
    line
}

/// The policy in force from this entry on, as options: its name, and settings that differ from the defaults.
fn describe_policy(policy: &Policy) -> String {
    let Policy { kind, acks, zone_acks, on_receive, timeout, max_at_risk } = *policy;
    let default = Policy::of(kind);
    let mut out = format!("commit.policy={}", kind.name());
    let mut add_if = |differs: bool, option: String| {
        if differs {
            out.push_str("; ");
            out.push_str(&option);
        }
    };
    add_if(acks != default.acks, format!("commit.acks={acks}"));
    add_if(zone_acks != default.zone_acks, format!("commit.zone_acks={zone_acks}"));
    add_if(on_receive != default.on_receive, format!("commit.ack_on={}", policy.ack_on()));
    add_if(timeout != default.timeout, format!("commit.timeout=PT{}S", timeout as f64 / 1e6));
    add_if(max_at_risk != default.max_at_risk, format!("async.max_at_risk={max_at_risk}"));
    out
}

/// The result of a vote on an apply error: the winning result, and each member's result.
fn describe_outcome(outcome: &VoteOutcome, names: &Names) -> String {
    let result = |opinion: u64| match opinion {
        SUCCESS => "success".to_owned(),
        error => format!("{error:016x}"),
    };
    let results: Vec<String> = outcome
        .opinions
        .iter()
        .map(|(id, opinion)| format!("{} {}", names.of(*id).unwrap_or_default(), result(*opinion)))
        .collect();
    format!("vote on seqno {}: {} counts ({})", outcome.seqno, result(outcome.winner), results.join(", "))
}

fn kind_name(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Noop => "leader",
        EntryKind::WriteSet => "write-set",
        EntryKind::TotalOrder => "statement",
        EntryKind::View => "view",
        EntryKind::Membership => "members",
        EntryKind::Policy => "policy",
        EntryKind::Trim => "trim",
        EntryKind::Piece => "piece",
        EntryKind::Note => "note",
        EntryKind::Outcome => "outcome",
        EntryKind::Branch => "branch",
    }
}

/// The entry of a block device in a write-set, if it is one. An event of a binlog is none: its length would not fit.
fn device_entry(set: &WriteSet) -> Option<DeviceEntry> {
    if set.key_count() > 0 || set.pieces.is_some() {
        return None;
    }
    DeviceEntry::decode(&set.data).ok()
}

fn describe_writeset(set: &WriteSet, line: &mut Line) {
    use lockstep_node::core::writeset::flags;
    line.keys = Some(set.key_count());
    if let Some(pieces) = &set.pieces {
        line.size += pieces.bytes as usize;
    }
    if let Some(entry) = device_entry(set) {
        line.note = entry.to_string();
        return;
    }
    let mut notes = Vec::new();
    if set.meta.has(flags::ROLLBACK) {
        notes.push("rollback".to_owned());
    } else if !set.meta.has(flags::TRX_END) {
        notes.push("fragment".to_owned());
    }
    let summary = lockstep_rows::summarize(&set.data);
    line.tables = summary
        .tables
        .iter()
        .map(|t| TableLine {
            table: t.name(),
            inserted: t.inserted,
            updated: t.updated,
            deleted: t.deleted,
            uncounted: t.uncounted,
        })
        .collect();
    // Annotations repeat what the row events say. A statement in total order has nothing but its text.
    notes.extend(summary.statements.iter().filter(|s| !s.annotation).map(|s| shorten(&s.sql)));
    notes.extend(summary.damage);
    line.note = notes.join(", ");
}

/// A statement on one line, cut to a readable length.
fn shorten(sql: &str) -> String {
    const LENGTH: usize = 100;
    let line: String = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= LENGTH {
        return line;
    }
    line.chars().take(LENGTH - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_node::core::types::EntryHeader;

    #[test]
    fn statements_become_one_short_line() {
        assert_eq!(shorten("CREATE TABLE\n  t\t(id INT)"), "CREATE TABLE t (id INT)");
        assert_eq!(shorten(&"x".repeat(300)).chars().count(), 100);
    }

    #[test]
    fn table_is_described_with_row_counts() {
        let line = TableLine { table: "a.b".into(), inserted: 2, updated: 0, deleted: 1, uncounted: 0 };
        assert_eq!(line.to_string(), "a.b +2 -1");
    }

    #[test]
    fn policy_entry_is_described_in_full() {
        use lockstep_node::core::policy::PolicyKind;
        let mut policy = Policy::of(PolicyKind::Semisync);
        assert_eq!(describe_policy(&policy), "commit.policy=semisync");
        (policy.acks, policy.zone_acks, policy.on_receive) = (2, 1, true);
        (policy.timeout, policy.max_at_risk) = (1_500_000, 300);
        assert_eq!(
            describe_policy(&policy),
            "commit.policy=semisync; commit.acks=2; commit.zone_acks=1; commit.ack_on=receive; commit.timeout=PT1.5S; \
             async.max_at_risk=300"
        );
        let (kind, proposal) = (EntryKind::Policy, Default::default());
        let header = EntryHeader { index: 7, term: 1, kind, seqno: 5, proposal, time: 0 };
        let entry = Entry::new(header, &policy.to_payload());
        assert!(
            describe(&entry, &mut Names::default(), Duration::ZERO)
                .note
                .starts_with("commit.policy=semisync; ")
        );
    }

    #[test]
    fn writes_of_a_device_are_listed_as_ranges() {
        use lockstep_block::device::extent_map::Run;
        use lockstep_node::core::writeset::{DataKind, Meta, WriteSetBuilder, flags};
        let runs = vec![Run::data(4096, vec![7; 512].into()), Run::zeroes(0, 1024, true)];
        let device = DeviceEntry::Writes { epoch: 3, number: 7, clock: 0, runs };
        let mut builder = WriteSetBuilder::new();
        builder.append_data(DataKind::Ordered, &device.encode()).unwrap();
        let meta = Meta { flags: flags::TRX_START | flags::TRX_END | flags::PA_UNSAFE, ..Meta::default() };
        let header = EntryHeader {
            index: 7,
            term: 1,
            kind: EntryKind::WriteSet,
            seqno: 5,
            proposal: Default::default(),
            time: 0,
        };
        let line =
            describe(&Entry::new(header, &builder.finish(&meta)), &mut Names::default(), Duration::ZERO);
        assert_eq!(line.note, "writes 7 of epoch 3: 512 bytes at 4096, 1024 zeroes at 0");
    }

    #[test]
    fn disk_note_is_described_without_its_bytes() {
        let (kind, proposal) = (EntryKind::Note, Default::default());
        let header = EntryHeader { index: 7, term: 1, kind, seqno: 5, proposal, time: 0 };
        let line = describe(&Entry::new(header, &[1, 0, 0xff]), &mut Names::default(), Duration::ZERO);
        assert_eq!(line.note, "what the leader knows of the members' disks");
    }

    #[test]
    fn names_follow_the_membership() {
        let mut names = Names::default();
        let id = MemberId::parse("00000000-0000-0000-0000-000000000001").unwrap();
        assert_eq!(names.of(MemberId::NIL), None);
        assert_eq!(names.of(id), Some(id.to_string()));
        names.0.push((id, "n1".into()));
        assert_eq!(names.of(id), Some("n1".into()));
    }

    #[test]
    fn directory_without_log_is_reported() {
        let dir = std::env::temp_dir().join(format!("lockstep-log-dir-{}", std::process::id()));
        let text = check_dir(&dir).unwrap_err();
        assert!(text.starts_with("there is no directory"), "{text}");
        std::fs::create_dir_all(dir.join("n1")).unwrap();
        assert!(
            check_dir(&dir)
                .unwrap_err()
                .contains("holds no log (no file lockstep.*.log): give --dir the data directory")
        );
        std::fs::write(dir.join("n1/lockstep.id.log"), "").unwrap();
        assert!(
            check_dir(&dir).unwrap_err().ends_with(&format!("did you mean {}?", dir.join("n1").display()))
        );
        assert_eq!(check_dir(&dir.join("n1")), Ok(()));
        assert!(check_dir(&dir.join("n1/lockstep.id.log")).unwrap_err().contains("is not a directory"));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn reader_error_does_not_ask_for_write_access() {
        let error = OpenError::NotWritable {
            dir: "/d".into(),
            doing: "open the file x".into(),
            source: ErrorKind::PermissionDenied.into(),
        };
        assert!(explain(&error).ends_with("run this as root"));
    }

    #[test]
    fn age_uses_readable_unit() {
        assert_eq!(age(1.25), "1.2s");
        assert_eq!(age(600.0), "10min");
        assert_eq!(age(864_000.0), "10d");
    }
}
