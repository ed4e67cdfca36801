//! How a seed is run.

use crate::mutate::{NodeFault, Planted};
use crate::profile::World;
use lockstep_core::Micros;
use lockstep_core::raft::Failpoint;

/// How to run a seed.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The seed.
    pub seed: u64,
    /// What kind of world it draws.
    pub world: World,
    /// A planted fault.
    pub mutation: Option<Planted>,
    /// Print a line per event.
    pub trace: bool,
    /// From this simulated time on, µs.
    pub trace_from: Micros,
    /// Check also what members owe each other, not only outcomes.
    pub promises: bool,
}

impl Settings {
    /// The fault that is planted in the core, if one is.
    pub(crate) fn core_failpoint(&self) -> Option<Failpoint> {
        match self.mutation {
            Some(Planted::Core(mutation)) => Some(mutation),
            _ => None,
        }
    }

    /// Whether leaders send one copy to each zone: in every other seed, so that the draws of the rest mean what they did.
    pub fn relays(&self) -> bool {
        self.seed.is_multiple_of(2) || self.world == World::LateRelays
    }

    /// Whether disks go back in time. A run with another planted fault has none, so that its draws mean what they did.
    pub(crate) fn rewinds(&self) -> bool {
        matches!(self.mutation, None | Some(Planted::Node(NodeFault::LogGoesBackUnnoticed)))
    }

    /// Whether the logs of several members are damaged at once. As for [`Settings::rewinds`].
    pub(crate) fn damages_several(&self) -> bool {
        let below = [Failpoint::VoteBelowFormerEnd, Failpoint::CampaignBelowFormerEnd];
        self.mutation.is_none() || self.core_failpoint().is_some_and(|failpoint| below.contains(&failpoint))
    }

    /// Whether members report evidence of each other's disks. With a planted fault they do not: they would reveal the fault
    /// before it does harm.
    pub(crate) fn knows_evidence(&self) -> bool {
        self.mutation.is_none()
    }

    /// Whether the member at this place is of a version that knows relays: in most clusters all are.
    pub(crate) fn knows_relays(&self, slot: usize) -> bool {
        !(self.seed.is_multiple_of(8) && slot % 3 == 1)
    }

    /// Whether the member at this place is an arbitrator: in one cluster of seven there is one.
    pub fn arbitrates(&self, slot: usize) -> bool {
        slot == 1 && self.seed % 7 == 2
    }

    /// This seed, all checks, no trace.
    pub fn seed(seed: u64) -> Settings {
        Settings { seed, world: World::Any, mutation: None, trace: false, trace_from: 0, promises: true }
    }
}
