//! The checkers' own copies of one member's log: as its process sees it, and as its disk certainly has it.

use crate::history::{Check, Violation, hold};
use crate::mirror::{Mark, Mirror};
use lockstep_core::codec::Reader;
use lockstep_core::members::{Membership, View};
use lockstep_core::policy::Policy;
use lockstep_core::raft::WriteOp;
use lockstep_core::snapshot::StateSnapshot;
use lockstep_core::{Entry, EntryKind, Index, MemberId, Seqno, Term, Uuid};
use std::collections::VecDeque;
use std::sync::Arc;

/// The policy, the view and the membership after an entry.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) after: Index,
    pub(crate) policy: Policy,
    pub(crate) view: Arc<[MemberId]>,
    pub(crate) membership: Arc<Membership>,
}

impl Rules {
    fn of(state: &StateSnapshot) -> Rules {
        let StateSnapshot { index, policy, view, membership, .. } = state;
        let view = view.members.iter().map(|m| m.id).collect();
        Rules { after: *index, policy: *policy, view, membership: membership.clone() }
    }

    fn changed_by(&self, entry: &Entry) -> Option<Rules> {
        if !matches!(entry.kind, EntryKind::Policy | EntryKind::View | EntryKind::Membership) {
            return None;
        }
        let mut r = Reader::new(entry.payload().clone());
        let mut next = Rules { after: entry.index, ..self.clone() };
        match entry.kind {
            EntryKind::Policy => next.policy = Policy::decode(&mut r).ok()?,
            EntryKind::View => next.view = View::decode(&mut r).ok()?.members.iter().map(|m| m.id).collect(),
            _ => next.membership = Membership::decode(&mut r).ok()?.into(),
        }
        Some(next)
    }
}

/// One copy.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogCopy {
    pub(crate) mirror: Mirror,
    /// Of each entry: its seqno, and whether it is a client's.
    seqnos: VecDeque<(Seqno, bool)>,
    rules: Vec<Rules>,
}

impl LogCopy {
    fn reset(&mut self, state: &StateSnapshot) {
        self.mirror = Mirror::after(state.index, state.term);
        self.seqnos.clear();
        self.rules = vec![Rules::of(state)];
    }

    fn truncate(&mut self, from: Index) {
        self.mirror.truncate_from(from);
        self.seqnos.truncate((self.mirror.last() - self.mirror.base) as usize);
        let keep = self.rules.iter().filter(|rules| rules.after < from).count().max(1);
        self.rules.truncate(keep);
    }

    fn trim_to(&mut self, first: Index) {
        let gone = first.saturating_sub(self.mirror.base + 1).min(self.seqnos.len() as u64);
        self.mirror.trim_to(first);
        self.seqnos.drain(..gone as usize);
    }

    fn push(&mut self, entry: &Entry, mark: Mark) {
        self.mirror.push(mark);
        let writes = matches!(entry.kind, EntryKind::WriteSet | EntryKind::TotalOrder);
        self.seqnos.push_back((entry.seqno, writes));
        // The log of a new member may begin with the cluster's first entry, and not with a state.
        if self.rules.is_empty() {
            self.rules.push(Rules::of(&StateSnapshot::genesis(Uuid::NIL, 0, Membership::default())));
        }
        self.rules.extend(self.rules.last().and_then(|last| last.changed_by(entry)));
    }

    fn apply(&mut self, op: &WriteOp, marks: &[Mark]) {
        op.reset.iter().for_each(|state| self.reset(state));
        op.truncate_from.iter().for_each(|from| self.truncate(*from));
        op.entries.iter().zip(marks).for_each(|(entry, mark)| self.push(entry, *mark));
    }

    /// The place of a client's entry.
    pub(crate) fn place_of(&self, seqno: Seqno) -> Option<(Index, Mark)> {
        let mut at = self.seqnos.partition_point(|(other, _)| *other < seqno);
        while self.seqnos.get(at).is_some_and(|(other, writes)| *other == seqno && !writes) {
            at += 1;
        }
        self.seqnos.get(at).filter(|(other, _)| *other == seqno)?;
        let index = self.mirror.base + 1 + at as u64;
        Some((index, self.mirror.get(index)?))
    }

    /// Whether this member votes, by the end of the log.
    pub(crate) fn is_voter(&self, id: &MemberId) -> bool {
        self.rules.last().is_some_and(|rules| rules.membership.is_voter(id))
    }

    /// How many members vote, by the end of the log.
    fn voters(&self) -> usize {
        self.rules.last().map_or(0, |rules| rules.membership.voters().count())
    }

    /// The rules in force for an entry, and those that came later.
    pub(crate) fn rules(&self, index: Index) -> (Option<&Rules>, impl Iterator<Item = &Rules>) {
        let before = self.rules.iter().rfind(|rules| rules.after < index);
        (before, self.rules.iter().filter(move |rules| rules.after >= index))
    }
}

/// Writes that were handed to the log and are not known to be on disk.
#[derive(Clone, Debug)]
struct InFlight {
    op: WriteOp,
    /// Of its entries.
    marks: Vec<Mark>,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogBook {
    pub(crate) memory: LogCopy,
    pub(crate) durable: LogCopy,
    pub(crate) durable_vote: (Term, Option<MemberId>),
    in_flight: VecDeque<InFlight>,
    /// The logs that were on disk before damage took their ends, until the log has reached `former_end`.
    lost: Vec<Mirror>,
    former_end: (Term, Index),
}

impl LogBook {
    /// The process requests a write of entries with these marks. It must not cut what it knows to be committed.
    pub(crate) fn write(&mut self, op: &WriteOp, marks: Vec<Mark>, commit: Index) -> Check {
        let from = op.truncate_from.or(op.reset.as_ref().map(|state| state.index + 1));
        hold!(
            from.is_none_or(|from| from > commit),
            "a committed entry is never cut",
            "cuts its log from {from:?}, committed is {commit}"
        );
        let mut last = self.memory.mirror.last();
        if let Some(state) = &op.reset {
            last = state.index;
        }
        if let Some(from) = op.truncate_from {
            last = last.min(from - 1);
        }
        for entry in &op.entries {
            last += 1;
            hold!(
                entry.index == last,
                "logs are dense",
                "writes index {} in the place of {last}",
                entry.index
            );
        }
        self.memory.apply(op, &marks);
        self.in_flight.push_back(InFlight { op: op.clone(), marks });
        Ok(())
    }

    /// Whether the log has several voters, with the writes in flight or without.
    pub(crate) fn has_several_voters(&self) -> bool {
        self.memory.voters().min(self.durable.voters()) > 1
    }

    /// The last index that may be on the disk.
    pub(crate) fn durable_last(&self) -> Index {
        self.memory.mirror.last().max(self.durable.mirror.last())
    }

    /// Whether no write in flight removes entries.
    pub(crate) fn only_appends(&self) -> bool {
        self.in_flight.iter().all(|flight| flight.op.reset.is_none() && flight.op.truncate_from.is_none())
    }

    /// Whether damage has taken the log's end, and it has not reached that again.
    pub(crate) fn is_shortened(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Whether this entry is on the disk, or was before damage for which the member answers in elections.
    pub(crate) fn counts(&self, index: Index, term: Term) -> bool {
        let logs = std::iter::once(&self.durable.mirror).chain(&self.lost);
        logs.into_iter().any(|log| log.term_at(index) == Some(term))
    }

    /// A damaged log is opened with this content, and had ended at `former_end`. The content must be a prefix of the durable one.
    /// The durable one must not end behind `former_end`. The member does not repeat an earlier vote.
    pub(crate) fn shortened(
        &mut self,
        found: &Mirror,
        vote: (Term, Option<MemberId>),
        former_end: (Term, Index),
    ) -> Check {
        let durable = &self.durable.mirror;
        let end = (durable.last_term(), durable.last());
        hold!(
            former_end >= end,
            "a damaged log knows its former end",
            "on disk was {end:?}, the former end is {former_end:?}"
        );
        let (before, _) = self.durable_vote;
        hold!(
            vote.0 > before.max(former_end.0) && vote.1.is_none(),
            "a damaged log begins a new term",
            "it was in term {before}, and finds {vote:?}; the former end is {former_end:?}"
        );
        self.lost.push(durable.clone());
        self.former_end = self.former_end.max(former_end);
        self.durable.truncate(found.last() + 1);
        hold!(
            found.agrees(&self.durable.mirror),
            "a damaged log keeps what is before the damage",
            "finds {}..{}, on disk was {}..{}",
            found.base + 1,
            found.last(),
            self.durable.mirror.base + 1,
            end.1
        );
        self.in_flight.clear();
        self.memory = self.durable.clone();
        self.durable_vote = vote;
        Ok(())
    }

    /// The log has removed what comes before this index.
    pub(crate) fn trimmed(&mut self, first: Index) {
        self.memory.trim_to(first);
        self.durable.trim_to(first);
    }

    /// All writes up to this ticket are on disk. `persisted` learns each of their entries.
    pub(crate) fn synced(&mut self, ticket: u64, mut persisted: impl FnMut(Index, Mark)) {
        let done = self.in_flight.partition_point(|flight| flight.op.ticket <= ticket);
        for InFlight { op, marks } in self.in_flight.drain(..done) {
            self.durable.apply(&op, &marks);
            op.entries.iter().zip(marks).for_each(|(entry, mark)| persisted(entry.index, mark));
            if let Some(vote) = op.vote {
                self.durable_vote = (vote.term, vote.voted_for);
            }
        }
        self.note_end();
    }

    fn note_end(&mut self) {
        let durable = &self.durable.mirror;
        if (durable.last_term(), durable.last()) >= self.former_end {
            self.lost.clear();
        }
    }

    /// The log is opened with this content: it must be everything durable, and a prefix of the writes in flight.
    pub(crate) fn opened(
        &mut self,
        found: &Mirror,
        vote: (Term, Option<MemberId>),
        mut persisted: impl FnMut(Index, Mark),
    ) -> Check {
        let votes = self.in_flight.iter().filter_map(|flight| flight.op.vote);
        let possible: Vec<_> =
            std::iter::once(self.durable_vote).chain(votes.map(|v| (v.term, v.voted_for))).collect();
        hold!(possible.contains(&vote), "the log keeps votes", "finds {vote:?}, possible are {possible:?}");
        let mut copy = std::mem::take(&mut self.durable);
        let Mirror { base, .. } = copy.mirror;
        let (last, last_term) = (copy.mirror.last(), copy.mirror.last_term());
        let mut fits = found.agrees(&copy.mirror);
        // `persisted` knows what was durable. From here on there may be more.
        let mut new_from = last + 1;
        let flights: Vec<InFlight> = self.in_flight.drain(..).collect();
        'all: for InFlight { op, marks } in &flights {
            if fits {
                break;
            }
            if let Some(state) = &op.reset {
                copy.reset(state);
                new_from = new_from.min(state.index + 1);
                fits = found.agrees(&copy.mirror);
                if fits {
                    break 'all;
                }
            }
            if let Some(from) = &op.truncate_from {
                copy.truncate(*from);
                new_from = new_from.min(*from);
                fits = found.agrees(&copy.mirror);
                if fits {
                    break 'all;
                }
            }
            for (entry, mark) in op.entries.iter().zip(marks) {
                copy.push(entry, *mark);
                fits = found.agrees(&copy.mirror);
                if fits {
                    break 'all;
                }
            }
        }
        if !fits {
            return Err(Violation {
                rule: "the log keeps what was fsynced",
                what: format!(
                    "finds {}..{} (last term {}); on disk was {}..{} (last term {}), then {} writes",
                    found.base + 1,
                    found.last(),
                    found.last_term(),
                    base + 1,
                    last,
                    last_term,
                    flights.len()
                ),
            });
        }
        for index in new_from.max(found.base + 1)..=found.last() {
            found.get(index).into_iter().for_each(|mark| persisted(index, mark));
        }
        self.durable_vote = vote;
        self.memory = copy.clone();
        self.durable = copy;
        self.note_end();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_core::codec::Writer;
    use lockstep_core::{EntryHeader, ProposalId};

    /// The checks once knew no view of a leader whose log began like this, so that it seemed to wait for members that had
    /// left.
    #[test]
    fn log_that_begins_with_first_entry_has_rules() {
        let mut w = Writer::new();
        View { number: 1, members: Vec::new() }.encode(&mut w);
        let proposal = ProposalId::default();
        let header = EntryHeader { index: 1, term: 1, kind: EntryKind::View, seqno: 1, proposal, time: 0 };
        let mut log = LogCopy::default();
        log.push(&Entry::new(header, &w.into_bytes()), Mark { term: 1, hash: 1 });
        assert_eq!(log.rules(0).1.map(|rules| rules.after).collect::<Vec<_>>(), [0, 1]);
    }
}
