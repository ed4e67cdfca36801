//! Causal reads: a read must see every transaction that was acknowledged before it began. The leader names the index that
//! must have been delivered here first.

use lockstep_core::raft::Raft;
use lockstep_core::{Index, Micros, Term};

/// A causal read under way.
#[derive(Debug)]
struct CausalRead {
    id: u64,
    /// The context of the question; `None` until a leader is known to ask.
    context: Option<u64>,
    /// The term in which the leader was asked.
    term: Term,
    /// The index that must be delivered first, once known.
    index: Option<Index>,
}

/// See the module.
#[derive(Debug, Default)]
pub(in crate::member) struct CausalReads {
    reads: Vec<CausalRead>,
}

impl CausalReads {
    /// Begins a read.
    pub(in crate::member) fn begin(&mut self, raft: &mut Raft, now: Micros, id: u64) {
        let (context, term) = (raft.read_index(now), raft.term());
        self.reads.push(CausalRead { id, context: Some(context), term, index: None });
    }

    /// The thread of this read waits no longer.
    pub(in crate::member) fn cancel(&mut self, id: u64) {
        self.reads.retain(|read| read.id != id);
    }

    /// Whether no read is under way.
    pub(in crate::member) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// The answer to a question: the index, or `None` if there was no leader to answer.
    pub(in crate::member) fn answered(
        &mut self,
        raft: &mut Raft,
        now: Micros,
        context: u64,
        index: Option<Index>,
    ) {
        for read in self.reads.iter_mut().filter(|read| read.context == Some(context)) {
            match index {
                Some(_) => read.index = index,
                None => read.context = None,
            }
        }
        self.ask_again(raft, now);
    }

    /// Asks the leader about the reads whose question failed, as soon as there is one.
    pub(in crate::member) fn ask_again(&mut self, raft: &mut Raft, now: Micros) {
        if raft.leader().is_none() {
            return;
        }
        for read in self.reads.iter_mut().filter(|read| read.context.is_none()) {
            (read.context, read.term) = (Some(raft.read_index(now)), raft.term());
        }
    }

    /// Removes the reads whose index lies below `next`, the next index to deliver, and returns their ids. Asks a new leader
    /// about the others: the old leader may have named an entry that was lost with it.
    pub(in crate::member) fn take_ready(&mut self, raft: &mut Raft, now: Micros, next: Index) -> Vec<u64> {
        let mut ready = Vec::new();
        self.reads.retain(|read| {
            let is_ready = read.index.is_some_and(|index| next > index);
            if is_ready {
                ready.push(read.id);
            }
            !is_ready
        });
        let term = raft.term();
        if raft.leader().is_some() {
            for read in self.reads.iter_mut().filter(|read| read.term != term && read.index.is_some()) {
                *read = CausalRead { id: read.id, context: Some(raft.read_index(now)), term, index: None };
            }
        }
        ready
    }

    /// Removes all reads, and returns their ids.
    pub(in crate::member) fn take_all(&mut self) -> Vec<u64> {
        self.reads.drain(..).map(|read| read.id).collect()
    }

    #[cfg(test)]
    pub(in crate::member) fn first_index(&self) -> Option<Index> {
        self.reads.first().and_then(|read| read.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::harness::{context, leaderless};
    use lockstep_core::raft::Output;

    #[test]
    fn failed_read_is_asked_again_when_a_leader_is_known() {
        let (mut alone, mut leads, mut reads) = (leaderless(), context(), CausalReads::default());
        reads.begin(&mut alone, 0, 7);
        let failed = alone.drain(0).into_iter().find_map(|output| match output {
            Output::ReadFailed { context } => Some(context),
            _ => None,
        });
        reads.answered(&mut alone, 0, failed.unwrap(), None);
        assert!(alone.drain(0).is_empty(), "there is nobody to ask");
        assert_eq!(reads.reads[0].context, None);
        let (now, index) = (leads.now(), 5);
        reads.ask_again(&mut leads.raft, now);
        let question = reads.reads[0].context.unwrap();
        reads.answered(&mut leads.raft, now, question, Some(index));
        assert!(reads.take_ready(&mut leads.raft, now, index).is_empty());
        assert_eq!(reads.take_ready(&mut leads.raft, now, index + 1), [7]);
    }

    #[test]
    fn cancelled_read_is_not_answered() {
        let (mut ctx, mut reads) = (context(), CausalReads::default());
        let now = ctx.now();
        reads.begin(&mut ctx.raft, now, 1);
        reads.begin(&mut ctx.raft, now, 2);
        reads.cancel(1);
        assert_eq!(reads.take_all(), [2]);
    }
}
