//! `liblockstep.so`: the wsrep provider API, version 26, on one side, a [`lockstep_node::Node`] on the other.
//!
//! Start reading at `table` (every entry point), then `local` with `trx` (a transaction's way), `recv` (what the
//! server's applier threads do) and `monitor` (who waits for whom). What the server expects of each call is said where
//! it is met.
//!
//! Left out, and answered with `NOT_IMPLEMENTED`: preordered events, group locks, snapshots, read views, non-blocking
//! statements.

mod again;
mod allocator;
mod connect;
mod control;
mod counters;
mod ends;
mod events;
mod files;
#[cfg(test)]
mod fuzz;
mod guard;
mod hold;
mod in_view;
mod kept;
mod local;
mod log;
mod marks;
mod membership;
mod monitor;
mod parameters;
mod provider;
mod recovery;
mod recv;
mod redo;
mod rollbacks;
mod services;
mod settings;
mod settled;
mod shown;
mod statement;
mod stats;
mod stop;
mod table;
mod together;
mod trx;
mod turn_soon;
mod waited;
mod waits;

pub use events::{wsrep_deinit_event_service_v1, wsrep_init_event_service_v1};
pub use membership::{
    wsrep_deinit_membership_service_v1, wsrep_deinit_membership_service_v2, wsrep_init_membership_service_v1,
    wsrep_init_membership_service_v2,
};
pub use parameters::{wsrep_deinit_config_service_v1, wsrep_init_config_service_v1};
pub use services::{
    wsrep_deinit_allowlist_service_v1, wsrep_init_allowlist_service_v1, wsrep_node_isolation_mode_set_v1,
};
pub use table::{VersionText, wsrep_interface_version, wsrep_loader};
