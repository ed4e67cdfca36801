//! Certification: which write-sets commit, a pure function of the log.
//!
//! Write-sets are certified in the order of their seqnos. One passes unless
//!
//! 1. its origin had not seen the trim mark in force (`last_seen < trim`), or
//! 2. a key of it *conflicts* with the same key of a write-set that passed, came from **another** source, and has a
//!    seqno above its `last_seen`. A statement in total order counts as another source for every member.
//!
//! Two write-sets of one source never conflict, because that server's locks have ordered them. Neither do the fragments of
//! one transaction. Statements in total order and rollbacks pass both rules. A failed write-set leaves no keys behind.
//!
//! [`Certifier::judge`] adds two rules. Under a weak policy, write-sets and statements of members other than the leader
//! fail, except rollbacks. A write-set fails if its origin had seen a seqno that a view left out.
//!
//! | earlier ↓ later → | shared | reference | update | exclusive |
//! |-------------------|--------|-----------|--------|-----------|
//! | shared            | –      | –         | parent | parent    |
//! | reference         | –      | –         | parent | conflict  |
//! | update            | parent | parent    | conflict | conflict |
//! | exclusive         | conflict | conflict | conflict | conflict |
//!
//! If the table says *conflict* or *parent* and the later write-set passes, the earlier one is its *parent*: it must be
//! applied first. `depends_on` is the highest of
//!
//! - the parents,
//! - the last *barrier* (a statement in total order, a view, a write-set that must not be applied in parallel),
//! - the fragment before in the same transaction,
//! - the trim mark, because keys below it are forgotten.
//!
//! `depends_on` only schedules. It is no part of the verdict, and members may differ in it.
//!
//! # Why verdicts survive restarts and joins
//!
//! A member's log begins at a state `base`. From the entries after it the member knows all keys of seqnos above
//! `base.seqno`, **provided** it knows which of them passed. So it can judge every write-set with
//! `last_seen >= base.seqno`. The trim marks supply the other verdicts:
//!
//! * Let `m₁, m₂` be the last two trim marks in the committed log when the member starts. Its state has
//!   `trim_previous = m₁.trim`.
//! * A leader appends a mark only after it has certified everything up to the mark before. So `m₂.verdicts_to` is at
//!   or above the seqno at which `m₁` lies ([`Certifier::next_trim`]).
//! * Therefore the marks up to `m₂` hold the verdicts on all entries up to `m₁`.
//! * An entry after `m₁` fails by rule 1, or its origin had seen `m₁.trim`. **If `base.seqno <= m₁.trim`**, it had also
//!   seen `base.seqno`.
//!
//! Hence the rule: *certification starts from a log that begins at or below the `trim_previous` of the committed state*
//! ([`reaches`]). The certifier first learns all marks up to there ([`Certifier::learn`]), then judges all entries in
//! order. If both verdicts are known, it compares them ([`CertifyError::Diverged`]). If neither is known, that is an
//! error ([`CertifyError::Unknown`]).

mod index;
mod slots;
mod table;

use crate::policy::Writers;
use crate::raft::{Failpoint, Failpoints};
use crate::snapshot::{StateSnapshot, TrimMark};
use crate::types::{Entry, EntryKind, Seqno, ViewUuid};
use crate::writeset::{OVERTAKEN, ROOT, WriteSet, flags};
use index::{Index, Source};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::fmt;

pub use index::{Meeting, meeting};

/// The result of certifying one entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Certification {
    /// The verdict, the same on every member.
    pub pass: bool,
    /// All seqnos up to this one must have finished before the entry may be applied; below its own seqno.
    pub depends_on: Seqno,
    /// The highest seqno that it conflicts with, where that is why it failed and it is known.
    pub conflict: Option<Seqno>,
    /// The reason of a failure.
    pub failure: Option<Failure>,
}

/// Why a write-set fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// It conflicts with a write-set of another source that its origin had not seen.
    Conflict,
    /// Its origin had not seen the trim mark.
    BelowTrim,
    /// Its *last seen* is not below its own seqno.
    Impossible,
    /// It cannot be decoded.
    Malformed,
    /// Under a weak policy it comes from a member other than the leader.
    NotLeader,
    /// It is a fragment of a streaming transaction that a view has ended meanwhile (`raft::streams`).
    Overtaken,
    /// Its origin had seen seqnos that a new leader left out, because the predecessor may have given them out.
    LostSight,
    /// A trim mark says that it failed. The log does not reach back to the reason.
    Recorded,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Failure::Conflict => "conflicts with a transaction of another member",
            Failure::BelowTrim => "took so long that its certification window is gone",
            Failure::Impossible => "claims to have seen a seqno above its own",
            Failure::Malformed => "cannot be read",
            Failure::NotLeader => {
                "is not of the leader, and under this commit.policy only the leader may write"
            }
            Failure::Overtaken => {
                "belongs to a streaming transaction that a change of members or leader has ended"
            }
            Failure::LostSight => "comes from a database that has what the cluster has lost",
            Failure::Recorded => "failed before this member's log begins to tell why",
        })
    }
}

/// Certification cannot continue: the log is damaged, or the program has an error. The member must stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CertifyError {
    /// Entries come out of order.
    Order {
        /// The seqno that came.
        seqno: Seqno,
        /// The one before it.
        last: Seqno,
    },
    /// The log begins too late to judge this entry, and no trim mark has the verdict: a state transfer is needed.
    Unknown {
        /// The entry.
        seqno: Seqno,
        /// The last seqno that its origin had seen.
        last_seen: Seqno,
        /// Where the log begins.
        base: Seqno,
    },
    /// A trim mark's verdict is not the own one: this member and the one that made the mark do not hold the same log.
    Diverged {
        /// The entry.
        seqno: Seqno,
        /// The mark's verdict.
        recorded: bool,
    },
    /// A trim mark that no leader can have made.
    Mark(&'static str),
}

impl fmt::Display for CertifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertifyError::Order { seqno, last } => write!(f, "certification got seqno {seqno} after {last}"),
            CertifyError::Unknown { seqno, last_seen, base } => write!(
                f,
                "cannot certify seqno {seqno}, which had seen {last_seen}: the log begins at {base}; this member needs a state transfer"
            ),
            CertifyError::Diverged { seqno, recorded } => write!(
                f,
                "certification of seqno {seqno} came out otherwise here: the cluster says {}; this member needs a state transfer",
                if *recorded { "passed" } else { "failed" }
            ),
            CertifyError::Mark(what) => write!(f, "a trim mark in the log {what}"),
        }
    }
}

impl std::error::Error for CertifyError {}

/// A member's knowledge of the verdicts on a range of seqnos: see [`Certifier::verdicts`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdicts {
    /// It has not certified all of them.
    NotYet,
    /// It does not know all of them by its own certification.
    Unknown,
    /// A hash of the seqnos that failed; not 0.
    Known(u64),
}

/// When to trim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrimLimits {
    /// Make no mark that frees less than so many seqnos.
    pub min_advance: u64,
    /// The most seqnos kept for slow members. Proposals of a member further behind fail until it has caught up.
    pub max_window: u64,
}

impl Default for TrimLimits {
    fn default() -> TrimLimits {
        TrimLimits { min_advance: 1024, max_window: 16384 }
    }
}

/// Whether a log that begins at `base` reaches back far enough to certify everything that follows `committed`, the
/// state of its committed part (see the module's text).
pub fn reaches(base: &StateSnapshot, committed: &StateSnapshot) -> bool {
    base.seqno <= committed.trim_previous
}

/// The certification index and what else verdicts depend on.
#[derive(Debug)]
pub struct Certifier {
    /// Keys of all seqnos above this that passed are known (but for those that were trimmed).
    base: Seqno,
    /// The last seqno that went through.
    last: Seqno,
    /// The trim mark in force. Invariant: `trim <= last`.
    trim: Seqno,
    /// As of the last mark that went through.
    verdicts_to: Seqno,
    /// Failed seqnos above `verdicts_to`, ascending.
    failed: Vec<Seqno>,
    /// All verdicts up to here have been learned from marks.
    recorded_to: Seqno,
    /// Failed seqnos above `last` and up to `told_to`, ascending, learned from trim marks.
    recorded_failures: VecDeque<Seqno>,
    index: Index,
    /// The last barrier.
    barrier: Seqno,
    /// Seqnos above `trim` that views have left out, as open intervals.
    gaps: Vec<(Seqno, Seqno)>,
    /// The last write-set that passed: as the root goes, it shared it.
    passed: Seqno,
    /// The last fragment of each open streaming transaction above `trim`.
    streams: FxHashMap<(ViewUuid, u64), Seqno>,
    /// A planted fault; `None` but in the simulator.
    failpoints: Failpoints,
}

impl Certifier {
    /// Knows nothing but the state before the log's first entry.
    pub fn new(base: &StateSnapshot) -> Certifier {
        Certifier {
            base: base.seqno,
            last: base.seqno,
            trim: base.trim,
            verdicts_to: base.verdicts_to,
            failed: Vec::new(),
            recorded_to: base.seqno,
            recorded_failures: VecDeque::new(),
            index: Index::default(),
            barrier: base.seqno,
            gaps: Vec::new(),
            passed: base.seqno,
            streams: FxHashMap::default(),
            failpoints: Failpoints::default(),
        }
    }

    /// Activates a failpoint, as [`crate::raft::Config::failpoints`] does.
    pub fn set_failpoints(&mut self, failpoints: Failpoints) {
        self.failpoints = failpoints;
    }

    /// The database has everything up to here. Only a planted fault makes a difference of it: the keys of these entries
    /// are not learned then.
    pub fn skip_to(&mut self, position: Seqno) {
        if self.failpoints.is_active(Failpoint::CertifyFromPosition) {
            self.base = self.base.max(position);
        }
    }

    /// Learns the verdicts of a trim mark that lies ahead. To be called before the first entry goes through, with all
    /// marks of the committed log, in order. Marks that come later need not be learned; they go through
    /// [`Certifier::trim`].
    pub fn learn(&mut self, mark: &TrimMark) {
        if self.failpoints.is_active(Failpoint::MarksNotLearned) {
            return;
        }
        for seqno in &mark.failed {
            if *seqno > self.recorded_to && *seqno <= mark.verdicts_to {
                self.recorded_failures.push_back(*seqno);
            }
        }
        self.recorded_to = self.recorded_to.max(mark.verdicts_to);
    }

    /// The verdict on this write-set or statement in total order, by all rules. `set` is what its payload says, `None`
    /// where it cannot be read; `writers` has gone on to the entry.
    ///
    /// # Errors
    /// [`CertifyError`]: this member cannot go on with this log.
    pub fn judge(
        &mut self,
        writers: &Writers,
        entry: &Entry,
        set: Option<&WriteSet>,
    ) -> Result<Certification, CertifyError> {
        let Some(set) = set else { return self.void(entry.seqno) };
        if self.failpoints.is_active(Failpoint::CertifyFromPosition) && entry.seqno <= self.base {
            return self.void(entry.seqno);
        }
        // A rollback only takes back what the log has of it: anybody's counts.
        if !writers.may_write(&entry.proposal.member) && !set.meta.has(flags::ROLLBACK) {
            return self.refuse(entry.seqno, Failure::NotLeader);
        }
        self.certify(entry.seqno, entry.kind, set)
    }

    /// The verdict on the next write-set or total-order statement. `kind` is that of its entry.
    ///
    /// # Errors
    /// [`CertifyError`]: this member cannot go on with this log.
    pub fn certify(
        &mut self,
        seqno: Seqno,
        kind: EntryKind,
        set: &WriteSet,
    ) -> Result<Certification, CertifyError> {
        let recorded = self.next(seqno)?;
        let meta = &set.meta;
        let total_order = kind == EntryKind::TotalOrder || meta.has(flags::ISOLATION);
        let rollback = meta.has(flags::ROLLBACK);
        let barrier = total_order || rollback || meta.has(flags::PA_UNSAFE);
        let source = match total_order {
            true => Source::NOBODY,
            false => self.index.source(meta.source, meta.epoch, seqno),
        };

        let mut floor = self.trim.max(self.base).max(self.barrier);
        if meta.has(flags::IMPLICIT_DEPS) {
            floor = floor.max(meta.last_seen);
        }
        if !meta.has(flags::TRX_START)
            && let Some(fragment) = self.streams.get(&(meta.source, meta.trx))
        {
            floor = floor.max(*fragment);
        }

        let mut conflict = None;
        let mut parent = floor;
        if !total_order && !rollback {
            let root = self.index.root_meets(source, meta.last_seen);
            parent = parent.max(root.parent);
            conflict = root.conflict;
            for key in set.keys() {
                let met = match key.hash {
                    ROOT => self.index.root_checked(key.kind, source, meta.last_seen, self.passed),
                    _ => self.index.check(&key, source, meta.last_seen),
                };
                parent = parent.max(met.parent);
                // None is less than any seqno.
                conflict = conflict.max(met.conflict);
            }
        }
        debug_assert!(meta.last_seen < self.trim || conflict.is_none_or(|seqno| seqno > self.trim));
        let failure = if total_order || rollback {
            None
        } else if meta.last_seen == OVERTAKEN {
            Some(Failure::Overtaken)
        } else if meta.last_seen >= seqno {
            Some(Failure::Impossible)
        } else if meta.last_seen < self.trim && !self.failpoints.is_active(Failpoint::TrimMarkIgnored) {
            Some(Failure::BelowTrim)
        } else if self.gaps.iter().any(|(from, to)| *from < meta.last_seen && meta.last_seen < *to) {
            Some(Failure::LostSight)
        } else if conflict.is_some() {
            Some(Failure::Conflict)
        } else {
            None
        };
        // A conflict found is certain. Its absence is certain only if the index reaches back to `last_seen`.
        let certain = total_order || rollback || failure.is_some() || meta.last_seen >= self.base;
        let failure = self.settle(seqno, recorded, failure, certain, meta.last_seen)?;

        if failure.is_none() {
            if !rollback {
                self.index.insert(set, source, seqno);
                self.passed = seqno;
            }
            if barrier {
                self.barrier = seqno;
            }
            self.follow_stream(set, seqno);
        }
        let depends_on = match failure {
            None if barrier => seqno - 1,
            None if self.failpoints.is_active(Failpoint::NoParents) => floor.min(seqno - 1),
            None => parent.min(seqno - 1),
            Some(_) => floor.min(seqno - 1),
        };
        let conflict = conflict.filter(|_| failure == Some(Failure::Conflict));
        Ok(Certification { pass: failure.is_none(), depends_on, conflict, failure })
    }

    /// The next entry is a write-set or total-order statement whose bytes cannot be read: it fails.
    ///
    /// Not for one whose *pieces* are missing: its keys are all here, and whether the pieces are depends on where the
    /// own log begins, on which no verdict may depend. Certify it, and look for the pieces only to deliver it.
    ///
    /// # Errors
    /// [`CertifyError`], as for [`Certifier::certify`].
    pub fn void(&mut self, seqno: Seqno) -> Result<Certification, CertifyError> {
        self.refuse(seqno, Failure::Malformed)
    }

    /// The next entry is a write-set or total-order statement that fails for a reason that lies outside of it.
    ///
    /// # Errors
    /// [`CertifyError`], as for [`Certifier::certify`].
    pub fn refuse(&mut self, seqno: Seqno, why: Failure) -> Result<Certification, CertifyError> {
        let recorded = self.next(seqno)?;
        let failure = self.settle(seqno, recorded, Some(why), true, seqno)?;
        let depends_on = self.trim.max(self.base).max(self.barrier).min(seqno - 1);
        Ok(Certification { pass: failure.is_none(), depends_on, conflict: None, failure })
    }

    /// The next entry is a view: everything after it depends on it, and it on everything before. A view may leave
    /// seqnos out.
    ///
    /// # Errors
    /// [`CertifyError::Order`].
    pub fn barrier(&mut self, seqno: Seqno) -> Result<Certification, CertifyError> {
        if seqno <= self.last {
            return Err(CertifyError::Order { seqno, last: self.last });
        }
        if seqno > self.last + 1 {
            self.gaps.push((self.last, seqno));
        }
        self.last = seqno;
        while self.recorded_failures.front().is_some_and(|recorded| *recorded <= seqno) {
            self.recorded_failures.pop_front();
        }
        self.barrier = seqno;
        Ok(Certification { pass: true, depends_on: seqno - 1, conflict: None, failure: None })
    }

    /// Applies a trim mark, and checks its verdicts against our own. Keys at or below the mark no longer count. Later
    /// write-sets and [`Certifier::forget`] remove them in small steps.
    ///
    /// # Errors
    /// [`CertifyError`]: this member cannot go on with this log.
    pub fn trim(&mut self, mark: &TrimMark) -> Result<(), CertifyError> {
        if mark.verdicts_to > self.last {
            return Err(CertifyError::Mark("tells verdicts of what comes after it"));
        }
        if mark.trim > mark.verdicts_to.max(self.trim) {
            return Err(CertifyError::Mark("trims what it does not judge"));
        }
        if !mark.failed.is_sorted_by(|a, b| a < b)
            || mark.failed.last().is_some_and(|f| *f > mark.verdicts_to)
        {
            return Err(CertifyError::Mark("has its verdicts in disorder"));
        }
        // Both sides ascend. Seqnos below the base, and those covered by earlier marks, are not compared.
        let from = self.verdicts_to.max(self.base);
        let mut theirs = mark.failed.iter().copied().filter(|f| *f > from);
        let ours_end = self.failed.partition_point(|f| *f <= mark.verdicts_to);
        let mut ours = self.failed[..ours_end].iter().copied().filter(|f| *f > from);
        loop {
            match (theirs.next(), ours.next()) {
                (None, None) => break,
                (a, b) if a == b => {}
                (Some(a), b) if b.is_none_or(|b| a < b) => {
                    return Err(CertifyError::Diverged { seqno: a, recorded: false });
                }
                (_, Some(b)) => return Err(CertifyError::Diverged { seqno: b, recorded: true }),
                (Some(_), None) => unreachable!("covered by the arm before the last"),
            }
        }
        self.failed.drain(..ours_end);
        self.verdicts_to = self.verdicts_to.max(mark.verdicts_to);
        if mark.trim > self.trim {
            self.trim = mark.trim;
            match self.failpoints.is_active(Failpoint::UnevenTrim) {
                true => {
                    self.index.trim(self.last);
                    self.index.forget(usize::MAX);
                }
                false => self.index.trim(mark.trim),
            }
            self.gaps.retain(|(_, to)| *to > mark.trim);
            self.streams.retain(|_, fragment| *fragment > mark.trim);
        }
        Ok(())
    }

    /// Whether [`Certifier::forget`] has something to do.
    pub fn is_to_forget(&self) -> bool {
        self.index.is_to_forget()
    }

    /// Gives back the memory of up to `most` keys at or below the trim mark. No verdict depends on it.
    pub fn forget(&mut self, most: usize) {
        self.index.forget(most);
    }

    /// The mark that the leader should append, if any. `min_finished` is the lowest seqno that any connected member
    /// reports to have finished; `tail` is the state after the last entry of the leader's own log.
    ///
    /// There is no mark while `tail` contains one that is not certified here yet. A new mark would lack the verdicts up to
    /// that one's place, and joiners rely on them.
    pub fn next_trim(
        &self,
        min_finished: Seqno,
        limits: &TrimLimits,
        tail: &StateSnapshot,
    ) -> Option<TrimMark> {
        if tail.trim != self.trim || tail.verdicts_to != self.verdicts_to || self.last < self.recorded_to {
            return None;
        }
        if self.verdicts_to < self.base {
            // Failures between the last mark and the log's first entry are unknown here. By the rule in the module
            // documentation, only a log without two marks, which begins with the history, gets here, or a faulty one.
            return None;
        }
        let window = i64::try_from(limits.max_window).unwrap_or(i64::MAX);
        let trim = min_finished.max(self.last.saturating_sub(window)).min(self.last);
        let least = i64::try_from(limits.min_advance.max(1)).unwrap_or(i64::MAX);
        if trim.saturating_sub(self.trim) < least {
            return None;
        }
        Some(TrimMark { trim, verdicts_to: self.last, failed: self.failed.clone() })
    }

    /// This member's own verdicts on the seqnos above `after`, the `verdicts_to` of the last mark, up to `to`.
    pub fn verdicts(&self, after: Seqno, to: Seqno) -> Verdicts {
        if to > self.last || after > self.verdicts_to {
            return Verdicts::NotYet;
        }
        if after < self.verdicts_to.max(self.base) {
            return Verdicts::Unknown;
        }
        let failed = &self.failed[..self.failed.partition_point(|f| *f <= to)];
        let bytes: Vec<u8> = failed.iter().flat_map(|seqno| seqno.to_le_bytes()).collect();
        Verdicts::Known(xxhash_rust::xxh3::xxh3_64(&bytes).max(1))
    }

    /// The last seqno that went through.
    pub fn position(&self) -> Seqno {
        self.last
    }

    /// The trim mark: a write-set whose origin had seen less fails.
    pub fn trim_mark(&self) -> Seqno {
        self.trim
    }

    /// How many keys the index holds (`wsrep_cert_index_size`).
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether the index is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many seqnos lie between the trim mark and the last one.
    pub fn window(&self) -> u64 {
        self.last.saturating_sub(self.trim.max(self.base)).max(0) as u64
    }

    /// Steps to this seqno and returns the verdict of the trim marks on it.
    fn next(&mut self, seqno: Seqno) -> Result<Option<bool>, CertifyError> {
        if Some(seqno) != self.last.checked_add(1) {
            return Err(CertifyError::Order { seqno, last: self.last });
        }
        self.last = seqno;
        if seqno > self.recorded_to {
            return Ok(None);
        }
        let failed = self.recorded_failures.front() == Some(&seqno);
        if failed {
            self.recorded_failures.pop_front();
        }
        Ok(Some(!failed))
    }

    /// Combines the verdict of trim marks with our own.
    fn settle(
        &mut self,
        seqno: Seqno,
        recorded: Option<bool>,
        found: Option<Failure>,
        certain: bool,
        last_seen: Seqno,
    ) -> Result<Option<Failure>, CertifyError> {
        let failure = match recorded {
            Some(recorded) if certain && recorded != found.is_none() => {
                return Err(CertifyError::Diverged { seqno, recorded });
            }
            Some(_) if certain => found,
            Some(recorded) => (!recorded).then_some(Failure::Recorded),
            None if certain => found,
            None => return Err(CertifyError::Unknown { seqno, last_seen, base: self.base }),
        };
        if failure.is_some() {
            self.failed.push(seqno);
        }
        Ok(failure)
    }

    /// Keeps the last fragment of each open streaming transaction.
    fn follow_stream(&mut self, set: &WriteSet, seqno: Seqno) {
        let meta = &set.meta;
        let name = (meta.source, meta.trx);
        let ends = meta.has(flags::TRX_END | flags::ROLLBACK);
        if meta.has(flags::ISOLATION) || (ends && meta.has(flags::TRX_START)) {
            return;
        }
        if ends {
            self.streams.remove(&name);
        } else {
            self.streams.insert(name, seqno);
        }
    }
}

#[cfg(test)]
mod tests;
