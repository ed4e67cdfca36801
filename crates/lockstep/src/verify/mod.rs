//! `lockstep verify`: compares the definitions and the rows of all tables on all members.
//!
//! A barrier stops all members at one seqno for some milliseconds. In that time a session on each member takes a snapshot
//! (a consistent InnoDB transaction). Then the barrier ends, and each server computes checksums of its snapshot, table by
//! table. If the checksums of a table differ, the command searches the differing rows.

mod sql;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use lockstep_local::say;
use lockstep_node::{Command, Held, Status};
use serde::Serialize;

use self::sql::{Rows, Session};
use self::tables::{BUCKETS_READ, COLUMNS, Difference, Name, RowDifference, Table, compare_rows, minority};
use crate::absent::{self, Absent};
use crate::command::{choose, complain, send};
use crate::fetch::{self, Target};
use crate::source::CommandArgs;
use crate::{cluster_dir, query};

/// Exit code if the comparison failed.
const NOT_COMPARED: u8 = 3;
/// Exit code if the compared members are equal, and others were not compared.
pub(crate) const NOT_ALL: u8 = 4;
/// Maximum number of attempts to take snapshots.
const ATTEMPTS: usize = 5;
/// Maximum number of rows that are listed for each table.
const ROWS_LISTED: usize = 20;

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
    /// Absent or held-back members with a database. The result does not cover them.
    not_compared: Vec<Absent>,
    tables: usize,
    rows: u64,
    /// For how long the barrier stopped commits, in seconds.
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
        false => say(&text(&report)),
    }
    Ok(ExitCode::from(report.code(args.allow_absent)))
}

impl Report {
    /// Whether a single member took part although the cluster has others.
    fn has_one_member_of_several(&self) -> bool {
        self.members.len() < 2 && !self.not_compared.is_empty()
    }

    fn code(&self, allow_absent: bool) -> u8 {
        match (
            self.equal,
            self.not_compared.is_empty() || (allow_absent && !self.has_one_member_of_several()),
        ) {
            (false, _) => 1,
            (true, false) => NOT_ALL,
            (true, true) => 0,
        }
    }
}

/// Members with a database that do not take part.
fn not_compared(status: &Status, held: &Held) -> Vec<Absent> {
    let absent = |id: &str| held.members.iter().all(|m| m.id != id);
    status.members.iter().filter(|m| m.keeps_data() && absent(&m.id)).map(Absent::from).collect()
}

fn verify(args: &VerifyArgs) -> Result<Report, String> {
    let socket = choose(&args.at.source())?;
    // Find the present members before waiting for connections.
    let held = raise_barrier(&socket)?;
    lower_barrier(&socket, &held)?;
    let mut sessions = connect(args, &held)?;
    let (held, stopped) = snapshots(&socket, &mut sessions)?;
    // The member that raised the barrier also lists the members that should have taken part.
    let status = fetch::get(&Target::Socket(socket.clone()), "/status").and_then(|body| query::parse(&body));
    let status = status.map_err(|error| format!("{}: {error}", socket.display()))?;
    let members: Vec<String> = sessions.iter().map(|s| s.name.clone()).collect();
    let mut report = Report {
        equal: true,
        not_compared: not_compared(&status, &held),
        history: held.history,
        seqno: held.seqno,
        members,
        tables: 0,
        rows: 0,
        stood_seconds: stopped,
        differences: Vec::new(),
    };
    let answers = query_all(&mut sessions, COLUMNS)?;
    let found: Vec<(String, BTreeMap<Name, Table>)> =
        answers.into_iter().map(|(name, rows)| (name, Table::read(&rows))).collect();
    let wanted = |name: &Name| args.databases.is_empty() || args.databases.contains(&name.0);
    let names: BTreeSet<Name> =
        found.iter().flat_map(|(_, tables)| tables.keys()).filter(|n| wanted(n)).cloned().collect();
    for name in &names {
        let defined: Vec<(String, Option<&Table>)> =
            found.iter().map(|(member, tables)| (member.clone(), tables.get(name))).collect();
        let odd = minority(&defined);
        report.tables += 1;
        if !odd.is_empty() {
            let missing = defined.iter().any(|(_, table)| table.is_none());
            let what = if missing { "does not exist on all members" } else { "has different definitions" };
            report.differences.push(difference(name, &[], odd, what));
            continue;
        }
        // The columns are equal, so the rows can be compared. The rest of the definition may still differ.
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

/// Stops all members at one seqno.
fn raise_barrier(socket: &Path) -> Result<Held, String> {
    let answer = send(socket, &Command::Hold)?;
    match answer.held {
        Some(held) if answer.ok => Ok(held),
        _ => Err(answer.text),
    }
}

/// Lets all members continue. Returns for how long the barrier stopped them, or why it did not stop all of them.
fn lower_barrier(socket: &Path, held: &Held) -> Result<f64, String> {
    let answer = send(socket, &Command::Release { hold: held.id })?;
    if answer.ok { Ok(answer.seconds) } else { Err(answer.text) }
}

fn connect(args: &VerifyArgs, held: &Held) -> Result<Vec<Session>, String> {
    let mut addresses: BTreeMap<String, String> = BTreeMap::new();
    if args.at.socket.is_none() {
        // In a cluster of `lockstep up`, root may log in through the sockets only.
        let dir = args.at.dir.as_deref().unwrap_or(Path::new(cluster_dir::DEFAULT_DIR));
        for data in cluster_dir::data_dirs(dir) {
            let socket = data.with_extension("sock");
            if let (Some(name), true) = (data.file_name(), socket.exists()) {
                addresses.insert(name.to_string_lossy().into_owned(), socket.display().to_string());
            }
        }
    }
    for text in &args.server {
        let (name, address) =
            text.split_once('=').ok_or_else(|| format!("--server {text}: expected NAME=HOST:PORT"))?;
        addresses.insert(name.to_owned(), address.to_owned());
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
        let address = match addresses.get(&member.name) {
            Some(address) => address.clone(),
            // AUTO: the server has not found its own address.
            None if !["", "AUTO"].contains(&member.incoming.as_str()) => member.incoming.clone(),
            None => {
                let name = &member.name;
                return Err(format!("the SQL address of {name} is unknown: give --server {name}=HOST:PORT"));
            }
        };
        let mut session = Session::open(&member.name, &address, &options)?;
        // No query may wait for a member that the barrier stops, and all output must have one format.
        session.query("SET NAMES utf8mb4")?;
        session.query(
            "SET SESSION wsrep_sync_wait = 0, SESSION time_zone = '+00:00', SESSION sql_mode = '', \
             SESSION max_statement_time = 0, SESSION tx_isolation = 'REPEATABLE-READ', SESSION lock_wait_timeout = 10",
        )?;
        sessions.push(session);
    }
    Ok(sessions)
}

/// Takes a snapshot on each member at the barrier, all at one seqno. Drops the sessions of held-back members.
fn snapshots(socket: &Path, sessions: &mut Vec<Session>) -> Result<(Held, f64), String> {
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        let held = match raise_barrier(socket) {
            Ok(held) => held,
            Err(text) => {
                last = text;
                std::thread::sleep(std::time::Duration::from_millis(300));
                continue;
            }
        };
        let taken = query_all(sessions, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY");
        let lowered = lower_barrier(socket, &held);
        taken?;
        let takes_part = |name: &str| held.members.iter().any(|m| m.name == name);
        match lowered {
            Ok(stopped) if held.members.iter().all(|m| sessions.iter().any(|s| s.name == m.name)) => {
                sessions.retain(|session| takes_part(&session.name));
                return Ok((held, stopped));
            }
            // A member without a session takes part now. A held-back member does so while it happens to lack nothing, and
            // the next transaction ends that.
            Ok(_) => last = "members joined or left during the comparison: try again".into(),
            Err(text) => last = text,
        }
        query_all(sessions, "ROLLBACK")?;
    }
    Err(last)
}

/// Runs the same statement on all members at once.
fn query_all(sessions: &mut [Session], sql: &str) -> Result<Vec<(String, Rows)>, String> {
    for session in sessions.iter_mut() {
        session.send(sql)?;
    }
    sessions.iter_mut().map(|session| Ok((session.name.clone(), session.receive()?))).collect()
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

/// Compares indexes, defaults, constraints and table options.
fn compare_definitions(sessions: &mut [Session], name: &Name) -> Result<Option<Difference>, String> {
    let answers = query_all(sessions, &tables::show_definition(name))?;
    let found: Vec<(String, Vec<String>)> =
        answers.iter().map(|(member, rows)| (member.clone(), tables::definition(rows))).collect();
    let odd = minority(&found);
    let (Some(first), Some(most)) = (
        found.iter().find(|(member, _)| odd.contains(member)),
        // Of two different members neither is a majority: compare the first with the second.
        found.iter().find(|(member, _)| !odd.contains(member)).or(found.get(1)),
    ) else {
        return Ok(None);
    };
    let what = tables::definition_difference(&first.1, &most.1);
    let what = format!("has different definitions ({} {what})", first.0);
    Ok(Some(difference(name, &[], odd, &what)))
}

/// Compares the rows of a table. Returns their number and the difference.
fn compare(
    sessions: &mut [Session],
    name: &Name,
    table: &Table,
) -> Result<(u64, Option<Difference>), String> {
    let sums = query_all(sessions, &table.checksum(name))?;
    let counts = sums.iter().filter_map(|(_, rows)| rows.first()?.first()?.parse::<u64>().ok());
    let rows = counts.max().unwrap_or(0);
    let odd = minority(&sums);
    if odd.is_empty() {
        return Ok((rows, None));
    }
    // The first column is the number of the bucket; the others are compared.
    let buckets = query_all(sessions, &table.buckets(name, rows))?;
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
            !minority(&values).is_empty()
        })
        .collect();
    let mut found: Vec<RowDifference> = Vec::new();
    for bucket in differing.iter().take(BUCKETS_READ) {
        found.extend(compare_rows(&query_all(sessions, &table.bucket(name, rows, bucket))?));
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
        found.truncate(ROWS_LISTED);
        out.rows = found;
    }
    Ok((rows, Some(out)))
}

/// The report as text.
fn text(report: &Report) -> String {
    let Report { tables, rows, members, history, seqno, stood_seconds, .. } = report;
    let stopped = stood_seconds * 1000.0;
    let what = format!("{tables} tables, {rows} rows on {} at {history}:{seqno}", members.join(", "));
    let not_all = !report.not_compared.is_empty();
    let mut out = match (report.equal, not_all) {
        (true, false) => format!("equal: {what} (commits were stopped for {stopped:.0} ms)"),
        (true, true) if report.has_one_member_of_several() => format!("nothing to compare with: {what}"),
        (true, true) => {
            format!(
                "equal, but not all members were compared: {what} (commits were stopped for {stopped:.0} ms)"
            )
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
            // A connected member of the same name.
            MemberStatus { id: "another".into(), ..member("n2", "voter", "Synced") },
            MemberStatus { held_back: true, ..member("n3", "learner", "Synced") },
            member("arb", "arbitrator", "Disconnected"),
            // This arbitrator was shut down normally, so it is a learner now. It has no data either way.
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
    fn members_not_compared_set_exit_code_and_are_named() {
        let some = report(&["id of n1", "another"], true);
        assert_eq!(
            text(&some),
            "equal, but not all members were compared: 2 tables, 9 rows on n1, n2 at h:7 (commits were stopped for 3 ms)\n  \
             not compared: n2 (Disconnected), n3 (Synced, held back)"
        );
        let json = serde_json::to_value(&some).unwrap();
        assert_eq!(json["not_compared"][1]["name"], "n3");
        assert_eq!(json["not_compared"][1]["held_back"], true);
        assert_eq!((some.code(false), some.code(true)), (NOT_ALL, 0));
        let differ = report(&["id of n1", "another"], false);
        assert_eq!((differ.code(false), differ.code(true)), (1, 1), "a difference takes precedence");
        assert!(text(&differ).ends_with("\n  not compared: n2 (Disconnected), n3 (Synced, held back)"));
        let mut alone = report(&["id of n1"], true);
        alone.members.truncate(1);
        assert_eq!((alone.code(false), alone.code(true)), (NOT_ALL, NOT_ALL));
        assert!(text(&alone).starts_with("nothing to compare with: 2 tables, 9 rows on n1 at"));
        // Arbitrators have no data to compare.
        let all = report(&["id of n1", "another", "id of n2", "id of n3"], true);
        assert_eq!((all.not_compared.len(), all.code(false)), (0, 0));
        assert!(text(&all).starts_with("equal: 2 tables, "));
    }
}
