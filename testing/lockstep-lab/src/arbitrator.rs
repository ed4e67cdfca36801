//! The voter without a database, beside two servers: `lockstep arbitrator`, or, for Galera's library, its garbd. Both
//! take the same command line.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lockstep_local::{Ended, LocalError, Result, Session, find_program, free_ports, host_port};

use crate::bench;
use crate::cluster::{Cluster, Place};

/// How long an orderly end may take.
const STOP: Duration = Duration::from_secs(20);

/// Its program and its process.
#[derive(Debug)]
pub(crate) struct Arbitrator {
    /// The program, and the arguments that come before those of garbd.
    program: (PathBuf, Vec<&'static str>),
    args: Vec<String>,
    namespace: Option<String>,
    environment: Vec<(String, String)>,
    dir: PathBuf,
    session: Option<Session>,
}

impl Arbitrator {
    /// Its name in the cluster.
    pub(crate) const NAME: &'static str = "arb";

    /// That of these servers, not started. `lockstep` is this project's command, for its own provider.
    pub(crate) fn new(
        cluster: &Cluster,
        place: Option<Place>,
        galera: bool,
        lockstep: Option<&Path>,
    ) -> Result<Arbitrator> {
        let program = match galera {
            true => (garbd()?, Vec::new()),
            false => (own(lockstep)?, vec!["arbitrator"]),
        };
        let bench = cluster.bench().dir();
        let dir = bench.join(Self::NAME);
        cluster.bench().installation().make_dir(&dir, 0o755)?;
        let peers: Vec<String> = cluster
            .servers
            .iter()
            .filter_map(|server| server.config.wsrep.as_ref())
            .map(|wsrep| wsrep.peer_address())
            .collect();
        let host = place.as_ref().map_or("127.0.0.1", |place| &place.host);
        let listen = host_port(host, free_ports(1)?);
        let log = bench.join(format!("{}.err", Self::NAME));
        let args = [
            ("-a", format!("gcomm://{}", peers.join(","))),
            ("-g", "lab".into()),
            ("-n", Self::NAME.into()),
            ("-o", format!("gmcast.listen_addr=tcp://{listen}")),
            ("-w", dir.display().to_string()),
            ("-l", log.display().to_string()),
        ];
        let args = args.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
        let namespace = place.map(|place| place.namespace);
        Ok(Arbitrator { program, args, namespace, environment: Vec::new(), dir, session: None })
    }

    /// Sets environment variables for the next start.
    pub(crate) fn set_environment(&mut self, environment: Vec<(String, String)>) {
        self.environment = environment;
    }

    /// From its next start on it is this program, of this project.
    pub(crate) fn set_program(&mut self, program: PathBuf) {
        self.program.0 = program;
    }

    pub(crate) fn start(&mut self) -> Result<()> {
        let mut command = match &self.namespace {
            None => Command::new(&self.program.0),
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace]).arg(&self.program.0);
                command
            }
        };
        let environment = self.environment.iter().map(|(name, value)| (name, value));
        command.args(&self.program.1).args(&self.args).envs(environment).current_dir("/");
        self.session = Some(bench::spawn(&mut command, &self.dir)?);
        Ok(())
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.session.as_mut().is_some_and(|session| session.ended().is_none())
    }

    /// Whether its unit starts it again after the end that it has had. A fault's kill is one.
    pub(crate) fn is_started_again(&mut self) -> bool {
        let Some(session) = &mut self.session else { return true };
        session.how_it_ended().is_some_and(Ended::restarts_on_failure)
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        if let Some(mut session) = self.session.take() {
            session.kill();
        }
    }

    /// Sends SIGTERM, then SIGKILL if needed.
    pub(crate) fn stop(&mut self) -> Result<()> {
        if let Some(session) = &mut self.session
            && session.ended().is_none()
        {
            session.signal(libc::SIGTERM)?;
            session.wait(STOP);
        }
        self.kill();
        Ok(())
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: i32) -> Result<()> {
        match &self.session {
            Some(session) => session.signal(signal),
            None => Err(LocalError::Value("the arbitrator does not run".into())),
        }
    }

    /// Its data directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its output and log.
    pub(crate) fn log(&self) -> String {
        let read = |extension| std::fs::read(self.dir.with_extension(extension)).unwrap_or_default();
        String::from_utf8_lossy(&[read("out"), read("err")].concat()).into_owned()
    }
}

impl Drop for Arbitrator {
    fn drop(&mut self) {
        self.kill();
    }
}

fn garbd() -> Result<PathBuf> {
    find_program("garbd").ok_or_else(|| LocalError::Missing {
        what: "Galera's arbitrator, garbd".into(),
        hint: "install it (Debian: apt-get install galera-arbitrator-4), or leave the arbitrator out".into(),
    })
}

fn own(lockstep: Option<&Path>) -> Result<PathBuf> {
    let program = lockstep.map(Path::to_owned).or_else(|| find_program("lockstep"));
    program.ok_or_else(|| LocalError::Missing {
        what: "the program lockstep, which is the arbitrator".into(),
        hint: "build it with `cargo build --release -p lockstep`".into(),
    })
}
