//! Which log a member that came without one is on its way to.
//!
//! It reads that log from its beginning, and where an operator has made branches (`pc.bootstrap`) the beginning is of a
//! history before them: until the last of them has come, what this member has does not tell it from the logs that were
//! left behind, and the members of the log that it reads look as if they had left it. So it remembers whose log it took,
//! and introduces itself as one without a log meanwhile, which it as good as is: it is none of that log's members.

use super::Member;
use super::peers::Admission;
use crate::wire::Hello;
use lockstep_core::Uuid;

/// A log: its history, and which one of that history.
type Log = (Uuid, Uuid);

impl Member {
    fn own_log(&self) -> Option<Log> {
        let tail = self.raft.tail_state();
        self.raft.has_log().then_some((tail.history, tail.log_id))
    }

    /// The log that this member reads, while what it has of it is of a history before that log's.
    fn log_of_join_target(&self) -> Option<Log> {
        let toward = self.join_target?;
        let own = self.own_log()?;
        (own != toward && self.raft.membership().get(&self.me.id).is_none()).then_some(toward)
    }

    /// What it tells others of its own log.
    pub(super) fn log_to_tell(&self) -> Option<Log> {
        if self.log_of_join_target().is_some() { None } else { self.own_log() }
    }

    /// A connection has been taken: if this member has no log, this is whose it takes. A branch of that one is as good.
    pub(super) fn note_whose_log(&mut self, hello: &Hello) {
        let theirs = (hello.history, hello.log_id);
        let follows = self.log_of_join_target().is_some_and(|toward| hello.parents.contains(&toward));
        if !hello.log_id.is_nil() && (follows || self.own_log().is_none()) {
            self.join_target = Some(theirs);
        }
    }

    /// While this member reads a log: whether this peer is of it. `None`: it reads none, and logs are to be compared.
    pub(super) fn admit_while_reading(&self, hello: &Hello) -> Option<Result<(), Admission>> {
        let toward = self.log_of_join_target()?;
        let of_it = hello.log_id.is_nil()
            || (hello.history, hello.log_id) == toward
            || hello.parents.contains(&toward);
        Some(if of_it {
            Ok(())
        } else {
            Err(Admission::Beside(format!(
                "the log of {} (history {}) is not the one that this member reads to join (history {}): an operator has \
                 made one go on without the other. If the other is right, start this server again while the servers of \
                 the one that it reads are stopped",
                hello.name, hello.history, toward.0
            )))
        })
    }
}
