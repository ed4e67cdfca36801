//! Faults that are injected into a cluster.

use std::fmt;
use std::str::FromStr;

use lockstep_local::{LocalError, Result, is_root};

use super::policy::Policy;
use super::{ChaosSpec, slow};

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// `kill -9` of any one.
    Kill,
    /// `kill -9` of the first member of the view, which leads.
    KillFirst,
    /// `kill -9` of another one.
    KillOther,
    /// `kill -9` of all, at once.
    KillAll,
    /// `kill -9` of the one that leads, and its disk is lost.
    LoseFirst,
    /// `kill -9` of all but one, and their disks are lost.
    LoseOthers,
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
    /// Each flush of one's disk takes long.
    SlowDisk,
    /// No flush of one's disk comes back, until the end.
    HungDisk,
    /// All are restarted in order, one after the other.
    Restart,
    /// Leadership is given to another one.
    Switchover,
    /// All are restarted in order with another library, one after the other.
    Upgrade,
}

/// All kinds.
pub const ALL_FAULTS: [Fault; 16] = [
    Fault::Kill,
    Fault::KillFirst,
    Fault::KillOther,
    Fault::KillAll,
    Fault::LoseFirst,
    Fault::LoseOthers,
    Fault::Pause,
    Fault::Isolate,
    Fault::Split,
    Fault::Bridge,
    Fault::DiskFull,
    Fault::SlowDisk,
    Fault::HungDisk,
    Fault::Restart,
    Fault::Switchover,
    Fault::Upgrade,
];

impl Fault {
    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::KillFirst => "kill-first",
            Fault::KillOther => "kill-other",
            Fault::KillAll => "kill-all",
            Fault::LoseFirst => "lose-first",
            Fault::LoseOthers => "lose-others",
            Fault::Pause => "pause",
            Fault::Isolate => "isolate",
            Fault::Split => "split",
            Fault::Bridge => "bridge",
            Fault::DiskFull => "disk-full",
            Fault::SlowDisk => "slow-disk",
            Fault::HungDisk => "hung-disk",
            Fault::Restart => "restart",
            Fault::Switchover => "switchover",
            Fault::Upgrade => "upgrade",
        }
    }

    /// Whether it is among those of a run under this policy that names none.
    pub fn is_usual(self, policy: Policy) -> bool {
        match self {
            // It is what `kill-first` and `kill-other` are together.
            Fault::Kill => false,
            // What a policy promises is about disks that are lost, where that is not a matter of majorities.
            Fault::LoseFirst => policy != Policy::Quorum,
            Fault::LoseOthers => policy == Policy::All,
            _ => true,
        }
    }

    /// Whether those who elect the next leader may reach nobody of those who have what is acknowledged: all come back one
    /// after the other, in any order.
    pub(super) fn may_part_all(self) -> bool {
        matches!(self, Fault::KillAll | Fault::Split)
    }

    /// Whether it comes once in a run at most: there is no way back.
    pub(super) fn comes_once(self) -> bool {
        self == Fault::Upgrade
    }

    /// Whether the members must have networks of their own.
    pub(super) fn needs_network(self) -> bool {
        matches!(self, Fault::Isolate | Fault::Split | Fault::Bridge)
    }

    /// Whether one must have a disk of its own.
    pub(super) fn needs_disk(self) -> bool {
        self == Fault::DiskFull
    }

    /// Whether disks must be ones that can be slow.
    pub(super) fn needs_slow_disks(self) -> bool {
        matches!(self, Fault::SlowDisk | Fault::HungDisk)
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

/// Those of the wanted kinds that this machine and account allow, and the run's other settings; says which are left out.
pub(super) fn possible(spec: &ChaosSpec, galera: bool, say: &dyn Fn(&str)) -> Result<Vec<Fault>> {
    let root = is_root()?;
    let network = root && crate::netns::is_possible();
    let mut faults = Vec::new();
    for fault in &spec.faults {
        let missing = match fault {
            fault if fault.needs_network() && !network => {
                Some("it needs network namespaces (root, iproute2)")
            }
            fault if fault.needs_disk() && !root => Some("it needs a mounted disk (root)"),
            fault if fault.needs_slow_disks() && slow::compiler().is_none() => {
                Some("it needs a C compiler (cc)")
            }
            Fault::Switchover if galera => Some("Galera's library has no leader"),
            Fault::Switchover if spec.command.is_none() => Some("it needs the command lockstep"),
            Fault::LoseOthers if galera || spec.policy != Policy::All => {
                Some("only commit.policy=all promises anything where all but one are lost")
            }
            Fault::LoseOthers if spec.arbitrator || spec.command.is_none() => {
                Some("it needs the command lockstep, and servers only")
            }
            Fault::LoseFirst if spec.voters == 1 && spec.command.is_none() => {
                Some("it needs the command lockstep, which lets a replica go on")
            }
            Fault::Upgrade if !galera && spec.upgrade_to.is_none() => {
                Some("it needs another build of the provider, which --upgrade-to names")
            }
            _ => None,
        };
        match missing {
            Some(why) => say(&format!("NOT TESTED: {fault}: {why}")),
            None => faults.push(*fault),
        }
    }
    if faults.is_empty() {
        return Err(LocalError::Value("no fault is left to inject".into()));
    }
    Ok(faults)
}
