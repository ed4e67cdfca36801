//! Requests of operators: commands, barriers, policies, and reports.

pub(in crate::member) mod barrier;
pub(in crate::member) mod committed_position;
pub(in crate::member) mod operator;
pub(in crate::member) mod policy;
pub(in crate::member) mod wait_report;
