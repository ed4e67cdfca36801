//! Checks of state transfers: the script of the method, the programs that it calls, its account.

use super::{Check, Level};

/// The programs that each method calls. `a|b` means that one of them is enough.
const TOOLS: &[(&str, &[&str])] = &[
    ("rsync", &["rsync", "lsof|ss|sockstat"]),
    ("rsync_wan", &["rsync", "lsof|ss|sockstat"]),
    ("mariabackup", &["mariadb-backup|mariabackup", "mbstream", "lsof|ss|sockstat"]),
    ("mysqldump", &["mariadb-dump|mysqldump", "mariadb|mysql"]),
];

pub(super) fn method(check: &mut Check<'_>) {
    const NAME: &str = "wsrep_sst_method";
    let method = check.text(NAME, "rsync").to_owned();
    let script = format!("wsrep_sst_{method}");
    if method.eq_ignore_ascii_case("skip") {
        let text = "a member that lacks data gets no state transfer: it continues with its own data, even if they are wrong";
        check.about(Level::Unwise, NAME, text);
    } else if !check.machine.has_program(&script) {
        let text = format!(
            "there is no script {script}, so this member cannot get a state transfer: set rsync or mariabackup"
        );
        check.about(Level::Refused, NAME, text);
    }
    if method == "mysqldump" {
        let text = "mysqldump opens InnoDB before the provider knows the database's position: after a crash the member gets a \
                    state transfer that it does not need, and the donor blocks meanwhile; set rsync or mariabackup";
        check.about(Level::Unwise, NAME, text);
    }
    let stream = match method.as_str() {
        "mariabackup" => check.cnf.get_in("sst", "transferfmt").map_or("socat", |s| s.text()).to_owned(),
        _ => String::new(),
    };
    let tools = TOOLS.iter().find(|(name, _)| *name == method).map_or(&[][..], |(_, tools)| tools);
    for tool in tools.iter().copied().chain([stream.as_str()]).filter(|tool| !tool.is_empty()) {
        if !tool.split('|').any(|one| check.machine.has_program(one)) {
            let names = tool.replace('|', " or ");
            let text = format!("{method} needs {names}, which is not on this machine: install it");
            check.about(Level::Refused, NAME, text);
        }
    }
    account(check, &method);
}

fn account(check: &mut Check<'_>, method: &str) {
    const NAME: &str = "wsrep_sst_auth";
    let cnf = check.cnf;
    let Some(setting) = cnf.get(NAME).or(cnf.get_in("sst", NAME)).filter(|s| !s.text().is_empty()) else {
        if method == "mariabackup" {
            let text = "is not set: on a donor, mariabackup logs in as the account mysql through the socket. This works if \
                        mysql@localhost is as MariaDB created it. Else set user:password of an account with RELOAD, PROCESS, \
                        LOCK TABLES, BINLOG MONITOR and REPLICA MONITOR";
            check.about(Level::Note, NAME, text);
        }
        return;
    };
    if method.starts_with("rsync") {
        check.at(Level::Ignored, setting, "rsync does not log in to a server");
    } else if !setting.text().contains(':') {
        check.at(Level::Unwise, setting, "has no `:`: write user:password");
    }
    if check.machine.is_readable_for_all(&setting.file) {
        let text = format!(
            "holds a password, and {} can be read by every account: set its mode to 0640",
            setting.file.display()
        );
        check.at(Level::Unwise, setting, text);
    }
}
