//! Leadership follows the writer, as far as it is the node's: whether this is the time for it, and whether the writer's
//! server is fit. Who writes is counted by [`lockstep_core::follow`].

use super::{Level, Member, Micros};
use crate::api::LocalState;
use lockstep_core::MemberId;

/// Who writes is counted over windows of this length.
pub(super) const WINDOW: Micros = 1_000_000;

impl Member {
    /// A leader's look at who writes.
    pub(super) fn place_leadership(&mut self) {
        let Some((writer, share)) = self.writer_share.look(&self.raft, self.now) else { return };
        if !self.tuning.follow_writer
            || self.is_busy()
            || self.unfit_to_lead(&writer).is_some()
            || !self.is_synced(&writer)
        {
            return;
        }
        if self.raft.transfer_leadership(self.now, writer).is_ok() {
            self.writer_share.moved(self.now);
            let name = self.name_of(&writer);
            let text = format!(
                "{name} proposes {share} % of all transactions: it is to lead (leader.follow_writer)"
            );
            self.log(Level::Info, text);
        }
    }

    /// Whether something is under way that needs a leader for longer: a command, a member that comes or goes, or takes
    /// its state.
    pub(super) fn is_busy(&self) -> bool {
        let membership = self.raft.membership();
        let comes = |id: &MemberId, state: Option<LocalState>| {
            membership.get(id).is_none()
                || !matches!(state, Some(LocalState::Synced | LocalState::Donor | LocalState::Error))
        };
        self.leaving
            || self.is_commanded()
            || self.is_at_barrier()
            || !self.donations.is_empty()
            || self
                .peers
                .iter()
                .any(|(id, peer)| peer.leaving() || comes(id, peer.health.map(|health| health.state)))
    }
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
