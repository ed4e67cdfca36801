//! Server processes: each leads its own session, so that it and every state-transfer script under it can be
//! found and ended as one, and nothing else ever is.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::error::{LabError, Result};

/// A process that leads a session.
#[derive(Debug)]
pub(crate) struct Session {
    pid: i32,
    /// The handle to wait on, if this process started it; a session found again after a restart of ours has none.
    child: Option<Child>,
    ended: Option<String>,
}

impl Session {
    /// Starts `command` in a session of its own; what it prints is appended to `output`.
    pub(crate) fn spawn(command: &mut Command, output: &Path) -> Result<Session> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(output)
            .map_err(LabError::path("open", output))?;
        let second = log.try_clone().map_err(LabError::path("open", output))?;
        command.stdin(Stdio::null()).stdout(log).stderr(second);
        // SAFETY: the closure runs in the forked child and calls setsid only, which is async-signal-safe.
        unsafe {
            command.pre_exec(
                || {
                    if libc::setsid() < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
                },
            );
        }
        let line = format!("{command:?}");
        let child = command.spawn().map_err(LabError::io(format!("run `{line}`")))?;
        Ok(Session { pid: child.id() as i32, child: Some(child), ended: None })
    }

    /// The session that the process `pid` leads, if it runs and its command line contains `marker`.
    pub(crate) fn find(pid: i32, marker: &str) -> Option<Session> {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains(marker).then_some(Session { pid, child: None, ended: None })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// How the process ended, or `None` while it runs.
    pub(crate) fn ended(&mut self) -> Option<String> {
        if self.ended.is_none() {
            self.ended = match &mut self.child {
                Some(child) => child.try_wait().ok().flatten().map(|s: ExitStatus| s.to_string()),
                None => (state_of(self.pid).is_none_or(|s| s.state == 'Z')).then(|| "gone".to_owned()),
            };
        }
        self.ended.clone()
    }

    /// Sends a signal to the process itself.
    pub(crate) fn signal(&self, signal: i32) -> Result<()> {
        send(self.pid, signal)
    }

    /// Waits until the process has ended, at most `timeout`; whether it did.
    pub(crate) fn wait(&mut self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        while self.ended().is_none() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }

    /// Kills every process of the session and waits for the leader's end.
    pub(crate) fn kill(&mut self) {
        for pid in members(self.pid) {
            let _ = send(pid, libc::SIGKILL);
        }
        self.wait(Duration::from_secs(20));
        // What was born while we counted.
        for pid in members(self.pid) {
            let _ = send(pid, libc::SIGKILL);
        }
    }
}

fn send(pid: i32, signal: i32) -> Result<()> {
    // SAFETY: kill takes two integers and touches no memory of ours.
    let answer = unsafe { libc::kill(pid, signal) };
    if answer == 0 {
        return Ok(());
    }
    let source = std::io::Error::last_os_error();
    Err(LabError::Io { what: format!("send signal {signal} to process {pid}"), source })
}

struct ProcessState {
    state: char,
    session: i32,
}

fn state_of(pid: i32) -> Option<ProcessState> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything: the fields start after the last one.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let session = fields.nth(2)?.parse().ok()?;
    Some(ProcessState { state, session })
}

/// The processes of the session that `leader` leads or led.
fn members(leader: i32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| state_of(*pid).is_some_and(|s| s.session == leader && s.state != 'Z'))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_dies_with_its_children() {
        let dir = std::env::temp_dir().join(format!("lockstep-process-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo started; wait"]);
        let out = dir.join("out");
        let mut session = Session::spawn(&mut command, &out).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while members(session.pid()).len() < 2 {
            assert!(Instant::now() < deadline, "the child did not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(session.ended().is_none());
        session.kill();
        assert!(session.ended().unwrap().contains("signal"), "{:?}", session.ended());
        assert!(members(session.pid()).is_empty());
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "started\n");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
