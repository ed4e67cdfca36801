//! Checks the names of options. The server accepts full names and unambiguous prefixes.

use lockstep_node::options::{Options, nearest_of};

use super::cnf::{Cnf, Setting};
use super::installed::{Known, Printed, RunAs};
use super::machine::Machine;
use super::{Check, Finding, Level};

/// The server's replication options, as 10.11 and 11.8 list them. The server does not start with an unknown one.
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

/// Options that 11.8 accepts and ignores.
const REMOVED: &[&str] = &["wsrep_causal_reads", "wsrep_load_data_splitting"];

/// The first version in which the server has a variable for each provider option, unless plugin_wsrep_provider is off.
const PROVIDER_VARIABLES_SINCE: (u32, u32) = (11, 4);
/// The prefix of these variables' names.
const PROVIDER_VARIABLE: &str = "wsrep_provider_";

/// The options of a server.
pub(super) struct Names {
    run_as: RunAs,
    /// The options of the installed server and its plugins, if the server may be run.
    printed: Option<Printed>,
    /// All known options, including those that are known without running the server.
    all: Vec<String>,
}

impl Names {
    pub(super) fn of(cnf: &Cnf, machine: &dyn Machine) -> Names {
        let account = cnf.get("user").map_or("mysql", Setting::text).to_owned();
        // A prefix of these names selects the option, too. `plugin_load` is a prefix of another name and a name itself.
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
        let run_as = RunAs { account, plugins };
        let printed = machine.server_prints(&run_as);
        let mut all: Vec<String> = WSREP.iter().map(|name| name.to_ascii_lowercase()).collect();
        let plugin = cnf.get("plugin_wsrep_provider");
        if cnf.version() >= PROVIDER_VARIABLES_SINCE && plugin.is_none_or(|s| s.value.is_none() || s.is_on())
        {
            let variable = |name: &str| format!("{PROVIDER_VARIABLE}{}", name.replace('.', "_"));
            all.extend(Options::default().values().into_iter().map(|(row, _)| variable(row.name)));
        }
        all.extend(printed.iter().flat_map(|printed| printed.options.iter().cloned()));
        all.sort();
        all.dedup();
        Names { run_as, printed, all }
    }

    /// How to run the installed server.
    pub(super) fn run_as(&self) -> &RunAs {
        &self.run_as
    }

    fn has(&self, name: &str) -> bool {
        self.all.binary_search_by(|known| known.as_str().cmp(name)).is_ok()
    }

    /// All options with this prefix.
    fn with_prefix(&self, start: &str) -> &[String] {
        let from = self.all.partition_point(|known| known.as_str() < start);
        let rest = &self.all[from..];
        &rest[..rest.partition_point(|known| known.starts_with(start))]
    }

    /// Whether the option counts as valid because the server cannot be run to check it.
    fn cannot_check(&self, name: &str) -> bool {
        self.printed.is_none() && !name.starts_with("wsrep_")
    }
}

/// The name in the file, in the form in which the server compares it.
fn whole(setting: &Setting) -> String {
    setting.written.replace('-', "_").to_ascii_lowercase()
}

/// The value in the file. For example, `skip_name` is an option without a value.
pub(super) fn value_as_written(setting: &Setting) -> Option<&str> {
    let whole = whole(setting);
    let whole = whole.strip_prefix("loose_").unwrap_or(&whole);
    // `complete` may have replaced an abbreviated name, so compare prefixes.
    let is_switch = ["skip_", "disable_", "enable_"]
        .iter()
        .filter_map(|prefix| whole.strip_prefix(prefix))
        .any(|rest| setting.name.starts_with(rest));
    setting.value.as_deref().filter(|_| !is_switch)
}

/// Replaces abbreviated names by full names, as the server does, so that the checks find these settings.
pub(super) fn complete(cnf: &mut Cnf, names: &Names, machine: &dyn Machine) {
    let mut settings = std::mem::take(&mut cnf.settings);
    for setting in &mut settings {
        let whole = whole(setting);
        if !cnf.is_servers(&setting.group) || names.has(&setting.name) || names.has(&whole) {
            continue;
        }
        // `skip_name_res` is a prefix of an option's name; `skip_innodb_doublewr` is not.
        let by_whole = names.with_prefix(&whole);
        let [full] = (if by_whole.is_empty() { names.with_prefix(&setting.name) } else { by_whole }) else {
            continue;
        };
        // The server may have a hidden option with the same prefix, and know better.
        if names.printed.is_some()
            && machine.server_knows(&names.run_as, &setting.written, value_as_written(setting)) == Known::No
        {
            continue;
        }
        let text = format!(
            "is an abbreviation of {full}; another version may have more options with this prefix: write the full name"
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

/// Reports replication options in groups that the server does not read.
pub(super) fn misplaced(check: &mut Check<'_>) {
    let cnf = check.cnf;
    let elsewhere = |s: &&Setting| s.name.starts_with("wsrep_") && !cnf.is_servers(&s.group);
    for setting in cnf.settings.iter().filter(elsewhere) {
        // The scripts of state transfers read this group, too.
        if setting.group == "sst" && setting.name == "wsrep_sst_auth" {
            continue;
        }
        let text =
            format!("the server does not read the group [{}]: move the option to [mysqld]", setting.group);
        check.at(Level::Ignored, setting, text);
    }
}

/// Reports options that the server does not have, and plugins that it cannot load. The installed server's list is
/// incomplete, because it hides some options, so the server is run for each unlisted option. Returns the settings that it
/// knows, if it was run.
pub(super) fn unknown<'a>(check: &mut Check<'a>, names: &Names) -> Vec<&'a Setting> {
    let cnf = check.cnf;
    let mut all_known = Vec::new();
    not_loaded(check, names);
    for setting in cnf.settings.iter().filter(|s| cnf.is_servers(&s.group)) {
        let name = setting.name.as_str();
        if REMOVED.contains(&name) && cnf.version() >= (11, 8) {
            let text = "MariaDB 11.8 accepts it for compatibility with older files, and ignores it";
            check.at(Level::Ignored, setting, text);
            continue;
        }
        if names.has(name) || names.has(&whole(setting)) || names.cannot_check(name) {
            all_known.push(setting);
            continue;
        }
        let known = match names.with_prefix(name).len() {
            _ if names.printed.is_some() => {
                check.machine.server_knows(&names.run_as, &setting.written, value_as_written(setting))
            }
            0 => Known::No,
            _ => Known::Ambiguous,
        };
        match known {
            Known::Yes | Known::BadValue => all_known.push(setting),
            Known::Removed => {
                let text = "this server accepts it for compatibility with older files, and ignores it";
                check.at(Level::Ignored, setting, text);
            }
            Known::Ambiguous => {
                let some: Vec<&str> = names.with_prefix(name).iter().take(3).map(String::as_str).collect();
                let text = format!(
                    "is a prefix of several options ({}, …), so the server does not start: write the full name",
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
    // A plugin that could not be loaded may have an option of this name, even if another option has a similar name.
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
                "the server has no such option of its own, and does not start unless a plugin provides it";
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

/// Reports quotes that are not closed. The server makes them part of the value.
pub(super) fn quotes(check: &mut Check<'_>, names: &Names) {
    let cnf = check.cnf;
    for setting in cnf.settings.iter().filter(|s| s.open_quote && cnf.is_servers(&s.group)) {
        let text = "a quote is not closed: the quote and the rest of the line, including a comment, become part of the value";
        let known = check.machine.server_knows(&names.run_as, &setting.written, value_as_written(setting));
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
