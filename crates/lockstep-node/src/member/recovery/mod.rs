//! Members whose data lack or contradict the log: state transfers, votes on results, in-doubt DDL.

pub(in crate::member) mod ending;
pub(in crate::member) mod in_doubt;
pub(in crate::member) mod transfer;
pub(in crate::member) mod votes;
