//! Waits until the cluster is complete after a supervisor's restarts, and simulates an operator if it is not.

use std::path::Path;
use std::time::{Duration, Instant};

use lockstep_local::{LocalError, Result};

use super::runner::{LOOK, Runner, State};

/// After so many steps he gives up.
const STEPS: usize = 6;

/// How long each member has been missing. A fault that kills a member resets its time. A member that ends by itself keeps
/// its time, however often the supervisor restarts it.
#[derive(Default)]
pub(super) struct Missed {
    /// Since when each is outside.
    members: Vec<Option<Instant>>,
    /// Since when no server is a member of anything.
    cluster: Option<Instant>,
}

/// The servers for which a human is needed.
struct Overdue {
    members: Vec<usize>,
    /// No server is a member of a cluster.
    cluster: bool,
}

impl Overdue {
    fn any(&self) -> bool {
        self.cluster || !self.members.is_empty()
    }
}

impl Missed {
    fn look(&mut self, outside: &[bool], nobody: bool, now: Instant) {
        self.members.resize(outside.len(), None);
        for (since, outside) in self.members.iter_mut().zip(outside) {
            *since = outside.then(|| since.unwrap_or(now));
        }
        self.cluster = nobody.then(|| self.cluster.unwrap_or(now));
    }

    fn overdue(&self, timeout: Duration, now: Instant) -> Overdue {
        let late = |since: &Option<Instant>| since.is_some_and(|since| now - since > timeout);
        let members = (0..self.members.len()).filter(|at| late(&self.members[*at])).collect();
        Overdue { members, cluster: late(&self.cluster) }
    }

    /// A fault has killed it.
    pub(super) fn killed(&mut self, at: usize) {
        if let Some(since) = self.members.get_mut(at) {
            *since = None;
        }
    }

    fn clear(&mut self) {
        *self = Missed::default();
    }
}

impl Runner {
    /// Waits until all are synced members of one component; does what a human does where that does not come about. What
    /// he did.
    /// With `until` it does not wait longer than that, and a fault that comes then finds the cluster as it is.
    pub(super) fn until_whole(
        &mut self,
        timeout: Duration,
        until: Option<Instant>,
        say: &dyn Fn(&str),
    ) -> Result<Vec<String>> {
        let mut steps: Vec<String> = Vec::new();
        loop {
            self.tend()?;
            let states = self.states();
            if self.are_whole(&states) {
                self.missed.clear();
                self.broken = false;
                return Ok(steps);
            }
            self.broken = true;
            let outside = self.outside(&states);
            let nobody = !states.iter().any(|state| state.is_some_and(|s| s.ready));
            self.missed.look(&outside, nobody, Instant::now());
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(steps);
            }
            let late = self.missed.overdue(timeout, Instant::now());
            if late.any() {
                if steps.len() >= STEPS {
                    return Err(LocalError::Value(format!(
                        "the cluster does not come back, after {}:\n{}",
                        steps.join("; "),
                        self.log_tails(40)
                    )));
                }
                let step = match late.cluster {
                    false => self.restart(&late.members, &steps)?,
                    true => self.found_anew()?,
                };
                say(&format!("a human {step}"));
                steps.push(step);
                self.missed.clear();
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The members that are not Synced in the primary component.
    fn outside(&self, states: &[Option<State>]) -> Vec<bool> {
        let members = self.members();
        // Where all servers are members of something, it is those of less than the whole, or the arbitrator.
        let all = states.iter().all(|state| state.is_some_and(|s| s.ready));
        let part = |state: &Option<State>| state.is_some_and(|s| s.size != members);
        let mut outside: Vec<bool> = states
            .iter()
            .map(|state| if all { part(state) } else { !state.is_some_and(|s| s.ready) })
            .collect();
        outside.resize(members, all && states.iter().any(part));
        outside
    }

    /// A member that does not come back by itself is restarted; if that was done before, emptied.
    fn restart(&mut self, members: &[usize], steps: &[String]) -> Result<String> {
        let mut done = Vec::new();
        for at in members.iter().copied() {
            let name = self.name(at).to_owned();
            self.kill(at);
            let before = steps.iter().any(|step| step.contains(&format!("restarted {name}")));
            if before {
                self.lose_disk(at)?;
                done.push(format!("emptied {name}"));
            } else {
                done.push(format!("restarted {name}"));
            }
        }
        Ok(done.join(", "))
    }

    /// No server is a member of a cluster: the most advanced one founds it again.
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
            best.ok_or_else(|| LocalError::Value("no member has a position to go on from".into()))?;
        let server = &mut self.cluster.servers[at];
        let file = server.datadir().join("grastate.dat");
        let text = std::fs::read_to_string(&file).map_err(LocalError::path("read", &file))?;
        std::fs::write(&file, text.replace("safe_to_bootstrap: 0", "safe_to_bootstrap: 1"))
            .map_err(LocalError::path("write", &file))?;
        server.spawn(&["--wsrep-new-cluster", &format!("--wsrep_start_position={position}")])?;
        Ok(format!("founded the cluster anew from {}", server.name()))
    }
}

/// Removes what is in a folder, which may be where a disk is mounted.
pub(super) fn empty(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let gone = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        gone.map_err(LocalError::path("remove", &path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operator_steps_in_for_missing_member_only() {
        let (start, timeout) = (Instant::now(), Duration::from_secs(60));
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut missed = Missed::default();
        for seconds in (0..=60).step_by(10) {
            // The first is killed again and again, the second never comes back, the third is there.
            missed.killed(0);
            missed.look(&[true, true, false], false, at(seconds));
            assert!(!missed.overdue(timeout, at(seconds)).any());
        }
        let late = missed.overdue(timeout, at(61));
        assert_eq!((late.members, late.cluster), (vec![1], false));
        missed.look(&[true, false, false], false, at(62));
        assert!(!missed.overdue(timeout, at(70)).any(), "it was there once");
        missed.look(&[true; 3], true, at(70));
        missed.killed(1);
        missed.look(&[true; 3], true, at(100));
        assert!(missed.overdue(timeout, at(131)).cluster, "nobody is anything, whoever was killed meanwhile");
    }
}
