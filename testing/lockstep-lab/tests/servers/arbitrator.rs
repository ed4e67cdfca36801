//! Two servers and an arbitrator: any one of the three may be lost, and all of them at once.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockstep_lab::Cluster;
use lockstep_local::{Client, LocalError, free_ports};

use crate::disk::{Broken, Ext4};
use crate::failover::{insert_during, sockets};
use crate::fixture::{Kind, Test, alone, built, eventually, kind, provider, same, spec, status};

/// A running `lockstep arbitrator`; killed when it is dropped.
struct Arbitrator {
    child: Option<Child>,
    program: PathBuf,
    dir: PathBuf,
    log: PathBuf,
    port: u16,
    members: String,
}

impl Arbitrator {
    fn new(cluster: &Cluster) -> Result<Arbitrator, LocalError> {
        let dir = cluster.bench().dir().join("arb");
        let members: Vec<String> = cluster
            .servers
            .iter()
            .filter_map(|s| s.config.wsrep.as_ref().map(|w| w.peer_address()))
            .collect();
        // By the name of Galera's program it takes that one's command line.
        let program = cluster.bench().dir().join("garbd");
        std::os::unix::fs::symlink(built("lockstep"), &program)
            .map_err(|source| LocalError::Io { what: "link garbd".into(), source })?;
        Ok(Arbitrator {
            child: None,
            program,
            log: dir.join("log"),
            dir,
            port: free_ports(1)?,
            members: format!("gcomm://{}", members.join(",")),
        })
    }

    fn start(&mut self) -> Test {
        let options = format!("gmcast.listen_addr=tcp://127.0.0.1:{}", self.port);
        let _ = std::fs::create_dir_all(&self.dir);
        let child = Command::new(&self.program)
            .args(["-a", &self.members, "-g", "lab", "-n", "arb", "-o", &options, "-w"])
            .arg(&self.dir)
            .arg("-l")
            .arg(&self.log)
            .stdin(Stdio::null())
            .spawn();
        self.child = Some(child.map_err(|source| LocalError::Io { what: "run garbd".into(), source })?);
        Ok(())
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM; its exit code must be 0, soon.
    fn stop(&mut self) -> Test {
        let Some(child) = &self.child else { return Ok(()) };
        let io = |source| LocalError::Io { what: "stop the arbitrator".into(), source };
        Command::new("kill").arg(child.id().to_string()).status().map_err(io)?;
        self.wait_exit(0)
    }

    /// Its process ends soon, with this exit code.
    fn wait_exit(&mut self, code: i32) -> Test {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let io = |source| LocalError::Io { what: "wait for the arbitrator".into(), source };
        let until = Instant::now() + Duration::from_secs(15);
        while Instant::now() < until {
            if let Some(status) = child.try_wait().map_err(io)? {
                assert_eq!(status.code(), Some(code), "{status}\n{}", self.lines());
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        Err(LocalError::Value(format!("the arbitrator does not end\n{}", self.lines())))
    }

    fn lines(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn votes(&self) -> bool {
        status(&self.dir)
            .is_some_and(|s| s.contains("3 of 3 voters connected") && s.contains("arbitrator  Synced"))
    }
}

impl Drop for Arbitrator {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Rows are inserted through both servers while `act` is done; how many were acknowledged, and the longest gap of the
/// better served client.
fn under_load(
    cluster: &mut Cluster,
    first: u64,
    act: impl FnOnce(&mut Cluster) -> Test,
) -> Result<u64, LocalError> {
    let sockets = sockets(cluster);
    let (gaps, acknowledged, outcome) =
        insert_during(&sockets, first, Duration::from_millis(800), || act(cluster));
    outcome?;
    eprintln!("longest gap of a client of each server: {gaps:?}");
    Ok(acknowledged)
}

#[test]
fn two_servers_and_arbitrator_survive_any_loss() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let mut cluster = Cluster::start(&lockstep_lab::ClusterSpec { members: 2, ..spec() })?;
    eprintln!("provider {}", provider().display());
    let mut arb = Arbitrator::new(&cluster)?;
    arb.start()?;
    eventually("the arbitrator votes", || Ok(arb.votes()))?;
    // As Galera shows its own: one more in the view, with no address for clients.
    let mut client = cluster.servers[0].client()?;
    client.run(&["CREATE DATABASE IF NOT EXISTS test", "CREATE TABLE test.gap (id BIGINT PRIMARY KEY)"])?;
    same("cluster size", client.status("wsrep_cluster_size")?.as_str(), "3");
    let incoming = client.status("wsrep_incoming_addresses")?;
    same("addresses for clients", incoming.split(',').filter(|a| !a.is_empty()).count(), 2);
    drop(client);

    let mut acknowledged = 0;
    let mut first = 0;
    for lost in 0..3 {
        first += 1_000_000;
        acknowledged += under_load(&mut cluster, first, |cluster| {
            match lost {
                2 => arb.kill(),
                n => cluster.servers[n].kill(),
            }
            let rest = if lost == 0 { 1 } else { 0 };
            let socket = cluster.servers[rest].config.socket();
            let began = Instant::now();
            eventually("the rest writes", || {
                let mut client = Client::connect(&socket, "root", Duration::from_secs(5))?;
                Ok(client.query(&format!("REPLACE INTO test.gap VALUES (-{first})")).is_ok())
            })?;
            eprintln!("without {lost}, writes again after {:?}", began.elapsed());
            std::thread::sleep(Duration::from_secs(1));
            Ok(())
        })? + 1;
        match lost {
            2 => arb.start()?,
            n => cluster.servers[n].start(&[])?,
        }
        eventually("all three vote again", || Ok(arb.votes()))?;
    }

    // An arbitrator that is stopped in order leaves no vote behind: the two go on, and so does one when the other leaves.
    arb.stop()?;
    assert!(arb.lines().contains("received a signal to end: leaving the cluster"), "{}", arb.lines());
    cluster.wait_size(2)?;
    arb.start()?;
    eventually("all three vote again", || Ok(arb.votes()))?;

    // All of them at once, under load; then all are started, in any order.
    first += 1_000_000;
    acknowledged += under_load(&mut cluster, first, |cluster| {
        for server in &mut cluster.servers {
            server.kill();
        }
        arb.kill();
        Ok(())
    })?;
    arb.start()?;
    cluster.servers[1].spawn(&[])?;
    cluster.servers[0].spawn(&[])?;
    cluster.wait_size(3)?;
    let rows = cluster.same_everywhere("SELECT COUNT(*) FROM test.gap")?.number()?;
    eprintln!("{acknowledged} rows acknowledged, {rows} found");
    assert!(rows >= acknowledged as i64, "{acknowledged} were acknowledged, {rows} are there");
    // Unacknowledged rows may exist: one of each of the two clients per loss.
    assert!(rows <= acknowledged as i64 + 12, "{acknowledged} were acknowledged, {rows} are there");
    Ok(())
}

#[test]
fn arbitrator_with_read_only_disk_exits_with_error() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _one = alone();
    let cluster = Cluster::start(&lockstep_lab::ClusterSpec { members: 2, ..spec() })?;
    let mut arb = Arbitrator::new(&cluster)?;
    let Some(disk) = Ext4::new(&arb.dir) else {
        eprintln!("NOT TESTED: this user may not mount a file system");
        return Ok(());
    };
    arb.log = cluster.bench().dir().join("arb.lines");
    arb.start()?;
    eventually("the arbitrator votes", || Ok(arb.votes()))?;
    if !disk.fail(Broken::ReadOnly) {
        eprintln!("NOT TESTED: this machine cannot break a disk");
        return Ok(());
    }
    cluster.servers[0].query("CREATE DATABASE broken")?;
    arb.wait_exit(1)?;
    assert!(arb.lines().contains(Broken::ReadOnly.text()), "{}", arb.lines());
    // Each further start ends in the same way, until the disk works.
    arb.start()?;
    arb.wait_exit(1)?;
    disk.repair();
    arb.start()?;
    eventually("the arbitrator votes again", || Ok(arb.votes()))?;
    arb.stop()?;
    drop(cluster);
    Ok(())
}
