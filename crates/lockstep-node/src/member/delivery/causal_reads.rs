//! Causal reads: a read must see every transaction that was acknowledged before it began. The leader names the index that
//! must have been delivered here first.

use lockstep_core::raft::Raft;
use lockstep_core::{Index, Micros, Term};

/// A causal read under way.
#[derive(Debug)]
struct CausalRead {
    id: u64,
    context: u64,
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
        self.reads.push(CausalRead { id, context, term, index: None });
    }

    /// The thread of this read waits no longer.
    pub(in crate::member) fn cancel(&mut self, id: u64) {
        self.reads.retain(|read| read.id != id);
    }

    /// Whether no read is under way.
    pub(in crate::member) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// The answer to a question: the index, or `None` if the leader was lost; then the next one is asked.
    pub(in crate::member) fn answered(
        &mut self,
        raft: &mut Raft,
        now: Micros,
        context: u64,
        index: Option<Index>,
    ) {
        for read in self.reads.iter_mut().filter(|read| read.context == context) {
            match index {
                Some(_) => read.index = index,
                None => (read.context, read.term) = (raft.read_index(now), raft.term()),
            }
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
                *read = CausalRead { id: read.id, context: raft.read_index(now), term, index: None };
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
