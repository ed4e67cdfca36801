//! Compares `lockstep check` with real servers: a reported refusal keeps a server from starting, and a warning does not. `LOCKSTEP_TEST_PROVIDER` names another library than `target/release/liblockstep.so`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockstep_local::{Installation, free_ports};

const REFUSED: i32 = 4;

fn library() -> PathBuf {
    match std::env::var_os("LOCKSTEP_TEST_PROVIDER").filter(|path| path != "lockstep" && path != "galera") {
        Some(path) => path.into(),
        None => Path::new(env!("CARGO_BIN_EXE_lockstep"))
            .ancestors()
            .nth(2)
            .unwrap()
            .join("release/liblockstep.so"),
    }
}

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Lab {
    install: Installation,
    folder: Folder,
    ports: u16,
}

/// The result of starting a server.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Runs,
    Ended,
}

impl Lab {
    fn new() -> Lab {
        let install = Installation::find().unwrap();
        // The tests of one process each have their own.
        let name = format!("lockstep-check-{}-{:?}", std::process::id(), std::thread::current().id());
        let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        let folder = Folder(std::env::temp_dir().join(name));
        install.make_dir(&folder.0, 0o755).unwrap();
        install.make_template(&folder.0.join("template"), true).unwrap();
        install.copy_provider(&library(), &folder.0.join("liblockstep.so")).unwrap();
        Lab { install, folder, ports: free_ports(4).unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    /// A valid configuration changed by these lines. A name alone removes that line.
    fn config(&self, lines: &[&str]) -> PathBuf {
        let (sql, peers) = (self.ports, self.ports + 1);
        let mut all = vec![
            format!("datadir={}", self.path("data").display()),
            format!("socket={}", self.path("sock").display()),
            format!("pid_file={}", self.path("pid").display()),
            format!("port={sql}"),
            "bind_address=127.0.0.1".into(),
            "binlog_format=ROW".into(),
            "innodb_autoinc_lock_mode=2".into(),
            "wsrep_slave_threads=4".into(),
            "wsrep_on=ON".into(),
            format!("wsrep_provider={}", self.path("liblockstep.so").display()),
            "wsrep_cluster_name=checked".into(),
            format!("wsrep_cluster_address=gcomm://127.0.0.1:{peers},127.0.0.1:1,127.0.0.1:2"),
            format!("wsrep_node_address=127.0.0.1:{peers}"),
            format!("wsrep_provider_options=gmcast.listen_addr=tcp://127.0.0.1:{peers}"),
            format!("wsrep_sst_receive_address=127.0.0.1:{}", self.ports + 2),
        ];
        for line in lines {
            let name = line.split('=').next().unwrap();
            all.retain(|old| old.split('=').next() != Some(name));
            if line.contains('=') {
                all.push((*line).to_owned());
            }
        }
        if let Some(account) = &self.install.account {
            all.push(format!("user={}", account.name));
        }
        let path = self.path("my.cnf");
        std::fs::write(&path, format!("[mysqld]\n{}\n", all.join("\n"))).unwrap();
        path
    }

    /// Starts a server with it as the first member, on a fresh database.
    fn fate(&self, config: &Path) -> (Fate, String) {
        let data = self.path("data");
        let _ = std::fs::remove_dir_all(&data);
        self.install.copy_template(&self.path("template"), &data).unwrap();
        let log = std::fs::File::create(self.path("out")).unwrap();
        let mut server = Server(
            Command::new(&self.install.mariadbd)
                .arg(format!("--defaults-file={}", config.display()))
                .arg("--wsrep-new-cluster")
                .current_dir("/")
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .spawn()
                .unwrap(),
        );
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let said = std::fs::read_to_string(self.path("out")).unwrap();
            if server.0.try_wait().unwrap().is_some() {
                return (Fate::Ended, said);
            }
            if said.contains("ready for connections") {
                return (Fate::Runs, said);
            }
            assert!(Instant::now() < deadline, "neither runs nor ends:\n{said}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn check(config: &Path) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep")).arg("check").arg(config).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

/// Lines of a configuration, and the result of starting a server with them.
type Case = (&'static [&'static str], Fate);

/// One of each kind, for `make test`.
const FEW: &[Case] = &[
    (&[], Fate::Runs),
    (&["binlog_format=MIXED"], Fate::Ended),
    (&["wsrep_on", "binlog_format", "memlock=1", "wsrep_cluster_address"], Fate::Runs),
    (&["wsrep_provider_options=gcs.fc_limt=1"], Fate::Ended),
    (&["max_connections=abc"], Fate::Ended),
    (&["innodb_autoinc_lock_mode=1", "innodb_file_format=Barracuda", "max_connect=100"], Fate::Runs),
];

const MORE: &[Case] = &[
    (&["max_conections=100"], Fate::Ended),
    (&["binlog_format"], Fate::Ended),
    (&["wsrep_cluster_address"], Fate::Ended),
    (&["wsrep_cluster_address=gcom://127.0.0.1"], Fate::Ended),
    (&["wsrep_provider=/nonexistent.so"], Fate::Ended),
    (&["wsrep_provider_options=net.heartbeat=often"], Fate::Ended),
    (&["wsrep_provider_options=socket.ssl=yes"], Fate::Ended),
    (&["wsrep_node_name=a-name-that-is-longer-than-thirty-one-bytes"], Fate::Ended),
    (&["wsrep_replicate_myisam=ON"], Fate::Ended),
    (&["memlock=1"], Fate::Ended),
    (&["wsrep_s=2"], Fate::Ended),
    (&["max_allowed_packet='16M"], Fate::Ended),
    (&["wsrep_provider_options=\"gcs.fc_limit=100"], Fate::Ended),
    (&["innodb_read=1"], Fate::Ended),
    (&["wsrep_gtid_mode=ON", "log_bin=binlog"], Fate::Ended),
    (&["plugin_load_add=server_audit", "server_audit_loged=ON"], Fate::Ended),
    // Values.
    (&["wsrep_OSU_method=X"], Fate::Ended),
    (&["wsrep_trx_fragment_unit=X"], Fate::Ended),
    (&["wsrep-gtid-domain-id=-1"], Fate::Ended),
    (&["wsrep_mode=REPLICATE_MYISAM,NONE_SUCH"], Fate::Ended),
    (&["sql_mode=foo", "table_open_cache=many"], Fate::Ended),
    (&["innodb_buffer_pool_size=abc"], Fate::Ended),
    (&["innodb_flush_method=foo"], Fate::Ended),
    (&["character_set_server=foo"], Fate::Ended),
    (&["collation_server=foo"], Fate::Ended),
    (&["wsrep_on=maybe", "max_connections=99999999", "general_log=perhaps"], Fate::Runs),
    (&["plugin_load_add=server_audit", "server_audit_events=foo"], Fate::Runs),
    // Only a member is refused for these.
    (&["wsrep_on=OFF", "wsrep_provider=/nonexistent.so"], Fate::Runs),
    (&["wsrep_on=OFF", "wsrep_provider_options=gcs.fc_limt=1", "binlog_format=STATEMENT"], Fate::Runs),
    (&["wsrep_on=OFF", "wsrep_node_name=a-name-that-is-longer-than-thirty-one-bytes"], Fate::Runs),
    (&["wsrep_on", "wsrep_cluster_address=gcom://127.0.0.1"], Fate::Runs),
    // Unwise, or without effect.
    (&["loose_wsrep_replicate_myisam=ON", "wsrep_slave_thread=2"], Fate::Runs),
    (&["WSREP_ON=ON", "wsrep_slave_fk_checks=ON", "max_connec=100"], Fate::Runs),
    (&["plugin_load_add=server_audit", "server_audit_logging=ON", "server_audit_incl_user=a"], Fate::Runs),
    (&["plugin_load=server_audit=server_audit.so", "server_audit=FORCE_PLUS_PERMANENT"], Fate::Runs),
    (&["plugin_load_add=wsrep_info", "wsrep_membership=ON"], Fate::Runs),
    (&["plugin_load_add=there_is_none", "loose_server_audit_logging=ON"], Fate::Runs),
    (&["plugin_load_add=server_audit", "server_audi=ON"], Fate::Runs),
    (&["wsrep_cluster_name='checked", "wsrep_notify_cmd=it's"], Fate::Runs),
    (&["wsrep_on"], Fate::Runs),
    (&["wsrep_cluster_address=gcomm://"], Fate::Runs),
    (&["query_cache_size=16M", "event_scheduler=ON", "log_bin=binlog"], Fate::Runs),
];

fn hold(cases: &[Case]) {
    let lab = Lab::new();
    for (lines, expected) in cases {
        let config = lab.config(lines);
        // Before the server starts and takes the ports.
        std::fs::create_dir_all(lab.path("data")).unwrap();
        lab.install.give(&lab.path("data")).unwrap();
        let (code, said) = check(&config);
        let (fate, log) = lab.fate(&config);
        assert_eq!(fate, *expected, "{lines:?}: the server said\n{log}");
        assert_eq!(
            code == REFUSED,
            fate == Fate::Ended,
            "{lines:?}: check said\n{said}\nthe server said\n{log}"
        );
    }
}

#[test]
fn few_reported_refusals_are_refused_by_server() {
    hold(FEW);
}

#[test]
fn reported_refusals_match_the_server() {
    hold(MORE);
}
