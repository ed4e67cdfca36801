//! Queries the installed server about options. `lockstep check` runs it with the plugins that the option files load, and
//! the server prints its options.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use super::accounts::getent;

/// How to run the server: its account and its plugins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RunAs {
    /// The server's account. The server loads plugins with its rights, as at a normal start.
    pub(super) account: String,
    /// The arguments that name plugins, in the order of the files.
    pub(super) plugins: Vec<String>,
}

/// The server's description of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Printed {
    /// The options of the server and of its plugins, in lower case and with underscores. The server hides some options.
    pub(super) options: Vec<String>,
    /// The plugins or plugin files that the server could not load, each with the server's reason.
    pub(super) not_loaded: Vec<(String, String)>,
}

/// The server's verdict on an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Known {
    Yes,
    /// The server accepts the option for compatibility, and ignores it.
    Removed,
    /// The name is a prefix of several options.
    Ambiguous,
    /// The option of this plugin is ambiguous or wrong, and the server starts without the plugin.
    Disables(String),
    /// The server does not accept the value.
    BadValue,
    No,
}

/// The server's reaction to some arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Reaction {
    /// The server ended with an error, as a normal start would.
    pub(super) refused: bool,
    /// The server's error log.
    pub(super) error_log: String,
}

/// Runs the server with these arguments. It prints its options and ends.
fn run_server(run_as: &RunAs, arguments: &[String]) -> Option<Output> {
    let run = |program: &str| {
        let mut command = Command::new(program);
        command.arg("--no-defaults").args(&run_as.plugins).args(arguments);
        command.args(["--verbose", "--help"]).stdin(Stdio::null()).current_dir("/");
        if rustix::process::geteuid().is_root()
            && let Some((user, group, _)) = getent(&run_as.account)
        {
            command.uid(user).gid(group);
        }
        command.output().ok()
    };
    run("mariadbd").or_else(|| run("/usr/sbin/mariadbd"))
}

/// All options of the installed server. `None` if the server cannot be run.
pub(super) fn printed(run_as: &RunAs) -> Option<Printed> {
    let output = run_server(run_as, &[])?;
    let error_log = String::from_utf8_lossy(&output.stderr);
    let options = option_names(&String::from_utf8_lossy(&output.stdout));
    Some(Printed { options, not_loaded: not_loaded(&error_log) })
}

/// The server's verdict on an option as it is written in the file. If the server cannot be run, the option counts as
/// valid.
pub(super) fn knows(run_as: &RunAs, written: &str, value: Option<&str>) -> Known {
    let argument = match value {
        Some(value) => format!("--{written}={value}"),
        None => format!("--{written}"),
    };
    run_server(run_as, &[argument]).map_or(Known::Yes, |o| known(&String::from_utf8_lossy(&o.stderr)))
}

/// The server's reaction to these arguments. `None` if the server cannot be run.
pub(super) fn reaction(run_as: &RunAs, arguments: &[String]) -> Option<Reaction> {
    let output = run_server(run_as, arguments)?;
    let error_log = String::from_utf8_lossy(&output.stderr).into_owned();
    Some(Reaction { refused: !output.status.success(), error_log })
}

/// Parses the names of the options in the server's help text.
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

/// Parses the verdict from the error log of a server that was run with one option besides the plugins.
fn known(error_log: &str) -> Known {
    let has = |words: &str| error_log.contains(words);
    if has(": unknown variable '") || has(": unknown option '") {
        return Known::No;
    }
    let off = error_log.lines().find_map(|line| {
        let rest = line.split_once("Parsing options for plugin '")?.1;
        Some(rest.split_once("' failed. Disabling plugin")?.0.to_owned())
    });
    match off {
        // The server does not start without InnoDB.
        Some(plugin) if !plugin.eq_ignore_ascii_case("InnoDB") => Known::Disables(plugin),
        _ if has(": ambiguous option '") || has(": variable prefix '") => Known::Ambiguous,
        _ if has(": Error while setting value '") => Known::BadValue,
        _ if has("' was removed. It does nothing") => Known::Removed,
        _ => Known::Yes,
    }
}

/// Parses the plugins that the server could not load, each with the reason.
fn not_loaded(error_log: &str) -> Vec<(String, String)> {
    let error = |line: &str| line.split_once("[ERROR] ").map(|(_, text)| text.to_owned());
    let mut reason = String::new();
    let mut found = Vec::new();
    for text in error_log.lines().filter_map(error) {
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
        let verdict = |text: &str| known(&format!("2026-11-21 19:47:56 0 {text}\n"));
        assert_eq!(verdict("[ERROR] mariadbd: unknown variable 'foo=1'"), Known::No);
        assert_eq!(verdict("[ERROR] mariadbd: unknown option '--foo'"), Known::No);
        assert_eq!(
            verdict("[Warning] 'innodb-large-prefix' was removed. It does nothing now and exists only for …"),
            Known::Removed
        );
        assert_eq!(verdict("[Warning] Could not increase number of max_open_files"), Known::Yes);
        assert_eq!(
            verdict("[ERROR] mariadbd: ambiguous option '--wsrep_s=3' (wsrep_slave_threads, wsrep_SR_store)"),
            Known::Ambiguous
        );
        let off = |plugin: &str| {
            verdict(&format!(
                "[ERROR] mariadbd: ambiguous option '--x=1' (x-a, x-b)\n2026-11-21 19:47:56 0 [ERROR] Parsing options \
                 for plugin '{plugin}' failed. Disabling plugin"
            ))
        };
        assert_eq!(off("SERVER_AUDIT"), Known::Disables("SERVER_AUDIT".into()));
        assert_eq!(off("InnoDB"), Known::Ambiguous, "the server does not start without InnoDB");
        assert_eq!(
            verdict("[ERROR] mariadbd: Error while setting value '\"3307' to 'port'"),
            Known::BadValue
        );
    }

    #[test]
    fn missing_plugins_are_parsed_from_error_log() {
        let error_log = "2026-11-22  6:02:47 0 [ERROR] mariadbd: Can't open shared library '/p/ha_rocksdb.so' (errno: 2)\n\
                          2026-11-22  6:02:47 0 [ERROR] Couldn't load plugins from 'ha_rocksdb.so'.\n\
                          2026-11-22  6:02:47 0 [ERROR] mariadbd: Can't find symbol 'nothing' in library\n\
                          2026-11-22  6:02:47 0 [ERROR] Couldn't load plugin 'nothing' from 'server_audit.so'.\n";
        let expected = [
            ("ha_rocksdb.so", "Can't open shared library '/p/ha_rocksdb.so' (errno: 2)"),
            ("server_audit.so", "Can't find symbol 'nothing' in library"),
        ];
        assert_eq!(not_loaded(error_log), expected.map(|(file, why)| (file.to_owned(), why.to_owned())));
    }
}
