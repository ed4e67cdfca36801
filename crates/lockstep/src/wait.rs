//! `lockstep wait`: until members have applied what the cluster has agreed on.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use lockstep_node::Status;
use serde::Serialize;

use crate::progress::say;
use crate::{Source, seconds, status};

/// The exit code where the time was over before.
const TOO_LATE: u8 = 3;
/// How often the members are asked, and how often it is said how far they are.
const PERIOD: Duration = Duration::from_millis(100);
const SAY_EVERY: Duration = Duration::from_secs(2);

#[derive(clap::Args, Debug)]
pub(crate) struct WaitArgs {
    /// A seqno, or a GTID (UUID:seqno, as in wsrep_gtid and `WSREP_LAST_SEEN_GTID()`) [default: the last one that the
    /// cluster has agreed on now].
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

/// The seqno of a position, which must be of this history.
fn target(position: Option<&str>, status: &Status) -> Result<i64, String> {
    let Some(text) = position else { return Ok(status.log.seqno) };
    let (uuid, seqno) = match text.rsplit_once(':') {
        Some((uuid, seqno)) => (Some(uuid), seqno),
        None => (None, text),
    };
    if let Some(uuid) = uuid.filter(|uuid| !uuid.eq_ignore_ascii_case(&status.cluster.uuid)) {
        let history = &status.cluster.uuid;
        return Err(format!("{uuid} is another history: this cluster's is {history}"));
    }
    let wrong = || format!("'{text}' is neither a seqno nor a GTID (UUID:seqno)");
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
            None => *seqno.insert(target(args.position.as_deref(), &status)?),
        };
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
            let outcome = Outcome { reached, seqno, seconds: began.elapsed().as_secs_f64(), lacking };
            if args.json {
                say(&serde_json::to_string(&outcome).map_err(|e| format!("cannot write JSON: {e}"))?);
            } else if reached {
                say(&format!("seqno {seqno} is applied ({:.1} s)", outcome.seconds));
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
        assert_eq!(target(None, &status), Ok(20));
        assert_eq!(target(Some("7"), &status), Ok(7));
        assert_eq!(target(Some("6E6F7420-6120-7265-616C-207575696421:8"), &status), Ok(8));
        assert!(target(Some("00000000-6120-7265-616c-207575696421:8"), &status).is_err());
        for wrong in ["", "x", "-4", "6e6f7420-6120-7265-616c-207575696421:", "1.5"] {
            assert!(target(Some(wrong), &status).is_err(), "{wrong}");
        }
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
