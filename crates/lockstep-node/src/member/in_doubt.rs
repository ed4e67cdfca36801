//! A member that was killed inside a statement of which nobody can say whether its database has it
//! ([`crate::ConnectArgs::in_doubt`]).
//!
//! Where another member knows, its state is taken. Where all were killed in that very statement nobody has acknowledged
//! it, and one of them must go on, so that the others can take its state: whatever the statement did there is what it
//! did.

use super::{Level, Member, Micros};
use crate::api::LocalState;
use lockstep_core::Seqno;

/// So long after all members are there: one that knows says so at once.
const PATIENCE: Micros = 3_000_000;

/// What a member in doubt does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doubt {
    /// Nothing yet.
    Wait,
    /// It takes the state of one that knows.
    Take,
    /// It delivers the statement.
    GoOn,
}

impl Member {
    /// For whom of all it is that a member in doubt waits, and what to do.
    pub(super) fn absent_in_doubt(&self) -> String {
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

    /// In the view, with a position before the statement at `seqno`.
    pub(super) fn settle_doubt(&mut self, seqno: Seqno) -> Doubt {
        if self.peers.values().any(|p| !p.hello.arbitrator && p.health.is_some_and(|h| h.has_state)) {
            return Doubt::Take;
        }
        let (membership, view) = (self.raft.membership(), self.raft.committed_state().view.clone());
        let all = membership.members.iter().filter(|m| !m.arbitrator).all(|m| {
            view.position(&m.id).is_some()
                && (m.id == self.me.id || self.peers.get(&m.id).is_some_and(|p| p.health.is_some()))
        });
        if !all {
            self.doubt_since = None;
            return Doubt::Wait;
        }
        let since = *self.doubt_since.get_or_insert(self.now);
        if self.now.saturating_sub(since) < PATIENCE {
            return Doubt::Wait;
        }
        // Views are the same on all of them: one goes on. Not one that has no data at all.
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
