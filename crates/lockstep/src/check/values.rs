//! Checks the values of options. The installed server runs once with all settings that it knows, and reports bad values.

use super::cnf::Setting;
use super::installed::{Reaction, RunAs};
use super::names::{Names, value_as_written};
use super::{Check, Level};

/// Options that the check does not pass to the server: account, paths and actions. None has values that are wrong by
/// themselves.
const NOT_PASSED: &[&str] = &[
    "basedir",
    "bootstrap",
    "chroot",
    "datadir",
    "help",
    "log_error",
    "memlock",
    "user",
    "verbose",
    "version",
    "wsrep_on",
    "wsrep_recover",
];

/// Prefixes of options that are not passed either. The plugins are named already. The provider is not loaded, so the
/// server does not know its variables.
const PREFIXES_NOT_PASSED: &[&str] = &["plugin_", "wsrep_provider"];

/// Parts of the names of options that are not passed, because the list of processes would show their values.
const SECRET: &[&str] = &["auth", "password", "secret", "filekey"];

/// Maximum number of runs. A server may end at a bad value before it has parsed the others.
const MAX_RUNS: usize = 8;

/// A complaint of the server about a value.
#[derive(Debug, PartialEq, Eq)]
struct Complaint {
    /// The option, in lower case and with underscores.
    name: String,
    /// The value as the server prints it.
    value: Option<String>,
    effect: Effect,
    text: String,
}

/// The effect of a bad value.
#[derive(Debug, PartialEq, Eq)]
enum Effect {
    /// The server does not start.
    Refused,
    /// The server starts without this plugin.
    Disables(String),
    /// The value is not a boolean, and the server uses OFF.
    Off,
    /// The server uses another number.
    Adjusted,
}

/// Runs the server and reports bad values. `known`: the settings whose names the server knows.
pub(super) fn check_values(check: &mut Check<'_>, names: &Names, mut known: Vec<&Setting>) {
    known.retain(|s| {
        let not_passed = NOT_PASSED.contains(&s.name.as_str())
            || PREFIXES_NOT_PASSED.iter().any(|start| s.name.starts_with(start))
            || SECRET.iter().any(|word| s.name.contains(word));
        // `names::quotes` reports open quotes.
        !not_passed && !s.open_quote
    });
    let run_as = names.run_as();
    for _ in 0..MAX_RUNS {
        let arguments: Vec<String> = known.iter().map(|s| argument(s)).collect();
        let Some(reaction) = check.machine.server_reaction(run_as, &arguments) else { return };
        let found = complaints(&reaction.error_log);
        let mut bad = Vec::new();
        for complaint in &found {
            let is_error = matches!(complaint.effect, Effect::Refused | Effect::Disables(_));
            if !is_error && reaction.refused {
                // A later run, without the bad values, repeats this complaint.
                continue;
            }
            let of_it = |s: &&&Setting| s.name.eq_ignore_ascii_case(&complaint.name);
            let has_it = |s: &&&Setting| complaint.value.as_deref().is_some_and(|value| s.text() == value);
            let all = || known.iter().rev().filter(of_it);
            let Some(setting) = all().find(has_it).or_else(|| all().next()).copied() else { continue };
            report(check, setting, complaint);
            if is_error {
                bad.push(setting);
            }
        }
        if bad.is_empty() && reaction.refused {
            bad = unnamed_error(check, run_as, &known, &reaction);
        }
        if bad.is_empty() {
            return;
        }
        known.retain(|s| !bad.iter().any(|b| std::ptr::eq(*b, *s)));
    }
}

fn argument(setting: &Setting) -> String {
    match value_as_written(setting) {
        Some(value) => format!("--{}={value}", setting.written),
        None => format!("--{}", setting.written),
    }
}

fn report(check: &mut Check<'_>, setting: &Setting, complaint: &Complaint) {
    let text = &complaint.text;
    let (level, text) = match &complaint.effect {
        Effect::Refused => (Level::Refused, format!("the server does not start: {text}")),
        Effect::Disables(plugin) => {
            (Level::Unwise, format!("the server starts without the plugin {plugin}: {text}"))
        }
        Effect::Off => (Level::Unwise, format!("the server uses OFF: {text}")),
        Effect::Adjusted => (Level::Note, format!("the server uses another value: {text}")),
    };
    check.at(level, setting, text);
}

/// Handles a server that ended without naming an option, as for character sets. Runs the server once for each setting, and
/// returns the settings with which it ends. If there are none, reports the settings together.
fn unnamed_error<'a>(
    check: &mut Check<'_>,
    run_as: &RunAs,
    known: &[&'a Setting],
    reaction: &Reaction,
) -> Vec<&'a Setting> {
    let last = |reaction: &Reaction| {
        let line = reaction.error_log.lines().rfind(|line| !line.contains("[Warning]"));
        message(line.unwrap_or("it printed no reason")).to_owned()
    };
    let mut bad = Vec::new();
    for &setting in known.iter().filter(|s| s.value.is_some()) {
        if let Some(alone) = check.machine.server_reaction(run_as, &[argument(setting)])
            && alone.refused
        {
            bad.push(setting);
            check.at(Level::Refused, setting, format!("the server does not start: {}", last(&alone)));
        }
    }
    if bad.is_empty() {
        let text = format!("the server does not start with these settings together: {}", last(reaction));
        check.about(Level::Refused, "(all)", text);
    }
    bad
}

/// A line of the error log without time, level and program.
fn message(line: &str) -> &str {
    let line = line.rsplit_once("[ERROR] ").or(line.rsplit_once("[Warning] ")).map_or(line, |(_, rest)| rest);
    let line =
        line.strip_prefix("Buffered error: ").or(line.strip_prefix("Buffered warning: ")).unwrap_or(line);
    line.split_once(": ").filter(|(program, _)| program.ends_with("mariadbd")).map_or(line, |(_, rest)| rest)
}

/// Parses the complaints about values in an error log.
fn complaints(text: &str) -> Vec<Complaint> {
    let whole = |name: &str| name.replace('-', "_").to_ascii_lowercase();
    let mut found: Vec<Complaint> = Vec::new();
    // The server prints the errors of a plugin's options before it disables the plugin. `own` is the index of the first
    // error after the previous plugin.
    let mut own = 0;
    let mut reason = None;
    for line in text.lines() {
        let is_error = line.contains("[ERROR]");
        let line = message(line);
        if let Some(rest) = line.strip_prefix("Error while setting value '") {
            let Some((value, name)) = rest.strip_suffix('\'').and_then(|rest| rest.rsplit_once("' to '"))
            else {
                continue;
            };
            let why: Option<String> = reason.take();
            found.push(Complaint {
                name: whole(name),
                value: Some(value.to_owned()),
                effect: Effect::Refused,
                text: why.unwrap_or_else(|| format!("'{value}' is not a valid value")),
            });
        } else if let Some(rest) = line.strip_prefix("Parsing options for plugin '") {
            let plugin = rest.split('\'').next().unwrap_or_default();
            // The server does not start without InnoDB.
            if !plugin.eq_ignore_ascii_case("InnoDB") {
                for complaint in found[own..].iter_mut().filter(|c| c.effect == Effect::Refused) {
                    complaint.effect = Effect::Disables(plugin.to_owned());
                }
            }
            own = found.len();
        } else if is_error {
            reason = Some(line.to_owned());
        } else if let Some(rest) = line.strip_prefix("option '")
            && let Some((name, text)) = rest.split_once("': ")
        {
            let effect = match text {
                _ if text.contains("wasn't recognized") => Effect::Off,
                _ if text.contains(" adjusted to ") => Effect::Adjusted,
                _ => continue,
            };
            found.push(Complaint { name: whole(name), value: None, effect, text: text.to_owned() });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<(String, Effect, String)> {
        complaints(text).into_iter().map(|c| (c.name, c.effect, c.text)).collect()
    }

    #[test]
    fn server_verdict_on_values_is_parsed() {
        let text = "2026-11-22  9:42:43 0 [ERROR] Buffered error: Unknown suffix 'a' used for variable 'max_connections' \
                    (value 'abc'). Legal suffix characters are: K, M, G, T, P, E\n\
                    2026-11-22  9:42:43 0 [ERROR] Buffered error: mariadbd: Error while setting value 'abc' to 'max_connections'\n\
                    2026-11-22  9:42:43 0 [ERROR] mariadbd: Error while setting value 'X' to 'wsrep_OSU_method'\n";
        let suffix = "Unknown suffix 'a' used for variable 'max_connections' (value 'abc'). Legal suffix characters are: K, \
                      M, G, T, P, E";
        assert_eq!(
            of(text),
            [
                ("max_connections".into(), Effect::Refused, suffix.into()),
                ("wsrep_osu_method".into(), Effect::Refused, "'X' is not a valid value".into()),
            ]
        );
        let text = "2026-11-22  9:42:43 0 [Warning] Could not increase number of max_open_files to more than 20000\n\
                    2026-11-22  9:42:43 0 [Warning] option 'general_log': boolean value 'foo' wasn't recognized. Set to OFF.\n\
                    2026-11-22  9:42:43 0 [Warning] option 'innodb-page-size': unsigned value 1000 adjusted to 4096\n";
        let found = of(text);
        assert_eq!(
            found.iter().map(|(name, ..)| name.as_str()).collect::<Vec<_>>(),
            ["general_log", "innodb_page_size"]
        );
        assert_eq!((&found[0].1, &found[1].1), (&Effect::Off, &Effect::Adjusted));
    }

    #[test]
    fn plugin_errors_differ_from_server_errors() {
        let lines = |plugin: &str, option: &str| {
            format!(
                "2026-11-22 9:42:43 0 [ERROR] mariadbd: Error while setting value 'foo' to '{option}'\n\
                 2026-11-22 9:42:43 0 [ERROR] Parsing options for plugin '{plugin}' failed. Disabling plugin\n"
            )
        };
        let both = lines("SERVER_AUDIT", "server-audit-events") + &lines("InnoDB", "innodb-flush-method");
        let what: Vec<Effect> = of(&both).into_iter().map(|(_, what, _)| what).collect();
        assert_eq!(what, [Effect::Disables("SERVER_AUDIT".into()), Effect::Refused]);
    }
}
