//! The checkers' own certification, schedule and database: a direct implementation of the rules.
//!
//! The shipping certifier keeps an index that forgets, begins in the middle of a log, and learns verdicts from trim
//! marks. The reference has seen the log from its first entry and looks at every use of every key.

use lockstep_core::certify::{Meeting, meeting};
use lockstep_core::codec::Reader;
use lockstep_core::members::View;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::snapshot::TrimMark;
use lockstep_core::writeset::{KeyType, WriteSet, flags};
use lockstep_core::{Entry, EntryKind, MemberId, Seqno, Term, Uuid};
use rustc_hash::FxHashMap;

/// The source of a write: two write-sets of one source never conflict. `None`: a source of its own.
type Source = Option<(Uuid, u16)>;

#[derive(Clone, Copy, Debug)]
struct Use {
    seqno: Seqno,
    kind: KeyType,
    source: Source,
}

/// Whether it is applied with nothing beside it.
pub(crate) fn is_alone(kind: EntryKind, set: &WriteSet) -> bool {
    kind == EntryKind::TotalOrder || set.meta.has(flags::ISOLATION | flags::ROLLBACK | flags::PA_UNSAFE)
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Reference {
    trim: Seqno,
    /// The seqno of the last entry.
    last: Seqno,
    /// Where views have left seqnos out: the seqno before, and the view's.
    gaps: Vec<(Seqno, Seqno)>,
    /// The policy is one under which only the leader writes.
    weak: bool,
    term: Term,
    leader: MemberId,
    uses: FxHashMap<u64, Vec<Use>>,
    passed: u64,
    failed: u64,
}

impl Reference {
    /// How many passed, and how many failed.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.passed, self.failed)
    }

    /// Takes the next committed entry. The verdict, where it is one that is certified.
    pub(crate) fn take(&mut self, entry: &Entry) -> Option<bool> {
        if entry.term != self.term {
            self.term = entry.term;
            let mut r = Reader::new(entry.payload());
            let leader = match entry.kind {
                EntryKind::Noop => r.array().ok().map(Uuid),
                EntryKind::View => View::decode(&mut r).ok().and_then(|v| v.members.first().map(|m| m.id)),
                _ => None,
            };
            self.leader = leader.unwrap_or(Uuid::NIL);
        }
        let before = std::mem::replace(&mut self.last, entry.seqno);
        match entry.kind {
            EntryKind::View if entry.seqno > before + 1 => {
                self.gaps.push((before, entry.seqno));
                None
            }
            EntryKind::Policy => {
                let policy = Policy::decode(&mut Reader::new(entry.payload()));
                self.weak = policy.is_ok_and(|p| matches!(p.kind, PolicyKind::Async | PolicyKind::Semisync));
                None
            }
            EntryKind::Trim => {
                if let Ok(mark) = TrimMark::from_payload(entry.payload()) {
                    self.trim = self.trim.max(mark.trim);
                }
                None
            }
            EntryKind::WriteSet | EntryKind::TotalOrder => {
                let set = WriteSet::parse(&entry.payload()).ok();
                let pass = set.as_ref().is_some_and(|set| self.verdict(entry, set));
                if let Some(set) = set.filter(|_| pass) {
                    self.write(entry, &set);
                }
                self.passed += u64::from(pass);
                self.failed += u64::from(!pass);
                Some(pass)
            }
            _ => None,
        }
    }

    fn verdict(&self, entry: &Entry, set: &WriteSet) -> bool {
        let meta = &set.meta;
        if self.weak && entry.proposal.member != self.leader && !meta.has(flags::ROLLBACK) {
            return false;
        }
        if entry.kind == EntryKind::TotalOrder || meta.has(flags::ISOLATION | flags::ROLLBACK) {
            return true;
        }
        if self.gaps.iter().any(|(from, to)| *from < meta.last_seen && meta.last_seen < *to) {
            return false;
        }
        if meta.last_seen >= entry.seqno || meta.last_seen < self.trim {
            return false;
        }
        let source: Source = Some((meta.source, meta.epoch));
        !set.keys().any(|key| {
            let uses = self.uses.get(&key.hash).map_or(&[][..], Vec::as_slice);
            // They ascend.
            uses.iter().rev().take_while(|earlier| earlier.seqno > meta.last_seen).any(|earlier| {
                earlier.source != source && meeting(earlier.kind, key.kind) == Meeting::Conflict
            })
        })
    }

    fn write(&mut self, entry: &Entry, set: &WriteSet) {
        let total_order = entry.kind == EntryKind::TotalOrder || set.meta.has(flags::ISOLATION);
        let source = (!total_order).then_some((set.meta.source, set.meta.epoch));
        if !set.meta.has(flags::ROLLBACK) {
            for key in set.keys() {
                let uses = self.uses.entry(key.hash).or_default();
                uses.push(Use { seqno: entry.seqno, kind: key.kind, source });
                // A write-set with `last_seen` below the mark fails anyway.
                if uses.len().is_power_of_two() && uses.len() > 32 {
                    uses.retain(|u| u.seqno > self.trim);
                }
            }
        }
    }
}
