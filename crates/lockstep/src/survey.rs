//! Queries all reachable members, and merges their answers into one picture.
//!
//! A member outside of the cluster knows little of it, so the first answer is not enough. The picture is that of a member
//! in a primary component, its leader's if possible, completed by each member's facts about itself. Disagreements are
//! reported.

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lockstep_node::{OwnStatus, Status};
use serde::Serialize;

use crate::fetch::{self, Target};
use crate::up;

/// Once a member of a primary component has answered, the others have this long; three times that after another one has: one
/// that is frozen must not hold up the picture.
const LATE: Duration = Duration::from_millis(700);

/// The members' answers, merged.
#[derive(Debug, Serialize)]
pub(crate) struct Survey {
    /// The best informed member's snapshot.
    #[serde(flatten)]
    pub(crate) status: Status,
    /// Where the others disagree with it, or do not answer: a line each.
    pub(crate) notes: Vec<String>,
}

/// Asks all targets at once. Of those that do not answer only `expected` ones are worth a note.
pub(crate) fn ask(targets: &[Target], expected: bool) -> Result<Survey, String> {
    ask_within(targets, expected, 2 * fetch::TIMEOUT)
}

/// What each of them says of itself, all asked at once. `None`: no answer yet when others had long answered.
pub(crate) fn answers(targets: &[Target], patience: Duration) -> Vec<Option<Result<Status, String>>> {
    let mut deadline = Instant::now() + patience;
    let each = patience.min(fetch::TIMEOUT);
    let (sender, answers) = mpsc::channel();
    for (at, target) in targets.iter().cloned().enumerate() {
        let sender = sender.clone();
        std::thread::spawn(move || {
            let answer = fetch::get_within(&target, "/status", each).and_then(|body| parse(&body));
            // A late answer has no receiver any more.
            let _ = sender.send((at, answer));
        });
    }
    drop(sender);
    let mut found: Vec<Option<Result<Status, String>>> = targets.iter().map(|_| None).collect();
    while let Ok((at, answer)) = answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        if let Ok(status) = &answer {
            let late = if status.cluster.primary { LATE } else { 3 * LATE };
            deadline = deadline.min(Instant::now() + late);
        }
        found[at] = Some(answer);
    }
    found
}

/// Of a member that has not given an answer.
pub(crate) fn silence(target: &Target, objection: Option<String>) -> String {
    let why = objection.unwrap_or_else(|| "no answer in time: is its server stopped in its tracks?".into());
    format!("{target}: {why}")
}

/// As [`ask`], with a timeout.
pub(crate) fn ask_within(targets: &[Target], expected: bool, patience: Duration) -> Result<Survey, String> {
    let mut known = Vec::new();
    let mut silent = Vec::new();
    for (target, answer) in targets.iter().zip(answers(targets, patience)) {
        match answer {
            Some(Ok(status)) => known.push(status),
            Some(Err(objection)) => silent.push(silence(target, Some(objection))),
            None => silent.push(silence(target, None)),
        }
    }
    let Some(mut survey) = combine(known) else {
        let all = silent.join("\n  ");
        let why = match all.contains(fetch::NOT_ALLOWED) {
            true => "no member could be asked: their sockets are for root and the server's account",
            // The user named one server: another one's answer is of no use.
            false if targets == fetch::sockets(Path::new(up::DEFAULT_DIR)) => {
                "no member answers. Is the server running? (`make up` starts a cluster)"
            }
            false => "no member answers. Is the server running?",
        };
        return Err(format!("{why}\n  {all}"));
    };
    if expected {
        survey.notes.extend(silent);
    }
    Ok(survey)
}

/// Reads a snapshot.
pub(crate) fn parse(body: &str) -> Result<Status, String> {
    serde_json::from_str(body).map_err(|e| {
        format!("the member's status cannot be read ({e}); is it of another version than this program?")
    })
}

/// One picture of several.
fn combine(mut answers: Vec<Status>) -> Option<Survey> {
    let rank = |s: &Status| (s.cluster.primary, s.leads(), s.cluster.term, s.log.committed);
    let best = (0..answers.len()).rev().max_by_key(|at| rank(&answers[*at]))?;
    let mut status = answers.remove(best);
    let much = status.cluster.asks_too_much.clone();
    let own = much.into_iter().chain(rescued(&status)).chain(held_back(&status));
    let notes = own.chain(answers.iter().flat_map(|other| disagreement(&status, other)));
    let notes = notes.collect();
    let history = &status.cluster.uuid;
    for member in status.members.iter_mut().filter(|m| m.is_connected()) {
        let own = answers.iter().filter(|s| s.own.id == member.id && s.cluster.uuid == *history);
        let Some(own) = own.flat_map(|s| &s.members).find(|m| m.id == member.id) else { continue };
        member.persisted = member.persisted.or(own.persisted);
        if member.lag_seconds.is_none() && own.lag_trx != Some(0) {
            member.lag_seconds = own.lag_seconds;
            member.lag_bytes = own.lag_bytes;
        }
    }
    Some(Survey { status, notes })
}

/// What a member keeps that the cluster does not have.
fn rescued(status: &Status) -> Option<String> {
    let own = &status.own;
    (own.rescued > 0).then(|| {
        format!(
            "{} keeps {} transactions that the cluster does not have, in lockstep.rescue.*.log: look at them with lockstep log \
             --rescue, and move the file away when they are dealt with (this note goes with the next start of its server)",
            own.name, own.rescued_transactions
        )
    })
}

/// Settings in force that differ from the member's configuration.
fn held_back(status: &Status) -> Option<String> {
    let OwnStatus { name, apply_kept, .. } = &status.own;
    (!apply_kept.is_empty()).then(|| {
        format!(
            "{name} has {}: set while it ran, it holds also after a restart, until it is set again",
            apply_kept.join(", ")
        )
    })
}

/// What another member sees otherwise.
fn disagreement(best: &Status, other: &Status) -> Vec<String> {
    let name = &other.own.name;
    let mut notes = Vec::new();
    if let Some(failure) = &other.own.failure {
        notes.push(format!("{name} cannot go on: {failure}"));
    }
    let nil = |s: &Status| s.cluster.uuid.bytes().all(|c| matches!(c, b'0' | b'-'));
    if other.cluster.name != best.cluster.name && !other.cluster.name.is_empty() {
        notes.push(format!("{name} is of another cluster, {}", other.cluster.name));
    } else if other.cluster.uuid != best.cluster.uuid && !nil(other) && !nil(best) {
        notes.push(format!("{name} has another history, {}: it cannot join this one", other.cluster.uuid));
    } else if best.cluster.primary && !other.cluster.primary {
        let age = duration(other.own.state_seconds);
        notes.push(format!("{name} says that it is outside: non-Primary, {} for {age}", other.own.state));
    } else if best.cluster.primary && other.cluster.primary && other.cluster.leader != best.cluster.leader {
        let leader = if other.cluster.leader.is_empty() { "nobody" } else { &other.cluster.leader };
        notes.push(format!("{name} says that {leader} leads (term {})", other.cluster.term));
    }
    if let Some(what) = &other.own.waits_for {
        notes.push(format!("{name} waits: {what}"));
    }
    notes.extend(rescued(other));
    notes.extend(held_back(other));
    notes
}

/// A time for people.
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

    /// As this member of the example would say it.
    fn said_by(name: &str) -> Status {
        let mut status = Status::example();
        status.own.name = name.into();
        status.own.id = name.into();
        status
    }

    fn outside(name: &str) -> Status {
        let mut status = said_by(name);
        status.cluster.primary = false;
        status.cluster.leader = String::new();
        status.cluster.term = 9;
        status.own.state = "Initialized".into();
        status
    }

    #[test]
    fn member_outside_cluster_is_not_trusted() {
        for answers in [vec![outside("n3"), said_by("n2")], vec![said_by("n2"), outside("n3")]] {
            let survey = combine(answers).unwrap();
            assert_eq!(survey.status.own.name, "n2");
            assert_eq!(survey.notes, ["n3 says that it is outside: non-Primary, Initialized for 0.0 s"]);
        }
    }

    #[test]
    fn rescue_files_of_any_member_are_reported() {
        for keeps in ["n1", "n2"] {
            let mut answers = vec![said_by("n1"), said_by("n2")];
            let keeper = answers.iter_mut().find(|a| a.own.name == keeps).unwrap();
            (keeper.own.rescued, keeper.own.rescued_transactions) = (1, 2);
            let notes = combine(answers).unwrap().notes;
            assert!(
                matches!(&notes[..], [note] if note.starts_with(&format!("{keeps} keeps 2 transactions"))),
                "{notes:?}"
            );
        }
    }

    #[test]
    fn that_nobody_can_give_what_commits_wait_for_is_said() {
        let mut answer = said_by("n1");
        answer.cluster.asks_too_much = Some("commit.acks = 9, but there are 2 other members".into());
        assert_eq!(combine(vec![answer]).unwrap().notes, ["commit.acks = 9, but there are 2 other members"]);
    }

    #[test]
    fn runtime_settings_are_reported() {
        let mut answers = vec![said_by("n1"), said_by("n2")];
        answers[1].own.apply_kept = vec!["apply.paused=yes".into(), "apply.delay=1h".into()];
        let notes = combine(answers).unwrap().notes;
        assert!(
            notes[0].starts_with("n2 has apply.paused=yes, apply.delay=1h: set while it ran"),
            "{notes:?}"
        );
    }

    #[test]
    fn leader_status_is_preferred_and_completed() {
        let mut leader = said_by("n1");
        leader.members[1].lag_trx = Some(5);
        leader.members[1].lag_seconds = None;
        leader.members[1].lag_bytes = None;
        let mut second = said_by("n2");
        second.members[1].lag_trx = Some(4);
        second.members[1].lag_seconds = Some(1.5);
        second.members[1].lag_bytes = Some(900);
        second.cluster.leader = "n3".into();
        let survey = combine(vec![second, leader]).unwrap();
        assert_eq!(survey.status.own.name, "n1");
        assert_eq!(survey.status.members[1].lag_seconds, Some(1.5));
        assert_eq!(survey.status.members[1].lag_bytes, Some(900));
        assert_eq!(survey.notes, ["n2 says that n3 leads (term 2)"]);
    }

    #[test]
    fn others_say_what_they_alone_know_if_they_are_connected() {
        let mut first = said_by("n2");
        first.members[0].persisted = None;
        let third = said_by("n3");
        assert!(combine(vec![first.clone(), third]).unwrap().status.members[0].persisted.is_none());
        first.cluster.term = 3;
        let mut own = said_by("n1");
        own.cluster.leader = "n2".into();
        first.cluster.leader = "n2".into();
        let survey = combine(vec![own, first]).unwrap();
        assert_eq!((survey.status.own.name.as_str(), survey.status.members[0].persisted), ("n2", Some(9)));
    }

    #[test]
    fn strangers_are_named() {
        let mut other = said_by("x");
        other.cluster.uuid = "another".into();
        other.own.failure = Some("disk gone".into());
        let notes = combine(vec![said_by("n1"), other]).unwrap().notes;
        assert_eq!(notes[0], "x cannot go on: disk gone");
        assert!(notes[1].starts_with("x has another history"), "{notes:?}");
        assert!(combine(Vec::new()).is_none());
    }

    #[test]
    fn each_that_waits_says_for_whom() {
        let mut waiting = [outside("n1"), outside("n2")];
        waiting[1].own.waits_for = Some("not connected: n3".into());
        assert_eq!(combine(waiting.to_vec()).unwrap().notes, ["n2 waits: not connected: n3"]);
    }

    #[test]
    fn absent_member_is_named() {
        let target = Target::Socket("/nonexistent/lockstep.sock".into());
        let text = ask(&[target], true).unwrap_err();
        assert!(text.contains("/nonexistent/lockstep.sock: no such socket"), "{text}");
        assert!(text.starts_with("no member answers. Is the server running?\n"), "{text}");
    }

    #[test]
    fn snapshots_of_older_versions_are_read() {
        let old = r#"{"cluster":{"name":"c","primary":true},"self":{"name":"n1"},
            "members":[{"name":"n1","persisted":3,"lag_trx":-1,"lag_seconds":0.0,"rtt_us":null}],"log":{}}"#;
        assert_eq!(parse(old).unwrap().members[0].persisted, Some(3));
        assert!(parse("{\"cluster\": 3}").is_err());
    }
}
