//! `lockstep binlog ingest`: log members copy a plain primary's binlog, and acknowledge its transactions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use lockstep_binlog::Library;
use lockstep_binlog::event::{Checksum, Group};
use lockstep_binlog::library::Step;
use lockstep_lab::Bench;
use lockstep_local::{LocalError, Server, free_ports};

use crate::fixture::{Kind, Test, alone, built, eventually, kind, same, within};

/// How long copies and replicas may take. A transaction of 1 GiB is written five times.
const COPIED_WITHIN: Duration = Duration::from_secs(180);

/// A log member; killed when it is dropped.
struct Member {
    child: Option<Child>,
    dir: PathBuf,
    /// The port for members, and the one for replicas.
    ports: (u16, u16),
    args: Vec<String>,
}

impl Member {
    fn start(&mut self, founds: bool) -> Test {
        let log = std::fs::File::options().create(true).append(true).open(self.dir.join("messages"));
        let mut command = Command::new(built("lockstep"));
        command.args(&self.args).stdin(Stdio::null()).stderr(log.map_err(LocalError::io("make a log"))?);
        if founds {
            command.arg("--new-cluster");
        }
        self.child = Some(command.spawn().map_err(LocalError::io("run lockstep binlog ingest"))?);
        Ok(())
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

    /// The copied files, whole.
    fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        binlogs(&self.dir.join("files"))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The names of the binlog files of a directory.
fn binlog_names(dir: &std::path::Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(dir).expect("the directory of files");
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let is_binlog = |name: &String| name.starts_with("bin.") && name[4..].bytes().all(|b| b.is_ascii_digit());
    names.filter(is_binlog).collect()
}

/// The binlog files of a directory. A member may remove old files meanwhile.
fn binlogs(dir: &std::path::Path) -> BTreeMap<String, Vec<u8>> {
    let read = |name: String| match std::fs::read(dir.join(&name)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        contents => Some((name, contents.unwrap())),
    };
    binlog_names(dir).into_iter().filter_map(read).collect()
}

/// A plain primary, and three log members.
struct Lab {
    bench: Bench,
    primary: Server,
    members: Vec<Member>,
}

/// The settings with which a primary waits for the members.
const SEMI_SYNC: [&str; 4] = [
    "SET GLOBAL rpl_semi_sync_master_wait_point='AFTER_SYNC'",
    "SET GLOBAL rpl_semi_sync_master_wait_no_slave=ON",
    "SET GLOBAL rpl_semi_sync_master_timeout=3600000",
    "SET GLOBAL rpl_semi_sync_master_enabled=ON",
];

/// Makes a certificate for the primary, which its account may read. Returns the lines of its option file, and the authority.
fn certificate(bench: &Bench) -> Result<(Vec<String>, PathBuf), LocalError> {
    let dir = bench.dir().join("tls");
    let made = Command::new(built("lockstep"))
        .args(["cert", "--name", "primary", "--san", "127.0.0.1", "--dir"])
        .arg(&dir)
        .output()
        .map_err(LocalError::io("run lockstep cert"))?;
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    for file in ["primary-cert.pem", "primary-key.pem", "ca.pem"] {
        bench.installation().give(&dir.join(file))?;
    }
    bench.installation().give(&dir)?;
    let lines = vec![
        format!("ssl_cert={}", dir.join("primary-cert.pem").display()),
        format!("ssl_key={}", dir.join("primary-key.pem").display()),
        "require_secure_transport=ON".into(),
    ];
    Ok((lines, dir.join("ca.pem")))
}

impl Lab {
    fn start() -> Result<Lab, LocalError> {
        Lab::start_with(false, &[], &[])
    }

    /// With TLS between primary and members, or without; with these lines of the primary's option file, and these options of
    /// the members.
    fn start_with(tls: bool, lines: &[String], options: &[&str]) -> Result<Lab, LocalError> {
        let bench = Bench::new()?;
        let mut primary = bench.server("primary", 11)?;
        let tls = if tls { Some(certificate(&bench)?) } else { None };
        primary.config.extra = vec![
            "log_bin=bin".into(),
            "binlog_checksum=CRC32".into(),
            "sync_binlog=1".into(),
            "innodb_flush_log_at_trx_commit=1".into(),
            "rpl_semi_sync_master_enabled=ON".into(),
            "rpl_semi_sync_master_wait_point=AFTER_SYNC".into(),
            "rpl_semi_sync_master_wait_no_slave=ON".into(),
            "rpl_semi_sync_master_timeout=3600000".into(),
        ];
        primary.config.extra.extend(tls.iter().flat_map(|(lines, _)| lines.clone()));
        primary.config.extra.extend_from_slice(lines);
        bench.fresh_data(&primary.config)?;
        primary.start(&[])?;
        // Nobody acknowledges these yet.
        primary.client()?.run(&[
            "SET GLOBAL rpl_semi_sync_master_enabled=OFF",
            "CREATE USER copy@'%' IDENTIFIED BY 'secret'",
            "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO copy@'%'",
            "CREATE DATABASE IF NOT EXISTS test",
            "CREATE TABLE test.rows (id BIGINT PRIMARY KEY, a VARCHAR(200), b LONGBLOB)",
            "SET GLOBAL rpl_semi_sync_master_enabled=ON",
        ])?;
        let ports: Vec<(u16, u16)> =
            (0..3).map(|_| Ok((free_ports(1)?, free_ports(1)?))).collect::<Result<_, LocalError>>()?;
        let mut members = Vec::new();
        for (number, own) in ports.iter().enumerate() {
            let dir = bench.dir().join(format!("i{number}"));
            std::fs::create_dir_all(&dir).map_err(LocalError::io("make a directory"))?;
            for (name, text) in [("password", "secret\n"), ("accounts", "copy secret\n")] {
                std::fs::write(dir.join(name), text).map_err(LocalError::io("write a file"))?;
                let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                std::fs::set_permissions(dir.join(name), private)
                    .map_err(LocalError::io("protect a file"))?;
            }
            let others =
                ports.iter().filter(|other| *other != own).map(|(port, _)| format!("127.0.0.1:{port}"));
            let args = [
                "binlog".to_owned(),
                "ingest".into(),
                format!("--address=gcomm://{}", others.collect::<Vec<_>>().join(",")),
                "--group=ingest".into(),
                format!("--name=i{number}"),
                format!("--options=gmcast.listen_addr=tcp://127.0.0.1:{}", own.0),
                format!("--from=127.0.0.1:{}", primary.config.sql_port),
                "--user=copy".into(),
                format!("--password-file={}", dir.join("password").display()),
                format!("--listen=127.0.0.1:{}", own.1),
                format!("--accounts={}", dir.join("accounts").display()),
                format!("--dir={}", dir.display()),
            ];
            let mut args = args.to_vec();
            args.retain(|arg| {
                !arg.starts_with("--from=") || !options.iter().any(|o| o.starts_with("--from="))
            });
            args.extend(options.iter().map(|option| (*option).to_owned()));
            args.extend(tls.iter().map(|(_, authority)| format!("--ssl-ca={}", authority.display())));
            members.push(Member { child: None, dir, ports: *own, args });
        }
        let mut lab = Lab { bench, primary, members };
        for (number, member) in lab.members.iter_mut().enumerate() {
            member.start(number == 0)?;
        }
        eventually("all members have the primary's binlog", || {
            Ok(lab.members.iter().all(|member| member.lines().contains("serves replicas at")))
        })
        .map_err(|error| lab.explain(&error))?;
        Ok(lab)
    }

    /// How often members have said this, all together.
    fn said(&self, text: &str) -> usize {
        self.members.iter().map(|member| member.lines().matches(text).count()).sum()
    }

    /// Waits until all members vote.
    fn votes(&self) -> Test {
        eventually("all members vote", || Ok(self.said("has it on disk: 2 of 3") > 0))
            .map_err(|error| self.explain(&error))
    }

    fn explain(&self, error: &LocalError) -> LocalError {
        let lines: Vec<String> = self.members.iter().map(Member::lines).collect();
        LocalError::Value(format!("{error}\n{}", lines.join("\n--\n")))
    }

    /// Restarts all members with another primary, at this port.
    fn read_from(&mut self, port: u16) -> Test {
        for member in &mut self.members {
            member.kill();
            member.args.retain(|arg| !arg.starts_with("--from="));
            member.args.push(format!("--from=127.0.0.1:{port}"));
            member.start(false)?;
        }
        Ok(())
    }

    /// Waits until all copies end where the primary's binlog does.
    fn settle(&self) -> Test {
        let mut status = self.primary.client()?;
        within(COPIED_WITHIN, "all copies have everything", || {
            let answer = status.query("SHOW MASTER STATUS")?;
            let (file, end) = (answer.column("File")?.to_owned(), answer.column("Position")?.to_owned());
            Ok(self.members.iter().all(|member| {
                let length = std::fs::metadata(member.dir.join("files").join(&file)).map(|m| m.len());
                length.is_ok_and(|length| length.to_string() == end)
            }))
        })
        .map_err(|error| self.explain(&error))
    }
}

/// Clients of the primary write while `act` is done. Returns the rows that were acknowledged, and the longest wait.
fn under_load(
    primary: &Server,
    next: &AtomicI64,
    act: impl FnOnce() -> Test,
) -> Result<(BTreeSet<i64>, Duration), LocalError> {
    let stop = AtomicBool::new(false);
    let acknowledged = Mutex::new((BTreeSet::new(), Duration::ZERO));
    let write = || {
        let Ok(mut client) = primary.client() else { return };
        while !stop.load(Ordering::Relaxed) {
            let id = next.fetch_add(1, Ordering::Relaxed);
            let began = Instant::now();
            let size = if id % 50 == 0 { 2_000_000 } else { 100 };
            let insert = format!("INSERT INTO test.rows VALUES ({id}, 'row {id}', REPEAT('b', {size}))");
            if client.run(&[&insert]).is_err() {
                return;
            }
            let mut acknowledged = acknowledged.lock().expect("nobody panicked");
            acknowledged.0.insert(id);
            acknowledged.1 = acknowledged.1.max(began.elapsed());
        }
    };
    let outcome = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(write);
        }
        let outcome = act();
        stop.store(true, Ordering::Relaxed);
        outcome
    });
    outcome?;
    Ok(acknowledged.into_inner().expect("nobody panicked"))
}

/// A stock replica of a member.
fn replica(bench: &Bench, port: u16) -> Result<Server, LocalError> {
    replica_named(bench, "promoted", 77, port)
}

fn replica_named(bench: &Bench, name: &str, id: u32, port: u16) -> Result<Server, LocalError> {
    let server = empty(bench, name, id, &[])?;
    follow(&server, port)?;
    Ok(server)
}

/// An empty server that can become a replica.
fn empty(bench: &Bench, name: &str, id: u32, options: &[&str]) -> Result<Server, LocalError> {
    let mut server = bench.server(name, id)?;
    server.config.extra = vec![
        "log_bin=bin".into(),
        "log_slave_updates=ON".into(),
        "sync_binlog=1".into(),
        "gtid_strict_mode=ON".into(),
        "innodb_flush_log_at_trx_commit=2".into(),
    ];
    server.config.extra.extend(options.iter().map(|option| (*option).to_owned()));
    bench.fresh_data(&server.config)?;
    server.start(&[])?;
    Ok(server)
}

/// Lets a server read from a member, after the GTIDs that it has.
fn follow(server: &Server, port: u16) -> Test {
    server.client()?.run(&[
        &format!(
            "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, MASTER_USER='copy', MASTER_PASSWORD='secret', \
             MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1"
        ),
        "START SLAVE",
    ])?;
    Ok(())
}

#[test]
fn killed_primary_and_members_lose_no_acknowledged_transaction() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let mut lab = Lab::start()?;
    let next = AtomicI64::new(1);
    let rounds = if std::env::var_os("ROUNDS").is_some() { 12 } else { 3 };

    let fallbacks = |lab: &Lab| lab.primary.client()?.status("Rpl_semi_sync_master_no_times");
    let before = fallbacks(&lab)?;

    // Members are killed while clients write: the one that reads the primary, and others.
    let Lab { bench: _, primary, members } = &mut lab;
    let mut all = BTreeSet::new();
    let (rows, longest) = under_load(primary, &next, || {
        for round in 0..rounds {
            std::thread::sleep(Duration::from_secs(2));
            let victim = if round == 0 { 0 } else { round % 3 };
            members[victim].kill();
            std::thread::sleep(Duration::from_secs(2));
            members[victim].start(false)?;
        }
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    })?;
    eprintln!("{} transactions under kills of members, the longest took {longest:?}", rows.len());
    assert!(longest < Duration::from_secs(20), "{longest:?}");
    all.extend(rows);
    same("times that the primary fell back", fallbacks(&lab)?, before);

    // The copies are the primary's files.
    lab.primary.client()?.run(&["FLUSH BINARY LOGS"])?;
    lab.settle()?;
    let mut own = binlogs(&lab.primary.config.datadir());
    own.pop_last();
    for member in &lab.members {
        let mut copy = member.contents();
        copy.pop_last();
        assert!(copy == own, "files {:?} and {:?}", copy.keys(), own.keys());
    }

    // The primary is killed for good while clients write.
    let pid = lab.primary.pid().expect("the primary runs").to_string();
    let (rows, _) = under_load(&lab.primary, &next, || {
        std::thread::sleep(Duration::from_secs(2));
        let killed =
            Command::new("kill").args(["-9", &pid]).status().map_err(LocalError::io("kill the primary"))?;
        assert!(killed.success());
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    })?;
    eprintln!("{} transactions before the primary was killed", rows.len());
    all.extend(rows);
    lab.primary.kill();

    // A replica of any member has every acknowledged row.
    let promoted = replica(&lab.bench, lab.members[2].ports.1)?;
    has_rows(&lab, &promoted, &all)
}

/// Whether two files have the same bytes. They are too large to be read as a whole.
fn same_bytes(one: &std::path::Path, other: &std::path::Path) -> Result<bool, LocalError> {
    let status = Command::new("cmp").arg(one).arg(other).stdout(Stdio::null()).status();
    Ok(status.map_err(LocalError::io("run cmp"))?.success())
}

#[test]
fn large_transaction_is_acknowledged_copied_and_replicated() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let lab = Lab::start()?;
    // With ROUNDS the transaction has more than 1 GiB.
    let rows = if std::env::var_os("ROUNDS").is_some() { 1100 } else { 150 };
    lab.primary.client()?.run(&[
        // As a statement it would be short.
        "SET SESSION binlog_format=ROW",
        &format!(
            "INSERT INTO test.rows SELECT seq, 'large', REPEAT(CHAR(65 + seq % 26), 1048576) FROM test.seq_1_to_{rows}"
        ),
        "INSERT INTO test.rows VALUES (100000, 'after', 'it')",
    ])?;
    // The file in use has a mark that the copies lack.
    lab.primary.client()?.run(&["FLUSH BINARY LOGS"])?;
    lab.settle()?;
    let mut names = binlog_names(&lab.primary.config.datadir());
    names.pop_last();
    assert!(!names.is_empty());
    for name in names {
        for member in &lab.members {
            let (own, copy) =
                (lab.primary.config.datadir().join(&name), member.dir.join("files").join(&name));
            assert!(same_bytes(&own, &copy)?, "{name} differs in {}", copy.display());
        }
    }
    let replica = replica(&lab.bench, lab.members[1].ports.1)?;
    has_rows(&lab, &replica, &BTreeSet::from([1, rows, 100_000]))?;
    let sum = "SELECT COUNT(*), SUM(CRC32(b)), SUM(LENGTH(b)) FROM test.rows";
    let sums = |server: &Server| {
        let answer = server.query(sum)?;
        ["COUNT(*)", "SUM(CRC32(b))", "SUM(LENGTH(b))"]
            .map(|column| answer.column(column).map(str::to_owned))
            .into_iter()
            .collect::<Result<Vec<_>, _>>()
    };
    same("rows of the replica", sums(&replica)?, sums(&lab.primary)?);
    Ok(())
}

/// Waits until the replica has these rows.
fn has_rows(lab: &Lab, replica: &Server, due: &BTreeSet<i64>) -> Test {
    let has_all = within(COPIED_WITHIN, "the replica has all acknowledged rows", || {
        let mut client = replica.client()?;
        client.run(&["SET SESSION group_concat_max_len=100000000"])?;
        let Ok(ids) = client.value("SELECT COALESCE(GROUP_CONCAT(id), '') FROM test.rows") else {
            return Ok(false);
        };
        let ids: BTreeSet<i64> = ids.split(',').filter_map(|id| id.parse().ok()).collect();
        Ok(due.is_subset(&ids))
    });
    has_all.map_err(|error| {
        let state = replica.query("SHOW SLAVE STATUS");
        let column = |name| {
            state.as_ref().ok().and_then(|state| state.column(name).ok()).unwrap_or_default().to_owned()
        };
        let errors = ["Last_IO_Error", "Last_SQL_Error"].map(column);
        lab.explain(&LocalError::Value(format!("{error}: {errors:?}")))
    })
}

#[test]
fn promoted_replica_takes_over_in_the_same_group() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let mut lab = Lab::start()?;
    let next = AtomicI64::new(1);
    // The replicas of two members follow all the time.
    let mut promoted = replica(&lab.bench, lab.members[2].ports.1)?;
    let other = replica_named(&lab.bench, "other", 78, lab.members[1].ports.1)?;
    let pid = lab.primary.pid().expect("the primary runs").to_string();
    let (mut all, _) = under_load(&lab.primary, &next, || {
        std::thread::sleep(Duration::from_secs(2));
        let killed =
            Command::new("kill").args(["-9", &pid]).status().map_err(LocalError::io("kill the primary"))?;
        assert!(killed.success());
        std::thread::sleep(Duration::from_millis(300));
        Ok(())
    })?;
    lab.primary.kill();
    has_rows(&lab, &promoted, &all)?;

    // The replica is promoted, and the members are told.
    let before = lab.members[0].contents();
    promoted.client()?.run(&["STOP SLAVE", "RESET SLAVE ALL"])?;
    promoted.client()?.run(&SEMI_SYNC)?;
    lab.read_from(promoted.config.sql_port)?;
    let took = |member: &Member| member.lines().contains("another primary has taken over");
    eventually("all members have taken over", || Ok(lab.members.iter().all(took)))
        .map_err(|error| lab.explain(&error))?;
    let (rows, longest) = under_load(&promoted, &next, || {
        std::thread::sleep(Duration::from_secs(1));
        // A member that was killed goes on in the new primary's binlog.
        lab.members[0].kill();
        std::thread::sleep(Duration::from_secs(1));
        lab.members[0].start(false)?;
        std::thread::sleep(Duration::from_secs(2));
        Ok(())
    })?;
    eprintln!("{} transactions on the promoted server, the longest took {longest:?}", rows.len());
    assert!(!rows.is_empty() && longest < Duration::from_secs(20), "{longest:?}");
    same("times that it fell back", promoted.client()?.status("Rpl_semi_sync_master_no_times")?, "0".into());
    all.extend(rows);
    has_rows(&lab, &other, &all)?;
    // The copies are the promoted server's files; a file that it still writes is marked as open there.
    promoted.client()?.run(&["FLUSH BINARY LOGS"])?;
    let copies = |lab: &Lab| -> Vec<BTreeMap<String, Vec<u8>>> {
        lab.members.iter().map(|member| binlogs(&member.dir.join("files/primary-2"))).collect()
    };
    let mut own = binlogs(&promoted.config.datadir());
    own.pop_last();
    eventually("the copies are the promoted server's files", || {
        Ok(copies(&lab).iter().all(|copy| own.iter().all(|(file, bytes)| copy.get(file) == Some(bytes))))
    })
    .map_err(|error| lab.explain(&error))?;
    assert!(lab.members[0].contents() == before, "the files of the primary before have changed");

    // The former primary has a transaction that was never acknowledged.
    lab.primary.start(&[])?;
    let errant =
        ["SET GLOBAL rpl_semi_sync_master_enabled=OFF", "INSERT INTO test.rows VALUES (-1, 'errant', '')"];
    lab.primary.client()?.run(&errant)?;
    let newest = binlog_names(&promoted.config.datadir()).pop_last();
    promoted.kill();
    // The begin of the newest file may still be on its way.
    eventually("all members have the newest file", || {
        let copies = copies(&lab);
        let has_newest =
            |copy: &BTreeMap<String, Vec<u8>>| copy.last_key_value().map(|(name, _)| name) == newest.as_ref();
        Ok(copies.iter().all(|copy| has_newest(copy) && *copy == copies[0]))
    })
    .map_err(|error| lab.explain(&error))?;
    let before = copies(&lab);
    let port = lab.primary.config.sql_port;
    lab.read_from(port)?;
    let refused = |member: &Member| member.lines().contains("it cannot take over, because");
    eventually("the former primary is refused", || Ok(lab.members.iter().any(refused)))
        .map_err(|error| lab.explain(&error))?;
    std::thread::sleep(Duration::from_secs(1));
    assert!(copies(&lab) == before, "the copies have changed");
    Ok(())
}

/// The GTIDs of a directory's binlog files, in their order.
fn gtids(dir: &std::path::Path) -> Vec<String> {
    let library = Library::open_read_only(dir, "bin").expect("binlog files");
    let begin = library.position_in("", 4).expect("a first file").at;
    let mut reader = library.reader("test", begin).expect("a first file");
    let (mut group, mut found) = (Group::default(), Vec::new());
    loop {
        match reader.advance().expect("an event") {
            Step::End => return found,
            Step::FileEnd => reader.next_file().expect("another file"),
            Step::Event => {
                let event = reader.event();
                let begun = group.pass(event[4], event, Checksum::Crc32).expect("a whole event");
                found.extend(begun.map(|begun| begun.gtid.to_string()));
            }
        }
    }
}

/// The promoted server's binlog orders two domains differently than the copy. A third domain is in its backup only.
#[test]
fn promoted_replica_takes_over_with_several_domains() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let mut lab = Lab::start()?;
    let mut primary = lab.primary.client()?;
    let insert = |id: i64| format!("INSERT INTO test.rows VALUES ({id}, 'row {id}', '')");
    let domain = |id: u32| format!("SET SESSION gtid_domain_id={id}");
    // Nothing is written in domain 5 after the backup.
    primary.run(&[&domain(5), &insert(1), &domain(0)])?;
    let backup = primary.value("SELECT @@GLOBAL.gtid_binlog_pos")?;
    let options = ["slave_parallel_threads=4", "innodb_lock_wait_timeout=600"];
    let promoted = empty(&lab.bench, "promoted", 77, &options)?;
    promoted.client()?.run(&[
        "SET SESSION sql_log_bin=0",
        "CREATE DATABASE IF NOT EXISTS test",
        "CREATE TABLE test.rows (id BIGINT PRIMARY KEY, a VARCHAR(200), b LONGBLOB)",
        &insert(1),
        "CREATE USER copy@'%' IDENTIFIED BY 'secret'",
        "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO copy@'%'",
        "RESET MASTER",
        &format!("SET GLOBAL gtid_slave_pos='{backup}'"),
    ])?;
    follow(&promoted, lab.members[2].ports.1)?;
    let other = replica_named(&lab.bench, "other", 78, lab.members[1].ports.1)?;

    // A client of the promoted server holds domain 3 up, and domain 0 goes on.
    let mut blocks = promoted.client()?;
    blocks.run(&["BEGIN", &insert(10)])?;
    primary.run(&[&domain(3), &insert(10), &domain(0)])?;
    let zero: BTreeSet<i64> = (11..=20).collect();
    for id in &zero {
        primary.run(&[&insert(*id)])?;
    }
    lab.settle()?;
    lab.primary.kill();
    has_rows(&lab, &promoted, &zero)?;
    // It writes in its backup's domain too early.
    promoted.client()?.run(&[&domain(5), &insert(30)])?;
    lab.read_from(promoted.config.sql_port)?;
    let says = |lab: &Lab, text: &str| lab.members.iter().any(|member| member.lines().contains(text));
    let lacks = "in domain 3 this copy ends with 3-11-1, its binlog with nothing, and its gtid_slave_pos with nothing";
    eventually("the server without domain 3 is refused", || Ok(says(&lab, lacks)))
        .map_err(|error| lab.explain(&error))?;

    // It catches up.
    blocks.run(&["ROLLBACK"])?;
    has_rows(&lab, &promoted, &BTreeSet::from([1, 10, 30]))?;
    let took = |member: &Member| member.lines().contains("another primary has taken over");
    eventually("all members have taken over", || Ok(lab.members.iter().all(took)))
        .map_err(|error| lab.explain(&error))?;
    promoted.client()?.run(&["STOP SLAVE", "RESET SLAVE ALL"])?;
    promoted.client()?.run(&SEMI_SYNC)?;
    for (id, number) in [(40, 0), (41, 3), (42, 5)] {
        promoted.client()?.run(&[&domain(number), &insert(id)])?;
    }
    // The new primary has the domains in another order, and its binlog begins the backup's domain with its own write.
    let (copied, own) = (gtids(&lab.members[0].dir.join("files")), gtids(&promoted.config.datadir()));
    let in_order = |gtids: &[String], first: &str| {
        let place = |gtid: &str| gtids.iter().position(|found| found == gtid);
        (place(first), place("3-11-1"))
    };
    let last = copied.iter().rev().find(|gtid| gtid.starts_with("0-11-")).expect("domain 0").clone();
    let (of_copy, of_own) = (in_order(&copied, &last), in_order(&own, &last));
    assert!(of_copy.0 > of_copy.1 && of_own.0 < of_own.1, "{last}: {copied:?} {own:?}");
    let fifth: Vec<&String> = own.iter().filter(|gtid| gtid.starts_with("5-")).collect();
    assert_eq!(fifth, ["5-77-2", "5-77-3"]);
    // The replica that follows a member has each row once.
    let all = BTreeSet::from([1, 10, 11, 20, 30, 40, 41, 42]);
    has_rows(&lab, &other, &all)?;
    let rows = |server: &Server| server.client()?.value("SELECT COUNT(*) FROM test.rows");
    same("rows of the other replica", rows(&other)?, rows(&promoted)?);
    let copies = || lab.members.iter().map(|member| binlogs(&member.dir.join("files/primary-2")));
    promoted.client()?.run(&["FLUSH BINARY LOGS"])?;
    let mut files = binlogs(&promoted.config.datadir());
    files.pop_last();
    eventually("the copies are the promoted server's files", || {
        Ok(copies().all(|copy| files.iter().all(|(file, bytes)| copy.get(file) == Some(bytes))))
    })
    .map_err(|error| lab.explain(&error))
}

#[test]
fn members_read_the_primary_with_tls_and_remove_old_files() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let lab = Lab::start_with(true, &[], &["--keep=300K"])?;
    let (rows, longest) = under_load(&lab.primary, &AtomicI64::new(1), || {
        std::thread::sleep(Duration::from_secs(2));
        Ok(())
    })?;
    eprintln!("{} transactions with TLS, the longest took {longest:?}", rows.len());
    assert!(rows.len() > 20, "{}", rows.len());
    let mut client = lab.primary.client()?;
    for id in 0..5 {
        client.run(&[&format!(
            "INSERT INTO test.rows VALUES ({}, 'x', REPEAT('x', 200000))",
            1_000_000 + id
        )])?;
        client.run(&["FLUSH BINARY LOGS"])?;
    }
    lab.settle()?;
    eventually("old files are removed", || {
        Ok(lab.members.iter().all(|m| m.contents().len() <= 4 && m.lines().contains("removed binlog files")))
    })
    .map_err(|error| lab.explain(&error))?;
    // The rest is served.
    same(
        "members that serve",
        lab.members.iter().filter(|m| m.lines().contains("serves replicas at")).count(),
        3,
    );
    Ok(())
}

#[test]
fn primary_whose_binlog_was_reset_gets_no_acknowledgement() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let lab = Lab::start()?;
    let mut client = lab.primary.client()?;
    for id in 1..=20 {
        client.run(&[&format!("INSERT INTO test.rows VALUES ({id}, 'before', 'x')")])?;
    }
    lab.settle()?;
    let before: Vec<_> = lab.members.iter().map(Member::contents).collect();
    // The new binlog has the old one's name, and grows beyond the copy's end before anybody waits.
    client.run(&["SET GLOBAL rpl_semi_sync_master_enabled=OFF", "RESET MASTER"])?;
    for id in 101..=160 {
        client
            .run(&[&format!("INSERT INTO test.rows VALUES ({id}, 'after the reset', REPEAT('y', 500))")])?;
    }
    client.run(&["SET GLOBAL rpl_semi_sync_master_enabled=ON"])?;
    let outcome = std::thread::scope(|scope| {
        let waits =
            scope.spawn(|| lab.primary.client()?.run(&["INSERT INTO test.rows VALUES (1000, 'waits', 'x')"]));
        std::thread::sleep(Duration::from_secs(5));
        let returned = waits.is_finished();
        client.run(&["SET GLOBAL rpl_semi_sync_master_enabled=OFF"])?;
        waits.join().expect("the client does not panic")?;
        Ok::<bool, LocalError>(returned)
    });
    assert!(!outcome?, "the commit returned, and no member has it");
    let said = |member: &Member| member.lines().contains("cannot read the primary");
    assert!(lab.members.iter().any(said), "{}", lab.explain(&LocalError::Value("no warning".into())));
    let after: Vec<_> = lab.members.iter().map(Member::contents).collect();
    assert!(before == after, "the copies have changed");
    Ok(())
}

#[test]
fn second_acknowledging_replica_is_reported() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let lab = Lab::start()?;
    lab.votes()?;
    let durable = "has it on disk: 2 of 3";
    let before = lab.said(durable);
    let other = empty(&lab.bench, "other", 78, &["rpl_semi_sync_slave_enabled=ON"])?;
    follow(&other, lab.primary.config.sql_port)?;
    eventually("the other replica is reported", || Ok(lab.said("that acknowledge as well: 1.") > 0))
        .map_err(|error| lab.explain(&error))?;
    other.client()?.run(&["SET GLOBAL rpl_semi_sync_slave_enabled=OFF", "STOP SLAVE", "START SLAVE"])?;
    eventually("the primary waits for a majority again", || Ok(lab.said(durable) > before))
        .map_err(|error| lab.explain(&error))
}

#[test]
fn primary_without_free_connection_is_read_by_extra_port() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let extra = free_ports(1)?;
    let lines =
        [format!("extra_port={extra}"), "extra_max_connections=10".into(), "max_connections=10".into()];
    let mut lab = Lab::start_with(false, &lines, &[&format!("--from=127.0.0.1:{extra}")])?;
    let leader =
        |lab: &Lab| lab.members.iter().position(|member| member.lines().contains("reads the binlog of"));
    lab.votes()?;
    // All connections wait in their commits, and the leader's own are gone.
    let killed = leader(&lab).expect("it was found");
    lab.members[killed].kill();
    let mut clients = Vec::new();
    std::thread::scope(|scope| {
        let mut waiting = Vec::new();
        while let Ok(client) = lab.primary.client() {
            clients.push(client);
        }
        for (id, client) in clients.iter_mut().enumerate() {
            waiting.push(
                scope.spawn(move || client.run(&[&format!("INSERT INTO test.rows VALUES ({id}, 'x', 'x')")])),
            );
        }
        for waits in waiting {
            waits.join().expect("the client does not panic")?;
        }
        Ok::<(), LocalError>(())
    })
    .map_err(|error| lab.explain(&error))
}

#[test]
fn member_that_lost_its_directory_refuses_to_found_again() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let mut lab = Lab::start()?;
    lab.votes()?;
    lab.primary.client()?.run(&["INSERT INTO test.rows VALUES (1, 'x', 'x')"])?;
    let lost = &mut lab.members[0];
    lost.kill();
    for entry in std::fs::read_dir(&lost.dir).map_err(LocalError::io("read a directory"))? {
        let path = entry.map_err(LocalError::io("read a directory"))?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() {
            std::fs::remove_dir_all(&path).map_err(LocalError::io("remove a directory"))?;
        } else if name.starts_with("lockstep.") {
            std::fs::remove_file(&path).map_err(LocalError::io("remove a file"))?;
        }
    }
    lost.start(true)?;
    eventually("the member refuses to found a second group", || {
        Ok(lab.members[0].lines().contains("a second time"))
    })
    .map_err(|error| lab.explain(&error))?;
    lab.members[0].kill();
    lab.members[0].start(false)?;
    lab.primary.client()?.run(&["INSERT INTO test.rows VALUES (2, 'x', 'x')"])?;
    lab.settle()
}
