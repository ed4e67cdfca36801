//! `lockstep binlog serve`: stock replicas and tools read the cluster's transactions.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockstep_lab::Cluster;
use lockstep_local::{Client, LocalError, Server, free_ports};

use crate::fixture::{Kind, Test, alone, built, eventually, kind, same, streaming_spec};

/// A running `lockstep binlog serve`; killed when it is dropped.
struct Instance {
    child: Option<Child>,
    dir: PathBuf,
    /// The port for members, and the one for replicas.
    ports: (u16, u16),
    members: String,
    name: String,
}

impl Instance {
    fn new(cluster: &Cluster, name: &str) -> Result<Instance, LocalError> {
        let dir = cluster.bench().dir().join(name);
        let members = cluster.servers.iter().filter_map(|s| s.config.wsrep.as_ref());
        let members: Vec<String> = members.map(|wsrep| wsrep.peer_address()).collect();
        let instance = Instance {
            child: None,
            dir,
            ports: (free_ports(1)?, free_ports(1)?),
            members: format!("gcomm://{}", members.join(",")),
            name: name.to_owned(),
        };
        std::fs::create_dir_all(&instance.dir).map_err(LocalError::io("make a directory"))?;
        let accounts = instance.dir.join("accounts");
        std::fs::write(&accounts, "copy secret\n").map_err(LocalError::io("write accounts"))?;
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&accounts, private).map_err(LocalError::io("protect accounts"))?;
        Ok(instance)
    }

    /// Starts it, and waits until replicas may connect.
    fn start(&mut self) -> Test {
        let log = std::fs::File::options().create(true).append(true).open(self.dir.join("messages"));
        let begins = self.lines().len();
        let child = Command::new(built("lockstep"))
            .args(["binlog", "serve", "--group", "lab", "--address", &self.members, "--name", &self.name])
            .args(["--options", &format!("gmcast.listen_addr=tcp://127.0.0.1:{}", self.ports.0)])
            .args(["--listen", &format!("127.0.0.1:{}", self.ports.1), "--dir"])
            .arg(&self.dir)
            .arg("--accounts")
            .arg(self.dir.join("accounts"))
            .stdin(Stdio::null())
            .stderr(log.map_err(LocalError::io("make a log"))?)
            .spawn();
        self.child = Some(child.map_err(LocalError::io("run lockstep binlog"))?);
        eventually("the instance serves", || Ok(self.lines()[begins..].contains("serves replicas at")))
            .map_err(|error| LocalError::Value(format!("{error}\n{}", self.lines())))
    }

    fn kill(&mut self) {
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
             MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1",
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
    cluster.servers[0].client()?.run(&["INSERT INTO test.rows (a) VALUES (-1)"])?;
    let reached = eventually("the replica has everything", || {
        let position = copy.client()?.value("SELECT @@gtid_slave_pos")?;
        let seqno = |text: &str| text.rsplit('-').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        Ok(seqno(&position) > seqno(&last))
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
    instance.start()?;
    let copy = replica(&cluster, &instance)?;
    let acknowledged = under_load(&cluster, || {
        std::thread::sleep(Duration::from_secs(6));
        Ok(())
    })?;
    eprintln!("{acknowledged} transactions");
    has_all(&cluster, &copy, &instance)?;

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
    has_all(&cluster, &copy, &instance)
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
    for instance in &mut instances {
        instance.start()?;
    }
    let copy = replica(&cluster, &instances[0])?;
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
    has_all(&cluster, &copy, &instances[0])
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
