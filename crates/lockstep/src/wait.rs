//! `lockstep wait`: waits until members have applied the cluster's committed position, or a given one.

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lockstep_local::say;
use lockstep_node::{MemberStatus, Status};
use serde::{Deserialize, Serialize};

use crate::absent::{self, Absent};
use crate::source::Source;
use crate::{fetch, status};

/// Exit code after a timeout.
const TIMED_OUT: u8 = 3;
/// Exit code if a new leader left the seqno out, so that no member will ever apply it.
const LEFT_OUT: u8 = 4;
/// Time between two queries of the members.
const POLL_PERIOD: Duration = Duration::from_millis(100);
/// Time between two progress lines.
const REPORT_PERIOD: Duration = Duration::from_secs(2);
/// Extra time for error answers that arrive just after the timeout.
const GRACE: Duration = Duration::from_millis(50);

#[derive(clap::Args, Debug)]
pub(crate) struct WaitArgs {
    /// A seqno, or UUID:seqno: wsrep_cluster_state_uuid and wsrep_last_committed after a write. (For the server's own
    /// GTIDs, domain-server-number, use `WSREP_SYNC_WAIT_UPTO_GTID()`.) [default: the cluster's committed position].
    position: Option<String>,
    /// Wait for these members only, separated by commas [default: all connected members with a database; the result
    /// names the others].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    member: Vec<String>,
    /// Timeout in seconds. It includes the wait for a leader.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = lockstep_local::seconds)]
    timeout: Duration,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: Source,
}

impl WaitArgs {
    /// Whether to print JSON.
    pub(crate) fn wants_json(&self) -> bool {
        self.json
    }
}

/// The result.
#[derive(Debug, Serialize)]
struct WaitOutcome {
    reached: bool,
    /// The awaited seqno. Unknown if no position was given, and no member knows the committed position.
    seqno: Option<i64>,
    /// Whether a new leader left the seqno out. Unknown if no reachable member's log goes back so far.
    left_out: Option<bool>,
    seconds: f64,
    /// Members that have not reached the position, and their own positions.
    lacking: Vec<Lacking>,
    /// Members that are not connected or have no database yet, so that the result does not cover them.
    not_waited_for: Vec<Absent>,
    /// The reason why the position was not reached, as text.
    why: Option<String>,
}

impl WaitOutcome {
    fn code(&self) -> ExitCode {
        match (self.reached, self.left_out) {
            (true, _) => ExitCode::SUCCESS,
            (false, Some(true)) => ExitCode::from(LEFT_OUT),
            (false, _) => ExitCode::from(TIMED_OUT),
        }
    }

    /// The result as one line of text.
    fn text(&self) -> String {
        let why = self.why.as_deref().unwrap_or_default();
        let mut out = match (self.seqno, self.reached, self.left_out) {
            (Some(seqno), true, _) => format!("seqno {seqno} is applied ({:.1} s)", self.seconds),
            (Some(seqno), false, Some(true)) => {
                return format!("no member has applied seqno {seqno}, and none ever will: {why}");
            }
            (Some(seqno), false, _) => {
                format!("not all members have applied seqno {seqno} after {:.1} s: {why}", self.seconds)
            }
            (None, ..) => {
                format!("the cluster's committed position is unknown after {:.1} s: {why}", self.seconds)
            }
        };
        if !self.not_waited_for.is_empty() {
            out.push_str(&format!("; not waited for: {}", absent::names(&self.not_waited_for)));
        }
        out
    }
}

#[derive(Debug, Serialize, PartialEq, Eq)]
struct Lacking {
    name: String,
    state: String,
    /// An apply hold keeps entries from the member's server.
    held_back: bool,
    applied: Option<i64>,
}

/// The cluster's committed position. The answering member has asked the leader for it.
#[derive(Debug, Deserialize)]
struct CommittedPosition {
    uuid: String,
    seqno: i64,
}

/// The reason why the committed position is unknown.
#[derive(Debug, PartialEq, Eq)]
enum Unknown {
    /// A later query may succeed.
    Retry(String),
    /// No member supports the query.
    Unsupported(String),
}

/// Queries all reachable members for the committed position, and returns the first answer. All would answer the same.
fn committed_position(source: &Source, history: &str, timeout: Duration) -> Result<i64, Unknown> {
    let deadline = Instant::now() + timeout;
    let (mut targets, _) = source.targets();
    targets.extend(source.fallback());
    let (sender, answers) = mpsc::channel();
    for target in targets {
        let sender = sender.clone();
        std::thread::spawn(move || {
            let answer = fetch::get_within(&target, "/agreed", timeout);
            // The receiver does not exist any more if the answer is late.
            let _ = sender.send(answer.map_err(|error| format!("{target}: {error}")));
        });
    }
    drop(sender);
    let until = || deadline.saturating_duration_since(Instant::now()) + GRACE;
    first_position(std::iter::from_fn(|| answers.recv_timeout(until()).ok()), history)
}

fn first_position(
    answers: impl Iterator<Item = Result<String, String>>,
    history: &str,
) -> Result<i64, Unknown> {
    let mut errors = Vec::new();
    let mut old = 0;
    for answer in answers {
        let answer = answer
            .and_then(|body| serde_json::from_str::<CommittedPosition>(&body).map_err(|e| e.to_string()));
        match answer {
            Ok(CommittedPosition { uuid, seqno }) if uuid.eq_ignore_ascii_case(history) => return Ok(seqno),
            Ok(CommittedPosition { uuid, .. }) => {
                errors.push(format!("a member has another history, {uuid}"));
            }
            Err(error) => {
                old += usize::from(error.contains(" 404 "));
                errors.push(error);
            }
        }
    }
    let text = errors.join("; ");
    Err(match old > 0 && old == errors.len() {
        true => Unknown::Unsupported(format!(
            "the reachable members run an older version, which does not report the cluster's committed position: name the \
             position to wait for ({text})"
        )),
        false => Unknown::Retry(format!("no member knows the cluster's committed position: {text}")),
    })
}

/// The seqno of a position as the user wrote it. Its UUID, if given, must be that of the cluster's history.
fn parse_position(text: &str, status: &Status) -> Result<i64, String> {
    let number = |part: &str| part.parse::<u64>().is_ok();
    if text.split('-').count() == 3 && text.split('-').all(number) {
        return Err(format!(
            "{text} is a GTID of the server (domain-server-number), not a position of the cluster. Either wait for it in a \
             session, with WSREP_SYNC_WAIT_UPTO_GTID('{text}'), or give this command the value of wsrep_last_committed, \
             read after the write on the server that made it"
        ));
    }
    let (uuid, seqno) = match text.rsplit_once(':') {
        Some((uuid, seqno)) => (Some(uuid), seqno),
        None => (None, text),
    };
    if let Some(uuid) = uuid.filter(|uuid| !uuid.eq_ignore_ascii_case(&status.cluster.uuid)) {
        let history = &status.cluster.uuid;
        return Err(format!("{uuid} is not the history of this cluster, which is {history}"));
    }
    let wrong = || format!("'{text}' is neither a seqno nor UUID:seqno");
    seqno.parse().ok().filter(|seqno| *seqno >= 0).ok_or_else(wrong)
}

fn can_be_waited_for(member: &MemberStatus) -> bool {
    member.is_connected() && member.applied.is_some()
}

/// Members that keep data and cannot be waited for. Empty if the user named the members to wait for.
fn not_waited_for(status: &Status, named: &[String]) -> Vec<Absent> {
    let absent = status.members.iter().filter(|m| m.keeps_data() && !can_be_waited_for(m));
    if named.is_empty() { absent.map(Absent::from).collect() } else { Vec::new() }
}

/// The members to wait for.
fn awaited_members<'a>(status: &'a Status, named: &'a [String]) -> impl Iterator<Item = &'a MemberStatus> {
    status.members.iter().filter(move |m| match named.is_empty() {
        true => m.keeps_data() && can_be_waited_for(m),
        false => named.contains(&m.name),
    })
}

/// The awaited members that have not applied this seqno.
fn lacking(status: &Status, seqno: i64, named: &[String]) -> Result<Vec<Lacking>, String> {
    if let Some(name) = named.iter().find(|name| status.members.iter().all(|m| m.name != **name)) {
        return Err(format!("no member has the name {name}"));
    }
    let lacks = awaited_members(status, named).filter(|m| m.applied.is_none_or(|applied| applied < seqno));
    let lacking = |m: &MemberStatus| Lacking {
        name: m.name.clone(),
        state: m.state.clone(),
        held_back: m.held_back,
        applied: m.applied,
    };
    Ok(lacks.map(lacking).collect())
}

/// Whether a new leader left out a seqno that the cluster has passed. `None` if the log begins after the seqno.
fn left_out(status: &Status, seqno: i64) -> Option<bool> {
    match status.log.left_out_around(seqno) {
        Some(_) => Some(true),
        None => (seqno >= status.log.first_seqno).then_some(false),
    }
}

/// Runs the command.
pub(crate) fn run(args: &WaitArgs) -> Result<ExitCode, String> {
    let outcome = wait(args, |line| {
        if !args.json {
            eprintln!("{line}");
        }
    })?;
    if args.json {
        say(&serde_json::to_string(&outcome).map_err(|e| format!("cannot write JSON: {e}"))?);
    } else if outcome.reached {
        say(&outcome.text());
        if let (None, Some(why)) = (outcome.left_out, &outcome.why) {
            eprintln!("lockstep: {why}");
        }
    } else {
        eprintln!("lockstep: {}", outcome.text());
    }
    Ok(outcome.code())
}

/// Waits. Calls `report` every [`REPORT_PERIOD`] with a progress line.
fn wait(args: &WaitArgs, mut report: impl FnMut(&str)) -> Result<WaitOutcome, String> {
    let began = Instant::now();
    // A frozen member delays this command until the timeout at most. Healthy members are queried once more at its end.
    let limited =
        |usual: Duration| usual.min(args.timeout.saturating_sub(began.elapsed()).max(fetch::MIN_TIMEOUT));
    let mut report_at = began + REPORT_PERIOD;
    let mut answered = false;
    let mut seqno = None;
    let (mut left_out, mut not_waited_for) = (None, Vec::new());
    loop {
        let merged = status::query_within(&args.source, limited(2 * fetch::TIMEOUT));
        let mut lacks = Vec::new();
        let why = match merged {
            // Without any answer so far, the source is probably wrong. Later, members may restart.
            Err(error) if !answered => return Err(error),
            Err(error) => error,
            Ok(merged) => {
                answered = true;
                let status = merged.status;
                not_waited_for = self::not_waited_for(&status, &args.member);
                let known = match (seqno, &args.position) {
                    (Some(seqno), _) => Ok(seqno),
                    (None, Some(text)) => Ok(parse_position(text, &status)?),
                    (None, None) => {
                        committed_position(&args.source, &status.cluster.uuid, limited(fetch::TIMEOUT))
                    }
                };
                match known {
                    Ok(known) => {
                        seqno = Some(known);
                        let outcome = evaluate(&status, known, args)?;
                        if outcome.reached || outcome.left_out == Some(true) {
                            let seconds = began.elapsed().as_secs_f64();
                            return Ok(WaitOutcome { seconds, not_waited_for, ..outcome });
                        }
                        (left_out, lacks) = (outcome.left_out, outcome.lacking);
                        outcome.why.unwrap_or_default()
                    }
                    Err(Unknown::Retry(text)) => text,
                    Err(Unknown::Unsupported(text)) => return Err(text),
                }
            }
        };
        if began.elapsed() >= args.timeout {
            return Ok(WaitOutcome {
                reached: false,
                seqno,
                left_out,
                seconds: began.elapsed().as_secs_f64(),
                lacking: lacks,
                not_waited_for,
                why: Some(why),
            });
        }
        if Instant::now() >= report_at {
            report_at = Instant::now() + REPORT_PERIOD;
            let what = seqno.map_or_else(|| "the committed position".to_owned(), |s| format!("seqno {s}"));
            report(&format!("waiting for {what}: {why}"));
        }
        std::thread::sleep(POLL_PERIOD.min(args.timeout));
    }
}

/// Whether the position is reached in this status.
fn evaluate(status: &Status, seqno: i64, args: &WaitArgs) -> Result<WaitOutcome, String> {
    // A new leader never leaves out the committed position, so only a given position is looked up.
    let left_out = if args.position.is_some() { left_out(status, seqno) } else { Some(false) };
    let lacking = match left_out {
        Some(true) => Vec::new(),
        _ => lacking(status, seqno, &args.member)?,
    };
    // Without any awaited member, or before the cluster's log contains the seqno, an empty `lacking` means nothing.
    let has_members = awaited_members(status, &args.member).next().is_some();
    let reached = left_out != Some(true) && lacking.is_empty() && has_members && status.log.seqno >= seqno;
    let why = match (reached, left_out) {
        (true, None) => Some(format!(
            "this command cannot tell whether a new leader left this seqno out: the log begins at seqno {}",
            status.log.first_seqno
        )),
        (true, _) => None,
        (false, Some(true)) => {
            let (first, last) = status.log.left_out_around(seqno).unwrap_or((seqno, seqno));
            Some(format!(
                "a new leader left out seqnos {first} to {last}. The previous leader may have used them for transactions \
                 that no other member had. Such transactions are lost, or in the previous leader's rescue file \
                 (docs/policies.md, What a lost leader had alone)"
            ))
        }
        (false, _) if !has_members => Some("no connected member has a database yet".into()),
        (false, _) => Some(why_not(status, &lacking)),
    };
    Ok(WaitOutcome {
        reached,
        seqno: Some(seqno),
        left_out,
        seconds: 0.0,
        lacking,
        not_waited_for: Vec::new(),
        why,
    })
}

/// The reason why the position is not reached.
fn why_not(status: &Status, lacking: &[Lacking]) -> String {
    let mut each: Vec<String> = lacking
        .iter()
        .map(|m| match (m.applied, m.held_back) {
            (Some(applied), false) => format!("{} has applied {applied} ({})", m.name, m.state),
            (Some(applied), true) => format!(
                "{} has applied {applied} ({}, held back by apply.paused, apply.delay or apply.until)",
                m.name, m.state
            ),
            (None, _) => format!("{} is {}", m.name, m.state),
        })
        .collect();
    if each.is_empty() {
        each.push(format!("the cluster's last seqno is {}", status.log.seqno));
    }
    if !status.cluster.primary {
        each.push("no member that answers is in a primary component (no majority)".into());
    }
    each.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    fn member(name: &str, role: &str, state: &str, applied: Option<i64>) -> MemberStatus {
        let (name, role, state) = (name.into(), role.into(), state.into());
        MemberStatus { name, role, state, applied, ..MemberStatus::default() }
    }

    fn cluster() -> Status {
        let mut status = Status::default();
        status.cluster.uuid = "6e6f7420-6120-7265-616c-207575696421".into();
        status.log.seqno = 20;
        status.members = vec![
            member("n1", "leader", "Synced", Some(20)),
            member("n2", "voter", "Donor/Desynced", Some(12)),
            member("n3", "voter", "Disconnected", None),
            member("arb", "arbitrator", "Synced", Some(3)),
        ];
        status
    }

    #[test]
    fn position_is_seqno_or_gtid_of_this_history() {
        let status = cluster();
        assert_eq!(parse_position("7", &status), Ok(7));
        assert_eq!(parse_position("6E6F7420-6120-7265-616C-207575696421:8", &status), Ok(8));
        assert!(parse_position("00000000-6120-7265-616c-207575696421:8", &status).is_err());
        assert!(
            parse_position("9-1-4711", &status)
                .unwrap_err()
                .contains("WSREP_SYNC_WAIT_UPTO_GTID('9-1-4711')")
        );
        for wrong in ["", "x", "-4", "6e6f7420-6120-7265-616c-207575696421:", "1.5"] {
            assert!(parse_position(wrong, &status).is_err(), "{wrong}");
        }
    }

    #[test]
    fn committed_position_needs_matching_history() {
        let asked = |answers: &[Result<&str, &str>]| {
            let own = |text: &&str| text.to_string();
            let answers: Vec<_> = answers.iter().map(|a| a.as_ref().map(own).map_err(own)).collect();
            first_position(answers.into_iter(), "aa-bb")
        };
        let (no_leader, old) = (Err("n1: HTTP/1.0 503 no leader"), Err("n2: HTTP/1.0 404 Not Found"));
        let ours = Ok(r#"{"uuid":"AA-BB","seqno":7}"#);
        assert_eq!(asked(&[no_leader, Ok(r#"{"uuid":"cc","seqno":9}"#), ours]), Ok(7));
        assert!(matches!(asked(&[no_leader, old]), Err(Unknown::Retry(_))));
        assert!(matches!(asked(&[old, old]), Err(Unknown::Unsupported(_))));
        assert!(matches!(asked(&[]), Err(Unknown::Retry(_))));
    }

    #[test]
    fn left_out_seqnos_count_as_reached() {
        let mut status = cluster();
        status.log.first_seqno = 4;
        status.log.left_out = vec![(7, 9), (12, 19)];
        for (seqno, is) in [(3, None), (4, Some(false)), (7, Some(true)), (9, Some(true)), (10, Some(false))]
        {
            assert_eq!(left_out(&status, seqno), is, "{seqno}");
        }
        assert_eq!(left_out(&status, 20), Some(false), "the view that left it out is there");
        // The first entry of the log may be such a view.
        status.log.first_seqno = 20;
        assert_eq!((left_out(&status, 19), left_out(&status, 10)), (Some(true), None));
    }

    #[test]
    fn wait_covers_connected_or_named_members() {
        let status = cluster();
        let names = |seqno, named: &[&str]| -> Vec<String> {
            let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
            lacking(&status, seqno, &named).unwrap().into_iter().map(|m| m.name).collect()
        };
        assert_eq!(names(12, &[]), Vec::<String>::new());
        assert_eq!(names(13, &[]), ["n2"]);
        assert_eq!(names(13, &["n1"]), Vec::<String>::new());
        assert_eq!(names(1, &["n1", "n3"]), ["n3"], "named members are waited for");
        assert!(lacking(&status, 1, &["n9".into()]).is_err());
    }

    #[test]
    fn members_not_waited_for_are_named() {
        let mut status = cluster();
        status.members.push(member("n4", "learner", "Joiner", None));
        // This arbitrator was shut down normally, so it is a learner now.
        status
            .members
            .push(MemberStatus { arbitrator: true, ..member("arb2", "learner", "Disconnected", None) });
        let absent = not_waited_for(&status, &[]);
        assert_eq!(absent::names(&absent), "n3 (Disconnected), n4 (Joiner)");
        assert_eq!(not_waited_for(&status, &["n1".into()]), []);
        let outcome = evaluate(&status, 12, &args("/nowhere")).unwrap();
        let outcome = WaitOutcome { not_waited_for: absent, ..outcome };
        assert_eq!(
            outcome.text(),
            "seqno 12 is applied (0.0 s); not waited for: n3 (Disconnected), n4 (Joiner)"
        );
        let json = serde_json::to_value(&outcome).unwrap();
        assert_eq!(json["not_waited_for"][0]["name"], "n3");
    }

    #[test]
    fn position_is_not_reached_without_any_database() {
        let mut status = cluster();
        // An arbitrator leads while one server is down and the other one receives a state transfer.
        status.members = vec![
            member("n1", "voter", "Disconnected", None),
            member("n2", "voter", "Joiner", None),
            MemberStatus { arbitrator: true, ..member("arb", "leader", "Synced", Some(20)) },
        ];
        let outcome = evaluate(&status, 12, &args("/nowhere")).unwrap();
        assert!(!outcome.reached);
        assert_eq!(outcome.why.as_deref(), Some("no connected member has a database yet"));
        status.members[1].applied = Some(12);
        assert!(evaluate(&status, 12, &args("/nowhere")).unwrap().reached);
        status.members[1].held_back = true;
        let why = evaluate(&status, 13, &args("/nowhere")).unwrap().why.unwrap();
        assert!(why.starts_with("n2 has applied 12 (Joiner, held back by apply.paused, "), "{why}");
    }

    fn args(socket: impl Into<PathBuf>) -> WaitArgs {
        let source = Source { dir: None, socket: Some(socket.into()), address: None };
        WaitArgs {
            position: None,
            member: Vec::new(),
            timeout: Duration::from_millis(2300),
            json: false,
            source,
        }
    }

    /// A member that reports this status, and has no leader to ask for the committed position.
    fn leaderless(name: &str, status: &Status) -> PathBuf {
        let path = std::env::temp_dir().join(format!("lockstep-wait-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let status = serde_json::to_string(status).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut request = [0; 64];
                let n = stream.read(&mut request).unwrap();
                let answer = match request[..n].starts_with(b"GET /status") {
                    true => format!("HTTP/1.0 200 OK\r\n\r\n{status}"),
                    false => "HTTP/1.0 503 Service Unavailable\r\n\r\nno leader has answered".into(),
                };
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        path
    }

    #[test]
    fn wait_without_leader_reports_and_times_out() {
        let socket = leaderless("none", &cluster());
        let mut reports = Vec::new();
        let outcome = wait(&args(&socket), |line| reports.push(line.to_owned())).unwrap();
        assert!(
            reports.iter().any(|line| line.starts_with("waiting for the committed position: ")),
            "{reports:?}"
        );
        assert_eq!((outcome.reached, outcome.seqno), (false, None));
        assert_eq!(format!("{:?}", outcome.code()), format!("{:?}", ExitCode::from(TIMED_OUT)));
        let text = outcome.text();
        assert!(text.contains("no leader has answered; not waited for: n3 (Disconnected)"), "{text}");
        // The cluster does not reach this position, because it has no majority.
        let mut position = args(&socket);
        (position.position, position.timeout) = (Some("21".into()), Duration::from_millis(300));
        let text = wait(&position, |_| ()).unwrap().text();
        let _ = std::fs::remove_file(&socket);
        assert!(
            text.contains(
                "n1 has applied 20 (Synced), n2 has applied 12 (Donor/Desynced), no member that answers is in a primary"
            ),
            "{text}"
        );
    }

    #[test]
    fn frozen_member_takes_no_more_than_timeout() {
        let path = std::env::temp_dir().join(format!("lockstep-wait-{}-frozen", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let _frozen = UnixListener::bind(&path).unwrap();
        let began = Instant::now();
        let outcome = wait(&WaitArgs { timeout: Duration::from_millis(500), ..args(&path) }, |_| ());
        let _ = std::fs::remove_file(&path);
        assert!(outcome.unwrap_err().contains("no member answers"));
        assert!(began.elapsed() < fetch::TIMEOUT / 2, "{:?}", began.elapsed());
    }
}
