//! Restores the state from the own log at the start.

use super::log::{Gap, Log};
use super::write::Vote;
use crate::certify::reaches;
use crate::codec::DecodeError;
use crate::snapshot::StateSnapshot;
use crate::types::*;
use bytes::Bytes;

/// The last entry of a log. Ordered as elections compare logs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LogEnd {
    /// Its term.
    pub term: Term,
    /// Its index.
    pub index: Index,
}

/// The state on the disk.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// The vote.
    pub vote: Vote,
    /// The snapshot at the commit hint, but not above the log's end nor below its base. `None`: there is a vote, but no
    /// log.
    pub committed: Option<StateSnapshot>,
    /// All entries after `committed`.
    pub tail: Vec<Entry>,
    /// The first index of each term, beginning with the base of the log.
    pub terms: Vec<(Index, Term)>,
    /// The base of each segment, ascending, and the bytes of its entries.
    pub bases: Vec<(StateSnapshot, u64)>,
    /// The seqnos that views of the log leave out, ascending.
    pub gaps: Vec<Gap>,
    /// Where the log ended before damage took its end, if it has not reached that again.
    pub former_end: Option<LogEnd>,
}

impl Restored {
    /// The last index of the log.
    pub fn last_index(&self) -> Index {
        let committed = self.committed.as_ref().map_or(0, |state| state.index);
        self.tail.last().map_or(committed, |entry| entry.index)
    }

    pub(super) fn into_parts(self) -> (Vote, Log, Option<LogEnd>) {
        let Restored { vote, committed, tail, terms, bases, gaps, former_end } = self;
        let log = match committed {
            Some(committed) => {
                let fits = Log::restored(committed, tail, terms, bases, gaps);
                debug_assert!(fits.is_ok(), "the builder has checked all of it");
                fits.unwrap_or_else(|_| Log::empty())
            }
            None => Log::empty(),
        };
        (vote, log, former_end)
    }
}

/// Is fed the log from its beginning to its end: the base of a segment, its records, the next base, and so on.
#[derive(Debug, Default)]
pub struct RestoreBuilder {
    commit_hint: Index,
    /// The snapshot up to the commit hint, as far as the log was read.
    committed: Option<StateSnapshot>,
    /// The snapshot of all entries read, once it differs from `committed`.
    tail: Option<StateSnapshot>,
    entries: Vec<Entry>,
    terms: Vec<(Index, Term)>,
    bases: Vec<(StateSnapshot, u64)>,
    gaps: Vec<Gap>,
    former_end: Option<LogEnd>,
}

impl RestoreBuilder {
    /// Entries up to `commit_hint` are known to be committed: they need not stay in memory.
    pub fn new(commit_hint: Index) -> RestoreBuilder {
        RestoreBuilder { commit_hint, ..RestoreBuilder::default() }
    }

    /// The state after the entries read so far. `None` before the first base.
    pub fn last(&self) -> Option<&StateSnapshot> {
        self.tail.as_ref().or(self.committed.as_ref())
    }

    /// A segment begins with this base.
    ///
    /// # Errors
    /// [`DecodeError`] where it is not a state, or not that after the records before it.
    pub fn base(&mut self, blob: Bytes) -> Result<(), DecodeError> {
        let mut state = StateSnapshot::from_bytes(blob)?;
        self.agree_on_leader(&mut state);
        match self.last() {
            None => {
                self.terms.push((state.index, state.term));
                self.committed = Some(state.clone());
            }
            Some(last) if *last == state => {}
            Some(_) => return Err(DecodeError::Invalid("base of a segment")),
        }
        self.bases.push((state, 0));
        Ok(())
    }

    /// Bases by older versions lack the leader of their term. The first entry of the term, or a later base of the same
    /// term, supplies it for all bases of that term.
    fn agree_on_leader(&mut self, state: &mut StateSnapshot) {
        let Some(known) = self.last().filter(|last| last.term == state.term).map(|last| last.leader) else {
            return;
        };
        if state.leader.is_nil() {
            state.leader = known;
        } else if known.is_nil() {
            let bases = self.bases.iter_mut().map(|(base, _)| base);
            for before in bases.chain(&mut self.committed).chain(&mut self.tail) {
                if before.term == state.term && before.leader.is_nil() {
                    before.leader = state.leader;
                }
            }
        }
    }

    /// The next record.
    ///
    /// # Errors
    /// [`DecodeError`] where it cannot be read or does not follow; the log is damaged, or of a newer version.
    pub fn record(&mut self, index: Index, term: Term, body: Bytes) -> Result<(), DecodeError> {
        let entry = Entry::decode_body(index, term, body)?;
        let Some(committed) = &mut self.committed else {
            return Err(DecodeError::Invalid("beginning of the log"));
        };
        let fold = match index <= self.commit_hint {
            true => committed,
            false => self.tail.get_or_insert_with(|| committed.clone()),
        };
        let before = fold.seqno;
        fold.apply(&entry)?;
        self.gaps.extend(Gap::at(&entry, before));
        if self.terms.last().is_none_or(|(_, last)| *last != term) {
            self.terms.push((index, term));
        }
        if let Some((_, bytes)) = self.bases.last_mut() {
            *bytes += entry.size() as u64;
        }
        if index > self.commit_hint {
            self.entries.push(entry);
        }
        Ok(())
    }

    /// Whether certification can go on from the entries read so far: see [`reaches`].
    pub fn reaches_back(&self) -> bool {
        let first = self.bases.first().map(|(base, _)| base);
        first.zip(self.committed.as_ref()).is_some_and(|(base, committed)| reaches(base, committed))
    }

    /// Damage has taken the end of this log: its last entry was there.
    pub fn ended_at(&mut self, former_end: LogEnd) {
        self.former_end = Some(former_end);
    }

    /// All has been read. `None` where there was nothing: no log and no vote.
    pub fn finish(self, vote: Vote) -> Option<Restored> {
        if self.committed.is_none() && vote == Vote::default() {
            return None;
        }
        let RestoreBuilder { committed, entries, terms, bases, gaps, former_end, .. } = self;
        Some(Restored { vote, committed, tail: entries, terms, bases, gaps, former_end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::Membership;

    const LEADER: MemberId = Uuid([9; 16]);

    fn noop(index: Index, term: Term, payload: &[u8]) -> Entry {
        let proposal = ProposalId::default();
        Entry::new(EntryHeader { index, term, kind: EntryKind::Noop, seqno: 0, proposal, time: 0 }, payload)
    }

    /// As the version before there was a leader wrote it.
    fn without_leader(state: &StateSnapshot) -> Bytes {
        let blob = state.to_bytes();
        let mut old = blob[..blob.len() - 16].to_vec();
        old[0] = 2;
        old.into()
    }

    /// The states after none, one and two entries of a term.
    fn states() -> (StateSnapshot, [(Entry, StateSnapshot); 2]) {
        let genesis = StateSnapshot::genesis(Uuid([7; 16]), 0, Membership::default());
        let mut after = genesis.clone();
        let entries = [noop(1, 3, &LEADER.0), noop(2, 3, b"")];
        let entries = entries.map(|entry| {
            after.apply(&entry).unwrap();
            assert_eq!(after.leader, LEADER);
            (entry, after.clone())
        });
        (genesis, entries)
    }

    fn record(builder: &mut RestoreBuilder, entry: &Entry) {
        builder.record(entry.index, entry.term, entry.body().clone()).unwrap();
    }

    #[test]
    fn old_segment_without_leader_takes_known_leader() {
        let (genesis, [(first, after_first), (second, after_second)]) = states();
        for commit_hint in [0, 1, 2] {
            let mut builder = RestoreBuilder::new(commit_hint);
            builder.base(genesis.to_bytes()).unwrap();
            record(&mut builder, &first);
            builder.base(without_leader(&after_first)).unwrap();
            record(&mut builder, &second);
            builder.base(after_second.to_bytes()).unwrap();
            let restored = builder.finish(Vote::default()).unwrap();
            assert_eq!(restored.bases[1].0, after_first, "its base knows the leader, too");
        }
    }

    #[test]
    fn leader_known_only_to_later_segment_is_used() {
        let (_, [(_, after_first), (second, after_second)]) = states();
        for commit_hint in [0, 2] {
            let mut builder = RestoreBuilder::new(commit_hint);
            // Earlier entries have been trimmed.
            builder.base(without_leader(&after_first)).unwrap();
            record(&mut builder, &second);
            builder.base(after_second.to_bytes()).unwrap();
            let restored = builder.finish(Vote::default()).unwrap();
            assert_eq!(restored.bases[0].0, after_first);
            assert_eq!(restored.committed.unwrap().leader, LEADER);
        }
    }

    #[test]
    fn segment_with_contradicting_leader_is_refused() {
        let (genesis, [(first, mut after_first), _]) = states();
        let mut builder = RestoreBuilder::new(0);
        builder.base(genesis.to_bytes()).unwrap();
        record(&mut builder, &first);
        after_first.leader = Uuid([8; 16]);
        assert!(builder.base(after_first.to_bytes()).is_err());
    }
}
