//! The follower: accepts the leader's entries and snapshots.

use super::failpoints::Failpoint;
use super::*;
use crate::message::Carried;

impl Raft {
    /// The end of a follower's, or candidate's, round.
    pub(super) fn follow_on(&mut self) {
        self.send_proposals();
        self.send_reads();
        self.send_acks();
    }

    pub(super) fn on_append(&mut self, from: MemberId, context: u64, append: Carried) {
        let Carried { mut prev_index, mut prev_term, commit, persisted, mut entries } = append;
        self.note_ack(from, self.term, persisted);
        if !self.log.exists() {
            let message = self.reject(prev_index, 0, prev_term, context);
            self.send(from, message);
            return;
        }
        // Committed entries are equal everywhere, also those already trimmed from our log.
        let committed = self.commit();
        if prev_index < committed {
            let known = usize::try_from(committed - prev_index).unwrap_or(usize::MAX).min(entries.len());
            entries.drain(..known);
            self.pending_acks.answer = true;
            prev_index = committed;
            prev_term = self.log.committed().term;
        }
        let full = self.disk.is_full(self.config.max_unwritten_bytes);
        if full && prev_index > self.log.last() && self.log.matched() == self.log.last() {
            // It continues what was dropped below. A refusal would make the leader send that again at once; an answer
            // that we have no more than before leaves its window shut, and lets it know that we are there. When the disk
            // goes on, the next heartbeat is refused, and the leader begins again where we stopped.
            self.pending_acks.answer = true;
            self.pending_acks.context = self.pending_acks.context.max(context);
            self.learn_commit(commit);
            return;
        }
        if self.log.term_at(prev_index) != Some(prev_term) {
            let message = self.reject(prev_index, prev_index, prev_term, context);
            self.send(from, message);
            return;
        }
        // An empty one that brings nothing new and asks for nothing needs no answer.
        self.pending_acks.answer |= prev_index > self.log.matched();
        self.pending_acks.context = self.pending_acks.context.max(context);
        let mut end = prev_index;
        for entry in entries {
            if entry.index != end + 1 || entry.term > self.term {
                break;
            }
            match self.log.term_at(entry.index) {
                Some(term) if term == entry.term => {
                    // It came twice: perhaps our answer was lost.
                    self.pending_acks.answer |= entry.index <= self.log.matched();
                }
                Some(_) if entry.index <= self.log.matched().max(committed) => break,
                known => {
                    if known.is_some() {
                        self.truncate(entry.index);
                    }
                    if full {
                        self.pending_acks.answer = true;
                        break;
                    }
                    if self.log.append(entry).is_err() {
                        break;
                    }
                }
            }
            end += 1;
        }
        self.log.agree_up_to(end);
        self.learn_commit(commit);
        self.outbox.log_changed(&self.log, &self.config, self.now);
    }

    /// The leader has committed up to here: of what we share with it, that holds for us. The news may overtake the entries.
    fn learn_commit(&mut self, commit: Index) {
        let commit = self.relays.hear_commit(commit).min(self.log.matched());
        if commit > self.commit() {
            self.commit_to(commit);
        }
    }

    /// Gives up the entries from `from` on; those that a weak policy may have acknowledged go to a rescue file first.
    pub(super) fn truncate(&mut self, from: Index) {
        self.give_up_from(from);
        self.disk.truncated(from, self.config.failpoints);
        self.log.truncate(from);
    }

    /// The entries from `from` on are about to be truncated.
    pub(super) fn give_up_from(&mut self, from: Index) {
        self.rescue_from(from);
        if self.commit_policy.truncated(from) {
            // The database has entries that the log loses. Our own proposals may be among them: they must not be proposed
            // again.
            self.outbox.halt();
            self.outputs.push(Output::Diverged { from });
        }
    }

    fn rescue_from(&mut self, from: Index) {
        if self.config.failpoints.is_active(Failpoint::OverwriteWithoutRescue) {
            return;
        }
        let of_weight =
            |e: &Entry| matches!(e.kind, EntryKind::WriteSet | EntryKind::TotalOrder | EntryKind::Piece);
        let (mut entries, _) = self.log.slice(from, Index::MAX, usize::MAX);
        let weak = |e: &Entry| self.log.policy_at(e.index).is_weak();
        let Some(first) = entries.iter().position(weak) else { return };
        entries.drain(..first);
        if entries.iter().any(of_weight) {
            let base = Box::new(self.log.snapshot_before(entries[0].index));
            self.disk.rescue(Rescue { base, entries });
        }
    }

    /// The answer to an append after `prev`: `from` down, our log may agree with a leader's whose term there is `term`.
    pub(super) fn reject(&self, prev_index: Index, from: Index, term: Term, context: u64) -> Message {
        let hint = if self.log.exists() {
            self.log
                .last_not_above(from.saturating_sub(1).min(self.log.last()), term)
                .unwrap_or(0)
                .max(self.commit())
        } else {
            0
        };
        Message::Reject {
            term: self.term,
            prev_index,
            hint_index: hint,
            hint_term: self.log.term_at(hint).unwrap_or(0),
            position: self.position,
            context,
        }
    }

    /// Handles a snapshot: the leader no longer has the entries that we need, or we have no log.
    ///
    /// A snapshot is a committed state of the leader. It replaces our log only if no committed entry is lost: we have no
    /// log; or the snapshot lies above our commit index and our log disagrees with it at its index, so that our entries up to
    /// there are part of it or uncommitted, and later ones are uncommitted. If our log agrees with it, the log stays, and is
    /// committed up to the snapshot.
    pub(super) fn on_base(&mut self, state: StateSnapshot, context: u64) {
        self.pending_acks.context = self.pending_acks.context.max(context);
        self.pending_acks.answer = true;
        // Places and seqnos near the end of the numbers are nobody's.
        let sane = state.index < Index::MAX / 2 && (0..Seqno::MAX / 2).contains(&state.seqno);
        if state.term > self.term || state.history.is_nil() || !sane {
            return;
        }
        if self.log.exists() && !self.config.failpoints.is_active(Failpoint::BaseOverLongerLog) {
            let committed = &self.log.committed();
            let same = state.history == committed.history
                || state.parents.iter().any(|p| p.history == committed.history && p.index >= committed.index);
            let follows = same && state.term >= committed.term && state.seqno >= committed.seqno;
            if state.index <= committed.index || !follows {
                return;
            }
            if self.log.term_at(state.index) == Some(state.term) {
                self.log.agree_up_to(state.index);
                self.commit_to(state.index);
                return;
            }
            // What this term's leader gave us, it also has.
            if state.index <= self.log.matched() {
                return;
            }
        }
        self.begin_log(state);
    }
}
