//! State transfers: the method's script, the programs it calls, its account.

use super::{Check, Level};

/// What the usual methods call. Of a group with bars one is enough.
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
        let text = "a member that lacks data takes no copy: it goes on with what it has, right or wrong";
        check.about(Level::Unwise, NAME, text);
    } else if !check.machine.has_program(&script) {
        let text = format!(
            "there is no script {script} (usual are rsync and mariabackup): a member that needs a copy of the data does \
             not get one"
        );
        check.about(Level::Refused, NAME, text);
    }
    if method == "mysqldump" {
        let text = "with it InnoDB is open before the provider knows where it stands: after a crash the member takes a copy that \
                    it does not need, and the donor blocks meanwhile; take rsync or mariabackup";
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
            let text = "is not set: as a donor, mariabackup signs in as the account mysql through the socket, which works where \
                        mysql@localhost is as MariaDB made it; else write user:password of an account with RELOAD, PROCESS, LOCK \
                        TABLES, BINLOG MONITOR and REPLICA MONITOR";
            check.about(Level::Note, NAME, text);
        }
        return;
    };
    if method.starts_with("rsync") {
        check.at(Level::Ignored, setting, "rsync signs in nowhere");
    } else if !setting.text().contains(':') {
        check.at(Level::Unwise, setting, "has no `:`: it is user:password");
    }
    if check.machine.is_readable_for_all(&setting.file) {
        let text = format!(
            "holds a password, and {} can be read by every account: chmod 0640",
            setting.file.display()
        );
        check.at(Level::Unwise, setting, text);
    }
}
