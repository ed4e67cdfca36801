//! Loss of disks: the leader's, or those of all members but one. A remaining majority continues by itself; otherwise the
//! test runs `lockstep bootstrap`, as an operator would.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use lockstep_local::{LocalError, Result, run_to_end};

use super::human::empty;
use super::rescued;
use super::runner::{LOOK, Runner, vote};

/// How long those who are left may take to miss the others, and to go on.
const TIMEOUT: Duration = Duration::from_secs(30);

impl Runner {
    /// Deletes all its files. Rescue files from before are moved away first, as an operator would do.
    pub(super) fn lose_disk(&mut self, at: usize) -> Result<()> {
        self.keep_rescued(at)?;
        empty(&self.datadir(at))
    }

    fn keep_rescued(&mut self, at: usize) -> Result<()> {
        for file in rescued::files(&self.datadir(at)) {
            // `lockstep log --rescue` takes no other name.
            let name = format!("lockstep.rescue.{}.log", self.kept.len() + 1);
            let copy = self.cluster.bench().dir().join(name);
            std::fs::copy(&file, &copy).map_err(LocalError::path("copy", &file))?;
            self.kept.push(copy);
        }
        Ok(())
    }

    /// Copies of all rescue files that there were.
    pub(super) fn rescue_files(&mut self) -> Result<Vec<PathBuf>> {
        (0..self.cluster.servers.len()).try_for_each(|at| self.keep_rescued(at))?;
        Ok(self.kept.clone())
    }

    /// The only voter is lost: the replica that has the most goes on, and votes from now on.
    pub(super) fn replica_goes_on(&mut self, lost: usize) -> Result<String> {
        let replicas: Vec<usize> = (0..self.cluster.servers.len()).filter(|at| *at != lost).collect();
        let successor = self.goes_on(&replicas)?;
        vote(&mut self.cluster.servers[successor], true)?;
        vote(&mut self.cluster.servers[lost], false)?;
        Ok(format!("{}; {} goes on", self.name(lost), self.name(successor)))
    }

    /// All but one are lost, and it goes on.
    pub(super) fn one_is_left(&mut self, left: usize) -> Result<String> {
        let others: Vec<usize> = (0..self.cluster.servers.len()).filter(|at| *at != left).collect();
        // One at a time would give the others a moment to answer without it.
        for at in &others {
            // One that does not run has no more to lose.
            drop(self.cluster.servers[*at].signal(libc::SIGKILL));
        }
        for at in others {
            self.kill(at);
            self.lose_disk(at)?;
        }
        self.goes_on(&[left])?;
        Ok(format!("all but {}", self.name(left)))
    }

    /// The first of them that `lockstep bootstrap` lets go on. It refuses while the others are not yet missed, or if a
    /// member that it reaches has more of the log.
    fn goes_on(&self, candidates: &[usize]) -> Result<usize> {
        let command = self.command.as_ref().ok_or_else(|| LocalError::Value("no command lockstep".into()))?;
        let until = Instant::now() + TIMEOUT;
        loop {
            let mut refusals = Vec::new();
            for at in candidates {
                let server = &self.cluster.servers[*at];
                let mut command = Command::new(command);
                command.args(["bootstrap", "--socket"]).arg(server.datadir().join("lockstep.sock"));
                match run_to_end(&mut command) {
                    Ok(_) => return Ok(*at),
                    Err(error) => refusals.push(error.to_string()),
                }
            }
            if Instant::now() > until {
                return Err(LocalError::Value(format!(
                    "nobody goes on who is left: {}\n{}",
                    refusals.join("; "),
                    self.log_tails(40)
                )));
            }
            std::thread::sleep(LOOK);
        }
    }
}
