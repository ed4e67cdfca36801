//! Checks of the server's own options, as far as they affect replication.

use super::{Check, Level};

/// Longest name of a member, in bytes.
const NAME_MAX: usize = 31;

/// Checks the options that replication depends on.
pub(super) fn settings(check: &mut Check<'_>) {
    engine(check);
    binlog(check);
    applying(check);
    durability(check);
    let memlock = check.cnf.get("memlock").or(check.cnf.get("locked_in_memory"));
    if let Some(setting) = memlock.filter(|s| s.is_on()) {
        check.at(
            Level::Refused,
            setting,
            "the server does not start: with replication it cannot be locked in memory",
        );
    }
    if check.text("wsrep_node_name", "").len() > NAME_MAX {
        let text = format!("is longer than {NAME_MAX} bytes: the provider refuses it");
        check.about(Level::Refused, "wsrep_node_name", text);
    }
    if check.is_on("wsrep_new_cluster", false) {
        let text = "in a file it makes the server found a new cluster at each start (or fail to start if its log lists other \
                    members): give it once, on the command line, or use galera_new_cluster";
        check.about(Level::Unwise, "wsrep_new_cluster", text);
    }
    if check.cnf.get("wsrep_start_position").is_some() {
        let text = "in a file it sets the same, outdated position of the database at each start: remove it; the member \
                    determines the position by itself";
        check.about(Level::Unwise, "wsrep_start_position", text);
    }
    if let Some(setting) = check.cnf.get("wsrep_notify_cmd").filter(|s| !s.text().is_empty())
        && let Some(program) = setting.text().split_whitespace().next()
        && !check.machine.is_executable(std::path::Path::new(program))
    {
        let text = format!("{program} is not an executable file, so there will be no notifications");
        check.at(Level::Unwise, setting, text);
    }
    if check.text("wsrep_osu_method", check.text("wsrep_OSU_method", "TOI")).eq_ignore_ascii_case("RSU") {
        let text = "as the default of all sessions, RSU changes tables on this member only: set it in single sessions";
        check.about(Level::Unwise, "wsrep_OSU_method", text);
    }
    if check.number("wsrep_trx_fragment_size", 0) > 0 && !check.options.bool("trx.streaming") {
        let text = "the server does not start, because streaming replication is off: remove the setting, or set \
                    trx.streaming=yes in wsrep_provider_options (docs/from-galera.md, Streaming replication)";
        check.about(Level::Refused, "wsrep_trx_fragment_size", text);
    }
    if !check.is_on("wsrep_certify_nonPK", true) {
        let text = "OFF: changes of tables without a primary key fail";
        check.about(Level::Unwise, "wsrep_certify_nonPK", text);
    }
    let forced = check.text("wsrep_forced_binlog_format", "NONE");
    if !["NONE", "ROW"].iter().any(|ok| ok.eq_ignore_ascii_case(forced)) {
        check.about(
            Level::Unwise,
            "wsrep_forced_binlog_format",
            "only rows are replicated safely: remove it",
        );
    }
}

fn engine(check: &mut Check<'_>) {
    let engine = check.text("default_storage_engine", "InnoDB").to_owned();
    if !engine.eq_ignore_ascii_case("InnoDB") {
        let text = format!("new tables use {engine}, whose rows are not replicated: set it to InnoDB");
        check.about(Level::Unwise, "default_storage_engine", text);
    }
    let mode = check.text("innodb_autoinc_lock_mode", "1").to_owned();
    if mode != "2" {
        let text = format!(
            "is {mode}: appliers and clients wait for each other's locks, and may deadlock; set it to 2"
        );
        check.about(Level::Unwise, "innodb_autoinc_lock_mode", text);
    }
    if check.number("innodb_force_recovery", 0) > 0 {
        check.about(
            Level::Unwise,
            "innodb_force_recovery",
            "is for data rescue only: the data of a member with it are not reliable",
        );
    }
    let cache = check.number("query_cache_size", 1 << 20);
    // A configured size turns the query cache on if the type is not configured.
    let sized = check.cnf.get("query_cache_size").is_some() && cache != 1 << 20;
    let kind = check.text("query_cache_type", if sized { "ON" } else { "OFF" }).to_owned();
    if cache > 0 && !["0", "OFF"].iter().any(|off| off.eq_ignore_ascii_case(&kind)) {
        let text = "the query cache is on: each commit of any member acquires its lock; turn it off (query_cache_type = OFF)";
        let option =
            if check.cnf.get("query_cache_size").is_some() { "query_cache_size" } else { "query_cache_type" };
        check.about(Level::Unwise, option, text);
    }
    if check.is_on("event_scheduler", false) {
        let text = "an event runs only on the member where it was made (elsewhere it is SLAVESIDE_DISABLED): if that member \
                    is down, no member runs it until ALTER EVENT … ENABLE on another";
        check.about(Level::Unwise, "event_scheduler", text);
    }
    let encrypts = |name: &str| check.is_on(name, false);
    if let Some(name) =
        ["innodb_encrypt_tables", "innodb_encrypt_log"].into_iter().find(|name| encrypts(name))
    {
        let text = "InnoDB's files are encrypted, but Lockstep's log is not: keep the log on an encrypted disk (log.dir)";
        check.about(Level::Unwise, name, text);
    }
}

/// Whether the binlog is on. The value of log_bin is a file name.
fn has_binlog(check: &Check<'_>) -> bool {
    check
        .cnf
        .get("log_bin")
        .is_some_and(|s| !["0", "OFF"].iter().any(|off| off.eq_ignore_ascii_case(s.text())))
}

fn binlog(check: &mut Check<'_>) {
    let format = check.text("binlog_format", "").to_owned();
    if !format.eq_ignore_ascii_case("ROW") {
        let what = match format.as_str() {
            "" => "is not set, and its default is MIXED",
            other => &format!("is {other}"),
        };
        let text = format!("{what}: the server refuses to start with a provider; set it to ROW");
        check.about(Level::Refused, "binlog_format", text);
    }
    let writes = has_binlog(check);
    let all = check.is_on("log_slave_updates", false);
    if !writes || all {
        return;
    }
    if check.is_on("wsrep_gtid_mode", false) {
        let text = "with a binlog the server does not start unless log_slave_updates = ON";
        check.about(Level::Refused, "wsrep_gtid_mode", text);
    }
    let text = "this binlog lacks the transactions of other members, and so do replicas of it and point-in-time recoveries \
                from it: set log_slave_updates = ON";
    check.about(Level::Unwise, "log_bin", text);
}

fn applying(check: &mut Check<'_>) {
    let threads = check.number("wsrep_slave_threads", 1);
    let processors = check.machine.processors() as u64;
    if threads <= 1 {
        let text = format!(
            "one applier applies one transaction of other members at a time, and lags under load: set it to {} on this machine",
            (processors * 2).clamp(2, 32)
        );
        check.about(Level::Unwise, "wsrep_slave_threads", text);
    } else if threads > 128.max(processors * 16) {
        let text = format!(
            "{threads} appliers on {processors} processors spend more time on waits than on work: lower it"
        );
        check.about(Level::Unwise, "wsrep_slave_threads", text);
    }
}

/// An acknowledged transaction is on the disks of a majority's logs, so InnoDB need not flush at each commit.
fn durability(check: &mut Check<'_>) {
    let flush = check.number("innodb_flush_log_at_trx_commit", 1);
    let binlog = has_binlog(check);
    if flush == 1 {
        if check.cnf.get("innodb_flush_log_at_trx_commit").is_some() && !binlog {
            let text = "0 is as safe here, and faster: acknowledged transactions are on disk in the logs of a majority. After a \
                        crash the member recovers from there the transactions that InnoDB had not flushed";
            check.about(Level::Note, "innodb_flush_log_at_trx_commit", text);
        }
    } else if binlog {
        let text = format!(
            "{flush} is safe for the database (the logs of a majority have all acknowledged transactions), but not with \
             log_bin: after a crash this member's binlog and its tables differ; set it to 1 if replicas or backups use that \
             binlog"
        );
        check.about(Level::Unwise, "innodb_flush_log_at_trx_commit", text);
    }
}
