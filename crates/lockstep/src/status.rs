//! `lockstep status`: what the members within reach say, as a table.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use lockstep_node::MemberStatus;

use crate::progress::{print, say};
use crate::survey::{self, Survey, duration};
use crate::{Source, fetch};

/// The exit code where members answer, but none of them is in a primary component.
const NON_PRIMARY: u8 = 3;

/// What the members within reach say.
pub(crate) fn look(source: &Source) -> Result<Survey, String> {
    look_within(source, 2 * fetch::TIMEOUT)
}

/// As [`look`], with a timeout.
pub(crate) fn look_within(source: &Source, patience: Duration) -> Result<Survey, String> {
    let began = Instant::now();
    let (targets, expected) = source.targets();
    match survey::ask_within(&targets, expected, patience) {
        Ok(survey) => Ok(survey),
        // No cluster of `make up`: perhaps a server that was installed the usual way.
        Err(objection) => match source.fallback() {
            Some(target) => {
                let left = patience.saturating_sub(began.elapsed()).max(fetch::MIN_TIMEOUT);
                survey::ask_within(&[target], false, left).map_err(|more| match more.split_once('\n') {
                    Some((_, more)) => format!("{objection}\n{more}"),
                    None => objection,
                })
            }
            None => Err(objection),
        },
    }
}

/// Prints the status once, or until interrupted.
pub(crate) fn run(source: &Source, json: bool, watch: Option<Duration>) -> Result<ExitCode, String> {
    let look = || look(source);
    let show = |survey: &Survey| match json {
        true => serde_json::to_string(survey).map_err(|e| format!("cannot write JSON: {e}")),
        false => Ok(table(survey)),
    };
    let Some(pause) = watch else {
        let survey = look()?;
        say(&show(&survey)?);
        return Ok(if survey.status.cluster.primary {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(NON_PRIMARY)
        });
    };
    let screen = std::io::stdout().is_terminal() && !json;
    loop {
        let started = Instant::now();
        match look().and_then(|survey| show(&survey)) {
            // Home, the new picture line by line over the old one, then clear what is left of that.
            Ok(text) if screen => {
                let picture: String = text.lines().map(|line| format!("{line}\x1b[K\n")).collect();
                print(&format!("\x1b[H{picture}\x1b[J"));
            }
            Ok(text) if json => say(&text),
            Ok(text) => say(&format!("{text}\n")),
            // A member that does not answer now may answer again: keep looking.
            Err(objection) if screen => print(&format!("\x1b[H\x1b[J{objection}\n")),
            Err(objection) => eprintln!("lockstep: {objection}"),
        }
        std::thread::sleep(pause.saturating_sub(started.elapsed()));
    }
}

/// The picture for people.
pub(crate) fn table(survey: &Survey) -> String {
    let Survey { status, notes } = survey;
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
    let policy = policy(survey);
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
        let _ = writeln!(out, "{} waits: {what}", own.name);
    }
    let head = ["member", "role", "state", "zone", "seqno", "applied", "lag", "persisted", "rtt", "address"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(status.members.iter().map(|m| row(m, m.id == own.id)));
    out.push_str(&align(&rows));
    let log = &status.log;
    let _ = write!(
        out,
        "{} {} for {}, {} waiting, {} queued; its log: {} in {} {}, entries {} to {} (seqno {}), {} agreed on",
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
    for note in notes {
        let _ = write!(out, "\nnote: {note}");
    }
    out
}

/// The members that commits wait for, if unusual for the policy, and the transactions at risk.
fn policy(survey: &Survey) -> String {
    let Survey { status, .. } = survey;
    let mut out = status.cluster.policy.clone();
    if out == "semisync" {
        let cluster = &status.cluster;
        let acks = (cluster.acks != 1).then(|| format!("{} acks", cluster.acks));
        let memory = cluster.ack_on.as_deref() == Some("receive");
        let timeout = cluster.timeout_seconds.filter(|seconds| *seconds > 0.0);
        let all = [acks, memory.then(|| "on receive".into()), timeout.map(|s| format!("timeout {s} s"))];
        let said: Vec<String> = all.into_iter().flatten().collect();
        if !said.is_empty() {
            let _ = write!(out, " ({})", said.join(", "));
        }
    }
    if status.cluster.zone_acks > 0 && out != "async" {
        let _ = write!(out, " and {} other zone", status.cluster.zone_acks);
        out.push_str(if status.cluster.zone_acks == 1 { "" } else { "s" });
    }
    if status.cluster.fallen_back {
        out.push_str(", FALLEN BACK to async");
    }
    let stands = status.members.iter().find(|m| m.held_back && m.name == status.cluster.leader);
    if let Some(leader) = stands.filter(|_| ["async", "semisync"].contains(&status.cluster.policy.as_str())) {
        let _ = write!(
            out,
            ", NOBODY MAY WRITE: {} alone may, and entries are kept from its server",
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
    use lockstep_node::Status;

    fn sample() -> Survey {
        let mut survey = Survey { status: Status::example(), notes: vec!["n3 does not answer".into()] };
        survey.status.members[1].name = "second".into();
        survey
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
        assert!(lines[4].split_whitespace().filter(|v| *v == "-").count() == 5, "what is not known: {text}");
        assert!(lines[5].contains("3.0 MiB in 1 file,"), "{text}");
        assert_eq!(lines[6], "note: n3 does not answer");
    }

    #[test]
    fn whoever_has_no_majority_hears_how_many_are_missing() {
        let mut survey = sample();
        survey.status.cluster.primary = false;
        survey.status.cluster.voters_connected = 1;
        assert!(table(&survey).contains("non-Primary: 1 of 3 voters connected, 2 needed"));
    }

    #[test]
    fn that_nothing_is_waited_for_is_loud() {
        let mut survey = sample();
        assert!(!table(&survey).contains("FALLEN"));
        (survey.status.cluster.policy, survey.status.cluster.acks) = ("semisync".into(), 1);
        survey.status.cluster.fallen_back = true;
        assert!(table(&survey).contains("policy semisync, FALLEN BACK to async · leader"));
        survey.status.own.at_risk = 12;
        assert!(table(&survey).contains("FALLEN BACK to async, 12 at risk · leader"));
        survey.status.cluster.not_acknowledged_by = vec!["n2".into(), "n3".into()];
        let text = table(&survey);
        assert!(text.contains("BACK to async, not acknowledged by n2 and n3, 12 at risk · leader"), "{text}");
        survey.status.cluster.not_acknowledged_by.clear();
        (survey.status.cluster.fallen_back, survey.status.cluster.zone_acks) = (false, 1);
        assert!(table(&survey).contains("policy semisync and 1 other zone, 12 at risk · leader"));
        (survey.status.cluster.acks, survey.status.cluster.timeout_seconds) = (2, Some(1.5));
        survey.status.cluster.ack_on = Some("receive".into());
        let text = table(&survey);
        assert!(
            text.contains("policy semisync (2 acks, on receive, timeout 1.5 s) and 1 other zone,"),
            "{text}"
        );
    }

    #[test]
    fn that_nobody_may_write_is_loud() {
        let mut survey = sample();
        let leader = survey.status.cluster.leader.clone();
        survey.status.members.iter_mut().find(|m| m.name == leader).unwrap().held_back = true;
        assert!(!table(&survey).contains("NOBODY"), "under quorum the others may");
        survey.status.cluster.policy = "async".into();
        let said = format!(
            "policy async, NOBODY MAY WRITE: {leader} alone may, and entries are kept from its server"
        );
        assert!(table(&survey).contains(&said), "{}", table(&survey));
    }

    #[test]
    fn whoever_waits_says_for_whom() {
        let mut survey = sample();
        survey.status.own.waits_for = Some("not connected: n3; a majority of the voters is needed".into());
        assert!(table(&survey).contains("\nn1 waits: not connected: n3;"), "{}", table(&survey));
    }

    #[test]
    fn json_is_the_snapshot_and_the_notes() {
        let text = serde_json::to_string(&sample()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["self"]["name"], "n1");
        assert_eq!(value["notes"][0], "n3 does not answer");
        assert!(value["members"][2]["rtt_us"].is_null());
        let again = Survey { status: survey::parse(&text).unwrap(), notes: sample().notes };
        assert_eq!(table(&again), table(&sample()));
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(64 << 20), "64.0 MiB");
    }
}
