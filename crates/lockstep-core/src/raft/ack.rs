//! Acks: every member counts them.
//!
//! A member reports its persisted index, as far as its log equals the leader's, to the leader and to each origin with
//! uncommitted proposals. An entry of the current term in the own log is committed once a majority has persisted it in
//! this term.

use super::failpoints::Failpoint;
use super::*;

/// What a follower owes to others at the end of the round.
#[derive(Debug, Default)]
pub(super) struct PendingAcks {
    /// The leader must have an answer even if nothing is new.
    pub(super) answer: bool,
    /// The latest context of the leader's that was not answered.
    pub(super) context: u64,
    /// What we last acknowledged in this term.
    acknowledged: Index,
    /// The received index that we reported.
    received: Index,
}

impl PendingAcks {
    /// Another term: nothing has been said in it.
    pub(super) fn forget(&mut self) {
        *self = PendingAcks::default();
    }
}

/// The highest value that at least `majority` of these reach.
pub(super) fn reached_by(values: &mut [Index], majority: usize) -> Index {
    if majority == 0 || majority > values.len() {
        return 0;
    }
    values.sort_unstable_by(|a, b| b.cmp(a));
    values[majority - 1]
}

impl Raft {
    /// What we vouch for: on our disk, and the same as the leader's.
    pub(super) fn acknowledged(&self) -> Index {
        if self.config.failpoints.is_active(Failpoint::AckBeforeFsync) {
            return self.log.matched();
        }
        if self.config.failpoints.is_active(Failpoint::AckOfUnmatched) {
            return self.disk.persisted();
        }
        self.disk.persisted().min(self.log.matched())
    }

    /// Moves the commit index to what the acks allow.
    pub(super) fn maybe_commit(&mut self) {
        // Of entries above `matched` nobody knows whether the leader has them; a membership among them may not be
        // adjacent to the leader's, so its majorities mean nothing.
        if self.log.matched() <= self.commit() || self.log.tail().membership_index > self.log.matched() {
            return;
        }
        let membership = &self.log.tail().membership;
        let any_term = self.config.failpoints.is_active(Failpoint::AckOfAnotherTerm);
        let mut held: Vec<Index> = membership
            .voters()
            .map(|id| {
                if id == self.config.id {
                    return self.acknowledged();
                }
                match self.acks.get(&id) {
                    Some((term, index)) if *term == self.term || any_term => *index,
                    _ => 0,
                }
            })
            .collect();
        let index = reached_by(&mut held, membership.majority()).min(self.log.matched());
        // Only entries of the current term are committed by counting: an older one, though a majority holds it, may
        // still lose to a newer one in an election.
        let of_this_term = self.log.term_at(index) == Some(self.term)
            || self.config.failpoints.is_active(Failpoint::CommitAcrossTerms);
        if index > self.commit() && of_this_term {
            self.commit_to(index);
        }
    }

    pub(super) fn commit_to(&mut self, index: Index) {
        self.fruitless_terms = 0;
        self.log.commit_to(index);
        self.outbox.log_changed(&self.log, &self.config, self.now);
    }

    /// Remembers what a member holds. Late acks never lower it.
    pub(super) fn note_ack(&mut self, from: MemberId, term: Term, persisted: Index) {
        if self.log.tail().membership.get(&from).is_none() {
            return;
        }
        let known = self.acks.entry(from).or_default();
        *known = (*known).max((term, persisted));
    }

    pub(super) fn on_ack(
        &mut self,
        from: MemberId,
        term: Term,
        persisted: Index,
        received: Index,
        finished: Seqno,
        context: u64,
    ) {
        if persisted > received {
            return;
        }
        if self.role != Role::Leader {
            self.note_ack(from, term, persisted);
        } else if term > self.term {
            self.give_way(from, term);
        } else if term == self.term && received <= self.log.last() {
            self.note_ack(from, term, persisted);
            self.on_peer_ack(from, persisted, received, finished, context);
        }
    }

    pub(super) fn ack(&self, context: u64) -> Message {
        let persisted = self.acknowledged();
        Message::Ack {
            term: self.term,
            persisted,
            received: self.log.matched().max(persisted),
            finished: self.finished,
            context,
        }
    }

    /// The end of a follower's round.
    pub(super) fn send_acks(&mut self) {
        let Some(leader) = self.leader else { return };
        let acknowledged = self.acknowledged();
        let news = acknowledged > self.pending_acks.acknowledged;
        let received = self.acks_received() && self.log.matched() > self.pending_acks.received;
        if news || received || self.pending_acks.answer || self.pending_acks.context != 0 {
            let message = self.ack(self.pending_acks.context);
            self.send(leader, message);
        }
        if news && self.acks_for_all() {
            let others = self.other_members(leader);
            for id in others {
                let message = self.ack(0);
                self.send(id, message);
            }
        } else if news && self.log.tail().membership.is_voter(&self.config.id) {
            for (origin, _) in self.waiting_origins(self.pending_acks.acknowledged) {
                if origin != leader {
                    let message = self.ack(0);
                    self.send(origin, message);
                }
            }
        }
        self.pending_acks = PendingAcks {
            answer: false,
            context: 0,
            acknowledged: acknowledged.max(self.pending_acks.acknowledged),
            received: self.log.matched(),
        };
    }

    fn other_members(&self, leader: MemberId) -> Vec<MemberId> {
        let members = self.log.tail().membership.members.iter().map(|m| m.id);
        members.filter(|id| *id != self.config.id && *id != leader).collect()
    }

    /// The other members whose proposals above `above` are not known to be committed.
    pub(super) fn waiting_origins(&self, above: Index) -> Vec<(MemberId, Index)> {
        let membership = &self.log.tail().membership;
        let others =
            self.log.origins().iter().filter(|(id, last)| {
                **id != self.config.id && **last > above && membership.get(id).is_some()
            });
        others.map(|(id, last)| (*id, *last)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::reached_by;
    use proptest::prelude::*;

    proptest! {
        /// Against the definition: the highest of all indices that a majority has reached.
        #[test]
        fn the_commit_index_is_the_highest_that_a_majority_reaches(
            mut held in prop::collection::vec(prop_oneof![0..6u64, any::<u64>()], 1..10)
        ) {
            let majority = held.len() / 2 + 1;
            let candidates = held.iter().copied().chain([0]);
            let slow = candidates.filter(|at| held.iter().filter(|h| *h >= at).count() >= majority).max();
            prop_assert_eq!(Some(reached_by(&mut held, majority)), slow);
        }
    }

    #[test]
    fn nobody_makes_no_majority() {
        assert_eq!(reached_by(&mut [], 1), 0);
        assert_eq!(reached_by(&mut [7], 2), 0);
        assert_eq!(reached_by(&mut [7], 0), 0);
    }
}
