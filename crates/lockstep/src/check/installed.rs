//! What the installed server says of options: it is run to print them, with the plugins that the files have it load.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use super::machine::getent;

/// How the server is asked: as which account, and with which plugins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ask {
    /// The server's account: plugins are loaded with its rights, as at a normal start.
    pub(super) account: String,
    /// Its arguments that name plugins, in the order of the files.
    pub(super) plugins: Vec<String>,
}

/// What the server prints of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Printed {
    /// Its options, and those of the plugins, in small letters and with underscores. Not all: it hides some.
    pub(super) options: Vec<String>,
    /// The plugins or their files that it could not load, each with the reason in its words.
    pub(super) not_loaded: Vec<(String, String)>,
}

/// The server's verdict on an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Known {
    Yes,
    /// It takes it for old files' sake, and does nothing with it.
    Removed,
    /// It begins more than one name.
    Ambiguous,
    /// So for an option of this plugin, without which it starts.
    Disables(String),
    /// It cannot be set to that.
    BadValue,
    No,
}

/// The server's answer to some arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// It ended with an error, as a start would.
    pub(super) refused: bool,
    /// Its error log.
    pub(super) complaints: String,
}

/// The server's answer to these arguments. It prints its options and ends.
fn ask_server(ask: &Ask, arguments: &[String]) -> Option<Output> {
    let run = |program: &str| {
        let mut command = Command::new(program);
        command.arg("--no-defaults").args(&ask.plugins).args(arguments);
        command.args(["--verbose", "--help"]).stdin(Stdio::null()).current_dir("/");
        if rustix::process::geteuid().is_root()
            && let Some((user, group, _)) = getent(&ask.account)
        {
            command.uid(user).gid(group);
        }
        command.output().ok()
    };
    run("mariadbd").or_else(|| run("/usr/sbin/mariadbd"))
}

/// All that the installed server knows; `None` where it cannot be asked.
pub(super) fn printed(ask: &Ask) -> Option<Printed> {
    let output = ask_server(ask, &[])?;
    let complaints = String::from_utf8_lossy(&output.stderr);
    let options = option_names(&String::from_utf8_lossy(&output.stdout));
    Some(Printed { options, not_loaded: not_loaded(&complaints) })
}

/// The server's verdict on an option as it was written. If the server cannot be asked, the option counts as valid.
pub(super) fn knows(ask: &Ask, written: &str, value: Option<&str>) -> Known {
    let argument = match value {
        Some(value) => format!("--{written}={value}"),
        None => format!("--{written}"),
    };
    ask_server(ask, &[argument]).map_or(Known::Yes, |o| known(&String::from_utf8_lossy(&o.stderr)))
}

/// Its answer to these arguments; `None` where it cannot be asked.
pub(super) fn says(ask: &Ask, arguments: &[String]) -> Option<Said> {
    let output = ask_server(ask, arguments)?;
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    Some(Said { refused: !output.status.success(), complaints })
}

/// The names of the options in what a server prints of itself.
fn option_names(help: &str) -> Vec<String> {
    let name = |line: &str| {
        // `  --name=#  text`, `  -a, --name  text`
        let line = line.strip_prefix("  ")?;
        let rest =
            line.strip_prefix("--").or_else(|| line.strip_prefix('-')?.get(1..)?.strip_prefix(", --"))?;
        let end =
            rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_').unwrap_or(rest.len());
        (end > 0).then(|| rest[..end].replace('-', "_").to_ascii_lowercase())
    };
    help.lines().filter_map(name).collect()
}

/// What a server's complaints say of the only option that it was given beside the plugins.
fn known(complaints: &str) -> Known {
    let says = |words: &str| complaints.contains(words);
    if says(": unknown variable '") || says(": unknown option '") {
        return Known::No;
    }
    let off = complaints.lines().find_map(|line| {
        let rest = line.split_once("Parsing options for plugin '")?.1;
        Some(rest.split_once("' failed. Disabling plugin")?.0.to_owned())
    });
    match off {
        // The server does not start without it.
        Some(plugin) if !plugin.eq_ignore_ascii_case("InnoDB") => Known::Disables(plugin),
        _ if says(": ambiguous option '") || says(": variable prefix '") => Known::Ambiguous,
        _ if says(": Error while setting value '") => Known::BadValue,
        _ if says("' was removed. It does nothing") => Known::Removed,
        _ => Known::Yes,
    }
}

/// Which plugins a server could not load, and why.
fn not_loaded(complaints: &str) -> Vec<(String, String)> {
    let said = |line: &str| line.split_once("[ERROR] ").map(|(_, text)| text.to_owned());
    let mut reason = String::new();
    let mut found = Vec::new();
    for text in complaints.lines().filter_map(said) {
        match text.strip_prefix("Couldn't load plugin") {
            // `s from 'file.so'.`, ` 'name' from 'file.so'.`
            Some(rest) => {
                let file = rest.rsplit('\'').nth(1).unwrap_or_default().to_owned();
                found.push((file, std::mem::take(&mut reason)));
            }
            None => reason = text.split_once(": ").map_or(text.as_str(), |(_, why)| why).to_owned(),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_options_are_read_from_help() {
        let help = "Usage: mariadbd [OPTIONS]\n--no-defaults             Don't\n\n  --alter-algorithm[=name] \n\
                    \u{20}                     Specify --not-this one\n  -a, --ansi          Use ANSI SQL\n  --port=#  Port\n\
                    \u{20} --wsrep-SR-store\u{20}\nVariables (--variable-name=value)\nalter-algorithm    DEFAULT\n";
        assert_eq!(option_names(help), ["alter_algorithm", "ansi", "port", "wsrep_sr_store"]);
    }

    #[test]
    fn server_verdict_on_option_is_parsed() {
        let said = |text: &str| known(&format!("2026-11-21 19:47:56 0 {text}\n"));
        assert_eq!(said("[ERROR] mariadbd: unknown variable 'foo=1'"), Known::No);
        assert_eq!(said("[ERROR] mariadbd: unknown option '--foo'"), Known::No);
        assert_eq!(
            said("[Warning] 'innodb-large-prefix' was removed. It does nothing now and exists only for …"),
            Known::Removed
        );
        assert_eq!(said("[Warning] Could not increase number of max_open_files"), Known::Yes);
        assert_eq!(
            said("[ERROR] mariadbd: ambiguous option '--wsrep_s=3' (wsrep_slave_threads, wsrep_SR_store)"),
            Known::Ambiguous
        );
        let off = |plugin: &str| {
            said(&format!(
                "[ERROR] mariadbd: ambiguous option '--x=1' (x-a, x-b)\n2026-11-21 19:47:56 0 [ERROR] Parsing options \
                 for plugin '{plugin}' failed. Disabling plugin"
            ))
        };
        assert_eq!(off("SERVER_AUDIT"), Known::Disables("SERVER_AUDIT".into()));
        assert_eq!(off("InnoDB"), Known::Ambiguous, "no server without it");
        assert_eq!(said("[ERROR] mariadbd: Error while setting value '\"3307' to 'port'"), Known::BadValue);
    }

    #[test]
    fn plugins_that_are_not_there() {
        let complaints = "2026-11-22  6:02:47 0 [ERROR] mariadbd: Can't open shared library '/p/ha_rocksdb.so' (errno: 2)\n\
                          2026-11-22  6:02:47 0 [ERROR] Couldn't load plugins from 'ha_rocksdb.so'.\n\
                          2026-11-22  6:02:47 0 [ERROR] mariadbd: Can't find symbol 'nothing' in library\n\
                          2026-11-22  6:02:47 0 [ERROR] Couldn't load plugin 'nothing' from 'server_audit.so'.\n";
        let expected = [
            ("ha_rocksdb.so", "Can't open shared library '/p/ha_rocksdb.so' (errno: 2)"),
            ("server_audit.so", "Can't find symbol 'nothing' in library"),
        ];
        assert_eq!(not_loaded(complaints), expected.map(|(file, why)| (file.to_owned(), why.to_owned())));
    }
}
