//! Acks: every member counts them.
//!
//! A member reports its persisted index, as far as its log equals the leader's, to the leader and to each origin with
//! uncommitted proposals. An entry of the current term in the own log is committed once a majority has persisted it in
//! this term.

use super::failpoints::Failpoint;
use super::local::Local;
use super::output::Outputs;
use super::quorum::reached_by;
use crate::members::Membership;
use crate::message::Message;
use crate::types::*;
use std::collections::BTreeMap;

/// The answer that a follower owes its leader at the end of the round, and its reports in this term.
#[derive(Debug, Default)]
struct Pending {
    /// The leader must have an answer even if nothing is new.
    answer: bool,
    /// The latest context of the leader's that was not answered.
    context: u64,
    /// The last acknowledged index.
    acknowledged: Index,
    /// The last reported received index.
    received: Index,
}

/// The acks received from other members, and those that this member owes.
#[derive(Debug)]
pub(super) struct Acks {
    /// By member: term and persisted index. Both only grow.
    known: BTreeMap<MemberId, (Term, Index)>,
    pending: Pending,
    /// The last seqno finished by our server: acks carry it.
    finished: Seqno,
    /// The position of our database: rejections carry it.
    position: Option<Seqno>,
}

impl Acks {
    pub(super) fn new() -> Acks {
        let (known, pending) = (BTreeMap::new(), Pending::default());
        Acks { known, pending, finished: SEQNO_UNDEFINED, position: None }
    }

    pub(super) fn set_finished(&mut self, seqno: Seqno) {
        self.finished = seqno;
    }

    pub(super) fn set_position(&mut self, position: Option<Seqno>) {
        self.position = position;
    }

    /// A new term begins, without any report.
    pub(super) fn enter_term(&mut self) {
        self.pending = Pending::default();
    }

    /// Forgets the acks of members that are not in this membership.
    pub(super) fn retain(&mut self, membership: &Membership) {
        self.known.retain(|id, _| membership.get(id).is_some());
    }

    /// Forgets all acks.
    pub(super) fn clear(&mut self) {
        self.known.clear();
    }

    /// Records what a member has persisted. Late acks never lower it.
    pub(super) fn record(&mut self, local: &Local, from: MemberId, term: Term, persisted: Index) {
        if local.is_member(&from) {
            let known = self.known.entry(from).or_default();
            *known = (*known).max((term, persisted));
        }
    }

    /// The last index that a member is known to have persisted, equal to our log.
    pub(super) fn persisted_by(&self, local: &Local, id: &MemberId) -> Index {
        if *id == local.id() {
            return local.acknowledged();
        }
        match self.known.get(id) {
            Some((term, index)) if *term == local.term() => (*index).min(local.log().matched()),
            _ => 0,
        }
    }

    /// The new commit index, if the acks move it.
    pub(super) fn committed(&self, local: &Local) -> Option<Index> {
        let log = local.log();
        // The leader may lack entries above `matched`. A membership among them may not be adjacent to the leader's, so its
        // majorities mean nothing.
        if log.matched() <= log.commit() || log.tail().membership_index > log.matched() {
            return None;
        }
        let membership = local.membership();
        let any_term = local.is_active(Failpoint::AckOfAnotherTerm);
        let of = |id: MemberId| {
            if id == local.id() {
                return local.acknowledged();
            }
            match self.known.get(&id) {
                Some((term, index)) if *term == local.term() || any_term => *index,
                _ => 0,
            }
        };
        let mut persisted: Vec<Index> = membership.voters().map(of).collect();
        let index = reached_by(&mut persisted, membership.majority()).min(log.matched());
        // Only entries of the current term are committed by counting: an older one, though a majority holds it, may
        // still lose to a newer one in an election.
        let of_this_term =
            log.term_at(index) == Some(local.term()) || local.is_active(Failpoint::CommitAcrossTerms);
        (index > log.commit() && of_this_term).then_some(index)
    }

    /// The leader must have an answer at the end of the round, if `needed`, and to this context (0: none).
    pub(super) fn owe(&mut self, needed: bool, context: u64) {
        self.pending.answer |= needed;
        self.pending.context = self.pending.context.max(context);
    }

    /// An ack of all that this member has.
    pub(super) fn message(&self, local: &Local, context: u64) -> Message {
        let persisted = local.acknowledged();
        Message::Ack {
            term: local.term(),
            persisted,
            received: local.log().matched().max(persisted),
            finished: self.finished,
            context,
        }
    }

    /// Rejects an append after `prev_index`: from `from` down, our log may agree with a leader's whose term there is `term`.
    pub(super) fn rejection(
        &self,
        local: &Local,
        prev_index: Index,
        from: Index,
        term: Term,
        context: u64,
    ) -> Message {
        let log = local.log();
        let below = from.saturating_sub(1).min(log.last());
        let hint = match log.exists() {
            true => log.last_not_above(below, term).unwrap_or(0).max(log.commit()),
            false => 0,
        };
        Message::Reject {
            term: local.term(),
            prev_index,
            hint_index: hint,
            hint_term: log.term_at(hint).unwrap_or(0),
            position: self.position,
            context,
        }
    }

    /// Ends a follower's round: sends the acks that it owes.
    pub(super) fn send(&mut self, local: &Local, out: &mut Outputs) {
        let Some(leader) = local.leader() else { return };
        let (log, acknowledged) = (local.log(), local.acknowledged());
        let news = acknowledged > self.pending.acknowledged;
        let received = log.acks_on_receive() && log.matched() > self.pending.received;
        if news || received || self.pending.answer || self.pending.context != 0 {
            out.send(leader, self.message(local, self.pending.context));
        }
        if news && log.acks_matter_to_all() {
            for id in local.other_members().filter(|id| *id != leader) {
                out.send(id, self.message(local, 0));
            }
        } else if news && local.membership().is_voter(&local.id()) {
            let waiting = log.origins().iter().filter(|(_, last)| **last > self.pending.acknowledged);
            for (&origin, _) in waiting {
                if origin != leader && origin != local.id() && local.is_member(&origin) {
                    out.send(origin, self.message(local, 0));
                }
            }
        }
        self.pending = Pending {
            answer: false,
            context: 0,
            acknowledged: acknowledged.max(self.pending.acknowledged),
            received: log.matched(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::output::Output;
    use super::super::testing::{follower, leader, member, with_entries};
    use super::*;

    #[test]
    fn entry_is_committed_by_majority_of_its_term() {
        let (local, mut acks) = (with_entries(leader(3), 4), Acks::new());
        assert_eq!(acks.committed(&local), None, "the leader's own disk has nothing yet");
        acks.record(&local, member(2), 0, 4);
        acks.record(&local, member(3), 1, 3);
        assert_eq!(acks.committed(&local), None, "an ack of another term does not count");
        acks.record(&local, member(2), 1, 4);
        assert_eq!(acks.committed(&local), Some(3));
    }

    #[test]
    fn late_ack_never_lowers_index() {
        let (local, mut acks) = (with_entries(leader(3), 4), Acks::new());
        acks.record(&local, member(2), 1, 4);
        acks.record(&local, member(2), 1, 2);
        assert_eq!(acks.persisted_by(&local, &member(2)), 4);
        acks.record(&local, member(9), 1, 4);
        assert_eq!(acks.persisted_by(&local, &member(9)), 0, "a stranger's ack does not count");
    }

    #[test]
    fn follower_answers_context_once() {
        let (local, mut out, mut acks) = (follower(3, Some(member(2))), Outputs::new(), Acks::new());
        acks.owe(false, 5);
        acks.send(&local, &mut out);
        let message = acks.message(&local, 5);
        assert_eq!(out.take(), [Output::Send { to: member(2), message }]);
        acks.send(&local, &mut out);
        assert!(out.take().is_empty());
    }
}
