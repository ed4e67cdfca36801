//! `lockstep wait`: until members have applied what the cluster has agreed on.

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lockstep_node::Status;
use serde::{Deserialize, Serialize};

use crate::progress::say;
use crate::{Source, fetch, seconds, status};

/// The exit code where the time was over before.
const TOO_LATE: u8 = 3;
/// The exit code where it never will be: a new leader left it out.
const LEFT_OUT: u8 = 4;
/// How often the members are asked, and how often it is said how far they are.
const PERIOD: Duration = Duration::from_millis(100);
const SAY_EVERY: Duration = Duration::from_secs(2);

#[derive(clap::Args, Debug)]
pub(crate) struct WaitArgs {
    /// A seqno, or UUID:seqno: wsrep_cluster_state_uuid and wsrep_last_committed, as they are after a write. (The
    /// server's own GTIDs, domain-server-number, count something else: `WSREP_SYNC_WAIT_UPTO_GTID()` waits for
    /// them.) [default: whatever the cluster has agreed on by now, on any member].
    position: Option<String>,
    /// Wait for these members only, with commas between [default: all that are connected and have a database].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    member: Vec<String>,
    /// For how long, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    timeout: Duration,
    /// The outcome as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: Source,
}

/// What became of it.
#[derive(Debug, Serialize)]
struct Outcome {
    reached: bool,
    seqno: i64,
    /// Whether a new leader left it out, so that nobody has it; unknown where no log within reach goes back so far.
    left_out: Option<bool>,
    seconds: f64,
    /// Who lacks something, and what each has.
    lacking: Vec<Lacking>,
}

#[derive(Debug, Serialize, PartialEq, Eq)]
struct Lacking {
    name: String,
    state: String,
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

/// Asks all within reach: the first that knows, for what one says is what any would.
fn agreed(source: &Source, history: &str) -> Result<i64, Untold> {
    let (mut targets, _) = source.targets();
    targets.extend(source.fallback());
    let (sender, answers) = mpsc::channel();
    for target in targets {
        let sender = sender.clone();
        std::thread::spawn(move || {
            let answer = fetch::get(&target, "/agreed");
            // Whoever is late has nobody to tell.
            let _ = sender.send(answer.map_err(|objection| format!("{target}: {objection}")));
        });
    }
    drop(sender);
    first_that_knows(answers.into_iter(), history)
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

/// Who of those that are waited for has not applied this.
fn lacking(status: &Status, seqno: i64, named: &[String]) -> Result<Vec<Lacking>, String> {
    if let Some(name) = named.iter().find(|name| status.members.iter().all(|m| m.name != **name)) {
        return Err(format!("no member is called {name}"));
    }
    let waited = status.members.iter().filter(|m| match named.is_empty() {
        true => m.is_connected() && m.role != "arbitrator" && m.applied.is_some(),
        false => named.contains(&m.name),
    });
    let lacks = waited.filter(|m| m.applied.is_none_or(|applied| applied < seqno));
    Ok(lacks.map(|m| Lacking { name: m.name.clone(), state: m.state.clone(), applied: m.applied }).collect())
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
    let began = Instant::now();
    let mut seqno = None;
    let mut say_at = began + SAY_EVERY;
    loop {
        let looked = status::look(&args.source);
        let late = began.elapsed() >= args.timeout;
        let status = match looked {
            Ok(survey) => survey.status,
            // Members come and go; that nobody ever answered is worth an error.
            Err(_) if seqno.is_some() && !late => {
                std::thread::sleep(PERIOD);
                continue;
            }
            Err(objection) => return Err(objection),
        };
        let seqno = match seqno {
            Some(seqno) => seqno,
            None => {
                let found = match &args.position {
                    Some(text) => Ok(target(text, &status)?),
                    None => agreed(&args.source, &status.cluster.uuid),
                };
                match found {
                    Ok(found) => *seqno.insert(found),
                    Err(Untold::Yet(_)) if !late => {
                        std::thread::sleep(PERIOD);
                        continue;
                    }
                    Err(Untold::Yet(text) | Untold::Never(text)) => return Err(text),
                }
            }
        };
        // What the cluster has agreed on is there.
        let left_out = if args.position.is_some() { left_out(&status, seqno) } else { Some(false) };
        if left_out == Some(true) {
            let seconds = began.elapsed().as_secs_f64();
            let outcome = Outcome { reached: false, seqno, left_out, seconds, lacking: Vec::new() };
            if args.json {
                say(&serde_json::to_string(&outcome).map_err(|e| format!("cannot write JSON: {e}"))?);
            } else {
                let (first, last) = status.log.left_out_around(seqno).unwrap_or((seqno, seqno));
                eprintln!(
                    "lockstep: seqno {seqno} is not applied and never will be: a new leader left out {first} to {last}, \
                     which the one before may have given to transactions that nobody else had. Whatever had it is lost \
                     with that one, or in its rescue file (docs/policies.md, What a lost leader had alone)"
                );
            }
            return Ok(ExitCode::from(LEFT_OUT));
        }
        let lacking = lacking(&status, seqno, &args.member)?;
        // A place that the cluster has not come to is reached by nobody.
        let reached = lacking.is_empty() && status.log.seqno >= seqno;
        let names: Vec<String> = lacking
            .iter()
            .map(|m| match m.applied {
                Some(applied) => format!("{} has {applied} ({})", m.name, m.state),
                None => format!("{} is {}", m.name, m.state),
            })
            .collect();
        if reached || late {
            let outcome =
                Outcome { reached, seqno, left_out, seconds: began.elapsed().as_secs_f64(), lacking };
            if args.json {
                say(&serde_json::to_string(&outcome).map_err(|e| format!("cannot write JSON: {e}"))?);
            } else if reached {
                say(&format!("seqno {seqno} is applied ({:.1} s)", outcome.seconds));
                if left_out.is_none() {
                    eprintln!(
                        "lockstep: whether a new leader left it out, so that nothing was there to be applied, cannot be \
                         told: the log begins at seqno {}",
                        status.log.first_seqno
                    );
                }
            } else {
                let why = match names.is_empty() {
                    true => format!("the cluster has come to seqno {} only", status.log.seqno),
                    false => names.join(", "),
                };
                eprintln!(
                    "lockstep: seqno {seqno} is not applied everywhere after {:.0} s: {why}",
                    outcome.seconds
                );
            }
            return Ok(if reached { ExitCode::SUCCESS } else { ExitCode::from(TOO_LATE) });
        }
        if Instant::now() >= say_at && !args.json {
            say_at += SAY_EVERY;
            eprintln!("waiting for seqno {seqno}: {}", names.join(", "));
        }
        std::thread::sleep(PERIOD.min(args.timeout));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_node::MemberStatus;

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
    fn a_position_is_a_seqno_or_a_gtid_of_this_history() {
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
    fn what_is_agreed_on_is_what_one_of_this_history_says() {
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
    fn what_a_new_leader_left_out_is_nothing_that_is_applied() {
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
    fn those_are_waited_for_that_are_there_or_named() {
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
}
