//! Going on without the majority, because an operator says so.

use super::*;
use crate::branch::Branch;

/// Why a member does not begin a branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BranchError {
    /// There is a majority: nothing has to be overridden.
    HasQuorum,
    /// It has no log, or the founder is not this member.
    Malformed,
}

impl fmt::Display for BranchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BranchError::HasQuorum => "there is a majority: nothing has to be overridden",
            BranchError::Malformed => "this member has no log to go on with",
        })
    }
}

impl std::error::Error for BranchError {}

impl Raft {
    /// Asks every other member, also learners, whether it would vote for us, even if we may not campaign: a refusal means
    /// that its log is more up to date. [`Raft::would_vote`] returns the answers; earlier answers are discarded.
    pub fn query_tails(&mut self, now: Micros) {
        self.advance(now);
        self.tail_replies = Some(BTreeMap::new());
        self.ask_for_ends();
    }

    /// Asks those again that have not answered: a question or its answer may have been lost.
    pub fn query_tails_again(&mut self, now: Micros) {
        self.advance(now);
        self.ask_for_ends();
    }

    fn ask_for_ends(&mut self) {
        let Some(ends) = &self.tail_replies else { return };
        let members = self.log.tail().membership.members.iter().map(|m| m.id);
        let open = members.filter(|id| *id != self.config.id && !ends.contains_key(id));
        for to in open.collect::<Vec<_>>() {
            self.send(to, self.pre_vote());
        }
    }

    /// An answer to the question above; a leader asks nobody.
    pub(super) fn record_tail_reply(&mut self, from: MemberId, term: Term, granted: bool) {
        let Some(ends) = &mut self.tail_replies else { return };
        if self.role == Role::Leader || self.log.tail().membership.get(&from).is_none() {
            return;
        }
        if granted || term <= self.term {
            ends.insert(from, granted);
        } else if !self.hears_leader() {
            // Its term is ahead of ours, so that this says nothing of its log: it is asked again from there.
            self.become_follower(term, None);
        }
    }

    /// Whether this member has said since [`Raft::query_tails`] that it would vote for us. It would not where its log goes
    /// further than ours, or where it hears a leader. `None`: it has not answered yet.
    pub fn would_vote(&self, id: &MemberId) -> Option<bool> {
        self.tail_replies.as_ref()?.get(id).copied()
    }

    /// Begins a branch: all that the own log holds counts as committed, and we are the only voter from there on. The
    /// promise that nothing acknowledged is lost ends here, by an operator's order: what others committed without us is
    /// not in it.
    ///
    /// **The caller** has ended all connections before: nothing of the new branch may reach a member of the old one but
    /// by a connection that has compared the names of the logs.
    ///
    /// # Errors
    /// [`BranchError`]; nothing has changed then.
    pub fn branch(&mut self, now: Micros, branch: &Branch) -> Result<(), BranchError> {
        self.advance(now);
        if !self.log.exists() || branch.founder.id != self.config.id {
            return Err(BranchError::Malformed);
        }
        if self.has_quorum(self.now) {
            return Err(BranchError::HasQuorum);
        }
        let entry = Entry {
            index: self.log.last() + 1,
            // A term of ours alone: nobody was elected in it.
            term: self.term + 1,
            kind: EntryKind::Branch,
            seqno: self.log.tail().seqno,
            proposal: ProposalId::default(),
            time: self.wall,
            payload: branch.to_payload(),
        };
        self.log.append(entry).map_err(|_| BranchError::Malformed)?;
        self.become_follower(self.term + 1, None);
        self.up.clear();
        self.acks.clear();
        // Alone we are a majority. The first entry of the term after this one commits all of it.
        self.campaign(false);
        Ok(())
    }
}
