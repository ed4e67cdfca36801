//! Whether the server knows the options that the files name: by its whole name, the beginning of one, or not at all.

use lockstep_node::options::{Options, nearest_of};

use super::cnf::{Cnf, Setting};
use super::installed::{Ask, Known, Printed};
use super::machine::Machine;
use super::{Check, Finding, Level};

/// The server's replication options, as 10.11 and 11.8 list them: an unknown one keeps it from starting.
const WSREP: &[&str] = &[
    "wsrep_OSU_method",
    "wsrep_SR_store",
    "wsrep_allowlist",
    "wsrep_auto_increment_control",
    "wsrep_causal_reads",
    "wsrep_certification_rules",
    "wsrep_certify_nonPK",
    "wsrep_cluster_address",
    "wsrep_cluster_name",
    "wsrep_convert_LOCK_to_trx",
    "wsrep_data_home_dir",
    "wsrep_dbug_option",
    "wsrep_debug",
    "wsrep_desync",
    "wsrep_dirty_reads",
    "wsrep_drupal_282555_workaround",
    "wsrep_forced_binlog_format",
    "wsrep_gtid_domain_id",
    "wsrep_gtid_mode",
    "wsrep_ignore_apply_errors",
    "wsrep_load_data_splitting",
    "wsrep_log_conflicts",
    "wsrep_max_ws_rows",
    "wsrep_max_ws_size",
    "wsrep_mode",
    "wsrep_mysql_replication_bundle",
    "wsrep_new_cluster",
    "wsrep_node_address",
    "wsrep_node_incoming_address",
    "wsrep_node_name",
    "wsrep_notify_cmd",
    "wsrep_on",
    "wsrep_provider",
    "wsrep_provider_options",
    "wsrep_recover",
    "wsrep_reject_queries",
    "wsrep_restart_slave",
    "wsrep_retry_autocommit",
    "wsrep_slave_FK_checks",
    "wsrep_slave_UK_checks",
    "wsrep_slave_threads",
    "wsrep_sst_auth",
    "wsrep_sst_donor",
    "wsrep_sst_donor_rejects_queries",
    "wsrep_sst_method",
    "wsrep_sst_receive_address",
    "wsrep_start_position",
    "wsrep_status_file",
    "wsrep_sync_wait",
    "wsrep_trx_fragment_size",
    "wsrep_trx_fragment_unit",
];

/// Those that 11.8 only remembers.
const GONE: &[&str] = &["wsrep_causal_reads", "wsrep_load_data_splitting"];

/// Since this version the server makes a variable of each provider option, unless it is told not to.
const PROVIDER_VARIABLES: (u32, u32) = (11, 4);
/// What these variables' names begin with.
const PROVIDER_VARIABLE: &str = "wsrep_provider_";

/// The options of a server.
pub(super) struct Names {
    ask: Ask,
    /// Of the installed server, if it may be asked, and its plugins.
    printed: Option<Printed>,
    /// Those that can be known without it, too.
    all: Vec<String>,
}

impl Names {
    pub(super) fn of(cnf: &Cnf, machine: &dyn Machine) -> Names {
        let account = cnf.get("user").map_or("mysql", Setting::text).to_owned();
        // The beginning of such a name is taken for it, too; `plugin_load` begins another, but is one itself.
        let of_plugins = ["plugin_load", "plugin_load_add", "plugin_dir", "plugin_maturity"];
        let mut plugins = Vec::new();
        for setting in cnf.settings.iter().filter(|s| cnf.is_servers(&s.group)) {
            let name = setting.name.as_str();
            let named = |whole: &&&str| whole.starts_with(name) && name.len() > "plugin_".len();
            let exactly = of_plugins.iter().find(|whole| **whole == name);
            if let (Some(whole), Some(value)) =
                (exactly.or_else(|| of_plugins.iter().find(named)), &setting.value)
            {
                plugins.push(format!("--{whole}={value}"));
            }
        }
        let ask = Ask { account, plugins };
        let printed = machine.server_prints(&ask);
        let mut all: Vec<String> = WSREP.iter().map(|name| name.to_ascii_lowercase()).collect();
        let plugin = cnf.get("plugin_wsrep_provider");
        if cnf.version() >= PROVIDER_VARIABLES && plugin.is_none_or(|s| s.value.is_none() || s.is_on()) {
            let variable = |name: &str| format!("{PROVIDER_VARIABLE}{}", name.replace('.', "_"));
            all.extend(Options::default().values().into_iter().map(|(row, _)| variable(row.name)));
        }
        all.extend(printed.iter().flat_map(|printed| printed.options.iter().cloned()));
        all.sort();
        all.dedup();
        Names { ask, printed, all }
    }

    /// How the installed server is asked.
    pub(super) fn ask(&self) -> &Ask {
        &self.ask
    }

    fn has(&self, name: &str) -> bool {
        self.all.binary_search_by(|known| known.as_str().cmp(name)).is_ok()
    }

    /// All that begin so.
    fn that_begin(&self, start: &str) -> &[String] {
        let from = self.all.partition_point(|known| known.as_str() < start);
        let rest = &self.all[from..];
        &rest[..rest.partition_point(|known| known.starts_with(start))]
    }

    /// Whether what is not among them is unknown for sure, without asking.
    fn are_all_of(&self, name: &str) -> bool {
        self.printed.is_none() && !name.starts_with("wsrep_")
    }
}

/// The name as it stands in the file, as the server compares it.
fn whole(setting: &Setting) -> String {
    setting.written.replace('-', "_").to_ascii_lowercase()
}

/// The value as the file has it: `skip_name` is an option without a value.
pub(super) fn value_as_written(setting: &Setting) -> Option<&str> {
    let whole = whole(setting);
    let whole = whole.strip_prefix("loose_").unwrap_or(&whole);
    // The name may have been abbreviated, and be the whole one by now.
    let made = ["skip_", "disable_", "enable_"]
        .iter()
        .filter_map(|prefix| whole.strip_prefix(prefix))
        .any(|rest| setting.name.starts_with(rest));
    setting.value.as_deref().filter(|_| !made)
}

/// Gives settings whose names are abbreviated the whole ones, as the server does, so that the checks find them.
pub(super) fn complete(cnf: &mut Cnf, names: &Names, machine: &dyn Machine) {
    let mut settings = std::mem::take(&mut cnf.settings);
    for setting in &mut settings {
        let whole = whole(setting);
        if !cnf.is_servers(&setting.group) || names.has(&setting.name) || names.has(&whole) {
            continue;
        }
        // `skip_name_res` begins an option of its own; `skip_innodb_doublewr` does not.
        let by_whole = names.that_begin(&whole);
        let [full] = (if by_whole.is_empty() { names.that_begin(&setting.name) } else { by_whole }) else {
            continue;
        };
        // It may hide one that begins the same.
        if names.printed.is_some()
            && machine.server_knows(&names.ask, &setting.written, value_as_written(setting)) == Known::No
        {
            continue;
        }
        let text = format!(
            "is taken for {full}, the only option that begins so; another version may have more: write it out"
        );
        cnf.findings.push(Finding {
            level: Level::Note,
            file: Some(setting.file.to_path_buf()),
            line: Some(setting.line),
            option: setting.written.clone(),
            text,
        });
        if !by_whole.is_empty() && setting.name != whole {
            setting.value = None;
        }
        setting.name.clone_from(full);
    }
    cnf.settings = settings;
}

/// Replication's options in groups that the server does not read.
pub(super) fn misplaced(check: &mut Check<'_>) {
    let cnf = check.cnf;
    let elsewhere = |s: &&Setting| s.name.starts_with("wsrep_") && !cnf.is_servers(&s.group);
    for setting in cnf.settings.iter().filter(elsewhere) {
        // The transfer scripts look there, too.
        if setting.group == "sst" && setting.name == "wsrep_sst_auth" {
            continue;
        }
        let text = format!("the server does not read the group [{}]: put it under [mysqld]", setting.group);
        check.at(Level::Ignored, setting, text);
    }
}

/// Options that the server does not have, and plugins that it cannot load. What the installed server does not list it may
/// know all the same (it hides some), so it is asked. Returns the settings that it knows, if it was asked.
pub(super) fn unknown<'a>(check: &mut Check<'a>, names: &Names) -> Vec<&'a Setting> {
    let cnf = check.cnf;
    let mut all_known = Vec::new();
    not_loaded(check, names);
    for setting in cnf.settings.iter().filter(|s| cnf.is_servers(&s.group)) {
        let name = setting.name.as_str();
        if GONE.contains(&name) && cnf.version() >= (11, 8) {
            let text = "MariaDB 11.8 takes it for old files' sake, and does nothing with it";
            check.at(Level::Ignored, setting, text);
            continue;
        }
        if names.has(name) || names.has(&whole(setting)) || names.are_all_of(name) {
            all_known.push(setting);
            continue;
        }
        let known = match names.that_begin(name).len() {
            _ if names.printed.is_some() => {
                check.machine.server_knows(&names.ask, &setting.written, value_as_written(setting))
            }
            0 => Known::No,
            _ => Known::Ambiguous,
        };
        match known {
            Known::Yes | Known::BadValue => all_known.push(setting),
            Known::Removed => {
                let text = "this server takes it for old files' sake, and does nothing with it";
                check.at(Level::Ignored, setting, text);
            }
            Known::Ambiguous => {
                let some: Vec<&str> = names.that_begin(name).iter().take(3).map(String::as_str).collect();
                let text = format!(
                    "begins several options ({}, …), and the server does not start: write one out",
                    some.join(", ")
                );
                check.at(Level::Refused, setting, text);
            }
            Known::Disables(plugin) => {
                let text = format!(
                    "the server cannot tell which option this is, and starts without the plugin {plugin}"
                );
                check.at(Level::Unwise, setting, text);
            }
            Known::No => no_such(check, names, setting),
        }
    }
    if names.printed.is_some() { all_known } else { Vec::new() }
}

fn no_such(check: &mut Check<'_>, names: &Names, setting: &Setting) {
    let of_wsrep = setting.name.starts_with("wsrep_");
    if setting.loose && !of_wsrep {
        return;
    }
    let all: Vec<&str> = match of_wsrep {
        true => WSREP.to_vec(),
        false => names.all.iter().map(String::as_str).collect(),
    };
    // The options of a plugin that could not be asked may be like others.
    let loads_others =
        !of_wsrep && names.printed.as_ref().is_some_and(|printed| !printed.not_loaded.is_empty());
    let near = nearest_of(&setting.name, &all).filter(|_| !loads_others);
    let (level, text) = match (near, of_wsrep) {
        (near, true) => {
            let hint = near.map(|name| format!(": did you mean {name}?"));
            let hint = hint.unwrap_or_else(|| "; its options for replication begin with wsrep_".into());
            match setting.loose {
                true => (Level::Ignored, format!("the server has no such option{hint}")),
                false => (Level::Refused, format!("the server has no such option, and does not start{hint}")),
            }
        }
        (Some(near), _) => (
            Level::Refused,
            format!("the server has no such option, and does not start: did you mean {near}?"),
        ),
        (None, _) => {
            let text =
                "the server has no such option of its own: unless a plugin brings it, it does not start";
            (Level::Unwise, text.to_owned())
        }
    };
    check.at(level, setting, text);
}

fn not_loaded(check: &mut Check<'_>, names: &Names) {
    let cnf = check.cnf;
    for (file, why) in names.printed.iter().flat_map(|printed| &printed.not_loaded) {
        let name = file.strip_suffix(".so").unwrap_or(file);
        let names_it = |s: &&Setting| s.name.starts_with("plugin_load") && s.text().contains(name);
        let text = format!("the server cannot load {file}, and starts without it: {why}");
        match cnf.settings.iter().rev().filter(|s| cnf.is_servers(&s.group)).find(names_it) {
            Some(setting) => check.at(Level::Unwise, setting, text),
            None => check.about(Level::Unwise, "plugin_load_add", text),
        }
    }
}

/// Quotes that are opened and not closed: the server takes them for part of the value.
pub(super) fn quotes(check: &mut Check<'_>, names: &Names) {
    let cnf = check.cnf;
    for setting in cnf.settings.iter().filter(|s| s.open_quote && cnf.is_servers(&s.group)) {
        let text =
            "a quote is opened and not closed: it and what follows, also a comment, become part of the value";
        let known = check.machine.server_knows(&names.ask, &setting.written, value_as_written(setting));
        match known {
            Known::BadValue => {
                check.at(Level::Refused, setting, format!("{text}, with which the server does not start"));
            }
            Known::Disables(plugin) => {
                check.at(
                    Level::Unwise,
                    setting,
                    format!("{text}; the server starts without the plugin {plugin}"),
                );
            }
            _ => check.at(Level::Unwise, setting, text),
        }
    }
}
