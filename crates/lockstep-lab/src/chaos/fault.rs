//! What is done to a cluster.

use std::fmt;
use std::str::FromStr;

use crate::error::{LabError, Result};
use crate::install::is_root;

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// `kill -9` of the first member of the view, which leads.
    KillFirst,
    /// `kill -9` of another one.
    KillOther,
    /// `kill -9` of all, at once.
    KillAll,
    /// SIGSTOP of one, SIGCONT later.
    Pause,
    /// One is cut off from the others.
    Isolate,
    /// All are cut off from each other.
    Split,
    /// Two are cut off from each other, and the third hears both.
    Bridge,
    /// The disk of one is filled up, and emptied later.
    DiskFull,
    /// All are restarted in order, one after the other.
    Restart,
}

/// All kinds.
pub const ALL_FAULTS: [Fault; 9] = [
    Fault::KillFirst,
    Fault::KillOther,
    Fault::KillAll,
    Fault::Pause,
    Fault::Isolate,
    Fault::Split,
    Fault::Bridge,
    Fault::DiskFull,
    Fault::Restart,
];

impl Fault {
    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Fault::KillFirst => "kill-first",
            Fault::KillOther => "kill-other",
            Fault::KillAll => "kill-all",
            Fault::Pause => "pause",
            Fault::Isolate => "isolate",
            Fault::Split => "split",
            Fault::Bridge => "bridge",
            Fault::DiskFull => "disk-full",
            Fault::Restart => "restart",
        }
    }

    /// Whether the members must have networks of their own.
    pub(super) fn needs_network(self) -> bool {
        matches!(self, Fault::Isolate | Fault::Split | Fault::Bridge)
    }

    /// Whether one must have a disk of its own.
    pub(super) fn needs_disk(self) -> bool {
        self == Fault::DiskFull
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Fault, String> {
        ALL_FAULTS.into_iter().find(|fault| fault.name() == text).ok_or_else(|| {
            let names: Vec<&str> = ALL_FAULTS.iter().map(|fault| fault.name()).collect();
            format!("there is no fault `{text}`: {}", names.join(", "))
        })
    }
}

/// Those of these kinds that this machine and account allow; says which are left out.
pub(super) fn possible(wanted: &[Fault], say: &dyn Fn(&str)) -> Result<Vec<Fault>> {
    let root = is_root()?;
    let network = root && crate::netns::is_possible();
    let mut faults = Vec::new();
    for fault in wanted {
        let missing = match fault {
            fault if fault.needs_network() && !network => Some("network namespaces (root, iproute2)"),
            fault if fault.needs_disk() && !root => Some("a mounted disk (root)"),
            _ => None,
        };
        match missing {
            Some(what) => say(&format!("NOT TESTED: {fault}: this machine does not allow {what}")),
            None => faults.push(*fault),
        }
    }
    if faults.is_empty() {
        return Err(LabError::Value("no fault is left to inject".into()));
    }
    Ok(faults)
}
