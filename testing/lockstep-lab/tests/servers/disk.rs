//! A disk that fills up under a member's log.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockstep_lab::Cluster;
use lockstep_local::Client;

use crate::fixture::{Kind, Test, alone, eventually, kind, same, session, spec};
use crate::rejoin::{mark, others_see, unmark};
use crate::stress::{audit, bank_until, open_bank};

/// A file system in memory, as small as it is made.
struct Tmpfs(PathBuf);

impl Tmpfs {
    /// `None` where this user may not mount.
    fn new(path: &Path, megabytes: u32) -> Option<Tmpfs> {
        std::fs::create_dir_all(path).ok()?;
        let options = format!("size={megabytes}m,mode=0777");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(path).output();
        mount.is_ok_and(|o| o.status.success()).then(|| Tmpfs(path.to_owned()))
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        let mut size = 1 << 20;
        let mut file = std::fs::File::create(self.0.join("filler")).expect("a file beside the log");
        while size > 0 {
            match std::io::Write::write_all(&mut file, &vec![1; size]) {
                Ok(()) => {}
                Err(_) => size /= 2,
            }
        }
    }

    fn make_room(&self) {
        std::fs::remove_file(self.0.join("filler")).expect("the file beside the log");
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
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
    let said = cluster.servers[0].log().lines().filter(|l| l.contains("the disk is full")).count();
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
