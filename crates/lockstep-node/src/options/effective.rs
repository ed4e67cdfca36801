//! The options of one node.

use super::edit::{Change, escape, find, pairs};
use super::error::OptionError;
use super::table::{Class, Row, When, rows};
use super::value::{Kind, Value, show_size};
use crate::api::{ApplyHold, ApplyOrder, Compress, TlsOptions, Tuning};
use lockstep_net::TlsFiles;
use std::path::PathBuf;
use std::time::Duration;

/// The least bound of `apply.pace`.
const PACE_MIN: Duration = Duration::from_millis(500);

/// A line for the log about an option that was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// Whether an operator should look.
    pub warn: bool,
    /// The line.
    pub text: String,
}

/// Effective options: defaults, defaults of the environment, and given values.
#[derive(Clone, Debug)]
pub struct Options {
    /// As it was given, checked; by row.
    given: Vec<Option<String>>,
    /// Defaults of the environment, by row.
    filled: Vec<Option<String>>,
}

impl Default for Options {
    fn default() -> Options {
        Options { given: vec![None; rows().len()], filled: vec![None; rows().len()] }
    }
}

impl Options {
    /// Reads the options of the configuration. The last of several values counts.
    ///
    /// # Errors
    /// [`OptionError`]: the node should not start.
    pub fn parse(text: &str) -> Result<Options, OptionError> {
        let mut options = Options::default();
        options.set(text, false)?;
        Ok(options)
    }

    /// Changes options, all or none. Returns the options whose value changed, and always commands such as `pc.bootstrap`.
    /// While `running`, only options that can change then are accepted, and the cluster's options are always returned:
    /// the value in force here may be about to change.
    ///
    /// # Errors
    /// [`OptionError`], and then nothing has changed.
    pub fn set(&mut self, text: &str, running: bool) -> Result<Vec<Change>, OptionError> {
        let mut next = self.clone();
        let mut changes: Vec<Change> = Vec::new();
        for (name, value) in pairs(text)? {
            let row = find(&name)?;
            let at = place(row);
            check(row, &value)?;
            let repeats = row.command || running && row.is_of_policy();
            if !repeats && next.given[at].is_some() && next.given[at].as_ref() == Some(&value) {
                continue;
            }
            let same = next.shows(row, &value);
            if running && !same && !row.running {
                return Err(OptionError::Fixed { name: row.name });
            }
            next.given[at] = Some(value.clone());
            if repeats || !running || !same {
                changes.retain(|change| change.name != row.name);
                changes.push(Change { name: row.name, value });
            }
        }
        next.check_combinations()?;
        *self = next;
        Ok(changes)
    }

    /// Whether `text` is about the vote of a running member that `votes`. One that was promoted votes beside its
    /// configuration, so that what [`Options::set`] compares with is not what is in force.
    ///
    /// # Errors
    /// It is: no value would change anything, and the one that is configured would seem to.
    pub fn check_promoted(&self, text: &str, votes: bool) -> Result<(), OptionError> {
        if !votes || self.bool("member.vote") {
            return Ok(());
        }
        let of_the_vote = |row: &Row| ["member.vote", "pc.weight"].contains(&row.name);
        let pairs = pairs(text)?;
        // Setting every option to its shown value is no change.
        let mut others = false;
        for (name, _) in &pairs {
            others |= !of_the_vote(find(name)?);
        }
        for (name, value) in pairs {
            let row = find(&name)?;
            check(row, &value)?;
            let same = self.shows(row, &value);
            if of_the_vote(row) && !(others && same) {
                let reason = "this member was promoted, or has founded a cluster, and votes whatever its configuration says. With member.vote=yes there it \
                              will go on to do so; with member.vote=no it does not vote any more once its server has been \
                              stopped in order and started again";
                return Err(OptionError::Refused { name: row.name, value, reason });
            }
        }
        Ok(())
    }

    /// Sets a default of this environment, such as `base_host` or `gcache.dir`. It does not count as given.
    ///
    /// # Errors
    /// [`OptionError`] where there is no such option, or the value is not one of its.
    pub fn fill(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        let row = find(name)?;
        check(row, value)?;
        self.filled[place(row)] = Some(value.to_owned());
        Ok(())
    }

    /// All options as Galera shows them: `name = value; ` each, by name.
    ///
    /// Commands that can have an effect are included, as inactive. For `FLUSH SSL` the server sets `socket.ssl_reload` if it
    /// finds the name here. Otherwise it reports OK and does nothing.
    pub fn get_all(&self) -> String {
        let mut out = String::with_capacity(4096);
        for row in rows().iter().filter(|row| !row.hidden) {
            let value = match row.command {
                true => self.is_encrypted().then(|| "0".to_owned()),
                false => self.displayed(row),
            };
            if let Some(value) = value {
                out.push_str(row.name);
                out.push_str(" = ");
                out.push_str(&escape(&value));
                out.push_str("; ");
            }
        }
        out
    }

    /// All options that are shown and are no commands, by name, each with the value in force; `None` where there is
    /// none.
    pub fn values(&self) -> Vec<(&'static Row, Option<Value>)> {
        rows()
            .iter()
            .filter(|row| !row.hidden && !row.command)
            .map(|row| (row, self.value(row.name)))
            .collect()
    }

    /// One line for each option that was given and does not simply do what it says.
    pub fn notes(&self) -> Vec<Note> {
        rows().iter().filter_map(|row| self.note(row)).collect()
    }

    /// The same for these only: those that a [`Options::set`] has changed.
    pub fn notes_on(&self, changes: &[Change]) -> Vec<Note> {
        changes.iter().filter_map(|change| find(change.name).ok()).filter_map(|row| self.note(row)).collect()
    }

    /// Warnings about valid but harmful log settings, one line each; `flush` names InnoDB's flush interval, `seconds` is
    /// its length.
    pub fn unwise(&self, flush: &str, seconds: u64) -> Vec<String> {
        let mut said = Vec::new();
        if self.time("log.keep_min").as_secs() <= seconds {
            said.push(format!(
                "log.keep_min must be more than {flush}: what InnoDB has not flushed yet is supplied by the log after a crash"
            ));
        }
        let (size, segment) = (self.size("log.size"), self.size("log.segment"));
        if size < segment {
            said.push(format!(
                "log.size = {} is less than one file of the log (log.segment = {}): nothing is kept for longer than \
                 log.keep_min, so that a member that was away for longer takes a copy of the whole database",
                self.text("log.size"),
                self.text("log.segment")
            ));
        }
        said
    }

    fn note(&self, row: &Row) -> Option<Note> {
        let Row { name, .. } = row;
        let value = self.given[place(row)].as_ref()?;
        match row.class {
            Class::Galera if *name == "socket.dynamic" && self.bool(name) && !self.is_encrypted() => {
                Some(Note {
                    warn: false,
                    text: "provider option socket.dynamic has no effect: connections are not encrypted"
                        .into(),
                })
            }
            Class::Own | Class::Galera => None,
            Class::Sets(own) if self.is_given(own) => Some(Note {
                warn: true,
                text: format!("provider option {name} = {value} is overruled by {own} = {}", self.text(own)),
            }),
            Class::Sets(own) => Some(Note {
                warn: false,
                text: format!("provider option {name} = {value} sets {own} = {}", self.text(own)),
            }),
            Class::NoEffect(why) => {
                // The operator asked for this and does not get it.
                let warn = *name == "pc.ignore_sb" && self.bool(name);
                Some(Note { warn, text: format!("provider option {name} has no effect: {why}") })
            }
        }
    }

    /// Whether it was given, and not left at its default.
    pub fn is_given(&self, name: &str) -> bool {
        find(name).is_ok_and(|row| self.given[place(row)].is_some())
    }

    /// The value in force, as text; empty where there is none.
    ///
    /// # Panics
    /// Here and in the other getters where the table has no such option of this type: a mistake in the program.
    pub fn text(&self, name: &str) -> String {
        self.displayed(row(name)).unwrap_or_default()
    }

    /// The value in force; false where there is none.
    pub fn bool(&self, name: &str) -> bool {
        match self.value(name) {
            None => false,
            Some(Value::Bool(on)) => on,
            Some(other) => panic!("option {name} is {other:?}, not yes or no"),
        }
    }

    /// The value in force; 0 where there is none.
    pub fn int(&self, name: &str) -> i64 {
        match self.value(name) {
            None => 0,
            Some(Value::Int(n)) => n,
            Some(other) => panic!("option {name} is {other:?}, not a number"),
        }
    }

    /// The value in force, in bytes; 0 where there is none.
    pub fn size(&self, name: &str) -> u64 {
        match self.value(name) {
            None => 0,
            Some(Value::Size(n)) => n,
            Some(other) => panic!("option {name} is {other:?}, not a size"),
        }
    }

    /// The value in force; zero where there is none.
    pub fn time(&self, name: &str) -> Duration {
        match self.value(name) {
            None => Duration::ZERO,
            Some(Value::Time(time)) => time,
            Some(other) => panic!("option {name} is {other:?}, not a duration"),
        }
    }

    /// Timing and sizes for the node.
    pub fn tuning(&self) -> Tuning {
        let log_bytes = self.size("log.size");
        let log_max_bytes = self.size("log.max_size");
        Tuning {
            heartbeat: self.time("net.heartbeat"),
            election_timeout: self.time("cluster.election_timeout"),
            evict_timeout: self.time("cluster.evict_timeout"),
            disk_timeout: self.time("leader.disk_timeout"),
            apply_timeout: self.time("leader.apply_timeout"),
            compress: match self.text("net.compress").to_ascii_lowercase().as_str() {
                "zone" => Compress::Zone,
                "all" => Compress::All,
                _ => Compress::Off,
            },
            relay: self.bool("net.relay"),
            follow_writer: self.bool("leader.follow_writer"),
            segment_bytes: self.size("log.segment"),
            log_direct: self.bool("log.direct"),
            log_bytes,
            log_max_bytes,
            log_keep: self.time("log.keep_min"),
            lag_limit: self.int("apply.lag_limit") as u64,
            apply_order: match self.text("apply.order").to_ascii_lowercase().as_str() {
                "serial" => ApplyOrder::Serial,
                "schema" => ApplyOrder::Schema,
                _ => ApplyOrder::Writeset,
            },
            apply_pace: self.time("apply.pace"),
            apply_hold: ApplyHold {
                paused: self.bool("apply.paused"),
                delay: self.time("apply.delay"),
                until: match self.value("apply.until") {
                    Some(Value::Until(until)) => until,
                    _ => None,
                },
            },
            apply_kept: Vec::new(),
            vote_policy: self.int("gcs.vote_policy").clamp(0, 255) as usize,
            policy: self.policy(),
        }
    }

    /// `member.zone`, `gmcast.segment`.
    pub fn zone(&self) -> u8 {
        self.int("member.zone") as u8
    }

    /// `log.dir`, `gcache.dir`: where the log is, if not in the data directory.
    pub fn log_dir(&self) -> Option<PathBuf> {
        let text = self.text("log.dir");
        (!text.is_empty()).then(|| PathBuf::from(text))
    }

    /// `status.address`, if any.
    pub fn status_address(&self) -> Option<String> {
        Some(self.text("status.address")).filter(|text| !text.is_empty())
    }

    /// `gmcast.listen_addr`, or all addresses at `base_port`.
    pub fn listen(&self) -> String {
        match self.text("gmcast.listen_addr") {
            text if text.is_empty() => format!("tcp://0.0.0.0:{}", self.port()),
            text => text,
        }
    }

    /// `base_port`.
    pub fn port(&self) -> u16 {
        self.int("base_port") as u16
    }

    /// Whether connections between members are encrypted. As in Galera, a key or a certificate turns it on, unless it
    /// is turned off.
    fn is_encrypted(&self) -> bool {
        match self.is_given("socket.ssl") {
            true => self.bool("socket.ssl"),
            false => !self.text("socket.ssl_key").is_empty() || !self.text("socket.ssl_cert").is_empty(),
        }
    }

    /// `socket.ssl*`: how connections between members are encrypted, if they are.
    pub fn tls(&self) -> Option<TlsOptions> {
        let path = |name| Some(self.text(name)).filter(|text| !text.is_empty()).map(PathBuf::from);
        if !self.is_encrypted() {
            return None;
        }
        let files = TlsFiles {
            cert: path("socket.ssl_cert")?,
            key: path("socket.ssl_key")?,
            ca: path("socket.ssl_ca"),
        };
        Some(TlsOptions { files, dynamic: self.bool("socket.dynamic") })
    }

    /// Takes a value that is none of the user's.
    pub(super) fn hold(&mut self, name: &str, value: &str) {
        self.given[place(row(name))] = Some(value.to_owned());
    }

    fn value(&self, name: &str) -> Option<Value> {
        let row = row(name);
        let text = self.displayed(row)?;
        // Stored values have been checked, and a test checks the defaults.
        Some(
            row.kind.parse(&text).unwrap_or_else(|e| panic!("option {name} holds '{text}', but must be {e}")),
        )
    }

    /// The value in force. An option and the one that it sets always show the same.
    fn displayed(&self, row: &Row) -> Option<String> {
        let at = place(row);
        match row.class {
            Class::Sets(own) => {
                let own = super::effective::row(own);
                if self.given[place(own)].is_some() || self.given[at].is_none() && self.filled[at].is_none() {
                    return self.own(own).map(|text| convert(&own.kind, &row.kind, &text));
                }
                self.given[at].clone().or_else(|| self.filled[at].clone())
            }
            _ if row.name == "gmcast.listen_addr" && self.given[at].is_none() => Some(self.default_listen()),
            _ => self.own(row),
        }
    }

    /// Whether this is the value in force, however it is written.
    fn shows(&self, row: &Row, value: &str) -> bool {
        self.displayed(row).is_some_and(|held| row.kind.parse(&held) == row.kind.parse(value))
    }

    fn default_listen(&self) -> String {
        let port = row("base_port");
        let port = self.own(port).unwrap_or_default();
        let scheme = if self.is_encrypted() && !self.bool("socket.dynamic") { "ssl" } else { "tcp" };
        format!("{scheme}://0.0.0.0:{port}")
    }

    /// Given, or set by another, or filled in, or the default.
    fn own(&self, row: &Row) -> Option<String> {
        let at = place(row);
        if let Some(text) = &self.given[at] {
            return Some(text.clone());
        }
        let setter = rows().iter().find(|other| other.class == Class::Sets(row.name));
        if let Some(other) = setter
            && let Some(text) = &self.given[place(other)]
        {
            return Some(convert(&other.kind, &row.kind, text));
        }
        let text = self.filled[at].clone().or_else(|| row.default.map(str::to_owned));
        match text.as_deref().map(|text| row.kind.parse(text)) {
            // An explicitly large log overrides the default of its limit.
            Some(Ok(Value::Size(most))) if row.name == "log.max_size" && most < self.size("log.size") => {
                Some(show_size(self.size("log.size")))
            }
            _ => text,
        }
    }

    fn check_combinations(&self) -> Result<(), OptionError> {
        let tuning = self.tuning();
        if tuning.election_timeout < tuning.heartbeat * 3 {
            return Err(OptionError::Combination {
                text: format!(
                    "cluster.election_timeout = {} is less than three times net.heartbeat = {}: members would stand for election without need",
                    self.text("cluster.election_timeout"),
                    self.text("net.heartbeat")
                ),
            });
        }
        if !tuning.apply_pace.is_zero() && tuning.apply_pace < PACE_MIN {
            return Err(OptionError::Combination {
                text: format!(
                    "apply.pace = {} is less than 500ms: members report every 0.2 s how far they are; 0 switches it off",
                    self.text("apply.pace")
                ),
            });
        }
        if tuning.log_bytes > tuning.log_max_bytes {
            return Err(OptionError::Combination {
                text: format!(
                    "log.size = {} is more than log.max_size = {}: raise log.max_size",
                    show_size(tuning.log_bytes),
                    self.text("log.max_size")
                ),
            });
        }
        if self.is_encrypted()
            && let Some(name) =
                ["socket.ssl_key", "socket.ssl_cert"].into_iter().find(|name| self.text(name).is_empty())
        {
            return Err(OptionError::Combination {
                text: format!(
                    "socket.ssl needs {name} as well: name its PEM file (`lockstep cert` makes all that a cluster needs)"
                ),
            });
        }
        Ok(())
    }
}

/// The row of a name that the program itself uses.
fn row(name: &str) -> &'static Row {
    find(name).unwrap_or_else(|e| panic!("{e}"))
}

fn place(row: &Row) -> usize {
    rows().binary_search_by(|other| other.name.cmp(row.name)).expect("a row of the table")
}

/// Whether an option takes a value.
fn check(row: &'static Row, value: &str) -> Result<(), OptionError> {
    let refused = |reason| OptionError::Refused { name: row.name, value: value.to_owned(), reason };
    let parsed = row.kind.parse(value).map_err(|expected| OptionError::Value {
        name: row.name,
        value: value.to_owned(),
        expected,
    })?;
    if let Some(refusal) = row.refused {
        let hit = match (refusal.when, &parsed) {
            (When::On, Value::Bool(on)) => *on,
            (When::Above(most), Value::Int(n)) => *n > most,
            (When::Not(word), Value::Text(text)) => word != text,
            (When::On | When::Above(_) | When::Not(_), _) => false,
        };
        if hit {
            return Err(refused(refusal.reason));
        }
    }
    Ok(())
}

/// A checked value of one option as that of the option which it sets, or the other way round.
fn convert(from: &Kind, to: &Kind, text: &str) -> String {
    match (from, to) {
        (Kind::Int(..), Kind::Bool) => {
            if from.parse(text) == Ok(Value::Int(0)) { "no" } else { "yes" }.to_owned()
        }
        (Kind::Bool, Kind::Int(..)) => {
            if from.parse(text) == Ok(Value::Bool(false)) { "0" } else { "1" }.to_owned()
        }
        _ => text.to_owned(),
    }
}
