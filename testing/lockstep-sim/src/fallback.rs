//! Semisync's fallback: a leader goes on without acks only after it has waited for them for `commit.timeout`, and comes back by
//! itself.
//!
//! The checkers do not know which acks the core has received. But they know since when an unanswered entry has been on the
//! leader's own disk: a fallback before `commit.timeout` from then is a violation.

use crate::history::{Violation, hold};
use crate::profile::MS;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::raft::{Raft, Role};
use lockstep_core::{Index, Micros, Term};
use std::collections::VecDeque;

/// Entries that come so close to each other, as a part of the timeout, count as one.
const GRAIN: Micros = 64;
/// A timeout that acks keep in a calm world, whatever its lines and disks.
const AMPLE: Micros = 500 * MS;

/// The state of a process in the term that it leads.
#[derive(Debug, Default)]
pub(crate) struct Fallback {
    term: Term,
    /// At the end of its last round.
    fallen: bool,
    policy_index: Index,
    /// Its persisted indices over time, by its own clock, without answered entries.
    on_disk: VecDeque<(Index, Micros)>,
}

/// Whether this policy may fall back at all.
fn falls_back(policy: Policy) -> bool {
    policy.kind == PolicyKind::Semisync && policy.timeout > 0
}

impl Fallback {
    /// The end of a round. Whether the leader has fallen back in it.
    pub(crate) fn round_ends(
        &mut self,
        name: &dyn std::fmt::Display,
        raft: &Raft,
        local: Micros,
    ) -> Result<bool, Violation> {
        if raft.role() != Role::Leader {
            return Ok(false);
        }
        if self.term != raft.term() {
            *self = Fallback { term: raft.term(), ..Fallback::default() };
        }
        while self.on_disk.front().is_some_and(|(index, _)| *index <= self.policy_index) {
            self.on_disk.pop_front();
        }
        let fallen = raft.has_fallen_back();
        let falls = fallen && !std::mem::replace(&mut self.fallen, fallen);
        if falls {
            let policy = raft.committed_state().policy;
            let since = self.on_disk.front().map(|(_, since)| *since);
            let waited = since.map_or(0, |since| local.saturating_sub(since));
            hold!(
                falls_back(policy) && waited >= policy.timeout - policy.timeout / GRAIN,
                "semisync waits for commit.timeout before it falls back",
                "{name} falls back after {waited} us, its disk has {}, policy_index {}: {policy:?}",
                raft.persisted(),
                self.policy_index
            );
        }
        self.fallen = fallen;
        if self.on_disk.back().is_none_or(|(index, _)| *index < raft.persisted()) {
            self.on_disk.push_back((raft.persisted(), local));
        }
        self.policy_index = raft.policy_index();
        Ok(falls)
    }
}

/// Whether all that a leader has waited for is there, and it has not come back yet.
pub(crate) fn stays_away(leader: &Raft) -> bool {
    let policy = leader.committed_state().policy;
    leader.has_fallen_back() && falls_back(policy) && policy.timeout >= AMPLE
}
