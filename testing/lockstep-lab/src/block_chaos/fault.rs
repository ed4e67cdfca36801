//! Faults that are injected into the members of a device.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::model::Loss;
use crate::block_group::Protocol;

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// `kill -9` of the primary, which starts again and is promoted.
    KillPrimary,
    /// `kill -9` of the primary. Another member is promoted while it is down.
    KillPrimaryMove,
    /// `kill -9` of another member.
    KillOther,
    /// `kill -9` of all, at once. Any copy is promoted.
    KillAll,
    /// SIGSTOP of the primary, SIGCONT later.
    PausePrimary,
    /// The same, and another member is promoted meanwhile.
    PausePrimaryMove,
    /// SIGSTOP of another member, SIGCONT later.
    PauseOther,
    /// The primary is cut off from the others.
    CutPrimary,
    /// The same, and another member is promoted meanwhile.
    CutPrimaryMove,
    /// Another member is cut off.
    CutOther,
    /// All are cut off from each other.
    Split,
    /// The disk of one member is filled to the last byte, and emptied later.
    FullDisk,
    /// Each flush of one member's disk takes longer.
    SlowDisk,
    /// SIGTERM to the primary while the client writes. Another member is promoted.
    StopPrimary,
    /// The client leaves in order and attaches at another member.
    Handover,
}

/// All kinds.
pub const ALL_FAULTS: [Fault; 15] = [
    Fault::KillPrimary,
    Fault::KillPrimaryMove,
    Fault::KillOther,
    Fault::KillAll,
    Fault::PausePrimary,
    Fault::PausePrimaryMove,
    Fault::PauseOther,
    Fault::CutPrimary,
    Fault::CutPrimaryMove,
    Fault::CutOther,
    Fault::Split,
    Fault::FullDisk,
    Fault::SlowDisk,
    Fault::StopPrimary,
    Fault::Handover,
];

impl Fault {
    /// As on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Fault::KillPrimary => "kill-primary",
            Fault::KillPrimaryMove => "kill-primary-move",
            Fault::KillOther => "kill-other",
            Fault::KillAll => "kill-all",
            Fault::PausePrimary => "pause-primary",
            Fault::PausePrimaryMove => "pause-primary-move",
            Fault::PauseOther => "pause-other",
            Fault::CutPrimary => "cut-primary",
            Fault::CutPrimaryMove => "cut-primary-move",
            Fault::CutOther => "cut-other",
            Fault::Split => "split",
            Fault::FullDisk => "full-disk",
            Fault::SlowDisk => "slow-disk",
            Fault::StopPrimary => "stop-primary",
            Fault::Handover => "handover",
        }
    }

    /// Whether members must have networks of their own.
    pub(super) fn needs_network(self) -> bool {
        matches!(self, Fault::CutPrimary | Fault::CutPrimaryMove | Fault::CutOther | Fault::Split)
    }

    /// Whether the client's server dies by it, or another member takes its place.
    fn ends_primary(self) -> bool {
        matches!(
            self,
            Fault::KillPrimary
                | Fault::KillPrimaryMove
                | Fault::PausePrimary
                | Fault::PausePrimaryMove
                | Fault::StopPrimary
        )
    }

    /// Whether the primary is not the only member that it hits, or the primary goes on alone.
    fn parts_primary(self) -> bool {
        matches!(self, Fault::KillAll | Fault::CutPrimary | Fault::CutPrimaryMove | Fault::Split)
    }

    /// Whether the fault is one of a disk, which may be the primary's.
    fn hits_disk(self) -> bool {
        matches!(self, Fault::FullDisk | Fault::SlowDisk)
    }

    /// The loss that the protocol allows after a promotion.
    pub(super) fn loss(self, protocol: Protocol) -> Loss {
        if matches!(self, Fault::StopPrimary | Fault::Handover) {
            // In order: everything that was answered is written.
            return Loss::Nothing;
        }
        match protocol {
            Protocol::C => Loss::Unflushed,
            // Another member has received each flush, and lives.
            Protocol::B if self.parts_primary() || self.hits_disk() => Loss::Suffix,
            Protocol::B => Loss::Unflushed,
            Protocol::A if self.ends_primary() || self.parts_primary() || self.hits_disk() => Loss::Suffix,
            Protocol::A => Loss::Unflushed,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        ALL_FAULTS.into_iter().find(|fault| fault.name() == text).ok_or_else(|| {
            let names: Vec<&str> = ALL_FAULTS.iter().map(|fault| fault.name()).collect();
            format!("there is no fault `{text}`: {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for fault in ALL_FAULTS {
            assert_eq!(fault.name().parse(), Ok(fault));
            assert_eq!(serde_json::to_value(fault).unwrap(), fault.name());
        }
        assert!("flood".parse::<Fault>().unwrap_err().contains("kill-all"));
    }

    #[test]
    fn only_weak_protocols_may_lose_flushes() {
        for fault in ALL_FAULTS {
            assert_ne!(fault.loss(Protocol::C), Loss::Suffix, "{fault}");
        }
        assert_eq!(Fault::KillPrimaryMove.loss(Protocol::A), Loss::Suffix);
        assert_eq!(Fault::KillPrimaryMove.loss(Protocol::B), Loss::Unflushed);
        assert_eq!(Fault::KillAll.loss(Protocol::B), Loss::Suffix);
        assert_eq!(Fault::StopPrimary.loss(Protocol::A), Loss::Nothing);
    }
}
