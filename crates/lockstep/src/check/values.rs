//! Whether the server takes what its options are set to: it is run once with all that it knows, and says what it does not.

use super::cnf::Setting;
use super::installed::{Ask, Said};
use super::names::{Names, value_as_written};
use super::{Check, Level};

/// Options not passed to a server that only prints: account, paths and actions. None has a value that could be wrong by
/// itself.
const APART: &[&str] = &[
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

/// Nor what begins so: plugins are named already, and the provider is not loaded, so that nobody knows its variables.
const APART_BY_START: &[&str] = &["plugin_", "wsrep_provider"];

/// Nor what the list of processes should not show.
const SECRET: &[&str] = &["auth", "password", "secret", "filekey"];

/// A server that meets a bad value may end before it has seen the others: how often it is run at most.
const ROUNDS: usize = 8;

/// One thing that a server says of a value.
#[derive(Debug, PartialEq, Eq)]
struct Complaint {
    /// The option, in small letters and with underscores.
    name: String,
    /// As the server has it, if it says so.
    value: Option<String>,
    what: What,
    text: String,
}

#[derive(Debug, PartialEq, Eq)]
enum What {
    /// It does not start.
    Refused,
    /// It starts without this plugin.
    Disables(String),
    /// It is no word for on or off, and off it is.
    Off,
    /// It takes another number.
    Adjusted,
}

/// Asks, and says what is wrong. `known`: the settings whose names the server knows.
pub(super) fn taken(check: &mut Check<'_>, names: &Names, mut known: Vec<&Setting>) {
    known.retain(|s| {
        let is_apart = APART.contains(&s.name.as_str())
            || APART_BY_START.iter().any(|start| s.name.starts_with(start))
            || SECRET.iter().any(|word| s.name.contains(word));
        // Quotes have a word of their own.
        !is_apart && !s.open_quote
    });
    let ask = names.ask();
    for _ in 0..ROUNDS {
        let arguments: Vec<String> = known.iter().map(|s| argument(s)).collect();
        let Some(said) = check.machine.server_says(ask, &arguments) else { return };
        let found = complaints(&said.complaints);
        let mut bad = Vec::new();
        for complaint in &found {
            let ends = matches!(complaint.what, What::Refused | What::Disables(_));
            if !ends && said.refused {
                // Comes again when it gets further.
                continue;
            }
            let of_it = |s: &&&Setting| s.name.eq_ignore_ascii_case(&complaint.name);
            let has_it = |s: &&&Setting| complaint.value.as_deref().is_some_and(|value| s.text() == value);
            let all = || known.iter().rev().filter(of_it);
            let Some(setting) = all().find(has_it).or_else(|| all().next()).copied() else { continue };
            say(check, setting, complaint);
            if ends {
                bad.push(setting);
            }
        }
        if bad.is_empty() && said.refused {
            bad = without_a_name(check, ask, &known, &said);
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

fn say(check: &mut Check<'_>, setting: &Setting, complaint: &Complaint) {
    let text = &complaint.text;
    let (level, text) = match &complaint.what {
        What::Refused => (Level::Refused, format!("the server does not start: {text}")),
        What::Disables(plugin) => {
            (Level::Unwise, format!("the server starts without the plugin {plugin}: {text}"))
        }
        What::Off => (Level::Unwise, format!("the server takes it for OFF: {text}")),
        What::Adjusted => (Level::Note, format!("the server takes another value: {text}")),
    };
    check.at(level, setting, text);
}

/// It ends and names no option, as for character sets: one by one, and else all of them together. Returns those that it
/// does not take alone.
fn without_a_name<'a>(
    check: &mut Check<'_>,
    ask: &Ask,
    known: &[&'a Setting],
    said: &Said,
) -> Vec<&'a Setting> {
    let last = |said: &Said| {
        let line = said.complaints.lines().rfind(|line| !line.contains("[Warning]"));
        message(line.unwrap_or("it does not say why")).to_owned()
    };
    let mut bad = Vec::new();
    for &setting in known.iter().filter(|s| s.value.is_some()) {
        if let Some(said) = check.machine.server_says(ask, &[argument(setting)])
            && said.refused
        {
            bad.push(setting);
            check.at(Level::Refused, setting, format!("the server does not start: {}", last(&said)));
        }
    }
    if bad.is_empty() {
        let text = format!("the server does not start with these settings together: {}", last(said));
        check.about(Level::Refused, "(all)", text);
    }
    bad
}

/// A line of the error log without time, kind and program.
fn message(line: &str) -> &str {
    let line = line.rsplit_once("[ERROR] ").or(line.rsplit_once("[Warning] ")).map_or(line, |(_, rest)| rest);
    let line =
        line.strip_prefix("Buffered error: ").or(line.strip_prefix("Buffered warning: ")).unwrap_or(line);
    line.split_once(": ").filter(|(program, _)| program.ends_with("mariadbd")).map_or(line, |(_, rest)| rest)
}

/// What a server's complaints say of values.
fn complaints(text: &str) -> Vec<Complaint> {
    let whole = |name: &str| name.replace('-', "_").to_ascii_lowercase();
    let mut found: Vec<Complaint> = Vec::new();
    // The errors since the last plugin: what a plugin's options are refused for, it says before it gives it up.
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
                what: What::Refused,
                text: why.unwrap_or_else(|| format!("'{value}' is none of its values")),
            });
        } else if let Some(rest) = line.strip_prefix("Parsing options for plugin '") {
            let plugin = rest.split('\'').next().unwrap_or_default();
            // The server does not start without that one.
            if !plugin.eq_ignore_ascii_case("InnoDB") {
                for complaint in found[own..].iter_mut().filter(|c| c.what == What::Refused) {
                    complaint.what = What::Disables(plugin.to_owned());
                }
            }
            own = found.len();
        } else if is_error {
            reason = Some(line.to_owned());
        } else if let Some(rest) = line.strip_prefix("option '")
            && let Some((name, text)) = rest.split_once("': ")
        {
            let what = match text {
                _ if text.contains("wasn't recognized") => What::Off,
                _ if text.contains(" adjusted to ") => What::Adjusted,
                _ => continue,
            };
            found.push(Complaint { name: whole(name), value: None, what, text: text.to_owned() });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<(String, What, String)> {
        complaints(text).into_iter().map(|c| (c.name, c.what, c.text)).collect()
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
                ("max_connections".into(), What::Refused, suffix.into()),
                ("wsrep_osu_method".into(), What::Refused, "'X' is none of its values".into()),
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
        assert_eq!((&found[0].1, &found[1].1), (&What::Off, &What::Adjusted));
    }

    #[test]
    fn plugin_options_are_told_from_server_options() {
        let lines = |plugin: &str, option: &str| {
            format!(
                "2026-11-22 9:42:43 0 [ERROR] mariadbd: Error while setting value 'foo' to '{option}'\n\
                 2026-11-22 9:42:43 0 [ERROR] Parsing options for plugin '{plugin}' failed. Disabling plugin\n"
            )
        };
        let both = lines("SERVER_AUDIT", "server-audit-events") + &lines("InnoDB", "innodb-flush-method");
        let what: Vec<What> = of(&both).into_iter().map(|(_, what, _)| what).collect();
        assert_eq!(what, [What::Disables("SERVER_AUDIT".into()), What::Refused]);
    }
}
