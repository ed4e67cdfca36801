//! Invariants, checked at every step against the whole history.
//!
//! Two kinds of rules. *Outcomes* are what users were promised: one order, nothing committed changes or disappears,
//! every acknowledged proposal is there exactly once, reads see what was acknowledged. *Promises* are what members
//! owe each other for the outcomes to hold (a vote that is answered is on the disk, an entry that counts as committed
//! is on the disks of a majority): they are broken earlier and oftener, so a fault is found sooner by them. They can
//! be switched off, to show that the histories are hard enough for the outcomes alone to tell.

use crate::mirror::{Mark, Mirror};
use crate::overtaken::{Fragment, Views, is_marked};
use crate::reference::Reference;
use crate::trace::hash_bytes;
use lockstep_core::members::Membership;
use lockstep_core::snapshot::StateSnapshot;
use lockstep_core::{Entry, Index, MemberId, Seqno, Term, Uuid, codec};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::fmt;

/// Of so many elections the leaders' logs are remembered: an ack is of the term that its sender is in.
const ELECTIONS: usize = 16;

/// A broken rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Violation {
    /// The rule's short name.
    pub(crate) rule: &'static str,
    /// The violation.
    pub(crate) what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)
    }
}

/// Fails with a [`Violation`] unless the condition holds.
macro_rules! hold {
    ($condition:expr, $rule:literal, $($what:tt)+) => {
        if !$condition {
            return Err($crate::history::Violation { rule: $rule, what: format!($($what)+) });
        }
    };
}
pub(crate) use hold;

/// The result of a check.
pub(crate) type Check = Result<(), Violation>;

/// An entry that somebody has counted as committed.
#[derive(Clone, Copy, Debug)]
struct Fixed {
    mark: Mark,
    /// The term of whoever saw it committed first: leaders of later terms must hold it.
    seen_in: Term,
    seqno: Seqno,
    /// Of the folded state after it.
    state_hash: u64,
    /// Its certification verdict, if it has one.
    pass: Option<bool>,
}

/// An entry that somebody has put in a log.
#[derive(Debug)]
struct Placed {
    hash: u64,
    prev_term: Term,
    /// Until it is committed.
    entry: Option<Entry>,
}

/// The member that first saw entries as committed, and its knowledge then.
#[derive(Debug)]
pub(crate) struct Witness<'a> {
    /// The member.
    pub(crate) id: MemberId,
    /// Its terms before and after the round in which it saw this.
    pub(crate) terms: (Term, Term),
    /// The memberships that were in force for it in that round.
    pub(crate) memberships: &'a [std::sync::Arc<Membership>],
    /// Its log in memory.
    pub(crate) log: &'a Mirror,
}

/// All that has been seen in one simulation.
#[derive(Debug)]
pub(crate) struct History {
    promises: bool,
    leaders: BTreeMap<Term, (MemberId, u64)>,
    /// The logs of the last of them when they were elected.
    elected_with: BTreeMap<Term, Mirror>,
    votes: FxHashMap<(MemberId, Term), MemberId>,
    placed: FxHashMap<(Index, Term), Placed>,
    /// `fixed[i]` is index i + 1.
    fixed: Vec<Fixed>,
    /// The fold of `fixed`.
    state: StateSnapshot,
    reference: Reference,
    views: Views,
}

/// The hash of a snapshot without names and addresses: those come from entries, which are compared themselves.
fn state_hash(state: &StateSnapshot) -> u64 {
    let StateSnapshot {
        index,
        term,
        seqno,
        history,
        log_id,
        membership,
        membership_index,
        view,
        view_seqno,
        policy,
        trim,
        trim_previous,
        verdicts_to,
        sessions,
        leader,
        parents,
    } = state;
    let mut w = codec::Writer::with_capacity(64);
    policy.encode(&mut w);
    let mut hash = hash_bytes(0, &w.into_bytes());
    let mut mix = |word: u64| hash = (hash ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25).rotate_left(29);
    let id = |id: &Uuid| {
        let (high, low) = id.0.split_at(8);
        let word = |half: &[u8]| half.iter().fold(0u64, |all, byte| all << 8 | u64::from(*byte));
        word(high) ^ word(low).rotate_left(32)
    };
    for word in [*index, *term, *membership_index, view.number, id(history), id(log_id), id(leader)] {
        mix(word);
    }
    for seqno in [*seqno, *view_seqno, *trim, *trim_previous, *verdicts_to] {
        mix(seqno as u64);
    }
    for member in &membership.members {
        mix(id(&member.id));
        mix(member.role as u64);
    }
    for member in &view.members {
        mix(id(&member.id));
        mix(id(&member.view_uuid));
    }
    for (member, session) in sessions {
        mix(id(member));
        mix(session.incarnation);
        mix(session.number);
    }
    for parent in parents {
        mix(id(&parent.log_id));
        mix(parent.index);
    }
    hash
}

impl History {
    /// Nothing seen; the log begins after this state. `promises`: check the inner rules too.
    pub(crate) fn new(genesis: StateSnapshot, promises: bool) -> History {
        History {
            promises,
            leaders: BTreeMap::new(),
            elected_with: BTreeMap::new(),
            votes: FxHashMap::default(),
            placed: FxHashMap::default(),
            fixed: Vec::new(),
            state: genesis,
            reference: Reference::default(),
            views: Views::default(),
        }
    }

    /// The reference verdict on the committed write-set or statement with this seqno.
    pub(crate) fn verdict(&self, seqno: Seqno) -> Option<bool> {
        let at = self.fixed.partition_point(|f| f.seqno < seqno);
        self.fixed[at..].iter().take_while(|f| f.seqno == seqno).find_map(|f| f.pass)
    }

    /// Whether the inner rules are checked too.
    pub(crate) fn promises(&self) -> bool {
        self.promises
    }

    /// The highest index that anybody has seen committed.
    pub(crate) fn committed(&self) -> Index {
        self.fixed.len() as u64
    }

    /// The seqno at that index.
    pub(crate) fn seqno(&self) -> Seqno {
        self.state.seqno
    }

    /// The fold of all that is committed.
    pub(crate) fn state(&self) -> &StateSnapshot {
        &self.state
    }

    /// How many leaders there have been.
    pub(crate) fn elections(&self) -> usize {
        self.leaders.len()
    }

    fn fixed_at(&self, index: Index) -> Option<&Fixed> {
        self.fixed.get(usize::try_from(index.checked_sub(1)?).ok()?)
    }

    /// The committed entry at this index, if there is one.
    pub(crate) fn mark_at(&self, index: Index) -> Option<Mark> {
        self.fixed_at(index).map(|fixed| fixed.mark)
    }

    /// A member leads: nobody else ever did in this term, and it holds all that was committed before.
    pub(crate) fn leads(&mut self, id: MemberId, life: u64, term: Term, log: &Mirror) -> Check {
        let first = *self.leaders.entry(term).or_insert((id, life));
        hold!(
            first == (id, life),
            "one leader a term",
            "{id:?} (life {life}) leads term {term}, as did {:?} (life {})",
            first.0,
            first.1
        );
        if self.promises {
            self.elected_with.insert(term, log.clone());
            if self.elected_with.len() > ELECTIONS {
                self.elected_with.pop_first();
            }
        }
        // By log matching it holds what precedes the last one, if it holds that.
        let last = self.fixed.iter().rposition(|f| f.seen_in < term);
        if let Some(at) = last {
            let index = at as u64 + 1;
            let Fixed { mark, seen_in, .. } = self.fixed[at];
            hold!(
                index <= log.base || log.get(index) == Some(mark),
                "a leader holds all that was committed",
                "{id:?} leads term {term} with {:?} at index {index}, its log ends at {}; committed in term \
                 {seen_in}: {mark:?}",
                log.get(index),
                log.last()
            );
        }
        Ok(())
    }

    /// A member tells what it has, in this term, of the log of the term's leader: then it has that, up to `index`. All that
    /// the leader has added since its election is of its term, and by log matching the last entry speaks for all before it.
    pub(crate) fn acks(&self, id: MemberId, term: Term, index: Index, log: &Mirror) -> Check {
        let Some(elected) = self.elected_with.get(&term) else { return Ok(()) };
        let theirs = if index <= elected.last() { elected.term_at(index) } else { Some(term) };
        let mine = log.term_at(index);
        // Entries below a member's snapshot are committed.
        hold!(
            index < log.base || index < elected.base || mine == theirs,
            "an ack is about the leader's log",
            "{id:?} says in term {term} that it has up to {index}: of term {mine:?}, the leader's is of {theirs:?}"
        );
        Ok(())
    }

    /// A member voted, and said so.
    pub(crate) fn votes(&mut self, id: MemberId, term: Term, candidate: MemberId) -> Check {
        let first = *self.votes.entry((id, term)).or_insert(candidate);
        hold!(
            first == candidate,
            "one vote a term",
            "{id:?} voted for {candidate:?} in term {term}, having voted for {first:?}"
        );
        Ok(())
    }

    /// A member puts an entry in its log, after one of `prev_term`. The same place and term mean the same entry and
    /// the same entries before it, everywhere.
    pub(crate) fn places(&mut self, id: MemberId, entry: &Entry, mark: Mark, prev_term: Term) -> Check {
        let committed = self.committed();
        let place = self.placed.entry((entry.index, entry.term)).or_insert_with(|| Placed {
            hash: mark.hash,
            prev_term,
            entry: (entry.index > committed).then(|| entry.clone()),
        });
        hold!(
            place.hash == mark.hash && place.prev_term == prev_term,
            "logs match",
            "{id:?} places another entry at index {} of term {} (term before it {prev_term}, elsewhere {})",
            entry.index,
            entry.term,
            place.prev_term
        );
        Ok(())
    }

    /// A member counts all up to `to` as committed, before it was up to `from`. `on_disk` says how many voters of a
    /// membership have an entry on disk.
    pub(crate) fn commits(
        &mut self,
        witness: &Witness<'_>,
        from: Index,
        to: Index,
        on_disk: impl Fn(&Membership, Index, Term) -> usize,
    ) -> Check {
        let Witness { id, terms, memberships, log } = witness;
        hold!(
            to <= log.last(),
            "commit within the log",
            "{id:?} commits up to {to}, its log ends at {}",
            log.last()
        );
        for index in from.max(log.base) + 1..=to.min(self.committed()) {
            let (mine, fixed) = (log.get(index), self.fixed[index as usize - 1].mark);
            hold!(
                mine == Some(fixed),
                "a committed entry never changes",
                "{id:?} counts {mine:?} at index {index} as committed, where {fixed:?} was committed"
            );
        }
        if to <= self.committed() {
            return Ok(());
        }
        let top = log.get(to).map_or(0, |m| m.term);
        if self.promises {
            hold!(
                (terms.0..=terms.1).contains(&top),
                "only entries of the own term are counted",
                "{id:?} of terms {terms:?} is the first to count index {to}, of term {top}, as committed"
            );
            let counts: Vec<_> = memberships.iter().map(|m| (on_disk(m, to, top), m.majority())).collect();
            hold!(
                counts.iter().any(|(have, need)| have >= need),
                "committed is on the disks of a majority",
                "{id:?} counts index {to} of term {top} as committed; on disk (has, needs): {counts:?}"
            );
        }
        for index in self.committed() + 1..=to {
            self.fix(id, index, terms.1, log)?;
        }
        Ok(())
    }

    /// One more entry can no longer change.
    fn fix(&mut self, id: &MemberId, index: Index, seen_in: Term, log: &Mirror) -> Check {
        let mark = log.get(index).ok_or_else(|| Violation {
            rule: "commit within the log",
            what: format!(
                "{id:?} commits index {index}, which its log no longer holds and nobody had committed"
            ),
        })?;
        let entry = self.placed.get_mut(&(index, mark.term)).and_then(|p| p.entry.take());
        let entry = entry.ok_or_else(|| Violation {
            rule: "entries come from logs",
            what: format!("{id:?} commits index {index} of term {}, which nobody placed", mark.term),
        })?;
        let pid = entry.proposal;
        if !pid.member.is_nil() {
            hold!(
                self.state.is_next(&pid),
                "sessions are dense",
                "{pid:?} is committed at index {index} after {:?}",
                self.state.sessions.get(&pid.member)
            );
        }
        if let Some(fragment) = Fragment::of(entry.kind, &entry.payload()) {
            hold!(
                is_marked(&entry.payload()) || !self.views.have_ended(fragment),
                "what a view has overtaken fails",
                "{pid:?} at index {index}, {fragment:?}, comes behind a view that has ended its transaction"
            );
        }
        self.state.apply(&entry).map_err(|error| Violation {
            rule: "the log can be folded",
            what: format!("index {index}: {error}: {entry:?}"),
        })?;
        self.views.follow(&entry);
        let state_hash = state_hash(&self.state);
        let pass = self.reference.take(&entry);
        self.fixed.push(Fixed { mark, seen_in, seqno: self.state.seqno, state_hash, pass });
        Ok(())
    }

    /// Requires that a member's snapshot at its commit index equals the history's.
    pub(crate) fn folds(&self, id: MemberId, state: &StateSnapshot) -> Check {
        if let Some(fixed) = self.fixed_at(state.index) {
            hold!(
                fixed.state_hash == state_hash(state),
                "all members fold alike",
                "{id:?} at index {}: {state:?}",
                state.index
            );
        }
        Ok(())
    }

    /// The checkers' own certification and database.
    pub(crate) fn reference(&self) -> &Reference {
        &self.reference
    }

    /// A whole log holds what was committed.
    pub(crate) fn log_holds(&self, id: MemberId, log: &Mirror) -> Check {
        for index in log.base + 1..=log.last().min(self.committed()) {
            let (mine, fixed) = (log.get(index), self.fixed[index as usize - 1].mark);
            hold!(
                mine == Some(fixed),
                "a committed entry never disappears",
                "{id:?} holds {mine:?} at index {index}, committed is {fixed:?}"
            );
        }
        Ok(())
    }
}
