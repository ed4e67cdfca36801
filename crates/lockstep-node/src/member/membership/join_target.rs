//! The join target: the log that a member without one is copying.
//!
//! The member reads that log from its beginning, which may be of a history before an operator's branches
//! (`pc.bootstrap`). Until the last branch has arrived, its own log looks like one of those left behind, and the
//! members of the target log seem to have left it. So the member remembers whose log it takes, and introduces itself as
//! a member without a log meanwhile. It is not one of that log's members yet either.

use crate::member::Member;
use crate::member::membership::peers::Admission;
use crate::wire::Hello;
use lockstep_core::Uuid;

/// A log: its history, and its log id.
type Log = (Uuid, Uuid);

impl Member {
    fn own_log(&self) -> Option<Log> {
        let tail = self.raft.tail_state();
        self.raft.has_log().then_some((tail.history, tail.log_id))
    }

    /// The log that this member reads, as long as its own part of it is of an earlier history.
    fn log_of_join_target(&self) -> Option<Log> {
        let target = self.join_target?;
        let own = self.own_log()?;
        (own != target && self.raft.membership().get(&self.me.id).is_none()).then_some(target)
    }

    /// The log that this member names in its introduction.
    pub(in crate::member) fn announced_log(&self) -> Option<Log> {
        if self.log_of_join_target().is_some() { None } else { self.own_log() }
    }

    /// A connection was accepted: without a log of its own, this member takes the peer's. A branch of the join target
    /// replaces it.
    pub(in crate::member) fn note_log_of(&mut self, hello: &Hello) {
        let theirs = (hello.history, hello.log_id);
        let follows = self.log_of_join_target().is_some_and(|target| hello.parents.contains(&target));
        if !hello.log_id.is_nil() && (follows || self.own_log().is_none()) {
            self.join_target = Some(theirs);
        }
    }

    /// While this member reads a log: whether this peer is of it. `None`: it reads none, and logs are to be compared.
    pub(in crate::member) fn admit_while_reading(&self, hello: &Hello) -> Option<Result<(), Admission>> {
        let target = self.log_of_join_target()?;
        let of_it = hello.log_id.is_nil()
            || (hello.history, hello.log_id) == target
            || hello.parents.contains(&target);
        Some(if of_it {
            Ok(())
        } else {
            Err(Admission::Beside(format!(
                "the log of {} (history {}) is not the one that this member reads to join (history {}): an operator has \
                 made one go on without the other. If the other is right, start this server again while the servers of \
                 the one that it reads are stopped",
                hello.name, hello.history, target.0
            )))
        })
    }
}
