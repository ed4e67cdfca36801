//! `lockstep verify`: are the tables of all members equal, their rows and how they are defined?
//!
//! A barrier stops all members at one seqno for some milliseconds. In that time a session on each takes a snapshot (a
//! consistent InnoDB transaction). Then the barrier ends, and each server computes checksums of its snapshot, table by
//! table. If they differ, the differing rows are searched.

mod sql;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use lockstep_node::{Command, Held, Status};
use serde::Serialize;

use self::sql::{Rows, Session};
use self::tables::{BUCKETS_READ, COLUMNS, Difference, Name, RowDifference, Table, compare_rows, odd_ones};
use crate::CommandArgs;
use crate::absent::{self, Absent};
use crate::command::{choose, send};
use crate::fetch::{self, Target};
use crate::progress::{complain, say};
use crate::{survey, up};

/// The exit code where the members could not be compared.
const NOT_COMPARED: u8 = 3;
/// The exit code where those that were compared are equal, and somebody was not.
const NOT_ALL: u8 = 4;
/// So often snapshots are tried to be taken.
const ATTEMPTS: usize = 5;
/// So many rows of a table are named.
const ROWS_NAMED: usize = 20;

#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    at: CommandArgs,
    /// SQL address of a member: NAME=HOST:PORT or NAME=/path/to/socket. Repeat it for each member [default: the
    /// member's wsrep_node_incoming_address].
    #[arg(long, value_name = "NAME=WHERE")]
    server: Vec<String>,
    /// Compare these databases only [default: all except the server's own].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    databases: Vec<String>,
    /// Exit with code 0 even if members are absent or under an apply hold (apply.delay, for example), provided that
    /// at least two others are equal. The answer still names them.
    #[arg(long)]
    allow_absent: bool,
    /// SQL account. It needs SELECT on all tables.
    #[arg(long, short)]
    user: Option<String>,
    /// An option file of MariaDB's client, with user, password and certificates in [client].
    #[arg(long, value_name = "FILE")]
    defaults_extra_file: Option<PathBuf>,
    /// Options of MariaDB's client, after `--`.
    #[arg(last = true)]
    client: Vec<String>,
}

impl VerifyArgs {
    /// Whether to print JSON.
    pub(crate) fn wants_json(&self) -> bool {
        self.at.json
    }
}

/// The result.
#[derive(Debug, Serialize)]
struct Report {
    equal: bool,
    history: String,
    seqno: i64,
    members: Vec<String>,
    /// Members with a database that were absent, so that the result does not cover them.
    not_compared: Vec<Absent>,
    tables: usize,
    rows: u64,
    /// For how long commits stood still, in seconds.
    stood_seconds: f64,
    differences: Vec<Difference>,
}

pub(crate) fn run(args: &VerifyArgs) -> Result<ExitCode, String> {
    let report = match verify(args) {
        Ok(report) => report,
        Err(text) => {
            complain(&text, args.wants_json());
            return Ok(ExitCode::from(NOT_COMPARED));
        }
    };
    match args.at.json {
        true => say(&serde_json::to_string(&report).map_err(|e| format!("cannot write JSON: {e}"))?),
        false => say(&picture(&report)),
    }
    Ok(ExitCode::from(report.code(args.allow_absent)))
}

impl Report {
    /// There are others, and nothing was compared with anything.
    fn is_one_alone(&self) -> bool {
        self.members.len() < 2 && !self.not_compared.is_empty()
    }

    fn code(&self, allow_absent: bool) -> u8 {
        match (self.equal, self.not_compared.is_empty() || (allow_absent && !self.is_one_alone())) {
            (false, _) => 1,
            (true, false) => NOT_ALL,
            (true, true) => 0,
        }
    }
}

/// Members with a database that take no part.
fn not_compared(status: &Status, held: &Held) -> Vec<Absent> {
    let absent = |id: &str| held.members.iter().all(|m| m.id != id);
    status.members.iter().filter(|m| m.keeps_data() && absent(&m.id)).map(Absent::from).collect()
}

fn verify(args: &VerifyArgs) -> Result<Report, String> {
    let socket = choose(&args.at.source())?;
    // Find the present members before waiting for connections.
    let held = hold(&socket)?;
    release(&socket, &held)?;
    let mut sessions = connect(args, &held)?;
    let (held, stood) = snapshots(&socket, &mut sessions)?;
    // Asked of the member that has made them stand: what it lists as members is what the others are to be.
    let status = fetch::get(&Target::Socket(socket.clone()), "/status").and_then(|body| survey::parse(&body));
    let status = status.map_err(|objection| format!("{}: {objection}", socket.display()))?;
    let members: Vec<String> = sessions.iter().map(|s| s.name.clone()).collect();
    let mut report = Report {
        equal: true,
        not_compared: not_compared(&status, &held),
        history: held.history,
        seqno: held.seqno,
        members,
        tables: 0,
        rows: 0,
        stood_seconds: stood,
        differences: Vec::new(),
    };
    let answers = ask_all(&mut sessions, COLUMNS)?;
    let found: Vec<(String, BTreeMap<Name, Table>)> =
        answers.into_iter().map(|(name, rows)| (name, Table::read(&rows))).collect();
    let wanted = |name: &Name| args.databases.is_empty() || args.databases.contains(&name.0);
    let names: BTreeSet<Name> =
        found.iter().flat_map(|(_, tables)| tables.keys()).filter(|n| wanted(n)).cloned().collect();
    for name in &names {
        let defined: Vec<(String, Option<&Table>)> =
            found.iter().map(|(member, tables)| (member.clone(), tables.get(name))).collect();
        let odd = odd_ones(&defined);
        report.tables += 1;
        if !odd.is_empty() {
            let missing = defined.iter().any(|(_, table)| table.is_none());
            let what = if missing { "is not on all members" } else { "is not defined alike" };
            report.differences.push(difference(name, &[], odd, what));
            continue;
        }
        // The columns are alike, so that the rows can be compared; the rest of the definition may yet differ.
        report.differences.extend(compare_definitions(&mut sessions, name)?);
        if let Some(table) = defined.first().and_then(|d| d.1) {
            let (rows, different) = compare(&mut sessions, name, table)?;
            report.rows += rows;
            report.differences.extend(different);
        }
    }
    report.equal = report.differences.is_empty();
    Ok(report)
}

fn hold(socket: &Path) -> Result<Held, String> {
    let answer = send(socket, &Command::Hold)?;
    match answer.held {
        Some(held) if answer.ok => Ok(held),
        _ => Err(answer.text),
    }
}

/// Lets all go on; for how long they had stood, or why that does not count.
fn release(socket: &Path, held: &Held) -> Result<f64, String> {
    let answer = send(socket, &Command::Release { hold: held.id })?;
    if answer.ok { Ok(answer.seconds) } else { Err(answer.text) }
}

fn connect(args: &VerifyArgs, held: &Held) -> Result<Vec<Session>, String> {
    let mut places: BTreeMap<String, String> = BTreeMap::new();
    if args.at.socket.is_none() {
        // A cluster of `lockstep up`: root may log in over the sockets only.
        let dir = args.at.dir.as_deref().unwrap_or(Path::new(up::DEFAULT_DIR));
        for data in up::data_dirs(dir) {
            let socket = data.with_extension("sock");
            if let (Some(name), true) = (data.file_name(), socket.exists()) {
                places.insert(name.to_string_lossy().into_owned(), socket.display().to_string());
            }
        }
    }
    for text in &args.server {
        let (name, place) =
            text.split_once('=').ok_or_else(|| format!("--server {text}: NAME=HOST:PORT is wanted"))?;
        places.insert(name.to_owned(), place.to_owned());
    }
    let mut options: Vec<String> = Vec::new();
    if let Some(file) = &args.defaults_extra_file {
        options.push(format!("--defaults-extra-file={}", file.display()));
    }
    if let Some(user) = &args.user {
        options.push(format!("--user={user}"));
    }
    options.extend(args.client.iter().cloned());
    let mut sessions = Vec::new();
    for member in &held.members {
        let place = match places.get(&member.name) {
            Some(place) => place.clone(),
            // AUTO: the server has not found out itself.
            None if !["", "AUTO"].contains(&member.incoming.as_str()) => member.incoming.clone(),
            None => {
                let name = &member.name;
                return Err(format!(
                    "it is not known where the SQL of {name} is: say --server {name}=HOST:PORT"
                ));
            }
        };
        let mut session = Session::open(&member.name, &place, &options)?;
        // No query here may wait for a member at the barrier; all output has one format.
        session.query("SET NAMES utf8mb4")?;
        session.query(
            "SET SESSION wsrep_sync_wait = 0, SESSION time_zone = '+00:00', SESSION sql_mode = '', \
             SESSION max_statement_time = 0, SESSION tx_isolation = 'REPEATABLE-READ', SESSION lock_wait_timeout = 10",
        )?;
        sessions.push(session);
    }
    Ok(sessions)
}

/// Takes a snapshot on each member at the barrier, all at one seqno. Drops sessions of held-back members.
fn snapshots(socket: &Path, sessions: &mut Vec<Session>) -> Result<(Held, f64), String> {
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        let held = match hold(socket) {
            Ok(held) => held,
            Err(text) => {
                last = text;
                std::thread::sleep(std::time::Duration::from_millis(300));
                continue;
            }
        };
        let taken = ask_all(sessions, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY");
        let released = release(socket, &held);
        taken?;
        let stands = |name: &str| held.members.iter().any(|m| m.name == name);
        match released {
            Ok(stood) if held.members.iter().all(|m| sessions.iter().any(|s| s.name == m.name)) => {
                sessions.retain(|session| stands(&session.name));
                return Ok((held, stood));
            }
            // One that was left out before and lacks nothing now: with the next transaction it does again.
            Ok(_) => last = "members came or went meanwhile: try again".into(),
            Err(text) => last = text,
        }
        ask_all(sessions, "ROLLBACK")?;
    }
    Err(last)
}

/// The same statement on all at once.
fn ask_all(sessions: &mut [Session], sql: &str) -> Result<Vec<(String, Rows)>, String> {
    for session in sessions.iter_mut() {
        session.ask(sql)?;
    }
    sessions.iter_mut().map(|session| Ok((session.name.clone(), session.take()?))).collect()
}

fn difference(name: &Name, key: &[String], members: Vec<String>, what: &str) -> Difference {
    let table = format!("{}.{}", name.0, name.1);
    Difference {
        text: format!("{table} {what}: {}", members.join(", ")),
        table,
        members,
        key: key.to_vec(),
        first: None,
        last: None,
        rows: Vec::new(),
    }
}

/// Indexes, defaults, constraints, the table's options.
fn compare_definitions(sessions: &mut [Session], name: &Name) -> Result<Option<Difference>, String> {
    let answers = ask_all(sessions, &tables::show_definition(name))?;
    let found: Vec<(String, Vec<String>)> =
        answers.iter().map(|(member, rows)| (member.clone(), tables::definition(rows))).collect();
    let odd = odd_ones(&found);
    let (Some(first), Some(most)) = (
        found.iter().find(|(member, _)| odd.contains(member)),
        // Of two members both are odd: the one is compared with the other.
        found.iter().find(|(member, _)| !odd.contains(member)).or(found.get(1)),
    ) else {
        return Ok(None);
    };
    let what = tables::definition_difference(&first.1, &most.1);
    let what = format!("is not defined alike ({} {what})", first.0);
    Ok(Some(difference(name, &[], odd, &what)))
}

/// How many rows the table has, and where the members differ in it.
fn compare(
    sessions: &mut [Session],
    name: &Name,
    table: &Table,
) -> Result<(u64, Option<Difference>), String> {
    let sums = ask_all(sessions, &table.checksum(name))?;
    let counts = sums.iter().filter_map(|(_, rows)| rows.first()?.first()?.parse::<u64>().ok());
    let rows = counts.max().unwrap_or(0);
    let odd = odd_ones(&sums);
    if odd.is_empty() {
        return Ok((rows, None));
    }
    // By bucket: number, then what is compared.
    let buckets = ask_all(sessions, &table.buckets(name, rows))?;
    let maps: Vec<(String, BTreeMap<&str, &[String]>)> = buckets
        .iter()
        .map(|(member, rows)| {
            let map =
                rows.iter().filter_map(|r| r.split_first()).map(|(b, rest)| (b.as_str(), rest)).collect();
            (member.clone(), map)
        })
        .collect();
    let all: BTreeSet<&str> = maps.iter().flat_map(|(_, map)| map.keys().copied()).collect();
    let differing: Vec<&str> = all
        .into_iter()
        .filter(|bucket| {
            let values: Vec<(String, Option<&[String]>)> =
                maps.iter().map(|(member, map)| (member.clone(), map.get(bucket).copied())).collect();
            !odd_ones(&values).is_empty()
        })
        .collect();
    let mut found: Vec<RowDifference> = Vec::new();
    for bucket in differing.iter().take(BUCKETS_READ) {
        found.extend(compare_rows(&ask_all(sessions, &table.bucket(name, rows, bucket))?));
    }
    found.sort_by(|a, b| tables::by_value(&a.key, &b.key));
    let key = table.key_names();
    let more = if differing.len() > BUCKETS_READ { "at least " } else { "" };
    let count = found.len();
    let mut what = format!("differs in {more}{count} row{}", if count == 1 { "" } else { "s" });
    let (first, last) = (found.first().map(|r| r.key.clone()), found.last().map(|r| r.key.clone()));
    if let (Some(first), Some(last), false) = (&first, &last, key.is_empty()) {
        what.push_str(&format!(", {} {first} to {last}", key.join(",")));
    }
    let mut out = difference(name, &key, odd, &what);
    if !key.is_empty() {
        (out.first, out.last) = (first, last);
        found.truncate(ROWS_NAMED);
        out.rows = found;
    }
    Ok((rows, Some(out)))
}

/// For people.
fn picture(report: &Report) -> String {
    let Report { tables, rows, members, history, seqno, stood_seconds, .. } = report;
    let stood = stood_seconds * 1000.0;
    let what = format!("{tables} tables, {rows} rows on {} at {history}:{seqno}", members.join(", "));
    let not_all = !report.not_compared.is_empty();
    let mut out = match (report.equal, not_all) {
        (true, false) => format!("equal: {what} (commits stood still for {stood:.0} ms)"),
        (true, true) if report.is_one_alone() => format!("nothing to compare with: {what}"),
        (true, true) => {
            format!("equal, but not all were compared: {what} (commits stood still for {stood:.0} ms)")
        }
        (false, _) => format!("DIFFERENT: {what}"),
    };
    if not_all {
        out.push_str(&format!("\n  not compared: {}", absent::names(&report.not_compared)));
    }
    for one in &report.differences {
        out.push_str(&format!("\n  {}", one.text));
        for row in &one.rows {
            out.push_str(&format!("\n    {}: {}", row.key, row.text()));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_node::{HeldMember, MemberStatus};

    fn report(present: &[&str], equal: bool) -> Report {
        let member = |name: &str, role: &str, state: &str| {
            let (name, id, role, state) = (name.into(), format!("id of {name}"), role.into(), state.into());
            MemberStatus { name, id, role, state, ..MemberStatus::default() }
        };
        let members = vec![
            member("n1", "leader", "Synced"),
            member("n2", "voter", "Disconnected"),
            // Another one of that name, which is there.
            MemberStatus { id: "another".into(), ..member("n2", "voter", "Synced") },
            MemberStatus { held_back: true, ..member("n3", "learner", "Synced") },
            member("arb", "arbitrator", "Disconnected"),
            // Stopped in order, so that it votes no more; still it has nothing that could be compared.
            MemberStatus { arbitrator: true, ..member("arb2", "learner", "Disconnected") },
        ];
        let status = Status { members, ..Status::default() };
        let held = |id: &&str| HeldMember { name: String::new(), id: (*id).into(), incoming: String::new() };
        let held = Held { id: 1, history: "h".into(), seqno: 7, members: present.iter().map(held).collect() };
        Report {
            equal,
            history: held.history.clone(),
            seqno: held.seqno,
            members: vec!["n1".into(), "n2".into()],
            not_compared: not_compared(&status, &held),
            tables: 2,
            rows: 9,
            stood_seconds: 0.003,
            differences: Vec::new(),
        }
    }

    #[test]
    fn whoever_was_not_compared_is_named_and_the_exit_code_says_so() {
        let some = report(&["id of n1", "another"], true);
        assert_eq!(
            picture(&some),
            "equal, but not all were compared: 2 tables, 9 rows on n1, n2 at h:7 (commits stood still for 3 ms)\n  \
             not compared: n2 (Disconnected), n3 (Synced, held back)"
        );
        let json = serde_json::to_value(&some).unwrap();
        assert_eq!(json["not_compared"][1]["name"], "n3");
        assert_eq!(json["not_compared"][1]["held_back"], true);
        assert_eq!((some.code(false), some.code(true)), (NOT_ALL, 0));
        let differ = report(&["id of n1", "another"], false);
        assert_eq!((differ.code(false), differ.code(true)), (1, 1), "that they differ is worse");
        assert!(picture(&differ).ends_with("\n  not compared: n2 (Disconnected), n3 (Synced, held back)"));
        let mut alone = report(&["id of n1"], true);
        alone.members.truncate(1);
        assert_eq!((alone.code(false), alone.code(true)), (NOT_ALL, NOT_ALL));
        assert!(picture(&alone).starts_with("nothing to compare with: 2 tables, 9 rows on n1 at"));
        // Arbitrators have nothing to compare.
        let all = report(&["id of n1", "another", "id of n2", "id of n3"], true);
        assert_eq!((all.not_compared.len(), all.code(false)), (0, 0));
        assert!(picture(&all).starts_with("equal: 2 tables, "));
    }
}
