//! `lockstep up` and `lockstep down`: start and stop a cluster of three servers on loopback, for trials.
//!
//! The servers run as `mysql` in a directory of their own (`cluster_dir`), and never touch the machine's own server. The
//! commands find running servers by the `*.pid` files there, or by their data directories. So both commands work at any
//! time and from any directory.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockstep_local::{
    Installation, LIBRARY, Server, ServerConfig, SstMethod, Step, Wsrep, is_free, is_root, say,
};
use lockstep_node::MemberStatus;

use crate::cluster_dir::{self, DEFAULT_DIR, NAMES, data_dirs};
use crate::fetch::{self, Target};
use crate::query::{self, ClusterStatus};
use crate::server_health::{self, Health, health};
use crate::smoke_test;
use crate::status;

const SQL_PORTS: [u16; 3] = [33061, 33062, 33063];
/// The members' ports. Each member uses the two ports above its own for state transfers.
const PEER_PORTS: [u16; 3] = [45671, 45681, 45691];

fn text(error: lockstep_local::LocalError) -> String {
    error.to_string()
}

/// Starts the servers that do not run, tests replication, and leaves the servers running.
pub(crate) fn up(dir: &Path, provider: Option<PathBuf>, port: Option<u16>) -> Result<(), String> {
    need_root("up")?;
    let dir = &cluster_dir::absolute(dir)?;
    let install = Installation::find().map_err(text)?;
    cluster_dir::check(dir, install.account.as_ref())?;
    let ports = Ports::of(dir, port);
    let mut servers = servers(dir, &install, &ports);
    let ran: Vec<bool> = servers.iter_mut().map(Server::is_running).collect();
    let running = ran.iter().filter(|ran| **ran).count();
    let before = Ports::of(dir, None);
    if running > 0 && ports != before {
        return Err(format!(
            "servers of {} run, with ports from {} on: nothing was changed. Stop them first ({}) to change their ports, or \
             omit --port",
            dir.display(),
            before.0[0].0,
            commands(dir).1,
        ));
    }
    if running == servers.len() {
        say(&format!(
            "The servers in {} are running already. To load a newer provider, stop them with {} first.",
            dir.display(),
            commands(dir).1
        ));
        for server in servers.iter_mut().filter(|s| !matches!(health(s), Health::Ready)) {
            let step = Step::start(&format!("{}: waiting until it is synced", server.name()));
            let is = ready(server, &step, &[], true).map_err(|e| with_remedy(&e, dir))?;
            step.done(&is);
        }
    } else {
        let provider = provider.map_or_else(lockstep_local::beside_this_program, Ok)?;
        prepare(dir, &install, &mut servers, &provider, running)?;
        start(dir, &install, &mut servers, &ran).map_err(|e| with_remedy(&e, dir))?;
    }
    smoke_test::run(dir, &servers)?;
    say("");
    let merged = wait_until_caught_up(&fetch::sockets(dir))?;
    say(&status::table(&merged));
    for text in configured_learners(dir, &servers, &merged) {
        say(&text);
    }
    say("");
    say(&format!("Connect (as root):  mariadb --socket={}", servers[0].config.socket().display()));
    say(&format!("                    also {}", socket_list(&servers[1..])));
    let me = program();
    match dir == Path::new(DEFAULT_DIR) {
        true => {
            say(&format!("Watch:              {me} status --watch"));
            say("Stop:               make down");
        }
        false => {
            say(&format!("Watch:              {me} status --watch --dir {}", dir.display()));
            say(&format!("Stop:               {me} down --dir {}", dir.display()));
        }
    }
    Ok(())
}

/// Describes the members that are learners by configuration. No majority counts them.
fn configured_learners(dir: &Path, servers: &[Server], merged: &ClusterStatus) -> Vec<String> {
    let is_learner = |server: &&Server| {
        merged.status.members.iter().any(|m| m.name == server.name() && m.role == "learner")
    };
    let dir_option =
        if dir == Path::new(DEFAULT_DIR) { String::new() } else { format!(" --dir {}", dir.display()) };
    let promote = |name: &str| format!("`{} promote --name {name}{dir_option}`", program());
    let text = |server: &Server| server_health::configured_learner(server, &promote(server.name()));
    servers.iter().filter(is_learner).filter_map(text).collect()
}

/// The shortest name by which a shell in this directory finds this program.
fn program() -> String {
    let Ok(me) = std::env::current_exe() else { return "lockstep".into() };
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|dir| dir.join("lockstep") == me) {
        return "lockstep".into();
    }
    let here = std::env::current_dir().ok().and_then(|here| Some(me.strip_prefix(here).ok()?.to_owned()));
    here.unwrap_or(me).display().to_string()
}

/// The commands that start and stop the cluster of this directory.
fn commands(dir: &Path) -> (String, String) {
    match dir == Path::new(DEFAULT_DIR) {
        true => ("`make up`".to_owned(), "`make down`".to_owned()),
        false => {
            let me = program();
            (format!("`{me} up --dir {}`", dir.display()), format!("`{me} down --dir {}`", dir.display()))
        }
    }
}

/// Adds the remedy to an error of `up`. The user may delete the directory, because `up` created it (see `cluster_dir`).
fn with_remedy(error: &str, dir: &Path) -> String {
    let (up, down) = commands(dir);
    format!(
        "{error}\nFix the cause, then run {up} again to continue. To start afresh: {down}, then `rm -r {}`",
        dir.display()
    )
}

/// Waits until the status shows that all members have caught up, 2 s at most, and returns it.
fn wait_until_caught_up(sockets: &[Target]) -> Result<ClusterStatus, String> {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        let merged = query::cluster(sockets, true)?;
        let caught_up = |m: &MemberStatus| m.lag_trx == Some(0) && m.persisted.is_some();
        if merged.status.members.iter().all(caught_up) || Instant::now() >= deadline {
            return Ok(merged);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn socket_list(servers: &[Server]) -> String {
    let sockets: Vec<String> = servers.iter().map(|s| s.config.socket().display().to_string()).collect();
    sockets.join(", ")
}

/// A remark about a server that a user started without `up`; else empty.
fn by_hand(server: &Server) -> &'static str {
    if server.was_started_by_hand() { " (started by hand)" } else { "" }
}

/// Stops the running servers, the last member first, so that the first member has the longest log. Kills a server that
/// does not end within the timeout, and continues with the others.
pub(crate) fn down(dir: &Path, timeout: Duration) -> Result<(), String> {
    let (mut stopped, mut killed, mut left) = (0, 0, Vec::new());
    let dir = &cluster_dir::absolute(dir)?;
    if dir.exists() && !cluster_dir::was_created_by_up(dir) {
        return Err(format!("`up` did not create {}: nothing was stopped", dir.display()));
    }
    let install = Installation::find().map_err(text)?;
    let mut servers = servers(dir, &install, &Ports::of(dir, None));
    for server in servers.iter_mut().rev() {
        if !server.is_running() {
            continue;
        }
        need_root("down")?;
        let step = Step::start(&format!("{}: stopping{}", server.name(), by_hand(server)));
        let pid = server.pid();
        if server.stop_within(timeout).is_ok() {
            step.done("stopped");
            stopped += 1;
            continue;
        }
        server.kill();
        match pid.filter(|pid| is_alive(*pid)) {
            None => {
                step.done(&format!("did not end within {} s: killed", timeout.as_secs_f64()));
                killed += 1;
            }
            Some(pid) => {
                step.done("did not end, even after SIGKILL");
                left.push(format!("{} (process {pid})", server.name()));
            }
        }
    }
    if !left.is_empty() {
        return Err(format!(
            "still running: {}. The kernel has not ended the process yet, for example because of a device that does not \
             respond",
            left.join(", ")
        ));
    }
    if killed > 0 {
        let text = if killed == 1 { "the killed server" } else { "the killed servers" };
        say(&format!(
            "The next start of {text} recovers all acknowledged transactions, from Lockstep's log and with InnoDB's \
             recovery."
        ));
    }
    if stopped + killed > 0 {
        say(&format!("The data are kept in {}: `up` starts the servers with them.", dir.display()));
    } else if servers.iter().any(|server| server.datadir().exists()) {
        say(&format!("No server of {} is running.", dir.display()));
    } else if dir == Path::new(DEFAULT_DIR) {
        say(&format!("There is no cluster in {}: nothing to stop.", dir.display()));
    } else {
        return Err(format!("there is no cluster of `up` in {}: nothing was stopped", dir.display()));
    }
    Ok(())
}

/// Whether this process exists and has not ended.
fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn need_root(command: &str) -> Result<(), String> {
    match is_root().map_err(text)? {
        true => Ok(()),
        false => Err(format!("`{command}` runs servers as the account mysql, which only root may: use sudo")),
    }
}

/// The ports of the cluster: for each server the SQL port and the port for other members.
#[derive(Debug, PartialEq, Eq)]
struct Ports([(u16, u16); 3]);

impl Ports {
    /// The ports from `first` on. Without it, the ports of the cluster in `dir`, or the default ports.
    fn of(dir: &Path, first: Option<u16>) -> Ports {
        let cnf = std::fs::read_to_string(dir.join(NAMES[0]).with_extension("cnf")).unwrap_or_default();
        let used = port_in(&cnf);
        match first.or(used).filter(|port| *port != SQL_PORTS[0]) {
            Some(first) => Ports([0, 1, 2].map(|i| (first + i, first + 10 * (i + 1)))),
            None => Ports([0, 1, 2].map(|i| (SQL_PORTS[i], PEER_PORTS[i]))),
        }
    }
}

/// The SQL port in a `my.cnf`. The last of several lines counts.
fn port_in(cnf: &str) -> Option<u16> {
    let port = |line: &str| {
        let (name, value) = line.split_once('=')?;
        if name.trim() == "port" { value.trim().parse().ok() } else { None }
    };
    cnf.lines().filter_map(port).next_back()
}

/// Keeps an option file that the user has changed, and returns a remark about it. If the ports change, the file cannot be
/// kept: it is renamed.
fn keep_edited_file(config: &mut ServerConfig) -> Result<Option<String>, String> {
    let path = config.file("cnf");
    let Ok(there) = std::fs::read_to_string(&path) else { return Ok(None) };
    if there == config.render() {
        return Ok(None);
    }
    let (name, file) = (&config.name, path.display());
    if port_in(&there).is_none_or(|port| port == config.sql_port) {
        let text = format!(
            "{name}: {file} differs from what `up` would write, and is kept (delete it to get the default file)"
        );
        config.own_file = true;
        return Ok(Some(text));
    }
    let old = config.file("cnf.old");
    std::fs::rename(&path, &old).map_err(|e| format!("cannot rename {file}: {e}"))?;
    Ok(Some(format!(
        "{name}: {file} is replaced, because its ports change; the old file is {}",
        old.display()
    )))
}

fn servers(dir: &Path, install: &Installation, ports: &Ports) -> Vec<Server> {
    configs(dir, ports).into_iter().map(|config| Server::new(config, install)).collect()
}

/// The configurations of a new cluster's servers.
#[cfg(test)]
pub(crate) fn default_configs(dir: &Path) -> Vec<ServerConfig> {
    configs(dir, &Ports::of(dir, None))
}

fn configs(dir: &Path, ports: &Ports) -> Vec<ServerConfig> {
    let host = "127.0.0.1";
    let peers: Vec<String> = ports.0.iter().map(|(_, port)| format!("{host}:{port}")).collect();
    let mut configs = Vec::new();
    for (i, (name, (sql_port, peer_port))) in NAMES.iter().zip(ports.0).enumerate() {
        let mut config = ServerConfig::new(name, dir, sql_port, i as u32 + 1);
        config.wsrep = Some(Wsrep {
            provider: dir.join(LIBRARY),
            cluster_name: "up".into(),
            peers: peers.clone(),
            host: host.into(),
            listen: host.into(),
            peer_port,
            sst_port: peer_port + 2,
            sst_method: SstMethod::Rsync,
            sst_auth: None,
            appliers: 4,
            incremental_port: false,
            provider_options: Vec::new(),
        });
        configs.push(config);
    }
    configs
}

/// A server that was just killed holds its ports until the kernel has removed the process.
const PORT_TIMEOUT: Duration = Duration::from_secs(3);

/// Waits until no process listens on this port of loopback. False if one still does at the deadline.
fn becomes_free(port: u16, deadline: Instant) -> bool {
    while !is_free(port) {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}

/// Checks the ports and the library, and creates the directory and the option files, before any server starts.
fn prepare(
    dir: &Path,
    install: &Installation,
    servers: &mut [Server],
    provider: &Path,
    running: usize,
) -> Result<(), String> {
    let deadline = Instant::now() + PORT_TIMEOUT;
    for server in servers.iter_mut().filter(|s| s.pid().is_none()) {
        let Some(wsrep) = &server.config.wsrep else { continue };
        for port in [server.config.sql_port, wsrep.peer_port, wsrep.sst_port] {
            if !becomes_free(port, deadline) {
                return Err(format!(
                    "port {port} of loopback, which {} needs, is in use: `ss -ltnp 'sport = {port}'` shows the process",
                    server.name()
                ));
            }
        }
    }
    if !provider.is_file() {
        return Err(format!("there is no provider {}", provider.display()));
    }
    cluster_dir::create(dir, install)?;
    for server in servers.iter_mut().filter(|s| s.pid().is_none()) {
        if let Some(text) = keep_edited_file(&mut server.config)? {
            say(&text);
        }
    }
    // All members of a cluster load one library, so it is replaced only while none of them runs.
    if running == 0 {
        install.copy_provider(provider, &dir.join(LIBRARY)).map_err(text)?;
    }
    Ok(())
}

fn start(dir: &Path, install: &Installation, servers: &mut [Server], ran: &[bool]) -> Result<(), String> {
    let first_time = !data_dirs(dir).iter().any(|d| has_log(d));
    if first_time && !ran.contains(&true) {
        return start_first_time(install, servers);
    }
    // The members of a stopped cluster can start in any order.
    for (server, _) in servers.iter_mut().zip(ran).filter(|(_, ran)| !**ran) {
        // An interrupted first start may not have created this member's directory. The member joins now.
        install.make_dir(&server.datadir(), 0o755).map_err(text)?;
        server.spawn(&[]).map_err(text)?;
    }
    for (server, ran) in servers.iter_mut().zip(ran) {
        if *ran && matches!(health(server), Health::Ready) {
            say(&format!("{}: already running{}, synced", server.name(), by_hand(server)));
            continue;
        }
        let what = if *ran { "already running, waiting until it is synced" } else { "starting" };
        let step = Step::start(&format!("{}: {what}", server.name()));
        let is = ready(server, &step, &[], *ran)?;
        step.done(&is);
    }
    Ok(())
}

/// The provider's log text when it ends the process so that a supervisor restarts it.
const ENDS_FOR_RESTART: &str = "process ends now";

/// Waits until a server is a synced member or held back, and returns the state as text. `ran`: it was running before.
///
/// Restarts a server that ended itself for a restart. Also restarts a server whose port was in use: the kernel may have
/// given the port to an outgoing connection.
fn ready(server: &mut Server, step: &Step, args: &[&str], ran: bool) -> Result<String, String> {
    let mut tries = 0;
    loop {
        let error = match server_health::wait_until_ready(server, step, ran && tries == 0) {
            Ok(is) => return Ok(is),
            Err(error) => error,
        };
        tries += 1;
        let for_restart = error.contains(ENDS_FOR_RESTART);
        let port_in_use = !ran && error.contains("Address already in use");
        if tries > 5 || server.is_running() || !(for_restart || port_in_use) {
            return Err(error);
        }
        match for_restart {
            true => step.note("it ended for a restart (see its log): restarting it"),
            false => std::thread::sleep(Duration::from_secs(2)),
        }
        server.spawn(args).map_err(text)?;
    }
}

/// Whether a data directory holds a log, so that the member was in a cluster before.
pub(crate) fn has_log(datadir: &Path) -> bool {
    let Ok(files) = std::fs::read_dir(datadir) else { return false };
    files.flatten().any(|file| {
        let name = file.file_name();
        let name = name.to_string_lossy();
        name.starts_with("lockstep.") && name.ends_with(".log")
    })
}

/// Starts the servers while no member has a log yet. Keeps n1's database if it exists: [`make_database`] renames it into
/// place after its completion.
fn start_first_time(install: &Installation, servers: &mut [Server]) -> Result<(), String> {
    for (i, server) in servers.iter_mut().enumerate() {
        let datadir = server.datadir();
        if i == 0 {
            if !datadir.exists() {
                let step = Step::start("n1: creating the system tables");
                make_database(install, &datadir)?;
                step.done("created");
            }
            let step = Step::start("n1: starting as the first member");
            server.spawn(&["--wsrep-new-cluster"]).map_err(text)?;
            let is = ready(server, &step, &["--wsrep-new-cluster"], false)?;
            step.done(&is);
        } else {
            install.make_dir(&datadir, 0o755).map_err(text)?;
            let step = Step::start(&format!("{}: joining, with a state transfer", server.name()));
            server.spawn(&[]).map_err(text)?;
            let is = ready(server, &step, &[], false)?;
            step.done(&is);
        }
    }
    Ok(())
}

/// Creates a new database under another name, and renames it when it is complete.
fn make_database(install: &Installation, datadir: &Path) -> Result<(), String> {
    let fresh = datadir.with_extension("new");
    if fresh.exists() {
        std::fs::remove_dir_all(&fresh).map_err(|e| format!("cannot remove {}: {e}", fresh.display()))?;
    }
    if let Err(error) = install.make_template(&fresh, false) {
        // Remove the incomplete database, or the next attempt fails.
        let _ = std::fs::remove_dir_all(&fresh);
        let _ = std::fs::remove_dir_all(fresh.with_extension("tmp"));
        return Err(error.to_string());
    }
    std::fs::rename(&fresh, datadir).map_err(|e| format!("cannot rename {}: {e}", fresh.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_waits_for_port_of_dying_server() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!becomes_free(port, Instant::now() + Duration::from_millis(100)));
        let dying = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(listener);
        });
        assert!(becomes_free(port, Instant::now() + Duration::from_secs(20)));
        dying.join().unwrap();
    }

    #[test]
    fn cluster_keeps_its_ports() {
        let dir = std::env::temp_dir().join(format!("lockstep-up-ports-{}", std::process::id()));
        let usual = Ports([(33061, 45671), (33062, 45681), (33063, 45691)]);
        assert_eq!(Ports::of(&dir, None), usual);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("n1.cnf"), "[mysqld]\nport=22000\n").unwrap();
        assert_eq!(Ports::of(&dir, None), Ports([(22000, 22010), (22001, 22020), (22002, 22030)]));
        assert_eq!(Ports::of(&dir, Some(23000)).0[2], (23002, 23030));
        std::fs::write(dir.join("n1.cnf"), "port=33061\n").unwrap();
        assert_eq!(Ports::of(&dir, None), usual);
        assert_eq!(Ports::of(&dir, Some(33061)), usual, "the default port selects the default ports");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn edited_configuration_is_kept() {
        let dir = std::env::temp_dir().join(format!("lockstep-up-files-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let config = || configs(&dir, &Ports::of(&dir, None)).remove(1);
        let (file, usual) = (dir.join("n2.cnf"), config().render());
        let remark = |config: &mut ServerConfig| keep_edited_file(config).unwrap().unwrap_or_default();

        assert_eq!(remark(&mut config()), "", "no file yet");
        std::fs::write(&file, &usual).unwrap();
        let mut as_written = config();
        assert_eq!(remark(&mut as_written), "");
        assert!(!as_written.own_file);

        let edited = format!("{usual}innodb_buffer_pool_size=1G\n");
        std::fs::write(&file, &edited).unwrap();
        let mut own = config();
        assert!(remark(&mut own).contains("n2.cnf differs from what `up` would write, and is kept"));
        assert!(own.own_file && std::fs::read_to_string(&file).unwrap() == edited);

        // The user asks for other ports.
        let mut other = configs(&dir, &Ports::of(&dir, Some(23_000))).remove(1);
        assert!(remark(&mut other).contains("n2.cnf.old"));
        assert!(!other.own_file && !file.exists());
        assert_eq!(std::fs::read_to_string(dir.join("n2.cnf.old")).unwrap(), edited);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn down_without_cluster_does_nothing() {
        if Installation::find().is_err() {
            return;
        }
        let error = down(Path::new("/nonexistent"), Duration::from_secs(1)).unwrap_err();
        assert!(error.contains("no cluster of `up` in /nonexistent"), "{error}");
    }

    #[test]
    fn failed_up_explains_how_to_continue() {
        let text = with_remedy("n2 died", Path::new(DEFAULT_DIR));
        assert!(
            text.contains("run `make up` again") && text.contains("`rm -r /var/lib/lockstep/up`"),
            "{text}"
        );
        assert!(with_remedy("n2 died", Path::new("/x")).contains("up --dir /x`"));
    }
}
