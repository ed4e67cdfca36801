//! Applying write-sets: applier threads, commit order, dependencies between write-sets.

pub(crate) mod applier;
pub(crate) mod blocked_time;
pub(crate) mod commit_barrier;
pub(crate) mod commit_dependency;
pub(crate) mod commit_order;
pub(crate) mod finished;
pub(crate) mod remote;
pub(crate) mod remote_turn;
pub(crate) mod seqno_limit;
pub(crate) mod sequence;
pub(crate) mod vote;
