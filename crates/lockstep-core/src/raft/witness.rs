//! Evidence of the other members' disks.
//!
//! A disk that works never goes back: a member's term, and the last entry that it has acknowledged and that is committed,
//! only grow. A member that is behind this after a restart has lost votes or acknowledged entries.
//!
//! An acknowledged entry that is not committed may be truncated, so it is no evidence. A committed one stays in the log of
//! every member that has acknowledged it.

use super::acks::Acks;
use super::local::Local;
use crate::types::*;
use std::collections::BTreeMap;

/// The durable state of a member: its term, and the last entry of its log.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Durable {
    /// The term that the member has entered.
    pub term: Term,
    /// The last entry's term.
    pub last_term: Term,
    /// The last entry's index.
    pub last_index: Index,
}

impl Durable {
    /// Whether a disk that once held `earlier` and holds `self` now has gone back.
    pub fn is_behind(&self, earlier: &Durable) -> bool {
        self.term < earlier.term || self.last_term < earlier.last_term || self.last_index < earlier.last_index
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Witness {
    known: BTreeMap<MemberId, Durable>,
}

impl Witness {
    /// A member has shown that this term is on its disk: it has voted in it, or leads it.
    pub(super) fn note_term(&mut self, local: &Local, from: MemberId, term: Term) {
        if local.is_member(&from) {
            let known = self.known.entry(from).or_default();
            known.term = known.term.max(term);
        }
    }

    /// Notes the acks of this member's term, as far as they are committed. Called before the term ends, and before the
    /// notes are read.
    pub(super) fn note_acks(&mut self, local: &Local, acks: &Acks) {
        self.known.retain(|id, _| local.is_member(id));
        for id in local.other_members() {
            let index = acks.persisted_by(local, &id).min(local.commit());
            let known = self.known.entry(id).or_default();
            if index > known.last_index {
                known.last_index = index;
                known.last_term = known.last_term.max(local.log().term_at(index).unwrap_or(0));
            }
        }
    }

    /// The durable state that a member is known to have had.
    pub(super) fn of(&self, id: &MemberId) -> Durable {
        self.known.get(id).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{leader, member, with_entries};
    use super::*;

    #[test]
    fn only_committed_acks_are_evidence() {
        let (mut local, mut acks, mut witness) =
            (with_entries(leader(3), 4), Acks::new(), Witness::default());
        acks.record(&local, member(2), 1, 4);
        witness.note_acks(&local, &acks);
        assert_eq!(witness.of(&member(2)).last_index, 0, "the entries may be truncated yet");
        local.commit_to(3);
        witness.note_acks(&local, &acks);
        assert_eq!(witness.of(&member(2)), Durable { term: 0, last_term: 1, last_index: 3 });
        assert_eq!(witness.of(&member(3)), Durable::default(), "it has acknowledged nothing");
    }

    #[test]
    fn evidence_never_shrinks() {
        let (mut local, mut acks, mut witness) =
            (with_entries(leader(3), 4), Acks::new(), Witness::default());
        local.commit_to(4);
        acks.record(&local, member(2), 1, 4);
        witness.note_acks(&local, &acks);
        witness.note_term(&local, member(2), 7);
        witness.note_term(&local, member(2), 6);
        acks.clear();
        witness.note_acks(&local, &acks);
        assert_eq!(witness.of(&member(2)), Durable { term: 7, last_term: 1, last_index: 4 });
    }

    #[test]
    fn disk_is_behind_if_term_or_log_is() {
        let earlier = Durable { term: 3, last_term: 2, last_index: 9 };
        assert!(!earlier.is_behind(&earlier));
        assert!(!Durable { term: 4, last_term: 4, last_index: 9 }.is_behind(&earlier));
        assert!(Durable { term: 2, ..earlier }.is_behind(&earlier));
        assert!(Durable { last_term: 1, last_index: 12, ..earlier }.is_behind(&earlier));
        assert!(Durable { last_index: 8, ..earlier }.is_behind(&earlier));
    }
}
