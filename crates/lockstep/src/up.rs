//! `lockstep up` and `lockstep down`: three servers on loopback as one cluster, to look at and to play with.
//!
//! They run as `mysql` in a folder of their own (`place`), and never touch the machine's own server. Running servers are
//! found by the `*.pid` files there, or by their data directories, so that both commands work at any time and from any
//! folder.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockstep_lab::{Installation, Server, ServerConfig, SstMethod, Wsrep, is_free, is_root};
use lockstep_node::MemberStatus;

use crate::fetch::{self, Target};
use crate::hello;
use crate::member::{self, Health, health};
use crate::place;
use crate::progress::{Step, say};
use crate::status;
use crate::survey::{self, Survey};

/// Where `make up` keeps its servers.
pub(crate) const DEFAULT_DIR: &str = "/var/lib/lockstep/up";
const NAMES: [&str; 3] = ["n1", "n2", "n3"];
const SQL_PORTS: [u16; 3] = [33061, 33062, 33063];
/// Each member takes this one, and for transfers of state the two that follow.
const PEER_PORTS: [u16; 3] = [45671, 45681, 45691];
const LIBRARY: &str = "liblockstep.so";

/// The data directories of a cluster in `dir`.
pub(crate) fn data_dirs(dir: &Path) -> Vec<PathBuf> {
    NAMES.iter().map(|name| dir.join(name)).collect()
}

fn text(error: lockstep_lab::LabError) -> String {
    error.to_string()
}

/// Starts what does not run yet, shows that it replicates, and leaves it running.
pub(crate) fn up(dir: &Path, provider: Option<PathBuf>, port: Option<u16>) -> Result<(), String> {
    need_root("up")?;
    let dir = &place::absolute(dir)?;
    let install = Installation::find().map_err(text)?;
    place::check(dir, install.account.as_ref())?;
    let ports = Ports::of(dir, port);
    let mut servers = servers(dir, &install, &ports);
    let ran: Vec<bool> = servers.iter_mut().map(Server::is_running).collect();
    let running = ran.iter().filter(|ran| **ran).count();
    let before = Ports::of(dir, None);
    if running > 0 && ports != before {
        return Err(format!(
            "servers of {} run, with ports from {} on: nothing was changed. Stop them first ({}), then start them with other \
             ports; or leave --port away",
            dir.display(),
            before.0[0].0,
            commands(dir).1,
        ));
    }
    if running == servers.len() {
        say(&format!(
            "The servers in {} run already, with the provider that they were started with; a newer one after {}.",
            dir.display(),
            commands(dir).1
        ));
        for server in servers.iter_mut().filter(|s| !matches!(health(s), Health::Ready)) {
            let step = Step::start(&format!("{}: waiting until it is synced", server.name()));
            let is = ready(server, &step, &[], true).map_err(|e| advise(&e, dir))?;
            step.done(&is);
        }
    } else {
        let provider = provider.map_or_else(beside_this_program, Ok)?;
        prepare(dir, &install, &mut servers, &provider, running)?;
        start(dir, &install, &mut servers, &ran).map_err(|e| advise(&e, dir))?;
    }
    hello::show(dir, &servers)?;
    say("");
    let survey = wait_until_stable(&fetch::sockets(dir))?;
    say(&status::table(&survey));
    for text in who_does_not_vote(dir, &servers, &survey) {
        say(&text);
    }
    say("");
    say(&format!("Connect (as root):  mariadb --socket={}", servers[0].config.socket().display()));
    say(&format!("                    also {}", also(&servers[1..])));
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

/// Members that are learners by configuration: they do not count for the majority.
fn who_does_not_vote(dir: &Path, servers: &[Server], survey: &Survey) -> Vec<String> {
    let learns = |server: &&Server| {
        survey.status.members.iter().any(|m| m.name == server.name() && m.role == "learner")
    };
    let dir_option =
        if dir == Path::new(DEFAULT_DIR) { String::new() } else { format!(" --dir {}", dir.display()) };
    let promote = |name: &str| format!("`{} promote --name {name}{dir_option}`", program());
    let text = |server: &Server| member::without_vote(server, &promote(server.name()));
    servers.iter().filter(learns).filter_map(text).collect()
}

/// This program as a person would call it from here.
fn program() -> String {
    let Ok(me) = std::env::current_exe() else { return "lockstep".into() };
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|dir| dir.join("lockstep") == me) {
        return "lockstep".into();
    }
    let here = std::env::current_dir().ok().and_then(|here| Some(me.strip_prefix(here).ok()?.to_owned()));
    here.unwrap_or(me).display().to_string()
}

/// How to start and how to stop the cluster of this folder.
fn commands(dir: &Path) -> (String, String) {
    match dir == Path::new(DEFAULT_DIR) {
        true => ("`make up`".to_owned(), "`make down`".to_owned()),
        false => {
            let me = program();
            (format!("`{me} up --dir {}`", dir.display()), format!("`{me} down --dir {}`", dir.display()))
        }
    }
}

/// The remedy if not all servers came up. The folder was made by `up` (see `place`), so it may be removed.
fn advise(error: &str, dir: &Path) -> String {
    let (up, down) = commands(dir);
    format!(
        "{error}\nMend the cause and run {up} again: it goes on from here. To start afresh: {down}, then `rm -r {}`",
        dir.display()
    )
}

/// The status once the members have told each other that they have caught up, or as it is after a moment.
fn wait_until_stable(sockets: &[Target]) -> Result<Survey, String> {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        let survey = survey::ask(sockets, true)?;
        let told = |m: &MemberStatus| m.lag_trx == Some(0) && m.persisted.is_some();
        if survey.status.members.iter().all(told) || Instant::now() >= deadline {
            return Ok(survey);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn also(servers: &[Server]) -> String {
    let sockets: Vec<String> = servers.iter().map(|s| s.config.socket().display().to_string()).collect();
    sockets.join(", ")
}

/// Said of a server that neither of these commands started.
fn by_hand(server: &Server) -> &'static str {
    if server.was_started_by_hand() { " (started by hand)" } else { "" }
}

/// Stops what runs, the last member first, so that the first is the one that knows the most. One that does not end in time
/// is killed, and does not keep the others from being stopped.
pub(crate) fn down(dir: &Path, timeout: Duration) -> Result<(), String> {
    let (mut stopped, mut killed, mut left) = (0, 0, Vec::new());
    let dir = &place::absolute(dir)?;
    if dir.exists() && !place::is_ours(dir) {
        return Err(format!("`up` has not made {}: nothing was stopped", dir.display()));
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
                step.done("does not end, and cannot be killed");
                left.push(format!("{} (process {pid})", server.name()));
            }
        }
    }
    if !left.is_empty() {
        return Err(format!(
            "still running: {}. The kernel waits for something on its behalf",
            left.join(", ")
        ));
    }
    if killed > 0 {
        let text = if killed == 1 { "A server that was killed" } else { "Servers that were killed" };
        say(&format!(
            "{text} lost nothing that was acknowledged: its log and InnoDB's recovery bring it back."
        ));
    }
    if stopped + killed > 0 {
        say(&format!("The data stay in {}: `up` goes on with them.", dir.display()));
    } else if servers.iter().any(|server| server.datadir().exists()) {
        say(&format!("No server of {} is running.", dir.display()));
    } else if dir == Path::new(DEFAULT_DIR) {
        say(&format!("There is no cluster in {}: nothing to stop.", dir.display()));
    } else {
        return Err(format!("there is no cluster of `up` in {}: nothing was stopped", dir.display()));
    }
    Ok(())
}

/// Whether there is such a process that has not ended.
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

pub(crate) fn beside_this_program() -> Result<PathBuf, String> {
    let me = std::env::current_exe().map_err(|e| format!("cannot tell where this program is: {e}"))?;
    let library = me.with_file_name(LIBRARY);
    if library.is_file() {
        return Ok(library);
    }
    Err(format!("there is no {}: build it (`make up` does) or name it with --provider", library.display()))
}

/// The ports of the cluster: each server's for SQL and for its peers.
#[derive(Debug, PartialEq, Eq)]
struct Ports([(u16, u16); 3]);

impl Ports {
    /// From this one on, or as the cluster in `dir` has had them, or the usual ones.
    fn of(dir: &Path, first: Option<u16>) -> Ports {
        let cnf = std::fs::read_to_string(dir.join(NAMES[0]).with_extension("cnf")).unwrap_or_default();
        let used = port_in(&cnf);
        match first.or(used).filter(|port| *port != SQL_PORTS[0]) {
            Some(first) => Ports([0, 1, 2].map(|i| (first + i, first + 10 * (i + 1)))),
            None => Ports([0, 1, 2].map(|i| (SQL_PORTS[i], PEER_PORTS[i]))),
        }
    }
}

/// The SQL port that a `my.cnf` names, the last one of several.
fn port_in(cnf: &str) -> Option<u16> {
    let port = |line: &str| {
        let (name, value) = line.split_once('=')?;
        if name.trim() == "port" { value.trim().parse().ok() } else { None }
    };
    cnf.lines().filter_map(port).next_back()
}

/// A server's file that somebody has changed is kept. With other ports than its own it cannot be: it is put aside. What
/// there is to say of it.
fn keep_own_file(config: &mut ServerConfig) -> Result<Option<String>, String> {
    let path = config.file("cnf");
    let Ok(there) = std::fs::read_to_string(&path) else { return Ok(None) };
    if there == config.render() {
        return Ok(None);
    }
    let (name, file) = (&config.name, path.display());
    if port_in(&there).is_none_or(|port| port == config.sql_port) {
        let text = format!(
            "{name}: {file} is not as `up` writes it, and is kept (remove it to have it written again)"
        );
        config.own_file = true;
        return Ok(Some(text));
    }
    let aside = config.file("cnf.old");
    std::fs::rename(&path, &aside).map_err(|e| format!("cannot rename {file}: {e}"))?;
    Ok(Some(format!(
        "{name}: {file} is written again, for other ports; what was there is now {}",
        aside.display()
    )))
}

fn servers(dir: &Path, install: &Installation, ports: &Ports) -> Vec<Server> {
    configs(dir, ports).into_iter().map(|config| Server::new(config, install)).collect()
}

/// What a new cluster's servers are told.
#[cfg(test)]
pub(crate) fn usual_configs(dir: &Path) -> Vec<ServerConfig> {
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

/// A server that was killed a moment ago holds its ports until the kernel has done away with it.
const PORT_PATIENCE: Duration = Duration::from_secs(3);

/// Whether nobody listens on this port of loopback, or nobody does soon enough.
fn becomes_free(port: u16, deadline: Instant) -> bool {
    while !is_free(port) {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}

/// Folder, library, ports: everything that can be wrong before the first server starts.
fn prepare(
    dir: &Path,
    install: &Installation,
    servers: &mut [Server],
    provider: &Path,
    running: usize,
) -> Result<(), String> {
    let deadline = Instant::now() + PORT_PATIENCE;
    for server in servers.iter_mut().filter(|s| s.pid().is_none()) {
        let Some(wsrep) = &server.config.wsrep else { continue };
        for port in [server.config.sql_port, wsrep.peer_port, wsrep.sst_port] {
            if !becomes_free(port, deadline) {
                return Err(format!(
                    "port {port} of loopback, which {} needs, is taken: `ss -ltnp 'sport = {port}'` says by whom",
                    server.name()
                ));
            }
        }
    }
    if !provider.is_file() {
        return Err(format!("there is no provider {}", provider.display()));
    }
    place::make(dir, install)?;
    for server in servers.iter_mut().filter(|s| s.pid().is_none()) {
        if let Some(text) = keep_own_file(&mut server.config)? {
            say(&text);
        }
    }
    // Members of one cluster run one library: a new one waits until none of them runs.
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
    // A cluster that was stopped, or parts of one: nobody needs to be told who goes first.
    for (server, _) in servers.iter_mut().zip(ran).filter(|(_, ran)| !**ran) {
        // One that an interrupted first start never came to joins now.
        install.make_dir(&server.datadir(), 0o755).map_err(text)?;
        server.spawn(&[]).map_err(text)?;
    }
    for (server, ran) in servers.iter_mut().zip(ran) {
        if *ran && matches!(health(server), Health::Ready) {
            say(&format!("{}: runs already{}, synced", server.name(), by_hand(server)));
            continue;
        }
        let what = if *ran { "runs already, waiting until it is synced" } else { "starting" };
        let step = Step::start(&format!("{}: {what}", server.name()));
        let is = ready(server, &step, &[], *ran)?;
        step.done(&is);
    }
    Ok(())
}

/// The provider's log text when it ends the process so that a supervisor restarts it.
const ENDS_FOR_ANOTHER: &str = "process ends now";

/// Waits until a server is a synced member, or one that somebody holds, and says which. `ran`: it was running before. One that ended only to be started again is started
/// again. Its ports are among those that the kernel also gives to outgoing connections: one that is taken just now is tried
/// again, too.
fn ready(server: &mut Server, step: &Step, args: &[&str], ran: bool) -> Result<String, String> {
    let mut tries = 0;
    loop {
        let error = match member::wait(server, step, ran && tries == 0) {
            Ok(is) => return Ok(is),
            Err(error) => error,
        };
        tries += 1;
        let for_another = error.contains(ENDS_FOR_ANOTHER);
        let taken = !ran && error.contains("Address already in use");
        if tries > 5 || server.is_running() || !(for_another || taken) {
            return Err(error);
        }
        match for_another {
            true => step.note("it ended to be started again, as its log says: starting it again"),
            false => std::thread::sleep(Duration::from_secs(2)),
        }
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
            let is = ready(server, &step, &["--wsrep-new-cluster"], false)?;
            step.done(&is);
        } else {
            install.make_dir(&datadir, 0o755).map_err(text)?;
            let step = Step::start(&format!("{}: joining, with a copy of the database", server.name()));
            server.spawn(&[]).map_err(text)?;
            let is = ready(server, &step, &[], false)?;
            step.done(&is);
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
    if let Err(error) = install.make_template(&fresh, false) {
        // A partial installation would disturb the next attempt.
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
        assert_eq!(Ports::of(&dir, Some(33061)), usual, "whoever names the usual one gets the usual ones");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn edited_configuration_is_kept() {
        let dir = std::env::temp_dir().join(format!("lockstep-up-files-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let config = || configs(&dir, &Ports::of(&dir, None)).remove(1);
        let (file, usual) = (dir.join("n2.cnf"), config().render());
        let said = |config: &mut ServerConfig| keep_own_file(config).unwrap().unwrap_or_default();

        assert_eq!(said(&mut config()), "", "no file yet");
        std::fs::write(&file, &usual).unwrap();
        let mut as_written = config();
        assert_eq!(said(&mut as_written), "");
        assert!(!as_written.own_file);

        let edited = format!("{usual}innodb_buffer_pool_size=1G\n");
        std::fs::write(&file, &edited).unwrap();
        let mut own = config();
        assert!(said(&mut own).contains("n2.cnf is not as `up` writes it, and is kept"));
        assert!(own.own_file && std::fs::read_to_string(&file).unwrap() == edited);

        // Asked for other ports.
        let mut other = configs(&dir, &Ports::of(&dir, Some(23_000))).remove(1);
        assert!(said(&mut other).contains("n2.cnf.old"));
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
        let text = advise("n2 died", Path::new(DEFAULT_DIR));
        assert!(
            text.contains("run `make up` again") && text.contains("`rm -r /var/lib/lockstep/up`"),
            "{text}"
        );
        assert!(advise("n2 died", Path::new("/x")).contains("up --dir /x`"));
    }
}
