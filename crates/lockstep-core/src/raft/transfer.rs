//! Leadership transfer: the leader hands leadership to another voter once that voter has all of its log.
//!
//! Nothing is appended meanwhile, so that the target can catch up.

use super::errors::{NotLeader, TransferError};
use super::local::Local;
use super::output::Outputs;
use crate::message::Message;
use crate::types::*;

/// The transfer in progress, if there is one. Only a leader has one.
#[derive(Debug, Default)]
pub(super) struct LeadershipTransfer {
    current: Option<Transfer>,
}

#[derive(Debug)]
struct Transfer {
    to: MemberId,
    /// After that the leader goes on itself.
    deadline: Micros,
    /// The target was told to campaign.
    notified: bool,
}

impl LeadershipTransfer {
    pub(super) fn is_active(&self) -> bool {
        self.current.is_some()
    }

    /// Ends the transfer, whether it has succeeded or not.
    pub(super) fn end(&mut self) {
        self.current = None;
    }

    pub(super) fn deadline(&self) -> Micros {
        self.current.as_ref().map_or(Micros::MAX, |transfer| transfer.deadline)
    }

    /// Begins a transfer.
    pub(super) fn begin(&mut self, local: &Local, to: MemberId) -> Result<(), TransferError> {
        if !local.is_leader() {
            return Err(TransferError::NotLeader(NotLeader { leader: local.leader() }));
        }
        if to == local.id() {
            return Err(TransferError::Ourselves);
        }
        if !local.membership().is_voter(&to) {
            return Err(TransferError::NotVoter);
        }
        match &self.current {
            Some(transfer) if transfer.to != to => Err(TransferError::Busy),
            Some(_) => Ok(()),
            None => {
                let deadline = local.now() + local.config().election_timeout;
                self.current = Some(Transfer { to, deadline, notified: false });
                Ok(())
            }
        }
    }

    /// Ends a transfer that has taken too long. Whether it did.
    pub(super) fn tick(&mut self, local: &Local) -> bool {
        let is_late = self.is_active() && self.deadline() <= local.now();
        if is_late {
            self.end();
        }
        is_late
    }

    /// Tells the target to campaign, once it can win. `received`: the last index in a peer's memory.
    pub(super) fn hand_over(
        &mut self,
        local: &Local,
        out: &mut Outputs,
        received: impl Fn(&MemberId) -> Option<Index>,
    ) {
        let Some(transfer) = &mut self.current else { return };
        debug_assert!(local.is_leader(), "only a leader hands over");
        let is_ready = received(&transfer.to) == Some(local.log().last());
        if is_ready && !transfer.notified {
            transfer.notified = true;
            out.send(transfer.to, Message::TimeoutNow { term: local.term() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{follower, leader, member, with_entries};
    use super::*;

    #[test]
    fn target_is_told_once_it_has_full_log() {
        let (local, mut out) = (with_entries(leader(3), 3), Outputs::new());
        let mut transfer = LeadershipTransfer::default();
        assert_eq!(transfer.begin(&local, member(2)), Ok(()));
        transfer.hand_over(&local, &mut out, |_| Some(2));
        assert!(out.take().is_empty());
        transfer.hand_over(&local, &mut out, |_| Some(3));
        assert_eq!(out.take().len(), 1);
        transfer.hand_over(&local, &mut out, |_| Some(3));
        assert!(out.take().is_empty());
    }

    #[test]
    fn transfer_ends_after_election_timeout() {
        let (mut local, mut transfer) = (leader(3), LeadershipTransfer::default());
        assert_eq!(transfer.begin(&local, member(2)), Ok(()));
        assert_eq!(transfer.begin(&local, member(3)), Err(TransferError::Busy));
        assert!(!transfer.tick(&local));
        local.advance(local.config().election_timeout);
        assert!(transfer.tick(&local) && !transfer.is_active());
    }

    #[test]
    fn only_other_voters_take_over_from_leader() {
        let mut transfer = LeadershipTransfer::default();
        assert_eq!(transfer.begin(&leader(3), member(1)), Err(TransferError::Ourselves));
        assert_eq!(transfer.begin(&leader(3), member(9)), Err(TransferError::NotVoter));
        let refused = transfer.begin(&follower(3, Some(member(2))), member(3));
        assert_eq!(refused, Err(TransferError::NotLeader(NotLeader { leader: Some(member(2)) })));
    }
}
