//! What a supervisor does not mend: waiting until the cluster is whole, and the human who is called where it is not.

use std::path::Path;
use std::time::{Duration, Instant};

use super::crew::{Crew, LOOK, State};
use crate::error::{LabError, Result};

/// After so many steps he gives up.
const STEPS: usize = 6;

impl Crew {
    /// Waits until all are synced members of one component; does what a human does where that does not come about. What
    /// he did.
    /// With `until` it does not wait longer than that, and a fault that comes then finds the cluster as it is.
    pub(super) fn until_whole(
        &mut self,
        patience: Duration,
        until: Option<Instant>,
        say: &dyn Fn(&str),
    ) -> Result<Vec<String>> {
        let mut steps: Vec<String> = Vec::new();
        loop {
            self.tend()?;
            let states = self.states();
            if self.are_whole(&states) {
                self.broken = None;
                return Ok(steps);
            }
            let broken = *self.broken.get_or_insert_with(Instant::now);
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(steps);
            }
            if broken.elapsed() > patience {
                if steps.len() >= STEPS {
                    return Err(LabError::Value(format!(
                        "the cluster does not come back, after {}:\n{}",
                        steps.join("; "),
                        self.log_tails(40)
                    )));
                }
                let step = match states.iter().any(|s| s.is_some_and(|s| s.ready)) {
                    true => self.restart_those_outside(&states, &steps)?,
                    false => self.found_anew()?,
                };
                say(&format!("a human {step}"));
                steps.push(step);
                self.broken = Some(Instant::now());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// A member that runs, and does not come back by itself, is restarted; if that was done before, emptied.
    fn restart_those_outside(&mut self, states: &[Option<State>], steps: &[String]) -> Result<String> {
        let mut done = Vec::new();
        // Where all servers are members, it is the arbitrator who is not.
        let servers = states.iter().all(|state| state.is_some_and(|s| s.ready));
        for at in 0..self.voters() {
            let outside = states.get(at).map_or(servers, |state| !state.is_some_and(|s| s.ready));
            if !outside {
                continue;
            }
            let name = self.name(at).to_owned();
            self.kill(at);
            let before = steps.iter().any(|step| step.contains(&format!("restarted {name}")));
            if before {
                empty(&self.datadir(at))?;
                done.push(format!("emptied {name}"));
            } else {
                done.push(format!("restarted {name}"));
            }
        }
        Ok(done.join(", "))
    }

    /// Nobody is a member of anything: the most advanced one founds the cluster anew.
    fn found_anew(&mut self) -> Result<String> {
        let mut best: Option<(i64, usize, String)> = None;
        for (at, server) in self.cluster.servers.iter_mut().enumerate() {
            server.kill();
            let Ok(position) = server.recover_position() else { continue };
            let seqno =
                position.split(',').next().and_then(|p| p.rsplit(':').next()).and_then(|s| s.parse().ok());
            if let Some(seqno) = seqno
                && best.as_ref().is_none_or(|(highest, ..)| seqno > *highest)
            {
                best = Some((seqno, at, position));
            }
        }
        let (_, at, position) =
            best.ok_or_else(|| LabError::Value("no member has a position to go on from".into()))?;
        let server = &mut self.cluster.servers[at];
        let file = server.datadir().join("grastate.dat");
        let text = std::fs::read_to_string(&file).map_err(LabError::path("read", &file))?;
        std::fs::write(&file, text.replace("safe_to_bootstrap: 0", "safe_to_bootstrap: 1"))
            .map_err(LabError::path("write", &file))?;
        server.spawn(&["--wsrep-new-cluster", &format!("--wsrep_start_position={position}")])?;
        Ok(format!("founded the cluster anew from {}", server.name()))
    }
}

/// Removes what is in a folder, which may be where a disk is mounted.
fn empty(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let gone = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        gone.map_err(LabError::path("remove", &path))?;
    }
    Ok(())
}
