//! Server processes: each leads its own session, so that it and every state-transfer script under it can be
//! found and ended as one, and nothing else ever is.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::error::{LocalError, Result};

/// How systemd classifies the end of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It returned this code.
    Exited(i32),
    /// By a signal that asks for an end, as an order to stop is.
    Asked,
    /// By another signal: killed, or crashed.
    Abnormally,
}

impl Ended {
    fn of(status: ExitStatus) -> Ended {
        match (status.code(), status.signal()) {
            (Some(code), _) => Ended::Exited(code),
            (None, Some(libc::SIGHUP | libc::SIGINT | libc::SIGTERM | libc::SIGPIPE))
                if !status.core_dumped() =>
            {
                Ended::Asked
            }
            (None, _) => Ended::Abnormally,
        }
    }

    /// Whether a unit with `Restart=on-abnormal`, as Debian's of MariaDB, starts it again.
    pub fn restarts_on_abnormal(self) -> bool {
        self == Ended::Abnormally
    }

    /// Whether a unit with `Restart=on-failure`, as the arbitrator's, starts it again.
    pub fn restarts_on_failure(self) -> bool {
        !matches!(self, Ended::Exited(0) | Ended::Asked)
    }
}

/// A process that leads a session.
#[derive(Debug)]
pub struct Session {
    pid: i32,
    /// The handle to wait on, if this process started it; a session found again after a restart of ours has none.
    child: Option<Child>,
    ended: Option<String>,
}

impl Session {
    /// Starts `command` in a session of its own; its output is appended to `output`.
    pub fn spawn(command: &mut Command, output: &Path) -> Result<Session> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(output)
            .map_err(LocalError::path("open", output))?;
        let second = log.try_clone().map_err(LocalError::path("open", output))?;
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
        let child = command.spawn().map_err(LocalError::io(format!("run `{line}`")))?;
        Ok(Session { pid: child.id() as i32, child: Some(child), ended: None })
    }

    /// The session that the process `pid` leads, if it runs and its command line contains `marker`.
    pub fn find(pid: i32, marker: &str) -> Option<Session> {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains(marker).then_some(Session { pid, child: None, ended: None })
    }

    /// The server that works in this data directory, whoever started it: servers go there at their start.
    pub fn find_in(datadir: &Path) -> Option<Session> {
        let datadir = datadir.canonicalize().ok()?;
        let works_here = |pid: &i32| -> Option<bool> {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            let is_server = matches!(name.trim_end(), "mariadbd" | "mysqld");
            if !is_server || std::fs::read_link(format!("/proc/{pid}/cwd")).ok()? != datadir {
                return None;
            }
            // A recovery run of that server's is not it.
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            Some(!String::from_utf8_lossy(&line).replace('_', "-").contains("--wsrep-recover"))
        };
        let mut pids: Vec<i32> = processes().filter(|pid| works_here(pid) == Some(true)).collect();
        pids.sort_unstable();
        Some(Session { pid: *pids.first()?, child: None, ended: None })
    }

    /// The number of the leading process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// How the process ended, or `None` while it runs.
    pub fn ended(&mut self) -> Option<String> {
        if self.ended.is_none() {
            self.ended = match &mut self.child {
                Some(child) => child.try_wait().ok().flatten().map(|s: ExitStatus| s.to_string()),
                None => (state_of(self.pid).is_none_or(|s| s.state == 'Z')).then(|| "gone".to_owned()),
            };
        }
        self.ended.clone()
    }

    /// How it ended, in systemd's words; `None` while it runs, or where it is somebody else's child, of which that is not
    /// known.
    pub fn how_it_ended(&mut self) -> Option<Ended> {
        self.ended()?;
        self.child.as_mut()?.try_wait().ok().flatten().map(Ended::of)
    }

    /// Processor time that the process, all its threads, has used; `None` once it is gone.
    pub fn cpu_time(&self) -> Option<Duration> {
        state_of(self.pid).map(|s| s.cpu)
    }

    /// The resources held by the process; `None` once it is gone.
    pub fn usage(&self) -> Option<Usage> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let field = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        Some(Usage {
            memory: field("VmRSS:")? * 1024,
            threads: field("Threads:")?,
            descriptors: std::fs::read_dir(format!("/proc/{}/fd", self.pid)).ok()?.count() as u64,
        })
    }

    /// Sends a signal to the process itself.
    pub fn signal(&self, signal: i32) -> Result<()> {
        send(self.pid, signal)
    }

    /// Waits until the process has ended, at most `timeout`; whether it did.
    pub fn wait(&mut self, timeout: Duration) -> bool {
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
    pub fn kill(&mut self) {
        for pid in members(self.pid) {
            let _ = send(pid, libc::SIGKILL);
        }
        // One that was started by hand leads no session of its own.
        if self.ended().is_none() {
            let _ = send(self.pid, libc::SIGKILL);
        }
        self.wait(Duration::from_secs(20));
        // Processes started while we counted.
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
    Err(LocalError::Io { what: format!("send signal {signal} to process {pid}"), source })
}

/// Resources held by a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Memory that is resident, in bytes.
    pub memory: u64,
    /// Threads.
    pub threads: u64,
    /// Open files, sockets and the like.
    pub descriptors: u64,
}

struct ProcessState {
    state: char,
    parent: i32,
    session: i32,
    cpu: Duration,
    /// Of its children that have ended, and of theirs.
    cpu_of_children: Duration,
}

/// The kernel's unit of processor time in /proc is fixed at a hundredth of a second for programs (`USER_HZ`).
pub fn ticks(count: u64) -> Duration {
    Duration::from_millis(10 * count)
}

fn state_of(pid: i32) -> Option<ProcessState> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything: the fields start after the last one.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    let mut times = fields.skip(7).map(|count| count.parse().ok().map(ticks));
    let cpu = times.next()?? + times.next()??;
    let cpu_of_children = times.next()?? + times.next()??;
    Some(ProcessState { state, parent, session, cpu, cpu_of_children })
}

/// The parent of each process, and the processor time that it and its children that have ended have used.
pub fn parents_and_times() -> BTreeMap<i32, (i32, Duration)> {
    let state = |pid| state_of(pid).map(|state| (pid, (state.parent, state.cpu + state.cpu_of_children)));
    processes().filter_map(state).collect()
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok())
}

/// The processes of the session that `leader` leads or led.
fn members(leader: i32) -> Vec<i32> {
    processes().filter(|pid| state_of(*pid).is_some_and(|s| s.session == leader && s.state != 'Z')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The statuses as `wait` tells them.
    #[test]
    fn systemd_unit_restarts_crashed_arbitrator() {
        let of = |raw| Ended::of(ExitStatus::from_raw(raw));
        for (raw, ended, abnormal, failure) in [
            (0, Ended::Exited(0), false, false),
            (1 << 8, Ended::Exited(1), false, true),
            (libc::SIGTERM, Ended::Asked, false, false),
            (libc::SIGABRT, Ended::Abnormally, true, true),
            (libc::SIGKILL, Ended::Abnormally, true, true),
            (libc::SIGSEGV | 0x80, Ended::Abnormally, true, true),
        ] {
            assert_eq!(of(raw), ended);
            assert_eq!(
                (of(raw).restarts_on_abnormal(), of(raw).restarts_on_failure()),
                (abnormal, failure),
                "{raw}"
            );
        }
    }

    #[test]
    fn server_started_elsewhere_is_found_by_folder() {
        let dir = std::env::temp_dir().join(format!("lockstep-by-hand-{}", std::process::id()));
        let datadir = dir.join("n1");
        std::fs::create_dir_all(&datadir).unwrap();
        let program = dir.join("mariadbd");
        std::fs::copy("/bin/sleep", &program).unwrap();
        assert!(Session::find_in(&datadir).is_none());
        let mut by_hand = Command::new(&program).arg("1000").current_dir(&datadir).spawn().unwrap();
        let mut other = Command::new("/bin/sleep").arg("1000").current_dir(&datadir).spawn().unwrap();
        let mut session = Session::find_in(&datadir).expect("the server is not found");
        assert_eq!(session.pid(), by_hand.id() as i32);
        assert!(Session::find_in(&dir).is_none());
        let kill = std::thread::spawn(move || session.kill());
        assert!(by_hand.wait().unwrap().code().is_none(), "killed");
        kill.join().unwrap();
        other.kill().unwrap();
        other.wait().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn session_dies_with_its_children() {
        let dir = std::env::temp_dir().join(format!("lockstep-process-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo started; wait"]);
        let out = dir.join("out");
        let mut session = Session::spawn(&mut command, &out).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        // The shell writes after the child has begun.
        let written = || std::fs::read_to_string(&out).unwrap();
        while members(session.pid()).len() < 2 || written() != "started\n" {
            assert!(Instant::now() < deadline, "the child did not start: {:?}", written());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(session.ended().is_none());
        let usage = session.usage().unwrap();
        assert!(usage.threads == 1 && usage.descriptors >= 3 && usage.memory > 100_000, "{usage:?}");
        session.kill();
        assert_eq!(session.usage(), None);
        assert!(session.ended().unwrap().contains("signal"), "{:?}", session.ended());
        // The child is dead; its new parent reaps it.
        let deadline = Instant::now() + Duration::from_secs(10);
        while !members(session.pid()).is_empty() {
            assert!(Instant::now() < deadline, "the child is still there");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
