//! The configuration of one server: everything in its `my.cnf`.

use std::fmt::{Debug, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::error::Result;

/// How a joiner gets a copy of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SstMethod {
    /// The donor blocks writes while rsync runs.
    Rsync,
    /// The donor goes on.
    Mariabackup,
}

impl SstMethod {
    /// The server's name of it.
    pub fn name(self) -> &'static str {
        match self {
            SstMethod::Rsync => "rsync",
            SstMethod::Mariabackup => "mariabackup",
        }
    }
}

/// The replication part of a server's configuration.
#[derive(Debug, Clone)]
pub struct Wsrep {
    /// The provider's file.
    pub provider: PathBuf,
    /// `wsrep_cluster_name`.
    pub cluster_name: String,
    /// `host:port` of every member, as written into `wsrep_cluster_address`.
    pub peers: Vec<String>,
    /// Host name or address (IPv6 without brackets) under which the others reach this member.
    pub host: String,
    /// Address that it listens on for them.
    pub listen: String,
    /// The address to listen on for other members. The next port serves incremental transfers (Galera's).
    pub peer_port: u16,
    /// The address to receive a copy of the database.
    pub sst_port: u16,
    /// How it receives it.
    pub sst_method: SstMethod,
    /// `wsrep_sst_auth`: with whose rights a donor runs mariabackup.
    pub sst_auth: Option<String>,
    /// `wsrep_slave_threads`.
    pub appliers: u32,
    /// Whether the member is told which port incremental transfers take: Galera's library has one of its own for them.
    pub incremental_port: bool,
    /// Further `wsrep_provider_options`.
    pub provider_options: Vec<(String, String)>,
}

impl Wsrep {
    /// `host:port` of this member for the others.
    pub fn peer_address(&self) -> String {
        host_port(&self.host, self.peer_port)
    }
}

/// A disk that a process is started on, other than the machine's.
pub trait Disk: Debug + Send + Sync {
    /// Puts the process that `command` starts, and all that it starts, on this disk.
    fn attach(&self, command: &mut Command) -> Result<()>;
}

/// The configuration of a server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Name of the server, of its files, and of the cluster's member.
    pub name: String,
    /// The folder that holds `<name>` (the data directory), `<name>.cnf`, `<name>.err`, `<name>.sock`.
    pub root: PathBuf,
    /// TCP port for clients.
    pub sql_port: u16,
    /// Address of that port.
    pub bind_address: String,
    /// Number of the server for asynchronous replication.
    pub server_id: u32,
    /// Whether it writes a binlog (`log_bin`, `log_slave_updates`).
    pub log_bin: bool,
    /// The network namespace in which it runs; none for the machine's own network.
    pub namespace: Option<String>,
    /// The only processor that it may use, by the system's number; none for all of them.
    pub processor: Option<usize>,
    /// Additional environment variables.
    pub environment: Vec<(String, String)>,
    /// Replication; none for a plain server.
    pub wsrep: Option<Wsrep>,
    /// Further lines of `[mysqld]`.
    pub extra: Vec<String>,
    /// The disk that its flushes go to, where that is not just the machine's.
    pub disk: Option<Arc<dyn Disk>>,
    /// Its `<name>.cnf` was edited by the user: it is used as it is, and these settings are not written.
    pub own_file: bool,
}

impl ServerConfig {
    /// A plain server in `root`.
    pub fn new(name: &str, root: &Path, sql_port: u16, server_id: u32) -> ServerConfig {
        ServerConfig {
            name: name.to_owned(),
            root: root.to_owned(),
            sql_port,
            bind_address: "127.0.0.1".into(),
            server_id,
            log_bin: false,
            namespace: None,
            processor: None,
            environment: Vec::new(),
            wsrep: None,
            extra: Vec::new(),
            disk: None,
            own_file: false,
        }
    }

    /// The data directory.
    pub fn datadir(&self) -> PathBuf {
        self.root.join(&self.name)
    }

    /// One of the files beside the data directory.
    pub fn file(&self, extension: &str) -> PathBuf {
        self.root.join(format!("{}.{extension}", self.name))
    }

    /// The Unix socket for clients.
    pub fn socket(&self) -> PathBuf {
        self.file("sock")
    }

    /// Its folder for temporary tables. A server that starts deletes those of all servers that have the same one.
    pub fn tmpdir(&self) -> PathBuf {
        self.file("tmp")
    }

    /// The text of `my.cnf`.
    pub fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.render_to(&mut out);
        out
    }

    fn render_to(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "[mysqld]")?;
        writeln!(out, "datadir={}", self.datadir().display())?;
        writeln!(out, "tmpdir={}", self.tmpdir().display())?;
        writeln!(out, "socket={}", self.socket().display())?;
        writeln!(out, "pid_file={}", self.file("server.pid").display())?;
        writeln!(out, "log_error={}", self.file("err").display())?;
        writeln!(out, "port={}", self.sql_port)?;
        writeln!(out, "bind_address={}", self.bind_address)?;
        writeln!(out, "server_id={}", self.server_id)?;
        writeln!(out, "skip_name_resolve=ON")?;
        writeln!(out, "binlog_format=ROW")?;
        writeln!(out, "default_storage_engine=InnoDB")?;
        writeln!(out, "innodb_autoinc_lock_mode=2")?;
        writeln!(out, "innodb_log_file_size=32M")?;
        if self.log_bin {
            writeln!(out, "log_bin=binlog")?;
            writeln!(out, "log_slave_updates=ON")?;
        }
        match &self.wsrep {
            Some(wsrep) => render_wsrep(wsrep, &self.name, out)?,
            None => writeln!(out, "wsrep_on=OFF")?,
        }
        for line in &self.extra {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }
}

fn render_wsrep(wsrep: &Wsrep, name: &str, out: &mut String) -> std::fmt::Result {
    let address = wsrep.peer_address();
    let mut options = vec![(
        "gmcast.listen_addr".to_owned(),
        format!("tcp://{}", host_port(&wsrep.listen, wsrep.peer_port)),
    )];
    if wsrep.incremental_port {
        options.push(("ist.recv_addr".to_owned(), host_port(&wsrep.host, wsrep.peer_port + 1)));
    }
    options.extend(wsrep.provider_options.iter().cloned());
    let options: Vec<String> = options.iter().map(|(k, v)| format!("{k}={v}")).collect();

    writeln!(out, "wsrep_on=ON")?;
    writeln!(out, "wsrep_provider={}", wsrep.provider.display())?;
    writeln!(out, "wsrep_provider_options=\"{}\"", options.join(";"))?;
    // MariaDB 11.4 and newer have a plugin that makes a variable of each provider option, and refuse SET GLOBAL
    // wsrep_provider_options while it is on. Older ones say in their log that they do not know the option, and start.
    writeln!(out, "loose_plugin_wsrep_provider=OFF")?;
    writeln!(out, "wsrep_cluster_name={}", wsrep.cluster_name)?;
    writeln!(out, "wsrep_cluster_address=gcomm://{}", wsrep.peers.join(","))?;
    writeln!(out, "wsrep_node_name={name}")?;
    writeln!(out, "wsrep_node_address={address}")?;
    writeln!(out, "wsrep_sst_method={}", wsrep.sst_method.name())?;
    writeln!(out, "wsrep_sst_receive_address={}", host_port(&wsrep.host, wsrep.sst_port))?;
    if let Some(auth) = &wsrep.sst_auth {
        writeln!(out, "wsrep_sst_auth={auth}")?;
    }
    writeln!(out, "wsrep_slave_threads={}", wsrep.appliers)
}

/// `host:port`, with brackets around an IPv6 address.
pub fn host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_receives_all_paths_and_addresses() {
        let mut config = ServerConfig::new("n2", Path::new("/x"), 33062, 2);
        assert!(config.render().contains("wsrep_on=OFF"));
        config.wsrep = Some(Wsrep {
            provider: "/x/p.so".into(),
            cluster_name: "c".into(),
            peers: vec!["[::1]:1".into(), "[::1]:5".into()],
            host: "::1".into(),
            listen: "::1".into(),
            peer_port: 5,
            sst_port: 7,
            sst_method: SstMethod::Mariabackup,
            sst_auth: None,
            appliers: 4,
            incremental_port: true,
            provider_options: vec![("gcache.size".into(), "64M".into())],
        });
        let text = config.render();
        for line in [
            "datadir=/x/n2",
            "tmpdir=/x/n2.tmp",
            "wsrep_provider_options=\"gmcast.listen_addr=tcp://[::1]:5;ist.recv_addr=[::1]:6;gcache.size=64M\"",
            "loose_plugin_wsrep_provider=OFF",
            "wsrep_cluster_address=gcomm://[::1]:1,[::1]:5",
            "wsrep_node_address=[::1]:5",
            "wsrep_sst_receive_address=[::1]:7",
            "wsrep_sst_method=mariabackup",
        ] {
            assert!(text.lines().any(|l| l == line), "no line `{line}` in\n{text}");
        }
    }
}
