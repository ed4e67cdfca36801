//! Raft's safety properties, checked after each round whatever a scenario expects.

use lockstep_core::raft::{Raft, Role};
use lockstep_core::{Entry, Index, Term};
use std::collections::BTreeMap;

/// What all members together have shown so far.
#[derive(Default)]
pub(crate) struct Checks {
    leaders: BTreeMap<Term, usize>,
    committed: BTreeMap<Index, Entry>,
}

impl Checks {
    /// Looks at a member after a round.
    ///
    /// # Panics
    /// If a term has two leaders, or two members have committed different entries at one index.
    pub(crate) fn look(&mut self, n: usize, raft: &Raft) {
        if raft.role() == Role::Leader {
            let leader = *self.leaders.entry(raft.term()).or_insert(n);
            assert_eq!(leader, n, "two leaders in term {}", raft.term());
        }
        assert!(raft.persisted() <= raft.last_index() && raft.deliverable() <= raft.commit());
        for index in raft.first_index()..=raft.commit() {
            let Some(entry) = raft.entry(index) else { continue };
            let known = self.committed.entry(index).or_insert_with(|| entry.clone());
            assert_eq!(known, entry, "member {n} committed another entry at {index}");
        }
    }
}
