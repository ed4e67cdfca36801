//! Libraries of others read rows from `lockstep binlog serve`: each row once, also after kills.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockstep_lab::Cluster;
use lockstep_local::LocalError;

use crate::binlog::{Instance, under_load};
use crate::fixture::{Kind, Test, alone, built, eventually, kind, same, streaming_spec};

/// The programs that `scripts/setup.sh test` has installed.
fn installed(path: &str) -> Option<PathBuf> {
    let path = built("lockstep").with_file_name("../consumers").join(path);
    if !path.exists() {
        eprintln!("NOT TESTED: there is no {}; scripts/setup.sh test installs it", path.display());
        return None;
    }
    Some(path)
}

/// A program of `tests/consumers`.
fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/consumers").join(name)
}

/// A transaction as a consumer prints it: its GTID, and the ids of the inserted rows.
type Transaction = (String, Vec<u64>);

/// A running program that prints transactions; killed when it is dropped.
struct Consumer {
    child: Child,
    printed: Arc<Mutex<Vec<Transaction>>>,
    reader: Option<std::thread::JoinHandle<()>>,
    errors: PathBuf,
}

impl Consumer {
    /// Starts the program with a port and a GTID. Standard error goes to a file of this directory.
    fn start(
        mut program: Command,
        instance: &Instance,
        gtid: &str,
        dir: &Path,
    ) -> Result<Consumer, LocalError> {
        let errors = dir.join("consumer.errors");
        let file = std::fs::File::create(&errors).map_err(LocalError::io("make a file"))?;
        let mut child = program
            .args([&instance.ports.1.to_string(), gtid])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .map_err(LocalError::io("run a consumer"))?;
        let printed = Arc::new(Mutex::new(Vec::new()));
        let (lines, output) = (Arc::clone(&printed), child.stdout.take());
        let reader = std::thread::spawn(move || {
            let Some(output) = output else { return };
            let mut output = BufReader::new(output);
            let mut line = String::new();
            // A line without its end belongs to a killed consumer, which has not processed that transaction.
            while output.read_line(&mut line).is_ok() && line.ends_with('\n') {
                let mut words = line.split_whitespace();
                let gtid = words.next().unwrap_or_default().to_owned();
                let ids = words.map(|id| id.parse().expect("an id")).collect();
                lines.lock().unwrap_or_else(PoisonError::into_inner).push((gtid, ids));
                line.clear();
            }
        });
        Ok(Consumer { child, printed, reader: Some(reader), errors })
    }

    fn printed(&self) -> Vec<Transaction> {
        self.printed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn wait(&self, what: &str, is_enough: impl Fn(&[Transaction]) -> bool) -> Test {
        eventually(what, || Ok(is_enough(&self.printed()))).map_err(|error| {
            let errors = std::fs::read_to_string(&self.errors).unwrap_or_default();
            LocalError::Value(format!("{error}; {} transactions printed\n{errors}", self.printed().len()))
        })
    }

    /// Kills the program. Returns all that it has printed.
    fn kill(mut self) -> Vec<Transaction> {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        self.printed()
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A consumer is killed under load, and the instance as well; then the consumer resumes after the last GTID that it has
/// printed. It must have printed each row once.
fn reads_each_row_once(program: impl Fn() -> Command) -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let cluster = Cluster::start(&streaming_spec())?;
    let mut instance = Instance::new(&cluster, "b1")?;
    instance.start()?;
    let dir = cluster.bench().dir().to_owned();
    let mut all: Vec<Transaction> = Vec::new();
    let mut resumed = None;
    under_load(&cluster, || {
        let first = Consumer::start(program(), &instance, "", &dir)?;
        first.wait("the consumer reads", |printed| printed.len() > 200)?;
        all = first.kill();
        instance.kill();
        instance.start()?;
        let (last, _) = all.last().expect("it has printed transactions");
        let second = Consumer::start(program(), &instance, last, &dir)?;
        second.wait("the consumer reads after the kills", |printed| printed.len() > 200)?;
        resumed = Some(second);
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    })?;
    let mut client = cluster.servers[0].client()?;
    client.run(&["SET SESSION wsrep_sync_wait=15, group_concat_max_len=100000000"])?;
    client.run(&["INSERT INTO test.rows (a) VALUES (-1)"])?;
    let marker: u64 = client.value("SELECT LAST_INSERT_ID()")?.parse().expect("an id");
    let second = resumed.expect("it was started");
    second.wait("the consumer reads to the end", |printed| {
        printed.last().is_some_and(|(_, ids)| ids.contains(&marker))
    })?;
    all.extend(second.kill());
    let expected = client.value("SELECT GROUP_CONCAT(id ORDER BY id) FROM test.rows")?;
    let mut seen: Vec<u64> = all.iter().flat_map(|(_, ids)| ids.iter().copied()).collect();
    seen.sort_unstable();
    let seen: Vec<String> = seen.iter().map(u64::to_string).collect();
    eprintln!("{} rows in {} transactions", seen.len(), all.len());
    let seqnos: Vec<u64> = all
        .iter()
        .map(|(gtid, _)| gtid.rsplit('-').next().and_then(|n| n.parse().ok()).expect("a GTID"))
        .collect();
    same("ascending GTIDs", seqnos.is_sorted_by(|a, b| a < b), true);
    assert!(seen.join(",") == expected, "the consumer has not read each row of the table once");
    Ok(())
}

#[test]
fn java_connector_resumes_by_gtid_and_reads_each_row_once() -> Test {
    let Some(library) = installed("mysql-binlog-connector-java.jar") else { return Ok(()) };
    reads_each_row_once(|| {
        let mut java = Command::new("java");
        java.arg("-Xmx200m").arg("-cp").arg(&library).arg(source("Rows.java"));
        java
    })
}

#[test]
fn python_library_resumes_by_gtid_and_reads_each_row_once() -> Test {
    let Some(python) = installed("python/bin/python") else { return Ok(()) };
    reads_each_row_once(|| {
        let mut command = Command::new(&python);
        command.arg(source("rows.py"));
        command
    })
}
