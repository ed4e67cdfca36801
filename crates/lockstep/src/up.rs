//! `lockstep up` and `lockstep down`: three servers on loopback as one cluster, to look at and to play with.
//!
//! They run as `mysql` in a folder of their own, never touching the machine's own server. What is running is found
//! again by the `*.pid` files there, so that both commands can be given at any time and from anywhere.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockstep_lab::{Installation, Server, ServerConfig, SstMethod, Wsrep, is_free, is_root};

use crate::fetch::{self, Target};
use crate::progress::{Step, say};
use crate::status;

/// Where `make up` keeps its servers.
pub(crate) const DEFAULT_DIR: &str = "/var/lib/lockstep/up";
const NAMES: [&str; 3] = ["n1", "n2", "n3"];
const SQL_PORTS: [u16; 3] = [33061, 33062, 33063];
/// Each member takes this one, and for transfers of state the two that follow.
const PEER_PORTS: [u16; 3] = [45671, 45681, 45691];
const LIBRARY: &str = "liblockstep.so";
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// The data directories of a cluster in `dir`.
pub(crate) fn data_dirs(dir: &Path) -> Vec<PathBuf> {
    NAMES.iter().map(|name| dir.join(name)).collect()
}

fn text(error: lockstep_lab::LabError) -> String {
    error.to_string()
}

/// Starts what does not run yet, shows that it replicates, and leaves it running.
pub(crate) fn up(dir: &Path, provider: Option<PathBuf>) -> Result<(), String> {
    need_root("up")?;
    let install = Installation::find().map_err(text)?;
    let mut servers = servers(dir, &install);
    let running = servers.iter_mut().filter_map(|s| s.is_running().then(|| s.name().to_owned())).count();
    if running == servers.len() {
        say(&format!("The cluster in {} is up already.", dir.display()));
    } else {
        let provider = provider.map_or_else(beside_this_program, Ok)?;
        prepare(dir, &install, &mut servers, &provider, running)?;
        start(dir, &install, &mut servers, running)?;
    }
    for server in &mut servers {
        server.wait_ready(READY_TIMEOUT).map_err(text)?;
    }
    show_replication(&servers)?;
    say("");
    let sockets: Vec<Target> =
        data_dirs(dir).into_iter().map(|d| Target::Socket(d.join("lockstep.sock"))).collect();
    say(&status::table(&settled(&sockets)?));
    say("");
    say(&format!("Connect (as root):  mariadb --socket={}", servers[0].config.socket().display()));
    say(&format!("                    also {}", also(&servers[1..])));
    say("Watch:              lockstep status --watch");
    say("Stop:               make down");
    Ok(())
}

/// The status once the members have told each other that they have caught up, or as it is after a moment.
fn settled(sockets: &[Target]) -> Result<lockstep_node::Status, String> {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        let status = status::parse(&fetch::first(sockets, "/status")?)?;
        if status.members.iter().all(|m| m.lag_trx == 0) || Instant::now() >= deadline {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn also(servers: &[Server]) -> String {
    let sockets: Vec<String> = servers.iter().map(|s| s.config.socket().display().to_string()).collect();
    sockets.join(", ")
}

/// Stops what runs, the last member first, so that the first is the one that knows the most.
pub(crate) fn down(dir: &Path) -> Result<(), String> {
    let mut stopped = 0;
    let install = Installation::find().map_err(text)?;
    let mut servers = servers(dir, &install);
    for server in servers.iter_mut().rev() {
        if !server.is_running() {
            continue;
        }
        need_root("down")?;
        let step = Step::start(&format!("{}: stopping", server.name()));
        server.stop().map_err(text)?;
        step.done("stopped");
        stopped += 1;
    }
    if stopped == 0 {
        say(&format!("No server of {} is running.", dir.display()));
    } else {
        say(&format!("The data stay in {}: `make up` goes on with them.", dir.display()));
    }
    Ok(())
}

fn need_root(command: &str) -> Result<(), String> {
    match is_root().map_err(text)? {
        true => Ok(()),
        false => Err(format!("`{command}` runs servers as the account mysql, which only root may: use sudo")),
    }
}

pub(crate) fn beside_this_program() -> Result<PathBuf, String> {
    let me = std::env::current_exe().map_err(|e| format!("cannot tell where this program is: {e}"))?;
    let library = me.with_file_name(LIBRARY);
    if library.is_file() {
        return Ok(library);
    }
    Err(format!("there is no {}: build it (`make up` does) or name it with --provider", library.display()))
}

fn servers(dir: &Path, install: &Installation) -> Vec<Server> {
    let host = "127.0.0.1";
    let peers: Vec<String> = PEER_PORTS.iter().map(|port| format!("{host}:{port}")).collect();
    let mut servers = Vec::new();
    for (i, name) in NAMES.iter().enumerate() {
        let mut config = ServerConfig::new(name, dir, SQL_PORTS[i], i as u32 + 1);
        config.wsrep = Some(Wsrep {
            provider: dir.join(LIBRARY),
            cluster_name: "up".into(),
            peers: peers.clone(),
            host: host.into(),
            listen: host.into(),
            peer_port: PEER_PORTS[i],
            sst_port: PEER_PORTS[i] + 2,
            sst_method: SstMethod::Rsync,
            sst_auth: None,
            appliers: 4,
            provider_options: Vec::new(),
        });
        servers.push(Server::new(config, install));
    }
    servers
}

/// Folder, library, ports: everything that can be wrong before the first server starts.
fn prepare(
    dir: &Path,
    install: &Installation,
    servers: &mut [Server],
    provider: &Path,
    running: usize,
) -> Result<(), String> {
    if let Some(parent) = dir.parent() {
        std::fs::create_dir_all(parent).map_err(|e| format!("cannot create {}: {e}", parent.display()))?;
    }
    install.make_dir(dir, 0o755).map_err(text)?;
    for server in servers.iter_mut().filter(|s| s.pid().is_none()) {
        let Some(wsrep) = &server.config.wsrep else { continue };
        for port in [server.config.sql_port, wsrep.peer_port, wsrep.sst_port] {
            if !is_free(port) {
                return Err(format!(
                    "port {port} of loopback, which {} needs, is taken: `ss -ltnp 'sport = {port}'` says by whom",
                    server.name()
                ));
            }
        }
    }
    // Members of one cluster run one library: a new one waits until none of them runs.
    if running == 0 {
        install.copy_provider(provider, &dir.join(LIBRARY)).map_err(text)?;
    }
    Ok(())
}

fn start(dir: &Path, install: &Installation, servers: &mut [Server], running: usize) -> Result<(), String> {
    let first_time = !data_dirs(dir).iter().any(|d| has_log(d));
    if first_time && running == 0 {
        return start_first_time(install, servers);
    }
    // A cluster that was stopped, or parts of one: nobody needs to be told who goes first.
    for server in servers.iter_mut().filter(|s| s.pid().is_none()) {
        // One that an interrupted first start never came to joins now.
        install.make_dir(&server.datadir(), 0o755).map_err(text)?;
        server.spawn(&[]).map_err(text)?;
    }
    for server in servers.iter_mut() {
        let step = Step::start(&format!("{}: starting", server.name()));
        ready(server, &[])?;
        step.done("synced");
    }
    Ok(())
}

/// Waits until a server that was spawned is a synced member. Its ports are among those that the kernel also gives to
/// outgoing connections: one that is taken just now is tried again.
fn ready(server: &mut Server, args: &[&str]) -> Result<(), String> {
    let mut tries = 0;
    loop {
        let error = match server.wait_ready(READY_TIMEOUT) {
            Ok(()) => return Ok(()),
            Err(error) => error.to_string(),
        };
        tries += 1;
        if tries > 5 || server.is_running() || !error.contains("Address already in use") {
            return Err(format!(
                "{error}\nMend the cause and run `make up` again: it goes on from here. To start afresh: `make down`, then \
                 remove the folder of the data"
            ));
        }
        std::thread::sleep(Duration::from_secs(2));
        server.spawn(args).map_err(text)?;
    }
}

/// Whether a data directory holds the log of a member: it was in a cluster before.
fn has_log(datadir: &Path) -> bool {
    let Ok(files) = std::fs::read_dir(datadir) else { return false };
    files.flatten().any(|file| {
        let name = file.file_name();
        let name = name.to_string_lossy();
        name.starts_with("lockstep.") && name.ends_with(".log")
    })
}

/// No member has a log yet. A database that is there already (n1's is complete if it is there at all, see the rename)
/// is kept.
fn start_first_time(install: &Installation, servers: &mut [Server]) -> Result<(), String> {
    for (i, server) in servers.iter_mut().enumerate() {
        let datadir = server.datadir();
        if i == 0 {
            if !datadir.exists() {
                let step = Step::start("n1: making the system tables");
                make_database(install, &datadir)?;
                step.done("made");
            }
            let step = Step::start("n1: starting as the first member");
            server.spawn(&["--wsrep-new-cluster"]).map_err(text)?;
            ready(server, &["--wsrep-new-cluster"])?;
            step.done("synced");
        } else {
            install.make_dir(&datadir, 0o755).map_err(text)?;
            let step = Step::start(&format!("{}: joining, with a copy of the database", server.name()));
            server.spawn(&[]).map_err(text)?;
            ready(server, &[])?;
            step.done("synced");
        }
    }
    Ok(())
}

/// Makes a fresh database beside its place and moves it there when it is complete.
fn make_database(install: &Installation, datadir: &Path) -> Result<(), String> {
    let fresh = datadir.with_extension("new");
    if fresh.exists() {
        std::fs::remove_dir_all(&fresh).map_err(|e| format!("cannot remove {}: {e}", fresh.display()))?;
    }
    install.make_template(&fresh, false).map_err(text)?;
    std::fs::rename(&fresh, datadir).map_err(|e| format!("cannot rename {}: {e}", fresh.display()))
}

/// Writes a row on each member and reads it on the others.
fn show_replication(servers: &[Server]) -> Result<(), String> {
    servers[0]
        .client()
        .and_then(|mut c| {
            c.run(&[
                "CREATE DATABASE IF NOT EXISTS lockstep",
                "CREATE TABLE IF NOT EXISTS lockstep.hello (id BIGINT AUTO_INCREMENT PRIMARY KEY, \
                 writer VARCHAR(64) NOT NULL, written_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3))",
            ])
        })
        .map_err(text)?;
    for writer in servers {
        let insert = format!("INSERT INTO lockstep.hello (writer) VALUES ('{}')", writer.name());
        let id = writer.client().and_then(|mut c| c.query(&insert)).map_err(text)?.insert_id;
        let mut readers = Vec::new();
        for reader in servers.iter().filter(|r| r.name() != writer.name()) {
            let read = format!("SELECT writer FROM lockstep.hello WHERE id = {id}");
            let seen = reader
                .client()
                .and_then(|mut c| {
                    c.query("SET SESSION wsrep_sync_wait = 1")?;
                    c.value(&read)
                })
                .map_err(text)?;
            if seen != writer.name() {
                return Err(format!("{} wrote row {id}, but {} read `{seen}`", writer.name(), reader.name()));
            }
            readers.push(reader.name());
        }
        say(&format!("{} wrote row {id}: read on {}", writer.name(), readers.join(" and ")));
    }
    Ok(())
}
