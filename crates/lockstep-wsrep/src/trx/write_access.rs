//! Whether a client may write on this member.

use crate::host::Host;
use crate::sync::lock;
use lockstep_abi::Status;
use lockstep_node::{LocalState, Node};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// At most one line about rejected writes in this time,
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// and in this time while there is no leader: the client must hear of the leader as soon as there is one.
const LOG_INTERVAL_NO_LEADER: Duration = Duration::from_secs(1);

/// The kinds of writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Write {
    /// Rows.
    Rows,
    /// A statement in total order.
    Statement,
}

/// See the module.
#[derive(Default)]
pub(crate) struct WriteAccess {
    /// When a rejection was last logged, by [`Write`].
    logged: Mutex<[Option<Instant>; 2]>,
}

/// # Errors
/// The status to return if this member's state does not permit writes.
pub(crate) fn check_state(state: LocalState) -> Result<(), Status> {
    match state {
        LocalState::Joined | LocalState::Synced | LocalState::Donor => Ok(()),
        LocalState::Initialized | LocalState::Joining => Err(Status::CONN_FAIL),
        LocalState::Error => Err(Status::NODE_FAIL),
    }
}

impl WriteAccess {
    /// Checks this member's state and its role. Under a weak policy only the leader's server may write; a write-set that
    /// another member sends nevertheless fails certification on every member. A member whose apply is held back may not
    /// write either: its commits would wait behind the held-back entries.
    ///
    /// # Errors
    /// The status to return.
    pub(crate) fn check(
        &self,
        host: &Host,
        node: Option<&Node>,
        state: LocalState,
        write: Write,
    ) -> Result<(), Status> {
        check_state(state)?;
        let may = |node: &Node| node.may_originate() && !node.is_held_back();
        let Some(node) = node.filter(|node| !may(node)) else { return Ok(()) };
        let held_back = node.is_held_back();
        if !held_back {
            node.note_refused();
        }
        let status = node.status();
        let leader = &status.cluster.leader;
        if !held_back && status.leads() {
            // Leadership was just transferred, and the published status is older: the next line names the new leader.
            return Err(Status::NOT_ALLOWED);
        }
        if self.is_due(write, !leader.is_empty(), Instant::now()) {
            let text = if held_back { held_back_text(node) } else { not_leader_text(node, leader) };
            host.log.warn(match write {
                Write::Rows => text,
                // The server has no other error for a statement without a place in total order.
                Write::Statement => format!(
                    "{text}. A client whose statement (CREATE, ALTER, GRANT ...) is rejected for this reason gets \
                     error 1205, a lock wait timeout. There was no lock wait, and a retry on this server will fail, too"
                ),
            });
        }
        // Not a status for which the server repeats the statement, or reports a deadlock.
        Err(Status::NOT_ALLOWED)
    }

    /// Whether a rejection is to be logged now.
    fn is_due(&self, write: Write, has_leader: bool, now: Instant) -> bool {
        let mut all = lock(&self.logged);
        let logged = &mut all[write as usize];
        if logged.is_some_and(|at| now.duration_since(at) <= LOG_INTERVAL) {
            return false;
        }
        *logged = if has_leader { Some(now) } else { now.checked_sub(LOG_INTERVAL - LOG_INTERVAL_NO_LEADER) };
        true
    }
}

fn held_back_text(node: &Node) -> String {
    // The leader under a weak policy cannot send its clients elsewhere: the other members send theirs here.
    let elsewhere =
        if node.may_originate() && !node.policy().is_weak() { "write on another member, or " } else { "" };
    format!(
        "this server rejects writes: an apply hold (apply.paused, apply.delay, apply.until) keeps entries from it, \
         and a commit would wait behind them; {elsewhere}SET GLOBAL wsrep_provider_options = \
         'apply.paused=no; apply.delay=0; apply.until=none'"
    )
}

fn not_leader_text(node: &Node, leader: &str) -> String {
    let policy = node.policy().name();
    let leader = match leader.is_empty() {
        true => "the leader may write, and there is none at present: retry on the new leader".to_owned(),
        false => format!("the leader, {leader}, may write: connect to it"),
    };
    format!(
        "this server rejects writes: under commit.policy = {policy} only {leader}. Under commit.policy = quorum, \
         which has another guarantee, every member accepts writes"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_are_logged_at_intervals() {
        let access = WriteAccess::default();
        let start = Instant::now() + Duration::from_secs(60);
        let at = |ms| start + Duration::from_millis(ms);
        assert!(access.is_due(Write::Rows, true, at(0)));
        assert!(!access.is_due(Write::Rows, true, at(9_999)));
        assert!(access.is_due(Write::Statement, true, at(9_999)), "an interval of its own");
        assert!(access.is_due(Write::Rows, false, at(10_001)));
        assert!(!access.is_due(Write::Rows, true, at(11_000)));
        assert!(access.is_due(Write::Rows, true, at(11_002)), "a leader may have been elected");
    }
}
