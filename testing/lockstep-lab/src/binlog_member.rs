//! Members without a database that keep a binlog: `lockstep binlog serve` and `lockstep binlog ingest`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockstep_local::{
    LocalError, Result, Server, Session, find_program, free_ports, host_port, last_lines, prefixed,
};

use crate::bench::Bench;
use crate::cluster::{Cluster, Place};
use crate::far::PAUSE;

/// The account with which replicas read, here and at a primary.
pub(crate) const ACCOUNT: (&str, &str) = ("copy", "copy");
/// How long a member may take until it serves replicas.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The line that says so.
const READY: &str = "serves replicas at";

/// Its process; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct BinlogMember {
    program: PathBuf,
    args: Vec<String>,
    namespace: Option<String>,
    /// The only processor that it may use.
    pub(crate) processor: Option<usize>,
    dir: PathBuf,
    /// Where replicas connect.
    pub(crate) host: String,
    pub(crate) port: u16,
    session: Option<Session>,
}

/// A place among members, with the ports that are listened on there.
struct Seat {
    name: String,
    host: String,
    namespace: Option<String>,
    /// For members, and for replicas.
    ports: (u16, u16),
}

impl Seat {
    fn new(name: &str, place: Option<Place>) -> Result<Seat> {
        let (host, namespace) = match place {
            None => ("127.0.0.1".to_owned(), None),
            Some(Place { host, namespace }) => (host, Some(namespace)),
        };
        Ok(Seat { name: name.to_owned(), host, namespace, ports: (free_ports(1)?, free_ports(1)?) })
    }

    fn peer(&self) -> String {
        host_port(&self.host, self.ports.0)
    }
}

impl BinlogMember {
    /// One that serves replicas of a cluster, not started. `lockstep` is this project's command.
    pub(crate) fn serve(
        cluster: &Cluster,
        name: &str,
        place: Option<Place>,
        lockstep: Option<&Path>,
    ) -> Result<BinlogMember> {
        let peers = cluster.servers.iter().filter_map(|server| server.config.wsrep.as_ref());
        let peers: Vec<String> = peers.map(|wsrep| wsrep.peer_address()).collect();
        let args = ["binlog".into(), "serve".into(), "--group=lab".into()].into();
        BinlogMember::new(cluster.bench(), Seat::new(name, place)?, &peers, args, lockstep)
    }

    /// Those that copy a primary's binlog, one at each place, not started. They reach the primary at this host.
    pub(crate) fn ingest(
        bench: &Bench,
        places: Vec<Option<Place>>,
        primary: &Server,
        host: &str,
        lockstep: Option<&Path>,
    ) -> Result<Vec<BinlogMember>> {
        let seats = places.into_iter().enumerate();
        let seats: Vec<Seat> =
            seats.map(|(at, place)| Seat::new(&format!("log{}", at + 1), place)).collect::<Result<_>>()?;
        let peers: Vec<String> = seats.iter().map(Seat::peer).collect();
        let from = host_port(host, primary.config.sql_port);
        let member = |(at, seat): (usize, Seat)| {
            let others: Vec<String> = peers
                .iter()
                .enumerate()
                .filter(|(peer, _)| *peer != at)
                .map(|(_, peer)| peer.clone())
                .collect();
            let mut args = vec!["binlog".into(), "ingest".into(), "--group=ingest".into()];
            args.extend([format!("--from={from}"), format!("--user={}", ACCOUNT.0)]);
            if at == 0 {
                args.push("--new-cluster".into());
            }
            let mut member = BinlogMember::new(bench, seat, &others, args, lockstep)?;
            let password = member.secret("password", &format!("{}\n", ACCOUNT.1))?;
            member.args.push(format!("--password-file={password}"));
            Ok(member)
        };
        seats.into_iter().enumerate().map(member).collect()
    }

    fn new(
        bench: &Bench,
        seat: Seat,
        peers: &[String],
        args: Vec<String>,
        lockstep: Option<&Path>,
    ) -> Result<BinlogMember> {
        let dir = bench.dir().join(&seat.name);
        bench.installation().make_dir(&dir, 0o755)?;
        let program = lockstep.map(Path::to_owned).or_else(|| find_program("lockstep"));
        let program = program.ok_or_else(|| LocalError::Missing {
            what: "the program lockstep, which keeps the binlog".into(),
            hint: "build it with `cargo build --release -p lockstep`".into(),
        })?;
        let (host, port, listen) = (seat.host.clone(), seat.ports.1, seat.peer());
        let Seat { name, namespace, .. } = seat;
        let mut member = BinlogMember {
            program,
            args,
            namespace,
            processor: None,
            dir,
            host: host.clone(),
            port,
            session: None,
        };
        let accounts = member.secret("accounts", &format!("{} {}\n", ACCOUNT.0, ACCOUNT.1))?;
        member.args.extend([
            format!("--name={name}"),
            format!("--address=gcomm://{}", peers.join(",")),
            format!("--options=gmcast.listen_addr=tcp://{listen}"),
            format!("--listen={}", host_port(&host, port)),
            format!("--accounts={accounts}"),
            format!("--dir={}", member.dir.display()),
        ]);
        Ok(member)
    }

    /// Writes a file that nobody else may read.
    fn secret(&self, name: &str, text: &str) -> Result<String> {
        let path = self.dir.join(name);
        std::fs::write(&path, text).map_err(LocalError::path("write", &path))?;
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, private).map_err(LocalError::path("protect", &path))?;
        Ok(path.display().to_string())
    }

    /// Starts it.
    pub(crate) fn start(&mut self) -> Result<()> {
        let mut words: Vec<String> = Vec::new();
        if let Some(namespace) = &self.namespace {
            words.extend(["ip".into(), "netns".into(), "exec".into(), namespace.clone()]);
        }
        if let Some(processor) = self.processor {
            words.extend(["taskset".into(), "-c".into(), processor.to_string()]);
        }
        let mut command = prefixed(&words, &self.program);
        command.args(&self.args).current_dir("/");
        let session = Session::spawn(&mut command, &self.dir.with_extension("out"))?;
        // By this file it is found and killed should this process die.
        let path = self.dir.with_extension("pid");
        std::fs::write(&path, session.pid().to_string()).map_err(LocalError::path("write", &path))?;
        self.session = Some(session);
        Ok(())
    }

    /// Waits until replicas may connect.
    pub(crate) fn wait_ready(&mut self) -> Result<()> {
        let end = Instant::now() + TIMEOUT;
        while !self.log().contains(READY) {
            if !self.is_running() || Instant::now() > end {
                let log = self.log();
                return Err(LocalError::Value(format!(
                    "a member that keeps a binlog does not serve replicas:\n{}",
                    last_lines(&log, 20)
                )));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.session.as_mut().is_some_and(|session| session.ended().is_none())
    }

    /// The bytes that it has of this file of a primary.
    pub(crate) fn copied(&self, file: &str) -> u64 {
        std::fs::metadata(self.dir.join("files").join(file)).map_or(0, |file| file.len())
    }

    /// The process number, while it runs.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.session.as_ref().map(Session::pid)
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        self.dir.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// Its messages.
    pub(crate) fn log(&self) -> String {
        let text = std::fs::read(self.dir.with_extension("out")).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Its command line, for the record.
    pub(crate) fn command(&self) -> String {
        format!("{} {}\n", self.program.display(), self.args.join(" "))
    }
}

impl Drop for BinlogMember {
    fn drop(&mut self) {
        if let Some(mut session) = self.session.take() {
            session.kill();
        }
    }
}
