//! `lockstep status`: prints the merged status of the reachable members as a table.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use lockstep_local::{print, say};
use lockstep_node::MemberStatus;

use crate::binlog::{ArchiveStatus, BinlogStatus, ConsumerStatus, IngestStatus};
use crate::block::BlockStatus;
use crate::fetch;
use crate::query::{self, ClusterStatus, duration};
use crate::source::Source;

/// Exit code if members answer, but none of them is in a primary component.
const NON_PRIMARY: u8 = 3;

/// Queries the reachable members, and merges their answers.
pub(crate) fn query(source: &Source) -> Result<ClusterStatus, String> {
    query_within(source, 2 * fetch::TIMEOUT)
}

/// As [`query`], with a timeout.
pub(crate) fn query_within(source: &Source, timeout: Duration) -> Result<ClusterStatus, String> {
    let began = Instant::now();
    let (targets, expected) = source.targets();
    match query::cluster_within(&targets, expected, timeout) {
        Ok(merged) => Ok(merged),
        // There is no cluster of `make up`. Try the installed server.
        Err(error) => match source.fallback() {
            Some(target) => {
                let left = timeout.saturating_sub(began.elapsed()).max(fetch::MIN_TIMEOUT);
                query::cluster_within(&[target], false, left).map_err(|more| match more.split_once('\n') {
                    Some((_, more)) => format!("{error}\n{more}"),
                    None => error,
                })
            }
            None => Err(error),
        },
    }
}

/// Prints the status once, or until interrupted.
pub(crate) fn run(source: &Source, json: bool, watch: Option<Duration>) -> Result<ExitCode, String> {
    let query = || query(source);
    let format = |merged: &ClusterStatus| match json {
        true => serde_json::to_string(merged).map_err(|e| format!("cannot write JSON: {e}")),
        false => Ok(table(merged)),
    };
    let Some(pause) = watch else {
        let merged = query()?;
        say(&format(&merged)?);
        return Ok(if merged.status.cluster.primary {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(NON_PRIMARY)
        });
    };
    let screen = std::io::stdout().is_terminal() && !json;
    loop {
        let started = Instant::now();
        match query().and_then(|merged| format(&merged)) {
            // Move the cursor home, overwrite the old table line by line, then clear its remaining lines.
            Ok(text) if screen => {
                let lines: String = text.lines().map(|line| format!("{line}\x1b[K\n")).collect();
                print(&format!("\x1b[H{lines}\x1b[J"));
            }
            Ok(text) if json => say(&text),
            Ok(text) => say(&format!("{text}\n")),
            // The members may answer again: keep querying.
            Err(error) if screen => print(&format!("\x1b[H\x1b[J{error}\n")),
            Err(error) => eprintln!("lockstep: {error}"),
        }
        std::thread::sleep(pause.saturating_sub(started.elapsed()));
    }
}

/// The status as a table with a summary, for the terminal.
pub(crate) fn table(merged: &ClusterStatus) -> String {
    let ClusterStatus { status, notes } = merged;
    let cluster = &status.cluster;
    let own = &status.own;
    let mut out = String::new();
    let leader = if cluster.leader.is_empty() { "none" } else { &cluster.leader };
    let (voters, connected) = (cluster.voters, cluster.voters_connected);
    let primary = match cluster.primary {
        true => format!("Primary ({connected} of {voters} voters connected)"),
        false if connected * 2 > voters => "non-Primary".into(),
        false if voters > 0 => {
            format!("non-Primary: {connected} of {voters} voters connected, {} needed", voters / 2 + 1)
        }
        false => "non-Primary: not in a cluster yet".into(),
    };
    let policy = policy(merged);
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "cluster {} as {} sees it · {primary} · policy {policy} · leader {leader} (term {}) · history {}",
        cluster.name, own.name, cluster.term, cluster.uuid
    );
    if let Some(failure) = &own.failure {
        let _ = writeln!(out, "{} cannot go on: {failure}", own.name);
    }
    if let Some(what) = &own.waits_for {
        let _ = writeln!(out, "{} is waiting: {what}", own.name);
    }
    let head = ["member", "role", "state", "zone", "seqno", "applied", "lag", "persisted", "rtt", "address"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(status.members.iter().map(|m| row(m, m.id == own.id)));
    out.push_str(&align(&rows));
    let log = &status.log;
    let _ = write!(
        out,
        "{} {} for {}, {} waiting, {} queued; its log: {} in {} {}, entries {} to {} (seqno {}), committed up to {}",
        own.name,
        own.state,
        duration(own.state_seconds),
        own.waiting,
        own.queued,
        bytes(log.bytes),
        log.segments,
        if log.segments == 1 { "file" } else { "files" },
        log.first,
        log.last,
        log.last_seqno,
        log.committed,
    );
    if let Some(binlog) = status.front_end.as_ref().and_then(BinlogStatus::in_page) {
        out.push('\n');
        out.push_str(&binlog_lines(&binlog));
    }
    if let Some(ingest) = status.front_end.as_ref().and_then(IngestStatus::in_page) {
        out.push('\n');
        out.push_str(&ingest_lines(&ingest));
    }
    if let Some(archive) = status.front_end.as_ref().and_then(ArchiveStatus::in_page) {
        out.push('\n');
        out.push_str(&archive_lines(&archive));
    }
    if let Some(block) = status.front_end.as_ref().and_then(BlockStatus::in_page) {
        out.push('\n');
        out.push_str(&block.text());
    }
    for note in notes {
        let _ = write!(out, "\nnote: {note}");
    }
    out
}

/// A binlog server's stream and consumers.
fn binlog_lines(binlog: &BinlogStatus) -> String {
    let mut out = format!(
        "binlog at {} · stream at {} · {} in {} {} from {}; {} are kept, {} for connected consumers",
        binlog.listen.as_deref().unwrap_or("no address yet"),
        if binlog.gtid.is_empty() { "its begin" } else { &binlog.gtid },
        bytes(binlog.bytes),
        binlog.files,
        if binlog.files == 1 { "file" } else { "files" },
        binlog.oldest_file.as_deref().unwrap_or("none"),
        bytes(binlog.keep_bytes),
        bytes(binlog.keep_connected_bytes),
    );
    if let (Some(seqno), Some(seconds)) = (binlog.waits_for_seqno, binlog.waits_seconds) {
        let _ = write!(
            out,
            "\nTHE STREAM WAITS for the result of the statement at seqno {seqno} ({})",
            duration(seconds)
        );
    }
    if let Some(seconds) = binlog.disk_full_seconds {
        let _ =
            write!(out, "\nTHE DISK of the binlog files IS FULL ({}): the stream waits", duration(seconds));
    }
    if binlog.dropped > 0 {
        let _ = write!(out, "\n{} dropped for lag: see the error log", consumers(binlog.dropped));
    }
    out.push_str(&consumer_lines(&binlog.consumers));
    out
}

/// How far an archive is.
fn archive_lines(archive: &ArchiveStatus) -> String {
    let mut out = format!("archive in {}", archive.target);
    match (&archive.gtid, &archive.time) {
        (Some(gtid), Some(time)) => {
            let _ = write!(out, " · complete up to {gtid} of {time}");
        }
        _ => out.push_str(" · nothing yet"),
    }
    if archive.catches_up {
        out.push_str(" · the archive is ahead: this instance catches up");
    }
    if let Some(seconds) = archive.failing_seconds {
        let why = archive.error.as_deref().unwrap_or("see the error log");
        let _ = write!(out, "\nTHE TARGET FAILS ({}): {why}", duration(seconds));
    }
    out
}

/// The copy of a primary's binlog, and its consumers.
fn ingest_lines(ingest: &IngestStatus) -> String {
    let none = || "nothing yet".to_owned();
    let mut out = format!(
        "copy of the binlog of {} up to {}",
        ingest.primary,
        ingest.copied.clone().unwrap_or_else(none)
    );
    if ingest.reads {
        let _ = write!(
            out,
            " · this member reads it, {} behind · acknowledged: {} · a commit there {}",
            bytes(ingest.behind_bytes.unwrap_or(0)),
            ingest.acknowledged.clone().unwrap_or_else(none),
            if ingest.durable {
                "waits for a majority"
            } else {
                "DOES NOT WAIT for a majority: see the error log"
            }
        );
    }
    if let Some(listen) = &ingest.listen {
        let _ = write!(out, " · serves replicas at {listen}");
    }
    if let Some(trouble) = &ingest.trouble {
        let _ = write!(out, "\nTHIS MEMBER LEADS, AND CANNOT READ THE PRIMARY: {trouble}");
    }
    out.push_str(&consumer_lines(&ingest.consumers));
    out
}

/// The table of consumers, if there is any.
fn consumer_lines(consumers: &[ConsumerStatus]) -> String {
    let mut out = String::new();
    if !consumers.is_empty() {
        let head = [
            "consumer",
            "server id",
            "state",
            "file",
            "position",
            "gtid",
            "behind",
            "acked",
            "tls",
            "address",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        rows.extend(consumers.iter().map(consumer_row));
        let _ = write!(out, "\n{}", align(&rows).trim_end());
    }
    out
}

fn consumers(count: u64) -> String {
    format!("{count} {}", if count == 1 { "consumer was" } else { "consumers were" })
}

fn consumer_row(consumer: &ConsumerStatus) -> Vec<String> {
    let text = |value: Option<String>| value.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".into());
    let behind = consumer.behind_bytes.map(|behind| match consumer.behind_seconds {
        Some(seconds) if behind > 0 => format!("{} ({})", bytes(behind), duration(seconds)),
        _ => bytes(behind),
    });
    let name = match &consumer.host {
        Some(host) => format!("{} ({host})", consumer.user),
        None => consumer.user.clone(),
    };
    vec![
        text(Some(name)),
        text(consumer.server_id.map(|id| id.to_string())),
        consumer.state.clone(),
        text(consumer.file.clone()),
        text(consumer.position.map(|position| position.to_string())),
        text(consumer.gtid.clone()),
        text(behind),
        text(consumer.acked.clone()),
        if consumer.encrypted { "yes" } else { "no" }.into(),
        consumer.address.clone(),
    ]
}

/// The commit policy, its options that differ from the defaults, its present problems, and the transactions at risk.
fn policy(merged: &ClusterStatus) -> String {
    let ClusterStatus { status, .. } = merged;
    let mut out = status.cluster.policy.clone();
    if out == "semisync" {
        let cluster = &status.cluster;
        let acks = (cluster.acks != 1).then(|| format!("{} acks", cluster.acks));
        let memory = cluster.ack_on.as_deref() == Some("receive");
        let timeout = cluster.timeout_seconds.filter(|seconds| *seconds > 0.0);
        let all = [acks, memory.then(|| "on receive".into()), timeout.map(|s| format!("timeout {s} s"))];
        let options: Vec<String> = all.into_iter().flatten().collect();
        if !options.is_empty() {
            let _ = write!(out, " ({})", options.join(", "));
        }
    }
    if status.cluster.zone_acks > 0 && out != "async" {
        let _ = write!(out, " and {} other zone", status.cluster.zone_acks);
        out.push_str(if status.cluster.zone_acks == 1 { "" } else { "s" });
    }
    if status.cluster.fallen_back {
        out.push_str(", FALLEN BACK to async");
    }
    let held_leader = status.members.iter().find(|m| m.held_back && m.name == status.cluster.leader);
    if let Some(leader) =
        held_leader.filter(|_| ["async", "semisync"].contains(&status.cluster.policy.as_str()))
    {
        let _ = write!(
            out,
            ", NOBODY MAY WRITE: only the leader {} may, and an apply hold keeps entries from its server",
            leader.name
        );
    }
    if !status.cluster.not_acknowledged_by.is_empty() {
        let _ = write!(out, ", not acknowledged by {}", status.cluster.not_acknowledged_by.join(" and "));
    }
    if status.own.at_risk > 0 {
        let _ = write!(out, ", {} at risk", status.own.at_risk);
    }
    out
}

fn row(member: &MemberStatus, own: bool) -> Vec<String> {
    fn known<T: ToString>(value: Option<T>) -> String {
        value.map_or_else(|| "-".to_owned(), |v| v.to_string())
    }
    let lag = match (member.lag_trx, member.lag_seconds) {
        (Some(trx), Some(s)) if trx > 0 && s > 0.0 => format!("{trx} ({})", duration(s)),
        (trx, _) => known(trx),
    };
    let rtt = match member.rtt_us {
        _ if own => "self".to_owned(),
        Some(us) if us >= 10_000 => format!("{} ms", us / 1000),
        Some(us) => format!("{us} µs"),
        None => known(None::<u64>),
    };
    let state = match member.gone_seconds {
        Some(gone) if !member.is_connected() => format!("{} ({})", member.state, duration(gone)),
        _ if member.disk_stalled_seconds.is_some_and(|s| s > 0.0) => {
            let stalled = member.disk_stalled_seconds.map(duration).unwrap_or_default();
            format!("{}, DISK STANDS STILL ({stalled})", member.state)
        }
        _ if member.held_back => format!("{}, held back", member.state),
        _ => member.state.clone(),
    };
    vec![
        member.name.clone(),
        member.role.clone(),
        state,
        member.zone.to_string(),
        known(member.seqno),
        known(member.applied),
        lag,
        known(member.persisted),
        rtt,
        member.address.clone(),
    ]
}

/// Aligns columns, with two spaces between them.
fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|v| v.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (value, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{value:width$}  ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// A size with a unit.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_node::Status;

    fn sample() -> ClusterStatus {
        let mut merged =
            ClusterStatus { status: Status::example(), notes: vec!["n3 does not answer".into()] };
        merged.status.members[1].name = "second".into();
        merged
    }

    #[test]
    fn table_has_one_line_per_member() {
        let text = table(&sample());
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("cluster demo as n1 sees it · Primary (2 of 3 voters connected)"),
            "{text}"
        );
        assert!(lines[2].starts_with("n1      leader"), "{text}");
        assert!(lines[3].starts_with("second  voter") && lines[3].contains("150 µs"), "{text}");
        assert!(lines[4].contains("Disconnected (75 s)"), "{text}");
        assert!(
            lines[4].split_whitespace().filter(|v| *v == "-").count() == 5,
            "unknown values are dashes: {text}"
        );
        assert!(lines[5].contains("3.0 MiB in 1 file,"), "{text}");
        assert_eq!(lines[6], "note: n3 does not answer");
    }

    #[test]
    fn non_primary_names_number_of_needed_voters() {
        let mut merged = sample();
        merged.status.cluster.primary = false;
        merged.status.cluster.voters_connected = 1;
        assert!(table(&merged).contains("non-Primary: 1 of 3 voters connected, 2 needed"));
    }

    #[test]
    fn policy_fallback_is_printed_in_capitals() {
        let mut merged = sample();
        assert!(!table(&merged).contains("FALLEN"));
        (merged.status.cluster.policy, merged.status.cluster.acks) = ("semisync".into(), 1);
        merged.status.cluster.fallen_back = true;
        assert!(table(&merged).contains("policy semisync, FALLEN BACK to async · leader"));
        merged.status.own.at_risk = 12;
        assert!(table(&merged).contains("FALLEN BACK to async, 12 at risk · leader"));
        merged.status.cluster.not_acknowledged_by = vec!["n2".into(), "n3".into()];
        let text = table(&merged);
        assert!(text.contains("BACK to async, not acknowledged by n2 and n3, 12 at risk · leader"), "{text}");
        merged.status.cluster.not_acknowledged_by.clear();
        (merged.status.cluster.fallen_back, merged.status.cluster.zone_acks) = (false, 1);
        assert!(table(&merged).contains("policy semisync and 1 other zone, 12 at risk · leader"));
        (merged.status.cluster.acks, merged.status.cluster.timeout_seconds) = (2, Some(1.5));
        merged.status.cluster.ack_on = Some("receive".into());
        let text = table(&merged);
        assert!(
            text.contains("policy semisync (2 acks, on receive, timeout 1.5 s) and 1 other zone,"),
            "{text}"
        );
    }

    #[test]
    fn held_leader_under_weak_policy_is_reported() {
        let mut merged = sample();
        let leader = merged.status.cluster.leader.clone();
        merged.status.members.iter_mut().find(|m| m.name == leader).unwrap().held_back = true;
        assert!(!table(&merged).contains("NOBODY"), "under quorum the other members may write");
        merged.status.cluster.policy = "async".into();
        let expected = format!(
            "policy async, NOBODY MAY WRITE: only the leader {leader} may, and an apply hold keeps entries from its server"
        );
        assert!(table(&merged).contains(&expected), "{}", table(&merged));
    }

    #[test]
    fn waiting_member_names_its_reason() {
        let mut merged = sample();
        merged.status.own.waits_for = Some("not connected: n3; a majority of the voters is needed".into());
        assert!(table(&merged).contains("\nn1 is waiting: not connected: n3;"), "{}", table(&merged));
    }

    #[test]
    fn binlog_server_lists_its_consumers() {
        let mut merged = sample();
        merged.status.front_end = Some(serde_json::to_value(BinlogStatus::example()).unwrap());
        let text = table(&merged);
        for expected in [
            "\nbinlog at 0.0.0.0:3307 · stream at 1-10-9 · 3.0 MiB in 2 files from lockstep-bin.000001; 20.0 GiB are kept,",
            "\nTHE STREAM WAITS for the result of the statement at seqno 10 (75 s)\n",
            "\n1 consumer was dropped for lag",
            "\ncopy (db1)  71         has all ",
            "  5.0 MiB (12 s)  ",
            "  lockstep-bin.000001:4000  ",
            "\nnote: n3 does not answer",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(!text.contains("DISK of"), "{text}");
        let json = serde_json::to_string(&merged).unwrap();
        let again = ClusterStatus { status: query::parse(&json).unwrap(), notes: merged.notes.clone() };
        assert_eq!(table(&again), text);
    }

    #[test]
    fn json_contains_status_and_notes() {
        let text = serde_json::to_string(&sample()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["self"]["name"], "n1");
        assert_eq!(value["notes"][0], "n3 does not answer");
        assert!(value["members"][2]["rtt_us"].is_null());
        let again = ClusterStatus { status: query::parse(&text).unwrap(), notes: sample().notes };
        assert_eq!(table(&again), table(&sample()));
    }

    #[test]
    fn size_uses_readable_unit() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(64 << 20), "64.0 MiB");
    }
}
