//! The health of one server of `lockstep up`: waits until it is a synced member, and reports its state meanwhile.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use lockstep_local::{LocalError, Server, Step};
use lockstep_node::options::Options;

use crate::fetch;
use crate::query;

/// Maximum time until a server is synced, including a state transfer.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum time that a running server may be unconnected. Only a user or a restart connects it again.
const UNCONNECTED_TIMEOUT: Duration = Duration::from_secs(10);
/// After this time the state of the server is printed.
const REPORT_AFTER: Duration = Duration::from_secs(3);
/// The state of a member that has failed.
const INCONSISTENT: &str = "Inconsistent";

/// The state of a server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// A synced member of a primary component.
    Ready,
    /// The server answers, and is connected or connecting.
    Waiting(String),
    /// The server is in a primary component and has the data, but lags, or an apply hold is in force.
    Desynced(String),
    /// The server answers, and has left the cluster.
    Unconnected(String),
    /// The server answers, and cannot rejoin before a restart.
    Failed(String),
    /// The server does not answer.
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

/// Queries the health of a server.
pub(crate) fn health(server: &Server) -> Health {
    match server.wsrep_status() {
        Ok(status) => classify(&status),
        Err(error) => Health::Silent(error.to_string()),
    }
}

/// Derives the health from the server's status variables.
fn classify(status: &BTreeMap<String, String>) -> Health {
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

/// The command that stops a server that rejects all statements. `mariadb-admin shutdown` cannot: it sends a statement.
fn stop_command(server: &Server) -> String {
    server.pid().map_or_else(|| "kill PID".into(), |pid| format!("kill {pid}"))
}

/// The reason why a member has failed, as the member reports it, and the remedy.
fn failure_text(server: &Server, state: &str) -> String {
    let (name, log) = (server.name(), server.config.file("err"));
    let status =
        fetch::get(&fetch::socket_in(&server.datadir()), "/status").and_then(|body| query::parse(&body));
    let why =
        status.ok().and_then(|status| status.own.failure).unwrap_or_else(|| format!("its state is {state}"));
    format!(
        "{name} has failed: {why}\nIts server runs, but is outside of the cluster until it is restarted. Its log is {}. \
         Stop it: `{}`",
        log.display(),
        stop_command(server)
    )
}

/// The options of an apply hold, each with the value that ends the hold.
const HOLD_OPTIONS: [(&str, &str); 3] =
    [("apply.paused", "no"), ("apply.delay", "0"), ("apply.until", "none")];

/// Describes the apply hold of a server, if one is in force. Such a server accepts no writes, and may not become Synced
/// before the hold ends.
pub(crate) fn apply_hold(server: &Server) -> Option<String> {
    let options = server.client().and_then(|mut c| c.value("SELECT @@wsrep_provider_options")).ok()?;
    let status =
        fetch::get(&fetch::socket_in(&server.datadir()), "/status").and_then(|body| query::parse(&body));
    hold_text(&options, &status.map(|status| status.own.apply_kept).unwrap_or_default())
}

/// `kept` lists the settings that were made at runtime, from the member's status.
fn hold_text(options: &str, kept: &[String]) -> Option<String> {
    let mut by = Vec::new();
    let mut release = Vec::new();
    for part in options.split(';') {
        let Some((name, value)) = part.split_once('=') else { continue };
        let (name, value) = (name.trim(), value.trim());
        let Some((_, free)) = HOLD_OPTIONS.iter().find(|(hold, _)| *hold == name) else { continue };
        // Parse with the option table, because a delay of zero has many spellings.
        let hold = Options::parse(&format!("{name}={value}")).is_ok_and(|o| o.tuning().apply_hold.is_set());
        if !hold {
            continue;
        }
        let ran = kept.iter().any(|k| k.split('=').next() == Some(name));
        let since = if ran { "set while it ran" } else { "set in its configuration" };
        let what = if name == "apply.paused" { name.to_owned() } else { format!("{name}={value}") };
        by.push(format!("{what} ({since})"));
        release.push(format!("{name}={free}"));
    }
    (!by.is_empty()).then(|| {
        format!(
            "held back by {}; to end the hold, run on that server: SET GLOBAL wsrep_provider_options = '{}'",
            by.join(", "),
            release.join("; ")
        )
    })
}

/// Describes a server that stays a learner because of its configuration. `promote` is the command that makes it a voter.
pub(crate) fn configured_learner(server: &Server, promote: &str) -> Option<String> {
    let options = server.client().and_then(|mut c| c.value("SELECT @@wsrep_provider_options")).ok()?;
    wants_no_vote(&options).then(|| learner_text(server.name(), &server.config.file("cnf"), promote))
}

fn learner_text(name: &str, file: &Path, promote: &str) -> String {
    format!(
        "{name} does not vote: {} sets member.vote=no (or pc.weight=0). It receives and applies all transactions, and no \
         majority counts it. To make it a voter, set member.vote=yes in that file and restart it. To make it a voter until \
         its next shutdown: {promote}",
        file.display()
    )
}

fn wants_no_vote(options: &str) -> bool {
    let named = |part: &str| part.split_once('=').is_some_and(|(name, _)| name.trim() == "member.vote");
    let part = options.split(';').find(|part| named(part));
    part.is_some_and(|part| Options::parse(part).is_ok_and(|options| !options.bool("member.vote")))
}

/// Waits until a server is ready or held back, and returns the state as text. `ran`: the server was running before, so
/// `up` has not started it and it connects only by itself.
pub(crate) fn wait_until_ready(server: &mut Server, step: &Step, ran: bool) -> Result<String, String> {
    let began = Instant::now();
    let mut printed = String::new();
    loop {
        let health = health(server);
        if health == Health::Ready {
            return Ok(health.text().to_owned());
        }
        if matches!(health, Health::Desynced(_)) && apply_hold(server).is_some() {
            return Ok("held back".into());
        }
        let name = server.name().to_owned();
        if let Some(status) = server.ended() {
            return Err(LocalError::Exited { server: name, status, log: server.complaints(25) }.to_string());
        }
        if let Health::Failed(state) = &health {
            return Err(failure_text(server, state));
        }
        let waited = began.elapsed();
        if waited > REPORT_AFTER && !matches!(health, Health::Silent(_)) && printed != health.text() {
            printed = health.text().to_owned();
            step.note(&printed);
        }
        if ran && waited > UNCONNECTED_TIMEOUT && matches!(health, Health::Unconnected(_)) {
            return Err(format!(
                "{name} runs, but is not connected to the cluster ({printed}), and will not reconnect by itself. Its log \
                 has the reason: {}. Stop it: `{}`",
                server.config.file("err").display(),
                stop_command(server)
            ));
        }
        if waited > READY_TIMEOUT {
            let what =
                format!("is not a synced member after {} s: {}", READY_TIMEOUT.as_secs(), health.text());
            return Err(LocalError::Timeout { server: name, what, log: server.complaints(25) }.to_string());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health_of(pairs: &[(&str, &str)]) -> Health {
        classify(&pairs.iter().map(|(k, v)| (format!("wsrep_{k}"), (*v).to_owned())).collect())
    }

    #[test]
    fn server_outside_cluster_differs_from_no_majority() {
        let state = |ready, status, state, comment, connected| {
            health_of(&[
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
        let text = learner_text("n3", Path::new("/x/n3.cnf"), "`lockstep promote --name n3 --dir /x`");
        assert!(text.starts_with("n3 does not vote: /x/n3.cnf sets member.vote=no"), "{text}");
        assert!(text.ends_with("shutdown: `lockstep promote --name n3 --dir /x`"), "{text}");
    }

    #[test]
    fn held_back_member_is_reported_with_remedy() {
        let free =
            "apply.delay = 0; apply.order = writeset; apply.paused = no; apply.until = none; debug = no";
        assert_eq!(hold_text(free, &[]), None);
        let paused = "apply.delay = PT0S; apply.paused = yes; apply.until = none";
        assert_eq!(
            hold_text(paused, &["apply.paused=yes".into()]).unwrap(),
            "held back by apply.paused (set while it ran); to end the hold, run on that server: SET GLOBAL \
             wsrep_provider_options = 'apply.paused=no'"
        );
        let two = hold_text("apply.delay = 1h; apply.until = 70", &["apply.until=70".into()]).unwrap();
        assert!(
            two.contains("apply.delay=1h (set in its configuration), apply.until=70 (set while it ran)"),
            "{two}"
        );
        assert!(two.ends_with("'apply.delay=0; apply.until=none'"), "{two}");
    }
}
