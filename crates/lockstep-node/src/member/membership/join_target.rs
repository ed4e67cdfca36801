//! The join target: the log that a member without one is copying.
//!
//! The member reads that log from its beginning, which may be of a history before an operator's branches
//! (`pc.bootstrap`). Until the last branch has arrived, its own log looks like one of those left behind, and the
//! members of the target log seem to have left it. So the member remembers whose log it takes, and introduces itself as
//! a member without a log meanwhile. It is not one of that log's members yet either.

use crate::member::membership::admission::Admission;
use crate::wire::Hello;
use lockstep_core::Uuid;
use lockstep_core::raft::Raft;

/// A log: its history, and its log id.
type Log = (Uuid, Uuid);

fn own_log(raft: &Raft) -> Option<Log> {
    let tail = raft.tail_state();
    raft.has_log().then_some((tail.history, tail.log_id))
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct JoinTarget {
    log: Option<Log>,
}

impl JoinTarget {
    /// The log that this member reads, as long as its own part of it is of an earlier history.
    fn being_read(&self, raft: &Raft) -> Option<Log> {
        let (target, own) = (self.log?, own_log(raft)?);
        (own != target && raft.membership().get(&raft.id()).is_none()).then_some(target)
    }

    /// The log that this member names in its introduction.
    pub(in crate::member) fn announced_log(&self, raft: &Raft) -> Option<Log> {
        if self.being_read(raft).is_some() { None } else { own_log(raft) }
    }

    /// A connection was accepted: without a log of its own, this member takes the peer's. A branch of the join target
    /// replaces it.
    pub(in crate::member) fn follow(&mut self, raft: &Raft, hello: &Hello) {
        let theirs = (hello.history, hello.log_id);
        let follows = self.being_read(raft).is_some_and(|target| hello.parents.contains(&target));
        if !hello.log_id.is_nil() && (follows || own_log(raft).is_none()) {
            self.log = Some(theirs);
        }
    }

    /// While this member reads a log: whether this peer is of it. `None`: it reads none, and logs are to be compared.
    pub(in crate::member) fn admit(&self, raft: &Raft, hello: &Hello) -> Option<Result<(), Admission>> {
        let target = self.being_read(raft)?;
        let of_it = hello.log_id.is_nil()
            || (hello.history, hello.log_id) == target
            || hello.parents.contains(&target);
        Some(if of_it {
            Ok(())
        } else {
            Err(Admission::Beside(format!(
                "the log of {} (history {}) is not the one that this member reads to join (history {}): an operator has \
                 made one go on without the other. If the other is right, start this member again while the members of \
                 the one that it reads are stopped",
                hello.name, hello.history, target.0
            )))
        })
    }
}
