//! Checks of the provider: its library, its options, and the directories of its log and of the data.

use std::path::{Path, PathBuf};

use lockstep_node::options::{OptionError, Options};

use super::machine::{Directory, Library};
use super::{Check, Level};
use crate::status::bytes;

/// Directories that Debian's mariadb.service hides from the server.
const HIDDEN: [&str; 3] = ["/home", "/root", "/run/user"];

/// Checks the provider library. Returns whether one is configured.
pub(super) fn library(check: &mut Check<'_>) -> bool {
    let path = check.text("wsrep_provider", "none").to_owned();
    if path.is_empty() || path.eq_ignore_ascii_case("none") {
        let text = "no provider is set: the server runs alone, without replication";
        check.about(Level::Unwise, "wsrep_provider", text);
        return false;
    }
    if !check.is_on("wsrep_on", false) {
        let text = "replication is OFF, which is the default: the server starts without error, and runs alone; \
                    set wsrep_on = ON";
        check.about(Level::Unwise, "wsrep_on", text);
    }
    let file = Path::new(&path);
    if !file.is_absolute() {
        let text = format!("{path} is not an absolute path: the server opens it in its working directory");
        check.about(Level::Unwise, "wsrep_provider", text);
    }
    let finding = match check.machine.library(file) {
        Library::Lockstep => None,
        Library::Galera => Some((
            Level::Unwise,
            format!("{path} is Galera's library, not liblockstep.so; the other findings assume Lockstep"),
        )),
        Library::Other => {
            Some((Level::Refused, format!("{path} is a program or a library, but not liblockstep.so")))
        }
        Library::Nothing => Some((Level::Refused, format!("{path} is not a library"))),
        Library::Unreadable(why) => {
            Some((Level::Refused, format!("{path} cannot be read ({why}): the server does not start")))
        }
    };
    if let Some((level, text)) = finding {
        check.about(level, "wsrep_provider", text);
    }
    hidden(check, "wsrep_provider", file);
    true
}

/// Reports a path that Debian's mariadb.service hides from the server.
pub(super) fn hidden(check: &mut Check<'_>, option: &str, path: &Path) {
    if let Some(dir) = HIDDEN.iter().find(|dir| path.starts_with(dir)) {
        let text = format!(
            "{} is under {dir}, which Debian's mariadb.service hides from the server (ProtectHome)",
            path.display()
        );
        check.about(Level::Unwise, option, text);
    }
}

/// Splits at separators that are not escaped, as the provider does.
fn pieces(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        match (c, parts.last_mut()) {
            (';', _) if !escaped => parts.push(String::new()),
            (_, Some(last)) => last.push(c),
            (_, None) => {}
        }
        escaped = c == '\\' && !escaped;
    }
    parts
}

/// Checks `wsrep_provider_options` with the provider's own option table.
pub(super) fn options(check: &mut Check<'_>) {
    const NAME: &str = "wsrep_provider_options";
    let cnf = check.cnf;
    let all: Vec<_> = cnf.all(NAME).collect();
    let Some((last, before)) = all.split_last() else { return };
    if last.value.is_none() {
        return check.at(Level::Refused, last, "has no value: the server does not start");
    }
    for earlier in before.iter().filter(|s| !s.text().trim().is_empty()) {
        let text = format!(
            "replaces the value from {}, line {}: the server uses the last line only; merge them into one",
            earlier.file.display(),
            earlier.line
        );
        check.at(Level::Unwise, last, text);
    }
    let mut good = Options::default();
    let mut combined = Vec::new();
    for piece in pieces(last.text()) {
        // Set one option at a time, so that each error names its option. Options that depend on others are checked again
        // together.
        match good.set(&piece, false) {
            Err(OptionError::Combination { .. }) => combined.push(piece),
            Err(error) => check.at(Level::Refused, last, error.to_string()),
            Ok(_) => {}
        }
    }
    if let Err(error) = good.set(&combined.join(";"), false) {
        check.at(Level::Refused, last, error.to_string());
    }
    for note in good.notes() {
        let level = match note.warn {
            true => Level::Unwise,
            false if note.text.contains("has no effect") => Level::Ignored,
            false => continue,
        };
        check.at(level, last, note.text);
    }
    if good.is_given("pc.bootstrap") {
        check.at(Level::Ignored, last, "pc.bootstrap has no effect when the server starts");
    }
    if let Some(address) = good.status_address() {
        let local = ["127.", "localhost", "[::1]"].iter().any(|local| address.starts_with(local));
        if !local {
            let text = format!(
                "status.address = {address} has no encryption and no password: restrict access to the monitoring system"
            );
            check.at(Level::Unwise, last, text);
        }
    }
    check.options = good;
}

/// Checks the directories of the log and of the data.
pub(super) fn log(check: &mut Check<'_>) {
    let datadir = PathBuf::from(check.text("datadir", "/var/lib/mysql"));
    let account = check.text("user", "mysql").to_owned();
    let data = directory(check, "datadir", &datadir, &account, "create it with mariadb-install-db");
    let (option, space) = match check.options.log_dir() {
        None => ("datadir", data),
        Some(dir) => {
            hidden(check, "wsrep_provider_options", &dir);
            let hint = "create it, and make the server's account its owner";
            ("wsrep_provider_options", directory(check, "wsrep_provider_options", &dir, &account, hint))
        }
    };
    let Some((free, log)) = space else { return };
    let tuning = check.options.tuning();
    let (keep, most) = (tuning.log_bytes, tuning.log_max_bytes);
    let room = free.saturating_add(log);
    if room < most {
        let limit = if room < keep { ("log.size", keep) } else { ("log.max_size", most) };
        let text = format!(
            "the log may grow to {} = {} (log.max_size = {}), but only {} are free, and a full disk stops the member: lower \
             the limit, or set log.dir to a directory on a larger disk",
            limit.0,
            bytes(limit.1),
            bytes(most),
            bytes(free)
        );
        check.about(Level::Unwise, option, text);
    }
    let flush = check.number("innodb_flush_log_at_timeout", 1);
    for text in check.options.unwise(&format!("innodb_flush_log_at_timeout = {flush} s"), flush) {
        check.about(Level::Unwise, "wsrep_provider_options", text);
    }
}

/// Checks that the server's account can use a directory. Returns its free bytes, and the bytes of a log in it.
fn directory(
    check: &mut Check<'_>,
    option: &str,
    path: &Path,
    account: &str,
    hint: &str,
) -> Option<(u64, u64)> {
    let name = path.display();
    let text = match check.machine.directory(path, account) {
        Directory::Own { free, log } => return Some((free?, log)),
        Directory::Missing => format!("there is no directory {name}: {hint}"),
        Directory::Others(owner) => {
            format!("{name} belongs to {owner}, but the server runs as {account}: chown -R {account}: {name}")
        }
        Directory::Unreadable(why) => {
            check.about(Level::Note, option, format!("cannot examine {name} ({why}): run this as root"));
            return None;
        }
    };
    check.about(Level::Refused, option, text);
    None
}
