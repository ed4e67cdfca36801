//! Waiting for one server of `lockstep up` to be a member that works, and saying meanwhile what it is.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use lockstep_lab::{LabError, Server};
use lockstep_node::options::Options;

use crate::fetch;
use crate::progress::Step;
use crate::survey;

/// How long a server may take to be synced, with a transfer of the database.
const READY: Duration = Duration::from_secs(120);
/// How long one that runs may be unconnected: nothing connects it again but a person or a start.
const UNCONNECTED: Duration = Duration::from_secs(10);
/// From when on it is said what is waited for.
const PATIENCE: Duration = Duration::from_secs(3);
/// The state of a member that cannot go on.
const INCONSISTENT: &str = "Inconsistent";

/// The state of a server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// A synced member of a primary component.
    Ready,
    /// It answers, and is connected or connects.
    Waiting(String),
    /// It is in a primary component and has a state, but is behind: or somebody wants it to be.
    Desynced(String),
    /// It answers, and has left the cluster.
    Unconnected(String),
    /// It answers, and never comes back in this process.
    Failed(String),
    /// It does not answer.
    Silent(String),
}

impl Health {
    fn text(&self) -> &str {
        match self {
            Health::Ready => "synced",
            Health::Waiting(text)
            | Health::Desynced(text)
            | Health::Unconnected(text)
            | Health::Failed(text)
            | Health::Silent(text) => text,
        }
    }
}

/// Asks a server.
pub(crate) fn health(server: &Server) -> Health {
    match server.wsrep_status() {
        Ok(status) => judge(&status),
        Err(error) => Health::Silent(error.to_string()),
    }
}

/// What its status variables say.
fn judge(status: &BTreeMap<String, String>) -> Health {
    let get = |name: &str| status.get(name).map_or("?", String::as_str);
    let (component, state) = (get("wsrep_cluster_status"), get("wsrep_local_state_comment"));
    if (get("wsrep_ready"), component, get("wsrep_local_state")) == ("ON", "Primary", "4") {
        return Health::Ready;
    }
    let text = format!("{state}, {component}");
    if state == INCONSISTENT {
        return Health::Failed(text);
    }
    if (component, get("wsrep_local_state")) == ("Primary", "2") {
        return Health::Desynced(text);
    }
    if get("wsrep_connected") == "OFF" { Health::Unconnected(text) } else { Health::Waiting(text) }
}

/// How to stop a server that refuses clients' statements: the SHUTDOWN of `mariadb-admin` is one.
fn stop(server: &Server) -> String {
    server.pid().map_or_else(|| "kill PID".into(), |pid| format!("kill {pid}"))
}

/// The member's own reason why it cannot go on, with the remedy.
fn failed(server: &Server, state: &str) -> String {
    let (name, log) = (server.name(), server.config.file("err"));
    let said =
        fetch::get(&fetch::socket_in(&server.datadir()), "/status").and_then(|body| survey::parse(&body));
    let why =
        said.ok().and_then(|status| status.own.failure).unwrap_or_else(|| format!("its state is {state}"));
    format!(
        "{name} cannot go on: {why}\nIts server runs, but is outside of the cluster until it is started again; its log is \
         {}. Stop it: `{}`",
        log.display(),
        stop(server)
    )
}

/// Options that hold a server back, and the value that releases it.
const HOLDS: [(&str, &str); 3] = [("apply.paused", "no"), ("apply.delay", "0"), ("apply.until", "none")];

/// Why a server does not get all that it could, if somebody wants it so: as a line for people. It takes no writes then, and
/// may not be Synced for as long as they want.
pub(crate) fn held(server: &Server) -> Option<String> {
    let options = server.client().and_then(|mut c| c.value("SELECT @@wsrep_provider_options")).ok()?;
    let said =
        fetch::get(&fetch::socket_in(&server.datadir()), "/status").and_then(|body| survey::parse(&body));
    held_by(&options, &said.map(|status| status.own.apply_kept).unwrap_or_default())
}

/// `kept`: settings made while it ran, from its status.
fn held_by(options: &str, kept: &[String]) -> Option<String> {
    let mut by = Vec::new();
    let mut release = Vec::new();
    for part in options.split(';') {
        let Some((name, value)) = part.split_once('=') else { continue };
        let (name, value) = (name.trim(), value.trim());
        let Some((_, free)) = HOLDS.iter().find(|(hold, _)| *hold == name) else { continue };
        // The option table decides: a delay of zero has many spellings.
        let hold = Options::parse(&format!("{name}={value}")).is_ok_and(|o| o.tuning().apply_hold.is_set());
        if !hold {
            continue;
        }
        let ran = kept.iter().any(|k| k.split('=').next() == Some(name));
        let since = if ran { "set while it ran" } else { "its configuration says so" };
        let what = if name == "apply.paused" { name.to_owned() } else { format!("{name}={value}") };
        by.push(format!("{what} ({since})"));
        release.push(format!("{name}={free}"));
    }
    (!by.is_empty()).then(|| {
        format!(
            "held by {}; to let it go on, there: SET GLOBAL wsrep_provider_options = '{}'",
            by.join(", "),
            release.join("; ")
        )
    })
}

/// The line about a server that stays a learner because its configuration says so. `promote` is the command that makes it
/// a voter.
pub(crate) fn without_vote(server: &Server, promote: &str) -> Option<String> {
    let options = server.client().and_then(|mut c| c.value("SELECT @@wsrep_provider_options")).ok()?;
    wants_no_vote(&options).then(|| no_vote(server.name(), &server.config.file("cnf"), promote))
}

fn no_vote(name: &str, file: &Path, promote: &str) -> String {
    format!(
        "{name} does not vote: {} says member.vote=no (or pc.weight=0). It receives and applies, and no majority counts it. To let it \
         vote: member.vote=yes there, and start it again; or at once, until it is stopped in order: {promote}",
        file.display()
    )
}

fn wants_no_vote(options: &str) -> bool {
    let named = |part: &str| part.split_once('=').is_some_and(|(name, _)| name.trim() == "member.vote");
    let part = options.split(';').find(|part| named(part));
    part.is_some_and(|part| Options::parse(part).is_ok_and(|options| !options.bool("member.vote")))
}

/// Waits until a server is ready, or a member that somebody holds where it is; and says which. `ran`: it was running before, so
/// that nobody starts or connects it now.
pub(crate) fn wait(server: &mut Server, step: &Step, ran: bool) -> Result<String, String> {
    let began = Instant::now();
    let mut said = String::new();
    loop {
        let health = health(server);
        if health == Health::Ready {
            return Ok(health.text().to_owned());
        }
        if matches!(health, Health::Desynced(_)) && held(server).is_some() {
            return Ok("held where it is".into());
        }
        let name = server.name().to_owned();
        if let Some(status) = server.ended() {
            return Err(LabError::Exited { server: name, status, log: server.complaints(25) }.to_string());
        }
        if let Health::Failed(state) = &health {
            return Err(failed(server, state));
        }
        let waited = began.elapsed();
        if waited > PATIENCE && !matches!(health, Health::Silent(_)) && said != health.text() {
            said = health.text().to_owned();
            step.note(&said);
        }
        if ran && waited > UNCONNECTED && matches!(health, Health::Unconnected(_)) {
            return Err(format!(
                "{name} runs, but is not connected to the cluster ({said}), and does not come back by itself. Why, its \
                 log says: {}. Stop it: `{}`",
                server.config.file("err").display(),
                stop(server)
            ));
        }
        if waited > READY {
            let what = format!("is not a synced member after {} s: {}", READY.as_secs(), health.text());
            return Err(LabError::Timeout { server: name, what, log: server.complaints(25) }.to_string());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(pairs: &[(&str, &str)]) -> Health {
        judge(&pairs.iter().map(|(k, v)| (format!("wsrep_{k}"), (*v).to_owned())).collect())
    }

    #[test]
    fn server_outside_cluster_differs_from_no_majority() {
        let state = |ready, status, state, comment, connected| {
            said(&[
                ("ready", ready),
                ("cluster_status", status),
                ("local_state", state),
                ("local_state_comment", comment),
                ("connected", connected),
            ])
        };
        assert_eq!(state("ON", "Primary", "4", "Synced", "ON"), Health::Ready);
        assert_eq!(
            state("OFF", "non-Primary", "0", "Initialized", "ON"),
            Health::Waiting("Initialized, non-Primary".into())
        );
        assert_eq!(
            state("OFF", "Disconnected", "0", "Initialized", "OFF"),
            Health::Unconnected("Initialized, Disconnected".into())
        );
        assert_eq!(
            state("OFF", "Disconnected", "5", "Inconsistent", "OFF"),
            Health::Failed("Inconsistent, Disconnected".into())
        );
        assert!(matches!(state("ON", "Primary", "2", "Donor/Desynced", "ON"), Health::Desynced(_)));
    }

    #[test]
    fn configured_learner_is_reported() {
        for (options, none) in [
            ("log.size = 1G; member.vote = no; member.zone = 0", true),
            ("member.vote=off", true),
            ("log.size = 1G; member.vote = yes; member.zone = 0", false),
            ("log.size = 1G", false),
            ("", false),
        ] {
            assert_eq!(wants_no_vote(options), none, "{options}");
        }
        let text = no_vote("n3", Path::new("/x/n3.cnf"), "`lockstep promote --name n3 --dir /x`");
        assert!(text.starts_with("n3 does not vote: /x/n3.cnf says member.vote=no"), "{text}");
        assert!(text.ends_with("in order: `lockstep promote --name n3 --dir /x`"), "{text}");
    }

    #[test]
    fn held_back_member_is_reported_with_remedy() {
        let free =
            "apply.delay = 0; apply.order = writeset; apply.paused = no; apply.until = none; debug = no";
        assert_eq!(held_by(free, &[]), None);
        let paused = "apply.delay = PT0S; apply.paused = yes; apply.until = none";
        assert_eq!(
            held_by(paused, &["apply.paused=yes".into()]).unwrap(),
            "held by apply.paused (set while it ran); to let it go on, there: SET GLOBAL wsrep_provider_options = \
             'apply.paused=no'"
        );
        let two = held_by("apply.delay = 1h; apply.until = 70", &["apply.until=70".into()]).unwrap();
        assert!(
            two.contains("apply.delay=1h (its configuration says so), apply.until=70 (set while it ran)"),
            "{two}"
        );
        assert!(two.ends_with("'apply.delay=0; apply.until=none'"), "{two}");
    }
}
