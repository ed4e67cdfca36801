//! Semisync's fallback: a leader goes on without acks only after it has waited for them for `commit.timeout`, and comes back by
//! itself.
//!
//! The checkers do not know which acks the core has received. But they know since when an unanswered entry has been on the
//! leader's own disk: a fallback before `commit.timeout` from then is a violation.

use crate::cluster::Cluster;
use crate::history::{Check, hold};
use crate::machine::{Name, Process};
use crate::profile::MS;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::raft::Role;
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

impl Cluster {
    /// The end of a round.
    pub(crate) fn may_fall_back(&mut self, slot: usize) -> Check {
        let machine = &mut self.machines[slot];
        let local = machine.clock.local(self.now);
        let Some(process) = &mut machine.process else { return Ok(()) };
        let (order, known) = (&process.order, &mut process.fallback);
        if !self.profile.policies || order.role() != Role::Leader {
            return Ok(());
        }
        if known.term != order.term() {
            *known = Fallback { term: order.term(), ..Fallback::default() };
        }
        while known.on_disk.front().is_some_and(|(index, _)| *index <= known.policy_index) {
            known.on_disk.pop_front();
        }
        let fallen = order.has_fallen_back();
        if fallen && !std::mem::replace(&mut known.fallen, fallen) {
            let policy = order.committed_state().policy;
            let since = known.on_disk.front().map(|(_, since)| *since);
            let waited = since.map_or(0, |since| local.saturating_sub(since));
            hold!(
                falls_back(policy) && waited >= policy.timeout - policy.timeout / GRAIN,
                "semisync waits for commit.timeout before it falls back",
                "{} falls back after {waited} us, its disk has {}, policy_index {}: {policy:?}",
                Name(slot),
                order.persisted(),
                known.policy_index
            );
            self.counters.fallbacks += 1;
        }
        known.fallen = fallen;
        if known.on_disk.back().is_none_or(|(index, _)| *index < order.persisted()) {
            known.on_disk.push_back((order.persisted(), local));
        }
        known.policy_index = order.policy_index();
        Ok(())
    }
}

/// Whether all that a leader has waited for is there, and it has not come back yet.
pub(crate) fn stays_away(leader: &Process) -> bool {
    let policy = leader.order.committed_state().policy;
    leader.order.has_fallen_back() && falls_back(policy) && policy.timeout >= AMPLE
}
