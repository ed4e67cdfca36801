//! Queries all reachable members, and merges their answers into one status of the cluster.
//!
//! A member outside of the cluster knows little of it, so the first answer is not enough. The merged status is the answer
//! of a member in a primary component, the leader's if possible. The other members' answers complete it with facts about
//! themselves. Notes report contradictions.

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lockstep_node::{OwnStatus, Status};
use serde::Serialize;

use crate::block::BlockStatus;
use crate::cluster_dir;
use crate::fetch::{self, Target};

/// Time for the other answers after a member of a primary component has answered, so that a frozen member does not delay
/// the result. After the answer of a member outside, the others have three times as long.
const GRACE: Duration = Duration::from_millis(700);

/// The members' answers, merged.
#[derive(Debug, Serialize)]
pub(crate) struct ClusterStatus {
    /// The status of the best informed member.
    #[serde(flatten)]
    pub(crate) status: Status,
    /// One line for each contradiction, and for each member without an answer.
    pub(crate) notes: Vec<String>,
}

/// Queries all targets at once. If they are `expected` to answer, a note names each one that does not.
pub(crate) fn cluster(targets: &[Target], expected: bool) -> Result<ClusterStatus, String> {
    cluster_within(targets, expected, 2 * fetch::TIMEOUT)
}

/// Queries all targets at once, and returns each one's answer. `None`: the target did not answer within [`GRACE`].
pub(crate) fn each(targets: &[Target], timeout: Duration) -> Vec<Option<Result<Status, String>>> {
    let mut deadline = Instant::now() + timeout;
    let each = timeout.min(fetch::TIMEOUT);
    let (sender, answers) = mpsc::channel();
    for (at, target) in targets.iter().cloned().enumerate() {
        let sender = sender.clone();
        std::thread::spawn(move || {
            let answer = fetch::get_within(&target, "/status", each).and_then(|body| parse(&body));
            // The receiver does not exist any more if the answer is late.
            let _ = sender.send((at, answer));
        });
    }
    drop(sender);
    let mut found: Vec<Option<Result<Status, String>>> = targets.iter().map(|_| None).collect();
    while let Ok((at, answer)) = answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        if let Ok(status) = &answer {
            let grace = if status.cluster.primary { GRACE } else { 3 * GRACE };
            deadline = deadline.min(Instant::now() + grace);
        }
        found[at] = Some(answer);
    }
    found
}

/// The text about a target that has not answered.
pub(crate) fn no_answer(target: &Target, error: Option<String>) -> String {
    let why = error.unwrap_or_else(|| "no answer in time: is its server frozen?".into());
    format!("{target}: {why}")
}

/// As [`cluster`], with a timeout.
pub(crate) fn cluster_within(
    targets: &[Target],
    expected: bool,
    timeout: Duration,
) -> Result<ClusterStatus, String> {
    let mut known = Vec::new();
    let mut silent = Vec::new();
    for (target, answer) in targets.iter().zip(each(targets, timeout)) {
        match answer {
            Some(Ok(status)) => known.push(status),
            Some(Err(error)) => silent.push(no_answer(target, Some(error))),
            None => silent.push(no_answer(target, None)),
        }
    }
    let Some(mut merged) = merge(known) else {
        let all = silent.join("\n  ");
        let why = match all.contains(fetch::NOT_ALLOWED) {
            true => "cannot query any member: only root and the server's account may use their sockets",
            // If the user named a server, a hint at another cluster is of no use.
            false if targets == fetch::sockets(Path::new(cluster_dir::DEFAULT_DIR)) => {
                "no member answers. Is the server running? (`make up` starts a cluster)"
            }
            false => "no member answers. Is the server running?",
        };
        return Err(format!("{why}\n  {all}"));
    };
    if expected {
        merged.notes.extend(silent);
    }
    Ok(merged)
}

/// Parses a member's status.
pub(crate) fn parse(body: &str) -> Result<Status, String> {
    serde_json::from_str(body).map_err(|e| {
        format!(
            "cannot parse the member's status ({e}): does the member run another version than this program?"
        )
    })
}

/// Merges the members' answers. `None` if there are none.
fn merge(mut answers: Vec<Status>) -> Option<ClusterStatus> {
    let rank = |s: &Status| (s.cluster.primary, s.leads(), s.cluster.term, s.log.committed);
    let best = (0..answers.len()).rev().max_by_key(|at| rank(&answers[*at]))?;
    let mut status = answers.remove(best);
    let unsatisfiable = status.cluster.asks_too_much.clone();
    let own = unsatisfiable.into_iter().chain(rescue_note(&status)).chain(settings_note(&status));
    let own = own.chain(pace_note(&status));
    let notes = own.chain(answers.iter().flat_map(|other| contradictions(&status, other)));
    let notes = notes.collect();
    let history = &status.cluster.uuid;
    for member in status.members.iter_mut().filter(|m| m.is_connected()) {
        let own = answers.iter().filter(|s| s.own.id == member.id && s.cluster.uuid == *history);
        let Some(own) = own.flat_map(|s| &s.members).find(|m| m.id == member.id) else { continue };
        member.persisted = member.persisted.or(own.persisted);
        member.disk_stalled_seconds = member.disk_stalled_seconds.or(own.disk_stalled_seconds);
        if member.lag_seconds.is_none() && own.lag_trx != Some(0) {
            member.lag_seconds = own.lag_seconds;
            member.lag_bytes = own.lag_bytes;
        }
    }
    Some(ClusterStatus { status, notes })
}

/// A note about the transactions in a member's rescue files.
fn rescue_note(status: &Status) -> Option<String> {
    let own = &status.own;
    let is_device = status.front_end.as_ref().and_then(BlockStatus::in_page).is_some();
    let (entries, process) =
        if is_device { ("entries of the device", "process") } else { ("transactions", "server") };
    (own.rescued > 0).then(|| {
        format!(
            "{} keeps {} {entries} that the cluster does not have, in lockstep.rescue.*.log: review them with lockstep \
             log --rescue, then move the file away (the next start of its {process} removes this note)",
            own.name, own.rescued_transactions
        )
    })
}

/// A note about apply options that were set at runtime and survive restarts.
fn settings_note(status: &Status) -> Option<String> {
    let OwnStatus { name, apply_kept, .. } = &status.own;
    (!apply_kept.is_empty()).then(|| {
        format!(
            "{name} has {}: set while it ran, and in force until it is set again, also after a restart",
            apply_kept.join(", ")
        )
    })
}

/// A note about clients that are slowed down because a member lags.
fn pace_note(status: &Status) -> Option<String> {
    let OwnStatus { name, pace_limit, pace_for, .. } = &status.own;
    let limit = pace_limit.as_ref()?;
    let lagging = pace_for.join(" and ");
    Some(format!(
        "{name} limits its clients' writes to {limit:.0} a second, because of the lag of {lagging} (apply.pace)"
    ))
}

/// Notes about another member: its problems, and facts that contradict the best informed member's.
fn contradictions(best: &Status, other: &Status) -> Vec<String> {
    let name = &other.own.name;
    let mut notes = Vec::new();
    if let Some(failure) = &other.own.failure {
        notes.push(format!("{name} cannot go on: {failure}"));
    }
    let nil = |s: &Status| s.cluster.uuid.bytes().all(|c| matches!(c, b'0' | b'-'));
    if other.cluster.name != best.cluster.name && !other.cluster.name.is_empty() {
        notes.push(format!("{name} belongs to another cluster, {}", other.cluster.name));
    } else if other.cluster.uuid != best.cluster.uuid && !nil(other) && !nil(best) {
        notes.push(format!(
            "{name} has another history, {}: it cannot join this cluster with it",
            other.cluster.uuid
        ));
    } else if best.cluster.primary && !other.cluster.primary {
        let age = duration(other.own.state_seconds);
        notes.push(format!("{name} reports that it is non-Primary: {} for {age}", other.own.state));
    } else if best.cluster.primary && other.cluster.primary && other.cluster.leader != best.cluster.leader {
        let leader = if other.cluster.leader.is_empty() { "no leader" } else { &other.cluster.leader };
        notes.push(format!("{name} reports another leader: {leader} (term {})", other.cluster.term));
    }
    if let Some(what) = &other.own.waits_for {
        notes.push(format!("{name} is waiting: {what}"));
    }
    notes.extend(rescue_note(other));
    notes.extend(settings_note(other));
    notes.extend(pace_note(other));
    notes
}

/// A duration with a unit.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} d", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example status as this member would report it.
    fn reported_by(name: &str) -> Status {
        let mut status = Status::example();
        status.own.name = name.into();
        status.own.id = name.into();
        status
    }

    fn outside(name: &str) -> Status {
        let mut status = reported_by(name);
        status.cluster.primary = false;
        status.cluster.leader = String::new();
        status.cluster.term = 9;
        status.own.state = "Initialized".into();
        status
    }

    #[test]
    fn member_outside_cluster_is_not_trusted() {
        for answers in [vec![outside("n3"), reported_by("n2")], vec![reported_by("n2"), outside("n3")]] {
            let merged = merge(answers).unwrap();
            assert_eq!(merged.status.own.name, "n2");
            assert_eq!(merged.notes, ["n3 reports that it is non-Primary: Initialized for 0.0 s"]);
        }
    }

    #[test]
    fn rescue_files_of_any_member_are_reported() {
        for keeps in ["n1", "n2"] {
            let mut answers = vec![reported_by("n1"), reported_by("n2")];
            let keeper = answers.iter_mut().find(|a| a.own.name == keeps).unwrap();
            (keeper.own.rescued, keeper.own.rescued_transactions) = (1, 2);
            let notes = merge(answers).unwrap().notes;
            assert!(
                matches!(&notes[..], [note] if note.starts_with(&format!("{keeps} keeps 2 transactions"))),
                "{notes:?}"
            );
        }
        let mut device = reported_by("n1");
        (device.own.rescued, device.own.rescued_transactions) = (1, 2);
        device.front_end = Some(serde_json::json!({ "kind": "block" }));
        let notes = merge(vec![device]).unwrap().notes;
        assert!(
            notes[0].starts_with("n1 keeps 2 entries of the device") && !notes[0].contains("server"),
            "{notes:?}"
        );
    }

    #[test]
    fn unsatisfiable_policy_is_reported() {
        let mut answer = reported_by("n1");
        answer.cluster.asks_too_much = Some("commit.acks = 9, but there are 2 other members".into());
        assert_eq!(merge(vec![answer]).unwrap().notes, ["commit.acks = 9, but there are 2 other members"]);
    }

    #[test]
    fn runtime_settings_are_reported() {
        let mut answers = vec![reported_by("n1"), reported_by("n2")];
        answers[1].own.apply_kept = vec!["apply.paused=yes".into(), "apply.delay=1h".into()];
        let notes = merge(answers).unwrap().notes;
        assert!(
            notes[0].starts_with("n2 has apply.paused=yes, apply.delay=1h: set while it ran"),
            "{notes:?}"
        );
    }

    #[test]
    fn limited_writes_of_any_member_are_reported() {
        let mut answers = vec![reported_by("n1"), reported_by("n2")];
        answers[1].own.pace_limit = Some(1234.5);
        answers[1].own.pace_for = vec!["n1".into()];
        let note = "n2 limits its clients' writes to 1234 a second, because of the lag of n1 (apply.pace)";
        assert_eq!(merge(answers).unwrap().notes, [note]);
    }

    #[test]
    fn leader_status_is_preferred_and_completed() {
        let mut leader = reported_by("n1");
        leader.members[1].lag_trx = Some(5);
        leader.members[1].lag_seconds = None;
        leader.members[1].lag_bytes = None;
        let mut second = reported_by("n2");
        second.members[1].lag_trx = Some(4);
        second.members[1].lag_seconds = Some(1.5);
        second.members[1].lag_bytes = Some(900);
        second.cluster.leader = "n3".into();
        let merged = merge(vec![second, leader]).unwrap();
        assert_eq!(merged.status.own.name, "n1");
        assert_eq!(merged.status.members[1].lag_seconds, Some(1.5));
        assert_eq!(merged.status.members[1].lag_bytes, Some(900));
        assert_eq!(merged.notes, ["n2 reports another leader: n3 (term 2)"]);
    }

    #[test]
    fn connected_members_complete_the_leader_status() {
        let mut first = reported_by("n2");
        first.members[0].persisted = None;
        let third = reported_by("n3");
        assert!(merge(vec![first.clone(), third]).unwrap().status.members[0].persisted.is_none());
        first.cluster.term = 3;
        let mut own = reported_by("n1");
        own.cluster.leader = "n2".into();
        first.cluster.leader = "n2".into();
        let merged = merge(vec![own, first]).unwrap();
        assert_eq!((merged.status.own.name.as_str(), merged.status.members[0].persisted), ("n2", Some(9)));
    }

    #[test]
    fn member_with_other_history_is_reported() {
        let mut other = reported_by("x");
        other.cluster.uuid = "another".into();
        other.own.failure = Some("disk gone".into());
        let notes = merge(vec![reported_by("n1"), other]).unwrap().notes;
        assert_eq!(notes[0], "x cannot go on: disk gone");
        assert!(notes[1].starts_with("x has another history"), "{notes:?}");
        assert!(merge(Vec::new()).is_none());
    }

    #[test]
    fn waiting_members_name_their_reasons() {
        let mut waiting = [outside("n1"), outside("n2")];
        waiting[1].own.waits_for = Some("not connected: n3".into());
        assert_eq!(merge(waiting.to_vec()).unwrap().notes, ["n2 is waiting: not connected: n3"]);
    }

    #[test]
    fn unreachable_member_is_named() {
        let target = Target::Socket("/nonexistent/lockstep.sock".into());
        let text = cluster(&[target], true).unwrap_err();
        assert!(text.contains("/nonexistent/lockstep.sock: no such socket"), "{text}");
        assert!(text.starts_with("no member answers. Is the server running?\n"), "{text}");
    }

    #[test]
    fn status_of_older_version_is_parsed() {
        let old = r#"{"cluster":{"name":"c","primary":true},"self":{"name":"n1"},
            "members":[{"name":"n1","persisted":3,"lag_trx":-1,"lag_seconds":0.0,"rtt_us":null}],"log":{}}"#;
        assert_eq!(parse(old).unwrap().members[0].persisted, Some(3));
        assert!(parse("{\"cluster\": 3}").is_err());
    }
}
