//! What an operator sees: status variables, counters, log lines, and reports of long waits.

pub(crate) mod counters;
pub(crate) mod log;
pub(crate) mod stats;
pub(crate) mod waits;
