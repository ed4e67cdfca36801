//! A disk that fills up, or hangs, under a member's log.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockstep_lab::Cluster;
use lockstep_local::{Client, LocalError};

use crate::fixture::{Kind, Test, alone, eventually, kind, same, session, spec};
use crate::rejoin::{mark, others_see, unmark};
use crate::stress::{audit, bank_until, open_bank};

/// A file system in memory, as small as it is made.
pub(crate) struct Tmpfs(PathBuf);

impl Tmpfs {
    /// `None` where this user may not mount.
    pub(crate) fn new(path: &Path, megabytes: u32) -> Option<Tmpfs> {
        std::fs::create_dir_all(path).ok()?;
        let options = format!("size={megabytes}m,mode=0777");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(path).output();
        mount.is_ok_and(|o| o.status.success()).then(|| Tmpfs(path.to_owned()))
    }

    /// Takes all the room that is left.
    pub(crate) fn fill(&self) {
        let mut size = 1 << 20;
        let mut file = std::fs::File::create(self.0.join("filler")).expect("a file beside the log");
        while size > 0 {
            match std::io::Write::write_all(&mut file, &vec![1; size]) {
                Ok(()) => {}
                Err(_) => size /= 2,
            }
        }
    }

    pub(crate) fn make_room(&self) {
        std::fs::remove_file(self.0.join("filler")).expect("the file beside the log");
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// What a broken disk answers from then on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Broken {
    /// The kernel has made the file system read-only after an error: EROFS.
    ReadOnly,
    /// Each operation fails: EIO.
    IoErrors,
}

impl Broken {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Broken::ReadOnly => "Read-only file system",
            Broken::IoErrors => "Input/output error",
        }
    }
}

/// A file system of its own, in a file. It can be frozen: its writes and syncs then hang, without an error. Or it breaks.
pub(crate) struct Ext4(PathBuf);

impl Ext4 {
    /// `None` where this user may not mount.
    pub(crate) fn new(path: &Path) -> Option<Ext4> {
        std::fs::create_dir_all(path).ok()?;
        let disk = Ext4(path.to_owned());
        std::fs::File::create(disk.image()).and_then(|file| file.set_len(200 << 20)).ok()?;
        let made = succeeds(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(disk.image()))
            && disk.mount()
            && succeeds(Command::new("chmod").arg("0777").arg(path));
        made.then_some(disk)
    }

    fn image(&self) -> PathBuf {
        self.0.with_extension("ext4")
    }

    fn mount(&self) -> bool {
        let mut mount = Command::new("mount");
        succeeds(mount.args(["-o", "loop,errors=remount-ro"]).arg(self.image()).arg(&self.0))
    }

    fn freeze(&self, freeze: bool) {
        let flag = if freeze { "-f" } else { "-u" };
        let status = Command::new("fsfreeze").arg(flag).arg(&self.0).status();
        assert!(status.is_ok_and(|status| status.success()), "fsfreeze {flag}");
    }

    /// Whether this machine can break it so.
    pub(crate) fn fail(&self, how: Broken) -> bool {
        match how {
            Broken::ReadOnly => {
                let device = Command::new("findmnt").args(["-no", "SOURCE"]).arg(&self.0).output();
                let device = device.map(|o| String::from_utf8_lossy(&o.stdout).trim().replace("/dev/", ""));
                device.is_ok_and(|device| {
                    std::fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "a test").is_ok()
                })
            }
            Broken::IoErrors => succeeds(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&self.0)),
        }
    }

    /// Nothing may use it.
    pub(crate) fn repair(&self) {
        assert!(succeeds(Command::new("umount").arg(&self.0)), "umount");
        // Its exit code says that it has repaired something.
        let _ = Command::new("e2fsck").arg("-fy").arg(self.image()).output();
        assert!(self.mount(), "mount");
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(&self.0).output();
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Three members; the log of the third is on the returned file system, and a disk hangs after a second.
fn on_disk_of_its_own() -> Result<Option<(Cluster, Ext4)>, LocalError> {
    let mut cluster = Cluster::prepare(&spec())?;
    let path = cluster.bench().dir().join("own");
    let Some(disk) = Ext4::new(&path) else {
        eprintln!("NOT TESTED: this user may not mount a file system");
        return Ok(None);
    };
    for server in &mut cluster.servers {
        server.wsrep_mut()?.provider_options.push(("leader.disk_timeout".into(), "1s".into()));
    }
    let options = &mut cluster.servers[2].wsrep_mut()?.provider_options;
    options.push(("log.dir".into(), path.display().to_string()));
    cluster.bootstrap()?;
    cluster.servers[0].query("CREATE DATABASE IF NOT EXISTS test")?;
    session(&cluster, 0)?.query("CREATE TABLE t (id INT PRIMARY KEY)")?;
    cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?;
    Ok(Some((cluster, disk)))
}

/// A commit on this server, by a thread of its own: whether it returned OK, once it returns.
fn commit_apart(socket: PathBuf, id: u32) -> std::thread::JoinHandle<bool> {
    std::thread::spawn(move || {
        let client = Client::connect(&socket, "root", Duration::from_secs(60));
        client.is_ok_and(|mut client| client.query(&format!("INSERT INTO test.t VALUES ({id})")).is_ok())
    })
}

#[test]
fn member_with_hung_disk_ends_and_returns() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // it syncs no log
    }
    let _alone = alone();
    let Some((mut cluster, disk)) = on_disk_of_its_own()? else { return Ok(()) };
    disk.freeze(true);
    let began = Instant::now();
    let commit = commit_apart(cluster.servers[2].config.socket(), 1);
    eventually("it is Desynced", || {
        session(&cluster, 0)?.query("REPLACE INTO t VALUES (2)")?;
        Ok(cluster.servers[2]
            .wsrep_status()
            .is_ok_and(|s| s["wsrep_local_state_comment"] == "Donor/Desynced"))
    })?;
    others_see(&cluster, &[2])?;
    // The kernel keeps the process, and its client has an answer all the same.
    eventually("the commit returns", || Ok(commit.is_finished()))?;
    assert!(!commit.join().unwrap_or(true), "nobody knows whether it is committed");
    println!("the client had its answer after {:.1} s", began.elapsed().as_secs_f64());
    session(&cluster, 0)?.query("INSERT INTO t VALUES (3)")?;
    std::thread::sleep(Duration::from_secs(2));
    disk.freeze(false);
    let ended = cluster.servers[2].wait_ended(Duration::from_secs(20))?;
    assert!(cluster.servers[2].is_started_again(), "{ended}");
    cluster.servers[2].start(&[])?;
    cluster.wait_size(3)?;
    cluster.same_everywhere("SELECT GROUP_CONCAT(id ORDER BY id) FROM test.t")?;
    drop(cluster);
    Ok(())
}

#[test]
fn member_with_broken_disk_ends_and_returns() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // it syncs no log
    }
    let _alone = alone();
    let Some((mut cluster, disk)) = on_disk_of_its_own()? else { return Ok(()) };
    for (id, how) in [(1, Broken::ReadOnly), (2, Broken::IoErrors)] {
        mark(&cluster.servers[2])?;
        if !disk.fail(how) {
            eprintln!("NOT TESTED: this machine cannot break a disk: {how:?}");
            continue;
        }
        let began = Instant::now();
        session(&cluster, 0)?.query(&format!("INSERT INTO t VALUES ({id})"))?;
        let ended = cluster.servers[2].wait_ended(Duration::from_secs(20))?;
        assert!(cluster.servers[2].is_started_again(), "{ended}");
        println!("{how:?}: the process ended after {:.1} s", began.elapsed().as_secs_f64());
        let log = cluster.servers[2].log();
        let said = |line: &str| line.contains("this member stops acknowledging") && line.contains(how.text());
        assert!(log.lines().any(said), "{}", cluster.servers[2].log_tail(40));
        session(&cluster, 0)?.query(&format!("INSERT INTO t VALUES ({})", 10 + id))?;
        // A unit that repeats refused starts has it back as soon as the disk works.
        assert!(cluster.servers[2].start(&[]).is_err(), "it starts on a broken disk");
        disk.repair();
        cluster.servers[2].start(&[])?;
        cluster.wait_size(3)?;
        same("by the log", unmark(&cluster.servers[2])?, true);
    }
    cluster.same_everywhere("SELECT GROUP_CONCAT(id ORDER BY id) FROM test.t")?;
    drop(cluster);
    Ok(())
}

#[test]
fn hung_majority_of_disks_is_non_primary_until_it_works() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // it syncs no log
    }
    let _alone = alone();
    let Some((mut cluster, disk)) = on_disk_of_its_own()? else { return Ok(()) };
    // Killed: a member that stops in order gives up its vote.
    cluster.servers[1].kill();
    others_see(&cluster, &[1])?;
    disk.freeze(true);
    let commit = commit_apart(cluster.servers[0].config.socket(), 1);
    eventually("it is non-Primary", || Ok(cluster.servers[0].wsrep_status()?["wsrep_ready"] == "OFF"))?;
    eventually("the commit returns", || Ok(commit.is_finished()))?;
    assert!(!commit.join().unwrap_or(true), "it cannot be committed");
    let log = cluster.servers[0].log();
    assert!(log.contains("no majority of the voters' disks works"), "{}", cluster.servers[0].log_tail(40));
    disk.freeze(false);
    for at in [0, 2] {
        eventually("it is Synced again", || {
            Ok(cluster.servers[at].wsrep_status()?["wsrep_local_state_comment"] == "Synced")
        })?;
    }
    session(&cluster, 0)?.query("INSERT INTO t VALUES (2)")?;
    cluster.servers[1].start(&[])?;
    cluster.wait_size(3)?;
    cluster.same_everywhere("SELECT GROUP_CONCAT(id ORDER BY id) FROM test.t")?;
    drop(cluster);
    Ok(())
}

/// Inserts on the server behind `socket` until `stop`; the longest time without a success, in ms.
fn longest_gap(socket: &Path, stop: &AtomicBool, table: &str) -> u64 {
    let (mut last, mut gap, mut id) = (Instant::now(), Duration::ZERO, 0);
    while !stop.load(Ordering::Relaxed) {
        let opened = Client::connect(socket, "root", Duration::from_secs(40));
        let Ok(mut client) = opened else { continue };
        while !stop.load(Ordering::Relaxed) {
            id += 1;
            if client.query(&format!("INSERT INTO test.{table} VALUES ({id})")).is_err() {
                break;
            }
            gap = gap.max(last.elapsed());
            last = Instant::now();
        }
    }
    gap.max(last.elapsed()).as_millis() as u64
}

#[test]
fn member_with_full_disk_stops_and_returns() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // its cache is allocated before
    }
    let _alone = alone();
    let mut cluster = Cluster::prepare(&spec())?;
    let path = cluster.bench().dir().join("small");
    let Some(small) = Tmpfs::new(&path, 40) else {
        eprintln!("NOT TESTED: this user may not mount a file system");
        return Ok(());
    };
    let options = &mut cluster.servers[0].wsrep_mut()?.provider_options;
    options.push(("log.dir".into(), path.display().to_string()));
    options.push(("log.segment".into(), "4M".into()));
    cluster.bootstrap()?;
    session(&cluster, 0).or_else(|_| {
        cluster.servers[0].query("CREATE DATABASE IF NOT EXISTS test")?;
        session(&cluster, 0)
    })?;
    open_bank(&cluster)?;
    session(&cluster, 0)?.run(&[
        "CREATE TABLE gap (id INT PRIMARY KEY)",
        "CREATE TABLE bulk (id INT AUTO_INCREMENT PRIMARY KEY, pad LONGBLOB)",
    ])?;
    cluster.same_everywhere("SELECT COUNT(*) FROM test.bulk")?;
    mark(&cluster.servers[0])?;

    let sockets: Vec<_> = cluster.servers.iter().map(|s| s.config.socket()).collect();
    let (stop, done, gap) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let outcome = std::thread::scope(|scope| -> Test {
        let (stop, done, gap, sockets) = (&stop, &done, &gap, &sockets);
        for (seed, socket) in sockets.iter().enumerate() {
            scope.spawn(move || done.fetch_add(bank_until(socket, stop, seed as u64), Ordering::Relaxed));
        }
        scope.spawn(move || gap.store(longest_gap(&sockets[1], stop, "gap"), Ordering::Relaxed));
        let end = || -> Test {
            std::thread::sleep(Duration::from_millis(500));
            small.fill();
            let mut client = session(&cluster, 2)?;
            for _ in 0..60 {
                client.query("INSERT INTO bulk (pad) VALUES (REPEAT('x', 100000))")?;
            }
            eventually("it says so", || Ok(cluster.servers[0].log().contains("the disk is full")))?;
            others_see(&cluster, &[0])?;
            std::thread::sleep(Duration::from_millis(500));
            Ok(())
        };
        let outcome = end();
        stop.store(true, Ordering::Relaxed);
        outcome
    });
    outcome?;
    let gap = gap.into_inner();
    println!("longest gap in another member's writes: {gap} ms");
    assert!(gap < 4000, "the others did not write for {gap} ms");
    let is_failure =
        |line: &&str| line.contains("the disk is full") && !line.contains("refuses everything until");
    let said = cluster.servers[0].log().lines().filter(is_failure).count();
    assert!(said <= 2, "it was said {said} times:\n{}", cluster.servers[0].log_tail(40));
    assert!(cluster.servers[0].query("SELECT * FROM test.bank").is_err(), "it reads on");
    assert!(cluster.servers[0].query("INSERT INTO test.gap VALUES (-1)").is_err(), "it writes on");
    // It waits for room, and then makes its unit start it anew.
    eventually("it says what it waits for", || {
        Ok(cluster.servers[0].log().contains("refuses everything until 8 MiB can be written"))
    })?;
    assert!(cluster.servers[0].is_running(), "a start would be refused now");
    small.make_room();
    let ended = cluster.servers[0].wait_ended(Duration::from_secs(20))?;
    assert!(cluster.servers[0].is_started_again(), "{ended}");
    cluster.servers[0].start(&[])?;
    cluster.wait_size(3)?;
    same("by the log", unmark(&cluster.servers[0])?, true);
    cluster.same_everywhere("SELECT COUNT(*), SUM(LENGTH(pad)) FROM test.bulk")?;
    audit(&cluster, done.into_inner(), 3)?;
    drop(cluster);
    Ok(())
}
