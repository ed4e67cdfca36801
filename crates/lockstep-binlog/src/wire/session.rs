//! Answers the statements of a connection, and keeps what they set.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::command::{DUMP_ANNOTATE, DUMP_NON_BLOCK, Dump};
use super::consumers::Consumer;
use super::reply::{Rows, SqlError};
use super::statement::{Assignment, Expr, Statement, like, recognise};
use crate::event::Checksum;
use crate::gtid::ReplicaState;
use crate::library::Library;

/// Values for the statements of connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The version, such as `10.11.0-MariaDB-lockstep`. Replicas use GTIDs with version 10 or later.
    pub version: String,
    /// The stream's server id. A replica must have another one.
    pub server_id: u32,
    /// The stream's domain.
    pub domain: u32,
    /// Whether replicas are asked to acknowledge event groups. Acknowledgements appear in status, and nobody waits for them.
    pub semi_sync: bool,
    /// Further system variables, names in lower case.
    pub variables: Vec<(String, String)>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            version: "10.11.0-MariaDB-lockstep".into(),
            server_id: 1,
            domain: 1,
            semi_sync: true,
            variables: Vec::new(),
        }
    }
}

/// The sources of answers.
pub struct Sources<'a> {
    /// The values that do not change.
    pub settings: &'a Settings,
    /// The files.
    pub library: &'a Library,
    /// Whether TLS is offered.
    pub with_tls: bool,
    /// The connections, for `SHOW SLAVE HOSTS`.
    pub consumers: &'a dyn Fn() -> Vec<Consumer>,
}

/// The error of a statement that is none of the list.
pub const NOT_ANSWERED: u16 = 1235;

/// The answer to a statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// OK.
    Ok,
    /// A result set.
    Rows(Rows),
}

/// User variables of one connection, and bytes of a value.
const VARIABLES_MAX: usize = 64;
const VALUE_MAX: usize = 64 << 10;
/// A shorter heartbeat period would be a flood.
const HEARTBEAT_MIN: Duration = Duration::from_millis(1);

/// Capabilities of consumers, as `@mariadb_slave_capability` gives them.
pub mod knows {
    /// Annotate_rows events.
    pub const ANNOTATE: u64 = 1;
    /// Events may be left out.
    pub const HOLES: u64 = 2;
    /// Binlog_checkpoint events.
    pub const CHECKPOINT: u64 = 3;
    /// GTIDs.
    pub const GTID: u64 = 4;
}

/// A consumer's request, with the settings of its statements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamOptions {
    /// The GTID state to go on from; `None`: file and position.
    pub gtids: Option<ReplicaState>,
    /// The GTIDs to end at.
    pub until: Option<ReplicaState>,
    /// See [`knows`].
    pub capability: u64,
    /// The consumer has set `@master_binlog_checksum`, so it understands checksums. The value is that of the events
    /// before the first format description.
    pub checksum: Option<Checksum>,
    /// Send a heartbeat after so long without an event.
    pub heartbeat: Option<Duration>,
    /// Send Annotate_rows events.
    pub annotate: bool,
    /// End at the end of the stream.
    pub non_block: bool,
    /// Leave out events whose session had set `skip_replication`.
    pub skip_replication: bool,
    /// Events begin with the two bytes of semi-synchronous replication.
    pub semi_sync: bool,
}

/// One connection's variables.
#[derive(Default, Debug)]
pub struct Session {
    /// The connection's number.
    pub connection_id: u64,
    /// User variables, names in lower case.
    user: BTreeMap<String, Option<String>>,
    skip_replication: bool,
}

impl Session {
    /// A connection's session.
    pub fn new(connection_id: u64) -> Session {
        Session { connection_id, ..Session::default() }
    }

    /// Answers a statement.
    ///
    /// # Errors
    /// [`SqlError`] for the client.
    pub fn query(&mut self, sql: &[u8], from: &Sources<'_>) -> Result<Answer, SqlError> {
        match recognise(sql) {
            Some(Statement::Set(assignments)) => {
                for assignment in assignments {
                    self.assign(assignment, from)?;
                }
                Ok(Answer::Ok)
            }
            Some(Statement::Select(list)) => {
                let row = list.into_iter().map(|(name, expr)| Ok((name, self.value(&expr, from)?)));
                Ok(Answer::Rows(Rows::one(row.collect::<Result<_, SqlError>>()?)))
            }
            Some(Statement::ShowVariables(pattern)) => {
                Ok(Answer::Rows(self.show_variables(pattern.as_deref(), from)))
            }
            Some(Statement::ShowMasterStatus) => {
                let columns = ["File", "Position", "Binlog_Do_DB", "Binlog_Ignore_DB"];
                let row = from
                    .library
                    .files()
                    .pop()
                    .map(|(file, size)| vec![file, size.to_string(), String::new(), String::new()]);
                Ok(table(&columns, row.into_iter().collect()))
            }
            Some(Statement::ShowBinaryLogs) => {
                let rows = from.library.files().into_iter().map(|(file, size)| vec![file, size.to_string()]);
                Ok(table(&["Log_name", "File_size"], rows.collect()))
            }
            Some(Statement::ShowReplicas) => Ok(show_replicas(from)),
            Some(Statement::ShowWarnings) => Ok(table(&["Level", "Code", "Message"], Vec::new())),
            Some(Statement::Empty) => {
                Err(SqlError { code: 1065, state: b"42000", text: "Query was empty".into() })
            }
            None => {
                let shown: String =
                    String::from_utf8_lossy(sql).chars().filter(|c| !c.is_control()).take(200).collect();
                let text = format!(
                    "This is a binlog server, which answers only what replicas and binlog tools ask. It does not know: {shown}"
                );
                Err(SqlError { code: NOT_ANSWERED, state: b"42000", text })
            }
        }
    }

    fn assign(&mut self, assignment: Assignment, from: &Sources<'_>) -> Result<(), SqlError> {
        match assignment {
            Assignment::Ignored => Ok(()),
            Assignment::User(name, expr) => {
                let value = self.value(&expr, from)?;
                check_user_variable(&name, value.as_deref())?;
                if !self.user.contains_key(&name) && self.user.len() >= VARIABLES_MAX
                    || value.as_ref().is_some_and(|value| value.len() > VALUE_MAX)
                {
                    return Err(SqlError::new(1041, "Too many or too long user variables"));
                }
                self.user.insert(name, value);
                Ok(())
            }
            Assignment::Session(name, expr) => {
                let value = self.value(&expr, from)?;
                match name.as_str() {
                    "skip_replication" => {
                        self.skip_replication =
                            matches!(value.as_deref(), Some("1" | "ON" | "on" | "TRUE" | "true"));
                    }
                    // They have no effect on a stream.
                    "autocommit"
                    | "sql_mode"
                    | "time_zone"
                    | "wait_timeout"
                    | "interactive_timeout"
                    | "net_read_timeout"
                    | "net_write_timeout"
                    | "sql_log_bin"
                    | "character_set_client"
                    | "character_set_results"
                    | "character_set_connection"
                    | "collation_connection"
                    | "sql_select_limit"
                    | "max_statement_time"
                    | "session_track_schema" => {}
                    _ => return Err(unknown_variable(&name)),
                }
                Ok(())
            }
        }
    }

    fn value(&self, expr: &Expr, from: &Sources<'_>) -> Result<Option<String>, SqlError> {
        Ok(match expr {
            Expr::Literal(text) | Expr::Text(text) => Some(text.clone()),
            Expr::Null | Expr::Database => None,
            Expr::User(name) => self.user.get(name).cloned().flatten(),
            Expr::System(name) => {
                let variables = self.variables(from);
                let found = variables.into_iter().find(|(known, _)| known == name);
                Some(found.ok_or_else(|| unknown_variable(name))?.1)
            }
            Expr::UnixTimestamp => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Some(now.as_secs().to_string())
            }
            Expr::Version => Some(from.settings.version.clone()),
            Expr::ConnectionId => Some(self.connection_id.to_string()),
            // NULL for an impossible position, as MariaDB has it.
            Expr::BinlogGtidPos(file, offset) => {
                let start = from.library.position_in(file, (*offset).max(4));
                start.ok().map(|start| start.state.to_replica().to_string())
            }
        })
    }

    fn variables(&self, from: &Sources<'_>) -> Vec<(String, String)> {
        let Settings { version, server_id, domain, semi_sync, variables } = from.settings;
        let on = |on: bool| if on { "ON" } else { "OFF" }.to_owned();
        let state = from.library.state_at_end();
        let fixed = [
            ("auto_increment_increment", "1"),
            ("autocommit", "1"),
            ("binlog_checksum", "CRC32"),
            ("binlog_format", "ROW"),
            ("character_set_client", "utf8mb4"),
            ("character_set_connection", "utf8mb4"),
            ("character_set_results", "utf8mb4"),
            ("character_set_server", "utf8mb4"),
            ("collation_connection", "utf8mb4_general_ci"),
            ("collation_server", "utf8mb4_general_ci"),
            ("gtid_strict_mode", "ON"),
            ("have_ssl", if from.with_tls { "YES" } else { "DISABLED" }),
            ("init_connect", ""),
            ("interactive_timeout", "28800"),
            ("log_bin", "ON"),
            ("lower_case_table_names", "0"),
            ("max_allowed_packet", "1073741824"),
            ("net_write_timeout", "60"),
            ("sql_mode", ""),
            ("system_time_zone", "UTC"),
            ("time_zone", "SYSTEM"),
            ("wait_timeout", "28800"),
        ];
        let mut all: Vec<(String, String)> =
            fixed.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        all.extend([
            ("gtid_binlog_pos".to_owned(), state.to_replica().to_string()),
            ("gtid_binlog_state".to_owned(), state.to_string()),
            ("gtid_current_pos".to_owned(), state.to_replica().to_string()),
            ("gtid_domain_id".to_owned(), domain.to_string()),
            ("rpl_semi_sync_master_enabled".to_owned(), on(*semi_sync)),
            ("server_id".to_owned(), server_id.to_string()),
            ("skip_replication".to_owned(), on(self.skip_replication)),
            ("version".to_owned(), version.clone()),
            ("version_comment".to_owned(), "Lockstep binlog server".to_owned()),
        ]);
        // The caller's values replace these.
        all.retain(|(name, _)| variables.iter().all(|(own, _)| own != name));
        all.extend(variables.iter().cloned());
        all.sort();
        all
    }

    fn show_variables(&self, pattern: Option<&str>, from: &Sources<'_>) -> Rows {
        let mut all = self.variables(from);
        all.retain(|(name, _)| pattern.is_none_or(|pattern| like(name, pattern)));
        Rows {
            columns: vec!["Variable_name".into(), "Value".into()],
            rows: all.into_iter().map(|(name, value)| vec![Some(name), Some(value)]).collect(),
        }
    }

    fn user(&self, name: &str) -> Option<&str> {
        self.user.get(name)?.as_deref()
    }

    fn number(&self, name: &str) -> u64 {
        self.user(name).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    fn gtids(&self, name: &str) -> Result<Option<ReplicaState>, SqlError> {
        let Some(value) = self.user(name) else { return Ok(None) };
        value.parse().map(Some).map_err(|e| SqlError::fatal(format!("@{name}: {e}")))
    }

    /// The consumer's request, with the settings of its statements.
    ///
    /// # Errors
    /// [`SqlError`] if a variable has no valid value.
    pub fn stream_options(&self, dump: &Dump, semi_sync: bool) -> Result<StreamOptions, SqlError> {
        let checksum = self.user("master_binlog_checksum").map(|value| {
            if value.eq_ignore_ascii_case("CRC32") || value == "1" { Checksum::Crc32 } else { Checksum::None }
        });
        let heartbeat = Duration::from_nanos(self.number("master_heartbeat_period"));
        Ok(StreamOptions {
            gtids: self.gtids("slave_connect_state")?,
            until: self.gtids("slave_until_gtid")?,
            capability: self.number("mariadb_slave_capability"),
            checksum,
            heartbeat: (!heartbeat.is_zero()).then(|| heartbeat.max(HEARTBEAT_MIN)),
            annotate: dump.flags & DUMP_ANNOTATE != 0,
            non_block: dump.flags & DUMP_NON_BLOCK != 0 || dump.server_id == 0,
            skip_replication: self.skip_replication,
            semi_sync: semi_sync && self.number("rpl_semi_sync_slave") != 0,
        })
    }
}

/// A malformed value is refused when it is set, not when the stream begins.
fn check_user_variable(name: &str, value: Option<&str>) -> Result<(), SqlError> {
    let valid = match (name, value) {
        (_, None) => true,
        ("slave_connect_state" | "slave_until_gtid", Some(value)) => match value.parse::<ReplicaState>() {
            Ok(_) => true,
            Err(e) => return Err(SqlError::new(1105, format!("@{name}: {e}"))),
        },
        ("master_heartbeat_period" | "mariadb_slave_capability", Some(value)) => value.parse::<u64>().is_ok(),
        _ => true,
    };
    if valid { Ok(()) } else { Err(SqlError::new(1231, format!("@{name} has no valid value"))) }
}

fn unknown_variable(name: &str) -> SqlError {
    let name: String = name.chars().take(64).collect();
    SqlError::new(1193, format!("Unknown system variable '{name}'"))
}

fn table(columns: &[&str], rows: Vec<Vec<String>>) -> Answer {
    Answer::Rows(Rows {
        columns: columns.iter().map(|name| (*name).to_owned()).collect(),
        rows: rows.into_iter().map(|row| row.into_iter().map(Some).collect()).collect(),
    })
}

fn show_replicas(from: &Sources<'_>) -> Answer {
    let replicas = (from.consumers)().into_iter().filter_map(|consumer| {
        let register = consumer.register?;
        let host = if register.host.is_empty() { consumer.address.ip().to_string() } else { register.host };
        let (id, port) = (register.server_id.to_string(), register.port.to_string());
        Some(vec![id, host, port, from.settings.server_id.to_string()])
    });
    table(&["Server_id", "Host", "Port", "Master_id"], replicas.collect())
}
