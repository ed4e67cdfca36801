//! The provider: its file, its options, where its log goes.

use std::path::{Path, PathBuf};

use lockstep_node::options::{OptionError, Options};

use super::machine::{Folder, Library};
use super::{Check, Level};
use crate::status::bytes;

/// Folders that Debian's mariadb.service hides from the server.
const HIDDEN: [&str; 3] = ["/home", "/root", "/run/user"];

/// Whether the server is to be a member at all.
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
        let text = format!("{path} is not an absolute path: the server looks for it where it was started");
        check.about(Level::Unwise, "wsrep_provider", text);
    }
    let finding = match check.machine.library(file) {
        Library::Lockstep => None,
        Library::Galera => Some((
            Level::Unwise,
            format!("{path} is Galera's library, not liblockstep.so; what follows is said of Lockstep"),
        )),
        Library::Other => {
            Some((Level::Refused, format!("{path} is a program or library, but not liblockstep.so")))
        }
        Library::Nothing => Some((Level::Refused, format!("{path} is no library"))),
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

pub(super) fn hidden(check: &mut Check<'_>, option: &str, path: &Path) {
    if let Some(folder) = HIDDEN.iter().find(|folder| path.starts_with(folder)) {
        let text = format!(
            "{} is under {folder}, which Debian's mariadb.service hides from the server (ProtectHome)",
            path.display()
        );
        check.about(Level::Unwise, option, text);
    }
}

/// Splits where the separator is not escaped, as the provider does.
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

/// `wsrep_provider_options`, by the very table that the provider reads it with.
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
            "replaces all that {}, line {}, set: the options of several lines do not add up; write them into one",
            earlier.file.display(),
            earlier.line
        );
        check.at(Level::Unwise, last, text);
    }
    let mut good = Options::default();
    let mut together = Vec::new();
    for piece in pieces(last.text()) {
        // One at a time, so that each wrong option is named. Options that depend on later ones, or conflict with others,
        // are checked again when all are set.
        match good.set(&piece, false) {
            Err(OptionError::Together { .. }) => together.push(piece),
            Err(error) => check.at(Level::Refused, last, error.to_string()),
            Ok(_) => {}
        }
    }
    if let Err(error) = good.set(&together.join(";"), false) {
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
        check.at(Level::Ignored, last, "pc.bootstrap does nothing at a start");
    }
    if let Some(address) = good.status_address() {
        let local = ["127.", "localhost", "[::1]"].iter().any(|local| address.starts_with(local));
        if !local {
            let text = format!(
                "status.address = {address} is served in clear and without a password: let only the monitoring reach it"
            );
            check.at(Level::Unwise, last, text);
        }
    }
    check.options = good;
}

/// Where the log and the data go.
pub(super) fn log(check: &mut Check<'_>) {
    let datadir = PathBuf::from(check.text("datadir", "/var/lib/mysql"));
    let account = check.text("user", "mysql").to_owned();
    let data = look(check, "datadir", &datadir, &account, "make it with mariadb-install-db");
    let (option, space) = match check.options.log_dir() {
        None => ("datadir", data),
        Some(dir) => {
            hidden(check, "wsrep_provider_options", &dir);
            let hint = "make it, and give it to the server's account";
            ("wsrep_provider_options", look(check, "wsrep_provider_options", &dir, &account, hint))
        }
    };
    let Some((free, log)) = space else { return };
    let tuning = check.options.tuning();
    let (keep, most) = (tuning.log_bytes, tuning.log_max_bytes);
    let room = free.saturating_add(log);
    if room < most {
        let limit = if room < keep { ("log.size", keep) } else { ("log.max_size", most) };
        let text = format!(
            "the log may grow to {} = {} (log.max_size = {}), but only {} are free: a full disk stops the member; lower it, or \
             set log.dir to a larger disk",
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

/// Whether the server's account can use a folder; free bytes there, and bytes of a log in it.
fn look(check: &mut Check<'_>, option: &str, path: &Path, account: &str, hint: &str) -> Option<(u64, u64)> {
    let name = path.display();
    let text = match check.machine.folder(path, account) {
        Folder::Own { free, log } => return Some((free?, log)),
        Folder::Missing => format!("there is no folder {name}: {hint}"),
        Folder::Others(owner) => {
            format!("{name} belongs to {owner}, but the server runs as {account}: chown -R {account}: {name}")
        }
        Folder::Unreadable(why) => {
            check.about(
                Level::Note,
                option,
                format!("{name} could not be looked at ({why}): run this as root"),
            );
            return None;
        }
    };
    check.about(Level::Refused, option, text);
    None
}
