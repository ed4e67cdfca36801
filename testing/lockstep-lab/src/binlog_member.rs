//! Members without a database that keep a binlog: `lockstep binlog serve` and `lockstep binlog ingest`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use lockstep_local::{LocalError, Result, Server, free_ports, host_port};

use crate::bench::Bench;
use crate::cluster::{Cluster, Place};
use crate::far::PAUSE;
use crate::member_process::MemberProcess;

/// The account with which replicas read, here and at a primary.
pub(crate) const ACCOUNT: (&str, &str) = ("copy", "copy");
/// How long a member may take until it serves replicas.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The line that says so.
const READY: &str = "serves replicas at";

/// Its process, and where replicas connect.
#[derive(Debug)]
pub(crate) struct BinlogMember {
    process: MemberProcess,
    /// Where replicas connect.
    pub(crate) host: String,
    pub(crate) port: u16,
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
            member.process.args.push(format!("--password-file={password}"));
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
        let (host, port, listen) = (seat.host.clone(), seat.ports.1, seat.peer());
        let Seat { name, namespace, .. } = seat;
        let mut process = MemberProcess::new(bench, &name, namespace, lockstep)?;
        process.args = args;
        let mut member = BinlogMember { process, host, port };
        let accounts = member.secret("accounts", &format!("{} {}\n", ACCOUNT.0, ACCOUNT.1))?;
        let listen_for_replicas = host_port(&member.host, port);
        let dir = member.process.dir().display().to_string();
        member.process.args.extend([
            format!("--name={name}"),
            format!("--address=gcomm://{}", peers.join(",")),
            format!("--options=gmcast.listen_addr=tcp://{listen}"),
            format!("--listen={listen_for_replicas}"),
            format!("--accounts={accounts}"),
            format!("--dir={dir}"),
        ]);
        Ok(member)
    }

    /// Writes a file that nobody else may read.
    fn secret(&self, name: &str, text: &str) -> Result<String> {
        let path = self.process.dir().join(name);
        std::fs::write(&path, text).map_err(LocalError::path("write", &path))?;
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, private).map_err(LocalError::path("protect", &path))?;
        Ok(path.display().to_string())
    }

    /// Starts it.
    pub(crate) fn start(&mut self) -> Result<()> {
        self.process.start()
    }

    /// Lets it use this processor only.
    pub(crate) fn set_processor(&mut self, processor: Option<usize>) {
        self.process.processor = processor;
    }

    /// Waits until replicas may connect.
    pub(crate) fn wait_ready(&mut self) -> Result<()> {
        let end = Instant::now() + TIMEOUT;
        while !self.log().contains(READY) {
            if !self.is_running() || Instant::now() > end {
                return Err(self.process.failed("a member that keeps a binlog does not serve replicas"));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    /// The bytes that it has of this file of a primary.
    pub(crate) fn copied(&self, file: &str) -> u64 {
        std::fs::metadata(self.process.dir().join("files").join(file)).map_or(0, |file| file.len())
    }

    /// The process number, while it runs.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.process.pid()
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        self.process.name()
    }

    /// Its messages.
    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    /// Its command line, for the record.
    pub(crate) fn command(&self) -> String {
        self.process.command()
    }
}
