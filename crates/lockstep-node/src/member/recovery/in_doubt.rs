//! In-doubt DDL: a member was killed inside a statement, and its database may or may not have it
//! ([`crate::ConnectArgs::in_doubt`]).
//!
//! If another member knows, its state is taken. If all members were killed in that statement, no client got an
//! acknowledgement. Then one of them must go on with its database as it is, and the others take its state.

use crate::api::LocalState;
use crate::member::membership::peers::Peers;
use lockstep_core::Micros;
use lockstep_core::raft::Raft;

/// How long to wait once all members are present: a member that knows reports at once.
const TIMEOUT: Micros = 3_000_000;

/// The decision of a member in doubt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::member) enum InDoubtDecision {
    /// Nothing yet.
    Wait,
    /// Take the state of a member that knows.
    TakeState,
    /// Execute the statement.
    Execute,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct InDoubt {
    /// Since when all members are present and none knows the result.
    since: Option<Micros>,
}

impl InDoubt {
    /// The decision of this member, which is in the committed view, with a position before the statement.
    pub(in crate::member) fn decide(&mut self, now: Micros, raft: &Raft, peers: &Peers) -> InDoubtDecision {
        if peers.values().any(|p| !p.hello().arbitrator && p.has_state()) {
            return InDoubtDecision::TakeState;
        }
        let (membership, view, me) = (raft.membership(), &raft.committed_state().view, raft.id());
        let all = membership
            .members
            .iter()
            .filter(|m| !m.arbitrator)
            .all(|m| view.position(&m.id).is_some() && (m.id == me || peers.health_of(&m.id).is_some()));
        if !all {
            self.since = None;
            return InDoubtDecision::Wait;
        }
        let since = *self.since.get_or_insert(now);
        if now.saturating_sub(since) < TIMEOUT {
            return InDoubtDecision::Wait;
        }
        // All members have the same view: the first one goes on, unless it has no data at all.
        let waits = |id| peers.get(&id).is_some_and(|p| p.state() == Some(LocalState::Joining));
        let first = view.members.iter().find(|m| m.id == me || !waits(m.id));
        if first.is_none_or(|m| m.id != me) { InDoubtDecision::Wait } else { InDoubtDecision::Execute }
    }
}

/// A suffix for the wait report of a member in doubt: the absent members, and the remedy.
pub(in crate::member) fn absent_text(raft: &Raft, peers: &Peers) -> String {
    let membership = raft.membership();
    let absent = membership.members.iter().filter(|m| !m.arbitrator && m.id != raft.id());
    let names: Vec<&str> = absent.filter(|m| !peers.contains_key(&m.id)).map(|m| m.name.as_str()).collect();
    match &names[..] {
        [] => String::new(),
        [one] => {
            format!("; {one} is not there: start it, or if it is gone for good: lockstep remove --name {one}")
        }
        _ => format!(
            "; not there: {}; start them, or lockstep remove --name each that is gone for good",
            names.join(", ")
        ),
    }
}

#[cfg(test)]
#[path = "in_doubt_tests.rs"]
mod tests;
