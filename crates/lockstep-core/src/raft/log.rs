//! The core's view of the log: two state snapshots, the runs of its terms, and its recent entries.

use crate::codec::{DecodeError, Reader};
use crate::members::{Membership, View};
use crate::policy::{Policy, PolicyKind};
use crate::snapshot::StateSnapshot;
use crate::types::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The beginning of a segment.
#[derive(Clone, Debug)]
pub(super) struct Base {
    /// The snapshot before the segment.
    pub(super) state: StateSnapshot,
    /// Bytes of entries in the segment; after a truncation, an upper bound.
    pub(super) bytes: u64,
}

/// Seqnos that a view has left out: a lost leader may have given them to write-sets that no other member has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The index of the view.
    pub index: Index,
    /// The last seqno before the view.
    pub before: Seqno,
    /// The seqno of the view.
    pub after: Seqno,
}

impl Gap {
    /// The seqnos that `entry` leaves out after this seqno.
    pub(super) fn at(entry: &Entry, before: Seqno) -> Option<Gap> {
        (entry.seqno > before.saturating_add(1)).then_some(Gap {
            index: entry.index,
            before,
            after: entry.seqno,
        })
    }

    /// Whether a database at this seqno has transactions that this history lacks.
    pub fn holds(&self, seqno: Seqno) -> bool {
        self.before < seqno && seqno < self.after
    }
}

/// A range of the log under one policy: the entries above `after`, up to the start of the next range.
#[derive(Clone, Debug)]
pub(super) struct PolicyRange {
    /// The last index before the range.
    pub(super) after: Index,
    /// The policy of its entries.
    pub(super) policy: Policy,
    /// The view of that time.
    pub(super) view: Arc<View>,
}

/// **Invariants:** `bases[0].index <= committed.index <= matched <= tail.index`; `cache` is dense, ends at `tail.index` and
/// reaches down to `committed.index + 1` at least; `terms` covers `bases[0].index ..= tail.index`.
#[derive(Debug)]
pub(super) struct Log {
    /// Beginnings of segments, ascending by index; empty while there is no log at all.
    bases: VecDeque<Base>,
    /// The snapshot at the commit index.
    committed: StateSnapshot,
    /// Up to here the log equals that of the term's leader.
    matched: Index,
    /// The snapshot after the last entry: the membership, sessions and seqno in force.
    tail: StateSnapshot,
    /// The first index of each term in the log. Ascending in both.
    terms: VecDeque<(Index, Term)>,
    /// The seqnos that views of this log leave out, ascending.
    gaps: Vec<Gap>,
    /// Write-sets and statements of each member that were appended here, truncated again or not.
    written: BTreeMap<MemberId, u64>,
    cache: VecDeque<Entry>,
    /// Sum of `Entry::size` over the cache.
    cached_bytes: usize,
    /// The same sum over the entries above the commit index.
    uncommitted_bytes: usize,
    /// The last uncommitted entry of each origin, which waits for acks.
    origins: BTreeMap<MemberId, Index>,
    /// Policies of uncommitted entries, and of committed ones that threads may still wait for. **Invariant:** not empty,
    /// ascending; the first covers the entry after the commit index or an earlier one.
    policy_ranges: VecDeque<PolicyRange>,
}

fn policy_range_after(state: &StateSnapshot) -> VecDeque<PolicyRange> {
    VecDeque::from([PolicyRange { after: state.index, policy: state.policy, view: state.view.clone() }])
}

impl Log {
    /// Asserts the invariants of [`Log`]. With `whole`, also those of each cached entry, in time linear in the cache.
    pub(super) fn assert_invariants(&self, whole: bool) {
        if let Some(first) = self.bases.front() {
            assert!(first.state.index <= self.committed.index, "the first snapshot is committed");
        }
        assert!(
            self.committed.index <= self.matched && self.matched <= self.tail.index,
            "commit {} <= matched {} <= last {}",
            self.committed.index,
            self.matched,
            self.tail.index
        );
        let first_cached = self.cache.front().map_or(self.tail.index + 1, |entry| entry.index);
        assert!(
            first_cached <= self.committed.index + 1 || self.committed.index == self.tail.index,
            "uncommitted entries are cached"
        );
        let ranges = &self.policy_ranges;
        assert!(
            ranges.front().is_some_and(|range| range.after <= self.committed.index),
            "a range covers commit + 1"
        );
        if !whole {
            return;
        }
        let (mut bytes, mut next) = (0, first_cached);
        for entry in &self.cache {
            assert_eq!(entry.index, next, "the cache is dense");
            (bytes, next) = (bytes + entry.size(), next + 1);
        }
        assert_eq!(next, self.tail.index + 1, "the cache ends at the last entry");
        assert_eq!(bytes, self.cached_bytes, "the cache's size");
        let ascending = |(a, b): (&(Index, Term), &(Index, Term))| a.0 < b.0 && a.1 < b.1;
        assert!(self.terms.iter().zip(self.terms.iter().skip(1)).all(ascending), "terms ascend");
        assert!(
            ranges.iter().zip(ranges.iter().skip(1)).all(|(a, b)| a.after < b.after),
            "policy ranges ascend"
        );
    }

    /// No log: nothing can be appended before a base is given.
    pub(super) fn empty() -> Log {
        let nothing = StateSnapshot::genesis(Uuid::NIL, SEQNO_UNDEFINED, Membership::default());
        Log {
            bases: VecDeque::new(),
            committed: nothing.clone(),
            matched: 0,
            tail: nothing.clone(),
            terms: VecDeque::from([(0, 0)]),
            gaps: Vec::new(),
            written: BTreeMap::new(),
            cache: VecDeque::new(),
            cached_bytes: 0,
            uncommitted_bytes: 0,
            origins: BTreeMap::new(),
            policy_ranges: policy_range_after(&nothing),
        }
    }

    /// Begins anew after `state`.
    pub(super) fn starting_at(state: StateSnapshot) -> Log {
        Log {
            terms: VecDeque::from([(state.index, state.term)]),
            gaps: Vec::new(),
            policy_ranges: policy_range_after(&state),
            bases: VecDeque::from([Base { state: state.clone(), bytes: 0 }]),
            committed: state.clone(),
            matched: state.index,
            tail: state,
            written: BTreeMap::new(),
            cache: VecDeque::new(),
            cached_bytes: 0,
            uncommitted_bytes: 0,
            origins: BTreeMap::new(),
        }
    }

    /// As read from the disk. `None` where the parts do not fit together.
    pub(super) fn restored(
        committed: StateSnapshot,
        entries: Vec<Entry>,
        terms: Vec<(Index, Term)>,
        bases: Vec<(StateSnapshot, u64)>,
        gaps: Vec<Gap>,
    ) -> Result<Log, DecodeError> {
        let mut log = Log {
            policy_ranges: policy_range_after(&committed),
            bases: bases.into_iter().map(|(state, bytes)| Base { state, bytes }).collect(),
            tail: committed.clone(),
            matched: committed.index,
            committed,
            terms: terms.into(),
            gaps,
            written: BTreeMap::new(),
            cache: VecDeque::new(),
            cached_bytes: 0,
            uncommitted_bytes: 0,
            origins: BTreeMap::new(),
        };
        let fits = log.terms.front().map(|(index, _)| *index) == Some(log.base_index())
            && log.base_index() <= log.committed.index
            && !log.bases.is_empty();
        if !fits {
            return Err(DecodeError::Invalid("base of the log"));
        }
        // The runs, the gaps and the sizes that came in cover these entries already.
        log.terms.retain(|(first, _)| *first <= log.committed.index);
        log.gaps.retain(|gap| gap.index <= log.committed.index);
        let sizes: Vec<u64> = log.bases.iter().map(|base| base.bytes).collect();
        for entry in entries {
            log.append(entry)?;
        }
        for (base, bytes) in log.bases.iter_mut().zip(sizes) {
            base.bytes = bytes;
        }
        if log.bases.iter().any(|base| base.state.index > log.tail.index) {
            return Err(DecodeError::Invalid("base of a segment"));
        }
        Ok(log)
    }

    /// Whether there is a log.
    pub(super) fn exists(&self) -> bool {
        !self.bases.is_empty()
    }

    /// The last index.
    pub(super) fn last(&self) -> Index {
        self.tail.index
    }

    /// The commit index.
    pub(super) fn commit(&self) -> Index {
        self.committed.index
    }

    /// Up to here the log equals that of the term's leader.
    pub(super) fn matched(&self) -> Index {
        self.matched
    }

    /// The log equals that of the term's leader up to `index`.
    pub(super) fn agree_up_to(&mut self, index: Index) {
        assert!(index <= self.last(), "the log holds what it shares with the leader's");
        self.matched = self.matched.max(index);
    }

    /// Another term: of its leader's log only the committed part is known.
    pub(super) fn forget_leader(&mut self) {
        self.matched = self.commit();
    }

    /// The snapshot at the commit index.
    pub(super) fn committed(&self) -> &StateSnapshot {
        &self.committed
    }

    /// The snapshot after the last entry.
    pub(super) fn tail(&self) -> &StateSnapshot {
        &self.tail
    }

    /// The beginnings of the segments, ascending.
    pub(super) fn bases(&self) -> impl DoubleEndedIterator<Item = &StateSnapshot> {
        self.bases.iter().map(|base| &base.state)
    }

    /// The seqnos that views of this log leave out, ascending.
    pub(super) fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// How many write-sets and statements of each member were appended here.
    pub(super) fn written(&self) -> &BTreeMap<MemberId, u64> {
        &self.written
    }

    /// The last uncommitted entry of each origin.
    pub(super) fn origins(&self) -> &BTreeMap<MemberId, Index> {
        &self.origins
    }

    /// The policies of the entries above the commit index, and of earlier ones that threads may wait for. Not empty.
    pub(super) fn policy_ranges(&self) -> &VecDeque<PolicyRange> {
        &self.policy_ranges
    }

    /// The place before the log's first entry.
    pub(super) fn base_index(&self) -> Index {
        self.bases.front().map_or(0, |base| base.state.index)
    }

    /// The lowest index from which all entries are in memory.
    pub(super) fn cached_from(&self) -> Index {
        self.last() + 1 - self.cache.len() as u64
    }

    /// The term of the entry there; of the base too. `None` outside of the log.
    pub(super) fn term_at(&self, index: Index) -> Option<Term> {
        if index > self.last() {
            return None;
        }
        // Nearly always the last run.
        if let Some((first, term)) = self.terms.back()
            && index >= *first
        {
            return Some(*term);
        }
        let after = self.terms.partition_point(|(first, _)| *first <= index);
        after.checked_sub(1).map(|run| self.terms[run].1)
    }

    /// The highest index up to `from` whose term is at most `term`. `None` where that lies before the base.
    pub(super) fn last_not_above(&self, from: Index, term: Term) -> Option<Index> {
        let mut index = from.min(self.last());
        let mut run = self.terms.partition_point(|(first, _)| *first <= index).checked_sub(1)?;
        while self.terms[run].1 > term {
            index = self.terms[run].0.checked_sub(1)?;
            run = run.checked_sub(1)?;
        }
        Some(index)
    }

    /// An entry from memory.
    pub(super) fn entry(&self, index: Index) -> Option<&Entry> {
        let at = index.checked_sub(self.cached_from())?;
        self.cache.get(usize::try_from(at).ok()?)
    }

    /// About how many bytes the entries from this index on have. Few are counted; of the segment in which more begin,
    /// entries count as its mean.
    pub(super) fn bytes_from(&self, from: Index) -> u64 {
        const FEW: u64 = 1000;
        if self.last() < from {
            return 0;
        }
        if from >= self.cached_from() && self.last() - from < FEW {
            let start = (from - self.cached_from()) as usize;
            return self.cache.range(start..).map(|entry| entry.size() as u64).sum();
        }
        let mut end = self.last();
        let mut bytes = 0;
        for base in self.bases.iter().rev() {
            let first = base.state.index + 1;
            if first >= from {
                bytes += base.bytes;
            } else {
                let (above, all) = (end + 1 - from, end + 1 - first);
                return bytes + (u128::from(base.bytes) * u128::from(above) / u128::from(all)) as u64;
            }
            end = base.state.index;
        }
        bytes
    }

    /// Whether the entries above the commit index have so many bytes; if so, how many those up to `index` have of them.
    pub(super) fn uncommitted_upto(&self, index: Index, least: usize) -> Option<usize> {
        (self.uncommitted_bytes >= least).then(|| {
            let skip = (index.max(self.commit()) + 1 - self.cached_from()) as usize;
            self.uncommitted_bytes - self.cache.range(skip..).map(Entry::size).sum::<usize>()
        })
    }

    /// The memberships of the entries that are not known to be committed, ascending.
    pub(super) fn open_memberships(&self) -> impl Iterator<Item = Membership> + '_ {
        let skip = (self.committed.index + 1 - self.cached_from()) as usize;
        let entries = self.cache.range(skip..).filter(|entry| entry.kind == EntryKind::Membership);
        entries.filter_map(|entry| Membership::decode(&mut Reader::new(entry.payload())).ok())
    }

    /// Entries from memory, from `from` to `to` at most: at least one, else up to `max_bytes`.
    pub(super) fn slice(&self, from: Index, to: Index, max_bytes: usize) -> (Vec<Entry>, usize) {
        let first = self.cached_from();
        if from < first || from > to.min(self.last()) {
            return (Vec::new(), 0);
        }
        let start = (from - first) as usize;
        let end = (to.min(self.last()) - first) as usize;
        let mut bytes = 0;
        let mut stop = start;
        for entry in self.cache.range(start..=end) {
            if stop > start && bytes + entry.size() > max_bytes {
                break;
            }
            bytes += entry.size();
            stop += 1;
        }
        (self.cache.range(start..stop).cloned().collect(), bytes)
    }

    /// Adds the next entry.
    ///
    /// # Errors
    /// Where it is not the next one, or cannot be read; then nothing has changed.
    pub(super) fn append(&mut self, entry: Entry) -> Result<(), DecodeError> {
        let (term_before, seqno_before) = (self.tail.term, self.tail.seqno);
        self.tail.apply(&entry)?;
        self.gaps.extend(Gap::at(&entry, seqno_before));
        if entry.term != term_before {
            self.terms.push_back((entry.index, entry.term));
        }
        if !entry.proposal.member.is_nil() {
            self.origins.insert(entry.proposal.member, entry.index);
            if matches!(entry.kind, EntryKind::WriteSet | EntryKind::TotalOrder) {
                *self.written.entry(entry.proposal.member).or_default() += 1;
            }
        }
        self.note_policy(&entry);
        let size = entry.size();
        if let Some(segment) = self.bases.back_mut() {
            segment.bytes += size as u64;
        }
        self.cached_bytes += size;
        self.uncommitted_bytes += size;
        self.cache.push_back(entry);
        Ok(())
    }

    /// Another policy, or another view where one waits for views, begins another policy_range.
    fn note_policy(&mut self, entry: &Entry) {
        let begins = match entry.kind {
            EntryKind::Policy => true,
            EntryKind::View => self.tail.policy.kind == PolicyKind::All,
            _ => false,
        };
        if begins {
            let StateSnapshot { policy, view, .. } = &self.tail;
            self.policy_ranges.push_back(PolicyRange {
                after: entry.index,
                policy: *policy,
                view: view.clone(),
            });
        }
    }

    /// Whether the policies of all relevant entries ask only for commitment.
    pub(super) fn has_plain_policy(&self) -> bool {
        self.policy_ranges.len() == 1 && self.policy_ranges[0].policy.is_plain()
    }

    /// Whether acks matter beyond a majority. Then every member gets them.
    pub(super) fn acks_matter_to_all(&self) -> bool {
        let all = |range: &PolicyRange| range.policy.kind == PolicyKind::All || range.policy.zone_acks > 0;
        !self.has_plain_policy() && self.policy_ranges.iter().any(all)
    }

    /// Whether members acknowledge received entries before they are on disk.
    pub(super) fn acks_on_receive(&self) -> bool {
        self.tail.policy.on_receive && self.tail.policy.kind == PolicyKind::Semisync
    }

    /// No thread waits for the policy of an entry up to here any more.
    pub(super) fn forget_policy_ranges(&mut self, upto: Index) {
        while self.policy_ranges.get(1).is_some_and(|next| next.after <= upto) {
            self.policy_ranges.pop_front();
        }
    }

    /// The policy of the entry at this index above the commit index.
    pub(super) fn policy_at(&self, index: Index) -> Policy {
        let last = self.policy_ranges.iter().rev().find(|s| s.after < index).or(self.policy_ranges.front());
        last.map_or(Policy::default(), |s| s.policy)
    }

    /// If uncommitted entries may have been appended under a weak policy: how many seqnos may have been confirmed beyond the
    /// commit index.
    pub(super) fn at_risk(&self) -> Option<u64> {
        let open = self.policy_ranges.iter().map(|s| s.policy).chain([self.committed.policy]);
        open.filter(|policy| policy.is_weak()).map(|policy| policy.max_at_risk).max()
    }

    /// Forgets the entries from `from` on. Only what is not committed can be forgotten.
    pub(super) fn truncate(&mut self, from: Index) {
        assert!(from > self.commit(), "a committed entry is never given up");
        assert!(from > self.matched, "an entry of the leader's is never given up in its term");
        while self.last() >= from {
            let Some(entry) = self.cache.pop_back() else { break };
            self.cached_bytes -= entry.size();
            self.uncommitted_bytes -= entry.size();
            // `tail` is folded again below; until then only its index is right.
            self.tail.index -= 1;
        }
        while self.terms.len() > 1 && self.terms.back().is_some_and(|(first, _)| *first >= from) {
            self.terms.pop_back();
        }
        self.gaps.retain(|gap| gap.index < from);
        while self.bases.len() > 1 && self.bases.back().is_some_and(|base| base.state.index >= from) {
            self.bases.pop_back();
        }
        while self.policy_ranges.len() > 1 && self.policy_ranges.back().is_some_and(|s| s.after >= from) {
            self.policy_ranges.pop_back();
        }
        self.rebuild_snapshots();
    }

    /// Rebuilds the tail snapshot and the waiting origins from the committed state.
    fn rebuild_snapshots(&mut self) {
        let first = self.cached_from();
        self.tail = self.committed.clone();
        self.origins.clear();
        let skip = (self.committed.index + 1 - first) as usize;
        for entry in self.cache.range(skip..) {
            let again = self.tail.apply(entry);
            assert!(again.is_ok(), "what could be folded once can be folded again");
            if !entry.proposal.member.is_nil() {
                self.origins.insert(entry.proposal.member, entry.index);
            }
        }
    }

    /// The state before the entry at this index above the commit index.
    pub(super) fn snapshot_before(&self, index: Index) -> StateSnapshot {
        let mut state = self.committed.clone();
        let skip = (self.committed.index + 1 - self.cached_from()) as usize;
        for entry in self.cache.range(skip..).take_while(|entry| entry.index < index) {
            let again = state.apply(entry);
            debug_assert!(again.is_ok(), "what could be folded once can be folded again");
        }
        state
    }

    /// Moves the commit index.
    pub(super) fn commit_to(&mut self, index: Index) {
        assert!(index <= self.matched, "only what the own log shares with the leader's is committed here");
        let first = self.cached_from();
        while self.committed.index < index {
            let entry = &self.cache[(self.committed.index + 1 - first) as usize];
            let folded = self.committed.apply(entry);
            assert!(folded.is_ok(), "what the tail took, the committed state takes");
            self.uncommitted_bytes -= entry.size();
        }
        self.origins.retain(|_, last| *last > index);
    }

    /// A new segment begins after `state`; the entries above it go there.
    pub(super) fn roll(&mut self, state: &StateSnapshot) {
        let bytes: u64 =
            self.cache.iter().rev().take_while(|e| e.index > state.index).map(|e| e.size() as u64).sum();
        if let Some(full) = self.bases.back_mut() {
            full.bytes = full.bytes.saturating_sub(bytes);
        }
        self.bases.push_back(Base { state: state.clone(), bytes });
    }

    /// The snapshot before the log's first entry.
    pub(super) fn base_state(&self) -> StateSnapshot {
        self.bases.front().map_or_else(|| self.committed.clone(), |base| base.state.clone())
    }

    /// Whether the last segment holds enough.
    pub(super) fn segment_full(&self, segment_bytes: u64) -> bool {
        self.bases
            .back()
            .is_some_and(|base| base.bytes >= segment_bytes && base.state.index < self.tail.index)
    }

    /// Drops the oldest entries from memory while there are more than `max_bytes`, none above `keep_above`.
    pub(super) fn evict(&mut self, max_bytes: usize, keep_above: Index) {
        while self.cached_bytes > max_bytes
            && self.cache.front().is_some_and(|oldest| oldest.index <= keep_above.min(self.committed.index))
        {
            if let Some(oldest) = self.cache.pop_front() {
                self.cached_bytes -= oldest.size();
            }
        }
    }

    /// The log on the disk now begins with the entry `first`.
    pub(super) fn trimmed(&mut self, first: Index) {
        while self
            .bases
            .get(1)
            .is_some_and(|second| second.state.index < first && second.state.index <= self.committed.index)
        {
            self.bases.pop_front();
        }
        let base = self.base_index();
        self.gaps.retain(|gap| gap.index > base);
        while self.terms.get(1).is_some_and(|(begins, _)| *begins <= base) {
            self.terms.pop_front();
        }
        if let Some((begins, _)) = self.terms.front_mut() {
            *begins = (*begins).max(base);
        }
    }

    /// The snapshot at which a peer restarts that cannot continue from its own log.
    ///
    /// To certify, a member needs the log from the trim mark in force where its certification begins. `position` is the
    /// seqno of the peer's database, if it has one. The newest snapshot up to there names a mark in force no later, and the
    /// mark before that one is always safe. Without a position the peer will receive a database newer than the last
    /// committed trim mark. Fallback: the oldest snapshot, which is always right at index 0, and else the best in this log.
    pub(super) fn base_for(&self, position: Option<Seqno>) -> Option<&StateSnapshot> {
        let committed =
            || self.bases.iter().rev().map(|b| &b.state).filter(|s| s.index <= self.committed.index);
        let limit = match position {
            Some(at) => committed().find(|s| s.seqno <= at).map(|s| s.trim_previous.min(at)),
            None => None,
        };
        let limit = limit.unwrap_or(self.committed.trim_previous);
        committed().find(|s| s.seqno <= limit).or(self.bases.front().map(|b| &b.state))
    }
}
