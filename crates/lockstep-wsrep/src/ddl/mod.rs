//! Statements in total order (DDL), and their recovery after a crash.

pub(crate) mod ctas_replay;
pub(crate) mod journal;
pub(crate) mod recovery;
pub(crate) mod statement;
