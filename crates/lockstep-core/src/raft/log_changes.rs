//! Changes of the log that several components take part in: appends, truncations, snapshots, a branch.

use super::errors::BranchError;
use super::failpoints::Failpoint;
use super::local::Support;
use super::output::Output;
use super::proposals::{refusal, session_reply};
use super::write::Rescue;
use super::{PolicyUpdate, Positions, Raft};
use crate::branch::Branch;
use crate::codec::DecodeError;
use crate::message::{Carried, Proposal};
use crate::snapshot::StateSnapshot;
use crate::types::*;
use bytes::Bytes;

/// Appends of a leader.
impl Raft {
    /// Appends a proposal.
    ///
    /// # Errors
    /// As for [`Raft::append`].
    fn append_proposal(
        &mut self,
        kind: EntryKind,
        proposal: ProposalId,
        payload: Bytes,
    ) -> Result<Index, DecodeError> {
        let payload = match self.local.is_active(Failpoint::OvertakenFragmentsPass) {
            true => payload,
            false => self.streams.pass(kind, payload),
        };
        self.append(kind, proposal, payload)
    }

    /// Appends an entry of the leader's own making or a proposal.
    ///
    /// # Errors
    /// If the payload of a control entry cannot be read; nothing has changed then.
    pub(super) fn append(
        &mut self,
        kind: EntryKind,
        proposal: ProposalId,
        payload: Bytes,
    ) -> Result<Index, DecodeError> {
        let seqno = self.local.log().tail().seqno.saturating_add(kind.takes_seqno() as i64);
        self.append_at(kind, proposal, payload, seqno)
    }

    pub(super) fn append_at(
        &mut self,
        kind: EntryKind,
        proposal: ProposalId,
        payload: Bytes,
        seqno: Seqno,
    ) -> Result<Index, DecodeError> {
        let entry = self.local.next_entry(self.local.term(), kind, proposal, &payload, seqno);
        let view = (kind == EntryKind::View).then(|| entry.clone());
        let index = self.local.append_as_leader(entry)?;
        if let Some(view) = view {
            self.streams.viewed(&view);
        }
        Ok(index)
    }
}

/// Acks, truncations, and entries and snapshots of the leader.
impl Raft {
    /// The log begins anew after `state`.
    pub(super) fn begin_log(&mut self, state: StateSnapshot) {
        self.give_up_from(self.local.commit() + 1);
        self.local.restart_log(state);
        self.outbox.log_changed(&self.local);
    }

    pub(super) fn commit_to(&mut self, index: Index) {
        self.local.commit_to(index);
        self.replication.committed();
        self.outbox.log_changed(&self.local);
    }

    /// Gives up the entries from `from` on; those that a weak policy may have acknowledged go to a rescue file first.
    pub(super) fn truncate(&mut self, from: Index) {
        self.give_up_from(from);
        self.local.truncate(from);
    }

    /// The entries from `from` on are about to be given up.
    fn give_up_from(&mut self, from: Index) {
        if !self.local.is_active(Failpoint::OverwriteWithoutRescue)
            && let Some(rescue) = Rescue::from_log(self.local.log(), from)
        {
            self.local.rescue(rescue);
        }
        if self.commit_policy.truncated(from) {
            // The database has entries that the log loses. Our own proposals may be among them: they must not be proposed
            // again.
            self.outbox.halt();
            // Uncommitted entries are in memory.
            let log = self.local.log();
            let kept = log.entry(from - 1).map_or(log.committed().seqno, |entry| entry.seqno);
            self.out.push(Output::Diverged { from, kept });
        }
    }

    /// Counts the acks of this round, for the commit index and the commit policies.
    pub(super) fn count_acks(&mut self) {
        if let Some(index) = self.acks.committed(&self.local) {
            self.commit_to(index);
        }
        if self.stalls.confirm(|context| self.replication.majority_answered(&self.local, context)) {
            self.replication.end_extension();
        }
        let may_be_deposed = self.stalls.is_open() && !self.local.is_active(Failpoint::EarlyAfterStall);
        let positions = Positions::new(&self.local, &self.acks, &self.replication);
        let PolicyUpdate { done, early_proposal } = self.commit_policy.update(positions, may_be_deposed);
        if let Some(number) = early_proposal {
            self.outbox.given(number);
        }
        self.local.forget_policy_ranges(done);
    }

    pub(super) fn on_append(&mut self, from: MemberId, context: u64, append: Carried) {
        let Carried { mut prev_index, mut prev_term, commit, persisted, mut entries } = append;
        self.acks.record(&self.local, from, self.local.term(), persisted);
        if !self.local.log().exists() {
            self.out.send(from, self.acks.rejection(&self.local, prev_index, 0, prev_term, context));
            return;
        }
        // Committed entries are equal everywhere, also those already trimmed from our log.
        let committed = self.local.commit();
        if prev_index < committed {
            let known = usize::try_from(committed - prev_index).unwrap_or(usize::MAX).min(entries.len());
            entries.drain(..known);
            self.acks.owe(true, 0);
            prev_index = committed;
            prev_term = self.local.log().committed().term;
        }
        let full = self.local.disk_is_full();
        let last = self.local.log().last();
        if full && prev_index > last && self.local.log().matched() == last {
            // It continues what was dropped below. A refusal would make the leader send that again at once. The answer
            // that we have no more than before leaves its window shut, and shows that we are there. When the disk goes
            // on, the next heartbeat is refused, and the leader begins again where we stopped.
            self.acks.owe(true, context);
            self.learn_commit(commit);
            return;
        }
        if self.local.log().term_at(prev_index) != Some(prev_term) {
            let message = self.acks.rejection(&self.local, prev_index, prev_index, prev_term, context);
            self.out.send(from, message);
            return;
        }
        // An empty one that brings nothing new and asks for nothing needs no answer.
        self.acks.owe(prev_index > self.local.log().matched(), context);
        let mut end = prev_index;
        for entry in entries {
            if entry.index != end + 1 || entry.term > self.local.term() {
                break;
            }
            let matched = self.local.log().matched();
            match self.local.log().term_at(entry.index) {
                // It came twice: perhaps our answer was lost.
                Some(term) if term == entry.term => self.acks.owe(entry.index <= matched, 0),
                Some(_) if entry.index <= matched.max(committed) => break,
                known => {
                    if known.is_some() {
                        self.truncate(entry.index);
                    }
                    if full {
                        self.acks.owe(true, 0);
                        break;
                    }
                    if self.local.append(entry).is_err() {
                        break;
                    }
                }
            }
            end += 1;
        }
        self.local.agree_up_to(end);
        self.learn_commit(commit);
        self.outbox.log_changed(&self.local);
    }

    /// The leader has committed up to here: of what we share with it, that holds for us. The news may overtake the entries.
    fn learn_commit(&mut self, commit: Index) {
        let commit = self.relay.receive_commit(commit).min(self.local.log().matched());
        if commit > self.local.commit() {
            self.commit_to(commit);
        }
    }

    /// Handles a snapshot: the leader no longer has the entries that we need, or we have no log.
    ///
    /// A snapshot is a committed state of the leader. It replaces our log only if no committed entry is lost. So either we
    /// have no log, or the snapshot lies above our commit index and our log disagrees with it at its index. Then our entries
    /// up to there are part of the snapshot or uncommitted, and later ones are uncommitted. If our log agrees with the
    /// snapshot, the log stays, and is committed up to the snapshot.
    pub(super) fn on_base(&mut self, state: StateSnapshot, context: u64) {
        self.acks.owe(true, context);
        // Indices and seqnos near the end of the numbers are invalid.
        let sane = state.index < Index::MAX / 2 && (0..Seqno::MAX / 2).contains(&state.seqno);
        if state.term > self.local.term() || state.history.is_nil() || !sane {
            return;
        }
        let log = self.local.log();
        if log.exists() && !self.local.is_active(Failpoint::BaseOverLongerLog) {
            let committed = log.committed();
            let same = state.history == committed.history
                || state.parents.iter().any(|p| p.history == committed.history && p.index >= committed.index);
            let follows = same && state.term >= committed.term && state.seqno >= committed.seqno;
            if state.index <= committed.index || !follows {
                return;
            }
            if log.term_at(state.index) == Some(state.term) {
                self.local.agree_up_to(state.index);
                self.commit_to(state.index);
                return;
            }
            // What this term's leader gave us, it also has.
            if state.index <= log.matched() {
                return;
            }
        }
        self.begin_log(state);
    }

    /// Begins a branch: all that the own log holds counts as committed, and this member is the only voter from there on. The
    /// promise that nothing acknowledged is lost ends here, by an operator's order: what others committed without this member
    /// is not in the branch.
    ///
    /// **The caller** has ended all connections before. Nothing of the new branch may reach a member of the old one,
    /// except by a connection that has compared the logs' names.
    ///
    /// # Errors
    /// [`BranchError`]; nothing has changed then.
    pub fn branch(&mut self, now: Micros, branch: &Branch) -> Result<(), BranchError> {
        self.advance(now);
        if !self.local.log().exists() || branch.founder.id != self.local.id() {
            return Err(BranchError::Malformed);
        }
        if self.has_quorum(now) {
            return Err(BranchError::HasQuorum);
        }
        // A term of ours alone: no member was elected in it.
        let (term, seqno) = (self.local.term() + 1, self.local.log().tail().seqno);
        let (kind, payload) = (EntryKind::Branch, branch.to_payload());
        let entry = self.local.next_entry(term, kind, ProposalId::default(), &payload, seqno);
        self.local.append(entry).map_err(|_| BranchError::Malformed)?;
        // No other member votes in this log.
        self.local.set_support(Support::Any);
        self.become_follower(term, None);
        self.up.clear();
        self.acks.clear();
        // Alone this member is a majority. The first entry of the term after this one commits all of it.
        self.campaign(false);
        Ok(())
    }
}

/// Proposals.
impl Raft {
    /// A leader appends its own.
    pub(super) fn append_own_proposals(&mut self) {
        if self.transfer.is_active() {
            return;
        }
        while let Some((kind, id, payload)) = self.outbox.next_own(&self.local) {
            let Ok(index) = self.append_proposal(kind, id, payload) else { break };
            if let Some(entry) = self.local.log().entry(index) {
                self.outbox.share(id.number, entry.payload());
            }
        }
        self.outbox.own_appended(&self.local);
    }

    pub(super) fn on_propose(
        &mut self,
        from: MemberId,
        incarnation: u64,
        first: u64,
        proposals: Vec<Proposal>,
    ) {
        if !self.local.is_leader() || !self.local.is_member(&from) || self.transfer.is_active() {
            return;
        }
        let mut refused = false;
        for (at, Proposal { kind, payload }) in proposals.into_iter().enumerate() {
            let Some(number) = first.checked_add(at as u64) else { break };
            let id = ProposalId { member: from, incarnation, number };
            let next =
                self.local.log().tail().is_next(&id) || self.local.is_active(Failpoint::DuplicateProposals);
            if !kind.may_be_proposed() || !next {
                refused = true;
                continue;
            }
            match self.append_proposal(kind, id, payload) {
                Ok(index) => self.replication.proposed(&from, index),
                Err(_) => break,
            }
        }
        if refused {
            self.out.send(from, refusal(&self.local, &from, incarnation));
        }
    }

    /// A leader tells its peers where their sessions continue.
    pub(super) fn invite_proposals(&mut self) {
        for id in self.replication.peers() {
            if let Some(message) = session_reply(&self.local, &id) {
                self.out.send(id, message);
            }
        }
    }
}
