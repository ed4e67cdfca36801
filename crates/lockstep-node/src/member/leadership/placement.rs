//! Leader placement: moves leadership to the writer if nothing else is under way and the writer's server is fit.
//! [`lockstep_core::placement`] counts the writes.

use crate::api::LocalState;
use crate::member::{Level, Member, Micros};
use lockstep_core::MemberId;

/// The length of the windows over which writes are counted.
pub(in crate::member) const WINDOW: Micros = 1_000_000;

impl Member {
    /// A leader's check whether another member writes most.
    pub(in crate::member) fn place_leadership(&mut self) {
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

    /// Whether leadership should not move now: a command is under way, or a member joins, leaves or takes its state.
    pub(in crate::member) fn is_busy(&self) -> bool {
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
