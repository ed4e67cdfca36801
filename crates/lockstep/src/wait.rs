//! `lockstep wait`: until members have applied what the cluster has agreed on.

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lockstep_node::{MemberStatus, Status};
use serde::{Deserialize, Serialize};

use crate::absent::{self, Absent};
use crate::progress::say;
use crate::{Source, fetch, seconds, status};

/// The exit code where the time was over before.
const TOO_LATE: u8 = 3;
/// The exit code where it never will be: a new leader left it out.
const LEFT_OUT: u8 = 4;
/// How often the members are asked, and how often it is said how far they are.
const PERIOD: Duration = Duration::from_millis(100);
const SAY_EVERY: Duration = Duration::from_secs(2);
/// An objection may come a little after its time is over.
const LATE: Duration = Duration::from_millis(50);

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
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
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
    /// Unknown where no position was given, and nobody has said what the cluster has agreed on.
    seqno: Option<i64>,
    /// Whether a new leader left it out, so that nobody has it; unknown where no log within reach goes back so far.
    left_out: Option<bool>,
    seconds: f64,
    /// Members that have not reached the position, and their own positions.
    lacking: Vec<Lacking>,
    /// Members that are not connected or have no database yet, so that the result does not cover them.
    not_waited_for: Vec<Absent>,
    /// Why it was not reached, for people.
    why: Option<String>,
}

impl WaitOutcome {
    fn code(&self) -> ExitCode {
        match (self.reached, self.left_out) {
            (true, _) => ExitCode::SUCCESS,
            (false, Some(true)) => ExitCode::from(LEFT_OUT),
            (false, _) => ExitCode::from(TOO_LATE),
        }
    }

    /// A line for people.
    fn text(&self) -> String {
        let why = self.why.as_deref().unwrap_or_default();
        let mut out = match (self.seqno, self.reached, self.left_out) {
            (Some(seqno), true, _) => format!("seqno {seqno} is applied ({:.1} s)", self.seconds),
            (Some(seqno), false, Some(true)) => {
                return format!("seqno {seqno} is not applied and never will be: {why}");
            }
            (Some(seqno), false, _) => {
                format!("seqno {seqno} is not applied everywhere after {:.1} s: {why}", self.seconds)
            }
            (None, ..) => format!("up to where to wait is not known after {:.1} s: {why}", self.seconds),
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
    /// Entries are kept from its server.
    held_back: bool,
    applied: Option<i64>,
}

/// Up to where the cluster has agreed, as a member says who has asked the leader.
#[derive(Debug, Deserialize)]
struct Agreed {
    uuid: String,
    seqno: i64,
}

/// Why nobody says that.
#[derive(Debug, PartialEq, Eq)]
enum Untold {
    /// It may be said later.
    Yet(String),
    Never(String),
}

/// Asks all reachable members and takes the first answer: all would give the same.
fn agreed(source: &Source, history: &str, patience: Duration) -> Result<i64, Untold> {
    let deadline = Instant::now() + patience;
    let (mut targets, _) = source.targets();
    targets.extend(source.fallback());
    let (sender, answers) = mpsc::channel();
    for target in targets {
        let sender = sender.clone();
        std::thread::spawn(move || {
            let answer = fetch::get_within(&target, "/agreed", patience);
            // A late answer has no receiver any more.
            let _ = sender.send(answer.map_err(|objection| format!("{target}: {objection}")));
        });
    }
    drop(sender);
    let until = || deadline.saturating_duration_since(Instant::now()) + LATE;
    first_that_knows(std::iter::from_fn(|| answers.recv_timeout(until()).ok()), history)
}

fn first_that_knows(
    answers: impl Iterator<Item = Result<String, String>>,
    history: &str,
) -> Result<i64, Untold> {
    let mut objections = Vec::new();
    let mut old = 0;
    for answer in answers {
        match answer.and_then(|body| serde_json::from_str::<Agreed>(&body).map_err(|e| e.to_string())) {
            Ok(Agreed { uuid, seqno }) if uuid.eq_ignore_ascii_case(history) => return Ok(seqno),
            Ok(Agreed { uuid, .. }) => objections.push(format!("one is of another history, {uuid}")),
            Err(objection) => {
                old += usize::from(objection.contains(" 404 "));
                objections.push(objection);
            }
        }
    }
    let text = objections.join("; ");
    Err(match old > 0 && old == objections.len() {
        true => Untold::Never(format!(
            "the members within reach are of an older version, which does not say what the cluster has agreed on: say \
             up to where to wait ({text})"
        )),
        false => Untold::Yet(format!("nobody says what the cluster has agreed on: {text}")),
    })
}

/// The seqno of a position, which must be of this history.
fn target(text: &str, status: &Status) -> Result<i64, String> {
    let number = |part: &str| part.parse::<u64>().is_ok();
    if text.split('-').count() == 3 && text.split('-').all(number) {
        return Err(format!(
            "{text} is a GTID of the server's own count (domain-server-number), which says nothing of the cluster's: \
             WSREP_SYNC_WAIT_UPTO_GTID('{text}') in a session waits for it; here say wsrep_last_committed, as it is after \
             the write where that was made"
        ));
    }
    let (uuid, seqno) = match text.rsplit_once(':') {
        Some((uuid, seqno)) => (Some(uuid), seqno),
        None => (None, text),
    };
    if let Some(uuid) = uuid.filter(|uuid| !uuid.eq_ignore_ascii_case(&status.cluster.uuid)) {
        let history = &status.cluster.uuid;
        return Err(format!("{uuid} is another history: this cluster's is {history}"));
    }
    let wrong = || format!("'{text}' is neither a seqno nor UUID:seqno");
    seqno.parse().ok().filter(|seqno| *seqno >= 0).ok_or_else(wrong)
}

fn can_be_waited_for(member: &MemberStatus) -> bool {
    member.is_connected() && member.applied.is_some()
}

/// Whom nothing is said of though it is to have the data, unless somebody has named those that count.
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

/// Who of those that are waited for has not applied this.
fn lacking(status: &Status, seqno: i64, named: &[String]) -> Result<Vec<Lacking>, String> {
    if let Some(name) = named.iter().find(|name| status.members.iter().all(|m| m.name != **name)) {
        return Err(format!("no member is called {name}"));
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

/// Whether this place, which the cluster has passed, was left out by a new leader; nobody knows of one below the log.
fn left_out(status: &Status, seqno: i64) -> Option<bool> {
    match status.log.left_out_around(seqno) {
        Some(_) => Some(true),
        None => (seqno >= status.log.first_seqno).then_some(false),
    }
}

/// Waits.
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

/// `tell` hears from time to time what is waited for.
fn wait(args: &WaitArgs, mut tell: impl FnMut(&str)) -> Result<WaitOutcome, String> {
    let began = Instant::now();
    // A frozen member takes no more than the timeout. Healthy members are asked once more at its end.
    let patience =
        |usual: Duration| usual.min(args.timeout.saturating_sub(began.elapsed()).max(fetch::MIN_TIMEOUT));
    let mut say_at = began + SAY_EVERY;
    let mut answered = false;
    let mut seqno = None;
    let (mut left_out, mut not_waited_for) = (None, Vec::new());
    loop {
        let looked = status::look_within(&args.source, patience(2 * fetch::TIMEOUT));
        let mut lacks = Vec::new();
        let why = match looked {
            // Members come and go; that nobody ever answered is worth an error.
            Err(objection) if !answered => return Err(objection),
            Err(objection) => objection,
            Ok(survey) => {
                answered = true;
                let status = survey.status;
                not_waited_for = self::not_waited_for(&status, &args.member);
                let known = match (seqno, &args.position) {
                    (Some(seqno), _) => Ok(seqno),
                    (None, Some(text)) => Ok(target(text, &status)?),
                    (None, None) => agreed(&args.source, &status.cluster.uuid, patience(fetch::TIMEOUT)),
                };
                match known {
                    Ok(known) => {
                        seqno = Some(known);
                        let outcome = judge(&status, known, args)?;
                        if outcome.reached || outcome.left_out == Some(true) {
                            let seconds = began.elapsed().as_secs_f64();
                            return Ok(WaitOutcome { seconds, not_waited_for, ..outcome });
                        }
                        (left_out, lacks) = (outcome.left_out, outcome.lacking);
                        outcome.why.unwrap_or_default()
                    }
                    Err(Untold::Yet(text)) => text,
                    Err(Untold::Never(text)) => return Err(text),
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
        if Instant::now() >= say_at {
            say_at = Instant::now() + SAY_EVERY;
            let what = seqno.map_or_else(|| "to hear up to where".to_owned(), |s| format!("for seqno {s}"));
            tell(&format!("waiting {what}: {why}"));
        }
        std::thread::sleep(PERIOD.min(args.timeout));
    }
}

/// How it is now.
fn judge(status: &Status, seqno: i64, args: &WaitArgs) -> Result<WaitOutcome, String> {
    // The committed position is known here.
    let left_out = if args.position.is_some() { left_out(status, seqno) } else { Some(false) };
    let lacking = match left_out {
        Some(true) => Vec::new(),
        _ => lacking(status, seqno, &args.member)?,
    };
    // A place that the cluster has not come to is reached by nobody; nor is one where there is nobody to reach it.
    let somebody = awaited_members(status, &args.member).next().is_some();
    let reached = left_out != Some(true) && lacking.is_empty() && somebody && status.log.seqno >= seqno;
    let why = match (reached, left_out) {
        (true, None) => Some(format!(
            "whether a new leader left it out, so that nothing was there to be applied, cannot be told: the log begins at \
             seqno {}",
            status.log.first_seqno
        )),
        (true, _) => None,
        (false, Some(true)) => {
            let (first, last) = status.log.left_out_around(seqno).unwrap_or((seqno, seqno));
            Some(format!(
                "a new leader left out {first} to {last}, which the one before may have given to transactions that nobody \
                 else had. Whatever had it is lost with that one, or in its rescue file (docs/policies.md, What a lost \
                 leader had alone)"
            ))
        }
        (false, _) if !somebody => Some("no member that is connected has a database yet".into()),
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
            (Some(applied), false) => format!("{} has {applied} ({})", m.name, m.state),
            (Some(applied), true) => format!(
                "{} has {applied} ({}, held back by apply.paused, apply.delay or apply.until)",
                m.name, m.state
            ),
            (None, _) => format!("{} is {}", m.name, m.state),
        })
        .collect();
    if each.is_empty() {
        each.push(format!("the cluster has come to seqno {} only", status.log.seqno));
    }
    if !status.cluster.primary {
        each.push("no member that answers is in a primary component".into());
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
        assert_eq!(target("7", &status), Ok(7));
        assert_eq!(target("6E6F7420-6120-7265-616C-207575696421:8", &status), Ok(8));
        assert!(target("00000000-6120-7265-616c-207575696421:8", &status).is_err());
        assert!(target("9-1-4711", &status).unwrap_err().contains("WSREP_SYNC_WAIT_UPTO_GTID('9-1-4711')"));
        for wrong in ["", "x", "-4", "6e6f7420-6120-7265-616c-207575696421:", "1.5"] {
            assert!(target(wrong, &status).is_err(), "{wrong}");
        }
    }

    #[test]
    fn committed_position_needs_matching_history() {
        let asked = |answers: &[Result<&str, &str>]| {
            let own = |text: &&str| text.to_string();
            let answers: Vec<_> = answers.iter().map(|a| a.as_ref().map(own).map_err(own)).collect();
            first_that_knows(answers.into_iter(), "aa-bb")
        };
        let (no_leader, old) = (Err("n1: HTTP/1.0 503 no leader"), Err("n2: HTTP/1.0 404 Not Found"));
        let ours = Ok(r#"{"uuid":"AA-BB","seqno":7}"#);
        assert_eq!(asked(&[no_leader, Ok(r#"{"uuid":"cc","seqno":9}"#), ours]), Ok(7));
        assert!(matches!(asked(&[no_leader, old]), Err(Untold::Yet(_))));
        assert!(matches!(asked(&[old, old]), Err(Untold::Never(_))));
        assert!(matches!(asked(&[]), Err(Untold::Yet(_))));
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
        // The first thing in the log may be such a view.
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
        assert_eq!(names(1, &["n1", "n3"]), ["n3"], "whoever is named is waited for");
        assert!(lacking(&status, 1, &["n9".into()]).is_err());
    }

    #[test]
    fn members_not_waited_for_are_named() {
        let mut status = cluster();
        status.members.push(member("n4", "learner", "Joiner", None));
        // Was stopped in order, so that it votes no more.
        status
            .members
            .push(MemberStatus { arbitrator: true, ..member("arb2", "learner", "Disconnected", None) });
        let absent = not_waited_for(&status, &[]);
        assert_eq!(absent::names(&absent), "n3 (Disconnected), n4 (Joiner)");
        assert_eq!(not_waited_for(&status, &["n1".into()]), []);
        let there = judge(&status, 12, &args("/nowhere")).unwrap();
        let there = WaitOutcome { not_waited_for: absent, ..there };
        assert_eq!(
            there.text(),
            "seqno 12 is applied (0.0 s); not waited for: n3 (Disconnected), n4 (Joiner)"
        );
        let json = serde_json::to_value(&there).unwrap();
        assert_eq!(json["not_waited_for"][0]["name"], "n3");
    }

    #[test]
    fn nothing_is_applied_where_nobody_has_a_database() {
        let mut status = cluster();
        // An arbitrator leads while one server is down and the other one takes its copy.
        status.members = vec![
            member("n1", "voter", "Disconnected", None),
            member("n2", "voter", "Joiner", None),
            MemberStatus { arbitrator: true, ..member("arb", "leader", "Synced", Some(20)) },
        ];
        let outcome = judge(&status, 12, &args("/nowhere")).unwrap();
        assert!(!outcome.reached);
        assert_eq!(outcome.why.as_deref(), Some("no member that is connected has a database yet"));
        status.members[1].applied = Some(12);
        assert!(judge(&status, 12, &args("/nowhere")).unwrap().reached);
        status.members[1].held_back = true;
        let why = judge(&status, 13, &args("/nowhere")).unwrap().why.unwrap();
        assert!(why.starts_with("n2 has 12 (Joiner, held back by apply.paused, "), "{why}");
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

    /// A member that says this of itself, and does not know what is agreed on.
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
        let mut said = Vec::new();
        let outcome = wait(&args(&socket), |line| said.push(line.to_owned())).unwrap();
        assert!(said.iter().any(|line| line.starts_with("waiting to hear up to where: ")), "{said:?}");
        assert_eq!((outcome.reached, outcome.seqno), (false, None));
        assert_eq!(format!("{:?}", outcome.code()), format!("{:?}", ExitCode::from(TOO_LATE)));
        let text = outcome.text();
        assert!(text.contains("no leader has answered; not waited for: n3 (Disconnected)"), "{text}");
        // A position that it does not come to, without a majority.
        let mut position = args(&socket);
        (position.position, position.timeout) = (Some("21".into()), Duration::from_millis(300));
        let text = wait(&position, |_| ()).unwrap().text();
        let _ = std::fs::remove_file(&socket);
        assert!(
            text.contains(
                "n1 has 20 (Synced), n2 has 12 (Donor/Desynced), no member that answers is in a primary"
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
