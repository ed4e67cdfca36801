//! `liblockstep.so`: the wsrep provider API, version 26, on one side, a [`lockstep_node::Node`] on the other.
//!
//! Start reading at `table` (every entry point), then `local` with `trx` (a transaction's way), `recv` (what the
//! server's applier threads do) and `monitor` (who waits for whom). What the server expects of each call is said where
//! it is met.
//!
//! Left out, and answered with `NOT_IMPLEMENTED`: preordered events, group locks, snapshots, read views, non-blocking
//! statements.

mod allocator;
mod applier;
mod blocked_time;
mod commit_barrier;
mod commit_dependency;
mod connect;
mod control;
mod counters;
mod ctas_replay;
mod ddl_journal;
mod ddl_recovery;
mod entry_points;
mod events;
#[cfg(test)]
mod fuzz;
mod group_flush;
mod guard;
mod local_trx;
mod log;
mod membership;
mod monitor;
mod option_sync;
mod parameters;
mod process_exit;
mod provider;
mod recovery;
mod rollbacks;
mod saved_options;
mod sched_slice;
mod services;
mod settings;
mod state_files;
mod statement;
mod stats;
mod stop;
mod trx;
mod view_abort;
mod waits;

pub use entry_points::{VersionText, wsrep_interface_version, wsrep_loader};
pub use events::{wsrep_deinit_event_service_v1, wsrep_init_event_service_v1};
pub use membership::{
    wsrep_deinit_membership_service_v1, wsrep_deinit_membership_service_v2, wsrep_init_membership_service_v1,
    wsrep_init_membership_service_v2,
};
pub use parameters::{wsrep_deinit_config_service_v1, wsrep_init_config_service_v1};
pub use services::{
    wsrep_deinit_allowlist_service_v1, wsrep_init_allowlist_service_v1, wsrep_node_isolation_mode_set_v1,
};
