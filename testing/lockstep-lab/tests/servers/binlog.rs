//! `lockstep binlog serve`: stock replicas and tools read the cluster's transactions.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockstep_lab::Cluster;
use lockstep_local::{Client, LocalError, Server, free_ports};

use crate::disk::Tmpfs;
use crate::fixture::{Kind, Test, alone, built, eventually, kind, same, streaming_spec};

/// A running `lockstep binlog serve`; killed when it is dropped.
pub(crate) struct Instance {
    child: Option<Child>,
    dir: PathBuf,
    /// The port for members, and the one for replicas.
    pub(crate) ports: (u16, u16),
    members: String,
    name: String,
    /// Lines of its configuration file.
    settings: Vec<String>,
}

impl Instance {
    pub(crate) fn new(cluster: &Cluster, name: &str) -> Result<Instance, LocalError> {
        let dir = cluster.bench().dir().join(name);
        let members = cluster.servers.iter().filter_map(|s| s.config.wsrep.as_ref());
        let members: Vec<String> = members.map(|wsrep| wsrep.peer_address()).collect();
        let instance = Instance {
            child: None,
            dir,
            ports: (free_ports(1)?, free_ports(1)?),
            members: format!("gcomm://{}", members.join(",")),
            name: name.to_owned(),
            settings: Vec::new(),
        };
        std::fs::create_dir_all(&instance.dir).map_err(LocalError::io("make a directory"))?;
        let accounts = instance.dir.join("accounts");
        std::fs::write(&accounts, "copy secret\n").map_err(LocalError::io("write accounts"))?;
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&accounts, private).map_err(LocalError::io("protect accounts"))?;
        Ok(instance)
    }

    /// Makes a certificate, signed by the authority in the test's directory, and requires TLS of consumers.
    fn with_tls(&mut self, cluster: &Cluster) -> Result<PathBuf, LocalError> {
        let dir = cluster.bench().dir().join("tls");
        let made = Command::new(built("lockstep"))
            .args(["cert", "--name", &self.name, "--san", "127.0.0.1", "--dir"])
            .arg(&dir)
            .output()
            .map_err(LocalError::io("run lockstep cert"))?;
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let authority = dir.join("ca.pem");
        let file = |end: &str| dir.join(format!("{}-{end}.pem", self.name)).display().to_string();
        self.settings = vec![
            format!("ssl-cert = {}", file("cert")),
            format!("ssl-key = {}", file("key")),
            format!("ssl-ca = {}", authority.display()),
            "require-secure-transport = on".into(),
        ];
        // The servers' account reads the authority.
        for path in [&dir, &authority] {
            let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(path, readable).map_err(LocalError::io("let others read"))?;
        }
        Ok(authority)
    }

    /// Lets accounts of this server sign in, and passes statements on to it.
    fn with_upstream(&mut self, server: &Server) -> Test {
        server.client()?.run(&[
            "CREATE USER reader@'127.0.0.1' IDENTIFIED BY 'r'",
            "GRANT SELECT ON mysql.global_priv TO reader@'127.0.0.1'",
            "CREATE USER statements@'127.0.0.1' IDENTIFIED BY 's'",
            "GRANT SELECT ON test.* TO statements@'127.0.0.1'",
            "CREATE USER up@'127.%' IDENTIFIED BY 'u'",
            "GRANT REPLICATION SLAVE ON *.* TO up@'127.%'",
            "CREATE USER other@'%' IDENTIFIED BY 'u'",
        ])?;
        self.settings.push(format!("upstream = 127.0.0.1:{}", server.config.sql_port));
        for (option, text) in [("upstream-account", "reader r\n"), ("upstream-sql-account", "statements s\n")]
        {
            let path = self.dir.join(option);
            std::fs::write(&path, text).map_err(LocalError::io("write an account"))?;
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&path, private).map_err(LocalError::io("protect an account"))?;
            self.settings.push(format!("{option} = {}", path.display()));
        }
        Ok(())
    }

    /// Starts it, and waits until replicas may connect.
    pub(crate) fn start(&mut self) -> Test {
        let cfg = self.dir.join("binlog.cnf");
        std::fs::write(&cfg, self.settings.join("\n")).map_err(LocalError::io("write options"))?;
        let log = std::fs::File::options().create(true).append(true).open(self.dir.join("messages"));
        let begins = self.lines().len();
        let child = Command::new(built("lockstep"))
            .args(["binlog", "serve", "--group", "lab", "--address", &self.members, "--name", &self.name])
            .args(["--options", &format!("gmcast.listen_addr=tcp://127.0.0.1:{}", self.ports.0)])
            .args(["--listen", &format!("127.0.0.1:{}", self.ports.1), "--dir"])
            .arg(&self.dir)
            .arg("--accounts")
            .arg(self.dir.join("accounts"))
            .arg("--cfg")
            .arg(&cfg)
            .stdin(Stdio::null())
            .stderr(log.map_err(LocalError::io("make a log"))?)
            .spawn();
        self.child = Some(child.map_err(LocalError::io("run lockstep binlog"))?);
        eventually("the instance serves", || Ok(self.lines()[begins..].contains("serves replicas at")))
            .map_err(|error| LocalError::Value(format!("{error}\n{}", self.lines())))
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn lines(&self) -> String {
        std::fs::read_to_string(self.dir.join("messages")).unwrap_or_default()
    }

    fn files(&self) -> PathBuf {
        self.dir.join("files")
    }

    /// The binlog files, whole.
    fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = std::fs::read_dir(self.files()).expect("the directory of files");
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let names = names.filter(|name| name.starts_with("lockstep-bin.") && !name.ends_with(".new"));
        names.map(|name| (name.clone(), std::fs::read(self.files().join(name)).unwrap())).collect()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A stock server that reads from an instance.
fn replica(cluster: &Cluster, instance: &Instance) -> Result<Server, LocalError> {
    replica_with(cluster, instance, "")
}

/// The same, with more options of `CHANGE MASTER`.
fn replica_with(cluster: &Cluster, instance: &Instance, options: &str) -> Result<Server, LocalError> {
    let mut server = cluster.bench().server("copy", 77)?;
    server.config.extra = vec![
        "slave_parallel_threads=4".into(),
        "slave_parallel_mode=conservative".into(),
        "gtid_strict_mode=ON".into(),
        "innodb_flush_log_at_trx_commit=2".into(),
    ];
    cluster.bench().fresh_data(&server.config)?;
    server.start(&[])?;
    server.client()?.run(&[
        &format!(
            "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={}, MASTER_USER='copy', MASTER_PASSWORD='secret', \
             MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1{options}",
            instance.ports.1
        ),
        "START SLAVE",
    ])?;
    Ok(server)
}

/// Clients of all servers write while `act` is done. Returns how many transactions were acknowledged.
pub(crate) fn under_load(cluster: &Cluster, act: impl FnOnce() -> Test) -> Result<u64, LocalError> {
    cluster.servers[0].client()?.run(&[
        "CREATE DATABASE IF NOT EXISTS test",
        "CREATE TABLE IF NOT EXISTS test.rows (id BIGINT PRIMARY KEY AUTO_INCREMENT, a INT, b VARCHAR(200), KEY (a))",
    ])?;
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let write = |server: &Server, number: usize| {
        let mut client = None;
        let mut round = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            round += 1;
            let Some(connected) = client.as_mut() else {
                client = server.client().ok();
                std::thread::sleep(Duration::from_millis(50));
                continue;
            };
            match transaction(connected, number, round) {
                Ok(()) => drop(acknowledged.fetch_add(1, Ordering::Relaxed)),
                // A conflict; or the server was killed.
                Err(error) if matches!(error.sql_code(), Some(1213 | 1205 | 1105 | 1020)) => {
                    let _ = connected.run(&["ROLLBACK"]);
                }
                Err(_) => client = None,
            }
        }
    };
    let outcome = std::thread::scope(|scope| {
        for (number, server) in cluster.servers.iter().enumerate() {
            scope.spawn(move || write(server, number));
        }
        let outcome = act();
        stop.store(true, Ordering::Relaxed);
        outcome
    });
    outcome?;
    Ok(acknowledged.load(Ordering::Relaxed))
}

fn transaction(client: &mut Client, number: usize, round: u64) -> Test {
    match round % 40 {
        7 => client.run(&[&format!(
            "CREATE OR REPLACE TABLE test.made{number} AS SELECT * FROM test.rows LIMIT 20"
        )]),
        13 => {
            client.run(&[&format!("CREATE TABLE IF NOT EXISTS test.t{number} (id INT PRIMARY KEY, c INT)")])
        }
        17 => {
            client.run(&[&format!("ALTER TABLE test.t{number} ADD COLUMN IF NOT EXISTS c{} INT", round % 5)])
        }
        // Both fail; the first one in part, after it has dropped a table.
        19 => client
            .run(&[&format!("DROP TABLE test.t{number}, test.missing")])
            .or_else(|error| expected(error, 1051)),
        23 => {
            client.run(&["ALTER TABLE test.missing ADD COLUMN c INT"]).or_else(|error| expected(error, 1146))
        }
        29 => {
            let streamed = client.run(&[
                "SET SESSION wsrep_trx_fragment_unit='rows', wsrep_trx_fragment_size=5",
                "BEGIN",
                "INSERT INTO test.rows (a, b) SELECT seq, REPEAT('s', 50) FROM seq_1_to_40",
                if round % 80 == 29 { "COMMIT" } else { "ROLLBACK" },
            ]);
            streamed.and(client.run(&["SET SESSION wsrep_trx_fragment_size=0"]))
        }
        _ => client.run(&[
            "BEGIN",
            &format!("INSERT INTO test.rows (a, b) VALUES ({round}, REPEAT('x', {}))", round % 200),
            &format!("UPDATE test.rows SET b=CONCAT('u', a) WHERE a={} LIMIT 1", round / 2),
            "COMMIT",
        ]),
    }
}

/// Fails unless the error has this number.
fn expected(error: LocalError, code: u16) -> Test {
    if error.sql_code() == Some(code) { Ok(()) } else { Err(error) }
}

/// The tables of database `test`, each with its checksum.
pub(crate) fn tables(server: &Server) -> Result<BTreeMap<String, String>, LocalError> {
    let mut client = server.client()?;
    let names = client.value(
        "SELECT COALESCE(GROUP_CONCAT(table_name ORDER BY table_name), '') FROM information_schema.tables \
         WHERE table_schema='test'",
    )?;
    let mut sums = BTreeMap::new();
    for name in names.split(',').filter(|name| !name.is_empty()) {
        let answer = client.query(&format!("CHECKSUM TABLE test.{name}"))?;
        sums.insert(name.to_owned(), answer.column("Checksum")?.to_owned());
    }
    Ok(sums)
}

/// Waits until the replica has applied all that the cluster has, and compares the tables.
fn has_all(cluster: &Cluster, copy: &Server, instance: &Instance) -> Test {
    let last = cluster.servers[0].client()?.status("wsrep_last_committed")?;
    let mut client = cluster.servers[0].client()?;
    client.run(&["INSERT INTO test.rows (a) VALUES (-1)"])?;
    // This server may have been behind when it was asked for its last seqno. The row is behind all others.
    let row = client.value("SELECT LAST_INSERT_ID()")?;
    let reached = eventually("the replica has everything", || {
        let position = copy.client()?.value("SELECT @@gtid_slave_pos")?;
        let seqno = |text: &str| text.rsplit('-').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        let found = format!("SELECT COUNT(*) FROM test.rows WHERE id={row}");
        Ok(seqno(&position) > seqno(&last) && copy.client()?.value(&found)? == "1")
    });
    let state = copy.query("SHOW SLAVE STATUS")?;
    let names =
        ["Slave_IO_State", "Last_IO_Error", "Last_SQL_Error", "Slave_SQL_Running_State", "Master_Log_File"];
    let errors = names.map(|name| state.column(name).unwrap_or_default().to_owned());
    let position = state.column("Gtid_IO_Pos")?.to_owned();
    reached.map_err(|error| {
        LocalError::Value(format!("{error}: {errors:?}, read {position}, due {last}\n{}", instance.lines()))
    })?;
    same("tables", tables(copy)?, tables(&cluster.servers[0])?);
    Ok(())
}

#[test]
fn replica_of_binlog_server_has_what_the_cluster_has() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let mut cluster = Cluster::start(&streaming_spec())?;
    let mut instance = Instance::new(&cluster, "b1")?;
    instance.with_upstream(&cluster.servers[1])?;
    instance.start()?;
    let copy = replica(&cluster, &instance)?;
    let acknowledged = under_load(&cluster, || {
        std::thread::sleep(Duration::from_secs(6));
        Ok(())
    })?;
    eprintln!("{acknowledged} transactions");
    has_all(&cluster, &copy, &instance)?;
    shows_replica(&instance)?;
    takes_accounts_of_upstream(&cluster, &instance)?;

    // The instance is killed and comes back, and so does the leader, while clients write.
    let leader = cluster.servers.remove(0);
    let leader = std::sync::Mutex::new(leader);
    let acknowledged = under_load(&cluster, || {
        let mut leader = leader.lock().expect("nobody panicked");
        for _ in 0..2 {
            instance.kill();
            std::thread::sleep(Duration::from_millis(500));
            instance.start()?;
            leader.kill();
            std::thread::sleep(Duration::from_secs(1));
            leader.start(&[])?;
        }
        Ok(())
    })?;
    eprintln!("{acknowledged} transactions under kills");
    cluster.servers.insert(0, leader.into_inner().expect("nobody panicked"));
    has_all(&cluster, &copy, &instance)?;

    // It goes on by file and position, also when the instance is killed.
    let mut client = copy.client()?;
    client.run(&["STOP SLAVE"])?;
    let state = copy.query("SHOW SLAVE STATUS")?;
    let (file, position) = (state.column("Relay_Master_Log_File")?, state.column("Exec_Master_Log_Pos")?);
    assert!(file.starts_with("lockstep-bin."), "{file}");
    under_load(&cluster, || {
        std::thread::sleep(Duration::from_millis(500));
        let change = format!(
            "CHANGE MASTER TO MASTER_USE_GTID=no, MASTER_LOG_FILE='{file}', MASTER_LOG_POS={position}"
        );
        client.run(&[&change, "START SLAVE"])?;
        std::thread::sleep(Duration::from_secs(1));
        instance.kill();
        instance.start()?;
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    })?;
    has_all(&cluster, &copy, &instance)?;
    same("Using_Gtid", copy.query("SHOW SLAVE STATUS")?.column("Using_Gtid")?, "No");
    Ok(())
}

/// An account of the upstream signs in if it may replicate, and its statements are executed by the account for them.
fn takes_accounts_of_upstream(cluster: &Cluster, instance: &Instance) -> Test {
    let execute = |user: &str, sql: &str| {
        let output = Command::new("mariadb")
            .args([
                "--no-defaults",
                "--host=127.0.0.1",
                &format!("--user={user}"),
                "--password=u",
                "--skip-ssl",
            ])
            .args([&format!("--port={}", instance.ports.1), "--batch", "--skip-column-names"])
            .arg(format!("--execute={sql}"))
            .output();
        output.map_err(LocalError::io("run mariadb")).map(|output| {
            (
                String::from_utf8_lossy(&output.stdout).into_owned(),
                String::from_utf8_lossy(&output.stderr).into_owned(),
            )
        })
    };
    eventually("the upstream's account signs in", || {
        Ok(execute("up", "SHOW SLAVE HOSTS")?.0.starts_with("77\t"))
    })?;
    let expected = cluster.servers[1].client()?.value("SELECT COUNT(*) FROM test.rows")?;
    let (rows, error) =
        execute("up", "SELECT COUNT(*), REPEAT('x', 100000) FROM test.rows; SELECT 'two' FROM DUAL")?;
    assert!(rows.starts_with(&format!("{expected}\t")) && rows.ends_with("x\ntwo\n"), "{error}");
    let (_, error) = execute("up", "DELETE FROM test.rows")?;
    assert!(error.contains("ERROR 1142") && error.contains("'statements'"), "{error}");
    let (_, error) = execute("other", "SELECT 1")?;
    assert!(error.contains("ERROR 1045"), "{error}");
    // SIGHUP reads the file of accounts again.
    let accounts = instance.dir.join("accounts");
    std::fs::write(&accounts, "copy secret\nother u\n").map_err(LocalError::io("write accounts"))?;
    let process = instance.child.as_ref().map_or(0, Child::id);
    let sent = Command::new("kill").args(["-HUP", &process.to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()));
    eventually("the new account signs in", || Ok(execute("other", "SELECT 7")?.0 == "7\n"))?;
    cluster.servers[0].client()?.run(&["DROP USER up@'127.%'"])?;
    eventually("the dropped account is refused", || Ok(execute("up", "SELECT 1")?.1.contains("ERROR 1045")))
}

/// The replica is in the answer to `SHOW SLAVE HOSTS`, in the instance's status, and in its metrics.
fn shows_replica(instance: &Instance) -> Test {
    let run = |command: &mut Command| -> Result<String, LocalError> {
        let output = command.output().map_err(LocalError::io("run a program"))?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let hosts = run(Command::new("mariadb")
        .args(["--no-defaults", "--host=127.0.0.1", "--user=copy", "--password=secret", "--skip-ssl"])
        .args([&format!("--port={}", instance.ports.1), "--batch", "--execute=SHOW SLAVE HOSTS"]))?;
    assert!(hosts.starts_with("Server_id\tHost\tPort\tMaster_id\n77\t"), "{hosts}");
    let socket = instance.dir.join("lockstep.sock");
    eventually("the replica has everything by its status", || {
        let status = run(Command::new(built("lockstep")).arg("status").arg("--socket").arg(&socket))?;
        let line = status.lines().find(|line| line.starts_with("copy "));
        Ok(line.is_some_and(|line| line.contains(" 77 ") && line.contains("has all") && line.contains("0 B")))
    })?;
    let json = run(Command::new(built("lockstep")).args(["status", "--json"]).arg("--socket").arg(&socket))?;
    assert!(json.contains(r#""kind":"binlog""#) && json.contains(r#""server_id":77"#), "{json}");
    let metrics = run(Command::new("curl")
        .args(["--silent", "--fail", "--unix-socket"])
        .arg(&socket)
        .arg("http://localhost/metrics"))?;
    let sample = r#"lockstep_binlog_consumer_behind_bytes{user="copy",host="127.0.0.1",server_id="77"} 0"#;
    assert!(metrics.contains(sample), "{metrics}");
    Ok(())
}

#[test]
fn instances_of_binlog_server_write_identical_files() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let cluster = Cluster::start(&streaming_spec())?;
    let mut first = Instance::new(&cluster, "b1")?;
    first.start()?;
    let mut later = Instance::new(&cluster, "b2")?;
    let mut killed = Instance::new(&cluster, "b3")?;
    killed.start()?;
    under_load(&cluster, || {
        std::thread::sleep(Duration::from_secs(2));
        later.start()?;
        for _ in 0..3 {
            killed.kill();
            std::thread::sleep(Duration::from_millis(300));
            killed.start()?;
            std::thread::sleep(Duration::from_millis(700));
        }
        Ok(())
    })?;
    // One begins anew.
    later.kill();
    std::fs::remove_dir_all(later.files()).map_err(LocalError::io("remove files"))?;
    later.start()?;
    let all = [&first, &later, &killed];
    eventually("all have the same length", || {
        let lengths = all.map(|i| i.contents().values().map(Vec::len).sum::<usize>());
        std::thread::sleep(Duration::from_millis(500));
        let again = all.map(|i| i.contents().values().map(Vec::len).sum::<usize>());
        Ok(lengths == again && lengths.iter().all(|length| *length == lengths[0] && *length > 100_000))
    })?;
    let [a, b, c] = all.map(Instance::contents);
    assert!(a == b, "the one that began anew has other bytes");
    assert!(a == c, "the one that was killed has other bytes");
    same("what mariadb-binlog reads", read_raw(&cluster, &later)? == b, true);
    Ok(())
}

/// The files as `mariadb-binlog --raw` gets them from an instance.
fn read_raw(cluster: &Cluster, instance: &Instance) -> Result<BTreeMap<String, Vec<u8>>, LocalError> {
    let dir = cluster.bench().dir().join("raw");
    std::fs::create_dir_all(&dir).map_err(LocalError::io("make a directory"))?;
    let names: Vec<String> = instance.contents().into_keys().collect();
    let read = Command::new("mariadb-binlog")
        .args(["--read-from-remote-server", "--raw", "--host=127.0.0.1", "--user=copy", "--password=secret"])
        .args([&format!("--port={}", instance.ports.1), &format!("--result-file={}/", dir.display())])
        .args(&names)
        .output()
        .map_err(LocalError::io("run mariadb-binlog"))?;
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let read = |name: String| (name.clone(), std::fs::read(dir.join(name)).unwrap_or_default());
    Ok(names.into_iter().map(read).collect())
}

#[test]
fn replica_that_switches_between_instances_loses_nothing() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let cluster = Cluster::start(&streaming_spec())?;
    let mut instances = [Instance::new(&cluster, "b1")?, Instance::new(&cluster, "b2")?];
    let mut authority = PathBuf::new();
    for instance in &mut instances {
        authority = instance.with_tls(&cluster)?;
        instance.start()?;
    }
    let tls =
        format!(", MASTER_SSL=1, MASTER_SSL_VERIFY_SERVER_CERT=1, MASTER_SSL_CA='{}'", authority.display());
    let copy = replica_with(&cluster, &instances[0], &tls)?;
    let switches = if std::env::var_os("ROUNDS").is_some() { 100 } else { 12 };
    under_load(&cluster, || {
        for round in 1..=switches {
            std::thread::sleep(Duration::from_millis(400));
            let at = round % 2;
            if round % 3 == 0 {
                instances[1 - at].kill();
            }
            let port = instances[at].ports.1;
            copy.client()?.run(&[
                "STOP SLAVE",
                &format!("CHANGE MASTER TO MASTER_PORT={port}"),
                "START SLAVE",
            ])?;
            if round % 3 == 0 {
                instances[1 - at].start()?;
            }
        }
        Ok(())
    })?;
    has_all(&cluster, &copy, &instances[0])?;
    reads_with_tls_only(&instances[1], &authority)
}

/// `mariadb-binlog` reads from the instance with TLS, and is refused without.
fn reads_with_tls_only(instance: &Instance, authority: &std::path::Path) -> Test {
    let read = |option: &str| {
        Command::new("mariadb-binlog")
            .args(["--no-defaults", "--read-from-remote-server", "--host=127.0.0.1", "--user=copy"])
            .args(["--password=secret", &format!("--port={}", instance.ports.1), option])
            .args(instance.contents().into_keys().take(1))
            .output()
            .map_err(LocalError::io("run mariadb-binlog"))
    };
    let refused = read("--skip-ssl")?;
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("accepts connections with TLS only"), "{text}");
    let read = read(&format!("--ssl-ca={}", authority.display()))?;
    let text = String::from_utf8_lossy(&read.stdout);
    assert!(read.status.success() && text.contains("GTID"), "{}", String::from_utf8_lossy(&read.stderr));
    Ok(())
}

#[test]
fn full_disk_delays_the_stream_and_damages_nothing() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let cluster = Cluster::start(&streaming_spec())?;
    let mut instance = Instance::new(&cluster, "b1")?;
    let Some(disk) = Tmpfs::new(&instance.files(), 32) else {
        eprintln!("NOT TESTED: this user may not mount a file system");
        return Ok(());
    };
    instance.start()?;
    let copy = replica(&cluster, &instance)?;
    under_load(&cluster, || {
        std::thread::sleep(Duration::from_secs(1));
        disk.fill();
        eventually("the disk is full", || Ok(instance.lines().contains("the binlog files wait for space")))?;
        // A start on the full disk serves what is there.
        instance.kill();
        instance.start()?;
        eventually("the disk is full again", || {
            Ok(instance.lines().matches("the binlog files wait for space").count() == 2)
        })?;
        disk.make_room();
        eventually("the stream goes on", || Ok(instance.lines().contains("has space again")))
    })?;
    has_all(&cluster, &copy, &instance)
}

#[test]
fn replica_with_foreign_position_is_refused_by_name() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let cluster = Cluster::start(&streaming_spec())?;
    let mut instance = Instance::new(&cluster, "b1")?;
    instance.start()?;
    let copy = replica(&cluster, &instance)?;
    under_load(&cluster, || {
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    })?;
    has_all(&cluster, &copy, &instance)?;
    let mut client = copy.client()?;
    let position = client.value("SELECT @@gtid_slave_pos")?;
    let (own, _) = position.rsplit_once('-').expect("a GTID");
    for wrong in [format!("{own}-99999999"), "1-4711-3".into()] {
        client.run(&["STOP SLAVE", &format!("SET GLOBAL gtid_slave_pos='{wrong}'"), "START SLAVE"])?;
        let began = Instant::now();
        eventually("the replica has an error", || {
            let state = copy.query("SHOW SLAVE STATUS")?;
            Ok(state.column("Last_IO_Errno")? == "1236" && state.column("Last_IO_Error")?.contains(&wrong))
        })
        .map_err(|error| LocalError::Value(format!("{error} ({wrong}, {:?})", began.elapsed())))?;
    }
    Ok(())
}
