//! Membership changes, and other entries of the leader itself.
//!
//! A membership is in force once it is appended, committed or not. One voter at a time: then any majority of the old
//! one and any of the new one share a member. That holds for neighbours only, so the previous change must be committed
//! first; and an entry of the own term, for a predecessor may have left a change that we do not know of, and that
//! could still win until then.

use super::failpoints::Failpoint;
use super::*;
use crate::codec::Writer;

/// Why a membership cannot be changed now, or not like this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChangeError {
    /// Only a leader can.
    NotLeader(NotLeader),
    /// The previous change, or everything of this term, is not committed yet: try again soon.
    TooEarly,
    /// Leadership is being handed over.
    HandingOver,
    /// More than one voter would change.
    TooMuch,
    /// No voter would be left.
    NoVoters,
    /// Ids not sorted and unique.
    Malformed,
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChangeError::NotLeader(who) => return who.fmt(f),
            ChangeError::TooEarly => "the previous change of members is not committed yet; try again soon",
            ChangeError::HandingOver => "leadership is being handed over; ask the next leader",
            ChangeError::TooMuch => "only one voter can change at a time; make one change after the other",
            ChangeError::NoVoters => "this would leave no voter; keep at least one",
            ChangeError::Malformed => "members must be sorted by id, ids unique",
        })
    }
}

impl std::error::Error for ChangeError {}

/// Why a leader's own entry was not placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlError {
    /// Only a leader can, and not while it hands over.
    NotLeader(NotLeader),
    /// The kind is not a leader's own, or the payload is not of that kind.
    Malformed,
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::NotLeader(who) => who.fmt(f),
            ControlError::Malformed => f.write_str("the payload does not fit the kind of entry"),
        }
    }
}

impl std::error::Error for ControlError {}

/// Why leadership is not handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransferError {
    /// Only the leader can.
    NotLeader(NotLeader),
    /// It leads already.
    Ourselves,
    /// It does not vote, so it cannot lead.
    NotVoter,
    /// It is being handed to another.
    Busy,
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TransferError::NotLeader(who) => return who.fmt(f),
            TransferError::Ourselves => "this member leads already",
            TransferError::NotVoter => "that member is not a voter; make it one first",
            TransferError::Busy => "leadership is being handed to another member; try again soon",
        })
    }
}

impl std::error::Error for TransferError {}

/// For so many election timeouts a removed member is told of its removal.
const FAREWELL: u64 = 10;

impl Raft {
    /// Places an entry of the leader's own: a view, a policy, a trim mark, a note. Goes out at the end of the round.
    ///
    /// # Errors
    /// [`ControlError`]. Memberships have a way of their own: [`Raft::change_membership`].
    pub fn append_control(
        &mut self,
        now: Micros,
        kind: EntryKind,
        payload: bytes::Bytes,
    ) -> Result<Index, ControlError> {
        self.advance(now);
        if self.role != Role::Leader || self.lead.transfer.is_some() {
            let leader = self.leader.filter(|_| self.role != Role::Leader);
            return Err(ControlError::NotLeader(NotLeader { leader }));
        }
        if !matches!(
            kind,
            EntryKind::View
                | EntryKind::Policy
                | EntryKind::Trim
                | EntryKind::Note
                | EntryKind::Outcome
                | EntryKind::Noop
        ) {
            return Err(ControlError::Malformed);
        }
        self.append(kind, ProposalId::default(), payload).map_err(|_| ControlError::Malformed)
    }

    /// Places a new membership, which is in force at once. Where it takes us out, we lead until it is committed.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub fn change_membership(&mut self, now: Micros, membership: Membership) -> Result<Index, ChangeError> {
        self.advance(now);
        if self.role != Role::Leader {
            return Err(ChangeError::NotLeader(NotLeader { leader: self.leader }));
        }
        if self.lead.transfer.is_some() {
            return Err(ChangeError::HandingOver);
        }
        let sorted = membership.members.windows(2).all(|pair| pair[0].id < pair[1].id);
        if !sorted {
            return Err(ChangeError::Malformed);
        }
        if membership.voters().next().is_none() {
            return Err(ChangeError::NoVoters);
        }
        if !self.config.failpoints.is_active(Failpoint::MembershipTooEarly) {
            let settled = self.log.tail().membership_index <= self.commit();
            let of_this_term = self.log.term_at(self.commit()) == Some(self.term);
            if !settled || !of_this_term {
                return Err(ChangeError::TooEarly);
            }
        }
        let several = self.config.failpoints.is_active(Failpoint::SeveralVotersAtOnce);
        if membership.voters_changed(&self.log.tail().membership) > 1 && !several {
            return Err(ChangeError::TooMuch);
        }
        let mut w = Writer::new();
        membership.encode(&mut w);
        let index = self
            .append(EntryKind::Membership, ProposalId::default(), w.into_bytes())
            .map_err(|_| ChangeError::Malformed)?;
        self.sync_peers();
        Ok(index)
    }

    /// Synchronises the peers with the membership in force. A removed member is notified before it is forgotten.
    pub(super) fn sync_peers(&mut self) {
        let membership = self.log.tail().membership.clone();
        let index = self.log.tail().membership_index;
        let next = self.log.last() + 1;
        for member in &membership.members {
            if member.id != self.config.id {
                let peer = self.peers.entry(member.id).or_insert_with(|| Progress::new(next, self.now));
                peer.leaving = None;
            }
        }
        let until = self.now + FAREWELL * self.config.election_timeout;
        for (id, peer) in &mut self.peers {
            if membership.get(id).is_none() && peer.leaving.is_none() {
                peer.leaving = Some((index, until));
            }
        }
        self.acks.retain(|id, _| membership.get(id).is_some());
    }

    /// Whether it is no longer a member and knows it, or is not to be waited for.
    pub(super) fn has_left(&self, peer: &Progress) -> bool {
        peer.leaving.is_some_and(|(index, until)| {
            (peer.received >= index && peer.commit_told >= index) || self.now >= until
        })
    }
}
