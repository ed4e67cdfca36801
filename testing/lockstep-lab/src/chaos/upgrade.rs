//! An upgrade in turn: each member is stopped, and started with another library, while clients go on. Members of both
//! speak the older protocol until the last one has been upgraded.

use std::path::PathBuf;

use lockstep_local::{LocalError, Result};

use super::ChaosSpec;
use super::runner::Runner;
use crate::cluster::ClusterSpec;

/// Galera's option that caps its protocol version, and the version before that of today's library.
const CAP: (&str, &str) = ("repl.proto_max", "10");

/// The version that members are upgraded to.
#[derive(Debug, Clone)]
pub(super) enum Next {
    /// Members with another library.
    Library {
        file: PathBuf,
        /// The arbitrator of that build, if it is there.
        command: Option<PathBuf>,
    },
    /// Members of the same library without this provider option.
    Without(String),
}

impl Next {
    /// The requested upgrade. Galera's library can run an older protocol version: without another library, members begin
    /// with that.
    pub(super) fn of(chaos: &ChaosSpec, cluster: &mut ClusterSpec) -> Next {
        match &chaos.upgrade_to {
            Some(file) => {
                let command = Some(file.with_file_name("lockstep")).filter(|program| program.is_file());
                Next::Library { file: file.clone(), command }
            }
            None => {
                cluster.provider_options.push((CAP.0.into(), CAP.1.into()));
                Next::Without(CAP.0.into())
            }
        }
    }
}

/// Protocol versions (`wsrep_protocol_version`) that the members showed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Upgrade {
    /// Before the first was upgraded.
    pub before: Vec<u64>,
    /// While at least one was not.
    pub meanwhile: Vec<u64>,
    /// After the last one.
    pub after: Vec<u64>,
}

impl Upgrade {
    /// Checks the protocol version: members must agree, it must not rise before all support it, and must not fall.
    pub fn violations(&self) -> Vec<String> {
        let agreed = |versions: &[u64]| versions.windows(2).all(|pair| pair[0] == pair[1]);
        let mut wrong = Vec::new();
        if !agreed(&self.before) || !agreed(&self.after) {
            wrong.push("the members show different protocol versions".to_owned());
        }
        if self.meanwhile.iter().any(|version| !self.before.contains(version)) {
            wrong.push("the protocol version changed before the last member was upgraded".to_owned());
        }
        if self.after.iter().min() < self.before.iter().min() {
            wrong.push("the protocol version went down".to_owned());
        }
        wrong.into_iter().map(|what| format!("{what}: {}", self.text())).collect()
    }

    /// For people.
    pub fn text(&self) -> String {
        let list = |versions: &[u64]| {
            let mut versions: Vec<String> = versions.iter().map(u64::to_string).collect();
            versions.dedup();
            versions.join("/")
        };
        format!(
            "protocol version: {} before the upgrade, {} during it, {} after it",
            list(&self.before),
            list(&self.meanwhile),
            list(&self.after)
        )
    }
}

impl Runner {
    /// Those that do not lead first, as the manual says.
    pub(super) fn upgrade_in_turn(&mut self, first: usize) -> Result<String> {
        let missing = || LocalError::Value("there is nothing to upgrade to".into());
        let next = self.next.take().ok_or_else(missing)?;
        let mut shown = Upgrade { before: self.protocols(), ..Upgrade::default() };
        let library = self.cluster.bench().dir().join("provider-next.so");
        if let Next::Library { file, .. } = &next {
            self.cluster.bench().installation().copy_provider(file, &library)?;
        }
        let mut order: Vec<usize> = (0..self.members()).filter(|at| *at != first).collect();
        order.push(first);
        for (done, at) in order.iter().enumerate() {
            if done > 0 {
                shown.meanwhile.append(&mut self.protocols());
            }
            self.stop(*at)?;
            match (self.cluster.servers.get_mut(*at), &mut self.arbitrator, &next) {
                (Some(server), _, Next::Library { .. }) => server.wsrep_mut()?.provider = library.clone(),
                (Some(server), _, Next::Without(option)) => {
                    server.wsrep_mut()?.provider_options.retain(|(name, _)| name != option);
                }
                (None, Some(arbitrator), Next::Library { command: Some(command), .. }) => {
                    arbitrator.set_program(command.clone());
                }
                _ => {}
            }
            if !self.bring_back(*at)? {
                // An operator would stop here. The member is started with the new library in any case.
                let name = self.name(*at);
                return Ok(format!(
                    "ended with {name}, which did not come back soon; not counted as an upgrade"
                ));
            }
        }
        shown.after = self.protocols();
        self.upgrade = Some(shown);
        Ok("all".into())
    }

    /// The versions that the answering servers report.
    fn protocols(&self) -> Vec<u64> {
        self.states().into_iter().flatten().map(|state| state.protocol).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_change_must_be_complete_and_not_early() {
        let shown = |meanwhile: &[u64], after: &[u64]| Upgrade {
            before: vec![1, 1, 1],
            meanwhile: meanwhile.to_vec(),
            after: after.to_vec(),
        };
        let good = shown(&[1, 1, 1, 1], &[2, 2, 2]);
        assert_eq!(good.violations(), Vec::<String>::new());
        assert_eq!(good.text(), "protocol version: 1 before the upgrade, 1 during it, 2 after it");
        assert_eq!(shown(&[1], &[1, 1, 1]).violations(), Vec::<String>::new());
        assert!(shown(&[1, 2], &[2, 2, 2]).violations()[0].contains("before the last"));
        assert!(shown(&[1], &[2, 1, 2]).violations()[0].contains("different"));
        assert!(shown(&[], &[0, 0, 0]).violations()[0].contains("went down"));
    }
}
