//! The options of `lockstep binlog serve`: from the command line, and from a file.

use super::member_feed::plan_of_reader;
use super::retention::Retention;
use crate::cfg::{self, Size, fill};
use crate::log_member::{MemberArgs, Plan};
use clap::Args;
use lockstep_binlog::wire::TlsFiles;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

/// The default directory.
const DEFAULT_DIR: &str = "/var/lib/lockstep/binlog";
/// The default name of the member.
const DEFAULT_NAME: &str = "binlog";
/// The default of `--keep`.
const DEFAULT_KEEP: Size = Size(20 << 30);
/// The default of `--max-connections`.
const DEFAULT_CONNECTIONS: usize = 512;

#[derive(Args, Debug, Default, Clone)]
pub(crate) struct ServeArgs {
    /// Addresses of members: gcomm://HOST[:PORT][,HOST[:PORT]]..., as in wsrep_cluster_address.
    #[arg(short, long, value_name = "GCOMM")]
    address: Option<String>,
    /// Name of the cluster, as in wsrep_cluster_name.
    #[arg(short, long, value_name = "NAME")]
    group: Option<String>,
    /// Name of this member [default: binlog].
    #[arg(short, long)]
    name: Option<String>,
    /// Directory of the log and of the binlog files [default: /var/lib/lockstep/binlog].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Provider options, as in wsrep_provider_options: gmcast.listen_addr, base_host, status.address, ...
    #[arg(short, long)]
    options: Option<String>,
    /// Address for replicas.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// A file with one account a line: a name, a blank, and a password. Nobody else may read it. SIGHUP reloads it.
    #[arg(long, value_name = "FILE")]
    accounts: Option<PathBuf>,
    /// A member's server, HOST:PORT. Its accounts with REPLICATION SLAVE and a password of mysql_native_password may sign in.
    #[arg(long, value_name = "HOST:PORT")]
    upstream: Option<String>,
    /// A file with the name and the password of an account that may read mysql.global_priv on the upstream.
    #[arg(long, value_name = "FILE")]
    upstream_account: Option<PathBuf>,
    /// A file with another account of the upstream: it executes consumers' statements that are not about the binlog.
    #[arg(long, value_name = "FILE")]
    upstream_sql_account: Option<PathBuf>,
    /// The authority of the upstream's certificate, in PEM: connect with TLS.
    #[arg(long, value_name = "FILE")]
    upstream_ssl_ca: Option<PathBuf>,
    /// The domain of the GTIDs: the same on every instance [default: 1].
    #[arg(long, value_name = "NUMBER")]
    gtid_domain_id: Option<u32>,
    /// Keep at least the last binlog files of this size together; remove older ones [default: 20G].
    #[arg(long, value_name = "SIZE")]
    keep: Option<Size>,
    /// Keep older files for a connected consumer until it is so far behind; then drop it [default: twice --keep].
    #[arg(long, value_name = "SIZE")]
    keep_connected: Option<Size>,
    /// Connections at the same time; another one is refused with error 1040 [default: 512].
    #[arg(long, value_name = "NUMBER")]
    max_connections: Option<usize>,
    /// Certificate for consumers with TLS, in PEM. SIGHUP reloads it, and key and authority.
    #[arg(long, value_name = "FILE")]
    ssl_cert: Option<PathBuf>,
    /// The certificate's private key, in PEM without a password.
    #[arg(long, value_name = "FILE")]
    ssl_key: Option<PathBuf>,
    /// Authorities of consumers' certificates, in PEM. A consumer without a certificate is accepted.
    #[arg(long, value_name = "FILE")]
    ssl_ca: Option<PathBuf>,
    /// Refuse consumers without TLS.
    #[arg(long)]
    require_secure_transport: bool,
    /// Write log lines to this file instead of standard error. SIGHUP reopens it and reloads certificates.
    #[arg(short, long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// A file with lines `option = value`, with the names of these options. The command line takes precedence.
    #[arg(short, long, value_name = "FILE")]
    cfg: Option<PathBuf>,
}

/// A member's server, for accounts and statements.
#[derive(Debug)]
pub(super) struct UpstreamConfig {
    pub(super) address: String,
    /// The file of the account that reads accounts.
    pub(super) account: PathBuf,
    /// The file of the account that executes statements.
    pub(super) sql_account: Option<PathBuf>,
    pub(super) authority: Option<PathBuf>,
}

/// The options, validated.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) plan: Plan,
    pub(super) listen: SocketAddr,
    pub(super) accounts: Option<PathBuf>,
    pub(super) upstream: Option<UpstreamConfig>,
    pub(super) domain: u32,
    pub(super) retention: Retention,
    pub(super) max_connections: usize,
    pub(super) tls: Option<TlsFiles>,
    pub(super) require_tls: bool,
}

impl ServeArgs {
    /// Adds the settings of the configuration file. The command line takes precedence.
    fn complete(mut self) -> Result<ServeArgs, String> {
        let Some(path) = self.cfg.clone() else { return Ok(self) };
        cfg::read(&path, |key, value| {
            // As in a server's my.cnf, `_` and `-` are the same.
            let key = key.replace('_', "-");
            match key.as_str() {
                "address" => fill(&mut self.address, &key, value),
                "group" => fill(&mut self.group, &key, value),
                "name" => fill(&mut self.name, &key, value),
                "dir" => fill(&mut self.dir, &key, value),
                "options" => fill(&mut self.options, &key, value),
                "listen" => fill(&mut self.listen, &key, value),
                "accounts" => fill(&mut self.accounts, &key, value),
                "upstream" => fill(&mut self.upstream, &key, value),
                "upstream-account" => fill(&mut self.upstream_account, &key, value),
                "upstream-sql-account" => fill(&mut self.upstream_sql_account, &key, value),
                "upstream-ssl-ca" => fill(&mut self.upstream_ssl_ca, &key, value),
                "gtid-domain-id" => fill(&mut self.gtid_domain_id, &key, value),
                "keep" => fill(&mut self.keep, &key, value),
                "keep-connected" => fill(&mut self.keep_connected, &key, value),
                "max-connections" => fill(&mut self.max_connections, &key, value),
                "ssl-cert" => fill(&mut self.ssl_cert, &key, value),
                "ssl-key" => fill(&mut self.ssl_key, &key, value),
                "ssl-ca" => fill(&mut self.ssl_ca, &key, value),
                "log" => fill(&mut self.log, &key, value),
                "require-secure-transport" => {
                    self.require_secure_transport |= cfg::is_on(value);
                    Ok(())
                }
                other => {
                    Err(format!("unknown option '{other}'; `lockstep binlog serve --help` lists the options"))
                }
            }
        })?;
        Ok(self)
    }

    /// Validates the options.
    ///
    /// # Errors
    /// A text for people.
    pub(super) fn config(self) -> Result<Config, String> {
        let args = self.complete()?;
        let plan = plan_of_reader(MemberArgs {
            what: "binlog",
            address: args.address,
            group: args.group,
            name: args.name.unwrap_or_else(|| DEFAULT_NAME.into()),
            options: args.options,
            dir: args.dir.unwrap_or_else(|| DEFAULT_DIR.into()),
            log: args.log,
            ..MemberArgs::default()
        })?;
        let listen = args.listen.ok_or("the address for replicas is missing: give --listen HOST:PORT")?;
        let found = listen.to_socket_addrs().ok().and_then(|mut found| found.next());
        let listen = found.ok_or_else(|| format!("--listen {listen} is no address: give HOST:PORT"))?;
        let upstream = match (args.upstream, args.upstream_account) {
            (Some(address), Some(account)) => Some(UpstreamConfig {
                address,
                account,
                sql_account: args.upstream_sql_account,
                authority: args.upstream_ssl_ca,
            }),
            (None, None) => None,
            _ => return Err("--upstream and --upstream-account belong together: give both".into()),
        };
        if args.accounts.is_none() && upstream.is_none() {
            return Err(
                "the accounts of consumers are missing: give --accounts FILE, or --upstream HOST:PORT".into(),
            );
        }
        let tls = match (args.ssl_cert, args.ssl_key, args.ssl_ca) {
            (Some(cert), Some(key), ca) => {
                Some(TlsFiles { cert, key, ca, require_client_certificate: false })
            }
            (None, None, None) => None,
            _ => return Err("--ssl-cert and --ssl-key belong together: give both".into()),
        };
        if args.require_secure_transport && tls.is_none() {
            return Err(
                "--require-secure-transport needs a certificate: give --ssl-cert and --ssl-key".into()
            );
        }
        let retention = Retention::new(args.keep.unwrap_or(DEFAULT_KEEP), args.keep_connected)?;
        Ok(Config {
            plan,
            listen,
            accounts: args.accounts,
            upstream,
            domain: args.gtid_domain_id.unwrap_or(1),
            retention,
            max_connections: args.max_connections.unwrap_or(DEFAULT_CONNECTIONS),
            tls,
            require_tls: args.require_secure_transport,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::Parser;
    use std::path::Path;

    const LEAST: &str = "-a gcomm://a -g shop --listen 127.0.0.1:3307 --accounts /accounts";

    fn config(line: &str) -> Result<Config, String> {
        let line = format!("lockstep binlog serve {line}");
        match Cli::try_parse_from(line.split(' ')).map_err(|e| e.to_string())?.command {
            crate::Command::Binlog(args) => args.serve_args().config(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn least_options_have_defaults() {
        let config = config(LEAST).unwrap();
        assert_eq!(
            (config.plan.name.as_str(), config.plan.dir.as_path()),
            ("binlog", Path::new(DEFAULT_DIR))
        );
        assert_eq!((config.domain, config.max_connections, config.require_tls), (1, 512, false));
        assert_eq!(config.retention, Retention { keep: 20 << 30, keep_connected: 40 << 30 });
        assert_eq!(config.tls, None);
    }

    #[test]
    fn missing_and_contradictory_options_are_named() {
        let refused = |line: &str| config(line).unwrap_err();
        assert!(refused("-a gcomm://a -g shop --accounts /accounts").contains("--listen"));
        assert!(refused("-a gcomm://a -g shop --listen 127.0.0.1:1").contains("--accounts"));
        assert!(refused(&format!("{LEAST} --upstream db1:3306")).contains("--upstream-account"));
        assert!(refused(&format!("{LEAST} --ssl-cert /x")).contains("--ssl-key"));
        assert!(refused(&format!("{LEAST} --require-secure-transport")).contains("--ssl-cert"));
        assert!(refused(&format!("{LEAST} --keep 2G --keep-connected 1G")).contains("--keep-connected"));
        assert!(refused(&format!("{LEAST} --keep 2X")).contains("20G"));
    }

    #[test]
    fn file_supplies_all_options_and_the_command_line_wins() {
        let path = std::env::temp_dir().join(format!("lockstep-binlog-cfg-{}", std::process::id()));
        let text = "# of an instance\n[binlog]\naddress = gcomm://a,b\ngroup = \"shop\"\nname = b1\ndir = /x # here\n\
                    options = gmcast.listen_addr=tcp://127.0.0.1:9\nlisten = 127.0.0.1:3307\naccounts = /accounts\n\
                    gtid_domain_id = 7\nkeep = 3G\nkeep-connected = 5G\nmax-connections = 9\nssl-cert = /cert\n\
                    ssl-key = /key\nssl_ca = /ca\nrequire-secure-transport = yes\nlog = /log\n";
        std::fs::write(&path, text).unwrap();
        let line = format!("--cfg {} --keep 4G --name b2", path.display());
        let found = config(&line).unwrap();
        assert_eq!((found.plan.name.as_str(), found.plan.group.as_str()), ("b2", "shop"));
        assert_eq!(found.plan.options.listen(), "tcp://127.0.0.1:9");
        assert_eq!(
            (found.plan.dir.as_path(), found.plan.log.as_deref()),
            (Path::new("/x"), Some(Path::new("/log")))
        );
        assert_eq!((found.domain, found.max_connections, found.require_tls), (7, 9, true));
        assert_eq!(found.retention, Retention { keep: 4 << 30, keep_connected: 5 << 30 });
        let tls = TlsFiles {
            cert: "/cert".into(),
            key: "/key".into(),
            ca: Some("/ca".into()),
            require_client_certificate: false,
        };
        assert_eq!((found.tls, found.accounts.as_deref()), (Some(tls), Some(Path::new("/accounts"))));
        for (text, error) in
            [("kep = 1G\n", "line 1: unknown option 'kep'"), ("\nkeep = much\n", "line 2: keep")]
        {
            std::fs::write(&path, text).unwrap();
            let found = config(&line.replace("--keep 4G ", "")).unwrap_err();
            assert!(found.contains(error), "{found}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
