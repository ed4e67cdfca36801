//! `lockstep binlog archive` and `restore`: a backup and the archive give the tables of any point in time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use lockstep_lab::Cluster;
use lockstep_local::{LocalError, Server, free_ports};

use crate::binlog::{tables, under_load};
use crate::fixture::{Kind, Test, alone, built, eventually, kind, same, streaming_spec};

/// Where the archive is: `--to` of the archiver and `--from` of a restore, and their environment.
struct Target {
    url: String,
    environment: Vec<(&'static str, String)>,
}

/// A running `lockstep binlog archive`; killed when it is dropped.
struct Archiver<'a> {
    child: Option<Child>,
    dir: PathBuf,
    port: u16,
    members: String,
    target: &'a Target,
}

impl<'a> Archiver<'a> {
    fn new(cluster: &Cluster, target: &'a Target) -> Result<Archiver<'a>, LocalError> {
        let dir = cluster.bench().dir().join("archiver");
        std::fs::create_dir_all(&dir).map_err(LocalError::io("make a directory"))?;
        let members = cluster.servers.iter().filter_map(|s| s.config.wsrep.as_ref());
        let members: Vec<String> = members.map(|wsrep| wsrep.peer_address()).collect();
        let (port, members) = (free_ports(1)?, format!("gcomm://{}", members.join(",")));
        Ok(Archiver { child: None, dir, port, members, target })
    }

    fn start(&mut self) -> Test {
        let log = std::fs::File::options().create(true).append(true).open(self.dir.join("messages"));
        let begins = self.lines().len();
        let child = Command::new(built("lockstep"))
            .args(["binlog", "archive", "--group", "lab", "--address", &self.members, "--interval", "1"])
            .args(["--options", &format!("gmcast.listen_addr=tcp://127.0.0.1:{}", self.port)])
            .args(["--to", &self.target.url, "--dir"])
            .arg(self.dir.join("own"))
            .envs(self.target.environment.clone())
            .stdin(Stdio::null())
            .stderr(log.map_err(LocalError::io("make a log"))?)
            .spawn();
        self.child = Some(child.map_err(LocalError::io("run lockstep binlog archive"))?);
        eventually("the archiver archives", || Ok(self.lines()[begins..].contains("is complete up to GTID")))
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
}

impl Drop for Archiver<'_> {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a program, which must succeed.
fn run(command: &mut Command) -> Result<Output, LocalError> {
    let output = command.stdin(Stdio::null()).output().map_err(LocalError::io("run a program"))?;
    if output.status.success() {
        return Ok(output);
    }
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Err(LocalError::Value(format!("{command:?}: {said}\n{errors}")))
}

fn restore(target: &Target, to: &str, backup: &Path, into: &Path) -> Result<String, LocalError> {
    let _ = std::fs::remove_dir_all(into);
    let mut command = Command::new(built("lockstep"));
    command.args(["binlog", "restore", "--from", &target.url, "--to", to]).envs(target.environment.clone());
    let output = run(command.arg("--backup").arg(backup).arg("--into").arg(into))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The binlog files in a directory, whole.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(dir).expect("restored files").map(|entry| entry.unwrap().path());
    entries.map(|path| (path.file_name().unwrap().into(), std::fs::read(&path).unwrap())).collect()
}

/// A server with the backup's data, and the restored files applied to them as the documents say.
fn recovered(cluster: &Cluster, backup: &Path, into: &Path) -> Result<Server, LocalError> {
    let mut server = cluster.bench().server("recovered", 91)?;
    let data = server.datadir();
    run(Command::new("mariadb-backup").arg("--prepare").arg(format!("--target-dir={}", backup.display())))?;
    std::fs::remove_dir_all(&data).map_err(LocalError::io("empty the data directory"))?;
    run(Command::new("mariadb-backup")
        .arg("--copy-back")
        .arg(format!("--target-dir={}", backup.display()))
        .arg(format!("--datadir={}", data.display())))?;
    run(Command::new("chown").arg("-R").arg("--reference").arg(cluster.servers[0].datadir()).arg(&data))?;
    server.start(&[])?;
    let socket = server.config.socket();
    let pipe = format!(
        "set -o pipefail; mariadb-binlog {}/lockstep-bin.* | mariadb --no-defaults --user=root --socket={}",
        into.display(),
        socket.display()
    );
    run(Command::new("bash").arg("-c").arg(pipe))?;
    Ok(server)
}

/// Clients write DDL and data. A copy is made, the archiver is killed, and a member is held back at a time. The copy and the
/// archive must give that member's tables.
fn point_in_time(target: impl FnOnce(&Cluster) -> Target) -> Test {
    let _one = alone();
    let mut cluster = Cluster::start(&streaming_spec())?;
    let target = target(&cluster);
    cluster.servers[0].client()?.run(&["CREATE DATABASE IF NOT EXISTS test"])?;
    let mut archiver = Archiver::new(&cluster, &target)?;
    archiver.start()?;
    // Clients write on the others only: a `CREATE OR REPLACE TABLE ... SELECT` that a hold refuses has dropped its table.
    let held = cluster.servers.remove(2);
    let backup = cluster.bench().dir().join("backup");
    let mut time = String::new();
    let acknowledged = under_load(&cluster, || {
        std::thread::sleep(Duration::from_secs(2));
        archiver.kill();
        run(Command::new("mariadb-backup")
            .args(["--backup", "--galera-info", "--user=root"])
            .arg(format!("--socket={}", cluster.servers[1].config.socket().display()))
            .arg(format!("--target-dir={}", backup.display())))?;
        archiver.start()?;
        for round in 0..4 {
            std::thread::sleep(Duration::from_millis(700 + round * 150));
            archiver.kill();
            if round == 2 {
                // Another machine takes over.
                std::fs::remove_dir_all(archiver.dir.join("own")).map_err(LocalError::io("remove files"))?;
            }
            archiver.start()?;
        }
        time =
            cluster.servers[0].client()?.value("SELECT UTC_TIMESTAMP(6) + INTERVAL 1500000 MICROSECOND")?;
        let hold = format!("SET GLOBAL wsrep_provider_options='apply.until={time}'");
        held.client()?.run(&[&hold])?;
        std::thread::sleep(Duration::from_millis(2000));
        archiver.kill();
        archiver.start()?;
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    })?;
    eprintln!("{acknowledged} transactions; held back at {time}");
    eventually("the member is held back", || {
        Ok(held.log().contains("apply.until: the server stops at seqno"))
    })?;
    let position = held.client()?.status("wsrep_last_committed")?;
    let (by_time, by_gtid) = (cluster.bench().dir().join("by-time"), cluster.bench().dir().join("by-gtid"));
    eventually("the archive has later transactions", || {
        Ok(restore(&target, &time, &backup, &by_time).is_ok())
    })
    .map_err(|error| {
        let refused = restore(&target, &time, &backup, &by_time).err();
        LocalError::Value(format!("{error}: {refused:?}\n{}", archiver.lines()))
    })?;
    eprintln!("{}", restore(&target, &time, &backup, &by_time)?);
    restore(&target, &position, &backup, &by_gtid)?;
    assert!(files(&by_time) == files(&by_gtid), "the time and seqno {position} give different files");
    let server = recovered(&cluster, &backup, &by_time)?;
    same("tables at that time", tables(&server)?, tables(&held)?);
    assert!(tables(&server)? != tables(&cluster.servers[0])?, "the cluster has not changed since");
    Ok(())
}

#[test]
fn backup_and_archive_give_tables_of_a_time() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    point_in_time(|cluster| Target {
        url: cluster.bench().dir().join("archive").display().to_string(),
        environment: Vec::new(),
    })
}

/// An S3 server on loopback; killed when it is dropped.
struct S3 {
    child: Child,
    port: u16,
}

impl S3 {
    /// `None` if `scripts/setup.sh test` has not installed it.
    fn start() -> Result<Option<S3>, LocalError> {
        let program = built("lockstep").with_file_name("../moto/bin/moto_server");
        if !program.exists() {
            eprintln!("NOT TESTED: there is no {}; scripts/setup.sh test installs it", program.display());
            return Ok(None);
        }
        let port = free_ports(1)?;
        let child = Command::new(program)
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(LocalError::io("run moto_server"))?;
        let server = S3 { child, port };
        // Makes the bucket: the server answers unsigned requests, too.
        eventually("the S3 server answers", || Ok(server.request("PUT", "/copies").contains(" 200 ")))?;
        Ok(Some(server))
    }

    /// The answer to a request without a body; empty if there is none.
    fn request(&self, method: &str, path: &str) -> String {
        use std::io::{Read, Write};
        let ask = || -> std::io::Result<String> {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.port))?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            let host = format!("127.0.0.1:{}", self.port);
            write!(
                stream,
                "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\
                 Authorization: AWS4-HMAC-SHA256 Credential=copy/20300101/us-east-1/s3/aws4_request\r\n\r\n"
            )?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().unwrap_or_default()
    }

    fn target(&self, bucket: &str) -> Target {
        let environment = [
            ("AWS_ACCESS_KEY_ID", "copy".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ];
        Target { url: format!("s3://{bucket}/shop/binlog"), environment: environment.to_vec() }
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn backup_and_s3_archive_give_tables_of_a_time() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let Some(server) = S3::start()? else { return Ok(()) };
    let missing = server.target("no-such-bucket");
    let refused = Command::new(built("lockstep"))
        .args(["binlog", "archive", "--address", "gcomm://127.0.0.1", "--group", "lab", "--to", &missing.url])
        .args(["--dir", "/nonexistent/lockstep-archive"])
        .envs(missing.environment)
        .output()
        .map_err(LocalError::io("run lockstep"))?;
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("Is the bucket there"), "{text}");
    point_in_time(|_| server.target("copies"))
}
