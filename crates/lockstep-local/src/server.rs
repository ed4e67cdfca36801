//! One real server: its files, its process, and its status.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::config::ServerConfig;
use crate::error::{LocalError, Result};
use crate::install::{Installation, last_lines, prefixed, run_to_end, telling_lines};
use crate::process::{Ended, Session, Usage};

/// How long a session of the lab waits for an answer: longer than anything that works takes, short enough that a
/// hung cluster fails its test.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server may take to come up, with a transfer of a small database.
pub const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an orderly stop may take.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(40);

const POLL: Duration = Duration::from_millis(50);

/// A server on this machine. It outlives this value: the owner must stop it, as a cluster does when it is dropped.
#[derive(Debug)]
pub struct Server {
    /// Its configuration; written to `my.cnf` at each start.
    pub config: ServerConfig,
    install: Installation,
    session: Option<Session>,
    by_hand: bool,
}

impl Server {
    /// A server that does not run yet. If a process with this configuration or on this data directory runs already, the
    /// server is that process, whoever started it.
    pub fn new(config: ServerConfig, install: &Installation) -> Server {
        let marker = config.file("cnf").display().to_string();
        let session = std::fs::read_to_string(config.file("pid"))
            .ok()
            .and_then(|pid| Session::find(pid.trim().parse().ok()?, &marker));
        let found = session.is_none().then(|| Session::find_in(&config.datadir())).flatten();
        let by_hand = found.is_some();
        Server { config, install: install.clone(), session: session.or(found), by_hand }
    }

    /// Whether a server works in this data directory, started by this process or not.
    pub fn runs_in(datadir: &Path) -> bool {
        Session::find_in(datadir).is_some()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Whether it was found running without having been started by a value of this type.
    pub fn was_started_by_hand(&self) -> bool {
        self.by_hand && self.session.is_some()
    }

    /// The process number, while it runs.
    pub fn pid(&self) -> Option<i32> {
        self.session.as_ref().map(Session::pid)
    }

    /// Processor time that the server has used since its start; an error if it does not run.
    pub fn cpu_time(&self) -> Result<Duration> {
        let used = self.session.as_ref().and_then(Session::cpu_time);
        used.ok_or_else(|| LocalError::Value(format!("server {} does not run", self.name())))
    }

    /// Resources held by the server; an error if it does not run.
    pub fn usage(&self) -> Result<Usage> {
        let usage = self.session.as_ref().and_then(Session::usage);
        usage.ok_or_else(|| LocalError::Value(format!("server {} does not run", self.name())))
    }

    /// The size of the data directory on the disk, in bytes.
    pub fn disk_usage(&self) -> u64 {
        fn below(dir: &Path) -> u64 {
            // A file that is gone by now takes nothing.
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries
                .map(|entry| match entry.metadata() {
                    Ok(meta) if meta.is_dir() => below(&entry.path()),
                    Ok(meta) => meta.blocks() * 512,
                    Err(_) => 0,
                })
                .sum()
        }
        below(&self.datadir())
    }

    /// Whether the process runs.
    pub fn is_running(&mut self) -> bool {
        self.session.as_mut().is_some_and(|s| s.ended().is_none())
    }

    /// The command line with `extra` arguments.
    fn command(&self, extra: &[&str]) -> Command {
        let mut words: Vec<String> = Vec::new();
        if let Some(namespace) = &self.config.namespace {
            words.extend(["ip", "netns", "exec", namespace].map(str::to_owned));
        }
        if let Some(processor) = self.config.processor {
            words.extend(["taskset".into(), "-c".into(), processor.to_string()]);
        }
        let mut command = prefixed(&words, &self.install.mariadbd);
        command.arg(format!("--defaults-file={}", self.config.file("cnf").display()));
        if let Some(account) = &self.install.account {
            command.arg(format!("--user={}", account.name));
        }
        // Where the server's account may stand: its working directory would be the caller's otherwise.
        let environment = self.config.environment.iter().map(|(name, value)| (name, value));
        command.args(extra).envs(environment).current_dir("/");
        command
    }

    /// Writes `my.cnf`, unless the user has edited it, and makes the folders that it names beside the data directory.
    pub fn write_config(&self) -> Result<()> {
        self.install.make_dir(&self.config.tmpdir(), 0o700)?;
        let path = self.config.file("cnf");
        if self.config.own_file && path.exists() {
            return Ok(());
        }
        std::fs::write(&path, self.config.render()).map_err(LocalError::path("write", &path))
    }

    /// Starts the process and returns at once.
    pub fn spawn(&mut self, extra: &[&str]) -> Result<()> {
        if self.is_running() {
            return Err(LocalError::Value(format!("server {} runs already", self.name())));
        }
        self.write_config()?;
        let mut command = self.command(extra);
        if let Some(disk) = &self.config.disk {
            disk.attach(&mut command)?;
        }
        let session = Session::spawn(&mut command, &self.config.file("out"))?;
        let path = self.config.file("pid");
        std::fs::write(&path, session.pid().to_string()).map_err(LocalError::path("write", &path))?;
        self.session = Some(session);
        self.by_hand = false;
        Ok(())
    }

    /// Starts the server and waits until it answers and, if it is a member, is synced.
    pub fn start(&mut self, extra: &[&str]) -> Result<()> {
        self.spawn(extra)?;
        self.wait_ready(START_TIMEOUT)
    }

    /// Waits until the server answers and, if it is a member, is ready and synced.
    pub fn wait_ready(&mut self, timeout: Duration) -> Result<()> {
        if self.config.wsrep.is_none() {
            return self
                .wait_for("does not answer", timeout, |s| s.client().map(|_| ()).map_err(|e| e.to_string()));
        }
        self.wait_for("does not become a synced member", timeout, |s| {
            let status = s.wsrep_status().map_err(|e| e.to_string())?;
            let get = |name: &str| status.get(name).cloned().unwrap_or_default();
            let seen = (get("wsrep_ready"), get("wsrep_cluster_status"), get("wsrep_local_state"));
            if seen == ("ON".into(), "Primary".into(), "4".into()) {
                Ok(())
            } else {
                Err(format!("{seen:?}"))
            }
        })
    }

    /// Asks `check` until it agrees; its last objection is part of the error.
    pub fn wait_for(
        &mut self,
        what: &str,
        timeout: Duration,
        mut check: impl FnMut(&Server) -> std::result::Result<(), String>,
    ) -> Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            let objection = match check(self) {
                Ok(()) => return Ok(()),
                Err(objection) => objection,
            };
            if let Some(status) = self.ended() {
                return Err(LocalError::Exited {
                    server: self.name().to_owned(),
                    status,
                    log: self.log_tail(40),
                });
            }
            if Instant::now() >= deadline {
                return Err(LocalError::Timeout {
                    server: self.name().to_owned(),
                    what: format!("{what} within {} s ({objection})", timeout.as_secs()),
                    log: self.log_tail(40),
                });
            }
            std::thread::sleep(POLL);
        }
    }

    /// How the process ended; `None` while it runs.
    pub fn ended(&mut self) -> Option<String> {
        match &mut self.session {
            Some(session) => session.ended(),
            None => Some("not started".into()),
        }
    }

    /// Whether the distribution's unit (`Restart=on-abnormal`) starts it again after the end that it has had. A kill of the
    /// lab's own is one such.
    pub fn is_started_again(&mut self) -> bool {
        let Some(session) = &mut self.session else { return true };
        session.how_it_ended().is_some_and(Ended::restarts_on_abnormal)
    }

    /// Waits until the process has ended by itself; how it ended.
    pub fn wait_ended(&mut self, timeout: Duration) -> Result<String> {
        if let Some(session) = &mut self.session {
            session.wait(timeout);
        }
        match self.ended() {
            Some(status) => Ok(status),
            None => Err(LocalError::Timeout {
                server: self.name().to_owned(),
                what: format!("still runs after {} s", timeout.as_secs()),
                log: self.log_tail(40),
            }),
        }
    }

    /// Stops the server in order (SIGTERM) and waits for its end.
    pub fn stop(&mut self) -> Result<()> {
        self.stop_within(STOP_TIMEOUT)
    }

    /// The same, with a time of one's own.
    pub fn stop_within(&mut self, timeout: Duration) -> Result<()> {
        let Some(session) = &mut self.session else { return Ok(()) };
        if session.ended().is_none() {
            session.signal(libc::SIGTERM)?;
            self.wait_ended(timeout)?;
        }
        self.forget();
        Ok(())
    }

    /// Kills the server (`kill -9`) and whatever scripts it runs.
    pub fn kill(&mut self) {
        if let Some(session) = &mut self.session {
            session.kill();
        }
        self.forget();
    }

    fn forget(&mut self) {
        self.session = None;
        let _ = std::fs::remove_file(self.config.file("pid"));
    }

    /// The error log since `mark`, a length of [`Server::log`].
    pub fn log_since(&self, mark: usize) -> String {
        let log = self.log();
        log.get(mark..).unwrap_or(&log).to_owned()
    }

    /// Stops the process in its tracks (SIGSTOP).
    pub fn pause(&self) -> Result<()> {
        self.signal(libc::SIGSTOP)
    }

    /// Lets a paused process go on (SIGCONT).
    pub fn resume(&self) -> Result<()> {
        self.signal(libc::SIGCONT)
    }

    /// Sends a signal and does not wait. After SIGKILL [`Server::kill`] is to follow.
    pub fn signal(&self, signal: i32) -> Result<()> {
        match &self.session {
            Some(session) => session.signal(signal),
            None => Err(LocalError::Value(format!("server {} does not run", self.name()))),
        }
    }

    /// A new session as root.
    pub fn client(&self) -> Result<Client> {
        Client::connect(&self.config.socket(), "root", ANSWER_TIMEOUT)
    }

    /// One statement in a session of its own.
    pub fn query(&self, sql: &str) -> Result<crate::client::Answer> {
        self.client()?.query(sql)
    }

    /// All `wsrep_` status variables.
    pub fn wsrep_status(&self) -> Result<std::collections::BTreeMap<String, String>> {
        let answer = self.query("SHOW GLOBAL STATUS LIKE 'wsrep\\_%'")?;
        Ok(answer
            .rows
            .into_iter()
            .filter_map(|row| {
                let mut row = row.into_iter().flatten();
                Some((row.next()?, row.next()?))
            })
            .collect())
    }

    /// InnoDB's position by the server's own recovery (`--wsrep-recover`): `uuid:seqno`. The server must
    /// not run.
    pub fn recover_position(&mut self) -> Result<String> {
        if self.is_running() {
            return Err(LocalError::Value(format!(
                "server {} runs: stop it before its recovery",
                self.name()
            )));
        }
        self.write_config()?;
        let text = run_to_end(&mut self.command(&["--wsrep-recover", "--disable-log-error"]))?;
        let marker = "WSREP: Recovered position:";
        text.lines()
            .find_map(|line| line.split_once(marker))
            .map(|(_, position)| position.trim().to_owned())
            .ok_or_else(|| LocalError::Command {
                command: "mariadbd --wsrep-recover".into(),
                output: last_lines(&text, 30),
            })
    }

    /// Its replication settings; an error for a plain server.
    pub fn wsrep_mut(&mut self) -> Result<&mut crate::config::Wsrep> {
        let missing = LocalError::Value(format!("server {} is not a member of a cluster", self.config.name));
        self.config.wsrep.as_mut().ok_or(missing)
    }

    /// The data directory.
    pub fn datadir(&self) -> PathBuf {
        self.config.datadir()
    }

    /// The error log so far.
    pub fn log(&self) -> String {
        let read = |ext| std::fs::read(self.config.file(ext)).unwrap_or_default();
        let mut text = String::from_utf8_lossy(&read("out")).into_owned();
        text.push_str(&String::from_utf8_lossy(&read("err")));
        text
    }

    /// The error log's lines on the failure of the last start, at most `lines` of them.
    pub fn complaints(&self, lines: usize) -> String {
        telling_lines(&self.log(), lines)
    }

    /// Waits until `check` succeeds. An error of it counts as not yet.
    ///
    /// # Errors
    /// [`LocalError::Timeout`] after `timeout`: `what` says what this server does not do, such as "does not replicate".
    pub fn wait_until(
        &self,
        timeout: Duration,
        pause: Duration,
        what: &str,
        mut check: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let end = Instant::now() + timeout;
        loop {
            match check() {
                Ok(true) => return Ok(()),
                Ok(false) | Err(_) if Instant::now() < end => std::thread::sleep(pause),
                seen => {
                    let seen = seen.err().map_or_else(String::new, |e| format!(" ({e})"));
                    return Err(LocalError::Timeout {
                        server: self.name().to_owned(),
                        what: format!("{what} within {} s{seen}", timeout.as_secs()),
                        log: self.log_tail(20),
                    });
                }
            }
        }
    }

    /// The last `lines` of the error log.
    pub fn log_tail(&self, lines: usize) -> String {
        last_lines(&self.log(), lines)
    }
}
