//! A node: the Raft core with a log, a network and a clock, and the API that front ends call.
//!
//! Start reading at [`Node`], then `member/` (all decisions, without I/O), `io/runtime.rs` (the thread that drives it)
//! and `io/writer.rs` (the thread that owns the disk).
#![forbid(unsafe_code)]

mod allow;
mod api;
mod applier_pool;
mod effect;
#[cfg(test)]
mod fuzz;
mod io;
mod load_estimates;
mod log_quarantine;
mod member;
mod metric;
mod metrics;
mod operator;
pub mod options;
mod pack;
mod policy_request;
mod queue;
mod records;
mod reply;
mod rescued;
#[cfg(feature = "simulation")]
pub mod simulation;
mod status;
mod submit;
mod terms;
#[cfg(test)]
mod testing;
mod uuids;
mod wire;

pub use api::*;
pub use applier_pool::{Done, Spent};
pub use io::links::DEFAULT_PORT;
pub use io::liveness::LIVE_FOR;
pub use io::node::{CausalError, MAX_WRITESET, Node};
pub use lockstep_core as core;
pub use lockstep_log as log;
pub use lockstep_net as net;
pub use metric::{Metric, MetricKind};
pub use operator::{Answer, Command, Held, HeldMember};
pub use status::{ClusterStatus, DISCONNECTED, LogStatus, MemberStatus, OwnStatus, SILENT, Status};
pub use submit::{Notice, NoticeCall, Submission, SubmitError};
pub use uuids::random_uuid;
pub use wire::{Health, Hello};
