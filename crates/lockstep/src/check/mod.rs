//! `lockstep check`: reads a server's option files, and reports settings that are refused, ignored or unwise, before a
//! start with them. docs/check.md lists the checks.

mod accounts;
mod cnf;
mod installed;
mod machine;
mod names;
mod network;
mod provider;
mod server;
mod tls;
mod transfer;
mod values;

use std::fmt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;
use lockstep_local::say;
use lockstep_node::options::Options;
use serde::Serialize;

use self::cnf::{Cnf, Setting};
use self::machine::{Machine, ThisMachine};
use self::names::Names;

/// The option files that the server reads by default.
const DEFAULT_FILES: [&str; 2] = ["/etc/my.cnf", "/etc/mysql/my.cnf"];
/// The server version to assume if none is installed.
const DEFAULT_VERSION: &str = "10.11";
const UNWISE: u8 = 3;
const REFUSED: u8 = 4;

/// Options of `lockstep check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// Option files, in the server's order [default: /etc/my.cnf and /etc/mysql/my.cnf, with their includes].
    files: Vec<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// The server's version, for groups such as [mariadb-10.11] [default: from `mariadbd --version`].
    #[arg(long, value_name = "MAJOR.MINOR", value_parser = version)]
    server_version: Option<String>,
}

impl CheckArgs {
    /// Whether to print JSON.
    pub(crate) fn wants_json(&self) -> bool {
        self.json
    }
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// The server does not start with the setting, or does not become a member.
    Refused,
    /// The server starts, but the setting is likely to cause trouble later.
    Unwise,
    /// The setting has no effect.
    Ignored,
    /// A remark.
    Note,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Refused => "refused",
            Level::Unwise => "unwise",
            Level::Ignored => "ignored",
            Level::Note => "note",
        })
    }
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    level: Level,
    /// The file; `None` for a missing setting.
    file: Option<PathBuf>,
    line: Option<usize>,
    /// The option, without its value.
    option: String,
    text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(file), Some(line)) = (&self.file, self.line) {
            write!(f, "{}:{line}: ", file.display())?;
        }
        write!(f, "{}: {}: {}", self.level, displayed(&self.option), displayed(&self.text))
    }
}

/// Text from a file in a form that is safe for a terminal: one line of bounded length, without control characters.
fn displayed(text: &str) -> String {
    const LENGTH: usize = 500;
    let mut out = String::new();
    for (at, c) in text.chars().enumerate() {
        match c {
            _ if at == LENGTH => {
                out.push('…');
                break;
            }
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// All findings, for the JSON output.
#[derive(Serialize)]
struct Report<'a> {
    files: &'a [PathBuf],
    refused: usize,
    unwise: usize,
    ignored: usize,
    findings: &'a [Finding],
}

/// Runs the command.
pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode, String> {
    let mut files = args.files.clone();
    if files.is_empty() {
        files = DEFAULT_FILES.iter().map(PathBuf::from).filter(|path| path.exists()).collect();
        if files.is_empty() {
            return Err(format!(
                "there is neither {} nor {}: name the files to check",
                DEFAULT_FILES[0], DEFAULT_FILES[1]
            ));
        }
    }
    let installed = installed_version();
    let version =
        args.server_version.clone().or_else(|| installed.clone()).unwrap_or_else(|| DEFAULT_VERSION.into());
    let machine = ThisMachine { has_server: installed.as_ref() == Some(&version) };
    let cnf = Cnf::read(&files, &version)?;
    let findings = check(&cnf, &machine);
    let count = |level| findings.iter().filter(|f| f.level == level).count();
    let report = Report {
        files: &cnf.files,
        refused: count(Level::Refused),
        unwise: count(Level::Unwise),
        ignored: count(Level::Ignored),
        findings: &findings,
    };
    if args.json {
        say(&serde_json::to_string_pretty(&report).map_err(|e| format!("cannot write JSON: {e}"))?);
    } else {
        for finding in &findings {
            say(&finding.to_string());
        }
        let n = cnf.files.len();
        say(&format!(
            "{} refused, {} unwise, {} ignored ({n} {} read, as a server of version {version} does)",
            report.refused,
            report.unwise,
            report.ignored,
            if n == 1 { "file" } else { "files" },
        ));
    }
    Ok(match (report.refused, report.unwise) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(UNWISE),
        _ => ExitCode::from(REFUSED),
    })
}

/// Parses `--server-version`.
fn version(text: &str) -> Result<String, String> {
    let number = |part: &str| !part.is_empty() && part.len() <= 3 && part.bytes().all(|b| b.is_ascii_digit());
    match text.split_once('.') {
        Some((major, minor)) if number(major) && number(minor) => Ok(text.to_owned()),
        _ => Err("expected two numbers, such as 10.11".into()),
    }
}

/// The version of the installed server, for example `10.11`.
fn installed_version() -> Option<String> {
    let run = |program: &str| Command::new(program).args(["--no-defaults", "--version"]).output().ok();
    let output = run("mariadbd").or_else(|| run("/usr/sbin/mariadbd"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut numbers = text.split("Ver ").nth(1)?.split('.');
    Some(format!("{}.{}", numbers.next()?, numbers.next()?))
}

/// The shared state of the checks.
struct Check<'a> {
    cnf: &'a Cnf,
    machine: &'a dyn Machine,
    /// The valid provider options.
    options: Options,
    findings: Vec<Finding>,
}

impl Check<'_> {
    /// Adds a finding about a setting.
    fn at(&mut self, level: Level, setting: &Setting, text: impl Into<String>) {
        self.findings.push(Finding {
            level,
            file: Some(setting.file.to_path_buf()),
            line: Some(setting.line),
            option: setting.written.clone(),
            text: text.into(),
        });
    }

    /// Adds a finding about an option that may not be set.
    fn about(&mut self, level: Level, option: &str, text: impl Into<String>) {
        match self.cnf.get(option) {
            Some(setting) => self.at(level, setting, text),
            None => {
                let (option, text) = (option.to_owned(), text.into());
                self.findings.push(Finding { level, file: None, line: None, option, text });
            }
        }
    }

    /// The value in force, or the server's default.
    fn text<'a>(&'a self, option: &str, default: &'a str) -> &'a str {
        self.cnf.get(option).map_or(default, Setting::text)
    }

    /// A switch in force, or the server's default.
    fn is_on(&self, option: &str, default: bool) -> bool {
        self.cnf.get(option).map_or(default, Setting::is_on)
    }

    fn number(&self, option: &str, default: u64) -> u64 {
        let text = self.text(option, "").trim().to_ascii_uppercase();
        let (digits, shift) = match text.as_bytes().last() {
            Some(b'K') => (&text[..text.len() - 1], 10),
            Some(b'M') => (&text[..text.len() - 1], 20),
            Some(b'G') => (&text[..text.len() - 1], 30),
            _ => (text.as_str(), 0),
        };
        digits.parse::<u64>().map_or(default, |n| n.saturating_mul(1 << shift))
    }
}

/// Runs all checks. Returns the findings by severity, and within a severity in the order of the files.
fn check(cnf: &Cnf, machine: &dyn Machine) -> Vec<Finding> {
    let names = Names::of(cnf, machine);
    let mut cnf = cnf.clone();
    names::complete(&mut cnf, &names, machine);
    let cnf = &cnf;
    let mut check = Check { cnf, machine, options: Options::default(), findings: cnf.findings.clone() };
    names::misplaced(&mut check);
    let known = names::unknown(&mut check, &names);
    names::quotes(&mut check, &names);
    if !known.is_empty() {
        values::check_values(&mut check, &names, known);
    }
    let server_findings = check.findings.len();
    if provider::library(&mut check) {
        provider::options(&mut check);
        provider::log(&mut check);
        tls::files(&mut check);
        server::settings(&mut check);
        network::cluster(&mut check);
        network::own_address(&mut check);
        network::clients(&mut check);
        network::ports(&mut check);
        transfer::method(&mut check);
    }
    if !check.is_on("wsrep_on", false) {
        // With wsrep_on = OFF, the server neither loads the provider nor checks replication settings. It still needs its
        // data directory.
        for finding in check.findings[server_findings..].iter_mut().filter(|f| f.option != "datadir") {
            if finding.level == Level::Refused {
                finding.level = Level::Unwise;
                finding.text.push_str(
                    " (applies when wsrep_on is ON; while it is OFF, the server starts and runs alone)",
                );
            }
        }
    }
    let mut findings = check.findings;
    findings.sort_by_key(|f| f.level);
    findings
}

#[cfg(test)]
mod tests {
    use super::machine::tests::Fake;
    use super::machine::{Directory, Keys, Library};
    use super::*;
    use std::path::Path;

    fn data(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/check").join(name)
    }

    fn findings(name: &str, machine: &Fake) -> Vec<Finding> {
        check(&Cnf::read(&[data(name)], "10.11").unwrap(), machine)
    }

    /// The findings as text, with file names instead of paths.
    fn lines(findings: &[Finding]) -> String {
        let line = |f: &Finding| f.to_string().replace(&data("").display().to_string(), "");
        findings.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Checks that these are all findings: level, option, line and some words of the text.
    fn expect(findings: &[Finding], expected: &[(Level, &str, Option<usize>, &str)]) {
        let text = lines(findings);
        for (level, option, line, words) in expected {
            let hit = |f: &&Finding| {
                f.level == *level && f.option == *option && f.line == *line && f.text.contains(words)
            };
            assert!(
                findings.iter().any(|f| hit(&f)),
                "no {level} of {option} at {line:?} with `{words}` in\n{text}"
            );
        }
        assert_eq!(findings.len(), expected.len(), "{text}");
    }

    use Level::{Ignored, Note, Refused, Unwise};

    #[test]
    fn readme_configuration_has_no_findings() {
        let machine = Fake::default();
        expect(&findings("clean.cnf", &machine), &[]);
    }

    #[test]
    fn binary_input_is_displayed_safely() {
        let found = of_names("\u{1b}[2J\u{0}junk\n", &[]);
        let line = found.first().map(Finding::to_string).unwrap_or_default();
        assert!(line.contains("\\u{1b}[2J\\u{0}junk") && !line.contains('\u{1b}'), "{line:?}");
        assert_eq!(displayed(&"x".repeat(600)).chars().count(), 501);
    }

    #[test]
    fn version_needs_two_numbers() {
        assert_eq!(super::version("10.11").as_deref(), Ok("10.11"));
        for bad in ["foo", "10", "10.", ".11", "10.11.6", "10.11-MariaDB", ""] {
            assert!(super::version(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn server_without_provider_is_reported() {
        expect(&findings("plain.cnf", &Fake::default()), &[(Unwise, "wsrep_provider", None, "runs alone")]);
    }

    /// Findings about option names in this text, for a server with these options.
    fn of_names(text: &str, options: &[&'static str]) -> Vec<Finding> {
        let file = std::env::temp_dir().join(format!(
            "lockstep-check-{}-{:?}.cnf",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::write(&file, text).unwrap();
        let machine = Fake { options: options.to_vec(), ..Fake::default() };
        let mut found = check(&Cnf::read(std::slice::from_ref(&file), "10.11").unwrap(), &machine);
        std::fs::remove_file(&file).unwrap();
        found.retain(|f| f.option != "wsrep_provider");
        found
    }

    #[test]
    fn unknown_options_are_found() {
        let text = "[mysqld]\nport=3306\nmax_conections=5\nmax-connect=5\ninnodb_file_format=Barracuda\nsync_frm=1\n\
                    loose_nothing=1\nserver_audit_logging=ON\nskip_slave_start\nskip-log-bin\nPort=5\nmax_con=1\n\
                    [client]\nmax_conections=5\n";
        let options = ["port", "max_connections", "max_connect", "skip_slave_start", "log_bin"];
        let all = [
            (Refused, "max_conections", Some(3), "did you mean max_connections?"),
            (Refused, "max_con", Some(12), "max_connect, max_connections, …"),
            (Unwise, "server_audit_logging", Some(8), "unless a plugin"),
            (Ignored, "innodb_file_format", Some(5), "compatibility"),
        ];
        expect(&of_names(text, &options), &all);
        expect(&of_names(text, &[]), &[]);
    }

    #[test]
    fn values_that_the_server_rejects_are_found() {
        let text = "[mysqld]\nport=abc\nmax_connect=abc\nsql_mode=foo\nskip_slave_start=maybe\nport=3306\n";
        let options = ["port", "max_connect", "sql_mode", "skip_slave_start", "character_set_server"];
        let all = [
            (Refused, "port", Some(2), "'abc' is not a valid value"),
            (Refused, "max_connect", Some(3), "does not start"),
            (Refused, "sql_mode", Some(4), "'foo'"),
            (Unwise, "skip_slave_start", Some(5), "OFF"),
        ];
        expect(&of_names(text, &options), &all);
        // A value whose option the server does not name, and abbreviations.
        let options = [&options[..], &["max_connections"]].concat();
        let text = "[mysqld]\ncharacter_set_server=foo\nskip_slave_start=maybe\nloose_max_connect=abc\nmax_connectio=abc\n";
        let all = [
            (Refused, "character_set_server", Some(2), "not a compiled"),
            (Unwise, "skip_slave_start", Some(3), "OFF"),
            (Refused, "loose_max_connect", Some(4), "'abc'"),
            (Refused, "max_connectio", Some(5), "'abc'"),
            (Note, "max_connectio", Some(5), "abbreviation of max_connections"),
        ];
        expect(&of_names(text, &options), &all);
        expect(&of_names(text, &[]), &[]);
    }

    #[test]
    fn member_only_errors_do_not_stop_standalone_server() {
        let findings = |on: &str| {
            let path = std::env::temp_dir().join(format!("lockstep-check-off-{}.cnf", std::process::id()));
            let text = format!(
                "[mysqld]\n{on}\nwsrep_provider=/usr/lib/lockstep/liblockstep.so\nmemlock\nbinlog_format=MIXED\n\
                 wsrep_provider_options=gcs.fc_limt=1\nwsrep_replicate_myisam=ON\n"
            );
            std::fs::write(&path, text).unwrap();
            let cnf = Cnf::read(std::slice::from_ref(&path), "10.11").unwrap();
            std::fs::remove_file(&path).unwrap();
            let refused = check(&cnf, &Fake::default()).into_iter().filter(|f| f.level == Refused);
            refused.map(|f| f.option).collect::<Vec<_>>()
        };
        let all = [
            "wsrep_replicate_myisam",
            "wsrep_provider_options",
            "binlog_format",
            "memlock",
            "wsrep_cluster_address",
        ];
        assert_eq!(findings("wsrep_on=ON"), all);
        assert_eq!(findings("wsrep_on=OFF"), all[..1]);
        assert_eq!(findings(""), all[..1]);
    }

    #[test]
    fn options_of_loaded_plugins_are_known() {
        let options = ["port", "plugin_load_add"];
        let text = |plugin: &str| {
            format!(
                "[mysqld]\nplugin-load-add={plugin}\nserver_audit_logging=ON\nserver_audit_logged=ON\npart=1\n"
            )
        };
        expect(
            &of_names(&text("server_audit"), &options),
            &[
                (Refused, "server_audit_logged", Some(4), "did you mean server_audit_logging?"),
                (Refused, "part", Some(5), "did you mean port?"),
            ],
        );
        // A plugin that cannot be loaded may have any option.
        expect(
            &of_names(&text("ha_rocksdb"), &options),
            &[
                (
                    Unwise,
                    "plugin-load-add",
                    Some(2),
                    "cannot load ha_rocksdb.so, and starts without it: no such file",
                ),
                (Unwise, "server_audit_logging", Some(3), "unless a plugin"),
                (Unwise, "server_audit_logged", Some(4), "unless a plugin"),
                (Unwise, "part", Some(5), "unless a plugin"),
            ],
        );
    }

    #[test]
    fn unique_prefix_selects_the_option() {
        let text = "[mysqld]\nwsrep_slave_thread=3\nmax_connectio=5\nWSREP-On=ON\nwsrep_slave_fk_checks=ON\nwsrep_s=1\n\
                    loose_wsrep_s=1\n";
        let begins = "wsrep_slave_fk_checks, wsrep_slave_threads, wsrep_slave_uk_checks";
        let refused = [(Refused, "wsrep_s", Some(6), begins), (Refused, "loose_wsrep_s", Some(7), begins)];
        let threads = (Note, "wsrep_slave_thread", Some(2), "abbreviation of wsrep_slave_threads");
        expect(&of_names(text, &[]), &[&refused[..], &[threads]].concat());
        let most = (Note, "max_connectio", Some(3), "abbreviation of max_connections");
        expect(
            &of_names(text, &["max_connections", "max_connect"]),
            &[&refused[..], &[threads, most]].concat(),
        );
    }

    #[test]
    fn abbreviated_option_is_checked_like_full_name() {
        let cnf = |line: &str| {
            let clean = std::fs::read_to_string(data("clean.cnf")).unwrap();
            let path = std::env::temp_dir().join(format!("lockstep-check-short-{}.cnf", std::process::id()));
            std::fs::write(&path, format!("{clean}\n[mysqld]\n{line}\n")).unwrap();
            let cnf = Cnf::read(std::slice::from_ref(&path), "10.11").unwrap();
            std::fs::remove_file(&path).unwrap();
            check(&cnf, &Fake::default())
                .into_iter()
                .filter(|f| f.level != Note)
                .map(|f| f.option)
                .collect::<Vec<_>>()
        };
        assert_eq!(cnf("wsrep_slave_thread=1"), ["wsrep_slave_thread"]);
        assert!(cnf("wsrep_slave_thread=2").is_empty());
    }

    #[test]
    fn unbalanced_quote_is_part_of_value() {
        let text = "[mysqld]\nport=\"3307\nsocket='/run/a.sock # here\n";
        expect(
            &of_names(text, &["port", "socket"]),
            &[(Refused, "port", Some(2), "does not start"), (Unwise, "socket", Some(3), "not closed")],
        );
    }

    #[test]
    fn provider_options_are_variables_on_newer_servers() {
        let cnf = |version: &str, off: &str| {
            let path =
                std::env::temp_dir().join(format!("lockstep-check-variables-{}.cnf", std::process::id()));
            std::fs::write(&path, format!("[mysqld]\n{off}\nwsrep_provider_gcs_fc_limit=100\n")).unwrap();
            let cnf = Cnf::read(std::slice::from_ref(&path), version).unwrap();
            std::fs::remove_file(&path).unwrap();
            check(&cnf, &Fake::default()).iter().filter(|f| f.level == Refused).count()
        };
        assert_eq!((cnf("11.8", ""), cnf("11.8", "plugin_wsrep_provider=OFF"), cnf("10.11", "")), (0, 1, 1));
    }

    #[test]
    fn refused_values_are_errors() {
        let machine = Fake { lacks: vec!["socat"], ..Fake::default() };
        expect(
            &findings("refused.cnf", &machine),
            &[
                (Refused, "binlog_format", None, "MIXED"),
                (Unwise, "innodb-autoinc-lock-mode", Some(4), "set it to 2"),
                (Refused, "memlock", Some(5), "locked in memory"),
                (Refused, "wsrep_replicate_myisam", Some(6), "wsrep_"),
                (Refused, "wsrep_provider_options", Some(7), "did you mean 'gcs.fc_limit'?"),
                (Refused, "wsrep_provider_options", Some(7), "socket.ssl needs socket.ssl_key as well"),
                (Refused, "wsrep_provider_options", Some(7), "net.heartbeat = 'often'"),
                (Ignored, "wsrep_provider_options", Some(7), "evs.suspect_timeout has no effect"),
                (Refused, "wsrep_cluster_address", Some(8), "gcom"),
                (Refused, "wsrep_sst_method", Some(10), "socat"),
                (Refused, "wsrep_gtid_mode", Some(12), "log_slave_updates"),
                (Refused, "wsrep_node_name", Some(14), "31 bytes"),
                (Note, "wsrep_sst_auth", None, "mariabackup"),
                (Unwise, "log_bin", Some(13), "binlog"),
            ],
        );
    }

    #[test]
    fn risky_values_are_warnings() {
        let mut machine =
            Fake { taken: vec![4444], unresolved: vec!["db9"], readable: true, ..Fake::default() };
        machine.directories.insert("/srv/log", Directory::Own { free: Some(3 << 30), log: 1 << 30 });
        expect(
            &findings("unwise.cnf", &machine),
            &[
                (Unwise, "wsrep_on", None, "OFF"),
                (Unwise, "innodb_autoinc_lock_mode", None, "2"),
                (Unwise, "default_storage_engine", Some(3), "MyISAM"),
                (Unwise, "query_cache_size", Some(4), "query cache"),
                (Unwise, "event_scheduler", Some(5), "made"),
                (Unwise, "innodb_flush_log_at_trx_commit", Some(6), "log_bin"),
                (Unwise, "wsrep_cluster_name", None, "my_wsrep_cluster"),
                (Unwise, "wsrep_cluster_address", Some(10), "db9"),
                (Unwise, "wsrep_cluster_address", Some(10), "two"),
                (Ignored, "wsrep_cluster_address", Some(10), "pc.wait_prim"),
                (Unwise, "wsrep_provider_options", Some(12), "line 11"),
                (Unwise, "wsrep_provider_options", Some(12), "log.max_size"),
                (Unwise, "bind-address", Some(13), "127.0.0.1"),
                (Unwise, "wsrep_sst_receive_address", None, "4444"),
                (Ignored, "wsrep_sst_auth", Some(14), "rsync"),
                (Unwise, "wsrep_sst_auth", Some(14), "read by every"),
                (Unwise, "wsrep_new_cluster", Some(15), "each start"),
                (Unwise, "wsrep_slave_threads", None, "one"),
            ],
        );
    }

    #[test]
    fn fragment_size_without_streaming_option_is_refused() {
        let clean = std::fs::read_to_string(data("clean.cnf")).unwrap();
        let found = |lines: &str| {
            let path = std::env::temp_dir().join(format!("lockstep-check-sr-{}.cnf", std::process::id()));
            std::fs::write(&path, format!("{clean}\n[mysqld]\n{lines}\n")).unwrap();
            let cnf = Cnf::read(std::slice::from_ref(&path), "10.11").unwrap();
            std::fs::remove_file(&path).unwrap();
            let refused = check(&cnf, &Fake::default()).into_iter().filter(|f| f.level == Refused);
            refused.map(|f| f.option).collect::<Vec<_>>()
        };
        let streams = "wsrep_provider_options=trx.streaming=yes";
        assert_eq!(found("wsrep_trx_fragment_size=1M"), ["wsrep_trx_fragment_size"]);
        assert_eq!(found(&format!("wsrep_trx_fragment_size=1M\n{streams}")), [""; 0]);
        assert_eq!(found("wsrep_trx_fragment_size=0"), [""; 0]);
    }

    #[test]
    fn empty_address_warns_of_new_cluster_at_each_start() {
        expect(
            &findings("bootstrap.cnf", &Fake::default()),
            &[
                (Unwise, "wsrep_cluster_address", Some(8), "each start"),
                (Note, "innodb_flush_log_at_trx_commit", Some(11), "0"),
            ],
        );
    }

    #[test]
    fn options_outside_read_groups_are_found() {
        expect(
            &findings("misplaced.cnf", &Fake::default()),
            &[
                (Ignored, "wsrep_on", Some(2), "[mysqld_safe]"),
                (Ignored, "wsrep_provider", Some(4), "[mariadb-11.8]"),
                (Unwise, "wsrep_provider", None, "runs alone"),
            ],
        );
    }

    #[test]
    fn server_version_selects_groups() {
        let ignored = |version: &str| {
            let cnf = Cnf::read(&[data("older.cnf")], version).unwrap();
            check(&cnf, &Fake::default()).into_iter().filter(|f| f.level == Ignored).collect::<Vec<_>>()
        };
        expect(&ignored("10.11"), &[]);
        let expected = [(2, "wsrep_causal_reads"), (3, "loose_wsrep_load_data_splitting")];
        expect(&ignored("11.8"), &expected.map(|(line, option)| (Ignored, option, Some(line), "11.8")));
    }

    #[test]
    fn files_and_directories_are_checked() {
        let mut machine = Fake { library: Library::Galera, ..Fake::default() };
        machine.directories.insert("/var/lib/mysql", Directory::Others("root".into()));
        expect(
            &findings("clean.cnf", &machine),
            &[(Unwise, "wsrep_provider", Some(7), "Galera's"), (Refused, "datadir", None, "belongs to root")],
        );
        machine.library = Library::Unreadable("No such file".into());
        machine.directories.insert("/var/lib/mysql", Directory::Missing);
        expect(
            &findings("clean.cnf", &machine),
            &[
                (Refused, "wsrep_provider", Some(7), "No such file"),
                (Refused, "datadir", None, "mariadb-install-db"),
            ],
        );
    }

    #[test]
    fn certificates_and_keys_are_checked() {
        let mut machine = Fake::default();
        let encrypted = |machine: &Fake| findings("tls.cnf", machine);
        let usable =
            |warning: Option<&str>, exposed| Keys::Usable { warning: warning.map(Into::into), exposed };
        expect(&encrypted(&machine), &[]);
        machine.keys = Keys::Unusable("socket.ssl_key: cannot read".into());
        expect(&encrypted(&machine), &[(Refused, "wsrep_provider_options", Some(12), "cannot read")]);
        machine.keys = Keys::NotSeen("cannot examine key.pem".into());
        expect(&encrypted(&machine), &[(Note, "wsrep_provider_options", Some(12), "as root")]);
        machine.keys = usable(Some("expires on 2027-01-01"), true);
        expect(
            &encrypted(&machine),
            &[
                (Unwise, "wsrep_provider_options", Some(12), "expires on 2027-01-01"),
                (Unwise, "wsrep_provider_options", Some(12), "chmod 0600"),
            ],
        );
    }

    #[test]
    fn ports_of_running_member_are_not_reported() {
        let mut machine = Fake { taken: vec![3306, 4567, 4444], ..Fake::default() };
        assert_eq!(findings("clean.cnf", &machine).len(), 3);
        machine.runs = true;
        expect(&findings("clean.cnf", &machine), &[]);
    }

    #[test]
    fn port_conflict_and_guessed_address_are_found() {
        let machine = Fake { addresses: vec!["10.0.0.1", "192.168.0.1"], ..Fake::default() };
        expect(
            &findings("ports.cnf", &machine),
            &[
                (Refused, "port", Some(9), "4567"),
                (Unwise, "wsrep_provider_options", Some(10), "status.address"),
                (Unwise, "wsrep_node_address", None, "10.0.0.1, 192.168.0.1"),
                (Note, "wsrep_sst_receive_address", Some(11), "45000"),
            ],
        );
    }

    #[test]
    fn sst_method_and_missing_clients_are_checked() {
        expect(
            &findings("local.cnf", &Fake::default()),
            &[
                (Unwise, "wsrep_sst_method", Some(9), "rsync or mariabackup"),
                (Note, "bind-address", Some(11), "other machines"),
            ],
        );
    }

    #[test]
    fn configurations_of_up_have_no_findings() {
        let dir = std::env::temp_dir().join(format!("lockstep-check-up-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for server in crate::up::default_configs(&dir) {
            let path = dir.join("member.cnf");
            std::fs::write(&path, server.render()).unwrap();
            let findings = check(&Cnf::read(&[path], "10.11").unwrap(), &Fake::default());
            assert!(findings.iter().all(|f| f.level == Note), "{}", lines(&findings));
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn finding_is_printed_as_line_and_json() {
        let finding = Finding {
            level: Unwise,
            file: Some("a.cnf".into()),
            line: Some(3),
            option: "port".into(),
            text: "why".into(),
        };
        assert_eq!(finding.to_string(), "a.cnf:3: unwise: port: why");
        let json = serde_json::to_value(&finding).unwrap();
        assert_eq!((json["level"].as_str(), json["line"].as_u64()), (Some("unwise"), Some(3)));
    }
}
