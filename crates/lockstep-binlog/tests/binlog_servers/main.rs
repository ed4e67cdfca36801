//! Serves binlog files to real programs: `mariadb-binlog` and a stock MariaDB replica.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_binlog::event::{Checksum, EventWriter, FormatDescription, Group, Stamp};
use lockstep_binlog::library::{Step, Visibility};
use lockstep_binlog::wire::session::Settings;
use lockstep_binlog::wire::sql_client::{ClientTls, SqlClient, Target};
use lockstep_binlog::wire::{
    Accounts, Server as BinlogServer, ServerConfig as BinlogConfig, TlsAcceptor, TlsFiles, tls,
};
use lockstep_binlog::{Library, StreamState, Writer};
use lockstep_local::{Installation, Server, ServerConfig, find_program, free_ports, run_to_end};
use rcgen::{CertificateParams, Issuer, KeyPair};

const TIMEOUT: Duration = Duration::from_secs(60);
const SERVER_ID: u32 = 77;
/// Tables that are compared. `m` is MyISAM.
const TABLES: &str = "a.t, a.u, a.m, a.x";

/// A folder with servers; both go away with the test.
struct Lab {
    install: Installation,
    root: PathBuf,
    servers: Vec<Server>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.servers.iter_mut().for_each(Server::kill);
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

impl Lab {
    fn new(name: &str) -> Lab {
        let install = Installation::find().unwrap();
        let root = std::env::temp_dir().join(format!("lockstep-binlog-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        install.make_dir(&root, 0o755).unwrap();
        install.make_template(&root.join("template"), true).unwrap();
        Lab { install, root, servers: Vec::new() }
    }

    /// Starts a server; its place in `servers`.
    fn start(&mut self, name: &str, id: u32, extra: &[&str]) -> usize {
        let mut config = ServerConfig::new(name, &self.root, free_ports(1).unwrap(), id);
        config.log_bin = true;
        config.extra = extra.iter().map(|line| (*line).to_owned()).collect();
        config
            .extra
            .extend(["innodb_buffer_pool_size=32M".into(), "innodb_flush_log_at_trx_commit=0".into()]);
        self.install.copy_template(&self.root.join("template"), &self.root.join(name)).unwrap();
        let mut server = Server::new(config, &self.install);
        server.start(&[]).unwrap();
        self.servers.push(server);
        self.servers.len() - 1
    }

    /// A source that has written three files: rows, DDL, XA, MyISAM, statements.
    fn source(&mut self) -> usize {
        let at =
            self.start("source", 7, &["gtid_domain_id=3", "max_binlog_size=64K", "max_allowed_packet=64M"]);
        let mut client = self.servers[at].client().unwrap();
        for sql in [
            "CREATE DATABASE a",
            "CREATE TABLE a.t (id INT PRIMARY KEY AUTO_INCREMENT, v TEXT)",
            "CREATE TABLE a.u (id INT PRIMARY KEY, v LONGBLOB, n DECIMAL(10,2))",
            "CREATE TABLE a.m (v INT) ENGINE=MyISAM",
            "CREATE TABLE a.x (id INT PRIMARY KEY)",
            "INSERT INTO a.m VALUES (1),(2)",
            "FLUSH BINARY LOGS",
            "SET gtid_seq_no=100",
            "INSERT INTO a.u VALUES (1, REPEAT('z', 17000000), 1.5)",
            "ALTER TABLE a.u ADD COLUMN more INT DEFAULT 4",
            "XA START 'one'",
            "INSERT INTO a.x VALUES (1)",
            "XA END 'one'",
            "XA PREPARE 'one'",
            "XA COMMIT 'one'",
            "SET SESSION binlog_format=STATEMENT",
            "UPDATE a.u SET more = more + 1",
            "SET SESSION binlog_format=ROW",
            "CREATE TEMPORARY TABLE a.tmp (i INT)",
            "DROP TABLE a.tmp",
            "BEGIN",
            "INSERT INTO a.t (v) VALUES ('rolled back')",
            "ROLLBACK",
        ] {
            client.query(sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
        }
        for n in 0..400 {
            client.query(&format!("INSERT INTO a.t (v) VALUES (REPEAT('{}', 100))", n % 10)).unwrap();
            if n % 7 == 0 {
                client.query("UPDATE a.t SET v = CONCAT(v, '+') ORDER BY id LIMIT 5").unwrap();
            }
        }
        client.query("DELETE FROM a.t WHERE id % 3 = 0").unwrap();
        at
    }

    /// Copies the source's files. The server is stopped for that, and started again.
    fn files(&mut self, source: usize) -> PathBuf {
        let server = &mut self.servers[source];
        server.stop().unwrap();
        let folder = self.root.join("files");
        std::fs::create_dir_all(&folder).unwrap();
        for entry in std::fs::read_dir(server.datadir()).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if name.strip_prefix("binlog.").is_some_and(|end| end.bytes().all(|b| b.is_ascii_digit())) {
                std::fs::copy(&path, folder.join(name)).unwrap();
            }
        }
        server.start(&[]).unwrap();
        folder
    }

    fn replica(&mut self, extra: &[&str]) -> usize {
        self.start("replica", 9, extra)
    }

    fn follow(&self, replica: usize, address: SocketAddr) {
        let port = address.port();
        self.query(replica, &format!(
            "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, MASTER_USER='repl', MASTER_PASSWORD='secret', \
             MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1, MASTER_HEARTBEAT_PERIOD=1"
        ));
    }

    fn query(&self, server: usize, sql: &str) -> lockstep_local::Answer {
        self.servers[server].query(sql).unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    fn wait_for(&self, replica: usize, gtids: &str) {
        let answer =
            self.query(replica, &format!("SELECT MASTER_GTID_WAIT('{gtids}', {})", TIMEOUT.as_secs()));
        if answer.value().unwrap() != "0" {
            let status = self.query(replica, "SHOW SLAVE STATUS");
            let shown: Vec<_> = status.columns.iter().zip(&status.rows[0]).collect();
            panic!("the replica does not reach {gtids}: {shown:?}");
        }
    }

    fn compare(&self, source: usize, replica: usize) {
        let sums = |server| self.query(server, &format!("CHECKSUM TABLE {TABLES}")).rows;
        let expected = sums(source);
        assert!(expected.iter().all(|row| row[1].as_deref().is_some_and(|sum| sum != "0")), "{expected:?}");
        assert_eq!(sums(replica), expected);
    }
}

fn serve(library: &Library, port: u16) -> BinlogServer {
    serve_with(library, port, None)
}

fn serve_with(library: &Library, port: u16, tls: Option<TlsAcceptor>) -> BinlogServer {
    let settings = Settings { server_id: SERVER_ID, domain: 3, ..Settings::default() };
    let accounts = Accounts::parse("repl secret").unwrap();
    let mut config = BinlogConfig::new((Ipv4Addr::LOCALHOST, port).into(), settings, accounts);
    (config.require_tls, config.tls) = (tls.is_some(), tls.map(Arc::new));
    BinlogServer::start(config, library.clone()).unwrap()
}

fn mariadb_binlog(address: SocketAddr, arguments: &[&str], folder: &Path) -> String {
    let mut command = Command::new(
        find_program("mariadb-binlog").expect("the program mariadb-binlog: install mariadb-client"),
    );
    command
        .args([
            "--no-defaults",
            "--read-from-remote-server",
            "--host=127.0.0.1",
            "--user=repl",
            "--password=secret",
        ])
        .arg(format!("--port={}", address.port()))
        .args(arguments)
        .current_dir(folder);
    run_to_end(&mut command).unwrap()
}

#[test]
fn mariadb_binlog_fetches_files_byte_for_byte() {
    let mut lab = Lab::new("raw");
    let source = lab.source();
    let files = lab.files(source);
    let library = Library::open_read_only(&files, "binlog").unwrap();
    let server = serve(&library, 0);
    let names: Vec<String> = library.files().into_iter().map(|(name, _)| name).collect();
    assert!(names.len() >= 3, "{names:?}");
    let fetched = lab.root.join("fetched");
    std::fs::create_dir_all(&fetched).unwrap();
    let equal = |name: &str| {
        let same = std::fs::read(fetched.join(name)).unwrap() == std::fs::read(files.join(name)).unwrap();
        assert!(same, "{name} differs");
        std::fs::remove_file(fetched.join(name)).unwrap();
    };
    for name in &names {
        mariadb_binlog(server.address(), &["--raw", name], &fetched);
        equal(name);
    }
    mariadb_binlog(server.address(), &["--raw", "--to-last-log", &names[0]], &fetched);
    names.iter().for_each(|name| equal(name));
    // As text, from a position within a file: the same events as from the file itself.
    let name = &names[2];
    let mut reader = library.reader("test", library.position_in(name, 4).unwrap().at).unwrap();
    (0..100).for_each(|_| assert_eq!(reader.advance().unwrap(), Step::Event));
    let from = format!("--start-position={}", reader.position().offset);
    let remote = mariadb_binlog(server.address(), &[&from, name], &fetched);
    let mut local = Command::new(find_program("mariadb-binlog").unwrap());
    let local = run_to_end(local.args(["--no-defaults", &from]).arg(files.join(name))).unwrap();
    let positions = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with("# at ")).map(str::to_owned).collect()
    };
    let (remote, local) = (positions(&remote), positions(&local));
    assert!(remote.len() > 10);
    assert_eq!(remote[remote.len() - 10..], local[local.len() - 10..]);
}

/// Makes a certificate for this machine, which servers may read. Its authority is `ca.pem` beside it.
fn certificate(lab: &Lab) -> TlsFiles {
    let folder = lab.root.join("tls");
    lab.install.make_dir(&folder, 0o755).unwrap();
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        lab.install.give(&path).unwrap();
        path
    };
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    // OpenSSL takes a certificate whose issuer has its own name for a self-signed one.
    params.distinguished_name.push(rcgen::DnType::CommonName, "authority");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    write("ca.pem", params.self_signed(&key).unwrap().pem());
    let (issuer, key) = (Issuer::new(params, key), KeyPair::generate().unwrap());
    let signed = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap().signed_by(&key, &issuer).unwrap();
    TlsFiles {
        cert: write("cert.pem", signed.pem()),
        key: write("key.pem", key.serialize_pem()),
        ca: None,
        require_client_certificate: false,
    }
}

#[test]
fn client_and_server_with_tls_1_2_only_are_spoken_to() {
    let mut lab = Lab::new("tls12");
    let files = certificate(&lab);
    let authority = lab.root.join("tls/ca.pem");
    let source = lab.start(
        "source",
        7,
        &[
            "gtid_domain_id=3",
            "tls_version=TLSv1.2",
            &format!("ssl_cert={}", files.cert.display()),
            &format!("ssl_key={}", files.key.display()),
            "require_secure_transport=ON",
        ],
    );
    // A database server that has no other version.
    lab.query(source, "CREATE USER reader@'127.0.0.1' IDENTIFIED BY 'secret'");
    let port = lab.query(source, "SELECT @@port").value().unwrap().to_owned();
    let target = Target {
        address: format!("127.0.0.1:{port}"),
        user: "reader".into(),
        password: "secret".into(),
        tls: Some(Arc::new(ClientTls::load(&authority).unwrap())),
        timeout: TIMEOUT,
    };
    let mut client = SqlClient::connect(&target).unwrap();
    let shown = client.rows("SHOW SESSION STATUS LIKE 'Ssl_version'").unwrap();
    assert_eq!(shown[0][1].as_deref(), Some("TLSv1.2"));
    // Consumers of either version.
    let folder = lab.files(source);
    let library = Library::open_read_only(&folder, "binlog").unwrap();
    let server = serve_with(&library, 0, Some(tls::acceptor(files).unwrap()));
    let (name, _) = library.files().remove(0);
    let fetched = lab.root.join("fetched");
    std::fs::create_dir_all(&fetched).unwrap();
    for version in ["TLSv1.2", "TLSv1.3"] {
        let (ca, version) = (format!("--ssl-ca={}", authority.display()), format!("--tls-version={version}"));
        let arguments = ["--raw", &ca, "--ssl-verify-server-cert", &version, &name];
        mariadb_binlog(server.address(), &arguments, &fetched);
        let same = std::fs::read(fetched.join(&name)).unwrap() == std::fs::read(folder.join(&name)).unwrap();
        assert!(same, "{name} differs with {version}");
        std::fs::remove_file(fetched.join(&name)).unwrap();
    }
}

#[test]
fn replica_has_equal_tables_after_cut_connections() {
    let mut lab = Lab::new("replica");
    let source = lab.source();
    let files = lab.files(source);
    let library = Library::open_read_only(&files, "binlog").unwrap();
    let mut server = serve(&library, 0);
    let address = server.address();
    let end = library.state_at_end().to_replica().to_string();
    let replica = lab.replica(&[]);
    lab.follow(replica, address);
    // Up to a GTID, then on from there.
    lab.query(replica, "START SLAVE UNTIL master_gtid_pos='3-7-200'");
    lab.wait_for(replica, "3-7-200");
    let deadline = Instant::now() + TIMEOUT;
    while lab.query(replica, "SHOW SLAVE STATUS").column("Slave_SQL_Running").unwrap() != "No" {
        assert!(Instant::now() < deadline, "the replica does not stop at its UNTIL condition");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(lab.query(replica, "SELECT @@gtid_slave_pos").value().unwrap(), "3-7-200");
    lab.query(replica, "START SLAVE");
    lab.wait_for(replica, "3-7-300");
    server.stop();
    drop(server);
    let server = serve(&library, address.port());
    lab.wait_for(replica, &end);
    lab.compare(source, replica);
    // A start with another history is refused.
    lab.query(replica, "STOP SLAVE");
    lab.query(replica, "SET GLOBAL gtid_slave_pos='3-8-150'");
    lab.query(replica, "START SLAVE");
    let deadline = Instant::now() + TIMEOUT;
    let error = loop {
        let status = lab.query(replica, "SHOW SLAVE STATUS");
        if status.column("Last_IO_Errno").unwrap() != "0" || Instant::now() > deadline {
            break format!(
                "{} {}",
                status.column("Last_IO_Errno").unwrap(),
                status.column("Last_IO_Error").unwrap()
            );
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(
        error.starts_with("1236") && error.contains("3-8-150") && error.contains("another history"),
        "{error}"
    );
    drop(server);
}

/// Passes the groups of a source's files to a writer, which gives them new positions and cuts where it likes.
struct Refill {
    groups: Vec<Vec<Vec<u8>>>,
}

impl Refill {
    fn new(library: &Library) -> Refill {
        let mut reader = library.reader("refill", library.position_in("", 4).unwrap().at).unwrap();
        let (mut group, mut groups) = (Group::default(), Vec::<Vec<Vec<u8>>>::new());
        loop {
            match reader.advance().unwrap() {
                Step::End => return Refill { groups },
                Step::FileEnd => reader.next_file().unwrap(),
                Step::Event => {
                    let event = reader.event().to_vec();
                    let outside = group == Group::Outside;
                    match group.pass(event[4], &event, Checksum::Crc32).unwrap() {
                        Some(_) => groups.push(vec![event]),
                        None if outside => {}
                        None => groups.last_mut().unwrap().push(event),
                    }
                }
            }
        }
    }
}

#[test]
fn parallel_semi_sync_replica_follows_a_growing_library() {
    let mut lab = Lab::new("grow");
    let source = lab.source();
    let files = lab.files(source);
    let foreign = Library::open_read_only(&files, "binlog").unwrap();
    let refill = Refill::new(&foreign);
    let end = foreign.state_at_end().to_replica().to_string();
    let format = FormatDescription {
        timestamp: 1_800_000_000,
        server_id: SERVER_ID,
        version: "10.11.0-MariaDB-lockstep".into(),
        created: 0,
        checksum: Checksum::Crc32,
    };
    let rotate = Stamp { timestamp: 1_800_000_000, server_id: SERVER_ID };
    let folder = lab.root.join("library");
    let open = || Writer::open(&folder, "stream", Visibility::Synced).unwrap();
    let mut writer = open();
    writer.begin(1, &format, &StreamState::default()).unwrap();
    let mut server = serve(writer.library(), 0);
    let address = server.address();
    let replica = lab.replica(&[
        "slave_parallel_threads=4",
        "slave_parallel_mode=optimistic",
        "gtid_strict_mode=ON",
        "rpl_semi_sync_slave_enabled=ON",
    ]);
    lab.follow(replica, address);
    lab.query(replica, "START SLAVE");
    let mut acked = 0;
    let mut heartbeats = false;
    for (at, group) in refill.groups.iter().enumerate() {
        let mut events = EventWriter::at(writer.end().unwrap().offset);
        group.iter().for_each(|event| events.copy(event, Checksum::Crc32).unwrap());
        writer.append(&events.finish().unwrap()).unwrap();
        if at % 5 == 0 {
            writer.sync().unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        if at % 90 == 89 {
            let (next, before) = (writer.end().unwrap().file + 1, writer.state_at_end().clone());
            writer.cut(next, rotate, &format, &before).unwrap();
        }
        if at % 120 == 119 {
            if !heartbeats {
                // The replica is idle for longer than its heartbeat period.
                writer.sync().unwrap();
                std::thread::sleep(Duration::from_millis(2500));
                let status = lab.query(replica, "SHOW GLOBAL STATUS LIKE 'Slave_received_heartbeats'");
                heartbeats = status.column("Value").unwrap() != "0";
                assert!(heartbeats, "no heartbeat arrived");
            }
            acked += server
                .consumers()
                .iter()
                .filter(|c| c.stream.as_ref().is_some_and(|s| s.acked.is_some()))
                .count();
            server.stop();
            drop(server);
            drop(writer);
            // As after a crash: the end is read from the file.
            writer = open();
            server = serve(writer.library(), address.port());
        }
    }
    writer.sync().unwrap();
    lab.wait_for(replica, &end);
    lab.compare(source, replica);
    assert!(acked > 0, "no acknowledgement arrived");
    let deadline = Instant::now() + TIMEOUT;
    while server.consumers().iter().all(|c| c.stream.as_ref().is_none_or(|s| s.behind > 0)) {
        assert!(Instant::now() < deadline, "{:?}", server.consumers());
        std::thread::sleep(Duration::from_millis(50));
    }
    let hosts = server.consumers();
    assert_eq!(hosts[0].register.as_ref().unwrap().server_id, 9);
}
