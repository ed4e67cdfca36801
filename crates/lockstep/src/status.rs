//! `lockstep status`: the snapshot that a member serves, as a table.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use lockstep_node::{MemberStatus, Status};

use crate::Source;
use crate::fetch;
use crate::progress::say;

/// Prints the status once, or until interrupted.
pub(crate) fn run(source: &Source, json: bool, watch: Option<Duration>) -> Result<(), String> {
    let targets = source.targets();
    loop {
        let started = Instant::now();
        let text = fetch::first(&targets, "/status").and_then(|body| {
            if json { Ok(body.trim_end().to_owned()) } else { parse(&body).map(|status| table(&status)) }
        });
        let Some(pause) = watch else {
            say(&text?);
            return Ok(());
        };
        // A member that does not answer now may answer again: keep looking.
        let text = text.unwrap_or_else(|objection| objection);
        if json {
            say(&text);
        } else {
            // Home, the new picture line by line over the old one, then clear what is left of that.
            let picture: String = text.lines().map(|line| format!("{line}\x1b[K\n")).collect();
            print!("\x1b[H{picture}\x1b[J");
            let _ = std::io::Write::flush(&mut std::io::stdout());
        }
        std::thread::sleep(pause.saturating_sub(started.elapsed()));
    }
}

/// Reads a snapshot.
pub(crate) fn parse(body: &str) -> Result<Status, String> {
    serde_json::from_str(body).map_err(|e| {
        format!("the member's status cannot be read ({e}); is it of another version than this program?")
    })
}

/// The snapshot for people.
pub(crate) fn table(status: &Status) -> String {
    let cluster = &status.cluster;
    let mut out = String::new();
    let leader = if cluster.leader.is_empty() { "none" } else { &cluster.leader };
    let primary = if cluster.primary { "Primary" } else { "non-Primary" };
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "cluster {} as {} sees it · {primary} · policy {} · leader {leader} (term {}) · history {}",
        cluster.name, status.own.name, cluster.policy, cluster.term, cluster.uuid
    );
    if let Some(failure) = &status.own.failure {
        let _ = writeln!(out, "{} cannot go on: {failure}", status.own.name);
    }
    let head = ["member", "role", "state", "zone", "seqno", "applied", "lag", "persisted", "rtt", "address"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(status.members.iter().map(|m| row(m, m.name == status.own.name)));
    out.push_str(&align(&rows));
    let log = &status.log;
    let _ = write!(
        out,
        "log of {}: {} in {} {}, entries {} to {}, {} agreed on; {} waiting, {} queued",
        status.own.name,
        bytes(log.bytes),
        log.segments,
        if log.segments == 1 { "file" } else { "files" },
        log.first,
        log.last,
        log.committed,
        status.own.waiting,
        status.own.queued,
    );
    out
}

fn row(member: &MemberStatus, own: bool) -> Vec<String> {
    let known = |value: i64| if value < 0 { "?".to_owned() } else { value.to_string() };
    let lag = match (member.lag_trx, member.lag_seconds) {
        (trx, _) if trx < 0 => "?".to_owned(),
        (0, _) => "0".to_owned(),
        (trx, s) if s > 0.0 => format!("{trx} ({s:.1} s)"),
        (trx, _) => trx.to_string(),
    };
    let rtt = match member.rtt_us {
        _ if own => "self".to_owned(),
        Some(us) if us >= 10_000 => format!("{} ms", us / 1000),
        Some(us) => format!("{us} µs"),
        None => "?".to_owned(),
    };
    vec![
        member.name.clone(),
        member.role.clone(),
        member.state.clone(),
        member.zone.to_string(),
        known(member.seqno),
        known(member.applied),
        lag,
        member.persisted.to_string(),
        rtt,
        member.address.clone(),
    ]
}

/// Columns side by side, two spaces between.
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

/// A size for people.
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

    fn sample() -> Status {
        let mut status = Status::default();
        status.cluster.name = "demo".into();
        status.cluster.leader = "n1".into();
        status.cluster.primary = true;
        status.own.name = "n1".into();
        let member = |name: &str, role: &str, applied, rtt_us| MemberStatus {
            name: name.into(),
            role: role.into(),
            state: if applied < 0 { "Disconnected" } else { "Synced" }.into(),
            seqno: applied,
            applied,
            lag_trx: if applied < 0 { -1 } else { 0 },
            rtt_us,
            ..MemberStatus::default()
        };
        status.members = vec![member("n1", "leader", 7, None), member("second", "voter", 7, Some(150))];
        status.members.push(member("n3", "voter", -1, None));
        status.log.bytes = 3 << 20;
        status.log.segments = 1;
        status
    }

    #[test]
    fn the_table_has_a_line_for_each_member() {
        let text = table(&sample());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("cluster demo as n1 sees it · Primary"), "{text}");
        assert!(lines[2].starts_with("n1      leader"), "{text}");
        assert!(lines[3].starts_with("second  voter") && lines[3].contains("150 µs"), "{text}");
        assert!(lines[4].contains("Disconnected") && lines[4].contains('?'), "{text}");
        assert!(lines[5].contains("3.0 MiB in 1 file,"), "{text}");
    }

    #[test]
    fn a_snapshot_survives_the_way_and_nonsense_is_refused() {
        let body = serde_json::to_string(&sample()).unwrap();
        assert_eq!(table(&parse(&body).unwrap()), table(&sample()));
        assert!(parse("{\"cluster\": 3}").is_err());
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(64 << 20), "64.0 MiB");
    }
}
