//! Accounts and statements of a member's server (`--upstream`).
//!
//! A proof of a password is worth nothing at another server, because it answers a random challenge. So the hashes of
//! passwords are read from `mysql.global_priv`, and checked here. Only accounts with the privilege REPLICATION SLAVE sign in.

use super::options::UpstreamConfig;
use crate::log_member::MessageLog;
use lockstep_binlog::wire::accounts::{Account, HostPattern, parse_hash, read_login};
use lockstep_binlog::wire::sql_client::{ClientTls, SqlClient, SqlClientError, Target, TextRows};
use lockstep_binlog::wire::{Accounts, handshake};
use lockstep_node::Level;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How often the accounts are read.
const EVERY: Duration = Duration::from_secs(5);
/// REPLICATION SLAVE in the field `access`.
const REPLICATION_SLAVE: u64 = 1 << 19;
const QUERY: &str = "SELECT User, Host, Priv FROM mysql.global_priv";

/// How long each step of a connection to the upstream may take. A statement may take as long.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The upstream with its two accounts.
#[derive(Debug)]
pub(super) struct Upstream {
    /// Reads accounts.
    pub(super) accounts: Target,
    /// Executes statements.
    pub(super) statements: Option<Target>,
}

impl Upstream {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(super) fn open(config: UpstreamConfig) -> Result<Upstream, String> {
        let tls = config.authority.as_deref().map(ClientTls::load).transpose();
        let tls = tls.map_err(|e| e.to_string())?.map(Arc::new);
        let target = |file: &Path| {
            let (user, password) = read_login(file).map_err(|e| e.to_string())?;
            let address = config.address.clone();
            Ok::<_, String>(Target { address, user, password, tls: tls.clone(), timeout: TIMEOUT })
        };
        Ok(Upstream {
            accounts: target(&config.account)?,
            statements: config.sql_account.as_deref().map(target).transpose()?,
        })
    }
}

/// Keeps the accounts up to date, on a thread of its own. Dropping it ends the thread soon: an upstream that hangs does not
/// delay the end of this program.
#[derive(Debug)]
pub(super) struct AccountReader {
    _stop: Sender<()>,
}

impl AccountReader {
    /// Begins. That the upstream does not answer is only a warning.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn start(
        target: Target,
        accounts: Accounts,
        log: Arc<MessageLog>,
    ) -> Result<AccountReader, String> {
        let (stop, stopped) = channel();
        let mut step = Step { target, accounts, log, client: None, failed: None, known: None };
        let work = move || {
            loop {
                step.run();
                if stopped.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("ls-accounts".into()).spawn(work);
        thread.map_err(|e| format!("cannot start a thread that reads accounts: {e}"))?;
        Ok(AccountReader { _stop: stop })
    }
}

/// One look at the upstream.
struct Step {
    target: Target,
    accounts: Accounts,
    log: Arc<MessageLog>,
    client: Option<SqlClient>,
    /// The last error, so that it is said once.
    failed: Option<String>,
    known: Option<TextRows>,
}

impl Step {
    fn run(&mut self) {
        let rows = match self.read() {
            Ok(rows) => rows,
            Err(error) => {
                self.client = None;
                let text = format!(
                    "cannot read the accounts of the upstream {:?}: {error}; those read before count",
                    self.target
                );
                if self.failed.as_ref() != Some(&text) {
                    self.log.write(Level::Warn, &text);
                }
                self.failed = Some(text);
                return;
            }
        };
        let again = self.failed.take().is_some();
        if self.known.as_ref() == Some(&rows) && !again {
            return;
        }
        let (accounts, notes) = parse(&rows);
        let count = accounts.iter().filter(|account| account.hash.is_some()).count();
        let text = format!("{count} accounts of the upstream {:?} may replicate", self.target);
        self.log.write(Level::Info, &text);
        for note in notes {
            self.log.write(Level::Warn, &note);
        }
        self.accounts.set_upstream(accounts);
        self.known = Some(rows);
    }

    fn read(&mut self) -> Result<TextRows, SqlClientError> {
        let client = match &mut self.client {
            Some(client) => client,
            None => self.client.insert(SqlClient::connect(&self.target)?),
        };
        client.rows(QUERY)
    }
}

/// The accounts, and notes about those that have the privilege and cannot sign in here. An account that may not replicate or
/// cannot sign in is kept: it counts before a more general account of its name, as on the upstream, and refuses.
fn parse(rows: &TextRows) -> (Vec<Account>, Vec<String>) {
    let (mut accounts, mut notes) = (Vec::new(), Vec::new());
    for row in rows {
        let [Some(user), Some(host), Some(privileges)] = row.as_slice() else { continue };
        // Every server has administrators that sign in on its own machine only.
        if host == "localhost" {
            continue;
        }
        let pattern = HostPattern::parse(host);
        let mut note = |why: &str| {
            notes.push(format!("the upstream's account '{user}'@'{host}' cannot sign in here: {why}"));
        };
        let (hash, needs_tls) = match rights(user, privileges) {
            Ok(Rights::Role) => continue,
            Ok(Rights::None) => (None, false),
            Ok(Rights::Replicates { hash, needs_tls }) => {
                if pattern.is_none() {
                    note("host names are not looked up: use an address or a pattern of one");
                }
                (Some(hash), needs_tls)
            }
            Err(why) => {
                note(&why);
                (None, false)
            }
        };
        accounts.extend(pattern.map(|host| Account { user: user.clone(), host, hash, needs_tls }));
    }
    (accounts, notes)
}

/// What a row of `mysql.global_priv` allows here.
enum Rights {
    /// It is no account.
    Role,
    /// The account may not replicate.
    None,
    /// It may, with the password of this hash.
    Replicates { hash: [u8; handshake::HASH_LEN], needs_tls: bool },
}

/// The rights of a row. An error says why an account that may replicate cannot sign in.
fn rights(user: &str, privileges: &str) -> Result<Rights, String> {
    let fields: Value = serde_json::from_str(privileges).map_err(|e| format!("its row is no JSON: {e}"))?;
    let is = |name: &str| fields[name].as_bool().unwrap_or(false);
    let access = fields["access"].as_u64().unwrap_or(0);
    if is("is_role") {
        return Ok(Rights::Role);
    }
    if is("account_locked") || access & REPLICATION_SLAVE == 0 || user.is_empty() {
        return Ok(Rights::None);
    }
    let password_of = |method: &Value| {
        let plugin = method["plugin"].as_str().unwrap_or("mysql_native_password");
        let hash = method["authentication_string"].as_str().unwrap_or_default();
        let hex = hash.strip_prefix('*').filter(|_| plugin.as_bytes() == handshake::METHOD);
        hex.and_then(parse_hash)
    };
    let hash = match fields["auth_or"].as_array() {
        None => password_of(&fields),
        // An empty object stands for the fields of the account itself.
        Some(methods) => methods.iter().find_map(|method| match method.as_object() {
            Some(object) if object.is_empty() => password_of(&fields),
            _ => password_of(method),
        }),
    };
    let hash = hash.ok_or("it has no password of mysql_native_password")?;
    match fields["ssl_type"].as_u64().unwrap_or(0) {
        kind @ (0 | 1) => Ok(Rights::Replicates { hash, needs_tls: kind == 1 }),
        _ => Err("REQUIRE X509 and its like are not supported: REQUIRE SSL is".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "*14E65567ABDB5135D0CFD9A70B3032C179A49EE7";

    fn row(user: &str, host: &str, privileges: &str) -> Vec<Option<String>> {
        [user, host, privileges].map(|text| Some(text.replace("HASH", HASH))).to_vec()
    }

    #[test]
    fn only_accounts_that_may_replicate_sign_in() {
        let native = r#"{"access":524288,"plugin":"mysql_native_password","authentication_string":"HASH"}"#;
        let rows = vec![
            row("copy", "%", native),
            row("near", "10.0.%", &native.replace("524288", "1073741823")),
            row("tls", "%", &native.replace("{", r#"{"ssl_type":1,"#)),
            row(
                "both",
                "10.0.0.7",
                r#"{"access":524288,"plugin":"mysql_native_password","authentication_string":"HASH","auth_or":[{},{"plugin":"unix_socket"}]}"#,
            ),
            row("reader", "%", &native.replace("524288", "1")),
            row("locked", "%", &native.replace("{", r#"{"account_locked":true,"#)),
            row("", "10.0.0.%", native),
            row("role", "", &native.replace("{", r#"{"is_role":true,"#)),
            row("named", "db7.example.org", native),
            row("x509", "%", &native.replace("{", r#"{"ssl_type":2,"#)),
            row("root", "localhost", r#"{"access":18446744073709551615,"plugin":"unix_socket"}"#),
            row("empty", "%", &native.replace("HASH", "")),
            row("socket", "%", r#"{"access":524288,"plugin":"unix_socket"}"#),
            row("broken", "%", "{"),
        ];
        let (accounts, notes) = parse(&rows);
        let of = |may_sign_in: bool| -> Vec<(&str, bool)> {
            let found = accounts.iter().filter(|account| account.hash.is_some() == may_sign_in);
            found.map(|account| (account.user.as_str(), account.needs_tls)).collect()
        };
        assert_eq!(of(true), [("copy", false), ("near", false), ("tls", true), ("both", false)]);
        let refusing = ["reader", "locked", "", "x509", "empty", "socket", "broken"];
        assert_eq!(of(false), refusing.map(|user| (user, false)));
        let named: Vec<&str> = notes.iter().filter_map(|note| note.split('\'').nth(2)).collect();
        assert_eq!(named, ["named", "x509", "empty", "socket", "broken"]);
    }
}
