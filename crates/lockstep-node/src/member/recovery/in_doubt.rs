//! In-doubt DDL: a member was killed inside a statement, and its database may or may not have it
//! ([`crate::ConnectArgs::in_doubt`]).
//!
//! If another member knows, its state is taken. If all members were killed in that statement, no client got an
//! acknowledgement. Then one of them must go on with its database as it is, and the others take its state.

use crate::api::LocalState;
use crate::member::{Level, Member, Micros};
use lockstep_core::Seqno;

/// How long to wait once all members are present: a member that knows reports at once.
const TIMEOUT: Micros = 3_000_000;

/// The decision of a member in doubt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::member) enum Doubt {
    /// Nothing yet.
    Wait,
    /// Take the state of a member that knows.
    Take,
    /// Execute the statement.
    GoOn,
}

impl Member {
    /// A suffix for the wait report of a member in doubt: the absent members, and the remedy.
    pub(in crate::member) fn absent_in_doubt(&self) -> String {
        let membership = self.raft.membership();
        let absent = membership.members.iter().filter(|m| !m.arbitrator && m.id != self.me.id);
        let names: Vec<&str> =
            absent.filter(|m| !self.peers.contains_key(&m.id)).map(|m| m.name.as_str()).collect();
        match &names[..] {
            [] => String::new(),
            [one] => format!(
                "; {one} is not there: start it, or if it is gone for good: lockstep remove --name {one}"
            ),
            _ => format!(
                "; not there: {}; start them, or lockstep remove --name each that is gone for good",
                names.join(", ")
            ),
        }
    }

    /// Decides on the statement at `seqno`; this member is in the view, with a position before it.
    pub(in crate::member) fn decide_in_doubt(&mut self, seqno: Seqno) -> Doubt {
        if self.peers.values().any(|p| !p.hello.arbitrator && p.health.is_some_and(|h| h.has_state)) {
            return Doubt::Take;
        }
        let (membership, view) = (self.raft.membership(), self.raft.committed_state().view.clone());
        let all = membership.members.iter().filter(|m| !m.arbitrator).all(|m| {
            view.position(&m.id).is_some()
                && (m.id == self.me.id || self.peers.get(&m.id).is_some_and(|p| p.health.is_some()))
        });
        if !all {
            self.in_doubt_since = None;
            return Doubt::Wait;
        }
        let since = *self.in_doubt_since.get_or_insert(self.now);
        if self.now.saturating_sub(since) < TIMEOUT {
            return Doubt::Wait;
        }
        // All members have the same view: the first one goes on, unless it has no data at all.
        let waits =
            |id| self.peers.get(&id).and_then(|p| p.health).is_some_and(|h| h.state == LocalState::Joining);
        let first = view.members.iter().find(|m| m.id == self.me.id || !waits(m.id));
        if first.is_none_or(|m| m.id != self.me.id) {
            return Doubt::Wait;
        }
        self.log(
            Level::Warn,
            format!(
                "all members were killed in the statement at seqno {seqno}, and whether it was done cannot be told: \
                 nobody was told that it was; this member executes it, and the others take its state"
            ),
        );
        Doubt::GoOn
    }
}

#[cfg(test)]
#[path = "in_doubt_tests.rs"]
mod tests;
